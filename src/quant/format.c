/* SPDX-License-Identifier: Apache-2.0 */
#include "quant/format.h"

#include "quant/double_limbs.h"
#include "quant/doubles.h"
#include "quant/elem.h"
#include "quant/limbs.h"
#include "quant/wide.h"

#define RUN_ELEMS 256u /* what is converted at a time, on the stack */
#define INT64_LANES 3u
/* Up to here 16 bits keep all digits of the largest float16: 11 are left beside the sum's room. */
#define PACKED_USUAL_RANKS 16u

typedef const struct sml_quant_kernels kernels;

/* What the functions of a format get (format.h), and those functions that are one call. */
#define UNUSED __attribute__((unused))
#define CODE_ARGUMENTS UNUSED kernels *k, const void *in, size_t num_elems
#define PUT_ARGUMENTS \
  UNUSED kernels *k, void *lanes, const void *in, size_t num_elems, UNUSED uint8_t code, UNUSED uint32_t world_size
#define GET_ARGUMENTS                                                                                                 \
  UNUSED kernels *k, void *out, const void *lanes, size_t num_elems, UNUSED uint8_t code, UNUSED uint32_t world_size, \
      UNUSED bool average
#define REDUCE_ARGUMENTS \
  UNUSED kernels *k, void *out, const void *const *in, uint32_t num_inputs, size_t num_elems, UNUSED bool average
#define CODE(name, call)                \
  static uint8_t name(CODE_ARGUMENTS) { \
    return call;                        \
  }
#define PUT(name, call)             \
  static void name(PUT_ARGUMENTS) { \
    call;                           \
  }
#define GET(name, call)             \
  static void name(GET_ARGUMENTS) { \
    call;                           \
  }
#define REDUCE(name, call)             \
  static void name(REDUCE_ARGUMENTS) { \
    call;                              \
  }

/* ---- float32, int32: the kernels as they are ---- */

CODE(float32_code, k->block_code(in, num_elems))
PUT(float32_put, k->quantize(lanes, in, num_elems, code, world_size))
PUT(float32_add, k->quantize_add(lanes, in, num_elems, code, world_size))
GET(float32_get, k->dequantize(out, lanes, num_elems, code, world_size, average))
REDUCE(float32_reduce, k->reduce_floats(out, (const float *const *)in, num_inputs, num_elems, average))
PUT(int32_put, k->pack_int32(lanes, in, num_elems))
PUT(int32_add, k->pack_add_int32(lanes, in, num_elems))
GET(int32_get, k->unpack_int32(out, lanes, num_elems))
REDUCE(int32_reduce, k->reduce_int32(out, (const int32_t *const *)in, num_inputs, num_elems))

/* ---- exact sums of float32 ---- */

PUT(exact_put, sml_limbs_put(lanes, in, num_elems, world_size))
PUT(exact_add, sml_limbs_add(lanes, in, num_elems, world_size))
GET(exact_get, sml_limbs_round(out, lanes, num_elems, world_size, average))
REDUCE(exact_reduce, sml_limbs_reduce(out, (const float *const *)in, num_inputs, num_elems, average))

/* ---- 16-bit types, by way of float32 ---- */

typedef void put_floats(kernels *k, void *lanes, const void *in, size_t num_elems, uint8_t code, uint32_t world_size);

/* What `put` of float32 does, run by run; lane_bytes: of an element. */
static inline void put_widened(kernels *k, uint8_t *lanes, const uint8_t *in, size_t num_elems, enum sml_elem elem,
                               uint8_t code, uint32_t world_size, put_floats *put, size_t lane_bytes) {
  float run[RUN_ELEMS];
  for (size_t done = 0; done < num_elems; done += RUN_ELEMS) {
    const size_t num = sml_min_u64(RUN_ELEMS, num_elems - done);
    k->widen(run, in + 2 * done, num, elem);
    put(k, lanes + lane_bytes * done, run, num, code, world_size);
  }
}

static size_t limbs_bytes(uint32_t world_size) {
  return 4 * (size_t)sml_limbs_per_elem(world_size);
}

