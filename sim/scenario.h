/* SPDX-License-Identifier: Apache-2.0
 * What a seed stands for: jobs with their programs of operations, options, a network, and what goes wrong. All
 * of it is drawn before the run begins, so that cutting a run short leaves its beginning as it was. */
#pragma once

#include "sim/kernel.h"

#define SIM_MAX_JOBS 4u
#define SIM_MAX_ROUNDS 3u
#define SIM_MAX_OPS 48u
#define SIM_MAX_INCIDENTS 24u
#define SIM_MAX_DEPTH 4u
#define SIM_MAX_SUBMITTERS 3u
#define SIM_MAX_WORLD_SIZE 64u

/* Kinds of trouble. A seed has a random subset of them, perhaps none: name, text. */
#define SIM_KIND_LIST(X)                                         \
  X(LOSS, "loss")                                                \
  X(BURST, "burst") /* of 64 datagrams */                        \
  X(DUPLICATE, "duplicate")                                      \
  X(REORDER, "reorder")                                          \
  X(CORRUPT, "corrupt")                                          \
  X(TRUNCATE, "truncate")                                        \
  X(QUEUE, "queue")       /* short ones in the network */        \
  X(MTU, "mtu")           /* smaller than hosts believe */       \
  X(SLOW, "slow")         /* threads that are scheduled late */  \
  X(CLOCK, "clock")       /* off, and fast or slow */            \
  X(REPLAY, "replay")     /* old datagrams come again */         \
  X(FORGE, "forge")       /* near-valid ones from elsewhere */   \
  X(LATE, "late")         /* a rank calls late */                \
  X(CAPACITY, "capacity") /* too few slots for all jobs */       \
  X(EPOCH, "epoch")       /* phases end soon */                  \
  X(CUT, "cut")           /* partition */                        \
  X(PAUSE, "pause")       /* SIGSTOP of a worker */              \
  X(KILL, "kill")         /* -9 of a worker; it may come back */ \
  X(HOST, "host")         /* a worker's host dies */             \
  X(DAEMON_KILL, "daemon-kill")                                  \
  X(DAEMON_STOP, "daemon-stop")                                  \
  X(DAEMON_PAUSE, "daemon-pause")                                \
  X(MISDEED, "misdeed") /* a wrong program at one rank */        \
  X(HASTE, "haste")     /* deadlines shorter than a rank is late */

enum sim_kind {
#define SIM_KIND_ENUM(name, text) SIM_KIND_##name,
  SIM_KIND_LIST(SIM_KIND_ENUM)
#undef SIM_KIND_ENUM
      SIM_NUM_KINDS
};
const char *sim_kind_text(enum sim_kind kind);

/* How long an operation is, once the job's chunk and window are known. */
enum sim_size_rule { SIM_SIZE_FEW, SIM_SIZE_CHUNK, SIM_SIZE_SOME, SIM_SIZE_WINDOW, SIM_SIZE_LONG, SIM_SIZE_EMPTY };

enum sim_collective { SIM_ALL_REDUCE, SIM_REDUCE_SCATTER, SIM_ALL_GATHER, SIM_BROADCAST, SIM_REDUCE };
const char *sim_collective_text(enum sim_collective collective);

struct sim_op_spec {
  uint8_t type, reduction; /* enum sml_type, enum sml_reduction */
  uint8_t size_rule;       /* enum sim_size_rule */
  uint8_t data_kind;       /* enum sim_data_kind */
  bool is_in_place;
  bool is_exact;      /* in exact mode */
  bool is_uneven;     /* parts are not alike */
  uint8_t collective; /* enum sim_collective */
  uint32_t root;      /* of a broadcast or reduce */
  uint8_t misaligned_bytes;
  uint32_t size_draw, extra_elems;
  uint64_t key;
  uint64_t gap_ns; /* each rank computes for up to this long before the call */
};
/* Words of 32 bits, an even number for int64; at most max_chunks chunks. */
uint64_t sim_op_count(const struct sim_op_spec *op, uint32_t chunk_elems, uint32_t window_chunks, uint32_t max_chunks);

