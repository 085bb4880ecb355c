/* SPDX-License-Identifier: Apache-2.0
 * Keyed jobs: who has not the key can overhear everything, be at the right address and write every field and
 * checksum right, and nothing of it counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/test_world.h"

#define LIMIT_NS (10 * SML_NS_PER_S)
#define CHUNK_BYTES 64u
#define NUM_SLOTS 4u
#define NUM_RANKS 3u
#define PAYLOAD_BYTES (CHUNK_BYTES + SML_CHECK_BYTES)
#define MAX_FRAME_BYTES (SML_HEADER_BYTES + SML_KEYED_BYTES + PAYLOAD_BYTES)

static const struct sml_seal OTHER_KEY = {.is_keyed = true, .key = {1, 2}}, OTHER_MASK = {.mask = 0x12345678};

/* An operation that waits for rank 1, whose update of slot 0 is kept; and what the aggregator last sent to
 * rank 0. */
struct bench {
  struct world *w;
  struct world_call *call;
  bool is_holding, is_holding_result;
  uint8_t update[MAX_FRAME_BYTES], result[MAX_FRAME_BYTES];
  uint32_t update_bytes, result_bytes;
};

static bool hold(void *user, const struct world_port *to, const uint8_t *data, uint32_t num_bytes) {
  struct bench *b = user;
  struct sml_header h;
  if (sml_wire_open(data, num_bytes, &h) != SML_WIRE_OK) return false;
  if (b->is_holding_result && !to->is_aggregator && to->rank == 0) {
    if (h.type == SML_PACKET_RESULT) memcpy(b->result, data, b->result_bytes = num_bytes);
    return true;
  }
  if (!b->is_holding || !to->is_aggregator || h.rank != 1) return false;
  if (h.type == SML_PACKET_UPDATE && h.slot == 0) memcpy(b->update, data, b->update_bytes = num_bytes);
  return true;
}

static struct bench *set_up(bool is_unkeyed) {
  struct bench *b = calloc(1, sizeof *b);
  assert_non_null(b);
  const struct world_options options = {.world_size = NUM_RANKS,
                                        .num_slots = NUM_SLOTS,
                                        .chunk_bytes = CHUNK_BYTES,
                                        .is_unkeyed = is_unkeyed,
                                        .seed = 1,
                                        .on_frame = hold,
                                        .user = b};
  b->w = world_create_started(&options);
  const struct world_call_options call_options = {
      .num_elems = 9 * (CHUNK_BYTES / 4), .type = SML_INT32, .seed = 1};
  b->call = world_call_create(b->w, &call_options);
  b->is_holding = true;
  world_call_submit_all(b->call);
  for (int i = 0; i < 5; i++) assert_true(world_pass(b->w));
  b->is_holding = false;
  assert_true(b->update_bytes > 0);
  return b;
}

static void tear_down(struct bench *b) {
  assert_true(world_call_run(b->call, LIMIT_NS));
  assert_null(world_call_check(b->call));
  assert_int_equal(b->w->num_events, 0);
  world_call_free(b->call);
  world_destroy(b->w);
  free(b);
}

static uint64_t sum_of_drops(const struct world *w) {
  uint64_t sum = 0;
  for (uint32_t d = 0; d < SML_NUM_DROPS; d++) sum += world_drops(w, (enum sml_drop)d);
  return sum;
}

/* From rank 1's own address; the aggregator drops it for `drop` (SML_NUM_DROPS: for any reason), in silence. */
static void expect_drop(struct bench *b, const uint8_t *frame, uint32_t num_bytes, enum sml_drop drop) {
  struct world *w = b->w;
  const uint64_t of_reason = drop < SML_NUM_DROPS ? world_drops(w, drop) : 0, of_all = sum_of_drops(w);
  const uint64_t answers = w->aggregator_ports[0].io->stats.tx_frames;
  world_send_raw(&w->worker_ports[1][0], frame, num_bytes, &w->aggregator_ports[0].addr);
  (void)sml_aggregator_engine_run_once(w->aggregators[0], w->now_ns);
  assert_int_equal(sum_of_drops(w), of_all + 1);
  if (drop < SML_NUM_DROPS) assert_int_equal(world_drops(w, drop), of_reason + 1);
  else assert_int_equal(w->aggregator_ports[0].io->stats.tx_frames, answers);
}

