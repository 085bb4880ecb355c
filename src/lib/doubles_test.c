/* SPDX-License-Identifier: Apache-2.0
 * Short sums of doubles, exact by every way that an operation can go: each rank has a part that another one cancels,
 * far above a value that any order of additions would lose, and the value has to come back bit by bit. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/test_keeper.h"
#include "lib/test_world.h"

#define NUM_RANKS 4u
#define MAX_ELEMS 128u
#define NUM_OPERATIONS 80u

static double from_bits(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* What operation i's element e has to be: any finite double but the largest ones, some of them denormal, or -0. */
static uint64_t wanted(uint32_t i, uint32_t e) {
  const uint64_t random = sml_mix64(i * 1000 + e), field = e % 7 == 0 ? 0 : (random >> 52) % 2000;
  return e % 11 == 3 ? UINT64_C(1) << 63 : (random & 0x800fffffffffffff) | field << 52;
}

/* What one of four ranks contributes, in an order that changes: the value, a large number and its negative, and -0. */
static double contribution(uint32_t i, uint32_t e, uint32_t rank) {
  const uint64_t want = wanted(i, e);
  const double large = from_bits((sml_mix64(e + 5) & 0xfffffffffffff) | UINT64_C(2046) << 52);
  if (want == UINT64_C(1) << 63) return -0.0;
  switch ((rank + i + e) % NUM_RANKS) {
  case 0: return large;
  case 1: return from_bits(want);
  case 2: return -large;
  default: return -0.0;
  }
}

static size_t count_of(uint32_t i) {
  static const size_t counts[] = {1, 2, 3, 8, 32, 127, 128};
  return counts[i % SML_ARRAY_LEN(counts)];
}

static struct keeper keeper;
static bool is_killed; /* the aggregator, in the middle */

static void kill_in_the_middle(struct rank *r, uint32_t i) {
  if (!is_killed || r->rank != 0 || i != NUM_OPERATIONS / 2) return;
  keeper_signal(&keeper, SIGKILL);
  keeper_start_again(&keeper);
}

static void check_sums(struct rank *r, uint32_t i, const double *out) {
  for (uint32_t e = 0; e < count_of(i); e++) {
    const uint64_t want = wanted(i, e);
    uint64_t got;
    memcpy(&got, &out[e], sizeof got);
    if (want << 1 == 0 && want == 0) CHECK(r, got == 0);
    else CHECK(r, got == want, "operation %u, element %u: %016llx, not %016llx", i, e, (unsigned long long)got,
               (unsigned long long)want);
  }
}

/* Every other pair of operations in a batch; in place, or not. */
static void sum_doubles(struct rank *r) {
  double in[2][MAX_ELEMS], out[2][MAX_ELEMS];
  sml_operation *ops[2];
  for (uint32_t i = 0; i < NUM_OPERATIONS; i += 2) {
    const bool is_batch = i % 4 == 0, is_in_place = i % 6 == 0;
    kill_in_the_middle(r, i);
    if (is_batch) CHECK(r, sml_batch_begin(r->job) == SML_OK);
    for (uint32_t k = 0; k < 2; k++) {
      for (uint32_t e = 0; e < count_of(i + k); e++) in[k][e] = contribution(i + k, e, r->rank);
      CHECK(r, sml_supported(r->job, SML_FLOAT64, SML_SUM, count_of(i + k)) == 1);
      CHECK(r, sml_allreduce(r->job, in[k], is_in_place ? in[k] : out[k], count_of(i + k), SML_FLOAT64, SML_SUM, NULL,
                             &ops[k]) == SML_OK, "%s", sml_error_detail());
    }
    if (is_batch) CHECK(r, sml_batch_end(r->job) == SML_OK);
    for (uint32_t k = 0; k < 2; k++) {
      CHECK(r, sml_operation_wait(ops[k], 60 * SML_NS_PER_S) == SML_OK, "%s", sml_error_detail());
      sml_operation_release(ops[k]);
      check_sums(r, i + k, is_in_place ? in[k] : out[k]);
      if (r->failure[0] != 0) return;
    }
  }
}

static void refuse_long_ones(struct rank *r) {
  double x[MAX_ELEMS + 1] = {0};
  sml_operation *op;
  CHECK(r, sml_supported(r->job, SML_FLOAT64, SML_SUM, MAX_ELEMS + 1) == 0);
  CHECK(r, sml_allreduce(r->job, x, x, MAX_ELEMS + 1, SML_FLOAT64, SML_SUM, NULL, &op) == SML_ERR_UNSUPPORTED);
  CHECK(r, strstr(sml_error_detail(), "129 elements of float64 are not summed with all of their digits") != NULL);
}

