/* SPDX-License-Identifier: Apache-2.0
 * Counts bursts of repeats that brought nothing. A queue or a policer that is shorter than a segmented send drops all
 * of it, and every retransmission with it. So some bursts of repeats without a sum leave as single datagrams. */
#ifndef SML_ENGINE_FUTILE_H
#define SML_ENGINE_FUTILE_H

#include "base/base.h"

/* Probes and data are counted separately. With one counter, probe and data bursts that alternate could split only the
 * probes, every time. */
struct sml_futile {
  uint32_t num_questions, num_data; /* bursts without a sum; both are set to 0 with each */
};

/* Counts a burst of repeats. True: it shall go apart, as one in four without a sum does: datagrams by themselves are
 * expensive, and what is overloaded may repeat much. A single frame is one anyway. */
static inline bool sml_is_futile(uint32_t *num_bursts, uint32_t num_frames) {
  return num_frames > 1 && ++*num_bursts % 4 == 0;
}

#endif