/* A frame with all that can be known of it right, sealed so. */
static uint32_t forge(uint8_t *frame, const struct bench *b, uint8_t type, const struct sml_seal *seal) {
  struct sml_header h;
  assert_int_equal(sml_wire_open(b->update, b->update_bytes, &h), SML_WIRE_OK);
  h.type = type;
  const uint32_t head_bytes = sml_head_bytes(seal != NULL && seal->is_keyed);
  memset(frame, 0, MAX_FRAME_BYTES);
  if (type == SML_PACKET_UPDATE || type == SML_PACKET_RESULT) frame[head_bytes] = 7;
  else {
    h.flags = 0;
    h.payload_bytes = type == SML_PACKET_HELLO ? 8 : type == SML_PACKET_PENDING ? 1 : 0;
    if (type == SML_PACKET_HELLO) sml_store_be64(frame + head_bytes, b->w->jobs[0].nonces[1][0]);
    if (type == SML_PACKET_PENDING) frame[head_bytes] = 1;
  }
  sml_wire_seal(frame, &h, seal);
  return head_bytes + h.payload_bytes;
}

static void without_the_key_nothing_reaches_the_aggregators_state(void **state) {
  (void)state;
  for (uint32_t is_unkeyed = 0; is_unkeyed < 2; is_unkeyed++) {
    struct bench *b = set_up(is_unkeyed);
    uint8_t frame[MAX_FRAME_BYTES];
    for (uint8_t type = SML_PACKET_UPDATE; type <= SML_PACKET_PROBE; type++) {
      expect_drop(b, frame, forge(frame, b, type, &OTHER_KEY), SML_DROP_BAD_KEY);
      expect_drop(b, frame, forge(frame, b, type, NULL), is_unkeyed ? SML_DROP_BAD_CRC : SML_DROP_BAD_KEY);
      expect_drop(b, frame, forge(frame, b, type, &OTHER_MASK), is_unkeyed ? SML_DROP_BAD_CRC : SML_DROP_BAD_KEY);
    }
    tear_down(b);
  }
}

/* Who guesses the epoch, the mask, or the right kind of packet, learns nothing of having been right: of a job without a
 * key all is dropped for one reason and without an answer, until all is right at once. */
static void no_half_of_the_secret_shows_by_itself(void **state) {
  (void)state;
  struct bench *b = set_up(true);
  const struct sml_seal *right = world_seal(b->w, 0);
  uint8_t frame[MAX_FRAME_BYTES];
  for (uint8_t type = SML_PACKET_UPDATE; type <= SML_PACKET_PROBE; type++) {
    for (uint32_t guess = 0; guess < 6; guess++) {
      const bool is_right_epoch = guess % 2 == 0;
      const struct sml_seal *seal = guess < 2 ? right : guess < 4 ? &OTHER_MASK : &OTHER_KEY;
      if (is_right_epoch && seal == right) continue;
      const uint32_t num_bytes = forge(frame, b, type, seal);
      struct sml_header h;
      assert_int_equal(sml_wire_open(frame, num_bytes, &h), SML_WIRE_OK);
      if (!is_right_epoch) h.epoch ^= 0x10000;
      sml_wire_seal(frame, &h, seal);
      const uint64_t num_sent = b->w->aggregator_ports[0].io->stats.tx_frames;
      const enum sml_drop drop = seal->is_keyed ? SML_DROP_BAD_KEY : SML_DROP_BAD_CRC;
      struct sml_job_look before = {.world_size = NUM_RANKS, .num_lanes = 1}, after = before;
      struct sml_rank_look ranks[2][NUM_RANKS] = {{{.slots_missing = 0}}};
      before.ranks = ranks[0], after.ranks = ranks[1];
      sml_aggregator_engine_look(b->w->aggregators[0], b->w->jobs[0].number, &before);
      expect_drop(b, frame, num_bytes, drop);
      sml_aggregator_engine_look(b->w->aggregators[0], b->w->jobs[0].number, &after);
      assert_int_equal(b->w->aggregator_ports[0].io->stats.tx_frames, num_sent);
      assert_int_equal(after.num_drops[drop], before.num_drops[drop] + 1); /* the status shows these */
      assert_memory_equal(ranks[0], ranks[1], sizeof ranks[0]);
    }
  }
  tear_down(b);
}

