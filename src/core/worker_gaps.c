/* SPDX-License-Identifier: Apache-2.0
 * Results that were lost on the way to this worker, by the grants that came with them: the aggregator draws grants in
 * order and sends results in that order, so one that is missing while several later ones are here was lost. The worker
 * asks for the result of that grant: the answer is one round trip away, and nobody is asked in vain. */
#include "core/worker_internal.h"

#define FIRST_THRESHOLD 3u
#define MAX_THRESHOLD 128u
#define REORDER_NS (100 * SML_NS_PER_US) /* and so long at least: paths that reorder by less cost nothing */

void sml_worker_gaps_init(struct sml_worker *w) {
  w->next_grant = (uint64_t)w->options.first_chunk + w->options.num_slots;
  w->gap_threshold = FIRST_THRESHOLD;
}

static void remove_gap(struct sml_worker *w, uint32_t i) {
  w->num_due_gaps -= w->gaps[i].is_due;
  w->num_gaps--;
  memmove(&w->gaps[i], &w->gaps[i + 1], (w->num_gaps - i) * sizeof w->gaps[0]);
}

static void close_gap(struct sml_worker *w, uint64_t grant, bool is_repeat) {
  for (uint32_t i = 0; i < w->num_gaps; i++) {
    if (w->gaps[i].grant != grant) continue;
    /* Late and not lost: packets are overtaken by more than was thought. */
    if (!is_repeat && w->gaps[i].asked_ns != 0) {
      const uint32_t most = sml_min_u32(w->options.num_slots / 2, MAX_THRESHOLD);
      w->gap_threshold = sml_max_u32(FIRST_THRESHOLD, sml_min_u32(2 * w->gap_threshold, most));
    }
    remove_gap(w, i);
    return;
  }
}

void sml_worker_note_grant(struct sml_worker *w, uint64_t grant, bool is_repeat, uint64_t now_ns) {
  const uint32_t n = w->options.num_slots;
  if (!sml_worker_has_crowd(w)) return;
  if (grant < w->next_grant) {
    close_gap(w, grant, is_repeat);
    return;
  }
  /* Honest grants that are missing belong to slots of this worker that wait for them. */
  if (grant - w->next_grant <= n - w->num_gaps) {
    for (uint64_t g = w->next_grant; g < grant; g++)
      w->gaps[w->num_gaps++] =
          (struct gap){.grant = g, .noticed_ns = now_ns, .order = w->last_order - w->view.num_outstanding};
  }
  w->next_grant = grant + 1;
}

/* A gap is due when enough grants are beyond it; again, when a chunk that was sent after the question completed. */
void sml_worker_find_due_gaps(struct sml_worker *w, uint64_t now_ns) {
  for (uint32_t i = 0; i < w->num_gaps; i++) {
    struct gap *gap = &w->gaps[i];
    if (gap->is_due) continue;
    const bool is_overtaken =
        w->next_grant - gap->grant > w->gap_threshold && now_ns - gap->noticed_ns >= REORDER_NS;
    gap->is_due = gap->asked_ns == 0 ? is_overtaken : gap->asked_ns + w->rto.srtt_ns / 2 < w->latest_acked_ns;
    w->num_due_gaps += gap->is_due;
  }
}

uint64_t sml_worker_take_due_gap(struct sml_worker *w, uint64_t now_ns) {
  uint32_t i = 0;
  while (!w->gaps[i].is_due) i++;
  w->gaps[i].is_due = false;
  w->gaps[i].asked_ns = now_ns;
  w->num_due_gaps--;
  sml_congestion_on_loss(&w->congestion, &w->rto, w->gaps[i].order, w->last_order, now_ns);
  return w->gaps[i].grant;
}
