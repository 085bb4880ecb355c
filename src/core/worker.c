/* SPDX-License-Identifier: Apache-2.0 */
#include "core/worker_queue.h"

#define ORDERS_PER_SLOT 4u

struct layout {
  size_t slots, ring, gaps, orders, classes, fresh, early, updates, probes, idle, total_bytes;
};

static struct sml_worker_options complete(const struct sml_worker_options *options) {
  struct sml_worker_options o = *options;
  if (o.num_contributors == 0) o.num_contributors = o.world_size;
  if (o.order_slots == 0) o.order_slots = SML_ORDER_SLOTS;
  if (o.packet_lanes != 0) o.order_slots = UINT32_MAX; /* a switch neither asks nor finds grants */
  if (o.way != SML_REDUCE_SUM) o.num_slots = sml_window_positions(o.way, o.num_slots);
  return o;
}

static struct layout place(const struct sml_worker_options *o) {
  struct layout l;
  const uint32_t num_classes = o->way != SML_REDUCE_SUM ? o->num_contributors : 0;
  l.slots = sml_align_up(sizeof(struct sml_worker), 64);
  l.ring = sml_align_up(l.slots + o->num_slots * sizeof(struct slot), 64);
  l.gaps = sml_align_up(l.ring + o->num_operations * sizeof(struct operation), 64);
  l.orders = l.gaps + o->num_slots * sizeof(struct gap);
  l.classes = l.orders + ORDERS_PER_SLOT * o->num_slots * sizeof(uint64_t);
  l.fresh = sml_align_up(l.classes + num_classes * sizeof(struct one_way_class), 64);
  l.early = l.fresh + o->num_slots * sizeof(uint32_t);
  l.updates = l.early + o->num_slots * sizeof(uint32_t);
  l.probes = l.updates + o->num_slots * sizeof(uint32_t);
  l.idle = l.probes + o->num_slots * sizeof(uint32_t);
  l.total_bytes = l.idle + o->num_slots * sizeof(uint32_t);
  return l;
}

size_t sml_worker_memsize(const struct sml_worker_options *options) {
  const struct sml_worker_options o = complete(options);
  return place(&o).total_bytes;
}

struct sml_worker *sml_worker_init(void *mem, const struct sml_worker_options *options) {
  const struct sml_worker_options all = complete(options), *o = &all;
  SML_ASSERT(sml_is_pow2(o->num_slots) && sml_is_pow2(o->num_operations));
  SML_ASSERT(o->num_contributors <= o->world_size && o->rank < o->num_contributors);
  SML_ASSERT(o->lane < o->num_lanes && o->first_phase >= SML_FIRST_PHASE);
  const bool has_one_way = o->way != SML_REDUCE_SUM;
  SML_ASSERT(!has_one_way || (options->num_slots >= SML_LEAST_ONE_WAY_SLOTS && !o->is_checked && o->packet_lanes == 0));
  const struct layout l = place(o);
  uint8_t *bytes = mem;
  struct sml_worker *w = mem;
  memset(mem, 0, l.total_bytes);
  w->options = *o;
  w->lane_slots = options->num_slots;
  w->code_wire = o->packet_lanes != 0 ? SML_LANES_UINT32 : SML_LANES_UINT8;
  w->packet_bytes = 4 * o->packet_lanes;
  SML_ASSERT(o->packet_lanes == 0 || w->packet_bytes == o->chunk_bytes + (o->is_checked ? SML_CHECK_BYTES : 0));
  w->slots = (struct slot *)(void *)(bytes + l.slots);
  w->ring = (struct operation *)(void *)(bytes + l.ring);
  w->gaps = (struct gap *)(void *)(bytes + l.gaps);
  w->orders = (uint64_t *)(void *)(bytes + l.orders);
  w->classes = (struct one_way_class *)(void *)(bytes + l.classes);
  w->num_orders = ORDERS_PER_SLOT * o->num_slots;
  w->fresh.slots = (uint32_t *)(void *)(bytes + l.fresh);
  w->early = (uint32_t *)(void *)(bytes + l.early);
  w->updates.slots = (uint32_t *)(void *)(bytes + l.updates);
  w->probes.slots = (uint32_t *)(void *)(bytes + l.probes);
  w->idle = (uint32_t *)(void *)(bytes + l.idle);
  w->end_chunk = w->released = w->heard = w->passed = o->first_chunk;
  w->kept = NONE;
  w->look_ns = SML_NEVER;
  w->last_grant = (uint64_t)o->first_chunk + o->num_slots - 1;
  for (uint32_t s = 0; s < o->num_slots; s++) {
    w->slots[s].phase = o->first_phase + (has_one_way && s >= o->num_slots / 2);
    w->slots[s].chunk = (uint64_t)o->first_chunk + s; /* first window: chunk = slot */
    w->idle[w->slots[s].chunk & (o->num_slots - 1)] = s;
  }
  w->waiting = (struct list){NONE, NONE};
  for (uint32_t k = 0; k < SML_RTO_LEVELS; k++) w->levels[k] = (struct list){NONE, NONE};
  sml_rto_init(&w->rto, o->rtt_ns);
  sml_congestion_init(&w->congestion, o->num_slots, o->chunk_bytes, o->num_contributors * o->num_lanes, o->rtt_ns,
                      o->has_fixed_window || has_one_way);
  sml_worker_gaps_init(w);
  if (has_one_way) sml_fence_window_init(w);
  w->clock_budget = w->silence_budget = SML_MOST_BUDGET;
  w->prng.state = o->seed;
  w->room_chunks = UINT32_MAX;
  w->buffer_chunks = w->stalled_chunks = o->num_slots;
  return w;
}

