/* SPDX-License-Identifier: Apache-2.0
 * Where numbers end: phases run up to 2^32 and the job moves to a new epoch, chunk numbers wrap. Packets of
 * the old epoch come late and change nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/test_world.h"

#define LIMIT_NS (60 * SML_NS_PER_S)
#define CHUNK_BYTES 64u
#define MAX_KEPT 2048u
#define NUM_WORLDS (SML_IS_SLOW_BUILD ? 12u : 24u)

static const struct sml_fault_options rough = {
    .loss = 0.02, .duplicate = 0.05, .reorder = 0.2, .reorder_frames = 30, .corrupt = 0.01};

/* Copies of the frames of one epoch, to be sent again in the next. */
struct keeper {
  bool is_lossy;
  struct sml_prng prng;
  uint32_t epoch, num_kept;
  const struct world_port *to[MAX_KEPT];
  uint8_t frames[MAX_KEPT][SML_HEADER_BYTES + SML_KEYED_BYTES + CHUNK_BYTES + SML_CHECK_BYTES];
  uint32_t num_bytes[MAX_KEPT];
};

/* The hook decides about loss: 1 of 50. */
static bool keep_frame(void *user, const struct world_port *to, const uint8_t *data, uint32_t num_bytes) {
  struct keeper *k = user;
  if (k->is_lossy && sml_prng_below(&k->prng, 50) == 0) return true;
  if (k->num_kept == MAX_KEPT || num_bytes < SML_HEADER_BYTES || num_bytes > sizeof k->frames[0]) return false;
  if (sml_load_be32(data + 4) != k->epoch) return false;
  k->to[k->num_kept] = to;
  k->num_bytes[k->num_kept] = num_bytes;
  memcpy(k->frames[k->num_kept++], data, num_bytes);
  return false;
}

static void replay_one(struct world *w, const struct keeper *k, uint32_t i) {
  const struct world_port *to = k->to[i];
  const uint32_t rank = sml_load_be16(k->frames[i] + 8);
  const struct world_port *from = to->is_aggregator ? &w->worker_ports[rank][to->lane] : &w->aggregator_ports[to->lane];
  world_send_raw(from, k->frames[i], k->num_bytes[i], &to->addr);
}

static void run_call(struct world *w, uint64_t num_elems, uint8_t type, uint64_t seed, const struct keeper *replayed) {
  const struct world_call_options options = {.num_elems = num_elems, .type = type, .seed = seed};
  struct sml_prng prng = {seed};
  struct world_call *call = world_call_create(w, &options);
  const uint64_t until_ns = w->now_ns + LIMIT_NS;
  world_call_submit_all(call);
  while (!world_call_has_ended(call)) {
    for (uint32_t i = 0; replayed != NULL && i < 8; i++)
      replay_one(w, replayed, (uint32_t)sml_prng_below(&prng, replayed->num_kept));
    assert_true(world_pass(w) && w->now_ns < until_ns);
  }
  const char *problem = world_call_check(call);
  if (problem != NULL)
    fail_msg("%s: %llu elements, seed %llu", problem, (unsigned long long)num_elems, (unsigned long long)seed);
  world_call_free(call);
}

/* Chunks that the call takes of the lane that gets most. */
static uint64_t chunks_of(const struct world *w, uint64_t num_elems, uint8_t type) {
  const struct sml_operation_plan plan = {
      .num_elems = num_elems, .type = type, .block_elems = type == SML_FLOAT32 ? SML_BLOCK_ELEMS : 0};
  const struct world_options *o = &w->options;
  uint64_t most = 0;
  for (uint32_t l = 0; l < o->num_lanes; l++) {
    struct sml_range range;
    sml_range_make(&range, &plan, l, o->num_lanes, o->chunk_bytes, o->num_slots);
    most = sml_max_u64(most, range.num_chunks);
  }
  return most;
}

