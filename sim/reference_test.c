/* SPDX-License-Identifier: Apache-2.0
 * The reference against the document's vectors, and against what can be said without it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "sim/reference.h"

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/* docs/PROTOCOL.md section 10. */
static void test_vectors(void **state) {
  (void)state;
  uint32_t ranks[4 * 3] = {0}, out[3];
  for (int rank = 0; rank < 3; rank++) {
    ranks[rank * 3] = bits_of(1.0f);
    ranks[rank * 3 + 1] = bits_of(-0.5f);
    ranks[rank * 3 + 2] = bits_of(0.003f);
  }
  sim_sum_block(ranks, 4, 3, SIM_FLOAT32, false, out);
  assert_int_equal(out[0], bits_of(3.0f));
  assert_int_equal(out[1], bits_of(-1.5f));
  assert_int_equal(out[2], bits_of(0x1.26e97p-7f));
  sim_sum_block(ranks, 4, 3, SIM_FLOAT32, true, out);
  assert_int_equal(out[0], bits_of(0.75f));
  assert_int_equal(out[1], bits_of(-0.375f));
  assert_int_equal(out[2], bits_of(0x1.26e97p-9f));
}

static void test_integers_wrap(void **state) {
  (void)state;
  const uint32_t ranks[] = {0x7fffffff, 0xffffffff, 1, 2};
  uint32_t out[2];
  sim_sum_block(ranks, 2, 2, SIM_INT32, false, out);
  assert_int_equal(out[0], 0x80000000u);
  assert_int_equal(out[1], 1);
  const uint32_t wide[] = {0xffffffff, 0xffffffff, 3, 2};
  sim_sum_block(wide, 2, 2, SIM_INT64, false, out);
  assert_int_equal(out[0], 2);
  assert_int_equal(out[1], 2);
}

static const struct {
  const char *label;
  uint32_t a, b; /* two ranks, one element */
  bool is_average;
  uint32_t sum;
} blocks[] = {
    {"zeros of both signs", 0x80000000u, 0, false, 0},
    {"just below 2^-100", 0x0d7fffffu, 0x0d7fffffu, false, 0},
    {"2^-100", 0x0d800000u, 0x0d800000u, false, 0x0e000000u},
    {"infinity", 0x7f800000u, 0x3f800000u, false, 0x7fc00000u},
    {"no number", 0x3f800000u, 0x7f800001u, true, 0x7fc00000u},
    {"overflow", 0x7f7fffffu, 0x7f7fffffu, false, 0x7f800000u},
    {"overflow, average", 0x7f7fffffu, 0x7f7fffffu, true, 0x7f7fffffu},
    {"largest and its opposite", 0x7f7fffffu, 0xff7fffffu, false, 0},
    {"subnormals are flushed", 1, 1, false, 0},
};

static void test_blocks(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
    const uint32_t ranks[] = {blocks[i].a, blocks[i].b};
    uint32_t out;
    sim_sum_block(ranks, 2, 1, SIM_FLOAT32, blocks[i].is_average, &out);
    if (out != blocks[i].sum) fail_msg("%s: %08x, must be %08x", blocks[i].label, out, blocks[i].sum);
  }
}

static const struct {
  const char *label;
  enum sim_elem elem;
  uint32_t a, b; /* two ranks, two elements */
  uint32_t sum, small_sum;
} halves[] = {
    {"one and a half", SIM_FLOAT16, 0x3c003e00, 0x3c003e00, 0x40004200, 0x40004200},
    {"one and a half of the other", SIM_BFLOAT16, 0x3f803fc0, 0x3f803fc0, 0x40004040, 0x40004040},
    {"largest", SIM_FLOAT16, 0x7bff0000, 0x7bff0000, 0x7c000000, 0x7c000000},
    {"largest of the other", SIM_BFLOAT16, 0x7f7f0000, 0x7f7f0000, 0x7f800000, 0x7f800000},
    {"lost beside the largest", SIM_FLOAT16, 0x7bff3c00, 0xfbff3c00, 0x00000000, 0x00004000},
    {"infinity", SIM_FLOAT16, 0x7c003c00, 0x3c003c00, 0x7e007e00, 0x7c004000},
    {"no number", SIM_BFLOAT16, 0x3f800000, 0x7f810000, 0x7fc07fc0, 0x7fc00000},
    {"denormals", SIM_FLOAT16, 0x00030001, 0x00058001, 0x00080000, 0x00080000},
    {"infinities of both signs", SIM_FLOAT16, 0x7c000000, 0xfc000000, 0x7e007e00, 0x7e000000},
    {"lost beside a large one", SIM_BFLOAT16, 0x3f803880, 0x3f803880, 0x40000000, 0x40003900},
};

