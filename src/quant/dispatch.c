/* SPDX-License-Identifier: Apache-2.0
 * Which kernels this processor can run. Asks the processor itself: this folder uses nothing of libc or
 * libgcc beyond memcpy and its kin. */
#include "quant/kernels.h"

#if SML_QUANT_HAS_AVX2
#include <cpuid.h>

#define XCR0_SSE_AND_AVX UINT32_C(6)

/* That the processor has AVX2 is not enough: the system must save the upper halves of the registers. */
static bool has_avx2(void) {
  uint32_t eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return false;
  if ((ecx & bit_OSXSAVE) == 0 || (ecx & bit_AVX) == 0) return false;
  uint32_t xcr0, xcr0_high;
  __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(xcr0_high) : "c"(0));
  if ((xcr0 & XCR0_SSE_AND_AVX) != XCR0_SSE_AND_AVX) return false;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  return (ebx & bit_AVX2) != 0;
}
#endif

static bool is_named(const struct sml_quant_kernels *kernels, const char *name) {
  size_t i = 0;
  while (name[i] != '\0' && name[i] == kernels->name[i]) i++;
  return name[i] == kernels->name[i];
}

const struct sml_quant_kernels *sml_quant_select(const char *force) {
  if (force != NULL && is_named(&sml_quant_scalar, force)) return &sml_quant_scalar;
#if SML_QUANT_HAS_AVX2
  if (has_avx2()) return &sml_quant_avx2;
#endif
  return &sml_quant_scalar;
}
