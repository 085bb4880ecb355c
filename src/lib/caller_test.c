/* SPDX-License-Identifier: Apache-2.0
 * Small and middle-sized operations, whose callers run the engine: whoever waits, or nobody, they go on. */
#include <fenv.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "lib/operation.h"
#include "lib/test_world.h"

#define NUM_ELEMS 2000u /* small, and of float32 two rounds */

struct call {
  struct rank *rank;
  sml_operation *operation;
  float values[NUM_ELEMS];
  pthread_t thread;
  sml_status status;
};

static void submit(struct call *c, struct rank *r) {
  c->rank = r;
  for (size_t i = 0; i < NUM_ELEMS; i++) c->values[i] = float_value(r->rank, i);
  const sml_status status =
      sml_allreduce(r->job, c->values, c->values, NUM_ELEMS, SML_FLOAT32, SML_SUM, NULL, &c->operation);
  CHECK(r, status == SML_OK, "%s", sml_error_detail());
}

static void finish(struct call *c, sml_status status) {
  struct rank *r = c->rank;
  CHECK(r, status == SML_OK, "%s", sml_status_string(status));
  for (size_t i = 0; i < NUM_ELEMS; i++) {
    float sum = 0;
    for (uint32_t n = 0; n < r->world->num_ranks; n++) sum += float_value(n, i);
    CHECK(r, c->values[i] == sum, "element %zu is %g, not %g", i, (double)c->values[i], (double)sum);
  }
  sml_operation_release(c->operation);
}

static void pause_ms(long ms) {
  const struct timespec pause = {.tv_nsec = ms * 1000000};
  nanosleep(&pause, NULL);
}

/* Rank 0 submits and says no more until the others are through: its part must go on by itself. */
static pthread_barrier_t done;
static void leave_alone(struct rank *r) {
  for (uint32_t i = 0; i < 3; i++) {
    struct call c;
    submit(&c, r);
    if (r->rank != 0) finish(&c, sml_operation_wait(c.operation, 20 * SML_NS_PER_S));
    pthread_barrier_wait(&done);
    if (r->rank == 0) finish(&c, sml_operation_wait(c.operation, 20 * SML_NS_PER_S));
    pause_ms(i == 1 ? 20 : 0); /* parked for good, then not */
  }
}
static void nobody_need_wait(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 3);
  pthread_barrier_init(&done, NULL, 3);
  world_start(&w);
  world_run(&w, leave_alone);
  world_stop(&w);
  pthread_barrier_destroy(&done);
}

static void test_only(struct rank *r) {
  for (uint32_t i = 0; i < 20; i++) {
    struct call c;
    sml_status status;
    submit(&c, r);
    while ((status = sml_operation_test(c.operation)) == SML_IN_PROGRESS) pause_ms(i % 5 == 0);
    finish(&c, status);
  }
}

static void *wait_in_thread(void *argument) {
  struct call *c = argument;
  c->status = sml_operation_wait(c->operation, 20 * SML_NS_PER_S);
  return NULL;
}

/* One thread runs the engine, the others sleep; when it leaves, theirs must go on. */
static void wait_in_many(struct rank *r) {
  static struct call calls[MAX_RANKS][4];
  struct call *mine = calls[r->rank];
  for (uint32_t i = 0; i < 50; i++) {
    for (uint32_t k = 0; k < 4; k++) submit(&mine[k], r);
    for (uint32_t k = 0; k < 4; k++) {
      const uint32_t order = (k + i) % 4;
      CHECK(r, pthread_create(&mine[order].thread, NULL, wait_in_thread, &mine[order]) == 0, "%u", k);
    }
    for (uint32_t k = 0; k < 4; k++) {
      pthread_join(mine[k].thread, NULL);
      finish(&mine[k], mine[k].status);
    }
  }
}

/* Others are late: the wait that runs the engine ends in time, again and again. */
static void wait_shortly(struct rank *r) {
  struct call c;
  if (r->rank == 0) pause_ms(30);
  submit(&c, r);
  sml_status status;
  uint32_t num_waits = 0;
  while ((status = sml_operation_wait(c.operation, 2 * SML_NS_PER_MS)) == SML_IN_PROGRESS) num_waits++;
  CHECK(r, r->rank == 0 || num_waits > 0, "%u", num_waits);
  finish(&c, status);
}

/* Large ones run on the engine's thread, small ones between them on whatever is there. */
static void mix_sizes(struct rank *r) {
  const size_t num_elems = 300000;
  int32_t *large = malloc(num_elems * sizeof *large);
  for (uint32_t i = 0; i < 10; i++) {
    sml_operation *op;
    struct call c;
    for (size_t k = 0; k < num_elems; k++) large[k] = int_value(r->rank, k);
    CHECK(r, sml_allreduce(r->job, large, large, num_elems, SML_INT32, SML_SUM, NULL, &op) == SML_OK, "%u", i);
    submit(&c, r);
    finish(&c, sml_operation_wait(c.operation, 20 * SML_NS_PER_S));
    const sml_status status = sml_operation_wait(op, 20 * SML_NS_PER_S);
    CHECK(r, status == SML_OK, "%s", sml_status_string(status));
    sml_operation_release(op);
    uint32_t sum = 0;
    for (uint32_t n = 0; n < r->world->num_ranks; n++) sum += (uint32_t)int_value(n, num_elems - 1);
    CHECK(r, (uint32_t)large[num_elems - 1] == sum, "%u", i);
  }
  free(large);
}

