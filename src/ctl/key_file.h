/* SPDX-License-Identifier: Apache-2.0
 * The file that names keys. One key a line: a name (letters, digits and . _ : / -, at most 31), spaces or
 * tabs, 32 hexadecimal digits. Empty lines and what follows a '#' are skipped. Pure: the caller reads the
 * file. */
#pragma once

#include "base/siphash.h"
#include "ctl/message.h"

#define SML_KEY_FILE_MAX_BYTES (1u << 20) /* for whoever reads it */
#define SML_KEY_FILE_MAX_KEYS 4096u

struct sml_key_entry {
  char name[SML_KEY_NAME_BYTES];
  struct sml_key key; /* its 16 bytes in the order of the digits */
};

/* False: error has one sentence that names the line. More than `max` keys, two of one name, an all-zero key
 * and a file without any key are errors; entries may be written up to the bad line. */
bool sml_key_file_parse(const char *text, size_t num_bytes, struct sml_key_entry *entries, size_t max, size_t *num_out,
                        char *error, size_t error_bytes);
/* NULL: there is none of that name. */
const struct sml_key *sml_key_find(const struct sml_key_entry *entries, size_t num_entries, const char *name);
