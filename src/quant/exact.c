/* SPDX-License-Identifier: Apache-2.0 */
#include "quant/exact.h"

#include "quant/wide.h"

#define SHORT_BITS 94u /* limbs that begin within so many bits: their sum, and its sign, fit 128 */
#define MAX_WORDS 70u  /* of 32 bits: any limbs */
#define MAX_FIELDS 140u
#define USED_WORDS 4u   /* of 64 fields */
#define MOST_REDUCED 4u /* lanes of an element, on the stack */
#define POS_INFINITY UINT32_C(0x00000001)
#define NEG_INFINITY UINT32_C(0x00010000)

void sml_exact_init(struct sml_exact *e, uint32_t type, uint32_t world_size, const struct sml_quant_kernels *kernels) {
  static const struct sml_float_layout floats[SML_NUM_FORMAT_TYPES] = {[SML_FORMAT_FLOAT32] = {24, -149, 255},
                                                                       [SML_FORMAT_FLOAT16] = SML_LAYOUT_FLOAT16,
                                                                       [SML_FORMAT_BFLOAT16] = SML_LAYOUT_BFLOAT16,
                                                                       [SML_FORMAT_FLOAT64] = SML_LAYOUT_FLOAT64};
  SML_ASSERT(sml_format_is_float(type) && world_size >= 2);
  *e = (struct sml_exact){.kernels = kernels,
                          .floats = floats[type],
                          .type = type,
                          .elem_bytes = sml_format_elem_bytes(type),
                          .world_size = world_size,
                          .limb_bits = sml_limb_bits(world_size),
                          .cell_log2 = type == SML_FORMAT_FLOAT64 ? 4 : 3};
  const uint32_t value_bits = e->floats.num_fields - 2 + e->floats.mantissa_bits;
  e->num_cells = (uint32_t)sml_div_ceil(value_bits, 1u << e->cell_log2);
  e->num_fields = e->num_cells + (type == SML_FORMAT_FLOAT64 ? 2 : 1);
  e->field_bits = sml_ceil_log2(world_size) + 1;
  e->fields_per_lane = 32 / e->field_bits;
  e->code_lanes = (uint32_t)sml_div_ceil(e->num_fields, e->fields_per_lane);
  SML_ASSERT(e->num_fields <= MAX_FIELDS && value_bits / e->limb_bits + 1 <= SML_EXACT_MAX_LIMBS);
}

static uint32_t specials_field(const struct sml_exact *e) {
  return e->num_cells;
}

static bool has_signed_zeros(const struct sml_exact *e) {
  return e->num_fields > e->num_cells + 1;
}

/* ---- numbers ---- */

/* mantissa * 2^(position + least exponent). What has no fixed point: is_special, and a mantissa if it is a NaN. */
struct number {
  uint64_t mantissa;
  uint32_t position;
  bool is_negative, is_special;
};

/* What loops over elements know of a type when they are compiled; and one of them for each. */
struct kind {
  uint32_t elem_bytes, fraction_bits, num_fields, cell_log2;
  bool has_signed_zeros;
};
#define INLINE static inline __attribute__((always_inline))
#define FOR_EACH_KIND(f, type, ...)                                                             \
  do {                                                                                          \
    if ((type) == SML_FORMAT_FLOAT32) f((struct kind){4, 23, 255, 3, false}, __VA_ARGS__);      \
    else if ((type) == SML_FORMAT_FLOAT64) f((struct kind){8, 52, 2047, 4, true}, __VA_ARGS__); \
    else if ((type) == SML_FORMAT_FLOAT16) f((struct kind){2, 10, 31, 3, false}, __VA_ARGS__);  \
    else f((struct kind){2, 7, 255, 3, false}, __VA_ARGS__);                                    \
  } while (0)

INLINE uint64_t load(const uint8_t *p, uint32_t elem_bytes) {
  uint64_t wide;
  uint32_t word;
  uint16_t half;
  if (elem_bytes == 8) return memcpy(&wide, p, sizeof wide), wide;
  if (elem_bytes == 4) return memcpy(&word, p, sizeof word), word;
  return memcpy(&half, p, sizeof half), half;
}

