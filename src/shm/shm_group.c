/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/shm_group.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "shm/shm_internal.h"

/* Looks before the first yield, some 20 ns each. Who looks in vain looks half as long the next time: the others
 * may be waiting for this very processor. */
#define MIN_SPINS 32u
#define MAX_SPINS 1024u
#define MAX_BLOCK_BYTES (8 * SML_BLOCK_ELEMS)
#define YIELD_NS (60 * SML_NS_PER_US)
#define SLEEP_NS (20 * SML_NS_PER_MS) /* at most: an abort's wake may come just before the sleep */

/* ---- layout ---- */

size_t sml_shm_piece_bytes(uint32_t num_ranks) {
  const uint64_t most = MAX_AREAS_BYTES / (2 * ((uint64_t)num_ranks + 1));
  const uint64_t wanted = sml_max_u64((uint64_t)num_ranks * MAX_BLOCK_BYTES, PIECE_BYTES); /* a share for each */
  return (size_t)sml_max_u64(MAX_BLOCK_BYTES, sml_min_u64(most, wanted));
}

/* A little more than a piece, so that the same block of all ranks does not fall into the same set of a cache. */
static size_t area_bytes(uint32_t num_ranks) {
  return sml_align_up(sml_max_u64(sml_shm_piece_bytes(num_ranks), DIRECT_BYTES), 4096) + 5 * LINE_BYTES;
}

static size_t head_bytes(uint32_t num_ranks) {
  return sml_align_up(sizeof(struct host_header) + num_ranks * sizeof(struct host_rank), 4096);
}

size_t sml_shm_segment_bytes(uint32_t num_ranks) {
  return sml_align_up(head_bytes(num_ranks) + 2 * ((size_t)num_ranks + 1) * area_bytes(num_ranks), 4096);
}

/* ---- life ---- */

static uint32_t num_processors(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
}

static void place(struct sml_shm_group *g) {
  uint8_t *memory = g->segment.memory;
  g->header = (struct host_header *)(void *)memory;
  g->ranks = (struct host_rank *)(void *)(memory + sizeof(struct host_header));
  g->areas = memory + head_bytes(g->num_ranks);
}

struct sml_shm_group *sml_shm_group_open(const struct sml_shm_group_options *o, enum sml_shm_met *met_out,
                                         uint32_t *missing_out, char error_out[SML_SHM_ERROR_BYTES]) {
  const uint32_t num_ranks = o->meeting.num_ranks;
  SML_ASSERT(num_ranks >= 1 && o->meeting.index < num_ranks);
  struct sml_shm_group *g = calloc(1, sizeof *g);
  *met_out = SML_SHM_FAILED;
  *missing_out = 0;
  snprintf(error_out, SML_SHM_ERROR_BYTES, "no memory for a group of %u ranks", num_ranks);
  if (g == NULL) return NULL;
  g->kernels = o->kernels;
  g->num_ranks = num_ranks;
  g->index = o->meeting.index;
  g->area_bytes = area_bytes(num_ranks);
  g->max_spins = num_ranks <= num_processors() ? MAX_SPINS : MIN_SPINS;
  g->num_spins = g->max_spins;
  g->is_gone = calloc(num_ranks, sizeof *g->is_gone);
  g->inputs = calloc(num_ranks, sizeof *g->inputs);
  if (g->is_gone != NULL && g->inputs != NULL) {
    const size_t num_bytes = sml_shm_segment_bytes(num_ranks);
    *met_out = (g->index == 0 ? sml_shm_segment_offer : sml_shm_segment_obtain)(&g->segment, num_bytes, &o->meeting,
                                                                                missing_out, error_out);
  }
  if (*met_out != SML_SHM_MET) {
    sml_shm_group_close(g);
    return NULL;
  }
  place(g);
  return g;
}

void sml_shm_group_close(struct sml_shm_group *g) {
  if (g == NULL) return;
  sml_shm_segment_close(&g->segment);
  free(g->is_gone);
  free(g->inputs);
  free(g);
}

/* ---- steps ---- */

