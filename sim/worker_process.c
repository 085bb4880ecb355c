/* SPDX-License-Identifier: Apache-2.0
 * The program of a rank's process: a training script as the library sees it. */
#include <stdio.h>

#include "sim/trust.h"
#include "sim/verdict.h"
#include "sim/world.h"

#define GUARD_BYTES 64u
#define GUARD 0xa5
#define RETRY_NS (200 * SML_NS_PER_MS)
#define MEETING_POLL_NS (2 * SML_NS_PER_MS)

/* ---- buffers ---- */

/* Areas begin with guard bytes and end with them. Contents: the input, and at the output anything. */
static void prepare_buffers(struct sim_rank *r, uint32_t submitter, uint32_t held, const struct sim_op_spec *op,
                            uint64_t count, struct sim_buffer *b) {
  const struct sim_job *job = r->job;
  const uint32_t max_depth = job->spec->depth;
  const size_t idx = ((size_t)r->rank * job->spec->num_submitters + submitter) * max_depth + held;
  b->out_area = job->memory + 2 * idx * job->area_bytes;
  b->in_area = op->is_in_place ? b->out_area : b->out_area + job->area_bytes;
  b->out = b->out_area + GUARD_BYTES + op->misaligned_bytes;
  b->in = b->in_area + GUARD_BYTES + op->misaligned_bytes;
  memset(b->out_area, GUARD, (size_t)(b->out - b->out_area));
  memset(b->out + count * 4, GUARD, GUARD_BYTES);
  b->is_failed = false;
}

static void fill_input(struct sim_rank *r, const struct sim_op_spec *op, uint32_t idx, uint64_t count,
                       const struct sim_buffer *b) {
  const struct sim_tensor tensor = sim_job_tensor(r->job, r->round, idx, op);
  uint32_t bits[256];
  for (uint64_t first = 0; first < count; first += SML_ARRAY_LEN(bits)) {
    const uint64_t num_elems = sml_min_u64(SML_ARRAY_LEN(bits), count - first);
    sim_tensor_fill(&tensor, r->rank, first, num_elems, bits);
    memcpy(b->in + first * 4, bits, num_elems * 4);
  }
}

/* ---- joining ---- */

static int gather(void *user, const void *in, void *out, size_t num_bytes) {
  struct sim_rank *r = user;
  struct sim_job *job = r->job;
  const uint32_t n = job->spec->world_size;
  struct sim_meeting *meeting = &job->meetings[r->round][0];
  if (meeting->present >> r->rank & 1) meeting++;
  const uint64_t all = n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1;
  if (num_bytes > SIM_MEETING_BYTES) return 1;
  memcpy(meeting->records[r->rank], in, num_bytes);
  meeting->present |= UINT64_C(1) << r->rank;
  const uint64_t deadline_ns = sim_now_ns() + job->spec->join_timeout_ns + 5 * SML_NS_PER_S;
  r->doing = "meets the other ranks";
  while (meeting->present != all && sim_now_ns() < deadline_ns) sim_sleep_ns(MEETING_POLL_NS);
  if (meeting->present != all) {
    sim_attempt_of(r)->has_missed_meeting = true;
    return 1;
  }
  for (uint32_t rank = 0; rank < n; rank++)
    memcpy((uint8_t *)out + rank * num_bytes, meeting->records[rank], num_bytes);
  return 0;
}

static void make_options(struct sim_rank *r, char *name, size_t name_bytes, sml_job_options *o) {
  const struct sim_job_spec *spec = r->job->spec;
  *o = (sml_job_options)SML_JOB_OPTIONS_INIT;
  snprintf(name, name_bytes, spec->has_fresh_names ? "%s.%u" : "%s", spec->name, r->round);
  o->aggregator = SIM_AGGREGATOR;
  o->name = name;
  o->rank = r->rank;
  o->world_size = spec->world_size;
  if (spec->has_allgather) {
    o->allgather = gather;
    o->allgather_user = r;
  }
  o->join_timeout_ns = spec->join_timeout_ns;
  o->operation_timeout_ns = spec->operation_timeout_ns;
  o->lease_ns = spec->lease_ns;
  o->num_slots = spec->num_slots;
  o->max_datagram_bytes = spec->max_datagram_bytes;
  sim_job_set_trust(r->job->world->scenario, spec, o);
}

static sml_status create(struct sim_rank *r) {
  char name[64];
  sml_job_options options;
  make_options(r, name, sizeof name, &options);
  const uint64_t deadline_ns = sim_now_ns() + options.join_timeout_ns;
  for (;;) {
    r->doing = "joins";
    const sml_status status = sml_job_create(r->context, &options, &r->handle);
    /* The job of this name that it was in, or its own former self, is not gone yet. */
    const bool is_early = status == SML_ERR_REFUSED && !r->job->spec->has_allgather;
    if (!is_early || sim_now_ns() >= deadline_ns) return status;
    r->job->world->num_refusals++;
    sim_trace("refused, tries again: %s", sml_error_detail());
    sim_sleep_ns(RETRY_NS);
  }
}

