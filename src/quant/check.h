/* SPDX-License-Identifier: Apache-2.0
 * The check word: one more int32 lane, with which a worker sees whether a sum is that of one contribution of each
 * rank (docs/PROTOCOL.md rules R77 and R78). Rank w sends
 *   c_w = sum_k r_k * x_wk + a + b * h(w)   (mod 2^32)
 * which the aggregator sums like any lane, and the result must have sum_k r_k * X_k + n * a + b * H(n), where
 * H(n) = h(0) + .. + h(n - 1). All r_k and b are odd; m, a and b depend on epoch, tag and exponent codes; h is a
 * fixed hash, so that no other multiset of n ranks has the sum H(n). Pure. It finds faults; it is no MAC. */
#pragma once

#include "quant/quant.h"

#define SML_CHECK_STEP UINT32_C(0x9e3779b9)
#define SML_CHECK_MULTIPLIER_1 UINT32_C(0x7feb352d)
#define SML_CHECK_MULTIPLIER_2 UINT32_C(0x846ca68b)

/* A bijection of 32 bits that spreads each of them (after Wellons, "Prospecting for Hash Functions", 2018). */
static inline uint32_t sml_check_mix(uint32_t x) {
  x = (x ^ x >> 16) * SML_CHECK_MULTIPLIER_1;
  x = (x ^ x >> 15) * SML_CHECK_MULTIPLIER_2;
  return x ^ x >> 16;
}

/* r_k = t_(k mod 64) * m^(k / 64). The t are fixed and all odd; m, the chunk's multiplier, is 5 modulo 8, so that its
 * powers return late. All r_k are odd, so a single wrong lane always shows, and one costs one multiplication. */
#define SML_CHECK_BLOCK 64u
extern const uint32_t sml_check_table[SML_CHECK_BLOCK] __attribute__((visibility("hidden")));

/* What a chunk's check words depend on. codes: of the blocks that it has elements of, in order. */
struct sml_check {
  uint32_t multiplier; /* m of the r_k */
  uint32_t a, b;
};
struct sml_check sml_check_make(uint32_t epoch, uint32_t tag, const uint8_t *codes, uint32_t num_codes);

uint32_t sml_check_rank(uint32_t rank);        /* h(rank) */
uint32_t sml_check_ranks(uint32_t world_size); /* H(world_size) */

/* The check word of the sum of num_ranks contributions; ranks is the sum of their h. */
static inline uint32_t sml_check_word(const struct sml_quant_kernels *kernels, const struct sml_check *check,
                                      const void *lanes, size_t num_elems, uint32_t num_ranks, uint32_t ranks) {
  return kernels->check_lanes(lanes, num_elems, check->multiplier) + num_ranks * check->a + check->b * ranks;
}
