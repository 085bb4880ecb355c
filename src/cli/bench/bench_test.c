/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include <math.h>

#include "cli/bench/bench.h"
#include "core/stream.h"
#include "quant/images.h"
#include "quant/quant.h"

static void sizes_are_bytes_of_whole_elements(void **state) {
  (void)state;
  struct sml_bench_options o;
  assert_null(sml_bench_parse_sizes("4,1000,1M,16M,7,1,2k,3G", &o));
  const uint64_t expected[] = {4, 1000, 1 << 20, 16 << 20, 4, 4, 2048, UINT64_C(3) << 30};
  assert_int_equal(o.num_sizes, SML_ARRAY_LEN(expected));
  assert_memory_equal(o.size_bytes, expected, sizeof expected);
}

static void wrong_sizes_are_refused(void **state) {
  (void)state;
  struct sml_bench_options o;
  static const char *const wrong[] = {"",
                                      "0",
                                      "4,0K",
                                      ",",
                                      "4,",
                                      ",4",
                                      "4,,4",
                                      "-4",
                                      "+4",
                                      " 4",
                                      "4 ",
                                      "x",
                                      "4x",
                                      "4Mi",
                                      "4MM",
                                      "1.5M",
                                      "1e3",
                                      "0x4",
                                      "4;5",
                                      "M",
                                      "2000G",
                                      "18446744073709551616",
                                      "99999999999999999999999"};
  for (size_t i = 0; i < SML_ARRAY_LEN(wrong); i++)
    if (!sml_bench_parse_sizes(wrong[i], &o)) fail_msg("'%s' was taken", wrong[i]);
  char many[4 * SML_BENCH_MAX_SIZES];
  for (size_t i = 0; i <= SML_BENCH_MAX_SIZES; i++) memcpy(many + 2 * i, "4,", 3);
  many[2 * SML_BENCH_MAX_SIZES + 1] = '\0'; /* one too many, without the last comma */
  assert_non_null(sml_bench_parse_sizes(many, &o));
  many[2 * SML_BENCH_MAX_SIZES - 1] = '\0';
  assert_null(sml_bench_parse_sizes(many, &o));
}

static void large_sizes_take_fewer_iterations(void **state) {
  (void)state;
  struct sml_bench_options o = {0};
  assert_int_equal(sml_bench_iters(&o, 4), 50);
  assert_int_equal(sml_bench_iters(&o, UINT64_C(64) << 20), 20);
  assert_int_equal(sml_bench_iters(&o, UINT64_C(128) << 20), 10);
  assert_int_equal(sml_bench_iters(&o, UINT64_C(64) << 30), 5);
  o.num_iters = 7;
  assert_int_equal(sml_bench_iters(&o, 4), 7);
}

static void inputs_are_equal_however_they_are_cut(void **state) {
  (void)state;
  enum { NUM = 20000 };
  static uint8_t whole[8 * NUM], parts[8 * NUM];
  for (int type = 0; type < SML_NUM_FORMAT_TYPES; type++) {
    const size_t elem_bytes = sml_format_elem_bytes((uint32_t)type);
    sml_bench_fill(whole, (sml_type)type, 9, 3, 100, NUM);
    for (size_t i = 0; i < NUM; i += 777)
      sml_bench_fill(parts + elem_bytes * i, (sml_type)type, 9, 3, 100 + i, NUM - i < 777 ? NUM - i : 777);
    assert_memory_equal(whole, parts, elem_bytes * NUM);
    sml_bench_fill(parts, (sml_type)type, 9, 4, 100, NUM);
    assert_memory_not_equal(whole, parts, elem_bytes * NUM);
    sml_bench_fill(parts, (sml_type)type, 10, 3, 100, NUM);
    assert_memory_not_equal(whole, parts, elem_bytes * NUM);
  }
}

/* 60 binades, both signs, blocks of zeros on all ranks and on one alone. */
static void inputs_cover_what_they_should(void **state) {
  (void)state;
  enum { NUM = 1 << 20 };
  float *in[2] = {malloc(NUM * sizeof(float)), malloc(NUM * sizeof(float))};
  bool has_exponent[256] = {false};
  size_t num_negative = 0, num_zero_on_both = 0, num_zero_on_one = 0;
  for (uint32_t rank = 0; rank < 2; rank++) sml_bench_fill(in[rank], SML_FLOAT32, 1, rank, 0, NUM);
  for (size_t i = 0; i < NUM; i++) {
    assert_true(isfinite(in[0][i]));
    uint32_t bits;
    memcpy(&bits, &in[0][i], sizeof bits);
    has_exponent[bits >> 23 & 255] = true;
    num_negative += bits >> 31;
    num_zero_on_both += in[0][i] == 0 && in[1][i] == 0;
    num_zero_on_one += (in[0][i] == 0) != (in[1][i] == 0);
  }
  for (int e = 97; e < 157; e++) assert_true(has_exponent[e]);
  assert_true(num_negative > NUM / 3 && num_negative < NUM * 2 / 3);
  assert_true(num_zero_on_both >= 8192 && num_zero_on_both < NUM / 2);
  assert_true(num_zero_on_one >= 8192);
  assert_true(in[0][0] != 0);
  free(in[0]);
  free(in[1]);
}

