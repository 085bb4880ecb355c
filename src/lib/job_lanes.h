/* SPDX-License-Identifier: Apache-2.0
 * The lanes of a job, as the control thread opens, restarts and closes them. Without job->lock: engines that
 * end operations take it. */
#ifndef SML_LIB_JOB_LANES_H
#define SML_LIB_JOB_LANES_H

#include "lib/job.h"

/* Opens all lanes of the shards' starts, which say `start` together; false: no memory, and none is open. Nothing is
 * pushed before the caller says that the job runs. */
bool sml_job_lanes_open(struct sml_job *job, const struct sml_ctl_start *start);
/* A new epoch, at every shard: nothing may be outstanding. */
void sml_job_lanes_restart(struct sml_job *job);
/* Ends the operations that engines hold; afterwards no thread touches a buffer of the caller's. */
void sml_job_lanes_close(struct sml_job *job);
/* With job->lock held: the engines end what they hold with job->error.status. */
void sml_job_lanes_fail_locked(struct sml_job *job);
/* With job->lock held: adds the lanes' figures. */
void sml_job_lanes_add_stats_locked(const struct sml_job *job, sml_stats *stats);
/* With job->lock held: the lane that has waited longest, and whom for. */
/* Packets from the shard's aggregator that were acted upon; with job->lock held, like the next. */
uint64_t sml_job_lanes_count_packets_locked(const struct sml_job *job, uint32_t shard);
bool sml_job_lanes_find_waiting_locked(const struct sml_job *job, uint32_t *lane_out,
                                       struct sml_lane_snapshot *snapshot_out);

#endif
