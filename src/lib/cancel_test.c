/* SPDX-License-Identifier: Apache-2.0
 * pthread_cancel() of threads that are inside the library: each call goes to its end, the thread ends behind it, and
 * jobs can be destroyed. Here the request waits for a thread before it calls: whatever cancellation point a call has,
 * and whenever it gets there, the thread would end in it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/test_world.h"
#include "meet/job_settings.h"

#define LARGE_ELEMS 300000u

/* A body that has to end: its thread is cancelled from its beginning on. */
struct cancelled {
  struct rank *rank;
  void (*body)(struct rank *rank);
  bool has_ended;
};

static void *run_cancelled(void *argument) {
  struct cancelled *c = argument;
  pthread_cancel(pthread_self());
  c->body(c->rank);
  c->has_ended = true;
  pthread_testcancel();
  return NULL;
}

static void run_all(struct world *w, void (*body)(struct rank *)) {
  struct cancelled all[MAX_RANKS];
  for (uint32_t i = 0; i < w->num_ranks; i++) {
    w->ranks[i].world = w;
    w->ranks[i].rank = i;
    w->ranks[i].failure[0] = 0;
    all[i] = (struct cancelled){.rank = &w->ranks[i], .body = body};
    assert_int_equal(pthread_create(&w->ranks[i].thread, NULL, run_cancelled, &all[i]), 0);
  }
  for (uint32_t i = 0; i < w->num_ranks; i++) {
    void *result = NULL;
    pthread_join(w->ranks[i].thread, &result);
    if (w->ranks[i].failure[0] != 0) fail_msg("%s", w->ranks[i].failure);
    if (!all[i].has_ended) fail_msg("rank %u was cancelled inside a call", i);
    assert_ptr_equal(result, PTHREAD_CANCELED);
  }
}

/* ---- a whole life ---- */

static sml_status join(struct rank *r) {
  sml_job_options o = r->world->job_options;
  o.aggregator = r->world->is_embedded ? "" : r->world->address;
  o.allgather = r->world->is_embedded ? world_gather : NULL;
  o.allgather_user = r;
  o.rank = r->rank;
  o.world_size = r->world->world_size ? r->world->world_size : r->world->num_ranks;
  if (r->world->hosts != NULL) sml_test_host = (uint64_t)r->world->hosts[r->rank];
  const sml_status status = sml_context_create(&r->world->context_options, &r->context);
  return status == SML_OK ? sml_job_create(r->context, &o, &r->job) : status;
}

static void sum(struct rank *r, size_t num_elems) {
  static int32_t data[MAX_RANKS][LARGE_ELEMS];
  int32_t *x = data[r->rank];
  for (size_t i = 0; i < num_elems; i++) x[i] = (int32_t)i;
  CHECK(r, allreduce(r, x, x, num_elems, SML_INT32, SML_SUM) == SML_OK, "%s", sml_error_detail());
  for (size_t i = 0; i < num_elems; i++) CHECK(r, x[i] == (int32_t)(i * r->world->num_ranks));
}

static void sum_batch(struct rank *r) {
  float x[3] = {1, 2, 3};
  sml_operation *ops[3];
  CHECK(r, sml_batch_begin(r->job) == SML_OK);
  for (uint32_t i = 0; i < 3; i++)
    CHECK(r, sml_allreduce(r->job, &x[i], &x[i], 1, SML_FLOAT32, SML_SUM, NULL, &ops[i]) == SML_OK);
  CHECK(r, sml_batch_end(r->job) == SML_OK);
  for (uint32_t i = 0; i < 3; i++) {
    CHECK(r, sml_operation_wait(ops[i], 30 * SML_NS_PER_S) == SML_OK);
    sml_operation_release(ops[i]);
    CHECK(r, x[i] == (float)((i + 1) * r->world->num_ranks));
  }
}

static void test_to_the_end(struct rank *r) {
  static int32_t x[MAX_RANKS];
  sml_operation *op;
  sml_error error = SML_ERROR_INIT;
  sml_status status;
  CHECK(r, sml_allreduce(r->job, &x[r->rank], &x[r->rank], 1, SML_INT32, SML_SUM, NULL, &op) == SML_OK);
  while ((status = sml_operation_test(op)) == SML_IN_PROGRESS) sched_yield();
  CHECK(r, status == SML_OK && sml_operation_error(op, &error) == SML_OK);
  sml_operation_release(op);
}

static void live(struct rank *r) {
  sml_stats stats = SML_STATS_INIT;
  CHECK(r, join(r) == SML_OK, "%s", sml_error_detail());
  sum(r, 1);
  sum(r, LARGE_ELEMS);
  if (r->failure[0] == 0) sum_batch(r);
  if (r->failure[0] == 0) test_to_the_end(r);
  CHECK(r, sml_job_stats(r->job, &stats) == SML_OK && sml_job_error(r->job, NULL) == SML_OK);
  CHECK(r, sml_context_dump_trace(r->context, "/dev/null/not/there") == SML_ERR_SYSTEM);
  sml_job_destroy(r->job);
  sml_context_destroy(r->context);
}

