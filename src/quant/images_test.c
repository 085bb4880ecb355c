/* SPDX-License-Identifier: Apache-2.0
 * Each reduction of each type that is no sum of floats, as an operation goes through it, against values; in each
 * implementation of the kernels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "quant/images.h"
#include "quant/test_reductions.h"

#define MAX_ELEMS 700u
#define MAX_RANKS 300u

static uint8_t in[MAX_RANKS][8 * MAX_ELEMS + 1], out[8 * MAX_ELEMS + 1], expected[8 * MAX_ELEMS];
static uint8_t lanes[12 * MAX_ELEMS + 4], others[12 * MAX_ELEMS + 4];

static void make(uint32_t type, uint32_t reduction, uint32_t num_ranks, size_t num_elems, uint64_t seed) {
  const uint32_t bytes = sml_format_elem_bytes(type);
  for (size_t i = 0; i < num_elems; i++) {
    uint64_t bits[MAX_RANKS] = {0};
    for (uint32_t w = 0; w < num_ranks; w++) {
      bits[w] = reduction_draw(sml_mix64(seed + i * num_ranks + w), type);
      /* Else hardly any element would have no special one among many ranks, and truths would all be the same. */
      if (i % 3 != 0 && num_ranks > 4 && w > 1) bits[w] = bits[w % 2];
      reduction_store(in[w] + 1 + bytes * i, bits[w], type);
    }
    reduction_store(expected + bytes * i, reduction_of(bits, num_ranks, type, reduction), type);
  }
}

/* As an aggregator does: lanes of ranks, one by one. Ranks 1 and 2 contribute as one. */
static void through_lanes(const struct sml_quant_kernels *k, struct sml_images images, struct sml_format_shape shape,
                          uint32_t num_ranks, size_t num_elems) {
  const size_t num_lanes = sml_div_ceil(num_elems * images.unit_bytes, 4);
  sml_images_put(lanes, in[0] + 1, num_elems, images);
  for (uint32_t w = 1; w < num_ranks; w++) {
    memset(others, 0xee, sizeof others);
    sml_images_put(others, in[w] + 1, num_elems, images);
    if (w == 1 && num_ranks > 2) sml_images_add(k, others, in[++w] + 1, num_elems, images);
    assert_int_equal(others[4 * num_lanes], 0xee);
    sml_images_combine(k, lanes, others, num_lanes, (enum sml_combine)shape.combine);
  }
  sml_images_get(out + 1, lanes, num_elems, images);
}

static void check(const char *what, uint32_t type, uint32_t reduction, uint32_t num_ranks, size_t num_elems) {
  const uint32_t bytes = sml_format_elem_bytes(type);
  for (size_t i = 0; i < num_elems; i++)
    if (memcmp(out + 1 + bytes * i, expected + bytes * i, bytes) != 0)
      fail_msg("%s: type %u, reduction %u, %u ranks, element %zu of %zu: %llx instead of %llx", what, type, reduction,
               num_ranks, i, num_elems, (unsigned long long)reduction_load(out + 1 + bytes * i, type),
               (unsigned long long)reduction_load(expected + bytes * i, type));
}

