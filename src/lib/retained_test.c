/* SPDX-License-Identifier: Apache-2.0
 * Copies of inputs: how long they are kept, and which memory is used again. */
#include "lib/retained.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lib/job.h"

/* Makes only that part of a job which these functions look at. */
static int begin(void **state) {
  struct sml_job *job = calloc(1, sizeof *job);
  assert_non_null(job);
  assert_int_equal(pthread_mutex_init(&job->lock, NULL), 0);
  *state = job;
  return 0;
}

static int end(void **state) {
  struct sml_job *job = *state;
  sml_retained_free_all(job);
  pthread_mutex_destroy(&job->lock);
  free(job);
  return 0;
}

/* An input of so many floats, as operation `number` has it. */
static struct sml_retained *keep(struct sml_job *job, uint64_t number, size_t num_elems, struct sml_operation *user) {
  float *in = malloc(num_elems * sizeof *in);
  struct sml_retained *r;
  assert_non_null(in);
  for (size_t i = 0; i < num_elems; i++) in[i] = (float)(number + i);
  assert_int_equal(sml_retained_copy(job, in, num_elems * sizeof *in, &r), SML_OK);
  assert_memory_equal(r->data, in, num_elems * sizeof *in);
  free(in);
  r->plan = (struct sml_operation_plan){.number = number, .num_elems = num_elems, .type = SML_FLOAT32};
  sml_retained_append(job, r, user);
  return r;
}

static void confirm(struct sml_job *job, uint64_t operation) {
  job->state.retry.confirmed_operation = operation;
  sml_retained_drop_confirmed(job);
}

/* All ranks have the results of 0, 1 and 2, but an engine still reads the input of 1. */
static void what_somebody_reads_stays(void **state) {
  struct sml_job *job = *state;
  struct sml_operation *reader = (struct sml_operation *)job; /* anybody */
  struct sml_retained *kept[4];
  for (uint64_t i = 0; i < 4; i++) kept[i] = keep(job, i, 100, i == 1 ? reader : NULL);
  confirm(job, 3);
  assert_ptr_equal(job->retained.listed.oldest, kept[1]);
  assert_int_equal(job->retained.input_bytes, 3 * 400);
  kept[1]->input.reader = NULL;
  confirm(job, 3);
  assert_ptr_equal(job->retained.listed.oldest, kept[3]);
  assert_int_equal(job->retained.input_bytes, 400);
  confirm(job, 4);
  assert_null(job->retained.listed.oldest);
  assert_null(job->retained.listed.newest);
  assert_int_equal(job->retained.input_bytes + job->retained.used_bytes, 0);
  struct sml_retained *next = keep(job, 4, 100, NULL);
  assert_ptr_equal(job->retained.listed.oldest, next);
}

static void memory_is_used_again(void **state) {
  struct sml_job *job = *state;
  struct sml_retained *small = keep(job, 0, 100, NULL), *large = keep(job, 1, 3000, NULL);
  assert_int_equal(job->retained.used_bytes, 512 + 16384);
  confirm(job, 2);
  assert_int_equal(job->retained.used_bytes, 0);
  assert_int_equal(job->retained.free_bytes, 512 + 16384);
  assert_ptr_equal(keep(job, 2, 65, NULL), small);
  assert_ptr_equal(keep(job, 3, 4096, NULL), large);
  /* One of another room: what is free goes, so that no more is there than was used at one time. */
  confirm(job, 4);
  (void)keep(job, 4, 4097, NULL);
  assert_int_equal(job->retained.used_bytes, 32768);
  assert_true(job->retained.used_bytes + job->retained.free_bytes <= job->retained.most_used_bytes);
  assert_int_equal(job->retained.most_used_bytes, 32768);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(what_somebody_reads_stays, begin, end),
      cmocka_unit_test_setup_teardown(memory_is_used_again, begin, end),
  };
  return cmocka_run_group_tests_name("retained", tests, NULL, NULL);
}