/* ---- sending ---- */

/* Entries whose reason is gone (the result came meanwhile) are skipped. */
static void clean_queues(struct sml_worker *w) {
  const uint32_t n = w->options.num_slots;
  while (w->probes.count > 0 && !w->slots[w->probes.slots[w->probes.head]].wants_probe) {
    w->slots[w->probes.slots[w->probes.head]].is_in_probes = false;
    dequeue(&w->probes, n);
  }
  while (w->updates.count > 0 && !w->slots[w->updates.slots[w->updates.head]].wants_update) {
    w->slots[w->updates.slots[w->updates.head]].is_in_updates = false;
    dequeue(&w->updates, n);
  }
}

static uint32_t update_bytes_of(const struct slot *slot) {
  return slot->flags & SML_FLAG_NARROW ? sml_narrow_bytes(slot->payload_bytes) : slot->payload_bytes;
}

/* Only a chunk beyond all data sent so far is held back, and in a silence a few are sent nevertheless. Otherwise each
 * of two ranks could be full of chunks that the other one holds back. */
static bool is_held_back(const struct sml_worker *w, uint32_t s) {
  if (is_one_way(w)) return false;
  return w->slots[s].chunk >= w->first_unsent &&
         w->view.num_outstanding >= sml_worker_most_outstanding(w) + w->quiet_level;
}

/* The READY slot with the first chunk of the stream, or NONE. All ranks send in this order, as far as they can.
 * Otherwise windows smaller than the slots could each be full of chunks that other ranks' windows hold back. */
static uint32_t first_fresh(const struct sml_worker *w) {
  const uint32_t s = w->fresh.count > 0 ? w->fresh.slots[w->fresh.head] : NONE;
  if (w->num_early == 0) return s;
  return s == NONE || w->slots[w->early[0]].chunk < w->slots[s].chunk ? w->early[0] : s;
}

static void take_fresh(struct sml_worker *w, uint32_t s) {
  if (w->num_early > 0 && w->early[0] == s) sml_worker_take_early(w);
  else dequeue(&w->fresh, w->options.num_slots);
}

/* The slot of the next update: repairs first, then new chunks as far as the window allows. NONE: none may be sent. */
static uint32_t find_update(struct sml_worker *w) {
  if (sml_congestion_is_early(&w->congestion)) return NONE;
  if (w->updates.count > 0) return w->updates.slots[w->updates.head];
  const uint32_t s = first_fresh(w);
  if (s == NONE || is_held_back(w, s)) return NONE;
  if (w->congestion.is_fixed) {
    if (is_one_way(w) && !sml_fence_window_allows(w, &w->slots[s])) return NONE;
    if (w->options.has_fixed_window) return s;
  } else if (sml_worker_is_window_full(w)) {
    sml_congestion_note_limited(&w->congestion);
    return NONE;
  }
  if (w->room_chunks > 0) return s;
  w->view.is_out_of_room = true;
  return NONE;
}

