/* SPDX-License-Identifier: Apache-2.0
 * When operations are late, whom a job asks, and each sentence that it says of what it waits for. */
#include "ctl/test_job_world.h"

#define T0 (1000 * S)

static struct sml_member members[3];
static struct sml_member_shard shards[3];
static struct sml_member_job j;
static struct sml_member_operation ops[3];
static struct sml_member_sight sight;

/* A job of four ranks in which operation 0 is submitted at T0 and has begun. */
static int begin_late(void **state) {
  (void)state;
  memset(&sight, 0, sizeof sight);
  sight = (struct sml_member_sight){.wait.kind = SML_WAIT_NETWORK, .has_slot = true, .slot = 7, .since_ns = T0};
  for (uint32_t s = 0; s < 3; s++) {
    shards[s] = (struct sml_member_shard){.member = &members[s], .process_rank = SML_MEMBER_OF_DAEMON};
    members[s] = (struct sml_member){.state = SML_MEMBER_RUNNING};
    snprintf(members[s].options.aggregator, sizeof members[s].options.aggregator, "10.0.0.%u:4242", s);
  }
  j = (struct sml_member_job){.name = "x", .rank = 2, .world_size = 4, .num_shards = 1, .shards = shards};
  j.phase = SML_MEMBER_IS_RUNNING;
  for (uint32_t i = 0; i < 3; i++)
    ops[i] = (struct sml_member_operation){
        .number = i, .submitted_ns = T0 + i * S, .deadline_ns = T0 + (60 - i) * S, .last_deadline_ns = T0 + 90 * S};
  j.next_number = 1;
  sml_member_job_insert(&j, &ops[0]);
  return 0;
}

/* This rank itself sees for whom it waits. */
static int begin_late_and_known(void **state) {
  (void)begin_late(state);
  sight.wait = (struct sml_member_wait){.kind = SML_WAIT_RANKS, .num_absent = 1, .ranks = {3}};
  return 0;
}

static struct sml_member_late check_at(uint64_t now_ns) {
  return sml_member_late_check(&j, &sight, NULL, now_ns);
}

/* ---- when ---- */

static void test_operations_time_out_at_their_deadlines(void **state) {
  (void)state;
  sml_member_job_insert(&j, &ops[1]);
  sml_member_job_insert(&j, &ops[2]);
  ops[0].was_warned = true;
  assert_int_equal(check_at(T0 + 58 * S - 1).kind, SML_MEMBER_NOT_LATE);
  const struct sml_member_late late = check_at(T0 + 58 * S);
  assert_int_equal(late.kind, SML_MEMBER_LATE_TIMES_OUT);
  assert_ptr_equal(late.operation, &ops[2]); /* called last, for a shorter time */
  assert_true(late.deadline_ns == T0 + 58 * S);
  j.phase = SML_MEMBER_HAS_FAILED;
  assert_int_equal(check_at(T0 + 99 * S).kind, SML_MEMBER_NOT_LATE);
  assert_true(check_at(T0 + 99 * S).look_ns == SML_NEVER);
}

static void test_nothing_is_late_where_nothing_is_called(void **state) {
  (void)state;
  sml_member_job_remove(&j, &ops[0]);
  assert_true(check_at(T0 + 100 * S).look_ns == SML_NEVER);
}

static void test_a_lead_has_a_little_longer(void **state) {
  (void)state;
  sight.wait.kind = SML_WAIT_LEAD;
  ops[0].was_warned = true;
  assert_int_equal(check_at(T0 + 61 * S + 499 * MS).kind, SML_MEMBER_NOT_LATE);
  assert_int_equal(check_at(T0 + 61 * S + 500 * MS).kind, SML_MEMBER_LATE_TIMES_OUT);
  ops[0].deadline_ns = SML_NEVER - 1; /* never */
  assert_int_equal(check_at(T0 + 99 * S).kind, SML_MEMBER_NOT_LATE);
}

/* In a job with retry, while it rejoins or its aggregator is silent; but not beyond what the operation has in all. */
static void test_deadlines_stand_still(void **state) {
  (void)state;
  ops[0].was_warned = true;
  for (uint32_t is_silent = 0; is_silent < 2; is_silent++) {
    j.phase = is_silent ? SML_MEMBER_IS_RUNNING : SML_MEMBER_IS_REJOINING;
    j.retry.silent_since_ns = is_silent ? T0 + 50 * S : 0;
    assert_int_equal(check_at(T0 + 90 * S - 1).kind, SML_MEMBER_NOT_LATE);
    assert_int_equal(check_at(T0 + 90 * S).kind, SML_MEMBER_LATE_TIMES_OUT);
  }
}

