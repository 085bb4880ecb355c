/* SPDX-License-Identifier: Apache-2.0
 * The kernels over vectors, written once; private to this folder. A file for one kind of vector defines what is
 * listed here, includes this, and has a table of kernels `sml_quant_<name>` made by SML_VECTOR_KERNELS.
 *
 *   VECTOR                      how a function is compiled for them: attributes
 *   VECTOR_ELEMS                elements of a vector, a power of two
 *   vint, vfloat                a vector of uint32 or int32, and of float32
 *   load, store                 from and to any address; load_some, store_some: the first 1..VECTOR_ELEMS - 1
 *                               elements only, without touching memory beyond; what is not loaded is 0
 *   swap_lanes                  the bytes of each element, the other way around
 *   fill, fill_float            the same value everywhere
 *   add, multiply (modulo 2^32), and_bits, max_u32, max_u8
 *   scale_float (a product), clamp(x, lower, upper): a NaN becomes upper
 *   bits_of, float_of           the same bits
 *   to_int (nearest, ties to even), to_float
 *   averaged(v, &divisor)       bits of the floats nearest to v / divisor; struct divisor, divisor_of(double)
 *   sum_of, largest_of          over the elements of one vector
 *   environment                 the caller's floating point environment: enter(is_flushing) gives it and makes one that
 *                               rounds to nearest, with denormals as zero if `is_flushing`; leave(it) restores it
 */
#pragma once

#include "quant/check.h"
#include "quant/elem.h"
#include "quant/kernels.h"

#define LARGEST_FLUSH_SHIFT 125

/* Several vectors an iteration, where loop overhead shows. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll_count(4)")
#else
#define UNROLL _Pragma("GCC unroll 4")
#endif

/* For i = 0, VECTOR_ELEMS, ..: all whole vectors. Afterwards i is where the rest begins. */
#define EACH_VECTOR(i, num_elems) UNROLL for (; i + VECTOR_ELEMS <= num_elems; i += VECTOR_ELEMS)

/* Tensors come from far away, or from another processor's cache: what is read or written so much later is fetched. */
#define AHEAD_BYTES 4096u
#define TO_READ(p) __builtin_prefetch((p) + AHEAD_BYTES)
#define TO_WRITE(p) __builtin_prefetch((p) + AHEAD_BYTES, 1)

/* `rest` elements, or a whole vector if there are as many. */
static VECTOR inline vint load_upto(const uint8_t *p, size_t rest) {
  return rest >= VECTOR_ELEMS ? load(p) : load_some(p, rest);
}

static VECTOR inline void store_upto(uint8_t *p, vint v, size_t rest) {
  if (rest >= VECTOR_ELEMS) store(p, v);
  else store_some(p, v, rest);
}

static VECTOR vint largest_bits(const float *in, size_t num_elems) {
  const uint8_t *from = (const uint8_t *)in;
  const vint magnitude = fill(UINT32_C(0x7fffffff));
  vint largest = fill(0), largest_odd = fill(0);
  size_t i = 0;
  for (; i + 2 * VECTOR_ELEMS <= num_elems; i += 2 * VECTOR_ELEMS) { /* two chains of maxima */
    TO_READ(from + 4 * i);
    TO_READ(from + 4 * (i + VECTOR_ELEMS));
    largest = max_u32(largest, and_bits(load(from + 4 * i), magnitude));
    largest_odd = max_u32(largest_odd, and_bits(load(from + 4 * (i + VECTOR_ELEMS)), magnitude));
  }
  largest = max_u32(largest, largest_odd);
  EACH_VECTOR(i, num_elems) largest = max_u32(largest, and_bits(load(from + 4 * i), magnitude));
  if (i < num_elems) largest = max_u32(largest, and_bits(load_some(from + 4 * i, num_elems - i), magnitude));
  return largest;
}

static VECTOR uint8_t block_code(const float *in, size_t num_elems) {
  return sml_quant_code_of(largest_of(largest_bits(in, num_elems)));
}

/* Multiplication by 2^exponent in two factors, since 2^128 is no float and 2^-127 is a denormal one. It is exact,
 * unless the end is 0 or beyond the limit (quantize) or infinity (dequantize) anyway. */
struct scaling {
  vfloat first, second;
  vfloat lower, upper; /* of the product */
};

