/* SPDX-License-Identifier: Apache-2.0
 * The public API against a real aggregator over loopback: right sums in every shape of call. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <unistd.h>

#include "lib/test_world.h"

#define LONG_ELEMS (SML_IS_SLOW_BUILD ? 20000u : 100000u)

/* ---- one call after the other ---- */

static void check_floats(struct rank *r, size_t count, sml_reduction reduction, bool in_place) {
  const uint32_t n = r->world->num_ranks;
  float *in = malloc((count + 2) * sizeof *in), *out = malloc((count + 2) * sizeof *out);
  float *result = in_place ? in : out;
  for (size_t i = 0; i < count; i++) in[i] = float_value(r->rank, i);
  result[count] = 12345; /* nothing is written behind the end */
  const sml_status status = allreduce(r, in, result, count, SML_FLOAT32, reduction);
  size_t num_wrong = 0;
  for (size_t i = 0; i < count; i++) {
    double sum = 0;
    for (uint32_t k = 0; k < n; k++) sum += (double)float_value(k, i);
    const float expected = (float)(reduction == SML_AVG ? sum / n : sum);
    num_wrong += result[i] != expected;
  }
  const bool is_overrun = result[count] != 12345;
  free(in);
  free(out);
  CHECK(r, status == SML_OK, "%s", sml_error_detail());
  CHECK(r, num_wrong == 0, "%zu of %zu wrong", num_wrong, count);
  CHECK(r, !is_overrun);
}

static void check_ints(struct rank *r, size_t count, bool in_place) {
  int32_t *in = malloc((count + 2) * sizeof *in), *out = malloc((count + 2) * sizeof *out);
  int32_t *result = in_place ? in : out;
  for (size_t i = 0; i < count; i++) in[i] = int_value(r->rank, i);
  result[count] = 12345;
  const sml_status status = allreduce(r, in, result, count, SML_INT32, SML_SUM);
  size_t num_wrong = 0;
  for (size_t i = 0; i < count; i++) {
    uint32_t sum = 0;
    for (uint32_t k = 0; k < r->world->num_ranks; k++) sum += (uint32_t)int_value(k, i);
    num_wrong += (uint32_t)result[i] != sum;
  }
  const bool is_overrun = result[count] != 12345;
  free(in);
  free(out);
  CHECK(r, status == SML_OK, "%s", sml_error_detail());
  CHECK(r, num_wrong == 0, "%zu of %zu wrong", num_wrong, count);
  CHECK(r, !is_overrun);
}

static void check_sizes(struct rank *r) {
  static const size_t counts[] = {1, 2, 3, 359, 360, 361, 2231, 2232, 2233, LONG_ELEMS, 7 * LONG_ELEMS + 1};
  for (size_t i = 0; i < SML_ARRAY_LEN(counts) && r->failure[0] == 0; i++) {
    check_floats(r, counts[i], SML_SUM, false);
    if (r->failure[0] == 0) check_floats(r, counts[i], SML_AVG, true);
    if (r->failure[0] == 0) check_ints(r, counts[i], i % 2 == 0);
  }
}

static void check_world(uint32_t num_ranks, uint32_t num_lanes, bool no_offload,
                        uint32_t max_datagram_bytes) {
  struct world w;
  world_init(&w, num_ranks);
  w.job_options.lease_ns = PATIENT_LEASE_NS;
  w.aggd_options.num_lanes = num_lanes;
  w.aggd_options.no_offload = no_offload;
  w.context_options.num_threads = num_lanes;
  w.context_options.no_offload = no_offload;
  w.job_options.max_datagram_bytes = max_datagram_bytes;
  world_start(&w);
  sml_stats stats = SML_STATS_INIT;
  assert_int_equal(sml_job_stats(w.ranks[0].job, &stats), SML_OK);
  assert_int_equal(stats.num_lanes, num_lanes);
  const char *check = getenv("SWITCHML_CHECK");
  const uint32_t check_bytes = check != NULL && check[0] == '1' ? 4 : 0;
  assert_int_equal(stats.chunk_bytes, (max_datagram_bytes ? max_datagram_bytes : 8960) - 32 - check_bytes);
  if (no_offload) assert_int_equal(stats.has_segmentation_offload, 0);
  world_run(&w, check_sizes);
  assert_int_equal(sml_job_stats(w.ranks[0].job, &stats), SML_OK);
  assert_int_equal(stats.operations_completed, 33);
  assert_int_equal(stats.operations_failed, 0);
  assert_true(stats.tx_bytes > 0 && stats.rx_bytes > 0 && stats.chunks_completed > 0 &&
              stats.system_calls > 0);
  world_stop(&w);
}

