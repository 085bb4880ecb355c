/* SPDX-License-Identifier: Apache-2.0 */
#include "aggd/trace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define NUM_NOTES 1000u

static void note(struct sml_aggd_trace *t, enum sml_note kind, uint16_t job, const char *name, uint64_t now_ns) {
  struct sml_effect effect = {.note = kind, .job = job};
  snprintf(effect.job_name, sizeof effect.job_name, "%s", name != NULL ? name : "");
  sml_aggd_trace_note(t, &effect, now_ns);
}

static uint32_t count(const struct sml_trace_dump *dump, uint16_t job, enum sml_trace_event event) {
  uint32_t num = 0;
  for (uint32_t s = 0; s < dump->num_sources; s++)
    for (uint64_t i = 0; i < dump->sources[s].num_records; i++)
      num += dump->sources[s].records[i].job == job && dump->sources[s].records[i].event == event;
  return num;
}

/* Ranks of one job come and go, strangers are refused, jobs above the limit want to start. */
static void test_notes_of_others_leave_those_of_a_job(void **state) {
  (void)state;
  struct sml_aggd_trace trace;
  struct sml_trace_dump dump = {.num_sources = 0};
  assert_true(sml_aggd_trace_open(&trace, &(struct sml_recorder_options){SML_TRACE_NOTABLE, 64}, 2));
  note(&trace, SML_NOTE_JOB_STARTED, 0, "quiet", 1);
  note(&trace, SML_NOTE_JOB_STARTED, 1, "busy", 2);
  for (uint32_t i = 0; i < NUM_NOTES; i++) {
    note(&trace, SML_NOTE_RANK_LATE, 1, "busy", 3 + i);
    note(&trace, SML_NOTE_JOIN_REFUSED, 0, "", 3 + i);
    note(&trace, SML_NOTE_JOB_STARTED, 2, "above", 3 + i);
  }
  note(&trace, SML_NOTE_RANK_LOST, 0, "quiet", 3 + NUM_NOTES);
  assert_true(sml_aggd_trace_add(&trace, &dump));
  assert_int_equal(count(&dump, 0, SML_TRACE_JOB_STARTED), 1);
  assert_int_equal(count(&dump, 0, SML_TRACE_RANK_LOST), 1);
  assert_int_equal(count(&dump, 1, SML_TRACE_RANK_DELAYED), 15); /* of 16, but for the one that is next */
  assert_int_equal(count(&dump, 1, SML_TRACE_JOB_STARTED), 0);
  assert_true(count(&dump, UINT16_MAX, SML_TRACE_JOIN_REFUSED) > 0);
  assert_true(count(&dump, 2, SML_TRACE_JOB_STARTED) > 0);
  sml_trace_clear(&dump);
  sml_aggd_trace_close(&trace);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_notes_of_others_leave_those_of_a_job)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
