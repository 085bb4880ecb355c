/* SPDX-License-Identifier: Apache-2.0
 * Small sums of floats, of which ranks gather the inputs: they have the bits of the first elements of a long sum, which
 * goes in blocks or limbs; and take one round, up to the limit and not beyond. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lib/gathered.h"
#include "lib/test_world.h"
#include "quant/limbs.h"

#define LONG_ELEMS (SML_IS_SLOW_BUILD ? 17000u : 40000u)

static const sml_type types[] = {SML_FLOAT32, SML_FLOAT16, SML_BFLOAT16, SML_FLOAT64};
static uint64_t seed;
static struct sml_aggd_options aggd_options;
static sml_context_options context_options;
static sml_job_options job_options;

static void run(uint32_t num_ranks, void (*body)(struct rank *r)) {
  struct world world, *w = &world;
  world_init(w, num_ranks);
  if (job_options.struct_bytes != 0) w->job_options = job_options;
  if (context_options.struct_bytes != 0) w->context_options = context_options;
  if (aggd_options.num_lanes != 0) w->aggd_options = aggd_options;
  w->job_options.float64_bits = 96;
  w->job_options.lease_ns = PATIENT_LEASE_NS;
  w->job_options.no_shared_memory = 1;
  world_start(w);
  world_run(w, body);
  world_stop(w);
}

/* An element of a rank, the same in operations of all lengths: a finite number; in some blocks one is Inf or NaN. */
static void put(uint8_t *to, sml_type type, uint32_t rank, size_t i) {
  const uint64_t bits = sml_mix64((seed << 8 | rank) * UINT64_C(0x9e3779b97f4a7c15) + i);
  const bool is_special = (i / SML_BLOCK_ELEMS + seed) % 7 == 3 && bits % 300 == 0;
  const uint64_t wide_field = is_special ? 2047 : 1023 - 30 + (bits >> 52) % 60;
  const uint32_t field = is_special ? 255 : (uint32_t)(127 - 15 + (bits >> 32) % 30);
  const uint64_t wide = (bits & UINT64_C(0x800fffffffffffff)) | wide_field << 52;
  const uint32_t word = (uint32_t)(bits & 0x807fffff) | field << 23;
  const uint16_t half = (uint16_t)(type == SML_FLOAT16 ? (bits & 0xbbff) : word >> 16);
  const size_t elem_bytes = sml_format_elem_bytes((uint32_t)type);
  const void *from = elem_bytes == 2 ? (const void *)&half : &wide;
  memcpy(to + i * elem_bytes, elem_bytes == 4 ? &word : from, elem_bytes);
}

static sml_status sum(struct rank *r, const void *in, void *out, size_t count, sml_type type, sml_reduction reduction,
                      const sml_operation_options *o) {
  sml_operation *op;
  sml_status status = sml_allreduce(r->job, in, out, count, type, reduction, o, &op);
  if (status == SML_OK) status = sml_operation_wait(op, 30 * SML_NS_PER_S);
  sml_operation_release(op);
  return status;
}

/* So many elements are gathered, at most: n n-fold parts, each in whole chunks. On a busy machine the path is long. */
static size_t find_limit(struct rank *r, sml_type type, bool is_exact) {
  const sml_stats stats = stats_of(r);
  const uint64_t n = r->world->num_ranks, path_bytes = sml_min_u64(stats.join_rtt_ns / 10, 100000);
  for (uint64_t num_bytes = 32768 / n / 8 * 8; num_bytes > 0; num_bytes -= 8) {
    const uint64_t num_chunks = n * sml_div_ceil(n * num_bytes, stats.chunk_bytes);
    const bool is_short = num_chunks <= 12 && (is_exact || n * num_bytes <= 4096);
    if (is_short || num_chunks * stats.chunk_bytes <= path_bytes)
      return num_bytes / sml_format_elem_bytes((uint32_t)type);
  }
  return 0;
}

