/* SPDX-License-Identifier: Apache-2.0
 * Ranks that leave, lanes that fail, jobs that end while others go on, and members that lie. Each operation
 * ends exactly once, no buffer is touched afterwards, and another job never notices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/test_world.h"

#define LIMIT_NS (60 * SML_NS_PER_S)
#define CHUNK_BYTES 64u
#define CHUNK_ELEMS (CHUNK_BYTES / 4)

static struct world_options small_world(uint32_t world_size, uint64_t seed) {
  return (struct world_options){.world_size = world_size,
                                .num_lanes = 1,
                                .num_slots = 4,
                                .chunk_bytes = CHUNK_BYTES,
                                .num_operations = 4,
                                .seed = seed};
}

static struct world_call *make_call(struct world *w, uint32_t j, uint64_t num_elems, uint64_t seed) {
  const struct world_call_options options = {.job = j,
                                             .num_elems = num_elems,
                                             .type = seed % 3 == 0 ? SML_INT32 : SML_FLOAT32,
                                             .is_in_place = seed % 2 == 0,
                                             .seed = seed};
  return world_call_create(w, &options);
}

static void expect_exact(struct world_call *call) {
  assert_true(world_call_run(call, LIMIT_NS));
  const char *problem = world_call_check(call);
  if (problem != NULL)
    fail_msg("%s: job %u, seed %llu", problem, call->options.job, (unsigned long long)call->options.seed);
  world_call_free(call);
}

static void expect_event(const struct world *w, uint32_t index, enum sml_aggregator_event_kind kind, uint32_t rank_a,
                         uint32_t rank_b) {
  assert_true(index < w->num_events);
  assert_int_equal(w->events[index].kind, kind);
  assert_int_equal(w->events[index].rank_a, rank_a);
  assert_int_equal(w->events[index].rank_b, rank_b);
}

/* The lanes of the ranks that still wait are failed, as the control plane does. */
static void fail_rank(struct world *w, uint32_t j, uint32_t rank, int32_t status) {
  for (uint32_t l = 0; l < w->options.num_lanes; l++) sml_lane_fail(w->jobs[j].lanes[rank][l], status);
}

/* ---- ranks that leave ---- */

static void a_rank_that_leaves_blocks_what_waits_for_it(void **state) {
  (void)state;
  const struct world_options options = small_world(3, 1);
  struct world *w = world_create_started(&options);
  struct world_call *call = make_call(w, 0, 20 * CHUNK_ELEMS, 1);
  world_call_submit(call, 0);
  world_call_submit(call, 2);
  for (int i = 0; i < 10; i++) assert_true(world_pass(w));
  assert_int_equal(w->num_events, 0);
  world_depart(w, 0, 1);
  assert_int_equal(w->num_events, 1);
  expect_event(w, 0, SML_EVENT_BLOCKED, 1, 1);
  for (int i = 0; i < 100; i++) assert_true(world_pass(w));
  assert_int_equal(w->num_events, 1); /* said once */
  struct sml_lane_snapshot s;
  sml_lane_snapshot(w->jobs[0].lanes[0][0], &s);
  assert_int_equal(s.num_missing, 1); /* who was missed is known here as well */
  assert_int_equal(s.missing[0], 1);
  for (uint32_t r = 0; r < 3; r += 2) {
    fail_rank(w, 0, r, SML_ERR_RANK_LOST);
    assert_null(world_call_check_failed(call, r, SML_ERR_RANK_LOST));
  }
  /* What the departed rank says now is refused. */
  const uint64_t drops = world_drops(w, SML_DROP_DEPARTED_RANK);
  world_call_submit(call, 1);
  for (int i = 0; i < 10; i++) assert_true(world_pass(w));
  assert_true(world_drops(w, SML_DROP_DEPARTED_RANK) > drops);
  assert_int_equal(call->parts[1].num_ended, 0);
  fail_rank(w, 0, 1, SML_ERR_ABORTED);
  assert_null(world_call_check_failed(call, 1, SML_ERR_ABORTED));
  world_call_free(call);
  world_destroy(w);
}

