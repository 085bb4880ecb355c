/* SPDX-License-Identifier: Apache-2.0
 * What retry does not survive ends in an error on every rank. ctl/member_job_test.c has each case in virtual time; here
 * is what callers' threads and processes have to do with it. */
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
  /* "rank 2 of 3 has not joined"; but where the aggregator gets no processor for 1 s, "not all 3 ranks joined in time":
   * a rank then ends by its own clock, and does not know who is missing (member_test). */
  check_fails(r, op, 8000, SML_ERR_TIMEOUT, "joined");
}
static void destroying_meanwhile_ends_every_rank(void **state) {
  (void)state;
  run_failing(3, 3000, destroy_meanwhile);
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
      cmocka_unit_test(destroying_meanwhile_ends_every_rank),
      cmocka_unit_test(a_fork_meanwhile_changes_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
