/* SPDX-License-Identifier: Apache-2.0
 * Jobs whose ranks are all on one host, and which add up in shared memory: the same bits as over the network, the
 * same order, the same errors. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/test_calls.h"

/* ---- the same bits ---- */

static uint64_t hashes[2][MAX_RANKS]; /* [shared memory][rank] */

static size_t mixed_count(uint64_t bits, uint32_t i) {
  static const size_t limits[] = {1, 8, 400, 3000, 5000, 20000, 60000};
  (void)i;
  return 1 + bits % limits[(bits >> 32) % SML_ARRAY_LEN(limits)];
}

static void sum_all_kinds(struct rank *r) {
  static const struct mixed_calls calls = {.num = 120, .max_elems = 60000, .count = mixed_count};
  sum_mixed(r, &calls, &hashes[stats_of(r).num_local_ranks != 0][r->rank]);
}

static void same_bits_as_over_the_network(void **state) {
  (void)state;
  for (uint32_t no_shared_memory = 0; no_shared_memory < 2; no_shared_memory++) {
    struct world w;
    world_init(&w, 3);
    w.job_options.no_shared_memory = no_shared_memory;
    w.job_options.max_datagram_bytes = 1472;
    w.job_options.float64_bits = 96;
    world_start(&w);
    world_run(&w, sum_all_kinds);
    world_stop(&w);
  }
  assert_true(hashes[0][0] != 0);
  for (uint32_t r = 0; r < 3; r++) {
    assert_true(hashes[0][r] == hashes[0][0]);
    assert_true(hashes[1][r] == hashes[0][0]);
  }
}

/* ---- who shares ---- */

static void expect_network(struct rank *r) {
  float x = 1;
  CHECK(r, stats_of(r).num_local_ranks == 0);
  CHECK(r, allreduce(r, &x, &x, 1, SML_FLOAT32, SML_SUM) == SML_OK && x == 2);
}

static void one_that_does_not_want_is_enough(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  w.unwilling = 1u << 1;
  world_start(&w);
  world_run(&w, expect_network);
  world_stop(&w);
  world_init(&w, 2);
  w.job_options.retry_ns = SML_NS_PER_S;
  world_start(&w);
  world_run(&w, expect_network);
  world_stop(&w);
}

/* ---- who works ---- */

/* Nobody waits: the helper does. Then a caller who only tests. */
static void only_test(struct rank *r) {
  let_helpers_work(r);
  if (r->failure[0] != 0) return;
  const sml_stats stats = stats_of(r);
  CHECK(r, stats.num_local_ranks == 3 && stats.tx_packets == 0);
  CHECK(r, stats.chunks_completed >= 20 && stats.tensor_bytes == 20 * 12000);
  static int32_t data[MAX_RANKS][3000];
  int32_t *x = data[r->rank];
  sml_operation *op;
  sml_status status;
  CHECK(r, sml_allreduce(r->job, x, x, 3000, SML_INT32, SML_SUM, NULL, &op) == SML_OK);
  while ((status = sml_operation_test(op)) == SML_IN_PROGRESS) sched_yield();
  sml_operation_release(op);
  CHECK(r, status == SML_OK);
}

static void operations_end_by_themselves(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 3);
  world_start(&w);
  world_run(&w, only_test);
  world_stop(&w);
}

/* Two threads of each rank wait for operations in turn, the later one first: either may have to work for both. */
static void *wait_for_mine(void *argument) {
  sml_operation *op = argument;
  const sml_status status = sml_operation_wait(op, 30 * SML_NS_PER_S);
  return status == SML_OK ? NULL : argument;
}

static void wait_on_threads(struct rank *r) {
  static int32_t data[MAX_RANKS][2][40000];
  for (uint32_t i = 0; i < 20; i++) {
    sml_operation *ops[2];
    pthread_t threads[2];
    for (uint32_t k = 0; k < 2; k++) {
      data[r->rank][k][0] = (int32_t)k + 1;
      CHECK(r,
            sml_allreduce(r->job, data[r->rank][k], data[r->rank][k], k == 0 ? 40000 : 10, SML_INT32, SML_SUM, NULL,
                          &ops[k]) == SML_OK);
    }
    for (uint32_t k = 2; k-- > 0;) CHECK(r, pthread_create(&threads[k], NULL, wait_for_mine, ops[k]) == 0);
    void *failed[2];
    for (uint32_t k = 0; k < 2; k++) pthread_join(threads[k], &failed[k]);
    for (uint32_t k = 0; k < 2; k++) sml_operation_release(ops[k]);
    CHECK(r, failed[0] == NULL && failed[1] == NULL && data[r->rank][0][0] == 2 && data[r->rank][1][0] == 4);
  }
}

static void several_threads_wait(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  world_start(&w);
  world_run(&w, wait_on_threads);
  world_stop(&w);
}

/* ---- what goes wrong ---- */

static void differ_on_rank_1(struct rank *r) {
  call_differently(r, 1, 0);
}

static void different_calls_name_two_ranks(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 3);
  world_start(&w);
  world_run(&w, differ_on_rank_1);
  world_stop(&w);
}

static void abort_on_rank_0(struct rank *r) {
  abort_while_others_wait(r, 0);
}

static void an_abort_ends_waits(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 3);
  world_start(&w);
  world_run(&w, abort_on_rank_0);
  world_stop(&w);
}

/* ---- a process that is killed or stopped in the middle ---- */

static void lose_child_by(int signal_number) {
  struct world w;
  world_init(&w, 2);
  lose_a_child(&w, signal_number);
}

static void a_killed_rank_is_lost(void **state) {
  (void)state;
  lose_child_by(SIGKILL);
}
static void a_stopped_rank_is_lost(void **state) {
  (void)state;
  lose_child_by(SIGSTOP);
}

int main(void) {
  setenv("SWITCHML_SHARED_MEMORY", "1", 1);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_killed_rank_is_lost),
      cmocka_unit_test(a_stopped_rank_is_lost),
      cmocka_unit_test(same_bits_as_over_the_network),
      cmocka_unit_test(one_that_does_not_want_is_enough),
      cmocka_unit_test(operations_end_by_themselves),
      cmocka_unit_test(several_threads_wait),
      cmocka_unit_test(different_calls_name_two_ranks),
      cmocka_unit_test(an_abort_ends_waits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
