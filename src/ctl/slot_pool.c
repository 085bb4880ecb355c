/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/slot_pool.h"

void sml_slot_pool_init(struct sml_slot_pool *pool, uint32_t num_slots) {
  SML_ASSERT(num_slots >= 1 && num_slots <= SML_POOL_MAX_SLOTS);
  memset(pool, 0, sizeof *pool);
  pool->num_slots = num_slots;
}

/* The bits of a window within word i of the bitmap; a window is inside one word or made of whole ones. */
static uint64_t window_mask(uint32_t num_slots, uint32_t base) {
  return num_slots >= 64 ? UINT64_MAX : ((UINT64_C(1) << num_slots) - 1) << (base % 64);
}

static bool is_free(const struct sml_slot_pool *pool, uint32_t num_slots, uint32_t base) {
  uint64_t mask = window_mask(num_slots, base);
  for (uint32_t slot = base; slot < base + num_slots; slot += 64)
    if (pool->used[slot / 64] & mask) return false;
  return true;
}

static bool are_free(const struct sml_slot_pool *pool, uint32_t num_slots, uint32_t num_windows, uint32_t base) {
  for (uint32_t i = 0; i < num_windows; i++)
    if (!is_free(pool, num_slots, base + i * num_slots)) return false;
  return true;
}

bool sml_slot_pool_take(struct sml_slot_pool *pool, uint32_t num_slots, uint32_t num_windows, uint16_t *base_out) {
  SML_ASSERT(sml_is_pow2(num_slots) && num_windows >= 1);
  const uint32_t step = num_slots << sml_ceil_log2(num_windows);
  for (uint32_t base = 0; base + num_windows * num_slots <= pool->num_slots; base += step) {
    if (!are_free(pool, num_slots, num_windows, base)) continue;
    for (uint32_t i = 0; i < num_windows; i++) {
      const uint32_t first = base + i * num_slots;
      uint64_t mask = window_mask(num_slots, first);
      for (uint32_t slot = first; slot < first + num_slots; slot += 64) pool->used[slot / 64] |= mask;
    }
    *base_out = (uint16_t)base;
    return true;
  }
  return false;
}

void sml_slot_pool_give(struct sml_slot_pool *pool, uint32_t num_slots, uint32_t num_windows, uint16_t base) {
  for (uint32_t i = 0; i < num_windows; i++) {
    const uint32_t first = base + i * num_slots;
    uint64_t mask = window_mask(num_slots, first);
    for (uint32_t slot = first; slot < first + num_slots; slot += 64) {
      SML_ASSERT((pool->used[slot / 64] & mask) == mask);
      pool->used[slot / 64] &= ~mask;
    }
  }
}
