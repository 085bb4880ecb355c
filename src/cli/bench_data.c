/* SPDX-License-Identifier: Apache-2.0
 * The inputs of a run, and the check of its results. The check makes each block again from all ranks'
 * inputs with the scalar kernels, so memory stays one block whatever the tensor's size. */
#include <math.h>
#include <stdlib.h>

#include "cli/bench.h"
#include "core/stream.h"
#include "quant/limbs.h"
#include "quant/quant.h"

#define NUM_BINADES 60u
#define WINDOW_ELEMS 1024u   /* shares an upper end of its exponents */
#define ZERO_RUN_ELEMS 8192u /* holds several whole chunks */
#define MAX_BLOCK_ELEMS 16384u

static uint64_t hash_of(uint64_t seed, uint64_t what, uint64_t index) {
  return sml_mix64(sml_mix64(seed + what * UINT64_C(0x9e3779b97f4a7c15)) +
                   index * UINT64_C(0xd1342543de82ef95));
}

enum hash_use { USE_ALL_ZERO = 1, USE_SPREAD = 2, USE_RANK = 16 };

static bool is_zero_run(uint64_t seed, uint32_t rank, uint64_t run) {
  if (run == 0) return false; /* small tensors have something to sum */
  if (hash_of(seed, USE_ALL_ZERO, run) % 8 == 0) return true;
  return hash_of(seed, USE_RANK + rank, ~run) % 16 == 0;
}

