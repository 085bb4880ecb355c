/* SPDX-License-Identifier: Apache-2.0
 * What a rank does in each step of an operation. */
#include "host/host_group.h"
#include "host/host_internal.h"
#include "quant/limbs.h"

#define ELEM_BYTES 4u

/* Blocks [begin, end) of the tensor, as bytes [offset, offset + num_bytes). */
struct span {
  uint64_t begin, end;
  size_t offset, num_bytes;
};

static struct span make_span(const struct sml_host_group *g, uint64_t begin, uint64_t end) {
  const uint64_t all_bytes = g->operation.plan.num_elems * ELEM_BYTES;
  const uint64_t first = sml_min_u64(begin * g->block_bytes, all_bytes);
  return (struct span){.begin = begin,
                       .end = end,
                       .offset = (size_t)first,
                       .num_bytes = (size_t)(sml_min_u64(end * g->block_bytes, all_bytes) - first)};
}

/* Pieces differ by at most one block, and so do the shares of one. */
static struct span piece_span(const struct sml_host_group *g, uint64_t piece) {
  const uint64_t share = g->num_blocks / g->num_pieces, rest = g->num_blocks % g->num_pieces;
  const uint64_t begin = share * piece + sml_min_u64(piece, rest);
  return make_span(g, begin, begin + share + (piece < rest));
}

static struct span share_span(const struct sml_host_group *g, const struct span *piece) {
  const uint64_t num_blocks = piece->end - piece->begin;
  return make_span(g, piece->begin + num_blocks * g->index / g->num_ranks,
                   piece->begin + num_blocks * (g->index + 1) / g->num_ranks);
}

/* ---- adding up ---- */

static void add_floats(const struct sml_host_group *g, uint8_t *out, size_t num_bytes) {
  const bool average = g->operation.plan.is_average != 0;
  if (sml_limbs_is_exact(g->operation.plan.num_elems, g->num_ranks)) {
    sml_limbs_reduce((float *)(void *)out, (const float *const *)g->inputs, g->num_ranks, num_bytes / ELEM_BYTES,
                     average);
    return;
  }
  for (size_t done = 0; done < num_bytes; done += g->block_bytes) {
    const size_t block = (size_t)sml_min_u64(g->block_bytes, num_bytes - done);
    g->kernels->reduce_floats((float *)(void *)(out + done), (const float *const *)g->inputs, g->num_ranks,
                              block / ELEM_BYTES, average);
    for (uint32_t r = 0; r < g->num_ranks; r++) g->inputs[r] = (const uint8_t *)g->inputs[r] + block;
  }
}

/* Of all ranks' inputs, which g->inputs points to, and which are used up. */
static void add_up(const struct sml_host_group *g, uint8_t *out, size_t num_bytes) {
  if (g->operation.plan.is_float)
    add_floats(g, out, num_bytes);
  else
    g->kernels->reduce_int32((int32_t *)(void *)out, (const int32_t *const *)g->inputs, g->num_ranks,
                             num_bytes / ELEM_BYTES);
}

/* ---- a pipeline's parts of a step ---- */

/* All of the piece but this rank's share, which it reads where it is. */
static void copy_in(const struct sml_host_group *g, uint64_t piece, uint64_t step) {
  const struct span p = piece_span(g, piece), own = share_span(g, &p);
  const uint8_t *in = g->operation.in;
  uint8_t *area = sml_host_in_area(g, step, g->index);
  const size_t before = own.offset - p.offset, behind = before + own.num_bytes;
  memcpy(area, in + p.offset, before);
  memcpy(area + behind, in + p.offset + behind, p.num_bytes - behind);
}

/* Into the segment, for the others, and from there to this rank's result. */
static void reduce_share(const struct sml_host_group *g, uint64_t piece, uint64_t step) {
  const struct span p = piece_span(g, piece), own = share_span(g, &p);
  uint8_t *area = sml_host_out_area(g, step) + (own.offset - p.offset);
  for (uint32_t r = 0; r < g->num_ranks; r++)
    g->inputs[r] = sml_host_in_area(g, step, r) + (own.offset - p.offset);
  g->inputs[g->index] = (const uint8_t *)g->operation.in + own.offset;
  add_up(g, area, own.num_bytes);
  memcpy((uint8_t *)g->operation.out + own.offset, area, own.num_bytes);
}