static bool enter(struct sim_rank *r) {
  struct sim_attempt *a = sim_attempt_of(r);
  const struct sim_job_spec *spec = r->job->spec;
  a->has_entered = true;
  a->entered_ns = sim_now_ns();
  if (r->context == NULL) {
    sml_context_options options = SML_CONTEXT_OPTIONS_INIT;
    options.num_threads = spec->num_threads + (r->rank == 0);
    options.num_operations = spec->num_operations;
    options.rx_buffer_bytes = 4u << 20;
    const sml_status status = sml_context_create(&options, &r->context);
    if (status != SML_OK) {
      sim_fail("failure", "a context cannot be made: %s", sml_error_detail());
      return false;
    }
  }
  sim_trace("joins %s as rank %u of %u, round %u", spec->name, r->rank, spec->world_size, r->round);
  const sml_status status = create(r);
  if (status != SML_OK) {
    sml_error error = SML_ERROR_INIT;
    snprintf(error.detail, sizeof error.detail, "%s", sml_error_detail());
    sim_trace("did not join %s: %s (%s)", spec->name, sml_status_string(status), error.detail);
    sim_check_failed(r, status, &error);
    r->job->world->num_joins_failed++;
    if (status == SML_ERR_REFUSED) r->job->world->num_refusals++;
    return false;
  }
  sml_stats stats = SML_STATS_INIT;
  sml_job_stats(r->handle, &stats);
  a->has_created = true;
  a->created_ns = sim_now_ns();
  a->chunk_bytes = stats.chunk_bytes;
  a->num_lanes = stats.num_lanes;
  a->num_slots = stats.num_slots;
  r->job->world->num_joins_ok++;
  sim_trace("joined %s: %u lanes, %u slots, chunks of %u bytes", spec->name, a->num_lanes, a->num_slots,
            a->chunk_bytes);
  sim_check_created(r);
  return true;
}

/* ---- operations ---- */

static bool await_turn(struct sim_rank *r, uint32_t idx) {
  pthread_mutex_lock(&r->lock);
  while (r->turn != idx && !r->is_stopped) pthread_cond_wait(&r->turned, &r->lock);
  const bool is_mine = !r->is_stopped;
  pthread_mutex_unlock(&r->lock);
  return is_mine;
}

static void end_turn(struct sim_rank *r, bool is_stop) {
  pthread_mutex_lock(&r->lock);
  r->turn++;
  if (is_stop) r->is_stopped = true;
  pthread_cond_broadcast(&r->turned);
  pthread_mutex_unlock(&r->lock);
}

static uint64_t count_of(const struct sim_rank *r, const struct sim_op_spec *op) {
  const struct sim_attempt *a = &r->attempts[r->round];
  if (a->num_lanes == 0) return sim_op_count(op, 64, 16, sml_min_u32(4, r->job->spec->max_chunks)); /* alone */
  return sim_op_count(op, a->chunk_bytes / 4, a->num_slots * a->num_lanes, r->job->spec->max_chunks);
}

static void compute(struct sim_rank *r, uint32_t idx, const struct sim_op_spec *op) {
  const struct sim_round_spec *round = sim_round_of(r);
  r->doing = "computes";
  if (op->gap_ns > 0) sim_sleep_ns(sml_prng_below(&r->prng, op->gap_ns) + 1);
  if (round->late_ns == 0 || round->late_rank != r->rank || round->late_op != idx) return;
  sim_trace("is late by %.3f s", (double)round->late_ns / 1e9);
  struct sim_trouble *trouble = sim_world_add_trouble(r->job->world, SIM_KIND_LATE, r->job->idx, r->rank);
  sim_sleep_ns(round->late_ns);
  trouble->to_ns = sim_now_ns();
}

static size_t elems_of(const struct sim_op_spec *op, uint64_t num_words) {
  if (op->type == SML_INT64) return num_words / 2;
  if (op->type == SML_UINT8) return num_words * 4;
  return op->type == SML_FLOAT16 || op->type == SML_BFLOAT16 ? 2 * num_words : num_words;
}

