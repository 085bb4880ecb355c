/* SPDX-License-Identifier: Apache-2.0
 * Results: bit for bit against the reference, on every rank; and nothing written beside or behind them. */
#include <stdio.h>

#include "sim/verdict.h"
#include "sim/world.h"

#define GUARD_BYTES 64u
#define GUARD 0xa5

static enum sim_elem elem_of(const struct sim_op_spec *spec) {
  switch ((sml_type)spec->type) {
    case SML_INT32: return SIM_INT32;
    case SML_INT64: return SIM_INT64;
    case SML_FLOAT16: return SIM_FLOAT16;
    case SML_BFLOAT16: return SIM_BFLOAT16;
    case SML_UINT8: return SIM_UINT8;
    default: return SIM_FLOAT32;
  }
}

struct sim_tensor sim_job_tensor(const struct sim_job *job, uint32_t round, uint32_t op,
                                 const struct sim_op_spec *spec) {
  const uint64_t place = (uint64_t)job->idx << 32 | (uint64_t)round << 16 | op;
  return (struct sim_tensor){
      .seed = sml_mix64(job->world->scenario->seed ^ place << 8), .kind = spec->data_kind, .elem = elem_of(spec)};
}

const struct sim_op_spec *sim_world_op(const struct sim_rank *r, uint32_t op, struct sim_op_spec *altered,
                                       bool *is_deviant_out) {
  const struct sim_round_spec *round = sim_round_of(r);
  const uint32_t at = round->misdeed_op;
  const struct sim_op_spec *spec = &round->ops[op];
  *is_deviant_out = false;
  if (round->misdeed == SIM_MISDEED_NONE || round->misdeed >= SIM_MISDEED_EXIT) return spec;
  if (round->misdeed_rank != r->rank || r->job->spec->world_size == 1) return spec;
  if (round->misdeed == SIM_MISDEED_ORDER) {
    if ((op != at && op != at + 1) || at + 1 >= round->num_ops) return spec;
    *is_deviant_out = true;
    return &round->ops[op == at ? at + 1 : at];
  }
  if (op != at) return spec;
  *is_deviant_out = true;
  *altered = *spec;
  if (round->misdeed == SIM_MISDEED_COUNT) {
    altered->extra_elems = 1;
  } else if (round->misdeed == SIM_MISDEED_KEY || sim_op_is_copy(spec)) { /* of copies nothing else tells */
    altered->key ^= 0x1000;
  } else if (round->misdeed == SIM_MISDEED_REDUCTION && spec->type == SML_FLOAT32) {
    altered->reduction = spec->reduction == SML_AVG ? SML_SUM : SML_AVG;
  } else {
    altered->type = spec->type == SML_FLOAT32 ? SML_INT32 : SML_FLOAT32;
    altered->reduction = SML_SUM;
    altered->is_exact = false;
  }
  return altered;
}

/* ---- settings ---- */

void sim_check_created(struct sim_rank *r) {
  const struct sim_job *job = r->job;
  const struct sim_attempt *a = sim_attempt_of(r);
  for (uint32_t rank = 0; rank < job->spec->world_size; rank++) {
    const struct sim_attempt *other = &job->ranks[rank].attempts[r->round];
    /* Under one name for all rounds, a rank may find others in their next round. */
    if (!other->has_entered && (job->spec->has_fresh_names || job->spec->has_allgather))
      sim_fail("results", "%s started at rank %u in round %u, but rank %u has not joined", job->spec->name, r->rank,
               r->round, rank);
    if (other->has_created &&
        (other->chunk_bytes != a->chunk_bytes || other->num_lanes != a->num_lanes || other->num_slots != a->num_slots))
      sim_fail("results", "ranks %u and %u of %s have different lanes, slots or chunks", rank, r->rank,
               job->spec->name);
  }
}

/* ---- operations ---- */

/* What each rank has, one part behind the other. */
static void gather_parts(const struct sim_job *job, const struct sim_tensor *tensor, const struct sim_op_spec *spec,
                         uint64_t count, uint32_t *bits) {
  for (uint32_t rank = 0; rank < job->spec->world_size; rank++) {
    const struct sim_part part = sim_op_part(spec, job->spec->world_size, count, rank);
    sim_tensor_fill(tensor, rank, part.first, part.count, bits + part.first);
  }
}

