/* SPDX-License-Identifier: Apache-2.0
 * Exact sums of any length against integers of 2,300 bits: a result is right if no neighbour of it is nearer to the
 * sum, and if it is even where one is as near. The reference reads numbers by frexp and knows no cells and no limbs. An
 * argument: how many elements of float32 are tried, and a tenth of that of float64 (docs/TESTING.md). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "quant/exact.h"

#define MAX_RANKS 64u
#define NUM_WORDS 72u /* of 32 bits, least first; bit 0 is 2^-1074 */
#define MAX_LANES (SML_BLOCK_ELEMS * (SML_EXACT_MAX_LIMBS + 2))

static struct sml_prng prng = {.state = 20};
static uint64_t num_elems_wanted = SML_IS_SLOW_BUILD ? 100000 : 400000;
static uint8_t inputs[MAX_RANKS][8 * SML_BLOCK_ELEMS], result[8 * SML_BLOCK_ELEMS];
static int32_t lanes[MAX_LANES], expected_lanes[MAX_LANES], sums[MAX_LANES];

/* ---- the reference ---- */

static const struct {
  uint32_t fraction_bits, top_field;
  int32_t bias;
} kinds[SML_NUM_FORMAT_TYPES] = {[SML_FORMAT_FLOAT32] = {23, 255, 127},
                                 [SML_FORMAT_FLOAT16] = {10, 31, 15},
                                 [SML_FORMAT_BFLOAT16] = {7, 255, 127},
                                 [SML_FORMAT_FLOAT64] = {52, 2047, 1023}};

/* What magnitude bits stand for; infinity's are the power of two that follows. */
static double value_of(uint32_t type, uint64_t magnitude) {
  const int32_t field = (int32_t)(magnitude >> kinds[type].fraction_bits);
  const double fraction = (double)(magnitude & ((UINT64_C(1) << kinds[type].fraction_bits) - 1));
  const double hidden = field > 0 ? ldexp(1, (int)kinds[type].fraction_bits) : 0;
  return ldexp(hidden + fraction, (field > 0 ? field : 1) - kinds[type].bias - (int32_t)kinds[type].fraction_bits);
}

struct big {
  uint32_t words[NUM_WORDS]; /* two's complement */
};

/* +- times * magnitude; infinity of float64, which is no double, is 2 * 2^1023. */
static void add(struct big *b, uint32_t type, uint64_t magnitude, bool is_negative, uint32_t times) {
  const bool is_doubled = type == SML_FORMAT_FLOAT64 && magnitude == UINT64_C(0x7ff) << 52;
  int exponent;
  const double fraction = frexp(is_doubled ? 0x1p1023 : value_of(type, magnitude), &exponent);
  if (fraction == 0) return;
  exponent += is_doubled;
  uint64_t mantissa = (uint64_t)ldexp(fraction, 53);
  uint32_t at = (uint32_t)(exponent - 53 + 1074 + 53); /* 53 higher than it is: nothing is below 0 */
  for (; at < 53; at++) mantissa >>= 1;                /* zeros of a denormal number */
  for (at -= 53; mantissa != 0; mantissa >>= 16, at += 16) {
    uint64_t carry = (mantissa & 0xffff) * times << at % 32;
    int64_t borrow = 0;
    for (uint32_t w = at / 32; w < NUM_WORDS && (carry != 0 || borrow != 0); w++, carry >>= 32) {
      const int64_t part = (int64_t)(carry & 0xffffffff);
      const int64_t sum = (int64_t)b->words[w] + borrow + (is_negative ? -part : part);
      b->words[w] = (uint32_t)sum;
      borrow = sum < 0 ? -1 : sum >> 32;
    }
  }
}

static bool is_below_zero(const struct big *b) {
  return b->words[NUM_WORDS - 1] >> 31 != 0;
}

static void make_positive(struct big *b) {
  uint64_t carry = 1;
  if (!is_below_zero(b)) return;
  for (uint32_t w = 0; w < NUM_WORDS; w++, carry >>= 32) b->words[w] = (uint32_t)(carry += (uint32_t)~b->words[w]);
}

