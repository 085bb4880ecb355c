/* SPDX-License-Identifier: Apache-2.0
 * What threads ask the system for: the time, and bits that nobody foresees. Pure modules are given both. */
#pragma once

#include "base/base.h"

/* CLOCK_MONOTONIC. */
uint64_t sml_clock_ns(void);
/* What processors have spent on this process. */
uint64_t sml_clock_cpu_ns(void);
/* For nonces and seeds: they have to differ. No secret is made of them. */
uint64_t sml_random_bits(void);

/* A timeout may be centuries; SML_NEVER is none. */
static inline uint64_t sml_deadline_after(uint64_t now_ns, uint64_t timeout_ns) {
  return timeout_ns > SML_NEVER - 1 - now_ns ? SML_NEVER - 1 : now_ns + timeout_ns;
}
