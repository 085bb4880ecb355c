/* SPDX-License-Identifier: Apache-2.0
 * The in-process back end: what arrives, what is lost and counted, sleeping and waking, threads. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "netio/addr.h"
#include "netio/test_support.h"

#define FRAME_BYTES 1000u

static void test_bursts_arrive_whole(void **state) {
  (void)state;
  struct sml_mem_hub *hub = sml_mem_hub_create();
  struct sml_netio *ports[4];
  struct sml_addr addrs[4];
  for (size_t i = 0; i < 4; i++) {
    ports[i] = sml_mem_open(hub, 100, FRAME_BYTES);
    assert_non_null(ports[i]);
    addrs[i] = test_addr_of(ports[i]);
    for (size_t k = 0; k < i; k++) assert_false(sml_addr_equal(&addrs[i], &addrs[k]));
  }
  test_send(ports[0], 0, FRAME_BYTES, 20, 17, addrs, 4); /* itself among them */
  for (size_t i = 0; i < 4; i++) {
    struct sml_rx_frame frames[64];
    assert_int_equal(ports[i]->ops->rx_burst(ports[i], frames, 64), 20);
    for (uint32_t k = 0; k < 20; k++) {
      assert_int_equal(frames[k].num_bytes, k == 19 ? 17 : FRAME_BYTES);
      assert_true(test_is_intact(&frames[k], k));
      assert_true(sml_addr_equal(frames[k].from, &addrs[0]));
    }
    assert_int_equal(ports[i]->ops->rx_burst(ports[i], frames, 64), 0);
    assert_int_equal(ports[i]->stats.rx_frames, 20);
    assert_int_equal(ports[i]->stats.rx_bytes, 19 * FRAME_BYTES + 17);
  }
  assert_int_equal(ports[0]->stats.tx_frames, 80);
  assert_int_equal(ports[0]->stats.tx_bytes, 4 * (19 * FRAME_BYTES + 17));
  assert_int_equal(ports[0]->stats.tx_lost_frames, 0);
  for (size_t i = 0; i < 4; i++) ports[i]->ops->close(ports[i]);
  sml_mem_hub_destroy(hub);
}

static void test_overflow_is_lost_and_counted(void **state) {
  (void)state;
  struct sml_mem_hub *hub = sml_mem_hub_create();
  struct sml_netio *a = sml_mem_open(hub, 8, FRAME_BYTES), *b = sml_mem_open(hub, 8, FRAME_BYTES);
  const struct sml_addr to = test_addr_of(b);
  struct sml_rx_frame frames[16];
  test_send(a, 0, 100, 10, 100, &to, 1);
  assert_int_equal(a->stats.tx_frames, 8);
  assert_int_equal(a->stats.tx_lost_frames, 2);
  assert_int_equal(b->ops->rx_burst(b, frames, 3), 3);
  /* Three are lent: nothing may overwrite them, and their cells are not free yet. */
  test_send(a, 100, 100, 5, 100, &to, 1);
  assert_int_equal(a->stats.tx_lost_frames, 7);
  for (uint32_t i = 0; i < 3; i++) assert_true(test_is_intact(&frames[i], i));
  assert_int_equal(b->ops->rx_burst(b, frames, 16), 5);
  for (uint32_t i = 0; i < 5; i++) assert_true(test_is_intact(&frames[i], i + 3));
  for (uint32_t round = 0; round < 100; round++) { /* the ring goes round */
    assert_int_equal(b->ops->rx_burst(b, frames, 16), round == 0 ? 0 : 3);
    for (uint32_t i = 0; i < 3 && round > 0; i++) assert_true(test_is_intact(&frames[i], (round - 1) * 3 + i));
    test_send(a, round * 3, 100, 3, 99, &to, 1);
  }
  assert_int_equal(a->stats.tx_lost_frames, 7);
  a->ops->close(a);
  b->ops->close(b);
  sml_mem_hub_destroy(hub);
}

