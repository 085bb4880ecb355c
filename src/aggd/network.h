/* SPDX-License-Identifier: Apache-2.0
 * Networks from which connections are taken: 10.1.0.0/16, 2001:db8::/32, or one address. */
#pragma once

#include "netio/netio.h"

struct sml_network {
  uint8_t bytes[16]; /* an IPv4 network as IPv6 maps it */
  uint32_t num_bits; /* of them, that count: 0 to 128 */
};
/* False: the text is no network. What is behind the prefix does not count. */
bool sml_network_parse(const char *text, struct sml_network *network_out);
bool sml_network_has(const struct sml_network *network, const struct sml_addr *addr);
