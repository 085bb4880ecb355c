/* SPDX-License-Identifier: Apache-2.0
 * What an operation does beside its sum, where it is a collective other than all-reduce (docs/PROTOCOL.md rules R190
 * and R191): a sum of which this rank wants a part, or of numbers that are zero on all ranks but one. Or it goes one
 * way, so that nobody gets what is for others. */
#pragma once

#include "core/wire.h"

struct sml_collective {
  const char *name;    /* for people */
  uint64_t key;        /* of what must be alike on all ranks: the kind, and the parts or the root */
  uint64_t num_bytes;  /* that it copies; 0: it sums */
  const uint8_t *from; /* what of the sum is the caller's; NULL: nothing is to be copied */
  void *out;
  size_t out_bytes;
  /* SML_REDUCE_TO_OWNER or SML_REDUCE_COPY: it goes one way, and its parts, with the end (PROTOCOL.md rules R192 to
   * R195): of each rank, in elements, or bytes of a copy. */
  uint8_t way;
  uint64_t *parts;
  _Alignas(64) uint8_t scratch[]; /* where the sum goes, unless it is the caller's memory */
};

static inline uint64_t sml_collective_mix(uint64_t h, uint64_t field) {
  return sml_mix64(h ^ field) + UINT64_C(0x9e3779b97f4a7c15);
}

/* In the place of a caller's key. */
static inline uint64_t sml_collective_key(const struct sml_collective *c, uint64_t key) {
  return sml_collective_mix(c->key, key);
}

/* The sum is there. */
static inline void sml_collective_store(const struct sml_collective *c) {
  if (c->from != NULL && c->out_bytes > 0) memcpy(c->out, c->from, c->out_bytes);
}
