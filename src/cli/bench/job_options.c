/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/bench/job_options.h"

#include <errno.h>
#include <stdlib.h>

enum option_key {
  KEY_LOCAL = 'l',
  KEY_ITERS = 'n',
  KEY_WARMUP = 'w',
  KEY_LANES = 'T',
  KEY_JSON = 'j',
  KEY_SLOTS = 0x200,
  KEY_NO_OFFLOAD,
  KEY_SHARED_MEMORY,
  KEY_TIMEOUT,
  KEY_JOB,
  KEY_KEY_FILE,
};

static const struct argp_option option_table[] = {
    {"local", KEY_LOCAL, "N", 0, "Start an aggregator and N workers on this machine", 1},
    {"iters", KEY_ITERS, "N", 0, "Timed runs (default 3 trainings; of all-reduces 50 up to 64K, 20 up to 64M, then "
                                 "fewer, at least 5)", 1},
    {"warmup", KEY_WARMUP, "N", 0, "Runs before those (default 1 training, 3 all-reduces)", 1},
    {"lanes", KEY_LANES, "N", 0, "Engine threads of each worker, and of the aggregator with --local (default 1)", 5},
    {"threads", 0, NULL, OPTION_ALIAS, NULL, 5},
    {"slots", KEY_SLOTS, "N", 0, "Chunks in flight a lane, a power of two (default: chosen at the join)", 5},
    {"no-offload", KEY_NO_OFFLOAD, NULL, 0, "Do not use segmentation offload, as SWITCHML_NO_OFFLOAD=1", 5},
    {"shared-memory", KEY_SHARED_MEMORY, "yes|no", 0,
     "Whether workers of one host share memory, as SWITCHML_SHARED_MEMORY=1 or 0 (default of a training: no)", 5},
    {"timeout", KEY_TIMEOUT, "S", 0, "Seconds until joining or an all-reduce counts as failed (default 60)", 5},
    {"key-file", KEY_KEY_FILE, "FILE", 0, "Keys, as SWITCHML_KEY_FILE; with --local also the aggregator's", 5},
    {"job", KEY_JOB, "NAME", 0, "Name of the job at the aggregator (default bench, or training)", 5},
    {"json", KEY_JSON, NULL, 0, "Print one JSON object instead of the table", 6},
    {0}};

bool sml_option_parse(const char *text, uint64_t max, uint64_t *value_out, const char **end_out) {
  if (*text < '0' || *text > '9') return false;
  char *end;
  errno = 0;
  const unsigned long long value = strtoull(text, &end, 10);
  if (errno != 0 || value > max) return false;
  *value_out = value;
  *end_out = end;
  return true;
}

uint32_t sml_option_number(const struct argp_state *state, const char *what, const char *text, uint32_t min,
                           uint32_t max) {
  uint64_t value = 0;
  const char *end = text;
  if (!sml_option_parse(text, max, &value, &end) || *end != '\0' || value < min)
    argp_error(state, "--%s is '%s', but must be a whole number from %u to %u", what, text, min, max);
  return (uint32_t)value;
}

double sml_option_real(const struct argp_state *state, const char *what, const char *text, double min, double max) {
  char *end;
  const double value = strtod(text, &end);
  if (end == text || *end != '\0' || !(value >= min && value <= max))
    argp_error(state, "--%s is '%s', but must be a number from %g to %g", what, text, min, max);
  return value;
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
  struct sml_bench_options *o = state->input;
  switch (key) {
    case KEY_LOCAL:
      o->num_local = sml_option_number(state, "local", text, 1, SML_BENCH_MAX_LOCAL);
      return 0;
    case KEY_ITERS:
      o->num_iters = sml_option_number(state, "iters", text, 1, SML_BENCH_MAX_ITERS);
      return 0;
    case KEY_WARMUP:
      o->num_warmup = sml_option_number(state, "warmup", text, 0, SML_BENCH_MAX_ITERS);
      return 0;
    case KEY_LANES:
      o->num_lanes = sml_option_number(state, "lanes", text, 1, 16);
      return 0;
    case KEY_SLOTS:
      o->num_slots = sml_option_number(state, "slots", text, 1, 32768);
      if (!sml_is_pow2(o->num_slots)) argp_error(state, "--slots must be a power of two");
      return 0;
    case KEY_NO_OFFLOAD:
      o->no_offload = true;
      return 0;
    case KEY_SHARED_MEMORY:
      if (strcmp(text, "yes") != 0 && strcmp(text, "no") != 0)
        argp_error(state, "--shared-memory is '%s', but must be yes or no", text);
      o->shared_memory = text[0] == 'y' ? "1" : "0";
      return 0;
    case KEY_TIMEOUT:
      o->timeout_ns = (uint64_t)(sml_option_real(state, "timeout", text, 0.001, 1e6) * (double)SML_NS_PER_S);
      return 0;
    case KEY_JOB:
      if (text[0] == '\0' || strlen(text) > 63) argp_error(state, "--job must have 1 to 63 bytes");
      o->job_name = text;
      return 0;
    case KEY_KEY_FILE:
      o->key_file = text;
      return 0;
    case KEY_JSON:
      o->is_json = true;
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

const struct argp sml_job_argp = {.options = option_table, .parser = parse_option};
