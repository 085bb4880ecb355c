/* SPDX-License-Identifier: Apache-2.0
 * Elements of float16, bfloat16 and float32, one at a time, as bits; private to this folder. */
#pragma once

#include "quant/fixed.h"

static inline size_t sml_elem_bytes(enum sml_elem elem) {
  return elem == SML_ELEM_FLOAT32 ? 4 : 2;
}

static inline uint32_t sml_load_16(const uint8_t *p) {
  uint16_t bits;
  memcpy(&bits, p, sizeof bits);
  return bits;
}

static inline uint32_t sml_load_32(const uint8_t *p) {
  uint32_t bits;
  memcpy(&bits, p, sizeof bits);
  return bits;
}

/* The float32 of the same value; a NaN becomes quiet, as processors have it. */
static inline uint32_t sml_float16_widened(uint32_t half) {
  const uint32_t sign = (half & 0x8000) << 16, magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00)
    return sign | SML_INFINITY_BITS | (magnitude & 0x3ff) << 13 | (magnitude > 0x7c00 ? UINT32_C(0x400000) : 0);
  if (magnitude >= 0x400) return sign | ((magnitude << 13) + ((127 - 15) << 23));
  if (magnitude == 0) return sign;
  const uint32_t up = (uint32_t)__builtin_clz(magnitude) - 8; /* the highest bit becomes the hidden one */
  return sign | ((magnitude << up) + ((149 - 24 - up) << 23));
}

static inline uint32_t sml_elem_widened(const uint8_t *p, enum sml_elem elem) {
  if (elem == SML_ELEM_FLOAT32) return sml_load_32(p);
  return elem == SML_ELEM_FLOAT16 ? sml_float16_widened(sml_load_16(p)) : sml_load_16(p) << 16;
}

static inline void sml_elem_store(uint8_t *p, uint32_t bits, enum sml_elem elem) {
  const uint16_t half = (uint16_t)bits;
  if (elem == SML_ELEM_FLOAT32) memcpy(p, &bits, sizeof bits);
  else memcpy(p, &half, sizeof half);
}

/* What every element of an unscaled block becomes. */
static inline uint32_t sml_elem_unscaled_bits(uint8_t code, enum sml_elem elem) {
  if (code != SML_CODE_NONFINITE) return 0;
  return elem == SML_ELEM_FLOAT32 ? UINT32_C(0x7fc00000) : elem == SML_ELEM_FLOAT16 ? 0x7e00 : 0x7fc0;
}

/* The element nearest to sum * 2^-shift / divisor, ties to even. A quotient has 50 bits at least, and a remainder. */
static inline uint32_t sml_elem_of_sum(uint32_t sum, int32_t shift, uint32_t divisor, enum sml_elem elem) {
  if (sum == 0) return 0;
  const bool is_negative = (sum & SML_SIGN_BIT) != 0;
  uint64_t value = is_negative ? 0u - sum : sum;
  int32_t exponent = -shift;
  bool has_rest = false;
  if (divisor != 1) {
    const int32_t up = __builtin_clzll(value) - 1;
    const uint64_t whole = value << up;
    value = whole / divisor;
    has_rest = value * divisor != whole;
    exponent -= up;
  }
  if (elem == SML_ELEM_FLOAT32) {
    const struct sml_float_layout layout = {24, -149, 255};
    return (uint32_t)sml_float_bits(layout, value, exponent, has_rest) | (is_negative ? SML_SIGN_BIT : 0);
  }
  const struct sml_float_layout layout = elem == SML_ELEM_FLOAT16 ? SML_LAYOUT_FLOAT16 : SML_LAYOUT_BFLOAT16;
  return (uint32_t)sml_float_bits(layout, value, exponent, has_rest) | (is_negative ? 0x8000 : 0);
}

static inline void sml_elem_fill(uint8_t *to, size_t num_elems, uint8_t code, enum sml_elem elem) {
  const size_t elem_bytes = sml_elem_bytes(elem);
  const uint32_t bits = sml_elem_unscaled_bits(code, elem);
  for (size_t i = 0; i < num_elems; i++) sml_elem_store(to + elem_bytes * i, bits, elem);
}
