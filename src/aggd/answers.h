/* SPDX-License-Identifier: Apache-2.0
 * What the service tells people about itself: the status as a text for connections that ask for it, a report
 * for ranks that wait, snapshots for other threads of the process. Nothing is made more often than each 100
 * ms, and what takes long less often, so that who asks costs the others a tenth of the thread at most. */
#pragma once

#include <pthread.h>

#include "aggd/aggd.h"
#include "aggd/lanes.h"
#include "aggd/shown.h"
#include "aggd/snapshot.h"
#include "aggd/tenants.h"

struct sml_job_report {
  uint64_t made_ns; /* 0: none */
  uint32_t epoch;
  struct sml_ctl_report report;
};

struct sml_answers {
  const struct sml_aggd_options *options;
  const struct sml_registry *registry;
  struct sml_lanes *lanes;
  struct sml_tenants *tenants;
  struct sml_addr addr;
  int event_fd; /* wakes the control thread */
  uint64_t started_ns;
  double started_s; /* since 1970 */
  struct sml_history history;
  struct sml_shown shown;
  struct sml_snapshot *snapshot;  /* the latest; NULL: none yet */
  uint64_t fresh_ns;              /* how long it is fresh: longer if it took long to make */
  struct sml_job_report *reports; /* the latest of each job; SML_REGISTRY_MAX_JOBS, zeros at first */
  pthread_mutex_t lock;           /* for the rest: other threads ask */
  pthread_cond_t answered;
  uint64_t num_asked, num_answered;
  struct sml_snapshot *answer; /* NULL: out of memory */
};

void sml_answers_init(struct sml_answers *answers);
void sml_answers_destroy(struct sml_answers *answers);

/* The control thread's. SHOW: STATUS_PART, or REFUSE with a sentence; *ticket is the connection's,
 * SML_SHOWN_NONE at first. */
void sml_answers_show(struct sml_answers *answers, const struct sml_effect *effect, uint32_t *ticket, uint64_t now_ns,
                      struct sml_ctl_message *message_out);
/* REPORT; false if the job is no more. */
bool sml_answers_report(struct sml_answers *answers, const struct sml_effect *effect, uint64_t now_ns,
                        struct sml_ctl_message *message_out);
/* Gives other threads what they asked for. */
void sml_answers_serve(struct sml_answers *answers, uint64_t now_ns);

/* Any other thread: waits for sml_answers_serve(), at most a second. NULL: no answer, or out of memory. */
struct sml_snapshot *sml_answers_ask(struct sml_answers *answers);
