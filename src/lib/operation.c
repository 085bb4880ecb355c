/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/operation.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/thread.h"
#include "lib/at_once.h"
#include "lib/gathered.h"
#include "lib/job.h"
#include "lib/tensors.h"
#include "lib/trace.h"
#include "lib/uncancelled.h"
#include "meet/types.h"

static const struct sml_operation_kind caller_kind, replay_kind;

/* ---- the pool ---- */

sml_status sml_operations_create(struct sml_context *context) {
  const uint32_t count = context->settings.num_operations;
  context->operations = calloc(count, sizeof *context->operations);
  if (context->operations == NULL) return sml_fail(SML_ERR_NO_MEMORY, "no memory for %u operations", count);
  for (uint32_t i = count; i-- > 0;) {
    struct sml_operation *op = &context->operations[i];
    op->kind = &caller_kind;
    op->context = context;
    op->next_free = context->free_operations;
    context->free_operations = op;
  }
  return SML_OK;
}

static void free_codes(struct sml_operation *op) {
  for (uint32_t l = 0; l < SML_MAX_JOB_LANES; l++) free(op->engine.codes[l]);
}

void sml_operations_destroy(struct sml_context *context) {
  for (uint32_t i = 0; context->operations != NULL && i < context->settings.num_operations; i++) {
    free_codes(&context->operations[i]);
    free(context->operations[i].gathered_room);
  }
  free(context->operations);
}

sml_status sml_operation_take(struct sml_job *job, struct sml_operation **op_out) {
  struct sml_context *context = job->context;
  pthread_mutex_lock(&context->lock);
  struct sml_operation *op = *op_out = context->free_operations;
  if (op != NULL) context->free_operations = op->next_free;
  pthread_mutex_unlock(&context->lock);
  if (op != NULL) return SML_OK;
  pthread_mutex_lock(&job->lock);
  const sml_status status = sml_job_refuse_locked(job); /* waiting for one would not help a failed job */
  pthread_mutex_unlock(&job->lock);
  if (status != SML_OK) return status;
  return sml_fail(SML_ERR_BUSY, "all %u operations are in use: release one, or raise num_operations",
                  context->settings.num_operations);
}

void sml_operation_give_back(struct sml_operation *op) {
  op->kind->give_back(op);
}

void sml_operation_describe(const struct sml_operation *op, char *text, size_t text_bytes) {
  op->kind->describe(op, text, text_bytes);
}

/* ---- what each kind does ---- */

/* As its caller counts. */
static uint64_t num_elems_of(const struct sml_operation *op) {
  if (op->tensors != NULL) return op->tensors->count;
  return op->gathered != NULL ? op->gathered->count : op->engine.plan.num_elems;
}

/* What its caller sums. */
static sml_type type_of(const struct sml_operation *op) {
  return (sml_type)(op->gathered != NULL ? op->gathered->type : op->engine.plan.type);
}

static sml_reduction reduction_of(const struct sml_operation *op) {
  return (sml_reduction)(op->gathered != NULL ? op->gathered->reduction : op->engine.plan.reduction);
}

static void trace(const struct sml_job *job, const struct sml_operation *op, const char *what,
                  enum sml_trace_event event, uint64_t now_ns) {
  char text[96];
  sml_job_record_locked(job,
                        (struct sml_record){.event = (uint16_t)event,
                                            .chunk = (uint32_t)sml_min_u64(num_elems_of(op), UINT32_MAX),
                                            .value = op->engine.plan.number},
                        now_ns);
  if (job->context->settings.log_level < SML_LIB_LOG_TRACE) return;
  sml_operation_describe(op, text, sizeof text);
  sml_job_log(job, SML_LIB_LOG_TRACE, "%s: %s", text, what);
}

void sml_operation_publish_end_locked(struct sml_job *job, struct sml_operation *op, bool is_ok) {
  if (op->retained != NULL) {
    op->retained->input.reader = NULL;
    sml_retained_drop_confirmed(&job->retained, &job->state.retry); /* if the others were faster */
  }
  op->kind->ended(job, op, is_ok);
}

/* ---- operations of callers, and replays ---- */

