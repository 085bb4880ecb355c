/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/reference.h"

#include <math.h>
#include <string.h>

#define CODE_NONFINITE 255u
#define QUIET_NAN 0x7fc00000u
#define MAX_EXACT_ELEMS 128u

static uint64_t spread(uint64_t x) {
  x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
  x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
  return x ^ (x >> 32);
}

/* ---- types of floats: those of 16 bits are summed as the float32 of the same value, and rounded once ---- */

struct floats {
  int mantissa_bits; /* with the hidden one */
  int least;         /* the exponent of the smallest denormal */
  uint32_t infinity; /* its bits */
};
static const struct floats float32 = {24, -149, 0x7f800000u}, float16 = {11, -24, 0x7c00}, bfloat16 = {8, -133, 0x7f80};

static bool is_half(enum sim_elem elem) {
  return elem == SIM_FLOAT16 || elem == SIM_BFLOAT16;
}

static const struct floats *floats_of(enum sim_elem elem) {
  return elem == SIM_FLOAT16 ? &float16 : elem == SIM_BFLOAT16 ? &bfloat16 : &float32;
}

static uint32_t widened(uint32_t half, enum sim_elem elem) {
  if (elem == SIM_BFLOAT16) return half << 16;
  const uint32_t sign = half >> 15 & 1, field = half >> 10 & 0x1f, fraction = half & 0x3ff;
  if (field == 0x1f) return sign << 31 | 0x7f800000u | fraction << 13;
  if (field != 0) return sign << 31 | (field + 127 - 15) << 23 | fraction << 13;
  const float x = (float)fraction * 0x1p-24f;
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return sign << 31 | bits;
}

/* Element i of words, as a float32. */
static uint32_t element(const uint32_t *words, uint64_t i, enum sim_elem elem) {
  return is_half(elem) ? widened(words[i / 2] >> i % 2 * 16 & 0xffff, elem) : words[i];
}

static void put_element(uint32_t *words, uint64_t i, enum sim_elem elem, uint32_t bits) {
  if (!is_half(elem)) words[i] = bits;
  else words[i / 2] = (words[i / 2] & 0xffff0000u >> i % 2 * 16) | bits << i % 2 * 16;
}

static uint64_t elements_of(uint64_t num_words, enum sim_elem elem) {
  return is_half(elem) ? 2 * num_words : num_words;
}

/* A float of the type: from kept * 2^scale, and from a float32 that is no number. */
static uint32_t of_parts(const struct floats *f, uint32_t is_negative, uint32_t kept, int scale) {
  const uint32_t sign = is_negative << (f == &float32 ? 31 : 15), hidden = 1u << (f->mantissa_bits - 1);
  if (kept < hidden) return sign | kept; /* subnormal, or 0 */
  const uint32_t field = (uint32_t)(scale - f->least + 1);
  const uint32_t bits = field * hidden + (kept - hidden);
  return sign | (field * hidden >= f->infinity ? f->infinity : bits);
}

static uint32_t no_number(const struct floats *f, uint32_t bits) {
  if (f == &float32) return bits;
  const uint32_t quiet = (f->infinity >> 1) & ~f->infinity;
  return f->infinity | ((bits & 0x7fffffu) != 0 ? quiet : bits >> 31 << 15);
}

/* ---- tensors ---- */

static uint32_t make_float(uint32_t sign, uint32_t biased_exponent, uint32_t fraction) {
  return sign << 31 | biased_exponent << 23 | (fraction & 0x7fffffu);
}

