/* SPDX-License-Identifier: Apache-2.0
 * build/bench/kernels (--help)
 * Each kernel of each implementation that this processor has, against memcpy, on one core.
 *
 * Working sets (source and destination together): one packet of 1,440 bytes of payload, and what fits L1, L2, L3 and
 * none of them. GB/s are 10^9 bytes of the source's payload a second of processor time, so a kernel that also reads its
 * destination is not credited for that; of the reductions, all inputs are source. A kernel runs right after memcpy over
 * the same memory, and the ratio is taken of these two; figures are medians over all rounds. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "base/options.h"
#include "base/nh.h"
#include "core/wire.h"
#include "quant/exact.h"
#include "quant/kernels.h"

#define MAX_ROUNDS 101
#define REDUCE_INPUTS 4u
#define REDUCE_BLOCK_ELEMS 2048u
#define PACKET_ELEMS 360u
#define PAGE_SHIFT_BYTES 1984u
#define SLICE_NS UINT64_C(300000) /* of one measurement, at least */

static const struct {
  const char *name;
  size_t num_bytes; /* source and destination */
} sets[] = {{"packet", 8 * PACKET_ELEMS}, {"L1", 16 << 10}, {"L2", 384 << 10}, {"L3", 12 << 20}, {"DRAM", 512 << 20}};

static const char *const implementations[] = {"scalar", "avx2", "avx512", "neon"};

/* What every run gets: num_elems elements of source at `from`, as many of destination at `to`. */
struct buffers {
  uint8_t *from, *to;
  size_t num_elems;
};

static volatile uint32_t sink; /* what a kernel returns is used */
static struct sml_nh_key key;

typedef void run_function(const struct sml_quant_kernels *, const struct buffers *);

static void run_memcpy(const struct sml_quant_kernels *k, const struct buffers *b) {
  (void)k;
  memcpy(b->to, b->from, 4 * b->num_elems);
}

static const float *floats(const struct buffers *b) {
  return (const float *)(const void *)b->from;
}

static const int32_t *ints(const struct buffers *b) {
  return (const int32_t *)(const void *)b->from;
}

static void run_block_code(const struct sml_quant_kernels *k, const struct buffers *b) {
  sink += k->block_code(floats(b), b->num_elems);
}

static void run_quantize(const struct sml_quant_kernels *k, const struct buffers *b) {
  k->quantize(b->to, floats(b), b->num_elems, 127, 8);
}

static void run_quantize_add(const struct sml_quant_kernels *k, const struct buffers *b) {
  k->quantize_add(b->to, floats(b), b->num_elems, 127, 8);
}

static void run_dequantize(const struct sml_quant_kernels *k, const struct buffers *b) {
  k->dequantize((float *)(void *)b->to, b->from, b->num_elems, 127, 8, false);
}

static void run_average(const struct sml_quant_kernels *k, const struct buffers *b) {
  k->dequantize((float *)(void *)b->to, b->from, b->num_elems, 127, 7, true);
}

static void run_pack(const struct sml_quant_kernels *k, const struct buffers *b) {
  k->pack_int32(b->to, ints(b), b->num_elems);
}

static void run_pack_add(const struct sml_quant_kernels *k, const struct buffers *b) {
  k->pack_add_int32(b->to, ints(b), b->num_elems);
}

static void run_add(const struct sml_quant_kernels *k, const struct buffers *b) {
  k->add_int32((int32_t *)(void *)b->to, b->from, b->num_elems);
}

/* Two elements of a 16-bit type fill the place of one, and two of packed lanes one lane. */
static void run_block_code_16(const struct sml_quant_kernels *k, const struct buffers *b) {
  sink += k->block_code_16(b->from, 2 * b->num_elems, SML_ELEM_FLOAT16);
}

static void run_pack_float16(const struct sml_quant_kernels *k, const struct buffers *b) {
  k->pack(b->to, b->from, 2 * b->num_elems, SML_ELEM_FLOAT16, 127, 8);
}

static void run_pack_bfloat16(const struct sml_quant_kernels *k, const struct buffers *b) {
  k->pack(b->to, b->from, 2 * b->num_elems, SML_ELEM_BFLOAT16, 127, 8);
}

static void run_pack_add_float16(const struct sml_quant_kernels *k, const struct buffers *b) {
  k->pack_add(b->to, b->from, 2 * b->num_elems, SML_ELEM_FLOAT16, 127, 8);
}

static void run_unpack_float16(const struct sml_quant_kernels *k, const struct buffers *b) {
  k->unpack(b->to, b->from, 2 * b->num_elems, SML_ELEM_FLOAT16, 127, 8, false);
}

