/* SPDX-License-Identifier: Apache-2.0
 * Exact mode through the whole library: operations of many pieces beside others, values that blocks could not hold,
 * ranks that differ, failures while stages are under way. The sums' own arithmetic is tested in quant/exact_test.c; the
 * reference here are short exact sums, which are other code. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lib/exact_operation.h"
#include "lib/test_world.h"

#define NUM_RANKS 3u
#define NUM_CALLS 12u
#define MAX_ELEMS (9 * SML_EXACT_PIECE_ELEMS + 77)

static struct {
  uint8_t in[NUM_CALLS][NUM_RANKS][8 * MAX_ELEMS], out[NUM_CALLS][NUM_RANKS][8 * MAX_ELEMS];
} * memory;
static bool has_inputs[NUM_RANKS]; /* of all calls; they are those of the world before */

static uint32_t block_bits; /* 32 or 16: of float32 in blocks */

static void start_jobs(struct world *w, const char *hosts, uint32_t exact) {
  world_init(w, NUM_RANKS);
  w->job_options.lease_ns = PATIENT_LEASE_NS;
  w->job_options.exact = exact;
  w->job_options.float_bits = block_bits;
  w->job_options.no_shared_memory = hosts == NULL;
  w->aggd_options.num_lanes = w->context_options.num_threads = 2;
  w->hosts = hosts;
  world_start(w);
}

/* ---- many, of many pieces ---- */

static const struct call {
  sml_type type;
  size_t count;
  uint32_t exact;
  sml_reduction reduction;
} calls[NUM_CALLS] = {{SML_FLOAT32, MAX_ELEMS, 1, SML_SUM},
                      {SML_FLOAT32, 1, 0, SML_SUM},
                      {SML_INT32, 100000, 0, SML_SUM},
                      {SML_FLOAT64, 2 * SML_EXACT_PIECE_ELEMS, 1, SML_AVG},
                      {SML_FLOAT16, 5 * SML_EXACT_PIECE_ELEMS + 1, 1, SML_SUM},
                      {SML_BFLOAT16, 129, 1, SML_SUM},
                      {SML_INT64, 3000, 0, SML_SUM},
                      {SML_FLOAT32, SML_EXACT_PIECE_ELEMS, 1, SML_AVG},
                      {SML_FLOAT32, SML_EXACT_PIECE_ELEMS + 1, 1, SML_SUM},
                      {SML_FLOAT64, 300, 1, SML_SUM},
                      {SML_FLOAT32, 4 * SML_EXACT_PIECE_ELEMS, 1, SML_SUM},
                      {SML_FLOAT32, 128, 1, SML_SUM}};

static void put(uint8_t *to, const struct call *call, uint32_t rank, size_t i) {
  const uint64_t bits = sml_mix64(((uint64_t)call->count << 8 | rank) * UINT64_C(0x9e3779b97f4a7c15) + i);
  const bool is_zero = i / SML_BLOCK_ELEMS % 5 == 4; /* blocks without a limb */
  uint64_t wide = (bits & UINT64_C(0x800fffffffffffff)) | (1023 - 40 + (bits >> 52) % 80) << 52;
  uint32_t word = (uint32_t)(bits & 0x807fffff) | (uint32_t)(127 - 20 + (bits >> 32) % 40) << 23;
  uint16_t half = (uint16_t)(bits & 0xbbff);
  if (is_zero) wide = word = half = 0;
  if (sml_format_elem_bytes((uint32_t)call->type) == 8) memcpy(to, &wide, sizeof wide);
  else if (sml_format_elem_bytes((uint32_t)call->type) == 4) memcpy(to, &word, sizeof word);
  else memcpy(to, &half, sizeof half);
}

