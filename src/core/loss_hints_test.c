/* SPDX-License-Identifier: Apache-2.0
 * What shows a loss without a timer: chunks of a rank that overtook one (the aggregator asks that rank), grants that
 * overtook one (the worker asks for that result); and that mere reordering and crossing packets do not. */
#include "core/aggregator.h"
#include "core/worker.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define CHUNK_BYTES 64u
#define NUM_SLOTS 16u
#define MS SML_NS_PER_MS

static void *room(size_t num_bytes) {
  void *mem = aligned_alloc(64, sml_align_up(num_bytes, 64));
  assert_non_null(mem);
  memset(mem, 0xa5, num_bytes);
  return mem;
}

static struct sml_aggregator *make_aggregator(uint32_t first_chunk) {
  const struct sml_aggregator_options o = {.world_size = 3, .num_slots = NUM_SLOTS, .chunk_bytes = CHUNK_BYTES,
                                           .first_phase = SML_FIRST_PHASE, .first_chunk = first_chunk};
  return sml_aggregator_init(room(sml_aggregator_memsize(&o)), &o);
}

static enum sml_verdict update(struct sml_aggregator *a, uint32_t rank, uint32_t slot, uint32_t phase,
                               uint16_t flags) {
  const struct sml_header h = {.type = SML_PACKET_UPDATE, .rank = (uint16_t)rank, .payload_bytes = CHUNK_BYTES,
                               .slot = (uint16_t)slot, .phase = phase, .tag = slot + 100, .flags = flags};
  return sml_aggregator_decide(a, &h).verdict;
}

/* Whom the aggregator asks, about which slot: one question at most. */
static uint64_t asked(struct sml_aggregator *a, uint64_t now_ns, uint32_t *slot_out) {
  struct sml_header h;
  const uint64_t *ranks;
  sml_aggregator_begin_solicit(a, now_ns);
  if (!sml_aggregator_next_solicit(a, &h, &ranks)) return 0;
  const uint64_t bits = ranks[0];
  assert_int_equal(h.type, SML_PACKET_PENDING);
  assert_int_equal(h.tag, h.slot + 100u);
  *slot_out = h.slot;
  assert_false(sml_aggregator_next_solicit(a, &h, &ranks));
  return bits;
}

/* Rank 1 loses its update for slot 2; also where the numbers of chunks wrap. */
static void an_overtaken_update_is_asked_for(void **state) {
  (void)state;
  static const uint32_t firsts[] = {0, UINT32_MAX - 5};
  for (size_t i = 0; i < SML_ARRAY_LEN(firsts); i++) {
    struct sml_aggregator *a = make_aggregator(firsts[i]);
    uint32_t slot = NUM_SLOTS;
    for (uint32_t s = 0; s < 6; s++) {
      update(a, 0, s, SML_FIRST_PHASE, 0);
      if (s != 2) update(a, 1, s, SML_FIRST_PHASE, 0);
    }
    assert_int_equal(asked(a, 1 * MS, &slot), 0); /* three later ones may be reordering */
    update(a, 1, 6, SML_FIRST_PHASE, 0);
    assert_int_equal(asked(a, 2 * MS, &slot), 0); /* and so may what is so new */
    assert_int_equal(asked(a, 3 * MS, &slot), 1 << 1);
    assert_int_equal(slot, 2);
    assert_int_equal(sml_aggregator_latest_chunk(a, 1), firsts[i] + 6);
    assert_int_equal(asked(a, 4 * MS, &slot), 0); /* once: the answer is on its way */
    for (uint32_t s = 7; s < NUM_SLOTS; s++) update(a, 1, s, SML_FIRST_PHASE, 0);
    assert_int_equal(asked(a, 5 * MS, &slot), 0); /* all that was granted before the question */
    free(a);
  }
}

