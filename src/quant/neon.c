/* SPDX-License-Identifier: Apache-2.0
 * The kernels for NEON as every AArch64 processor has it: four elements at a time. */
#include "quant/kernels.h"

#if SML_QUANT_HAS_NEON
#include <arm_neon.h>

#define VECTOR
#define VECTOR_ELEMS ((size_t)4)

typedef uint32x4_t vint;
typedef float32x4_t vfloat;

#define load(p) vreinterpretq_u32_u8(vld1q_u8(p))
#define store(p, v) vst1q_u8(p, vreinterpretq_u8_u32(v))
#define swap_lanes(v) vreinterpretq_u32_u8(vrev32q_u8(vreinterpretq_u8_u32(v)))
#define fill vdupq_n_u32
#define fill_float vdupq_n_f32
#define add vaddq_u32
#define multiply vmulq_u32
#define and_bits vandq_u32
#define max_u32 vmaxq_u32
#define max_u8(a, b) vreinterpretq_u32_u8(vmaxq_u8(vreinterpretq_u8_u32(a), vreinterpretq_u8_u32(b)))
#define scale_float vmulq_f32
/* a product is no signaling NaN: minnm gives the number */
#define clamp(x, lower, upper) vmaxq_f32(vminnmq_f32(x, upper), lower)
#define bits_of vreinterpretq_u32_f32
#define float_of vreinterpretq_f32_u32
#define to_int(x) vreinterpretq_u32_s32(vcvtnq_s32_f32(x))
#define to_float(v) vcvtq_f32_s32(vreinterpretq_s32_u32(v))

#define FPCR_FLUSH (UINT64_C(1) << 24) /* the rest 0: to nearest, nothing traps */

/* Control, and the sticky flags, which are restored too. The memory clobbers keep the arithmetic between `enter` and
 * `leave`: it uses what is loaded after the one and is stored before the other. */
typedef struct {
  uint64_t control, flags;
} environment;

static inline environment enter(bool is_flushing) {
  const uint64_t control = is_flushing ? FPCR_FLUSH : 0;
  environment saved;
  __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(saved.control), "=r"(saved.flags) : : "memory");
  if (saved.control != control) __asm__ volatile("msr fpcr, %0" : : "r"(control) : "memory");
  return saved;
}

static inline void leave(environment saved) {
  __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(saved.control), "r"(saved.flags) : "memory");
}

static inline vint load_some(const uint8_t *p, size_t num_elems) {
  uint8_t bytes[16] = {0};
  memcpy(bytes, p, 4 * num_elems);
  return load(bytes);
}

static inline void store_some(uint8_t *p, vint v, size_t num_elems) {
  uint8_t bytes[16];
  store(bytes, v);
  memcpy(p, bytes, 4 * num_elems);
}

/* Two roundings, to double and to float, but as if one. They could differ only if the double is the middle
 * m * 2^j of two floats (m < 2^25) and v / n is not; but then |v - n * m * 2^j| is at least 2^min(j, 0),
 * so v / n is off by 2^-37 of itself at least, and the double by 2^-53 at most. */
struct divisor {
  float64x2_t divisor;
};

static inline struct divisor divisor_of(double divisor) {
  return (struct divisor){.divisor = vdupq_n_f64(divisor)};
}

static inline float32x2_t averaged_half(int32x2_t sums, float64x2_t divisor) {
  return vcvt_f32_f64(vdivq_f64(vcvtq_f64_s64(vmovl_s32(sums)), divisor));
}

static inline vint averaged(vint sums, const struct divisor *divisor) {
  const int32x4_t v = vreinterpretq_s32_u32(sums);
  const float32x2_t low = averaged_half(vget_low_s32(v), divisor->divisor);
  const float32x2_t high = averaged_half(vget_high_s32(v), divisor->divisor);
  return vreinterpretq_u32_f32(vcombine_f32(low, high));
}

static inline vint averaged_to_odd(vint sums, const struct divisor *divisor) {
  const int32x4_t v = vreinterpretq_s32_u32(sums);
  const float64x2_t low = vdivq_f64(vcvtq_f64_s64(vmovl_s32(vget_low_s32(v))), divisor->divisor);
  const float64x2_t high = vdivq_f64(vcvtq_f64_s64(vmovl_s32(vget_high_s32(v))), divisor->divisor);
  return vreinterpretq_u32_f32(vcvtx_high_f32_f64(vcvtx_f32_f64(low), high));
}

/* ---- of vector_packed.h ---- */

typedef uint16x4_t vhalf;

#define load_half(p) vreinterpret_u16_u8(vld1_u8(p))
#define store_half(p, v) vst1_u8(p, vreinterpret_u8_u16(v))
#define max_u16(a, b) vreinterpretq_u32_u16(vmaxq_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b)))
#define shift_left_16(v) vshlq_n_u32(v, 16)
#define shift_right_16(v) vshrq_n_u32(v, 16)
#define shift_sign_right_16(v) vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(v), 16))
#define or_bits vorrq_u32
#define is_zero vceqzq_u32
#define choose vbslq_u32
#define absolute(v) vreinterpretq_u32_s32(vabsq_s32(vreinterpretq_s32_u32(v)))
#define widened_bits vmovl_u16
#define widened_float16(v) vreinterpretq_u32_f32(vcvt_f32_f16(vreinterpret_f16_u16(v)))
#define narrowed_bits vmovn_u32
#define narrowed_float16(x) vreinterpret_u16_f16(vcvt_f16_f32(x))

static inline vhalf load_half_some(const uint8_t *p, size_t num_elems) {
  uint8_t bytes[8] = {0};
  memcpy(bytes, p, 2 * num_elems);
  return load_half(bytes);
}

static inline void store_half_some(uint8_t *p, vhalf v, size_t num_elems) {
  uint8_t bytes[8];
  store_half(bytes, v);
  memcpy(p, bytes, 2 * num_elems);
}

static inline vint with_sign_of(vint sign, vint v) {
  const vint mask = vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(sign), 31));
  return vsubq_u32(veorq_u32(v, mask), mask);
}

static inline uint32_t sum_of(vint v) {
  return vaddvq_u32(v);
}

static inline uint32_t largest_of(vint v) {
  return vmaxvq_u32(v);
}

/* ---- of vector_exact.h ---- */

#define min_u32 vminq_u32
#define subtract vsubq_u32
#define shift_left(v, num_bits) vshlq_u32(v, vdupq_n_s32((int32_t)(num_bits)))
#define shift_right(v, num_bits) vshlq_u32(v, vdupq_n_s32(-(int32_t)(num_bits)))
/* counts of bytes with sign: down where they are below 0 */
#define shift_left_by(v, counts) vshlq_u32(v, vreinterpretq_s32_u32(vminq_u32(counts, vdupq_n_u32(32))))
#define shift_right_by(v, counts) vshlq_u32(v, vnegq_s32(vreinterpretq_s32_u32(vminq_u32(counts, vdupq_n_u32(32)))))
#define HAS_FLOATS_OF_LONG 0

#include "quant/vector_kernels.h"

const struct sml_quant_kernels sml_quant_neon = SML_VECTOR_KERNELS("neon");
#endif
