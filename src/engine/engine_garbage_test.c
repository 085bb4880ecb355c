/* SPDX-License-Identifier: Apache-2.0
 * Whatever arrives: random bytes, well-formed packets with random fields, members that lie, an aggregator
 * that lies. Nothing crashes or writes where it may not, and who was not lied to has the exact sum. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/test_world.h"

#define LIMIT_NS (60 * SML_NS_PER_S)
#define CHUNK_BYTES 64u
#define CHUNK_ELEMS (CHUNK_BYTES / 4)
#define NUM_SLOTS 8u
#define NUM_RANKS 3u
#define PAYLOAD_BYTES (CHUNK_BYTES + SML_CHECK_BYTES)
#define MAX_FRAME_BYTES (SML_HEADER_BYTES + SML_KEYED_BYTES + PAYLOAD_BYTES)
#define NUM_FRAMES 100000u
#define PLAIN ((void *)1) /* a test's state: without check words and MACs */

static struct world_options small_world(uint64_t seed) {
  return (struct world_options){.world_size = NUM_RANKS,
                                .num_lanes = 1,
                                .num_slots = NUM_SLOTS,
                                .chunk_bytes = CHUNK_BYTES,
                                .num_operations = 4,
                                .seed = seed};
}

static struct world_call *make_call(struct world *w, uint32_t j, uint64_t num_elems, uint64_t seed) {
  const struct world_call_options options = {.job = j,
                                             .num_elems = num_elems,
                                             .type = seed % 3 == 0 ? SML_INT32 : SML_FLOAT32,
                                             .is_in_place = seed % 2 == 0,
                                             .fill = WORLD_FILL_SPECIAL,
                                             .seed = seed};
  return world_call_create(w, &options);
}

static void fill_random(struct sml_prng *prng, uint8_t *bytes, uint32_t num_bytes) {
  for (uint32_t i = 0; i < num_bytes; i++) bytes[i] = (uint8_t)sml_prng_next(prng);
}

/* Few enough values that honest ones are among them. */
static uint32_t draw(struct sml_prng *prng, uint32_t likely) {
  return sml_prng_below(prng, 8) == 0 ? (uint32_t)sml_prng_next(prng)
                                      : (uint32_t)sml_prng_below(prng, likely);
}

static struct sml_header draw_header(struct sml_prng *prng, const struct world_job *job) {
  struct sml_header h = {
      .type = (uint8_t)draw(prng, 9),
      .job = sml_prng_below(prng, 4) == 0 ? (uint16_t)draw(prng, 3) : job->number,
      .epoch = sml_prng_below(prng, 8) == 0 ? (uint32_t)sml_prng_next(prng) : job->epoch,
      .rank = (uint16_t)draw(prng, NUM_RANKS),
      .slot = (uint16_t)(job->worker.slot_base + draw(prng, NUM_SLOTS)),
      .flags = (uint16_t)(sml_prng_below(prng, 16) == 0 ? draw(prng, 16) : sml_prng_below(prng, 2)),
      .phase = draw(prng, 10),
      .tag = draw(prng, 3),
      .chunk = draw(prng, 64)};
  h.wire = h.reducer = sml_prng_below(prng, 2) == 0;
  if (sml_prng_below(prng, 16) == 0) h.wire = (uint8_t)draw(prng, 3);
  h.payload_bytes = (uint16_t)sml_prng_below(prng, PAYLOAD_BYTES + 1);
  if (sml_prng_below(prng, 2) == 0) h.payload_bytes = CHUNK_BYTES;
  const bool is_sum = h.wire == SML_LANES_INT32 && h.type <= SML_PACKET_RESULT;
  if (job->worker.is_checked && is_sum && sml_prng_below(prng, 8) > 0) {
    h.flags |= SML_FLAG_CHECKED;
    h.payload_bytes = (uint16_t)(h.payload_bytes / 4 * 4 + (h.payload_bytes <= CHUNK_BYTES ? 4 : 0));
  }
  if (h.type == SML_PACKET_PROBE) h.payload_bytes = 0;
  return h;
}

static const struct world_port *pick_port(struct world *w, struct sml_prng *prng) {
  const uint32_t i = (uint32_t)sml_prng_below(prng, 2 * NUM_RANKS);
  return i < NUM_RANKS ? &w->worker_ports[i][0] : &w->aggregator_ports[0];
}

