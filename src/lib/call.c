/* SPDX-License-Identifier: Apache-2.0
 * A call becomes an operation: what is asked for is checked, a plan is made of it, and it goes its way. */
#include "lib/at_once.h"
#include "lib/exact_operation.h"
#include "lib/job.h"
#include "lib/operation.h"
#include "lib/uncancelled.h"
#include "meet/types.h"
#include "quant/images.h"
#include "quant/limbs.h"

/* One operation's chunks in one lane: far beyond any tensor, far below what an epoch holds. */
#define MAX_CHUNKS (UINT64_C(1) << 31)

/* Then starts of tensors mean nothing: the sum is the same. */
static bool wants_exact(const struct sml_job *job, const sml_operation_options *o) {
  return o->exact != 0 ? o->exact == 1 : job->is_exact;
}

/* What the job sums for a call with these options. */
static struct sml_format_options formats_for(const struct sml_job *job, const sml_operation_options *o) {
  struct sml_format_options formats = job->formats;
  if (wants_exact(job, o)) formats.float64_bits = 96; /* of any length */
  return formats;
}

sml_status sml_operation_check_type(const sml_job *job, const sml_operation_options *o, sml_type type,
                                    sml_reduction reduction, size_t count) {
  const struct sml_format_options formats = formats_for(job, o);
  return sml_type_check(&formats, type, reduction, count, job->state.world_size);
}

/* What is to be summed, and in which format: equal on all ranks. */
static struct sml_operation_plan make_plan(const struct sml_job *job, const sml_operation_options *o, sml_type type,
                                           sml_reduction reduction, size_t count) {
  struct sml_operation_plan plan = {
      .num_elems = count, .key = o->key, .type = (uint8_t)type, .reduction = (uint8_t)reduction};
  const struct sml_format_shape shape =
      sml_images_shape(type, reduction, count, job->state.world_size, formats_for(job, o));
  plan.block_elems = shape.has_exponents ? SML_BLOCK_ELEMS : 0;
  plan.elem_lanes = shape.elem_lanes;
  plan.lane_elems = shape.lane_elems;
  plan.wire_reducer = shape.combine;
  plan.has_wide_codes = sml_ctl_packet_lanes(&job->state.start) != 0;
  /* Ranks that contribute as one have larger lanes. */
  plan.is_narrow = (job->state.start.features & SML_FEATURE_NARROW) != 0 && job->state.start.num_ranks == 0 &&
                   sml_format_is_narrow(shape, job->state.world_size);
  return plan;
}

/* What is to be summed, if the job offers that. */
static sml_status check_kind(const struct sml_job *job, sml_type type, sml_reduction reduction, size_t count,
                             const sml_operation_options *o, struct sml_operation_plan *plan_out) {
  const bool has_starts = o->num_starts > 0 && count > 0 && !wants_exact(job, o);
  const size_t kind_count = has_starts ? sml_max_u64(count, SML_LIMBS_MAX_ELEMS + 1) : count;
  if (o->exact > 2) return sml_fail(SML_ERR_INVALID_ARGUMENT, "exact is %u: 1, 2, or 0 as the job has it", o->exact);
  sml_status status = sml_operation_check_type(job, o, type, reduction, kind_count);
  if (status == SML_OK) status = sml_tensors_check(o, count);
  if (status != SML_OK) return status;
  if (count > PTRDIFF_MAX / sml_format_elem_bytes((uint32_t)type))
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "count is %zu: no buffer is that large", count);
  *plan_out = make_plan(job, o, type, reduction, kind_count);
  plan_out->num_elems = count;
  if (has_starts && plan_out->block_elems != 0 && job->state.world_size > 1) {
    plan_out->num_elems = sml_tensors_filled(o->starts, o->num_starts, count);
    plan_out->key = sml_tensors_key(o->starts, o->num_starts, o->key);
  }
  if (job->lanes.num_lanes == 0) return SML_OK;
  struct sml_range range;
  sml_job_lanes_range(&job->lanes, plan_out, 0, &range);
  if (range.num_chunks <= MAX_CHUNKS) return SML_OK;
  return sml_fail(SML_ERR_UNSUPPORTED, "%zu elements are too many for one operation: cut the tensor", count);
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
  return job != NULL && !sml_context_is_forked(job->context) &&
         check_kind(job, type, reduction, count, &none, &plan) == SML_OK;
}

