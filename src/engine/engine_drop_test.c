/* SPDX-License-Identifier: Apache-2.0
 * One thing wrong with a packet at a time. The right counter goes up by one, nothing else changes: the
 * operation under way still ends with the exact sum. */
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
#define MAX_FRAME_BYTES (SML_HEADER_BYTES + SML_KEYED_BYTES + CHUNK_BYTES + SML_CHECK_BYTES)
#define PLAIN ((void *)1) /* a test's state: without check words and MACs */

/* An operation that waits for rank 1: its updates are held, the first is kept. Rank 1's own frames, and all
 * that go to it, can be made at will. */
struct bench {
  struct world *w;
  struct world_call *call;
  bool is_holding;
  uint32_t head_bytes, payload_bytes, frame_bytes; /* of a full update */
  uint8_t frame[MAX_FRAME_BYTES];   /* rank 1's update of slot 0 */
  struct sml_header h;              /* its header */
  uint8_t counted[MAX_FRAME_BYTES]; /* rank 0's, which is in the sum */
};

static bool hold_rank_1(void *user, const struct world_port *to, const uint8_t *data, uint32_t num_bytes) {
  struct bench *b = user;
  struct sml_header h;
  if (!b->is_holding || !to->is_aggregator || sml_wire_open(data, num_bytes, &h) != SML_WIRE_OK) return false;
  if (h.type != SML_PACKET_UPDATE || h.slot != 0) return h.rank == 1;
  if (h.rank == 0) memcpy(b->counted, data, num_bytes);
  if (h.rank != 1) return false;
  memcpy(b->frame, data, num_bytes);
  b->h = h;
  return true;
}

static struct bench *set_up(void **state) {
  struct bench *b = calloc(1, sizeof *b);
  assert_non_null(b);
  const struct world_options options = {.world_size = NUM_RANKS,
                                        .num_slots = NUM_SLOTS,
                                        .chunk_bytes = CHUNK_BYTES,
                                        .is_unchecked = *state == PLAIN,
                                        .is_unkeyed = *state == PLAIN,
                                        .seed = 1,
                                        .on_frame = hold_rank_1,
                                        .user = b};
  b->w = world_create_started(&options);
  const struct world_call_options call_options = {
      .num_elems = 9 * (CHUNK_BYTES / 4), .type = SML_INT32, .seed = 1};
  b->call = world_call_create(b->w, &call_options);
  b->is_holding = true;
  world_call_submit_all(b->call);
  for (int i = 0; i < 5; i++) assert_true(world_pass(b->w));
  assert_int_equal(b->h.rank, 1);
  b->head_bytes = world_head_bytes(b->w);
  b->payload_bytes = CHUNK_BYTES + (*state == PLAIN ? 0 : SML_CHECK_BYTES);
  b->frame_bytes = b->head_bytes + b->payload_bytes;
  assert_int_equal(b->h.payload_bytes, b->payload_bytes);
  b->is_holding = false;
  return b;
}

static void tear_down(struct bench *b) {
  assert_true(world_call_run(b->call, LIMIT_NS));
  assert_null(world_call_check(b->call));
  world_call_free(b->call);
  world_destroy(b->w);
  free(b);
}

static void run_aggregator(struct world *w) {
  (void)sml_aggregator_engine_run_once(w->aggregators[0], w->now_ns);
}

static uint64_t sum_drops(const struct world *w) {
  uint64_t sum = 0;
  for (uint32_t d = 0; d < SML_NUM_DROPS; d++) sum += world_drops(w, (enum sml_drop)d);
  return sum;
}

/* The aggregator takes what was sent, counts it as `drop` and answers with at most that many bytes. */
static void expect_drop(struct bench *b, const char *name, enum sml_drop drop, uint64_t max_answer_bytes) {
  struct world *w = b->w;
  const uint64_t of_reason = world_drops(w, drop), of_all = sum_drops(w);
  const struct sml_netio_stats *stats = &w->aggregator_ports[0].io->stats;
  const uint64_t answer_bytes = stats->tx_bytes;
  run_aggregator(w);
  if (world_drops(w, drop) != of_reason + 1 || sum_drops(w) != of_all + 1)
    fail_msg("%s: not counted once as %s", name, sml_drop_name(drop));
  if (stats->tx_bytes - answer_bytes > max_answer_bytes) fail_msg("%s: answered with too much", name);
}

