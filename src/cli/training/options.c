/* SPDX-License-Identifier: Apache-2.0 */
#include <argp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/bench/job_options.h"
#include "cli/training/training.h"

enum option_key {
  KEY_MODEL = 'm',
  KEY_GPU = 'g',
  KEY_RATE = 'r',
  KEY_PREDICT = 'p',
  KEY_MODEL_FILE = 0x100,
  KEY_SAMPLES,
  KEY_BATCH,
  KEY_RANKS,
  KEY_AGGREGATOR,
  KEY_MTU,
  KEY_RING_STEP,
  KEY_TIME_SCALE,
  KEY_BUCKET,
  KEY_PRIORITY,
  KEY_PIECE,
  KEY_PLAN,
  KEY_LIST,
  KEY_CSV,
};

static const struct argp_option option_table[] = {
    {"model", KEY_MODEL, "NAME", 0, "A built-in table of layers (default resnet50); `all` with --predict", 1},
    {"model-file", KEY_MODEL_FILE, "FILE", 0, "A table of your own in its place; switchml(1) has the format",
     1},
    {"list", KEY_LIST, NULL, 0, "Print the built-in tables, their sizes and GPUs", 1},
    {"gpu", KEY_GPU, "NAME", 0,
     "Whose computing times: p100 (default), v100, a100, or one of the table's own", 1},
    {"samples-per-second", KEY_SAMPLES, "X", 0, "What one GPU trains alone, instead of the table's figure",
     1},
    {"batch", KEY_BATCH, "N", 0, "Samples of a rank and iteration (default: the table's)", 1},
    {"bucket", KEY_BUCKET, "MIB", 0,
     "Gather gradients up to so many MiB, 25 as DistributedDataParallel does "
     "(default 0: an all-reduce for each tensor)",
     2},
    {"priority", KEY_PRIORITY, NULL, 0,
     "A layer's next forward pass waits only for its own gradient, and early layers' "
     "go first",
     2},
    {"piece", KEY_PIECE, "MIB", 0, "Then: gradients are cut into pieces of so many MiB (default 4)", 2},
    {"predict", KEY_PREDICT, NULL, 0, "Run nothing: say what to expect of SwitchML and of a ring", 3},
    {"rate", KEY_RATE, "LIST", 0, "Of a rank's link, like 10gbit (default) or 1gbit,10gbit,100gbit", 3},
    {"ranks", KEY_RANKS, "N", 0, "With --predict: how many (default 8)", 3},
    {"aggregator", KEY_AGGREGATOR, "KIND", 0,
     "network (default: a switch, or links of n times the rate), the rate of a "
     "program's only link, or embedded: the ranks aggregate for each other",
     3},
    {"mtu", KEY_MTU, "BYTES", 0, "Of the links (default 1500)", 3},
    {"ring-step", KEY_RING_STEP, "US", 0,
     "What each of a ring's 2(n-1) steps costs beside its bytes (default 50)", 3},
    {"time-scale", KEY_TIME_SCALE, "K", 0,
     "Computing takes K times as long, the links have rate/K, and the times that are "
     "printed are those over K (default 1)",
     4},
    {"csv", KEY_CSV, NULL, 0, "Print comma-separated values instead of the table", 6},
    {"plan", KEY_PLAN, NULL, 0,
     "Print what would be replayed, for the programs that do so with other libraries", 6},
    {0}};

static const char doc[] =
    "Replays the gradients of a real network, each when a GPU would have it ready, or predicts what that "
    "takes."
    "\vComputing is waited for, not done. Without --local this process is one worker of a running "
    "switchmld:\n"
    "  SWITCHML_AGGREGATOR=host:port RANK=0 WORLD_SIZE=2 switchml bench training --model vgg16\n"
    "Will it help me:\n"
    "  switchml bench training --predict --model all --gpu a100 --rate 10gbit,100gbit --ranks 16\n"
    "The exit status is 0 only if every element of the last result was right, 1 if not or if something "
    "failed, 2 for "
    "wrong arguments.";

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

static void parse_rates(const struct argp_state *state, const char *text, struct sml_training_options *o) {
  o->num_rates = 0;
  for (const char *at = text; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
    char one[32];
    snprintf(one, sizeof one, "%.*s", (int)sml_min_u64(strcspn(at, ","), sizeof one - 1), at);
    if (o->num_rates == SML_TRAINING_MAX_RATES ||
        !sml_training_parse_rate(one, &o->rates_bps[o->num_rates++]))
      argp_error(state, "--rate is '%s', but must be like 10gbit or 1gbit,10gbit, %u at most", text,
                 SML_TRAINING_MAX_RATES);
  }
}

static void parse_aggregator(const struct argp_state *state, const char *text,
                             struct sml_training_options *o) {
  o->aggregator = strcmp(text, "network") == 0  ? SML_TRAINING_IN_NETWORK
                  : strcmp(text, "embedded") == 0 ? SML_TRAINING_EMBEDDED
                                                : SML_TRAINING_LINK;
  if (o->aggregator == SML_TRAINING_LINK && !sml_training_parse_rate(text, &o->aggregator_bps))
    argp_error(state, "--aggregator is '%s', but must be network, embedded or a rate like 10gbit", text);
}

