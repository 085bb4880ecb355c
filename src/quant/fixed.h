/* SPDX-License-Identifier: Apache-2.0
 * One number at a time between floating and fixed point, in integers alone, so that no mode of the processor has a
 * say; private to this folder. */
#pragma once

#include "quant/kernels.h"

#define SML_SIGN_BIT UINT32_C(0x80000000)
#define SML_INFINITY_BITS UINT32_C(0x7f800000)
#define SML_HIDDEN_BIT (UINT32_C(1) << 23)

/* value / 2^drop, to nearest, ties to even; 1 <= drop <= 63, and value has room for the carry. */
static inline uint64_t sml_shift_right_to_even(uint64_t value, uint32_t drop) {
  const uint64_t below_half = (UINT64_C(1) << (drop - 1)) - 1;
  return (value + below_half + ((value >> drop) & 1)) >> drop;
}

/* q of the float32 with these bits, within +-limit. A float is mantissa * 2^(exponent - 150), so
 * q = mantissa * 2^(exponent - 150 + shift). */
static inline uint32_t sml_quantize_bits(uint32_t bits, uint8_t code, int32_t shift, uint32_t limit) {
  const uint32_t field = (bits >> 23) & 0xff;
  uint32_t mantissa = bits & (SML_HIDDEN_BIT - 1);
  const bool is_nan = field == 0xff && mantissa != 0;
  const bool is_negative = (bits & SML_SIGN_BIT) != 0 && !is_nan;
  uint32_t q;
  if (field > code) {
    q = limit;
  } else {
    const int32_t up = (int32_t)sml_max_u32(field, 1) - 150 + shift; /* <= 6: field <= code */
    if (field != 0) mantissa |= SML_HIDDEN_BIT;
    if (up >= 0) q = mantissa << up;
    else if (up > -25) q = sml_min_u32((uint32_t)sml_shift_right_to_even(mantissa, (uint32_t)-up), limit);
    else q = 0; /* below a half */
  }
  return is_negative ? 0u - q : q;
}

/* A binary floating point format of IEEE 754's kind. */
struct sml_float_layout {
  uint32_t mantissa_bits; /* with the hidden one */
  int32_t least_exponent; /* of the last bit of what is denormal */
  uint32_t num_fields;    /* exponent fields below that of infinity */
};
#define SML_LAYOUT_FLOAT16 ((struct sml_float_layout){11, -24, 31})
#define SML_LAYOUT_BFLOAT16 ((struct sml_float_layout){8, -133, 255})
#define SML_LAYOUT_FLOAT64 ((struct sml_float_layout){53, -1074, 2047})

/* The bits, without the sign, of the number nearest to value * 2^exponent, and a little more if has_rest; ties to even,
 * denormals are kept, beyond the range it is infinity. value < 2^63. */
static inline uint64_t sml_float_bits(struct sml_float_layout layout, uint64_t value, int32_t exponent, bool has_rest) {
  if (value == 0) return 0; /* a rest alone is far below a half */
  const uint32_t fraction_bits = layout.mantissa_bits - 1;
  const int32_t up = __builtin_clzll(value) - 1; /* the highest bit becomes bit 62: there is room for a carry */
  value = value << up | (uint64_t)has_rest;
  exponent -= up;
  const int32_t field = 62 - (int32_t)fraction_bits + exponent - layout.least_exponent + 1;
  if (field >= (int32_t)layout.num_fields) return (uint64_t)layout.num_fields << fraction_bits;
  const int32_t drop = field >= 1 ? 62 - (int32_t)fraction_bits : layout.least_exponent - exponent;
  if (drop > 63) return 0; /* below a half of the smallest */
  /* Added, the hidden bit and a carry out of the mantissa raise the exponent field, up to infinity's. */
  const uint64_t below = (uint64_t)(field >= 1 ? field - 1 : 0) << fraction_bits;
  return below + sml_shift_right_to_even(value, (uint32_t)drop);
}
