/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/slot_pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static void test_windows_are_aligned_and_first_fit(void **state) {
  (void)state;
  struct sml_slot_pool pool;
  uint16_t base;
  sml_slot_pool_init(&pool, 1024);
  assert_true(sml_slot_pool_take(&pool, 1, 1, &base));
  assert_int_equal(base, 0);
  assert_true(sml_slot_pool_take(&pool, 256, 1, &base));
  assert_int_equal(base, 256);
  assert_true(sml_slot_pool_take(&pool, 2, 1, &base));
  assert_int_equal(base, 2);
  assert_true(sml_slot_pool_take(&pool, 64, 1, &base));
  assert_int_equal(base, 64);
  assert_true(sml_slot_pool_take(&pool, 512, 1, &base));
  assert_int_equal(base, 512);
  assert_false(sml_slot_pool_take(&pool, 256, 1, &base));
  assert_true(sml_slot_pool_take(&pool, 128, 1, &base));
  assert_int_equal(base, 128);
  sml_slot_pool_give(&pool, 256, 1, 256);
  assert_true(sml_slot_pool_take(&pool, 256, 1, &base));
  assert_int_equal(base, 256);
}

static void test_whole_pool_and_too_large(void **state) {
  (void)state;
  struct sml_slot_pool pool;
  uint16_t base;
  sml_slot_pool_init(&pool, SML_POOL_MAX_SLOTS);
  assert_true(sml_slot_pool_take(&pool, 32768, 1, &base));
  assert_true(sml_slot_pool_take(&pool, 32768, 1, &base));
  assert_int_equal(base, 32768);
  assert_false(sml_slot_pool_take(&pool, 1, 1, &base));
  sml_slot_pool_init(&pool, 100); /* not a power of two: the rest beyond the last window stays unused */
  assert_false(sml_slot_pool_take(&pool, 128, 1, &base));
  assert_true(sml_slot_pool_take(&pool, 64, 1, &base));
  assert_false(sml_slot_pool_take(&pool, 64, 1, &base));
  assert_true(sml_slot_pool_take(&pool, 32, 1, &base));
  assert_int_equal(base, 64);
}

static void test_windows_in_a_row(void **state) {
  (void)state;
  struct sml_slot_pool pool;
  uint16_t base;
  sml_slot_pool_init(&pool, 232);
  assert_true(sml_slot_pool_take(&pool, 8, 1, &base));
  assert_true(sml_slot_pool_take(&pool, 8, 5, &base)); /* aligned to 8 windows, like a power of two of them */
  assert_int_equal(base, 64);
  assert_true(sml_slot_pool_take(&pool, 16, 5, &base)); /* from one word of the bitmap into the next */
  assert_int_equal(base, 128);
  assert_false(sml_slot_pool_take(&pool, 8, 5, &base));
  assert_true(sml_slot_pool_take(&pool, 8, 3, &base)); /* what is left behind them serves others */
  assert_int_equal(base, 32);
  sml_slot_pool_give(&pool, 16, 5, 128);
  assert_true(sml_slot_pool_take(&pool, 8, 5, &base));
  assert_int_equal(base, 128);
  assert_true(sml_slot_pool_take(&pool, 8, 5, &base)); /* up to the pool's end */
  assert_int_equal(base, 192);
  assert_false(sml_slot_pool_take(&pool, 32, 5, &base));
}

/* Random life: windows never overlap, and everything given back can be taken again. */
static void test_random_life(void **state) {
  (void)state;
  static uint8_t owner[4096];
  struct sml_slot_pool pool;
  struct sml_prng prng = {.state = 5};
  struct {
    uint16_t base;
    uint32_t num_slots, num_windows;
  } held[256];
  uint32_t num_held = 0;
  sml_slot_pool_init(&pool, 4096);
  for (uint32_t round = 0; round < 100000; round++) {
    uint16_t base;
    uint32_t num_slots = 1u << sml_prng_below(&prng, 10);
    uint32_t num_windows = sml_prng_chance(&prng, 0.3) ? 5 : 1;
    if (num_held < 256 && sml_prng_chance(&prng, 0.55) && sml_slot_pool_take(&pool, num_slots, num_windows, &base)) {
      assert_int_equal(base % (num_windows == 5 ? 8 * num_slots : num_slots), 0);
      for (uint32_t s = base; s < base + num_windows * num_slots; s++) assert_int_equal(owner[s]++, 0);
      held[num_held].base = base;
      held[num_held].num_windows = num_windows;
      held[num_held++].num_slots = num_slots;
    } else if (num_held > 0) {
      uint32_t i = (uint32_t)sml_prng_below(&prng, num_held);
      for (uint32_t s = 0; s < held[i].num_windows * held[i].num_slots; s++) owner[held[i].base + s]--;
      sml_slot_pool_give(&pool, held[i].num_slots, held[i].num_windows, held[i].base);
      held[i] = held[--num_held];
    }
  }
  while (num_held > 0) {
    num_held--;
    sml_slot_pool_give(&pool, held[num_held].num_slots, held[num_held].num_windows, held[num_held].base);
  }
  uint16_t base;
  assert_true(sml_slot_pool_take(&pool, 4096, 1, &base));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_windows_are_aligned_and_first_fit),
      cmocka_unit_test(test_whole_pool_and_too_large),
      cmocka_unit_test(test_windows_in_a_row),
      cmocka_unit_test(test_random_life),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
