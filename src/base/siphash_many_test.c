/* SPDX-License-Identifier: Apache-2.0
 * SipHash of many messages side by side is that of each alone, with every kind of vectors that this processor has:
 * what it says of itself comes from a table here. */
#include "base/siphash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#if defined(__x86_64__)
#include <cpuid.h>

static unsigned int told_ecx_1, told_ebx_7;
static bool has_leaf_1 = true, has_leaf_7 = true;

static int told_cpuid(unsigned int leaf, unsigned int *b, unsigned int *c) {
  *b = leaf == 7 ? told_ebx_7 : 0;
  *c = leaf == 1 ? told_ecx_1 : 0;
  return leaf == 1 ? has_leaf_1 : has_leaf_7;
}

static bool has_real(bool is_wide) {
  unsigned int a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_OSXSAVE) == 0) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & (is_wide ? bit_AVX512F : bit_AVX2)) != 0;
}

#define __get_cpuid(leaf, a, b, c, d) (*(a) = *(d) = 0, told_cpuid(leaf, b, c))
#define __get_cpuid_count(leaf, subleaf, a, b, c, d) ((void)(subleaf), *(a) = *(d) = 0, told_cpuid(leaf, b, c))
#include "base/siphash_many.c"
#endif

#define MAX_BYTES 400u

/* Messages in memory of exactly their length, so that a sanitizer sees a read beyond it; each after a head of its own
 * length of whole words, and with its own key. */
static void check(struct sml_prng *prng, uint32_t num_messages, size_t num_bytes) {
  struct sml_siphash one[SML_SIPHASH_MANY], many[SML_SIPHASH_MANY];
  uint8_t *data[SML_SIPHASH_MANY] = {NULL};
  for (uint32_t i = 0; i < num_messages; i++) {
    const struct sml_key key = {sml_prng_next(prng), sml_prng_next(prng)};
    data[i] = malloc(num_bytes + 1);
    for (size_t k = 0; k < num_bytes; k++) data[i][k] = (uint8_t)sml_prng_next(prng);
    sml_siphash_init(&one[i], &key);
    sml_siphash_update(&one[i], "0123456789abcdef01234567", 8 * sml_prng_below(prng, 4));
    many[i] = one[i];
    sml_siphash_update(&one[i], data[i], num_bytes);
  }
  sml_siphash_update_many(many, (const uint8_t *const *)data, num_messages, num_bytes);
  for (uint32_t i = 0; i < num_messages; i++) {
    if (sml_siphash_final(&one[i]) != sml_siphash_final(&many[i]))
      fail_msg("message %u of %u, %zu bytes", i, num_messages, num_bytes);
    free(data[i]);
  }
}

static void check_all(void) {
  struct sml_prng prng = {.state = 7};
  for (uint32_t num_messages = 0; num_messages <= SML_SIPHASH_MANY; num_messages++) {
    for (size_t num_bytes = 0; num_bytes < 80; num_bytes++) check(&prng, num_messages, num_bytes);
    for (uint32_t i = 0; i < 20; i++) check(&prng, num_messages, sml_prng_below(&prng, MAX_BYTES));
  }
}

static void as_alone(void **state) {
  (void)state;
#if defined(__x86_64__)
  static const struct {
    const char *what;
    unsigned int ecx_1, ebx_7;
    bool has_leaf_1, has_leaf_7;
    int which;
  } rows[] = {{"nothing", 0, 0, true, true, ONE_BY_ONE},
              {"no leaf 1", bit_OSXSAVE, bit_AVX2 | bit_AVX512F, false, true, ONE_BY_ONE},
              {"no leaf 7", bit_OSXSAVE, bit_AVX2 | bit_AVX512F, true, false, ONE_BY_ONE},
              {"the system saves none", 0, bit_AVX2 | bit_AVX512F, true, true, ONE_BY_ONE},
              {"short vectors only", bit_OSXSAVE, 0, true, true, ONE_BY_ONE},
              {"AVX2", bit_OSXSAVE, bit_AVX2, true, true, FOUR},
              {"AVX-512", bit_OSXSAVE, bit_AVX2 | bit_AVX512F, true, true, EIGHT}};
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    told_ecx_1 = rows[i].ecx_1, told_ebx_7 = rows[i].ebx_7;
    has_leaf_1 = rows[i].has_leaf_1, has_leaf_7 = rows[i].has_leaf_7;
    if (rows[i].which == FOUR && !has_real(false)) continue;
    if (rows[i].which == EIGHT && !has_real(true)) continue;
    if (rows[i].has_leaf_1 && rows[i].ecx_1 != 0 && !has_real(false)) continue; /* it would ask what is saved */
    atomic_store(&chosen, NOT_ASKED);
    if (choice() != rows[i].which) fail_msg("%s: %d", rows[i].what, choice());
    check_all();
  }
#else
  check_all();
#endif
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(as_alone)};
  return cmocka_run_group_tests_name("siphash_many", tests, NULL, NULL);
}