static void describe(const struct sml_operation *op, char *text, size_t text_bytes) {
  const struct sml_operation_plan *plan = &op->engine.plan;
  const struct sml_collective *c = op->collective;
  if (c != NULL && c->num_bytes > 0)
    snprintf(text, text_bytes, "operation %llu (%s, %llu bytes)", (unsigned long long)plan->number, c->name,
             (unsigned long long)c->num_bytes);
  else
    snprintf(text, text_bytes, "operation %llu (%s%s%s %s, %llu elements)", (unsigned long long)plan->number,
             c != NULL ? c->name : "", c != NULL ? ": " : "", sml_type_name(type_of(op)),
             sml_reduction_name(reduction_of(op)), (unsigned long long)num_elems_of(op));
}

static void store(struct sml_operation *op) {
  if (op->gathered != NULL) sml_gathered_store(op->gathered);
  if (op->tensors != NULL) sml_tensors_store(op->tensors);
  if (op->collective != NULL) sml_collective_store(op->collective);
}

static void end_for_caller(struct sml_job *job, struct sml_operation *op, bool is_ok) {
  const sml_status status = is_ok ? SML_OK : job->state.error.status;
  if (is_ok) {
    job->operations_completed++;
    job->tensor_bytes += num_elems_of(op) * sml_format_elem_bytes((uint32_t)type_of(op));
  } else {
    job->operations_failed++;
  }
  trace(job, op, sml_status_string(status), is_ok ? SML_TRACE_OPERATION_ENDED : SML_TRACE_OPERATION_FAILED,
        sml_clock_ns());
  if (op->num_waiters > 0) pthread_cond_broadcast(&job->changed);
  atomic_store_explicit(&op->status, status, memory_order_release); /* pairs with sml_operation_test */
}

static void give_back_to_pool(struct sml_operation *op) {
  struct sml_context *context = op->context;
  free(op->tensors);
  free(op->collective);
  op->tensors = NULL;
  op->collective = NULL;
  op->gathered = NULL;
  pthread_mutex_lock(&context->lock);
  op->next_free = context->free_operations;
  context->free_operations = op;
  pthread_mutex_unlock(&context->lock);
}

static const struct sml_operation_kind caller_kind = {
    .describe = describe, .summed = store, .ended = end_for_caller, .give_back = give_back_to_pool};

static void end_replay(struct sml_job *job, struct sml_operation *op, bool is_ok) {
  (void)is_ok;
  trace(job, op, "done again", SML_TRACE_OPERATION_ENDED, sml_clock_ns());
}

static void free_replay(struct sml_operation *op) {
  free_codes(op);
  free(op);
}

static const struct sml_operation_kind replay_kind = {
    .describe = describe, .ended = end_replay, .give_back = free_replay};

/* ---- ends ---- */

/* job->lock held. A lane that got a wrong sum fails by itself, perhaps before it says so. */
static void fail_by_itself(struct sml_job *job, const struct sml_operation *op, sml_status status) {
  char text[96];
  sml_operation_describe(op, text, sizeof text);
  const struct sml_ctl_abort failure =
      sml_member_failure(status, "%s failed on rank %u: %s", text, job->state.rank, sml_status_string(status));
  sml_job_fail_locked(job, &failure, true);
}

void sml_operation_end_locked(struct sml_job *job, struct sml_operation *op, sml_status status) {
  const bool is_ok = status == SML_OK;
  /* While the method holds it: it is not to end with those that wait. */
  if (!is_ok && job->state.phase != SML_MEMBER_IS_REJOINING) fail_by_itself(job, op, status);
  if (!sml_member_job_end(&job->state, &op->order, is_ok)) return;
  const bool is_detached = op->is_released;
  sml_operation_publish_end_locked(job, op, is_ok);
  if (job->state.oldest == NULL && (job->state.phase == SML_MEMBER_HAS_FAILED || job->is_lingering))
    pthread_cond_broadcast(&job->changed); /* for destroy */
  if (job->state.phase == SML_MEMBER_IS_DRAINING && job->state.num_begun == 0) sml_control_wake(&job->context->control);
  if (is_detached) sml_operation_give_back(op);
  /* There may be room for more. Last: if the job fails at it, other stages of an exact operation end, and free it. */
  if (job->state.first_waiting != NULL) sml_operations_push_locked(job);
}