/* Noise from a stranger, and random bytes from everybody. */
static void random_frames_change_nothing(void **state) {
  struct world_options options = small_world(1);
  options.is_unchecked = options.is_unkeyed = *state == PLAIN;
  struct world *w = world_create_started(&options);
  struct world_port stranger = {.world = w, .io = sml_mem_open(w->hub, 16, MAX_FRAME_BYTES)};
  assert_non_null(stranger.io);
  struct sml_prng prng = {1};
  uint64_t num_calls = 0;
  for (uint32_t sent = 0; sent < NUM_FRAMES;) {
    struct world_call *call = make_call(w, 0, 1 + sml_prng_below(&prng, 100 * CHUNK_ELEMS), ++num_calls);
    world_call_submit_all(call);
    while (!world_call_has_ended(call)) {
      for (uint64_t i = sml_prng_below(&prng, 60); i > 0; i--, sent++) {
        uint8_t bytes[MAX_FRAME_BYTES];
        const struct world_port *to = pick_port(w, &prng);
        const uint32_t num_bytes = 1 + (uint32_t)sml_prng_below(&prng, MAX_FRAME_BYTES);
        fill_random(&prng, bytes, sizeof bytes);
        if (sml_prng_below(&prng, 2) == 0) bytes[0] = (uint8_t)(0x10 | (bytes[0] & 7));
        const uint32_t head_bytes = sml_head_bytes((bytes[15] & SML_FLAG_KEYED) != 0);
        if (sml_prng_below(&prng, 2) == 0 && num_bytes >= head_bytes)
          sml_store_be16(bytes + 10, (uint16_t)(num_bytes - head_bytes));
        world_send_raw(pick_port(w, &prng), bytes, num_bytes, &to->addr);
        struct sml_header h = draw_header(&prng, &w->jobs[0]);
        world_send(&stranger, &h, bytes + SML_HEADER_BYTES, &pick_port(w, &prng)->addr);
      }
      assert_true(world_pass(w));
    }
    const char *problem = world_call_check(call);
    if (problem != NULL) fail_msg("%s: call %llu", problem, (unsigned long long)num_calls);
    world_call_free(call);
  }
  assert_int_equal(w->num_events, 0);
  stranger.io->ops->close(stranger.io);
  world_destroy(w);
}

/* ---- forged sources ---- */

#define NUM_FORGED 40u
#define FORGED_CHUNK_BYTES 1024u

struct asker {
  uint8_t update[SML_HEADER_BYTES + SML_KEYED_BYTES + FORGED_CHUNK_BYTES]; /* of rank 0 */
  uint32_t update_bytes;
};

static bool keep_update(void *user, const struct world_port *to, const uint8_t *data, uint32_t num_bytes) {
  struct asker *asker = user;
  struct sml_header h;
  if (!to->is_aggregator || sml_wire_open(data, num_bytes, &h) != SML_WIRE_OK) return false;
  if (h.type == SML_PACKET_UPDATE && h.rank == 0) memcpy(asker->update, data, asker->update_bytes = num_bytes);
  return false;
}

/* A job sums something, and then a rank asks again and again: bytes that the aggregator sent for each that came. */
static double count_answers(uint64_t host, uint8_t way) {
  struct asker asker = {.update_bytes = 0};
  struct world_options options = small_world(1);
  options.world_size = NUM_FORGED;
  options.chunk_bytes = FORGED_CHUNK_BYTES;
  options.is_unchecked = true;
  options.is_one_way = way != SML_REDUCE_SUM;
  options.on_frame = keep_update;
  options.user = &asker;
  struct world *w = world_create(&options);
  const struct world_port *aggregator = &w->aggregator_ports[0], *rank = &w->worker_ports[0][0];
  world_open_job(w, 0, 77);
  for (uint32_t r = 0; r < NUM_FORGED && host != 0; r++)
    sml_aggregator_engine_know_host(w->aggregators[0], w->jobs[0].number, r, host);
  assert_true(world_exchange_hellos(w, 0));
  world_start_job(w, 0);
  struct world_call *call = make_call(w, 0, 10 * FORGED_CHUNK_BYTES / 4, 3);
  world_call_submit_all(call);
  assert_true(world_call_run(call, LIMIT_NS));
  assert_null(world_call_check(call));
  struct sml_header h;
  assert_int_equal(sml_wire_open(asker.update, asker.update_bytes, &h), SML_WIRE_OK);
  h.type = SML_PACKET_PROBE;
  h.flags = h.payload_bytes = 0;
  if (way != SML_REDUCE_SUM) { /* the next chunk of the window, which all others wait for as well */
    h.reducer = way;
    h.slot = (uint16_t)(w->jobs[0].worker.slot_base + sml_window_base(way, NUM_SLOTS));
    h.phase = SML_FIRST_PHASE;
    h.wire = SML_LANES_INT32;
    h.chunk = 1;
  }
  for (uint32_t i = 0; i < 10000; i++) {
    world_send(rank, &h, NULL, &aggregator->addr);
    (void)sml_aggregator_engine_run_once(w->aggregators[0], w->now_ns);
    for (uint32_t r = 0; r < NUM_FORGED; r++) { /* makes room for more */
      struct sml_rx_frame frames[8];
      struct sml_netio *io = w->worker_ports[r][0].io;
      while (io->ops->rx_burst(io, frames, SML_ARRAY_LEN(frames)) > 0) continue;
    }
  }
  const struct sml_netio_stats *stats = &aggregator->io->stats;
  const double ratio = (double)stats->tx_bytes / (double)stats->rx_bytes;
  world_call_free(call);
  world_destroy(w);
  return ratio;
}

