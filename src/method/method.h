/* SPDX-License-Identifier: Apache-2.0
 * How a job sums its operations: its *method*, a table of functions that is chosen once, when the job starts, as a
 * packet back end is (netio/netio.h).
 *
 *   alone    one rank: its input is the sum
 *   lanes    over the network
 *   memory   all ranks are on one host: in memory that they share
 *   combine  the ranks of each host send as one: in shared memory, and its sums over the network
 *
 * The job is the method's *owner*: it numbers operations, keeps them in order and hands them over one by one. A
 * method knows of the owner only what stands below. The owner's lock guards both: all functions here, the method's
 * and the owner's, are called with it held, but for those that say otherwise. */
#pragma once

#include <pthread.h>

#include "ctl/member_late.h"
#include "engine/worker_engine.h"
#include "switchml/switchml.h"

#define SML_MAX_JOB_LANES SML_ENGINE_MAX_JOB_LANES /* of all shards together */
#define SML_LARGE_ELEMS (UINT64_C(64) << 10)       /* of an operation: waking a thread costs little beside it */

struct sml_method;
struct sml_job_lanes_shard; /* lanes.h */

/* Whether the epoch has room for an operation. */
enum sml_method_room {
  SML_ROOM_TAKEN,
  SML_ROOM_IN_NEXT, /* epoch */
  SML_ROOM_IN_NONE, /* this one is fresh, and has too little */
};

/* NULL where nothing needs to be done; only begin and wait are there in each. */
struct sml_method_ops {
  uint32_t max_begun;     /* operations that it takes at a time; 0: as many as the context has */
  bool is_run_by_callers; /* those of small operations run the engine, if there is but one */
  /* Takes the operation's chunks of the epoch: a pure function of the operations, equal on all ranks. */
  enum sml_method_room (*take_room)(struct sml_method *method, const struct sml_operation_plan *plan);
  /* Without the lock: memory for what the operation needs, of which codes_bytes[] say what is there; false: none. */
  bool (*fit)(const struct sml_method *method, struct sml_engine_operation *operation, size_t *codes_bytes);
  /* The operation is the method's until it says `ended`, or the engines call on_ended. Room was taken.
   * caller_runs: the caller runs the engine, or drives the method, itself: no thread need be woken. */
  void (*begin)(struct sml_method *method, struct sml_engine_operation *operation, bool caller_runs);
  /* The caller works, until has_ended(argument) (NULL: until nothing is left to do), or the deadline (0: only what can
   * be done at once). Lets the lock go meanwhile. False: somebody else does, and nothing was done. */
  bool (*drive)(struct sml_method *method, bool (*has_ended)(const void *argument), const void *argument,
                uint64_t deadline_ns);
  /* The owner has failed: what was begun ends, with this status, and nothing begins any more. */
  void (*fail)(struct sml_method *method, sml_status status);
  void (*set_gone)(struct sml_method *method, uint32_t rank);
  /* A new epoch has begun. */
  void (*resume)(struct sml_method *method);
  /* What the current operation waits for. */
  void (*wait)(const struct sml_method *method, struct sml_member_wait *wait_out);
  void (*add_figures)(const struct sml_method *method, sml_stats *stats);
  /* Without the lock: nothing is outstanding any more. Frees the method, if it was opened. */
  void (*close)(struct sml_method *method);
};

/* Operations that the owner has not ended. AWAITED: somebody sleeps until one of them has. */
enum sml_owner_demand { SML_DEMAND_NONE, SML_DEMAND_SMALL, SML_DEMAND_LARGE, SML_DEMAND_AWAITED };

struct sml_owner_ops {
  bool (*is_running)(const void *owner);
  enum sml_owner_demand (*demand)(const void *owner);
  void (*wake_callers)(void *owner); /* one of them is to drive */
  /* Without the lock: the sum is in operation->out, and nobody knows. */
  void (*summed)(struct sml_engine_operation *operation);
  void (*ended)(void *owner, struct sml_engine_operation *operation, sml_status status);
  /* The first failure wins; it comes back as `fail`. */
  void (*failed)(void *owner, const struct sml_ctl_abort *failure);
  /* An operation can't end, for want of this rank. */
  void (*lost)(void *owner, uint32_t rank);
  void (*describe)(const struct sml_engine_operation *operation, char *text, size_t text_bytes);
  uint64_t (*first_unfinished)(const void *owner); /* operation, by its number */
  /* On the control thread. The caller wipes what it got. */
  void (*describe_shard)(const void *owner, uint32_t shard, struct sml_job_lanes_shard *shard_out);
};

struct sml_method {
  const struct sml_method_ops *ops;
  const struct sml_owner_ops *owner_ops;
  void *owner;
  pthread_mutex_t *lock; /* the owner's */
};

/* The owner fails, with what is formatted and these ranks. */
__attribute__((format(printf, 5, 6))) void sml_method_fail_owner(const struct sml_method *method, sml_status status,
                                                                 const uint16_t *ranks, uint32_t num_ranks,
                                                                 const char *format, ...);
