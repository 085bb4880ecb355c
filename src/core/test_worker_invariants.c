/* SPDX-License-Identifier: Apache-2.0
 * Whether a worker's state is sound: every fact that is kept twice agrees with itself. */
#include "core/worker_internal.h"

static const char *find_slot_violation(const struct sml_worker *w, uint32_t s) {
  const struct slot *slot = &w->slots[s];
  const uint32_t mask = w->options.num_slots - 1;
  if (slot->phase < w->options.first_phase) return "a phase before the first";
  if (slot->wants_update && !slot->is_in_updates) return "a slot wants its update sent, but is not queued";
  if (slot->wants_probe && !slot->is_in_probes) return "a slot wants to be asked about, but is not queued";
  if (slot->wants_probe && slot->state != OUTSTANDING) return "a slot is to be asked about that was not sent";
  if (slot->wants_update && slot->state != OUTSTANDING && slot->state != SENT)
    return "an update is to be sent again that was not sent";
  if (slot->num_charged > SML_MOST_QUESTIONS) return "more was paid for a slot's questions than there can be";
  if (slot->level >= SML_RTO_LEVELS) return "a slot's level is too high";
  if (slot->state == IDLE && slot->chunk < w->end_chunk) return "I9: the chunk of an idle slot is submitted";
  if (slot->state == IDLE && w->idle[slot->chunk & mask] != s) return "I9: the table of idle slots lost one";
  return NULL;
}

/* A queue's entries are within it, distinct, and marked as its own; marked counts them. */
static const char *find_queue_violation(const struct sml_worker *w, const struct queue *q, bool is_updates) {
  const uint32_t n = w->options.num_slots;
  uint32_t num_marked = 0;
  if (q->count > n || q->head >= n) return "a queue holds more than there are slots";
  for (uint32_t s = 0; s < n; s++)
    num_marked += is_updates ? w->slots[s].is_in_updates : w->slots[s].is_in_probes;
  if (num_marked != q->count) return "a queue's length is not the number of slots that are marked as in it";
  uint64_t met[SML_BITMAP_WORDS(32768)] = {0};
  for (uint32_t i = 0; i < q->count; i++) {
    const uint32_t s = q->slots[(q->head + i) & (n - 1)];
    if (s >= n || sml_bit_test(met, s)) return "a queue has an entry twice";
    if (is_updates ? !w->slots[s].is_in_updates : !w->slots[s].is_in_probes)
      return "a queue has a slot that is not marked as in it";
    sml_bit_set(met, s);
  }
  return NULL;
}

/* Exactly the READY slots, once each, wait for their first update. */
static const char *find_fresh_violation(const struct sml_worker *w) {
  const uint32_t n = w->options.num_slots;
  const struct queue *q = &w->fresh;
  uint32_t num_ready = 0, prev = NONE;
  if (q->count > n || q->head >= n || w->num_early > n - q->count)
    return "the queue of new updates holds more than there are slots";
  uint64_t met[SML_BITMAP_WORDS(32768)] = {0};
  for (uint32_t i = 0; i < q->count + w->num_early; i++) {
    const uint32_t s = i < q->count ? q->slots[(q->head + i) & (n - 1)] : w->early[i - q->count];
    if (s >= n || sml_bit_test(met, s) || w->slots[s].state != READY) return "a new update is queued that is not ready";
    sml_bit_set(met, s);
    const bool is_early = i >= q->count;
    if (is_early) prev = i > q->count ? w->early[(i - q->count - 1) / 2] : NONE;
    if (prev != NONE && w->slots[prev].chunk > w->slots[s].chunk) return "new updates are not in their order";
    prev = s;
  }
  for (uint32_t s = 0; s < n; s++) num_ready += w->slots[s].state == READY;
  return num_ready == q->count + w->num_early ? NULL : "an update is ready, but nobody will send it";
}

static const char *find_window_violation(const struct sml_worker *w) {
  const uint32_t window = sml_congestion_window(&w->congestion);
  if (w->arrived_order > w->last_order) return "an update arrived that was not sent";
  if (window > w->options.num_slots) return "the window has more chunks than there are slots";
  if (window < sml_min_u32(SML_CONGESTION_MIN_CHUNKS, w->options.num_slots)) return "the window is too small";
  if (sml_worker_most_outstanding(w) > w->options.num_slots) return "more may be outstanding than there are slots";
  if (sml_worker_most_outstanding(w) < sml_min_u32(SML_LEAST_CHUNKS, w->options.num_slots))
    return "too few may be outstanding";
  if (sml_max_u32(w->clock_budget, w->silence_budget) > SML_MOST_BY_LOSSES)
    return "a budget has more questions than it may hold";
  return NULL;
}

/* Exactly the slots that were sent and are not about to be asked about, each in the list of its level, in the
 * order in which they were sent. */
static const char *find_level_violation(const struct sml_worker *w) {
  const uint32_t n = w->options.num_slots;
  uint32_t num_listed = 0, num_due = 0;
  for (uint32_t k = 0; k < SML_RTO_LEVELS; k++) {
    uint32_t prev = NONE;
    for (uint32_t s = w->levels[k].head; s != NONE; prev = s, s = w->slots[s].next) {
      if (s >= n || ++num_listed > n) return "a list of sent slots has no end";
      const struct slot *slot = &w->slots[s];
      if (slot->state != OUTSTANDING || slot->wants_probe) return "a slot is listed that awaits no timer";
      if (slot->level != k || slot->prev != prev) return "a list of sent slots is torn";
      if (prev != NONE && w->slots[prev].sent_ns > slot->sent_ns) return "a list is not in the order of sending";
    }
    if (w->levels[k].tail != prev) return "a list of sent slots has another tail";
  }
  for (uint32_t s = 0; s < n; s++) num_due += w->slots[s].state == OUTSTANDING && !w->slots[s].wants_probe;
  return num_due == num_listed ? NULL : "a slot that was sent is in no list: nobody would ask about it";
}