static void test_what_cannot_be_delivered(void **state) {
  (void)state;
  struct sml_mem_hub *hub = sml_mem_hub_create();
  struct sml_netio *a = sml_mem_open(hub, 8, 200), *b = sml_mem_open(hub, 8, 100);
  struct sml_addr to[3] = {test_addr_of(b), {.num_bytes = 0}, test_addr_of(b)};
  struct sml_rx_frame frames[16];
  struct sml_tx_burst burst;
  sml_addr_set_port(&to[2], 999);
  test_send(a, 0, 100, 1, 100, to, 3);
  assert_int_equal(a->stats.tx_frames, 1);
  assert_int_equal(a->stats.tx_lost_frames, 2);
  test_send(a, 1, 101, 1, 101, to, 1); /* longer than the receiver takes */
  assert_int_equal(b->ops->rx_burst(b, frames, 16), 1);
  assert_int_equal(b->stats.rx_truncated_frames, 1);
  const struct sml_addr gone = test_addr_of(b);
  b->ops->close(b);
  b = sml_mem_open(hub, 8, 100);
  test_send(a, 2, 100, 1, 100, &gone, 1); /* a new port is not the old one */
  assert_int_equal(b->ops->rx_burst(b, frames, 16), 0);
  a->ops->tx_reserve(a, 201, &burst);
  assert_int_equal(burst.max_frames, 0);
  a->ops->tx_reserve(a, 0, &burst);
  assert_int_equal(burst.max_frames, 0);
  a->ops->tx_commit(a, &burst, 0, 0, to, 1);
  a->ops->tx_reserve(a, 1, &burst);
  assert_int_equal(burst.max_frames, 64);
  a->ops->close(a);
  b->ops->close(b);
  sml_mem_hub_destroy(hub);
}

static void test_wait_and_wake(void **state) {
  (void)state;
  struct sml_mem_hub *hub = sml_mem_hub_create();
  struct sml_netio *a = sml_mem_open(hub, 8, 100);
  const struct sml_addr self = test_addr_of(a);
  struct sml_rx_frame frames[8];
  const uint64_t start_ns = test_now_ns();
  a->ops->wait(a, 20 * SML_NS_PER_MS);
  assert_true(test_now_ns() - start_ns >= 20 * SML_NS_PER_MS);
  a->ops->wait(a, 0);
  a->ops->wake(a);
  a->ops->wait(a, SML_NEVER);
  const uint64_t woken_ns = test_now_ns();
  a->ops->wait(a, 5 * SML_NS_PER_MS); /* the wake-up is used up */
  assert_true(test_now_ns() - woken_ns >= 5 * SML_NS_PER_MS);
  test_send(a, 0, 100, 2, 100, &self, 1);
  a->ops->wait(a, SML_NEVER);
  assert_int_equal(a->ops->rx_burst(a, frames, 1), 1);
  a->ops->wait(a, SML_NEVER); /* one is left */
  assert_int_equal(a->ops->rx_burst(a, frames, 8), 1);
  a->ops->wait(a, SML_NS_PER_MS); /* lent ones are no reason to return, and time passes */
  a->ops->close(a);
  sml_mem_hub_destroy(hub);
}

struct sender {
  struct sml_netio *io;
  struct sml_addr to;
  uint32_t num_frames;
};

static void *send_all(void *argument) {
  struct sender *s = argument;
  for (uint32_t i = 0; i < s->num_frames; i++) {
    const uint64_t lost = s->io->stats.tx_lost_frames;
    test_send(s->io, i, 64, 1, 64, &s->to, 1);
    if (s->io->stats.tx_lost_frames > lost) {
      i--;
      s->io->ops->wait(s->io, 10 * SML_NS_PER_US);
    }
  }
  return NULL;
}

static void test_senders_on_many_threads(void **state) {
  (void)state;
  enum { SENDERS = 3, FRAMES = 5000 };
  struct sml_mem_hub *hub = sml_mem_hub_create();
  struct sml_netio *receiver = sml_mem_open(hub, 32, 64);
  struct sender senders[SENDERS];
  struct sml_addr addrs[SENDERS];
  pthread_t threads[SENDERS];
  uint32_t next[SENDERS] = {0};
  for (size_t i = 0; i < SENDERS; i++) {
    senders[i] = (struct sender){sml_mem_open(hub, 1, 64), test_addr_of(receiver), FRAMES};
    addrs[i] = test_addr_of(senders[i].io);
    assert_int_equal(pthread_create(&threads[i], NULL, send_all, &senders[i]), 0);
  }
  for (uint32_t num = 0; num < SENDERS * FRAMES;) {
    struct sml_rx_frame frames[16];
    receiver->ops->wait(receiver, SML_NEVER);
    const size_t got = receiver->ops->rx_burst(receiver, frames, 16);
    for (size_t i = 0; i < got; i++) {
      size_t s = 0;
      while (s < SENDERS && !sml_addr_equal(&addrs[s], frames[i].from)) s++;
      assert_true(s < SENDERS);
      assert_true(test_is_intact(&frames[i], next[s]++)); /* in order for each sender */
    }
    num += (uint32_t)got;
  }
  for (size_t i = 0; i < SENDERS; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
    senders[i].io->ops->close(senders[i].io);
  }
  receiver->ops->close(receiver);
  sml_mem_hub_destroy(hub);
}

