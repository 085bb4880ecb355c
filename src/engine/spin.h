/* SPDX-License-Identifier: Apache-2.0
 * Decides whether a thread that has just taken frames looks for more at once, or sleeps until there are some. For a
 * small or middle operation, to wake it costs its peers more than the operation itself. In the middle of a long one
 * many frames come at once. Then sleeping is cheapest, and looking takes a processor from those who send. */
#pragma once

#include "base/base.h"

#define SML_SPIN_LIGHT_FRAMES 12u                    /* a pass with more than this brought much data */
#define SML_SPIN_MIDDLE_NS (5 * SML_NS_PER_MS)       /* much data for longer than this is bulk */
#define SML_SPIN_BULK_NS (20 * SML_NS_PER_MS)        /* so is much data that comes this soon after bulk */

struct sml_spin {
  uint64_t seen_frames, until_ns;
  uint64_t heavy_from_ns, light_from_ns; /* since when passes bring much, and little; light 0: the last was not light */
  uint64_t bulk_until_ns;
};

/* Call it after a pass. num_frames: of all passes so far. True: look again at once. */
static inline bool sml_spin_after_pass(struct sml_spin *s, uint64_t num_frames, uint64_t spin_ns, uint64_t now_ns) {
  const uint64_t num_new = num_frames - s->seen_frames;
  s->seen_frames = num_frames;
  if (num_new > SML_SPIN_LIGHT_FRAMES) {
    if (s->heavy_from_ns == 0 || (s->light_from_ns != 0 && now_ns - s->light_from_ns > spin_ns))
      s->heavy_from_ns = now_ns;
    s->light_from_ns = 0;
    if (now_ns < s->bulk_until_ns || now_ns - s->heavy_from_ns > SML_SPIN_MIDDLE_NS)
      s->bulk_until_ns = now_ns + SML_SPIN_BULK_NS;
  } else if (s->light_from_ns == 0) {
    s->light_from_ns = now_ns;
  }
  if (num_new > 0) s->until_ns = now_ns < s->bulk_until_ns ? 0 : now_ns + spin_ns;
  return now_ns < s->until_ns;
}
