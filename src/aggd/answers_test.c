/* SPDX-License-Identifier: Apache-2.0 */
#include "aggd/answers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static uint32_t num_made;
static bool is_no_more;

bool __wrap_sml_snapshot_report(const struct sml_registry *registry, struct sml_lanes *lanes, uint16_t job,
                                uint64_t now_ns, struct sml_ctl_report *report);
bool __wrap_sml_snapshot_report(const struct sml_registry *registry, struct sml_lanes *lanes, uint16_t job,
                                uint64_t now_ns, struct sml_ctl_report *report) {
  (void)registry;
  (void)lanes;
  (void)now_ns;
  snprintf(report->detail, sizeof report->detail, "%u of job %u", ++num_made, job);
  return !is_no_more;
}

static const char *ask(struct sml_answers *a, uint16_t job, uint32_t epoch, uint64_t now_ms) {
  static struct sml_ctl_message m;
  const struct sml_effect e = {.job = job, .epoch = epoch};
  if (!sml_answers_report(a, &e, now_ms * SML_NS_PER_MS, &m)) return NULL;
  assert_int_equal(m.kind, SML_CTL_REPORT);
  return m.u.report.detail;
}

/* Each look at the slots costs the engines time: with two jobs, too, it is not for each that asks. */
static void one_report_is_for_all_that_ask_soon(void **state) {
  (void)state;
  struct sml_answers a = {.reports = calloc(SML_REGISTRY_MAX_JOBS, sizeof *a.reports)};
  assert_non_null(a.reports);
  sml_answers_init(&a);
  const uint16_t last = SML_REGISTRY_MAX_JOBS - 1;
  for (uint64_t now_ms = 1000; now_ms < 1100; now_ms++) {
    assert_string_equal(ask(&a, 0, 7, now_ms), "1 of job 0");
    assert_string_equal(ask(&a, last, 7, now_ms), "2 of job 1023");
  }
  assert_string_equal(ask(&a, 0, 7, 1100), "3 of job 0");
  assert_string_equal(ask(&a, 0, 8, 1101), "4 of job 0"); /* another job has the number, or a new epoch */
  assert_string_equal(ask(&a, last, 7, 1101), "5 of job 1023");
  is_no_more = true;
  assert_null(ask(&a, 0, 7, 1102));
  assert_null(ask(&a, 0, 7, 1103));
  sml_answers_destroy(&a);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(one_report_is_for_all_that_ask_soon)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
