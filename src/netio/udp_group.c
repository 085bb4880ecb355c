/* SPDX-License-Identifier: Apache-2.0
 * Multicast groups of the udp back end: joined, each with a socket of its own, by those who receive; the way out of
 * those who send. What cannot be joined is no error of a job: its results then come by unicast. */
#include "netio/udp_internal.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <unistd.h>

#include "base/fd.h"
#include "netio/addr.h"

static bool has_host(const struct sockaddr *a, const struct sockaddr *b) {
  if (a == NULL || a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET)
    return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr ==
           ((const struct sockaddr_in *)(const void *)b)->sin_addr.s_addr;
  return memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

uint32_t sml_multicast_interface_of(const struct sml_addr *addr) {
  struct ifaddrs *all = NULL;
  uint32_t index = 0;
  const uint16_t family = sml_addr_family(addr);
  if ((family != AF_INET && family != AF_INET6) || getifaddrs(&all) != 0) return 0;
  for (const struct ifaddrs *i = all; i != NULL && index == 0; i = i->ifa_next)
    if (has_host(i->ifa_addr, (const struct sockaddr *)(const void *)addr->bytes)) index = if_nametoindex(i->ifa_name);
  freeifaddrs(all);
  return index;
}

bool sml_multicast_find_interface(const char *text, uint32_t *index_out) {
  struct sml_addr addr;
  char error[128];
  *index_out = if_nametoindex(text);
  if (*index_out == 0 && sml_addr_read(text, 1, true, &addr, error, sizeof error))
    *index_out = sml_multicast_interface_of(&addr);
  return *index_out != 0;
}

/* None of these can fail for a socket of the family; what is wrong with the interface shows when datagrams don't
 * arrive. */
void sml_udp_set_multicast(int fd, uint16_t family, const struct sml_udp_options *options) {
  const uint32_t chosen = options->multicast_interface;
  const int hops = options->multicast_ttl;
  const int index = (int)(chosen != 0 ? chosen : sml_multicast_interface_of(options->bind_addr));
  if (family == AF_INET) {
    const struct ip_mreqn way = {.imr_ifindex = index};
    (void)setsockopt(fd, IPPROTO_IP, IP_MULTICAST_TTL, &hops, sizeof hops);
    if (index != 0) (void)setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &way, sizeof way);
  } else {
    (void)setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, &hops, sizeof hops);
    if (index != 0) (void)setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, &index, sizeof index);
  }
}

static int join(int fd, const struct sml_addr *group, uint32_t index) {
  const int off = 0;
  if (sml_addr_family(group) == AF_INET) {
    struct sockaddr_in addr;
    memcpy(&addr, group->bytes, sizeof addr);
    const struct ip_mreqn request = {.imr_multiaddr = addr.sin_addr, .imr_ifindex = (int)index};
    /* Not what other sockets of this host joined on other interfaces. */
    (void)setsockopt(fd, IPPROTO_IP, IP_MULTICAST_ALL, &off, sizeof off);
    return setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request);
  }
  struct sockaddr_in6 addr;
  memcpy(&addr, group->bytes, sizeof addr);
  const struct ipv6_mreq request = {.ipv6mr_multiaddr = addr.sin6_addr, .ipv6mr_interface = index};
  (void)setsockopt(fd, IPPROTO_IPV6, IPV6_MULTICAST_ALL, &off, sizeof off);
  return setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &request, sizeof request);
}

/* Groups of a link's scope are bound on a link. */
static struct sockaddr_storage bind_address(const struct sml_addr *group, uint32_t index) {
  struct sockaddr_storage local = {0};
  memcpy(&local, group->bytes, group->num_bytes);
  if (local.ss_family == AF_INET6) ((struct sockaddr_in6 *)(void *)&local)->sin6_scope_id = index;
  return local;
}

int sml_udp_join_group(struct sml_netio *io, const struct sml_addr *group, const struct sml_addr *via) {
  struct sml_udp *u = sml_udp_of(io);
  const int on = 1;
  if (!sml_multicast_is_group(group) || sml_addr_family(group) != sml_addr_family(via)) return -EAFNOSUPPORT;
  if (u->num_groups == SML_NETIO_MAX_GROUPS) return -ENOBUFS;
  const int fd = sml_fd_raise(socket(sml_addr_family(group), SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_UDP));
  if (fd < 0) return -errno;
  struct sml_addr local_addr;
  /* The interface by which packets to `via` leave, and so its come in. 0: let the system choose. */
  const uint32_t index = sml_addr_find_local(via, &local_addr) ? sml_multicast_interface_of(&local_addr) : 0;
  const struct sockaddr_storage local = bind_address(group, index);
  sml_udp_set_rx_buffer(fd, u->rx_buffer_bytes);
  if (u->is_coalescing) (void)setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on);
  sml_udp_set_ecn(fd, sml_addr_family(group), false);
  /* Ranks of one host share the group's port: each gets each datagram. */
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(fd, (const struct sockaddr *)&local, group->num_bytes) != 0 || join(fd, group, index) != 0) {
    const int error = errno;
    (void)close(fd);
    return -error;
  }
  u->groups[u->num_groups++] = (struct sml_udp_group){.fd = fd, .addr = *group};
  return 0;
}

void sml_udp_leave_group(struct sml_netio *io, const struct sml_addr *group) {
  struct sml_udp *u = sml_udp_of(io);
  for (uint32_t i = 0; i < u->num_groups; i++) {
    if (!sml_addr_equal(&u->groups[i].addr, group)) continue;
    (void)close(u->groups[i].fd); /* the membership ends with it */
    u->groups[i] = u->groups[--u->num_groups];
    return;
  }
}
