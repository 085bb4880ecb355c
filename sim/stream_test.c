/* SPDX-License-Identifier: Apache-2.0
 * Connections behave as TCP's do: order, ends, resets, refusals, stalls, and what is left of them when a
 * process or a host dies. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sim/test_support.h"

#define PORT 4000u
#define NUM_BYTES 300000u

static struct sockaddr_in address_of(uint32_t ipv4, uint16_t port) {
  return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(ipv4)};
}

/* A listening socket on every address of the host; its fd. */
static int listen_on(uint16_t port, int backlog) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  const struct sockaddr_in addr = address_of(INADDR_ANY, port);
  CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
  CHECK(bind(fd, (const struct sockaddr *)&addr, sizeof addr) == 0 && listen(fd, backlog) == 0);
  return fd;
}

static int accept_blocking(int listen_fd) {
  struct sockaddr_in from;
  socklen_t from_bytes = sizeof from;
  const int fd = accept4(listen_fd, (struct sockaddr *)&from, &from_bytes, 0);
  CHECK(fd >= 0 && from_bytes == sizeof from && ntohl(from.sin_addr.s_addr) == HOST_IPV4(1));
  return fd;
}

/* Connects to host 0, blocking; 0 or errno. */
static int connect_blocking(int *fd_out) {
  const struct sockaddr_in addr = address_of(HOST_IPV4(0), PORT);
  *fd_out = socket(AF_INET, SOCK_STREAM, 0);
  return connect(*fd_out, (const struct sockaddr *)&addr, sizeof addr) == 0 ? 0 : errno;
}

static uint8_t byte_at(uint32_t i) {
  return (uint8_t)sml_mix64(i);
}

static void send_all(int fd, uint32_t num_bytes) {
  uint8_t chunk[5000];
  for (uint32_t sent = 0; sent < num_bytes;) {
    const uint32_t want = sml_min_u32(1 + (uint32_t)sim_draw(sizeof chunk), num_bytes - sent);
    for (uint32_t i = 0; i < want; i++) chunk[i] = byte_at(sent + i);
    const ssize_t n = send(fd, chunk, want, MSG_NOSIGNAL);
    CHECK(n > 0 && n <= (ssize_t)want);
    if (n <= 0) return;
    sent += (uint32_t)n;
  }
}

/* Until the end of the stream; how many bytes came, or -errno. */
static int64_t receive_all(int fd) {
  uint8_t chunk[3000];
  uint32_t num_bytes = 0;
  ssize_t n;
  while ((n = recv(fd, chunk, 1 + sim_draw(sizeof chunk), 0)) > 0) {
    for (ssize_t i = 0; i < n; i++) CHECK(chunk[i] == byte_at(num_bytes + (uint32_t)i));
    num_bytes += (uint32_t)n;
  }
  return n == 0 ? (int64_t)num_bytes : -errno;
}

static int serve_bytes(void *argument) {
  (void)argument;
  const int listener = listen_on(PORT, 8), fd = accept_blocking(listener);
  CHECK(receive_all(fd) == NUM_BYTES);
  send_all(fd, 1000); /* the other direction is still open */
  CHECK(close(fd) == 0 && close(listener) == 0);
  return 0;
}

