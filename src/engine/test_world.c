/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/test_world.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/fanout.h"

#define STEP_NS (10 * SML_NS_PER_US) /* a pass: how long a hop takes at least */
#define MAX_STEP_NS SML_NS_PER_MS
#define QUIET_PASSES 4u /* without a frame: then the faults hold none back any more */
#define MAX_QUEUE_FRAMES 16384u

static void *must(void *memory) {
  if (memory != NULL) return memory;
  fputs("test_world: out of memory\n", stderr);
  abort();
}

/* ---- ports and engines ---- */

static bool ask_hook(void *user, const uint8_t *data, uint32_t num_bytes) {
  const struct world_port *port = user;
  const struct world_options *o = &port->world->options;
  return o->on_frame(o->user, port, data, num_bytes);
}

static void open_port(struct world *w, struct world_port *port, bool is_aggregator, uint32_t rank,
                      uint32_t lane) {
  const struct world_options *o = &w->options;
  /* Room for the largest PENDING, for the HELLO, and for frames that are too long. */
  const uint32_t max_frame_bytes = sml_head_bytes(true) + sml_max_u32(o->chunk_bytes, 64) + SML_CHECK_BYTES + 16;
  const uint32_t num_senders = is_aggregator ? o->world_size : 1;
  uint32_t queue_frames =
      sml_min_u32(2 * num_senders * o->num_slots * (o->is_one_way ? SML_ALL_WINDOWS : 1) + 256, MAX_QUEUE_FRAMES);
  if (o->queue_frames != 0) queue_frames = o->queue_frames;
  *port = (struct world_port){.world = w, .is_aggregator = is_aggregator, .rank = rank, .lane = lane};
  if (o->open_io != NULL) {
    port->io = must(o->open_io(o->user, queue_frames, max_frame_bytes));
    port->io->ops->local_addr(port->io, &port->addr);
    return;
  }
  struct sml_netio *inner = must(sml_mem_open(w->hub, queue_frames, max_frame_bytes));
  struct sml_fault_options faults = o->faults;
  faults.seed = sml_prng_next(&w->prng);
  if (is_aggregator && o->up_mark > 0) faults.mark = o->up_mark;
  if (o->on_frame != NULL) {
    faults.drop = ask_hook;
    faults.drop_user = port;
  }
  port->io = must(sml_faults_wrap(inner, &faults));
  port->io->ops->local_addr(port->io, &port->addr);
}

static void keep_event(void *user, const struct sml_aggregator_event *event) {
  struct world *w = user;
  if (event->kind == SML_EVENT_FORGED) return; /* what faults spoil may look like it; tests count drops */
  if (w->num_events < WORLD_MAX_EVENTS) w->events[w->num_events] = *event;
  w->num_events++;
}

struct world *world_create(const struct world_options *options) {
  SML_ASSERT(options->world_size <= WORLD_MAX_RANKS && options->num_lanes <= WORLD_MAX_LANES);
  struct world *w = must(calloc(1, sizeof *w));
  w->options = *options;
  struct world_options *o = &w->options;
  if (o->num_lanes == 0) o->num_lanes = 1;
  if (o->num_operations == 0) o->num_operations = 2;
  if (o->first_phase == 0) o->first_phase = SML_FIRST_PHASE;
  if (o->kernels == NULL) o->kernels = sml_quant_select(NULL);
  w->prng.state = o->seed;
  w->now_ns = SML_NS_PER_S; /* a clock that has been running */
  w->hub = must(sml_mem_hub_create());
  for (uint32_t l = 0; l < o->num_lanes; l++) {
    open_port(w, &w->aggregator_ports[l], true, 0, l);
    w->aggregators[l] = must(
        sml_aggregator_engine_create(&(struct sml_aggregator_engine_options){.io = w->aggregator_ports[l].io,
                                                                             .kernels = o->kernels,
                                                                             .recorder = o->recorder,
                                                                             .lane = l,
                                                                             .is_switch_format = o->is_switch_format,
                                                                             .on_event = keep_event,
                                                                             .user = w}));
    for (uint32_t r = 0; r < o->world_size; r++) {
      struct world_port *port = &w->worker_ports[r][l];
      open_port(w, port, false, r, l);
      w->workers[r][l] = must(sml_worker_engine_create(
          &(struct sml_worker_engine_options){.io = port->io, .kernels = o->kernels, .recorder = o->recorder}));
    }
  }
  return w;
}

