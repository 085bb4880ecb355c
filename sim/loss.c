/* SPDX-License-Identifier: Apache-2.0
 * loss: one all-reduce, or another collective, through lossy links in virtual time, by the shipped engines, ours or as
 * the paper repeats (NSDI'21: static slots, a fixed timeout, data again). Exact and repeatable: no processor takes part
 * in it. */
#include <stdio.h>
#include <stdlib.h>

#include "base/options.h"
#include "engine/aggregator_engine.h"
#include "engine/worker_engine.h"
#include "paper.h"
#include "sim/bed.h"
#include "switchml/switchml.h"

#define EPOCH 77u
#define NONCE 99u

/* One way all but the first; BOTH: a reduce-scatter and an all-gather at once. */
enum collective { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, BOTH };
static const char *const collective_names[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "both", NULL};

struct settings {
  struct bed_options bed;
  uint64_t num_bytes, limit_ns, late_ns; /* rank 0 calls so much later */
  uint32_t chunk_bytes, num_slots, num_rounds;
  double at_most;        /* times the time without loss; 0: any */
  double floor_at_most;  /* without loss, times the floor, and four round trips; 0: any */
  double most_packets;   /* that come to the aggregator for each sum; 0: any number */
  double most_questions; /* and repeats, for each packet that was lost; 0: any number */
  double losses[16];
  uint32_t num_losses;
  enum collective collective;
  uint64_t paper_timeout_ns; /* 0: ours */
  bool is_json;
};

struct outcome {
  uint64_t time_ns;            /* of the last rank, from the call */
  uint64_t aggregator_packets; /* that came to it */
  uint64_t wire_bytes;         /* of the busiest link */
  uint64_t up_packets, down_packets, num_lost, num_overflowed, num_without_room;
  uint64_t retransmissions, probes, timeouts;
  uint64_t spurious_updates, spurious_results, num_pending, num_unasked, num_repeats, num_probes;
  uint64_t slot_max;
  double slot_mean;
  bool is_right;
};

struct world {
  const struct settings *settings;
  struct bed bed;
  struct sml_aggregator_engine *aggregator;
  struct sml_worker_engine *workers[BED_MAX_NODES];
  struct sml_lane *lanes[2][BED_MAX_NODES]; /* the second one if there are two operations at once */
  struct sml_engine_operation operations[2][BED_MAX_NODES];
  uint64_t parts[BED_MAX_NODES + 1], bytes[BED_MAX_NODES + 1]; /* one way: where parts begin, in elements, in bytes */
  uint32_t num_ended;
  uint64_t rtt_ns; /* as the join would measure it */
  float *in, *out, *copy;
  /* per rank and slot: the phase of the last update that arrived, and of the last result */
  uint32_t *update_phases, *result_phases;
  uint64_t *completions; /* per slot, as rank 0 sees it */
  struct outcome *outcome;
};

static void *must(void *memory) {
  if (memory != NULL) return memory;
  fputs("loss: out of memory\n", stderr);
  abort();
}

static void count_received(void *user, uint32_t to, const uint8_t *data, uint32_t num_bytes) {
  struct world *w = user;
  struct sml_header h;
  w->outcome->aggregator_packets += to == 0;
  if (sml_wire_open(data, num_bytes, &h) != SML_WIRE_OK) return;
  const uint32_t cell = 2u * h.slot + (h.phase & 1), num_cells = 2 * SML_ALL_WINDOWS * w->settings->num_slots;
  if (cell >= num_cells) return;
  w->outcome->num_pending += h.type == SML_PACKET_PENDING;
  w->outcome->num_unasked += h.type == SML_PACKET_PENDING && (h.flags & SML_FLAG_UNASKED) != 0;
  w->outcome->num_repeats += h.type == SML_PACKET_RESULT && (h.flags & SML_FLAG_RETRANSMISSION) != 0;
  w->outcome->num_probes += h.type == SML_PACKET_PROBE;
  if (h.type == SML_PACKET_UPDATE) {
    uint32_t *phase = &w->update_phases[h.rank * num_cells + cell];
    if (h.phase <= *phase) w->outcome->spurious_updates++;
    *phase = sml_max_u32(*phase, h.phase);
  } else if (h.type == SML_PACKET_RESULT) {
    uint32_t *phase = &w->result_phases[(to - 1) * num_cells + cell];
    if (h.phase <= *phase) w->outcome->spurious_results++;
    else if (to == 1 && h.slot < w->settings->num_slots) w->completions[h.slot]++;
    *phase = sml_max_u32(*phase, h.phase);
  }
}

