/* SPDX-License-Identifier: Apache-2.0 */
#include "method/lanes.h"

#include <stdlib.h>

#include "ctl/contributors.h"
#include "ctl/member_start.h"
#include "ctl/tuning.h"
#include "shm/shm_relay.h"
#include "process/settings.h"

_Static_assert(SML_CTL_ALL_WINDOWS == SML_ALL_WINDOWS, "ctl and core agree on one-way windows");
_Static_assert(SML_CTL_LEAST_ONE_WAY_SLOTS == SML_LEAST_ONE_WAY_SLOTS, "ctl and core agree on one-way windows");

/* That a lane holds: powers of two. */
static uint32_t num_operations(const struct sml_job_lanes *lanes, const struct sml_ctl_start *start) {
  return sml_max_u32(lanes->settings->num_operations, start->num_ranks != 0 ? SML_SHM_RELAY_DEPTH : 1);
}

static void describe_shard(const struct sml_job_lanes *lanes, uint32_t shard, struct sml_job_lanes_shard *out) {
  lanes->method.owner_ops->describe_shard(lanes->method.owner, shard, out);
}

static struct sml_worker_options make_worker_options(const struct sml_job_lanes *lanes, uint32_t lane,
                                                     const struct sml_job_lanes_shard *shard) {
  const struct sml_ctl_start *start = shard->start;
  const struct sml_job_lane *place = &lanes->lanes[lane];
  const uint32_t base = start->slot_base[place->engine] + sml_window_base(place->way, start->num_slots);
  return (struct sml_worker_options){.job = shard->welcome->job,
                                     .epoch = start->epoch,
                                     .rank = (uint16_t)sml_contributor_of(start, lanes->rank),
                                     .world_size = lanes->world_size,
                                     .num_contributors = sml_contributors_count(start, lanes->world_size),
                                     .num_lanes = lanes->num_lanes,
                                     .lane = place->number,
                                     .num_slots = start->num_slots,
                                     .slot_base = (uint16_t)base,
                                     .chunk_bytes = lanes->chunk_bytes,
                                     .first_phase = start->first_phase,
                                     .first_chunk = start->first_chunk,
                                     .is_checked = (start->features & SML_FEATURE_CHECK) != 0,
                                     .packet_lanes = sml_ctl_packet_lanes(start),
                                     .num_operations = num_operations(lanes, start),
                                     .rtt_ns = start->rtt_ns,
                                     .seed = sml_random_bits(),
                                     .way = place->way,
                                     .has_fixed_window = lanes->settings->no_congestion_control};
}

/* On the engine's thread. */
static void fail_for_wrong_sum(void *user, uint32_t slot) {
  const struct sml_job_lane *lane = user;
  const struct sml_job_lanes *lanes = lane->lanes;
  const struct sml_method *r = &lanes->method;
  pthread_mutex_lock(r->lock);
  sml_method_fail_owner(r, SML_ERR_INTEGRITY, NULL, 0,
                        "rank %u got a sum from the aggregator at %s whose check word is wrong, twice: operation "
                        "%llu, lane %u slot %u; "
                        "do not trust that aggregator",
                        lanes->rank, lane->aggregator_text,
                        (unsigned long long)r->owner_ops->first_unfinished(r->owner), lane->number, slot);
  pthread_mutex_unlock(r->lock);
}

/* ---- on the engine's thread, while the control thread waits ---- */

struct lane_call {
  struct sml_lane *lane;
  const struct sml_worker_options *worker;
  const struct sml_seal *seal;
  bool is_done;
};

static void attach_lane(struct sml_worker_engine *engine, void *argument) {
  struct lane_call *call = argument;
  call->is_done = sml_lane_attach(engine, call->lane);
}

static void detach_lane(struct sml_worker_engine *engine, void *argument) {
  struct lane_call *call = argument;
  sml_lane_detach(engine, call->lane);
}

static void restart_lane(struct sml_worker_engine *engine, void *argument) {
  (void)engine;
  struct lane_call *call = argument;
  sml_lane_restart(call->lane, call->worker, call->seal);
}

/* ---- life ---- */

