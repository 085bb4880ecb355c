/* SPDX-License-Identifier: Apache-2.0
 * Loops of exact mode (exact.h) over one whole block, that compilers turn into vectors; included by vector_kernels.h.
 * They have no branches, and a count that is known. */
#pragma once

#include "quant/exact.h"

#define EACH_ELEMENT(i) for (size_t i = 0; i < SML_BLOCK_ELEMS; i++)

static inline __attribute__((always_inline)) uint32_t exact_load(const uint8_t *p, size_t i, uint32_t fraction_bits) {
  return fraction_bits == 23 ? sml_load_32(p + 4 * i) : sml_load_16(p + 2 * i);
}

/* m and p of m * 2^p; of infinity and NaN m is 0. */
static inline __attribute__((always_inline)) uint32_t exact_mantissa(uint32_t bits, uint32_t field, uint32_t num_fields,
                                                                     uint32_t fraction_bits) {
  const uint32_t fraction = bits & ((UINT32_C(1) << fraction_bits) - 1);
  return (fraction | (uint32_t)(field > 0) << fraction_bits) & (0 - (uint32_t)(field < num_fields));
}

static inline uint32_t exact_position(uint32_t field) {
  return field - (field > 0);
}

/* The place of the highest bit. Integers below 2^24 are floats, in all rounding modes. */
static inline uint32_t exact_top_bit(uint32_t value) {
  const float x = (float)(int32_t)value;
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (bits >> 23) - 127;
}

static VECTOR inline __attribute__((always_inline)) bool cells_of(uint64_t *cells, const uint8_t *in,
                                                                  uint32_t fraction_bits, uint32_t num_fields) {
  uint32_t used = 0, others = 0;
  EACH_ELEMENT(i) {
    const uint32_t bits = exact_load(in, i, fraction_bits), field = bits >> fraction_bits & num_fields;
    const uint32_t m = exact_mantissa(bits, field, num_fields, fraction_bits), p = exact_position(field);
    const uint32_t first = (p + exact_top_bit(m & (0 - m))) >> 3 & 31, last = (p + exact_top_bit(m)) >> 3 & 31;
    used |= ((UINT32_C(2) << last) - (UINT32_C(1) << first)) & (0 - (uint32_t)(m != 0));
    others |= (uint32_t)(field == num_fields) | (uint32_t)(p + fraction_bits > 255);
  }
  *cells = used;
  return others == 0;
}

static VECTOR bool exact_cells(uint64_t *cells, const void *in, uint32_t fraction_bits) {
  if (fraction_bits == 23) return cells_of(cells, in, 23, 255);
  return fraction_bits == 10 ? cells_of(cells, in, 10, 31) : cells_of(cells, in, 7, 255);
}

/* Shifts by 31 (63) leave no bit below the mask's end. */
static VECTOR inline __attribute__((always_inline)) void limb_of(uint32_t *restrict lane, const uint8_t *restrict in,
                                                                 uint32_t position, uint32_t mask,
                                                                 uint32_t fraction_bits, uint32_t num_fields) {
  EACH_ELEMENT(i) {
    const uint32_t bits = exact_load(in, i, fraction_bits), field = bits >> fraction_bits & num_fields;
    const uint32_t m = exact_mantissa(bits, field, num_fields, fraction_bits), up = exact_position(field) - position;
    const uint32_t part = (m << sml_min_u32(up, 31) | m >> sml_min_u32(0 - up, 31)) & mask;
    const uint32_t sign = 0 - (bits >> (fraction_bits == 23 ? 31 : 15));
    lane[i] = (part ^ sign) - sign;
  }
}

static VECTOR void limb_of_64(uint32_t *restrict lane, const uint8_t *restrict in, uint32_t position, uint32_t mask) {
  EACH_ELEMENT(i) {
    uint64_t bits;
    memcpy(&bits, in + 8 * i, sizeof bits);
    const uint64_t hidden = UINT64_C(1) << 52, field = bits >> 52 & 2047, fraction = bits & (hidden - 1);
    const uint64_t m = field == 2047 ? 0 : fraction | (field > 0 ? hidden : 0);
    const uint64_t up = field - (field > 0) - position;
    const uint64_t part = (m << sml_min_u64(up, 63) | m >> sml_min_u64(0 - up, 63)) & mask;
    const uint64_t sign = 0 - (bits >> 63);
    lane[i] = (uint32_t)((part ^ sign) - sign);
  }
}

