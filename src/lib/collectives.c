/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/buffer.h"
#include "lib/operation.h"
#include "lib/uncancelled.h"
#include "method/lanes.h"

#define KEY_START UINT64_C(0x636f6c6c6b310001) /* any constant; part of the protocol */
#define LANE_BYTES sizeof(int32_t)

enum kind { REDUCE_SCATTER = 1, ALL_GATHER, BROADCAST, REDUCE, BARRIER };
static const char *const names[] = {[REDUCE_SCATTER] = "reduce-scatter",
                                    [ALL_GATHER] = "all-gather",
                                    [BROADCAST] = "broadcast",
                                    [REDUCE] = "reduce",
                                    [BARRIER] = "barrier"};

/* ---- what is alike on all ranks ---- */

#define NO_ROOT UINT32_MAX

/* This rank's place in all parts, which lie one behind the other; in elements. */
struct part {
  size_t first, count, total;
  uint64_t key;
  size_t each; /* of every rank, unless `counts` has them */
  const size_t *counts;
  uint32_t root; /* who has, or gets, all of it; NO_ROOT: each rank has a part */
};

static sml_status find_part(const struct sml_job_shape *shape, enum kind kind, size_t count, const size_t *counts,
                            size_t elem_bytes, struct part *part_out) {
  struct part p = {.key = sml_collective_mix(KEY_START, kind), .each = count, .counts = counts, .root = NO_ROOT};
  for (uint32_t r = 0; r < shape->world_size; r++) {
    const size_t of_rank = counts != NULL ? counts[r] : count;
    if (of_rank > PTRDIFF_MAX / elem_bytes - p.total)
      return sml_fail(SML_ERR_INVALID_ARGUMENT, "the parts up to rank %u's, of %zu, are too large for a buffer", r,
                      of_rank);
    if (r == shape->rank) p.first = p.total;
    if (r == shape->rank) p.count = of_rank;
    p.total += of_rank;
    p.key = sml_collective_mix(p.key, of_rank);
  }
  *part_out = p;
  return SML_OK;
}

static sml_status check_root(const struct sml_job_shape *shape, uint32_t root) {
  if (root < shape->world_size) return SML_OK;
  return sml_fail(SML_ERR_INVALID_ARGUMENT, "root is %u: the job has %u ranks", root, shape->world_size);
}

static struct part make_root_part(const struct sml_job_shape *shape, enum kind kind, uint32_t root, size_t total) {
  return (struct part){.total = total,
                       .count = shape->rank == root ? total : 0,
                       .root = root,
                       .key = sml_collective_mix(sml_collective_mix(KEY_START, kind), root)};
}

static void list_parts(const struct sml_job_shape *shape, const struct part *p, uint64_t *parts) {
  uint64_t begin = 0;
  for (uint32_t r = 0; r < shape->world_size; r++) {
    parts[r] = begin;
    if (p->root != NO_ROOT) begin += p->root == r ? p->total : 0;
    else begin += p->counts != NULL ? p->counts[r] : p->each;
  }
  parts[shape->world_size] = begin;
}

/* A part's buffer lies in its place of the whole, or apart from it. */
static sml_status check_place(const void *whole, size_t whole_bytes, const void *part, size_t part_bytes,
                              size_t place) {
  if (whole == NULL && whole_bytes > 0) return sml_fail(SML_ERR_INVALID_ARGUMENT, "the buffer of all parts is NULL");
  if (part == NULL && part_bytes > 0)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "the buffer of this rank's part is NULL");
  const uintptr_t w = (uintptr_t)whole, p = (uintptr_t)part;
  if (part_bytes == 0 || p == w + place || p + part_bytes <= w || p >= w + whole_bytes) return SML_OK;
  return sml_fail(SML_ERR_INVALID_ARGUMENT,
                  "in and out overlap: a part must lie in its own place of the whole, or apart from it");
}

