/* SPDX-License-Identifier: Apache-2.0
 * Exact mode's codes and lanes, as an aggregator may say them. Input: type, ranks, elements and average, then what
 * codes, lanes and, of two ranks, inputs consist of. Whatever the codes are, limbs do not overlap; all kernels make the
 * same of any lanes; and what two ranks put together is the sum that short exact sums give, which are other code. */
#include "quant/exact.h"

#include "fuzz/fuzz.h"

#define MAX_LANES (SML_BLOCK_ELEMS * (SML_EXACT_MAX_LIMBS + 2))

static const struct sml_quant_kernels *const *all_kernels(void) {
  static const struct sml_quant_kernels *found[4];
  static const char *const names[] = {"scalar", "avx2", "avx512", "neon"};
  for (size_t i = 0; i < SML_ARRAY_LEN(names); i++) found[i] = sml_quant_select(names[i]);
  return found;
}

/* A few bytes again and again: inputs stay short. */
static void fill(void *to, size_t num_bytes, struct fuzz_input *in) {
  uint8_t pattern[64], *bytes = to;
  const size_t num = 1 + fuzz_below(in, sizeof pattern);
  for (size_t i = 0; i < num; i++) pattern[i] = fuzz_u8(in);
  for (size_t i = 0; i < num_bytes; i++) bytes[i] = pattern[i % num];
}

static void check_layout(const struct sml_exact *e, const struct sml_exact_layout *layout) {
  const uint32_t num_counts = (uint32_t)layout->counts_specials + (uint32_t)layout->counts_zeros;
  CHECK(layout->num_limbs <= SML_EXACT_MAX_LIMBS, "%u limbs", layout->num_limbs);
  CHECK(layout->num_lanes == layout->num_limbs + num_counts, "%u lanes", layout->num_lanes);
  for (uint32_t limb = 1; limb < layout->num_limbs; limb++)
    CHECK(layout->positions[limb] >= layout->positions[limb - 1] + e->limb_bits, "limb %u overlaps", limb);
}

static void round_in_all_kernels(struct sml_exact *e, const struct sml_exact_layout *layout, uint8_t *result,
                                 const int32_t *lanes, size_t num_elems, bool average) {
  uint8_t other[8 * SML_BLOCK_ELEMS];
  for (size_t k = 0; k < 4; k++) {
    e->kernels = all_kernels()[k];
    sml_exact_round(e, layout, k == 0 ? result : other, lanes, num_elems, average);
    CHECK(k == 0 || memcmp(result, other, num_elems * e->elem_bytes) == 0, "%s", e->kernels->name);
  }
}

static void take_any_sums(struct sml_exact *e, struct fuzz_input *in, size_t num_elems, bool average) {
  static int32_t lanes[MAX_LANES];
  uint8_t result[8 * SML_BLOCK_ELEMS];
  int32_t codes[SML_EXACT_MAX_LIMBS];
  struct sml_exact_layout layout;
  fill(codes, sizeof codes, in);
  sml_exact_lay_out(e, &layout, codes);
  check_layout(e, &layout);
  fill(lanes, 4 * num_elems * layout.num_lanes, in);
  round_in_all_kernels(e, &layout, result, lanes, num_elems, average);
}

static void sum_two(struct sml_exact *e, struct fuzz_input *in, size_t num_elems, bool average) {
  static int32_t lanes[MAX_LANES], sums[MAX_LANES];
  uint8_t inputs[2][8 * SML_BLOCK_ELEMS], result[8 * SML_BLOCK_ELEMS], expected[8 * SML_BLOCK_ELEMS];
  int32_t code[SML_EXACT_MAX_LIMBS], codes[SML_EXACT_MAX_LIMBS] = {0};
  struct sml_exact_layout layout;
  for (uint32_t rank = 0; rank < 2; rank++) {
    fill(inputs[rank], num_elems * e->elem_bytes, in);
    e->kernels = all_kernels()[fuzz_below(in, 4)];
    sml_exact_code(e, code, inputs[rank], num_elems);
    for (uint32_t l = 0; l < e->code_lanes; l++) codes[l] = (int32_t)((uint32_t)codes[l] + (uint32_t)code[l]);
  }
  sml_exact_lay_out(e, &layout, codes);
  check_layout(e, &layout);
  for (uint32_t rank = 0; rank < 2; rank++) {
    e->kernels = all_kernels()[fuzz_below(in, 4)];
    sml_exact_put(e, &layout, rank == 0 ? sums : lanes, inputs[rank], num_elems);
  }
  for (size_t l = 0; l < num_elems * layout.num_lanes; l++) sums[l] = (int32_t)((uint32_t)sums[l] + (uint32_t)lanes[l]);
  round_in_all_kernels(e, &layout, result, sums, num_elems, average);
  const struct sml_format *f = sml_format_find(e->type, (struct sml_format_shape){.has_exponents = false});
  f->reduce(&sml_quant_scalar, expected, (const void *const[]){inputs[0], inputs[1]}, 2, num_elems, average);
  CHECK(memcmp(result, expected, num_elems * e->elem_bytes) == 0, "type %u: not the exact sum", e->type);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  static const uint32_t types[] = {SML_FORMAT_FLOAT32, SML_FORMAT_FLOAT64, SML_FORMAT_FLOAT16, SML_FORMAT_BFLOAT16};
  struct fuzz_input in = {.at = data, .end = data + num_bytes};
  const uint32_t type = types[fuzz_below(&in, 4)], num_ranks = 2 + fuzz_u16(&in) % 4095;
  const size_t num_elems = fuzz_below(&in, 4) != 0 ? SML_BLOCK_ELEMS : 1 + fuzz_below(&in, 255);
  const bool average = fuzz_below(&in, 2) != 0;
  struct sml_exact e;
  sml_exact_init(&e, type, num_ranks, &sml_quant_scalar);
  take_any_sums(&e, &in, num_elems, average);
  sml_exact_init(&e, type, 2, &sml_quant_scalar);
  sum_two(&e, &in, num_elems, average);
  return 0;
}
