/* SPDX-License-Identifier: Apache-2.0 */
#include "quant/double_limbs.h"

#include "quant/doubles.h"

#define VALUE_BITS 2098u /* from 2^-1074 to 2^1023 */
#define UNIT_EXPONENT (-1074)
#define FIELD_NONFINITE 2047u
#define HIDDEN_BIT (UINT64_C(1) << 52)
#define SIGN_BIT (UINT64_C(1) << 63)
#define INFINITY_BITS UINT64_C(0x7ff0000000000000)
#define NAN_BITS UINT64_C(0x7ff8000000000000)
#define POS_INFINITY UINT32_C(0x00000001)
#define NEG_INFINITY UINT32_C(0x00010000)
#define EXTRA_LANES 2u /* negative zeros, and what is not finite */
#define MAX_LIMBS (SML_DOUBLE_LIMBS_MAX_PER_ELEM - EXTRA_LANES)

static uint32_t limbs_of(uint32_t limb_width) {
  return (uint32_t)sml_div_ceil(VALUE_BITS, limb_width);
}

uint32_t sml_double_limbs_per_elem(uint32_t world_size) {
  return limbs_of(sml_limb_bits(world_size)) + EXTRA_LANES;
}

/* ---- a double -> lanes ---- */

static void add_double(uint8_t *lanes, uint64_t bits, uint32_t limb_width, uint32_t num_limbs) {
  const uint32_t field = (uint32_t)(bits >> 52) & FIELD_NONFINITE;
  const uint64_t fraction = bits & (HIDDEN_BIT - 1);
  const bool is_negative = (bits & SIGN_BIT) != 0;
  if (field == FIELD_NONFINITE) {
    sml_lane_add(lanes + 4 * (size_t)(num_limbs + 1), fraction != 0 ? POS_INFINITY | NEG_INFINITY
                                                      : is_negative ? NEG_INFINITY
                                                                    : POS_INFINITY);
    return;
  }
  if (bits == SIGN_BIT) sml_lane_add(lanes + 4 * (size_t)num_limbs, 1);
  const uint32_t position = field > 1 ? field - 1 : 0; /* of the mantissa's last bit, above 2^-1074 */
  sml_uint128 rest = (sml_uint128)(field > 0 ? fraction | HIDDEN_BIT : fraction) << position % limb_width;
  for (uint32_t limb = position / limb_width; rest != 0; limb++, rest >>= limb_width) {
    const uint32_t value = (uint32_t)rest & ((UINT32_C(1) << limb_width) - 1);
    sml_lane_add(lanes + 4 * (size_t)limb, is_negative ? 0u - value : value);
  }
}

void sml_double_limbs_add(void *lanes, const void *in, size_t num_elems, uint32_t world_size) {
  const uint32_t limb_width = sml_limb_bits(world_size), num_limbs = limbs_of(limb_width);
  const uint8_t *from = in;
  uint8_t *to = lanes;
  for (size_t i = 0; i < num_elems; i++, from += 8, to += 4 * (size_t)(num_limbs + EXTRA_LANES)) {
    uint64_t bits;
    memcpy(&bits, from, sizeof bits);
    add_double(to, bits, limb_width, num_limbs);
  }
}

void sml_double_limbs_put(void *lanes, const void *in, size_t num_elems, uint32_t world_size) {
  memset(lanes, 0, 4 * (size_t)sml_double_limbs_per_elem(world_size) * num_elems);
  sml_double_limbs_add(lanes, in, num_elems, world_size);
}

/* ---- lanes -> a double ---- */

/* The limbs of a sum that are not 0 lie in [first, end). Most numbers that meet are of like magnitude: few do. */
struct span {
  uint32_t first, end;
};

static struct span find_span(const uint8_t *lanes, uint32_t num_limbs) {
  struct span s = {.first = 0, .end = num_limbs};
  uint64_t two;
  for (; s.first + 2 <= num_limbs; s.first += 2) {
    memcpy(&two, lanes + 4 * (size_t)s.first, sizeof two);
    if (two != 0) break;
  }
  while (s.first < num_limbs && sml_load_be32(lanes + 4 * (size_t)s.first) == 0) s.first++;
  for (; s.end >= s.first + 2; s.end -= 2) {
    memcpy(&two, lanes + 4 * (size_t)(s.end - 2), sizeof two);
    if (two != 0) break;
  }
  while (s.end > s.first && sml_load_be32(lanes + 4 * (size_t)(s.end - 1)) == 0) s.end--;
  return s;
}

