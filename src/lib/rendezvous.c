/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/rendezvous.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/fork.h"
#include "lib/interfaces.h"
#include "lib/settings.h"

#define MAGIC 0x534d4c52u /* "SMLR" */
#define HELLO_BYTES 24u
#define RETRY_MS 50
#define HELLO_NS (2 * SML_NS_PER_S) /* a connection that says nothing for so long is a stranger's */

void sml_rendezvous_init(struct sml_rendezvous *r, const char *job_name, uint32_t rank, uint32_t world_size,
                         uint64_t deadline_ns) {
  *r = (struct sml_rendezvous){.rank = rank, .world_size = world_size, .deadline_ns = deadline_ns, .job_hash = 1};
  r->address = sml_settings_environment("SWITCHML_RENDEZVOUS");
  for (const char *c = job_name; *c != 0; c++) r->job_hash = sml_mix64(r->job_hash + (uint8_t)*c);
}

/* ---- sockets that wait until a deadline ---- */

static bool await(int fd, short events, uint64_t deadline_ns) {
  for (;;) {
    const uint64_t now_ns = sml_clock_ns();
    if (now_ns >= deadline_ns) {
      errno = ETIMEDOUT;
      return false;
    }
    struct pollfd p = {.fd = fd, .events = events};
    const uint64_t left_ms = sml_div_ceil(deadline_ns - now_ns, SML_NS_PER_MS);
    const int n = poll(&p, 1, (int)sml_min_u64(left_ms, 1000));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
  }
}

static bool send_all(int fd, const void *data, size_t num_bytes, uint64_t deadline_ns) {
  const uint8_t *at = data;
  while (num_bytes > 0) {
    if (!await(fd, POLLOUT, deadline_ns)) return false;
    const ssize_t n = send(fd, at, num_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n < 0) return false;
    at += n;
    num_bytes -= (size_t)n;
  }
  return true;
}

static bool receive_all(int fd, void *data, size_t num_bytes, uint64_t deadline_ns) {
  uint8_t *at = data;
  while (num_bytes > 0) {
    if (!await(fd, POLLIN, deadline_ns)) return false;
    const ssize_t n = recv(fd, at, num_bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n == 0) errno = ECONNRESET;
    if (n <= 0) return false;
    at += n;
    num_bytes -= (size_t)n;
  }
  return true;
}

