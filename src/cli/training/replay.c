/* SPDX-License-Identifier: Apache-2.0
 * One rank's replay of a plan over a job. Computing is a time until which nothing is called; an iteration is
 * timed from one backward pass's start to the next one's. All sends of a rank have one input, at offsets of
 * their own, so that memory is that of the gradient and of its largest send. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/thread.h"
#include "cli/training/training.h"

#define MAX_UNDER_WAY 512u /* operations of a job that are out at once; the library has room for 1,024 */
#define MAX_GROUP 128u     /* of them in one batch */
#define OFFSETS 64u        /* elements by which the inputs of two neighbouring sends differ */
#define VALUES 1000u
#define KEY_FIRST 16u /* of sends; the keys below are for what stands around them */

enum call_key { KEY_BARRIER = 1, KEY_GATHER };
enum figure {
  FIGURE_TX_BYTES,
  FIGURE_RX_BYTES,
  FIGURE_RETRANSMISSIONS,
  FIGURE_OPERATIONS,
  FIGURE_CPU_NS,
  FIGURE_WRONG,
  NUM_FIGURES
};

struct replay {
  const struct sml_training_options *options;
  const struct sml_training_plan *plan;
  uint32_t rank, world_size, num_iters; /* with those that are not timed */
  sml_context *context;
  sml_job *job;
  float *in, *out, *own;      /* own: parts of what is scattered */
  sml_operation **operations; /* of this iteration's sends; NULL: ended */
  uint32_t num_called, num_done;
  uint64_t *starts_ns; /* of the backward passes */
  bool has_failed;
};

static void sleep_until(uint64_t time_ns) {
  const struct timespec time = sml_timespec(time_ns);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) != 0) continue;
}

/* Says so, once: all that is under way fails alike. */
static bool fail(struct replay *r, const char *what, sml_status status, const char *detail) {
  if (r->has_failed) return false;
  r->has_failed = true;
  sml_bench_say("rank %u: %s failed: %s%s%s", r->rank, what, sml_status_string(status), detail && *detail ? ": " : "",
                detail ? detail : "");
  sml_job_abort(r->job, what); /* so that what was called ends, here and elsewhere */
  return false;
}

static bool finish(struct replay *r, sml_operation *operation, const char *what) {
  const sml_status status = sml_operation_wait(operation, r->options->bench.timeout_ns + 10 * SML_NS_PER_S);
  if (status == SML_IN_PROGRESS) {
    sml_bench_say("rank %u: %s did not end by its deadline", r->rank, what);
    _Exit(SML_BENCH_FAILED); /* the buffers are still lent */
  }
  sml_error error = SML_ERROR_INIT;
  if (status != SML_OK) sml_operation_error(operation, &error);
  sml_operation_release(operation);
  return status == SML_OK || fail(r, what, status, error.detail);
}

static bool reduce_ints(struct replay *r, const int32_t *in, int32_t *out, size_t num_elems, uint64_t key,
                        const char *what) {
  sml_operation_options options = SML_OPERATION_OPTIONS_INIT;
  options.key = key;
  sml_operation *operation;
  const sml_status status = sml_allreduce(r->job, in, out, num_elems, SML_INT32, SML_SUM, &options, &operation);
  return status == SML_OK ? finish(r, operation, what) : fail(r, what, status, sml_error_detail());
}

static bool wait_for_all(struct replay *r) {
  const int32_t one = 1;
  int32_t sum;
  return reduce_ints(r, &one, &sum, 1, KEY_BARRIER, "the barrier");
}

/* all_out[world_size * num_values] */
static bool gather(struct replay *r, const uint64_t *values, size_t num_values, uint64_t *all_out) {
  const size_t num_elems = sml_bench_gather_elems(r->world_size, num_values);
  int32_t *vectors = calloc(2 * num_elems, sizeof *vectors);
  if (!vectors) return fail(r, "gathering the figures", SML_ERR_NO_MEMORY, NULL);
  sml_bench_gather_pack(vectors, r->world_size, r->rank, values, num_values);
  bool is_ok = reduce_ints(r, vectors, vectors + num_elems, num_elems, KEY_GATHER, "gathering the figures");
  if (is_ok && !sml_bench_gather_unpack(vectors + num_elems, r->world_size, num_values, all_out))
    is_ok = fail(r, "gathering the figures", SML_ERR_PROTOCOL, "they came back damaged");
  free(vectors);
  return is_ok;
}

static bool wait_for_send(struct replay *r, uint32_t idx) {
  sml_operation *operation = r->operations[idx];
  r->operations[idx] = NULL;
  return operation == NULL || finish(r, operation, "a gradient's call");
}