static void test_an_operation_of_an_open_batch(void **state) {
  (void)state;
  sml_member_job_remove(&j, &ops[0]);
  assert_true(sml_member_late_check(&j, &sight, &ops[1], T0 + 2 * S).look_ns == ops[1].deadline_ns);
  const struct sml_member_late late = sml_member_late_check(&j, &sight, &ops[1], ops[1].deadline_ns);
  assert_int_equal(late.kind, SML_MEMBER_LATE_IN_BATCH);
  assert_ptr_equal(late.operation, &ops[1]);
}

static void test_the_oldest_one_is_warned_of_once(void **state) {
  (void)state;
  sml_member_job_insert(&j, &ops[1]);
  assert_int_equal(check_at(T0 + 10 * S - 1).kind, SML_MEMBER_NOT_LATE);
  const struct sml_member_late late = check_at(T0 + 10 * S);
  assert_int_equal(late.kind, SML_MEMBER_LATE_WARNS);
  assert_ptr_equal(late.operation, &ops[0]);
  assert_int_equal(check_at(T0 + 11 * S).kind, SML_MEMBER_NOT_LATE);
}

/* ---- asking ---- */

static void test_aggregators_are_asked_before_it_is_late(void **state) {
  (void)state;
  j.num_shards = 3;
  members[1].state = SML_MEMBER_OVER;
  assert_true(check_at(T0 + S).look_ns == T0 + 10 * S - SML_MEMBER_ASK_NS);
  assert_false(check_at(T0 + 10 * S - SML_MEMBER_ASK_NS - 1).has_asked);
  const struct sml_member_late late = check_at(T0 + 10 * S - SML_MEMBER_ASK_NS);
  assert_true(late.has_asked && late.look_ns == T0 + 10 * S);
  assert_true(members[0].wants_report && members[2].wants_report && !members[1].wants_report);
  assert_false(sml_member_late_has_reports(&j));
  assert_false(check_at(T0 + 10 * S - 1).has_asked); /* once is enough */
  const struct sml_ctl_report report = {.detail = "all is well"};
  sml_member_job_on_reported(&j, 0, &report);
  assert_false(sml_member_late_has_reports(&j));
  sml_member_job_on_reported(&j, 2, &report);
  assert_true(sml_member_late_has_reports(&j)); /* the one that is over was not asked */
  (void)check_at(T0 + 10 * S);
  assert_true(check_at(T0 + 60 * S - SML_MEMBER_ASK_NS).has_asked);
  assert_false(sml_member_late_has_reports(&j)); /* what was said before is forgotten */
}

/* Half the time that there is. */
static void test_short_deadlines_are_asked_about_in_time(void **state) {
  (void)state;
  ops[0].deadline_ns = T0 + 100 * MS;
  assert_false(check_at(T0 + 49 * MS).has_asked);
  assert_true(check_at(T0 + 50 * MS).has_asked);
}

/* Where this rank knows of nobody, but not for an aggregator that does not answer. */
static void test_a_due_operation_waits_for_reports(void **state) {
  (void)state;
  const struct sml_ctl_report report = {.num_ranks = 1, .ranks = {3}, .detail = "rank 3 has not called"};
  ops[0].was_warned = true;
  for (uint32_t was_asked = 0; was_asked < 2; was_asked++) { /* a thread that wakes late asks then */
    if (was_asked) assert_true(check_at(T0 + 60 * S - SML_MEMBER_ASK_NS).has_asked);
    const struct sml_member_late late = check_at(T0 + 60 * S);
    assert_int_equal(late.kind, SML_MEMBER_NOT_LATE);
    assert_int_equal(late.has_asked, !was_asked);
    assert_true(late.look_ns == T0 + 61 * S);
    assert_int_equal(check_at(T0 + 61 * S - 1).kind, SML_MEMBER_NOT_LATE);
    assert_int_equal(check_at(T0 + 61 * S).kind, SML_MEMBER_LATE_TIMES_OUT);
    sml_member_job_on_reported(&j, 0, &report);
    assert_int_equal(check_at(T0 + 60 * S).kind, SML_MEMBER_LATE_TIMES_OUT);
    j.asked_ns = 0;
  }
}

/* ---- what is said ---- */

