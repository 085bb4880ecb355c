/* SPDX-License-Identifier: Apache-2.0
 * Results by a group: one frame for all ranks, repeats by unicast. Copies that some receivers lose are repaired; who
 * hears nothing is found out and served by itself; what strangers send to the group changes nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/test_world.h"

#define LIMIT_NS (20 * SML_NS_PER_S)
#define CHUNK_BYTES 64u
#define CHUNK_ELEMS (CHUNK_BYTES / 4)
#define PLAIN ((void *)1) /* a test's state: without check words and MACs */

static struct world_options options_of(void **state, uint32_t world_size, uint32_t num_slots) {
  return (struct world_options){.world_size = world_size,
                                .num_lanes = 1,
                                .num_slots = num_slots,
                                .chunk_bytes = CHUNK_BYTES,
                                .num_operations = 2,
                                .is_multicast = true,
                                .is_unchecked = *state == PLAIN,
                                .is_unkeyed = *state == PLAIN,
                                .seed = 11};
}

static void run_call(struct world *w, uint32_t j, uint64_t num_elems, uint8_t type) {
  const struct world_call_options options = {.job = j, .num_elems = num_elems, .type = type, .seed = num_elems};
  struct world_call *call = world_call_create(w, &options);
  world_call_submit_all(call);
  const bool has_ended = world_call_run(call, LIMIT_NS);
  const char *problem = has_ended ? world_call_check(call) : "not ended in time";
  if (problem != NULL) fail_msg("%s: %llu elements, type %u", problem, (unsigned long long)num_elems, type);
  world_call_free(call);
}

static uint64_t tx_frames(const struct world *w) {
  return w->aggregator_ports[0].io->stats.tx_frames;
}

static void test_one_frame_for_all(void **state) {
  struct world_options options = options_of(state, 5, 8);
  struct world *w = world_create_started(&options);
  uint64_t before = tx_frames(w);
  run_call(w, 0, 40 * CHUNK_ELEMS, SML_INT32);
  assert_int_equal(tx_frames(w) - before, 40);
  run_call(w, 0, 40 * CHUNK_ELEMS, SML_FLOAT32);
  run_call(w, 0, 1, SML_FLOAT32);
  world_restart_job(w, 0, w->jobs[0].epoch + 1); /* as before in a new epoch */
  before = tx_frames(w);
  run_call(w, 0, 7 * CHUNK_ELEMS, SML_INT32);
  assert_int_equal(tx_frames(w) - before, 7);
  assert_int_equal(w->num_events, 0);
  world_destroy(w);
}

static void test_several_lanes_and_jobs(void **state) {
  struct world_options options = options_of(state, 3, 4);
  options.num_lanes = 2;
  struct world *w = world_create(&options);
  for (uint32_t j = 0; j < 2; j++) {
    world_open_job(w, j, 100 + j);
    assert_true(world_exchange_hellos(w, j));
    world_start_job(w, j);
  }
  for (uint32_t i = 1; i <= 6; i++) run_call(w, i % 2, i * 9 * CHUNK_ELEMS, i % 3 ? SML_FLOAT32 : SML_INT32);
  for (uint32_t j = 0; j < 2; j++) assert_int_equal(world_lane_drops(w, j, SML_DROP_UNKNOWN_JOB), 0);
  world_close_job(w, 0);
  run_call(w, 1, 300, SML_INT32);
  assert_int_equal(w->num_events, 0);
  world_destroy(w);
}

static void test_only_leads_hear(void **state) {
  struct world_options options = options_of(state, 4, 4);
  options.num_contributors = 2;
  memcpy(options.contributors, (uint16_t[]){0, 0, 1, 1}, 4 * sizeof(uint16_t));
  struct world *w = world_create_started(&options);
  const uint64_t before = tx_frames(w);
  run_call(w, 0, 20 * CHUNK_ELEMS, SML_INT32);
  assert_int_equal(tx_frames(w) - before, 20);
  world_destroy(w);
}

/* Each receiver loses copies of its own; nobody is called deaf for it. */
static void test_lost_copies(void **state) {
  static const double losses[] = {0.01, 0.1, 0.25};
  for (size_t i = 0; i < SML_ARRAY_LEN(losses); i++) {
    for (uint32_t num_slots = 16; num_slots <= 64; num_slots *= 4) {
      struct world_options options = options_of(state, 4, num_slots);
      options.faults = (struct sml_fault_options){.loss = losses[i], .duplicate = 0.02, .reorder = 0.02};
      struct world *w = world_create_started(&options);
      run_call(w, 0, 700 * CHUNK_ELEMS, SML_FLOAT32);
      for (uint32_t k = 0; k < 30; k++) run_call(w, 0, 1 + k, SML_FLOAT32);
      assert_int_equal(w->num_events, 0);
      world_destroy(w);
    }
  }
}

