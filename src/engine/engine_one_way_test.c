/* SPDX-License-Identifier: Apache-2.0
 * Sums for owners, and copies, through the engines: bit by bit what an all-reduce and a slice give; as many bytes up
 * and down as there must be, and none more; with losses, and beside all-reduces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/test_world.h"

#define CHUNK_BYTES 256u
#define CHUNK_ELEMS (CHUNK_BYTES / 4)
#define CALL_LIMIT_NS (60 * SML_NS_PER_S)

static struct world_options quiet(uint32_t world_size, uint32_t num_lanes, uint32_t num_slots) {
  return (struct world_options){.world_size = world_size,
                                .num_lanes = num_lanes,
                                .num_slots = num_slots,
                                .chunk_bytes = CHUNK_BYTES,
                                .num_operations = 4,
                                .is_unchecked = true,
                                .is_one_way = true,
                                .seed = world_size};
}

/* Parts of any length, some of them empty. */
static struct world_call_options draw_call(struct sml_prng *prng, uint32_t world_size) {
  struct world_call_options o = {.way = sml_prng_chance(prng, 0.5) ? SML_REDUCE_COPY : SML_REDUCE_TO_OWNER,
                                 .type = sml_prng_chance(prng, 0.3) ? SML_INT32 : SML_FLOAT32,
                                 .seed = sml_prng_next(prng)};
  for (uint32_t r = 0; r < world_size; r++) {
    o.parts[r] = o.num_elems;
    if (sml_prng_chance(prng, 0.8)) o.num_elems += sml_prng_below(prng, sml_prng_chance(prng, 0.5) ? 30 : 3000);
  }
  o.num_elems += o.num_elems == 0;
  o.is_in_place = o.way == SML_REDUCE_TO_OWNER && o.type == SML_INT32 && sml_prng_chance(prng, 0.5);
  return o;
}

static void run_calls(const struct world_options *options, uint32_t num_calls) {
  struct world *w = world_create_started(options);
  struct sml_prng prng = {options->seed};
  while (num_calls-- > 0) {
    struct world_call *calls[3];
    for (uint32_t i = 0; i < 3; i++) { /* under way at once; the last one is an all-reduce */
      struct world_call_options o = draw_call(&prng, options->world_size);
      if (i == 2) o = (struct world_call_options){.num_elems = 1000, .type = SML_FLOAT32, .seed = num_calls};
      calls[i] = world_call_create(w, &o);
      world_call_submit_all(calls[i]);
    }
    for (uint32_t i = 0; i < 3; i++) {
      const char *problem = world_call_run(calls[i], CALL_LIMIT_NS) ? world_call_check(calls[i]) : "not ended in time";
      if (problem != NULL)
        fail_msg("%s: call %u of %u ranks, way %u, %llu elements", problem, i, options->world_size,
                 calls[i]->options.way, (unsigned long long)calls[i]->options.num_elems);
    }
    for (uint32_t i = 0; i < 3; i++) world_call_free(calls[i]);
  }
  assert_int_equal(w->num_events, 0);
  world_destroy(w);
}

static void bits_of_all_reduce(void **state) {
  (void)state;
  for (uint32_t n = 2; n <= 6; n++)
    for (uint32_t lanes = 1; lanes <= 3; lanes++) {
      struct world_options o = quiet(n, lanes, 8u << (n + lanes) % 4);
      o.is_unkeyed = n % 2;
      run_calls(&o, 6);
    }
}

static void bits_with_losses(void **state) {
  (void)state;
  for (uint32_t seed = 0; seed < 40; seed++) {
    struct world_options o = quiet(2 + seed % 4, 1 + seed % 2, 8u << seed % 4);
    o.seed = seed;
    o.is_multicast = seed % 3 == 0;
    o.faults = (struct sml_fault_options){.loss = 0.01 * (seed % 6), .duplicate = 0.05, .reorder = 0.05};
    run_calls(&o, 3);
  }
}

/* ---- bytes ---- */

