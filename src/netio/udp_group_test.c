/* SPDX-License-Identifier: Apache-2.0
 * Groups of the udp back end on loopback: one send, a copy for each socket that joined, bursts whole; who left, or
 * never joined, gets nothing; unicast goes on beside it. Groups of their own: tests may run at the same time. */
#include <errno.h>
#include <unistd.h>

#include "netio/test_support.h"

#define NUM_MEMBERS 3u

struct net {
  struct sml_netio *sender, *members[NUM_MEMBERS];
  struct sml_addr from, group;
};

static struct sml_netio *open_on(const char *host, bool no_offload, uint8_t ttl) {
  struct sml_netio *io;
  struct sml_addr addr;
  char error[160];
  assert_true(sml_addr_parse(host, 0, &addr, error, sizeof error));
  const struct sml_udp_options options = {
      .bind_addr = &addr, .rx_buffer_bytes = 4u << 20, .no_offload = no_offload, .multicast_ttl = ttl};
  if (sml_udp_open(&options, &io, error, sizeof error) != 0) fail_msg("%s", error);
  return io;
}

static struct sml_addr make_group(uint32_t lane) {
  struct sml_multicast m = {.num_groups = 0};
  struct sml_addr group;
  char text[64], error[160];
  const unsigned pid = (unsigned)getpid();
  snprintf(text, sizeof text, "239.%u.%u.%u/1", 200 + (pid >> 16 & 15), pid >> 8 & 255, pid & 255);
  assert_true(sml_multicast_parse(text, &m, error, sizeof error));
  assert_true(sml_multicast_group(&m, 0, lane, &group));
  return group;
}

static struct net open_net(bool no_offload) {
  struct net n = {.sender = open_on("127.0.0.1:0", no_offload, 1), .group = make_group(0)};
  n.from = test_addr_of(n.sender);
  for (uint32_t i = 0; i < NUM_MEMBERS; i++) {
    n.members[i] = open_on("0.0.0.0:0", no_offload, 0);
    assert_int_equal(n.members[i]->ops->join_group(n.members[i], &n.group, &n.from), 0);
  }
  return n;
}

static void close_net(struct net *n) {
  for (uint32_t i = 0; i < NUM_MEMBERS; i++) n->members[i]->ops->close(n->members[i]);
  n->sender->ops->close(n->sender);
}

static void expect_frames(struct sml_netio *io, uint32_t first, uint32_t num, const struct sml_addr *from) {
  struct sml_rx_frame frames[64];
  for (uint32_t got = 0; got < num;) {
    const size_t n = test_receive(io, frames, 64);
    if (n == 0) fail_msg("only %u of %u frames arrived", got, num);
    for (size_t i = 0; i < n; i++, got++) {
      assert_true(test_is_intact(&frames[i], first + got));
      assert_true(sml_addr_equal(frames[i].from, from));
    }
  }
}

static void expect_nothing(struct sml_netio *io) {
  struct sml_rx_frame frame;
  io->ops->wait(io, 20 * SML_NS_PER_MS);
  assert_int_equal(io->ops->rx_burst(io, &frame, 1), 0);
}

static void test_all_members_hear(void **state) {
  struct net n = open_net(*(const bool *)*state);
  test_send(n.sender, 100, 1000, 40, 77, &n.group, 1);
  for (uint32_t i = 0; i < NUM_MEMBERS; i++) expect_frames(n.members[i], 100, 40, &n.from);
  assert_int_equal(n.sender->stats.tx_frames, 40);
  if (n.sender->has_segmentation_offload) assert_int_equal(n.sender->stats.system_calls, 1);
  n.members[1]->ops->leave_group(n.members[1], &n.group);
  test_send(n.sender, 200, 1000, 2, 1000, &n.group, 1);
  expect_frames(n.members[0], 200, 2, &n.from);
  expect_frames(n.members[2], 200, 2, &n.from);
  expect_nothing(n.members[1]);
  close_net(&n);
}