void world_destroy(struct world *w) {
  for (uint32_t j = 0; j < WORLD_MAX_JOBS; j++)
    if (w->jobs[j].is_open) world_close_job(w, j);
  for (uint32_t l = 0; l < w->options.num_lanes; l++) {
    sml_aggregator_engine_destroy(w->aggregators[l]);
    w->aggregator_ports[l].io->ops->close(w->aggregator_ports[l].io);
    for (uint32_t r = 0; r < w->options.world_size; r++) {
      sml_worker_engine_destroy(w->workers[r][l]);
      w->worker_ports[r][l].io->ops->close(w->worker_ports[r][l].io);
    }
  }
  sml_mem_hub_destroy(w->hub);
  free(w);
}

/* ---- the life of a job ---- */

static const uint16_t *contributors_of(const struct world *w) {
  return w->options.num_contributors != 0 ? w->options.contributors : NULL;
}

uint32_t world_lead(const struct world *w, uint32_t rank) {
  uint32_t lead = 0;
  if (contributors_of(w) == NULL) return rank;
  while (w->options.contributors[lead] != w->options.contributors[rank]) lead++;
  return lead;
}

/* Each epoch of a job has a key or a mask of its own; in switch format there is nothing. */
static void set_epoch(const struct world *w, struct world_job *job, uint32_t epoch) {
  const bool has_seal = !w->options.is_switch_format, is_keyed = has_seal && !w->options.is_unkeyed;
  const struct sml_key key = {sml_mix64(epoch), job->number};
  job->epoch = job->worker.epoch = epoch;
  const uint64_t secret[2] = {has_seal ? sml_mix64(epoch + job->number) : 0, 0};
  job->seal = sml_seal_of(is_keyed ? &key : NULL, secret);
}

static void note_integrity(void *user, uint32_t slot) {
  (void)slot;
  ++*(uint32_t *)user;
}

struct sml_addr world_group(const struct world *w, uint32_t j, uint32_t lane) {
  struct sml_addr group;
  sml_mem_group(j * w->options.num_lanes + lane, &group);
  return group;
}

static void offer_group(struct world *w, uint32_t j, uint32_t lane) {
  const struct sml_addr group = world_group(w, j, lane);
  sml_aggregator_engine_offer_group(w->aggregators[lane], w->jobs[j].number, &group);
  for (uint32_t r = 0; r < w->options.world_size; r++) {
    struct sml_netio *io = w->worker_ports[r][lane].io;
    if (world_lead(w, r) == r) SML_ASSERT(io->ops->join_group(io, &group, &w->aggregator_ports[lane].addr) == 0);
  }
}

static void use_group(struct world *w, const struct world_job *job, uint32_t lane) {
  const struct sml_aggregator_options *o = sml_aggregator_options_of(job->states[lane]);
  const struct sml_addr group = world_group(w, (uint32_t)(job - w->jobs), lane);
  struct sml_fanout *fanout = must(sml_fanout_create(&group, o->num_contributors));
  sml_fanout_destroy(sml_aggregator_engine_use_group(w->aggregators[lane], job->number, fanout));
}

