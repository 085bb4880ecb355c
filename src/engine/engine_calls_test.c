/* SPDX-License-Identifier: Apache-2.0
 * What a small operation costs in calls of the back end, each of which is a system call over sockets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

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

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_send_and_one_receive),
                                     cmocka_unit_test(test_others_are_looked_for),
                                     cmocka_unit_test(test_sharing_a_processor)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
