/* SPDX-License-Identifier: Apache-2.0
 * The life of a lane: its ring of operations, epochs, failure, and the figures that other threads read. */
#include <stdlib.h>

#include "engine/worker_engine_internal.h"
#include "quant/check.h"
#include "switchml/switchml.h"

static void init_worker(struct sml_lane *lane, void *mem) {
  struct sml_worker_options *o = &lane->options.worker;
  o->num_operations = lane->options.num_operations;
  if (o->num_contributors == 0) o->num_contributors = o->world_size;
  lane->own_check = sml_check_rank(o->rank);
  lane->all_checks = sml_check_ranks(o->num_contributors);
  lane->worker = sml_worker_init(mem, o);
}

struct sml_lane *sml_lane_create(const struct sml_lane_options *options) {
  SML_ASSERT(sml_is_pow2(options->num_operations));
  struct sml_lane *lane = calloc(1, sizeof *lane);
  if (lane == NULL) return NULL;
  lane->options = *options;
  lane->options.worker.num_operations = options->num_operations;
  if (lane->options.source.num_bytes == 0) lane->options.source = options->aggregator;
  lane->ring = calloc(options->num_operations, sizeof(struct sml_engine_operation *));
  void *mem = aligned_alloc(64, sml_align_up(sml_worker_memsize(&lane->options.worker), 64));
  if (lane->ring == NULL || mem == NULL) {
    free(lane->ring);
    free(mem);
    free(lane);
    return NULL;
  }
  init_worker(lane, mem);
  return lane;
}

void sml_lane_destroy(struct sml_lane *lane) {
  sml_key_wipe(&lane->options.seal, sizeof lane->options.seal);
  free(lane->worker);
  free(lane->ring);
  free(lane);
}

void sml_lane_push(struct sml_lane *lane, struct sml_engine_operation *operation) {
  const uint32_t tail = atomic_load_explicit(&lane->tail, memory_order_relaxed);
  SML_ASSERT(tail - atomic_load_explicit(&lane->head, memory_order_acquire) < lane->options.num_operations);
  lane->ring[tail & (lane->options.num_operations - 1)] = operation;
  atomic_store_explicit(&lane->tail, tail + 1, memory_order_release);
}

struct sml_engine_operation *sml_lane_take(struct sml_lane *lane) {
  const uint32_t head = atomic_load_explicit(&lane->head, memory_order_relaxed);
  if (head == atomic_load_explicit(&lane->tail, memory_order_acquire)) return NULL;
  struct sml_engine_operation *operation = lane->ring[head & (lane->options.num_operations - 1)];
  atomic_store_explicit(&lane->head, head + 1, memory_order_release);
  return operation;
}

static void record_epoch(const struct sml_lane *lane) {
  const struct sml_worker_options *o = &lane->options.worker;
  sml_recorder_put(lane->engine->recorder, (struct sml_record){.time_ns = lane->engine->now_ns,
                                                               .event = SML_TRACE_EPOCH_STARTED,
                                                               .job = o->job,
                                                               .phase = o->first_phase,
                                                               .chunk = o->first_chunk,
                                                               .value = o->epoch});
}

/* The engine's last touch of the operation and its buffers. */
void sml_lane_end_part(const struct sml_lane *lane, struct sml_engine_operation *operation, int32_t status) {
  const enum sml_trace_event event = status == SML_OK ? SML_TRACE_OPERATION_ENDED : SML_TRACE_OPERATION_FAILED;
  sml_lane_record(lane, event, operation->plan.number);
  if (status != SML_OK) {
    int32_t expected = SML_OK;
    atomic_compare_exchange_strong_explicit(&operation->status, &expected, status, memory_order_relaxed,
                                            memory_order_relaxed);
  }
  /* acq_rel: the engine that ends it sees the others' writes, and passes them on with its release. */
  if (atomic_fetch_sub_explicit(&operation->lanes_left, 1, memory_order_acq_rel) == 1)
    operation->on_ended(operation);
}

void sml_lane_fail(struct sml_lane *lane, int32_t status) {
  SML_ASSERT(status != SML_OK);
  if (lane->failed_status == SML_OK) {
    lane->failed_status = status;
    sml_lane_record(lane, SML_TRACE_LANE_FAILED, (uint64_t)(int64_t)status);
  }
  struct sml_engine_operation *operation;
  while ((operation = sml_worker_take_unfinished(lane->worker)) != NULL)
    sml_lane_end_part(lane, operation, lane->failed_status);
  while ((operation = sml_lane_take(lane)) != NULL) sml_lane_end_part(lane, operation, lane->failed_status);
}