static VECTOR void exact_limb(int32_t *restrict lane, const void *restrict in, uint32_t position, uint32_t limb_bits,
                              uint32_t fraction_bits) {
  const uint32_t mask = (UINT32_C(1) << limb_bits) - 1;
  uint32_t *to = (uint32_t *)lane;
  if (fraction_bits == 23) limb_of(to, in, position, mask, 23, 255);
  else if (fraction_bits == 52) limb_of_64(to, in, position, mask);
  else if (fraction_bits == 10) limb_of(to, in, position, mask, 10, 31);
  else limb_of(to, in, position, mask, 7, 255);
}

/* ---- sums of limbs, in vectors of half as many elements ---- */

#define DOUBLES (VECTOR_ELEMS / 2)
typedef double vdouble __attribute__((vector_size(8 * DOUBLES)));
typedef uint64_t vlong __attribute__((vector_size(8 * DOUBLES)));
typedef int32_t vword __attribute__((vector_size(4 * DOUBLES)));
typedef float vsingle __attribute__((vector_size(4 * DOUBLES)));

static ALWAYS_INLINE vdouble exact_lane(const int32_t *lane) {
  vword words;
  memcpy(&words, lane, sizeof words);
  return __builtin_convertvector(words, vdouble);
}

/* `lost` is what rounding to `value` lost. It is cut off where it was added, and an odd last bit says that more
 * follows: whoever rounds to fewer digits then sees the exact number. */
static ALWAYS_INLINE vdouble exact_to_odd(vdouble value, vdouble lost) {
  const vlong is_inexact = (vlong)(lost != 0), differ = (vlong)value ^ (vlong)lost;
  return (vdouble)(((vlong)value - (differ >> 63 & is_inexact)) | is_inexact >> 63);
}

/* a + b, where |a| is the larger one or the sum is exact. */
static ALWAYS_INLINE vdouble exact_odd_sum(vdouble a, vdouble b) {
  const vdouble sum = a + b;
  return exact_to_odd(sum, b - (sum - a));
}

/* A limb's unit, and that of the next limb in units of this one, and the other way round. */
struct exact_weight {
  double unit, next, to_next;
};

/* No lane has a unit of more than 64 bits: nothing is carried there. */
static VECTOR void exact_weigh(struct exact_weight *weights, uint32_t num_limbs, const int32_t *exponents) {
  for (uint32_t limb = 0; limb < num_limbs; limb++) {
    const int32_t next = limb + 1 < num_limbs ? exponents[limb + 1] - exponents[limb] : INT32_MAX;
    weights[limb].unit = sml_quant_pow2(exponents[limb]);
    weights[limb].next = next <= 64 ? sml_quant_pow2(next) : 0;
    weights[limb].to_next = next <= 64 ? sml_quant_pow2(-next) : 0;
  }
}

/* The sum of the limbs: high to nearest, low to odd. Each limb gives its units of the next one to it, to nearest. So
 * what is below a limb is at most half of its unit, and nothing cancels. All products, and all sums but low, are
 * exact. */
struct exact_sum {
  vdouble high, low;
};

static ALWAYS_INLINE struct exact_sum exact_add_limbs(const int32_t *lane, uint32_t num_limbs,
                                                      const struct exact_weight *weights) {
  const double to_integer = 0x1.8p52;
  struct exact_sum sum = {.high = (vdouble){0}, .low = (vdouble){0}};
  vdouble carry = {0};
  for (uint32_t limb = 0; limb < num_limbs; limb++, lane += SML_BLOCK_ELEMS) {
    const struct exact_weight w = weights[limb];
    const vdouble value = exact_lane(lane) + carry;
    carry = value * w.to_next + to_integer - to_integer;
    const vdouble rest = (value - carry * w.next) * w.unit, high = rest + sum.high;
    const vdouble lost = sum.high - (high - rest);
    sum.low = limb > 1 ? exact_odd_sum(lost, sum.low) : lost;
    sum.high = high;
  }
  return sum;
}

