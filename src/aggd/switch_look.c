/* SPDX-License-Identifier: Apache-2.0 */
#include "aggd/switch_look.h"

void sml_switch_look(const uint32_t *words, uint32_t num_slots, uint32_t num_contributors, struct sml_job_look *look,
                     uint32_t *missing) {
  const uint32_t all = (UINT32_C(1) << num_contributors) - 1;
  for (uint32_t cell = 0; cell < 2 * num_slots; cell++) {
    const uint32_t ranks = words[cell] & all;
    uint32_t count = 0;
    if (ranks == 0 || ranks == all) continue;
    for (uint32_t left = ranks; left != 0; left &= left - 1) count++;
    if (look->slots_waiting == 0 || count < look->least_contributions) {
      look->least_contributions = count;
      look->waiting_slot = cell / 2;
    }
    look->most_contributions = sml_max_u32(look->most_contributions, count);
    look->slots_waiting++;
    for (uint32_t left = all & ~ranks; left != 0; left &= left - 1) missing[__builtin_ctz(left)]++;
  }
}
