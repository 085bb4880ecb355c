/* SPDX-License-Identifier: Apache-2.0 */
#include "aggd/network.h"

#include <arpa/inet.h>
#include <stdlib.h>

#define IPV4_BITS 96u /* of ::ffff:0:0/96, where IPv6 has IPv4 */

static void map_ipv4(const void *addr, uint8_t *bytes) {
  static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};
  memcpy(bytes, prefix, sizeof prefix);
  memcpy(bytes + sizeof prefix, addr, 4);
}

bool sml_network_parse(const char *text, struct sml_network *n) {
  char addr_text[INET6_ADDRSTRLEN];
  uint8_t ipv4[4];
  const char *slash = strchr(text, '/');
  const size_t num_chars = slash ? (size_t)(slash - text) : strlen(text);
  if (num_chars >= sizeof addr_text) return false;
  memcpy(addr_text, text, num_chars);
  addr_text[num_chars] = 0;
  const bool is_ipv4 = inet_pton(AF_INET, addr_text, ipv4) == 1;
  if (is_ipv4) map_ipv4(ipv4, n->bytes);
  else if (inet_pton(AF_INET6, addr_text, n->bytes) != 1) return false;
  const uint32_t most = is_ipv4 ? 32 : 128, before = is_ipv4 ? IPV4_BITS : 0;
  n->num_bits = before + most;
  if (!slash) return true;
  char *end;
  const unsigned long prefix = strtoul(slash + 1, &end, 10);
  n->num_bits = before + (uint32_t)prefix;
  return slash[1] >= '0' && slash[1] <= '9' && *end == 0 && prefix <= most;
}

bool sml_network_has(const struct sml_network *n, const struct sml_addr *addr) {
  uint8_t bytes[16];
  const struct sockaddr *any = (const struct sockaddr *)(const void *)addr->bytes;
  if (any->sa_family == AF_INET) map_ipv4(&((const struct sockaddr_in *)(const void *)addr->bytes)->sin_addr, bytes);
  else memcpy(bytes, &((const struct sockaddr_in6 *)(const void *)addr->bytes)->sin6_addr, sizeof bytes);
  const uint32_t whole = n->num_bits / 8, rest = n->num_bits % 8;
  if (memcmp(bytes, n->bytes, whole) != 0) return false;
  return rest == 0 || (bytes[whole] ^ n->bytes[whole]) >> (8 - rest) == 0;
}
