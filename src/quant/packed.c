/* SPDX-License-Identifier: Apache-2.0
 * The reference, as scalar.c is. */
#include "quant/packed.h"

#include "quant/elem.h"

uint8_t sml_packed_block_code_16(const void *in, size_t num_elems, enum sml_elem elem) {
  const uint8_t *from = in;
  uint32_t largest = 0;
  for (size_t i = 0; i < num_elems; i++) largest = sml_max_u32(largest, sml_load_16(from + 2 * i) & 0x7fff);
  return sml_quant_code_of(elem == SML_ELEM_FLOAT16 ? sml_float16_widened(largest) : largest << 16);
}

/* What a rank contributes to a block's lanes. */
struct part {
  const uint8_t *from;
  size_t num_elems, elem_bytes;
  enum sml_elem elem;
  uint8_t code;
  int32_t shift;
  uint32_t limit;
};

static struct part make_part(const void *in, size_t num_elems, enum sml_elem elem, uint8_t code, uint32_t world_size) {
  return (struct part){.from = in,
                       .num_elems = num_elems,
                       .elem_bytes = sml_elem_bytes(elem),
                       .elem = elem,
                       .code = code,
                       .shift = sml_packed_shift(code, world_size),
                       .limit = sml_packed_limit(world_size)};
}

static uint32_t quantized(const struct part *p, size_t i) {
  if (i >= p->num_elems) return 0;
  return sml_quantize_bits(sml_elem_widened(p->from + p->elem_bytes * i, p->elem), p->code, p->shift, p->limit);
}

void sml_packed_put(void *lanes, const void *in, size_t num_elems, enum sml_elem elem, uint8_t code,
                    uint32_t world_size) {
  memset(lanes, 0, 4 * sml_packed_lanes(num_elems));
  sml_packed_add(lanes, in, num_elems, elem, code, world_size);
}

void sml_packed_add(void *lanes, const void *in, size_t num_elems, enum sml_elem elem, uint8_t code,
                    uint32_t world_size) {
  if (!sml_quant_is_scaled(code)) return;
  const struct part part = make_part(in, num_elems, elem, code, world_size);
  const size_t num_lanes = sml_packed_lanes(num_elems);
  uint8_t *to = lanes;
  for (size_t i = 0; i < num_lanes; i++) {
    const uint32_t lane = sml_packed_lane(quantized(&part, i), quantized(&part, i + num_lanes));
    sml_store_be32(to + 4 * i, sml_load_be32(to + 4 * i) + lane);
  }
}

void sml_packed_get(void *out, const void *lanes, size_t num_elems, enum sml_elem elem, uint8_t code,
                    uint32_t world_size, bool average) {
  uint8_t *to = out;
  const uint8_t *from = lanes;
  const size_t num_lanes = sml_packed_lanes(num_elems), elem_bytes = sml_elem_bytes(elem);
  if (!sml_quant_is_scaled(code)) {
    sml_elem_fill(to, num_elems, code, elem);
    return;
  }
  const int32_t shift = sml_packed_shift(code, world_size);
  const uint32_t divisor = average ? world_size : 1;
  for (size_t i = 0; i < num_elems; i++) {
    const uint32_t lane = sml_load_be32(from + 4 * (i < num_lanes ? i : i - num_lanes));
    const uint32_t sum = i < num_lanes ? sml_packed_high(lane) : sml_packed_low(lane);
    sml_elem_store(to + elem_bytes * i, sml_elem_of_sum(sum, shift, divisor, elem), elem);
  }
}

static uint8_t code_of_part(const void *in, size_t num_elems, enum sml_elem elem) {
  return elem == SML_ELEM_FLOAT32 ? sml_quant_scalar.block_code(in, num_elems)
                                  : sml_packed_block_code_16(in, num_elems, elem);
}

void sml_packed_reduce(void *out, const void *const *in, uint32_t num_inputs, size_t num_elems, enum sml_elem elem,
                       bool average) {
  uint8_t *to = out, code = SML_CODE_ZERO;
  const size_t elem_bytes = sml_elem_bytes(elem);
  for (uint32_t w = 0; w < num_inputs; w++) code = (uint8_t)sml_max_u32(code, code_of_part(in[w], num_elems, elem));
  if (!sml_quant_is_scaled(code)) {
    sml_elem_fill(to, num_elems, code, elem);
    return;
  }
  for (size_t i = 0; i < num_elems; i++) {
    uint32_t sum = 0;
    for (uint32_t w = 0; w < num_inputs; w++) {
      const struct part part = make_part(in[w], num_elems, elem, code, num_inputs);
      sum += quantized(&part, i);
    }
    sml_elem_store(to + elem_bytes * i,
                   sml_elem_of_sum(sum, sml_packed_shift(code, num_inputs), average ? num_inputs : 1, elem), elem);
  }
}

void sml_packed_widen(float *out, const void *in, size_t num_elems, enum sml_elem elem) {
  uint8_t *to = (uint8_t *)out;
  const uint8_t *from = in;
  for (size_t i = 0; i < num_elems; i++) {
    const uint32_t bits = sml_elem_widened(from + 2 * i, elem);
    memcpy(to + 4 * i, &bits, sizeof bits);
  }
}

void sml_packed_dequantize_16(void *out, const void *lanes, size_t num_elems, enum sml_elem elem, uint8_t code,
                              uint32_t world_size, bool average) {
  uint8_t *to = out;
  const uint8_t *from = lanes;
  if (!sml_quant_is_scaled(code)) {
    sml_elem_fill(to, num_elems, code, elem);
    return;
  }
  const int32_t shift = sml_quant_shift(code, world_size);
  const uint32_t divisor = average ? world_size : 1;
  for (size_t i = 0; i < num_elems; i++)
    sml_elem_store(to + 2 * i, sml_elem_of_sum(sml_load_be32(from + 4 * i), shift, divisor, elem), elem);
}
