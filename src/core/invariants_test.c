/* SPDX-License-Identifier: Apache-2.0
 * The checks of invariants see what they are for: a sound state, broken in one place at a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/aggregator_internal.h"
#include "core/worker_internal.h"

#define CHUNK_BYTES 32u
#define NUM_SLOTS 8u

static void expect(const char *problem, const char *expected) {
  if (problem == NULL) fail_msg("nothing found: %s", expected);
  else if (strcmp(problem, expected) != 0) fail_msg("\"%s\" found instead of \"%s\"", problem, expected);
}

/* ---- the aggregator ---- */

#define NUM_RANKS 3u

static void contribute(struct sml_aggregator *a, uint32_t rank, uint32_t slot, uint32_t phase) {
  const struct sml_header h = {.type = SML_PACKET_UPDATE,
                               .flags = SML_FLAG_CHECKED,
                               .rank = (uint16_t)rank,
                               .payload_bytes = CHUNK_BYTES + SML_CHECK_BYTES,
                               .slot = (uint16_t)slot,
                               .phase = phase};
  assert_true(sml_aggregator_decide(a, &h).verdict <= SML_VERDICT_COMPLETE);
}

/* Slot 0: phases 2 and 3 complete. Slot 1: 2 complete, 3 begun. Slot 2: 2 begun. Slot 3: 4 begun. Others unused. */
static struct sml_aggregator *make_aggregator(void) {
  static const uint32_t num_contributions[4] = {6, 4, 1, 7};
  const struct sml_aggregator_options o = {.world_size = NUM_RANKS,
                                           .num_slots = NUM_SLOTS,
                                           .chunk_bytes = CHUNK_BYTES,
                                           .is_checked = true,
                                           .first_phase = SML_FIRST_PHASE,
                                           .first_chunk = UINT32_MAX - 9}; /* grants wrap */
  void *mem = aligned_alloc(64, sml_align_up(sml_aggregator_memsize(&o), 64));
  assert_non_null(mem);
  struct sml_aggregator *a = sml_aggregator_init(mem, &o);
  for (uint32_t slot = 0; slot < 4; slot++)
    for (uint32_t i = 0; i < num_contributions[slot]; i++)
      contribute(a, i % NUM_RANKS, slot, SML_FIRST_PHASE + i / NUM_RANKS);
  uint32_t blocking;
  sml_aggregator_note_departed(a, 2);
  assert_int_equal(sml_aggregator_find_blocked(a, &blocking), 1);
  return a;
}

static void cell_seen_too_much(struct sml_aggregator *a) { a->seen[0] |= 8; }
static void cell_count(struct sml_aggregator *a) { a->cells[3].count++; }
static void cell_unused_count(struct sml_aggregator *a) { a->cells[10].count = 1; }
static void cell_lost_bit(struct sml_aggregator *a) { a->seen[1] &= ~UINT64_C(2); }
static void cell_empty(struct sml_aggregator *a) { a->cells[3].count = 0, a->seen[3] = 0; }
static void cell_first_rank(struct sml_aggregator *a) { a->cells[3].first_rank = 2; }
static void cell_first_rank_beyond(struct sml_aggregator *a) { a->cells[3].first_rank = 70; }
static void cell_phase_early(struct sml_aggregator *a) { a->cells[3].phase = 1; }
static void cell_parity(struct sml_aggregator *a) { a->cells[3].phase = 4; }
static void cell_too_long(struct sml_aggregator *a) { a->cells[3].payload_bytes = CHUNK_BYTES + 8; }
static void cell_no_payload(struct sml_aggregator *a) { a->cells[3].payload_bytes = 0; }
static void cell_needed(struct sml_aggregator *a) { a->cells[3].needed--; }
static void slot_gap(struct sml_aggregator *a) { a->cells[6].phase = 6; }
static void slot_incomplete(struct sml_aggregator *a) { a->cells[2].count = 2, a->seen[2] = 3; }
static void slot_before_first(struct sml_aggregator *a) {
  a->cells[5] = a->cells[3]; /* phase 3, but no phase 2 */
  a->seen[5] = 1;
  a->cells[4] = (struct cell){.needed = NUM_RANKS};
}
static void slot_grant_order(struct sml_aggregator *a) {
  const uint32_t grant = a->cells[0].grant;
  a->cells[0].grant = a->cells[1].grant;
  a->cells[1].grant = grant;
}
static void cursor_moved(struct sml_aggregator *a) { a->cursor++; }
static void departed_count(struct sml_aggregator *a) { a->num_departed = 0; }
static void grant_beyond(struct sml_aggregator *a) { a->cells[2].grant = a->cursor; }
static void grant_twice(struct sml_aggregator *a) { a->cells[2].grant = a->cells[1].grant; }
static void live_old(struct sml_aggregator *a) { a->live[1].chunk--; }
static void holder_lost(struct sml_aggregator *a) {
  a->holders[a->live[1].chunk & (a->num_holders - 1)] = 2;
}
static void suspect_unlisted(struct sml_aggregator *a) { *sml_aggregator_suspects(a, 2) = 1; }
static void trouble_unlisted(struct sml_aggregator *a) { a->live[2].is_troubled = true; }
static void rank_ahead(struct sml_aggregator *a) { a->progress[1].latest = a->progress[1].run = a->cursor; }
static void rank_looked_beyond(struct sml_aggregator *a) { a->progress[1].next = a->progress[1].latest + 2; }

