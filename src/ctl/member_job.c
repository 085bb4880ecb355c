/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/member_job.h"

#include <stdarg.h>
#include <stdio.h>

#include "ctl/member_start.h"

/* ---- operations ---- */

void sml_member_job_insert(struct sml_member_job *j, struct sml_member_operation *op) {
  struct sml_member_operation *before = j->newest;
  while (before != NULL && before->number > op->number) before = before->prev;
  op->prev = before;
  op->next = before != NULL ? before->next : j->oldest;
  *(op->prev != NULL ? &op->prev->next : &j->oldest) = op;
  *(op->next != NULL ? &op->next->prev : &j->newest) = op;
  if (j->first_waiting == op->next) j->first_waiting = op;
}

void sml_member_job_remove(struct sml_member_job *j, struct sml_member_operation *op) {
  *(op->prev != NULL ? &op->prev->next : &j->oldest) = op->next;
  *(op->next != NULL ? &op->next->prev : &j->newest) = op->prev;
  if (j->first_waiting == op) j->first_waiting = op->next;
}

void sml_member_job_reserve(struct sml_member_job *j, struct sml_member_reservation *r, uint64_t num_numbers) {
  struct sml_member_reservation **at = &j->reserved;
  while (*at != NULL) at = &(*at)->next;
  *at = r;
  *r = (struct sml_member_reservation){.number = j->next_number, .end = j->next_number + num_numbers};
  j->next_number = r->end;
}

uint64_t sml_member_job_take_reserved(struct sml_member_job *j, struct sml_member_reservation *r) {
  SML_ASSERT(j->phase != SML_MEMBER_HAS_FAILED && r->number < r->end);
  struct sml_member_reservation **at = &j->reserved;
  while (*at != r) at = &(*at)->next;
  if (r->number + 1 == r->end) *at = r->next;
  return r->number++;
}

struct sml_member_operation *sml_member_job_next(const struct sml_member_job *j, uint32_t max_begun) {
  struct sml_member_operation *op = j->first_waiting;
  if (j->phase != SML_MEMBER_IS_RUNNING || j->num_begun >= max_begun || op == NULL) return NULL;
  return j->reserved == NULL || op->number < j->reserved->number ? op : NULL;
}

void sml_member_job_begin(struct sml_member_job *j, struct sml_member_operation *op) {
  SML_ASSERT(op == j->first_waiting && !op->is_begun);
  op->is_begun = true;
  j->num_begun++;
  j->first_waiting = op->next;
}

bool sml_member_job_end(struct sml_member_job *j, struct sml_member_operation *op, bool is_ok) {
  SML_ASSERT(op->is_begun && j->num_begun > 0);
  op->is_begun = false;
  j->num_begun--;
  if (!is_ok && j->phase == SML_MEMBER_IS_REJOINING) return false;
  sml_member_job_remove(j, op);
  return true;
}

uint64_t sml_member_job_first_unfinished(const struct sml_member_job *j) {
  const struct sml_member_operation *op = j->oldest;
  while (op != NULL && op->is_replay) op = op->next;
  const uint64_t first = op != NULL ? op->number : j->next_number;
  return j->reserved != NULL ? sml_min_u64(first, j->reserved->number) : first;
}

/* ---- failing ---- */

struct sml_ctl_abort sml_member_failure(sml_status status, const char *format, ...) {
  struct sml_ctl_abort failure = {.status = status};
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(failure.detail, sizeof failure.detail, format, arguments);
  va_end(arguments);
  return failure;
}

bool sml_member_job_fail(struct sml_member_job *j, const struct sml_ctl_abort *failure, uint64_t operation) {
  if (j->phase == SML_MEMBER_HAS_FAILED) return false;
  j->error = (sml_error){.struct_bytes = sizeof j->error,
                         .status = (sml_status)failure->status,
                         .num_ranks = failure->num_ranks,
                         .operation = operation};
  for (uint32_t i = 0; i < failure->num_ranks; i++) j->error.ranks[i] = failure->ranks[i];
  memcpy(j->error.detail, failure->detail, sizeof j->error.detail);
  j->phase = SML_MEMBER_HAS_FAILED;
  j->reserved = NULL;
  return true;
}

