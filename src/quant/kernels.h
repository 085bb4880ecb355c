/* SPDX-License-Identifier: Apache-2.0
 * What the implementations of struct sml_quant_kernels share; private to this folder.
 *
 * Outside of what quant.h promises (a buffer changed during its operation, a lying aggregator) every
 * implementation still agrees: codes below SML_CODE_MIN count as SML_CODE_ZERO, and an element that is
 * too large for the code saturates at the limit, with its sign; a NaN at the positive one. */
#pragma once

#include "quant/packed.h"

#define SML_QUANT_MAX_WORLD_SIZE 4096

/* Hidden where they are used too, not only where they are defined: no global offset table is needed. */
#define SML_QUANT_HIDDEN __attribute__((visibility("hidden")))
extern const struct sml_quant_kernels sml_quant_scalar SML_QUANT_HIDDEN;

#if defined(__x86_64__)
#define SML_QUANT_HAS_X86 1
extern const struct sml_quant_kernels sml_quant_avx2 SML_QUANT_HIDDEN;
extern const struct sml_quant_kernels sml_quant_avx512 SML_QUANT_HIDDEN;
#else
#define SML_QUANT_HAS_X86 0
#endif

#if defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define SML_QUANT_HAS_NEON 1
extern const struct sml_quant_kernels sml_quant_neon SML_QUANT_HIDDEN;
#else
#define SML_QUANT_HAS_NEON 0
#endif

/* Flushed and non-finite blocks have no fixed point. */
static inline bool sml_quant_is_scaled(uint8_t code) {
  return code >= SML_CODE_MIN && code != SML_CODE_NONFINITE;
}

/* k of quant.h: -110 .. 129 over all scaled codes and world sizes (128 at most from 2 ranks on). */
static inline int32_t sml_quant_shift(uint8_t code, uint32_t world_size) {
  SML_ASSERT(world_size >= 1 && world_size <= SML_QUANT_MAX_WORLD_SIZE);
  return 30 - (int32_t)sml_ceil_log2(world_size) - ((int32_t)code - 126);
}

/* Largest |q|: times the world size it is 2^30 at most. */
static inline uint32_t sml_quant_limit(uint32_t world_size) {
  return UINT32_C(1) << (30 - sml_ceil_log2(world_size));
}

/* The exponent code of the largest |x| of a block, given its bits without the sign. */
static inline uint8_t sml_quant_code_of(uint32_t largest_bits) {
  uint32_t exponent = largest_bits >> 23;
  return exponent < SML_CODE_MIN ? SML_CODE_ZERO : (uint8_t)exponent;
}

/* What every element of an unscaled block becomes. */
static inline uint32_t sml_quant_unscaled_bits(uint8_t code) {
  return code == SML_CODE_NONFINITE ? UINT32_C(0x7fc00000) : 0;
}

/* Two elements a lane: the same with 15 bits instead of 30, and one value less, so that sums fit 16 bits with sign. */
static inline int32_t sml_packed_shift(uint8_t code, uint32_t world_size) {
  return sml_quant_shift(code, world_size) - 15;
}
static inline uint32_t sml_packed_limit(uint32_t world_size) {
  SML_ASSERT(world_size <= SML_PACKED_MAX_RANKS);
  return (sml_quant_limit(world_size) >> 15) - 1;
}

/* 2^exponent, from its bits, so that no floating point flag has a say. */
static inline double sml_quant_pow2(int32_t exponent) {
  uint64_t bits = (uint64_t)(exponent + 1023) << 52;
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
