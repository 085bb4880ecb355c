/* SPDX-License-Identifier: Apache-2.0
 * The inputs of a run, and the check of its results. The check makes each block again from all ranks'
 * inputs with the scalar kernels, so memory stays one block whatever the tensor's size. */
#include <math.h>
#include <stdlib.h>

#include "cli/bench/bench.h"
#include "quant/quant.h"

#define NUM_BINADES 60u
#define FLOAT16_BINADES 20u
#define WINDOW_ELEMS 1024u                          /* shares an upper end of its exponents */
#define ZERO_RUN_ELEMS 8192u                        /* holds several whole chunks */
#define MAX_BLOCK_BYTES (8 * SML_BLOCK_ELEMS)       /* in memory */
#define MAX_LANES_BYTES (SML_BLOCK_ELEMS * 4 * 113) /* of exact sums of float64 */

static uint64_t hash_of(uint64_t seed, uint64_t what, uint64_t index) {
  return sml_mix64(sml_mix64(seed + what * UINT64_C(0x9e3779b97f4a7c15)) + index * UINT64_C(0xd1342543de82ef95));
}

enum hash_use { USE_ALL_ZERO = 1, USE_SPREAD = 2, USE_RANK = 16 };

static bool is_zero_run(uint64_t seed, uint32_t rank, uint64_t run) {
  if (run == 0) return false; /* small tensors have something to sum */
  if (hash_of(seed, USE_ALL_ZERO, run) % 8 == 0) return true;
  return hash_of(seed, USE_RANK + rank, ~run) % 16 == 0;
}

/* One of num_binades up to 2^30. */
static uint32_t make_float(uint64_t random, uint32_t num_binades) {
  const uint32_t exponent = 127 - NUM_BINADES / 2 + (uint32_t)((random >> 32) * num_binades >> 32);
  return (uint32_t)(random & 0x807fffffu) | exponent << 23;
}

/* Fields 0, denormals, to 19: below 2^5, as sums of many ranks have to stay below 2^16. */
static uint16_t make_float16(uint64_t random, uint32_t num_binades) {
  const uint32_t num_fields = sml_min_u32(num_binades, FLOAT16_BINADES);
  const uint32_t field = FLOAT16_BINADES - 1 - (uint32_t)((random >> 32) * num_fields >> 32);
  return (uint16_t)((random & 0x83ffu) | field << 10);
}

static uint64_t make_float64(uint64_t random, uint32_t num_binades) {
  const uint64_t exponent = 1023 - NUM_BINADES / 2 + (uint32_t)((random >> 32) * num_binades >> 32);
  return (sml_mix64(random) & UINT64_C(0x800fffffffffffff)) | exponent << 52;
}

static void put_elem(uint8_t *at, sml_type type, uint64_t random, uint32_t num_binades) {
  const uint32_t bits = make_float(random, num_binades);
  const uint16_t half = type == SML_FLOAT16 ? make_float16(random, num_binades) : (uint16_t)(bits >> 16);
  const uint64_t wide = type == SML_FLOAT64 ? make_float64(random, num_binades) : random;
  const uint32_t low = (uint32_t)random;
  switch (type) {
    case SML_FLOAT32: memcpy(at, &bits, sizeof bits); break;
    case SML_INT8:
    case SML_UINT8: *at = (uint8_t)random; break;
    case SML_INT32:
    case SML_UINT32: memcpy(at, &low, sizeof low); break;
    case SML_FLOAT16:
    case SML_BFLOAT16: memcpy(at, &half, sizeof half); break;
    case SML_FLOAT64:
    case SML_INT64:
    case SML_UINT64: memcpy(at, &wide, sizeof wide); break;
  }
}