static enum sml_member_step fail(struct sml_ctl_abort *failure, struct sml_ctl_abort made) {
  *failure = made;
  return SML_MEMBER_STEP_FAIL;
}

/* ---- ranks that are gone ---- */

/* Those of the first message about it. */
static enum sml_member_step fail_for_gone(const struct sml_member_job *j, struct sml_ctl_abort *failure) {
  *failure = sml_member_failure(SML_ERR_RANK_LOST, "%s", j->gone.detail);
  failure->num_ranks = sml_min_u32(j->gone.num_ranks, SML_CTL_MAX_RANKS);
  memcpy(failure->ranks, j->gone.ranks, failure->num_ranks * sizeof failure->ranks[0]);
  return SML_MEMBER_STEP_FAIL;
}

struct sml_ctl_abort sml_member_job_lost_failure(const struct sml_member_job *j, uint32_t rank) {
  struct sml_ctl_abort failure = j->has_gone_rank && j->gone.ranks[0] == rank
                                     ? sml_member_failure(SML_ERR_RANK_LOST, "%s", j->gone.detail)
                                     : sml_member_failure(SML_ERR_RANK_LOST, "rank %u is gone", rank);
  failure.ranks[failure.num_ranks++] = (uint16_t)rank;
  return failure;
}

/* Not an error yet: the rank may have done all that it had to do. The next call fails, and so does a new epoch, which
 * needs every rank. A host takes its share of outstanding sums with it. */
enum sml_member_step sml_member_job_on_gone(struct sml_member_job *j, const struct sml_ctl_rank_gone *gone,
                                            bool is_host, struct sml_ctl_abort *failure) {
  if (!j->has_gone_rank) {
    j->gone = *gone;
    if (gone->detail[0] == 0) snprintf(j->gone.detail, sizeof j->gone.detail, "rank %u is gone", gone->ranks[0]);
    j->has_gone_rank = true;
  }
  if (j->phase == SML_MEMBER_IS_RENEWING) return fail_for_gone(j, failure);
  if (!is_host || (j->oldest == NULL && j->phase != SML_MEMBER_IS_JOINING)) return SML_MEMBER_STEP_NONE;
  *failure = sml_member_failure(SML_ERR_RANK_LOST, "%s", gone->detail);
  failure->ranks[failure->num_ranks++] = gone->ranks[0];
  return SML_MEMBER_STEP_FAIL;
}

bool sml_member_job_is_host_lost(const struct sml_member_job *j, uint32_t s, const struct sml_ctl_abort *failure,
                                 struct sml_ctl_rank_gone *gone) {
  const uint32_t rank = j->shards[s].process_rank;
  const bool is_loss = failure->status == SML_ERR_AGGREGATOR_LOST && failure->num_ranks == 0; /* else a rank says so */
  if (rank == SML_MEMBER_OF_DAEMON || !is_loss) return false;
  *gone = (struct sml_ctl_rank_gone){.status = SML_ERR_RANK_LOST, .num_ranks = 1, .ranks = {(uint16_t)rank}};
  snprintf(gone->detail, sizeof gone->detail, "rank %u is gone, and with it its share of the sums: %.180s", rank,
           failure->detail);
  return true;
}

enum sml_member_step sml_member_job_on_call(const struct sml_member_job *j, struct sml_ctl_abort *failure) {
  const bool is_refused = j->has_gone_rank && j->phase != SML_MEMBER_HAS_FAILED;
  return is_refused ? fail_for_gone(j, failure) : SML_MEMBER_STEP_NONE;
}

/* ---- starting ---- */

