/* SPDX-License-Identifier: Apache-2.0
 * How many slots a job gets, decided in this one place, by the aggregator, for all ranks of the job. Pure.
 *
 * A window has to cover what the path holds and the time that ranks wait for their processors; a larger one only
 * lengthens queues and falls out of the caches (docs/adr/0013-the-aggregator-chooses-the-window.md has the figures). */
#pragma once

#include "base/base.h"
#include "switchml/switchml.h"

#define SML_TUNING_MOST_MIB 16u  /* what sockets are asked to hold without being told of a window, about */
#define SML_TUNING_FEW_SLOTS 32u /* never chosen fewer, but for want of free ones: a burst must hold many chunks */
/* Where a host has both roles, and a program of its own besides, one waits for the other's turn at a processor: as
 * many windows as usual have to keep the link busy meanwhile. */
#define SML_TUNING_EMBEDDED_WINDOWS 4u

struct sml_tuning {
  uint32_t num_asked;   /* a lane; power of two, or 0: to be chosen */
  uint32_t num_lanes;   /* >= 1, of all aggregators of the job: they share one window */
  uint32_t chunk_bytes; /* >= 1 */
  uint32_t pool_slots;  /* that the aggregator has a lane, for all jobs together; >= 1 */
  uint32_t kept_slots;  /* of these, those that other jobs have, or are to find when they come */
  uint64_t rtt_ns;      /* the smallest seen of the furthest rank; 0: not known */
  /* What other jobs may have waiting in the aggregator's queues: a rank that joins meanwhile measures that, too. */
  uint64_t others_bytes;
  bool is_loopback;  /* all ranks are on the aggregator's host */
  bool is_embedded;  /* the aggregator is in a rank's process */
  uint32_t most_mib; /* of a window, a lane; 0: SML_TUNING_MOST_MIB */
};
/* Slots a lane, a power of two; *why_out: the reason. An asked number is given as it is, as long as the window is
 * within most_mib. */
uint32_t sml_tuning_choose(const struct sml_tuning *tuning, sml_slots_reason *why_out);

/* Slots a lane that a job which asks for none leaves for jobs that have not come yet, so that those who came early
 * take nobody's place: FEW for each job that may still start, as far as half of the pool goes. */
uint32_t sml_tuning_reserve(uint32_t pool_slots, uint32_t max_jobs, uint32_t num_running);
