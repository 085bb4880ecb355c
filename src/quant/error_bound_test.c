/* SPDX-License-Identifier: Apache-2.0
 * Whole all-reduces of one block, against sums in (long) double; the bound must hold and not be idle. An argument: how
 * many elements are tried (docs/TESTING.md). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <math.h>
#include <cmocka.h>

#include "quant/format.h"
#include "quant/kernels.h"

#define ELEMS 37
#define MAX_RANKS 67

static uint64_t num_elems_wanted = 6000 * ELEMS;
static float in[MAX_RANKS][ELEMS];
static float out[ELEMS];

static double bound_of(uint8_t code, uint32_t n, bool average, double result) {
  return sml_format_error_bound(SML_FORMAT_FLOAT32, (struct sml_format_shape){.has_exponents = true}, code, n, average,
                                result);
}

static uint8_t reduce(const struct sml_quant_kernels *k, uint32_t n, bool average) {
  _Alignas(64) int32_t acc[ELEMS];
  uint8_t lanes[4 * ELEMS];
  uint8_t code = 0;
  for (uint32_t rank = 0; rank < n; rank++) {
    uint8_t own = k->block_code(in[rank], ELEMS);
    k->max_uint8(&code, &own, 1);
  }
  for (uint32_t rank = 0; rank < n; rank++) {
    k->quantize(lanes, in[rank], ELEMS, code, n);
    (rank == 0 ? k->set_int32 : k->add_int32)(acc, lanes, ELEMS);
  }
  k->pack_int32(lanes, acc, ELEMS);
  k->dequantize(out, lanes, ELEMS, code, n, average);
  return code;
}

/* Returns the largest error over its bound. */
static double check_bound(uint8_t code, uint32_t n, bool average) {
  double worst = 0;
  for (int i = 0; i < ELEMS; i++) {
    long double sum = 0; /* of floats within 2^31 of each other or far below the bound */
    for (uint32_t rank = 0; rank < n; rank++) sum += in[rank][i];
    if (average) sum /= n;
    double bound = bound_of(code, n, average, out[i]);
    double error = (double)fabsl((long double)out[i] - sum);
    if (!(error <= bound)) fail_msg("n %u code %u: %a for %La, bound %a", n, code, (double)out[i], sum, bound);
    if (error / bound > worst) worst = error / bound;
  }
  return worst;
}

enum habit { SPREAD, CANCELLING, HALVES, NUM_HABITS };

/* A number of up to 2^exponent. CANCELLING: each second rank has nearly what the one before has, negated. HALVES: all
 * are half a unit of the block's, or a little less or more, away from what lanes hold. */
static float draw(struct sml_prng *prng, enum habit habit, uint32_t rank, int i, int exponent, int spread, uint32_t n) {
  const uint64_t random = sml_prng_next(prng);
  if (habit == CANCELLING && rank % 2 == 1) return -in[rank - 1][i] * (1 + (float)(random % 3) * 0x1p-23f);
  if (habit == HALVES) {
    const int unit = exponent + 1 - 30 + (int)sml_ceil_log2(n); /* of the block with 2^exponent */
    const double halves = (double)(2 * (int64_t)(random % 4096) + 1) / 2, off = (double)(random >> 32 & 3) - 1;
    return (float)ldexp(halves + off * 0x1p-12, unit);
  }
  return (float)ldexp((double)(int64_t)random * 0x1p-63, exponent - (int)sml_prng_below(prng, (uint64_t)spread));
}

static void bound_holds(void **state) {
  (void)state;
  struct sml_prng prng = {.state = 3};
  double worst = 0;
  const struct sml_quant_kernels *kernels[] = {&sml_quant_scalar, sml_quant_select(NULL)};
  for (uint64_t round = 0; round < num_elems_wanted / ELEMS; round++) {
    uint32_t n = round % 3 == 0 ? 2 : 2 + (uint32_t)sml_prng_below(&prng, MAX_RANKS - 1);
    int exponent = (int)sml_prng_below(&prng, 222) - 100; /* up to 2^122, so that 67 do not overflow */
    int spread = 1 + (int)sml_prng_below(&prng, 40);
    const enum habit habit = (enum habit)(round / 8 % NUM_HABITS);
    for (uint32_t rank = 0; rank < n; rank++)
      for (int i = 0; i < ELEMS; i++) in[rank][i] = draw(&prng, habit, rank, i, exponent, spread, n);
    in[n - 1][ELEMS - 1] = (float)ldexp(1, exponent); /* what keeps the smallest blocks from the flush */
    bool average = (round & 4) != 0;
    uint8_t code = reduce(kernels[round & 1], n, average);
    assert_int_not_equal(code, 0);
    double share = check_bound(code, n, average);
    if (share > worst) worst = share;
  }
  assert_true(worst > 0.8);
}

static void fill(float x, uint32_t n) {
  for (uint32_t rank = 0; rank < n; rank++)
    for (int i = 0; i < ELEMS; i++) in[rank][i] = x;
}

/* Every rank is off by half a unit the same way: the first term is reached. */
static void bound_is_tight(void **state) {
  (void)state;
  fill(0x1p-29f, 2); /* 1/2 of a unit at code 127 and n 2 (k = 28), to even: lost */
  in[0][0] = 1.0f;
  uint8_t code = reduce(&sml_quant_scalar, 2, false);
  assert_true(out[1] == 0);
  assert_true(bound_of(code, 2, false, out[1]) == 0x1p-28);
  assert_true(bound_of(code, 2, true, out[1]) == 0x1p-29);
  assert_true(bound_of(code, 2, false, 1.0f) == 0x1p-28 + 0x1p-24);
  assert_true(bound_of(code, 2, false, -1.5f) == 0x1p-28 + 0x1p-24);
  assert_true(bound_of(SML_CODE_MIN, 2, false, 0x1p-128f) == 0x1p-128 + 0x1p-150);
}

static void flushed_blocks_are_within_the_bound(void **state) {
  (void)state;
  fill(0x1.fffffep-101f, MAX_RANKS);
  for (uint32_t n = 2; n <= MAX_RANKS; n++) {
    for (int average = 0; average <= 1; average++) {
      uint8_t code = reduce(&sml_quant_scalar, n, average != 0);
      assert_int_equal(code, SML_CODE_ZERO);
      assert_true(out[0] == 0);
      assert_true(check_bound(code, n, average != 0) > 0.99);
    }
  }
}

static void nothing_is_promised_of_infinity(void **state) {
  (void)state;
  assert_true(isinf(bound_of(254, 2, false, INFINITY)));
  assert_true(isinf(bound_of(255, 2, true, NAN)));
  assert_true(isinf(bound_of(255, 2, true, 1.0f)));
}

int main(int argc, char **argv) {
  if (argc > 1) num_elems_wanted = strtoull(argv[1], NULL, 10);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bound_holds),
      cmocka_unit_test(bound_is_tight),
      cmocka_unit_test(flushed_blocks_are_within_the_bound),
      cmocka_unit_test(nothing_is_promised_of_infinity),
  };
  return cmocka_run_group_tests_name("quant error bound", tests, NULL, NULL);
}
