/* SPDX-License-Identifier: Apache-2.0
 * The socket calls: names, ports, options, and what they do to connections (stream.c). IPv4 only. */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "sim/stream.h"

#define FIRST_FREE_PORT 32768u
#define MAX_BACKLOG 4096u

/* ---- as files ---- */

static uint32_t socket_events(struct sim_file *file) {
  return sim_stream_events((struct sim_endpoint *)file);
}

static int64_t socket_read(struct sim_file *file, void *data, size_t num_bytes) {
  struct sim_endpoint *e = (struct sim_endpoint *)file;
  int64_t result;
  while ((result = sim_stream_receive(e, data, num_bytes)) == -EAGAIN && !file->is_nonblocking)
    (void)sim_block(&file->waiters, SML_NEVER);
  return result;
}

static int64_t socket_write(struct sim_file *file, const void *data, size_t num_bytes) {
  struct sim_endpoint *e = (struct sim_endpoint *)file;
  int64_t result;
  while ((result = sim_stream_send(e, data, num_bytes)) == -EAGAIN && !file->is_nonblocking)
    (void)sim_block(&file->waiters, SML_NEVER);
  return result;
}

static void free_listener(struct sim_endpoint *e) {
  struct sim_endpoint **link = &e->host->listeners;
  while (*link != e) link = &(*link)->next;
  *link = e->next;
  while (e->accept_queue != NULL) {
    struct sim_endpoint *queued = e->accept_queue;
    e->accept_queue = queued->next;
    sim_stream_close(queued);
    __real_free(queued);
  }
}

static void socket_close(struct sim_file *file) {
  struct sim_endpoint *e = (struct sim_endpoint *)file;
  if (e->connection != NULL) SIM_TRACE("closes its connection to port %u", e->remote.port);
  if (e->state == SIM_LISTENING) free_listener(e);
  sim_stream_close(e);
  __real_free(e);
}

static const struct sim_file_ops socket_ops = {
    .name = "socket", .events = socket_events, .read = socket_read, .write = socket_write, .close = socket_close};

struct sim_endpoint *sim_endpoint_create(struct sim_host *host) {
  struct sim_endpoint *e = sim_take(sizeof *e);
  e->file.ops = &socket_ops;
  e->host = host;
  return e;
}

/* NULL: not a socket of this process. */
static struct sim_endpoint *endpoint_of(int fd) {
  struct sim_file *file = sim_file_of(fd);
  return file != NULL && file->ops == &socket_ops ? (struct sim_endpoint *)file : NULL;
}

/* Counts the call and looks up its socket; 0 or -errno. */
static int64_t begin(enum sim_call call, int fd, struct sim_endpoint **endpoint_out) {
  const int error = sim_call_error(call);
  sim.fiber->debt_ns += 200;
  *endpoint_out = endpoint_of(fd);
  return error != 0 ? -error : *endpoint_out == NULL ? -EBADF : 0;
}

/* ---- names ---- */

struct sim_endpoint *sim_listener_of(const struct sim_host *host, const struct sim_name *name) {
  for (struct sim_endpoint *e = host->listeners; e != NULL; e = e->next)
    if (e->local.port == name->port && (e->local.ipv4 == INADDR_ANY || e->local.ipv4 == name->ipv4)) return e;
  return NULL;
}

static bool read_name(const struct sockaddr *addr, socklen_t addr_bytes, struct sim_name *name_out) {
  struct sockaddr_in v4;
  if (addr == NULL || addr_bytes < sizeof v4 || addr->sa_family != AF_INET) return false;
  memcpy(&v4, addr, sizeof v4);
  *name_out = (struct sim_name){.ipv4 = ntohl(v4.sin_addr.s_addr), .port = ntohs(v4.sin_port)};
  return true;
}

static void write_name(const struct sim_name *name, struct sockaddr *addr, socklen_t *addr_bytes) {
  const struct sockaddr_in v4 = {
      .sin_family = AF_INET, .sin_port = htons(name->port), .sin_addr.s_addr = htonl(name->ipv4)};
  if (addr == NULL) return;
  memcpy(addr, &v4, sml_min_u64(*addr_bytes, sizeof v4));
  *addr_bytes = sizeof v4;
}