void world_open_job(struct world *w, uint32_t j, uint32_t epoch) {
  const struct world_options *o = &w->options;
  struct world_job *job = &w->jobs[j];
  SML_ASSERT(j < WORLD_MAX_JOBS && !job->is_open);
  const uint32_t packet_lanes = o->chunk_bytes / 4 + !o->is_unchecked;
  *job = (struct world_job){.is_open = true, .number = (uint16_t)(j * 341), .epoch = epoch};
  job->worker =
      (struct sml_worker_options){.job = job->number,
                                  .epoch = epoch,
                                  .world_size = o->world_size,
                                  .num_contributors = o->num_contributors,
                                  .num_lanes = o->num_lanes,
                                  .num_slots = o->num_slots,
                                  .slot_base = (uint16_t)(j * (o->is_one_way ? SML_ALL_WINDOWS : 1) * o->num_slots),
                                  .chunk_bytes = o->chunk_bytes,
                                  .is_checked = !o->is_unchecked,
                                  .packet_lanes = o->is_switch_format ? packet_lanes : 0,
                                  .has_fixed_window = o->has_fixed_window,
                                  .first_phase = o->first_phase,
                                  .first_chunk = o->first_chunk,
                                  .num_operations = o->num_operations};
  set_epoch(w, job, epoch);
  for (uint32_t l = 0; l < o->num_lanes; l++) {
    SML_ASSERT(sml_aggregator_engine_open_job(w->aggregators[l], job->number, epoch, o->world_size,
                                              &job->seal));
    for (uint32_t r = 0; r < o->world_size; r++) {
      job->nonces[r][l] = sml_prng_next(&w->prng);
      sml_aggregator_engine_expect_hello(w->aggregators[l], job->number, r, job->nonces[r][l]);
    }
    if (o->is_multicast) offer_group(w, j, l);
  }
}

struct hello {
  struct sml_hello hello; /* first: done casts */
  bool is_done, is_echoed;
};

static void note_hello(struct sml_hello *hello, bool is_echoed) {
  struct hello *h = (struct hello *)(void *)hello;
  SML_ASSERT(!h->is_done);
  h->is_done = true;
  h->is_echoed = is_echoed;
}

bool world_exchange_hellos(struct world *w, uint32_t j) {
  const struct world_options *o = &w->options;
  struct world_job *job = &w->jobs[j];
  const uint32_t num_hellos = o->world_size * o->num_lanes;
  struct hello *hellos = must(calloc(num_hellos, sizeof *hellos));
  for (uint32_t i = 0; i < num_hellos; i++) {
    const uint32_t r = i / o->num_lanes, l = i % o->num_lanes;
    hellos[i].hello = (struct sml_hello){.job = job->number,
                                         .epoch = job->epoch,
                                         .rank = (uint16_t)r,
                                         .nonce = job->nonces[r][l],
                                         .to = w->aggregator_ports[l].addr,
                                         .datagram_bytes =
                                             sml_head_bytes(job->seal.is_keyed) + sml_max_u32(o->chunk_bytes, 16),
                                         .seal = job->seal,
                                         .interval_ns = 5 * SML_NS_PER_MS,
                                         .deadline_ns = w->now_ns + 5 * SML_NS_PER_S,
                                         .done = note_hello};
    sml_worker_engine_hello(w->workers[r][l], &hellos[i].hello);
  }
  bool is_echoed = true;
  for (uint32_t i = 0; i < num_hellos; i++) {
    while (!hellos[i].is_done) world_pass(w); /* the deadline ends it */
    is_echoed = is_echoed && hellos[i].is_echoed;
  }
  free(hellos);
  return is_echoed;
}

static void start_aggregators(struct world *w, struct world_job *job) {
  const struct sml_worker_options *o = &job->worker;
  const struct sml_aggregator_options options = {.world_size = o->world_size,
                                                 .num_contributors = o->num_contributors,
                                                 .num_slots = o->num_slots,
                                                 .is_one_way = w->options.is_one_way,
                                                 .slot_base = o->slot_base,
                                                 .chunk_bytes = o->chunk_bytes,
                                                 .is_checked = o->is_checked,
                                                 .is_switch_format = o->packet_lanes != 0,
                                                 .is_narrow = w->options.is_narrow,
                                                 .first_phase = o->first_phase,
                                                 .first_chunk = o->first_chunk};
  for (uint32_t l = 0; l < o->num_lanes; l++) {
    void *mem = must(aligned_alloc(64, sml_align_up(sml_aggregator_memsize(&options), 64)));
    memset(mem, 0xee, sml_aggregator_memsize(&options));
    job->states[l] = sml_aggregator_init(mem, &options);
    free(sml_aggregator_engine_start_job(w->aggregators[l], job->number, job->epoch, job->states[l], contributors_of(w),
                                         &job->seal));
    if (w->options.is_multicast) use_group(w, job, l);
  }
}