static uint32_t draw_float(const struct sim_tensor *t, uint32_t rank, uint64_t draw) {
  const uint32_t sign = (uint32_t)draw & 1, fraction = (uint32_t)(draw >> 8);
  const uint32_t choice = (uint32_t)(draw >> 40) & 0xffffffu;
  switch ((enum sim_data_kind)t->kind) {
    case SIM_DATA_WIDE: return make_float(sign, choice % 255, fraction);
    case SIM_DATA_TINY:
      if (choice % 4 == 0) return make_float(sign, 0, choice % 8 == 0 ? 0 : fraction);
      return make_float(sign, 24 + choice % 6, fraction); /* 2^-100 has 27 */
    case SIM_DATA_HUGE: return make_float(choice % 8 == 0 ? sign : 0, 250 + choice % 5, fraction);
    case SIM_DATA_SPECIAL:
      if (choice % 997 == 0) return make_float(sign, 255, choice % 2 == 0 ? 0 : fraction | 1);
      return make_float(sign, 110 + choice % 20, fraction);
    case SIM_DATA_ONE_RANK:
      if (rank != t->seed % 2) return sign << 31; /* zeros of both signs */
      return make_float(sign, 120 + choice % 12, fraction);
    default: return make_float(sign, 110 + choice % 20, fraction);
  }
}

/* The same kinds in the range of float16. */
static uint32_t draw_half(const struct sim_tensor *t, uint32_t rank, uint64_t draw) {
  const uint32_t bits = draw_float(t, rank, draw), choice = (uint32_t)(draw >> 40) & 0xffffffu;
  const uint32_t sign = bits >> 31 << 15, fraction = bits >> 13 & 0x3ff;
  if (t->elem == SIM_BFLOAT16) return bits >> 16;
  switch ((enum sim_data_kind)t->kind) {
    case SIM_DATA_WIDE: return sign | choice % 31 << 10 | fraction;
    case SIM_DATA_TINY: return sign | (choice % 4 == 0 ? 0 : choice % 3 << 10 | fraction);
    case SIM_DATA_HUGE: return sign | (28 + choice % 3) << 10 | fraction;
    case SIM_DATA_SPECIAL:
      if (choice % 997 == 0) return sign | 0x7c00 | (choice % 2 == 0 ? 0 : fraction | 1);
      return sign | (5 + choice % 15) << 10 | fraction;
    case SIM_DATA_ONE_RANK:
      if (rank != t->seed % 2) return sign;
      return sign | (10 + choice % 12) << 10 | fraction;
    default: return sign | (5 + choice % 15) << 10 | fraction;
  }
}

/* Any bits, or mostly zeros. */
static uint32_t draw_integers(const struct sim_tensor *t, uint32_t rank, uint64_t draw) {
  if (t->kind == SIM_DATA_ONE_RANK && rank != t->seed % 2) return 0;
  return (uint32_t)draw & (t->kind == SIM_DATA_TINY ? 0x01010101u : UINT32_MAX);
}

void sim_tensor_fill(const struct sim_tensor *t, uint32_t rank, uint64_t first, uint64_t count, uint32_t *bits) {
  const uint64_t base = spread(t->seed ^ (uint64_t)(rank + 1) << 48);
  for (uint64_t i = 0; i < count; i++) {
    const uint64_t draw = spread(base + first + i);
    if (is_half(t->elem)) bits[i] = draw_half(t, rank, draw) | draw_half(t, rank, spread(draw)) << 16;
    else bits[i] = t->elem == SIM_FLOAT32 ? draw_float(t, rank, draw) : draw_integers(t, rank, draw);
  }
}

/* ---- sums ---- */

static float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* 0 if all are below 2^-100 in magnitude, 255 if one is no number, else the exponent field of the largest. */
static uint32_t code_of(const uint32_t *words, uint64_t count, enum sim_elem elem) {
  uint32_t code = 0;
  for (uint64_t i = 0; i < elements_of(count, elem); i++) {
    const uint32_t exponent = element(words, i, elem) >> 23 & 0xff;
    if (exponent > code) code = exponent;
  }
  return code < 127 - 100 ? 0 : code;
}

static int log2_rounded_up(uint32_t n) {
  int bits = 0;
  while ((UINT64_C(1) << bits) < n) bits++;
  return bits;
}

/* To nearest, ties to even; the product is exact in double. */
static int64_t quantize(uint32_t bits, double scale) {
  return (int64_t)nearbyint((double)float_of(bits) * scale);
}

static int count_bits(unsigned __int128 x) {
  const uint64_t high = (uint64_t)(x >> 64), low = (uint64_t)x;
  return high != 0 ? 128 - __builtin_clzll(high) : low != 0 ? 64 - __builtin_clzll(low) : 0;
}