static void each_reduction_is_that_of_the_values(void **state) {
  (void)state;
  static const uint32_t ranks[] = {1, 2, 3, 8, MAX_RANKS};
  static const size_t elems[] = {1, 2, 3, 5, 255, 256, 257, MAX_ELEMS};
  static const char *const names[] = {"scalar", "avx2", "avx512", "neon"};
  for (uint32_t c = 0; c < SML_NUM_FORMAT_TYPES * SML_NUM_FORMAT_REDUCTIONS * SML_ARRAY_LEN(ranks); c++) {
    const uint32_t type = c % SML_NUM_FORMAT_TYPES, reduction = c / SML_NUM_FORMAT_TYPES % SML_NUM_FORMAT_REDUCTIONS;
    const uint32_t num_ranks = ranks[c / (SML_NUM_FORMAT_TYPES * SML_NUM_FORMAT_REDUCTIONS)];
    if (reduction < SML_FORMAT_MIN || !reduction_is_offered(type, reduction)) continue;
    for (size_t e = SML_IS_SLOW_BUILD ? c % 3 : 0; e < 2 * SML_ARRAY_LEN(elems); e += SML_IS_SLOW_BUILD ? 3 : 1) {
      const size_t num_elems = elems[e / 2];
      const struct sml_format_shape shape = sml_images_shape(type, reduction, num_elems, num_ranks,
                                                             (struct sml_format_options){.is_of_switch = e % 2 != 0});
      const struct sml_images images = sml_images_of(type, reduction, shape);
      const struct sml_quant_kernels *k = sml_quant_select(names[(c + e) % SML_ARRAY_LEN(names)]);
      const void *inputs[MAX_RANKS];
      for (uint32_t w = 0; w < num_ranks; w++) inputs[w] = in[w] + 1;
      make(type, reduction, num_ranks, num_elems, c * 64 + e);
      memset(out, 0xee, sizeof out);
      through_lanes(k, images, shape, num_ranks, num_elems);
      check(k->name, type, reduction, num_ranks, num_elems);
      sml_images_reduce(k, out + 1, inputs, num_ranks, num_elems, images);
      check("one host", type, reduction, num_ranks, num_elems);
      inputs[num_ranks - 1] = out + 1; /* in place */
      memcpy(out + 1, in[num_ranks - 1] + 1, num_elems * sml_format_elem_bytes(type));
      sml_images_reduce(k, out + 1, inputs, num_ranks, num_elems, images);
      check("in place", type, reduction, num_ranks, num_elems);
    }
  }
}

/* Two bytes a lane, where their sums have room; then one. */
static void sums_of_bytes_wrap(void **state) {
  (void)state;
  static const uint32_t ranks[] = {2, 8, 255, 256, 257, MAX_RANKS};
  for (uint32_t c = 0; c < 2 * SML_ARRAY_LEN(ranks); c++) {
    const uint32_t type = c % 2 != 0 ? SML_FORMAT_INT8 : SML_FORMAT_UINT8, num_ranks = ranks[c / 2];
    for (size_t num_elems = 1; num_elems < 12; num_elems++) {
      const struct sml_format_options options = {0};
      const struct sml_format_shape shape = sml_format_choose(type, num_elems, num_ranks, options);
      const struct sml_format *f = sml_format_find(type, shape);
      assert_int_equal(shape.lane_elems, num_ranks <= 256 ? 2 : 0);
      make(type, SML_FORMAT_SUM, num_ranks, num_elems, c);
      if (num_elems % 2 == 0) { /* as large as they get */
        for (uint32_t w = 0; w < num_ranks; w++) memset(in[w], 0xff, sizeof in[w]);
        memset(expected, (int)(uint8_t)(0xff * num_ranks), num_elems);
      }
      f->put(&sml_quant_scalar, lanes, in[0] + 1, num_elems, 0, num_ranks);
      for (uint32_t w = 1; w < num_ranks; w++) f->add(&sml_quant_scalar, lanes, in[w] + 1, num_elems, 0, num_ranks);
      f->get(&sml_quant_scalar, out + 1, lanes, num_elems, 0, num_ranks, false);
      check("bytes", type, SML_FORMAT_SUM, num_ranks, num_elems);
    }
  }
}

/* Whatever an aggregator that lies sends back, a NaN is the one that there is. */
static void wrong_images_give_one_nan(void **state) {
  (void)state;
  for (uint32_t reduction = SML_FORMAT_MIN; reduction <= SML_FORMAT_MAX; reduction++) {
    const struct sml_format_shape shape =
        sml_images_shape(SML_FORMAT_FLOAT32, reduction, 1, 2, (struct sml_format_options){0});
    const struct sml_images images = sml_images_of(SML_FORMAT_FLOAT32, reduction, shape);
    uint32_t bits;
    memset(lanes, 0xff, 4);
    sml_images_get(&bits, lanes, 1, images);
    assert_int_equal(bits, 0x7fc00000);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(each_reduction_is_that_of_the_values),
                                     cmocka_unit_test(sums_of_bytes_wrap), cmocka_unit_test(wrong_images_give_one_nan)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
