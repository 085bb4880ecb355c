/* SPDX-License-Identifier: Apache-2.0
 * The exact format of small float32 operations (docs/PROTOCOL.md rules R74 to R76): every float is a fixed-point number
 * of 277 bits, cut into limbs of 31 - ceil(log2 n) bits, each an int32 lane with the float's sign. n of them are
 * added without overflow, by an aggregator that knows of no limbs, and the exact sum is rounded once. One round
 * instead of two, for 11 to 16 lanes an element. One more lane counts what has no fixed point: its low half +Inf, its
 * high half -Inf, both NaN. Pure; integer arithmetic on bits only. Lanes are big-endian and need no alignment. */
#pragma once

#include "base/base.h"

/* Up to so many elements it is the format of float32 operations. Beyond, more bytes cost more than the second round. */
#define SML_LIMBS_MAX_ELEMS 128u

#define SML_LIMBS_MAX_PER_ELEM 16u /* lanes */

/* Whether an operation is summed exactly: a pure function of what is equal on all ranks. */
static inline bool sml_limbs_is_exact(uint64_t num_elems, uint32_t world_size) {
  return num_elems > 0 && num_elems <= SML_LIMBS_MAX_ELEMS && world_size > 1;
}

/* Lanes an element takes, for 2 .. 4096 ranks. */
uint32_t sml_limbs_per_elem(uint32_t world_size);

/* lanes[i * per_elem ..] = in[i], as a contribution to the sum of world_size ranks. */
void sml_limbs_put(void *lanes, const float *in, size_t num_elems, uint32_t world_size);
/* Adds another rank's contribution to lanes. */
void sml_limbs_add(void *lanes, const float *in, size_t num_elems, uint32_t world_size);
/* out[i] = the sum, or a world_size-th of it, rounded once to nearest even; an exact 0 is +0. A NaN, or Infs of
 * both signs, give the quiet NaN 0x7fc00000. Any lanes are legal. */
void sml_limbs_round(float *out, const void *lanes, size_t num_elems, uint32_t world_size, bool average);

/* The same, but what is not exact is rounded to the neighbour whose last bit is 1: rounded again, to two bits less or
 * still fewer, it is what one rounding would have given (Boldo and Melquiond, "Emulation of a FMA", 2008). */
void sml_limbs_round_to_odd(float *out, const void *lanes, size_t num_elems, uint32_t world_size, bool average);

/* out[i] = what num_inputs ranks get from the network for in[0 .. num_inputs - 1][i], bit for bit; out may be one of
 * them. 1 <= num_inputs <= 4096. */
void sml_limbs_reduce(float *out, const float *const *in, uint32_t num_inputs, size_t num_elems, bool average);