static void run_lives(const char *hosts, bool is_embedded, uint32_t no_shared_memory, uint64_t retry_ns) {
  struct world w;
  world_init(&w, 3);
  w.job_options.lease_ns = PATIENT_LEASE_NS;
  w.hosts = hosts;
  w.is_embedded = is_embedded;
  w.job_options.no_shared_memory = no_shared_memory;
  w.job_options.retry_ns = retry_ns;
  if (is_embedded) pthread_barrier_init(&w.gathering, NULL, 3);
  else world_start_aggd(&w);
  run_all(&w, live);
  if (is_embedded) pthread_barrier_destroy(&w.gathering);
  else sml_aggd_stop(w.aggd);
}

static void over_the_network(void **state) {
  (void)state;
  run_lives(NULL, false, 1, 0);
}
static void in_shared_memory(void **state) {
  (void)state;
  run_lives(NULL, false, 0, 0);
}
static void with_ranks_that_combine(void **state) {
  (void)state;
  run_lives("112", false, 0, 0);
}
static void with_ranks_that_host_it(void **state) {
  (void)state;
  run_lives("112", true, 0, 0);
}
static void with_retry(void **state) {
  (void)state;
  run_lives(NULL, false, 1, 5 * SML_NS_PER_S);
}

/* ---- what ends by its deadline, or by another rank ---- */

static void join_nobody(struct rank *r) {
  r->world->job_options.join_timeout_ns = 200 * SML_NS_PER_MS;
  const sml_status status = join(r); /* unreachable, if the aggregator takes longer to answer */
  CHECK(r, status == SML_ERR_TIMEOUT || status == SML_ERR_UNREACHABLE, "%d %s", status, sml_error_detail());
  sml_context_destroy(r->context);
}

static void a_join_that_times_out(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  world_start_aggd(&w);
  w.num_ranks = 1;
  w.world_size = 2;
  run_all(&w, join_nobody);
  sml_aggd_stop(w.aggd);
}

static void wait_and_abort(struct rank *r) {
  static float data[MAX_RANKS];
  sml_operation *op;
  CHECK(r, join(r) == SML_OK, "%s", sml_error_detail());
  if (r->rank == 0) {
    while (r->world->num_waiting < 1) sched_yield(); /* an abort may end a join that has not returned */
    CHECK(r, sml_allreduce(r->job, &data[0], &data[0], 1, SML_FLOAT32, SML_SUM, NULL, &op) == SML_OK);
    CHECK(r, sml_operation_wait(op, 50 * SML_NS_PER_MS) == SML_IN_PROGRESS);
    CHECK(r, sml_job_abort(r->job, "by the test") == SML_OK);
    CHECK(r, sml_operation_wait(op, 30 * SML_NS_PER_S) == SML_ERR_ABORTED);
    sml_operation_release(op);
  } else {
    note_waiting(r);
    while (sml_job_error(r->job, NULL) == SML_OK) sched_yield();
  }
  sml_job_destroy(r->job);
  sml_context_destroy(r->context);
}

static void a_wait_and_an_abort(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  w.job_options.no_shared_memory = 1;
  world_start_aggd(&w);
  run_all(&w, wait_and_abort);
  sml_aggd_stop(w.aggd);
}

/* ---- from another thread ---- */

static void *wait_for_other(void *argument) {
  struct rank *r = argument;
  static float x;
  sml_operation *op;
  x = 1;
  if (sml_allreduce(r->job, &x, &x, 1, SML_FLOAT32, SML_SUM, NULL, &op) != SML_OK) return NULL;
  note_waiting(r);
  r->status = sml_operation_wait(op, 60 * SML_NS_PER_S);
  sml_operation_release(op);
  pthread_testcancel();
  return NULL;
}

static void cancel_a_waiting_thread(struct rank *r) {
  static float x;
  pthread_t thread;
  void *result = NULL;
  if (r->rank == 0) {
    CHECK(r, pthread_create(&thread, NULL, wait_for_other, r) == 0);
    await_waiting(r);
    pthread_cancel(thread);
    note_waiting(r); /* the other one may call */
    pthread_join(thread, &result);
    CHECK(r, result == PTHREAD_CANCELED && r->status == SML_OK);
  } else {
    while (r->world->num_waiting < 2) usleep(1000);
    x = 2;
    CHECK(r, allreduce(r, &x, &x, 1, SML_FLOAT32, SML_SUM) == SML_OK && x == 3);
  }
}

static void a_thread_that_waits_is_cancelled_behind_its_call(void **state) {
  (void)state;
  for (uint32_t no_shared_memory = 0; no_shared_memory < 2; no_shared_memory++) {
    struct world w;
    world_init(&w, 2);
    w.job_options.no_shared_memory = no_shared_memory;
    world_start(&w);
    world_run(&w, cancel_a_waiting_thread);
    world_stop(&w);
  }
}

static int set_up(void **state) {
  (void)state;
  alarm(250);
  return setenv("SWITCHML_SHARED_MEMORY", "1", 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(over_the_network),
      cmocka_unit_test(in_shared_memory),
      cmocka_unit_test(with_ranks_that_combine),
      cmocka_unit_test(with_ranks_that_host_it),
      cmocka_unit_test(with_retry),
      cmocka_unit_test(a_join_that_times_out),
      cmocka_unit_test(a_wait_and_an_abort),
      cmocka_unit_test(a_thread_that_waits_is_cancelled_behind_its_call),
  };
  return cmocka_run_group_tests(tests, set_up, NULL);
}
