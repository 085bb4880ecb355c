/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/source.h"

/* No IPv6 source begins like this: ff.. are multicast addresses. */
#define IPV4 (UINT64_C(0xffff) << 48)
#define OTHER (UINT64_C(0xfffe) << 48)

static bool is_end(char c) {
  return c == 0 || c == ']' || c == '%';
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool parse_ipv4(const char *text, uint32_t *addr_out) {
  uint32_t addr = 0;
  for (uint32_t part = 0; part < 4; part++) {
    uint32_t value = 0, num_digits = 0;
    for (; *text >= '0' && *text <= '9' && num_digits < 3; num_digits++) value = value * 10 + (uint32_t)(*text++ - '0');
    if (num_digits == 0 || value > 255 || (part < 3 ? *text++ != '.' : !is_end(*text))) return false;
    addr = addr << 8 | value;
  }
  *addr_out = addr;
  return true;
}

struct ipv6 {
  uint16_t groups[8];
  uint32_t num_groups;
  int gap_at; /* the "::" stands before this group; -1: nowhere */
};

/* The groups that are written out. An IPv4 address may be the last two. */
static bool read_groups(const char *text, struct ipv6 *v6) {
  v6->gap_at = -1;
  while (!is_end(*text)) {
    uint32_t value = 0, num_digits = 0, addr;
    if (text[0] == ':' && text[1] == ':') {
      if (v6->gap_at >= 0) return false;
      v6->gap_at = (int)v6->num_groups;
      text += 2;
      continue;
    }
    if (v6->num_groups > 0 && v6->gap_at != (int)v6->num_groups && *text++ != ':') return false;
    if (v6->num_groups <= 6 && parse_ipv4(text, &addr)) {
      v6->groups[v6->num_groups++] = (uint16_t)(addr >> 16);
      v6->groups[v6->num_groups++] = (uint16_t)addr;
      break;
    }
    for (; hex_digit(*text) >= 0 && num_digits < 4; num_digits++) value = value << 4 | (uint32_t)hex_digit(*text++);
    if (num_digits == 0 || v6->num_groups == 8) return false;
    v6->groups[v6->num_groups++] = (uint16_t)value;
  }
  return v6->gap_at >= 0 ? v6->num_groups < 8 : v6->num_groups == 8;
}

static bool parse_ipv6(const char *text, uint16_t groups[8]) {
  struct ipv6 v6 = {.num_groups = 0};
  if (!read_groups(text, &v6)) return false;
  uint32_t num_before = v6.gap_at >= 0 ? (uint32_t)v6.gap_at : v6.num_groups;
  uint32_t num_after = v6.num_groups - num_before;
  memset(groups, 0, 8 * sizeof *groups);
  memcpy(groups, v6.groups, num_before * sizeof *groups);
  memcpy(groups + 8 - num_after, v6.groups + num_before, num_after * sizeof *groups);
  return true;
}

uint64_t sml_source_of(const char *host) {
  const char *text = host[0] == '[' ? host + 1 : host;
  uint32_t addr;
  uint16_t g[8];
  if (parse_ipv4(text, &addr)) return IPV4 | addr;
  if (parse_ipv6(text, g)) {
    bool is_mapped = (g[0] | g[1] | g[2] | g[3] | g[4]) == 0 && g[5] == 0xffff;
    if (is_mapped) return IPV4 | (uint32_t)g[6] << 16 | g[7];
    return (uint64_t)g[0] << 48 | (uint64_t)g[1] << 32 | (uint64_t)g[2] << 16 | g[3];
  }
  uint64_t hash = 0;
  for (; *host; host++) hash = sml_mix64(hash * 31 + (uint8_t)*host);
  return OTHER | hash >> 16;
}

bool sml_source_is_loopback(uint64_t source) {
  return source == 0 || source >> 24 == (IPV4 | 0x7f000000u) >> 24; /* ::1 is in ::/64, which routes nowhere */
}

bool sml_source_admit(struct sml_source_table *table, uint64_t source, uint32_t per_s, uint64_t now_ns) {
  uint64_t rate = (uint64_t)per_s * (sml_source_is_loopback(source) ? SML_SOURCE_LOOPBACK_FACTOR : 1);
  uint32_t set = (uint32_t)(sml_mix64(source ^ table->seed) % SML_SOURCE_SETS), way = 0;
  for (uint32_t i = 0; i < SML_SOURCE_WAYS; i++) {
    if (table->cells[set][i].source == source) {
      way = i;
      break;
    }
    if (table->cells[set][i].full_at_ns < table->cells[set][way].full_at_ns) way = i;
  }
  if (table->cells[set][way].source != source) {
    table->cells[set][way].source = source;
    table->cells[set][way].full_at_ns = 0;
  }
  return sml_pace_admit(&table->cells[set][way].full_at_ns, SML_NS_PER_S / rate, SML_SOURCE_BURST_S * SML_NS_PER_S,
                        now_ns);
}
