/* SPDX-License-Identifier: Apache-2.0
 * Finds lost updates in the window of sums for owners, by what came after them (PROTOCOL.md rule R220). There a rank
 * sends its exponents and data in the order of the stream, so what it left out is lost. Only chunks of its own are left
 * out by right. A fence waits for what has to come first, so it has no place in that order. But all that stands before
 * it has been sent.
 *
 * Copies show nothing: of a chunk that did not come the aggregator does not know whose it is. There receivers ask. */
#include "core/aggregator_internal.h"

#define REORDER_NS (100 * SML_NS_PER_US) /* paths that reorder by less, or by fewer chunks, cost nothing */
#define FIRST_THRESHOLD 3u
#define MAX_THRESHOLD 128u
#define NEEDED_REPEATS 4u /* halve the threshold, which updates that were only late double */
#define WITNESSES 3u      /* see find_lost() */

/* What so many ranks are beyond, all if there are fewer. */
static uint64_t find_common(const struct sml_aggregator *a) {
  uint64_t top[WITNESSES] = {0};
  for (uint32_t r = 0; r < a->options.num_contributors; r++) {
    uint64_t ripe = a->sums[r].ripe;
    for (uint32_t i = 0; i < WITNESSES; i++) {
      const uint64_t other = top[i];
      top[i] = sml_max_u64(other, ripe);
      ripe = other < ripe ? other : ripe;
    }
  }
  return top[sml_min_u32(a->options.num_contributors, WITNESSES) - 1];
}

/* What came before the last mark has had the time that packets may take to overtake each other. */
void sml_aggregator_begin_lost(struct sml_aggregator *a) {
  if (a->now_ns - a->marked_ns < REORDER_NS) return;
  a->marked_ns = a->now_ns;
  for (uint32_t r = 0; r < a->options.num_contributors; r++) {
    struct sum_progress *p = &a->sums[r];
    p->ripe = p->marked;
    p->marked = p->latest;
    p->ripe_fence = p->marked_fence;
    p->marked_fence = p->fence;
  }
  a->common = find_common(a);
}

void sml_aggregator_note_sum(struct sml_aggregator *a, uint32_t rank, uint64_t position) {
  struct sum_progress *p = &a->sums[rank];
  p->latest = sml_max_u64(p->latest, position + 1);
  /* It was late, not lost: more packets overtake one than was thought. */
  if (position < p->checked) a->sum_threshold = sml_min_u32(2 * a->sum_threshold, MAX_THRESHOLD);
}

void sml_aggregator_note_fence(struct sml_aggregator *a, uint32_t rank, uint64_t position) {
  SML_ASSERT(rank < a->options.num_contributors);
  a->sums[rank].fence = sml_max_u64(a->sums[rank].fence, position);
}

void sml_aggregator_note_repeat(struct sml_aggregator *a) {
  if (++a->num_needed % NEEDED_REPEATS == 0) a->sum_threshold = sml_max_u32(FIRST_THRESHOLD, a->sum_threshold / 2);
}

/* The cell of a position, if it shows that the rank's update is lost; else NULL. *is_known_out: whether the position
 * has nothing more to say. If nobody has contributed to it, somebody else may still do so. But if this rank and two
 * more are beyond it, at least one of which would have, it is a fence, or nothing is known about it. */
static struct cell *find_lost(const struct sml_aggregator *a, uint32_t rank, uint64_t position, uint32_t *cell_out,
                              bool *is_known_out) {
  const uint32_t num_slots = sml_window_slots(SML_REDUCE_TO_OWNER, a->options.num_slots);
  const uint32_t phase = a->options.first_phase + (uint32_t)(position / num_slots);
  const uint32_t slot = sml_window_base(SML_REDUCE_TO_OWNER, a->options.num_slots) + (uint32_t)(position % num_slots);
  *cell_out = 2 * slot + (phase & 1);
  struct cell *c = &a->cells[*cell_out];
  *is_known_out = c->phase >= phase || position < a->common;
  if (c->phase != phase || sml_aggregator_is_complete(c)) return NULL;
  if (sml_bit_test(sml_aggregator_seen(a, *cell_out), rank)) return NULL;
  if (c->reducer == SML_REDUCE_MAX ? c->grant == SML_FENCE : c->grant == rank) return NULL;
  return c;
}

bool sml_aggregator_next_lost(struct sml_aggregator *a, struct sml_header *h) {
  for (; a->lost_rank < a->options.num_contributors; a->lost_rank++) {
    struct sum_progress *p = &a->sums[a->lost_rank];
    /* Whoever sends to a position knows that all is here a window before it (R207). */
    const uint64_t end = sml_max_u64(p->ripe, p->ripe_fence);
    const uint32_t window = sml_window_positions(SML_REDUCE_TO_OWNER, a->options.num_slots);
    if (end > window) p->checked = sml_max_u64(p->checked, end - window);
    while (p->checked + a->sum_threshold < p->ripe || p->checked < p->ripe_fence) {
      uint32_t cell;
      bool is_known;
      const struct cell *c = find_lost(a, a->lost_rank, p->checked, &cell, &is_known);
      if (!is_known) break;
      p->checked++;
      SML_ASSERT(p->checked <= sml_max_u64(p->latest, p->fence));
      uint32_t *budget = &a->progress[a->lost_rank].budget;
      if (c == NULL || *budget < SML_UNASKED_COSTS) continue;
      *budget -= SML_UNASKED_COSTS;
      *h = (struct sml_header){.type = SML_PACKET_PENDING,
                               .wire = c->wire,
                               .reducer = c->reducer,
                               .rank = (uint16_t)a->lost_rank,
                               .slot = (uint16_t)(a->options.slot_base + cell / 2),
                               .phase = c->phase,
                               .tag = c->tag,
                               .chunk = c->grant};
      return true;
    }
  }
  a->lost_rank = 0;
  return false;
}
