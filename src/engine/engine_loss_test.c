/* SPDX-License-Identifier: Apache-2.0
 * Every single loss: each packet of a small operation, in both directions, is dropped in a world of its own.
 * Then bursts of 64, as a full queue loses them, and every single packet repeated later. The operation must
 * end with the exact sum, and soon. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/test_world.h"

/* The initial RTO and what one backoff adds, with jitter: a single loss may not cost more. */
#define SOON_NS (60 * SML_NS_PER_MS)
/* Where few packets are under way, 64 in a row are many timeouts, each up to the ceiling. */
#define OUTAGE_NS (15 * SML_NS_PER_S)
#define NUM_SLOTS 8u
#define CHUNK_BYTES 64u
#define CHUNK_ELEMS (CHUNK_BYTES / 4)

/* Which frames to drop, counted over all ports from the moment it is armed. */
struct dropper {
  bool is_armed;
  uint64_t num_seen, first, num_dropped;
};

static bool drop_some(void *user, const struct world_port *to, const uint8_t *data, uint32_t num_bytes) {
  (void)to;
  (void)data;
  (void)num_bytes;
  struct dropper *d = user;
  if (!d->is_armed) return false;
  const uint64_t index = d->num_seen++;
  return index >= d->first && index < d->first + d->num_dropped;
}

struct trial {
  uint32_t world_size, num_slots;
  uint64_t num_elems;
  uint8_t type;
  bool is_plain; /* without check words and MACs */
};

/* Returns how many frames the operation took. */
static uint64_t run_trial(const struct trial *t, uint64_t first, uint64_t num_dropped, uint64_t limit_ns) {
  struct dropper dropper = {.first = first, .num_dropped = num_dropped};
  const struct world_options options = {.world_size = t->world_size,
                                        .num_slots = t->num_slots,
                                        .chunk_bytes = CHUNK_BYTES,
                                        .is_unchecked = t->is_plain,
                                        .is_unkeyed = t->is_plain,
                                        .seed = 7 + first,
                                        .on_frame = drop_some,
                                        .user = &dropper};
  struct world *w = world_create_started(&options);
  const struct world_call_options call_options = {.num_elems = t->num_elems, .type = t->type, .seed = first + 1};
  struct world_call *call = world_call_create(w, &call_options);
  dropper.is_armed = true;
  world_call_submit_all(call);
  const bool has_ended = world_call_run(call, limit_ns);
  const char *problem = has_ended ? world_call_check(call) : "not ended in time";
  if (problem != NULL)
    fail_msg("%s: %u ranks, %llu elements, type %u, %llu frames lost from %llu", problem, t->world_size,
             (unsigned long long)t->num_elems, t->type, (unsigned long long)num_dropped, (unsigned long long)first);
  assert_int_equal(w->num_events, 0);
  world_close_job(w, 0);
  world_call_free(call);
  world_destroy(w);
  return dropper.num_seen;
}

static void lose_each(uint32_t world_size, uint8_t type) {
  /* Data chunks: one, fewer than slots, as many with and without the exponent chunk, one more, two windows.
   */
  static const uint32_t num_chunks[] = {1, 3, NUM_SLOTS - 1, NUM_SLOTS, NUM_SLOTS + 1, 2 * NUM_SLOTS, 3 * NUM_SLOTS};
  for (size_t i = 0; i < SML_ARRAY_LEN(num_chunks); i++) {
    struct trial t = {
        .world_size = world_size, .num_slots = NUM_SLOTS, .num_elems = num_chunks[i] * CHUNK_ELEMS - 5, .type = type};
    const uint64_t num_frames = run_trial(&t, 0, 0, SML_NS_PER_MS);
    /* Both directions of each chunk and rank, at least. */
    assert_true(num_frames >= 2 * (uint64_t)world_size * num_chunks[i]);
    for (uint64_t lost = 0; lost < num_frames; lost++) {
      t.is_plain = lost % 3 == 0;
      run_trial(&t, lost, 1, SOON_NS);
    }
  }
}

static void each_single_loss_of_two_ranks(void **state) {
  (void)state;
  lose_each(2, SML_FLOAT32);
  lose_each(2, SML_INT32);
}

static void each_single_loss_of_three_ranks(void **state) {
  (void)state;
  lose_each(3, SML_FLOAT32);
  lose_each(3, SML_INT32);
}

static void each_pair_of_consecutive_losses(void **state) {
  (void)state;
  const struct trial t = {
      .world_size = 2, .num_slots = NUM_SLOTS, .num_elems = 2 * NUM_SLOTS * CHUNK_ELEMS, .type = SML_FLOAT32};
  const uint64_t num_frames = run_trial(&t, 0, 0, SML_NS_PER_MS);
  for (uint64_t lost = 0; lost < num_frames; lost++) run_trial(&t, lost, 2, 3 * SOON_NS);
}

