/* SPDX-License-Identifier: Apache-2.0
 * One collective call. Memory of the context's pool, so that submission allocates nothing in steady state:
 * the buffers for exponent codes stay with the pool's entry and only ever grow. */
#pragma once

#include <stddef.h>

#include "ctl/member_job.h"
#include "lib/collective.h"
#include "lib/context.h"
#include "lib/retained.h"
#include "lib/tensors.h"
#include "method/method.h"

/* What differs by whom an operation is for: a caller, a batch's members, or other ranks (a replay). */
struct sml_operation_kind {
  void (*describe)(const struct sml_operation *operation, char *text, size_t text_bytes);
  void (*summed)(struct sml_operation *operation); /* well, and nobody knows. Without the lock; NULL: no matter */
  /* With job->lock held: whoever it is for is told, and may release it afterwards. Not ok: the job has failed. */
  void (*ended)(struct sml_job *job, struct sml_operation *operation, bool is_ok);
  void (*give_back)(struct sml_operation *operation); /* its memory */
};
extern const struct sml_operation_kind sml_batch_kind; /* batch.c */

/* By what a job's operations are planned: equal on all ranks, but for the rank. Constant once the caller has it. */
struct sml_job_shape {
  uint32_t rank, world_size;
  struct sml_format_options formats; /* features of the join, and START's chunks */
  bool is_exact;                     /* floats are summed in exact mode where the caller does not say */
  bool has_narrow_lanes;             /* for sums that they hold */
  uint64_t rtt_ns;                   /* the first START's; with retry 0 */
  const struct sml_job_lanes *lanes; /* world size 1: without any */
};

struct sml_operation {
  struct sml_engine_operation engine; /* first: engines hand back its address */
  struct sml_member_operation order; /* guarded by job->lock, like all below `codes_bytes` */
  const struct sml_operation_kind *kind; /* constant */
  struct sml_context *context;
  struct sml_job *job;
  struct sml_operation *next_free;   /* the pool's */
  size_t codes_bytes[SML_MAX_JOB_LANES]; /* room at engine.codes[] */
  struct sml_operation *members; /* of a batch, and of a stage of an exact operation: those that it stands for, in the
                                  * order of their calls */
  struct sml_operation *next_member;
  uint32_t num_members;
  bool is_released;
  bool is_small; /* constant: callers run the engine for it */
  bool is_noted; /* called within a batch that has not been submitted */
  _Atomic uint64_t returned_ns; /* from the call of a middle-sized one, which nobody has waited for yet; else 0 */
  uint32_t num_waiters;
  struct sml_tensors *tensors;   /* filled up, if they are: engine.in and out; NULL: the caller's */
  struct sml_gathered *gathered; /* ranks gather its input; NULL: they do not */
  struct sml_gathered *gathered_room; /* for the next one of which that is so: it stays with the pool's entry */
  struct sml_collective *collective; /* owned: what it does beside its sum; NULL: it is an all-reduce, or a replay */
  struct sml_retained *retained; /* the input that is read, if the job keeps inputs */
  /* SML_IN_PROGRESS until it ended: release by its end, acquire by test; the buffers follow it. */
  _Atomic int32_t status;
};

/* All of a context. */
sml_status sml_operations_create(struct sml_context *context);
void sml_operations_destroy(struct sml_context *context);

static inline struct sml_operation *sml_operation_of(const struct sml_member_operation *order) {
  return (struct sml_operation *)((uintptr_t)order - offsetof(struct sml_operation, order));
}

/* With job->lock held: hands waiting operations to the method as long as it takes them and the epoch has room, and
 * asks for a new one when it has none. */
void sml_operations_push_locked(struct sml_job *job);
/* With job->lock held, after it has failed: ends the operations that the method does not hold. */
void sml_operations_end_waiting_locked(struct sml_job *job);
/* With job->lock held, after a rejoin: adds an operation for each that this rank has completed and others may not have:
 * memory of its own, freed at its end. False: no memory. */
bool sml_operations_add_replays_locked(struct sml_job *job, uint64_t now_ns);
/* With job->lock held; the method holds none. */
void sml_operations_drop_replays_locked(struct sml_job *job);