static sml_status check_call(const sml_job *job, const sml_operation_options *options, sml_operation **operation_out,
                             sml_operation_options *copy_out) {
  if (operation_out == NULL) return sml_fail(SML_ERR_INVALID_ARGUMENT, "operation_out is NULL");
  *operation_out = NULL;
  const sml_status status = sml_job_check(job);
  *copy_out = (sml_operation_options)SML_OPERATION_OPTIONS_INIT;
  return status != SML_OK || options == NULL
             ? status
             : sml_options_copy(copy_out, sizeof *copy_out, options, "sml_operation_options");
}

/* ---- calls ---- */

static struct sml_collective *make(enum kind kind, uint64_t key, size_t scratch_bytes) {
  struct sml_collective *c = sml_buffer_alloc(sizeof(struct sml_collective) + scratch_bytes);
  if (c == NULL) (void)sml_fail(SML_ERR_NO_MEMORY, "no memory for the %zu bytes of a %s", scratch_bytes, names[kind]);
  else *c = (struct sml_collective){.name = names[kind], .key = key};
  return c;
}

static sml_status call(sml_job *job, struct sml_call *what, sml_operation **operation_out) {
  const sml_status status = sml_operation_call(job, what, operation_out);
  if (status != SML_OK) free(what->collective);
  return status;
}

/* By one-way windows, where the call can go so: else *is_taken_out is false. A sum's `out` has this rank's part alone.
 * One that lies in the input is written at the end: until then codes are made of that. */
static sml_status call_one_way(sml_job *job, const struct sml_call *call_of_caller, enum kind kind,
                               const struct part *part, bool *is_taken_out, sml_operation **operation_out) {
  const struct sml_job_shape *shape = sml_job_shape(job);
  struct sml_call what = *call_of_caller;
  *is_taken_out = false;
  if (!sml_job_lanes_go_one_way(shape->lanes)) return SML_OK;
  const bool is_copy = kind == ALL_GATHER || kind == BROADCAST;
  const size_t parts_bytes = sml_align_up((shape->world_size + 1u) * sizeof(uint64_t), 64);
  const size_t out_bytes = part->count * sml_format_elem_bytes((uint32_t)what.type);
  const uintptr_t in = (uintptr_t)what.in, out = (uintptr_t)what.out;
  const bool is_apart = is_copy || out < in || out >= in + part->total * sml_format_elem_bytes((uint32_t)what.type);
  struct sml_collective *c = make(kind, part->key, parts_bytes + (is_apart ? 0 : out_bytes));
  if (c == NULL) return SML_ERR_NO_MEMORY;
  c->num_bytes = is_copy ? part->total : 0;
  c->way = is_copy ? SML_REDUCE_COPY : SML_REDUCE_TO_OWNER;
  c->parts = (uint64_t *)(void *)c->scratch;
  list_parts(shape, part, c->parts);
  what.collective = c;
  if (!is_apart) {
    c->from = c->scratch + parts_bytes;
    c->out = what.out;
    c->out_bytes = out_bytes;
    what.out = c->scratch + parts_bytes;
  }
  *is_taken_out = sml_operation_goes_one_way(shape, &what);
  if (*is_taken_out) return call(job, &what, operation_out);
  free(c);
  return SML_OK;
}

/* The sum of `count` elements goes to memory of its own; out gets out_bytes of it, from byte `place` on. */
static sml_status sum_apart(sml_job *job, struct sml_call *what, enum kind kind, uint64_t key, void *out,
                            size_t out_bytes, size_t place, sml_operation **operation_out) {
  what->collective = make(kind, key, what->count * sml_format_elem_bytes((uint32_t)what->type));
  if (what->collective == NULL) return SML_ERR_NO_MEMORY;
  what->out = what->collective->scratch;
  what->collective->from = what->collective->scratch + place;
  what->collective->out = out;
  what->collective->out_bytes = out_bytes;
  return call(job, what, operation_out);
}

