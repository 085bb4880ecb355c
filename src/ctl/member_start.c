/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/member_start.h"

#include "ctl/contributors.h"

/* ---- what was agreed ---- */

bool sml_member_is_lead(const struct sml_ctl_start *start, uint32_t rank) {
  return sml_contributor_lead(start, sml_contributor_of(start, rank)) == rank;
}

/* The table is that of this job, and lets nobody contribute for a rank that has not asked for it, nor add up in memory
 * that this rank has not offered. */
static bool has_agreed_contributors(const struct sml_ctl_join *join, const struct sml_ctl_start *start) {
  if (start->is_one_host && (join->host[0] | join->host[1]) == 0) return false;
  if (start->num_ranks == 0) return true;
  if (start->num_ranks != join->world_size) return false;
  return join->is_combining || sml_contributor_ranks(start, start->contributors[join->rank], NULL, 0) == 1;
}

/* Who does not send has no path that would be too small, and hears no results. */
static bool has_agreed_path(const struct sml_member_offer *offer, const struct sml_ctl_start *start) {
  if (!sml_member_is_lead(start, offer->join->rank)) return true;
  if (start->is_multicast && !offer->hears_group) return false;
  return start->chunk_bytes + offer->overhead_bytes <= offer->datagram_bytes;
}

/* Where one-way windows are, if at all. */
static bool may_go_one_way(const struct sml_ctl_join *join, const struct sml_ctl_start *start) {
  const uint32_t others = SML_FEATURE_CHECK | SML_FEATURE_RETRY | SML_FEATURE_SWITCH;
  return (join->features & SML_FEATURE_ONE_WAY) != 0 && (start->features & others) == 0 && start->num_ranks == 0 &&
         !start->is_one_host && start->num_slots >= SML_CTL_LEAST_ONE_WAY_SLOTS;
}

/* Switch format is the aggregator's choice, where the job can be in it. */
static bool has_agreed_features(const struct sml_member_offer *offer, const struct sml_ctl_start *start) {
  const struct sml_ctl_join *join = offer->join;
  if ((start->features ^ join->features) & ~SML_FEATURES_OF_RANKS) return false;
  if ((start->features & SML_FEATURE_ONE_WAY) != 0 && !may_go_one_way(join, start)) return false;
  if ((start->features & SML_FEATURE_SWITCH) == 0) return true;
  return (join->features & (SML_FEATURE_SWITCH | SML_FEATURE_RETRY)) == SML_FEATURE_SWITCH && !offer->is_keyed &&
         join->num_shards <= 1 && !start->is_multicast &&
         sml_contributors_count(start, join->world_size) <= SML_CTL_SWITCH_MAX_CONTRIBUTORS;
}

bool sml_member_has_agreed(const struct sml_member_offer *offer, const struct sml_ctl_start *start) {
  const uint32_t num_asked = offer->join->num_slots;
  return has_agreed_contributors(offer->join, start) && has_agreed_path(offer, start) &&
         start->num_lanes <= offer->num_lanes && (num_asked == 0 || start->num_slots <= num_asked) &&
         has_agreed_features(offer, start);
}

bool sml_member_is_same_shape(const struct sml_ctl_start *a, const struct sml_ctl_start *b) {
  return a->num_lanes == b->num_lanes && sml_ctl_all_slots(a) == sml_ctl_all_slots(b) && a->num_slots == b->num_slots &&
         a->chunk_bytes == b->chunk_bytes && a->is_multicast == b->is_multicast && a->num_ranks == b->num_ranks &&
         memcmp(a->contributors, b->contributors, sizeof a->contributors) == 0;
}

/* ---- several aggregators ---- */

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
    start->features &= other->features | ~SML_FEATURE_ONE_WAY; /* all lanes or none */
  }
  return NULL;
}
