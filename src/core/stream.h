/* SPDX-License-Identifier: Apache-2.0
 * How an operation becomes chunks: a pure function of (operation, lanes, chunk size), equal on every
 * rank (docs/PROTOCOL.md rules R50 to R55). Each lane gets one contiguous range of the tensor. Floats have *blocks* of
 * block_elems elements, counted from the operation's first element, whatever chunks they fall into. Ranges and groups
 * of chunks are whole blocks. So each block belongs to one group, and what other lanes write never changes its code. An
 * exponent chunk with a code for each block of a group goes before the group, lead_groups ahead (here: 1):
 *     E0 E1 D(0) E2 D(1) E3 D(2) ... D(last)
 * Integers and exact sums have data chunks only.
 *
 * In operations that go one way (docs/PROTOCOL.md "One-way windows") each contributor owns a part. The data are rows:
 * row k has chunk k of each part that is so long. A group is some rows. Its exponent chunks, lead_groups ahead, have
 * the codes of whole parts, one behind the other. A fence stands behind each few chunks, and at the range's end.
 * one_way_stream.c makes these ranges. */
#pragma once

#include "base/base.h"

#define SML_LEAST_ONE_WAY_SLOTS 8u /* of a lane: a stretch has at least a chunk and a fence */

/* What core must know about one operation. It is equal on all ranks. */
struct sml_operation_plan {
  uint64_t number;    /* in the job's order, from 0 */
  uint64_t num_elems; /* > 0 */
  uint64_t key;
  uint8_t type, reduction; /* enum sml_type and sml_reduction of the public header */
  uint16_t block_elems; /* floats in block fixed point: elements that share an exponent code, a power of two; else 0 */
  uint8_t elem_lanes;   /* int32 lanes of an element; 0 counts as 1 */
  uint8_t lane_elems;   /* elements of a lane: 2 or 4, and then elem_lanes is 0; 0 counts as 1 */
  uint8_t wire_reducer; /* wire type and reducer of data chunks, as in the header's byte; 0: int32 SUM */
  bool is_narrow;       /* each rank's lanes fit 28 bits; chunks that are whole rows travel so (quant/narrow.h) */
  bool has_wide_codes;  /* switch format: a code is a lane; else a byte */
  /* SML_REDUCE_TO_OWNER or SML_REDUCE_COPY: it goes one way, in a one-way window. COPY: an element is a byte. */
  uint8_t way;
  uint32_t num_parts;    /* one way: one for each contributor, its owner */
  const uint64_t *parts; /* [num_parts + 1] one way: where parts begin, and the last one's end. The caller keeps it
                          * until the operation has ended */
};

/* How many lanes the whole operation takes. */
static inline uint64_t sml_plan_lanes(const struct sml_operation_plan *plan) {
  return plan->lane_elems > 1 ? sml_div_ceil(plan->num_elems, plan->lane_elems)
                              : plan->num_elems * sml_max_u32(plan->elem_lanes, 1);
}

/* One lane's part: elements [first_elem, first_elem + num_elems), which may be empty. */
struct sml_range {
  uint64_t first_elem, num_elems;
  uint64_t num_data_chunks;
  uint32_t chunk_elems;  /* of a full data chunk */
  uint32_t elem_bytes;   /* on the wire; a chunk is filled up to a whole lane */
  uint32_t group_chunks; /* data chunks a full group: whole blocks */
  uint32_t lead_groups;  /* how far exponents are ahead of their data */
  uint32_t block_elems;  /* the plan's */
  uint32_t code_bytes;   /* of a code on the wire */
  uint32_t num_groups;   /* 0 without exponents */
  uint64_t num_blocks;   /* 0 without exponents */
  uint64_t num_chunks;   /* data and exponent chunks */
  /* One way: from the plan, except fence_chunks, how many chunks stand before each fence. */
  uint8_t way;
  uint32_t num_parts, lane, num_lanes, fence_chunks;
  uint32_t group_rows, most_codes; /* of a group; of an exponent chunk */
  uint64_t num_rows;
  const uint64_t *parts;
};

/* Where a walk over the parts of a group is. */
struct sml_walk {
  uint64_t row; /* the group's first */
  uint32_t part;
  uint32_t chunk;       /* the exponent chunk that has the part's codes */
  uint32_t chunk_codes; /* codes of that chunk before the part's */
  uint64_t codes;       /* codes of the range before the part's */
};

/* How far a range that goes one way is: its chunks are made in their order. */
struct sml_row {
  uint64_t chunk;        /* the row of the next data: this chunk of each part */
  struct sml_walk group; /* where the row's group begins */
  struct sml_walk data, exponents;
};
/* Ranges begin where a chunk does, or, with exponents, where a block does. A group has at least four windows of data
 * chunks or about 2 MiB of tensor, but no more blocks than an exponent chunk has codes. Where that is less than four
 * windows, exponents are more groups ahead, so that a lost exponent chunk does not stop the lane. */
void sml_range_make(struct sml_range *range_out, const struct sml_operation_plan *plan, uint32_t lane,
                    uint32_t num_lanes, uint32_t chunk_bytes, uint32_t num_slots);
/* How many bytes a range needs for its codes and ready bytes: at most two a block. */
size_t sml_stream_codes_bytes(const struct sml_range *range);

/* The position-th chunk of a range. */
struct sml_chunk {
  bool is_exponent;       /* an exponent chunk, or a fence, which has no codes */
  bool is_fence;          /* one way only, like owner */
  uint32_t owner;         /* of data that go one way; exponent: the part of its first code */
  uint32_t group;         /* if there are exponents; one way: the exponent chunk that has the chunk's codes */
  uint64_t first_elem;    /* data: in the whole tensor */
  uint32_t num_elems;     /* data: elements; exponent: codes */
  uint32_t payload_bytes; /* of its content; in switch format zeros follow in the packet */
  uint64_t data_chunk;    /* data: index in the range; exponent: index of the group's first; one way: its first row */
  uint64_t block;         /* index in the range of its first element's block; exponent: of its first code's block */
};
void sml_range_chunk(const struct sml_range *range, uint64_t position, struct sml_chunk *chunk_out);
/* The same for a range that goes one way. Ask for all positions in turn, with *row zero at first. */
void sml_range_one_way_chunk(const struct sml_range *range, uint64_t position, struct sml_row *row,
                             struct sml_chunk *chunk_out);
/* How many codes a part has in the group that begins with a row; *block_out: the tensor's block of the first one. */
uint32_t sml_range_codes(const struct sml_range *range, uint64_t row, uint32_t part, uint64_t *block_out);
/* Positions of a one-way window from fence to fence. Lanes share a link: the more they are, the less each may have
 * under way. */
static inline uint32_t sml_stretch(uint32_t num_slots, uint32_t num_lanes) {
  return sml_min_u32(num_slots / 4, sml_max_u32(num_slots / 4 / num_lanes, 8));
}
/* Makes what a range that goes one way has beside the fields that all have. */
void sml_range_make_one_way(struct sml_range *range, const struct sml_operation_plan *plan, uint32_t lane,
                            uint32_t num_lanes, uint32_t chunk_bytes, uint32_t num_slots);

/* 64-bit hash of the operation for tags; the tag of its position-th chunk. */
uint64_t sml_tag_base(const struct sml_operation_plan *plan, uint32_t chunk_bytes, uint32_t num_lanes);
uint32_t sml_tag(uint64_t tag_base, uint64_t position);
