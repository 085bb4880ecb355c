/* SPDX-License-Identifier: Apache-2.0 */
#include "quant/limbs.h"

#include "quant/wide.h"

#define VALUE_BITS 277u /* from 2^-149 to 2^127 */
#define POS_INFINITY UINT32_C(0x00000001)
#define NEG_INFINITY UINT32_C(0x00010000)
#define NAN_BITS UINT32_C(0x7fc00000)
#define INFINITY_BITS UINT32_C(0x7f800000)
#define SIGN_BIT UINT32_C(0x80000000)

/* A sum while it is rounded: words of 32 bits, least first, the first of them below 2^-149 for what a division
 * leaves. Any lanes fit: the top limb begins at bit 270 at most, and has 32. */
#define FRACTION_BITS 32u
#define NUM_WORDS 11u

uint32_t sml_limbs_per_elem(uint32_t world_size) {
  return (uint32_t)sml_div_ceil(VALUE_BITS, sml_limb_bits(world_size)) + 1;
}

static void add_float(uint8_t *lanes, uint32_t bits, uint32_t limb_width, uint32_t num_limbs) {
  const uint32_t field = bits >> 23 & 0xff, fraction = bits & 0x7fffff;
  const bool is_negative = (bits & SIGN_BIT) != 0;
  if (field == 0xff) {
    sml_lane_add(lanes + 4 * (size_t)num_limbs, fraction != 0 ? POS_INFINITY | NEG_INFINITY
                                                : is_negative ? NEG_INFINITY
                                                              : POS_INFINITY);
    return;
  }
  const uint32_t position = field > 1 ? field - 1 : 0; /* of the mantissa's last bit, above 2^-149 */
  uint64_t rest = (uint64_t)(field > 0 ? fraction | 0x800000 : fraction) << position % limb_width;
  for (uint32_t limb = position / limb_width; rest != 0; limb++, rest >>= limb_width) {
    const uint32_t value = (uint32_t)(rest & ((UINT64_C(1) << limb_width) - 1));
    sml_lane_add(lanes + 4 * (size_t)limb, is_negative ? 0u - value : value);
  }
}

void sml_limbs_add(void *lanes, const float *in, size_t num_elems, uint32_t world_size) {
  const uint32_t limb_width = sml_limb_bits(world_size), num_lanes = sml_limbs_per_elem(world_size);
  const uint8_t *from = (const uint8_t *)in;
  uint8_t *to = lanes;
  for (size_t i = 0; i < num_elems; i++, from += 4, to += 4 * (size_t)num_lanes) {
    uint32_t bits;
    memcpy(&bits, from, sizeof bits);
    add_float(to, bits, limb_width, num_lanes - 1);
  }
}

void sml_limbs_put(void *lanes, const float *in, size_t num_elems, uint32_t world_size) {
  memset(lanes, 0, 4 * (size_t)sml_limbs_per_elem(world_size) * num_elems);
  sml_limbs_add(lanes, in, num_elems, world_size);
}

/* The magnitude of the sum of the limbs; returns its sign bit. */
static uint32_t add_up(uint32_t *words, const uint8_t *lanes, uint32_t limb_width, uint32_t num_limbs) {
  int64_t sums[NUM_WORDS + 1] = {0};
  for (uint32_t limb = 0; limb < num_limbs; limb++) {
    const uint32_t position = FRACTION_BITS + limb * limb_width;
    const int64_t value = (int64_t)(int32_t)sml_load_be32(lanes + 4 * (size_t)limb) * (INT64_C(1) << position % 32);
    sums[position / 32] += value & 0xffffffff;
    sums[position / 32 + 1] += (value - (value & 0xffffffff)) / (INT64_C(1) << 32);
  }
  int64_t carry = 0;
  for (uint32_t w = 0; w < NUM_WORDS; w++) {
    carry += sums[w];
    words[w] = (uint32_t)carry;
    carry = (carry - (int64_t)words[w]) / (INT64_C(1) << 32);
  }
  carry += sums[NUM_WORDS];
  if (carry >= 0) return 0;
  uint64_t negated = 1;
  for (uint32_t w = 0; w < NUM_WORDS; w++) {
    negated += (uint32_t)~words[w];
    words[w] = (uint32_t)negated;
    negated >>= 32;
  }
  return SIGN_BIT;
}

/* Whether there was a rest. */
static bool divide(uint32_t *words, uint32_t divisor) {
  uint64_t rest = 0;
  for (uint32_t w = NUM_WORDS; w-- > 0;) {
    rest = rest << 32 | words[w];
    words[w] = (uint32_t)(rest / divisor);
    rest %= divisor;
  }
  return rest != 0;
}

