/* SPDX-License-Identifier: Apache-2.0
 * Questions are a small share of what is sent, however many slots wait and for however long; those that are needed are
 * asked. And how many chunks may be outstanding. */
#include "core/aggregator.h"
#include "core/worker.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define CHUNK_BYTES 1440u
#define USUAL_CHUNKS ((5u << 18) / CHUNK_BYTES)
#define MAX_SLOTS 4096u
#define OWN 1u
#define MS SML_NS_PER_MS
#define RTT_NS (100 * SML_NS_PER_US)
#define STEP_NS (SML_IS_SLOW_BUILD ? 4 * MS : MS)
#define LOOK_EVERY 16 /* passes: a look at each slot's invariants takes as long as hundreds of decisions */

static void *room(size_t num_bytes) {
  void *mem = aligned_alloc(64, sml_align_up(num_bytes, 64));
  assert_non_null(mem);
  memset(mem, 0xa5, num_bytes);
  return mem;
}

/* ---- a worker: rank 1 of three ---- */

struct lane {
  struct sml_worker *w;
  uint32_t num_slots, num_probes, num_repeats;
  uint64_t now_ns;
  struct sml_header sent[MAX_SLOTS]; /* the last update of each slot */
};

static bool send_update(struct lane *lane) {
  struct sml_send send;
  sml_worker_next_send(lane->w, lane->now_ns, &send);
  assert_true(send.kind != SML_SEND_PROBE);
  if (send.kind == SML_SEND_NONE) return false;
  lane->sent[send.header.slot] = send.header;
  return true;
}

/* An operation of so many chunks has begun, whatever its window would be: each slot's chunk is sent. */
static struct lane *begin_lane(uint32_t num_slots, uint32_t num_chunks, uint64_t rtt_ns) {
  const struct sml_worker_options o = {.rank = OWN, .world_size = 3, .num_lanes = 1, .num_slots = num_slots,
                                       .chunk_bytes = CHUNK_BYTES, .first_phase = SML_FIRST_PHASE,
                                       .num_operations = 4, .seed = 1, .rtt_ns = rtt_ns, .has_fixed_window = true};
  struct lane *lane = calloc(1, sizeof *lane);
  assert_non_null(lane);
  *lane = (struct lane){
      .w = sml_worker_init(room(sml_worker_memsize(&o)), &o), .num_slots = num_slots, .now_ns = MS};
  const struct sml_operation_plan plan = {.num_elems = num_chunks * CHUNK_BYTES / 4, .type = 1};
  assert_true(sml_worker_submit(lane->w, &plan, NULL, NULL, lane->now_ns));
  for (uint32_t s = 0; s < num_slots; s++) assert_true(send_update(lane));
  return lane;
}

/* In the middle of an operation. */
static struct lane *make_lane(uint32_t num_slots) {
  return begin_lane(num_slots, 4 * num_slots, 0);
}

static void free_lane(struct lane *lane) {
  free(lane->w);
  free(lane);
}

static void give_result(struct lane *lane, uint32_t slot, uint32_t grant, uint16_t flags) {
  struct sml_header h = lane->sent[slot];
  h.type = SML_PACKET_RESULT;
  h.flags = flags;
  h.chunk = grant;
  assert_int_equal(sml_worker_on_packet(lane->w, &h, NULL, lane->now_ns).kind, SML_ACCEPT_RESULT);
}

/* Until then: whatever the lane asks, a round trip later it hears that these ranks are missing, once for each repeat of
 * its own at most. */
static void wait_until(struct lane *lane, uint64_t until_ns, uint8_t missing) {
  uint32_t num_passes = 0;
  while (lane->now_ns < until_ns && lane->num_repeats < lane->num_slots) {
    struct sml_send send;
    sml_worker_on_timer(lane->w, lane->now_ns);
    for (;;) {
      sml_worker_next_send(lane->w, lane->now_ns, &send);
      if (send.kind == SML_SEND_NONE) break;
      struct sml_header h = send.header;
      if (send.kind == SML_SEND_UPDATE) lane->num_repeats++;
      if (send.kind == SML_SEND_UPDATE) lane->sent[h.slot] = h;
      if (send.kind == SML_SEND_UPDATE) continue;
      lane->num_probes++;
      const bool has_come = (lane->sent[h.slot].flags & SML_FLAG_RETRANSMISSION) != 0;
      const uint8_t bits = has_come ? 1 << 2 : missing;
      h.type = SML_PACKET_PENDING;
      h.payload_bytes = 1;
      (void)sml_worker_on_packet(lane->w, &h, &bits, lane->now_ns + RTT_NS);
    }
    if (num_passes++ % LOOK_EVERY == 0) assert_null(sml_worker_find_violation(lane->w));
    lane->now_ns = sml_max_u64(sml_worker_next_deadline(lane->w), lane->now_ns + RTT_NS);
  }
}

