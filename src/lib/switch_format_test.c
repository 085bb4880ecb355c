/* SPDX-License-Identifier: Apache-2.0
 * Jobs in switch format: the same bits over any number of lanes, by hosts that combine, in shared memory and under
 * loss; sums of every type; int32 with the bits of the ordinary format. Hosts are this one under several names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lib/test_calls.h"
#include "meet/job_settings.h"

static uint64_t hashes[MAX_RANKS];

static size_t mixed_count(uint64_t bits, uint32_t i) {
  static const size_t limits[] = {1, 8, 140, 3000, 40000};
  if (i == 7) return 600000 - 5; /* more than a piece */
  return 1 + bits % limits[(bits >> 32) % SML_ARRAY_LEN(limits)];
}

static void sum_all_kinds(struct rank *r) {
  static const struct mixed_calls calls = {
      .num = SML_IS_SLOW_BUILD ? 15 : 30, .max_elems = 600000, .count = mixed_count};
  sum_mixed(r, &calls, &hashes[r->rank]);
}

struct way {
  const char *hosts; /* NULL: each rank on its own, without shared memory */
  uint32_t num_lanes;
  double loss;
};

static uint64_t run_way(const struct way *way, uint32_t packet_lanes, bool is_checked, void (*body)(struct rank *)) {
  struct world w;
  world_init(&w, 4);
  w.job_options.lease_ns = PATIENT_LEASE_NS;
  w.aggd_options.packet_lanes = packet_lanes;
  w.aggd_options.num_lanes = w.context_options.num_threads = way->num_lanes;
  w.aggd_options.faults = (struct sml_fault_options){.loss = way->loss, .duplicate = way->loss, .seed = 3};
  w.job_options.no_shared_memory = way->hosts == NULL;
  w.job_options.check = is_checked ? 1 : 2;
  w.job_options.float64_bits = 96;
  w.hosts = way->hosts;
  world_start(&w);
  world_run(&w, body);
  for (uint32_t r = 1; r < w.num_ranks; r++) assert_true(hashes[r] == hashes[0]);
  world_stop(&w);
  return hashes[0];
}

static void same_bits_by_every_way(void **state) {
  (void)state;
  static const struct way ways[] = {{NULL, 1, 0}, {NULL, 3, 0}, {"1122", 1, 0}, {"1111", 1, 0}, {NULL, 1, 0.01}};
  const uint64_t want = run_way(&ways[0], 32, true, sum_all_kinds);
  assert_true(want != 0);
  for (size_t i = 1; i < SML_ARRAY_LEN(ways); i++) assert_true(run_way(&ways[i], 32, true, sum_all_kinds) == want);
  assert_true(run_way(&ways[1], 256, false, sum_all_kinds) == run_way(&ways[0], 256, false, sum_all_kinds));
}

/* Element i of a rank is i % 7 + rank: all types have these numbers, and their sums, exactly. */
static void put_small(uint8_t *to, sml_type type, uint32_t number) {
  const float narrow = (float)number;
  const double wide = number;
  const uint64_t whole = number;
  uint32_t bits;
  memcpy(&bits, &narrow, sizeof bits);
  const uint32_t float16 = number == 0 ? 0 : (bits >> 13) - ((127 - 15) << 10), bfloat16 = bits >> 16;
  switch (type) {
  case SML_FLOAT32: memcpy(to, &bits, 4); break;
  case SML_FLOAT16: memcpy(to, &float16, 2); break;
  case SML_BFLOAT16: memcpy(to, &bfloat16, 2); break;
  case SML_FLOAT64: memcpy(to, &wide, 8); break;
  case SML_INT32: memcpy(to, &whole, 4); break;
  case SML_INT8:
  case SML_UINT8: *to = (uint8_t)number; break;
  case SML_UINT32: memcpy(to, &whole, 4); break;
  case SML_INT64:
  case SML_UINT64: memcpy(to, &whole, 8); break;
  }
}

static void sum_small_numbers(struct rank *r) {
  static const size_t counts[] = {1, 128, 129, 1001, 20011};
  static uint8_t memory[MAX_RANKS][8 * 20011];
  uint8_t *x = memory[r->rank], want[8];
  for (uint32_t i = 0; i < SML_ARRAY_LEN(counts) * SML_NUM_FORMAT_TYPES; i++) {
    const sml_type type = (sml_type)(i % SML_NUM_FORMAT_TYPES);
    const size_t count = counts[i / SML_NUM_FORMAT_TYPES], elem_bytes = sml_format_elem_bytes((uint32_t)type);
    for (uint32_t e = 0; e < count; e++) put_small(x + elem_bytes * e, type, e % 7 + r->rank);
    CHECK(r, allreduce(r, x, x, count, type, SML_SUM) == SML_OK, "%s", sml_error_detail());
    for (uint32_t e = 0; e < count; e++) {
      put_small(want, type, 4 * (e % 7) + 6);
      CHECK(r, memcmp(x + elem_bytes * e, want, elem_bytes) == 0, "type %d, element %u of %zu", (int)type, e, count);
    }
  }
  hashes[r->rank] = 1;
}

static void all_types_have_their_sums(void **state) {
  (void)state;
  static const struct way ways[] = {{NULL, 2, 0.01}, {"1122", 1, 0}};
  for (size_t i = 0; i < SML_ARRAY_LEN(ways); i++)
    for (uint32_t packet_lanes = 32; packet_lanes <= 256; packet_lanes *= 8)
      run_way(&ways[i], packet_lanes, packet_lanes == 32, sum_small_numbers);
}

/* Tags, chunks and packets differ, but not what comes out: int32, and few floats, which are summed exactly. */
static void sum_what_has_no_blocks(struct rank *r) {
  enum { NUM_ELEMS = 12345, NUM_FLOATS = 128 };
  int32_t *x = malloc(NUM_ELEMS * sizeof *x);
  float f[NUM_FLOATS];
  CHECK(r, x != NULL);
  for (uint32_t i = 0; i < NUM_ELEMS; i++) x[i] = (int32_t)sml_mix64(i * 8 + r->rank);
  for (uint32_t i = 0; i < NUM_FLOATS; i++) f[i] = (float)(int32_t)sml_mix64(i * 8 + r->rank) * 0x1p-20f;
  const bool is_done = allreduce(r, x, x, NUM_ELEMS, SML_INT32, SML_SUM) == SML_OK &&
                       allreduce(r, f, f, NUM_FLOATS, SML_FLOAT32, SML_SUM) == SML_OK;
  hashes[r->rank] = 1;
  for (uint32_t i = 0; i < NUM_ELEMS; i++) hashes[r->rank] = sml_mix64(hashes[r->rank] ^ (uint32_t)x[i]);
  for (uint32_t i = 0; i < NUM_FLOATS; i++) {
    uint32_t bits;
    memcpy(&bits, &f[i], sizeof bits);
    hashes[r->rank] = sml_mix64(hashes[r->rank] ^ bits);
  }
  free(x);
  CHECK(r, is_done, "%s", sml_error_detail());
}

static void ints_have_the_bits_of_the_ordinary_format(void **state) {
  (void)state;
  const struct way way = {NULL, 1, 0};
  const uint64_t want = run_way(&way, 0, true, sum_what_has_no_blocks);
  assert_true(run_way(&way, 64, true, sum_what_has_no_blocks) == want);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(same_bits_by_every_way),
      cmocka_unit_test(all_types_have_their_sums),
      cmocka_unit_test(ints_have_the_bits_of_the_ordinary_format),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
