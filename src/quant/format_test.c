/* SPDX-License-Identifier: Apache-2.0
 * Every format of every type, as an operation goes through it: codes and their maximum, lanes of all ranks added
 * modulo 2^32, results. Against sums in long double, within the documented bound; against what ranks of one host get;
 * and every implementation of the kernels against the scalar one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <cmocka.h>

#include "quant/double_limbs.h"
#include "quant/elem.h"
#include "quant/format.h"
#include "quant/limbs.h"

#define MAX_ELEMS 200u
#define MAX_RANKS 300u
#define LANE_BYTES (4u * SML_DOUBLE_LIMBS_MAX_PER_ELEM)

static const char *const names[SML_NUM_FORMAT_TYPES] = {"float32", "int32", "float16", "bfloat16", "float64",
                                                        "int64",   "int8",  "uint8",   "uint32",   "uint64"};
static const uint32_t worlds[] = {2, 3, 4, 5, 7, 8, 15, 16, 17, 30, 64, 100, 128, 129, 300};

static uint8_t in[MAX_RANKS][8 * MAX_ELEMS];
static uint8_t sums[LANE_BYTES * MAX_ELEMS];

struct operation {
  uint32_t type, world_size;
  size_t num_elems;
  bool average;
  struct sml_format_shape shape;
  const struct sml_format *format;
};

static struct operation make(uint32_t type, uint32_t world_size, size_t num_elems, bool average,
                             struct sml_format_options options) {
  struct operation o = {.type = type, .world_size = world_size, .num_elems = num_elems, .average = average};
  o.shape = sml_format_choose(type, num_elems, world_size, options);
  o.format = sml_format_find(type, o.shape);
  return o;
}

static size_t num_lanes(const struct operation *o) {
  if (o->shape.lane_elems > 1) return (o->num_elems + 1) / 2;
  return o->num_elems * (o->shape.elem_lanes > 1 ? o->shape.elem_lanes : 1);
}

static void add_lanes(uint8_t *to, const uint8_t *from, size_t num) {
  for (size_t l = 0; l < num; l++) sml_store_be32(to + 4 * l, sml_load_be32(to + 4 * l) + sml_load_be32(from + 4 * l));
}

/* What the network gives. Ranks 1 and 2 contribute as one. Returns the code. */
static uint8_t reduce(const struct sml_quant_kernels *k, const struct operation *o, uint8_t *out) {
  static uint8_t lanes[LANE_BYTES * MAX_ELEMS];
  const struct sml_format *f = o->format;
  uint8_t code = 0;
  for (uint32_t w = 0; w < o->world_size && f->block_code != NULL; w++) {
    const uint8_t own = f->block_code(k, in[w], o->num_elems);
    code = own > code ? own : code;
  }
  memset(sums, 0, sizeof sums);
  for (uint32_t w = 0; w < o->world_size; w++) {
    memset(lanes, 0xee, sizeof lanes);
    f->put(k, lanes, in[w], o->num_elems, code, o->world_size);
    if (w == 1 && o->world_size > 2) f->add(k, lanes, in[++w], o->num_elems, code, o->world_size);
    assert_int_equal(lanes[4 * num_lanes(o)], 0xee);
    add_lanes(sums, lanes, num_lanes(o));
  }
  memset(out, 0xee, 8 * MAX_ELEMS + 8);
  f->get(k, out, sums, o->num_elems, code, o->world_size, o->average);
  assert_int_equal(out[o->num_elems * f->elem_bytes], 0xee);
  return code;
}

static double value_at(const uint8_t *p, size_t i, uint32_t type) {
  uint32_t bits = 0;
  float narrow;
  double wide;
  if (type == SML_FORMAT_FLOAT64) {
    memcpy(&wide, p + 8 * i, sizeof wide);
    return wide;
  }
  if (type == SML_FORMAT_FLOAT32) memcpy(&bits, p + 4 * i, 4);
  else bits = sml_elem_widened(p + 2 * i, type == SML_FORMAT_FLOAT16 ? SML_ELEM_FLOAT16 : SML_ELEM_BFLOAT16);
  memcpy(&narrow, &bits, sizeof narrow);
  return (double)narrow;
}