/* Whether a sum of so many elements took only the chunks of its gathered inputs. */
static void check_round(struct rank *r, uint64_t chunks_before, size_t count, sml_type type, bool is_exact) {
  const size_t part_bytes = sml_align_up(count * sml_format_elem_bytes((uint32_t)type), 8);
  const uint64_t num_chunks = stats_of(r).chunks_completed - chunks_before, n = r->world->num_ranks;
  const uint64_t gathered = sml_div_ceil(n * part_bytes, stats_of(r).chunk_bytes);
  if (count <= SML_LIMBS_MAX_ELEMS) return;
  if (count <= find_limit(r, type, is_exact))
    CHECK(r, num_chunks == gathered, "%zu: %llu", count, (unsigned long long)num_chunks);
  else CHECK(r, num_chunks >= 2, "%zu: %llu", count, (unsigned long long)num_chunks);
}

static void sum_small(struct rank *r, uint8_t *in, uint8_t *out, const uint8_t *whole, sml_type type,
                      sml_reduction reduction, const sml_operation_options *o) {
  const size_t elem_bytes = sml_format_elem_bytes((uint32_t)type), limit = find_limit(r, type, o->exact == 1);
  const size_t counts[] = {129, 255, 256, 257, 511, 513, 1000, limit - 1, limit, limit + 1, 2 * limit};
  for (size_t c = 0; c < SML_ARRAY_LEN(counts); c++) {
    if (counts[c] <= SML_LIMBS_MAX_ELEMS || counts[c] > LONG_ELEMS) continue;
    const uint64_t chunks_before = stats_of(r).chunks_completed;
    const bool is_in_place = c % 2 != 0;
    memset(out, 0xa5, (counts[c] + 1) * elem_bytes);
    if (is_in_place) memcpy(out, in, counts[c] * elem_bytes);
    CHECK(r, sum(r, is_in_place ? out : in, out, counts[c], type, reduction, o) == SML_OK, "%s", sml_error_detail());
    CHECK(r, out[counts[c] * elem_bytes] == 0xa5);
    /* A short last block is another one, if what follows in the long sum is larger: compare whole blocks alone. */
    const size_t same = o->exact == 1 ? counts[c] : counts[c] / SML_BLOCK_ELEMS * SML_BLOCK_ELEMS;
    CHECK(r, memcmp(out, whole, same * elem_bytes) == 0, "type %d, reduction %d, exact %u, %zu elements", type,
          reduction, o->exact, counts[c]);
    if (o->num_starts == 0) check_round(r, chunks_before, counts[c], type, o->exact == 1);
  }
}

static void sum_all(struct rank *r) {
  uint8_t *in = malloc(8 * LONG_ELEMS), *out = malloc(8 * LONG_ELEMS + 8), *whole = malloc(8 * LONG_ELEMS);
  for (uint32_t i = 0; i < 4 * SML_ARRAY_LEN(types); i++) {
    const sml_type type = types[i / 4];
    const sml_reduction reduction = i % 2 != 0 ? SML_AVG : SML_SUM;
    const sml_operation_options o = {.struct_bytes = sizeof o, .exact = i / 2 % 2 != 0 ? 1 : 2, .key = i};
    for (size_t e = 0; e < LONG_ELEMS; e++) put(in, type, r->rank, e);
    CHECK(r, sum(r, in, whole, LONG_ELEMS, type, reduction, &o) == SML_OK, "%s", sml_error_detail());
    sum_small(r, in, out, whole, type, reduction, &o);
  }
  free(in);
  free(out);
  free(whole);
}

static void check_bits(uint32_t num_ranks) {
  seed++;
  run(num_ranks, sum_all);
}

static void bits_are_those_of_long_sums(void **state) {
  (void)state;
  static const uint32_t nums[] = {2, 3, 4, 7, 8};
  for (size_t i = 0; i < SML_ARRAY_LEN(nums); i++) check_bits(nums[i]);
}

