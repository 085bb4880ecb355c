/* SPDX-License-Identifier: Apache-2.0
 * One answer on every machine: 10^7 elements of floats, drawn by integers alone, are summed as ranks, hosts and
 * aggregators do it, by each implementation that the processor has. The checksums of the sums are those that stand
 * here: made on x86-64 by the scalar implementation, and the same on AArch64, 32 bits and big-endian machines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/test_skip.h"
#include "quant/exact.h"
#include "quant/kernels.h"
#include "quant/test_reductions.h"

#define MAX_RANKS 16u
#define TENSOR_ELEMS 130003u
#define MAX_BLOCK_LANES (SML_EXACT_MAX_LIMBS * SML_BLOCK_ELEMS)

static const struct sml_quant_kernels *kernels;

static const struct sums {
  uint32_t type, float_bits, float64_bits;
  bool is_exact;
  uint64_t checksum; /* of tensors of several numbers of ranks */
} cases[] = {{SML_FORMAT_FLOAT32, 0, 0, false, UINT64_C(0x4a1e0ded70d2f2f3)},
             {SML_FORMAT_FLOAT32, 16, 0, false, UINT64_C(0x605f65ecae4f5ff5)},
             {SML_FORMAT_FLOAT32, 0, 0, true, UINT64_C(0xc864e6c3ed1615a4)},
             {SML_FORMAT_FLOAT16, 0, 0, false, UINT64_C(0x770bc1c940a226d9)},
             {SML_FORMAT_FLOAT16, 32, 0, false, UINT64_C(0x1b1b548254230eff)},
             {SML_FORMAT_FLOAT16, 0, 0, true, UINT64_C(0x0fcab08113c0c6a4)},
             {SML_FORMAT_BFLOAT16, 0, 0, false, UINT64_C(0x61ce4988b90b334b)},
             {SML_FORMAT_BFLOAT16, 32, 0, false, UINT64_C(0x2df68d05c21cff15)},
             {SML_FORMAT_BFLOAT16, 0, 0, true, UINT64_C(0x4f3321b23dedcb17)},
             {SML_FORMAT_FLOAT64, 0, 64, false, UINT64_C(0xce9e78c7b6b4496e)},
             {SML_FORMAT_FLOAT64, 0, 96, false, UINT64_C(0xdbc26050cfaaf41a)},
             {SML_FORMAT_FLOAT64, 0, 0, true, UINT64_C(0x789df89a15ff749a)}};

/* Magnitudes around one of the neighbourhood's, some far off; now and then an Inf, a NaN or nothing. */
static uint64_t draw(uint32_t type, uint64_t seed, uint32_t rank, size_t i) {
  static const struct {
    uint32_t mantissa, exponent; /* bits */
  } layouts[] = {[SML_FORMAT_FLOAT32] = {23, 8},
                 [SML_FORMAT_FLOAT16] = {10, 5},
                 [SML_FORMAT_BFLOAT16] = {7, 8},
                 [SML_FORMAT_FLOAT64] = {52, 11}};
  const uint32_t mantissa = layouts[type].mantissa, most = (1u << layouts[type].exponent) - 1;
  const uint64_t near = sml_mix64(seed + i / 700), bits = sml_mix64(sml_mix64(seed * 31 + rank) + i);
  const uint64_t few = sml_mix64(bits);
  uint32_t field = (uint32_t)(near % most) + 8 - (uint32_t)__builtin_popcount((uint32_t)few & 0xffff);
  if (few >> 32 & 1 && most > 31) field = most / 2 + field % 16;
  if ((few >> 40) % 128 == 0) field = (uint32_t)(few >> 48) % most;
  if (field > most) field = 0;
  if (field == most && (few >> 50) % 64 != 0) field--;
  if ((few >> 24) % 200 == 0) return few & 1 ? 0 : UINT64_C(1) << (mantissa + layouts[type].exponent);
  return (bits & ((UINT64_C(1) << mantissa) - 1)) | (uint64_t)field << mantissa |
         (bits >> 63) << (mantissa + layouts[type].exponent);
}

struct block {
  uint8_t in[MAX_RANKS][8 * SML_BLOCK_ELEMS], out[8 * SML_BLOCK_ELEMS];
  size_t num_elems;
  uint32_t num_ranks;
  bool is_average;
};

static int32_t host_sums[2][MAX_BLOCK_LANES] __attribute__((aligned(64)));

/* Even ranks are one host, which adds them up in one frame, and odd ones another; an aggregator adds the two. */
static void sum_in_blocks(const struct sums *s, struct block *b) {
  static uint8_t lanes[12 * SML_BLOCK_ELEMS], reduced[8 * SML_BLOCK_ELEMS];
  const struct sml_format_options options = {.float_bits = (uint8_t)s->float_bits,
                                             .float64_bits = (uint8_t)s->float64_bits};
  const struct sml_format_shape shape = sml_format_choose(s->type, TENSOR_ELEMS, b->num_ranks, options);
  const struct sml_format *f = sml_format_find(s->type, shape);
  const size_t num_lanes = (b->num_elems * f->unit_bytes + 3) / 4;
  const void *in[MAX_RANKS];
  uint8_t code = 0;
  for (uint32_t r = 0; r < b->num_ranks; r++) {
    in[r] = b->in[r];
    const uint8_t own = f->block_code(kernels, in[r], b->num_elems);
    if (own > code) code = own;
  }
  for (uint32_t host = 0; host < 2; host++) {
    for (uint32_t r = host; r < b->num_ranks; r += 2)
      (r == host ? f->put : f->add)(kernels, lanes, in[r], b->num_elems, code, b->num_ranks);
    (host == 0 ? kernels->set_int32 : kernels->add_int32)(host_sums[0], lanes, num_lanes);
  }
  kernels->pack_int32(lanes, host_sums[0], num_lanes);
  f->get(kernels, b->out, lanes, b->num_elems, code, b->num_ranks, b->is_average);
  f->reduce(kernels, reduced, in, b->num_ranks, b->num_elems, b->is_average);
  assert_memory_equal(b->out, reduced, b->num_elems * f->elem_bytes);
}