bool sml_worker_is_at_fence(struct sml_worker *w) {
  const uint32_t s = find_update(w);
  if (s == NONE || sml_worker_adapts(w)) return false;
  const uint32_t stretch = sml_stretch(w->lane_slots, w->options.num_lanes);
  return w->slots[s].chunk / stretch != w->slots[w->last_sent].chunk / stretch;
}

uint32_t sml_worker_num_ready(const struct sml_worker *w) {
  return w->fresh.count + w->num_early;
}

void sml_worker_set_room(struct sml_worker *w, uint32_t num_chunks) {
  w->room_chunks = num_chunks;
  w->view.is_out_of_room = false;
}

void sml_worker_set_leaving(struct sml_worker *w, uint64_t leaving_ns) {
  w->leaving_ns = leaving_ns;
}

void sml_worker_set_buffer(struct sml_worker *w, uint32_t num_chunks) {
  w->buffer_chunks = sml_min_u32(sml_max_u32(num_chunks, SML_LEAST_CHUNKS), w->options.num_slots);
}

struct sml_congestion *sml_worker_congestion(struct sml_worker *w) {
  return &w->congestion;
}

uint64_t sml_worker_under_way_bytes(const struct sml_worker *w) {
  return sml_worker_num_under_way(w) * (w->options.chunk_bytes + SML_HEADER_BYTES);
}

uint32_t sml_worker_peek_send(struct sml_worker *w) {
  clean_queues(w);
  if (w->num_due_gaps > 0 || w->probes.count > 0) return 0;
  const uint32_t s = find_update(w);
  return s != NONE ? update_bytes_of(&w->slots[s]) : UINT32_MAX;
}

/* What `chunk` says in a header of a one-way window: the owner, or what is nobody's. */
__attribute__((noinline, cold)) static uint32_t owner_on_wire(const struct slot *slot) {
  return slot->what.is_fence ? SML_FENCE : slot->what.is_exponent ? 0 : slot->what.owner;
}

static inline __attribute__((always_inline)) struct sml_header make_header(const struct sml_worker *w, uint32_t s,
                                                                           enum sml_packet_type type) {
  const struct slot *slot = &w->slots[s];
  return (struct sml_header){.version = SML_WIRE_VERSION,
                             .type = (uint8_t)type,
                             .wire = slot->wire,
                             .reducer = slot->reducer,
                             .job = w->options.job,
                             .epoch = w->options.epoch,
                             .rank = w->options.rank,
                             .slot = (uint16_t)(w->options.slot_base + sml_worker_place_of(w, s)),
                             .phase = slot->phase,
                             .tag = slot->tag,
                             .chunk = is_one_way(w) ? owner_on_wire(slot) : (uint32_t)slot->chunk};
}

static void send_gap_probe(struct sml_worker *w, uint64_t now_ns, struct sml_send *out) {
  out->kind = SML_SEND_PROBE;
  out->header = (struct sml_header){.version = SML_WIRE_VERSION,
                                    .type = SML_PACKET_PROBE,
                                    .job = w->options.job,
                                    .epoch = w->options.epoch,
                                    .rank = w->options.rank,
                                    .slot = w->options.slot_base,
                                    .flags = SML_FLAG_BY_GRANT,
                                    .chunk = (uint32_t)sml_worker_take_due_gap(w, now_ns)};
  w->view.probes++;
}

/* When what is sent now leaves the host. Where lanes share links, queues are at other hosts as well, so the wait in
 * this one's is no more than a part of what answers take. */
static uint64_t leaving_time(const struct sml_worker *w, uint64_t now_ns) {
  return sml_worker_adapts(w) ? now_ns : sml_max_u64(now_ns, w->leaving_ns);
}

static void send_probe(struct sml_worker *w, uint64_t now_ns, struct sml_send *out) {
  const uint32_t s = w->probes.slots[w->probes.head];
  struct slot *slot = &w->slots[s];
  out->kind = SML_SEND_PROBE;
  out->header = make_header(w, s, SML_PACKET_PROBE);
  w->view.probes++;
  const bool is_copy = is_one_way(w) && slot->probe_copies > 0; /* the last one counts */
  if (!is_copy) slot->num_unanswered = (uint8_t)sml_min_u32(slot->num_unanswered + 1u, 2);
  if (slot->probe_copies > 0) {
    slot->probe_copies--;
    return;
  }
  dequeue(&w->probes, w->options.num_slots);
  slot->wants_probe = slot->is_in_probes = false;
  list_append(w, s, slot->level, now_ns);
  slot->asked_ns = leaving_time(w, now_ns);
}