/* Returns the largest error over its bound. */
static double check_bound(const struct operation *o, uint8_t code, const uint8_t *out) {
  double worst = 0;
  for (size_t i = 0; i < o->num_elems; i++) {
    long double sum = 0, magnitude = 0;
    for (uint32_t w = 0; w < o->world_size; w++) {
      sum += (long double)value_at(in[w], i, o->type);
      magnitude += fabsl((long double)value_at(in[w], i, o->type));
    }
    if (o->average) sum /= o->world_size;
    const double got = value_at(out, i, o->type);
    const double bound = sml_format_error_bound(o->type, o->shape, code, o->world_size, o->average, got);
    const long double error = fabsl((long double)got - sum) - o->world_size * 0x1p-62L * magnitude;
    if (!(error <= (long double)bound))
      fail_msg("%s, %u ranks, code %u, lanes %u/%u, average %d: %a for %La, bound %a", names[o->type], o->world_size,
               code, o->shape.elem_lanes, o->shape.lane_elems, o->average, got, sum, bound);
    if (bound > 0 && isfinite(bound) && (double)error / bound > worst) worst = (double)error / bound;
  }
  return worst;
}

/* Random numbers below 2^exponent over so many binades: float16 from its denormals on, so that sums stay finite. */
static void fill(struct sml_prng *prng, const struct operation *o, int exponent, int spread) {
  for (uint32_t w = 0; w < o->world_size; w++) {
    for (size_t i = 0; i < o->num_elems; i++) {
      const double x = (double)(int64_t)sml_prng_next(prng) * 0x1p-63;
      const double value = ldexp(x, exponent - (int)sml_prng_below(prng, (uint64_t)spread));
      const float narrow = (float)value;
      uint32_t bits;
      memcpy(&bits, &narrow, sizeof bits);
      if (o->type == SML_FORMAT_FLOAT64) memcpy(in[w] + 8 * i, &value, 8);
      else if (o->type == SML_FORMAT_FLOAT32) memcpy(in[w] + 4 * i, &bits, 4);
      else if (o->type == SML_FORMAT_BFLOAT16) sml_elem_store(in[w] + 2 * i, bits >> 16, SML_ELEM_BFLOAT16);
      else {
        const uint64_t half =
            sml_float_bits(SML_LAYOUT_FLOAT16, (bits & 0x7fffff) | 0x800000, (int32_t)(bits >> 23 & 0xff) - 150, false);
        sml_elem_store(in[w] + 2 * i, (uint32_t)half | (bits >> 16 & 0x8000), SML_ELEM_FLOAT16);
      }
    }
  }
}

/* One host's way, and the other kernels'. */
static void check_equal(const struct operation *o, const uint8_t *expected) {
  static const char *const kernel_names[] = {"scalar", "avx2", "avx512", "neon"};
  static uint8_t out[8 * MAX_ELEMS + 8];
  const void *inputs[MAX_RANKS];
  const size_t num_bytes = o->num_elems * o->format->elem_bytes;
  for (uint32_t w = 0; w < o->world_size; w++) inputs[w] = in[w];
  for (size_t i = 0; i < SML_ARRAY_LEN(kernel_names); i++) {
    const struct sml_quant_kernels *k = sml_quant_select(kernel_names[i]);
    if (strcmp(k->name, kernel_names[i]) != 0) continue;
    reduce(k, o, out);
    if (memcmp(out, expected, num_bytes) != 0)
      fail_msg("%s, %u ranks, %s differ", names[o->type], o->world_size, k->name);
    memset(out, 0xee, sizeof out);
    o->format->reduce(k, out, inputs, o->world_size, o->num_elems, o->average);
    if (memcmp(out, expected, num_bytes) != 0)
      fail_msg("%s, %u ranks, %s: one host's differ", names[o->type], o->world_size, k->name);
    assert_int_equal(out[num_bytes], 0xee);
    static uint8_t own[8 * MAX_ELEMS];
    const uint32_t last = o->world_size - 1;
    memcpy(own, in[last], num_bytes);
    inputs[last] = own;
    o->format->reduce(k, own, inputs, o->world_size, o->num_elems, o->average);
    inputs[last] = in[last];
    if (memcmp(own, expected, num_bytes) != 0)
      fail_msg("%s, %u ranks, %s: one host's in place differ", names[o->type], o->world_size, k->name);
  }
}

static const struct sml_format_options all_options[] = {
    {.float64_bits = 64}, {.float_bits = 16, .float64_bits = 96}, {.float_bits = 32, .float64_bits = 64}};

