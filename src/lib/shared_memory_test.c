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

#include "lib/test_world.h"

static bool names(const sml_error *error, uint32_t rank) {
  for (uint32_t i = 0; i < error->num_ranks; i++)
    if (error->ranks[i] == rank) return true;
  return false;
}

static uint32_t num_local_ranks(const struct rank *r) {
  sml_stats stats = SML_STATS_INIT;
  return sml_job_stats(r->job, &stats) == SML_OK ? stats.num_local_ranks : UINT32_MAX;
}

/* ---- the same bits ---- */

#define NUM_MIXED 120u
#define MAX_MIXED_ELEMS 60000u
static uint64_t hashes[2][MAX_RANKS]; /* [shared memory][rank] */

static uint64_t hash_bytes(uint64_t h, const uint8_t *bytes, size_t num_bytes) {
  for (size_t i = 0; i + 8 <= num_bytes; i += 8) {
    uint64_t word;
    memcpy(&word, bytes + i, 8);
    h = sml_mix64(h + word);
  }
  for (size_t i = num_bytes & ~(size_t)7; i < num_bytes; i++) h = sml_mix64(h + bytes[i] + 1);
  return h;
}

static size_t mixed_count(uint64_t bits) {
  static const size_t limits[] = {1, 8, 400, 3000, 5000, 20000, MAX_MIXED_ELEMS};
  return 1 + bits % limits[(bits >> 32) % SML_ARRAY_LEN(limits)];
}

/* The same sequence on all ranks: of all sizes, types, alignments; in place or not; some in flight together. */
static void sum_all_kinds(struct rank *r) {
  enum { DEPTH = 3 };
  uint8_t *memory[DEPTH], *out[DEPTH];
  sml_operation *ops[DEPTH] = {NULL};
  size_t counts[DEPTH];
  struct sml_prng prng = {99};
  uint64_t h = 1;
  for (uint32_t k = 0; k < DEPTH; k++) memory[k] = malloc(2 * (4 * MAX_MIXED_ELEMS + 64));
  for (uint32_t i = 0; i < NUM_MIXED + DEPTH; i++) {
    const uint32_t k = i % DEPTH;
    if (ops[k] != NULL) {
      CHECK(r, sml_operation_wait(ops[k], 30 * SML_NS_PER_S) == SML_OK, "%s", sml_error_detail());
      sml_operation_release(ops[k]);
      h = hash_bytes(h, out[k], counts[k] * 4);
    }
    ops[k] = NULL;
    const uint64_t bits = sml_prng_next(&prng);
    if (i >= NUM_MIXED) continue;
    const bool is_float = bits >> 50 & 1;
    uint8_t *in = memory[k] + (bits >> 40) % 13;
    counts[k] = mixed_count(bits);
    out[k] = bits >> 51 & 1 ? in : memory[k] + 4 * MAX_MIXED_ELEMS + 64 + (bits >> 44) % 13;
    for (size_t e = 0; e < counts[k]; e++) {
      uint32_t value = (uint32_t)sml_mix64(bits + e * 8 + r->rank);
      if (is_float && value % 50021 != 0) value &= 0xbfffffffu; /* some NaN and Inf */
      memcpy(in + 4 * e, &value, 4);
    }
    CHECK(r,
          sml_allreduce(r->job, in, out[k], counts[k], is_float ? SML_FLOAT32 : SML_INT32,
                        is_float && (bits >> 52 & 1) ? SML_AVG : SML_SUM, NULL, &ops[k]) == SML_OK,
          "%s", sml_error_detail());
  }
  for (uint32_t k = 0; k < DEPTH; k++) free(memory[k]);
  hashes[num_local_ranks(r) != 0][r->rank] = h;
}