/* The 16-bit element nearest to a float that was rounded to odd. */
static uint32_t narrowed(uint32_t bits, enum sml_elem elem) {
  const uint32_t sign = bits >> 16 & 0x8000, field = bits >> 23 & 0xff, fraction = bits & 0x7fffff;
  if (field == 0xff) {
    if (fraction != 0) return sml_elem_unscaled_bits(SML_CODE_NONFINITE, elem);
    return sign | (elem == SML_ELEM_FLOAT16 ? 0x7c00 : 0x7f80);
  }
  const struct sml_float_layout layout = elem == SML_ELEM_FLOAT16 ? SML_LAYOUT_FLOAT16 : SML_LAYOUT_BFLOAT16;
  const uint64_t mantissa = fraction | (field > 0 ? SML_HIDDEN_BIT : 0);
  return sign | (uint32_t)sml_float_bits(layout, mantissa, (int32_t)sml_max_u32(field, 1) - 150, false);
}

static void get_exactly(uint8_t *out, const uint8_t *lanes, size_t num_elems, enum sml_elem elem, uint32_t world_size,
                        bool average) {
  for (size_t i = 0; i < num_elems; i++, lanes += limbs_bytes(world_size)) {
    float odd;
    uint32_t bits;
    sml_limbs_round_to_odd(&odd, lanes, 1, world_size, average);
    memcpy(&bits, &odd, sizeof bits);
    sml_elem_store(out + 2 * i, narrowed(bits, elem), elem);
  }
}

static void reduce_exactly(kernels *k, uint8_t *out, const void *const *in, uint32_t num_inputs, size_t num_elems,
                           enum sml_elem elem, bool average) {
  uint8_t lanes[4 * SML_LIMBS_MAX_PER_ELEM];
  for (size_t i = 0; i < num_elems; i++) {
    memset(lanes, 0, sizeof lanes);
    for (uint32_t w = 0; w < num_inputs; w++)
      put_widened(k, lanes, (const uint8_t *)in[w] + 2 * i, 1, elem, 0, num_inputs, exact_add, limbs_bytes(num_inputs));
    get_exactly(out + 2 * i, lanes, 1, elem, num_inputs, average);
  }
}

static void reduce_wide(kernels *k, uint8_t *out, const void *const *in, uint32_t num_inputs, size_t num_elems,
                        enum sml_elem elem, bool average) {
  uint8_t code = SML_CODE_ZERO, lanes[4 * RUN_ELEMS];
  for (uint32_t w = 0; w < num_inputs; w++) code = (uint8_t)sml_max_u32(code, k->block_code_16(in[w], num_elems, elem));
  for (size_t done = 0; done < num_elems; done += RUN_ELEMS) {
    const size_t num = sml_min_u64(RUN_ELEMS, num_elems - done);
    memset(lanes, 0, 4 * num);
    for (uint32_t w = 0; w < num_inputs; w++)
      put_widened(k, lanes, (const uint8_t *)in[w] + 2 * done, num, elem, code, num_inputs, float32_add, 4);
    k->dequantize_16(out + 2 * done, lanes, num, elem, code, num_inputs, average);
  }
}

