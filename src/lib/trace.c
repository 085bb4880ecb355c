/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/job_log.h"
#include "lib/uncancelled.h"
#include "trace/dump.h"

/* A process writes so many unasked: jobs that fail over and over must not fill a disk. */
#define MAX_DUMPS 32u
#define AWAIT_DUMP_NS (1 * SML_NS_PER_S) /* a disk that takes longer: the error comes without where the trace is */

static _Atomic uint32_t num_dumps;

void sml_job_record_locked(const struct sml_job *job, struct sml_record record, uint64_t now_ns) {
  record.time_ns = now_ns;
  record.job = atomic_load_explicit(&job->trace_numbers[0], memory_order_relaxed);
  sml_recorder_put(job->recorder, record);
}

/* ---- dumps ---- */

static bool add_engines(struct sml_trace_dump *dump, const struct sml_context *context) {
  bool is_added = true;
  for (size_t f = 0; f < SML_ARRAY_LEN(context->engines); f++) {
    for (uint32_t l = 0; l < SML_MAX_ENGINES && is_added; l++) {
      const struct sml_recorder *recorder = context->engines[f].recorders[l];
      if (recorder != NULL) is_added = sml_trace_add_source(dump, recorder, l, "%slane %u", f == 1 ? "IPv6 " : "", l);
    }
  }
  return is_added;
}

static bool add_jobs(struct sml_trace_dump *dump, const struct sml_context *context) {
  bool is_added = true;
  for (const struct sml_job *job = context->jobs; job != NULL && is_added; job = job->next) {
    is_added = sml_trace_add_source(dump, job->recorder, SML_TRACE_NONE, "job %s", job->state.name);
    for (uint32_t s = 0; s < SML_MAX_SHARDS && is_added; s++) {
      const uint16_t number = atomic_load_explicit(&job->trace_numbers[s], memory_order_relaxed);
      struct sml_trace_job entry = {.number = number, .rank = job->state.rank};
      snprintf(entry.name, sizeof entry.name, "%s", job->state.name);
      if (number != UINT16_MAX) is_added = sml_trace_add_job(dump, &entry);
    }
  }
  return is_added;
}

static sml_status dump_context(struct sml_context *context, const char *path, const char *reason) {
  struct sml_trace_dump dump = {.program = "libswitchml", .reason = reason};
  char error[SML_ERROR_DETAIL_BYTES];
  sml_fork_lock(); /* engines come */
  bool is_whole = add_engines(&dump, context);
  sml_fork_unlock();
  pthread_mutex_lock(&context->lock); /* jobs come and go */
  is_whole = is_whole && add_jobs(&dump, context);
  pthread_mutex_unlock(&context->lock);
  sml_status status = SML_OK;
  if (!is_whole) status = sml_fail(SML_ERR_NO_MEMORY, "no memory for a copy of the trace");
  else if (sml_trace_write(&dump, path, error, sizeof error) != 0) status = sml_fail(SML_ERR_SYSTEM, "%s", error);
  sml_trace_clear(&dump);
  return status;
}

/* FOLDER/switchml-JOB-rankR-PID-N.trace: no two dumps have one name, and none leaves the folder. */
static bool make_path(const struct sml_job *job, char *path, size_t path_bytes) {
  char name[SML_JOB_NAME_BYTES];
  const uint32_t number = atomic_fetch_add_explicit(&num_dumps, 1, memory_order_relaxed);
  if (number >= MAX_DUMPS) return false;
  snprintf(name, sizeof name, "%s", job->state.name);
  for (char *c = name; *c != 0; c++)
    if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || *c == '-')) *c = '_';
  return (size_t)snprintf(path, path_bytes, "%s/switchml-%s-rank%u-%ld-%u.trace", job->context->settings.trace_folder,
                          name, job->state.rank, (long)getpid(), number) < path_bytes;
}

void sml_job_want_dump_locked(struct sml_job *job) {
  const struct sml_settings *s = &job->context->settings;
  job->told_detail_bytes = strlen(job->state.error.detail);
  if (s->trace_folder[0] == 0 || s->trace_level == SML_TRACE_OFF || job->engines == NULL) return;
  job->dump_path = malloc(SML_TRACE_PATH_BYTES);
  if (job->dump_path == NULL || !make_path(job, job->dump_path, SML_TRACE_PATH_BYTES)) {
    free(job->dump_path);
    job->dump_path = NULL;
    return;
  }
  job->is_dump_due = true;
}

void sml_job_await_dump_locked(struct sml_job *job) {
  const uint64_t deadline_ns = sml_clock_ns() + AWAIT_DUMP_NS;
  const struct timespec deadline = {.tv_sec = (time_t)(deadline_ns / SML_NS_PER_S),
                                    .tv_nsec = (long)(deadline_ns % SML_NS_PER_S)};
  int error = 0;
  while (job->is_dump_due && error == 0) error = pthread_cond_timedwait(&job->changed, &job->lock, &deadline);
}

/* What is said is there. */
static void say_where(struct sml_job *job, const char *path) {
  char note[SML_TRACE_PATH_BYTES + 16];
  const int note_bytes = snprintf(note, sizeof note, " (trace: %s)", path);
  pthread_mutex_lock(&job->lock);
  if (job->told_detail_bytes + (size_t)note_bytes < sizeof job->state.error.detail)
    memcpy(job->state.error.detail + job->told_detail_bytes, note, (size_t)note_bytes + 1);
  pthread_mutex_unlock(&job->lock);
}

void sml_job_dump_if_wanted(struct sml_job *job) {
  pthread_mutex_lock(&job->lock);
  char *path = job->dump_path;
  job->dump_path = NULL;
  const sml_status status = job->state.error.status;
  pthread_mutex_unlock(&job->lock);
  if (path == NULL) return;
  char reason[128];
  snprintf(reason, sizeof reason, "job %s failed: %s", job->state.name, sml_status_string(status));
  if (dump_context(job->context, path, reason) == SML_OK) {
    say_where(job, path);
    sml_job_log(job, SML_LIB_LOG_INFO, "trace in %s", path);
  } else {
    sml_job_log(job, SML_LIB_LOG_WARN, "no trace: %s", sml_error_detail());
  }
  free(path);
  pthread_mutex_lock(&job->lock);
  job->is_dump_due = false;
  pthread_cond_broadcast(&job->changed);
  pthread_mutex_unlock(&job->lock);
}

sml_status sml_context_dump_trace(sml_context *context, const char *path) {
  SML_UNCANCELLED;
  if (context == NULL || path == NULL || path[0] == 0)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "context or path is NULL or empty");
  if (sml_context_is_forked(context)) return sml_context_fail_forked();
  if (context->settings.trace_level == SML_TRACE_OFF)
    return sml_fail(SML_ERR_UNSUPPORTED, "nothing is recorded: SWITCHML_TRACE is off");
  return dump_context(context, path, "sml_context_dump_trace()");
}
