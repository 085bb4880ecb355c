/* SPDX-License-Identifier: Apache-2.0 */
#include "method/alone.h"

#include "quant/images.h"

static void begin(struct sml_method *r, struct sml_engine_operation *op, bool caller_runs) {
  (void)caller_runs;
  const struct sml_operation_plan *plan = &op->plan;
  const struct sml_images images = sml_images_of(plan->type, plan->reduction, sml_engine_shape(plan));
  if (plan->reduction >= SML_FORMAT_LAND)
    sml_images_reduce(&sml_quant_scalar, op->out, &op->in, 1, plan->num_elems, images);
  else if (op->in != op->out) memcpy(op->out, op->in, op->plan.num_elems * sml_format_elem_bytes(op->plan.type));
  r->owner_ops->summed(op);
  r->owner_ops->ended(r->owner, op, SML_OK);
}

static void find_wait(const struct sml_method *r, struct sml_member_wait *out) {
  (void)r;
  out->kind = SML_WAIT_NONE_BEGUN;
}

const struct sml_method_ops sml_alone = {.max_begun = 1, .begin = begin, .wait = find_wait};
