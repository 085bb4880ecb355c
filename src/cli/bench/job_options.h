/* SPDX-License-Identifier: Apache-2.0
 * Options that `switchml bench` and `switchml bench training` have alike: the job, and how long it is measured. */
#pragma once

#include "base/options.h"
#include "cli/bench/bench.h"

extern const struct sml_option sml_bench_job_options[]; /* of a struct sml_bench_options */

/* NULL, or what is wrong with those. */
const char *sml_bench_check_job(const struct sml_bench_options *options);
