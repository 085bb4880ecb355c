/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/tuning.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum {
  ASKED = SML_SLOTS_REASON_ASKED,
  USUAL = SML_SLOTS_REASON_USUAL,
  PATH = SML_SLOTS_REASON_PATH,
  LOOPBACK = SML_SLOTS_REASON_LOOPBACK,
  POOL = SML_SLOTS_REASON_POOL,
};

static const struct row {
  uint32_t num_asked, num_lanes, chunk_bytes, pool_slots;
  uint64_t rtt_us;
  bool is_loopback;
  uint32_t num_slots;
  int why;
  uint64_t others_bytes;
} rows[] = {
    /* near */
    {0, 1, 1440, 8192, 0, false, 256, USUAL, 0},
    {0, 1, 1440, 8192, 100, false, 256, USUAL, 0},
    {0, 1, 1440, 8192, 589, false, 256, USUAL, 0},
    {0, 1, 8928, 8192, 100, false, 128, USUAL, 0},
    {0, 1, 65472, 8192, 100, false, 32, USUAL, 0},
    {0, 2, 1440, 8192, 100, false, 128, USUAL, 0},
    {0, 3, 1440, 8192, 100, false, 64, USUAL, 0},
    {0, 16, 8928, 8192, 100, false, 32, USUAL, 0},
    {0, 1024, 1440, 8192, 100, false, 32, USUAL, 0},
    /* far: 10 Gbit/s times the round trip */
    {0, 1, 1440, 8192, 590, false, 512, PATH, 0},
    {0, 1, 1440, 8192, 5000, false, 4096, PATH, 0},
    {0, 1, 8928, 8192, 5000, false, 512, PATH, 0},
    {0, 2, 8928, 8192, 5000, false, 256, PATH, 0},
    {0, 1, 1440, 8192, 50000, false, 4096, PATH, 0},
    {0, 1, 1440, 65536, 50000, false, 8192, PATH, 0},
    {0, 1, 8928, 8192, 50000, false, 1024, PATH, 0},
    {0, 1, 8928, 8192, UINT64_MAX / 1000, false, 1024, PATH, 0},
    {0, 1, 1, 65536, UINT64_MAX / 1000, false, 32768, PATH, 0},
    /* far, but for what others have waiting */
    {0, 1, 1440, 8192, 5000, false, 256, USUAL, 625000},
    {0, 1, 1440, 8192, 5000, false, 256, USUAL, 552000},
    {0, 1, 1440, 8192, 5000, false, 512, PATH, 550000},
    {0, 1, 1440, 8192, 50000, false, 4096, PATH, 625000},
    {0, 1, 1440, 8192, 50000, false, 256, USUAL, UINT64_MAX},
    {0, 1, 8928, 8192, 5000, true, 64, LOOPBACK, 625000},
    {512, 1, 1440, 8192, 5000, false, 512, ASKED, 625000},
    /* one host */
    {0, 1, 8928, 8192, 100, true, 64, LOOPBACK, 0},
    {0, 2, 8928, 8192, 100, true, 32, LOOPBACK, 0},
    {0, 1, 1440, 8192, 0, true, 256, LOOPBACK, 0},
    {0, 1, 65472, 8192, 100, true, 32, LOOPBACK, 0},
    {0, 1, 8928, 8192, 1999, true, 64, LOOPBACK, 0},
    {0, 1, 8928, 8192, 5000, true, 512, PATH, 0},
    /* half of the pool, or all of a tiny one */
    {0, 1, 1440, 512, 0, false, 256, USUAL, 0},
    {0, 1, 1440, 511, 0, false, 128, POOL, 0},
    {0, 1, 1440, 1024, 50000, false, 512, PATH, 0},
    {0, 1, 1440, 40, 0, false, 32, POOL, 0},
    {0, 1, 1440, 7, 0, true, 4, POOL, 0},
    {0, 1, 1440, 1, 50000, false, 1, POOL, 0},
    /* a number is a number, up to 16 MiB */
    {1, 1, 1440, 8192, 50000, false, 1, ASKED, 0},
    {256, 4, 8928, 8192, 0, true, 256, ASKED, 0},
    {8192, 1, 1440, 8192, 0, false, 8192, ASKED, 0},
    {512, 1, 32768, 8192, 0, false, 512, ASKED, 0},
    {512, 1, 32772, 8192, 0, false, 256, ASKED, 0},
    {16, 1, 65472, 8192, 0, false, 16, ASKED, 0},
};

/* Hosts that aggregate themselves. */
static const struct row embedded_rows[] = {
    {0, 2, 1424, 8192, 100, false, 512, USUAL, 0},  {0, 8, 1424, 8192, 100, false, 128, USUAL, 0},
    {0, 64, 1424, 8192, 100, false, 32, USUAL, 0},  {0, 8, 8912, 8192, 100, false, 64, USUAL, 0},
    {0, 8, 1424, 8192, 100, true, 32, LOOPBACK, 0}, {0, 8, 1424, 8192, 50000, false, 1024, PATH, 0},
    {16, 8, 1424, 8192, 100, false, 16, ASKED, 0},
};

