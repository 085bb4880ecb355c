/* SPDX-License-Identifier: Apache-2.0
 * The aggregator's state, for aggregator.c, which changes it, and test_aggregator_invariants.c, which looks whether it
 * is sound. */
#ifndef SML_CORE_AGGREGATOR_INTERNAL_H
#define SML_CORE_AGGREGATOR_INTERNAL_H

#include "core/aggregator.h"

/* One version of a slot. phase 0: never used. */
struct cell {
  uint32_t phase;
  uint32_t tag;
  uint32_t grant; /* drawn once, at completion; in a one-way window the owner */
  uint32_t count; /* I4: the number of seen bits */
  uint16_t first_rank;
  uint16_t payload_bytes;
  uint8_t wire, reducer;
  uint16_t needed; /* sml_aggregator_needed of its chunk */
};

/* The chunk that a slot holds, and who is suspected to have lost his update for it (aggregator_solicit.c). */
struct live {
  uint32_t chunk;
  uint32_t asked_at; /* the cursor when ranks were asked last: what is granted from there on overtakes the answer */
  uint64_t asked_ns; /* when that was */
  uint32_t num_asked; /* how often, since the slot holds the chunk */
  uint64_t suspected_ns; /* when that began; 0: it was not looked at since */
  uint32_t next;     /* in the list of troubled slots */
  bool is_troubled;
};

/* How far a rank is, as its packets show. While they come in the order of the chunks, next is latest + 1. */
struct progress {
  uint32_t latest; /* the latest chunk that it contributed to */
  uint32_t next;   /* the first that has not been looked at for it */
  uint32_t run;    /* from here to the latest they came in order: there is nothing to look at */
  uint32_t left_next, left_end; /* many that it left out at once, which are looked at when it comes back to them */
  uint64_t answer_ns; /* how long it takes for what it was asked for to come, about */
  uint32_t budget;    /* of questions to it */
};

/* The budget of questions to a rank is counted in its contributions: what a question costs, what a repeat earns that
 * was needed (so was the question, and so may be others), and how much there may be. */
#define SML_UNASKED_COSTS 4u
#define SML_REPEAT_EARNS (3 * SML_UNASKED_COSTS)
#define SML_MOST_UNASKED (64 * SML_UNASKED_COSTS)

struct sml_aggregator {
  struct sml_aggregator_options options;
  uint32_t cursor; /* next chunk to grant */
  uint32_t num_departed;
  uint32_t seen_words; /* words a cell */
  size_t value_stride_bytes;
  struct cell *cells; /* [2 * all slots]: slot * 2 + version */
  uint64_t *seen;     /* [2 * all slots][seen_words]; I3 */
  uint64_t *departed; /* [seen_words] */
  uint8_t *values;    /* [2 * all slots][value_stride_bytes] */
  struct live *live;  /* [num_slots] */
  struct progress *progress; /* [world_size] */
  uint64_t *suspects;        /* [num_slots][2][seen_words]: to be asked; asked, and not heard of since */
  uint64_t *due;             /* [seen_words] scratch */
  uint16_t *holders;         /* [num_holders], a power of two: the slot that was granted a chunk */
  uint32_t num_holders;
  uint32_t threshold; /* chunks of a rank that must have overtaken one for that to count as lost */
  uint64_t now_ns;
  uint32_t first_troubled, last_troubled, num_troubled, num_to_look_at;
};

static inline uint64_t *sml_aggregator_seen(const struct sml_aggregator *a, uint32_t cell) {
  return a->seen + (size_t)cell * a->seen_words;
}

/* How many contributors a chunk has. */
static inline uint32_t sml_aggregator_needed(const struct sml_aggregator *a, uint8_t reducer) {
  return reducer == SML_REDUCE_COPY ? 1 : a->options.num_contributors - (reducer == SML_REDUCE_TO_OWNER);
}

static inline bool sml_aggregator_is_complete(const struct cell *c) {
  return c->count == c->needed;
}

/* Slots, the one-way window's included. */
static inline uint32_t sml_aggregator_all_slots(const struct sml_aggregator *a) {
  return a->options.num_slots + a->options.num_one_way_slots;
}

static inline uint64_t *sml_aggregator_suspects(const struct sml_aggregator *a, uint32_t slot) {
  return a->suspects + (size_t)slot * 2 * a->seen_words;
}

void sml_aggregator_note_asking(struct sml_aggregator *a, uint32_t slot, uint32_t chunk, uint32_t rank);
void sml_aggregator_solicit_init(struct sml_aggregator *a);
void sml_aggregator_note_grant(struct sml_aggregator *a, uint32_t slot, uint32_t chunk);
void sml_aggregator_look_for_gap(struct sml_aggregator *a, uint32_t rank, uint32_t chunk);
void sml_aggregator_note_needless(struct sml_aggregator *a);

/* The rank's first contribution to the chunk that the slot holds; repeats say nothing. */
static inline void sml_aggregator_note_update(struct sml_aggregator *a, uint32_t rank, uint32_t slot, bool is_repeat) {
  struct progress *p = &a->progress[rank];
  const uint32_t chunk = a->live[slot].chunk;
  p->budget = sml_min_u32(p->budget + (is_repeat ? SML_REPEAT_EARNS : 1), SML_MOST_UNASKED);
  if (is_repeat) return;
  if (chunk == p->next && chunk == p->latest + 1) p->latest = p->next++;
  else sml_aggregator_look_for_gap(a, rank, chunk);
}

/* The cell whose result came with this grant, if it is still stored: else UINT32_MAX. */
uint32_t sml_aggregator_find_grant(const struct sml_aggregator *a, uint32_t grant);

#endif
