/* SPDX-License-Identifier: Apache-2.0 */
#include "switchd/trace_files.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "base/log.h"

/* Limits on files that nobody asked for: jobs that fail over and over must not fill a disk. */
#define UNASKED_NS (10 * SML_NS_PER_S)
#define MAX_UNASKED 64u
#define PATH_BYTES 4096u

void sml_trace_files_note(struct sml_trace_files *f, const struct sml_aggd_note *note) {
  if (f->folder == NULL || strcmp(note->name, "job_aborted") != 0) return;
  atomic_store(&f->is_wanted, true);
  (void)kill(getpid(), SIGUSR1);
}

static void write_file(struct sml_trace_files *f, struct sml_aggd *aggd, const char *reason) {
  char prefix[PATH_BYTES], path[PATH_BYTES], error[PATH_BYTES + 128] = "out of memory";
  struct sml_trace_dump dump = {.program = "switchmld", .reason = reason};
  snprintf(prefix, sizeof prefix, "%s/switchmld", f->folder);
  const bool is_named = sml_trace_find_path(prefix, &f->next_number, path, sizeof path);
  if (!is_named) snprintf(error, sizeof error, "the path of --trace-dir is too long");
  const bool is_written =
      is_named && sml_aggd_collect_trace(aggd, &dump) && sml_trace_write(&dump, path, error, sizeof error) == 0;
  sml_trace_clear(&dump);
  const struct sml_log_field fields[] = {{"file", path, 0}, {"reason", reason, 0}};
  if (is_written) sml_log_event(SML_LOG_INFO, "trace_written", fields, SML_ARRAY_LEN(fields), "");
  else sml_log_event(SML_LOG_WARNING, "trace_failed", NULL, 0, error);
}

void sml_trace_files_on_signal(struct sml_trace_files *f, struct sml_aggd *aggd) {
  const bool is_unasked = atomic_exchange(&f->is_wanted, false);
  if (f->folder == NULL) {
    sml_log_event(SML_LOG_WARNING, "trace_failed", NULL, 0,
                  "start switchmld with --trace-dir to have SIGUSR1 write one");
    return;
  }
  if (!is_unasked) {
    write_file(f, aggd, "SIGUSR1");
    return;
  }
  const uint64_t now_ns = sml_clock_ns();
  if (f->num_unasked == MAX_UNASKED || (f->num_unasked > 0 && now_ns - f->last_unasked_ns < UNASKED_NS)) return;
  f->last_unasked_ns = now_ns;
  f->num_unasked++;
  write_file(f, aggd, "a job was aborted");
}
