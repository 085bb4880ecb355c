/* SPDX-License-Identifier: Apache-2.0
 * What happens to a job on the control thread: it starts, moves to a new epoch, hears of lost ranks, misses deadlines,
 * loses its aggregator and rejoins, fails. ctl/member_job.h decides; here that is carried out. At the end: what its
 * method asks and tells.
 *
 * A job with retry rejoins so that operations end as if the aggregator had not been lost. Lanes are closed, so that no
 * thread touches a buffer; the session joins a successor; then everything from the first operation that some rank lacks
 * is done again, from the kept inputs. Operations that this rank has completed are done again for the others only. */
#include <errno.h>
#include <stdio.h>

#include "core/stream.h"
#include "lib/job.h"
#include "lib/operation.h"
#include "lib/trace.h"

/* ---- failing ---- */

sml_status sml_job_report_locked(struct sml_job *job) {
  sml_job_await_dump_locked(job);
  if (job->state.phase != SML_MEMBER_HAS_FAILED) return SML_OK;
  return sml_fail(job->state.error.status, "%s", job->state.error.detail);
}

static void fail_at_locked(struct sml_job *job, const struct sml_ctl_abort *failure, uint64_t operation,
                           bool tells_others) {
  if (!sml_member_job_fail(&job->state, failure, operation)) return;
  sml_job_record_locked(job,
                        (struct sml_record){.event = SML_TRACE_JOB_FAILED,
                                            .rank = failure->num_ranks > 0 ? failure->ranks[0] : UINT16_MAX,
                                            .chunk = failure->num_ranks,
                                            .value = (uint64_t)(int64_t)failure->status},
                        sml_clock_ns());
  sml_job_want_dump_locked(job);
  job->wants_abort = tells_others;
  sml_job_log(job, SML_LIB_LOG_INFO, "failed: %s", job->state.error.detail);
  sml_operations_end_waiting_locked(job);
  if (job->method->ops->fail != NULL) job->method->ops->fail(job->method, job->state.error.status);
  pthread_cond_broadcast(&job->changed);
  if (job->engines != NULL) sml_control_wake(&job->context->control);
}

void sml_job_fail_locked(struct sml_job *job, const struct sml_ctl_abort *failure, bool tells_others) {
  const uint64_t operation = job->state.oldest != NULL ? job->state.oldest->number : job->state.next_number;
  fail_at_locked(job, failure, operation, tells_others);
}

/* With job->lock held: what ends the job does. True: it does not. */
static bool goes_on_locked(struct sml_job *job, enum sml_member_step step, const struct sml_ctl_abort *failure) {
  if (step != SML_MEMBER_STEP_FAIL && step != SML_MEMBER_STEP_END) return true;
  sml_job_fail_locked(job, failure, step == SML_MEMBER_STEP_FAIL);
  return false;
}

sml_status sml_job_refuse_locked(struct sml_job *job) {
  struct sml_ctl_abort failure;
  (void)goes_on_locked(job, sml_member_job_on_call(&job->state, &failure), &failure);
  return sml_job_report_locked(job);
}

/* ---- what it waits for ---- */

static const char *what_it_means(int error) {
  switch (error) {
    case EMSGSIZE: return " (the MTU is smaller than when the job was joined)";
    case EPERM: return " (a firewall of this host)";
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ENETDOWN: return " (a route or an interface is gone)";
    case EAGAIN:
    case ENOBUFS: return " (more than its interface takes)";
    default: return "";
  }
}

void sml_job_look_locked(const struct sml_job *job, struct sml_member_sight *sight) {
  struct sml_unsent last;
  memset(sight, 0, sizeof *sight);
  job->method->ops->wait(job->method, &sight->wait);
  sml_job_lanes_find_waiting(&job->lanes, sight);
  if (job->engines == NULL) return;
  sight->num_unsent = sml_engines_unsent(job->engines, &last);
  sight->unsent_ns = last.at_ns;
  if (last.error == 0) return;
  snprintf(sight->unsent_why, sizeof sight->unsent_why, "%s%s", strerror(last.error), what_it_means(last.error));
}

