/* SPDX-License-Identifier: Apache-2.0 */
#include "meet/key.h"

#include <stdio.h>

#include "aggd/key_reader.h"

sml_status sml_key_read(const char *path, const char *name, char *name_out, struct sml_key *key_out) {
  char error[SML_ERROR_DETAIL_BYTES];
  uint32_t num_keys;
  struct sml_key_entry *keys = sml_keys_read(path, &num_keys, error, sizeof error);
  if (keys == NULL) return sml_fail(SML_ERR_INVALID_ARGUMENT, "%s", error);
  if (name == NULL) name = keys[0].name; /* a file has at least one */
  const struct sml_key *key = sml_key_find(keys, num_keys, name);
  if (key != NULL) {
    snprintf(name_out, SML_KEY_NAME_BYTES, "%s", name);
    *key_out = *key;
  }
  sml_keys_free(keys, num_keys);
  return key != NULL ? SML_OK : sml_fail(SML_ERR_KEY, "key file %.120s has no key '%.64s'", path, name);
}
