/* SPDX-License-Identifier: Apache-2.0
 * Counts bursts of repeats that brought nothing. A queue or a policer that is shorter than a segmented send drops all
 * of it, and every retransmission with it. So some bursts of repeats without a sum leave as single datagrams. */
#pragma once

#include "base/base.h"

/* Probes and data are counted separately. With one counter, probe and data bursts that alternate could split only the
 * probes, every time. */
struct sml_futile {
  uint32_t num_questions, num_data; /* bursts since the last complete sum, which sets both to 0 */
};

/* Counts a burst of repeats. True: it shall leave as single datagrams. Only one in four without a sum does: single
 * datagrams are expensive, and an overloaded host may repeat much. A burst of one frame is one datagram anyway. */
static inline bool sml_is_futile(uint32_t *num_bursts, uint32_t num_frames) {
  return num_frames > 1 && ++*num_bursts % 4 == 0;
}
