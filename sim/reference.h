/* SPDX-License-Identifier: Apache-2.0
 * What sums must be, bit for bit: written from docs/PROTOCOL.md "Numbers" alone, with none of the product's
 * code; slow and plain. And the tensors that are summed, a pure function of where they are. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sim_data_kind {
  SIM_DATA_PLAIN,    /* like gradients; any bits for int32 */
  SIM_DATA_WIDE,     /* all exponents */
  SIM_DATA_TINY,     /* zeros, subnormals, around 2^-100 */
  SIM_DATA_HUGE,     /* the sum may overflow */
  SIM_DATA_SPECIAL,  /* some Inf and NaN */
  SIM_DATA_ONE_RANK, /* zeros but on one rank */
  SIM_NUM_DATA_KINDS
};

/* Tensors are counted in words of 32 bits: a word is an element, or two of 16 bits, or half of one of 64. */
enum sim_elem { SIM_INT32, SIM_FLOAT32, SIM_INT64, SIM_FLOAT16, SIM_BFLOAT16, SIM_UINT8 };

/* As tags have them. */
enum sim_reduction { SIM_SUM, SIM_AVG, SIM_MIN, SIM_MAX, SIM_PRODUCT, SIM_BAND, SIM_BOR, SIM_LAND, SIM_LOR };

struct sim_tensor {
  uint64_t seed; /* of the operation */
  uint8_t kind;  /* enum sim_data_kind */
  enum sim_elem elem;
};
/* Words first .. first + count - 1 of a rank's tensor. */
void sim_tensor_fill(const struct sim_tensor *t, uint32_t rank, uint64_t first, uint64_t count, uint32_t *bits_out);

/* One block of `count` words: ranks[rank * count + i]. */
void sim_sum_block(const uint32_t *ranks, uint32_t world_size, uint64_t count, enum sim_elem elem, bool is_average,
                   uint32_t *bits_out);

/* The same of a small operation of floats: exact sums. */
void sim_sum_small(const uint32_t *ranks, uint32_t world_size, uint64_t count, enum sim_elem elem, bool is_average,
                   uint32_t *bits_out);

/* MIN and those behind it, of int32, int64, uint8 and float32; and sums of uint8. */
void sim_reduce_words(const uint32_t *ranks, uint32_t world_size, uint64_t count, enum sim_elem elem,
                      enum sim_reduction reduction, uint32_t *bits_out);

#define SIM_BLOCK_WORDS 256u /* of floats of 16 bits half as many: a block is that many elements */

struct sim_sum {
  struct sim_tensor tensor;
  uint64_t count;
  uint32_t world_size;
  bool is_average;
  bool is_exact;                /* in exact mode */
  enum sim_reduction reduction; /* of what is no sum: MIN and those behind it */
};
/* scratch: world_size * SIM_BLOCK_WORDS words. */
void sim_sum_make(const struct sim_sum *sum, uint32_t *bits_out, uint32_t *scratch);
