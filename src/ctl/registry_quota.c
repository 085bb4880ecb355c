/* SPDX-License-Identifier: Apache-2.0
 * What a tenant may have at a time. Asked once, when a job is about to start: what runs is never taken back, however
 * quotas change. */
#include <stdio.h>

#include "ctl/registry_internal.h"

static void add_use(const struct sml_registry *r, const struct sml_job_entry *starting, struct sml_tenant_use *use) {
  for (uint32_t i = 0; i < r->jobs_end; i++) {
    const struct sml_job_entry *job = &r->jobs[i];
    if (job->state != SML_JOB_STARTED || strcmp(job->key_name, starting->key_name) != 0) continue;
    use->num_jobs++;
    use->num_workers += job->world_size;
    use->num_slots += job->num_slots;
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

const char *sml_registry_meet_quota(struct sml_registry *r, struct sml_job_entry *job) {
  const char *tenant = job->key_name[0] ? job->key_name : SML_ONLY_TENANT;
  struct sml_quota quota = {0};
  struct sml_tenant_use use = {0};
  if (!r->options.find_quota || !r->options.find_quota(r->options.find_quota_user, tenant, &quota)) return NULL;
  add_use(r, job, &use);
  if (quota.max_jobs > 0 && use.num_jobs >= quota.max_jobs) return refuse(r, job, &quota, &use);
  if (quota.max_workers > 0 && (uint64_t)use.num_workers + job->world_size > quota.max_workers)
    return refuse(r, job, &quota, &use);
  if (quota.max_slots == 0) return NULL;
  while (use.num_slots + job->num_slots > quota.max_slots) {
    if (job->slots_why == SML_SLOTS_REASON_ASKED || job->num_slots <= SML_TUNING_FEW_SLOTS)
      return refuse(r, job, &quota, &use);
    job->num_slots /= 2;
    job->slots_why = SML_SLOTS_REASON_QUOTA;
  }
  return NULL;
}