/* One way: nothing is left to send, or, in an all-gather, what comes down fills the links, and not what goes up. */
static bool is_link_idle(const struct sml_worker *w, uint64_t now_ns) {
  return sml_worker_is_at_end(w) || (w->options.way == SML_REDUCE_COPY && w->leaving_ns <= now_ns);
}

static void send_update(struct sml_worker *w, uint32_t s, uint64_t now_ns, struct sml_send *out) {
  struct slot *slot = &w->slots[s];
  out->kind = SML_SEND_UPDATE;
  out->cookie = w->ring[slot->operation].cookie;
  out->chunk = slot->what;
  if (is_one_way(w)) {
    out->range = &w->ring[slot->operation].range;
    if (slot->state == READY && slot->what.is_fence) slot->fence_byte = sml_fence_window_byte(w);
    out->fence_byte = slot->fence_byte;
  }
  out->header = make_header(w, s, SML_PACKET_UPDATE);
  out->header.payload_bytes = (uint16_t)update_bytes_of(slot);
  out->header.flags = slot->flags;
  sml_congestion_on_sent(&w->congestion);
  slot->order = ++w->last_order;
  slot->update_ns = is_one_way(w) ? leaving_time(w, now_ns) : now_ns;
  slot->num_unanswered = 0;
  w->last_sent = s;
  if (slot->state == READY) {
    take_fresh(w, s);
    if (w->view.num_outstanding == 0 && now_ns - w->progress_ns > w->rto.rto_ns) sml_congestion_on_idle(&w->congestion);
    w->orders[slot->chunk & (w->num_orders - 1)] = slot->order;
    if (!slot->what.is_exponent) w->first_unsent = sml_max_u64(w->first_unsent, slot->chunk + 1);
    const bool has_result = !is_one_way(w) || slot->what.is_exponent;
    slot->state = has_result ? OUTSTANDING : SENT;
    w->view.num_outstanding += has_result;
    w->room_chunks--;
    w->progress_ns = w->last_update_ns = now_ns;
    slot->first_sent_ns = now_ns;
    slot->was_resent = slot->was_pending = slot->was_refused = slot->was_overtaken = slot->has_copy = false;
    slot->noticed_ns = slot->told_ns = 0;
    slot->probe_copies = 0;
    if (has_result) list_append(w, s, 0, now_ns);
    else sml_worker_note_heard(w);
    return;
  }
  out->header.flags |= SML_FLAG_RETRANSMISSION;
  slot->was_resent = true;
  w->view.retransmissions++;
  slot->has_copy = is_one_way(w) && !slot->has_copy && is_link_idle(w, now_ns);
  if (slot->has_copy) return; /* all wait for it, and the link has nothing else to do: it goes twice */
  dequeue(&w->updates, w->options.num_slots);
  slot->wants_update = slot->is_in_updates = false;
  if (slot->state == SENT) return;
  if (slot->wants_probe) slot->wants_probe = false;
  else list_remove(w, s);
  list_append(w, s, 0, now_ns); /* the repeat may be lost as well */
}

void sml_worker_next_send(struct sml_worker *w, uint64_t now_ns, struct sml_send *out) {
  clean_queues(w);
  out->kind = SML_SEND_NONE;
  uint32_t s;
  if (w->num_due_gaps > 0) send_gap_probe(w, now_ns, out);
  else if (w->probes.count > 0) send_probe(w, now_ns, out);
  else if ((s = find_update(w)) != NONE) send_update(w, s, now_ns, out);
}

/* ---- receiving ---- */

static struct sml_accept drop(enum sml_drop reason) {
  return (struct sml_accept){.kind = SML_ACCEPT_DROP, .drop = reason};
}

/* The aggregator waits for other ranks: from now on only the clock asks about the slot. A slot of a higher level keeps
 * its place, so that a flood of answers cannot put its next question off. */