/* Options about the network that is trained. */
static error_t parse_model_option(int key, char *text, struct argp_state *state) {
  struct sml_training_options *o = state->input;
  switch (key) {
    case KEY_MODEL:
      o->model_name = text;
      return 0;
    case KEY_MODEL_FILE:
      o->model_file = text;
      return 0;
    case KEY_GPU:
      o->gpu = text;
      return 0;
    case KEY_SAMPLES:
      o->samples_per_s = sml_option_real(state, "samples-per-second", text, 1e-6, 1e12);
      return 0;
    case KEY_BATCH:
      o->batch = sml_option_number(state, "batch", text, 1, 1u << 30);
      return 0;
    case KEY_BUCKET:
      o->bucket_bytes = (uint64_t)(sml_option_real(state, "bucket", text, 0, 1e6) * 0x1p20);
      return 0;
    case KEY_PRIORITY:
      o->has_priority = true;
      return 0;
    case KEY_PIECE:
      o->piece_bytes = (uint64_t)(sml_option_real(state, "piece", text, 0.001, 1e6) * 0x1p20);
      return 0;
    case KEY_TIME_SCALE:
      o->time_scale = sml_option_real(state, "time-scale", text, 1e-6, 1e6);
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static void check_whole(const struct argp_state *state, const struct sml_training_options *o) {
  if (o->bench.num_iters > SML_TRAINING_MAX_ITERS || o->bench.num_warmup > SML_TRAINING_MAX_ITERS)
    argp_error(state, "--iters and --warmup must be at most %u", SML_TRAINING_MAX_ITERS);
  if (o->has_priority && o->bucket_bytes != 0)
    argp_error(state, "--priority cuts gradients up, --bucket gathers them");
  if (o->bench.is_json && o->is_csv) argp_error(state, "--json or --csv");
  if (!o->is_prediction && o->num_rates > 1) argp_error(state, "several rates are for --predict");
  if (!o->is_prediction && strcmp(o->model_name, "all") == 0) argp_error(state, "`all` is for --predict");
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
  struct sml_training_options *o = state->input;
  switch (key) {
    case KEY_RATE:
      parse_rates(state, text, o);
      return 0;
    case KEY_AGGREGATOR:
      parse_aggregator(state, text, o);
      return 0;
    case KEY_MTU:
      o->mtu = sml_option_number(state, "mtu", text, 576, 65535);
      return 0;
    case KEY_RANKS:
      o->num_ranks = sml_option_number(state, "ranks", text, 2, 4096);
      return 0;
    case KEY_RING_STEP:
      o->ring_step_s = sml_option_real(state, "ring-step", text, 0, 1e6) * 1e-6;
      return 0;
    case KEY_PREDICT:
      o->is_prediction = true;
      return 0;
    case KEY_PLAN:
      o->is_plan = true;
      return 0;
    case KEY_LIST:
      o->is_list = true;
      return 0;
    case KEY_CSV:
      o->is_csv = true;
      return 0;
    case ARGP_KEY_ARG:
      argp_error(state, "'%s' is not an option", text);
      return 0;
    case ARGP_KEY_INIT:
      state->child_inputs[0] = &o->bench;
      return 0;
    case ARGP_KEY_END:
      check_whole(state, o);
      return 0;
    default:
      return parse_model_option(key, text, state);
  }
}

void sml_training_options_parse(struct sml_training_options *o, int argc, char **argv) {
  static const struct argp_child children[] = {{&sml_job_argp, 0, NULL, 0}, {0}};
  static const struct argp parser = {
      .options = option_table, .parser = parse_option, .doc = doc, .children = children};
  memset(o, 0, sizeof *o);
  o->bench.num_iters = 3;
  o->bench.num_warmup = 1;
  o->bench.num_calls = 1;
  o->bench.timeout_ns = 60 * SML_NS_PER_S;
  o->bench.job_name = "training";
  o->bench.shared_memory = "0";
  o->model_name = "resnet50";
  o->gpu = "p100";
  o->rates_bps[0] = 10e9;
  o->num_rates = 1;
  o->mtu = 1500;
  o->ring_step_s = 50e-6;
  o->time_scale = 1;
  o->piece_bytes = UINT64_C(4) << 20;
  argp_err_exit_status = SML_BENCH_USAGE;
  char name[] = "switchml bench training";
  argv[0] = name;
  if (argp_parse(&parser, argc, argv, 0, NULL, o) != 0) exit(SML_BENCH_USAGE);
}

/* As docs/PROTOCOL.md frames a chunk: Ethernet, IPv4, UDP and our header. */
static double our_floor(uint32_t mtu) {
  const double payload = fmin(mtu - 28.0, 8960) - 32;
  return (payload + 32 + 42) / payload;
}

struct sml_training_link sml_training_our_link(const struct sml_training_options *o, double bps,
                                               uint32_t num_ranks) {
  const double n = num_ranks;
  const double share = o->aggregator == SML_TRAINING_EMBEDDED ? 2 * (n - 1) / n
                       : o->aggregator == SML_TRAINING_LINK ? fmax(1, n * bps / o->aggregator_bps)
                                                            : 1;
  return (struct sml_training_link){.bits_per_s = bps, .share = share, .floor = our_floor(o->mtu)};
}

struct sml_training_link sml_training_ring_link(const struct sml_training_options *o, double bps,
                                                uint32_t num_ranks) {
  const double n = num_ranks; /* TCP with time stamps over IPv4 and Ethernet */
  return (struct sml_training_link){.bits_per_s = bps,
                                    .share = 2 * (n - 1) / n,
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
                                     .link = sml_training_our_link(o, bps / o->time_scale, num_ranks)};
}
