/* SPDX-License-Identifier: Apache-2.0
 * A sum is a function of the inputs alone: whatever carries it, and however the tensor is cut at multiples of the
 * block or where tensors begin, it has the bits of the scalar reference, which knows nothing of chunks, lanes, pieces
 * and hosts. Arguments: how many random ways are tried, and from which seed (docs/TESTING.md). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lib/test_world.h"
#include "quant/test_reductions.h"

#define NUM_RANKS 4u
#define MAX_ELEMS 70000u

/* float32 and bfloat16: small numbers with a large one here and there; the others: any magnitudes. */
static const struct tensor {
  sml_type type;
  uint32_t num_elems;
  sml_reduction reduction;
} tensors[] = {{SML_FLOAT32, 65536, SML_SUM},   {SML_FLOAT32, 69771, SML_SUM},    {SML_FLOAT32, 300, SML_SUM},
               {SML_FLOAT16, 20203, SML_SUM},   {SML_BFLOAT16, 33000, SML_SUM},   {SML_FLOAT64, 20203, SML_SUM},
               {SML_FLOAT32, 2 * 2048, SML_SUM}, {SML_FLOAT16, 129, SML_SUM},     {SML_INT8, 20203, SML_SUM},
               {SML_UINT64, 700, SML_SUM},      {SML_FLOAT32, 20203, SML_MAX},    {SML_FLOAT64, 9001, SML_MIN},
               {SML_BFLOAT16, 5001, SML_MIN},   {SML_INT64, 3001, SML_MAX},       {SML_UINT8, 20203, SML_MAX},
               {SML_INT8, 1, SML_MIN},          {SML_INT32, 9001, SML_PRODUCT},   {SML_UINT64, 3001, SML_PRODUCT},
               {SML_INT8, 1001, SML_PRODUCT},   {SML_UINT8, 20203, SML_BAND},     {SML_INT64, 3001, SML_BOR},
               {SML_INT32, 9001, SML_LAND},     {SML_INT64, 3, SML_LOR},          {SML_UINT32, 5001, SML_MIN}};

static struct {
  uint8_t in[NUM_RANKS][8 * MAX_ELEMS], out[NUM_RANKS][8 * MAX_ELEMS], expected[8 * MAX_ELEMS];
} * memory;

static const struct tensor *current;
static size_t cut_elems; /* 0: not cut */
static bool is_exact;
static uint64_t num_random_ways = SML_IS_SLOW_BUILD ? 3 : 12, seed = 20, num_compared; /* elements, of one rank */
static bool is_refused;  /* this reduction, in this way */
static bool is_batched;

/* Those of a small model; the last one ends an operation in the middle of a block. */
static const size_t model[] = {1, 10, 640, 64, 128, 129, 4096, 256, 1, 300, 21000, 255, 257, 2560, 10000, 77, 1000};
#define NUM_TENSORS SML_ARRAY_LEN(model)
static size_t bucket_tensors; /* at most so many are one operation */

static void put_input(uint8_t *to, const struct tensor *t, uint32_t rank, uint32_t i) {
  const uint64_t bits = sml_mix64(((uint64_t)t->num_elems << 8 | rank) * UINT64_C(0x9e3779b97f4a7c15) + i);
  const float spread = (i % 1000 == 0 ? 1e4f : 1e-3f) * (1 + (float)(bits >> 40) * 0x1p-24f) * (bits & 1 ? 1 : -1);
  uint64_t wide = (bits & UINT64_C(0x800fffffffffffff)) | (1023 - 40 + (bits >> 52) % 80) << 52;
  uint32_t word;
  memcpy(&word, &spread, sizeof word);
  if (t->type == SML_FLOAT64) memcpy(to, &wide, sizeof wide);
  else if (t->type == SML_FLOAT32) memcpy(to, &word, sizeof word);
  else {
    const uint16_t half = t->type == SML_FLOAT16 ? (uint16_t)(bits % 0x7bff) : (uint16_t)(word >> 16);
    memcpy(to, &half, sizeof half);
  }
}

