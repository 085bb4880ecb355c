/* SPDX-License-Identifier: Apache-2.0
 * Ranks that contribute as one: what leaves a host, who is listened to, and which ranks an event names. That sums have
 * the same bits under loss is engine_allreduce_test's, which draws such worlds too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/test_world.h"

#define LIMIT_NS (60 * SML_NS_PER_S)
#define CHUNK_BYTES 256u

/* Two hosts of four ranks each. */
static struct world_options two_hosts(void) {
  return (struct world_options){.world_size = 8,
                                .num_lanes = 1,
                                .num_slots = 16,
                                .chunk_bytes = CHUNK_BYTES,
                                .num_operations = 4,
                                .num_contributors = 2,
                                .contributors = {0, 0, 0, 0, 1, 1, 1, 1},
                                .seed = 7};
}

static struct world_call *make_call(struct world *w, uint64_t num_elems, uint8_t type) {
  const struct world_call_options options = {.num_elems = num_elems, .type = type, .seed = num_elems};
  return world_call_create(w, &options);
}

static void expect_event(const struct world *w, enum sml_aggregator_event_kind kind, uint32_t rank_a,
                         uint32_t rank_b) {
  assert_int_equal(w->num_events, 1);
  assert_int_equal(w->events[0].kind, kind);
  assert_int_equal(w->events[0].rank_a, rank_a);
  assert_int_equal(w->events[0].rank_b, rank_b);
}

static void fail_leads(struct world *w, struct world_call *call) {
  for (uint32_t r = 0; r < w->options.world_size; r += 4) sml_lane_fail(w->jobs[0].lanes[r][0], SML_ERR_ABORTED);
  world_call_free(call);
  world_destroy(w);
}

/* Eight ranks of S bytes: 2 S into the aggregator and 2 S out of it, whatever the type. */
static void a_host_sends_its_tensor_once(void **state) {
  (void)state;
  for (uint32_t num_contributors = 0; num_contributors <= 2; num_contributors += 2) {
    struct world_options options = two_hosts();
    options.num_contributors = num_contributors;
    struct world *w = world_create_started(&options);
    struct world_port *aggregator = &w->aggregator_ports[0];
    const uint64_t rx_before = aggregator->io->stats.rx_frames, tx_before = aggregator->io->stats.tx_frames;
    struct world_call *call = make_call(w, 64 * CHUNK_BYTES / 4, SML_INT32);
    world_call_submit_all(call);
    assert_true(world_call_run(call, LIMIT_NS));
    assert_null(world_call_check(call));
    const uint64_t num_senders = num_contributors != 0 ? num_contributors : 8;
    assert_int_equal(aggregator->io->stats.rx_frames - rx_before, 64 * num_senders);
    assert_int_equal(aggregator->io->stats.tx_frames - tx_before, 64 * num_senders);
    world_call_free(call);
    world_destroy(w);
  }
}

/* The first contribution is the result. */
static void one_contributor_is_enough(void **state) {
  (void)state;
  struct world_options options = two_hosts();
  options.num_contributors = 1;
  memset(options.contributors, 0, sizeof options.contributors);
  struct world *w = world_create_started(&options);
  for (uint8_t type = SML_FLOAT32; type <= SML_INT32; type++) {
    struct world_call *call = make_call(w, 10000, type);
    world_call_submit_all(call);
    assert_true(world_call_run(call, LIMIT_NS));
    assert_null(world_call_check(call));
    world_call_free(call);
  }
  world_destroy(w);
}

static void the_missing_are_contributors(void **state) {
  (void)state;
  const struct world_options options = two_hosts();
  struct world *w = world_create_started(&options);
  struct world_call *call = make_call(w, 1000, SML_INT32);
  for (uint32_t r = 0; r < 7; r++) world_call_submit(call, r); /* of the second host one lacks */
  const uint64_t until_ns = w->now_ns + SML_NS_PER_S;
  while (w->now_ns < until_ns) assert_true(world_pass(w));
  struct sml_lane_snapshot s;
  sml_lane_snapshot(w->jobs[0].lanes[0][0], &s);
  assert_int_equal(s.num_missing, 1);
  assert_int_equal(s.missing[0], 1);
  world_call_submit(call, 7);
  assert_true(world_call_run(call, LIMIT_NS));
  assert_null(world_call_check(call));
  world_call_free(call);
  world_destroy(w);
}

