/* SPDX-License-Identifier: Apache-2.0
 * Reductions that are no sums: minima, maxima, products of integers, bits and truth (docs/PROTOCOL.md, "Other
 * reductions"). An element travels as its *image*, an unsigned number. Images are combined in one of a few ways
 * (enum sml_combine), and the result's image is turned back. All of it is independent of order, and the same on every
 * machine. Pointers need no alignment. */
#pragma once

#include "quant/format.h"

/* How an operation travels that is offered; sums: as sml_format_choose(). Floats have minima and maxima only. */
struct sml_format_shape sml_images_shape(uint32_t type, uint32_t reduction, uint64_t num_elems, uint32_t world_size,
                                         struct sml_format_options options);

struct sml_images {
  uint32_t type, reduction;
  uint32_t unit_bytes; /* of an image: 1, 4 or 8 */
};
static inline struct sml_images sml_images_of(uint32_t type, uint32_t reduction, struct sml_format_shape shape) {
  const uint32_t unit_bytes = shape.lane_elems == 4 ? 1 : shape.elem_lanes == 2 ? 8 : 4;
  return (struct sml_images){.type = type, .reduction = reduction, .unit_bytes = unit_bytes};
}

/* As those of struct sml_format. Images of one byte fill a whole lane, the last with zeros. */
void sml_images_put(void *lanes, const void *in, size_t num_elems, struct sml_images images);
void sml_images_add(const struct sml_quant_kernels *k, void *lanes, const void *in, size_t num_elems,
                    struct sml_images images);
void sml_images_get(void *out, const void *lanes, size_t num_elems, struct sml_images images);
/* out may be one of the inputs. */
void sml_images_reduce(const struct sml_quant_kernels *k, void *out, const void *const *in, uint32_t num_inputs,
                       size_t num_elems, struct sml_images images);

/* lanes = what they and others combine to; both as on the wire, a whole number of lanes. */
void sml_images_combine(const struct sml_quant_kernels *k, void *lanes, const void *others, size_t num_lanes,
                        enum sml_combine how);
