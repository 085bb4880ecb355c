/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/scenario.h"

#include <stdarg.h>
#include <stdio.h>

#include "sim/reference.h"
#include "sim/scenario_draw.h"
#include "switchml/switchml.h"

#define US SML_NS_PER_US
#define MS SML_NS_PER_MS
#define S SML_NS_PER_S

const char *sim_kind_text(enum sim_kind kind) {
  static const char *const texts[] = {
#define SIM_KIND_TEXT(name, text) text,
      SIM_KIND_LIST(SIM_KIND_TEXT)
#undef SIM_KIND_TEXT
  };
  return texts[kind];
}

const char *sim_misdeed_text(enum sim_misdeed misdeed) {
  static const char *const texts[SIM_NUM_MISDEEDS] = {[SIM_MISDEED_NONE] = "none",
                                                      [SIM_MISDEED_ORDER] = "another order",
                                                      [SIM_MISDEED_COUNT] = "another count",
                                                      [SIM_MISDEED_TYPE] = "another type",
                                                      [SIM_MISDEED_REDUCTION] = "another reduction",
                                                      [SIM_MISDEED_KEY] = "another key",
                                                      [SIM_MISDEED_EXIT] = "exit without goodbye",
                                                      [SIM_MISDEED_DESTROY] = "destroy with operations outstanding",
                                                      [SIM_MISDEED_ABORT] = "abort"};
  return texts[misdeed];
}

uint64_t sim_op_count(const struct sim_op_spec *op, uint32_t chunk_elems, uint32_t window_chunks, uint32_t max_chunks) {
  const uint64_t chunk = chunk_elems, window = (uint64_t)window_chunks * chunk_elems;
  uint64_t count = 0;
  switch ((enum sim_size_rule)op->size_rule) {
    case SIM_SIZE_FEW: count = 1 + op->size_draw % 9; break;
    case SIM_SIZE_CHUNK: count = chunk - 1 + op->size_draw % 3; break;
    case SIM_SIZE_SOME: count = 1 + op->size_draw % (8 * chunk); break;
    case SIM_SIZE_WINDOW: /* just below, equal to and just above the window, and with one chunk more */
      count = window - 1 + op->size_draw % 3 + (op->size_draw % 7 == 0 ? chunk : 0);
      break;
    case SIM_SIZE_LONG: count = max_chunks * chunk - op->size_draw % sml_max_u64(1, max_chunks * chunk / 2); break;
    case SIM_SIZE_EMPTY: return 0;
  }
  count = sml_min_u64(count, max_chunks * chunk);
  if (op->type == SML_INT64) return sml_max_u64(2, count & ~UINT64_C(1)) + 2 * op->extra_elems;
  return count + op->extra_elems;
}

/* ---- draws ---- */

uint64_t sim_pick(struct sml_prng *p, uint64_t low, uint64_t high) {
  return low + sml_prng_below(p, high - low + 1);
}

uint64_t sim_pick_log(struct sml_prng *p, uint64_t low, uint64_t high) {
  uint64_t x = high;
  while (x / 2 >= low && sml_prng_below(p, 64) < 40) x /= 2;
  return sim_pick(p, sml_max_u64(low, x / 2), x);
}

static double pick_share(struct sml_prng *p, double high) {
  const double x = (double)(sml_prng_next(p) >> 11) * 0x1p-53;
  return high * x * x; /* small ones mostly */
}

static void draw_kinds(struct sim_scenario *s, struct sml_prng *p) {
  const uint64_t how = sml_prng_below(p, 16);
  if (how == 0) return;
  if (how <= 3) {
    s->kinds = 1u << sml_prng_below(p, SIM_NUM_KINDS);
  } else {
    const double chance = how <= 10 ? 0.12 : 0.3;
    for (uint32_t k = 0; k < SIM_NUM_KINDS; k++)
      if (sml_prng_chance(p, chance)) s->kinds |= 1u << k;
  }
  /* Deadlines say something about lateness only if nothing else takes time. */
  if (sim_has(s, SIM_KIND_HASTE)) s->kinds = 1u << SIM_KIND_HASTE | 1u << SIM_KIND_LATE;
}

static void draw_network(struct sim_scenario *s, struct sml_prng *p) {
  struct sim_link link = {.bits_per_s = sml_prng_chance(p, 0.2) ? 0 : sim_pick(p, 1, 100) * 1000000000ull,
                          .delay_ns = sim_pick_log(p, 1 * US, 5 * MS)};
  if (sim_has(s, SIM_KIND_QUEUE)) link.queue_bytes = sim_pick_log(p, 20000, 400000);
  s->worker_up = s->worker_down = s->daemon_up = s->daemon_down = link;
  s->mtu_bytes = sml_prng_chance(p, 0.3) ? 9000 : 1500;
  s->told_mtu_bytes = sim_has(s, SIM_KIND_MTU) && s->mtu_bytes == 1500 ? 9000 : 0;
  struct sim_faults f = {.loss = 0};
  if (sim_has(s, SIM_KIND_LOSS)) f.loss = 0.001 + pick_share(p, 0.3);
  if (sim_has(s, SIM_KIND_BURST)) f.burst_loss = 0.0002 + pick_share(p, 0.002);
  if (sim_has(s, SIM_KIND_DUPLICATE)) f.duplicate = 0.01 + pick_share(p, 0.5);
  if (sim_has(s, SIM_KIND_REORDER)) {
    f.reorder = 0.01 + pick_share(p, 0.6);
    f.reorder_ns = sim_pick_log(p, 10 * US, 2 * S);
  }
  if (sim_has(s, SIM_KIND_CORRUPT)) f.corrupt = 0.001 + pick_share(p, 0.02);
  if (sim_has(s, SIM_KIND_TRUNCATE)) f.truncate = 0.001 + pick_share(p, 0.02);
  /* On the way up, down, or both. */
  const uint64_t where = sml_prng_below(p, 3);
  if (where != 1) s->worker_up.faults = f;
  if (where != 0) s->worker_down.faults = f;
  if (sml_prng_chance(p, 0.2)) s->daemon_down.faults = f;
}

