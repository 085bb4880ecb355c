/* SPDX-License-Identifier: Apache-2.0
 * Which CRC-32C a processor gets, for processors that are not here: what it says of itself comes from a table. */
#include "core/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#if defined(__x86_64__)
#include <cpuid.h>

static bool has_real_xgetbv(void) {
  unsigned int a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_OSXSAVE) != 0;
}

/* Leaf 1: ecx. Leaf 7: ebx and ecx. */
static struct {
  bool has_leaf_1, has_leaf_7;
  unsigned int ecx_1, ebx_7, ecx_7;
} processor;

static int told_cpuid(unsigned int *b, unsigned int *c) {
  *b = 0;
  *c = processor.ecx_1;
  return processor.has_leaf_1;
}
static int told_cpuid_count(unsigned int *b, unsigned int *c) {
  *b = processor.ebx_7;
  *c = processor.ecx_7;
  return processor.has_leaf_7;
}
#define __get_cpuid(leaf, a, b, c, d) ((void)(leaf), *(a) = *(d) = 0, told_cpuid(b, c))
#define __get_cpuid_count(leaf, subleaf, a, b, c, d) \
  ((void)(leaf), (void)(subleaf), *(a) = *(d) = 0, told_cpuid_count(b, c))
#include "core/crc32c.c"

#define SSE (bit_SSE4_2 | bit_PCLMUL)
#define KEPT (SSE | bit_OSXSAVE)

static void each_processor_gets_what_it_has(void **state) {
  (void)state;
  static const struct {
    bool has_leaf_1, has_leaf_7;
    unsigned int ecx_1, ebx_7, ecx_7;
    int expected;
  } rows[] = {
      {false, false, KEPT, 0, 0, PORTABLE},
      {true, true, 0, bit_AVX512F, bit_VPCLMULQDQ, PORTABLE},
      {true, true, bit_SSE4_2, bit_AVX512F, bit_VPCLMULQDQ, PORTABLE},
      {true, true, bit_PCLMUL, bit_AVX512F, bit_VPCLMULQDQ, PORTABLE},
      {true, true, SSE, bit_AVX512F, bit_VPCLMULQDQ, SSE42}, /* the system does not keep wide registers */
      {true, false, KEPT, bit_AVX512F, bit_VPCLMULQDQ, SSE42},
      {true, true, KEPT, 0, bit_VPCLMULQDQ, SSE42},
      {true, true, KEPT, bit_AVX512F, 0, SSE42},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    processor.has_leaf_1 = rows[i].has_leaf_1;
    processor.has_leaf_7 = rows[i].has_leaf_7;
    processor.ecx_1 = rows[i].ecx_1;
    processor.ebx_7 = rows[i].ebx_7;
    processor.ecx_7 = rows[i].ecx_7;
    if (find_best() != rows[i].expected) fail_msg("row %zu: %d instead of %d", i, find_best(), rows[i].expected);
  }
}

/* Whichever was chosen: the same checksum. */
static void all_give_the_same(void **state) {
  (void)state;
  uint8_t data[1500];
  struct sml_prng prng = {5};
  for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)sml_prng_next(&prng);
  processor.has_leaf_1 = false;
  assert_int_equal(sml_crc32c(0, "123456789", 9), 0xe3069283);
  assert_int_equal(chosen, PORTABLE);
  const uint32_t expected = sml_crc32c(7, data, sizeof data);
  if (!has_real_xgetbv()) return; /* nor SSE 4.2, then */
  processor.has_leaf_1 = processor.has_leaf_7 = true;
  processor.ecx_1 = SSE;
  assert_int_equal(choose(), SSE42);
  assert_int_equal(sml_crc32c(7, data, sizeof data), expected);
}
#endif

int main(void) {
  const struct CMUnitTest tests[] = {
#if defined(__x86_64__)
      cmocka_unit_test(each_processor_gets_what_it_has),
      cmocka_unit_test(all_give_the_same),
#endif
  };
  return cmocka_run_group_tests_name("crc32c_edge", tests, NULL, NULL);
}
