/* SPDX-License-Identifier: Apache-2.0
 * Exact sums of doubles, added lane by lane modulo 2^32 as an aggregator does. What needs large integers to be told
 * right is in tests/doubles_test.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "quant/double_limbs.h"

#define MAX_RANKS 4096u
#define MAX_BYTES (4u * SML_DOUBLE_LIMBS_MAX_PER_ELEM)

static struct sml_prng prng = {.state = 815};
static const uint32_t world_sizes[] = {2, 3, 4, 5, 8, 16, 17, 64, 255, 1000, 4095, 4096};

static double from_bits(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static uint64_t to_bits(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/* Ranks 0 and 1 contribute as one. */
static double all_reduce(const double *values, uint32_t world_size, bool average) {
  const uint32_t num_lanes = sml_double_limbs_per_elem(world_size);
  uint8_t lanes[MAX_BYTES + 4], sums[MAX_BYTES] = {0};
  assert_true(num_lanes <= SML_DOUBLE_LIMBS_MAX_PER_ELEM);
  for (uint32_t r = 0; r < world_size; r++) {
    memset(lanes, 0xee, sizeof lanes);
    sml_double_limbs_put(lanes, &values[r], 1, world_size);
    if (r == 0) sml_double_limbs_add(lanes, &values[++r], 1, world_size);
    assert_int_equal(lanes[4 * num_lanes], 0xee);
    for (uint32_t l = 0; l < num_lanes; l++)
      sml_store_be32(sums + 4 * l, sml_load_be32(sums + 4 * l) + sml_load_be32(lanes + 4 * l));
  }
  double result;
  sml_double_limbs_round(&result, sums, 1, world_size, average);
  return result;
}

#define assert_bits(x, expected)                                                                            \
  do {                                                                                                      \
    const uint64_t is = to_bits(x), should = to_bits(expected);                                             \
    if (is != should) fail_msg("%016llx, not %016llx", (unsigned long long)is, (unsigned long long)should); \
  } while (0)

/* Two doubles: the processor's own sum is the exact one, rounded once, with its sign of zero. */
static void sums_of_two_are_the_processors(void **state) {
  (void)state;
  for (uint32_t i = 0; i < (SML_IS_SLOW_BUILD ? 250000 : 1000000); i++) {
    uint64_t a = sml_prng_next(&prng), b = sml_prng_next(&prng);
    if (i % 2 == 0) b = (b & 0x800fffffffffffff) | (((a >> 52) + b % 120 - 60) & 0x7ff) << 52; /* of like magnitude */
    if (i % 16 == 0) a &= 0x801fffffffffffff, b &= 0x801fffffffffffff;                         /* at the lower end */
    if (i % 64 == 0) b = a ^ 0x8000000000000000;
    if ((a >> 52 & 0x7ff) == 0x7ff || (b >> 52 & 0x7ff) == 0x7ff) continue;
    const volatile double sum = from_bits(a) + from_bits(b);
    const double in[2] = {from_bits(a), from_bits(b)};
    assert_bits(all_reduce(in, 2, false), sum);
  }
}

static void one_value_comes_back(void **state) {
  (void)state;
  static double values[MAX_RANKS];
  for (size_t w = 0; w < SML_ARRAY_LEN(world_sizes); w++) {
    const uint32_t n = world_sizes[w];
    memset(values, 0, sizeof values);
    for (uint32_t field = 0; field < 2047; field += n < 64 ? 1 : 61) {
      const uint64_t random = sml_prng_next(&prng);
      const double x = values[n / 2] = from_bits((random & 0x800fffffffffffff) | (uint64_t)field << 52);
      assert_bits(all_reduce(values, n, false), x);
    }
  }
}

/* Every rank has the same: nothing may overflow, and the average is the value. */
static void equal_values_average_to_themselves(void **state) {
  (void)state;
  static double values[MAX_RANKS];
  for (size_t w = 0; w < SML_ARRAY_LEN(world_sizes); w++) {
    const uint32_t n = world_sizes[w];
    for (uint64_t field = 0; field<2047; field += n> 64 ? 93 : 1) {
      const double x = from_bits(field << 52 | (field % 3 == 2 ? 1 : 0xfffffffffffff) | (field & 1u) << 63);
      for (uint32_t r = 0; r < n; r++) values[r] = x;
      assert_bits(all_reduce(values, n, true), x);
      if (!sml_is_pow2(n)) continue;
      const volatile double sum = x * (double)n; /* exact, or Inf */
      assert_bits(all_reduce(values, n, false), sum);
    }
  }
}

