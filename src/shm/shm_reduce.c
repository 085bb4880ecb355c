/* SPDX-License-Identifier: Apache-2.0
 * What a rank does in each step of an operation. */
#include "shm/shm_group.h"
#include "shm/shm_internal.h"

#define PREFETCH_BYTES 64u /* no cache has shorter lines here */

/* Blocks [begin, end) of the tensor, as bytes [offset, offset + num_bytes). */
struct span {
  uint64_t begin, end;
  size_t offset, num_bytes;
};

static struct span make_span(const struct sml_shm_group *g, uint64_t begin, uint64_t end) {
  const uint64_t first = sml_min_u64(begin * g->block_bytes, g->num_bytes);
  return (struct span){.begin = begin,
                       .end = end,
                       .offset = (size_t)first,
                       .num_bytes = (size_t)(sml_min_u64(end * g->block_bytes, g->num_bytes) - first)};
}

/* Pieces differ by at most one block, and so do the shares of one. */
static struct span piece_span(const struct sml_shm_group *g, uint64_t piece) {
  const uint64_t share = g->num_blocks / g->num_pieces, rest = g->num_blocks % g->num_pieces;
  const uint64_t begin = share * piece + sml_min_u64(piece, rest);
  return make_span(g, begin, begin + share + (piece < rest));
}

static struct span share_span(const struct sml_shm_group *g, const struct span *piece) {
  const uint64_t num_blocks = piece->end - piece->begin;
  return make_span(g, piece->begin + num_blocks * g->index / g->num_ranks,
                   piece->begin + num_blocks * (g->index + 1) / g->num_ranks);
}

/* ---- adding up ---- */

/* The next block of the other ranks' inputs, which another processor has just written. */
static void prefetch(const struct sml_shm_group *g, size_t num_bytes) {
  for (uint32_t r = 0; r < g->num_ranks; r++)
    for (size_t at = 0; r != g->index && at < num_bytes; at += PREFETCH_BYTES)
      __builtin_prefetch((const uint8_t *)g->inputs[r] + num_bytes + at);
}

/* Adds up all ranks' inputs. g->inputs points to them, and moves past what is added. */
static void add_up(const struct sml_shm_group *g, uint8_t *out, size_t num_bytes) {
  const struct sml_format *f = g->format;
  const struct sml_shm_plan *plan = &g->operation.plan;
  const struct sml_images images = sml_images_of(plan->type, plan->reduction, plan->shape);
  const bool is_whole = !g->is_exact && (f->block_code == NULL || f->reduces_blocks);
  const size_t at_once = is_whole ? num_bytes : g->block_bytes;
  for (size_t done = 0; done < num_bytes; done += at_once) {
    const size_t block = (size_t)sml_min_u64(at_once, num_bytes - done);
    if (num_bytes - done >= 2 * at_once) prefetch(g, block);
    const bool average = plan->reduction == SML_FORMAT_AVG;
    if (g->is_exact && block == g->block_bytes &&
        sml_exact_reduce(&g->exact, out + done, g->inputs, SML_BLOCK_ELEMS, average))
      (void)0;
    else if (plan->shape.combine == SML_COMBINE_SUM)
      f->reduce(g->kernels, out + done, g->inputs, g->num_ranks, block / f->elem_bytes, average);
    else sml_images_reduce(g->kernels, out + done, g->inputs, g->num_ranks, block / f->elem_bytes, images);
    for (uint32_t r = 0; r < g->num_ranks; r++) g->inputs[r] = (const uint8_t *)g->inputs[r] + block;
  }
}

/* ---- a pipeline's parts of a step ---- */

/* All of the piece but this rank's share, which it reads where it is. */
static void copy_in(const struct sml_shm_group *g, uint64_t piece, uint64_t step) {
  const struct span p = piece_span(g, piece), own = share_span(g, &p);
  const uint8_t *in = g->operation.in;
  uint8_t *area = sml_shm_in_area(g, step, g->index);
  const size_t before = own.offset - p.offset, behind = before + own.num_bytes;
  memcpy(area, in + p.offset, before);
  memcpy(area + behind, in + p.offset + behind, p.num_bytes - behind);
}

/* Into this rank's result, and from there to the segment, for the others: stores there fetch each line, which others
 * have read, back from them, and a long copy does so faster than the kernels. */
static void reduce_share(const struct sml_shm_group *g, uint64_t piece, uint64_t step) {
  const struct span p = piece_span(g, piece), own = share_span(g, &p);
  const size_t place = own.offset - p.offset;
  uint8_t *out = (uint8_t *)g->operation.out + own.offset;
  for (uint32_t r = 0; r < g->num_ranks; r++) g->inputs[r] = sml_shm_in_area(g, step, r) + place;
  g->inputs[g->index] = (const uint8_t *)g->operation.in + own.offset;
  add_up(g, out, own.num_bytes);
  memcpy(sml_shm_out_area(g, step) + place, out, own.num_bytes);
}

