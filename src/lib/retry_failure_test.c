/* SPDX-License-Identifier: Apache-2.0
 * What retry does not survive: each ends in an error on every rank, in bounded time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/test_keeper.h"
#include "lib/test_world.h"

static struct keeper keeper;
static pthread_barrier_t barrier;

static void run_failing(uint32_t num_ranks, uint64_t retry_ms, void (*body)(struct rank *)) {
  struct world w;
  world_init(&w, num_ranks);
  w.job_options.retry_ns = retry_ms * SML_NS_PER_MS;
  keeper_start(&keeper, &w.aggd_options);
  memcpy(w.address, keeper.address, sizeof w.address);
  pthread_barrier_init(&barrier, NULL, num_ranks);
  world_join(&w);
  world_run(&w, body);
  pthread_barrier_destroy(&barrier);
  world_stop(&w);
  keeper_stop(&keeper);
}

/* Leaves every rank but `late` with an operation when the aggregator dies. */
static void lose_aggregator(struct rank *r, uint32_t late, sml_operation **op_out) {
  static float data[MAX_RANKS][9000];
  *op_out = NULL;
  if (r->rank != late) {
    CHECK(r,
          sml_allreduce(r->job, data[r->rank], data[r->rank], 9000, SML_FLOAT32, SML_SUM, NULL, op_out) ==
              SML_OK,
          "%s", sml_error_detail());
  }
  if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) keeper_signal(&keeper, SIGKILL);
  pthread_barrier_wait(&barrier);
  usleep(200 * 1000);
}

/* The operation, or without one the job, fails within the time with the status and the words. */
static void check_fails(struct rank *r, sml_operation *op, uint64_t within_ms, sml_status expected,
                        const char *needle) {
  sml_error error = SML_ERROR_INIT;
  sml_status status = SML_OK;
  if (op != NULL) status = sml_operation_wait(op, within_ms * SML_NS_PER_MS);
  for (uint32_t i = 0; op == NULL && i < within_ms / 10 && status == SML_OK; i++) {
    usleep(10 * 1000);
    status = sml_job_error(r->job, NULL);
  }
  sml_job_error(r->job, &error);
  CHECK(r, status == expected && error.status == expected, "%d %s", status, error.detail);
  CHECK(r, strstr(error.detail, needle) != NULL, "%s", error.detail);
  sml_operation_release(op);
  int32_t x = 0;
  CHECK(r, sml_allreduce(r->job, &x, &x, 1, SML_INT32, SML_SUM, NULL, &op) == expected && op == NULL);
}

static void lose_it_for_good(struct rank *r) {
  sml_operation *op;
  lose_aggregator(r, 0, &op);
  check_fails(r, op, 2300, SML_ERR_AGGREGATOR_LOST, "for 1.5 s (retry_ns): no aggregator at 127.0.0.1");
  CHECK(r, r->failure[0] != 0 || strstr(sml_error_detail(), "Connection refused") != NULL, "%s",
        sml_error_detail());
}
static void an_aggregator_that_stays_away_is_an_error(void **state) {
  (void)state;
  run_failing(3, 1500, lose_it_for_good);
}

static void abort_meanwhile(struct rank *r) {
  sml_operation *op;
  lose_aggregator(r, 2, &op);
  if (r->rank == 1) {
    CHECK(r, sml_job_abort(r->job, "enough") == SML_OK);
    check_fails(r, op, 1000, SML_ERR_ABORTED, "enough");
    keeper_start_again(&keeper);
  } else {
    check_fails(r, op, 5000, SML_ERR_TIMEOUT, "rank 1 of 3 has not joined");
  }
}
static void an_abort_meanwhile_ends_every_rank(void **state) {
  (void)state;
  run_failing(3, 3000, abort_meanwhile);
}

static void destroy_meanwhile(struct rank *r) {
  static float x[9000];
  sml_operation *op;
  lose_aggregator(r, 2, &op);
  if (r->rank == 2) CHECK(r, sml_allreduce(r->job, x, x, 9000, SML_FLOAT32, SML_SUM, NULL, &op) == SML_OK);
  if (r->rank == 2) {
    const uint64_t begin_ns = sml_clock_ns();
    sml_operation_release(op);
    sml_job_destroy(r->job); /* with an operation outstanding: nothing to wait for */
    r->job = NULL;
    CHECK(r, sml_clock_ns() - begin_ns < SML_NS_PER_S);
    keeper_start_again(&keeper);
    return;
  }
  check_fails(r, op, 5000, SML_ERR_TIMEOUT, "rank 2 of 3 has not joined");
}
static void destroying_meanwhile_ends_every_rank(void **state) {
  (void)state;
  run_failing(3, 3000, destroy_meanwhile);
}

