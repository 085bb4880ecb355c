/* SPDX-License-Identifier: Apache-2.0
 * The bound on memory grows with each thing that it is to hold. */
#include "aggd/test_rank_world.h"

#include "ctl/registry.h"
#include "engine/aggregator_engine.h"

#define NUM_SLOTS 512u
#define NUM_VERSIONS 2u

static struct sml_aggd_memory memory_of(uint32_t num_lanes, uint32_t max_connections) {
  struct sml_aggd_options options = loopback();
  struct sml_aggd_memory m;
  options.num_lanes = num_lanes;
  options.max_connections = max_connections;
  options.pool_slots = NUM_SLOTS;
  begin_with(options);
  sml_aggd_memory(aggd, &m);
  end();
  return m;
}

/* Each lane has its own slots. */
static void test_each_lane_counts(void **state) {
  (void)state;
  const struct sml_aggd_memory one = memory_of(1, 256), three = memory_of(3, 256);
  assert_true(one.slots_bytes > 0);
  assert_int_equal(three.slots_bytes, 3 * one.slots_bytes);
  assert_true(three.total_bytes - one.total_bytes > 2 * one.slots_bytes);
  assert_int_equal(three.status_bytes, one.status_bytes);
}

/* Each lane keeps figures of each rank: of those that wait, and of those in jobs that run, gone ones included. */
static void test_ranks_count_on_each_lane(void **state) {
  (void)state;
  const uint64_t of_few = memory_of(3, 64).connections_bytes - memory_of(1, 64).connections_bytes;
  const uint64_t of_many = memory_of(3, 1024).connections_bytes - memory_of(1, 1024).connections_bytes;
  const uint64_t num_more = 2 * (SML_REGISTRY_MAX_RANKS_FACTOR + UINT64_C(1)) * (1024 - 64);
  assert_true(of_many - of_few >= num_more * sml_aggregator_engine_sizes().rank_bytes);
}

/* All connections may be one job's ranks: each slot has a bit for each, in both versions. */
static void test_slots_of_the_largest_job(void **state) {
  (void)state;
  const struct sml_aggd_memory few = memory_of(1, 64), many = memory_of(1, 1024);
  assert_true(many.slots_bytes - few.slots_bytes >= NUM_SLOTS * NUM_VERSIONS * (1024 - 64) / 8);
  assert_true(many.connections_bytes > few.connections_bytes && many.status_bytes > few.status_bytes);
}

static void test_total_has_all_parts(void **state) {
  (void)state;
  const struct sml_aggd_memory m = memory_of(2, 128);
  assert_true(m.total_bytes > m.slots_bytes + m.connections_bytes + m.status_bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_each_lane_counts),
      cmocka_unit_test(test_ranks_count_on_each_lane),
      cmocka_unit_test(test_slots_of_the_largest_job),
      cmocka_unit_test(test_total_has_all_parts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
