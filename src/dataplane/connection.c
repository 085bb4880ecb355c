/* SPDX-License-Identifier: Apache-2.0 */
#include "dataplane/connection.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include "base/fd.h"
#include "engine/engine.h"

static int await(int fd, short events, uint64_t deadline_ns) {
  struct pollfd poll_fd = {.fd = fd, .events = events};
  for (;;) {
    const uint64_t now_ns = sml_clock_ns();
    if (now_ns >= deadline_ns) return -ETIMEDOUT;
    const uint64_t wait_ms = sml_div_ceil(deadline_ns - now_ns, SML_NS_PER_MS);
    const int n = poll(&poll_fd, 1, (int)sml_min_u64(wait_ms, 60000));
    if (n > 0) return 0;
    if (n < 0 && errno != EINTR) return -errno;
  }
}

/* After a system call that failed: 0 where another try makes sense. */
static int try_again(int fd, short events, uint64_t deadline_ns) {
  if (errno == EINTR) return 0;
  return errno == EAGAIN || errno == EWOULDBLOCK ? await(fd, events, deadline_ns) : -errno;
}

static int complete(int fd, uint64_t deadline_ns) {
  int error = 0;
  socklen_t error_bytes = sizeof error;
  const int waited = await(fd, POLLOUT, deadline_ns);
  if (waited != 0) return waited;
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) == 0 ? -error : -errno;
}

int sml_connection_open(const struct sockaddr *addr, socklen_t addr_bytes, uint64_t deadline_ns, int *fd_out) {
  const int one = 1, fd = sml_fd_raise(socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  *fd_out = fd;
  if (fd < 0) return -errno;
  if (addr->sa_family != AF_UNIX) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  int error = connect(fd, addr, addr_bytes) == 0 ? 0 : -errno;
  if (error == -EINPROGRESS) error = complete(fd, deadline_ns);
  if (error == 0) return 0;
  close(fd);
  *fd_out = -1;
  return error;
}

int sml_connection_send(int fd, const void *bytes, size_t num_bytes, uint64_t deadline_ns) {
  const uint8_t *at = bytes;
  while (num_bytes > 0) {
    if (sml_clock_ns() >= deadline_ns) return -ETIMEDOUT;
    const ssize_t n = send(fd, at, num_bytes, MSG_NOSIGNAL);
    const int error = n >= 0 ? 0 : try_again(fd, POLLOUT, deadline_ns);
    if (error != 0) return error;
    at += n > 0 ? n : 0;
    num_bytes -= n > 0 ? (size_t)n : 0;
  }
  return 0;
}

int sml_connection_receive(int fd, void *bytes, size_t room_bytes, uint64_t deadline_ns, size_t *num_bytes_out) {
  for (;;) {
    if (sml_clock_ns() >= deadline_ns) return -ETIMEDOUT;
    const ssize_t n = recv(fd, bytes, room_bytes, 0);
    const int error = n >= 0 ? 0 : try_again(fd, POLLIN, deadline_ns);
    *num_bytes_out = n > 0 ? (size_t)n : 0;
    if (n >= 0 || error != 0) return error;
  }
}

bool sml_connection_is_closed(int fd) {
  struct pollfd poll_fd = {.fd = fd, .events = POLLRDHUP};
  return poll(&poll_fd, 1, 0) == 1 && (poll_fd.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}
