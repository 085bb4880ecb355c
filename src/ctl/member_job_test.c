/* SPDX-License-Identifier: Apache-2.0
 * What becomes of a job and its operations on every rank as ranks and aggregators come, go, and call different things:
 * whole jobs and the daemon's registry, face to face (test_job_world.h). */
#include "ctl/test_job_world.h"

static void expect_all_summed(uint64_t num) {
  for (uint32_t i = 0; i < num_ranks; i++) {
    assert_int_equal(workers[i].j.phase, SML_MEMBER_IS_RUNNING);
    assert_int_equal(sml_member_job_first_unfinished(&workers[i].j), num);
    for (uint64_t n = 0; n < num; n++) {
      expect_op(i, n, COMPLETED);
      assert_int_equal(op_at(i, n)->sum, num_ranks * n + 100 * num_ranks * (num_ranks - 1) / 2);
    }
  }
}

static void expect_all_failed(sml_status status, const char *sentence) {
  for (uint32_t i = 0; i < num_ranks; i++)
    if (!ranks[i].is_stopped) expect_job_failure(i, status, sentence);
}

static bool blames(uint32_t rank, uint32_t blamed) {
  const sml_error *error = &workers[rank].j.error;
  for (uint32_t i = 0; i < error->num_ranks; i++)
    if (error->ranks[i] == blamed) return true;
  return false;
}

/* ---- operations and epochs ---- */

static void test_operations_end_in_their_order(void **state) {
  (void)state;
  start_jobs(3, 0);
  for (uint32_t n = 0; n < 10; n++) call_on_all();
  settle();
  expect_all_summed(10);
}

static void test_full_epochs_are_renewed(void **state) {
  (void)state;
  start_jobs(3, 0);
  for (uint32_t i = 0; i < 3; i++) workers[i].epoch_ops = 3;
  const uint32_t first = workers[0].epoch;
  for (uint32_t n = 0; n < 8; n++) call_on_all();
  assert_int_equal(workers[0].j.num_begun, 3);
  settle();
  expect_all_summed(8);
  assert_int_equal(name_of(workers[2].epoch), name_of(first) + 2);
}

static void test_an_epoch_without_room(void **state) {
  (void)state;
  start_jobs(2, 0);
  for (uint32_t i = 0; i < 2; i++) workers[i].epoch_ops = 0;
  call_on_all();
  settle();
  expect_all_failed(SML_ERR_PROTOCOL, "new epoch begins at phase 2 and has no room for an operation");
}

static void take_start(uint32_t rank, const struct sml_ctl_start *start) {
  struct sml_ctl_message m;
  memset(&m, 0, sizeof m);
  m.kind = SML_CTL_START;
  m.u.start = *start;
  sml_member_on_message(&ranks[rank].m, &m, w.now_ns);
  carry_out(&ranks[rank]);
}

static void test_an_epoch_that_nobody_asked_for(void **state) {
  (void)state;
  for (uint32_t phase = SML_MEMBER_IS_RUNNING; phase <= SML_MEMBER_IS_RENEWING; phase++) {
    start_jobs(2, 0);
    struct sml_ctl_start start = workers[0].shard.start;
    workers[0].j.phase = (enum sml_member_phase)phase;
    if (phase == SML_MEMBER_IS_RENEWING) start.num_slots /= 2; /* asked for, but not with another shape */
    start.epoch++;
    take_start(0, &start);
    expect_job_failure(0, SML_ERR_PROTOCOL, "started an epoch that nobody asked for");
    assert_true(workers[0].epoch != start.epoch);
  }
}

static void test_no_memory_for_lanes(void **state) {
  (void)state;
  begin_jobs(2, 0);
  workers[1].has_no_memory = true;
  settle();
  wait_for(S);
  expect_all_failed(SML_ERR_NO_MEMORY, "rank 1 has no memory for ");
}

