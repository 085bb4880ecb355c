/* SPDX-License-Identifier: Apache-2.0
 * The kernels of 16-bit types and of two elements a lane over vectors, written once; included by vector_kernels.h.
 * Beside what that lists, a file for one kind of vector defines:
 *
 *   vhalf                       VECTOR_ELEMS 16-bit elements
 *   load_half, store_half       from and to any address; load_half_some, store_half_some: the first
 *                               0..VECTOR_ELEMS - 1 elements only; what is not loaded is 0
 *   max_u16                     of a vint's halves
 *   shift_left_16, shift_right_16 (of uint32), shift_sign_right_16 (of int32)
 *   or_bits, is_zero (all bits where an element is 0, else none), choose(mask, where it is, where it is not)
 *   absolute, with_sign_of(sign, v): of int32
 *   widened_bits(vhalf)         zero-extended
 *   widened_float16(vhalf)      bits of floats; a NaN becomes quiet
 *   narrowed_bits(vint)         the low half of each
 *   narrowed_float16(vfloat)    to nearest, ties to even, denormals kept
 *   averaged_to_odd(v, &divisor)   as averaged, but rounded to odd: who rounds again to 22 bits or fewer gets what one
 *                               rounding gives
 */
#pragma once

#define ALWAYS_INLINE VECTOR inline __attribute__((always_inline))

/* ---- elements ---- */

static ALWAYS_INLINE vint load_elems(const uint8_t *from, enum sml_elem elem) {
  if (elem == SML_ELEM_FLOAT32) return load(from);
  const vhalf half = load_half(from);
  return elem == SML_ELEM_FLOAT16 ? widened_float16(half) : shift_left_16(widened_bits(half));
}

/* 0 .. VECTOR_ELEMS of them. */
static ALWAYS_INLINE vint load_elems_upto(const uint8_t *from, size_t rest, enum sml_elem elem) {
  if (rest >= VECTOR_ELEMS) return load_elems(from, elem);
  if (elem == SML_ELEM_FLOAT32) return rest > 0 ? load_some(from, rest) : fill(0);
  const vhalf half = load_half_some(from, rest);
  return elem == SML_ELEM_FLOAT16 ? widened_float16(half) : shift_left_16(widened_bits(half));
}

/* Takes floats that have no more digits than float32, or were rounded to odd. A carry out of a mantissa raises the
 * exponent, up to infinity's. */
static ALWAYS_INLINE vhalf narrowed(vint bits, enum sml_elem elem) {
  if (elem == SML_ELEM_FLOAT16) return narrowed_float16(float_of(bits));
  const vint is_odd = and_bits(shift_right_16(bits), fill(1));
  return narrowed_bits(shift_right_16(add(bits, add(is_odd, fill(0x7fff)))));
}

static ALWAYS_INLINE void store_elems(uint8_t *to, vint bits, enum sml_elem elem) {
  if (elem == SML_ELEM_FLOAT32) store(to, bits);
  else store_half(to, narrowed(bits, elem));
}

static ALWAYS_INLINE void store_elems_upto(uint8_t *to, vint bits, size_t rest, enum sml_elem elem) {
  if (rest >= VECTOR_ELEMS) store_elems(to, bits, elem);
  else if (rest == 0) return;
  else if (elem == SML_ELEM_FLOAT32) store_some(to, bits, rest);
  else store_half_some(to, narrowed(bits, elem), rest);
}

/* ---- codes, widening ---- */

static VECTOR uint32_t largest_half(const uint8_t *from, size_t num_elems) {
  const vint magnitude = fill(UINT32_C(0x7fff7fff));
  vint largest = fill(0);
  size_t i = 0;
  UNROLL for (; i + 2 * VECTOR_ELEMS <= num_elems; i += 2 * VECTOR_ELEMS) {
    TO_READ(from + 2 * i);
    largest = max_u16(largest, and_bits(load(from + 2 * i), magnitude));
  }
  const size_t rest = (num_elems - i) / 2;
  if (rest > 0) largest = max_u16(largest, and_bits(load_some(from + 2 * i, rest), magnitude));
  i += 2 * rest;
  const uint32_t last = i < num_elems ? sml_load_16(from + 2 * i) & 0x7fff : 0;
  return sml_max_u32(last, largest_of(max_u32(and_bits(largest, fill(0xffff)), shift_right_16(largest))));
}

