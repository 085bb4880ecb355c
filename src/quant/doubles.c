/* SPDX-License-Identifier: Apache-2.0 */
#include "quant/doubles.h"

#include "quant/fixed.h"

#define CODE_OFFSET 16 /* of exponent fields, before they are divided by the fields of a code */
#define CODE_FIELDS 8
#define MAX_CODE 253
#define FIELD_NONFINITE 2047u
#define HIDDEN (UINT64_C(1) << 52)
#define NAN_BITS UINT64_C(0x7ff8000000000000)

static uint64_t load_64(const uint8_t *p) {
  uint64_t bits;
  memcpy(&bits, p, sizeof bits);
  return bits;
}

static bool is_scaled(uint8_t code) {
  return code >= 1 && code <= MAX_CODE;
}

uint8_t sml_doubles_block_code(const void *in, size_t num_elems) {
  const uint8_t *from = in;
  uint64_t largest = 0;
  for (size_t i = 0; i < num_elems; i++) largest = sml_max_u64(largest, load_64(from + 8 * i) & INT64_MAX);
  const uint32_t field = (uint32_t)(largest >> 52);
  if (field == FIELD_NONFINITE) return SML_CODE_NONFINITE;
  return field < CODE_OFFSET + CODE_FIELDS ? SML_CODE_ZERO : (uint8_t)((field - CODE_OFFSET) / CODE_FIELDS);
}

uint32_t sml_doubles_bits(uint32_t num_lanes, uint32_t world_size) {
  return num_lanes * sml_limb_bits(world_size);
}

int32_t sml_doubles_unit(uint32_t num_lanes, uint8_t code, uint32_t world_size) {
  return CODE_FIELDS * (int32_t)code - 999 - (int32_t)sml_doubles_bits(num_lanes, world_size);
}

/* A double is mantissa * 2^(field - 1075). What is too large for the code, by a fault of others, is cut, too. */
static sml_int128 quantized(uint64_t bits, int32_t unit, uint32_t num_bits) {
  const uint32_t field = (uint32_t)(bits >> 52) & 0x7ff;
  const uint64_t mantissa = (bits & (HIDDEN - 1)) | (field > 0 ? HIDDEN : 0);
  const int32_t up = (int32_t)sml_max_u32(field, 1) - 1075 - unit;
  const sml_int128 limit = ((sml_int128)1 << num_bits) - 1;
  sml_int128 q = 0;
  if (up >= 64) q = mantissa != 0 ? limit : 0;
  else if (up >= 0) q = (sml_int128)mantissa << up;
  else if (up >= -54) q = (sml_int128)sml_shift_right_to_even(mantissa, (uint32_t)-up);
  if (q > limit) q = limit;
  return bits >> 63 != 0 ? -q : q;
}

void sml_doubles_add(void *lanes, const void *in, size_t num_elems, uint32_t num_lanes, uint8_t code,
                     uint32_t world_size) {
  if (!is_scaled(code)) return;
  const uint32_t limb_width = sml_limb_bits(world_size), num_bits = num_lanes * limb_width;
  const sml_uint128 mask = ((sml_uint128)1 << limb_width) - 1;
  const int32_t unit = sml_doubles_unit(num_lanes, code, world_size);
  const uint8_t *from = in;
  uint8_t *to = lanes;
  for (size_t i = 0; i < num_elems; i++, from += 8) {
    sml_uint128 q = (sml_uint128)quantized(load_64(from), unit, num_bits);
    for (uint32_t lane = 0; lane < num_lanes; lane++, q >>= limb_width, to += 4)
      sml_lane_add(to, (uint32_t)(lane + 1 < num_lanes ? q & mask : q));
  }
}

/* A quotient has 115 bits or more before it is rounded, and a rest. */
uint64_t sml_doubles_round(sml_uint128 value, int32_t unit, uint32_t divisor, bool has_more) {
  const uint32_t up = sml_wide_leading_zeros(value);
  value <<= up;
  const bool has_rest = divisor != 1 && sml_wide_divide(&value, divisor);
  const uint32_t drop = 65 - sml_wide_leading_zeros(value); /* 63 bits stay */
  const bool is_cut = (value & (((sml_uint128)1 << drop) - 1)) != 0;
  const int32_t exponent = unit - (int32_t)up + (int32_t)drop;
  return sml_float_bits(SML_LAYOUT_FLOAT64, (uint64_t)(value >> drop), exponent, has_rest || is_cut || has_more);
}

static uint64_t rounded(sml_int128 sum, int32_t unit, uint32_t divisor) {
  if (sum == 0) return 0;
  const uint64_t sign = sum < 0 ? UINT64_C(1) << 63 : 0;
  return sign | sml_doubles_round((sml_uint128)(sum < 0 ? -sum : sum), unit, divisor, false);
}

static void fill(uint8_t *to, size_t num_elems, uint8_t code) {
  const uint64_t bits = code == SML_CODE_ZERO ? 0 : NAN_BITS;
  for (size_t i = 0; i < num_elems; i++) memcpy(to + 8 * i, &bits, sizeof bits);
}

void sml_doubles_get(void *out, const void *lanes, size_t num_elems, uint32_t num_lanes, uint8_t code,
                     uint32_t world_size, bool average) {
  const uint8_t *from = lanes;
  uint8_t *to = out;
  if (!is_scaled(code)) {
    fill(to, num_elems, code);
    return;
  }
  const uint32_t limb_width = sml_limb_bits(world_size);
  const int32_t unit = sml_doubles_unit(num_lanes, code, world_size);
  for (size_t i = 0; i < num_elems; i++, from += 4 * num_lanes) {
    sml_int128 sum = 0;
    for (uint32_t lane = num_lanes; lane-- > 0;)
      sum = sum * (INT64_C(1) << limb_width) + (int32_t)sml_load_be32(from + 4 * (size_t)lane);
    const uint64_t bits = rounded(sum, unit, average ? world_size : 1);
    memcpy(to + 8 * i, &bits, sizeof bits);
  }
}

void sml_doubles_reduce(void *out, const void *const *in, uint32_t num_inputs, size_t num_elems, uint32_t num_lanes,
                        bool average) {
  uint8_t code = SML_CODE_ZERO, *to = out;
  for (uint32_t w = 0; w < num_inputs; w++) code = (uint8_t)sml_max_u32(code, sml_doubles_block_code(in[w], num_elems));
  if (!is_scaled(code)) {
    fill(to, num_elems, code);
    return;
  }
  const uint32_t num_bits = sml_doubles_bits(num_lanes, num_inputs);
  const int32_t unit = sml_doubles_unit(num_lanes, code, num_inputs);
  for (size_t i = 0; i < num_elems; i++) {
    sml_int128 sum = 0;
    for (uint32_t w = 0; w < num_inputs; w++) sum += quantized(load_64((const uint8_t *)in[w] + 8 * i), unit, num_bits);
    const uint64_t bits = rounded(sum, unit, average ? num_inputs : 1);
    memcpy(to + 8 * i, &bits, sizeof bits);
  }
}
