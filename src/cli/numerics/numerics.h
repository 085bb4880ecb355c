/* SPDX-License-Identifier: Apache-2.0
 * `switchml bench numerics`: the same gradients, summed in many ways by SwitchML, Gloo and Open MPI, and how many
 * different sums each of them has. options -> ways (inputs and their exact sum; runs each way) -> report (table,
 * JSON) and picture. Our ranks are in ours.c; those of the others are bench/peers/numerics.py. */
#pragma once

#include "cli/bench/bench.h"

#define SML_NUMERICS_MAX_RANKS 32u
#define SML_NUMERICS_MAX_LIST 8u
#define SML_NUMERICS_MAX_ROWS 256u

struct sml_numerics_options {
  const char *model_name, *picture_file;
  uint32_t ranks[SML_NUMERICS_MAX_LIST], num_ranks;
  uint32_t bucket_mib[SML_NUMERICS_MAX_LIST], num_buckets;
  uint32_t num_tensors; /* 0: all of the model's */
  uint64_t seed;
  bool no_peers, is_json;
};
/* Parses `switchml bench numerics` and its arguments; ends the process as sml_bench_options_parse() does. */
void sml_numerics_options_parse(struct sml_numerics_options *options_out, int argc, char **argv);

enum sml_numerics_library {
  SML_NUMERICS_INTEGERS = 0, /* the exact sum, rounded once, which no library made */
  SML_NUMERICS_EXACT,        /* SwitchML in exact mode */
  SML_NUMERICS_DEFAULT,      /* SwitchML, which is told where tensors begin */
  SML_NUMERICS_GLOO,
  SML_NUMERICS_OPENMPI,
  SML_NUMERICS_NUM_LIBRARIES,
};
extern const char *const sml_numerics_library_names[];

/* One way to sum, with each size of bucket. */
struct sml_numerics_row {
  uint32_t num_ranks;
  enum sml_numerics_library library;
  const char *path;
  uint32_t checksums[SML_NUMERICS_MAX_LIST]; /* CRC-32C of the whole sum */
};
struct sml_numerics_result {
  const struct sml_numerics_options *options;
  size_t num_elems, num_tensors;
  struct sml_numerics_row rows[SML_NUMERICS_MAX_ROWS];
  uint32_t num_rows;
  const char *missing[SML_NUMERICS_NUM_LIBRARIES]; /* what to install; NULL: it ran, or was not wanted */
};
/* How many different sums a library has with so many ranks, and in how many ways. 0: it did not run. */
uint32_t sml_numerics_count(const struct sml_numerics_result *result, uint32_t num_ranks,
                            enum sml_numerics_library library, uint32_t *num_ways_out);
/* Ours are one each, and exact mode's is the exact one. False: that is a bug, which was said. */
bool sml_numerics_judge(const struct sml_numerics_result *result);

bool sml_numerics_report(const struct sml_numerics_result *result);
bool sml_numerics_draw(const struct sml_numerics_result *result, const char *path);

/* Where buckets begin: first[0] is 0, first[n] the number of tensors. A bucket takes whole tensors, as
 * DistributedDataParallel's do, up to its size, and at least one. Returns n. first: room for num_tensors + 1. */
size_t sml_numerics_cut(const size_t *tensor_elems, size_t num_tensors, uint32_t bucket_mib, size_t *first);
/* Element i of a rank's gradients, in units of 2^-70: magnitudes spread as those of real ones do, by the same rule on
 * any machine. A float32 holds it as it is, and an int64 the sum of any 64 of them. */
int64_t sml_numerics_draw_element(uint64_t seed, uint32_t rank, size_t i);
float sml_numerics_as_float(int64_t units);

/* What all processes of a run share. */
struct sml_numerics_memory {
  int file;     /* of `in` of all ranks, then `peers` of all sizes of bucket: the peers' helper maps it */
  float *in;    /* [num_ranks][num_elems] */
  float *peers; /* [num_buckets][num_elems] their sums */
  uint32_t (*checksums)[SML_NUMERICS_MAX_LIST]; /* [rank] of ours */
};
struct sml_numerics_run {
  const struct sml_numerics_options *options;
  struct sml_numerics_memory memory;
  const size_t *tensor_elems;
  size_t num_tensors, num_elems;
  uint32_t num_ranks;
};

struct sml_numerics_path {
  const char *name;
  bool has_aggregator, shares_memory;
  uint32_t max_datagram_bytes;
};
/* Runs our ranks; checksums_out has one for each size of bucket, equal on all ranks. False: it failed, and said so. */
bool sml_numerics_run_ours(const struct sml_numerics_run *run, const struct sml_numerics_path *path, bool is_exact,
                           uint32_t *checksums_out);
struct sml_numerics_peer {
  enum sml_numerics_library library;
  const char *path, *algorithm; /* Open MPI's number of it; NULL: its own choice */
};
/* NULL, or what to install for Gloo or Open MPI. */
const char *sml_numerics_missing(enum sml_numerics_library library);
/* The same by one of them that is not missing. */
bool sml_numerics_run_peer(const struct sml_numerics_run *run, const struct sml_numerics_peer *peer,
                           uint32_t *checksums_out);
extern const char sml_numerics_helper[]; /* bench/peers/numerics.py */

/* The whole command; argv[0] is "numerics". */
int sml_numerics_main(int argc, char **argv);