static float make_float(uint64_t random, uint32_t num_binades) {
  uint32_t exponent = 127 - NUM_BINADES / 2 + (uint32_t)((random >> 32) * num_binades >> 32);
  uint32_t bits = (uint32_t)(random & 0x807fffffu) | exponent << 23;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void fill_float(float *out, uint64_t seed, uint32_t rank, uint64_t first_elem, size_t num_elems) {
  const uint64_t base = hash_of(seed, USE_RANK + rank, 0);
  uint32_t num_binades = 1;
  bool is_zero = false;
  for (size_t i = 0; i < num_elems; i++) {
    uint64_t index = first_elem + i;
    if (i == 0 || index % WINDOW_ELEMS == 0) {
      num_binades = 1 + (uint32_t)(hash_of(seed, USE_SPREAD, index / WINDOW_ELEMS) % NUM_BINADES);
      is_zero = is_zero_run(seed, rank, index / ZERO_RUN_ELEMS);
    }
    uint64_t random = sml_mix64(base + index * UINT64_C(0x9e3779b97f4a7c15));
    out[i] = is_zero ? 0.0f : make_float(random, num_binades);
  }
}

void sml_bench_fill(void *out, sml_type type, uint64_t seed, uint32_t rank, uint64_t first_elem,
                    size_t num_elems) {
  if (type == SML_FLOAT32) {
    fill_float(out, seed, rank, first_elem, num_elems);
    return;
  }
  const uint64_t base = hash_of(seed, USE_RANK + rank, 0);
  int32_t *values = out;
  for (size_t i = 0; i < num_elems; i++)
    values[i] = (int32_t)(uint32_t)sml_mix64(base + (first_elem + i) * UINT64_C(0x9e3779b97f4a7c15));
}

/* One block while it is made again. */
struct block {
  float in[MAX_BLOCK_ELEMS];
  _Alignas(64) int32_t acc[MAX_BLOCK_ELEMS];
  uint32_t lanes[MAX_BLOCK_ELEMS];
  float reference[MAX_BLOCK_ELEMS];
  double sum[MAX_BLOCK_ELEMS], magnitude[MAX_BLOCK_ELEMS];
};

static bool is_exact(const struct sml_bench_shape *shape) {
  return shape->type == SML_FLOAT32 && sml_limbs_is_exact(shape->num_elems, shape->world_size);
}

static struct sml_operation_plan make_plan(const struct sml_bench_shape *shape) {
  const bool has_exponents = shape->type == SML_FLOAT32 && !is_exact(shape);
  return (struct sml_operation_plan){
      .num_elems = shape->num_elems,
      .type = (uint8_t)shape->type,
      .reduction = (uint8_t)shape->reduction,
      .has_exponents = has_exponents,
      .block_chunks = has_exponents && shape->block_chunks > 1 ? (uint16_t)shape->block_chunks : 0,
      .elem_lanes = (uint8_t)(is_exact(shape) ? sml_limbs_per_elem(shape->world_size) : 0)};
}

/* Of at most SML_LIMBS_MAX_ELEMS. */
static void make_exact_block(struct block *b, const struct sml_bench_shape *shape, uint64_t first_elem,
                             size_t num_elems) {
  uint8_t lanes[4 * 16 * SML_LIMBS_MAX_ELEMS];
  memset(lanes, 0, sizeof lanes);
  for (uint32_t rank = 0; rank < shape->world_size; rank++) {
    sml_bench_fill(b->in, SML_FLOAT32, shape->seed, rank, first_elem, num_elems);
    sml_limbs_add(lanes, b->in, num_elems, shape->world_size);
  }
  sml_limbs_round(b->reference, lanes, num_elems, shape->world_size, shape->reduction == SML_AVG);
}

static uint8_t make_float_block(struct block *b, const struct sml_bench_shape *shape, uint64_t first_elem,
                                size_t num_elems) {
  const struct sml_quant_kernels *k = &sml_quant_scalar;
  const bool average = shape->reduction == SML_AVG;
  uint8_t code = 0;
  memset(b->sum, 0, num_elems * sizeof b->sum[0]);
  memset(b->magnitude, 0, num_elems * sizeof b->magnitude[0]);
  memset(b->acc, 0, num_elems * sizeof b->acc[0]);
  for (uint32_t rank = 0; rank < shape->world_size; rank++) {
    sml_bench_fill(b->in, SML_FLOAT32, shape->seed, rank, first_elem, num_elems);
    uint8_t rank_code = k->block_code(b->in, num_elems);
    code = rank_code > code ? rank_code : code;
    for (size_t i = 0; i < num_elems; i++) {
      b->sum[i] += (double)b->in[i];
      b->magnitude[i] += fabs((double)b->in[i]);
    }
  }
  for (uint32_t rank = 0; rank < shape->world_size; rank++) {
    sml_bench_fill(b->in, SML_FLOAT32, shape->seed, rank, first_elem, num_elems);
    k->quantize(b->lanes, b->in, num_elems, code, shape->world_size);
    k->add_int32(b->acc, b->lanes, num_elems);
  }
  k->pack_int32(b->lanes, b->acc, num_elems);
  k->dequantize(b->reference, b->lanes, num_elems, code, shape->world_size, average);
  if (is_exact(shape)) make_exact_block(b, shape, first_elem, num_elems);
  if (shape->world_size == 1) memcpy(b->reference, b->in, num_elems * sizeof b->in[0]);
  return code;
}

static void check_float_block(struct block *b, const struct sml_bench_shape *shape, uint8_t code,
                              const float *result, size_t num_elems, struct sml_bench_check *check) {
  const bool average = shape->reduction == SML_AVG;
  const double divisor = average ? shape->world_size : 1.0;
  for (size_t i = 0; i < num_elems; i++) {
    double bound = 0;
    if (shape->world_size > 1) /* the double sum's own rounding is part of what is compared */
      bound = (is_exact(shape) ? sml_limbs_error_bound(b->reference[i])
                               : sml_quant_error_bound(code, shape->world_size, average, b->reference[i])) +
              shape->world_size * 0x1p-53 * b->magnitude[i];
    double error = fabs((double)result[i] - b->sum[i] / divisor);
    if (memcmp(&result[i], &b->reference[i], sizeof result[i]) != 0 || !(error <= bound)) check->num_wrong++;
    if (!(error <= check->max_error)) {
      check->max_error = isfinite(error) ? error : INFINITY;
      check->max_error_bound = bound;
    }
  }
}

static void check_int_block(struct block *b, const struct sml_bench_shape *shape, uint64_t first_elem,
                            const int32_t *result, size_t num_elems, struct sml_bench_check *check) {
  memset(b->acc, 0, num_elems * sizeof b->acc[0]);
  for (uint32_t rank = 0; rank < shape->world_size; rank++) {
    sml_bench_fill(b->lanes, SML_INT32, shape->seed, rank, first_elem, num_elems);
    for (size_t i = 0; i < num_elems; i++) b->acc[i] = (int32_t)((uint32_t)b->acc[i] + b->lanes[i]);
  }
  for (size_t i = 0; i < num_elems; i++) {
    double error = fabs((double)result[i] - (double)b->acc[i]);
    if (error != 0) check->num_wrong++;
    if (error > check->max_error) check->max_error = error;
  }
}

static void check_block(struct block *b, const struct sml_bench_shape *shape, const void *result,
                        uint64_t first_elem, size_t num_elems, struct sml_bench_check *check) {
  const uint8_t *at = (const uint8_t *)result + first_elem * 4;
  if (shape->type == SML_INT32) {
    check_int_block(b, shape, first_elem, (const int32_t *)(const void *)at, num_elems, check);
    return;
  }
  uint8_t code = make_float_block(b, shape, first_elem, num_elems);
  check_float_block(b, shape, code, (const float *)(const void *)at, num_elems, check);
}

bool sml_bench_verify(const struct sml_bench_shape *shape, const void *result, uint32_t slice,
                      uint32_t num_slices, struct sml_bench_check *check) {
  struct block *b = aligned_alloc(64, sml_align_up(sizeof *b, 64));
  if (!b) return false;
  const struct sml_operation_plan plan = make_plan(shape);
  uint64_t block_idx = 0;
  for (uint32_t lane = 0; lane < shape->num_lanes; lane++) {
    struct sml_range range;
    sml_range_make(&range, &plan, lane, shape->num_lanes, shape->chunk_bytes, shape->num_slots);
    const uint32_t block_elems = range.chunk_elems * range.block_chunks;
    SML_ASSERT(range.num_elems == 0 || block_elems <= MAX_BLOCK_ELEMS);
    for (uint64_t done = 0; done < range.num_elems; done += block_elems, block_idx++) {
      size_t num_elems = (size_t)sml_min_u64(block_elems, range.num_elems - done);
      if (block_idx % num_slices == slice)
        check_block(b, shape, result, range.first_elem + done, num_elems, check);
    }
  }
  free(b);
  return true;
}

uint64_t sml_bench_hash(const void *data, size_t num_bytes) {
  const uint8_t *at = data;
  uint64_t h[4] = {1, 2, 3, 4};
  size_t i = 0;
  for (; i + 32 <= num_bytes; i += 32) {
    for (size_t j = 0; j < 4; j++) {
      uint64_t word;
      memcpy(&word, at + i + 8 * j, sizeof word);
      h[j] = (h[j] ^ word) * UINT64_C(0x9e3779b97f4a7c15);
      h[j] ^= h[j] >> 29;
    }
  }
  for (; i < num_bytes; i++) h[i % 4] = (h[i % 4] ^ at[i]) * UINT64_C(0x100000001b3);
  return sml_mix64(sml_mix64(sml_mix64(h[0]) + h[1]) + h[2]) + h[3] + num_bytes;
}