static inline void store(uint8_t *p, uint64_t bits, uint32_t elem_bytes) {
  const uint32_t word = (uint32_t)bits;
  const uint16_t half = (uint16_t)bits;
  if (elem_bytes == 8) memcpy(p, &bits, sizeof bits);
  else if (elem_bytes == 4) memcpy(p, &word, sizeof word);
  else memcpy(p, &half, sizeof half);
}

INLINE struct number read_number(struct kind k, const void *in, size_t i) {
  const uint64_t bits = load((const uint8_t *)in + i * k.elem_bytes, k.elem_bytes);
  const uint64_t hidden = UINT64_C(1) << k.fraction_bits, fraction = bits & (hidden - 1);
  const uint32_t field = (uint32_t)(bits >> k.fraction_bits) & k.num_fields;
  const bool is_special = field == k.num_fields;
  return (struct number){.mantissa = field > 0 && !is_special ? fraction | hidden : fraction,
                         .position = field > 1 ? field - 1 : 0,
                         .is_negative = (bits >> (8 * k.elem_bytes - 1)) != 0,
                         .is_special = is_special};
}

/* ---- codes ---- */

/* Sets the bits of the fields that the elements use. */
INLINE void find_used(struct kind k, const struct sml_exact *e, uint64_t *used, const void *in, size_t num_elems) {
  for (size_t i = 0; i < num_elems; i++) {
    const struct number x = read_number(k, in, i);
    if (x.is_special) {
      used[specials_field(e) / 64] |= UINT64_C(1) << specials_field(e) % 64;
    } else if (x.mantissa != 0) {
      const uint32_t first = (x.position + (uint32_t)__builtin_ctzll(x.mantissa)) >> k.cell_log2;
      const uint32_t last = (x.position + 63 - (uint32_t)__builtin_clzll(x.mantissa)) >> k.cell_log2;
      const uint64_t cells = (UINT64_C(2) << (last - first)) - 1;
      used[first / 64] |= cells << first % 64;
      if (last / 64 != first / 64) used[last / 64] |= cells >> (64 - first % 64);
    } else if (k.has_signed_zeros && x.is_negative) {
      used[(e->num_fields - 1) / 64] |= UINT64_C(1) << (e->num_fields - 1) % 64;
    }
  }
}

static void add_used(const struct sml_exact *e, uint64_t *used, const void *in, size_t num_elems) {
  uint64_t cells;
  if (e->kernels->exact_cells != NULL && num_elems == SML_BLOCK_ELEMS && e->cell_log2 == 3 &&
      e->kernels->exact_cells(&cells, in, e->floats.mantissa_bits - 1))
    used[0] |= cells;
  else FOR_EACH_KIND(find_used, e->type, e, used, in, num_elems);
}

void sml_exact_code(const struct sml_exact *e, int32_t *codes, const void *in, size_t num_elems) {
  uint64_t used[USED_WORDS] = {0};
  uint32_t lanes[MAX_FIELDS], lane = 0, first = 0;
  add_used(e, used, in, num_elems);
  memset(lanes, 0, e->code_lanes * sizeof *lanes);
  for (uint32_t w = 0; w <= e->num_fields / 64; w++)
    for (; used[w] != 0; used[w] &= used[w] - 1) {
      const uint32_t f = 64 * w + (uint32_t)__builtin_ctzll(used[w]);
      for (; f - first >= e->fields_per_lane; first += e->fields_per_lane) lane++;
      lanes[lane] |= UINT32_C(1) << (f - first) * e->field_bits;
    }
  memcpy(codes, lanes, e->code_lanes * sizeof *codes);
}

/* Sets the bits of the fields whose sums are not 0. */
static void find_sums(const struct sml_exact *e, uint64_t *used, const int32_t *codes) {
  const uint32_t mask = (UINT32_C(1) << e->field_bits) - 1;
  for (uint32_t lane = 0, first = 0; lane < e->code_lanes; lane++, first += e->fields_per_lane) {
    const uint32_t end = sml_min_u32(first + e->fields_per_lane, e->num_fields);
    uint32_t fields = (uint32_t)codes[lane];
    for (uint32_t f = first; f < end && fields != 0; f++, fields = (uint32_t)((uint64_t)fields >> e->field_bits))
      used[f / 64] |= (uint64_t)((fields & mask) != 0) << f % 64;
  }
}

