/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/gathered.h"

#include <string.h>

#define KEY_START UINT64_C(0x6761746865720001) /* any constant; part of the protocol */
#define PART_ALIGN 8u                          /* elements are aligned, and lanes whole */

static size_t part_bytes(const struct sml_operation_plan *plan) {
  return sml_align_up(plan->num_elems * sml_format_elem_bytes(plan->type), PART_ALIGN);
}

bool sml_gathered_takes(const struct sml_gathered_job *job, const struct sml_operation_plan *plan, bool is_exact) {
  const uint64_t n = job->num_ranks, chunk_bytes = job->formats->chunk_bytes;
  const bool may_be = plan->block_elems != 0 && plan->way == SML_REDUCE_SUM && !job->formats->is_of_switch;
  if (!may_be || n < 2 || n > SML_GATHERED_MAX_RANKS) return false;
  if (plan->num_elems == 0 || plan->num_elems > SML_GATHERED_EXACT_BYTES) return false;
  const uint64_t all_bytes = n * part_bytes(plan), num_chunks = n * sml_div_ceil(all_bytes, chunk_bytes);
  if (all_bytes > SML_GATHERED_EXACT_BYTES) return false;
  const uint64_t path_bytes = sml_min_u64(job->rtt_ns / 10, SML_GATHERED_PATH_BYTES);
  const bool is_small = is_exact || all_bytes <= SML_GATHERED_BYTES;
  return (is_small && num_chunks <= SML_GATHERED_CHUNKS) || num_chunks * chunk_bytes <= path_bytes;
}

/* Lanes have the elements in order, lower bits first, whatever this machine's order of bytes is. Elements become lanes,
 * in place, and back. On a little-endian machine, and with 32 bits, nothing changes. */
static void to_lanes(uint8_t *bytes, size_t num_bytes, uint32_t elem_bytes) {
  for (size_t i = 0; i < num_bytes && elem_bytes != 4; i += PART_ALIGN) {
    uint64_t wide;
    uint16_t halves[4];
    memcpy(&wide, bytes + i, sizeof wide);
    memcpy(halves, bytes + i, sizeof halves);
    if (elem_bytes == 2)
      wide = halves[0] | (uint64_t)halves[1] << 16 | (uint64_t)halves[2] << 32 | (uint64_t)halves[3] << 48;
    memcpy(bytes + i, (const uint32_t[]){(uint32_t)wide, (uint32_t)(wide >> 32)}, sizeof wide);
  }
}

static void from_lanes(uint8_t *bytes, size_t num_bytes, uint32_t elem_bytes) {
  for (size_t i = 0; i < num_bytes && elem_bytes != 4; i += PART_ALIGN) {
    uint32_t lanes[2];
    memcpy(lanes, bytes + i, sizeof lanes);
    const uint64_t wide = lanes[0] | (uint64_t)lanes[1] << 32;
    const uint16_t halves[] = {(uint16_t)wide, (uint16_t)(wide >> 16), (uint16_t)(wide >> 32), (uint16_t)(wide >> 48)};
    memcpy(bytes + i, elem_bytes == 2 ? (const void *)halves : &wide, sizeof wide);
  }
}

static uint64_t make_key(const struct sml_operation_plan *plan) {
  const uint64_t fields[] = {
      plan->key, plan->num_elems,
      (uint64_t)plan->elem_lanes << 24 | (uint64_t)plan->lane_elems << 16 | (uint64_t)plan->type << 8 | plan->reduction,
      plan->block_elems};
  uint64_t h = KEY_START;
  for (size_t i = 0; i < SML_ARRAY_LEN(fields); i++) h = sml_mix64(h ^ fields[i]) + UINT64_C(0x9e3779b97f4a7c15);
  return h;
}

void sml_gathered_begin(struct sml_gathered *g, const struct sml_gathered_call *call, struct sml_operation_plan *plan) {
  const size_t all_bytes = call->num_ranks * part_bytes(plan);
  SML_ASSERT(all_bytes <= sizeof g->lanes && call->num_ranks <= SML_GATHERED_MAX_RANKS);
  g->format = sml_engine_format(plan);
  g->kernels = call->kernels;
  g->out = call->out;
  g->count = plan->num_elems;
  g->part_bytes = part_bytes(plan);
  g->num_ranks = call->num_ranks;
  g->type = plan->type;
  g->reduction = plan->reduction;
  g->is_exact = call->is_exact;
  if (g->is_exact) sml_exact_init(&g->exact, g->type, g->num_ranks, g->kernels);
  uint8_t *own = g->lanes + call->rank * g->part_bytes;
  memset(g->lanes, 0, all_bytes);
  memcpy(own, call->in, g->count * g->format->elem_bytes);
  to_lanes(own, g->part_bytes, g->format->elem_bytes);
  *plan = (struct sml_operation_plan){
      .num_elems = all_bytes / 4, .key = make_key(plan), .type = SML_FORMAT_INT32, .reduction = SML_FORMAT_SUM};
}

void sml_gathered_store(struct sml_gathered *g) {
  const struct sml_format *f = g->format;
  const bool average = g->reduction == SML_FORMAT_AVG;
  const size_t at_once = g->is_exact || !f->reduces_blocks ? SML_BLOCK_ELEMS : g->count;
  const void *in[SML_GATHERED_MAX_RANKS];
  from_lanes(g->lanes, g->num_ranks * g->part_bytes, f->elem_bytes);
  for (size_t done = 0; done < g->count; done += at_once) {
    const size_t num = (size_t)sml_min_u64(at_once, g->count - done);
    uint8_t *out = (uint8_t *)g->out + done * f->elem_bytes;
    for (uint32_t r = 0; r < g->num_ranks; r++) in[r] = g->lanes + r * g->part_bytes + done * f->elem_bytes;
    if (g->is_exact && sml_exact_reduce(&g->exact, out, in, num, average)) continue;
    f->reduce(g->kernels, out, in, g->num_ranks, num, average);
  }
}
