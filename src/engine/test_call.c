/* SPDX-License-Identifier: Apache-2.0
 * The calls of a test world: buffers with guards, the reference result, the comparison. */
#include "engine/test_world.h"

#include <stdio.h>
#include <stdlib.h>

#include "quant/format.h"

#define GUARD_BYTES 64u
#define GUARD 0xa5
#define ELEM_BYTES 4u
#define NAN_BITS UINT32_C(0x7fc00000)

static void *must(void *memory) {
  if (memory != NULL) return memory;
  fputs("test_call: out of memory\n", stderr);
  abort();
}

/* ---- inputs ---- */

/* What a stretch of a float tensor looks like on one rank. */
enum look { LOOK_ZERO, LOOK_SMALL_INTEGERS, LOOK_UNIT, LOOK_ANY_SCALE, LOOK_TINY, LOOK_HUGE, LOOK_ANY_BITS, NUM_LOOKS };

static uint32_t draw_bits(struct sml_prng *prng, enum look look, uint32_t scale) {
  const uint32_t random = (uint32_t)sml_prng_next(prng);
  const uint32_t sign = random & UINT32_C(0x80000000), mantissa = random & UINT32_C(0x7fffff);
  switch (look) {
    case LOOK_ZERO:
      return (random & 1) << 31; /* -0 as well */
    case LOOK_SMALL_INTEGERS: {
      const float f = (float)(int32_t)(random % 2001) - 1000;
      uint32_t bits;
      memcpy(&bits, &f, sizeof bits);
      return bits;
    }
    case LOOK_UNIT:
      return sign | (127 - (random >> 23 & 7)) << 23 | mantissa;
    case LOOK_ANY_SCALE:
      return sign | scale << 23 | mantissa;
    case LOOK_TINY: /* denormals, and both sides of 2^-100 */
      return sign | ((random & 3) == 0 ? 25 + (random >> 8 & 3) : random >> 8 & 1) << 23 | mantissa;
    case LOOK_HUGE:
      return sign | (252 + (random >> 23 & 3) % 3) << 23 | mantissa;
    case LOOK_ANY_BITS:
    case NUM_LOOKS:
      break;
  }
  return random;
}

static void fill(const struct world_call_options *o, struct sml_prng *prng, uint8_t *to) {
  const bool is_float = o->type == SML_FLOAT32, is_special = o->fill == WORLD_FILL_SPECIAL;
  for (uint64_t i = 0; i < o->num_elems;) {
    const uint64_t end = sml_min_u64(o->num_elems, i + 1 + sml_prng_below(prng, 700));
    const uint32_t num_looks = is_special ? NUM_LOOKS : LOOK_TINY;
    enum look look = is_float ? (enum look)sml_prng_below(prng, num_looks) : LOOK_ANY_BITS;
    const uint32_t scale = 30 + (uint32_t)sml_prng_below(prng, 220);
    for (; i < end; i++) {
      const uint32_t bits = draw_bits(prng, look, scale);
      memcpy(to + i * ELEM_BYTES, &bits, ELEM_BYTES);
    }
    if (!is_float || !is_special || sml_prng_below(prng, 4) > 0) continue;
    const uint32_t bits = sml_prng_below(prng, 2) == 0 ? UINT32_C(0xff800000) : UINT32_C(0x7f812345);
    memcpy(to + (end - 1) * ELEM_BYTES, &bits, ELEM_BYTES);
  }
}

/* ---- the reference ---- */

static const float *floats_at(const struct world_call *call, uint32_t rank, uint64_t elem) {
  return (const float *)(const void *)call->parts[rank].pristine + elem;
}

static uint8_t code_of(const struct world_call *call, uint64_t first_elem, uint64_t num_elems) {
  uint8_t code = SML_CODE_ZERO;
  for (uint32_t r = 0; r < call->world_size; r++) {
    const uint8_t of_rank = sml_quant_scalar.block_code(floats_at(call, r, first_elem), num_elems);
    if (of_rank > code) code = of_rank;
  }
  return code;
}

static void expect_floats(const struct world_call *call, uint64_t first_elem, uint64_t num_elems) {
  static _Alignas(64) int32_t acc[SML_MAX_DATAGRAM_BYTES / ELEM_BYTES];
  static uint8_t lanes[SML_MAX_DATAGRAM_BYTES];
  const uint8_t code = code_of(call, first_elem, num_elems);
  const struct sml_quant_kernels *k = &sml_quant_scalar;
  for (uint32_t r = 0; r < call->world_size; r++) {
    k->quantize(lanes, floats_at(call, r, first_elem), num_elems, code, call->world_size);
    if (r == 0) k->set_int32(acc, lanes, num_elems);
    else k->add_int32(acc, lanes, num_elems);
  }
  k->pack_int32(lanes, acc, num_elems);
  k->dequantize((float *)(void *)call->expected + first_elem, lanes, num_elems, code, call->world_size,
                call->options.reduction == SML_AVG);
}

