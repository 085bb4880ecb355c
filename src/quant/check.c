/* SPDX-License-Identifier: Apache-2.0 */
#include "quant/check.h"

/* sml_check_mix((i + 1) * SML_CHECK_STEP) | 1, so that no kernel has to make them. */
const uint32_t sml_check_table[SML_CHECK_BLOCK] = {
    0x01fce553, 0x04f8d29f, 0x0f8c1dbd, 0x6ba5a157, 0x057fb7f9, 0x5ea4fb47, 0x9173a5e3, 0x60f3d8cb,
    0x230f7b09, 0x58153d19, 0x6d1bbecd, 0x33eb7619, 0xdda2c155, 0xd5d0bcf3, 0xd482d0db, 0x2ca6a5bd,
    0x43afce97, 0x7208ef13, 0xe4d220bb, 0xcb21c4c7, 0x6171fc91, 0xf12efa41, 0x4e0d6017, 0xfdcffdcd,
    0xabce4b63, 0x085a31b7, 0x9b69cb77, 0xfc3ae9a3, 0x00d58983, 0x7a86d5bd, 0xfdaa601d, 0xa9153479,
    0x12a6f313, 0x664ed421, 0x47df0a1f, 0x9792176f, 0x49fa65a3, 0xc7a6edf5, 0xf527ffc1, 0x7189fdcf,
    0x2375f98d, 0x05d6dfb5, 0x2b0ba0eb, 0xe40ab6eb, 0x0902c43b, 0x8691220d, 0xac5e64b1, 0x36d0faff,
    0x435a3d85, 0x69f56297, 0x8d4559ab, 0x10b4636d, 0x6840e993, 0xc5434f89, 0x988a5f57, 0xf874d345,
    0x979c5a4b, 0x721adcf3, 0x7adcc79f, 0x65596d4b, 0x2e3a98c5, 0xe498ac43, 0x6eaddc13, 0xe9c234c1,
};

struct sml_check sml_check_make(uint32_t epoch, uint32_t tag, const uint8_t *codes, uint32_t num_codes) {
  uint64_t all_codes = 0;
  for (uint32_t i = 0; i < num_codes; i++) all_codes = all_codes * UINT64_C(0xd6e8feb86659fd93) + codes[i];
  const uint64_t seed = sml_mix64(((uint64_t)epoch << 32 | tag) ^ UINT64_C(0x63686b53774d4c01)) + all_codes;
  const uint64_t first = sml_mix64(seed), second = sml_mix64(seed + UINT64_C(0x9e3779b97f4a7c15));
  return (struct sml_check){
      .multiplier = ((uint32_t)first & ~UINT32_C(7)) | 5, .a = (uint32_t)(first >> 32), .b = (uint32_t)second | 1};
}

uint32_t sml_check_rank(uint32_t rank) {
  return sml_check_mix(rank + SML_CHECK_STEP);
}

uint32_t sml_check_ranks(uint32_t world_size) {
  uint32_t sum = 0;
  for (uint32_t rank = 0; rank < world_size; rank++) sum += sml_check_rank(rank);
  return sum;
}
