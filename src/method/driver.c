/* SPDX-License-Identifier: Apache-2.0 */
#include "method/driver.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/thread.h"
#include "ctl/contributors.h"

/* How long an operation has nobody who drives it before the helper does: a caller who waits for it is cheaper. */
#define GRACE_NS (100 * SML_NS_PER_US)
#define MAX_TICK_NS (2 * SML_NS_PER_MS) /* between looks while callers drive */
#define IDLE_TICKS 16u                  /* without an operation, before the helper sleeps */

static struct sml_driver *driver_of(struct sml_method *r) {
  return (struct sml_driver *)r;
}

/* ---- failures ---- */

static void fail_for_mismatch(const struct sml_driver *d) {
  const struct sml_owner_ops *ops = d->method.owner_ops;
  uint32_t a, b;
  char text[96];
  d->steps->mismatch(d, &a, &b);
  const uint16_t ranks[2] = {d->ranks[a], d->ranks[b]};
  ops->describe(sml_driver_current(d), text, sizeof text);
  sml_method_fail_owner(&d->method, SML_ERR_MISMATCH, ranks, 2,
                        "ranks %u and %u called different operations (rank %u: %s): count, type, reduction, key "
                        "and order must be equal on all ranks",
                        ranks[0], ranks[1], d->lanes->rank, text);
}

static void fail_for_lost(const struct sml_driver *d) {
  uint32_t index = 0;
  d->steps->find_absent(d, true, &index, 1);
  d->method.owner_ops->lost(d->method.owner, d->ranks[index]);
}

/* The oldest one. */
static void end_one(struct sml_driver *d, sml_status status) {
  struct sml_engine_operation *op = sml_driver_current(d);
  d->num_ended++;
  d->method.owner_ops->ended(d->method.owner, op, status); /* and it begins the next one */
}

/* Ends what was begun, if no thread and no engine is at it. */
static void end_failed(struct sml_driver *d) {
  if (d->is_driving || d->num_in_flight > 0) return;
  while (sml_driver_current(d) != NULL) end_one(d, d->failed_status);
}

void sml_driver_fail(struct sml_method *r, sml_status status) {
  struct sml_driver *d = driver_of(r);
  d->failed_status = status;
  d->steps->abort(d);
  end_failed(d);
}

/* ---- driving ---- */

enum outcome { ENDED, MISMATCHED, ABORTED, LOST, INTERRUPTED, LATER };

static void begin_steps(struct sml_driver *d, struct sml_engine_operation *op) {
  const struct sml_operation_plan *plan = &op->plan;
  struct sml_shm_operation operation = {.plan = {.number = plan->number,
                                                 .num_elems = plan->num_elems,
                                                 .key = plan->key,
                                                 .type = plan->type,
                                                 .reduction = plan->reduction,
                                                 .shape = sml_engine_shape(plan)},
                                        .in = op->in,
                                        .out = op->out,
                                        .cookie = op};
  if (d->steps->piece_elems != NULL) operation.piece_elems = d->steps->piece_elems(d, plan);
  d->steps->begin(d, &operation);
}

/* Without the lock. The operations from num_begun to num_taken are new. */
static enum outcome work(struct sml_driver *d, uint64_t num_begun, uint64_t num_taken, uint64_t deadline_ns) {
  for (uint64_t i = num_begun; i < num_taken; i++) begin_steps(d, d->operations[i % SML_DRIVER_MOST]);
  if (deadline_ns == 0 && d->steps->run != NULL) d->steps->run(d, 0);
  for (;;) {
    const enum sml_shm_verdict verdict = d->steps->advance(d);
    if (verdict == SML_SHM_ENDED) {
      d->method.owner_ops->summed(sml_driver_oldest(d));
      return ENDED;
    }
    if (verdict == SML_SHM_MISMATCH) return MISMATCHED;
    if (deadline_ns == 0) return LATER;
    if (atomic_exchange_explicit(&d->has_more, false, memory_order_relaxed)) return INTERRUPTED;
    if (d->steps->run != NULL) d->steps->run(d, deadline_ns);
    const enum sml_shm_wait wait = d->steps->await(d, deadline_ns);
    if (wait == SML_SHM_DEADLINE) return LATER;
    if (wait != SML_SHM_READY) return wait == SML_SHM_ABORTED ? ABORTED : LOST;
  }
}

/* Whether to go on. */
static bool end(struct sml_driver *d, enum outcome outcome) {
  if (outcome == LATER) return false;
  if (outcome == ENDED) end_one(d, SML_OK);
  if (outcome == MISMATCHED) fail_for_mismatch(d);
  if (outcome == LOST) fail_for_lost(d);
  return true;
}

/* Somebody else may have to go on. If nobody waits: the helper, at once where that is worth a thread's waking. A small
 * operation has time until the helper's next look: its caller, who just got the one before, most likely waits for it
 * next, and would have to sleep while the helper has it. */