static void wait_for_others(struct sml_worker *w, uint32_t s, uint64_t now_ns) {
  struct slot *slot = &w->slots[s];
  slot->was_pending = true;
  if (slot->level > 0) return;
  const uint8_t level = !w->has_overflowed; /* then later chunks show that it is stuck */
  if (slot->wants_probe) {
    slot->level = level;
    return;
  }
  list_remove(w, s);
  list_append(w, s, level, now_ns);
  slot->num_unanswered = 2;
}

/* The order of a recent chunk's first update. */
static uint64_t order_of(const struct sml_worker *w, uint32_t chunk) {
  return w->orders[chunk & (w->num_orders - 1)];
}

/* In a one-way window: may what was sent last still be on its way, so that nothing can show yet that it is lost?
 * Several receivers ask about an update, one after the other, so this is also how often it is repeated at most. */
static bool is_leaving(const struct sml_worker *w, const struct slot *slot, uint64_t now_ns) {
  const uint64_t left_ns = sml_max_u64(sml_max_u64(slot->update_ns, w->last_update_ns), w->leaving_ns);
  const uint64_t answer_ns = w->rto.answer_ns > 0 ? w->rto.answer_ns + w->rto.answer_ns / 4 : sml_worker_round_trip(w);
  const uint64_t trip_ns = sml_worker_adapts(w) ? w->rto.rto_ns : 0; /* the queue may be elsewhere */
  return now_ns <= left_ns + sml_max_u64(sml_max_u64(sml_worker_quiet_time(w), answer_ns), trip_ns);
}

/* May the slot's last update still be on its way? The aggregator names the latest chunk that it has from this rank. If
 * that chunk was sent before the update, it has not overtaken the update. */
static bool is_crossing(const struct sml_worker *w, uint32_t s, const struct sml_header *h, uint64_t now_ns) {
  const struct slot *slot = &w->slots[s];
  const bool is_unasked = (h->flags & SML_FLAG_UNASKED) != 0;
  if (!is_unasked && slot->state != SENT) return false; /* a PROBE was sent behind the update */
  if (is_one_way(w))
    return order_of(w, w->options.first_chunk + h->chunk) <= slot->order && is_leaving(w, slot, now_ns);
  /* At the end of an operation nothing comes later, so time must tell. */
  if (w->rto.srtt_ns > 0 && now_ns - slot->update_ns > sml_worker_round_trip(w)) return false;
  return order_of(w, h->chunk) <= slot->order;
}

static void note_arrived(struct sml_worker *w, uint64_t order, uint64_t now_ns) {
  if (order <= w->arrived_order) return;
  w->arrived_order = order;
  w->arrived_ns = now_ns;
  w->full_level = 0;
}

static void note_loss(struct sml_worker *w, uint64_t order, uint64_t now_ns) {
  sml_congestion_on_loss(&w->congestion, &w->rto, order, w->last_order, now_ns);
}

static void earn(uint32_t *budget, uint32_t num, uint32_t most) {
  *budget = sml_max_u32(*budget, sml_min_u32(*budget + num, most));
}

/* A loss was shown. What it earns is kept for the end of the window, when the worker asks about what else was lost. */
static void earn_by_loss(struct sml_worker *w, uint32_t s) {
  earn(&w->silence_budget, SML_LOSS_EARNS + w->slots[s].num_charged * SML_QUESTION_COSTS, SML_MOST_BY_LOSSES);
  w->slots[s].num_charged = 0;
  w->patience_ns /= 2;
  /* On a long path a queue that overflows drops thousands of chunks of the window at once, from all ranks alike. Then
   * nobody's chunks show the loss, and only the clock asks. */
  if (sml_worker_is_far(w)) earn(&w->clock_budget, SML_LOSS_EARNS, SML_MOST_BY_LOSSES);
}

/* Samples how long an answer takes. After several questions nobody knows which one it answers. */
static void note_answer(struct sml_worker *w, struct slot *slot, uint64_t now_ns) {
  w->late_ns = now_ns;
  if (slot->num_unanswered != 1) return;
  slot->num_unanswered = 0;
  if (is_one_way(w)) w->answered_ns = sml_max_u64(w->answered_ns, slot->sent_ns);
  w->has_news = true;
  sml_rto_answer(&w->rto, now_ns - sml_min_u64(slot->asked_ns, now_ns));
}

