/* SPDX-License-Identifier: Apache-2.0
 * `switchml bench training`: the gradients of real networks, layer by layer, each when it would be ready. A
 * table of layers (bench/models/) becomes a plan of sends, which is replayed over a job, predicted for any
 * link, or printed for the programs that replay it with other libraries. Times are of one rank's iteration,
 * from the start of its backward pass to the next one's. ADR 25. */
#pragma once

#include "cli/bench/bench.h"

#define SML_TRAINING_MAX_GPUS 8u
#define SML_TRAINING_MAX_RATES 16u
#define SML_TRAINING_MAX_ITERS 10000u
#define SML_TRAINING_MAX_SENDS 32768u

/* The tables in bench/models/, by name; {0} ends them. */
struct sml_training_builtin {
  const char *name, *text;
};
extern const struct sml_training_builtin sml_training_builtins[];

struct sml_training_layer {
  char name[64];
  double flops;         /* of one sample's forward pass */
  uint32_t num_tensors; /* its parameters' */
};
struct sml_training_speed {
  char gpu[16];
  double samples_per_s; /* one of them trains alone */
  char source[160];     /* "published: where", or "derived ..." */
};
struct sml_training_model {
  char name[64];
  uint64_t num_parameters; /* as the table says; what is read has as many */
  uint32_t batch;          /* samples of a rank and iteration */
  struct sml_training_speed speeds[SML_TRAINING_MAX_GPUS];
  uint32_t num_speeds;
  struct sml_training_layer *layers; /* in the order of the forward pass */
  uint32_t num_layers;
  uint64_t *tensor_elems; /* of all layers, in that order */
  uint32_t num_tensors;
};

/* Reads a table; the format is explained in bench/models/generate.py and in switchml(1). NULL, or a sentence
 * that says what is wrong, in which line: valid until the next call. *model_out is to be freed in any case.
 */
const char *sml_training_model_parse(struct sml_training_model *model_out, const char *name, const char *text);
void sml_training_model_free(struct sml_training_model *model);
/* NULL: no such GPU in the table. */
const struct sml_training_speed *sml_training_find_speed(const struct sml_training_model *model, const char *gpu);

/* Bytes that a link carries each way for one of tensor. */
struct sml_training_ways {
  double up, down;
};
/* What a link costs. */
struct sml_training_link {
  double bits_per_s;
  struct sml_training_ways gather, scatter; /* of an all-gather, a reduce-scatter */
  double share;                             /* bytes a link carries for one of tensor: 1, or 2(n-1)/n of a ring */
  double floor;                             /* framing: bytes on the wire for one of payload */
  double serial_s;                          /* of every send, before the next one may begin */
};

enum sml_training_call { SML_TRAINING_ALL_REDUCE, SML_TRAINING_GATHER, SML_TRAINING_SCATTER };
/* One call: elements of the gradient, which lies in memory in the order of the backward pass; of sharded training
 * elements of a unit, whose parameters are gathered or whose gradients are summed, in the order of the forward pass. */
struct sml_training_send {
  uint64_t first_elem, num_elems;
  uint64_t ready_ns;    /* from the start of the backward pass */
  uint32_t first_layer; /* the earliest one that waits for it */
  enum sml_training_call call;
};
/* What a rank does in sharded training, one after the other. number: ns of computing, or a send. */
enum sml_training_act { SML_TRAINING_COMPUTE, SML_TRAINING_CALL, SML_TRAINING_WAIT };
struct sml_training_step {
  enum sml_training_act act;
  uint64_t number;
};
struct sml_training_plan {
  uint64_t num_elems;
  struct sml_training_send *sends; /* in the order of their calls, which is the same on all ranks */
  uint32_t num_sends;
  uint32_t num_layers;
  uint64_t *forward_ns; /* of each layer */
  uint32_t *num_needed; /* of the sends of the iteration before, in order, ahead of a layer's forward pass */
  uint64_t all_forward_ns, backward_ns;
  struct sml_training_step *steps; /* of sharded training, else none */
  uint32_t num_steps;
};
struct sml_training_shape {
  double samples_per_s; /* of one GPU */
  uint32_t batch;
  double time_scale;     /* all computing takes so many times as long */
  uint64_t bucket_bytes; /* gradients are gathered up to this, as DistributedDataParallel does; 0: a tensor each */
  /* A layer's forward pass waits for its own gradient only, early layers go first, in pieces of at most
   * piece_bytes, in the order in which a link of these costs would take them; without it all waits for all.
   */
  bool has_priority;
  uint64_t piece_bytes;
  bool is_sharded; /* as FSDP2: units of whole layers, of bucket_bytes at least */
  uint32_t num_ranks;
  struct sml_training_link link;
};
/* False: out of memory, or more than SML_TRAINING_MAX_SENDS. */
bool sml_training_plan_make(struct sml_training_plan *plan_out, const struct sml_training_model *model,
                            const struct sml_training_shape *shape);
