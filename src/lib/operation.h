/* SPDX-License-Identifier: Apache-2.0
 * One all-reduce. Memory of the context's pool, so that submission allocates nothing in steady state:
 * the buffers for exponent codes stay with the pool's entry and only ever grow. */
#ifndef SML_LIB_OPERATION_H
#define SML_LIB_OPERATION_H

#include "lib/job.h"

struct sml_operation {
  struct sml_engine_operation engine; /* first: engines hand back its address */
  struct sml_context *context;
  struct sml_job *job;
  struct sml_operation *next_free;   /* the pool's */
  size_t codes_bytes[SML_MAX_LANES]; /* room at engine.codes[] */
  /* guarded by job->lock */
  struct sml_operation *prev, *next; /* the job's list of those that have not ended */
  bool is_pushed, is_released, was_warned;
  uint32_t num_waiters;
  uint64_t submitted_ns, deadline_ns;
  /* SML_IN_PROGRESS until it ended: release by its end, acquire by test; the buffers follow it. */
  _Atomic int32_t status;
};

/* All of a context. */
sml_status sml_operations_create(struct sml_context *context);
void sml_operations_destroy(struct sml_context *context);

/* "operation 7 (float32 SUM, 1048576 elements)". */
void sml_operation_describe(const struct sml_operation *operation, char *text, size_t text_bytes);

#endif