static void short_packets_gather_less(void **state) {
  (void)state;
  job_options = (sml_job_options)SML_JOB_OPTIONS_INIT;
  job_options.max_datagram_bytes = 600;
  check_bits(2);
  check_bits(5);
  job_options.struct_bytes = 0;
}

static void several_lanes_share_them(void **state) {
  (void)state;
  aggd_options = (struct sml_aggd_options){.num_lanes = 3};
  context_options = (sml_context_options)SML_CONTEXT_OPTIONS_INIT;
  context_options.num_threads = 3;
  check_bits(4);
  aggd_options.num_lanes = 0;
  context_options.struct_bytes = 0;
}

/* Tensors that begin in it: each is filled up. */
static void sum_with_starts(struct rank *r) {
  static const size_t starts[] = {0, 3, 260, 300};
  float in[700], out[700], alone[700];
  for (size_t i = 0; i < SML_ARRAY_LEN(in); i++) put((uint8_t *)in, SML_FLOAT32, r->rank, i);
  const sml_operation_options with = {.struct_bytes = sizeof with, .starts = starts, .num_starts = 4};
  const sml_operation_options begins = {.struct_bytes = sizeof begins, .starts = starts, .num_starts = 1};
  CHECK(r, sum(r, in, out, 700, SML_FLOAT32, SML_SUM, &with) == SML_OK, "%s", sml_error_detail());
  for (size_t t = 0; t < 4; t++) {
    const size_t count = (t < 3 ? starts[t + 1] : 700) - starts[t];
    CHECK(r, sum(r, in + starts[t], alone, count, SML_FLOAT32, SML_SUM, &begins) == SML_OK, "%s", sml_error_detail());
    CHECK(r, memcmp(alone, out + starts[t], 4 * count) == 0, "tensor %zu", t);
  }
}

/* In a batch none is gathered; with what was called before and after it nothing is mixed up. */
static void sum_in_batches(struct rank *r) {
  float in[500], alone[500], out[3][500];
  sml_operation *ops[3];
  for (size_t i = 0; i < 500; i++) put((uint8_t *)in, SML_FLOAT32, r->rank, i);
  CHECK(r, allreduce(r, in, alone, 500, SML_FLOAT32, SML_SUM) == SML_OK);
  for (uint32_t round = 0; round < 20; round++) {
    const bool is_batch = round % 2 != 0;
    if (is_batch) CHECK(r, sml_batch_begin(r->job) == SML_OK);
    for (uint32_t k = 0; k < 3; k++)
      CHECK(r, sml_allreduce(r->job, in, out[k], 500, SML_FLOAT32, SML_SUM, NULL, &ops[k]) == SML_OK);
    if (is_batch) CHECK(r, sml_batch_end(r->job) == SML_OK);
    for (uint32_t k = 0; k < 3; k++) {
      CHECK(r, sml_operation_wait(ops[k], 30 * SML_NS_PER_S) == SML_OK, "%s", sml_error_detail());
      sml_operation_release(ops[k]);
      CHECK(r, memcmp(out[k], alone, sizeof alone) == 0);
    }
  }
  CHECK(r, stats_of(r).tensor_bytes == 61 * sizeof alone);
}

static void starts_and_batches_change_no_bit(void **state) {
  (void)state;
  run(3, sum_with_starts);
  run(2, sum_in_batches);
}

/* A reduce-scatter and a reduce, too small to go one way. */
static void sum_parts(struct rank *r) {
  float in[240], whole[240], part[240];
  sml_operation *op;
  for (size_t i = 0; i < 240; i++) put((uint8_t *)in, SML_FLOAT32, r->rank, i);
  CHECK(r, allreduce(r, in, whole, 240, SML_FLOAT32, SML_SUM) == SML_OK);
  const uint64_t chunks = stats_of(r).chunks_completed;
  CHECK(r, sml_reduce_scatter(r->job, in, part, 60, NULL, SML_FLOAT32, SML_SUM, NULL, &op) == SML_OK);
  CHECK(r, sml_operation_wait(op, 30 * SML_NS_PER_S) == SML_OK);
  sml_operation_release(op);
  CHECK(r, memcmp(part, whole + 60 * r->rank, 240) == 0);
  CHECK(r, sml_reduce(r->job, in, part, 240, SML_FLOAT32, SML_SUM, 2, NULL, &op) == SML_OK);
  CHECK(r, sml_operation_wait(op, 30 * SML_NS_PER_S) == SML_OK);
  sml_operation_release(op);
  CHECK(r, r->rank != 2 || memcmp(part, whole, sizeof whole) == 0);
  CHECK(r, stats_of(r).chunks_completed == 3 * chunks);
}