/* On the engine that ended its part last. */
static void on_ended(struct sml_engine_operation *engine) {
  struct sml_operation *op = (struct sml_operation *)engine;
  struct sml_job *job = op->job;
  const sml_status status = (sml_status)atomic_load_explicit(&engine->status, memory_order_relaxed);
  if (status == SML_OK && op->kind->summed != NULL) op->kind->summed(op);
  pthread_mutex_lock(&job->lock);
  sml_operation_end_locked(job, op, status);
  pthread_mutex_unlock(&job->lock);
}

void sml_operations_end_waiting_locked(struct sml_job *job) {
  struct sml_member_operation *next;
  for (struct sml_member_operation *o = job->state.oldest; o; o = next) {
    struct sml_operation *op = sml_operation_of(o);
    const bool is_detached = op->is_released;
    next = o->next;
    if (o->is_begun) continue;
    sml_member_job_remove(&job->state, o);
    sml_operation_publish_end_locked(job, op, false);
    if (is_detached) sml_operation_give_back(op);
  }
  sml_batch_fail_locked(&job->batch, job);
}

/* ---- replays ---- */

/* Whether there is memory for what its method needs. */
static bool fits(const struct sml_job *job, struct sml_operation *op) {
  return job->method->ops->fit == NULL || job->method->ops->fit(job->method, &op->engine, op->codes_bytes);
}

static struct sml_operation *make_replay(struct sml_job *job, struct sml_retained *retained,
                                         uint64_t now_ns) {
  struct sml_operation *op = calloc(1, sizeof *op);
  if (op == NULL) return NULL;
  op->context = job->context;
  op->job = job;
  op->kind = &replay_kind;
  op->order.is_replay = op->is_released = true;
  op->retained = retained;
  op->engine.in = retained->data; /* and out NULL: the caller has had the result */
  op->engine.plan = retained->plan;
  op->engine.on_ended = on_ended;
  op->order.number = retained->plan.number;
  op->order.submitted_ns = now_ns;
  op->order.deadline_ns = sml_deadline_after(now_ns, job->operation_timeout_ns);
  op->order.last_deadline_ns = sml_deadline_after(op->order.deadline_ns, job->state.retry.retry_ns);
  atomic_store_explicit(&op->status, SML_IN_PROGRESS, memory_order_relaxed);
  if (fits(job, op)) return op;
  sml_operation_give_back(op);
  return NULL;
}

bool sml_operations_add_replays_locked(struct sml_job *job, uint64_t now_ns) {
  struct sml_member_input *input = NULL;
  while ((input = sml_member_inputs_next_replay(&job->retained.listed, input)) != NULL) {
    struct sml_operation *op = make_replay(job, (struct sml_retained *)input, now_ns);
    if (op == NULL) return false;
    input->reader = op;
    sml_member_job_insert(&job->state, &op->order);
  }
  return true;
}

void sml_operations_drop_replays_locked(struct sml_job *job) {
  struct sml_member_operation *next;
  for (struct sml_member_operation *o = job->state.oldest; o; o = next) {
    next = o->next;
    if (!o->is_replay) continue;
    sml_member_job_remove(&job->state, o);
    sml_operation_of(o)->retained->input.reader = NULL;
    sml_operation_give_back(sml_operation_of(o));
  }
}

/* ---- submission ---- */

sml_status sml_job_check(const sml_job *job) {
  if (job == NULL) return sml_fail(SML_ERR_INVALID_ARGUMENT, "job is NULL");
  return sml_context_is_forked(job->context) ? sml_context_fail_forked() : SML_OK;
}

const struct sml_job_shape *sml_job_shape(const struct sml_job *job) {
  return &job->shape;
}

pthread_mutex_t *sml_job_lock(struct sml_job *job) {
  return &job->lock;
}

struct sml_batch *sml_job_batch(struct sml_job *job) {
  return &job->batch;
}

struct sml_exact_operation **sml_job_spare_exact(struct sml_job *job) {
  return &job->spare_exact;
}