static uint16_t free_port(struct sim_host *host) {
  struct sim_name name = {.ipv4 = INADDR_ANY};
  do {
    host->last_port = (uint16_t)sml_max_u32(FIRST_FREE_PORT, (host->last_port + 1u) & 0xffffu);
    name.port = host->last_port;
  } while (sim_listener_of(host, &name) != NULL || sim_socket_at(host, name.port) != NULL);
  return name.port;
}

/* ---- calls ---- */

int __real_socket(int family, int type, int protocol);
int __wrap_socket(int family, int type, int protocol);
int __wrap_socket(int family, int type, int protocol) {
  if (!sim_is_inside()) return __real_socket(family, type, protocol);
  const int error = sim_call_error(SIM_CALL_SOCKET);
  if (error != 0) return (int)sim_result(-error);
  if (family != AF_INET) return (int)sim_result(-EAFNOSUPPORT);
  struct sim_endpoint *e = sim_endpoint_create(sim.fiber->process->host);
  e->has_file = true;
  e->is_datagram = (type & 0xf) == SOCK_DGRAM;
  e->file.is_nonblocking = (type & SOCK_NONBLOCK) != 0;
  return sim_file_install(&e->file);
}

static int64_t bind_name(int fd, const struct sockaddr *addr, socklen_t addr_bytes) {
  struct sim_endpoint *e;
  struct sim_name name;
  const int64_t result = begin(SIM_CALL_BIND, fd, &e);
  if (result != 0) return result;
  if (e->state != SIM_UNNAMED || !read_name(addr, addr_bytes, &name)) return -EINVAL;
  if (name.ipv4 != INADDR_ANY && sim_host_of(name.ipv4, e->host) != e->host) return -EADDRNOTAVAIL;
  if (name.port == 0) name.port = free_port(e->host);
  else if (sim_listener_of(e->host, &name) != NULL) return -EADDRINUSE;
  e->local = name;
  e->state = SIM_NAMED;
  return 0;
}

int __real_bind(int fd, const struct sockaddr *addr, socklen_t addr_bytes);
int __wrap_bind(int fd, const struct sockaddr *addr, socklen_t addr_bytes);
int __wrap_bind(int fd, const struct sockaddr *addr, socklen_t addr_bytes) {
  if (!sim_is_inside()) return __real_bind(fd, addr, addr_bytes);
  return (int)sim_result(bind_name(fd, addr, addr_bytes));
}

static int64_t begin_listening(int fd, int backlog) {
  struct sim_endpoint *e;
  const int64_t result = begin(SIM_CALL_LISTEN, fd, &e);
  if (result != 0) return result;
  if (e->state != SIM_NAMED) return -EINVAL;
  if (sim_listener_of(e->host, &e->local) != NULL) return -EADDRINUSE;
  e->state = SIM_LISTENING;
  e->backlog = sml_min_u32((uint32_t)backlog, MAX_BACKLOG);
  e->next = e->host->listeners;
  e->host->listeners = e;
  SIM_TRACE("listens on port %u", e->local.port);
  return 0;
}

int __real_listen(int fd, int backlog);
int __wrap_listen(int fd, int backlog);
int __wrap_listen(int fd, int backlog) {
  if (!sim_is_inside()) return __real_listen(fd, backlog);
  return (int)sim_result(begin_listening(fd, backlog));
}

static int64_t connect_to(int fd, const struct sockaddr *addr, socklen_t addr_bytes) {
  struct sim_endpoint *e;
  const int64_t result = begin(SIM_CALL_CONNECT, fd, &e);
  if (result != 0) return result;
  if (e->state == SIM_CONNECTING) return -EALREADY;
  if (e->state != SIM_UNNAMED && e->state != SIM_NAMED) return -EISCONN;
  if (!read_name(addr, addr_bytes, &e->remote)) return -EINVAL;
  struct sim_host *to = sim_host_of(e->remote.ipv4, e->host);
  if (e->is_datagram) return 0;
  if (to == NULL) return -ENETUNREACH;
  if (e->local.port == 0) e->local.port = free_port(e->host);
  if (e->local.ipv4 == INADDR_ANY) e->local.ipv4 = e->host->ipv4;
  SIM_TRACE("connects to %s port %u", to->name, e->remote.port);
  sim_stream_connect(e, to);
  if (e->file.is_nonblocking) return -EINPROGRESS;
  while (e->state == SIM_CONNECTING) (void)sim_block(&e->file.waiters, SML_NEVER);
  const int error = e->error;
  e->error = 0;
  return -error;
}