static VECTOR uint8_t block_code_16(const void *in, size_t num_elems, enum sml_elem elem) {
  const uint32_t largest = largest_half(in, num_elems);
  return sml_quant_code_of(elem == SML_ELEM_FLOAT16 ? sml_float16_widened(largest) : largest << 16);
}

static ALWAYS_INLINE void widen_elems(uint8_t *to, const uint8_t *from, size_t num_elems, enum sml_elem elem) {
  size_t i = 0;
  const environment saved = enter(false);
  EACH_VECTOR(i, num_elems) store(to + 4 * i, load_elems(from + 2 * i, elem));
  const size_t rest = num_elems - i;
  if (rest > 0) store_some(to + 4 * i, load_elems_upto(from + 2 * i, rest, elem), rest);
  leave(saved);
}

static VECTOR void widen(float *out, const void *in, size_t num_elems, enum sml_elem elem) {
  if (elem == SML_ELEM_FLOAT16) widen_elems((uint8_t *)out, in, num_elems, SML_ELEM_FLOAT16);
  else widen_elems((uint8_t *)out, in, num_elems, SML_ELEM_BFLOAT16);
}

/* ---- two elements a lane ---- */

/* A lane's sum of q above, that of q below. */
static ALWAYS_INLINE vint packed(vint high, vint low) {
  return add(shift_left_16(high), low);
}
static ALWAYS_INLINE vint low_of(vint lanes) {
  return shift_sign_right_16(shift_left_16(lanes));
}
static ALWAYS_INLINE vint high_of(vint lanes) {
  return shift_sign_right_16(add(lanes, fill(0x8000))); /* what a negative low half borrowed is given back */
}

static ALWAYS_INLINE void pack_elems(uint8_t *to, const uint8_t *from, size_t num_elems, enum sml_elem elem,
                                     uint8_t code, uint32_t world_size, bool is_adding) {
  const size_t num_lanes = sml_packed_lanes(num_elems), num_lows = num_elems - num_lanes;
  const size_t elem_bytes = sml_elem_bytes(elem);
  const uint8_t *lows = from + elem_bytes * num_lanes;
  const int32_t shift = sml_packed_shift(code, world_size);
  const struct scaling scaling = scaling_within(shift, (float)sml_packed_limit(world_size));
  size_t i = 0;
  const environment saved = enter(may_flush(shift));
  EACH_VECTOR(i, num_lows) {
    TO_READ(from + elem_bytes * i);
    TO_READ(lows + elem_bytes * i);
    const vint lanes = packed(quantized(load_elems(from + elem_bytes * i, elem), &scaling),
                              quantized(load_elems(lows + elem_bytes * i, elem), &scaling));
    store(to + 4 * i, swap_lanes(is_adding ? add(lanes, swap_lanes(load(to + 4 * i))) : lanes));
  }
  for (; i < num_lanes; i += VECTOR_ELEMS) {
    const size_t rest = num_lanes - i, low_rest = num_lows > i ? num_lows - i : 0;
    const vint lanes = packed(quantized(load_elems_upto(from + elem_bytes * i, rest, elem), &scaling),
                              quantized(load_elems_upto(lows + elem_bytes * i, low_rest, elem), &scaling));
    store_upto(to + 4 * i, swap_lanes(is_adding ? add(lanes, swap_lanes(load_upto(to + 4 * i, rest))) : lanes), rest);
  }
  leave(saved);
}

#define EACH_ELEM(elem, call_of)                               \
  switch (elem) {                                              \
    case SML_ELEM_FLOAT32: call_of(SML_ELEM_FLOAT32); break;   \
    case SML_ELEM_FLOAT16: call_of(SML_ELEM_FLOAT16); break;   \
    case SML_ELEM_BFLOAT16: call_of(SML_ELEM_BFLOAT16); break; \
  }

