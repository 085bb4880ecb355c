/* SPDX-License-Identifier: Apache-2.0
 * Rates that the command makes of two answers, and what it says of a switch. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/status/status.h"

static json_t *parse(const char *text) {
  json_t *status = json_loads(text, 0, NULL);
  assert_non_null(status);
  return status;
}

/* A status at a time, of a switch that told so long ago that it has answered so many repeats. */
static json_t *look(double uptime_s, const char *told_s, int repeats) {
  char text[512];
  snprintf(text, sizeof text,
           "{\"uptime_s\": %.1f, \"jobs\": [{\"name\": \"x\", \"number\": 1, \"state\": \"running\", \"sums\": %d, "
           "\"repeats\": null}], \"switch\": {\"told_s\": %s, \"updates\": 900, \"sums\": 300, \"repeats\": %d}}",
           uptime_s, 10 * repeats, told_s, repeats);
  return parse(text);
}

static double rate_of(const json_t *of, const char *name) {
  const json_t *rate = json_object_get(json_object_get(of, "rates"), name);
  assert_true(rate == NULL || json_is_real(rate));
  return rate != NULL ? json_real_value(rate) : -1;
}

static void expect_rate(const char *told_before_s, const char *told_now_s, double repeats) {
  json_t *before = look(10, told_before_s, 4), *now = look(12, told_now_s, 10);
  assert_true(sml_status_add_rates(now, before));
  assert_true(fabs(rate_of(json_object_get(now, "switch"), "repeats") - repeats) < 1e-9);
  json_decref(before);
  json_decref(now);
}

/* A switch tells once a second at most: what lies between is the time between what it told. */
static void rates_of_a_switch_are_between_what_it_told(void **state) {
  (void)state;
  expect_rate("0.0", "0.0", 3);
  expect_rate("1.0", "0.0", 2);
  expect_rate("0.0", "0.5", 4);
  expect_rate("0.0", "2.0", -1); /* it has told nothing since */
  expect_rate("null", "0.0", -1);
  expect_rate("0.0", "null", -1);
}

static void the_same_answer_has_no_rates(void **state) {
  (void)state;
  json_t *before = look(10, "0.0", 4), *now = look(10, "0.0", 4);
  assert_false(sml_status_add_rates(now, before));
  assert_null(json_object_get(json_array_get(json_object_get(now, "jobs"), 0), "rates"));
  json_decref(before);
  json_decref(now);
}

static void what_is_unknown_has_no_rate(void **state) {
  (void)state;
  json_t *before = look(10, "0.0", 4), *now = look(12, "0.0", 10);
  sml_status_add_rates(now, before);
  const json_t *job = json_array_get(json_object_get(now, "jobs"), 0);
  assert_true(fabs(rate_of(job, "sums") - 30) < 1e-9);
  assert_true(json_is_null(json_object_get(json_object_get(job, "rates"), "repeats")));
  json_decref(before);
  json_decref(now);
}

static void repeats_stand_beside_sums(void **state) {
  (void)state;
  char *text = NULL;
  size_t num_bytes;
  json_t *before = look(10, "0.0", 4), *now = look(12, "0.0", 10);
  sml_status_add_rates(now, before);
  FILE *stream = open_memstream(&text, &num_bytes);
  assert_true(sml_status_print(stream, now, false, 0));
  fclose(stream);
  assert_non_null(strstr(text, "300 sums, 10 repeats, 0 pending, 0 forwarded; 0 sums/s, 3 repeats/s\n"));
  free(text);
  json_decref(before);
  json_decref(now);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rates_of_a_switch_are_between_what_it_told),
      cmocka_unit_test(the_same_answer_has_no_rates),
      cmocka_unit_test(what_is_unknown_has_no_rate),
      cmocka_unit_test(repeats_stand_beside_sums),
  };
  return cmocka_run_group_tests_name("view", tests, NULL, NULL);
}