/* What is granted behind the question overtakes its answer: so that was lost as well. */
static void a_lost_answer_is_asked_for_again(void **state) {
  (void)state;
  struct sml_aggregator *a = make_aggregator(0);
  uint32_t slot = NUM_SLOTS;
  for (uint32_t s = 0; s < NUM_SLOTS; s++)
    for (uint32_t rank = 0; rank < 3; rank++)
      if (s > 0 || rank != 1) update(a, rank, s, SML_FIRST_PHASE, 0);
  assert_int_equal(asked(a, 1 * MS, &slot), 0);
  assert_int_equal(asked(a, 2 * MS, &slot), 1 << 1);
  for (uint32_t s = 1; s < NUM_SLOTS; s++) { /* granted before the question */
    update(a, 0, s, SML_FIRST_PHASE + 1, 0);
    update(a, 1, s, SML_FIRST_PHASE + 1, 0);
    assert_int_equal(asked(a, 3 * MS, &slot), 0);
    update(a, 2, s, SML_FIRST_PHASE + 1, 0);
  }
  for (uint32_t s = 1; s < 5; s++) update(a, 1, s, SML_FIRST_PHASE + 2, 0);
  assert_int_equal(asked(a, 4 * MS, &slot), 0);
  update(a, 1, 5, SML_FIRST_PHASE + 2, 0);
  assert_int_equal(asked(a, 4 * MS, &slot), 1 << 1);
  assert_int_equal(slot, 0);
  assert_int_equal(update(a, 1, 0, SML_FIRST_PHASE, SML_FLAG_RETRANSMISSION), SML_VERDICT_COMPLETE);
  for (uint32_t s = 6; s < NUM_SLOTS; s++) update(a, 1, s, SML_FIRST_PHASE + 2, 0);
  assert_int_equal(asked(a, 5 * MS, &slot), 0);
  assert_null(sml_aggregator_find_violation(a));
  free(a);
}

/* Nothing need come later: when the answer has had its time. */
static void a_late_answer_is_asked_for_again(void **state) {
  (void)state;
  struct sml_aggregator *a = make_aggregator(0);
  uint32_t slot = NUM_SLOTS;
  for (uint32_t s = 0; s < NUM_SLOTS; s++)
    for (uint32_t rank = 0; rank < 3; rank++)
      if (s != 3 || rank != 1) update(a, rank, s, SML_FIRST_PHASE, 0);
  assert_int_equal(asked(a, 1 * MS, &slot), 0);
  assert_int_equal(asked(a, 2 * MS, &slot), 1 << 1);
  assert_int_equal(asked(a, 11 * MS, &slot), 0);
  assert_int_equal(asked(a, 22 * MS, &slot), 1 << 1); /* 2 x 5 ms, twice as it was asked in vain */
  assert_int_equal(slot, 3);
  assert_int_equal(asked(a, 51 * MS, &slot), 0);
  assert_int_equal(asked(a, 52 * MS, &slot), 1 << 1);
  assert_int_equal(update(a, 1, 3, SML_FIRST_PHASE, SML_FLAG_RETRANSMISSION), SML_VERDICT_COMPLETE);
  assert_int_equal(asked(a, 500 * MS, &slot), 0);
  assert_null(sml_aggregator_find_violation(a));
  free(a);
}

/* Rank 1 loses its update for slot 3 twice, and rank 2 is behind: so what was asked for comes before the sum is there.
 * The slot's next chunk is asked about as if it were the first. */
static void each_chunk_has_its_own_patience(void **state) {
  (void)state;
  struct sml_aggregator *a = make_aggregator(0);
  uint32_t slot = NUM_SLOTS;
  for (uint32_t s = 0; s < NUM_SLOTS; s++) {
    update(a, 0, s, SML_FIRST_PHASE, 0);
    if (s != 3) update(a, 1, s, SML_FIRST_PHASE, 0);
  }
  assert_int_equal(asked(a, 1 * MS, &slot), 0);
  assert_int_equal(asked(a, 2 * MS, &slot), 1 << 1);
  assert_int_equal(update(a, 1, 3, SML_FIRST_PHASE, SML_FLAG_RETRANSMISSION), SML_VERDICT_ADD);
  assert_int_equal(asked(a, 3 * MS, &slot), 0); /* an answer takes 4 ms, about: 3/4 of 5 ms and 1/4 of 1 ms */
  for (uint32_t s = 0; s < NUM_SLOTS; s++)
    assert_int_equal(update(a, 2, s, SML_FIRST_PHASE, 0), SML_VERDICT_COMPLETE);
  for (uint32_t s = 0; s < NUM_SLOTS; s++) {
    update(a, 0, s, SML_FIRST_PHASE + 1, 0);
    if (s != 3) update(a, 1, s, SML_FIRST_PHASE + 1, 0);
  }
  assert_int_equal(asked(a, 10 * MS, &slot), 0);
  assert_int_equal(asked(a, 11 * MS, &slot), 1 << 1);
  assert_int_equal(slot, 3);
  assert_int_equal(asked(a, 26 * MS, &slot), 0);
  assert_int_equal(asked(a, 27 * MS, &slot), 1 << 1); /* 2 x 4 ms, twice as it was asked in vain once */
  free(a);
}

