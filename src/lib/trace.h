/* SPDX-License-Identifier: Apache-2.0
 * What a job says of itself: lines of the library's log (process/log.h), and the flight recorders, one an engine, one a
 * job. Recorders are written to files only where SWITCHML_TRACE_DIR says, or sml_context_dump_trace(). */
#pragma once

#include "process/log.h"
#include "process/status.h"
#include "trace/recorder.h"

struct sml_job;

#define SML_TRACE_PATH_BYTES 1024u

static inline double sml_seconds(uint64_t ns) { return (double)ns / 1e9; }
/* "... [rank] SWITCHML INFO job 'x': ...", if the context's settings let the level through. */
__attribute__((format(printf, 3, 4))) void sml_job_log(const struct sml_job *job, enum sml_lib_log_level level,
                                                       const char *format, ...);
/* INFO: what was decided at the first START, and why. On the control thread, without job->lock. */
void sml_job_log_start(const struct sml_job *job);
/* Why the job has so many slots: as the aggregator said, or that it gave fewer than were asked for. */
sml_slots_reason sml_job_find_slots_reason(const struct sml_job *job);

/* With job->lock held, which orders the job's records. */
void sml_job_record_locked(const struct sml_job *job, struct sml_record record, uint64_t now_ns);
/* With job->lock held, of a job that just failed: chooses the file that its trace goes to, if one is wanted. */
void sml_job_want_dump_locked(struct sml_job *job);
/* On the control thread, without locks: writes it, and then says where in the error's detail, if there is room. */
void sml_job_dump_if_wanted(struct sml_job *job);
/* On a caller's thread with job->lock held, before the error is read: until that is done, at most a second. */
void sml_job_await_dump_locked(struct sml_job *job);