static void test_the_first_failure_stays(void **state) {
  (void)state;
  start_jobs(2, 0);
  abort_job(0, "first");
  abort_job(0, "second");
  settle();
  expect_all_failed(SML_ERR_ABORTED, "first");
  assert_false(call(1));
}

/* ---- several aggregators ---- */

static struct sml_member members[2];
static struct sml_member_shard shards[2];
static struct sml_member_job two;
static struct sml_ctl_abort failure;

static struct sml_ctl_start begin_two(void) {
  memset(shards, 0, sizeof shards);
  for (uint32_t s = 0; s < 2; s++) {
    shards[s].member = &members[s];
    shards[s].process_rank = SML_MEMBER_OF_DAEMON;
  }
  two = (struct sml_member_job){.name = "x", .rank = 1, .world_size = 3, .num_shards = 2, .shards = shards};
  return (struct sml_ctl_start){.epoch = 7, .num_lanes = 1, .num_slots = 64, .chunk_bytes = 1440, .first_phase = 2};
}

static void test_the_last_shard_starts_the_job(void **state) {
  (void)state;
  const struct sml_ctl_start start = begin_two();
  struct sml_ctl_start other = start;
  other.epoch = 8;
  other.first_phase = 6;
  other.chunk_bytes = 1000;
  assert_int_equal(sml_member_job_on_started(&two, 1, &other, &failure), SML_MEMBER_STEP_NONE);
  assert_int_equal(sml_member_job_on_started(&two, 0, &start, &failure), SML_MEMBER_STEP_OPEN);
  assert_int_equal(two.start.epoch, 7);
  assert_int_equal(two.start.chunk_bytes, 1000);
  assert_int_equal(two.start.first_phase, 6);
  assert_int_equal(sml_member_job_on_opened(&two, true, S, &failure), SML_MEMBER_STEP_GO_ON);
  two.phase = SML_MEMBER_IS_RENEWING;
  assert_int_equal(sml_member_job_on_started(&two, 0, &start, &failure), SML_MEMBER_STEP_NONE);
  assert_int_equal(sml_member_job_on_started(&two, 0, &start, &failure), SML_MEMBER_STEP_FAIL); /* twice */
  assert_int_equal(sml_member_job_on_started(&two, 1, &other, &failure), SML_MEMBER_STEP_RESTART);
  assert_int_equal(two.start.chunk_bytes, 1000);
}

static void test_shards_that_disagree(void **state) {
  (void)state;
  struct sml_ctl_start start = begin_two();
  assert_int_equal(sml_member_job_on_started(&two, 0, &start, &failure), SML_MEMBER_STEP_NONE);
  start.is_one_host = 1;
  assert_int_equal(sml_member_job_on_started(&two, 1, &start, &failure), SML_MEMBER_STEP_FAIL);
  assert_non_null(strstr(failure.detail, "disagree on which ranks are on one host"));
}

/* What one aggregator says the others must hear. */
static void test_a_lost_shard_is_told_to_the_others(void **state) {
  (void)state;
  bool is_first;
  uint64_t patience_ns;
  (void)begin_two();
  two.phase = SML_MEMBER_IS_RUNNING;
  failure = sml_member_failure(SML_ERR_AGGREGATOR_LOST, "why");
  assert_int_equal(sml_member_job_on_lost(&two, &failure, S, &is_first, &patience_ns), SML_MEMBER_STEP_FAIL);
  two.num_shards = 1;
  assert_int_equal(sml_member_job_on_lost(&two, &failure, S, &is_first, &patience_ns), SML_MEMBER_STEP_END);
}

/* ---- ranks that go ---- */

static void test_an_abort_ends_every_rank(void **state) {
  (void)state;
  for (uint32_t culprit = 0; culprit < 3; culprit++) {
    start_jobs(3, 0);
    for (uint32_t i = 0; i < 3; i++)
      if (i != culprit) assert_true(call(i));
    settle();
    abort_job(culprit, "the loss is NaN");
    settle();
    expect_all_failed(SML_ERR_ABORTED, "the loss is NaN");
    for (uint32_t i = 0; i < 3; i++) {
      assert_true(blames(i, culprit));
      if (i != culprit) expect_op(i, 0, OP_FAILED);
    }
  }
}