void sml_bench_fill(void *out, sml_type type, uint64_t seed, uint32_t rank, uint64_t first_elem, size_t num_elems) {
  const uint64_t base = hash_of(seed, USE_RANK + rank, 0);
  const size_t elem_bytes = sml_format_elem_bytes((uint32_t)type);
  const bool is_float = sml_format_is_float((uint32_t)type);
  uint8_t *at = out;
  uint32_t num_binades = 1;
  bool is_zero = false;
  for (size_t i = 0; i < num_elems; i++, at += elem_bytes) {
    const uint64_t index = first_elem + i, random = sml_mix64(base + index * UINT64_C(0x9e3779b97f4a7c15));
    if (is_float && (i == 0 || index % WINDOW_ELEMS == 0)) {
      num_binades = 1 + (uint32_t)(hash_of(seed, USE_SPREAD, index / WINDOW_ELEMS) % NUM_BINADES);
      is_zero = is_zero_run(seed, rank, index / ZERO_RUN_ELEMS);
    }
    if (is_zero || (!is_float && random >> 62 == 0)) memset(at, 0, elem_bytes);
    else put_elem(at, type, random, num_binades);
  }
}

/* One block while it is made again. */
struct block {
  uint8_t in[MAX_BLOCK_BYTES], reference[MAX_BLOCK_BYTES];
  uint8_t lanes[MAX_LANES_BYTES];
  long double sum[SML_BLOCK_ELEMS], magnitude[SML_BLOCK_ELEMS];
  uint64_t whole_sum[SML_BLOCK_ELEMS];
};

/* How the job sums it, and with which code a block. */
struct coding {
  const struct sml_format *format;
  struct sml_format_shape shape;
  size_t elem_bytes;
  bool is_float;
};

static struct coding coding_of(const struct sml_bench_shape *shape) {
  struct sml_format_shape chosen =
      sml_format_choose((uint32_t)shape->type, shape->num_elems, shape->world_size, shape->formats);
  if (shape->is_exact) chosen = (struct sml_format_shape){.has_exponents = false}; /* of integers it is that, too */
  return (struct coding){.format = sml_format_find((uint32_t)shape->type, chosen),
                         .shape = chosen,
                         .elem_bytes = sml_format_elem_bytes((uint32_t)shape->type),
                         .is_float = sml_format_is_float((uint32_t)shape->type)};
}

static long double value_of(const uint8_t *at, sml_type type) {
  double value;
  float narrow;
  if (type == SML_FLOAT64) {
    memcpy(&value, at, sizeof value);
    return value;
  }
  if (type == SML_FLOAT32) memcpy(&narrow, at, sizeof narrow);
  else sml_quant_scalar.widen(&narrow, at, 1, type == SML_FLOAT16 ? SML_ELEM_FLOAT16 : SML_ELEM_BFLOAT16);
  return narrow;
}

/* Modulo what the type holds. */
static uint64_t whole_of(const uint8_t *at, size_t elem_bytes) {
  uint64_t value;
  uint32_t narrow;
  if (elem_bytes == 1) return *at;
  if (elem_bytes == sizeof narrow) {
    memcpy(&narrow, at, sizeof narrow);
    return narrow;
  }
  memcpy(&value, at, sizeof value);
  return value;
}

/* The sums to compare with, and the code. */
static uint8_t sum_up(struct block *b, const struct sml_bench_shape *shape, const struct coding *coding,
                      uint64_t first_elem, size_t num_elems) {
  uint8_t code = 0;
  memset(b->sum, 0, num_elems * sizeof b->sum[0]);
  memset(b->magnitude, 0, num_elems * sizeof b->magnitude[0]);
  memset(b->whole_sum, 0, num_elems * sizeof b->whole_sum[0]);
  for (uint32_t rank = 0; rank < shape->world_size; rank++) {
    sml_bench_fill(b->in, shape->type, shape->seed, rank, first_elem, num_elems);
    if (coding->shape.has_exponents)
      code = (uint8_t)sml_max_u32(code, coding->format->block_code(&sml_quant_scalar, b->in, num_elems));
    for (size_t i = 0; i < num_elems; i++) {
      const uint8_t *at = b->in + coding->elem_bytes * i;
      if (!coding->is_float) {
        b->whole_sum[i] += whole_of(at, coding->elem_bytes);
        continue;
      }
      b->sum[i] += value_of(at, shape->type);
      b->magnitude[i] += fabsl(value_of(at, shape->type));
    }
  }
  return code;
}