static void ignore_event(void *user, const struct sml_aggregator_event *event) {
  (void)user;
  (void)event;
}

static void note_hello(struct sml_hello *hello, bool is_echoed) {
  *(uint32_t *)hello->user += is_echoed;
}

/* Engines, and each rank's address at the aggregator; nothing is lost yet. */
static void make_engines(struct world *w) {
  const uint32_t n = w->settings->bed.num_ranks;
  const struct sml_quant_kernels *kernels = sml_quant_select(NULL);
  struct bed_node *nodes = w->bed.nodes;
  w->aggregator = must(sml_aggregator_engine_create(
      &(struct sml_aggregator_engine_options){.io = &nodes[0].io, .kernels = kernels, .on_event = ignore_event}));
  nodes[0].engine = w->aggregator;
  nodes[0].run_once = sml_aggregator_engine_run_once;
  SML_ASSERT(sml_aggregator_engine_open_job(w->aggregator, 0, EPOCH, n, NULL));
  uint32_t num_echoed = 0;
  struct sml_hello hellos[BED_MAX_NODES];
  for (uint32_t r = 0; r < n; r++) {
    struct bed_node *node = &nodes[r + 1];
    w->workers[r] =
        must(sml_worker_engine_create(&(struct sml_worker_engine_options){.io = &node->io, .kernels = kernels}));
    node->engine = w->workers[r];
    node->run_once = sml_worker_engine_run_once;
    sml_aggregator_engine_expect_hello(w->aggregator, 0, r, NONCE);
    hellos[r] = (struct sml_hello){.epoch = EPOCH,
                                   .rank = (uint16_t)r,
                                   .nonce = NONCE,
                                   .to = nodes[0].addr,
                                   .datagram_bytes = SML_HEADER_BYTES + 16,
                                   .interval_ns = SML_NS_PER_S,
                                   .deadline_ns = SML_NEVER - 1,
                                   .done = note_hello,
                                   .user = &num_echoed};
    sml_worker_engine_hello(w->workers[r], &hellos[r]);
  }
  while (num_echoed < n) SML_ASSERT(bed_step(&w->bed, SML_NEVER));
  for (uint32_t r = 0; r < n; r++) w->rtt_ns = sml_max_u64(w->rtt_ns, hellos[r].rtt_ns);
}

static uint32_t num_operations(const struct settings *s) {
  return s->collective == BOTH ? 2 : 1;
}

/* At all ranks. */
static uint32_t num_all(const struct settings *s) {
  return num_operations(s) * s->bed.num_ranks;
}

static uint8_t way_of(const struct settings *s, uint32_t operation) {
  if (s->collective == ALL_REDUCE) return SML_REDUCE_SUM;
  return s->collective == REDUCE_SCATTER || (s->collective == BOTH && operation == 0) ? SML_REDUCE_TO_OWNER
                                                                                      : SML_REDUCE_COPY;
}

static void open_lane(struct world *w, uint32_t operation, uint32_t r) {
  const struct settings *s = w->settings;
  const uint8_t way = way_of(s, operation);
  const struct sml_worker_options wo = {.epoch = EPOCH,
                                        .rank = (uint16_t)r,
                                        .world_size = s->bed.num_ranks,
                                        .num_lanes = 1,
                                        .num_slots = s->num_slots,
                                        .slot_base = (uint16_t)sml_window_base(way, s->num_slots),
                                        .way = way,
                                        .chunk_bytes = s->chunk_bytes,
                                        .first_phase = SML_FIRST_PHASE,
                                        .rtt_ns = w->rtt_ns,
                                        .seed = s->bed.seed * 1000 + r};
  struct sml_lane **lane = &w->lanes[operation][r];
  *lane = must(sml_lane_create(
      &(struct sml_lane_options){.worker = wo, .aggregator = w->bed.nodes[0].addr, .num_operations = 16}));
  SML_ASSERT(sml_lane_attach(w->workers[r], *lane));
}