static void expect_explained(uint64_t after_ns, const char *expected) {
  struct sml_ctl_abort failure = {.num_ranks = 0};
  sml_member_late_explain(&j, &sight, T0 + after_ns, &failure);
  assert_string_equal(failure.detail, expected);
}

static void expect_blamed(uint32_t num, uint32_t first) {
  struct sml_ctl_abort failure = {.num_ranks = 0};
  sml_member_late_explain(&j, &sight, T0 + S, &failure);
  assert_int_equal(failure.num_ranks, num);
  if (num > 0) assert_int_equal(failure.ranks[0], first);
}

static void test_what_lanes_wait_for(void **state) {
  (void)state;
  expect_explained(1500 * MS, "no answer from the aggregator on lane 0 slot 7 for 1.5 s");
  expect_blamed(0, 0);
  sight.lane = 1;
  sight.num_missing = 1;
  sight.missing[0] = 3;
  expect_explained(0, "waiting for rank 3 on lane 1 slot 7");
  sight.num_missing = 2;
  sight.missing[1] = 1;
  expect_explained(2 * S, "waiting for ranks 3, 1 on lane 1 slot 7 for 2 s");
  expect_blamed(2, 3);
  sight.has_slot = false;
  expect_explained(2 * S, "it was not begun");
}

/* Some of those that are missing at a fence may wait for others. The aggregator knows for whom. */
static void test_what_a_fence_waits_for(void **state) {
  (void)state;
  const struct sml_ctl_report report = {.num_ranks = 1, .ranks = {3}, .detail = "4 slots wait for rank 3"};
  ops[0].was_warned = true;
  sight.is_fence = true;
  sight.num_missing = 2;
  sight.missing[0] = 0;
  sight.missing[1] = 3;
  expect_explained(0, "waiting for ranks 0, 3 at a fence on lane 0 slot 7");
  assert_true(check_at(T0 + 60 * S).has_asked);
  assert_int_equal(check_at(T0 + 60 * S).kind, SML_MEMBER_NOT_LATE);
  sml_member_job_on_reported(&j, 0, &report);
  assert_int_equal(check_at(T0 + 60 * S).kind, SML_MEMBER_LATE_TIMES_OUT);
  expect_blamed(1, 3);
}

static void test_what_hosts_wait_for(void **state) {
  (void)state;
  sight.wait.kind = SML_WAIT_NONE_BEGUN;
  expect_explained(S, "it was not begun");
  sight.wait = (struct sml_member_wait){.kind = SML_WAIT_RANKS, .num_absent = 2, .ranks = {1, 3}};
  expect_explained(S, "waiting for ranks 1, 3 in shared memory");
  expect_blamed(2, 1);
  sight.wait.num_absent = 1;
  expect_explained(S, "waiting for rank 1 in shared memory");
  sight.wait.num_absent = 0;
  expect_explained(S, "waiting for rank 2, this one, in shared memory: all others have done their part");
  expect_blamed(1, 2);
  j.start.num_ranks = 4; /* ranks combine: 0 and 1 are one contributor */
  j.start.contributors[2] = 1;
  j.start.contributors[3] = 2;
  sight.wait.kind = SML_WAIT_NETWORK;
  sight.num_missing = 1;
  sight.missing[0] = 0;
  expect_explained(0, "waiting for ranks 0-1 on the host of rank 0 on lane 0 slot 7");
  const struct sml_ctl_report report = {.num_ranks = 2, .ranks = {0, 4}, .detail = "1 slot waits for rank 0"};
  sml_member_late_ask(&j, T0);
  sml_member_job_on_reported(&j, 0, &report); /* which sends for both; and no rank 4 is there */
  expect_blamed(2, 0);
}

static void test_what_the_job_waits_for(void **state) {
  (void)state;
  j.phase = SML_MEMBER_IS_REJOINING;
  expect_explained(S, "the aggregator was lost and is not back");
  j.phase = SML_MEMBER_IS_DRAINING;
  expect_explained(S, "waiting for every rank to ask for a new epoch");
  j.phase = SML_MEMBER_IS_RENEWING;
  expect_explained(S, "waiting for every rank to ask for a new epoch");
}

