/* SPDX-License-Identifier: Apache-2.0 */
#include "switchd/trace_files.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"

/* Limits on files that nobody asked for: jobs that fail over and over must not fill a disk. */
#define UNASKED_NS (10 * SML_NS_PER_S)
#define MAX_UNASKED 64u
#define PATH_BYTES 4096u
#define PATIENCE_NS (200 * SML_NS_PER_MS) /* for the file before: the service manager waits for a word of life */

void sml_trace_files_note(struct sml_trace_files *f, const struct sml_aggd_note *note) {
  if (f->folder == NULL || strcmp(note->name, "job_aborted") != 0) return;
  atomic_store(&f->is_wanted, true);
  (void)kill(getpid(), SIGUSR1);
}

static void complain(const char *text) {
  sml_log_event(SML_LOG_WARNING, "trace_failed", NULL, 0, text);
}

static void *write_file(void *files) {
  struct sml_trace_files *f = files;
  char path[PATH_BYTES], error[PATH_BYTES + 128] = "the path of --trace-dir is too long";
  const bool is_written = sml_trace_find_path(f->prefix, &f->next_number, path, sizeof path) &&
                          sml_trace_write(&f->dump, path, error, sizeof error) == 0;
  const struct sml_log_field fields[] = {{"file", path, 0}, {"reason", f->dump.reason, 0}};
  if (is_written) sml_log_event(SML_LOG_INFO, "trace_written", fields, SML_ARRAY_LEN(fields), "");
  else complain(error);
  sml_trace_clear(&f->dump);
  return NULL;
}

void sml_trace_files_finish(struct sml_trace_files *f, uint64_t patience_ns) {
  if (!f->is_writing) return;
  const struct timespec until = sml_timespec(sml_clock_ns() + patience_ns);
  f->is_writing = pthread_clockjoin_np(f->writer, NULL, CLOCK_MONOTONIC, &until) != 0;
}

/* Another thread writes it: this one tells the service manager that the daemon lives, and hears signals. */
static bool begin_file(struct sml_trace_files *f, struct sml_aggd *aggd, const char *reason) {
  sml_trace_files_finish(f, PATIENCE_NS);
  if (f->is_writing) {
    complain("the file before it is still being written: the disk of --trace-dir stands still, or is slow");
    return false;
  }
  snprintf(f->prefix, sizeof f->prefix, "%s/switchmld", f->folder);
  f->dump = (struct sml_trace_dump){.program = "switchmld", .reason = reason};
  const bool is_copied = sml_aggd_collect_trace(aggd, &f->dump);
  f->is_writing = is_copied && sml_thread_start(&f->writer, "sml-trace", write_file, f) == 0;
  if (f->is_writing) return true;
  sml_trace_clear(&f->dump);
  complain("out of memory");
  return false;
}

void sml_trace_files_on_signal(struct sml_trace_files *f, struct sml_aggd *aggd) {
  const bool is_unasked = atomic_exchange(&f->is_wanted, false);
  if (f->folder == NULL) {
    complain("start switchmld with --trace-dir to have SIGUSR1 write one");
    return;
  }
  if (!is_unasked) {
    (void)begin_file(f, aggd, "SIGUSR1");
    return;
  }
  const uint64_t now_ns = sml_clock_ns();
  if (f->num_unasked == MAX_UNASKED || (f->num_unasked > 0 && now_ns - f->last_unasked_ns < UNASKED_NS)) return;
  if (!begin_file(f, aggd, "a job was aborted")) return;
  f->last_unasked_ns = now_ns;
  f->num_unasked++;
}
