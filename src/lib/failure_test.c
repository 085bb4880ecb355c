/* SPDX-License-Identifier: Apache-2.0
 * What goes wrong between ranks, seen from every rank: each gets an error that names who is to blame, and another job
 * is not touched. ctl/member_job_test.c has each case in virtual time; here is one for each way in which threads,
 * processes and sockets carry out what was decided there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/test_world.h"

static pthread_barrier_t barrier;

/* ---- ranks that call different things ---- */

struct call {
  size_t count;
  sml_type type;
  sml_reduction reduction;
  uint64_t key;
  size_t start; /* of a second tensor; 0: there is none */
};
static struct call calls[2][2]; /* [rank][which] */

static void call_differently(struct rank *r) {
  static int32_t data[2][2][5000];
  sml_operation *ops[2];
  for (uint32_t k = 0; k < 2; k++) {
    const struct call *c = &calls[r->rank][k];
    sml_operation_options o = SML_OPERATION_OPTIONS_INIT;
    const size_t starts[] = {0, c->start};
    o.key = c->key;
    o.starts = starts;
    o.num_starts = c->start != 0 ? 2 : 0;
    memset(data[r->rank][k], 0, sizeof data[0][0]);
    CHECK(r,
          sml_allreduce(r->job, data[r->rank][k], data[r->rank][k], c->count, c->type, c->reduction, &o,
                        &ops[k]) == SML_OK,
          "%s", sml_error_detail());
    pthread_barrier_wait(&barrier); /* so that the first operation's failure does not refuse the second */
    if (k == 0 && memcmp(&calls[0][0], &calls[1][0], sizeof *c) != 0) {
      ops[1] = NULL;
      break;
    }
  }
  sml_status status = SML_OK;
  for (uint32_t k = 0; k < 2 && ops[k] != NULL && status == SML_OK; k++)
    status = sml_operation_wait(ops[k], 10 * SML_NS_PER_S);
  sml_error error;
  check_failed(r, SML_ERR_MISMATCH, &error);
  for (uint32_t k = 0; k < 2; k++) sml_operation_release(ops[k]);
  if (r->failure[0] != 0) return;
  CHECK(r, status == SML_ERR_MISMATCH);
  CHECK(r, error.num_ranks == 2 && is_named(&error, 0) && is_named(&error, 1), "%s", error.detail);
}

static void different_operations_name_both_ranks(void **state) {
  (void)state;
  static const struct call base = {100, SML_FLOAT32, SML_SUM, 0, 0};
  const struct call variants[] = {{101, SML_FLOAT32, SML_SUM, 0, 0},  {4000, SML_FLOAT32, SML_SUM, 0, 0},
                                  {100, SML_INT32, SML_SUM, 0, 0},    {100, SML_FLOAT32, SML_AVG, 0, 0},
                                  {100, SML_FLOAT32, SML_SUM, 1, 0},  {4000, SML_FLOAT32, SML_SUM, 0, 256},
                                  {4000, SML_FLOAT32, SML_SUM, 0, 10}};
  const size_t num_variants = SML_ARRAY_LEN(variants);
  for (size_t i = 0; i < num_variants + 2; i++) {
    calls[0][0] = calls[1][0] = calls[0][1] = calls[1][1] = base;
    if (i < num_variants) {
      calls[1][0] = variants[i];
    } else if (i == num_variants) { /* another order */
      calls[0][0].count = calls[1][1].count = 77;
    } else { /* as many blocks, beginning elsewhere */
      calls[0][0] = (struct call){4000, SML_FLOAT32, SML_SUM, 0, 256};
      calls[1][0] = (struct call){4000, SML_FLOAT32, SML_SUM, 0, 512};
    }
    struct world w;
    world_init(&w, 2);
    world_start(&w);
    pthread_barrier_init(&barrier, NULL, 2);
    world_run(&w, call_differently);
    pthread_barrier_destroy(&barrier);
    world_stop(&w);
  }
}

/* ---- abort, destroy ---- */

/* Rank 0 does not call; the others are left with an operation. */
static void leave_waiting(struct rank *r, uint32_t blamed, const char *needle) {
  static float data[MAX_RANKS][9000];
  sml_operation *op;
  CHECK(r,
        sml_allreduce(r->job, data[r->rank], data[r->rank], 9000, SML_FLOAT32, SML_SUM, NULL, &op) == SML_OK);
  pthread_barrier_wait(&barrier);
  const sml_status status = sml_operation_wait(op, 20 * SML_NS_PER_S);
  sml_error error = SML_ERROR_INIT;
  CHECK(r, status == SML_ERR_ABORTED && sml_operation_error(op, &error) == status, "%d %s", status, sml_error_detail());
  sml_operation_release(op);
  CHECK(r, blamed == UINT32_MAX || is_named(&error, blamed), "%s", error.detail);
  CHECK(r, strstr(error.detail, needle) != NULL, "%s", error.detail);
  check_failed(r, SML_ERR_ABORTED, &error);
}

