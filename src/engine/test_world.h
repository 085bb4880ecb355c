/* SPDX-License-Identifier: Apache-2.0
 * Tests only: worker engines and aggregator engines of one small world in one thread, over the in-process
 * back end wrapped in faults, with a clock of its own. What the engines give is compared bit by bit with a
 * reference made of the scalar kernels, and with a plain sum. Functions here are world_*. */
#pragma once

#include "engine/aggregator_engine.h"
#include "engine/worker_engine.h"
#include "switchml/switchml.h"

#define WORLD_MAX_RANKS 72u
#define WORLD_MAX_LANES 4u
#define WORLD_MAX_JOBS 4u
#define WORLD_MAX_EVENTS 64u

struct world;
/* The end of one rank or aggregator in one lane. */
struct world_port {
  struct world *world;
  struct sml_netio *io;
  struct sml_addr addr;
  bool is_aggregator;
  uint32_t rank, lane;
};

struct world_options {
  uint32_t world_size, num_slots, chunk_bytes;
  uint32_t num_lanes, num_operations; /* 0: one lane, two operations */
  uint32_t first_phase, first_chunk; /* 0: those of production */
  uint32_t queue_frames;             /* of a port; 0: enough */
  bool is_multicast;                 /* results go to a group that all senders are in */
  bool is_switch_format;             /* not keyed then */
  bool is_unchecked, is_unkeyed;     /* otherwise chunks carry check words, and packets MACs */
  bool is_narrow;                    /* updates of floats, where they can be: 5 ranks, unchecked */
  /* Ranks that contribute as one, and how many then do, numbered by their lowest ranks; 0: each by itself. Only the
   * lowest of each has lanes; calls give it the inputs of all once all have submitted, and its result to all. */
  uint32_t num_contributors;
  uint16_t contributors[WORLD_MAX_RANKS];
  bool is_one_way;                   /* there are one-way windows as well: unchecked */
  bool has_fixed_window;             /* of chunks under way: nothing limits it */
  uint32_t num_windows;              /* as of sml_lane_options */
  bool shares_link;                  /* lanes of a rank, of all jobs */
  bool has_liar;                     /* an aggregator's grants are not honest: invariant I9 is not expected */
  double up_mark;                    /* chance that an update comes marked; faults.mark: that any frame does */
  double stall;                      /* chance that an engine sits out a pass */
  struct sml_fault_options faults;   /* the seed is drawn for each port */
  uint64_t seed;
  const struct sml_quant_kernels *kernels; /* NULL: the processor's best */
  struct sml_recorder *recorder; /* of all engines, as they run on one thread; NULL: nothing is recorded */
  /* Sees every frame that a port receives, ahead of the engine; true drops it. Then faults.loss is not
   * used. */
  bool (*on_frame)(void *user, const struct world_port *to, const uint8_t *data, uint32_t num_bytes);
  /* If set, gives a port its back end, which the world closes, instead of mem and without faults. */
  struct sml_netio *(*open_io)(void *user, uint32_t queue_frames, uint32_t max_frame_bytes);
  void *user;
};

struct world_job {
  bool is_open, is_started;
  uint16_t number;
  uint32_t epoch;
  uint64_t num_calls;
  uint64_t nonces[WORLD_MAX_RANKS][WORLD_MAX_LANES];
  struct sml_worker_options worker; /* what all ranks have in common */
  struct sml_seal seal;             /* of this epoch */
  struct sml_lane *lanes[WORLD_MAX_RANKS][WORLD_MAX_LANES];
  struct sml_lane *one_way[2][WORLD_MAX_RANKS][WORLD_MAX_LANES]; /* for sums to owners, for copies */
  struct sml_aggregator *states[WORLD_MAX_LANES];                /* the aggregators', to look into and to break */
  uint32_t num_integrity[WORLD_MAX_RANKS];                       /* calls of on_integrity */
};

struct world {
  struct world_options options;
  struct sml_prng prng;
  uint64_t now_ns, step_ns;
  uint32_t num_quiet_passes;
  uint64_t num_passes;
  struct sml_mem_hub *hub;
  struct world_port aggregator_ports[WORLD_MAX_LANES], worker_ports[WORLD_MAX_RANKS][WORLD_MAX_LANES];
  struct sml_aggregator_engine *aggregators[WORLD_MAX_LANES];
  struct sml_worker_engine *workers[WORLD_MAX_RANKS][WORLD_MAX_LANES];
  _Atomic uint64_t shortest_ns[WORLD_MAX_RANKS];
  struct world_job jobs[WORLD_MAX_JOBS];
  struct sml_aggregator_event events[WORLD_MAX_EVENTS];
  uint32_t num_events;
};

/* Engines and ports, no job yet. Functions that make something end the process when out of memory. */
struct world *world_create(const struct world_options *options);
void world_destroy(struct world *w);