static void test_halves(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof halves / sizeof halves[0]; i++) {
    const uint32_t ranks[] = {halves[i].a, halves[i].b};
    uint32_t out = 0xaaaaaaaa;
    sim_sum_block(ranks, 2, 1, halves[i].elem, false, &out);
    if (out != halves[i].sum) fail_msg("%s: %08x, must be %08x", halves[i].label, out, halves[i].sum);
    sim_sum_small(ranks, 2, 1, halves[i].elem, false, &out);
    if (out != halves[i].small_sum)
      fail_msg("%s, small: %08x, must be %08x", halves[i].label, out, halves[i].small_sum);
  }
}

/* Thirds are rounded once: 1 / 3 of three ranks of which one has 1. */
static void test_average_is_rounded_once(void **state) {
  (void)state;
  const uint32_t ranks[] = {bits_of(1.0f), 0, 0};
  uint32_t out;
  sim_sum_block(ranks, 3, 1, SIM_FLOAT32, true, &out);
  assert_int_equal(out, bits_of(1.0f / 3.0f));
}

/* The processor's own sum of two floats is the exact one, rounded once. */
static void test_small_sums_are_exact(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 3000; seed++) {
    const struct sim_tensor t = {.seed = seed, .kind = (uint8_t)(seed % SIM_DATA_SPECIAL), .elem = SIM_FLOAT32};
    uint32_t ranks[2], out;
    float in[2];
    sim_tensor_fill(&t, 0, seed, 1, &ranks[0]);
    sim_tensor_fill(&t, 1, seed, 1, &ranks[1]);
    memcpy(in, ranks, sizeof in);
    const volatile float sum = in[0] + in[1];
    sim_sum_small(ranks, 2, 1, SIM_FLOAT32, false, &out);
    assert_int_equal(out, bits_of(sum == 0 ? 0.0f : sum));
  }
  const uint32_t large[3] = {bits_of(0x1.fffffep127f), bits_of(0x1.fffffep127f), bits_of(1)};
  uint32_t out;
  sim_sum_small(large, 3, 1, SIM_FLOAT32, true, &out);
  assert_int_equal(out, bits_of(0x1.555554p127f));
}

static void test_tensors_are_functions_of_their_place(void **state) {
  (void)state;
  for (uint8_t kind = 0; kind < SIM_NUM_DATA_KINDS; kind++) {
    const struct sim_tensor t = {.seed = 7, .kind = kind, .elem = SIM_FLOAT32};
    uint32_t whole[100], part[30];
    sim_tensor_fill(&t, 1, 0, 100, whole);
    sim_tensor_fill(&t, 1, 50, 30, part);
    assert_memory_equal(whole + 50, part, sizeof part);
    sim_tensor_fill(&t, 3, 50, 30, part);
    if (kind != SIM_DATA_ONE_RANK) assert_memory_not_equal(whole + 50, part, sizeof part);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_vectors),
      cmocka_unit_test(test_integers_wrap),
      cmocka_unit_test(test_blocks),
      cmocka_unit_test(test_halves),
      cmocka_unit_test(test_average_is_rounded_once),
      cmocka_unit_test(test_small_sums_are_exact),
      cmocka_unit_test(test_tensors_are_functions_of_their_place),
  };
  return cmocka_run_group_tests_name("sim_reference", tests, NULL, NULL);
}
