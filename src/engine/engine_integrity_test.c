/* SPDX-License-Identifier: Apache-2.0
 * An aggregator that adds wrong, forgets, or mixes up: no rank takes a wrong sum. What was wrong only on the way
 * is asked for again; what is wrong at the aggregator ends the operation with SML_ERR_INTEGRITY on every rank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/test_world.h"

#define LIMIT_NS (10 * SML_NS_PER_S)
#define CHUNK_BYTES 64u
#define CHUNK_ELEMS (CHUNK_BYTES / 4)
#define NUM_SLOTS 4u
#define NUM_RANKS 3u
#define MAX_PAYLOAD_BYTES (CHUNK_BYTES + SML_CHECK_BYTES)

enum { ANY_RANK = NUM_RANKS, CLEAR = 1000 };

/* What happens on the way: updates of rank 1 are held; a few results are replaced. */
struct way {
  struct world *w;
  bool is_holding;
  uint8_t held_wire;           /* which of rank 1's updates */
  uint32_t num_to_change;      /* results still to be changed */
  uint32_t to_rank;            /* on their way to this rank, or ANY_RANK */
  uint8_t changed_wire;
  int32_t change; /* added to the first lane's lowest byte, or to the first code; CLEAR: the code is 0 */
  uint32_t num_changed;
  uint8_t kept[MAX_PAYLOAD_BYTES]; /* rank 0's contribution to slot 0 */
  struct sml_header held;          /* rank 1's to the same */
};

static bool change_result(struct way *way, const struct world_port *to, const uint8_t *data, uint32_t num_bytes) {
  struct sml_header h;
  if (way->num_to_change == 0 || sml_wire_open(data, num_bytes, &h) != SML_WIRE_OK) return false;
  if (h.type != SML_PACKET_RESULT || h.wire != way->changed_wire) return false;
  if (way->to_rank != ANY_RANK && way->to_rank != to->rank) return false;
  uint8_t payload[MAX_PAYLOAD_BYTES];
  memcpy(payload, data + sml_head_bytes_of(&h), h.payload_bytes);
  uint8_t *byte = &payload[h.wire == SML_LANES_INT32 ? 3 : 0];
  *byte = way->change == CLEAR ? 0 : (uint8_t)(*byte + way->change);
  way->num_to_change--;
  way->num_changed++;
  world_send(&way->w->aggregator_ports[0], &h, payload, &to->addr); /* as if it came from there */
  return true;
}

static bool on_the_way(void *user, const struct world_port *to, const uint8_t *data, uint32_t num_bytes) {
  struct way *way = user;
  struct sml_header h;
  if (!to->is_aggregator) return change_result(way, to, data, num_bytes);
  if (!way->is_holding || sml_wire_open(data, num_bytes, &h) != SML_WIRE_OK) return false;
  if (h.type == SML_PACKET_PROBE) return h.rank == 1;
  if (h.type != SML_PACKET_UPDATE || h.wire != way->held_wire) return false;
  if (h.slot == 0 && h.rank == 0) memcpy(way->kept, data + sml_head_bytes_of(&h), h.payload_bytes);
  if (h.slot == 0 && h.rank == 1) way->held = h;
  return h.rank == 1;
}

static struct world *open_world(struct way *way, bool is_unchecked) {
  const struct world_options options = {.world_size = NUM_RANKS,
                                        .num_slots = NUM_SLOTS,
                                        .chunk_bytes = CHUNK_BYTES,
                                        .is_unchecked = is_unchecked,
                                        .seed = 1,
                                        .on_frame = on_the_way,
                                        .user = way};
  way->w = world_create_started(&options);
  return way->w;
}

/* No block of zeros; rank 0 has the largest exponents. */
static void write_input(uint32_t rank, float *to, uint64_t num_elems) {
  for (uint64_t i = 0; i < num_elems; i++) to[i] = (float)(1 + i % 7) * (rank == 0 ? 0x1p10f : 1);
}

static struct world_call *start_call(struct world *w, uint8_t type) {
  const struct world_call_options options = {.num_elems = 9 * CHUNK_ELEMS,
                                             .type = type,
                                             .write_input = type == SML_FLOAT32 ? write_input : NULL,
                                             .seed = 3};
  struct world_call *call = world_call_create(w, &options);
  world_call_submit_all(call);
  return call;
}

/* Whatever a rank has got, it is right. */
static void expect_no_wrong_element(const struct world_call *call) {
  for (uint32_t r = 0; r < NUM_RANKS; r++) {
    const uint8_t *out = call->parts[r].out;
    for (size_t at = 0; at < call->num_bytes; at += 4) {
      static const uint8_t untouched[4] = {0xa5, 0xa5, 0xa5, 0xa5};
      if (memcmp(out + at, call->expected + at, 4) != 0) assert_memory_equal(out + at, untouched, 4);
    }
  }
}