static void expect_ints(const struct world_call *call) {
  for (uint64_t i = 0; i < call->options.num_elems; i++) {
    uint32_t sum = 0, one;
    for (uint32_t r = 0; r < call->world_size; r++) {
      memcpy(&one, call->parts[r].pristine + i * ELEM_BYTES, ELEM_BYTES);
      sum += one;
    }
    memcpy(call->expected + i * ELEM_BYTES, &sum, ELEM_BYTES);
  }
}

static void expect_copies(const struct world_call *call) {
  for (uint32_t r = 0; r < call->world_size; r++)
    memcpy(call->expected + call->parts_begin[r], call->parts[r].pristine + call->parts_begin[r],
           (size_t)(call->parts_begin[r + 1] - call->parts_begin[r]));
}

/* The tensor's blocks, whatever the world. */
typedef const char *block_visitor(const struct world_call *call, uint64_t first_elem, uint64_t num_elems);
static const char *for_each_block(const struct world_call *call, block_visitor *visit) {
  const uint64_t num_elems = call->options.num_elems;
  const char *problem = NULL;
  for (uint64_t first = 0; first < num_elems && problem == NULL; first += SML_BLOCK_ELEMS)
    problem = visit(call, first, sml_min_u64(SML_BLOCK_ELEMS, num_elems - first));
  return problem;
}

static const char *expect_block(const struct world_call *call, uint64_t first_elem, uint64_t num_elems) {
  expect_floats(call, first_elem, num_elems);
  return NULL;
}

/* The reference itself against a plain sum in the widest type there is. */
static const char *check_block(const struct world_call *call, uint64_t first_elem, uint64_t num_elems) {
  const uint8_t code = code_of(call, first_elem, num_elems);
  const bool is_average = call->options.reduction == SML_AVG;
  const float *expected = (const float *)(const void *)call->expected + first_elem;
  for (uint64_t i = 0; i < num_elems; i++) {
    if (code == SML_CODE_NONFINITE) {
      uint32_t bits;
      memcpy(&bits, &expected[i], sizeof bits);
      if (bits != NAN_BITS) return "a block with a non-finite element is not NaN";
      continue;
    }
    long double sum = 0;
    for (uint32_t r = 0; r < call->world_size; r++) sum += floats_at(call, r, first_elem)[i];
    if (is_average) sum /= call->world_size;
    const struct sml_format_shape shape = {.has_exponents = true};
    const long double bound =
        sml_format_error_bound(SML_FORMAT_FLOAT32, shape, code, call->world_size, is_average, expected[i]);
    const long double error = sum > expected[i] ? sum - expected[i] : expected[i] - sum;
    if (error > bound) return "the sum is outside of its error bound";
  }
  return NULL;
}

/* ---- a call ---- */

/* Guards included. */
static uint32_t hash_output(const struct world_part *part) {
  return sml_crc32c(0, part->out - GUARD_BYTES, part->call->num_bytes + 2 * GUARD_BYTES);
}

static void end_part(struct world_part *part) {
  part->num_ended++;
  part->hash_at_end = hash_output(part);
}

/* The leading rank's operation ended; the others of its contributor get what it has got. */
static void note_ended(struct sml_engine_operation *operation) {
  struct world_part *lead = (struct world_part *)(void *)operation;
  struct world_call *call = lead->call;
  for (uint32_t r = 0; r < call->world_size; r++) {
    struct world_part *part = &call->parts[r];
    if (part == lead || &call->parts[world_lead(call->world, r)] != lead) continue;
    part->operation.status = operation->status;
    if (operation->status == SML_OK && operation->out != NULL) memcpy(part->out, lead->out, call->num_bytes);
    end_part(part);
  }
  end_part(lead);
}

/* Memory with a guard before the tensor, and one behind it unless the allocator is to watch that end. */
static uint8_t *guarded(const struct world_call *call, size_t end_bytes, uint8_t **memory_out) {
  const size_t shift = call->options.is_shifted ? 1 + call->options.seed % 3 : 0;
  const size_t total_bytes = GUARD_BYTES + shift + call->num_bytes + end_bytes;
  *memory_out = must(malloc(total_bytes));
  memset(*memory_out, GUARD, total_bytes);
  return *memory_out + GUARD_BYTES + shift;
}

static bool is_discarded(const struct world_call *call, uint32_t of_rank) {
  const uint32_t rank = world_lead(call->world, of_rank);
  return rank < 64 && sml_bit_test(&call->options.discards, rank);
}

