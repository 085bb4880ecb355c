/* SPDX-License-Identifier: Apache-2.0
 * The kernels for AVX2: eight elements at a time, the rest (fewer than eight) by the scalar kernels.
 * Only these functions are compiled for AVX2, so the binary still starts on any x86-64. */
#include "quant/check.h"
#include "quant/kernels.h"

#if SML_QUANT_HAS_AVX2
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))
#define VECTOR_ELEMS 8
#define LARGEST_FLUSH_SHIFT 125

/* Round to nearest even, exceptions masked, denormals kept; and the same with denormals as zero. */
#define MXCSR_DEFAULT UINT32_C(0x1f80)
#define MXCSR_FLUSH (MXCSR_DEFAULT | UINT32_C(0x8040))

/* The memory clobbers keep the arithmetic between two swaps: it uses what is loaded after the one and is
 * stored before the other. */
static uint32_t swap_mxcsr(uint32_t mxcsr) {
  uint32_t old;
  __asm__ volatile("stmxcsr %0" : "=m"(old) : : "memory");
  __asm__ volatile("ldmxcsr %0" : : "m"(mxcsr) : "memory");
  return old;
}

static AVX2 inline __m256i load(const uint8_t *p) {
  return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

static AVX2 inline void store(uint8_t *p, __m256i v) {
  _mm256_storeu_si256((__m256i *)(void *)p, v);
}

static AVX2 inline __m256i swap_lanes(__m256i v) {
  const __m256i order = _mm256_setr_epi8(3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12,  //
                                         3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12);
  return _mm256_shuffle_epi8(v, order);
}

static AVX2 uint8_t block_code(const float *in, size_t num_elems) {
  const uint8_t *from = (const uint8_t *)in;
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i largest = _mm256_setzero_si256();
  size_t i = 0;
  for (; i + VECTOR_ELEMS <= num_elems; i += VECTOR_ELEMS) {
    largest = _mm256_max_epu32(largest, _mm256_and_si256(load(from + 4 * i), magnitude));
  }
  __m128i half = _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0x4e));
  half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0xb1));
  uint8_t code = sml_quant_code_of((uint32_t)_mm_cvtsi128_si32(half));
  uint8_t rest = sml_quant_scalar.block_code(in + i, num_elems - i);
  return code > rest ? code : rest;
}

/* 2^exponent as two factors, since 2^128 is no float and 2^-127 is a denormal one. Multiplying by them is
 * exact, unless the end is 0 or beyond the limit (quantize) or infinity (dequantize) anyway. */
struct factors {
  float first, second;
};

static struct factors split_pow2(int32_t exponent) {
  int32_t second = exponent > 126 ? exponent - 64 : exponent < -126 ? exponent + 64 : 0;
  return (struct factors){
      .first = (float)sml_quant_pow2(exponent - second),
      .second = (float)sml_quant_pow2(second),
  };
}

/* What quantize does to eight elements. */
struct scaling {
  __m256 first, second, limit, lower_limit;
};

static AVX2 inline struct scaling scaling_of(int32_t shift, uint32_t world_size) {
  struct factors factors = split_pow2(shift);
  const float limit = (float)sml_quant_limit(world_size);
  return (struct scaling){.first = _mm256_set1_ps(factors.first),
                          .second = _mm256_set1_ps(factors.second),
                          .limit = _mm256_set1_ps(limit),
                          .lower_limit = _mm256_set1_ps(-limit)};
}

static AVX2 inline __m256i quantize_vector(const uint8_t *from, const struct scaling *s) {
  __m256 x = _mm256_mul_ps(_mm256_mul_ps(_mm256_castsi256_ps(load(from)), s->first), s->second);
  x = _mm256_max_ps(_mm256_min_ps(x, s->limit), s->lower_limit); /* min gives its second operand for a NaN */
  return _mm256_cvtps_epi32(x);
}

/* Denormals cost a microcode assist each. Up to this shift they are below a half: q is 0 either way. */
static uint32_t mxcsr_for(int32_t shift) {
  return shift <= LARGEST_FLUSH_SHIFT ? MXCSR_FLUSH : MXCSR_DEFAULT;
}

static AVX2 void quantize(void *lanes, const float *in, size_t num_elems, uint8_t code, uint32_t world_size) {
  if (!sml_quant_is_scaled(code)) {
    memset(lanes, 0, 4 * num_elems);
    return;
  }
  int32_t shift = sml_quant_shift(code, world_size);
  const struct scaling scaling = scaling_of(shift, world_size);
  const uint8_t *from = (const uint8_t *)in;
  uint8_t *to = lanes;
  size_t i = 0;
  uint32_t saved = swap_mxcsr(mxcsr_for(shift));
  for (; i + VECTOR_ELEMS <= num_elems; i += VECTOR_ELEMS) {
    store(to + 4 * i, swap_lanes(quantize_vector(from + 4 * i, &scaling)));
  }
  swap_mxcsr(saved);
  sml_quant_scalar.quantize(to + 4 * i, in + i, num_elems - i, code, world_size);
}