/* The epoch has no room for the next operation. */
static void fill_epoch_locked(struct sml_job *job, bool is_new) {
  struct sml_ctl_abort failure;
  if (sml_member_job_on_full(&job->state, is_new, &failure) == SML_MEMBER_STEP_FAIL)
    sml_job_fail_locked(job, &failure, true);
  else if (job->state.num_begun == 0) sml_control_wake(&job->context->control);
}

/* True: there was one to push. */
static bool push_locked(struct sml_job *job, bool caller_runs) {
  const struct sml_method_ops *ops = job->method->ops;
  const uint32_t ring_room = job->context->settings.num_operations;
  struct sml_member_operation *o;
  bool has_pushed = false;
  while ((o = sml_member_job_next(&job->state, ops->max_begun != 0 ? ops->max_begun : ring_room)) != NULL) {
    struct sml_operation *op = sml_operation_of(o);
    const enum sml_method_room room =
        ops->take_room != NULL ? ops->take_room(job->method, &op->engine.plan) : SML_ROOM_TAKEN;
    if (room != SML_ROOM_TAKEN) {
      fill_epoch_locked(job, room == SML_ROOM_IN_NONE);
      break;
    }
    sml_member_job_begin(&job->state, o);
    has_pushed = true;
    ops->begin(job->method, &op->engine, caller_runs);
  }
  return has_pushed;
}

void sml_operations_push_locked(struct sml_job *job) {
  (void)push_locked(job, false);
}

/* Its place in the job's order, or those of its members. True: somebody sleeps for it already. */
static bool take_number_locked(struct sml_job *job, struct sml_operation *op) {
  bool is_awaited = op->num_waiters > 0;
  op->engine.plan.number = op->order.number = job->state.next_number;
  op->is_noted = false;
  const uint32_t num = sml_batch_number_locked(op, job->state.next_number, &is_awaited);
  job->state.next_number += num;
  if (is_awaited) pthread_cond_broadcast(&job->changed); /* it was noted until now: who waits may drive */
  return is_awaited;
}

void sml_operation_reserve_locked(struct sml_operation *op, struct sml_member_reservation *numbers,
                                  uint64_t num_numbers) {
  struct sml_job *job = op->job;
  sml_member_job_reserve(&job->state, numbers, num_numbers);
  op->engine.plan.number = op->order.number = numbers->number;
  job->num_extra_numbers += num_numbers - 1;
  trace(job, op, "submitted", SML_TRACE_OPERATION_SUBMITTED, op->order.submitted_ns);
}

static void insert_locked(struct sml_operation *op) {
  if (op->retained != NULL) {
    op->retained->plan = op->engine.plan;
    sml_retained_append(&op->job->retained, op->retained, op);
  }
  sml_member_job_insert(&op->job->state, &op->order);
}

bool sml_operation_insert_reserved_locked(struct sml_operation *op, struct sml_member_reservation *numbers) {
  struct sml_member_job *j = &op->job->state;
  if (j->phase == SML_MEMBER_HAS_FAILED) return false;
  op->engine.plan.number = op->order.number = sml_member_job_take_reserved(j, numbers);
  insert_locked(op);
  return true;
}

void sml_operation_drop_copy_locked(struct sml_job *job, struct sml_operation *op) {
  if (op->retained != NULL) sml_retained_give_back(&job->retained, op->retained);
  op->retained = NULL;
}

static sml_status submit(struct sml_job *job, struct sml_operation *op) {
  const struct sml_engine_operation *engine = &op->engine;
  pthread_mutex_lock(&job->lock);
  /* An empty one needs nobody: those who have left cannot be missing in it. */
  const bool is_empty = engine->plan.num_elems == 0 && job->state.phase != SML_MEMBER_HAS_FAILED;
  const sml_status status = is_empty ? SML_OK : sml_job_refuse_locked(job);
  bool needs_pass = false;
  if (status == SML_OK) {
    const bool is_driven = job->method->ops->drive != NULL && sml_callers_run(&job->num_at_once, &engine->plan);
    const bool caller_runs = !take_number_locked(job, op) && (op->is_small || is_driven);
    trace(job, op, "submitted", SML_TRACE_OPERATION_SUBMITTED, op->order.submitted_ns);
    if (engine->plan.num_elems > 0) {
      insert_locked(op);
      needs_pass = push_locked(job, caller_runs) && caller_runs && op->is_small;
    } else {
      sml_operation_publish_end_locked(job, op, true);
    }
  } else {
    sml_operation_drop_copy_locked(job, op);
  }
  pthread_mutex_unlock(&job->lock);
  struct sml_engine_thread *thread = needs_pass ? &job->engines->units[0].thread : NULL;
  if (needs_pass && !sml_engine_thread_try_call(thread)) sml_engine_thread_wake(thread);
  return status;
}

