/* SPDX-License-Identifier: Apache-2.0
 * Lines of text and the columns that a terminal has for them. Nothing is left out without a mark. */
#pragma once

#include <stdio.h>

#include "base/base.h"

/* How many columns the text takes, at most: what may be wide counts twice. */
uint32_t sml_screen_width(const char *text, size_t num_bytes);
/* Lines longer than `columns` go on in further, indented ones, if they can between words. 0: as they are. */
void sml_screen_wrap(FILE *stream, const char *text, uint32_t columns);
/* What of a line is in the columns from `first` on; '<' and '>' stand where some of it is not. */
void sml_screen_cut(FILE *stream, const char *line, size_t num_bytes, uint32_t first, uint32_t columns);