static int compare(const struct big *a, const struct big *b) {
  for (uint32_t w = NUM_WORDS; w-- > 0;)
    if (a->words[w] != b->words[w]) return a->words[w] < b->words[w] ? -1 : 1;
  return 0;
}

static uint64_t bits_at(const void *from, uint32_t type, size_t i) {
  const uint32_t num_bytes = sml_format_elem_bytes(type);
  uint64_t wide;
  uint32_t word;
  uint16_t half;
  const uint8_t *at = (const uint8_t *)from + i * num_bytes;
  if (num_bytes == 8) return memcpy(&wide, at, 8), wide;
  if (num_bytes == 4) return memcpy(&word, at, 4), word;
  return memcpy(&half, at, 2), half;
}

/* |sum - times * value| */
static struct big distance(const struct big *sum, uint32_t type, uint64_t magnitude, bool is_negative, uint32_t times) {
  struct big d = *sum;
  add(&d, type, magnitude, !is_negative, times);
  make_positive(&d);
  return d;
}

static const char *judge(uint32_t type, size_t i, uint32_t num_ranks, bool average) {
  const uint32_t sign_at = 8 * sml_format_elem_bytes(type) - 1;
  const uint64_t infinity = (uint64_t)kinds[type].top_field << kinds[type].fraction_bits;
  const uint64_t bits = bits_at(result, type, i), magnitude = bits & ~(UINT64_C(1) << sign_at);
  struct big sum = {.words = {0}};
  bool has_pos = false, has_neg = false, are_minus_zeros = true;
  for (uint32_t r = 0; r < num_ranks; r++) {
    const uint64_t x = bits_at(inputs[r], type, i), m = x & ~(UINT64_C(1) << sign_at);
    const bool is_negative = x != m;
    has_pos = has_pos || m > infinity || (m == infinity && !is_negative);
    has_neg = has_neg || m > infinity || (m == infinity && is_negative);
    are_minus_zeros = are_minus_zeros && m == 0 && is_negative;
    if (m < infinity) add(&sum, type, m, is_negative, 1);
  }
  const bool is_negative = bits != magnitude;
  if (has_pos && has_neg) return bits == (infinity | (infinity >> 1 & ~infinity)) || bits > infinity ? NULL : "no NaN";
  if (has_pos || has_neg) return magnitude == infinity && is_negative == has_neg ? NULL : "not that infinity";
  if (magnitude > infinity) return "a NaN";
  if (are_minus_zeros && type == SML_FORMAT_FLOAT64) return magnitude == 0 && is_negative ? NULL : "not -0";
  const uint32_t times = average ? num_ranks : 1;
  const struct big zero = {.words = {0}}, d = distance(&sum, type, magnitude, is_negative, times);
  if (compare(&sum, &zero) == 0) return bits == 0 ? NULL : "not +0";
  if (is_below_zero(&sum) != is_negative) return "the other sign";
  for (uint32_t is_above = 0; is_above < 2; is_above++) {
    if (is_above ? magnitude == infinity : magnitude == 0) continue;
    const struct big other = distance(&sum, type, is_above ? magnitude + 1 : magnitude - 1, is_negative, times);
    const int order = compare(&d, &other);
    if (order > 0) return is_above ? "the one above is nearer" : "the one below is nearer";
    if (order == 0 && (magnitude & 1) != 0) return "a tie, and not even";
  }
  return NULL;
}

/* ---- inputs ---- */

enum habit { ANY_BITS, NEAR, SPREAD, CANCELLING, TIES, LARGE, SMALL, FILLED, INTEGERS, WITH_SPECIALS, NUM_HABITS };

static uint64_t random_bits(uint32_t type, uint64_t field, uint64_t fraction) {
  const uint64_t mask = (UINT64_C(1) << kinds[type].fraction_bits) - 1;
  const uint64_t sign = (sml_prng_next(&prng) & 1) << (8 * sml_format_elem_bytes(type) - 1);
  return sign | sml_min_u64(field, kinds[type].top_field - 1) << kinds[type].fraction_bits | (fraction & mask);
}

