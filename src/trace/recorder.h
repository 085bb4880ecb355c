/* SPDX-License-Identifier: Apache-2.0
 * A flight recorder: the last events of one writer (an engine, a job under its lock, a control thread) in fixed
 * memory. Writing is a few stores, without a lock or a system call; anybody may copy what is there meanwhile, and
 * leaves out what was overwritten under his hands. */
#pragma once

#include <stdatomic.h>

#include "base/base.h"
#include "trace/events.h"

#define SML_RECORD_BYTES 32u
#define SML_TRACE_DEFAULT_EVENTS 16384u /* of an engine: 512 KiB, of which only what was used is touched */
#define SML_TRACE_MAX_EVENTS (1u << 24)

struct sml_record {
  uint64_t time_ns; /* sml_clock_ns(), of the pass */
  uint16_t event;   /* enum sml_trace_event */
  uint16_t job;     /* the aggregator's number */
  uint16_t slot;    /* relative to the job's window */
  uint16_t rank;
  uint32_t phase, chunk;
  uint64_t value;
};
_Static_assert(sizeof(struct sml_record) == SML_RECORD_BYTES, "a record is four words");

struct sml_recorder {
  _Atomic uint64_t num_written; /* ever */
  uint64_t mask;
  enum sml_trace_level level;
  uint32_t drops_left; /* see sml_recorder_takes_drop() */
  uint64_t drops_until_ns;
  uint64_t last_ns; /* of what was put last */
  _Atomic uint64_t *words;
};

struct sml_recorder_options {
  enum sml_trace_level level;
  uint32_t num_events; /* rounded up to a power of two; 0: nothing is recorded */
};
/* NULL: out of memory. */
struct sml_recorder *sml_recorder_create(const struct sml_recorder_options *options);
void sml_recorder_destroy(struct sml_recorder *recorder);
/* One that records nothing, for whoever was given none. */
extern struct sml_recorder sml_recorder_none;

static inline bool sml_recorder_takes_all(const struct sml_recorder *r) {
  return r->level == SML_TRACE_ALL;
}

/* Times do not go back: who waited for the job's lock may have looked at the clock before the one who put something
 * meanwhile. Readers merge recorders by time. */
static inline void sml_recorder_put(struct sml_recorder *r, struct sml_record record) {
  if (r->level == SML_TRACE_OFF) return;
  record.time_ns = r->last_ns = sml_max_u64(record.time_ns, r->last_ns);
  uint64_t words[4];
  memcpy(words, &record, sizeof words);
  const uint64_t n = atomic_load_explicit(&r->num_written, memory_order_relaxed);
  _Atomic uint64_t *to = r->words + (n & r->mask) * 4;
  /* Release: who reads one of them (acquire, sml_recorder_copy) sees that n were written before, so that the record
   * that was here is gone. */
  for (uint32_t i = 0; i < 4; i++) atomic_store_explicit(to + i, words[i], memory_order_release);
  atomic_store_explicit(&r->num_written, n + 1, memory_order_release); /* pairs with sml_recorder_copy */
}

/* Whether a dropped packet is to be recorded: a flood of them must not push out everything else, unless all was
 * asked for. */
bool sml_recorder_takes_drop(struct sml_recorder *r, uint64_t now_ns);

/* How many records there may be. */
uint64_t sml_recorder_room(const struct sml_recorder *r);
/* Any thread: copies the last records, oldest first; returns how many. num_lost_out: how many were overwritten. */
uint64_t sml_recorder_copy(const struct sml_recorder *r, struct sml_record *records, uint64_t room,
                           uint64_t *num_lost_out);
