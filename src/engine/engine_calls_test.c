/* SPDX-License-Identifier: Apache-2.0
 * What a small operation costs in calls of the back end, each of which is a system call over sockets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "engine/test_world.h"

static struct sml_netio_ops counting;
static const struct sml_netio_ops *inner;
static uint32_t num_receives, num_waits;

static size_t count_receive(struct sml_netio *io, struct sml_rx_frame *frames, size_t max) {
  num_receives++;
  return inner->rx_burst(io, frames, max);
}

static void count_wait(struct sml_netio *io, uint64_t timeout_ns) {
  (void)io;
  (void)timeout_ns;
  num_waits++;
}

/* The calls of rank 0 are counted. */
static struct world *make_world(void) {
  const struct world_options options = {
      .world_size = 2, .num_lanes = 1, .num_slots = 8, .chunk_bytes = 64, .num_operations = 4, .seed = 7};
  struct world *w = world_create_started(&options);
  struct sml_netio *io = w->worker_ports[0][0].io;
  inner = io->ops;
  counting = *inner;
  counting.rx_burst = count_receive;
  counting.wait = count_wait;
  io->ops = &counting;
  num_receives = num_waits = 0;
  return w;
}

static struct world_call *make_call(struct world *w) {
  const struct world_call_options options = {.num_elems = 1, .type = SML_INT32, .seed = 3};
  return world_call_create(w, &options);
}

static uint64_t pass(struct world *w, uint32_t rank) {
  return sml_worker_engine_run_once(w->workers[rank][0], w->now_ns += 1000);
}

static uint64_t sent_by(const struct world *w) {
  return w->worker_ports[0][0].io->stats.tx_frames;
}

static void run_round(struct world *w) {
  struct world_call *call = make_call(w);
  world_call_submit_all(call);
  const uint64_t sent = sent_by(w);
  num_receives = 0;
  (void)pass(w, 0);
  (void)pass(w, 1);
  assert_int_equal(num_receives, 0);
  (void)sml_aggregator_engine_run_once(w->aggregators[0], w->now_ns);
  assert_true(pass(w, 0) == SML_NEVER && pass(w, 1) == SML_NEVER);
  assert_int_equal(num_receives, 1);
  assert_int_equal(sent_by(w) - sent, 1);
  assert_true(world_call_has_ended(call));
  assert_null(world_call_check(call));
  world_call_free(call);
}

static void test_one_send_and_one_receive(void **state) {
  (void)state;
  struct world *w = make_world();
  for (uint32_t i = 0; i < 20; i++) run_round(w);
  world_destroy(w);
}

static void test_others_are_looked_for(void **state) {
  (void)state;
  struct world *w = make_world();
  (void)pass(w, 0);
  assert_int_equal(num_receives, 1); /* nothing to send: late frames and HELLOs */
  struct world_call *first = make_call(w), *second = make_call(w);
  world_call_submit(first, 0);
  (void)pass(w, 0);
  assert_int_equal(num_receives, 1);
  world_call_submit(second, 0); /* something is awaited, so its result may be here */
  (void)pass(w, 0);
  assert_int_equal(num_receives, 2);
  world_call_submit(first, 1);
  world_call_submit(second, 1);
  assert_true(world_call_run(first, SML_NS_PER_S) && world_call_run(second, SML_NS_PER_S));
  world_call_free(first);
  world_call_free(second);
  world_destroy(w);
}

struct driven {
  struct sml_engine_thread thread;
  uint32_t num_passes;
};

static uint64_t run_fake(void *engine, uint64_t now_ns) {
  struct driven *d = engine;
  d->num_passes++;
  return now_ns + SML_NS_PER_S;
}

static bool has_waited(const void *argument) {
  const struct driven *d = argument;
  return num_waits > 0 || d->num_passes > 1000;
}

/* Who shares its processor sleeps for a frame now and then: the system places a thread when it wakes. */
static void test_sharing_a_processor(void **state) {
  (void)state;
  struct world *w = make_world();
  struct driven d = {.thread = {.io = w->worker_ports[0][0].io,
                                .run_once = run_fake,
                                .spin_ns = SML_NEVER,
                                .is_sharing = true}};
  d.thread.engine = &d;
  sml_engine_thread_drive(&d.thread, has_waited, &d, SML_NEVER);
  assert_int_equal(num_waits, 1);
  assert_int_equal(d.num_passes, 2);
  assert_true(d.thread.settled_ns > 0);
  world_destroy(w);
}

/* ---- calls in a row ---- */

#define NUM_CALLS 16u

static bool has_passed(const void *argument) {
  return ((const struct driven *)argument)->num_passes > 0;
}

static struct driven make_driven(struct world *w) {
  return (struct driven){.thread = {.io = w->worker_ports[0][0].io, .run_once = run_fake, .is_shared = true}};
}

/* The passes that one row of calls, and the wait for them, took. */
static uint32_t make_row(struct driven *d, bool is_waited_for_at_once) {
  const struct timespec pause = {.tv_nsec = 100000}; /* twice what counts as soon */
  uint32_t num_passes;
  d->thread.engine = d;
  d->thread.is_awaiting = false; /* as when the row before had ended */
  d->num_passes = 0;
  for (uint32_t i = 0; i < NUM_CALLS; i++) {
    assert_true(sml_engine_thread_try_call(&d->thread));
    if (i == 0) assert_int_equal(d->num_passes, 1); /* it never waits for others */
  }
  num_passes = d->num_passes;
  if (!is_waited_for_at_once) (void)nanosleep(&pause, NULL);
  d->num_passes = 0;
  sml_engine_thread_drive(&d->thread, has_passed, d, SML_NEVER);
  assert_int_equal(d->num_passes, 1); /* for what the row left */
  return num_passes;
}

/* How soon they come is the system's to say as well, so rows have many tries. */
static void test_calls_in_a_row_share_a_pass(void **state) {
  (void)state;
  struct world *w = make_world();
  struct driven d = make_driven(w);
  uint32_t least = NUM_CALLS;
  for (uint32_t i = 0; i < 2; i++) assert_int_equal(make_row(&d, true), NUM_CALLS);
  for (uint32_t i = 0; i < 1000 && least > 1; i++) least = sml_min_u32(least, make_row(&d, true));
  assert_int_equal(least, 1);
  world_destroy(w);
}

static void test_nobody_waits_for_a_late_caller(void **state) {
  (void)state;
  struct world *w = make_world();
  struct driven d = make_driven(w);
  for (uint32_t i = 0; i < 5; i++) (void)make_row(&d, true);
  (void)make_row(&d, false);
  for (uint32_t i = 0; i < 5; i++) assert_int_equal(make_row(&d, i % 2 == 0), NUM_CALLS);
  world_destroy(w);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_send_and_one_receive),
                                     cmocka_unit_test(test_others_are_looked_for),
                                     cmocka_unit_test(test_sharing_a_processor),
                                     cmocka_unit_test(test_calls_in_a_row_share_a_pass),
                                     cmocka_unit_test(test_nobody_waits_for_a_late_caller)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
