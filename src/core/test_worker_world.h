/* SPDX-License-Identifier: Apache-2.0
 * For tests: whole worlds, workers and one aggregator in virtual time, joined by a network that loses, repeats and
 * delays. Packets carry headers and, for values, whose contribution of which chunk is in the sum, so that
 * a wrong sum is seen exactly. After each step all invariants are looked at. */
#pragma once

#include "core/worker.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/aggregator.h"

#define MAX_RANKS 9u
#define MAX_OPERATIONS 24u
#define MAX_CHUNKS 700u /* of one operation */
#define MAX_PACKETS 20000u
#define MAX_PHASES 8192u
#define MAX_SLOTS 64u
#define HOP_NS (20 * SML_NS_PER_US)
#define NO_PACKET UINT64_MAX

struct sum {
  uint64_t id;               /* operation and chunk */
  uint8_t counts[MAX_RANKS]; /* contributions of each rank */
};

struct packet {
  uint64_t at_ns, order;
  uint16_t rank; /* from (up) or to (down) whom */
  bool is_up;
  struct sml_header header;
  uint8_t missing[2];
  struct sum sum;
};

struct work { /* one operation at one rank: the cookie */
  uint32_t operation;
  uint64_t submit_ns;
  bool is_submitted, is_done;
  uint8_t ready[MAX_CHUNKS];
  uint8_t num_writes[MAX_CHUNKS]; /* data chunks, then exponent chunks */
};

struct world_options {
  uint32_t world_size, num_slots, chunk_bytes, num_operations;
  uint32_t ring; /* capacity of the operation ring */
  uint32_t first_phase, first_chunk;
  bool is_one_way; /* operations go to their owners and from them in turn, in a one-way window */
  double loss, duplicate, delay, forge;
  uint64_t max_delay_ns, hop_jitter_ns;
  uint64_t faults_end_ns;
  uint64_t lost[2];                   /* these transmissions are lost, */
  uint64_t burst;                     /* and so many behind lost[0] within 100 us: a queue that was full */
  uint64_t repeated, repeat_delay_ns; /* this transmission arrives a second time, that much later */
  bool is_delayed_only;               /* ... and not the first time */
  uint64_t seed;
};

struct world {
  struct world_options options;
  struct sml_prng prng;
  uint64_t now_ns, num_sent, num_events, num_solicits, burst_end_ns;
  size_t num_packets;
  struct sml_aggregator *aggregator;
  struct sum cells[2 * SML_ALL_WINDOWS * MAX_SLOTS];
  uint32_t num_grants;
  struct sml_worker *workers[MAX_RANKS], *copiers[MAX_RANKS]; /* copiers: of the window for copies */
  struct sml_operation_plan plans[MAX_OPERATIONS];
  struct sml_range ranges[MAX_OPERATIONS];
  uint64_t parts[MAX_OPERATIONS][MAX_RANKS + 1]; /* one way */
  uint64_t num_drops[SML_NUM_DROPS];
};

/* One world at a time; here is what would take long to make and clear for each. */
static struct packet heap[MAX_PACKETS];
static uint32_t grants[MAX_SLOTS][MAX_PHASES];
static struct work works[MAX_RANKS][MAX_OPERATIONS];

/* ---- the network ---- */

