/* SPDX-License-Identifier: Apache-2.0
 * The slots of one lane, lent to jobs as windows: a power of two of slots, aligned to its size, so that
 * a switch can tell a job's window by a mask. A job with one-way windows has several in a row, aligned to the
 * next power of two of windows. First fit. Pure. */
#pragma once

#include "base/base.h"

#define SML_POOL_MAX_SLOTS 65536u /* the header's slot field has 16 bits */

struct sml_slot_pool {
  uint32_t num_slots;
  uint64_t used[SML_BITMAP_WORDS(SML_POOL_MAX_SLOTS)];
};

void sml_slot_pool_init(struct sml_slot_pool *pool, uint32_t num_slots);
/* num_slots: of each window, a power of two. False: so many windows in a row are not free; nothing changed. */
bool sml_slot_pool_take(struct sml_slot_pool *pool, uint32_t num_slots, uint32_t num_windows, uint16_t *base_out);
void sml_slot_pool_give(struct sml_slot_pool *pool, uint32_t num_slots, uint32_t num_windows, uint16_t base);