/* For people. A fence says less than a chunk of data, if that waits, too. */
static void note_missing(struct sml_worker *w, uint32_t s, const struct sml_header *h, const uint8_t *payload) {
  const struct sml_worker_options *o = &w->options;
  struct sml_worker_view *v = &w->view;
  const bool is_fence = is_one_way(w) && w->slots[s].what.is_fence;
  if (is_fence && v->num_missing > 0 && !v->is_at_fence) return;
  v->is_at_fence = is_fence;
  v->waiting_slot = sml_worker_place_of(w, s);
  v->num_missing = 0;
  for (uint32_t r = 0; r < o->num_contributors && r / 8 < h->payload_bytes; r++) {
    if ((payload[r / 8] >> (r % 8) & 1) == 0 || r == o->rank) continue;
    if (v->num_missing < SML_ARRAY_LEN(v->missing)) v->missing[v->num_missing++] = (uint16_t)r;
  }
}

static void accept_pending(struct sml_worker *w, uint32_t s, const struct sml_header *h,
                           const uint8_t *payload, uint64_t now_ns) {
  const struct sml_worker_options *o = &w->options;
  const bool is_mine = sml_worker_contributes(w, &w->slots[s]);
  if (!is_one_way(w)) note_arrived(w, h->flags & SML_FLAG_UNASKED ? order_of(w, h->chunk) : w->slots[s].order, now_ns);
  if ((h->flags & SML_FLAG_UNASKED) == 0) note_answer(w, &w->slots[s], now_ns);
  const bool is_mine_missing = is_mine && (payload[o->rank / 8] >> (o->rank % 8) & 1) != 0;
  if (w->slots[s].state == CLOSED) {
    if (is_mine_missing) sml_worker_ask_before(w, s, now_ns);
    return;
  }
  note_missing(w, s, h, payload);
  if (w->slots[s].state == SENT && !is_mine_missing) return;
  w->slots[s].told_ns = now_ns;
  if (!is_mine_missing) wait_for_others(w, s, now_ns);
  else if (!is_crossing(w, s, h, now_ns)) {
    want_update(w, s);
    w->window.num_lost++;
    if ((h->flags & SML_FLAG_UNASKED) == 0) earn_by_loss(w, s);
    note_loss(w, w->slots[s].order, now_ns);
  }
}

/* Do not sample a result that later ones overtook. It waited for somebody's repair, which says nothing about the path,
 * and would make the next repair slower still. The same goes for one that comes more than a timeout after the last new
 * update, once there is an estimate (before that, a long path makes every result late). But if the worker asked about
 * it, and no answer came within a round trip, the path has become longer: then sample it. */
static bool was_held_up(const struct sml_worker *w, const struct slot *slot, uint64_t now_ns) {
  if (slot->first_sent_ns + sml_rto_least_window(&w->rto) < w->latest_acked_ns) return true;
  if (!sml_worker_uses_order(w) || w->rto.srtt_ns == 0 || now_ns - w->last_update_ns <= w->rto.rto_ns) return false;
  return slot->level == 0 || now_ns - slot->sent_ns <= sml_worker_round_trip(w);
}

/* Feeds the clocks of loss detection with a completed slot. */
static void note_completed(struct sml_worker *w, const struct slot *slot, const struct sml_header *h,
                           uint64_t now_ns) {
  sml_congestion_on_completed(&w->congestion, &w->rto, slot->order, w->last_order, now_ns);
  const bool is_own = sml_worker_contributes(w, slot); /* else it has no round trip */
  /* A repeat answers a probe, so it would measure the probe's timer. It was sent behind the result, which was lost. */
  if (h->flags & SML_FLAG_RETRANSMISSION) {
    w->view.lost_results++;
    w->window.num_lost++;
    note_loss(w, slot->order, now_ns);
    return;
  }
  if (is_own && !slot->was_resent && !slot->was_pending && !was_held_up(w, slot, now_ns)) {
    /* One way an exponent or a fence may wait longer behind data in the host's own queue than for the path. */
    const uint64_t sent_ns = is_one_way(w) ? sml_min_u64(slot->update_ns, now_ns) : slot->first_sent_ns;
    sml_rto_sample(&w->rto, now_ns - sent_ns);
  }
  if (is_own && !slot->was_resent) w->latest_acked_ns = sml_max_u64(w->latest_acked_ns, slot->first_sent_ns);
}

