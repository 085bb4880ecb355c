/* SPDX-License-Identifier: Apache-2.0
 * When the daemon writes its flight recorders to a file: when it is asked to, and when a job was aborted. */
#pragma once

#include <pthread.h>

#include "aggd/aggd.h"
#include "trace/dump.h"

struct sml_trace_files {
  const char *folder;           /* NULL: no files */
  _Atomic bool is_wanted;       /* a job was aborted */
  _Atomic uint32_t next_number; /* of a file */
  uint32_t num_unasked;
  uint64_t last_unasked_ns;
  pthread_t writer; /* a disk may stand still */
  bool is_writing;  /* it was started, and not joined */
  struct sml_trace_dump dump;
  char prefix[4096];
};

/* On the service's control thread, about a note: wakes the main thread with SIGUSR1 if a file is to be written. */
void sml_trace_files_note(struct sml_trace_files *files, const struct sml_aggd_note *note);
/* On the main thread, after SIGUSR1. */
void sml_trace_files_on_signal(struct sml_trace_files *files, struct sml_aggd *aggd);
/* On the main thread: waits so long at most for a file that is being written. */
void sml_trace_files_finish(struct sml_trace_files *files, uint64_t patience_ns);
