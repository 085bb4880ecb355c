/* SPDX-License-Identifier: Apache-2.0
 * Jobs, their programs, and what happens to them. */
#include <stdio.h>

#include "sim/reference.h"
#include "sim/scenario_draw.h"
#include "switchml/switchml.h"

#define US SML_NS_PER_US
#define MS SML_NS_PER_MS
#define S SML_NS_PER_S
#define SMALLEST_DATAGRAM_BYTES 308u /* with key and check word */
#define BUFFER_BYTES (64u << 20)     /* of all ranks together, about */

/* Datagrams that a seed of each flavor sends without any trouble, about. */
#define SMALL_DATAGRAMS 24000u
#define WIDE_DATAGRAMS 60000u
#define BULK_DATAGRAMS 2600000u

static bool is_bulk(const struct sim_scenario *s) {
  return s->flavor[0] == 'b';
}

static void draw_op(const struct sim_scenario *s, const struct sim_job_spec *job, struct sml_prng *p, uint32_t round,
                    uint32_t index, struct sim_op_spec *op) {
  static const uint8_t rules[] = {SIM_SIZE_FEW,    SIM_SIZE_CHUNK,  SIM_SIZE_SOME, SIM_SIZE_SOME,
                                  SIM_SIZE_WINDOW, SIM_SIZE_WINDOW, SIM_SIZE_LONG, SIM_SIZE_LONG};
  op->type = sml_prng_chance(p, 0.5) ? SML_FLOAT32 : SML_INT32;
  op->reduction = op->type == SML_FLOAT32 && sml_prng_chance(p, 0.3) ? SML_AVG : SML_SUM;
  op->size_rule = rules[sml_prng_below(p, SML_ARRAY_LEN(rules))];
  if (is_bulk(s)) op->size_rule = SIM_SIZE_LONG;
  if (sml_prng_chance(p, 0.02)) op->size_rule = SIM_SIZE_EMPTY;
  op->size_draw = (uint32_t)sml_prng_next(p);
  op->data_kind = sml_prng_chance(p, 0.5) ? SIM_DATA_PLAIN : (uint8_t)sml_prng_below(p, SIM_NUM_DATA_KINDS);
  const uint32_t choice = op->size_draw >> 16 & 15; /* no draw of its own: seeds keep their worlds */
  if (op->type == SML_INT32 && choice == 0) op->type = SML_INT64;
  if (op->type == SML_FLOAT32 && choice < 2 && job->world_size <= 16)
    op->type = choice == 0 ? SML_FLOAT16 : SML_BFLOAT16; /* with more ranks a word is not in one datagram */
  op->is_in_place = sml_prng_chance(p, 0.3);
  op->misaligned_bytes = sml_prng_chance(p, 0.1) ? (uint8_t)sml_prng_below(p, 4) : 0;
  /* Under one name, rounds may meet by mistake: then keys tell them apart, as the documents say. */
  if (!job->has_fresh_names || sml_prng_chance(p, 0.3)) op->key = sml_mix64((uint64_t)round << 32 | (index + 1));
  if (sml_prng_chance(p, 0.4)) op->gap_ns = sim_pick_log(p, 10 * US, 30 * MS);
}

static bool are_alike(const struct sim_op_spec *a, const struct sim_op_spec *b) {
  return a->type == b->type && a->reduction == b->reduction && a->size_rule == b->size_rule &&
         a->size_draw == b->size_draw && a->key == b->key;
}

static void draw_misdeed(const struct sim_job_spec *job, struct sml_prng *p, struct sim_round_spec *round) {
  round->misdeed = (enum sim_misdeed)sim_pick(p, 1, SIM_NUM_MISDEEDS - 1);
  round->misdeed_rank = (uint32_t)sml_prng_below(p, job->world_size);
  round->misdeed_op = (uint32_t)sml_prng_below(p, round->num_ops);
  struct sim_op_spec *op = &round->ops[round->misdeed_op];
  if (op->size_rule == SIM_SIZE_EMPTY) op->size_rule = SIM_SIZE_FEW;
  if (round->misdeed != SIM_MISDEED_ORDER) return;
  const bool is_last = round->misdeed_op + 1 >= round->num_ops;
  if (is_last || op[1].size_rule == SIM_SIZE_EMPTY || are_alike(op, op + 1)) round->misdeed = SIM_MISDEED_KEY;
}

