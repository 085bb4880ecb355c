/* SPDX-License-Identifier: Apache-2.0
 * All that is to happen, in order of time: a heap of four children a node, which knows where each timer is,
 * so that one can be moved or taken out. Timers of equal times fire in the order in which they were set. */
#include "sim/internal.h"

/* The key beside the pointer: comparing does not touch the timers. */
struct entry {
  uint64_t at_ns, order;
  struct sim_timer *timer;
};
static struct entry *entries;
static uint32_t num_entries, max_entries;

static bool is_before(const struct entry *a, const struct entry *b) {
  return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void put(uint32_t i, const struct entry *entry) {
  entries[i] = *entry;
  entry->timer->heap_idx = i + 1;
}

static void sift_up(uint32_t i, struct entry entry) {
  while (i > 0) {
    const uint32_t parent = (i - 1) / 4;
    if (!is_before(&entry, &entries[parent])) break;
    put(i, &entries[parent]);
    i = parent;
  }
  put(i, &entry);
}

static void sift_down(uint32_t i, struct entry entry) {
  for (;;) {
    const uint32_t first = 4 * i + 1, end = sml_min_u32(first + 4, num_entries);
    if (first >= num_entries) break;
    uint32_t least = first;
    for (uint32_t c = first + 1; c < end; c++)
      if (is_before(&entries[c], &entries[least])) least = c;
    if (!is_before(&entries[least], &entry)) break;
    put(i, &entries[least]);
    i = least;
  }
  put(i, &entry);
}

void sim_timer_clear(struct sim_timer *timer) {
  if (timer->heap_idx == 0) return;
  const uint32_t i = timer->heap_idx - 1;
  timer->heap_idx = 0;
  const struct entry last = entries[--num_entries];
  if (i == num_entries) return;
  if (i > 0 && is_before(&last, &entries[(i - 1) / 4])) sift_up(i, last);
  else sift_down(i, last);
}

void sim_timer_set(struct sim_timer *timer, uint64_t at_ns) {
  const struct entry entry = {.at_ns = at_ns, .order = sim.next_order++, .timer = timer};
  timer->at_ns = at_ns;
  timer->order = entry.order;
  if (timer->heap_idx != 0) {
    const uint32_t i = timer->heap_idx - 1;
    if (i > 0 && is_before(&entry, &entries[(i - 1) / 4])) sift_up(i, entry);
    else sift_down(i, entry);
    return;
  }
  if (num_entries == max_entries) {
    const uint32_t max = sml_max_u32(1024, 2 * max_entries);
    entries = sim_grow(entries, max_entries * sizeof *entries, max * sizeof *entries);
    max_entries = max;
  }
  sift_up(num_entries++, entry);
}

struct sim_timer *sim_timers_first(void) {
  return num_entries > 0 ? entries[0].timer : NULL;
}

void sim_timers_pop(void) {
  sim_timer_clear(entries[0].timer);
}

void sim_timers_reset(void) {
  __real_free(entries);
  entries = NULL;
  num_entries = max_entries = 0;
}
