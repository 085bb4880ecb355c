/* SPDX-License-Identifier: Apache-2.0
 * The reference kernels. Floats are handled as bits with integer arithmetic only, so the caller's
 * rounding mode and flush-to-zero flags cannot change a result. Other implementations are tested to
 * give the same bits. Buffers are bytes here: they need no alignment. */
#include "quant/check.h"
#include "quant/fixed.h"

static uint32_t load_bits(const uint8_t *p) {
  uint32_t bits;
  memcpy(&bits, p, sizeof bits);
  return bits;
}

static void store_bits(uint8_t *p, uint32_t bits) {
  memcpy(p, &bits, sizeof bits);
}

static uint8_t block_code(const float *in, size_t num_elems) {
  const uint8_t *from = (const uint8_t *)in;
  uint32_t largest = 0;
  for (size_t i = 0; i < num_elems; i++) largest = sml_max_u32(largest, load_bits(from + 4 * i) & ~SML_SIGN_BIT);
  return sml_quant_code_of(largest);
}

static void quantize(void *lanes, const float *in, size_t num_elems, uint8_t code, uint32_t world_size) {
  if (!sml_quant_is_scaled(code)) {
    memset(lanes, 0, 4 * num_elems);
    return;
  }
  int32_t shift = sml_quant_shift(code, world_size);
  uint32_t limit = sml_quant_limit(world_size);
  const uint8_t *from = (const uint8_t *)in;
  uint8_t *to = lanes;
  for (size_t i = 0; i < num_elems; i++)
    sml_store_be32(to + 4 * i, sml_quantize_bits(load_bits(from + 4 * i), code, shift, limit));
}

static void quantize_add(void *lanes, const float *in, size_t num_elems, uint8_t code, uint32_t world_size) {
  if (!sml_quant_is_scaled(code)) return;
  int32_t shift = sml_quant_shift(code, world_size);
  uint32_t limit = sml_quant_limit(world_size);
  const uint8_t *from = (const uint8_t *)in;
  uint8_t *to = lanes;
  for (size_t i = 0; i < num_elems; i++) {
    uint32_t q = sml_quantize_bits(load_bits(from + 4 * i), code, shift, limit);
    sml_store_be32(to + 4 * i, sml_load_be32(to + 4 * i) + q);
  }
}

/* The float nearest to sum * 2^-shift / divisor, ties to even. The sum is moved up to bit 62 (one bit of
 * room for the carry), so the quotient has at least 51 bits; a remainder is kept as a sticky last bit. */
static inline uint32_t dequantize_bits(uint32_t sum, int32_t shift, uint32_t divisor) {
  if (sum == 0) return 0;
  uint32_t sign = sum & SML_SIGN_BIT;
  uint64_t value = sign != 0 ? 0u - sum : sum;
  int32_t up = __builtin_clzll(value) - 1;
  value <<= up;
  if (divisor != 1) {
    uint64_t quotient = value / divisor;
    value = quotient | (quotient * divisor != value);
  }
  int32_t exponent = -up - shift; /* the magnitude is value * 2^exponent */
  int32_t top = 63 - __builtin_clzll(value);
  int32_t field = top + exponent + 127;
  if (field >= 0xff) return sign | SML_INFINITY_BITS;
  /* 24 bits stay; of a denormal, the multiples of 2^-149. */
  int32_t drop = field >= 1 ? top - 23 : -149 - exponent;
  SML_ASSERT(drop >= 27 && drop <= 42);
  /* Added, the hidden bit and a carry out of the mantissa raise the exponent field, up to infinity's. */
  uint32_t below = (uint32_t)(field >= 1 ? field - 1 : 0) << 23;
  return sign | (below + (uint32_t)sml_shift_right_to_even(value, (uint32_t)drop));
}

static void dequantize(float *out, const void *lanes, size_t num_elems, uint8_t code, uint32_t world_size,
                       bool average) {
  uint8_t *to = (uint8_t *)out;
  const uint8_t *from = lanes;
  if (!sml_quant_is_scaled(code)) {
    for (size_t i = 0; i < num_elems; i++) store_bits(to + 4 * i, sml_quant_unscaled_bits(code));
    return;
  }
  int32_t shift = sml_quant_shift(code, world_size);
  if (average)
    for (size_t i = 0; i < num_elems; i++)
      store_bits(to + 4 * i, dequantize_bits(sml_load_be32(from + 4 * i), shift, world_size));
  else
    for (size_t i = 0; i < num_elems; i++)
      store_bits(to + 4 * i, dequantize_bits(sml_load_be32(from + 4 * i), shift, 1));
}

static void reduce_block(float *out, const float *const *in, uint32_t num_inputs, size_t begin, size_t end,
                         bool average) {
  uint8_t *to = (uint8_t *)out;
  uint8_t code = SML_CODE_ZERO;
  for (uint32_t w = 0; w < num_inputs; w++) code = (uint8_t)sml_max_u32(code, block_code(in[w] + begin, end - begin));
  if (!sml_quant_is_scaled(code)) {
    for (size_t i = begin; i < end; i++) store_bits(to + 4 * i, sml_quant_unscaled_bits(code));
    return;
  }
  int32_t shift = sml_quant_shift(code, num_inputs);
  uint32_t limit = sml_quant_limit(num_inputs);
  for (size_t i = begin; i < end; i++) {
    uint32_t sum = 0;
    for (uint32_t w = 0; w < num_inputs; w++)
      sum += sml_quantize_bits(load_bits((const uint8_t *)in[w] + 4 * i), code, shift, limit);
    store_bits(to + 4 * i, dequantize_bits(sum, shift, average ? num_inputs : 1));
  }
}

