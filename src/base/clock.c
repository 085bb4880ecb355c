/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

#include <sys/random.h>
#include <time.h>

uint64_t sml_clock_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * SML_NS_PER_S + (uint64_t)t.tv_nsec;
}

uint64_t sml_random_bits(void) {
  uint64_t bits;
  if (getrandom(&bits, sizeof bits, 0) == (ssize_t)sizeof bits) return bits;
  return sml_mix64(sml_clock_ns() ^ (uint64_t)(uintptr_t)&bits);
}