static uint64_t make_bits(uint32_t type, enum habit habit, uint32_t rank, size_t i, const uint64_t *others) {
  const uint64_t top = kinds[type].top_field, random = sml_prng_next(&prng), middle = top / 2;
  const uint64_t infinity = top << kinds[type].fraction_bits;
  const uint64_t sign = UINT64_C(1) << (8 * sml_format_elem_bytes(type) - 1);
  switch (habit) {
    case NEAR: return random_bits(type, middle - random % 4, random >> 8);
    case SPREAD: return random_bits(type, middle - random % (middle > 40 ? 40 : middle), random >> 8);
    case CANCELLING:
      if (rank % 2 == 1) return (others[rank - 1] ^ sign) ^ (random % 3 == 0);
      return random_bits(type, random % (top - 1), random >> 16);
    case TIES: /* powers of two and halves of their units, and what lies far below */
      if (rank == 0) return random_bits(type, middle, random % 4);
      if (rank == 1) return random_bits(type, middle - kinds[type].fraction_bits - 1, 0) & ~sign;
      return random % 2 ? 0 : random_bits(type, random >> 8 & 1, random >> 16 & 1);
    case LARGE: return random_bits(type, top - 1 - random % 2, random >> 4 & 1 ? ~UINT64_C(0) : random >> 8);
    case SMALL: return random_bits(type, random % 3, random >> 8);
    case FILLED: return i % 50 == 7 ? random_bits(type, top - 3, random) : random_bits(type, middle + 2, random);
    case INTEGERS: /* two limbs, with a gap between */
      if (i % 8 == 3) return random_bits(type, middle + 60, random >> 8);
      return random_bits(type, middle + random % 5, random << (kinds[type].fraction_bits - 4));
    case WITH_SPECIALS:
      if (random % 16 == 0) return infinity | (random >> 8 & 1 ? sign : 0);
      if (random % 16 == 1) return infinity | 1 | (random >> 8 & 1 ? sign : 0);
      if (i % 4 == 0) return sign; /* -0 */
      return random_bits(type, middle + random % 8, random >> 8);
    default: return random_bits(type, random % (top + 1), random >> 16);
  }
}

static void put_bits(uint8_t *to, uint32_t type, size_t i, uint64_t bits) {
  const uint32_t num_bytes = sml_format_elem_bytes(type);
  const uint32_t word = (uint32_t)bits;
  const uint16_t half = (uint16_t)bits;
  if (num_bytes == 8) memcpy(to + 8 * i, &bits, 8);
  else if (num_bytes == 4) memcpy(to + 4 * i, &word, 4);
  else memcpy(to + 2 * i, &half, 2);
}

/* ---- */

/* One that this processor has. Any two of them may be ranks of one sum. */
static const struct sml_quant_kernels *any_kernels(void) {
  static const char *const names[] = {"scalar", "avx2", "avx512", "neon"};
  return sml_quant_select(names[sml_prng_below(&prng, SML_ARRAY_LEN(names))]);
}

/* As the product does: codes, their sum, lanes, their sum, the result, and in one go. Returns the lanes of an
 * element. */