int __real_connect(int fd, const struct sockaddr *addr, socklen_t addr_bytes);
int __wrap_connect(int fd, const struct sockaddr *addr, socklen_t addr_bytes);
int __wrap_connect(int fd, const struct sockaddr *addr, socklen_t addr_bytes) {
  if (!sim_is_inside()) return __real_connect(fd, addr, addr_bytes);
  return (int)sim_result(connect_to(fd, addr, addr_bytes));
}

static int64_t accept_one(int fd, struct sockaddr *addr, socklen_t *addr_bytes, int flags) {
  struct sim_endpoint *listener;
  const int64_t result = begin(SIM_CALL_ACCEPT, fd, &listener);
  if (result != 0) return result;
  if (listener->state != SIM_LISTENING) return -EINVAL;
  while (listener->accept_queue == NULL) {
    if (listener->file.is_nonblocking) return -EAGAIN;
    (void)sim_block(&listener->file.waiters, SML_NEVER);
  }
  struct sim_endpoint *e = listener->accept_queue;
  listener->accept_queue = e->next;
  listener->num_queued--;
  e->next = NULL;
  e->has_file = true;
  e->file.is_nonblocking = (flags & SOCK_NONBLOCK) != 0;
  write_name(&e->remote, addr, addr_bytes);
  SIM_TRACE("accepts a connection of port %u", e->remote.port);
  return sim_file_install(&e->file);
}

int __real_accept4(int fd, struct sockaddr *addr, socklen_t *addr_bytes, int flags);
int __wrap_accept4(int fd, struct sockaddr *addr, socklen_t *addr_bytes, int flags);
int __wrap_accept4(int fd, struct sockaddr *addr, socklen_t *addr_bytes, int flags) {
  if (!sim_is_inside()) return __real_accept4(fd, addr, addr_bytes, flags);
  return (int)sim_result(accept_one(fd, addr, addr_bytes, flags));
}

static int64_t transfer(enum sim_call call, int fd, void *to, const void *from, size_t num_bytes, int flags) {
  struct sim_endpoint *e;
  const int64_t result = begin(call, fd, &e);
  if (result != 0) return result;
  if ((flags & MSG_DONTWAIT) != 0)
    return to != NULL ? sim_stream_receive(e, to, num_bytes) : sim_stream_send(e, from, num_bytes);
  return to != NULL ? socket_read(&e->file, to, num_bytes) : socket_write(&e->file, from, num_bytes);
}

ssize_t __real_send(int fd, const void *data, size_t num_bytes, int flags);
ssize_t __wrap_send(int fd, const void *data, size_t num_bytes, int flags);
ssize_t __wrap_send(int fd, const void *data, size_t num_bytes, int flags) {
  if (!sim_is_inside()) return __real_send(fd, data, num_bytes, flags);
  return (ssize_t)sim_result(transfer(SIM_CALL_SEND, fd, NULL, data, num_bytes, flags));
}

ssize_t __real_recv(int fd, void *data, size_t num_bytes, int flags);
ssize_t __wrap_recv(int fd, void *data, size_t num_bytes, int flags);
ssize_t __wrap_recv(int fd, void *data, size_t num_bytes, int flags) {
  if (!sim_is_inside()) return __real_recv(fd, data, num_bytes, flags);
  return (ssize_t)sim_result(transfer(SIM_CALL_RECV, fd, data, NULL, num_bytes, flags));
}

int __real_shutdown(int fd, int how);
int __wrap_shutdown(int fd, int how);
int __wrap_shutdown(int fd, int how) {
  if (!sim_is_inside()) return __real_shutdown(fd, how);
  struct sim_endpoint *e;
  int64_t result = begin(SIM_CALL_SHUTDOWN, fd, &e);
  if (result == 0 && (how != SHUT_WR || e->state != SIM_CONNECTED)) result = -ENOTCONN;
  if (result == 0) sim_stream_shut(e);
  return (int)sim_result(result);
}

/* ---- options and names of sockets ---- */

int __real_setsockopt(int fd, int level, int option, const void *value, socklen_t value_bytes);
int __wrap_setsockopt(int fd, int level, int option, const void *value, socklen_t value_bytes);
int __wrap_setsockopt(int fd, int level, int option, const void *value, socklen_t value_bytes) {
  if (!sim_is_inside()) return __real_setsockopt(fd, level, option, value, value_bytes);
  struct sim_endpoint *e;
  return (int)sim_result(begin(SIM_CALL_SETSOCKOPT, fd, &e)); /* they are about speed, or always on here */
}

