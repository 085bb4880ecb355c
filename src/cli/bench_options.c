/* SPDX-License-Identifier: Apache-2.0 */
#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/bench.h"

enum option_key {
  KEY_SIZES = 's',
  KEY_TYPE = 't',
  KEY_OP = 'o',
  KEY_LOCAL = 'l',
  KEY_ITERS = 'n',
  KEY_WARMUP = 'w',
  KEY_LANES = 'T',
  KEY_JSON = 'j',
  KEY_LOSS = 0x100,
  KEY_SEED,
  KEY_SLOTS,
  KEY_DATAGRAM,
  KEY_TIMEOUT,
  KEY_IN_PLACE,
  KEY_NO_OFFLOAD,
  KEY_SHARED_MEMORY,
  KEY_JOB,
  KEY_CHECK,
  KEY_KEY_FILE,
  KEY_RETRY,
  KEY_CALLS,
  KEY_BATCH,
  KEY_WORKER,
};

static const struct argp_option option_table[] = {
    {"local", KEY_LOCAL, "N", 0, "Start an aggregator and N workers on this machine", 1},
    {"sizes", KEY_SIZES, "LIST", 0, "Bytes per rank, with K, M, G = 2^10, 2^20, 2^30 (default 4,1000,1M,16M)",
     2},
    {"type", KEY_TYPE, "TYPE", 0, "float32 (default) or int32", 2},
    {"op", KEY_OP, "OP", 0, "sum (default) or avg", 2},
    {"iters", KEY_ITERS, "N", 0,
     "Timed all-reduces of each size (default 50 up to 64K, 20 up to 64M, then fewer, at least 5)", 2},
    {"warmup", KEY_WARMUP, "N", 0, "All-reduces before those (default 3; at least 1 is made)", 2},
    {"calls", KEY_CALLS, "N", 0, "All-reduces of a size that are called at once, and timed together (default 1)", 2},
    {"batch", KEY_BATCH, NULL, 0, "They are one batch: small ones share packets", 2},
    {"in-place", KEY_IN_PLACE, NULL, 0, "Input and output are one buffer", 2},
    {"lanes", KEY_LANES, "N", 0,
     "Engine threads of each worker, and of the aggregator with --local (default 1)", 3},
    {"threads", 0, NULL, OPTION_ALIAS, NULL, 3},
    {"slots", KEY_SLOTS, "N", 0, "Chunks in flight a lane, a power of two (default: chosen at the join)", 3},
    {"max-datagram", KEY_DATAGRAM, "BYTES", 0, "Largest UDP payload to use (default 8960)", 3},
    {"no-offload", KEY_NO_OFFLOAD, NULL, 0, "Do not use segmentation offload, as SWITCHML_NO_OFFLOAD=1", 3},
    {"shared-memory", KEY_SHARED_MEMORY, "yes|no", 0,
     "Whether workers of one host share memory, as SWITCHML_SHARED_MEMORY=1 or 0", 3},
    {"loss", KEY_LOSS, "F", 0, "Lose this share (0 to 1) of the packets at each receiver", 4},
    {"seed", KEY_SEED, "N", 0, "Decides the inputs, and which packets are lost (default 1)", 4},
    {"timeout", KEY_TIMEOUT, "S", 0, "Seconds until joining or an all-reduce counts as failed (default 60)",
     5},
    {"check", KEY_CHECK, NULL, 0, "Check words on every sum, as SWITCHML_CHECK=1", 5},
    {"key-file", KEY_KEY_FILE, "FILE", 0, "Keys, as SWITCHML_KEY_FILE; with --local also the aggregator's",
     5},
    {"retry", KEY_RETRY, "S", 0, "Wait S seconds for a lost aggregator's successor, as SWITCHML_RETRY", 5},
    {"job", KEY_JOB, "NAME", 0, "Name of the job at the aggregator (default bench)", 5},
    {"json", KEY_JSON, NULL, 0, "Print one JSON object in place of the table", 6},
    {"local-worker", KEY_WORKER, NULL, OPTION_HIDDEN, NULL, 6},
    {0}};

static const char doc[] =
    "Times all-reduces and checks every result. `switchml bench training --help`: the gradients of real networks."
    "\vWithout --local this process is one worker of a running switchmld:\n"
    "  SWITCHML_AGGREGATOR=host:port RANK=0 WORLD_SIZE=2 switchml bench\n"
    "The exit status is 0 only if every element of every result was right, 1 if not or if something "
    "failed, 2 for wrong arguments.";

void sml_bench_say(const char *format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fprintf(stderr, "switchml bench: %s\n", text);
}