void sml_shm_arrive(struct sml_shm_group *g) {
  struct host_header *h = g->header;
  const uint64_t step = atomic_load_explicit(&g->step, memory_order_relaxed);
  atomic_store_explicit(&g->ranks[g->index].num_steps, step + 1, memory_order_release);
  /* Releases what this rank wrote; the last one acquires what all wrote and passes it on by num_open. */
  const uint64_t num_arrivals = atomic_fetch_add_explicit(&h->num_arrivals, 1, memory_order_acq_rel) + 1;
  if (num_arrivals != g->num_ranks * (step + 1)) return;
  /* Sequentially consistent with a sleeper, who counts itself and then looks at num_open. */
  atomic_store(&h->num_open, (uint32_t)(step + 1));
  if (atomic_load(&h->num_sleepers) > 0) sml_shm_wake(&h->num_open);
}

bool sml_shm_is_open(const struct sml_shm_group *g) {
  const uint64_t step = atomic_load_explicit(&g->step, memory_order_relaxed);
  return atomic_load_explicit(&g->header->num_open, memory_order_acquire) == (uint32_t)(step + 1);
}

static void pause_briefly(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static bool look(struct sml_shm_group *g) {
  for (uint32_t i = 0; i < g->num_spins; i++) {
    if (sml_shm_is_open(g)) {
      g->num_spins = sml_min_u32(2 * g->num_spins, g->max_spins);
      return true;
    }
    pause_briefly();
  }
  g->num_spins = sml_max_u32(g->num_spins / 2, MIN_SPINS);
  return sml_shm_is_open(g);
}

/* There are more ranks than processors: those that are not done yet should have this one. */
static bool yield_for(const struct sml_shm_group *g, uint64_t begin_ns) {
  do {
    sched_yield();
    if (sml_shm_is_open(g)) return true;
  } while (sml_clock_ns() - begin_ns < YIELD_NS);
  return false;
}

enum sml_shm_wait sml_shm_group_await(struct sml_shm_group *g, uint64_t deadline_ns) {
  bool has_yielded = false;
  if (look(g)) return SML_SHM_READY;
  for (;;) {
    const uint64_t now_ns = sml_clock_ns();
    if (atomic_load_explicit(&g->is_aborted, memory_order_acquire)) return SML_SHM_ABORTED;
    if (sml_shm_is_open(g)) return SML_SHM_READY;
    uint32_t unused;
    if (atomic_load_explicit(&g->has_gone, memory_order_acquire) && sml_shm_group_find_absent(g, true, &unused, 1) > 0)
      return SML_SHM_LOST;
    if (now_ns >= deadline_ns) return SML_SHM_DEADLINE;
    const uint32_t num_open = (uint32_t)atomic_load_explicit(&g->step, memory_order_relaxed);
    if (has_yielded)
      sml_shm_sleep(&g->header->num_open, num_open, &g->header->num_sleepers,
                    sml_min_u64(deadline_ns - now_ns, SLEEP_NS));
    else if (yield_for(g, now_ns)) return SML_SHM_READY;
    has_yielded = true;
  }
}

/* ---- any thread ---- */

void sml_shm_group_abort(struct sml_shm_group *g) {
  atomic_store_explicit(&g->is_aborted, true, memory_order_release);
  sml_shm_wake(&g->header->num_open); /* of all processes: the others look and sleep on */
}

void sml_shm_group_set_gone(struct sml_shm_group *g, uint32_t index) {
  atomic_store_explicit(&g->is_gone[index], 1, memory_order_relaxed);
  atomic_store_explicit(&g->has_gone, true, memory_order_release);
  sml_shm_wake(&g->header->num_open);
}

uint32_t sml_shm_group_find_absent(const struct sml_shm_group *g, bool only_gone, uint32_t *out, uint32_t room) {
  const uint64_t step = atomic_load_explicit(&g->step, memory_order_relaxed);
  uint32_t num_absent = 0;
  for (uint32_t i = 0; i < g->num_ranks; i++) {
    if (only_gone && atomic_load_explicit(&g->is_gone[i], memory_order_relaxed) == 0) continue;
    if (atomic_load_explicit(&g->ranks[i].num_steps, memory_order_acquire) > step) continue;
    if (i == g->index) continue;
    if (num_absent < room) out[num_absent] = i;
    num_absent++;
  }
  return num_absent;
}

uint64_t sml_shm_group_num_blocks(const struct sml_shm_group *g) {
  return atomic_load_explicit(&g->blocks_done, memory_order_relaxed);
}
