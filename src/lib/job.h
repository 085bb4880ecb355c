/* SPDX-License-Identifier: Apache-2.0
 * A job as the library has it. Locks: job->lock orders submissions and guards everything that is not
 * said to be constant; it is taken by callers, by the control thread and, once an operation, by the
 * engine that ends it. Order: job->lock, then context->lock or an engine's mailbox. */
#ifndef SML_LIB_JOB_H
#define SML_LIB_JOB_H

#include "ctl/member_retry.h"
#include "lib/batch.h"
#include "lib/context.h"
#include "lib/retained.h"
#include "lib/session.h"
#include "meet/shards.h"
#include "method/lanes.h"

enum sml_job_state {
  SML_JOB_JOINING, /* not known to the caller yet */
  SML_JOB_RUNNING,
  SML_JOB_DRAINING,  /* the epoch has no room for the next operation: it waits until all pushed ones ended */
  SML_JOB_RENEWING,  /* EPOCH sent; nothing is outstanding; START awaited */
  SML_JOB_REJOINING, /* the aggregator was lost: lanes are closed or being closed, its successor is joined */
  SML_JOB_FAILED,    /* for good; error says why */
};

/* One of the aggregators that a job shares its lanes among, and how this rank is joined to it. */
struct sml_job_shard {
  struct sml_job *job;          /* constant */
  uint32_t index;               /* constant */
  uint32_t process_rank;           /* constant: the rank whose process it is in; SML_NO_PROCESS_RANK: a daemon's */
  struct sml_ctl_start start;   /* the last one; the control thread's */
  bool is_started;              /* this epoch's is in; the control thread's */
  bool has_told_last;           /* lingering: it was told at once that all has ended here; guarded by job->lock */
  bool is_asked, has_reported;  /* whom it waits for; what it said: report. Guarded by job->lock */
  struct sml_ctl_report report;
  uint64_t silent_since_ns;     /* it is late, says the session; 0: it is not. Guarded by job->lock */
  struct sml_session session;   /* the control thread's */
};

/* What is constant is set before the session is served or, for `start` but its epoch, before RUNNING. */
struct sml_job {
  struct sml_context *context;
  struct sml_job *next; /* the context's list */
  /* constant */
  uint32_t rank, world_size;
  char name[SML_JOB_NAME_BYTES];
  uint64_t operation_timeout_ns;
  struct sml_format_options formats; /* equal on all ranks: features of the join, and START's chunks */
  uint32_t num_slots_asked;    /* of all aggregators together; 0: nobody did */
  struct sml_engines *engines; /* NULL: world size 1 */

  pthread_mutex_t lock;
  pthread_cond_t changed; /* CLOCK_MONOTONIC */
  struct sml_recorder *recorder;
  _Atomic uint16_t trace_numbers[SML_MAX_SHARDS]; /* the aggregators' numbers of the job; the control thread's */
  char *dump_path;          /* the control thread is to write the job's trace there; NULL: no */
  bool is_dump_due;         /* and is not done with it */
  size_t told_detail_bytes; /* of the error's detail, for the others: without where the trace is */
  enum sml_job_state state;
  sml_error error; /* of the first failure; constant once FAILED */
  bool has_gone_rank;
  struct sml_ctl_rank_gone gone;

  /* What all shards' starts say together (ctl/member_start.h). The shape (lanes, slots, chunk size) stays when the
   * epoch changes. */
  struct sml_ctl_start start;
  struct sml_job_lanes lanes;            /* open while the job is started, but for a world size of 1 */
  struct sml_method *method;           /* how it sums; constant once the caller knows the job. JOINING: its lanes */
  struct sml_operation *oldest, *newest; /* that have not ended, in the order of submission */
  struct sml_operation *first_waiting;   /* of them, that the method does not hold: the tail of that list */
  uint32_t num_pushed;                   /* of them, that the method holds */
  struct sml_batch batch;
  uint64_t next_number;
  uint64_t operations_submitted, operations_completed, operations_failed, tensor_bytes;

  /* retry */
  struct sml_retained_inputs retained;
  struct sml_member_retry retry;
  bool is_lingering;  /* in sml_job_destroy(): the others may still need what is kept here */

  /* to the control thread */
  bool wants_abort, wants_reports, wants_leave, is_closed;
  uint64_t asked_ns; /* when the aggregators were asked last whom they wait for */
  uint32_t num_closed;          /* shards whose session is; the control thread's */
  uint32_t num_shards;          /* constant; 0: world size 1 */
  struct sml_job_shard *shards; /* owned */
  struct sml_embedded *embedded;    /* owned: the shard in this process; NULL: none. Constant */
};

extern const struct sml_session_events sml_job_events;

/* With job->lock held. The first failure wins; it ends what the method does not hold, tells the method to end
 * the rest and, if asked to, the aggregator to end it on every rank. */
void sml_job_fail_locked(struct sml_job *job, const struct sml_ctl_abort *failure, bool tells_others);
/* That ranks are gone: those of the first message about it. */
struct sml_ctl_abort sml_job_gone_failure(const struct sml_job *job);
/* Makes a failure; ranks are added by the caller. */
__attribute__((format(printf, 2, 3))) struct sml_ctl_abort sml_job_failure(sml_status status,
                                                                           const char *format, ...);
/* With job->lock held: the failure as the calling thread's detail. */
sml_status sml_job_report_locked(struct sml_job *job);

/* With job->lock held: SML_OK, or why nothing may be submitted. */
sml_status sml_job_refuse_locked(struct sml_job *job);

/* With job->lock held: hands waiting operations to the method as long as it takes them and the epoch has room, and
 * asks for a new one when it has none (operation.c). */
void sml_job_push_locked(struct sml_job *job);
/* With job->lock held: ends the operations that the method does not hold. */
void sml_job_end_waiting_locked(struct sml_job *job, sml_status status);
/* With job->lock held: the first operation that has not completed here, without a gap before it. */
uint64_t sml_job_first_unfinished_locked(const struct sml_job *job);

#endif