const char *sml_bench_type_name(sml_type type) {
  return type == SML_INT32 ? "int32" : "float32";
}

/* A decimal number up to `max`, the end of which is left in *end_out. Neither sign nor space. */
static bool parse_number(const char *text, uint64_t max, uint64_t *value_out, const char **end_out) {
  if (*text < '0' || *text > '9') return false;
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  if (errno != 0 || value > max) return false;
  *value_out = value;
  *end_out = end;
  return true;
}

static uint32_t need_number(const struct argp_state *state, const char *what, const char *text, uint32_t min,
                            uint32_t max) {
  uint64_t value = 0;
  const char *end = text;
  if (!parse_number(text, max, &value, &end) || *end != '\0' || value < min)
    argp_error(state, "--%s is '%s', but must be a number from %u to %u", what, text, min, max);
  return (uint32_t)value;
}

static double need_real(const struct argp_state *state, const char *what, const char *text, double min,
                        double max) {
  char *end;
  double value = strtod(text, &end);
  if (end == text || *end != '\0' || !(value >= min && value <= max))
    argp_error(state, "--%s is '%s', but must be a number from %g to %g", what, text, min, max);
  return value;
}

static uint64_t unit_of(char letter) {
  switch (letter) {
    case 'k':
    case 'K':
      return UINT64_C(1) << 10;
    case 'm':
    case 'M':
      return UINT64_C(1) << 20;
    case 'g':
    case 'G':
      return UINT64_C(1) << 30;
    default:
      return 0;
  }
}

const char *sml_bench_parse_sizes(const char *text, struct sml_bench_options *options) {
  const uint64_t max_bytes = UINT64_C(1) << 40;
  options->num_sizes = 0;
  for (;;) {
    uint64_t value = 0;
    if (!parse_number(text, max_bytes, &value, &text))
      return "a size must be a number like 1000, 64K, 16M or 1G";
    if (unit_of(*text) != 0) {
      if (value > max_bytes / unit_of(*text)) return "a size must be at most 1024G";
      value *= unit_of(*text++);
    }
    if (options->num_sizes == SML_BENCH_MAX_SIZES) return "there may be at most 256 sizes";
    options->size_bytes[options->num_sizes++] = value < 4 ? 4 : value & ~UINT64_C(3);
    if (*text == '\0') return NULL;
    if (*text++ != ',')
      return "a size must be a number with K, M, G or nothing behind it; commas between sizes";
  }
}