/* Frames that came in to each port. */
struct counts {
  bool is_armed;
  uint64_t up_bytes[WORLD_MAX_RANKS], down_bytes[WORLD_MAX_RANKS]; /* payloads of data alone */
  uint64_t num_fences_up[WORLD_MAX_RANKS], num_fences_down[WORLD_MAX_RANKS], num_codes_bytes, num_others;
};

static bool count(void *user, const struct world_port *to, const uint8_t *data, uint32_t num_bytes) {
  struct counts *c = user;
  struct sml_header h;
  if (!c->is_armed) return false;
  assert_int_equal(sml_wire_open(data, num_bytes, &h), SML_WIRE_OK);
  const uint32_t rank = to->is_aggregator ? h.rank : to->rank;
  if (h.type != (to->is_aggregator ? SML_PACKET_UPDATE : SML_PACKET_RESULT)) c->num_others++;
  else if (h.reducer == SML_REDUCE_MAX && h.payload_bytes == 1)
    (to->is_aggregator ? c->num_fences_up : c->num_fences_down)[rank]++;
  else if (h.reducer == SML_REDUCE_MAX) c->num_codes_bytes += h.payload_bytes;
  else (to->is_aggregator ? c->up_bytes : c->down_bytes)[rank] += h.payload_bytes;
  return false;
}

/* With S bytes of all parts: a sum takes (n-1)/n S up and S/n down, a copy S/n up and (n-1)/n S down; by multicast
 * one's own part comes back. All else are fences, one for W/4 - 1 chunks. */
static void count_bytes(uint32_t n, uint8_t way, bool is_multicast) {
  struct counts counts = {.is_armed = false};
  struct world_options o = quiet(n, 1, 64);
  o.on_frame = count;
  o.user = &counts;
  o.is_multicast = is_multicast;
  struct world *w = world_create_started(&o);
  const uint64_t part_elems = 40 * CHUNK_ELEMS, part_bytes = 4 * part_elems, all_bytes = n * part_bytes;
  struct world_call_options call_options = {.way = way, .type = SML_INT32, .num_elems = n * part_elems};
  for (uint32_t r = 0; r < n; r++) call_options.parts[r] = r * part_elems;
  struct world_call *call = world_call_create(w, &call_options);
  counts.is_armed = true;
  world_call_submit_all(call);
  assert_true(world_call_run(call, CALL_LIMIT_NS));
  assert_null(world_call_check(call));
  const uint64_t num_fences = sml_div_ceil(n * 40, 64 / 4 - 1);
  assert_int_equal(counts.num_others + counts.num_codes_bytes, 0);
  for (uint32_t r = 0; r < n; r++) {
    const bool is_sum = way == SML_REDUCE_TO_OWNER;
    assert_int_equal(counts.up_bytes[r], is_sum ? all_bytes - part_bytes : part_bytes);
    assert_int_equal(counts.down_bytes[r], is_sum ? part_bytes : is_multicast ? all_bytes : all_bytes - part_bytes);
    assert_int_equal(counts.num_fences_up[r], num_fences);
    assert_int_equal(counts.num_fences_down[r], num_fences);
  }
  world_call_free(call);
  world_destroy(w);
}

static void bytes_go_one_way(void **state) {
  (void)state;
  for (uint32_t n = 4; n <= 8; n += 4)
    for (uint32_t i = 0; i < 4; i++) count_bytes(n, i / 2 ? SML_REDUCE_COPY : SML_REDUCE_TO_OWNER, i % 2);
}

/* ---- single losses ---- */

struct dropper {
  bool is_armed;
  uint64_t num_seen, lost;
};

static bool drop_one(void *user, const struct world_port *to, const uint8_t *data, uint32_t num_bytes) {
  (void)to;
  (void)data;
  (void)num_bytes;
  struct dropper *d = user;
  return d->is_armed && d->num_seen++ == d->lost;
}