/* ---- starting ---- */

static void record_locked(struct sml_job *job, enum sml_trace_event event, uint32_t rank, uint64_t value) {
  sml_job_record_locked(
      job, (struct sml_record){.event = (uint16_t)event, .rank = (uint16_t)rank, .value = value}, sml_clock_ns());
}

static void record_start_locked(struct sml_job *job) {
  const struct sml_ctl_start *start = &job->state.start;
  for (uint32_t s = 0; s < job->state.num_shards; s++)
    atomic_store_explicit(&job->trace_numbers[s], job->shards[s].session.member.welcome.job, memory_order_relaxed);
  sml_job_record_locked(job,
                        (struct sml_record){.event = SML_TRACE_JOB_JOINED,
                                            .slot = (uint16_t)start->num_slots,
                                            .rank = (uint16_t)job->state.rank,
                                            .phase = start->chunk_bytes,
                                            .chunk = job->state.world_size,
                                            .value = start->epoch},
                        sml_clock_ns());
}

static void go_on_locked(struct sml_job *job, bool is_replay) {
  record_start_locked(job);
  if (is_replay) sml_retained_drop_confirmed(&job->retained, &job->state.retry);
  if (is_replay && !sml_operations_add_replays_locked(job, sml_clock_ns())) {
    const struct sml_ctl_abort failure = sml_member_failure(
        SML_ERR_NO_MEMORY, "rank %u has no memory to do operations again", job->state.rank);
    sml_job_fail_locked(job, &failure, true);
  }
  sml_operations_push_locked(job);
  if (job->state.phase == SML_MEMBER_IS_RUNNING && job->method->ops->resume != NULL)
    job->method->ops->resume(job->method);
  pthread_cond_broadcast(&job->changed);
}

static void log_start(const struct sml_job *job, enum sml_member_phase before) {
  const struct sml_member_job *j = &job->state;
  if (before == SML_MEMBER_IS_JOINING) sml_job_log_start(job);
  else if (before == SML_MEMBER_IS_RENEWING) sml_job_log(job, SML_LIB_LOG_INFO, "goes on in epoch %u", j->start.epoch);
  else
    sml_job_log(job, SML_LIB_LOG_WARN, "goes on after %.3g s at the aggregator's successor, from operation %llu",
                sml_seconds(sml_clock_ns() - j->retry.lost_ns), (unsigned long long)j->shards[0].start.first_operation);
}

/* Nothing is outstanding and nothing is pushed until then. */
static void open_lanes(struct sml_job *job, enum sml_member_step step) {
  struct sml_ctl_abort failure;
  bool is_open = true;
  if (step == SML_MEMBER_STEP_OPEN) is_open = sml_job_lanes_open(&job->lanes, &job->state.start);
  else sml_job_lanes_restart(&job->lanes, &job->state.start);
  pthread_mutex_lock(&job->lock);
  const enum sml_member_phase before = job->state.phase;
  const enum sml_member_step next = sml_member_job_on_opened(&job->state, is_open, sml_clock_ns(), &failure);
  const bool goes_on = goes_on_locked(job, next, &failure) && next != SML_MEMBER_STEP_NONE;
  if (goes_on) go_on_locked(job, next == SML_MEMBER_STEP_REPLAY);
  pthread_mutex_unlock(&job->lock);
  if (goes_on) log_start(job, before);
}