static void copy_out(const struct sml_shm_group *g, uint64_t piece, uint64_t step) {
  const struct span p = piece_span(g, piece), own = share_span(g, &p);
  uint8_t *out = g->operation.out;
  const uint8_t *area = sml_shm_out_area(g, step);
  const size_t before = own.offset - p.offset, behind = before + own.num_bytes;
  memcpy(out + p.offset, area, before);
  memcpy(out + p.offset + behind, area + behind, p.num_bytes - behind);
}

/* Areas are numbered by the step in which they were filled from the inputs. */
static void work(const struct sml_shm_group *g, uint64_t stage) {
  const uint64_t step = g->first_step + stage;
  if (stage >= 2) copy_out(g, stage - 2, step - 2);
  if (stage >= 1 && stage - 1 < g->num_pieces) reduce_share(g, stage - 1, step - 1);
  if (stage < g->num_pieces) copy_in(g, stage, step);
}

/* ---- operations ---- */

static bool is_direct(const struct sml_shm_group *g, uint64_t num_bytes) {
  return num_bytes <= DIRECT_BYTES && num_bytes * g->num_ranks <= DIRECT_ALL_BYTES;
}

static void add_directly(const struct sml_shm_group *g) {
  for (uint32_t r = 0; r < g->num_ranks; r++) g->inputs[r] = sml_shm_in_area(g, g->first_step, r);
  add_up(g, g->operation.out, (size_t)g->num_bytes);
}

static void begin_step(struct sml_shm_group *g) {
  if (g->is_direct) memcpy(sml_shm_in_area(g, g->first_step, g->index), g->operation.in, (size_t)g->num_bytes);
  else work(g, g->stage);
  sml_shm_arrive(g);
}

void sml_shm_group_begin(struct sml_shm_group *g, const struct sml_shm_operation *operation) {
  const struct sml_shm_plan *plan = &operation->plan;
  SML_ASSERT(plan->num_elems > 0 && g->operation.plan.num_elems == 0);
  g->operation = *operation;
  g->format = sml_format_find(plan->type, plan->shape);
  g->num_bytes = plan->num_elems * g->format->elem_bytes;
  g->block_bytes = (size_t)SML_BLOCK_ELEMS * g->format->elem_bytes;
  g->is_direct = is_direct(g, g->num_bytes);
  g->is_exact = sml_format_is_float(plan->type) && !plan->shape.has_exponents &&
                plan->shape.combine == SML_COMBINE_SUM && plan->num_elems >= SML_BLOCK_ELEMS;
  if (g->is_exact) sml_exact_init(&g->exact, plan->type, g->num_ranks, g->kernels);
  g->num_blocks = sml_div_ceil(g->num_bytes, g->block_bytes);
  g->num_pieces = sml_div_ceil(g->num_blocks, sml_shm_piece_bytes(g->num_ranks) / g->block_bytes);
  g->stage = 0;
  g->first_step = atomic_load_explicit(&g->step, memory_order_relaxed);
  g->ranks[g->index].plans[g->first_step % 2] = *plan;
  begin_step(g);
}

static bool find_mismatch(struct sml_shm_group *g) {
  const struct sml_shm_plan *first = &g->ranks[0].plans[g->first_step % 2];
  for (uint32_t r = 1; r < g->num_ranks; r++) {
    if (memcmp(first, &g->ranks[r].plans[g->first_step % 2], sizeof *first) == 0) continue;
    g->mismatch[0] = 0;
    g->mismatch[1] = r;
    return true;
  }
  return false;
}

static enum sml_shm_verdict end(struct sml_shm_group *g) {
  g->operation.plan.num_elems = 0;
  atomic_fetch_add_explicit(&g->blocks_done, g->num_blocks, memory_order_relaxed);
  return SML_SHM_ENDED;
}

enum sml_shm_verdict sml_shm_group_advance(struct sml_shm_group *g) {
  while (sml_shm_is_open(g)) {
    atomic_fetch_add_explicit(&g->step, 1, memory_order_relaxed);
    if (g->stage == 0 && find_mismatch(g)) return SML_SHM_MISMATCH;
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
  return SML_SHM_WAITING;
}

void sml_shm_group_mismatch(const struct sml_shm_group *g, uint32_t *a_out, uint32_t *b_out) {
  *a_out = g->mismatch[0];
  *b_out = g->mismatch[1];
}
