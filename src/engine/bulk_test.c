/* SPDX-License-Identifier: Apache-2.0
 * When an aggregator lets updates gather, and for how long. */
#include "engine/bulk.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define SLOTS 64u

/* A pass that opens some chunks and completes others, pass_ns after the one before. */
static uint64_t pass(struct sml_bulk *b, uint32_t num_opened, uint32_t num_results, uint64_t pass_ns) {
  static uint64_t now_ns = 1000000;
  now_ns += pass_ns;
  for (uint32_t i = 0; i < num_opened; i++) sml_bulk_note_open(b);
  for (uint32_t i = 0; i < num_results; i++) sml_bulk_note_result(b, true);
  return sml_bulk_end_pass(b, SLOTS, now_ns);
}

/* Passes of 16 results in the middle of an operation, up to the n-th window's end. */
static uint64_t run_windows(struct sml_bulk *b, uint32_t num_windows, uint64_t window_ns) {
  uint64_t gather_ns = 0;
  for (uint32_t i = 0; i < 4 * num_windows; i++) gather_ns = pass(b, 16, 16, window_ns / 4);
  return gather_ns;
}

static void test_gathers_a_part_of_a_window(void **state) {
  (void)state;
  static const struct {
    uint64_t window_us, gather_us;
  } rows[] = {{100, 0}, {396, 0}, {400, 50}, {1600, 200}, {3200, 400}, {100000, 400}};
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    struct sml_bulk b = {.num_open = 0};
    (void)pass(&b, 0, 0, 1);
    (void)pass(&b, 5, 0, 1); /* from here on some are open */
    assert_int_equal(run_windows(&b, 3, rows[i].window_us * SML_NS_PER_US), 0);
    assert_int_equal(run_windows(&b, 1, rows[i].window_us * SML_NS_PER_US), rows[i].gather_us * SML_NS_PER_US);
    assert_true(pass(&b, 16, 7, 1) == 0); /* few results: somebody is late */
    assert_true(pass(&b, 8, 9, 1) == rows[i].gather_us * SML_NS_PER_US);
  }
}

/* Operations that end: each begins anew, however many follow each other. */
static void test_never_where_all_is_done_now_and_then(void **state) {
  (void)state;
  struct sml_bulk b = {.num_open = 0};
  for (uint32_t i = 0; i < 100; i++) {
    assert_true(pass(&b, 16, 0, SML_NS_PER_MS) == 0);
    assert_true(run_windows(&b, 3, 4 * SML_NS_PER_MS) == 0);
    assert_true(pass(&b, 0, 16, SML_NS_PER_MS) == 0);
    assert_int_equal(b.num_open, 0);
  }
}

/* A lone contributor's chunks are never open. */
static void test_never_for_a_lone_contributor(void **state) {
  (void)state;
  struct sml_bulk b = {.num_open = 0};
  for (uint32_t i = 0; i < 100; i++) {
    for (uint32_t r = 0; r < SLOTS; r++) sml_bulk_note_result(&b, false);
    assert_true(sml_bulk_end_pass(&b, SLOTS, i * SML_NS_PER_MS) == 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_gathers_a_part_of_a_window),
      cmocka_unit_test(test_never_where_all_is_done_now_and_then),
      cmocka_unit_test(test_never_for_a_lone_contributor),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
