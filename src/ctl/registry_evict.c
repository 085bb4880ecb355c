/* SPDX-License-Identifier: Apache-2.0
 * Jobs that end although neither they nor the aggregator do: by hand, and with their keys. */
#include "base/text.h"
#include "ctl/registry_internal.h"

/* With keys, whoever has proved the job's may; without, whoever is on this machine. NULL: no objection. */
static const char *find_objection(const struct sml_registry *r, const struct sml_conn *c) {
  if (c->state == SML_CONN_VIEWER) return NULL;
  if (r->options.find_key) return "only those who have a job's key may end it: name the key with SWITCHML_KEY_FILE";
  if (sml_text_is_loopback(c->host)) return NULL;
  return "the aggregator has no keys, so jobs are ended by hand on its own host only";
}

/* All jobs of the name, at most one of which is not at its end already. One farewell serves those that run, one those
 * that wait. */
void sml_registry_evict(struct sml_registry *r, uint32_t conn, const struct sml_ctl_evict *evict) {
  const struct sml_conn *c = &r->conns[conn];
  const char *objection = find_objection(r, c), *key_name = c->state == SML_CONN_VIEWER ? c->join.key_name : "";
  const struct sml_ctl_message *farewells[2] = {NULL};
  struct sml_ctl_evicted evicted = {0};
  if (objection) {
    const sml_status status = r->options.find_key ? SML_ERR_KEY : SML_ERR_REFUSED;
    sml_registry_turn_away(r, conn, SML_NOTE_EVICT_REFUSED, status, objection, objection);
    return;
  }
  const char *text = sml_registry_text(r, "job '%.63s' was ended by hand at the aggregator, from %s%s%.300s",
                                       evict->job_name, c->host, evict->detail[0] ? ": " : "", evict->detail);
  for (uint32_t i = 0; i < r->jobs_end; i++) {
    struct sml_job_entry *job = &r->jobs[i];
    if (job->state == SML_JOB_FREE || strcmp(job->name, evict->job_name) != 0) continue;
    if (strcmp(job->key_name, key_name) != 0) continue;
    const bool is_started = job->state == SML_JOB_STARTED;
    if (!farewells[is_started])
      farewells[is_started] = sml_registry_farewell(r, is_started, SML_ERR_ABORTED, NULL, 0, text);
    evicted.num_jobs++;
    evicted.num_ranks += job->num_members;
    sml_registry_end_job(r, job, farewells[is_started], SML_NO_CONN);
  }
  if (evicted.num_jobs == 0) {
    text = sml_registry_text(r, "there is no job '%.63s'%s%.31s", evict->job_name, key_name[0] ? " of key " : "",
                             key_name);
    sml_registry_turn_away(r, conn, SML_NOTE_EVICT_REFUSED, SML_ERR_REFUSED, text, text);
    return;
  }
  struct sml_ctl_message *m = sml_registry_compose(r, SML_CTL_EVICTED);
  m->u.evicted = evicted;
  sml_registry_send(r, conn, m);
  sml_registry_forget(r, conn);
}

bool sml_registry_is_withdrawn(const struct sml_registry *r, const char *key_name, const struct sml_key *key) {
  struct sml_key is;
  const bool is_there = r->options.find_key(r->options.find_key_user, key_name, &is);
  return !is_there || memcmp(&is, key, sizeof is) != 0;
}

bool sml_registry_on_withdrawn(struct sml_registry *r) {
  sml_registry_begin_input(r);
  if (!r->options.find_key) return false;
  for (uint32_t i = 0; i < r->jobs_end; i++) {
    struct sml_job_entry *job = &r->jobs[i];
    if (job->state == SML_JOB_FREE || !sml_registry_is_withdrawn(r, job->key_name, &job->tenant)) continue;
    const char *text =
        sml_registry_text(r, "key '%s' of job '%.63s' was withdrawn at the aggregator", job->key_name, job->name);
    sml_registry_end_with(r, job, SML_ERR_KEY, NULL, 0, text, SML_NO_CONN);
    return true;
  }
  for (uint32_t i = 0; i < r->conns_end; i++) {
    const struct sml_conn *c = &r->conns[i];
    const bool is_between = c->state == SML_CONN_CHALLENGED || c->state == SML_CONN_VIEWER;
    if (!is_between || !sml_registry_is_withdrawn(r, c->join.key_name, &c->tenant)) continue;
    sml_registry_forget(r, i);
    return true;
  }
  return false;
}
