/* SPDX-License-Identifier: Apache-2.0
 * The scalar kernels against the definition in quant.h, computed in long double. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <cmocka.h>

#include "quant/kernels.h"

static const struct sml_quant_kernels *const K = &sml_quant_scalar;

static float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static int shift_of(int code, int n) {
  int log = 0;
  while ((1 << log) < n) log++;
  return 30 - log - (code - 126);
}

static int32_t quantize_one(float x, int code, int n) {
  uint8_t lane[4];
  K->quantize(lane, &x, 1, (uint8_t)code, (uint32_t)n);
  return (int32_t)sml_load_be32(lane);
}

static uint32_t dequantize_one(int32_t sum, int code, int n, bool average) {
  uint8_t lane[4];
  float out;
  sml_store_be32(lane, (uint32_t)sum);
  K->dequantize(&out, lane, 1, (uint8_t)code, (uint32_t)n, average);
  return bits_of(out);
}

/* To nearest, ties to even, without the rounding mode or libm: truncate and look at the rest. */
static long long round_to_even(long double y) {
  long long whole = (long long)y;
  long double rest = fabsl(y - (long double)whole);
  if (rest > 0.5L || (rest == 0.5L && whole % 2 != 0)) whole += y < 0 ? -1 : 1;
  return whole;
}

static long long expected_q(float x, int code, int n) {
  long double y = ldexpl((long double)x, shift_of(code, n));
  long double limit = ldexpl(1, shift_of(code, n) + code - 126);
  if (isnan(x) || y > limit) return (long long)limit;
  return y < -limit ? -(long long)limit : round_to_even(y);
}

/* Is `bits` the float nearest to numerator / n? Compares products, which are exact in 64 bits, with the
 * middles between the float and its neighbours; no division. */
static bool is_nearest(uint32_t bits, long double numerator, int n) {
  if (numerator == 0) return bits == 0;
  if ((bits >> 31) != (numerator < 0)) return false;
  uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return false;
  long double v = fabsl(numerator);
  long double top = ldexpl(1, 128);
  long double here = magnitude == 0x7f800000 ? top : (long double)float_of(magnitude);
  long double above = magnitude >= 0x7f7fffff ? top : (long double)float_of(magnitude + 1);
  long double below = magnitude == 0 ? 0 : (long double)float_of(magnitude - 1);
  long double upper = n * (here + above) / 2, lower = n * (here + below) / 2;
  bool is_even = magnitude % 2 == 0;
  bool fits_above = magnitude == 0x7f800000 || v < upper || (v == upper && is_even);
  return fits_above && (v > lower || (v == lower && (is_even || magnitude == 0)));
}

static bool dequantizes_right(int32_t sum, int code, int n) {
  long double real = ldexpl((long double)sum, -shift_of(code, n));
  return is_nearest(dequantize_one(sum, code, n, false), real, 1) &&
         is_nearest(dequantize_one(sum, code, n, true), real, n);
}

static void block_code_is_exponent_of_largest(void **state) {
  (void)state;
  assert_int_equal(K->block_code((const float[]){1}, 0), 0);
  for (uint32_t field = 0; field <= 255; field++) {
    const uint32_t mantissas[] = {0, 1, 0x400000, 0x7fffff};
    for (uint32_t i = 0; i < 8; i++) {
      uint32_t bits = ((i & 4) << 29) | (field << 23) | mantissas[i & 3];
      int expected;
      float x = float_of(bits);
      if (!isfinite(x)) {
        expected = 255;
      } else if (fabsf(x) < 0x1p-100f) {
        expected = 0;
      } else {
        expected = 127 + (int)(field - 127);
        long double top = ldexpl(1, expected - 126); /* 2^e */
        assert_true(fabsl(x) < top && fabsl(x) >= top / 2);
        assert_in_range(expected, SML_CODE_MIN, 254);
      }
      assert_int_equal(K->block_code(&x, 1), expected);
      float block[5] = {0x1p-126f, 0, x, -0.0f, 0x1p-101f};
      assert_int_equal(K->block_code(block, 5), expected);
    }
  }
}

