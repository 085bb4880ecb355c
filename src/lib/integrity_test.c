/* SPDX-License-Identifier: Apache-2.0
 * An aggregator that adds wrong. Between the ranks and an honest one stands a relay that changes sums and
 * seals them again: header, length, CRC, MAC and grant are all right, only the number is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/wire.h"
#include "ctl/message.h"
#include "lib/test_world.h"

#define RELAY_RANKS 2u

/* For each rank a connection to the aggregator, and a socket that is its address there. */
struct leg {
  int worker_fd, daemon_fd; /* control */
  int up_fd;                /* data */
  struct sockaddr_in worker;
};

static struct relay {
  int listen_fd, data_fd;
  uint16_t daemon_port, data_port;
  struct leg legs[RELAY_RANKS];
  uint32_t num_legs, num_sources;
  _Atomic uint32_t num_lies_left;
  _Atomic bool should_stop;
  pthread_t thread;
} relay;

static struct sockaddr_in loopback(uint16_t port) {
  return (struct sockaddr_in){
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int open_socket(int type, uint16_t *port_out) {
  struct sockaddr_in a = loopback(0);
  socklen_t a_bytes = sizeof a;
  const int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
  if (bind(fd, (struct sockaddr *)&a, sizeof a) != 0) return -1;
  getsockname(fd, (struct sockaddr *)&a, &a_bytes);
  *port_out = ntohs(a.sin_port);
  return fd;
}

static void accept_leg(void) {
  struct leg *leg = &relay.legs[relay.num_legs++];
  const struct sockaddr_in to = loopback(relay.daemon_port);
  leg->worker_fd = accept(relay.listen_fd, NULL, NULL);
  leg->daemon_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  (void)!connect(leg->daemon_fd, (const struct sockaddr *)&to, sizeof to);
}

/* One recv() is one or more whole messages here: loopback, small, written at once. */
static void pass_control(int from_fd, int to_fd, bool is_down) {
  uint8_t in[8192], out[8192];
  const ssize_t n = recv(from_fd, in, sizeof in, 0);
  if (n <= 0) {
    shutdown(to_fd, SHUT_WR);
    return;
  }
  size_t used = 0, consumed, written = 0;
  struct sml_ctl_message m;
  while (sml_ctl_decode(in + used, (size_t)n - used, &m, &consumed) == SML_CTL_DECODED) {
    if (is_down && m.kind == SML_CTL_WELCOME) {
      for (uint32_t r = 0; r < relay.num_legs; r++) {
        const struct sockaddr_in to = loopback(m.u.welcome.data_ports[0]);
        (void)!connect(relay.legs[r].up_fd, (const struct sockaddr *)&to, sizeof to);
      }
      m.u.welcome.data_ports[0] = relay.data_port;
    }
    written += sml_ctl_encode(&m, out + written, sizeof out - written);
    used += consumed;
  }
  (void)!send(to_fd, out, written, MSG_NOSIGNAL);
}

static void pass_up(void) {
  uint8_t frame[65536];
  struct sockaddr_in from;
  socklen_t from_bytes = sizeof from;
  const ssize_t n = recvfrom(relay.data_fd, frame, sizeof frame, 0, (struct sockaddr *)&from, &from_bytes);
  uint32_t i = 0;
  while (i < relay.num_sources && relay.legs[i].worker.sin_port != from.sin_port) i++;
  if (i == RELAY_RANKS) return;
  if (i == relay.num_sources) relay.legs[relay.num_sources++].worker = from;
  if (n > 0) (void)!send(relay.legs[i].up_fd, frame, (size_t)n, 0);
}

static void pass_down(const struct leg *leg) {
  uint8_t frame[65536];
  struct sml_header h;
  const ssize_t n = recv(leg->up_fd, frame, sizeof frame, 0);
  if (n <= 0) return;
  if (sml_wire_open(frame, (size_t)n, &h) == SML_WIRE_OK && h.type == SML_PACKET_RESULT &&
      h.wire != SML_LANES_UINT8 && relay.num_lies_left > 0 && leg == &relay.legs[0]) {
    const struct sml_seal seal = {.mask = sml_wire_mask(frame, &h)};
    relay.num_lies_left--;
    frame[SML_HEADER_BYTES + 3] ^= 1;
    sml_wire_seal(frame, &h, &seal);
  }
  sendto(relay.data_fd, frame, (size_t)n, 0, (const struct sockaddr *)&leg->worker, sizeof leg->worker);
}

static void *run_relay(void *argument) {
  (void)argument;
  while (!relay.should_stop) {
    struct pollfd p[2 + 3 * RELAY_RANKS] = {{.fd = relay.listen_fd, .events = POLLIN},
                                            {.fd = relay.data_fd, .events = POLLIN}};
    nfds_t num_fds = 2;
    for (uint32_t r = 0; r < relay.num_legs; r++) {
      p[num_fds++] = (struct pollfd){.fd = relay.legs[r].worker_fd, .events = POLLIN};
      p[num_fds++] = (struct pollfd){.fd = relay.legs[r].daemon_fd, .events = POLLIN};
      p[num_fds++] = (struct pollfd){.fd = relay.legs[r].up_fd, .events = POLLIN};
    }
    poll(p, num_fds, 20);
    for (uint32_t r = 0; r < (num_fds - 2) / 3; r++) {
      struct leg *leg = &relay.legs[r];
      if (p[2 + 3 * r].revents) pass_control(leg->worker_fd, leg->daemon_fd, false);
      if (p[3 + 3 * r].revents) pass_control(leg->daemon_fd, leg->worker_fd, true);
      if (p[4 + 3 * r].revents) pass_down(leg);
    }
    if (p[0].revents && relay.num_legs < RELAY_RANKS) accept_leg();
    if (p[1].revents) pass_up();
  }
  return NULL;
}

static void start_relay(struct world *w, uint32_t num_lies) {
  uint16_t port;
  memset(&relay, 0, sizeof relay);
  relay.listen_fd = open_socket(SOCK_STREAM, &port);
  relay.data_fd = open_socket(SOCK_DGRAM, &relay.data_port);
  assert_true(relay.listen_fd >= 0 && relay.data_fd >= 0);
  assert_int_equal(listen(relay.listen_fd, 4), 0);
  struct sml_addr addr;
  sml_aggd_addr(w->aggd, &addr);
  relay.daemon_port = sml_addr_port(&addr);
  for (uint32_t r = 0; r < RELAY_RANKS; r++) {
    uint16_t unused;
    relay.legs[r].up_fd = open_socket(SOCK_DGRAM, &unused);
  }
  relay.num_lies_left = num_lies;
  snprintf(w->address, sizeof w->address, "127.0.0.1:%u", port);
  assert_int_equal(pthread_create(&relay.thread, NULL, run_relay, NULL), 0);
}

static void stop_relay(void) {
  relay.should_stop = true;
  pthread_join(relay.thread, NULL);
  close(relay.listen_fd);
  close(relay.data_fd);
  for (uint32_t r = 0; r < RELAY_RANKS; r++) {
    close(relay.legs[r].up_fd);
    if (r >= relay.num_legs) continue;
    close(relay.legs[r].worker_fd);
    close(relay.legs[r].daemon_fd);
  }
}

static sml_status statuses[RELAY_RANKS];
static sml_reduction reduction;
static _Atomic uint32_t num_wrong;
static _Atomic uint64_t num_check_failures;
static char details[RELAY_RANKS][256];

static void sum(struct rank *r) {
  int32_t x[300];
  for (int32_t i = 0; i < 300; i++) x[i] = reduction == SML_SUM ? i : i + 1;
  statuses[r->rank] = allreduce(r, x, x, 300, SML_INT32, reduction);
  snprintf(details[r->rank], sizeof details[0], "%s", sml_error_detail());
  for (int32_t i = 0; i < 300 && statuses[r->rank] == SML_OK; i++)
    num_wrong += x[i] != (reduction == SML_SUM ? 2 * i : i + 1);
  sml_stats stats = SML_STATS_INIT;
  CHECK(r, sml_job_stats(r->job, &stats) == SML_OK);
  num_check_failures += stats.check_failures; /* of the one that is lied to; the other one's is 0 */
}

static void run(uint32_t check, uint32_t num_lies) {
  struct world w;
  world_init(&w, RELAY_RANKS);
  w.job_options.check = check;
  w.job_options.operation_timeout_ns = 20 * SML_NS_PER_S;
  num_wrong = 0;
  num_check_failures = 0;
  world_start_aggd(&w);
  start_relay(&w, num_lies);
  world_join(&w);
  world_run(&w, sum);
  world_stop(&w);
  stop_relay();
}

static void without_check_words_a_lie_is_believed(void **state) {
  (void)state;
  run(2, 1);
  assert_int_equal(statuses[0], SML_OK);
  assert_int_equal(statuses[1], SML_OK);
  assert_int_equal(num_wrong, 1);
}

static void a_wrong_sum_is_asked_for_again(void **state) {
  (void)state;
  run(1, 1);
  assert_int_equal(statuses[0], SML_OK);
  assert_int_equal(statuses[1], SML_OK);
  assert_int_equal(num_wrong, 0);
  assert_int_equal(num_check_failures, 1);
}

/* A rank gets a result that lacks a bit of its own contribution. */
static void what_lacks_ones_own_is_asked_for_again(void **state) {
  (void)state;
  for (reduction = SML_MAX; reduction != SML_SUM; reduction = reduction == SML_MAX ? SML_BOR : SML_SUM)
    for (uint32_t check = 1; check <= 2; check++) {
      run(check, 1);
      assert_true(statuses[0] == SML_OK && statuses[1] == SML_OK);
      assert_int_equal(num_wrong, check == 1 ? 0 : 1);
      assert_int_equal(num_check_failures, check == 1 ? 1 : 0);
    }
}

static void two_wrong_sums_end_the_job_on_every_rank(void **state) {
  (void)state;
  run(1, 1000);
  assert_int_equal(num_wrong, 0);
  uint32_t num_failed = 0;
  for (uint32_t r = 0; r < RELAY_RANKS; r++) {
    if (statuses[r] == SML_OK) continue; /* it has the right sum; its next operation fails */
    num_failed++;
    assert_int_equal(statuses[r], SML_ERR_INTEGRITY);
    assert_non_null(strstr(details[r], "operation 0"));
    assert_non_null(strstr(details[r], "lane 0 slot 0"));
  }
  assert_true(num_failed > 0);
  assert_int_equal(num_check_failures, 2);
}

static void fail_on_the_next(struct rank *r) {
  sum(r);
  sml_status status = SML_OK;
  for (uint32_t i = 0; i < 500 && status == SML_OK; i++) {
    status = sml_job_error(r->job, NULL);
    usleep(10 * 1000);
  }
  CHECK(r, status == SML_ERR_INTEGRITY, "%d", status);
}

static void a_rank_that_was_not_lied_to_hears_of_it(void **state) {
  (void)state;
  struct world w;
  world_init(&w, RELAY_RANKS);
  w.job_options.check = 1;
  world_start_aggd(&w);
  start_relay(&w, 1000);
  world_join(&w);
  world_run(&w, fail_on_the_next);
  world_stop(&w);
  stop_relay();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(without_check_words_a_lie_is_believed),
      cmocka_unit_test(a_wrong_sum_is_asked_for_again),
      cmocka_unit_test(what_lacks_ones_own_is_asked_for_again),
      cmocka_unit_test(two_wrong_sums_end_the_job_on_every_rank),
      cmocka_unit_test(a_rank_that_was_not_lied_to_hears_of_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