enum field {
  JOB,
  EPOCH,
  RANK,
  SLOT,
  PHASE,
  TAG,
  PAYLOAD_BYTES,
  MORE_BYTES,
  TYPE,
  WIRE,
  REDUCER,
  WIRE_AND_REDUCER,
  FLAGS
};
#define NO_EVENT (-1)

struct mutation {
  const char *name;
  enum field field;
  uint32_t value;
  enum sml_drop drop;
  int event;
};

static const struct mutation mutations[] = {
    {"a job that does not exist", JOB, 5, SML_DROP_UNKNOWN_JOB, NO_EVENT},
    {"a job beyond the table", JOB, SML_MAX_JOBS, SML_DROP_UNKNOWN_JOB, NO_EVENT},
    {"the largest job", JOB, 0xffff, SML_DROP_UNKNOWN_JOB, NO_EVENT},
    {"the next epoch", EPOCH, 0xfeed0001, SML_DROP_WRONG_EPOCH, NO_EVENT},
    {"epoch 0", EPOCH, 0, SML_DROP_WRONG_EPOCH, NO_EVENT},
    {"the first rank too many", RANK, NUM_RANKS, SML_DROP_BAD_RANK, NO_EVENT},
    {"the largest rank", RANK, 0xffff, SML_DROP_BAD_RANK, NO_EVENT},
    {"another member's rank", RANK, 2, SML_DROP_WRONG_SOURCE, NO_EVENT},
    {"the first slot too many", SLOT, NUM_SLOTS, SML_DROP_BAD_SLOT, NO_EVENT},
    {"the largest slot", SLOT, 0xffff, SML_DROP_BAD_SLOT, NO_EVENT},
    {"phase 0", PHASE, 0, SML_DROP_STALE_PHASE, NO_EVENT},
    {"the phase before the first", PHASE, 1, SML_DROP_STALE_PHASE, NO_EVENT},
    {"the next phase of the other version", PHASE, 3, SML_DROP_FUTURE_PHASE, SML_EVENT_JUMP},
    {"the next phase of the version", PHASE, 4, SML_DROP_FUTURE_PHASE, SML_EVENT_JUMP},
    {"the last phase", PHASE, UINT32_MAX, SML_DROP_FUTURE_PHASE, SML_EVENT_JUMP},
    {"a phase that looks negative", PHASE, 0x80000002, SML_DROP_FUTURE_PHASE, SML_EVENT_JUMP},
    {"another tag", TAG, 0x12345678, SML_DROP_TAG_MISMATCH, SML_EVENT_MISMATCH},
    {"no payload", PAYLOAD_BYTES, 0, SML_DROP_BAD_LENGTH, NO_EVENT},
    {"half an element", MORE_BYTES, (uint32_t)-2, SML_DROP_BAD_LENGTH, NO_EVENT},
    {"an element too many", MORE_BYTES, 4, SML_DROP_BAD_LENGTH, NO_EVENT},
    {"an element too few", MORE_BYTES, (uint32_t)-4, SML_DROP_TAG_MISMATCH, SML_EVENT_MISMATCH},
    {"type 0", TYPE, 0, SML_DROP_BAD_TYPE, NO_EVENT},
    {"a result", TYPE, SML_PACKET_RESULT, SML_DROP_BAD_TYPE, NO_EVENT},
    {"a pending", TYPE, SML_PACKET_PENDING, SML_DROP_BAD_TYPE, NO_EVENT},
    {"an error", TYPE, SML_PACKET_ERROR, SML_DROP_BAD_TYPE, NO_EVENT},
    {"an abort", TYPE, SML_PACKET_ABORT, SML_DROP_BAD_TYPE, NO_EVENT},
    {"a switch's type", TYPE, 14, SML_DROP_BAD_TYPE, NO_EVENT},
    {"a hello without its nonce", TYPE, SML_PACKET_HELLO, SML_DROP_BAD_NONCE, NO_EVENT},
    {"a probe with a payload", TYPE, SML_PACKET_PROBE, SML_DROP_BAD_LENGTH, NO_EVENT},
    {"an unknown wire type", WIRE, 2, SML_DROP_BAD_TYPE, NO_EVENT},
    {"bytes summed", WIRE, SML_LANES_UINT8, SML_DROP_BAD_TYPE, NO_EVENT},
    {"integers maximized", REDUCER, SML_REDUCE_MAX, SML_DROP_BAD_TYPE, NO_EVENT},
    {"an unknown reducer", REDUCER, 9, SML_DROP_BAD_TYPE, NO_EVENT},
    {"exponents", WIRE_AND_REDUCER, 1, SML_DROP_TAG_MISMATCH, SML_EVENT_MISMATCH},
    {"with a check word or without", FLAGS, SML_FLAG_CHECKED, SML_DROP_BAD_TYPE, NO_EVENT},
    {"an unknown flag", FLAGS, 8, SML_DROP_BAD_TYPE, NO_EVENT},
    {"all other flags", FLAGS, 0xffff, SML_DROP_BAD_TYPE, NO_EVENT},
};

