/* SPDX-License-Identifier: Apache-2.0
 * Numbers: float32 <-> int32 block fixed point, and the integer reductions of the aggregator
 * (docs/PROTOCOL.md "Numbers"). Pure: no state, no operating system. Every function gives the same
 * bits on every machine, whatever the caller's rounding mode and flush-to-zero flags are, and
 * whichever implementation was chosen.
 *
 * A *block* is SML_BLOCK_ELEMS floats, from the operation's first one. Its *exponent code*: 0 = every |x| < 2^-100
 * (the block is flushed to +0), 1..254 = biased float32 exponent of the largest |x|, 255 = an Inf or NaN is in it.
 * The code used for scaling is the maximum over all ranks. Codes 1..26 never occur.
 * With 2^e > block maximum (e = code - 126) and shift k = 30 - ceil(log2 n) - e,
 *   q = round_to_nearest_even(x * 2^k), so |q| <= 2^30 / n' (n' = n rounded up to a power of two)
 * and the sum over n ranks cannot overflow an int32.
 * Wire lanes are big-endian int32; `lanes` pointers need no alignment. */
#pragma once

#include "base/base.h"

#define SML_BLOCK_ELEMS 256u /* the last one of an operation is shorter */

#define SML_CODE_ZERO 0
#define SML_CODE_MIN 27 /* smallest code that is not flushed: 2^-100 <= |x| */
#define SML_CODE_NONFINITE 255

/* Elements of floating point that kernels read and write. */
enum sml_elem { SML_ELEM_FLOAT32, SML_ELEM_FLOAT16, SML_ELEM_BFLOAT16 };

/* How unsigned numbers are combined; of 64 bits: two lanes, the upper one first. Products are modulo 2^32 or 2^64. A
 * number here is the byte of the header that says so (PROTOCOL.md, "Header"): wire:4, reducer:4. */
enum sml_combine {
  SML_COMBINE_SUM = 0,
  SML_COMBINE_MAX_8 = 0x11,
  SML_COMBINE_MAX_32 = 0x21,
  SML_COMBINE_MAX_64 = 0x31,
  SML_COMBINE_PRODUCT_32 = 0x24,
  SML_COMBINE_PRODUCT_64 = 0x34,
  SML_COMBINE_OR = 0x25
};

