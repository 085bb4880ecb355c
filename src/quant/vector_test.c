/* SPDX-License-Identifier: Apache-2.0
 * Every implementation that this processor has against the scalar one, bit for bit: many patterns, and short
 * and unaligned buffers that end at a guard page. */
#include "quant/test_vector_patterns.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/test_skip.h"

static void block_codes_agree(void **state) {
  (void)state;
  SKIP_IF_SCALAR_ONLY();
  static uint32_t words[BATCH_ELEMS];
  uint32_t pattern = 1;
  for (int round = 0; round < 4000; round++) {
    fill_patterns(words, &pattern);
    /* Small exponents, or nearly every block would hold a NaN. */
    uint32_t mask = UINT32_C(0x80ffffff) | (uint32_t)round << 24;
    for (size_t i = 0; i < BATCH_ELEMS; i++) words[i] &= mask;
    float in[BATCH_ELEMS];
    memcpy(in, words, sizeof in);
    size_t at = (size_t)round % 64;
    for (size_t elems = 1; at + elems <= BATCH_ELEMS; at += elems, elems = elems * 2 + 1) {
      const uint8_t expected = sml_quant_scalar.block_code(in + at, elems);
      for (size_t k = 0; k < num_tested; k++) {
        if (tested[k]->block_code(in + at, elems) == expected) continue;
        fail_msg("%s, round %d: %zu elements at %zu", tested[k]->name, round, elems, at);
      }
    }
  }
}

static void compare_quantize(const uint32_t *words, uint8_t code, uint32_t n) {
  static uint8_t expected[4 * BATCH_ELEMS], got[4 * BATCH_ELEMS];
  static float in[BATCH_ELEMS];
  memcpy(in, words, sizeof in);
  sml_quant_scalar.quantize(expected, in, BATCH_ELEMS, code, n);
  for (size_t k = 0; k < num_tested; k++) {
    tested[k]->quantize(got, in, BATCH_ELEMS, code, n);
    if (memcmp(got, expected, sizeof got) == 0) continue;
    for (size_t i = 0; i < BATCH_ELEMS; i++) {
      uint32_t g = sml_load_be32(got + 4 * i), e = sml_load_be32(expected + 4 * i);
      if (g == e) continue;
      fail_msg("%s: x %08x code %u n %u: %d, not %d", tested[k]->name, words[i], code, n, (int32_t)g, (int32_t)e);
    }
  }
}

static void quantize_agrees(void **state) {
  (void)state;
  SKIP_IF_SCALAR_ONLY();
  static uint32_t words[BATCH_ELEMS];
  uint32_t pattern = 2;
  for (uint32_t round = 0; round < 12288; round++) { /* 50 M patterns; every code 48 times */
    fill_patterns(words, &pattern);
    uint8_t code = (uint8_t)round;
    if (round & 0x300) bring_near(words, code);
    compare_quantize(words, code, worlds[round / 256 % SML_ARRAY_LEN(worlds)]);
  }
}

static void compare_dequantize(const uint32_t *words, uint8_t code, uint32_t n, bool average) {
  static float expected[BATCH_ELEMS], got[BATCH_ELEMS];
  sml_quant_scalar.dequantize(expected, words, BATCH_ELEMS, code, n, average);
  for (size_t k = 0; k < num_tested; k++) {
    tested[k]->dequantize(got, words, BATCH_ELEMS, code, n, average);
    if (memcmp(got, expected, sizeof got) == 0) continue;
    for (size_t i = 0; i < BATCH_ELEMS; i++) {
      if (memcmp(got + i, expected + i, 4) == 0) continue;
      fail_msg("%s: sum %d code %u n %u average %d: %a, not %a", tested[k]->name, (int32_t)sml_load_be32(words + i),
               code, n, average, (double)got[i], (double)expected[i]);
    }
  }
}

static void walk_dequantize(bool average, uint32_t num_rounds) {
  static uint32_t words[BATCH_ELEMS];
  uint32_t pattern = 3;
  for (uint32_t round = 0; round < num_rounds; round++) {
    uint32_t n = worlds[round / 256 % SML_ARRAY_LEN(worlds)];
    fill_patterns(words, &pattern);
    if (round & 0x100) shrink_sums(words, n);
    compare_dequantize(words, (uint8_t)round, n, average);
  }
}