bool sml_job_runs_small(const struct sml_job *job) {
  return job->method->ops->is_run_by_callers && sml_job_lanes_run_small(&job->lanes);
}

bool sml_job_makes_lanes(const struct sml_job *job) {
  return job->method == &job->lanes.method && job->state.retry.retry_ns == 0;
}

bool sml_job_sums_in_memory(const struct sml_job *job) {
  return job->method != &job->lanes.method && job->state.start.is_one_host;
}

void sml_operation_prepare(struct sml_operation *op, struct sml_job *job, const void *in, void *out,
                           const struct sml_operation_plan *plan, uint64_t timeout_ns) {
  struct sml_engine_operation *engine = &op->engine; /* its codes stay */
  engine->in = in;
  engine->out = out;
  engine->plan = *plan;
  engine->on_ended = on_ended;
  atomic_store_explicit(&engine->status, SML_OK, memory_order_relaxed);
  atomic_store_explicit(&op->status, SML_IN_PROGRESS, memory_order_relaxed);
  op->job = job;
  op->next_member = NULL; /* of a batch, which the pool's entry was in before */
  op->retained = NULL;
  op->is_released = op->is_noted = false;
  op->is_small = sml_job_runs_small(job) && sml_callers_run(&job->num_at_once, plan);
  atomic_store_explicit(&op->returned_ns, 0, memory_order_relaxed);
  op->num_waiters = 0;
  op->order = (struct sml_member_operation){.submitted_ns = sml_clock_ns()};
  op->order.deadline_ns =
      sml_deadline_after(op->order.submitted_ns, timeout_ns != 0 ? timeout_ns : job->operation_timeout_ns);
  op->order.last_deadline_ns = sml_deadline_after(op->order.deadline_ns, job->state.retry.retry_ns);
}

sml_status sml_operation_fit(struct sml_operation *op) {
  struct sml_job *job = op->job;
  const uint64_t num_bytes = op->engine.plan.num_elems * sml_format_elem_bytes(op->engine.plan.type);
  if (!fits(job, op))
    return sml_fail(SML_ERR_NO_MEMORY, "no memory for an operation's exponent codes");
  if (job->state.retry.retry_ns == 0 || job->state.world_size == 1 || num_bytes == 0) return SML_OK;
  const sml_status status = sml_retained_copy(&job->retained, op->engine.in, num_bytes, &op->retained);
  if (status == SML_OK) op->engine.in = op->retained->data;
  return status;
}

sml_status sml_operation_submit(struct sml_operation *op) {
  const sml_status status = sml_operation_fit(op);
  return status == SML_OK ? submit(op->job, op) : status;
}

void sml_operation_fail_job(const struct sml_operation *op, sml_status status) {
  struct sml_job *job = op->job;
  const struct sml_ctl_abort failure = sml_member_failure(status, "rank %u: %s", job->state.rank, sml_error_detail());
  pthread_mutex_lock(&job->lock);
  if (job->state.phase != SML_MEMBER_HAS_FAILED) sml_job_fail_locked(job, &failure, true);
  pthread_mutex_unlock(&job->lock);
}

void sml_operation_abandon(struct sml_operation *op, sml_status status) {
  struct sml_job *job = op->job;
  sml_operation_fail_job(op, status);
  pthread_mutex_lock(&job->lock);
  const bool is_detached = op->is_released;
  sml_operation_publish_end_locked(job, op, false);
  if (is_detached) sml_operation_give_back(op);
  pthread_mutex_unlock(&job->lock);
}

/* ---- the caller's handle ---- */

static sml_status load_status(const struct sml_operation *op) {
  return (sml_status)atomic_load_explicit(&op->status, memory_order_acquire); /* pairs with its end */
}