static bool wait_for_sends(struct replay *r, uint32_t num) {
  for (; r->num_done < num; r->num_done++) {
    if (!wait_for_send(r, r->num_done)) {
      r->num_done++;
      return false;
    }
  }
  return true;
}

static bool call_send(struct replay *r, uint32_t idx) {
  const struct sml_training_send *send = &r->plan->sends[idx];
  sml_operation_options options = SML_OPERATION_OPTIONS_INIT;
  options.key = KEY_FIRST + idx;
  const float *in = r->in + idx % OFFSETS;
  float *out = r->out + send->first_elem;
  sml_operation **operation = &r->operations[idx];
  const size_t part = send->num_elems / r->world_size;
  sml_status status = SML_OK;
  if (send->call == SML_TRAINING_GATHER)
    status = sml_all_gather(r->job, in, out, part * sizeof *in, NULL, &options, operation);
  else if (send->call == SML_TRAINING_SCATTER)
    status = sml_reduce_scatter(r->job, in, r->own + send->first_elem / r->world_size, part, NULL, SML_FLOAT32, SML_SUM,
                                &options, operation);
  else status = sml_allreduce(r->job, in, out, send->num_elems, SML_FLOAT32, SML_SUM, &options, operation);
  if (status != SML_OK) return fail(r, "a gradient's call", status, sml_error_detail());
  r->num_called++;
  return true;
}

/* What gets ready at one time: a batch, in which small ones share packets. */
static bool call_group(struct replay *r, uint32_t first, uint32_t num) {
  if (first + num > MAX_UNDER_WAY && !wait_for_sends(r, first + num - MAX_UNDER_WAY)) return false;
  const bool is_batch = num > 1;
  sml_status status = is_batch ? sml_batch_begin(r->job) : SML_OK;
  if (status != SML_OK) return fail(r, "beginning a batch", status, sml_error_detail());
  bool is_ok = true;
  for (uint32_t i = 0; is_ok && i < num; i++) is_ok = call_send(r, first + i);
  if (is_batch) status = sml_batch_end(r->job);
  return is_ok && (status == SML_OK || fail(r, "ending a batch", status, sml_error_detail()));
}

static bool run_backward(struct replay *r, uint64_t start_ns) {
  const struct sml_training_plan *p = r->plan;
  r->num_called = r->num_done = 0;
  for (uint32_t first = 0, num; first < p->num_sends; first += num) {
    for (num = 1; num < MAX_GROUP && first + num < p->num_sends; num++)
      if (p->sends[first + num].ready_ns != p->sends[first].ready_ns) break;
    sleep_until(start_ns + p->sends[first].ready_ns);
    if (!call_group(r, first, num)) return false;
  }
  return true;
}

/* From time *now_ns_io on, when the backward pass ended, to the end of the forward pass. */
static bool run_forward(struct replay *r, uint64_t *now_ns_io) {
  const struct sml_training_plan *p = r->plan;
  for (uint32_t layer = 0; layer < p->num_layers; layer++) {
    if (r->num_called != 0 && p->num_needed[layer] > r->num_done) {
      if (!wait_for_sends(r, p->num_needed[layer])) return false;
      *now_ns_io = sml_max_u64(*now_ns_io, sml_clock_ns());
    }
    *now_ns_io += p->forward_ns[layer];
  }
  sleep_until(*now_ns_io);
  return true;
}

/* One of sharded training, from time *now_ns_io on. */
static bool run_steps(struct replay *r, uint64_t *now_ns_io) {
  r->num_called = r->num_done = 0;
  for (uint32_t i = 0; i < r->plan->num_steps; i++) {
    const struct sml_training_step *step = &r->plan->steps[i];
    if (step->act == SML_TRAINING_CALL && !call_send(r, (uint32_t)step->number)) return false;
    if (step->act == SML_TRAINING_WAIT) {
      if (!wait_for_send(r, (uint32_t)step->number)) return false;
      *now_ns_io = sml_max_u64(*now_ns_io, sml_clock_ns());
    }
    if (step->act == SML_TRAINING_COMPUTE) sleep_until(*now_ns_io += step->number);
  }
  r->num_done = r->num_called;
  return true;
}

static float value_at(uint64_t elem, uint32_t factor) {
  return (float)(elem % VALUES * factor);
}

static uint64_t count_other(const float *out, uint64_t num_elems, uint64_t first_value, uint32_t factor,
                            float tolerance) {
  uint64_t num_wrong = 0;
  for (uint64_t j = 0; j < num_elems; j++) {
    const float error = out[j] - value_at(first_value + j, factor);
    num_wrong += !(error <= tolerance && error >= -tolerance);
  }
  return num_wrong;
}