/* Rank 1's packets come in any order, some late and some once asked for, for thousands of chunks: asked is exactly
 * for those that it lacks while a chunk more than three later is here. */
static void gaps_are_found_wherever_they_are(void **state) {
  (void)state;
  struct sml_prng prng = {7};
  struct sml_aggregator *a = make_aggregator(UINT32_MAX - 900);
  uint32_t phases[NUM_SLOTS], chunks[NUM_SLOTS], cursor = UINT32_MAX - 900 + NUM_SLOTS, latest = UINT32_MAX - 901;
  bool has_sent[NUM_SLOTS] = {false}, was_asked[NUM_SLOTS] = {false}, is_overtaken[NUM_SLOTS] = {false};
  uint32_t num_asked = 0, num_sent = 0;
  for (uint32_t s = 0; s < NUM_SLOTS; s++) {
    phases[s] = SML_FIRST_PHASE;
    chunks[s] = UINT32_MAX - 900 + s;
    update(a, 0, s, SML_FIRST_PHASE, 0);
  }
  for (uint32_t round = 1; round < 6000; round++) {
    uint32_t s = 0; /* the oldest that it has not sent, or one of those behind it */
    for (uint32_t k = 0; k < NUM_SLOTS; k++)
      if (has_sent[s] || (!has_sent[k] && (int32_t)(chunks[k] - chunks[s]) < 0)) s = k;
    if (sml_prng_below(&prng, 60) < round % 30) s = (uint32_t)sml_prng_below(&prng, NUM_SLOTS);
    if (has_sent[s]) continue;
    has_sent[s] = true;
    num_sent++;
    const bool is_repeat = was_asked[s];
    update(a, 1, s, phases[s], is_repeat ? SML_FLAG_RETRANSMISSION : 0);
    if (!is_repeat && (int32_t)(chunks[s] - latest) > 0) latest = chunks[s];
    for (uint32_t k = 0; k < NUM_SLOTS; k++) is_overtaken[k] = is_overtaken[k] || (int32_t)(latest - chunks[k]) > 3;
    struct sml_header h;
    const uint64_t *ranks;
    for (uint32_t twice = 0; twice < 2; twice++) { /* seen, and old enough */
      sml_aggregator_begin_solicit(a, (2 * round + twice) * MS);
      while (sml_aggregator_next_solicit(a, &h, &ranks)) {
        if ((ranks[0] & 1 << 1) == 0) continue;
        assert_true(is_overtaken[h.slot] && !has_sent[h.slot]);
        num_asked += !was_asked[h.slot];
        was_asked[h.slot] = true;
      }
    }
    for (uint32_t k = 0; k < NUM_SLOTS; k++) {
      if (is_overtaken[k] && !has_sent[k]) assert_true(was_asked[k]);
      if (!has_sent[k] || sml_prng_below(&prng, 2) == 0) continue;
      update(a, 2, k, phases[k], 0);
      chunks[k] = cursor++;
      has_sent[k] = was_asked[k] = is_overtaken[k] = false;
      update(a, 0, k, ++phases[k], 0);
    }
    assert_null(sml_aggregator_find_violation(a));
  }
  assert_true(num_asked > 100 && num_sent > 3000);
  free(a);
}

