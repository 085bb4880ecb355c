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

/* ---- tensors ---- */

static uint32_t make_float(uint32_t sign, uint32_t biased_exponent, uint32_t fraction) {
  return sign << 31 | biased_exponent << 23 | (fraction & 0x7fffffu);
}

static uint32_t draw_float(const struct sim_tensor *t, uint32_t rank, uint64_t draw) {
  const uint32_t sign = (uint32_t)draw & 1, fraction = (uint32_t)(draw >> 8);
  const uint32_t choice = (uint32_t)(draw >> 40) & 0xffffffu;
  switch ((enum sim_data_kind)t->kind) {
    case SIM_DATA_WIDE:
      return make_float(sign, choice % 255, fraction);
    case SIM_DATA_TINY:
      if (choice % 4 == 0) return make_float(sign, 0, choice % 8 == 0 ? 0 : fraction);
      return make_float(sign, 24 + choice % 6, fraction); /* 2^-100 has 27 */
    case SIM_DATA_HUGE:
      return make_float(choice % 8 == 0 ? sign : 0, 250 + choice % 5, fraction);
    case SIM_DATA_SPECIAL:
      if (choice % 997 == 0) return make_float(sign, 255, choice % 2 == 0 ? 0 : fraction | 1);
      return make_float(sign, 110 + choice % 20, fraction);
    case SIM_DATA_ONE_RANK:
      if (rank != t->seed % 2) return sign << 31; /* zeros of both signs */
      return make_float(sign, 120 + choice % 12, fraction);
    default:
      return make_float(sign, 110 + choice % 20, fraction);
  }
}

void sim_tensor_fill(const struct sim_tensor *t, uint32_t rank, uint64_t first, uint64_t count, uint32_t *bits) {
  const uint64_t base = spread(t->seed ^ (uint64_t)(rank + 1) << 48);
  for (uint64_t i = 0; i < count; i++) {
    const uint64_t draw = spread(base + first + i);
    bits[i] = t->is_float ? draw_float(t, rank, draw) : (uint32_t)draw;
  }
}

/* ---- sums ---- */

