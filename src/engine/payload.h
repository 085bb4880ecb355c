/* SPDX-License-Identifier: Apache-2.0
 * Tensor <-> payload: core, quant and frames meet here. It is inline: worker_engine.c does this for each chunk. */
#pragma once

#include "engine/switch_format.h"
#include "engine/worker_engine_internal.h"
#include "quant/check.h"
#include "quant/images.h"
#include "quant/narrow.h"
#include "switchml/switchml.h"

static inline const void *elem_at(const struct sml_format *f, const void *tensor, uint64_t elem) {
  return (const uint8_t *)tensor + elem * f->elem_bytes;
}

static inline uint32_t num_inputs_of(const struct sml_engine_operation *op) {
  return op->num_inputs > 1 ? op->num_inputs : 1;
}

static inline const void *input_of(const struct sml_engine_operation *op, uint32_t i) {
  return op->num_inputs > 1 ? op->inputs[i] : op->in;
}

static inline uint8_t block_code_of(const struct sml_quant_kernels *k, const struct sml_engine_operation *op,
                                    const struct sml_format *f, uint64_t elem, size_t num_elems) {
  uint8_t code = f->block_code(k, elem_at(f, input_of(op, 0), elem), num_elems);
  for (uint32_t i = 1; i < num_inputs_of(op); i++) {
    const uint8_t other = f->block_code(k, elem_at(f, input_of(op, i), elem), num_elems);
    if (other > code) code = other;
  }
  return code;
}

/* Elements of a data chunk that share a code: what the chunk has of one block. If each element has lanes of its own, a
 * run goes on over blocks with the same code, since each call of a kernel costs. Without exponents a run is the whole
 * chunk. */
struct run {
  const uint8_t *code; /* of its last block; without exponents: 0 */
  uint32_t num_elems;
  uint32_t left; /* elements of the chunk from the run's first one on */
};

static inline void extend_run(const struct sml_operation_plan *plan, struct run *run) {
  if (plan->lane_elems <= 1)
    for (; run->num_elems < run->left && run->code[1] == *run->code; run->code++) run->num_elems += plan->block_elems;
  run->num_elems = sml_min_u32(run->num_elems, run->left);
}

static inline struct run first_run(const struct sml_lane *lane, const struct sml_engine_operation *op,
                                   const struct sml_chunk *c) {
  static const uint8_t no_code = 0;
  const uint32_t block_elems = op->plan.block_elems;
  struct run run = {.code = &no_code, .num_elems = c->num_elems, .left = c->num_elems};
  if (block_elems == 0) return run;
  run.code = op->codes[lane->options.lane] + c->block;
  run.num_elems = block_elems - ((uint32_t)c->first_elem & (block_elems - 1)); /* ranges begin with a block */
  extend_run(&op->plan, &run);
  return run;
}

/* False: that was the last one. */
static inline bool next_run(const struct sml_operation_plan *plan, struct run *run) {
  run->left -= run->num_elems;
  if (run->left == 0) return false;
  run->num_elems = plan->block_elems;
  run->code++;
  extend_run(plan, run);
  return true;
}

static inline struct sml_images images_of(const struct sml_engine_operation *op) {
  return sml_images_of(op->plan.type, op->plan.reduction, sml_engine_shape(&op->plan));
}

static inline void fill_images(const struct sml_quant_kernels *k, const struct sml_engine_operation *op,
                             const struct sml_chunk *c, uint8_t *payload) {
  const struct sml_format *f = sml_engine_format(&op->plan);
  const struct sml_images images = images_of(op);
  sml_images_put(payload, elem_at(f, input_of(op, 0), c->first_elem), c->num_elems, images);
  for (uint32_t i = 1; i < num_inputs_of(op); i++)
    sml_images_add(k, payload, elem_at(f, input_of(op, i), c->first_elem), c->num_elems, images);
}

/* has_lanes: they are added to those that are there. */
static inline void fill_lanes(const struct sml_quant_kernels *k, const struct sml_lane *lane,
                              const struct sml_engine_operation *op, const struct sml_chunk *c, uint8_t *payload,
                              bool has_lanes) {
  const struct sml_format *f = sml_engine_format(&op->plan);
  for (uint32_t i = 0; i < num_inputs_of(op); i++) {
    const uint8_t *in = elem_at(f, input_of(op, i), c->first_elem);
    uint8_t *lanes = payload;
    struct run run = first_run(lane, op, c);
    do {
      (i == 0 && !has_lanes ? f->put : f->add)(k, lanes, in, run.num_elems, *run.code, lane->options.worker.world_size);
      in += (size_t)run.num_elems * f->elem_bytes;
      lanes += (size_t)run.num_elems * f->unit_bytes;
    } while (next_run(&op->plan, &run));
  }
}