/* One that does not lead is lost: its host is not waited for any more, and it is the one that is named. */
static void a_contributor_departs_with_any_of_its_ranks(void **state) {
  (void)state;
  for (uint32_t is_late = 0; is_late < 2; is_late++) {
    const struct world_options options = two_hosts();
    struct world *w = world_create_started(&options);
    struct world_call *call = make_call(w, 1000, SML_INT32);
    if (is_late) world_depart(w, 0, 6);
    assert_int_equal(w->num_events, 0);
    for (uint32_t r = 0; r < 4; r++) world_call_submit(call, r);
    for (int i = 0; i < 10; i++) assert_true(world_pass(w));
    if (!is_late) world_depart(w, 0, 6);
    expect_event(w, SML_EVENT_BLOCKED, 6, is_late ? 0 : 6);
    assert_int_equal(world_drops(w, SML_DROP_DEPARTED_RANK), 0);
    fail_leads(w, call);
  }
}

/* Who still lacks a result that is complete gets it, also where another rank of its host has left. */
static void a_lead_is_answered_as_long_as_it_is_there(void **state) {
  (void)state;
  const struct world_options options = two_hosts();
  struct world *w = world_create_started(&options);
  struct world_call *call = make_call(w, 16, SML_INT32);
  world_call_submit_all(call);
  assert_true(world_call_run(call, LIMIT_NS));
  world_depart(w, 0, 5);
  const struct sml_header probe = {.type = SML_PACKET_PROBE,
                                   .job = w->jobs[0].number,
                                   .epoch = w->jobs[0].epoch,
                                   .rank = 1,
                                   .slot = w->jobs[0].worker.slot_base,
                                   .phase = SML_FIRST_PHASE,
                                   .tag = sml_tag(sml_tag_base(&call->parts[0].operation.plan, CHUNK_BYTES, 1), 0)};
  const uint64_t before = w->aggregator_ports[0].io->stats.tx_frames;
  world_send(&w->worker_ports[4][0], &probe, NULL, &w->aggregator_ports[0].addr);
  world_settle(w, SML_NS_PER_MS);
  assert_int_equal(w->aggregator_ports[0].io->stats.tx_frames - before, 1);
  assert_int_equal(w->num_events, 0);
  world_depart(w, 0, 4);
  world_send(&w->worker_ports[4][0], &probe, NULL, &w->aggregator_ports[0].addr);
  world_settle(w, SML_NS_PER_MS);
  assert_int_equal(world_drops(w, SML_DROP_DEPARTED_RANK), 1);
  world_call_free(call);
  world_destroy(w);
}

static void events_name_ranks_that_lead(void **state) {
  (void)state;
  for (uint32_t is_jump = 0; is_jump < 2; is_jump++) {
    const struct world_options options = two_hosts();
    struct world *w = world_create_started(&options);
    struct world_call *call = make_call(w, 1000, SML_INT32);
    for (uint32_t r = 0; r < 4; r++) world_call_submit(call, r);
    for (int i = 0; i < 10; i++) assert_true(world_pass(w));
    const struct sml_header probe = {.type = SML_PACKET_PROBE,
                                     .job = w->jobs[0].number,
                                     .epoch = w->jobs[0].epoch,
                                     .rank = 1,
                                     .slot = w->jobs[0].worker.slot_base,
                                     .phase = SML_FIRST_PHASE + 2 * is_jump,
                                     .tag = 1};
    world_send(&w->worker_ports[4][0], &probe, NULL, &w->aggregator_ports[0].addr);
    for (int i = 0; i < 10; i++) assert_true(world_pass(w));
    if (is_jump) expect_event(w, SML_EVENT_JUMP, 4, 4);
    else expect_event(w, SML_EVENT_MISMATCH, 4, 0);
    fail_leads(w, call);
  }
}

