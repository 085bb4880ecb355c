/* SPDX-License-Identifier: Apache-2.0 */
#include "quant/kernels.h"
#include "quant/limbs.h"

/* Half a unit in the last place of a finite float. Zero is exact: only a sum of 0 gives it. */
static double half_ulp(uint32_t bits) {
  uint32_t magnitude = bits & UINT32_C(0x7fffffff);
  if (magnitude == 0) return 0;
  return sml_quant_pow2((int32_t)sml_max_u32(magnitude >> 23, 1) - 151);
}

double sml_quant_error_bound(uint8_t code, uint32_t world_size, bool average, float result) {
  uint32_t bits;
  memcpy(&bits, &result, sizeof bits);
  if (code == SML_CODE_NONFINITE || (bits & UINT32_C(0x7f800000)) == UINT32_C(0x7f800000)) {
    return __builtin_inf();
  }
  double num_shares = average ? 1 : (double)world_size;
  /* A flushed block lost all of |x| < 2^-100. */
  if (!sml_quant_is_scaled(code)) return num_shares * sml_quant_pow2(-100);
  /* Exact in 53 bits for any result that dequantize can give: the rounding mode has no say. */
  return num_shares * sml_quant_pow2(-sml_quant_shift(code, world_size) - 1) + half_ulp(bits);
}

double sml_limbs_error_bound(float result) {
  uint32_t bits;
  memcpy(&bits, &result, sizeof bits);
  return (bits & UINT32_C(0x7f800000)) == UINT32_C(0x7f800000) ? __builtin_inf() : half_ulp(bits);
}
