/* SPDX-License-Identifier: Apache-2.0
 * Sleeping and waking of the udp back end: no wake-up is lost, none costs more than it must. */
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "netio/test_support.h"

#define NUM_WAKES 10000u

static struct sml_netio *open_loopback(void) {
  struct sml_netio *io;
  struct sml_addr addr;
  char error[160];
  assert_true(sml_addr_parse("127.0.0.1:0", 0, &addr, error, sizeof error));
  const struct sml_udp_options options = {.bind_addr = &addr};
  if (sml_udp_open(&options, &io, error, sizeof error) != 0) fail_msg("%s", error);
  return io;
}

static void test_timeouts(void **state) {
  (void)state;
  struct sml_netio *io = open_loopback();
  static const uint64_t timeouts_ns[] = {0, 1, 50 * SML_NS_PER_US, 20 * SML_NS_PER_MS};
  for (size_t i = 0; i < SML_ARRAY_LEN(timeouts_ns); i++) {
    const uint64_t start_ns = test_now_ns();
    io->ops->wait(io, timeouts_ns[i]);
    const uint64_t took_ns = test_now_ns() - start_ns;
    assert_true(took_ns >= timeouts_ns[i]);
    assert_true(took_ns < timeouts_ns[i] + SML_NS_PER_S);
  }
  io->ops->wake(io);
  io->ops->wait(io, SML_NEVER - 1); /* a timeout of centuries is a valid one */
  io->ops->close(io);
}

static void test_wake_is_sticky_once(void **state) {
  (void)state;
  struct sml_netio *io = open_loopback();
  io->ops->wake(io);
  io->ops->wake(io);
  io->ops->wait(io, SML_NEVER);
  assert_int_equal(io->stats.system_calls, 3); /* ppoll, read, and one write for both wake-ups */
  const uint64_t start_ns = test_now_ns();
  io->ops->wait(io, 5 * SML_NS_PER_MS);
  assert_true(test_now_ns() - start_ns >= 5 * SML_NS_PER_MS); /* used up */
  assert_int_equal(io->stats.system_calls, 4);
  io->ops->close(io);
}

static void test_a_frame_ends_a_wait_with_one_call(void **state) {
  (void)state;
  struct sml_netio *io = open_loopback();
  const struct sml_addr self = test_addr_of(io);
  struct sml_rx_frame frames[8];
  test_send(io, 1, 100, 1, 100, &self, 1);
  const uint64_t calls = io->stats.system_calls;
  io->ops->wait(io, SML_NEVER);
  assert_int_equal(io->stats.system_calls, calls + 1);
  assert_int_equal(io->ops->rx_burst(io, frames, 8), 1);
  assert_int_equal(io->stats.system_calls, calls + 2);
  io->ops->wake(io); /* frame and wake-up together: both are gone after one wait and one burst */
  test_send(io, 2, 100, 1, 100, &self, 1);
  io->ops->wait(io, SML_NEVER);
  assert_int_equal(io->ops->rx_burst(io, frames, 8), 1);
  const uint64_t start_ns = test_now_ns();
  io->ops->wait(io, 5 * SML_NS_PER_MS);
  assert_true(test_now_ns() - start_ns >= 5 * SML_NS_PER_MS);
  io->ops->close(io);
}

static void test_gathering(void **state) {
  (void)state;
  struct sml_netio *io = open_loopback();
  const struct sml_addr self = test_addr_of(io);
  struct sml_rx_frame frames[8];
  test_send(io, 1, 100, 1, 100, &self, 1);
  io->gather_ns = 5 * SML_NS_PER_MS;
  uint64_t start_ns = test_now_ns();
  io->ops->wait(io, SML_NEVER); /* a frame is there and does not end it */
  assert_true(test_now_ns() - start_ns >= io->gather_ns);
  assert_int_equal(io->ops->rx_burst(io, frames, 8), 1);
  start_ns = test_now_ns();
  io->ops->wait(io, SML_NS_PER_MS); /* the shorter time wins */
  assert_true(test_now_ns() - start_ns >= SML_NS_PER_MS);
  io->gather_ns = 3600 * SML_NS_PER_S;
  io->ops->wake(io);
  io->ops->wait(io, SML_NEVER); /* a wake-up ends it */
  for (uint32_t i = 0; i < 3; i++) test_send(io, i, 100, 1, 100, &self, 1);
  assert_int_equal(io->ops->rx_burst(io, frames, 2), 2);
  io->ops->wait(io, SML_NEVER); /* as many as fitted: there may be more, so this is no wait */
  assert_int_equal(io->ops->rx_burst(io, frames, 2), 1);
  io->gather_ns = 0;
  test_send(io, 4, 100, 1, 100, &self, 1);
  io->ops->wait(io, SML_NEVER);
  assert_int_equal(io->ops->rx_burst(io, frames, 2), 1);
  io->ops->close(io);
}

