/* SPDX-License-Identifier: Apache-2.0 */
#include "quant/narrow.h"

/* A big-endian lane as a little-endian word: its upper four bits, and the sign bit of the 28 others. */
#define UPPER UINT32_C(0x000000f0)
#define SIGN UINT32_C(0x00000008)

#define COLUMNS 4u
typedef uint32_t columns __attribute__((vector_size(4 * COLUMNS)));

/* The shifts below are those of little-endian words. */
static inline __attribute__((always_inline)) columns little_endian(columns c) {
  if (SML_IS_BIG_ENDIAN)
    for (uint32_t i = 0; i < COLUMNS; i++) c[i] = __builtin_bswap32(c[i]);
  return c;
}

static inline __attribute__((always_inline)) columns load(const uint8_t *from) {
  columns c;
  memcpy(&c, from, sizeof c);
  return little_endian(c);
}

static inline __attribute__((always_inline)) void store(uint8_t *to, columns c) {
  c = little_endian(c);
  memcpy(to, &c, sizeof c);
}

/* Bits 4r .. 4r + 3 of a lane, for row r, in the place of the upper four. */
static inline __attribute__((always_inline)) columns part_of(columns last, uint32_t row) {
  static const uint32_t right[] = {20, 24, 12, 16, 4, 8};
  return (row < 6 ? last >> right[row] : last << 4) & UPPER;
}

/* The way back. */
static inline __attribute__((always_inline)) columns put_part(columns word, uint32_t row) {
  static const uint32_t left[] = {20, 24, 12, 16, 4, 8};
  const columns part = word & UPPER;
  return row < 6 ? part << left[row] : part >> 4;
}

static inline __attribute__((always_inline)) columns with_sign(columns word) {
  const columns sign = word & SIGN;
  return (word & ~UPPER) | ((sign << 5) - (sign << 1)); /* 16 times it, less twice: the four bits above, or none */
}

static inline __attribute__((always_inline)) void narrow_columns(uint8_t *out, const uint8_t *lanes, size_t row_bytes) {
  const columns last = load(lanes + 7 * row_bytes);
#pragma GCC unroll 7
  for (uint32_t r = 0; r < 7; r++)
    store(out + r * row_bytes, (load(lanes + r * row_bytes) & ~UPPER) | part_of(last, r));
}

static inline __attribute__((always_inline)) void widen_columns(uint8_t *lanes, const uint8_t *narrow,
                                                                size_t row_bytes) {
  columns last = {0};
#pragma GCC unroll 7
  for (uint32_t r = 0; r < 7; r++) {
    const columns word = load(narrow + r * row_bytes);
    last |= put_part(word, r);
    store(lanes + r * row_bytes, with_sign(word));
  }
  store(lanes + 7 * row_bytes, with_sign(last));
}

/* The columns from `at` on, fewer than COLUMNS, beside each other in a block that has room for COLUMNS. */
static void copy_rest(uint8_t *to, size_t to_bytes, const uint8_t *from, size_t from_bytes, size_t rest_bytes,
                      uint32_t num_rows) {
  for (uint32_t r = 0; r < num_rows; r++) memcpy(to + r * to_bytes, from + r * from_bytes, rest_bytes);
}

void sml_narrow_lanes(void *out, const void *lanes, size_t num_lanes) {
  uint8_t *to = out, block[SML_NARROW_ROWS * sizeof(columns)] = {0};
  const uint8_t *from = lanes;
  const size_t row_bytes = num_lanes / SML_NARROW_ROWS * 4;
  SML_ASSERT(num_lanes % SML_NARROW_ROWS == 0);
  size_t at = 0;
  for (; row_bytes - at >= sizeof(columns); at += sizeof(columns)) narrow_columns(to + at, from + at, row_bytes);
  if (at == row_bytes) return;
  copy_rest(block, sizeof(columns), from + at, row_bytes, row_bytes - at, SML_NARROW_ROWS);
  narrow_columns(block, block, sizeof(columns));
  copy_rest(to + at, row_bytes, block, sizeof(columns), row_bytes - at, SML_NARROW_ROWS - 1);
}

void sml_widen_lanes(void *lanes, const void *narrow, size_t num_lanes) {
  uint8_t *to = lanes, block[SML_NARROW_ROWS * sizeof(columns)] = {0}, wide[SML_NARROW_ROWS * sizeof(columns)];
  const uint8_t *from = narrow;
  const size_t row_bytes = num_lanes / SML_NARROW_ROWS * 4;
  SML_ASSERT(num_lanes % SML_NARROW_ROWS == 0);
  size_t at = 0;
  for (; row_bytes - at >= sizeof(columns); at += sizeof(columns)) widen_columns(to + at, from + at, row_bytes);
  if (at == row_bytes) return;
  copy_rest(block, sizeof(columns), from + at, row_bytes, row_bytes - at, SML_NARROW_ROWS - 1);
  widen_columns(wide, block, sizeof(columns));
  copy_rest(to + at, row_bytes, wide, sizeof(columns), row_bytes - at, SML_NARROW_ROWS);
}