static AVX2 void quantize_add(void *lanes, const float *in, size_t num_elems, uint8_t code, uint32_t world_size) {
  if (!sml_quant_is_scaled(code)) return;
  int32_t shift = sml_quant_shift(code, world_size);
  const struct scaling scaling = scaling_of(shift, world_size);
  const uint8_t *from = (const uint8_t *)in;
  uint8_t *to = lanes;
  size_t i = 0;
  uint32_t saved = swap_mxcsr(mxcsr_for(shift));
  for (; i + VECTOR_ELEMS <= num_elems; i += VECTOR_ELEMS) {
    const __m256i sums = _mm256_add_epi32(swap_lanes(load(to + 4 * i)), quantize_vector(from + 4 * i, &scaling));
    store(to + 4 * i, swap_lanes(sums));
  }
  swap_mxcsr(saved);
  sml_quant_scalar.quantize_add(to + 4 * i, in + i, num_elems - i, code, world_size);
}

/* Returns how many elements it wrote. int32 to float rounds once; the factors are exact. */
static AVX2 size_t dequantize_sum(uint8_t *to, const uint8_t *from, size_t num_elems, int32_t shift) {
  struct factors factors = split_pow2(-shift);
  const __m256 first = _mm256_set1_ps(factors.first), second = _mm256_set1_ps(factors.second);
  size_t i = 0;
  for (; i + VECTOR_ELEMS <= num_elems; i += VECTOR_ELEMS) {
    __m256 sum = _mm256_cvtepi32_ps(swap_lanes(load(from + 4 * i)));
    store(to + 4 * i, _mm256_castps_si256(_mm256_mul_ps(_mm256_mul_ps(sum, first), second)));
  }
  return i;
}

static AVX2 inline __m128 divide_half(__m128i sums, __m256d divisor) {
  return _mm256_cvtpd_ps(_mm256_div_pd(_mm256_cvtepi32_pd(sums), divisor));
}

/* Two roundings, to double and to float, but as if one. They could differ only if the double is the middle
 * m * 2^j of two floats (m < 2^25) and sum / n is not; but then |sum - n * m * 2^j| is at least 2^min(j, 0),
 * so sum / n is off by 2^-37 of itself at least, and the double by 2^-53 at most. */
static AVX2 size_t dequantize_average(uint8_t *to, const uint8_t *from, size_t num_elems, int32_t shift,
                                      uint32_t world_size) {
  const __m256d divisor = _mm256_set1_pd((double)world_size * sml_quant_pow2(shift));
  size_t i = 0;
  for (; i + VECTOR_ELEMS <= num_elems; i += VECTOR_ELEMS) {
    __m256i sums = swap_lanes(load(from + 4 * i));
    __m128 low = divide_half(_mm256_castsi256_si128(sums), divisor);
    __m128 high = divide_half(_mm256_extracti128_si256(sums, 1), divisor);
    store(to + 4 * i, _mm256_castps_si256(_mm256_set_m128(high, low)));
  }
  return i;
}

static AVX2 void dequantize(float *out, const void *lanes, size_t num_elems, uint8_t code,
                            uint32_t world_size, bool average) {
  uint8_t *to = (uint8_t *)out;
  const uint8_t *from = lanes;
  size_t i = 0;
  if (!sml_quant_is_scaled(code)) {
    const __m256i bits = _mm256_set1_epi32((int32_t)sml_quant_unscaled_bits(code));
    for (; i + VECTOR_ELEMS <= num_elems; i += VECTOR_ELEMS) store(to + 4 * i, bits);
  } else {
    int32_t shift = sml_quant_shift(code, world_size);
    uint32_t saved = swap_mxcsr(MXCSR_DEFAULT);
    i = average ? dequantize_average(to, from, num_elems, shift, world_size)
                : dequantize_sum(to, from, num_elems, shift);
    swap_mxcsr(saved);
  }
  sml_quant_scalar.dequantize(out + i, from + 4 * i, num_elems - i, code, world_size, average);
}

static AVX2 void pack_int32(void *lanes, const int32_t *in, size_t num_elems) {
  const uint8_t *from = (const uint8_t *)in;
  uint8_t *to = lanes;
  size_t i = 0;
  for (; i + VECTOR_ELEMS <= num_elems; i += VECTOR_ELEMS) store(to + 4 * i, swap_lanes(load(from + 4 * i)));
  sml_quant_scalar.pack_int32(to + 4 * i, in + i, num_elems - i);
}