static void draw_round(const struct sim_scenario *s, struct sim_job_spec *job, struct sml_prng *p, uint32_t index) {
  struct sim_round_spec *round = &job->rounds[index];
  round->num_ops = is_bulk(s) ? SIM_MAX_OPS : (uint32_t)sim_pick_log(p, 2, 24);
  for (uint32_t i = 0; i < round->num_ops; i++) draw_op(s, job, p, index, i, &round->ops[i]);
  if (sim_has(s, SIM_KIND_MISDEED) && sml_prng_chance(p, 0.6)) draw_misdeed(job, p, round);
  if (sim_has(s, SIM_KIND_LATE) && sml_prng_chance(p, 0.7)) {
    round->late_rank = (uint32_t)sml_prng_below(p, job->world_size);
    round->late_op = (uint32_t)sml_prng_below(p, round->num_ops);
    round->late_ns = sim_pick_log(p, 1 * S, 14 * S);
  }
}

static void draw_limits(const struct sim_scenario *s, struct sim_job_spec *job, struct sml_prng *p) {
  static const uint32_t datagrams_bytes[] = {SMALLEST_DATAGRAM_BYTES, SMALLEST_DATAGRAM_BYTES, 332, 508, 1472, 8960};
  job->num_slots = 1u << sml_prng_below(p, 7);
  job->max_datagram_bytes = datagrams_bytes[sml_prng_below(p, SML_ARRAY_LEN(datagrams_bytes))];
  if (is_bulk(s)) {
    job->num_slots = 64;
    job->max_datagram_bytes = SMALLEST_DATAGRAM_BYTES;
  }
  job->lease_ns = sim_pick_log(p, 300 * MS, 2 * S);
  job->join_timeout_ns = 30 * S;
  job->operation_timeout_ns = 300 * S;
  if (sim_has(s, SIM_KIND_HASTE)) job->operation_timeout_ns = sim_pick(p, 500 * MS, 5 * S);
}

static void draw_job(struct sim_scenario *s, struct sml_prng *p, uint32_t index, uint32_t max_datagrams) {
  struct sim_job_spec *job = &s->jobs[index];
  snprintf(job->name, sizeof job->name, "job%u", index);
  const bool is_wide = s->flavor[0] == 'w' && index == 0;
  job->world_size = (uint32_t)(is_wide ? sim_pick(p, 9, SIM_MAX_WORLD_SIZE) : sim_pick_log(p, 2, 8));
  if (!is_bulk(s) && index > 0 && sml_prng_chance(p, 0.05)) job->world_size = 1;
  draw_limits(s, job, p);
  job->num_submitters = sml_prng_chance(p, 0.2) ? (uint32_t)sim_pick(p, 2, SIM_MAX_SUBMITTERS) : 1;
  job->depth = (uint32_t)sim_pick(p, 1, is_bulk(s) ? 2 : SIM_MAX_DEPTH);
  job->num_operations = 16; /* at least what submitters hold */
  job->num_threads = (uint32_t)sim_pick(p, 1, 3);
  job->start_spread_ns = sim_pick_log(p, 100 * US, 300 * MS);
  job->has_allgather = sml_prng_chance(p, 0.3);
  job->has_fresh_names = sml_prng_chance(p, 0.6);
  job->keeps_context = sml_prng_chance(p, 0.5);
  job->is_checked = sml_prng_chance(p, 0.5);
  job->retry_ns = sml_prng_chance(p, 0.4) ? sim_pick(p, 1, 20) * S : 0;
  job->num_rounds = is_bulk(s) ? 1 : (uint32_t)sim_pick(p, 1, SIM_MAX_ROUNDS);
  if (sim_has(s, SIM_KIND_REPLAY) && !is_bulk(s)) { /* from a port that stays, into the next membership */
    job->keeps_context = true;
    job->num_rounds = sml_max_u32(2, job->num_rounds);
  }
  uint32_t num_ops = 0;
  for (uint32_t r = 0; r < job->num_rounds; r++) {
    draw_round(s, job, p, r);
    num_ops += job->rounds[r].num_ops;
    if (job->rounds[r].misdeed >= SIM_MISDEED_EXIT) job->num_submitters = 1; /* who does it is clear then */
  }
  const uint32_t chunk_bytes = job->max_datagram_bytes - 32;
  const uint32_t num_buffers = job->world_size * job->num_submitters * job->depth * 2;
  const uint32_t fitting = BUFFER_BYTES / s->num_jobs / num_buffers / chunk_bytes;
  job->max_chunks = sml_max_u32(4, sml_min_u32(fitting, max_datagrams / (2 * job->world_size * (num_ops + 1))));
}

