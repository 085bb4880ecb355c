/* SPDX-License-Identifier: Apache-2.0
 * Operations of a job of one rank: arguments, handles, the pool. No network. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/job.h"
#include "lib/operation.h"

static sml_context *context;
static sml_job *job;

static int set_up(void **state) {
  (void)state;
  sml_context_options o = SML_CONTEXT_OPTIONS_INIT;
  o.num_operations = 4;
  unsetenv("SWITCHML_AGGREGATOR");
  sml_job_options j = SML_JOB_OPTIONS_INIT;
  j.world_size = 1;
  return sml_context_create(&o, &context) != SML_OK || sml_job_create(context, &j, &job) != SML_OK;
}

static int tear_down(void **state) {
  (void)state;
  sml_job_destroy(job);
  sml_context_destroy(context);
  return 0;
}

static void one_rank_copies_bits(void **state) {
  (void)state;
  const uint32_t in[] = {0x7fc00001, 0xff800000, 0x80000000, 1,
                         0x7f7fffff}; /* NaN payload, -Inf, -0, denormal */
  uint32_t out[5];
  static const struct {
    sml_type type;
    sml_reduction reduction;
  } kinds[] = {{SML_FLOAT32, SML_SUM}, {SML_FLOAT32, SML_AVG}, {SML_INT32, SML_SUM}};
  for (size_t i = 0; i < 3; i++) {
    sml_operation *op;
    memset(out, 0, sizeof out);
    assert_int_equal(sml_allreduce(job, in, out, 5, kinds[i].type, kinds[i].reduction, NULL, &op), SML_OK);
    assert_int_equal(sml_operation_wait(op, 0), SML_OK);
    assert_memory_equal(in, out, sizeof in);
    sml_error error = SML_ERROR_INIT;
    assert_int_equal(sml_operation_error(op, &error), SML_OK);
    assert_int_equal(error.status, SML_OK);
    sml_operation_release(op);
  }
}

/* But for what is true or false. */
static void one_rank_has_truths(void **state) {
  (void)state;
  static const int32_t in[] = {0, 5, -1};
  for (int reduction = SML_LAND; reduction <= SML_LOR; reduction++) {
    int32_t out[] = {7, 7, 7};
    sml_operation *op;
    assert_int_equal(sml_allreduce(job, in, out, 3, SML_INT32, (sml_reduction)reduction, NULL, &op), SML_OK);
    assert_int_equal(sml_operation_wait(op, 0), SML_OK);
    assert_true(out[0] == 0 && out[1] == 1 && out[2] == 1);
    sml_operation_release(op);
  }
}

