/* SPDX-License-Identifier: Apache-2.0
 * One all-reduce. Memory of the context's pool, so that submission allocates nothing in steady state:
 * the buffers for exponent codes stay with the pool's entry and only ever grow. */
#ifndef SML_LIB_OPERATION_H
#define SML_LIB_OPERATION_H

#include "lib/job.h"

struct sml_operation {
  struct sml_engine_operation engine; /* first: engines hand back its address */
  struct sml_context *context;
  struct sml_job *job;
  struct sml_operation *next_free;   /* the pool's */
  size_t codes_bytes[SML_MAX_JOB_LANES]; /* room at engine.codes[] */
  /* guarded by job->lock */
  /* the job's list of those that have not ended; of one in a batch: `next` alone, in that list */
  struct sml_operation *prev, *next;
  struct sml_operation *members; /* of a batch: those that it stands for, in the order of their calls */
  uint32_t num_members;
  bool is_pushed;                    /* the method holds it */
  bool is_released, was_warned;
  bool is_small; /* constant: callers run the engine for it */
  bool is_batch; /* constant: memory of a batch, not of the pool */
  bool is_noted; /* called within a batch that has not been submitted */
  uint32_t num_waiters;
  uint64_t submitted_ns, deadline_ns;
  uint64_t last_deadline_ns;     /* deadline_ns moves while the job rejoins, but not beyond this */
  struct sml_retained *retained; /* the input that is read, if the job keeps inputs */
  bool is_replay; /* nobody's: done again for other ranks; memory of its own, freed at its end */
  /* SML_IN_PROGRESS until it ended: release by its end, acquire by test; the buffers follow it. */
  _Atomic int32_t status;
};

/* All of a context. */
sml_status sml_operations_create(struct sml_context *context);
void sml_operations_destroy(struct sml_context *context);

/* With job->lock held, REJOINING: adds to the job's list, in its order, an operation for each that this rank
 * has completed and others may not have. False: no memory. */
bool sml_job_add_replays_locked(struct sml_job *job, uint64_t now_ns);
/* With job->lock held; no engine holds any. */
void sml_job_drop_replays_locked(struct sml_job *job);

/* The steps of sml_allreduce(), for batch.c. Takes: NULL, if all are in use. */
struct sml_operation *sml_operation_take(struct sml_context *context);
void sml_operation_give_back(struct sml_operation *operation);
void sml_operation_prepare(struct sml_operation *operation, struct sml_job *job, const void *in, void *out,
                           const struct sml_operation_plan *plan, uint64_t timeout_ns);
sml_status sml_operation_submit(struct sml_operation *operation);
/* With job->lock held: afterwards the caller may release it. */
void sml_operation_publish_end_locked(struct sml_job *job, struct sml_operation *operation, sml_status status);
/* Whether callers of small operations run the engine themselves. */
static inline bool sml_job_runs_small(const struct sml_job *job) {
  return job->method->ops->is_run_by_callers && sml_job_lanes_run_small(&job->lanes);
}

/* What the method may ask of the job (owner.c). */
extern const struct sml_owner_ops sml_job_owner_ops;
/* With job->lock held: the method is done with the operation, and nobody touches its buffers any more. */
void sml_operation_end_locked(struct sml_job *job, struct sml_operation *operation, sml_status status);

/* "operation 7 (float32 SUM, 1048576 elements)". */
void sml_operation_describe(const struct sml_operation *operation, char *text, size_t text_bytes);

#endif