static void time_out_meanwhile(struct rank *r) {
  sml_operation *op;
  lose_aggregator(r, 0, &op);
  if (op == NULL) {
    check_fails(r, op, 5000, SML_ERR_TIMEOUT, ""); /* the others tell the aggregator, or did not come */
    return;
  }
  usleep(1000 * 1000);
  if (r->rank == 1) keeper_start_again(&keeper);
  check_fails(r, op, 5000, SML_ERR_TIMEOUT, "timed out");
}
static void an_operation_times_out_after_the_rejoining(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 3);
  w.job_options.retry_ns = 20 * SML_NS_PER_S;
  w.job_options.operation_timeout_ns = 600 * SML_NS_PER_MS;
  keeper_start(&keeper, &w.aggd_options);
  memcpy(w.address, keeper.address, sizeof w.address);
  pthread_barrier_init(&barrier, NULL, 3);
  world_join(&w);
  world_run(&w, time_out_meanwhile);
  pthread_barrier_destroy(&barrier);
  world_stop(&w);
  keeper_stop(&keeper);
}

/* ---- a rank that is not the same any more ---- */

static void start_anew(struct rank *r) {
  int32_t x = 1;
  for (uint32_t i = 0; i < 5; i++)
    CHECK(r, allreduce(r, &x, &x, 1, SML_INT32, SML_SUM) == SML_OK, "%s", sml_error_detail());
  for (uint32_t i = 0; i < 100; i++) { /* until rank 0 has not kept the inputs */
    sml_stats stats = SML_STATS_INIT;
    CHECK(r, sml_job_stats(r->job, &stats) == SML_OK);
    if (stats.retained_bytes == 0) break;
    usleep(20 * 1000);
  }
  sml_operation *op;
  lose_aggregator(r, 1, &op);
  if (r->rank == 1) {
    sml_job_destroy(r->job);
    r->job = NULL;
    keeper_start_again(&keeper);
    sml_job_options o = r->world->job_options;
    o.aggregator = r->world->address;
    o.rank = 1;
    o.world_size = 2;
    o.join_timeout_ns = 4 * SML_NS_PER_S;
    CHECK(r, sml_job_create(r->context, &o, &r->job) == SML_ERR_REFUSED, "%s", sml_error_detail());
    return;
  }
  check_fails(r, op, 8000, SML_ERR_REFUSED, "rank 1 has to repeat operation 0");
}
static void a_rank_that_started_anew_is_refused(void **state) {
  (void)state;
  run_failing(2, 6000, start_anew);
}

/* Rank 1 comes back as another process would, before it is known that all have the first sum. Would it be taken,
 * then it got a sum of that operation other than the one that rank 0 has. */
static void start_anew_at_once(struct rank *r) {
  int32_t x = 1;
  CHECK(r, allreduce(r, &x, &x, 1, SML_INT32, SML_SUM) == SML_OK && x == 2, "%s", sml_error_detail());
  sml_operation *op;
  lose_aggregator(r, 1, &op);
  if (r->rank == 1) {
    sml_job_abort(r->job, "starts anew"); /* nobody hears it */
    sml_job_destroy(r->job);
    r->job = NULL;
    keeper_start_again(&keeper);
    sml_job_options o = r->world->job_options;
    o.aggregator = r->world->address;
    o.rank = 1;
    o.world_size = 2;
    o.join_timeout_ns = 4 * SML_NS_PER_S;
    CHECK(r, sml_job_create(r->context, &o, &r->job) == SML_ERR_REFUSED, "%s", sml_error_detail());
    return;
  }
  /* Or it was confirmed before the aggregator was lost, which is the test above. */
  check_fails(r, op, 8000, SML_ERR_REFUSED, "the job can't go on: rank 1 ");
}
static void a_rank_that_started_anew_at_once_is_refused(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  w.job_options.retry_ns = 6 * SML_NS_PER_S;
  keeper_start(&keeper, &w.aggd_options);
  memcpy(w.address, keeper.address, sizeof w.address);
  pthread_barrier_init(&barrier, NULL, 2);
  world_join(&w);
  world_run(&w, start_anew_at_once);
  pthread_barrier_destroy(&barrier);
  world_stop(&w);
  keeper_stop(&keeper);
}

/* Another number of lanes would cut tensors otherwise, and give other bits than some ranks have already. */
static void change_the_shape(struct rank *r) {
  static float data[2][9000];
  sml_operation *op = NULL;
  if (r->rank == 0)
    CHECK(r, sml_allreduce(r->job, data[0], data[0], 9000, SML_FLOAT32, SML_SUM, NULL, &op) == SML_OK);
  if (r->rank == 1) {
    sml_aggd_stop(r->world->aggd);
    r->world->aggd_options.num_lanes = 1;
    r->world->host = r->world->address;
    world_start_aggd(r->world);
  }
  check_fails(r, op, 8000, SML_ERR_AGGREGATOR_LOST, "another number of lanes");
}
static void a_successor_of_another_shape_is_an_error(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  w.aggd_options.num_lanes = w.context_options.num_threads = 2;
  w.job_options.retry_ns = 10 * SML_NS_PER_S;
  world_start(&w);
  world_run(&w, change_the_shape);
  world_stop(&w);
}

