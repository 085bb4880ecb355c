/* SPDX-License-Identifier: Apache-2.0
 * The udp back end over the loopback, with segmentation offload and without. */
#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/test_skip.h"
#include "netio/test_support.h"
#include "netio/udp_internal.h"

#define NUM_PEERS 5u
#define MAX_FRAMES 1024u
#define SKIPPED 77

static struct sml_netio *open_on(const char *host, bool no_offload, uint32_t buffer_bytes) {
  struct sml_netio *io;
  struct sml_addr addr;
  char error[160];
  assert_true(sml_addr_parse(host, 0, &addr, error, sizeof error));
  const struct sml_udp_options options = {
      .bind_addr = &addr, .rx_buffer_bytes = buffer_bytes, .no_offload = no_offload};
  const int rc = sml_udp_open(&options, &io, error, sizeof error);
  if (rc == -EADDRNOTAVAIL || rc == -EAFNOSUPPORT) return NULL;
  if (rc != 0) fail_msg("%s", error);
  assert_string_equal(io->ops->name, "udp");
  assert_int_equal(io->max_frame_bytes, 65507);
  return io;
}

static struct sml_netio *open_loopback(bool no_offload) {
  return open_on("127.0.0.1:0", no_offload, 4u << 20);
}

/* The two paths of a test: *state is the no_offload option. */
static bool no_offload_of(void **state) {
  return *(const bool *)*state;
}

static int note_missing_offload(void **state) {
  (void)state;
  struct sml_netio *io = open_loopback(false);
  const bool has_offload = io->has_segmentation_offload;
  io->ops->close(io);
  if (!has_offload) print_message("no UDP_SEGMENT and UDP_GRO in this kernel: the plain path runs twice\n");
  return 0;
}

/* Receives frames first .. first + num - 1 in order, rx_max a burst; the last one has last_bytes. */
static void expect_frames(struct sml_netio *io, uint32_t first, uint32_t num, uint32_t frame_bytes, uint32_t last_bytes,
                          const struct sml_addr *from, size_t rx_max) {
  struct sml_rx_frame frames[MAX_FRAMES];
  for (uint32_t got = 0; got < num;) {
    const size_t n = test_receive(io, frames, sml_min_u64(rx_max, MAX_FRAMES));
    if (n == 0) fail_msg("only %u of %u frames arrived", got, num);
    assert_true(n <= rx_max);
    for (size_t i = 0; i < n; i++, got++) {
      assert_int_equal(frames[i].num_bytes, got + 1 == num ? last_bytes : frame_bytes);
      assert_true(test_is_intact(&frames[i], first + got));
      assert_true(sml_addr_equal(frames[i].from, from));
    }
  }
  assert_int_equal(io->ops->rx_burst(io, frames, MAX_FRAMES), 0);
}

static void test_bursts_to_peers(void **state) {
  static const struct {
    uint32_t frame_bytes, num_frames, last_bytes;
  } bursts[] = {{1472, 44, 1472}, {1472, 44, 1}, {1472, 2, 1471},   {1472, 1, 1472}, {1472, 1, 5}, {1000, 64, 999},
                {8960, 7, 8960},  {32753, 2, 4}, {65507, 1, 65507}, {4, 64, 4},      {5, 64, 4}};
  struct sml_netio *sender = open_loopback(no_offload_of(state)), *peers[NUM_PEERS];
  const struct sml_addr from = test_addr_of(sender);
  struct sml_addr addrs[NUM_PEERS];
  uint64_t num_frames = 0, num_bytes = 0;
  if (no_offload_of(state)) assert_false(sender->has_segmentation_offload);
  for (size_t p = 0; p < NUM_PEERS; p++) {
    peers[p] = open_loopback(p % 2 == 1); /* both kinds of receiver */
    addrs[p] = test_addr_of(peers[p]);
  }
  for (uint32_t b = 0; b < SML_ARRAY_LEN(bursts); b++) {
    const uint64_t calls = sender->stats.system_calls;
    test_send(sender, b * 100, bursts[b].frame_bytes, bursts[b].num_frames, bursts[b].last_bytes, addrs, NUM_PEERS);
    if (sender->has_segmentation_offload) assert_int_equal(sender->stats.system_calls, calls + 1);
    for (size_t p = 0; p < NUM_PEERS; p++)
      expect_frames(peers[p], b * 100, bursts[b].num_frames, bursts[b].frame_bytes, bursts[b].last_bytes, &from,
                    MAX_FRAMES);
    num_frames += bursts[b].num_frames;
    num_bytes += (bursts[b].num_frames - 1) * bursts[b].frame_bytes + bursts[b].last_bytes;
  }
  assert_int_equal(sender->stats.tx_frames, num_frames * NUM_PEERS);
  assert_int_equal(sender->stats.tx_bytes, num_bytes * NUM_PEERS);
  assert_int_equal(sender->stats.tx_lost_frames, 0);
  for (size_t p = 0; p < NUM_PEERS; p++) {
    assert_int_equal(peers[p]->stats.rx_frames, num_frames);
    assert_int_equal(peers[p]->stats.rx_bytes, num_bytes);
    assert_int_equal(peers[p]->stats.rx_truncated_frames, 0);
    peers[p]->ops->close(peers[p]);
  }
  sender->ops->close(sender);
}

