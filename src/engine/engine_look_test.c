/* SPDX-License-Identifier: Apache-2.0
 * What an aggregator's engine tells people about a job. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/test_world.h"

#define LIMIT_NS (60 * SML_NS_PER_S)
#define CHUNK_ELEMS 16u

static struct sml_rank_look ranks[8];

static struct sml_job_look look_at(struct world *w) {
  memset(ranks, 0, sizeof ranks);
  struct sml_job_look look = {
      .world_size = w->options.world_size, .num_lanes = w->options.num_lanes, .ranks = ranks};
  for (uint32_t l = 0; l < w->options.num_lanes; l++)
    sml_aggregator_engine_look(w->aggregators[l], w->jobs[0].number, &look);
  return look;
}

static struct world *make_world(uint32_t num_lanes, uint32_t num_slots) {
  const struct world_options options = {.world_size = 3,
                                        .num_lanes = num_lanes,
                                        .num_slots = num_slots,
                                        .chunk_bytes = 4 * CHUNK_ELEMS,
                                        .num_operations = 4,
                                        .seed = 5};
  return world_create_started(&options);
}

static struct world_call *make_call(struct world *w, uint64_t num_elems) {
  const struct world_call_options options = {.num_elems = num_elems, .type = SML_INT32, .seed = 3};
  return world_call_create(w, &options);
}

static void test_slots_that_wait(void **state) {
  (void)state;
  struct world *w = make_world(2, 8);
  struct sml_job_look look = look_at(w);
  assert_int_equal(look.num_cells, 16);
  for (uint32_t i = 0; i < 16; i++) assert_int_equal(look.cells[i], SML_CELL_UNUSED);
  assert_int_equal(look.progress_ns, 0);
  for (uint32_t r = 0; r < 3; r++) { /* of both lanes, before the job started */
    assert_in_range(ranks[r].traffic.num_hellos, 2, 100);
    assert_int_equal(ranks[r].traffic.hello_bytes, sml_head_bytes(w->jobs[0].seal.is_keyed) + 4 * CHUNK_ELEMS);
  }
  struct world_call *call = make_call(w, 12 * CHUNK_ELEMS); /* 6 chunks a lane */
  world_call_submit(call, 0);
  world_call_submit(call, 2);
  for (int i = 0; i < 10; i++) world_pass(w);
  look = look_at(w);
  assert_int_equal(look.slots_waiting, 12);
  assert_int_equal(look.least_contributions, 2);
  assert_int_equal(look.most_contributions, 2);
  assert_int_equal(look.num_results, 0);
  assert_int_equal(ranks[1].slots_missing, 12);
  assert_int_equal(ranks[0].slots_missing + ranks[2].slots_missing, 0);
  assert_true(ranks[0].traffic.num_packets >= 12 && ranks[1].traffic.num_packets == 0);
  assert_true(ranks[0].traffic.num_bytes >= 12 * 4 * CHUNK_ELEMS);
  for (uint32_t lane = 0; lane < 2; lane++)
    for (uint32_t i = 0; i < 8; i++)
      assert_int_equal(look.cells[8 * lane + i], i < 6 ? 2 * 8 / 3 : SML_CELL_UNUSED);
  world_call_submit(call, 1);
  assert_true(world_call_run(call, LIMIT_NS));
  look = look_at(w);
  assert_int_equal(look.slots_waiting, 0);
  assert_int_equal(look.num_results, 12);
  assert_int_equal(ranks[1].slots_missing, 0);
  assert_int_equal(look.cells[0], SML_CELL_COMPLETE);
  assert_in_range(look.progress_ns, 1, w->now_ns);
  world_call_free(call);
  world_destroy(w);
}

