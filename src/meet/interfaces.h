/* SPDX-License-Identifier: Apache-2.0
 * The addresses at which other hosts may reach this one, and which of theirs are near. */
#pragma once

#include "netio/netio.h"

#define SML_MAX_INTERFACE_ADDRS 32u

struct sml_interface_addr {
  struct sml_addr addr; /* port 0 */
  uint32_t prefix_bits; /* of its network */
  bool is_virtual;      /* by its name it is a bridge or tunnel of this host alone */
};
struct sml_interfaces {
  uint32_t num_addrs;
  struct sml_interface_addr addrs[SML_MAX_INTERFACE_ADDRS]; /* virtual ones last */
};

/* Addresses of interfaces that are up, neither loopback nor link-local. only: names, "eth0,eth1"; NULL: all.
 * False: the system does not say; errno. */
bool sml_interfaces_list(const char *only, struct sml_interfaces *interfaces_out);
bool sml_interfaces_has_family(const struct sml_interfaces *interfaces, int family);
/* The address is one of this host's. */
bool sml_interfaces_is_own(const struct sml_interfaces *interfaces, const struct sml_addr *addr);
/* The address is in the network of one of this host's. */
bool sml_interfaces_is_near(const struct sml_interfaces *interfaces, const struct sml_addr *addr);

/* An address from the bytes of an IPv4 (4) or IPv6 (16) one, and its bytes; they lie in `addr`. */
struct sml_addr sml_addr_of_ip(int family, const void *ip, uint16_t port);
const uint8_t *sml_addr_ip(const struct sml_addr *addr, uint32_t *num_bytes_out);
