/* SPDX-License-Identifier: Apache-2.0
 * One rank of a bench. Before each timed all-reduce stands a barrier (an all-reduce of one element), so
 * that a rank's time is not another's lateness, and one behind it, so that it is not another's check. The first result
 * of each size is checked in full, a share of the blocks on each rank, and must be the same on all ranks; every later
 * one must equal it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "cli/bench/bench.h"

/* Keys of the bench's own calls: a rank that is at another step is told apart by them. */
enum call_key { KEY_BARRIER = 1, KEY_GATHER, KEY_DATA };

struct worker {
  const struct sml_bench_options *options;
  uint32_t rank, world_size;
  enum sml_bench_collective collective; /* timed now */
  uint32_t num_calls;                   /* operations of it at once */
  sml_context *context;
  sml_job *job;
  struct sml_bench_shape shape;
  size_t *parts;       /* [world_size] elements of each rank's: an even share, or all is rank 0's */
  size_t *parts_bytes; /* behind them */
  void *in, *out;
  uint64_t expected_hash[2];    /* of the first result; of two at once, of each */
  struct sml_bench_check later; /* of results that differed from it */
};

/* A worker's own counters over the timed all-reduces of one size. */
enum counter {
  COUNT_TX_BYTES,
  COUNT_RX_BYTES,
  COUNT_RETRANSMISSIONS,
  COUNT_REDUCTIONS,
  COUNT_MARKS,
  COUNT_NEEDLESS_REPEATS,
  COUNT_SYSTEM_CALLS,
  COUNT_CHUNKS,
  COUNT_CPU_NS,
  NUM_COUNTERS
};

static bool say_failed(const struct worker *w, const char *what, sml_status status, const char *detail) {
  sml_bench_say("rank %u: %s failed: %s%s%s", w->rank, what, sml_status_string(status), detail && *detail ? ": " : "",
                detail ? detail : "");
  return false;
}

/* Tells the other ranks too, which wait for this one otherwise. */
static bool give_up(const struct worker *w, const char *why) {
  sml_bench_say("rank %u: %s", w->rank, why);
  sml_job_abort(w->job, why);
  return false;
}

static const char *const key_names[] = {
    [KEY_BARRIER] = "the barrier", [KEY_GATHER] = "gathering the figures", [KEY_DATA] = "the timed call"};

static bool submit(const struct worker *w, const void *in, void *out, size_t num_elems, sml_type type,
                   sml_reduction reduction, enum call_key key, sml_operation **operation_out) {
  sml_operation_options options = SML_OPERATION_OPTIONS_INIT;
  options.key = key;
  const sml_status status = sml_allreduce(w->job, in, out, num_elems, type, reduction, &options, operation_out);
  return status == SML_OK || say_failed(w, key_names[key], status, sml_error_detail());
}

static bool finish(const struct worker *w, sml_operation *operation, enum call_key key) {
  /* The operation ends by its own deadline; the rest is for a library that breaks that promise. */
  const sml_status status = sml_operation_wait(operation, w->options->timeout_ns + 10 * SML_NS_PER_S);
  if (status == SML_IN_PROGRESS) {
    sml_bench_say("rank %u: %s did not end by its deadline", w->rank, key_names[key]);
    _Exit(SML_BENCH_FAILED); /* the buffers are still lent */
  }
  sml_error error = SML_ERROR_INIT;
  if (status != SML_OK) sml_operation_error(operation, &error);
  sml_operation_release(operation);
  return status == SML_OK || say_failed(w, key_names[key], status, error.detail);
}

static size_t tensor_bytes(const struct worker *w) {
  return w->shape.num_elems * sml_format_elem_bytes((uint32_t)w->shape.type);
}

/* The result of one of the calls. */
static uint8_t *result_of(const struct worker *w, uint32_t call) {
  return (uint8_t *)w->out + call * tensor_bytes(w);
}

/* Where this rank's part begins, in elements. */
static size_t first_elem(const struct worker *w) {
  size_t first = 0;
  for (uint32_t r = 0; r < w->rank; r++) first += w->parts[r];
  return first;
}

