/* SPDX-License-Identifier: Apache-2.0
 * Jobs in switch format: an aggregator that is a switch, or does as if, takes no others. */
#include "ctl/registry_internal.h"

const char *sml_registry_find_switch_conflict(struct sml_registry *r, const struct sml_ctl_join *j) {
  if (r->options.packet_lanes == 0) return NULL;
  if ((j->features & SML_FEATURE_SWITCH) == 0) {
    return sml_registry_text(r,
                             "the aggregator runs jobs in switch format only, which rank %u can't: its library is too "
                             "old, or a setting of it does not allow that",
                             j->rank);
  }
  if (j->key_name[0] != 0) return "the aggregator is a switch, which has no keys: name none";
  if ((j->features & SML_FEATURE_RETRY) != 0)
    return sml_registry_text(r, "rank %u has SWITCHML_RETRY on, which jobs of a switch can't have", j->rank);
  if ((j->features & SML_FEATURE_NARROW) != 0)
    return sml_registry_text(r, "rank %u wants narrow updates, which jobs of a switch can't have", j->rank);
  if (j->num_shards > 1) {
    return sml_registry_text(r, "rank %u names %u aggregators, but a switch must be the only one of a job", j->rank,
                             j->num_shards);
  }
  return NULL;
}

const char *sml_registry_choose_switch_chunk(struct sml_registry *r, struct sml_job_entry *job,
                                             const struct sml_conn *narrowest, uint32_t max_datagram_bytes,
                                             sml_status *status_out) {
  const uint32_t payload_bytes = 4 * r->options.packet_lanes;
  *status_out = SML_ERR_REFUSED;
  if (job->num_contributors > SML_CTL_SWITCH_MAX_CONTRIBUTORS) {
    return sml_registry_text(r, "the job has %u contributors, but a switch takes %u at most", job->num_contributors,
                             SML_CTL_SWITCH_MAX_CONTRIBUTORS);
  }
  job->features |= SML_FEATURE_SWITCH;
  job->chunk_bytes = payload_bytes - (job->features & SML_FEATURE_CHECK ? SML_CTL_CHECK_BYTES : 0);
  if (max_datagram_bytes >= SML_CTL_HEADER_BYTES + payload_bytes) return NULL;
  *status_out = SML_ERR_MTU;
  return sml_registry_text(r, "the path of rank %u (%s) carries datagrams of %u bytes only, the switch's have %u",
                           narrowest ? narrowest->rank : 0, narrowest ? narrowest->host : "the aggregator",
                           max_datagram_bytes, SML_CTL_HEADER_BYTES + payload_bytes);
}