static void reduce_blocks(const struct sml_format *f, size_t begin, size_t end) {
  for (size_t first = begin; first < end; first += SML_BLOCK_ELEMS) {
    const void *in[NUM_RANKS];
    const size_t offset = first * f->elem_bytes;
    for (uint32_t rank = 0; rank < NUM_RANKS; rank++) in[rank] = memory->in[rank] + offset;
    f->reduce(&sml_quant_scalar, memory->expected + offset, in, NUM_RANKS, sml_min_u64(SML_BLOCK_ELEMS, end - first),
              false);
  }
}

/* For what has no blocks: by values. */
static void reduce_values(const struct tensor *t) {
  const size_t elem_bytes = sml_format_elem_bytes((uint32_t)t->type);
  for (uint32_t i = 0; i < t->num_elems; i++) {
    uint64_t bits[NUM_RANKS];
    for (uint32_t rank = 0; rank < NUM_RANKS; rank++) {
      bits[rank] = reduction_draw(sml_mix64((uint64_t)t->num_elems << 32 | i * NUM_RANKS | rank), (uint32_t)t->type);
      reduction_store(memory->in[rank] + i * elem_bytes, bits[rank], (uint32_t)t->type);
    }
    reduction_store(memory->expected + i * elem_bytes,
                    reduction_of(bits, NUM_RANKS, (uint32_t)t->type, (uint32_t)t->reduction), (uint32_t)t->type);
  }
}

static const struct sml_format *make_inputs(const struct tensor *t, const struct sml_format_options *options) {
  const struct sml_format_shape shape = sml_format_choose((uint32_t)t->type, t->num_elems, NUM_RANKS, *options);
  const struct sml_format *f = sml_format_find((uint32_t)t->type, shape);
  for (uint32_t rank = 0; rank < NUM_RANKS; rank++)
    for (uint32_t i = 0; i < t->num_elems; i++) put_input(memory->in[rank] + (size_t)i * f->elem_bytes, t, rank, i);
  return f;
}

#define MAX_CALLS (MAX_ELEMS / SML_BLOCK_ELEMS + 1)

static void finish(struct rank *r, sml_operation *const *ops, size_t num_ops) {
  if (is_batched) CHECK(r, sml_batch_end(r->job) == SML_OK, "%s", sml_error_detail());
  for (size_t i = 0; i < num_ops; i++) {
    CHECK(r, sml_operation_wait(ops[i], 30 * SML_NS_PER_S) == SML_OK, "%s", sml_error_detail());
    sml_operation_release(ops[i]);
  }
}

/* In place every other time: then a block's beginning is overwritten while its end is still to be sent. Parts go one
 * after the other, or are a batch. */
static void sum_it(struct rank *r) {
  const struct tensor *t = current;
  const size_t elem_bytes = sml_format_elem_bytes((uint32_t)t->type),
               at_once = cut_elems != 0 ? cut_elems : t->num_elems;
  uint8_t *out = memory->out[r->rank];
  sml_operation *ops[MAX_CALLS];
  size_t num_ops = 0;
  if (is_batched) CHECK(r, sml_batch_begin(r->job) == SML_OK);
  memcpy(out, memory->in[r->rank], t->num_elems * elem_bytes);
  for (size_t first = 0; first < t->num_elems;) {
    size_t num = sml_min_u64(at_once, t->num_elems - first);
    if (t->num_elems - first - num <= 128 && !is_exact) num = t->num_elems - first; /* short ones are exact sums */
    const uint8_t *in = (first / SML_BLOCK_ELEMS) % 2 == 0 ? out : memory->in[r->rank];
    const sml_operation_options o = {.struct_bytes = sizeof o, .exact = is_exact};
    const sml_status status = sml_allreduce(r->job, in + first * elem_bytes, out + first * elem_bytes, num, t->type,
                                            t->reduction, &o, &ops[num_ops]);
    if (is_refused) {
      CHECK(r, status == SML_ERR_UNSUPPORTED, "%d", status);
      break;
    }
    CHECK(r, status == SML_OK, "%s", sml_error_detail());
    num_ops++;
    first += num;
    if (is_batched) continue;
    finish(r, ops, 1);
    num_ops = 0;
  }
  finish(r, ops, num_ops);
}

