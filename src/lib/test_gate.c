/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test_gate.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define LOOK_MS 5

static void free_conn(struct gate_conn *c) {
  for (uint32_t side = 0; side < 2; side++) {
    if (c->fds[side] >= 0) close(c->fds[side]);
    c->fds[side] = -1;
  }
}

static const struct sockaddr *sockaddr_of(const struct sml_addr *addr) {
  return (const struct sockaddr *)(const void *)addr->bytes;
}

static void take_conn(struct gate *g) {
  const int fd = accept(g->listen_fd, NULL, NULL);
  uint32_t i = 0;
  if (fd < 0) return;
  while (i < GATE_CONNS && g->conns[i].fds[0] >= 0) i++;
  const int up = socket(sockaddr_of(&g->upstream)->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (g->is_shut || i == GATE_CONNS || connect(up, sockaddr_of(&g->upstream), g->upstream.num_bytes) != 0) {
    close(fd);
    close(up);
    return;
  }
  g->conns[i] = (struct gate_conn){.fds = {fd, up}, .rank = GATE_ALL};
}

/* The rank is behind the name of the job. */
static uint32_t rank_of_join(const uint8_t *frame) {
  const uint32_t name_bytes = sml_load_be16(frame + SML_CTL_FRAME_BYTES);
  return sml_load_be32(frame + SML_CTL_FRAME_BYTES + 2 + name_bytes);
}

static uint32_t frame_bytes(const struct gate_way *way) {
  if (way->num_bytes < SML_CTL_FRAME_BYTES) return UINT32_MAX;
  const bool is_tagged = (sml_load_be16(way->bytes + 6) & 0x8000u) != 0;
  return SML_CTL_FRAME_BYTES + sml_load_be32(way->bytes + 8) + (is_tagged ? SML_CHANNEL_MAC_BYTES : 0);
}

/* Passes on what may pass. False: the connection is at its end. */
static bool pass(struct gate *g, struct gate_conn *c, uint32_t side) {
  struct gate_way *way = &c->ways[side];
  uint32_t num_bytes;
  while ((num_bytes = frame_bytes(way)) <= way->num_bytes) {
    const uint32_t kind = sml_load_be16(way->bytes + 6) & 0x7fffu;
    if (kind == SML_CTL_JOIN) c->rank = rank_of_join(way->bytes);
    if (c->rank >= MAX_RANKS) return false;
    if (kind != SML_CTL_HEARTBEAT && c->num_passed >= g->limits[c->rank]) return true;
    c->num_passed += kind != SML_CTL_HEARTBEAT;
    if (send(c->fds[!side], way->bytes, num_bytes, MSG_NOSIGNAL) != (ssize_t)num_bytes) return false;
    way->num_bytes -= num_bytes;
    memmove(way->bytes, way->bytes + num_bytes, way->num_bytes);
  }
  return true;
}

static void serve_conn(struct gate *g, struct gate_conn *c) {
  for (uint32_t side = 0; side < 2; side++) {
    struct gate_way *way = &c->ways[side];
    const size_t room_bytes = sizeof way->bytes - way->num_bytes;
    const ssize_t n = room_bytes > 0 ? recv(c->fds[side], way->bytes + way->num_bytes, room_bytes, MSG_DONTWAIT) : -1;
    if (n > 0) way->num_bytes += (uint32_t)n;
    if (n == 0 || !pass(g, c, side)) {
      free_conn(c);
      return;
    }
  }
}

static void *run(void *argument) {
  struct gate *g = argument;
  for (;;) {
    struct pollfd fds[1 + 2 * GATE_CONNS] = {{.fd = g->listen_fd, .events = POLLIN}};
    nfds_t num_fds = 1;
    pthread_mutex_lock(&g->lock);
    for (uint32_t i = 0; i < 2 * GATE_CONNS; i++)
      if (g->conns[i / 2].fds[i % 2] >= 0)
        fds[num_fds++] = (struct pollfd){.fd = g->conns[i / 2].fds[i % 2], .events = POLLIN};
    pthread_mutex_unlock(&g->lock);
    poll(fds, num_fds, LOOK_MS);
    pthread_mutex_lock(&g->lock);
    const bool is_over = g->should_stop;
    if (!is_over && (fds[0].revents & POLLIN)) take_conn(g);
    for (uint32_t i = 0; i < GATE_CONNS && !is_over && !g->is_frozen; i++)
      if (g->conns[i].fds[0] >= 0) serve_conn(g, &g->conns[i]);
    pthread_mutex_unlock(&g->lock);
    if (is_over) return NULL;
  }
}

static void end_conns(struct gate *g) {
  for (uint32_t i = 0; i < GATE_CONNS; i++) free_conn(&g->conns[i]);
}

void gate_start(struct gate *g, const char *upstream) {
  char error[256];
  struct sml_addr addr = {0};
  socklen_t addr_bytes = sizeof addr.bytes;
  memset(g, 0, sizeof *g);
  for (uint32_t i = 0; i < GATE_CONNS; i++) g->conns[i].fds[0] = g->conns[i].fds[1] = -1;
  for (uint32_t r = 0; r < MAX_RANKS; r++) g->limits[r] = GATE_ALL;
  assert_true(sml_addr_parse(upstream, 0, &g->upstream, error, sizeof error));
  assert_true(sml_addr_parse("127.0.0.1:0", 0, &addr, error, sizeof error));
  g->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(g->listen_fd >= 0 && bind(g->listen_fd, sockaddr_of(&addr), addr.num_bytes) == 0 &&
              listen(g->listen_fd, 64) == 0 &&
              getsockname(g->listen_fd, (struct sockaddr *)(void *)addr.bytes, &addr_bytes) == 0);
  sml_addr_format(&addr, g->address, sizeof g->address);
  pthread_mutex_init(&g->lock, NULL);
  assert_int_equal(pthread_create(&g->thread, NULL, run, g), 0);
}

void gate_stop(struct gate *g) {
  pthread_mutex_lock(&g->lock);
  g->should_stop = true;
  pthread_mutex_unlock(&g->lock);
  pthread_join(g->thread, NULL);
  end_conns(g);
  close(g->listen_fd);
  pthread_mutex_destroy(&g->lock);
}

void gate_limit(struct gate *g, uint32_t rank, uint32_t num_messages) {
  pthread_mutex_lock(&g->lock);
  g->limits[rank] = num_messages;
  pthread_mutex_unlock(&g->lock);
}

static bool is_at_limit(const struct gate *g, uint32_t rank) {
  for (uint32_t i = 0; i < GATE_CONNS; i++) {
    const struct gate_conn *c = &g->conns[i];
    if (c->fds[0] >= 0 && c->rank == rank && c->num_passed == g->limits[rank]) return true;
  }
  return false;
}

bool gate_await(struct gate *g, uint32_t num_ranks) {
  for (uint32_t ms = 0; ms < 20000; ms += LOOK_MS) {
    pthread_mutex_lock(&g->lock);
    uint32_t rank = 0;
    while (rank < num_ranks && is_at_limit(g, rank)) rank++;
    pthread_mutex_unlock(&g->lock);
    if (rank == num_ranks) return true;
    usleep(LOOK_MS * 1000);
  }
  return false;
}

void gate_shut(struct gate *g) {
  pthread_mutex_lock(&g->lock);
  g->is_shut = true;
  end_conns(g);
  pthread_mutex_unlock(&g->lock);
}

void gate_freeze(struct gate *g, bool is_frozen) {
  pthread_mutex_lock(&g->lock);
  g->is_frozen = is_frozen;
  pthread_mutex_unlock(&g->lock);
}

void gate_open(struct gate *g) {
  pthread_mutex_lock(&g->lock);
  g->is_shut = false;
  for (uint32_t r = 0; r < MAX_RANKS; r++) g->limits[r] = GATE_ALL;
  pthread_mutex_unlock(&g->lock);
}

void gate_turn(struct gate *g, const char *upstream) {
  char error[256];
  pthread_mutex_lock(&g->lock);
  const bool is_parsed = g->is_shut && sml_addr_parse(upstream, 0, &g->upstream, error, sizeof error);
  pthread_mutex_unlock(&g->lock);
  SML_ASSERT(is_parsed);
}