/* Two at once take turns. */
static enum sml_bench_collective kind_of(const struct worker *w, uint32_t call) {
  if (w->collective != SML_BENCH_BOTH) return w->collective;
  return call % 2 == 0 ? SML_BENCH_REDUCE_SCATTER : SML_BENCH_ALL_GATHER;
}

/* The timed call. Parts lie in their place of `out`. */
static bool submit_data(const struct worker *w, uint32_t call, sml_operation **operation_out) {
  const struct sml_bench_options *o = w->options;
  const struct sml_bench_shape *s = &w->shape;
  const size_t elem_bytes = sml_format_elem_bytes((uint32_t)s->type), place = first_elem(w) * elem_bytes;
  uint8_t *out = result_of(w, call);
  const uint8_t *in = o->is_in_place ? out : w->in;
  sml_operation_options options = SML_OPERATION_OPTIONS_INIT;
  options.key = KEY_DATA;
  sml_status status = SML_ERR_UNSUPPORTED;
  switch (kind_of(w, call)) {
    case SML_BENCH_ALL_REDUCE: return submit(w, in, out, s->num_elems, s->type, s->reduction, KEY_DATA, operation_out);
    case SML_BENCH_REDUCE_SCATTER:
      status = sml_reduce_scatter(w->job, in, out + place, 0, w->parts, s->type, s->reduction, &options, operation_out);
      break;
    case SML_BENCH_ALL_GATHER:
      status = sml_all_gather(w->job, in + place, out, 0, w->parts_bytes, &options, operation_out);
      break;
    case SML_BENCH_BROADCAST:
      status = sml_broadcast(w->job, out, s->num_elems * elem_bytes, 0, &options, operation_out);
      break;
    case SML_BENCH_REDUCE:
      status = sml_reduce(w->job, in, out, s->num_elems, s->type, s->reduction, 0, &options, operation_out);
      break;
    case SML_BENCH_BARRIER: status = sml_barrier(w->job, &options, operation_out); break;
    case SML_BENCH_BOTH:
    case SML_BENCH_ALL: break; /* of several */
  }
  return status == SML_OK || say_failed(w, key_names[KEY_DATA], status, sml_error_detail());
}

static bool reduce(const struct worker *w, const void *in, void *out, size_t num_elems, sml_type type,
                   sml_reduction reduction, enum call_key key) {
  sml_operation *operation;
  return submit(w, in, out, num_elems, type, reduction, key, &operation) && finish(w, operation, key);
}

static bool wait_for_all(const struct worker *w) {
  const int32_t one = 1;
  int32_t sum = 0;
  if (!reduce(w, &one, &sum, 1, SML_INT32, SML_SUM, KEY_BARRIER)) return false;
  return sum == (int32_t)w->world_size || give_up(w, "a barrier's sum is not the number of ranks");
}

/* all_out[world_size * num_values] */
static bool gather(const struct worker *w, const uint64_t *values, size_t num_values, uint64_t *all_out) {
  size_t num_elems = sml_bench_gather_elems(w->world_size, num_values);
  int32_t *vectors = calloc(2 * num_elems, sizeof *vectors);
  if (!vectors) return give_up(w, "out of memory");
  sml_bench_gather_pack(vectors, w->world_size, w->rank, values, num_values);
  bool is_ok = reduce(w, vectors, vectors + num_elems, num_elems, SML_INT32, SML_SUM, KEY_GATHER);
  if (is_ok && !sml_bench_gather_unpack(vectors + num_elems, w->world_size, num_values, all_out))
    is_ok = give_up(w, "the gathered figures came back damaged: the all-reduce itself is wrong");
  free(vectors);
  return is_ok;
}