/* It may have done all that it had to do. */
static void test_a_rank_that_left_fails_the_next_call(void **state) {
  (void)state;
  start_jobs(3, 0);
  call_on_all();
  settle();
  wait_for(2 * S);
  sml_member_leave(&ranks[2].m, w.now_ns);
  settle();
  expect_all_summed(1);
  assert_false(call(0));
  settle();
  for (uint32_t i = 0; i < 2; i++) {
    expect_job_failure(i, SML_ERR_RANK_LOST, "rank 2");
    assert_true(blames(i, 2));
  }
}

static void test_a_rank_that_is_waited_for_is_lost_at_once(void **state) {
  (void)state;
  for (uint32_t is_killed = 0; is_killed < 2; is_killed++) {
    start_jobs(3, 0);
    for (uint32_t i = 0; i < 2; i++) assert_true(call(i));
    wait_for(S); /* it is known who has called */
    if (is_killed) {
      closed(ranks[2].conn, SML_CLOSED_RESET);
      ranks[2].is_stopped = true;
    } else {
      sml_member_leave(&ranks[2].m, w.now_ns);
    }
    settle();
    for (uint32_t i = 0; i < 2; i++) {
      expect_job_failure(i, SML_ERR_RANK_LOST, "rank 2");
      assert_true(blames(i, 2));
      expect_op(i, 0, OP_FAILED);
    }
  }
}

/* A stopped process is lost when its lease is over, and gets an error when it runs again. */
static void test_a_stopped_rank_is_lost_after_its_lease(void **state) {
  (void)state;
  for (uint32_t has_retry = 0; has_retry < 2; has_retry++) { /* which is for lost aggregators */
    start_jobs(3, has_retry ? RETRY_NS : 0);
    wait_for(S);
    ranks[2].is_stopped = true;
    for (uint32_t i = 0; i < 2; i++) assert_true(call(i));
    wait_for(LEASE_NS - 500 * MS);
    expect_op(0, 0, CALLED);
    wait_for(S);
    expect_all_failed(SML_ERR_RANK_LOST, "rank 2");
    ranks[2].is_stopped = false;
    settle();
    wait_for(S);
    expect_job_failure(2, SML_ERR_RANK_LOST, "rank 2");
  }
}

/* A new epoch needs every rank. */
static void test_a_rank_that_left_before_a_new_epoch(void **state) {
  (void)state;
  for (uint32_t has_asked = 0; has_asked < 2; has_asked++) {
    start_jobs(3, 0);
    for (uint32_t i = 0; i < 2; i++) workers[i].epoch_ops = 1;
    call_on_all();
    settle();
    for (uint32_t i = 0; has_asked && i < 2; i++) assert_true(call(i));
    settle();
    assert_int_equal(workers[0].j.phase, has_asked ? SML_MEMBER_IS_RENEWING : SML_MEMBER_IS_RUNNING);
    const struct sml_ctl_rank_gone gone = {.status = SML_ERR_RANK_LOST, .num_ranks = 1, .ranks = {2}};
    const enum sml_member_step step = sml_member_job_on_gone(&workers[0].j, &gone, false, &failure);
    assert_int_equal(step, has_asked ? SML_MEMBER_STEP_FAIL : SML_MEMBER_STEP_NONE);
    workers[0].j.phase = SML_MEMBER_IS_DRAINING;
    assert_int_equal(sml_member_job_on_pass(&workers[0].j, &failure), SML_MEMBER_STEP_FAIL);
    assert_string_equal(failure.detail, "rank 2 is gone");
    assert_int_equal(failure.ranks[0], 2);
  }
}

