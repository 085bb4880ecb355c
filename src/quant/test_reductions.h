/* SPDX-License-Identifier: Apache-2.0
 * What reductions that are no sums, and sums of integers, give: by value, one contribution after the other. */
#pragma once

#include <math.h>

#include "quant/elem.h"
#include "quant/format.h"

static inline uint64_t reduction_load(const void *p, uint32_t type) {
  uint16_t half;
  uint32_t word;
  uint64_t wide;
  switch (sml_format_elem_bytes(type)) {
    case 1: return *(const uint8_t *)p;
    case 2: memcpy(&half, p, 2); return half;
    case 4: memcpy(&word, p, 4); return word;
    default: memcpy(&wide, p, 8); return wide;
  }
}

static inline void reduction_store(void *p, uint64_t bits, uint32_t type) {
  const uint16_t half = (uint16_t)bits;
  const uint32_t word = (uint32_t)bits;
  switch (sml_format_elem_bytes(type)) {
    case 1: *(uint8_t *)p = (uint8_t)bits; break;
    case 2: memcpy(p, &half, 2); break;
    case 4: memcpy(p, &word, 4); break;
    default: memcpy(p, &bits, 8); break;
  }
}

static inline double reduction_float(uint64_t bits, uint32_t type) {
  uint32_t word = (uint32_t)bits;
  float single;
  double wide;
  if (type == SML_FORMAT_FLOAT64) {
    memcpy(&wide, &bits, sizeof wide);
    return wide;
  }
  if (type == SML_FORMAT_FLOAT16) word = sml_float16_widened(word);
  if (type == SML_FORMAT_BFLOAT16) word <<= 16;
  memcpy(&single, &word, sizeof single);
  return single;
}

/* Is a above b: by value, +0 above -0? */
static inline bool reduction_is_above(uint64_t a, uint64_t b, uint32_t type) {
  if (sml_format_is_float(type)) {
    const double x = reduction_float(a, type), y = reduction_float(b, type);
    return x == y ? signbit(y) && !signbit(x) : x > y;
  }
  switch (type) {
    case SML_FORMAT_INT8: return (int8_t)a > (int8_t)b;
    case SML_FORMAT_INT32: return (int32_t)a > (int32_t)b;
    case SML_FORMAT_INT64: return (int64_t)a > (int64_t)b;
    default: return a > b;
  }
}

static inline uint64_t reduction_nan(uint32_t type) {
  return type == SML_FORMAT_FLOAT16    ? 0x7e00
         : type == SML_FORMAT_BFLOAT16 ? 0x7fc0
         : type == SML_FORMAT_FLOAT32  ? 0x7fc00000
                                       : UINT64_C(0x7ff8) << 48;
}

/* Elements are bits, num_inputs >= 1 of them; of any type and reduction that there is but sums of floats. */
static inline uint64_t reduction_of(const uint64_t *in, uint32_t num_inputs, uint32_t type, uint32_t reduction) {
  const bool is_truth = reduction == SML_FORMAT_LAND || reduction == SML_FORMAT_LOR;
  bool has_nan = false;
  uint64_t result = is_truth ? in[0] != 0 : in[0];
  for (uint32_t w = 0; w < num_inputs; w++) {
    const uint64_t x = in[w];
    has_nan = has_nan || (sml_format_is_float(type) && isnan(reduction_float(x, type)));
    if (w == 0) continue;
    switch ((enum sml_format_reduction)reduction) {
      case SML_FORMAT_MIN: result = reduction_is_above(result, x, type) ? x : result; break;
      case SML_FORMAT_MAX: result = reduction_is_above(x, result, type) ? x : result; break;
      case SML_FORMAT_PRODUCT: result *= x; break;
      case SML_FORMAT_BAND: result &= x; break;
      case SML_FORMAT_BOR: result |= x; break;
      case SML_FORMAT_LAND: result = result && x; break;
      case SML_FORMAT_LOR: result = result || x; break;
      default: result += x; break;
    }
  }
  return has_nan ? reduction_nan(type) : result & UINT64_MAX >> (64 - 8 * sml_format_elem_bytes(type));
}

/* Any bits, or with ordinary ones what is special: zeros, ends of the range, infinities, NaNs of both signs. */
static inline uint64_t reduction_draw(uint64_t random, uint32_t type) {
  const uint32_t num_bits = 8 * sml_format_elem_bytes(type);
  const uint64_t mask = UINT64_MAX >> (64 - num_bits), sign = UINT64_C(1) << (num_bits - 1);
  const uint64_t quiet = sml_format_is_float(type) ? reduction_nan(type) : 1;
  const uint64_t infinity = quiet & (quiet << 1), bits = sml_mix64(random) & mask;
  switch (random % 32) {
    case 0: return 0;
    case 1: return sign;
    case 2: return sign - 1;
    case 3: return mask;
    case 4: return infinity;
    case 5: return infinity | sign;
    case 6: return quiet + (bits & 1);
    case 7: return 1;
    default: return sml_format_is_float(type) && (bits & infinity) == infinity ? bits ^ infinity : bits;
  }
}

static inline bool reduction_is_offered(uint32_t type, uint32_t reduction) {
  if (sml_format_is_float(type)) return reduction == SML_FORMAT_MIN || reduction == SML_FORMAT_MAX;
  return reduction != SML_FORMAT_AVG;
}
