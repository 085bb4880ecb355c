/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/recorder.h"

#include <stdlib.h>

/* At most 3,200 records of dropped packets a second, so that the default ring reaches back seconds in any flood. */
#define DROPS_NS (10 * SML_NS_PER_MS)
#define DROPS_A_TIME 32u

struct sml_recorder sml_recorder_none = {.level = SML_TRACE_OFF};

struct sml_recorder *sml_recorder_create(const struct sml_recorder_options *options) {
  SML_ASSERT(options->num_events <= SML_TRACE_MAX_EVENTS);
  const uint32_t num_events = options->num_events == 0 ? 0 : 1u << sml_ceil_log2(options->num_events);
  struct sml_recorder *r = calloc(1, sizeof *r);
  if (r == NULL) return NULL;
  r->level = num_events == 0 ? SML_TRACE_OFF : options->level;
  if (r->level == SML_TRACE_OFF) return r;
  r->mask = num_events - 1;
  r->words = calloc(num_events, SML_RECORD_BYTES); /* pages come with their first use */
  if (r->words != NULL) return r;
  free(r);
  return NULL;
}

void sml_recorder_destroy(struct sml_recorder *r) {
  if (r == NULL) return;
  free((void *)r->words);
  free(r);
}

bool sml_recorder_takes_drop(struct sml_recorder *r, uint64_t now_ns) {
  if (r->level == SML_TRACE_ALL) return true;
  if (now_ns >= r->drops_until_ns) {
    r->drops_until_ns = now_ns + DROPS_NS;
    r->drops_left = DROPS_A_TIME;
  }
  if (r->drops_left == 0) return false;
  r->drops_left--;
  return true;
}

uint64_t sml_recorder_room(const struct sml_recorder *r) {
  return r->level == SML_TRACE_OFF ? 0 : r->mask + 1;
}

uint64_t sml_recorder_copy(const struct sml_recorder *r, struct sml_record *records, uint64_t room,
                           uint64_t *num_lost_out) {
  const uint64_t size = sml_recorder_room(r);
  *num_lost_out = 0;
  if (size == 0 || room == 0) return 0;
  /* Acquire pairs with the release of sml_recorder_put: the records below are whole, if not overwritten since. */
  const uint64_t end = atomic_load_explicit(&r->num_written, memory_order_acquire);
  const uint64_t first = end - sml_min_u64(end, sml_min_u64(size, room));
  for (uint64_t n = first; n < end; n++) {
    const _Atomic uint64_t *from = r->words + (n & r->mask) * 4;
    uint64_t words[4];
    /* Acquire, pairs with the release of these words in sml_recorder_put. */
    for (uint32_t i = 0; i < 4; i++) words[i] = atomic_load_explicit(from + i, memory_order_acquire);
    memcpy(&records[n - first], words, sizeof words);
  }
  /* Record n is whole unless the one that takes its place, n + size, was begun: it is when that many were written. */
  const uint64_t written = atomic_load_explicit(&r->num_written, memory_order_relaxed);
  uint64_t valid = written >= size ? written - size + 1 : 0;
  valid = sml_min_u64(sml_max_u64(valid, first), end);
  memmove(records, records + (valid - first), (end - valid) * sizeof *records);
  *num_lost_out = valid;
  return end - valid;
}