static const uint32_t *answer(struct sim_rank *r, uint32_t op, uint64_t count) {
  struct sim_job *job = r->job;
  struct sim_answer *a = &job->answers[op % job->num_answers];
  if (a->is_made && a->round == r->round && a->op == op) return a->bits;
  const struct sim_op_spec *spec = &sim_round_of(r)->ops[op];
  a->is_made = true;
  a->round = r->round;
  a->op = op;
  const struct sim_sum sum = {.tensor = sim_job_tensor(job, r->round, op, spec),
                              .count = count,
                              .world_size = job->spec->world_size,
                              .is_average = spec->reduction == SML_AVG,
                              .is_exact = spec->is_exact,
                              .reduction = (enum sim_reduction)spec->reduction};
  if (sim_op_is_copy(spec)) gather_parts(job, &sum.tensor, spec, count, a->bits);
  else if (job->spec->world_size == 1)
    sim_tensor_fill(&sum.tensor, 0, 0, count, a->bits); /* alone, a rank's sum is its input */
  else sim_sum_make(&sum, a->bits, job->world->scratch);
  return a->bits;
}

/* All ranks must have had a part in it. */
static bool check_parts(const struct sim_rank *r, uint32_t op) {
  const struct sim_job *job = r->job;
  for (uint32_t rank = 0; rank < job->spec->world_size; rank++) {
    const struct sim_op_record *record = &job->ranks[rank].attempts[r->round].ops[op];
    if (record->state != SIM_OP_NONE && !record->is_deviant) continue;
    sim_fail("results", "operation %u of %s round %u succeeds at rank %u, but rank %u %s", op, job->spec->name,
             r->round, r->rank, rank, record->is_deviant ? "called another one" : "has not called it");
    return false;
  }
  return true;
}

static void check_sum(struct sim_rank *r, const struct sim_buffer *b, const struct sim_op_spec *spec, uint64_t all) {
  static const char *const names[] = {"int32", "float32", "int64", "float16", "bfloat16", "uint8"};
  const struct sim_part part =
      sim_op_is_copy(spec) ? (struct sim_part){0, all} : sim_op_part(spec, r->job->spec->world_size, all, r->rank);
  const uint64_t count = part.count;
  const uint32_t *expected = answer(r, b->op, all) + part.first;
  const uint8_t *got = (spec->is_in_place ? b->in : b->out) + part.first * 4;
  if (count == 0 || memcmp(got, expected, count * 4) == 0) return;
  uint64_t i = 0, num_wrong = 0;
  for (uint64_t k = count; k-- > 0;) {
    if (memcmp(got + k * 4, &expected[k], 4) == 0) continue;
    i = k;
    num_wrong++;
  }
  uint32_t bits;
  memcpy(&bits, got + i * 4, sizeof bits);
  sim_fail(
      "results",
      "operation %u of %s round %u (%s, %s, reduction %u, %llu words) is wrong at rank %u: word %llu is %08x, must be "
      "%08x; %llu are wrong",
      b->op, r->job->spec->name, r->round, sim_collective_text((enum sim_collective)spec->collective),
      names[elem_of(spec)], spec->reduction, (unsigned long long)count, r->rank, (unsigned long long)i, bits,
      expected[i], (unsigned long long)num_wrong);
}

static bool is_guard(const uint8_t *from, const uint8_t *to) {
  for (; from < to; from++)
    if (*from != GUARD) return false;
  return true;
}

static void check_guards(const struct sim_rank *r, const struct sim_buffer *b, uint64_t count) {
  const uint8_t *end = b->out + count * 4;
  if (!is_guard(b->out_area, b->out) || !is_guard(end, end + GUARD_BYTES))
    sim_fail("results", "operation %u of %s wrote outside its output at rank %u", b->op, r->job->spec->name, r->rank);
}

