/* SPDX-License-Identifier: Apache-2.0
 * Copies what an engine holds, for the status. */
#include "engine/aggregator_engine_internal.h"

/* In which of a rank's counts a slot that waits for it goes. */
struct places {
  bool in_slots, in_sums, in_oldest;
};

static void count_missing(const struct job *job, uint32_t slot, uint32_t phase, uint64_t *missing, struct places places,
                          struct sml_job_look *look) {
  sml_aggregator_missing(job->aggregator, slot, phase, missing);
  for (uint32_t w = 0; w < SML_BITMAP_WORDS(job->members.num_contributors); w++)
    for (uint64_t left = missing[w]; left != 0; left &= left - 1) {
      struct sml_rank_look *rank = &look->ranks[job->members.leads[w * 64 + (uint32_t)__builtin_ctzll(left)]];
      rank->slots_missing += places.in_slots;
      rank->sums_missing += places.in_sums;
      rank->oldest_missing += places.in_oldest;
    }
}

static void look_at_waiting(const struct job *job, uint32_t slot, const struct sml_slot_look *is, uint64_t *missing,
                            struct sml_job_look *look) {
  if (look->slots_waiting == 0 || is->count < look->least_contributions) {
    look->least_contributions = is->count;
    look->waiting_lane = look->lane;
    look->waiting_slot = slot;
    look->waiting_phase = is->phase;
  }
  look->most_contributions = sml_max_u32(look->most_contributions, is->count);
  look->slots_waiting++;
  const bool is_sum = slot < sml_aggregator_options_of(job->aggregator)->num_slots;
  count_missing(job, slot, is->phase, missing, (struct places){.in_slots = true, .in_sums = is_sum}, look);
}

/* A rank passes the positions of a one-way window in their order: whom a later slot misses may itself be held up there
 * by whom the oldest one misses. */
static void look_at_oldest(const struct job *job, uint8_t way, uint64_t *missing, struct sml_job_look *look) {
  const uint32_t num_slots = sml_aggregator_options_of(job->aggregator)->num_slots;
  const uint32_t first = sml_window_base(way, num_slots), end = first + sml_window_slots(way, num_slots);
  uint32_t slot = end, phase = 0;
  for (uint32_t s = first; s < end; s++) {
    const struct sml_slot_look is = sml_aggregator_look(job->aggregator, s);
    if (is.state != SML_SLOT_WAITING || (slot != end && (int32_t)(is.phase - phase) >= 0)) continue;
    slot = s;
    phase = is.phase;
  }
  if (slot != end) count_missing(job, slot, phase, missing, (struct places){.in_oldest = true}, look);
}

/* Fills the cells of the map lane by lane. If there are more slots than cells, a cell stands for several. */
static void look_at_slots(struct sml_aggregator_engine *e, const struct job *job, struct sml_job_look *look) {
  const uint32_t num_slots = sml_aggregator_options_of(job->aggregator)->num_slots;
  const uint32_t first_cell = look->num_cells, room = (uint32_t)sizeof look->cells / look->num_lanes;
  const uint32_t slots_per_cell = (uint32_t)sml_div_ceil(num_slots, room);
  const bool is_one_way = sml_aggregator_options_of(job->aggregator)->is_one_way;
  for (uint32_t slot = 0; slot < num_slots * (is_one_way ? SML_ALL_WINDOWS : 1); slot++) {
    const struct sml_slot_look is = sml_aggregator_look(job->aggregator, slot);
    uint8_t value = SML_CELL_UNUSED;
    if (is.state == SML_SLOT_COMPLETE) value = SML_CELL_COMPLETE;
    if (is.state == SML_SLOT_WAITING) {
      value = (uint8_t)sml_max_u32(1, is.count * SML_CELL_MOST_WAITING / job->members.num_contributors);
      look_at_waiting(job, slot, &is, e->missing, look);
    }
    if (slot >= num_slots) continue; /* the map is of all-reduces */
    uint8_t *cell = &look->cells[first_cell + slot / slots_per_cell];
    /* Readers look for waiting slots, above all for the emptiest. */
    const bool is_waiting = value != SML_CELL_UNUSED && value != SML_CELL_COMPLETE;
    const bool was_waiting = *cell != SML_CELL_UNUSED && *cell != SML_CELL_COMPLETE;
    const bool is_worse = is_waiting ? !was_waiting || value < *cell : !was_waiting && value > *cell;
    if (slot % slots_per_cell == 0 || is_worse) *cell = value;
  }
  if (is_one_way) look_at_oldest(job, SML_REDUCE_COPY, e->missing, look);
  if (is_one_way) look_at_oldest(job, SML_REDUCE_TO_OWNER, e->missing, look);
  look->num_cells = first_cell + (uint32_t)sml_div_ceil(num_slots, slots_per_cell);
}

void sml_aggregator_engine_look(struct sml_aggregator_engine *e, uint16_t number, struct sml_job_look *look) {
  const struct job *job = number < SML_MAX_JOBS ? e->jobs[number] : NULL;
  if (job == NULL || job->members.world_size != look->world_size) return;
  for (uint32_t i = 0; i < job->members.num; i++) {
    const struct sml_traffic *from = &job->members.all[i].traffic;
    struct sml_traffic *to = &look->ranks[job->members.all[i].rank].traffic;
    to->num_packets += from->num_packets;
    to->num_bytes += from->num_bytes;
    to->num_retransmissions += from->num_retransmissions;
    to->num_repeats += from->num_repeats;
    to->num_hellos += from->num_hellos;
    to->hello_bytes = sml_max_u32(to->hello_bytes, from->hello_bytes);
  }
  for (uint32_t d = 0; d < SML_NUM_DROPS; d++) look->num_drops[d] += job->num_drops[d];
  look->num_results += job->num_results;
  look->progress_ns = sml_max_u64(look->progress_ns, job->progress_ns);
  look->opened_ns = sml_max_u64(look->opened_ns, job->opened_ns);
  for (uint32_t i = 0; i < SML_NUM_WAITS; i++) look->waits.num[i] += job->waits.num[i];
  look->waits.total_ns += job->waits.total_ns;
  if (job->aggregator != NULL) look_at_slots(e, job, look);
}

uint64_t sml_aggregator_engine_contributions(const struct sml_aggregator_engine *e, uint16_t job, uint32_t rank) {
  return atomic_load_explicit(&sml_members_find(&e->jobs[job]->members, rank)->num_contributions, memory_order_relaxed);
}
