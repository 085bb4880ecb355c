/* SPDX-License-Identifier: Apache-2.0
 * The exact format of small float64 operations (docs/PROTOCOL.md rules R178 to R181), as limbs.h has it for float32:
 * every double is a fixed-point number of 2098 bits, cut into limbs of 31 - ceil(log2 n) bits, each an int32 lane with
 * the double's sign. The exact sum of n of them is rounded once. 72 lanes an element with 2 ranks, 113 with 4096. Two
 * more lanes than limbs: one counts negative zeros, since a sum of nothing else is -0; the last is that of limbs.h, for
 * what has no fixed point. Pure; integer arithmetic on bits only. Lanes are big-endian and need no alignment. */
#pragma once

#include "base/base.h"

#define SML_DOUBLE_LIMBS_MAX_PER_ELEM 113u /* lanes */

/* Lanes an element takes, for 2 .. 4096 ranks. */
uint32_t sml_double_limbs_per_elem(uint32_t world_size);

/* Elements are doubles at any address. lanes[i * per_elem ..] = in[i], as a contribution to the sum of world_size
 * ranks; add: another rank's. */
void sml_double_limbs_put(void *lanes, const void *in, size_t num_elems, uint32_t world_size);
void sml_double_limbs_add(void *lanes, const void *in, size_t num_elems, uint32_t world_size);
/* out[i] = the sum, or a world_size-th of it, rounded once to nearest even. An exact 0 is +0, but for -0 of all ranks.
 * A NaN, or Infs of both signs, give the quiet NaN 0x7ff8 << 48. Any lanes are legal. */
void sml_double_limbs_round(void *out, const void *lanes, size_t num_elems, uint32_t world_size, bool average);

/* out[i] = what num_inputs ranks get from the network for in[0 .. num_inputs - 1][i], bit for bit; out may be one of
 * them. 1 <= num_inputs <= 4096. */
void sml_double_limbs_reduce(void *out, const void *const *in, uint32_t num_inputs, size_t num_elems, bool average);
