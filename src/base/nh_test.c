/* SPDX-License-Identifier: Apache-2.0
 * NH is what its formula says, on any length, with every kind of vectors that this processor has: what it says of
 * itself comes from a table here. */
#include "base/nh.h"

#include "base/test_registers.h"

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
#include "base/nh.c"
#endif

static const struct sml_key KEY = {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)};

static uint32_t word_at(const uint8_t *message, size_t num_bytes, size_t word) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; i++)
    if (4 * word + i < num_bytes) value |= (uint32_t)message[4 * word + i] << (8 * i);
  return value;
}

/* The formula, word by word. */
static void expect(const struct sml_nh_key *key, const uint8_t *message, size_t num_bytes, const uint8_t *digest) {
  for (uint32_t pass = 0; pass < 2; pass++) {
    uint64_t sum = 0, got = 0;
    for (size_t i = 0; 4 * i < num_bytes; i += 2) {
      const uint32_t low = word_at(message, num_bytes, i) + key->words[i + 2 * pass];
      const uint32_t high = word_at(message, num_bytes, i + 1) + key->words[i + 1 + 2 * pass];
      sum += (uint64_t)low * high;
    }
    for (uint32_t i = 0; i < 8; i++) got |= (uint64_t)digest[8 * pass + i] << (8 * i);
    if (got != sum) fail_msg("pass %u of %zu bytes", pass, num_bytes);
  }
}

/* Messages in memory of exactly their length, so that a sanitizer sees a read beyond it. */
static void check(struct sml_prng *prng, const struct sml_nh_key *key, size_t num_bytes) {
  uint8_t *message = calloc(num_bytes + 1, 1), *digests = malloc(sml_nh_num_runs(num_bytes) * SML_NH_DIGEST_BYTES + 1);
  for (size_t i = 0; i < num_bytes; i++) message[i] = (uint8_t)sml_prng_next(prng);
  sml_nh(key, message, num_bytes, digests);
  if (!has_clean_vectors()) fail_msg("%zu bytes leave wide vectors", num_bytes);
  for (size_t run = 0; run < sml_nh_num_runs(num_bytes); run++) {
    const size_t at = run * SML_NH_RUN_BYTES, rest = num_bytes - at;
    expect(key, message + at, rest < SML_NH_RUN_BYTES ? rest : SML_NH_RUN_BYTES, digests + run * SML_NH_DIGEST_BYTES);
  }
  free(message);
  free(digests);
}

static void check_all(void) {
  struct sml_prng prng = {.state = 7};
  struct sml_nh_key key;
  for (uint32_t i = 0; i < SML_ARRAY_LEN(key.words); i++) key.words[i] = (uint32_t)sml_prng_next(&prng);
  for (size_t num_bytes = 0; num_bytes < 300; num_bytes++) check(&prng, &key, num_bytes);
  for (size_t num_bytes = SML_NH_RUN_BYTES - 70; num_bytes < SML_NH_RUN_BYTES + 70; num_bytes++)
    check(&prng, &key, num_bytes);
  for (uint32_t i = 0; i < 50; i++) check(&prng, &key, sml_prng_below(&prng, 9000));
  check(&prng, &key, 65535);
}

static void is_the_formula(void **state) {
  (void)state;
#if defined(__x86_64__)
  static const struct {
    const char *what;
    unsigned int ecx_1, ebx_7;
    bool has_leaf_1, has_leaf_7;
    int which;
  } rows[] = {{"nothing", 0, 0, true, true, PORTABLE},
              {"no leaf 1", bit_OSXSAVE, bit_AVX2 | bit_AVX512F, false, true, PORTABLE},
              {"no leaf 7", bit_OSXSAVE, bit_AVX2 | bit_AVX512F, true, false, PORTABLE},
              {"the system saves none", 0, bit_AVX2 | bit_AVX512F, true, true, PORTABLE},
              {"short vectors only", bit_OSXSAVE, 0, true, true, PORTABLE},
              {"AVX2", bit_OSXSAVE, bit_AVX2, true, true, SHORT_VECTORS},
              {"AVX-512", bit_OSXSAVE, bit_AVX2 | bit_AVX512F, true, true, LONG_VECTORS}};
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    told_ecx_1 = rows[i].ecx_1, told_ebx_7 = rows[i].ebx_7;
    has_leaf_1 = rows[i].has_leaf_1, has_leaf_7 = rows[i].has_leaf_7;
    if (rows[i].which == SHORT_VECTORS && !has_real(false)) continue;
    if (rows[i].which == LONG_VECTORS && !has_real(true)) continue;
    if (rows[i].has_leaf_1 && rows[i].ecx_1 != 0 && !has_real(false)) continue; /* it would ask what is saved */
    atomic_store(&chosen, NOT_ASKED);
    if (choice() != rows[i].which) fail_msg("%s: %d", rows[i].what, choice());
    check_all();
  }
#else
  check_all();
#endif
}

/* Every word of the message counts, in both passes, and so does the key. */
static void each_bit_counts(void **state) {
  (void)state;
  struct sml_nh_key key, other;
  const struct sml_key other_key = {KEY.k0 ^ 1, KEY.k1};
  uint8_t message[SML_NH_RUN_BYTES] = {0}, digest[SML_NH_DIGEST_BYTES], changed[SML_NH_DIGEST_BYTES];
  sml_nh_key_derive(&key, &KEY);
  sml_nh_key_derive(&other, &other_key);
  sml_nh(&key, message, sizeof message, digest);
  for (uint32_t bit = 0; bit < 8 * sizeof message; bit++) {
    message[bit / 8] ^= (uint8_t)(1u << bit % 8);
    sml_nh(&key, message, sizeof message, changed);
    assert_memory_not_equal(digest, changed, 8);
    assert_memory_not_equal(digest + 8, changed + 8, 8);
    message[bit / 8] ^= (uint8_t)(1u << bit % 8);
  }
  sml_nh(&other, message, sizeof message, changed);
  assert_memory_not_equal(digest, changed, 8);
  assert_memory_not_equal(digest + 8, changed + 8, 8);
}

/* 129 words of 64 bits, as docs/PROTOCOL.md has them. */
static void the_key_is_derived(void **state) {
  (void)state;
  struct sml_nh_key key;
  sml_nh_key_derive(&key, &KEY);
  const struct sml_key own = sml_key_derive(&KEY, "switchml digests", NULL, 0);
  for (uint8_t i = 0; i < 129; i++) {
    const uint8_t counter[8] = {i};
    const uint64_t word = sml_siphash(&own, counter, sizeof counter);
    assert_int_equal(key.words[2 * i], (uint32_t)word);
    assert_int_equal(key.words[2 * i + 1], word >> 32);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(is_the_formula), cmocka_unit_test(each_bit_counts),
                                     cmocka_unit_test(the_key_is_derived)};
  return cmocka_run_group_tests_name("nh", tests, NULL, NULL);
}
