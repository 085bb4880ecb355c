/* SPDX-License-Identifier: Apache-2.0
 * The worker's engine: one thread's poll loop over one netio, with one lane of each job of the
 * context. It joins core (which chunk on which slot, when again), quant (tensor <-> lanes) and netio (frames).
 * Except for sml_lane_push, functions that take an engine or a lane run on the engine's thread (through a command) or
 * in a single-threaded test. */
#pragma once

#include "core/worker.h"
#include "engine/engine.h"
#include "quant/format.h"
#include "trace/recorder.h"

#define SML_ENGINE_MAX_JOB_LANES 64u

struct sml_worker_engine;
struct sml_lane;
struct sml_engine_operation;

/* Int32 lanes that are made when they are sent, and whose sums are taken when they come, instead of lying in the
 * operation's buffers: `num` of them from `first` on, as they travel. Only for sums, and only where no chunk is summed
 * twice. Engines call both, several at once; `put` as often as a chunk is sent, `get` once for each lane. */
struct sml_engine_lanes {
  void (*put)(const struct sml_engine_operation *operation, uint8_t *payload, uint64_t first, uint32_t num);
  void (*get)(const struct sml_engine_operation *operation, const uint8_t *payload, uint64_t first, uint32_t num);
};

/* One operation as the engines see it; the library's operation starts with it. Engines write only to the last part,
 * from `codes` on. */
struct sml_engine_operation {
  const void *in;
  /* The inputs of a contributor that stands for several ranks, this rank's among them; then nobody reads `in`.
   * 0 or 1: only `in`. None of them may change until the operation has ended; one may be `out`. */
  uint32_t num_inputs;
  const void *const *inputs;
  void *out;                      /* NULL: results are checked and thrown away */
  const struct sml_engine_lanes *lanes; /* NULL: `in` and `out` have them */
  struct sml_operation_plan plan; /* core's view: elements, type, reduction, tag hash */
  /* For each lane: exponent codes of its blocks (floats only), then one ready byte a group;
   * sml_stream_codes_bytes() bytes, given at submission. */
  uint8_t *codes[SML_ENGINE_MAX_JOB_LANES];
  _Atomic uint32_t lanes_left; /* each engine subtracts 1 (acq_rel) after its last touch of the buffers */
  _Atomic int32_t status;      /* SML_OK until an engine fails it */
  /* The engine that brings lanes_left to 0 calls it; pairs with the acquire load of whoever tests. */
  void (*on_ended)(struct sml_engine_operation *operation);
};

static inline struct sml_format_shape sml_engine_shape(const struct sml_operation_plan *plan) {
  return (struct sml_format_shape){.has_exponents = plan->block_elems != 0,
                                   .elem_lanes = plan->elem_lanes,
                                   .lane_elems = plan->lane_elems,
                                   .combine = plan->wire_reducer};
}

static inline const struct sml_format *sml_engine_format(const struct sml_operation_plan *plan) {
  return sml_format_find(plan->type, sml_engine_shape(plan));
}

struct sml_worker_engine_options {
  struct sml_netio *io;
  const struct sml_quant_kernels *kernels;
  struct sml_recorder *recorder; /* the caller's; NULL: nothing is recorded */
};
struct sml_worker_engine *sml_worker_engine_create(const struct sml_worker_engine_options *options);
void sml_worker_engine_destroy(struct sml_worker_engine *engine);
uint64_t sml_worker_engine_run_once(void *engine, uint64_t now_ns);
struct sml_mailbox *sml_worker_engine_mailbox(struct sml_worker_engine *engine);

struct sml_lane_options {
  struct sml_worker_options worker; /* job, epoch, rank, world size, slots, chunk size ... */
  struct sml_addr aggregator;       /* data address of this lane */
  struct sml_addr source;           /* its packets' source, see sml_hello.from; empty: the same */
  bool is_multicast;                /* first copies of results come by a group, which io has joined */
  uint32_t lane;
  uint32_t num_operations; /* ring capacity; power of two */
  uint32_t num_windows;    /* that may wait in this host's queue (send_queue.h); 0: 1 */
  struct sml_seal seal;    /* the epoch's */
  /* The shortest round trip of lanes that share a link and an operation, those with the same pointer; NULL: it shares
   * with none (congestion.h). */
  _Atomic uint64_t *shortest_ns;
  /* A switch may sum: HELLO goes out each second, by which its control plane sees where this rank is. */
  bool greets;
  uint16_t rank;  /* of this process, not the contributor */
  uint64_t nonce; /* its */
  /* Called once on the engine's thread, must not block: the aggregator gave a wrong sum for this slot (relative)
   * twice, and the lane fails with SML_ERR_INTEGRITY after it. May be NULL. */
  void (*on_integrity)(void *user, uint32_t slot);
  void *user;
};
/* Any thread; NULL: out of memory. */
struct sml_lane *sml_lane_create(const struct sml_lane_options *options);
void sml_lane_destroy(struct sml_lane *lane);                                  /* detached first */
bool sml_lane_attach(struct sml_worker_engine *engine, struct sml_lane *lane); /* false: out of memory */
void sml_lane_detach(struct sml_worker_engine *engine, struct sml_lane *lane); /* fails what is outstanding */
/* Hands an operation to the lane. Any thread, but one at a time (the job's submit mutex); then wake the engine. The
 * ring holds num_operations. */