static void expect_integrity_error(struct world *w, const struct world_call *call) {
  for (uint32_t i = 0; i < 300 && !world_call_has_ended(call); i++) (void)world_pass(w);
  for (uint32_t r = 0; r < NUM_RANKS; r++) {
    assert_null(world_call_check_failed(call, r, SML_ERR_INTEGRITY));
    assert_int_equal(w->jobs[0].num_integrity[r], 1);
  }
  expect_no_wrong_element(call);
  /* Later operations of the lane end the same way, and nobody is called again. */
  struct world_call *later = start_call(w, SML_INT32);
  for (int i = 0; i < 20; i++) (void)world_pass(w);
  for (uint32_t r = 0; r < NUM_RANKS; r++) {
    assert_null(world_call_check_failed(later, r, SML_ERR_INTEGRITY));
    assert_int_equal(w->jobs[0].num_integrity[r], 1);
  }
  world_call_free(later);
}

/* ---- wrong at the aggregator ---- */

enum damage { FLIP_LOW, FLIP_SIGN, FLIP_WORD, CLEAR_LANES, NUM_DAMAGES, CLEAR_CODES };

/* A cell's sum, while it waits for rank 1. */
static void damage_cell(void *values, enum damage damage) {
  uint32_t *lanes = values;
  if (damage == FLIP_LOW) lanes[3] ^= 1;
  if (damage == FLIP_SIGN) lanes[CHUNK_ELEMS - 1] ^= UINT32_C(0x80000000);
  if (damage == FLIP_WORD) lanes[CHUNK_ELEMS] ^= 0x100;
  if (damage == CLEAR_LANES) memset(lanes, 0, CHUNK_BYTES);
  if (damage == CLEAR_CODES) memset(values, 0, 9);
}

static struct world_call *damage_sums(struct way *way, uint8_t type, enum damage damage, bool is_unchecked) {
  struct world *w = open_world(way, is_unchecked);
  way->is_holding = true;
  way->held_wire = damage == CLEAR_CODES ? SML_LANES_UINT8 : SML_LANES_INT32;
  struct world_call *call = start_call(w, type);
  for (int i = 0; i < 12; i++) assert_true(world_pass(w));
  for (uint32_t cell = 0; cell < 2 * NUM_SLOTS; cell++) {
    if (damage == CLEAR_CODES && cell >= 2) break; /* exponents are first in the stream: slot 0 */
    damage_cell(sml_aggregator_values(w->jobs[0].states[0], cell), damage);
  }
  way->is_holding = false;
  return call;
}

static void a_damaged_sum_is_an_error_on_every_rank(void **state) {
  (void)state;
  for (uint8_t type = SML_FLOAT32; type <= SML_INT32; type++) {
    for (uint32_t damage = 0; damage < NUM_DAMAGES; damage++) {
      struct way way = {0};
      struct world_call *call = damage_sums(&way, type, (enum damage)damage, false);
      expect_integrity_error(way.w, call);
      assert_true(world_lane_drops(way.w, 0, SML_DROP_BAD_CHECK) >= 2 * NUM_RANKS);
      world_call_free(call);
      world_destroy(way.w);
    }
  }
}

/* Rank 0's exponents got lost, and it has the largest: it sees that. The others' own are not above what they got,
 * but they end nothing, because rank 0 takes part no more. */
static void an_exponent_that_is_too_low_is_an_error(void **state) {
  (void)state;
  struct way way = {0};
  struct world_call *call = damage_sums(&way, SML_FLOAT32, CLEAR_CODES, false);
  for (uint32_t i = 0; i < 300; i++) (void)world_pass(way.w);
  assert_null(world_call_check_failed(call, 0, SML_ERR_INTEGRITY));
  assert_int_equal(way.w->jobs[0].num_integrity[0], 1);
  for (uint32_t r = 1; r < NUM_RANKS; r++) assert_int_equal(call->parts[r].num_ended, 0);
  expect_no_wrong_element(call);
  for (uint32_t r = 1; r < NUM_RANKS; r++) sml_lane_fail(way.w->jobs[0].lanes[r][0], SML_ERR_INTEGRITY);
  world_call_free(call);
  world_destroy(way.w);
}

/* What the check words are for: without them the same damage is a wrong sum that nobody sees. */
static void without_check_words_nobody_would_see_it(void **state) {
  (void)state;
  struct way way = {0};
  struct world_call *call = damage_sums(&way, SML_INT32, FLIP_LOW, true);
  assert_true(world_call_run(call, LIMIT_NS));
  assert_string_equal(world_call_check(call), "the bits differ from the reference");
  world_call_free(call);
  world_destroy(way.w);
}

