/* SPDX-License-Identifier: Apache-2.0
 * Reads a key file (ctl/key_file.h) for a process that serves its keys. */
#pragma once

#include "ctl/key_file.h"

/* The keys of the file, to be freed with sml_keys_free(); NULL: error has one sentence, which names the
 * file. It must be this process's user's, or root's,
 * and nobody else may be able to read or write it. */
struct sml_key_entry *sml_keys_read(const char *path, uint32_t *num_keys_out, char *error, size_t error_bytes);
void sml_keys_free(struct sml_key_entry *keys, uint32_t num_keys);