static int ask_bytes(void *argument) {
  int fd;
  (void)argument;
  sim_sleep_ns(SML_NS_PER_MS);
  CHECK(connect_blocking(&fd) == 0);
  struct sockaddr_in local, remote;
  socklen_t num_bytes = sizeof local;
  CHECK(getsockname(fd, (struct sockaddr *)&local, &num_bytes) == 0 && ntohl(local.sin_addr.s_addr) == HOST_IPV4(1));
  CHECK(getpeername(fd, (struct sockaddr *)&remote, &num_bytes) == 0 && ntohs(remote.sin_port) == PORT);
  send_all(fd, NUM_BYTES);
  CHECK(shutdown(fd, SHUT_WR) == 0);
  CHECK(send(fd, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
  CHECK(receive_all(fd) == 1000);
  CHECK(close(fd) == 0);
  return 0;
}

static void expect_exit(const struct sim_process *process) {
  struct sim_usage leaks;
  assert_int_equal(sim_process_state(process), SIM_EXITED);
  sim_process_leaks(process, &leaks);
  assert_int_equal(leaks.num_descriptors, 0);
}

static void test_bytes_in_order_then_the_end(void **state) {
  (void)state;
  uint64_t num_short_reads = 0, num_short_writes = 0;
  for (uint64_t seed = 1; seed <= 10; seed++) {
    begin(seed);
    const struct sim_process *server = sim_spawn(test_hosts[0], "server", serve_bytes, NULL, NULL);
    const struct sim_process *client = sim_spawn(test_hosts[1], "client", ask_bytes, NULL, NULL);
    run_out();
    expect_exit(server);
    expect_exit(client);
    num_short_reads += sim_count(SIM_SHORT_READS);
    num_short_writes += sim_count(SIM_SHORT_WRITES);
    finish();
  }
  assert_true(num_short_reads > 0 && num_short_writes > 0);
}

/* ---- refusals ---- */

static int ask_nobody(void *argument) {
  int fd;
  (void)argument;
  CHECK(connect_blocking(&fd) == ECONNREFUSED);
  CHECK(close(fd) == 0);
  const struct sockaddr_in addr = address_of(HOST_IPV4(0), PORT);
  const int later = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  CHECK(connect(later, (const struct sockaddr *)&addr, sizeof addr) == -1 && errno == EINPROGRESS);
  struct pollfd p = {.fd = later, .events = POLLOUT};
  CHECK(poll(&p, 1, 0) == 0);
  CHECK(poll(&p, 1, 1000) == 1 && (p.revents & POLLOUT) != 0 && (p.revents & POLLERR) != 0);
  int error = 0;
  socklen_t error_bytes = sizeof error;
  CHECK(getsockopt(later, SOL_SOCKET, SO_ERROR, &error, &error_bytes) == 0 && error == ECONNREFUSED);
  CHECK(getsockopt(later, SOL_SOCKET, SO_ERROR, &error, &error_bytes) == 0 && error == 0); /* told once */
  CHECK(close(later) == 0);
  return 0;
}

static void test_a_closed_port_refuses(void **state) {
  (void)state;
  begin(1);
  const struct sim_process *client = sim_spawn(test_hosts[1], "client", ask_nobody, NULL, NULL);
  run_out();
  expect_exit(client);
  assert_int_equal(sim_count(SIM_CONNECTS_REFUSED), 2);
  finish();
}

static int listen_to_two(void *argument) {
  (void)argument;
  const int listener = listen_on(PORT, 2);
  const struct sockaddr_in addr = address_of(INADDR_ANY, PORT), elsewhere = address_of(HOST_IPV4(1), 0);
  const int other = socket(AF_INET, SOCK_STREAM, 0);
  CHECK(bind(other, (const struct sockaddr *)&elsewhere, sizeof elsewhere) == -1 && errno == EADDRNOTAVAIL);
  CHECK(bind(other, (const struct sockaddr *)&addr, sizeof addr) == -1 && errno == EADDRINUSE);
  sim_sleep_ns(500 * SML_NS_PER_MS);
  for (uint32_t i = 0; i < 3; i++) CHECK(close(accept_blocking(listener)) == 0); /* the third asked again */
  CHECK(close(listener) == 0 && close(other) == 0);
  return 0;
}

static int connect_three(void *argument) {
  (void)argument;
  int fds[3];
  sim_sleep_ns(SML_NS_PER_MS);
  for (uint32_t i = 0; i < 3; i++) CHECK(connect_blocking(&fds[i]) == 0);
  CHECK(sim_now_ns() > SML_NS_PER_S); /* no room in the queue at first */
  for (uint32_t i = 0; i < 3; i++) CHECK(receive_all(fds[i]) == 0 && close(fds[i]) == 0);
  return 0;
}

static void test_a_full_backlog_makes_wait(void **state) {
  (void)state;
  begin(1);
  const struct sim_process *server = sim_spawn(test_hosts[0], "server", listen_to_two, NULL, NULL);
  const struct sim_process *client = sim_spawn(test_hosts[1], "client", connect_three, NULL, NULL);
  run_out();
  expect_exit(server);
  expect_exit(client);
  finish();
}

/* ---- ends that are not clean ---- */

enum ending { CLOSE_UNREAD, CLOSE_READ, KILL, HOST_DIES, CLOSE_LISTENER };
struct ended {
  enum ending ending;
  int64_t result; /* of the client's receive_all() */
  int send_error; /* of its sends after that; 0: none failed */
  uint64_t ended_ns;
};

static int end_badly(void *argument) {
  const struct ended *e = argument;
  const int listener = listen_on(PORT, 8);
  if (e->ending == CLOSE_LISTENER) {
    sim_sleep_ns(50 * SML_NS_PER_MS);
    return 0;
  }
  const int fd = accept_blocking(listener);
  send_all(fd, 500);
  uint8_t data[100];
  sim_sleep_ns(10 * SML_NS_PER_MS);
  for (ssize_t n = 0; e->ending != CLOSE_UNREAD && n < 5;) n += recv(fd, data, sizeof data, 0);
  if (e->ending == KILL) sim_kill(sim_self());
  if (e->ending == HOST_DIES) sim_host_set_dead(test_hosts[0], true);
  CHECK(close(fd) == 0 && close(listener) == 0);
  return 0;
}

static int see_the_end(void *argument) {
  struct ended *e = argument;
  int fd;
  sim_sleep_ns(SML_NS_PER_MS);
  CHECK(connect_blocking(&fd) == 0);
  CHECK(send(fd, "hello", 5, MSG_NOSIGNAL) > 0);
  e->result = receive_all(fd);
  e->ended_ns = sim_now_ns();
  for (uint32_t i = 0; i < 3 && e->send_error == 0; i++) {
    if (send(fd, "more", 4, MSG_NOSIGNAL) < 0) e->send_error = errno;
    sim_sleep_ns(5 * SML_NS_PER_MS);
  }
  CHECK(close(fd) == 0);
  return 0;
}

static struct ended run_ending(enum ending ending) {
  struct ended e = {.ending = ending, .result = -1000};
  sim_spawn(test_hosts[0], "server", end_badly, &e, NULL);
  sim_spawn(test_hosts[1], "client", see_the_end, &e, NULL);
  run_out();
  return e;
}

static void test_unclean_ends(void **state) {
  (void)state;
  begin(1);
  struct ended e = run_ending(CLOSE_UNREAD); /* a reset behind the data */
  assert_int_equal(e.result, -ECONNRESET);
  assert_int_equal(e.send_error, EPIPE);
  finish();
  begin(1);
  e = run_ending(CLOSE_READ); /* an end; what is sent afterwards is answered by a reset */
  assert_int_equal(e.result, 500);
  assert_true(e.send_error == EPIPE || e.send_error == ECONNRESET);
  finish();
  begin(1);
  e = run_ending(KILL);
  assert_int_equal(e.result, 500);
  assert_true(e.ended_ns < 20 * SML_NS_PER_MS);
  finish();
  begin(1);
  e = run_ending(CLOSE_LISTENER); /* in nobody's hands: reset */
  assert_int_equal(e.result, -ECONNRESET);
  finish();
}

static void test_a_dead_host_leaves_half_a_connection(void **state) {
  (void)state;
  begin(1);
  struct ended e = {.ending = HOST_DIES, .result = -1000};
  sim_spawn(test_hosts[0], "server", end_badly, &e, NULL);
  const struct sim_process *client = sim_spawn(test_hosts[1], "client", see_the_end, &e, NULL);
  assert_int_equal(sim_run_until(SML_NEVER, NULL, NULL), SIM_IDLE);
  assert_int_equal(e.result, -1000); /* it waits for ever */
  assert_int_equal(sim_process_state(client), SIM_RUNNING);
  finish();
}

static int send_into_the_dark(void *argument) {
  int fd;
  sim_sleep_ns(SML_NS_PER_MS);
  CHECK(connect_blocking(&fd) == 0);
  sim_sleep_ns(50 * SML_NS_PER_MS);
  CHECK(send(fd, "hello", 5, MSG_NOSIGNAL) > 0);
  CHECK(receive_all(fd) == *(const int *)argument);
  CHECK(close(fd) == 0);
  return 0;
}

static void test_a_revived_host_knows_nothing(void **state) {
  (void)state;
  begin(1);
  struct ended e = {.ending = HOST_DIES};
  int expected = -ECONNRESET;
  sim_spawn(test_hosts[0], "server", end_badly, &e, NULL);
  const struct sim_process *client = sim_spawn(test_hosts[1], "client", send_into_the_dark, &expected, NULL);
  (void)sim_run_until(SML_NS_PER_MS, NULL, NULL);
  e.ending = CLOSE_READ;
  (void)sim_run_until(10 * SML_NS_PER_MS, NULL, NULL);
  sim_host_set_dead(test_hosts[0], true);
  (void)sim_run_until(SML_NS_PER_S, NULL, NULL);
  assert_int_equal(sim_process_state(client), SIM_RUNNING);
  assert_true(sim_count(SIM_STREAM_STALLS) > 0);
  sim_host_set_dead(test_hosts[0], false);
  run_out();
  finish();
}

/* ---- cuts ---- */

static void test_a_cut_stalls_and_heals(void **state) {
  (void)state;
  begin(1);
  const struct sim_process *server = sim_spawn(test_hosts[0], "server", serve_bytes, NULL, NULL);
  const struct sim_process *client = sim_spawn(test_hosts[1], "client", ask_bytes, NULL, NULL);
  (void)sim_run_until(2 * SML_NS_PER_MS, NULL, NULL);
  sim_cut(test_hosts[1], test_hosts[0], true);
  assert_int_equal(sim_run_until(20 * SML_NS_PER_S, NULL, NULL), SIM_REACHED_TIME);
  assert_int_equal(sim_process_state(client), SIM_RUNNING);
  assert_true(sim_count(SIM_STREAM_STALLS) > 3);
  sim_cut(test_hosts[1], test_hosts[0], false);
  run_out();
  expect_exit(server);
  expect_exit(client);
  finish();
}

static void test_a_long_cut_ends_it(void **state) {
  (void)state;
  begin(1);
  int expected = -ETIMEDOUT;
  struct ended e = {.ending = CLOSE_READ};
  sim_spawn(test_hosts[0], "server", end_badly, &e, NULL);
  const struct sim_process *client = sim_spawn(test_hosts[1], "client", send_into_the_dark, &expected, NULL);
  (void)sim_run_until(3 * SML_NS_PER_MS, NULL, NULL);
  sim_cut(test_hosts[0], test_hosts[1], true);
  sim_cut(test_hosts[1], test_hosts[0], true);
  run_out();
  assert_true(sim_now_ns() > 900 * SML_NS_PER_S);
  expect_exit(client);
  finish();
}

/* ---- a full pipe ---- */

static int sleep_and_read(void *argument) {
  (void)argument;
  const int listener = listen_on(PORT, 8), fd = accept_blocking(listener);
  sim_sleep_ns(SML_NS_PER_S);
  CHECK(receive_all(fd) >= 65536);
  CHECK(close(fd) == 0 && close(listener) == 0);
  return 0;
}

static int fill_pipe(void *argument) {
  (void)argument;
  int fd;
  sim_sleep_ns(SML_NS_PER_MS);
  CHECK(connect_blocking(&fd) == 0);
  uint32_t num_sent = 0;
  for (;;) {
    const uint8_t byte = byte_at(num_sent);
    const ssize_t n = send(fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) break;
    num_sent++;
  }
  CHECK(errno == EAGAIN && num_sent == 65536);
  struct pollfd p = {.fd = fd, .events = POLLOUT};
  CHECK(poll(&p, 1, 100) == 0);
  CHECK(poll(&p, 1, 3000) == 1 && sim_now_ns() >= SML_NS_PER_S);
  CHECK(close(fd) == 0);
  return 0;
}

static void test_a_full_pipe_takes_no_more(void **state) {
  (void)state;
  begin(1);
  const struct sim_process *server = sim_spawn(test_hosts[0], "server", sleep_and_read, NULL, NULL);
  const struct sim_process *client = sim_spawn(test_hosts[1], "client", fill_pipe, NULL, NULL);
  run_out();
  expect_exit(server);
  expect_exit(client);
  finish();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bytes_in_order_then_the_end),
      cmocka_unit_test(test_a_closed_port_refuses),
      cmocka_unit_test(test_a_full_backlog_makes_wait),
      cmocka_unit_test(test_unclean_ends),
      cmocka_unit_test(test_a_dead_host_leaves_half_a_connection),
      cmocka_unit_test(test_a_revived_host_knows_nothing),
      cmocka_unit_test(test_a_cut_stalls_and_heals),
      cmocka_unit_test(test_a_long_cut_ends_it),
      cmocka_unit_test(test_a_full_pipe_takes_no_more),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
