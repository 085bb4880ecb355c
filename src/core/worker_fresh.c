/* SPDX-License-Identifier: Apache-2.0
 * Chunks that became ready although one behind them in the stream was ready before: a heap, the first chunk on top.
 * They come of exponents that are back late, and of results that were lost; without either everything is in order. */
#include "core/worker_internal.h"

static bool is_before(const struct sml_worker *w, uint32_t s, uint32_t other) {
  return w->slots[s].chunk < w->slots[other].chunk;
}

void sml_worker_add_early(struct sml_worker *w, uint32_t s) {
  uint32_t i = w->num_early++;
  SML_ASSERT(i < w->options.num_slots);
  for (; i > 0 && is_before(w, s, w->early[(i - 1) / 2]); i = (i - 1) / 2) w->early[i] = w->early[(i - 1) / 2];
  w->early[i] = s;
}

void sml_worker_take_early(struct sml_worker *w) {
  const uint32_t last = w->early[--w->num_early], n = w->num_early;
  uint32_t i = 0;
  for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
    if (child + 1 < n && is_before(w, w->early[child + 1], w->early[child])) child++;
    if (!is_before(w, w->early[child], last)) break;
    w->early[i] = w->early[child];
  }
  w->early[i] = last;
}