static void start_job(struct world *w) {
  const struct settings *s = w->settings;
  const uint32_t n = s->bed.num_ranks;
  const struct sml_aggregator_options ao = {.world_size = n,
                                            .num_slots = s->num_slots,
                                            .is_one_way = s->collective != ALL_REDUCE,
                                            .chunk_bytes = s->chunk_bytes,
                                            .first_phase = SML_FIRST_PHASE,
                                            .rtt_ns = w->rtt_ns};
  void *mem = must(aligned_alloc(64, sml_align_up(sml_aggregator_memsize(&ao), 64)));
  (void)sml_aggregator_engine_start_job(w->aggregator, 0, EPOCH, sml_aggregator_init(mem, &ao), NULL, NULL);
  for (uint32_t i = 0; i < num_operations(s); i++)
    for (uint32_t r = 0; r < n; r++) open_lane(w, i, r);
}

static struct world *the_world; /* of on_ended, which gets nothing else */

static void note_ended(struct sml_engine_operation *operation) {
  (void)operation;
  the_world->num_ended++;
}

/* Parts are equal; of a broadcast all is rank 1's, so that rank 0, which looks at the result, gets it. */
static void list_parts(struct world *w) {
  const uint64_t n = w->settings->bed.num_ranks, num_bytes = w->settings->num_bytes;
  for (uint64_t r = 0; r <= n; r++) {
    w->parts[r] = num_bytes / 4 * r / n;
    if (w->settings->collective == BROADCAST) w->parts[r] = r > 1 ? num_bytes / 4 : 0;
  }
}

static struct sml_operation_plan make_plan(struct world *w, uint8_t way) {
  struct sml_operation_plan plan = {.num_elems = w->settings->num_bytes / 4, .block_elems = SML_BLOCK_ELEMS};
  if (way == SML_REDUCE_SUM) return plan;
  plan.way = way;
  plan.num_parts = w->settings->bed.num_ranks;
  plan.parts = w->parts;
  if (way == SML_REDUCE_COPY) {
    plan.num_elems *= 4;
    plan.block_elems = 0;
    plan.parts = w->bytes;
  }
  return plan;
}

static void push_operation(struct world *w, uint32_t operation, uint32_t r) {
  const struct settings *s = w->settings;
  struct sml_engine_operation *op = &w->operations[operation][r];
  const uint8_t way = way_of(s, operation);
  *op = (struct sml_engine_operation){.in = w->in,
                                      .out = r != 0                   ? NULL
                                             : way == SML_REDUCE_COPY ? w->copy
                                                                      : w->out,
                                      .plan = make_plan(w, way),
                                      .on_ended = note_ended};
  struct sml_range range;
  sml_range_make(&range, &op->plan, 0, 1, s->chunk_bytes, s->num_slots);
  op->codes[0] = must(calloc(1, sml_stream_codes_bytes(&range) + 1));
  atomic_init(&op->lanes_left, 1);
  atomic_init(&op->status, SML_OK);
  sml_lane_push(w->lanes[operation][r], op);
  w->bed.nodes[r + 1].deadline_ns = w->bed.now_ns;
}

static void push_operations(struct world *w, uint32_t first, uint32_t end) {
  for (uint32_t i = 0; i < num_operations(w->settings); i++)
    for (uint32_t r = first; r < end; r++) push_operation(w, i, r);
}

/* All ranks call; rank 0 may be late, and then times count from its call on. */
static uint64_t call(struct world *w) {
  list_parts(w);
  for (uint32_t r = 0; r <= w->settings->bed.num_ranks; r++) w->bytes[r] = 4 * w->parts[r];
  push_operations(w, 1, w->settings->bed.num_ranks);
  const uint64_t late_ns = w->bed.now_ns + w->settings->late_ns;
  while (bed_step(&w->bed, late_ns)) continue;
  push_operations(w, 0, 1);
  return w->bed.now_ns;
}

/* Rank 0 has the sums that are for it, and the copies that are not of its own. */
static bool is_right(const struct world *w) {
  const bool has_sums = way_of(w->settings, 0) != SML_REDUCE_COPY, goes_one_way = w->settings->collective != ALL_REDUCE;
  const bool has_copies = way_of(w->settings, num_operations(w->settings) - 1) == SML_REDUCE_COPY;
  const uint64_t num_elems = w->settings->num_bytes / 4, num_sums = goes_one_way ? w->parts[1] : num_elems;
  for (uint64_t i = 0; i < num_sums && has_sums; i++)
    if (w->out[i] != w->in[i] * (float)w->settings->bed.num_ranks) return false;
  for (uint64_t i = w->parts[1]; i < num_elems && has_copies; i++)
    if (w->copy[i] != w->in[i]) return false;
  return true;
}

