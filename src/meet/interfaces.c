/* SPDX-License-Identifier: Apache-2.0 */
#include "meet/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include "base/text.h"

struct sml_addr sml_addr_of_ip(int family, const void *ip, uint16_t port) {
  struct sml_addr addr = {.num_bytes = 0};
  if (family == AF_INET6) {
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    memcpy(&v6.sin6_addr, ip, sizeof v6.sin6_addr);
    memcpy(addr.bytes, &v6, addr.num_bytes = sizeof v6);
  } else {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    memcpy(&v4.sin_addr, ip, sizeof v4.sin_addr);
    memcpy(addr.bytes, &v4, addr.num_bytes = sizeof v4);
  }
  return addr;
}

const uint8_t *sml_addr_ip(const struct sml_addr *addr, uint32_t *num_bytes_out) {
  const bool is_v6 = addr->num_bytes == sizeof(struct sockaddr_in6);
  *num_bytes_out = is_v6 ? 16 : 4;
  return addr->bytes + (is_v6 ? offsetof(struct sockaddr_in6, sin6_addr) : offsetof(struct sockaddr_in, sin_addr));
}

/* ---- this host's ---- */

static bool has_virtual_name(const char *name) {
  static const char *const prefixes[] = {"docker", "br-", "virbr", "veth", "cni", "flannel", "tun", "tap"};
  for (size_t i = 0; i < SML_ARRAY_LEN(prefixes); i++)
    if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return true;
  return false;
}

static uint32_t count_bits(const uint8_t *mask, uint32_t num_bytes) {
  uint32_t num_bits = 0;
  for (uint32_t i = 0; i < num_bytes; i++) num_bits += sml_popcount_u64(mask[i]);
  return num_bits;
}

static bool is_link_local(int family, const uint8_t *ip) {
  if (family == AF_INET) return ip[0] == 169 && ip[1] == 254;
  return ip[0] == 0xfe && (ip[1] & 0xc0) == 0x80; /* says nothing without the number of an interface */
}

static bool read_one(const struct ifaddrs *i, struct sml_interface_addr *out) {
  if (i->ifa_addr == NULL || (i->ifa_flags & IFF_UP) == 0 || (i->ifa_flags & IFF_LOOPBACK) != 0) return false;
  const int family = i->ifa_addr->sa_family;
  if (family != AF_INET && family != AF_INET6) return false;
  const size_t offset =
      family == AF_INET ? offsetof(struct sockaddr_in, sin_addr) : offsetof(struct sockaddr_in6, sin6_addr);
  const uint8_t *ip = (const uint8_t *)i->ifa_addr + offset;
  if (is_link_local(family, ip)) return false;
  const uint32_t num_bytes = family == AF_INET ? 4 : 16;
  *out = (struct sml_interface_addr){
      .addr = sml_addr_of_ip(family, ip, 0), .prefix_bits = num_bytes * 8, .is_virtual = has_virtual_name(i->ifa_name)};
  if (i->ifa_netmask != NULL) out->prefix_bits = count_bits((const uint8_t *)i->ifa_netmask + offset, num_bytes);
  return true;
}

bool sml_interfaces_list(const char *only, struct sml_interfaces *out) {
  struct ifaddrs *all;
  out->num_addrs = 0;
  if (getifaddrs(&all) != 0) return false;
  for (uint32_t is_virtual = 0; is_virtual < 2; is_virtual++) {
    for (const struct ifaddrs *i = all; i != NULL && out->num_addrs < SML_MAX_INTERFACE_ADDRS; i = i->ifa_next) {
      struct sml_interface_addr *a = &out->addrs[out->num_addrs];
      if (only != NULL && !sml_text_lists(only, i->ifa_name)) continue;
      if (read_one(i, a) && a->is_virtual == (is_virtual != 0)) out->num_addrs++;
    }
  }
  freeifaddrs(all);
  return true;
}

/* ---- compared ---- */

bool sml_interfaces_has_family(const struct sml_interfaces *interfaces, int family) {
  const size_t wanted_bytes = family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
  for (uint32_t i = 0; i < interfaces->num_addrs; i++)
    if (interfaces->addrs[i].addr.num_bytes == wanted_bytes) return true;
  return false;
}

/* The first bits of both are equal. */
static bool are_alike(const struct sml_addr *a, const struct sml_addr *b, uint32_t num_bits) {
  uint32_t num_bytes, other_bytes;
  const uint8_t *x = sml_addr_ip(a, &num_bytes), *y = sml_addr_ip(b, &other_bytes);
  if (num_bytes != other_bytes) return false;
  for (uint32_t bit = 0; bit < sml_min_u32(num_bits, num_bytes * 8); bit++)
    if (((x[bit / 8] ^ y[bit / 8]) >> (7 - bit % 8) & 1) != 0) return false;
  return true;
}

bool sml_interfaces_is_own(const struct sml_interfaces *interfaces, const struct sml_addr *addr) {
  for (uint32_t i = 0; i < interfaces->num_addrs; i++)
    if (are_alike(&interfaces->addrs[i].addr, addr, UINT32_MAX)) return true;
  return false;
}

bool sml_interfaces_is_near(const struct sml_interfaces *interfaces, const struct sml_addr *addr) {
  for (uint32_t i = 0; i < interfaces->num_addrs; i++)
    if (are_alike(&interfaces->addrs[i].addr, addr, interfaces->addrs[i].prefix_bits)) return true;
  return false;
}