/* A HELLO may come with the address of somebody else. There a rank's questions are answered as far as bytes came from
 * there, not with a chunk for each, nor with a word to each of the others. */
static void an_address_that_is_not_proved_is_not_flooded(void **state) {
  (void)state;
  static const uint8_t ways[] = {SML_REDUCE_SUM, SML_REDUCE_TO_OWNER};
  for (size_t i = 0; i < SML_ARRAY_LEN(ways); i++) {
    const double honest = count_answers(0, ways[i]), forged = count_answers(1, ways[i]);
    if (honest < 10 || forged > 4) fail_msg("reducer %u: %.1f and %.1f times as much", ways[i], honest, forged);
  }
}

/* All members of job 1 say what they like, with the right job, epoch and address. Job 0 is summed exactly. */
static void lying_members_hurt_only_their_own_job(void **state) {
  struct world_options options = small_world(2);
  options.is_unchecked = options.is_unkeyed = *state == PLAIN;
  struct world *w = world_create_started(&options);
  world_open_job(w, 1, 8);
  assert_true(world_exchange_hellos(w, 1));
  world_start_job(w, 1);
  struct sml_prng prng = {2};
  uint64_t num_calls = 0;
  for (uint32_t sent = 0; sent < NUM_FRAMES;) {
    struct world_call *call = make_call(w, 0, 1 + sml_prng_below(&prng, 100 * CHUNK_ELEMS), ++num_calls);
    world_call_submit_all(call);
    while (!world_call_has_ended(call)) {
      for (uint64_t i = sml_prng_below(&prng, 60); i > 0; i--, sent++) {
        uint8_t payload[PAYLOAD_BYTES];
        fill_random(&prng, payload, sizeof payload);
        struct sml_header h = draw_header(&prng, &w->jobs[1]);
        h.job = w->jobs[1].number;
        world_send(&w->worker_ports[h.rank % NUM_RANKS][0], &h, payload, &w->aggregator_ports[0].addr);
      }
      assert_true(world_pass(w));
    }
    const char *problem = world_call_check(call);
    if (problem != NULL) fail_msg("%s: call %llu", problem, (unsigned long long)num_calls);
    world_call_free(call);
  }
  for (uint32_t i = 0; i < w->num_events && i < WORLD_MAX_EVENTS; i++)
    assert_int_equal(w->events[i].job, w->jobs[1].number);
  world_destroy(w);
}

/* Members that do not wait for results: a slot goes through several phases within one pass. */
static void slots_that_start_over_within_a_pass(void **state) {
  (void)state;
  struct world_options options = small_world(3);
  struct world *w = world_create_started(&options);
  const uint8_t payload[PAYLOAD_BYTES] = {1};
  for (uint32_t phase = SML_FIRST_PHASE; phase < 40; phase++) {
    for (uint32_t slot = 0; slot < NUM_SLOTS; slot++) {
      for (uint32_t r = 0; r < NUM_RANKS; r++) {
        struct sml_header h = {.type = SML_PACKET_UPDATE,
                               .epoch = w->jobs[0].epoch,
                               .rank = (uint16_t)r,
                               .slot = (uint16_t)slot,
                               .flags = SML_FLAG_CHECKED,
                               .phase = phase,
                               .payload_bytes = PAYLOAD_BYTES};
        world_send(&w->worker_ports[r][0], &h, payload, &w->aggregator_ports[0].addr);
        h.type = SML_PACKET_PROBE;
        h.flags = 0;
        h.payload_bytes = 0;
        h.phase = phase > SML_FIRST_PHASE ? phase - 1 : phase;
        world_send(&w->worker_ports[r][0], &h, payload, &w->aggregator_ports[0].addr);
      }
    }
    if (phase % 5 == 0) (void)sml_aggregator_engine_run_once(w->aggregators[0], w->now_ns);
  }
  world_settle(w, SML_NS_PER_S);
  world_destroy(w);
}

/* ---- an aggregator that lies ---- */

/* Plays the aggregator for rank 0: each update is answered at once, with a grant of the liar's choice. */
struct liar {
  struct world *w;
  struct sml_prng prng;
  uint32_t next_grant, num_kept;
  uint8_t kept[16][MAX_FRAME_BYTES]; /* answers held back */
};

