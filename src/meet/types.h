/* SPDX-License-Identifier: Apache-2.0
 * Which types a job sums, and with how many bits on the wire: what its options and environment say, agreed on by all
 * ranks at the join (docs/PROTOCOL.md rules R62 and R104). */
#pragma once

#include "process/status.h"
#include "quant/format.h"

/* "float32"; of a type that there is. */
const char *sml_type_name(sml_type type);
const char *sml_reduction_name(sml_reduction reduction);
/* SML_OK, or why the job does not reduce this. */
sml_status sml_type_check(const struct sml_format_options *formats, sml_type type, sml_reduction reduction,
                          size_t count, uint32_t world_size);

/* float_bits and float64_bits of the options, or of the environment, as features of the join. */
sml_status sml_types_read(const sml_job_options *options, uint32_t *features);
struct sml_format_options sml_types_of_features(uint32_t features);
