/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/job_host.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "lib/operation.h"

/* How long an operation has nobody who drives it before the helper does: a caller who waits for it is cheaper. */
#define GRACE_NS (100 * SML_NS_PER_US)
#define MAX_TICK_NS (2 * SML_NS_PER_MS) /* between looks while callers drive */
#define IDLE_TICKS 16u                  /* without an operation, before the helper sleeps */
#define LARGE_ELEMS (UINT64_C(64) << 10) /* waking the helper costs little beside it */

/* ---- one host or several ---- */

static uint32_t find_absent(const struct sml_job_host *h, bool only_gone, uint32_t *out, uint32_t room) {
  return h->relay != NULL ? sml_host_relay_find_absent(h->relay, only_gone, out, room)
                          : sml_host_group_find_absent(h->group, only_gone, out, room);
}

static void begin(struct sml_job_host *h, const struct sml_host_operation *operation) {
  if (h->relay != NULL) sml_host_relay_begin(h->relay, operation);
  else sml_host_group_begin(h->group, operation);
}

static enum sml_host_verdict advance(struct sml_job_host *h) {
  return h->relay != NULL ? sml_host_relay_advance(h->relay) : sml_host_group_advance(h->group);
}

static enum sml_host_wait await(struct sml_job_host *h, uint64_t deadline_ns) {
  return h->relay != NULL ? sml_host_relay_await(h->relay, deadline_ns)
                          : sml_host_group_await(h->group, deadline_ns);
}

/* ---- failures ---- */

static void fail_for_mismatch_locked(struct sml_job *job, const struct sml_operation *op) {
  const struct sml_job_host *h = job->host;
  uint32_t a, b;
  char text[96];
  if (h->relay != NULL) sml_host_relay_mismatch(h->relay, &a, &b);
  else sml_host_group_mismatch(h->group, &a, &b);
  a = h->ranks[a];
  b = h->ranks[b];
  sml_operation_describe(op, text, sizeof text);
  struct sml_ctl_abort failure =
      sml_job_failure(SML_ERR_MISMATCH,
                      "ranks %u and %u called different operations (rank %u: %s): count, type, reduction, key "
                      "and order must be equal on all ranks",
                      a, b, job->rank, text);
  failure.ranks[failure.num_ranks++] = (uint16_t)a;
  failure.ranks[failure.num_ranks++] = (uint16_t)b;
  sml_job_fail_locked(job, &failure, true);
}

static void fail_for_lost_locked(struct sml_job *job) {
  const struct sml_job_host *h = job->host;
  uint32_t index = 0;
  find_absent(h, true, &index, 1);
  const uint32_t rank = h->ranks[index];
  struct sml_ctl_abort failure = job->has_gone_rank && job->gone.ranks[0] == rank
                                     ? sml_job_failure(SML_ERR_RANK_LOST, "%s", job->gone.detail)
                                     : sml_job_failure(SML_ERR_RANK_LOST, "rank %u is gone", rank);
  failure.ranks[failure.num_ranks++] = (uint16_t)rank;
  sml_job_fail_locked(job, &failure, true);
}

/* ---- driving ---- */

static struct sml_host_operation make_host_operation(const struct sml_job_host *h, const struct sml_operation *op) {
  const struct sml_operation_plan *plan = &op->engine.plan;
  return (struct sml_host_operation){.plan = {.number = plan->number,
                                              .num_elems = plan->num_elems,
                                              .key = plan->key,
                                              .type = plan->type,
                                              .is_average = plan->reduction == SML_AVG,
                                              .shape = {.has_exponents = plan->has_exponents,
                                                        .elem_lanes = plan->elem_lanes,
                                                        .lane_elems = plan->lane_elems}},
                                     .in = op->engine.in,
                                     .out = op->engine.out,
                                     .piece_elems = h->relay != NULL ? sml_job_piece_elems(h->job, plan) : 0};
}

enum outcome { ENDED, MISMATCHED, ABORTED, LOST, LATER };

static bool has_no_piece(const void *host) {
  const struct sml_job_host *h = host;
  return atomic_load_explicit(&h->pieces.num_in_flight, memory_order_relaxed) == 0; /* advance() looks for itself */
}