static void only_leads_are_listened_to(void **state) {
  (void)state;
  const struct world_options options = two_hosts();
  struct world *w = world_create_started(&options);
  struct sml_header probe = {.type = SML_PACKET_PROBE,
                             .job = w->jobs[0].number,
                             .epoch = w->jobs[0].epoch,
                             .slot = w->jobs[0].worker.slot_base,
                             .phase = SML_FIRST_PHASE};
  for (uint16_t contributor = 0; contributor < 8; contributor++) { /* from each rank, as each of them */
    for (uint32_t r = 0; r < 8; r++) {
      probe.rank = contributor;
      world_send(&w->worker_ports[r][0], &probe, NULL, &w->aggregator_ports[0].addr);
    }
  }
  const uint64_t before = w->aggregator_ports[0].io->stats.tx_frames;
  world_settle(w, SML_NS_PER_MS);
  assert_int_equal(world_drops(w, SML_DROP_BAD_RANK), 6 * 8);
  assert_int_equal(world_drops(w, SML_DROP_WRONG_SOURCE), 2 * 7);
  assert_int_equal(w->aggregator_ports[0].io->stats.tx_frames - before, 2);
  world_destroy(w);
}

/* A HELLO that comes again behind START is a rank's, and moves nobody's address. */
static void late_hellos_are_harmless(void **state) {
  (void)state;
  const struct world_options options = two_hosts();
  struct world *w = world_create_started(&options);
  for (uint16_t r = 0; r < 8; r++) {
    uint8_t nonce[8];
    sml_store_be64(nonce, w->jobs[0].nonces[r][0]);
    const struct sml_header h = {.type = SML_PACKET_HELLO,
                                 .job = w->jobs[0].number,
                                 .epoch = w->jobs[0].epoch,
                                 .rank = r,
                                 .payload_bytes = sizeof nonce};
    world_send(&w->worker_ports[r][0], &h, nonce, &w->aggregator_ports[0].addr);
  }
  world_settle(w, SML_NS_PER_MS);
  struct world_call *call = make_call(w, 5000, SML_FLOAT32);
  world_call_submit_all(call);
  assert_true(world_call_run(call, LIMIT_NS));
  assert_null(world_call_check(call));
  world_call_free(call);
  world_destroy(w);
}

static void a_new_epoch_has_the_same_contributors(void **state) {
  (void)state;
  struct world_options options = two_hosts();
  options.faults.loss = 0.05;
  options.faults.duplicate = 0.05;
  struct world *w = world_create_started(&options);
  for (uint32_t epoch = 1; epoch < 4; epoch++) {
    struct world_call *call = make_call(w, 3000, SML_FLOAT32);
    world_call_submit_all(call);
    assert_true(world_call_run(call, LIMIT_NS));
    assert_null(world_call_check(call));
    world_call_free(call);
    world_settle(w, SML_NS_PER_S);
    world_restart_job(w, 0, w->jobs[0].epoch + epoch);
  }
  world_destroy(w);
}

/* The aggregator adds one contribution twice: its check word says so, as between ranks. */
static void a_wrong_sum_of_contributors_is_seen(void **state) {
  (void)state;
  const struct world_options options = two_hosts();
  struct world *w = world_create_started(&options);
  struct world_call *call = make_call(w, 16, SML_INT32);
  for (uint32_t r = 0; r < 4; r++) world_call_submit(call, r);
  for (int i = 0; i < 10; i++) assert_true(world_pass(w));
  int32_t *values = sml_aggregator_values(w->jobs[0].states[0], 0);
  for (uint32_t i = 0; i <= 16; i++) values[i] = (int32_t)(2 * (uint32_t)values[i]);
  for (uint32_t r = 4; r < 8; r++) world_call_submit(call, r);
  assert_true(world_call_run(call, LIMIT_NS));
  for (uint32_t r = 0; r < 8; r++) assert_null(world_call_check_failed(call, r, SML_ERR_INTEGRITY));
  world_call_free(call);
  world_destroy(w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_host_sends_its_tensor_once),
      cmocka_unit_test(one_contributor_is_enough),
      cmocka_unit_test(the_missing_are_contributors),
      cmocka_unit_test(a_contributor_departs_with_any_of_its_ranks),
      cmocka_unit_test(a_lead_is_answered_as_long_as_it_is_there),
      cmocka_unit_test(events_name_ranks_that_lead),
      cmocka_unit_test(only_leads_are_listened_to),
      cmocka_unit_test(late_hellos_are_harmless),
      cmocka_unit_test(a_new_epoch_has_the_same_contributors),
      cmocka_unit_test(a_wrong_sum_of_contributors_is_seen),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
