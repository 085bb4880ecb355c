/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/rejoin.h"

#include <stdio.h>

#include "lib/job_log.h"
#include "lib/operation.h"

/* A refused JOIN may be about ourselves: an aggregator that was stopped, or cut off, hears of our return
 * before it hears of the end of the connection before. What is refused later is the job, for good. */
#define REFUSED_NS (2 * SML_NS_PER_S)

static double seconds(uint64_t time_ns) {
  return (double)time_ns / (double)SML_NS_PER_S;
}

/* ---- losing the aggregator ---- */

/* A rank that is gone does not join again. */
static bool may_begin(const struct sml_job *job, const struct sml_ctl_abort *failure) {
  const bool is_started =
      job->state == SML_JOB_RUNNING || job->state == SML_JOB_DRAINING || job->state == SML_JOB_RENEWING;
  return job->retry_ns != 0 && is_started && failure->status == SML_ERR_AGGREGATOR_LOST &&
         !job->has_gone_rank;
}

/* An aggregator that goes as soon as it came, or whose data ports are not reached yet. All ranks are told the
 * same, so all come again. */
static bool is_passing(const struct sml_ctl_abort *failure) {
  return failure->status == SML_ERR_AGGREGATOR_LOST || failure->status == SML_ERR_UNREACHABLE ||
         failure->status == SML_ERR_MTU;
}

/* Whether a successor may still come, or let this rank in. */
static bool is_worth_another_try(struct sml_job *job, const struct sml_ctl_abort *failure, uint64_t now_ns) {
  if (failure->status != SML_ERR_REFUSED || job->shards[0].session.member.was_welcomed) {
    job->first_refused_ns = SML_NEVER; /* it was let in, or nobody was there to refuse it */
    return is_passing(failure);
  }
  job->first_refused_ns = sml_min_u64(job->first_refused_ns, now_ns);
  return now_ns - job->first_refused_ns < REFUSED_NS;
}

static bool may_go_on(struct sml_job *job, const struct sml_ctl_abort *failure, uint64_t now_ns) {
  if (job->state != SML_JOB_REJOINING || now_ns - job->rejoining_since_ns >= job->retry_ns) return false;
  return is_worth_another_try(job, failure, now_ns);
}

/* Lost while it was joined: nothing was promised, nothing summed. The first join of all is tried again by the session
 * where nobody answers, and fails where somebody refuses; after a loss it is a join like those of started jobs. */
static bool may_join_anew(struct sml_job *job, const struct sml_ctl_abort *failure, uint64_t now_ns) {
  if (job->state != SML_JOB_JOINING || job->retry_ns == 0) return false;
  if (now_ns >= job->shards[0].session.member.options.deadline_ns) return false;
  if (job->rejoining_since_ns == 0) return failure->status == SML_ERR_AGGREGATOR_LOST;
  return is_worth_another_try(job, failure, now_ns);
}