static void answer(struct liar *liar, const struct sml_header *h, const uint8_t *payload) {
  const struct world_port *from = &liar->w->aggregator_ports[0];
  const struct sml_addr *to = &liar->w->worker_ports[0][0].addr;
  const uint32_t head_bytes = world_head_bytes(liar->w);
  uint8_t frame[MAX_FRAME_BYTES] = {0};
  memcpy(frame + head_bytes, payload, h->payload_bytes);
  sml_wire_seal(frame, h, world_seal(liar->w, h->job));
  if (liar->num_kept < SML_ARRAY_LEN(liar->kept) && sml_prng_below(&liar->prng, 6) == 0) {
    memcpy(liar->kept[liar->num_kept++], frame, sizeof frame);
    return;
  }
  world_send_raw(from, frame, head_bytes + h->payload_bytes, to);
  if (liar->num_kept == 0 || sml_prng_below(&liar->prng, 8) > 0) return;
  const uint8_t *kept = liar->kept[--liar->num_kept];
  world_send_raw(from, kept, head_bytes + sml_load_be16(kept + 10), to);
}

static bool answer_with_lies(void *user, const struct world_port *to, const uint8_t *data,
                             uint32_t num_bytes) {
  struct liar *liar = user;
  struct sml_header h;
  if (!to->is_aggregator || sml_wire_open(data, num_bytes, &h) != SML_WIRE_OK) return false;
  if (h.type != SML_PACKET_UPDATE) return false;
  uint8_t payload[PAYLOAD_BYTES];
  fill_random(&liar->prng, payload, sizeof payload);
  h.type = SML_PACKET_RESULT;
  h.flags &= SML_FLAG_CHECKED;
  h.chunk = liar->next_grant;
  const uint32_t kind = (uint32_t)sml_prng_below(&liar->prng, 12);
  if (kind == 0)
    h.chunk = (uint32_t)sml_prng_next(&liar->prng);
  else if (kind < 5)
    h.chunk = liar->next_grant - (uint32_t)sml_prng_below(&liar->prng, 24);
  else if (kind == 5)
    h.chunk = liar->next_grant + (uint32_t)sml_prng_below(&liar->prng, 24);
  else
    liar->next_grant++;
  answer(liar, &h, payload);
  return true;
}

#define NUM_CALLS 40u

/* Rank 0 alone, in a world of lies: without check words it may get wrong sums and may wait for ever, and no more
 * than that. */
static void live_with_lies(uint64_t trial) {
  struct liar liar = {.prng = {trial}, .next_grant = NUM_SLOTS};
  struct world_options options = small_world(100 + trial);
  options.has_liar = true;
  options.is_unchecked = trial % 8 > 0; /* with check words the first two lies end it */
  options.is_unkeyed = trial % 2 == 0;
  options.on_frame = answer_with_lies;
  options.user = &liar;
  struct world *w = liar.w = world_create_started(&options);
  struct world_call *calls[NUM_CALLS];
  struct sml_prng prng = {trial};
  uint32_t num_submitted = 0, num_ended = 0;
  for (uint32_t c = 0; c < NUM_CALLS; c++) /* large and small ones follow each other in the ring */
    calls[c] = make_call(w, 0, 1 + sml_prng_below(&prng, (c % 3 == 0 ? 30 : 2) * CHUNK_ELEMS), c + trial);
  for (uint32_t i = 0; i < 400; i++) {
    while (num_ended < num_submitted && calls[num_ended]->parts[0].num_ended > 0) num_ended++;
    if (num_submitted < NUM_CALLS && num_submitted < num_ended + options.num_operations)
      world_call_submit(calls[num_submitted++], 0);
    (void)world_pass(w);
  }
  sml_lane_fail(w->jobs[0].lanes[0][0], SML_ERR_PROTOCOL);
  for (uint32_t c = 0; c < NUM_CALLS; c++) {
    if (c < num_submitted) {
      assert_int_equal(calls[c]->parts[0].num_ended, 1);
      if (!options.is_unchecked) assert_int_not_equal(calls[c]->parts[0].operation.status, SML_OK);
      assert_null(world_call_check_guards(calls[c], 0));
    }
    world_call_free(calls[c]);
  }
  world_destroy(w);
}

static void a_lying_aggregator_cannot_make_a_rank_write_elsewhere(void **state) {
  (void)state;
  for (uint64_t trial = 0; trial < 400; trial++) live_with_lies(trial);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_frames_change_nothing),
      cmocka_unit_test_prestate(random_frames_change_nothing, PLAIN),
      cmocka_unit_test(lying_members_hurt_only_their_own_job),
      cmocka_unit_test_prestate(lying_members_hurt_only_their_own_job, PLAIN),
      cmocka_unit_test(slots_that_start_over_within_a_pass),
      cmocka_unit_test(an_address_that_is_not_proved_is_not_flooded),
      cmocka_unit_test(a_lying_aggregator_cannot_make_a_rank_write_elsewhere),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