static error_t parse_choice(const struct argp_state *state, int key, const char *text) {
  struct sml_bench_options *o = state->input;
  switch (key) {
    case KEY_TYPE:
      if (strcmp(text, "float32") != 0 && strcmp(text, "int32") != 0)
        argp_error(state, "--type is '%s', but must be float32 or int32", text);
      o->type = text[0] == 'i' ? SML_INT32 : SML_FLOAT32;
      return 0;
    case KEY_OP:
      if (strcmp(text, "sum") != 0 && strcmp(text, "avg") != 0)
        argp_error(state, "--op is '%s', but must be sum or avg", text);
      o->reduction = text[0] == 'a' ? SML_AVG : SML_SUM;
      return 0;
    case KEY_SIZES: {
      const char *wrong = sml_bench_parse_sizes(text, o);
      if (wrong) argp_error(state, "--sizes is '%s': %s", text, wrong);
      return 0;
    }
    case KEY_JOB:
      if (text[0] == '\0' || strlen(text) > 63) argp_error(state, "--job must have 1 to 63 bytes");
      o->job_name = text;
      return 0;
    case KEY_CALLS:
      o->num_calls = need_number(state, "calls", text, 1, SML_BENCH_MAX_CALLS);
      return 0;
    case KEY_BATCH:
      o->is_batched = true;
      return 0;
    case KEY_CHECK:
      o->is_checked = true;
      return 0;
    case KEY_KEY_FILE:
      o->key_file = text;
      return 0;
    case KEY_RETRY:
      o->retry_ns = (uint64_t)(need_real(state, "retry", text, 0.001, 604800) * (double)SML_NS_PER_S);
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
  struct sml_bench_options *o = state->input;
  const char *end;
  switch (key) {
    case KEY_LOCAL:
      o->num_local = need_number(state, "local", text, 1, SML_BENCH_MAX_LOCAL);
      return 0;
    case KEY_ITERS:
      o->num_iters = need_number(state, "iters", text, 1, SML_BENCH_MAX_ITERS);
      return 0;
    case KEY_WARMUP:
      o->num_warmup = need_number(state, "warmup", text, 0, SML_BENCH_MAX_ITERS);
      return 0;
    case KEY_LANES:
      o->num_lanes = need_number(state, "lanes", text, 1, 16);
      return 0;
    case KEY_SLOTS:
      o->num_slots = need_number(state, "slots", text, 1, 32768);
      if (!sml_is_pow2(o->num_slots)) argp_error(state, "--slots must be a power of two");
      return 0;
    case KEY_DATAGRAM:
      o->max_datagram_bytes = need_number(state, "max-datagram", text, 64, 65000);
      return 0;
    case KEY_LOSS:
      o->loss = need_real(state, "loss", text, 0, 1);
      o->has_loss = true;
      return 0;
    case KEY_SEED:
      if (!parse_number(text, UINT64_MAX, &o->seed, &end) || *end != '\0')
        argp_error(state, "--seed is '%s', but must be a whole number", text);
      return 0;
    case KEY_TIMEOUT:
      o->timeout_ns = (uint64_t)(need_real(state, "timeout", text, 0.001, 1e6) * (double)SML_NS_PER_S);
      return 0;
    case KEY_IN_PLACE:
      o->is_in_place = true;
      return 0;
    case KEY_NO_OFFLOAD:
      o->no_offload = true;
      return 0;
    case KEY_SHARED_MEMORY:
      if (strcmp(text, "yes") != 0 && strcmp(text, "no") != 0)
        argp_error(state, "--shared-memory is '%s', but must be yes or no", text);
      o->shared_memory = text[0] == 'y' ? "1" : "0";
      return 0;
    case KEY_JSON:
      o->is_json = true;
      return 0;
    case KEY_WORKER:
      o->is_local_worker = true;
      return 0;
    case ARGP_KEY_ARG:
      argp_error(state, "'%s' is not an option", text);
      return 0;
    case ARGP_KEY_END:
      if (o->type == SML_INT32 && o->reduction == SML_AVG)
        argp_error(state, "int32 has no avg: an average of integers is not an integer; use --op sum");
      return 0;
    default:
      return parse_choice(state, key, text);
  }
}

void sml_bench_options_parse(struct sml_bench_options *o, int argc, char **argv) {
  static const struct argp parser = {.options = option_table, .parser = parse_option, .doc = doc};
  memset(o, 0, sizeof *o);
  o->num_warmup = 3;
  o->num_calls = 1;
  o->seed = 1;
  o->timeout_ns = 60 * SML_NS_PER_S;
  o->job_name = "bench";
  (void)sml_bench_parse_sizes("4,1000,1M,16M", o);
  argp_err_exit_status = SML_BENCH_USAGE;
  char name[] = "switchml bench";
  argv[0] = name;
  if (argp_parse(&parser, argc, argv, 0, NULL, o) != 0) exit(SML_BENCH_USAGE);
}

uint32_t sml_bench_iters(const struct sml_bench_options *options, uint64_t size_bytes) {
  const uint64_t large_bytes = UINT64_C(64) << 20;
  if (options->num_iters != 0) return options->num_iters;
  if (size_bytes <= UINT64_C(64) << 10) return 50;
  if (size_bytes <= large_bytes) return 20;
  return (uint32_t)sml_max_u64(5, 20 * large_bytes / size_bytes);
}

void sml_bench_set_faults(const struct sml_bench_options *options, uint32_t receiver) {
  if (!options->has_loss) return;
  char text[96];
  uint64_t seed = sml_mix64(options->seed + UINT64_C(0x9e3779b97f4a7c15) * (receiver + 1));
  snprintf(text, sizeof text, "loss=%.9f,seed=%llu", options->loss, (unsigned long long)(seed >> 1));
  setenv("SWITCHML_FAULTS", text, 1);
}

bool sml_bench_fits_memory(const struct sml_bench_options *options, uint32_t num_processes) {
  FILE *file = fopen("/proc/meminfo", "re");
  if (!file) return true;
  char line[128];
  unsigned long long free_kib = 0;
  while (fgets(line, sizeof line, file))
    if (sscanf(line, "MemAvailable: %llu", &free_kib) == 1) break;
  fclose(file);
  uint64_t largest_bytes = 0;
  for (uint32_t i = 0; i < options->num_sizes; i++)
    largest_bytes = sml_max_u64(largest_bytes, options->size_bytes[i]);
  uint64_t need_kib = (1 + options->num_calls) * (largest_bytes >> 10) * num_processes;
  if (free_kib == 0 || need_kib <= free_kib) return true;
  sml_bench_say("a size of %llu bytes needs %llu MiB here, but only %llu MiB are free; ask for less",
                (unsigned long long)largest_bytes, (unsigned long long)need_kib >> 10, free_kib >> 10);
  return false;
}