static struct sml_worker_options worker_options(struct world *w, const struct world_job *job, uint32_t r, uint32_t l,
                                                uint8_t way) {
  struct sml_worker_options o = job->worker;
  o.way = way;
  o.slot_base = (uint16_t)(o.slot_base + sml_window_base(way, o.num_slots));
  o.rank = contributors_of(w) != NULL ? w->options.contributors[r] : (uint16_t)r;
  o.lane = l;
  o.seed = sml_prng_next(&w->prng);
  return o;
}

static const uint8_t ways[2] = {SML_REDUCE_TO_OWNER, SML_REDUCE_COPY};

static struct sml_lane *open_lane(struct world *w, struct world_job *job, uint32_t r, uint32_t l, uint8_t way) {
  const struct sml_lane_options options = {.worker = worker_options(w, job, r, l, way),
                                           .num_windows = w->options.num_windows,
                                           .shortest_ns = w->options.shares_link ? &w->shortest_ns[r] : NULL,
                                           .aggregator = w->aggregator_ports[l].addr,
                                           .is_multicast = w->options.is_multicast,
                                           .lane = l,
                                           .num_operations = w->options.num_operations,
                                           .seal = job->seal,
                                           .on_integrity = note_integrity,
                                           .user = &job->num_integrity[r]};
  struct sml_lane *lane = must(sml_lane_create(&options));
  SML_ASSERT(sml_lane_attach(w->workers[r][l], lane));
  return lane;
}

static void restart_lane(struct world *w, struct world_job *job, uint32_t r, uint32_t l, uint8_t way,
                         struct sml_lane *lane) {
  if (lane == NULL) return;
  const struct sml_worker_options o = worker_options(w, job, r, l, way);
  sml_lane_restart(lane, &o, &job->seal);
}

static void close_lane(struct world *w, uint32_t r, uint32_t l, struct sml_lane *lane) {
  if (lane == NULL) return;
  sml_lane_detach(w->workers[r][l], lane);
  sml_lane_destroy(lane);
}

void world_start_job(struct world *w, uint32_t j) {
  struct world_job *job = &w->jobs[j];
  SML_ASSERT(job->is_open && !job->is_started);
  start_aggregators(w, job);
  job->is_started = true;
  for (uint32_t r = 0; r < w->options.world_size; r++) {
    for (uint32_t l = 0; l < w->options.num_lanes && world_lead(w, r) == r; l++) {
      job->lanes[r][l] = open_lane(w, job, r, l, SML_REDUCE_SUM);
      for (uint32_t i = 0; i < 2 && w->options.is_one_way; i++)
        job->one_way[i][r][l] = open_lane(w, job, r, l, ways[i]);
    }
  }
}

void world_restart_job(struct world *w, uint32_t j, uint32_t epoch) {
  struct world_job *job = &w->jobs[j];
  set_epoch(w, job, epoch);
  job->worker.first_phase = SML_FIRST_PHASE;
  job->worker.first_chunk = 0;
  start_aggregators(w, job);
  for (uint32_t r = 0; r < w->options.world_size; r++) {
    for (uint32_t l = 0; l < w->options.num_lanes; l++) {
      restart_lane(w, job, r, l, SML_REDUCE_SUM, job->lanes[r][l]);
      for (uint32_t i = 0; i < 2; i++) restart_lane(w, job, r, l, ways[i], job->one_way[i][r][l]);
    }
  }
}

void world_depart(struct world *w, uint32_t j, uint32_t rank) {
  uint64_t ranks[SML_BITMAP_WORDS(SML_MAX_WORLD_SIZE)] = {0};
  sml_bit_set(ranks, rank);
  sml_aggregator_engine_depart(w->aggregators[0], w->jobs[j].number, ranks);
}