static uint64_t lose(uint8_t way, uint64_t lost) {
  struct dropper dropper = {.lost = lost};
  struct world_options o = quiet(3, 1, 8);
  o.on_frame = drop_one;
  o.user = &dropper;
  struct world *w = world_create_started(&o);
  struct world_call_options call_options = {
      .way = way, .type = SML_FLOAT32, .num_elems = 10 * CHUNK_ELEMS, .seed = lost};
  call_options.parts[1] = 3 * CHUNK_ELEMS + 5;
  call_options.parts[2] = 7 * CHUNK_ELEMS;
  struct world_call *call = world_call_create(w, &call_options);
  dropper.is_armed = true;
  world_call_submit_all(call);
  const char *problem = world_call_run(call, 400 * SML_NS_PER_MS) ? world_call_check(call) : "not ended in time";
  if (problem != NULL) fail_msg("%s: way %u, frame %llu lost", problem, way, (unsigned long long)lost);
  world_call_free(call);
  world_destroy(w);
  return dropper.num_seen;
}

static void each_single_loss(void **state) {
  (void)state;
  for (uint8_t way = SML_REDUCE_TO_OWNER; way <= SML_REDUCE_COPY; way++) {
    const uint64_t num_frames = lose(way, UINT64_MAX);
    for (uint64_t lost = 0; lost < num_frames; lost++) lose(way, lost);
  }
}

/* ---- ranks that are gone ---- */

/* Whoever else calls is told, whatever the operation and whoever is gone. */
static void a_lost_rank_is_reported(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 12; i++) {
    const uint32_t gone = i % 3;
    struct world_options o = quiet(3, 1, 16);
    struct world *w = world_create_started(&o);
    struct world_call_options call_options = {
        .way = i / 3 % 2 ? SML_REDUCE_COPY : SML_REDUCE_TO_OWNER, .type = SML_INT32, .num_elems = 3000};
    for (uint32_t r = 1; r < 3; r++) call_options.parts[r] = i < 6 ? r * 1000 : 3000; /* or a root has all */
    struct world_call *call = world_call_create(w, &call_options);
    world_depart(w, 0, gone);
    for (uint32_t r = 0; r < 3; r++)
      if (r != gone) world_call_submit(call, r);
    (void)world_call_run(call, 3 * SML_NS_PER_S);
    assert_true(w->num_events > 0);
    assert_int_equal(w->events[0].kind, SML_EVENT_BLOCKED);
    assert_int_equal(w->events[0].rank_a, gone);
    for (uint32_t r = 0; r < 3; r++) sml_lane_fail(w->jobs[0].one_way[i / 3 % 2][r][0], SML_ERR_RANK_LOST);
    world_call_free(call);
    world_destroy(w);
  }
}

struct stops {
  uint64_t slot_base, at; /* a position of the window */
};

/* Rank 3 stops there; rank 2 has a small window, and comes three chunks further. */
static bool stop_ranks(void *user, const struct world_port *to, const uint8_t *data, uint32_t num_bytes) {
  const struct stops *stops = user;
  struct sml_header h;
  if (!to->is_aggregator || sml_wire_open(data, num_bytes, &h) != SML_WIRE_OK || h.slot < stops->slot_base)
    return false;
  const uint64_t position = (uint64_t)(h.phase - SML_FIRST_PHASE) * 32 + h.slot - stops->slot_base;
  return (h.rank == 3 && position >= stops->at) || (h.rank == 2 && position >= stops->at + 3);
}