struct sml_quant_kernels {
  const char *name; /* "scalar", "avx2", "avx512", "neon" */
  /* Exponent code of in[0..num_elems). num_elems 0 gives 0. */
  uint8_t (*block_code)(const float *in, size_t num_elems);
  /* lanes[i] = be32(q(in[i])). code is the global code; 0 and 255 write zero lanes. */
  void (*quantize)(void *lanes, const float *in, size_t num_elems, uint8_t code, uint32_t world_size);
  /* lanes[i] = be32(int(lanes[i]) + q(in[i])), wrapping: one more rank's contribution in the same frame. */
  void (*quantize_add)(void *lanes, const float *in, size_t num_elems, uint8_t code, uint32_t world_size);
  /* out[i] = float(sum_i * 2^-k), or sum_i * 2^-k / world_size rounded once when `average`.
   * code 0 writes +0, code 255 writes the quiet NaN 0x7fc00000. */
  void (*dequantize)(float *out, const void *lanes, size_t num_elems, uint8_t code, uint32_t world_size, bool average);
  /* Blocks of all ranks, num_inputs of them (1..4096): out = what each would get from the network, bit for bit: for
   * each block the codes' maximum, then quantize, sum, dequantize. The last one may be shorter, and out one of the
   * inputs. */
  void (*reduce_floats)(float *out, const float *const *in, uint32_t num_inputs, size_t num_elems, bool average);
  /* The same for 16-bit types; and any type with two elements a lane (packed.h), in 2 .. SML_PACKED_MAX_RANKS ranks. */
  uint8_t (*block_code_16)(const void *in, size_t num_elems, enum sml_elem elem);
  void (*pack)(void *lanes, const void *in, size_t num_elems, enum sml_elem elem, uint8_t code, uint32_t world_size);
  void (*pack_add)(void *lanes, const void *in, size_t num_elems, enum sml_elem elem, uint8_t code,
                   uint32_t world_size);
  void (*unpack)(void *out, const void *lanes, size_t num_elems, enum sml_elem elem, uint8_t code, uint32_t world_size,
                 bool average);
  /* One block alone; out may be one of the inputs. */
  void (*reduce_packed)(void *out, const void *const *in, uint32_t num_inputs, size_t num_elems, enum sml_elem elem,
                        bool average);
  /* out[i] = in[i], a 16-bit type's, exactly; a NaN of float16 becomes quiet. */
  void (*widen)(float *out, const void *in, size_t num_elems, enum sml_elem elem);
  /* As dequantize, rounded once to a 16-bit type. */
  void (*dequantize_16)(void *out, const void *lanes, size_t num_elems, enum sml_elem elem, uint8_t code,
                        uint32_t world_size, bool average);
  /* int32 user data: copy with byte order; a wire lane is be32. */
  void (*pack_int32)(void *lanes, const int32_t *in, size_t num_elems);
  void (*pack_add_int32)(void *lanes, const int32_t *in, size_t num_elems); /* be32(int(lanes[i]) + in[i]) */
  void (*unpack_int32)(int32_t *out, const void *lanes, size_t num_elems);
  /* Aggregator: acc (host order, aligned 64) = or += lanes; result lanes = be32(acc). Wraps. */
  void (*set_int32)(int32_t *acc, const void *lanes, size_t num_elems);
  void (*add_int32)(int32_t *acc, const void *lanes, size_t num_elems);
  /* out[i] = sum of in[0..num_inputs)[i], wrapping. out may be one of the inputs. */
  void (*reduce_int32)(int32_t *out, const int32_t *const *in, uint32_t num_inputs, size_t num_elems);
  /* As add_int32, in another way (not SUM nor MAX_8). num_lanes is even where numbers have 64 bits. */
  void (*combine)(uint32_t *acc, const void *lanes, size_t num_lanes, enum sml_combine how);
  /* acc[i] = max(acc[i], in[i]) over bytes: exponent chunks, and images of one byte (images.h). */
  void (*max_uint8)(uint8_t *acc, const uint8_t *in, size_t num_bytes);
  /* Exact mode (exact.h), for a whole block, or NULL: the cells of 8 bits that elements use, true if that is all there
   * is to say; limbs of all elements, which are finite; and what is nearest to the sum of 1 or more limbs, each times
   * 2^exponent, which are at least 19 apart, and from -1022 to 991: a divisor-th (1 .. 4096) as an element of 32 or 16
   * bits, or a double. */
  bool (*exact_cells)(uint64_t *cells, const void *in, uint32_t fraction_bits);
  void (*exact_limbs)(int32_t *lanes, const void *in, const uint16_t *positions, uint32_t num_limbs, uint32_t limb_bits,
                      uint32_t fraction_bits);
  void (*exact_floats)(void *out, const int32_t *lanes, uint32_t num_limbs, const int32_t *exponents,
                       enum sml_elem elem, uint32_t divisor);
  void (*exact_doubles)(void *out, const int32_t *lanes, uint32_t num_limbs, const int32_t *exponents);
  /* Sum of r_i * lanes[i], modulo 2^32; the r_i are made with this multiplier (check.h). */
  uint32_t (*check_lanes)(const void *lanes, size_t num_elems, uint32_t multiplier);
};

extern const struct sml_quant_kernels sml_quant_scalar;
/* The best for this processor. force = a name of the above picks that one if the processor has it (NULL: no
 * preference). Never NULL. */
const struct sml_quant_kernels *sml_quant_select(const char *force);