/* Rank 2 is late for 20 s: timeouts and silence have 32 questions each, and a silence 8 each time that it is twice as
 * long, or another 128 ms. */
static void a_late_rank_is_asked_about_rarely(void **state) {
  (void)state;
  for (uint32_t num_slots = 256; num_slots <= MAX_SLOTS; num_slots *= 4) {
    struct lane *lane = make_lane(num_slots);
    wait_until(lane, 20 * SML_NS_PER_S, 1 << 2);
    assert_int_equal(lane->num_repeats, 0);
    assert_in_range(lane->num_probes, 8 * 20, 32 + 32 + 8 * (8 + 20 * 1000 / 128));
    free_lane(lane);
  }
}

/* A sum every 100 us: the lane is not silent, but nothing new goes, as the window has narrowed. 256 sums pay for a
 * question by timeouts, and for another one because nothing goes. */
static void sums_pay_for_questions(void **state) {
  (void)state;
  struct lane *lane = make_lane(4096);
  wait_until(lane, 10 * SML_NS_PER_S, 1 << 2); /* the budget is gone */
  lane->num_probes = 0;
  for (uint32_t i = 0; i < 4096; i++) {
    give_result(lane, i, 4096 + i, 0);
    while (send_update(lane)) continue;
    wait_until(lane, lane->now_ns + RTT_NS, 1 << 2);
  }
  assert_in_range(lane->num_probes, 1, 2 * 4096 / 256);
  free_lane(lane);
}

/* All updates of a window were lost: each question shows one, so none lacks the next one. */
static void losses_pay_for_questions(void **state) {
  (void)state;
  struct lane *lane = make_lane(256);
  wait_until(lane, 60 * SML_NS_PER_S, 1 << OWN | 1 << 2);
  assert_int_equal(lane->num_repeats, 256);
  assert_true(lane->now_ns < SML_NS_PER_S);
  free_lane(lane);
}

/* Where much is lost, round trips are mostly others' repairs: a sixth of a second here. What answers take tells when to
 * ask: a window of losses is found as fast as on any path of that length. */
static void repairs_of_others_make_no_lane_slow(void **state) {
  (void)state;
  struct lane *lane = make_lane(256);
  lane->now_ns += 160 * MS;
  for (uint32_t s = 0; s < 8; s++) give_result(lane, s, 256 + s, 0);
  for (uint32_t s = 0; s < 8; s++) assert_true(send_update(lane));
  const uint64_t lost_ns = lane->now_ns;
  wait_until(lane, 60 * SML_NS_PER_S, 1 << OWN | 1 << 2);
  assert_int_equal(lane->num_repeats, 256);
  assert_true(lane->now_ns - lost_ns < 500 * MS);
  free_lane(lane);
}

/* Losses show while a window is sent, and its last ones have to be asked for: what the others earned is there still. */
static void what_losses_earn_is_kept(void **state) {
  (void)state;
  struct lane *lane = make_lane(256);
  wait_until(lane, 60 * SML_NS_PER_S, 1 << OWN | 1 << 2);
  assert_int_equal(lane->num_repeats, 256);
  lane->num_repeats = lane->num_probes = 0;
  wait_until(lane, lane->now_ns + SML_NS_PER_S, 1 << 2);
  assert_in_range(lane->num_probes, 200, 256 + 32 + 8 * (8 + 1000 / 128));
  free_lane(lane);
}