void sim_jobs_draw(struct sim_scenario *s, struct sml_prng *p) {
  const uint64_t draw = sml_prng_below(p, 100);
  s->flavor = draw < 8 ? "bulk" : draw < 18 ? "wide" : "small";
  if (sim_has(s, SIM_KIND_HASTE)) s->flavor = "small"; /* deadlines say nothing where the network is busy for long */
  const uint32_t max_datagrams = is_bulk(s) ? BULK_DATAGRAMS : s->flavor[0] == 'w' ? WIDE_DATAGRAMS : SMALL_DATAGRAMS;
  s->num_jobs = sml_prng_chance(p, 0.5) ? 1 : (uint32_t)sim_pick(p, 2, SIM_MAX_JOBS);
  if (sim_has(s, SIM_KIND_CAPACITY)) s->num_jobs = sml_max_u32(2, s->num_jobs);
  for (uint32_t j = 0; j < s->num_jobs; j++) draw_job(s, p, j, max_datagrams / s->num_jobs);
}

/* ---- incidents ---- */

static bool is_incident(enum sim_kind kind) {
  return kind >= SIM_KIND_CUT && kind <= SIM_KIND_DAEMON_PAUSE;
}

static uint64_t draw_duration(enum sim_kind kind, struct sml_prng *p) {
  if (kind == SIM_KIND_HOST) return SML_NEVER;
  if (kind == SIM_KIND_KILL && sml_prng_chance(p, 0.4)) return SML_NEVER;
  return sim_pick_log(p, 1 * MS, 8 * S);
}

static void draw_incident(const struct sim_scenario *s, struct sml_prng *p, enum sim_kind kind,
                          struct sim_incident *i) {
  i->kind = kind;
  i->job = (uint32_t)sml_prng_below(p, s->num_jobs);
  const struct sim_job_spec *job = &s->jobs[i->job];
  i->rank = (uint32_t)sml_prng_below(p, job->world_size);
  i->duration_ns = draw_duration(kind, p);
  i->is_one_way = sml_prng_chance(p, 0.3);
  i->is_at_op = sml_prng_chance(p, 0.75);
  if (i->is_at_op) {
    i->round = (uint32_t)sml_prng_below(p, job->num_rounds);
    i->op = (uint32_t)sml_prng_below(p, job->rounds[i->round].num_ops);
    i->at_ns = sim_pick_log(p, 1 * US, 20 * MS);
  } else {
    i->at_ns = sim_pick_log(p, 1 * MS, s->faults_end_ns);
  }
}

void sim_incidents_draw(struct sim_scenario *s, struct sml_prng *p) {
  for (uint32_t k = 0; k < SIM_NUM_KINDS; k++) {
    if (!sim_has(s, (enum sim_kind)k) || !is_incident((enum sim_kind)k)) continue;
    const uint64_t count = sim_pick(p, 1, 3);
    for (uint64_t i = 0; i < count && s->num_incidents < SIM_MAX_INCIDENTS; i++)
      draw_incident(s, p, (enum sim_kind)k, &s->incidents[s->num_incidents++]);
  }
}
