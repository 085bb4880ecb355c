/* SPDX-License-Identifier: Apache-2.0
 * What must hold between connections, jobs and slot windows after every input. */
#include "ctl/registry_internal.h"

static const char *check_member(const struct sml_registry *r, const struct sml_job_entry *job, uint32_t conn,
                                uint32_t before) {
  if (conn >= r->conns_end) return "a member's connection is outside the table";
  const struct sml_conn *c = &r->conns[conn];
  if (c->state != SML_CONN_MEMBER) return "a member's connection is no member's";
  if (&r->jobs[c->job] != job) return "a member's connection belongs to another job";
  if (c->prev != before) return "a list of members is not linked both ways";
  if (c->rank >= job->world_size || !sml_bit_test(job->present, c->rank)) return "a member's rank is not present";
  if (job->state == SML_JOB_STARTED && !c->has_probed) return "a rank of a started job has not probed";
  if (job->state == SML_JOB_STARTED && (c->contributor >= job->num_contributors || c->contributor > c->rank))
    return "a rank's contributor is not one of its job's";
  if (c->num_lanes < 1 || c->num_lanes > r->options.num_lanes) return "a member has more lanes than the daemon";
  if (c->oldest_operation > c->resume_operation || c->completed < c->resume_operation)
    return "a member's operations are out of order";
  return NULL;
}

static const char *check_members(const struct sml_registry *r, const struct sml_job_entry *job) {
  uint32_t num_members = 0, num_present = 0, num_waiting = 0, before = SML_NO_CONN;
  for (uint32_t conn = job->first_member; conn != SML_NO_CONN; conn = r->conns[conn].next) {
    const char *bad = check_member(r, job, conn, before);
    if (bad) return bad;
    if (++num_members > job->num_members) return "a job's list has more members than its count";
    num_waiting += r->conns[conn].wants_epoch;
    before = conn;
  }
  for (uint32_t i = 0; i < SML_ARRAY_LEN(job->present); i++) num_present += sml_popcount_u64(job->present[i]);
  if (num_members != job->num_members) return "a job's list has fewer members than its count";
  if (num_members == 0) return "a job has no members";
  if (num_present != num_members) return "the ranks present are not as many as the members";
  if (num_waiting == num_members) return "all ranks wait for an epoch that was not given";
  return NULL;
}

static const char *check_started(const struct sml_registry *r, const struct sml_job_entry *job) {
  if (job->num_members + job->num_departed != job->world_size) return "a started job's ranks don't add up";
  if (job->num_lanes < 1 || job->num_lanes > r->options.num_lanes) return "a job's lanes are not the daemon's";
  bool is_of_switch = (job->features & SML_FEATURE_SWITCH) != 0;
  if (is_of_switch != (r->options.packet_lanes != 0)) return "a job is in another format than the daemon's";
  if (is_of_switch && job->num_contributors > SML_CTL_SWITCH_MAX_CONTRIBUTORS) return "a switch has too many ranks";
  uint32_t min_bytes = is_of_switch ? 4 * (SML_MIN_PACKET_LANES - 1) : SML_MIN_CHUNK_BYTES;
  if (job->chunk_bytes < min_bytes || job->chunk_bytes % 4 != 0) return "a job's chunk size is impossible";
  if (job->confirmed < job->first_operation) return "less is confirmed than the job began with";
  for (uint32_t c = job->first_member; job->num_departed == 0 && c != SML_NO_CONN; c = r->conns[c].next)
    if (r->conns[c].completed < job->confirmed) return "more is confirmed than a rank has completed";
  for (uint32_t lane = 0; lane < job->num_lanes; lane++) {
    uint32_t base = job->slot_base[lane], all_slots = sml_registry_all_slots(job);
    if (base % (job->num_slots << sml_ceil_log2(sml_registry_num_windows(job))) != 0 ||
        base + all_slots > r->options.pool_slots)
      return "a job's window is not in the pool";
    for (uint32_t slot = base; slot < base + all_slots; slot++)
      if (!sml_bit_test(r->pools[lane].used, slot)) return "a job's slot is not taken from the pool";
  }
  return NULL;
}