/* What a lane asks until so many packets of it are lost, while one chunk is outstanding and no losses pay for more. */
static void a_burst_of_loss_is_outlasted_without_a_budget(void **state) {
  (void)state;
  struct lane *lane = make_lane(64);
  wait_until(lane, 10 * SML_NS_PER_S, 1 << 2); /* the budget is gone */
  for (uint32_t s = 0; s < 63; s++) give_result(lane, s, 256 + s, 0);
  lane->num_probes = 0;
  const uint64_t begun_ns = lane->now_ns;
  for (uint32_t num_passes = 0; lane->num_probes < 64; num_passes++) {
    struct sml_send send;
    assert_true(num_passes < 1000);
    lane->now_ns = sml_max_u64(sml_worker_next_deadline(lane->w), lane->now_ns + 1);
    sml_worker_on_timer(lane->w, lane->now_ns);
    for (sml_worker_next_send(lane->w, lane->now_ns, &send); send.kind != SML_SEND_NONE; lane->num_probes++) {
      assert_int_equal(send.kind, SML_SEND_PROBE);
      sml_worker_next_send(lane->w, lane->now_ns, &send);
    }
  }
  assert_true(lane->now_ns - begun_ns < 3 * SML_NS_PER_S);
  /* As soon as it is answered that rank 2 is late, it asks once each time. */
  lane->num_probes = 0;
  wait_until(lane, lane->now_ns + 10 * SML_NS_PER_S, 1 << 2);
  assert_in_range(lane->num_probes, 1, 8 + 10000 / 128);
  free_lane(lane);
}

static uint32_t window_of(const struct lane *lane) {
  struct sml_worker_view view;
  sml_worker_view(lane->w, &view);
  return view.window_chunks;
}

static void the_window_narrows_while_nothing_is_summed(void **state) {
  (void)state;
  struct lane *lane = make_lane(4096);
  assert_int_equal(window_of(lane), 4096);
  wait_until(lane, 10 * SML_NS_PER_S, 1 << 2);
  assert_int_equal(window_of(lane), USUAL_CHUNKS);
  for (uint32_t i = 0; i < 4096 - USUAL_CHUNKS; i++) {
    assert_int_equal(window_of(lane), USUAL_CHUNKS + i);
    give_result(lane, i, 4096 + i, 0);
    assert_int_equal(send_update(lane), USUAL_CHUNKS + i + 1 > 4095 - i);
  }
  assert_int_equal(window_of(lane), 4096);
  free_lane(lane);
}

/* How many questions it has then. */
static uint32_t ask(struct lane *lane, uint64_t now_ns, struct sml_header *last_out) {
  struct sml_send send;
  uint32_t num = 0;
  lane->now_ns = now_ns;
  sml_worker_on_timer(lane->w, now_ns);
  for (; sml_worker_next_send(lane->w, now_ns, &send), send.kind == SML_SEND_PROBE; num++) *last_out = send.header;
  return num;
}

/* Nothing follows the last chunks of an operation. On a long path the worker asks about them when a round trip and a
 * quarter have passed, and, twice each, as long after its first question. In the middle of an operation it does not. */
static void the_end_on_a_long_path_is_asked_about_soon(void **state) {
  (void)state;
  for (uint32_t num_chunks = 64; num_chunks <= 128; num_chunks += 64) {
    struct lane *lane = begin_lane(64, num_chunks, 100 * MS);
    const uint64_t sent_ns = lane->now_ns;
    struct sml_header last;
    lane->now_ns = sent_ns + 100 * MS;
    for (uint32_t s = 0; s < 60; s++) give_result(lane, s, 64 + s, 0);
    static const struct { uint64_t passed_ns; uint32_t num_probes; } asked[] = {
        {124 * MS, 0}, {126 * MS, 4}, {249 * MS, 4}, {252 * MS, 12}};
    for (size_t i = 0; i < SML_ARRAY_LEN(asked); i++) {
      lane->num_probes += ask(lane, sent_ns + asked[i].passed_ns, &last);
      if (num_chunks == 64) assert_int_equal(lane->num_probes, asked[i].num_probes);
      else assert_int_equal(lane->num_probes, 0);
    }
    free_lane(lane);
  }
}

