/* SPDX-License-Identifier: Apache-2.0 */
#include "netio/netio.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>

#include "netio/addr.h"

#define MAX_GROUPS 65536u
#define MAPPED 0x0000ffff00000000ull /* the second word of an IPv4 address in IPv6, before the address */
#define MAX_LANES 16u

bool sml_multicast_is_group(const struct sml_addr *addr) {
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
  switch (sml_addr_family(addr)) {
    case AF_INET: memcpy(&v4, addr->bytes, sizeof v4); return IN_MULTICAST(ntohl(v4.sin_addr.s_addr));
    case AF_INET6: memcpy(&v6, addr->bytes, sizeof v6); return IN6_IS_ADDR_MULTICAST(&v6.sin6_addr);
    default: return false;
  }
}

void sml_multicast_to_words(const struct sml_addr *group, uint64_t words_out[2]) {
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
  if (sml_addr_family(group) == AF_INET) {
    memcpy(&v4, group->bytes, sizeof v4);
    words_out[0] = 0;
    words_out[1] = MAPPED | ntohl(v4.sin_addr.s_addr);
  } else {
    memcpy(&v6, group->bytes, sizeof v6);
    words_out[0] = sml_load_be64(v6.sin6_addr.s6_addr);
    words_out[1] = sml_load_be64(v6.sin6_addr.s6_addr + 8);
  }
}

bool sml_multicast_from_words(const uint64_t words[2], uint16_t port, struct sml_addr *group_out) {
  *group_out = (struct sml_addr){.num_bytes = 0};
  if (words[0] == 0 && words[1] >> 32 == MAPPED >> 32) {
    const struct sockaddr_in v4 = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl((uint32_t)words[1])};
    memcpy(group_out->bytes, &v4, group_out->num_bytes = sizeof v4);
  } else {
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    sml_store_be64(v6.sin6_addr.s6_addr, words[0]);
    sml_store_be64(v6.sin6_addr.s6_addr + 8, words[1]);
    memcpy(group_out->bytes, &v6, group_out->num_bytes = sizeof v6);
  }
  return sml_multicast_is_group(group_out) && port != 0;
}

bool sml_multicast_group(const struct sml_multicast *m, uint32_t job, uint32_t lane, struct sml_addr *group_out) {
  uint64_t words[2];
  if (m->first.num_bytes == 0 || job >= m->num_groups) return false;
  sml_multicast_to_words(&m->first, words);
  words[1] += job;
  return sml_multicast_from_words(words, (uint16_t)(sml_addr_port(&m->first) + lane), group_out);
}

/* The last group of the range is one, with no carry beyond the word that is added to. */
static bool fits(const struct sml_multicast *m) {
  uint64_t words[2];
  struct sml_addr last;
  sml_multicast_to_words(&m->first, words);
  return words[1] <= UINT64_MAX - (m->num_groups - 1) && sml_multicast_group(m, m->num_groups - 1, 0, &last) &&
         sml_addr_family(&last) == sml_addr_family(&m->first);
}

static bool parse_count(const char *text, uint32_t *count_out) {
  char *end;
  const unsigned long count = strtoul(text, &end, 10);
  *count_out = (uint32_t)count;
  return text[0] >= '0' && text[0] <= '9' && *end == 0 && count >= 1 && count <= MAX_GROUPS;
}

bool sml_multicast_parse(const char *text, struct sml_multicast *m, char *error_out, size_t error_bytes) {
  char group[128];
  const char *slash = strchr(text, '/');
  const size_t group_bytes = slash != NULL ? (size_t)(slash - text) : strlen(text);
  m->num_groups = SML_MULTICAST_DEFAULT_GROUPS;
  if (slash != NULL && !parse_count(slash + 1, &m->num_groups)) {
    (void)snprintf(error_out, error_bytes, "'%.64s': behind the / goes the number of groups, 1 to %u", text,
                   MAX_GROUPS);
    return false;
  }
  (void)snprintf(group, sizeof group, "%.*s", (int)sml_min_u64(group_bytes, sizeof group - 1), text);
  if (!sml_addr_check(group, SML_MULTICAST_DEFAULT_PORT, &m->first, error_out, error_bytes)) return false;
  const uint16_t port = sml_addr_port(&m->first);
  if (sml_multicast_is_group(&m->first) && fits(m) && port != 0 && port <= 65536u - MAX_LANES) return true;
  (void)snprintf(error_out, error_bytes,
                 "'%.64s' is no range of multicast groups: write one as in 239.192.7.0/64, with ports up to 65520",
                 text);
  m->first.num_bytes = 0;
  return false;
}