static void make_part(struct world_call *call, uint32_t rank, const struct sml_operation_plan *plan) {
  const struct world_options *o = &call->world->options;
  struct world_part *part = &call->parts[rank];
  struct sml_prng prng = {sml_mix64(call->options.seed + rank * UINT64_C(0x1234567))};
  part->call = call;
  part->pristine = must(malloc(call->num_bytes));
  if (call->options.write_input == NULL) fill(&call->options, &prng, part->pristine);
  else call->options.write_input(rank, (float *)(void *)part->pristine, call->options.num_elems);
  part->out = guarded(call, GUARD_BYTES, &part->out_memory);
  if (call->options.is_in_place) part->in = part->out;
  else part->in = guarded(call, 0, &part->in_memory);
  memcpy(part->in, part->pristine, call->num_bytes);
  struct sml_engine_operation *operation = &part->operation;
  const uint32_t elem_bytes = plan->way == SML_REDUCE_COPY ? 1 : ELEM_BYTES;
  const bool is_sum = plan->way == SML_REDUCE_TO_OWNER;
  part->first = is_sum ? (size_t)plan->parts[rank] * elem_bytes : 0;
  part->num_bytes = is_sum ? (size_t)plan->parts[rank + 1] * elem_bytes - part->first : call->num_bytes;
  if (plan->way == SML_REDUCE_COPY) {
    const size_t own = (size_t)plan->parts[rank], own_bytes = (size_t)plan->parts[rank + 1] - own;
    memcpy(part->out + own, part->pristine + own, own_bytes);
  }
  operation->in = plan->way == SML_REDUCE_COPY ? part->out : part->in;
  operation->out = is_discarded(call, rank) ? NULL : part->out + part->first;
  operation->plan = *plan;
  operation->lanes_left = o->num_lanes;
  operation->status = SML_OK;
  operation->on_ended = note_ended;
  for (uint32_t l = 0; l < o->num_lanes; l++) {
    struct sml_range range;
    sml_range_make(&range, plan, l, o->num_lanes, o->chunk_bytes, o->num_slots);
    const size_t codes_bytes = sml_stream_codes_bytes(&range);
    if (codes_bytes == 0) continue;
    operation->codes[l] = must(malloc(codes_bytes));
    memset(operation->codes[l], 0xcc, codes_bytes);
  }
}

struct world_call *world_call_create(struct world *w, const struct world_call_options *options) {
  SML_ASSERT(options->num_elems > 0);
  struct world_call *call = must(calloc(1, sizeof *call));
  call->world = w;
  call->options = *options;
  call->world_size = w->options.world_size;
  call->num_bytes = (size_t)options->num_elems * ELEM_BYTES;
  struct sml_operation_plan plan = {.number = w->jobs[options->job].num_calls++,
                                          .num_elems = options->num_elems,
                                          .key = options->key,
                                          .type = options->type,
                                          .reduction = options->reduction,
                                          .block_elems = options->type == SML_FLOAT32 ? SML_BLOCK_ELEMS : 0,
                                          .is_narrow = w->options.is_narrow && options->type == SML_FLOAT32,
                                          .has_wide_codes = w->options.is_switch_format};
  const uint32_t elem_bytes = options->way == SML_REDUCE_COPY ? ELEM_BYTES : 1;
  for (uint32_t r = 0; r < call->world_size; r++) call->parts_begin[r] = options->parts[r] * elem_bytes;
  call->parts_begin[call->world_size] = options->num_elems * elem_bytes;
  if (options->way != SML_REDUCE_SUM) {
    plan.way = options->way;
    plan.num_parts = call->world_size;
    plan.parts = call->parts_begin;
  }
  if (options->way == SML_REDUCE_COPY) {
    plan.num_elems = call->num_bytes;
    plan.block_elems = 0;
    plan.type = SML_UINT8;
  }
  for (uint32_t r = 0; r < call->world_size; r++) make_part(call, r, &plan);
  call->expected = must(malloc(call->num_bytes));
  if (options->way == SML_REDUCE_COPY) expect_copies(call);
  else if (options->type == SML_FLOAT32) for_each_block(call, expect_block);
  else expect_ints(call);
  return call;
}