static void parts_are_gathered_too(void **state) {
  (void)state;
  run(4, sum_parts);
}

static void long_paths_gather_more(void **state) {
  (void)state;
  static const struct {
    uint32_t num_ranks, chunk_bytes;
    uint64_t rtt_us, num_elems;
    bool is_exact, is_taken;
  } rows[] = {
      {4, 1440, 0, 256, false, true},       {4, 1440, 0, 257, false, false},     {4, 1440, 1000, 1024, false, true},
      {4, 1440, 500, 1024, false, false},   {8, 1440, 100, 256, false, false},   {8, 1440, 1000, 256, false, true},
      {8, 1440, 60000, 1024, false, false}, {2, 1440, 60000, 4096, false, true}, {2, 1440, 60000, 4097, false, false},
      {64, 1440, 60000, 129, false, false}, {65, 1440, 60000, 2, false, false},  {2, 8928, 0, 4096, true, true},
      {2, 1440, 0, 4096, true, false},      {12, 8928, 0, 130, true, true},      {13, 8928, 0, 130, true, false},
      {1, 1440, 60000, 256, false, false},  {4, 1440, 60000, 0, false, false}};
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    const struct sml_format_options formats = {.chunk_bytes = rows[i].chunk_bytes};
    const struct sml_gathered_job job = {
        .formats = &formats, .num_ranks = rows[i].num_ranks, .rtt_ns = rows[i].rtt_us * SML_NS_PER_US};
    const struct sml_operation_plan plan = {
        .num_elems = rows[i].num_elems, .type = SML_FLOAT32, .block_elems = SML_BLOCK_ELEMS};
    if (sml_gathered_takes(&job, &plan, rows[i].is_exact) != rows[i].is_taken) fail_msg("row %zu", i);
  }
}

/* ---- ranks that differ ---- */

static uint32_t mistake;

static void call_otherwise(struct rank *r) {
  static double in[400], out[400];
  const bool is_odd = r->rank == 1;
  const sml_operation_options o = {
      .struct_bytes = sizeof o, .key = is_odd && mistake == 4, .exact = is_odd && mistake == 3};
  const size_t count = is_odd && mistake == 0 ? 299 : is_odd && mistake == 5 ? 300 * 2 : 300;
  const sml_type type = is_odd && mistake == 1 ? SML_BFLOAT16 : is_odd && mistake == 5 ? SML_FLOAT16 : SML_FLOAT32;
  sml_error error;
  const sml_status status = sum(r, in, out, count, type, is_odd && mistake == 2 ? SML_AVG : SML_SUM, &o);
  CHECK(r, status == SML_ERR_MISMATCH, "mistake %u: %d", mistake, status);
  check_failed(r, SML_ERR_MISMATCH, &error);
  CHECK(r, strstr(error.detail, "ranks 0 and 1 called different operations") != NULL, "%s", error.detail);
}

static void ranks_that_differ_are_told(void **state) {
  (void)state;
  for (mistake = 0; mistake < 6; mistake++) run(2, call_otherwise);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bits_are_those_of_long_sums), cmocka_unit_test(short_packets_gather_less),
      cmocka_unit_test(several_lanes_share_them),    cmocka_unit_test(starts_and_batches_change_no_bit),
      cmocka_unit_test(parts_are_gathered_too),      cmocka_unit_test(long_paths_gather_more),
      cmocka_unit_test(ranks_that_differ_are_told),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
