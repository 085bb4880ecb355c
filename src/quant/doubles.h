/* SPDX-License-Identifier: Apache-2.0
 * float64 in block fixed point of two or three lanes an element (PROTOCOL.md rules R71 to R73). Its exponents have 11
 * bits, codes 8: code c (1 .. 253) is that of blocks whose largest |x| is below 2^e, e = 8 c - 999, and not below
 * 2^(e - 8); 0: below 2^-999, which is flushed; 255: an Inf or NaN. With P lanes of b = 31 - ceil(log2 n) bits,
 *   q = round_to_nearest_even(x * 2^(P b - e)), |q| < 2^(P b)
 * in two's complement of P limbs, least first: the last one has the sign, the others are 0 .. 2^b - 1. n limbs fit an
 * int32. Integers only; private to this folder but for format.h's use. */
#pragma once

#include "quant/quant.h"
#include "quant/wide.h"

uint8_t sml_doubles_block_code(const void *in, size_t num_elems);
void sml_doubles_add(void *lanes, const void *in, size_t num_elems, uint32_t num_lanes, uint8_t code,
                     uint32_t world_size);
void sml_doubles_get(void *out, const void *lanes, size_t num_elems, uint32_t num_lanes, uint8_t code,
                     uint32_t world_size, bool average);
void sml_doubles_reduce(void *out, const void *const *in, uint32_t num_inputs, size_t num_elems, uint32_t num_lanes,
                        bool average);

/* Bits of q, and the exponent of its unit. */
uint32_t sml_doubles_bits(uint32_t num_lanes, uint32_t world_size);
int32_t sml_doubles_unit(uint32_t num_lanes, uint8_t code, uint32_t world_size);

/* The bits, without the sign, of the double nearest to value * 2^unit / divisor, and a little more if has_more; value >
 * 0. has_more: value has 67 bits or more beside the divisor's. */
uint64_t sml_doubles_round(sml_uint128 value, int32_t unit, uint32_t divisor, bool has_more);