static void sum_up(struct world *w, uint64_t begin_ns) {
  struct outcome *o = w->outcome;
  o->time_ns = w->bed.now_ns - begin_ns;
  o->is_right = w->num_ended == num_all(w->settings) && is_right(w);
  for (uint32_t r = 0; r < w->settings->bed.num_ranks; r++) {
    const struct bed_link *up = &w->bed.up[r], *down = &w->bed.down[r];
    for (uint32_t i = 0; i < num_operations(w->settings); i++) {
      struct sml_lane_snapshot snapshot;
      sml_lane_snapshot(w->lanes[i][r], &snapshot);
      o->retransmissions += snapshot.retransmissions;
      o->probes += snapshot.probes;
      o->timeouts += snapshot.timeouts;
    }
    o->up_packets += up->num_packets;
    o->down_packets += down->num_packets;
    o->num_lost += up->num_lost + down->num_lost;
    o->num_overflowed += up->num_overflowed + down->num_overflowed;
    o->num_without_room += down->num_without_room;
    o->wire_bytes = sml_max_u64(o->wire_bytes, sml_max_u64(up->num_bytes, down->num_bytes));
  }
  uint64_t sum = 0;
  for (uint32_t slot = 0; slot < w->settings->num_slots; slot++) {
    o->slot_max = sml_max_u64(o->slot_max, w->completions[slot]);
    sum += w->completions[slot];
  }
  o->slot_mean = (double)sum / w->settings->num_slots;
}

static void take_down(struct world *w) {
  const uint32_t n = w->settings->bed.num_ranks;
  for (uint32_t r = 0; r < n; r++) {
    for (uint32_t i = 0; i < num_operations(w->settings); i++) {
      sml_lane_detach(w->workers[r], w->lanes[i][r]);
      sml_lane_destroy(w->lanes[i][r]);
      free(w->operations[i][r].codes[0]);
    }
    sml_worker_engine_destroy(w->workers[r]);
  }
  free(sml_aggregator_engine_close_job(w->aggregator, 0));
  sml_aggregator_engine_destroy(w->aggregator);
  bed_free(&w->bed);
  free(w->update_phases);
  free(w->result_phases);
  free(w->completions);
  free(w->copy);
  free(w);
}

static struct outcome run(const struct settings *s, double loss, float *in, float *out) {
  struct outcome outcome = {0};
  struct world *w = the_world = must(calloc(1, sizeof *w));
  const size_t num_cells = (size_t)s->bed.num_ranks * 2 * SML_ALL_WINDOWS * s->num_slots;
  w->settings = s;
  w->in = in;
  w->out = out;
  w->copy = must(malloc(s->num_bytes));
  w->outcome = &outcome;
  w->update_phases = must(calloc(num_cells, sizeof(uint32_t)));
  w->result_phases = must(calloc(num_cells, sizeof(uint32_t)));
  w->completions = must(calloc(s->num_slots, sizeof(uint64_t)));
  bed_init(&w->bed, &s->bed);
  w->bed.options.loss = 0;
  make_engines(w);
  start_job(w);
  w->bed.options.loss = loss;
  w->bed.on_received = count_received;
  w->bed.user = w;
  const uint64_t begin_ns = call(w);
  while (w->num_ended < num_all(s) && bed_step(&w->bed, begin_ns + s->limit_ns)) continue;
  sum_up(w, begin_ns);
  take_down(w);
  return outcome;
}

/* ---- the report ---- */

static const char *const loss_names[BED_NUM_LOSSES + 1] = {"uniform", "burst", "one-receiver", "segmented"};

static double packets_a_sum(const struct settings *s, const struct outcome *o) {
  return o->slot_mean > 0 ? (double)o->aggregator_packets / (o->slot_mean * s->num_slots) : 0;
}

/* Questions of either side, and repeats of either, for each packet that was lost. */
static double questions_a_loss(const struct outcome *o) {
  const double num_lost = (double)(o->num_lost + o->num_overflowed + o->num_without_room);
  return (double)(o->probes + o->num_unasked + o->retransmissions + o->num_repeats) / (num_lost > 0 ? num_lost : 1);
}

