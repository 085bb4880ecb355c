/* SPDX-License-Identifier: Apache-2.0
 * Loops of exact mode (exact.h) over one whole block, that compilers turn into vectors; included by vector_kernels.h.
 * They have no branches, and a count that is known. */
#pragma once

#include "quant/exact.h"

/* So far ahead: blocks come one by one, with something else in between, and the processor loses sight of them. */
#define PREFETCH_ELEMS 512

#define EACH_ELEMENT(i) for (size_t i = 0; i < SML_BLOCK_ELEMS; i++)

/* ---- numbers: m * 2^p, and infinity and NaN as what their bits would be ---- */

/* field and p stand where the exponent does. */
struct exact_numbers {
  vint bits, field, m, p;
};

static ALWAYS_INLINE struct exact_numbers exact_load(const uint8_t *in, size_t i, uint32_t fraction_bits) {
  const uint32_t num_fields = fraction_bits == 10 ? 31 : 255;
  struct exact_numbers x;
  x.bits = fraction_bits == 23 ? load(in + 4 * i) : widened_bits(load_half(in + 2 * i));
  x.field = and_bits(x.bits, fill(num_fields << fraction_bits));
  const vint hidden = min_u32(x.field, fill(UINT32_C(1) << fraction_bits));
  x.m = or_bits(and_bits(x.bits, fill((UINT32_C(1) << fraction_bits) - 1)), hidden);
  x.p = subtract(x.field, hidden);
  return x;
}

/* p, and the place of the highest bit of m, together, in cells. Integers below 2^24 are floats, in all rounding modes,
 * and a bit's place is a float's exponent. A zero gets 32 or more, which is no cell. */
static ALWAYS_INLINE vint exact_top_cell(vint m, vint p_of_float) {
  return shift_right(add(bits_of(to_float(m)), p_of_float), 23 + 3);
}

static ALWAYS_INLINE bool cells_of(uint64_t *cells, const uint8_t *in, uint32_t fraction_bits) {
  /* Larger fields have cells beyond 32, or are no numbers. */
  const uint32_t field_end = (fraction_bits == 10 ? 31 : 257 - fraction_bits) << fraction_bits;
  vint used = fill(0), largest = fill(0);
  uint32_t words[VECTOR_ELEMS], all = 0;
  for (size_t i = 0; i < SML_BLOCK_ELEMS; i += VECTOR_ELEMS) {
    const struct exact_numbers x = exact_load(in, i, fraction_bits);
    __builtin_prefetch(in + (fraction_bits == 23 ? 4 : 2) * (i + PREFETCH_ELEMS));
    const vint p_of_float = subtract(shift_left(x.p, 23 - fraction_bits), fill(UINT32_C(127) << 23));
    const vint first = exact_top_cell(and_bits(x.m, subtract(fill(0), x.m)), p_of_float);
    const vint last = exact_top_cell(x.m, p_of_float);
    used = or_bits(used, subtract(shift_left_by(fill(2), last), shift_left_by(fill(1), first)));
    largest = max_u32(largest, x.field);
  }
  store((uint8_t *)words, used);
  for (size_t i = 0; i < VECTOR_ELEMS; i++) all |= words[i];
  *cells = all;
  return largest_of(largest) < field_end;
}

static VECTOR bool exact_cells(uint64_t *cells, const void *in, uint32_t fraction_bits) {
  if (fraction_bits == 23) return cells_of(cells, in, 23);
  return fraction_bits == 10 ? cells_of(cells, in, 10) : cells_of(cells, in, 7);
}