/* Ranks started by hand may have been given different arguments; that would look like wrong sums. */
static bool check_same_options(const struct worker *w) {
  const struct sml_bench_options *o = w->options;
  uint64_t digest = sml_bench_hash(o->size_bytes, o->num_sizes * sizeof o->size_bytes[0]);
  const uint64_t parts[] = {o->seed,           o->num_iters,           o->num_warmup,
                            (uint64_t)o->type, (uint64_t)o->reduction, o->num_calls,
                            o->is_batched,     (uint64_t)o->collective}; /* bits of floats: the join compares them */
  digest = sml_mix64(digest ^ sml_bench_hash(parts, sizeof parts));
  uint64_t *all = calloc(w->world_size, sizeof *all);
  if (!all) return give_up(w, "out of memory");
  bool is_ok = gather(w, &digest, 1, all);
  for (uint32_t rank = 0; is_ok && rank < w->world_size; rank++) {
    if (all[rank] == all[0]) continue;
    char why[160];
    snprintf(
        why, sizeof why,
        "ranks 0 and %u run with different --sizes, --type, --op, --collective, --iters, --warmup, --calls, --batch "
        "or --seed",
        rank);
    is_ok = give_up(w, why);
  }
  free(all);
  return is_ok;
}

/* Before a check: what only its owner has goes to all ranks. */
static bool share_results(const struct worker *w) {
  sml_operation *operation = NULL;
  sml_status status = SML_OK;
  const size_t elem_bytes = sml_format_elem_bytes((uint32_t)w->shape.type);
  for (uint32_t call = 0; call < w->num_calls; call++) {
    const enum sml_bench_collective kind = kind_of(w, call);
    uint8_t *out = result_of(w, call);
    if (kind == SML_BENCH_REDUCE_SCATTER)
      status = sml_all_gather(w->job, out + first_elem(w) * elem_bytes, out, 0, w->parts_bytes, NULL, &operation);
    else if (kind == SML_BENCH_REDUCE) status = sml_broadcast(w->job, out, tensor_bytes(w), 0, NULL, &operation);
    else continue;
    if (status != SML_OK) return say_failed(w, "sharing the results", status, sml_error_detail());
    if (!finish(w, operation, KEY_GATHER)) return false;
  }
  return true;
}

static bool verify(const struct worker *w, uint32_t call, uint32_t slice, uint32_t num_slices,
                   struct sml_bench_check *check) {
  const enum sml_bench_collective kind = kind_of(w, call);
  if (kind == SML_BENCH_BARRIER) return true; /* there is nothing to be seen */
  if (kind == SML_BENCH_ALL_GATHER || kind == SML_BENCH_BROADCAST) {
    sml_bench_verify_copy(&w->shape, w->parts, result_of(w, call), slice, num_slices, check);
    return true;
  }
  return sml_bench_verify(&w->shape, result_of(w, call), slice, num_slices, check) || give_up(w, "out of memory");
}

/* Combines the ranks' checks: of shares of the blocks by summing, of the same blocks by the worst. */
static void combine_checks(const uint64_t *all, uint32_t world_size, bool is_share, struct sml_bench_check *check) {
  memset(check, 0, sizeof *check);
  for (uint32_t rank = 0; rank < world_size; rank++, all += 4) {
    double error, bound;
    memcpy(&error, &all[2], sizeof error);
    memcpy(&bound, &all[3], sizeof bound);
    check->num_wrong = is_share ? check->num_wrong + all[1] : sml_max_u64(check->num_wrong, all[1]);
    if (rank == 0 || error > check->max_error) {
      check->max_error = error;
      check->max_error_bound = bound;
    }
  }
}

/* The first result of a kind: each rank checks its share of the blocks if all have the same bits, all otherwise. */
static bool check_first(struct worker *w, uint32_t call, struct sml_bench_check *check) {
  w->expected_hash[call] = sml_bench_hash(result_of(w, call), tensor_bytes(w));
  uint64_t *all = calloc(w->world_size, 4 * sizeof *all);
  if (!all) return give_up(w, "out of memory");
  bool is_ok = true;
  for (bool is_share = true; is_ok; is_share = false) {
    struct sml_bench_check mine = {0};
    is_ok = verify(w, call, is_share ? w->rank : 0, is_share ? w->world_size : 1, &mine);
    uint64_t values[4] = {w->expected_hash[call], mine.num_wrong};
    memcpy(&values[2], &mine.max_error, sizeof mine.max_error);
    memcpy(&values[3], &mine.max_error_bound, sizeof mine.max_error_bound);
    is_ok = is_ok && gather(w, values, 4, all);
    if (!is_ok) break;
    bool is_same = true;
    for (uint32_t rank = 1; rank < w->world_size; rank++) is_same = is_same && all[4 * rank] == all[0];
    combine_checks(all, w->world_size, is_share, check);
    if (is_same || !is_share) break;
  }
  free(all);
  return is_ok;
}

