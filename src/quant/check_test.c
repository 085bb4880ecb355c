/* SPDX-License-Identifier: Apache-2.0
 * The check word: what it must see, what it may not see, and that every implementation makes the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

#include "quant/check.h"
#include "quant/kernels.h"

#define EPOCH 0xfeed0001
#define TAG 0x77b30d07
#define MAX_RANKS 64u
#define MAX_ELEMS 256u

static const struct sml_quant_kernels *best;

/* ---- the kernels ---- */

/* Lengths around the width of a vector, no alignment; the memory is exact, so that a sanitizer sees a read beyond. */
static void kernels_agree(void **state) {
  (void)state;
  static const char *const names[] = {"avx512", "avx2", "neon"}; /* or the best, instead of those that are not there */
  struct sml_prng prng = {1};
  for (size_t num_elems = 0; num_elems < 300; num_elems++) {
    for (size_t shift = 0; shift < 4; shift++) {
      uint8_t *memory = malloc(shift + 4 * num_elems + 1), *lanes = memory + shift;
      for (size_t i = 0; i < 4 * num_elems; i++) lanes[i] = (uint8_t)sml_prng_next(&prng);
      const uint32_t seed = (uint32_t)sml_prng_next(&prng);
      const uint32_t expected = sml_quant_scalar.check_lanes(lanes, num_elems, seed);
      for (size_t k = 0; k < SML_ARRAY_LEN(names); k++) {
        const struct sml_quant_kernels *kernels = sml_quant_select(names[k]);
        if (kernels->check_lanes(lanes, num_elems, seed) != expected) fail_msg("%s: %zu", kernels->name, num_elems);
      }
      free(memory);
    }
  }
}

static void the_sum_is_that_of_the_definition(void **state) {
  (void)state;
  uint8_t lanes[4 * MAX_ELEMS];
  struct sml_prng prng = {2};
  uint32_t expected = 0;
  for (uint32_t k = 0; k < MAX_ELEMS; k++) {
    const uint32_t x = (uint32_t)sml_prng_next(&prng);
    uint32_t factor = sml_check_mix((k % 64 + 1) * SML_CHECK_STEP) | 1;
    for (uint32_t i = 0; i < k / 64; i++) factor *= 99;
    sml_store_be32(lanes + 4 * k, x);
    expected += factor * x;
  }
  assert_int_equal(best->check_lanes(lanes, MAX_ELEMS, 99), expected);
  assert_int_equal(sml_quant_scalar.check_lanes(lanes, MAX_ELEMS, 99), expected);
}

/* ---- sums of an aggregator that does what it likes ---- */

/* Contributions of ranks to one chunk, as they are on the wire but in host order. */
struct chunk {
  uint32_t num_elems, world_size;
  uint32_t lanes[MAX_RANKS][MAX_ELEMS], words[MAX_RANKS];
};

static uint32_t word_of(uint32_t tag, uint8_t code, const uint32_t *values, uint32_t num_elems, uint32_t num_ranks,
                        uint32_t ranks) {
  uint8_t lanes[4 * MAX_ELEMS];
  for (uint32_t k = 0; k < num_elems; k++) sml_store_be32(lanes + 4 * k, values[k]);
  const struct sml_check check = sml_check_make(EPOCH, tag, &code, 1);
  return sml_check_word(best, &check, lanes, num_elems, num_ranks, ranks);
}

static void contribute(struct chunk *c, uint32_t rank, uint32_t tag, uint8_t code) {
  c->words[rank] = word_of(tag, code, c->lanes[rank], c->num_elems, 1, sml_check_rank(rank));
}

enum fill { FILL_ZERO, FILL_EQUAL, FILL_RANDOM };

static void make_chunk(struct chunk *c, uint32_t world_size, uint32_t num_elems, enum fill fill, uint32_t tag,
                       struct sml_prng *prng) {
  c->world_size = world_size;
  c->num_elems = num_elems;
  for (uint32_t w = 0; w < world_size; w++) {
    for (uint32_t k = 0; k < num_elems; k++)
      c->lanes[w][k] = fill == FILL_ZERO             ? 0
                       : fill == FILL_EQUAL && w > 0 ? c->lanes[0][k]
                                                     : (uint32_t)sml_prng_next(prng);
    contribute(c, w, tag, 0);
  }
}

struct sum {
  uint32_t lanes[MAX_ELEMS], word;
};

static void add(struct sum *s, const struct chunk *c, uint32_t rank, uint32_t times) {
  for (uint32_t k = 0; k < c->num_elems; k++) s->lanes[k] += times * c->lanes[rank][k];
  s->word += times * c->words[rank];
}

