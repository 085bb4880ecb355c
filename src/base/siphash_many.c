/* SPDX-License-Identifier: Apache-2.0
 * SipHash of several messages side by side: one message is a chain of additions that keeps a processor waiting for
 * itself, and eight messages in the lanes of vectors are eight chains at little more than the price of one. */
#include "base/siphash.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <stdatomic.h>

/* One round on the lanes of a vector; ROTATE(x, by) is the processor's. */
#define MIX(ADD, XOR, ROTATE)                                   \
  do {                                                          \
    v0 = ADD(v0, v1), v2 = ADD(v2, v3);                         \
    v1 = XOR(ROTATE(v1, 13), v0), v3 = XOR(ROTATE(v3, 16), v2); \
    v0 = ROTATE(v0, 32);                                        \
    v2 = ADD(v2, v1), v0 = ADD(v0, v3);                         \
    v1 = XOR(ROTATE(v1, 17), v2), v3 = XOR(ROTATE(v3, 21), v0); \
    v2 = ROTATE(v2, 32);                                        \
  } while (0)

/* ---- eight lanes ---- */

#define AVX512 __attribute__((target("avx512f")))
#define TAKE_512(word)                                         \
  do {                                                         \
    const __m512i w = (word);                                  \
    v3 = _mm512_xor_si512(v3, w);                              \
    MIX(_mm512_add_epi64, _mm512_xor_si512, _mm512_rol_epi64); \
    MIX(_mm512_add_epi64, _mm512_xor_si512, _mm512_rol_epi64); \
    v0 = _mm512_xor_si512(v0, w);                              \
  } while (0)

/* 64 bytes of each message in; its word w of each message out. */
static AVX512 inline __attribute__((always_inline)) void transpose_512(const uint8_t *const data[8], size_t at,
                                                                       __m512i words[8]) {
  __m512i pairs[8], quads[8];
  for (uint32_t i = 0; i < 8; i += 2) {
    const __m512i a = _mm512_loadu_si512(data[i] + at), b = _mm512_loadu_si512(data[i + 1] + at);
    pairs[i] = _mm512_unpacklo_epi64(a, b);
    pairs[i + 1] = _mm512_unpackhi_epi64(a, b);
  }
  for (uint32_t i = 0; i < 8; i += 4)
    for (uint32_t k = 0; k < 2; k++) {
      quads[i + k] = _mm512_shuffle_i64x2(pairs[i + k], pairs[i + k + 2], 0x88);
      quads[i + k + 2] = _mm512_shuffle_i64x2(pairs[i + k], pairs[i + k + 2], 0xdd);
    }
  for (uint32_t k = 0; k < 4; k++) {
    words[k] = _mm512_shuffle_i64x2(quads[k], quads[k + 4], 0x88);
    words[k + 4] = _mm512_shuffle_i64x2(quads[k], quads[k + 4], 0xdd);
  }
}

static AVX512 void take_words_512(uint64_t state[4][SML_SIPHASH_MANY], const uint8_t *const data[8], size_t num_bytes) {
  __m512i v0 = _mm512_loadu_si512(state[0]), v1 = _mm512_loadu_si512(state[1]);
  __m512i v2 = _mm512_loadu_si512(state[2]), v3 = _mm512_loadu_si512(state[3]);
  size_t at = 0;
  for (; num_bytes - at >= 64; at += 64) {
    __m512i words[8];
    transpose_512(data, at, words);
    for (uint32_t k = 0; k < 8; k++) TAKE_512(words[k]);
  }
  for (; at < num_bytes; at += 8) {
    uint64_t words[SML_SIPHASH_MANY];
    for (uint32_t i = 0; i < SML_SIPHASH_MANY; i++) memcpy(&words[i], data[i] + at, 8);
    TAKE_512(_mm512_loadu_si512(words));
  }
  _mm512_storeu_si512(state[0], v0);
  _mm512_storeu_si512(state[1], v1);
  _mm512_storeu_si512(state[2], v2);
  _mm512_storeu_si512(state[3], v3);
}

/* ---- four lanes ---- */

#define AVX2 __attribute__((target("avx2")))
#define ROTATE_256(x, by) _mm256_or_si256(_mm256_slli_epi64(x, by), _mm256_srli_epi64(x, 64 - (by)))
#define TAKE_256(word)                                   \
  do {                                                   \
    const __m256i w = (word);                            \
    v3 = _mm256_xor_si256(v3, w);                        \
    MIX(_mm256_add_epi64, _mm256_xor_si256, ROTATE_256); \
    MIX(_mm256_add_epi64, _mm256_xor_si256, ROTATE_256); \
    v0 = _mm256_xor_si256(v0, w);                        \
  } while (0)