static void bounds_hold(void **state) {
  (void)state;
  static const uint32_t types[] = {SML_FORMAT_FLOAT32, SML_FORMAT_FLOAT16, SML_FORMAT_BFLOAT16, SML_FORMAT_FLOAT64};
  struct sml_prng prng = {.state = 3};
  for (size_t t = 0; t < SML_ARRAY_LEN(types); t++) {
    for (size_t p = 0; p < SML_ARRAY_LEN(all_options); p++) {
      double worst = 0;
      for (uint32_t round = 0; round < 90; round++) {
        const uint32_t n = worlds[round % SML_ARRAY_LEN(worlds)];
        const size_t num_elems = round % 5 == 0 ? 1 + sml_prng_below(&prng, 20) : 129 + sml_prng_below(&prng, 71);
        const struct operation o = make(types[t], n, num_elems, round / 15 % 2 == 0, all_options[p]);
        static uint8_t out[8 * MAX_ELEMS + 8];
        const bool is_half = types[t] == SML_FORMAT_FLOAT16; /* 300 of them stay below 2^16 */
        const int range = types[t] == SML_FORMAT_FLOAT64 ? 1900 : is_half ? 30 : 215;
        const int exponent = (int)sml_prng_below(&prng, (uint64_t)range) - (is_half ? 24 : range / 2);
        fill(&prng, &o, is_half && exponent > 6 ? 6 : exponent, 1 + (int)sml_prng_below(&prng, 20));
        const uint8_t code = reduce(&sml_quant_scalar, &o, out);
        const double share = check_bound(&o, code, out);
        if (share > worst) worst = share;
        check_equal(&o, out);
      }
      if (worst < 0.4) fail_msg("%s: the bound is idle, %f", names[types[t]], worst);
    }
  }
}

static void integers_are_exact(void **state) {
  (void)state;
  struct sml_prng prng = {.state = 4};
  for (size_t i = 0; i < SML_ARRAY_LEN(worlds); i++) {
    for (uint32_t round = 0; round < 4; round++) {
      const struct operation o = make(SML_FORMAT_INT64, worlds[i], 150, false, all_options[0]);
      static uint8_t out[8 * MAX_ELEMS + 8];
      uint64_t expected[150] = {0};
      for (uint32_t w = 0; w < o.world_size; w++) {
        for (size_t e = 0; e < o.num_elems; e++) {
          const uint64_t bits = sml_prng_next(&prng);
          const uint64_t value = round == 0 ? UINT64_MAX : round == 1 ? bits >> 1 & INT64_MAX : bits;
          memcpy(in[w] + 8 * e, &value, sizeof value);
          expected[e] += value;
        }
      }
      reduce(&sml_quant_scalar, &o, out);
      assert_memory_equal(out, expected, sizeof expected);
      check_equal(&o, out);
    }
  }
}

static uint64_t bits_of(const uint8_t *p, const struct operation *o, size_t i) {
  uint64_t bits = 0;
  memcpy(&bits, p + o->format->elem_bytes * i, o->format->elem_bytes);
  return bits;
}

static void put_bits(uint32_t rank, const struct operation *o, size_t i, uint64_t bits) {
  memcpy(in[rank] + o->format->elem_bytes * i, &bits, o->format->elem_bytes);
}

struct specials {
  uint32_t type;
  uint64_t one, largest, infinity, nan, tiny; /* tiny: the smallest denormal */
};
static const struct specials all_specials[] = {
    {SML_FORMAT_FLOAT32, 0x3f800000, 0x7f7fffff, 0x7f800000, 0x7fc00000, 1},
    {SML_FORMAT_FLOAT16, 0x3c00, 0x7bff, 0x7c00, 0x7e00, 1},
    {SML_FORMAT_BFLOAT16, 0x3f80, 0x7f7f, 0x7f80, 0x7fc0, 1},
    {SML_FORMAT_FLOAT64, 0x3ff0000000000000, 0x7fefffffffffffff, 0x7ff0000000000000, 0x7ff8000000000000, 1},
};