static void same_bits_as_over_the_network(void **state) {
  (void)state;
  for (uint32_t no_shared_memory = 0; no_shared_memory < 2; no_shared_memory++) {
    struct world w;
    world_init(&w, 3);
    w.job_options.no_shared_memory = no_shared_memory;
    w.job_options.max_datagram_bytes = 1472;
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
  CHECK(r, num_local_ranks(r) == 0);
  CHECK(r, allreduce(r, &x, &x, 1, SML_FLOAT32, SML_SUM) == SML_OK && x == 2);
}

static void join_unwilling(struct rank *r) {
  sml_job_options o = r->world->job_options;
  o.aggregator = r->world->address;
  o.rank = r->rank;
  o.world_size = 2;
  o.no_shared_memory = r->rank == 1;
  CHECK(r, sml_context_create(NULL, &r->context) == SML_OK);
  CHECK(r, sml_job_create(r->context, &o, &r->job) == SML_OK, "%s", sml_error_detail());
  expect_network(r);
}

static void one_that_does_not_want_is_enough(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  world_start_aggd(&w);
  world_run(&w, join_unwilling);
  world_stop(&w);
  world_init(&w, 2);
  w.job_options.retry_ns = SML_NS_PER_S;
  world_start(&w);
  world_run(&w, expect_network);
  world_stop(&w);
}

/* ---- who works ---- */

/* Nobody waits: the helper does. Then a caller who only tests. */
static void let_the_helper_work(struct rank *r) {
  static int32_t data[MAX_RANKS][20][3000];
  sml_operation *ops[20];
  for (uint32_t i = 0; i < 20; i++) {
    data[r->rank][i][2999] = (int32_t)i;
    CHECK(r,
          sml_allreduce(r->job, data[r->rank][i], data[r->rank][i], 3000, SML_INT32, SML_SUM, NULL, &ops[i]) ==
              SML_OK);
  }
  for (uint32_t i = 0; i < 20; i += 2) sml_operation_release(ops[i]);
  sml_stats stats = SML_STATS_INIT;
  for (uint32_t ms = 0; ms < 10000 && stats.operations_completed < 20; ms++) {
    usleep(1000);
    sml_job_stats(r->job, &stats);
  }
  CHECK(r, stats.operations_completed == 20 && stats.num_local_ranks == 3 && stats.tx_packets == 0);
  CHECK(r, stats.chunks_completed >= 20 && stats.tensor_bytes == 20 * 12000);
  for (uint32_t i = 1; i < 20; i += 2) {
    CHECK(r, sml_operation_test(ops[i]) == SML_OK && data[r->rank][i][2999] == (int32_t)(3 * i));
    sml_operation_release(ops[i]);
  }
  sml_status status;
  int32_t *x = data[r->rank][0];
  CHECK(r, sml_allreduce(r->job, x, x, 3000, SML_INT32, SML_SUM, NULL, &ops[0]) == SML_OK);
  while ((status = sml_operation_test(ops[0])) == SML_IN_PROGRESS) sched_yield();
  sml_operation_release(ops[0]);
  CHECK(r, status == SML_OK);
}

static void operations_end_by_themselves(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 3);
  world_start(&w);
  world_run(&w, let_the_helper_work);
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

/* Rank 1 calls something else, in the second of two operations that are outstanding. */
static void call_differently(struct rank *r) {
  static float data[MAX_RANKS][2][30000];
  sml_operation *ops[2];
  for (uint32_t k = 0; k < 2; k++) {
    const size_t count = k == 1 && r->rank == 1 ? 29999 : 30000;
    float *x = data[r->rank][k];
    CHECK(r, sml_allreduce(r->job, x, x, count, SML_FLOAT32, SML_SUM, NULL, &ops[k]) == SML_OK);
  }
  const sml_status last = sml_operation_wait(ops[1], 20 * SML_NS_PER_S);
  sml_error error = SML_ERROR_INIT;
  const bool is_right = last == SML_ERR_MISMATCH && sml_operation_test(ops[0]) == SML_OK &&
                        sml_operation_error(ops[1], &error) == SML_ERR_MISMATCH && error.num_ranks == 2 &&
                        names(&error, 0) && names(&error, 1);
  for (uint32_t k = 0; k < 2; k++) sml_operation_release(ops[k]);
  CHECK(r, is_right, "%d %s", last, error.detail);
}

static void different_calls_name_two_ranks(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 3);
  world_start(&w);
  world_run(&w, call_differently);
  world_stop(&w);
}

