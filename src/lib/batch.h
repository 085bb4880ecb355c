/* SPDX-License-Identifier: Apache-2.0
 * Batches (sml_batch_begin): small operations that are called between begin and end travel as one, so that they share
 * packets. Each becomes int32 lanes, as it is sent anyway (itself, or the limbs of an exact sum); the lanes stand one
 * operation after the other in a buffer, and an int32 SUM over that buffer is what the engines, shared memory, retry
 * and check words see. So a batch changes no bit of a result. What is in which buffer is a pure function of the
 * calls, and the tag covers it (docs/PROTOCOL.md rules R80 to R83). */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "switchml/switchml.h"

#define SML_BATCH_LANES 16384u       /* of a buffer; one that has no room for the next operation is submitted */
#define SML_BATCH_MEMBER_LANES 4096u /* a longer operation goes its own way, as do floats with exponents */

struct sml_context;
struct sml_operation;
struct sml_batch_buffer;

/* A job's. Guarded by its lock, but for depth, which is only changed with it. */
struct sml_batch {
  pthread_mutex_t *lock; /* the job's. This, context and world_size are constant */
  struct sml_context *context;
  uint32_t world_size;
  _Atomic uint32_t depth;          /* begun and not ended */
  struct sml_batch_buffer *open;   /* has operations that are noted: called, not submitted */
  struct sml_batch_buffer *unused; /* memory of earlier ones, until the job is destroyed */
};

/* Whether one was begun, and not ended: the same on all ranks at the same call. */
static inline bool sml_batch_is_begun(const struct sml_batch *batch) {
  return atomic_load_explicit(&batch->depth, memory_order_relaxed) > 0;
}

/* Whether the operation, which was prepared and needs other ranks, was noted: then it is submitted with others. On
 * failure it was not. */
sml_status sml_batch_note(struct sml_batch *batch, struct sml_operation *operation, bool *is_noted_out);

/* With job->lock held: the operation, or the batch that it stands for, is being submitted, with the job's next numbers.
 * How many it takes; *is_awaited_out becomes true if somebody waits for a member already. */
uint32_t sml_batch_number_locked(struct sml_operation *operation, uint64_t number, bool *is_awaited_out);
/* The job has failed: ends what is noted. */
void sml_batch_fail_locked(struct sml_batch *batch, struct sml_job *job);
/* The operation with the earliest deadline, of an operation's members or of what is noted. NULL: there is none. */
const struct sml_operation *sml_batch_first_due(const struct sml_operation *members);
const struct sml_operation *sml_batch_first_noted_due_locked(const struct sml_batch *batch);

void sml_batch_free_all(struct sml_batch *batch);
