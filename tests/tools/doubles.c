/* SPDX-License-Identifier: Apache-2.0
 * doubles: exact sums of doubles as a program, for tests/exact_doubles_test.py. On stdin come records: ranks, elements
 * and whether it is an average (three uint32), then the elements of each rank. On stdout come the results. Each record
 * goes the network's way, lanes added modulo 2^32, and one host's way, which must have the same bits. */
#include <stdio.h>
#include <stdlib.h>

#include "quant/format.h"
#include "quant/limbs.h"

static uint8_t in[4096][8 * SML_LIMBS_MAX_ELEMS];

static bool read_all(void *to, size_t num_bytes) {
  return fread(to, 1, num_bytes, stdin) == num_bytes;
}

static bool sum_up(uint32_t world_size, uint32_t num_elems, bool average, uint8_t *out) {
  static uint8_t lanes[512 * SML_LIMBS_MAX_ELEMS], sums[512 * SML_LIMBS_MAX_ELEMS], other[8 * SML_LIMBS_MAX_ELEMS];
  const struct sml_quant_kernels *k = sml_quant_select(NULL);
  const struct sml_format_shape shape =
      sml_format_choose(SML_FORMAT_FLOAT64, num_elems, world_size, (struct sml_format_options){0});
  const struct sml_format *f = sml_format_find(SML_FORMAT_FLOAT64, shape);
  const void *inputs[4096];
  memset(sums, 0, sizeof sums);
  for (uint32_t r = 0; r < world_size; r++) {
    inputs[r] = in[r];
    f->put(k, lanes, in[r], num_elems, 0, world_size);
    for (size_t l = 0; l < (size_t)num_elems * shape.elem_lanes; l++)
      sml_store_be32(sums + 4 * l, sml_load_be32(sums + 4 * l) + sml_load_be32(lanes + 4 * l));
  }
  f->get(k, out, sums, num_elems, 0, world_size, average);
  f->reduce(k, other, inputs, world_size, num_elems, average);
  return memcmp(out, other, 8 * (size_t)num_elems) == 0;
}

int main(void) {
  uint32_t head[3];
  uint8_t out[8 * SML_LIMBS_MAX_ELEMS];
  while (read_all(head, sizeof head)) {
    const uint32_t world_size = head[0], num_elems = head[1];
    if (world_size < 2 || world_size > 4096 || num_elems == 0 || num_elems > SML_LIMBS_MAX_ELEMS) return 2;
    for (uint32_t r = 0; r < world_size; r++)
      if (!read_all(in[r], 8 * (size_t)num_elems)) return 2;
    if (!sum_up(world_size, num_elems, head[2] != 0, out)) {
      fprintf(stderr, "one host's bits are not the network's\n");
      return 1;
    }
    if (fwrite(out, 8, num_elems, stdout) != num_elems || fflush(stdout) != 0) return 2;
  }
  return 0;
}