/* As above, but all results waited for others' repairs, 300 ms. What an answer took says how long the path is. */
static void repairs_of_others_make_no_end_long(void **state) {
  (void)state;
  struct lane *lane = begin_lane(64, 128, 100 * MS);
  const uint64_t sent_ns = lane->now_ns;
  const uint8_t missing = 1 << OWN | 1 << 2;
  struct sml_header h;
  assert_true(ask(lane, sent_ns + 160 * MS, &h) > 0); /* it was silent */
  h.type = SML_PACKET_PENDING;
  h.payload_bytes = 1;
  lane->now_ns = sent_ns + 260 * MS;
  (void)sml_worker_on_packet(lane->w, &h, &missing, lane->now_ns);
  assert_true(send_update(lane)); /* again: a loss pays for questions */
  lane->now_ns = sent_ns + 300 * MS;
  for (uint32_t s = 0; s < 64; s++) give_result(lane, s, 64 + s, 0);
  for (uint32_t s = 0; s < 64; s++) assert_true(send_update(lane));
  assert_int_equal(ask(lane, sent_ns + 420 * MS, &h), 0);
  assert_true(ask(lane, sent_ns + 430 * MS, &h) > 0);
  free_lane(lane);
}

/* Round trips of 40 ms on a path of 2 ms: the rank's own queue, which is empty once the results of what it sent are
 * here. So 2.5 ms without a result show that the last chunk was lost, and 5 ms that the question was. */
static void an_own_queue_makes_no_end_long(void **state) {
  (void)state;
  struct lane *lane = begin_lane(64, 128, 2 * MS);
  struct sml_header h;
  const uint64_t sent_ns = lane->now_ns;
  for (uint32_t i = 0; i < 127; i++) { /* of 0.6 ms each */
    lane->now_ns = sent_ns + 2 * MS + i * 6 * MS / 10 + i / 64 * 16 * MS / 10;
    give_result(lane, i % 64, 64 + i, 0);
    assert_int_equal(send_update(lane), i < 64);
  }
  static const struct { uint64_t passed_ns; uint32_t num_probes; } asked[] = {
      {82 * MS, 0}, {83 * MS, 1}, {87 * MS, 1}, {89 * MS, 3}};
  for (size_t i = 0; i < SML_ARRAY_LEN(asked); i++) {
    lane->num_probes += ask(lane, sent_ns + asked[i].passed_ns, &h);
    assert_int_equal(lane->num_probes, asked[i].num_probes);
  }
  free_lane(lane);
}

/* The join measured a long path, on a processor that was busy; a sample does not. So the last chunks are not asked
 * about as soon as above. */
static void a_busy_processor_is_no_long_path(void **state) {
  (void)state;
  struct lane *lane = begin_lane(64, 64, 10 * MS);
  lane->now_ns += RTT_NS;
  for (uint32_t s = 0; s < 60; s++) give_result(lane, s, 64 + s, 0);
  lane->now_ns += RTT_NS;
  sml_worker_on_timer(lane->w, lane->now_ns);
  struct sml_send send;
  sml_worker_next_send(lane->w, lane->now_ns, &send);
  assert_int_equal(send.kind, SML_SEND_NONE);
  free_lane(lane);
}

#define TRAIN_SLOTS 32u

/* The results of some slots come at once, and they carry the next chunks. */
static void give_train(struct lane *lane, uint32_t train) {
  for (uint32_t i = 0; i < TRAIN_SLOTS; i++) {
    const uint32_t s = (train * TRAIN_SLOTS + i) % lane->num_slots;
    give_result(lane, s, lane->sent[s].chunk + lane->num_slots, 0);
    assert_true(send_update(lane));
  }
}

/* What it asks meanwhile; nobody answers. */
static uint32_t count_questions(struct lane *lane, uint64_t wait_ns) {
  const uint64_t until_ns = lane->now_ns + wait_ns;
  uint32_t num_questions = 0;
  while (lane->now_ns < until_ns) {
    struct sml_send send;
    sml_worker_on_timer(lane->w, lane->now_ns);
    for (sml_worker_next_send(lane->w, lane->now_ns, &send); send.kind != SML_SEND_NONE;
         sml_worker_next_send(lane->w, lane->now_ns, &send))
      num_questions++;
    assert_null(sml_worker_find_violation(lane->w));
    lane->now_ns = sml_min_u64(until_ns, sml_max_u64(sml_worker_next_deadline(lane->w), lane->now_ns + RTT_NS));
  }
  return num_questions;
}