/* ---- middle-sized ones: their callers run the engine if they wait at once ---- */

#define MIDDLE_ELEMS 17000u

static uint32_t num_runs_by_callers(const struct rank *r) {
  return atomic_load(&r->job->engines->units[0].thread.num_calls);
}

enum when { AT_ONCE, LATER, WHEN_IT_HAS_ENDED };

/* True: by the caller. */
static bool sum_middle(struct rank *r, int32_t *values, enum when when) {
  sml_operation *op = NULL;
  const uint32_t num_before = num_runs_by_callers(r);
  for (size_t i = 0; i < MIDDLE_ELEMS; i++) values[i] = int_value(r->rank, i);
  sml_status status = sml_allreduce(r->job, values, values, MIDDLE_ELEMS, SML_INT32, SML_SUM, NULL, &op);
  if (status == SML_OK && when == LATER) pause_ms(3);
  for (uint32_t i = 0; status == SML_OK && when == WHEN_IT_HAS_ENDED && i < 20000; i++) {
    if (atomic_load(&op->status) != SML_IN_PROGRESS) break;
    pause_ms(1);
  }
  if (status == SML_OK && when == WHEN_IT_HAS_ENDED) status = (sml_status)atomic_load(&op->status);
  if (status == SML_OK && when != WHEN_IT_HAS_ENDED) status = sml_operation_wait(op, 20 * SML_NS_PER_S);
  sml_operation_release(op);
  uint32_t num_wrong = 0;
  for (size_t i = 0; status == SML_OK && i < MIDDLE_ELEMS; i++) {
    uint32_t sum = 0;
    for (uint32_t n = 0; n < r->world->num_ranks; n++) sum += (uint32_t)int_value(n, i);
    num_wrong += (uint32_t)values[i] != sum;
  }
  if (status != SML_OK || num_wrong > 0)
    note_failure(r, __LINE__, "sum", "%s, %u wrong", sml_status_string(status), num_wrong);
  return num_runs_by_callers(r) != num_before;
}

/* Whether a wait comes at once is the system's to say as well, so they have many tries. */
static void wait_at_once_or_not(struct rank *r) {
  uint32_t num_run = 0;
  int32_t *values = malloc(MIDDLE_ELEMS * sizeof *values);
  CHECK(r, values != NULL, "no memory");
  CHECK(r, !sum_middle(r, values, AT_ONCE) && !sum_middle(r, values, AT_ONCE), "nobody knows its callers yet");
  for (uint32_t i = 0; i < 60; i++) num_run += sum_middle(r, values, AT_ONCE);
  (void)sum_middle(r, values, WHEN_IT_HAS_ENDED); /* who was thought to wait does not */
  (void)sum_middle(r, values, LATER);
  for (uint32_t i = 0; i < 3; i++) CHECK(r, !sum_middle(r, values, LATER), "call %u after one that waited later", i);
  free(values);
  CHECK(r, (num_run > 0) == r->job->method->ops->is_run_by_callers, "callers ran %u of 60", num_run);
}
static void who_waits_at_once_runs_the_engine(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 2; i++) {
    struct world w;
    world_init(&w, 2);
    w.unwilling = i == 0 ? 3 : 0; /* to share memory: then nobody runs an engine */
    world_start(&w);
    world_run(&w, wait_at_once_or_not);
    world_stop(&w);
  }
}

static void all_ways_of_polling(void **state) {
  (void)state;
  for (uint32_t poll = SML_POLL_AUTO; poll <= SML_POLL_BLOCK; poll++) {
    struct world w;
    world_init(&w, 2);
    w.context_options.poll = poll;
    w.aggd_options.poll = (enum sml_poll)poll;
    world_start(&w);
    world_run(&w, test_only);
    world_run(&w, wait_in_many);
    world_run(&w, wait_shortly);
    world_run(&w, mix_sizes);
    world_stop(&w);
  }
}

/* Whoever calls runs the engine, and may round another way: the kernels see to it themselves (src/quant). */
static const int rounding_modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
static void round_otherwise(struct rank *r) {
  float sums[SML_ARRAY_LEN(rounding_modes)][NUM_ELEMS];
  for (uint32_t i = 0; i < SML_ARRAY_LEN(rounding_modes); i++) {
    float x[NUM_ELEMS];
    for (size_t k = 0; k < NUM_ELEMS; k++) x[k] = (float)(k + r->rank + 1) / 7;
    (void)fesetround(rounding_modes[i]);
    const sml_status status = allreduce(r, x, sums[i], NUM_ELEMS, SML_FLOAT32, SML_SUM);
    const int mode = fegetround();
    (void)fesetround(FE_TONEAREST);
    CHECK(r, status == SML_OK && mode == rounding_modes[i], "mode %u: %s", i, sml_error_detail());
    CHECK(r, memcmp(sums[i], sums[0], sizeof sums[0]) == 0, "mode %u changes the sum", i);
  }
}
static void the_callers_rounding_changes_nothing(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 2; i++) {
    struct world w;
    world_init(&w, 2);
    if (i == 0) assert_int_equal(setenv("SWITCHML_KERNELS", "scalar", 1), 0);
    world_start(&w);
    assert_int_equal(unsetenv("SWITCHML_KERNELS"), 0);
    world_run(&w, round_otherwise);
    world_stop(&w);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(nobody_need_wait),
      cmocka_unit_test(all_ways_of_polling),
      cmocka_unit_test(who_waits_at_once_runs_the_engine),
      cmocka_unit_test(the_callers_rounding_changes_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
