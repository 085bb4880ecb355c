/* SPDX-License-Identifier: Apache-2.0
 * The key file's lines: each way to be malformed has its sentence; garbage gets a verdict. */
#include "ctl/key_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define HEX "000102030405060708090a0b0c0d0e0f"
#define MAX_KEYS 4u

static struct sml_key_entry entries[MAX_KEYS];
static size_t num_keys;
static char error[128];

/* A copy without a terminator: the sanitizer sees a byte too far. */
static bool parse_bytes(const char *text, size_t num_bytes) {
  char *exact = malloc(num_bytes + 1);
  assert_non_null(exact);
  memcpy(exact, text, num_bytes);
  exact = realloc(exact, num_bytes ? num_bytes : 1);
  assert_non_null(exact);
  error[0] = 0;
  bool is_good = sml_key_file_parse(exact, num_bytes, entries, MAX_KEYS, &num_keys, error, sizeof error);
  free(exact);
  assert_int_equal(is_good, error[0] == 0);
  return is_good;
}

static void test_good_files(void **state) {
  (void)state;
  static const char *const files[] = {
      "alice " HEX,
      "alice " HEX "\n",
      "alice " HEX "\r\n",
      "\n\n# comment\n \t\nalice\t \t" HEX "  # hers\n# end",
      "  alice 000102030405060708090A0B0C0D0E0F\n\n",
      "#alice 11\nalice " HEX "#",
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(files); i++) {
    if (!parse_bytes(files[i], strlen(files[i]))) fail_msg("file %zu: %s", i, error);
    assert_int_equal(num_keys, 1);
    assert_string_equal(entries[0].name, "alice");
    assert_true(entries[0].key.k0 == UINT64_C(0x0706050403020100));
    assert_true(entries[0].key.k1 == UINT64_C(0x0f0e0d0c0b0a0908));
  }
}

static void test_several_keys(void **state) {
  (void)state;
  static const char text[] =
      "a 00000000000000000000000000000001\nA.b_c:d/e-9 10000000000000000000000000000000\n"
      "abcdefghijklmnopqrstuvwxyz01234 ffffffffffffffffffffffffffffffff\n";
  assert_true(parse_bytes(text, strlen(text)));
  assert_int_equal(num_keys, 3);
  assert_ptr_equal(sml_key_find(entries, num_keys, "a"), &entries[0].key);
  assert_ptr_equal(sml_key_find(entries, num_keys, "abcdefghijklmnopqrstuvwxyz01234"), &entries[2].key);
  assert_null(sml_key_find(entries, num_keys, "A"));
  assert_null(sml_key_find(entries, num_keys, ""));
  assert_null(sml_key_find(entries, num_keys, "abcdefghijklmnopqrstuvwxyz01234x"));
  assert_true(entries[0].key.k1 == UINT64_C(1) << 56);
  assert_true(entries[1].key.k0 == 0x10);
}

static void test_malformed_lines(void **state) {
  (void)state;
  static const struct {
    const char *text, *error;
  } rows[] = {
      {"", "there is no key in it: a line is a name and 32 hexadecimal digits"},
      {"# nothing\n\n", "there is no key in it: a line is a name and 32 hexadecimal digits"},
      {"alice", "line 1: the key is missing: a line is a name and 32 hexadecimal digits"},
      {"alice # " HEX, "line 1: the key is missing: a line is a name and 32 hexadecimal digits"},
      {"\n\nalice \n", "line 3: the key is missing: a line is a name and 32 hexadecimal digits"},
      {"alice " HEX "0", "line 1: a key has 32 hexadecimal digits"},
      {"alice 0", "line 1: a key has 32 hexadecimal digits"},
      {"alice 0x0102030405060708090a0b0c0d0e0f", "line 1: a key has hexadecimal digits only"},
      {"alice g00102030405060708090a0b0c0d0e0f", "line 1: a key has hexadecimal digits only"},
      {"alice 00010203040506070809:a0b0c0d0e0f", "line 1: a key has hexadecimal digits only"},
      {"alice 00010203040506070809@a0b0c0d0e0`", "line 1: a key has hexadecimal digits only"},
      {"alice 00000000000000000000000000000000", "line 1: a key of zeros is no key"},
      {"alice " HEX " more", "line 1: something follows the key"},
      {"alice " HEX " " HEX, "line 1: something follows the key"},
      {"al=ice " HEX, "line 1: a name has letters, digits and . _ : / - only"},
      {"alice=" HEX, "line 1: the name has more than 31 characters"},
      {"a\x01 " HEX, "line 1: a name has letters, digits and . _ : / - only"},
      {"\xc3\xa4 " HEX, "line 1: a name has letters, digits and . _ : / - only"},
      {"abcdefghijklmnopqrstuvwxyz012345 " HEX, "line 1: the name has more than 31 characters"},
      {"a " HEX "\n# b\na " HEX "\n", "line 3: there is a key of this name already"},
      {"a " HEX "\nb " HEX "\nc " HEX "\nd " HEX "\ne " HEX, "line 5: there are too many keys"},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    assert_false(parse_bytes(rows[i].text, strlen(rows[i].text)));
    assert_string_equal(error, rows[i].error);
  }
  assert_false(parse_bytes("a\0b " HEX, 4 + 32));
  assert_string_equal(error, "line 1: a name has letters, digits and . _ : / - only");
}

static void test_every_truncation(void **state) {
  (void)state;
  static const char text[] = "alice " HEX " # hers\nbob " HEX "\n";
  for (size_t cut = 0; cut <= strlen(text); cut++) {
    /* whole up to the end of a key, with or without what may follow it */
    bool is_good = (cut >= 38 && cut < 46) || cut == 46 || cut >= strlen(text) - 1;
    assert_int_equal(parse_bytes(text, cut), is_good);
  }
}

static void test_garbage(void **state) {
  (void)state;
  struct sml_prng prng = {.state = 5};
  static const char alphabet[] = "0123456789abcdefAF \t\r\n\n#xyz-\xff";
  for (uint32_t round = 0; round < 200000; round++) {
    char text[96];
    size_t num_bytes = sml_prng_below(&prng, sizeof text);
    for (size_t i = 0; i < num_bytes; i++) text[i] = alphabet[sml_prng_below(&prng, sizeof alphabet - 1)];
    if (parse_bytes(text, num_bytes)) assert_true(num_keys >= 1 && num_keys <= MAX_KEYS);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_good_files),      cmocka_unit_test(test_several_keys),
      cmocka_unit_test(test_malformed_lines), cmocka_unit_test(test_every_truncation),
      cmocka_unit_test(test_garbage),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