static void make_reference(struct block *b, const struct sml_bench_shape *shape, const struct coding *coding,
                           uint8_t code, uint64_t first_elem, size_t num_elems) {
  const struct sml_quant_kernels *k = &sml_quant_scalar;
  for (uint32_t rank = 0; rank < shape->world_size; rank++) {
    sml_bench_fill(b->in, shape->type, shape->seed, rank, first_elem, num_elems);
    if (rank == 0) coding->format->put(k, b->lanes, b->in, num_elems, code, shape->world_size);
    else coding->format->add(k, b->lanes, b->in, num_elems, code, shape->world_size);
  }
  coding->format->get(k, b->reference, b->lanes, num_elems, code, shape->world_size, shape->reduction == SML_AVG);
}

/* |result - sum| of one element, and how large it may be: the long double sum's own rounding is part of it. */
static double error_of(const struct block *b, const struct sml_bench_shape *shape, const struct coding *coding,
                       uint8_t code, size_t i, const uint8_t *result, double *bound_out) {
  *bound_out = 0;
  if (!coding->is_float) {
    const uint64_t off = whole_of(result, coding->elem_bytes) - b->whole_sum[i];
    const size_t num_above = 64 - 8 * coding->elem_bytes;
    return fabs((double)((int64_t)(off << num_above) >> num_above));
  }
  const bool average = shape->reduction == SML_AVG;
  const long double value = value_of(result, shape->type);
  const double reference = (double)value_of(b->reference + coding->elem_bytes * i, shape->type);
  if (shape->world_size > 1)
    *bound_out =
        sml_format_error_bound((uint32_t)shape->type, coding->shape, code, shape->world_size, average, reference) +
        shape->world_size * 0x1p-63 * (double)b->magnitude[i];
  return (double)fabsl(value - b->sum[i] / (average ? shape->world_size : 1));
}

static void check_block(struct block *b, const struct sml_bench_shape *shape, const struct coding *coding,
                        const void *result, uint64_t first_elem, size_t num_elems, struct sml_bench_check *check) {
  const uint8_t *at = (const uint8_t *)result + first_elem * coding->elem_bytes;
  const uint8_t code = sum_up(b, shape, coding, first_elem, num_elems);
  if (shape->world_size == 1) memcpy(b->reference, b->in, num_elems * coding->elem_bytes);
  else make_reference(b, shape, coding, code, first_elem, num_elems);
  long double largest = coding->is_float ? 0 : 1;
  for (size_t i = 0; i < num_elems; i++) largest = fmaxl(largest, b->magnitude[i]);
  if (shape->reduction == SML_AVG) largest /= shape->world_size;
  const double scale = largest > 0 ? (double)largest : 1;
  for (size_t i = 0; i < num_elems; i++, at += coding->elem_bytes) {
    double bound;
    const double error = error_of(b, shape, coding, code, i, at, &bound);
    const bool is_same = memcmp(at, b->reference + coding->elem_bytes * i, coding->elem_bytes) == 0;
    if (!is_same || !(error <= bound)) check->num_wrong++;
    if (!(error / scale <= check->max_error)) {
      check->max_error = isfinite(error) ? error / scale : INFINITY;
      check->max_error_bound = bound / scale;
    }
  }
}

static bool is_below(const uint8_t *a, const uint8_t *b, sml_type type, size_t elem_bytes) {
  const uint64_t whole_a = whole_of(a, elem_bytes), whole_b = whole_of(b, elem_bytes);
  const size_t num_above = 64 - 8 * elem_bytes;
  switch (type) {
    case SML_UINT8:
    case SML_UINT32:
    case SML_UINT64: return whole_a < whole_b;
    case SML_INT8:
    case SML_INT32:
    case SML_INT64: return (int64_t)(whole_a << num_above) < (int64_t)(whole_b << num_above);
    default: break;
  }
  const long double value_a = value_of(a, type), value_b = value_of(b, type);
  return value_a < value_b || (value_a == value_b && signbit(value_a) && !signbit(value_b));
}

