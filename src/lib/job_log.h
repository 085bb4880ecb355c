/* SPDX-License-Identifier: Apache-2.0
 * What a job says of itself in the library's log (process/log.h): INFO, when it starts, is what was decided,
 * and why. */
#ifndef SML_LIB_JOB_LOG_H
#define SML_LIB_JOB_LOG_H

#include "lib/job.h"

/* "... [rank] SWITCHML INFO job 'x': ...", if the context's settings let the level through. */
__attribute__((format(printf, 3, 4))) void sml_job_log(const struct sml_job *job, enum sml_lib_log_level level,
                                                       const char *format, ...);
/* As the aggregator said, or that it gave fewer than were asked for. */
sml_slots_reason sml_job_why_slots(const struct sml_job *job);
/* On the control thread, after the first START; without job->lock. */
void sml_job_log_start(const struct sml_job *job);

#endif