/* A slot that was asked about and then completed, all in one pass, begins its next chunk without suspicion. */
static void a_new_chunk_is_not_suspected(void **state) {
  (void)state;
  struct sml_aggregator *a = make_aggregator(0);
  uint32_t slot = NUM_SLOTS;
  for (uint32_t s = 0; s < 9; s++)
    for (uint32_t rank = 0; rank < 3; rank++)
      if (s != 2 || rank != 1) update(a, rank, s, SML_FIRST_PHASE, 0);
  assert_int_equal(asked(a, 1 * MS, &slot), 0);
  assert_int_equal(asked(a, 2 * MS, &slot), 1 << 1);
  for (uint32_t s = 9; s < 14; s++)
    for (uint32_t rank = 0; rank < 3; rank++) update(a, rank, s, SML_FIRST_PHASE, 0);
  assert_int_equal(update(a, 1, 2, SML_FIRST_PHASE, SML_FLAG_RETRANSMISSION), SML_VERDICT_COMPLETE);
  for (uint32_t rank = 0; rank < 3; rank++) update(a, rank, 14, SML_FIRST_PHASE, 0);
  for (uint32_t rank = 0; rank < 2; rank++) {
    update(a, rank, 15, SML_FIRST_PHASE, 0);
    for (uint32_t s = 0; s < 14; s++)
      if (s != 2) update(a, rank, s, SML_FIRST_PHASE + 1, 0);
    if (rank == 0) update(a, rank, 2, SML_FIRST_PHASE + 1, 0);
    update(a, rank, 14, SML_FIRST_PHASE + 1, 0); /* whose chunk was granted right behind slot 2's */
  }
  assert_int_equal(asked(a, 3 * MS, &slot), 0);
  assert_int_equal(asked(a, 4 * MS, &slot), 0);
  free(a);
}

/* Rank 1 lacks the result of slot 0, not an update, and asks for it: it is not asked, or not before others overtake
 * its answer. */
static void who_asks_is_not_asked(void **state) {
  (void)state;
  struct sml_aggregator *a = make_aggregator(0);
  uint32_t slot = NUM_SLOTS;
  for (uint32_t s = 0; s < NUM_SLOTS; s++)
    for (uint32_t rank = 0; rank < 3; rank++) update(a, rank, s, SML_FIRST_PHASE, 0);
  const struct sml_header ask = {.type = SML_PACKET_PROBE, .rank = 1, .flags = SML_FLAG_BY_GRANT, .chunk = NUM_SLOTS};
  update(a, 0, 0, SML_FIRST_PHASE + 1, 0);
  update(a, 2, 0, SML_FIRST_PHASE + 1, 0);
  for (uint32_t s = 1; s < 9; s++) update(a, 1, s, SML_FIRST_PHASE + 1, 0);
  assert_int_equal(asked(a, 1 * MS, &slot), 0); /* suspected, but not for long enough */
  assert_int_equal(sml_aggregator_decide(a, &ask).verdict, SML_VERDICT_REPEAT);
  assert_int_equal(asked(a, 2 * MS, &slot), 0);
  for (uint32_t s = 9; s < NUM_SLOTS; s++) update(a, 1, s, SML_FIRST_PHASE + 1, 0);
  assert_int_equal(asked(a, 3 * MS, &slot), 0);
  for (uint32_t s = 1; s < 6; s++)
    for (uint32_t rank = 0; rank < 3; rank++) update(a, rank, s, SML_FIRST_PHASE + 1, 0);
  for (uint32_t s = 1; s < 6; s++) update(a, 1, s, SML_FIRST_PHASE + 2, 0);
  assert_int_equal(asked(a, 4 * MS, &slot), 1 << 1); /* granted behind the question: so the answer was lost, too */
  assert_int_equal(slot, 0);
  update(a, 1, 0, SML_FIRST_PHASE + 1, 0);
  assert_int_equal(sml_aggregator_decide(a, &ask).verdict, SML_VERDICT_REPEAT); /* a late one, in vain */
  assert_int_equal(asked(a, 5 * MS, &slot), 0);
  assert_null(sml_aggregator_find_violation(a));
  free(a);
}

static void nobody_asks_who_left(void **state) {
  (void)state;
  struct sml_aggregator *a = make_aggregator(0);
  uint32_t slot;
  for (uint32_t s = 0; s < 8; s++) {
    update(a, 0, s, SML_FIRST_PHASE, 0);
    if (s > 0) update(a, 1, s, SML_FIRST_PHASE, 0);
  }
  sml_aggregator_note_departed(a, 1);
  assert_int_equal(asked(a, 1 * MS, &slot), 0);
  assert_int_equal(asked(a, 2 * MS, &slot), 0);
  free(a);
}

