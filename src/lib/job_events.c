/* SPDX-License-Identifier: Apache-2.0
 * What happens to a job on the control thread: it starts, moves to a new epoch, hears of lost ranks,
 * misses deadlines, fails. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "ctl/member_start.h"
#include "lib/job_log.h"
#include "lib/lateness.h"
#include "lib/operation.h"
#include "lib/rejoin.h"
#include "lib/trace.h"

#define WARN_NS (10 * SML_NS_PER_S)
/* An abort comes on the control connection at about the same time as the data port's ERROR: it knows why. */
#define ERROR_REPLY_GRACE_NS (2 * SML_NS_PER_S)
#define LEAD_GRACE_NS (500 * SML_NS_PER_MS)

/* ---- failing ---- */

struct sml_ctl_abort sml_job_failure(sml_status status, const char *format, ...) {
  struct sml_ctl_abort failure = {.status = status};
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(failure.detail, sizeof failure.detail, format, arguments);
  va_end(arguments);
  return failure;
}

sml_status sml_job_report_locked(struct sml_job *job) {
  sml_job_await_dump_locked(job);
  return sml_fail(job->error.status, "%s", job->error.detail);
}

static void fail_at_locked(struct sml_job *job, const struct sml_ctl_abort *failure, uint64_t operation,
                           bool tells_others) {
  if (job->state == SML_JOB_FAILED) return;
  job->error = (sml_error){.struct_bytes = sizeof job->error,
                           .status = (sml_status)failure->status,
                           .num_ranks = failure->num_ranks,
                           .operation = operation};
  for (uint32_t i = 0; i < failure->num_ranks; i++) job->error.ranks[i] = failure->ranks[i];
  memcpy(job->error.detail, failure->detail, sizeof job->error.detail);
  job->state = SML_JOB_FAILED;
  sml_job_record_locked(job,
                        (struct sml_record){.event = SML_TRACE_JOB_FAILED,
                                            .rank = failure->num_ranks > 0 ? failure->ranks[0] : UINT16_MAX,
                                            .chunk = failure->num_ranks,
                                            .value = (uint64_t)(int64_t)failure->status},
                        sml_clock_ns());
  sml_job_want_dump_locked(job);
  job->wants_abort = tells_others;
  sml_job_log(job, SML_LIB_LOG_INFO, "failed: %s", job->error.detail);
  sml_job_end_waiting_locked(job, job->error.status);
  job->method->ops->fail(job->method, job->error.status);
  pthread_cond_broadcast(&job->changed);
  if (job->engines != NULL) sml_control_wake(&job->context->control);
}

void sml_job_fail_locked(struct sml_job *job, const struct sml_ctl_abort *failure, bool tells_others) {
  const uint64_t operation = job->oldest != NULL ? job->oldest->engine.plan.number : job->next_number;
  fail_at_locked(job, failure, operation, tells_others);
}

static void fail(struct sml_job *job, const struct sml_ctl_abort *failure, bool tells_others) {
  pthread_mutex_lock(&job->lock);
  sml_job_fail_locked(job, failure, tells_others);
  pthread_mutex_unlock(&job->lock);
}

static void record(struct sml_job *job, enum sml_trace_event event, uint32_t rank, uint64_t value) {
  pthread_mutex_lock(&job->lock);
  sml_job_record_locked(
      job, (struct sml_record){.event = (uint16_t)event, .rank = (uint16_t)rank, .value = value}, sml_clock_ns());
  pthread_mutex_unlock(&job->lock);
}

/* ---- starting ---- */

static void record_start_locked(struct sml_job *job) {
  const struct sml_ctl_start *start = &job->start;
  for (uint32_t s = 0; s < job->num_shards; s++)
    atomic_store_explicit(&job->trace_numbers[s], job->shards[s].session.member.welcome.job, memory_order_relaxed);
  sml_job_record_locked(job,
                        (struct sml_record){.event = SML_TRACE_JOB_JOINED,
                                            .slot = (uint16_t)start->num_slots,
                                            .rank = (uint16_t)job->rank,
                                            .phase = start->chunk_bytes,
                                            .chunk = job->world_size,
                                            .value = start->epoch},
                        sml_clock_ns());
}

