/* SPDX-License-Identifier: Apache-2.0
 * Numbers of several int32 lanes an element, and those of 128 bits that they become: what exact sums (limbs.c), float64
 * (doubles.c) and int64 (format.c) share; private to this folder. */
#pragma once

#include "base/base.h"

__extension__ typedef __int128 sml_int128;
__extension__ typedef unsigned __int128 sml_uint128;

/* Bits of a limb, so that one of each of 1 .. 4096 ranks fit an int32 with its sign. */
static inline uint32_t sml_limb_bits(uint32_t world_size) {
  SML_ASSERT(world_size >= 1 && world_size <= 4096);
  return 31 - sml_max_u32(sml_ceil_log2(world_size), 1);
}

static inline void sml_lane_add(uint8_t *lane, uint32_t value) {
  sml_store_be32(lane, sml_load_be32(lane) + value);
}

/* By words: a division of 128 bits would be a call of the compiler's library. Whether there was a rest. */
static inline bool sml_wide_divide(sml_uint128 *value, uint32_t divisor) {
  sml_uint128 quotient = 0;
  uint64_t rest = 0;
  for (uint32_t i = 4; i-- > 0;) {
    rest = rest << 32 | (uint32_t)(*value >> 32 * i);
    quotient = quotient << 32 | rest / divisor;
    rest %= divisor;
  }
  *value = quotient;
  return rest != 0;
}

static inline uint32_t sml_wide_leading_zeros(sml_uint128 value) {
  const uint64_t high = (uint64_t)(value >> 64);
  return high != 0 ? (uint32_t)__builtin_clzll(high) : 64 + (uint32_t)__builtin_clzll((uint64_t)value);
}
