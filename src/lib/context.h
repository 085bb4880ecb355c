/* SPDX-License-Identifier: Apache-2.0
 * A process's threads, sockets and operations. */
#pragma once

#include "base/fork.h"
#include "lib/control.h"
#include "method/engines.h"

struct sml_context {
  struct sml_fork_watch fork_watch; /* first: the handler gets its address */
  _Atomic bool is_forked;           /* in a child: nothing here works any more */
  struct sml_settings settings;
  struct sml_control control;
  struct sml_engines engines[2]; /* IPv4, IPv6; started under sml_fork_lock() when first needed */
  pthread_mutex_t lock;          /* jobs, free_operations */
  struct sml_job *jobs;
  struct sml_operation *operations, *free_operations;
};

static inline bool sml_context_is_forked(const struct sml_context *context) {
  return atomic_load_explicit(&context->is_forked, memory_order_relaxed);
}
static inline sml_status sml_context_fail_forked(void) {
  return sml_fail(SML_ERR_FORKED,
                  "this handle belongs to the parent process: create a context in this process");
}