void world_close_job(struct world *w, uint32_t j) {
  struct world_job *job = &w->jobs[j];
  SML_ASSERT(job->is_open);
  for (uint32_t l = 0; l < w->options.num_lanes; l++) {
    const struct sml_addr group = world_group(w, j, l);
    for (uint32_t r = 0; w->options.is_multicast && r < w->options.world_size; r++)
      w->worker_ports[r][l].io->ops->leave_group(w->worker_ports[r][l].io, &group);
    free(sml_aggregator_engine_close_job(w->aggregators[l], job->number));
    for (uint32_t r = 0; r < w->options.world_size; r++) {
      close_lane(w, r, l, job->lanes[r][l]);
      for (uint32_t i = 0; i < 2; i++) close_lane(w, r, l, job->one_way[i][r][l]);
    }
  }
  *job = (struct world_job){.is_open = false};
}

struct world *world_create_started(const struct world_options *options) {
  struct world *w = world_create(options);
  world_open_job(w, 0, 0xfeed0000);
  SML_ASSERT(world_exchange_hellos(w, 0));
  world_start_job(w, 0);
  return w;
}

/* ---- time ---- */

static uint64_t frames_of(const struct world_port *port) {
  return port->io->stats.rx_frames + port->io->stats.tx_frames;
}

struct tick {
  bool is_busy, has_stalled;
  uint64_t deadline_ns;
};

static void run_engine(struct world *w, const struct world_port *port, void *engine,
                       uint64_t (*run_once)(void *engine, uint64_t now_ns), struct tick *tick) {
  if (sml_prng_chance(&w->prng, w->options.stall)) {
    tick->has_stalled = true;
    return;
  }
  const uint64_t frames_before = frames_of(port);
  const uint64_t deadline_ns = run_once(engine, w->now_ns);
  tick->is_busy = tick->is_busy || frames_of(port) != frames_before || deadline_ns == 0;
  tick->deadline_ns = sml_min_u64(tick->deadline_ns, deadline_ns);
}

/* Where queues are short each pass begins with another rank. What the last ones send would else be lost for ever. */
static struct tick run_all(struct world *w) {
  struct tick tick = {.deadline_ns = SML_NEVER};
  const uint64_t first = w->options.queue_frames != 0 ? w->num_passes : 0;
  for (uint32_t l = 0; l < w->options.num_lanes; l++) {
    for (uint32_t i = 0; i < w->options.world_size; i++) {
      const uint32_t r = (uint32_t)((first + i) % w->options.world_size);
      run_engine(w, &w->worker_ports[r][l], w->workers[r][l], sml_worker_engine_run_once, &tick);
    }
    run_engine(w, &w->aggregator_ports[l], w->aggregators[l], sml_aggregator_engine_run_once, &tick);
  }
  return tick;
}

/* One lane of a job, and what all its ranks and the aggregator have of it. */
static void check_invariants(const struct world *w) {
  const uint32_t l = (uint32_t)(w->num_passes % w->options.num_lanes);
  const uint32_t r = (uint32_t)(w->num_passes / w->options.num_lanes % w->options.world_size);
  const char *problem = sml_aggregator_engine_find_violation(w->aggregators[l]);
  for (uint32_t j = 0; j < WORLD_MAX_JOBS && problem == NULL; j++) {
    if (w->jobs[j].is_started && w->jobs[j].lanes[r][l] != NULL)
      problem = sml_lane_find_violation(w->jobs[j].lanes[r][l]);
    for (uint32_t i = 0; i < 2; i++)
      if (w->jobs[j].is_started && w->jobs[j].one_way[i][r][l] != NULL && problem == NULL)
        problem = sml_lane_find_violation(w->jobs[j].one_way[i][r][l]);
    if (problem != NULL && w->options.has_liar && memcmp(problem, "I9", 2) == 0) problem = NULL;
  }
  if (problem == NULL) return;
  fprintf(stderr, "test_world: %s: lane %u, rank %u, pass %llu\n", problem, l, r,
          (unsigned long long)w->num_passes);
  abort();
}

/* When all is quiet the clock moves to the earliest deadline, but not beyond until_ns; while some engine sits
 * out passes, in growing steps. */