static void hand_over(struct sml_driver *d) {
  const enum sml_owner_demand demand = d->method.owner_ops->demand(d->method.owner);
  if (demand == SML_DEMAND_AWAITED) {
    d->method.owner_ops->wake_callers(d->method.owner);
  } else if (demand == SML_DEMAND_LARGE) {
    d->is_wanted_now = true;
    pthread_cond_signal(&d->wanted);
  }
}

static bool is_running(const struct sml_driver *d) {
  return d->method.owner_ops->is_running(d->method.owner);
}

bool sml_driver_drive(struct sml_method *r, bool (*has_ended)(const void *argument), const void *argument,
                      uint64_t deadline_ns) {
  struct sml_driver *d = driver_of(r);
  if (d->is_driving || sml_driver_current(d) == NULL || !is_running(d)) return false;
  d->is_driving = true;
  d->num_drives++;
  bool goes_on = true;
  while (goes_on && sml_driver_current(d) != NULL && is_running(d) && !(has_ended != NULL && has_ended(argument))) {
    const uint64_t num_begun = d->num_begun, num_taken = d->num_begun = d->num_taken;
    atomic_store_explicit(&d->has_more, false, memory_order_relaxed);
    d->is_away = true;
    pthread_mutex_unlock(r->lock);
    const enum outcome outcome = work(d, num_begun, num_taken, deadline_ns);
    pthread_mutex_lock(r->lock);
    d->is_away = false;
    goes_on = end(d, outcome);
  }
  d->is_driving = false;
  if (d->failed_status != SML_OK) end_failed(d);
  else if (is_running(d) && deadline_ns != 0) hand_over(d);
  return true;
}

void sml_driver_begin(struct sml_method *r, struct sml_engine_operation *op, bool caller_runs) {
  struct sml_driver *d = driver_of(r);
  SML_ASSERT(d->num_taken - d->num_ended < SML_DRIVER_MOST);
  d->operations[d->num_taken++ % SML_DRIVER_MOST] = op;
  if (d->is_away && d->steps->interrupt != NULL) {
    atomic_store_explicit(&d->has_more, true, memory_order_relaxed);
    d->steps->interrupt(d);
  }
  const bool is_urgent = op->plan.num_elems >= SML_LARGE_ELEMS && !d->is_driving && !caller_runs;
  if (d->is_asleep || is_urgent) pthread_cond_signal(&d->wanted);
}

void sml_driver_set_gone(struct sml_method *r, uint32_t rank) {
  struct sml_driver *d = driver_of(r);
  uint32_t index = 0;
  while (index < d->num_ranks && d->ranks[index] != rank) index++;
  if (index < d->num_ranks) d->steps->set_gone(d, index); /* else the aggregator knows who needs it */
}

void sml_driver_resume(struct sml_method *r) {
  hand_over(driver_of(r));
}

uint32_t sml_driver_find_absent(const struct sml_driver *d, struct sml_member_wait *out) {
  out->num_absent = d->steps->find_absent(d, false, out->ranks, SML_CTL_MAX_RANKS);
  const uint32_t num_listed = sml_min_u32(SML_CTL_MAX_RANKS, out->num_absent);
  for (uint32_t i = 0; i < num_listed; i++) out->ranks[i] = d->ranks[out->ranks[i]];
  return out->num_absent;
}

/* ---- the helper ---- */

static void sleep_for(struct sml_driver *d, uint64_t ns) {
  const struct timespec until = sml_timespec(sml_clock_ns() + ns);
  pthread_cond_timedwait(&d->wanted, d->method.lock, &until);
}

static void *help(void *argument) {
  struct sml_driver *d = argument;
  uint64_t tick_ns = GRACE_NS;
  uint32_t num_idle = IDLE_TICKS;
  pthread_mutex_lock(d->method.lock);
  while (!d->should_stop) {
    const uint64_t num_drives = d->num_drives;
    if (num_idle >= IDLE_TICKS && sml_driver_current(d) == NULL) {
      d->is_asleep = true;
      pthread_cond_wait(&d->wanted, d->method.lock);
      d->is_asleep = false;
      num_idle = 0;
      tick_ns = GRACE_NS;
      continue;
    }
    if (!d->is_wanted_now) sleep_for(d, tick_ns);
    tick_ns = sml_min_u64(2 * tick_ns, MAX_TICK_NS);
    num_idle = sml_driver_current(d) == NULL && num_drives == d->num_drives ? num_idle + 1 : 0;
    /* Nobody has driven for longer than a caller needs that has just submitted. */
    if (sml_driver_current(d) != NULL && !d->is_driving && (d->is_wanted_now || num_drives == d->num_drives)) {
      tick_ns = GRACE_NS;
      sml_driver_drive(&d->method, NULL, NULL, SML_NEVER);
    }
    d->is_wanted_now = false;
  }
  pthread_mutex_unlock(d->method.lock);
  return NULL;
}

static bool start_helper(struct sml_driver *d) {
  sml_thread_init_cond(&d->wanted);
  if (sml_thread_start(&d->helper, "sml-host", help, d) == 0) return true;
  pthread_cond_destroy(&d->wanted);
  return false;
}

/* ---- life ---- */