static void abort_on_rank_0(struct rank *r) {
  sml_error error;
  if (r->rank > 0) {
    leave_waiting(r, 0, "the loss is NaN");
    return;
  }
  pthread_barrier_wait(&barrier);
  CHECK(r, sml_job_abort(r->job, "the loss\nis NaN") == SML_OK);
  check_failed(r, SML_ERR_ABORTED, &error);
  CHECK(r, strcmp(error.detail, "the loss is NaN") == 0, "%s", error.detail);
}

static void destroy_in_flight_on_rank_0(struct rank *r) {
  static float x[9000];
  sml_operation *op;
  if (r->rank == 1) {
    pthread_barrier_wait(&barrier);
    sml_error error;
    check_failed(r, SML_ERR_ABORTED, &error);
    return;
  }
  if (r->rank == 2) {
    leave_waiting(r, UINT32_MAX, "destroyed");
    return;
  }
  CHECK(r, sml_allreduce(r->job, x, x, 9000, SML_FLOAT32, SML_SUM, NULL, &op) == SML_OK);
  sml_operation_release(op);
  pthread_barrier_wait(&barrier);
  sml_job_destroy(r->job);
  r->job = NULL;
}

static void run_failing(uint32_t num_ranks, void (*body)(struct rank *)) {
  struct world w;
  world_init(&w, num_ranks);
  world_start(&w);
  pthread_barrier_init(&barrier, NULL, num_ranks);
  world_run(&w, body);
  pthread_barrier_destroy(&barrier);
  world_stop(&w);
}

static void abort_ends_every_rank(void **state) {
  (void)state;
  run_failing(3, abort_on_rank_0);
}
static void leaving_with_an_operation_outstanding_is_an_error_everywhere(void **state) {
  (void)state;
  run_failing(3, destroy_in_flight_on_rank_0);
}

/* ---- the aggregator goes ---- */

/* An aggregator in a process of its own, forked before there are threads and sockets to inherit. */
static pid_t start_aggregator_process(struct world *w) {
  int up[2];
  assert_int_equal(pipe(up), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(120); /* not longer than its parent, whatever happens */
    world_start_aggd(w);
    if (write(up[1], w->address, sizeof w->address) != sizeof w->address) _exit(1);
    for (;;) pause();
  }
  close(up[1]);
  assert_int_equal(read(up[0], w->address, sizeof w->address), sizeof w->address);
  close(up[0]);
  return pid;
}

static pid_t aggregator_pid;

static void lose_aggregator_process(struct rank *r) {
  static float data[2][50];
  sml_operation *op;
  sml_error error;
  CHECK(r,
        sml_allreduce(r->job, data[r->rank], data[r->rank], 50, SML_FLOAT32, SML_SUM, NULL, &op) == SML_OK);
  CHECK(r, sml_operation_wait(op, 10 * SML_NS_PER_S) == SML_OK);
  sml_operation_release(op);
  if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
    siginfo_t unused;
    kill(aggregator_pid, SIGKILL);
    waitid(P_PID, (id_t)aggregator_pid, &unused, WEXITED | WNOWAIT); /* it takes a moment */
  }
  pthread_barrier_wait(&barrier);
  CHECK(r,
        sml_allreduce(r->job, data[r->rank], data[r->rank], 50, SML_FLOAT32, SML_SUM, NULL, &op) <= SML_OK);
  const sml_status status = op == NULL ? SML_ERR_AGGREGATOR_LOST : sml_operation_wait(op, 10 * SML_NS_PER_S);
  sml_operation_release(op);
  CHECK(r, status == SML_ERR_AGGREGATOR_LOST, "%d %s", status, sml_error_detail());
  check_failed(r, SML_ERR_AGGREGATOR_LOST, &error);
}

static void a_killed_aggregator_is_lost_at_once(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  w.job_options.lease_ns = PATIENT_LEASE_NS; /* its silence is none */
  aggregator_pid = start_aggregator_process(&w);
  world_join(&w);
  pthread_barrier_init(&barrier, NULL, 2);
  world_run(&w, lose_aggregator_process);
  pthread_barrier_destroy(&barrier);
  world_stop(&w);
  waitpid(aggregator_pid, NULL, 0);
}