/* sum * 2^-shift / divisor as the nearest float, ties to even. In integers: the quotient with 64 bits behind
 * the point, and whether anything is left behind those. */
static uint32_t to_float(int64_t sum, int shift, uint32_t divisor, const struct floats *f) {
  if (sum == 0) return 0;
  const uint32_t is_negative = sum < 0;
  const unsigned __int128 magnitude = (unsigned __int128)(uint64_t)(sum < 0 ? -sum : sum) << 64;
  const unsigned __int128 quotient = divisor == 1 ? magnitude : magnitude / divisor;
  bool has_rest = divisor != 1 && magnitude % divisor != 0;
  const int scale = -64 - shift; /* the value is quotient * 2^scale */
  int wanted_scale = scale + count_bits(quotient) - f->mantissa_bits;
  if (wanted_scale < f->least) wanted_scale = f->least;
  const int num_dropped = wanted_scale - scale;
  if (num_dropped > 120) return of_parts(f, is_negative, 0, f->least);
  uint32_t kept = (uint32_t)(num_dropped >= 0 ? quotient >> num_dropped : quotient << -num_dropped);
  if (num_dropped > 0) {
    const unsigned __int128 half = (unsigned __int128)1 << (num_dropped - 1);
    const unsigned __int128 dropped = quotient & ((half << 1) - 1);
    has_rest = has_rest || (dropped & (half - 1)) != 0;
    if (dropped >= half && (has_rest || dropped > half || (kept & 1) != 0)) kept++;
  }
  if (kept == 1u << f->mantissa_bits) {
    kept >>= 1;
    wanted_scale++;
  }
  return of_parts(f, is_negative, kept, wanted_scale);
}

/* Those of 16 bits are two a lane: 15 bits less for each, and the sums' sign must fit, too. */
static void sum_floats(const uint32_t *ranks, uint32_t world_size, uint64_t count, enum sim_elem elem, bool is_average,
                       uint32_t *out) {
  const struct floats *f = floats_of(elem);
  uint32_t code = 0;
  for (uint32_t rank = 0; rank < world_size; rank++) {
    const uint32_t own = code_of(ranks + rank * count, count, elem);
    if (own > code) code = own;
  }
  const int room = log2_rounded_up(world_size), bits = (is_half(elem) ? 15 : 30) - room;
  const int shift = bits - ((int)code - 126);
  const int64_t most = is_half(elem) ? (INT64_C(1) << bits) - 1 : INT64_C(1) << bits;
  const double scale = ldexp(1.0, shift);
  for (uint64_t i = 0; i < elements_of(count, elem); i++) {
    int64_t sum = 0;
    for (uint32_t rank = 0; code != 0 && code != CODE_NONFINITE && rank < world_size; rank++) {
      const int64_t q = quantize(element(ranks + rank * count, i, elem), scale);
      sum += q > most ? most : q < -most ? -most : q;
    }
    const uint32_t sum_bits = to_float(sum, shift, is_average ? world_size : 1, f);
    put_element(out, i, elem, code == CODE_NONFINITE ? no_number(f, QUIET_NAN) : sum_bits);
  }
}

/* ---- exact sums: numbers of NUM_BITS bits, one a byte, in units of 2^-181 ---- */

#define NUM_BITS 352
#define UNIT (-181)

static void add_bits(uint8_t *bits, uint32_t mantissa, int position) {
  uint32_t carry = 0;
  for (int i = position; i < NUM_BITS; i++, mantissa >>= 1) {
    carry += bits[i] + (mantissa & 1);
    bits[i] = carry & 1;
    carry >>= 1;
  }
}

/* a - b; whether it is negative, and then it is wrong. */
static bool subtract_bits(const uint8_t *a, const uint8_t *b, uint8_t *difference) {
  int borrow = 0;
  for (int i = 0; i < NUM_BITS; i++) {
    const int digit = a[i] - b[i] - borrow;
    difference[i] = (uint8_t)(digit & 1);
    borrow = digit < 0;
  }
  return borrow != 0;
}