static void call_all(struct rank *r) {
  sml_operation *ops[NUM_CALLS];
  for (uint32_t c = 0; c < NUM_CALLS; c++) {
    const sml_operation_options o = {.struct_bytes = sizeof o, .exact = calls[c].exact};
    uint8_t *in = memory->in[c][r->rank], *out = memory->out[c][r->rank];
    const size_t elem_bytes = sml_format_elem_bytes((uint32_t)calls[c].type);
    for (size_t i = 0; i < calls[c].count && !has_inputs[r->rank]; i++) put(in + i * elem_bytes, &calls[c], r->rank, i);
    if (c % 2 == 0) memcpy(out, in, calls[c].count * elem_bytes);
    else memset(out, 0xa5, calls[c].count * elem_bytes); /* a world before left the right results */
    CHECK(r,
          sml_allreduce(r->job, c % 2 == 0 ? out : in, out, calls[c].count, calls[c].type, calls[c].reduction, &o,
                        &ops[c]) == SML_OK,
          "%s", sml_error_detail());
    if (c == 4) CHECK(r, sml_operation_wait(ops[0], 30 * SML_NS_PER_S) == SML_OK, "%s", sml_error_detail());
    if (c == 4) CHECK(r, sml_batch_begin(r->job) == SML_OK); /* only the last call is one for a batch */
  }
  has_inputs[r->rank] = true;
  CHECK(r, sml_batch_end(r->job) == SML_OK, "%s", sml_error_detail());
  for (uint32_t c = 0; c < NUM_CALLS; c++) {
    CHECK(r, sml_operation_wait(ops[c], 30 * SML_NS_PER_S) == SML_OK, "call %u: %s", c, sml_error_detail());
    sml_operation_release(ops[c]);
  }
  const sml_stats stats = stats_of(r);
  CHECK(r, stats.operations_submitted == NUM_CALLS && stats.operations_completed == NUM_CALLS);
}

/* A world's inputs are those of the one before. */
static void check_call(uint32_t c) {
  static uint8_t *all_expected[NUM_CALLS];
  const uint32_t type = (uint32_t)calls[c].type;
  const struct sml_format *f = sml_format_find(type, (struct sml_format_shape){.has_exponents = false});
  const void *in[NUM_RANKS];
  for (uint32_t r = 0; r < NUM_RANKS; r++) in[r] = memory->in[c][r];
  if (all_expected[c] == NULL) {
    all_expected[c] = malloc(f->elem_bytes * calls[c].count);
    assert_non_null(all_expected[c]);
    f->reduce(&sml_quant_scalar, all_expected[c], in, NUM_RANKS, calls[c].count, calls[c].reduction == SML_AVG);
  }
  for (uint32_t r = 0; r < NUM_RANKS; r++)
    if (memcmp(memory->out[c][r], all_expected[c], f->elem_bytes * calls[c].count) != 0)
      fail_msg("call %u, rank %u: not the exact sum", c, r);
}

static void long_sums_are_exact_beside_others(void **state) {
  (void)state;
  static const char *const hosts[] = {NULL, "111", "112"};
  for (uint32_t h = 0; h < SML_ARRAY_LEN(hosts); h++) {
    struct world w;
    start_jobs(&w, hosts[h], 0);
    world_run(&w, call_all);
    for (uint32_t c = 0; c < NUM_CALLS; c++) check_call(c);
    world_stop(&w);
  }
}

static void see_epochs(struct rank *r) {
  const uint32_t first_epoch = r->job->state.start.epoch;
  call_all(r);
  CHECK(r, r->failure[0] != 0 || r->job->state.start.epoch != first_epoch);
}

static void stages_go_on_in_a_new_epoch(void **state) {
  (void)state;
  struct world w;
  world_init(&w, NUM_RANKS);
  w.job_options.lease_ns = PATIENT_LEASE_NS;
  w.job_options.no_shared_memory = 1;
  w.aggd_options.first_phase = UINT32_MAX - 301;
  world_start(&w);
  world_run(&w, see_epochs);
  for (uint32_t c = 0; c < NUM_CALLS; c++) check_call(c);
  world_stop(&w);
}

/* ---- fill values ---- */

