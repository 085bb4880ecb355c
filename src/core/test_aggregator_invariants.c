/* SPDX-License-Identifier: Apache-2.0
 * Whether an aggregator's state is sound. */
#include "core/aggregator_internal.h"

static const char *find_cell_violation(const struct sml_aggregator *a, uint32_t cell) {
  const struct cell *c = &a->cells[cell];
  const uint64_t *seen = sml_aggregator_seen(a, cell);
  const uint32_t n = a->options.num_contributors;
  const bool is_fence = cell >= 2 * a->options.num_slots && c->grant == SML_FENCE;
  if (c->needed != sml_aggregator_needed(a, c->reducer) && !(is_fence && c->needed == c->count))
    return "a cell waits for more or fewer than contribute to it";
  if (c->phase == 0) return c->count == 0 ? NULL : "I4: a cell that was never used counts contributions";
  uint32_t num_seen = 0;
  for (uint32_t w = 0; w < a->seen_words; w++) num_seen += sml_popcount_u64(seen[w]);
  if (n % 64 != 0 && seen[a->seen_words - 1] >> (n % 64) != 0) return "I3: a contributor beyond the last is seen";
  if (c->count != num_seen) return "I4: the count is not the number of seen ranks";
  if (c->count == 0) return "I4: a phase without a contribution";
  if (c->first_rank >= n || !sml_bit_test(seen, c->first_rank)) return "I3: the first rank of a phase is not seen";
  if (c->phase < a->options.first_phase) return "a phase before the first";
  if ((c->phase & 1) != (cell & 1)) return "a phase in the cell of the other version";
  if (c->payload_bytes == 0 || c->payload_bytes > sml_aggregator_value_bytes(&a->options))
    return "a cell holds more than its values have room for";
  return NULL;
}

/* The newer phase of a slot begins when the one before is complete, and that one stays (I1, I2). */
static const char *find_slot_violation(const struct sml_aggregator *a, uint32_t slot, uint32_t *num_complete) {
  const struct cell *even = &a->cells[2 * slot], *odd = even + 1;
  const struct cell *newer = odd->phase > even->phase ? odd : even, *older = newer == odd ? even : odd;
  const uint32_t first = a->options.first_phase;
  if (newer->phase == 0) return NULL;
  if (newer->phase != first) {
    if (older->phase != newer->phase - 1) return "I1: the phases of a slot are not next to each other";
    if (!sml_aggregator_is_complete(older)) return "I2: a phase began before the one before it was complete";
    if (sml_aggregator_is_complete(newer) && a->cursor - older->grant <= a->cursor - newer->grant)
      return "I9: a slot's grants are not in their order";
  }
  *num_complete += newer->phase - first + sml_aggregator_is_complete(newer);
  return NULL;
}

/* Grants are drawn from the cursor, which has moved by one for each completion: so all are below it, and no
 * two are equal. */
static const char *find_grant_violation(const struct sml_aggregator *a) {
  const uint32_t first_grant = a->options.first_chunk + a->options.num_slots;
  uint64_t marks[SML_BITMAP_WORDS(0x10000)] = {0}; /* grants met, by their lower half */
  for (uint32_t cell = 0; cell < 2 * a->options.num_slots; cell++) {
    const struct cell *c = &a->cells[cell];
    if (c->phase == 0 || !sml_aggregator_is_complete(c)) continue;
    if (c->grant - first_grant >= a->cursor - first_grant) return "I9: a grant at or beyond the cursor";
    if (sml_bit_test(marks, c->grant & 0xffff)) {
      for (uint32_t k = 0; k < cell; k++) {
        const bool is_drawn = sml_aggregator_is_complete(&a->cells[k]);
        if (is_drawn && a->cells[k].grant == c->grant) return "I9: a chunk was granted twice";
      }
    }
    sml_bit_set(marks, c->grant & 0xffff);
  }
  return NULL;
}

