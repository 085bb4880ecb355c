/* SPDX-License-Identifier: Apache-2.0
 * Who makes room when every place is taken and nobody is left who has not joined: a job that waits for ranks can't get
 * them then, and a job that nobody ever means to start costs its owner nothing. */
#include "ctl/registry_internal.h"

static uint32_t *count_of(struct sml_registry *r, uint64_t source) {
  return &r->waiting[sml_mix64(source ^ r->sources.seed) % SML_WAITING_CELLS];
}

static bool has_waited(const struct sml_registry *r, const struct sml_job_entry *job, uint64_t now_ns) {
  return job->state == SML_JOB_JOINING && job->num_members < job->world_size &&
         now_ns - job->joined_at_ns >= r->options.join_grace_ns;
}

bool sml_registry_make_room(struct sml_registry *r, uint64_t now_ns) {
  struct sml_job_entry *victim = NULL;
  memset(r->waiting, 0, sizeof r->waiting);
  for (uint32_t i = 0; i < r->conns_end; i++) {
    const struct sml_conn *c = &r->conns[i];
    if (c->state == SML_CONN_MEMBER && r->jobs[c->job].state == SML_JOB_JOINING) ++*count_of(r, c->source);
  }
  for (uint32_t i = 0; i < r->jobs_end; i++) {
    struct sml_job_entry *job = &r->jobs[i];
    if (!has_waited(r, job, now_ns)) continue;
    const uint32_t num = *count_of(r, job->source), most = victim ? *count_of(r, victim->source) : 0;
    if (num > most || (num == most && job->since_ns < victim->since_ns)) victim = job;
  }
  if (!victim) return false;
  const char *text = sml_registry_text(
      r,
      "the aggregator has no place left, and job '%.63s' has waited longest for %u of its %u ranks: start it again "
      "when they are there, or raise --max-connections at the aggregator",
      victim->name, victim->world_size - victim->num_members, victim->world_size);
  sml_registry_end_with(r, victim, SML_ERR_REFUSED, NULL, 0, text, SML_NO_CONN);
  return true;
}
