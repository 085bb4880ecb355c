/* SPDX-License-Identifier: Apache-2.0
 * From layers to sends, and what they take on a serial link. The backward pass takes twice the forward pass;
 * a layer's share of either is its share of the FLOPs. */
#include <math.h>
#include <stdlib.h>

#include "cli/training/training.h"

/* DistributedDataParallel's first bucket, so that something is under way early. */
#define FIRST_BUCKET_BYTES (UINT64_C(1) << 20)

static uint64_t to_ns(double seconds) {
  return (uint64_t)llround(seconds * 1e9);
}

static double send_s(const struct sml_training_link *link, uint64_t num_elems) {
  return (double)num_elems * 32 * link->share * link->floor / link->bits_per_s;
}

static void set_times(struct sml_training_plan *p, const struct sml_training_model *model,
                      const struct sml_training_shape *shape, uint64_t *ready_ns) {
  const double iteration_s = shape->batch / shape->samples_per_s * shape->time_scale;
  double all_flops = 0, done = 0;
  for (uint32_t i = 0; i < model->num_layers; i++) all_flops += model->layers[i].flops;
  for (uint32_t i = 0; i < model->num_layers; i++) {
    p->forward_ns[i] = to_ns(iteration_s / 3 * model->layers[i].flops / all_flops);
    p->all_forward_ns += p->forward_ns[i];
  }
  for (uint32_t i = model->num_layers; i-- > 0;) {
    done += model->layers[i].flops;
    ready_ns[i] = to_ns(iteration_s * 2 / 3 * done / all_flops);
  }
  p->backward_ns = ready_ns[0];
}

/* One send a tensor, or a piece of one, or a bucket of several, last layer first. */
static uint32_t cut(struct sml_training_send *sends, const struct sml_training_model *model,
                    const struct sml_training_shape *shape, const uint64_t *ready_ns) {
  const uint64_t piece_elems = shape->has_priority ? sml_max_u64(1, shape->piece_bytes / 4) : UINT64_MAX;
  uint64_t limit_bytes = sml_min_u64(shape->bucket_bytes, FIRST_BUCKET_BYTES), at = 0;
  uint32_t num = 0, tensor = model->num_tensors;
  bool is_open = false; /* the last send takes more */
  for (uint32_t layer = model->num_layers; layer-- > 0;) {
    for (uint32_t i = 0; i < model->layers[layer].num_tensors; i++) {
      uint64_t left = model->tensor_elems[--tensor];
      while (left != 0) {
        const uint64_t num_elems = sml_min_u64(left, piece_elems);
        if (!is_open) sends[num++] = (struct sml_training_send){.first_elem = at};
        struct sml_training_send *send = &sends[num - 1];
        send->num_elems += num_elems;
        send->ready_ns = ready_ns[layer];
        send->first_layer = layer;
        at += num_elems;
        left -= num_elems;
        is_open = shape->bucket_bytes != 0 && send->num_elems * 4 < limit_bytes;
        if (!is_open) limit_bytes = shape->bucket_bytes;
      }
    }
  }
  return num;
}

static uint32_t count_sends(const struct sml_training_model *model, const struct sml_training_shape *shape) {
  uint64_t num = 0;
  for (uint32_t i = 0; i < model->num_tensors; i++) {
    uint64_t piece_elems = shape->has_priority ? sml_max_u64(1, shape->piece_bytes / 4) : UINT64_MAX;
    num += model->tensor_elems[i] / piece_elems + 1;
  }
  return num > SML_TRAINING_MAX_SENDS ? 0 : (uint32_t)num;
}