/* NULL: no memory. */
static struct sml_lane *open_lane(struct sml_job_lanes *lanes, uint32_t l) {
  struct sml_job_lane *place = &lanes->lanes[l];
  struct sml_job_lanes_shard shard;
  describe_shard(lanes, place->shard, &shard);
  place->aggregator_text = shard.aggregator_text;
  struct sml_lane_options options = {.worker = make_worker_options(lanes, l, &shard),
                                     .aggregator = shard.aggregator,
                                     .source = shard.sources[place->engine],
                                     .is_multicast = shard.start->is_multicast != 0,
                                     .lane = place->number,
                                     .num_operations = num_operations(lanes, shard.start),
                                     .num_windows = shard.is_embedded ? SML_TUNING_EMBEDDED_WINDOWS : 1,
                                     .shortest_ns = &lanes->shortest_ns,
                                     .seal = shard.seal,
                                     .greets = (shard.start->features & SML_FEATURE_SWITCH) != 0,
                                     .rank = (uint16_t)lanes->rank,
                                     .nonce = shard.welcome->nonce,
                                     .on_integrity = fail_for_wrong_sum,
                                     .user = place};
  sml_addr_set_port(&options.aggregator, shard.welcome->data_ports[place->engine]);
  struct lane_call call = {.lane = sml_lane_create(&options)};
  sml_key_wipe(&options.seal, sizeof options.seal);
  sml_key_wipe(&shard.seal, sizeof shard.seal);
  if (call.lane == NULL) return NULL;
  sml_engines_call(lanes->engines, place->engine, attach_lane, &call);
  if (call.is_done) return call.lane;
  sml_lane_destroy(call.lane);
  return NULL;
}

/* Neighbours are at different shards, so that an operation of few chunks is shared among many. */
static void place_lanes(struct sml_job_lanes *lanes, bool goes_one_way) {
  uint32_t num_slots[SML_MAX_JOB_LANES], num_at_shard[SML_MAX_JOB_LANES], num_lanes = 0, num_engines = 0;
  SML_ASSERT(lanes->num_shards <= SML_MAX_JOB_LANES);
  for (uint32_t s = 0; s < lanes->num_shards; s++) {
    struct sml_job_lanes_shard shard;
    describe_shard(lanes, s, &shard);
    num_slots[s] = shard.start->num_slots;
    num_at_shard[s] = shard.start->num_lanes;
    sml_key_wipe(&shard.seal, sizeof shard.seal);
  }
  for (uint32_t e = 0; e < SML_MAX_LANES; e++)
    for (uint32_t s = 0; s < lanes->num_shards; s++) {
      if (e >= num_at_shard[s]) continue;
      SML_ASSERT(num_lanes < SML_MAX_JOB_LANES);
      lanes->lanes[num_lanes] = (struct sml_job_lane){
          .shard = s, .engine = e, .number = num_lanes, .num_slots = num_slots[s], .lanes = lanes};
      num_lanes++;
      num_engines = e + 1;
    }
  for (uint32_t l = 0; l < num_lanes && goes_one_way; l++) {
    lanes->lanes[num_lanes + l] = lanes->lanes[2 * num_lanes + l] = lanes->lanes[l];
    lanes->lanes[num_lanes + l].way = SML_REDUCE_COPY;
    lanes->lanes[2 * num_lanes + l].way = SML_REDUCE_TO_OWNER;
  }
  lanes->num_windows = num_lanes * (goes_one_way ? 3 : 1);
  lanes->num_lanes = num_lanes;
  lanes->num_engines = num_engines;
}

static uint64_t find_shortest_ns(const struct sml_job_lanes *lanes) {
  uint64_t shortest_ns = UINT64_MAX;
  for (uint32_t s = 0; s < lanes->num_shards; s++) {
    struct sml_job_lanes_shard shard;
    describe_shard(lanes, s, &shard);
    shortest_ns = sml_min_u64(shortest_ns, shard.start->rtt_ns);
    sml_key_wipe(&shard.seal, sizeof shard.seal);
  }
  return shortest_ns;
}