static const struct {
  void (*break_it)(struct sml_aggregator *a);
  const char *expected;
} aggregator_breaks[] = {
    {cell_seen_too_much, "I3: a contributor beyond the last is seen"},
    {cell_count, "I4: the count is not the number of seen ranks"},
    {cell_unused_count, "I4: a cell that was never used counts contributions"},
    {cell_lost_bit, "I4: the count is not the number of seen ranks"},
    {cell_empty, "I4: a phase without a contribution"},
    {cell_first_rank, "I3: the first rank of a phase is not seen"},
    {cell_first_rank_beyond, "I3: the first rank of a phase is not seen"},
    {cell_phase_early, "a phase before the first"},
    {cell_parity, "a phase in the cell of the other version"},
    {cell_too_long, "a cell holds more than its values have room for"},
    {cell_no_payload, "a cell holds more than its values have room for"},
    {cell_needed, "a cell waits for more or fewer than contribute to it"},
    {slot_gap, "I1: the phases of a slot are not next to each other"},
    {slot_incomplete, "I2: a phase began before the one before it was complete"},
    {slot_before_first, "I1: the phases of a slot are not next to each other"},
    {slot_grant_order, "I9: a slot's grants are not in their order"},
    {cursor_moved, "I9: the cursor has not moved once for each completion"},
    {departed_count, "the count of departed ranks is not that of their bits"},
    {grant_beyond, "I9: a grant at or beyond the cursor"},
    {grant_twice, "I9: a chunk was granted twice"},
    {live_old, "a slot holds a chunk that was not granted to it last"},
    {holder_lost, "the table of holders lost a chunk of late"},
    {suspect_unlisted, "a rank is suspected at a slot that is not in trouble"},
    {trouble_unlisted, "a troubled slot is in no list"},
    {rank_ahead, "a rank's latest chunk was not granted yet"},
    {rank_looked_beyond, "a rank was looked at beyond its latest chunk"},
};

static void each_broken_invariant_of_an_aggregator_is_named(void **state) {
  (void)state;
  for (size_t i = 0; i < SML_ARRAY_LEN(aggregator_breaks); i++) {
    struct sml_aggregator *a = make_aggregator();
    assert_null(sml_aggregator_find_violation(a));
    aggregator_breaks[i].break_it(a);
    expect(sml_aggregator_find_violation(a), aggregator_breaks[i].expected);
    free(a);
  }
}