static void reduce_floats(float *out, const float *const *in, uint32_t num_inputs, size_t num_elems, bool average) {
  for (size_t begin = 0; begin < num_elems; begin += SML_BLOCK_ELEMS)
    reduce_block(out, in, num_inputs, begin, sml_min_u64(begin + SML_BLOCK_ELEMS, num_elems), average);
}

static void swap_bytes(uint8_t *to, const uint8_t *from, size_t num_elems) {
  for (size_t i = 0; i < num_elems; i++) sml_store_be32(to + 4 * i, load_bits(from + 4 * i));
}

static void pack_int32(void *lanes, const int32_t *in, size_t num_elems) {
  swap_bytes(lanes, (const uint8_t *)in, num_elems);
}

static void pack_add_int32(void *lanes, const int32_t *in, size_t num_elems) {
  const uint8_t *from = (const uint8_t *)in;
  uint8_t *to = lanes;
  for (size_t i = 0; i < num_elems; i++)
    sml_store_be32(to + 4 * i, sml_load_be32(to + 4 * i) + load_bits(from + 4 * i));
}

static void unpack_int32(int32_t *out, const void *lanes, size_t num_elems) {
  swap_bytes((uint8_t *)out, lanes, num_elems);
}

static void set_int32(int32_t *acc, const void *lanes, size_t num_elems) {
  swap_bytes((uint8_t *)acc, lanes, num_elems);
}

static void add_int32(int32_t *acc, const void *lanes, size_t num_elems) {
  const uint8_t *from = lanes;
  for (size_t i = 0; i < num_elems; i++) acc[i] = (int32_t)((uint32_t)acc[i] + sml_load_be32(from + 4 * i));
}

static void reduce_int32(int32_t *out, const int32_t *const *in, uint32_t num_inputs, size_t num_elems) {
  uint8_t *to = (uint8_t *)out;
  for (size_t i = 0; i < num_elems; i++) {
    uint32_t sum = 0;
    for (uint32_t w = 0; w < num_inputs; w++) sum += load_bits((const uint8_t *)in[w] + 4 * i);
    store_bits(to + 4 * i, sum);
  }
}

static uint64_t combine_64(uint64_t a, uint64_t b, enum sml_combine how) {
  return how == SML_COMBINE_PRODUCT_64 ? a * b : a > b ? a : b;
}

static uint32_t combine_32(uint32_t a, uint32_t b, enum sml_combine how) {
  return how == SML_COMBINE_PRODUCT_32 ? a * b : how == SML_COMBINE_OR ? a | b : sml_max_u32(a, b);
}

static void combine(uint32_t *acc, const void *lanes, size_t num_lanes, enum sml_combine how) {
  const uint8_t *from = lanes;
  if (how == SML_COMBINE_MAX_64 || how == SML_COMBINE_PRODUCT_64) {
    for (size_t i = 0; i + 1 < num_lanes; i += 2) {
      const uint64_t value = combine_64((uint64_t)acc[i] << 32 | acc[i + 1], sml_load_be64(from + 4 * i), how);
      acc[i] = (uint32_t)(value >> 32);
      acc[i + 1] = (uint32_t)value;
    }
    return;
  }
  for (size_t i = 0; i < num_lanes; i++) acc[i] = combine_32(acc[i], sml_load_be32(from + 4 * i), how);
}

static void max_uint8(uint8_t *acc, const uint8_t *in, size_t num_bytes) {
  for (size_t i = 0; i < num_bytes; i++)
    if (in[i] > acc[i]) acc[i] = in[i];
}

static uint32_t check_lanes(const void *lanes, size_t num_elems, uint32_t multiplier) {
  const uint8_t *from = lanes;
  uint32_t sum = 0, power = 1;
  for (size_t i = 0; i < num_elems; i += SML_CHECK_BLOCK, power *= multiplier) {
    const size_t block_elems = sml_min_u64(SML_CHECK_BLOCK, num_elems - i);
    uint32_t block = 0;
    for (size_t k = 0; k < block_elems; k++) block += sml_check_table[k] * sml_load_be32(from + 4 * (i + k));
    sum += power * block;
  }
  return sum;
}

const struct sml_quant_kernels sml_quant_scalar = {
    .name = "scalar",
    .block_code = block_code,
    .quantize = quantize,
    .quantize_add = quantize_add,
    .dequantize = dequantize,
    .reduce_floats = reduce_floats,
    .block_code_16 = sml_packed_block_code_16,
    .pack = sml_packed_put,
    .pack_add = sml_packed_add,
    .unpack = sml_packed_get,
    .reduce_packed = sml_packed_reduce,
    .widen = sml_packed_widen,
    .dequantize_16 = sml_packed_dequantize_16,
    .pack_int32 = pack_int32,
    .pack_add_int32 = pack_add_int32,
    .unpack_int32 = unpack_int32,
    .set_int32 = set_int32,
    .add_int32 = add_int32,
    .reduce_int32 = reduce_int32,
    .combine = combine,
    .max_uint8 = max_uint8,
    .check_lanes = check_lanes,
};
