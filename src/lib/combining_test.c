/* SPDX-License-Identifier: Apache-2.0
 * Jobs over several hosts, some with several ranks, which contribute as one: the bits of the network, one tensor from
 * each host, and errors that name ranks. The hosts are this one under several names. */
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
#include "meet/job_settings.h"
#include "method/combine.h"

static void start_hosts(struct world *w, const char *hosts) {
  w->hosts = hosts;
  world_start(w);
}

/* ---- the same bits ---- */

static uint64_t hashes[MAX_RANKS];

static size_t mixed_count(uint64_t bits, uint32_t i) {
  static const size_t limits[] = {1, 8, 400, 3000, 5000, 20000, 60000};
  if (i == 7) return 1800000 - 5; /* four pieces */
  if (i == 23 || i == 24) return 524288 + bits % 20000;
  return 1 + bits % limits[(bits >> 32) % SML_ARRAY_LEN(limits)];
}

static void sum_all_kinds(struct rank *r) {
  static const struct mixed_calls calls = {
      .num = SML_IS_SLOW_BUILD ? 30 : 60, .max_elems = 1800000, .count = mixed_count};
  sum_mixed(r, &calls, &hashes[r->rank]);
}

/* The hash of all ranks. */
static uint64_t run_kinds(const char *names, bool is_combining, uint32_t num_threads, uint32_t is_checked) {
  struct world w;
  world_init(&w, (uint32_t)strlen(names));
  w.job_options.lease_ns = PATIENT_LEASE_NS;
  w.context_options.num_threads = num_threads;
  w.job_options.no_shared_memory = !is_combining;
  w.job_options.check = is_checked;
  w.job_options.float_bits = is_checked ? 16 : 0;
  w.job_options.float64_bits = is_checked ? 64 : 96;
  w.job_options.max_datagram_bytes = 4000;
  start_hosts(&w, names);
  world_run(&w, sum_all_kinds);
  for (uint32_t r = 1; r < w.num_ranks; r++) assert_true(hashes[r] == hashes[0]);
  world_stop(&w);
  return hashes[0];
}

static void same_bits_as_over_the_network(void **state) {
  (void)state;
  for (uint32_t is_checked = 0; is_checked < 2; is_checked++) { /* it makes chunks smaller, and so blocks */
    const uint64_t want = run_kinds("1122", false, 1, is_checked);
    assert_true(want != 0);
    assert_true(run_kinds(is_checked ? "1222" : "1122", true, 1 + is_checked, is_checked) == want);
  }
}

/* ---- what leaves a host ---- */

static void sum_large(struct rank *r) {
  static float data[MAX_RANKS][LARGE_ELEMS];
  float *x = data[r->rank];
  float want[3] = {0};
  const size_t at[3] = {0, 524287, LARGE_ELEMS - 1};
  for (size_t i = 0; i < LARGE_ELEMS; i++) x[i] = float_value(r->rank, i);
  for (uint32_t k = 0; k < 3; k++)
    for (uint32_t rank = 0; rank < 8; rank++) want[k] += float_value(rank, at[k]);
  CHECK(r, allreduce(r, x, x, LARGE_ELEMS, SML_FLOAT32, SML_SUM) == SML_OK, "%s", sml_error_detail());
  for (uint32_t k = 0; k < 3; k++) CHECK(r, x[at[k]] - want[k] < 0.1f && want[k] - x[at[k]] < 0.1f);
}

static void one_tensor_leaves_each_host(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 8);
  start_hosts(&w, "12121212");
  world_run(&w, sum_large);
  uint64_t tx_bytes = 0;
  for (uint32_t r = 0; r < 8; r++) {
    const sml_stats s = stats_of(&w.ranks[r]);
    assert_int_equal(s.num_local_ranks, 4);
    if (r >= 2) assert_int_equal(s.tx_packets, 0);
    tx_bytes += s.tx_bytes - s.retransmissions * 1500;
  }
  assert_true(tx_bytes > 2 * 4 * LARGE_ELEMS && tx_bytes < 2 * 4 * LARGE_ELEMS * 11 / 10);
  world_stop(&w);
}

/* Rank 1 contributes for itself, beside rank 0, in the same pieces. */
static void sum_beside_the_unwilling(struct rank *r) {
  CHECK(r, stats_of(r).num_local_ranks == (r->rank < 2 ? 0 : 2));
  static int32_t data[MAX_RANKS][1200000];
  int32_t *x = data[r->rank];
  for (uint32_t e = 0; e < 1200000; e++) x[e] = (int32_t)(e * (r->rank + 1));
  CHECK(r, allreduce(r, x, x, 1200000, SML_INT32, SML_SUM) == SML_OK, "%s", sml_error_detail());
  for (uint32_t e = 0; e < 1200000; e++) CHECK(r, x[e] == (int32_t)(e * 10));
}

