/* SPDX-License-Identifier: Apache-2.0 */
#include <argp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/bench/bench.h"
#include "cli/bench/job_options.h"

enum option_key {
  KEY_SIZES = 's',
  KEY_TYPE = 't',
  KEY_OP = 'o',
  KEY_LOSS = 0x100,
  KEY_SEED,
  KEY_DATAGRAM,
  KEY_FLOAT_BITS,
  KEY_FLOAT64_BITS,
  KEY_IN_PLACE,
  KEY_CHECK,
  KEY_RETRY,
  KEY_LEASE,
  KEY_CALLS,
  KEY_BATCH,
  KEY_WORKER,
};

static const struct argp_option option_table[] = {
    {"sizes", KEY_SIZES, "LIST", 0, "Bytes per rank, with K, M, G = 2^10, 2^20, 2^30 (default 4,1000,1M,16M)",
     2},
    {"type", KEY_TYPE, "TYPE", 0, "float32 (default), float16, bfloat16, float64, int32 or int64", 2},
    {"float-bits", KEY_FLOAT_BITS, "16|32", 0, "On the wire, of float32, float16, bfloat16; as SWITCHML_FLOAT_BITS", 2},
    {"float64-bits", KEY_FLOAT64_BITS, "64|96", 0, "Of float64, as SWITCHML_FLOAT64_BITS (default 96 here)", 2},
    {"op", KEY_OP, "OP", 0, "sum (default) or avg", 2},
    {"calls", KEY_CALLS, "N", 0, "All-reduces of a size that are called at once, and timed together (default 1)", 2},
    {"batch", KEY_BATCH, NULL, 0, "They are one batch: small ones share packets", 2},
    {"in-place", KEY_IN_PLACE, NULL, 0, "Input and output are one buffer", 2},
    {"max-datagram", KEY_DATAGRAM, "BYTES", 0, "Largest UDP payload to use (default 8960)", 3},
    {"loss", KEY_LOSS, "F", 0, "Lose this share (0 to 1) of the packets at each receiver", 4},
    {"seed", KEY_SEED, "N", 0, "Decides the inputs, and which packets are lost (default 1)", 4},
    {"check", KEY_CHECK, NULL, 0, "Check words on every sum, as SWITCHML_CHECK=1", 5},
    {"lease", KEY_LEASE, "S", 0, "A rank or an aggregator that is silent for S seconds is lost, as SWITCHML_LEASE "
     "(default 60)", 5},
    {"retry", KEY_RETRY, "S", 0, "Wait S seconds for a lost aggregator's successor, as SWITCHML_RETRY", 5},
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

static const char *const type_names[] = {
    [SML_FLOAT32] = "float32",   [SML_INT32] = "int32",     [SML_FLOAT16] = "float16",
    [SML_BFLOAT16] = "bfloat16", [SML_FLOAT64] = "float64", [SML_INT64] = "int64"};

const char *sml_bench_type_name(sml_type type) {
  return type_names[type];
}

static sml_type need_type(const struct argp_state *state, const char *text) {
  for (size_t t = 0; t < SML_ARRAY_LEN(type_names); t++)
    if (strcmp(text, type_names[t]) == 0) return (sml_type)t;
  argp_error(state, "--type is '%s', but must be float32, float16, bfloat16, float64, int32 or int64", text);
  return SML_FLOAT32;
}

static uint32_t need_either(const struct argp_state *state, const char *what, const char *text, uint32_t one,
                            uint32_t other) {
  const uint32_t bits = sml_option_number(state, what, text, one, other);
  if (bits != one && bits != other) argp_error(state, "--%s is %u, but must be %u or %u", what, bits, one, other);
  return bits;
}

/* What the library would not take it refuses itself, at the join. */
static uint8_t environment_bits(const char *variable) {
  const char *text = getenv(variable), *end;
  uint64_t bits = 0;
  if (text == NULL || !sml_option_parse(text, UINT8_MAX, &bits, &end)) return 0;
  return (uint8_t)bits;
}

struct sml_format_options sml_bench_formats(const struct sml_bench_options *o) {
  struct sml_format_options formats = {.float_bits = (uint8_t)o->float_bits, .float64_bits = (uint8_t)o->float64_bits};
  if (formats.float_bits == 0) formats.float_bits = environment_bits("SWITCHML_FLOAT_BITS");
  if (formats.float64_bits == 0) formats.float64_bits = environment_bits("SWITCHML_FLOAT64_BITS");
  if (formats.float64_bits == 0 && o->type == SML_FLOAT64) formats.float64_bits = 96;
  return formats;
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
    if (!sml_option_parse(text, max_bytes, &value, &text))
      return "a size must be a number like 1000, 64K, 16M or 1G";
    if (unit_of(*text) != 0) {
      if (value > max_bytes / unit_of(*text)) return "a size must be at most 1024G";
      value *= unit_of(*text++);
    }
    if (value == 0) return "there is nothing to sum of 0 bytes";
    if (options->num_sizes == SML_BENCH_MAX_SIZES) return "there may be at most 256 sizes";
    options->size_bytes[options->num_sizes++] = value < 4 ? 4 : value & ~UINT64_C(3);
    if (*text == '\0') return NULL;
    if (*text++ != ',')
      return "a size must be a number with K, M, G or nothing behind it; commas between sizes";
  }
}

