/* SPDX-License-Identifier: Apache-2.0
 * How long an aggregator's engine lets updates gather, so that results leave in long bursts: a segmented send costs by
 * the burst more than by the byte. Only in the middle of much work, where what comes next is not what somebody waits
 * for alone: a part of the time that a window of the job takes, which the rest of the window bridges. Pure; one for
 * each job of a lane. */
#ifndef SML_ENGINE_BULK_H
#define SML_ENGINE_BULK_H

#include "base/base.h"

struct sml_bulk { /* zeroed: nothing was seen yet */
  uint32_t num_open;       /* chunks that some have contributed to, but not all */
  uint32_t pass_results;   /* completed in this pass */
  uint32_t window_results; /* in the window under way: as many as the job has slots */
  uint32_t num_windows;    /* since chunks were open all the time */
  uint64_t window_from_ns, window_ns; /* of the last whole one */
};

static inline void sml_bulk_note_open(struct sml_bulk *bulk) { bulk->num_open++; }
/* was_open: others had contributed before. */
static inline void sml_bulk_note_result(struct sml_bulk *bulk, bool was_open) {
  bulk->num_open -= was_open;
  bulk->pass_results++;
}
/* After a pass with packets of the job. 0: the next frame is to be waited for. */
uint64_t sml_bulk_end_pass(struct sml_bulk *bulk, uint32_t num_slots, uint64_t now_ns);

#endif
