/* SPDX-License-Identifier: Apache-2.0
 * Copies of inputs, for retry (docs/adr/0007-retry.md): kept from submission until every rank is known to
 * have the result, since a rank that lacks it can only get it if all ranks contribute again, and an
 * operation in place overwrites its input. Memory is used again, and never more of it is allocated than was
 * needed at one time. */
#pragma once

#include <pthread.h>

#include "core/stream.h"
#include "ctl/member_retry.h"
#include "process/status.h"

#define SML_RETAINED_ROOMS 64u /* one for each power of two of a size_t */

struct sml_operation;

struct sml_retained {
  struct sml_member_input input; /* first; of a free one: `next` is any of the same room */
  struct sml_operation_plan plan;
  uint32_t room_log2;         /* 2^this bytes at data */
  _Alignas(64) uint8_t data[];
};

struct sml_retained_inputs {
  pthread_mutex_t *lock; /* the job's, which guards the rest */
  struct sml_member_inputs listed;
  struct sml_retained *free[SML_RETAINED_ROOMS];    /* by room_log2 */
  uint64_t used_bytes, free_bytes, most_used_bytes; /* rooms */
  uint64_t input_bytes;                             /* of what is listed */
};

/* Copies an input, without the lock; SML_ERR_NO_MEMORY. Goes to _append or _give_back. */
sml_status sml_retained_copy(struct sml_retained_inputs *inputs, const void *in, size_t num_bytes,
                             struct sml_retained **retained_out);
/* The rest with the lock held. */
void sml_retained_append(struct sml_retained_inputs *inputs, struct sml_retained *retained,
                         const struct sml_operation *reader);
void sml_retained_give_back(struct sml_retained_inputs *inputs, struct sml_retained *retained);
/* Gives back what nobody needs any more. */
void sml_retained_drop_confirmed(struct sml_retained_inputs *inputs, const struct sml_member_retry *retry);
void sml_retained_free_all(struct sml_retained_inputs *inputs);
