/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "quant/format.h"
#include "quant/limbs.h"

__extension__ typedef __int128 int128;

static struct sml_prng prng = {.state = 4711};
static const uint32_t world_sizes[] = {2, 3, 4, 5, 8, 16, 17, 64, 255, 1000, 4095, 4096};

static float from_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static uint32_t to_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/* All ranks' contributions, added as an aggregator does: lane by lane, modulo 2^32; and at once, as one host does. */
static float all_reduce(const float *values, uint32_t world_size, bool average) {
  const uint32_t num_lanes = sml_limbs_per_elem(world_size);
  uint8_t lanes[64], sums[64] = {0};
  assert_true(num_lanes <= 16);
  for (uint32_t r = 0; r < world_size; r++) {
    sml_limbs_put(lanes, &values[r], 1, world_size);
    for (uint32_t l = 0; l < num_lanes; l++)
      sml_store_be32(sums + 4 * l, sml_load_be32(sums + 4 * l) + sml_load_be32(lanes + 4 * l));
  }
  static const float *inputs[4096];
  float result, at_once;
  for (uint32_t r = 0; r < world_size; r++) inputs[r] = &values[r];
  sml_limbs_round(&result, sums, 1, world_size, average);
  sml_limbs_reduce(&at_once, inputs, world_size, 1, average);
  if (memcmp(&result, &at_once, sizeof result) != 0) fail_msg("%08x, at once %08x", to_bits(result), to_bits(at_once));
  return result;
}

#define assert_bits(x, expected)                                \
  do {                                                          \
    const uint32_t is = to_bits(x), should = to_bits(expected); \
    if (is != should) fail_msg("%08x, not %08x", is, should);   \
  } while (0)

static float without_minus_zero(float x) {
  return x == 0 ? 0.0f : x;
}

/* Two floats: the processor's own sum is the exact one, rounded once. */
static void sums_of_two_are_the_processors(void **state) {
  (void)state;
  for (uint32_t i = 0; i < (SML_IS_SLOW_BUILD ? 500000 : 2000000); i++) {
    const uint64_t random = sml_prng_next(&prng);
    uint32_t a = (uint32_t)random, b = (uint32_t)(random >> 32);
    if (i % 2 == 0) b = (b & 0x807fffff) | (((a >> 23) + b % 60 - 30) & 0xff) << 23; /* of like magnitude */
    if ((a >> 23 & 0xff) == 0xff || (b >> 23 & 0xff) == 0xff) continue;
    const volatile float sum = from_bits(a) + from_bits(b);
    const float in[2] = {from_bits(a), from_bits(b)};
    assert_bits(all_reduce(in, 2, false), without_minus_zero(sum));
  }
}

static void one_value_comes_back(void **state) {
  (void)state;
  for (size_t w = 0; w < SML_ARRAY_LEN(world_sizes); w++) {
    const uint32_t n = world_sizes[w], stride = n < 8 ? 65521 : 8388593;
    float values[4096] = {0};
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += stride) {
      const float x = values[n / 2] = from_bits((uint32_t)bits);
      if ((bits >> 23 & 0xff) == 0xff) continue;
      assert_bits(all_reduce(values, n, false), without_minus_zero(x));
      float own;
      uint8_t lanes[64];
      sml_limbs_put(lanes, &x, 1, n);
      sml_limbs_round(&own, lanes, 1, n, false);
      assert_bits(own, without_minus_zero(x));
    }
  }
}

/* Every rank has the same: nothing may overflow, and the average is the value. */
static void equal_values_average_to_themselves(void **state) {
  (void)state;
  for (size_t w = 0; w < SML_ARRAY_LEN(world_sizes); w++) {
    const uint32_t n = world_sizes[w];
    float values[4096];
    for (uint32_t field = 0; field < 255; field += (n > 64 ? 6 : 1)) {
      const float x = from_bits(field << 23 | (field % 3 == 2 ? 1 : 0x7fffff) | (field & 1u) << 31);
      for (uint32_t r = 0; r < n; r++) values[r] = x;
      assert_bits(all_reduce(values, n, true), x);
      if (!sml_is_pow2(n)) continue;
      const volatile float sum = x * (float)n; /* exact, or Inf */
      assert_bits(all_reduce(values, n, false), sum);
    }
  }
}

