/* SPDX-License-Identifier: Apache-2.0 */
#include "core/rto.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void first_sample_replaces_the_guess(void **state) {
  (void)state;
  struct sml_rto rto;
  sml_rto_init(&rto, 0);
  assert_int_equal(rto.rto_ns, SML_RTO_INITIAL_NS);
  assert_int_equal(rto.srtt_ns, 0);
  sml_rto_sample(&rto, 8 * SML_NS_PER_MS);
  assert_int_equal(rto.srtt_ns, 8 * SML_NS_PER_MS);
  assert_int_equal(rto.rttvar_ns, 4 * SML_NS_PER_MS);
  assert_int_equal(rto.rto_ns, 24 * SML_NS_PER_MS); /* RFC 6298 (2.2): R + 4 * R/2 */
  sml_rto_sample(&rto, 16 * SML_NS_PER_MS);
  assert_int_equal(rto.srtt_ns, 9 * SML_NS_PER_MS);
  assert_int_equal(rto.rttvar_ns, 5 * SML_NS_PER_MS);
  assert_int_equal(rto.rto_ns, 29 * SML_NS_PER_MS);
}

/* Who knows that the path is long waits for it from the beginning. */
static void the_join_knows_the_path(void **state) {
  (void)state;
  struct sml_rto rto;
  sml_rto_init(&rto, 300 * SML_NS_PER_MS);
  assert_int_equal(rto.rto_ns, 900 * SML_NS_PER_MS);
  assert_int_equal(rto.srtt_ns, 0);
  for (int k = 0; k < 100; k++) sml_rto_sample(&rto, 320 * SML_NS_PER_MS);
  assert_in_range(rto.srtt_ns, 319 * SML_NS_PER_MS, 320 * SML_NS_PER_MS); /* above the ceiling of short paths */
  assert_in_range(sml_rto_backoff(&rto, 1), 1800 * SML_NS_PER_MS, 2000 * SML_NS_PER_MS);
  assert_int_equal(sml_rto_backoff(&rto, 7), SML_RTO_CEILING_NS + 2400 * SML_NS_PER_MS);
  sml_rto_init(&rto, UINT64_MAX); /* whatever somebody says */
  assert_int_equal(rto.rto_ns, 3 * SML_RTO_LONGEST_PATH_NS);
  assert_true(rto.rto_ns <= rto.ceiling_ns);
}

static void steady_samples_converge(void **state) {
  (void)state;
  static const uint64_t rtts_ns[] = {5 * SML_NS_PER_MS, 30 * SML_NS_PER_MS, 100 * SML_NS_PER_MS};
  for (size_t i = 0; i < SML_ARRAY_LEN(rtts_ns); i++) {
    struct sml_rto rto;
    sml_rto_init(&rto, 0);
    sml_rto_sample(&rto, SML_NS_PER_MS);
    for (int k = 0; k < 400; k++) sml_rto_sample(&rto, rtts_ns[i]);
    assert_in_range(rto.srtt_ns, rtts_ns[i] - 100, rtts_ns[i] + 100);
    /* No variance: two round trips stay as margin, in which a repair that needs no timer comes first. */
    const uint64_t rto_ns = sml_min_u64(3 * rtts_ns[i], SML_RTO_CEILING_NS);
    assert_in_range(rto.rto_ns, rto_ns - 600, rto_ns + 600);
  }
}

static void floor_and_ceiling_hold(void **state) {
  (void)state;
  struct sml_rto rto;
  sml_rto_init(&rto, 0);
  for (int k = 0; k < 100; k++) {
    sml_rto_sample(&rto, 0);
    assert_int_equal(rto.rto_ns, SML_RTO_FLOOR_NS);
  }
  for (int k = 0; k < 100; k++) {
    sml_rto_sample(&rto, UINT64_MAX);
    assert_in_range(rto.rto_ns, SML_RTO_FLOOR_NS, SML_RTO_CEILING_NS);
    assert_true(rto.srtt_ns <= SML_RTO_CEILING_NS);
  }
  assert_int_equal(rto.rto_ns, SML_RTO_CEILING_NS);
  for (int k = 0; k < 200; k++) sml_rto_sample(&rto, 50 * SML_NS_PER_US); /* one late rank is forgotten */
  assert_int_equal(rto.rto_ns, SML_RTO_FLOOR_NS);
}

