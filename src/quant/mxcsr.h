/* SPDX-License-Identifier: Apache-2.0
 * The floating point environment of the x86 kernels; private to this folder. */
#pragma once

#include "quant/kernels.h"

/* Round to nearest even, exceptions masked, denormals kept; and the same with denormals as zero. */
#define MXCSR_DEFAULT UINT32_C(0x1f80)
#define MXCSR_FLUSH (MXCSR_DEFAULT | UINT32_C(0x8040))

/* The memory clobbers keep the arithmetic between `enter` and `leave`: it uses what is loaded after the one and is
 * stored before the other. `leave` restores the caller's sticky flags too. */
typedef uint32_t environment;

static inline environment enter(bool is_flushing) {
  const uint32_t mxcsr = is_flushing ? MXCSR_FLUSH : MXCSR_DEFAULT;
  environment saved;
  __asm__ volatile("stmxcsr %0" : "=m"(saved) : : "memory");
  __asm__ volatile("ldmxcsr %0" : : "m"(mxcsr) : "memory");
  return saved;
}

static inline void leave(environment saved) {
  __asm__ volatile("ldmxcsr %0" : : "m"(saved) : "memory");
}