static bool is_used(const uint64_t *used, uint32_t field) {
  return (used[field / 64] >> field % 64 & 1) != 0;
}

static void lay_out(const struct sml_exact *e, struct sml_exact_layout *layout, const uint64_t *used) {
  uint32_t covered = 0; /* all bits below */
  layout->num_limbs = 0;
  for (uint32_t w = 0; w <= e->num_cells / 64; w++)
    for (uint64_t rest = used[w]; rest != 0; rest &= rest - 1) {
      const uint32_t cell = 64 * w + (uint32_t)__builtin_ctzll(rest), end = (cell + 1) << e->cell_log2;
      if (cell >= e->num_cells) break;
      for (covered = sml_max_u32(covered, cell << e->cell_log2); covered < end; covered += e->limb_bits)
        layout->positions[layout->num_limbs++] = (uint16_t)covered;
    }
  layout->counts_specials = is_used(used, specials_field(e));
  layout->counts_zeros = has_signed_zeros(e) && is_used(used, e->num_fields - 1);
  layout->num_lanes = layout->num_limbs + layout->counts_specials + layout->counts_zeros;
}

void sml_exact_lay_out(const struct sml_exact *e, struct sml_exact_layout *layout, const int32_t *codes) {
  uint64_t used[USED_WORDS] = {0};
  find_sums(e, used, codes);
  lay_out(e, layout, used);
}

/* ---- lanes ---- */

INLINE uint32_t special_of(struct number x) {
  if (!x.is_special) return 0;
  if (x.mantissa != 0) return POS_INFINITY | NEG_INFINITY;
  return x.is_negative ? NEG_INFINITY : POS_INFINITY;
}

INLINE void put(struct kind k, const struct sml_exact *e, const struct sml_exact_layout *layout, uint32_t num_done,
                int32_t *lanes, const void *in, size_t num_elems) {
  const uint64_t mask = (UINT64_C(1) << e->limb_bits) - 1;
  for (size_t i = 0; i < num_elems; i++) {
    const struct number x = read_number(k, in, i);
    const uint64_t mantissa = x.is_special ? 0 : x.mantissa;
    int32_t *lane = lanes + num_done * num_elems + i;
    for (uint32_t limb = num_done; limb < layout->num_limbs; limb++, lane += num_elems) {
      const int32_t up = (int32_t)x.position - layout->positions[limb];
      uint64_t part = 0;
      if (up >= 0 && up < (int32_t)e->limb_bits) part = mantissa << up & mask;
      if (up < 0 && up > -64) part = mantissa >> -up & mask;
      *lane = x.is_negative ? -(int32_t)part : (int32_t)part;
    }
    if (layout->counts_specials) *lane = (int32_t)special_of(x);
    if (layout->counts_specials) lane += num_elems;
    if (layout->counts_zeros) *lane = !x.is_special && x.mantissa == 0 && x.is_negative;
  }
}

void sml_exact_put(const struct sml_exact *e, const struct sml_exact_layout *layout, int32_t *lanes, const void *in,
                   size_t num_elems) {
  uint32_t num_done = 0;
  if (e->kernels->exact_limbs != NULL && num_elems == SML_BLOCK_ELEMS && !layout->counts_specials) {
    num_done = layout->num_limbs;
    e->kernels->exact_limbs(lanes, in, layout->positions, num_done, e->limb_bits, e->floats.mantissa_bits - 1);
  }
  if (num_done < layout->num_lanes) FOR_EACH_KIND(put, e->type, e, layout, num_done, lanes, in, num_elems);
}

/* ---- sums ---- */

/* The bits, without a sign, of (magnitude, and less than 1 more if has_rest) * 2^exponent / divisor. If there is a
 * rest, magnitude has 128 bits. */