/* Bit by bit: not the way of the library, and 32 bits have no division of 128. */
static int128 divide(int128 value, uint32_t divisor, bool *has_rest_out) {
  int128 quotient = 0;
  uint32_t rest = 0;
  for (uint32_t bit = 127; bit-- > 0;) {
    rest = rest << 1 | (uint32_t)(value >> bit & 1);
    quotient = quotient << 1 | (rest >= divisor);
    if (rest >= divisor) rest -= divisor;
  }
  *has_rest_out = rest != 0;
  return quotient;
}

/* Rounds an integer times 2^exponent / divisor once; divisor < 2^13. */
static float round_exact(int128 sum, int32_t exponent, uint32_t divisor) {
  const bool is_negative = sum < 0;
  if (is_negative) sum = -sum;
  sum <<= 26;
  exponent -= 26;
  bool has_rest;
  sum = divide(sum, divisor, &has_rest);
  if (sum == 0) return 0;
  while (sum >= 1 << 25) {
    has_rest = has_rest || (sum & 1) != 0;
    sum >>= 1;
    exponent++;
  }
  while (sum < 1 << 24) sum <<= 1, exponent--; /* only if there is no rest */
  uint32_t mantissa = (uint32_t)sum >> 1;
  if ((sum & 1) != 0 && (has_rest || (mantissa & 1) != 0)) mantissa++;
  float x = (float)mantissa; /* exact, and so are the products */
  for (exponent++; exponent > 0; exponent--) x *= 2;
  for (; exponent < 0; exponent++) x /= 2;
  return is_negative ? -x : x;
}

static void random_sums_and_averages_are_exact(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 6000; i++) {
    const uint32_t n = world_sizes[i % SML_ARRAY_LEN(world_sizes)];
    const uint32_t spread = 1 + (uint32_t)sml_prng_below(&prng, 55), low = 60 + (uint32_t)sml_prng_below(&prng, 80);
    float values[4096];
    int128 sum = 0;
    if (n > 64 && i % 16 != 0) continue;
    for (uint32_t r = 0; r < n; r++) {
      const uint32_t above = (uint32_t)sml_prng_below(&prng, spread), random = (uint32_t)sml_prng_next(&prng);
      values[r] = from_bits((random & 0x807fffff) | (low + above) << 23);
      if (r % 2 == 1 && random % 4 == 0) values[r] = -values[r - 1]; /* they cancel: bits far below show */
      const uint32_t bits = to_bits(values[r]);
      const int128 mantissa = (int128)((bits & 0x7fffff) | 0x800000) << ((bits >> 23 & 0xff) - low);
      sum += bits >> 31 ? -mantissa : mantissa;
    }
    assert_bits(all_reduce(values, n, false), round_exact(sum, (int32_t)low - 150, 1));
    assert_bits(all_reduce(values, n, true), round_exact(sum, (int32_t)low - 150, n));
  }
}