void sml_lane_restart(struct sml_lane *lane, const struct sml_worker_options *worker, const struct sml_seal *seal) {
  SML_ASSERT(sml_worker_take_unfinished(lane->worker) == NULL);
  SML_ASSERT(worker->num_slots == lane->options.worker.num_slots);
  struct sml_worker_view v;
  sml_worker_view(lane->worker, &v);
#define ADD(name) lane->before.name += v.name;
  SML_WORKER_COUNTERS(ADD)
#undef ADD
  lane->options.worker = *worker;
  lane->options.seal = *seal;
  lane->has_error_reply = false; /* a late packet of the old epoch may have caused it */
  init_worker(lane, lane->worker);
  record_epoch(lane);
}

/* The lanes share a socket. Its buffer shall hold the windows of all of them. */
static void hold_windows(struct sml_worker_engine *e) {
  uint64_t most_bytes = 0;
  for (uint32_t i = 0; i < e->num_lanes; i++) {
    const struct sml_lane *lane = e->lanes[i];
    most_bytes = sml_max_u64(most_bytes, (uint64_t)lane->options.worker.num_slots * sml_lane_held_bytes(lane));
  }
  if (e->options.io->ops->hold != NULL) e->options.io->ops->hold(e->options.io, most_bytes * e->num_lanes);
}

/* A pass sends in the order of the lanes. Sums for owners come last: they fill the send queue, and a copy or a fence
 * that does not get in holds up all other ranks. Each rank begins with another lane: lanes may be at different
 * aggregators, and if all sent to the same one first, the others' links would be idle. */
static uint32_t turn_of(const struct sml_lane *lane) {
  const struct sml_worker_options *o = &lane->options.worker;
  const uint32_t turn = (o->lane + o->num_lanes - o->rank % o->num_lanes) % o->num_lanes;
  return o->way == SML_REDUCE_TO_OWNER ? o->num_lanes + turn : turn;
}

bool sml_lane_attach(struct sml_worker_engine *e, struct sml_lane *lane) {
  if (e->num_lanes == e->max_lanes) {
    const uint32_t max_lanes = sml_max_u32(8, 2 * e->max_lanes);
    struct sml_lane **lanes = realloc(e->lanes, max_lanes * sizeof(struct sml_lane *));
    if (lanes == NULL) return false;
    e->lanes = lanes;
    e->max_lanes = max_lanes;
  }
  uint32_t at = e->num_lanes++;
  for (; at > 0 && turn_of(e->lanes[at - 1]) > turn_of(lane); at--) e->lanes[at] = e->lanes[at - 1];
  e->lanes[at] = lane;
  lane->engine = e;
  hold_windows(e);
  record_epoch(lane);
  return true;
}

void sml_lane_detach(struct sml_worker_engine *e, struct sml_lane *lane) {
  sml_lane_fail(lane, SML_ERR_ABORTED);
  for (uint32_t i = 0; i < e->num_lanes; i++) {
    if (e->lanes[i] != lane) continue;
    e->num_lanes--;
    memmove(e->lanes + i, e->lanes + i + 1, (e->num_lanes - i) * sizeof e->lanes[0]);
    break;
  }
  e->last_lane = NULL;
  sml_lane_record(lane, SML_TRACE_LANE_CLOSED, 0);
}

/* ---- figures ---- */

void sml_lane_publish(struct sml_lane *lane, const struct sml_worker_view *v) {
  struct published *p = &lane->published;
#define PUBLISH(field, value) atomic_store_explicit(&p->field, value, memory_order_relaxed);
#define COUNTED_BY_WORKER(name) PUBLISH(name, lane->before.name + v->name)
#define COUNTED_BY_ENGINE(name) PUBLISH(name, lane->name)
#define STATE(type, name) PUBLISH(name, v->name)
  SML_WORKER_COUNTERS(COUNTED_BY_WORKER)
  SML_ENGINE_STATS(COUNTED_BY_ENGINE)
  SML_WORKER_STATES(STATE)
  PUBLISH(has_error_reply, lane->has_error_reply)
  PUBLISH(error_reply_ns, lane->error_reply_ns)
  for (uint32_t i = 0; i < v->num_missing; i++) PUBLISH(missing[i], v->missing[i])
  PUBLISH(num_missing, v->num_missing)
#undef STATE
}

void sml_lane_snapshot(const struct sml_lane *lane, struct sml_lane_snapshot *s) {
  const struct published *p = &lane->published;
#define READ(field) s->field = atomic_load_explicit(&p->field, memory_order_relaxed);
#define STATE(type, name) READ(name)
  SML_WORKER_COUNTERS(READ)
  SML_ENGINE_STATS(READ)
  SML_WORKER_STATES(STATE)
  for (uint32_t d = 0; d < SML_NUM_DROPS; d++) READ(num_drops[d])
  READ(has_error_reply)
  READ(error_reply_ns)
  READ(num_missing)
  for (uint32_t i = 0; i < s->num_missing; i++) READ(missing[i])
}