static void dequantized_sums_agree(void **state) {
  (void)state;
  SKIP_IF_SCALAR_ONLY();
  walk_dequantize(false, 8192); /* 33 M */
}

static void dequantized_averages_agree(void **state) {
  (void)state;
  SKIP_IF_SCALAR_ONLY();
  walk_dequantize(true, 8192); /* 33 M */
}

static void averages_agree_for_every_world_size(void **state) {
  (void)state;
  SKIP_IF_SCALAR_ONLY();
  static uint32_t words[BATCH_ELEMS];
  uint32_t pattern = 4;
  for (uint32_t n = 1; n <= SML_QUANT_MAX_WORLD_SIZE; n++) {
    if (n % 8 == 1) {
      fill_patterns(words, &pattern);
      shrink_sums(words, n);
    }
    uint8_t code = (uint8_t)(n % 2 == 0 ? SML_CODE_MIN + n % 16 : SML_CODE_MIN + n % 228);
    compare_dequantize(words, code, n, true);
  }
}

/* ---- 16-bit types, and two elements a lane ---- */

static const char *const elem_names[] = {"float32", "float16", "bfloat16"};
static const uint32_t packed_worlds[] = {2, 3, 4, 5, 6, 7, 8, 13, 16, 30, 64, 100, 127, 128};
static const uint8_t edge_codes[] = {0, 26, 27, 28, 31, 32, 40, 102, 103, 112, 127, 141, 142, 200, 253, 254, 255};

/* Each code often, those at the edges (of float16 as well) more often. */
static uint8_t code_of_round(uint32_t round) {
  return round % 2 == 0 ? (uint8_t)(round / 2) : edge_codes[round / 2 % SML_ARRAY_LEN(edge_codes)];
}

static void every_16_bit_pattern_is_widened_alike(void **state) {
  (void)state;
  SKIP_IF_SCALAR_ONLY();
  static uint16_t in[BATCH_ELEMS];
  static float expected[BATCH_ELEMS], got[BATCH_ELEMS];
  for (int elem = SML_ELEM_FLOAT16; elem <= SML_ELEM_BFLOAT16; elem++) {
    for (uint32_t first = 0; first < 65536; first += BATCH_ELEMS) {
      for (uint32_t i = 0; i < BATCH_ELEMS; i++) in[i] = (uint16_t)(first + i);
      sml_quant_scalar.widen(expected, in, BATCH_ELEMS, (enum sml_elem)elem);
      for (size_t k = 0; k < num_tested; k++) {
        tested[k]->widen(got, in, BATCH_ELEMS, (enum sml_elem)elem);
        if (memcmp(got, expected, sizeof got) == 0) continue;
        fail_msg("%s, %s from %u", tested[k]->name, elem_names[elem], first);
      }
    }
  }
}

static void block_codes_of_16_bits_agree(void **state) {
  (void)state;
  SKIP_IF_SCALAR_ONLY();
  static uint32_t words[BATCH_ELEMS];
  uint32_t pattern = 7;
  for (int round = 0; round < 1000; round++) {
    fill_patterns(words, &pattern);
    const uint32_t mask = UINT32_C(0x83ff83ff) | (uint32_t)(round % 32) * UINT32_C(0x04000400); /* no Infs, often */
    for (size_t i = 0; i < BATCH_ELEMS; i++) words[i] &= mask;
    const enum sml_elem elem = round % 2 == 0 ? SML_ELEM_FLOAT16 : SML_ELEM_BFLOAT16;
    const uint8_t *in = (const uint8_t *)words;
    size_t at = (size_t)round % 64;
    for (size_t elems = 1; at + 2 * elems <= sizeof words; at += elems, elems = elems * 2 + 1) {
      const uint8_t expected = sml_quant_scalar.block_code_16(in + at, elems, elem);
      for (size_t k = 0; k < num_tested; k++) {
        if (tested[k]->block_code_16(in + at, elems, elem) == expected) continue;
        fail_msg("%s, round %d: %zu elements at %zu", tested[k]->name, round, elems, at);
      }
    }
  }
}

/* What a kernel of packed.h is asked. */
struct packed_call {
  enum sml_elem elem;
  uint8_t code;
  uint32_t world_size;
  bool average;
};

static void fail_packed(const char *what, const struct sml_quant_kernels *k, const struct packed_call *c) {
  fail_msg("%s: %s of %s, code %u, n %u, average %d", k->name, what, elem_names[c->elem], c->code, c->world_size,
           c->average);
}

