/* SPDX-License-Identifier: Apache-2.0
 * Who opens connections how fast: a source is an IPv4 address or an IPv6 /64, which one party has as a
 * whole. The table has a fixed size; when more sources are busy than fit, the least busy is forgotten, so
 * many sources get more than their share, one does not. Pure. */
#pragma once

#include "base/base.h"

#define SML_SOURCE_SETS 256u
#define SML_SOURCE_WAYS 4u
#define SML_SOURCE_BURST_S 4u          /* this many seconds' worth may come at once */
#define SML_SOURCE_LOOPBACK_FACTOR 16u /* our own host starts many ranks at once */

/* A pace: when the bucket would be full again. At most as far ahead as the window. */
static inline bool sml_pace_admit(uint64_t *full_at_ns, uint64_t interval_ns, uint64_t window_ns, uint64_t now_ns) {
  uint64_t next_ns = sml_max_u64(*full_at_ns, now_ns) + interval_ns;
  if (next_ns - now_ns > window_ns) return false;
  *full_at_ns = next_ns;
  return true;
}

struct sml_source_table {
  uint64_t seed; /* unpredictable: nobody chooses whom to share a set with */
  struct {
    uint64_t source, full_at_ns;
  } cells[SML_SOURCE_SETS][SML_SOURCE_WAYS];
};

/* host: numeric, with or without brackets and scope. Another text is a source of its own. */
uint64_t sml_source_of(const char *host);
bool sml_source_is_loopback(uint64_t source);
/* One more connection of the source: false: it has had per_s (x the factor for loopback) a second, and the
 * burst. */
bool sml_source_admit(struct sml_source_table *table, uint64_t source, uint32_t per_s, uint64_t now_ns);