/* Later slots miss rank 2, too, which does not come to them. */
static void who_has_stopped_is_told_apart(void **state) {
  (void)state;
  uint32_t num_others = 0;
  for (uint32_t i = 0; i < 100; i++) {
    struct stops stops = {.slot_base = sml_window_base(SML_REDUCE_TO_OWNER, 16), .at = i};
    struct world_options o = quiet(4, 1, 16);
    o.on_frame = stop_ranks;
    o.user = &stops;
    struct world *w = world_create_started(&o);
    struct world_call_options call_options = {
        .way = SML_REDUCE_TO_OWNER, .type = SML_INT32, .num_elems = 400 * CHUNK_ELEMS};
    for (uint32_t r = 0; r < 4; r++) call_options.parts[r] = r * 100 * CHUNK_ELEMS;
    struct world_call *call = world_call_create(w, &call_options);
    world_call_submit_all(call);
    assert_false(world_call_run(call, SML_NS_PER_S));
    struct sml_rank_look ranks[4];
    memset(ranks, 0, sizeof ranks);
    struct sml_job_look look = {.world_size = 4, .num_lanes = 1, .ranks = ranks};
    sml_aggregator_engine_look(w->aggregators[0], w->jobs[0].number, &look);
    for (uint32_t r = 0; r < 4; r++) {
      assert_int_equal(ranks[r].oldest_missing, r == 3);
      assert_int_equal(ranks[r].sums_missing, 0);
    }
    num_others += ranks[2].slots_missing;
    for (uint32_t r = 0; r < 4; r++) sml_lane_fail(w->jobs[0].one_way[0][r][0], SML_ERR_RANK_LOST);
    world_call_free(call);
    world_destroy(w);
  }
  assert_true(num_others > 100);
}

struct fence_loss {
  bool is_due;
  uint32_t num_lost;
};

static bool lose_a_fence(void *user, const struct world_port *to, const uint8_t *data, uint32_t num_bytes) {
  struct fence_loss *loss = user;
  struct sml_header h;
  if (!loss->is_due || loss->num_lost > 0 || !to->is_aggregator) return false;
  if (sml_wire_open(data, num_bytes, &h) != SML_WIRE_OK || h.type != SML_PACKET_UPDATE || h.rank != 1) return false;
  loss->num_lost += h.reducer == SML_REDUCE_MAX && h.chunk == SML_FENCE;
  return loss->num_lost > 0;
}

/* A fence that a later one completes waits no more: whoever computes then is not said to be waited for. */
static void slots_wait_since_the_first_update_after_a_lost_fence(void **state) {
  (void)state;
  struct fence_loss loss = {.is_due = false};
  struct world_options o = quiet(3, 1, 16);
  o.on_frame = lose_a_fence;
  o.user = &loss;
  struct world *w = world_create_started(&o);
  struct world_call_options copies = {.way = SML_REDUCE_COPY, .type = SML_INT32, .num_elems = 120 * CHUNK_ELEMS};
  for (uint32_t rank = 0; rank < 3; rank++) copies.parts[rank] = rank * 40 * CHUNK_ELEMS;
  struct world_call *call = world_call_create(w, &copies);
  loss.is_due = true;
  world_call_submit_all(call);
  assert_true(world_call_run(call, CALL_LIMIT_NS));
  assert_int_equal(loss.num_lost, 1);
  world_settle(w, SML_NS_PER_S);
  w->now_ns += 60 * SML_NS_PER_S;
  const uint64_t begin_ns = w->now_ns;
  struct world_call_options sums = {.num_elems = 4 * CHUNK_ELEMS, .type = SML_INT32};
  struct world_call *next = world_call_create(w, &sums);
  world_call_submit(next, 1);
  for (uint32_t i = 0; i < 10; i++) world_pass(w);
  struct sml_rank_look ranks[3];
  struct sml_job_look look = {.world_size = 3, .num_lanes = 1, .ranks = ranks};
  sml_aggregator_engine_look(w->aggregators[0], w->jobs[0].number, &look);
  assert_true(look.slots_waiting > 0 && look.opened_ns >= begin_ns);
  world_call_submit(next, 0);
  world_call_submit(next, 2);
  assert_true(world_call_run(next, CALL_LIMIT_NS));
  world_call_free(call);
  world_call_free(next);
  world_destroy(w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bits_of_all_reduce),
      cmocka_unit_test(bits_with_losses),
      cmocka_unit_test(who_has_stopped_is_told_apart),
      cmocka_unit_test(bytes_go_one_way),
      cmocka_unit_test(each_single_loss),
      cmocka_unit_test(a_lost_rank_is_reported),
      cmocka_unit_test(slots_wait_since_the_first_update_after_a_lost_fence),
  };
  return cmocka_run_group_tests_name("engine_one_way", tests, NULL, NULL);
}