static void set_field(struct sml_header *h, enum field field, uint32_t value) {
  switch (field) {
    case JOB:
      h->job = (uint16_t)value;
      break;
    case EPOCH:
      h->epoch = value;
      break;
    case RANK:
      h->rank = (uint16_t)value;
      break;
    case SLOT:
      h->slot = (uint16_t)value;
      break;
    case PHASE:
      h->phase = value;
      break;
    case TAG:
      h->tag = value;
      break;
    case PAYLOAD_BYTES:
      h->payload_bytes = (uint16_t)value;
      break;
    case MORE_BYTES:
      h->payload_bytes = (uint16_t)(h->payload_bytes + value);
      break;
    case TYPE: /* only sums have a check word */
      h->type = (uint8_t)value;
      if (value != SML_PACKET_RESULT) h->flags &= (uint16_t)~SML_FLAG_CHECKED;
      break;
    case WIRE:
      h->wire = (uint8_t)value;
      break;
    case REDUCER:
      h->reducer = (uint8_t)value;
      break;
    case WIRE_AND_REDUCER:
      h->wire = h->reducer = (uint8_t)value;
      h->flags &= (uint16_t)~SML_FLAG_CHECKED;
      if (h->payload_bytes > CHUNK_BYTES) h->payload_bytes = CHUNK_BYTES;
      break;
    case FLAGS: /* those that are to be the other way round */
      h->flags ^= (uint16_t)value;
      break;
  }
}

static void each_field_wrong_alone(void **state) {
  const uint8_t payload[2 * CHUNK_BYTES] = {1, 2, 3, 4};
  for (size_t i = 0; i < SML_ARRAY_LEN(mutations); i++) {
    const struct mutation *m = &mutations[i];
    struct bench *b = set_up(state);
    struct sml_header h = b->h;
    set_field(&h, m->field, m->value);
    for (uint32_t twice = 0; twice < 2; twice++) {
      world_send(&b->w->worker_ports[1][0], &h, payload, &b->w->aggregator_ports[0].addr);
      const bool may_be_told = m->drop != SML_DROP_WRONG_EPOCH || b->w->jobs[0].seal.is_keyed;
      expect_drop(b, m->name, may_be_told ? m->drop : SML_DROP_BAD_CRC, SML_HEADER_BYTES);
    }
    assert_int_equal(b->w->num_events, m->event == NO_EVENT ? 0 : 1); /* however often it comes */
    if (m->event != NO_EVENT) {
      const struct sml_aggregator_event *event = &b->w->events[0];
      assert_int_equal(event->kind, m->event);
      assert_int_equal(event->job, 0);
      assert_int_equal(event->epoch, 0xfeed0000);
      assert_int_equal(event->rank_a, 1);
      assert_int_equal(event->rank_b, m->event == SML_EVENT_MISMATCH ? 0 : 1);
      assert_int_equal(event->slot, 0);
    }
    tear_down(b);
  }
}

/* The CRC or the MAC finds what is not seen without it; before it come those who might know the mask or the key. */
static enum sml_drop drop_of_changed(const struct bench *b, const uint8_t *frame) {
  struct sml_header h;
  const enum sml_wire_error error = sml_wire_open(frame, b->frame_bytes, &h);
  if (error != SML_WIRE_OK) return sml_drop_of_wire(error);
  if (h.job != b->h.job) return SML_DROP_UNKNOWN_JOB;
  if (!b->w->jobs[0].seal.is_keyed) return SML_DROP_BAD_CRC;
  return h.epoch != b->h.epoch ? SML_DROP_WRONG_EPOCH : SML_DROP_BAD_KEY;
}

