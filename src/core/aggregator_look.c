/* SPDX-License-Identifier: Apache-2.0
 * What a slot holds, for people who ask. */
#include "core/aggregator_internal.h"

struct sml_slot_look sml_aggregator_look(const struct sml_aggregator *a, uint32_t slot) {
  SML_ASSERT(slot < a->options.num_slots);
  const struct cell *even = &a->cells[2 * slot], *odd = even + 1;
  const struct cell *newer = odd->phase > even->phase ? odd : even;
  struct sml_slot_look look = {.state = SML_SLOT_UNUSED, .phase = newer->phase, .count = newer->count};
  if (newer->phase != 0)
    look.state = sml_aggregator_is_complete(a, newer) ? SML_SLOT_COMPLETE : SML_SLOT_WAITING;
  return look;
}
