/* SPDX-License-Identifier: Apache-2.0
 * Which kernels this processor can run. Asks the processor itself: this folder uses nothing of libc or
 * libgcc beyond memcpy and its kin. */
#include "quant/kernels.h"

#if SML_QUANT_HAS_X86
#include <cpuid.h>

/* Parts of the registers that the system saves. */
#define XCR0_AVX UINT32_C(0x06)
#define XCR0_AVX512 UINT32_C(0xe6)

/* That the processor has the instructions is not enough: the system must save all of the registers. */
static bool has_extensions(uint32_t saved_parts, uint32_t wanted) {
  uint32_t eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return false;
  const uint32_t needed = bit_OSXSAVE | bit_AVX | bit_F16C;
  if ((ecx & needed) != needed) return false;
  uint32_t xcr0, xcr0_high;
  __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(xcr0_high) : "c"(0));
  if ((xcr0 & saved_parts) != saved_parts) return false;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  return (ebx & wanted) == wanted;
}
#endif

/* The implementation of this number, from the best one on. NULL: this processor does not have it. */
enum { NUM_IMPLEMENTATIONS = 4 };
static const struct sml_quant_kernels *implementation(int number) {
  switch (number) {
#if SML_QUANT_HAS_X86
    case 0:
      return has_extensions(XCR0_AVX512, bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ) ? &sml_quant_avx512
                                                                                                   : NULL;
    case 1: return has_extensions(XCR0_AVX, bit_AVX2) ? &sml_quant_avx2 : NULL;
#endif
#if SML_QUANT_HAS_NEON
    case 2: return &sml_quant_neon; /* part of the architecture */
#endif
    case 3: return &sml_quant_scalar;
    default: return NULL;
  }
}

static bool is_named(const struct sml_quant_kernels *kernels, const char *name) {
  size_t i = 0;
  while (name[i] != '\0' && name[i] == kernels->name[i]) i++;
  return name[i] == kernels->name[i];
}

const struct sml_quant_kernels *sml_quant_select(const char *force) {
  const struct sml_quant_kernels *best = NULL;
  for (int i = 0; i < NUM_IMPLEMENTATIONS; i++) {
    const struct sml_quant_kernels *kernels = implementation(i);
    if (kernels == NULL) continue;
    if (force != NULL && is_named(kernels, force)) return kernels;
    if (best == NULL) best = kernels;
  }
  return best;
}