/* What a loopback took has left. Behind a wrapper, too, it is one call. */
static void test_what_waits(void **state) {
  struct sml_netio *io = sml_faults_wrap(open_loopback(no_offload_of(state)), &(struct sml_fault_options){.seed = 1});
  assert_non_null(io);
  const struct sml_addr self = test_addr_of(io);
  test_send(io, 1, 1000, 40, 1000, &self, 1);
  const uint64_t calls = io->stats.system_calls;
  assert_int_equal(io->ops->tx_waiting(io), 0);
  assert_int_equal(io->stats.system_calls, calls + 1);
  io->ops->close(io);
}

static void test_small_rx_bursts_lose_nothing(void **state) {
  static const size_t rx_maxes[] = {1, 2, 7, 63, 64, 65, 100};
  struct sml_netio *a = open_loopback(no_offload_of(state)), *b = open_loopback(no_offload_of(state));
  const struct sml_addr from = test_addr_of(a), to = test_addr_of(b);
  struct sml_rx_frame frame;
  for (size_t i = 0; i < SML_ARRAY_LEN(rx_maxes); i++) {
    test_send(a, 0, 1000, 64, 1000, &to, 1);
    test_send(a, 64, 1000, 64, 3, &to, 1);
    expect_frames(b, 0, 128, 1000, 3, &from, rx_maxes[i]);
  }
  test_send(a, 0, 1000, 3, 1000, &to, 1);
  assert_int_equal(b->ops->rx_burst(b, &frame, 0), 0);
  for (uint32_t i = 0; i < 3; i++) {
    b->ops->wait(b, SML_NEVER); /* what is left of a coalesced burst ends a wait */
    assert_int_equal(b->ops->rx_burst(b, &frame, 1), 1);
    assert_true(test_is_intact(&frame, i));
  }
  a->ops->close(a);
  b->ops->close(b);
}

static void test_one_call_receives_many_bursts(void **state) {
  struct sml_netio *a = open_loopback(no_offload_of(state)), *b = open_loopback(no_offload_of(state));
  const struct sml_addr to = test_addr_of(b);
  static struct sml_rx_frame frames[MAX_FRAMES];
  for (uint32_t i = 0; i < 4; i++) test_send(a, i * 64, 500, 64, 500, &to, 1);
  const uint64_t calls = b->stats.system_calls;
  const size_t wanted = b->has_segmentation_offload ? 256 : 64;
  assert_int_equal(b->ops->rx_burst(b, frames, MAX_FRAMES), wanted);
  assert_int_equal(b->stats.system_calls, calls + 1);
  for (uint32_t i = 0; i < wanted; i++) assert_true(test_is_intact(&frames[i], i));
  a->ops->close(a);
  b->ops->close(b);
}

static void test_foreign_datagrams(void **state) {
  struct sml_netio *io = open_loopback(no_offload_of(state));
  const struct sml_addr to = test_addr_of(io);
  static const size_t sizes[] = {0, 1, 65507, 0, 3};
  static uint8_t data[65507];
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  struct sml_rx_frame frames[8];
  for (size_t i = 0; i < SML_ARRAY_LEN(sizes); i++)
    assert_int_equal(sendto(fd, data, sizes[i], 0, (const struct sockaddr *)(const void *)to.bytes, to.num_bytes),
                     (ssize_t)sizes[i]);
  for (size_t got = 0; got < SML_ARRAY_LEN(sizes);) {
    const size_t n = test_receive(io, frames, 8);
    assert_true(n > 0);
    for (size_t i = 0; i < n; i++) assert_int_equal(frames[i].num_bytes, sizes[got++]);
  }
  assert_int_equal(close(fd), 0);
  io->ops->close(io);
}

