/* SPDX-License-Identifier: Apache-2.0
 * The aggregator's state, for aggregator.c, which changes it, and aggregator_invariants.c, which looks whether it
 * is sound. */
#ifndef SML_CORE_AGGREGATOR_INTERNAL_H
#define SML_CORE_AGGREGATOR_INTERNAL_H

#include "core/aggregator.h"

/* One version of a slot. phase 0: never used. */
struct cell {
  uint32_t phase;
  uint32_t tag;
  uint32_t grant; /* drawn once, at completion */
  uint32_t count; /* I4: the number of seen bits */
  uint16_t first_rank;
  uint16_t payload_bytes;
  uint8_t wire, reducer;
};

struct sml_aggregator {
  struct sml_aggregator_options options;
  uint32_t cursor; /* next chunk to grant */
  uint32_t num_departed;
  uint32_t seen_words; /* words a cell */
  size_t value_stride_bytes;
  struct cell *cells; /* [2 * num_slots]: slot * 2 + version */
  uint64_t *seen;     /* [2 * num_slots][seen_words]; I3 */
  uint64_t *departed; /* [seen_words] */
  uint8_t *values;    /* [2 * num_slots][value_stride_bytes] */
};

static inline uint64_t *sml_aggregator_seen(const struct sml_aggregator *a, uint32_t cell) {
  return a->seen + (size_t)cell * a->seen_words;
}

static inline bool sml_aggregator_is_complete(const struct sml_aggregator *a, const struct cell *c) {
  return c->count == a->options.num_contributors;
}

#endif