/* An aggregator in a rank's process goes with that rank, which may have done all that it had to do. */
static void test_a_host_takes_its_share_with_it(void **state) {
  (void)state;
  for (uint32_t is_outstanding = 0; is_outstanding < 2; is_outstanding++) {
    start_jobs(2, 0);
    for (uint32_t i = 0; i < 2; i++) workers[i].shard.process_rank = 0;
    if (is_outstanding) assert_true(call(1));
    lose_daemon();
    if (!is_outstanding) {
      assert_int_equal(workers[1].j.phase, SML_MEMBER_IS_RUNNING);
      assert_false(call(1));
    }
    expect_job_failure(1, SML_ERR_RANK_LOST, "rank 0 is gone, and with it its share of the sums: ");
    assert_int_equal(workers[1].j.error.num_ranks, 1);
    assert_true(blames(1, 0));
  }
}

static void test_why_an_operation_lacks_a_rank(void **state) {
  (void)state;
  (void)begin_two();
  failure = sml_member_job_lost_failure(&two, 2);
  assert_string_equal(failure.detail, "rank 2 is gone");
  two.has_gone_rank = true;
  two.gone = (struct sml_ctl_rank_gone){.num_ranks = 1, .ranks = {2}, .detail = "rank 2 has left"};
  failure = sml_member_job_lost_failure(&two, 2);
  assert_string_equal(failure.detail, "rank 2 has left");
  failure = sml_member_job_lost_failure(&two, 0);
  assert_string_equal(failure.detail, "rank 0 is gone");
  assert_int_equal(failure.ranks[0], 0);
}

/* ---- the aggregator goes ---- */

static void test_a_lost_aggregator_is_an_error(void **state) {
  (void)state;
  start_jobs(2, 0);
  assert_true(call(1));
  lose_daemon();
  expect_all_failed(SML_ERR_AGGREGATOR_LOST, "it has ended or was restarted");
  expect_op(1, 0, OP_FAILED);
}

static void test_an_aggregator_that_knows_nothing_any_more(void **state) {
  (void)state;
  start_jobs(2, 0);
  struct sml_member_sight sight = {.has_slot = true, .has_error_reply = true, .error_reply_ns = w.now_ns};
  assert_false(sml_member_late_is_unknown(&workers[0].j, &sight, w.now_ns + 3 * S, &failure)); /* nothing to lack */
  assert_true(call(0));
  assert_false(sml_member_late_is_unknown(&workers[0].j, &sight, w.now_ns + 2 * S - 1, &failure));
  assert_true(sml_member_late_is_unknown(&workers[0].j, &sight, w.now_ns + 2 * S, &failure));
  assert_string_equal(failure.detail, "the aggregator no longer knows job 'x': it was restarted");
  sight.has_error_reply = false;
  assert_false(sml_member_late_is_unknown(&workers[0].j, &sight, w.now_ns + 9 * S, &failure));
}

/* ---- retry ---- */

static void come_back_after(uint64_t time_ns) {
  wait_for(time_ns);
  begin_successor();
  wait_for(S);
}

static void test_operations_go_on_at_a_successor(void **state) {
  (void)state;
  start_jobs(3, RETRY_NS);
  call_on_all();
  settle();
  assert_true(call(0) && call(1));
  lose_daemon();
  for (uint32_t i = 0; i < 3; i++) assert_int_equal(workers[i].j.phase, SML_MEMBER_IS_REJOINING);
  assert_int_equal(workers[0].epoch, 0);
  assert_true(call(1)); /* it waits */
  expect_op(1, 1, CALLED);
  come_back_after(3 * S);
  assert_true(call(2) && call(2) && call(0));
  settle();
  expect_all_summed(3);
}