/* Sums of small whole numbers: far from a wrong one even where they are rounded. What the forward pass gathered,
 * a third of all calls, is overwritten by the backward pass. */
static uint64_t count_wrong(const struct replay *r) {
  const uint32_t n = r->world_size, factor = n * (n + 1) / 2;
  const float tolerance = 0.01f * (float)n;
  uint64_t num_wrong = 0;
  for (uint32_t i = r->plan->num_steps != 0 ? r->plan->num_sends / 3 : 0; i < r->plan->num_sends; i++) {
    const struct sml_training_send *send = &r->plan->sends[i];
    const float *out = r->out + send->first_elem;
    const uint64_t part = send->num_elems / n, first = i % OFFSETS;
    if (send->call == SML_TRAINING_ALL_REDUCE) num_wrong += count_other(out, send->num_elems, first, factor, tolerance);
    if (send->call == SML_TRAINING_SCATTER)
      num_wrong += count_other(r->own + send->first_elem / n, part, first + part * r->rank, factor, tolerance);
    for (uint32_t rank = 0; send->call == SML_TRAINING_GATHER && rank < n; rank++)
      num_wrong += count_other(out + part * rank, part, first, rank + 1, 0);
  }
  return num_wrong;
}

static bool make_buffers(struct replay *r) {
  uint64_t largest = 0;
  for (uint32_t i = 0; i < r->plan->num_sends; i++) largest = sml_max_u64(largest, r->plan->sends[i].num_elems);
  largest += OFFSETS;
  r->in = malloc(largest * sizeof *r->in);
  r->out = malloc(r->plan->num_elems * sizeof *r->out);
  const size_t own_bytes = (r->plan->num_elems / r->world_size + 1) * sizeof *r->own;
  r->own = malloc(own_bytes);
  r->operations = calloc(r->plan->num_sends, sizeof(sml_operation *));
  r->starts_ns = calloc(r->num_iters + 1u, sizeof *r->starts_ns);
  if (!r->in || !r->out || !r->own || !r->operations || !r->starts_ns)
    return fail(r, "finding memory", SML_ERR_NO_MEMORY, NULL);
  for (uint64_t i = 0; i < largest; i++) r->in[i] = value_at(i, r->rank + 1);
  memset(r->out, 0xff, r->plan->num_elems * sizeof *r->out); /* NaN: an element that is not written is seen */
  memset(r->own, 0xff, own_bytes);
  return true;
}

static bool run_iterations(struct replay *r) {
  uint64_t now_ns = sml_clock_ns();
  const bool is_sharded = r->plan->num_steps != 0;
  for (uint32_t i = 0; i <= r->num_iters && is_sharded; i++) {
    r->starts_ns[i] = now_ns;
    if (i < r->num_iters && !run_steps(r, &now_ns)) return false;
  }
  for (uint32_t i = 0; i <= r->num_iters && !is_sharded; i++) {
    if (!run_forward(r, &now_ns)) return false;
    r->starts_ns[i] = now_ns;
    if (i == r->num_iters) break;
    if (!run_backward(r, now_ns)) return false;
    now_ns += r->plan->backward_ns;
  }
  return wait_for_sends(r, r->num_called);
}

static uint64_t digest_of(const struct replay *r) {
  const struct sml_training_plan *p = r->plan;
  const uint64_t sends = sml_bench_hash(p->sends, p->num_sends * sizeof *p->sends);
  return sml_mix64(sends ^ sml_mix64(r->num_iters) ^ sml_mix64(~p->all_forward_ns ^ p->num_steps));
}

static bool check_same_plan(struct replay *r) {
  const uint64_t digest = digest_of(r);
  uint64_t *all = calloc(r->world_size, sizeof *all);
  bool is_ok = all ? gather(r, &digest, 1, all) : fail(r, "finding memory", SML_ERR_NO_MEMORY, NULL);
  for (uint32_t rank = 0; is_ok && rank < r->world_size; rank++)
    if (all[rank] != all[0])
      is_ok = fail(r, "comparing arguments", SML_ERR_MISMATCH, "the ranks were given different ones");
  free(all);
  return is_ok;
}