/* Buckets of the model, which say where its tensors begin, all under way at once. */
static void sum_buckets(struct rank *r) {
  const size_t elem_bytes = sml_format_elem_bytes((uint32_t)current->type);
  sml_operation *ops[NUM_TENSORS];
  uint8_t *out = memory->out[r->rank];
  size_t num_ops = 0, first = 0;
  memcpy(out, memory->in[r->rank], current->num_elems * elem_bytes);
  if (is_batched) CHECK(r, sml_batch_begin(r->job) == SML_OK);
  for (size_t i = 0; i < NUM_TENSORS; i += bucket_tensors) {
    size_t starts[NUM_TENSORS], num = 0, count = 0;
    for (; num < bucket_tensors && i + num < NUM_TENSORS; count += model[i + num++]) starts[num] = count;
    const sml_operation_options o = {
        .struct_bytes = sizeof o, .starts = starts, .num_starts = num, .exact = is_exact};
    const uint8_t *in = num_ops % 2 == 0 ? out : memory->in[r->rank];
    const sml_status status = sml_allreduce(r->job, in + first * elem_bytes, out + first * elem_bytes, count,
                                            current->type, SML_SUM, &o, &ops[num_ops]);
    CHECK(r, status == SML_OK, "%s", sml_error_detail());
    first += count;
    num_ops++;
  }
  finish(r, ops, num_ops);
}

struct way {
  const char *hosts; /* NULL: no memory is shared */
  uint32_t max_datagram_bytes, num_lanes, num_aggds, packet_lanes, check, cut_blocks;
  double loss;
};
static struct {
  uint32_t tensors, buckets; /* bits of those arrays */
} left_out;

static void start(struct world *w, const struct way *way, const struct sml_format_options *options) {
  world_init(w, NUM_RANKS);
  w->job_options.lease_ns = PATIENT_LEASE_NS;
  w->job_options.float_bits = options->float_bits;
  w->job_options.float64_bits = options->float64_bits;
  w->job_options.max_datagram_bytes = way->max_datagram_bytes;
  w->job_options.no_shared_memory = way->hosts == NULL;
  w->job_options.check = way->check;
  w->aggd_options.packet_lanes = way->packet_lanes;
  w->aggd_options.num_lanes = w->context_options.num_threads = way->num_lanes;
  w->aggd_options.faults = (struct sml_fault_options){.loss = way->loss, .duplicate = way->loss, .seed = 3};
  w->hosts = way->hosts;
  w->num_aggds = way->num_aggds;
  w->is_embedded = way->num_aggds == 0;
  if (w->is_embedded) world_join(w);
  else world_start(w);
}

static void check_bits(const struct way *way, const struct sml_format_options *options, size_t num_in_bucket) {
  const size_t num_bytes = current->num_elems * sml_format_elem_bytes((uint32_t)current->type);
  num_compared += current->num_elems;
  for (uint32_t rank = 0; rank < NUM_RANKS; rank++)
    if (memcmp(memory->out[rank], memory->expected, num_bytes) != 0)
      fail_msg(
          "type %d, reduction %d, %u elements: hosts %s, datagrams of %u, %u lanes, %u aggregators, a switch of %u, "
          "check %u, cut at %u, float_bits %u, %zu tensors a bucket, exact %d, batch %d, %s: other bits than the "
          "reference's",
          current->type, current->reduction, current->num_elems, way->hosts != NULL ? way->hosts : "-",
          way->max_datagram_bytes, way->num_lanes, way->num_aggds, way->packet_lanes, way->check, way->cut_blocks,
          options->float_bits, num_in_bucket, is_exact, is_batched, sml_quant_select(getenv("SWITCHML_KERNELS"))->name);
}