/* In a block an Inf or NaN is everybody's; in an exact sum its element's. Beyond the range is Inf. */
static void specials_are_told(void **state) {
  (void)state;
  static uint8_t out[8 * MAX_ELEMS + 8];
  for (size_t s = 0; s < SML_ARRAY_LEN(all_specials); s++) {
    const struct specials *x = &all_specials[s];
    for (size_t p = 0; p < 2 * SML_ARRAY_LEN(all_options); p++) {
      const bool is_small = p & 1;
      const struct operation o = make(x->type, 3, is_small ? 5 : 140, false, all_options[p / 2]);
      for (uint32_t what = 0; what < 5; what++) {
        memset(in, 0, sizeof in);
        for (uint32_t w = 0; w < 3; w++) put_bits(w, &o, 1, x->one);
        if (what == 0) put_bits(1, &o, 2, x->infinity);
        if (what == 1) put_bits(2, &o, 2, x->nan + 1); /* no quiet one */
        if (what == 2)
          for (uint32_t w = 0; w < 3; w++) put_bits(w, &o, 2, x->largest);
        if (what == 3)
          for (uint32_t w = 0; w < 3; w++) put_bits(w, &o, 2, x->largest | (x->infinity + 1));
        reduce(&sml_quant_scalar, &o, out);
        const bool is_exact = !o.shape.has_exponents;
        if (what < 2) {
          assert_true(bits_of(out, &o, 2) == (is_exact && what == 0 ? x->infinity : x->nan));
          if (!is_exact) assert_true(bits_of(out, &o, 0) == x->nan && bits_of(out, &o, 1) == x->nan);
        }
        if (what == 2) assert_true(bits_of(out, &o, 2) == x->infinity);
        if (what == 4 || is_exact) assert_true(bits_of(out, &o, 0) == 0);
        if (what == 4) assert_true(value_at(out, 1, o.type) == 3 && bits_of(out, &o, 2) == 0);
        check_equal(&o, out);
      }
    }
  }
}

/* All ranks at the largest number, of one sign or of both: what is just below the range is a number within the bound,
 * what is beyond it by more than the bound is Inf, and sums of lanes do not wrap. Averages never leave the range. */
static void the_end_of_the_range_is_kept(void **state) {
  (void)state;
  static const uint32_t full_worlds[] = {2, 3, 4, 8, 16, 30, 64, 128, 300};
  static uint8_t out[8 * MAX_ELEMS + 8];
  struct sml_prng prng = {.state = 6};
  for (uint32_t round = 0; round < 2 * SML_ARRAY_LEN(full_worlds) * SML_ARRAY_LEN(all_specials) * 3; round++) {
    const struct specials *x = &all_specials[round % 4];
    const uint32_t n = full_worlds[round / 8 % SML_ARRAY_LEN(full_worlds)];
    const struct operation o = make(x->type, n, 150, round / 4 % 2 == 1, all_options[round % 3]);
    const uint64_t sign_bit = UINT64_C(1) << (8 * o.format->elem_bytes - 1);
    for (uint32_t w = 0; w < n; w++) {
      for (size_t i = 0; i < o.num_elems; i++) {
        const bool is_other = i >= 50 && w * 50 >= (i - 49) * n; /* from rank n (i - 49) / 50 on: less and less sum */
        const uint64_t below = i % 3 == 2 ? sml_prng_next(&prng) % 100 : 0;
        put_bits(w, &o, i, (x->largest - below) ^ (is_other && i < 100 ? sign_bit : 0));
        if (i >= 100) put_bits(w, &o, i, w == i % n ? x->largest : x->one ^ (w % 2 ? sign_bit : 0));
      }
    }
    const uint8_t code = reduce(&sml_quant_scalar, &o, out);
    const double largest = value_at((const uint8_t *)&x->largest, 0, x->type);
    const double half_unit = ldexp(1, (const int[]){103, 0, 4, 119, 970}[x->type]); /* of its last place */
    const double unit = sml_format_error_bound(o.type, o.shape, code, n, o.average, 0);
    for (size_t i = 0; i < o.num_elems; i++) {
      long double sum = 0;
      for (uint32_t w = 0; w < n; w++) sum += (long double)value_at(in[w], i, o.type);
      if (o.average) sum /= n;
      const double got = value_at(out, i, o.type);
      const long double end = (long double)largest + (long double)half_unit;
      if (fabsl(sum) > end + (long double)unit) assert_true(isinf(got) && (got > 0) == (sum > 0));
      if (fabsl(sum) < end - (long double)unit) assert_true(isfinite(got));
    }
    check_bound(&o, code, out);
    check_equal(&o, out);
  }
}

/* A rank whose float16 or bfloat16 gradients have overflowed, as gradient scalers look for: whoever it is of many, and
 * wherever in the block, all get a result that is no number. */