static VECTOR inline struct scaling scaling_within(int32_t exponent, float limit) {
  const int32_t second = exponent > 126 ? exponent - 64 : exponent < -126 ? exponent + 64 : 0;
  return (struct scaling){.first = fill_float((float)sml_quant_pow2(exponent - second)),
                          .second = fill_float((float)sml_quant_pow2(second)),
                          .lower = fill_float(-limit),
                          .upper = fill_float(limit)};
}

static VECTOR inline struct scaling scaling_of(int32_t exponent, uint32_t world_size) {
  return scaling_within(exponent, (float)sml_quant_limit(world_size));
}

static VECTOR inline vint quantized(vint bits, const struct scaling *s) {
  const vfloat x = scale_float(scale_float(float_of(bits), s->first), s->second);
  return to_int(clamp(x, s->lower, s->upper));
}

/* Denormals can cost a microcode assist each. Up to this shift they are below a half: q is 0 either way. */
static inline bool may_flush(int32_t shift) {
  return shift <= LARGEST_FLUSH_SHIFT;
}

static VECTOR void quantize(void *lanes, const float *in, size_t num_elems, uint8_t code, uint32_t world_size) {
  if (!sml_quant_is_scaled(code)) {
    memset(lanes, 0, 4 * num_elems);
    return;
  }
  const int32_t shift = sml_quant_shift(code, world_size);
  const struct scaling scaling = scaling_of(shift, world_size);
  const uint8_t *from = (const uint8_t *)in;
  uint8_t *to = lanes;
  size_t i = 0;
  const environment saved = enter(may_flush(shift));
  EACH_VECTOR(i, num_elems) {
    TO_READ(from + 4 * i);
    store(to + 4 * i, swap_lanes(quantized(load(from + 4 * i), &scaling)));
  }
  const size_t rest = num_elems - i;
  if (rest > 0) store_some(to + 4 * i, swap_lanes(quantized(load_some(from + 4 * i, rest), &scaling)), rest);
  leave(saved);
}

static VECTOR void quantize_add(void *lanes, const float *in, size_t num_elems, uint8_t code, uint32_t world_size) {
  if (!sml_quant_is_scaled(code)) return;
  const int32_t shift = sml_quant_shift(code, world_size);
  const struct scaling scaling = scaling_of(shift, world_size);
  const uint8_t *from = (const uint8_t *)in;
  uint8_t *to = lanes;
  size_t i = 0;
  const environment saved = enter(may_flush(shift));
  EACH_VECTOR(i, num_elems) {
    TO_READ(from + 4 * i);
    const vint sums = add(swap_lanes(load(to + 4 * i)), quantized(load(from + 4 * i), &scaling));
    store(to + 4 * i, swap_lanes(sums));
  }
  const size_t rest = num_elems - i;
  if (rest > 0) {
    const vint q = quantized(load_some(from + 4 * i, rest), &scaling);
    store_some(to + 4 * i, swap_lanes(add(swap_lanes(load_some(to + 4 * i, rest)), q)), rest);
  }
  leave(saved);
}

/* How sums become floats: by a power of two (is_scaled), or by a quotient. An average over 2^m ranks is a sum
 * scaled by 2^-m more. int32 to float rounds once; the factors are exact. */
struct unscaling {
  struct scaling scaling;
  struct divisor divisor;
  bool is_quotient;
};

static VECTOR inline struct unscaling unscaling_of(int32_t shift, uint32_t world_size, bool average) {
  const bool is_power = (world_size & (world_size - 1)) == 0;
  const int32_t more = average && is_power ? (int32_t)sml_ceil_log2(world_size) : 0;
  return (struct unscaling){.scaling = scaling_of(-shift - more, world_size),
                            .divisor = divisor_of((double)world_size * sml_quant_pow2(shift)),
                            .is_quotient = average && !is_power};
}

static VECTOR inline vint scaled(vint sums, const struct unscaling *u) {
  return bits_of(scale_float(scale_float(to_float(sums), u->scaling.first), u->scaling.second));
}

static VECTOR inline vint unscaled(vint sums, const struct unscaling *u) {
  return u->is_quotient ? averaged(sums, &u->divisor) : scaled(sums, u);
}

static VECTOR void fill_floats(float *out, size_t num_elems, uint32_t bits) {
  uint8_t *to = (uint8_t *)out;
  size_t i = 0;
  EACH_VECTOR(i, num_elems) store(to + 4 * i, fill(bits));
  if (i < num_elems) store_some(to + 4 * i, fill(bits), num_elems - i);
}