/* Elements near the code's largest, or any; an odd number of them. */
static void packing_agrees(void **state) {
  (void)state;
  SKIP_IF_SCALAR_ONLY();
  static uint32_t words[BATCH_ELEMS], before[BATCH_ELEMS], expected[BATCH_ELEMS], got[BATCH_ELEMS];
  uint32_t pattern = 8;
  for (uint32_t round = 0; round < 3000; round++) {
    const struct packed_call c = {.elem = (enum sml_elem)(round % 3),
                                  .code = code_of_round(round / 3),
                                  .world_size = packed_worlds[round % SML_ARRAY_LEN(packed_worlds)]};
    const size_t num_elems = BATCH_ELEMS - 1 - round % 40;
    fill_patterns(words, &pattern);
    if (c.elem != SML_ELEM_FLOAT16 && round % 5 != 0) bring_near(words, c.code); /* bfloat16 at the odd places */
    memcpy(before, words, sizeof before);
    for (int is_adding = 0; is_adding <= 1; is_adding++) {
      memcpy(expected, before, sizeof expected);
      if (is_adding) sml_quant_scalar.pack_add(expected, words, num_elems, c.elem, c.code, c.world_size);
      else sml_quant_scalar.pack(expected, words, num_elems, c.elem, c.code, c.world_size);
      for (size_t k = 0; k < num_tested; k++) {
        memcpy(got, before, sizeof got);
        if (is_adding) tested[k]->pack_add(got, words, num_elems, c.elem, c.code, c.world_size);
        else tested[k]->pack(got, words, num_elems, c.elem, c.code, c.world_size);
        if (memcmp(got, expected, sizeof got) != 0) fail_packed(is_adding ? "pack_add" : "pack", tested[k], &c);
      }
    }
  }
}

/* Any lanes. */
static void unpacking_agrees(void **state) {
  (void)state;
  SKIP_IF_SCALAR_ONLY();
  static uint32_t lanes[BATCH_ELEMS], expected[2 * BATCH_ELEMS], got[2 * BATCH_ELEMS];
  uint32_t pattern = 9;
  for (uint32_t round = 0; round < 3000; round++) {
    const struct packed_call c = {
        .elem = (enum sml_elem)(round % 3),
        .code = code_of_round(round / 3),
        .world_size = round % 4 == 0 ? 2 + round / 4 % 127 : packed_worlds[round % SML_ARRAY_LEN(packed_worlds)],
        .average = round / 6 % 2 == 1};
    const size_t num_elems = 2 * BATCH_ELEMS - 1 - round % 40;
    fill_patterns(lanes, &pattern);
    sml_quant_scalar.unpack(expected, lanes, num_elems, c.elem, c.code, c.world_size, c.average);
    for (size_t k = 0; k < num_tested; k++) {
      tested[k]->unpack(got, lanes, num_elems, c.elem, c.code, c.world_size, c.average);
      if (memcmp(got, expected, num_elems * (c.elem == SML_ELEM_FLOAT32 ? 4 : 2)) != 0)
        fail_packed("unpack", tested[k], &c);
    }
  }
}

/* Lanes of 32 bits, each rounded once to 16. */
static void dequantizing_to_16_bits_agrees(void **state) {
  (void)state;
  SKIP_IF_SCALAR_ONLY();
  static uint32_t lanes[BATCH_ELEMS];
  static uint16_t expected[BATCH_ELEMS], got[BATCH_ELEMS];
  uint32_t pattern = 10;
  for (uint32_t round = 0; round < 4000; round++) {
    const struct packed_call c = {.elem = round % 2 == 0 ? SML_ELEM_FLOAT16 : SML_ELEM_BFLOAT16,
                                  .code = code_of_round(round / 2),
                                  .world_size = worlds[round % SML_ARRAY_LEN(worlds)],
                                  .average = round / 4 % 2 == 1};
    fill_patterns(lanes, &pattern);
    if (round % 8 < 6) shrink_sums(lanes, c.world_size);
    sml_quant_scalar.dequantize_16(expected, lanes, BATCH_ELEMS, c.elem, c.code, c.world_size, c.average);
    for (size_t k = 0; k < num_tested; k++) {
      tested[k]->dequantize_16(got, lanes, BATCH_ELEMS, c.elem, c.code, c.world_size, c.average);
      if (memcmp(got, expected, sizeof got) != 0) fail_packed("dequantize_16", tested[k], &c);
    }
  }
}