/* One limb, or two that need the numbers once. What a shift takes beyond 32 bits is 0. */
static ALWAYS_INLINE void limbs_of(int32_t *restrict lanes, const uint8_t *restrict in, const uint16_t *positions,
                                   uint32_t num_limbs, uint32_t mask, uint32_t fraction_bits) {
  for (size_t i = 0; i < SML_BLOCK_ELEMS; i += VECTOR_ELEMS) {
    const struct exact_numbers x = exact_load(in, i, fraction_bits);
    __builtin_prefetch(in + (fraction_bits == 23 ? 4 : 2) * (i + PREFETCH_ELEMS));
    const vint p = shift_right(x.p, fraction_bits);
    const vint sign = fraction_bits == 23 ? x.bits : shift_left_16(x.bits);
    for (uint32_t limb = 0; limb < num_limbs; limb++) {
      const vint up = subtract(p, fill(positions[limb])), down = subtract(fill(positions[limb]), p);
      const vint part = or_bits(shift_left_by(x.m, up), shift_right_by(x.m, down));
      store((uint8_t *)(lanes + limb * SML_BLOCK_ELEMS + i), with_sign_of(sign, and_bits(part, fill(mask))));
    }
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

static ALWAYS_INLINE void limbs_of_type(int32_t *restrict lanes, const uint8_t *restrict in, const uint16_t *positions,
                                        uint32_t num_limbs, uint32_t mask, uint32_t fraction_bits) {
  uint32_t limb = 0;
  for (; limb + 2 <= num_limbs; limb += 2)
    limbs_of(lanes + limb * SML_BLOCK_ELEMS, in, positions + limb, 2, mask, fraction_bits);
  if (limb < num_limbs) limbs_of(lanes + limb * SML_BLOCK_ELEMS, in, positions + limb, 1, mask, fraction_bits);
}

static VECTOR void exact_limbs(int32_t *restrict lanes, const void *restrict in, const uint16_t *positions,
                               uint32_t num_limbs, uint32_t limb_bits, uint32_t fraction_bits) {
  const uint32_t mask = (UINT32_C(1) << limb_bits) - 1;
  if (fraction_bits == 23) limbs_of_type(lanes, in, positions, num_limbs, mask, 23);
  else if (fraction_bits == 10) limbs_of_type(lanes, in, positions, num_limbs, mask, 10);
  else if (fraction_bits == 7) limbs_of_type(lanes, in, positions, num_limbs, mask, 7);
  else
    for (uint32_t limb = 0; limb < num_limbs; limb++)
      limb_of_64((uint32_t *)lanes + limb * SML_BLOCK_ELEMS, in, positions[limb], mask);
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
    __builtin_prefetch(out + 4 * (i + PREFETCH_ELEMS), 1);
    memcpy(out + 4 * i, &nearest, sizeof nearest);
  }
}

#if HAS_FLOATS_OF_LONG

/* Up to three limbs whose bits are at most so far apart are integers of 64 bits, which a processor rounds once. */
#define LONG_APART 31

typedef int64_t vsigned __attribute__((vector_size(8 * DOUBLES)));

static ALWAYS_INLINE vsigned exact_long_lane(const int32_t *lane) {
  vword words;
  memcpy(&words, lane, sizeof words);
  return __builtin_convertvector(words, vsigned);
}

/* With three limbs: the upper two, and an odd last bit if more follows. That is enough for what has 32 bits; what is
 * shorter, because limbs cancel, is exact with the third one. */
static ALWAYS_INLINE void exact_longs(uint8_t *restrict out, const int32_t *restrict lanes, uint32_t num_limbs,
                                      const int32_t *exponents) {
  const uint32_t top = num_limbs - 1;
  const uint32_t up = top > 0 ? (uint32_t)(exponents[top] - exponents[top - 1]) : 0;
  const uint32_t down = top > 1 ? (uint32_t)(exponents[1] - exponents[0]) : 0;
  const float least = (float)sml_quant_pow2(exponents[0]), unit = top > 1 ? (float)sml_quant_pow2(exponents[1]) : 0;
  for (size_t i = 0; i < SML_BLOCK_ELEMS; i += DOUBLES) {
    vsigned sum = exact_long_lane(lanes + top * SML_BLOCK_ELEMS + i);
    if (top > 0) sum = (vsigned)((vlong)sum << up) + exact_long_lane(lanes + (top - 1) * SML_BLOCK_ELEMS + i);
    vsingle nearest = floats_of_long(sum) * least;
    if (top > 1) {
      const vsigned lowest = exact_long_lane(lanes + i);
      const vsigned rest = lowest & (int64_t)((UINT64_C(1) << down) - 1);
      sum += lowest >> down;
      const vsigned whole = (vsigned)((vlong)sum << down) + rest, jammed = sum | ((rest + 0x7fffffff) >> 31 & 1);
      const vsigned is_short = (sum >> 31) == (sum >> 63);
      nearest = choose_float(is_short, floats_of_long(whole) * least, floats_of_long(jammed) * unit);
    }
    __builtin_prefetch(out + 4 * (i + PREFETCH_ELEMS), 1);
    memcpy(out + 4 * i, &nearest, sizeof nearest);
  }
}

static VECTOR bool exact_by_longs(uint8_t *restrict out, const int32_t *restrict lanes, uint32_t num_limbs,
                                  const int32_t *exponents) {
  if (num_limbs > 3 || exponents[0] < -126) return false;
  for (uint32_t limb = 1; limb < num_limbs; limb++)
    if (exponents[limb] - exponents[limb - 1] > LONG_APART) return false;
  if (num_limbs == 1) exact_longs(out, lanes, 1, exponents);
  else if (num_limbs == 2) exact_longs(out, lanes, 2, exponents);
  else exact_longs(out, lanes, 3, exponents);
  return true;
}

#else
#define exact_by_longs(out, lanes, num_limbs, exponents) false
#endif

static VECTOR void exact_floats(void *restrict out, const int32_t *restrict lanes, uint32_t num_limbs,
                                const int32_t *exponents, enum sml_elem elem, uint32_t divisor) {
  struct exact_weight weights[SML_EXACT_MAX_LIMBS];
  const uint32_t top = num_limbs - 1;
  const environment saved = enter(false);
  exact_weigh(weights, num_limbs, exponents);
  if (elem == SML_ELEM_FLOAT16) exact_many(out, lanes, num_limbs, weights, SML_ELEM_FLOAT16, divisor);
  else if (elem == SML_ELEM_BFLOAT16) exact_many(out, lanes, num_limbs, weights, SML_ELEM_BFLOAT16, divisor);
  else if (divisor == 1 && exact_by_longs(out, lanes, num_limbs, exponents)) (void)0;
  else if (top > 1 || divisor > 1) exact_many(out, lanes, num_limbs, weights, SML_ELEM_FLOAT32, divisor);
  else exact_few(out, lanes + top * SML_BLOCK_ELEMS, lanes, &weights[top], top > 0 ? weights[0].unit : 0);
  leave(saved);
}
