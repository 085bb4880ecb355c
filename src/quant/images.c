/* SPDX-License-Identifier: Apache-2.0 */
#include "quant/images.h"

#define RUN_ELEMS 256u /* what is combined at a time, on the stack */

/* What an element's bits become: `flip` is what all of them are XORed with in the end. */
struct map {
  uint64_t flip, sign, mask; /* mask: all bits of an element */
  uint64_t infinity, nan;    /* floats: bits of both, the NaN that stands for all */
  bool is_float, is_truth;   /* is_truth: whether the element is 0 is all that counts */
};

static const struct {
  uint64_t infinity, nan;
  bool is_signed;
} kinds[SML_NUM_FORMAT_TYPES] = {
    [SML_FORMAT_FLOAT32] = {UINT64_C(0x7f800000), UINT64_C(0x7fc00000), false},
    [SML_FORMAT_FLOAT16] = {0x7c00, 0x7e00, false},
    [SML_FORMAT_BFLOAT16] = {0x7f80, 0x7fc0, false},
    [SML_FORMAT_FLOAT64] = {UINT64_C(0x7ff0) << 48, UINT64_C(0x7ff8) << 48, false},
    [SML_FORMAT_INT32] = {.is_signed = true},
    [SML_FORMAT_INT64] = {.is_signed = true},
    [SML_FORMAT_INT8] = {.is_signed = true},
};

static struct map map_of(uint32_t type, uint32_t reduction) {
  const uint32_t num_bits = 8 * sml_format_elem_bytes(type);
  const bool is_complement = reduction == SML_FORMAT_MIN || reduction == SML_FORMAT_BAND;
  const bool is_ordered = reduction == SML_FORMAT_MIN || reduction == SML_FORMAT_MAX;
  struct map m = {.sign = UINT64_C(1) << (num_bits - 1),
                  .mask = UINT64_MAX >> (64 - num_bits),
                  .infinity = kinds[type].infinity,
                  .nan = kinds[type].nan,
                  .is_float = sml_format_is_float(type),
                  .is_truth = reduction == SML_FORMAT_LAND || reduction == SML_FORMAT_LOR};
  if (m.is_truth) m.flip = reduction == SML_FORMAT_LAND;
  else m.flip = (is_complement ? m.mask : 0) ^ (is_ordered && kinds[type].is_signed ? m.sign : 0);
  return m;
}

static inline bool is_nan(const struct map *m, uint64_t bits) {
  return (bits & (m->mask ^ m->sign)) > m->infinity;
}

/* Floats ascend as unsigned numbers do once negative ones are complemented and others have the sign bit. A NaN is above
 * all in the end: of the sign that does that. */
static inline uint64_t image_of(const struct map *m, uint64_t bits) {
  if (m->is_truth) return (bits != 0) ^ m->flip;
  if (m->is_float) {
    if (is_nan(m, bits)) bits = m->nan | (m->flip != 0 ? m->sign : 0);
    bits ^= (bits & m->sign) != 0 ? m->mask : m->sign;
  }
  return bits ^ m->flip;
}

static inline uint64_t elem_of(const struct map *m, uint64_t image) {
  uint64_t bits = image ^ m->flip;
  if (m->is_truth) return bits & 1;
  if (!m->is_float) return bits;
  bits ^= (bits & m->sign) != 0 ? m->sign : m->mask;
  return is_nan(m, bits) ? m->nan : bits;
}

/* ---- elements and lanes of any width ---- */

static inline uint64_t load_elem(const uint8_t *p, uint32_t num_bytes) {
  uint16_t half;
  uint32_t word;
  uint64_t pair;
  switch (num_bytes) {
    case 1: return *p;
    case 2: memcpy(&half, p, sizeof half); return half;
    case 4: memcpy(&word, p, sizeof word); return word;
    default: memcpy(&pair, p, sizeof pair); return pair;
  }
}

static inline void store_elem(uint8_t *p, uint64_t bits, uint32_t num_bytes) {
  const uint16_t half = (uint16_t)bits;
  const uint32_t word = (uint32_t)bits;
  switch (num_bytes) {
    case 1: *p = (uint8_t)bits; break;
    case 2: memcpy(p, &half, sizeof half); break;
    case 4: memcpy(p, &word, sizeof word); break;
    default: memcpy(p, &bits, sizeof bits); break;
  }
}

static inline uint64_t load_image(const uint8_t *p, uint32_t unit_bytes) {
  return unit_bytes == 1 ? *p : unit_bytes == 4 ? sml_load_be32(p) : sml_load_be64(p);
}

static inline void store_image(uint8_t *p, uint64_t image, uint32_t unit_bytes) {
  if (unit_bytes == 1) *p = (uint8_t)image;
  else if (unit_bytes == 4) sml_store_be32(p, (uint32_t)image);
  else sml_store_be64(p, image);
}

/* A loop for each pair of widths that there is, so that none of them is asked for in it. */
#define EACH_WIDTH(loop, elem_bytes, unit_bytes) \
  switch ((elem_bytes) << 4 | (unit_bytes)) {    \
    case 0x11: loop(1, 1); break;                \
    case 0x14: loop(1, 4); break;                \
    case 0x24: loop(2, 4); break;                \
    case 0x41: loop(4, 1); break;                \
    case 0x44: loop(4, 4); break;                \
    case 0x81: loop(8, 1); break;                \
    case 0x84: loop(8, 4); break;                \
    case 0x88: loop(8, 8); break;                \
    default: SML_ASSERT(false);                  \
  }