static void bad_arguments(void **state) {
  (void)state;
  float a[8] = {0};
  sml_operation *op = (sml_operation *)&a;
#define REFUSED(expected, ...)                                   \
  do {                                                           \
    op = (sml_operation *)&a;                                    \
    assert_int_equal(sml_allreduce(__VA_ARGS__, &op), expected); \
    assert_null(op);                                             \
    assert_true(strlen(sml_error_detail()) > 10);                \
  } while (0)
  REFUSED(SML_ERR_INVALID_ARGUMENT, NULL, a, a, 1, SML_FLOAT32, SML_SUM, NULL);
  REFUSED(SML_ERR_INVALID_ARGUMENT, job, NULL, a, 1, SML_FLOAT32, SML_SUM, NULL);
  REFUSED(SML_ERR_INVALID_ARGUMENT, job, a, NULL, 1, SML_FLOAT32, SML_SUM, NULL);
  REFUSED(SML_ERR_INVALID_ARGUMENT, job, a, a + 1, 2, SML_FLOAT32, SML_SUM, NULL);
  REFUSED(SML_ERR_INVALID_ARGUMENT, job, a + 1, a, 2, SML_FLOAT32, SML_SUM, NULL);
  REFUSED(SML_ERR_INVALID_ARGUMENT, job, a, a, SIZE_MAX / 4 + 1, SML_FLOAT32, SML_SUM, NULL);
  REFUSED(SML_ERR_INVALID_ARGUMENT, job, a, a, SIZE_MAX, SML_FLOAT32, SML_SUM, NULL);
  REFUSED(SML_ERR_INVALID_ARGUMENT, job, a, a, 1, (sml_type)10, SML_SUM, NULL);
  REFUSED(SML_ERR_INVALID_ARGUMENT, job, a, a, 1, (sml_type)-1, SML_SUM, NULL);
  REFUSED(SML_ERR_INVALID_ARGUMENT, job, a, a, SIZE_MAX / 16 + 1, SML_INT64, SML_SUM, NULL);
  REFUSED(SML_ERR_INVALID_ARGUMENT, job, a, a + 1, 1, SML_INT64, SML_SUM, NULL);
  REFUSED(SML_ERR_UNSUPPORTED, job, a, a, 129, SML_FLOAT64, SML_SUM, NULL);
  REFUSED(SML_ERR_UNSUPPORTED, job, a, a, 1, SML_INT64, SML_AVG, NULL);
  REFUSED(SML_ERR_INVALID_ARGUMENT, job, a, a, 1, SML_FLOAT32, (sml_reduction)-1, NULL);
  REFUSED(SML_ERR_UNSUPPORTED, job, a, a, 1, SML_INT32, SML_AVG, NULL);
  REFUSED(SML_ERR_INVALID_ARGUMENT, job, a, a, 1, SML_INT32, (sml_reduction)9, NULL);
  REFUSED(SML_ERR_UNSUPPORTED, job, a, a, 1, SML_FLOAT32, SML_PRODUCT, NULL);
  assert_non_null(strstr(sml_error_detail(), "depend on the order"));
  REFUSED(SML_ERR_UNSUPPORTED, job, a, a, 1, SML_FLOAT64, SML_BOR, NULL);
  assert_non_null(strstr(sml_error_detail(), "BOR takes integers only, not float64"));
  const sml_operation_options empty = {.struct_bytes = 0};
  REFUSED(SML_ERR_INVALID_ARGUMENT, job, a, a, 1, SML_FLOAT32, SML_SUM, &empty);
  const size_t starts[] = {0, 3, 3, 8}, late[] = {1};
  const struct {
    const size_t *starts;
    size_t num;
    const char *detail;
  } bad[] = {{NULL, 1, "starts is NULL"}, {late, 1, "starts[0] is 1"}, {starts, 3, "starts[2] is 3"},
             {starts + 1, 3, "starts[0] is 3"}, {(const size_t[]){0, 8}, 2, "count is 8"}};
  for (size_t i = 0; i < SML_ARRAY_LEN(bad); i++) {
    const sml_operation_options o = {.struct_bytes = sizeof o, .starts = bad[i].starts, .num_starts = bad[i].num};
    REFUSED(SML_ERR_INVALID_ARGUMENT, job, a, a, 8, SML_FLOAT32, SML_SUM, &o);
    assert_non_null(strstr(sml_error_detail(), bad[i].detail));
  }
  const sml_operation_options two = {.struct_bytes = sizeof two, .starts = starts, .num_starts = 2};
  REFUSED(SML_ERR_UNSUPPORTED, job, a, a, 8, SML_FLOAT64, SML_SUM, &two);
#undef REFUSED
  assert_int_equal(sml_allreduce(job, a, a, 1, SML_FLOAT32, SML_SUM, NULL, NULL), SML_ERR_INVALID_ARGUMENT);
  /* Adjacent is disjoint. */
  assert_int_equal(sml_allreduce(job, a, a + 4, 4, SML_FLOAT32, SML_SUM, NULL, &op), SML_OK);
  sml_operation_release(op);
  sml_operation_release(NULL);
  assert_int_equal(sml_operation_test(NULL), SML_ERR_INVALID_ARGUMENT);
  assert_int_equal(sml_operation_wait(NULL, 1), SML_ERR_INVALID_ARGUMENT);
  assert_int_equal(sml_operation_error(NULL, NULL), SML_ERR_INVALID_ARGUMENT);
}

static void nothing_to_sum_ends_at_once(void **state) {
  (void)state;
  sml_operation *op;
  assert_int_equal(sml_allreduce(job, NULL, NULL, 0, SML_FLOAT32, SML_SUM, NULL, &op), SML_OK);
  assert_int_equal(sml_operation_test(op), SML_OK);
  sml_operation_release(op);
}

