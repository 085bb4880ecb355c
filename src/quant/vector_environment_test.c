/* SPDX-License-Identifier: Apache-2.0
 * Every implementation under every floating point environment of the caller: the bits of the scalar one under the usual
 * environment, and the environment stays as it is; upper parts of vectors are cleared. */
#include "quant/test_vector_patterns.h"

#include "base/test_registers.h"

/* The caller's floating point environment: mode and sticky flags. 32 modes: rounding, results and operands that are
 * denormal flushed (or NaNs made default ones), and every exception masked or trapped; 0 is the usual one. */
#if defined(__x86_64__)
static uint64_t get_environment(void) {
  uint32_t mxcsr;
  __asm__ volatile("stmxcsr %0" : "=m"(mxcsr) : : "memory");
  return mxcsr;
}

static void set_environment(uint64_t environment) {
  const uint32_t mxcsr = (uint32_t)environment;
  __asm__ volatile("ldmxcsr %0" : : "m"(mxcsr) : "memory");
}

static uint64_t environment_of(uint32_t mode, uint32_t flags) {
  return (mode & 3) << 13 | (mode & 4) << 13 | (mode & 8) << 3 | (mode & 16 ? 0 : 0x1f80) | flags;
}
#elif defined(__aarch64__)
static uint64_t get_environment(void) {
  uint64_t control, flags;
  __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(control), "=r"(flags) : : "memory");
  return control | flags << 32;
}

static void set_environment(uint64_t environment) {
  const uint64_t control = environment & UINT32_MAX, flags = environment >> 32;
  __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(control), "r"(flags) : "memory");
}

static uint64_t environment_of(uint32_t mode, uint32_t flags) {
  return (mode & 15) << 22 | (mode & 16 ? 0x9f00 : 0) | (uint64_t)((flags & 31) | (flags & 32) << 2) << 32;
}
#endif

/* One kernel call under a caller's environment, which must stay as it is. Nothing else happens there: printing may
 * use floating point. */
enum kernel_under { QUANTIZE, DEQUANTIZE, PACK, UNPACK, REDUCE, DEQUANTIZE_16, WIDEN, EXACT };
static bool run_under(uint64_t environment, const struct sml_quant_kernels *k, enum kernel_under which, void *out,
                      const void *in, uint8_t code, bool average) {
  const enum sml_elem elem = code % 2 == 0 ? SML_ELEM_FLOAT16 : SML_ELEM_BFLOAT16;
  static const enum sml_elem elems[] = {SML_ELEM_FLOAT32, SML_ELEM_FLOAT16, SML_ELEM_BFLOAT16};
  const void *const inputs[] = {in, (const uint8_t *)in + 2 * BATCH_ELEMS, in};
  uint64_t own = get_environment();
  set_environment(environment);
  uint64_t before = get_environment(); /* a processor need not have every trap */
  switch (which) {                     /* with a tail */
    case QUANTIZE: k->quantize(out, in, BATCH_ELEMS - 1, code, 3); break;
    case DEQUANTIZE: k->dequantize(out, in, BATCH_ELEMS - 1, code, 3, average); break;
    case PACK: k->pack(out, in, BATCH_ELEMS - 1, elem, code, 3); break;
    case UNPACK: k->unpack(out, in, BATCH_ELEMS - 1, elem, code, 3, average); break;
    case REDUCE: k->reduce_packed(out, inputs, 3, BATCH_ELEMS - 1, elem, average); break;
    case DEQUANTIZE_16: k->dequantize_16(out, in, BATCH_ELEMS - 1, elem, code, 3, average); break;
    case WIDEN: k->widen(out, in, BATCH_ELEMS - 1, elem); break;
    case EXACT:
      k->exact_floats(out, in, 1 + code / 4 % 3, &(const int32_t[]){-149, -121, -93, -65}[code > 27], elems[code % 3],
                      code < 40 ? 1 : 1 + code % 5);
      k->exact_limbs((int32_t *)out + SML_BLOCK_ELEMS, in, (const uint16_t[]){code, code + 28}, 2, 28, 23);
      (void)k->exact_cells((uint64_t *)out + 2 * SML_BLOCK_ELEMS, in, 23);
      break;
  }
  uint64_t after = get_environment();
  const bool is_clean = has_clean_vectors();
  set_environment(own);
  return is_clean && after == before;
}

static void check_environment(uint64_t environment, const struct sml_quant_kernels *k, const uint32_t *words) {
  static const uint8_t codes[] = {0, 27, 28, 29, 30, 31, 32, 33, 40, 127, 200, 253, 254, 255};
  static const enum kernel_under of_elems[] = {QUANTIZE, PACK, REDUCE, WIDEN};
  static const enum kernel_under of_lanes[] = {DEQUANTIZE, UNPACK, DEQUANTIZE_16};
  static float in[BATCH_ELEMS];
  _Static_assert(BATCH_ELEMS >= 4 * SML_BLOCK_ELEMS + 2, "room for all that EXACT gives");
  static uint32_t got[BATCH_ELEMS], expected[BATCH_ELEMS];
  for (size_t c = 0; c < SML_ARRAY_LEN(codes); c++) {
    uint32_t near[BATCH_ELEMS];
    memcpy(near, words, sizeof near);
    if (codes[c] != 0 && codes[c] != 255) bring_near(near, codes[c]);
    memcpy(in, near, sizeof in);
    for (size_t which = 0; which < SML_ARRAY_LEN(of_elems); which++) {
      run_under(environment_of(0, 0), &sml_quant_scalar, of_elems[which], expected, in, codes[c], false);
      assert_true(run_under(environment, k, of_elems[which], got, in, codes[c], false));
      assert_memory_equal(got, expected, sizeof got);
    }
    if (k->exact_floats != NULL) { /* exact_test compares with what the scalar one does */
      run_under(environment_of(0, 0), k, EXACT, expected, in, codes[c], false);
      assert_true(run_under(environment, k, EXACT, got, in, codes[c], false));
      assert_memory_equal(got, expected, sizeof got);
    }
    memcpy(near, words, sizeof near);
    shrink_sums(near, 3);
    for (size_t which = 0; which < 2 * SML_ARRAY_LEN(of_lanes); which++) {
      const enum kernel_under kernel = of_lanes[which / 2];
      run_under(environment_of(0, 0), &sml_quant_scalar, kernel, expected, near, codes[c], which % 2 != 0);
      assert_true(run_under(environment, k, kernel, got, near, codes[c], which % 2 != 0));
      assert_memory_equal(got, expected, sizeof got);
    }
  }
}

static void every_floating_point_environment(void **state) {
  (void)state;
  static uint32_t words[BATCH_ELEMS];
  uint32_t pattern = 5;
  for (uint32_t mode = 0; mode < 32; mode++) {
    fill_patterns(words, &pattern);
    check_environment(environment_of(mode, 0), &sml_quant_scalar, words);
    for (size_t k = 0; k < num_tested; k++) check_environment(environment_of(mode, 0), tested[k], words);
  }
}

static void sticky_exception_flags_stay(void **state) {
  (void)state;
  static uint32_t words[BATCH_ELEMS];
  uint32_t pattern = 6;
  fill_patterns(words, &pattern);
  for (uint32_t flags = 0; flags < 64; flags++)
    for (size_t k = 0; k < num_tested; k++) check_environment(environment_of(0, flags), tested[k], words);
}

int main(void) {
  select_kernels();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_floating_point_environment),
      cmocka_unit_test(sticky_exception_flags_stay),
  };
  return cmocka_run_group_tests_name("quant environment", tests, NULL, NULL);
}