static void run_unpack_bfloat16(const struct sml_quant_kernels *k, const struct buffers *b) {
  k->unpack(b->to, b->from, 2 * b->num_elems, SML_ELEM_BFLOAT16, 127, 8, false);
}

static void run_unpack_average(const struct sml_quant_kernels *k, const struct buffers *b) {
  k->unpack(b->to, b->from, 2 * b->num_elems, SML_ELEM_FLOAT16, 127, 7, true);
}

static void run_dequantize_16(const struct sml_quant_kernels *k, const struct buffers *b) {
  k->dequantize_16(b->to, b->from, b->num_elems, SML_ELEM_FLOAT16, 127, 8, false);
}

static void run_max(const struct sml_quant_kernels *k, const struct buffers *b) {
  k->max_uint8(b->to, b->from, 4 * b->num_elems);
}

static void run_check(const struct sml_quant_kernels *k, const struct buffers *b) {
  sink += k->check_lanes(b->from, b->num_elems, 1);
}

/* The source is cut in REDUCE_INPUTS tensors, these in blocks as of chunks. */
static void run_reduce(const struct sml_quant_kernels *k, const struct buffers *b, enum sml_format_type type) {
  const size_t tensor_elems = b->num_elems / REDUCE_INPUTS;
  for (size_t i = 0; i < tensor_elems; i += REDUCE_BLOCK_ELEMS) {
    const size_t block_elems = sml_min_u64(REDUCE_BLOCK_ELEMS, tensor_elems - i);
    const void *in[REDUCE_INPUTS];
    for (uint32_t w = 0; w < REDUCE_INPUTS; w++) in[w] = b->from + 4 * (w * tensor_elems + i);
    void *out = b->to + 4 * i;
    if (type == SML_FORMAT_FLOAT32) k->reduce_floats(out, (const float *const *)in, REDUCE_INPUTS, block_elems, false);
    else if (type == SML_FORMAT_INT32) k->reduce_int32(out, (const int32_t *const *)in, REDUCE_INPUTS, block_elems);
    else k->reduce_packed(out, in, REDUCE_INPUTS, 2 * block_elems, SML_ELEM_FLOAT16, false);
  }
}

static void run_reduce_floats(const struct sml_quant_kernels *k, const struct buffers *b) {
  run_reduce(k, b, SML_FORMAT_FLOAT32);
}

static void run_reduce_int32(const struct sml_quant_kernels *k, const struct buffers *b) {
  run_reduce(k, b, SML_FORMAT_INT32);
}

static void run_reduce_packed(const struct sml_quant_kernels *k, const struct buffers *b) {
  run_reduce(k, b, SML_FORMAT_FLOAT16);
}

/* Exact mode: whole blocks, where 8 ranks need so many limbs. What is longer is cut off. */
static void run_exact(const struct sml_quant_kernels *k, const struct buffers *b, uint32_t type, uint32_t num_limbs,
                      bool is_rounding) {
  struct sml_exact_layout layout = {.num_limbs = num_limbs, .num_lanes = num_limbs, .positions = {95, 123, 151}};
  struct sml_exact e;
  sml_exact_init(&e, type, 8, k);
  const size_t block_bytes = SML_BLOCK_ELEMS * e.elem_bytes, lanes_bytes = SML_BLOCK_ELEMS * 4 * num_limbs;
  const size_t num_blocks = 4 * b->num_elems / sml_max_u64(block_bytes, lanes_bytes);
  for (size_t i = 0; i < num_blocks; i++) {
    const size_t at = i * lanes_bytes;
    if (is_rounding)
      sml_exact_round(&e, &layout, b->to + i * block_bytes, (const int32_t *)(const void *)(b->from + at),
                      SML_BLOCK_ELEMS, false);
    else sml_exact_put(&e, &layout, (int32_t *)(void *)(b->to + at), b->from + i * block_bytes, SML_BLOCK_ELEMS);
  }
}

static void run_exact_code(const struct sml_quant_kernels *k, const struct buffers *b) {
  struct sml_exact e;
  int32_t codes[SML_EXACT_MAX_LIMBS];
  sml_exact_init(&e, SML_FORMAT_FLOAT32, 8, k);
  for (size_t i = 0; i + SML_BLOCK_ELEMS <= b->num_elems; i += SML_BLOCK_ELEMS)
    sml_exact_code(&e, codes, b->from + 4 * i, SML_BLOCK_ELEMS);
  sink += (uint32_t)codes[0];
}

static void run_exact_put(const struct sml_quant_kernels *k, const struct buffers *b) {
  run_exact(k, b, SML_FORMAT_FLOAT32, 2, false);
}