static void a_full_pool_is_busy(void **state) {
  (void)state;
  int32_t x = 3;
  sml_operation *ops[5];
  for (size_t round = 0; round < 3; round++) {
    for (size_t i = 0; i < 4; i++)
      assert_int_equal(sml_allreduce(job, &x, &x, 1, SML_INT32, SML_SUM, NULL, &ops[i]), SML_OK);
    assert_int_equal(sml_allreduce(job, &x, &x, 1, SML_INT32, SML_SUM, NULL, &ops[4]), SML_ERR_BUSY);
    assert_null(ops[4]);
    for (size_t i = 0; i < 4; i++) sml_operation_release(ops[i]);
  }
}

static void support_is_of_the_kind_only(void **state) {
  (void)state;
  assert_int_equal(sml_supported(job, SML_FLOAT32, SML_SUM, 0), 1);
  assert_int_equal(sml_supported(job, SML_FLOAT32, SML_AVG, 1 << 30), 1);
  assert_int_equal(sml_supported(job, SML_INT32, SML_SUM, 1), 1);
  assert_int_equal(sml_supported(job, SML_INT32, SML_AVG, 1), 0);
  assert_int_equal(sml_supported(job, (sml_type)10, SML_SUM, 1), 0);
  static const sml_type more[] = {SML_FLOAT16, SML_BFLOAT16, SML_INT64, SML_FLOAT64};
  for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
    assert_int_equal(sml_supported(job, more[i], SML_SUM, 1 << 20), more[i] != SML_FLOAT64);
    assert_int_equal(sml_supported(job, more[i], SML_AVG, 1), more[i] != SML_INT64);
  }
  assert_int_equal(sml_supported(job, SML_FLOAT64, SML_SUM, 128), 1);
  assert_int_equal(sml_supported(job, SML_FLOAT64, SML_SUM, 129), 0);
  assert_int_equal(sml_supported(NULL, SML_INT32, SML_SUM, 1), 0);
}

static void abort_ends_the_job(void **state) {
  (void)state;
  float x = 1;
  sml_operation *op, *before;
  sml_error error = SML_ERROR_INIT;
  assert_int_equal(sml_allreduce(job, &x, &x, 1, SML_FLOAT32, SML_SUM, NULL, &before), SML_OK);
  assert_int_equal(sml_job_error(job, &error), SML_OK);
  assert_int_equal(sml_job_abort(job, "out of\npaper"), SML_OK);
  assert_int_equal(sml_job_error(job, &error), SML_ERR_ABORTED);
  assert_non_null(strstr(error.detail, "paper"));
  assert_int_equal(error.num_ranks, 1);
  assert_int_equal(error.operation, 1);
  assert_int_equal(sml_job_error(job, NULL), SML_ERR_ABORTED);
  assert_int_equal(sml_allreduce(job, &x, &x, 1, SML_FLOAT32, SML_SUM, NULL, &op), SML_ERR_ABORTED);
  assert_non_null(strstr(sml_error_detail(), "paper"));
  assert_int_equal(sml_operation_test(before), SML_OK); /* it had ended */
  sml_operation_release(before);
}

static void statistics(void **state) {
  (void)state;
  float x[3] = {1, 2, 3};
  sml_operation *op;
  sml_stats stats = SML_STATS_INIT;
  assert_int_equal(sml_allreduce(job, x, x, 3, SML_FLOAT32, SML_SUM, NULL, &op), SML_OK);
  sml_operation_release(op);
  assert_int_equal(sml_job_stats(job, &stats), SML_OK);
  assert_int_equal(stats.operations_submitted, 1);
  assert_int_equal(stats.operations_completed, 1);
  assert_int_equal(stats.tensor_bytes, 12);
  assert_int_equal(stats.tx_packets, 0);
  assert_int_equal(sml_job_stats(job, NULL), SML_ERR_INVALID_ARGUMENT);
  assert_int_equal(sml_job_stats(NULL, &stats), SML_ERR_INVALID_ARGUMENT);
}

/* As when a lane gets a wrong sum: the job fails, and with it what waits; the operation, which its caller has released,
 * comes back to the pool once. */