/* Who computes for a minute between two operations makes no slot wait. */
static void test_slots_wait_since_the_first_update(void **state) {
  (void)state;
  struct world *w = make_world(1, 8);
  struct world_call *call = make_call(w, 12 * CHUNK_ELEMS);
  for (uint32_t r = 0; r < 3; r++) world_call_submit(call, r);
  assert_true(world_call_run(call, LIMIT_NS));
  struct sml_job_look look = look_at(w);
  assert_true(look.opened_ns <= look.progress_ns);
  w->now_ns += 60 * SML_NS_PER_S;
  const uint64_t begin_ns = w->now_ns;
  struct world_call *next = make_call(w, 4 * CHUNK_ELEMS);
  world_call_submit(next, 1);
  for (int i = 0; i < 10; i++) world_pass(w);
  look = look_at(w);
  assert_int_equal(look.slots_waiting, 4);
  assert_true(look.progress_ns < begin_ns);
  assert_in_range(look.opened_ns, begin_ns, w->now_ns);
  world_call_submit(next, 0);
  world_call_submit(next, 2);
  assert_true(world_call_run(next, LIMIT_NS));
  world_call_free(call);
  world_call_free(next);
  world_destroy(w);
}

static void test_waits_are_sorted(void **state) {
  (void)state;
  static const struct {
    uint64_t wait_ns;
    uint32_t i;
  } cases[] = {{0, 0},     {1, 0},     {16000, 0}, {16001, 1},
               {32000, 1}, {32001, 2}, {SML_WAIT_BOUND_NS(19), 19}, {SML_WAIT_BOUND_NS(19) + 1, 20}, {UINT64_MAX, 20}};
  for (size_t c = 0; c < SML_ARRAY_LEN(cases); c++) {
    struct sml_waits waits = {0};
    sml_waits_note(&waits, cases[c].wait_ns);
    assert_int_equal(waits.num[cases[c].i], 1);
    assert_int_equal(waits.total_ns, cases[c].wait_ns);
  }
}

/* The chunk of slot 0 waits for rank 1, which computes for 100 ms; nobody waits for what all send at once. */
static void test_how_long_chunks_wait(void **state) {
  (void)state;
  struct world *w = make_world(1, 8);
  struct world_call *call = make_call(w, 8 * CHUNK_ELEMS);
  world_call_submit(call, 0);
  world_call_submit(call, 2);
  for (int i = 0; i < 10; i++) world_pass(w);
  assert_int_equal(look_at(w).waits.total_ns, 0);
  w->now_ns += 100 * SML_NS_PER_MS;
  world_call_submit(call, 1);
  assert_true(world_call_run(call, LIMIT_NS));
  const struct sml_waits waits = look_at(w).waits;
  assert_in_range(waits.total_ns, 100 * SML_NS_PER_MS, SML_WAIT_BOUND_NS(13));
  for (uint32_t i = 0; i < SML_NUM_WAITS; i++) assert_int_equal(waits.num[i], i == 13); /* 65.5 to 131 ms */
  struct world_call *next = make_call(w, 8 * CHUNK_ELEMS);
  for (uint32_t r = 0; r < 3; r++) world_call_submit(next, r);
  assert_true(world_call_run(next, LIMIT_NS));
  const struct sml_waits after = look_at(w).waits;
  assert_int_equal(after.num[0] + after.num[1] + after.num[2], 1);
  assert_in_range(after.total_ns - waits.total_ns, 0, 64000);
  world_call_free(call);
  world_call_free(next);
  world_destroy(w);
}