/* Every single bit of a frame, flipped on the way. */
static void each_bit_flipped(void **state) {
  struct bench *b = set_up(state);
  for (uint32_t bit = 0; bit < b->frame_bytes * 8; bit++) {
    uint8_t frame[MAX_FRAME_BYTES];
    memcpy(frame, b->frame, sizeof frame);
    frame[bit / 8] ^= (uint8_t)(0x80u >> bit % 8);
    enum sml_drop drop = drop_of_changed(b, frame);
    if (bit < 4) drop = SML_DROP_BAD_VERSION;
    /* The length, of which KEYED is a part, is compared before the checksum can be. */
    const uint32_t bytes = sml_head_bytes((frame[15] & SML_FLAG_KEYED) != 0) + sml_load_be16(frame + 10);
    if (bytes != b->frame_bytes) drop = bytes > b->frame_bytes ? SML_DROP_TRUNCATED : SML_DROP_OVERLONG;
    world_send_raw(&b->w->worker_ports[1][0], frame, b->frame_bytes, &b->w->aggregator_ports[0].addr);
    expect_drop(b, "a flipped bit", drop, SML_HEADER_BYTES); /* ERROR */
  }
  assert_int_equal(b->w->num_events, 0);
  tear_down(b);
}

static void each_length_but_the_right_one(void **state) {
  struct bench *b = set_up(state);
  uint8_t frame[MAX_FRAME_BYTES + 16] = {0};
  memcpy(frame, b->frame, MAX_FRAME_BYTES);
  for (uint32_t num_bytes = 1; num_bytes <= sizeof frame; num_bytes++) {
    if (num_bytes == b->frame_bytes) continue;
    world_send_raw(&b->w->worker_ports[1][0], frame, num_bytes, &b->w->aggregator_ports[0].addr);
    expect_drop(b, "a wrong length", num_bytes < b->frame_bytes ? SML_DROP_TRUNCATED : SML_DROP_OVERLONG, 0);
  }
  tear_down(b);
}

/* The chunk number of an update is for people who read packets: the tag says what it is. */
static void the_chunk_number_of_an_update_is_not_compared(void **state) {
  struct bench *b = set_up(state);
  struct sml_header h = b->h;
  h.chunk ^= 0xffffffff;
  const uint64_t before = sum_drops(b->w);
  world_send(&b->w->worker_ports[1][0], &h, b->frame + b->head_bytes, &b->w->aggregator_ports[0].addr);
  run_aggregator(b->w);
  assert_int_equal(sum_drops(b->w), before);
  tear_down(b);
}

static void a_counted_contribution_is_not_counted_again(void **state) {
  struct bench *b = set_up(state);
  struct world *w = b->w;
  world_send_raw(&w->worker_ports[0][0], b->counted, b->frame_bytes, &w->aggregator_ports[0].addr);
  expect_drop(b, "a duplicate", SML_DROP_DUPLICATE, 0);
  /* Sent again on purpose, it is a question too: who is missing? */
  struct sml_header h;
  assert_int_equal(sml_wire_open(b->counted, b->frame_bytes, &h), SML_WIRE_OK);
  h.flags |= SML_FLAG_RETRANSMISSION;
  const uint64_t tx_bytes = w->aggregator_ports[0].io->stats.tx_bytes;
  world_send(&w->worker_ports[0][0], &h, b->counted + b->head_bytes, &w->aggregator_ports[0].addr);
  expect_drop(b, "a needless repeat", SML_DROP_NEEDLESS, b->head_bytes + 1);
  assert_int_equal(w->aggregator_ports[0].io->stats.tx_bytes - tx_bytes, b->head_bytes + 1);
  struct sml_lane_snapshot s;
  (void)sml_worker_engine_run_once(w->workers[0][0], w->now_ns);
  sml_lane_snapshot(w->jobs[0].lanes[0][0], &s);
  assert_int_equal(s.num_missing, 1);
  assert_int_equal(s.missing[0], 1);
  assert_true(s.is_waiting);
  tear_down(b);
}