static void a_result_is_found_by_its_grant(void **state) {
  (void)state;
  struct sml_aggregator *a = make_aggregator(0);
  for (uint32_t rank = 0; rank < 3; rank++) update(a, rank, 5, SML_FIRST_PHASE, 0);
  struct sml_header h = {.type = SML_PACKET_PROBE, .flags = SML_FLAG_BY_GRANT, .chunk = NUM_SLOTS};
  const struct sml_decision d = sml_aggregator_decide(a, &h);
  assert_int_equal(d.verdict, SML_VERDICT_REPEAT);
  assert_int_equal(d.cell, 10);
  for (uint32_t i = 0; i < 100000; i++) { /* of nobody, or not drawn yet */
    h.chunk = i * 42949u;
    if (h.chunk != NUM_SLOTS) assert_int_equal(sml_aggregator_decide(a, &h).drop, SML_DROP_STALE_PHASE);
  }
  free(a);
}

/* ---- the worker ---- */

struct desk {
  struct sml_worker *w;
  struct sml_header sent[NUM_SLOTS];
};

static void make_desk(struct desk *d) {
  const struct sml_worker_options o = {.epoch = 1, .rank = 1, .world_size = 3, .num_lanes = 1, .num_slots = NUM_SLOTS,
                                       .chunk_bytes = CHUNK_BYTES, .first_phase = SML_FIRST_PHASE,
                                       .num_operations = 4, .has_fixed_window = true};
  const struct sml_operation_plan plan = {.num_elems = 1000 * CHUNK_BYTES / 4, .type = 1};
  d->w = sml_worker_init(room(sml_worker_memsize(&o)), &o);
  assert_true(sml_worker_submit(d->w, &plan, NULL, d, MS));
  for (uint32_t s = 0; s < NUM_SLOTS; s++) {
    struct sml_send send;
    sml_worker_next_send(d->w, MS, &send);
    assert_int_equal(send.kind, SML_SEND_UPDATE);
    d->sent[s] = send.header;
  }
}

static void give_result(struct desk *d, uint32_t slot, uint32_t grant, uint16_t flags, uint64_t now_ns) {
  struct sml_header h = d->sent[slot];
  h.type = SML_PACKET_RESULT;
  h.chunk = grant;
  h.flags = flags;
  assert_int_equal(sml_worker_on_packet(d->w, &h, NULL, now_ns).kind, SML_ACCEPT_RESULT);
  assert_null(sml_worker_find_violation(d->w));
}

static struct sml_send next(struct desk *d, uint64_t now_ns) {
  struct sml_send send;
  sml_worker_on_timer(d->w, now_ns);
  sml_worker_next_send(d->w, now_ns, &send);
  return send;
}

/* Whatever order results come in, chunks leave in theirs: so ranks whose windows are small send the same ones. */
static void chunks_leave_in_their_order(void **state) {
  (void)state;
  static const uint32_t order[] = {5, 2, 9, 3, 4, 0, 8, 1, 7, 6};
  struct desk d;
  make_desk(&d);
  for (uint32_t i = 0; i < SML_ARRAY_LEN(order); i++) {
    give_result(&d, i, NUM_SLOTS + order[i], 0, 2 * MS);
    assert_int_equal(sml_worker_num_ready(d.w), i + 1);
  }
  for (uint32_t i = 0; i < SML_ARRAY_LEN(order); i++) {
    const struct sml_send send = next(&d, 2 * MS);
    assert_int_equal(send.kind, SML_SEND_UPDATE);
    assert_int_equal(send.header.chunk, NUM_SLOTS + i);
    assert_null(sml_worker_find_violation(d.w));
  }
  assert_int_equal(sml_worker_num_ready(d.w), 0);
  free(d.w);
}