/* One socket that always has something does not hide the other. */
static void test_unicast_and_group(void **state) {
  struct net n = open_net(*(const bool *)*state);
  struct sml_addr to[2];
  uint32_t num_of[2] = {0, 0};
  struct sml_netio *io = n.members[0];
  to[0] = n.group;
  to[1] = test_addr_of(io);
  memcpy(to[1].bytes + 4, n.from.bytes + 4, 4); /* its socket is on all interfaces */
  for (uint32_t i = 0; i < 50; i++) {
    test_send(n.sender, i, 500, 1, 500, &to[0], 1);
    test_send(n.sender, 1000 + i, 500, 1, 500, &to[1], 1);
  }
  for (uint32_t k = 0; k < 100; k++) {
    struct sml_rx_frame frame;
    assert_int_equal(test_receive(io, &frame, 1), 1); /* one at a time */
    num_of[test_number(&frame) / 1000]++;
    if (k == 49) assert_true(num_of[0] >= 20 && num_of[1] >= 20);
  }
  assert_true(num_of[0] == 50 && num_of[1] == 50);
  close_net(&n);
}

/* Another group at the same port, and the same group at another port. */
static void test_other_groups_are_not_heard(void **state) {
  struct net n = open_net(*(const bool *)*state);
  struct sml_addr other = n.group, same = make_group(1);
  other.bytes[7] ^= 1; /* the last byte of the address */
  struct sml_netio *there = open_on("0.0.0.0:0", false, 0);
  assert_int_equal(there->ops->join_group(there, &other, &n.from), 0);
  assert_int_equal(there->ops->join_group(there, &same, &n.from), 0);
  test_send(n.sender, 1, 100, 1, 100, &other, 1);
  expect_frames(there, 1, 1, &n.from);
  test_send(n.sender, 2, 100, 1, 100, &same, 1);
  expect_frames(there, 2, 1, &n.from);
  expect_nothing(n.members[0]);
  there->ops->close(there);
  close_net(&n);
}

/* Whoever leaves one group goes on hearing the other. */
static void test_one_of_two_groups_is_left(void **state) {
  struct net n = open_net(*(const bool *)*state);
  const struct sml_addr other = make_group(1);
  struct sml_netio *io = n.members[0];
  assert_int_equal(io->ops->join_group(io, &other, &n.from), 0);
  io->ops->leave_group(io, &n.group); /* the one that was joined first */
  test_send(n.sender, 1, 100, 1, 100, &n.group, 1);
  test_send(n.sender, 2, 100, 1, 100, &other, 1);
  expect_frames(io, 2, 1, &n.from);
  expect_nothing(io);
  close_net(&n);
}

static void test_what_cannot_be_joined(void **state) {
  (void)state;
  struct net n = open_net(false);
  struct sml_netio *io = n.members[0];
  struct sml_addr v6;
  char error[160];
  assert_true(sml_addr_parse("ff15::7:1", 28879, &v6, error, sizeof error));
  assert_int_equal(io->ops->join_group(io, &v6, &n.from), -EAFNOSUPPORT);     /* not where the sender is */
  assert_int_equal(io->ops->join_group(io, &n.from, &n.from), -EAFNOSUPPORT); /* no group */
  for (uint32_t i = 1; i < SML_NETIO_MAX_GROUPS; i++) {
    const struct sml_addr more = make_group(i);
    assert_int_equal(io->ops->join_group(io, &more, &n.from), 0);
  }
  const struct sml_addr more = make_group(9);
  assert_int_equal(io->ops->join_group(io, &more, &n.from), -ENOBUFS);
  /* A port that somebody has on all addresses. */
  struct sml_netio *busy = open_on("0.0.0.0:0", false, 0);
  struct sml_addr taken = test_addr_of(busy);
  memcpy(taken.bytes + 4, n.group.bytes + 4, 4);
  assert_int_equal(n.members[1]->ops->join_group(n.members[1], &taken, &n.from), -EADDRINUSE);
  busy->ops->close(busy);
  n.members[1]->ops->leave_group(n.members[1], &more); /* never joined: nothing */
  close_net(&n);
}

int main(void) {
  static bool offload = false, plain = true;
  const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(test_all_members_hear, &offload),
                                     cmocka_unit_test_prestate(test_all_members_hear, &plain),
                                     cmocka_unit_test_prestate(test_unicast_and_group, &offload),
                                     cmocka_unit_test_prestate(test_unicast_and_group, &plain),
                                     cmocka_unit_test_prestate(test_other_groups_are_not_heard, &offload),
                                     cmocka_unit_test_prestate(test_one_of_two_groups_is_left, &plain),
                                     cmocka_unit_test(test_what_cannot_be_joined)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
