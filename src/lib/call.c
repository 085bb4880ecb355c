/* SPDX-License-Identifier: Apache-2.0
 * A call becomes an operation: what is asked for is checked, a plan is made of it, and it goes its way. */
#include <stdlib.h>

#include "lib/at_once.h"
#include "lib/batch.h"
#include "lib/exact_operation.h"
#include "lib/gathered.h"
#include "lib/operation.h"
#include "lib/uncancelled.h"
#include "meet/types.h"
#include "method/lanes.h"
#include "quant/images.h"
#include "quant/limbs.h"

/* One operation's chunks in one lane: far beyond any tensor, far below what an epoch holds. */
#define MAX_CHUNKS (UINT64_C(1) << 31)

/* Then starts of tensors mean nothing: the sum is the same. */
static bool wants_exact(const struct sml_job_shape *shape, const sml_operation_options *o) {
  return o->exact != 0 ? o->exact == 1 : shape->is_exact;
}

/* What the job sums for a call with these options. */
static struct sml_format_options formats_for(const struct sml_job_shape *shape,
                                             const sml_operation_options *o) {
  struct sml_format_options formats = shape->formats;
  if (wants_exact(shape, o)) formats.float64_bits = 96; /* of any length */
  return formats;
}

sml_status sml_operation_check_type(const struct sml_job_shape *shape, const sml_operation_options *o, sml_type type,
                                    sml_reduction reduction, size_t count) {
  const struct sml_format_options formats = formats_for(shape, o);
  return sml_type_check(&formats, type, reduction, count, shape->world_size);
}

/* What is to be summed, and in which format: equal on all ranks. */
static struct sml_operation_plan make_plan(const struct sml_job_shape *shape, const sml_operation_options *o,
                                           sml_type type, sml_reduction reduction, size_t count) {
  struct sml_operation_plan plan = {
      .num_elems = count, .key = o->key, .type = (uint8_t)type, .reduction = (uint8_t)reduction};
  const struct sml_format_shape format =
      sml_images_shape(type, reduction, count, shape->world_size, formats_for(shape, o));
  plan.block_elems = format.has_exponents ? SML_BLOCK_ELEMS : 0;
  plan.elem_lanes = format.elem_lanes;
  plan.lane_elems = format.lane_elems;
  plan.wire_reducer = format.combine;
  plan.has_wide_codes = shape->formats.is_of_switch;
  plan.is_narrow = shape->has_narrow_lanes && sml_format_is_narrow(format, shape->world_size);
  return plan;
}

/* What is to be summed, if the job offers that. */
static sml_status check_kind(const struct sml_job_shape *shape, sml_type type, sml_reduction reduction, size_t count,
                             const sml_operation_options *o, struct sml_operation_plan *plan_out) {
  const bool has_starts = o->num_starts > 0 && count > 0 && !wants_exact(shape, o);
  const size_t kind_count = has_starts ? sml_max_u64(count, SML_LIMBS_MAX_ELEMS + 1) : count;
  if (o->exact > 2) return sml_fail(SML_ERR_INVALID_ARGUMENT, "exact is %u: 1, 2, or 0 as the job has it", o->exact);
  sml_status status = sml_operation_check_type(shape, o, type, reduction, kind_count);
  if (status == SML_OK) status = sml_tensors_check(o, count);
  if (status != SML_OK) return status;
  if (count > PTRDIFF_MAX / sml_format_elem_bytes((uint32_t)type))
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "count is %zu: no buffer is that large", count);
  *plan_out = make_plan(shape, o, type, reduction, kind_count);
  plan_out->num_elems = count;
  if (has_starts && plan_out->block_elems != 0 && shape->world_size > 1) {
    plan_out->num_elems = sml_tensors_filled(o->starts, o->num_starts, count);
    plan_out->key = sml_tensors_key(o->starts, o->num_starts, o->key);
  }
  if (shape->world_size == 1) return SML_OK;
  struct sml_range range;
  sml_job_lanes_range(shape->lanes, plan_out, 0, &range);
  if (range.num_chunks <= MAX_CHUNKS) return SML_OK;
  return sml_fail(SML_ERR_UNSUPPORTED, "%zu elements are too many for one operation: cut the tensor", count);
}