static bool have_all_started(const struct sml_member_job *j) {
  uint32_t s = 0;
  while (s < j->num_shards && j->shards[s].is_started) s++;
  return s == j->num_shards;
}

static void follow(struct sml_member_job *j, const struct sml_ctl_start *start) {
  j->start.epoch = start->epoch;
  j->start.first_phase = start->first_phase;
  j->start.first_chunk = start->first_chunk;
}

/* The last shard has started: the job begins, or goes on. */
static enum sml_member_step start_all(struct sml_member_job *j, struct sml_ctl_abort *failure) {
  struct sml_ctl_start start;
  const struct sml_ctl_start *starts[SML_MAX_SHARDS];
  for (uint32_t s = 0; s < j->num_shards; s++) {
    starts[s] = &j->shards[s].start;
    j->shards[s].is_started = false;
  }
  const char *fault = sml_member_combine_starts(starts, j->num_shards, &start);
  if (fault != NULL) return fail(failure, sml_member_failure(SML_ERR_PROTOCOL, "%s", fault));
  if (j->phase == SML_MEMBER_IS_JOINING) j->start = start;
  else follow(j, &start);
  return j->phase == SML_MEMBER_IS_JOINING ? SML_MEMBER_STEP_OPEN : SML_MEMBER_STEP_RESTART;
}

/* A job that rejoins has one aggregator. */
static enum sml_member_step follow_successor(struct sml_member_job *j, const struct sml_ctl_start *start,
                                             struct sml_ctl_abort *failure) {
  const char *fault = sml_member_retry_find_fault(&j->retry, &j->start, start, sml_member_job_first_unfinished(j));
  if (fault != NULL)
    return fail(failure, sml_member_failure(SML_ERR_AGGREGATOR_LOST,
                                            "after the aggregator was lost its successor came, but %s", fault));
  j->shards[0].start = *start;
  follow(j, start);
  return SML_MEMBER_STEP_OPEN;
}

enum sml_member_step sml_member_job_on_started(struct sml_member_job *j, uint32_t s, const struct sml_ctl_start *start,
                                               struct sml_ctl_abort *failure) {
  struct sml_member_shard *shard = &j->shards[s];
  const bool is_due =
      !shard->is_started && (j->phase == SML_MEMBER_IS_JOINING ||
                             (j->phase == SML_MEMBER_IS_RENEWING && sml_member_is_same_shape(&shard->start, start)));
  shard->silent_since_ns = 0;
  if (j->phase == SML_MEMBER_HAS_FAILED) return SML_MEMBER_STEP_NONE;
  if (j->phase == SML_MEMBER_IS_REJOINING) return follow_successor(j, start, failure);
  if (!is_due)
    return fail(failure, sml_member_failure(SML_ERR_PROTOCOL, "the aggregator started an epoch that nobody asked for"));
  shard->start = *start;
  shard->is_started = true;
  return have_all_started(j) ? start_all(j, failure) : SML_MEMBER_STEP_NONE;
}

static void shift_deadlines(struct sml_member_job *j, uint64_t stood_ns, uint64_t now_ns) {
  for (struct sml_member_operation *op = j->oldest; op; op = op->next)
    op->deadline_ns =
        sml_member_retry_deadline(op->submitted_ns, op->deadline_ns, op->last_deadline_ns, stood_ns, now_ns);
}

enum sml_member_step sml_member_job_on_opened(struct sml_member_job *j, bool is_open, uint64_t now_ns,
                                              struct sml_ctl_abort *failure) {
  const bool is_rejoining = j->phase == SML_MEMBER_IS_REJOINING;
  if (j->phase == SML_MEMBER_HAS_FAILED) return SML_MEMBER_STEP_NONE;
  if (!is_open)
    return fail(failure, sml_member_failure(SML_ERR_NO_MEMORY, "rank %u has no memory for %u slots", j->rank,
                                            j->start.num_slots));
  if (is_rejoining) shift_deadlines(j, sml_member_retry_on_started(&j->retry, &j->shards[0].start), now_ns);
  j->phase = SML_MEMBER_IS_RUNNING;
  return is_rejoining ? SML_MEMBER_STEP_REPLAY : SML_MEMBER_STEP_GO_ON;
}