/* Each bit of a frame, changed by somebody on the way. */
static void no_bit_of_a_keyed_frame_can_be_changed(void **state) {
  (void)state;
  struct bench *b = set_up(false);
  for (uint32_t bit = 0; bit < 8 * b->update_bytes; bit++) {
    uint8_t frame[MAX_FRAME_BYTES];
    memcpy(frame, b->update, sizeof frame);
    frame[bit / 8] ^= (uint8_t)(0x80u >> bit % 8);
    const bool is_elsewhere = bit / 8 >= 2 && bit / 8 < 8; /* job and epoch: no key to try */
    const bool is_payload = bit / 8 >= 28; /* or the MAC */
    if (is_elsewhere) expect_drop(b, frame, b->update_bytes, bit / 8 < 4 ? SML_DROP_UNKNOWN_JOB : SML_DROP_WRONG_EPOCH);
    else expect_drop(b, frame, b->update_bytes, is_payload ? SML_DROP_BAD_KEY : SML_NUM_DROPS);
  }
  tear_down(b);
}

/* ---- at the worker ---- */

static uint64_t drops_of_rank_0(const struct bench *b, enum sml_drop drop) {
  struct sml_lane_snapshot s;
  sml_lane_snapshot(b->w->jobs[0].lanes[0][0], &s);
  return s.num_drops[drop];
}

static void expect_refused(struct bench *b, const uint8_t *frame, uint32_t num_bytes, enum sml_drop drop) {
  struct sml_lane_snapshot before, after;
  sml_lane_snapshot(b->w->jobs[0].lanes[0][0], &before);
  world_send_raw(&b->w->aggregator_ports[0], frame, num_bytes, &b->w->worker_ports[0][0].addr);
  (void)sml_worker_engine_run_once(b->w->workers[0][0], b->w->now_ns);
  sml_lane_snapshot(b->w->jobs[0].lanes[0][0], &after);
  assert_int_equal(after.num_drops[drop], before.num_drops[drop] + 1);
  assert_int_equal(after.dropped_packets, before.dropped_packets + 1);
  assert_int_equal(after.chunks_completed, before.chunks_completed);
  assert_int_equal(after.num_missing, before.num_missing);
  assert_false(after.has_error_reply);
}

static void without_the_key_nothing_reaches_a_ranks_state(void **state) {
  (void)state;
  static const uint8_t types[] = {SML_PACKET_RESULT, SML_PACKET_PENDING, SML_PACKET_ERROR, SML_PACKET_UPDATE};
  for (uint32_t is_unkeyed = 0; is_unkeyed < 2; is_unkeyed++) {
    struct bench *b = set_up(is_unkeyed);
    uint8_t frame[MAX_FRAME_BYTES];
    for (size_t i = 0; i < SML_ARRAY_LEN(types); i++) {
      const enum sml_drop drop = is_unkeyed ? SML_DROP_BAD_CRC : SML_DROP_BAD_KEY;
      expect_refused(b, frame, forge(frame, b, types[i], &OTHER_KEY), SML_DROP_BAD_KEY);
      expect_refused(b, frame, forge(frame, b, types[i], NULL), drop);
      expect_refused(b, frame, forge(frame, b, types[i], &OTHER_MASK), drop);
    }
    /* With the key, the aggregator may say that it does not know the job. */
    const uint32_t num_bytes = forge(frame, b, SML_PACKET_ERROR, world_seal(b->w, 0));
    world_send_raw(&b->w->aggregator_ports[0], frame, num_bytes, &b->w->worker_ports[0][0].addr);
    (void)sml_worker_engine_run_once(b->w->workers[0][0], b->w->now_ns);
    struct sml_lane_snapshot s;
    sml_lane_snapshot(b->w->jobs[0].lanes[0][0], &s);
    assert_true(s.has_error_reply);
    tear_down(b);
  }
}

/* An ERROR is believed if its sender has seen a packet of this rank, and otherwise not. */
static void an_error_answers_a_packet(void **state) {
  (void)state;
  struct bench *b = set_up(true);
  uint8_t frame[MAX_FRAME_BYTES], answer[SML_HEADER_BYTES];
  memcpy(frame, b->update, b->update_bytes);
  struct sml_header h;
  assert_int_equal(sml_wire_open(frame, b->update_bytes, &h), SML_WIRE_OK);
  h.type = SML_PACKET_ERROR;
  h.payload_bytes = 0;
  h.flags = 0;
  const struct sml_seal overheard = {.mask = sml_wire_mask(frame, &h) ^ 1}, none = {.mask = 0};
  sml_wire_seal(answer, &h, &overheard);
  expect_refused(b, answer, sizeof answer, SML_DROP_BAD_CRC);
  sml_wire_seal(answer, &h, &none);
  expect_refused(b, answer, sizeof answer, SML_DROP_BAD_CRC);
  tear_down(b);
}