static void one_that_fails_by_itself_ends_once(void **state) {
  (void)state;
  const struct sml_operation_plan plan = {.num_elems = 1, .type = SML_INT32};
  struct sml_operation *ops[2];
  int32_t x = 1;
  for (uint32_t i = 0; i < 2; i++) {
    assert_int_equal(sml_operation_take(job, &ops[i]), SML_OK);
    sml_operation_prepare(ops[i], job, &x, &x, &plan, 0);
    ops[i]->order.number = job->state.next_number++;
    ops[i]->is_released = true;
    sml_member_job_insert(&job->state, &ops[i]->order);
  }
  pthread_mutex_lock(&job->lock);
  sml_member_job_begin(&job->state, &ops[0]->order);
  sml_operation_end_locked(job, ops[0], SML_ERR_NO_MEMORY);
  pthread_mutex_unlock(&job->lock);
  assert_int_equal(sml_job_error(job, NULL), SML_ERR_NO_MEMORY);
  assert_true(job->state.oldest == NULL && job->state.newest == NULL && job->operations_failed == 2);
  uint32_t num_free = 0;
  for (const struct sml_operation *op = context->free_operations; op != NULL && num_free < 100; op = op->next_free)
    num_free++;
  assert_int_equal(num_free, context->settings.num_operations);
}

/* What the job answers to its method, with so many operations that nobody has begun. */
static void what_a_method_asks_of_its_job(void **state) {
  (void)state;
  const struct sml_owner_ops *asks = &sml_job_owner_ops;
  struct sml_operation_plan plan = {.num_elems = 1, .type = SML_INT32};
  struct sml_operation *ops[3];
  int32_t x = 1;
  char text[96];
  assert_true(asks->is_running(job));
  assert_int_equal(asks->demand(job), SML_DEMAND_NONE);
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(sml_operation_take(job, &ops[i]), SML_OK);
    if (i == 2) plan.num_elems = SML_LARGE_ELEMS;
    sml_operation_prepare(ops[i], job, &x, &x, &plan, 0);
    ops[i]->engine.plan.number = ops[i]->order.number = job->state.next_number++;
    sml_member_job_insert(&job->state, &ops[i]->order);
    assert_int_equal(asks->demand(job), i == 2 ? SML_DEMAND_LARGE : SML_DEMAND_SMALL);
  }
  ops[1]->next_member = NULL;
  ops[0]->members = ops[1]; /* as if it were a batch of one */
  ops[1]->num_waiters = 1;
  assert_int_equal(asks->demand(job), SML_DEMAND_AWAITED);
  ops[0]->members = NULL;
  ops[1]->num_waiters = 0;
  assert_int_equal(asks->first_unfinished(job), 0);
  ops[0]->order.is_replay = true; /* it has completed here */
  assert_int_equal(asks->first_unfinished(job), 1);
  asks->describe(&ops[2]->engine, text, sizeof text);
  assert_string_equal(text, "operation 2 (int32 SUM, 65536 elements)");
  pthread_mutex_lock(&job->lock);
  sml_member_job_begin(&job->state, &ops[0]->order);
  asks->ended(job, &ops[0]->engine, SML_OK);
  for (uint32_t i = 0; i < 3; i++) /* those that waited have begun, and alone that is all */
    assert_int_equal(atomic_load(&ops[i]->status), SML_OK);
  asks->lost(job, 3);
  pthread_mutex_unlock(&job->lock);
  sml_error error = SML_ERROR_INIT;
  assert_int_equal(sml_job_error(job, &error), SML_ERR_RANK_LOST);
  assert_string_equal(error.detail, "rank 3 is gone");
  assert_true(error.num_ranks == 1 && error.ranks[0] == 3 && error.operation == 3);
  assert_false(asks->is_running(job));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(one_rank_copies_bits, set_up, tear_down),
      cmocka_unit_test_setup_teardown(one_rank_has_truths, set_up, tear_down),
      cmocka_unit_test_setup_teardown(bad_arguments, set_up, tear_down),
      cmocka_unit_test_setup_teardown(nothing_to_sum_ends_at_once, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_full_pool_is_busy, set_up, tear_down),
      cmocka_unit_test_setup_teardown(support_is_of_the_kind_only, set_up, tear_down),
      cmocka_unit_test_setup_teardown(abort_ends_the_job, set_up, tear_down),
      cmocka_unit_test_setup_teardown(one_that_fails_by_itself_ends_once, set_up, tear_down),
      cmocka_unit_test_setup_teardown(what_a_method_asks_of_its_job, set_up, tear_down),
      cmocka_unit_test_setup_teardown(statistics, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
