/* SPDX-License-Identifier: Apache-2.0
 * The job's key, from the file that names it. */
#pragma once

#include "base/siphash.h"
#include "process/status.h"

/* name NULL: the file's first key. name_out: SML_KEY_NAME_BYTES. Errors: INVALID_ARGUMENT (the file cannot be
 * read, others may read it, a line is wrong), KEY (it has no such key). */
sml_status sml_key_read(const char *path, const char *name, char *name_out, struct sml_key *key_out);
