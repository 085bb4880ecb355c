/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/recorder_set.h"

#include <stdlib.h>

bool sml_recorder_set_open(struct sml_recorder_set *set, const struct sml_recorder_options *options,
                           uint32_t num_numbers, uint32_t max_used) {
  *set = (struct sml_recorder_set){.options = *options, .max_used = max_used};
  if (options->level == SML_TRACE_OFF || options->num_events == 0) return true;
  set->all = calloc(num_numbers, sizeof *set->all);
  if (set->all == NULL) return false;
  set->num_numbers = num_numbers;
  return true;
}

void sml_recorder_set_close(struct sml_recorder_set *set) {
  for (uint32_t i = 0; i < set->num_numbers; i++) sml_recorder_destroy(sml_recorder_set_find(set, (uint16_t)i));
  free((void *)set->all);
  *set = (struct sml_recorder_set){.num_numbers = 0};
}

void sml_recorder_set_use(struct sml_recorder_set *set, uint16_t number) {
  if (set == NULL || number >= set->num_numbers || set->num_used == set->max_used) return;
  if (sml_recorder_set_find(set, number) != NULL) return;
  struct sml_recorder *made = sml_recorder_create(&set->options);
  set->num_used += made != NULL;
  /* Pairs with sml_recorder_set_find: who sees it sees it made. */
  atomic_store_explicit(&set->all[number], made, memory_order_release);
}

bool sml_recorder_set_add(const struct sml_recorder_set *set, uint32_t lane, const char *whose,
                          struct sml_trace_dump *dump) {
  for (uint32_t i = 0; i < set->num_numbers; i++) {
    const struct sml_recorder *recorder = sml_recorder_set_find(set, (uint16_t)i);
    if (recorder != NULL && !sml_trace_add_source(dump, recorder, lane, "%s job %u", whose, i)) return false;
  }
  return true;
}
