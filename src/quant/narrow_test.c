/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "quant/format.h"

#define MAX_LANES 4096u

/* As docs/PROTOCOL.md has it, lane by lane. */
static void narrow_by_the_book(uint8_t *out, const int32_t *lanes, uint32_t num_lanes) {
  const uint32_t columns = num_lanes / 8;
  for (uint32_t i = 0; i < 7 * columns; i++) {
    const uint32_t row = i / columns, last = (uint32_t)lanes[7 * columns + i % columns];
    sml_store_be32(out + 4 * i, ((uint32_t)lanes[i] & 0xfffffff) | (last >> 4 * row & 15) << 28);
  }
}

static int32_t lane_of(struct sml_prng *prng) {
  const int32_t edges[] = {0, 1, -1, (1 << 27) - 1, -(1 << 27), 8, -8, (1 << 27) - 8};
  const uint64_t bits = sml_prng_next(prng);
  if ((bits & 7) == 0) return edges[bits >> 3 & 7];
  return (int32_t)((uint32_t)(bits >> 32) & 0xfffffff) - (1 << 27);
}

static void test_lanes_come_back(void **state) {
  static int32_t lanes[MAX_LANES];
  static uint8_t wire[4 * MAX_LANES + 1], narrow[4 * MAX_LANES + 2], book[4 * MAX_LANES], back[4 * MAX_LANES + 2];
  struct sml_prng prng = {.state = 7};
  (void)state;
  for (uint32_t num_lanes = 8; num_lanes <= MAX_LANES; num_lanes += num_lanes < 400 ? 8 : 1848) {
    const uint32_t narrow_bytes = num_lanes / 8 * 28;
    for (uint32_t i = 0; i < num_lanes; i++) {
      lanes[i] = lane_of(&prng);
      sml_store_be32(wire + 1 + 4 * i, (uint32_t)lanes[i]);
    }
    narrow[1 + narrow_bytes] = back[1 + 4 * num_lanes] = 0x5a;
    sml_narrow_lanes(narrow + 1, wire + 1, num_lanes);
    narrow_by_the_book(book, lanes, num_lanes);
    assert_memory_equal(narrow + 1, book, narrow_bytes);
    assert_int_equal(narrow[1 + narrow_bytes], 0x5a);
    sml_widen_lanes(back + 1, narrow + 1, num_lanes);
    assert_memory_equal(back + 1, wire + 1, 4 * num_lanes);
    assert_int_equal(back[1 + 4 * num_lanes], 0x5a);
    sml_narrow_lanes(wire + 1, wire + 1, num_lanes); /* in place */
    assert_memory_equal(wire + 1, book, narrow_bytes);
  }
}

/* Each begins at any byte; what is beside them stays. */
static void test_lanes_of_any_alignment(void **state) {
  enum { MAX = 8 * 12, ROOM = 4 * MAX + 40 };
  uint8_t wire[ROOM], narrow[ROOM], book[ROOM], back[ROOM];
  int32_t lanes[MAX];
  struct sml_prng prng = {.state = 9};
  (void)state;
  for (uint32_t at = 0; at < 16 * 16; at++)
    for (uint32_t columns = 0; columns <= MAX / 8; columns++) {
      const uint32_t from = at % 16, to = at / 16, num_lanes = 8 * columns, narrow_bytes = 28 * columns;
      memset(narrow, 0x5a, sizeof narrow);
      memset(back, 0x5a, sizeof back);
      for (uint32_t i = 0; i < num_lanes; i++) {
        lanes[i] = lane_of(&prng);
        sml_store_be32(wire + from + 4 * i, (uint32_t)lanes[i]);
      }
      narrow_by_the_book(book, lanes, num_lanes);
      sml_narrow_lanes(narrow + to, wire + from, num_lanes);
      sml_widen_lanes(back + from, narrow + to, num_lanes);
      assert_memory_equal(narrow + to, book, narrow_bytes);
      assert_memory_equal(back + from, wire + from, 4 * num_lanes);
      for (uint32_t i = 0; i < ROOM; i++) {
        if (i < to || i >= to + narrow_bytes) assert_int_equal(narrow[i], 0x5a);
        if (i < from || i >= from + 4 * num_lanes) assert_int_equal(back[i], 0x5a);
      }
    }
}