/* The lead of a small operation that is in the network runs the engine until it is back; one pass if the deadline is
 * 0. A job that fails ends it. */
static void run_engine(struct sml_job_host *h, const struct sml_operation *op, uint64_t deadline_ns) {
  if (h->relay == NULL || has_no_piece(h) || !sml_job_pieces_run_small(h->job, &op->engine.plan)) return;
  if (deadline_ns == 0) {
    (void)sml_engines_try_run(h->job->engines, 0);
    return;
  }
  sml_engines_drive(h->job->engines, 0, has_no_piece, h, deadline_ns);
  if (!has_no_piece(h)) sml_engines_want(h->job->engines, 0);
}

/* Without the lock. */
static enum outcome work(struct sml_job_host *h, const struct sml_operation *op, bool is_new,
                         uint64_t deadline_ns) {
  if (is_new) {
    const struct sml_host_operation operation = make_host_operation(h, op);
    begin(h, &operation);
  }
  if (deadline_ns == 0) run_engine(h, op, 0);
  for (;;) {
    const enum sml_host_verdict verdict = advance(h);
    if (verdict == SML_HOST_ENDED) {
      if (op->is_batch) sml_batch_store(op);
      return ENDED;
    }
    if (verdict == SML_HOST_MISMATCH) return MISMATCHED;
    if (deadline_ns == 0) return LATER;
    run_engine(h, op, deadline_ns);
    const enum sml_host_wait wait = await(h, deadline_ns);
    if (wait == SML_HOST_DEADLINE) return LATER;
    if (wait != SML_HOST_READY) return wait == SML_HOST_ABORTED ? ABORTED : LOST;
  }
}

static bool is_over(const struct sml_job *job, const struct sml_operation *until) {
  return until == NULL ? job->oldest == NULL
                       : atomic_load_explicit(&until->status, memory_order_acquire) != SML_IN_PROGRESS;
}

/* The next one in order, if there is none. */
static bool take_next_locked(struct sml_job *job) {
  struct sml_operation *op = job->first_waiting;
  if (op == NULL) return false;
  if (job->host->relay != NULL && !sml_job_take_chunks_locked(job, op)) return false;
  op->is_pushed = true;
  job->num_pushed++;
  job->first_waiting = op->next;
  job->host->current = op;
  return true;
}

static bool end_locked(struct sml_job *job, enum outcome outcome) {
  struct sml_job_host *h = job->host;
  struct sml_operation *op = h->current;
  if (outcome == LATER) return false;
  if (outcome == ENDED) {
    h->current = NULL;
    sml_operation_end_locked(job, op, SML_OK);
    return true;
  }
  if (outcome == MISMATCHED) fail_for_mismatch_locked(job, op);
  if (outcome == LOST) fail_for_lost_locked(job);
  return true;
}

/* Somebody else may have to go on. If nobody waits: the helper, at once where that is worth a thread's waking. A small
 * operation has time until the helper's next look: its caller, who just got the one before, most likely waits for it
 * next, and would have to sleep while the helper has it. */
static void hand_over_locked(struct sml_job *job) {
  bool has_waiter = false, has_large = false;
  for (const struct sml_operation *op = job->oldest; op && !has_waiter; op = op->next) {
    has_waiter = sml_operation_is_awaited_locked(op);
    has_large = has_large || op->engine.plan.num_elems >= LARGE_ELEMS;
  }
  if (has_waiter) {
    pthread_cond_broadcast(&job->changed);
  } else if (has_large) {
    job->host->is_wanted_now = true;
    pthread_cond_signal(&job->host->wanted);
  }
}

bool sml_job_host_drive_locked(struct sml_job *job, const struct sml_operation *until, uint64_t deadline_ns) {
  struct sml_job_host *h = job->host;
  if (h->is_driving || job->state != SML_JOB_RUNNING) return false;
  h->is_driving = true;
  h->num_drives++;
  bool goes_on = true;
  while (goes_on && job->state == SML_JOB_RUNNING && !is_over(job, until)) {
    const bool is_new = h->current == NULL;
    if (is_new && !take_next_locked(job)) break;
    struct sml_operation *op = h->current;
    pthread_mutex_unlock(&job->lock);
    const enum outcome outcome = work(h, op, is_new, deadline_ns);
    pthread_mutex_lock(&job->lock);
    goes_on = end_locked(job, outcome);
  }
  h->is_driving = false;
  if (job->state == SML_JOB_FAILED) sml_job_host_fail_locked(job);
  if (job->oldest != NULL && job->state == SML_JOB_RUNNING && deadline_ns != 0) hand_over_locked(job);
  return true;
}