static bool is_before(const struct packet *a, const struct packet *b) {
  return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void push_packet(struct world *x, struct packet p) {
  assert_true(x->num_packets < MAX_PACKETS); /* nothing may make packets without end */
  size_t i = x->num_packets++;
  for (; i > 0 && is_before(&p, &heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
  heap[i] = p;
}

static struct packet pop_packet(struct world *x) {
  const struct packet top = heap[0], last = heap[--x->num_packets];
  size_t i = 0;
  for (size_t child; (child = 2 * i + 1) < x->num_packets; i = child) {
    if (child + 1 < x->num_packets && is_before(&heap[child + 1], &heap[child])) child++;
    if (!is_before(&heap[child], &last)) break;
    heap[i] = heap[child];
  }
  heap[i] = last;
  return top;
}

static uint64_t draw_delay(struct world *x, bool has_faults) {
  const struct world_options *o = &x->options;
  uint64_t delay_ns = HOP_NS;
  if (o->hop_jitter_ns > 0) delay_ns += sml_prng_below(&x->prng, o->hop_jitter_ns);
  if (!has_faults || !sml_prng_chance(&x->prng, o->delay)) return delay_ns;
  return delay_ns + sml_prng_below(&x->prng, o->max_delay_ns);
}

/* A field of a downward packet is replaced; what is left must be refused, or be harmless (PENDING). */
static void forge(struct world *x, struct packet p) {
  struct sml_header *h = &p.header;
  switch (sml_prng_below(&x->prng, 8)) {
    case 0:
      h->slot = (uint16_t)(h->slot + 1 + sml_prng_below(&x->prng, 65535));
      if (x->options.is_one_way) h->slot |= 0x8000; /* another slot of the window could prove a fence (R219) */
      break;
    case 1:
      h->phase += (uint32_t)sml_prng_next(&x->prng) | 1;
      break;
    case 2:
      h->tag ^= 1u << sml_prng_below(&x->prng, 32);
      break;
    case 3:
      h->payload_bytes ^= (uint16_t)(1u << sml_prng_below(&x->prng, 16));
      break;
    case 4:
      h->wire ^= 1;
      h->type = SML_PACKET_RESULT;
      h->payload_bytes = 8;
      break;
    case 5:
      h->flags ^= SML_FLAG_CHECKED;
      h->type = SML_PACKET_RESULT;
      break;
    case 6:
      h->type = (uint8_t)(3 + sml_prng_below(&x->prng, 13));
      break;
    default: /* a lie about who is missing */
      h->type = SML_PACKET_PENDING;
      h->payload_bytes = (uint16_t)sml_div_ceil(x->options.world_size, 8);
      break;
  }
  sml_store_be16(p.missing, (uint16_t)sml_prng_next(&x->prng));
  p.sum.id = UINT64_MAX; /* seen at once if a worker believes it */
  push_packet(x, p);
}

static void transmit(struct world *x, struct packet p) {
  const struct world_options *o = &x->options;
  const uint64_t index = x->num_sent++;
  const bool has_faults = x->now_ns < o->faults_end_ns;
  p.order = index;
  p.at_ns = x->now_ns + draw_delay(x, has_faults);
  if (index == o->lost[0]) x->burst_end_ns = x->now_ns + 100 * SML_NS_PER_US;
  if (index == o->lost[0] || index == o->lost[1]) return;
  if (index - o->lost[0] < o->burst && x->now_ns < x->burst_end_ns) return;
  if (index == o->repeated) {
    struct packet again = p;
    again.at_ns += o->repeat_delay_ns;
    push_packet(x, again);
    if (o->is_delayed_only) return;
  }
  if (has_faults && !p.is_up && sml_prng_chance(&x->prng, o->forge)) forge(x, p);
  if (has_faults && sml_prng_chance(&x->prng, o->loss)) return;
  push_packet(x, p);
  if (!has_faults || !sml_prng_chance(&x->prng, o->duplicate)) return;
  p.at_ns = x->now_ns + draw_delay(x, true);
  push_packet(x, p);
}

/* ---- the aggregator ---- */

static void answer(struct world *x, const struct packet *p, uint32_t cell, uint32_t rank, uint16_t flags) {
  struct packet down = {.rank = (uint16_t)rank, .sum = x->cells[cell]};
  sml_aggregator_result(x->aggregator, cell, &down.header);
  if (p->header.flags & SML_FLAG_BY_GRANT) assert_int_equal(down.header.chunk, p->header.chunk);
  else assert_int_equal(down.header.phase, p->header.phase);
  if (!x->options.is_one_way)
    assert_int_equal(down.header.chunk, grants[cell / 2][down.header.phase - x->options.first_phase]);
  down.header.flags |= flags;
  transmit(x, down);
}

static void add(struct world *x, const struct packet *p, uint32_t cell, bool is_first) {
  struct sum *sum = &x->cells[cell];
  if (is_first) *sum = (struct sum){.id = p->sum.id};
  assert_true(sum->id == p->sum.id); /* I8 */
  sum->counts[p->rank]++;
}

/* To all ranks; one way to those that did not contribute, or to all of maxima. */
static void answer_all(struct world *x, const struct packet *p, uint32_t cell) {
  const struct sml_header *h = &p->header;
  for (uint32_t rank = 0; rank < x->options.world_size; rank++)
    if (h->reducer <= SML_REDUCE_MAX || !sml_contributes(h->reducer, h->chunk, rank)) answer(x, p, cell, rank, 0);
}

/* One way the missing are told, too: it is they who must send again. */
static void answer_pending(struct world *x, const struct packet *p) {
  struct packet pending = {.rank = p->rank, .header = p->header};
  uint64_t words[1];
  sml_aggregator_missing_for(x->aggregator, &p->header, words);
  memcpy(pending.missing, words, sizeof pending.missing);
  pending.header.type = SML_PACKET_PENDING;
  pending.header.payload_bytes = (uint16_t)sml_div_ceil(x->options.world_size, 8);
  transmit(x, pending);
  const bool is_fence = x->options.is_one_way && p->header.reducer == SML_REDUCE_MAX && p->header.chunk == SML_FENCE;
  if (p->header.reducer <= SML_REDUCE_MAX && !is_fence) return;
  pending.header.flags = SML_FLAG_UNASKED;
  for (uint32_t rank = 0; rank < x->options.world_size; rank++) {
    pending.rank = pending.header.rank = (uint16_t)rank;
    pending.header.chunk = sml_aggregator_latest_position(x->aggregator, &pending.header);
    if (rank != p->rank && sml_bit_test(words, rank)) transmit(x, pending);
  }
}

static void expect_sound(const struct world *x, const char *problem) {
  if (problem != NULL)
    fail_msg("%s: seed %llu, packet %llu", problem, (unsigned long long)x->options.seed,
             (unsigned long long)x->num_sent);
}

/* To look at all that a machine holds takes longer than what it does: a slow build looks after each fourth packet. */
static bool is_look_due(const struct world *x) {
  return !SML_IS_SLOW_BUILD || x->num_sent % 4 == 0;
}

static void deliver_up(struct world *x, const struct packet *p) {
  const struct sml_decision d = sml_aggregator_decide(x->aggregator, &p->header);
  if (is_look_due(x)) expect_sound(x, sml_aggregator_find_violation(x->aggregator));
  switch (d.verdict) {
    case SML_VERDICT_DROP:
      x->num_drops[d.drop]++;
      break;
    case SML_VERDICT_FIRST:
    case SML_VERDICT_ADD:
      add(x, p, d.cell, d.verdict == SML_VERDICT_FIRST);
      break;
    case SML_VERDICT_COMPLETE:
      add(x, p, d.cell, d.is_first);
      assert_true(p->header.phase - x->options.first_phase < MAX_PHASES);
      if (!x->options.is_one_way)
        grants[d.cell / 2][p->header.phase - x->options.first_phase] =
            x->options.first_chunk + x->options.num_slots + x->num_grants++;
      answer_all(x, p, d.cell);
      break;
    case SML_VERDICT_REPEAT:
      answer(x, p, d.cell, p->rank, SML_FLAG_RETRANSMISSION);
      break;
    case SML_VERDICT_PENDING:
      answer_pending(x, p);
      break;
    case SML_VERDICT_MISMATCH:
    case SML_VERDICT_JUMP:
      fail_msg("an honest world was accused: verdict %d of rank %u", (int)d.verdict, p->rank);
  }
}

/* What the aggregator asks by itself. */
static void solicit(struct world *x) {
  struct packet pending = {0};
  const uint64_t *ranks;
  uint64_t words[1];
  sml_aggregator_begin_solicit(x->aggregator, x->now_ns);
  while (sml_aggregator_next_solicit(x->aggregator, &pending.header, &ranks)) {
    const struct sml_header *h = &pending.header;
    sml_aggregator_missing(x->aggregator, h->slot, h->phase, words);
    assert_true(ranks[0] != 0 && (ranks[0] & ~words[0]) == 0); /* only who is missing */
    memcpy(pending.missing, words, sizeof pending.missing);
    pending.header.flags = SML_FLAG_UNASKED;
    pending.header.payload_bytes = (uint16_t)sml_div_ceil(x->options.world_size, 8);
    for (uint32_t rank = 0; rank < x->options.world_size; rank++) {
      pending.rank = pending.header.rank = (uint16_t)rank;
      pending.header.chunk = sml_aggregator_latest_chunk(x->aggregator, rank);
      if (sml_bit_test(ranks, rank)) transmit(x, pending);
    }
    x->num_solicits++;
  }
  while (x->options.is_one_way && sml_aggregator_next_lost(x->aggregator, &pending.header)) {
    const struct sml_header *h = &pending.header;
    sml_aggregator_missing_for(x->aggregator, h, words);
    assert_true(sml_bit_test(words, h->rank));
    memcpy(pending.missing, words, sizeof pending.missing);
    pending.header.flags = SML_FLAG_UNASKED;
    pending.header.chunk = sml_aggregator_latest_position(x->aggregator, h);
    pending.header.payload_bytes = (uint16_t)sml_div_ceil(x->options.world_size, 8);
    pending.rank = h->rank;
    transmit(x, pending);
    x->num_solicits++;
  }
}

/* ---- the workers ---- */

static uint64_t id_of(const struct work *work, const struct sml_chunk *c, uint32_t tag) {
  if (c->is_fence) return (uint64_t)work->operation << 33 | (uint64_t)3 << 62 | tag;
  if (!c->is_exponent && c->data_chunk == 0) return (uint64_t)work->operation << 33 | (uint32_t)c->first_elem;
  return (uint64_t)work->operation << 33 | (uint64_t)c->is_exponent << 32 |
         (c->is_exponent ? c->group : (uint32_t)c->data_chunk);
}

static uint8_t *writes_of(const struct world *x, struct work *work, const struct sml_chunk *c) {
  const struct sml_range *r = &x->ranges[work->operation];
  if (r->way != SML_REDUCE_SUM) /* data by their first element */
    return &work->num_writes[c->is_exponent ? MAX_CHUNKS - 1 - c->group : c->first_elem];
  return &work->num_writes[c->is_exponent ? r->num_data_chunks + c->group : c->data_chunk];
}

/* What was for this rank has come, once; nothing else has. */
static void check_writes(const struct world *x, uint32_t rank, struct work *work) {
  const struct sml_range *r = &x->ranges[work->operation];
  struct sml_row row = {0};
  for (uint64_t i = 0; i < r->num_chunks; i++) {
    struct sml_chunk c;
    uint32_t expected = 1;
    if (r->way == SML_REDUCE_SUM) {
      assert_int_equal(work->num_writes[i], 1);
      continue;
    }
    sml_range_one_way_chunk(r, i, &row, &c);
    if (c.is_fence) continue;
    if (!c.is_exponent) expected = !sml_contributes(r->way, c.owner, rank);
    assert_int_equal(*writes_of(x, work, &c), expected);
  }
}

static struct sml_worker *worker_of(const struct world *x, uint32_t rank, uint8_t way) {
  return way == SML_REDUCE_COPY ? x->copiers[rank] : x->workers[rank];
}

static void end_all(struct world *x, uint32_t rank, struct sml_worker *w, struct work *work) {
  for (; work != NULL; work = x->options.is_one_way ? sml_worker_next_ended(w) : NULL) {
    assert_false(work->is_done);
    work->is_done = true;
    check_writes(x, rank, work);
  }
}

static void deliver_down(struct world *x, const struct packet *p) {
  const bool is_copy =
      x->options.is_one_way && p->header.slot < sml_window_base(SML_REDUCE_TO_OWNER, x->options.num_slots);
  struct sml_worker *w = worker_of(x, p->rank, is_copy ? SML_REDUCE_COPY : SML_REDUCE_SUM);
  if (sml_worker_take_proof(w, &p->header, x->now_ns)) end_all(x, p->rank, w, sml_worker_next_ended(w));
  const struct sml_accept a = sml_worker_on_packet(w, &p->header, p->missing, x->now_ns);
  if (a.kind == SML_ACCEPT_DROP) x->num_drops[a.drop]++;
  if (a.kind != SML_ACCEPT_RESULT) return;
  struct work *work = a.cookie;
  assert_true(p->sum.id == id_of(work, &a.chunk, p->header.tag));
  const uint8_t way = a.chunk.is_exponent ? SML_REDUCE_MAX : x->plans[work->operation].way;
  for (uint32_t rank = 0; rank < x->options.world_size; rank++) {
    const uint32_t num = p->sum.counts[rank];
    if (a.chunk.is_fence && num == 0) continue; /* a later fence was complete */
    assert_int_equal(num, sml_contributes(way, a.chunk.owner, rank));
  }
  if (!a.chunk.is_fence) assert_int_equal((*writes_of(x, work, &a.chunk))++, 0);
  end_all(x, p->rank, w, a.ended);
}

static void send_all(struct world *x, uint32_t rank, struct sml_worker *w) {
  for (;;) {
    const uint32_t peeked = sml_worker_peek_send(w);
    struct sml_send send;
    sml_worker_next_send(w, x->now_ns, &send);
    if (send.kind == SML_SEND_NONE) {
      assert_int_equal(peeked, UINT32_MAX);
      return;
    }
    assert_int_equal(peeked, send.header.payload_bytes);
    struct packet up = {.rank = (uint16_t)rank, .is_up = true, .header = send.header};
    if (send.kind == SML_SEND_UPDATE) {
      struct work *work = send.cookie;
      const struct sml_range *r = &x->ranges[work->operation];
      up.sum.id = id_of(work, &send.chunk, send.header.tag);
      const bool has_scale = r->num_groups > 0 && !send.chunk.is_exponent;
      const struct sml_chunk codes = {.is_exponent = true, .group = send.chunk.group};
      if (has_scale) assert_int_equal(*writes_of(x, work, &codes), 1); /* the scale */
    }
    transmit(x, up);
  }
}

/* ---- the clock ---- */

/* Returns whether something is under way in this window. */
static bool pump_worker(struct world *x, uint32_t rank, struct sml_worker *w) {
  bool is_busy = false;
  for (uint32_t i = 0; i < x->options.num_operations; i++) {
    const struct work *work = &works[rank][i];
    is_busy |= work->is_submitted && !work->is_done && worker_of(x, rank, x->plans[i].way) == w;
  }
  sml_worker_on_timer(w, x->now_ns);
  send_all(x, rank, w);
  if (is_look_due(x)) expect_sound(x, sml_worker_find_violation(w));
  struct sml_worker_view view;
  sml_worker_view(w, &view);
  assert_int_equal(view.is_waiting, is_busy);
  return is_busy;
}

static void pump(struct world *x, uint32_t rank) {
  for (uint32_t i = 0; i < x->options.num_operations; i++) {
    struct work *work = &works[rank][i];
    struct sml_worker *w = worker_of(x, rank, x->plans[i].way);
    if (work->is_submitted) continue;
    if (work->submit_ns > x->now_ns || !sml_worker_can_submit(w)) break; /* in order */
    work->is_submitted = true;
    work->is_done = !sml_worker_submit(w, &x->plans[i], work->ready, work, x->now_ns);
  }
  struct sml_worker *const both[] = {x->workers[rank], x->copiers[rank]};
  for (uint32_t i = 0; i < SML_ARRAY_LEN(both); i++)
    if (both[i] != NULL && !pump_worker(x, rank, both[i]))
      assert_true(sml_worker_next_deadline(both[i]) == SML_NEVER); /* no timer at completion */
}

static uint64_t next_event_ns(const struct world *x) {
  uint64_t next_ns = x->num_packets > 0 ? heap[0].at_ns : SML_NEVER;
  for (uint32_t rank = 0; rank < x->options.world_size; rank++) {
    next_ns = sml_min_u64(next_ns, sml_worker_next_deadline(x->workers[rank]));
    if (x->copiers[rank] != NULL) next_ns = sml_min_u64(next_ns, sml_worker_next_deadline(x->copiers[rank]));
    for (uint32_t i = 0; i < x->options.num_operations; i++) {
      if (works[rank][i].is_submitted) continue;
      if (sml_worker_can_submit(worker_of(x, rank, x->plans[i].way)))
        next_ns = sml_min_u64(next_ns, works[rank][i].submit_ns);
      break;
    }
  }
  return next_ns;
}

/* Until nothing is left to happen. */
static void run_world(struct world *x, uint64_t limit_ns) {
  for (uint32_t rank = 0; rank < x->options.world_size; rank++) pump(x, rank);
  for (uint64_t next_ns; (next_ns = next_event_ns(x)) != SML_NEVER;) {
    x->now_ns = sml_max_u64(x->now_ns, next_ns);
    assert_true(x->now_ns < limit_ns);
    assert_true(++x->num_events < 10000000);
    while (x->num_packets > 0 && heap[0].at_ns <= x->now_ns) {
      const struct packet p = pop_packet(x);
      if (p.is_up) deliver_up(x, &p);
      else deliver_down(x, &p);
    }
    solicit(x);
    for (uint32_t rank = 0; rank < x->options.world_size; rank++) pump(x, rank);
  }
  for (uint32_t rank = 0; rank < x->options.world_size; rank++) {
    for (uint32_t i = 0; i < x->options.num_operations; i++) assert_true(works[rank][i].is_done);
    assert_null(sml_worker_take_unfinished(x->workers[rank]));
    if (x->copiers[rank] != NULL) assert_null(sml_worker_take_unfinished(x->copiers[rank]));
  }
}

/* ---- making worlds ---- */

static const struct world_options QUIET = {.ring = 4,
                                           .first_phase = SML_FIRST_PHASE,
                                           .chunk_bytes = 8,
                                           .lost = {NO_PACKET, NO_PACKET},
                                           .repeated = NO_PACKET,
                                           .seed = 1};

/* The operation gets parts: equal ones, any, or all of it is one rank's. */
static void go_one_way(struct world *x, uint32_t i) {
  struct sml_operation_plan *plan = &x->plans[i];
  const uint32_t n = x->options.world_size;
  uint64_t *parts = x->parts[i];
  for (uint32_t p = 0; p <= n; p++) {
    parts[p] = plan->num_elems * p / n;
    if (x->options.seed % 3 == 1 && p > 0 && p < n)
      parts[p] = sml_max_u64(parts[p - 1], sml_mix64(x->options.seed + i * 64 + p) % (plan->num_elems + 1));
    if (x->options.seed % 3 == 2) parts[p] = p > x->options.seed / 3 % n ? plan->num_elems : 0;
  }
  plan->parts = parts;
  plan->num_parts = n;
  plan->way = (i + x->options.seed / 9) % 2 ? SML_REDUCE_COPY : SML_REDUCE_TO_OWNER;
  if (plan->way == SML_REDUCE_COPY) plan->block_elems = 0;
}

/* 1: order shows losses however few slots there are. */
static uint32_t order_slots_of(const struct world_options *o) {
  return (o->world_size + o->num_slots) % 2;
}

static struct sml_worker *make_worker(const struct world_options *o, uint32_t rank, uint8_t way, bool is_checked) {
  const struct sml_worker_options w = {.rank = (uint16_t)rank,
                                       .world_size = o->world_size,
                                       .num_lanes = 1,
                                       .num_slots = o->num_slots,
                                       .slot_base = (uint16_t)sml_window_base(way, o->num_slots),
                                       .way = way,
                                       .chunk_bytes = o->chunk_bytes,
                                       .is_checked = is_checked,
                                       .first_phase = o->first_phase,
                                       .first_chunk = o->first_chunk,
                                       .num_operations = o->ring,
                                       .order_slots = order_slots_of(o),
                                       .seed = o->seed * 100 + rank};
  return sml_worker_init(aligned_alloc(64, sml_align_up(sml_worker_memsize(&w), 64)), &w);
}

/* Operations of num_chunks[i] data chunks; odd ones are int32 when `is_mixed`. */
static struct world *make_world(const struct world_options *o, const uint32_t *num_chunks, bool is_mixed) {
  struct world *x = calloc(1, sizeof *x);
  assert_non_null(x);
  assert_true(o->world_size <= MAX_RANKS && o->num_slots <= MAX_SLOTS && o->num_operations <= MAX_OPERATIONS);
  x->options = *o;
  x->prng.state = o->seed;
  const bool is_checked = o->seed % 3 != 0 && !o->is_one_way;
  const struct sml_aggregator_options options = {.world_size = o->world_size,
                                                 .num_slots = o->num_slots,
                                                 .is_one_way = o->is_one_way,
                                                 .chunk_bytes = o->chunk_bytes,
                                                 .is_checked = is_checked,
                                                 .first_phase = o->first_phase,
                                                 .first_chunk = o->first_chunk,
                                                 .order_slots = order_slots_of(o)};
  x->aggregator = sml_aggregator_init(aligned_alloc(64, sml_align_up(sml_aggregator_memsize(&options), 64)), &options);
  for (uint32_t i = 0; i < o->num_operations; i++) {
    const uint64_t num_elems = (uint64_t)num_chunks[i] * o->chunk_bytes / 4 - i % 2;
    x->plans[i] = (struct sml_operation_plan){
        .number = i, .num_elems = num_elems, .block_elems = !is_mixed || i % 2 == 0 ? 2 : 0};
    if (o->is_one_way) go_one_way(x, i);
    sml_range_make(&x->ranges[i], &x->plans[i], 0, 1, o->chunk_bytes, o->num_slots);
    assert_true(x->ranges[i].num_chunks <= MAX_CHUNKS);
  }
  for (uint32_t rank = 0; rank < o->world_size; rank++) {
    x->workers[rank] = make_worker(o, rank, o->is_one_way ? SML_REDUCE_TO_OWNER : SML_REDUCE_SUM, is_checked);
    if (o->is_one_way) x->copiers[rank] = make_worker(o, rank, SML_REDUCE_COPY, false);
    for (uint32_t i = 0; i < o->num_operations; i++) works[rank][i] = (struct work){.operation = i};
  }
  return x;
}

static void free_world(struct world *x) {
  for (uint32_t rank = 0; rank < x->options.world_size; rank++) {
    free(x->workers[rank]);
    free(x->copiers[rank]);
  }
  free(x->aggregator);
  free(x);
}

/* Returns how many packets were sent. */
static uint64_t run_once(const struct world_options *o, const uint32_t *num_chunks, bool is_mixed) {
  struct world *x = make_world(o, num_chunks, is_mixed);
  run_world(x, 2 * SML_NS_PER_S);
  const uint64_t num_sent = x->num_sent;
  free_world(x);
  return num_sent;
}