static void test_what_aggregators_say(void **state) {
  (void)state;
  const struct sml_ctl_report report = {.num_ranks = 2, .ranks = {3, 1}, .detail = "ranks 3 and 1 have not called"};
  sight.has_slot = false;
  sml_member_late_ask(&j, T0);
  expect_explained(S, "it was not begun; the aggregator: no answer when it was asked");
  sml_member_job_on_silent(&j, 0, T0 - 2 * S);
  expect_explained(S, "it was not begun; the aggregator: it has been silent for 3 s");
  sml_member_job_on_reported(&j, 0, &report);
  expect_explained(S, "it was not begun; the aggregator: ranks 3 and 1 have not called");
  expect_blamed(2, 3);
  shards[0].process_rank = 3;
  expect_explained(S, "it was not begun; the aggregator (in rank 3): ranks 3 and 1 have not called");
  shards[0].process_rank = SML_MEMBER_OF_DAEMON;
  j.num_shards = 2;
  shards[1].is_asked = true;
  expect_explained(S,
                   "it was not begun; the aggregator at 10.0.0.0:4242: ranks 3 and 1 have not called; the "
                   "aggregator at 10.0.0.1:4242: no answer when it was asked");
  sight.has_slot = true;
  sight.num_missing = 1;
  sml_member_job_on_reported(&j, 1, &report);
  expect_blamed(2, 3); /* the lanes heard of rank 0, but that was before */
  sight.missing[0] = 1;
  expect_blamed(1, 1); /* rank 3 has not called, as it waits for rank 1, say */
  sight.wait = (struct sml_member_wait){.kind = SML_WAIT_RANKS, .num_absent = 1, .ranks = {2}};
  expect_blamed(1, 2); /* this rank sees it */
}

/* What an aggregator that does not answer said before counts no more, nor whom others wait for: its rank is named. */
static void test_a_rank_whose_aggregator_is_silent(void **state) {
  (void)state;
  const struct sml_ctl_report report = {.num_ranks = 2, .ranks = {0, 3}, .detail = "4 slots wait for ranks 0, 3"};
  ops[0].was_warned = true;
  j.num_shards = 2;
  for (uint32_t s = 0; s < 2; s++) shards[s].process_rank = s;
  sight.num_missing = 1;
  sight.missing[0] = 3; /* as one of them said */
  assert_true(check_at(T0 + 60 * S).has_asked);
  sml_member_job_on_reported(&j, 0, &report);
  assert_int_equal(check_at(T0 + 60 * S).kind, SML_MEMBER_NOT_LATE);
  assert_int_equal(check_at(T0 + 61 * S).kind, SML_MEMBER_LATE_TIMES_OUT);
  expect_blamed(1, 1);
  shards[1].process_rank = SML_MEMBER_OF_DAEMON;
  expect_blamed(2, 0);
  sml_member_job_on_reported(&j, 1, &report);
  expect_blamed(1, 3);
}

static void test_many_aggregators_are_cut_short(void **state) {
  (void)state;
  struct sml_ctl_abort failure = {.num_ranks = 0};
  j.num_shards = 3;
  sml_member_late_ask(&j, T0);
  memset(shards[0].report.detail, 'x', 330);
  shards[0].has_reported = true;
  sml_member_late_explain(&j, &sight, T0 + S, &failure);
  assert_non_null(strstr(failure.detail, "xxx; and 2 more aggregators"));
}

static void test_what_the_system_says(void **state) {
  (void)state;
  sight.num_unsent = 12;
  sight.unsent_ns = T0 - 1;
  snprintf(sight.unsent_why, sizeof sight.unsent_why, "Message too long");
  expect_explained(S, "no answer from the aggregator on lane 0 slot 7 for 1 s"); /* of an earlier operation */
  sight.unsent_ns = T0;
  expect_explained(S,
                   "no answer from the aggregator on lane 0 slot 7 for 1 s; rank 2's host did not send 12 packets, "
                   "the last one 1 s ago: Message too long");
  struct sml_ctl_abort failure = {.num_ranks = 0};
  memset(failure.detail, 'w', sizeof failure.detail - 1); /* what another rank says of this one */
  failure.detail[390] = (char)0xc3, failure.detail[391] = (char)0xa9;
  sml_member_late_add_unsent(&j, &sight, T0 + S, &failure);
  assert_non_null(strstr(failure.detail, "w; rank 2's host did not send 12 packets"));
  assert_non_null(strstr(failure.detail, "Message too long"));
}

/* With nothing outstanding it matters only while the job is joined, and then what is not long ago. */
static void test_what_the_system_said_before(void **state) {
  (void)state;
  struct sml_ctl_abort failure = {.num_ranks = 0};
  sml_member_job_remove(&j, &ops[0]);
  snprintf(sight.unsent_why, sizeof sight.unsent_why, "Message too long");
  sight.unsent_ns = T0;
  sml_member_late_add_unsent(&j, &sight, T0 + S, &failure);
  assert_string_equal(failure.detail, "");
  j.phase = SML_MEMBER_IS_JOINING;
  sml_member_late_add_unsent(&j, &sight, T0 + 11 * S, &failure);
  assert_string_equal(failure.detail, "");
  sml_member_late_add_unsent(&j, &sight, T0 + 9 * S, &failure);
  assert_non_null(strstr(failure.detail, "did not send"));
}