/* Short exact sums' own code, which knows no codes and no pieces. */
static void reduce_exactly(void) {
  const struct sml_format *f =
      sml_format_find((uint32_t)current->type, (struct sml_format_shape){.has_exponents = false});
  reduce_blocks(f, 0, current->num_elems);
}

static void check_model(struct world *w, const struct way *way, const struct sml_format_options *options) {
  static const sml_type types[] = {SML_FLOAT32, SML_BFLOAT16, SML_FLOAT64};
  static const size_t buckets[] = {1, 4, NUM_TENSORS};
  const size_t which = (way->max_datagram_bytes + way->num_lanes) % SML_ARRAY_LEN(types);
  struct tensor all = {.type = types[which]};
  for (size_t i = 0; i < NUM_TENSORS; i++) all.num_elems += (uint32_t)model[i];
  current = &all;
  const struct sml_format *f = make_inputs(&all, options);
  for (size_t i = 0, first = 0; i < NUM_TENSORS; first += model[i++]) reduce_blocks(f, first, first + model[i]);
  for (size_t b = 0; b < SML_ARRAY_LEN(buckets); b++) {
    if (left_out.buckets >> b & 1) continue;
    bucket_tensors = buckets[b];
    world_run(w, sum_buckets);
    check_bits(way, options, buckets[b]);
  }
  if (left_out.buckets >> SML_ARRAY_LEN(buckets) & 1) return;
  is_exact = true;
  bucket_tensors = 5;
  reduce_exactly();
  world_run(w, sum_buckets);
  check_bits(way, options, bucket_tensors);
  is_exact = false;
}

/* A switch has sums, and maxima of 32 bits. No check word fits a product. */
static bool refuses(const struct way *way, const struct tensor *t) {
  if (t->reduction == SML_PRODUCT && way->check == 1) return true;
  if (way->packet_lanes == 0 || t->reduction <= SML_AVG) return false;
  if (t->reduction == SML_MIN || t->reduction == SML_MAX) return sml_format_elem_bytes((uint32_t)t->type) > 4;
  return t->reduction != SML_LAND && t->reduction != SML_LOR;
}

static void check_way(const struct way *way, const struct sml_format_options *options) {
  struct world w;
  start(&w, way, options);
  cut_elems = (size_t)way->cut_blocks * SML_BLOCK_ELEMS;
  for (size_t t = 0; t < SML_ARRAY_LEN(tensors); t++) {
    current = &tensors[t];
    if (left_out.tensors >> t & 1) continue;
    is_refused = refuses(way, current);
    const bool has_blocks = current->reduction <= SML_AVG && sml_format_is_float((uint32_t)current->type);
    if (!has_blocks) reduce_values(current);
    else reduce_blocks(make_inputs(current, options), 0, current->num_elems);
    world_run(&w, sum_it);
    if (!is_refused) check_bits(way, options, 0);
    if (!has_blocks || (t + way->max_datagram_bytes + way->num_lanes) % 4 != 0) continue;
    is_exact = true;
    reduce_exactly();
    world_run(&w, sum_it);
    check_bits(way, options, 0);
    is_exact = false;
  }
  check_model(&w, way, options);
  world_stop(&w);
}

static void each_way_gives_the_same_bits(void **state) {
  (void)state;
  static const struct way ways[] = {
      {NULL, 576, 1, 1, 0, 2, 0, 0},     {NULL, 1472, 1, 1, 0, 2, 0, 0},     {NULL, 8960, 1, 1, 0, 1, 0, 0},
      {NULL, 1472, 3, 1, 0, 1, 0, 0.01}, {NULL, 1400, 16, 1, 0, 2, 16, 0},   {NULL, 1472, 2, 4, 0, 1, 0, 0},
      {NULL, 9000, 2, 0, 0, 2, 0, 0},    {"1111", 8960, 1, 1, 0, 2, 0, 0},   {"1111", 576, 1, 1, 0, 2, 16, 0},
      {"1122", 1472, 1, 1, 0, 2, 0, 0},  {"1222", 4000, 2, 1, 0, 1, 7, 0},   {"1122", 1472, 2, 2, 0, 1, 0, 0},
      {NULL, 1472, 1, 1, 32, 1, 0, 0},   {NULL, 1472, 3, 1, 64, 2, 0, 0.01}, {"1122", 1472, 1, 1, 128, 1, 3, 0},
      {"1111", 1472, 1, 1, 32, 2, 0, 0}};
  for (size_t i = 0; i < SML_ARRAY_LEN(ways); i++) {
    check_way(&ways[i], &(struct sml_format_options){.float64_bits = 64});
    if (i % 3 == 0) check_way(&ways[i], &(struct sml_format_options){.float_bits = 16, .float64_bits = 96});
  }
}