static uint32_t all_reduce(uint32_t type, uint32_t num_ranks, size_t num_elems, bool average) {
  struct sml_exact e;
  struct sml_exact_layout layout;
  int32_t code[SML_EXACT_MAX_LIMBS], codes[SML_EXACT_MAX_LIMBS] = {0};
  sml_exact_init(&e, type, num_ranks, any_kernels());
  assert_true(e.code_lanes <= SML_EXACT_MAX_LIMBS);
  for (uint32_t r = 0; r < num_ranks; r++) {
    e.kernels = &sml_quant_scalar;
    sml_exact_code(&e, sums, inputs[r], num_elems);
    e.kernels = any_kernels();
    sml_exact_code(&e, code, inputs[r], num_elems);
    assert_memory_equal(code, sums, e.code_lanes * sizeof *code);
    for (uint32_t l = 0; l < e.code_lanes; l++) codes[l] = (int32_t)((uint32_t)codes[l] + (uint32_t)code[l]);
  }
  sml_exact_lay_out(&e, &layout, codes);
  memset(sums, 0, sizeof sums);
  for (uint32_t r = 0; r < num_ranks; r++) {
    e.kernels = &sml_quant_scalar;
    sml_exact_put(&e, &layout, expected_lanes, inputs[r], num_elems);
    e.kernels = any_kernels();
    sml_exact_put(&e, &layout, lanes, inputs[r], num_elems);
    assert_memory_equal(lanes, expected_lanes, layout.num_lanes * num_elems * sizeof *lanes);
    for (size_t l = 0; l < layout.num_lanes * num_elems; l++)
      sums[l] = (int32_t)((uint32_t)sums[l] + (uint32_t)lanes[l]);
  }
  sml_exact_round(&e, &layout, result, sums, num_elems, average);
  const void *in[MAX_RANKS];
  for (uint32_t r = 0; r < num_ranks; r++) in[r] = inputs[r];
  const bool is_reduced = sml_exact_reduce(&e, lanes, in, num_elems, average);
  assert_int_equal(is_reduced, layout.num_lanes <= 4);
  if (is_reduced) assert_memory_equal(lanes, result, num_elems * e.elem_bytes);
  return layout.num_lanes;
}

static void try_blocks(uint32_t type, uint64_t wanted) {
  static const uint32_t ranks[] = {2, 3, 8, 5, 16, 2, 4, 64};
  for (uint64_t done = 0, block = 0; done < wanted; block++) {
    const enum habit habit = (enum habit)(block % NUM_HABITS);
    const uint32_t num_ranks = ranks[sml_prng_below(&prng, SML_ARRAY_LEN(ranks))];
    const size_t num_elems = block % 7 == 0 ? 1 + sml_prng_below(&prng, SML_BLOCK_ELEMS) : SML_BLOCK_ELEMS;
    const bool average = sml_prng_below(&prng, 4) == 0;
    for (size_t i = 0; i < num_elems; i++) {
      uint64_t bits[MAX_RANKS];
      for (uint32_t r = 0; r < num_ranks; r++)
        put_bits(inputs[r], type, i, bits[r] = make_bits(type, habit, r, i, bits));
    }
    (void)all_reduce(type, num_ranks, num_elems, average);
    for (size_t i = 0; i < num_elems; i++) {
      const char *why = judge(type, i, num_ranks, average);
      if (why != NULL)
        fail_msg("type %u, habit %d, %u ranks, %s, block %llu, element %zu: %llx: %s", type, habit, num_ranks,
                 average ? "AVG" : "SUM", (unsigned long long)block, i, (unsigned long long)bits_at(result, type, i),
                 why);
    }
    done += num_elems;
  }
}

static void float32_is_rounded_once(void **state) {
  (void)state;
  try_blocks(SML_FORMAT_FLOAT32, num_elems_wanted);
}

static void float64_is_rounded_once(void **state) {
  (void)state;
  try_blocks(SML_FORMAT_FLOAT64, num_elems_wanted / 10);
}

static void types_of_16_bits_are_rounded_once(void **state) {
  (void)state;
  try_blocks(SML_FORMAT_FLOAT16, num_elems_wanted / 10);
  try_blocks(SML_FORMAT_BFLOAT16, num_elems_wanted / 10);
}