/* More grants than marks: two that only look alike are none of one chunk. */
static void grants_that_share_a_mark_are_not_the_same(void **state) {
  (void)state;
  struct sml_aggregator *a = make_aggregator();
  a->options.first_chunk -= 0x20000; /* as if slot 0 had stalled for long */
  for (uint32_t cell = 0; cell < 2; cell++) a->cells[cell].grant -= 0x20000;
  a->cells[0].grant = a->cells[2].grant - 0x10000;
  a->cells[1].grant = a->live[0].chunk = a->cells[2].grant - 0x10000 + 1;
  a->cells[6].phase += 0x20000;
  a->cells[7].phase += 0x20000;
  assert_null(sml_aggregator_find_violation(a));
  free(a);
}

/* ---- the worker ---- */

static const struct sml_operation_plan INTS = {.num_elems = 4 * CHUNK_BYTES / 4},
                                       FLOATS = {.number = 1,
                                                 .num_elems = 3 * CHUNK_BYTES / 4,
                                                 .block_elems = CHUNK_BYTES / 4};
static uint8_t ready[1];

/* Slot 0 had a chunk of INTS and is idle again; 1 to 3 were sent, 1 and 2 asked about, 3 is to be. Of FLOATS slot 4
 * has the exponents, ready to be sent, and 5 to 7 wait for them with data. */
static struct sml_worker *make_worker(void) {
  const struct sml_worker_options o = {.world_size = NUM_RANKS,
                                       .num_lanes = 1,
                                       .num_slots = NUM_SLOTS,
                                       .chunk_bytes = CHUNK_BYTES,
                                       .first_phase = SML_FIRST_PHASE,
                                       .num_operations = 4};
  void *mem = aligned_alloc(64, sml_align_up(sml_worker_memsize(&o), 64));
  assert_non_null(mem);
  struct sml_worker *w = sml_worker_init(mem, &o);
  struct sml_send send;
  ready[0] = 0;
  assert_true(sml_worker_submit(w, &INTS, NULL, w, 0));
  for (uint32_t i = 0; i < 4; i++) sml_worker_next_send(w, 10 + i, &send);
  assert_true(sml_worker_submit(w, &FLOATS, ready, w, 20));
  const struct sml_header h = {.type = SML_PACKET_RESULT,
                               .payload_bytes = CHUNK_BYTES,
                               .phase = SML_FIRST_PHASE,
                               .tag = w->slots[0].tag,
                               .chunk = NUM_SLOTS};
  assert_int_equal(sml_worker_on_packet(w, &h, NULL, 23).kind, SML_ACCEPT_RESULT);
  const uint64_t late_ns = 300 * SML_NS_PER_MS;
  sml_worker_on_timer(w, late_ns);
  for (uint32_t i = 0; i < 2; i++) sml_worker_next_send(w, late_ns + i, &send);
  static const enum slot_state states[NUM_SLOTS] = {IDLE,  OUTSTANDING, OUTSTANDING, OUTSTANDING,
                                                    READY, WAITING,     WAITING,     WAITING};
  for (uint32_t s = 0; s < NUM_SLOTS; s++) assert_int_equal(w->slots[s].state, states[s]);
  assert_true(w->slots[3].wants_probe && w->levels[1].head == 1 && w->levels[1].tail == 2);
  return w;
}

static void put(struct queue *q, uint32_t s) { q->slots[(q->head + q->count++) & (NUM_SLOTS - 1)] = s; }
static uint32_t *head_of(struct queue *q) { return &q->slots[q->head]; }

