/* SPDX-License-Identifier: Apache-2.0
 * A recorder for each job of a writer (an engine, a control thread), so that a busy one does not push out what another
 * is to be asked about. They are made when the first job of a number starts, and stay: the next job of a number goes on
 * behind the last one. One writer; anybody may read. */
#pragma once

#include "trace/dump.h"

struct sml_recorder_set {
  struct sml_recorder_options options; /* of each */
  uint32_t num_numbers, max_used, num_used;
  _Atomic(struct sml_recorder *) *all; /* by number; NULL: not used yet */
};

/* At most max_used of them will be made. False: out of memory. */
bool sml_recorder_set_open(struct sml_recorder_set *set, const struct sml_recorder_options *options,
                           uint32_t num_numbers, uint32_t max_used);
void sml_recorder_set_close(struct sml_recorder_set *set);
/* The writer's: makes it, if there is room and memory. set may be NULL. */
void sml_recorder_set_use(struct sml_recorder_set *set, uint16_t number);
/* NULL: there is none. */
static inline struct sml_recorder *sml_recorder_set_find(const struct sml_recorder_set *set, uint16_t number) {
  if (number >= set->num_numbers) return NULL;
  return atomic_load_explicit(&set->all[number], memory_order_acquire); /* pairs with sml_recorder_set_use */
}
static inline struct sml_recorder *sml_recorder_set_pick(const struct sml_recorder_set *set, uint16_t number,
                                                         struct sml_recorder *otherwise) {
  struct sml_recorder *found = set != NULL ? sml_recorder_set_find(set, number) : NULL;
  return found != NULL ? found : otherwise;
}
/* Adds all that were used, as "WHOSE job NUMBER". False: out of memory, or too many. */
bool sml_recorder_set_add(const struct sml_recorder_set *set, uint32_t lane, const char *whose,
                          struct sml_trace_dump *dump);