void sml_job_host_fail_locked(struct sml_job *job) {
  struct sml_job_host *h = job->host;
  if (h->relay != NULL) sml_host_relay_abort(h->relay);
  else sml_host_group_abort(h->group);
  if (h->is_driving || h->current == NULL || h->pieces.num_in_flight > 0) return;
  struct sml_operation *op = h->current;
  h->current = NULL;
  sml_operation_end_locked(job, op, job->error.status);
}

void sml_job_host_set_gone_locked(struct sml_job *job, uint32_t rank) {
  struct sml_job_host *h = job->host;
  uint32_t index = 0;
  while (index < h->num_ranks && h->ranks[index] != rank) index++;
  if (index == h->num_ranks) return; /* of another host: the aggregator knows who needs it */
  if (h->relay != NULL) sml_host_relay_set_gone(h->relay, index);
  else sml_host_group_set_gone(h->group, index);
}

void sml_job_host_resume_locked(struct sml_job *job) {
  if (job->oldest != NULL) hand_over_locked(job);
}

void sml_job_host_piece_ended_locked(struct sml_job *job, uint32_t slot, sml_status status) {
  struct sml_job_host *h = job->host;
  h->pieces.num_in_flight--;
  if (status != SML_OK && job->state != SML_JOB_FAILED) {
    char text[96];
    sml_operation_describe(h->current, text, sizeof text);
    const struct sml_ctl_abort failure =
        sml_job_failure(status, "%s failed on rank %u: %s", text, job->rank, sml_status_string(status));
    sml_job_fail_locked(job, &failure, true);
  }
  if (job->state == SML_JOB_FAILED) sml_job_host_fail_locked(job);
  else sml_host_relay_done(h->relay, slot);
}

enum sml_job_host_wait sml_job_host_waits_for_locked(const struct sml_job *job) {
  const struct sml_job_host *h = job->host;
  uint32_t index;
  if (h->current == NULL) return SML_JOB_HOST_IDLE;
  if (h->relay == NULL) return SML_JOB_HOST_RANKS;
  const uint32_t num_absent = find_absent(h, false, &index, 1);
  if (num_absent == 0) return SML_JOB_HOST_NETWORK;
  return num_absent == 1 && index == 0 ? SML_JOB_HOST_LEAD : SML_JOB_HOST_RANKS;
}

bool sml_job_host_find_absent_locked(const struct sml_job *job, uint32_t *ranks_out, uint32_t room,
                                     uint32_t *num_absent_out) {
  if (job->host->current == NULL) return false;
  *num_absent_out = find_absent(job->host, false, ranks_out, room);
  for (uint32_t i = 0; i < sml_min_u32(room, *num_absent_out); i++) ranks_out[i] = job->host->ranks[ranks_out[i]];
  return true;
}

void sml_job_host_add_stats_locked(const struct sml_job *job, sml_stats *stats) {
  const struct sml_job_host *h = job->host;
  stats->num_local_ranks = h->num_ranks > 1 ? h->num_ranks : 0;
  if (h->group != NULL) stats->chunks_completed += sml_host_group_num_blocks(h->group);
}

/* ---- the helper ---- */

void sml_job_host_submitted_locked(struct sml_job *job, const struct sml_operation *op) {
  struct sml_job_host *h = job->host;
  if (h->is_asleep || op->engine.plan.num_elems >= LARGE_ELEMS) pthread_cond_signal(&h->wanted);
}

static void sleep_for(struct sml_job_host *h, uint64_t ns) {
  const uint64_t until_ns = sml_clock_ns() + ns;
  const struct timespec until = {.tv_sec = (time_t)(until_ns / SML_NS_PER_S),
                                 .tv_nsec = (long)(until_ns % SML_NS_PER_S)};
  pthread_cond_timedwait(&h->wanted, &h->job->lock, &until);
}

