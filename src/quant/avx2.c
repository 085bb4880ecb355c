/* SPDX-License-Identifier: Apache-2.0
 * The kernels for AVX2 and F16C: eight elements at a time. Only these functions are compiled for them, so the binary
 * still starts on any x86-64. */
#include "quant/kernels.h"

#if SML_QUANT_HAS_X86
#include <immintrin.h>

#include "quant/mxcsr.h"

#define VECTOR __attribute__((target("avx2,f16c")))
#define VECTOR_ELEMS ((size_t)8)

typedef __m256i vint;
typedef __m256 vfloat;

#define load(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define store(p, v) _mm256_storeu_si256((__m256i *)(void *)(p), v)
#define mask_of(num_elems) \
  _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)(num_elems)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
#define load_some(p, num_elems) _mm256_maskload_epi32((const int *)(const void *)(p), mask_of(num_elems))
#define store_some(p, v, num_elems) _mm256_maskstore_epi32((int *)(void *)(p), mask_of(num_elems), v)
#define fill(value) _mm256_set1_epi32((int32_t)(value))
#define fill_float _mm256_set1_ps
#define add _mm256_add_epi32
#define multiply _mm256_mullo_epi32
#define and_bits _mm256_and_si256
#define max_u32 _mm256_max_epu32
#define max_u8 _mm256_max_epu8
#define scale_float _mm256_mul_ps
/* min gives its second operand for a NaN */
#define clamp(x, lower, upper) _mm256_max_ps(_mm256_min_ps(x, upper), lower)
#define bits_of _mm256_castps_si256
#define float_of _mm256_castsi256_ps
#define to_int _mm256_cvtps_epi32
#define to_float _mm256_cvtepi32_ps

static VECTOR inline vint swap_lanes(vint v) {
  const __m256i order = _mm256_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12,  //
                                         3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12);
  return _mm256_shuffle_epi8(v, order);
}

/* The double v * (1 / divisor) is off by 2^-51.9 of itself at most; rounded to 45 bits it is the quotient's value
 * wherever that has no more of them, and otherwise on the same side of it as the quotient. So is the float made of
 * it: the middles of two floats m * 2^j (m < 2^25) have no more than 25 bits, and a quotient v / n that is none has
 * |v - n * m * 2^j| >= 2^min(j, 0), so it is off by 2^-37 of itself at least. */
struct divisor {
  __m256d inverse;
};

static VECTOR inline struct divisor divisor_of(double divisor) {
  const volatile double kept = divisor; /* no division before `enter`: it is inexact */
  return (struct divisor){.inverse = _mm256_set1_pd(1 / kept)};
}

static VECTOR inline __m256i quotients(__m128i sums, __m256d inverse) {
  const __m256d quotient = _mm256_mul_pd(_mm256_cvtepi32_pd(sums), inverse);
  const __m256i half = _mm256_set1_epi64x(0x80), kept = _mm256_set1_epi64x(~INT64_C(0xff));
  return _mm256_and_si256(_mm256_add_epi64(_mm256_castpd_si256(quotient), half), kept);
}

#define averaged_half(sums, inverse) _mm256_cvtpd_ps(_mm256_castsi256_pd(quotients(sums, inverse)))

static VECTOR inline vint averaged(vint sums, const struct divisor *divisor) {
  const __m128 low = averaged_half(_mm256_castsi256_si128(sums), divisor->inverse);
  const __m128 high = averaged_half(_mm256_extracti128_si256(sums, 1), divisor->inverse);
  return _mm256_castps_si256(_mm256_set_m128(high, low));
}

/* Bits below a float's, if there are any, become its last bit; where it had rounded, on the same side as above. */
static VECTOR inline __m128 averaged_half_to_odd(__m128i sums, __m256d inverse) {
  const __m256i rounded = quotients(sums, inverse);
  const __m256i below = _mm256_set1_epi64x((INT64_C(1) << 29) - 1), last = _mm256_set1_epi64x(INT64_C(1) << 29);
  const __m256i is_exact = _mm256_cmpeq_epi64(_mm256_and_si256(rounded, below), _mm256_setzero_si256());
  const __m256i odd = _mm256_or_si256(_mm256_andnot_si256(below, rounded), _mm256_andnot_si256(is_exact, last));
  return _mm256_cvtpd_ps(_mm256_castsi256_pd(odd));
}

static VECTOR inline vint averaged_to_odd(vint sums, const struct divisor *divisor) {
  const __m128 low = averaged_half_to_odd(_mm256_castsi256_si128(sums), divisor->inverse);
  const __m128 high = averaged_half_to_odd(_mm256_extracti128_si256(sums, 1), divisor->inverse);
  return _mm256_castps_si256(_mm256_set_m128(high, low));
}

/* ---- of vector_packed.h ---- */

typedef __m128i vhalf;

#define load_half(p) _mm_loadu_si128((const __m128i *)(const void *)(p))
#define store_half(p, v) _mm_storeu_si128((__m128i *)(void *)(p), v)
#define max_u16 _mm256_max_epu16
#define shift_left_16(v) _mm256_slli_epi32(v, 16)
#define shift_right_16(v) _mm256_srli_epi32(v, 16)
#define shift_sign_right_16(v) _mm256_srai_epi32(v, 16)
#define or_bits _mm256_or_si256
#define is_zero(v) _mm256_cmpeq_epi32(v, _mm256_setzero_si256())
#define choose(mask, where, elsewhere) _mm256_blendv_epi8(elsewhere, where, mask)
#define absolute _mm256_abs_epi32
#define widened_bits _mm256_cvtepu16_epi32
#define widened_float16(v) _mm256_castps_si256(_mm256_cvtph_ps(v))
#define narrowed_float16(x) _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)

static VECTOR inline vhalf load_half_some(const uint8_t *p, size_t num_elems) {
  uint8_t bytes[16] = {0};
  memcpy(bytes, p, 2 * num_elems);
  return load_half(bytes);
}

static VECTOR inline void store_half_some(uint8_t *p, vhalf v, size_t num_elems) {
  uint8_t bytes[16];
  store_half(bytes, v);
  memcpy(p, bytes, 2 * num_elems);
}

static VECTOR inline vint with_sign_of(vint sign, vint v) {
  const vint mask = _mm256_srai_epi32(sign, 31);
  return _mm256_sub_epi32(_mm256_xor_si256(v, mask), mask);
}

static VECTOR inline vhalf narrowed_bits(vint v) {
  const vint low = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
  return _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
}

static VECTOR inline uint32_t sum_of(vint v) {
  __m128i half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1));
  return (uint32_t)_mm_cvtsi128_si32(half);
}

static VECTOR inline uint32_t largest_of(vint v) {
  __m128i half = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0x4e));
  half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0xb1));
  return (uint32_t)_mm_cvtsi128_si32(half);
}

/* ---- of vector_exact.h ---- */

#define min_u32 _mm256_min_epu32
#define subtract _mm256_sub_epi32
#define shift_left(v, num_bits) _mm256_slli_epi32(v, (int)(num_bits))
#define shift_right(v, num_bits) _mm256_srli_epi32(v, (int)(num_bits))
#define shift_left_by _mm256_sllv_epi32
#define shift_right_by _mm256_srlv_epi32
#define HAS_FLOATS_OF_LONG 0

#include "quant/vector_kernels.h"

const struct sml_quant_kernels sml_quant_avx2 = SML_VECTOR_KERNELS("avx2");
#endif