static bool divide_bits(uint8_t *bits, uint32_t divisor) {
  uint32_t rest = 0;
  for (int i = NUM_BITS - 1; i >= 0; i--) {
    rest = 2 * rest + bits[i];
    bits[i] = rest >= divisor;
    if (bits[i]) rest -= divisor;
  }
  return rest != 0;
}

static uint32_t round_bits(const uint8_t *bits, bool has_rest, bool is_negative, const struct floats *f) {
  int top = NUM_BITS - 1;
  while (top > 0 && bits[top] == 0) top--;
  int last = top - (f->mantissa_bits - 1) > f->least - UNIT ? top - (f->mantissa_bits - 1) : f->least - UNIT;
  uint32_t kept = 0;
  for (int i = top; i >= last; i--) kept = 2 * kept + bits[i];
  for (int i = 0; i < last - 1; i++) has_rest = has_rest || bits[i] != 0;
  if (bits[last - 1] && (has_rest || (kept & 1) != 0)) kept++;
  if (kept == 1u << f->mantissa_bits) {
    kept >>= 1;
    last++;
  }
  return of_parts(f, is_negative, kept, last + UNIT);
}

/* The sum of element i. */
static uint32_t sum_exactly(const uint32_t *ranks, uint32_t world_size, uint64_t stride, uint64_t i, enum sim_elem elem,
                            uint32_t divisor) {
  const struct floats *f = floats_of(elem);
  uint8_t sums[2][NUM_BITS] = {{0}}, difference[NUM_BITS];
  bool is_infinite[2] = {false, false};
  for (uint32_t rank = 0; rank < world_size; rank++) {
    const uint32_t x = element(ranks + rank * stride, i, elem);
    const uint32_t sign = x >> 31, exponent = x >> 23 & 0xff, fraction = x & 0x7fffffu;
    if (exponent == 255) {
      if (fraction != 0) return no_number(f, QUIET_NAN);
      is_infinite[sign] = true;
    } else {
      add_bits(sums[sign], fraction | (exponent != 0 ? 1u << 23 : 0), (exponent != 0 ? (int)exponent : 1) - 150 - UNIT);
    }
  }
  if (is_infinite[0] && is_infinite[1]) return no_number(f, QUIET_NAN);
  if (is_infinite[0] || is_infinite[1]) return no_number(f, is_infinite[1] ? 0xff800000u : 0x7f800000u);
  const bool is_negative = subtract_bits(sums[0], sums[1], difference);
  if (is_negative) (void)subtract_bits(sums[1], sums[0], difference);
  const bool has_rest = divide_bits(difference, divisor);
  return round_bits(difference, has_rest, is_negative, f);
}

static void sum_integers(const uint32_t *ranks, uint32_t world_size, uint64_t count, bool is_wide, uint32_t *out) {
  memcpy(out, ranks, count * sizeof *out);
  for (uint32_t rank = 1; rank < world_size; rank++) {
    uint64_t carry = 0;
    for (uint64_t i = 0; i < count; i++) {
      carry = (is_wide && i % 2 == 1 ? carry : 0) + out[i] + ranks[rank * count + i];
      out[i] = (uint32_t)carry;
      carry >>= 32;
    }
  }
}

void sim_sum_block(const uint32_t *ranks, uint32_t world_size, uint64_t count, enum sim_elem elem, bool is_average,
                   uint32_t *out) {
  if (elem == SIM_INT32 || elem == SIM_INT64) sum_integers(ranks, world_size, count, elem == SIM_INT64, out);
  else sum_floats(ranks, world_size, count, elem, is_average, out);
}

void sim_sum_small(const uint32_t *ranks, uint32_t world_size, uint64_t count, enum sim_elem elem, bool is_average,
                   uint32_t *out) {
  for (uint64_t i = 0; i < elements_of(count, elem); i++)
    put_element(out, i, elem, sum_exactly(ranks, world_size, count, i, elem, is_average ? world_size : 1));
}

/* ---- other reductions ---- */

static int bytes_of(enum sim_elem elem) {
  return elem == SIM_INT64 ? 8 : elem == SIM_UINT8 ? 1 : 4;
}