/* ---- deaf ranks ---- */

struct losing {
  uint64_t deaf;        /* bitmap of ranks that don't get what isn't for them alone */
  uint32_t kept_one_in; /* they get so many repeats, too; 0: all */
  uint64_t num_lost, num_repeats;
};

static bool lose_results(void *user, const struct world_port *to, const uint8_t *data, uint32_t num_bytes) {
  struct losing *l = user;
  struct sml_header h;
  if (to->is_aggregator || sml_wire_open(data, num_bytes, &h) != SML_WIRE_OK || h.type != SML_PACKET_RESULT)
    return false;
  const bool is_repeat = (h.flags & SML_FLAG_RETRANSMISSION) != 0;
  l->num_repeats += is_repeat;
  if (!sml_bit_test(&l->deaf, to->rank)) return false;
  if (is_repeat && (l->kept_one_in == 0 || l->num_repeats % l->kept_one_in == 0)) return false;
  l->num_lost += !is_repeat;
  return true;
}

static void leave(struct world *w, uint32_t rank) {
  const struct sml_addr group = world_group(w, 0, 0);
  struct sml_netio *io = w->worker_ports[rank][0].io;
  io->ops->leave_group(io, &group);
}

static void test_deaf_ranks_are_served_by_themselves(void **state) {
  struct losing losing = {.deaf = 0};
  for (uint32_t num_slots = 8; num_slots <= 64; num_slots *= 8) {
    struct world_options options = options_of(state, 5, num_slots);
    options.on_frame = lose_results;
    options.user = &losing;
    struct world *w = world_create_started(&options);
    run_call(w, 0, 100 * CHUNK_ELEMS, SML_INT32);
    for (uint32_t deaf = 0; deaf < 3; deaf++) {
      leave(w, deaf);
      run_call(w, 0, 1000 * CHUNK_ELEMS, SML_INT32);
      assert_int_equal(w->num_events, deaf + 1); /* told once */
      assert_int_equal(w->events[deaf].kind, SML_EVENT_DEAF);
      assert_int_equal(w->events[deaf].rank_a, deaf);
      /* From then on all is well: one frame for those who hear, one for each who does not; with most of them deaf,
       * one for each. */
      losing.num_repeats = 0;
      const uint64_t before = tx_frames(w);
      run_call(w, 0, 300 * CHUNK_ELEMS, SML_INT32);
      assert_int_equal(losing.num_repeats, 0);
      assert_int_equal(tx_frames(w) - before, 300 * (deaf < 2 ? deaf + 2 : 5));
    }
    world_destroy(w);
  }
}

/* A queue that drops all that a rank has under way is not deafness, however long the repeats take. */
static void test_a_lost_window(void **state) {
  struct losing losing = {.deaf = 1u << 2, .kept_one_in = 8};
  struct world_options options = options_of(state, 4, 64);
  options.on_frame = lose_results;
  options.user = &losing;
  struct world *w = world_create_started(&options);
  run_call(w, 0, 60 * CHUNK_ELEMS, SML_INT32);
  assert_int_equal(losing.num_lost, 60);
  assert_int_equal(w->num_events, 0);
  world_destroy(w);
}

/* Small operations, too few to say anything each; many copies of each question. */
static void test_deaf_in_small_operations(void **state) {
  struct world_options options = options_of(state, 3, 64);
  struct world *w = world_create_started(&options);
  leave(w, 2);
  for (uint32_t i = 1; i < 100 && w->num_events == 0; i++) {
    run_call(w, 0, 5, SML_INT32);
    if (i < 8) assert_int_equal(w->num_events, 0);
  }
  assert_int_equal(w->num_events, 1);
  assert_int_equal(w->events[0].rank_a, 2);
  const uint64_t started_ns = w->now_ns;
  for (uint32_t i = 0; i < 10; i++) run_call(w, 0, 5, SML_INT32);
  assert_true(w->now_ns - started_ns < 5 * SML_NS_PER_MS);
  world_destroy(w);
}