void sml_lane_push(struct sml_lane *lane, struct sml_engine_operation *operation);
/* Ends every outstanding and later pushed operation of the lane with status; the lane sends no more. */
void sml_lane_fail(struct sml_lane *lane, int32_t status);
/* A new epoch begins between operations: nothing may be outstanding. */
void sml_lane_restart(struct sml_lane *lane, const struct sml_worker_options *worker, const struct sml_seal *seal);
/* NULL, or which invariant of the worker's state is broken; NULL for a lane that failed. For tests. */
const char *sml_lane_find_violation(const struct sml_lane *lane);

/* The exchange of HELLOs before START. Sends a HELLO padded to datagram_bytes every interval, until enough echoes of
 * that size are back or the deadline has passed. Then it calls done on the engine's thread. There is one exchange at a
 * time for a job, epoch, rank and size. `struct sml_hello` is the caller's memory, which must stay until done. */
struct sml_hello {
  uint16_t job;
  uint32_t epoch;
  uint16_t rank;
  uint64_t nonce;
  struct sml_addr to;
  uint32_t datagram_bytes; /* at least sml_head_bytes(seal.is_keyed) + 8 */
  struct sml_seal seal;
  bool is_to_group; /* the echo shall come by the job's multicast group, from the last echo's sender (`from`) */
  uint64_t interval_ns, deadline_ns; /* deadline absolute, sml_clock_ns() */
  void (*done)(struct sml_hello *hello, bool is_echoed);
  void *user;
  /* Set by the engine: */
  uint64_t rtt_ns; /* the smallest round trip of the echoes; 0: none came */
  uint32_t num_echoes;
  struct sml_addr from; /* the echo's sender: an aggregator on all interfaces may answer from another address */
  struct sml_hello *next;
  uint64_t next_send_ns;
};
void sml_worker_engine_hello(struct sml_worker_engine *engine, struct sml_hello *hello);

/* What the engine counts for a lane, like SML_WORKER_STATS. */
#define SML_ENGINE_STATS(X) X(dropped_packets) X(tx_packets) X(tx_bytes) X(rx_packets) X(rx_bytes)
#define SML_LANE_STATS(X) SML_WORKER_STATS(X) SML_ENGINE_STATS(X)

/* A copy of a lane's figures, for statistics and error texts: relaxed atomics, any thread. */
struct sml_lane_snapshot {
  SML_WORKER_COUNTERS(SML_COUNTER) /* of all epochs */
  SML_ENGINE_STATS(SML_COUNTER)
  SML_WORKER_STATES(SML_STATE)
  uint64_t num_drops[SML_NUM_DROPS]; /* dropped_packets by reason */
  uint32_t num_missing;              /* as in the worker's view */
  uint16_t missing[16];
  bool has_error_reply;    /* the aggregator answered that it does not know job or epoch */
  uint64_t error_reply_ns; /* when it did so first */
};
void sml_lane_snapshot(const struct sml_lane *lane, struct sml_lane_snapshot *snapshot_out);
/* System calls of the engine's netio so far; any thread. */
uint64_t sml_worker_engine_system_calls(const struct sml_worker_engine *engine);
/* Frames that the system did not take; why it did not take the last one, and when. Any thread. */
struct sml_unsent {
  uint64_t num_packets, at_ns;
  int32_t error; /* an errno; 0: it took all */
};
void sml_worker_engine_unsent(const struct sml_worker_engine *engine, struct sml_unsent *unsent_out);
/* Whether bursts go out by segmentation offload; a kernel that refuses one turns it off. Any thread. */
bool sml_worker_engine_has_offload(const struct sml_worker_engine *engine);
