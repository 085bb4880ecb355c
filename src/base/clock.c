/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <sys/random.h>
#include <time.h>

static uint64_t read_clock(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (uint64_t)t.tv_sec * SML_NS_PER_S + (uint64_t)t.tv_nsec;
}

uint64_t sml_clock_ns(void) {
  return read_clock(CLOCK_MONOTONIC);
}

uint64_t sml_clock_cpu_ns(void) {
  return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

uint64_t sml_random_bits(void) {
  uint64_t bits;
  if (getrandom(&bits, sizeof bits, 0) == (ssize_t)sizeof bits) return bits;
  return sml_mix64(sml_clock_ns() ^ (uint64_t)(uintptr_t)&bits);
}