static void overflow_of_any_rank_is_seen(void **state) {
  (void)state;
  static const uint32_t many[] = {2, 8, 16, 17, 30, 64, 300};
  static uint8_t out[8 * MAX_ELEMS + 8];
  for (uint32_t type = SML_FORMAT_FLOAT16; type <= SML_FORMAT_BFLOAT16; type++) {
    const struct specials *x = &all_specials[type - 1];
    assert_int_equal(x->type, type);
    for (uint32_t round = 0; round < 12 * SML_ARRAY_LEN(many); round++) {
      const uint32_t n = many[round % SML_ARRAY_LEN(many)];
      const size_t num_elems = round % 2 == 0 ? 151 : 7;
      const struct operation o = make(type, n, num_elems, round / 4 % 2 == 1, all_options[round % 3]);
      const size_t at = (const size_t[]){0, num_elems / 2, num_elems / 2 + 1, num_elems - 1}[round / 2 % 4];
      const bool is_nan = round / 3 % 2 == 1;
      memset(in, 0, sizeof in);
      for (uint32_t w = 0; w < n; w++) put_bits(w, &o, at, x->largest >> 1); /* far from what overflows */
      put_bits(round * 7 % n, &o, at, is_nan ? x->infinity + 1 : x->infinity);
      reduce(&sml_quant_scalar, &o, out);
      assert_true(!isfinite(value_at(out, at, type)));
      if (o.shape.has_exponents || is_nan) assert_true(isnan(value_at(out, at, type)));
      if (!o.shape.has_exponents) assert_true(bits_of(out, &o, at == 0 ? 1 : 0) == 0);
      check_equal(&o, out);
    }
  }
}

/* float16 keeps all; those of other types, in a block that is not below 2^-100 (2^-999), are below half a unit. */
static void denormals_are_summed(void **state) {
  (void)state;
  static uint8_t out[8 * MAX_ELEMS + 8];
  for (size_t s = 0; s < SML_ARRAY_LEN(all_specials); s++) {
    const struct specials *x = &all_specials[s];
    for (size_t num_elems = 5; num_elems <= 140; num_elems += 135) {
      const struct operation o = make(x->type, 4, num_elems, false, all_options[0]);
      memset(in, 0, sizeof in);
      for (uint32_t w = 0; w < 4; w++) put_bits(w, &o, 0, x->tiny);
      reduce(&sml_quant_scalar, &o, out);
      const bool is_kept = !o.shape.has_exponents || x->type == SML_FORMAT_FLOAT16;
      assert_true(bits_of(out, &o, 0) == (is_kept ? 4 : 0));
      check_equal(&o, out);
    }
  }
}

/* 2049 + 2^-20 is nearer to 2050 in float16, but is 2049 as a float32: rounded twice it would be 2048. */
static void exact_sums_are_rounded_once(void **state) {
  (void)state;
  static uint8_t out[8 * MAX_ELEMS + 8];
  const struct operation o = make(SML_FORMAT_FLOAT16, 3, 1, false, all_options[0]);
  memset(in, 0, sizeof in);
  put_bits(0, &o, 0, 0x6800); /* 2048 */
  put_bits(1, &o, 0, 0x3c00); /* 1 */
  put_bits(2, &o, 0, 0x0001); /* 2^-24 */
  reduce(&sml_quant_scalar, &o, out);
  assert_true(bits_of(out, &o, 0) == 0x6801);
}

/* All 2^16 values of the 16-bit types, and back. */
static void widening_is_exact(void **state) {
  (void)state;
  for (uint32_t half = 0; half < 0x10000; half++) {
    const uint32_t bits = sml_float16_widened(half), magnitude = half & 0x7fff;
    float value;
    memcpy(&value, &bits, sizeof value);
    if (magnitude > 0x7c00) {
      assert_true(isnan(value));
      continue;
    }
    const double expected = magnitude == 0x7c00  ? INFINITY
                            : magnitude >= 0x400 ? ldexp(0x400 + (magnitude & 0x3ff), (int)(magnitude >> 10) - 25)
                                                 : ldexp(magnitude, -24);
    assert_true((double)value == (half & 0x8000 ? -expected : expected));
    if (magnitude == 0x7c00) continue;
    const uint64_t back =
        sml_float_bits(SML_LAYOUT_FLOAT16, (bits & 0x7fffff) | 0x800000, (int32_t)(bits >> 23 & 0xff) - 150, false);
    assert_true(magnitude == 0 || back == magnitude);
  }
}

