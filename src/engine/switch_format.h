/* SPDX-License-Identifier: Apache-2.0
 * Payloads of jobs in switch format (docs/PROTOCOL.md rules R168 to R171): all of one length, exponent codes in lanes
 * of 32 bits. */
#pragma once

#include "base/base.h"

/* Codes as lanes. */
static inline void sml_switch_put_codes(uint8_t *payload, const uint8_t *codes, uint32_t num_codes) {
  for (uint32_t i = 0; i < num_codes; i++) sml_store_be32(payload + 4 * (size_t)i, codes[i]);
}

/* Lanes as codes. A value that is no code counts as 255, "not a number", so all ranks read it alike. */
static inline void sml_switch_take_codes(uint8_t *codes, const uint8_t *payload, uint32_t num_codes) {
  for (uint32_t i = 0; i < num_codes; i++)
    codes[i] = (uint8_t)sml_min_u32(sml_load_be32(payload + 4 * (size_t)i), UINT8_MAX);
}
