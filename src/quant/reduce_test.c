/* SPDX-License-Identifier: Apache-2.0
 * The kernels for several ranks at once (quantize_add, pack_add_int32, reduce_floats, reduce_int32) against what the
 * network does with one contribution of each: every implementation the processor has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/test_skip.h"
#include "quant/kernels.h"

#define MAX_RANKS 9u
#define MAX_ELEMS 700u

static const struct sml_quant_kernels *kernels;

struct world {
  uint32_t num_ranks;
  size_t num_elems;
  uint8_t code;                      /* of the sum: the ranks' maximum */
  uint32_t in[MAX_RANKS][MAX_ELEMS]; /* bits */
};

static const float *floats_of(const struct world *w, uint32_t rank) {
  return (const float *)(const void *)w->in[rank];
}

static bool is_absent(const char *name) {
  return strcmp(kernels->name, name) != 0;
}

/* Bits of all kinds around one exponent a block, with zeros and, if `is_wild`, anything at all. */
static void fill(struct world *w, struct sml_prng *prng, bool is_wild) {
  const uint32_t first_top = (uint32_t)sml_prng_below(prng, 254), more = (uint32_t)sml_prng_below(prng, 254);
  w->num_ranks = 1 + (uint32_t)sml_prng_below(prng, MAX_RANKS);
  w->num_elems = (size_t)sml_prng_below(prng, MAX_ELEMS + 1);
  w->code = SML_CODE_ZERO;
  for (uint32_t r = 0; r < w->num_ranks; r++) {
    for (size_t i = 0; i < w->num_elems; i++) {
      const uint64_t random = sml_prng_next(prng);
      const uint32_t down = (uint32_t)(random >> 32) % 40;
      const uint32_t top = 1 + (first_top + more * (uint32_t)(i / SML_BLOCK_ELEMS)) % 254;
      const uint32_t field = top > down ? top - down : 0;
      w->in[r][i] = ((uint32_t)random & UINT32_C(0x807fffff)) | field << 23;
      if (is_wild) w->in[r][i] = (uint32_t)random;
      if (random >> 60 == 0) w->in[r][i] = 0;
    }
    const uint8_t code = sml_quant_scalar.block_code(floats_of(w, r), w->num_elems);
    if (code > w->code) w->code = code;
  }
}

/* The lanes that the aggregator sends, by the scalar kernels, for elements [begin, begin + num_elems). */
static void sum_as_aggregator(const struct world *w, bool is_float, size_t begin, size_t num_elems, uint8_t code,
                              uint8_t *lanes) {
  static int32_t acc[MAX_ELEMS];
  for (uint32_t r = 0; r < w->num_ranks; r++) {
    if (is_float) sml_quant_scalar.quantize(lanes, floats_of(w, r) + begin, num_elems, code, w->num_ranks);
    else sml_quant_scalar.pack_int32(lanes, (const int32_t *)w->in[r] + begin, num_elems);
    if (r == 0) sml_quant_scalar.set_int32(acc, lanes, num_elems);
    else sml_quant_scalar.add_int32(acc, lanes, num_elems);
  }
  sml_quant_scalar.pack_int32(lanes, acc, num_elems);
}

/* Block by block. */
static void sum_floats(const struct world *w, bool is_average, float *out) {
  static uint8_t lanes[4 * SML_BLOCK_ELEMS];
  for (size_t begin = 0; begin < w->num_elems; begin += SML_BLOCK_ELEMS) {
    const size_t num_elems = (size_t)sml_min_u64(SML_BLOCK_ELEMS, w->num_elems - begin);
    uint8_t code = SML_CODE_ZERO;
    for (uint32_t r = 0; r < w->num_ranks; r++)
      code = (uint8_t)sml_max_u32(code, sml_quant_scalar.block_code(floats_of(w, r) + begin, num_elems));
    sum_as_aggregator(w, true, begin, num_elems, code, lanes);
    sml_quant_scalar.dequantize(out + begin, lanes, num_elems, code, w->num_ranks, is_average);
  }
}

static void contributions_add_up_in_one_frame(void **state) {
  if (is_absent(*state)) SKIP_TEST("this processor does not run %s", (const char *)*state);
  static struct world w;
  static uint8_t expected[4 * MAX_ELEMS], got[4 * MAX_ELEMS + 1];
  struct sml_prng prng = {1};
  for (uint32_t trial = 0; trial < 3000; trial++) {
    fill(&w, &prng, trial % 16 == 0);
    const bool is_float = trial % 4 != 1;
    uint8_t *lanes = got + trial % 2;
    sum_as_aggregator(&w, is_float, 0, w.num_elems, w.code, expected);
    for (uint32_t r = 0; r < w.num_ranks; r++) {
      const int32_t *ints = (const int32_t *)w.in[r];
      if (is_float && r == 0) kernels->quantize(lanes, floats_of(&w, r), w.num_elems, w.code, w.num_ranks);
      else if (is_float) kernels->quantize_add(lanes, floats_of(&w, r), w.num_elems, w.code, w.num_ranks);
      else if (r == 0) kernels->pack_int32(lanes, ints, w.num_elems);
      else kernels->pack_add_int32(lanes, ints, w.num_elems);
    }
    if (memcmp(lanes, expected, 4 * w.num_elems) != 0)
      fail_msg("trial %u: %u ranks, %zu elements, code %u", trial, w.num_ranks, w.num_elems, w.code);
  }
}

