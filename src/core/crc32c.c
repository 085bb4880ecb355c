/* SPDX-License-Identifier: Apache-2.0
 * CRC-32C (Castagnoli polynomial, reflected 0x82f63b78). */
#include "core/wire.h"

#if defined(__x86_64__)
#include <cpuid.h>
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
/* The instruction takes 3 cycles and can start every cycle: three streams side by side are three times
 * as fast. Two streams of zeros' effect is then removed by the "shift by BLOCK bytes" operator. */
#define BLOCK 256u

/* crc * x^(8 * BLOCK) mod P, by carry-less multiplication with the constant x^(8 * BLOCK - 33) mod P
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

static _Atomic uint32_t shift_one, shift_two;

__attribute__((target("sse4.2,pclmul"))) static uint32_t crc32c_sse42(uint32_t crc, const uint8_t *data,
                                                                      size_t num_bytes) {
  uint64_t a = crc;
  const uint32_t one = atomic_load_explicit(&shift_one, memory_order_relaxed);
  const uint32_t two = atomic_load_explicit(&shift_two, memory_order_relaxed);
  for (; num_bytes >= 3 * BLOCK; num_bytes -= 3 * BLOCK, data += 3 * BLOCK) {
    uint64_t b = 0, c = 0;
    for (uint32_t i = 0; i < BLOCK; i += 8) {
      uint64_t x, y, z;
      memcpy(&x, data + i, 8);
      memcpy(&y, data + BLOCK + i, 8);
      memcpy(&z, data + 2 * BLOCK + i, 8);
      a = __builtin_ia32_crc32di(a, x);
      b = __builtin_ia32_crc32di(b, y);
      c = __builtin_ia32_crc32di(c, z);
    }
    a = shift_blocks((uint32_t)a, two) ^ shift_blocks((uint32_t)b, one) ^ (uint32_t)c;
  }
  for (; num_bytes >= 8; num_bytes -= 8, data += 8) {
    uint64_t x;
    memcpy(&x, data, 8);
    a = __builtin_ia32_crc32di(a, x);
  }
  for (; num_bytes > 0; num_bytes--, data++) a = __builtin_ia32_crc32qi((uint32_t)a, *data);
  return (uint32_t)a;
}

/* 0 = not asked yet, 1 = portable, 2 = SSE4.2. Racing first calls find the same answer. */
static _Atomic int chosen;

static int choose(void) {
  unsigned int a, b, c = 0, d;
  const bool has = __get_cpuid(1, &a, &b, &c, &d) && (c & (1u << 20)) != 0 && (c & (1u << 1)) != 0;
  atomic_store_explicit(&shift_one, power_of_x(8 * BLOCK - 33), memory_order_relaxed);
  atomic_store_explicit(&shift_two, power_of_x(16 * BLOCK - 33), memory_order_relaxed);
  atomic_store_explicit(&chosen, has ? 2 : 1, memory_order_release); /* pairs with the acquire below */
  return has ? 2 : 1;
}
#endif

uint32_t sml_crc32c(uint32_t crc, const void *data, size_t num_bytes) {
#if defined(__x86_64__)
  int which = atomic_load_explicit(&chosen, memory_order_acquire); /* pairs with choose()'s release */
  if (which == 0) which = choose();
  if (which == 2) return ~crc32c_sse42(~crc, data, num_bytes);
#endif
  return ~crc32c_portable(~crc, data, num_bytes);
}