static void two_ranks_one_lane(void **state) {
  (void)state;
  check_world(2, 1, false, 0);
}
static void three_ranks_three_lanes(void **state) {
  (void)state;
  check_world(3, 3, false, 0);
}
static void four_ranks_small_datagrams(void **state) {
  (void)state;
  check_world(4, 1, false, 1472);
}
static void three_ranks_three_lanes_without_offload(void **state) {
  (void)state;
  check_world(3, 3, true, 1472);
}
static void over_ipv6(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  w.host = "[::1]:0";
  world_start(&w);
  world_run(&w, check_sizes);
  world_stop(&w);
}

/* It answers from 127.0.0.1, whatever address of the host was asked. */
static void an_aggregator_on_all_interfaces(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  w.host = "0.0.0.0:0";
  world_start_aggd(&w);
  struct sml_addr addr;
  sml_aggd_addr(w.aggd, &addr);
  snprintf(w.address, sizeof w.address, "127.0.0.2:%u", sml_addr_port(&addr));
  world_join(&w);
  world_run(&w, check_sizes);
  world_stop(&w);
}

static void through_faults(void **state) {
  (void)state;
  setenv("SWITCHML_FAULTS", "loss=0.02,duplicate=0.02,reorder=0.05,corrupt=0.01,seed=3", 1);
  struct world w;
  world_init(&w, 3);
  world_start(&w);
  unsetenv("SWITCHML_FAULTS");
  world_run(&w, check_sizes);
  sml_stats stats = SML_STATS_INIT;
  assert_int_equal(sml_job_stats(w.ranks[0].job, &stats), SML_OK);
  assert_true(stats.dropped_packets > 0);
  world_stop(&w);
}

/* ---- many at once ---- */

#define NUM_FLYING 200u

static void fly(struct rank *r) {
  static const size_t counts[] = {1, 5000, 0, 17, 40000, 300};
  sml_operation *ops[NUM_FLYING] = {NULL};
  int32_t *data[NUM_FLYING];
  const char *problem = NULL;
  for (uint32_t k = 0; k < NUM_FLYING; k++) {
    const size_t count = counts[k % SML_ARRAY_LEN(counts)];
    data[k] = malloc((count + 1) * sizeof(int32_t));
    for (size_t i = 0; i < count; i++) data[k][i] = int_value(r->rank, i + k);
    sml_operation_options o = SML_OPERATION_OPTIONS_INIT;
    o.key = k;
    if (sml_allreduce(r->job, data[k], data[k], count, SML_INT32, SML_SUM, &o, &ops[k]) != SML_OK)
      problem = "submit";
  }
  for (uint32_t k = NUM_FLYING; k-- > 0 && problem == NULL;) {
    const size_t count = counts[k % SML_ARRAY_LEN(counts)];
    if (sml_operation_wait(ops[k], 30 * SML_NS_PER_S) != SML_OK) problem = "wait";
    for (size_t i = 0; i < count && problem == NULL; i++) {
      uint32_t sum = 0;
      for (uint32_t rank = 0; rank < r->world->num_ranks; rank++) sum += (uint32_t)int_value(rank, i + k);
      if ((uint32_t)data[k][i] != sum) problem = "sum";
    }
  }
  for (uint32_t k = 0; k < NUM_FLYING; k++) {
    sml_operation_release(ops[k]);
    free(data[k]);
  }
  CHECK(r, problem == NULL, "%s: %s", problem, sml_error_detail());
}

static void many_in_flight(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 3);
  w.aggd_options.num_lanes = 2;
  w.context_options.num_threads = 2;
  w.context_options.num_operations = 256;
  world_start(&w);
  world_run(&w, fly);
  world_run(&w, fly);
  world_stop(&w);
}

