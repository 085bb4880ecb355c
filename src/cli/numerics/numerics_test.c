/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/numerics/numerics.h"

static void buckets_have_whole_tensors(void **state) {
  (void)state;
  const size_t mib = (1 << 20) / sizeof(float), elems[] = {1, mib - 1, 1, 3 * mib, 7, mib / 2, mib / 2 - 6};
  size_t first[SML_ARRAY_LEN(elems) + 1];
  const size_t by_one[] = {0, 2, 3, 4, 6, 7};
  assert_int_equal(sml_numerics_cut(elems, SML_ARRAY_LEN(elems), 1, first), 5);
  assert_memory_equal(first, by_one, sizeof by_one);
  const size_t large[] = {2 * mib, 2 * mib, mib, 1};
  assert_int_equal(sml_numerics_cut(large, 4, 5, first), 2);
  assert_int_equal(first[1], 3);
  assert_int_equal(sml_numerics_cut(elems, SML_ARRAY_LEN(elems), 1024, first), 1);
}

/* float32 has each of them as it is; their logarithms are spread like a bell around 2^39 units. */
static void elements_are_floats_of_many_magnitudes(void **state) {
  (void)state;
  uint32_t of_binade[64] = {0}, num_negative = 0;
  for (size_t i = 0; i < 100000; i++) {
    const int64_t units = sml_numerics_draw_element(1, i % 8, i);
    const uint64_t size = (uint64_t)(units < 0 ? -units : units);
    assert_true((double)sml_numerics_as_float(units) == (double)units * 0x1p-70);
    of_binade[63 - __builtin_clzll(size)]++;
    num_negative += units < 0;
  }
  assert_true(num_negative > 49000 && num_negative < 51000);
  assert_true(of_binade[39] > 12000 && of_binade[39] < 16000 && of_binade[31] > 100 && of_binade[47] > 100);
  assert_true(sml_numerics_draw_element(1, 0, 5) != sml_numerics_draw_element(2, 0, 5));
  assert_true(sml_numerics_draw_element(1, 0, 5) != sml_numerics_draw_element(1, 1, 5));
}

static struct sml_numerics_options two_ranks = {.ranks = {3}, .num_ranks = 1, .bucket_mib = {1, 5}, .num_buckets = 2};
static struct sml_numerics_result made_up(uint32_t default_sum, uint32_t exact_sum) {
  return (struct sml_numerics_result){.options = &two_ranks,
                                      .num_rows = 5,
                                      .rows = {{3, SML_NUMERICS_INTEGERS, "one", {7, 7}},
                                               {3, SML_NUMERICS_EXACT, "this", {7, exact_sum}},
                                               {3, SML_NUMERICS_DEFAULT, "this", {8, 8}},
                                               {3, SML_NUMERICS_DEFAULT, "that", {8, default_sum}},
                                               {3, SML_NUMERICS_GLOO, "its own", {9, 10}}}};
}

static void different_sums_are_counted_and_ours_are_judged(void **state) {
  (void)state;
  static struct sml_numerics_result result;
  uint32_t num_ways;
  result = made_up(8, 7);
  assert_int_equal(sml_numerics_count(&result, 3, SML_NUMERICS_DEFAULT, &num_ways), 1);
  assert_int_equal(num_ways, 4);
  assert_int_equal(sml_numerics_count(&result, 3, SML_NUMERICS_GLOO, &num_ways), 2);
  assert_int_equal(sml_numerics_count(&result, 2, SML_NUMERICS_GLOO, &num_ways), 0);
  assert_int_equal(sml_numerics_count(&result, 3, SML_NUMERICS_OPENMPI, &num_ways), 0);
  assert_true(sml_numerics_judge(&result));
  result = made_up(9, 7);
  assert_false(sml_numerics_judge(&result));
  result = made_up(8, 8); /* one sum, but not the exact one */
  result.rows[1].checksums[0] = 8;
  assert_false(sml_numerics_judge(&result));
}

static void a_picture_has_a_colour_for_each_sum(void **state) {
  (void)state;
  static struct sml_numerics_result result;
  static char text[16384];
  char path[] = "/tmp/numerics-XXXXXX";
  result = made_up(8, 7);
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_true(sml_numerics_draw(&result, path));
  const ssize_t num_bytes = read(fd, text, sizeof text - 1);
  assert_true(num_bytes > 0);
  text[num_bytes] = '\0';
  close(fd);
  unlink(path);
  uint32_t num_of_sum[5] = {0};
  for (const char *at = text; (at = strstr(at, "<rect class=\"s")) != NULL; at++) num_of_sum[at[14] - '0']++;
  assert_memory_equal(num_of_sum, ((uint32_t[]){2, 4, 1, 1, 0}), sizeof num_of_sum);
  assert_non_null(strstr(text, "1 sum in 4 ways"));
  assert_non_null(strstr(text, "2 sums in 2 ways"));
  assert_non_null(strstr(text, "prefers-color-scheme: dark"));
  assert_false(sml_numerics_draw(&result, "/nowhere/there.svg"));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(buckets_have_whole_tensors),
                                     cmocka_unit_test(elements_are_floats_of_many_magnitudes),
                                     cmocka_unit_test(different_sums_are_counted_and_ours_are_judged),
                                     cmocka_unit_test(a_picture_has_a_colour_for_each_sum)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