static void *help(void *argument) {
  struct sml_job_host *h = argument;
  struct sml_job *job = h->job;
  uint64_t tick_ns = GRACE_NS;
  uint32_t num_idle = IDLE_TICKS;
  pthread_mutex_lock(&job->lock);
  while (!h->should_stop) {
    const uint64_t num_drives = h->num_drives;
    if (num_idle >= IDLE_TICKS && job->oldest == NULL) {
      h->is_asleep = true;
      pthread_cond_wait(&h->wanted, &job->lock);
      h->is_asleep = false;
      num_idle = 0;
      tick_ns = GRACE_NS;
      continue;
    }
    if (!h->is_wanted_now) sleep_for(h, tick_ns);
    tick_ns = sml_min_u64(2 * tick_ns, MAX_TICK_NS);
    num_idle = job->oldest == NULL && num_drives == h->num_drives ? num_idle + 1 : 0;
    /* Undriven, and for longer than a caller needs who has just submitted. */
    if (job->oldest != NULL && !h->is_driving && (h->is_wanted_now || num_drives == h->num_drives)) {
      tick_ns = GRACE_NS;
      sml_job_host_drive_locked(job, NULL, SML_NEVER);
    }
    h->is_wanted_now = false;
  }
  pthread_mutex_unlock(&job->lock);
  return NULL;
}

/* ---- life ---- */

static bool has_failed(void *user) {
  struct sml_job *job = user;
  pthread_mutex_lock(&job->lock);
  const bool failed = job->state == SML_JOB_FAILED;
  pthread_mutex_unlock(&job->lock);
  return failed;
}

static struct sml_ctl_abort describe_failure(const struct sml_job *job, enum sml_host_met met, uint32_t missing,
                                             const char *error) {
  if (met != SML_HOST_TOO_LATE)
    return sml_job_failure(SML_ERR_SYSTEM, "shared memory on rank %u: %s", job->rank, error);
  struct sml_ctl_abort failure =
      sml_job_failure(SML_ERR_TIMEOUT,
                      "rank %u did not meet rank %u to share memory: is it stopped? "
                      "SWITCHML_SHARED_MEMORY=0 does without",
                      missing, job->rank);
  failure.ranks[failure.num_ranks++] = (uint16_t)missing;
  return failure;
}

/* What only the ranks of this job and epoch know; nothing of it is secret from the user they all run as. */
static void make_secret(const struct sml_job *job, uint64_t secret_out[2]) {
  const struct sml_ctl_welcome *w = &job->shards[0].session.member.welcome;
  const struct sml_key salt = {.k0 = w->salt[0], .k1 = w->salt[1]};
  const uint32_t contributor = job->start.is_one_host ? 0 : sml_contributor_of(&job->start, job->rank);
  const uint32_t which[3] = {job->start.epoch, w->job, contributor};
  const struct sml_key key = sml_key_derive(&salt, "switchml host", which, sizeof which);
  secret_out[0] = key.k0;
  secret_out[1] = key.k1;
}

static bool start_helper(struct sml_job_host *h) {
  sigset_t all, before;
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&h->wanted, &attributes);
  pthread_condattr_destroy(&attributes);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&h->helper, NULL, help, h);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error == 0)
    pthread_setname_np(h->helper, "sml-host");
  else
    pthread_cond_destroy(&h->wanted);
  return error == 0;
}

static void free_host(struct sml_job_host *h) {
  sml_host_group_close(h->group);
  sml_host_relay_close(h->relay);
  sml_job_pieces_free(&h->pieces);
  free(h->ranks);
  free(h);
}

/* Who is on this host. */
static bool find_ranks(struct sml_job_host *h) {
  const struct sml_job *job = h->job;
  const struct sml_ctl_start *start = &job->start;
  const uint32_t contributor = sml_contributor_of(start, job->rank);
  h->num_ranks = start->is_one_host ? job->world_size : sml_contributor_ranks(start, contributor, NULL, 0);
  h->ranks = calloc(h->num_ranks, sizeof *h->ranks);
  if (h->ranks == NULL) return false;
  if (!start->is_one_host) sml_contributor_ranks(start, contributor, h->ranks, h->num_ranks);
  for (uint32_t i = 0; start->is_one_host && i < h->num_ranks; i++) h->ranks[i] = (uint16_t)i;
  while (h->ranks[h->index] != job->rank) h->index++;
  return true;
}