static VECTOR void exact_doubles(void *restrict out, const int32_t *restrict lanes, uint32_t num_limbs,
                                 const int32_t *exponents) {
  struct exact_weight weights[SML_EXACT_MAX_LIMBS];
  const environment saved = enter(false);
  exact_weigh(weights, num_limbs, exponents);
  for (size_t i = 0; i < SML_BLOCK_ELEMS; i += DOUBLES) {
    const struct exact_sum sum = exact_add_limbs(lanes + i, num_limbs, weights);
    const vdouble nearest = sum.high + sum.low;
    memcpy((uint8_t *)out + 8 * i, &nearest, sizeof nearest);
  }
  leave(saved);
}

static ALWAYS_INLINE vsingle exact_odd_single(vdouble x) {
  const vsingle nearest = __builtin_convertvector(x, vsingle);
  const vdouble lost = x - __builtin_convertvector(nearest, vdouble);
  const vword is_inexact = __builtin_convertvector((vlong)(lost != 0), vword);
  const vword differ = __builtin_convertvector((vlong)(lost < 0) >> 63, vword) ^ ((vword)nearest >> 31 & 1);
  return (vsingle)(((vword)nearest - (differ & is_inexact)) | (is_inexact & 1));
}

/* A quotient that is rounded twice is right: a sum that is no multiple of a tie of floats is at least a unit away from
 * it, and such a unit is more than half of the quotient's own. */
static ALWAYS_INLINE void exact_many(uint8_t *restrict out, const int32_t *restrict lanes, uint32_t num_limbs,
                                     const struct exact_weight *weights, enum sml_elem elem, double divisor) {
  vsingle odd[2];
  for (size_t i = 0; i < SML_BLOCK_ELEMS; i += DOUBLES) {
    const struct exact_sum limbs = exact_add_limbs(lanes + i, num_limbs, weights);
    vdouble sum = exact_odd_sum(limbs.high, limbs.low);
    if (divisor > 1) sum /= divisor;
    if (elem == SML_ELEM_FLOAT32) {
      const vsingle nearest = __builtin_convertvector(sum, vsingle);
      memcpy(out + 4 * i, &nearest, sizeof nearest);
      continue;
    }
    odd[i / DOUBLES % 2] = exact_odd_single(sum);
    if (i / DOUBLES % 2 == 1) store_elems(out + 2 * (i - DOUBLES), load((const uint8_t *)odd), elem);
  }
}

/* Nearly all blocks: one or two limbs. */
static ALWAYS_INLINE void exact_few(uint8_t *restrict out, const int32_t *restrict lanes, const int32_t *restrict lower,
                                    const struct exact_weight *weights, double lower_unit) {
  for (size_t i = 0; i < SML_BLOCK_ELEMS; i += DOUBLES) {
    const vdouble sum = exact_odd_sum(exact_lane(lanes + i) * weights->unit, exact_lane(lower + i) * lower_unit);
    const vsingle nearest = __builtin_convertvector(sum, vsingle);
    memcpy(out + 4 * i, &nearest, sizeof nearest);
  }
}

static VECTOR void exact_floats(void *restrict out, const int32_t *restrict lanes, uint32_t num_limbs,
                                const int32_t *exponents, enum sml_elem elem, uint32_t divisor) {
  struct exact_weight weights[SML_EXACT_MAX_LIMBS];
  const uint32_t top = num_limbs - 1;
  const environment saved = enter(false);
  exact_weigh(weights, num_limbs, exponents);
  if (elem == SML_ELEM_FLOAT16) exact_many(out, lanes, num_limbs, weights, SML_ELEM_FLOAT16, divisor);
  else if (elem == SML_ELEM_BFLOAT16) exact_many(out, lanes, num_limbs, weights, SML_ELEM_BFLOAT16, divisor);
  else if (top > 1 || divisor > 1) exact_many(out, lanes, num_limbs, weights, SML_ELEM_FLOAT32, divisor);
  else exact_few(out, lanes + top * SML_BLOCK_ELEMS, lanes, &weights[top], top > 0 ? weights[0].unit : 0);
  leave(saved);
}
