/* SPDX-License-Identifier: Apache-2.0
 * Copies of inputs: how long they are kept, and which memory is used again. */
#include "lib/retained.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "switchml/switchml.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int begin(void **state) {
  struct sml_retained_inputs *inputs = calloc(1, sizeof *inputs);
  assert_non_null(inputs);
  inputs->lock = &lock;
  *state = inputs;
  return 0;
}

static int end(void **state) {
  sml_retained_free_all(*state);
  free(*state);
  return 0;
}

/* An input of so many floats, as operation `number` has it. */
static struct sml_retained *keep(struct sml_retained_inputs *inputs, uint64_t number, size_t num_elems,
                                 struct sml_operation *user) {
  float *in = malloc(num_elems * sizeof *in);
  struct sml_retained *r;
  assert_non_null(in);
  for (size_t i = 0; i < num_elems; i++) in[i] = (float)(number + i);
  assert_int_equal(sml_retained_copy(inputs, in, num_elems * sizeof *in, &r), SML_OK);
  assert_memory_equal(r->data, in, num_elems * sizeof *in);
  free(in);
  r->plan = (struct sml_operation_plan){.number = number, .num_elems = num_elems, .type = SML_FLOAT32};
  sml_retained_append(inputs, r, user);
  return r;
}

static void confirm(struct sml_retained_inputs *inputs, uint64_t operation) {
  sml_retained_drop_confirmed(inputs, &(struct sml_member_retry){.confirmed_operation = operation});
}

/* All ranks have the results of 0, 1 and 2, but an engine still reads the input of 1. */
static void what_somebody_reads_stays(void **state) {
  struct sml_retained_inputs *inputs = *state;
  struct sml_operation *reader = (struct sml_operation *)inputs; /* anybody */
  struct sml_retained *kept[4];
  for (uint64_t i = 0; i < 4; i++) kept[i] = keep(inputs, i, 100, i == 1 ? reader : NULL);
  confirm(inputs, 3);
  assert_ptr_equal(inputs->listed.oldest, kept[1]);
  assert_int_equal(inputs->input_bytes, 3 * 400);
  kept[1]->input.reader = NULL;
  confirm(inputs, 3);
  assert_ptr_equal(inputs->listed.oldest, kept[3]);
  assert_int_equal(inputs->input_bytes, 400);
  confirm(inputs, 4);
  assert_null(inputs->listed.oldest);
  assert_null(inputs->listed.newest);
  assert_int_equal(inputs->input_bytes + inputs->used_bytes, 0);
  struct sml_retained *next = keep(inputs, 4, 100, NULL);
  assert_ptr_equal(inputs->listed.oldest, next);
}

static void memory_is_used_again(void **state) {
  struct sml_retained_inputs *inputs = *state;
  struct sml_retained *small = keep(inputs, 0, 100, NULL), *large = keep(inputs, 1, 3000, NULL);
  assert_int_equal(inputs->used_bytes, 512 + 16384);
  confirm(inputs, 2);
  assert_int_equal(inputs->used_bytes, 0);
  assert_int_equal(inputs->free_bytes, 512 + 16384);
  assert_ptr_equal(keep(inputs, 2, 65, NULL), small);
  assert_ptr_equal(keep(inputs, 3, 4096, NULL), large);
  /* One of another room: what is free goes, so that no more is there than was used at one time. */
  confirm(inputs, 4);
  (void)keep(inputs, 4, 4097, NULL);
  assert_int_equal(inputs->used_bytes, 32768);
  assert_true(inputs->used_bytes + inputs->free_bytes <= inputs->most_used_bytes);
  assert_int_equal(inputs->most_used_bytes, 32768);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(what_somebody_reads_stays, begin, end),
      cmocka_unit_test_setup_teardown(memory_is_used_again, begin, end),
  };
  return cmocka_run_group_tests_name("retained", tests, NULL, NULL);
}
