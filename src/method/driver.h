/* SPDX-License-Identifier: Apache-2.0
 * What the methods that share memory have in common (memory.c, combine.c): who works, and how ranks of one host meet.
 *
 * Operations begin and end in their order: one at a time in memory, several where ranks combine. Whoever waits for one
 * *drives*: it works on the oldest operations, without the owner's lock, until its own has ended; the others sleep. So
 * a rank that calls and waits needs no other thread. What nobody waits for is driven by a helper thread, which begins a
 * moment later than a caller would, and sleeps while nothing is outstanding. */
#pragma once

#include "shm/shm_group.h"
#include "method/lanes.h"

#define SML_DRIVER_MOST 4u /* operations at a time */

struct sml_driver;

/* The ranks of a host, as they work on operations: a group's or a relay's functions (src/shm). `index` is a rank's
 * among those of this host. */
struct sml_driver_steps {
  void (*begin)(struct sml_driver *driver, const struct sml_shm_operation *operation);
  /* Runs the engine, if that brings the operation on sooner than a thread of its own would. NULL: no engine does. */
  void (*run)(struct sml_driver *driver, uint64_t deadline_ns);
  enum sml_shm_verdict (*advance)(struct sml_driver *driver);
  enum sml_shm_wait (*await)(struct sml_driver *driver, uint64_t deadline_ns);
  void (*mismatch)(const struct sml_driver *driver, uint32_t *a_out, uint32_t *b_out);
  void (*abort)(struct sml_driver *driver);
  /* Whoever awaits, or begins to, returns: there is another operation. NULL: there is one at a time. */
  void (*interrupt)(struct sml_driver *driver);
  void (*set_gone)(struct sml_driver *driver, uint32_t index);
  uint32_t (*find_absent)(const struct sml_driver *driver, bool only_gone, uint32_t *out, uint32_t room);
  /* Meets the other ranks. False: why not is in the last three. */
  bool (*meet)(struct sml_driver *driver, const struct sml_shm_meeting *meeting, enum sml_shm_met *met_out,
               uint32_t *missing_out, char error_out[SML_SHM_ERROR_BYTES]);
  /* As a relay takes it; NULL: there are no pieces. */
  uint64_t (*piece_elems)(const struct sml_driver *driver, const struct sml_operation_plan *plan);
  bool (*prepare)(struct sml_driver *driver); /* before that: memory; false: none. May be NULL */
  void (*close)(struct sml_driver *driver);   /* what the last two made */
};

struct sml_driver {
  struct sml_method method; /* first */
  /* constant */
  const struct sml_driver_steps *steps;
  struct sml_job_lanes *lanes;
  const struct sml_ctl_start *start;
  const struct sml_quant_kernels *kernels;
  uint32_t num_ranks, index; /* of this host, and among them */
  uint16_t *ranks;           /* index -> rank, ascending */
  pthread_t helper;
  _Atomic uint32_t num_in_flight; /* pieces that engines hold; written with the lock held; a hint to others */
  _Atomic bool has_more; /* operations that whoever drives has not begun; written with the lock held, or by it */
  /* guarded by the lock; whoever drives reads num_ended and what was begun without it, since it alone ends them */
  pthread_cond_t wanted; /* the helper's; CLOCK_MONOTONIC */
  /* They have room in the epoch. A ring; those up to num_begun were begun by whoever drives. */
  struct sml_engine_operation *operations[SML_DRIVER_MOST];
  uint64_t num_ended, num_begun, num_taken;
  bool is_driving;                            /* a thread has what was begun, and the steps, for itself */
  bool is_away;                               /* it works, without the lock */
  bool is_asleep, is_wanted_now, should_stop; /* the helper */
  sml_status failed_status;                   /* of the owner; SML_OK: it has not failed */
  uint64_t num_drives;
};

/* What a method in shared memory is opened with. Without the lock, on a caller's thread. */
struct sml_driver_options {
  const struct sml_method *owner;    /* its owner, and lock */
  struct sml_job_lanes *lanes;       /* open, and of the same owner */
  const struct sml_ctl_start *start; /* says that all ranks are on this host, or has a table; outlives the method */
  const struct sml_ctl_welcome *welcome;
  const struct sml_quant_kernels *kernels;
  uint64_t deadline_ns;
};
/* Blocks until memory is shared, until the deadline at most. The driver comes from calloc(), or is NULL if that failed;
 * its method's table and its steps are set. It is freed by close, or here. NULL: the owner has failed, and knows
 * why. */
struct sml_method *sml_driver_open(struct sml_driver *driver, const struct sml_driver_options *options);

/* For tables. */
void sml_driver_begin(struct sml_method *method, struct sml_engine_operation *operation, bool caller_runs);
bool sml_driver_drive(struct sml_method *method, bool (*has_ended)(const void *argument), const void *argument,
                      uint64_t deadline_ns);
void sml_driver_fail(struct sml_method *method, sml_status status);
void sml_driver_set_gone(struct sml_method *method, uint32_t rank);
void sml_driver_resume(struct sml_method *method);
void sml_driver_close(struct sml_method *method);

/* The oldest operation. There is one; whoever drives needs no lock. */
static inline struct sml_engine_operation *sml_driver_oldest(const struct sml_driver *d) {
  return d->operations[d->num_ended % SML_DRIVER_MOST];
}
/* The same; NULL: there is none. */
static inline struct sml_engine_operation *sml_driver_current(const struct sml_driver *d) {
  return d->num_ended == d->num_taken ? NULL : sml_driver_oldest(d);
}
static inline bool sml_driver_has_begun(const struct sml_driver *d) {
  return d->num_ended < d->num_begun;
}

/* The ranks that the current operation waits for; 0: none but this one. */
uint32_t sml_driver_find_absent(const struct sml_driver *driver, struct sml_member_wait *wait_out);