/* The sum has rank 0's contribution twice and none of rank 1's: with every count and checksum right. */
static void a_contribution_in_place_of_another_is_seen(void **state) {
  (void)state;
  struct way way = {.is_holding = true, .held_wire = SML_LANES_INT32};
  struct world *w = open_world(&way, false);
  struct world_call *call = start_call(w, SML_INT32);
  for (int i = 0; i < 12; i++) assert_true(world_pass(w));
  assert_int_equal(way.held.rank, 1);
  way.is_holding = false;
  world_send(&w->worker_ports[1][0], &way.held, way.kept, &w->aggregator_ports[0].addr);
  expect_integrity_error(w, call);
  world_call_free(call);
  world_destroy(w);
}

/* Rank 0 is told another exponent than the others: then it scales by another, and no sum of its block fits. */
static void ranks_that_are_told_different_exponents_notice(void **state) {
  (void)state;
  struct way way = {.num_to_change = 1, .to_rank = 0, .changed_wire = SML_LANES_UINT8, .change = 1};
  struct world *w = open_world(&way, false);
  struct world_call *call = start_call(w, SML_FLOAT32);
  expect_integrity_error(w, call);
  assert_int_equal(way.num_changed, 1);
  world_call_free(call);
  world_destroy(w);
}

/* ---- wrong on the way ---- */

/* One result of a slot is wrong, the one that it is asked for again is right. */
static void a_result_that_is_wrong_once_is_asked_for_again(void **state) {
  (void)state;
  for (uint8_t wire = SML_LANES_INT32; wire <= SML_LANES_UINT8; wire++) {
    for (uint32_t to_rank = 0; to_rank < NUM_RANKS; to_rank++) {
      struct way way = {.num_to_change = 1,
                        .to_rank = to_rank,
                        .changed_wire = wire,
                        .change = wire == SML_LANES_INT32 ? 1 : CLEAR};
      struct world *w = open_world(&way, false);
      struct world_call *call = start_call(w, SML_FLOAT32);
      const uint64_t begin_ns = w->now_ns;
      assert_true(world_call_run(call, LIMIT_NS));
      assert_true(w->now_ns - begin_ns < 5 * SML_NS_PER_MS); /* at once, not after a timeout */
      assert_null(world_call_check(call));
      assert_int_equal(way.num_changed, 1);
      assert_int_equal(world_lane_drops(w, 0, SML_DROP_BAD_CHECK), 1);
      for (uint32_t r = 0; r < NUM_RANKS; r++) assert_int_equal(w->jobs[0].num_integrity[r], 0);
      world_call_free(call);
      world_destroy(w);
    }
  }
}

/* Every phase of a slot has its own two tries. */
static void one_wrong_result_in_each_operation_is_survived(void **state) {
  (void)state;
  struct way way = {.to_rank = 2, .changed_wire = SML_LANES_INT32, .change = 5};
  struct world *w = open_world(&way, false);
  for (uint32_t i = 0; i < 20; i++) {
    way.num_to_change = 1;
    struct world_call *call = start_call(w, i % 2 == 0 ? SML_FLOAT32 : SML_INT32);
    assert_true(world_call_run(call, LIMIT_NS));
    assert_null(world_call_check(call));
    world_call_free(call);
  }
  assert_int_equal(world_lane_drops(w, 0, SML_DROP_BAD_CHECK), 20);
  world_destroy(w);
}

/* ---- results thrown away ---- */

/* Ranks that have an operation's result already take part for the others; they check, and write nothing. */
static void discarded_results_are_checked_all_the_same(void **state) {
  (void)state;
  for (uint32_t is_damaged = 0; is_damaged < 2; is_damaged++) {
    struct way way = {.num_to_change = is_damaged ? 2 : 1,
                      .to_rank = is_damaged ? ANY_RANK : 1,
                      .changed_wire = SML_LANES_INT32,
                      .change = 9};
    struct world *w = open_world(&way, false);
    const struct world_call_options options = {.num_elems = 9 * CHUNK_ELEMS, .discards = 3, .seed = 1};
    struct world_call *call = world_call_create(w, &options);
    world_call_submit_all(call);
    assert_true(world_call_run(call, LIMIT_NS));
    assert_null(world_call_check(call));
    assert_int_equal(world_lane_drops(w, 0, SML_DROP_BAD_CHECK), way.num_changed);
    world_call_free(call);
    world_destroy(w);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_damaged_sum_is_an_error_on_every_rank),
      cmocka_unit_test(an_exponent_that_is_too_low_is_an_error),
      cmocka_unit_test(without_check_words_nobody_would_see_it),
      cmocka_unit_test(a_contribution_in_place_of_another_is_seen),
      cmocka_unit_test(ranks_that_are_told_different_exponents_notice),
      cmocka_unit_test(a_result_that_is_wrong_once_is_asked_for_again),
      cmocka_unit_test(one_wrong_result_in_each_operation_is_survived),
      cmocka_unit_test(discarded_results_are_checked_all_the_same),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