/* The chunk that a slot holds is the grant of its newest result, and the table that leads from chunks to slots has
 * it as long as no later chunk took the place. */
static const char *find_holder_violation(const struct sml_aggregator *a, uint32_t slot) {
  const struct cell *even = &a->cells[2 * slot], *odd = even + 1;
  const struct cell *newer = odd->phase > even->phase ? odd : even, *older = newer == odd ? even : odd;
  const struct cell *last = newer->phase != 0 && sml_aggregator_is_complete(newer) ? newer : older;
  const bool has_result = last->phase != 0 && sml_aggregator_is_complete(last);
  const uint32_t chunk = a->live[slot].chunk;
  if (has_result && chunk != last->grant) return "a slot holds a chunk that was not granted to it last";
  const uint32_t holder = a->holders[chunk & (a->num_holders - 1)];
  if (holder >= a->options.num_slots) return "a chunk is held by a slot beyond the last";
  if (holder != slot && a->cursor - chunk <= a->num_holders) return "the table of holders lost a chunk of late";
  return NULL;
}

/* Slots in trouble are in one list, once; suspected are only contributors; and nobody is beyond the cursor. */
static const char *find_trouble_violation(const struct sml_aggregator *a) {
  const uint32_t n = a->options.num_contributors;
  uint32_t num_listed = 0, num_troubled = 0;
  for (uint32_t slot = 0; slot < a->options.num_slots; slot++) {
    num_troubled += a->live[slot].is_troubled;
    const uint64_t *bits = sml_aggregator_suspects(a, slot);
    for (uint32_t w = 0; w < 2 * a->seen_words; w++) {
      if (bits[w] != 0 && !a->live[slot].is_troubled) return "a rank is suspected at a slot that is not in trouble";
      if (n % 64 != 0 && w % a->seen_words == a->seen_words - 1 && bits[w] >> (n % 64) != 0)
        return "a contributor beyond the last is suspected";
    }
  }
  for (uint32_t slot = a->first_troubled; slot != UINT32_MAX; slot = a->live[slot].next)
    if (++num_listed > num_troubled || !a->live[slot].is_troubled) return "the list of troubled slots is torn";
  if (num_listed != num_troubled || num_troubled != a->num_troubled) return "a troubled slot is in no list";
  for (uint32_t r = 0; r < n; r++) {
    const struct progress *p = &a->progress[r];
    if ((int32_t)(p->latest + 1 - p->next) < 0 || (int32_t)(p->latest + 1 - p->run) < 0)
      return "a rank was looked at beyond its latest chunk";
    if (p->budget > SML_MOST_UNASKED) return "a rank's budget has more questions than it may hold";
    if ((int32_t)(a->cursor - p->latest) <= 0) return "a rank's latest chunk was not granted yet";
  }
  return NULL;
}

const char *sml_aggregator_find_violation(const struct sml_aggregator *a) {
  uint32_t num_complete = 0, num_departed = 0;
  const char *problem = NULL;
  for (uint32_t cell = 0; cell < 2 * sml_aggregator_all_slots(a) && problem == NULL; cell++)
    problem = find_cell_violation(a, cell);
  for (uint32_t slot = 0; slot < a->options.num_slots && problem == NULL; slot++)
    problem = find_slot_violation(a, slot, &num_complete);
  if (problem != NULL) return problem;
  if (a->cursor != a->options.first_chunk + a->options.num_slots + num_complete)
    return "I9: the cursor has not moved once for each completion";
  for (uint32_t w = 0; w < a->seen_words; w++) num_departed += sml_popcount_u64(a->departed[w]);
  if (num_departed != a->num_departed) return "the count of departed ranks is not that of their bits";
  problem = find_grant_violation(a);
  for (uint32_t slot = 0; slot < a->options.num_slots && problem == NULL; slot++)
    problem = find_holder_violation(a, slot);
  return problem != NULL ? problem : find_trouble_violation(a);
}
