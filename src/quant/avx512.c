/* SPDX-License-Identifier: Apache-2.0
 * The kernels for AVX-512 (F, BW, VL, DQ): sixteen elements at a time, and the rest under a mask. Only these functions
 * are compiled for it. */
#include "quant/kernels.h"

#if SML_QUANT_HAS_X86
#include <immintrin.h>

#include "quant/mxcsr.h"

#define VECTOR __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define VECTOR_ELEMS ((size_t)16)

typedef __m512i vint;
typedef __m512 vfloat;

#define load(p) _mm512_loadu_si512((const void *)(p))
#define store(p, v) _mm512_storeu_si512((void *)(p), v)
#define mask_of(num_elems) (__mmask16)((UINT32_C(1) << (num_elems)) - 1)
#define load_some(p, num_elems) _mm512_maskz_loadu_epi32(mask_of(num_elems), p)
#define store_some(p, v, num_elems) _mm512_mask_storeu_epi32(p, mask_of(num_elems), v)
#define fill(value) _mm512_set1_epi32((int32_t)(value))
#define fill_float _mm512_set1_ps
#define add _mm512_add_epi32
#define multiply _mm512_mullo_epi32
#define and_bits _mm512_and_si512
#define max_u32 _mm512_max_epu32
#define max_u8 _mm512_max_epu8
#define scale_float _mm512_mul_ps
/* min gives its second operand for a NaN */
#define clamp(x, lower, upper) _mm512_max_ps(_mm512_min_ps(x, upper), lower)
#define bits_of _mm512_castps_si512
#define float_of _mm512_castsi512_ps
#define to_int _mm512_cvtps_epi32
#define to_float _mm512_cvtepi32_ps

static VECTOR inline vint swap_lanes(vint v) {
  const __m512i order = _mm512_set4_epi32(0x0c0d0e0f, 0x08090a0b, 0x04050607, 0x00010203);
  return _mm512_shuffle_epi8(v, order);
}

/* As in avx2.c. */
struct divisor {
  __m512d inverse;
};

static VECTOR inline struct divisor divisor_of(double divisor) {
  const volatile double kept = divisor; /* no division before `enter`: it is inexact */
  return (struct divisor){.inverse = _mm512_set1_pd(1 / kept)};
}

static VECTOR inline __m512i quotients(__m256i sums, __m512d inverse) {
  const __m512d quotient = _mm512_mul_pd(_mm512_cvtepi32_pd(sums), inverse);
  const __m512i half = _mm512_set1_epi64(0x80), kept = _mm512_set1_epi64(~INT64_C(0xff));
  return _mm512_and_si512(_mm512_add_epi64(_mm512_castpd_si512(quotient), half), kept);
}

#define averaged_half(sums, inverse) _mm512_cvtpd_ps(_mm512_castsi512_pd(quotients(sums, inverse)))

static VECTOR inline vint averaged(vint sums, const struct divisor *divisor) {
  const __m256 low = averaged_half(_mm512_castsi512_si256(sums), divisor->inverse);
  const __m256 high = averaged_half(_mm512_extracti64x4_epi64(sums, 1), divisor->inverse);
  return _mm512_castps_si512(_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1));
}

/* Likewise. */
static VECTOR inline __m256 averaged_half_to_odd(__m256i sums, __m512d inverse) {
  const __m512i rounded = quotients(sums, inverse);
  const __m512i below = _mm512_set1_epi64((INT64_C(1) << 29) - 1), last = _mm512_set1_epi64(INT64_C(1) << 29);
  const __mmask8 is_inexact = _mm512_test_epi64_mask(rounded, below);
  const __m512i cut = _mm512_andnot_si512(below, rounded);
  return _mm512_cvtpd_ps(_mm512_castsi512_pd(_mm512_mask_or_epi64(cut, is_inexact, cut, last)));
}

static VECTOR inline vint averaged_to_odd(vint sums, const struct divisor *divisor) {
  const __m256 low = averaged_half_to_odd(_mm512_castsi512_si256(sums), divisor->inverse);
  const __m256 high = averaged_half_to_odd(_mm512_extracti64x4_epi64(sums, 1), divisor->inverse);
  return _mm512_castps_si512(_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1));
}

/* ---- of vector_packed.h ---- */

typedef __m256i vhalf;

#define load_half(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define store_half(p, v) _mm256_storeu_si256((__m256i *)(void *)(p), v)
#define load_half_some(p, num_elems) _mm256_maskz_loadu_epi16(mask_of(num_elems), p)
#define store_half_some(p, v, num_elems) _mm256_mask_storeu_epi16(p, mask_of(num_elems), v)
#define max_u16 _mm512_max_epu16
#define shift_left_16(v) _mm512_slli_epi32(v, 16)
#define shift_right_16(v) _mm512_srli_epi32(v, 16)
#define shift_sign_right_16(v) _mm512_srai_epi32(v, 16)
#define or_bits _mm512_or_si512
#define is_zero(v) _mm512_movm_epi32(_mm512_testn_epi32_mask(v, v))
#define choose(mask, where, elsewhere) _mm512_mask_mov_epi32(elsewhere, _mm512_movepi32_mask(mask), where)
#define absolute _mm512_abs_epi32
#define widened_bits _mm512_cvtepu16_epi32
#define widened_float16(v) _mm512_castps_si512(_mm512_cvtph_ps(v))
#define narrowed_bits _mm512_cvtepi32_epi16

static VECTOR inline vint with_sign_of(vint sign, vint v) {
  return _mm512_mask_sub_epi32(v, _mm512_movepi32_mask(sign), _mm512_setzero_si512(), v);
}

static VECTOR inline vhalf narrowed_float16(vfloat x) {
  /* With a mask of all: GCC's macro without one, which it takes without optimization, does not pass our warnings. */
  return _mm512_maskz_cvtps_ph(0xffff, x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* Not by the intrinsic for all of it, whose last step adds two int: undefined when it overflows. */
static VECTOR inline uint32_t sum_of(vint v) {
  const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
  __m128i quarter = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  quarter = _mm_add_epi32(quarter, _mm_shuffle_epi32(quarter, 0x4e));
  quarter = _mm_add_epi32(quarter, _mm_shuffle_epi32(quarter, 0xb1));
  return (uint32_t)_mm_cvtsi128_si32(quarter);
}

static VECTOR inline uint32_t largest_of(vint v) {
  return _mm512_reduce_max_epu32(v);
}

/* ---- of vector_exact.h ---- */

#define min_u32 _mm512_min_epu32
#define subtract _mm512_sub_epi32
#define shift_left(v, num_bits) _mm512_slli_epi32(v, (uint32_t)(num_bits))
#define shift_right(v, num_bits) _mm512_srli_epi32(v, (uint32_t)(num_bits))
#define shift_left_by _mm512_sllv_epi32
#define shift_right_by _mm512_srlv_epi32
#define HAS_FLOATS_OF_LONG 1
#define floats_of_long(v) (vsingle) _mm512_cvtepi64_ps((__m512i)(v))
#define choose_float(mask, where, elsewhere) \
  (vsingle) _mm256_mask_mov_ps((__m256)(elsewhere), _mm512_movepi64_mask((__m512i)(mask)), (__m256)(where))

#include "quant/vector_kernels.h"

const struct sml_quant_kernels sml_quant_avx512 = SML_VECTOR_KERNELS("avx512");
#endif