static void test_the_sentence_of_a_timeout(void **state) {
  (void)state;
  sight.has_slot = false;
  ops[0].was_warned = true;
  const struct sml_member_late late = check_at(T0 + 61 * S);
  const struct sml_ctl_abort failure = sml_member_late_failure(&j, &late, "operation 0 (...)", T0, &sight, T0 + 61 * S);
  assert_int_equal(failure.status, SML_ERR_TIMEOUT);
  assert_string_equal(failure.detail, "operation 0 (...) timed out on rank 2 after 60 s: it was not begun");
}

/* ---- with both halves ---- */

/* A rank that does not call is named by all, itself included, and by the aggregator. */
static void test_a_late_rank_is_named(void **state) {
  (void)state;
  start_jobs(3, 0);
  wait_for(S);
  for (uint32_t i = 1; i < 3; i++) assert_true(call(i));
  wait_for(15 * S);
  assert_non_null(strstr(workers[1].warned, "operation 0: waiting for rank 0 on lane 0 slot 0 for 10"));
  wait_for(16 * S);
  for (uint32_t i = 0; i < 3; i++) {
    expect_job_failure(i, SML_ERR_TIMEOUT, " after 30 s: waiting for rank 0 on lane 0 slot 0 for 30 s");
    expect_job_failure(i, SML_ERR_TIMEOUT, "; the aggregator: rank 0 (");
    expect_job_failure(i, SML_ERR_TIMEOUT, ") has not called for ");
    assert_int_equal(workers[i].j.error.num_ranks, 1);
    assert_int_equal(workers[i].j.error.ranks[0], 0);
    assert_int_equal(workers[i].j.error.operation, 0);
    if (i > 0) expect_op(i, 0, OP_FAILED);
  }
}

static void test_a_silent_aggregator_keeps_nobody_waiting(void **state) {
  (void)state;
  start_jobs(2, 0);
  for (uint32_t i = 0; i < 2; i++) ranks[i].m.options.join.lease_ns = 60 * S;
  assert_true(call(0));
  is_deaf = true;
  wait_for(32 * S);
  expect_job_failure(0, SML_ERR_TIMEOUT, "; the aggregator: it has been silent for 3");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_operations_time_out_at_their_deadlines, begin_late_and_known),
      cmocka_unit_test_setup(test_nothing_is_late_where_nothing_is_called, begin_late),
      cmocka_unit_test_setup(test_a_lead_has_a_little_longer, begin_late),
      cmocka_unit_test_setup(test_deadlines_stand_still, begin_late_and_known),
      cmocka_unit_test_setup(test_an_operation_of_an_open_batch, begin_late),
      cmocka_unit_test_setup(test_the_oldest_one_is_warned_of_once, begin_late),
      cmocka_unit_test_setup(test_aggregators_are_asked_before_it_is_late, begin_late),
      cmocka_unit_test_setup(test_short_deadlines_are_asked_about_in_time, begin_late),
      cmocka_unit_test_setup(test_a_due_operation_waits_for_reports, begin_late),
      cmocka_unit_test_setup(test_what_lanes_wait_for, begin_late),
      cmocka_unit_test_setup(test_what_a_fence_waits_for, begin_late),
      cmocka_unit_test_setup(test_what_hosts_wait_for, begin_late),
      cmocka_unit_test_setup(test_what_the_job_waits_for, begin_late),
      cmocka_unit_test_setup(test_what_aggregators_say, begin_late),
      cmocka_unit_test_setup(test_a_rank_whose_aggregator_is_silent, begin_late),
      cmocka_unit_test_setup(test_many_aggregators_are_cut_short, begin_late),
      cmocka_unit_test_setup(test_what_the_system_says, begin_late),
      cmocka_unit_test_setup(test_what_the_system_said_before, begin_late),
      cmocka_unit_test_setup(test_the_sentence_of_a_timeout, begin_late),
      BOTH(test_a_late_rank_is_named),
      BOTH(test_a_silent_aggregator_keeps_nobody_waiting),
  };
  return cmocka_run_group_tests(tests, NULL, end_world);
}