/* Down to whole elements, but at least one. */
static void round_sizes(struct sml_bench_options *o) {
  const uint64_t elem_bytes = sml_max_u32(4, sml_format_elem_bytes((uint32_t)o->type));
  for (uint32_t i = 0; i < o->num_sizes; i++)
    o->size_bytes[i] = sml_max_u64(elem_bytes, o->size_bytes[i] & ~(elem_bytes - 1));
}

static error_t parse_choice(const struct argp_state *state, int key, const char *text) {
  struct sml_bench_options *o = state->input;
  switch (key) {
    case KEY_TYPE:
      o->type = need_type(state, text);
      return 0;
    case KEY_FLOAT_BITS:
      o->float_bits = need_either(state, "float-bits", text, 16, 32);
      return 0;
    case KEY_FLOAT64_BITS:
      o->float64_bits = need_either(state, "float64-bits", text, 64, 96);
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
    case KEY_CALLS:
      o->num_calls = sml_option_number(state, "calls", text, 1, SML_BENCH_MAX_CALLS);
      return 0;
    case KEY_BATCH:
      o->is_batched = true;
      return 0;
    case KEY_CHECK:
      o->is_checked = true;
      return 0;
    case KEY_LEASE:
      o->lease_ns = (uint64_t)(sml_option_real(state, "lease", text, 0.02, 3600) * (double)SML_NS_PER_S);
      return 0;
    case KEY_RETRY:
      o->retry_ns = (uint64_t)(sml_option_real(state, "retry", text, 0.001, 604800) * (double)SML_NS_PER_S);
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
  struct sml_bench_options *o = state->input;
  const char *end;
  switch (key) {
    case KEY_DATAGRAM:
      o->max_datagram_bytes = sml_option_number(state, "max-datagram", text, 64, 65000);
      return 0;
    case KEY_LOSS:
      o->loss = sml_option_real(state, "loss", text, 0, 1);
      o->has_loss = true;
      return 0;
    case KEY_SEED:
      if (!sml_option_parse(text, UINT64_MAX, &o->seed, &end) || *end != '\0')
        argp_error(state, "--seed is '%s', but must be a whole number", text);
      return 0;
    case KEY_IN_PLACE:
      o->is_in_place = true;
      return 0;
    case KEY_WORKER:
      o->is_local_worker = true;
      return 0;
    case ARGP_KEY_ARG:
      argp_error(state, "'%s' is not an option", text);
      return 0;
    case ARGP_KEY_INIT:
      state->child_inputs[0] = o;
      return 0;
    case ARGP_KEY_END:
      if (!sml_format_is_float((uint32_t)o->type) && o->reduction == SML_AVG)
        argp_error(state, "%s has no avg: an average of integers is not an integer; use --op sum",
                   sml_bench_type_name(o->type));
      round_sizes(o);
      return 0;
    default:
      return parse_choice(state, key, text);
  }
}

void sml_bench_options_parse(struct sml_bench_options *o, int argc, char **argv) {
  static const struct argp_child children[] = {{&sml_job_argp, 0, NULL, 0}, {0}};
  static const struct argp parser = {
      .options = option_table, .parser = parse_option, .doc = doc, .children = children};
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