static void sum_exactly(const struct sml_exact *e, struct block *b) {
  static int32_t codes[64], lanes[MAX_BLOCK_LANES], code_sums[64];
  struct sml_exact_layout layout;
  memset(code_sums, 0, sizeof code_sums);
  for (uint32_t r = 0; r < b->num_ranks; r++) {
    sml_exact_code(e, codes, b->in[r], b->num_elems);
    for (uint32_t l = 0; l < e->code_lanes; l++) code_sums[l] = (int32_t)((uint32_t)code_sums[l] + (uint32_t)codes[l]);
  }
  sml_exact_lay_out(e, &layout, code_sums);
  const size_t num_lanes = layout.num_lanes * b->num_elems;
  for (uint32_t host = 0; host < 2; host++) {
    for (uint32_t r = host; r < b->num_ranks; r += 2) {
      sml_exact_put(e, &layout, lanes, b->in[r], b->num_elems);
      if (r == host) memcpy(host_sums[host], lanes, num_lanes * sizeof *lanes);
      else kernels->reduce_int32(host_sums[host], (const int32_t *const[]){host_sums[host], lanes}, 2, num_lanes);
    }
  }
  for (size_t l = 0; l < num_lanes; l++) lanes[l] = (int32_t)((uint32_t)host_sums[0][l] + (uint32_t)host_sums[1][l]);
  sml_exact_round(e, &layout, b->out, lanes, b->num_elems, b->is_average);
}

/* The checksum is made of values, so that the order of their bytes has no say. */
static uint64_t sum_tensor(const struct sums *s, uint32_t num_ranks, uint64_t checksum) {
  static struct block b;
  struct sml_exact exact;
  const size_t elem_bytes = sml_format_elem_bytes(s->type);
  b.num_ranks = num_ranks;
  b.is_average = num_ranks % 3 == 0;
  sml_exact_init(&exact, s->type, num_ranks, kernels);
  assert_true(exact.code_lanes <= 64);
  for (size_t first = 0; first < TENSOR_ELEMS; first += SML_BLOCK_ELEMS) {
    b.num_elems = (size_t)sml_min_u64(SML_BLOCK_ELEMS, TENSOR_ELEMS - first);
    for (uint32_t r = 0; r < num_ranks; r++)
      for (size_t i = 0; i < b.num_elems; i++)
        reduction_store(b.in[r] + i * elem_bytes, draw(s->type, num_ranks, r, first + i), s->type);
    if (s->is_exact) sum_exactly(&exact, &b);
    else sum_in_blocks(s, &b);
    for (size_t i = 0; i < b.num_elems; i++)
      checksum = sml_mix64(checksum + reduction_load(b.out + i * elem_bytes, s->type));
  }
  return checksum;
}

static void sums_are_those_of_other_machines(void **state) {
  if (strcmp(kernels->name, *state) != 0) SKIP_TEST("this processor does not run %s", (const char *)*state);
  static const uint32_t worlds[] = {2, 3, 4, 5, 7, 8, MAX_RANKS};
  bool is_ok = true;
#if SML_IS_SLOW_BUILD && defined(__x86_64__)
  SKIP_TEST("10^7 elements take long in this build; the plain one has them");
#endif
  for (size_t i = 0; i < SML_ARRAY_LEN(cases); i++) {
    const struct sums *s = &cases[i];
    uint64_t checksum = 0;
    for (size_t n = 0; n < SML_ARRAY_LEN(worlds); n++) checksum = sum_tensor(s, worlds[n], checksum);
    if (checksum == s->checksum) continue;
    print_message("# type %u, float_bits %u, float64_bits %u, exact %d: 0x%016llx\n", s->type, s->float_bits,
                  s->float64_bits, s->is_exact, (unsigned long long)checksum);
    is_ok = false;
  }
  assert_true(is_ok);
}

static int choose(void **state) {
  kernels = sml_quant_select(*state);
  return 0;
}

#define TEST_OF(name) \
  { "sums_are_those_of_other_machines " #name, sums_are_those_of_other_machines, choose, NULL, name }

int main(void) {
  static char scalar[] = "scalar";
#if defined(__aarch64__)
  static char neon[] = "neon";
  const struct CMUnitTest tests[] = {TEST_OF(scalar), TEST_OF(neon)};
#else
  static char avx2[] = "avx2", avx512[] = "avx512";
  const struct CMUnitTest tests[] = {TEST_OF(scalar), TEST_OF(avx2), TEST_OF(avx512)};
#endif
  return cmocka_run_group_tests_name("quant one answer", tests, NULL, NULL);
}
