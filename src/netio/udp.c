/* SPDX-License-Identifier: Apache-2.0
 * The udp back end's socket: opening, probing what the kernel can, sleeping, waking. */
#include "netio/udp_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/fd.h"
#include "netio/addr.h"

static void udp_close_descriptors(struct sml_netio *io) {
  const struct sml_udp *u = sml_udp_of(io);
  if (u->socket_fd >= 0) (void)close(u->socket_fd);
  if (u->event_fd >= 0) (void)close(u->event_fd);
  for (uint32_t i = 0; i < u->num_groups; i++) (void)close(u->groups[i].fd);
}

static void udp_close(struct sml_netio *io) {
  struct sml_udp *u = sml_udp_of(io);
  udp_close_descriptors(io);
  free(u->rx.buffers);
  free(u->tx.buffer);
  free(u);
}

static void udp_local_addr(struct sml_netio *io, struct sml_addr *addr_out) {
  *addr_out = sml_udp_of(io)->local_addr;
}

/* Ends the wake-ups up to now. Drain first, then clear: a wake() between the two finds the flag still
 * set and need not write, because this wait is about to return for it. The other order would drain
 * that wake()'s write and leave the flag set, and all later ones would be lost. */
static void end_wake(struct sml_udp *u) {
  uint64_t count;
  const ssize_t rc = read(u->event_fd, &count, sizeof count);
  (void)rc; /* EAGAIN cannot be: ppoll said readable and only this thread reads */
  /* Acquire, pairs with the release half of the exchange in udp_wake: what a waker wrote before
   * wake() is visible to whoever returns from wait(), even where that wake() found the flag set. */
  (void)atomic_exchange_explicit(&u->is_wake_pending, false, memory_order_acq_rel);
  u->io.stats.system_calls += 2; /* the read, and the write of the waker, which must not touch stats */
}

static void udp_wait(struct sml_netio *io, uint64_t timeout_ns) {
  struct sml_udp *u = sml_udp_of(io);
  SML_ASSERT(u->tx.num_bursts == 0);
  if (sml_udp_has_leftover(u) || u->rx.may_have_more || timeout_ns == 0) return;
  struct pollfd fds[2 + SML_NETIO_MAX_GROUPS] = {{.fd = u->event_fd, .events = POLLIN},
                                                 {.fd = u->socket_fd, .events = POLLIN}};
  for (uint32_t i = 0; i < u->num_groups; i++) fds[2 + i] = (struct pollfd){.fd = u->groups[i].fd, .events = POLLIN};
  const bool is_gathering = io->gather_ns > 0; /* then only the event can end it early */
  if (is_gathering) timeout_ns = sml_min_u64(timeout_ns, io->gather_ns);
  const struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / SML_NS_PER_S),
                                   .tv_nsec = (long)(timeout_ns % SML_NS_PER_S)};
  u->io.stats.system_calls++;
  const int num_ready =
      ppoll(fds, is_gathering ? 1 : 2 + u->num_groups, timeout_ns == SML_NEVER ? NULL : &timeout, NULL);
  if (num_ready > 0 && (fds[0].revents & POLLIN) != 0) end_wake(u);
}

static void udp_wake(struct sml_netio *io) {
  struct sml_udp *u = sml_udp_of(io);
  /* Release, pairs with the exchange in end_wake. An exchange and not a load first: a relaxed look at
   * a set flag would order nothing, and the waiter could return without seeing what it was woken for. */
  if (atomic_exchange_explicit(&u->is_wake_pending, true, memory_order_acq_rel)) return;
  const uint64_t one = 1;
  while (write(u->event_fd, &one, sizeof one) < 0 && errno == EINTR) continue; /* at most 1: it has room */
}

/* The buffer of each direction: forced beyond the system's limit where we may. Less than asked for is no
 * error: what does not fit is lost and repeated. */
static void set_buffer_bytes(int fd, int force_option, int option, uint32_t num_bytes) {
  const int value = (int)sml_min_u32(num_bytes, INT32_MAX / 2); /* the kernel doubles it */
  if (setsockopt(fd, SOL_SOCKET, force_option, &value, sizeof value) != 0)
    (void)setsockopt(fd, SOL_SOCKET, option, &value, sizeof value);
}

void sml_udp_set_rx_buffer(int fd, uint32_t num_bytes) {
  if (num_bytes > 0) set_buffer_bytes(fd, SO_RCVBUFFORCE, SO_RCVBUF, num_bytes);
}