static double floor_of(const struct settings *s) {
  const double link_bytes = (double)s->num_bytes / s->chunk_bytes * (s->chunk_bytes + SML_HEADER_BYTES + 42.0);
  const bool is_part = s->collective == REDUCE_SCATTER || s->collective == ALL_GATHER;
  const double link_ns = link_bytes * 8e9 / s->bed.rate_bps * (is_part ? 1 - 1.0 / s->bed.num_ranks : 1);
  const double port_ns = s->bed.port_bps > 0 ? s->bed.num_ranks * link_bytes * 8e9 / s->bed.port_bps : 0;
  return port_ns > link_ns ? port_ns : link_ns;
}

static void print_json(const struct settings *s, double loss, const struct outcome *o, double free_ns) {
  printf(
      "{\"workers\": %u, \"bytes\": %llu, \"rate_bps\": %.0f, \"delay_us\": %.1f, \"queue_bytes\": %llu, "
      "\"slots\": %u, \"chunk_bytes\": %u, \"paper_timeout_ms\": %.3f, \"loss_kind\": \"%s\", \"loss\": %g, ",
      s->bed.num_ranks, (unsigned long long)s->num_bytes, s->bed.rate_bps, (double)s->bed.delay_ns / 1e3,
      (unsigned long long)s->bed.queue_bytes, s->num_slots, s->chunk_bytes, (double)sml_paper_timeout_ns / 1e6,
      loss_names[s->bed.loss_kind], loss);
  printf(
      "\"time_ms\": %.3f, \"over_loss_free\": %.4f, \"over_floor\": %.4f, \"packets\": %llu, \"lost\": %llu, "
      "\"overflowed\": %llu, ",
      (double)o->time_ns / 1e6, (double)o->time_ns / free_ns, (double)o->time_ns / floor_of(s),
      (unsigned long long)(o->up_packets + o->down_packets), (unsigned long long)o->num_lost,
      (unsigned long long)o->num_overflowed);
  printf(
      "\"retransmissions\": %llu, \"spurious_updates\": %llu, \"spurious_results\": %llu, \"probes\": %llu, "
      "\"pending\": %llu, \"timeouts\": %llu, \"without_room\": %llu, \"packets_a_sum\": %.3f, "
      "\"questions_a_loss\": %.3f, \"slot_max\": %llu, "
      "\"slot_mean\": %.2f, \"right\": %s}\n",
      (unsigned long long)o->retransmissions, (unsigned long long)o->spurious_updates,
      (unsigned long long)o->spurious_results, (unsigned long long)o->num_probes, (unsigned long long)o->num_pending,
      (unsigned long long)o->timeouts, (unsigned long long)o->num_without_room, packets_a_sum(s, o),
      questions_a_loss(o), (unsigned long long)o->slot_max, o->slot_mean, o->is_right ? "true" : "false");
}

static void print_row(const struct settings *s, double loss, const struct outcome *o, double free_ns) {
  const double packets = (double)(o->up_packets + o->down_packets);
  printf("%-13s%7.3f%%%11.3f%9.4f%9.4f%9llu%9llu%10.4f%%%9llu%9llu%9llu%9llu%9.3f%9.2f%10.2f%s\n",
         loss_names[s->bed.loss_kind], loss * 100, (double)o->time_ns / 1e6, (double)o->time_ns / free_ns,
         (double)o->time_ns / floor_of(s), (unsigned long long)o->num_lost, (unsigned long long)o->retransmissions,
         (double)(o->spurious_updates + o->spurious_results) / packets * 100, (unsigned long long)o->num_probes,
         (unsigned long long)o->num_pending, (unsigned long long)o->timeouts, (unsigned long long)o->num_without_room,
         packets_a_sum(s, o), questions_a_loss(o), (double)o->slot_max / (o->slot_mean > 0 ? o->slot_mean : 1),
         o->is_right ? "" : "  WRONG");
}

static bool is_within(const struct settings *s, const struct outcome *o, bool is_free) {
  if (s->most_packets > 0 && packets_a_sum(s, o) > s->most_packets) return false;
  if (!is_free) return s->most_questions <= 0 || questions_a_loss(o) <= s->most_questions;
  const double four_ns = 8 * (double)s->bed.delay_ns;
  return s->floor_at_most <= 0 || (double)o->time_ns <= s->floor_at_most * floor_of(s) + four_ns;
}