static void random_samples_stay_in_bounds(void **state) {
  (void)state;
  struct sml_prng prng = {.state = 3};
  struct sml_rto rto;
  sml_rto_init(&rto, 0);
  for (int k = 0; k < 100000; k++) {
    sml_rto_sample(&rto, sml_prng_next(&prng) >> sml_prng_below(&prng, 64));
    assert_true(rto.rto_ns >= SML_RTO_FLOOR_NS && rto.rto_ns <= SML_RTO_CEILING_NS);
    assert_true(rto.srtt_ns <= SML_RTO_CEILING_NS && rto.rttvar_ns <= SML_RTO_CEILING_NS);
  }
}

static void answers_are_a_measure_of_their_own(void **state) {
  (void)state;
  struct sml_rto rto;
  sml_rto_init(&rto, 0);
  for (int k = 0; k < 20; k++) sml_rto_sample(&rto, 150 * SML_NS_PER_MS); /* they waited for repairs */
  assert_int_equal(rto.answer_ns, 0);
  sml_rto_answer(&rto, 80 * SML_NS_PER_US);
  assert_int_equal(rto.answer_ns, 80 * SML_NS_PER_US);
  assert_int_equal(rto.srtt_ns, 150 * SML_NS_PER_MS);
  for (int k = 0; k < 50; k++) sml_rto_answer(&rto, 40 * SML_NS_PER_US);
  assert_in_range(rto.answer_ns, 40 * SML_NS_PER_US, 41 * SML_NS_PER_US);
  sml_rto_answer(&rto, UINT64_MAX);
  assert_in_range(rto.answer_ns, 1, SML_RTO_CEILING_NS);
}

static void backoff_doubles_up_to_the_ceiling(void **state) {
  (void)state;
  struct sml_rto rto;
  sml_rto_init(&rto, 0);
  for (uint32_t k = 0; k < SML_RTO_LEVELS; k++)
    assert_int_equal(sml_rto_backoff(&rto, k), sml_min_u64(SML_RTO_INITIAL_NS << k, SML_RTO_CEILING_NS));
  rto.rto_ns = SML_RTO_CEILING_NS;
  for (uint32_t k = 0; k < SML_RTO_LEVELS; k++)
    assert_int_equal(sml_rto_backoff(&rto, k), SML_RTO_CEILING_NS);
}

static void reorder_window_has_a_floor(void **state) {
  (void)state;
  struct sml_rto rto;
  sml_rto_init(&rto, 0);
  assert_int_equal(sml_rto_reorder_window(&rto), 100 * SML_NS_PER_US);
  sml_rto_sample(&rto, 40 * SML_NS_PER_MS);
  assert_int_equal(sml_rto_reorder_window(&rto), 40 * SML_NS_PER_MS);
  assert_int_equal(sml_rto_repair_window(&rto), 80 * SML_NS_PER_MS);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(first_sample_replaces_the_guess), cmocka_unit_test(steady_samples_converge),
      cmocka_unit_test(the_join_knows_the_path),
      cmocka_unit_test(floor_and_ceiling_hold),          cmocka_unit_test(random_samples_stay_in_bounds),
      cmocka_unit_test(answers_are_a_measure_of_their_own),
      cmocka_unit_test(backoff_doubles_up_to_the_ceiling), cmocka_unit_test(reorder_window_has_a_floor),
  };
  return cmocka_run_group_tests_name("rto", tests, NULL, NULL);
}
