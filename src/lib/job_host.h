/* SPDX-License-Identifier: Apache-2.0
 * A job whose ranks are all on one host adds up through shared memory (host/host_group.h); its lanes stay idle.
 * In a job over several hosts, some with several ranks, the lead of each host submits the pieces that its ranks bring
 * together there (host/host_relay.h, lib/job_pieces.h); only leads have lanes. A rank that is alone leads itself.
 *
 * Operations run one after the other, in their order. Whoever waits for one *drives*: it works on the oldest
 * operations, without the job's lock, until its own has ended; the others sleep. So a rank that calls and waits
 * needs no other thread. What nobody waits for is driven by a helper thread, which begins a moment later than a
 * caller would, and sleeps while nothing is outstanding. */
#ifndef SML_LIB_JOB_HOST_H
#define SML_LIB_JOB_HOST_H

#include "host/host_group.h"
#include "lib/job.h"
#include "lib/job_pieces.h"

struct sml_job_host {
  struct sml_job *job;          /* constant, but for pieces, like the next ones */
  struct sml_host_group *group; /* one host; else NULL, and */
  struct sml_host_relay *relay;
  struct sml_job_pieces pieces; /* the lead's */
  uint32_t block_chunks; /* that share an exponent code */
  uint64_t piece_bytes; /* 0: one host, which cuts nothing for the network */
  uint32_t num_ranks, index;    /* of this host, and among them */
  uint16_t *ranks;              /* index -> rank, ascending */
  pthread_t helper;
  /* guarded by job->lock */
  pthread_cond_t wanted; /* the helper's; CLOCK_MONOTONIC */
  struct sml_operation *current; /* begun; is_pushed */
  bool is_driving;               /* a thread has `current` and the group for itself, without the lock */
  bool is_asleep, is_wanted_now, should_stop; /* the helper */
  uint64_t num_drives;
};

/* START said that all ranks of the job are on this host, or has a table. Blocks until memory is shared, until the
 * deadline at most. On failure the job has failed, and says why. */
sml_status sml_job_host_open(struct sml_job *job, uint64_t deadline_ns);
/* Nothing is outstanding any more. */
void sml_job_host_close(struct sml_job *job);

/* With job->lock held, if job->host is not NULL: */
void sml_job_host_submitted_locked(struct sml_job *job, const struct sml_operation *operation);
/* Works until the operation has ended (NULL: until all have) or the deadline; 0: only what can be done at once.
 * False: somebody else does, and nothing was done. */
bool sml_job_host_drive_locked(struct sml_job *job, const struct sml_operation *until, uint64_t deadline_ns);
/* The job has failed: ends what was begun, or lets its driver. */
void sml_job_host_fail_locked(struct sml_job *job);
void sml_job_host_set_gone_locked(struct sml_job *job, uint32_t rank);
/* The new epoch has begun: what waited for it goes on. */
void sml_job_host_resume_locked(struct sml_job *job);
/* An engine has ended a piece of the lead's. */
void sml_job_host_piece_ended_locked(struct sml_job *job, uint32_t slot, sml_status status);
/* What the current operation waits for. RANKS: ranks of this host. LEAD: only the lead, which itself waits for other
 * hosts and knows which. NETWORK: other hosts (this rank is the lead). */
enum sml_job_host_wait { SML_JOB_HOST_IDLE, SML_JOB_HOST_RANKS, SML_JOB_HOST_LEAD, SML_JOB_HOST_NETWORK };
enum sml_job_host_wait sml_job_host_waits_for_locked(const struct sml_job *job);
/* Ranks that the operation which was begun waits for; false: none was. */
bool sml_job_host_find_absent_locked(const struct sml_job *job, uint32_t *ranks_out, uint32_t room,
                                     uint32_t *num_absent_out);
void sml_job_host_add_stats_locked(const struct sml_job *job, sml_stats *stats);

#endif
