/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/bench/job_options.h"
#include "cli/training/training.h"

#define SML_OPTIONS struct sml_training_options
#define MIB 0x1p20

bool sml_training_parse_rate(const char *text, double *bps_out) {
  static const struct {
    const char *name;
    double bps;
  } units[] = {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {"tbit", 1e12}};
  char *end;
  if (*text < '0' || *text > '9') return false;
  const double value = strtod(text, &end);
  for (size_t i = 0; i < SML_ARRAY_LEN(units); i++) {
    if (strcmp(end, units[i].name) != 0) continue;
    *bps_out = value * units[i].bps;
    return *bps_out >= 1e3 && *bps_out <= 1e15;
  }
  return false;
}

static const char *take_rates(void *options, const char *text) {
  struct sml_training_options *o = options;
  o->num_rates = 0;
  for (const char *at = text; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
    char one[32];
    snprintf(one, sizeof one, "%.*s", (int)sml_min_u64(strcspn(at, ","), sizeof one - 1), at);
    if (o->num_rates == SML_TRAINING_MAX_RATES || !sml_training_parse_rate(one, &o->rates_bps[o->num_rates++]))
      return "rates are like 10gbit or 1gbit,10gbit, 16 at most";
  }
  return NULL;
}

static const char *take_aggregator(void *options, const char *text) {
  struct sml_training_options *o = options;
  o->aggregator = strcmp(text, "network") == 0    ? SML_TRAINING_IN_NETWORK
                  : strcmp(text, "embedded") == 0 ? SML_TRAINING_EMBEDDED
                                                  : SML_TRAINING_LINK;
  if (o->aggregator != SML_TRAINING_LINK || sml_training_parse_rate(text, &o->aggregator_bps)) return NULL;
  return "it must be network, embedded or a rate like 10gbit";
}

static const struct sml_option table[] = {
    {"model", 'm', "NAME", "A built-in table of layers (default resnet50); `all` with --predict", 1,
     SML_TEXT(model_name)},
    {"model-file", 0, "FILE", "A table of your own in its place; switchml(1) has the format", 1, SML_TEXT(model_file)},
    {"list", 0, NULL, "Print the built-in tables, their sizes and GPUs", 1, SML_FLAG(is_list)},
    {"gpu", 'g', "NAME",
     "Whose computing times: p100 (default), v100, a100, h100, a10, l4, rtx4090, or the table's own", 1, SML_TEXT(gpu)},
    {"samples-per-second", 0, "X", "What one GPU trains alone, instead of the table's figure", 1,
     SML_REAL(samples_per_s, 1e-6, 1e12, 1)},
    {"batch", 0, "N", "Samples of a rank and iteration (default: the table's)", 1, SML_NUMBER(batch, 1, 1u << 30)},
    {"bucket", 0, "MIB",
     "Gather gradients up to so many MiB, 25 as DistributedDataParallel does "
     "(default 0: an all-reduce for each tensor)",
     2, SML_SCALED(bucket_bytes, 0, 1e6, MIB)},
    {"priority", 0, NULL, "A layer's next forward pass waits only for its own gradient, and early layers' go first", 2,
     SML_FLAG(has_priority)},
    {"piece", 0, "MIB", "Then: gradients are cut into pieces of so many MiB (default 4)", 2,
     SML_SCALED(piece_bytes, 0.001, 1e6, MIB)},
    {"fsdp", 0, NULL,
     "Sharded training, as PyTorch's FSDP2: all-gathers ahead of the forward and the backward pass, reduce-scatters of "
     "gradients; --bucket: units of so many MiB at least (default 0: each layer is one)",
     2, SML_FLAG(is_sharded)},
    {"predict", 'p', NULL, "Run nothing: say what to expect of SwitchML and of a ring", 3, SML_FLAG(is_prediction)},
    {"rate", 'r', "LIST", "Of a rank's link, like 10gbit (default) or 1gbit,10gbit,100gbit", 3,
     SML_TAKEN_BY(take_rates)},
    {"ranks", 0, "N", "With --predict: how many (default 8)", 3, SML_NUMBER(num_ranks, 2, 4096)},
    {"aggregator", 0, "KIND",
     "network (default: a switch, or links of n times the rate), the rate of a program's only link, or embedded: the "
     "ranks aggregate for each other",
     3, SML_TAKEN_BY(take_aggregator)},
    {"mtu", 0, "BYTES", "Of the links (default 1500)", 3, SML_NUMBER(mtu, 576, 65535)},
    {"ring-step", 0, "US", "What each of a ring's 2(n-1) steps costs beside its bytes (default 50)", 3,
     SML_REAL(ring_step_s, 0, 1e6, 1e-6)},
    {"time-scale", 0, "K",
     "Computing takes K times as long, the links have rate/K, and the times that are printed are those over K "
     "(default 1)",
     4, SML_REAL(time_scale, 1e-6, 1e6, 1)},
    {"csv", 0, NULL, "Print comma-separated values instead of the table", 6, SML_FLAG(is_csv)},
    {"plan", 0, NULL, "Print what would be replayed, for the programs that do so with other libraries", 6,
     SML_FLAG(is_plan)},
    {0}};

