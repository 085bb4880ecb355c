/* SPDX-License-Identifier: Apache-2.0
 * What a tenant may have at a time. Asked when a job is opened, and when it is about to start: what runs is never taken
 * back, however quotas change. */
#include <stdio.h>

#include "ctl/registry_internal.h"

static void add_use(const struct sml_registry *r, enum sml_job_state state, const char *key_name,
                    struct sml_tenant_use *use) {
  for (uint32_t i = 0; i < r->jobs_end; i++) {
    const struct sml_job_entry *job = &r->jobs[i];
    if (job->state != state || strcmp(job->key_name, key_name) != 0) continue;
    use->num_jobs++;
    use->num_workers += job->world_size;
    use->num_slots += job->state == SML_JOB_STARTED ? sml_registry_all_slots(job) : job->num_slots;
  }
}

/* "3 of 4 jobs", or "3 jobs" where there is no limit. */
static const char *count(char *text, size_t room_bytes, uint32_t num_used, uint32_t max, const char *what) {
  if (max > 0) snprintf(text, room_bytes, "%u of %u %s", num_used, max, what);
  else snprintf(text, room_bytes, "%u %s", num_used, what);
  return text;
}

static const char *refuse(struct sml_registry *r, const struct sml_job_entry *job, const struct sml_quota *quota,
                          const struct sml_tenant_use *use) {
  char jobs[32], workers[40], slots[32];
  return sml_registry_text(r,
                           "tenant %s has %s, %s and %s a lane; this job has %u workers and %u slots: wait for one of "
                           "its jobs to end, or raise its quota at the aggregator",
                           job->key_name[0] ? job->key_name : SML_ONLY_TENANT,
                           count(jobs, sizeof jobs, use->num_jobs, quota->max_jobs, "jobs"),
                           count(workers, sizeof workers, use->num_workers, quota->max_workers, "workers"),
                           count(slots, sizeof slots, use->num_slots, quota->max_slots, "slots"), job->world_size,
                           job->num_slots);
}

/* As much may wait as may run: a tenant whose jobs follow each other has the next one joined before the last has
 * ended, and one whose jobs never start takes no more than that. Ranks count that are yet to come, so that a job which
 * has been opened can fill up. */
const char *sml_registry_find_waiting_limit(struct sml_registry *r, const struct sml_ctl_join *join) {
  const char *tenant = join->key_name[0] ? join->key_name : SML_ONLY_TENANT;
  struct sml_quota quota = {0};
  struct sml_tenant_use use = {0};
  if (!r->options.find_quota || !r->options.find_quota(r->options.find_quota_user, tenant, &quota)) return NULL;
  add_use(r, SML_JOB_JOINING, join->key_name, &use);
  const bool has_jobs = quota.max_jobs > 0 && use.num_jobs >= quota.max_jobs;
  const bool has_workers = quota.max_workers > 0 && (uint64_t)use.num_workers + join->world_size > quota.max_workers;
  if (!has_jobs && !has_workers) return NULL;
  char jobs[32], workers[40];
  return sml_registry_text(r,
                           "tenant %s has %s and %s that wait for their ranks; this job has %u workers: wait for "
                           "those to start, or raise its quota at the aggregator",
                           tenant, count(jobs, sizeof jobs, use.num_jobs, quota.max_jobs, "jobs"),
                           count(workers, sizeof workers, use.num_workers, quota.max_workers, "workers"),
                           join->world_size);
}

const char *sml_registry_meet_quota(struct sml_registry *r, struct sml_job_entry *job) {
  const char *tenant = job->key_name[0] ? job->key_name : SML_ONLY_TENANT;
  struct sml_quota quota = {0};
  struct sml_tenant_use use = {0};
  if (!r->options.find_quota || !r->options.find_quota(r->options.find_quota_user, tenant, &quota)) return NULL;
  add_use(r, SML_JOB_STARTED, job->key_name, &use);
  if (quota.max_jobs > 0 && use.num_jobs >= quota.max_jobs) return refuse(r, job, &quota, &use);
  if (quota.max_workers > 0 && (uint64_t)use.num_workers + job->world_size > quota.max_workers)
    return refuse(r, job, &quota, &use);
  if (quota.max_slots == 0) return NULL;
  /* One-way windows never keep a job out that comes later: half of the quota is there without them. */
  if (use.num_slots + sml_registry_all_slots(job) > quota.max_slots / 2) job->is_one_way = false;
  while (use.num_slots + sml_registry_all_slots(job) > quota.max_slots) {
    if (job->slots_why == SML_SLOTS_REASON_ASKED || job->num_slots <= SML_TUNING_FEW_SLOTS)
      return refuse(r, job, &quota, &use);
    job->num_slots /= 2;
    job->slots_why = SML_SLOTS_REASON_QUOTA;
  }
  return NULL;
}