/* Copies are of bytes, and need no format. */
static void set_way(struct sml_operation_plan *plan, const struct sml_job_shape *shape, uint8_t way,
                    const uint64_t *parts) {
  if (way == SML_REDUCE_COPY) {
    *plan = (struct sml_operation_plan){
        .num_elems = plan->num_elems, .key = plan->key, .type = plan->type, .reduction = plan->reduction};
  }
  plan->way = way;
  plan->num_parts = shape->world_size;
  plan->parts = parts;
}

/* PROTOCOL.md rule R217. Two elements of a lane must not belong to two ranks. */
bool sml_operation_goes_one_way(const struct sml_job_shape *shape, const struct sml_call *call) {
  const sml_operation_options *o = call->options;
  const struct sml_collective *c = call->collective;
  const bool is_copy = c->way == SML_REDUCE_COPY;
  if (!sml_job_lanes_go_one_way(shape->lanes)) return false;
  const struct sml_operation_plan plan = make_plan(shape, o, call->type, call->reduction, call->count);
  if (plan.block_elems != 0 && (wants_exact(shape, o) || o->num_starts > 0)) return false;
  for (uint32_t r = 0; r < shape->world_size && !is_copy; r++)
    if (plan.wire_reducer != 0 || c->parts[r] % sml_max_u32(plan.lane_elems, 1) != 0) return false;
  const uint64_t num_bytes = is_copy ? call->count : 4 * sml_plan_lanes(&plan);
  return num_bytes / shape->lanes->chunk_bytes > sml_job_lanes_least_one_way(shape->lanes);
}

static sml_status check_buffers(const void *in, const void *out, size_t count, size_t elem_bytes) {
  if (count == 0) return SML_OK;
  if (in == NULL || out == NULL)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "%s is NULL, but count is %zu", in == NULL ? "in" : "out", count);
  const uintptr_t a = (uintptr_t)in, b = (uintptr_t)out, num_bytes = count * elem_bytes;
  if (a != b && (a < b ? b - a : a - b) < num_bytes)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "in and out overlap: they must be equal or disjoint");
  return SML_OK;
}

int sml_supported(const sml_job *job, sml_type type, sml_reduction reduction, size_t count) {
  const sml_operation_options none = SML_OPERATION_OPTIONS_INIT;
  struct sml_operation_plan plan;
  return sml_job_check(job) == SML_OK &&
         check_kind(sml_job_shape(job), type, reduction, count, &none, &plan) == SML_OK;
}

static void take_blocks_off(struct sml_operation_plan *plan) {
  plan->block_elems = plan->elem_lanes = plan->lane_elems = 0;
}

/* In a batch small sums share packets as they are. */
static bool is_gathered(sml_job *job, const struct sml_operation_plan *plan, bool is_exact) {
  const struct sml_job_shape *shape = sml_job_shape(job);
  const struct sml_gathered_job of_job = {
      .formats = &shape->formats, .num_ranks = shape->world_size, .rtt_ns = shape->rtt_ns};
  return sml_gathered_takes(&of_job, plan, is_exact) && !sml_job_sums_in_memory(job) &&
         !sml_batch_is_begun(sml_job_batch(job));
}

static sml_status gather(const struct sml_job_shape *shape, struct sml_operation *op, struct sml_call *call,
                         bool is_exact, struct sml_operation_plan *plan) {
  if (op->gathered_room == NULL)
    op->gathered_room = aligned_alloc(_Alignof(struct sml_gathered), sizeof(struct sml_gathered));
  op->gathered = op->gathered_room;
  if (op->gathered == NULL) return sml_fail(SML_ERR_NO_MEMORY, "no memory for the inputs of a small sum");
  if (is_exact) take_blocks_off(plan);
  const struct sml_gathered_call gathered = {.rank = shape->rank,
                                             .num_ranks = shape->world_size,
                                             .kernels = op->context->settings.kernels,
                                             .in = call->in,
                                             .out = call->out,
                                             .is_exact = is_exact};
  sml_gathered_begin(op->gathered, &gathered, plan);
  call->in = call->out = op->gathered->lanes;
  return SML_OK;
}