/* The rank that sends for this one. */
uint32_t world_lead(const struct world *w, uint32_t rank);
/* The group of a job's lane. */
struct sml_addr world_group(const struct world *w, uint32_t j, uint32_t lane);
/* A job of all ranks and lanes: open, HELLOs, start. Number j is used for aggregators and workers. */
void world_open_job(struct world *w, uint32_t j, uint32_t epoch);
bool world_exchange_hellos(struct world *w, uint32_t j); /* whether every rank got every echo */
void world_start_job(struct world *w, uint32_t j);
void world_restart_job(struct world *w, uint32_t j, uint32_t epoch); /* at an operation boundary */
void world_close_job(struct world *w, uint32_t j);
void world_depart(struct world *w, uint32_t j, uint32_t rank); /* as the aggregator of lane 0 is told */
/* The three of them for job 0: what most tests begin with. */
struct world *world_create_started(const struct world_options *options);

/* Runs every engine once. Steps the clock, or moves it to the earliest deadline when nothing moved. False:
 * nothing moved and nobody has a deadline. Ends the process if an invariant is broken (lanes take turns). */
bool world_pass(struct world *w);
/* Until all frames are gone and nobody has anything to do before `within_ns` from now. */
void world_settle(struct world *w, uint64_t within_ns);

enum world_fill {
  WORLD_FILL_RANDOM,  /* scales from small to large, blocks of zeros, small integers; int32: any bits */
  WORLD_FILL_SPECIAL, /* NaN, infinities, denormals, zeros, extremes as well */
};
struct world_call_options {
  uint32_t job;
  uint64_t num_elems, key;
  uint8_t type, reduction;
  /* SML_REDUCE_TO_OWNER or SML_REDUCE_COPY: by one-way windows; parts begin at these elements (the last one's end is
   * num_elems). A rank's part of the sum stands in its place of the output, and nothing else is written. */
  uint8_t way;
  uint64_t parts[WORLD_MAX_RANKS];
  bool is_in_place;
  bool is_shifted; /* buffers not aligned to their type */
  uint64_t discards; /* bitmap of the ranks that throw the result away */
  enum world_fill fill;
  void (*write_input)(uint32_t rank, float *to, uint64_t num_elems); /* instead of fill, if set */
  uint64_t seed;
};

struct world_part {
  struct sml_engine_operation operation; /* first: on_ended casts */
  struct world_call *call;
  const void *inputs[WORLD_MAX_RANKS]; /* of a rank that leads */
  size_t first, num_bytes; /* of the output that is the rank's */
  uint8_t *in_memory, *out_memory; /* what to free */
  uint8_t *in, *out;
  uint8_t *pristine; /* the input again */
  bool is_submitted;
  uint32_t num_ended;
  uint32_t hash_at_end; /* of the output with its guards */
};
/* One all-reduce on all ranks. */
struct world_call {
  struct world *world;
  struct world_call_options options;
  uint32_t world_size;
  size_t num_bytes;
  uint64_t parts_begin[WORLD_MAX_RANKS + 1]; /* as the plan has them: of a copy in bytes */
  uint8_t *expected;
  struct world_part parts[WORLD_MAX_RANKS];
};
/* The next call of the job in its order; inputs drawn from the seed. */
struct world_call *world_call_create(struct world *w, const struct world_call_options *options);
void world_call_submit(struct world_call *call, uint32_t rank);
void world_call_submit_all(struct world_call *call);
bool world_call_has_ended(const struct world_call *call); /* on all ranks that submitted */
/* Passes until the call ended; false: it did not within limit_ns of the world's time, or nobody moves. */
bool world_call_run(struct world_call *call, uint64_t limit_ns);
/* NULL, or what is wrong: not ended once with SML_OK, bits that differ from the reference, a sum outside
 * the error bound, a byte written outside the tensor, an input changed. */
const char *world_call_check(const struct world_call *call);
/* NULL, or what is wrong with a rank's part that had to end with this status: not once, buffers written
 * since, guards. */
const char *world_call_check_failed(const struct world_call *call, uint32_t rank, int32_t status);
/* The guards, the unchanged input, and nothing written after the end. */
const char *world_call_check_guards(const struct world_call *call, uint32_t rank);
void world_call_free(struct world_call *call);

/* The seal of the job with this number, or NULL: there is no such job. */
const struct sml_seal *world_seal(const struct world *w, uint16_t number);
/* Bytes ahead of the payload, of the jobs that are open. */
uint32_t world_head_bytes(const struct world *w);
/* A frame from a port, sealed from its header under the job's key, or as it is. */
void world_send(const struct world_port *from, const struct sml_header *h, const void *payload,
                const struct sml_addr *to);
void world_send_raw(const struct world_port *from, const void *frame, uint32_t num_bytes,
                    const struct sml_addr *to);
/* Drops of all aggregator engines for one reason; of all lanes of a job. */
uint64_t world_drops(const struct world *w, enum sml_drop drop);
uint64_t world_lane_drops(const struct world *w, uint32_t j, enum sml_drop drop);
uint64_t world_retransmissions(const struct world *w, uint32_t j);
