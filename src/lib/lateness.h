/* SPDX-License-Identifier: Apache-2.0
 * What a job waits for, in words: as this rank sees it, and as its aggregators say when they are asked (ASK, REPORT).
 * They know which ranks have called and what the slots hold; this rank knows that only from what reached it. */
#ifndef SML_LIB_LATENESS_H
#define SML_LIB_LATENESS_H

#include "lib/job.h"

/* The aggregators are asked that long before a deadline, or half the time to it if that is less. */
#define SML_ASK_NS (200 * SML_NS_PER_MS)

/* All with job->lock held. "waiting for ranks 1, 3 on lane 0 slot 12 for 59.9 s; the aggregator: ..." into the end of
 * the failure's detail; the ranks too. */
void sml_job_add_lateness_locked(const struct sml_job *job, uint64_t now_ns, struct sml_ctl_abort *failure);
/* "; rank 1's host did not send 12 packets, ...: Message too long" to the end of the failure's detail, which is cut for
 * it, if its system would not take packets while the oldest operation waited, or the job was being joined. */
void sml_job_add_unsent_locked(const struct sml_job *job, uint64_t now_ns, struct sml_ctl_abort *failure);
/* Asks each aggregator that the job runs with; what they said before is forgotten. On the control thread. */
void sml_job_ask_locked(struct sml_job *job, uint64_t now_ns);
/* Asks when it is time to, for something that is due then and began at began_ns. Returns when to come again. On the
 * control thread. */
uint64_t sml_job_ask_before_locked(struct sml_job *job, uint64_t began_ns, uint64_t due_ns, uint64_t now_ns);
/* All that were asked have answered. */
bool sml_job_has_reports_locked(const struct sml_job *job);

#endif