/* Rank 0 has results that rank 1 lacks: it contributes again, for rank 1 alone. */
static void test_a_rank_ahead_contributes_again(void **state) {
  (void)state;
  start_jobs(2, RETRY_NS);
  workers[1].loses_results = true;
  for (uint32_t n = 0; n < 4; n++) call_on_all();
  settle();
  wait_for(S);
  expect_op(0, 3, COMPLETED);
  expect_op(1, 0, CALLED);
  assert_non_null(workers[0].inputs.oldest); /* kept for it */
  lose_daemon();
  workers[1].loses_results = false;
  for (uint32_t round = 0; round < 3; round++) { /* successors that go before all is summed */
    workers[0].loses_results = workers[1].loses_results = round < 2;
    come_back_after(S);
    for (struct sml_member_operation *o = workers[0].j.oldest; o; o = o->next) assert_true(o->is_replay);
    assert_int_equal(sml_member_job_first_unfinished(&workers[0].j), 4); /* replays are no gaps */
    if (round < 2) assert_int_equal(workers[0].j.num_begun, 4);
    if (round < 2) lose_daemon();
  }
  expect_all_summed(4);
  wait_for(S);
  for (uint32_t i = 0; i < 2; i++) assert_null(workers[i].inputs.oldest); /* all have told */
  for (uint64_t n = 0; n < 4; n++) {
    assert_int_equal(op_at(0, n)->num_results, 2);
    assert_int_equal(op_at(1, n)->num_results, 1);
  }
}

/* Daemons go at any moment, results get lost, ranks are slow: every operation has its sum on every rank. */
static void run_disturbed(uint64_t seed) {
  struct sml_prng dice = {seed};
  start_jobs(3, 300 * S);
  for (uint32_t i = 0; i < 3; i++) workers[i].epoch_ops = 3 + (uint32_t)sml_prng_below(&dice, 8);
  for (uint32_t i = 1; i < 3; i++) workers[i].epoch_ops = workers[0].epoch_ops;
  bool is_away = false;
  for (uint32_t step = 0; step < 200; step++) {
    const uint32_t rank = (uint32_t)sml_prng_below(&dice, 3);
    if (workers[rank].j.next_number < 20) (void)call_within(rank, 1000 * S);
    workers[rank].loses_results = step < 150 && sml_prng_chance(&dice, 0.4);
    if (sml_prng_chance(&dice, 0.1)) {
      if (is_away) begin_successor();
      else lose_daemon();
      is_away = !is_away;
    }
    wait_for(sml_prng_below(&dice, 200) * MS);
  }
  for (uint32_t i = 0; i < 3; i++) workers[i].loses_results = false;
  if (is_away) begin_successor();
  for (uint32_t n = 0; n < 20; n++)
    for (uint32_t i = 0; i < 3; i++)
      if (workers[i].j.next_number <= n) assert_true(call(i));
  wait_for(5 * S);
  expect_all_summed(20);
}

static void test_results_are_those_of_an_undisturbed_run(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 60; seed++) run_disturbed(seed);
}

static void test_deadlines_stand_still_meanwhile(void **state) {
  (void)state;
  start_jobs(2, RETRY_NS);
  wait_for(S);
  assert_true(call_within(0, 5 * S));
  lose_daemon();
  come_back_after(10 * S);
  assert_int_equal(workers[0].j.phase, SML_MEMBER_IS_RUNNING);
  wait_for(3 * S); /* of the 5 s about 4 are left */
  assert_true(call(1));
  settle();
  expect_all_summed(1);
  assert_true(call_within(0, 5 * S));
  lose_daemon();
  come_back_after(10 * S);
  wait_for(5 * S);
  expect_all_failed(SML_ERR_TIMEOUT, "operation 1 timed out on rank 0 after 1");
  assert_int_equal(workers[1].j.error.operation, 1);
}