/* Short exact sums are made by other code, of fixed limbs: a cut into short operations changes no bit. */
static void short_sums_have_the_same_bits(void **state) {
  (void)state;
  static const uint32_t types[] = {SML_FORMAT_FLOAT32, SML_FORMAT_FLOAT16, SML_FORMAT_BFLOAT16, SML_FORMAT_FLOAT64};
  for (uint32_t round = 0; round < 400; round++) {
    const uint32_t type = types[round % 4], num_ranks = 2 + (uint32_t)sml_prng_below(&prng, MAX_RANKS - 1);
    const struct sml_format *f = sml_format_find(type, (struct sml_format_shape){.has_exponents = false});
    uint8_t expected[8 * SML_BLOCK_ELEMS];
    const void *in[MAX_RANKS];
    for (size_t i = 0; i < SML_BLOCK_ELEMS; i++) {
      uint64_t bits[MAX_RANKS];
      for (uint32_t r = 0; r < num_ranks; r++)
        put_bits(inputs[r], type, i, bits[r] = make_bits(type, (enum habit)(round / 4 % NUM_HABITS), r, i, bits));
    }
    for (uint32_t r = 0; r < num_ranks; r++) in[r] = inputs[r];
    (void)all_reduce(type, num_ranks, SML_BLOCK_ELEMS, round % 3 == 0);
    f->reduce(&sml_quant_scalar, expected, in, num_ranks, SML_BLOCK_ELEMS, round % 3 == 0);
    for (size_t i = 0; i < SML_BLOCK_ELEMS; i++)
      if (bits_at(result, type, i) != bits_at(expected, type, i))
        fail_msg("type %u, %u ranks, round %u, element %zu: %llx, not %llx", type, num_ranks, round, i,
                 (unsigned long long)bits_at(result, type, i), (unsigned long long)bits_at(expected, type, i));
  }
}

static void only_limbs_in_use_travel(void **state) {
  (void)state;
  memset(inputs, 0, sizeof inputs);
  assert_int_equal(all_reduce(SML_FORMAT_FLOAT32, 8, SML_BLOCK_ELEMS, false), 0);
  for (uint32_t r = 0; r < 8; r++) put_bits(inputs[r], SML_FORMAT_FLOAT32, 3, UINT32_C(0x3f800000) + (r << 12));
  assert_int_equal(all_reduce(SML_FORMAT_FLOAT32, 8, SML_BLOCK_ELEMS, false), 1);
  put_bits(inputs[5], SML_FORMAT_FLOAT32, 200, UINT32_C(0x60ad78ec)); /* 1e20, far above: nothing between travels */
  assert_int_equal(all_reduce(SML_FORMAT_FLOAT32, 8, SML_BLOCK_ELEMS, false), 2);
  put_bits(inputs[5], SML_FORMAT_FLOAT32, 201, UINT32_C(0x7f800000));
  assert_int_equal(all_reduce(SML_FORMAT_FLOAT32, 8, SML_BLOCK_ELEMS, false), 3);
  put_bits(inputs[1], SML_FORMAT_FLOAT32, 201, 0x80000000);
  assert_int_equal(all_reduce(SML_FORMAT_FLOAT32, 8, SML_BLOCK_ELEMS, false), 3);
}

/* An aggregator may say what it likes: nothing is read or written that should not be, and all kernels agree. */
static void any_sums_are_taken(void **state) {
  (void)state;
  for (uint32_t round = 0; round < (SML_IS_SLOW_BUILD ? 750 : 3000); round++) {
    static const uint32_t types[] = {SML_FORMAT_FLOAT32, SML_FORMAT_FLOAT16, SML_FORMAT_BFLOAT16, SML_FORMAT_FLOAT64};
    static const uint32_t ranks[] = {2, 7, 100, 4096};
    struct sml_exact e;
    struct sml_exact_layout layout;
    int32_t codes[SML_EXACT_MAX_LIMBS];
    sml_exact_init(&e, types[round % 4], ranks[round / 4 % 4], any_kernels());
    for (uint32_t l = 0; l < e.code_lanes; l++)
      codes[l] = (int32_t)(sml_prng_next(&prng) & (round % 5 != 0 ? sml_prng_next(&prng) & sml_prng_next(&prng) : ~0u));
    sml_exact_lay_out(&e, &layout, codes);
    assert_true(layout.num_limbs <= SML_EXACT_MAX_LIMBS);
    for (uint32_t limb = 1; limb < layout.num_limbs; limb++)
      assert_true(layout.positions[limb] >= layout.positions[limb - 1] + e.limb_bits);
    const size_t num_elems = round % 4 != 0 ? 4 : SML_BLOCK_ELEMS, num_bytes = num_elems * e.elem_bytes;
    for (size_t l = 0; l < num_elems * layout.num_lanes; l++)
      lanes[l] = round % 3 ? (int32_t)sml_prng_next(&prng) : INT32_MIN;
    sml_exact_round(&e, &layout, result, lanes, num_elems, round % 2 == 0);
    e.kernels = &sml_quant_scalar;
    sml_exact_round(&e, &layout, inputs[0], lanes, num_elems, round % 2 == 0);
    assert_memory_equal(result, inputs[0], num_bytes);
  }
}

