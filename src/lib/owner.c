/* SPDX-License-Identifier: Apache-2.0
 * The job, as its method sees it (method/method.h). */
#include "lib/operation.h"

static bool is_awaited(const struct sml_operation *op) {
  bool has_waiter = op->num_waiters > 0;
  for (const struct sml_operation *m = op->members; m && !has_waiter; m = m->next_member)
    has_waiter = m->num_waiters > 0;
  return has_waiter;
}

static bool is_running(const void *owner) {
  return ((const struct sml_job *)owner)->state.phase == SML_MEMBER_IS_RUNNING;
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
  const struct sml_operation *op = (const struct sml_operation *)engine;
  if (op->is_batch) sml_batch_store(op);
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

static void describe(const struct sml_engine_operation *engine, char *text, size_t text_bytes) {
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
                                               .describe = describe,
                                               .first_unfinished = first_unfinished,
                                               .describe_shard = describe_shard};