/* Parts lie in their places of the whole. */
static sml_status call(struct sim_rank *r, const struct sim_op_spec *op, uint64_t count, struct sim_buffer *b) {
  const uint32_t n = r->job->spec->world_size;
  const struct sim_part own = sim_op_part(op, n, count, r->rank);
  const bool is_copy = sim_op_is_copy(op);
  size_t parts[SIM_MAX_WORLD_SIZE];
  for (uint32_t rank = 0; rank < n; rank++) {
    const uint64_t num_words = sim_op_part(op, n, count, rank).count;
    parts[rank] = is_copy ? 4 * num_words : elems_of(op, num_words);
  }
  const sml_type type = (sml_type)op->type;
  const sml_reduction reduction = (sml_reduction)op->reduction;
  uint8_t *out = op->is_in_place ? b->in : b->out;
  sml_operation_options o = SML_OPERATION_OPTIONS_INIT;
  o.key = op->key;
  o.exact = op->is_exact;
  switch ((enum sim_collective)op->collective) {
    case SIM_REDUCE_SCATTER:
      return sml_reduce_scatter(r->handle, b->in, out + own.first * 4, 0, parts, type, reduction, &o, &b->handle);
    case SIM_ALL_GATHER: return sml_all_gather(r->handle, b->in + own.first * 4, out, 0, parts, &o, &b->handle);
    case SIM_BROADCAST: return sml_broadcast(r->handle, out, 4 * count, op->root, &o, &b->handle);
    case SIM_REDUCE:
      return sml_reduce(r->handle, b->in, r->rank == op->root ? out : NULL, elems_of(op, count), type, reduction,
                        op->root, &o, &b->handle);
    default: return sml_allreduce(r->handle, b->in, out, elems_of(op, count), type, reduction, &o, &b->handle);
  }
}

static bool submit(struct sim_rank *r, uint32_t idx, uint32_t submitter, struct sim_buffer *b, uint32_t held) {
  struct sim_op_spec altered;
  struct sim_attempt *a = sim_attempt_of(r);
  struct sim_op_record *record = &a->ops[idx];
  const struct sim_op_spec *op = sim_world_op(r, idx, &altered, &record->is_deviant);
  const uint64_t count = count_of(r, op);
  compute(r, idx, op);
  prepare_buffers(r, submitter, held, op, count, b);
  fill_input(r, op, idx, count, b);
  if (record->is_deviant) {
    sim_trace("deviates in operation %u: %s", idx, sim_misdeed_text(sim_round_of(r)->misdeed));
    sim_world_add_trouble(r->job->world, SIM_KIND_MISDEED, r->job->idx, r->rank)->to_ns = sim_now_ns();
  }
  b->op = idx;
  record->count = count;
  record->submitted_ns = sim_now_ns();
  record->state = SIM_OP_SUBMITTED;
  sim_incidents_on_submit(r, idx);
  const sml_status status = call(r, op, count, b);
  if (status == SML_OK) return true;
  record->state = SIM_OP_ENDED;
  record->status = status;
  record->awaited_ns = record->ended_ns = sim_now_ns();
  b->handle = NULL;
  sml_error error = SML_ERROR_INIT;
  sml_job_error(r->handle, &error);
  sim_trace("operation %u is refused: %s (%s)", idx, sml_status_string(status), error.detail);
  sim_check_failed(r, status, &error);
  return false;
}

static sml_status await(struct sim_rank *r, const struct sim_buffer *b) {
  const uint64_t how = sml_prng_below(&r->prng, 8);
  sml_status status = SML_IN_PROGRESS;
  while (status == SML_IN_PROGRESS) {
    if (how == 0) sim_sleep_ns(1 * SML_NS_PER_MS);
    status = how == 0 ? sml_operation_test(b->handle)
                      : sml_operation_wait(b->handle, how == 1 ? 10 * SML_NS_PER_MS : SML_NEVER);
  }
  return status;
}

/* Waits, looks at the result, and gives the handle back. */
static void finish(struct sim_rank *r, struct sim_buffer *b) {
  if (b->handle == NULL) return;
  struct sim_op_record *record = &sim_attempt_of(r)->ops[b->op];
  r->doing = "waits for an operation";
  record->awaited_ns = sim_now_ns();
  const sml_status status = await(r, b);
  r->doing = "works";
  record->state = SIM_OP_ENDED;
  record->status = status;
  record->ended_ns = sim_now_ns();
  if (status == SML_OK) {
    r->job->world->num_ops_ok++;
  } else {
    sml_error error = SML_ERROR_INIT;
    sml_operation_error(b->handle, &error);
    r->job->world->num_ops_failed++;
    sim_trace("operation %u ended: %s (%s)", b->op, sml_status_string(status), error.detail);
    sim_check_failed(r, status, &error);
  }
  sim_check_ended(r, b);
  sml_operation_release(b->handle);
  b->handle = NULL;
}

