/* SPDX-License-Identifier: Apache-2.0
 * Operations that are no sums for all: which ones a job has, and who has, or gets, which part of them. */
#include "sim/scenario_draw.h"
#include "switchml/switchml.h"

static const char *const names[] = {"all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce"};

const char *sim_collective_text(enum sim_collective collective) {
  return names[collective];
}

/* Parts of all ranks before this one. Uneven ones may be empty. */
static uint64_t weight_before(const struct sim_op_spec *op, uint32_t rank) {
  uint64_t weight = 0;
  for (uint32_t r = 0; r < rank; r++) weight += op->is_uneven ? sml_mix64(op->size_draw + r) % 4 : 1;
  return weight;
}

struct sim_part sim_op_part(const struct sim_op_spec *op, uint32_t world_size, uint64_t count, uint32_t rank) {
  if (op->collective == SIM_ALL_REDUCE) return (struct sim_part){0, count};
  if (op->collective == SIM_BROADCAST || op->collective == SIM_REDUCE)
    return (struct sim_part){0, op->root == rank ? count : 0};
  const uint64_t unit = op->type == SML_INT64 ? 2 : 1, num_units = count / unit, all = weight_before(op, world_size);
  if (all == 0) return (struct sim_part){rank == 0 ? 0 : count, rank == 0 ? count : 0};
  const uint64_t first = num_units * weight_before(op, rank) / all * unit;
  return (struct sim_part){first, num_units * weight_before(op, rank + 1) / all * unit - first};
}

/* Sums in exact mode, and what is no sum. */
static void draw_reduction(const struct sim_scenario *s, const struct sim_job_spec *job, struct sml_prng *p,
                           struct sim_op_spec *op) {
  static const uint8_t types[] = {SML_FLOAT32, SML_INT32, SML_INT64, SML_UINT8};
  op->is_exact = sml_prng_chance(p, 0.2) && s->flavor[0] != 'b'; /* the reference is slow */
  if (op->is_exact || job->world_size == 1) return;
  op->type = types[sml_prng_below(p, SML_ARRAY_LEN(types))];
  const bool is_float = op->type == SML_FLOAT32;
  op->reduction = (uint8_t)sim_pick(p, SML_MIN, is_float ? SML_MAX : SML_LOR);
  if (op->reduction == SML_PRODUCT && job->is_checked) op->reduction = SML_BOR; /* it has no check */
  op->is_exact = false;
}

/* From numbers of their own, so that seeds keep the rest of their worlds. */
void sim_collectives_draw(struct sim_scenario *s) {
  for (uint32_t j = 0; j < s->num_jobs; j++) {
    struct sim_job_spec *job = &s->jobs[j];
    struct sml_prng p = {sml_mix64(s->seed ^ 0xc011) + j};
    job->asks_one_way = sml_prng_chance(&p, 0.5) && !sim_has(s, SIM_KIND_CAPACITY);
    if (job->asks_one_way) job->num_slots = sml_max_u32(job->num_slots, 8);
    if (job->asks_one_way && sml_prng_chance(&p, 0.8)) {
      job->is_checked = false;
      job->retry_ns = 0;
    }
    for (uint32_t r = 0; r < job->num_rounds; r++) {
      for (uint32_t i = 0; i < job->rounds[r].num_ops; i++) {
        struct sim_op_spec *op = &job->rounds[r].ops[i];
        if (sml_prng_chance(&p, 0.2)) draw_reduction(s, job, &p, op);
        if (!sml_prng_chance(&p, job->asks_one_way ? 0.6 : 0.2)) continue;
        op->collective = (uint8_t)sim_pick(&p, SIM_REDUCE_SCATTER, SIM_REDUCE);
        op->root = (uint32_t)sml_prng_below(&p, job->world_size);
        op->is_uneven = sml_prng_chance(&p, 0.4);
        if (sim_op_is_copy(op)) op->is_exact = false;
        if (op->collective == SIM_BROADCAST) op->is_in_place = true;
      }
    }
  }
}

/* START offers them if all ranks ask (docs/PROTOCOL.md "Features"). */
bool sim_job_has_one_way(const struct sim_job_spec *job) {
  return job->asks_one_way && !job->is_checked && job->retry_ns == 0 && job->world_size > 1;
}