static inline bool sim_op_is_copy(const struct sim_op_spec *op) {
  return op->collective == SIM_ALL_GATHER || op->collective == SIM_BROADCAST;
}
/* What a rank has of a copy's `count` words, and gets of a sum's. */
struct sim_part {
  uint64_t first, count;
};
struct sim_part sim_op_part(const struct sim_op_spec *op, uint32_t world_size, uint64_t count, uint32_t rank);

/* What one rank does that the others do not. */
enum sim_misdeed {
  SIM_MISDEED_NONE,
  SIM_MISDEED_ORDER, /* of two operations */
  SIM_MISDEED_COUNT,
  SIM_MISDEED_TYPE,
  SIM_MISDEED_REDUCTION,
  SIM_MISDEED_KEY,
  SIM_MISDEED_EXIT,    /* without goodbye */
  SIM_MISDEED_DESTROY, /* with operations outstanding */
  SIM_MISDEED_ABORT,
  SIM_NUM_MISDEEDS
};
const char *sim_misdeed_text(enum sim_misdeed misdeed);

/* One membership of a job: joined, used, left. */
struct sim_round_spec {
  uint32_t num_ops;
  struct sim_op_spec ops[SIM_MAX_OPS];
  enum sim_misdeed misdeed;
  uint32_t misdeed_rank, misdeed_op;
  uint32_t late_rank, late_op;
  uint64_t late_ns; /* 0: nobody is late */
};

struct sim_job_spec {
  char name[24];
  uint32_t world_size, num_slots, max_datagram_bytes, num_operations;
  uint32_t num_submitters, depth; /* threads that submit; operations in flight of each */
  uint32_t max_chunks;            /* of an operation, so that buffers have an end */
  uint32_t num_threads;           /* lanes offered; rank 0 may offer one more */
  uint64_t start_spread_ns;
  uint64_t lease_ns, join_timeout_ns, operation_timeout_ns;
  bool has_allgather;   /* else names and retries do */
  bool has_fresh_names; /* each round its own; else one name */
  bool keeps_context;   /* over rounds */
  bool is_checked;
  bool asks_one_way; /* for one-way windows */
  uint64_t retry_ns;
  uint32_t num_rounds;
  struct sim_round_spec rounds[SIM_MAX_ROUNDS];
};

struct sim_incident {
  enum sim_kind kind;
  uint32_t job, rank;
  bool is_at_op; /* when the rank submits `op` of `round`, delay_ns later; else at_ns */
  uint32_t round, op;
  uint64_t at_ns;
  uint64_t duration_ns; /* until it is undone; SML_NEVER: not, before faults end */
  bool is_one_way;      /* CUT: only up */
};

struct sim_scenario {
  uint64_t seed;
  const char *flavor; /* "small", "wide" or "bulk" */
  uint32_t kinds;     /* bits of enum sim_kind */
  struct sim_options options;
  uint32_t num_jobs;
  struct sim_job_spec jobs[SIM_MAX_JOBS];
  uint32_t daemon_lanes, pool_slots, max_jobs;
  bool is_keyed;
  uint32_t first_phase, first_chunk; /* 0: the daemon's */
  uint16_t first_data_port;
  struct sim_link worker_up, worker_down, daemon_up, daemon_down; /* with faults */
  uint32_t mtu_bytes, told_mtu_bytes;
  uint64_t faults_begin_ns, faults_end_ns;
  uint32_t num_incidents;
  struct sim_incident incidents[SIM_MAX_INCIDENTS];
};

/* Limits of a run shorter than its seed's. Zero: none. */
struct sim_cuts {
  uint64_t faults_end_ns;
  uint32_t num_ops; /* of each round */
  uint32_t num_incidents;
  uint32_t num_rounds;
};
bool sim_job_has_one_way(const struct sim_job_spec *job);
void sim_scenario_draw(struct sim_scenario *s, uint64_t seed);
void sim_scenario_cut(struct sim_scenario *s, const struct sim_cuts *cuts);
static inline bool sim_has(const struct sim_scenario *s, enum sim_kind kind) {
  return s->kinds >> kind & 1;
}
/* "kinds=loss,kill jobs=4x2+3x1 ..." in one line. */
void sim_scenario_describe(const struct sim_scenario *s, char *text, size_t text_bytes);