static void reductions_of_packed_elements_agree(void **state) {
  (void)state;
  SKIP_IF_SCALAR_ONLY();
  static uint32_t words[BATCH_ELEMS], expected[512], got[512];
  uint32_t pattern = 11;
  for (uint32_t round = 0; round < 600; round++) {
    const struct packed_call c = {
        .elem = (enum sml_elem)(round % 3), .world_size = 2 + round / 3 % 7, .average = round / 3 % 2 == 1};
    const size_t num_elems = 1 + round * 7 % 500;
    fill_patterns(words, &pattern);
    bring_near(words, (uint8_t)(100 + round % 60));
    if (c.elem == SML_ELEM_FLOAT16) /* hardly any is infinite */
      for (size_t i = 0; i < BATCH_ELEMS; i++) words[i] &= UINT32_C(0xbfffbfff);
    const void *in[8];
    for (uint32_t w = 0; w < 8; w++) in[w] = words + 500 * w;
    sml_quant_scalar.reduce_packed(expected, in, c.world_size, num_elems, c.elem, c.average);
    for (size_t k = 0; k < num_tested; k++) {
      tested[k]->reduce_packed(got, in, c.world_size, num_elems, c.elem, c.average);
      if (memcmp(got, expected, num_elems * (c.elem == SML_ELEM_FLOAT32 ? 4 : 2)) != 0)
        fail_packed("reduce", tested[k], &c);
    }
  }
}

/* Two pages with no access around them; `end` is the first byte that must not be touched. */
struct guarded {
  uint8_t *start, *end;
};

static struct guarded guard_pages(void) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  uint8_t *all = mmap(NULL, 4 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(all != MAP_FAILED);
  assert_int_equal(mprotect(all + page, 2 * page, PROT_READ | PROT_WRITE), 0);
  return (struct guarded){.start = all + page, .end = all + 3 * page};
}

/* Runs kernel `which` from `in` to `out`; for acc kernels, `out` holds the accumulator. */
enum { NUM_KERNELS = 27, FIRST_PACKED_KERNEL = 16 };
static void run_packed_kernel(const struct sml_quant_kernels *k, int which, void *out, const void *in, size_t elems) {
  const enum sml_elem elem = which % 2 == 0 ? SML_ELEM_FLOAT16 : SML_ELEM_BFLOAT16;
  switch (which - FIRST_PACKED_KERNEL) {
    case 0: *(uint8_t *)out = k->block_code_16(in, elems, elem); break;
    case 1:
    case 2: k->pack(out, in, elems, elem, 127, 3); break;
    case 3:
    case 4: k->pack_add(out, in, elems, elem, 127, 3); break;
    case 5:
    case 6: k->unpack(out, in, elems, elem, 127, 3, which % 2 == 0); break;
    case 7:
    case 8: k->reduce_packed(out, (const void *const[]){in, in, in}, 3, elems, elem, true); break;
    case 9: k->widen(out, in, elems, elem); break;
    default: k->dequantize_16(out, in, elems, elem, 127, 3, true); break;
  }
}

static void run_kernel(const struct sml_quant_kernels *k, int which, void *out, const void *in, size_t elems) {
  if (which >= FIRST_PACKED_KERNEL) {
    run_packed_kernel(k, which, out, in, elems);
    return;
  }
  switch (which) {
    case 0: *(uint8_t *)out = k->block_code(in, elems); break;
    case 1: k->quantize(out, in, elems, 127, 3); break;
    case 2: k->quantize(out, in, elems, 0, 3); break;
    case 3: k->dequantize(out, in, elems, 127, 3, false); break;
    case 4: k->dequantize(out, in, elems, 127, 3, true); break;
    case 5: k->dequantize(out, in, elems, 255, 3, true); break;
    case 6: k->pack_int32(out, in, elems); break;
    case 7: k->unpack_int32(out, in, elems); break;
    case 8: k->set_int32(out, in, elems); break;
    case 9: k->add_int32(out, in, elems); break;
    case 10: k->max_uint8(out, in, 4 * elems); break;
    case 11: k->max_uint8(out, in, elems); break;
    case 12: k->quantize_add(out, in, elems, 127, 3); break;
    case 13: k->pack_add_int32(out, in, elems); break;
    case 14: k->reduce_floats(out, (const float *const[]){in, in, in}, 3, elems, true); break;
    default: k->reduce_int32(out, (const int32_t *const[]){in, in, in}, 3, elems); break;
  }
}

