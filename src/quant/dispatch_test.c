/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

#include "quant/kernels.h"

#if SML_QUANT_HAS_X86
#include <cpuid.h>

/* Which clang's library does not know. */
static bool has_f16c(void) {
  uint32_t eax, ebx, ecx = 0, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C) != 0;
}
#endif

/* As the compiler's library finds it. */
static bool has(const char *name) {
#if SML_QUANT_HAS_X86
  if (strcmp(name, "avx2") == 0) return __builtin_cpu_supports("avx2") && has_f16c();
  if (strcmp(name, "avx512") == 0) {
    return has_f16c() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  }
#endif
  if (strcmp(name, "neon") == 0) return SML_QUANT_HAS_NEON;
  return strcmp(name, "scalar") == 0;
}

static const char *const names[] = {"avx512", "avx2", "neon", "scalar"};

static const char *best_name(void) {
  size_t i = 0;
  while (!has(names[i])) i++;
  return names[i];
}

static void no_preference_gives_the_best(void **state) {
  (void)state;
  assert_string_equal(sml_quant_select(NULL)->name, best_name());
}

static void a_name_is_obeyed_if_possible(void **state) {
  (void)state;
  assert_ptr_equal(sml_quant_select("scalar"), &sml_quant_scalar);
  for (size_t i = 0; i < SML_ARRAY_LEN(names); i++)
    assert_string_equal(sml_quant_select(names[i])->name, has(names[i]) ? names[i] : best_name());
}

static void an_unknown_name_is_no_preference(void **state) {
  (void)state;
  const char *unknown[] = {"", "scala", "scalars", "avx", "avx22", "AVX2", "avx512f", "neon2"};
  for (size_t i = 0; i < SML_ARRAY_LEN(unknown); i++)
    assert_string_equal(sml_quant_select(unknown[i])->name, best_name());
}

static void the_environment_has_no_say(void **state) {
  (void)state;
  setenv("SWITCHML_QUANT", "scalar", 1);
  assert_string_equal(sml_quant_select(NULL)->name, best_name());
}

static void every_kernel_is_there(void **state) {
  (void)state;
  for (size_t i = 0; i < SML_ARRAY_LEN(names); i++) {
    const struct sml_quant_kernels *k = sml_quant_select(names[i]);
    assert_non_null(k->block_code);
    assert_non_null(k->quantize);
    assert_non_null(k->dequantize);
    assert_non_null(k->pack_int32);
    assert_non_null(k->unpack_int32);
    assert_non_null(k->set_int32);
    assert_non_null(k->add_int32);
    assert_non_null(k->combine);
    assert_non_null(k->max_uint8);
    assert_non_null(k->quantize_add);
    assert_non_null(k->pack_add_int32);
    assert_non_null(k->reduce_floats);
    assert_non_null(k->reduce_int32);
    assert_non_null(k->check_lanes);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_preference_gives_the_best),
      cmocka_unit_test(a_name_is_obeyed_if_possible),
      cmocka_unit_test(an_unknown_name_is_no_preference),
      cmocka_unit_test(the_environment_has_no_say),
      cmocka_unit_test(every_kernel_is_there),
  };
  return cmocka_run_group_tests_name("quant dispatch", tests, NULL, NULL);
}