static void on_started(struct sml_job_shard *shard, const struct sml_ctl_start *start) {
  struct sml_job *job = shard->job;
  struct sml_ctl_abort failure;
  pthread_mutex_lock(&job->lock);
  const enum sml_member_step step = sml_member_job_on_started(&job->state, shard->index, start, &failure);
  /* The first START's, for good: callers read the shape without the lock. */
  if (step == SML_MEMBER_STEP_OPEN && job->state.phase == SML_MEMBER_IS_JOINING) {
    const struct sml_ctl_start *all = &job->state.start;
    job->shape.formats.chunk_bytes = all->chunk_bytes;
    /* With retry this may be a successor's start for us, and not for others, whom the one before told another time. */
    job->shape.rtt_ns = (all->features & SML_FEATURE_RETRY) == 0 ? all->rtt_ns : 0;
    job->shape.formats.is_of_switch = sml_ctl_packet_lanes(all) != 0;
    /* Ranks that contribute as one have larger lanes. */
    job->shape.has_narrow_lanes = (all->features & SML_FEATURE_NARROW) != 0 && all->num_ranks == 0;
  }
  const bool goes_on = goes_on_locked(job, step, &failure);
  pthread_mutex_unlock(&job->lock);
  if (goes_on && step != SML_MEMBER_STEP_NONE) open_lanes(job, step);
}

/* ---- losses ---- */

static void on_gone(struct sml_job *job, const struct sml_ctl_rank_gone *gone, bool is_host) {
  struct sml_ctl_abort failure;
  pthread_mutex_lock(&job->lock);
  const enum sml_member_step step = sml_member_job_on_gone(&job->state, gone, is_host, &failure);
  for (uint32_t i = 0; i < gone->num_ranks; i++) {
    record_locked(job, SML_TRACE_RANK_LOST, gone->ranks[i], job->state.start.epoch);
    if (gone->ranks[i] < job->state.world_size && job->method->ops->set_gone != NULL)
      job->method->ops->set_gone(job->method, gone->ranks[i]);
  }
  (void)goes_on_locked(job, step, &failure);
  if (job->is_lingering) pthread_cond_broadcast(&job->changed);
  pthread_mutex_unlock(&job->lock);
}

/* Nor of a stage of an exact operation, by which later ones are cut, though the operation itself has not completed. */
static bool has_no_result(const struct sml_job *job) {
  return job->operations_completed == 0 && sml_member_inputs_next_replay(&job->retained.listed, NULL) == NULL;
}

/* All operations wait again, those of a replay are gone. */
static void rejoin(struct sml_job *job, bool is_first, uint64_t now_ns) {
  if (is_first) sml_job_lanes_close(&job->lanes);
  pthread_mutex_lock(&job->lock);
  if (is_first) sml_operations_drop_replays_locked(job);
  sml_member_job_resume(&job->state, has_no_result(job), now_ns);
  pthread_mutex_unlock(&job->lock);
}

static void lose_aggregator(struct sml_job *job, struct sml_ctl_abort failure, bool is_told) {
  struct sml_member_sight sight;
  bool is_first;
  uint64_t patience_ns;
  const uint64_t now_ns = sml_clock_ns();
  pthread_mutex_lock(&job->lock);
  enum sml_member_step step = sml_member_job_on_lost(&job->state, &failure, now_ns, &is_first, &patience_ns);
  if (step == SML_MEMBER_STEP_FAIL || step == SML_MEMBER_STEP_END) {
    sml_job_look_locked(job, &sight);
    /* What others blame this rank for may be what its system says. */
    if (is_told) sml_member_late_add_unsent(&job->state, &sight, now_ns, &failure);
    else step = SML_MEMBER_STEP_FAIL;
  }
  const bool goes_on = goes_on_locked(job, step, &failure);
  pthread_mutex_unlock(&job->lock);
  if (!goes_on) return;
  if (is_first)
    sml_job_log(job, SML_LIB_LOG_WARN, "%s (trying for %.4g s to join it again)", failure.detail,
                sml_seconds(patience_ns));
  if (step == SML_MEMBER_STEP_JOIN_ANEW) sml_member_join_anew(&job->shards[0].session.member, now_ns);
  else rejoin(job, is_first, now_ns);
}