static size_t in_bytes_of(int which, size_t elems) {
  const int packed = which - FIRST_PACKED_KERNEL;
  if (packed == 5 || packed == 6) return 4 * sml_packed_lanes(elems);
  if (packed >= 0 && packed != 10) return 2 * elems;
  return which == 11 ? elems : 4 * elems;
}

static size_t out_bytes_of(int which, size_t elems) {
  const int packed = which - FIRST_PACKED_KERNEL;
  if (which == 0 || packed == 0) return 1;
  if (packed >= 1 && packed <= 4) return 4 * sml_packed_lanes(elems);
  if (packed >= 0) return packed == 9 ? 4 * elems : 2 * elems;
  return in_bytes_of(which, elems);
}

static bool is_acc_kernel(int which) {
  return which == 8 || which == 9;
}

/* Does the kernel give the scalar result in out[0..bytes) and leave the 16 bytes on either side alone? */
static void check_short(const struct sml_quant_kernels *k, int which, size_t elems, uint8_t *in, uint8_t *out,
                        bool is_fenced_by_page) {
  uint8_t before[16], after[16];
  size_t bytes = out_bytes_of(which, elems), in_bytes = in_bytes_of(which, elems);
  for (size_t i = 0; i < in_bytes; i++) in[i] = (uint8_t)sml_mix64(i + elems);
  for (size_t i = 0; i < bytes; i++) out[i] = (uint8_t)(i * 31);
  memcpy(before, out - 16, 16);
  if (!is_fenced_by_page) memcpy(after, out + bytes, 16);
  _Alignas(64) uint8_t aligned_in[4 * MOST_SHORT_ELEMS] = {0}, expected[4 * MOST_SHORT_ELEMS] = {0};
  memcpy(aligned_in, in, in_bytes);
  memcpy(expected, out, bytes);
  run_kernel(&sml_quant_scalar, which, expected, aligned_in, elems);
  run_kernel(k, which, out, in, elems);
  if (memcmp(out, expected, bytes) != 0) fail_msg("%s %d, %zu elements: wrong result", k->name, which, elems);
  assert_memory_equal(before, out - 16, 16);
  if (!is_fenced_by_page) assert_memory_equal(after, out + bytes, 16);
}

static void short_and_unaligned_buffers(void **state) {
  (void)state;
  SKIP_IF_SCALAR_ONLY();
  struct guarded in = guard_pages(), out = guard_pages();
  for (int which = 0; which < NUM_KERNELS * (int)num_tested; which++) {
    const struct sml_quant_kernels *k = tested[which / NUM_KERNELS];
    const int kernel = which % NUM_KERNELS;
    for (size_t elems = 0; elems <= MOST_SHORT_ELEMS; elems++) {
      for (size_t shift = 0; shift < 8; shift++) {
        size_t out_shift = is_acc_kernel(kernel) ? 0 : shift * 3 % 8;
        check_short(k, kernel, elems, in.start + shift, out.start + 64 + out_shift, false);
      }
      /* An accumulator is aligned: it ends at the page only if its elements fill it to there. */
      bool reaches_page = !is_acc_kernel(kernel);
      uint8_t *fenced = reaches_page ? out.end - out_bytes_of(kernel, elems) : out.end - 4 * (MOST_SHORT_ELEMS + 15);
      check_short(k, kernel, elems, in.end - in_bytes_of(kernel, elems), fenced, reaches_page);
    }
  }
}

int main(void) {
  select_kernels();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(block_codes_agree),
      cmocka_unit_test(quantize_agrees),
      cmocka_unit_test(dequantized_sums_agree),
      cmocka_unit_test(dequantized_averages_agree),
      cmocka_unit_test(averages_agree_for_every_world_size),
      cmocka_unit_test(every_16_bit_pattern_is_widened_alike),
      cmocka_unit_test(block_codes_of_16_bits_agree),
      cmocka_unit_test(packing_agrees),
      cmocka_unit_test(unpacking_agrees),
      cmocka_unit_test(dequantizing_to_16_bits_agrees),
      cmocka_unit_test(reductions_of_packed_elements_agree),
      cmocka_unit_test(short_and_unaligned_buffers),
  };
  return cmocka_run_group_tests_name("quant vectors", tests, NULL, NULL);
}