static AVX2 void pack_add_int32(void *lanes, const int32_t *in, size_t num_elems) {
  const uint8_t *from = (const uint8_t *)in;
  uint8_t *to = lanes;
  size_t i = 0;
  for (; i + VECTOR_ELEMS <= num_elems; i += VECTOR_ELEMS) {
    const __m256i sums = _mm256_add_epi32(swap_lanes(load(to + 4 * i)), load(from + 4 * i));
    store(to + 4 * i, swap_lanes(sums));
  }
  sml_quant_scalar.pack_add_int32(to + 4 * i, in + i, num_elems - i);
}

static AVX2 void unpack_int32(int32_t *out, const void *lanes, size_t num_elems) {
  const uint8_t *from = lanes;
  uint8_t *to = (uint8_t *)out;
  size_t i = 0;
  for (; i + VECTOR_ELEMS <= num_elems; i += VECTOR_ELEMS) store(to + 4 * i, swap_lanes(load(from + 4 * i)));
  sml_quant_scalar.unpack_int32(out + i, from + 4 * i, num_elems - i);
}

static AVX2 void add_int32(int32_t *acc, const void *lanes, size_t num_elems) {
  const uint8_t *from = lanes;
  uint8_t *to = (uint8_t *)acc;
  size_t i = 0;
  for (; i + VECTOR_ELEMS <= num_elems; i += VECTOR_ELEMS) {
    store(to + 4 * i, _mm256_add_epi32(load(to + 4 * i), swap_lanes(load(from + 4 * i))));
  }
  sml_quant_scalar.add_int32(acc + i, from + 4 * i, num_elems - i);
}

static AVX2 void max_uint8(uint8_t *acc, const uint8_t *in, size_t num_bytes) {
  size_t i = 0;
  for (; i + 4 * VECTOR_ELEMS <= num_bytes; i += 4 * VECTOR_ELEMS) {
    store(acc + i, _mm256_max_epu8(load(acc + i), load(in + i)));
  }
  sml_quant_scalar.max_uint8(acc + i, in + i, num_bytes - i);
}

/* sml_check_factor of eight elements; counters = seed + index * SML_CHECK_STEP. */
static AVX2 inline __m256i check_factors(__m256i counters) {
  __m256i x = _mm256_xor_si256(counters, _mm256_srli_epi32(counters, 16));
  x = _mm256_mullo_epi32(x, _mm256_set1_epi32((int32_t)SML_CHECK_MULTIPLIER_1));
  x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 15));
  x = _mm256_mullo_epi32(x, _mm256_set1_epi32((int32_t)SML_CHECK_MULTIPLIER_2));
  x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
  return _mm256_or_si256(x, _mm256_set1_epi32(1));
}

static AVX2 uint32_t check_lanes(const void *lanes, size_t num_elems, uint32_t seed) {
  const uint8_t *from = lanes;
  const __m256i step = _mm256_set1_epi32((int32_t)SML_CHECK_STEP);
  const __m256i stride = _mm256_set1_epi32((int32_t)(SML_CHECK_STEP * VECTOR_ELEMS));
  __m256i counters = _mm256_mullo_epi32(step, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  counters = _mm256_add_epi32(counters, _mm256_set1_epi32((int32_t)seed));
  __m256i sums = _mm256_setzero_si256();
  size_t i = 0;
  for (; i + VECTOR_ELEMS <= num_elems; i += VECTOR_ELEMS) {
    const __m256i products = _mm256_mullo_epi32(check_factors(counters), swap_lanes(load(from + 4 * i)));
    sums = _mm256_add_epi32(sums, products);
    counters = _mm256_add_epi32(counters, stride);
  }
  __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1));
  /* The scalar kernel counts from 0 again. */
  const uint32_t rest_seed = seed + (uint32_t)i * SML_CHECK_STEP;
  return (uint32_t)_mm_cvtsi128_si32(half) + sml_quant_scalar.check_lanes(from + 4 * i, num_elems - i, rest_seed);
}

/* Not yet by vectors. */
static void reduce_floats(float *out, const float *const *in, uint32_t num_inputs, size_t num_elems, bool average) {
  sml_quant_scalar.reduce_floats(out, in, num_inputs, num_elems, average);
}

static void reduce_int32(int32_t *out, const int32_t *const *in, uint32_t num_inputs, size_t num_elems) {
  sml_quant_scalar.reduce_int32(out, in, num_inputs, num_elems);
}

const struct sml_quant_kernels sml_quant_avx2 = {
    .name = "avx2",
    .block_code = block_code,
    .quantize = quantize,
    .quantize_add = quantize_add,
    .dequantize = dequantize,
    .reduce_floats = reduce_floats,
    .pack_int32 = pack_int32,
    .pack_add_int32 = pack_add_int32,
    .unpack_int32 = unpack_int32,
    .set_int32 = unpack_int32,
    .add_int32 = add_int32,
    .reduce_int32 = reduce_int32,
    .max_uint8 = max_uint8,
    .check_lanes = check_lanes,
};
#endif