#define NUM_FILLED 20000u
static const float fills[] = {1e20f, 9.97e36f, INFINITY, NAN};
static float fill;

static float temperature(uint32_t rank, uint32_t i) {
  return 280 + (float)((i * 7 + rank * 13) % 29000) * 1e-3f;
}

/* As docs/numerics.md has it: n N M 2^-30 or 2^-14, and one rounding; a block with an Inf or NaN is all NaN. */
static bool is_promised(float got, double sum, uint32_t i) {
  const uint32_t first = i / SML_BLOCK_ELEMS * SML_BLOCK_ELEMS, next_fill = (first + 499) / 500 * 500;
  const bool is_beside_fill = next_fill < sml_min_u32(first + SML_BLOCK_ELEMS, NUM_FILLED);
  if (block_bits == 0) return isnan(sum) ? isnan(got) : got == (float)sum; /* doubles hold these sums */
  if (is_beside_fill && !isfinite(fill)) return isnan(got);
  const double largest = is_beside_fill ? (double)fill : 309, unit = block_bits == 32 ? 0x1p-30 : 0x1p-14;
  return fabs((double)got - sum) <= NUM_RANKS * 4 * largest * unit + fabs(sum) * 0x1p-24;
}

static void sum_filled(struct rank *r) {
  float *x = (float *)(void *)memory->in[0][r->rank];
  for (uint32_t i = 0; i < NUM_FILLED; i++) x[i] = i % 500 == 0 ? fill : temperature(r->rank, i);
  CHECK(r, block_bits != 0 || sml_supported(r->job, SML_FLOAT64, SML_SUM, 1000000) == 1);
  CHECK(r, allreduce(r, x, x, NUM_FILLED, SML_FLOAT32, SML_SUM) == SML_OK, "%s", sml_error_detail());
  for (uint32_t i = 0; i < NUM_FILLED; i++) {
    double sum = 0;
    for (uint32_t rank = 0; rank < NUM_RANKS; rank++) sum += i % 500 == 0 ? (double)fill : (double)temperature(rank, i);
    CHECK(r, is_promised(x[i], sum, i), "%u bits, element %u beside %g: %.9g, not %.9g", block_bits, i, (double)fill,
          (double)x[i], sum);
  }
}

static void fill_values_do_what_each_mode_promises(void **state) {
  (void)state;
  static const uint32_t modes[] = {0, 32, 16};
  for (size_t mode = 0; mode < SML_ARRAY_LEN(modes); mode++) {
    struct world w;
    block_bits = modes[mode];
    start_jobs(&w, NULL, block_bits == 0);
    for (size_t i = 0; i < SML_ARRAY_LEN(fills); i++) {
      fill = fills[i];
      world_run(&w, sum_filled);
    }
    world_stop(&w);
  }
  block_bits = 0;
}

/* ---- what is asked for ---- */

static void ask(struct rank *r) {
  double *x = (double *)(void *)memory->in[0][r->rank];
  sml_operation *op;
  for (uint32_t i = 0; i < 1000; i++) x[i] = 1.0 / (i + 1);
  sml_operation_options o = {.struct_bytes = sizeof o, .exact = 3};
  CHECK(r, sml_allreduce(r->job, x, x, 1000, SML_FLOAT64, SML_SUM, &o, &op) == SML_ERR_INVALID_ARGUMENT);
  o.exact = 2;
  CHECK(r, sml_allreduce(r->job, x, x, 1000, SML_FLOAT64, SML_SUM, &o, &op) == SML_ERR_UNSUPPORTED);
  o.exact = 0;
  CHECK(r, sml_allreduce(r->job, x, x, 0, SML_FLOAT64, SML_SUM, &o, &op) == SML_OK, "%s", sml_error_detail());
  sml_operation_release(op);
  CHECK(r, sml_allreduce(r->job, x, x, 1000, SML_FLOAT64, SML_SUM, &o, &op) == SML_OK, "%s", sml_error_detail());
  CHECK(r, sml_operation_wait(op, 30 * SML_NS_PER_S) == SML_OK);
  sml_operation_release(op);
  CHECK(r, x[2] == 3 * (1.0 / 3), "%.17g", x[2]);
  for (uint32_t i = 0; i < 1000; i++) x[i] = i + 0.5;
  CHECK(r, sml_reduce(r->job, x, x, 1000, SML_FLOAT64, SML_SUM, 1, NULL, &op) == SML_OK, "%s", sml_error_detail());
  CHECK(r, sml_operation_wait(op, 30 * SML_NS_PER_S) == SML_OK);
  sml_operation_release(op);
  CHECK(r, x[999] == (r->rank == 1 ? 3 * 999.5 : 999.5), "%.17g", x[999]);
}

