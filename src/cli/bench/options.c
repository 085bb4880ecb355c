/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/bench/bench.h"
#include "cli/bench/job_options.h"

#define SML_OPTIONS struct sml_bench_options

static const char *const type_names[] = {[SML_FLOAT32] = "float32",
                                         [SML_INT32] = "int32",
                                         [SML_FLOAT16] = "float16",
                                         [SML_BFLOAT16] = "bfloat16",
                                         [SML_FLOAT64] = "float64",
                                         [SML_INT64] = "int64",
                                         [SML_INT8] = "int8",
                                         [SML_UINT8] = "uint8",
                                         [SML_UINT32] = "uint32",
                                         [SML_UINT64] = "uint64",
                                         NULL};
static const char *const reduction_names[] = {
    [SML_SUM] = "sum",   [SML_AVG] = "avg", [SML_MIN] = "min",   [SML_MAX] = "max", [SML_PRODUCT] = "product",
    [SML_BAND] = "band", [SML_BOR] = "bor", [SML_LAND] = "land", [SML_LOR] = "lor", NULL};

static const char *const collective_names[] = {[SML_BENCH_ALL_REDUCE] = "all_reduce",
                                               [SML_BENCH_REDUCE_SCATTER] = "reduce_scatter",
                                               [SML_BENCH_ALL_GATHER] = "all_gather",
                                               [SML_BENCH_BOTH] = "reduce_scatter+all_gather",
                                               [SML_BENCH_BROADCAST] = "broadcast",
                                               [SML_BENCH_REDUCE] = "reduce",
                                               [SML_BENCH_BARRIER] = "barrier",
                                               [SML_BENCH_ALL] = "all",
                                               NULL};

static const char *take_sizes(void *options, const char *text) {
  return sml_bench_parse_sizes(text, options);
}

static const struct sml_option table[] = {
    {"sizes", 's', "LIST", "Bytes per rank, with K, M, G = 2^10, 2^20, 2^30 (default 4,1000,1M,16M)", 2,
     SML_TAKEN_BY(take_sizes)},
    {"type", 't', "TYPE", "float32 (default), float16, bfloat16, float64; int8, int32, int64, uint8, uint32, uint64", 2,
     SML_WORD(type, type_names)},
    {"float-bits", 0, "16|32", "On the wire, of float32, float16, bfloat16; as SWITCHML_FLOAT_BITS", 2,
     SML_NUMBER(float_bits, 16, 32)},
    {"float64-bits", 0, "64|96", "Of float64, as SWITCHML_FLOAT64_BITS (default 96 here)", 2,
     SML_NUMBER(float64_bits, 64, 96)},
    {"exact", 0, NULL, "Sums of floats are exact and rounded once, as SWITCHML_EXACT=1", 2, SML_FLAG(is_exact)},
    {"op", 'o', "OP", "sum (default), avg, min, max; of integers also product, band, bor, land, lor, but no avg", 2,
     SML_WORD(reduction, reduction_names)},
    {"collective", 0, "WHAT",
     "all_reduce (default), reduce_scatter, all_gather, reduce_scatter+all_gather (both at once), broadcast, reduce, "
     "barrier; or all, one after the other",
     2, SML_WORD(collective, collective_names)},
    {"calls", 0, "N", "Calls of a size that are made at once, and timed together (default 1)", 2,
     SML_NUMBER(num_calls, 1, SML_BENCH_MAX_CALLS)},
    {"batch", 0, NULL, "They are one batch: small ones share packets", 2, SML_FLAG(is_batched)},
    {"in-place", 0, NULL, "Input and output are one buffer", 2, SML_FLAG(is_in_place)},
    {"max-datagram", 0, "BYTES", "Largest UDP payload to use (default 8960)", 3,
     SML_NUMBER(max_datagram_bytes, 64, 65000)},
    {"loss", 0, "F", "Lose this share (0 to 1) of the packets at each receiver", 4, SML_REAL(loss, 0, 1, 1)},
    {"seed", 0, "N", "Decides the inputs, and which packets are lost (default 1)", 4, SML_NUMBER(seed, 0, 0)},
    {"check", 0, NULL, "Check words on every sum, as SWITCHML_CHECK=1", 5, SML_FLAG(is_checked)},
    {"lease", 0, "S", "A rank or an aggregator that is silent for S seconds is lost, as SWITCHML_LEASE (default 60)", 5,
     SML_SECONDS(lease_ns, 0.02, 3600)},
    {"retry", 0, "S", "Wait S seconds for a lost aggregator's successor, as SWITCHML_RETRY", 5,
     SML_SECONDS(retry_ns, 0.001, 604800)},
    {"local-worker", .group = 6, SML_FLAG(is_local_worker)},
    {0}};

static const char doc[] =
    "Times all-reduces and checks every result. `switchml bench training --help`: the gradients of real networks."
    "\vWithout --local this process is one worker of a running switchmld:\n"
    "  SWITCHML_AGGREGATOR=host:port RANK=0 WORLD_SIZE=2 switchml bench\n"
    "The exit status is 0 only if every element of every result was right, 1 if not or if something "
    "failed, 2 for wrong arguments.";

void sml_bench_say(const char *format, ...) {
  char text[1024], line[sizeof text + 24];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  snprintf(line, sizeof line, "switchml bench: %s\n", text);
  fputs(line, stderr); /* one write, where fprintf() may take several: other ranks write, too */
}

const char *sml_bench_collective_name(enum sml_bench_collective collective) {
  return collective_names[collective];
}

