/* SPDX-License-Identifier: Apache-2.0
 * For tests: the implementations that this processor has beside the scalar one, and patterns for them. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "quant/kernels.h"

#define BATCH_ELEMS 4096
#define MOST_SHORT_ELEMS 81 /* five vectors of 16, and one element */

/* Under test. */
static const struct sml_quant_kernels *tested[4];
static size_t num_tested;

/* An odd stride visits all 2^32 patterns; this one spreads the first few over all exponents. */
#define STRIDE UINT32_C(2654435761)

static const uint32_t worlds[] = {2, 3, 4, 5, 7, 8, 16, 31, 64, 100, 1000, 2048, 2049, 4095, 4096};

#define SKIP_IF_SCALAR_ONLY() \
  if (num_tested == 0) SKIP_TEST("the scalar kernels are all that this processor has")

static void fill_patterns(uint32_t *words, uint32_t *pattern) {
  for (size_t i = 0; i < BATCH_ELEMS; i++) {
    words[i] = *pattern;
    *pattern += STRIDE;
  }
}

/* Exponents within the 40 up to one above the code, where quantize rounds; ties are made common. */
static void bring_near(uint32_t *words, uint8_t code) {
  for (size_t i = 0; i < BATCH_ELEMS; i++) {
    uint64_t r = sml_mix64(words[i]);
    int field = (int)code + 1 - (int)(r % 40);
    words[i] = (words[i] & UINT32_C(0x807fffff)) | (uint32_t)(field < 0 ? 0 : field) << 23;
    if (r & (1 << 20)) words[i] &= UINT32_MAX << ((r >> 32) % 24);
    if (r & (1 << 21)) words[i] |= (UINT32_C(1) << ((r >> 40) % 24)) - 1;
  }
}

/* Wire lanes of all magnitudes; every other one about a multiple of n (middles of two floats). */
static void shrink_sums(uint32_t *words, uint32_t n) {
  for (size_t i = 0; i < BATCH_ELEMS; i++) {
    uint64_t r = sml_mix64(words[i]);
    int32_t sum = (int32_t)words[i] >> (r % 32);
    if (r & 64) sum = (int32_t)((uint32_t)(sum >> 6) * n + (uint32_t)(r >> 60) - 8);
    sml_store_be32(words + i, (uint32_t)sum);
  }
}

static void select_kernels(void) {
  static const char *const names[] = {"avx512", "avx2", "neon"};
  for (size_t i = 0; i < SML_ARRAY_LEN(names); i++) {
    const struct sml_quant_kernels *kernels = sml_quant_select(names[i]);
    if (strcmp(kernels->name, names[i]) != 0) continue;
    print_message("# tested: %s\n", names[i]);
    tested[num_tested++] = kernels;
  }
}