static VECTOR void dequantize(float *out, const void *lanes, size_t num_elems, uint8_t code, uint32_t world_size,
                              bool average) {
  if (!sml_quant_is_scaled(code)) {
    fill_floats(out, num_elems, sml_quant_unscaled_bits(code));
    return;
  }
  uint8_t *to = (uint8_t *)out;
  const uint8_t *from = lanes;
  size_t i = 0;
  const environment saved = enter(false);
  const struct unscaling unscaling = unscaling_of(sml_quant_shift(code, world_size), world_size, average);
  if (unscaling.is_quotient) {
    EACH_VECTOR(i, num_elems) store(to + 4 * i, averaged(swap_lanes(load(from + 4 * i)), &unscaling.divisor));
  } else {
    EACH_VECTOR(i, num_elems) {
      TO_WRITE(to + 4 * i);
      store(to + 4 * i, scaled(swap_lanes(load(from + 4 * i)), &unscaling));
    }
  }
  const size_t rest = num_elems - i;
  if (rest > 0) store_some(to + 4 * i, unscaled(swap_lanes(load_some(from + 4 * i, rest)), &unscaling), rest);
  leave(saved);
}

#define LINE_BYTES 64u
#define FETCH_AHEAD(p, is_written)                                 \
  for (size_t at = 0; at < 4 * 4 * VECTOR_ELEMS; at += LINE_BYTES) \
  __builtin_prefetch((p) + AHEAD_BYTES + at, is_written)

/* No element is beyond the limit: the code is that of the largest. */
static VECTOR inline vint quantized_within(vint bits, const struct scaling *s, bool is_simple) {
  const vfloat x = scale_float(float_of(bits), s->first);
  return to_int(is_simple ? x : scale_float(x, s->second));
}

static VECTOR inline vint unscaled_as(vint sums, const struct unscaling *u, bool is_simple) {
  return is_simple ? bits_of(scale_float(to_float(sums), u->scaling.first)) : unscaled(sums, u);
}

/* Elements [begin, begin + num_elems). is_simple: one factor each way is enough, and it is constant here. */
static VECTOR inline __attribute__((always_inline)) void reduce_scaled(float *out, const float *const *in,
                                                                       uint32_t num_inputs, size_t begin,
                                                                       size_t num_elems, const struct scaling *scaling,
                                                                       const struct unscaling *u, bool is_simple) {
  uint8_t *to = (uint8_t *)(out + begin);
  size_t i = 0;
  for (; i + 4 * VECTOR_ELEMS <= num_elems; i += 4 * VECTOR_ELEMS) {
    vint a = fill(0), b = fill(0), c = fill(0), d = fill(0);
    for (uint32_t w = 0; w < num_inputs; w++) {
      const uint8_t *from = (const uint8_t *)(in[w] + begin + i);
      FETCH_AHEAD(from, false);
      a = add(a, quantized_within(load(from), scaling, is_simple));
      b = add(b, quantized_within(load(from + 4 * VECTOR_ELEMS), scaling, is_simple));
      c = add(c, quantized_within(load(from + 8 * VECTOR_ELEMS), scaling, is_simple));
      d = add(d, quantized_within(load(from + 12 * VECTOR_ELEMS), scaling, is_simple));
    }
    FETCH_AHEAD(to + 4 * i, true);
    store(to + 4 * i, unscaled_as(a, u, is_simple));
    store(to + 4 * (i + VECTOR_ELEMS), unscaled_as(b, u, is_simple));
    store(to + 4 * (i + 2 * VECTOR_ELEMS), unscaled_as(c, u, is_simple));
    store(to + 4 * (i + 3 * VECTOR_ELEMS), unscaled_as(d, u, is_simple));
  }
  for (; i < num_elems; i += VECTOR_ELEMS) {
    const size_t rest = num_elems - i;
    vint sums = fill(0);
    for (uint32_t w = 0; w < num_inputs; w++)
      sums = add(sums, quantized_within(load_upto((const uint8_t *)(in[w] + begin + i), rest), scaling, is_simple));
    store_upto(to + 4 * i, unscaled_as(sums, u, is_simple), rest);
  }
}

static inline bool is_one_factor(int32_t exponent) {
  return exponent >= -126 && exponent <= 126;
}