/* Aggregators, or as many as hosts have; then lanes, of all of them 64 at most. */
static void draw_lanes(struct sml_prng *prng, struct way *way) {
  static const uint32_t many[] = {4, 8, 16, 32, 64};
  way->num_aggds = (uint32_t)sml_prng_below(prng, 4);
  if (sml_prng_below(prng, 16) == 0) way->num_aggds = many[sml_prng_below(prng, SML_ARRAY_LEN(many))];
  if (way->packet_lanes != 0) way->num_aggds = 1;
  way->num_lanes = 1 + (uint32_t)sml_prng_below(prng, sml_min_u32(16, 64 / sml_max_u32(way->num_aggds, 1)));
}

static void random_ways_give_the_same_bits(void **state) {
  (void)state;
  static const char *const hosts[] = {NULL, NULL, "1111", "1122", "1223"};
  static const char *const kernels[] = {"scalar", "avx2", "avx512", "neon"}; /* one that is not here is not taken */
  struct sml_prng prng = {.state = seed};
  for (uint64_t i = 0; i < num_random_ways; i++) {
    struct way way = {.hosts = hosts[sml_prng_below(&prng, SML_ARRAY_LEN(hosts))],
                      .max_datagram_bytes = 576 + (uint32_t)sml_prng_below(&prng, 8425),
                      .packet_lanes = sml_prng_below(&prng, 4) == 0 ? 32u << sml_prng_below(&prng, 3) : 0,
                      .check = 1 + (uint32_t)sml_prng_below(&prng, 2),
                      .cut_blocks = (uint32_t)sml_prng_below(&prng, 64),
                      .loss = sml_prng_below(&prng, 8) == 0 ? 0.01 : 0};
    draw_lanes(&prng, &way);
    is_batched = sml_prng_below(&prng, 3) == 0;
    left_out.tensors = ~UINT32_C(0);
    for (uint32_t t = 0; t < 6; t++) left_out.tensors &= ~(1u << sml_prng_below(&prng, SML_ARRAY_LEN(tensors)));
    left_out.buckets = 15 & ~(1u << sml_prng_below(&prng, 8)); /* none in every other way */
    const uint8_t float_bits = (uint8_t)(16 * sml_prng_below(&prng, 3));
    const char *which = kernels[sml_prng_below(&prng, SML_ARRAY_LEN(kernels))];
    if (strcmp(sml_quant_select(which)->name, which) == 0) setenv("SWITCHML_KERNELS", which, 1);
    check_way(&way, &(struct sml_format_options){.float_bits = float_bits, .float64_bits = 64});
    if (i % 100 == 99)
      print_message("# %llu random ways, %llu elements\n", (unsigned long long)i + 1, (unsigned long long)num_compared);
  }
  unsetenv("SWITCHML_KERNELS");
  is_batched = false;
  left_out.tensors = left_out.buckets = 0;
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(each_way_gives_the_same_bits),
                                     cmocka_unit_test(random_ways_give_the_same_bits)};
  if (argc > 1) num_random_ways = strtoull(argv[1], NULL, 10);
  if (argc > 2) seed = strtoull(argv[2], NULL, 10);
  memory = malloc(sizeof *memory);
  if (memory == NULL) return 1;
  const int num_failed = cmocka_run_group_tests(tests, NULL, NULL);
  free(memory);
  return num_failed;
}
