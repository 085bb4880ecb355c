/* SPDX-License-Identifier: Apache-2.0
 * Up to which size callers run the engine for their operations, or drive their sums, so that no thread is woken for
 * that. A small operation is over sooner than a thread wakes up. In a middle-sized one waking the thread, and by it the
 * caller, is a good part of the time; but if nobody waited for it, it would stand still until the thread looks after it
 * (engine/caller.c). So two calls in a row that were waited for at once are needed, and one that was not takes it
 * back. */
#pragma once

#include "base/clock.h"
#include "lib/operation.h"

#define SML_SMALL_BYTES (64u << 10)
#define SML_MIDDLE_BYTES (1u << 20)
#define SML_AT_ONCE_NS (50 * SML_NS_PER_US)
#define SML_ENOUGH_AT_ONCE 2u

static inline bool sml_is_within(const struct sml_operation_plan *plan, uint32_t num_bytes) {
  return sml_plan_lanes(plan) <= num_bytes / 4;
}

/* num_at_once: the last middle-sized operations that were waited for at once. */
static inline bool sml_callers_run(const _Atomic uint32_t *num_at_once, const struct sml_operation_plan *plan) {
  const bool waits_at_once = atomic_load_explicit(num_at_once, memory_order_relaxed) >= SML_ENOUGH_AT_ONCE;
  return sml_is_within(plan, waits_at_once ? SML_MIDDLE_BYTES : SML_SMALL_BYTES);
}

/* The call of an operation returns. */
static inline void sml_note_return(struct sml_operation *op, const struct sml_operation_plan *plan) {
  if (sml_is_within(plan, SML_MIDDLE_BYTES) && !sml_is_within(plan, SML_SMALL_BYTES))
    atomic_store_explicit(&op->returned_ns, sml_clock_ns(), memory_order_relaxed);
}

/* Its caller comes to wait for it. */
static inline void sml_note_wait(struct sml_operation *op, _Atomic uint32_t *num) {
  const uint64_t returned_ns = atomic_load_explicit(&op->returned_ns, memory_order_relaxed);
  if (returned_ns == 0) return;
  const bool is_at_once = sml_clock_ns() - returned_ns < SML_AT_ONCE_NS;
  const uint32_t more = sml_min_u32(atomic_load_explicit(num, memory_order_relaxed) + 1, SML_ENOUGH_AT_ONCE);
  atomic_store_explicit(num, is_at_once ? more : 0, memory_order_relaxed);
  atomic_store_explicit(&op->returned_ns, 0, memory_order_relaxed);
}