static bool check_firsts(struct worker *w, struct sml_bench_check *check) {
  struct sml_bench_check second = {0};
  if (!check_first(w, 0, check)) return false;
  if (w->collective == SML_BENCH_BOTH && !check_first(w, 1, &second)) return false;
  check->num_wrong += second.num_wrong; /* a copy: it has no error */
  return true;
}

/* Prepares the buffers and waits for the others; then one all-reduce of the size. */
static bool prepare(const struct worker *w) {
  for (uint32_t call = 0; call < w->num_calls; call++) {
    const bool is_root = w->collective == SML_BENCH_BROADCAST && w->rank == 0;
    if (w->options->is_in_place || is_root) memcpy(result_of(w, call), w->in, tensor_bytes(w));
    else memset(result_of(w, call), 0xa5, tensor_bytes(w)); /* an element not written is seen */
  }
  return wait_for_all(w);
}

static bool begin_batch(const struct worker *w) {
  const sml_status status = sml_batch_begin(w->job);
  return status == SML_OK || say_failed(w, "beginning a batch", status, sml_error_detail());
}

static bool end_batch(const struct worker *w) {
  const sml_status status = sml_batch_end(w->job);
  return status == SML_OK || say_failed(w, "ending a batch", status, sml_error_detail());
}

static bool reduce_data(const struct worker *w) {
  const struct sml_bench_options *o = w->options;
  sml_operation *operations[2 * SML_BENCH_MAX_CALLS];
  uint32_t num_called = 0;
  bool is_ok = !o->is_batched || begin_batch(w);
  while (is_ok && num_called < w->num_calls) {
    is_ok = submit_data(w, num_called, &operations[num_called]);
    num_called += is_ok;
  }
  if (is_ok && o->is_batched) is_ok = end_batch(w);
  if (!is_ok) sml_job_abort(w->job, "a call failed"); /* so that what was called ends */
  for (uint32_t call = 0; call < num_called; call++) is_ok = finish(w, operations[call], KEY_DATA) && is_ok;
  return is_ok;
}

static bool check_call(struct worker *w, uint32_t call) {
  const uint32_t first = w->collective == SML_BENCH_BOTH ? call % 2 : 0;
  if (sml_bench_hash(result_of(w, call), tensor_bytes(w)) == w->expected_hash[first]) return true;
  struct sml_bench_check check = {0};
  if (!verify(w, call, 0, 1, &check)) return false;
  /* Its bits differ from a result that every rank had: even if the reference now agrees, one was wrong. */
  check.num_wrong = sml_max_u64(check.num_wrong, 1);
  if (check.num_wrong > w->later.num_wrong) w->later = check;
  return true;
}

static bool check_later(struct worker *w) {
  bool is_ok = true;
  for (uint32_t call = 0; is_ok && call < w->num_calls; call++) is_ok = check_call(w, call);
  return is_ok;
}

static void read_counters(const struct worker *w, uint64_t *counters, uint64_t sign) {
  sml_stats s = SML_STATS_INIT;
  sml_job_stats(w->job, &s);
  counters[COUNT_TX_BYTES] += sign * s.tx_bytes;
  counters[COUNT_RX_BYTES] += sign * s.rx_bytes;
  counters[COUNT_RETRANSMISSIONS] += sign * s.retransmissions;
  counters[COUNT_REDUCTIONS] += sign * s.window_reductions;
  counters[COUNT_MARKS] += sign * s.ecn_marks;
  counters[COUNT_NEEDLESS_REPEATS] += sign * s.needless_repeats;
  counters[COUNT_SYSTEM_CALLS] += sign * s.system_calls;
  counters[COUNT_CHUNKS] += sign * s.chunks_completed;
}

