/* SPDX-License-Identifier: Apache-2.0
 * The library's flight recorders: one an engine, one a job; and when they are written to a file. The library
 * installs no signal handler, and writes files only where SWITCHML_TRACE_DIR says, or sml_context_dump_trace(). */
#ifndef SML_LIB_TRACE_H
#define SML_LIB_TRACE_H

#include "process/status.h"
#include "trace/recorder.h"

struct sml_job;

#define SML_TRACE_PATH_BYTES 1024u

/* With job->lock held, which orders the job's records. */
void sml_job_record_locked(const struct sml_job *job, struct sml_record record, uint64_t now_ns);
/* With job->lock held, of a job that just failed: chooses the file that its trace goes to, if one is wanted. */
void sml_job_want_dump_locked(struct sml_job *job);
/* On the control thread, without locks: writes it, and then says where in the error's detail, if there is room. */
void sml_job_dump_if_wanted(struct sml_job *job);
/* On a caller's thread with job->lock held, before the error is read: until that is done, at most a second. */
void sml_job_await_dump_locked(struct sml_job *job);

#endif
