/* SPDX-License-Identifier: Apache-2.0
 * `switchml bench`: what its parts know of each other. options -> local (starts an aggregator and the
 * workers) or worker (one rank: input, timing, check, gathering) -> report (rank 0 prints). */
#pragma once

#include "base/base.h"
#include "quant/format.h"
#include "switchml/switchml.h"

#define SML_BENCH_MAX_SIZES 256u
#define SML_BENCH_MAX_RESULTS (SML_BENCH_ALL * SML_BENCH_MAX_SIZES)
#define SML_BENCH_MAX_ITERS 1000000u
#define SML_BENCH_MAX_LOCAL 256u
#define SML_BENCH_MAX_CALLS 512u

enum sml_bench_exit { SML_BENCH_OK = 0, SML_BENCH_FAILED = 1, SML_BENCH_USAGE = 2 };

enum sml_bench_collective {
  SML_BENCH_ALL_REDUCE = 0,
  SML_BENCH_REDUCE_SCATTER,
  SML_BENCH_ALL_GATHER,
  SML_BENCH_BOTH,      /* those two at once */
  SML_BENCH_BROADCAST, /* from rank 0 */
  SML_BENCH_REDUCE,    /* to rank 0 */
  SML_BENCH_BARRIER,
  SML_BENCH_ALL, /* one after the other */
};

enum sml_bench_choice { SML_BENCH_NO = 0, SML_BENCH_YES, SML_BENCH_AS_ENVIRONMENT };

struct sml_bench_options {
  uint32_t num_local;                       /* 0: this process is one worker, told by RANK and WORLD_SIZE */
  bool is_local_worker;                     /* started by a --local run */
  uint64_t size_bytes[SML_BENCH_MAX_SIZES]; /* multiples of 4, at least 4; of 8 where elements have 8 */
  uint32_t num_sizes;
  sml_type type;
  uint32_t float_bits, float64_bits; /* 0: as the environment says; float64_bits: 96 if it says nothing */
  bool is_exact;                     /* or the environment says so */
  sml_reduction reduction;
  enum sml_bench_collective collective;
  uint32_t num_iters; /* 0: by size */
  uint32_t num_warmup;
  uint32_t num_calls; /* of a collective, under way at once, which are timed together; at least 1 */
  bool is_batched;    /* they are one batch */
  double loss;        /* negative: as the environment says */
  uint64_t seed;
  uint32_t num_lanes, num_slots, max_datagram_bytes; /* 0: the library's default */
  uint64_t timeout_ns;
  bool is_json, is_in_place, no_offload;
  enum sml_bench_choice shared_memory;
  const char *job_name;
  const char *key_file; /* NULL: as the environment says, and the next two likewise */
  bool is_checked;
  uint64_t retry_ns, lease_ns;
};

/* Parses `switchml bench` and its arguments; ends the process with status 2 and a sentence when they
 * are wrong, with 0 after --help. */
void sml_bench_options_parse(struct sml_bench_options *options_out, int argc, char **argv);
/* "4,1000,1M" to bytes; NULL, or a static sentence that says what is wrong. */
const char *sml_bench_parse_sizes(const char *text, struct sml_bench_options *options);
uint32_t sml_bench_iters(const struct sml_bench_options *options, uint64_t size_bytes);
const char *sml_bench_type_name(sml_type type);
const char *sml_bench_reduction_name(sml_reduction reduction);
const char *sml_bench_collective_name(enum sml_bench_collective collective);
/* Operations that are timed as one; of `all`: at most. */
static inline uint32_t sml_bench_calls_of(enum sml_bench_collective collective) {
  return collective == SML_BENCH_BOTH || collective == SML_BENCH_ALL ? 2 : 1;
}
/* What the job's ranks agree on, from the options, or the environment where they are 0. */
struct sml_format_options sml_bench_formats(const struct sml_bench_options *options);
bool sml_bench_is_exact(const struct sml_bench_options *options);

/* Runs an aggregator and num_local workers on this machine; returns an exit status. argv: of the
 * command, from "bench" on. */
int sml_bench_local(const struct sml_bench_options *options, int argc, char **argv);
/* The same with workers that do something else, each in a process that was forked for it. */
struct sml_bench_work {
  int (*run)(void *user, uint32_t rank); /* returns the process's exit status; one that is not 0 has been explained */
  void *user;
  bool has_aggregator; /* it is started, and SWITCHML_AGGREGATOR names it */
  uint64_t limit_ns;   /* what runs then still is killed */
};
int sml_bench_local_work(const struct sml_bench_options *options, const struct sml_bench_work *work);
/* Runs one rank; returns an exit status. */
int sml_bench_worker(const struct sml_bench_options *options);
/* Starts the library and joins the job as the options say. False: it said why not; what was made is the caller's. */
bool sml_bench_join(const struct sml_bench_options *options, uint32_t rank, uint32_t world_size,
                    sml_context **context_out, sml_job **job_out);
