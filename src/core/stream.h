/* SPDX-License-Identifier: Apache-2.0
 * How an operation becomes chunks: a pure function of (operation, lanes, chunk size), equal on every
 * rank (docs/PROTOCOL.md rules R50 to R55). Each lane gets one contiguous range of the tensor. For floats the
 * range's chunks come in groups, each preceded, one group ahead, by an exponent chunk:
 *     E0 E1 D(0) E2 D(1) E3 D(2) ... D(last)
 * where Eg carries one exponent code a data chunk of group g. Integers and exact sums have data chunks only. */
#ifndef SML_CORE_STREAM_H
#define SML_CORE_STREAM_H

#include "base/base.h"

/* What core must know of one operation; equal on all ranks but for nothing. */
struct sml_operation_plan {
  uint64_t number;    /* in the job's order, from 0 */
  uint64_t num_elems; /* > 0 */
  uint64_t key;
  uint8_t type;       /* enum sml_type of the public header */
  uint8_t reduction;
  bool has_exponents; /* floats in block fixed point */
  uint8_t elem_lanes; /* int32 lanes of an element; 0 counts as 1 */
  uint8_t lane_elems; /* elements of a lane: 2, and then elem_lanes is 0; 0 counts as 1 */
  bool is_narrow;     /* each rank's lanes fit 28 bits, and travel so (quant/narrow.h) where whole rows do */
  /* Switch format: data chunks that share an exponent code, and codes are lanes (sml_switch_block_chunks()).
   * 0: ordinary format, a code a chunk, each a byte. With exponents only. */
  uint16_t block_chunks;
};

/* Lanes that all of it takes. */
static inline uint64_t sml_plan_lanes(const struct sml_operation_plan *plan) {
  return plan->lane_elems > 1 ? sml_div_ceil(plan->num_elems, plan->lane_elems)
                              : plan->num_elems * sml_max_u32(plan->elem_lanes, 1);
}

/* One lane's part: elements [first_elem, first_elem + num_elems), which may be empty. */
struct sml_range {
  uint64_t first_elem, num_elems;
  uint64_t num_data_chunks;
  uint32_t chunk_elems;      /* of a full data chunk */
  uint32_t elem_bytes;       /* on the wire; a chunk is filled up to a whole lane */
  uint32_t group_chunks;     /* data chunks a full group */
  uint32_t block_chunks;     /* data chunks that share an exponent code */
  uint32_t code_bytes;       /* of one on the wire */
  uint32_t num_groups;       /* 0 without exponents */
  uint64_t num_chunks;       /* data and exponent chunks */
};
/* group_chunks: sml_group_chunks(), in switch format what one exponent chunk has codes for. Ranges are multiples of
 * chunk_elems, and of whole blocks, but for the last. */
void sml_range_make(struct sml_range *range_out, const struct sml_operation_plan *plan, uint32_t lane,
                    uint32_t num_lanes, uint32_t chunk_bytes, uint32_t num_slots);
/* Exponent codes a group: at least four windows of data chunks, about 2 MiB of tensor, at most what a
 * chunk holds. */
uint32_t sml_group_chunks(uint32_t chunk_bytes, uint32_t num_slots);
/* Switch format with so many lanes a packet: a switch's packets are short, and blocks as short as they would cost
 * both lanes and round trips. */
uint32_t sml_switch_block_chunks(uint32_t packet_lanes);
/* Bytes for codes and ready bytes of a range. */
size_t sml_stream_codes_bytes(const struct sml_range *range);

/* The position-th chunk of a range. */
struct sml_chunk {
  bool is_exponent;
  uint32_t group;         /* of chunks with exponents */
  uint64_t first_elem;    /* data: in the whole tensor */
  uint32_t num_elems;     /* data: elements; exponent: codes */
  uint64_t data_chunk;    /* data: index in the range; exponent: index of the group's first */
  uint64_t block;         /* data: index of its code in the range; exponent: of its first code */
  uint32_t payload_bytes; /* of what is in it; in switch format a packet has zeros behind that */
};
void sml_range_chunk(const struct sml_range *range, uint64_t position, struct sml_chunk *chunk_out);

/* 64-bit hash of the operation for tags; the tag of its position-th chunk. */
uint64_t sml_tag_base(const struct sml_operation_plan *plan, uint32_t chunk_bytes, uint32_t num_lanes);
uint32_t sml_tag(uint64_t tag_base, uint64_t position);

#endif
