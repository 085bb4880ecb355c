/* SPDX-License-Identifier: Apache-2.0
 * The service's own flight recorder (its lanes have theirs), and the names of jobs for a dump. */
#pragma once

#include <pthread.h>

#include "ctl/registry.h"
#include "trace/recorder_set.h"

struct sml_aggd_trace {
  struct sml_recorder *recorder; /* the control thread's, for what is of no started job; NULL before _open */
  struct sml_recorder_set job_recorders;
  pthread_mutex_t lock; /* jobs */
  uint32_t max_jobs;
  struct sml_trace_job *jobs;   /* by number: the last one of it, name "" if none */
  struct sml_trace_job *before; /* that had a number before, the last max_before of them: a ring */
  bool *has_ended;              /* by number; the control thread's */
  uint32_t max_before;
  uint64_t num_before; /* ever */
};

bool sml_aggd_trace_open(struct sml_aggd_trace *trace, const struct sml_recorder_options *options, uint32_t max_jobs);
void sml_aggd_trace_close(struct sml_aggd_trace *trace);
/* On the control thread: a note of the registry is an event of its name. */
void sml_aggd_trace_note(struct sml_aggd_trace *trace, const struct sml_effect *note, uint64_t now_ns);
/* Any thread. False: out of memory. */
bool sml_aggd_trace_add(struct sml_aggd_trace *trace, struct sml_trace_dump *dump);