/* The payload of a real result, changed on the way; then the real one counts. */
static void a_changed_result_is_refused(void **state) {
  (void)state;
  struct bench *b = set_up(false);
  b->is_holding_result = true;
  world_send_raw(&b->w->worker_ports[1][0], b->update, b->update_bytes, &b->w->aggregator_ports[0].addr);
  (void)sml_aggregator_engine_run_once(b->w->aggregators[0], b->w->now_ns);
  (void)sml_worker_engine_run_once(b->w->workers[0][0], b->w->now_ns);
  b->is_holding_result = false;
  assert_true(b->result_bytes > 0);
  for (uint32_t bit = 0; bit < 8 * b->result_bytes; bit += 3) {
    if (bit / 8 < 8 || bit / 8 == 10 || bit / 8 == 11 || bit / 16 == 7) continue;
    uint8_t frame[MAX_FRAME_BYTES];
    memcpy(frame, b->result, sizeof frame);
    frame[bit / 8] ^= (uint8_t)(0x80u >> bit % 8);
    expect_refused(b, frame, b->result_bytes, SML_DROP_BAD_KEY);
  }
  const uint64_t before = drops_of_rank_0(b, SML_DROP_BAD_KEY);
  world_send_raw(&b->w->aggregator_ports[0], b->result, b->result_bytes, &b->w->worker_ports[0][0].addr);
  (void)sml_worker_engine_run_once(b->w->workers[0][0], b->w->now_ns);
  assert_int_equal(drops_of_rank_0(b, SML_DROP_BAD_KEY), before);
  struct sml_lane_snapshot s;
  sml_lane_snapshot(b->w->jobs[0].lanes[0][0], &s);
  assert_int_equal(s.chunks_completed, 1);
  tear_down(b);
}

/* ---- again ---- */

/* A packet of the last epoch: as it is, and made to look like one of this epoch. */
static void a_packet_of_another_epoch_has_another_key(void **state) {
  (void)state;
  struct bench *b = set_up(false);
  uint8_t frame[MAX_FRAME_BYTES];
  assert_true(world_call_run(b->call, LIMIT_NS));
  assert_null(world_call_check(b->call));
  world_call_free(b->call);
  world_restart_job(b->w, 0, 0xfeed0001);
  const struct world_call_options options = {.num_elems = 9 * (CHUNK_BYTES / 4), .type = SML_INT32, .seed = 2};
  b->call = world_call_create(b->w, &options);
  world_call_submit(b->call, 0);
  for (int i = 0; i < 3; i++) assert_true(world_pass(b->w));
  expect_drop(b, b->update, b->update_bytes, SML_DROP_WRONG_EPOCH);
  memcpy(frame, b->update, sizeof frame);
  sml_store_be32(frame + 4, 0xfeed0001);
  expect_drop(b, frame, b->update_bytes, SML_DROP_BAD_KEY);
  world_call_submit(b->call, 1);
  world_call_submit(b->call, 2);
  tear_down(b);
}

/* A packet of this epoch is the same packet, however late: phases know it. */
static void a_packet_of_this_epoch_counts_once(void **state) {
  (void)state;
  struct bench *b = set_up(false);
  assert_true(world_call_run(b->call, LIMIT_NS));
  for (int i = 0; i < 50; i++) {
    if (world_drops(b->w, SML_DROP_STALE_PHASE) > 0) break;
    const struct world_call_options options = {.num_elems = 9 * (CHUNK_BYTES / 4), .type = SML_INT32, .seed = 2};
    struct world_call *call = world_call_create(b->w, &options);
    world_call_submit_all(call);
    world_send_raw(&b->w->worker_ports[1][0], b->update, b->update_bytes, &b->w->aggregator_ports[0].addr);
    assert_true(world_call_run(call, LIMIT_NS));
    assert_null(world_call_check(call));
    world_call_free(call);
  }
  assert_int_equal(world_drops(b->w, SML_DROP_BAD_KEY), 0);
  assert_true(world_drops(b->w, SML_DROP_STALE_PHASE) > 0);
  tear_down(b);
}

/* ---- HELLO ---- */

static void note_hello(struct sml_hello *hello, bool is_echoed) {
  *(int *)hello->user = is_echoed;
}