static void start_first(struct sml_job *job, const struct sml_ctl_start *start) {
  pthread_mutex_lock(&job->lock);
  job->start = *start;
  job->formats.chunk_bytes = start->chunk_bytes;
  pthread_mutex_unlock(&job->lock);
  const bool is_open = sml_job_lanes_open(&job->lanes, start);
  pthread_mutex_lock(&job->lock);
  if (!is_open) {
    const struct sml_ctl_abort failure =
        sml_job_failure(SML_ERR_NO_MEMORY, "rank %u has no memory for %u slots", job->rank, start->num_slots);
    sml_job_fail_locked(job, &failure, true);
  } else if (job->state == SML_JOB_JOINING) {
    job->state = SML_JOB_RUNNING;
    record_start_locked(job);
    pthread_cond_broadcast(&job->changed);
  }
  pthread_mutex_unlock(&job->lock);
  sml_job_log_start(job);
}

static void start_again(struct sml_job *job, const struct sml_ctl_start *start) {
  sml_job_lanes_restart(&job->lanes, start);
  pthread_mutex_lock(&job->lock);
  job->start.epoch = start->epoch;
  job->start.first_phase = start->first_phase;
  job->start.first_chunk = start->first_chunk;
  record_start_locked(job);
  if (job->state == SML_JOB_RENEWING) job->state = SML_JOB_RUNNING;
  sml_job_push_locked(job);
  if (job->state == SML_JOB_RUNNING) job->method->ops->resume(job->method);
  pthread_mutex_unlock(&job->lock);
  sml_job_log(job, SML_LIB_LOG_INFO, "goes on in epoch %u", start->epoch);
}

static void fail_start(struct sml_job *job, const char *what) {
  const struct sml_ctl_abort failure = sml_job_failure(SML_ERR_PROTOCOL, "%s", what);
  fail(job, &failure, true);
}

static bool have_all_started(const struct sml_job *job) {
  uint32_t s = 0;
  while (s < job->num_shards && job->shards[s].is_started) s++;
  return s == job->num_shards;
}

/* The last shard has started: the job begins, or goes on. */
static void start_all(struct sml_job *job, enum sml_job_state state) {
  struct sml_ctl_start start;
  const struct sml_ctl_start *starts[SML_MAX_SHARDS];
  for (uint32_t s = 0; s < job->num_shards; s++) starts[s] = &job->shards[s].start;
  const char *fault = sml_member_combine_starts(starts, job->num_shards, &start);
  for (uint32_t s = 0; s < job->num_shards; s++) job->shards[s].is_started = false;
  if (fault != NULL) fail_start(job, fault);
  else if (state == SML_JOB_JOINING) start_first(job, &start);
  else start_again(job, &start);
}

static void on_started(void *user, const struct sml_ctl_start *start) {
  struct sml_job_shard *shard = user;
  struct sml_job *job = shard->job;
  pthread_mutex_lock(&job->lock);
  const enum sml_job_state state = job->state;
  shard->silent_since_ns = 0;
  pthread_mutex_unlock(&job->lock);
  const bool is_due = state == SML_JOB_JOINING ||
                      (state == SML_JOB_RENEWING && sml_member_is_same_shape(&shard->start, start));
  if (state == SML_JOB_REJOINING) {
    shard->start = *start; /* of a job's only one */
    sml_rejoin_finish(job, start, sml_clock_ns());
    pthread_mutex_lock(&job->lock);
    record_start_locked(job);
    pthread_mutex_unlock(&job->lock);
  } else if (is_due && !shard->is_started) {
    shard->start = *start;
    shard->is_started = true;
    /* Nothing is outstanding and nothing is pushed until then. */
    if (have_all_started(job)) start_all(job, state);
  } else if (state != SML_JOB_FAILED) {
    fail_start(job, "the aggregator started an epoch that nobody asked for");
  }
}