/* A full queue loses up to a segmented send at once. */
static void bursts_of_losses(void **state) {
  (void)state;
  for (uint32_t n = 2; n <= 3; n++) {
    const struct trial t = {.world_size = n, .num_slots = 64, .num_elems = 200 * CHUNK_ELEMS, .type = SML_FLOAT32};
    const uint64_t num_frames = run_trial(&t, 0, 0, 10 * SML_NS_PER_MS);
    for (uint64_t lost = 0; lost < num_frames; lost += 5) run_trial(&t, lost, 64, OUTAGE_NS);
  }
}

/* Nothing gets through for a while; then everything does. */
static void a_long_outage_is_survived(void **state) {
  (void)state;
  const struct trial t = {.world_size = 3, .num_slots = NUM_SLOTS, .num_elems = 500 * CHUNK_ELEMS, .type = SML_FLOAT32};
  for (uint64_t first = 0; first < 200; first += 13) run_trial(&t, first, 2000, 300 * SML_NS_PER_S);
}

/* ---- what was seen before comes again ---- */

#define MAX_KEPT 4096u

struct keeper {
  const struct world_port *to[MAX_KEPT];
  uint8_t frames[MAX_KEPT][SML_HEADER_BYTES + SML_KEYED_BYTES + CHUNK_BYTES + SML_CHECK_BYTES];
  uint32_t num_bytes[MAX_KEPT], num_kept;
  bool is_keeping;
};

static bool keep_frame(void *user, const struct world_port *to, const uint8_t *data, uint32_t num_bytes) {
  struct keeper *k = user;
  if (!k->is_keeping || k->num_kept == MAX_KEPT || num_bytes > sizeof k->frames[0]) return false;
  k->to[k->num_kept] = to;
  k->num_bytes[k->num_kept] = num_bytes;
  memcpy(k->frames[k->num_kept++], data, num_bytes);
  return false;
}

/* Sends a kept frame again, as if the network had held a copy back: from its sender to its receiver. */
static void replay(struct world *w, const struct keeper *k, uint32_t i) {
  const uint32_t rank = sml_load_be16(k->frames[i] + 8);
  const struct world_port *from = k->to[i]->is_aggregator ? &w->worker_ports[rank][0] : &w->aggregator_ports[0];
  world_send_raw(from, k->frames[i], k->num_bytes[i], &k->to[i]->addr);
}

/* All packets of an operation are repeated, in random order, while the next ones run. */
static void late_copies_change_nothing(void **state) {
  (void)state;
  struct keeper *keeper = calloc(1, sizeof *keeper);
  assert_non_null(keeper);
  const struct world_options options = {.world_size = 3,
                                        .num_slots = 4,
                                        .chunk_bytes = CHUNK_BYTES,
                                        .stall = 0.3,
                                        .seed = 11,
                                        .on_frame = keep_frame,
                                        .user = keeper};
  struct world *w = world_create_started(&options);
  struct sml_prng prng = {5};
  for (uint64_t c = 0; c < 200; c++) {
    const struct world_call_options call_options = {
        .num_elems = 1 + sml_prng_below(&prng, 20 * CHUNK_ELEMS), .type = c % 3 == 0, .seed = c};
    struct world_call *call = world_call_create(w, &call_options);
    keeper->is_keeping = keeper->num_kept < MAX_KEPT;
    world_call_submit_all(call);
    while (!world_call_has_ended(call)) {
      keeper->is_keeping = keeper->is_keeping && sml_prng_below(&prng, 3) > 0;
      for (uint32_t i = 0; i < 12 && keeper->num_kept > 0; i++)
        replay(w, keeper, (uint32_t)sml_prng_below(&prng, keeper->num_kept));
      assert_true(world_pass(w));
    }
    const char *problem = world_call_check(call);
    if (problem != NULL) fail_msg("%s: call %llu", problem, (unsigned long long)c);
    world_call_free(call);
    if (c % 20 == 19) keeper->num_kept = 0; /* copies of the recent past are the dangerous ones */
  }
  assert_int_equal(w->num_events, 0);
  assert_true(world_drops(w, SML_DROP_STALE_PHASE) > 0);
  assert_true(world_drops(w, SML_DROP_DUPLICATE) > 0);
  world_destroy(w);
  free(keeper);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_single_loss_of_two_ranks),   cmocka_unit_test(each_single_loss_of_three_ranks),
      cmocka_unit_test(each_pair_of_consecutive_losses), cmocka_unit_test(bursts_of_losses),
      cmocka_unit_test(a_long_outage_is_survived),       cmocka_unit_test(late_copies_change_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
