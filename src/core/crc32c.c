/* SPDX-License-Identifier: Apache-2.0
 * CRC-32C (Castagnoli polynomial, reflected 0x82f63b78). */
#include "core/wire.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <stdatomic.h>
#endif

/* One nibble at a time: small, and used only where the processor has no instruction for it. */
static uint32_t crc32c_portable(uint32_t crc, const uint8_t *data, size_t num_bytes) {
  static const uint32_t table[16] = {0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
                                     0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
                                     0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};
  for (size_t i = 0; i < num_bytes; i++) {
    crc ^= data[i];
    crc = (crc >> 4) ^ table[crc & 15];
    crc = (crc >> 4) ^ table[crc & 15];
  }
  return crc;
}

#if defined(__x86_64__)
/* The instruction takes 3 cycles and can start every cycle, so three streams side by side are three times as fast.
 * The "shift by a block" operator then puts the first two streams before the third. Blocks are long; what long ones
 * leave is done in short ones. */
#define LONG_BLOCK 256u
#define SHORT_BLOCK 64u

/* crc * x^(8 * bytes) mod P, by carry-less multiplication with the constant x^(8 * bytes - 33) mod P
 * (reflected); the crc32 instruction does the reduction. */
__attribute__((target("sse4.2,pclmul"))) static inline uint32_t shift_blocks(uint32_t crc, uint32_t constant) {
  typedef long long v2di __attribute__((vector_size(16)));
  const v2di a = {(long long)crc, 0}, b = {(long long)constant, 0};
  const v2di product = __builtin_ia32_pclmulqdq128(a, b, 0);
  return (uint32_t)__builtin_ia32_crc32di(0, (unsigned long long)product[0]);
}

/* x^exponent mod P, reflected; exponent is a constant of this file, so the loop runs once a process. */
static uint32_t power_of_x(uint32_t exponent) {
  uint32_t r = UINT32_C(0x80000000);
  for (uint32_t i = 0; i < exponent; i++) r = (r >> 1) ^ ((r & 1) ? UINT32_C(0x82f63b78) : 0);
  return r;
}

static _Atomic uint32_t long_shifts[2], short_shifts[2]; /* by one block, and by two */