static void queue_long(struct sml_worker *w) { w->updates.count = NUM_SLOTS + 1; }
static void queue_head(struct sml_worker *w) { w->probes.head = NUM_SLOTS; }
static void queue_short(struct sml_worker *w) { w->probes.count = 0; }
static void queue_other(struct sml_worker *w) { w->slots[2].is_in_updates = true, put(&w->updates, 1); }
static void queue_other_probe(struct sml_worker *w) { *head_of(&w->probes) = 0; }
static void queue_beyond(struct sml_worker *w) { *head_of(&w->probes) = NUM_SLOTS; }
static void queue_twice(struct sml_worker *w) {
  w->slots[1].is_in_updates = w->slots[2].is_in_updates = true;
  put(&w->updates, 1);
  put(&w->updates, 1);
}
static void fresh_long(struct sml_worker *w) { w->fresh.count = NUM_SLOTS + 1; }
static void fresh_other(struct sml_worker *w) { *head_of(&w->fresh) = 5; }
static void fresh_early(struct sml_worker *w) { w->num_early = 1; }
static void fresh_lost(struct sml_worker *w) { w->fresh.count = 0; }
static void window_wide(struct sml_worker *w) { w->congestion.window = (NUM_SLOTS + 1ull) << 20; }
static void window_narrow(struct sml_worker *w) { w->congestion.window = 3 << 20; }
static void order_early(struct sml_worker *w) { w->arrived_order = w->last_order + 1; }
static void list_idle(struct sml_worker *w) { w->levels[1].head = 0; }
static void list_probed(struct sml_worker *w) { w->slots[2].wants_probe = true; }
static void list_endless(struct sml_worker *w) { w->slots[2].next = NUM_SLOTS; }
static void list_prev(struct sml_worker *w) { w->slots[2].prev = NONE; }
static void list_level(struct sml_worker *w) { w->slots[2].level = 2; }
static void list_order(struct sml_worker *w) { w->slots[1].sent_ns = UINT64_MAX; }
static void list_tail(struct sml_worker *w) { w->levels[1].tail = 1; }
static void list_cut(struct sml_worker *w) { w->slots[1].next = NONE, w->levels[1].tail = 1; }
static void waiting_idle(struct sml_worker *w) { w->waiting.head = 0; }
static void waiting_endless(struct sml_worker *w) { w->slots[7].next = NUM_SLOTS; }
static void waiting_round(struct sml_worker *w) { w->slots[7].next = 5; }
static void waiting_ready(struct sml_worker *w) { w->ring[1].ready[0] = 1; }
static void waiting_tail(struct sml_worker *w) { w->waiting.tail = 5; }
static void waiting_cut(struct sml_worker *w) { w->slots[5].next = NONE, w->waiting.tail = 5; }
static void ring_long(struct sml_worker *w) { w->ring_tail += 3; }
static void ring_gap(struct sml_worker *w) { w->end_chunk++; }
static void ring_left(struct sml_worker *w) { w->ring[0].chunks_left = 5; }
static void ring_unassigned(struct sml_worker *w) { w->ring[0].chunks_unassigned = 4; }
static void ring_done(struct sml_worker *w) { w->ring[1].is_done = true; }
static void ring_kept(struct sml_worker *w) { w->ring[0].chunks_left = 0, w->ring[0].is_done = true; }
static void ring_other(struct sml_worker *w) { w->slots[1].operation = 1; }
static void ring_few(struct sml_worker *w) { w->ring[1].chunks_unassigned = 1; }
static void ring_many(struct sml_worker *w) { w->ring[0].chunks_left = 4; }
static void count_outstanding(struct sml_worker *w) { w->view.num_outstanding++; }
static void slot_phase(struct sml_worker *w) { w->slots[1].phase = 1; }
static void slot_update(struct sml_worker *w) { w->slots[1].wants_update = true; }
static void slot_probe(struct sml_worker *w) { w->probes.count = 0, w->slots[3].is_in_probes = false; }
static void slot_level(struct sml_worker *w) { w->slots[0].level = SML_RTO_LEVELS; }
static void slot_idle_probe(struct sml_worker *w) {
  w->slots[0].wants_probe = w->slots[0].is_in_probes = true;
  put(&w->probes, 0);
}
static void slot_waiting_update(struct sml_worker *w) {
  w->slots[5].wants_update = w->slots[5].is_in_updates = true;
  put(&w->updates, 5);
}
static void idle_submitted(struct sml_worker *w) { w->slots[0].chunk = 7; }
static void idle_lost(struct sml_worker *w) { w->idle[0] = 5; }
static void chunk_twice(struct sml_worker *w) { w->slots[1].chunk = w->slots[2].chunk; }