bool sml_job_lanes_open(struct sml_job_lanes *lanes, const struct sml_ctl_start *start) {
  struct sml_lane *opened[3 * SML_MAX_JOB_LANES] = {NULL};
  bool is_complete = true;
  pthread_mutex_lock(lanes->method.lock);
  lanes->first_phase = start->first_phase;
  lanes->shortest_ns = find_shortest_ns(lanes);
  if (lanes->num_lanes == 0) {
    lanes->chunk_bytes = start->chunk_bytes;
    place_lanes(lanes, (start->features & SML_FEATURE_ONE_WAY) != 0);
  }
  for (uint32_t l = 0; l < lanes->num_windows; l++) {
    lanes->lanes[l].is_closing = false;
    lanes->lanes[l].chunks_used = 0;
  }
  pthread_mutex_unlock(lanes->method.lock);
  const uint32_t num_windows = sml_member_is_lead(start, lanes->rank) ? lanes->num_windows : 0;
  for (uint32_t l = 0; l < num_windows && is_complete; l++) {
    opened[l] = open_lane(lanes, l);
    is_complete = opened[l] != NULL;
  }
  pthread_mutex_lock(lanes->method.lock);
  for (uint32_t l = 0; l < num_windows; l++) lanes->lanes[l].lane = opened[l];
  pthread_mutex_unlock(lanes->method.lock);
  if (!is_complete) sml_job_lanes_close(lanes);
  return is_complete;
}

void sml_job_lanes_restart(struct sml_job_lanes *lanes, const struct sml_ctl_start *start) {
  for (uint32_t l = 0; l < lanes->num_windows; l++) {
    const struct sml_job_lane *place = &lanes->lanes[l];
    if (place->lane == NULL) continue;
    struct sml_job_lanes_shard shard;
    describe_shard(lanes, place->shard, &shard);
    const struct sml_worker_options worker = make_worker_options(lanes, l, &shard);
    struct lane_call call = {.lane = place->lane, .worker = &worker, .seal = &shard.seal};
    sml_engines_call(lanes->engines, place->engine, restart_lane, &call);
    sml_key_wipe(&shard.seal, sizeof shard.seal);
  }
  pthread_mutex_lock(lanes->method.lock);
  lanes->first_phase = start->first_phase;
  for (uint32_t l = 0; l < lanes->num_windows; l++) lanes->lanes[l].chunks_used = 0;
  pthread_mutex_unlock(lanes->method.lock);
}

/* Figures of a lane that are counts of packets dropped for one reason. */
#define DROP_STATS(X) X(check_failures, BAD_CHECK) X(key_failures, BAD_KEY) X(needless_repeats, NEEDLESS)

static void add_lane(const struct sml_job_lane *lane, sml_stats *stats) {
  struct sml_lane_snapshot s;
  sml_lane_snapshot(lane->lane, &s);
#define ADD(name) stats->name += s.name;
#define ADD_DROPS(name, drop) stats->name += s.num_drops[SML_DROP_##drop];
  SML_LANE_STATS(ADD)
  DROP_STATS(ADD_DROPS)
#undef ADD
  if (lane->way != SML_REDUCE_SUM) return; /* its window is fixed, and grants nothing */
  stats->window_chunks += s.window_chunks;
  stats->busiest_slot_chunks =
      sml_max_u32(stats->busiest_slot_chunks, (uint32_t)sml_min_u64(s.busiest_slot_chunks, UINT32_MAX));
}

void sml_job_lanes_close(struct sml_job_lanes *lanes) {
  for (uint32_t l = 0; l < lanes->num_windows; l++) {
    struct sml_job_lane *lane = &lanes->lanes[l];
    pthread_mutex_lock(lanes->method.lock);
    struct lane_call call = {.lane = lane->lane};
    lane->is_closing = true;
    pthread_mutex_unlock(lanes->method.lock);
    if (call.lane == NULL) continue;
    sml_engines_call(lanes->engines, lane->engine, detach_lane, &call);
    pthread_mutex_lock(lanes->method.lock);
    add_lane(lane, &lanes->closed);
    lane->lane = NULL;
    pthread_mutex_unlock(lanes->method.lock);
    sml_lane_destroy(call.lane);
  }
}

static void fail_lane(struct sml_engine_command *command, void *engine, uint64_t now_ns) {
  (void)engine;
  (void)now_ns;
  struct sml_job_lane *lane = (struct sml_job_lane *)(void *)((uint8_t *)command - offsetof(struct sml_job_lane, fail));
  sml_lane_fail(lane->failing, lane->failed_status); /* constant since the command was posted */
}

