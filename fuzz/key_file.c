/* SPDX-License-Identifier: Apache-2.0
 * The file of keys. Input: a byte, the number of entries there is room for; then the text. */
#include "ctl/key_file.h"

#include "fuzz/fuzz.h"

#define MAX_ENTRIES 8u

static void check_entries(const struct sml_key_entry *entries, size_t num_entries) {
  static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:/-";
  char text[MAX_ENTRIES * 80] = "";
  size_t used = 0, num_again = 0;
  for (size_t i = 0; i < num_entries; i++) {
    const struct sml_key_entry *e = &entries[i];
    const size_t name_bytes = strnlen(e->name, sizeof e->name);
    CHECK(name_bytes > 0 && name_bytes < sizeof e->name && strspn(e->name, allowed) == name_bytes, "%zu", i);
    CHECK((e->key.k0 | e->key.k1) != 0, "%s", e->name);
    CHECK(sml_key_find(entries, num_entries, e->name) == &e->key, "%s", e->name);
    used += (size_t)snprintf(text + used, sizeof text - used, "%s ", e->name);
    for (uint32_t b = 0; b < 16; b++) {
      const uint64_t half = b < 8 ? e->key.k0 : e->key.k1;
      used += (size_t)snprintf(text + used, sizeof text - used, "%02x", (unsigned)(half >> b % 8 * 8 & 0xff));
    }
    used += (size_t)snprintf(text + used, sizeof text - used, "\n");
  }
  struct sml_key_entry again[MAX_ENTRIES];
  char error[128] = "";
  CHECK(sml_key_file_parse(text, used, again, MAX_ENTRIES, &num_again, error, sizeof error), "%s", error);
  CHECK(num_again == num_entries, "%zu of %zu", num_again, num_entries);
  for (size_t i = 0; i < num_entries; i++) {
    CHECK(strcmp(entries[i].name, again[i].name) == 0, "%zu", i);
    CHECK(entries[i].key.k0 == again[i].key.k0 && entries[i].key.k1 == again[i].key.k1, "%zu", i);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  if (num_bytes < 1) return 0;
  const size_t max_entries = 1 + data[0] % MAX_ENTRIES;
  char error[64], *text = fuzz_copy(data + 1, num_bytes - 1);
  struct sml_key_entry *entries = malloc(max_entries * sizeof *entries);
  size_t num_entries = 0;
  CHECK(entries != NULL, "no memory");
  memset(error, 'x', sizeof error);
  if (sml_key_file_parse(text, num_bytes - 1, entries, max_entries, &num_entries, error, sizeof error)) {
    CHECK(num_entries >= 1 && num_entries <= max_entries, "%zu", num_entries);
    check_entries(entries, num_entries);
  } else {
    CHECK(error[0] != 0 && strnlen(error, sizeof error) < sizeof error, "no reason given");
  }
  free(entries);
  free(text);
  return 0;
}