/* What one aggregator says of the job, its others must hear: each rank is with all of them. */
static void on_ended(struct sml_job_shard *shard) {
  struct sml_job *job = shard->job;
  const struct sml_ctl_abort *failure = &shard->session.member.failure;
  struct sml_ctl_rank_gone gone;
  if (failure->status == SML_ERR_AGGREGATOR_LOST) {
    pthread_mutex_lock(&job->lock);
    record_locked(job, SML_TRACE_AGGREGATOR_LOST, 0, 0);
    pthread_mutex_unlock(&job->lock);
  }
  if (sml_member_job_is_host_lost(&job->state, shard->index, failure, &gone)) on_gone(job, &gone, true);
  else lose_aggregator(job, *failure, true);
}

static void on_closed(void *user) {
  const struct sml_job_shard *shard = user;
  struct sml_job *job = shard->job;
  if (++job->num_closed < job->state.num_shards) return;
  sml_job_lanes_close(&job->lanes);
  sml_job_dump_if_wanted(job);
  pthread_mutex_lock(&job->lock);
  job->is_closed = true;
  pthread_cond_broadcast(&job->changed);
  pthread_mutex_unlock(&job->lock); /* the job may be gone from here on */
}

/* ---- news ---- */

/* The hash of that operation, the first that is not completed here; 0: it is not called yet. */
static uint64_t hash_first_unfinished(const struct sml_job *job, uint64_t number) {
  const struct sml_member_operation *order = job->state.oldest;
  while (order != NULL && order->is_replay) order = order->next;
  return order != NULL && order->number == number ? sml_tag_base(&sml_operation_of(order)->engine.plan, 0, 0) : 0;
}

static void fill_progress(void *user, struct sml_member_progress *progress) {
  const struct sml_job_shard *shard = user;
  struct sml_job *job = shard->job;
  pthread_mutex_lock(&job->lock);
  progress->operations_submitted = job->state.next_number;
  progress->operations_completed = sml_member_job_first_unfinished(&job->state);
  progress->called = hash_first_unfinished(job, progress->operations_completed);
  progress->num_packets = sml_job_lanes_count_packets(&job->lanes, shard->index);
  pthread_mutex_unlock(&job->lock);
}

static void on_heartbeat(struct sml_job *job, const struct sml_ctl_heartbeat *heartbeat) {
  pthread_mutex_lock(&job->lock);
  sml_member_job_on_confirmed(&job->state, heartbeat->operations_completed);
  sml_retained_drop_confirmed(&job->retained, &job->state.retry);
  if (job->is_lingering) pthread_cond_broadcast(&job->changed);
  pthread_mutex_unlock(&job->lock);
}

static void on_reported(struct sml_job_shard *shard, const struct sml_ctl_report *report) {
  struct sml_job *job = shard->job;
  pthread_mutex_lock(&job->lock);
  sml_member_job_on_reported(&job->state, shard->index, report);
  pthread_cond_broadcast(&job->changed); /* for sml_job_abort */
  pthread_mutex_unlock(&job->lock);
}

static void on_silent(struct sml_job_shard *shard, uint64_t since_ns) {
  struct sml_job *job = shard->job;
  const struct sml_member_options *member = &shard->session.member.options;
  const uint32_t process_rank = job->state.shards[shard->index].process_rank;
  char text[96] = "nothing", own[32] = "";
  pthread_mutex_lock(&job->lock);
  sml_member_job_on_silent(&job->state, shard->index, since_ns);
  if (job->state.oldest != NULL) sml_operation_describe(sml_operation_of(job->state.oldest), text, sizeof text);
  pthread_mutex_unlock(&job->lock);
  if (process_rank != SML_MEMBER_OF_DAEMON) snprintf(own, sizeof own, " with rank %u", process_rank);
  sml_job_log(job, SML_LIB_LOG_WARN,
              "the aggregator at %s is late: silent for %.1f s, it is stopped or cut off, and is lost%s after %.4g s "
              "(the lease); %s waits for it",
              member->aggregator, sml_seconds(sml_clock_ns() - since_ns), own, sml_seconds(member->join.lease_ns),
              text);
}