/* All ranks get what one rank has of each byte: the sum of it and of zeros, as int32. `from` and from_bytes: what this
 * one has, at byte `place` of `out`. */
static sml_status copy_to_all(sml_job *job, enum kind kind, const struct part *part, const void *from, void *out,
                              const sml_operation_options *options, sml_operation **operation_out) {
  const size_t from_bytes = part->count, place = part->first, num_bytes = part->total;
  sml_operation_options o = *options;
  o.num_starts = 0; /* bytes have no blocks */
  const struct sml_call copy = {
      .in = out, .out = out, .count = num_bytes, .type = SML_UINT8, .reduction = SML_SUM, .options = &o};
  bool is_taken;
  if (from_bytes > 0) memmove((uint8_t *)out + place, from, from_bytes);
  const sml_status status = call_one_way(job, &copy, kind, part, &is_taken, operation_out);
  if (is_taken || status != SML_OK) return status;
  const size_t lanes_bytes = sml_align_up(num_bytes, LANE_BYTES);
  const bool is_apart = lanes_bytes != num_bytes;
  struct sml_collective *c = make(kind, part->key, is_apart ? lanes_bytes : 0);
  if (c == NULL) return SML_ERR_NO_MEMORY;
  uint8_t *lanes = is_apart ? c->scratch : out;
  c->num_bytes = num_bytes;
  c->out = out;
  c->out_bytes = num_bytes;
  c->from = is_apart ? c->scratch : NULL;
  if (from_bytes > 0) memmove(lanes + place, (uint8_t *)out + place, from_bytes);
  if (num_bytes > 0) {
    memset(lanes, 0, place);
    memset(lanes + place + from_bytes, 0, lanes_bytes - place - from_bytes);
  }
  return call(job,
              &(struct sml_call){.in = lanes,
                                 .out = lanes,
                                 .count = lanes_bytes / LANE_BYTES,
                                 .type = SML_INT32,
                                 .reduction = SML_SUM,
                                 .options = &o,
                                 .collective = c},
              operation_out);
}

sml_status sml_allreduce(sml_job *job, const void *in, void *out, size_t count, sml_type type,
                         sml_reduction reduction, const sml_operation_options *options,
                         sml_operation **operation_out) {
  SML_UNCANCELLED;
  struct sml_call call = {
      .in = in, .out = out, .count = count, .type = type, .reduction = reduction, .options = options};
  return sml_operation_call(job, &call, operation_out);
}

sml_status sml_reduce_scatter(sml_job *job, const void *in, void *out, size_t count, const size_t *counts,
                              sml_type type, sml_reduction reduction, const sml_operation_options *options,
                              sml_operation **operation_out) {
  SML_UNCANCELLED;
  sml_operation_options o;
  struct part part = {0};
  sml_status status = check_call(job, options, operation_out, &o);
  if (status == SML_OK) status = find_part(sml_job_shape(job), REDUCE_SCATTER, count, counts, sizeof(uint64_t), &part);
  if (status == SML_OK) status = sml_operation_check_type(sml_job_shape(job), &o, type, reduction, part.total);
  if (status != SML_OK) return status;
  const size_t elem_bytes = sml_format_elem_bytes((uint32_t)type);
  status = check_place(in, part.total * elem_bytes, out, part.count * elem_bytes, part.first * elem_bytes);
  if (status != SML_OK) return status;
  struct sml_call what = {
      .in = in, .out = out, .count = part.total, .type = type, .reduction = reduction, .options = &o};
  bool is_taken;
  status = call_one_way(job, &what, REDUCE_SCATTER, &part, &is_taken, operation_out);
  if (is_taken || status != SML_OK) return status;
  return sum_apart(job, &what, REDUCE_SCATTER, part.key, out, part.count * elem_bytes, part.first * elem_bytes,
                   operation_out);
}

