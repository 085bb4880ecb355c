/* SPDX-License-Identifier: Apache-2.0
 * What the successor of a lost aggregator says of the job is not believed: between the ranks and an aggregator stands
 * somebody who cuts their connections, and changes the START that they get when they come again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ctl/message.h"
#include "lib/test_world.h"

#define NUM_RANKS 2u
#define MAX_PIPES 64u /* attempts included */

struct pipe {
  int rank_fd, aggregator_fd; /* -1: none */
  uint8_t from_aggregator[SML_CTL_FRAME_BYTES + SML_CTL_MAX_BODY];
  size_t num_bytes;
};

static struct {
  int listen_fd;
  struct sml_addr aggregator;
  void (*change)(struct sml_ctl_start *start); /* NULL: nothing */
  _Atomic bool should_cut, should_stop;
  struct pipe pipes[MAX_PIPES];
  uint32_t num_pipes;
  pthread_t thread;
} between;

static void cut(struct pipe *p) {
  if (p->rank_fd >= 0) close(p->rank_fd);
  if (p->aggregator_fd >= 0) close(p->aggregator_fd);
  p->rank_fd = p->aggregator_fd = -1;
}

static void take_connection(void) {
  const int rank_fd = accept4(between.listen_fd, NULL, NULL, SOCK_CLOEXEC);
  if (rank_fd < 0 || between.num_pipes == MAX_PIPES) return;
  struct pipe *p = &between.pipes[between.num_pipes++];
  p->rank_fd = rank_fd;
  p->aggregator_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(p->aggregator_fd, (const struct sockaddr *)(const void *)between.aggregator.bytes,
              between.aggregator.num_bytes) != 0)
    cut(p);
}

static bool send_all(int fd, const uint8_t *bytes, size_t num_bytes) {
  return send(fd, bytes, num_bytes, MSG_NOSIGNAL) == (ssize_t)num_bytes;
}

static bool pass_on_up(struct pipe *p) {
  uint8_t bytes[4096];
  const ssize_t n = recv(p->rank_fd, bytes, sizeof bytes, 0);
  return n > 0 && send_all(p->aggregator_fd, bytes, (size_t)n);
}

static bool pass_on_down(struct pipe *p) {
  const ssize_t n =
      recv(p->aggregator_fd, p->from_aggregator + p->num_bytes, sizeof p->from_aggregator - p->num_bytes, 0);
  if (n <= 0) return false;
  p->num_bytes += (size_t)n;
  for (;;) {
    struct sml_ctl_message m;
    uint8_t frame[sizeof p->from_aggregator];
    size_t consumed;
    if (sml_ctl_decode(p->from_aggregator, p->num_bytes, &m, &consumed) != SML_CTL_DECODED) return true;
    if (m.kind == SML_CTL_START && between.change != NULL) between.change(&m.u.start);
    const size_t num_bytes = sml_ctl_encode(&m, frame, sizeof frame);
    if (num_bytes == 0 || !send_all(p->rank_fd, frame, num_bytes)) return false;
    p->num_bytes -= consumed;
    memmove(p->from_aggregator, p->from_aggregator + consumed, p->num_bytes);
  }
}

static void *stand_between(void *argument) {
  (void)argument;
  while (!between.should_stop) {
    struct pollfd fds[1 + 2 * MAX_PIPES] = {{.fd = between.listen_fd, .events = POLLIN}};
    const uint32_t num_pipes = between.num_pipes;
    for (uint32_t i = 0; i < num_pipes; i++) {
      fds[1 + 2 * i] = (struct pollfd){.fd = between.pipes[i].rank_fd, .events = POLLIN};
      fds[2 + 2 * i] = (struct pollfd){.fd = between.pipes[i].aggregator_fd, .events = POLLIN};
    }
    (void)poll(fds, 1 + 2 * num_pipes, 10);
    if (fds[0].revents != 0) take_connection();
    for (uint32_t i = 0; i < num_pipes; i++) {
      struct pipe *p = &between.pipes[i];
      if ((fds[1 + 2 * i].revents != 0 && !pass_on_up(p)) || (fds[2 + 2 * i].revents != 0 && !pass_on_down(p))) cut(p);
    }
    if (!between.should_cut) continue;
    for (uint32_t i = 0; i < between.num_pipes; i++) cut(&between.pipes[i]);
    between.should_cut = false;
  }
  for (uint32_t i = 0; i < between.num_pipes; i++) cut(&between.pipes[i]);
  return NULL;
}

static void begin_world(struct world *w) {
  struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t addr_bytes = sizeof addr;
  memset(&between, 0, sizeof between);
  world_init(w, NUM_RANKS);
  world_start_aggd(w);
  sml_aggd_addr(w->aggd, &between.aggregator);
  between.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(between.listen_fd, (struct sockaddr *)&addr, sizeof addr), 0);
  assert_int_equal(listen(between.listen_fd, 16), 0);
  assert_int_equal(getsockname(between.listen_fd, (struct sockaddr *)&addr, &addr_bytes), 0);
  snprintf(w->address, sizeof w->address, "127.0.0.1:%u", ntohs(addr.sin_port));
  assert_int_equal(pthread_create(&between.thread, NULL, stand_between, NULL), 0);
  w->job_options.retry_ns = 30 * SML_NS_PER_S;
  w->job_options.lease_ns = 4 * SML_NS_PER_S;
  world_join(w);
}

static void end_world(struct world *w) {
  world_stop(w);
  between.should_stop = true;
  pthread_join(between.thread, NULL);
  close(between.listen_fd);
}

/* Three sums; all ranks know of each other that they have them. */
static void sum_thrice(struct rank *r) {
  for (int32_t i = 0; i < 3; i++) {
    int32_t x = i + 1;
    CHECK(r, allreduce(r, &x, &x, 1, SML_INT32, SML_SUM) == SML_OK && x == 2 * (i + 1), "%s", sml_error_detail());
  }
  for (uint32_t ms = 0; ms < 20000 && stats_of(r).retained_bytes != 0; ms++) usleep(1000);
  CHECK(r, stats_of(r).retained_bytes == 0);
}

static const char *fault; /* what the failure says; NULL: there is none */

static void go_on(struct rank *r) {
  sml_error error = SML_ERROR_INIT;
  if (fault != NULL) {
    check_failed(r, SML_ERR_AGGREGATOR_LOST, &error);
    CHECK(r, strstr(error.detail, fault) != NULL, "%s", error.detail);
    return;
  }
  for (uint32_t ms = 0; ms < 20000 && stats_of(r).rejoins == 0; ms++) usleep(1000);
  CHECK(r, stats_of(r).rejoins == 1);
  sum_thrice(r);
}

static void fewer_bytes(struct sml_ctl_start *start) {
  start->chunk_bytes = start->chunk_bytes / 8 * 4;
}
/* Each of what is not believed is in ctl/member_retry_test.c. */
static void what_a_successor_says_is_not_believed(void **state) {
  (void)state;
  static const struct {
    void (*change)(struct sml_ctl_start *start);
    const char *fault;
  } cases[] = {{NULL, NULL},
               {fewer_bytes, "another number of lanes, slots or bytes a chunk"}};
  for (uint32_t i = 0; i < SML_ARRAY_LEN(cases); i++) {
    struct world w;
    begin_world(&w);
    world_run(&w, sum_thrice);
    between.change = cases[i].change;
    fault = cases[i].fault;
    between.should_cut = true;
    world_run(&w, go_on);
    end_world(&w);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(what_a_successor_says_is_not_believed)};
  return cmocka_run_group_tests_name("successor", tests, NULL, NULL);
}
