/* SPDX-License-Identifier: Apache-2.0
 * Retry: what a job does on the control thread when its aggregator is lost, as ctl/member_retry.h decides, so that
 * operations end as if it had not been. Lanes are closed, so that no thread touches a buffer; the session
 * joins a successor; then everything from the first operation that some rank lacks is done again, from the
 * kept inputs. Operations that this rank has completed are done again for the others only. */
#ifndef SML_LIB_REJOIN_H
#define SML_LIB_REJOIN_H

#include "lib/job.h"

/* Whether a failure of the session begins, or goes on with, rejoining, or joining anew where the job has not started;
 * if so, that is done. Else the job has
 * to fail with *failure, which then says that it was rejoining. Without job->lock. */
bool sml_rejoin_try(struct sml_job *job, struct sml_ctl_abort *failure, uint64_t now_ns);
/* With job->lock held: the aggregator is heard again. In a job with retry deadlines stood still while it was late, as
 * they do while the job rejoins. */
void sml_rejoin_note_heard_locked(struct sml_job *job, uint64_t now_ns);
/* START came while REJOINING: the job runs again, or fails. Without job->lock. */
void sml_rejoin_finish(struct sml_job *job, const struct sml_ctl_start *start, uint64_t now_ns);

#endif
