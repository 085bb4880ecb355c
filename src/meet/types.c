/* SPDX-License-Identifier: Apache-2.0 */
#include "meet/types.h"

#include <stdio.h>

#include "ctl/message.h"
#include "process/settings.h"
#include "quant/images.h"
#include "quant/limbs.h"

_Static_assert(SML_FORMAT_FLOAT32 == (int)SML_FLOAT32 && SML_FORMAT_INT32 == (int)SML_INT32, "");
_Static_assert(SML_FORMAT_FLOAT16 == (int)SML_FLOAT16 && SML_FORMAT_BFLOAT16 == (int)SML_BFLOAT16, "");
_Static_assert(SML_FORMAT_FLOAT64 == (int)SML_FLOAT64 && SML_FORMAT_INT64 == (int)SML_INT64, "");

_Static_assert(SML_FORMAT_INT8 == (int)SML_INT8 && SML_FORMAT_UINT64 == (int)SML_UINT64, "");
_Static_assert(SML_FORMAT_AVG == (int)SML_AVG && SML_FORMAT_MIN == (int)SML_MIN, "");
_Static_assert(SML_FORMAT_BAND == (int)SML_BAND && SML_FORMAT_LOR == (int)SML_LOR, "");

static const char *const names[] = {"float32", "int32", "float16", "bfloat16", "float64",
                                    "int64",   "int8",  "uint8",   "uint32",   "uint64"};
_Static_assert(SML_ARRAY_LEN(names) == SML_NUM_FORMAT_TYPES, "");
static const char *const reductions[] = {"SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "LAND", "LOR"};
_Static_assert(SML_ARRAY_LEN(reductions) == SML_NUM_FORMAT_REDUCTIONS, "");

const char *sml_type_name(sml_type type) {
  return names[type];
}

const char *sml_reduction_name(sml_reduction reduction) {
  return reductions[reduction];
}

/* Why float64 is not offered. */
static sml_status refuse_doubles(const struct sml_format_options *formats, size_t count, uint32_t world_size) {
  if (count > SML_LIMBS_MAX_ELEMS)
    return sml_fail(SML_ERR_UNSUPPORTED,
                    "%zu elements of float64 are not summed with all of their digits, as up to %u are: float64_bits of "
                    "sml_job_options, or SWITCHML_FLOAT64_BITS, is 64 or 96 where that will do",
                    count, SML_LIMBS_MAX_ELEMS);
  return sml_fail(SML_ERR_UNSUPPORTED,
                  "the job's packets carry %u bytes of elements, too few for an exact sum of float64 among %u ranks: "
                  "float64_bits of sml_job_options, or SWITCHML_FLOAT64_BITS, is 64 or 96 where fewer digits will do",
                  formats->chunk_bytes, world_size);
}

/* What is no sum. */
static sml_status check_other(const struct sml_format_options *formats, sml_type type, sml_reduction reduction) {
  const char *name = reductions[reduction];
  const bool is_float = sml_format_is_float((uint32_t)type);
  if (is_float && reduction == SML_PRODUCT)
    return sml_fail(SML_ERR_UNSUPPORTED, "PRODUCT of %s is not offered: it would depend on the order of the ranks",
                    names[type]);
  if (is_float && reduction > SML_PRODUCT)
    return sml_fail(SML_ERR_UNSUPPORTED, "%s takes integers only, not %s", name, names[type]);
  if (reduction == SML_PRODUCT && formats->is_checked)
    return sml_fail(SML_ERR_UNSUPPORTED,
                    "PRODUCT is not offered in a job with check words: none would show a wrong one");
  const uint32_t combine = sml_images_shape((uint32_t)type, (uint32_t)reduction, 1, 2, *formats).combine;
  if (formats->is_of_switch && combine != SML_COMBINE_MAX_32)
    return sml_fail(SML_ERR_UNSUPPORTED,
                    "%s of %s is not offered in switch format: a switch adds lanes of 32 bits, or takes their maximum",
                    name, names[type]);
  return SML_OK;
}

sml_status sml_type_check(const struct sml_format_options *formats, sml_type type, sml_reduction reduction,
                          size_t count, uint32_t world_size) {
  if ((unsigned)type >= SML_NUM_FORMAT_TYPES)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "type %d is unknown: see sml_type", (int)type);
  if ((unsigned)reduction >= SML_NUM_FORMAT_REDUCTIONS)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "reduction %d is unknown: see sml_reduction", (int)reduction);
  if (reduction > SML_AVG) return check_other(formats, type, reduction);
  if (!sml_format_is_float((uint32_t)type) && reduction == SML_AVG)
    return sml_fail(SML_ERR_UNSUPPORTED, "%s AVG is not offered: sum and divide", names[type]);
  if (type == SML_FLOAT64 && !sml_format_has_doubles(count, world_size, *formats))
    return refuse_doubles(formats, count, world_size);
  return SML_OK;
}

/* The option, or the environment's number where it was left open: a or b, or 0. */
static sml_status read_bits(uint32_t option, const char *option_name, const char *variable, uint32_t a, uint32_t b,
                            uint32_t *bits_out) {
  const char *text = sml_settings_environment(variable);
  *bits_out = option;
  if (option != 0 && option != a && option != b)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "%s is %u: %u, %u, or 0 as %s says", option_name, option, a, b, variable);
  if (option != 0 || text == NULL || strcmp(text, "0") == 0) return SML_OK;
  char digits[4];
  for (uint32_t bits = a; *bits_out == 0; bits = b) {
    snprintf(digits, sizeof digits, "%u", bits);
    if (strcmp(text, digits) == 0) *bits_out = bits;
    else if (bits == b)
      return sml_fail(SML_ERR_INVALID_ARGUMENT, "%s is '%.64s': set %u, %u or 0", variable, text, a, b);
  }
  return SML_OK;
}

sml_status sml_types_read(const sml_job_options *o, uint32_t *features) {
  uint32_t float_bits, float64_bits;
  sml_status status = read_bits(o->float_bits, "float_bits", "SWITCHML_FLOAT_BITS", 16, 32, &float_bits);
  if (status == SML_OK)
    status = read_bits(o->float64_bits, "float64_bits", "SWITCHML_FLOAT64_BITS", 64, 96, &float64_bits);
  if (status != SML_OK) return status;
  if (float_bits == 16) *features |= SML_FEATURE_FLOAT_BITS_16;
  if (float_bits == 32) *features |= SML_FEATURE_FLOAT_BITS_32;
  if (float64_bits == 64) *features |= SML_FEATURE_FLOAT64_BITS_64;
  if (float64_bits == 96) *features |= SML_FEATURE_FLOAT64_BITS_96;
  return SML_OK;
}

struct sml_format_options sml_types_of_features(uint32_t features) {
  return (struct sml_format_options){.float_bits = features & SML_FEATURE_FLOAT_BITS_16   ? 16
                                                   : features & SML_FEATURE_FLOAT_BITS_32 ? 32
                                                                                          : 0,
                                     .float64_bits = features & SML_FEATURE_FLOAT64_BITS_64   ? 64
                                                     : features & SML_FEATURE_FLOAT64_BITS_96 ? 96
                                                                                              : 0,
                                     .is_checked = (features & SML_FEATURE_CHECK) != 0};
}