void sml_images_put(void *lanes, const void *in, size_t num_elems, struct sml_images images) {
  const struct map m = map_of(images.type, images.reduction);
  uint8_t *to = lanes;
  const uint8_t *from = in;
#define PUT(elem, unit)                  \
  for (size_t i = 0; i < num_elems; i++) \
  store_image(to + (unit)*i, image_of(&m, load_elem(from + (elem)*i, elem)), unit)
  EACH_WIDTH(PUT, sml_format_elem_bytes(images.type), images.unit_bytes)
#undef PUT
  for (size_t i = num_elems; images.unit_bytes == 1 && i % 4 != 0; i++) to[i] = 0;
}

void sml_images_get(void *out, const void *lanes, size_t num_elems, struct sml_images images) {
  const struct map m = map_of(images.type, images.reduction);
  uint8_t *to = out;
  const uint8_t *from = lanes;
#define GET(elem, unit) \
  for (size_t i = 0; i < num_elems; i++) store_elem(to + (elem)*i, elem_of(&m, load_image(from + (unit)*i, unit)), elem)
  EACH_WIDTH(GET, sml_format_elem_bytes(images.type), images.unit_bytes)
#undef GET
}

/* ---- which ---- */

static enum sml_combine combine_of(uint32_t reduction, uint32_t unit_bytes) {
  switch (reduction) {
    case SML_FORMAT_PRODUCT: return unit_bytes == 8 ? SML_COMBINE_PRODUCT_64 : SML_COMBINE_PRODUCT_32;
    case SML_FORMAT_BAND:
    case SML_FORMAT_BOR: return SML_COMBINE_OR;
    default: return unit_bytes == 1 ? SML_COMBINE_MAX_8 : unit_bytes == 4 ? SML_COMBINE_MAX_32 : SML_COMBINE_MAX_64;
  }
}

struct sml_format_shape sml_images_shape(uint32_t type, uint32_t reduction, uint64_t num_elems, uint32_t world_size,
                                         struct sml_format_options options) {
  if (reduction <= SML_FORMAT_AVG) return sml_format_choose(type, num_elems, world_size, options);
  const uint32_t elem_bytes = sml_format_elem_bytes(type);
  const bool is_truth = reduction == SML_FORMAT_LAND || reduction == SML_FORMAT_LOR;
  const bool is_byte = !options.is_of_switch && (is_truth || (elem_bytes == 1 && reduction != SML_FORMAT_PRODUCT));
  const uint32_t unit_bytes = is_byte ? 1 : is_truth || elem_bytes < 8 ? 4 : 8;
  return (struct sml_format_shape){.elem_lanes = unit_bytes == 8 ? 2 : 0,
                                   .lane_elems = unit_bytes == 1 ? 4 : 0,
                                   .combine = (uint8_t)combine_of(reduction, unit_bytes)};
}

/* ---- several contributions ---- */

void sml_images_combine(const struct sml_quant_kernels *k, void *lanes, const void *others, size_t num_lanes,
                        enum sml_combine how) {
  uint32_t acc[2 * RUN_ELEMS];
  uint8_t *to = lanes;
  const uint8_t *from = others;
  if (how == SML_COMBINE_MAX_8) {
    k->max_uint8(to, from, 4 * num_lanes);
    return;
  }
  for (size_t done = 0; done < num_lanes; done += SML_ARRAY_LEN(acc)) {
    const size_t num = sml_min_u64(SML_ARRAY_LEN(acc), num_lanes - done);
    k->unpack_int32((int32_t *)acc, to + 4 * done, num);
    k->combine(acc, from + 4 * done, num, how);
    k->pack_int32(to + 4 * done, (const int32_t *)acc, num);
  }
}

void sml_images_add(const struct sml_quant_kernels *k, void *lanes, const void *in, size_t num_elems,
                    struct sml_images images) {
  const uint32_t elem_bytes = sml_format_elem_bytes(images.type);
  uint8_t run[8 * RUN_ELEMS];
  for (size_t done = 0; done < num_elems; done += RUN_ELEMS) {
    const size_t num = sml_min_u64(RUN_ELEMS, num_elems - done);
    sml_images_put(run, (const uint8_t *)in + elem_bytes * done, num, images);
    sml_images_combine(k, (uint8_t *)lanes + images.unit_bytes * done, run, sml_div_ceil(num * images.unit_bytes, 4),
                       combine_of(images.reduction, images.unit_bytes));
  }
}

void sml_images_reduce(const struct sml_quant_kernels *k, void *out, const void *const *in, uint32_t num_inputs,
                       size_t num_elems, struct sml_images images) {
  const uint32_t elem_bytes = sml_format_elem_bytes(images.type);
  uint8_t run[8 * RUN_ELEMS];
  for (size_t done = 0; done < num_elems; done += RUN_ELEMS) {
    const size_t num = sml_min_u64(RUN_ELEMS, num_elems - done), offset = elem_bytes * done;
    sml_images_put(run, (const uint8_t *)in[0] + offset, num, images);
    for (uint32_t w = 1; w < num_inputs; w++) sml_images_add(k, run, (const uint8_t *)in[w] + offset, num, images);
    sml_images_get((uint8_t *)out + offset, run, num, images);
  }
}