/* ---- ends ---- */

struct sml_ctl_abort sml_job_gone_failure(const struct sml_job *job) {
  struct sml_ctl_abort failure = sml_job_failure(SML_ERR_RANK_LOST, "%s", job->gone.detail);
  failure.num_ranks = sml_min_u32(job->gone.num_ranks, SML_CTL_MAX_RANKS);
  memcpy(failure.ranks, job->gone.ranks, failure.num_ranks * sizeof failure.ranks[0]);
  return failure;
}

/* Not an error yet: the rank may have done all that it had to do. The next submission fails, and so
 * does a new epoch, which needs every rank. */
static void lose_rank(struct sml_job *job, const struct sml_ctl_rank_gone *gone) {
  for (uint32_t i = 0; i < gone->num_ranks; i++) record(job, SML_TRACE_RANK_LOST, gone->ranks[i], job->start.epoch);
  pthread_mutex_lock(&job->lock);
  if (!job->has_gone_rank) {
    job->gone = *gone;
    if (gone->detail[0] == 0)
      snprintf(job->gone.detail, sizeof job->gone.detail, "rank %u is gone", gone->ranks[0]);
    job->has_gone_rank = true;
    if (job->is_lingering) pthread_cond_broadcast(&job->changed);
  }
  for (uint32_t i = 0; i < gone->num_ranks; i++)
    if (gone->ranks[i] < job->world_size) job->method->ops->set_gone(job->method, gone->ranks[i]);
  if (job->state == SML_JOB_RENEWING) {
    const struct sml_ctl_abort failure = sml_job_gone_failure(job);
    sml_job_fail_locked(job, &failure, true);
  }
  pthread_mutex_unlock(&job->lock);
}

static void on_rank_gone(void *user, const struct sml_ctl_rank_gone *gone) {
  const struct sml_job_shard *shard = user;
  lose_rank(shard->job, gone);
}

/* A shard in a rank's process is lost with that rank, which may have done all that it had to do. */
static void lose_host(const struct sml_job_shard *shard, const char *detail) {
  struct sml_job *job = shard->job;
  struct sml_ctl_rank_gone gone = {
      .status = SML_ERR_RANK_LOST, .num_ranks = 1, .ranks = {(uint16_t)shard->process_rank}};
  snprintf(gone.detail, sizeof gone.detail, "rank %u is gone, and with it its share of the sums: %.180s",
           shard->process_rank, detail);
  lose_rank(job, &gone);
  pthread_mutex_lock(&job->lock);
  if (job->oldest != NULL || job->state == SML_JOB_JOINING) {
    struct sml_ctl_abort failure = sml_job_failure(SML_ERR_RANK_LOST, "%s", gone.detail);
    failure.ranks[failure.num_ranks++] = (uint16_t)shard->process_rank;
    sml_job_fail_locked(job, &failure, true);
  }
  pthread_mutex_unlock(&job->lock);
}

/* What one aggregator says of the job, its others must hear: each rank is with all of them. */
static void on_ended(void *user, const struct sml_ctl_abort *cause) {
  const struct sml_job_shard *shard = user;
  struct sml_ctl_abort failure = *cause;
  if (failure.status == SML_ERR_AGGREGATOR_LOST) record(shard->job, SML_TRACE_AGGREGATOR_LOST, 0, 0);
  if (shard->process_rank != SML_NO_PROCESS_RANK && failure.status == SML_ERR_AGGREGATOR_LOST) {
    lose_host(shard, failure.detail);
    return;
  }
  if (sml_rejoin_try(shard->job, &failure, sml_clock_ns())) return;
  pthread_mutex_lock(&shard->job->lock);
  sml_job_add_unsent_locked(shard->job, sml_clock_ns(), &failure); /* what others blame this rank for may be that */
  sml_job_fail_locked(shard->job, &failure, shard->job->num_shards > 1);
  pthread_mutex_unlock(&shard->job->lock);
}

