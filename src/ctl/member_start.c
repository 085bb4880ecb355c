/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/member_start.h"

const char *sml_member_combine_starts(const struct sml_ctl_start *const starts[], uint32_t num_shards,
                                      struct sml_ctl_start *start) {
  *start = *starts[0];
  for (uint32_t s = 1; s < num_shards; s++) {
    const struct sml_ctl_start *other = starts[s];
    if (other->is_one_host != start->is_one_host || other->num_ranks != start->num_ranks ||
        memcmp(other->contributors, start->contributors, sizeof start->contributors) != 0)
      return "the aggregators disagree on which ranks are on one host";
    start->chunk_bytes = sml_min_u32(start->chunk_bytes, other->chunk_bytes);
    start->first_phase = sml_max_u32(start->first_phase, other->first_phase);
  }
  return NULL;
}
