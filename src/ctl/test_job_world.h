/* SPDX-License-Identifier: Apache-2.0
 * Whole jobs face to face: the daemon's registry, ranks' members (test_member_world.h), and what each rank's job makes
 * of them (ctl/member_job.h, ctl/member_late.h), in one thread and virtual time. The data plane is a rule: an operation
 * is summed when every rank has begun it in the same epoch, and each rank gets the result that is not kept from it. */
#pragma once

#include "ctl/member_late.h"
#include "ctl/test_member_world.h"

#define MAX_OPS 32u
#define OP_TIMEOUT_NS (30 * S)
#define RETRY_NS (30 * S)

enum op_state { NOT_CALLED, CALLED, COMPLETED, OP_FAILED };
struct test_op {
  struct sml_member_operation order; /* first */
  struct sml_member_input input;
  struct sml_member_operation replay;
  enum op_state state;
  uint32_t num_results; /* that came here */
  uint64_t sum;
};
/* A rank's job. */
struct worker {
  struct sml_member_job j;
  struct sml_member_shard shard;
  struct test_op ops[MAX_OPS];
  struct sml_member_inputs inputs;
  struct sml_member_sight sight;
  uint32_t epoch;       /* of its lanes; 0: closed */
  uint32_t epoch_ops;   /* that an epoch has room for */
  uint32_t num_taken;   /* of it */
  uint32_t contributed; /* to it: bit n is operation n */
  bool has_no_memory;   /* for lanes */
  bool loses_results;
  bool wants_abort;
  uint64_t value; /* it contributes value + number */
  char warned[SML_DETAIL_BYTES];
};
static struct worker workers[MAX_RANKS];

static inline void fail_worker(uint32_t rank, const struct sml_ctl_abort *failure, uint64_t operation,
                               bool tells_others);

static inline struct test_op *op_at(uint32_t rank, uint64_t number) {
  assert_true(number < MAX_OPS);
  return &workers[rank].ops[number];
}
static inline void expect_op(uint32_t rank, uint64_t number, enum op_state state) {
  assert_int_equal(op_at(rank, number)->state, state);
}
static inline void expect_job_failure(uint32_t rank, sml_status status, const char *sentence) {
  const sml_error *error = &workers[rank].j.error;
  assert_int_equal(workers[rank].j.phase, SML_MEMBER_HAS_FAILED);
  if (error->status != status || strstr(error->detail, sentence) == NULL)
    fail_msg("rank %u: %d '%s' is not %d '%s'", rank, error->status, error->detail, status, sentence);
}

/* ---- the data plane ---- */

static inline void push(uint32_t rank) {
  struct worker *k = &workers[rank];
  struct sml_member_operation *o;
  struct sml_ctl_abort failure;
  while ((o = sml_member_job_next(&k->j, 4)) != NULL) {
    if (k->num_taken == k->epoch_ops) {
      if (sml_member_job_on_full(&k->j, k->epoch_ops == 0, &failure) == SML_MEMBER_STEP_FAIL)
        fail_worker(rank, &failure, o->number, true);
      break;
    }
    k->num_taken++;
    sml_member_job_begin(&k->j, o);
    k->contributed |= 1u << o->number;
  }
}
static inline void end_op(uint32_t rank, struct sml_member_operation *o, sml_status status) {
  struct worker *k = &workers[rank];
  struct test_op *op = op_at(rank, o->number);
  if (!sml_member_job_end(&k->j, o, status == SML_OK)) return;
  op->input.reader = NULL;
  if (o != &op->replay) op->state = status == SML_OK ? COMPLETED : OP_FAILED;
}
static inline struct sml_member_operation *begun_at(uint32_t rank, uint64_t number, uint32_t epoch) {
  struct sml_member_operation *o = workers[rank].j.oldest;
  while (o != NULL && o->number != number) o = o->next;
  return o != NULL && o->is_begun && workers[rank].epoch == epoch ? o : NULL;
}
/* The aggregator tells a rank whose operation lacks one that is gone. */
static inline void lose_for_want(uint32_t rank) {
  const struct sml_member_job *j = &workers[rank].j;
  const uint32_t gone = j->gone.ranks[0];
  if (!j->has_gone_rank || j->oldest == NULL || !j->oldest->is_begun || j->phase == SML_MEMBER_HAS_FAILED) return;
  if (workers[gone].epoch == workers[rank].epoch && (workers[gone].contributed >> j->oldest->number & 1) != 0) return;
  const struct sml_ctl_abort failure = sml_member_job_lost_failure(j, gone);
  fail_worker(rank, &failure, j->oldest->number, true);
}
/* True: something was summed. A rank that lost its result holds up nobody: the aggregator has the sum still. */
static inline bool sum(void) {
  bool has_summed = false;
  for (uint32_t r = 0; r < num_ranks; r++) {
    lose_for_want(r);
    for (uint64_t n = 0; n < MAX_OPS; n++) {
      struct sml_member_operation *o = begun_at(r, n, workers[r].epoch);
      if (o == NULL || workers[r].epoch == 0 || workers[r].loses_results || workers[r].j.phase == SML_MEMBER_HAS_FAILED)
        continue;
      uint32_t num_in = 0;
      uint64_t total = 0;
      for (uint32_t i = 0; i < num_ranks; i++) {
        num_in += workers[i].epoch == workers[r].epoch && (workers[i].contributed >> n & 1) != 0;
        total += workers[i].value + n;
      }
      if (num_in < num_ranks) continue;
      op_at(r, n)->num_results++;
      op_at(r, n)->sum = total;
      end_op(r, o, SML_OK);
      has_summed = true;
    }
    push(r);
  }
  return has_summed;
}

