/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/bench/bench.h"

#define PIECES 4u /* of 16 bits a value */

static uint64_t checksum(const uint64_t *values, size_t num_values, uint32_t rank) {
  uint64_t sum = sml_mix64(rank + 1);
  for (size_t i = 0; i < num_values; i++) sum = sml_mix64(sum ^ values[i]);
  return sum;
}

static void put_value(int32_t *at, uint64_t value) {
  for (uint32_t i = 0; i < PIECES; i++) at[i] = (int32_t)(value >> 16 * i & 0xffffu);
}

/* False: a piece that no single rank can have put there. */
static bool take_value(const int32_t *at, uint64_t *value_out) {
  uint64_t value = 0;
  for (uint32_t i = 0; i < PIECES; i++) {
    if (at[i] < 0 || at[i] > 0xffff) return false;
    value |= (uint64_t)(uint32_t)at[i] << 16 * i;
  }
  *value_out = value;
  return true;
}

size_t sml_bench_gather_elems(uint32_t world_size, size_t num_values) {
  return (size_t)world_size * (num_values + 1) * PIECES;
}

void sml_bench_gather_pack(int32_t *vector, uint32_t world_size, uint32_t rank, const uint64_t *values,
                           size_t num_values) {
  memset(vector, 0, sml_bench_gather_elems(world_size, num_values) * sizeof *vector);
  int32_t *at = vector + (size_t)rank * (num_values + 1) * PIECES;
  for (size_t i = 0; i < num_values; i++) put_value(at + i * PIECES, values[i]);
  put_value(at + num_values * PIECES, checksum(values, num_values, rank));
}

bool sml_bench_gather_unpack(const int32_t *vector, uint32_t world_size, size_t num_values, uint64_t *all_out) {
  for (uint32_t rank = 0; rank < world_size; rank++) {
    uint64_t *values = all_out + rank * num_values, sum = 0;
    for (size_t i = 0; i < num_values; i++, vector += PIECES)
      if (!take_value(vector, &values[i])) return false;
    if (!take_value(vector, &sum) || sum != checksum(values, num_values, rank)) return false;
    vector += PIECES;
  }
  return true;
}