/* As the kernel counts: what is around a datagram included. */
static uint64_t rx_buffer_bytes_of(int fd) {
  int value = 0;
  socklen_t value_bytes = sizeof value;
  return getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, &value_bytes) == 0 && value > 0 ? (uint64_t)value : 0;
}

static void udp_hold(struct sml_netio *io, uint64_t num_bytes) {
  struct sml_udp *u = sml_udp_of(io);
  if (num_bytes <= io->rx_buffer_bytes) return;
  u->rx_buffer_bytes = (uint32_t)sml_min_u64(sml_div_ceil(num_bytes, 2), UINT32_MAX); /* the kernel doubles it */
  sml_udp_set_rx_buffer(u->socket_fd, u->rx_buffer_bytes);
  for (uint32_t i = 0; i < u->num_groups; i++) sml_udp_set_rx_buffer(u->groups[i].fd, u->rx_buffer_bytes);
  io->rx_buffer_bytes = rx_buffer_bytes_of(u->socket_fd);
}

static const struct sml_netio_ops udp_ops = {.name = "udp",
                                             .close = udp_close,
                                             .close_descriptors = udp_close_descriptors,
                                             .local_addr = udp_local_addr,
                                             .rx_burst = sml_udp_rx_burst,
                                             .tx_reserve = sml_udp_tx_reserve,
                                             .tx_commit = sml_udp_tx_commit,
                                             .tx_flush = sml_udp_tx_flush,
                                             .wait = udp_wait,
                                             .wake = udp_wake,
                                             .join_group = sml_udp_join_group,
                                             .leave_group = sml_udp_leave_group,
                                             .tx_waiting = sml_udp_tx_waiting,
                                             .hold = udp_hold};

/* More than the system's own setting needs CAP_NET_ADMIN. Without it packets come as they would have. */
static void set_busy_poll(int fd) {
  const int busy_poll_us = 50, on = 1;
  (void)setsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, &busy_poll_us, sizeof busy_poll_us);
#ifdef SO_PREFER_BUSY_POLL
  (void)setsockopt(fd, SOL_SOCKET, SO_PREFER_BUSY_POLL, &on, sizeof on);
#else
  (void)on;
#endif
}

static bool probe_offload(int fd) {
  const int segment_bytes = 1400, none = 0, on = 1;
  if (setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment_bytes, sizeof segment_bytes) != 0) return false;
  if (setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &none, sizeof none) != 0) return false;
  return setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on) == 0;
}

/* Longer than the device takes is refused, as ever. What the system believes of the path is not asked: anybody can
 * forge the ICMP message that makes it believe in a narrow one, and the join has tried the size. */
static int set_dont_fragment(int fd, uint16_t family) {
  const int v4 = IP_PMTUDISC_PROBE, v6 = IPV6_PMTUDISC_PROBE;
  const int rc = setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &v4, sizeof v4);
  /* On an IPv6 socket the IPv4 option is for mapped peers and may be missing. */
  if (family == AF_INET) return rc;
  return setsockopt(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &v6, sizeof v6);
}

/* Datagrams say that they may be marked, and received ones show whether they were. Where the system cannot, none is.
 * IPv4 peers of an IPv6 socket go by the IPv4 options. */
void sml_udp_set_ecn(int fd, uint16_t family, bool is_sending) {
  const int capable = is_sending ? SML_UDP_ECN_CAPABLE : 0, on = 1;
  (void)setsockopt(fd, IPPROTO_IP, IP_TOS, &capable, sizeof capable);
  (void)setsockopt(fd, IPPROTO_IP, IP_RECVTOS, &on, sizeof on);
  if (family == AF_INET) return;
  (void)setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &capable, sizeof capable);
  (void)setsockopt(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, &on, sizeof on);
}

static const char *advice_for(int error) {
  switch (error) {
    case EADDRINUSE: return "; another socket has this port: end its process or choose another port";
    case EADDRNOTAVAIL: return "; no interface of this host has this address";
    case EACCES: return "; ports below 1024 need CAP_NET_BIND_SERVICE: choose a higher one";
    case EMFILE: return "; raise the limit of open files (ulimit -n)";
    case EAFNOSUPPORT: return "; this host or this build of the kernel lacks the address family";
    default: return "";
  }
}