/* ---- what a step asks for ---- */

static inline void tell_daemon(uint32_t rank, const struct sml_ctl_message *m) {
  const struct rank *k = &ranks[rank];
  if (k->conn < MAX_CONNS && !k->is_cut_off && !is_deaf && !is_down && w.is_open[k->conn]) said_once(k->conn, m);
}
static inline void end_all(uint32_t rank, bool is_begun, sml_status status) {
  struct sml_member_operation *next;
  for (struct sml_member_operation *o = workers[rank].j.oldest; o; o = next) {
    next = o->next;
    if (o->is_begun != is_begun) continue;
    if (is_begun) end_op(rank, o, status);
    else sml_member_job_remove(&workers[rank].j, o);
    if (!is_begun) op_at(rank, o->number)->state = OP_FAILED;
  }
}
static inline void fail_worker(uint32_t rank, const struct sml_ctl_abort *failure, uint64_t operation,
                               bool tells_others) {
  struct worker *k = &workers[rank];
  if (!sml_member_job_fail(&k->j, failure, operation)) return;
  k->wants_abort = tells_others;
  end_all(rank, false, k->j.error.status);
  end_all(rank, true, k->j.error.status);
}
/* True: the step does not end the job. */
static inline bool goes_on(uint32_t rank, enum sml_member_step step, const struct sml_ctl_abort *failure) {
  const struct sml_member_job *j = &workers[rank].j;
  if (step != SML_MEMBER_STEP_FAIL && step != SML_MEMBER_STEP_END) return true;
  fail_worker(rank, failure, j->oldest != NULL ? j->oldest->number : j->next_number, step == SML_MEMBER_STEP_FAIL);
  return false;
}
static inline void add_replays(struct worker *k) {
  struct sml_member_input *input = NULL;
  while (sml_member_inputs_pop(&k->inputs, &k->j.retry) != NULL) continue;
  while ((input = sml_member_inputs_next_replay(&k->inputs, input)) != NULL) {
    struct sml_member_operation *o = &k->ops[input->number].replay;
    *o = (struct sml_member_operation){.number = input->number,
                                       .is_replay = true,
                                       .submitted_ns = w.now_ns,
                                       .deadline_ns = w.now_ns + OP_TIMEOUT_NS,
                                       .last_deadline_ns = w.now_ns + OP_TIMEOUT_NS};
    input->reader = o;
    sml_member_job_insert(&k->j, o);
  }
}
static inline void open_lanes(uint32_t rank) {
  struct worker *k = &workers[rank];
  struct sml_ctl_abort failure;
  const enum sml_member_step step = sml_member_job_on_opened(&k->j, !k->has_no_memory, w.now_ns, &failure);
  if (!goes_on(rank, step, &failure) || step == SML_MEMBER_STEP_NONE) return;
  k->epoch = k->j.start.epoch;
  k->num_taken = k->contributed = 0;
  if (step == SML_MEMBER_STEP_REPLAY) add_replays(k);
  push(rank);
}
static inline void close_lanes(uint32_t rank) {
  struct worker *k = &workers[rank];
  k->epoch = 0;
  end_all(rank, true, SML_ERR_AGGREGATOR_LOST);
  for (uint32_t n = 0; n < MAX_OPS; n++) {
    struct test_op *op = &k->ops[n];
    if (op->input.reader != &op->replay) continue;
    sml_member_job_remove(&k->j, &op->replay);
    op->input.reader = NULL;
  }
}
static inline void lose_aggregator(uint32_t rank, struct sml_ctl_abort failure) {
  struct worker *k = &workers[rank];
  bool is_first;
  uint64_t patience_ns, num_completed = 0;
  const enum sml_member_step step = sml_member_job_on_lost(&k->j, &failure, w.now_ns, &is_first, &patience_ns);
  if (!goes_on(rank, step, &failure)) return;
  if (step == SML_MEMBER_STEP_JOIN_ANEW) {
    sml_member_join_anew(&ranks[rank].m, w.now_ns);
    return;
  }
  if (is_first) close_lanes(rank);
  for (uint32_t n = 0; n < MAX_OPS; n++) num_completed += k->ops[n].state == COMPLETED;
  sml_member_job_resume(&k->j, num_completed == 0, w.now_ns);
}

