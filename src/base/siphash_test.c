/* SPDX-License-Identifier: Apache-2.0
 * SipHash against the vectors that its authors published, in any pieces; derived keys. */
#include "base/siphash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static const struct sml_key KEY = {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)};

/* vectors_sip64 of the reference implementation: key 00 01 .. 0f, message 00 01 .. (i - 1). */
static const uint64_t VECTORS[64] = {
    UINT64_C(0x726fdb47dd0e0e31), UINT64_C(0x74f839c593dc67fd), UINT64_C(0x0d6c8009d9a94f5a),
    UINT64_C(0x85676696d7fb7e2d), UINT64_C(0xcf2794e0277187b7), UINT64_C(0x18765564cd99a68d),
    UINT64_C(0xcbc9466e58fee3ce), UINT64_C(0xab0200f58b01d137), UINT64_C(0x93f5f5799a932462),
    UINT64_C(0x9e0082df0ba9e4b0), UINT64_C(0x7a5dbbc594ddb9f3), UINT64_C(0xf4b32f46226bada7),
    UINT64_C(0x751e8fbc860ee5fb), UINT64_C(0x14ea5627c0843d90), UINT64_C(0xf723ca908e7af2ee),
    UINT64_C(0xa129ca6149be45e5), UINT64_C(0x3f2acc7f57c29bdb), UINT64_C(0x699ae9f52cbe4794),
    UINT64_C(0x4bc1b3f0968dd39c), UINT64_C(0xbb6dc91da77961bd), UINT64_C(0xbed65cf21aa2ee98),
    UINT64_C(0xd0f2cbb02e3b67c7), UINT64_C(0x93536795e3a33e88), UINT64_C(0xa80c038ccd5ccec8),
    UINT64_C(0xb8ad50c6f649af94), UINT64_C(0xbce192de8a85b8ea), UINT64_C(0x17d835b85bbb15f3),
    UINT64_C(0x2f2e6163076bcfad), UINT64_C(0xde4daaaca71dc9a5), UINT64_C(0xa6a2506687956571),
    UINT64_C(0xad87a3535c49ef28), UINT64_C(0x32d892fad841c342), UINT64_C(0x7127512f72f27cce),
    UINT64_C(0xa7f32346f95978e3), UINT64_C(0x12e0b01abb051238), UINT64_C(0x15e034d40fa197ae),
    UINT64_C(0x314dffbe0815a3b4), UINT64_C(0x027990f029623981), UINT64_C(0xcadcd4e59ef40c4d),
    UINT64_C(0x9abfd8766a33735c), UINT64_C(0x0e3ea96b5304a7d0), UINT64_C(0xad0c42d6fc585992),
    UINT64_C(0x187306c89bc215a9), UINT64_C(0xd4a60abcf3792b95), UINT64_C(0xf935451de4f21df2),
    UINT64_C(0xa9538f0419755787), UINT64_C(0xdb9acddff56ca510), UINT64_C(0xd06c98cd5c0975eb),
    UINT64_C(0xe612a3cb9ecba951), UINT64_C(0xc766e62cfcadaf96), UINT64_C(0xee64435a9752fe72),
    UINT64_C(0xa192d576b245165a), UINT64_C(0x0a8787bf8ecb74b2), UINT64_C(0x81b3e73d20b49b6f),
    UINT64_C(0x7fa8220ba3b2ecea), UINT64_C(0x245731c13ca42499), UINT64_C(0xb78dbfaf3a8d83bd),
    UINT64_C(0xea1ad565322a1a0b), UINT64_C(0x60e61c23a3795013), UINT64_C(0x6606d7e446282b93),
    UINT64_C(0x6ca4ecb15c5f91e1), UINT64_C(0x9f626da15c9625f3), UINT64_C(0xe51b38608ef25f57),
    UINT64_C(0x958a324ceb064572),
};

static void fill_message(uint8_t *message) {
  for (uint32_t i = 0; i < 64; i++) message[i] = (uint8_t)i;
}

static void published_vectors(void **state) {
  (void)state;
  uint8_t message[64];
  fill_message(message);
  for (uint32_t i = 0; i < 64; i++)
    if (sml_siphash(&KEY, message, i) != VECTORS[i]) fail_msg("%u bytes", i);
}

/* The memory is exact, so that a sanitizer sees a read beyond it. */
static void any_pieces_give_the_same_tag(void **state) {
  (void)state;
  uint8_t message[64];
  fill_message(message);
  for (size_t num_bytes = 0; num_bytes < 64; num_bytes++) {
    for (size_t first = 0; first <= num_bytes; first++) {
      for (size_t second = 0; second <= num_bytes - first; second += 5) {
        uint8_t *copy = malloc(num_bytes + 1), *at = copy + 1; /* no alignment needed */
        memcpy(at, message, num_bytes);
        struct sml_siphash h;
        sml_siphash_init(&h, &KEY);
        sml_siphash_update(&h, at, first);
        sml_siphash_update(&h, at + first, second);
        sml_siphash_update(&h, at + first + second, num_bytes - first - second);
        assert_true(sml_siphash_final(&h) == VECTORS[num_bytes]);
        free(copy);
      }
    }
  }
}

static bool is_equal(struct sml_key a, struct sml_key b) {
  return a.k0 == b.k0 && a.k1 == b.k1;
}

/* Part of the protocol: both ends derive the same. */
static void derived_key(void **state) {
  (void)state;
  static const char message[] = "\0data\0ab", other[] = "\1data\0ab";
  const struct sml_key key = sml_key_derive(&KEY, "data", "ab", 2);
  assert_true(key.k0 == sml_siphash(&KEY, message, 8) && key.k1 == sml_siphash(&KEY, other, 8));
  assert_true(key.k0 != key.k1);
}

static void each_input_changes_a_derived_key(void **state) {
  (void)state;
  const struct sml_key other = {KEY.k0, KEY.k1 ^ 1};
  const struct sml_key keys[] = {
      sml_key_derive(&KEY, "data", "ab", 2),
      sml_key_derive(&KEY, "data", "ac", 2),
      sml_key_derive(&KEY, "data", "ab", 1),
      sml_key_derive(&KEY, "datb", "ab", 2),
      sml_key_derive(&other, "data", "ab", 2),
      sml_key_derive(&KEY, "dataa", "b", 1),
      sml_key_derive(&KEY, "", "ab", 2),
      sml_key_derive(&KEY, "", NULL, 0),
      KEY,
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(keys); i++)
    for (size_t k = 0; k < i; k++) assert_false(is_equal(keys[i], keys[k]));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(published_vectors),
      cmocka_unit_test(any_pieces_give_the_same_tag),
      cmocka_unit_test(derived_key),
      cmocka_unit_test(each_input_changes_a_derived_key),
  };
  return cmocka_run_group_tests_name("siphash", tests, NULL, NULL);
}