void sml_job_lanes_fail(struct sml_job_lanes *lanes, sml_status status) {
  for (uint32_t l = 0; l < lanes->num_windows; l++) {
    struct sml_job_lane *lane = &lanes->lanes[l];
    if (lane->lane == NULL || lane->is_closing) continue;
    lane->failing = lane->lane;
    lane->failed_status = status;
    lane->fail.run = fail_lane;
    sml_engines_post(lanes->engines, lane->engine, &lane->fail);
  }
}

/* ---- figures ---- */

void sml_job_lanes_add_figures(const struct sml_job_lanes *lanes, sml_stats *stats) {
  const sml_stats *closed = &lanes->closed;
#define ADD(name, ...) stats->name += closed->name;
  SML_LANE_STATS(ADD)
  DROP_STATS(ADD)
#undef ADD
  stats->busiest_slot_chunks = closed->busiest_slot_chunks;
  for (uint32_t l = 0; l < lanes->num_windows; l++)
    if (lanes->lanes[l].lane != NULL) add_lane(&lanes->lanes[l], stats);
  if (lanes->lanes[0].lane == NULL) return;
  struct sml_lane_snapshot s;
  sml_lane_snapshot(lanes->lanes[0].lane, &s);
  stats->srtt_ns = s.srtt_ns;
  stats->rto_ns = s.rto_ns;
}

uint64_t sml_job_lanes_count_packets(const struct sml_job_lanes *lanes, uint32_t shard) {
  uint64_t num_packets = 0;
  for (uint32_t l = 0; l < lanes->num_windows; l++) {
    struct sml_lane_snapshot s;
    if (lanes->lanes[l].lane == NULL || lanes->lanes[l].shard != shard) continue;
    sml_lane_snapshot(lanes->lanes[l].lane, &s);
    num_packets += s.rx_packets - sml_min_u64(s.dropped_packets, s.rx_packets);
  }
  return num_packets;
}

void sml_job_lanes_find_waiting(const struct sml_job_lanes *lanes, struct sml_member_sight *sight) {
  for (uint32_t l = 0; l < lanes->num_windows; l++) {
    struct sml_lane_snapshot s;
    if (lanes->lanes[l].lane == NULL) continue;
    sml_lane_snapshot(lanes->lanes[l].lane, &s);
    if (!s.is_waiting || (sight->has_slot && s.waiting_since_ns >= sight->since_ns)) continue;
    sight->has_slot = true;
    sight->has_error_reply = s.has_error_reply;
    sight->error_reply_ns = s.error_reply_ns;
    sight->lane = lanes->lanes[l].number;
    sight->slot = s.waiting_slot + sml_window_base(lanes->lanes[l].way, lanes->lanes[l].num_slots);
    sight->since_ns = s.waiting_since_ns;
    sight->num_missing = s.num_missing;
    sight->is_fence = s.is_at_fence;
    memcpy(sight->missing, s.missing, sizeof sight->missing);
  }
}

/* ---- operations ---- */

void sml_job_lanes_range(const struct sml_job_lanes *lanes, const struct sml_operation_plan *plan, uint32_t lane,
                         struct sml_range *range_out) {
  sml_range_make(range_out, plan, lane, lanes->num_lanes, lanes->chunk_bytes, lanes->lanes[lane].num_slots);
}

uint64_t sml_job_lanes_least_one_way(const struct sml_job_lanes *lanes) {
  uint64_t num_slots = 0;
  for (uint32_t l = 0; l < lanes->num_lanes; l++) num_slots += lanes->lanes[l].num_slots;
  return num_slots / 4;
}

static struct sml_job_lane *windows_of(struct sml_job_lanes *lanes, const struct sml_operation_plan *plan) {
  const uint32_t window = plan->way == SML_REDUCE_SUM ? 0 : plan->way == SML_REDUCE_COPY ? 1 : 2;
  return &lanes->lanes[window * lanes->num_lanes];
}