static void join_again(struct sml_job *job, uint64_t now_ns) {
  pthread_mutex_lock(&job->lock);
  const bool is_rejoining = job->state == SML_JOB_REJOINING; /* else a caller aborted it meanwhile */
  const struct sml_member_resume resume = {.resume_operation = sml_job_first_unfinished_locked(job),
                                            .oldest_operation = job->confirmed_operation,
                                            .has_no_result = job->operations_completed == 0,
                                            .chunk_bytes = job->start.chunk_bytes,
                                            .num_slots = job->start.num_slots,
                                            .deadline_ns = job->rejoining_since_ns + job->retry_ns};
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

static void explain(struct sml_job *job, struct sml_ctl_abort *failure) {
  char why[sizeof failure->detail];
  memcpy(why, failure->detail, sizeof why);
  if (job->state == SML_JOB_REJOINING && is_passing(failure)) {
    failure->status = SML_ERR_AGGREGATOR_LOST;
    snprintf(failure->detail, sizeof failure->detail,
             "the aggregator was lost and could not be joined again for %.4g s (retry_ns): %.160s",
             seconds(job->retry_ns), why);
  } else {
    snprintf(failure->detail, sizeof failure->detail, "after the aggregator was lost%s: %.220s",
             job->state == SML_JOB_JOINING ? " while this rank joined" : "", why);
  }
}

/* False: it goes on as it did, or not at all. */
static bool begin_locked(struct sml_job *job, bool is_joining, uint64_t now_ns) {
  if (is_joining ? job->rejoining_since_ns != 0 : job->state == SML_JOB_REJOINING) return false;
  if (!is_joining) job->state = SML_JOB_REJOINING;
  job->rejoining_since_ns = now_ns;
  job->first_refused_ns = SML_NEVER;
  return true;
}

bool sml_rejoin_try(struct sml_job *job, struct sml_ctl_abort *failure, uint64_t now_ns) {
  pthread_mutex_lock(&job->lock);
  const bool is_joining = may_join_anew(job, failure, now_ns);
  const bool is_due = is_joining || may_begin(job, failure) || may_go_on(job, failure, now_ns);
  const bool is_first = is_due && begin_locked(job, is_joining, now_ns);
  const bool was_lost = job->state == SML_JOB_REJOINING ||
                        (job->state == SML_JOB_JOINING && job->rejoining_since_ns != 0);
  if (!is_due && was_lost) explain(job, failure);
  pthread_mutex_unlock(&job->lock);
  if (is_first)
    sml_job_log(job, SML_LIB_LOG_WARN, "%s (trying for %.4g s to join it again)", failure->detail,
                seconds(is_joining ? job->shards[0].session.member.options.deadline_ns - now_ns : job->retry_ns));
  if (is_first && !is_joining) take_back_operations(job);
  if (is_joining) sml_member_join_anew(&job->shards[0].session.member, now_ns);
  else if (is_due) join_again(job, now_ns);
  return is_due;
}

/* ---- going on ---- */

/* What is wrong with the start; NULL: nothing. The shape decides how operations are cut, so it must be as
 * before in all of them. */
static const char *find_fault(const struct sml_job *job, const struct sml_ctl_start *start) {
  if (start->num_lanes != job->start.num_lanes || start->num_slots != job->start.num_slots ||
      start->chunk_bytes != job->start.chunk_bytes)
    return "it gives another number of lanes, slots or bytes a chunk than the one before: start it with the "
           "same options";
  if (start->first_operation > sml_job_first_unfinished_locked(job) ||
      start->first_operation < job->confirmed_operation)
    return "it begins with an operation that this rank cannot begin with";
  return NULL;
}

/* Deadlines stood still since then, but never beyond what an operation has in all. */
static void shift_deadlines(struct sml_job *job, uint64_t stood_ns, uint64_t now_ns) {
  for (struct sml_operation *op = job->oldest; op; op = op->next) {
    const uint64_t since_ns = sml_min_u64(now_ns, sml_max_u64(op->submitted_ns, stood_ns));
    op->deadline_ns += sml_min_u64(now_ns - since_ns, op->last_deadline_ns - op->deadline_ns);
  }
}

void sml_rejoin_note_silent_locked(struct sml_job *job, uint64_t since_ns) {
  if (job->retry_ns != 0 && job->silent_since_ns == 0) job->silent_since_ns = since_ns;
}

void sml_rejoin_note_heard_locked(struct sml_job *job, uint64_t now_ns) {
  if (job->silent_since_ns != 0) shift_deadlines(job, job->silent_since_ns, now_ns);
  job->silent_since_ns = 0;
}

static void go_on_locked(struct sml_job *job, const struct sml_ctl_start *start, uint64_t now_ns) {
  job->start.epoch = start->epoch;
  job->start.first_phase = start->first_phase;
  job->start.first_chunk = start->first_chunk;
  job->confirmed_operation = sml_max_u64(job->confirmed_operation, start->first_operation);
  sml_retained_drop_confirmed(job);
  shift_deadlines(job, job->silent_since_ns != 0 ? job->silent_since_ns : job->rejoining_since_ns, now_ns);
  job->silent_since_ns = 0;
  if (!sml_job_add_replays_locked(job, now_ns)) {
    const struct sml_ctl_abort failure =
        sml_job_failure(SML_ERR_NO_MEMORY, "rank %u has no memory to do operations again", job->rank);
    sml_job_fail_locked(job, &failure, true);
    return;
  }
  job->first_waiting = job->oldest;
  job->num_rejoins++;
  job->state = SML_JOB_RUNNING;
  sml_job_push_locked(job);
}

void sml_rejoin_finish(struct sml_job *job, const struct sml_ctl_start *start, uint64_t now_ns) {
  pthread_mutex_lock(&job->lock);
  const char *fault = find_fault(job, start);
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
                seconds(now_ns - job->rejoining_since_ns), (unsigned long long)start->first_operation);
}