/* ---- events ---- */

static inline void take_told(uint32_t rank, const struct sml_member_effect *e) {
  struct sml_member_job *j = &workers[rank].j;
  struct sml_ctl_abort failure;
  struct sml_ctl_rank_gone gone;
  enum sml_member_step step = SML_MEMBER_STEP_NONE;
  if (e->kind == SML_MEMBER_STARTED) {
    step = sml_member_job_on_started(j, 0, &e->message->u.start, &failure);
    if (step == SML_MEMBER_STEP_OPEN || step == SML_MEMBER_STEP_RESTART) open_lanes(rank);
  } else if (e->kind == SML_MEMBER_ENDED) {
    failure = ranks[rank].m.failure;
    if (!sml_member_job_is_host_lost(j, 0, &failure, &gone)) lose_aggregator(rank, failure);
    else step = sml_member_job_on_gone(j, &gone, true, &failure);
  } else if (e->kind == SML_MEMBER_RANK_GONE) {
    step = sml_member_job_on_gone(j, &e->message->u.rank_gone, false, &failure);
  } else if (e->kind == SML_MEMBER_HEARTBEAT) {
    sml_member_job_on_confirmed(j, e->message->u.heartbeat.operations_completed);
    while (sml_member_inputs_pop(&workers[rank].inputs, &j->retry) != NULL) continue;
  } else if (e->kind == SML_MEMBER_REPORTED) {
    sml_member_job_on_reported(j, 0, &e->message->u.report);
  } else if (e->kind == SML_MEMBER_SILENT) {
    sml_member_job_on_silent(j, 0, e->since_ns);
  } else {
    sml_member_job_on_heard(j, 0, w.now_ns);
  }
  (void)goes_on(rank, step, &failure);
}

/* Ranks that have not begun what this one has, as its lanes would know. */
static inline void look(uint32_t rank) {
  struct worker *k = &workers[rank];
  struct sml_member_sight *s = &k->sight;
  s->wait.kind = SML_WAIT_NETWORK;
  s->has_slot = k->j.oldest != NULL && k->j.oldest->is_begun;
  if (!s->has_slot) return;
  s->since_ns = k->j.oldest->submitted_ns;
  s->num_missing = 0;
  for (uint32_t i = 0; i < num_ranks; i++)
    if (workers[i].epoch != k->epoch || (workers[i].contributed >> k->j.oldest->number & 1) == 0)
      s->missing[s->num_missing++] = (uint16_t)i;
}
static inline void check_deadlines(uint32_t rank) {
  struct worker *k = &workers[rank];
  struct sml_ctl_abort failure;
  char what[32];
  look(rank);
  if (sml_member_late_is_unknown(&k->j, &k->sight, w.now_ns, &failure)) lose_aggregator(rank, failure);
  const struct sml_member_late late = sml_member_late_check(&k->j, &k->sight, NULL, w.now_ns);
  if (late.kind == SML_MEMBER_LATE_TIMES_OUT) {
    snprintf(what, sizeof what, "operation %u", (unsigned)late.operation->number);
    failure = sml_member_late_failure(&k->j, &late, what, late.operation->submitted_ns, &k->sight, w.now_ns);
    fail_worker(rank, &failure, late.operation->number, true);
  } else if (late.kind == SML_MEMBER_LATE_WARNS) {
    failure = (struct sml_ctl_abort){.status = SML_OK};
    sml_member_late_explain(&k->j, &k->sight, w.now_ns, &failure);
    add(k->warned, sizeof k->warned, "operation %u: %s; ", (unsigned)late.operation->number, failure.detail);
  }
}
static inline void take_tick(uint32_t rank) {
  struct worker *k = &workers[rank];
  struct rank *r = &ranks[rank];
  struct sml_ctl_abort failure;
  check_deadlines(rank);
  const enum sml_member_step step = sml_member_job_on_pass(&k->j, &failure);
  if (goes_on(rank, step, &failure) && step == SML_MEMBER_STEP_RENEW)
    tell_daemon(rank, &(struct sml_ctl_message){.kind = SML_CTL_EPOCH, .u.epoch = {k->shard.start.epoch}});
  if (k->wants_abort && r->m.state >= SML_MEMBER_PROBING && r->m.state < SML_MEMBER_OVER) {
    struct sml_ctl_message m = {.kind = SML_CTL_ABORT, .u.abort = {.status = k->j.error.status}};
    m.u.abort.num_ranks = k->j.error.num_ranks;
    for (uint32_t i = 0; i < m.u.abort.num_ranks; i++) m.u.abort.ranks[i] = (uint16_t)k->j.error.ranks[i];
    memcpy(m.u.abort.detail, k->j.error.detail, sizeof m.u.abort.detail);
    tell_daemon(rank, &m);
  }
  k->wants_abort = false;
  if (k->j.phase == SML_MEMBER_HAS_FAILED && r->m.state < SML_MEMBER_RUNNING) sml_member_give_up(&r->m);
  r->progress.operations_submitted = k->j.next_number;
  r->progress.operations_completed = sml_member_job_first_unfinished(&k->j);
}

