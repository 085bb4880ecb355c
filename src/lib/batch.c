/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/batch.h"

#include <stdio.h>
#include <stdlib.h>

#include "lib/operation.h"
#include "lib/uncancelled.h"

#define KEY_START UINT64_C(0x6261746368310001) /* any constant; part of wire version 1 */

struct sml_batch_buffer {
  struct sml_operation operation; /* first: stands for its members */
  struct sml_batch *batch;
  struct sml_batch_buffer *next_unused;
  struct sml_operation *last_member;
  uint32_t num_lanes;
  _Alignas(64) int32_t lanes[SML_BATCH_LANES];
};

/* ---- an operation <-> its lanes ---- */

static uint64_t lanes_of(const struct sml_operation *op) {
  return sml_plan_lanes(&op->engine.plan);
}

/* Lanes as they are on the wire, of one operation. */
union wire_lanes {
  uint8_t bytes[4 * SML_BATCH_MEMBER_LANES];
  uint64_t alignment;
};

static void put_member(const struct sml_batch *batch, const struct sml_operation *m, int32_t *lanes) {
  const size_t num_elems = (size_t)m->engine.plan.num_elems;
  const struct sml_quant_kernels *k = batch->context->settings.kernels;
  union wire_lanes wire;
  if (m->engine.plan.type == SML_INT32) {
    memcpy(lanes, m->engine.in, num_elems * sizeof *lanes);
    return;
  }
  sml_engine_format(&m->engine.plan)->put(k, wire.bytes, m->engine.in, num_elems, 0, batch->world_size);
  k->unpack_int32(lanes, wire.bytes, (size_t)lanes_of(m));
}

static void store_member(const struct sml_batch *batch, const struct sml_operation *m, const int32_t *lanes) {
  const size_t num_elems = (size_t)m->engine.plan.num_elems;
  const struct sml_quant_kernels *k = batch->context->settings.kernels;
  union wire_lanes wire;
  if (m->engine.plan.type == SML_INT32) {
    memcpy(m->engine.out, lanes, num_elems * sizeof *lanes);
    return;
  }
  k->pack_int32(wire.bytes, lanes, (size_t)lanes_of(m));
  sml_engine_format(&m->engine.plan)->get(k, m->engine.out, wire.bytes, num_elems, 0, batch->world_size,
                                          m->engine.plan.reduction == SML_AVG);
}

/* ---- buffers ---- */

static struct sml_batch_buffer *buffer_of(struct sml_operation *op) {
  return (struct sml_batch_buffer *)(void *)op;
}

static void store_members(struct sml_operation *op) {
  const int32_t *lanes = op->engine.out;
  for (struct sml_operation *m = op->members; m; m = m->next_member) {
    store_member(buffer_of(op)->batch, m, lanes);
    lanes += lanes_of(m);
    if (m->kind->summed != NULL) m->kind->summed(m);
  }
}

static bool open_buffer_locked(struct sml_batch *batch) {
  struct sml_batch_buffer *b = batch->unused;
  if (b != NULL) batch->unused = b->next_unused;
  else b = aligned_alloc(64, sml_align_up(sizeof *b, 64));
  if (b == NULL) return false;
  memset(&b->operation, 0, sizeof b->operation);
  b->operation.context = batch->context;
  b->operation.kind = &sml_batch_kind;
  b->batch = batch;
  b->num_lanes = 0;
  batch->open = b;
  return true;
}

static struct sml_batch_buffer *close_buffer_locked(struct sml_batch *batch) {
  struct sml_batch_buffer *b = batch->open;
  batch->open = NULL;
  return b;
}

static void append(struct sml_batch_buffer *b, struct sml_operation *m) {
  m->is_noted = true;
  m->next_member = NULL;
  if (b->operation.members == NULL) b->operation.members = m;
  else b->last_member->next_member = m;
  b->last_member = m;
  b->operation.num_members++;
  b->num_lanes += (uint32_t)lanes_of(m);
}

/* The lock is held: it ends so, and nobody has its handle. */
static void give_back(struct sml_operation *op) {
  struct sml_batch_buffer *b = buffer_of(op);
  b->next_unused = b->batch->unused;
  b->batch->unused = b;
}

void sml_batch_free_all(struct sml_batch *batch) {
  for (struct sml_batch_buffer *b = batch->unused, *next; b; b = next) {
    next = b->next_unused;
    free(b);
  }
}

/* ---- ends ---- */

static void end_members(struct sml_job *job, struct sml_operation *op, bool is_ok) {
  struct sml_operation *next;
  for (struct sml_operation *m = op->members; m; m = next) {
    next = m->next_member; /* once its end is published it may be another's */
    const bool is_detached = m->is_released;
    sml_operation_publish_end_locked(job, m, is_ok);
    if (is_detached) sml_operation_give_back(m);
  }
  op->members = NULL;
}

void sml_batch_fail_locked(struct sml_batch *batch, struct sml_job *job) {
  struct sml_batch_buffer *b = close_buffer_locked(batch);
  if (b == NULL) return;
  end_members(job, &b->operation, false);
  give_back(&b->operation);
}

static void describe(const struct sml_operation *op, char *text, size_t text_bytes) {
  const uint64_t first = op->engine.plan.number;
  snprintf(text, text_bytes, "operations %llu to %llu (a batch of %u)", (unsigned long long)first,
           (unsigned long long)first + op->num_members - 1, op->num_members);
}

const struct sml_operation_kind sml_batch_kind = {
    .describe = describe, .summed = store_members, .ended = end_members, .give_back = give_back};

