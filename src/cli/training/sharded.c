/* SPDX-License-Identifier: Apache-2.0
 * A step of sharded training as FSDP2 makes it on a GPU. Layers are units. In the forward pass the all-gather of a
 * unit is called when that of the unit two before it has come, so the link has one under way and one that waits. In the
 * backward pass the next unit's is called when computing a unit begins, its reduce-scatter when that ends and the
 * reduce-scatter before it is done. An iteration is from one forward pass's start to the next one's. ADR 25. */
#include <math.h>
#include <stdlib.h>

#include "cli/training/training.h"

#define MAX_UNDER_WAY 8u /* calls that a step may wait for: the last ones */

/* In the order of the forward pass, filled up to a multiple of the ranks. Returns how many. forward_ns: of each. */
static uint32_t make_units(struct sml_training_plan *p, const struct sml_training_model *model,
                           const struct sml_training_shape *shape, struct sml_training_send *units,
                           uint64_t *forward_ns) {
  uint32_t num = 0, tensor = 0;
  bool is_open = false; /* the last unit takes more */
  for (uint32_t layer = 0; layer < model->num_layers; layer++) {
    if (!is_open) units[num++] = (struct sml_training_send){.first_layer = layer};
    struct sml_training_send *unit = &units[num - 1];
    for (uint32_t i = 0; i < model->layers[layer].num_tensors; i++) unit->num_elems += model->tensor_elems[tensor++];
    forward_ns[num - 1] += p->forward_ns[layer];
    is_open = unit->num_elems * 4 < shape->bucket_bytes;
  }
  p->num_elems = 0;
  for (uint32_t i = 0; i < num; i++) {
    units[i].num_elems = (units[i].num_elems + shape->num_ranks - 1) / shape->num_ranks * shape->num_ranks;
    units[i].first_elem = p->num_elems;
    p->num_elems += units[i].num_elems;
  }
  return num;
}

static void add_step(struct sml_training_plan *p, enum sml_training_act act, uint64_t number) {
  p->steps[p->num_steps++] = (struct sml_training_step){.act = act, .number = number};
}

/* Returns the call's number. */
static uint32_t add_call(struct sml_training_plan *p, struct sml_training_send unit, enum sml_training_call call) {
  unit.call = call;
  p->sends[p->num_sends] = unit;
  add_step(p, SML_TRAINING_CALL, p->num_sends);
  return p->num_sends++;
}

static void make_steps(struct sml_training_plan *p, const struct sml_training_send *units, const uint64_t *forward_ns,
                       uint32_t num) {
  uint32_t scatter = UINT32_MAX;
  for (uint32_t i = 0; i < sml_min_u32(num, 2); i++) add_call(p, units[i], SML_TRAINING_GATHER);
  for (uint32_t i = 0; i < num; i++) {
    add_step(p, SML_TRAINING_WAIT, i);
    if (i + 2 < num) add_call(p, units[i + 2], SML_TRAINING_GATHER);
    add_step(p, SML_TRAINING_COMPUTE, forward_ns[i]);
  }
  uint32_t gather = add_call(p, units[num - 1], SML_TRAINING_GATHER);
  for (uint32_t i = num; i-- > 0;) {
    add_step(p, SML_TRAINING_WAIT, gather);
    if (i > 0) gather = add_call(p, units[i - 1], SML_TRAINING_GATHER);
    add_step(p, SML_TRAINING_COMPUTE, 2 * forward_ns[i]);
    if (scatter != UINT32_MAX) add_step(p, SML_TRAINING_WAIT, scatter);
    scatter = add_call(p, units[i], SML_TRAINING_SCATTER);
  }
  add_step(p, SML_TRAINING_WAIT, scatter);
}

bool sml_training_shard(struct sml_training_plan *p, const struct sml_training_model *model,
                        const struct sml_training_shape *shape) {
  struct sml_training_send *units = calloc(model->num_layers, sizeof *units);
  uint64_t *forward_ns = calloc(model->num_layers, sizeof *forward_ns);
  free(p->sends);
  p->sends = calloc(3 * (size_t)model->num_layers, sizeof *p->sends);
  p->steps = calloc(9 * (size_t)model->num_layers, sizeof *p->steps);
  const bool is_ok = units && forward_ns && p->sends && p->steps;
  if (is_ok) make_steps(p, units, forward_ns, make_units(p, model, shape, units, forward_ns));
  free(units);
  free(forward_ns);
  return is_ok;
}

/* Both ways of a link take calls in their order. */
struct ways {
  double free_s[2], busy_s[2];
};

static double end_of(struct ways *w, const struct sml_training_link *link, const struct sml_training_send *send,
                     double now_s) {
  const struct sml_training_ways share = send->call == SML_TRAINING_GATHER ? link->gather : link->scatter;
  const double whole_s = (double)send->num_elems * 32 * link->floor / link->bits_per_s;
  const double steps_s = link->serial_s > 0 ? link->serial_s * share.up / link->share : 0; /* a ring's */
  for (uint32_t i = 0; i < 2; i++) {
    const double service_s = steps_s + whole_s * (i == 0 ? share.up : share.down);
    w->free_s[i] = fmax(w->free_s[i], now_s) + service_s;
    w->busy_s[i] += service_s;
  }
  return fmax(w->free_s[0], w->free_s[1]);
}

void sml_training_predict_sharded(const struct sml_training_plan *p, const struct sml_training_link *link,
                                  double time_scale, struct sml_training_prediction *out) {
  struct ways w = {{0}, {0}};
  double ended_s[MAX_UNDER_WAY] = {0}, now_s = 0;
  memset(out, 0, sizeof *out);
  for (uint32_t i = 0; i < p->num_steps; i++) {
    const struct sml_training_step *step = &p->steps[i];
    double *end_s = &ended_s[step->number % MAX_UNDER_WAY];
    if (step->act == SML_TRAINING_CALL) *end_s = end_of(&w, link, &p->sends[step->number], now_s);
    else if (step->act == SML_TRAINING_WAIT) now_s = fmax(now_s, *end_s);
    else now_s += (double)step->number / 1e9 / time_scale;
    if (step->act == SML_TRAINING_COMPUTE) out->compute_s += (double)step->number / 1e9 / time_scale;
  }
  out->iteration_s = now_s;
  out->link_s = fmax(w.busy_s[0], w.busy_s[1]);
  out->exposed_s = fmax(0, out->iteration_s - out->compute_s);
}