static void test_bad_peers_end_nothing(void **state) {
  struct sml_netio *a = open_loopback(no_offload_of(state)), *b = open_loopback(false);
  const bool had_offload = a->has_segmentation_offload;
  const struct sml_addr from = test_addr_of(a);
  struct sml_netio *gone = open_loopback(false);
  struct sml_addr peers[6] = {test_addr_of(b),
                              test_addr_of(b),
                              {.num_bytes = 0},
                              test_addr_of(gone),
                              {.bytes = {0xff, 0xff, 0, 1}, .num_bytes = 4},
                              test_addr_of(b)};
  gone->ops->close(gone);
  sml_addr_set_port(&peers[1], 0);
  for (uint32_t round = 0; round < 20; round++) { /* ICMP errors come back from the port that is gone */
    test_send(a, 0, 1000, 4, 900, peers, 6);
    struct sml_rx_frame frames[8];
    for (uint32_t got = 0; got < 8;) {
      const size_t n = test_receive(b, frames, 8);
      assert_true(n > 0);
      for (size_t i = 0; i < n; i++, got++) assert_true(test_is_intact(&frames[i], got % 4));
      for (size_t i = 0; i < n; i++) assert_true(sml_addr_equal(frames[i].from, &from));
    }
  }
  assert_int_equal(a->stats.tx_lost_frames, 20 * 3 * 4);
  assert_true(a->has_segmentation_offload == had_offload);
  a->ops->close(a);
  b->ops->close(b);
}

static void test_receiving_outlives_a_fall_back(void **state) {
  struct sml_netio *a = open_loopback(no_offload_of(state)), *b = open_loopback(no_offload_of(state));
  const struct sml_addr from = test_addr_of(a), to = test_addr_of(b), back = test_addr_of(b);
  sml_udp_of(b)->is_segmenting = false; /* as a refused send leaves it */
  test_send(a, 0, 1000, 64, 10, &to, 1);
  expect_frames(b, 0, 64, 1000, 10, &from, MAX_FRAMES);
  test_send(b, 0, 1000, 64, 10, &from, 1);
  expect_frames(a, 0, 64, 1000, 10, &back, MAX_FRAMES);
  a->ops->close(a);
  b->ops->close(b);
}

static void test_overflow_ends_nothing(void **state) {
  struct sml_netio *a = open_loopback(no_offload_of(state));
  struct sml_netio *b = open_on("127.0.0.1:0", no_offload_of(state), 20000);
  const struct sml_addr from = test_addr_of(a), to = test_addr_of(b);
  struct sml_rx_frame frames[MAX_FRAMES];
  for (uint32_t i = 0; i < 200; i++) test_send(a, 0, 1000, 64, 1000, &to, 1);
  while (b->ops->rx_burst(b, frames, MAX_FRAMES) > 0) continue;
  assert_true(b->stats.rx_frames < a->stats.tx_frames);
  test_send(a, 7, 1000, 2, 1000, &to, 1);
  expect_frames(b, 7, 2, 1000, 1000, &from, MAX_FRAMES);
  a->ops->close(a);
  b->ops->close(b);
}

static void test_ipv6(void **state) {
  struct sml_netio *a = open_on("[::1]:0", no_offload_of(state), 1u << 20);
  if (a == NULL) SKIP_TEST("this host has no IPv6 loopback");
  struct sml_netio *b = open_on("[::1]:0", no_offload_of(state), 1u << 20);
  const struct sml_addr from = test_addr_of(a), to = test_addr_of(b);
  int value = -1;
  socklen_t num_bytes = sizeof value;
  assert_int_equal(getsockopt(sml_udp_of(a)->socket_fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &value, &num_bytes), 0);
  assert_int_equal(value, IPV6_PMTUDISC_PROBE);
  test_send(a, 0, 1452, 45, 700, &to, 1);
  expect_frames(b, 0, 45, 1452, 700, &from, MAX_FRAMES);
  test_send(a, 9, 65000, 1, 65000, &to, 1);
  expect_frames(b, 9, 1, 65000, 65000, &from, MAX_FRAMES);
  a->ops->close(a);
  b->ops->close(b);
}

