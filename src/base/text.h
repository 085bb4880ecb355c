/* SPDX-License-Identifier: Apache-2.0
 * Texts of others that people will read: on a terminal, in a log, in a browser. Pure. */
#ifndef SML_BASE_TEXT_H
#define SML_BASE_TEXT_H

#include "base/base.h"

/* Is this UTF-8 without control characters (C0, DEL, C1) and without those that turn the order of what is shown (bidi
 * marks, embeddings, isolates) or end a line? */
bool sml_text_is_plain(const char *text, size_t num_bytes);
/* Makes it so: a control character of ASCII becomes a space, each byte of anything else that is not plain a '?'. */
void sml_text_make_plain(char *text);
/* How many characters to insert, leave out or change (Levenshtein), of texts of at most 63: for "do you mean ..?". */
uint32_t sml_text_distance(const char *a, const char *b);
/* "3.5 s", "12 s", "3 min", "5 h", "2 d"; "-" for a negative one. Returns text. */
const char *sml_text_age(char *text, size_t room, double seconds);

#endif