static bool is_accepted(const struct sum *s, const struct chunk *c, uint32_t tag, uint8_t code) {
  const uint32_t n = c->world_size;
  return word_of(tag, code, s->lanes, c->num_elems, n, sml_check_ranks(n)) == s->word;
}

static struct sum honest_sum(const struct chunk *c) {
  struct sum s = {{0}, 0};
  for (uint32_t w = 0; w < c->world_size; w++) add(&s, c, w, 1);
  return s;
}

static void right_sums_are_accepted(void **state) {
  (void)state;
  static struct chunk c;
  struct sml_prng prng = {3};
  for (uint32_t trial = 0; trial < 3000; trial++) {
    const uint32_t tag = (uint32_t)sml_prng_next(&prng), n = 1 + (uint32_t)sml_prng_below(&prng, MAX_RANKS);
    make_chunk(&c, n, 1 + (uint32_t)sml_prng_below(&prng, 40), (enum fill)(trial % 3), tag, &prng);
    const struct sum s = honest_sum(&c);
    assert_true(is_accepted(&s, &c, tag, 0));
    const uint8_t code = (uint8_t)trial;
    const struct sml_check check = sml_check_make(EPOCH, tag, &code, 1);
    assert_true(check.b % 2 == 1 && check.multiplier % 8 == 5); /* units: nothing cancels */
  }
}

/* How often each rank is in the sum: every way of drawing `total` contributions of n ranks. */
static void each_multiset(struct chunk *c, uint32_t rank, uint32_t left, uint32_t *times, uint64_t *num_accepted) {
  if (rank + 1 == c->world_size) {
    times[rank] = left;
    struct sum s = {{0}, 0};
    for (uint32_t w = 0; w < c->world_size; w++) add(&s, c, w, times[w]);
    *num_accepted += is_accepted(&s, c, TAG, 0);
    return;
  }
  for (times[rank] = 0; times[rank] <= left; times[rank]++)
    each_multiset(c, rank + 1, left - times[rank], times, num_accepted);
}

/* What a sum's data are does not matter: each c_w fits its own, so only the ranks' terms are left. */
static void no_other_multiset_of_ranks_is_accepted(void **state) {
  (void)state;
  static struct chunk c;
  struct sml_prng prng = {4};
  for (uint32_t n = 2; n <= 8; n++) {
    for (uint32_t fill = FILL_ZERO; fill <= FILL_RANDOM; fill++) {
      make_chunk(&c, n, 3, (enum fill)fill, TAG, &prng);
      for (uint32_t total = 0; total <= n + 1; total++) {
        uint32_t times[8];
        uint64_t num_accepted = 0;
        each_multiset(&c, 0, total, times, &num_accepted);
        assert_int_equal(num_accepted, total == n ? 1 : 0);
      }
    }
  }
}

/* Among many ranks, one comes twice instead of another, whichever two. */
static void no_two_ranks_have_the_same_hash(void **state) {
  (void)state;
  enum { NUM_RANKS = 4096 };
  static uint64_t seen[SML_BITMAP_WORDS(UINT64_C(1) << 32)]; /* touched only here and there */
  uint32_t sum = 0;
  for (uint32_t w = 0; w < NUM_RANKS; w++) {
    const uint32_t h = sml_check_rank(w);
    assert_false(sml_bit_test(seen, h));
    sml_bit_set(seen, h);
    sum += h;
  }
  assert_int_equal(sml_check_ranks(NUM_RANKS), sum);
}

static void every_single_wrong_lane_is_seen(void **state) {
  (void)state;
  static struct chunk c;
  struct sml_prng prng = {5};
  for (uint32_t trial = 0; trial < 20; trial++) {
    make_chunk(&c, 3, 40, FILL_RANDOM, TAG, &prng);
    const struct sum right = honest_sum(&c);
    for (uint32_t k = 0; k <= c.num_elems; k++) {
      for (uint32_t i = 0; i < 64; i++) {
        struct sum s = right;
        uint32_t *lane = k < c.num_elems ? &s.lanes[k] : &s.word;
        *lane ^= i < 32 ? UINT32_C(1) << i : 1 + (uint32_t)sml_prng_below(&prng, UINT32_MAX);
        assert_false(is_accepted(&s, &c, TAG, 0));
      }
    }
  }
}