/* SWITCHML_FAULTS for one receiver: the same share, its own drops. receiver 0: the aggregator. */
void sml_bench_set_faults(const struct sml_bench_options *options, uint32_t receiver);
/* False, with a sentence on stderr, when num_processes runs do not fit into the free memory. */
bool sml_bench_fits_memory(const struct sml_bench_options *options, uint32_t num_processes);

/* Input of a rank: a pure function of seed, rank and element index, so that every rank knows every
 * other's. Floats: random signs, 60 binades (20 of float16, denormals among them), runs of zeros on one rank and on
 * all. Integers: all bits, a quarter zeros. */
void sml_bench_fill(void *out, sml_type type, uint64_t seed, uint32_t rank, uint64_t first_elem, size_t num_elems);

/* What decides the bits of a result. */
struct sml_bench_shape {
  sml_type type;
  struct sml_format_options formats;
  sml_reduction reduction;
  uint64_t num_elems;
  uint64_t seed;
  uint32_t world_size;
  bool is_exact;
};
struct sml_bench_check {
  uint64_t num_wrong;     /* bits differ from the scalar reference, or error beyond its bound */
  double max_error;       /* against a sum in long double */
  double max_error_bound; /* of the element that has max_error */
};
/* Compares every num_slices-th block of a result, from block `slice` on, with the reference made from
 * all ranks' inputs. Adds to *check. False: out of memory. */
bool sml_bench_verify(const struct sml_bench_shape *shape, const void *result, uint32_t slice, uint32_t num_slices,
                      struct sml_bench_check *check);
/* The same where nothing is summed: each part is its rank's input. parts: elements of each rank's. */
void sml_bench_verify_copy(const struct sml_bench_shape *shape, const size_t *parts, const void *result, uint32_t slice,
                           uint32_t num_slices, struct sml_bench_check *check);
/* Any change of one word changes it. */
uint64_t sml_bench_hash(const void *data, size_t num_bytes);

/* Per-rank numbers travel over the job itself: an int32 SUM of vectors in which each rank fills its own
 * place, in pieces of 16 bits. The last value of a rank's place is a checksum of the others. */
size_t sml_bench_gather_elems(uint32_t world_size, size_t num_values);
void sml_bench_gather_pack(int32_t *vector, uint32_t world_size, uint32_t rank, const uint64_t *values,
                           size_t num_values);
/* all_out[world_size * num_values]. False: the sums are not what the ranks put in. */
bool sml_bench_gather_unpack(const int32_t *vector, uint32_t world_size, size_t num_values, uint64_t *all_out);

struct sml_bench_result {
  enum sml_bench_collective collective;
  uint64_t size_bytes, num_elems;
  uint32_t num_iters;
  double median_us, p99_us;      /* of the slowest rank */
  double algbw_gbps, busbw_gbps; /* 10^9 bytes a second */
  struct sml_bench_check check;
  double tx_bytes, rx_bytes;             /* UDP payload a rank and call */
  uint64_t window_reductions, ecn_marks; /* likewise */
  uint64_t retransmissions;              /* of all ranks and iterations */
  uint64_t needless_repeats;             /* of results, likewise */
  double slot_spread; /* results of rank 0's busiest slot over the mean of its slots, since the job began; 0: none */
  double system_calls_per_chunk, cpu_s, cpu_s_per_gb; /* of a worker, on average; cpu_s of one all-reduce */
};
struct sml_bench_report {
  const struct sml_bench_options *options;
  uint32_t world_size, num_lanes, chunk_bytes, num_slots, slots_why;
  uint64_t join_rtt_ns;
  uint32_t num_local_ranks; /* that add up in shared memory; 0: over the network */
  bool has_offload;
  uint32_t num_results;
  struct sml_bench_result results[SML_BENCH_MAX_RESULTS];
};
/* Writes the table, or the JSON object, to stdout. False: it could not be written. */
bool sml_bench_report_print(const struct sml_bench_report *report);

/* "switchml bench: ..." on stderr, in one write. */
__attribute__((format(printf, 1, 2))) void sml_bench_say(const char *format, ...);