static struct world_port open_stranger(struct world *w) {
  struct world_port port = {.world = w, .io = sml_mem_open(w->hub, 4096, MAX_FRAME_BYTES)};
  assert_non_null(port.io);
  port.io->ops->local_addr(port.io, &port.addr);
  return port;
}

static struct sml_header hello_header(const struct world *w, uint16_t rank) {
  return (struct sml_header){.version = SML_WIRE_VERSION,
                             .type = SML_PACKET_HELLO,
                             .job = w->jobs[0].number,
                             .epoch = w->jobs[0].epoch,
                             .rank = rank,
                             .payload_bytes = 8};
}

static void a_stranger_cannot_speak_for_a_rank(void **state) {
  struct bench *b = set_up(state);
  struct world *w = b->w;
  struct world_port stranger = open_stranger(w);
  const struct sml_addr *to = &w->aggregator_ports[0].addr;
  world_send_raw(&stranger, b->frame, b->frame_bytes, to);
  expect_drop(b, "a stranger's update", SML_DROP_WRONG_SOURCE, 0);
  struct sml_header h = b->h;
  h.type = SML_PACKET_PROBE;
  h.flags = 0;
  h.payload_bytes = 0;
  world_send(&stranger, &h, NULL, to);
  expect_drop(b, "a stranger's probe", SML_DROP_WRONG_SOURCE, 0);

  uint8_t nonce[8] = {0};
  h = hello_header(w, 1);
  sml_store_be64(nonce, w->jobs[0].nonces[1][0] ^ 1);
  world_send(&stranger, &h, nonce, to);
  expect_drop(b, "a hello with a wrong nonce", SML_DROP_BAD_NONCE, 0);
  sml_store_be64(nonce, w->jobs[0].nonces[0][0]);
  world_send(&stranger, &h, nonce, to);
  expect_drop(b, "a hello with another rank's nonce", SML_DROP_BAD_NONCE, 0);
  sml_store_be64(nonce, w->jobs[0].nonces[1][0]);
  world_send(&stranger, &h, nonce, to);
  expect_drop(b, "an overheard hello", SML_DROP_WRONG_SOURCE, 0);
  h.payload_bytes = 7;
  world_send(&stranger, &h, nonce, to);
  expect_drop(b, "a hello with half a nonce", SML_DROP_BAD_NONCE, 0);
  stranger.io->ops->close(stranger.io);
  tear_down(b); /* rank 1 is still where it was */
}

static void nothing_is_summed_before_the_start(void **state) {
  (void)state;
  struct bench b = {0};
  const struct world_options options = {.world_size = 2,
                                        .num_slots = NUM_SLOTS,
                                        .chunk_bytes = CHUNK_BYTES,
                                        .seed = 1};
  struct world *w = b.w = world_create(&options);
  world_open_job(w, 0, 77);
  const uint8_t payload[CHUNK_BYTES] = {0};
  struct sml_header h = {.type = SML_PACKET_UPDATE, .epoch = 77, .payload_bytes = CHUNK_BYTES, .phase = 2};
  world_send(&w->worker_ports[0][0], &h, payload, &w->aggregator_ports[0].addr);
  expect_drop(&b, "before its hello", SML_DROP_WRONG_SOURCE, 0);
  assert_true(world_exchange_hellos(w, 0));
  world_send(&w->worker_ports[0][0], &h, payload, &w->aggregator_ports[0].addr);
  expect_drop(&b, "before the start", SML_DROP_NOT_STARTED, 0);
  world_start_job(w, 0);
  const struct world_call_options call_options = {.num_elems = 100, .seed = 1};
  struct world_call *call = world_call_create(w, &call_options);
  world_call_submit_all(call);
  assert_true(world_call_run(call, LIMIT_NS));
  assert_null(world_call_check(call));
  world_call_free(call);
  world_destroy(w);
}