static void on_closed(void *user) {
  const struct sml_job_shard *shard = user;
  struct sml_job *job = shard->job;
  if (++job->num_closed < job->num_shards) return;
  sml_job_lanes_close(&job->lanes);
  sml_job_dump_if_wanted(job);
  pthread_mutex_lock(&job->lock);
  job->is_closed = true;
  pthread_cond_broadcast(&job->changed);
  pthread_mutex_unlock(&job->lock); /* the job may be gone from here on */
}

static void fill_progress(void *user, struct sml_member_progress *progress) {
  const struct sml_job_shard *shard = user;
  struct sml_job *job = shard->job;
  pthread_mutex_lock(&job->lock);
  progress->operations_submitted = job->operations_submitted;
  progress->operations_completed = sml_job_first_unfinished_locked(job);
  progress->num_packets = sml_job_lanes_count_packets(&job->lanes, shard->index);
  pthread_mutex_unlock(&job->lock);
}

static void on_heartbeat(void *user, const struct sml_ctl_heartbeat *heartbeat) {
  struct sml_job *job = ((const struct sml_job_shard *)user)->job;
  pthread_mutex_lock(&job->lock);
  sml_member_retry_on_confirmed(&job->retry, heartbeat->operations_completed, sml_job_first_unfinished_locked(job));
  sml_retained_drop_confirmed(job);
  if (job->is_lingering) pthread_cond_broadcast(&job->changed);
  pthread_mutex_unlock(&job->lock);
}

static void on_reported(void *user, const struct sml_ctl_report *report) {
  struct sml_job_shard *shard = user;
  struct sml_job *job = shard->job;
  pthread_mutex_lock(&job->lock);
  shard->report = *report;
  shard->has_reported = true;
  pthread_cond_broadcast(&job->changed); /* for sml_job_abort */
  pthread_mutex_unlock(&job->lock);
}

static void on_silent(void *user, uint64_t since_ns) {
  struct sml_job_shard *shard = user;
  struct sml_job *job = shard->job;
  const struct sml_member_options *member = &shard->session.member.options;
  char text[96] = "nothing", own[32] = "";
  pthread_mutex_lock(&job->lock);
  shard->silent_since_ns = since_ns;
  sml_member_retry_on_silent(&job->retry, since_ns);
  if (job->oldest != NULL) sml_operation_describe(job->oldest, text, sizeof text);
  pthread_mutex_unlock(&job->lock);
  if (shard->process_rank != SML_NO_PROCESS_RANK) snprintf(own, sizeof own, " with rank %u", shard->process_rank);
  sml_job_log(job, SML_LIB_LOG_WARN,
              "the aggregator at %s is late: silent for %.1f s, it is stopped or cut off, and is lost%s after %.4g s "
              "(the lease); %s waits for it",
              member->aggregator, (double)(sml_clock_ns() - since_ns) / 1e9, own,
              (double)member->join.lease_ns / 1e9, text);
}

static void on_heard(void *user, uint64_t since_ns) {
  struct sml_job_shard *shard = user;
  const uint64_t now_ns = sml_clock_ns();
  pthread_mutex_lock(&shard->job->lock);
  shard->silent_since_ns = 0;
  sml_rejoin_note_heard_locked(shard->job, now_ns);
  pthread_mutex_unlock(&shard->job->lock);
  sml_job_log(shard->job, SML_LIB_LOG_WARN, "the aggregator at %s is heard again after %.1f s",
              shard->session.member.options.aggregator, (double)(now_ns - since_ns) / 1e9);
}

/* ---- deadlines ---- */