static void copy_out(const struct sml_host_group *g, uint64_t piece, uint64_t step) {
  const struct span p = piece_span(g, piece), own = share_span(g, &p);
  uint8_t *out = g->operation.out;
  const uint8_t *area = sml_host_out_area(g, step);
  const size_t before = own.offset - p.offset, behind = before + own.num_bytes;
  memcpy(out + p.offset, area, before);
  memcpy(out + p.offset + behind, area + behind, p.num_bytes - behind);
}

/* Areas are numbered by the step in which they were filled from the inputs. */
static void work(const struct sml_host_group *g, uint64_t stage) {
  const uint64_t step = g->first_step + stage;
  if (stage >= 2) copy_out(g, stage - 2, step - 2);
  if (stage >= 1 && stage - 1 < g->num_pieces) reduce_share(g, stage - 1, step - 1);
  if (stage < g->num_pieces) copy_in(g, stage, step);
}

/* ---- operations ---- */

static bool is_direct(const struct sml_host_group *g, uint64_t num_bytes) {
  return num_bytes <= DIRECT_BYTES && num_bytes * g->num_ranks <= DIRECT_ALL_BYTES;
}

static void add_directly(const struct sml_host_group *g) {
  const size_t num_bytes = (size_t)g->operation.plan.num_elems * ELEM_BYTES;
  for (uint32_t r = 0; r < g->num_ranks; r++) g->inputs[r] = sml_host_in_area(g, g->first_step, r);
  add_up(g, g->operation.out, num_bytes);
}

static void begin_step(struct sml_host_group *g) {
  if (g->is_direct)
    memcpy(sml_host_in_area(g, g->first_step, g->index), g->operation.in,
           (size_t)g->operation.plan.num_elems * ELEM_BYTES);
  else
    work(g, g->stage);
  sml_host_arrive(g);
}

void sml_host_group_begin(struct sml_host_group *g, const struct sml_host_operation *operation) {
  const uint64_t num_bytes = operation->plan.num_elems * ELEM_BYTES;
  SML_ASSERT(num_bytes > 0 && g->operation.plan.num_elems == 0);
  g->operation = *operation;
  g->is_direct = is_direct(g, num_bytes);
  g->num_blocks = sml_div_ceil(num_bytes, g->block_bytes);
  g->num_pieces = sml_div_ceil(g->num_blocks, g->piece_blocks);
  g->stage = 0;
  g->first_step = atomic_load_explicit(&g->step, memory_order_relaxed);
  g->ranks[g->index].plans[g->first_step % 2] = operation->plan;
  begin_step(g);
}

static bool find_mismatch(struct sml_host_group *g) {
  const struct sml_host_plan *first = &g->ranks[0].plans[g->first_step % 2];
  for (uint32_t r = 1; r < g->num_ranks; r++) {
    if (memcmp(first, &g->ranks[r].plans[g->first_step % 2], sizeof *first) == 0) continue;
    g->mismatch[0] = 0;
    g->mismatch[1] = r;
    return true;
  }
  return false;
}

static enum sml_host_verdict end(struct sml_host_group *g) {
  g->operation.plan.num_elems = 0;
  atomic_fetch_add_explicit(&g->blocks_done, g->num_blocks, memory_order_relaxed);
  return SML_HOST_ENDED;
}

enum sml_host_verdict sml_host_group_advance(struct sml_host_group *g) {
  while (sml_host_is_open(g)) {
    atomic_fetch_add_explicit(&g->step, 1, memory_order_relaxed);
    if (g->stage == 0 && find_mismatch(g)) return SML_HOST_MISMATCH;
    g->stage++;
    if (g->is_direct) {
      add_directly(g);
      return end(g);
    }
    if (g->stage > g->num_pieces) {
      copy_out(g, g->num_pieces - 1, g->first_step + g->num_pieces - 1);
      return end(g);
    }
    begin_step(g);
  }
  return SML_HOST_WAITING;
}

void sml_host_group_mismatch(const struct sml_host_group *g, uint32_t *a_out, uint32_t *b_out) {
  *a_out = g->mismatch[0];
  *b_out = g->mismatch[1];
}