static void on_heard(struct sml_job_shard *shard, uint64_t since_ns) {
  struct sml_job *job = shard->job;
  const uint64_t now_ns = sml_clock_ns();
  pthread_mutex_lock(&job->lock);
  sml_member_job_on_heard(&job->state, shard->index, now_ns);
  pthread_mutex_unlock(&job->lock);
  sml_job_log(job, SML_LIB_LOG_WARN, "the aggregator at %s is heard again after %.1f s",
              shard->session.member.options.aggregator, sml_seconds(now_ns - since_ns));
}

static void on_rank_gone(struct sml_job_shard *shard, struct sml_ctl_rank_gone gone) {
  sml_member_add_stop(&shard->session.member, sml_clock_ns(), gone.detail);
  on_gone(shard->job, &gone, false);
}

static void on_told(void *user, const struct sml_member_effect *e) {
  struct sml_job_shard *shard = user;
  if (e->kind == SML_MEMBER_STARTED) on_started(shard, &e->message->u.start);
  else if (e->kind == SML_MEMBER_ENDED) on_ended(shard);
  else if (e->kind == SML_MEMBER_RANK_GONE) on_rank_gone(shard, e->message->u.rank_gone);
  else if (e->kind == SML_MEMBER_HEARTBEAT) on_heartbeat(shard->job, &e->message->u.heartbeat);
  else if (e->kind == SML_MEMBER_REPORTED) on_reported(shard, &e->message->u.report);
  else if (e->kind == SML_MEMBER_SILENT) on_silent(shard, e->since_ns);
  else on_heard(shard, e->since_ns);
}

/* ---- deadlines ---- */

static void time_out(struct sml_job *job, const struct sml_member_late *late, const struct sml_member_sight *sight,
                     uint64_t now_ns) {
  char text[96];
  const struct sml_operation *op = sml_operation_of(late->operation);
  if (op->members != NULL) op = sml_batch_first_due(op->members); /* whose deadline it is */
  sml_operation_describe(op, text, sizeof text);
  const struct sml_ctl_abort failure =
      sml_member_late_failure(&job->state, late, text, op->order.submitted_ns, sight, now_ns);
  fail_at_locked(job, &failure, op->order.number, true);
}

/* It waits for its own caller. */
static void time_out_noted(struct sml_job *job, const struct sml_operation *op) {
  const struct sml_ctl_abort failure = sml_member_failure(
      SML_ERR_TIMEOUT,
      "an operation (%llu elements) timed out on rank %u after %.4g s: its batch was not ended there; call "
      "sml_batch_end()",
      (unsigned long long)op->engine.plan.num_elems, job->state.rank,
      sml_seconds(op->order.deadline_ns - op->order.submitted_ns));
  sml_job_fail_locked(job, &failure, true);
}

static void warn(struct sml_job *job, const struct sml_operation *op, const struct sml_member_sight *sight,
                 uint64_t now_ns) {
  char text[96];
  sml_operation_describe(op, text, sizeof text);
  struct sml_ctl_abort lateness = {.num_ranks = 0};
  sml_member_late_explain(&job->state, sight, now_ns, &lateness);
  sml_job_log(job, SML_LIB_LOG_WARN, "%s has waited %.0f s: %s", text,
              (double)(now_ns - op->order.submitted_ns) / 1e9, lateness.detail);
  record_locked(job, SML_TRACE_OPERATION_DELAYED, 0, op->order.number);
}

