/* SPDX-License-Identifier: Apache-2.0
 * The queues of slots that are to be sent, and the lists of slots that were. They are inline because worker.c and
 * worker_questions.c use them for each chunk. */
#pragma once

#include "core/worker_internal.h"

static inline void enqueue(struct queue *q, uint32_t num_slots, uint32_t slot) {
  SML_ASSERT(q->count < num_slots);
  q->slots[(q->head + q->count++) & (num_slots - 1)] = slot;
}

static inline void dequeue(struct queue *q, uint32_t num_slots) {
  q->head = (q->head + 1) & (num_slots - 1);
  q->count--;
}

static inline void want_update(struct sml_worker *w, uint32_t s) {
  w->slots[s].wants_update = true;
  if (w->slots[s].is_in_updates) return;
  w->slots[s].is_in_updates = true;
  enqueue(&w->updates, w->options.num_slots, s);
}

static inline void want_probe(struct sml_worker *w, uint32_t s) {
  w->slots[s].wants_probe = true;
  if (w->slots[s].is_in_probes) return;
  w->slots[s].is_in_probes = true;
  enqueue(&w->probes, w->options.num_slots, s);
}

/* ---- OUTSTANDING slots: each in the list of its level, unless it wants a probe ---- */

static inline void list_append(struct sml_worker *w, uint32_t s, uint32_t level, uint64_t now_ns) {
  SML_ASSERT(level < SML_RTO_LEVELS);
  struct list *l = &w->levels[level];
  struct slot *slot = &w->slots[s];
  slot->level = (uint8_t)level;
  slot->sent_ns = now_ns;
  slot->prev = l->tail;
  slot->next = NONE;
  if (l->tail == NONE) l->head = s;
  else w->slots[l->tail].next = s;
  l->tail = s;
}

static inline void list_remove(struct sml_worker *w, uint32_t s) {
  struct slot *slot = &w->slots[s];
  struct list *l = &w->levels[slot->level];
  if (slot->prev == NONE) l->head = slot->next;
  else w->slots[slot->prev].next = slot->next;
  if (slot->next == NONE) l->tail = slot->prev;
  else w->slots[slot->next].prev = slot->prev;
}