/* Digits 0 .. 2^limb_width - 1 of sign * the limbs, least first; returns what is above them, with its sign. */
static int64_t carry_up(uint32_t *digits, const uint8_t *lanes, struct span s, uint32_t limb_width, int64_t sign) {
  const int64_t base = INT64_C(1) << limb_width;
  int64_t carry = 0;
  for (uint32_t limb = s.first; limb < s.end; limb++) {
    carry += sign * (int32_t)sml_load_be32(lanes + 4 * (size_t)limb);
    const int64_t digit = carry & (base - 1);
    digits[limb - s.first] = (uint32_t)digit;
    carry = (carry - digit) / base;
  }
  return carry;
}

/* The bits of one element's sum without specials. */
static uint64_t round_sum(const uint8_t *lanes, uint32_t limb_width, uint32_t num_limbs, uint32_t divisor) {
  const struct span s = find_span(lanes, num_limbs);
  uint32_t digits[MAX_LIMBS], num_left = s.end - s.first;
  int64_t top = carry_up(digits, lanes, s, limb_width, 1);
  const uint64_t sign = top < 0 ? SIGN_BIT : 0;
  if (top < 0) top = carry_up(digits, lanes, s, limb_width, -1);
  /* As many digits as 128 bits hold, which is more than 2^12, the largest divisor, leaves room for. What is left only
   * counts as zero or not. */
  sml_uint128 value = (sml_uint128)(uint64_t)top;
  while (num_left > 0 && value >> (128 - limb_width) == 0) value = value << limb_width | digits[--num_left];
  const int32_t unit = (int32_t)((s.first + num_left) * limb_width) + UNIT_EXPONENT;
  bool has_rest = false;
  while (num_left > 0 && !has_rest) has_rest = digits[--num_left] != 0;
  return value == 0 ? 0 : sign | sml_doubles_round(value, unit, divisor, has_rest);
}

void sml_double_limbs_round(void *out, const void *lanes, size_t num_elems, uint32_t world_size, bool average) {
  const uint32_t limb_width = sml_limb_bits(world_size), num_limbs = limbs_of(limb_width);
  const uint8_t *from = lanes;
  uint8_t *to = out;
  for (size_t i = 0; i < num_elems; i++, to += 8, from += 4 * (size_t)(num_limbs + EXTRA_LANES)) {
    const uint32_t num_negative_zeros = sml_load_be32(from + 4 * (size_t)num_limbs);
    const uint32_t specials = sml_load_be32(from + 4 * (size_t)(num_limbs + 1));
    uint64_t bits;
    if (specials != 0) {
      const bool has_pos = (specials & 0xffff) != 0, has_neg = specials >> 16 != 0;
      bits = has_pos && has_neg ? NAN_BITS : has_neg ? INFINITY_BITS | SIGN_BIT : INFINITY_BITS;
    } else {
      bits = round_sum(from, limb_width, num_limbs, average ? world_size : 1);
      if (bits == 0 && num_negative_zeros == world_size) bits = SIGN_BIT;
    }
    memcpy(to, &bits, sizeof bits);
  }
}

void sml_double_limbs_reduce(void *out, const void *const *in, uint32_t num_inputs, size_t num_elems, bool average) {
  uint8_t lanes[4 * SML_DOUBLE_LIMBS_MAX_PER_ELEM];
  for (size_t i = 0; i < num_elems; i++) {
    sml_double_limbs_put(lanes, (const uint8_t *)in[0] + 8 * i, 1, num_inputs);
    for (uint32_t input = 1; input < num_inputs; input++)
      sml_double_limbs_add(lanes, (const uint8_t *)in[input] + 8 * i, 1, num_inputs);
    sml_double_limbs_round((uint8_t *)out + 8 * i, lanes, 1, num_inputs, average);
  }
}