/* Returns when to look again. */
static uint64_t check_operations(struct sml_job *job, const struct sml_member_sight *sight, uint64_t now_ns) {
  const struct sml_operation *noted = sml_batch_first_noted_due_locked(&job->batch);
  const struct sml_member_late late =
      sml_member_late_check(&job->state, sight, noted != NULL ? &noted->order : NULL, now_ns);
  if (late.has_asked) sml_control_wake(&job->context->control); /* sessions that this pass has served already */
  if (late.kind == SML_MEMBER_LATE_IN_BATCH) time_out_noted(job, noted);
  else if (late.kind == SML_MEMBER_LATE_TIMES_OUT) time_out(job, &late, sight, now_ns);
  else if (late.kind == SML_MEMBER_LATE_WARNS) warn(job, sml_operation_of(late.operation), sight, now_ns);
  return job->state.phase == SML_MEMBER_HAS_FAILED ? SML_NEVER : late.look_ns;
}

/* ---- each pass ---- */

static void send_abort(struct sml_job *job) {
  const sml_error *error = &job->state.error;
  struct sml_ctl_message m = {.kind = SML_CTL_ABORT, .u.abort = {.status = error->status}};
  m.u.abort.num_ranks = error->num_ranks;
  for (uint32_t i = 0; i < error->num_ranks; i++) m.u.abort.ranks[i] = (uint16_t)error->ranks[i];
  memcpy(m.u.abort.detail, error->detail, job->told_detail_bytes);
  for (uint32_t s = 0; s < job->state.num_shards; s++)
    if (job->shards[s].session.member.state >= SML_MEMBER_PROBING)
      sml_session_send(&job->shards[s].session, &m); /* else nobody listens yet */
}

static void ask_for_epoch(struct sml_job *job) {
  record_locked(job, SML_TRACE_EPOCH_ENDED, 0, job->state.start.epoch);
  for (uint32_t s = 0; s < job->state.num_shards; s++) {
    const struct sml_ctl_message m = {.kind = SML_CTL_EPOCH, .u.epoch = {job->state.shards[s].start.epoch}};
    sml_session_send(&job->shards[s].session, &m);
  }
}

static void serve_abort(struct sml_job *job) {
  if (!job->wants_abort) return;
  send_abort(job);
  job->wants_abort = false;
  pthread_cond_broadcast(&job->changed); /* for sml_job_abort */
}

/* What callers want of this thread. */
static void serve_wants(struct sml_job_shard *shard, uint64_t now_ns) {
  struct sml_job *job = shard->job;
  struct sml_member *member = &shard->session.member;
  if (job->is_lingering && !shard->has_told_last) {
    sml_member_hasten_heartbeat(member);
    shard->has_told_last = true;
  }
  if (job->wants_reports) {
    sml_member_late_ask(&job->state, now_ns);
    sml_control_wake(&job->context->control);
  }
  if (job->wants_reports) pthread_cond_broadcast(&job->changed);
  job->wants_reports = false;
  serve_abort(job);
  if (job->state.phase == SML_MEMBER_HAS_FAILED && member->state < SML_MEMBER_RUNNING) sml_member_give_up(member);
  if (job->wants_leave) sml_member_leave(member, now_ns);
}

static uint64_t on_tick(void *user, uint64_t now_ns) {
  struct sml_job_shard *shard = user;
  struct sml_job *job = shard->job;
  struct sml_member_sight sight = {.has_slot = false};
  struct sml_ctl_abort failure;
  pthread_mutex_lock(&job->lock);
  if (job->state.oldest != NULL) sml_job_look_locked(job, &sight);
  const bool is_unknown = sml_member_late_is_unknown(&job->state, &sight, now_ns, &failure);
  serve_abort(job); /* before a trace is written: a disk may be slow */
  pthread_mutex_unlock(&job->lock);
  if (is_unknown) lose_aggregator(job, failure, false);
  sml_job_dump_if_wanted(job);
  pthread_mutex_lock(&job->lock);
  const uint64_t deadline_ns = check_operations(job, &sight, now_ns);
  const enum sml_member_step step = sml_member_job_on_pass(&job->state, &failure);
  if (goes_on_locked(job, step, &failure) && step == SML_MEMBER_STEP_RENEW) ask_for_epoch(job);
  serve_wants(shard, now_ns);
  pthread_mutex_unlock(&job->lock);
  return deadline_ns;
}