static uint64_t load_element(const uint32_t *words, uint64_t i, int num_bytes) {
  uint64_t x = 0;
  for (int b = num_bytes; b-- > 0;) {
    const uint64_t at = i * (uint64_t)num_bytes + (uint64_t)b;
    x = x << 8 | (words[at / 4] >> at % 4 * 8 & 0xff);
  }
  return x;
}

static void store_element(uint32_t *words, uint64_t i, int num_bytes, uint64_t x) {
  for (int b = 0; b < num_bytes; b++, x >>= 8) {
    const uint64_t at = i * (uint64_t)num_bytes + (uint64_t)b;
    const uint32_t shift = at % 4 * 8;
    words[at / 4] = (words[at / 4] & ~(UINT32_C(0xff) << shift)) | (uint32_t)(x & 0xff) << shift;
  }
}

/* A NaN makes the result one; -0 is below +0. */
static uint64_t pick_float(uint32_t a, uint32_t b, bool wants_less) {
  const float x = float_of(a), y = float_of(b);
  if (x != x || y != y) return QUIET_NAN;
  const bool is_less = x < y || (x == y && a >> 31 > b >> 31);
  return is_less == wants_less ? a : b;
}

static bool is_below(uint64_t a, uint64_t b, enum sim_elem elem) {
  if (elem == SIM_INT32) return (int32_t)(uint32_t)a < (int32_t)(uint32_t)b;
  return elem == SIM_INT64 ? (int64_t)a < (int64_t)b : a < b;
}

static uint64_t combine(uint64_t a, uint64_t b, enum sim_elem elem, enum sim_reduction reduction) {
  switch (reduction) {
    case SIM_PRODUCT: return a * b;
    case SIM_BAND: return a & b;
    case SIM_BOR: return a | b;
    case SIM_LAND: return a != 0 && b != 0;
    case SIM_LOR: return a != 0 || b != 0;
    case SIM_MIN:
    case SIM_MAX:
      if (elem == SIM_FLOAT32) return pick_float((uint32_t)a, (uint32_t)b, reduction == SIM_MIN);
      return is_below(a, b, elem) == (reduction == SIM_MIN) ? a : b;
    default: return a + b;
  }
}

void sim_reduce_words(const uint32_t *ranks, uint32_t world_size, uint64_t count, enum sim_elem elem,
                      enum sim_reduction reduction, uint32_t *out) {
  const int num_bytes = bytes_of(elem);
  for (uint64_t i = 0; i < count * 4 / (uint64_t)num_bytes; i++) {
    uint64_t x = load_element(ranks, i, num_bytes);
    for (uint32_t rank = 1; rank < world_size; rank++)
      x = combine(x, load_element(ranks + rank * count, i, num_bytes), elem, reduction);
    store_element(out, i, num_bytes, x);
  }
}

void sim_sum_make(const struct sim_sum *s, uint32_t *out, uint32_t *scratch) {
  const enum sim_elem elem = s->tensor.elem;
  const bool is_float = elem != SIM_INT32 && elem != SIM_INT64 && elem != SIM_UINT8;
  const bool is_short = elements_of(s->count, elem) <= MAX_EXACT_ELEMS;
  const bool is_small = is_float && (is_short || s->is_exact) && s->world_size > 1;
  const bool is_other = s->reduction >= SIM_MIN || elem == SIM_UINT8;
  const uint64_t block_words = is_half(elem) ? SIM_BLOCK_WORDS / 2 : SIM_BLOCK_WORDS;
  for (uint64_t first = 0; first < s->count; first += block_words) {
    const uint64_t left = s->count - first, count = left < block_words ? left : block_words;
    for (uint32_t rank = 0; rank < s->world_size; rank++)
      sim_tensor_fill(&s->tensor, rank, first, count, scratch + rank * count);
    if (is_other) sim_reduce_words(scratch, s->world_size, count, elem, s->reduction, out + first);
    else if (is_small) sim_sum_small(scratch, s->world_size, count, elem, s->is_average, out + first);
    else sim_sum_block(scratch, s->world_size, count, elem, s->is_average, out + first);
  }
}