static void test_an_aggregator_that_stays_away(void **state) {
  (void)state;
  start_jobs(3, RETRY_NS);
  assert_true(call_within(0, 100 * S));
  lose_daemon();
  wait_for(RETRY_NS - S);
  expect_op(0, 0, CALLED);
  wait_for(2 * S);
  expect_all_failed(SML_ERR_AGGREGATOR_LOST,
                    "could not be joined again for 30 s (retry_ns): no aggregator at 10.0.0.9:4242");
  expect_op(0, 0, OP_FAILED);
}

/* Whoever does not come back is named. */
static void test_a_rank_that_ends_meanwhile_is_named(void **state) {
  (void)state;
  for (uint32_t is_killed = 0; is_killed < 2; is_killed++) {
    start_jobs(3, RETRY_NS);
    assert_true(call_within(0, 100 * S));
    lose_daemon();
    if (is_killed) ranks[1].is_stopped = true;
    else abort_job(1, "enough");
    settle();
    if (!is_killed) expect_job_failure(1, SML_ERR_ABORTED, "enough");
    come_back_after(S);
    wait_for(RETRY_NS);
    expect_job_failure(0, SML_ERR_TIMEOUT, "rank 1 of 3 has not joined");
    expect_job_failure(2, SML_ERR_TIMEOUT, "rank 1 of 3 has not joined");
  }
}

/* Rank 1 comes back as another process would: it lacks results of which the others have no inputs any more, or would
 * give others than rank 0 has. */
static void test_a_rank_that_started_anew_is_refused(void **state) {
  (void)state;
  for (uint32_t is_confirmed = 0; is_confirmed < 2; is_confirmed++) {
    start_jobs(2, RETRY_NS);
    call_on_all();
    settle();
    if (is_confirmed) wait_for(S);
    assert_true((workers[0].inputs.oldest == NULL) == is_confirmed);
    assert_true(call_within(0, 100 * S));
    lose_daemon();
    struct sml_member_options o = member_options(1, 2);
    begin_rank(1, &o);
    begin_worker(1, 2, RETRY_NS);
    wait_for(S);
    begin_successor();
    wait_for(3 * S);
    expect_job_failure(0, SML_ERR_REFUSED, is_confirmed ? "rank 1 has to repeat operation 0" : "can't go on: rank 1 ");
    expect_job_failure(1, SML_ERR_REFUSED, "rank 1 ");
  }
}

static void test_a_successor_of_another_shape(void **state) {
  (void)state;
  start_jobs(2, RETRY_NS);
  assert_true(call(0));
  for (uint32_t i = 0; i < 2; i++) workers[i].j.start.num_lanes++; /* as if there had been more */
  lose_daemon();
  come_back_after(S);
  expect_all_failed(SML_ERR_AGGREGATOR_LOST, "its successor came, but it gives another number of lanes");
}

/* It tells the others, whose aggregator is not lost: they fail with it, and do not try for retry_ns. */
static void test_one_rank_cannot_follow_a_successor(void **state) {
  (void)state;
  start_jobs(2, RETRY_NS);
  assert_true(call(0));
  workers[0].j.start.num_lanes++;
  lose_daemon();
  come_back_after(S);
  wait_for(3 * S);
  expect_job_failure(0, SML_ERR_AGGREGATOR_LOST, "its successor came, but it gives another number of lanes");
  expect_job_failure(1, SML_ERR_AGGREGATOR_LOST, "rank 0 (");
}

/* A stopped aggregator is lost like a killed one; when it goes on it is its own successor. */
static void test_a_stopped_aggregator_is_its_own_successor(void **state) {
  (void)state;
  start_jobs(3, RETRY_NS);
  call_on_all();
  wait_for(S);
  is_deaf = true;
  wait_for(2 * LEASE_NS);
  for (uint32_t i = 0; i < 3; i++) assert_int_equal(workers[i].j.phase, SML_MEMBER_IS_REJOINING);
  is_deaf = false;
  wait_for(5 * S);
  call_on_all();
  settle();
  expect_all_summed(2);
  assert_int_equal(workers[0].j.retry.num_rejoins, 1);
}