/* A window that is full of chunks which other ranks have not sent yet moves on as soon as the last one has arrived. */
static void a_full_window_is_asked_about_at_its_end(void **state) {
  (void)state;
  const struct sml_worker_options o = {.epoch = 1, .rank = 1, .world_size = 3, .num_lanes = 1, .num_slots = 256,
                                       .chunk_bytes = 1440, .first_phase = SML_FIRST_PHASE, .num_operations = 4};
  const struct sml_operation_plan plan = {.num_elems = 1000 * 360, .type = 1};
  struct desk d = {.w = sml_worker_init(room(sml_worker_memsize(&o)), &o)};
  assert_true(sml_worker_submit(d.w, &plan, NULL, &d, MS));
  struct sml_send send, last = {0};
  for (uint32_t round = 0; round < 4; round++) { /* 64 of 256: one segmented send */
    const uint64_t now_ns = (1 + 8 * round) * MS;
    for (uint32_t i = 0; i < 64; i++) {
      last = next(&d, now_ns);
      assert_int_equal(last.kind, SML_SEND_UPDATE);
    }
    assert_int_equal(next(&d, now_ns).kind, SML_SEND_NONE);
    if (round == 3) break;
    bool is_asked = false;
    while ((send = next(&d, now_ns + 6 * MS)).kind == SML_SEND_PROBE)
      is_asked = is_asked || send.header.slot == last.header.slot;
    assert_true(is_asked);
    assert_int_equal(send.kind, SML_SEND_NONE);
    struct sml_header h = last.header;
    h.type = SML_PACKET_PENDING;
    h.payload_bytes = 1;
    const uint8_t others = 1 << 2;
    assert_int_equal(sml_worker_on_packet(d.w, &h, &others, now_ns + 7 * MS).kind, SML_ACCEPT_PENDING);
    assert_null(sml_worker_find_violation(d.w));
  }
  free(d.w);
}

static void a_missing_grant_is_asked_for(void **state) {
  (void)state;
  struct desk d;
  make_desk(&d);
  give_result(&d, 0, NUM_SLOTS, 0, 2 * MS);
  for (uint32_t s = 2; s < 5; s++) give_result(&d, s, NUM_SLOTS + s, 0, 2 * MS); /* slot 1's is lost */
  for (uint32_t i = 0; i < 4; i++) assert_int_equal(next(&d, 2 * MS).kind, SML_SEND_UPDATE);
  assert_int_equal(next(&d, 2 * MS).kind, SML_SEND_NONE);
  give_result(&d, 5, NUM_SLOTS + 5, 0, 2 * MS + 1);
  assert_int_equal(next(&d, 2 * MS + 2).kind, SML_SEND_UPDATE); /* too new */
  const struct sml_send ask = next(&d, 2 * MS + MS / 5);
  assert_int_equal(ask.kind, SML_SEND_PROBE);
  assert_int_equal(ask.header.flags, SML_FLAG_BY_GRANT);
  assert_int_equal(ask.header.chunk, NUM_SLOTS + 1);
  assert_int_equal(next(&d, 2 * MS + MS / 5).kind, SML_SEND_NONE);
  give_result(&d, 1, NUM_SLOTS + 1, SML_FLAG_RETRANSMISSION, 2 * MS + MS / 2);
  assert_int_equal(next(&d, 2 * MS + MS / 2).kind, SML_SEND_UPDATE);
  assert_int_equal(next(&d, 2 * MS + MS / 2).kind, SML_SEND_NONE);
  free(d.w);
}

static void expect_question(struct desk *d, uint64_t now_ns, uint32_t grant) {
  struct sml_send send;
  while ((send = next(d, now_ns)).kind == SML_SEND_UPDATE) continue;
  assert_int_equal(send.kind, grant == 0 ? SML_SEND_NONE : SML_SEND_PROBE);
  if (grant != 0) assert_int_equal(send.header.chunk, grant);
}

/* Nothing more is summed that could show that the question was lost. But the answer to a later one is here. */
static void a_lost_question_shows_in_later_answers(void **state) {
  (void)state;
  struct desk d;
  make_desk(&d);
  for (uint32_t s = 0; s < 9; s++) /* 1 and 5 are lost */
    if (s % 4 != 1) give_result(&d, s, NUM_SLOTS + s, 0, 2 * MS);
  expect_question(&d, 2 * MS + MS / 5, NUM_SLOTS + 1);
  expect_question(&d, 2 * MS + MS / 5 + 1, NUM_SLOTS + 5);
  for (uint32_t s = 10; s < 13; s++) give_result(&d, s, NUM_SLOTS + s, 0, 4 * MS); /* and 9 */
  expect_question(&d, 4 * MS + MS / 5, NUM_SLOTS + 9);
  give_result(&d, 5, NUM_SLOTS + 5, SML_FLAG_RETRANSMISSION, 5 * MS);
  expect_question(&d, 5 * MS, 0); /* asked about at the same time: its answer may follow */
  give_result(&d, 9, NUM_SLOTS + 9, SML_FLAG_RETRANSMISSION, 6 * MS);
  expect_question(&d, 6 * MS, NUM_SLOTS + 1);
  expect_question(&d, 6 * MS, 0);
  free(d.w);
}