/* Takes whole triples of blocks of that size, a constant. */
__attribute__((target("sse4.2,pclmul"), always_inline)) static inline uint64_t add_triples(
    uint64_t a, const uint8_t *data, size_t num_bytes, const uint32_t block, const _Atomic uint32_t shifts[2]) {
  const uint32_t one = atomic_load_explicit(&shifts[0], memory_order_relaxed);
  const uint32_t two = atomic_load_explicit(&shifts[1], memory_order_relaxed);
  for (; num_bytes >= 3 * block; num_bytes -= 3 * block, data += 3 * block) {
    uint64_t b = 0, c = 0;
#ifndef __clang__ /* clang unrolls it by itself */
#pragma GCC unroll 8
#endif
    for (uint32_t i = 0; i < block; i += 8) {
      uint64_t x, y, z;
      memcpy(&x, data + i, 8);
      memcpy(&y, data + block + i, 8);
      memcpy(&z, data + 2 * block + i, 8);
      a = __builtin_ia32_crc32di(a, x);
      b = __builtin_ia32_crc32di(b, y);
      c = __builtin_ia32_crc32di(c, z);
    }
    a = shift_blocks((uint32_t)a, two) ^ shift_blocks((uint32_t)b, one) ^ (uint32_t)c;
  }
  return a;
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t crc32c_sse42(uint32_t crc, const uint8_t *data,
                                                                      size_t num_bytes) {
  uint64_t a = add_triples(crc, data, num_bytes, LONG_BLOCK, long_shifts);
  data += num_bytes - num_bytes % (3 * LONG_BLOCK);
  num_bytes %= 3 * LONG_BLOCK;
  a = add_triples(a, data, num_bytes, SHORT_BLOCK, short_shifts);
  data += num_bytes - num_bytes % (3 * SHORT_BLOCK);
  num_bytes %= 3 * SHORT_BLOCK;
  for (; num_bytes >= 8; num_bytes -= 8, data += 8) {
    uint64_t x;
    memcpy(&x, data, 8);
    a = __builtin_ia32_crc32di(a, x);
  }
  if (num_bytes >= 4) { /* lanes are this long */
    uint32_t x;
    memcpy(&x, data, 4);
    a = __builtin_ia32_crc32si((uint32_t)a, x);
    num_bytes -= 4;
    data += 4;
  }
  for (; num_bytes > 0; num_bytes--, data++) a = __builtin_ia32_crc32qi((uint32_t)a, *data);
  return (uint32_t)a;
}

#define LANE 64u /* bytes of a register */
#define FOLD (4 * LANE)

/* What carries a register forward by 1 .. 4 registers: for its low halves, and for its high ones. */
static _Atomic uint32_t fold_low[4], fold_high[4];

#define AVX512 __attribute__((target("avx512f,vpclmulqdq")))

static AVX512 inline __m512i fold_powers(uint32_t num_lanes) {
  const uint32_t low = atomic_load_explicit(&fold_low[num_lanes - 1], memory_order_relaxed);
  const uint32_t high = atomic_load_explicit(&fold_high[num_lanes - 1], memory_order_relaxed);
  const long long l = (long long)((uint64_t)low << 32), h = (long long)((uint64_t)high << 32);
  return _mm512_set_epi64(h, l, h, l, h, l, h, l);
}

/* Carries `rest` forward and adds it to what is there. */
static AVX512 inline __m512i fold(__m512i rest, __m512i powers, __m512i there) {
  const __m512i a = _mm512_clmulepi64_epi128(rest, powers, 0x00);
  const __m512i b = _mm512_clmulepi64_epi128(rest, powers, 0x11);
  return _mm512_ternarylogic_epi64(a, b, there, 0x96);
}

/* Twice as fast again on processors that multiply four pairs at a time. It carries registers forward with carry-less
 * multiplications: four side by side as long as there is enough data, then one. That leaves LANE bytes with the same
 * remainder (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Intel 2009).
 * A reflected product is one bit short, so the powers of x are one less than the distance. */
static AVX512 uint32_t crc32c_avx512(uint32_t crc, const uint8_t *data, size_t num_bytes) {
  if (num_bytes < 2 * LANE) return crc32c_sse42(crc, data, num_bytes);
  const __m512i one = fold_powers(1);
  __m512i rest = _mm512_xor_si512(_mm512_loadu_si512(data), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
  if (num_bytes >= 2 * FOLD) {
    const __m512i four = fold_powers(4);
    __m512i b = _mm512_loadu_si512(data + LANE), c = _mm512_loadu_si512(data + 2 * LANE);
    __m512i d = _mm512_loadu_si512(data + 3 * LANE);
    for (; num_bytes >= 2 * FOLD; num_bytes -= FOLD, data += FOLD) {
      rest = fold(rest, four, _mm512_loadu_si512(data + FOLD));
      b = fold(b, four, _mm512_loadu_si512(data + FOLD + LANE));
      c = fold(c, four, _mm512_loadu_si512(data + FOLD + 2 * LANE));
      d = fold(d, four, _mm512_loadu_si512(data + FOLD + 3 * LANE));
    }
    rest = fold(rest, fold_powers(3), fold(b, fold_powers(2), fold(c, one, d)));
    data += 3 * LANE;
    num_bytes -= 3 * LANE;
  }
  for (; num_bytes >= 2 * LANE; num_bytes -= LANE, data += LANE) {
    rest = fold(rest, one, _mm512_loadu_si512(data + LANE));
  }
  uint8_t bytes[LANE];
  memcpy(bytes, &rest, LANE);
  _mm256_zeroupper(); /* GCC leaves it out before a call within the file; each SSE instruction would wait */
  return crc32c_sse42(crc32c_sse42(0, bytes, LANE), data + LANE, num_bytes - LANE);
}

enum { NOT_ASKED, PORTABLE, SSE42, VPCLMUL };
static _Atomic int chosen; /* racing first calls find the same answer */

/* This asks the processor itself: __builtin_cpu_supports would bring the compiler's library into this module. */
static int find_best(void) {
  unsigned int a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_SSE4_2) == 0 || (c & bit_PCLMUL) == 0) return PORTABLE;
  if ((c & bit_OSXSAVE) == 0 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return SSE42;
  if ((b & bit_AVX512F) == 0 || (c & bit_VPCLMULQDQ) == 0) return SSE42;
  uint32_t kept, kept_high; /* what the system saves at a context switch */
  __asm__ volatile("xgetbv" : "=a"(kept), "=d"(kept_high) : "c"(0));
  return (kept & 0xe6) == 0xe6 ? VPCLMUL : SSE42; /* SSE, AVX and the three parts of AVX-512 */
}

static int choose(void) {
  const int best = find_best();
  for (uint32_t i = 0; i < 2; i++) {
    atomic_store_explicit(&long_shifts[i], power_of_x(8 * LONG_BLOCK * (i + 1) - 33), memory_order_relaxed);
    atomic_store_explicit(&short_shifts[i], power_of_x(8 * SHORT_BLOCK * (i + 1) - 33), memory_order_relaxed);
  }
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t distance = 8 * LANE * (i + 1); /* bits */
    atomic_store_explicit(&fold_low[i], power_of_x(distance + 64 - 1), memory_order_relaxed);
    atomic_store_explicit(&fold_high[i], power_of_x(distance - 1), memory_order_relaxed);
  }
  atomic_store_explicit(&chosen, best, memory_order_release); /* pairs with the acquire below */
  return best;
}
#endif

uint32_t sml_crc32c(uint32_t crc, const void *data, size_t num_bytes) {
#if defined(__x86_64__)
  int which = atomic_load_explicit(&chosen, memory_order_acquire); /* pairs with choose()'s release */
  if (which == NOT_ASKED) which = choose();
  if (which == VPCLMUL) return ~crc32c_avx512(~crc, data, num_bytes);
  if (which == SSE42) return ~crc32c_sse42(~crc, data, num_bytes);
#endif
  return ~crc32c_portable(~crc, data, num_bytes);
}