const struct sml_operation *sml_batch_first_due(const struct sml_operation *members) {
  const struct sml_operation *first = members;
  for (const struct sml_operation *m = members; m; m = m->next_member)
    if (m->order.deadline_ns < first->order.deadline_ns) first = m;
  return first;
}

const struct sml_operation *sml_batch_first_noted_due_locked(const struct sml_batch *batch) {
  return batch->open != NULL ? sml_batch_first_due(batch->open->operation.members) : NULL;
}

/* ---- submission ---- */

uint32_t sml_batch_number_locked(struct sml_operation *op, uint64_t number, bool *is_awaited_out) {
  uint32_t num = op->members == NULL ? 1 : 0;
  for (struct sml_operation *m = op->members; m; m = m->next_member) {
    m->engine.plan.number = m->order.number = number + num++;
    m->is_noted = false;
    *is_awaited_out = *is_awaited_out || m->num_waiters > 0;
  }
  return num;
}

/* What every rank must have called alike, in the place of a caller's key. */
static uint64_t hash_member(uint64_t h, const struct sml_operation_plan *plan) {
  const uint64_t fields[] = {
      plan->num_elems, (uint64_t)plan->elem_lanes << 16 | (uint64_t)plan->type << 8 | plan->reduction, plan->key};
  for (size_t i = 0; i < SML_ARRAY_LEN(fields); i++) h = sml_mix64(h ^ fields[i]) + UINT64_C(0x9e3779b97f4a7c15);
  return h;
}

/* The operation that stands for all of the buffer's. */
static struct sml_operation *make_whole(struct sml_job *job, struct sml_batch_buffer *b) {
  struct sml_operation *op = &b->operation;
  struct sml_operation_plan plan = {
      .num_elems = b->num_lanes, .key = KEY_START, .type = SML_INT32, .reduction = SML_SUM};
  int32_t *lanes = b->lanes;
  for (struct sml_operation *m = op->members; m; m = m->next_member) {
    plan.key = hash_member(plan.key, &m->engine.plan);
    put_member(b->batch, m, lanes);
    lanes += lanes_of(m);
  }
  sml_operation_prepare(op, job, b->lanes, b->lanes, &plan, 0);
  const struct sml_operation *due = sml_batch_first_due(op->members);
  op->order.deadline_ns = due->order.deadline_ns;
  op->order.last_deadline_ns = due->order.last_deadline_ns;
  op->is_small = sml_job_runs_small(job); /* however many */
  op->is_released = true;                 /* nobody has its handle */
  return op;
}

/* A batch of one operation goes as if there were no batch. */
static sml_status submit(struct sml_job *job, struct sml_batch_buffer *b) {
  struct sml_operation *op = b->operation.members;
  if (b->operation.num_members > 1) {
    op = make_whole(job, b);
  } else {
    pthread_mutex_lock(b->batch->lock);
    give_back(&b->operation);
    pthread_mutex_unlock(b->batch->lock);
  }
  const sml_status status = sml_operation_submit(op);
  if (status != SML_OK) sml_operation_abandon(op, status);
  return status;
}

sml_status sml_batch_note(struct sml_batch *batch, struct sml_operation *op, bool *is_noted_out) {
  *is_noted_out = false;
  if (!sml_batch_is_begun(batch)) return SML_OK;
  const struct sml_operation_plan *plan = &op->engine.plan;
  const bool is_sum_of_lanes = plan->block_elems == 0 && plan->wire_reducer == 0 && plan->way == SML_REDUCE_SUM;
  if (plan->num_elems == 0 || !is_sum_of_lanes || lanes_of(op) > SML_BATCH_MEMBER_LANES) return SML_OK;
  struct sml_batch_buffer *full = NULL;
  pthread_mutex_lock(batch->lock);
  sml_status status = sml_job_refuse_locked(op->job);
  if (status == SML_OK) {
    if (batch->open != NULL && batch->open->num_lanes + lanes_of(op) > SML_BATCH_LANES)
      full = close_buffer_locked(batch);
    *is_noted_out = batch->open != NULL || open_buffer_locked(batch);
    if (*is_noted_out) append(batch->open, op);
    else status = sml_fail(SML_ERR_NO_MEMORY, "no memory for a batch of operations");
  }
  pthread_mutex_unlock(batch->lock);
  if (full != NULL) (void)submit(op->job, full); /* if it fails so does the job, and all that is noted */
  return status;
}

/* ---- the caller's ---- */

sml_status sml_batch_begin(sml_job *job) {
  SML_UNCANCELLED;
  const sml_status status = sml_job_check(job);
  if (status != SML_OK) return status;
  struct sml_batch *batch = sml_job_batch(job);
  pthread_mutex_lock(batch->lock);
  (void)atomic_fetch_add_explicit(&batch->depth, 1, memory_order_relaxed);
  pthread_mutex_unlock(batch->lock);
  return SML_OK;
}

sml_status sml_batch_end(sml_job *job) {
  SML_UNCANCELLED;
  sml_status status = sml_job_check(job);
  if (status != SML_OK) return status;
  struct sml_batch *batch = sml_job_batch(job);
  struct sml_batch_buffer *b = NULL;
  pthread_mutex_lock(batch->lock);
  const uint32_t depth = atomic_load_explicit(&batch->depth, memory_order_relaxed);
  if (depth > 0) atomic_store_explicit(&batch->depth, depth - 1, memory_order_relaxed);
  if (depth == 1) b = close_buffer_locked(batch);
  status = sml_job_report_locked(job);
  pthread_mutex_unlock(batch->lock);
  if (depth == 0) return sml_fail(SML_ERR_INVALID_ARGUMENT, "no batch of this job was begun");
  return b != NULL ? submit(job, b) : status;
}