/* Where order shows losses the clock is patient, and asks about one chunk of 256 at most and 32 to begin with: else
 * each chunk that waits for another rank's repair would be asked about, and its result come twice. */
static void the_clock_asks_late_and_rarely(void **state) {
  (void)state;
  struct desk d;
  struct sml_worker_view view;
  make_desk(&d);
  uint64_t now_ns = MS, asked_ns[NUM_SLOTS];
  uint32_t grant = NUM_SLOTS, num_questions = 0;
  for (uint32_t s = 0; s < NUM_SLOTS; s++) asked_ns[s] = MS;
  while (grant < 900) { /* half of the slots wait for somebody; the others go on, 1 ms a round trip */
    now_ns += MS;
    for (uint32_t s = NUM_SLOTS / 2; s < NUM_SLOTS; s++) {
      give_result(&d, s, grant++, 0, now_ns);
      struct sml_send send = next(&d, now_ns);
      for (; send.kind == SML_SEND_PROBE; send = next(&d, now_ns)) {
        sml_worker_view(d.w, &view);
        assert_true(send.header.slot < NUM_SLOTS / 2);
        assert_true(now_ns - asked_ns[send.header.slot] >= 2 * view.rto_ns);
        asked_ns[send.header.slot] = now_ns;
        num_questions++;
      }
      assert_int_equal(send.kind, SML_SEND_UPDATE);
      d.sent[s] = send.header;
    }
  }
  assert_in_range(num_questions, 32, 32 + 900 / 256);
  free(d.w);
}

/* Operations that are less than the slots, each sent at once and its results back at once. The path becomes 40 times as
 * long, so nothing comes before the timeout is over any more. That is learnt; of a rank that is late, who is asked
 * about says PENDING, it is not. */
static void a_longer_path_is_learnt(void **state) {
  (void)state;
  enum { NUM_CHUNKS = 8 };
  for (uint32_t is_late = 0; is_late < 2; is_late++) {
    const struct sml_worker_options o = {.epoch = 1, .rank = 1, .world_size = 3, .num_lanes = 1,
                                         .num_slots = NUM_SLOTS, .chunk_bytes = CHUNK_BYTES,
                                         .first_phase = SML_FIRST_PHASE, .num_operations = 4};
    const struct sml_operation_plan plan = {.num_elems = NUM_CHUNKS * CHUNK_BYTES / 4, .type = 1};
    struct desk d = {.w = sml_worker_init(room(sml_worker_memsize(&o)), &o)};
    struct sml_worker_view view;
    uint32_t grant = NUM_SLOTS;
    const uint8_t others = 1 << 2;
    for (uint64_t round = 0; round < 100; round++) {
      const uint64_t begin_ns = (1 + 100 * round) * MS, took_ns = round < 50 ? MS / 2 : 20 * MS;
      struct sml_header sent[NUM_CHUNKS];
      assert_true(sml_worker_submit(d.w, &plan, NULL, &d, begin_ns));
      for (uint32_t i = 0; i < NUM_CHUNKS; i++) {
        const struct sml_send send = next(&d, begin_ns);
        assert_int_equal(send.kind, SML_SEND_UPDATE);
        sent[i] = send.header;
      }
      for (uint64_t now_ns = begin_ns; now_ns < begin_ns + took_ns; now_ns += MS / 2) {
        struct sml_send send;
        while ((send = next(&d, now_ns)).kind == SML_SEND_PROBE) {
          if (!is_late) continue; /* the answer comes behind the result */
          send.header.type = SML_PACKET_PENDING;
          send.header.payload_bytes = 1;
          assert_int_equal(sml_worker_on_packet(d.w, &send.header, &others, now_ns).kind, SML_ACCEPT_PENDING);
        }
      }
      for (uint32_t i = 0; i < NUM_CHUNKS; i++) {
        d.sent[sent[i].slot] = sent[i];
        give_result(&d, sent[i].slot, grant++, 0, begin_ns + took_ns);
      }
    }
    sml_worker_view(d.w, &view);
    if (is_late) assert_in_range(view.srtt_ns, MS / 4, MS);
    else assert_in_range(view.srtt_ns, 15 * MS, 25 * MS);
    free(d.w);
  }
}