/* The order in which the link, when it is free, takes the earliest layer's of what is ready. */
static bool order_by_priority(struct sml_training_plan *p, const struct sml_training_link *link) {
  struct sml_training_send *from = malloc(p->num_sends * sizeof *from);
  bool *is_taken = calloc(p->num_sends, sizeof *is_taken);
  if (from) memcpy(from, p->sends, p->num_sends * sizeof *from);
  double now_s = 0;
  for (uint32_t num = 0, next = 0; from && is_taken && num < p->num_sends; num++) {
    while (is_taken[next]) next++; /* they are made in the order in which they get ready */
    now_s = fmax(now_s, (double)from[next].ready_ns / 1e9);
    uint32_t best = next;
    for (uint32_t i = next; i < p->num_sends && (double)from[i].ready_ns / 1e9 <= now_s; i++)
      if (!is_taken[i] && from[i].first_layer < from[best].first_layer) best = i;
    is_taken[best] = true;
    p->sends[num] = from[best];
    now_s += link->serial_s + send_s(link, from[best].num_elems);
  }
  const bool is_ok = from && is_taken;
  free(from);
  free(is_taken);
  /* Calls are in one order on all ranks; nothing before this one gets ready after the link has taken this
   * one. */
  for (uint32_t i = 1; is_ok && i < p->num_sends; i++)
    p->sends[i].ready_ns = sml_max_u64(p->sends[i].ready_ns, p->sends[i - 1].ready_ns);
  return is_ok;
}

/* A layer needs as many sends, in their order, as hold all of its gradient. */
static void set_needs(struct sml_training_plan *p, bool has_priority) {
  for (uint32_t i = 0; i < p->num_layers; i++) p->num_needed[i] = has_priority ? 0 : p->num_sends;
  for (uint32_t i = 0; has_priority && i < p->num_sends; i++) p->num_needed[p->sends[i].first_layer] = i + 1;
}

bool sml_training_plan_make(struct sml_training_plan *p, const struct sml_training_model *model,
                            const struct sml_training_shape *shape) {
  memset(p, 0, sizeof *p);
  const uint32_t room = count_sends(model, shape);
  uint64_t *ready_ns = calloc(model->num_layers, sizeof *ready_ns);
  p->num_elems = model->num_parameters;
  p->num_layers = model->num_layers;
  p->sends = room == 0 ? NULL : calloc(room, sizeof *p->sends);
  p->forward_ns = calloc(model->num_layers, sizeof *p->forward_ns);
  p->num_needed = calloc(model->num_layers, sizeof *p->num_needed);
  bool is_ok = ready_ns && p->sends && p->forward_ns && p->num_needed;
  if (is_ok) set_times(p, model, shape, ready_ns);
  if (is_ok && shape->is_sharded) {
    is_ok = sml_training_shard(p, model, shape);
  } else if (is_ok) {
    p->num_sends = cut(p->sends, model, shape, ready_ns);
    is_ok = !shape->has_priority || order_by_priority(p, &shape->link);
  }
  if (is_ok && !shape->is_sharded) set_needs(p, shape->has_priority);
  free(ready_ns);
  if (!is_ok) sml_training_plan_free(p);
  return is_ok;
}

void sml_training_plan_free(struct sml_training_plan *plan) {
  free(plan->sends);
  free(plan->forward_ns);
  free(plan->num_needed);
  free(plan->steps);
  memset(plan, 0, sizeof *plan);
}

void sml_training_predict(const struct sml_training_plan *p, const struct sml_training_link *link, double time_scale,
                          struct sml_training_prediction *out) {
  if (p->num_steps != 0) {
    sml_training_predict_sharded(p, link, time_scale, out);
    return;
  }
  memset(out, 0, sizeof *out);
  double free_s = 0, now_s = (double)p->backward_ns / 1e9 / time_scale;
  out->compute_s = now_s + (double)p->all_forward_ns / 1e9 / time_scale;
  /* The sends of an iteration are through before its next backward pass, so each iteration begins on an idle
   * link. They end in their order: what an earlier layer has waited for is done. */
  uint32_t next = 0;
  for (uint32_t layer = 0; layer < p->num_layers; layer++) {
    for (; next < p->num_needed[layer]; next++) {
      const double service_s = link->serial_s + send_s(link, p->sends[next].num_elems);
      free_s = fmax(free_s, (double)p->sends[next].ready_ns / 1e9 / time_scale) + service_s;
      out->link_s += service_s;
    }
    now_s = fmax(now_s, free_s) + (double)p->forward_ns[layer] / 1e9 / time_scale;
  }
  out->iteration_s = now_s;
  out->exposed_s = fmax(0, out->iteration_s - out->compute_s);
}

const char *sml_training_regime(const struct sml_training_prediction *prediction) {
  if (prediction->exposed_s < 0.05 * prediction->iteration_s) return "compute-bound";
  return prediction->link_s > prediction->compute_s ? "network-bound" : "between";
}