/* A flood of packets of a job that is gone: answered now and then, with less than was asked. */
static void error_answers_are_rationed(void **state) {
  struct bench *b = set_up(state);
  struct world *w = b->w;
  struct world_port stranger = open_stranger(w);
  const struct sml_netio_stats *stats = &w->aggregator_ports[0].io->stats;
  struct sml_header h = b->h;
  h.job = 700;
  const uint64_t before = stats->tx_frames, seconds = 3;
  for (uint64_t i = 0; i < seconds * 10000; i++) {
    h.type = i % 2 == 0 ? SML_PACKET_UPDATE : SML_PACKET_PROBE;
    h.flags = i % 2 == 0 ? b->h.flags : 0;
    h.payload_bytes = i % 2 == 0 ? CHUNK_BYTES : 0;
    world_send(&stranger, &h, b->frame + b->head_bytes, &w->aggregator_ports[0].addr);
    w->now_ns += SML_NS_PER_S / 10000;
    run_aggregator(w);
  }
  const uint64_t num_answers = stats->tx_frames - before;
  assert_in_range(num_answers, 1000 * seconds, 1000 * seconds + 100);
  struct sml_rx_frame frames[64];
  uint64_t num_seen = 0;
  for (size_t num = 0; (num = stranger.io->ops->rx_burst(stranger.io, frames, 64)) > 0; num_seen += num) {
    for (size_t i = 0; i < num; i++) {
      struct sml_header answer;
      assert_int_equal(frames[i].num_bytes, SML_HEADER_BYTES);
      assert_int_equal(sml_wire_open(frames[i].data, frames[i].num_bytes, &answer), SML_WIRE_OK);
      assert_int_equal(answer.type, SML_PACKET_ERROR);
      assert_int_equal(answer.job, 700);
    }
  }
  assert_int_equal(num_seen, num_answers);

  /* All at one instant: no more than a tenth of a second's worth. */
  w->now_ns += SML_NS_PER_S;
  const uint64_t before_burst = stats->tx_frames;
  for (uint32_t i = 0; i < 5000; i++) {
    world_send(&stranger, &h, b->frame + b->head_bytes, &w->aggregator_ports[0].addr);
    run_aggregator(w);
  }
  assert_in_range(stats->tx_frames - before_burst, 1, 100);

  /* Nobody answers an answer, or a hello. */
  h.flags = 0;
  w->now_ns += SML_NS_PER_S;
  const enum sml_packet_type silent[] = {SML_PACKET_ERROR, SML_PACKET_HELLO, SML_PACKET_RESULT,
                                         SML_PACKET_PENDING};
  const uint64_t before_silence = stats->tx_frames;
  for (size_t i = 0; i < SML_ARRAY_LEN(silent); i++) {
    h.type = (uint8_t)silent[i];
    world_send(&stranger, &h, b->frame + b->head_bytes, &w->aggregator_ports[0].addr);
    run_aggregator(w);
  }
  assert_int_equal(stats->tx_frames, before_silence);
  stranger.io->ops->close(stranger.io);
  tear_down(b);
}

/* ---- at the worker ---- */

/* Rank 0's lane gets what looks like the result it waits for, but for one thing. */
static void each_field_of_an_answer_wrong_alone(void **state) {
  static const struct {
    const char *name;
    enum field field;
    uint32_t value;
  } answers[] = {
      {"another epoch", EPOCH, 3},
      {"a slot too many", SLOT, NUM_SLOTS},
      {"the largest slot", SLOT, 0xffff},
      {"an old phase", PHASE, 1},
      {"the next phase", PHASE, 3},
      {"another tag", TAG, 1},
      {"an element too few", MORE_BYTES, (uint32_t)-4},
      {"with a check word or without", FLAGS, SML_FLAG_CHECKED},
      {"no element", PAYLOAD_BYTES, 0},
      {"an update", TYPE, SML_PACKET_UPDATE},
      {"a probe", TYPE, SML_PACKET_PROBE},
      {"an abort", TYPE, SML_PACKET_ABORT},
      {"a pending as long as a result", TYPE, SML_PACKET_PENDING},
      {"exponents", WIRE_AND_REDUCER, 1},
  };
  const uint8_t payload[CHUNK_BYTES + SML_CHECK_BYTES] = {7, 7, 7};
  for (size_t i = 0; i < SML_ARRAY_LEN(answers); i++) {
    struct bench *b = set_up(state);
    struct world *w = b->w;
    struct sml_header h = b->h;
    h.rank = 0;
    h.type = SML_PACKET_RESULT;
    set_field(&h, answers[i].field, answers[i].value);
    struct sml_lane_snapshot before, after;
    sml_lane_snapshot(w->jobs[0].lanes[0][0], &before);
    world_send(&w->aggregator_ports[0], &h, payload, &w->worker_ports[0][0].addr);
    (void)sml_worker_engine_run_once(w->workers[0][0], w->now_ns);
    sml_lane_snapshot(w->jobs[0].lanes[0][0], &after);
    if (after.dropped_packets != before.dropped_packets + 1)
      fail_msg("%s: not counted once", answers[i].name);
    assert_int_equal(after.chunks_completed, before.chunks_completed);
    tear_down(b);
  }
}