/* A question was answered in a round trip of the path. Now a queue grows that all ranks share, and results come in
 * trains out of it. The worker asks in the pauses until answers come behind the results; and again once some are
 * lost. */
static void a_pause_between_trains_is_no_silence(void **state) {
  (void)state;
  struct lane *lane = begin_lane(256, 64 * 256, 0);
  uint32_t train = 0;
  lane->now_ns += RTT_NS;
  give_train(lane, train++);
  wait_until(lane, lane->now_ns + 3 * MS, 1 << 2);
  assert_true(lane->num_probes > 0);
  for (uint64_t pause_ns = MS; pause_ns < 8 * MS; pause_ns += MS / 4) {
    (void)count_questions(lane, pause_ns);
    give_train(lane, train++);
  }
  for (uint32_t i = 0; i < 8; i++) {
    assert_true(count_questions(lane, 8 * MS) > 0);
    give_train(lane, train++);
  }
  for (uint32_t i = 0; i < 8; i++) {
    if (count_questions(lane, 8 * MS) > 0) sml_worker_note_needless(lane->w);
    give_train(lane, train++);
  }
  assert_int_equal(count_questions(lane, 8 * MS), 0);
  assert_true(count_questions(lane, 64 * MS) > 0);
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t s = (train * TRAIN_SLOTS + i) % lane->num_slots;
    give_result(lane, s, lane->sent[s].chunk + lane->num_slots, SML_FLAG_RETRANSMISSION);
    assert_true(send_update(lane));
  }
  assert_true(count_questions(lane, 8 * MS) > 0);
  free_lane(lane);
}

/* What results of all outstanding chunks would take must fit the socket. But a chunk goes that is before others which
 * were sent: ranks could be full of what the others hold back. */
static void a_small_buffer_holds_new_chunks_back(void **state) {
  (void)state;
  struct lane *lane = make_lane(128);
  give_result(lane, 1, 129, 0);
  assert_true(send_update(lane));
  sml_worker_set_buffer(lane->w, 40);
  assert_int_equal(window_of(lane), 40);
  give_result(lane, 2, 130, 0);
  assert_false(send_update(lane));
  give_result(lane, 0, 128, SML_FLAG_RETRANSMISSION);
  assert_true(send_update(lane));
  assert_int_equal(lane->sent[0].chunk, 128);
  for (uint32_t s = 3; s < 128; s++) {
    give_result(lane, s, 128 + s, 0);
    assert_int_equal(send_update(lane), s >= 128 - 40 + 2);
  }
  sml_worker_set_buffer(lane->w, 1); /* never fewer than 32 */
  assert_int_equal(window_of(lane), 32);
  free_lane(lane);
}

/* ---- an aggregator of three ranks ---- */

static enum sml_verdict update(struct sml_aggregator *a, uint32_t rank, uint32_t slot, uint16_t flags) {
  const struct sml_header h = {.type = SML_PACKET_UPDATE, .rank = (uint16_t)rank, .payload_bytes = CHUNK_BYTES,
                               .slot = (uint16_t)slot, .phase = SML_FIRST_PHASE, .tag = slot + 100, .flags = flags};
  return sml_aggregator_decide(a, &h).verdict;
}

/* Rank 1 has contributed to the second half of the window only. Returns how many questions it got in 10 s. */
static uint32_t ask_for_a_half(uint32_t num_slots, bool answers) {
  const struct sml_aggregator_options o = {.world_size = 3, .num_slots = num_slots, .chunk_bytes = CHUNK_BYTES,
                                           .first_phase = SML_FIRST_PHASE};
  struct sml_aggregator *a = sml_aggregator_init(room(sml_aggregator_memsize(&o)), &o);
  uint32_t num_asked = 0;
  for (uint32_t s = 0; s < num_slots; s++) {
    update(a, 0, s, 0);
    update(a, 2, s, 0);
    if (s >= num_slots / 2) update(a, 1, s, 0);
  }
  for (uint64_t now_ns = MS; now_ns < 10 * SML_NS_PER_S; now_ns += STEP_NS) {
    struct sml_header h;
    const uint64_t *ranks;
    uint32_t num_now = 0;
    static uint16_t slots[MAX_SLOTS];
    for (sml_aggregator_begin_solicit(a, now_ns); sml_aggregator_next_solicit(a, &h, &ranks); num_now++) {
      assert_int_equal(ranks[0], 1 << 1);
      slots[num_now] = h.slot;
    }
    for (uint32_t i = 0; i < num_now && answers; i++)
      assert_int_equal(update(a, 1, slots[i], SML_FLAG_RETRANSMISSION), SML_VERDICT_COMPLETE);
    num_asked += num_now;
    if (now_ns / STEP_NS % LOOK_EVERY == 0) assert_null(sml_aggregator_find_violation(a));
  }
  free(a);
  return num_asked;
}