/* *at = what it and another rank's element give in a reduction that is no sum. */
static void fold(uint8_t *at, const uint8_t *other, const struct sml_bench_shape *s, size_t elem_bytes) {
  if (s->reduction == SML_MIN || s->reduction == SML_MAX) {
    const bool is_other =
        s->reduction == SML_MIN ? is_below(other, at, s->type, elem_bytes) : is_below(at, other, s->type, elem_bytes);
    if (is_other) memcpy(at, other, elem_bytes);
    return;
  }
  const uint64_t a = whole_of(at, elem_bytes), b = whole_of(other, elem_bytes);
  uint64_t value = a * b;
  if (s->reduction == SML_BAND) value = a & b;
  if (s->reduction == SML_BOR) value = a | b;
  if (s->reduction == SML_LAND) value = a != 0 && b != 0;
  if (s->reduction == SML_LOR) value = a != 0 || b != 0;
  put_elem(at, s->type, value, 0);
}

/* As check_block(), of a reduction that is no sum: element by element, and without an error. */
static void check_other_block(struct block *b, const struct sml_bench_shape *shape, const void *result,
                              uint64_t first_elem, size_t num_elems, struct sml_bench_check *check) {
  const size_t elem_bytes = sml_format_elem_bytes((uint32_t)shape->type);
  const bool is_truth = shape->reduction == SML_LAND || shape->reduction == SML_LOR;
  for (uint32_t rank = 0; rank < shape->world_size; rank++) {
    uint8_t *to = rank == 0 ? b->reference : b->in;
    sml_bench_fill(to, shape->type, shape->seed, rank, first_elem, num_elems);
    for (size_t i = 0; i < num_elems * elem_bytes; i += elem_bytes)
      if (rank != 0 || is_truth) fold(b->reference + i, to + i, shape, elem_bytes);
  }
  const uint8_t *at = (const uint8_t *)result + first_elem * elem_bytes;
  for (size_t i = 0; i < num_elems * elem_bytes; i += elem_bytes)
    check->num_wrong += memcmp(at + i, b->reference + i, elem_bytes) != 0;
}

bool sml_bench_verify(const struct sml_bench_shape *shape, const void *result, uint32_t slice, uint32_t num_slices,
                      struct sml_bench_check *check) {
  struct block *b = malloc(sizeof *b);
  if (!b) return false;
  const struct coding coding = coding_of(shape);
  const bool is_sum = shape->reduction <= SML_AVG;
  uint64_t block_idx = 0;
  for (uint64_t first = 0; first < shape->num_elems; first += SML_BLOCK_ELEMS, block_idx++) {
    const size_t num_elems = (size_t)sml_min_u64(SML_BLOCK_ELEMS, shape->num_elems - first);
    if (block_idx % num_slices != slice) continue;
    if (is_sum) check_block(b, shape, &coding, result, first, num_elems, check);
    else check_other_block(b, shape, result, first, num_elems, check);
  }
  free(b);
  return true;
}

void sml_bench_verify_copy(const struct sml_bench_shape *shape, const size_t *parts, const void *result, uint32_t slice,
                           uint32_t num_slices, struct sml_bench_check *check) {
  const size_t elem_bytes = sml_format_elem_bytes((uint32_t)shape->type);
  const uint8_t *at = result;
  uint8_t expected[MAX_BLOCK_BYTES];
  uint64_t first = 0, block_idx = 0;
  for (uint32_t rank = 0; rank < shape->world_size; first += parts[rank++]) {
    for (size_t done = 0, num; done < parts[rank]; done += num, at += num * elem_bytes, block_idx++) {
      num = (size_t)sml_min_u64(SML_BLOCK_ELEMS, parts[rank] - done);
      if (block_idx % num_slices != slice) continue;
      sml_bench_fill(expected, shape->type, shape->seed, rank, first + done, num);
      for (size_t i = 0; i < num; i++)
        check->num_wrong += memcmp(at + i * elem_bytes, expected + i * elem_bytes, elem_bytes) != 0;
    }
  }
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