/* With other windows than 16 MiB. */
static const struct {
  uint32_t most_mib;
  struct row row;
} wide_rows[] = {
    {17, {512, 1, 32772, 8192, 0, false, 512, ASKED, 0}},       {64, {8192, 1, 8928, 65536, 0, false, 4096, ASKED, 0}},
    {64, {0, 1, 1440, 65536, 50000, false, 32768, PATH, 0}},    {64, {0, 1, 8928, 65536, 300000, false, 4096, PATH, 0}},
    {1024, {0, 1, 8928, 65536, 300000, false, 32768, PATH, 0}}, {1, {0, 1, 1440, 65536, 50000, false, 512, PATH, 0}},
    {64, {0, 1, 1440, 8192, 100, false, 256, USUAL, 0}},
};

static struct sml_tuning tuning_of(const struct row *row, bool is_embedded, uint32_t most_mib) {
  return (struct sml_tuning){.num_asked = row->num_asked,
                             .num_lanes = row->num_lanes,
                             .chunk_bytes = row->chunk_bytes,
                             .pool_slots = row->pool_slots,
                             .rtt_ns = row->rtt_us * SML_NS_PER_US,
                             .others_bytes = row->others_bytes,
                             .is_loopback = row->is_loopback,
                             .is_embedded = is_embedded,
                             .most_mib = most_mib};
}

static void check(const struct row *row, size_t number, bool is_embedded, uint32_t most_mib) {
  const struct sml_tuning tuning = tuning_of(row, is_embedded, most_mib);
  sml_slots_reason why;
  const uint32_t num_slots = sml_tuning_choose(&tuning, &why);
  if (num_slots != row->num_slots || (int)why != row->why)
    fail_msg("row %zu: %u slots for reason %d, not %u for %d", number, num_slots, (int)why, row->num_slots, row->why);
}

static void test_slots(void **state) {
  (void)state;
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) check(&rows[i], i, false, 0);
  for (size_t i = 0; i < SML_ARRAY_LEN(embedded_rows); i++) check(&embedded_rows[i], i, true, 0);
  for (size_t i = 0; i < SML_ARRAY_LEN(wide_rows); i++) check(&wide_rows[i].row, i, false, wide_rows[i].most_mib);
}

/* Whatever the numbers: a power of two that the pool has, and a longer way never gets fewer. */
static void test_any_input(void **state) {
  (void)state;
  static const uint32_t chunks[] = {1, 256, 1440, 8928, 65503}, pools[] = {1, 31, 33, 1000, 8192, 65536};
  for (size_t c = 0; c < SML_ARRAY_LEN(chunks); c++)
    for (size_t p = 0; p < SML_ARRAY_LEN(pools); p++)
      for (uint32_t lanes = 1; lanes <= 16; lanes++)
        for (uint32_t near = 0; near < 2; near++) {
          uint32_t before = 0;
          for (uint32_t shift = 0; shift < 64; shift++) {
            const struct sml_tuning tuning = {.num_lanes = lanes,
                                              .chunk_bytes = chunks[c],
                                              .pool_slots = pools[p],
                                              .rtt_ns = UINT64_C(1) << shift,
                                              .is_loopback = near != 0};
            sml_slots_reason why;
            const uint32_t num_slots = sml_tuning_choose(&tuning, &why);
            assert_true(sml_is_pow2(num_slots) && num_slots <= pools[p] && num_slots <= 32768);
            assert_true(num_slots >= before);
            before = num_slots;
          }
        }
}

/* Others keep what is theirs; few slots are chosen even if that leaves too little. */
static void test_kept_slots(void **state) {
  (void)state;
  static const struct {
    uint32_t kept_slots, num_slots;
    int why;
  } kept[] = {{0, 256, USUAL}, {768, 256, USUAL}, {769, 128, POOL}, {960, 64, POOL}, {993, 32, POOL}, {5000, 32, POOL}};
  for (size_t i = 0; i < SML_ARRAY_LEN(kept); i++) {
    const struct sml_tuning tuning = {
        .num_lanes = 1, .chunk_bytes = 1440, .pool_slots = 1024, .kept_slots = kept[i].kept_slots};
    sml_slots_reason why;
    assert_int_equal(sml_tuning_choose(&tuning, &why), kept[i].num_slots);
    assert_int_equal(why, kept[i].why);
  }
  assert_int_equal(sml_tuning_reserve(8192, 256, 0), 127 * 32); /* as far as half of the pool goes */
  assert_int_equal(sml_tuning_reserve(8192, 100, 0), 99 * 32);
  assert_int_equal(sml_tuning_reserve(8192, 100, 98), 32);
  assert_int_equal(sml_tuning_reserve(8192, 100, 99), 0);
  assert_int_equal(sml_tuning_reserve(8192, 100, 200), 0);
  assert_int_equal(sml_tuning_reserve(64, 256, 0), 0);
  assert_int_equal(sml_tuning_reserve(1, 1, 0), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_slots),
      cmocka_unit_test(test_any_input),
      cmocka_unit_test(test_kept_slots),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