static uint64_t widen_chunk(const struct sml_worker *w, uint32_t chunk) {
  return w->last_grant + (uint64_t)(int64_t)(int32_t)(chunk - (uint32_t)w->last_grant);
}

/* Returns the cookie of an operation that has ended in this lane, or NULL. */
static void *accept_result(struct sml_worker *w, uint32_t s, const struct sml_header *h, const uint8_t *payload,
                           uint64_t now_ns) {
  struct slot *slot = &w->slots[s];
  if (sml_worker_contributes(w, slot)) note_arrived(w, slot->order, now_ns);
  note_completed(w, slot, h, now_ns);
  w->stalled_chunks = sml_min_u32(w->stalled_chunks + 1, w->options.num_slots);
  earn(&w->clock_budget, 1, SML_MOST_BUDGET);
  earn(&w->silence_budget, 1, SML_MOST_BUDGET);
  if (h->flags & SML_FLAG_RETRANSMISSION) {
    if (is_one_way(w)) note_answer(w, slot, now_ns);
    earn_by_loss(w, s);
  }
  slot->num_charged = 0;
  if (slot->wants_probe) slot->wants_probe = false; /* then it is in no list */
  else list_remove(w, s);
  slot->wants_update = false;
  w->view.num_outstanding--;
  w->view.waiting_since_ns = w->progress_ns = now_ns;
  w->view.num_missing = 0;
  w->view.is_at_fence = false;
  slot->level = 0;
  const bool was_silent = w->quiet_level > 0;
  w->quiet_level = 0;
  w->quiet_until_ns = 0;
  if (is_one_way(w)) {
    const bool is_first = !slot->was_resent && !slot->was_pending && (h->flags & SML_FLAG_RETRANSMISSION) == 0;
    w->now_ns = now_ns;
    w->window.has_found = was_silent && (h->flags & SML_FLAG_RETRANSMISSION) != 0;
    if ((h->flags & SML_FLAG_RETRANSMISSION) == 0) sml_fence_window_note_result(w, slot, now_ns);
    if (slot->what.is_fence) {
      w->passed = sml_max_u64(w->passed, slot->chunk + 1);
      sml_fence_window_take(w, payload[0], is_first ? now_ns - slot->first_sent_ns : 0);
    }
    return sml_worker_hold(w, s, (h->flags & SML_FLAG_RETRANSMISSION) != 0);
  }
  slot->phase++;
  w->view.busiest_slot_chunks = sml_max_u64(w->view.busiest_slot_chunks, slot->phase - w->options.first_phase);
  const uint64_t grant = widen_chunk(w, h->chunk);
  sml_worker_note_grant(w, grant, (h->flags & SML_FLAG_RETRANSMISSION) != 0, now_ns);
  slot->chunk = grant;
  slot->state = IDLE;
  w->last_grant = sml_max_u64(w->last_grant, slot->chunk);
  if (slot->what.is_exponent) sml_worker_release_group(w, slot->operation, slot->what.group);
  void *cookie = w->ring[slot->operation].cookie;
  const bool is_operation_done = sml_worker_finish_chunk(w, slot->operation);
  sml_worker_activate(w, s);
  return is_operation_done ? cookie : NULL;
}

/* The worker asked while the result was on its way; this is the answer. */
static bool is_repeated_result(const struct sml_header *h) {
  return h->type == SML_PACKET_RESULT && (h->flags & SML_FLAG_RETRANSMISSION) != 0;
}

