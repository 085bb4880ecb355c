/* SPDX-License-Identifier: Apache-2.0
 * Options that `switchml bench` and `switchml bench training` have alike: the job, and how long it is measured. */
#ifndef SML_CLI_BENCH_JOB_OPTIONS_H
#define SML_CLI_BENCH_JOB_OPTIONS_H

#include <argp.h>

#include "cli/bench/bench.h"

/* A child of their parsers; its input is a struct sml_bench_options. Keys from 0x200 on are its own. */
extern const struct argp sml_job_argp;

/* A decimal number up to `max`, the end of which is left in *end_out. Neither sign nor space. */
bool sml_option_parse(const char *text, uint64_t max, uint64_t *value_out, const char **end_out);
/* The number of --what: within its limits, or the process ends with a sentence. */
uint32_t sml_option_number(const struct argp_state *state, const char *what, const char *text, uint32_t min,
                           uint32_t max);
double sml_option_real(const struct argp_state *state, const char *what, const char *text, double min, double max);

#endif
