/* SPDX-License-Identifier: Apache-2.0
 * Texts of others that people will read: on a terminal, in a log, in a browser. Pure. */
#pragma once

#include "base/base.h"

/* Is this UTF-8 without control characters (C0, DEL, C1) and without those that turn the order of what is shown (bidi
 * marks, embeddings, isolates) or end a line? */
bool sml_text_is_plain(const char *text, size_t num_bytes);
/* Makes it so: a control character of ASCII becomes a space, each byte of anything else that is not plain a '?'. */
void sml_text_make_plain(char *text);
/* Is it an address of a host's own loopback, with a port or without? */
bool sml_text_is_loopback(const char *address);
/* Is the word one of "a,b,c"? NULL has none. */
bool sml_text_lists(const char *list, const char *word);
/* May it stand in the name of a job or a key: letters, digits and . _ : / - */
bool sml_text_is_name_byte(char c);
/* How many characters to insert, leave out or change (Levenshtein), of texts of at most 63: for "do you mean ..?". */
uint32_t sml_text_distance(const char *a, const char *b);
/* "3.5 s", "12 s", "3 min", "5 h", "2 d"; "-" for a negative one. Returns text. */
const char *sml_text_age(char *text, size_t room, double seconds);