static void test_open_failures(void **state) {
  (void)state;
  struct sml_netio *io = open_loopback(false), *other = io;
  const struct sml_addr taken = test_addr_of(io), mem = {.bytes = {0xff, 0xff, 0, 1}, .num_bytes = 4};
  const struct sml_addr none = {.num_bytes = 0};
  struct sml_addr foreign;
  char error[160];
  assert_true(sml_addr_parse("192.0.2.1:9", 0, &foreign, error, sizeof error));
  const struct {
    const struct sml_addr *addr;
    int rc;
    const char *says;
  } rows[] = {{&taken, -EADDRINUSE, "choose another port"},
              {&foreign, -EADDRNOTAVAIL, "192.0.2.1:9: cannot bind"},
              {&mem, -EAFNOSUPPORT, "neither IPv4 nor IPv6"},
              {&none, -EAFNOSUPPORT, "neither IPv4 nor IPv6"}};
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    const struct sml_udp_options options = {.bind_addr = rows[i].addr};
    assert_int_equal(sml_udp_open(&options, &other, error, sizeof error), rows[i].rc);
    assert_null(other);
    if (strstr(error, rows[i].says) == NULL) fail_msg("said %s", error);
  }
  int value = -1;
  socklen_t num_bytes = sizeof value;
  assert_int_equal(getsockopt(sml_udp_of(io)->socket_fd, IPPROTO_IP, IP_MTU_DISCOVER, &value, &num_bytes), 0);
  assert_int_equal(value, IP_PMTUDISC_PROBE);
  io->ops->close(io);
}

/* In a process and a network namespace of its own, whose loopback is set to 1500 bytes. Exit status: 0,
 * SKIPPED, or 1 with the failed claim on stderr. */
#define CHILD_CHECK(claim)                                      \
  do {                                                          \
    if (!(claim)) {                                             \
      (void)fprintf(stderr, "line %d: %s\n", __LINE__, #claim); \
      _exit(1);                                                 \
    }                                                           \
  } while (0)

static void set_up_loopback(int mtu) {
  struct ifreq request = {.ifr_name = "lo"};
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  request.ifr_mtu = mtu;
  CHILD_CHECK(ioctl(fd, SIOCSIFMTU, &request) == 0);
  request.ifr_flags = IFF_UP;
  CHILD_CHECK(ioctl(fd, SIOCSIFFLAGS, &request) == 0);
  CHILD_CHECK(close(fd) == 0);
}

static _Noreturn void run_with_small_mtu(bool no_offload) {
  if (unshare(geteuid() == 0 ? CLONE_NEWNET : CLONE_NEWUSER | CLONE_NEWNET) != 0) _exit(SKIPPED);
  set_up_loopback(1500);
  struct sml_netio *a = open_loopback(no_offload), *b = open_loopback(no_offload);
  const bool had_offload = a->has_segmentation_offload;
  const struct sml_addr to = test_addr_of(b);
  struct sml_rx_frame frames[64];
  test_send(a, 0, 1473, 1, 1473, &to, 1); /* one byte too long for don't-fragment */
  CHILD_CHECK(a->stats.tx_lost_frames == 1 && a->stats.tx_frames == 0);
  test_send(a, 1, 1472, 1, 1472, &to, 1);
  CHILD_CHECK(test_receive(b, frames, 64) == 1 && test_is_intact(&frames[0], 1));
  test_send(a, 2, 9000, 7, 100, &to, 1); /* too long segments; the short last one may pass */
  CHILD_CHECK(a->stats.tx_lost_frames >= 7 && a->stats.tx_lost_frames + a->stats.tx_frames == 9);
  CHILD_CHECK(a->has_segmentation_offload == had_offload);
  while (b->ops->rx_burst(b, frames, 64) > 0) continue;
  test_send(a, 20, 1472, 44, 1472, &to, 1);
  CHILD_CHECK(a->has_segmentation_offload == had_offload && a->stats.tx_lost_frames <= 8);
  for (uint32_t got = 0; got < 44;) {
    const size_t n = test_receive(b, frames, 64);
    CHILD_CHECK(n > 0);
    for (size_t i = 0; i < n; i++) CHILD_CHECK(test_is_intact(&frames[i], 20 + got++));
  }
  a->ops->close(a);
  b->ops->close(b);
  _exit(0);
}

static void test_mtu_too_small(void **state) {
  (void)fflush(NULL);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) run_with_small_mtu(no_offload_of(state));
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  if (WEXITSTATUS(status) == SKIPPED) SKIP_TEST("may not make a network namespace");
  assert_int_equal(WEXITSTATUS(status), 0);
}