/* What a right job gives: block after block of all ranks at once, as ranks of one host sum them. */
static void make_result(const struct sml_bench_shape *s, uint64_t block_elems, void *out) {
  const struct sml_format_shape shape = sml_format_choose(s->type, s->num_elems, s->world_size, s->formats);
  const struct sml_format *format = sml_format_find(s->type, shape);
  uint8_t *in[8];
  assert_true(s->world_size <= 8);
  for (uint32_t rank = 0; rank < s->world_size; rank++) in[rank] = malloc(65536);
  for (uint64_t first = 0; first < s->num_elems; first += block_elems) {
    const size_t n = (size_t)sml_min_u64(block_elems, s->num_elems - first);
    for (uint32_t rank = 0; rank < s->world_size; rank++) sml_bench_fill(in[rank], s->type, s->seed, rank, first, n);
    format->reduce(&sml_quant_scalar, (uint8_t *)out + first * format->elem_bytes, (const void *const *)in,
                   s->world_size, n, s->reduction == SML_AVG);
  }
  for (uint32_t rank = 0; rank < s->world_size; rank++) free(in[rank]);
}

static uint64_t count_wrong(const struct sml_bench_shape *s, const void *result, uint32_t num_slices,
                            double *max_error) {
  struct sml_bench_check check = {0};
  for (uint32_t slice = 0; slice < num_slices; slice++)
    assert_true(sml_bench_verify(s, result, slice, num_slices, &check));
  if (max_error) *max_error = check.max_error;
  if (check.num_wrong == 0) assert_true(check.max_error <= check.max_error_bound);
  return check.num_wrong;
}

static void right_results_pass_and_any_wrong_bit_is_counted(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 96; i++) {
    const sml_type type = (sml_type)(i % SML_NUM_FORMAT_TYPES);
    struct sml_bench_shape s = {
        .type = type,
        .formats = {.float_bits = (const uint8_t[]){0, 16, 32}[i / 5 % 3], .float64_bits = i / 6 % 2 == 0 ? 64 : 96},
        .reduction = sml_format_is_float(type) && i / 6 % 2 == 1 ? SML_AVG : SML_SUM,
        .num_elems = (const uint64_t[]){1, 250, 358, 20001}[i / 12 % 4],
        .seed = i,
        .world_size = 2 + i % 7};
    const size_t elem_bytes = sml_format_elem_bytes(type);
    uint8_t *result = calloc(s.num_elems, elem_bytes);
    make_result(&s, SML_BLOCK_ELEMS, result);
    assert_int_equal(count_wrong(&s, result, 1, NULL), 0);
    assert_int_equal(count_wrong(&s, result, 3, NULL), 0);
    result[(s.num_elems - 1) * elem_bytes] ^= 1;
    result[(s.num_elems / 2 + 1) * elem_bytes - 1] ^= 0x80; /* a sign */
    assert_int_equal(count_wrong(&s, result, 3, NULL), s.num_elems == 1 ? 1 : 2);
    free(result);
  }
}

/* As the library gives them, and each wrong element is counted. */
static void other_reductions_have_a_reference(void **state) {
  (void)state;
  enum { NUM = 3000 };
  static uint8_t in[3][8 * NUM], result[8 * NUM];
  for (int type = 0; type < SML_NUM_FORMAT_TYPES; type++) {
    const size_t elem_bytes = sml_format_elem_bytes((uint32_t)type);
    for (int r = SML_MIN; r <= (sml_format_is_float((uint32_t)type) ? SML_MAX : SML_LOR); r++) {
      const struct sml_bench_shape s = {
          .type = (sml_type)type, .reduction = (sml_reduction)r, .num_elems = NUM, .seed = 4, .world_size = 3};
      for (uint32_t rank = 0; rank < 3; rank++) sml_bench_fill(in[rank], s.type, s.seed, rank, 0, NUM);
      const struct sml_images images = sml_images_of(
          s.type, s.reduction, sml_images_shape(s.type, s.reduction, NUM, 3, (struct sml_format_options){0}));
      sml_images_reduce(&sml_quant_scalar, result, (const void *[]){in[0], in[1], in[2]}, 3, NUM, images);
      assert_int_equal(count_wrong(&s, result, 1, NULL), 0);
      assert_int_equal(count_wrong(&s, result, 3, NULL), 0);
      result[elem_bytes * (NUM - 1)] ^= 1;
      result[0] ^= 1;
      assert_int_equal(count_wrong(&s, result, 3, NULL), 2);
    }
  }
}