/* Calls until the phases are used up, a new epoch, and on. Returns how many epochs it took. */
static uint32_t cross_epochs(const struct world_options *options, uint32_t num_calls) {
  struct keeper *keeper = options->user;
  struct world *w = world_create(options);
  uint32_t epoch = 41, num_epochs = 1;
  keeper->epoch = epoch;
  keeper->num_kept = 0;
  world_open_job(w, 0, epoch);
  assert_true(world_exchange_hellos(w, 0));
  world_start_job(w, 0);
  struct sml_prng prng = {options->seed};
  uint64_t chunks_left = UINT32_MAX - (uint64_t)options->first_phase;
  for (uint32_t c = 0; c < num_calls; c++) {
    const uint64_t num_elems = 1 + sml_prng_below(&prng, 60 * (CHUNK_BYTES / 4));
    const uint8_t type = sml_prng_below(&prng, 2) == 0 ? SML_FLOAT32 : SML_INT32;
    const uint64_t num_chunks = chunks_of(w, num_elems, type);
    if (num_chunks > chunks_left) {
      world_restart_job(w, 0, ++epoch);
      num_epochs++;
      chunks_left = UINT32_MAX - SML_FIRST_PHASE;
    }
    chunks_left -= num_chunks;
    run_call(w, num_elems, type, c, num_epochs > 1 ? keeper : NULL);
  }
  assert_int_equal(w->num_events, 0);
  assert_true(world_drops(w, SML_DROP_WRONG_EPOCH) + world_drops(w, SML_DROP_BAD_CRC) > 0);
  for (uint32_t r = 0; r < options->world_size; r++) {
    struct sml_lane_snapshot s;
    sml_lane_snapshot(w->jobs[0].lanes[r][0], &s);
    assert_false(s.has_error_reply);
    assert_true(s.chunks_completed > UINT32_MAX - (uint64_t)options->first_phase - 60);
  }
  world_destroy(w);
  return num_epochs;
}

static void phases_run_out_and_a_new_epoch_begins(void **state) {
  (void)state;
  struct keeper *keeper = calloc(1, sizeof *keeper);
  assert_non_null(keeper);
  for (uint32_t i = 0; i < NUM_WORLDS; i++) {
    const struct world_options options = {.world_size = 2 + i % 3,
                                          .num_lanes = 1 + i % 2,
                                          .num_slots = 1u << i % 5,
                                          .chunk_bytes = CHUNK_BYTES,
                                          .first_phase = UINT32_MAX - 1 - 2 * (150 + 10 * i),
                                          .faults = i < 4 ? (struct sml_fault_options){0} : rough,
                                          .is_unchecked = i % 3 == 0,
                                          .is_unkeyed = i % 4 == 3,
                                          .stall = i % 2 * 0.3,
                                          .seed = 100 + i,
                                          .on_frame = keep_frame,
                                          .user = keeper};
    keeper->is_lossy = i >= 4;
    assert_int_equal(cross_epochs(&options, 80), 2);
  }
  free(keeper);
}

/* One slot: its phase grows with each chunk, and the last chunk has the last phase but one. */
static void the_last_phase_is_used(void **state) {
  (void)state;
  const struct world_options options = {.world_size = 2,
                                        .num_slots = 1,
                                        .chunk_bytes = CHUNK_BYTES,
                                        .first_phase = UINT32_MAX - 101,
                                        .seed = 3};
  struct world *w = world_create_started(&options);
  run_call(w, 100 * (CHUNK_BYTES / 4), SML_INT32, 1, NULL);
  run_call(w, 1, SML_INT32, 2, NULL);
  world_restart_job(w, 0, 9);
  run_call(w, 100 * (CHUNK_BYTES / 4), SML_INT32, 3, NULL);
  world_destroy(w);
}

static void chunk_numbers_wrap(void **state) {
  (void)state;
  for (uint32_t i = 0; i < NUM_WORLDS; i++) {
    const struct world_options options = {.world_size = 2 + i % 3,
                                          .num_slots = 1u << i % 6,
                                          .chunk_bytes = CHUNK_BYTES,
                                          .first_chunk = i < NUM_WORLDS / 2 ? UINT32_MAX - 10 * i : INT32_MAX - 10 * i,
                                          .faults = i % 2 == 0 ? (struct sml_fault_options){0} : rough,
                                          .seed = 200 + i};
    struct world *w = world_create_started(&options);
    for (uint32_t c = 0; c < 8; c++) run_call(w, 1 + 100 * (uint64_t)c, c % 2, c, NULL);
    run_call(w, 300 * (CHUNK_BYTES / 4), SML_FLOAT32, 9, NULL);
    assert_int_equal(w->num_events, 0);
    world_destroy(w);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(phases_run_out_and_a_new_epoch_begins),
      cmocka_unit_test(the_last_phase_is_used),
      cmocka_unit_test(chunk_numbers_wrap),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