static bool time_once(struct worker *w, uint64_t *time_ns_out, uint64_t *counters) {
  if (!prepare(w)) return false;
  read_counters(w, counters, UINT64_MAX); /* - now */
  uint64_t cpu_ns = sml_clock_cpu_ns();
  uint64_t start_ns = sml_clock_ns();
  if (!reduce_data(w)) return false;
  *time_ns_out = sml_clock_ns() - start_ns;
  counters[COUNT_CPU_NS] += sml_clock_cpu_ns() - cpu_ns;
  read_counters(w, counters, 1);
  /* Not before all have theirs: the check would take the processor from ranks of this host that are still timed. */
  return wait_for_all(w) && share_results(w) && check_later(w);
}

static int compare_u64(const void *a, const void *b) {
  uint64_t x, y;
  memcpy(&x, a, sizeof x);
  memcpy(&y, b, sizeof y);
  return (x > y) - (x < y);
}

/* As nccl-tests has it: the share of the tensor that a link carries in a ring. */
static double bus_share(enum sml_bench_collective collective, uint32_t world_size) {
  if (collective == SML_BENCH_BROADCAST || collective == SML_BENCH_REDUCE) return 1;
  const double share = (double)(world_size - 1) / world_size;
  return collective == SML_BENCH_REDUCE_SCATTER || collective == SML_BENCH_ALL_GATHER ? share : 2 * share;
}

/* Figures of all ranks (num_iters times, NUM_COUNTERS counters, wrong elements of later results);
 * slowest_ns: room for num_iters. */
static void sum_up(const struct sml_bench_options *o, const uint64_t *all, uint64_t *slowest_ns, uint32_t world_size,
                   struct sml_bench_result *r) {
  const size_t stride = r->num_iters + NUM_COUNTERS + 1u;
  uint64_t totals[NUM_COUNTERS] = {0};
  memset(slowest_ns, 0, r->num_iters * sizeof *slowest_ns);
  for (uint32_t rank = 0; rank < world_size; rank++, all += stride) {
    for (uint32_t i = 0; i < r->num_iters; i++) slowest_ns[i] = sml_max_u64(slowest_ns[i], all[i]);
    for (size_t i = 0; i < NUM_COUNTERS; i++) totals[i] += all[r->num_iters + i];
    r->check.num_wrong = sml_max_u64(r->check.num_wrong, all[r->num_iters + NUM_COUNTERS]);
  }
  qsort(slowest_ns, r->num_iters, sizeof *slowest_ns, compare_u64);
  uint32_t n = r->num_iters;
  r->median_us = ((double)slowest_ns[(n - 1) / 2] + (double)slowest_ns[n / 2]) / 2e3;
  r->p99_us = (double)slowest_ns[(uint32_t)ceil(0.99 * n) - 1] / 1e3;
  const double num_bytes = (double)r->size_bytes * o->num_calls;
  r->algbw_gbps = r->median_us > 0 ? num_bytes / r->median_us / 1e3 : 0;
  r->busbw_gbps = r->algbw_gbps * bus_share(r->collective, world_size);
  const double num_calls = (double)world_size * n;
  r->tx_bytes = (double)totals[COUNT_TX_BYTES] / num_calls;
  r->rx_bytes = (double)totals[COUNT_RX_BYTES] / num_calls;
  r->retransmissions = totals[COUNT_RETRANSMISSIONS];
  r->window_reductions = totals[COUNT_REDUCTIONS];
  r->ecn_marks = totals[COUNT_MARKS];
  r->needless_repeats = totals[COUNT_NEEDLESS_REPEATS];
  if (totals[COUNT_CHUNKS] != 0)
    r->system_calls_per_chunk = (double)totals[COUNT_SYSTEM_CALLS] / (double)totals[COUNT_CHUNKS];
  r->cpu_s = (double)totals[COUNT_CPU_NS] / num_calls / 1e9;
  r->cpu_s_per_gb = r->cpu_s / num_bytes * 1e9;
}