/* PROTOCOL.md rules R35 and R40. */
struct sml_accept sml_worker_peek_packet(const struct sml_worker *w, const struct sml_header *h) {
  const uint32_t s = sml_worker_slot_of(w, h);
  if (h->type != SML_PACKET_RESULT && h->type != SML_PACKET_PENDING) return drop(SML_DROP_BAD_TYPE);
  if (s == NONE) return drop(SML_DROP_BAD_SLOT);
  const struct slot *slot = &w->slots[s];
  if (h->phase < slot->phase) return drop(is_repeated_result(h) ? SML_DROP_NEEDLESS : SML_DROP_STALE_PHASE);
  /* It asks for the next phase already, so the result of this one is on its way, or lost. Grants tell which. */
  if (h->type == SML_PACKET_PENDING && slot->state == OUTSTANDING && h->phase == slot->phase + 1 && !is_one_way(w))
    return drop(SML_DROP_NOT_OUTSTANDING);
  if (h->phase > slot->phase) return drop(SML_DROP_FUTURE_PHASE);
  const bool is_for_others = slot->state == SENT || slot->state == CLOSED;
  if (slot->state != OUTSTANDING && !(is_for_others && h->type == SML_PACKET_PENDING))
    return drop(SML_DROP_NOT_OUTSTANDING);
  if (h->tag != slot->tag) return drop(SML_DROP_TAG_MISMATCH);
  if (h->type == SML_PACKET_PENDING) {
    const uint32_t bitmap_bytes =
        w->packet_bytes != 0 ? SML_SWITCH_BITMAP_BYTES : (uint32_t)sml_div_ceil(w->options.num_contributors, 8);
    if (h->payload_bytes != bitmap_bytes) return drop(SML_DROP_BAD_LENGTH);
    return (struct sml_accept){.kind = SML_ACCEPT_PENDING, .was_asked = true};
  }
  if (h->wire != slot->wire) return drop(SML_DROP_BAD_TYPE);
  if (is_one_way(w) && h->reducer != slot->reducer) return drop(SML_DROP_BAD_TYPE);
  if (((h->flags ^ slot->flags) & SML_FLAG_CHECKED) != 0) return drop(SML_DROP_BAD_TYPE);
  if (h->payload_bytes != slot->payload_bytes) return drop(SML_DROP_BAD_LENGTH);
  return (struct sml_accept){.kind = SML_ACCEPT_RESULT,
                             .cookie = w->ring[slot->operation].cookie,
                             .chunk = slot->what,
                             .was_asked = (slot->was_resent | slot->was_pending | (slot->level > 0)) != 0};
}

uint64_t sml_worker_first_sent_ns(const struct sml_worker *w, const struct sml_header *h) {
  return w->slots[sml_worker_slot_of(w, h)].first_sent_ns;
}

struct sml_accept sml_worker_on_packet(struct sml_worker *w, const struct sml_header *h,
                                       const uint8_t *payload, uint64_t now_ns) {
  struct sml_accept a = sml_worker_peek_packet(w, h);
  const uint32_t s = sml_worker_slot_of(w, h);
  if (a.kind == SML_ACCEPT_PENDING) accept_pending(w, s, h, payload, now_ns);
  else if (a.kind == SML_ACCEPT_RESULT) a.ended = accept_result(w, s, h, payload, now_ns);
  return a;
}

void sml_worker_note_mark(struct sml_worker *w, const struct sml_header *h, uint64_t now_ns) {
  const uint32_t s = sml_worker_slot_of(w, h);
  w->view.ecn_marks++;
  w->window.is_marked = true;
  uint64_t order = 0;
  if (h->flags & SML_FLAG_MARKED) order = order_of(w, h->chunk);
  else if (s != NONE && w->slots[s].phase == h->phase && w->slots[s].state == OUTSTANDING) order = w->slots[s].order;
  sml_congestion_on_mark(&w->congestion, order, w->last_order, now_ns);
}

/* ---- for people who ask ---- */

/* The list whose head was sent or asked about longest ago, or NONE. */
static uint32_t oldest_level(const struct sml_worker *w) {
  uint32_t oldest = NONE;
  for (uint32_t k = 0; k < SML_RTO_LEVELS; k++) {
    const uint32_t head = w->levels[k].head;
    if (head == NONE) continue;
    if (oldest == NONE || w->slots[head].sent_ns < w->slots[w->levels[oldest].head].sent_ns) oldest = k;
  }
  return oldest;
}

void sml_worker_view(const struct sml_worker *w, struct sml_worker_view *view_out) {
  *view_out = w->view;
  const uint32_t level = oldest_level(w);
  /* If ranks are missing, PENDING named the slot. */
  if (w->view.num_missing == 0)
    view_out->waiting_slot = level == NONE ? 0 : sml_worker_place_of(w, w->levels[level].head);
  view_out->srtt_ns = w->rto.srtt_ns;
  view_out->rto_ns = w->rto.rto_ns;
  view_out->window_chunks = sml_min_u32(sml_congestion_window(&w->congestion), sml_worker_most_outstanding(w));
  view_out->window_reductions = w->congestion.num_reductions;
  view_out->is_paced = w->congestion.is_paced;
  view_out->is_waiting = w->ring_head != w->ring_tail;
}
