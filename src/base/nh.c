/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nh.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <stdatomic.h>
#endif

#define NUM_PASSES 2u
#define PAIR_BYTES 8u

void sml_nh_key_derive(struct sml_nh_key *out, const struct sml_key *key) {
  struct sml_key own = sml_key_derive(key, "switchml digests", NULL, 0);
  for (uint32_t i = 0; i < SML_ARRAY_LEN(out->words); i += 2) {
    const uint64_t counter = sml_le64(i / 2), value = sml_siphash(&own, &counter, sizeof counter);
    out->words[i] = (uint32_t)value;
    out->words[i + 1] = (uint32_t)(value >> 32);
  }
  sml_key_wipe(&own, sizeof own);
}

/* Adds whole pairs to the sums of both passes. */
static void add_pairs(const uint32_t *key, const uint8_t *data, size_t num_bytes, uint64_t sums[NUM_PASSES]) {
  for (; num_bytes >= PAIR_BYTES; num_bytes -= PAIR_BYTES, data += PAIR_BYTES, key += 2) {
    uint64_t pair;
    memcpy(&pair, data, sizeof pair);
    const uint32_t low = (uint32_t)sml_le64(pair), high = (uint32_t)(sml_le64(pair) >> 32);
    sums[0] += (uint64_t)(low + key[0]) * (high + key[1]);
    sums[1] += (uint64_t)(low + key[2]) * (high + key[3]);
  }
}

#if defined(__x86_64__)
/* The same on vectors, of which as many as are whole: returns how many bytes they had. */
#define DEFINE_ADD_VECTORS(NAME, TARGET, VECTOR, LOAD, ADD_32, ADD_64, MULTIPLY, SHIFT)                          \
  static __attribute__((target(TARGET))) size_t NAME(const uint32_t *key, const uint8_t *data, size_t num_bytes, \
                                                     uint64_t sums[NUM_PASSES]) {                                \
    VECTOR a = {0}, b = {0};                                                                                     \
    size_t at = 0;                                                                                               \
    for (; num_bytes - at >= sizeof(VECTOR); at += sizeof(VECTOR)) {                                             \
      const VECTOR m = LOAD((const void *)(data + at));                                                          \
      const VECTOR x = ADD_32(m, LOAD((const void *)(key + at / 4)));                                            \
      const VECTOR y = ADD_32(m, LOAD((const void *)(key + at / 4 + 2)));                                        \
      a = ADD_64(a, MULTIPLY(x, SHIFT(x, 32)));                                                                  \
      b = ADD_64(b, MULTIPLY(y, SHIFT(y, 32)));                                                                  \
    }                                                                                                            \
    for (size_t i = 0; i < sizeof(VECTOR) / 8; i++) sums[0] += (uint64_t)a[i], sums[1] += (uint64_t)b[i];        \
    return at;                                                                                                   \
  }
DEFINE_ADD_VECTORS(add_vectors_256, "avx2", __m256i, _mm256_loadu_si256, _mm256_add_epi32, _mm256_add_epi64,
                   _mm256_mul_epu32, _mm256_srli_epi64)
DEFINE_ADD_VECTORS(add_vectors_512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_add_epi32, _mm512_add_epi64,
                   _mm512_mul_epu32, _mm512_srli_epi64)

enum { NOT_ASKED, PORTABLE, SHORT_VECTORS, LONG_VECTORS };
static _Atomic int chosen; /* racing first calls find the same answer */

static int find_best(void) {
  unsigned int a, b, c, d, kept, kept_high;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_OSXSAVE) == 0) return PORTABLE;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return PORTABLE;
  __asm__ volatile("xgetbv" : "=a"(kept), "=d"(kept_high) : "c"(0)); /* what the system saves at a switch */
  if ((b & bit_AVX512F) != 0 && (kept & 0xe6) == 0xe6) return LONG_VECTORS;
  return (b & bit_AVX2) != 0 && (kept & 0x6) == 0x6 ? SHORT_VECTORS : PORTABLE;
}

static int choice(void) {
  int which = atomic_load_explicit(&chosen, memory_order_relaxed);
  if (which == NOT_ASKED) atomic_store_explicit(&chosen, which = find_best(), memory_order_relaxed);
  return which;
}
#endif

static void digest(const struct sml_nh_key *key, const uint8_t *data, size_t num_bytes, uint8_t *out) {
  uint64_t sums[NUM_PASSES] = {0};
  size_t done = 0;
#if defined(__x86_64__)
  const int which = choice();
  if (which == LONG_VECTORS) done = add_vectors_512(key->words, data, num_bytes, sums);
  if (which == SHORT_VECTORS) done = add_vectors_256(key->words, data, num_bytes, sums);
#endif
  add_pairs(key->words + done / 4, data + done, num_bytes - done, sums);
  const size_t rest = num_bytes % PAIR_BYTES, whole = num_bytes - rest;
  if (rest > 0) { /* as if zeros followed */
    uint8_t pair[PAIR_BYTES] = {0};
    memcpy(pair, data + whole, rest);
    add_pairs(key->words + whole / 4, pair, PAIR_BYTES, sums);
  }
  for (uint32_t pass = 0; pass < NUM_PASSES; pass++) {
    const uint64_t sum = sml_le64(sums[pass]);
    memcpy(out + 8 * pass, &sum, sizeof sum);
  }
}

void sml_nh(const struct sml_nh_key *key, const void *message, size_t num_bytes, uint8_t *digests_out) {
  for (size_t at = 0; at < num_bytes; at += SML_NH_RUN_BYTES, digests_out += SML_NH_DIGEST_BYTES) {
    const size_t rest = num_bytes - at;
    digest(key, (const uint8_t *)message + at, rest < SML_NH_RUN_BYTES ? rest : SML_NH_RUN_BYTES, digests_out);
  }
}
