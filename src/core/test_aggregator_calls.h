/* SPDX-License-Identifier: Apache-2.0
 * For tests: packets for one aggregator, and what it says to them. */
#pragma once

#include "core/aggregator.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define CHUNK_BYTES 64u

static inline struct sml_aggregator *init(const struct sml_aggregator_options *options) {
  const size_t num_bytes = sml_aggregator_memsize(options);
  void *mem = aligned_alloc(64, sml_align_up(num_bytes, 64));
  assert_non_null(mem);
  memset(mem, 0xa5, num_bytes); /* "zero-filled or not" */
  return sml_aggregator_init(mem, options);
}

static inline struct sml_aggregator *make(uint32_t world_size, uint32_t num_slots, uint32_t first_phase,
                                   uint32_t first_chunk) {
  const struct sml_aggregator_options options = {.world_size = world_size,
                                                 .num_slots = num_slots,
                                                 .slot_base = (uint16_t)(2 * num_slots),
                                                 .chunk_bytes = CHUNK_BYTES,
                                                 .first_phase = first_phase,
                                                 .first_chunk = first_chunk};
  return init(&options);
}

/* What an honest rank sends for a slot (relative) and phase; the tag is a function of both. */
static inline struct sml_header update(const struct sml_aggregator *a, uint32_t rank, uint32_t slot,
                                uint32_t phase) {
  return (struct sml_header){.version = SML_WIRE_VERSION,
                             .type = SML_PACKET_UPDATE,
                             .wire = SML_LANES_INT32,
                             .reducer = SML_REDUCE_SUM,
                             .rank = (uint16_t)rank,
                             .payload_bytes = CHUNK_BYTES,
                             .slot = (uint16_t)(sml_aggregator_options_of(a)->slot_base + slot),
                             .phase = phase,
                             .tag = slot * 1000003 + phase};
}

static inline struct sml_header probe(const struct sml_aggregator *a, uint32_t rank, uint32_t slot, uint32_t phase) {
  struct sml_header h = update(a, rank, slot, phase);
  h.type = SML_PACKET_PROBE;
  h.payload_bytes = 0;
  return h;
}

static inline struct sml_decision expect(struct sml_aggregator *a, const struct sml_header h,
                                  enum sml_verdict verdict) {
  const struct sml_decision d = sml_aggregator_decide(a, &h);
  assert_int_equal(d.verdict, verdict);
  if (verdict != SML_VERDICT_DROP) {
    const uint32_t slot = (uint32_t)h.slot - sml_aggregator_options_of(a)->slot_base;
    assert_int_equal(d.cell, 2 * slot + (h.phase & 1));
  }
  return d;
}

static inline void expect_drop(struct sml_aggregator *a, const struct sml_header h, enum sml_drop reason) {
  const struct sml_decision d = sml_aggregator_decide(a, &h);
  assert_int_equal(d.verdict, SML_VERDICT_DROP);
  assert_int_equal(d.drop, reason);
}

/* All ranks contribute once; returns the grant. */
static inline uint32_t complete(struct sml_aggregator *a, uint32_t slot, uint32_t phase) {
  const uint32_t n = sml_aggregator_options_of(a)->world_size;
  struct sml_header result;
  expect(a, update(a, 0, slot, phase), SML_VERDICT_FIRST);
  for (uint32_t rank = 1; rank + 1 < n; rank++) expect(a, update(a, rank, slot, phase), SML_VERDICT_ADD);
  const struct sml_decision d = expect(a, update(a, n - 1, slot, phase), SML_VERDICT_COMPLETE);
  sml_aggregator_result(a, d.cell, &result);
  assert_int_equal(result.phase, phase);
  return result.chunk;
}

static inline void assert_missing(const struct sml_aggregator *a, uint32_t slot, uint32_t phase, const bool *is_in) {
  const uint32_t n = sml_aggregator_options_of(a)->world_size;
  uint64_t words[SML_BITMAP_WORDS(SML_MAX_WORLD_SIZE)];
  uint32_t num_missing = 0;
  memset(words, 0x5a, sizeof words);
  const uint32_t answer = sml_aggregator_missing(a, slot, phase, words);
  for (uint32_t rank = 0; rank < SML_BITMAP_WORDS(n) * 64; rank++) {
    const bool is_missing = rank < n && !is_in[rank];
    assert_int_equal(sml_bit_test(words, rank), is_missing);
    num_missing += is_missing;
  }
  assert_int_equal(answer, num_missing);
}