/* For whom it sums, other than where its caller wants the sum as it is; and how, where the plan becomes another. */
static sml_status attach(sml_job *job, struct sml_operation *op, struct sml_call *call,
                         const sml_operation_options *o, struct sml_operation_plan *plan) {
  if (plan->num_elems != call->count) {
    op->tensors =
        sml_tensors_fill(o, call->in, call->out, call->count, sml_format_elem_bytes((uint32_t)call->type));
    if (op->tensors == NULL) return sml_fail(SML_ERR_NO_MEMORY, "no memory for a copy of %zu elements", call->count);
    call->in = call->out = op->tensors->filled;
  }
  op->collective = call->collective;
  const bool is_exact = wants_exact(sml_job_shape(job), o);
  return is_gathered(job, plan, is_exact) ? gather(sml_job_shape(job), op, call, is_exact, plan) : SML_OK;
}

sml_status sml_operation_call(sml_job *job, struct sml_call *call, sml_operation **operation_out) {
  if (operation_out == NULL) return sml_fail(SML_ERR_INVALID_ARGUMENT, "operation_out is NULL");
  *operation_out = NULL;
  sml_status status = sml_job_check(job);
  if (status != SML_OK) return status;
  const struct sml_job_shape *shape = sml_job_shape(job);
  sml_operation_options o = SML_OPERATION_OPTIONS_INIT;
  if (call->options != NULL) status = sml_options_copy(&o, sizeof o, call->options, "sml_operation_options");
  if (call->collective != NULL) o.key = sml_collective_key(call->collective, o.key);
  struct sml_operation_plan plan;
  if (status == SML_OK) status = check_kind(shape, call->type, call->reduction, call->count, &o, &plan);
  const struct sml_collective *c = call->collective;
  if (status == SML_OK && c != NULL && c->way != SML_REDUCE_SUM) set_way(&plan, shape, c->way, c->parts);
  else if (status == SML_OK)
    status = check_buffers(call->in, call->out, call->count, sml_format_elem_bytes((uint32_t)call->type));
  struct sml_operation *op = NULL;
  if (status == SML_OK) status = sml_operation_take(job, &op);
  if (status != SML_OK) return status;
  status = attach(job, op, call, &o, &plan);
  bool is_noted = false;
  uint64_t look_ns = 0;
  if (status == SML_OK) {
    sml_operation_prepare(op, job, call->in, call->out, &plan, o.timeout_ns);
    /* Read now: once submitted it may end at any moment. Long before its deadline the control thread comes. */
    const struct sml_member_operation *order = &op->order;
    const uint64_t time_ns = order->deadline_ns - order->submitted_ns;
    look_ns = order->deadline_ns - sml_min_u64(SML_MEMBER_ASK_NS, time_ns / 2);
    if (shape->world_size > 1) status = sml_batch_note(sml_job_batch(job), op, &is_noted);
  }
  const bool is_exact = plan.block_elems != 0 && call->count > 0 && wants_exact(shape, &o) && shape->world_size > 1;
  const bool has_stages = is_exact && !sml_job_sums_in_memory(job);
  /* All inputs are there: it goes like a short exact sum. It is in no batch: those have lanes. */
  if (is_exact && !has_stages) take_blocks_off(&op->engine.plan);
  if (status == SML_OK && !is_noted) status = has_stages ? sml_exact_operation_submit(op) : sml_operation_submit(op);
  if (status != SML_OK) {
    op->collective = NULL; /* the caller's again */
    sml_operation_give_back(op);
    return status;
  }
  if (shape->world_size > 1) sml_control_wake_by(&op->context->control, look_ns);
  sml_note_return(op, &plan);
  *operation_out = op;
  return SML_OK;
}