/* Says what failed; returns -errno. */
static int describe_failure(const char *what, const struct sml_addr *addr, char *error_out, size_t error_bytes) {
  const int error = errno;
  char text[64];
  sml_addr_format(addr, text, sizeof text);
  errno = error;
  (void)snprintf(error_out, error_bytes, "UDP socket on %s: %s: %m%s", text, what, advice_for(error));
  return -error;
}

/* 0, or -errno with error_out filled. */
static int open_socket(struct sml_udp *u, const struct sml_udp_options *options, char *error_out, size_t error_bytes) {
  const struct sml_addr *addr = options->bind_addr;
  const uint16_t family = sml_addr_family(addr);
  if (family != AF_INET && family != AF_INET6) {
    errno = EAFNOSUPPORT;
    return describe_failure("neither IPv4 nor IPv6", addr, error_out, error_bytes);
  }
  u->socket_fd = sml_fd_raise(socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_UDP));
  if (u->socket_fd < 0) return describe_failure("cannot open", addr, error_out, error_bytes);
  u->event_fd = sml_fd_raise(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (u->event_fd < 0) return describe_failure("cannot open its event", addr, error_out, error_bytes);
  if (set_dont_fragment(u->socket_fd, family) != 0)
    return describe_failure("cannot set don't-fragment", addr, error_out, error_bytes);
  if (options->rx_buffer_bytes > 0) {
    /* As much for sending: a burst to many peers may wait behind a slow link whole. */
    sml_udp_set_rx_buffer(u->socket_fd, options->rx_buffer_bytes);
    set_buffer_bytes(u->socket_fd, SO_SNDBUFFORCE, SO_SNDBUF, options->rx_buffer_bytes);
  }
  sml_udp_set_ecn(u->socket_fd, family, !options->no_ecn);
  if (options->polls_device) set_busy_poll(u->socket_fd);
  if (options->multicast_ttl > 0) sml_udp_set_multicast(u->socket_fd, family, options);
  u->is_coalescing = u->is_segmenting = !options->no_offload && probe_offload(u->socket_fd);
  struct sockaddr_storage local = {0};
  memcpy(&local, addr->bytes, addr->num_bytes);
  if (bind(u->socket_fd, (const struct sockaddr *)&local, addr->num_bytes) != 0)
    return describe_failure("cannot bind", addr, error_out, error_bytes);
  socklen_t local_bytes = sizeof local;
  if (getsockname(u->socket_fd, (struct sockaddr *)&local, &local_bytes) != 0)
    return describe_failure("cannot ask for its port", addr, error_out, error_bytes);
  SML_ASSERT(local_bytes == addr->num_bytes);
  u->local_addr.num_bytes = addr->num_bytes;
  memcpy(u->local_addr.bytes, &local, local_bytes);
  return 0;
}

size_t sml_udp_memsize(void) {
  return sizeof(struct sml_udp) + SML_UDP_TX_BUFFER_BYTES + (size_t)SML_UDP_BATCH_MESSAGES * SML_UDP_RX_STRIDE_BYTES;
}

int sml_udp_open(const struct sml_udp_options *options, struct sml_netio **io_out, char *error_out,
                 size_t error_bytes) {
  *io_out = NULL;
  struct sml_udp *u = aligned_alloc(_Alignof(struct sml_udp), sizeof *u);
  if (u == NULL) {
    (void)snprintf(error_out, error_bytes, "out of memory for a UDP socket's buffers");
    return -ENOMEM;
  }
  memset(u, 0, sizeof *u);
  u->io = (struct sml_netio){.ops = &udp_ops, .max_frame_bytes = SML_UDP_MAX_PAYLOAD_BYTES};
  u->socket_fd = u->event_fd = -1;
  u->rx_buffer_bytes = options->rx_buffer_bytes;
  atomic_init(&u->is_wake_pending, false);
  int rc = open_socket(u, options, error_out, error_bytes);
  if (rc == 0 && (!sml_udp_rx_init(u) || !sml_udp_tx_init(u))) {
    (void)snprintf(error_out, error_bytes, "out of memory for a UDP socket's buffers");
    rc = -ENOMEM;
  }
  if (rc != 0) {
    udp_close(&u->io);
    return rc;
  }
  u->io.has_segmentation_offload = u->is_segmenting;
  u->io.rx_buffer_bytes = rx_buffer_bytes_of(u->socket_fd);
  *io_out = &u->io;
  return 0;
}