/* As sml_worker_chunks_left() counts it. */
enum sml_method_room sml_job_lanes_take_room(struct sml_job_lanes *lanes, const struct sml_operation_plan *plan,
                                             const uint64_t num_chunks[SML_MAX_JOB_LANES]) {
  const uint64_t room = UINT64_C(0xffffffff) - lanes->first_phase;
  bool has_room = true, is_fresh = true;
  struct sml_job_lane *windows = windows_of(lanes, plan);
  for (uint32_t l = 0; l < lanes->num_lanes; l++) {
    has_room = has_room && num_chunks[l] <= room - windows[l].chunks_used;
    is_fresh = is_fresh && windows[l].chunks_used == 0;
  }
  if (!has_room) return is_fresh ? SML_ROOM_IN_NONE : SML_ROOM_IN_NEXT;
  for (uint32_t l = 0; l < lanes->num_lanes; l++) windows[l].chunks_used += num_chunks[l];
  return SML_ROOM_TAKEN;
}

void sml_job_lanes_push(struct sml_job_lanes *lanes, struct sml_engine_operation *op) {
  atomic_store_explicit(&op->lanes_left, lanes->num_lanes, memory_order_relaxed); /* published by the push */
  atomic_store_explicit(&op->status, SML_OK, memory_order_relaxed);               /* it may have been pushed before */
  for (uint32_t l = 0; l < lanes->num_lanes; l++) sml_lane_push(windows_of(lanes, &op->plan)[l].lane, op);
}

void sml_job_lanes_wake(struct sml_job_lanes *lanes) {
  for (uint32_t e = 0; e < lanes->num_engines; e++) sml_engine_thread_wake(&lanes->engines->units[e].thread);
}

/* ---- as a method ---- */

static struct sml_job_lanes *lanes_of(struct sml_method *r) {
  return (struct sml_job_lanes *)r;
}

static enum sml_method_room take_room(struct sml_method *r, const struct sml_operation_plan *plan) {
  struct sml_job_lanes *lanes = lanes_of(r);
  uint64_t num_chunks[SML_MAX_JOB_LANES];
  for (uint32_t l = 0; l < lanes->num_lanes; l++) {
    struct sml_range range;
    sml_job_lanes_range(lanes, plan, l, &range);
    num_chunks[l] = range.num_chunks;
  }
  return sml_job_lanes_take_room(lanes, plan, num_chunks);
}

/* Exponent codes. */
static bool fit(const struct sml_method *r, struct sml_engine_operation *op, size_t *codes_bytes) {
  const struct sml_job_lanes *lanes = (const struct sml_job_lanes *)r;
  for (uint32_t l = 0; l < lanes->num_lanes; l++) {
    struct sml_range range;
    sml_job_lanes_range(lanes, &op->plan, l, &range);
    const size_t num_bytes = sml_stream_codes_bytes(&range);
    if (num_bytes <= codes_bytes[l]) continue;
    uint8_t *codes = realloc(op->codes[l], num_bytes);
    if (codes == NULL) return false;
    op->codes[l] = codes;
    codes_bytes[l] = num_bytes;
  }
  return true;
}

static void begin(struct sml_method *r, struct sml_engine_operation *op, bool caller_runs) {
  sml_job_lanes_push(lanes_of(r), op);
  if (!caller_runs) sml_job_lanes_wake(lanes_of(r));
}

static void fail(struct sml_method *r, sml_status status) {
  sml_job_lanes_fail(lanes_of(r), status);
}

static void find_wait(const struct sml_method *r, struct sml_member_wait *out) {
  (void)r;
  out->kind = SML_WAIT_NETWORK;
}

static void add_figures(const struct sml_method *r, sml_stats *stats) {
  sml_job_lanes_add_figures((const struct sml_job_lanes *)r, stats);
}

static const struct sml_method_ops lanes_ops = {.is_run_by_callers = true,
                                                .take_room = take_room,
                                                .fit = fit,
                                                .begin = begin,
                                                .fail = fail,
                                                .wait = find_wait,
                                                .add_figures = add_figures};

void sml_job_lanes_init(struct sml_job_lanes *lanes, struct sml_engines *engines, const struct sml_settings *settings,
                        uint32_t rank, uint32_t world_size, uint32_t num_shards) {
  lanes->method.ops = &lanes_ops;
  lanes->engines = engines;
  lanes->settings = settings;
  lanes->rank = rank;
  lanes->world_size = world_size;
  lanes->num_shards = num_shards;
}
