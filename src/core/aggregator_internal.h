/* SPDX-License-Identifier: Apache-2.0
 * The aggregator's state. aggregator.c and aggregator_solicit.c change it; test_aggregator_invariants.c checks that it
 * is sound. */
#pragma once

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

/* The chunk that a slot holds, and which ranks are suspected to have lost an update for it (aggregator_solicit.c). */
struct live {
  uint32_t chunk;
  uint32_t asked_at; /* the cursor when ranks were asked last: chunks granted from there on overtake the answer */
  uint64_t asked_ns; /* when that was */
  uint32_t num_asked; /* how often ranks were asked since the slot has held the chunk */
  uint64_t suspected_ns; /* since when there is a suspect; 0: since the last pass */
  uint32_t next;     /* in the list of troubled slots */
  bool is_troubled;
};

/* How far a rank is, as its packets show. While its packets come in the order of the chunks, next is latest + 1. */
struct progress {
  uint32_t latest; /* the latest chunk that it contributed to */
  uint32_t next;   /* the first chunk that has not been checked for this rank */
  uint32_t run;    /* from here to the latest, chunks came in order: there is nothing to check */
  uint32_t left_next, left_end; /* chunks that it left out at once, to be checked when it comes back to them */
  uint64_t answer_ns; /* roughly how long its answers to questions take */
  uint32_t budget;    /* of questions to it */
};

/* One way: how far a rank is with data of sums. All are positions of the window: behind the latest that came; behind
 * those that came before the last mark, and before the one before; the first that has not been checked. The same of
 * fences: the last that it contributed to. */
struct sum_progress {
  uint64_t latest, marked, ripe, checked;
  uint64_t fence, marked_fence, ripe_fence;
};

/* The budget of questions to a rank is counted in its contributions: what a question costs; what a repeat earns that
 * was needed (so the question was needed, and others may be); and the most that it may hold. */
#define SML_UNASKED_COSTS 4u
#define SML_REPEAT_EARNS (3 * SML_UNASKED_COSTS)
#define SML_MOST_UNASKED (64 * SML_UNASKED_COSTS)

struct sml_aggregator {
  struct sml_aggregator_options options;
  uint32_t cursor; /* next chunk to grant */
  uint32_t num_departed;
  uint32_t seen_words; /* words a cell */
  size_t value_stride_bytes;
  struct cell *cells;        /* [2 * all slots]: slot * 2 + version */
  uint64_t *seen;            /* [2 * all slots][seen_words]; I3 */
  uint64_t *departed;        /* [seen_words] */
  uint8_t *values;           /* [2 * all slots][value_stride_bytes] */
  uint64_t *positions;       /* [2][num_contributors] one way: of copies, of sums: behind the latest update of a rank */
  uint64_t passed[2];        /* likewise: behind the last fence that is complete */
  struct sum_progress *sums; /* [num_contributors] one way (aggregator_lost.c) */
  uint64_t marked_ns;
  uint64_t common; /* what at least three ranks, or all, have sent later data than */
  uint32_t sum_threshold, num_needed, lost_rank; /* the last: whom sml_aggregator_next_lost looks at */
  struct live *live;         /* [num_slots] */
  struct progress *progress; /* [world_size] */
  uint64_t *suspects;        /* [num_slots][2][seen_words]: ranks to ask; ranks that were asked and have not answered */
  uint64_t *due;             /* [seen_words] scratch */
  uint16_t *holders;         /* [num_holders], a power of two: the slot that was granted a chunk */
  uint32_t num_holders;
  uint32_t threshold; /* how many chunks of a rank must have overtaken one that counts as lost */
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
  return a->options.num_slots * (a->options.is_one_way ? SML_ALL_WINDOWS : 1);
}

static inline uint64_t *sml_aggregator_suspects(const struct sml_aggregator *a, uint32_t slot) {
  return a->suspects + (size_t)slot * 2 * a->seen_words;
}

void sml_aggregator_note_asking(struct sml_aggregator *a, uint32_t slot, uint32_t chunk, uint32_t rank);
void sml_aggregator_solicit_init(struct sml_aggregator *a);
void sml_aggregator_note_grant(struct sml_aggregator *a, uint32_t slot, uint32_t chunk);
void sml_aggregator_look_for_gap(struct sml_aggregator *a, uint32_t rank, uint32_t chunk);
void sml_aggregator_note_needless(struct sml_aggregator *a);

/* ---- aggregator_lost.c ---- */
void sml_aggregator_begin_lost(struct sml_aggregator *a);
/* The rank contributed data to a sum for its owner, not as a repeat. */
void sml_aggregator_note_sum(struct sml_aggregator *a, uint32_t rank, uint64_t position);
/* The rank contributed to a fence of that window. */
void sml_aggregator_note_fence(struct sml_aggregator *a, uint32_t rank, uint64_t position);
/* A repeat that was needed came to a one-way window. */
void sml_aggregator_note_repeat(struct sml_aggregator *a);

/* What contributions pay for questions to the rank. */
static inline void sml_aggregator_earn(struct progress *p, bool is_repeat) {
  p->budget = sml_min_u32(p->budget + (is_repeat ? SML_REPEAT_EARNS : 1), SML_MOST_UNASKED);
}

/* The rank has contributed to the chunk that the slot holds. A repeat says nothing about the order. */
static inline void sml_aggregator_note_update(struct sml_aggregator *a, uint32_t rank, uint32_t slot, bool is_repeat) {
  struct progress *p = &a->progress[rank];
  const uint32_t chunk = a->live[slot].chunk;
  sml_aggregator_earn(p, is_repeat);
  if (is_repeat) return;
  if (chunk == p->next && chunk == p->latest + 1) p->latest = p->next++;
  else sml_aggregator_look_for_gap(a, rank, chunk);
}

/* The cell whose result carried this grant, if it is still stored; else UINT32_MAX. */
uint32_t sml_aggregator_find_grant(const struct sml_aggregator *a, uint32_t grant);
