/* SPDX-License-Identifier: Apache-2.0
 * Marks (ECN) on their way from either direction to the window, and sums that stay right whatever the window is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/congestion.h"
#include "core/worker_internal.h"
#include "engine/test_world.h"
#include "engine/worker_engine_internal.h"

#define LIMIT_NS (60 * SML_NS_PER_S)
#define NUM_SLOTS 32u
#define CHUNK_BYTES 64u
#define NUM_RANKS 3u

struct marks_seen {
  uint32_t num_echoes, num_long; /* PENDINGs that tell of marks; those with a payload */
};

static bool count_echoes(void *user, const struct world_port *to, const uint8_t *data, uint32_t num_bytes) {
  struct marks_seen *seen = user;
  struct sml_header h;
  if (sml_wire_open(data, num_bytes, &h) != SML_WIRE_OK || (h.flags & SML_FLAG_MARKED) == 0) return false;
  if (!to->is_aggregator) seen->num_echoes++;
  seen->num_long += h.payload_bytes > 0;
  return false;
}

static struct sml_lane_snapshot run(struct world_options o, struct marks_seen *seen) {
  *seen = (struct marks_seen){0};
  o.world_size = NUM_RANKS;
  o.num_lanes = 1;
  o.num_slots = NUM_SLOTS;
  o.chunk_bytes = CHUNK_BYTES;
  o.num_operations = 2;
  o.on_frame = count_echoes;
  o.user = seen;
  struct world *w = world_create_started(&o);
  for (uint64_t c = 0; c < 3; c++) {
    const struct world_call_options options = {.num_elems = 600 * CHUNK_BYTES / 4, .type = c == 1, .seed = c};
    struct world_call *call = world_call_create(w, &options);
    world_call_submit_all(call);
    const char *problem = world_call_run(call, LIMIT_NS) ? world_call_check(call) : "not ended in time";
    if (problem != NULL) fail_msg("%s: call %llu", problem, (unsigned long long)c);
    world_call_free(call);
  }
  assert_int_equal(w->num_events, 0);
  struct sml_lane_snapshot least = {.window_chunks = UINT32_MAX};
  for (uint32_t r = 0; r < NUM_RANKS; r++) {
    struct sml_lane_snapshot s;
    sml_lane_snapshot(w->jobs[0].lanes[r][0], &s);
    assert_true((s.ecn_marks > 0) == (s.window_reductions > 0) || o.faults.loss > 0);
    if (s.window_chunks < least.window_chunks) least = s;
  }
  world_close_job(w, 0);
  world_destroy(w);
  return least;
}

static void without_marks_the_window_is_all_slots(void **state) {
  (void)state;
  struct marks_seen seen;
  const struct sml_lane_snapshot s = run((struct world_options){.seed = 1}, &seen);
  assert_int_equal(s.window_chunks, NUM_SLOTS);
  assert_int_equal(s.window_reductions, 0);
  assert_int_equal(s.ecn_marks, 0);
  assert_int_equal(seen.num_echoes, 0);
}

/* All are marked, whatever is sent: so much stays. */
#define KEPT_CHUNKS (NUM_SLOTS / 4)

static void marked_results_reduce_it(void **state) {
  (void)state;
  struct marks_seen seen;
  const struct sml_lane_snapshot s =
      run((struct world_options){.seed = 2, .faults = {.mark = 1}, .up_mark = 1e-99}, &seen);
  assert_int_equal(seen.num_echoes, 0);
  assert_in_range(s.window_chunks, SML_CONGESTION_MIN_CHUNKS, KEPT_CHUNKS);
}

static void marked_updates_are_told_and_reduce_it(void **state) {
  (void)state;
  struct marks_seen seen;
  const struct sml_lane_snapshot s = run((struct world_options){.seed = 3, .up_mark = 1}, &seen);
  assert_true(seen.num_echoes > 100);
  assert_int_equal(seen.num_long, 0);
  assert_in_range(s.window_chunks, SML_CONGESTION_MIN_CHUNKS, KEPT_CHUNKS);
}

/* With keys and check words, and without; marks, losses, copies and disorder at once. */
static void sums_are_right_with_small_windows(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 12; seed++) {
    struct marks_seen seen;
    const struct world_options o = {
        .seed = seed,
        .stall = 0.2,
        .is_unkeyed = seed % 2 == 0,
        .faults = {.mark = 0.3, .loss = 0.02, .duplicate = 0.02, .reorder = 0.05, .reorder_frames = 8}};
    (void)run(o, &seen);
    assert_true(seen.num_echoes > 0);
  }
}

