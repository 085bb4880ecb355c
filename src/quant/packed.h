/* SPDX-License-Identifier: Apache-2.0
 * Floats in 16-bit fixed point, two of them an int32 lane (docs/PROTOCOL.md rules R63 to R65). With
 * k = 15 - ceil(log2 n) - e every |q| is below 2^15 / n' (n' = n rounded up to a power of two), so a sum of n of them
 * fits 16 bits. A lane is 2^16 * q(element i) + q(element i + h) modulo 2^32, h being half of the chunk's elements,
 * rounded up; the last lane of an odd chunk has one element only. Lanes are added modulo 2^32 as any: the low half of
 * the sum, with its sign, is one sum, and what is left is 2^16 times the other. So whoever adds lanes knows nothing of
 * it. Here, too: 16-bit elements of lanes of their own. */
#pragma once

#include "quant/quant.h"

/* 8 bits are left of 16 then. */
#define SML_PACKED_MAX_RANKS 128u

static inline size_t sml_packed_lanes(size_t num_elems) {
  return (num_elems + 1) / 2;
}

static inline uint32_t sml_packed_lane(uint32_t high, uint32_t low) {
  return (high << 16) + low;
}
static inline uint32_t sml_packed_low(uint32_t lane) {
  return (uint32_t)(int32_t)(int16_t)(uint16_t)lane;
}
static inline uint32_t sml_packed_high(uint32_t lane) {
  return (uint32_t)(int32_t)(int16_t)(uint16_t)((lane - sml_packed_low(lane)) >> 16);
}

/* The reference kernels. */
uint8_t sml_packed_block_code_16(const void *in, size_t num_elems, enum sml_elem elem);
void sml_packed_put(void *lanes, const void *in, size_t num_elems, enum sml_elem elem, uint8_t code,
                    uint32_t world_size);
void sml_packed_add(void *lanes, const void *in, size_t num_elems, enum sml_elem elem, uint8_t code,
                    uint32_t world_size);
void sml_packed_get(void *out, const void *lanes, size_t num_elems, enum sml_elem elem, uint8_t code,
                    uint32_t world_size, bool average);
void sml_packed_reduce(void *out, const void *const *in, uint32_t num_inputs, size_t num_elems, enum sml_elem elem,
                       bool average);
void sml_packed_widen(float *out, const void *in, size_t num_elems, enum sml_elem elem);
void sml_packed_dequantize_16(void *out, const void *lanes, size_t num_elems, enum sml_elem elem, uint8_t code,
                              uint32_t world_size, bool average);