sml_status sml_reduce(sml_job *job, const void *in, void *out, size_t count, sml_type type, sml_reduction reduction,
                      uint32_t root, const sml_operation_options *options, sml_operation **operation_out) {
  SML_UNCANCELLED;
  sml_operation_options o;
  sml_status status = check_call(job, options, operation_out, &o);
  if (status == SML_OK) status = check_root(sml_job_shape(job), root);
  if (status == SML_OK) status = sml_operation_check_type(sml_job_shape(job), &o, type, reduction, count);
  if (status != SML_OK) return status;
  if (count > PTRDIFF_MAX / sizeof(uint64_t))
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "count is %zu: no buffer is that large", count);
  const struct part part = make_root_part(sml_job_shape(job), REDUCE, root, count);
  struct sml_call what = {
      .in = in, .out = out, .count = count, .type = type, .reduction = reduction, .options = &o};
  const size_t elem_bytes = sml_format_elem_bytes((uint32_t)type);
  status = check_place(in, count * elem_bytes, out, part.count * elem_bytes, 0);
  if (status != SML_OK) return status;
  bool is_taken;
  status = call_one_way(job, &what, REDUCE, &part, &is_taken, operation_out);
  if (is_taken || status != SML_OK) return status;
  if (sml_job_shape(job)->rank != root) return sum_apart(job, &what, REDUCE, part.key, NULL, 0, 0, operation_out);
  what.collective = make(REDUCE, part.key, 0);
  return what.collective != NULL ? call(job, &what, operation_out) : SML_ERR_NO_MEMORY;
}

sml_status sml_all_gather(sml_job *job, const void *in, void *out, size_t num_bytes, const size_t *parts_bytes,
                          const sml_operation_options *options, sml_operation **operation_out) {
  SML_UNCANCELLED;
  sml_operation_options o;
  struct part part = {0};
  sml_status status = check_call(job, options, operation_out, &o);
  if (status == SML_OK) status = find_part(sml_job_shape(job), ALL_GATHER, num_bytes, parts_bytes, 1, &part);
  if (status == SML_OK) status = check_place(out, part.total, in, part.count, part.first);
  if (status != SML_OK) return status;
  return copy_to_all(job, ALL_GATHER, &part, in, out, &o, operation_out);
}

sml_status sml_broadcast(sml_job *job, void *data, size_t num_bytes, uint32_t root,
                         const sml_operation_options *options, sml_operation **operation_out) {
  SML_UNCANCELLED;
  sml_operation_options o;
  sml_status status = check_call(job, options, operation_out, &o);
  if (status == SML_OK) status = check_root(sml_job_shape(job), root);
  if (status != SML_OK) return status;
  if (num_bytes > PTRDIFF_MAX)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "num_bytes is %zu: no buffer is that large", num_bytes);
  if (data == NULL && num_bytes > 0) return sml_fail(SML_ERR_INVALID_ARGUMENT, "data is NULL");
  struct part part = make_root_part(sml_job_shape(job), BROADCAST, root, num_bytes);
  /* The tag counts lanes, and 5 to 8 bytes are two. */
  if (num_bytes % LANE_BYTES != 0) part.key = sml_collective_mix(part.key, num_bytes);
  return copy_to_all(job, BROADCAST, &part, data, data, &o, operation_out);
}

sml_status sml_barrier(sml_job *job, const sml_operation_options *options, sml_operation **operation_out) {
  SML_UNCANCELLED;
  sml_operation_options o;
  const sml_status status = check_call(job, options, operation_out, &o);
  if (status != SML_OK) return status;
  struct sml_collective *c = make(BARRIER, sml_collective_mix(KEY_START, BARRIER), LANE_BYTES);
  if (c == NULL) return SML_ERR_NO_MEMORY;
  memset(c->scratch, 0, LANE_BYTES);
  o.num_starts = 0;
  return call(job,
              &(struct sml_call){.in = c->scratch,
                                 .out = c->scratch,
                                 .count = 1,
                                 .type = SML_INT32,
                                 .reduction = SML_SUM,
                                 .options = &o,
                                 .collective = c},
              operation_out);
}