static void time_out(struct sml_job *job, const struct sml_operation *op, uint64_t deadline_ns, uint64_t now_ns) {
  char text[96];
  if (op->is_batch) op = sml_batch_first_due(op->members); /* whose deadline it is */
  sml_operation_describe(op, text, sizeof text);
  struct sml_ctl_abort failure =
      sml_job_failure(SML_ERR_TIMEOUT, "%s timed out on rank %u after %.4g s: ", text, job->rank,
                      (double)(deadline_ns - op->submitted_ns) / 1e9);
  sml_job_add_lateness_locked(job, sml_max_u64(now_ns, deadline_ns), &failure);
  fail_at_locked(job, &failure, op->engine.plan.number, true);
}

/* It waits for its own caller. */
static void time_out_noted(struct sml_job *job, const struct sml_operation *op) {
  const struct sml_ctl_abort failure =
      sml_job_failure(SML_ERR_TIMEOUT, "an operation (%llu elements) timed out on rank %u after %.4g s: its batch was "
                      "not ended there; call sml_batch_end()", (unsigned long long)op->engine.plan.num_elems,
                      job->rank, (double)(op->deadline_ns - op->submitted_ns) / 1e9);
  sml_job_fail_locked(job, &failure, true);
}

static void warn(struct sml_job *job, struct sml_operation *op, uint64_t now_ns) {
  char text[96];
  sml_operation_describe(op, text, sizeof text);
  struct sml_ctl_abort lateness = {.num_ranks = 0};
  sml_job_add_lateness_locked(job, now_ns, &lateness);
  sml_job_log(job, SML_LIB_LOG_WARN, "%s has waited %.0f s: %s", text,
              (double)(now_ns - op->submitted_ns) / 1e9, lateness.detail);
  op->was_warned = true;
  sml_job_record_locked(job, (struct sml_record){.event = SML_TRACE_OPERATION_DELAYED, .value = op->engine.plan.number},
                        now_ns);
}

static bool has_stale_error_reply(const struct sml_job *job, uint64_t now_ns) {
  struct sml_lane_snapshot s;
  uint32_t lane;
  if (!sml_job_lanes_find_waiting(&job->lanes, &lane, &s)) return false;
  return s.has_error_reply && now_ns >= s.error_reply_ns + ERROR_REPLY_GRACE_NS;
}

/* While there is no aggregator, in a job with retry, deadlines stand still: they are moved afterwards. */
static uint64_t deadline_of(const struct sml_job *job, const struct sml_operation *op) {
  struct sml_method_wait wait;
  job->method->ops->wait(job->method, &wait);
  if (wait.kind == SML_WAIT_LEAD)
    /* It is late itself, and knows for whom. */
    return op->deadline_ns + sml_min_u64(LEAD_GRACE_NS, SML_NEVER - 1 - op->deadline_ns);
  return job->state == SML_JOB_REJOINING || job->retry.silent_since_ns != 0 ? op->last_deadline_ns : op->deadline_ns;
}

/* Returns when to look again. */
static uint64_t check_operations(struct sml_job *job, uint64_t now_ns) {
  const struct sml_operation *noted = sml_batch_first_noted_due_locked(job);
  uint64_t deadline_ns = noted != NULL ? noted->deadline_ns : SML_NEVER;
  if (job->state == SML_JOB_FAILED) return SML_NEVER;
  if (deadline_ns <= now_ns) {
    time_out_noted(job, noted);
    return SML_NEVER;
  }
  if (job->oldest == NULL) return deadline_ns;
  for (struct sml_operation *op = job->oldest; op; op = op->next) {
    if (deadline_of(job, op) <= now_ns) {
      time_out(job, op, deadline_of(job, op), now_ns);
      return SML_NEVER;
    }
    deadline_ns = sml_min_u64(deadline_ns,
                              sml_job_ask_before_locked(job, op->submitted_ns, deadline_of(job, op), now_ns));
  }
  struct sml_operation *oldest = job->oldest;
  const uint64_t warn_ns = oldest->submitted_ns + WARN_NS;
  if (oldest->was_warned) return deadline_ns;
  if (now_ns < warn_ns)
    return sml_min_u64(deadline_ns, sml_job_ask_before_locked(job, oldest->submitted_ns, warn_ns, now_ns));
  warn(job, oldest, now_ns);
  return deadline_ns;
}