/* Operation 7 has numbers 7 to 9, of which the last is inserted when the first has ended; 10 is called meanwhile. */
static void test_what_is_inserted_later_holds_up_all_behind(void **state) {
  (void)state;
  struct sml_member_job j = {.phase = SML_MEMBER_IS_RUNNING, .next_number = 7};
  struct sml_member_reservation reserved, behind;
  struct sml_member_operation ops[4] = {{.number = 7}, {.number = 8}, {.number = 10}, {.number = 9}};
  sml_member_job_reserve(&j, &reserved, 3);
  sml_member_job_reserve(&j, &behind, 1);
  assert_int_equal(j.next_number, 11);
  assert_int_equal(sml_member_job_take_reserved(&j, &behind), 10);
  for (uint64_t i = 7; i < 9; i++) assert_int_equal(sml_member_job_take_reserved(&j, &reserved), i);
  for (uint32_t i = 0; i < 3; i++) sml_member_job_insert(&j, &ops[i]);
  for (uint32_t i = 0; i < 2; i++) {
    assert_ptr_equal(sml_member_job_next(&j, 4), &ops[i]);
    sml_member_job_begin(&j, &ops[i]);
  }
  assert_null(sml_member_job_next(&j, 4));
  assert_int_equal(sml_member_job_first_unfinished(&j), 7);
  for (uint32_t i = 0; i < 2; i++) assert_true(sml_member_job_end(&j, &ops[i], true));
  assert_int_equal(sml_member_job_first_unfinished(&j), 9); /* others must keep what they need for it */
  assert_null(sml_member_job_next(&j, 4));
  sml_member_job_insert(&j, &ops[3]);
  assert_int_equal(sml_member_job_take_reserved(&j, &reserved), 9);
  assert_null(j.reserved);
  assert_ptr_equal(sml_member_job_next(&j, 4), &ops[3]);
  sml_member_job_begin(&j, &ops[3]);
  assert_ptr_equal(sml_member_job_next(&j, 4), &ops[2]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_what_is_inserted_later_holds_up_all_behind),
      BOTH(test_operations_end_in_their_order),
      BOTH(test_full_epochs_are_renewed),
      BOTH(test_an_epoch_without_room),
      BOTH(test_an_epoch_that_nobody_asked_for),
      BOTH(test_no_memory_for_lanes),
      BOTH(test_the_first_failure_stays),
      cmocka_unit_test(test_the_last_shard_starts_the_job),
      cmocka_unit_test(test_shards_that_disagree),
      cmocka_unit_test(test_a_lost_shard_is_told_to_the_others),
      BOTH(test_an_abort_ends_every_rank),
      BOTH(test_a_rank_that_left_fails_the_next_call),
      BOTH(test_a_rank_that_is_waited_for_is_lost_at_once),
      BOTH(test_a_stopped_rank_is_lost_after_its_lease),
      BOTH(test_a_rank_that_left_before_a_new_epoch),
      BOTH(test_a_host_takes_its_share_with_it),
      cmocka_unit_test(test_why_an_operation_lacks_a_rank),
      BOTH(test_a_lost_aggregator_is_an_error),
      BOTH(test_an_aggregator_that_knows_nothing_any_more),
      BOTH(test_operations_go_on_at_a_successor),
      BOTH(test_a_rank_ahead_contributes_again),
      BOTH(test_results_are_those_of_an_undisturbed_run),
      BOTH(test_deadlines_stand_still_meanwhile),
      BOTH(test_an_aggregator_that_stays_away),
      BOTH(test_a_rank_that_ends_meanwhile_is_named),
      BOTH(test_a_rank_that_started_anew_is_refused),
      BOTH(test_a_successor_of_another_shape),
      BOTH(test_one_rank_cannot_follow_a_successor),
      BOTH(test_a_stopped_aggregator_is_its_own_successor),
  };
  return cmocka_run_group_tests(tests, NULL, end_world);
}