/* A repeated result for a phase that is over was asked for in vain, and is counted. */
static void needless_repeats_are_counted(void **state) {
  (void)state;
  struct desk d;
  make_desk(&d);
  struct sml_header h = d.sent[4];
  h.type = SML_PACKET_RESULT;
  give_result(&d, 4, NUM_SLOTS, 0, 2 * MS);
  h.flags = 0;
  assert_int_equal(sml_worker_on_packet(d.w, &h, NULL, 2 * MS).drop, SML_DROP_STALE_PHASE); /* the network's copy */
  h.flags = SML_FLAG_RETRANSMISSION;
  assert_int_equal(sml_worker_on_packet(d.w, &h, NULL, 2 * MS).drop, SML_DROP_NEEDLESS);
  h.type = SML_PACKET_PENDING;
  assert_int_equal(sml_worker_on_packet(d.w, &h, NULL, 2 * MS).drop, SML_DROP_STALE_PHASE);
  struct sml_worker_view v;
  sml_worker_view(d.w, &v);
  assert_int_equal(v.lost_results, 0);
  give_result(&d, 5, NUM_SLOTS + 1, SML_FLAG_RETRANSMISSION, 2 * MS); /* the first that is heard of it */
  sml_worker_view(d.w, &v);
  assert_int_equal(v.lost_results, 1);
  free(d.w);
}

/* A question that crossed the update is not answered with another one. */
static void crossing_questions_are_not_answered(void **state) {
  (void)state;
  struct desk d;
  const uint8_t mine = 1 << 1;
  make_desk(&d);
  struct sml_header h = d.sent[7];
  h.type = SML_PACKET_PENDING;
  h.flags = SML_FLAG_UNASKED;
  h.payload_bytes = 1;
  h.chunk = 7; /* nothing that was sent behind it has arrived */
  assert_int_equal(sml_worker_on_packet(d.w, &h, &mine, 2 * MS).kind, SML_ACCEPT_PENDING);
  assert_int_equal(sml_worker_peek_send(d.w), UINT32_MAX);
  h.chunk = 11;
  assert_int_equal(sml_worker_on_packet(d.w, &h, &mine, 2 * MS).kind, SML_ACCEPT_PENDING);
  const struct sml_send again = next(&d, 2 * MS);
  assert_int_equal(again.header.flags, SML_FLAG_RETRANSMISSION);
  assert_int_equal(again.header.slot, 7);
  assert_int_equal(sml_worker_on_packet(d.w, &h, &mine, 2 * MS).kind, SML_ACCEPT_PENDING); /* the same again */
  assert_int_equal(sml_worker_peek_send(d.w), UINT32_MAX);
  h.phase++; /* asked for the next phase: its result is lost, and grants show it */
  assert_int_equal(sml_worker_on_packet(d.w, &h, &mine, 2 * MS).drop, SML_DROP_NOT_OUTSTANDING);
  free(d.w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_overtaken_update_is_asked_for), cmocka_unit_test(a_lost_answer_is_asked_for_again),
      cmocka_unit_test(a_late_answer_is_asked_for_again), cmocka_unit_test(chunks_leave_in_their_order),
      cmocka_unit_test(each_chunk_has_its_own_patience),  cmocka_unit_test(a_longer_path_is_learnt),
      cmocka_unit_test(a_full_window_is_asked_about_at_its_end),
      cmocka_unit_test(who_asks_is_not_asked),            cmocka_unit_test(nobody_asks_who_left),
      cmocka_unit_test(a_result_is_found_by_its_grant),   cmocka_unit_test(a_missing_grant_is_asked_for),
      cmocka_unit_test(a_lost_question_shows_in_later_answers),
      cmocka_unit_test(crossing_questions_are_not_answered),
      cmocka_unit_test(gaps_are_found_wherever_they_are), cmocka_unit_test(the_clock_asks_late_and_rarely),
      cmocka_unit_test(needless_repeats_are_counted),     cmocka_unit_test(a_new_chunk_is_not_suspected),
  };
  return cmocka_run_group_tests_name("loss_hints", tests, NULL, NULL);
}