/* ---- jobs do not touch each other ---- */

static void fail_beside_a_good_job(struct rank *r) {
  sml_job_options o = r->world->job_options;
  o.aggregator = r->world->address;
  o.name = "doomed";
  o.rank = r->rank;
  o.world_size = 2;
  sml_job *doomed, *good = r->job;
  CHECK(r, sml_job_create(r->context, &o, &doomed) == SML_OK, "%s", sml_error_detail());
  for (uint32_t i = 0; i < 200; i++) {
    float x = 1, y = 1;
    sml_operation *op;
    if (i == 100 && r->rank == 1) sml_job_abort(doomed, "test");
    if (i < 100) {
      CHECK(r, sml_allreduce(doomed, &y, &y, 1, SML_FLOAT32, SML_SUM, NULL, &op) == SML_OK);
      CHECK(r, sml_operation_wait(op, 10 * SML_NS_PER_S) == SML_OK && y == 2);
      sml_operation_release(op);
    }
    CHECK(r, sml_allreduce(good, &x, &x, 1, SML_FLOAT32, SML_SUM, NULL, &op) == SML_OK);
    CHECK(r, sml_operation_wait(op, 10 * SML_NS_PER_S) == SML_OK && x == 2);
    sml_operation_release(op);
  }
  r->job = doomed;
  sml_error error;
  check_failed(r, SML_ERR_ABORTED, &error);
  r->job = good;
  CHECK(r, sml_job_error(good, NULL) == SML_OK);
}

static void another_job_is_not_touched(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  world_start(&w);
  world_run(&w, fail_beside_a_good_job);
  world_stop(&w);
}

/* The aggregator gives the failed job's number to the next one, while the context still holds the first. */
static void go_on_beside_a_failed_job(struct rank *r) {
  sml_error error;
  if (r->rank == 0) CHECK(r, sml_job_abort(r->job, "that was enough") == SML_OK);
  check_failed(r, SML_ERR_ABORTED, &error);
  pthread_barrier_wait(&barrier); /* rank 1 heard it from the aggregator */
  if (r->failure[0] != 0) return;
  sml_job *failed = r->job;
  sml_job_options o = r->world->job_options;
  o.aggregator = r->world->address;
  o.name = "next";
  o.rank = r->rank;
  o.world_size = r->world->num_ranks;
  CHECK(r, sml_job_create(r->context, &o, &r->job) == SML_OK, "%s", sml_error_detail());
  CHECK(r, r->job->shards[0].session.member.welcome.job == failed->shards[0].session.member.welcome.job);
  int32_t x = 1;
  CHECK(r, allreduce(r, &x, &x, 1, SML_INT32, SML_SUM) == SML_OK && x == 2, "%s", sml_error_detail());
}

static void a_failed_job_does_not_hide_its_successor(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  world_start(&w);
  pthread_barrier_init(&barrier, NULL, 2);
  world_run(&w, go_on_beside_a_failed_job);
  pthread_barrier_destroy(&barrier);
  world_stop(&w);
}

/* ---- joins that cannot be ---- */

static void *join_beside_another_rank(void *argument) {
  struct rank *r = argument;
  sml_job_options o = r->world->job_options;
  o.aggregator = r->world->address;
  o.rank = r->rank;
  o.world_size = 2;
  r->status = sml_job_create(r->context, &o, &r->job);
  snprintf(r->failure, sizeof r->failure, "%s", sml_error_detail());
  return NULL;
}

static void two_ranks_on_one_context_are_refused(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  w.job_options.join_timeout_ns = SML_NS_PER_S;
  world_start_aggd(&w);
  assert_int_equal(sml_context_create(NULL, &w.ranks[0].context), SML_OK);
  w.ranks[1].context = w.ranks[0].context;
  for (uint32_t r = 0; r < 2; r++)
    assert_int_equal(pthread_create(&w.ranks[r].thread, NULL, join_beside_another_rank, &w.ranks[r]), 0);
  uint32_t num_told = 0;
  for (uint32_t r = 0; r < 2; r++) {
    pthread_join(w.ranks[r].thread, NULL);
    assert_null(w.ranks[r].job);
    const bool is_told = w.ranks[r].status == SML_ERR_INVALID_ARGUMENT;
    assert_non_null(strstr(w.ranks[r].failure, is_told ? "context of its own" : "not joined"));
    num_told += is_told;
  }
  assert_int_equal(num_told, 1); /* the other one waits until its deadline: the rank may come elsewhere */
  w.ranks[1].context = NULL;
  world_stop(&w);
}