static void fail_owner(const struct sml_driver_options *options, sml_status status, const uint16_t *rank,
                       const char *text) {
  pthread_mutex_lock(options->owner->lock);
  sml_method_fail_owner(options->owner, status, rank, rank != NULL, "%s", text);
  pthread_mutex_unlock(options->owner->lock);
}

static void fail_to_meet(const struct sml_driver *d, const struct sml_driver_options *options, enum sml_shm_met met,
                         uint32_t missing, const char *error) {
  const uint32_t rank = d->lanes->rank;
  const uint16_t missing_rank = d->ranks[missing];
  char text[SML_DETAIL_BYTES];
  if (met == SML_SHM_TOO_LATE)
    snprintf(text, sizeof text,
             "rank %u did not meet rank %u to share memory: is it stopped? SWITCHML_SHARED_MEMORY=0 does without",
             missing_rank, rank);
  else snprintf(text, sizeof text, "shared memory on rank %u: %s", rank, error);
  fail_owner(options, met == SML_SHM_TOO_LATE ? SML_ERR_TIMEOUT : SML_ERR_SYSTEM,
             met == SML_SHM_TOO_LATE ? &missing_rank : NULL, text);
}

/* What only the ranks of this job and epoch know; nothing of it is secret from the user they all run as. */
static void make_secret(const struct sml_driver *d, const struct sml_ctl_welcome *w, uint64_t secret_out[2]) {
  const struct sml_key salt = {.k0 = w->salt[0], .k1 = w->salt[1]};
  const uint32_t contributor = d->start->is_one_host ? 0 : sml_contributor_of(d->start, d->lanes->rank);
  const uint32_t which[3] = {d->start->epoch, w->job, contributor};
  const struct sml_key key = sml_key_derive(&salt, "switchml host", which, sizeof which);
  secret_out[0] = key.k0;
  secret_out[1] = key.k1;
}

/* Who is on this host. */
static bool find_ranks(struct sml_driver *d) {
  const struct sml_ctl_start *start = d->start;
  const uint32_t contributor = sml_contributor_of(start, d->lanes->rank);
  d->num_ranks = start->is_one_host ? d->lanes->world_size : sml_contributor_ranks(start, contributor, NULL, 0);
  d->ranks = calloc(d->num_ranks, sizeof *d->ranks);
  if (d->ranks == NULL) return false;
  if (!start->is_one_host) sml_contributor_ranks(start, contributor, d->ranks, d->num_ranks);
  for (uint32_t i = 0; start->is_one_host && i < d->num_ranks; i++) d->ranks[i] = (uint16_t)i;
  while (d->ranks[d->index] != d->lanes->rank) d->index++;
  return true;
}

static bool should_stop(void *user) {
  const struct sml_driver *d = user;
  pthread_mutex_lock(d->method.lock);
  const bool stops = !is_running(d);
  pthread_mutex_unlock(d->method.lock);
  return stops;
}

/* False: the owner knows why. */
static bool meet(struct sml_driver *d, const struct sml_driver_options *options) {
  struct sml_shm_meeting meeting = {.num_ranks = d->num_ranks,
                                    .index = d->index,
                                    .deadline_ns = options->deadline_ns,
                                    .should_stop = should_stop,
                                    .user = d};
  enum sml_shm_met met;
  uint32_t missing;
  char error[SML_SHM_ERROR_BYTES];
  make_secret(d, options->welcome, meeting.secret);
  if (d->steps->meet(d, &meeting, &met, &missing, error)) return true;
  fail_to_meet(d, options, met, missing, error);
  return false;
}

static void free_driver(struct sml_driver *d) {
  d->steps->close(d);
  free(d->ranks);
  free(d);
}

struct sml_method *sml_driver_open(struct sml_driver *d, const struct sml_driver_options *options) {
  char text[64];
  snprintf(text, sizeof text, "rank %u has no memory for sharing memory", options->lanes->rank);
  if (d == NULL) {
    fail_owner(options, SML_ERR_NO_MEMORY, NULL, text);
    return NULL;
  }
  const struct sml_method_ops *ops = d->method.ops;
  d->method = *options->owner;
  d->method.ops = ops;
  d->lanes = options->lanes;
  d->start = options->start;
  d->kernels = options->kernels;
  if (!find_ranks(d) || (d->steps->prepare != NULL && !d->steps->prepare(d))) {
    fail_owner(options, SML_ERR_NO_MEMORY, NULL, text);
  } else if (meet(d, options)) {
    if (start_helper(d)) return &d->method;
    snprintf(text, sizeof text, "rank %u cannot start a thread", d->lanes->rank);
    fail_owner(options, SML_ERR_SYSTEM, NULL, text);
  }
  free_driver(d);
  return NULL;
}

void sml_driver_close(struct sml_method *r) {
  struct sml_driver *d = driver_of(r);
  pthread_mutex_lock(r->lock);
  d->should_stop = true;
  pthread_cond_signal(&d->wanted);
  pthread_mutex_unlock(r->lock);
  pthread_join(d->helper, NULL);
  pthread_cond_destroy(&d->wanted);
  free_driver(d);
}
