/* SPDX-License-Identifier: Apache-2.0
 * How the elements of an operation become int32 lanes and back, for every type (docs/PROTOCOL.md "Numbers"): which
 * format an operation has is a pure function of what is equal on all ranks, and the rest of the library knows a format
 * by this table alone. All functions give the same bits on every machine. Pointers need no alignment. */
#pragma once

#include "quant/narrow.h"
#include "quant/quant.h"

/* As in the public header, both. */
enum sml_format_type {
  SML_FORMAT_FLOAT32,
  SML_FORMAT_INT32,
  SML_FORMAT_FLOAT16,
  SML_FORMAT_BFLOAT16,
  SML_FORMAT_FLOAT64,
  SML_FORMAT_INT64,
  SML_FORMAT_INT8,
  SML_FORMAT_UINT8,
  SML_FORMAT_UINT32,
  SML_FORMAT_UINT64,
  SML_NUM_FORMAT_TYPES
};

enum sml_format_reduction {
  SML_FORMAT_SUM,
  SML_FORMAT_AVG,
  SML_FORMAT_MIN,
  SML_FORMAT_MAX,
  SML_FORMAT_PRODUCT,
  SML_FORMAT_BAND,
  SML_FORMAT_BOR,
  SML_FORMAT_LAND,
  SML_FORMAT_LOR,
  SML_NUM_FORMAT_REDUCTIONS
};

/* What a job's ranks have agreed on. */
struct sml_format_options {
  uint8_t float_bits;   /* of lanes, for float16, bfloat16 and float32: 16, 32, or 0: by type */
  uint8_t float64_bits; /* 64, 96, or 0: float64 is offered only where it is summed exactly */
  /* The size of the job's chunks: a switch's have no room for an element of an exact sum of float64. 0: any size. */
  uint32_t chunk_bytes;
  bool is_of_switch, is_checked;
};

/* What streams and tags must know of a format. */
struct sml_format_shape {
  bool has_exponents;
  uint8_t elem_lanes; /* lanes of an element, where they are more than 1; else 0 */
  uint8_t lane_elems; /* elements of a lane, where they are more than 1; else 0 */
  uint8_t combine;    /* enum sml_combine; not SUM: images travel (images.h), whatever struct sml_format does */
};

struct sml_format {
  uint8_t elem_bytes; /* in memory */
  uint8_t unit_bytes; /* with exponents: of its lanes */
  /* The code of a block's exponent; NULL for formats without exponents. */
  uint8_t (*block_code)(const struct sml_quant_kernels *k, const void *in, size_t num_elems);
  /* lanes = in, as a contribution to the sum of world_size ranks (2 .. 4096); add: lanes += in. */
  void (*put)(const struct sml_quant_kernels *k, void *lanes, const void *in, size_t num_elems, uint8_t code,
              uint32_t world_size);
  void (*add)(const struct sml_quant_kernels *k, void *lanes, const void *in, size_t num_elems, uint8_t code,
              uint32_t world_size);
  void (*get)(const struct sml_quant_kernels *k, void *out, const void *lanes, size_t num_elems, uint8_t code,
              uint32_t world_size, bool average);
  bool reduces_blocks; /* `reduce` takes any number of them, of which the last may be shorter */
  /* One block (without exponents: anything) of all ranks: what each gets from the network, bit for bit. out may be one
   * of the inputs. */
  void (*reduce)(const struct sml_quant_kernels *k, void *out, const void *const *in, uint32_t num_inputs,
                 size_t num_elems, bool average);
};

/* Bytes of an element in memory; of a type that there is. */
uint32_t sml_format_elem_bytes(uint32_t type);
bool sml_format_is_float(uint32_t type);
/* Whether an operation of float64 is offered: short ones, which are exact, and others if float64_bits is not 0. */
bool sml_format_has_doubles(uint64_t num_elems, uint32_t world_size, struct sml_format_options options);
/* The format of a sum, which is offered. */
struct sml_format_shape sml_format_choose(uint32_t type, uint64_t num_elems, uint32_t world_size,
                                          struct sml_format_options options);

enum { SML_SHAPE_EXACT, SML_SHAPE_WIDE, SML_SHAPE_PACKED, SML_SHAPE_LONG, SML_NUM_SHAPES };
extern const struct sml_format sml_formats[SML_NUM_FORMAT_TYPES][SML_NUM_SHAPES] __attribute__((visibility("hidden")));

/* Here, as it is asked for each chunk. */
static inline const struct sml_format *sml_format_find(uint32_t type, struct sml_format_shape shape) {
  const struct sml_format *of_type = sml_formats[type];
  SML_ASSERT(type < SML_NUM_FORMAT_TYPES);
  if (shape.combine != SML_COMBINE_SUM) return &of_type[SML_SHAPE_EXACT]; /* for elem_bytes alone */
  if (!shape.has_exponents && shape.lane_elems == 0) return &of_type[SML_SHAPE_EXACT];
  if (shape.lane_elems > 1) return &of_type[SML_SHAPE_PACKED];
  return &of_type[shape.elem_lanes > 2 ? SML_SHAPE_LONG : SML_SHAPE_WIDE];
}

/* Whether each rank's lanes are in the range of narrow updates (quant/narrow.h): a float's digits are fewer than those
 * of its share, so that rounding never reaches the share's limit, 2^27 from 5 ranks on. */
static inline bool sml_format_is_narrow(struct sml_format_shape shape, uint32_t world_size) {
  return shape.has_exponents && shape.elem_lanes == 0 && shape.lane_elems == 0 && world_size >= SML_NARROW_MIN_RANKS;
}

/* A bound on |result - exact sum or average| of one element of a block with this code (0 without exponents): half a
 * unit of the fixed point a rank (one, if the type has more digits than the lanes: the largest elements are cut), and
 * half a unit in the last place of the result. Infinite if the result is no number. */
double sml_format_error_bound(uint32_t type, struct sml_format_shape shape, uint8_t code, uint32_t world_size,
                              bool average, double result);