/* Functions of a type: each calls the one that has the type as an argument. */
#define WIDENED_FUNCTIONS(name, elem)                                                                   \
  CODE(name##_code, k->block_code_16(in, num_elems, elem))                                              \
  PUT(name##_exact_put,                                                                                 \
      put_widened(k, lanes, in, num_elems, elem, code, world_size, exact_put, limbs_bytes(world_size))) \
  PUT(name##_exact_add,                                                                                 \
      put_widened(k, lanes, in, num_elems, elem, code, world_size, exact_add, limbs_bytes(world_size))) \
  GET(name##_exact_get, get_exactly(out, lanes, num_elems, elem, world_size, average))                  \
  REDUCE(name##_exact_reduce, reduce_exactly(k, out, in, num_inputs, num_elems, elem, average))         \
  PUT(name##_wide_put, put_widened(k, lanes, in, num_elems, elem, code, world_size, float32_put, 4))    \
  PUT(name##_wide_add, put_widened(k, lanes, in, num_elems, elem, code, world_size, float32_add, 4))    \
  GET(name##_wide_get, k->dequantize_16(out, lanes, num_elems, elem, code, world_size, average))        \
  REDUCE(name##_wide_reduce, reduce_wide(k, out, in, num_inputs, num_elems, elem, average))

WIDENED_FUNCTIONS(float16, SML_ELEM_FLOAT16)
WIDENED_FUNCTIONS(bfloat16, SML_ELEM_BFLOAT16)

/* ---- two elements a lane ---- */

#define PACKED_FUNCTIONS(name, elem)                                                        \
  PUT(name##_packed_put, k->pack(lanes, in, num_elems, elem, code, world_size))             \
  PUT(name##_packed_add, k->pack_add(lanes, in, num_elems, elem, code, world_size))         \
  GET(name##_packed_get, k->unpack(out, lanes, num_elems, elem, code, world_size, average)) \
  REDUCE(name##_packed_reduce, k->reduce_packed(out, in, num_inputs, num_elems, elem, average))

PACKED_FUNCTIONS(float32, SML_ELEM_FLOAT32)
PACKED_FUNCTIONS(float16, SML_ELEM_FLOAT16)
PACKED_FUNCTIONS(bfloat16, SML_ELEM_BFLOAT16)

/* ---- float64 ---- */

CODE(float64_code, sml_doubles_block_code(in, num_elems))

#define FLOAT64_FUNCTIONS(name, num_lanes)                                                      \
  PUT(name##_add, sml_doubles_add(lanes, in, num_elems, num_lanes, code, world_size))           \
  static void name##_put(PUT_ARGUMENTS) {                                                       \
    memset(lanes, 0, 4 * (size_t)(num_lanes)*num_elems);                                        \
    name##_add(k, lanes, in, num_elems, code, world_size);                                      \
  }                                                                                             \
  GET(name##_get, sml_doubles_get(out, lanes, num_elems, num_lanes, code, world_size, average)) \
  REDUCE(name##_reduce, sml_doubles_reduce(out, in, num_inputs, num_elems, num_lanes, average))

FLOAT64_FUNCTIONS(float64_two, 2)
FLOAT64_FUNCTIONS(float64_three, 3)

PUT(float64_exact_put, sml_double_limbs_put(lanes, in, num_elems, world_size))
PUT(float64_exact_add, sml_double_limbs_add(lanes, in, num_elems, world_size))
GET(float64_exact_get, sml_double_limbs_round(out, lanes, num_elems, world_size, average))
REDUCE(float64_exact_reduce, sml_double_limbs_reduce(out, in, num_inputs, num_elems, average))

/* ---- int64: bits 0 .. 15, 16 .. 31 and 32 .. 63. Sums of the first two fit a lane, that of the last wraps ---- */

static uint64_t load_64(const uint8_t *p) {
  uint64_t value;
  memcpy(&value, p, sizeof value);
  return value;
}

static void int64_add(PUT_ARGUMENTS) {
  uint8_t *to = lanes;
  for (size_t i = 0; i < num_elems; i++, to += 4 * INT64_LANES) {
    const uint64_t value = load_64((const uint8_t *)in + 8 * i);
    sml_lane_add(to, value & 0xffff);
    sml_lane_add(to + 4, value >> 16 & 0xffff);
    sml_lane_add(to + 8, (uint32_t)(value >> 32));
  }
}

static void int64_put(PUT_ARGUMENTS) {
  memset(lanes, 0, 4 * INT64_LANES * num_elems);
  int64_add(k, lanes, in, num_elems, code, world_size);
}

static void int64_get(GET_ARGUMENTS) {
  const uint8_t *from = lanes;
  for (size_t i = 0; i < num_elems; i++, from += 4 * INT64_LANES) {
    const uint64_t low = sml_load_be32(from), middle = sml_load_be32(from + 4), high = sml_load_be32(from + 8);
    const uint64_t value = low + (middle << 16) + (high << 32);
    memcpy((uint8_t *)out + 8 * i, &value, sizeof value);
  }
}

static void int64_reduce(REDUCE_ARGUMENTS) {
  for (size_t i = 0; i < num_elems; i++) {
    uint64_t sum = 0;
    for (uint32_t w = 0; w < num_inputs; w++) sum += load_64((const uint8_t *)in[w] + 8 * i);
    memcpy((uint8_t *)out + 8 * i, &sum, sizeof sum);
  }
}

/* ---- int8: unsigned bytes, two a lane where 16 bits have room for their sum; a sum is its last 8 bits ---- */

#define BYTE_PAIR_RANKS 256u

static void add_bytes(uint8_t *lanes, const uint8_t *in, size_t num_elems, size_t num_lanes) {
  for (size_t i = 0; i < num_lanes; i++) sml_lane_add(lanes + 4 * i, in[i]);
  for (size_t i = num_lanes; i < num_elems; i++) sml_lane_add(lanes + 4 * (i - num_lanes), (uint32_t)in[i] << 16);
}

static void get_bytes(uint8_t *out, const uint8_t *lanes, size_t num_elems, size_t num_lanes) {
  for (size_t i = 0; i < num_lanes; i++) out[i] = lanes[4 * i + 3];
  for (size_t i = num_lanes; i < num_elems; i++) out[i] = lanes[4 * (i - num_lanes) + 1];
}

#define BYTE_FUNCTIONS(name, num_lanes)                       \
  PUT(name##_add, add_bytes(lanes, in, num_elems, num_lanes)) \
  static void name##_put(PUT_ARGUMENTS) {                     \
    memset(lanes, 0, 4 * (num_lanes));                        \
    name##_add(k, lanes, in, num_elems, code, world_size);    \
  }                                                           \
  GET(name##_get, get_bytes(out, lanes, num_elems, num_lanes))

BYTE_FUNCTIONS(int8, num_elems)
BYTE_FUNCTIONS(int8_packed, (num_elems + 1) / 2)

static void int8_reduce(REDUCE_ARGUMENTS) {
  for (size_t i = 0; i < num_elems; i++) {
    uint32_t sum = 0;
    for (uint32_t w = 0; w < num_inputs; w++) sum += ((const uint8_t *)in[w])[i];
    ((uint8_t *)out)[i] = (uint8_t)sum;
  }
}
#define int8_packed_reduce int8_reduce

/* ---- which ---- */

#define FORMAT(name, elem, unit, code, ...)                                                           \
  {                                                                                                   \
    .elem_bytes = elem, .unit_bytes = unit, .block_code = code, .put = name##_put, .add = name##_add, \
    .get = name##_get, .reduce = name##_reduce, __VA_ARGS__                                           \
  }

const struct sml_format sml_formats[SML_NUM_FORMAT_TYPES][SML_NUM_SHAPES] = {
    [SML_FORMAT_FLOAT32] = {[SML_SHAPE_EXACT] = FORMAT(exact, 4, 4, NULL),
                            [SML_SHAPE_WIDE] = FORMAT(float32, 4, 4, float32_code, .reduces_blocks = true),
                            [SML_SHAPE_PACKED] = FORMAT(float32_packed, 4, 2, float32_code)},
    [SML_FORMAT_INT32] = {[SML_SHAPE_EXACT] = FORMAT(int32, 4, 4, NULL)},
    [SML_FORMAT_FLOAT16] = {[SML_SHAPE_EXACT] = FORMAT(float16_exact, 2, 4, NULL),
                            [SML_SHAPE_WIDE] = FORMAT(float16_wide, 2, 4, float16_code),
                            [SML_SHAPE_PACKED] = FORMAT(float16_packed, 2, 2, float16_code)},
    [SML_FORMAT_BFLOAT16] = {[SML_SHAPE_EXACT] = FORMAT(bfloat16_exact, 2, 4, NULL),
                             [SML_SHAPE_WIDE] = FORMAT(bfloat16_wide, 2, 4, bfloat16_code),
                             [SML_SHAPE_PACKED] = FORMAT(bfloat16_packed, 2, 2, bfloat16_code)},
    [SML_FORMAT_FLOAT64] = {[SML_SHAPE_EXACT] = FORMAT(float64_exact, 8, 8, NULL),
                            [SML_SHAPE_WIDE] = FORMAT(float64_two, 8, 8, float64_code),
                            [SML_SHAPE_LONG] = FORMAT(float64_three, 8, 12, float64_code)},
    [SML_FORMAT_INT64] = {[SML_SHAPE_EXACT] = FORMAT(int64, 8, 12, NULL)},
    [SML_FORMAT_INT8] =
        {[SML_SHAPE_EXACT] = FORMAT(int8, 1, 4, NULL), [SML_SHAPE_PACKED] = FORMAT(int8_packed, 1, 2, NULL)},
    [SML_FORMAT_UINT8] =
        {[SML_SHAPE_EXACT] = FORMAT(int8, 1, 4, NULL), [SML_SHAPE_PACKED] = FORMAT(int8_packed, 1, 2, NULL)},
    [SML_FORMAT_UINT32] = {[SML_SHAPE_EXACT] = FORMAT(int32, 4, 4, NULL)},
    [SML_FORMAT_UINT64] = {[SML_SHAPE_EXACT] = FORMAT(int64, 8, 12, NULL)},
};

uint32_t sml_format_elem_bytes(uint32_t type) {
  static const uint8_t bytes[SML_NUM_FORMAT_TYPES] = {4, 4, 2, 2, 8, 8, 1, 1, 4, 8};
  SML_ASSERT(type < SML_NUM_FORMAT_TYPES);
  return bytes[type];
}

bool sml_format_is_float(uint32_t type) {
  return type == SML_FORMAT_FLOAT32 || (type >= SML_FORMAT_FLOAT16 && type <= SML_FORMAT_FLOAT64);
}

static bool fits_exact_double(uint32_t world_size, struct sml_format_options options) {
  return options.chunk_bytes == 0 || options.chunk_bytes >= 4 * sml_double_limbs_per_elem(world_size);
}

bool sml_format_has_doubles(uint64_t num_elems, uint32_t world_size, struct sml_format_options options) {
  return options.float64_bits != 0 || (num_elems <= SML_LIMBS_MAX_ELEMS && fits_exact_double(world_size, options));
}

static struct sml_format_shape choose_float64(uint64_t num_elems, uint32_t world_size,
                                              struct sml_format_options options) {
  if (sml_limbs_is_exact(num_elems, world_size) && fits_exact_double(world_size, options))
    return (struct sml_format_shape){.elem_lanes = (uint8_t)sml_double_limbs_per_elem(world_size)};
  return (struct sml_format_shape){.has_exponents = true, .elem_lanes = options.float64_bits > 64 ? 3 : 2};
}

struct sml_format_shape sml_format_choose(uint32_t type, uint64_t num_elems, uint32_t world_size,
                                          struct sml_format_options options) {
  struct sml_format_shape shape = {.has_exponents = false};
  if (type == SML_FORMAT_INT64 || type == SML_FORMAT_UINT64) shape.elem_lanes = INT64_LANES;
  if (sml_format_elem_bytes(type) == 1 && world_size <= BYTE_PAIR_RANKS) shape.lane_elems = 2;
  if (!sml_format_is_float(type)) return shape;
  if (type == SML_FORMAT_FLOAT64) return choose_float64(num_elems, world_size, options);
  if (sml_limbs_is_exact(num_elems, world_size)) {
    shape.elem_lanes = (uint8_t)sml_limbs_per_elem(world_size);
    return shape;
  }
  shape.has_exponents = true;
  const uint32_t usual = type == SML_FORMAT_FLOAT32 ? 0 : PACKED_USUAL_RANKS;
  const uint32_t most = options.float_bits == 32 ? 0 : options.float_bits == 16 ? SML_PACKED_MAX_RANKS : usual;
  shape.lane_elems = world_size <= most ? 2 : 0;
  return shape;
}

/* ---- bounds ---- */

/* Half a unit in the last place of a finite result; 0 is exact, or all of it is the fixed point's fault. */
static double half_ulp(uint32_t type, double result) {
  static const struct {
    int32_t mantissa_bits, least_exponent;
  } layouts[SML_NUM_FORMAT_TYPES] = {{24, -149}, {0, 0}, {11, -24}, {8, -133}, {53, -1074}};
  uint64_t bits;
  memcpy(&bits, &result, sizeof bits);
  const int32_t field = (int32_t)(bits >> 52 & 0x7ff), least = layouts[type].least_exponent;
  int32_t unit = field - 1023 - (layouts[type].mantissa_bits - 1);
  if (unit < least) unit = least;
  return unit < -1021 ? 0x1p-1021 : sml_quant_pow2(unit - 1);
}

double sml_format_error_bound(uint32_t type, struct sml_format_shape shape, uint8_t code, uint32_t world_size,
                              bool average, double result) {
  if (!sml_format_is_float(type)) return 0;
  if (code == SML_CODE_NONFINITE || !(result - result == 0)) return __builtin_inf();
  const double num_shares = average ? 1 : (double)world_size, rounding = half_ulp(type, result);
  if (!shape.has_exponents) return rounding;
  const bool is_double = type == SML_FORMAT_FLOAT64;
  if (is_double ? code == 0 : !sml_quant_is_scaled(code)) return num_shares * sml_quant_pow2(is_double ? -999 : -100);
  static const uint8_t digits[SML_NUM_FORMAT_TYPES] = {24, 0, 11, 8, 53};
  const uint32_t num_bits = is_double              ? sml_doubles_bits(shape.elem_lanes, world_size)
                            : shape.lane_elems > 1 ? 15 - sml_ceil_log2(world_size)
                                                   : 30 - sml_ceil_log2(world_size);
  const int32_t unit =
      is_double ? sml_doubles_unit(shape.elem_lanes, code, world_size) : (int32_t)code - 126 - (int32_t)num_bits;
  const bool is_cut = digits[type] > num_bits && (is_double || shape.lane_elems > 1);
  return num_shares * sml_quant_pow2(unit < -1021 ? -1021 : is_cut ? unit : unit - 1) + rounding;
}
