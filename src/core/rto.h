/* SPDX-License-Identifier: Apache-2.0
 * Retransmission timeout from round-trip samples (RFC 6298 with a floor for data centres). A "round
 * trip" here ends with the slowest rank's contribution. */
#pragma once

#include "base/base.h"

#define SML_RTO_INITIAL_NS (20 * SML_NS_PER_MS)
#define SML_RTO_FLOOR_NS (1 * SML_NS_PER_MS)
#define SML_RTO_CEILING_NS (200 * SML_NS_PER_MS) /* and eight round trips of the path */
#define SML_RTO_LONGEST_PATH_NS (2 * SML_NS_PER_S) /* whatever the join says */
#define SML_RTO_LONG_PATH_NS (500 * SML_NS_PER_US) /* no data centre's round trip */
#define SML_RTO_LEVELS 8u /* 0: not asked about yet; k: asked k times, at most 7 */

struct sml_rto {
  uint64_t srtt_ns, rttvar_ns, rto_ns;
  uint64_t path_ns;    /* the round trip that the join measured; 0: not known */
  uint64_t ceiling_ns; /* of samples and timeouts */
  uint64_t sample_ns;  /* the last one */
  uint64_t min_ns; /* the smallest sample; follows larger ones slowly */
  uint64_t answer_ns; /* how long answers to questions take, which wait for nobody; 0: there was none yet */
};
void sml_rto_init(struct sml_rto *rto, uint64_t path_ns);
void sml_rto_sample(struct sml_rto *rto, uint64_t rtt_ns);
/* A question was answered. Where much is lost, many samples wait for repairs; answers measure the path alone. */
void sml_rto_answer(struct sml_rto *rto, uint64_t rtt_ns);
/* Timeout of a slot that was asked about `level` times: doubled each time, up to the ceiling. */
uint64_t sml_rto_backoff(const struct sml_rto *rto, uint32_t level);
/* When a chunk is complete that was sent this much later, the first one counts as held up by a loss. Less than this is
 * the path's own reordering. */
uint64_t sml_rto_reorder_window(const struct sml_rto *rto);
/* The same for samples. It goes by the smallest round trip, so that it does not widen with the samples it lets pass. */
uint64_t sml_rto_least_window(const struct sml_rto *rto);
/* The same for the worker to ask by itself: by then a repair that the aggregator has begun is there. */
uint64_t sml_rto_repair_window(const struct sml_rto *rto);
