/* SPDX-License-Identifier: Apache-2.0
 * What every module shares: assertions about our own truth, time, bits, a random generator.
 * Header only and free of the operating system, so that the pure modules may use it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Internal truth only: no byte from the wire or from a caller may reach one. Stays on in release. */
#define SML_ASSERT(claim) ((claim) ? (void)0 : __builtin_trap())

#define SML_NS_PER_US UINT64_C(1000)
#define SML_NS_PER_MS UINT64_C(1000000)
#define SML_NS_PER_S UINT64_C(1000000000)
#define SML_NEVER UINT64_MAX /* a deadline that does not exist */

#define SML_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* clang-format off */
static inline uint64_t sml_min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t sml_max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }
static inline uint32_t sml_min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t sml_max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }
static inline bool sml_is_pow2(uint64_t x) { return x != 0 && (x & (x - 1)) == 0; }
static inline uint64_t sml_div_ceil(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }
static inline size_t sml_align_up(size_t x, size_t align) { return (x + align - 1) & ~(align - 1); }
/* clang-format on */

/* ceil(log2 x) for x >= 1. */
static inline uint32_t sml_ceil_log2(uint32_t x) {
  return x <= 1 ? 0 : 32u - (uint32_t)__builtin_clz(x - 1);
}

/* Between this host's order of bytes and the other: big-endian is the wire's, little-endian that of SipHash's words. */
#define SML_IS_BIG_ENDIAN (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)
/* clang-format off */
static inline uint16_t sml_be16(uint16_t v) { return SML_IS_BIG_ENDIAN ? v : __builtin_bswap16(v); }
static inline uint32_t sml_be32(uint32_t v) { return SML_IS_BIG_ENDIAN ? v : __builtin_bswap32(v); }
static inline uint64_t sml_be64(uint64_t v) { return SML_IS_BIG_ENDIAN ? v : __builtin_bswap64(v); }
static inline uint64_t sml_le64(uint64_t v) { return SML_IS_BIG_ENDIAN ? __builtin_bswap64(v) : v; }
/* clang-format on */

static inline uint16_t sml_load_be16(const void *p) {
  uint16_t v;
  memcpy(&v, p, sizeof v);
  return sml_be16(v);
}
static inline uint32_t sml_load_be32(const void *p) {
  uint32_t v;
  memcpy(&v, p, sizeof v);
  return sml_be32(v);
}
static inline uint64_t sml_load_be64(const void *p) {
  uint64_t v;
  memcpy(&v, p, sizeof v);
  return sml_be64(v);
}
static inline void sml_store_be16(void *p, uint16_t v) {
  v = sml_be16(v);
  memcpy(p, &v, sizeof v);
}
static inline void sml_store_be32(void *p, uint32_t v) {
  v = sml_be32(v);
  memcpy(p, &v, sizeof v);
}
static inline void sml_store_be64(void *p, uint64_t v) {
  v = sml_be64(v);
  memcpy(p, &v, sizeof v);
}

/* splitmix64 finalizer: a bijection that spreads every input bit (Steele et al., OOPSLA'14). */
static inline uint64_t sml_mix64(uint64_t x) {
  x ^= x >> 30;
  x *= UINT64_C(0xbf58476d1ce4e5b9);
  x ^= x >> 27;
  x *= UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

/* splitmix64: small, seedable, good enough for jitter, tests and fault injection; not for keys. */
struct sml_prng {
  uint64_t state;
};
static inline uint64_t sml_prng_next(struct sml_prng *p) {
  p->state += UINT64_C(0x9e3779b97f4a7c15);
  return sml_mix64(p->state);
}
static inline uint64_t sml_prng_below(struct sml_prng *p, uint64_t bound) {
  return (uint64_t)(((unsigned __int128)sml_prng_next(p) * bound) >> 64);
}
static inline bool sml_prng_chance(struct sml_prng *p, double probability) {
  return (double)(sml_prng_next(p) >> 11) * 0x1p-53 < probability;
}

/* Not __builtin_popcountll: without the instruction it is a call into libgcc. */
static inline uint32_t sml_popcount_u64(uint64_t x) {
  x -= (x >> 1) & UINT64_C(0x5555555555555555);
  x = (x & UINT64_C(0x3333333333333333)) + ((x >> 2) & UINT64_C(0x3333333333333333));
  x = (x + (x >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
  return (uint32_t)((x * UINT64_C(0x0101010101010101)) >> 56);
}

/* A set of ranks. Words are the caller's memory: SML_BITMAP_WORDS(world size). */
#define SML_BITMAP_WORDS(num_bits) (((num_bits) + 63u) / 64u)
static inline bool sml_bit_test(const uint64_t *words, uint32_t i) {
  return (words[i / 64] >> (i % 64)) & 1u;
}
static inline void sml_bit_set(uint64_t *words, uint32_t i) {
  words[i / 64] |= UINT64_C(1) << (i % 64);
}
static inline void sml_bit_clear(uint64_t *words, uint32_t i) {
  words[i / 64] &= ~(UINT64_C(1) << (i % 64));
}