static void a_rank_that_leaves_between_operations_blocks_the_next(void **state) {
  (void)state;
  const struct world_options options = small_world(3, 2);
  struct world *w = world_create_started(&options);
  struct world_call *call = make_call(w, 0, 100, 1);
  world_call_submit_all(call);
  expect_exact(call);
  world_depart(w, 0, 2);
  world_depart(w, 0, 2);
  world_settle(w, SML_NS_PER_S);
  assert_int_equal(w->num_events, 0);
  /* A hello does not bring it back. */
  uint8_t nonce[8];
  sml_store_be64(nonce, w->jobs[0].nonces[2][0]);
  const struct sml_header h = {
      .type = SML_PACKET_HELLO, .epoch = w->jobs[0].epoch, .rank = 2, .payload_bytes = sizeof nonce};
  world_send(&w->worker_ports[2][0], &h, nonce, &w->aggregator_ports[0].addr);
  world_settle(w, SML_NS_PER_MS);
  assert_int_equal(world_drops(w, SML_DROP_DEPARTED_RANK), 1);

  call = make_call(w, 0, 100, 2);
  world_call_submit(call, 1);
  for (int i = 0; i < 50; i++) assert_true(world_pass(w));
  assert_int_equal(w->num_events, 1);
  expect_event(w, 0, SML_EVENT_BLOCKED, 2, 1);
  fail_rank(w, 0, 1, SML_ERR_RANK_LOST);
  assert_null(world_call_check_failed(call, 1, SML_ERR_RANK_LOST));
  world_call_free(call);
  world_destroy(w);
}

/* Not even a new epoch brings a departed rank back. */
static void a_rank_that_left_is_missed_in_the_next_epoch(void **state) {
  (void)state;
  const struct world_options options = small_world(2, 3);
  struct world *w = world_create_started(&options);
  for (uint32_t epoch = 5; epoch < 7; epoch++) {
    world_depart(w, 0, 0);
    world_restart_job(w, 0, epoch);
    struct world_call *call = make_call(w, 0, 100, epoch);
    world_call_submit(call, 1);
    for (int i = 0; i < 20; i++) assert_true(world_pass(w));
    assert_int_equal(w->num_events, epoch - 4);
    expect_event(w, epoch - 5, SML_EVENT_BLOCKED, 0, 1);
    assert_int_equal(w->events[epoch - 5].epoch, epoch);
    sml_lane_detach(w->workers[1][0], w->jobs[0].lanes[1][0]);
    assert_null(world_call_check_failed(call, 1, SML_ERR_ABORTED));
    world_call_free(call);
    /* A lane that failed stays so; the next epoch has a new one. */
    sml_lane_destroy(w->jobs[0].lanes[1][0]);
    struct sml_worker_options worker = w->jobs[0].worker;
    worker.rank = 1;
    w->jobs[0].lanes[1][0] = sml_lane_create(
        &(struct sml_lane_options){.worker = worker, .aggregator = w->aggregator_ports[0].addr, .num_operations = 4});
    assert_true(sml_lane_attach(w->workers[1][0], w->jobs[0].lanes[1][0]));
  }
  world_destroy(w);
}

static bool lose_results_of_rank_2(void *user, const struct world_port *to, const uint8_t *data, uint32_t num_bytes) {
  (void)data;
  (void)num_bytes;
  return *(const bool *)user && !to->is_aggregator && to->rank == 2;
}

/* A rank that has the sum may go; those that lack a result of it still get it. */
static void a_rank_that_leaves_after_the_sum_blocks_nobody(void **state) {
  (void)state;
  bool is_losing = false;
  struct world_options options = small_world(3, 4);
  options.on_frame = lose_results_of_rank_2;
  options.user = &is_losing;
  struct world *w = world_create_started(&options);
  is_losing = true;
  struct world_call *call = make_call(w, 0, 2 * CHUNK_ELEMS, 3); /* int32: at once, in as many slots */
  world_call_submit_all(call);
  for (int i = 0; i < 20; i++) assert_true(world_pass(w));
  assert_int_equal(call->parts[0].num_ended + call->parts[1].num_ended, 2);
  assert_int_equal(call->parts[2].num_ended, 0);
  world_depart(w, 0, 0);
  world_depart(w, 0, 1);
  is_losing = false;
  expect_exact(call);
  assert_int_equal(w->num_events, 0);
  world_destroy(w);
}

/* The aggregator forgot the job: whoever waits is told. It forgot the key as well, so an answer that could be
 * anybody's is what a keyed lane gets; the end of the control connection must tell it. */
static void an_aggregator_that_restarted_says_so(void **state) {
  const bool is_keyed = *state != NULL;
  struct world_options options = small_world(2, 5);
  options.is_unkeyed = !is_keyed;
  struct world *w = world_create_started(&options);
  struct world_job *job = &w->jobs[0];
  struct world_call *call = make_call(w, 0, 100, 1);
  world_call_submit(call, 0);
  for (int i = 0; i < 5; i++) assert_true(world_pass(w));
  free(sml_aggregator_engine_close_job(w->aggregators[0], job->number));
  struct sml_lane_snapshot s;
  for (int i = 0; i < 50; i++) assert_true(world_pass(w));
  sml_lane_snapshot(job->lanes[0][0], &s);
  assert_int_equal(s.has_error_reply, !is_keyed);
  assert_int_equal(s.num_drops[SML_DROP_BAD_KEY] > 0, is_keyed);
  assert_true(world_drops(w, SML_DROP_UNKNOWN_JOB) > 0);
  /* To be closed. */
  assert_true(sml_aggregator_engine_open_job(w->aggregators[0], job->number, job->epoch + 1, 2, NULL));
  fail_rank(w, 0, 0, SML_ERR_AGGREGATOR_LOST);
  assert_null(world_call_check_failed(call, 0, SML_ERR_AGGREGATOR_LOST));
  world_call_free(call);
  world_destroy(w);
}