/* ---- processes that die ---- */

struct remote {
  pid_t pid;
  int to_child, from_child;
};

/* A rank in a process of its own, forked before there are threads and sockets to inherit. */
static void run_remote(int in, int out) {
  char address[80];
  sml_context *context;
  sml_job *job;
  float x[3] = {1, 2, 3};
  sml_operation *op;
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  if (read(in, address, sizeof address) != sizeof address) _exit(1);
  o.aggregator = address;
  o.rank = 2;
  o.world_size = 3;
  if (sml_context_create(NULL, &context) != SML_OK || sml_job_create(context, &o, &job) != SML_OK) _exit(2);
  if (sml_allreduce(job, x, x, 3, SML_FLOAT32, SML_SUM, NULL, &op) != SML_OK) _exit(3);
  if (sml_operation_wait(op, 20 * SML_NS_PER_S) != SML_OK || x[0] != 3) _exit(4);
  if (write(out, "x", 1) != 1) _exit(5);
  if (read(in, address, 1) == 1 && address[0] == 'x') sml_job_abort(job, "the loss is no number");
  _exit(0);
}

static void start_remote(struct remote *remote) {
  int down[2], up[2];
  assert_int_equal(pipe(down), 0);
  assert_int_equal(pipe(up), 0);
  remote->pid = fork();
  if (remote->pid == 0) {
    alarm(120); /* not longer than its parent, whatever happens */
    close(down[1]);
    close(up[0]);
    run_remote(down[0], up[1]);
  }
  close(down[0]);
  close(up[1]);
  remote->to_child = down[1];
  remote->from_child = up[0];
}

static void stop_remote(struct remote *remote) {
  kill(remote->pid, SIGKILL);
  waitpid(remote->pid, NULL, 0);
  close(remote->to_child);
  close(remote->from_child);
}

static struct remote remote;

static void join_two_of_three(struct rank *r) {
  sml_job_options o = r->world->job_options;
  o.aggregator = r->world->address;
  o.rank = r->rank;
  o.world_size = 3;
  CHECK(r, sml_context_create(NULL, &r->context) == SML_OK);
  CHECK(r, sml_job_create(r->context, &o, &r->job) == SML_OK, "%s", sml_error_detail());
  float x[3] = {1, 2, 3};
  CHECK(r, allreduce(r, x, x, 3, SML_FLOAT32, SML_SUM) == SML_OK && x[2] == 9, "%s", sml_error_detail());
}

static void lose_rank_2_while_waiting(struct rank *r) {
  static float data[2][5000];
  sml_operation *op;
  sml_error error = SML_ERROR_INIT;
  CHECK(r,
        sml_allreduce(r->job, data[r->rank], data[r->rank], 5000, SML_FLOAT32, SML_SUM, NULL, &op) == SML_OK);
  if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) kill(remote.pid, SIGKILL);
  const sml_status status = sml_operation_wait(op, 20 * SML_NS_PER_S);
  CHECK(r, status == SML_ERR_RANK_LOST, "%d %s", status, sml_error_detail());
  CHECK(r, sml_operation_error(op, &error) == SML_ERR_RANK_LOST && is_named(&error, 2));
  sml_operation_release(op);
}

static void hear_of_rank_2s_last_words(struct rank *r) {
  static float data[2][5000];
  sml_operation *op;
  CHECK(r,
        sml_allreduce(r->job, data[r->rank], data[r->rank], 5000, SML_FLOAT32, SML_SUM, NULL, &op) == SML_OK);
  if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
    CHECK(r, write(remote.to_child, "x", 1) == 1);
  const sml_status status = sml_operation_wait(op, 20 * SML_NS_PER_S);
  CHECK(r, status == SML_ERR_ABORTED, "%d %s", status, sml_error_detail());
  CHECK(r, strstr(sml_error_detail(), "rank 2") && strstr(sml_error_detail(), "the loss is no number"));
  sml_operation_release(op);
}

static void run_with_remote(void (*body)(struct rank *)) {
  struct world w;
  world_init(&w, 2);
  start_remote(&remote);
  world_start_aggd(&w);
  assert_int_equal(write(remote.to_child, w.address, sizeof w.address), sizeof w.address);
  world_run(&w, join_two_of_three);
  char byte;
  assert_int_equal(read(remote.from_child, &byte, 1), 1);
  pthread_barrier_init(&barrier, NULL, 2);
  world_run(&w, body);
  pthread_barrier_destroy(&barrier);
  stop_remote(&remote);
  world_stop(&w);
}