/* It is the ranks that count, not the world: who is deaf only for a while goes on getting both. */
static void test_hearing_again(void **state) {
  struct losing losing = {.deaf = 2};
  struct world_options options = options_of(state, 3, 16);
  options.on_frame = lose_results;
  options.user = &losing;
  struct world *w = world_create_started(&options);
  leave(w, 1);
  losing.deaf = 0;
  run_call(w, 0, 500 * CHUNK_ELEMS, SML_INT32);
  assert_int_equal(w->num_events, 1);
  const struct sml_addr group = world_group(w, 0, 0);
  struct sml_netio *io = w->worker_ports[1][0].io;
  assert_int_equal(io->ops->join_group(io, &group, &w->aggregator_ports[0].addr), 0);
  run_call(w, 0, 100 * CHUNK_ELEMS, SML_INT32);
  assert_true(world_lane_drops(w, 0, SML_DROP_NOT_OUTSTANDING) + world_lane_drops(w, 0, SML_DROP_STALE_PHASE) >= 50);
  world_destroy(w);
}

/* ---- HELLO by the group ---- */

struct greeting {
  struct sml_hello hello; /* first: done casts */
  uint32_t num_done;
  bool is_echoed;
};

static void note_done(struct sml_hello *hello, bool is_echoed) {
  struct greeting *g = (struct greeting *)(void *)hello;
  g->num_done++;
  g->is_echoed = is_echoed;
}

static bool greet(struct world *w, uint32_t rank, const struct sml_addr *from) {
  const struct world_job *job = &w->jobs[0];
  struct greeting g = {.hello = {.job = job->number,
                                 .epoch = job->epoch,
                                 .rank = (uint16_t)rank,
                                 .nonce = job->nonces[rank][0],
                                 .to = w->aggregator_ports[0].addr,
                                 .from = *from,
                                 .datagram_bytes = world_head_bytes(w) + 32,
                                 .seal = job->seal,
                                 .is_to_group = true,
                                 .interval_ns = 5 * SML_NS_PER_MS,
                                 .deadline_ns = w->now_ns + 100 * SML_NS_PER_MS,
                                 .done = note_done}};
  sml_worker_engine_hello(w->workers[rank][0], &g.hello);
  while (g.num_done == 0) world_pass(w);
  assert_int_equal(g.num_done, 1);
  return g.is_echoed;
}

static void test_hello_by_the_group(void **state) {
  struct world_options options = options_of(state, 3, 4);
  struct world *w = world_create(&options);
  world_open_job(w, 0, 9);
  assert_true(world_exchange_hellos(w, 0));
  const struct sml_addr *from = &w->aggregator_ports[0].addr;
  for (uint32_t r = 0; r < 3; r++) assert_true(greet(w, r, from));
  assert_false(greet(w, 0, &w->worker_ports[1][0].addr)); /* not from where results will come */
  leave(w, 1);
  assert_false(greet(w, 1, from));
  assert_true(greet(w, 2, from));
  world_destroy(w);
  options.is_multicast = false;
  w = world_create(&options);
  world_open_job(w, 0, 9);
  assert_true(world_exchange_hellos(w, 0));
  assert_false(greet(w, 0, &w->aggregator_ports[0].addr)); /* nobody offered it */
  assert_true(world_drops(w, SML_DROP_BAD_TYPE) > 0);
  world_destroy(w);
}

/* ---- strangers ---- */

struct overhearing {
  uint8_t frame[SML_HEADER_BYTES + SML_KEYED_BYTES + CHUNK_BYTES + SML_CHECK_BYTES];
  uint32_t num_bytes;
};

static bool overhear(void *user, const struct world_port *to, const uint8_t *data, uint32_t num_bytes) {
  struct overhearing *o = user;
  struct sml_header h;
  if (to->is_aggregator || o->num_bytes > 0 || sml_wire_open(data, num_bytes, &h) != SML_WIRE_OK ||
      h.type != SML_PACKET_RESULT)
    return false;
  memcpy(o->frame, data, num_bytes);
  o->num_bytes = num_bytes;
  return false;
}