static float detached_data[2][20][3000];

static void detach(struct rank *r) {
  for (uint32_t k = 0; k < 20; k++) {
    sml_operation *op;
    float *data = detached_data[r->rank][k];
    for (size_t i = 0; i < 3000; i++) data[i] = float_value(r->rank, i);
    CHECK(r, sml_allreduce(r->job, data, data, 3000, SML_FLOAT32, SML_SUM, NULL, &op) == SML_OK);
    sml_operation_release(op); /* most have not ended */
  }
  float last = 1;
  CHECK(r, allreduce(r, &last, &last, 1, SML_FLOAT32, SML_SUM) == SML_OK && last == 2);
  sml_stats stats = SML_STATS_INIT;
  for (uint32_t i = 0; i < 500 && stats.operations_completed < 21; i++) {
    usleep(10000);
    sml_job_stats(r->job, &stats);
  }
  CHECK(r, stats.operations_completed == 21);
  for (uint32_t k = 0; k < 20; k++)
    for (size_t i = 0; i < 3000; i++)
      CHECK(r, detached_data[r->rank][k][i] == float_value(0, i) + float_value(1, i));
}

static void released_operations_end_by_themselves(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  w.context_options.num_operations = 32;
  world_start(&w);
  for (uint32_t i = 0; i < 4; i++) {
    world_run(&w, detach);
    world_stop(&w); /* the pool is whole again: a new world takes as many */
    world_init(&w, 2);
    w.context_options.num_operations = 32;
    world_start(&w);
  }
  world_stop(&w);
}

/* ---- waiting ---- */

static pthread_barrier_t barrier;

static void wait_for_a_late_rank(struct rank *r) {
  float x = 1;
  sml_operation *op;
  pthread_barrier_wait(&barrier);
  if (r->rank == 1) usleep(300 * 1000);
  CHECK(r, sml_allreduce(r->job, &x, &x, 1, SML_FLOAT32, SML_SUM, NULL, &op) == SML_OK);
  if (r->rank == 0) {
    CHECK(r, sml_operation_test(op) == SML_IN_PROGRESS);
    const uint64_t begin_ns = sml_clock_ns();
    CHECK(r, sml_operation_wait(op, 50 * SML_NS_PER_MS) == SML_IN_PROGRESS);
    CHECK(r, sml_clock_ns() - begin_ns >= 50 * SML_NS_PER_MS);
    sml_error error = SML_ERROR_INIT;
    CHECK(r, sml_operation_error(op, &error) == SML_IN_PROGRESS && error.status == SML_OK);
  }
  CHECK(r, sml_operation_wait(op, UINT64_MAX) == SML_OK);
  CHECK(r, x == 2);
  sml_operation_release(op);
}

static void a_wait_that_times_out_ends_nothing(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  world_start(&w);
  pthread_barrier_init(&barrier, NULL, 2);
  world_run(&w, wait_for_a_late_rank);
  pthread_barrier_destroy(&barrier);
  world_stop(&w);
}

/* ---- several jobs, several threads ---- */

static void use_a_second_job(struct rank *r) {
  sml_job_options o = r->world->job_options;
  o.aggregator = r->world->address;
  o.name = r->rank < 2 ? "low" : "high"; /* two sub-groups beside the whole */
  o.rank = r->rank % 2;
  o.world_size = 2;
  sml_job *whole = r->job, *group;
  CHECK(r, sml_job_create(r->context, &o, &group) == SML_OK, "%s", sml_error_detail());
  for (uint32_t i = 0; i < 50; i++) {
    float a = (float)r->rank, b = 1;
    sml_operation *op_a, *op_b;
    CHECK(r, sml_allreduce(group, &a, &a, 1, SML_FLOAT32, SML_SUM, NULL, &op_a) == SML_OK);
    CHECK(r, sml_allreduce(whole, &b, &b, 1, SML_FLOAT32, SML_SUM, NULL, &op_b) == SML_OK);
    CHECK(r, sml_operation_wait(op_b, 10 * SML_NS_PER_S) == SML_OK && b == 4);
    CHECK(r, sml_operation_wait(op_a, 10 * SML_NS_PER_S) == SML_OK && a == (r->rank < 2 ? 1 : 5));
    sml_operation_release(op_a);
    sml_operation_release(op_b);
  }
  if (r->rank % 2 == 0) sml_job_destroy(group); /* the others leave it to the context */
}