static void jobs_and_calls_say_whether(void **state) {
  (void)state;
  struct world w;
  start_jobs(&w, NULL, 1);
  world_run(&w, ask);
  world_stop(&w);
}

static void one_rank_needs_no_other(void **state) {
  (void)state;
  sml_context *context;
  sml_job *job;
  sml_operation *op;
  double x[300] = {[299] = 0.1}, y[300];
  const sml_job_options o = {.struct_bytes = sizeof o, .world_size = 1, .exact = 1};
  assert_int_equal(sml_context_create(NULL, &context), SML_OK);
  assert_int_equal(sml_job_create(context, &o, &job), SML_OK);
  assert_int_equal(sml_allreduce(job, x, y, 300, SML_FLOAT64, SML_AVG, NULL, &op), SML_OK);
  assert_int_equal(sml_operation_wait(op, SML_NS_PER_S), SML_OK);
  assert_memory_equal(x, y, sizeof x);
  sml_operation_release(op);
  sml_job_destroy(job);
  sml_context_destroy(context);
}

/* ---- failures ---- */

static bool differ_in_mode; /* else in the reduction, which no stage's count or type shows */

static void differ(struct rank *r) {
  float *x = (float *)(void *)memory->in[0][r->rank];
  const sml_operation_options o = {.struct_bytes = sizeof o, .exact = !differ_in_mode || r->rank != 1};
  const sml_reduction reduction = differ_in_mode || r->rank != 1 ? SML_SUM : SML_AVG;
  sml_operation *op;
  sml_error error;
  for (uint32_t i = 0; i < 300000; i++) x[i] = 1;
  sml_status status = sml_allreduce(r->job, x, x, 300000, SML_FLOAT32, reduction, &o, &op);
  if (status == SML_OK) status = sml_operation_wait(op, 30 * SML_NS_PER_S); /* else the others were faster */
  CHECK(r, status == SML_ERR_MISMATCH, "%s", sml_error_detail());
  sml_operation_release(op);
  check_failed(r, SML_ERR_MISMATCH, &error);
  CHECK(r, is_named(&error, 1), "%s", error.detail);
}

static void ranks_that_differ_are_named(void **state) {
  (void)state;
  static const char *const hosts[] = {NULL, "111", "112"};
  for (uint32_t h = 0; h < 2 * SML_ARRAY_LEN(hosts); h++) {
    struct world w;
    differ_in_mode = h % 2 == 0;
    start_jobs(&w, hosts[h / 2], 0);
    world_run(&w, differ);
    world_stop(&w);
  }
}

/* All stages that there are end, whenever it is, and their callers are told once. */
static uint32_t num_before;