static int64_t get_option(int fd, int level, int option, void *value, socklen_t *value_bytes) {
  struct sim_endpoint *e;
  const int64_t result = begin(SIM_CALL_GETSOCKOPT, fd, &e);
  if (result != 0) return result;
  int answer;
  if (*value_bytes < sizeof answer) return -EINVAL;
  if (level == SOL_SOCKET && option == SO_ERROR) {
    answer = e->error;
    e->error = 0;
  } else if (level == IPPROTO_IP && option == IP_MTU) {
    if (e->remote.port == 0) return -ENOTCONN;
    answer = (int)e->host->told_mtu_bytes;
  } else {
    return -ENOPROTOOPT;
  }
  memcpy(value, &answer, sizeof answer);
  *value_bytes = sizeof answer;
  return 0;
}

int __real_getsockopt(int fd, int level, int option, void *value, socklen_t *value_bytes);
int __wrap_getsockopt(int fd, int level, int option, void *value, socklen_t *value_bytes);
int __wrap_getsockopt(int fd, int level, int option, void *value, socklen_t *value_bytes) {
  if (!sim_is_inside()) return __real_getsockopt(fd, level, option, value, value_bytes);
  return (int)sim_result(get_option(fd, level, option, value, value_bytes));
}

int __real_getsockname(int fd, struct sockaddr *addr, socklen_t *addr_bytes);
int __wrap_getsockname(int fd, struct sockaddr *addr, socklen_t *addr_bytes);
int __wrap_getsockname(int fd, struct sockaddr *addr, socklen_t *addr_bytes) {
  if (!sim_is_inside()) return __real_getsockname(fd, addr, addr_bytes);
  struct sim_endpoint *e;
  const int64_t result = begin(SIM_CALL_GETSOCKNAME, fd, &e);
  if (result == 0) write_name(&e->local, addr, addr_bytes);
  return (int)sim_result(result);
}

int __real_getpeername(int fd, struct sockaddr *addr, socklen_t *addr_bytes);
int __wrap_getpeername(int fd, struct sockaddr *addr, socklen_t *addr_bytes);
int __wrap_getpeername(int fd, struct sockaddr *addr, socklen_t *addr_bytes) {
  if (!sim_is_inside()) return __real_getpeername(fd, addr, addr_bytes);
  struct sim_endpoint *e;
  int64_t result = begin(SIM_CALL_GETPEERNAME, fd, &e);
  if (result == 0 && (e->state != SIM_CONNECTED || e->is_broken)) result = -ENOTCONN;
  if (result == 0) write_name(&e->remote, addr, addr_bytes);
  return (int)sim_result(result);
}

/* ---- interfaces ---- */

/* A host's one interface, in one piece. */
struct interface {
  struct ifaddrs entry;
  struct sockaddr_in addr, mask;
  char name[8];
};

int __real_getifaddrs(struct ifaddrs **interfaces_out);
int __wrap_getifaddrs(struct ifaddrs **interfaces_out);
int __wrap_getifaddrs(struct ifaddrs **interfaces_out) {
  if (!sim_is_inside()) return __real_getifaddrs(interfaces_out);
  struct interface *i = calloc(1, sizeof *i); /* the process's: it leaks, and fails, as memory does */
  if (i == NULL) return -1;
  i->addr = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(sim.fiber->process->host->ipv4)};
  i->mask = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(0xff000000)};
  memcpy(i->name, "eth0", 5);
  i->entry = (struct ifaddrs){.ifa_name = i->name,
                              .ifa_flags = IFF_UP,
                              .ifa_addr = (struct sockaddr *)&i->addr,
                              .ifa_netmask = (struct sockaddr *)&i->mask};
  *interfaces_out = &i->entry;
  return 0;
}

void __real_freeifaddrs(struct ifaddrs *interfaces);
void __wrap_freeifaddrs(struct ifaddrs *interfaces);
void __wrap_freeifaddrs(struct ifaddrs *interfaces) {
  if (!sim_is_inside()) __real_freeifaddrs(interfaces);
  else free(interfaces); /* an interface begins with its entry */
}
