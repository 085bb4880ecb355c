/* SPDX-License-Identifier: Apache-2.0
 * Repeats that nothing came of. A queue or a policer shorter than a segmented send drops it whole, and so each time
 * that it is repeated as one: after some bursts of repeats without a sum one leaves as plain datagrams. */
#ifndef SML_ENGINE_FUTILE_H
#define SML_ENGINE_FUTILE_H

#include "base/base.h"

/* By what the bursts consist of: else, where a question and what it asks for take turns, it could always be the
 * question's turn. */
struct sml_futile {
  uint32_t num_questions, num_data; /* bursts without a sum; both are set to 0 with each */
};

/* Counts a burst of repeats. True: it shall go apart, as one in four without a sum does: datagrams by themselves are
 * expensive, and what is overloaded may repeat much. A single frame is one anyway. */
static inline bool sml_is_futile(uint32_t *num_bursts, uint32_t num_frames) {
  return num_frames > 1 && ++*num_bursts % 4 == 0;
}

#endif
