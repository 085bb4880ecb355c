/* SPDX-License-Identifier: Apache-2.0
 * A job as the library has it. job.c, job_events.c, operation.c and trace.c work on its fields. Others do not include
 * this header (tools/tidy.py counts): they ask by the functions of operation.h.
 * Locks: job->lock orders submissions and guards everything that is not said to be constant. Callers take it,
 * the control thread and, once an operation, the engine that ends it. Order: job->lock, then context->lock or an
 * engine's mailbox. */
#pragma once

#include "ctl/member_late.h"
#include "lib/batch.h"
#include "lib/operation.h"
#include "lib/session.h"
#include "meet/shards.h"
#include "method/lanes.h"

/* How a rank is joined to one of its job's aggregators; state.shards has what it means for the job. */
struct sml_job_shard {
  struct sml_job *job;        /* constant */
  uint32_t index;             /* constant */
  bool has_told_last;         /* lingering: it was told at once that all has ended here; guarded by job->lock */
  struct sml_session session; /* the control thread's */
};

/* What is constant is set before the session is served or, for `state.start` but its epoch, before the job runs. */
struct sml_job {
  struct sml_context *context;
  struct sml_job *next; /* the context's list */
  /* constant */
  uint64_t operation_timeout_ns;
  struct sml_job_shape shape;
  uint32_t num_slots_asked;    /* of all aggregators together; 0: nobody did */
  struct sml_engines *engines; /* NULL: world size 1 */

  pthread_mutex_t lock;
  pthread_cond_t changed; /* CLOCK_MONOTONIC */
  struct sml_recorder *recorder;
  _Atomic uint16_t trace_numbers[SML_MAX_SHARDS]; /* the aggregators' numbers of the job; the control thread's */
  bool is_dump_due;         /* the control thread is to write the job's trace, and is not done with it */
  size_t told_detail_bytes; /* of the error's detail, for the others: without where the trace is */
  /* What the job is in, and all that it decides by. What concerns starts is changed by the control thread alone. */
  struct sml_member_job state;
  struct sml_job_lanes lanes;            /* open while the job is started, but for a world size of 1 */
  struct sml_method *method;           /* how it sums; constant once the caller knows the job. JOINING: its lanes */
  struct sml_batch batch;
  struct sml_exact_operation *spare_exact; /* one that has ended, for its memory; NULL: none */
  uint64_t num_extra_numbers;   /* that operations have taken, beyond one each */
  _Atomic uint32_t num_at_once; /* at_once.h */
  uint64_t operations_completed, operations_failed, tensor_bytes;
  struct sml_retained_inputs retained;
  bool is_lingering;  /* in sml_job_destroy(): the others may still need what is kept here */

  /* to the control thread */
  bool wants_abort, wants_reports, wants_leave, is_closed;
  uint32_t num_closed; /* shards whose session is; the control thread's */
  struct sml_job_shard *shards; /* owned, as many as state.shards */
  struct sml_embedded *embedded;    /* owned: the shard in this process; NULL: none. Constant */
};

extern const struct sml_session_events sml_job_events;

/* With job->lock held. The first failure wins; it ends what the method does not hold, tells the method to end
 * the rest and, if asked to, the aggregator to end it on every rank. */
void sml_job_fail_locked(struct sml_job *job, const struct sml_ctl_abort *failure, bool tells_others);
/* With job->lock held: what the job waits for, as the state asks for it. */
void sml_job_look_locked(const struct sml_job *job, struct sml_member_sight *sight_out);