/* Exchanges a HELLO of rank 0 in a job that is open; returns whether the echo came. */
static bool say_hello_for(struct world *w, const struct sml_seal *seal, uint64_t patience_ns) {
  int is_echoed = -1;
  struct sml_hello hello = {.job = w->jobs[0].number,
                            .epoch = w->jobs[0].epoch,
                            .nonce = w->jobs[0].nonces[0][0],
                            .to = w->aggregator_ports[0].addr,
                            .datagram_bytes = 100,
                            .seal = *seal,
                            .interval_ns = SML_NS_PER_MS,
                            .deadline_ns = w->now_ns + patience_ns,
                            .done = note_hello,
                            .user = &is_echoed};
  sml_worker_engine_hello(w->workers[0][0], &hello);
  while (is_echoed < 0) (void)world_pass(w);
  return is_echoed == 1;
}

static bool say_hello(struct world *w, const struct sml_seal *seal) {
  return say_hello_for(w, seal, 20 * SML_NS_PER_MS);
}

/* Whoever asks may have been stopped meanwhile. */
static void a_hello_goes_out_even_if_its_time_is_over(void **state) {
  (void)state;
  const struct world_options options = {
      .world_size = 2, .num_slots = NUM_SLOTS, .chunk_bytes = CHUNK_BYTES, .seed = 1};
  struct world *w = world_create(&options);
  world_open_job(w, 0, 77);
  assert_true(say_hello_for(w, world_seal(w, 0), 0));
  assert_false(say_hello_for(w, &OTHER_KEY, 0));
  world_destroy(w);
}

static void a_hello_needs_the_key_too(void **state) {
  (void)state;
  for (uint32_t is_unkeyed = 0; is_unkeyed < 2; is_unkeyed++) {
    const struct world_options options = {.world_size = 2,
                                          .num_slots = NUM_SLOTS,
                                          .chunk_bytes = CHUNK_BYTES,
                                          .is_unkeyed = is_unkeyed,
                                          .seed = 1};
    struct world *w = world_create(&options);
    world_open_job(w, 0, 77);
    assert_false(say_hello(w, &OTHER_KEY));
    const uint64_t num_refused = world_drops(w, SML_DROP_BAD_KEY);
    assert_true(num_refused >= 19);
    assert_false(say_hello(w, &OTHER_MASK));
    assert_int_equal(world_drops(w, SML_DROP_BAD_KEY) > num_refused, !is_unkeyed);
    assert_int_equal(world_drops(w, SML_DROP_BAD_CRC) > 0, is_unkeyed);
    assert_true(say_hello(w, world_seal(w, 0)));
    world_destroy(w);
  }
}

/* Echoes in answer to a rank's HELLO, from a sender without the key. */
static bool echo_under_another_key(void *user, const struct world_port *to, const uint8_t *data,
                                   uint32_t num_bytes) {
  struct world **w = user;
  struct sml_header h;
  if (!to->is_aggregator || sml_wire_open(data, num_bytes, &h) != SML_WIRE_OK) return false;
  uint8_t frame[200] = {0};
  const uint32_t payload_bytes = h.payload_bytes;
  memcpy(frame + 48, data + 48, payload_bytes);
  sml_wire_seal(frame, &h, &OTHER_KEY);
  world_send_raw(&(*w)->aggregator_ports[0], frame, num_bytes, &(*w)->worker_ports[0][0].addr);
  return true;
}

static void an_echo_needs_the_key_too(void **state) {
  (void)state;
  struct world *w = NULL;
  const struct world_options options = {.world_size = 2,
                                        .num_slots = NUM_SLOTS,
                                        .chunk_bytes = CHUNK_BYTES,
                                        .seed = 1,
                                        .on_frame = echo_under_another_key,
                                        .user = &w};
  w = world_create(&options);
  world_open_job(w, 0, 77);
  assert_false(say_hello(w, world_seal(w, 0)));
  world_destroy(w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(without_the_key_nothing_reaches_the_aggregators_state),
      cmocka_unit_test(no_half_of_the_secret_shows_by_itself),
      cmocka_unit_test(an_error_answers_a_packet),
      cmocka_unit_test(no_bit_of_a_keyed_frame_can_be_changed),
      cmocka_unit_test(without_the_key_nothing_reaches_a_ranks_state),
      cmocka_unit_test(a_changed_result_is_refused),
      cmocka_unit_test(a_packet_of_another_epoch_has_another_key),
      cmocka_unit_test(a_packet_of_this_epoch_counts_once),
      cmocka_unit_test(a_hello_needs_the_key_too),
      cmocka_unit_test(a_hello_goes_out_even_if_its_time_is_over),
      cmocka_unit_test(an_echo_needs_the_key_too),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