/* Upper limbs that are nearly nothing together; and, in every other block, quotients that are ties but for one unit. */
static void fill_limbs(const struct sml_exact *e, const struct sml_exact_layout *layout, bool has_ties) {
  const int32_t next = 1 << e->limb_bits;
  for (size_t i = 0; i < SML_BLOCK_ELEMS; i++) {
    int32_t *lane = lanes + i, carry = 0;
    const int64_t tie = (int64_t)(sml_prng_below(&prng, 1 << 24) | 1 << 24) * 2 + 1;
    const int64_t multiple = e->world_size * tie;
    for (uint32_t limb = 0; limb < layout->num_limbs; limb++, lane += SML_BLOCK_ELEMS) {
      const int32_t to_next = limb + 1 < layout->num_limbs ? (int32_t)sml_prng_below(&prng, 3) - 1 : 0;
      const int32_t own =
          limb > 0 ? (int32_t)sml_prng_below(&prng, 5) - 2 : (int32_t)sml_prng_next(&prng) >> (4 + i % 28);
      *lane = own + carry - to_next * next;
      carry = to_next;
      if (!has_ties) continue;
      *lane = limb == 0 ? own % 2 : 0;
      if (limb + 2 == layout->num_limbs) *lane = (int32_t)(multiple % next);
      if (limb + 1 == layout->num_limbs) *lane = (int32_t)(multiple / next);
    }
  }
}

static void limbs_that_cancel_are_rounded_once(void **state) {
  (void)state;
  for (uint32_t round = 0; round < (SML_IS_SLOW_BUILD ? 1000 : 4000); round++) {
    static const uint32_t types[] = {SML_FORMAT_FLOAT32, SML_FORMAT_FLOAT64, SML_FORMAT_BFLOAT16};
    struct sml_exact e;
    struct sml_exact_layout layout;
    int32_t codes[SML_EXACT_MAX_LIMBS] = {0};
    sml_exact_init(&e, types[round / 2 % 3], round % 4 < 2 ? 2 + round % 8 : 60, any_kernels());
    const uint32_t num_limbs = 3 + round / 6 % 3, first = 4 + round % 12;
    for (uint32_t field = first; (field - first) << e.cell_log2 < (num_limbs - 1) * e.limb_bits + 1; field++)
      codes[field / e.fields_per_lane] |= 1 << field % e.fields_per_lane * e.field_bits;
    sml_exact_lay_out(&e, &layout, codes);
    assert_true(layout.num_limbs >= 3 && layout.num_limbs <= 6);
    fill_limbs(&e, &layout, round % 2 != 0);
    const bool average = round % 3 == 0;
    sml_exact_round(&e, &layout, result, lanes, SML_BLOCK_ELEMS, average);
    e.kernels = &sml_quant_scalar;
    sml_exact_round(&e, &layout, inputs[0], lanes, SML_BLOCK_ELEMS, average);
    assert_memory_equal(result, inputs[0], e.elem_bytes * SML_BLOCK_ELEMS);
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(float32_is_rounded_once),
      cmocka_unit_test(float64_is_rounded_once),
      cmocka_unit_test(types_of_16_bits_are_rounded_once),
      cmocka_unit_test(short_sums_have_the_same_bits),
      cmocka_unit_test(only_limbs_in_use_travel),
      cmocka_unit_test(any_sums_are_taken),
      cmocka_unit_test(limbs_that_cancel_are_rounded_once),
  };
  if (argc > 1) num_elems_wanted = strtoull(argv[1], NULL, 10);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