static int open_socket(const struct sml_addr *addr) {
  const struct sockaddr *a = (const struct sockaddr *)(const void *)addr->bytes;
  const int one = 1;
  sml_fork_lock();
  const int fd = socket(a->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sml_fork_unlock();
  if (fd >= 0) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

static void close_kept(int fd) {
  const int error = errno;
  if (fd >= 0) close(fd);
  errno = error;
}

/* ---- meeting ---- */

static void write_hello(const struct sml_rendezvous *r, uint8_t hello[HELLO_BYTES]) {
  memset(hello, 0, HELLO_BYTES);
  sml_store_be32(hello, MAGIC);
  sml_store_be32(hello + 4, r->world_size);
  sml_store_be32(hello + 8, r->rank);
  sml_store_be64(hello + 16, r->job_hash);
}

/* Whom a connection is from; world_size: a stranger, or a rank that is here already. */
static uint32_t take_hello(const struct sml_rendezvous *r, int fd) {
  uint8_t hello[HELLO_BYTES];
  const uint64_t deadline_ns = sml_min_u64(r->deadline_ns, sml_clock_ns() + HELLO_NS);
  if (!receive_all(fd, hello, sizeof hello, deadline_ns)) return r->world_size;
  const uint32_t rank = sml_load_be32(hello + 8);
  if (sml_load_be32(hello) != MAGIC || sml_load_be32(hello + 4) != r->world_size ||
      sml_load_be64(hello + 16) != r->job_hash || rank == 0 || rank >= r->world_size || r->fds[rank] >= 0)
    return r->world_size;
  return rank;
}

static bool listen_at(const struct sml_addr *addr, int *fd_out) {
  const uint8_t any[16] = {0};
  const struct sockaddr *a = (const struct sockaddr *)(const void *)addr->bytes;
  const struct sml_addr bind_addr = sml_addr_of_ip(a->sa_family, any, sml_addr_port(addr));
  const int one = 1;
  *fd_out = open_socket(addr);
  if (*fd_out < 0) return false;
  setsockopt(*fd_out, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  return bind(*fd_out, (const struct sockaddr *)(const void *)bind_addr.bytes, bind_addr.num_bytes) == 0 &&
         listen(*fd_out, 1024) == 0;
}

/* Rank 0. */
static bool gather_ranks(struct sml_rendezvous *r, const struct sml_addr *addr) {
  int listen_fd;
  uint32_t num_here = 1;
  bool is_well = listen_at(addr, &listen_fd);
  while (is_well && num_here < r->world_size) {
    is_well = await(listen_fd, POLLIN, r->deadline_ns);
    if (!is_well) break;
    sml_fork_lock();
    const int fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    sml_fork_unlock();
    if (fd < 0) continue;
    const uint32_t rank = take_hello(r, fd);
    if (rank == r->world_size) {
      close(fd);
      continue;
    }
    r->fds[rank] = fd;
    num_here++;
  }
  close_kept(listen_fd);
  if (is_well) return true;
  sml_fail(SML_ERR_SYSTEM, "%u of %u ranks came to SWITCHML_RENDEZVOUS=%.80s: %s", num_here, r->world_size,
           r->address, strerror(errno));
  return false;
}

/* The others. */
static bool find_rank_0(struct sml_rendezvous *r, const struct sml_addr *addr) {
  uint8_t hello[HELLO_BYTES];
  write_hello(r, hello);
  for (;;) {
    int error = 0;
    socklen_t error_bytes = sizeof error;
    const uint64_t now_ns = sml_clock_ns(), attempt_ns = sml_min_u64(r->deadline_ns, now_ns + SML_NS_PER_S);
    const int fd = open_socket(addr);
    if (fd >= 0 && (connect(fd, (const struct sockaddr *)(const void *)addr->bytes, addr->num_bytes) == 0 ||
                    errno == EINPROGRESS) && await(fd, POLLOUT, attempt_ns) &&
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) == 0 && error == 0 &&
        send_all(fd, hello, sizeof hello, attempt_ns)) {
      r->fds[0] = fd;
      return true;
    }
    if (error != 0) errno = error;
    close_kept(fd);
    if (now_ns >= r->deadline_ns) {
      sml_fail(SML_ERR_SYSTEM, "rank 0 is not found at SWITCHML_RENDEZVOUS=%.80s: %s", r->address,
               strerror(errno));
      return false;
    }
    poll(NULL, 0, RETRY_MS);
  }
}

static bool meet(struct sml_rendezvous *r) {
  struct sml_addr addr;
  char error[SML_ERROR_DETAIL_BYTES / 2];
  if (!sml_addr_parse(r->address, 0, &addr, error, sizeof error)) {
    sml_fail(SML_ERR_INVALID_ARGUMENT, "SWITCHML_RENDEZVOUS is '%.80s': %s", r->address, error);
    return false;
  }
  const uint32_t num_fds = r->rank == 0 ? r->world_size : 1;
  r->fds = malloc(num_fds * sizeof *r->fds);
  if (r->fds == NULL) {
    sml_fail(SML_ERR_NO_MEMORY, "no memory for %u connections", num_fds);
    return false;
  }
  r->num_fds = num_fds;
  for (uint32_t i = 0; i < r->num_fds; i++) r->fds[i] = -1;
  r->is_open = r->rank == 0 ? gather_ranks(r, &addr) : find_rank_0(r, &addr);
  return r->is_open;
}

/* ---- gathering ---- */

/* A rank that asks for another size runs another version; all of it is checked by what is in the records. */
static bool exchange(struct sml_rendezvous *r, uint8_t *all, const void *in, size_t num_bytes) {
  const size_t all_bytes = num_bytes * r->world_size;
  if (r->rank != 0)
    return send_all(r->fds[0], in, num_bytes, r->deadline_ns) &&
           receive_all(r->fds[0], all, all_bytes, r->deadline_ns);
  memcpy(all, in, num_bytes);
  for (uint32_t i = 1; i < r->world_size; i++)
    if (!receive_all(r->fds[i], all + i * num_bytes, num_bytes, r->deadline_ns)) return false;
  for (uint32_t i = 1; i < r->world_size; i++)
    if (!send_all(r->fds[i], all, all_bytes, r->deadline_ns)) return false;
  return true;
}

int sml_rendezvous_gather(void *user, const void *in, void *out, size_t num_bytes) {
  struct sml_rendezvous *r = user;
  if (!r->is_open && !meet(r)) return 1;
  if (exchange(r, out, in, num_bytes)) return 0;
  sml_fail(SML_ERR_SYSTEM, "ranks that met at SWITCHML_RENDEZVOUS=%.80s do not answer: %s", r->address,
           strerror(errno));
  return 1;
}

void sml_rendezvous_close(struct sml_rendezvous *r) {
  for (uint32_t i = 0; i < r->num_fds; i++) close_kept(r->fds[i]);
  free(r->fds);
  r->fds = NULL;
  r->num_fds = 0;
  r->is_open = false;
}
