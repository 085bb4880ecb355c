/* SPDX-License-Identifier: Apache-2.0
 * Inputs of the registry that come too early, too late or from nowhere, and bounds of its checker one by one. */
#include "ctl/registry_internal.h"
#include "ctl/test_registry_world.h"

/* What an engine reports of jobs that never were, are gone, or are in another epoch. */
static void test_reports_out_of_date_change_nothing(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 2);
  const uint16_t numbers[] = {0, 1, SML_REGISTRY_MAX_JOBS - 1, SML_REGISTRY_MAX_JOBS, UINT16_MAX};
  for (size_t i = 0; i < SML_ARRAY_LEN(numbers); i++) {
    const uint32_t epoch = w.jobs[0].epoch + (i == 0 ? 1 : 0);
    sml_registry_on_mismatch(w.r, numbers[i], epoch, 0, 1);
    take_effects();
    EXPECT("");
    sml_registry_on_blocked(w.r, numbers[i], epoch, 0);
    take_effects();
    EXPECT("");
    sml_registry_on_jump(w.r, numbers[i], epoch, 0);
    take_effects();
    EXPECT("");
    if (numbers[i] >= SML_REGISTRY_MAX_JOBS) continue; /* no command was ever given for such a number */
    sml_registry_on_job_failed(w.r, numbers[i], epoch, NULL);
    take_effects();
    EXPECT("");
  }
  sml_registry_on_job_failed(w.r, 0, w.jobs[0].epoch, NULL);
  take_effects();
  assert_non_null(strstr(w.line, "end j0"));
  expect_all_free();
}

/* A member may take another one for lost that is not: then it is the one to be named. */
static void test_abort_for_a_rank_that_is_here_is_no_echo(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 3);
  struct sml_ctl_message m = {.kind = SML_CTL_ABORT};
  m.u.abort.status = SML_ERR_RANK_LOST;
  m.u.abort.num_ranks = 1;
  m.u.abort.ranks[0] = 2;
  snprintf(m.u.abort.detail, sizeof m.u.abort.detail, "it does not answer");
  said(0, &m);
  expect_detail(1, "rank 0 (10.0.0.0) aborted the job: it does not answer");
  expect_all_free();
}

/* Too early by a nanosecond, and long before. */
static void test_a_timer_that_is_not_due_does_nothing(void **state) {
  (void)state;
  begin();
  opened(0);
  start_world("x", 1, 2);
  opened(4);
  join(4, "y", 0, 2);
  for (uint32_t i = 0; i < 3; i++) {
    const uint64_t deadline_ns = sml_registry_next_deadline(w.r);
    sml_registry_on_timer(w.r, i == 0 ? 0 : deadline_ns - 1);
    take_effects();
    EXPECT("");
    assert_true(sml_registry_next_deadline(w.r) == deadline_ns);
    tick();
  }
}

/* Who was challenged has not joined; a job that is being joined has no slots. */
static void test_counts_of_what_is_half_way(void **state) {
  (void)state;
  struct sml_registry_counts counts;
  begin();
  opened(0);
  opened(1);
  join(1, "x", 0, 2);
  if (is_keyed) {
    struct sml_ctl_message m = join_message("y", 0, 2);
    m.u.join.key_name[0] = 'a';
    opened(2);
    said_once(2, &m);
    EXPECT("c2<CHALLENGE; c2 key; ");
  }
  sml_registry_counts(w.r, &counts);
  assert_int_equal(counts.connections, is_keyed ? 3 : 2);
  assert_int_equal(counts.unjoined, is_keyed ? 2 : 1);
  assert_true(counts.jobs_joining == 1 && counts.jobs_started == 0 && counts.slots_used == 0);
  start_world("z", 10, 3);
  sml_registry_counts(w.r, &counts);
  assert_true(counts.jobs_joining == 1 && counts.jobs_started == 1);
  assert_int_equal(counts.slots_used, w.last[10].u.start.num_slots);
}

/* A job that a rank has departed from is at its end: a rank it never had begins the next one of its name. */
static void test_larger_job_after_one_at_its_end(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 2);
  goodbye(0);
  opened(4);
  join(4, "x", 3, 4);
  assert_non_null(strstr(w.line, "c4<WELCOME j1"));
  opened(5);
  join(5, "x", 0, 4); /* the one that left */
  assert_non_null(strstr(w.line, "c5<WELCOME j1"));
}

/* ---- the checker ---- */

static void break_member_present(void) {
  sml_bit_clear(w.r->jobs[0].present, 1);
  sml_bit_set(w.r->jobs[0].present, 77);
}
static void break_member_no_lanes(void) {
  w.r->conns[0].num_lanes = 0;
}
static void break_oldest(void) {
  w.r->conns[0].oldest_operation = 1;
}
static void break_completed(void) {
  w.r->conns[0].resume_operation = w.r->conns[0].oldest_operation = 2;
  w.r->conns[0].completed = 1;
}
static void break_many_lanes(void) {
  w.r->jobs[0].num_lanes = 3;
}
static void break_small_chunk(void) {
  w.r->jobs[0].chunk_bytes = SML_MIN_CHUNK_BYTES - 4;
}

static void test_each_side_of_a_bound_is_checked(void **state) {
  (void)state;
  static const struct {
    void (*breaks)(void);
    const char *found;
  } rows[] = {
      {break_member_present, "a member's rank is not present"},
      {break_member_no_lanes, "a member has more lanes than the daemon"},
      {break_oldest, "a member's operations are out of order"},
      {break_completed, "a member's operations are out of order"},
      {break_many_lanes, "a job's lanes are not the daemon's"},
      {break_small_chunk, "a job's chunk size is impossible"},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    begin();
    start_world("x", 0, 2);
    assert_null(sml_registry_find_violation(w.r));
    rows[i].breaks();
    const char *found = sml_registry_find_violation(w.r);
    if (found == NULL || strcmp(found, rows[i].found) != 0) fail_msg("row %zu: %s", i, found ? found : "nothing");
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BOTH(test_reports_out_of_date_change_nothing),   BOTH(test_abort_for_a_rank_that_is_here_is_no_echo),
      BOTH(test_a_timer_that_is_not_due_does_nothing), BOTH(test_counts_of_what_is_half_way),
      BOTH(test_larger_job_after_one_at_its_end),      BOTH(test_each_side_of_a_bound_is_checked),
  };
  return cmocka_run_group_tests(tests, NULL, end_world);
}