static void special_values(void **state) {
  (void)state;
  assert_int_equal(quantize_one(0.0f, 127, 2), 0);
  assert_int_equal(quantize_one(-0.0f, 127, 2), 0);
  assert_int_equal(quantize_one(1.0f, 127, 2), 1 << 28); /* e = 1, k = 30 - 1 - 1 */
  assert_int_equal(quantize_one(-1.0f, 127, 4096), -(1 << 17));
  assert_int_equal(quantize_one(0x1p-100f, SML_CODE_MIN, 2), 1 << 28);
  assert_int_equal(quantize_one(0x1p-149f, SML_CODE_MIN, 2), 0); /* k = 128 */
  assert_int_equal(quantize_one(0x1p-129f, SML_CODE_MIN, 2), 0); /* a half, to even */
  assert_int_equal(quantize_one(0x1.8p-128f, SML_CODE_MIN, 2), 2);
  assert_int_equal(quantize_one(-0x1.4p-128f, SML_CODE_MIN, 2), -1);
  assert_int_equal(quantize_one(float_of(0x7f7fffff), 254, 2), 0x1fffffe0);
  assert_int_equal(dequantize_one(0, 200, 3, true), 0);
  assert_int_equal(dequantize_one(1 << 28, 127, 2, false), bits_of(1.0f));
  assert_int_equal(dequantize_one(1 << 28, 127, 2, true), bits_of(0.5f));
  assert_int_equal(dequantize_one(2 * 0x1fffffe0, 254, 2, false), 0x7f800000);
  assert_int_equal(dequantize_one(-2 * 0x1fffffe0, 254, 2, false), 0xff800000);
  assert_int_equal(dequantize_one(2 * 0x1fffffe0, 254, 2, true), 0x7f7fffff);
  assert_int_equal(dequantize_one(1, SML_CODE_MIN, 2, false), 1u << 21); /* 2^-128, a denormal */
}

static void unscaled_blocks(void **state) {
  (void)state;
  for (int code = 0; code <= 255; code = code == SML_CODE_MIN - 1 ? 255 : code + 1) {
    uint32_t expected = code == 255 ? 0x7fc00000 : 0;
    for (int n = 2; n <= 4096; n *= 2) {
      assert_int_equal(quantize_one(1.0f, code, n), 0);
      assert_int_equal(quantize_one(NAN, code, n), 0);
      assert_int_equal(dequantize_one(12345, code, n, false), expected);
      assert_int_equal(dequantize_one(-12345, code, n, true), expected);
    }
  }
}

/* What a caller that writes its buffer too early, or a lying aggregator, can bring about. */
static void elements_beyond_the_code_saturate(void **state) {
  (void)state;
  for (int n = 2; n <= 4096; n++) {
    int32_t limit = 1 << (shift_of(127, n) + 1);
    assert_true((int64_t)limit * n <= 1 << 30);
    assert_int_equal(quantize_one(2.0f, 127, n), limit);
    assert_int_equal(quantize_one(-2.0f, 127, n), -limit);
    assert_int_equal(quantize_one(float_of(0x7f7fffff), 127, n), limit);
    assert_int_equal(quantize_one(INFINITY, 254, n), limit);
    assert_int_equal(quantize_one(-INFINITY, SML_CODE_MIN, n), -limit);
    assert_int_equal(quantize_one(float_of(0x7f800001), 127, n), limit);
    assert_int_equal(quantize_one(float_of(0xffffffff), 127, n), limit);
  }
}

static void sums_never_overflow(void **state) {
  (void)state;
  for (int n = 2; n <= 4096; n++) {
    for (int code = SML_CODE_MIN; code <= 254; code++) {
      float largest = float_of((uint32_t)code << 23 | 0x7fffff);
      int64_t up = (int64_t)n * quantize_one(largest, code, n);
      int64_t down = (int64_t)n * quantize_one(-largest, code, n);
      if (up > 1 << 30 || down != -up)
        fail_msg("n %d code %d: sums %lld, %lld", n, code, (long long)up, (long long)down);
    }
  }
}

static void quantize_matches_definition(void **state) {
  (void)state;
  struct sml_prng prng = {.state = 1};
  for (uint32_t i = 0; i < (SML_IS_SLOW_BUILD ? 1000000 : 4000000); i++) {
    uint64_t r = sml_prng_next(&prng);
    int code = SML_CODE_MIN + (int)sml_prng_below(&prng, 228);
    int n = i % 4 == 0 ? 2 << (r >> 60) % 12 : 2 + (int)sml_prng_below(&prng, 4095);
    uint32_t bits = (uint32_t)r;
    if (i % 8 != 0) { /* mostly near the rounding position, with few mantissa bits, so that ties are common */
      int field = code + 1 - (int)((r >> 32) % 48);
      bits = (bits & 0x807fffff) | (uint32_t)(field < 0 ? 0 : field) << 23;
      if (i & 1) bits &= UINT32_MAX << ((r >> 40) % 24);
      if (i & 2) bits |= (1u << ((r >> 48) % 24)) - 1;
    }
    float x = float_of(bits);
    long long expected = expected_q(x, code, n);
    int32_t got = quantize_one(x, code, n);
    if (got != expected) fail_msg("x %08x code %d n %d: %d, not %lld", bits, code, n, got, expected);
  }
}

