/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/rejoin.h"

#include "lib/job_log.h"
#include "lib/operation.h"

static double seconds(uint64_t time_ns) {
  return (double)time_ns / (double)SML_NS_PER_S;
}

/* ---- losing the aggregator ---- */

static struct sml_member_situation situation_locked(const struct sml_job *job) {
  const struct sml_member *member = &job->shards[0].session.member;
  return (struct sml_member_situation){.phase = job->state == SML_JOB_JOINING     ? SML_MEMBER_IS_JOINING
                                                : job->state == SML_JOB_REJOINING ? SML_MEMBER_IS_REJOINING
                                                : job->state == SML_JOB_FAILED    ? SML_MEMBER_HAS_FAILED
                                                                                  : SML_MEMBER_IS_STARTED,
                                       .has_gone_rank = job->has_gone_rank,
                                       .was_welcomed = member->was_welcomed,
                                       .join_deadline_ns = member->options.deadline_ns};
}

static void join_again(struct sml_job *job, uint64_t now_ns) {
  pthread_mutex_lock(&job->lock);
  const bool is_rejoining = job->state == SML_JOB_REJOINING; /* else a caller aborted it meanwhile */
  const struct sml_member_resume resume = sml_member_retry_resume(
      &job->retry, &job->start, sml_job_first_unfinished_locked(job), job->operations_completed == 0);
  pthread_mutex_unlock(&job->lock);
  if (is_rejoining) sml_member_rejoin(&job->shards[0].session.member, &resume, now_ns);
}

/* All operations wait again, those of a replay are gone. */
static void take_back_operations(struct sml_job *job) {
  sml_job_lanes_close(&job->lanes);
  pthread_mutex_lock(&job->lock);
  SML_ASSERT(job->num_pushed == 0);
  sml_job_drop_replays_locked(job);
  job->first_waiting = job->oldest;
  pthread_mutex_unlock(&job->lock);
}

bool sml_rejoin_try(struct sml_job *job, struct sml_ctl_abort *failure, uint64_t now_ns) {
  bool is_first;
  uint64_t patience_ns;
  pthread_mutex_lock(&job->lock);
  const struct sml_member_situation situation = situation_locked(job);
  const enum sml_member_way_on way_on =
      sml_member_retry_on_lost(&job->retry, &situation, failure, now_ns, &is_first, &patience_ns);
  if (way_on == SML_MEMBER_REJOINS) job->state = SML_JOB_REJOINING;
  pthread_mutex_unlock(&job->lock);
  if (is_first)
    sml_job_log(job, SML_LIB_LOG_WARN, "%s (trying for %.4g s to join it again)", failure->detail,
                seconds(patience_ns));
  if (is_first && way_on == SML_MEMBER_REJOINS) take_back_operations(job);
  if (way_on == SML_MEMBER_JOINS_ANEW) sml_member_join_anew(&job->shards[0].session.member, now_ns);
  else if (way_on == SML_MEMBER_REJOINS) join_again(job, now_ns);
  return way_on != SML_MEMBER_ENDS;
}

/* ---- going on ---- */

static void shift_deadlines(struct sml_job *job, uint64_t stood_ns, uint64_t now_ns) {
  for (struct sml_operation *op = job->oldest; op; op = op->next)
    op->deadline_ns =
        sml_member_retry_deadline(op->submitted_ns, op->deadline_ns, op->last_deadline_ns, stood_ns, now_ns);
}

void sml_rejoin_note_heard_locked(struct sml_job *job, uint64_t now_ns) {
  const uint64_t stood_ns = sml_member_retry_on_heard(&job->retry);
  if (stood_ns != 0) shift_deadlines(job, stood_ns, now_ns);
}

static void go_on_locked(struct sml_job *job, const struct sml_ctl_start *start, uint64_t now_ns) {
  job->start.epoch = start->epoch;
  job->start.first_phase = start->first_phase;
  job->start.first_chunk = start->first_chunk;
  shift_deadlines(job, sml_member_retry_on_started(&job->retry, start), now_ns);
  sml_retained_drop_confirmed(job);
  if (!sml_job_add_replays_locked(job, now_ns)) {
    const struct sml_ctl_abort failure =
        sml_job_failure(SML_ERR_NO_MEMORY, "rank %u has no memory to do operations again", job->rank);
    sml_job_fail_locked(job, &failure, true);
    return;
  }
  job->first_waiting = job->oldest;
  job->state = SML_JOB_RUNNING;
  sml_job_push_locked(job);
}

void sml_rejoin_finish(struct sml_job *job, const struct sml_ctl_start *start, uint64_t now_ns) {
  pthread_mutex_lock(&job->lock);
  const char *fault =
      sml_member_retry_find_fault(&job->retry, &job->start, start, sml_job_first_unfinished_locked(job));
  pthread_mutex_unlock(&job->lock);
  const bool is_open = fault == NULL && sml_job_lanes_open(&job->lanes, start);
  struct sml_ctl_abort failure;
  if (fault != NULL)
    failure = sml_job_failure(SML_ERR_AGGREGATOR_LOST,
                              "after the aggregator was lost its successor came, but %s", fault);
  else
    failure =
        sml_job_failure(SML_ERR_NO_MEMORY, "rank %u has no memory for %u slots", job->rank, start->num_slots);
  pthread_mutex_lock(&job->lock);
  if (!is_open)
    sml_job_fail_locked(job, &failure, true);
  else if (job->state == SML_JOB_REJOINING)
    go_on_locked(job, start, now_ns);
  pthread_mutex_unlock(&job->lock);
  if (is_open)
    sml_job_log(job, SML_LIB_LOG_WARN, "goes on after %.3g s at the aggregator's successor, from operation %llu",
                seconds(now_ns - job->retry.lost_ns), (unsigned long long)start->first_operation);
}