static void run_exact_round(const struct sml_quant_kernels *k, const struct buffers *b) {
  run_exact(k, b, SML_FORMAT_FLOAT32, 2, true);
}

static void run_exact_round_3(const struct sml_quant_kernels *k, const struct buffers *b) {
  run_exact(k, b, SML_FORMAT_FLOAT32, 3, true);
}

static void run_exact_round_double(const struct sml_quant_kernels *k, const struct buffers *b) {
  run_exact(k, b, SML_FORMAT_FLOAT64, 3, true);
}

static void run_crc(const struct sml_quant_kernels *k, const struct buffers *b) {
  (void)k;
  sink += sml_crc32c(0, b->from, 4 * b->num_elems);
}

static void run_digests(const struct sml_quant_kernels *k, const struct buffers *b) {
  (void)k;
  sml_nh(&key, b->from, 4 * b->num_elems, b->to);
}

static const struct kernel {
  const char *name;
  run_function *run;
  bool is_common; /* one for all implementations */
} kernels[] = {
    {"memcpy", run_memcpy, true},
    {"block_code", run_block_code, false},
    {"quantize", run_quantize, false},
    {"quantize_add", run_quantize_add, false},
    {"dequantize", run_dequantize, false},
    {"dequantize, average of 7", run_average, false},
    {"pack_int32", run_pack, false},
    {"pack_add_int32", run_pack_add, false},
    {"add_int32", run_add, false},
    {"max_uint8", run_max, false},
    {"block_code_16, float16", run_block_code_16, false},
    {"pack, float16", run_pack_float16, false},
    {"pack, bfloat16", run_pack_bfloat16, false},
    {"pack_add, float16", run_pack_add_float16, false},
    {"unpack, float16", run_unpack_float16, false},
    {"unpack, bfloat16", run_unpack_bfloat16, false},
    {"unpack, average of 7", run_unpack_average, false},
    {"dequantize_16, float16", run_dequantize_16, false},
    {"reduce_packed, 4 inputs", run_reduce_packed, false},
    {"reduce_floats, 4 inputs", run_reduce_floats, false},
    {"reduce_int32, 4 inputs", run_reduce_int32, false},
    {"exact codes", run_exact_code, false},
    {"exact limbs, 2", run_exact_put, false},
    {"exact sums, 2 limbs", run_exact_round, false},
    {"exact sums, 3 limbs", run_exact_round_3, false},
    {"exact sums, double", run_exact_round_double, false},
    {"check_lanes", run_check, false},
    {"crc32c", run_crc, true},
    {"nh digests", run_digests, true},
};

/* The processor's time, not the wall's: on a shared machine the thread waits for others. */
static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (uint64_t)t.tv_sec * SML_NS_PER_S + (uint64_t)t.tv_nsec;
}

/* Seconds of one run, of as many as fill a slice. */
static double time_run(run_function *run, const struct sml_quant_kernels *k, const struct buffers *b) {
  uint64_t num_runs = 0, times = 1;
  const uint64_t begin_ns = now_ns();
  uint64_t spent_ns;
  do {
    for (uint64_t i = 0; i < times; i++) run(k, b);
    num_runs += times;
    times *= 2;
    spent_ns = now_ns() - begin_ns;
  } while (spent_ns < SLICE_NS);
  return (double)spent_ns / 1e9 / (double)num_runs;
}

static int compare_doubles(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *values, uint32_t num_values) {
  qsort(values, num_values, sizeof *values, compare_doubles);
  return values[num_values / 2];
}

struct result {
  double seconds[MAX_ROUNDS], ratios[MAX_ROUNDS]; /* of one run; memcpy's time over it */
};

/* Lanes that are no sums of NaNs and denormals: floats from -1 to 1, whose halves are numbers as well. */
static void fill_floats(uint8_t *memory, size_t num_elems) {
  struct sml_prng prng = {1};
  for (size_t i = 0; i < num_elems; i++) {
    const float x = (float)(int32_t)sml_prng_next(&prng) * 0x1p-31f;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= ~UINT32_C(0x4000);
    memcpy(memory + 4 * i, &bits, sizeof bits);
  }
}

static void *map(size_t num_bytes) {
  void *memory = mmap(NULL, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    perror("kernels: mmap");
    exit(1);
  }
  madvise(memory, num_bytes, MADV_HUGEPAGE);
  return memory;
}

/* Which column a kernel of an implementation is in. */
#define NUM_KERNELS SML_ARRAY_LEN(kernels)
#define NUM_COLUMNS (NUM_KERNELS * SML_ARRAY_LEN(implementations))