static void draw_schedule(struct sim_scenario *s, struct sml_prng *p) {
  if (sim_has(s, SIM_KIND_SLOW))
    s->options = (struct sim_options){.wake_min_ns = 1 * US,
                                      .wake_spread_ns = sim_pick_log(p, 10 * US, 200 * US),
                                      .late_ns = sim_pick_log(p, 1 * MS, 40 * MS),
                                      .late_chance = 0.002 + pick_share(p, 0.02)};
  s->options.seed = s->seed;
  s->faults_begin_ns = sml_prng_chance(p, 0.5) ? 0 : sim_pick_log(p, 1 * MS, 50 * MS);
  s->faults_end_ns = s->faults_begin_ns + sim_pick_log(p, 100 * MS, 20 * S);
}

static void draw_daemon(struct sim_scenario *s, struct sml_prng *p) {
  uint32_t slots = 0;
  s->daemon_lanes = (uint32_t)sim_pick(p, 1, 3);
  s->first_data_port = sml_prng_chance(p, 0.5) ? 0 : 50000;
  s->max_jobs = 16;
  s->is_keyed = sml_prng_chance(p, 0.5);
  for (uint32_t j = 0; j < s->num_jobs; j++) slots += s->jobs[j].num_slots * (s->jobs[j].asks_one_way ? 8 : 1);
  s->pool_slots = 64;
  /* A job's windows come back when its end is seen, which may be after the next one's begin. */
  while (s->pool_slots < 4 * slots) s->pool_slots *= 2;
  if (sim_has(s, SIM_KIND_CAPACITY)) {
    s->pool_slots = 1;
    while (s->pool_slots * 2 < slots) s->pool_slots *= 2;
  }
  if (sim_has(s, SIM_KIND_EPOCH)) {
    uint32_t chunks = 0;
    bool has_one_way = false; /* then fences too, and the last chunks of parts */
    for (uint32_t j = 0; j < s->num_jobs; j++) {
      chunks = sml_max_u32(chunks, s->jobs[j].max_chunks);
      has_one_way = has_one_way || s->jobs[j].asks_one_way;
    }
    /* Room for the largest operation with its exponents, and a few more. */
    const uint32_t room =
        (has_one_way ? 4 * chunks + 512 : 2 * chunks + 8) + (uint32_t)sml_prng_below(p, 2 * chunks + 8);
    s->first_phase = (UINT32_MAX - room) & ~1u;
    s->first_chunk = UINT32_MAX - (uint32_t)sml_prng_below(p, 3 * chunks);
  }
}

void sim_scenario_draw(struct sim_scenario *s, uint64_t seed) {
  struct sml_prng p = {sml_mix64(seed + 0x5eed)};
  memset(s, 0, sizeof *s);
  s->seed = seed;
  draw_kinds(s, &p);
  sim_jobs_draw(s, &p);
  sim_collectives_draw(s);
  draw_network(s, &p);
  draw_schedule(s, &p);
  draw_daemon(s, &p);
  sim_incidents_draw(s, &p);
}

void sim_scenario_cut(struct sim_scenario *s, const struct sim_cuts *cuts) {
  if (cuts->faults_end_ns != 0) s->faults_end_ns = sml_min_u64(s->faults_end_ns, cuts->faults_end_ns);
  if (cuts->num_incidents != 0) s->num_incidents = sml_min_u32(s->num_incidents, cuts->num_incidents - 1);
  for (uint32_t j = 0; j < s->num_jobs; j++) {
    struct sim_job_spec *job = &s->jobs[j];
    if (cuts->num_rounds != 0) job->num_rounds = sml_min_u32(job->num_rounds, cuts->num_rounds);
    for (uint32_t r = 0; cuts->num_ops != 0 && r < job->num_rounds; r++)
      job->rounds[r].num_ops = sml_min_u32(job->rounds[r].num_ops, cuts->num_ops);
  }
}

/* ---- text ---- */

struct text {
  char *bytes;
  size_t used_bytes, room_bytes;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *t, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const size_t room_bytes = t->room_bytes - t->used_bytes;
  const int num_bytes = vsnprintf(t->bytes + t->used_bytes, room_bytes, format, arguments);
  if (num_bytes > 0) t->used_bytes += sml_min_u64((uint64_t)num_bytes, room_bytes - 1);
  va_end(arguments);
}

void sim_scenario_describe(const struct sim_scenario *s, char *bytes, size_t room_bytes) {
  struct text t = {.bytes = bytes, .room_bytes = room_bytes};
  add(&t, "%s lanes=%u jobs=", s->flavor, s->daemon_lanes);
  for (uint32_t j = 0; j < s->num_jobs; j++) {
    const struct sim_job_spec *job = &s->jobs[j];
    add(&t, "%s%uw*%us*%ub", j > 0 ? "," : "", job->world_size, job->num_slots, job->max_datagram_bytes);
  }
  add(&t, " kinds=");
  const char *separator = "";
  for (uint32_t k = 0; k < SIM_NUM_KINDS; k++) {
    if (!sim_has(s, (enum sim_kind)k)) continue;
    add(&t, "%s%s", separator, sim_kind_text((enum sim_kind)k));
    separator = ",";
  }
  if (s->kinds == 0) add(&t, "none");
}
