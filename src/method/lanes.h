/* SPDX-License-Identifier: Apache-2.0
 * The lanes of a job: streams of chunks to its aggregators, one each for an engine and a shard. By themselves they are
 * a method; where ranks combine they carry pieces; where all are on one host they stay idle.
 *
 * The control thread opens, restarts and closes them, without the owner's lock: engines that end operations take it. */
#pragma once

#include <stdatomic.h>

#include "method/engines.h"
#include "method/method.h"

/* One of the aggregators that a job shares its lanes among, in this epoch. */
struct sml_job_lanes_shard {
  const struct sml_ctl_start *start;
  const struct sml_ctl_welcome *welcome;
  struct sml_addr aggregator;
  const char *aggregator_text;            /* for sentences */
  struct sml_addr sources[SML_MAX_LANES]; /* of the packets to each engine, see sml_hello.from */
  bool is_embedded;                       /* it is in a rank's process */
  struct sml_seal seal;
};

struct sml_job_lane {
  struct sml_lane *lane;  /* owned; attached to its engine; NULL: none */
  uint32_t shard, engine; /* where its aggregator is, and which engine has it: also its number at the shard */
  uint32_t number;        /* of the lane: those of its one-way windows have the same */
  uint8_t way;            /* SML_REDUCE_SUM, or which one-way window it is */
  uint32_t num_slots;
  const char *aggregator_text;    /* the shard's */
  struct sml_engine_command fail; /* posted at most once: a job fails once */
  struct sml_lane *failing;       /* the command's, like the status */
  sml_status failed_status;
  bool is_closing;             /* the control thread detaches it: nothing is posted behind that */
  struct sml_job_lanes *lanes; /* constant */
  uint64_t chunks_used;        /* of this epoch: a pure function of the operations, equal on all ranks */
};

struct sml_job_lanes {
  struct sml_method method; /* first */
  /* constant */
  struct sml_engines *engines;
  const struct sml_settings *settings;
  uint32_t rank, world_size, num_shards;
  /* guarded by the lock */
  uint32_t first_phase; /* of all shards' starts together */
  sml_stats closed;     /* figures of lanes that are no more */
  /* As the first starts have it, for good: callers read it without the lock, and a successor has the same chunks, lanes
   * and slots. The lanes are those of all shards together, the engines those that have any. */
  uint32_t chunk_bytes;
  _Atomic uint32_t num_lanes, num_engines;
  _Atomic uint32_t num_windows; /* num_lanes, or three times as many: then come those of copies, and those of sums */
  _Atomic uint64_t shortest_ns; /* the shortest round trip that a start says, or any lane saw: they share a link */
  struct sml_job_lane lanes[3 * SML_MAX_JOB_LANES];
};

/* For a job with other ranks; lanes->method has its owner and lock. */
void sml_job_lanes_init(struct sml_job_lanes *lanes, struct sml_engines *engines, const struct sml_settings *settings,
                        uint32_t rank, uint32_t world_size, uint32_t num_shards);
/* Opens all lanes of the shards' starts, which say `start` together; false: no memory, and none is open. Nothing is
 * pushed before the caller says that the job runs. */
bool sml_job_lanes_open(struct sml_job_lanes *lanes, const struct sml_ctl_start *start);
/* A new epoch, at every shard: nothing may be outstanding. */
void sml_job_lanes_restart(struct sml_job_lanes *lanes, const struct sml_ctl_start *start);
/* Ends the operations that engines hold; afterwards no thread touches a buffer of the caller's. */
void sml_job_lanes_close(struct sml_job_lanes *lanes);

/* Whether operations may go one way. */
static inline bool sml_job_lanes_go_one_way(const struct sml_job_lanes *lanes) {
  return lanes->num_windows > lanes->num_lanes;
}
/* So many chunks that waiting for a fence is less than what goes one way saves: a quarter of all windows. */
uint64_t sml_job_lanes_least_one_way(const struct sml_job_lanes *lanes);
/* The lane's part of an operation, or of a piece. */
void sml_job_lanes_range(const struct sml_job_lanes *lanes, const struct sml_operation_plan *plan, uint32_t lane,
                         struct sml_range *range_out);
/* So few that callers of small operations run the engine themselves. */
static inline bool sml_job_lanes_run_small(const struct sml_job_lanes *lanes) {
  return lanes->num_engines == 1;
}

/* All with the lock held. */
/* So many chunks on each lane: all or nothing. */
enum sml_method_room sml_job_lanes_take_room(struct sml_job_lanes *lanes, const struct sml_operation_plan *plan,
                                             const uint64_t num_chunks[SML_MAX_JOB_LANES]);
void sml_job_lanes_push(struct sml_job_lanes *lanes, struct sml_engine_operation *operation);
void sml_job_lanes_wake(struct sml_job_lanes *lanes);
/* The engines end what they hold with the status. */
void sml_job_lanes_fail(struct sml_job_lanes *lanes, sml_status status);
void sml_job_lanes_add_figures(const struct sml_job_lanes *lanes, sml_stats *stats);
/* Packets from the shard's aggregator that were acted upon. */
uint64_t sml_job_lanes_count_packets(const struct sml_job_lanes *lanes, uint32_t shard);
/* The slot that has waited longest, and whom for, into `sight`, which has none yet. */
void sml_job_lanes_find_waiting(const struct sml_job_lanes *lanes, struct sml_member_sight *sight);
