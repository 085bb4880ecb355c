/* SPDX-License-Identifier: Apache-2.0
 * The worker's stream: the submitted operations, one behind the other, and which chunk a slot has. */
#include "core/worker_queue.h"

/* ---- READY slots, the first chunk of the stream first ----
 *
 * A chunk that becomes ready after one behind it in the stream goes into a heap, `early`, with the first chunk on top.
 * That happens when exponents come back late or results are lost; otherwise everything is in order. */

static bool is_before(const struct sml_worker *w, uint32_t s, uint32_t other) {
  return w->slots[s].chunk < w->slots[other].chunk;
}

static void add_early(struct sml_worker *w, uint32_t s) {
  uint32_t i = w->num_early++;
  SML_ASSERT(i < w->options.num_slots);
  for (; i > 0 && is_before(w, s, w->early[(i - 1) / 2]); i = (i - 1) / 2) w->early[i] = w->early[(i - 1) / 2];
  w->early[i] = s;
}

void sml_worker_take_early(struct sml_worker *w) {
  SML_ASSERT(w->num_early > 0);
  const uint32_t last = w->early[--w->num_early], n = w->num_early;
  uint32_t i = 0;
  for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
    if (child + 1 < n && is_before(w, w->early[child + 1], w->early[child])) child++;
    if (!is_before(w, w->early[child], last)) break;
    w->early[i] = w->early[child];
  }
  w->early[i] = last;
}

static void become_ready(struct sml_worker *w, uint32_t s) {
  const uint64_t chunk = w->slots[s].chunk;
  w->slots[s].state = READY;
  if (w->fresh.count > 0 && chunk < w->last_fresh) {
    add_early(w, s);
    return;
  }
  w->last_fresh = chunk;
  enqueue(&w->fresh, w->options.num_slots, s);
}

/* ---- operations ---- */

/* Index in the ring of the operation that a submitted chunk belongs to. NONE: a lying aggregator granted a chunk of the
 * past, or one for the second time. */
static uint32_t find_operation(const struct sml_worker *w, uint64_t chunk) {
  uint64_t low = w->ring_head, high = w->ring_tail; /* the answer is in [low, high) */
  if (low == high || chunk < operation_at(w, low)->first_chunk) return NONE;
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    if (operation_at(w, middle)->first_chunk <= chunk) low = middle;
    else high = middle;
  }
  const uint32_t index = (uint32_t)(low & (w->options.num_operations - 1));
  return w->ring[index].chunks_unassigned == 0 ? NONE : index;
}

static void wait_for_exponents(struct sml_worker *w, uint32_t s) {
  w->slots[s].state = WAITING; /* holds the slot until the exponents are back */
  w->slots[s].next = NONE;
  if (w->waiting.tail == NONE) w->waiting.head = s;
  else w->slots[w->waiting.tail].next = s;
  w->waiting.tail = s;
}

static bool has_exponents(const struct sml_worker *w, const struct slot *slot) {
  const struct operation *op = &w->ring[slot->operation];
  return op->range.num_groups == 0 || slot->what.is_exponent || op->ready[slot->what.group];
}

/* The chunk waits for no exponents: it is to be sent, or, if only others contribute, its result is to come. */
static inline __attribute__((always_inline)) void begin_chunk(struct sml_worker *w, uint32_t s) {
  struct slot *slot = &w->slots[s];
  if (sml_worker_contributes(w, slot)) {
    become_ready(w, s);
    return;
  }
  slot->state = OUTSTANDING;
  slot->first_sent_ns = w->now_ns;
  slot->was_resent = slot->was_pending = slot->was_refused = slot->was_overtaken = false;
  slot->noticed_ns = slot->told_ns = 0;
  slot->probe_copies = slot->num_unanswered = 0;
  w->view.num_outstanding++;
  list_append(w, s, 0, w->now_ns);
}

static inline __attribute__((always_inline)) void begin_or_wait(struct sml_worker *w, uint32_t s) {
  if (has_exponents(w, &w->slots[s])) begin_chunk(w, s);
  else wait_for_exponents(w, s);
}

/* What updates and results of the slot's chunk look like on the wire. */
static void set_wire(const struct sml_worker *w, const struct operation *op, struct slot *slot) {
  const struct sml_chunk *c = &slot->what;
  slot->wire = op->wire;
  slot->reducer = op->reducer;
  if (c->is_exponent) {
    slot->wire = w->code_wire;
    slot->reducer = SML_REDUCE_MAX;
  }
  const bool is_checked = w->options.is_checked && slot->wire == SML_LANES_INT32;
  const bool is_narrow = op->is_narrow && !c->is_exponent && c->payload_bytes % SML_NARROW_UNIT == 0;
  slot->flags = is_checked ? SML_FLAG_CHECKED : is_narrow ? SML_FLAG_NARROW : 0;
  const uint32_t check_bytes = is_checked ? SML_CHECK_BYTES : 0;
  slot->payload_bytes = (uint16_t)(w->packet_bytes != 0 ? w->packet_bytes : c->payload_bytes + check_bytes);
}