/* Ours say that they may be marked, unless told otherwise; of what comes marked every frame shows it, and no other. */
static void test_marks(void **state) {
  static const char *const hosts[] = {"127.0.0.1:0", "[::1]:0"};
  for (size_t k = 0; k < SML_ARRAY_LEN(hosts); k++) {
    struct sml_netio *a = open_on(hosts[k], no_offload_of(state), 0), *b = open_on(hosts[k], no_offload_of(state), 0);
    if (a == NULL || b == NULL) continue;
    const struct sml_addr to = test_addr_of(b);
    const int level = k == 0 ? IPPROTO_IP : IPPROTO_IPV6, option = k == 0 ? IP_TOS : IPV6_TCLASS;
    static const int codes[] = {-1, 0, 1, SML_UDP_ECN_MARKED, SML_UDP_ECN_CAPABLE, 0xb8 | SML_UDP_ECN_MARKED};
    for (size_t i = 0; i < SML_ARRAY_LEN(codes); i++) {
      int code;
      socklen_t code_bytes = sizeof code;
      if (codes[i] >= 0)
        assert_int_equal(setsockopt(sml_udp_of(a)->socket_fd, level, option, &codes[i], sizeof codes[i]), 0);
      assert_int_equal(getsockopt(sml_udp_of(a)->socket_fd, level, option, &code, &code_bytes), 0);
      if (codes[i] < 0) assert_int_equal(code, SML_UDP_ECN_CAPABLE);
      test_send(a, 0, 700, 40, 700, &to, 1);
      for (uint32_t got = 0; got < 40;) {
        struct sml_rx_frame frames[64];
        const size_t n = test_receive(b, frames, 64);
        assert_true(n > 0);
        for (size_t f = 0; f < n; f++) {
          assert_true(test_is_intact(&frames[f], got++));
          assert_int_equal(frames[f].is_marked, (code & 3) == SML_UDP_ECN_MARKED);
        }
      }
    }
    a->ops->close(a);
    b->ops->close(b);
  }
}

static void test_no_ecn(void **state) {
  (void)state;
  struct sml_addr addr;
  struct sml_netio *io;
  char error[160];
  int code = 1;
  socklen_t code_bytes = sizeof code;
  assert_true(sml_addr_parse("127.0.0.1:0", 0, &addr, error, sizeof error));
  const struct sml_udp_options options = {.bind_addr = &addr, .no_ecn = true};
  assert_int_equal(sml_udp_open(&options, &io, error, sizeof error), 0);
  assert_int_equal(getsockopt(sml_udp_of(io)->socket_fd, IPPROTO_IP, IP_TOS, &code, &code_bytes), 0);
  assert_int_equal(code, 0);
  io->ops->close(io);
}

static bool offload_allowed = false, offload_forbidden = true;

#define BOTH_PATHS(test)                                                      \
  {#test " (offload)", test, note_missing_offload, NULL, &offload_allowed}, { \
#test " (plain)", test, NULL, NULL, &offload_forbidden                    \
  }

/* As much as a socket gets that asked for it when it was opened; never less than before. */
static void test_hold(void **state) {
  (void)state;
  struct sml_netio *small = open_on("127.0.0.1:0", false, 64u << 10), *large = open_on("127.0.0.1:0", false, 4u << 20);
  const uint64_t before = small->rx_buffer_bytes;
  assert_true(before < large->rx_buffer_bytes);
  small->ops->hold(small, before);
  assert_int_equal(small->rx_buffer_bytes, before);
  small->ops->hold(small, 8u << 20); /* as the kernel counts: twice what is asked for */
  assert_int_equal(small->rx_buffer_bytes, large->rx_buffer_bytes);
  small->ops->hold(small, 1);
  assert_int_equal(small->rx_buffer_bytes, large->rx_buffer_bytes);
  small->ops->close(small);
  large->ops->close(large);
}

int main(void) {
  const struct CMUnitTest tests[] = {BOTH_PATHS(test_bursts_to_peers),
                                     BOTH_PATHS(test_what_waits),
                                     BOTH_PATHS(test_small_rx_bursts_lose_nothing),
                                     BOTH_PATHS(test_one_call_receives_many_bursts),
                                     BOTH_PATHS(test_foreign_datagrams),
                                     BOTH_PATHS(test_bad_peers_end_nothing),
                                     BOTH_PATHS(test_receiving_outlives_a_fall_back),
                                     BOTH_PATHS(test_overflow_ends_nothing),
                                     BOTH_PATHS(test_ipv6),
                                     BOTH_PATHS(test_mtu_too_small),
                                     BOTH_PATHS(test_marks),
                                     cmocka_unit_test(test_no_ecn),
                                     cmocka_unit_test(test_hold),
                                     cmocka_unit_test(test_open_failures)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
