/* SPDX-License-Identifier: Apache-2.0 */
#include "aggd/trace.h"

#include <stdio.h>
#include <stdlib.h>

bool sml_aggd_trace_open(struct sml_aggd_trace *t, const struct sml_recorder_options *options, uint32_t max_jobs) {
  pthread_mutex_init(&t->lock, NULL);
  t->max_jobs = max_jobs;
  t->recorder = sml_recorder_create(options);
  t->jobs = calloc(max_jobs, sizeof *t->jobs);
  return t->recorder != NULL && t->jobs != NULL;
}

void sml_aggd_trace_close(struct sml_aggd_trace *t) {
  sml_recorder_destroy(t->recorder);
  free(t->jobs);
  pthread_mutex_destroy(&t->lock);
}

void sml_aggd_trace_note(struct sml_aggd_trace *t, const struct sml_effect *note, uint64_t now_ns) {
  static const enum sml_trace_event events[] = {
      [SML_NOTE_RANK_JOINED] = SML_TRACE_RANK_JOINED,   [SML_NOTE_JOB_STARTED] = SML_TRACE_JOB_STARTED,
      [SML_NOTE_RANK_LEFT] = SML_TRACE_RANK_LEFT,       [SML_NOTE_RANK_LOST] = SML_TRACE_RANK_LOST,
      [SML_NOTE_JOIN_REFUSED] = SML_TRACE_JOIN_REFUSED, [SML_NOTE_JOB_REFUSED] = SML_TRACE_JOB_REFUSED,
      [SML_NOTE_HOST_LIMITED] = SML_TRACE_HOST_LIMITED, [SML_NOTE_JOB_ABORTED] = SML_TRACE_JOB_ABORTED,
      [SML_NOTE_JOB_ENDED] = SML_TRACE_JOB_ENDED,       [SML_NOTE_RANK_LATE] = SML_TRACE_RANK_DELAYED,
      [SML_NOTE_RANK_CALLED] = SML_TRACE_RANK_CALLED,   [SML_NOTE_EPOCH_RENEWED] = SML_TRACE_EPOCH_RENEWED,
      [SML_NOTE_STATUS_REFUSED] = SML_TRACE_STATUS_REFUSED,
      [SML_NOTE_EVICT_REFUSED] = SML_TRACE_STATUS_REFUSED, /* who asked is no operator, either */
      [SML_NOTE_NO_MULTICAST] = SML_TRACE_MULTICAST_REFUSED};
  _Static_assert(SML_ARRAY_LEN(events) == SML_NUM_NOTES, "each note has its event");
  const bool has_job = note->job_name != NULL && note->job_name[0] != 0;
  sml_recorder_put(t->recorder, (struct sml_record){.time_ns = now_ns,
                                                    .event = (uint16_t)events[note->note],
                                                    .job = has_job ? note->job : UINT16_MAX,
                                                    .rank = (uint16_t)note->rank,
                                                    .chunk = note->world_size,
                                                    .value = note->epoch});
  if (!has_job || note->job >= t->max_jobs) return;
  if (note->note != SML_NOTE_RANK_JOINED && note->note != SML_NOTE_JOB_STARTED) return;
  pthread_mutex_lock(&t->lock);
  struct sml_trace_job *job = &t->jobs[note->job];
  *job = (struct sml_trace_job){.number = note->job, .epoch = note->epoch, .rank = SML_TRACE_NONE};
  snprintf(job->name, sizeof job->name, "%s", note->job_name);
  pthread_mutex_unlock(&t->lock);
}

bool sml_aggd_trace_add(struct sml_aggd_trace *t, struct sml_trace_dump *dump) {
  bool is_added = sml_trace_add_source(dump, t->recorder, SML_TRACE_NONE, "control");
  pthread_mutex_lock(&t->lock);
  for (uint32_t j = 0; j < t->max_jobs && is_added; j++)
    if (t->jobs[j].name[0] != 0) is_added = sml_trace_add_job(dump, &t->jobs[j]);
  pthread_mutex_unlock(&t->lock);
  return is_added;
}
