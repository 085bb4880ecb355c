/* SPDX-License-Identifier: Apache-2.0 */
#include "aggd/trace.h"

#include <stdio.h>
#include <stdlib.h>

#include "aggd/aggd.h"

#define BEFORE_PER_JOB 4u /* names that are kept of jobs that were, by the number of those there may be */

bool sml_aggd_trace_open(struct sml_aggd_trace *t, const struct sml_recorder_options *options, uint32_t max_jobs) {
  pthread_mutex_init(&t->lock, NULL);
  t->max_jobs = max_jobs;
  const struct sml_recorder_options of_job = {options->level, options->num_events / SML_AGGD_TRACE_SHARE};
  const bool has_set = sml_recorder_set_open(&t->job_recorders, &of_job, max_jobs, max_jobs);
  t->recorder = sml_recorder_create(options);
  t->max_before = BEFORE_PER_JOB * max_jobs;
  t->jobs = calloc(max_jobs, sizeof *t->jobs);
  t->before = calloc(t->max_before, sizeof *t->before);
  t->has_ended = calloc(max_jobs, sizeof *t->has_ended);
  return has_set && t->recorder != NULL && t->jobs != NULL && t->before != NULL && t->has_ended != NULL;
}

void sml_aggd_trace_close(struct sml_aggd_trace *t) {
  sml_recorder_destroy(t->recorder);
  sml_recorder_set_close(&t->job_recorders);
  free(t->jobs);
  free(t->before);
  free(t->has_ended);
  pthread_mutex_destroy(&t->lock);
}

/* The number is this job's from now on; events of before keep the name of whose it was. */
static void name_job(struct sml_aggd_trace *t, const struct sml_effect *note, uint64_t now_ns) {
  struct sml_trace_job *job = &t->jobs[note->job];
  if (strcmp(job->name, note->job_name) == 0 && !t->has_ended[note->job]) return;
  if (job->name[0] != 0) t->before[t->num_before++ % t->max_before] = *job;
  *job = (struct sml_trace_job){.number = note->job, .epoch = note->epoch, .rank = SML_TRACE_NONE, .since_ns = now_ns};
  snprintf(job->name, sizeof job->name, "%s", note->job_name);
  t->has_ended[note->job] = false;
}

void sml_aggd_trace_note(struct sml_aggd_trace *t, const struct sml_effect *note, uint64_t now_ns) {
  static const enum sml_trace_event events[] = {
      [SML_NOTE_RANK_JOINED] = SML_TRACE_RANK_JOINED,
      [SML_NOTE_JOB_STARTED] = SML_TRACE_JOB_STARTED,
      [SML_NOTE_RANK_LEFT] = SML_TRACE_RANK_LEFT,
      [SML_NOTE_RANK_LOST] = SML_TRACE_RANK_LOST,
      [SML_NOTE_JOIN_REFUSED] = SML_TRACE_JOIN_REFUSED,
      [SML_NOTE_JOB_REFUSED] = SML_TRACE_JOB_REFUSED,
      [SML_NOTE_HOST_LIMITED] = SML_TRACE_HOST_LIMITED,
      [SML_NOTE_JOB_ABORTED] = SML_TRACE_JOB_ABORTED,
      [SML_NOTE_JOB_ENDED] = SML_TRACE_JOB_ENDED,
      [SML_NOTE_RANK_LATE] = SML_TRACE_RANK_DELAYED,
      [SML_NOTE_RANK_CALLED] = SML_TRACE_RANK_CALLED,
      [SML_NOTE_EPOCH_RENEWED] = SML_TRACE_EPOCH_RENEWED,
      [SML_NOTE_STATUS_REFUSED] = SML_TRACE_STATUS_REFUSED,
      [SML_NOTE_EVICT_REFUSED] = SML_TRACE_STATUS_REFUSED, /* who asked is no operator, either */
      [SML_NOTE_NO_MULTICAST] = SML_TRACE_MULTICAST_REFUSED};
  _Static_assert(SML_ARRAY_LEN(events) == SML_NUM_NOTES, "each note has its event");
  const bool has_job = note->job_name[0] != 0 && note->note != SML_NOTE_JOIN_REFUSED;
  if (has_job && note->note == SML_NOTE_JOB_STARTED) sml_recorder_set_use(&t->job_recorders, note->job);
  const uint16_t job = has_job ? note->job : UINT16_MAX;
  sml_recorder_put(sml_recorder_set_pick(&t->job_recorders, job, t->recorder),
                   (struct sml_record){.time_ns = now_ns,
                                       .event = (uint16_t)events[note->note],
                                       .job = job,
                                       .rank = (uint16_t)note->rank,
                                       .chunk = note->world_size,
                                       .value = note->epoch});
  if (!has_job || note->job >= t->max_jobs) return;
  if (note->note == SML_NOTE_JOB_ENDED || note->note == SML_NOTE_JOB_ABORTED || note->note == SML_NOTE_JOB_REFUSED)
    t->has_ended[note->job] = true;
  if (note->note != SML_NOTE_RANK_JOINED && note->note != SML_NOTE_JOB_STARTED) return;
  pthread_mutex_lock(&t->lock);
  name_job(t, note, now_ns);
  pthread_mutex_unlock(&t->lock);
}

bool sml_aggd_trace_add(struct sml_aggd_trace *t, struct sml_trace_dump *dump) {
  bool is_added = sml_trace_add_source(dump, t->recorder, SML_TRACE_NONE, "control") &&
                  sml_recorder_set_add(&t->job_recorders, SML_TRACE_NONE, "control", dump);
  pthread_mutex_lock(&t->lock);
  for (uint64_t k = t->num_before - sml_min_u64(t->num_before, t->max_before); k < t->num_before && is_added; k++)
    is_added = sml_trace_add_job(dump, &t->before[k % t->max_before]);
  for (uint32_t j = 0; j < t->max_jobs && is_added; j++)
    if (t->jobs[j].name[0] != 0) is_added = sml_trace_add_job(dump, &t->jobs[j]);
  pthread_mutex_unlock(&t->lock);
  return is_added;
}
