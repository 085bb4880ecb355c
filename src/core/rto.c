/* SPDX-License-Identifier: Apache-2.0 */
#include "core/rto.h"

void sml_rto_init(struct sml_rto *rto, uint64_t path_ns) {
  path_ns = sml_min_u64(path_ns, SML_RTO_LONGEST_PATH_NS);
  *rto = (struct sml_rto){.path_ns = path_ns,
                          .rto_ns = sml_max_u64(SML_RTO_INITIAL_NS, 3 * path_ns),
                          .ceiling_ns = SML_RTO_CEILING_NS + 8 * path_ns};
}

void sml_rto_sample(struct sml_rto *rto, uint64_t rtt_ns) {
  rtt_ns = sml_min_u64(rtt_ns, rto->ceiling_ns); /* a rank that was late says nothing about the path */
  rto->sample_ns = rtt_ns;
  if (rto->srtt_ns == 0) {
    rto->srtt_ns = rtt_ns;
    rto->rttvar_ns = rtt_ns / 2;
  } else {
    const uint64_t delta =
        rto->srtt_ns > rtt_ns ? rto->srtt_ns - rtt_ns : rtt_ns - rto->srtt_ns;
    rto->rttvar_ns = rto->rttvar_ns - rto->rttvar_ns / 4 + delta / 4;
    rto->srtt_ns = rto->srtt_ns - rto->srtt_ns / 8 + rtt_ns / 8;
  }
  rto->min_ns = rto->min_ns == 0 || rtt_ns < rto->min_ns ? rtt_ns : rto->min_ns + (rtt_ns - rto->min_ns) / 4096;
  const uint64_t rto_ns = rto->srtt_ns + sml_max_u64(4 * rto->rttvar_ns, 2 * rto->srtt_ns);
  rto->rto_ns = sml_min_u64(sml_max_u64(rto_ns, SML_RTO_FLOOR_NS), rto->ceiling_ns);
}

void sml_rto_answer(struct sml_rto *rto, uint64_t rtt_ns) {
  rtt_ns = sml_max_u64(sml_min_u64(rtt_ns, rto->ceiling_ns), 1);
  rto->answer_ns = rto->answer_ns == 0 ? rtt_ns : rto->answer_ns - rto->answer_ns / 4 + rtt_ns / 4;
}

uint64_t sml_rto_backoff(const struct sml_rto *rto, uint32_t level) {
  SML_ASSERT(level < SML_RTO_LEVELS);
  return sml_min_u64(rto->rto_ns << level, rto->ceiling_ns);
}

uint64_t sml_rto_reorder_window(const struct sml_rto *rto) {
  return sml_max_u64(rto->srtt_ns, 100 * SML_NS_PER_US);
}

uint64_t sml_rto_least_window(const struct sml_rto *rto) {
  return sml_max_u64(rto->min_ns, 100 * SML_NS_PER_US);
}

uint64_t sml_rto_repair_window(const struct sml_rto *rto) {
  return sml_max_u64(2 * rto->srtt_ns, 100 * SML_NS_PER_US);
}