/* ---- epochs that are full ---- */

enum sml_member_step sml_member_job_on_full(struct sml_member_job *j, bool is_new, struct sml_ctl_abort *failure) {
  if (is_new)
    return fail(failure,
                sml_member_failure(SML_ERR_PROTOCOL,
                                   "the aggregator's new epoch begins at phase %u and has no room for an operation",
                                   j->start.first_phase));
  j->phase = SML_MEMBER_IS_DRAINING;
  return SML_MEMBER_STEP_NONE;
}

enum sml_member_step sml_member_job_on_pass(struct sml_member_job *j, struct sml_ctl_abort *failure) {
  if (j->phase != SML_MEMBER_IS_DRAINING || j->num_begun > 0) return SML_MEMBER_STEP_NONE;
  if (j->has_gone_rank) return fail_for_gone(j, failure);
  j->phase = SML_MEMBER_IS_RENEWING;
  return SML_MEMBER_STEP_RENEW;
}

/* ---- aggregators that are lost, or late ---- */

enum sml_member_step sml_member_job_on_lost(struct sml_member_job *j, struct sml_ctl_abort *failure, uint64_t now_ns,
                                            bool *is_first, uint64_t *patience_ns) {
  const struct sml_member *member = j->shards[0].member;
  const struct sml_member_situation situation = {.phase = j->phase,
                                                 .has_gone_rank = j->has_gone_rank,
                                                 .was_welcomed = member->was_welcomed,
                                                 .join_deadline_ns = member->options.deadline_ns};
  switch (sml_member_retry_on_lost(&j->retry, &situation, failure, now_ns, is_first, patience_ns)) {
    case SML_MEMBER_JOINS_ANEW: return SML_MEMBER_STEP_JOIN_ANEW;
    case SML_MEMBER_REJOINS: j->phase = SML_MEMBER_IS_REJOINING; return SML_MEMBER_STEP_REJOIN;
    case SML_MEMBER_ENDS: break;
  }
  return j->num_shards > 1 ? SML_MEMBER_STEP_FAIL : SML_MEMBER_STEP_END;
}

void sml_member_job_resume(struct sml_member_job *j, bool has_no_result, uint64_t now_ns) {
  if (j->phase != SML_MEMBER_IS_REJOINING) return; /* a caller aborted it meanwhile */
  SML_ASSERT(j->num_begun == 0);
  j->first_waiting = j->oldest;
  const struct sml_member_resume resume =
      sml_member_retry_resume(&j->retry, &j->start, sml_member_job_first_unfinished(j), has_no_result);
  sml_member_rejoin(j->shards[0].member, &resume, now_ns);
}

void sml_member_job_on_confirmed(struct sml_member_job *j, uint64_t completed) {
  sml_member_retry_on_confirmed(&j->retry, completed, sml_member_job_first_unfinished(j));
}

void sml_member_job_on_silent(struct sml_member_job *j, uint32_t s, uint64_t since_ns) {
  j->shards[s].silent_since_ns = since_ns;
  sml_member_retry_on_silent(&j->retry, since_ns);
}

void sml_member_job_on_heard(struct sml_member_job *j, uint32_t s, uint64_t now_ns) {
  const uint64_t stood_ns = sml_member_retry_on_heard(&j->retry);
  j->shards[s].silent_since_ns = 0;
  if (stood_ns != 0) shift_deadlines(j, stood_ns, now_ns);
}

void sml_member_job_on_reported(struct sml_member_job *j, uint32_t s, const struct sml_ctl_report *report) {
  j->shards[s].report = *report;
  j->shards[s].has_reported = true;
}