static uint64_t round_magnitude(const struct sml_exact *e, sml_uint128 magnitude, bool has_rest, int32_t exponent,
                                uint32_t divisor) {
  const uint32_t up = sml_wide_leading_zeros(magnitude);
  magnitude <<= up;
  exponent -= (int32_t)up;
  if (divisor != 1 && sml_wide_divide(&magnitude, divisor)) has_rest = true;
  const uint32_t drop = 65 - sml_wide_leading_zeros(magnitude); /* a quotient has 116 bits or more */
  has_rest = has_rest || (magnitude & (((sml_uint128)1 << drop) - 1)) != 0;
  return sml_float_bits(e->floats, (uint64_t)(magnitude >> drop), exponent + (int32_t)drop, has_rest);
}

/* Limbs that are far apart: words of 32 bits, least first, from the first limb's last bit on. */
static uint64_t round_long(const struct sml_exact *e, const struct sml_exact_layout *layout, const int32_t *lanes,
                           size_t stride, uint32_t divisor) {
  int64_t sums[MAX_WORDS + 4] = {0}, carry = 0;
  uint64_t negated = 1;
  for (uint32_t limb = 0; limb < layout->num_limbs; limb++) {
    const uint32_t at = layout->positions[limb] - layout->positions[0];
    const int64_t value = (int64_t)lanes[limb * stride] * (INT64_C(1) << at % 32), low = value & 0xffffffff;
    sums[at / 32] += low;
    sums[at / 32 + 1] += (value - low) / (INT64_C(1) << 32);
  }
  for (uint32_t w = 0; w < MAX_WORDS; w++) {
    carry += sums[w];
    sums[w] = (uint32_t)carry;
    carry = (carry - sums[w]) / (INT64_C(1) << 32);
  }
  const bool is_negative = carry < 0;
  for (uint32_t w = 0; w < MAX_WORDS && is_negative; w++, negated >>= 32) {
    negated += (uint32_t) ~(uint32_t)sums[w];
    sums[w] = (uint32_t)negated;
  }
  uint32_t top = MAX_WORDS;
  while (top > 0 && sums[top - 1] == 0) top--;
  if (top == 0) return 0;
  const uint32_t num_bits = 32 * top - (uint32_t)__builtin_clz((uint32_t)sums[top - 1]);
  const uint32_t first = sml_max_u32(num_bits, 128) - 128; /* of the 128 bits that are looked at */
  sml_uint128 magnitude = 0;
  for (uint32_t w = 4; w-- > 0;) {
    const uint64_t two = (uint64_t)sums[first / 32 + w + 1] << 32 | (uint64_t)sums[first / 32 + w];
    magnitude = magnitude << 32 | (uint32_t)(two >> first % 32);
  }
  bool has_rest = ((uint64_t)sums[first / 32] & ((UINT64_C(1) << first % 32) - 1)) != 0;
  for (uint32_t w = 0; w < first / 32; w++) has_rest = has_rest || sums[w] != 0;
  const int32_t exponent = e->floats.least_exponent + (int32_t)(layout->positions[0] + first);
  return (uint64_t)is_negative << (8 * e->elem_bytes - 1) | round_magnitude(e, magnitude, has_rest, exponent, divisor);
}

static uint64_t round_short(const struct sml_exact *e, const struct sml_exact_layout *layout, const int32_t *lanes,
                            size_t stride, uint32_t divisor) {
  sml_int128 sum = 0;
  for (uint32_t limb = 0; limb < layout->num_limbs; limb++)
    sum += (sml_int128)lanes[limb * stride] * ((sml_int128)1 << (layout->positions[limb] - layout->positions[0]));
  if (sum == 0) return 0;
  const int32_t exponent = e->floats.least_exponent + layout->positions[0];
  const sml_uint128 magnitude = (sml_uint128)(sum < 0 ? -sum : sum);
  return (uint64_t)(sum < 0) << (8 * e->elem_bytes - 1) | round_magnitude(e, magnitude, false, exponent, divisor);
}