static bool do_windows_meet(const struct sml_job_entry *a, const struct sml_job_entry *b) {
  for (uint32_t lane = 0; lane < sml_min_u32(a->num_lanes, b->num_lanes); lane++) {
    uint32_t a_base = a->slot_base[lane], b_base = b->slot_base[lane];
    if (a_base < b_base + sml_registry_all_slots(b) && b_base < a_base + sml_registry_all_slots(a)) return true;
  }
  return false;
}

/* Two jobs of one name and key at a time: at most one that is joined, beside those at their end. */
static const char *check_pair(const struct sml_job_entry *a, const struct sml_job_entry *b) {
  bool are_started = a->state == SML_JOB_STARTED && b->state == SML_JOB_STARTED;
  if (are_started && do_windows_meet(a, b)) return "two jobs have a slot in common";
  if (a->epoch == b->epoch) return "two jobs have one epoch";
  if (strcmp(a->name, b->name) != 0 || strcmp(a->key_name, b->key_name) != 0) return NULL;
  if (memcmp(&a->tenant, &b->tenant, sizeof a->tenant) != 0) return NULL; /* its key was changed meanwhile */
  if (a->state == SML_JOB_JOINING && b->state == SML_JOB_JOINING) return "two jobs of one name and key are joined";
  bool is_a_ending = a->state == SML_JOB_STARTED && a->num_departed > 0;
  bool is_b_ending = b->state == SML_JOB_STARTED && b->num_departed > 0;
  return is_a_ending || is_b_ending ? NULL : "two jobs of one name and key are at work";
}

static const char *check_jobs(const struct sml_registry *r) {
  for (uint32_t i = 0; i < r->jobs_end; i++) {
    const struct sml_job_entry *job = &r->jobs[i];
    if (job->state == SML_JOB_FREE) continue;
    if ((job->key_name[0] != 0) != (r->options.find_key != NULL))
      return "a job has a key at a daemon without, or none at one with keys";
    const char *bad = check_members(r, job);
    if (!bad && job->state == SML_JOB_STARTED) bad = check_started(r, job);
    for (uint32_t j = 0; !bad && j < i; j++)
      if (r->jobs[j].state != SML_JOB_FREE) bad = check_pair(&r->jobs[j], job);
    if (bad) return bad;
  }
  return NULL;
}

/* With disjoint windows of taken slots, equal counts mean that nothing else is taken. */
static const char *check_pools(const struct sml_registry *r) {
  for (uint32_t lane = 0; lane < r->options.num_lanes; lane++) {
    uint32_t num_used = 0, num_lent = 0;
    for (uint32_t i = 0; i < SML_BITMAP_WORDS(r->options.pool_slots); i++)
      num_used += sml_popcount_u64(r->pools[lane].used[i]);
    for (uint32_t i = 0; i < r->jobs_end; i++) {
      const struct sml_job_entry *job = &r->jobs[i];
      if (job->state == SML_JOB_STARTED && lane < job->num_lanes) num_lent += sml_registry_all_slots(job);
    }
    if (num_used != num_lent) return "slots are taken from the pool that no job has";
  }
  return NULL;
}

const char *sml_registry_find_violation(const struct sml_registry *r) {
  uint32_t num_member_conns = 0, num_members = 0, num_started = 0;
  for (uint32_t i = 0; i < r->options.max_connections; i++) {
    if (r->conns[i].state != SML_CONN_FREE && i >= r->conns_end) return "a connection is outside the table";
    if (r->conns[i].state != SML_CONN_MEMBER) continue;
    if (r->conns[i].job >= r->jobs_end) return "a job is outside the table"; /* each has a member */
    num_member_conns++;
  }
  for (uint32_t i = 0; i < r->jobs_end; i++) {
    if (r->jobs[i].state != SML_JOB_FREE) num_members += r->jobs[i].num_members;
    num_started += r->jobs[i].state == SML_JOB_STARTED;
  }
  const char *bad = check_jobs(r); /* so the members of lists are different connections */
  if (bad) return bad;
  if (num_member_conns != num_members) return "a connection is in no job's list of members";
  if (num_started > r->options.max_jobs) return "more jobs are started than may be";
  return check_pools(r);
}