/* Every rank counts it once as that, and nothing else changes. */
static void expect_drop(struct world *w, const struct world_port *from, const void *frame, uint32_t num_bytes,
                        enum sml_drop drop) {
  const struct sml_addr group = world_group(w, 0, 0);
  const uint64_t before = world_lane_drops(w, 0, drop);
  uint64_t of_all = 0, after = 0;
  for (uint32_t d = 0; d < SML_NUM_DROPS; d++) of_all += world_lane_drops(w, 0, (enum sml_drop)d);
  world_send_raw(from, frame, num_bytes, &group);
  for (uint32_t r = 0; r < 3; r++) (void)sml_worker_engine_run_once(w->workers[r][0], w->now_ns);
  for (uint32_t d = 0; d < SML_NUM_DROPS; d++) after += world_lane_drops(w, 0, (enum sml_drop)d);
  if (world_lane_drops(w, 0, drop) != before + 3 || after != of_all + 3)
    fail_msg("not counted as %s", sml_drop_name(drop));
}

static void test_strangers_in_the_group(void **state) {
  struct overhearing o = {.num_bytes = 0};
  struct world_options options = options_of(state, 3, 4);
  options.on_frame = overhear;
  options.user = &o;
  struct world *w = world_create_started(&options);
  run_call(w, 0, 20 * CHUNK_ELEMS, SML_INT32);
  world_settle(w, SML_NS_PER_S);
  assert_true(o.num_bytes > 0);
  const struct world_port *aggregator = &w->aggregator_ports[0], *rank_1 = &w->worker_ports[1][0];
  uint8_t frame[sizeof o.frame];
  struct sml_header h;
  assert_int_equal(sml_wire_open(o.frame, o.num_bytes, &h), SML_WIRE_OK);
  const uint8_t *payload = o.frame + world_head_bytes(w);
  const struct sml_seal *seal = world_seal(w, h.job), other_key = {.is_keyed = true, .key = {7, 7}};
#define SEALED(field, value, with_key)                                \
  do {                                                                \
    struct sml_header changed = h;                                    \
    changed.field = (value);                                          \
    memcpy(frame, o.frame, o.num_bytes);                              \
    memcpy(frame + world_head_bytes(w), payload, h.payload_bytes);    \
    sml_wire_seal(frame, &changed, with_key);                         \
  } while (0)
  memset(frame, 0x5a, sizeof frame);
  expect_drop(w, rank_1, frame, 20, SML_DROP_TRUNCATED);
  expect_drop(w, rank_1, frame, o.num_bytes, SML_DROP_BAD_VERSION);
  memcpy(frame, o.frame, o.num_bytes);
  frame[o.num_bytes - 1] ^= 1;
  expect_drop(w, rank_1, frame, o.num_bytes, SML_DROP_WRONG_SOURCE);
  expect_drop(w, aggregator, frame, o.num_bytes, seal->is_keyed ? SML_DROP_BAD_KEY : SML_DROP_BAD_CRC);
  expect_drop(w, rank_1, o.frame, o.num_bytes, SML_DROP_WRONG_SOURCE);
  SEALED(job, 77, seal);
  expect_drop(w, rank_1, frame, o.num_bytes, SML_DROP_UNKNOWN_JOB);
  expect_drop(w, aggregator, frame, o.num_bytes, SML_DROP_UNKNOWN_JOB);
  SEALED(epoch, h.epoch - 1, seal);
  expect_drop(w, aggregator, frame, o.num_bytes, SML_DROP_WRONG_EPOCH);
  expect_drop(w, aggregator, o.frame, o.num_bytes, SML_DROP_STALE_PHASE); /* a replay */
  if (seal->is_keyed) { /* even from what looks like the aggregator's address */
    SEALED(phase, h.phase + 2, &other_key);
    expect_drop(w, aggregator, frame, o.num_bytes, SML_DROP_BAD_KEY);
  }
#undef SEALED
  run_call(w, 0, 20 * CHUNK_ELEMS, SML_INT32);
  world_destroy(w);
}

#define BOTH(test) \
  { #test, test, NULL, NULL, NULL }, { #test " plain", test, NULL, NULL, PLAIN }

int main(void) {
  const struct CMUnitTest tests[] = {BOTH(test_one_frame_for_all),
                                     BOTH(test_several_lanes_and_jobs),
                                     BOTH(test_only_leads_hear),
                                     BOTH(test_lost_copies),
                                     BOTH(test_deaf_ranks_are_served_by_themselves),
                                     BOTH(test_a_lost_window),
                                     BOTH(test_deaf_in_small_operations),
                                     BOTH(test_hearing_again),
                                     BOTH(test_hello_by_the_group),
                                     BOTH(test_strangers_in_the_group)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