static VECTOR void reduce_block(float *out, const float *const *in, uint32_t num_inputs, size_t begin, size_t num_elems,
                                uint8_t code, bool average) {
  if (!sml_quant_is_scaled(code)) {
    fill_floats(out + begin, num_elems, sml_quant_unscaled_bits(code));
    return;
  }
  const int32_t shift = sml_quant_shift(code, num_inputs);
  const bool is_power = (num_inputs & (num_inputs - 1)) == 0;
  const int32_t more = average && is_power ? (int32_t)sml_ceil_log2(num_inputs) : 0;
  if (is_one_factor(shift) && is_one_factor(-shift - more) && (is_power || !average)) {
    const struct scaling scaling = {.first = fill_float((float)sml_quant_pow2(shift))};
    const struct unscaling unscaling = {.scaling.first = fill_float((float)sml_quant_pow2(-shift - more))};
    reduce_scaled(out, in, num_inputs, begin, num_elems, &scaling, &unscaling, true);
  } else {
    const struct scaling scaling = scaling_of(shift, num_inputs);
    const struct unscaling unscaling = unscaling_of(shift, num_inputs, average);
    reduce_scaled(out, in, num_inputs, begin, num_elems, &scaling, &unscaling, false);
  }
}

static VECTOR inline uint8_t reduced_code(const float *const *in, uint32_t num_inputs, size_t begin, size_t num_elems) {
  vint largest = fill(0);
  for (uint32_t w = 0; w < num_inputs; w++) largest = max_u32(largest, largest_bits(in[w] + begin, num_elems));
  return sml_quant_code_of(largest_of(largest));
}

/* A block's code is known before the block ahead of it is added up, so that neither waits for the other. */
static VECTOR void reduce_floats(float *out, const float *const *in, uint32_t num_inputs, size_t num_elems,
                                 bool average) {
  const environment saved = enter(false);
  size_t block = sml_min_u64(SML_BLOCK_ELEMS, num_elems);
  uint8_t code = reduced_code(in, num_inputs, 0, block);
  for (size_t done = 0; done < num_elems;) {
    const size_t next = sml_min_u64(SML_BLOCK_ELEMS, num_elems - done - block);
    const uint8_t next_code = next > 0 ? reduced_code(in, num_inputs, done + block, next) : 0;
    reduce_block(out, in, num_inputs, done, block, code, average);
    done += block;
    block = next;
    code = next_code;
  }
  leave(saved);
}

static VECTOR void pack_int32(void *lanes, const int32_t *in, size_t num_elems) {
  const uint8_t *from = (const uint8_t *)in;
  uint8_t *to = lanes;
  size_t i = 0;
  EACH_VECTOR(i, num_elems) store(to + 4 * i, swap_lanes(load(from + 4 * i)));
  const size_t rest = num_elems - i;
  if (rest > 0) store_some(to + 4 * i, swap_lanes(load_some(from + 4 * i, rest)), rest);
}

static VECTOR void unpack_int32(int32_t *out, const void *lanes, size_t num_elems) {
  pack_int32(out, lanes, num_elems); /* the same the other way around */
}

static VECTOR void pack_add_int32(void *lanes, const int32_t *in, size_t num_elems) {
  const uint8_t *from = (const uint8_t *)in;
  uint8_t *to = lanes;
  size_t i = 0;
  EACH_VECTOR(i, num_elems) {
    const vint sums = add(swap_lanes(load(to + 4 * i)), load(from + 4 * i));
    store(to + 4 * i, swap_lanes(sums));
  }
  const size_t rest = num_elems - i;
  if (rest == 0) return;
  const vint sums = add(swap_lanes(load_some(to + 4 * i, rest)), load_some(from + 4 * i, rest));
  store_some(to + 4 * i, swap_lanes(sums), rest);
}

static VECTOR void add_int32(int32_t *acc, const void *lanes, size_t num_elems) {
  const uint8_t *from = lanes;
  uint8_t *to = (uint8_t *)acc;
  size_t i = 0;
  EACH_VECTOR(i, num_elems) store(to + 4 * i, add(load(to + 4 * i), swap_lanes(load(from + 4 * i))));
  const size_t rest = num_elems - i;
  if (rest == 0) return;
  store_some(to + 4 * i, add(load_some(to + 4 * i, rest), swap_lanes(load_some(from + 4 * i, rest))), rest);
}