/* ---- what tests do ---- */

static inline void begin_worker(uint32_t rank, uint32_t world_size, uint64_t retry_ns) {
  struct worker *k = &workers[rank];
  memset(k, 0, sizeof *k);
  k->shard.member = &ranks[rank].m;
  k->shard.process_rank = SML_MEMBER_OF_DAEMON;
  k->epoch_ops = UINT32_MAX;
  k->value = 100 * rank;
  k->j = (struct sml_member_job){
      .name = "x", .rank = rank, .world_size = world_size, .num_shards = 1, .shards = &k->shard};
  k->j.retry.retry_ns = retry_ns;
  if (retry_ns != 0) ranks[rank].m.options.join.features = SML_FEATURE_RETRY;
  if (retry_ns != 0) ranks[rank].m.options.busy_heartbeat_ns = 50 * MS;
}
/* They have not joined yet. */
static inline void begin_jobs(uint32_t world_size, uint64_t retry_ns) {
  begin_world(world_size);
  for (uint32_t i = 0; i < world_size; i++) begin_worker(i, world_size, retry_ns);
  on_told = take_told;
  on_tick = take_tick;
  on_settled = sum;
}
static inline void start_jobs(uint32_t world_size, uint64_t retry_ns) {
  begin_jobs(world_size, retry_ns);
  settle();
  for (uint32_t i = 0; i < world_size; i++) assert_int_equal(workers[i].j.phase, SML_MEMBER_IS_RUNNING);
}
/* The next operation. False: it was refused. */
static inline bool call_within(uint32_t rank, uint64_t timeout_ns) {
  struct worker *k = &workers[rank];
  struct sml_ctl_abort failure;
  (void)goes_on(rank, sml_member_job_on_call(&k->j, &failure), &failure);
  if (k->j.phase == SML_MEMBER_HAS_FAILED) return false;
  struct test_op *op = op_at(rank, k->j.next_number);
  op->order = (struct sml_member_operation){.number = k->j.next_number++,
                                            .submitted_ns = w.now_ns,
                                            .deadline_ns = w.now_ns + timeout_ns,
                                            .last_deadline_ns = w.now_ns + timeout_ns + k->j.retry.retry_ns};
  op->state = CALLED;
  op->input = (struct sml_member_input){.number = op->order.number, .reader = &op->order};
  if (k->j.retry.retry_ns != 0) sml_member_inputs_insert(&k->inputs, &op->input);
  sml_member_job_insert(&k->j, &op->order);
  push(rank);
  return true;
}
static inline bool call(uint32_t rank) {
  return call_within(rank, OP_TIMEOUT_NS);
}
static inline void call_on_all(void) {
  for (uint32_t i = 0; i < num_ranks; i++) assert_true(call(i));
}
static inline void abort_job(uint32_t rank, const char *why) {
  struct sml_ctl_abort failure = sml_member_failure(SML_ERR_ABORTED, "%s", why);
  failure.ranks[failure.num_ranks++] = (uint16_t)rank;
  fail_worker(rank, &failure, workers[rank].j.next_number, true);
}