void sml_training_plan_free(struct sml_training_plan *plan);
/* The same of sharded training (shape->is_sharded). forward_ns: of each layer. */
bool sml_training_shard(struct sml_training_plan *plan, const struct sml_training_model *model,
                        const struct sml_training_shape *shape);

struct sml_training_prediction {
  double iteration_s, compute_s;
  double link_s;    /* the link is busy */
  double exposed_s; /* of the iteration nothing is computed */
};
/* The plan over one serial link, in the plan's order. time_scale: the plan's, taken out. */
void sml_training_predict(const struct sml_training_plan *plan, const struct sml_training_link *link, double time_scale,
                          struct sml_training_prediction *prediction_out);
void sml_training_predict_sharded(const struct sml_training_plan *plan, const struct sml_training_link *link,
                                  double time_scale, struct sml_training_prediction *prediction_out);
/* "compute-bound" (waiting takes under 5 % of the iteration), "network-bound" (the link is busy for longer
 * than the processor), "between". */
const char *sml_training_regime(const struct sml_training_prediction *prediction);

enum sml_training_aggregator {
  SML_TRAINING_IN_NETWORK = 0, /* a switch, or a program behind links of n times the ranks' rate */
  SML_TRAINING_LINK,           /* a program behind one link of aggregator_bps */
  SML_TRAINING_EMBEDDED,       /* the ranks aggregate for each other */
};
struct sml_training_options {
  struct sml_bench_options bench; /* what the two benches share: num_local, job_name, is_json ... */
  const char *model_name, *model_file;
  const char *gpu;
  double samples_per_s; /* 0: as the table says */
  uint32_t batch;       /* 0: the table's */
  double rates_bps[SML_TRAINING_MAX_RATES];
  uint32_t num_rates;
  uint32_t num_ranks; /* 0: those of the job, else 8 */
  enum sml_training_aggregator aggregator;
  double aggregator_bps;
  uint32_t mtu;
  double ring_step_s; /* what each of a ring's 2(n-1) steps costs beside its bytes */
  double time_scale;
  uint64_t bucket_bytes, piece_bytes;
  bool has_priority, is_sharded, is_prediction, is_plan, is_list, is_csv;
};
/* Parses `switchml bench training` and its arguments, argv[0] being "training"; ends the process as
 * sml_bench_options_parse() does. */
void sml_training_options_parse(struct sml_training_options *options_out, int argc, char **argv);
/* "10gbit" to bits a second; false: wrong. */
bool sml_training_parse_rate(const char *text, double *bps_out);

/* The links of ours and of a ring, n ranks, at one of the rates. */
struct sml_training_link sml_training_our_link(const struct sml_training_options *options, double bps,
                                               uint32_t num_ranks);
/* all_reduces: a reduce-scatter is an all-reduce, as PyTorch's Gloo has it. */
struct sml_training_link sml_training_ring_link(const struct sml_training_options *options, double bps,
                                                uint32_t num_ranks, bool all_reduces);
struct sml_training_shape sml_training_shape_of(const struct sml_training_options *options,
                                                const struct sml_training_model *model, double bps, uint32_t num_ranks);

/* One rank's replay, summed up over all. */
struct sml_training_result {
  uint32_t world_size, num_iters;
  double median_s, fastest_s, slowest_s;    /* of an iteration's slowest rank, time scale taken out */
  uint64_t num_wrong;                       /* elements of the last iteration, of all ranks */
  uint64_t num_operations, retransmissions; /* of all ranks, timed and not */
  double tx_bytes, rx_bytes;                /* UDP payload of a rank and iteration */
  double cpu_s;                             /* of a rank and iteration */
  bool is_shared_memory;
};
/* False: it failed, and said so. */
bool sml_training_replay(const struct sml_training_options *options, const struct sml_training_plan *plan,
                         struct sml_training_result *result_out, bool *is_reporter_out);

bool sml_training_report_replay(const struct sml_training_options *options, const struct sml_training_model *model,
                                const struct sml_training_plan *plan, const struct sml_training_result *result);
/* Models (one, or all of them) at each rate. */
int sml_training_report_predictions(const struct sml_training_options *options);
bool sml_training_report_plan(const struct sml_training_plan *plan);
bool sml_training_report_list(void);

/* Reads what --model or --model-file names. False: it said why not. */
bool sml_training_model_load(struct sml_training_model *model_out, const struct sml_training_options *options,
                             const char *name);
/* The whole command; argv: of `bench`, argv[at] is "training". */
int sml_training_run(int argc, char **argv, int at);