static void check_input(const struct sim_rank *r, const struct sim_buffer *b, const struct sim_op_spec *spec,
                        uint64_t count) {
  const struct sim_tensor tensor = sim_job_tensor(r->job, r->round, b->op, spec);
  uint32_t bits[256];
  for (uint64_t first = 0; first < count && !spec->is_in_place; first += SML_ARRAY_LEN(bits)) {
    const uint64_t num_elems = sml_min_u64(SML_ARRAY_LEN(bits), count - first);
    sim_tensor_fill(&tensor, r->rank, first, num_elems, bits);
    if (memcmp(b->in + first * 4, bits, num_elems * 4) == 0) continue;
    sim_fail("results", "operation %u of %s wrote into its input at rank %u", b->op, r->job->spec->name, r->rank);
    return;
  }
}

static uint64_t hash_output(const struct sim_buffer *b, uint64_t count) {
  uint64_t h = 1;
  for (uint64_t i = 0; i < count; i++) {
    uint32_t word;
    memcpy(&word, b->out + i * 4, sizeof word);
    h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    h ^= h >> 29;
  }
  return h;
}

/* How long the stream takes that may be in front of an operation, generously. */
static uint64_t stream_ns(const struct sim_job *job, const struct sim_attempt *a) {
  const struct sim_scenario *s = job->world->scenario;
  const uint64_t trip_ns = 2 * (s->worker_up.delay_ns + s->daemon_down.delay_ns) + SML_NS_PER_MS +
                           8 * s->options.wake_spread_ns + s->options.late_ns;
  const uint64_t num_trips = 2 * job->spec->max_chunks / sml_max_u32(1, a->num_slots * a->num_lanes) + 8;
  return 2 * num_trips * trip_ns * job->spec->depth * job->spec->num_submitters;
}

/* After the faults every operation that all ranks have called ends soon. */
static void check_liveness(const struct sim_rank *r, uint32_t op) {
  const struct sim_job *job = r->job;
  const uint64_t bound_ns = 3 * SML_NS_PER_S + stream_ns(job, &r->attempts[r->round]);
  const struct sim_op_record *own = &r->attempts[r->round].ops[op];
  if (!job->world->are_faults_over) return;
  uint64_t since_ns = sml_max_u64(job->world->faults_over_ns, own->awaited_ns);
  for (uint32_t rank = 0; rank < job->spec->world_size; rank++) {
    const struct sim_op_record *record = &job->ranks[rank].attempts[r->round].ops[op];
    if (record->state == SIM_OP_NONE) return;
    since_ns = sml_max_u64(since_ns, record->submitted_ns);
  }
  if (own->ended_ns > since_ns + bound_ns)
    sim_fail("liveness",
             "operation %u of %s round %u ended at rank %u %.1f s after all ranks called it, without faults", op,
             job->spec->name, r->round, r->rank, (double)(own->ended_ns - since_ns) / 1e9);
}

void sim_check_ended(struct sim_rank *r, const struct sim_buffer *ended) {
  struct sim_buffer *b = (struct sim_buffer *)(uintptr_t)ended;
  struct sim_op_spec altered;
  bool is_deviant;
  const struct sim_op_spec *spec = sim_world_op(r, b->op, &altered, &is_deviant);
  const struct sim_op_record *record = &sim_attempt_of(r)->ops[b->op];
  sim_check_deadline(r, record);
  check_guards(r, b, record->count);
  check_input(r, b, spec, record->count);
  if (record->status == SML_OK) {
    check_liveness(r, b->op);
    if (record->count > 0 && check_parts(r, b->op)) check_sum(r, b, spec, record->count);
  } else {
    b->is_failed = true;
    b->failed_hash = hash_output(b, record->count);
  }
}

void sim_check_left(struct sim_rank *r) {
  for (uint32_t s = 0; s < r->num_submitters; s++) {
    for (uint32_t h = 0; h < r->job->spec->depth; h++) {
      const struct sim_buffer *b = &r->buffers[s][h];
      if (!b->is_failed) continue;
      if (b->failed_hash != hash_output(b, sim_attempt_of(r)->ops[b->op].count))
        sim_fail("results", "the output of operation %u of %s was written at rank %u after it had failed", b->op,
                 r->job->spec->name, r->rank);
    }
  }
}