static const struct {
  void (*break_it)(struct sml_worker *w);
  const char *expected;
} worker_breaks[] = {
    {queue_long, "a queue holds more than there are slots"},
    {queue_head, "a queue holds more than there are slots"},
    {queue_short, "a queue's length is not the number of slots that are marked as in it"},
    {queue_other, "a queue has a slot that is not marked as in it"},
    {queue_other_probe, "a queue has a slot that is not marked as in it"},
    {queue_beyond, "a queue has an entry twice"},
    {queue_twice, "a queue has an entry twice"},
    {fresh_long, "the queue of new updates holds more than there are slots"},
    {fresh_other, "a new update is queued that is not ready"},
    {fresh_early, "a new update is queued that is not ready"},
    {fresh_lost, "an update is ready, but nobody will send it"},
    {window_wide, "the window has more chunks than there are slots"},
    {window_narrow, "the window is too small"},
    {order_early, "an update arrived that was not sent"},
    {list_idle, "a slot is listed that awaits no timer"},
    {list_probed, "a slot is listed that awaits no timer"},
    {list_endless, "a list of sent slots has no end"},
    {list_prev, "a list of sent slots is torn"},
    {list_level, "a list of sent slots is torn"},
    {list_order, "a list is not in the order of sending"},
    {list_tail, "a list of sent slots has another tail"},
    {list_cut, "a slot that was sent is in no list: nobody would ask about it"},
    {waiting_idle, "the list of waiting slots has one that is not"},
    {waiting_endless, "the list of waiting slots has no end"},
    {waiting_round, "the list of waiting slots has no end"},
    {waiting_ready, "a slot waits for exponents that are there"},
    {waiting_tail, "the list of waiting slots has another tail"},
    {waiting_cut, "a waiting slot is in no list"},
    {ring_long, "more operations than there is room for"},
    {ring_gap, "operations are not next to each other"},
    {ring_left, "an operation counts more chunks than it has"},
    {ring_unassigned, "an operation counts more chunks than it has"},
    {ring_done, "an operation has ended without its last chunk"},
    {ring_kept, "an ended operation is kept"},
    {ring_other, "a chunk is not of its slot's operation"},
    {ring_few, "more chunks are in slots than operations know of"},
    {ring_many, "a chunk was given to a slot that does not have it"},
    {count_outstanding, "the count of outstanding slots is wrong"},
    {slot_phase, "a phase before the first"},
    {slot_update, "a slot wants its update sent, but is not queued"},
    {slot_probe, "a slot wants to be asked about, but is not queued"},
    {slot_level, "a slot's level is too high"},
    {slot_idle_probe, "a slot is to be asked about that was not sent"},
    {slot_waiting_update, "an update is to be sent again that was not sent"},
    {idle_submitted, "I9: the chunk of an idle slot is submitted"},
    {idle_lost, "I9: the table of idle slots lost one"},
    {chunk_twice, "I9: two slots have the same chunk"},
};

static void each_broken_invariant_of_a_worker_is_named(void **state) {
  (void)state;
  for (size_t i = 0; i < SML_ARRAY_LEN(worker_breaks); i++) {
    struct sml_worker *w = make_worker();
    assert_null(sml_worker_find_violation(w));
    worker_breaks[i].break_it(w);
    expect(sml_worker_find_violation(w), worker_breaks[i].expected);
    free(w);
  }
}

static void chunks_that_share_a_mark_are_not_the_same(void **state) {
  (void)state;
  struct sml_worker *w = make_worker();
  w->slots[0].chunk = w->slots[1].chunk + 0x10000;
  w->idle[w->slots[0].chunk % NUM_SLOTS] = 0;
  assert_null(sml_worker_find_violation(w));
  free(w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_broken_invariant_of_an_aggregator_is_named),
      cmocka_unit_test(grants_that_share_a_mark_are_not_the_same),
      cmocka_unit_test(each_broken_invariant_of_a_worker_is_named),
      cmocka_unit_test(chunks_that_share_a_mark_are_not_the_same),
  };
  return cmocka_run_group_tests_name("invariants", tests, NULL, NULL);
}
