/* SPDX-License-Identifier: Apache-2.0
 * Exact sums of any length (docs/PROTOCOL.md section 6, "Exact mode"): every float is a fixed-point number of its
 * type's whole range, as in limbs.h, but only those limbs of a block travel that some rank has bits in. Which, ranks
 * find by a sum of its own, of *codes*: the range is cut into cells, and for each cell a code has a field, in which as
 * many ones meet as there are ranks that use it. From the sums follows the *layout* of a block: a limb begins where the
 * first bit that is not covered yet may be. Behind the limbs may come two lanes that count: Infs and NaNs; and, of
 * float64, zeros with a minus, so that a sum of nothing else is one.
 * All lanes are int32 in the order of the host, summed modulo 2^32. Integers alone: no mode of the processor has a say.
 * Pure. Tensors need no alignment. */
#pragma once

#include "quant/fixed.h"
#include "quant/format.h"

#define SML_EXACT_MAX_LIMBS 112u /* float64 among 4096 ranks: 2098 bits in limbs of 19 */

/* How elements of a type are summed among ranks: equal on all of them. */
struct sml_exact {
  const struct sml_quant_kernels *kernels;
  struct sml_float_layout floats;
  uint32_t type, elem_bytes, world_size;
  uint32_t limb_bits;
  uint32_t cell_log2, num_cells;
  uint32_t num_fields, field_bits, fields_per_lane; /* a field a cell, then of what is counted */
  uint32_t code_lanes;                              /* of a block */
};
/* type: of floats. 2 .. 4096 ranks. */
void sml_exact_init(struct sml_exact *exact_out, uint32_t type, uint32_t world_size,
                    const struct sml_quant_kernels *kernels);

/* One block's, up to SML_BLOCK_ELEMS elements. */
void sml_exact_code(const struct sml_exact *e, int32_t *codes, const void *in, size_t num_elems);

struct sml_exact_layout {
  uint32_t num_limbs, num_lanes; /* of an element */
  bool counts_specials, counts_zeros;
  uint16_t positions[SML_EXACT_MAX_LIMBS]; /* of a limb's last bit; ascending, limb_bits apart at least */
};
/* codes: the sums. Any are legal. */
void sml_exact_lay_out(const struct sml_exact *e, struct sml_exact_layout *layout_out, const int32_t *codes);
/* lanes[l * num_elems + i]: element i's lane l. */
void sml_exact_put(const struct sml_exact *e, const struct sml_exact_layout *layout, int32_t *lanes, const void *in,
                   size_t num_elems);
/* out = the sums, or a world_size-th of them, rounded once to nearest even. Any lanes are legal. */
void sml_exact_round(const struct sml_exact *e, const struct sml_exact_layout *layout, void *out, const int32_t *lanes,
                     size_t num_elems, bool average);
/* out = what world_size ranks get for this block of theirs, in[0 .. world_size - 1]; it may be one of them. False: it
 * takes many lanes, and nothing was done. */
bool sml_exact_reduce(const struct sml_exact *e, void *out, const void *const *in, size_t num_elems, bool average);
