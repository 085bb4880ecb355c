/* SPDX-License-Identifier: Apache-2.0
 * Repeats that nothing came of. A queue or a policer shorter than a segmented send drops it whole, and so each time
 * that it is repeated as one: after some bursts of repeats without a sum one leaves as plain datagrams. */
#ifndef SML_ENGINE_FUTILE_H
#define SML_ENGINE_FUTILE_H

#include "base/base.h"

/* Counts a burst of repeats; *num_futile is set to 0 with each sum. True: it shall go apart, as the fourth without a
 * sum does, and one in 16 after that: datagrams by themselves are dear, and what is overloaded repeats much. */
static inline bool sml_is_futile(uint32_t *num_futile) {
  return ++*num_futile % 16 == 4;
}

#endif
