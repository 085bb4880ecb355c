/* SPDX-License-Identifier: Apache-2.0
 * CRC-32C against RFC 3720 and a bit-by-bit reference: the portable code and whatever this processor uses.
 * The source itself is included, to reach the path that this processor would not choose. */
#include "core/crc32c.c"

#include "base/test_registers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static uint32_t crc_bitwise(uint32_t crc, const uint8_t *data, size_t num_bytes) {
  crc = ~crc;
  for (size_t i = 0; i < num_bytes; i++) {
    crc ^= data[i];
    for (int k = 0; k < 8; k++) crc = (crc >> 1) ^ (UINT32_C(0x82f63b78) & (0u - (crc & 1)));
  }
  return ~crc;
}

static void known_vectors(void **state) {
  (void)state;
  uint8_t data[48];
  assert_int_equal(sml_crc32c(0, "", 0), 0);
  assert_int_equal(sml_crc32c(0, "123456789", 9), 0xe3069283);
  /* RFC 3720 appendix B.4; the values are printed there in the order of the wire. */
  memset(data, 0, 32);
  assert_int_equal(sml_crc32c(0, data, 32), 0x8a9136aa);
  memset(data, 0xff, 32);
  assert_int_equal(sml_crc32c(0, data, 32), 0x62a8ab43);
  for (uint8_t i = 0; i < 32; i++) data[i] = i;
  assert_int_equal(sml_crc32c(0, data, 32), 0x46dd794e);
  for (uint8_t i = 0; i < 32; i++) data[i] = (uint8_t)(31 - i);
  assert_int_equal(sml_crc32c(0, data, 32), 0x113fdb5c);
  static const uint8_t read_pdu[48] = {0x01, 0xc0, [16] = 0x14, [22] = 0x04, [27] = 0x14,
                                       [31] = 0x18, [32] = 0x28, [40] = 0x02};
  assert_int_equal(sml_crc32c(0, read_pdu, 48), 0xd9963a56);
}

static void all_lengths_and_alignments(void **state) {
  (void)state;
  enum { ROOM = 3008 };
  static uint8_t data[ROOM + 8];
  struct sml_prng prng = {.state = 1};
  for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)sml_prng_next(&prng);
  for (size_t offset = 0; offset < 8; offset++) {
    uint32_t expected = ~UINT32_C(0); /* state of the reference, continued byte by byte */
    for (size_t num_bytes = 0; num_bytes <= 3000; num_bytes++) {
      assert_int_equal(sml_crc32c(0, data + offset, num_bytes), ~expected);
      assert_int_equal(crc32c_portable(~UINT32_C(0), data + offset, num_bytes), expected);
#if defined(__x86_64__)
      if (chosen >= SSE42) assert_int_equal(crc32c_sse42(~UINT32_C(0), data + offset, num_bytes), expected);
#endif
      expected = ~crc_bitwise(~expected, data + offset + num_bytes, 1);
    }
  }
}

static void continues_anywhere(void **state) {
  (void)state;
  static uint8_t data[9000];
  struct sml_prng prng = {.state = 2};
  for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)sml_prng_next(&prng);
  for (int round = 0; round < 200; round++) {
    const size_t begin = (size_t)sml_prng_below(&prng, 8);
    const size_t total = (size_t)sml_prng_below(&prng, sizeof data - 8);
    const size_t cut = (size_t)sml_prng_below(&prng, total + 1);
    const uint32_t seed = (uint32_t)sml_prng_next(&prng);
    const uint32_t expected = crc_bitwise(seed, data + begin, total);
    assert_int_equal(sml_crc32c(seed, data + begin, total), expected);
    const uint32_t half = sml_crc32c(seed, data + begin, cut);
    assert_int_equal(sml_crc32c(half, data + begin + cut, total - cut), expected);
  }
}

static void leaves_no_wide_vectors(void **state) {
  (void)state;
  static uint8_t data[3000];
  for (size_t num_bytes = 0; num_bytes < sizeof data; num_bytes += 31) {
    sml_crc32c(0, data, num_bytes);
    assert_true(has_clean_vectors());
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(known_vectors),
      cmocka_unit_test(all_lengths_and_alignments),
      cmocka_unit_test(continues_anywhere),
      cmocka_unit_test(leaves_no_wide_vectors),
  };
  return cmocka_run_group_tests_name("crc32c", tests, NULL, NULL);
}
