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

#include "core/wire.h"
#include "lib/exact_operation.h"
#include "lib/test_keeper.h"
#include "lib/test_world.h"
#include "quant/exact.h"

static struct keeper keeper;
static pthread_barrier_t barrier;

static bool (*drop)(void *user, const uint8_t *data, uint32_t num_bytes); /* at the aggregator; NULL: nothing */

static void run_failing(uint32_t num_ranks, uint64_t retry_ms, void (*body)(struct rank *)) {
  struct world w;
  world_init(&w, num_ranks);
  w.aggd_options.faults.drop = drop;
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
    CHECK(r, sml_allreduce(r->job, data[r->rank], data[r->rank], 9000, SML_FLOAT32, SML_SUM, NULL, op_out) == SML_OK,
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
  CHECK(r, r->failure[0] != 0 || strstr(sml_error_detail(), "Connection refused") != NULL, "%s", sml_error_detail());
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

/* Two pieces, the second one of a block: its codes are summed while a chunk of the first one's is lost again and
 * again. */
static float of_two_pieces[2][SML_EXACT_PIECE_ELEMS + SML_BLOCK_ELEMS];

static bool lose_the_first_slot(void *user, const uint8_t *data, uint32_t num_bytes) {
  (void)user;
  const uint8_t type = num_bytes < SML_HEADER_BYTES ? 0 : data[0] & 0xf;
  return (type == SML_PACKET_UPDATE || type == SML_PACKET_PROBE) && sml_load_be16(data + 8) == 1 &&
         sml_load_be16(data + 12) == 0;
}

static void await_codes(struct rank *r) {
  struct sml_exact exact;
  sml_exact_init(&exact, SML_FLOAT32, 2, sml_quant_select(NULL));
  const uint64_t chunk_bytes = stats_of(r).chunk_bytes;
  const uint64_t first_bytes = 4 * (uint64_t)exact.code_lanes * (SML_EXACT_PIECE_ELEMS / SML_BLOCK_ELEMS);
  const uint64_t num_but_one = sml_div_ceil(first_bytes, chunk_bytes);
  const uint64_t deadline_ns = sml_clock_ns() + 20 * SML_NS_PER_S;
  while (stats_of(r).chunks_completed < num_but_one && sml_clock_ns() < deadline_ns) usleep(1000);
  CHECK(r, stats_of(r).chunks_completed == num_but_one, "%llu", (unsigned long long)stats_of(r).chunks_completed);
}

static void start_rank_1_anew(struct rank *r) {
  const sml_operation_options exactly = {.struct_bytes = sizeof exactly, .exact = 1};
  float *data = of_two_pieces[r->rank];
  sml_operation *op;
  CHECK(
      r,
      sml_allreduce(r->job, data, data, SML_ARRAY_LEN(of_two_pieces[0]), SML_FLOAT32, SML_SUM, &exactly, &op) == SML_OK,
      "%s", sml_error_detail());
  await_codes(r);
  if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) keeper_signal(&keeper, SIGKILL);
  pthread_barrier_wait(&barrier);
  if (r->rank == 0) {
    check_fails(r, op, 15000, SML_ERR_REFUSED, "rank 1 was started anew");
    return;
  }
  sml_operation_release(op);
  sml_job_destroy(r->job);
  r->job = NULL;
  keeper_start_again(&keeper);
  sml_job_options o = r->world->job_options;
  o.aggregator = r->world->address;
  o.rank = 1;
  o.world_size = 2;
  CHECK(r, sml_job_create(r->context, &o, &r->job) == SML_ERR_REFUSED, "%s", sml_error_detail());
  CHECK(r, strstr(sml_error_detail(), "rank 1 was started anew") != NULL, "%s", sml_error_detail());
}

/* Whoever has the codes of a piece has decided by them how its lanes go, and a new rank may bring other inputs. */
static void codes_of_an_exact_sum_are_a_result(void **state) {
  (void)state;
  drop = lose_the_first_slot;
  run_failing(2, 20000, start_rank_1_anew);
  drop = NULL;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_aggregator_that_stays_away_is_an_error),
      cmocka_unit_test(destroying_meanwhile_ends_every_rank),
      cmocka_unit_test(a_fork_meanwhile_changes_nothing),
      cmocka_unit_test(codes_of_an_exact_sum_are_a_result),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