/* On a long path rank 1 lacks the exponents of 512 chunks, and sends later ones first. Then it comes back to them, and
 * has lost the third of them. */
static void who_lacks_exponents_is_asked_when_it_has_them(void **state) {
  (void)state;
  const struct sml_aggregator_options o = {.world_size = 3, .num_slots = 1024, .chunk_bytes = CHUNK_BYTES,
                                           .first_phase = SML_FIRST_PHASE, .rtt_ns = 100 * MS};
  struct sml_aggregator *a = sml_aggregator_init(room(sml_aggregator_memsize(&o)), &o);
  struct sml_header h;
  const uint64_t *ranks;
  for (uint32_t s = 0; s < 1024; s++) {
    update(a, 0, s, 0);
    if (s < 8 || s >= 520) update(a, 1, s, 0);
  }
  for (uint64_t now_ns = MS; now_ns < 400 * MS; now_ns += STEP_NS) {
    sml_aggregator_begin_solicit(a, now_ns);
    assert_false(sml_aggregator_next_solicit(a, &h, &ranks));
  }
  for (uint32_t s = 8; s < 520; s++)
    if (s != 10) update(a, 1, s, 0);
  uint32_t num_asked = 0;
  for (uint64_t now_ns = 400 * MS; now_ns < 500 * MS; now_ns += STEP_NS)
    for (sml_aggregator_begin_solicit(a, now_ns); sml_aggregator_next_solicit(a, &h, &ranks); num_asked++)
      assert_true(h.slot == 10 && ranks[0] == 1 << 1);
  assert_int_equal(num_asked, 1);
  assert_null(sml_aggregator_find_violation(a));
  free(a);
}

static void a_rank_that_does_not_answer_is_not_asked(void **state) {
  (void)state;
  for (uint32_t num_slots = 256; num_slots <= MAX_SLOTS; num_slots *= 4)
    assert_in_range(ask_for_a_half(num_slots, false), 1, 64 + num_slots / 2 / 4);
}

static void a_rank_that_answers_is_asked_for_all(void **state) {
  (void)state;
  for (uint32_t num_slots = 256; num_slots <= MAX_SLOTS; num_slots *= 4)
    assert_in_range(ask_for_a_half(num_slots, true), num_slots / 2 - 3, num_slots / 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_late_rank_is_asked_about_rarely),
      cmocka_unit_test(sums_pay_for_questions),
      cmocka_unit_test(losses_pay_for_questions),
      cmocka_unit_test(repairs_of_others_make_no_lane_slow),
      cmocka_unit_test(what_losses_earn_is_kept),
      cmocka_unit_test(a_burst_of_loss_is_outlasted_without_a_budget),
      cmocka_unit_test(the_window_narrows_while_nothing_is_summed),
      cmocka_unit_test(the_end_on_a_long_path_is_asked_about_soon),
      cmocka_unit_test(repairs_of_others_make_no_end_long),
      cmocka_unit_test(an_own_queue_makes_no_end_long),
      cmocka_unit_test(a_busy_processor_is_no_long_path),
      cmocka_unit_test(a_pause_between_trains_is_no_silence),
      cmocka_unit_test(a_small_buffer_holds_new_chunks_back),
      cmocka_unit_test(who_lacks_exponents_is_asked_when_it_has_them),
      cmocka_unit_test(a_rank_that_does_not_answer_is_not_asked),
      cmocka_unit_test(a_rank_that_answers_is_asked_for_all),
  };
  return cmocka_run_group_tests_name("questions", tests, NULL, NULL);
}