static void a_killed_rank_is_named_at_once(void **state) {
  (void)state;
  run_with_remote(lose_rank_2_while_waiting);
}
static void a_rank_may_abort_and_exit(void **state) {
  (void)state;
  run_with_remote(hear_of_rank_2s_last_words);
}

/* ---- anything at any time ---- */

static _Atomic uint64_t chaos_round;

/* Calls until something fails, and one rank makes sure that it does. What is checked: it ends, on every
 * rank, and an operation that did not fail has the right sum. */
static void wreak(struct rank *r) {
  struct sml_prng dice = {chaos_round}, mine = {chaos_round * 8 + r->rank};
  const uint32_t culprit = (uint32_t)sml_prng_below(&dice, 3), deed = (uint32_t)sml_prng_below(&dice, 4);
  const uint32_t when = (uint32_t)sml_prng_below(&dice, 40);
  float data[8][700];
  sml_operation *ops[8] = {NULL};
  sml_status status = SML_OK;
  for (uint32_t i = 0; status == SML_OK || status == SML_IN_PROGRESS; i++) {
    const uint32_t k = i % 8;
    if (ops[k] != NULL) {
      status = sml_operation_wait(ops[k], 15 * SML_NS_PER_S);
      sml_operation_release(ops[k]);
      ops[k] = NULL;
      CHECK(r, status != SML_IN_PROGRESS);
      CHECK(r, status != SML_OK || data[k][699] == 3, "%f", (double)data[k][699]);
      if (status != SML_OK) break;
    }
    if (r->rank == culprit && i == when) {
      if (deed == 0) sml_job_abort(r->job, "chaos");
      if (deed == 1) break;              /* destroys the job with operations outstanding */
      if (deed == 2) usleep(400 * 1000); /* late: the others time out */
    }
    const bool is_odd_one_out = r->rank == culprit && i == when && deed == 3;
    for (uint32_t e = 0; e < 700; e++) data[k][e] = 1;
    status = sml_allreduce(r->job, data[k], data[k], is_odd_one_out ? 699 : 700, SML_FLOAT32, SML_SUM, NULL,
                           &ops[k]);
    if (sml_prng_chance(&mine, 0.05)) usleep(1000);
  }
  for (uint32_t k = 0; k < 8; k++) {
    if (ops[k] == NULL || (r->rank == culprit && deed == 1)) continue;
    CHECK(r, sml_operation_wait(ops[k], 15 * SML_NS_PER_S) != SML_IN_PROGRESS);
  }
  if (r->rank == culprit && deed == 1) {
    for (uint32_t k = 0; k < 8; k++) sml_operation_release(ops[k]);
    sml_job_destroy(r->job);
    r->job = NULL;
    return;
  }
  for (uint32_t k = 0; k < 8; k++) sml_operation_release(ops[k]);
  CHECK(r, sml_job_error(r->job, NULL) < 0);
}

static void random_failures_end_every_rank(void **state) {
  (void)state;
  for (chaos_round = 1; chaos_round <= 24; chaos_round++) {
    struct world w;
    world_init(&w, 3);
    w.aggd_options.num_lanes = w.context_options.num_threads = 1 + chaos_round % 2;
    w.job_options.max_datagram_bytes = 1472;
    w.job_options.operation_timeout_ns = 200 * SML_NS_PER_MS;
    world_start(&w);
    world_run(&w, wreak);
    world_stop(&w);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_killed_aggregator_is_lost_at_once),
      cmocka_unit_test(a_killed_rank_is_named_at_once),
      cmocka_unit_test(a_rank_may_abort_and_exit),
      cmocka_unit_test(different_operations_name_both_ranks),
      cmocka_unit_test(abort_ends_every_rank),
      cmocka_unit_test(leaving_with_an_operation_outstanding_is_an_error_everywhere),
      cmocka_unit_test(another_job_is_not_touched),
      cmocka_unit_test(a_failed_job_does_not_hide_its_successor),
      cmocka_unit_test(two_ranks_on_one_context_are_refused),
      cmocka_unit_test(random_failures_end_every_rank),
  };
  setenv("SWITCHML_LEASE", "2", 1); /* also of the ranks in other processes */
  return cmocka_run_group_tests(tests, NULL, NULL);
}