/* Lanes first .. first + 3. */
static AVX2 void take_words_256(uint64_t state[4][SML_SIPHASH_MANY], const uint8_t *const data[8], size_t num_bytes,
                                uint32_t first) {
  __m256i v0 = _mm256_loadu_si256((const __m256i *)(const void *)&state[0][first]);
  __m256i v1 = _mm256_loadu_si256((const __m256i *)(const void *)&state[1][first]);
  __m256i v2 = _mm256_loadu_si256((const __m256i *)(const void *)&state[2][first]);
  __m256i v3 = _mm256_loadu_si256((const __m256i *)(const void *)&state[3][first]);
  for (size_t at = 0; at < num_bytes; at += 8) {
    uint64_t words[4];
    for (uint32_t i = 0; i < 4; i++) memcpy(&words[i], data[first + i] + at, 8);
    TAKE_256(_mm256_set_epi64x((long long)words[3], (long long)words[2], (long long)words[1], (long long)words[0]));
  }
  _mm256_storeu_si256((__m256i *)(void *)&state[0][first], v0);
  _mm256_storeu_si256((__m256i *)(void *)&state[1][first], v1);
  _mm256_storeu_si256((__m256i *)(void *)&state[2][first], v2);
  _mm256_storeu_si256((__m256i *)(void *)&state[3][first], v3);
}

/* ---- which ---- */

enum { NOT_ASKED, ONE_BY_ONE, FOUR, EIGHT };
static _Atomic int chosen; /* racing first calls find the same answer */

static int find_best(void) {
  unsigned int a, b, c, d, kept, kept_high;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_OSXSAVE) == 0) return ONE_BY_ONE;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return ONE_BY_ONE;
  __asm__ volatile("xgetbv" : "=a"(kept), "=d"(kept_high) : "c"(0)); /* what the system saves at a switch */
  if ((b & bit_AVX512F) != 0 && (kept & 0xe6) == 0xe6) return EIGHT;
  return (b & bit_AVX2) != 0 && (kept & 0x6) == 0x6 ? FOUR : ONE_BY_ONE;
}

static int choice(void) {
  int which = atomic_load_explicit(&chosen, memory_order_relaxed);
  if (which == NOT_ASKED) atomic_store_explicit(&chosen, which = find_best(), memory_order_relaxed);
  return which;
}

static void take_words(int which, struct sml_siphash *hashes, const uint8_t *const *data, uint32_t num_messages,
                       size_t num_bytes) {
  uint64_t state[4][SML_SIPHASH_MANY];
  const uint8_t *lanes[SML_SIPHASH_MANY];
  for (uint32_t i = 0; i < SML_SIPHASH_MANY; i++) {
    const uint32_t from = i < num_messages ? i : 0; /* a lane that nobody looks at */
    const struct sml_siphash *h = &hashes[from];
    state[0][i] = h->v0, state[1][i] = h->v1, state[2][i] = h->v2, state[3][i] = h->v3;
    lanes[i] = data[from];
  }
  if (which == EIGHT) {
    take_words_512(state, lanes, num_bytes);
  } else {
    take_words_256(state, lanes, num_bytes, 0);
    if (num_messages > 4) take_words_256(state, lanes, num_bytes, 4);
  }
  for (uint32_t i = 0; i < num_messages; i++) {
    struct sml_siphash *h = &hashes[i];
    h->v0 = state[0][i], h->v1 = state[1][i], h->v2 = state[2][i], h->v3 = state[3][i];
    h->num_bytes += num_bytes;
  }
}
#endif

/* Fewer gain nothing by company. */
#define FEW 3u

void sml_siphash_update_many(struct sml_siphash *hashes, const uint8_t *const *data, uint32_t num_messages,
                             size_t num_bytes) {
  size_t done_bytes = 0;
  SML_ASSERT(num_messages <= SML_SIPHASH_MANY);
  for (uint32_t i = 0; i < num_messages; i++) SML_ASSERT((hashes[i].num_bytes & 7) == 0);
#if defined(__x86_64__)
  const int which = choice();
  if (num_messages >= FEW && which != ONE_BY_ONE) {
    done_bytes = num_bytes & ~(size_t)7;
    take_words(which, hashes, data, num_messages, done_bytes);
  }
#endif
  for (uint32_t i = 0; i < num_messages; i++)
    sml_siphash_update(&hashes[i], data[i] + done_bytes, num_bytes - done_bytes);
}