static void who_does_not_want_to_contributes_alone(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 4);
  w.unwilling = 1u << 1;
  start_hosts(&w, "1122");
  world_run(&w, sum_beside_the_unwilling);
  world_stop(&w);
}

/* ---- who works ---- */

static void operations_end_by_themselves(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 3);
  start_hosts(&w, "121");
  world_run(&w, let_helpers_work);
  world_stop(&w);
}

static uint32_t num_elems_of_call;

static bool await_updates(const struct rank *r, uint64_t num_updates) {
  for (uint32_t ms = 0; ms < 10000; ms++) {
    const sml_stats s = stats_of(r);
    if (s.tx_packets - s.probes - s.retransmissions >= num_updates) return true;
    usleep(1000);
  }
  return false;
}

/* Rank 0 calls more when its first operation is under way, and sends of those before that has ended: rank 2, which is
 * alone on its host, takes part in none until then. */
static void call_several(struct rank *r) {
  static int32_t data[MAX_RANKS][4][70000];
  sml_operation *ops[4];
  const struct rank *lead = &r->world->ranks[0];
  const uint64_t num_chunks = sml_div_ceil(4 * (uint64_t)num_elems_of_call, lead->job->lanes.chunk_bytes);
  if (r->rank == 2) CHECK(r, await_updates(lead, num_chunks + 1));
  for (uint32_t k = 0; k < 4; k++) {
    int32_t *x = data[r->rank][k];
    for (uint32_t e = 0; e < num_elems_of_call; e++) x[e] = (int32_t)(e + k);
    CHECK(r, sml_allreduce(r->job, x, x, num_elems_of_call, SML_INT32, SML_SUM, NULL, &ops[k]) == SML_OK);
    if (r == lead && k == 0) CHECK(r, await_updates(r, 1));
  }
  for (uint32_t k = 0; k < 4; k++) {
    CHECK(r, sml_operation_wait(ops[k], 20 * SML_NS_PER_S) == SML_OK, "%s", sml_error_detail());
    for (uint32_t e = 0; e < num_elems_of_call; e++) CHECK(r, data[r->rank][k][e] == (int32_t)(3 * (e + k)));
    sml_operation_release(ops[k]);
  }
}

static void several_are_under_way(void **state) {
  (void)state;
  for (num_elems_of_call = 1; num_elems_of_call <= 70000; num_elems_of_call += 69999) {
    struct world w;
    world_init(&w, 3);
    w.job_options.lease_ns = PATIENT_LEASE_NS;
    start_hosts(&w, "112");
    world_run(&w, call_several);
    world_stop(&w);
  }
}

#define MOST_AT_ONCE 4u

static uint32_t num_at_once;

static void sum_across_epochs(struct rank *r) {
  static int32_t data[MAX_RANKS][MOST_AT_ONCE][60000];
  const uint32_t first_epoch = r->job->state.start.epoch;
  for (uint32_t i = 0; i < 20; i++) {
    sml_operation *ops[MOST_AT_ONCE];
    for (uint32_t k = 0; k < num_at_once; k++) {
      int32_t *x = data[r->rank][k];
      for (uint32_t e = 0; e < 60000; e++) x[e] = (int32_t)(e + i + k);
      CHECK(r, sml_allreduce(r->job, x, x, 60000, SML_INT32, SML_SUM, NULL, &ops[k]) == SML_OK, "%s",
            sml_error_detail());
    }
    for (uint32_t k = 0; k < num_at_once; k++) {
      CHECK(r, sml_operation_wait(ops[k], 20 * SML_NS_PER_S) == SML_OK, "%s", sml_error_detail());
      for (uint32_t e = 0; e < 60000; e++) CHECK(r, data[r->rank][k][e] == (int32_t)(3 * (e + i + k)));
      sml_operation_release(ops[k]);
    }
  }
  CHECK(r, r->job->state.start.epoch != first_epoch);
}

/* An epoch is full while operations are under way, which end in it. */
static void epochs_end(void **state) {
  (void)state;
  for (num_at_once = 1; num_at_once <= MOST_AT_ONCE; num_at_once += MOST_AT_ONCE - 1) {
    struct world w;
    world_init(&w, 3);
    w.aggd_options.first_phase = UINT32_MAX - 601;
    w.job_options.max_datagram_bytes = 1472;
    start_hosts(&w, "122");
    world_run(&w, sum_across_epochs);
    world_stop(&w);
  }
}

/* ---- what goes wrong ---- */

static uint32_t differing_rank, other_rank;

static void differ_on_one(struct rank *r) {
  call_differently(r, differing_rank, other_rank);
}