static sml_status refuse(struct sml_job *job) {
  pthread_mutex_lock(&job->lock);
  const sml_status status = sml_job_refuse_locked(job);
  pthread_mutex_unlock(&job->lock);
  return status;
}

/* For whom it sums, other than where its caller wants the sum as it is. */
static sml_status attach(struct sml_operation *op, struct sml_call *call, const sml_operation_options *o,
                         const struct sml_operation_plan *plan) {
  if (plan->num_elems != call->count) {
    op->tensors =
        sml_tensors_fill(o, call->in, call->out, call->count, sml_format_elem_bytes((uint32_t)call->type));
    if (op->tensors == NULL) return sml_fail(SML_ERR_NO_MEMORY, "no memory for a copy of %zu elements", call->count);
    call->in = call->out = op->tensors->filled;
  }
  op->collective = call->collective;
  return SML_OK;
}

static sml_status take(sml_job *job, struct sml_operation **op_out) {
  *op_out = sml_operation_take(job->context);
  if (*op_out != NULL) return SML_OK;
  const sml_status status = refuse(job); /* waiting for an operation would not help a failed job */
  if (status != SML_OK) return status;
  return sml_fail(SML_ERR_BUSY, "all %u operations are in use: release one, or raise num_operations",
                  job->context->settings.num_operations);
}

sml_status sml_operation_call(sml_job *job, struct sml_call *call, sml_operation **operation_out) {
  if (operation_out == NULL) return sml_fail(SML_ERR_INVALID_ARGUMENT, "operation_out is NULL");
  *operation_out = NULL;
  if (job == NULL) return sml_fail(SML_ERR_INVALID_ARGUMENT, "job is NULL");
  if (sml_context_is_forked(job->context)) return sml_context_fail_forked();
  sml_operation_options o = SML_OPERATION_OPTIONS_INIT;
  sml_status status =
      call->options != NULL ? sml_options_copy(&o, sizeof o, call->options, "sml_operation_options") : SML_OK;
  if (call->collective != NULL) o.key = sml_collective_key(call->collective, o.key);
  struct sml_operation_plan plan;
  if (status == SML_OK) status = check_kind(job, call->type, call->reduction, call->count, &o, &plan);
  if (status == SML_OK)
    status = check_buffers(call->in, call->out, call->count, sml_format_elem_bytes((uint32_t)call->type));
  struct sml_operation *op = NULL;
  if (status == SML_OK) status = take(job, &op);
  if (status != SML_OK) return status;
  status = attach(op, call, &o, &plan);
  bool is_noted = false;
  uint64_t look_ns = 0;
  if (status == SML_OK) {
    sml_operation_prepare(op, job, call->in, call->out, &plan, o.timeout_ns);
    /* Read now: once submitted it may end at any moment. Long before its deadline the control thread comes. */
    const struct sml_member_operation *order = &op->order;
    const uint64_t time_ns = order->deadline_ns - order->submitted_ns;
    look_ns = order->deadline_ns - sml_min_u64(SML_MEMBER_ASK_NS, time_ns / 2);
    if (!job->method->ops->is_alone) status = sml_batch_note(&job->batch, op, &is_noted);
  }
  const bool is_exact =
      plan.block_elems != 0 && call->count > 0 && wants_exact(job, &o) && !job->method->ops->is_alone;
  if (status == SML_OK && !is_noted) status = is_exact ? sml_exact_operation_submit(op) : sml_operation_submit(op);
  if (status != SML_OK) {
    op->collective = NULL; /* the caller's again */
    sml_operation_give_back(op);
    return status;
  }
  if (job->engines != NULL) sml_control_wake_by(&job->context->control, look_ns);
  sml_note_return(op, &plan);
  *operation_out = op;
  return SML_OK;
}