static uint32_t bits_from(const uint32_t *words, uint32_t position) {
  const uint32_t w = position / 32;
  const uint64_t low = words[w], high = w + 1 < NUM_WORDS ? words[w + 1] : 0;
  return (uint32_t)((high << 32 | low) >> position % 32);
}

static bool has_bits_below(const uint32_t *words, uint32_t position) {
  for (uint32_t w = 0; w < position / 32; w++)
    if (words[w] != 0) return true;
  return (words[position / 32] & ((UINT32_C(1) << position % 32) - 1)) != 0;
}

/* To nearest, ties to even, or to odd; of a denormal, the multiples of 2^-149. */
static uint32_t round_words(const uint32_t *words, bool has_rest, bool is_to_odd) {
  uint32_t top = NUM_WORDS;
  while (top > 0 && words[top - 1] == 0) top--;
  if (top == 0) return is_to_odd && has_rest; /* a rest alone is far below a half */
  top = 32 * top - 1 - (uint32_t)__builtin_clz(words[top - 1]);
  const uint32_t last = sml_max_u32(top, FRACTION_BITS + 23) - 23; /* the bit that is rounded to */
  const uint32_t field_below = last - FRACTION_BITS;               /* exponent field less 1, the hidden bit adds it */
  if (field_below >= 0xfe) return INFINITY_BITS;
  const uint32_t mantissa = top < last ? 0 : bits_from(words, last) & 0xffffff;
  const bool is_half = (bits_from(words, last - 1) & 1) != 0;
  const bool has_more = has_rest || has_bits_below(words, last - 1);
  if (is_to_odd) return (field_below << 23) + (mantissa | (is_half || has_more));
  const bool is_up = is_half && ((mantissa & 1) != 0 || has_more);
  return (field_below << 23) + mantissa + is_up; /* a carry raises the exponent, up to infinity's */
}

/* Most sums are in few limbs, since few exponents meet in one element: then 128 bits hold them, with as many behind
 * the point as a division by 4096 and its rounding need. */
#define SHORT_LIMBS 3u
#define SHORT_FRACTION_BITS 36u

/* Its bit 0 is so many positions above 2^-149. */
static uint32_t round_value(sml_int128 sum, uint32_t position, uint32_t divisor, bool is_to_odd) {
  if (sum == 0) return 0;
  const uint32_t sign = sum < 0 ? SIGN_BIT : 0;
  sml_uint128 value = (sml_uint128)(sum < 0 ? -sum : sum) << SHORT_FRACTION_BITS; /* below 2^(31 + 60 + 1 + 36) */
  const bool has_rest = divisor != 1 && sml_wide_divide(&value, divisor);
  const int32_t top = 127 - (int32_t)sml_wide_leading_zeros(value);
  const int32_t unit = (int32_t)position - (int32_t)SHORT_FRACTION_BITS; /* of bit 0, above 2^-149 */
  const int32_t last = top - 23 + unit > 0 ? top - 23 : -unit;           /* 1 .. 105: top is 24 or more */
  if (last + unit >= 0xfe) return sign | INFINITY_BITS;
  const uint32_t mantissa = (uint32_t)(value >> last);
  const sml_uint128 dropped = value & (((sml_uint128)1 << last) - 1), half = (sml_uint128)1 << (last - 1);
  if (is_to_odd) return sign | (((uint32_t)(last + unit) << 23) + (mantissa | (dropped != 0 || has_rest)));
  const bool is_up = dropped > half || (dropped == half && (has_rest || (mantissa & 1) != 0));
  return sign | (((uint32_t)(last + unit) << 23) + mantissa + is_up);
}

static uint32_t round_short(const int32_t *limbs, uint32_t first, uint32_t num_limbs, uint32_t limb_width,
                            uint32_t divisor, bool is_to_odd) {
  sml_int128 sum = 0;
  for (uint32_t limb = num_limbs; limb-- > 0;) sum = sum * (INT64_C(1) << limb_width) + limbs[limb];
  return round_value(sum, first * limb_width, divisor, is_to_odd);
}

/* The float of one element's sum without specials. */
static uint32_t round_sum(const uint8_t *lanes, uint32_t limb_width, uint32_t num_limbs, uint32_t divisor,
                          bool is_to_odd) {
  int32_t limbs[SML_LIMBS_MAX_PER_ELEM];
  uint32_t first = num_limbs, end = 0, words[NUM_WORDS];
  for (uint32_t limb = 0; limb < num_limbs; limb++) {
    limbs[limb] = (int32_t)sml_load_be32(lanes + 4 * (size_t)limb);
    if (limbs[limb] == 0) continue;
    if (end == 0) first = limb;
    end = limb + 1;
  }
  if (end == 0) return 0;
  if (end - first <= SHORT_LIMBS) return round_short(limbs + first, first, end - first, limb_width, divisor, is_to_odd);
  const uint32_t sign = add_up(words, lanes, limb_width, num_limbs);
  const bool has_rest = divisor != 1 && divide(words, divisor);
  return sign | round_words(words, has_rest, is_to_odd);
}