/* The spread of this rank's slots. */
static double find_slot_spread(const struct worker *w) {
  sml_stats s = SML_STATS_INIT;
  if (sml_job_stats(w->job, &s) != SML_OK || s.chunks_completed == 0) return 0;
  return (double)s.busiest_slot_chunks * s.num_lanes * s.num_slots / (double)s.chunks_completed;
}

static bool time_size(struct worker *w, struct sml_bench_result *r) {
  const size_t stride = r->num_iters + NUM_COUNTERS + 1u;
  uint64_t *all = calloc((w->world_size + 1) * stride, sizeof *all);
  if (!all) return give_up(w, "out of memory");
  uint64_t *mine = all + w->world_size * stride;
  bool is_ok = true;
  for (uint32_t i = 0; is_ok && i < r->num_iters; i++) is_ok = time_once(w, &mine[i], &mine[r->num_iters]);
  mine[r->num_iters + NUM_COUNTERS] = w->later.num_wrong;
  is_ok = is_ok && gather(w, mine, stride, all);
  if (is_ok) sum_up(w->options, all, mine, w->world_size, r);
  if (is_ok) r->slot_spread = find_slot_spread(w);
  free(all);
  return is_ok;
}

static bool run_size(struct worker *w, struct sml_bench_result *r) {
  const size_t size_bytes = r->size_bytes;
  w->shape.num_elems = r->num_elems;
  memset(&w->later, 0, sizeof w->later);
  w->collective = r->collective;
  w->num_calls = w->options->num_calls * (w->collective == SML_BENCH_BOTH ? 2 : 1);
  w->in = malloc(size_bytes);
  w->out = malloc(size_bytes * w->num_calls);
  w->parts = calloc(2 * w->world_size, sizeof *w->parts);
  w->parts_bytes = w->parts + w->world_size;
  bool is_ok = w->in && w->out && w->parts;
  for (uint32_t rank = 0; is_ok && rank < w->world_size; rank++)
    w->parts[rank] = r->num_elems * (rank + 1) / w->world_size - r->num_elems * rank / w->world_size;
  for (uint32_t rank = 0; is_ok && rank < w->world_size; rank++)
    if (w->collective == SML_BENCH_BROADCAST || w->collective == SML_BENCH_REDUCE)
      w->parts[rank] = rank == 0 ? r->num_elems : 0;
  for (uint32_t rank = 0; is_ok && rank < w->world_size; rank++)
    w->parts_bytes[rank] = w->parts[rank] * sml_format_elem_bytes((uint32_t)w->shape.type);
  if (!is_ok) give_up(w, "no memory for the tensors; ask for smaller --sizes");
  if (is_ok) sml_bench_fill(w->in, w->shape.type, w->shape.seed, w->rank, 0, r->num_elems);
  is_ok = is_ok && prepare(w) && reduce_data(w) && share_results(w) && check_firsts(w, &r->check) && check_later(w);
  for (uint32_t i = 1; is_ok && i < w->options->num_warmup; i++)
    is_ok = prepare(w) && reduce_data(w) && share_results(w) && check_later(w);
  is_ok = is_ok && time_size(w, r);
  free(w->parts);
  free(w->in);
  free(w->out);
  return is_ok;
}

static bool run_sizes(struct worker *w, struct sml_bench_report *report) {
  sml_stats stats = SML_STATS_INIT;
  sml_job_stats(w->job, &stats);
  const struct sml_bench_options *o = w->options;
  report->num_lanes = stats.num_lanes;
  report->chunk_bytes = stats.chunk_bytes;
  report->num_slots = stats.num_slots;
  report->slots_why = stats.slots_why;
  report->join_rtt_ns = stats.join_rtt_ns;
  report->has_offload = stats.has_segmentation_offload != 0;
  report->num_local_ranks = stats.num_local_ranks;
  w->shape = (struct sml_bench_shape){.type = o->type,
                                      .formats = sml_bench_formats(o),
                                      .reduction = o->reduction,
                                      .seed = o->seed,
                                      .world_size = w->world_size,
                                      .is_exact = sml_bench_is_exact(o)};
  w->shape.formats.chunk_bytes = stats.chunk_bytes;
  if (!check_same_options(w)) return false;
  const bool is_all = o->collective == SML_BENCH_ALL;
  const uint32_t first = is_all ? SML_BENCH_ALL_REDUCE : o->collective, last = is_all ? SML_BENCH_BARRIER : first;
  for (uint32_t kind = first; kind <= last; kind++) {
    const uint32_t num_sizes = is_all && kind == SML_BENCH_BARRIER ? 1 : o->num_sizes; /* it has none */
    for (uint32_t i = 0; i < num_sizes; i++) {
      struct sml_bench_result *r = &report->results[report->num_results];
      r->collective = kind;
      r->size_bytes = o->size_bytes[i];
      r->num_elems = r->size_bytes / sml_format_elem_bytes((uint32_t)o->type);
      r->num_iters = sml_bench_iters(o, r->size_bytes);
      if (!run_size(w, r)) return false;
      report->num_results++;
    }
  }
  return true;
}