static void a_stranger_cannot_answer(void **state) {
  struct bench *b = set_up(state);
  struct world *w = b->w;
  struct world_port stranger = open_stranger(w);
  struct sml_header h = b->h;
  const uint8_t payload[CHUNK_BYTES + SML_CHECK_BYTES] = {7, 7, 7};
  h.type = SML_PACKET_RESULT;
  world_send(&stranger, &h, payload, &w->worker_ports[0][0].addr);
  h.type = SML_PACKET_ERROR;
  h.flags = 0;
  world_send(&stranger, &h, payload, &w->worker_ports[0][0].addr);
  (void)sml_worker_engine_run_once(w->workers[0][0], w->now_ns);
  struct sml_lane_snapshot s;
  sml_lane_snapshot(w->jobs[0].lanes[0][0], &s);
  assert_int_equal(s.chunks_completed, 0);
  assert_false(s.has_error_reply);
  stranger.io->ops->close(stranger.io);
  tear_down(b);
}

/* A late packet of an earlier epoch may have caused it: an aggregator that answers knows the job. */
static void an_error_is_forgotten_with_the_next_answer(void **state) {
  struct bench *b = set_up(state);
  struct world *w = b->w;
  struct sml_header h = b->h;
  struct sml_lane_snapshot s;
  h.type = SML_PACKET_ERROR;
  h.flags = 0;
  h.payload_bytes = 0;
  world_send(&w->aggregator_ports[0], &h, NULL, &w->worker_ports[0][0].addr);
  (void)sml_worker_engine_run_once(w->workers[0][0], w->now_ns);
  sml_lane_snapshot(w->jobs[0].lanes[0][0], &s);
  assert_true(s.has_error_reply);
  assert_true(world_call_run(b->call, LIMIT_NS));
  (void)sml_worker_engine_run_once(w->workers[0][0], w->now_ns);
  sml_lane_snapshot(w->jobs[0].lanes[0][0], &s);
  assert_false(s.has_error_reply);
  tear_down(b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_field_wrong_alone),
      cmocka_unit_test_prestate(each_field_wrong_alone, PLAIN),
      cmocka_unit_test(each_bit_flipped),
      cmocka_unit_test_prestate(each_bit_flipped, PLAIN),
      cmocka_unit_test(each_length_but_the_right_one),
      cmocka_unit_test_prestate(each_length_but_the_right_one, PLAIN),
      cmocka_unit_test(the_chunk_number_of_an_update_is_not_compared),
      cmocka_unit_test_prestate(the_chunk_number_of_an_update_is_not_compared, PLAIN),
      cmocka_unit_test(a_counted_contribution_is_not_counted_again),
      cmocka_unit_test_prestate(a_counted_contribution_is_not_counted_again, PLAIN),
      cmocka_unit_test(a_stranger_cannot_speak_for_a_rank),
      cmocka_unit_test_prestate(a_stranger_cannot_speak_for_a_rank, PLAIN),
      cmocka_unit_test(nothing_is_summed_before_the_start),
      cmocka_unit_test(error_answers_are_rationed),
      cmocka_unit_test_prestate(error_answers_are_rationed, PLAIN),
      cmocka_unit_test(each_field_of_an_answer_wrong_alone),
      cmocka_unit_test_prestate(each_field_of_an_answer_wrong_alone, PLAIN),
      cmocka_unit_test(a_stranger_cannot_answer),
      cmocka_unit_test_prestate(a_stranger_cannot_answer, PLAIN),
      cmocka_unit_test(an_error_is_forgotten_with_the_next_answer),
      cmocka_unit_test_prestate(an_error_is_forgotten_with_the_next_answer, PLAIN),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