static VECTOR void pack(void *lanes, const void *in, size_t num_elems, enum sml_elem elem, uint8_t code,
                        uint32_t world_size) {
  if (!sml_quant_is_scaled(code)) {
    memset(lanes, 0, 4 * sml_packed_lanes(num_elems));
    return;
  }
#define PACK(the_elem) pack_elems(lanes, in, num_elems, the_elem, code, world_size, false)
  EACH_ELEM(elem, PACK)
#undef PACK
}

static VECTOR void pack_add(void *lanes, const void *in, size_t num_elems, enum sml_elem elem, uint8_t code,
                            uint32_t world_size) {
  if (!sml_quant_is_scaled(code)) return;
#define PACK_ADD(the_elem) pack_elems(lanes, in, num_elems, the_elem, code, world_size, true)
  EACH_ELEM(elem, PACK_ADD)
#undef PACK_ADD
}

/* Takes sums that a float holds: up to 2^24. */
static ALWAYS_INLINE vint unscaled_to(vint sums, const struct unscaling *u, enum sml_elem elem) {
  if (u->is_quotient && elem != SML_ELEM_FLOAT32) return averaged_to_odd(sums, &u->divisor);
  return unscaled(sums, u);
}

static ALWAYS_INLINE void unpack_elems(uint8_t *to, const uint8_t *from, size_t num_elems, enum sml_elem elem,
                                       uint8_t code, uint32_t world_size, bool average) {
  const size_t num_lanes = sml_packed_lanes(num_elems), num_lows = num_elems - num_lanes;
  const size_t elem_bytes = sml_elem_bytes(elem);
  uint8_t *lows = to + elem_bytes * num_lanes;
  size_t i = 0;
  const environment saved = enter(false);
  const struct unscaling unscaling = unscaling_of(sml_packed_shift(code, world_size), world_size, average);
  EACH_VECTOR(i, num_lows) {
    TO_WRITE(to + elem_bytes * i);
    TO_WRITE(lows + elem_bytes * i);
    const vint lanes = swap_lanes(load(from + 4 * i));
    store_elems(to + elem_bytes * i, unscaled_to(high_of(lanes), &unscaling, elem), elem);
    store_elems(lows + elem_bytes * i, unscaled_to(low_of(lanes), &unscaling, elem), elem);
  }
  for (; i < num_lanes; i += VECTOR_ELEMS) {
    const size_t rest = num_lanes - i, low_rest = num_lows > i ? num_lows - i : 0;
    const vint lanes = swap_lanes(load_upto(from + 4 * i, rest));
    store_elems_upto(to + elem_bytes * i, unscaled_to(high_of(lanes), &unscaling, elem), rest, elem);
    store_elems_upto(lows + elem_bytes * i, unscaled_to(low_of(lanes), &unscaling, elem), low_rest, elem);
  }
  leave(saved);
}

static VECTOR void unpack(void *out, const void *lanes, size_t num_elems, enum sml_elem elem, uint8_t code,
                          uint32_t world_size, bool average) {
  if (!sml_quant_is_scaled(code)) {
    sml_elem_fill(out, num_elems, code, elem);
    return;
  }
#define UNPACK(the_elem) unpack_elems(out, lanes, num_elems, the_elem, code, world_size, average)
  EACH_ELEM(elem, UNPACK)
#undef UNPACK
}