/* ---- each pass ---- */

static void send_abort(struct sml_job *job) {
  struct sml_ctl_message m = {.kind = SML_CTL_ABORT, .u.abort = {.status = job->error.status}};
  m.u.abort.num_ranks = job->error.num_ranks;
  for (uint32_t i = 0; i < job->error.num_ranks; i++) m.u.abort.ranks[i] = (uint16_t)job->error.ranks[i];
  memcpy(m.u.abort.detail, job->error.detail, job->told_detail_bytes);
  for (uint32_t s = 0; s < job->num_shards; s++)
    if (job->shards[s].session.member.state >= SML_MEMBER_PROBING)
      sml_session_send(&job->shards[s].session, &m); /* else nobody listens yet */
}

static void ask_for_epoch(struct sml_job *job) {
  if (job->has_gone_rank) {
    const struct sml_ctl_abort failure = sml_job_gone_failure(job);
    sml_job_fail_locked(job, &failure, true);
    return;
  }
  job->state = SML_JOB_RENEWING;
  sml_job_record_locked(job, (struct sml_record){.event = SML_TRACE_EPOCH_ENDED, .value = job->start.epoch},
                        sml_clock_ns());
  for (uint32_t s = 0; s < job->num_shards; s++) {
    const struct sml_ctl_message m = {.kind = SML_CTL_EPOCH, .u.epoch = {job->shards[s].start.epoch}};
    sml_session_send(&job->shards[s].session, &m);
  }
}

/* The aggregator is there, but not the one that had the job. */
static void check_error_replies(struct sml_job *job, uint64_t now_ns) {
  pthread_mutex_lock(&job->lock);
  const bool is_stale = job->oldest != NULL && has_stale_error_reply(job, now_ns);
  pthread_mutex_unlock(&job->lock);
  if (!is_stale) return;
  struct sml_ctl_abort failure = sml_job_failure(
      SML_ERR_AGGREGATOR_LOST, "the aggregator no longer knows job '%s': it was restarted", job->name);
  if (!sml_rejoin_try(job, &failure, now_ns)) fail(job, &failure, true);
}

static uint64_t on_tick(void *user, uint64_t now_ns) {
  struct sml_job_shard *shard = user;
  struct sml_job *job = shard->job;
  check_error_replies(job, now_ns);
  sml_job_dump_if_wanted(job);
  pthread_mutex_lock(&job->lock);
  const uint64_t deadline_ns = check_operations(job, now_ns);
  if (job->state == SML_JOB_DRAINING && job->num_pushed == 0) ask_for_epoch(job);
  if (job->is_lingering && !shard->has_told_last) {
    sml_member_hasten_heartbeat(&shard->session.member);
    shard->has_told_last = true;
  }
  if (job->wants_reports) {
    sml_job_ask_locked(job, now_ns);
    job->wants_reports = false;
    pthread_cond_broadcast(&job->changed); /* for sml_job_abort */
  }
  if (job->wants_abort) {
    send_abort(job);
    job->wants_abort = false;
    pthread_cond_broadcast(&job->changed); /* for sml_job_abort */
  }
  if (job->state == SML_JOB_FAILED && shard->session.member.state < SML_MEMBER_RUNNING)
    sml_member_give_up(&shard->session.member);
  if (job->wants_leave) sml_member_leave(&shard->session.member, now_ns);
  pthread_mutex_unlock(&job->lock);
  return deadline_ns;
}

const struct sml_session_events sml_job_events = {.started = on_started,
                                                  .ended = on_ended,
                                                  .rank_gone = on_rank_gone,
                                                  .fill_progress = fill_progress,
                                                  .heartbeat = on_heartbeat,
                                                  .reported = on_reported,
                                                  .silent = on_silent,
                                                  .heard = on_heard,
                                                  .tick = on_tick,
                                                  .closed = on_closed};