static void abort_while_others_wait(struct rank *r) {
  static float data[MAX_RANKS][500000];
  sml_operation *op = NULL;
  if (r->rank == 0) {
    usleep(50 * 1000);
    sml_job_abort(r->job, "enough");
    return;
  }
  CHECK(r,
        sml_allreduce(r->job, data[r->rank], data[r->rank], 500000, SML_FLOAT32, SML_SUM, NULL, &op) == SML_OK);
  if (r->rank == 2) { /* and one leaves it to the helper */
    for (uint32_t i = 0; i < 10000 && sml_operation_test(op) == SML_IN_PROGRESS; i++) usleep(1000);
  }
  const sml_status status = sml_operation_wait(op, 20 * SML_NS_PER_S);
  sml_error error = SML_ERROR_INIT;
  sml_operation_error(op, &error);
  sml_operation_release(op);
  CHECK(r, status == SML_ERR_ABORTED && names(&error, 0) && strstr(error.detail, "enough") != NULL, "%s",
        error.detail);
}

static void an_abort_ends_waits(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 3);
  world_start(&w);
  world_run(&w, abort_while_others_wait);
  world_stop(&w);
}

/* ---- a process that is killed or stopped in the middle ---- */

#define LARGE_ELEMS 1000000u

static sml_status sum_for_ever(sml_job *job, float *data, sml_error *error_out) {
  sml_status status = SML_OK;
  for (uint32_t i = 0; i < 100000 && status == SML_OK; i++) {
    sml_operation *op;
    status = sml_allreduce(job, data, data, LARGE_ELEMS, SML_FLOAT32, SML_AVG, NULL, &op);
    if (status != SML_OK) break;
    status = sml_operation_wait(op, 30 * SML_NS_PER_S);
    sml_operation_release(op);
  }
  sml_job_error(job, error_out);
  return status;
}

static void run_child(int address_fd, const sml_job_options *options) {
  char address[80] = {0};
  sml_context *context;
  sml_job *job;
  sml_error error = SML_ERROR_INIT;
  sml_job_options o = *options;
  alarm(60);
  if (read(address_fd, address, sizeof address - 1) <= 0) _exit(1);
  o.aggregator = address;
  o.rank = 2;
  o.world_size = 3;
  if (sml_context_create(NULL, &context) != SML_OK || sml_job_create(context, &o, &job) != SML_OK) _exit(2);
  sum_for_ever(job, calloc(LARGE_ELEMS, sizeof(float)), &error);
  _exit(0);
}

static void join_with_child(struct rank *r) {
  sml_job_options o = r->world->job_options;
  o.aggregator = r->world->address;
  o.rank = r->rank;
  o.world_size = 3;
  CHECK(r, sml_context_create(NULL, &r->context) == SML_OK);
  CHECK(r, sml_job_create(r->context, &o, &r->job) == SML_OK, "%s", sml_error_detail());
  CHECK(r, num_local_ranks(r) == 3);
}

static pid_t child;
static int signal_number;

static void lose_the_child(struct rank *r) {
  static float data[2][LARGE_ELEMS];
  sml_error error = SML_ERROR_INIT;
  if (r->rank == 0) {
    sml_operation *op;
    CHECK(r, sml_allreduce(r->job, data[0], data[0], LARGE_ELEMS, SML_FLOAT32, SML_AVG, NULL, &op) == SML_OK);
    CHECK(r, sml_operation_wait(op, 30 * SML_NS_PER_S) == SML_OK, "%s", sml_error_detail());
    sml_operation_release(op);
    kill(child, signal_number);
  }
  const sml_status status = sum_for_ever(r->job, data[r->rank], &error);
  CHECK(r, status == SML_ERR_RANK_LOST && names(&error, 2), "%d %s", status, error.detail);
}

static void lose_child_by(int number) {
  struct world w;
  int address[2];
  world_init(&w, 2);
  w.job_options.lease_ns = 300 * SML_NS_PER_MS;
  assert_int_equal(pipe(address), 0);
  child = fork(); /* before there are threads */
  if (child == 0) run_child(address[0], &w.job_options);
  world_start_aggd(&w);
  assert_int_equal(write(address[1], w.address, strlen(w.address)), strlen(w.address));
  signal_number = number;
  world_run(&w, join_with_child);
  world_run(&w, lose_the_child);
  world_stop(&w);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  close(address[0]);
  close(address[1]);
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