/* The right sum of another chunk, epoch or exponent; and ranks that scaled by different exponents. */
static void what_belongs_elsewhere_is_seen(void **state) {
  (void)state;
  static struct chunk c;
  struct sml_prng prng = {6};
  for (uint32_t trial = 0; trial < 3000; trial++) {
    const enum fill fill = (enum fill)(trial % 3);
    make_chunk(&c, 2 + trial % 7, 1 + trial % 50, fill, TAG, &prng);
    const struct sum right = honest_sum(&c);
    assert_true(is_accepted(&right, &c, TAG, 0));
    assert_false(is_accepted(&right, &c, TAG + 1 + trial, 0));
    for (uint32_t code = 1; code < 256; code++) assert_false(is_accepted(&right, &c, TAG, (uint8_t)code));
    contribute(&c, trial % c.world_size, TAG, 1);
    const struct sum mixed = honest_sum(&c);
    assert_false(is_accepted(&mixed, &c, TAG, 0) || is_accepted(&mixed, &c, TAG, 1));
  }
  const struct sml_check a = sml_check_make(EPOCH, TAG, NULL, 0), b = sml_check_make(EPOCH + 1, TAG, NULL, 0);
  assert_true(a.multiplier != b.multiplier && a.a != b.a && a.b != b.b);
}

/* Elements that changed places, the likeliest fault of a data path but for a lost bit. */
static void swapped_lanes_are_seen(void **state) {
  (void)state;
  static struct chunk c;
  struct sml_prng prng = {7};
  for (uint32_t trial = 0; trial < (SML_IS_SLOW_BUILD ? 5000 : 20000); trial++) {
    const uint32_t num_elems = trial % 2 == 0 ? 64 : MAX_ELEMS, i = (uint32_t)sml_prng_below(&prng, 64);
    /* Anywhere in a block of factors; or at the same place of two blocks. */
    const uint32_t within = (i + 1 + (uint32_t)sml_prng_below(&prng, 63)) % 64, beyond = i + 64 * (1 + trial / 2 % 3);
    const uint32_t k = trial % 2 == 0 ? within : beyond;
    make_chunk(&c, 2, num_elems, FILL_RANDOM, TAG + trial, &prng);
    struct sum s = honest_sum(&c);
    const uint32_t lane = s.lanes[i];
    s.lanes[i] = s.lanes[k];
    s.lanes[k] = lane;
    assert_false(is_accepted(&s, &c, TAG + trial, 0));
  }
}

/* It is no MAC: two flips cancel when their difference has too few bits left. With factors like random ones
 * that happens to 1.9 of 1,000 pairs of flips in 256 lanes (2.1 with these), and seldom to more flips. */
static void pairs_of_flipped_bits_are_missed_as_seldom_as_can_be(void **state) {
  (void)state;
  enum { NUM_TRIALS = 100000 };
  static struct chunk c;
  struct sml_prng prng = {8};
  static const uint32_t num_flips[] = {2, 3, 4, 8}, most[] = {270, 50, 20, 3};
  for (size_t f = 0; f < SML_ARRAY_LEN(num_flips); f++) {
    uint32_t num_missed = 0;
    for (uint32_t trial = 0; trial < NUM_TRIALS; trial++) {
      const uint32_t tag = (uint32_t)sml_prng_next(&prng);
      if (trial % 64 == 0) make_chunk(&c, 1, MAX_ELEMS, FILL_RANDOM, tag, &prng);
      contribute(&c, 0, tag, 0);
      struct sum s = honest_sum(&c);
      for (uint32_t i = 0; i < num_flips[f];) { /* different bits */
        const uint32_t bit = (uint32_t)sml_prng_below(&prng, 32 * MAX_ELEMS), mask = UINT32_C(1) << bit % 32;
        if (((s.lanes[bit / 32] ^ c.lanes[0][bit / 32]) & mask) != 0) continue;
        s.lanes[bit / 32] ^= mask;
        i++;
      }
      num_missed += is_accepted(&s, &c, tag, 0);
    }
    print_message("# %u flips: %u of %d missed\n", num_flips[f], num_missed, NUM_TRIALS);
    assert_in_range(num_missed, num_flips[f] == 2 ? 120 : 0, most[f]);
  }
}

static int find_best(void **state) {
  (void)state;
  best = sml_quant_select(NULL);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(kernels_agree),
      cmocka_unit_test(the_sum_is_that_of_the_definition),
      cmocka_unit_test(right_sums_are_accepted),
      cmocka_unit_test(no_other_multiset_of_ranks_is_accepted),
      cmocka_unit_test(no_two_ranks_have_the_same_hash),
      cmocka_unit_test(every_single_wrong_lane_is_seen),
      cmocka_unit_test(what_belongs_elsewhere_is_seen),
      cmocka_unit_test(swapped_lanes_are_seen),
      cmocka_unit_test(pairs_of_flipped_bits_are_missed_as_seldom_as_can_be),
  };
  return cmocka_run_group_tests_name("check", tests, find_best, NULL);
}