static ALWAYS_INLINE void reduce_elems(uint8_t *to, const void *const *in, uint32_t num_inputs, size_t num_elems,
                                       enum sml_elem elem, uint8_t code, bool average) {
  const size_t elem_bytes = sml_elem_bytes(elem);
  const int32_t shift = sml_packed_shift(code, num_inputs);
  const struct scaling scaling = scaling_within(shift, (float)sml_packed_limit(num_inputs));
  const environment saved = enter(false);
  const struct unscaling unscaling = unscaling_of(shift, num_inputs, average);
  for (size_t i = 0; i < num_elems; i += VECTOR_ELEMS) {
    const size_t rest = num_elems - i;
    vint sums = fill(0);
    for (uint32_t w = 0; w < num_inputs; w++) {
      const uint8_t *from = (const uint8_t *)in[w] + elem_bytes * i;
      sums = add(sums, quantized(load_elems_upto(from, rest, elem), &scaling));
    }
    store_elems_upto(to + elem_bytes * i, unscaled_to(sums, &unscaling, elem), rest, elem);
  }
  leave(saved);
}

static VECTOR void reduce_packed(void *out, const void *const *in, uint32_t num_inputs, size_t num_elems,
                                 enum sml_elem elem, bool average) {
  uint8_t code = SML_CODE_ZERO;
  for (uint32_t w = 0; w < num_inputs; w++) {
    const uint8_t of_input =
        elem == SML_ELEM_FLOAT32 ? block_code(in[w], num_elems) : block_code_16(in[w], num_elems, elem);
    code = (uint8_t)sml_max_u32(code, of_input);
  }
  if (!sml_quant_is_scaled(code)) {
    sml_elem_fill(out, num_elems, code, elem);
    return;
  }
#define REDUCE(the_elem) reduce_elems(out, in, num_inputs, num_elems, the_elem, code, average)
  EACH_ELEM(elem, REDUCE)
#undef REDUCE
}

/* ---- 16-bit elements of 32-bit lanes ---- */

/* The sums of 32 bits that a float holds, rounded to odd: of what is 2^24 or more the upper 24 bits. */
static ALWAYS_INLINE vint cut_to_odd(vint sums) {
  const vint magnitude = absolute(sums), tail = and_bits(magnitude, fill(0xff));
  const vint kept = or_bits(and_bits(magnitude, fill(UINT32_C(0xffffff00))), choose(is_zero(tail), tail, fill(0x100)));
  const vint is_small = is_zero(and_bits(magnitude, fill(UINT32_C(0xff000000))));
  return with_sign_of(sums, choose(is_small, magnitude, kept));
}

static ALWAYS_INLINE vint unscaled_16(vint sums, const struct unscaling *u) {
  if (u->is_quotient) return averaged_to_odd(sums, &u->divisor);
  return unscaled(cut_to_odd(sums), u);
}

static ALWAYS_INLINE void dequantize_elems(uint8_t *to, const uint8_t *from, size_t num_elems, enum sml_elem elem,
                                           uint8_t code, uint32_t world_size, bool average) {
  size_t i = 0;
  const environment saved = enter(false);
  const struct unscaling unscaling = unscaling_of(sml_quant_shift(code, world_size), world_size, average);
  EACH_VECTOR(i, num_elems) {
    store_elems(to + 2 * i, unscaled_16(swap_lanes(load(from + 4 * i)), &unscaling), elem);
  }
  const size_t rest = num_elems - i;
  if (rest > 0)
    store_elems_upto(to + 2 * i, unscaled_16(swap_lanes(load_some(from + 4 * i, rest)), &unscaling), rest, elem);
  leave(saved);
}

/* Below this code quotients can be denormal floats, which hold too few digits to be rounded again. */
#define LEAST_QUOTIENT_CODE 32

static VECTOR void dequantize_16(void *out, const void *lanes, size_t num_elems, enum sml_elem elem, uint8_t code,
                                 uint32_t world_size, bool average) {
  if (!sml_quant_is_scaled(code) || (average && code < LEAST_QUOTIENT_CODE)) {
    sml_packed_dequantize_16(out, lanes, num_elems, elem, code, world_size, average);
    return;
  }
  if (elem == SML_ELEM_FLOAT16) dequantize_elems(out, lanes, num_elems, SML_ELEM_FLOAT16, code, world_size, average);
  else dequantize_elems(out, lanes, num_elems, SML_ELEM_BFLOAT16, code, world_size, average);
}