/* Lanes that are there already may hold anything, and the code be too small: saturation, and sums that wrap. */
static void added_to_any_lanes(void **state) {
  if (is_absent(*state)) SKIP_TEST("this processor does not run %s", (const char *)*state);
  static struct world w;
  static uint8_t q[4 * MAX_ELEMS], got[4 * MAX_ELEMS], expected[4 * MAX_ELEMS];
  struct sml_prng prng = {2};
  for (uint32_t trial = 0; trial < 2000; trial++) {
    fill(&w, &prng, true);
    const uint8_t code = (uint8_t)trial;
    const uint32_t world_size = 1u << trial % 13;
    for (size_t i = 0; i < sizeof got; i++) got[i] = (uint8_t)sml_prng_next(&prng);
    sml_quant_scalar.quantize(q, floats_of(&w, 0), w.num_elems, code, world_size);
    for (size_t i = 0; i < w.num_elems; i++)
      sml_store_be32(expected + 4 * i, sml_load_be32(got + 4 * i) + sml_load_be32(q + 4 * i));
    kernels->quantize_add(got, floats_of(&w, 0), w.num_elems, code, world_size);
    assert_memory_equal(got, expected, 4 * w.num_elems);
  }
}

static void reductions_are_what_the_network_gives(void **state) {
  if (is_absent(*state)) SKIP_TEST("this processor does not run %s", (const char *)*state);
  static struct world w;
  static uint8_t lanes[4 * MAX_ELEMS];
  static float expected[MAX_ELEMS];
  struct sml_prng prng = {3};
  for (uint32_t trial = 0; trial < 4000; trial++) {
    fill(&w, &prng, trial % 16 == 0);
    const bool is_average = trial % 2 != 0, is_float = trial % 4 < 3;
    const uint32_t into = (uint32_t)sml_prng_below(&prng, w.num_ranks + 1); /* the last one: not in place */
    static uint32_t elsewhere[MAX_ELEMS];
    uint32_t *out = into < w.num_ranks ? w.in[into] : elsewhere;
    const float *floats[MAX_RANKS];
    const int32_t *ints[MAX_RANKS];
    for (uint32_t r = 0; r < w.num_ranks; r++) {
      floats[r] = floats_of(&w, r);
      ints[r] = (const int32_t *)w.in[r];
    }
    if (is_float) {
      sum_floats(&w, is_average, expected);
      kernels->reduce_floats((float *)(void *)out, floats, w.num_ranks, w.num_elems, is_average);
    } else {
      sum_as_aggregator(&w, false, 0, w.num_elems, 0, lanes);
      sml_quant_scalar.unpack_int32((int32_t *)(void *)expected, lanes, w.num_elems);
      kernels->reduce_int32((int32_t *)out, ints, w.num_ranks, w.num_elems);
    }
    if (memcmp(out, expected, 4 * w.num_elems) != 0) {
      fail_msg("trial %u: %u ranks, %zu elements, code %u, average %d, into %u", trial, w.num_ranks, w.num_elems,
               w.code, is_average, into);
    }
  }
}

/* A test's state is the name of the implementation. */
static int choose(void **state) {
  kernels = sml_quant_select(*state);
  return 0;
}

#define TEST_OF(name, test) \
  { #test " " #name, test, choose, NULL, name }
#define TESTS_OF(name)                                                                 \
  TEST_OF(name, contributions_add_up_in_one_frame), TEST_OF(name, added_to_any_lanes), \
      TEST_OF(name, reductions_are_what_the_network_gives)

int main(void) {
  static char scalar[] = "scalar";
#if defined(__aarch64__)
  static char neon[] = "neon";
  const struct CMUnitTest tests[] = {TESTS_OF(scalar), TESTS_OF(neon)};
#else
  static char avx2[] = "avx2", avx512[] = "avx512";
  const struct CMUnitTest tests[] = {TESTS_OF(scalar), TESTS_OF(avx2), TESTS_OF(avx512)};
#endif
  return cmocka_run_group_tests_name("quant reduce", tests, NULL, NULL);
}