/* Wherever it stands among the members of all groups. */
static void test_a_closed_port_is_in_no_group(void **state) {
  (void)state;
  struct sml_mem_hub *hub = sml_mem_hub_create();
  struct sml_netio *stays = sml_mem_open(hub, 8, FRAME_BYTES);
  const struct sml_addr via = test_addr_of(stays);
  struct sml_addr group;
  sml_mem_group(0, &group);
  for (uint32_t i = 0; i < 1000; i++) { /* more than a hub has members */
    struct sml_netio *goes = sml_mem_open(hub, 8, FRAME_BYTES);
    assert_int_equal(goes->ops->join_group(goes, &group, &via), 0);
    assert_int_equal(stays->ops->join_group(stays, &group, &via), 0);
    goes->ops->close(goes);
    stays->ops->leave_group(stays, &group);
  }
  stays->ops->close(stays);
  sml_mem_hub_destroy(hub);
}

static void test_groups(void **state) {
  (void)state;
  struct sml_mem_hub *hub = sml_mem_hub_create();
  struct sml_netio *a = sml_mem_open(hub, 8, FRAME_BYTES), *b = sml_mem_open(hub, 8, FRAME_BYTES),
                   *c = sml_mem_open(hub, 8, FRAME_BYTES);
  const struct sml_addr via = test_addr_of(a);
  struct sml_addr group, other;
  struct sml_rx_frame frames[16];
  sml_mem_group(0, &group);
  sml_mem_group(SML_MEM_GROUPS - 1, &other);
  assert_int_equal(b->ops->join_group(b, &via, &via), -EINVAL); /* no group */
  assert_int_equal(b->ops->join_group(b, &group, &via), 0);
  assert_int_equal(c->ops->join_group(c, &group, &via), 0);
  assert_int_equal(c->ops->join_group(c, &other, &via), 0);
  test_send(a, 0, 100, 10, 50, &group, 1);
  assert_int_equal(a->stats.tx_frames, 10); /* once, though each of them had room for 8 */
  assert_int_equal(a->stats.tx_bytes, 950);
  assert_int_equal(b->ops->rx_burst(b, frames, 16), 8);
  assert_true(test_is_intact(&frames[7], 7) && sml_addr_equal(frames[7].from, &via));
  assert_int_equal(c->ops->rx_burst(c, frames, 16), 8);
  assert_int_equal(a->ops->rx_burst(a, frames, 16), 0);
  assert_int_equal(c->ops->rx_burst(c, frames, 16), 0); /* gives back what was lent */
  b->ops->leave_group(b, &group);
  b->ops->leave_group(b, &group); /* of one that it is not in: nothing */
  test_send(a, 0, 100, 1, 100, &group, 1);
  assert_int_equal(b->ops->rx_burst(b, frames, 16), 0);
  assert_int_equal(c->ops->rx_burst(c, frames, 16), 1);
  for (uint32_t i = 2; i < SML_NETIO_MAX_GROUPS; i++) assert_int_equal(c->ops->join_group(c, &group, &via), 0);
  assert_int_equal(c->ops->join_group(c, &group, &via), -ENOBUFS);
  c->ops->close(c); /* leaves all */
  test_send(a, 0, 100, 1, 100, &group, 1);
  assert_int_equal(a->stats.tx_lost_frames, 0);
  a->ops->close(a);
  b->ops->close(b);
  sml_mem_hub_destroy(hub);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_bursts_arrive_whole),
                                     cmocka_unit_test(test_overflow_is_lost_and_counted),
                                     cmocka_unit_test(test_what_cannot_be_delivered),
                                     cmocka_unit_test(test_wait_and_wake),
                                     cmocka_unit_test(test_groups),
                                     cmocka_unit_test(test_a_closed_port_is_in_no_group),
                                     cmocka_unit_test(test_senders_on_many_threads)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