static inline void fill_codes(const struct sml_quant_kernels *k, const struct sml_engine_operation *op, uint8_t *codes,
                              uint64_t first_elem, uint32_t num_codes) {
  const struct sml_format *f = sml_engine_format(&op->plan);
  const uint32_t block_elems = op->plan.block_elems;
  for (uint32_t i = 0; i < num_codes; i++) {
    const uint64_t elem = first_elem + (uint64_t)i * block_elems;
    codes[i] = block_code_of(k, op, f, elem, (size_t)sml_min_u64(block_elems, op->plan.num_elems - elem));
  }
}

/* One exponent code for each block of the group, one way of some parts. They are kept where the result's codes will be.
 * None of those may be smaller. */
static inline void fill_exponents(const struct sml_quant_kernels *k, const struct sml_lane *lane,
                                  const struct sml_send *send, uint8_t *payload) {
  const struct sml_engine_operation *op = send->cookie;
  const struct sml_chunk *c = &send->chunk;
  uint8_t *codes = op->codes[lane->options.lane] + c->block;
  if (op->plan.way == SML_REDUCE_SUM) {
    fill_codes(k, op, codes, c->first_elem, c->num_elems);
  } else {
    uint64_t block;
    for (uint32_t part = c->owner, done = 0; done < c->num_elems; part++) {
      const uint32_t num_codes = sml_range_codes(send->range, c->data_chunk, part, &block);
      if (num_codes > 0) fill_codes(k, op, codes + done, block * op->plan.block_elems, num_codes);
      done += num_codes;
    }
  }
  if (op->plan.has_wide_codes) sml_switch_put_codes(payload, codes, c->num_elems);
  else memcpy(payload, codes, c->num_elems);
}

/* Where the check word of a data chunk stands. */
static inline uint32_t check_offset(const struct sml_lane *lane, const struct sml_chunk *c) {
  return lane->options.worker.packet_lanes != 0 ? lane->options.worker.chunk_bytes : c->payload_bytes;
}

/* The check word of a data chunk's lanes: this contributor's, or (is_sum) the one that all of them add up to. */
static inline uint32_t check_of(const struct sml_worker_engine *e, const struct sml_lane *lane,
                                const struct sml_engine_operation *op, const struct sml_chunk *c, uint32_t tag,
                                const uint8_t *lanes, bool is_sum) {
  const struct sml_worker_options *o = &lane->options.worker;
  const uint32_t block_elems = op->plan.block_elems;
  const uint8_t *codes = NULL;
  uint32_t num_codes = 0;
  if (block_elems != 0) {
    codes = op->codes[lane->options.lane] + c->block;
    num_codes = (uint32_t)sml_div_ceil((c->first_elem & (block_elems - 1)) + c->num_elems, block_elems);
  }
  const struct sml_check check = sml_check_make(o->epoch, tag, codes, num_codes);
  return sml_check_word(e->options.kernels, &check, lanes, c->payload_bytes / 4, is_sum ? o->num_contributors : 1,
                        is_sum ? lane->all_checks : lane->own_check);
}

/* Is this contributor's part in the images? Then combining them with its own again changes nothing. (A checked job has
 * no products.) */
static inline bool has_own_images(struct sml_worker_engine *e, const struct sml_engine_operation *op,
                                const struct sml_chunk *c, const uint8_t *payload) {
  uint8_t *combined = e->wide + sizeof e->wide / 2;
  fill_images(e->options.kernels, op, c, e->wide);
  memcpy(combined, payload, c->payload_bytes);
  sml_images_combine(e->options.kernels, combined, e->wide, c->payload_bytes / 4,
                   (enum sml_combine)op->plan.wire_reducer);
  return memcmp(combined, payload, c->payload_bytes) == 0;
}

/* Is this the sum of one contribution of each contributor? For exponents and images: is none below this rank's own? */
static inline bool sml_payload_is_right(struct sml_worker_engine *e, const struct sml_lane *lane,
                                        const struct sml_accept *a, uint32_t tag, const uint8_t *payload) {
  const struct sml_engine_operation *op = a->cookie;
  const struct sml_chunk *c = &a->chunk;
  if (!lane->options.worker.is_checked) return true;
  if (!c->is_exponent && op->plan.wire_reducer != 0) return has_own_images(e, op, c, payload);
  if (!c->is_exponent)
    return sml_load_be32(payload + check_offset(lane, c)) == check_of(e, lane, op, c, tag, payload, true);
  const uint8_t *own = op->codes[lane->options.lane] + c->block;
  const bool is_wide = lane->options.worker.packet_lanes != 0;
  for (uint32_t i = 0; i < c->num_elems; i++)
    if ((is_wide ? sml_load_be32(payload + 4 * (size_t)i) : payload[i]) < own[i]) return false;
  return true;
}