/* Two lanes of each rank's engine, which sometimes come marked. */
static uint32_t num_passes_with_a_reduction(bool shares_link, uint32_t *num_unequal_out) {
  const struct world_options o = {.seed = 4,
                                  .world_size = NUM_RANKS,
                                  .num_lanes = 1,
                                  .num_slots = NUM_SLOTS,
                                  .chunk_bytes = CHUNK_BYTES,
                                  .num_operations = 2,
                                  .shares_link = shares_link,
                                  .faults = {.mark = 0.03}};
  struct world *w = world_create_started(&o);
  world_open_job(w, 1, 78);
  assert_true(world_exchange_hellos(w, 1));
  world_start_job(w, 1);
  struct world_call *calls[2];
  for (uint32_t j = 0; j < 2; j++) {
    const struct world_call_options options = {.job = j, .num_elems = 3000 * CHUNK_BYTES / 4, .type = 1, .seed = j};
    calls[j] = world_call_create(w, &options);
    world_call_submit_all(calls[j]);
  }
  uint64_t num_reductions[NUM_RANKS] = {0};
  uint32_t num_reduced = 0;
  *num_unequal_out = 0;
  while (!world_call_has_ended(calls[0]) && !world_call_has_ended(calls[1])) {
    assert_true(world_pass(w));
    for (uint32_t r = 0; r < NUM_RANKS; r++) {
      struct sml_worker_view views[2];
      const struct sml_worker *workers[2];
      for (uint32_t j = 0; j < 2; j++) {
        workers[j] = w->jobs[j].lanes[r][0]->worker;
        sml_worker_view(workers[j], &views[j]);
      }
      const uint64_t sum = views[0].window_reductions + views[1].window_reductions;
      if (sum == num_reductions[r]) continue;
      num_reductions[r] = sum;
      if (!views[0].is_waiting || !views[1].is_waiting) continue;
      num_reduced++;
      *num_unequal_out += workers[0]->congestion.window != workers[1]->congestion.window;
    }
  }
  for (uint32_t j = 0; j < 2; j++) {
    assert_true(world_call_run(calls[j], LIMIT_NS));
    assert_null(world_call_check(calls[j]));
    world_call_free(calls[j]);
    world_close_job(w, j);
  }
  world_destroy(w);
  return num_reduced;
}

/* A lane that yields alone would get nothing of a link that it shares. */
static void lanes_behind_one_link_have_the_same_window(void **state) {
  (void)state;
  uint32_t num_unequal;
  assert_true(num_passes_with_a_reduction(true, &num_unequal) > 50);
  assert_int_equal(num_unequal, 0);
  const uint32_t num_reduced = num_passes_with_a_reduction(false, &num_unequal);
  assert_true(num_reduced > 50 && num_unequal > num_reduced / 2);
}

/* One lane's samples tell all of them that the path is not long. */
static void lanes_behind_one_link_know_the_shortest_round_trip(void **state) {
  (void)state;
  const struct world_options o = {.seed = 5,
                                  .world_size = NUM_RANKS,
                                  .num_lanes = 1,
                                  .num_slots = NUM_SLOTS,
                                  .chunk_bytes = CHUNK_BYTES,
                                  .num_operations = 2,
                                  .shares_link = true};
  struct world *w = world_create(&o);
  for (uint32_t r = 0; r < NUM_RANKS; r++) w->shortest_ns[r] = SML_NS_PER_S; /* as the join said */
  for (uint32_t j = 0; j < 2; j++) {
    world_open_job(w, j, 80 + j);
    assert_true(world_exchange_hellos(w, j));
    world_start_job(w, j);
  }
  for (int k = 0; k < 3; k++) (void)world_pass(w);
  const struct sml_worker *idle = w->jobs[1].lanes[1][0]->worker;
  assert_int_equal(idle->congestion.path_ns, SML_NS_PER_S);
  const struct world_call_options options = {.num_elems = 3000, .seed = 1};
  struct world_call *call = world_call_create(w, &options);
  world_call_submit_all(call);
  assert_true(world_call_run(call, LIMIT_NS));
  for (int k = 0; k < 3; k++) (void)world_pass(w);
  const uint64_t seen_ns = w->jobs[0].lanes[1][0]->worker->congestion.min_rtt_ns;
  assert_true(seen_ns > 0 && seen_ns < SML_NS_PER_S);
  assert_int_equal(idle->congestion.path_ns, seen_ns);
  assert_int_equal(idle->congestion.min_rtt_ns, UINT64_MAX);
  world_call_free(call);
  for (uint32_t j = 0; j < 2; j++) world_close_job(w, j);
  world_destroy(w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(without_marks_the_window_is_all_slots),
      cmocka_unit_test(marked_results_reduce_it),
      cmocka_unit_test(marked_updates_are_told_and_reduce_it),
      cmocka_unit_test(sums_are_right_with_small_windows),
      cmocka_unit_test(lanes_behind_one_link_have_the_same_window),
      cmocka_unit_test(lanes_behind_one_link_know_the_shortest_round_trip),
  };
  return cmocka_run_group_tests_name("engine_congestion", tests, NULL, NULL);
}