static void several_jobs_share_a_context(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 4);
  world_start(&w);
  world_run(&w, use_a_second_job);
  world_stop(&w);
}

/* The aggregator sees the ranks leave one by one, so the first may be back before the last has gone. */
static void join_again_and_again(struct rank *r) {
  sml_job_options o = r->world->job_options;
  o.aggregator = r->world->address;
  o.rank = r->rank;
  o.world_size = r->world->num_ranks;
  for (int32_t i = 0; i < 40; i++) {
    sml_job_destroy(r->job);
    r->job = NULL;
    CHECK(r, sml_job_create(r->context, &o, &r->job) == SML_OK, "%s", sml_error_detail());
    int32_t x = i;
    CHECK(r, allreduce(r, &x, &x, 1, SML_INT32, SML_SUM) == SML_OK, "%s", sml_error_detail());
    CHECK(r, x == 3 * i);
  }
}

static void jobs_of_one_name_follow_each_other(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 3);
  world_start(&w);
  world_run(&w, join_again_and_again);
  world_stop(&w);
}

/* ---- epochs ---- */

static void sum_across_epochs(struct rank *r) {
  const uint32_t first_epoch = r->job->state.start.epoch;
  for (uint32_t i = 0; i < 5 && r->failure[0] == 0; i++) {
    fly(r);
    if (r->failure[0] == 0) check_floats(r, 3000, SML_SUM, i % 2);
  }
  if (r->failure[0] != 0) return;
  CHECK(r, r->job->state.start.epoch != first_epoch);
  CHECK(r, r->job->state.start.first_phase == 2);
}

static void phases_near_their_end_move_the_job_to_a_new_epoch(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 3);
  w.aggd_options.num_lanes = 2;
  w.aggd_options.first_phase = UINT32_MAX - 601;
  w.aggd_options.first_chunk = UINT32_MAX - 100; /* wraps */
  w.context_options.num_threads = 2;
  w.context_options.num_operations = 256;
  w.job_options.num_slots = 16;
  w.job_options.max_datagram_bytes = 1472;
  world_start(&w);
  world_run(&w, sum_across_epochs);
  world_stop(&w);
}

/* ---- joining ---- */

static void *start_late(void *argument) {
  struct world *late = argument;
  usleep(400 * 1000);
  world_start_aggd(late);
  return NULL;
}

static void an_aggregator_may_start_later(void **state) {
  (void)state;
  struct world w, late;
  world_init(&w, 2);
  world_start_aggd(&w);
  sml_aggd_stop(w.aggd); /* its port is known and free now */
  w.aggd = NULL;
  world_init(&late, 0);
  late.host = w.address;
  pthread_t thread;
  pthread_create(&thread, NULL, start_late, &late);
  world_join(&w);
  pthread_join(thread, NULL);
  world_run(&w, check_sizes);
  world_stop(&w);
  world_stop(&late);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(two_ranks_one_lane),
      cmocka_unit_test(three_ranks_three_lanes),
      cmocka_unit_test(four_ranks_small_datagrams),
      cmocka_unit_test(three_ranks_three_lanes_without_offload),
      cmocka_unit_test(over_ipv6),
      cmocka_unit_test(an_aggregator_on_all_interfaces),
      cmocka_unit_test(through_faults),
      cmocka_unit_test(many_in_flight),
      cmocka_unit_test(released_operations_end_by_themselves),
      cmocka_unit_test(a_wait_that_times_out_ends_nothing),
      cmocka_unit_test(several_jobs_share_a_context),
      cmocka_unit_test(jobs_of_one_name_follow_each_other),
      cmocka_unit_test(phases_near_their_end_move_the_job_to_a_new_epoch),
      cmocka_unit_test(an_aggregator_may_start_later),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