static const char *only;

/* Common kernels count as the first implementation's. */
static const struct sml_quant_kernels *find(size_t column) {
  const char *name = implementations[column / NUM_KERNELS];
  const struct sml_quant_kernels *k = sml_quant_select(name);
  const struct kernel *kernel = &kernels[column % NUM_KERNELS];
  if (only != NULL && strcmp(only, name) != 0 && !kernel->is_common) return NULL;
  return strcmp(k->name, name) == 0 && (!kernel->is_common || column < NUM_KERNELS) ? k : NULL;
}

static void measure(struct result *results, const struct buffers *b, uint32_t num_rounds) {
  for (uint32_t round = 0; round < num_rounds; round++) {
    for (size_t c = 0; c < NUM_COLUMNS; c++) {
      const struct sml_quant_kernels *k = find(c);
      if (k == NULL) continue;
      const double copy_s = time_run(run_memcpy, k, b);
      const double s = time_run(kernels[c % NUM_KERNELS].run, k, b);
      results[c].seconds[round] = s;
      results[c].ratios[round] = copy_s / s;
    }
  }
}

static void print_set(struct result *results, const char *set, const struct buffers *b, uint32_t num_rounds,
                      bool is_json) {
  const bool is_packet = b->num_elems == PACKET_ELEMS;
  if (!is_json) printf("\n%-26s %-7s %9s %9s\n", set, "", is_packet ? "ns" : "GB/s", "x memcpy");
  for (size_t c = 0; c < NUM_COLUMNS; c++) {
    const struct sml_quant_kernels *k = find(c);
    if (k == NULL) continue;
    const struct kernel *kernel = &kernels[c % NUM_KERNELS];
    const char *name = kernel->is_common ? "" : k->name;
    const double seconds = median(results[c].seconds, num_rounds);
    const double ratio = median(results[c].ratios, num_rounds);
    const double gb_per_s = 4e-9 * (double)b->num_elems / seconds;
    if (!is_json) {
      printf("%-26s %-7s %9.1f %9.2f\n", kernel->name, name, is_packet ? seconds * 1e9 : gb_per_s, ratio);
      continue;
    }
    static const char *comma = "";
    printf(
        "%s\n  {\"set\": \"%s\", \"kernel\": \"%s\", \"implementation\": \"%s\", \"ns\": %.1f, \"GB_per_s\": %.2f, "
        "\"to_memcpy\": %.3f}",
        comma, set, kernel->name, name, seconds * 1e9, gb_per_s, ratio);
    comma = ",";
  }
}

struct options {
  uint32_t num_rounds;
  bool is_json;
  const char *only, *only_set;
};
#define SML_OPTIONS struct options
static const struct sml_option table[] = {
    {"json", 0, NULL, "Print JSON", 1, SML_FLAG(is_json)},
    {"rounds", 0, "N", "Of which medians are taken (default 15)", 1, SML_NUMBER(num_rounds, 1, MAX_ROUNDS)},
    {"only", 0, "NAME", "One implementation", 1, SML_TEXT(only)},
    {"set", 0, "NAME", "One working set", 1, SML_TEXT(only_set)},
    {0}};

int main(int argc, char **argv) {
  static struct result results[NUM_COLUMNS];
  const struct sml_option_parser parser = {.table = table, .doc = "Kernels of numbers, beside memcpy"};
  struct options o = {.num_rounds = 15};
  sml_options_parse(&parser, argc, argv, &o);
  only = o.only;
  const size_t most_bytes = sets[SML_ARRAY_LEN(sets) - 1].num_bytes / 2;
  /* Not at the same place of a page: loads would wait for stores that only look like theirs. */
  struct buffers b = {.from = map(most_bytes), .to = (uint8_t *)map(most_bytes + PAGE_SHIFT_BYTES) + PAGE_SHIFT_BYTES};
  fill_floats(b.from, most_bytes / 4);
  memset(b.to, 0, most_bytes);
  if (o.is_json) printf("[");
  for (size_t s = 0; s < SML_ARRAY_LEN(sets); s++) {
    if (o.only_set != NULL && strcmp(o.only_set, sets[s].name) != 0) continue;
    b.num_elems = sets[s].num_bytes / 8;
    /* One pass over DRAM is many slices long. */
    const uint32_t rounds = s + 1 < SML_ARRAY_LEN(sets) ? o.num_rounds : (o.num_rounds + 2) / 3;
    measure(results, &b, rounds);
    print_set(results, sets[s].name, &b, rounds, o.is_json);
  }
  if (o.is_json) printf("\n]\n");
  return 0;
}