/* How many elements of four bytes an area has room for. A block's elements are twice their lanes at most. */
static uint64_t piece_elems(const struct sml_job_host *h) {
  return sml_max_u64(h->piece_bytes, 2 * (uint64_t)h->block_chunks * h->job->start.chunk_bytes) / 4;
}

/* NULL: no memory. */
static struct sml_job_host *make_plain(struct sml_job *job) {
  struct sml_job_host *h = calloc(1, sizeof *h);
  if (h == NULL) return NULL;
  h->job = job;
  h->block_chunks = sml_max_u32(sml_job_block_chunks(&job->start), 1);
  bool is_complete = find_ranks(h);
  if (is_complete && !job->start.is_one_host) {
    h->piece_bytes = sml_job_piece_bytes(&job->start, job->world_size);
    is_complete = h->index != 0 || sml_job_pieces_init(&h->pieces, job, piece_elems(h));
  }
  if (is_complete) return h;
  free_host(h);
  return NULL;
}

/* Meets the others. */
static bool meet(struct sml_job_host *h, uint64_t deadline_ns, struct sml_ctl_abort *failure) {
  struct sml_job *job = h->job;
  struct sml_host_meeting meeting = {.num_ranks = h->num_ranks,
                                     .index = h->index,
                                     .deadline_ns = deadline_ns,
                                     .should_stop = has_failed,
                                     .user = job};
  enum sml_host_met met;
  uint32_t missing;
  char error[SML_HOST_ERROR_BYTES];
  make_secret(job, meeting.secret);
  if (job->start.is_one_host) {
    const struct sml_host_group_options options = {.meeting = meeting,
                                                   .block_bytes = h->block_chunks * job->start.chunk_bytes,
                                                   .block_chunks = h->block_chunks,
                                                   .kernels = job->context->settings.kernels};
    h->group = sml_host_group_open(&options, &met, &missing, error);
  } else {
    const struct sml_host_relay_options options = {
        .meeting = meeting, .piece_elems = piece_elems(h), .submit = sml_job_pieces_submit, .user = job};
    h->relay = sml_host_relay_open(&options, &met, &missing, error);
  }
  if (h->group != NULL || h->relay != NULL) return true;
  *failure = describe_failure(job, met, h->ranks[missing], error);
  return false;
}

static struct sml_job_host *make_host(struct sml_job *job, uint64_t deadline_ns, struct sml_ctl_abort *failure) {
  *failure = sml_job_failure(SML_ERR_NO_MEMORY, "rank %u has no memory for sharing memory", job->rank);
  struct sml_job_host *h = make_plain(job);
  if (h == NULL) return NULL;
  if (meet(h, deadline_ns, failure)) {
    if (start_helper(h)) return h;
    *failure = sml_job_failure(SML_ERR_SYSTEM, "rank %u cannot start a thread", job->rank);
  }
  free_host(h);
  return NULL;
}

sml_status sml_job_host_open(struct sml_job *job, uint64_t deadline_ns) {
  struct sml_ctl_abort failure;
  struct sml_job_host *h = make_host(job, deadline_ns, &failure);
  pthread_mutex_lock(&job->lock);
  job->host = h;
  if (h == NULL) sml_job_fail_locked(job, &failure, true);
  const sml_status status = job->state == SML_JOB_FAILED ? sml_job_report_locked(job) : SML_OK;
  for (uint32_t i = 0; h != NULL && job->has_gone_rank && i < job->gone.num_ranks; i++)
    if (job->gone.ranks[i] < job->world_size) sml_job_host_set_gone_locked(job, job->gone.ranks[i]);
  pthread_mutex_unlock(&job->lock);
  return status;
}

void sml_job_host_close(struct sml_job *job) {
  struct sml_job_host *h = job->host;
  if (h == NULL) return;
  pthread_mutex_lock(&job->lock);
  h->should_stop = true;
  pthread_cond_signal(&h->wanted);
  pthread_mutex_unlock(&job->lock);
  pthread_join(h->helper, NULL);
  pthread_cond_destroy(&h->wanted);
  free_host(h);
  job->host = NULL;
}