static const char *take_starved(void *options, const char *text) {
  struct settings *s = options;
  char *end;
  const char *times = strchr(text, ':');
  s->bed.starved_rank = strncmp(text, "all:", 4) == 0 ? BED_ALL_NODES : (uint32_t)strtoul(text, &end, 10);
  if (times == NULL) return "it must be like 3:20:320 or all:20:320";
  s->bed.starved_run_ns = (uint64_t)(strtod(times + 1, &end) * 1e6);
  s->bed.starved_period_ns = *end == ':' ? (uint64_t)(strtod(end + 1, NULL) * 1e6) : 0;
  return s->bed.starved_run_ns > 0 ? NULL : "how long it runs must be above 0";
}

static const char *take_losses(void *options, const char *text) {
  struct settings *s = options;
  char *end;
  for (s->num_losses = 0; s->num_losses < SML_ARRAY_LEN(s->losses); text = end + 1) {
    s->losses[s->num_losses++] = strtod(text, &end);
    if (end == text || (*end != ',' && *end != 0)) return "shares are like 0.001 or 0.001,0.01";
    if (*end == 0) return NULL;
  }
  return "at most 16 shares";
}

#define SML_OPTIONS struct settings
static const struct sml_option table[] = {
    {"workers", 0, "N", "Ranks (default 8)", 1, SML_NUMBER(bed.num_ranks, 2, BED_MAX_NODES - 1)},
    {"collective", 0, "WHAT", "all_reduce (default), reduce_scatter, all_gather, broadcast, both (of the latter)", 1,
     SML_WORD(collective, collective_names)},
    {"size", 0, "BYTES", "Of the tensor (default 16777216)", 1, SML_NUMBER(num_bytes, 4, 1e12)},
    {"chunk", 0, "BYTES", "Of a packet's elements (default 1440)", 1, SML_NUMBER(chunk_bytes, 64, 8192)},
    {"slots", 0, "N", "A power of two (default 512)", 1, SML_NUMBER(num_slots, 1, 32768)},
    {"paper", 0, "MS", "Static slots, and data again after that time, instead of ours", 1,
     SML_SCALED(paper_timeout_ns, 0, 1e6, 1e6)},
    {"rate", 0, "GBIT", "Of each link (default 1)", 2, SML_REAL(bed.rate_bps, 1e-6, 1e6, 1e9)},
    {"port", 0, "GBIT", "Of the link by which the aggregator sends to all ranks (default: any)", 2,
     SML_REAL(bed.port_bps, 1e-6, 1e6, 1e9)},
    {"delay", 0, "US", "Of each link (default 20)", 2, SML_SCALED(bed.delay_ns, 0, 1e9, 1e3)},
    {"queue", 0, "BYTES", "Of each link (default 12500000)", 2, SML_NUMBER(bed.queue_bytes, 0, 0)},
    {"mark", 0, "BYTES", "The queue from which packets are marked (default: none are)", 2,
     SML_NUMBER(bed.mark_bytes, 0, 0)},
    {"kind", 0, "KIND", "uniform (default), burst, one-receiver or segmented", 2, SML_WORD(bed.loss_kind, loss_names)},
    {"loss", 0, "P,P...", "Shares of packets, one run for each, after one without loss", 2, SML_TAKEN_BY(take_losses)},
    {"segments", 0, NULL, "What one send carries arrives together, as segmentation offload has it", 2,
     SML_FLAG(bed.keeps_segments)},
    {"socket", 0, "BYTES", "What a rank's receive buffer holds", 2, SML_NUMBER(bed.socket_bytes, 0, 0)},
    {"cpus", 0, "N", "Processors that all nodes share, as one machine's do", 3,
     SML_NUMBER(bed.num_cpus, 0, BED_MAX_CPUS)},
    {"frame", 0, "US", "The processor time of a frame", 3, SML_SCALED(bed.frame_ns, 0, 1e6, 1e3)},
    {"late", 0, "MS", "Rank 0 calls so much later than the others", 3, SML_SCALED(late_ns, 0, 1e6, 1e6)},
    {"starve", 0, "RANK:MS:MS",
     "The rank has a processor for the first part of each period only (run, period); all: each node, the aggregator "
     "too, in turns",
     3, SML_TAKEN_BY(take_starved)},
    {"rounds", 0, "N", "Of each loss, with a seed each (default 1)", 4, SML_NUMBER(num_rounds, 1, 1u << 20)},
    {"seed", 0, "S", "Of the first round (default 1)", 4, SML_NUMBER(bed.seed, 0, 0)},
    {"json", 0, NULL, "A line of JSON for each run", 4, SML_FLAG(is_json)},
    {"limit", 0, "S", "Give up after so much virtual time (default 120)", 5, SML_SECONDS(limit_ns, 0, 1e9)},
    {"at-most", 0, "X", "Fail where loss makes it take more than X times as long", 5, SML_REAL(at_most, 0, 1e9, 1)},
    {"floor-at-most", 0, "X", "Fail where it takes more than X floors and four round trips without loss", 5,
     SML_REAL(floor_at_most, 0, 1e9, 1)},
    {"most-packets", 0, "X", "Fail where more come to the aggregator for each sum", 5,
     SML_REAL(most_packets, 0, 1e9, 1)},
    {"most-questions", 0, "X", "Fail where more questions and repeats follow for each lost packet", 5,
     SML_REAL(most_questions, 0, 1e9, 1)},
    {0}};