/* More slots than cells: one shows the emptiest of those that it stands for. */
static void test_many_slots_share_cells(void **state) {
  (void)state;
  struct world *w = make_world(1, 1024);
  struct sml_job_look look = look_at(w);
  assert_int_equal(look.num_cells, SML_LOOK_CELLS);
  struct world_call *call = make_call(w, 1022 * CHUNK_ELEMS);
  for (uint32_t r = 0; r < 3; r++) world_call_submit(call, r);
  assert_true(world_call_run(call, LIMIT_NS));
  struct world_call *next =
      make_call(w, 5 * CHUNK_ELEMS); /* wherever grants put it: some complete ones begin anew */
  world_call_submit(next, 1);
  for (int i = 0; i < 10; i++) world_pass(w);
  look = look_at(w);
  assert_int_equal(look.slots_waiting, 5);
  uint32_t num_waiting = 0, num_complete = 0;
  for (uint32_t i = 0; i < look.num_cells; i++) {
    num_waiting += look.cells[i] == 8 / 3;
    num_complete += look.cells[i] == SML_CELL_COMPLETE;
  }
  assert_in_range(num_waiting, 2, 5); /* five slots in a row, four a cell */
  assert_int_equal(num_waiting + num_complete, SML_LOOK_CELLS);
  for (uint32_t r = 0; r < 3; r += 2) world_call_submit(next, r);
  assert_true(world_call_run(next, LIMIT_NS));
  world_call_free(call);
  world_call_free(next);
  world_destroy(w);
}

static void test_drops_and_repeats_count_for_their_job(void **state) {
  (void)state;
  struct world *w = make_world(1, 8);
  struct world_call *call = make_call(w, 4 * CHUNK_ELEMS);
  for (uint32_t r = 0; r < 3; r++) world_call_submit(call, r);
  assert_true(world_call_run(call, LIMIT_NS));
  struct sml_header h = {.version = SML_WIRE_VERSION,
                         .type = SML_PACKET_UPDATE,
                         .flags = SML_FLAG_CHECKED,
                         .job = w->jobs[0].number,
                         .epoch = w->jobs[0].epoch,
                         .slot = 9999,
                         .payload_bytes = 4 * CHUNK_ELEMS};
  uint8_t payload[4 * CHUNK_ELEMS] = {0};
  world_send(&w->worker_ports[0][0], &h, payload, &w->aggregator_ports[0].addr);
  h.type = SML_PACKET_PROBE;
  h.flags = SML_FLAG_BY_GRANT;
  h.slot = w->jobs[0].worker.slot_base;
  h.chunk = 8; /* the first that was granted: its result is stored yet */
  h.payload_bytes = 0;
  world_send(&w->worker_ports[1][0], &h, payload,
             &w->aggregator_ports[0].addr); /* not from rank 0's address */
  world_send(&w->worker_ports[0][0], &h, payload, &w->aggregator_ports[0].addr);
  for (int i = 0; i < 10; i++) world_pass(w);
  const struct sml_job_look look = look_at(w);
  assert_int_equal(look.num_drops[SML_DROP_BAD_SLOT], 1);
  assert_int_equal(look.num_drops[SML_DROP_WRONG_SOURCE], 1);
  assert_int_equal(ranks[0].traffic.num_repeats, 1);
  assert_int_equal(ranks[1].traffic.num_repeats, 0);
  world_call_free(call);
  world_destroy(w);
}

static void test_other_jobs_are_nothing(void **state) {
  (void)state;
  struct world *w = make_world(1, 8);
  struct sml_job_look look = {.world_size = 3, .num_lanes = 1, .ranks = ranks};
  sml_aggregator_engine_look(w->aggregators[0], (uint16_t)(w->jobs[0].number + 1), &look);
  assert_int_equal(look.num_cells, 0);
  look.world_size = 2; /* a job of that number, but not the one that was meant */
  sml_aggregator_engine_look(w->aggregators[0], w->jobs[0].number, &look);
  assert_int_equal(look.num_cells, 0);
  world_destroy(w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_slots_that_wait),
      cmocka_unit_test(test_slots_wait_since_the_first_update),
      cmocka_unit_test(test_waits_are_sorted),
      cmocka_unit_test(test_how_long_chunks_wait),
      cmocka_unit_test(test_many_slots_share_cells),
      cmocka_unit_test(test_drops_and_repeats_count_for_their_job),
      cmocka_unit_test(test_other_jobs_are_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