static inline void sml_payload_seal(const struct sml_lane *lane, const struct sml_header *h, uint8_t *frame) {
  if (lane->options.worker.packet_lanes != 0) sml_wire_seal_for_switch(frame, h);
  else sml_wire_seal(frame, h, &lane->options.seal);
}

static inline void sml_payload_fill(struct sml_worker_engine *e, const struct sml_lane *lane,
                                    const struct sml_send *send, uint8_t *frame) {
  const struct sml_quant_kernels *k = e->options.kernels;
  const struct sml_engine_operation *op = send->cookie;
  const struct sml_chunk *c = &send->chunk;
  uint8_t *payload = frame + sml_head_bytes(lane->options.seal.is_keyed);
  const bool is_narrow = (send->header.flags & SML_FLAG_NARROW) != 0;
  uint8_t *lanes = is_narrow ? e->wide : payload;
  if (c->is_fence) payload[0] = send->fence_byte;
  else if (c->is_exponent) fill_exponents(k, lane, send, payload);
  else if (op->plan.wire_reducer != 0) fill_images(k, op, c, payload);
  else if (op->lanes != NULL) op->lanes->put(op, payload, c->first_elem, c->num_elems);
  else if (op->plan.way == SML_REDUCE_COPY) memcpy(payload, (const uint8_t *)op->in + c->first_elem, c->num_elems);
  else fill_lanes(k, lane, op, c, lanes, false);
  if (is_narrow) sml_narrow_lanes(payload, lanes, c->payload_bytes / 4);
  if (lane->options.worker.packet_lanes != 0)
    memset(payload + c->payload_bytes, 0, send->header.payload_bytes - c->payload_bytes);
  if (send->header.flags & SML_FLAG_CHECKED)
    sml_store_be32(payload + check_offset(lane, c), check_of(e, lane, op, c, send->header.tag, payload, false));
  sml_payload_seal(lane, &send->header, frame);
}

#define LINE_BYTES 64u

/* Owners take turns in a row, so no processor sees that an owner's next copy goes right behind this one. */
static inline void store_copy(uint8_t *to, const uint8_t *payload, uint32_t num_bytes) {
  memcpy(to, payload, num_bytes);
  for (uint32_t i = 0; i < num_bytes; i += LINE_BYTES) __builtin_prefetch(to + num_bytes + i, 1);
}

static inline void sml_payload_store(struct sml_worker_engine *e, struct sml_lane *lane, const struct sml_accept *a,
                                     const uint8_t *payload) {
  const struct sml_quant_kernels *k = e->options.kernels;
  struct sml_engine_operation *op = a->cookie;
  const struct sml_chunk *c = &a->chunk;
  if (c->is_fence) return;
  if (c->is_exponent) {
    uint8_t *codes = op->codes[lane->options.lane] + c->block;
    if (lane->options.worker.packet_lanes == 0) memcpy(codes, payload, c->num_elems);
    else sml_switch_take_codes(codes, payload, c->num_elems);
    return;
  }
  if (op->out == NULL) return; /* others need this rank's contribution; it has the sum already */
  if (op->lanes != NULL) {
    op->lanes->get(op, payload, c->first_elem, c->num_elems);
    return;
  }
  if (op->plan.way == SML_REDUCE_COPY) {
    store_copy((uint8_t *)op->out + c->first_elem, payload, c->num_elems);
    return;
  }
  const struct sml_format *f = sml_engine_format(&op->plan);
  uint64_t first_elem = c->first_elem;
  if (op->plan.way == SML_REDUCE_TO_OWNER) { /* `out` has this rank's part alone */
    memcpy(e->wide, payload, c->payload_bytes);
    fill_lanes(k, lane, op, c, e->wide, true);
    payload = e->wide;
    first_elem -= op->plan.parts[c->owner];
  }
  uint8_t *out = (uint8_t *)op->out + first_elem * f->elem_bytes;
  if (op->plan.wire_reducer != 0) {
    sml_images_get(out, payload, c->num_elems, images_of(op));
    return;
  }
  struct run run = first_run(lane, op, c);
  do {
    f->get(k, out, payload, run.num_elems, *run.code, lane->options.worker.world_size, op->plan.reduction == SML_AVG);
    out += (size_t)run.num_elems * f->elem_bytes;
    payload += (size_t)run.num_elems * f->unit_bytes;
  } while (next_run(&op->plan, &run));
}