static void differ(const char *where, uint32_t rank, uint32_t other) {
  struct world w;
  world_init(&w, (uint32_t)strlen(where));
  start_hosts(&w, where);
  differing_rank = rank;
  other_rank = other;
  world_run(&w, differ_on_one);
  world_stop(&w);
}

static void different_calls_name_ranks(void **state) {
  (void)state;
  differ("1122", 3, 2); /* within a host */
  differ("112", 2, 0);  /* between hosts */
}

/* Two full pieces, and three: without the whole length in their tags, the first two would do for both. */
static void call_longer(struct rank *r) {
  static float data[MAX_RANKS][3 << 19];
  const struct sml_operation_plan floats = {.type = SML_FLOAT32, .block_elems = SML_BLOCK_ELEMS};
  const size_t count = (r->rank == 2 ? 3 : 2) * (size_t)sml_combine_piece_elems(r->job->method, &floats);
  CHECK(r, count <= SML_ARRAY_LEN(data[0]));
  const sml_status status = allreduce(r, data[r->rank], data[r->rank], count, SML_FLOAT32, SML_SUM);
  CHECK(r, status == SML_ERR_MISMATCH, "%d %s", status, sml_error_detail());
}

static void lengths_differ_between_hosts(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 3);
  start_hosts(&w, "112");
  world_run(&w, call_longer);
  world_stop(&w);
}

static uint32_t absent_rank;

static void let_one_be_late(struct rank *r) {
  static float data[MAX_RANKS][500000];
  if (r->rank == absent_rank) return;
  const sml_operation_options options = {.struct_bytes = sizeof options, .timeout_ns = SML_NS_PER_S};
  sml_operation *op;
  CHECK(r, sml_allreduce(r->job, data[r->rank], data[r->rank], 500000, SML_FLOAT32, SML_SUM, &options, &op) == SML_OK);
  const sml_status status = sml_operation_wait(op, 20 * SML_NS_PER_S);
  sml_error error = SML_ERROR_INIT;
  sml_operation_error(op, &error);
  sml_operation_release(op);
  CHECK(r, status == SML_ERR_TIMEOUT && is_named(&error, absent_rank), "%d %s", status, error.detail);
}

static void the_late_are_named(void **state) {
  (void)state;
  for (absent_rank = 0; absent_rank < 3; absent_rank++) {
    struct world w;
    world_init(&w, 4);
    start_hosts(&w, "1122");
    world_run(&w, let_one_be_late);
    world_stop(&w);
  }
}

static void abort_on_rank_1(struct rank *r) {
  abort_while_others_wait(r, 1);
}

static void an_abort_ends_waits(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 4);
  start_hosts(&w, "1122");
  world_run(&w, abort_on_rank_1);
  world_stop(&w);
}

static void lose_the_aggregator(struct rank *r) {
  static float data[MAX_RANKS][LARGE_ELEMS];
  sml_error error = SML_ERROR_INIT;
  if (r->rank == 2) {
    usleep(100 * 1000);
    sml_aggd_stop(r->world->aggd);
  }
  const sml_status status = sum_for_ever(r->job, data[r->rank], &error);
  CHECK(r, status == SML_ERR_AGGREGATOR_LOST || status == SML_ERR_ABORTED, "%d %s", status, error.detail);
}

static void the_aggregator_is_lost(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 3);
  start_hosts(&w, "112");
  world_run(&w, lose_the_aggregator);
  w.aggd = NULL;
  world_stop(&w);
}

/* ---- a process that is killed in the middle ---- */

/* Rank 3 is killed: one that leads, or one that does not. */
static void lose_child_of(const char *hosts) {
  struct world w;
  world_init(&w, 3);
  w.hosts = hosts;
  lose_a_child(&w, SIGKILL);
}

static void a_killed_rank_is_lost(void **state) {
  (void)state;
  lose_child_of("1212");
  lose_child_of("1112");
}

int main(void) {
  setenv("SWITCHML_SHARED_MEMORY", "1", 1);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_killed_rank_is_lost),
      cmocka_unit_test(same_bits_as_over_the_network),
      cmocka_unit_test(one_tensor_leaves_each_host),
      cmocka_unit_test(who_does_not_want_to_contributes_alone),
      cmocka_unit_test(operations_end_by_themselves),
      cmocka_unit_test(several_are_under_way),
      cmocka_unit_test(epochs_end),
      cmocka_unit_test(different_calls_name_ranks),
      cmocka_unit_test(lengths_differ_between_hosts),
      cmocka_unit_test(the_late_are_named),
      cmocka_unit_test(an_abort_ends_waits),
      cmocka_unit_test(the_aggregator_is_lost),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