static void join_with_other_settings(struct rank *r) {
  sml_job_options o = r->world->job_options;
  o.aggregator = r->world->address;
  o.rank = r->rank;
  o.world_size = 2;
  o.retry_ns = r->rank * SML_NS_PER_S;
  o.join_timeout_ns = 2 * SML_NS_PER_S;
  CHECK(r, sml_context_create(NULL, &r->context) == SML_OK);
  r->status = sml_job_create(r->context, &o, &r->job);
  CHECK(r, r->status == SML_ERR_REFUSED || r->status == SML_ERR_TIMEOUT, "%s", sml_error_detail());
  CHECK(r, r->status == SML_ERR_TIMEOUT || strstr(sml_error_detail(), "SWITCHML_RETRY") != NULL, "%s",
        sml_error_detail());
}
static void ranks_must_agree_whether_to_retry(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  world_start_aggd(&w);
  world_run(&w, join_with_other_settings);
  assert_true(w.ranks[0].status == SML_ERR_REFUSED || w.ranks[1].status == SML_ERR_REFUSED);
  world_stop(&w);
}

/* ---- processes ---- */

/* Rank 2, in a process that dies with the aggregator. */
static void run_rank_2(int in) {
  char address[80];
  sml_context *context;
  sml_job *job;
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  if (read(in, address, sizeof address) != sizeof address) _exit(1);
  o.aggregator = address;
  o.rank = 2;
  o.world_size = 3;
  o.retry_ns = 3 * SML_NS_PER_S;
  if (sml_context_create(NULL, &context) != SML_OK || sml_job_create(context, &o, &job) != SML_OK) _exit(2);
  for (;;) pause();
}

static pid_t doomed;

static void join_two_of_three(struct rank *r) {
  sml_job_options o = r->world->job_options;
  o.aggregator = r->world->address;
  o.rank = r->rank;
  o.world_size = 3;
  CHECK(r, sml_context_create(NULL, &r->context) == SML_OK);
  CHECK(r, sml_job_create(r->context, &o, &r->job) == SML_OK, "%s", sml_error_detail());
}

static void lose_both(struct rank *r) {
  sml_operation *op;
  lose_aggregator(r, 2, &op);
  if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
    kill(doomed, SIGKILL);
    keeper_start_again(&keeper);
  }
  check_fails(r, op, 5000, SML_ERR_TIMEOUT, "rank 2 of 3 has not joined");
}

static void a_rank_killed_meanwhile_is_named(void **state) {
  (void)state;
  struct world w;
  int down[2];
  world_init(&w, 2);
  w.job_options.retry_ns = 3 * SML_NS_PER_S;
  assert_int_equal(pipe(down), 0);
  doomed = fork();
  if (doomed == 0) {
    alarm(120);
    run_rank_2(down[0]);
  }
  keeper_start(&keeper, &w.aggd_options);
  memcpy(w.address, keeper.address, sizeof w.address);
  assert_int_equal(write(down[1], w.address, sizeof w.address), sizeof w.address);
  world_run(&w, join_two_of_three);
  pthread_barrier_init(&barrier, NULL, 2);
  world_run(&w, lose_both);
  pthread_barrier_destroy(&barrier);
  waitpid(doomed, NULL, 0);
  close(down[0]);
  close(down[1]);
  world_stop(&w);
  keeper_stop(&keeper);
}

/* A child that is forked meanwhile has nothing of the job; the parent goes on. */
static void fork_meanwhile(struct rank *r) {
  sml_operation *op;
  lose_aggregator(r, 1, &op);
  if (r->rank == 0) {
    const pid_t pid = fork();
    if (pid == 0) {
      if (sml_job_error(r->job, NULL) != SML_ERR_FORKED) _exit(1);
      if (sml_operation_test(op) != SML_ERR_FORKED) _exit(2);
      sml_job_destroy(r->job);
      sml_context_destroy(r->context);
      _exit(0);
    }
    int status;
    CHECK(r, waitpid(pid, &status, 0) == pid && status == 0, "%d", status);
    keeper_start_again(&keeper);
    CHECK(r, sml_operation_wait(op, 10 * SML_NS_PER_S) == SML_OK, "%s", sml_error_detail());
    sml_operation_release(op);
    return;
  }
  static float x[9000];
  CHECK(r, allreduce(r, x, x, 9000, SML_FLOAT32, SML_SUM) == SML_OK, "%s", sml_error_detail());
}
static void a_fork_meanwhile_changes_nothing(void **state) {
  (void)state;
  run_failing(2, 10000, fork_meanwhile);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_aggregator_that_stays_away_is_an_error),
      cmocka_unit_test(an_abort_meanwhile_ends_every_rank),
      cmocka_unit_test(destroying_meanwhile_ends_every_rank),
      cmocka_unit_test(an_operation_times_out_after_the_rejoining),
      cmocka_unit_test(a_rank_that_started_anew_is_refused),
      cmocka_unit_test(a_rank_that_started_anew_at_once_is_refused),
      cmocka_unit_test(a_successor_of_another_shape_is_an_error),
      cmocka_unit_test(ranks_must_agree_whether_to_retry),
      cmocka_unit_test(a_rank_killed_meanwhile_is_named),
      cmocka_unit_test(a_fork_meanwhile_changes_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