/* A whole block with limbs alone, by vectors; false if there are none for it. */
static bool round_block(const struct sml_exact *e, const struct sml_exact_layout *layout, void *out,
                        const int32_t *lanes, uint32_t divisor) {
  static const enum sml_elem elems[SML_NUM_FORMAT_TYPES] = {[SML_FORMAT_FLOAT16] = SML_ELEM_FLOAT16,
                                                            [SML_FORMAT_BFLOAT16] = SML_ELEM_BFLOAT16,
                                                            [SML_FORMAT_FLOAT32] = SML_ELEM_FLOAT32};
  const bool is_power_of_2 = (divisor & (divisor - 1)) == 0;
  const int32_t first = e->floats.least_exponent - (is_power_of_2 ? (int32_t)sml_ceil_log2(divisor) : 0);
  int32_t exponents[SML_EXACT_MAX_LIMBS];
  if (e->kernels->exact_floats == NULL) return false;
  for (uint32_t limb = 0; limb < layout->num_limbs; limb++) exponents[limb] = first + layout->positions[limb];
  if (e->type != SML_FORMAT_FLOAT64) {
    e->kernels->exact_floats(out, lanes, layout->num_limbs, exponents, elems[e->type], is_power_of_2 ? 1 : divisor);
    return true;
  }
  if (!is_power_of_2 || exponents[0] < -1022 || exponents[layout->num_limbs - 1] > 991) return false;
  e->kernels->exact_doubles(out, lanes, layout->num_limbs, exponents);
  return true;
}

/* Infinity, or the quiet NaN. */
static uint64_t special_bits(const struct sml_exact *e, uint32_t counts) {
  const uint32_t fraction_bits = e->floats.mantissa_bits - 1;
  const uint64_t infinity = (uint64_t)e->floats.num_fields << fraction_bits;
  const bool has_pos = (counts & 0xffff) != 0, has_neg = counts >> 16 != 0;
  if (has_pos && has_neg) return infinity | UINT64_C(1) << (fraction_bits - 1);
  return (uint64_t)has_neg << (8 * e->elem_bytes - 1) | infinity;
}

void sml_exact_round(const struct sml_exact *e, const struct sml_exact_layout *layout, void *out, const int32_t *lanes,
                     size_t num_elems, bool average) {
  const uint32_t divisor = average ? e->world_size : 1, num_limbs = layout->num_limbs;
  const bool is_whole = num_elems == SML_BLOCK_ELEMS && num_limbs > 0 && layout->num_lanes == num_limbs;
  if (layout->num_lanes == 0) {
    memset(out, 0, num_elems * e->elem_bytes);
    return;
  }
  if (is_whole && round_block(e, layout, out, lanes, divisor)) return;
  const bool is_short = num_limbs > 0 && layout->positions[num_limbs - 1] <= layout->positions[0] + SHORT_BITS;
  for (size_t i = 0; i < num_elems; i++) {
    const int32_t *counts = lanes + num_limbs * num_elems + i;
    uint64_t bits = 0;
    if (is_short) bits = round_short(e, layout, lanes + i, num_elems, divisor);
    else if (num_limbs > 0) bits = round_long(e, layout, lanes + i, num_elems, divisor);
    const uint32_t specials = layout->counts_specials ? (uint32_t)*counts : 0;
    if (layout->counts_specials) counts += num_elems;
    if (specials != 0) bits = special_bits(e, specials);
    /* All are: then no limb, and no special, is any rank's. */
    else if (layout->counts_zeros && (uint32_t)*counts == e->world_size) bits = UINT64_C(1) << (8 * e->elem_bytes - 1);
    store((uint8_t *)out + i * e->elem_bytes, bits, e->elem_bytes);
  }
}

bool sml_exact_reduce(const struct sml_exact *e, void *out, const void *const *in, size_t num_elems, bool average) {
  int32_t sum[MOST_REDUCED * SML_BLOCK_ELEMS], other[MOST_REDUCED * SML_BLOCK_ELEMS];
  const int32_t *const both[] = {sum, other};
  uint64_t used[USED_WORDS] = {0};
  struct sml_exact_layout layout;
  for (uint32_t rank = 0; rank < e->world_size; rank++) add_used(e, used, in[rank], num_elems);
  lay_out(e, &layout, used);
  if (layout.num_lanes > MOST_REDUCED) return false;
  for (uint32_t rank = 0; rank < e->world_size; rank++) {
    sml_exact_put(e, &layout, rank == 0 ? sum : other, in[rank], num_elems);
    if (rank > 0) e->kernels->reduce_int32(sum, both, 2, layout.num_lanes * num_elems);
  }
  sml_exact_round(e, &layout, out, sum, num_elems, average);
  return true;
}
