/* SPDX-License-Identifier: Apache-2.0
 * Gradients, and how they are cut. */
#include "cli/numerics/numerics.h"

#define UNIT 0x1p-70f
#define MIB (1u << 20)

size_t sml_numerics_cut(const size_t *tensor_elems, size_t num_tensors, uint32_t bucket_mib, size_t *first) {
  const uint64_t most = (uint64_t)bucket_mib * MIB / sizeof(float);
  size_t num = 0, num_elems = 0;
  for (size_t t = 0; t < num_tensors; t++) {
    if (t == 0 || num_elems + tensor_elems[t] > most) {
      first[num++] = t;
      num_elems = 0;
    }
    num_elems += tensor_elems[t];
  }
  first[num] = num_tensors;
  return num;
}

int64_t sml_numerics_draw_element(uint64_t seed, uint32_t rank, size_t i) {
  const uint64_t bits = sml_mix64(sml_mix64(seed + UINT64_C(0x9e3779b97f4a7c15) * (rank + 1)) + i);
  const int64_t digits = (int64_t)(bits >> 41) | 1 << 23;
  const int binade = __builtin_popcount((uint32_t)bits); /* a bell, as logarithms of gradients have */
  return (bits >> 40 & 1 ? -digits : digits) * (INT64_C(1) << binade);
}

float sml_numerics_as_float(int64_t units) {
  return (float)units * UNIT; /* the conversion rounds, to nearest; a power of two does not */
}
