/* SPDX-License-Identifier: Apache-2.0
 * Ranks that contribute as one: decided when a job starts, since only then all of them are known. */
#include "ctl/contributors.h"
#include "ctl/registry_internal.h"

#define ABSENT UINT16_MAX

bool sml_registry_is_one_host(const struct sml_registry *r, const struct sml_job_entry *job) {
  const uint64_t *host = r->conns[job->first_member].share_host;
  for (uint32_t c = job->first_member; c != SML_NO_CONN; c = r->conns[c].next)
    if (memcmp(host, r->conns[c].share_host, sizeof r->conns[c].share_host) != 0) return false;
  return (host[0] | host[1]) != 0 && job->num_members == job->world_size;
}

/* The connection of each rank; SML_NO_CONN where there is none (any more). */
static void list_conns(const struct sml_registry *r, const struct sml_job_entry *job, uint32_t *conns) {
  for (uint32_t rank = 0; rank < job->world_size; rank++) conns[rank] = SML_NO_CONN;
  for (uint32_t c = job->first_member; c != SML_NO_CONN; c = r->conns[c].next) conns[r->conns[c].rank] = c;
}

/* A rank that keeps its inputs for a retry contributes for itself: after a loss of the aggregator it must be able to
 * do so again whoever else comes back. */
static bool can_combine(const struct sml_job_entry *job, const struct sml_conn *c) {
  return c->is_combining && (c->share_host[0] | c->share_host[1]) != 0 && !(job->features & SML_FEATURE_RETRY);
}

static bool is_same_host(const struct sml_job_entry *job, const struct sml_conn *lead, const struct sml_conn *c) {
  return can_combine(job, lead) && memcmp(lead->share_host, c->share_host, sizeof c->share_host) == 0;
}

void sml_registry_group(struct sml_registry *r, struct sml_job_entry *job) {
  uint32_t conns[SML_CTL_MAX_WORLD_SIZE], leads[SML_CTL_MAX_WORLD_SIZE], num_leads = 0;
  const bool is_one_host = sml_registry_is_one_host(r, job); /* then nobody sends */
  list_conns(r, job, conns);
  for (uint32_t rank = 0; rank < job->world_size; rank++) {
    struct sml_conn *c = &r->conns[conns[rank]];
    uint32_t i = can_combine(job, c) && !is_one_host ? 0 : num_leads;
    while (i < num_leads && !is_same_host(job, &r->conns[leads[i]], c)) i++;
    c->contributor = (uint16_t)i;
    c->is_lead = i == num_leads;
    if (c->is_lead) leads[num_leads++] = conns[rank];
  }
  job->num_contributors = num_leads;
}

void sml_registry_list_contributors(const struct sml_registry *r, const struct sml_job_entry *job,
                                    struct sml_ctl_start *start) {
  if (job->num_contributors == job->world_size) return;
  start->num_ranks = job->world_size;
  for (uint32_t rank = 0; rank < job->world_size; rank++) start->contributors[rank] = ABSENT;
  for (uint32_t c = job->first_member; c != SML_NO_CONN; c = r->conns[c].next)
    start->contributors[r->conns[c].rank] = r->conns[c].contributor;
}

uint32_t sml_registry_describe(struct sml_registry *r, const struct sml_job_entry *job, uint32_t rank, char *text,
                               size_t room_bytes, uint16_t *ranks_out, uint32_t max_ranks) {
  struct sml_ctl_start start = {.num_ranks = 0};
  sml_registry_list_contributors(r, job, &start);
  if (start.num_ranks != 0 && start.contributors[rank] == ABSENT) start.num_ranks = 0; /* it has left since */
  uint32_t contributor = sml_contributor_of(&start, rank);
  sml_contributor_describe(&start, contributor, text, room_bytes);
  return sml_contributor_ranks(&start, contributor, ranks_out, max_ranks);
}