/* What every collective comes to: sml_allreduce() is this alone. The operation takes `collective` over, unless the call
 * fails. Changes the call. */
struct sml_call {
  const void *in;
  void *out;
  size_t count;
  sml_type type;
  sml_reduction reduction;
  const sml_operation_options *options;
  struct sml_collective *collective;
};
sml_status sml_operation_call(sml_job *job, struct sml_call *call, sml_operation **operation_out);
/* Whether the job sums that; call.c's, as the above. */
sml_status sml_operation_check_type(const struct sml_job_shape *shape, const sml_operation_options *options,
                                    sml_type type, sml_reduction reduction, size_t count);

/* Whether it can go as its collective's way and parts say: a function of START and of the call, so equal on all
 * ranks. */
bool sml_operation_goes_one_way(const struct sml_job_shape *shape, const struct sml_call *call);

/* The steps of that. Takes one of the pool's. */
sml_status sml_operation_take(struct sml_job *job, struct sml_operation **operation_out);
void sml_operation_give_back(struct sml_operation *operation);
void sml_operation_prepare(struct sml_operation *operation, struct sml_job *job, const void *in, void *out,
                           const struct sml_operation_plan *plan, uint64_t timeout_ns);
sml_status sml_operation_submit(struct sml_operation *operation);
/* What it needs beside its place in the pool: memory, and a copy of its input if the job keeps inputs. */
sml_status sml_operation_fit(struct sml_operation *operation);
/* With job->lock held, for exact_operation.c: it is called, and so many numbers are reserved; one joins the job's order
 * with the next of them (false: the job has failed); what it was fitted with goes, if it never joined. */
void sml_operation_reserve_locked(struct sml_operation *operation, struct sml_member_reservation *numbers,
                                  uint64_t num_numbers);
bool sml_operation_insert_reserved_locked(struct sml_operation *operation, struct sml_member_reservation *numbers);
void sml_operation_drop_copy_locked(struct sml_job *job, struct sml_operation *operation);
/* Without the lock: the job fails, as sml_error_detail() says. */
void sml_operation_fail_job(const struct sml_operation *operation, sml_status status);
/* With job->lock held: it has ended well, or with the job's failure. Afterwards the caller may release it. */
void sml_operation_publish_end_locked(struct sml_job *job, struct sml_operation *operation, bool is_ok);
/* Its caller has its handle, but it could not be submitted: it ends with the job, which fails. */
void sml_operation_abandon(struct sml_operation *operation, sml_status status);

/* ---- what those ask of a job that don't see its fields. SML_OK, or why this handle is none. */
sml_status sml_job_check(const struct sml_job *job);
const struct sml_job_shape *sml_job_shape(const struct sml_job *job);
pthread_mutex_t *sml_job_lock(struct sml_job *job);
struct sml_batch *sml_job_batch(struct sml_job *job);
struct sml_exact_operation **sml_job_spare_exact(struct sml_job *job); /* the lock's; NULL: none */
/* Whether lanes can be made as they travel: engines alone read inputs, and once. */
bool sml_job_makes_lanes(const struct sml_job *job);
/* Whether all ranks share memory in which they sum. */
bool sml_job_sums_in_memory(const struct sml_job *job);
/* Whether callers of small operations run the engine themselves. */
bool sml_job_runs_small(const struct sml_job *job);
/* With job->lock held: SML_OK, or the failure as the calling thread's detail. */
sml_status sml_job_report_locked(struct sml_job *job);
/* With job->lock held: SML_OK, or why nothing may be submitted. */
sml_status sml_job_refuse_locked(struct sml_job *job);

/* What the method may ask of the job (job_events.c). */
extern const struct sml_owner_ops sml_job_owner_ops;
/* With job->lock held: the method is done with the operation, and nobody touches its buffers any more. */
void sml_operation_end_locked(struct sml_job *job, struct sml_operation *operation, sml_status status);

/* "operation 7 (float32 SUM, 1048576 elements)". */
void sml_operation_describe(const struct sml_operation *operation, char *text, size_t text_bytes);