static inline void round_all(float *out, const void *lanes, size_t num_elems, uint32_t world_size, bool average,
                             bool is_to_odd) {
  const uint32_t limb_width = sml_limb_bits(world_size), num_lanes = sml_limbs_per_elem(world_size);
  const uint8_t *from = lanes;
  uint8_t *to = (uint8_t *)out;
  for (size_t i = 0; i < num_elems; i++, to += 4, from += 4 * (size_t)num_lanes) {
    uint32_t bits;
    const uint32_t specials = sml_load_be32(from + 4 * (size_t)(num_lanes - 1));
    if (specials != 0) {
      const bool has_pos = (specials & 0xffff) != 0, has_neg = specials >> 16 != 0;
      bits = has_pos && has_neg ? NAN_BITS : has_neg ? INFINITY_BITS | SIGN_BIT : INFINITY_BITS;
    } else {
      bits = round_sum(from, limb_width, num_lanes - 1, average ? world_size : 1, is_to_odd);
    }
    memcpy(to, &bits, sizeof bits);
  }
}

void sml_limbs_round(float *out, const void *lanes, size_t num_elems, uint32_t world_size, bool average) {
  round_all(out, lanes, num_elems, world_size, average, false);
}

void sml_limbs_round_to_odd(float *out, const void *lanes, size_t num_elems, uint32_t world_size, bool average) {
  round_all(out, lanes, num_elems, world_size, average, true);
}

/* Inputs whose exponents are near each other have a sum of 64 bits: a mantissa's 24, these, and 12 for 4096 inputs. */
#define NEAR_BITS 26u
#define MAX_FIELD 0xffu

/* Where the mantissa's last bit is, above 2^-149. An Inf or NaN is one above all others. */
static inline uint32_t position_of(uint32_t bits) {
  const uint32_t field = bits >> 23 & MAX_FIELD;
  return field > 1 ? field - 1 : 0;
}

static inline uint32_t load_bits(const float *p) {
  uint32_t bits;
  memcpy(&bits, p, sizeof bits);
  return bits;
}

/* The sum of element i of the inputs. False: they are not near each other, or not all finite. */
static bool reduce_near(uint32_t *bits_out, const float *const *in, size_t i, uint32_t num_inputs, uint32_t divisor) {
  uint32_t low = MAX_FIELD, high = 0;
  for (uint32_t input = 0; input < num_inputs; input++) {
    const uint32_t bits = load_bits(in[input] + i);
    if ((bits & ~SIGN_BIT) == 0) continue;
    low = sml_min_u32(low, position_of(bits));
    high = sml_max_u32(high, position_of(bits));
  }
  if (high == MAX_FIELD - 1 || high > low + NEAR_BITS) return false;
  int64_t sum = 0;
  for (uint32_t input = 0; input < num_inputs; input++) {
    const uint32_t bits = load_bits(in[input] + i);
    if ((bits & ~SIGN_BIT) == 0) continue;
    const uint32_t fraction = bits & 0x7fffff;
    const int64_t mantissa = (bits >> 23 & MAX_FIELD) != 0 ? fraction | 0x800000 : fraction;
    const int64_t value = mantissa * (INT64_C(1) << (position_of(bits) - low));
    sum += (bits & SIGN_BIT) != 0 ? -value : value;
  }
  *bits_out = round_value(sum, low, divisor, false);
  return true;
}

void sml_limbs_reduce(float *out, const float *const *in, uint32_t num_inputs, size_t num_elems, bool average) {
  uint8_t lanes[4 * SML_LIMBS_MAX_PER_ELEM] = {0};
  for (size_t i = 0; i < num_elems; i++) {
    uint32_t bits;
    if (reduce_near(&bits, in, i, num_inputs, average ? num_inputs : 1)) {
      memcpy(out + i, &bits, sizeof bits);
      continue;
    }
    sml_limbs_put(lanes, in[0] + i, 1, num_inputs);
    for (uint32_t input = 1; input < num_inputs; input++) sml_limbs_add(lanes, in[input] + i, 1, num_inputs);
    sml_limbs_round(out + i, lanes, 1, num_inputs, average);
  }
}
