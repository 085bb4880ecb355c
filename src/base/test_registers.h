/* SPDX-License-Identifier: Apache-2.0
 * Whether a function that used wide vectors has cleared their upper parts before it returned. If it has not, each SSE
 * instruction after it waits for them: 170 ns for each packet, once. Compilers clear them from -O2 on, and the build
 * with an address sanitizer is below that. */
#pragma once

#include "base/base.h"

#if defined(__x86_64__) && defined(__OPTIMIZE__) && !defined(SML_SANITIZE_ADDRESS)
#include <cpuid.h>

static inline bool has_clean_vectors(void) {
  unsigned int a, b, c, d, in_use, high;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_OSXSAVE) == 0) return true;
  if (!__get_cpuid_count(13, 1, &a, &b, &c, &d) || (a & 4) == 0) return true; /* the processor does not tell */
  __asm__ volatile("xgetbv" : "=a"(in_use), "=d"(high) : "c"(1));
  return (in_use & 0x44) == 0; /* the upper halves of ymm0 to 15, and of zmm0 to 15 */
}
#else
static inline bool has_clean_vectors(void) {
  return true;
}
#endif