static const char *check(void *options) {
  const struct settings *s = options;
  if (s->num_bytes % 4 != 0 || s->chunk_bytes % 4 != 0) return "--size and --chunk must be multiples of 4";
  if (!sml_is_pow2(s->num_slots)) return "--slots must be a power of two";
  if (s->bed.starved_rank >= s->bed.num_ranks && s->bed.starved_rank != BED_ALL_NODES) return "--starve: no such rank";
  return NULL;
}

int main(int argc, char **argv) {
  struct settings s = {
      .bed = {.num_ranks = 8, .rate_bps = 1e9, .delay_ns = 20000, .queue_bytes = 12500000, .frame_ns = 500, .seed = 1},
      .num_bytes = 16 << 20,
      .chunk_bytes = 1440,
      .num_slots = 512,
      .num_rounds = 1,
      .limit_ns = 120 * SML_NS_PER_S};
  const struct sml_option_parser parser = {
      .table = table, .doc = "One all-reduce of float32 in virtual time, without and with loss", .check = check};
  sml_options_parse(&parser, argc, argv, &s);
  sml_paper_timeout_ns = s.paper_timeout_ns;
  s.bed.tells_queue = s.collective != ALL_REDUCE;
  s.bed.ring_packets = sml_max_u32(16384, 2 * s.num_slots);
  s.bed.max_frame_bytes = SML_HEADER_BYTES + s.chunk_bytes + 32;
  float *in = must(malloc(s.num_bytes)), *out = must(malloc(s.num_bytes));
  for (uint64_t i = 0; i < s.num_bytes / 4; i++) in[i] = (float)(i % 1021) - 510;
  if (!s.is_json)
    printf(
        "# n %u  %llu bytes  %g Gbit/s  delay %g us  slots %u x %u  queue %llu  %s %g ms\n%-13s%8s%11s%9s%9s%9s%9s"
        "%11s%9s%9s%9s%9s%9s%9s%10s\n",
        s.bed.num_ranks, (unsigned long long)s.num_bytes, s.bed.rate_bps / 1e9, (double)s.bed.delay_ns / 1e3,
        s.num_slots, s.chunk_bytes, (unsigned long long)s.bed.queue_bytes, sml_paper_timeout_ns > 0 ? "paper" : "ours",
        (double)sml_paper_timeout_ns / 1e6, "kind", "loss", "ms", "/free", "/floor", "lost", "retrans", "spurious",
        "probes", "pending", "timeouts", "no room", "in/sum", "ask/lost", "slots m/m");
  bool are_right = true;
  double free_ns = 0;
  for (uint32_t i = 0; i <= s.num_losses; i++) {
    for (uint32_t round = 0; round < (i == 0 ? 1 : s.num_rounds); round++) {
      struct settings each = s;
      each.bed.seed = s.bed.seed + round;
      const double loss = i == 0 ? 0 : s.losses[i - 1];
      const struct outcome outcome = run(&each, loss, in, out);
      if (i == 0) free_ns = (double)outcome.time_ns;
      (s.is_json ? print_json : print_row)(&each, loss, &outcome, free_ns);
      are_right = are_right && outcome.is_right;
      are_right = are_right && is_within(&s, &outcome, i == 0);
      if (s.at_most > 0 && (double)outcome.time_ns > s.at_most * free_ns) are_right = false;
    }
  }
  free(in);
  free(out);
  return are_right ? 0 : 1;
}