void world_call_submit(struct world_call *call, uint32_t rank) {
  struct world_part *part = &call->parts[rank];
  const struct world_job *job = &call->world->jobs[call->options.job];
  SML_ASSERT(!part->is_submitted);
  part->is_submitted = true;
  const uint32_t lead = world_lead(call->world, rank);
  struct world_part *sender = &call->parts[lead];
  uint32_t num_inputs = 0;
  for (uint32_t r = 0; r < call->world_size; r++) {
    if (world_lead(call->world, r) != lead) continue;
    if (!call->parts[r].is_submitted) return; /* the last of them sends for all */
    sender->inputs[num_inputs++] = call->parts[r].in;
  }
  sender->operation.inputs = sender->inputs;
  sender->operation.num_inputs = num_inputs;
  const uint8_t way = call->options.way;
  for (uint32_t l = 0; l < call->world->options.num_lanes; l++)
    sml_lane_push(way == SML_REDUCE_SUM ? job->lanes[lead][l] : job->one_way[way == SML_REDUCE_COPY][lead][l],
                  &sender->operation);
}

void world_call_submit_all(struct world_call *call) {
  for (uint32_t r = 0; r < call->world_size; r++) world_call_submit(call, r);
}

bool world_call_has_ended(const struct world_call *call) {
  for (uint32_t r = 0; r < call->world_size; r++)
    if (call->parts[r].is_submitted && call->parts[r].num_ended == 0) return false;
  return true;
}

bool world_call_run(struct world_call *call, uint64_t limit_ns) {
  struct world *w = call->world;
  const uint64_t until_ns = w->now_ns + limit_ns;
  while (!world_call_has_ended(call))
    if (w->now_ns > until_ns || !world_pass(w)) return world_call_has_ended(call);
  return true;
}

static bool is_guard(const uint8_t *bytes, size_t num_bytes) {
  for (size_t i = 0; i < num_bytes; i++)
    if (bytes[i] != GUARD) return false;
  return true;
}

const char *world_call_check_guards(const struct world_call *call, uint32_t rank) {
  const struct world_part *part = &call->parts[rank];
  if (part->num_ended > 0 && part->hash_at_end != hash_output(part)) return "the output was written after the end";
  if (!is_guard(part->out - GUARD_BYTES, GUARD_BYTES)) return "bytes before the output were written";
  if (!is_guard(part->out + call->num_bytes, GUARD_BYTES)) return "bytes behind the output were written";
  if (part->in == part->out) return NULL;
  if (!is_guard(part->in - GUARD_BYTES, GUARD_BYTES)) return "bytes before the input were written";
  if (memcmp(part->in, part->pristine, call->num_bytes) != 0) return "the input was written";
  return NULL;
}

/* Beside the rank's own part. */
static bool is_rest_untouched(const struct world_part *part) {
  const size_t end = part->first + part->num_bytes, rest = part->call->num_bytes - end;
  if (part->in == part->out)
    return memcmp(part->out, part->pristine, part->first) == 0 &&
           memcmp(part->out + end, part->pristine + end, rest) == 0;
  return is_guard(part->out, part->first) && is_guard(part->out + end, rest);
}

static const char *check_part(const struct world_call *call, uint32_t rank) {
  const struct world_part *part = &call->parts[rank];
  if (part->num_ended != 1) return part->num_ended == 0 ? "the operation has not ended" : "it ended more than once";
  if (part->operation.status != SML_OK) return "the operation failed";
  if (is_discarded(call, rank)) {
    const bool is_kept = part->in == part->out ? memcmp(part->out, part->pristine, call->num_bytes) == 0
                                               : is_guard(part->out, call->num_bytes);
    if (!is_kept) return "a result was written that was to be thrown away";
  } else if (memcmp(part->out + part->first, call->expected + part->first, part->num_bytes) != 0) {
    return "the bits differ from the reference";
  }
  return is_rest_untouched(part) ? world_call_check_guards(call, rank) : "another rank's part was written";
}

const char *world_call_check(const struct world_call *call) {
  for (uint32_t r = 0; r < call->world_size; r++) {
    const char *problem = check_part(call, r);
    if (problem != NULL) return problem;
  }
  if (call->options.type != SML_FLOAT32 || call->options.way == SML_REDUCE_COPY) return NULL;
  return for_each_block(call, check_block);
}

const char *world_call_check_failed(const struct world_call *call, uint32_t rank, int32_t status) {
  const struct world_part *part = &call->parts[rank];
  if (part->num_ended != 1) return part->num_ended == 0 ? "the operation has not ended" : "it ended more than once";
  if (part->operation.status != status) return "the operation ended with another status";
  return world_call_check_guards(call, rank);
}

void world_call_free(struct world_call *call) {
  for (uint32_t r = 0; r < call->world_size; r++) {
    struct world_part *part = &call->parts[r];
    for (uint32_t l = 0; l < WORLD_MAX_LANES; l++) free(part->operation.codes[l]);
    free(part->in_memory);
    free(part->out_memory);
    free(part->pristine);
  }
  free(call->expected);
  free(call);
}