static void every_exponent_quantizes_right(void **state) {
  (void)state;
  const int worlds[] = {2, 3, 8, 4095, 4096};
  const uint32_t mantissas[] = {0, 1, 0x3fffff, 0x400000, 0x400001, 0x7fffff};
  for (size_t w = 0; w < SML_ARRAY_LEN(worlds); w++) {
    for (int code = SML_CODE_MIN; code <= 254; code++) {
      for (uint32_t i = 0; i < 256 * 6 * 2; i++) {
        float x = float_of((i & 1) << 31 | (i / 12) << 23 | mantissas[i / 2 % 6]);
        if (quantize_one(x, code, worlds[w]) != expected_q(x, code, worlds[w]))
          fail_msg("x %a code %d n %d", (double)x, code, worlds[w]);
      }
    }
  }
}

static void dequantize_is_nearest(void **state) {
  (void)state;
  struct sml_prng prng = {.state = 2};
  for (uint32_t i = 0; i < (SML_IS_SLOW_BUILD ? 1000000 : 4000000); i++) {
    uint64_t r = sml_prng_next(&prng);
    int code = i % 3 == 0 ? SML_CODE_MIN + (int)((r >> 32) % 16) : SML_CODE_MIN + (int)((r >> 32) % 228);
    int n = 2 + (int)sml_prng_below(&prng, 4095);
    int32_t sum = (int32_t)(uint32_t)r >> ((r >> 48) % 31);
    if (i % 2 == 0) sum = (int32_t)((int64_t)n * (sum >> 14)) ^ (int32_t)(i % 8 / 2); /* about a multiple of n */
    if (!dequantizes_right(sum, code, n)) fail_msg("sum %d code %d n %d", sum, code, n);
  }
}

static void extreme_sums_dequantize_right(void **state) {
  (void)state;
  const int32_t sums[] = {1,         -1,         2,       3,         0xffffff,   0x1000001,
                          0x1000003, 0x3fffffff, 1 << 30, INT32_MAX, -INT32_MAX, INT32_MIN};
  for (int n = 2; n <= 4096; n += n < 70 || n > 4080 ? 1 : 61) {
    for (int code = SML_CODE_MIN; code <= 254; code++) {
      for (size_t i = 0; i < SML_ARRAY_LEN(sums); i++)
        if (!dequantizes_right(sums[i], code, n)) fail_msg("sum %d code %d n %d", sums[i], code, n);
    }
  }
}

/* 2^24 integers, their sums and averages survive; so does a sum of equal powers of two. */
static void integers_are_exact(void **state) {
  (void)state;
  for (int n = 2; n <= 64; n *= 2) {
    for (int32_t i = -(1 << 20); i < 1 << 20; i += 127) {
      float x = (float)i, largest = 0x1p20f;
      int code = K->block_code((const float[]){x, largest}, 2);
      int32_t q = quantize_one(x, code, n);
      assert_true(float_of(dequantize_one(n * q, code, n, true)) == x);
      if (n <= 8) assert_true(float_of(dequantize_one(n * q, code, n, false)) == (float)(n * i));
    }
  }
}

static void integer_kernels(void **state) {
  (void)state;
  const int32_t in[] = {0, 1, -1, INT32_MAX, INT32_MIN, 0x01020304};
  int32_t acc[6], out[6];
  uint8_t lanes[25];
  K->pack_int32(lanes + 1, in, 6);
  assert_memory_equal(lanes + 21, "\1\2\3\4", 4);
  K->unpack_int32(out, lanes + 1, 6);
  assert_memory_equal(out, in, sizeof in);
  K->set_int32(acc, lanes + 1, 6);
  assert_memory_equal(acc, in, sizeof in);
  K->add_int32(acc, lanes + 1, 6);
  const int32_t twice[] = {0, 2, -2, -2, 0, 0x02040608};
  assert_memory_equal(acc, twice, sizeof twice);
  uint8_t codes[] = {0, 255, 7, 8}, more[] = {1, 0, 8, 7};
  K->max_uint8(codes, more, 4);
  assert_memory_equal(codes, ((uint8_t[]){1, 255, 8, 8}), 4);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(block_code_is_exponent_of_largest),
      cmocka_unit_test(special_values),
      cmocka_unit_test(unscaled_blocks),
      cmocka_unit_test(elements_beyond_the_code_saturate),
      cmocka_unit_test(sums_never_overflow),
      cmocka_unit_test(quantize_matches_definition),
      cmocka_unit_test(every_exponent_quantizes_right),
      cmocka_unit_test(dequantize_is_nearest),
      cmocka_unit_test(extreme_sums_dequantize_right),
      cmocka_unit_test(integers_are_exact),
      cmocka_unit_test(integer_kernels),
  };
  return cmocka_run_group_tests_name("quant scalar", tests, NULL, NULL);
}
