/* SPDX-License-Identifier: Apache-2.0 */
#include "quant/check.h"

struct sml_check sml_check_make(uint32_t epoch, uint32_t tag, uint8_t code) {
  const uint64_t seed = sml_mix64(((uint64_t)epoch << 32 | tag) ^ UINT64_C(0x63686b53774d4c01)) + code;
  const uint64_t first = sml_mix64(seed), second = sml_mix64(seed + UINT64_C(0x9e3779b97f4a7c15));
  return (struct sml_check){.seed = (uint32_t)first, .a = (uint32_t)(first >> 32), .b = (uint32_t)second | 1};
}

uint32_t sml_check_rank(uint32_t rank) {
  return sml_check_mix(rank + SML_CHECK_STEP);
}

uint32_t sml_check_ranks(uint32_t world_size) {
  uint32_t sum = 0;
  for (uint32_t rank = 0; rank < world_size; rank++) sum += sml_check_rank(rank);
  return sum;
}