static VECTOR void reduce_int32(int32_t *out, const int32_t *const *in, uint32_t num_inputs, size_t num_elems) {
  uint8_t *to = (uint8_t *)out;
  size_t i = 0;
  for (; i + 2 * VECTOR_ELEMS <= num_elems; i += 2 * VECTOR_ELEMS) {
    vint sums = fill(0), more = fill(0);
    for (uint32_t w = 0; w < num_inputs; w++) {
      const uint8_t *from = (const uint8_t *)in[w] + 4 * i;
      sums = add(sums, load(from));
      more = add(more, load(from + 4 * VECTOR_ELEMS));
    }
    store(to + 4 * i, sums);
    store(to + 4 * (i + VECTOR_ELEMS), more);
  }
  for (; i < num_elems; i += VECTOR_ELEMS) {
    vint sums = fill(0);
    for (uint32_t w = 0; w < num_inputs; w++)
      sums = add(sums, load_upto((const uint8_t *)in[w] + 4 * i, num_elems - i));
    store_upto(to + 4 * i, sums, num_elems - i);
  }
}

/* Numbers of 64 bits, and the rest behind whole vectors, are the scalar kernel's. */
static VECTOR void combine(uint32_t *acc, const void *lanes, size_t num_lanes, enum sml_combine how) {
  const uint8_t *from = lanes;
  uint8_t *to = (uint8_t *)acc;
  size_t i = 0;
  if (how == SML_COMBINE_MAX_32)
    EACH_VECTOR(i, num_lanes) store(to + 4 * i, max_u32(load(to + 4 * i), swap_lanes(load(from + 4 * i))));
  else if (how == SML_COMBINE_PRODUCT_32)
    EACH_VECTOR(i, num_lanes) store(to + 4 * i, multiply(load(to + 4 * i), swap_lanes(load(from + 4 * i))));
  else if (how == SML_COMBINE_OR)
    EACH_VECTOR(i, num_lanes) store(to + 4 * i, or_bits(load(to + 4 * i), swap_lanes(load(from + 4 * i))));
  sml_quant_scalar.combine(acc + i, from + 4 * i, num_lanes - i, how);
}

static VECTOR void max_uint8(uint8_t *acc, const uint8_t *in, size_t num_bytes) {
  size_t i = 0;
  for (; i + 4 * VECTOR_ELEMS <= num_bytes; i += 4 * VECTOR_ELEMS) store(acc + i, max_u8(load(acc + i), load(in + i)));
  const size_t rest = (num_bytes - i) / 4;
  if (rest > 0) store_some(acc + i, max_u8(load_some(acc + i, rest), load_some(in + i, rest)), rest);
  i += 4 * rest;
  sml_quant_scalar.max_uint8(acc + i, in + i, num_bytes - i);
}

/* Every element of a vector has its own sum until the end: they add up as well there. */
static VECTOR uint32_t check_lanes(const void *lanes, size_t num_elems, uint32_t multiplier) {
  const uint8_t *from = lanes, *table = (const uint8_t *)sml_check_table;
  vint sums = fill(0), powers = fill(1);
  size_t i = 0;
  for (; i + SML_CHECK_BLOCK <= num_elems; i += SML_CHECK_BLOCK) {
    vint block = fill(0);
    size_t k = 0;
    EACH_VECTOR(k, SML_CHECK_BLOCK) {
      block = add(block, multiply(load(table + 4 * k), swap_lanes(load(from + 4 * (i + k)))));
    }
    sums = add(sums, multiply(powers, block));
    powers = multiply(powers, fill(multiplier));
  }
  vint block = fill(0);
  for (size_t k = 0; i < num_elems; i += VECTOR_ELEMS, k += VECTOR_ELEMS)
    block = add(block, multiply(load(table + 4 * k), swap_lanes(load_upto(from + 4 * i, num_elems - i))));
  return sum_of(add(sums, multiply(powers, block)));
}

#include "quant/vector_packed.h"

#include "quant/vector_exact.h"

#define SML_VECTOR_KERNELS(the_name)                                                                               \
  {                                                                                                                \
    .name = the_name, .block_code = block_code, .quantize = quantize, .quantize_add = quantize_add,                \
    .dequantize = dequantize, .reduce_floats = reduce_floats, .block_code_16 = block_code_16, .pack = pack,        \
    .pack_add = pack_add, .unpack = unpack, .reduce_packed = reduce_packed, .widen = widen,                        \
    .dequantize_16 = dequantize_16, .pack_int32 = pack_int32, .pack_add_int32 = pack_add_int32,                    \
    .unpack_int32 = unpack_int32, .set_int32 = unpack_int32, .add_int32 = add_int32, .reduce_int32 = reduce_int32, \
    .combine = combine, .max_uint8 = max_uint8, .check_lanes = check_lanes, .exact_cells = exact_cells,            \
    .exact_limbs = exact_limbs, .exact_floats = exact_floats, .exact_doubles = exact_doubles,                      \
  }
