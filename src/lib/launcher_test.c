/* SPDX-License-Identifier: Apache-2.0
 * The variables of each launcher, which of them counts, and what is wrong with some. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "switchml/switchml.h"

static const char *const names[] = {"SWITCHML_RANK", "SWITCHML_WORLD_SIZE", "RANK", "WORLD_SIZE",
                                    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE",
                                    "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"};

static int clear(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) unsetenv(names[i]);
  return 0;
}

static void expect(const char *source, uint32_t rank, uint32_t world_size) {
  uint32_t r = 99, n = 99;
  const char *who = NULL;
  const sml_status status = sml_rank_from_environment(&r, &n, &who);
  if (source == NULL) {
    assert_int_equal(status, SML_ERR_NOT_CONFIGURED);
    assert_int_equal(r, 99);
    return;
  }
  assert_int_equal(status, SML_OK);
  assert_string_equal(who, source);
  assert_true(r == rank && n == world_size);
}

/* From the last in the order to the first: each takes over. */
static void each_launcher_in_its_turn(void **state) {
  (void)state;
  expect(NULL, 0, 0);
  for (size_t i = 10; i > 0; i -= 2) {
    char rank[8] = "0", size[8] = "7";
    rank[0] = (char)('0' + i / 2);
    setenv(names[i - 2], rank, 1);
    setenv(names[i - 1], size, 1);
    expect(names[i - 2], (uint32_t)i / 2, 7);
  }
  setenv("SWITCHML_RANK", "", 1); /* as if unset, with its fellow */
  setenv("SWITCHML_WORLD_SIZE", "", 1);
  expect("RANK", 2, 7);
}

/* Slurm tells a batch script of tasks that are not there. */
static void half_a_launcher_is_none(void **state) {
  (void)state;
  setenv("SLURM_PROCID", "0", 1);
  setenv("SLURM_NTASKS", "4", 1);
  setenv("PMI_SIZE", "4", 1);
  expect(NULL, 0, 0);
}

static void wrong(const char *rank, const char *size, const char *needle) {
  uint32_t r, n;
  setenv("RANK", rank, 1);
  if (size != NULL) setenv("WORLD_SIZE", size, 1);
  else unsetenv("WORLD_SIZE");
  setenv("PMI_RANK", "0", 1); /* it is not gone on to */
  setenv("PMI_SIZE", "2", 1);
  assert_int_equal(sml_rank_from_environment(&r, &n, NULL), SML_ERR_INVALID_ARGUMENT);
  assert_non_null(strstr(sml_error_detail(), needle));
}

static void what_is_wrong_is_said(void **state) {
  (void)state;
  wrong("one", "2", "RANK is 'one'");
  wrong("-1", "2", "RANK is '-1'");
  wrong("1", "2x", "WORLD_SIZE is '2x'");
  wrong("4096", "4096", "RANK is '4096'");
  wrong("1", "4097", "WORLD_SIZE is '4097'");
  wrong("2", "2", "RANK is 2, but WORLD_SIZE is 2");
  wrong("0", "0", "WORLD_SIZE is 0");
  wrong("0", NULL, "RANK is set, but WORLD_SIZE is not");
  uint32_t r;
  assert_int_equal(sml_rank_from_environment(&r, NULL, NULL), SML_ERR_INVALID_ARGUMENT);
  assert_int_equal(sml_rank_from_environment(NULL, &r, NULL), SML_ERR_INVALID_ARGUMENT);
}

static void a_job_without_a_size_asks(void **state) {
  (void)state;
  sml_context *context;
  sml_job *job;
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  assert_int_equal(sml_context_create(NULL, &context), SML_OK);
  assert_int_equal(sml_job_create(context, &o, &job), SML_ERR_NOT_CONFIGURED);
  setenv("SLURM_PROCID", "0", 1);
  setenv("SLURM_STEP_NUM_TASKS", "1", 1);
  o.rank = 3;
  assert_int_equal(sml_job_create(context, &o, &job), SML_ERR_INVALID_ARGUMENT); /* of how many? */
  o.rank = 0;
  assert_int_equal(sml_job_create(context, &o, &job), SML_OK);
  sml_operation *op;
  float x = 5;
  assert_int_equal(sml_allreduce(job, &x, &x, 1, SML_FLOAT32, SML_SUM, NULL, &op), SML_OK);
  assert_int_equal(sml_operation_wait(op, 1000000000), SML_OK);
  sml_operation_release(op);
  sml_job_destroy(job);
  sml_context_destroy(context);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(each_launcher_in_its_turn, clear),
      cmocka_unit_test_setup(half_a_launcher_is_none, clear),
      cmocka_unit_test_setup(what_is_wrong_is_said, clear),
      cmocka_unit_test_setup(a_job_without_a_size_asks, clear),
  };
  return cmocka_run_group_tests_name("launcher", tests, NULL, NULL);
}