static void other_blocks_give_other_bits(void **state) {
  (void)state;
  const struct sml_bench_shape s = {.num_elems = 100000, .seed = 1, .world_size = 3};
  float *result = calloc(s.num_elems, 4);
  make_result(&s, 360, result);
  assert_true(count_wrong(&s, result, 1, NULL) >
              0); /* the check must depend on them, or it proves nothing about them */
  free(result);
}

static void not_a_number_is_wrong(void **state) {
  (void)state;
  struct sml_bench_shape s = {.num_elems = 10, .seed = 1, .world_size = 2};
  float result[10];
  double max_error = 0;
  make_result(&s, SML_BLOCK_ELEMS, result);
  result[3] = NAN;
  assert_int_equal(count_wrong(&s, result, 1, &max_error), 1);
  assert_true(isinf(max_error));
}

static void one_rank_alone_gets_its_own_bits(void **state) {
  (void)state;
  struct sml_bench_shape s = {.num_elems = 30000, .seed = 5, .world_size = 1};
  float *result = malloc(s.num_elems * 4);
  sml_bench_fill(result, SML_FLOAT32, 5, 0, 0, s.num_elems);
  assert_int_equal(count_wrong(&s, result, 1, NULL), 0);
  result[29999] = nextafterf(result[29999], 1e30f);
  assert_int_equal(count_wrong(&s, result, 1, NULL), 1);
  free(result);
}

static void the_hash_sees_each_bit(void **state) {
  (void)state;
  uint8_t data[77] = {0};
  for (size_t num_bytes = 1; num_bytes <= sizeof data; num_bytes++) {
    uint64_t before = sml_bench_hash(data, num_bytes);
    for (size_t bit = 0; bit < 8 * num_bytes; bit++) {
      data[bit / 8] ^= (uint8_t)(1u << bit % 8);
      assert_true(sml_bench_hash(data, num_bytes) != before);
      data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
  }
}

static void gathered_numbers_come_back_or_are_refused(void **state) {
  (void)state;
  enum { RANKS = 5, VALUES = 3 };
  uint64_t values[RANKS][VALUES], all[RANKS * VALUES];
  struct sml_prng prng = {.state = 3};
  size_t num_elems = sml_bench_gather_elems(RANKS, VALUES);
  int32_t *sum = calloc(num_elems, sizeof *sum), *one = calloc(num_elems, sizeof *one);
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    for (size_t i = 0; i < VALUES; i++) values[rank][i] = i == 0 ? UINT64_MAX : sml_prng_next(&prng);
    sml_bench_gather_pack(one, RANKS, rank, values[rank], VALUES);
    for (size_t i = 0; i < num_elems; i++) sum[i] += one[i];
  }
  assert_true(sml_bench_gather_unpack(sum, RANKS, VALUES, all));
  assert_memory_equal(all, values, sizeof values);
  for (size_t i = 0; i < num_elems; i++) {
    sum[i] ^= 1;
    assert_false(sml_bench_gather_unpack(sum, RANKS, VALUES, all));
    sum[i] ^= 1;
    sum[i] += 0x10000;
    assert_false(sml_bench_gather_unpack(sum, RANKS, VALUES, all));
    sum[i] -= 0x10000;
  }
  free(sum);
  free(one);
}

static void each_receiver_loses_its_own_packets(void **state) {
  (void)state;
  struct sml_bench_options o = {.loss = -1, .seed = 7};
  unsetenv("SWITCHML_FAULTS");
  sml_bench_set_faults(&o, 1);
  assert_null(getenv("SWITCHML_FAULTS")); /* not asked for */
  o.loss = 0.25;
  char first[96], second[96];
  sml_bench_set_faults(&o, 1);
  snprintf(first, sizeof first, "%s", getenv("SWITCHML_FAULTS"));
  sml_bench_set_faults(&o, 2);
  snprintf(second, sizeof second, "%s", getenv("SWITCHML_FAULTS"));
  assert_memory_equal(first, "loss=0.250000000,seed=", 22);
  assert_string_not_equal(first, second);
  sml_bench_set_faults(&o, 1);
  assert_string_equal(first, getenv("SWITCHML_FAULTS"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sizes_are_bytes_of_whole_elements),
      cmocka_unit_test(wrong_sizes_are_refused),
      cmocka_unit_test(large_sizes_take_fewer_iterations),
      cmocka_unit_test(inputs_are_equal_however_they_are_cut),
      cmocka_unit_test(inputs_cover_what_they_should),
      cmocka_unit_test(right_results_pass_and_any_wrong_bit_is_counted),
      cmocka_unit_test(other_reductions_have_a_reference),
      cmocka_unit_test(other_blocks_give_other_bits),
      cmocka_unit_test(not_a_number_is_wrong),
      cmocka_unit_test(one_rank_alone_gets_its_own_bits),
      cmocka_unit_test(the_hash_sees_each_bit),
      cmocka_unit_test(gathered_numbers_come_back_or_are_refused),
      cmocka_unit_test(each_receiver_loses_its_own_packets),
  };
  return cmocka_run_group_tests_name("bench", tests, NULL, NULL);
}