/* ---- ranks that call different operations ---- */

static void different_operations_are_reported_with_both_ranks(void **state) {
  (void)state;
  for (uint32_t what = 0; what < 5; what++) {
    const struct world_options options = small_world(3, 20 + what);
    struct world *w = world_create_started(&options);
    struct world_call *call = make_call(w, 0, 100, 1), *same = make_call(w, 0, 100, 3);
    world_call_submit_all(same);
    struct sml_operation_plan *plan = &call->parts[1].operation.plan;
    if (what == 0) plan->key = 1;
    if (what == 1) plan->num_elems = 99;
    if (what == 2) plan->reduction = SML_AVG;
    if (what == 3) plan->type = SML_INT32, plan->block_elems = 0;
    if (what == 4) plan->number = 9;
    world_call_submit_all(call);
    for (int i = 0; i < 200; i++) assert_true(world_pass(w));
    assert_null(world_call_check(same)); /* the one before was the same on all ranks */
    assert_int_equal(w->num_events, 1);
    assert_int_equal(w->events[0].kind, SML_EVENT_MISMATCH);
    const bool has_first = w->events[0].rank_a == 1 || w->events[0].rank_b == 1;
    assert_true(has_first && w->events[0].rank_a != w->events[0].rank_b);
    for (uint32_t r = 0; r < 3; r++) {
      fail_rank(w, 0, r, SML_ERR_MISMATCH);
      assert_null(world_call_check_failed(call, r, SML_ERR_MISMATCH));
    }
    world_call_free(call);
    world_call_free(same);
    world_destroy(w);
  }
}

/* ---- lanes that fail ---- */

#define NUM_CALLS 6u

/* Several operations in flight and more than the lane admits; lanes fail, one after the other, somewhere. */
static void every_operation_of_a_failed_lane_ends_once(void **state) {
  (void)state;
  for (uint32_t trial = 0; trial < 200; trial++) {
    struct world_options options = small_world(2, 1000 + trial);
    struct sml_prng prng = {trial};
    options.num_lanes = 1 + trial % 3;
    options.num_operations = 8;
    options.faults = (struct sml_fault_options){.loss = 0.02, .duplicate = 0.1, .reorder = 0.2, .reorder_frames = 8};
    struct world *w = world_create_started(&options);
    struct world_call *calls[NUM_CALLS], *late = NULL;
    bool had_ended[NUM_CALLS];
    for (uint32_t c = 0; c < NUM_CALLS; c++) {
      calls[c] = make_call(w, 0, 1 + sml_prng_below(&prng, 60 * CHUNK_ELEMS), c + trial);
      world_call_submit_all(calls[c]);
    }
    late = make_call(w, 0, 50, trial);
    for (uint64_t i = sml_prng_below(&prng, 60); i > 0; i--) (void)world_pass(w);
    for (uint32_t c = 0; c < NUM_CALLS; c++) had_ended[c] = calls[c]->parts[0].num_ended == 1;
    for (uint32_t l = 0; l < options.num_lanes; l++) {
      sml_lane_fail(w->jobs[0].lanes[0][l], SML_ERR_RANK_LOST);
      (void)world_pass(w);
      sml_lane_fail(w->jobs[0].lanes[0][l], SML_ERR_TIMEOUT); /* the first status stays */
    }
    world_call_submit(late, 0);
    for (int i = 0; i < 50; i++) (void)world_pass(w); /* the other rank goes on asking */
    for (uint32_t c = 0; c < NUM_CALLS; c++) {
      const struct world_part *part = &calls[c]->parts[0];
      assert_int_equal(part->num_ended, 1);
      if (had_ended[c] || part->operation.status == SML_OK) assert_int_equal(part->operation.status, SML_OK);
      else assert_null(world_call_check_failed(calls[c], 0, SML_ERR_RANK_LOST));
    }
    assert_null(world_call_check_failed(late, 0, SML_ERR_RANK_LOST));
    for (uint32_t l = 0; l < options.num_lanes; l++) sml_lane_fail(w->jobs[0].lanes[1][l], SML_ERR_RANK_LOST);
    for (uint32_t c = 0; c < NUM_CALLS; c++) {
      assert_int_equal(calls[c]->parts[1].num_ended, 1);
      world_call_free(calls[c]);
    }
    world_call_free(late);
    world_destroy(w);
  }
}

