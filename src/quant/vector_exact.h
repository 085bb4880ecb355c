/* SPDX-License-Identifier: Apache-2.0
 * Loops of exact mode (exact.h) over one whole block, that compilers turn into vectors; included by vector_kernels.h.
 * They have no branches, and a count that is known. */
#pragma once

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

/* a + b, where |a| is the larger one or the sum is exact. `lost` is what the sum lost; then an even sum moves by a unit
 * towards it. So an odd last bit says that more follows, and rounding to a float sees the exact sum. */
static VECTOR inline __attribute__((always_inline)) double exact_odd_sum(double a, double b) {
  const double sum = a + b, lost = b - (sum - a);
  uint64_t sum_bits, lost_bits;
  double odd;
  memcpy(&sum_bits, &sum, sizeof sum_bits);
  memcpy(&lost_bits, &lost, sizeof lost_bits);
  const uint64_t towards = 1 - 2 * ((sum_bits ^ lost_bits) >> 63);
  sum_bits += towards & (0 - (uint64_t)(lost != 0 && (sum_bits & 1) == 0));
  memcpy(&odd, &sum_bits, sizeof odd);
  return odd;
}

/* Units of the top limb go there from the middle one. Then what is below the top is little more than half of its unit:
 * nothing cancels that rounding to odd took. All products, and all sums but the odd ones, are exact. */
static VECTOR inline __attribute__((always_inline)) void round_limbs(uint8_t *restrict out,
                                                                     const int32_t *restrict lanes,
                                                                     const double *weights, double units,
                                                                     uint32_t top) {
  const double to_integer = 0x1.8p52, lower_weight = weights[0], middle_weight = weights[1], top_weight = weights[2];
  EACH_ELEMENT(i) {
    double below = lanes[i] * lower_weight, carry = 0;
    if (top > 1) {
      const double middle = lanes[SML_BLOCK_ELEMS + i] * middle_weight;
      carry = middle * units + to_integer - to_integer;
      below = exact_odd_sum(middle - carry * top_weight, below);
    }
    const float nearest = (float)exact_odd_sum((lanes[top * SML_BLOCK_ELEMS + i] + carry) * top_weight, below);
    memcpy(out + 4 * i, &nearest, sizeof nearest);
  }
}

static VECTOR void exact_floats(void *restrict out, const int32_t *restrict lanes, uint32_t num_limbs,
                                const int32_t *exponents) {
  const uint32_t top = num_limbs - 1;
  const double units = sml_quant_pow2(-exponents[top]);
  const double weights[] = {top > 0 ? sml_quant_pow2(exponents[0]) : 0, top > 1 ? sml_quant_pow2(exponents[1]) : 0,
                            sml_quant_pow2(exponents[top])};
  const environment saved = enter(false);
  if (top == 2) round_limbs(out, lanes, weights, units, 2);
  else if (top == 1) round_limbs(out, lanes, weights, units, 1);
  else round_limbs(out, lanes, weights, units, 0);
  leave(saved);
}
