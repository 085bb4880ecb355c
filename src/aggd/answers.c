/* SPDX-License-Identifier: Apache-2.0 */
#include "aggd/answers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/thread.h"
#include "switchml/switchml.h"

#define FRESH_NS (100 * SML_NS_PER_MS)
#define FRESH_TIMES 10u /* what it took to make */
#define ANSWER_NS (1 * SML_NS_PER_S)

void sml_answers_init(struct sml_answers *a) {
  pthread_mutex_init(&a->lock, NULL);
  sml_thread_init_cond(&a->answered);
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  a->started_s = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
  a->started_ns = sml_clock_ns();
}

void sml_answers_destroy(struct sml_answers *a) {
  free(a->reports);
  sml_shown_destroy(&a->shown);
  sml_snapshot_release(a->snapshot);
  sml_snapshot_release(a->answer);
  pthread_cond_destroy(&a->answered);
  pthread_mutex_destroy(&a->lock);
}

static struct sml_snapshot *latest_snapshot(struct sml_answers *a, uint64_t now_ns) {
  struct sml_snapshot *s = a->snapshot;
  if (s && now_ns - s->taken_ns < a->fresh_ns) return s;
  const uint64_t begin_ns = sml_clock_ns();
  sml_snapshot_release(s);
  s = a->snapshot = sml_snapshot_take(a->registry, a->lanes, &a->history, now_ns);
  if (!s) return NULL;
  if (!sml_tenants_look(a->tenants, s)) {
    sml_snapshot_release(s);
    return a->snapshot = NULL;
  }
  a->fresh_ns = sml_max_u64(FRESH_NS, FRESH_TIMES * (sml_clock_ns() - begin_ns));
  s->started_ns = a->started_ns;
  s->started_s = a->started_s;
  sml_addr_format(&a->addr, s->address, sizeof s->address);
  s->is_keyed = a->options->num_keys > 0;
  s->max_jobs = a->options->max_jobs;
  s->max_connections = a->options->max_connections;
  s->pool_slots = a->options->pool_slots;
  return s;
}

/* --- connections --- */

/* NULL, or why not. */
static const char *begin_showing(struct sml_answers *a, const char *key_name, uint32_t *ticket, uint64_t now_ns) {
  *ticket = sml_shown_find(&a->shown, key_name, now_ns);
  if (*ticket != SML_SHOWN_NONE) return NULL;
  if (!a->options->render_status) return "this aggregator shows no status: it is part of another program";
  if (!sml_shown_has_room(&a->shown, now_ns)) return "too many ask for the status: try again in a second";
  const struct sml_snapshot *snapshot = latest_snapshot(a, now_ns);
  char *text = snapshot ? a->options->render_status(a->options->user, snapshot, key_name) : NULL;
  if (!text) return "the aggregator has no memory for its status";
  *ticket = sml_shown_put(&a->shown, key_name, text, now_ns);
  return NULL;
}

void sml_answers_show(struct sml_answers *a, const struct sml_effect *e, uint32_t *ticket, uint64_t now_ns,
                      struct sml_ctl_message *m) {
  *m = (struct sml_ctl_message){.kind = SML_CTL_STATUS_PART};
  const char *problem = e->offset_bytes == 0 ? begin_showing(a, e->key_name, ticket, now_ns) : NULL;
  if (!problem && !sml_shown_part(&a->shown, *ticket, e->offset_bytes, &m->u.status_part))
    problem = "the status has no such part any more: ask again";
  if (!problem) return;
  *m = (struct sml_ctl_message){.kind = SML_CTL_REFUSE, .u.refuse.status = SML_ERR_REFUSED};
  snprintf(m->u.refuse.detail, sizeof m->u.refuse.detail, "%s", problem);
}

/* All ranks of a job may ask at once, so one answer is for all that ask soon. */
bool sml_answers_report(struct sml_answers *a, const struct sml_effect *e, uint64_t now_ns, struct sml_ctl_message *m) {
  struct sml_job_report *r = &a->reports[e->job];
  const bool is_fresh = r->made_ns != 0 && r->epoch == e->epoch && now_ns - r->made_ns < FRESH_NS;
  if (!is_fresh) {
    *r = (struct sml_job_report){.epoch = e->epoch};
    if (!sml_snapshot_report(a->registry, a->lanes, e->job, now_ns, &r->report)) return false;
    r->made_ns = now_ns;
  }
  *m = (struct sml_ctl_message){.kind = SML_CTL_REPORT, .u.report = r->report};
  return true;
}

/* --- threads --- */

/* The lock is free while a snapshot is made: that waits for engines, and one may hang. */
void sml_answers_serve(struct sml_answers *a, uint64_t now_ns) {
  pthread_mutex_lock(&a->lock);
  const uint64_t num_asked = a->num_asked;
  const bool is_due = a->num_answered != num_asked;
  pthread_mutex_unlock(&a->lock);
  if (!is_due) return;
  struct sml_snapshot *latest = latest_snapshot(a, now_ns);
  if (latest) atomic_fetch_add(&latest->num_holders, 1);
  pthread_mutex_lock(&a->lock);
  sml_snapshot_release(a->answer);
  a->answer = latest;
  a->num_answered = num_asked;
  pthread_cond_broadcast(&a->answered);
  pthread_mutex_unlock(&a->lock);
}

struct sml_snapshot *sml_answers_ask(struct sml_answers *a) {
  const uint64_t one = 1;
  const struct timespec deadline = sml_timespec(sml_clock_ns() + ANSWER_NS);
  struct sml_snapshot *snapshot = NULL;
  int error = 0;
  pthread_mutex_lock(&a->lock);
  const uint64_t number = ++a->num_asked;
  while (write(a->event_fd, &one, sizeof one) < 0 && errno == EINTR) continue; /* full: it wakes all the same */
  while (a->num_answered < number && error == 0) error = pthread_cond_timedwait(&a->answered, &a->lock, &deadline);
  if (a->num_answered >= number) snapshot = a->answer;
  if (snapshot) atomic_fetch_add(&snapshot->num_holders, 1);
  pthread_mutex_unlock(&a->lock);
  return snapshot;
}