static const char doc[] =
    "Replays the gradients of a real network, each when a GPU would have it ready, or predicts what that takes."
    "\vComputing is waited for, not done. Without --local this process is one worker of a running switchmld:\n"
    "  SWITCHML_AGGREGATOR=host:port RANK=0 WORLD_SIZE=2 switchml bench training --model vgg16\n"
    "Will it help me:\n"
    "  switchml bench training --predict --model all --gpu a100 --rate 10gbit,100gbit --ranks 16\n"
    "The exit status is 0 only if every element of the last result was right, 1 if not or if something failed, 2 for "
    "wrong arguments.";

static const char *check(void *options) {
  const struct sml_training_options *o = options;
  if (o->bench.num_iters > SML_TRAINING_MAX_ITERS || o->bench.num_warmup > SML_TRAINING_MAX_ITERS)
    return "--iters and --warmup must be at most 10000";
  if (o->has_priority && o->bucket_bytes != 0) return "--priority cuts gradients up, --bucket gathers them";
  if (o->has_priority && o->is_sharded) return "--priority is for all-reduces; --fsdp has none";
  if (o->bench.is_json && o->is_csv) return "--json or --csv";
  if (!o->is_prediction && o->num_rates > 1) return "several rates are for --predict";
  if (!o->is_prediction && strcmp(o->model_name, "all") == 0) return "`all` is for --predict";
  return sml_bench_check_job(&o->bench);
}

void sml_training_options_parse(struct sml_training_options *o, int argc, char **argv) {
  static const struct sml_option_parser parser = {.table = table,
                                                  .common = sml_bench_job_options,
                                                  .common_offset = offsetof(struct sml_training_options, bench),
                                                  .doc = doc,
                                                  .check = check};
  static char name[] = "switchml bench training";
  *o = (struct sml_training_options){.bench = {.num_iters = 3,
                                               .num_warmup = 1,
                                               .num_calls = 1,
                                               .loss = -1,
                                               .timeout_ns = 60 * SML_NS_PER_S,
                                               .job_name = "training"},
                                     .model_name = "resnet50",
                                     .gpu = "p100",
                                     .rates_bps = {10e9},
                                     .num_rates = 1,
                                     .mtu = 1500,
                                     .ring_step_s = 50e-6,
                                     .time_scale = 1,
                                     .piece_bytes = UINT64_C(4) << 20};
  argv[0] = name;
  sml_options_parse(&parser, argc, argv, o);
}

/* As docs/PROTOCOL.md frames a chunk: Ethernet, IPv4, UDP and our header. */
static double our_floor(uint32_t mtu) {
  const double payload = fmin(mtu - 28.0, 8960) - 32;
  return (payload + 32 + 42) / payload;
}

struct sml_training_link sml_training_our_link(const struct sml_training_options *o, double bps, uint32_t num_ranks) {
  const double n = num_ranks;
  const double share = o->aggregator == SML_TRAINING_EMBEDDED ? 2 * (n - 1) / n
                       : o->aggregator == SML_TRAINING_LINK   ? fmax(1, n * bps / o->aggregator_bps)
                                                              : 1;
  const double more = o->aggregator == SML_TRAINING_LINK ? share : 1, others = (n - 1) / n * more;
  const double own =
      o->aggregator == SML_TRAINING_EMBEDDED ? others : more / n; /* of parts, its own comes or goes alone */
  return (struct sml_training_link){.bits_per_s = bps,
                                    .share = share,
                                    .gather = {.up = own, .down = others},
                                    .scatter = {.up = others, .down = own},
                                    .floor = our_floor(o->mtu)};
}

struct sml_training_link sml_training_ring_link(const struct sml_training_options *o, double bps, uint32_t num_ranks,
                                                bool all_reduces) {
  const double n = num_ranks; /* TCP with time stamps over IPv4 and Ethernet */
  const double part = (n - 1) / n, sum = all_reduces ? 2 * part : part;
  return (struct sml_training_link){.bits_per_s = bps,
                                    .share = 2 * part,
                                    .gather = {.up = part, .down = part},
                                    .scatter = {.up = sum, .down = sum},
                                    .floor = (o->mtu + 14.0) / (o->mtu - 52.0),
                                    .serial_s = 2 * (n - 1) * o->ring_step_s};
}

struct sml_training_shape sml_training_shape_of(const struct sml_training_options *o,
                                                const struct sml_training_model *model, double bps,
                                                uint32_t num_ranks) {
  const struct sml_training_speed *speed = sml_training_find_speed(model, o->gpu);
  return (struct sml_training_shape){.samples_per_s = o->samples_per_s > 0 ? o->samples_per_s
                                                      : speed              ? speed->samples_per_s
                                                                           : 0,
                                     .batch = o->batch != 0 ? o->batch : model->batch,
                                     .time_scale = o->time_scale,
                                     .bucket_bytes = o->bucket_bytes,
                                     .has_priority = o->has_priority,
                                     .piece_bytes = o->piece_bytes,
                                     .is_sharded = o->is_sharded,
                                     .num_ranks = num_ranks,
                                     .link = sml_training_our_link(o, bps / o->time_scale, num_ranks)};
}