/* What the round's misdeed is at this operation, behind its submission. True: the rank is done with the round. */
static bool misbehave(struct sim_rank *r, uint32_t idx) {
  const struct sim_round_spec *round = sim_round_of(r);
  if (round->misdeed < SIM_MISDEED_EXIT || round->misdeed_rank != r->rank || round->misdeed_op != idx) return false;
  sim_trace("misbehaves: %s", sim_misdeed_text(round->misdeed));
  struct sim_trouble *trouble = sim_world_add_trouble(r->job->world, SIM_KIND_MISDEED, r->job->idx, r->rank);
  if (round->misdeed != SIM_MISDEED_EXIT) trouble->to_ns = sim_now_ns();
  if (round->misdeed == SIM_MISDEED_EXIT) {
    r->has_exited_early = true;
  } else if (round->misdeed == SIM_MISDEED_ABORT) {
    sml_job_abort(r->handle, "the simulated script gives up");
    return false; /* and learns it from its operations */
  }
  for (uint32_t h = 0; h < SIM_MAX_DEPTH; h++) {
    struct sim_buffer *b = &r->buffers[0][h];
    if (b->handle == NULL || r->has_exited_early) continue;
    sml_operation_release(b->handle);
    b->handle = NULL;
  }
  return true;
}

static void run_submitter(struct sim_rank *r, uint32_t submitter) {
  const struct sim_round_spec *round = sim_round_of(r);
  const uint32_t depth = r->job->spec->depth, step = r->num_submitters;
  uint32_t place = 0;
  for (uint32_t idx = submitter; idx < round->num_ops; idx += step, place++) {
    struct sim_buffer *b = &r->buffers[submitter][place % depth];
    finish(r, b);
    if (b->is_failed || !await_turn(r, idx)) break;
    const bool is_submitted = submit(r, idx, submitter, b, place % depth);
    const bool is_over = misbehave(r, idx);
    end_turn(r, !is_submitted || is_over);
    if (is_over) return;
    if (!is_submitted) break;
  }
  for (uint32_t h = 0; h < depth; h++) finish(r, &r->buffers[submitter][(place + h) % depth]);
  pthread_mutex_lock(&r->lock);
  if (sim_attempt_of(r)->failed_status != SML_OK) r->is_stopped = true;
  pthread_cond_broadcast(&r->turned);
  pthread_mutex_unlock(&r->lock);
}

struct submitter {
  struct sim_rank *rank;
  uint32_t number;
};

static void *run_thread(void *argument) {
  const struct submitter *s = argument;
  run_submitter(s->rank, s->number);
  return NULL;
}

static void run_program(struct sim_rank *r) {
  struct submitter submitters[SIM_MAX_SUBMITTERS];
  pthread_t threads[SIM_MAX_SUBMITTERS];
  r->turn = 0;
  r->is_stopped = false;
  r->num_submitters = r->job->spec->num_submitters;
  memset(r->buffers, 0, sizeof r->buffers);
  for (uint32_t s = 1; s < r->num_submitters; s++) {
    submitters[s] = (struct submitter){r, s};
    SML_ASSERT(pthread_create(&threads[s], NULL, run_thread, &submitters[s]) == 0);
  }
  run_submitter(r, 0);
  for (uint32_t s = 1; s < r->num_submitters; s++) pthread_join(threads[s], NULL);
}

/* ---- the process ---- */

static void leave_round(struct sim_rank *r) {
  r->doing = "leaves";
  sml_job_destroy(r->handle);
  r->handle = NULL;
  sim_attempt_of(r)->has_left = true;
  sim_attempt_of(r)->left_ns = sim_now_ns();
  sim_trace("left %s, round %u", r->job->spec->name, r->round);
  sim_check_left(r);
}

static void close_context(struct sim_rank *r) {
  r->doing = "closes its context";
  sml_context_destroy(r->context);
  r->context = NULL;
}

int sim_worker_main(void *argument) {
  struct sim_rank *r = argument;
  r->context = NULL;
  r->handle = NULL;
  r->prng = (struct sml_prng){r->job->world->scenario->seed ^ (uint64_t)r->job->idx << 40 ^ (uint64_t)r->rank << 48 ^
                              (uint64_t)r->round << 56};
  pthread_mutex_init(&r->lock, NULL);
  pthread_cond_init(&r->turned, NULL);
  for (;;) {
    if (enter(r)) {
      run_program(r);
      if (r->has_exited_early) break;
      leave_round(r);
    }
    if (sim_has_failed() || r->round + 1 == r->job->spec->num_rounds) break;
    if (!r->job->spec->keeps_context) close_context(r);
    r->round++;
  }
  if (!r->has_exited_early) {
    close_context(r);
    pthread_cond_destroy(&r->turned);
    pthread_mutex_destroy(&r->lock);
  }
  sim_trace("ends");
  r->doing = "has ended";
  sim_world_rank_ended(r);
  return 0;
}
