/* SPDX-License-Identifier: Apache-2.0
 * How long an aggregator's engine lets updates gather, so that results leave in long bursts: a segmented send costs
 * more by the burst than by the byte. It does so only in the middle of much work, when nobody waits for the next result
 * alone. The time is a part of what a window of the job takes; the rest of the window bridges it. Pure; one for each
 * job of a lane. */
#pragma once

#include "base/base.h"

struct sml_bulk { /* zeroed: nothing was seen yet */
  uint32_t num_open;       /* chunks to which some ranks have contributed, but not all */
  uint32_t pass_results;   /* chunks completed in this pass */
  uint32_t window_results; /* chunks completed in this window; a window is as many as the job has slots */
  uint32_t num_windows;    /* windows since a chunk has been open all the time */
  uint64_t window_from_ns, window_ns; /* when this window began; how long the last whole one took */
};

static inline void sml_bulk_note_open(struct sml_bulk *bulk) { bulk->num_open++; }
/* was_open: others had contributed before. */
static inline void sml_bulk_note_result(struct sml_bulk *bulk, bool was_open) {
  bulk->num_open -= was_open;
  bulk->pass_results++;
}
/* Call it after a pass with packets of the job. Returns how long to gather; 0: wait for the next frame. */
uint64_t sml_bulk_end_pass(struct sml_bulk *bulk, uint32_t num_slots, uint64_t now_ns);
