/* SPDX-License-Identifier: Apache-2.0
 * When a worker's engine lets results gather: in the middle of much work on a slow path, and then only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/test_world.h"

#define NUM_SLOTS 32u
#define CHUNK_ELEMS 16u
#define PASS_NS (2 * SML_NS_PER_MS) /* a round trip is a few passes */
#define LIMIT_NS (60 * SML_NS_PER_S)

static struct world *create_world(void) {
  const struct world_options options = {.world_size = 2,
                                        .num_slots = NUM_SLOTS,
                                        .chunk_bytes = CHUNK_ELEMS * 4,
                                        .num_operations = 8,
                                        .seed = 5};
  return world_create_started(&options);
}

static struct world_call *start_call(struct world *w, uint32_t job, uint64_t num_chunks, uint8_t type) {
  const struct world_call_options options = {
      .job = job, .num_elems = num_chunks * CHUNK_ELEMS, .type = type, .seed = num_chunks};
  return world_call_create(w, &options);
}

static uint64_t gather_ns_of(const struct world *w, uint32_t rank) {
  return w->worker_ports[rank][0].io->gather_ns;
}

/* Runs the call to its end. The number of passes after which rank 0 wanted to gather. */
static uint32_t run_call(struct world *w, struct world_call *call, uint64_t pass_ns) {
  const uint64_t until_ns = w->now_ns + LIMIT_NS;
  uint32_t num_gathering = 0;
  while (!world_call_has_ended(call)) {
    w->now_ns += pass_ns;
    assert_true(world_pass(w) && w->now_ns < until_ns);
    assert_true(gather_ns_of(w, 0) <= 4 * SML_NS_PER_MS);
    num_gathering += gather_ns_of(w, 0) > 0;
  }
  assert_null(world_call_check(call));
  assert_int_equal(gather_ns_of(w, 0), 0); /* nothing is awaited any more */
  return num_gathering;
}

static uint32_t run_new_call(struct world *w, uint64_t num_chunks, uint8_t type, uint64_t pass_ns) {
  struct world_call *call = start_call(w, 0, num_chunks, type);
  world_call_submit_all(call);
  const uint32_t num_gathering = run_call(w, call, pass_ns);
  world_call_free(call);
  return num_gathering;
}

static void test_only_in_the_middle_of_much_work(void **state) {
  (void)state;
  struct world *w = create_world();
  assert_true(run_new_call(w, 40 * NUM_SLOTS, SML_INT32, PASS_NS) > 20);
  assert_true(run_new_call(w, 40 * NUM_SLOTS, SML_FLOAT32, PASS_NS) > 20);
  /* Known to be slow now, but too little at a time to fill the slots. */
  for (uint64_t num_chunks = 1; num_chunks < NUM_SLOTS - NUM_SLOTS / 4; num_chunks += 5)
    assert_int_equal(run_new_call(w, num_chunks, SML_INT32, PASS_NS), 0);
  world_destroy(w);
}

static void test_not_on_a_fast_path(void **state) {
  (void)state;
  struct world *w = create_world();
  assert_int_equal(run_new_call(w, 40 * NUM_SLOTS, SML_INT32, 10 * SML_NS_PER_US), 0);
  world_destroy(w);
}

static void test_a_late_rank_is_waited_for(void **state) {
  (void)state;
  struct world *w = create_world();
  (void)run_new_call(w, 40 * NUM_SLOTS, SML_INT32, PASS_NS);
  struct world_call *call = start_call(w, 0, 40 * NUM_SLOTS, SML_INT32);
  world_call_submit(call, 0);
  for (uint32_t i = 0; i < 10; i++) {
    assert_true(world_pass(w));
    assert_int_equal(gather_ns_of(w, 0), 0);
  }
  world_call_submit(call, 1);
  (void)run_call(w, call, PASS_NS);
  world_call_free(call);
  world_destroy(w);
}

static void test_not_at_the_cost_of_another_job(void **state) {
  (void)state;
  struct world *w = create_world();
  world_open_job(w, 1, 0xfeed0001);
  assert_true(world_exchange_hellos(w, 1));
  world_start_job(w, 1);
  (void)run_new_call(w, 40 * NUM_SLOTS, SML_INT32, PASS_NS);
  struct world_call *large = start_call(w, 0, 4000, SML_INT32);
  struct world_call *small = start_call(w, 1, 1, SML_INT32);
  world_call_submit_all(large);
  world_call_submit(small, 0);
  for (uint32_t i = 0; i < 20; i++) {
    w->now_ns += PASS_NS;
    assert_true(world_pass(w));
    assert_int_equal(gather_ns_of(w, 0), 0);
  }
  assert_true(gather_ns_of(w, 1) > 0); /* awaits nothing of job 1 */
  world_call_submit(small, 1);
  (void)run_call(w, large, PASS_NS);
  assert_null(world_call_check(small));
  world_call_free(large);
  world_call_free(small);
  world_destroy(w);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_only_in_the_middle_of_much_work),
                                     cmocka_unit_test(test_not_on_a_fast_path),
                                     cmocka_unit_test(test_a_late_rank_is_waited_for),
                                     cmocka_unit_test(test_not_at_the_cost_of_another_job)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