static float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* 0 if all are below 2^-100 in magnitude, 255 if one is no number, else the exponent field of the largest. */
static uint32_t code_of(const uint32_t *bits, uint64_t count) {
  uint32_t code = 0;
  for (uint64_t i = 0; i < count; i++) {
    const uint32_t exponent = bits[i] >> 23 & 0xff;
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

/* sum * 2^-shift / divisor as the nearest float32, ties to even. In integers: the quotient with 64 bits behind
 * the point, and whether anything is left behind those. */
static uint32_t to_float(int64_t sum, int shift, uint32_t divisor) {
  if (sum == 0) return 0;
  const uint32_t sign = sum < 0;
  const unsigned __int128 magnitude = (unsigned __int128)(uint64_t)(sum < 0 ? -sum : sum) << 64;
  const unsigned __int128 quotient = divisor == 1 ? magnitude : magnitude / divisor;
  bool has_rest = divisor != 1 && magnitude % divisor != 0;
  const int scale = -64 - shift; /* the value is quotient * 2^scale */
  int wanted_scale = scale + count_bits(quotient) - 24;
  if (wanted_scale < -149) wanted_scale = -149;
  const int num_dropped = wanted_scale - scale;
  if (num_dropped > 100) return sign << 31;
  uint32_t kept = (uint32_t)(num_dropped >= 0 ? quotient >> num_dropped : quotient << -num_dropped);
  if (num_dropped > 0) {
    const unsigned __int128 half = (unsigned __int128)1 << (num_dropped - 1);
    const unsigned __int128 dropped = quotient & ((half << 1) - 1);
    has_rest = has_rest || (dropped & (half - 1)) != 0;
    if (dropped >= half && (has_rest || dropped > half || (kept & 1) != 0)) kept++;
  }
  if (kept == 1u << 24) {
    kept >>= 1;
    wanted_scale++;
  }
  if (kept < 1u << 23) return sign << 31 | kept; /* subnormal: scale is -149 */
  const int exponent = wanted_scale + 23 + 127;
  return sign << 31 | (exponent >= 255 ? 0x7f800000u : (uint32_t)exponent << 23 | (kept & 0x7fffffu));
}

static void sum_floats(const uint32_t *ranks, uint32_t world_size, uint64_t count, bool is_average, uint32_t *out) {
  uint32_t code = 0;
  for (uint32_t rank = 0; rank < world_size; rank++) {
    const uint32_t own = code_of(ranks + rank * count, count);
    if (own > code) code = own;
  }
  const int shift = 30 - log2_rounded_up(world_size) - ((int)code - 126);
  const double scale = ldexp(1.0, shift);
  for (uint64_t i = 0; i < count; i++) {
    int64_t sum = 0;
    for (uint32_t rank = 0; code != 0 && code != CODE_NONFINITE && rank < world_size; rank++)
      sum += quantize(ranks[rank * count + i], scale);
    out[i] = code == CODE_NONFINITE ? QUIET_NAN : to_float(sum, shift, is_average ? world_size : 1);
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

static uint32_t round_bits(const uint8_t *bits, bool has_rest) {
  int top = NUM_BITS - 1;
  while (top > 0 && bits[top] == 0) top--;
  int last = top - 23 > -149 - UNIT ? top - 23 : -149 - UNIT;
  uint32_t kept = 0;
  for (int i = top; i >= last; i--) kept = 2 * kept + bits[i];
  for (int i = 0; i < last - 1; i++) has_rest = has_rest || bits[i] != 0;
  if (bits[last - 1] && (has_rest || (kept & 1) != 0)) kept++;
  if (kept == 1u << 24) {
    kept >>= 1;
    last++;
  }
  if (kept < 1u << 23) return kept;
  const int exponent = last + UNIT + 23 + 127;
  return exponent >= 255 ? 0x7f800000u : (uint32_t)exponent << 23 | (kept & 0x7fffffu);
}

static uint32_t sum_exactly(const uint32_t *ranks, uint32_t world_size, uint64_t stride, uint32_t divisor) {
  uint8_t sums[2][NUM_BITS] = {{0}}, difference[NUM_BITS];
  bool is_infinite[2] = {false, false};
  for (uint32_t rank = 0; rank < world_size; rank++) {
    const uint32_t x = ranks[rank * stride], sign = x >> 31, exponent = x >> 23 & 0xff, fraction = x & 0x7fffffu;
    if (exponent == 255) {
      if (fraction != 0) return QUIET_NAN;
      is_infinite[sign] = true;
    } else {
      add_bits(sums[sign], fraction | (exponent != 0 ? 1u << 23 : 0), (exponent != 0 ? (int)exponent : 1) - 150 - UNIT);
    }
  }
  if (is_infinite[0] && is_infinite[1]) return QUIET_NAN;
  if (is_infinite[0] || is_infinite[1]) return is_infinite[1] ? 0xff800000u : 0x7f800000u;
  const bool is_negative = subtract_bits(sums[0], sums[1], difference);
  if (is_negative) (void)subtract_bits(sums[1], sums[0], difference);
  const bool has_rest = divide_bits(difference, divisor);
  return (uint32_t)is_negative << 31 | round_bits(difference, has_rest);
}

static void sum_integers(const uint32_t *ranks, uint32_t world_size, uint64_t count, uint32_t *out) {
  memcpy(out, ranks, count * sizeof *out);
  for (uint32_t rank = 1; rank < world_size; rank++)
    for (uint64_t i = 0; i < count; i++) out[i] += ranks[rank * count + i];
}

void sim_sum_block(const uint32_t *ranks, uint32_t world_size, uint64_t count, bool is_float, bool is_average,
                   uint32_t *out) {
  if (is_float) sum_floats(ranks, world_size, count, is_average, out);
  else sum_integers(ranks, world_size, count, out);
}

void sim_sum_small(const uint32_t *ranks, uint32_t world_size, uint64_t count, bool is_average, uint32_t *out) {
  for (uint64_t i = 0; i < count; i++)
    out[i] = sum_exactly(ranks + i, world_size, count, is_average ? world_size : 1);
}

void sim_sum_make(const struct sim_sum *s, uint32_t *out, uint32_t *scratch) {
  const bool is_small = s->tensor.is_float && s->count <= MAX_EXACT_ELEMS && s->world_size > 1;
  for (uint64_t first = 0; first < s->count; first += s->chunk_elems) {
    const uint64_t left = s->count - first, count = left < s->chunk_elems ? left : s->chunk_elems;
    for (uint32_t rank = 0; rank < s->world_size; rank++)
      sim_tensor_fill(&s->tensor, rank, first, count, scratch + rank * count);
    if (is_small) sim_sum_small(scratch, s->world_size, count, s->is_average, out + first);
    else sim_sum_block(scratch, s->world_size, count, s->tensor.is_float, s->is_average, out + first);
  }
}