/* An operation only ever fails with its job, whose error is constant by then, but for where the trace is. */
static sml_status report(const struct sml_operation *op, sml_status status) {
  if (status >= 0) return status;
  pthread_mutex_lock(&op->job->lock);
  sml_job_await_dump_locked(op->job);
  sml_fail(status, "%s", op->job->state.error.detail);
  pthread_mutex_unlock(&op->job->lock);
  return status;
}

static bool has_ended(const void *operation) {
  return load_status(operation) != SML_IN_PROGRESS;
}

sml_status sml_operation_test(sml_operation *operation) {
  SML_UNCANCELLED;
  if (operation == NULL) return sml_fail(SML_ERR_INVALID_ARGUMENT, "operation is NULL");
  if (sml_context_is_forked(operation->context)) return sml_context_fail_forked();
  struct sml_job *job = operation->job;
  if (operation->is_small && !has_ended(operation)) (void)sml_engine_thread_try_run(&job->engines->units[0].thread);
  if (job->method->ops->drive != NULL && !has_ended(operation)) {
    pthread_mutex_lock(&job->lock); /* who works does not hold it */
    if (!has_ended(operation)) job->method->ops->drive(job->method, has_ended, operation, 0);
    pthread_mutex_unlock(&job->lock);
  }
  return report(operation, load_status(operation));
}

sml_status sml_operation_wait(sml_operation *operation, uint64_t timeout_ns) {
  SML_UNCANCELLED;
  if (operation != NULL && timeout_ns != 0) sml_note_wait(operation, &operation->job->num_at_once);
  if (operation == NULL || timeout_ns == 0 || has_ended(operation)) return sml_operation_test(operation);
  if (sml_context_is_forked(operation->context)) return sml_context_fail_forked();
  sml_status status;
  struct sml_job *job = operation->job;
  bool (*const drive)(struct sml_method *, bool (*)(const void *), const void *, uint64_t) = job->method->ops->drive;
  const uint64_t deadline_ns = sml_min_u64(sml_deadline_after(sml_clock_ns(), timeout_ns), INT64_MAX);
  const struct timespec deadline = sml_timespec(deadline_ns);
  int error = 0;
  if (operation->is_small) {
    sml_engine_thread_drive(&job->engines->units[0].thread, has_ended, operation, deadline_ns);
    if (has_ended(operation)) return report(operation, load_status(operation));
    sml_engine_thread_want(&job->engines->units[0].thread);
  }
  pthread_mutex_lock(&job->lock);
  operation->num_waiters++;
  while ((status = load_status(operation)) == SML_IN_PROGRESS && error == 0) {
    if (drive != NULL && !operation->is_noted && drive(job->method, has_ended, operation, deadline_ns))
      error = sml_clock_ns() >= deadline_ns ? ETIMEDOUT : 0;
    else error = pthread_cond_timedwait(&job->changed, &job->lock, &deadline);
  }
  status = load_status(operation);
  operation->num_waiters--;
  pthread_mutex_unlock(&job->lock);
  return report(operation, status);
}

sml_status sml_operation_error(sml_operation *operation, sml_error *error_out) {
  SML_UNCANCELLED;
  const sml_status status = sml_operation_test(operation);
  if (error_out == NULL || operation == NULL || status == SML_ERR_FORKED) return status;
  const sml_error none = SML_ERROR_INIT;
  pthread_mutex_lock(&operation->job->lock);
  const sml_error of_job = operation->job->state.error;
  pthread_mutex_unlock(&operation->job->lock);
  const sml_status copied = sml_error_copy(error_out, status < 0 ? &of_job : &none);
  return copied != SML_OK ? copied : status;
}

void sml_operation_release(sml_operation *operation) {
  SML_UNCANCELLED;
  if (operation == NULL || sml_context_is_forked(operation->context)) return;
  struct sml_job *job = operation->job;
  pthread_mutex_lock(&job->lock);
  const bool has_ended = load_status(operation) != SML_IN_PROGRESS;
  if (!has_ended) operation->is_released = true;
  pthread_mutex_unlock(&job->lock);
  if (has_ended) sml_operation_give_back(operation);
}