/* ---- several jobs ---- */

static void run_job(struct world *w, uint32_t j, uint32_t epoch) {
  world_open_job(w, j, epoch);
  assert_true(world_exchange_hellos(w, j));
  world_start_job(w, j);
}

/* Three jobs on the same engines; the middle one is closed under way, and comes again. */
static void a_job_that_ends_does_not_touch_the_others(void **state) {
  (void)state;
  for (uint32_t trial = 0; trial < 40; trial++) {
    struct world_options options = small_world(3, 2000 + trial);
    struct sml_prng prng = {trial};
    options.num_lanes = 1 + trial % 2;
    options.faults = (struct sml_fault_options){.loss = 0.02, .duplicate = 0.1, .reorder = 0.2, .reorder_frames = 20};
    struct world *w = world_create(&options);
    for (uint32_t j = 0; j < 3; j++) run_job(w, j, 100 + j);
    for (uint32_t round = 0; round < 3; round++) {
      struct world_call *calls[3];
      for (uint32_t j = 0; j < 3; j++) {
        calls[j] = make_call(w, j, (j == 1 ? 400 : 40) * CHUNK_ELEMS, round + j);
        world_call_submit_all(calls[j]);
      }
      for (uint64_t i = sml_prng_below(&prng, 40); i > 0; i--) assert_true(world_pass(w));
      world_close_job(w, 1);
      for (uint32_t r = 0; r < 3; r++) assert_int_equal(calls[1]->parts[r].num_ended, 1);
      expect_exact(calls[0]);
      expect_exact(calls[2]);
      for (uint32_t r = 0; r < 3; r++) {
        if (calls[1]->parts[r].operation.status == SML_OK) continue;
        assert_null(world_call_check_failed(calls[1], r, SML_ERR_ABORTED));
      }
      world_call_free(calls[1]);
      run_job(w, 1, 200 + round); /* the same number, with what is left of the old one under way */
    }
    assert_int_equal(w->num_events, 0);
    world_destroy(w);
  }
}

/* The time that a few operations of job 1 take, all exact. */
static uint64_t time_of_job_1(struct world *w) {
  const uint64_t start_ns = w->now_ns;
  for (uint32_t i = 0; i < 4; i++) {
    struct world_call *call = make_call(w, 1, 300 * CHUNK_ELEMS, i);
    world_call_submit_all(call);
    expect_exact(call);
  }
  return w->now_ns - start_ns;
}

/* All slots of job 0 wait for a rank that is late. Job 1, on the same engines and ports, is as fast as alone. */
static void a_job_whose_slots_all_wait_does_not_slow_another(void **state) {
  (void)state;
  struct world_options options = small_world(3, 7);
  options.num_slots = 16;
  struct world *w = world_create_started(&options);
  run_job(w, 1, 101);
  const uint64_t alone_ns = time_of_job_1(w);
  struct world_call *late = make_call(w, 0, 500 * CHUNK_ELEMS, 9);
  world_call_submit(late, 0);
  world_call_submit(late, 2);
  for (uint32_t i = 0; i < 200; i++) assert_true(world_pass(w));
  struct sml_rank_look ranks[3] = {0};
  struct sml_job_look look = {.world_size = 3, .num_lanes = 1, .ranks = ranks};
  sml_aggregator_engine_look(w->aggregators[0], w->jobs[0].number, &look);
  assert_int_equal(look.slots_waiting, 16);
  assert_int_equal(look.most_contributions, 2);
  const uint64_t beside_ns = time_of_job_1(w);
  if (beside_ns > alone_ns + alone_ns / 10)
    fail_msg("%llu ns beside a full lane, %llu alone", (unsigned long long)beside_ns, (unsigned long long)alone_ns);
  assert_false(world_call_has_ended(late));
  world_call_submit(late, 1);
  expect_exact(late);
  world_destroy(w);
}

int main(void) {
  bool is_keyed = true;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_rank_that_leaves_blocks_what_waits_for_it),
      cmocka_unit_test(a_rank_that_leaves_between_operations_blocks_the_next),
      cmocka_unit_test(a_rank_that_left_is_missed_in_the_next_epoch),
      cmocka_unit_test(a_rank_that_leaves_after_the_sum_blocks_nobody),
      cmocka_unit_test(an_aggregator_that_restarted_says_so),
      cmocka_unit_test_prestate(an_aggregator_that_restarted_says_so, &is_keyed),
      cmocka_unit_test(different_operations_are_reported_with_both_ranks),
      cmocka_unit_test(every_operation_of_a_failed_lane_ends_once),
      cmocka_unit_test(a_job_that_ends_does_not_touch_the_others),
      cmocka_unit_test(a_job_whose_slots_all_wait_does_not_slow_another),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