bool sml_bench_join(const struct sml_bench_options *o, uint32_t rank, uint32_t world_size, sml_context **context_out,
                    sml_job **job_out) {
  struct worker w = {.rank = rank};
  if (o->shared_memory != SML_BENCH_AS_ENVIRONMENT)
    setenv("SWITCHML_SHARED_MEMORY", o->shared_memory == SML_BENCH_YES ? "1" : "0", 1);
  sml_context_options context_options = SML_CONTEXT_OPTIONS_INIT;
  context_options.num_threads = o->num_lanes;
  context_options.no_offload = o->no_offload;
  sml_status status = sml_context_create(&context_options, context_out);
  if (status != SML_OK) return say_failed(&w, "starting the library", status, sml_error_detail());
  sml_job_options job_options = SML_JOB_OPTIONS_INIT;
  job_options.name = o->job_name;
  job_options.rank = rank;
  job_options.world_size = world_size;
  job_options.num_slots = o->num_slots;
  job_options.max_datagram_bytes = o->max_datagram_bytes;
  job_options.operation_timeout_ns = o->timeout_ns;
  job_options.join_timeout_ns = o->timeout_ns;
  job_options.check = o->is_checked ? 1 : 0;
  job_options.key_file = o->key_file;
  job_options.retry_ns = o->retry_ns;
  job_options.lease_ns = o->lease_ns;
  job_options.float_bits = o->float_bits;
  job_options.exact = o->is_exact;
  job_options.float64_bits = sml_bench_formats(o).float64_bits;
  if (o->is_local_worker) job_options.join_timeout_ns = sml_min_u64(o->timeout_ns, 20 * SML_NS_PER_S);
  status = sml_job_create(*context_out, &job_options, job_out);
  return status == SML_OK || say_failed(&w, "joining the job", status, sml_error_detail());
}

int sml_bench_worker(const struct sml_bench_options *options) {
  static struct sml_bench_report report;
  struct worker w = {.options = options};
  if (sml_rank_from_environment(&w.rank, &w.world_size, NULL) != SML_OK) {
    sml_bench_say("%s; or use --local N", sml_error_detail());
    return SML_BENCH_USAGE;
  }
  if (!options->is_local_worker && !sml_bench_fits_memory(options, 1)) return SML_BENCH_FAILED;
  sml_bench_set_faults(options, w.rank + 1);
  report.options = options;
  report.world_size = w.world_size;
  bool is_ok = sml_bench_join(options, w.rank, w.world_size, &w.context, &w.job) && run_sizes(&w, &report);
  uint64_t num_wrong = 0;
  for (uint32_t i = 0; is_ok && i < report.num_results; i++) num_wrong += report.results[i].check.num_wrong;
  if (is_ok && w.rank == 0) is_ok = sml_bench_report_print(&report);
  if (num_wrong != 0 && w.rank == 0) sml_bench_say("%llu elements are wrong", (unsigned long long)num_wrong);
  if (w.job) sml_job_destroy(w.job);
  if (w.context) sml_context_destroy(w.context);
  return is_ok && num_wrong == 0 ? SML_BENCH_OK : SML_BENCH_FAILED;
}