static bool pass(struct world *w, uint64_t until_ns) {
  w->now_ns += sml_max_u64(w->step_ns, STEP_NS);
  const struct tick tick = run_all(w);
  w->num_passes++;
  check_invariants(w);
  if (tick.is_busy) {
    w->num_quiet_passes = 0;
    w->step_ns = STEP_NS;
    return true;
  }
  if (tick.has_stalled) {
    w->step_ns = sml_min_u64(w->step_ns + w->step_ns / 2, MAX_STEP_NS);
    return true;
  }
  if (++w->num_quiet_passes < QUIET_PASSES) return true;
  w->num_quiet_passes = 0;
  if (tick.deadline_ns > until_ns) return false;
  w->now_ns = sml_max_u64(w->now_ns, tick.deadline_ns);
  return true;
}

bool world_pass(struct world *w) {
  return pass(w, SML_NEVER - 1);
}

void world_settle(struct world *w, uint64_t within_ns) {
  const uint64_t until_ns = w->now_ns + within_ns;
  while (w->now_ns < until_ns && pass(w, until_ns)) continue;
}

/* ---- frames by hand ---- */

void world_send_raw(const struct world_port *from, const void *frame, uint32_t num_bytes,
                    const struct sml_addr *to) {
  struct sml_tx_burst burst;
  from->io->ops->tx_reserve(from->io, num_bytes, &burst);
  memcpy(burst.data, frame, num_bytes);
  from->io->ops->tx_commit(from->io, &burst, 1, num_bytes, to, 1);
  from->io->ops->tx_flush(from->io);
}

const struct sml_seal *world_seal(const struct world *w, uint16_t number) {
  for (uint32_t j = 0; j < WORLD_MAX_JOBS; j++)
    if (w->jobs[j].is_open && w->jobs[j].number == number) return &w->jobs[j].seal;
  return NULL;
}

uint32_t world_head_bytes(const struct world *w) {
  return sml_head_bytes(!w->options.is_unkeyed);
}

void world_send(const struct world_port *from, const struct sml_header *h, const void *payload,
                const struct sml_addr *to) {
  uint8_t frame[SML_HEADER_BYTES + SML_KEYED_BYTES + SML_MAX_DATAGRAM_BYTES];
  const struct sml_seal *seal = world_seal(from->world, h->job);
  const uint32_t head_bytes = sml_head_bytes(seal != NULL && seal->is_keyed);
  SML_ASSERT(h->payload_bytes <= SML_MAX_DATAGRAM_BYTES);
  if (h->payload_bytes > 0) memcpy(frame + head_bytes, payload, h->payload_bytes);
  sml_wire_seal(frame, h, seal);
  world_send_raw(from, frame, head_bytes + h->payload_bytes, to);
}

/* ---- counters ---- */

uint64_t world_drops(const struct world *w, enum sml_drop drop) {
  uint64_t sum = 0;
  for (uint32_t l = 0; l < w->options.num_lanes; l++) {
    uint64_t drops[SML_NUM_DROPS];
    sml_aggregator_engine_drops(w->aggregators[l], drops);
    sum += drops[drop];
  }
  return sum;
}

uint64_t world_lane_drops(const struct world *w, uint32_t j, enum sml_drop drop) {
  uint64_t sum = 0;
  for (uint32_t r = 0; r < w->options.world_size; r++) {
    for (uint32_t l = 0; l < w->options.num_lanes; l++) {
      struct sml_lane_snapshot s;
      if (w->jobs[j].lanes[r][l] == NULL) continue;
      sml_lane_snapshot(w->jobs[j].lanes[r][l], &s);
      sum += s.num_drops[drop];
    }
  }
  return sum;
}

uint64_t world_retransmissions(const struct world *w, uint32_t j) {
  uint64_t sum = 0;
  for (uint32_t r = 0; r < w->options.world_size; r++) {
    for (uint32_t l = 0; l < w->options.num_lanes; l++) {
      struct sml_lane_snapshot s;
      if (w->jobs[j].lanes[r][l] == NULL) continue;
      sml_lane_snapshot(w->jobs[j].lanes[r][l], &s);
      sum += s.retransmissions;
    }
  }
  return sum;
}