static const char *find_waiting_violation(const struct sml_worker *w) {
  const uint32_t n = w->options.num_slots;
  uint32_t num_listed = 0, num_waiting = 0, last = NONE;
  for (uint32_t s = w->waiting.head; s != NONE; last = s, s = w->slots[s].next) {
    if (s >= n || ++num_listed > n) return "the list of waiting slots has no end";
    const struct slot *slot = &w->slots[s];
    if (slot->state != WAITING) return "the list of waiting slots has one that is not";
    const uint8_t *ready = w->ring[slot->operation].ready;
    if (ready[slot->what.group]) return "a slot waits for exponents that are there";
  }
  for (uint32_t s = 0; s < n; s++) num_waiting += w->slots[s].state == WAITING;
  if (w->waiting.tail != last) return "the list of waiting slots has another tail";
  return num_waiting == num_listed ? NULL : "a waiting slot is in no list";
}

/* Operations lie behind each other in the stream, and have as many chunks in slots as they lack results of
 * assigned ones. */
static const char *find_operation_violation(const struct sml_worker *w) {
  const uint32_t mask = w->options.num_operations - 1;
  uint64_t end_chunk = w->end_chunk, num_active = 0;
  if (w->ring_tail - w->ring_head > w->options.num_operations) return "more operations than there is room for";
  for (uint64_t i = w->ring_tail; i-- > w->ring_head;) {
    const struct operation *op = &w->ring[i & mask];
    if (op->first_chunk + op->range.num_chunks != end_chunk) return "operations are not next to each other";
    if (op->chunks_left > op->range.num_chunks || op->chunks_unassigned > op->chunks_left)
      return "an operation counts more chunks than it has";
    if (op->is_done != (op->chunks_left == 0)) return "an operation has ended without its last chunk";
    end_chunk = op->first_chunk;
    num_active += op->chunks_left - op->chunks_unassigned;
  }
  if (w->ring_head != w->ring_tail && w->ring[w->ring_head & mask].is_done) return "an ended operation is kept";
  for (uint32_t s = 0; s < w->options.num_slots; s++) {
    const struct slot *slot = &w->slots[s];
    if (slot->state == IDLE || slot->state == KEPT) continue;
    const struct operation *op = &w->ring[slot->operation & mask];
    if (slot->chunk - op->first_chunk >= op->range.num_chunks) return "a chunk is not of its slot's operation";
    if (num_active-- == 0) return "more chunks are in slots than operations know of";
  }
  return num_active == 0 ? NULL : "a chunk was given to a slot that does not have it";
}

/* No two slots hold one chunk. Honest chunks of a moment are close to each other, so few marks meet. */
static const char *find_chunk_violation(const struct sml_worker *w) {
  uint64_t marks[SML_BITMAP_WORDS(0x10000)] = {0};
  for (uint32_t s = 0; s < w->options.num_slots; s++) {
    const uint64_t chunk = w->slots[s].chunk;
    if (sml_bit_test(marks, chunk & 0xffff)) {
      for (uint32_t k = 0; k < s; k++)
        if (w->slots[k].chunk == chunk) return "I9: two slots have the same chunk";
    }
    sml_bit_set(marks, chunk & 0xffff);
  }
  return NULL;
}

/* Missing grants: below the next one, in their order, and of no slot, as far as the aggregator is honest. */
static const char *find_gap_violation(const struct sml_worker *w) {
  uint32_t num_due = 0;
  if (w->num_gaps > w->options.num_slots) return "more grants are missing than slots could lack";
  for (uint32_t i = 0; i < w->num_gaps; i++) {
    const struct gap *gap = &w->gaps[i];
    if (gap->grant >= w->next_grant) return "a grant is missing that nothing overtook";
    if (i > 0 && gap->grant <= w->gaps[i - 1].grant) return "missing grants are not in their order";
    for (uint32_t s = 0; s < w->options.num_slots; s++)
      if (w->slots[s].chunk == gap->grant) return "I9: a grant is missing that a slot has";
    num_due += gap->is_due;
  }
  return num_due == w->num_due_gaps ? NULL : "the count of grants to be asked about is wrong";
}

const char *sml_worker_find_violation(const struct sml_worker *w) {
  uint32_t num_outstanding = 0;
  const char *problem = find_queue_violation(w, &w->updates, true);
  if (problem == NULL) problem = find_queue_violation(w, &w->probes, false);
  if (problem == NULL) problem = find_fresh_violation(w);
  if (problem == NULL) problem = find_window_violation(w);
  if (problem == NULL) problem = find_level_violation(w);
  if (problem == NULL) problem = find_waiting_violation(w);
  if (problem == NULL) problem = find_operation_violation(w);
  if (problem == NULL) problem = find_gap_violation(w);
  if (problem != NULL) return problem;
  for (uint32_t s = 0; s < w->options.num_slots; s++) num_outstanding += w->slots[s].state == OUTSTANDING;
  if (num_outstanding != w->view.num_outstanding) return "the count of outstanding slots is wrong";
  for (uint32_t s = 0; s < w->options.num_slots && problem == NULL; s++) problem = find_slot_violation(w, s);
  return problem != NULL ? problem : find_chunk_violation(w);
}