struct waker {
  struct sml_netio *io;
  bool is_lockstep; /* the next wake-up only when the last was seen */
  _Atomic uint32_t num_posted, num_seen;
};

static void *wake_often(void *argument) {
  struct waker *w = argument;
  for (uint32_t i = 1; i <= NUM_WAKES; i++) {
    /* Relaxed: it is wake() and wait() that must order it. */
    atomic_store_explicit(&w->num_posted, i, memory_order_relaxed);
    w->io->ops->wake(w->io);
    while (w->is_lockstep && atomic_load_explicit(&w->num_seen, memory_order_relaxed) < i) sched_yield();
  }
  return NULL;
}

static void run_wakers(bool is_lockstep) {
  struct waker w = {.io = open_loopback(), .is_lockstep = is_lockstep};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, wake_often, &w), 0);
  for (uint32_t seen = 0; seen < NUM_WAKES;) {
    const uint64_t start_ns = test_now_ns();
    w.io->ops->wait(w.io, 5 * SML_NS_PER_S);
    if (test_now_ns() - start_ns >= 5 * SML_NS_PER_S) fail_msg("the wake-up after %u was lost", seen);
    seen = atomic_load_explicit(&w.num_posted, memory_order_relaxed);
    atomic_store_explicit(&w.num_seen, seen, memory_order_relaxed);
  }
  assert_int_equal(pthread_join(thread, NULL), 0);
  w.io->ops->close(w.io);
}

static void test_no_wake_is_lost_in_lockstep(void **state) {
  (void)state;
  run_wakers(true);
}

static void test_no_wake_is_lost_at_full_speed(void **state) {
  (void)state;
  for (int i = 0; i < 5; i++) run_wakers(false);
}

static void *wake_with_frames(void *argument) {
  struct waker *w = argument;
  struct sml_netio *io = open_loopback();
  const struct sml_addr to = test_addr_of(w->io);
  for (uint32_t i = 1; i <= NUM_WAKES / 10; i++) {
    test_send(io, i, 64, 1, 64, &to, 1);
    w->io->ops->wake(w->io);
    while (atomic_load_explicit(&w->num_seen, memory_order_relaxed) < i) sched_yield();
  }
  io->ops->close(io);
  return NULL;
}

static void test_frames_and_wakes_together(void **state) {
  (void)state;
  struct waker w = {.io = open_loopback()};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, wake_with_frames, &w), 0);
  for (uint32_t seen = 0; seen < NUM_WAKES / 10;) {
    struct sml_rx_frame frames[4];
    w.io->ops->wait(w.io, SML_NEVER);
    seen += (uint32_t)w.io->ops->rx_burst(w.io, frames, 4);
    atomic_store_explicit(&w.num_seen, seen, memory_order_relaxed);
  }
  assert_int_equal(pthread_join(thread, NULL), 0);
  w.io->ops->close(w.io);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_timeouts),
                                     cmocka_unit_test(test_wake_is_sticky_once),
                                     cmocka_unit_test(test_a_frame_ends_a_wait_with_one_call),
                                     cmocka_unit_test(test_gathering),
                                     cmocka_unit_test(test_no_wake_is_lost_in_lockstep),
                                     cmocka_unit_test(test_no_wake_is_lost_at_full_speed),
                                     cmocka_unit_test(test_frames_and_wakes_together)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