const char *sml_bench_reduction_name(sml_reduction reduction) {
  return reduction_names[reduction];
}

const char *sml_bench_type_name(sml_type type) {
  return type_names[type];
}

/* What the library would not take it refuses itself, at the join. */
static uint8_t environment_bits(const char *variable) {
  const char *text = getenv(variable), *end;
  uint64_t bits = 0;
  if (text == NULL || !sml_number_parse(text, UINT8_MAX, &bits, &end)) return 0;
  return (uint8_t)bits;
}

struct sml_format_options sml_bench_formats(const struct sml_bench_options *o) {
  struct sml_format_options formats = {.float_bits = (uint8_t)o->float_bits, .float64_bits = (uint8_t)o->float64_bits};
  if (formats.float_bits == 0) formats.float_bits = environment_bits("SWITCHML_FLOAT_BITS");
  if (formats.float64_bits == 0) formats.float64_bits = environment_bits("SWITCHML_FLOAT64_BITS");
  if (formats.float64_bits == 0 && o->type == SML_FLOAT64) formats.float64_bits = 96;
  return formats;
}

bool sml_bench_is_exact(const struct sml_bench_options *o) {
  return o->is_exact || environment_bits("SWITCHML_EXACT") == 1;
}

static uint64_t unit_of(char letter) {
  switch (letter) {
    case 'k':
    case 'K': return UINT64_C(1) << 10;
    case 'm':
    case 'M': return UINT64_C(1) << 20;
    case 'g':
    case 'G': return UINT64_C(1) << 30;
    default: return 0;
  }
}

const char *sml_bench_parse_sizes(const char *text, struct sml_bench_options *options) {
  const uint64_t max_bytes = UINT64_C(1) << 40;
  options->num_sizes = 0;
  for (;;) {
    uint64_t value = 0;
    if (!sml_number_parse(text, max_bytes, &value, &text)) return "a size must be a number like 1000, 64K, 16M or 1G";
    if (unit_of(*text) != 0) {
      if (value > max_bytes / unit_of(*text)) return "a size must be at most 1024G";
      value *= unit_of(*text++);
    }
    if (value == 0) return "there is nothing to sum of 0 bytes";
    if (options->num_sizes == SML_BENCH_MAX_SIZES) return "there may be at most 256 sizes";
    options->size_bytes[options->num_sizes++] = value < 4 ? 4 : value & ~UINT64_C(3);
    if (*text == '\0') return NULL;
    if (*text++ != ',') return "a size must be a number with K, M, G or nothing behind it; commas between sizes";
  }
}

/* Down to whole elements, but at least one. */
static void round_sizes(struct sml_bench_options *o) {
  const uint64_t elem_bytes = sml_max_u32(4, sml_format_elem_bytes((uint32_t)o->type));
  for (uint32_t i = 0; i < o->num_sizes; i++)
    o->size_bytes[i] = sml_max_u64(elem_bytes, o->size_bytes[i] & ~(elem_bytes - 1));
}

static const char *check(void *options) {
  struct sml_bench_options *o = options;
  if (!sml_format_is_float((uint32_t)o->type) && o->reduction == SML_AVG)
    return "there is no avg of integers: it is not an integer; use --op sum";
  if (sml_format_is_float((uint32_t)o->type) && o->reduction >= SML_PRODUCT)
    return "floats have sum, avg, min and max alone: a product would depend on the order, and bits are of integers";
  if (o->float_bits % 16 != 0) return "--float-bits must be 16 or 32";
  if (o->float64_bits % 32 != 0) return "--float64-bits must be 64 or 96";
  round_sizes(o);
  return sml_bench_check_job(o);
}

void sml_bench_options_parse(struct sml_bench_options *o, int argc, char **argv) {
  static const struct sml_option_parser parser = {
      .table = table, .common = sml_bench_job_options, .doc = doc, .check = check};
  static char name[] = "switchml bench";
  *o = (struct sml_bench_options){.loss = -1,
                                  .shared_memory = SML_BENCH_AS_ENVIRONMENT,
                                  .num_warmup = 3,
                                  .num_calls = 1,
                                  .seed = 1,
                                  .timeout_ns = 60 * SML_NS_PER_S,
                                  .job_name = "bench"};
  (void)sml_bench_parse_sizes("4,1000,1M,16M", o);
  argv[0] = name;
  sml_options_parse(&parser, argc, argv, o);
}

uint32_t sml_bench_iters(const struct sml_bench_options *options, uint64_t size_bytes) {
  const uint64_t large_bytes = UINT64_C(64) << 20;
  if (options->num_iters != 0) return options->num_iters;
  if (size_bytes <= UINT64_C(64) << 10) return 50;
  if (size_bytes <= large_bytes) return 20;
  return (uint32_t)sml_max_u64(5, 20 * large_bytes / size_bytes);
}

void sml_bench_set_faults(const struct sml_bench_options *options, uint32_t receiver) {
  if (options->loss < 0) return;
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
  for (uint32_t i = 0; i < options->num_sizes; i++) largest_bytes = sml_max_u64(largest_bytes, options->size_bytes[i]);
  const uint64_t num_results = (uint64_t)options->num_calls * sml_bench_calls_of(options->collective);
  const uint64_t need_kib = (1 + num_results) * (largest_bytes >> 10) * num_processes;
  if (free_kib == 0 || need_kib <= free_kib) return true;
  sml_bench_say("a size of %llu bytes needs %llu MiB here, but only %llu MiB are free; ask for less",
                (unsigned long long)largest_bytes, (unsigned long long)need_kib >> 10, free_kib >> 10);
  return false;
}
