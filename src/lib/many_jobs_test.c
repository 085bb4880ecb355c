/* SPDX-License-Identifier: Apache-2.0
 * A hundred jobs at once at an aggregator with its default limits, all of two contexts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "aggd/snapshot.h"
#include "lib/test_world.h"

#define NUM_JOBS 100u
#define NUM_ELEMS 3000u

static struct world w;
static sml_job *jobs[2][NUM_JOBS];

static int32_t input_of(uint32_t rank, uint32_t j, uint32_t round, size_t i) {
  return int_value(rank, i + j * 100000u + round * NUM_ELEMS);
}

/* One operation of each job, all of them at once. */
static void sum_all(struct rank *r, uint32_t round, int32_t *buffers) {
  sml_operation *operations[NUM_JOBS];
  for (uint32_t j = 0; j < NUM_JOBS; j++) {
    int32_t *buffer = buffers + (size_t)j * NUM_ELEMS;
    for (size_t i = 0; i < NUM_ELEMS; i++) buffer[i] = input_of(r->rank, j, round, i);
    const sml_status status =
        sml_allreduce(jobs[r->rank][j], buffer, buffer, NUM_ELEMS, SML_INT32, SML_SUM, NULL, &operations[j]);
    CHECK(r, status == SML_OK);
  }
  for (uint32_t j = 0; j < NUM_JOBS; j++) {
    const sml_status status = sml_operation_wait(operations[j], 120 * SML_NS_PER_S);
    sml_operation_release(operations[j]);
    CHECK(r, status == SML_OK, "job %u: %d", j, (int)status);
    const int32_t *sums = buffers + (size_t)j * NUM_ELEMS;
    for (size_t i = 0; i < NUM_ELEMS; i++)
      CHECK(r, (uint32_t)sums[i] == (uint32_t)input_of(0, j, round, i) + (uint32_t)input_of(1, j, round, i), "job %u",
            j);
  }
}

static void work(struct rank *r) {
  static int32_t buffers[2][NUM_JOBS * NUM_ELEMS];
  for (uint32_t round = 0; round < 2 && r->failure[0] == 0; round++) sum_all(r, round, buffers[r->rank]);
}

static void join(struct rank *r) {
  sml_job_options o = w.job_options;
  o.aggregator = w.address;
  o.rank = r->rank;
  o.world_size = 2;
  o.operation_timeout_ns = 120 * SML_NS_PER_S; /* two hundred engines, under a sanitizer, beside other programs */
  o.lease_ns = PATIENT_LEASE_NS;
  CHECK(r, sml_context_create(&w.context_options, &r->context) == SML_OK);
  for (uint32_t j = 0; j < NUM_JOBS; j++) {
    char name[16];
    snprintf(name, sizeof name, "small-%u", j);
    o.name = name;
    CHECK(r, sml_job_create(r->context, &o, &jobs[r->rank][j]) == SML_OK, "job %u: %s", j, sml_error_detail());
  }
}

static void leave(struct rank *r) {
  for (uint32_t j = 0; j < NUM_JOBS; j++) sml_job_destroy(jobs[r->rank][j]);
  sml_context_destroy(r->context);
}

static void test_a_hundred_jobs(void **state) {
  (void)state;
  world_init(&w, 2);
  world_start_aggd(&w);
  world_run(&w, join);
  struct sml_snapshot *s = sml_aggd_snapshot(w.aggd);
  assert_non_null(s);
  assert_int_equal(s->counts.jobs_started, NUM_JOBS);
  assert_int_equal(s->tenants[0].use.num_workers, 2 * NUM_JOBS);
  assert_true(s->counts.slots_used >= 32 * NUM_JOBS && s->counts.slots_used <= s->pool_slots);
  sml_snapshot_release(s);
  world_run(&w, work);
  world_run(&w, leave);
  sml_aggd_stop(w.aggd);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_hundred_jobs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