struct way {
  const char *hosts; /* NULL: each rank on its own, without shared memory */
  uint32_t num_lanes, max_datagram_bytes, float64_bits;
  double loss;
  bool is_checked, is_embedded, is_retried;
};

static void run_way(const struct way *way) {
  struct world w;
  world_init(&w, NUM_RANKS);
  w.job_options.lease_ns = PATIENT_LEASE_NS;
  w.aggd_options.num_lanes = w.context_options.num_threads = way->num_lanes;
  w.aggd_options.faults = (struct sml_fault_options){.loss = way->loss, .duplicate = way->loss, .seed = 3};
  w.job_options.no_shared_memory = way->hosts == NULL;
  w.job_options.check = way->is_checked ? 1 : 2;
  w.job_options.float64_bits = way->float64_bits;
  w.job_options.max_datagram_bytes = way->max_datagram_bytes;
  w.hosts = way->hosts;
  is_killed = way->is_retried;
  if (way->is_retried) {
    w.job_options.retry_ns = 30 * SML_NS_PER_S;
    keeper_start(&keeper, &w.aggd_options);
    memcpy(w.address, keeper.address, sizeof w.address);
    world_join(&w);
  } else if (way->is_embedded) {
    w.is_embedded = true;
    world_join(&w);
  } else {
    world_start(&w);
  }
  world_run(&w, sum_doubles);
  if (way->float64_bits == 0) world_run(&w, refuse_long_ones);
  world_stop(&w);
  if (way->is_retried) keeper_stop(&keeper);
}

static void exact_by_every_way(void **state) {
  (void)state;
  static const struct way ways[] = {
      {NULL, 1, 1472, 0, 0, false, false, false},    {NULL, 3, 1472, 64, 0.01, true, false, false},
      {NULL, 2, 0, 0, 0, false, true, false},        {"1111", 1, 1472, 0, 0, false, false, false},
      {"1122", 1, 1472, 0, 0.01, true, false, false}, {"1222", 2, 9000, 96, 0, false, false, false},
      {NULL, 1, 340, 0, 0.05, true, false, false}, /* an element a packet */
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(ways); i++) run_way(&ways[i]);
}

static void exact_after_a_retry(void **state) {
  (void)state;
  static const struct way way = {NULL, 1, 1472, 0, 0, false, false, true};
  run_way(&way);
}

/* Chunks that no element fits. */
static void refuse_all(struct rank *r) {
  double x = 1;
  sml_operation *op;
  CHECK(r, sml_supported(r->job, SML_FLOAT64, SML_SUM, 1) == 0);
  CHECK(r, sml_allreduce(r->job, &x, &x, 1, SML_FLOAT64, SML_SUM, NULL, &op) == SML_ERR_UNSUPPORTED);
  CHECK(r, strstr(sml_error_detail(), "packets carry") != NULL && strstr(sml_error_detail(), "float64_bits") != NULL);
}

static void take_them_as_blocks(struct rank *r) {
  double x = 1 + r->rank;
  CHECK(r, allreduce(r, &x, &x, 1, SML_FLOAT64, SML_SUM) == SML_OK && x == 10);
}

static void short_packets_are_named(void **state) {
  (void)state;
  for (uint32_t float64_bits = 0; float64_bits <= 96; float64_bits += 96) {
    for (uint32_t packet_lanes = 0; packet_lanes <= 32; packet_lanes += 32) {
      struct world w;
      world_init(&w, NUM_RANKS);
      w.job_options.no_shared_memory = 1;
      w.job_options.float64_bits = float64_bits;
      w.job_options.max_datagram_bytes = packet_lanes == 0 ? 300 : 0;
      w.aggd_options.packet_lanes = packet_lanes;
      world_start(&w);
      world_run(&w, float64_bits == 0 ? refuse_all : take_them_as_blocks);
      world_stop(&w);
    }
  }
}

/* A rank alone needs nobody's help. */
static void one_rank_has_its_own(void **state) {
  (void)state;
  sml_context *context;
  sml_job *job;
  sml_operation *op;
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  double x = 0.1, out = 0;
  o.world_size = 1;
  assert_int_equal(sml_context_create(NULL, &context), SML_OK);
  assert_int_equal(sml_job_create(context, &o, &job), SML_OK);
  assert_int_equal(sml_allreduce(job, &x, &out, 1, SML_FLOAT64, SML_SUM, NULL, &op), SML_OK);
  assert_int_equal(sml_operation_wait(op, SML_NS_PER_S), SML_OK);
  assert_true(out == 0.1);
  sml_operation_release(op);
  sml_job_destroy(job);
  sml_context_destroy(context);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(exact_by_every_way),
      cmocka_unit_test(exact_after_a_retry),
      cmocka_unit_test(short_packets_are_named),
      cmocka_unit_test(one_rank_has_its_own),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