static void abort_under_way(struct rank *r) {
  sml_operation *ops[3];
  float *x = (float *)(void *)memory->in[0][r->rank];
  for (uint32_t i = 0; i < MAX_ELEMS; i++) x[i] = (float)i;
  const sml_operation_options o = {.struct_bytes = sizeof o, .exact = 1};
  for (uint32_t i = 0; i < 3; i++) {
    const sml_status status =
        sml_allreduce(r->job, x + i, memory->out[i][r->rank], MAX_ELEMS - 3, SML_FLOAT32, SML_SUM, &o, &ops[i]);
    CHECK(r, status == SML_OK || status == SML_ERR_ABORTED, "%d %s", status, sml_error_detail());
  }
  sml_operation_release(ops[1]);
  for (uint32_t i = 0; i < num_before; i++) if (ops[0] != NULL) (void)sml_operation_wait(ops[0], SML_NS_PER_MS);
  if (r->rank == 0) (void)sml_job_abort(r->job, "the test wants it");
  for (uint32_t i = 0; i < 3; i += 2) {
    const sml_status status = ops[i] != NULL ? sml_operation_wait(ops[i], 30 * SML_NS_PER_S) : SML_ERR_ABORTED;
    CHECK(r, status == SML_OK || status == SML_ERR_ABORTED, "%d %s", status, sml_error_detail());
    sml_operation_release(ops[i]);
  }
}

static void aborts_end_all_stages(void **state) {
  (void)state;
  static const char *const hosts[] = {NULL, "111", "112"};
  for (uint32_t i = 0; i < 9; i++) {
    struct world w;
    start_jobs(&w, hosts[i % 3], 0);
    num_before = 3 * i;
    world_run(&w, abort_under_way);
    world_stop(&w);
  }
}

/* The pool hands out first what came back last: what was the first of a batch is an exact call now. */
static void be_late_after_a_batch(struct rank *r) {
  float *x = (float *)(void *)memory->in[0][r->rank];
  const sml_operation_options sooner = {.struct_bytes = sizeof sooner, .timeout_ns = 4 * SML_NS_PER_S};
  const sml_operation_options later = {.struct_bytes = sizeof later, .exact = 1, .timeout_ns = 5 * SML_NS_PER_S};
  sml_operation *ops[2], *late = NULL;
  sml_error error = SML_ERROR_INIT;
  memset(x, 0, MAX_ELEMS * sizeof *x);
  CHECK(r, sml_batch_begin(r->job) == SML_OK);
  for (uint32_t i = 0; i < 2; i++)
    CHECK(r, sml_allreduce(r->job, x + 10 * i, x + 10 * i, 10, SML_FLOAT32, SML_SUM, &sooner, &ops[i]) == SML_OK);
  CHECK(r, sml_batch_end(r->job) == SML_OK);
  for (uint32_t i = 0; i < 2; i++) CHECK(r, sml_operation_wait(ops[i], 30 * SML_NS_PER_S) == SML_OK);
  for (uint32_t i = 2; i-- > 0;) sml_operation_release(ops[i]);
  if (r->rank == 1) return;
  const sml_status status = sml_allreduce(r->job, x, x, MAX_ELEMS, SML_FLOAT32, SML_SUM, &later, &late);
  CHECK(r, status == SML_OK, "%s", sml_error_detail());
  CHECK(r, sml_operation_wait(late, 30 * SML_NS_PER_S) == SML_ERR_TIMEOUT);
  sml_operation_error(late, &error);
  sml_operation_release(late);
  CHECK(r, is_named(&error, 1) && error.operation == 2, "%u %s", (unsigned)error.operation, error.detail);
}

static void a_call_forgets_the_batch_before(void **state) {
  (void)state;
  struct world w;
  start_jobs(&w, NULL, 0);
  world_run(&w, be_late_after_a_batch);
  world_stop(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(long_sums_are_exact_beside_others),
      cmocka_unit_test(stages_go_on_in_a_new_epoch),
      cmocka_unit_test(fill_values_do_what_each_mode_promises),
      cmocka_unit_test(jobs_and_calls_say_whether),
      cmocka_unit_test(one_rank_needs_no_other),
      cmocka_unit_test(ranks_that_differ_are_named),
      cmocka_unit_test(aborts_end_all_stages),
      cmocka_unit_test(a_call_forgets_the_batch_before),
  };
  memory = malloc(sizeof *memory);
  if (memory == NULL) return 1;
  const int num_failed = cmocka_run_group_tests(tests, NULL, NULL);
  free(memory);
  return num_failed;
}