static void what_is_not_finite(void **state) {
  (void)state;
  const float inf = __builtin_inff(), nan = from_bits(0x7fc00000), max = 0x1.fffffep127f;
  static const float zeros[4] = {-0.0f, 0, -0.0f, -0.0f};
  /* clang-format off */
  const struct {
    float in[4], sum;
  } cases[] = {
      {{inf, 1, 2, 3}, inf},         {{-inf, 1, inf, 3}, nan},        {{-inf, -inf, max, max}, -inf},
      {{inf, inf, inf, inf}, inf},   {{1, from_bits(0xff800001), 2, 3}, nan}, {{1, nan, inf, 3}, nan},
      {{max, max, -max, 0}, max},    {{max, 0x1p103f, 0, 0}, inf},    {{max, 0x1.fffffep102f, 0, 0}, max},
      {{max, max, max, max}, inf},   {{-max, -max, 0, 0}, -inf},      {{-0.0f, -0.0f, -0.0f, -0.0f}, 0},
      {{0x1p-149f, 0x1p-149f, -0x1p-148f, 0}, 0}, {{1, 0x1p-149f, -1, 0}, 0x1p-149f},
      {{0x1p127f, 0x1p-149f, -0x1p127f, 0x1p-149f}, 0x1p-148f},
  };
  /* clang-format on */
  for (size_t i = 0; i < SML_ARRAY_LEN(cases); i++) assert_bits(all_reduce(cases[i].in, 4, false), cases[i].sum);
  assert_bits(all_reduce(zeros, 4, true), 0.0f);
  const float tiny_negative[4] = {-0x1p-149f, 0, 0, 0};
  assert_bits(all_reduce(tiny_negative, 4, true), -0.0f); /* rounded to 0, it keeps its sign */
  const float all_max[4] = {max, max, max, max}, tiny[4] = {0x1p-149f, 0, 0, 0}, two[4] = {0x1p-148f, 0, 0, 0},
              three[4] = {0x1p-149f, 0x1p-148f, 0, 0};
  assert_bits(all_reduce(all_max, 4, true), max); /* the sum itself is beyond the range */
  assert_bits(all_reduce(tiny, 4, true), 0.0f);
  assert_bits(all_reduce(two, 4, true), 0.0f); /* a tie, to even */
  assert_bits(all_reduce(three, 4, true), 0x1p-149f);
  float many[4096];
  for (uint32_t r = 0; r < 4096; r++) many[r] = r % 2 ? nan : inf;
  assert_bits(all_reduce(many, 4096, false), nan);
  for (uint32_t r = 0; r < 4096; r++) many[r] = -inf;
  assert_bits(all_reduce(many, 4096, false), -inf);
}

/* An aggregator may send anything: the same bits on every rank, and nothing undefined. */
static void any_lanes_give_a_float(void **state) {
  (void)state;
  uint8_t lanes[64];
  for (uint32_t i = 0; i < (SML_IS_SLOW_BUILD ? 50000 : 200000); i++) {
    const uint32_t n = world_sizes[i % SML_ARRAY_LEN(world_sizes)], num_lanes = sml_limbs_per_elem(n);
    for (uint32_t l = 0; l < num_lanes; l++) {
      const uint64_t random = sml_prng_next(&prng);
      const uint32_t value = random % 3 == 0 ? 0x80000000u : random % 3 == 1 ? 0x7fffffffu : (uint32_t)(random >> 32);
      sml_store_be32(lanes + 4 * l, l + 1 == num_lanes && i % 2 ? 0 : value);
    }
    float once, again;
    sml_limbs_round(&once, lanes, 1, n, i % 5 == 0);
    sml_limbs_round(&again, lanes, 1, n, i % 5 == 0);
    assert_bits(once, again);
    assert_true(once == once || to_bits(once) == 0x7fc00000);
  }
}

static double bound_of(double result) {
  const struct sml_format_shape exact = {.has_exponents = false};
  return sml_format_error_bound(SML_FORMAT_FLOAT32, exact, 0, 2, false, result);
}

static void the_rule(void **state) {
  (void)state;
  assert_int_equal(sml_limbs_per_elem(2), 11);
  assert_int_equal(sml_limbs_per_elem(8), 11);
  assert_int_equal(sml_limbs_per_elem(16), 12);
  assert_int_equal(sml_limbs_per_elem(4096), 16);
  assert_true(sml_limbs_is_exact(1, 2) && sml_limbs_is_exact(SML_LIMBS_MAX_ELEMS, 4096));
  assert_true(bound_of(1) == 0x1p-24 && bound_of(0x1p-149) == 0x1p-150 && bound_of(__builtin_inf()) > 0x1p127);
  assert_false(sml_limbs_is_exact(0, 2) || sml_limbs_is_exact(SML_LIMBS_MAX_ELEMS + 1, 2) || sml_limbs_is_exact(1, 1));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sums_of_two_are_the_processors),
      cmocka_unit_test(one_value_comes_back),
      cmocka_unit_test(equal_values_average_to_themselves),
      cmocka_unit_test(random_sums_and_averages_are_exact),
      cmocka_unit_test(what_is_not_finite),
      cmocka_unit_test(any_lanes_give_a_float),
      cmocka_unit_test(the_rule),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