const struct sml_session_events sml_job_events = {
    .told = on_told, .fill_progress = fill_progress, .tick = on_tick, .closed = on_closed};

/* ---- the job, as its method sees it (method/method.h) ---- */

static bool is_awaited(const struct sml_operation *op) {
  bool has_waiter = op->num_waiters > 0;
  for (const struct sml_operation *m = op->members; m && !has_waiter; m = m->next_member)
    has_waiter = m->num_waiters > 0;
  return has_waiter;
}

static bool is_running(const void *owner) {
  const enum sml_member_phase phase = ((const struct sml_job *)owner)->state.phase;
  return phase == SML_MEMBER_IS_RUNNING || phase == SML_MEMBER_IS_DRAINING; /* what has room in the epoch ends in it */
}

static enum sml_owner_demand find_demand(const void *owner) {
  const struct sml_job *job = owner;
  enum sml_owner_demand demand = SML_DEMAND_NONE;
  for (const struct sml_member_operation *o = job->state.oldest; o; o = o->next) {
    const struct sml_operation *op = sml_operation_of(o);
    if (is_awaited(op)) return SML_DEMAND_AWAITED;
    const bool is_large = demand == SML_DEMAND_LARGE || op->engine.plan.num_elems >= SML_LARGE_ELEMS;
    demand = is_large ? SML_DEMAND_LARGE : SML_DEMAND_SMALL;
  }
  return demand;
}

static void wake_callers(void *owner) {
  pthread_cond_broadcast(&((struct sml_job *)owner)->changed);
}

static void store_sum(struct sml_engine_operation *engine) {
  struct sml_operation *op = (struct sml_operation *)engine;
  if (op->kind->summed != NULL) op->kind->summed(op);
}

static void end_for_method(void *owner, struct sml_engine_operation *engine, sml_status status) {
  sml_operation_end_locked(owner, (struct sml_operation *)engine, status);
}

static void fail_for_method(void *owner, const struct sml_ctl_abort *failure) {
  sml_job_fail_locked(owner, failure, true);
}

static void lose(void *owner, uint32_t rank) {
  struct sml_job *job = owner;
  const struct sml_ctl_abort failure = sml_member_job_lost_failure(&job->state, rank);
  sml_job_fail_locked(job, &failure, true);
}

static void describe_for_method(const struct sml_engine_operation *engine, char *text, size_t text_bytes) {
  sml_operation_describe((const struct sml_operation *)engine, text, text_bytes);
}

static uint64_t first_unfinished(const void *owner) {
  return sml_member_job_first_unfinished(&((const struct sml_job *)owner)->state);
}

static void describe_shard(const void *owner, uint32_t s, struct sml_job_lanes_shard *out) {
  const struct sml_job *job = owner;
  const struct sml_member_shard *shard = &job->state.shards[s];
  const struct sml_session *session = &job->shards[s].session;
  *out = (struct sml_job_lanes_shard){.start = &shard->start,
                                      .welcome = &session->member.welcome,
                                      .aggregator = session->aggregator,
                                      .aggregator_text = session->member.options.aggregator,
                                      .is_embedded = shard->process_rank != SML_MEMBER_OF_DAEMON};
  for (uint32_t l = 0; l < shard->start.num_lanes; l++) out->sources[l] = session->prober.lanes[l].hello.from;
  sml_session_seal(session, shard->start.epoch, shard->start.secret, &out->seal);
}

const struct sml_owner_ops sml_job_owner_ops = {.is_running = is_running,
                                               .demand = find_demand,
                                               .wake_callers = wake_callers,
                                               .summed = store_sum,
                                               .ended = end_for_method,
                                               .failed = fail_for_method,
                                               .lost = lose,
                                               .describe = describe_for_method,
                                               .first_unfinished = first_unfinished,
                                               .describe_shard = describe_shard};
