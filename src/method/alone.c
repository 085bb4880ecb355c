/* SPDX-License-Identifier: Apache-2.0 */
#include "method/alone.h"

static void begin(struct sml_method *r, struct sml_engine_operation *op, bool caller_runs) {
  (void)caller_runs;
  if (op->in != op->out) memcpy(op->out, op->in, op->plan.num_elems * sml_format_elem_bytes(op->plan.type));
  r->owner_ops->ended(r->owner, op, SML_OK);
}

static void fail(struct sml_method *r, sml_status status) {
  (void)r;
  (void)status;
}

static void find_wait(const struct sml_method *r, struct sml_member_wait *out) {
  (void)r;
  out->kind = SML_WAIT_NONE_BEGUN;
}

static void add_figures(const struct sml_method *r, sml_stats *stats) {
  (void)r;
  (void)stats;
}

const struct sml_method_ops sml_alone = {.is_alone = true,
                                          .max_begun = 1,
                                          .take_room = sml_method_has_room,
                                          .fit = sml_method_fits,
                                          .begin = begin,
                                          .fail = fail,
                                          .set_gone = sml_method_ignore_gone,
                                          .resume = sml_method_ignore,
                                          .wait = find_wait,
                                          .add_figures = add_figures,
                                          .close = sml_method_ignore};
