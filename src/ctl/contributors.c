/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/contributors.h"

#include <stdio.h>

uint32_t sml_contributors_count(const struct sml_ctl_start *start, uint32_t world_size) {
  if (start->num_ranks == 0) return world_size;
  uint32_t count = 0;
  for (uint32_t rank = 0; rank < start->num_ranks; rank++) count = sml_max_u32(count, start->contributors[rank] + 1u);
  return count;
}

uint32_t sml_contributor_of(const struct sml_ctl_start *start, uint32_t rank) {
  if (start->num_ranks == 0) return rank;
  SML_ASSERT(rank < start->num_ranks);
  return start->contributors[rank];
}

uint32_t sml_contributor_lead(const struct sml_ctl_start *start, uint32_t contributor) {
  if (start->num_ranks == 0) return contributor;
  uint32_t rank = contributor; /* as many ranks at least lie before it */
  while (rank < start->num_ranks && start->contributors[rank] != contributor) rank++;
  SML_ASSERT(rank < start->num_ranks);
  return rank;
}

uint32_t sml_contributor_ranks(const struct sml_ctl_start *start, uint32_t contributor, uint16_t *ranks_out,
                               uint32_t max_ranks) {
  uint32_t num_ranks = 0;
  if (start->num_ranks == 0 && max_ranks > 0) ranks_out[0] = (uint16_t)contributor;
  if (start->num_ranks == 0) return 1;
  for (uint32_t rank = contributor; rank < start->num_ranks; rank++) {
    if (start->contributors[rank] != contributor) continue;
    if (num_ranks < max_ranks) ranks_out[num_ranks] = (uint16_t)rank;
    num_ranks++;
  }
  return num_ranks;
}

/* snprintf at the end of a text; what does not fit is cut. */
#define APPEND(...)                                                                               \
  do {                                                                                            \
    if (used < room_bytes) used += (size_t)snprintf(text + used, room_bytes - used, __VA_ARGS__); \
  } while (0)

size_t sml_contributor_describe(const struct sml_ctl_start *start, uint32_t contributor, char *text,
                                size_t room_bytes) {
  const uint32_t lead = sml_contributor_lead(start, contributor);
  size_t used = 0;
  const bool is_lone = sml_contributor_ranks(start, contributor, NULL, 0) == 1;
  APPEND("rank%s %u", is_lone ? "" : "s", lead);
  uint32_t last = lead; /* of the run that is being written */
  bool is_run = false;
  for (uint32_t rank = lead + 1; rank < start->num_ranks; rank++) {
    if (start->contributors[rank] != contributor) continue;
    const bool is_next = rank == last + 1;
    if (!is_next && is_run) APPEND("-%u", last);
    if (!is_next) APPEND(", %u", rank);
    is_run = is_next;
    last = rank;
  }
  if (is_run) APPEND("-%u", last);
  if (!is_lone) APPEND(" on the host of rank %u", lead);
  return sml_min_u64(used, room_bytes - 1);
}

uint32_t sml_contributors_name(const struct sml_ctl_start *start, uint32_t world_size, const uint16_t *contributors,
                               uint32_t num_contributors, uint16_t ranks_out[SML_CTL_MAX_RANKS]) {
  const uint32_t end = sml_contributors_count(start, world_size);
  uint32_t total = 0, num_named = 0;
  for (uint32_t i = 0; i < num_contributors; i++)
    if (contributors[i] < end) total += sml_contributor_ranks(start, contributors[i], NULL, 0);
  const uint32_t max_each = total <= SML_CTL_MAX_RANKS ? SML_CTL_MAX_RANKS : 1; /* either way all fit */
  for (uint32_t i = 0; i < num_contributors && num_named < SML_CTL_MAX_RANKS; i++) {
    if (contributors[i] >= end) continue;
    num_named += sml_min_u32(max_each, sml_contributor_ranks(start, contributors[i], ranks_out + num_named, max_each));
  }
  return num_named;
}
