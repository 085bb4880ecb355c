/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/bulk.h"

#define GATHER_SHARE 8u
#define GATHER_MIN_NS (50 * SML_NS_PER_US)
#define GATHER_MAX_NS (400 * SML_NS_PER_US)
#define MIN_WINDOWS 4u /* gathering delays an operation's last results: after so many windows that is little */
#define MIN_RESULTS 8u /* with fewer in a pass a rank is late, and the others wait for it */

uint64_t sml_bulk_end_pass(struct sml_bulk *b, uint32_t num_slots, uint64_t now_ns) {
  const uint32_t num_results = b->pass_results;
  b->pass_results = 0;
  if (b->num_open == 0) { /* nothing is open: perhaps an operation has ended */
    b->window_results = b->num_windows = 0;
    b->window_from_ns = now_ns;
    return 0;
  }
  b->window_results += num_results;
  if (b->window_results >= num_slots) {
    b->window_results = 0;
    b->window_ns = now_ns - b->window_from_ns;
    b->window_from_ns = now_ns;
    if (b->num_windows < MIN_WINDOWS) b->num_windows++;
  }
  if (b->num_windows < MIN_WINDOWS || num_results < MIN_RESULTS) return 0;
  const uint64_t time_ns = b->window_ns / GATHER_SHARE;
  return time_ns < GATHER_MIN_NS ? 0 : sml_min_u64(time_ns, GATHER_MAX_NS);
}