static void what_is_not_finite_and_zeros(void **state) {
  (void)state;
  const double inf = __builtin_inf(), nan = from_bits(0x7ff8000000000000), max = 0x1.fffffffffffffp1023;
  const double tiny = 0x1p-1074;
  /* clang-format off */
  const struct {
    double in[4], sum;
  } cases[] = {
      {{inf, 1, 2, 3}, inf},         {{-inf, 1, inf, 3}, nan},        {{-inf, -inf, max, max}, -inf},
      {{inf, inf, inf, inf}, inf},   {{1, from_bits(0xfff0000000000001), 2, 3}, nan}, {{1, nan, inf, 3}, nan},
      {{max, max, -max, 0}, max},    {{max, max, -max, -max}, 0},     {{max, 0x1p970, 0, 0}, inf},
      {{max, 0x1.fffffffffffffp969, 0, 0}, max},                      {{max, 0x1p970, -tiny, 0}, max},
      {{max, max, max, max}, inf},   {{-max, -max, 0, 0}, -inf},      {{-0.0, -0.0, -0.0, -0.0}, -0.0},
      {{-0.0, -0.0, 0.0, -0.0}, 0},  {{tiny, tiny, -2 * tiny, 0}, 0}, {{-0.0, -0.0, tiny, -tiny}, 0},
      {{1, tiny, -1, -0.0}, tiny},   {{0x1p1023, tiny, -0x1p1023, tiny}, 2 * tiny}, {{-tiny, -0.0, -0.0, 0}, -tiny},
      {{1e16, 1, -1e16, 0}, 1},      {{1, 0x1p-53, tiny, 0}, 0x1.0000000000001p0},  {{1, 0x1p-53, -tiny, 0}, 1},
      {{1, 0x1p-53, 0, 0}, 1},       {{-1, -0x1p-53, -tiny, 0}, -0x1.0000000000001p0},
  };
  /* clang-format on */
  for (size_t i = 0; i < SML_ARRAY_LEN(cases); i++) {
    assert_bits(all_reduce(cases[i].in, 4, false), cases[i].sum);
    const void *inputs[4] = {&cases[i].in[0], &cases[i].in[1], &cases[i].in[2], &cases[i].in[3]};
    double out;
    sml_double_limbs_reduce(&out, inputs, 4, 1, false);
    assert_bits(out, cases[i].sum);
  }
  const double zeros[4] = {-0.0, -0.0, -0.0, -0.0}, least[4] = {-tiny, 0, 0, 0}, all_max[4] = {max, max, max, max},
               two[4] = {2 * tiny, 0, 0, 0}, three[4] = {tiny, 2 * tiny, 0, 0};
  assert_bits(all_reduce(zeros, 4, true), -0.0);
  assert_bits(all_reduce(least, 4, true), -0.0);  /* rounded to 0, it keeps its sign */
  assert_bits(all_reduce(all_max, 4, true), max); /* the sum itself is beyond the range */
  assert_bits(all_reduce(two, 4, true), 0.0);     /* a tie, to even */
  assert_bits(all_reduce(three, 4, true), tiny);
  static double many[MAX_RANKS];
  for (uint32_t r = 0; r < MAX_RANKS; r++) many[r] = r % 2 ? nan : inf;
  assert_bits(all_reduce(many, MAX_RANKS, false), nan);
  for (uint32_t r = 0; r < MAX_RANKS; r++) many[r] = -inf;
  assert_bits(all_reduce(many, MAX_RANKS, false), -inf);
  for (uint32_t r = 0; r < MAX_RANKS; r++) many[r] = -0.0;
  assert_bits(all_reduce(many, MAX_RANKS, false), -0.0);
}

/* An aggregator may send anything: the same bits on every rank, and nothing undefined. */
static void any_lanes_give_a_double(void **state) {
  (void)state;
  uint8_t lanes[MAX_BYTES];
  for (uint32_t i = 0; i < (SML_IS_SLOW_BUILD ? 25000 : 100000); i++) {
    const uint32_t n = world_sizes[i % SML_ARRAY_LEN(world_sizes)], num_lanes = sml_double_limbs_per_elem(n);
    const uint32_t sparse = 1 + (uint32_t)sml_prng_below(&prng, 40);
    for (uint32_t l = 0; l < num_lanes; l++) {
      const uint64_t random = sml_prng_next(&prng);
      const uint32_t value = random % 3 == 0 ? 0x80000000u : random % 3 == 1 ? 0x7fffffffu : (uint32_t)(random >> 32);
      sml_store_be32(lanes + 4 * l, (random >> 8) % sparse != 0 || (l + 1 == num_lanes && i % 2) ? 0 : value);
    }
    double once, again;
    sml_double_limbs_round(&once, lanes, 1, n, i % 5 == 0);
    sml_double_limbs_round(&again, lanes, 1, n, i % 5 == 0);
    assert_bits(once, again);
    assert_true(once == once || to_bits(once) == 0x7ff8000000000000);
  }
}

static void lanes_an_element(void **state) {
  (void)state;
  assert_int_equal(sml_double_limbs_per_elem(2), 72);
  assert_int_equal(sml_double_limbs_per_elem(8), 77);
  assert_int_equal(sml_double_limbs_per_elem(16), 80);
  assert_int_equal(sml_double_limbs_per_elem(4096), SML_DOUBLE_LIMBS_MAX_PER_ELEM);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sums_of_two_are_the_processors),
      cmocka_unit_test(one_value_comes_back),
      cmocka_unit_test(equal_values_average_to_themselves),
      cmocka_unit_test(what_is_not_finite_and_zeros),
      cmocka_unit_test(any_lanes_give_a_double),
      cmocka_unit_test(lanes_an_element),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