static void test_a_larger_lane_loses_its_upper_bits_only(void **state) {
  uint8_t wire[32], narrow[28], back[32];
  (void)state;
  for (uint32_t at = 0; at < 8; at++) {
    memset(wire, 0, sizeof wire);
    sml_store_be32(wire + 4 * at, UINT32_C(0x5abcdef1));
    sml_narrow_lanes(narrow, wire, 8);
    sml_widen_lanes(back, narrow, 8);
    sml_store_be32(wire + 4 * at, UINT32_C(0xfabcdef1));
    assert_memory_equal(back, wire, sizeof wire);
  }
}

/* The promise that lets floats travel so: the largest of each type, in the smallest block that has it. */
static void test_shares_of_floats_fit(void **state) {
  const struct sml_quant_kernels *k = sml_quant_select(NULL);
  const uint32_t types[] = {SML_FORMAT_FLOAT32, SML_FORMAT_FLOAT16, SML_FORMAT_BFLOAT16};
  const uint32_t worlds[] = {5, 7, 8, 9, 64, 4096};
  (void)state;
  for (uint32_t t = 0; t < SML_ARRAY_LEN(types); t++)
    for (uint32_t w = 0; w < SML_ARRAY_LEN(worlds); w++)
      for (uint32_t exponent = 1; exponent < (types[t] == SML_FORMAT_FLOAT16 ? 31u : 255u); exponent++) {
        const struct sml_format_options wide = {.float_bits = 32};
        const struct sml_format_shape shape = sml_format_choose(types[t], 1u << 20, worlds[w], wide);
        assert_true(sml_format_is_narrow(shape, worlds[w]));
        const struct sml_format *f = sml_format_find(types[t], shape);
        const uint32_t bits32 = exponent << 23 | 0x7fffff;
        const uint16_t bits16 = (uint16_t)(types[t] == SML_FORMAT_FLOAT16 ? exponent << 10 | 0x3ff : bits32 >> 16);
        for (uint32_t sign = 0; sign < 2; sign++) {
          const uint32_t x32 = bits32 | sign << 31;
          const uint16_t x16 = (uint16_t)(bits16 | sign << 15);
          const void *x = types[t] == SML_FORMAT_FLOAT32 ? (const void *)&x32 : &x16;
          uint8_t lane[4];
          f->put(k, lane, x, 1, f->block_code(k, x, 1), worlds[w]);
          const int32_t q = (int32_t)sml_load_be32(lane);
          assert_true(q >= -(1 << 27) && q < 1 << 27);
          if (worlds[w] == 8 && exponent > 30 && types[t] == SML_FORMAT_FLOAT32)
            assert_int_equal(sign ? -q : q, (1 << 27) - 8); /* not by being far below it */
        }
      }
}

static void test_what_is_not_narrow(void **state) {
  const struct sml_format_options none = {0}, half = {.float_bits = 16}, doubles = {.float64_bits = 64};
  (void)state;
  assert_true(sml_format_is_narrow(sml_format_choose(SML_FORMAT_FLOAT32, 1u << 20, 5, none), 5));
  assert_false(sml_format_is_narrow(sml_format_choose(SML_FORMAT_FLOAT32, 1u << 20, 4, none), 4));
  assert_false(sml_format_is_narrow(sml_format_choose(SML_FORMAT_FLOAT32, 4, 8, none), 8)); /* an exact sum */
  assert_false(sml_format_is_narrow(sml_format_choose(SML_FORMAT_FLOAT32, 1u << 20, 8, half), 8));
  assert_false(sml_format_is_narrow(sml_format_choose(SML_FORMAT_FLOAT64, 1u << 20, 8, doubles), 8));
  assert_false(sml_format_is_narrow(sml_format_choose(SML_FORMAT_INT32, 1u << 20, 8, none), 8));
  assert_false(sml_format_is_narrow(sml_format_choose(SML_FORMAT_INT64, 1u << 20, 8, none), 8));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_lanes_come_back), cmocka_unit_test(test_lanes_of_any_alignment),
      cmocka_unit_test(test_a_larger_lane_loses_its_upper_bits_only), cmocka_unit_test(test_shares_of_floats_fit),
      cmocka_unit_test(test_what_is_not_narrow)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