/* Which of them has how many bits is part of the protocol. */
static void choice_is_as_documented(void **state) {
  (void)state;
  static const struct {
    uint32_t type, world_size;
    uint8_t float_bits;
    bool is_packed;
  } rows[] = {
      {SML_FORMAT_FLOAT32, 2, 0, false},    {SML_FORMAT_FLOAT32, 2, 16, true},   {SML_FORMAT_FLOAT32, 128, 16, true},
      {SML_FORMAT_FLOAT32, 129, 16, false}, {SML_FORMAT_FLOAT16, 16, 0, true},   {SML_FORMAT_FLOAT16, 17, 0, false},
      {SML_FORMAT_FLOAT16, 2, 32, false},   {SML_FORMAT_FLOAT16, 128, 16, true}, {SML_FORMAT_BFLOAT16, 16, 0, true},
      {SML_FORMAT_BFLOAT16, 17, 0, false},  {SML_FORMAT_BFLOAT16, 2, 32, false}, {SML_FORMAT_BFLOAT16, 129, 16, false},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    const struct sml_format_options options = {.float_bits = rows[i].float_bits};
    const struct sml_format_shape s = sml_format_choose(rows[i].type, 129, rows[i].world_size, options);
    assert_true(s.has_exponents && s.elem_lanes == 0 && s.lane_elems == (rows[i].is_packed ? 2 : 0));
    const struct sml_format_shape small = sml_format_choose(rows[i].type, 128, rows[i].world_size, options);
    assert_true(!small.has_exponents && small.elem_lanes == sml_limbs_per_elem(rows[i].world_size));
  }
  assert_int_equal(sml_format_choose(SML_FORMAT_FLOAT64, 129, 2, all_options[0]).elem_lanes, 2);
  assert_int_equal(sml_format_choose(SML_FORMAT_FLOAT64, 129, 4096, all_options[1]).elem_lanes, 3);
  assert_int_equal(sml_format_choose(SML_FORMAT_INT64, 1, 4096, all_options[0]).elem_lanes, 3);
}

/* Short sums of float64 need no setting, but a chunk that holds an element of theirs. */
static void short_doubles_are_exact_where_they_fit(void **state) {
  (void)state;
  static const struct {
    uint64_t num_elems;
    uint32_t world_size, chunk_bytes;
    uint8_t float64_bits, elem_lanes; /* 0: not offered */
  } rows[] = {{1, 2, 0, 0, 72},     {128, 2, 288, 0, 72},  {1, 2, 284, 0, 0},        {1, 2, 284, 64, 2},
              {128, 8, 308, 0, 77}, {128, 8, 304, 96, 3},  {128, 4096, 452, 0, 113}, {1, 4096, 448, 0, 0},
              {129, 2, 1440, 0, 0}, {129, 2, 1440, 96, 3}, {1, 2, 1440, 64, 72},     {1, 3, 256, 96, 3}};
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    const struct sml_format_options o = {.float64_bits = rows[i].float64_bits, .chunk_bytes = rows[i].chunk_bytes};
    assert_int_equal(sml_format_has_doubles(rows[i].num_elems, rows[i].world_size, o), rows[i].elem_lanes != 0);
    if (rows[i].elem_lanes == 0) continue;
    const struct sml_format_shape s = sml_format_choose(SML_FORMAT_FLOAT64, rows[i].num_elems, rows[i].world_size, o);
    assert_int_equal(s.elem_lanes, rows[i].elem_lanes);
    assert_int_equal(s.has_exponents, rows[i].elem_lanes <= 3);
  }
  assert_true(sml_format_has_doubles(0, 8, (struct sml_format_options){0})); /* nothing is never too much */
  assert_true(sml_format_has_doubles(128, 1, (struct sml_format_options){0}));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bounds_hold),
      cmocka_unit_test(integers_are_exact),
      cmocka_unit_test(specials_are_told),
      cmocka_unit_test(the_end_of_the_range_is_kept),
      cmocka_unit_test(overflow_of_any_rank_is_seen),
      cmocka_unit_test(denormals_are_summed),
      cmocka_unit_test(exact_sums_are_rounded_once),
      cmocka_unit_test(widening_is_exact),
      cmocka_unit_test(choice_is_as_documented),
      cmocka_unit_test(short_doubles_are_exact_where_they_fit),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