void sml_worker_note_heard(struct sml_worker *w) {
  for (; w->heard < w->end_chunk; w->heard++) {
    const uint32_t s = sml_worker_slot_at(w, w->heard);
    const struct slot *slot = &w->slots[s];
    if (slot->chunk != w->heard) return; /* the window is full */
    if (slot->state == CLOSED) become_ready(w, s);
    else if (slot->state != SENT && slot->state != HELD) return;
  }
}

static void activate_one_way(struct sml_worker *w, uint32_t s, uint64_t position) {
  struct slot *slot = &w->slots[s];
  struct operation *op = &w->ring[slot->operation];
  sml_range_one_way_chunk(&op->range, position, &op->row, &slot->what);
  set_wire(w, op, slot);
  if (slot->what.is_fence) slot->state = CLOSED;
  else begin_or_wait(w, s);
}

void sml_worker_activate(struct sml_worker *w, uint32_t s) {
  struct slot *slot = &w->slots[s];
  const uint32_t index = slot->chunk < w->end_chunk ? find_operation(w, slot->chunk) : NONE;
  if (index == NONE) {
    w->idle[slot->chunk & (w->options.num_slots - 1)] = s;
    return;
  }
  struct operation *op = &w->ring[index];
  const uint64_t position = slot->chunk - op->first_chunk;
  op->chunks_unassigned--;
  slot->operation = index;
  slot->tag = sml_tag(op->tag_base, position);
  if (is_one_way(w)) {
    activate_one_way(w, s, position);
    return;
  }
  sml_range_chunk(&op->range, position, &slot->what);
  set_wire(w, op, slot);
  begin_or_wait(w, s);
}

void sml_worker_release_group(struct sml_worker *w, uint32_t operation, uint32_t group) {
  w->ring[operation].ready[group] = 1;
  uint32_t s = w->waiting.head;
  w->waiting = (struct list){NONE, NONE};
  while (s != NONE) {
    const struct slot *slot = &w->slots[s];
    const uint32_t next = slot->next;
    const bool is_of_group = slot->operation == operation && slot->what.group == group;
    if (is_of_group) begin_chunk(w, s);
    else wait_for_exponents(w, s);
    s = next;
  }
}

uint64_t sml_worker_chunks_left(const struct sml_worker *w) {
  /* A slot's phase grows by one a chunk, so it cannot pass first_phase + chunks of the stream. */
  const uint64_t room = UINT64_C(0xffffffff) - w->options.first_phase;
  const uint64_t used = w->end_chunk - w->options.first_chunk;
  return used >= room ? 0 : room - used;
}

bool sml_worker_can_submit(const struct sml_worker *w) {
  return w->ring_tail - w->ring_head < w->options.num_operations;
}

bool sml_worker_submit(struct sml_worker *w, const struct sml_operation_plan *plan, uint8_t *ready,
                       void *cookie, uint64_t now_ns) {
  const struct sml_worker_options *o = &w->options;
  SML_ASSERT(sml_worker_can_submit(w) && plan->way == o->way);
  w->now_ns = now_ns;
  struct sml_range range;
  const uint8_t wire = plan->way == SML_REDUCE_COPY ? SML_LANES_UINT8 : plan->wire_reducer >> 4;
  sml_range_make(&range, plan, o->lane, o->num_lanes, o->chunk_bytes, w->lane_slots);
  if (range.num_chunks == 0) return false;
  SML_ASSERT(range.num_chunks <= sml_worker_chunks_left(w));
  const uint64_t tag_base = sml_tag_base(plan, o->chunk_bytes, o->num_lanes);
  const bool is_narrow = plan->is_narrow && !is_one_way(w) && !o->is_checked && o->packet_lanes == 0;
  *operation_at(w, w->ring_tail) = (struct operation){.range = range,
                                                      .first_chunk = w->end_chunk,
                                                      .chunks_left = range.num_chunks,
                                                      .chunks_unassigned = range.num_chunks,
                                                      .tag_base = tag_base,
                                                      .ready = ready,
                                                      .wire = wire,
                                                      .reducer = is_one_way(w) ? plan->way : plan->wire_reducer & 15,
                                                      .is_narrow = is_narrow,
                                                      .cookie = cookie};
  if (w->ring_head == w->ring_tail) {
    w->view.waiting_since_ns = now_ns;
    if (is_one_way(w)) sml_fence_window_begin(w);
  }
  w->ring_tail++;
  const uint64_t first_chunk = w->end_chunk, num_chunks = sml_min_u64(range.num_chunks, o->num_slots);
  w->end_chunk += range.num_chunks;
  for (uint64_t chunk = first_chunk; chunk < first_chunk + num_chunks; chunk++) {
    const uint32_t s = w->idle[chunk & (o->num_slots - 1)];
    if (w->slots[s].state == IDLE && w->slots[s].chunk == chunk) sml_worker_activate(w, s);
  }
  if (is_one_way(w)) sml_worker_note_heard(w);
  return true;
}

void *sml_worker_take_unfinished(struct sml_worker *w) {
  while (w->ring_head != w->ring_tail) {
    struct operation *op = operation_at(w, w->ring_head++);
    if (!op->is_done) return op->cookie;
  }
  return NULL;
}