static int compare_doubles(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* all: of each rank its timed iterations' times, then its figures. */
static bool sum_up(struct replay *r, const uint64_t *all, struct sml_training_result *out) {
  const uint32_t num = r->options->bench.num_iters;
  double *slowest_s = calloc(num, sizeof *slowest_s);
  if (!slowest_s) return fail(r, "finding memory", SML_ERR_NO_MEMORY, NULL);
  out->world_size = r->world_size;
  out->num_iters = num;
  double cpu_ns = 0;
  for (uint32_t rank = 0; rank < r->world_size; rank++, all += num + NUM_FIGURES) {
    for (uint32_t i = 0; i < num; i++) {
      const double time_s = (double)all[i] / 1e9 / r->options->time_scale;
      slowest_s[i] = time_s > slowest_s[i] ? time_s : slowest_s[i];
    }
    const uint64_t *figures = all + num;
    out->tx_bytes += (double)figures[FIGURE_TX_BYTES] / r->world_size / r->num_iters;
    out->rx_bytes += (double)figures[FIGURE_RX_BYTES] / r->world_size / r->num_iters;
    out->num_operations += figures[FIGURE_OPERATIONS];
    out->retransmissions += figures[FIGURE_RETRANSMISSIONS];
    out->num_wrong += figures[FIGURE_WRONG];
    cpu_ns += (double)figures[FIGURE_CPU_NS];
  }
  out->cpu_s = cpu_ns / 1e9 / r->world_size / r->num_iters;
  qsort(slowest_s, num, sizeof *slowest_s, compare_doubles);
  out->fastest_s = slowest_s[0];
  out->slowest_s = slowest_s[num - 1];
  out->median_s = (slowest_s[(num - 1) / 2] + slowest_s[num / 2]) / 2;
  free(slowest_s);
  return true;
}

static void add_counters(struct replay *r, uint64_t *figures, uint64_t sign) {
  sml_stats s = SML_STATS_INIT;
  sml_job_stats(r->job, &s);
  figures[FIGURE_TX_BYTES] += sign * s.tx_bytes;
  figures[FIGURE_RX_BYTES] += sign * s.rx_bytes;
  figures[FIGURE_RETRANSMISSIONS] += sign * s.retransmissions;
  figures[FIGURE_OPERATIONS] += sign * s.operations_completed;
  figures[FIGURE_CPU_NS] += sign * sml_clock_cpu_ns();
}

static bool measure(struct replay *r, struct sml_training_result *result_out) {
  const uint32_t num = r->options->bench.num_iters;
  const size_t stride = num + NUM_FIGURES;
  uint64_t *all = calloc((r->world_size + 1u) * stride, sizeof *all);
  if (!all) return fail(r, "finding memory", SML_ERR_NO_MEMORY, NULL);
  uint64_t *mine = all + r->world_size * stride;
  bool is_ok = make_buffers(r) && check_same_plan(r) && wait_for_all(r);
  if (is_ok) add_counters(r, mine + num, UINT64_MAX); /* - now */
  is_ok = is_ok && run_iterations(r);
  if (is_ok) {
    add_counters(r, mine + num, 1);
    const uint64_t *timed = r->starts_ns + (r->num_iters - num);
    for (uint32_t i = 0; i < num; i++) mine[i] = timed[i + 1] - timed[i];
    mine[num + FIGURE_WRONG] = count_wrong(r);
    is_ok = gather(r, mine, stride, all) && sum_up(r, all, result_out);
  }
  free(all);
  return is_ok;
}

bool sml_training_replay(const struct sml_training_options *options, const struct sml_training_plan *plan,
                         struct sml_training_result *result_out, bool *is_reporter_out) {
  struct replay r = {
      .options = options, .plan = plan, .num_iters = options->bench.num_iters + options->bench.num_warmup};
  memset(result_out, 0, sizeof *result_out);
  if (sml_rank_from_environment(&r.rank, &r.world_size, NULL) != SML_OK) {
    sml_bench_say("%s; or use --local N, or --predict", sml_error_detail());
    return false;
  }
  *is_reporter_out = r.rank == 0;
  prctl(PR_SET_TIMERSLACK, 1000ul);
  bool is_ok = sml_bench_join(&options->bench, r.rank, r.world_size, &r.context, &r.job);
  if (is_ok) {
    sml_stats stats = SML_STATS_INIT;
    sml_job_stats(r.job, &stats);
    result_out->is_shared_memory = stats.num_local_ranks != 0;
    is_ok = measure(&r, result_out);
    for (uint32_t i = r.num_done; i < r.num_called; i++) (void)wait_for_send(&r, i);
  }
  if (r.job) sml_job_destroy(r.job);
  if (r.context) sml_context_destroy(r.context);
  free(r.in);
  free(r.out);
  free(r.own);
  free(r.operations);
  free(r.starts_ns);
  return is_ok;
}
