/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/lateness.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "ctl/contributors.h"
#include "lib/operation.h"

#define JOIN_NS (10 * SML_NS_PER_S) /* what failed before is no reason for a join to fail */
#define MANY_BYTES 360u /* of a detail: no further aggregator's report begins behind it */

__attribute__((format(printf, 2, 3))) static void add(struct sml_ctl_abort *failure, const char *format, ...) {
  const size_t used = strlen(failure->detail);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(failure->detail + used, sizeof failure->detail - used, format, arguments);
  va_end(arguments);
}

/* ---- as this rank sees it ---- */

/* "waiting for ranks 1, 3", or "waiting for ranks 4-7 on the host of rank 4"; ranks too. */
static void add_missing(const struct sml_job *job, const struct sml_lane_snapshot *s, struct sml_ctl_abort *failure) {
  const struct sml_ctl_start *start = &job->start;
  const uint32_t count = sml_contributors_count(start, job->world_size);
  const bool is_plain = start->num_ranks == 0;
  add(failure, "waiting for%s", !is_plain ? "" : s->num_missing > 1 ? " ranks" : " rank");
  for (uint32_t i = 0; i < s->num_missing; i++) {
    char text[96] = "";
    if (s->missing[i] < count && is_plain) snprintf(text, sizeof text, "%u", s->missing[i]);
    else if (s->missing[i] < count) sml_contributor_describe(start, s->missing[i], text, sizeof text);
    add(failure, "%s %s", i > 0 ? "," : "", text);
  }
  failure->num_ranks =
      sml_contributors_name(start, job->world_size, s->missing, s->num_missing, failure->ranks);
}

/* "waiting for ranks 1, 3 in shared memory", as above. */
static void add_absent(const struct sml_job *job, const struct sml_method_wait *wait, struct sml_ctl_abort *failure) {
  if (wait->num_absent == 0) {
    add(failure, "waiting for rank %u, this one, in shared memory: all others have done their part", job->rank);
    failure->ranks[failure->num_ranks++] = (uint16_t)job->rank;
    return;
  }
  add(failure, "waiting for rank%s", wait->num_absent > 1 ? "s" : "");
  for (uint32_t i = 0; i < sml_min_u32(wait->num_absent, SML_CTL_MAX_RANKS); i++) {
    add(failure, "%s %u", i > 0 ? "," : "", wait->ranks[i]);
    failure->ranks[failure->num_ranks++] = (uint16_t)wait->ranks[i];
  }
  add(failure, " in shared memory");
}

static void add_own_view(const struct sml_job *job, uint64_t now_ns, struct sml_ctl_abort *failure) {
  struct sml_method_wait wait;
  struct sml_lane_snapshot s;
  uint32_t lane;
  job->method->ops->wait(job->method, &wait);
  if (job->state == SML_JOB_RUNNING && wait.kind == SML_WAIT_NONE_BEGUN) {
    add(failure, "it was not begun");
  } else if (job->state == SML_JOB_RUNNING && wait.kind != SML_WAIT_NETWORK) {
    add_absent(job, &wait, failure);
  } else if (job->state == SML_JOB_REJOINING) {
    add(failure, "the aggregator was lost and is not back");
  } else if (job->state == SML_JOB_DRAINING || job->state == SML_JOB_RENEWING) {
    add(failure, "waiting for every rank to ask for a new epoch");
  } else if (!sml_job_lanes_find_waiting(&job->lanes, &lane, &s)) {
    add(failure, "it was not begun");
  } else {
    if (s.num_missing == 0) add(failure, "no answer from the aggregator");
    else add_missing(job, &s, failure);
    add(failure, " on lane %u slot %u", lane, s.waiting_slot);
    if (now_ns > s.waiting_since_ns) add(failure, " for %.3g s", (double)(now_ns - s.waiting_since_ns) / 1e9);
  }
}

/* ---- as this host's system says ---- */

static const char *what_it_means(int error) {
  switch (error) {
    case EMSGSIZE: return " (the MTU is smaller than when the job was joined)";
    case EPERM: return " (a firewall of this host)";
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ENETDOWN: return " (a route or an interface is gone)";
    case EAGAIN:
    case ENOBUFS: return " (more than its interface takes)";
    default: return "";
  }
}

/* At the end of the detail, whose own end goes for it; between two characters. */
static void make_room(struct sml_ctl_abort *failure, size_t num_bytes) {
  size_t used = sml_min_u64(strlen(failure->detail), sizeof failure->detail - 1 - num_bytes);
  while (used > 0 && ((uint8_t)failure->detail[used] & 0xc0) == 0x80) used--;
  failure->detail[used] = 0;
}

void sml_job_add_unsent_locked(const struct sml_job *job, uint64_t now_ns, struct sml_ctl_abort *failure) {
  const uint64_t joining_ns = job->state == SML_JOB_JOINING ? now_ns - sml_min_u64(now_ns, JOIN_NS) : SML_NEVER;
  const uint64_t since_ns = job->oldest != NULL ? job->oldest->submitted_ns : joining_ns;
  struct sml_unsent last = {.error = 0};
  uint64_t num_packets = 0;
  for (uint32_t e = 0; job->engines != NULL && e < job->engines->num_engines; e++) {
    struct sml_unsent unsent;
    sml_worker_engine_unsent(job->engines->units[e].engine, &unsent);
    num_packets += unsent.num_packets;
    if (unsent.error != 0 && unsent.at_ns >= last.at_ns) last = unsent;
  }
  if (last.error == 0 || last.at_ns < since_ns) return;
  char text[SML_DETAIL_BYTES];
  const uint64_t ago_ns = now_ns - sml_min_u64(now_ns, last.at_ns);
  snprintf(text, sizeof text, "; rank %u's host did not send %llu packets, the last one %.3g s ago: %s%s", job->rank,
           (unsigned long long)num_packets, (double)ago_ns / 1e9, strerror(last.error), what_it_means(last.error));
  make_room(failure, strlen(text));
  add(failure, "%s", text);
}

/* ---- as the aggregators say ---- */

static void add_report(const struct sml_job_shard *shard, uint64_t now_ns, struct sml_ctl_abort *failure) {
  if (shard->has_reported) add(failure, "%s", shard->report.detail);
  else if (shard->silent_since_ns == 0) add(failure, "no answer when it was asked");
  else add(failure, "it has been silent for %.3g s", (double)(now_ns - shard->silent_since_ns) / 1e9);
}

static void add_reports(const struct sml_job *job, uint64_t now_ns, struct sml_ctl_abort *failure) {
  const bool names_ranks = failure->num_ranks == 0;
  uint32_t num_left_out = 0;
  for (uint32_t i = 0; i < job->num_shards; i++) {
    const struct sml_job_shard *shard = &job->shards[i];
    const struct sml_ctl_report *report = &shard->report;
    if (!shard->is_asked) continue;
    for (uint32_t r = 0; names_ranks && shard->has_reported && r < report->num_ranks; r++) {
      uint32_t k = 0;
      while (k < failure->num_ranks && failure->ranks[k] != report->ranks[r]) k++;
      if (k == failure->num_ranks && k < SML_CTL_MAX_RANKS) failure->ranks[failure->num_ranks++] = report->ranks[r];
    }
    num_left_out += strlen(failure->detail) >= MANY_BYTES;
    if (strlen(failure->detail) >= MANY_BYTES) continue;
    /* The address of one in a rank is loopback's for that host's ranks, and no name for the others. */
    if (shard->process_rank != SML_NO_PROCESS_RANK)
      add(failure, "; the aggregator (in rank %u): ", shard->process_rank);
    else if (job->num_shards == 1) add(failure, "; the aggregator: ");
    else add(failure, "; the aggregator at %s: ", shard->session.member.options.aggregator);
    add_report(shard, now_ns, failure);
  }
  if (num_left_out > 0) add(failure, "; and %u more aggregators", num_left_out);
}

void sml_job_add_lateness_locked(const struct sml_job *job, uint64_t now_ns, struct sml_ctl_abort *failure) {
  add_own_view(job, now_ns, failure);
  sml_job_add_unsent_locked(job, now_ns, failure);
  add_reports(job, now_ns, failure);
}

/* ---- asking ---- */

void sml_job_ask_locked(struct sml_job *job, uint64_t now_ns) {
  job->asked_ns = now_ns;
  for (uint32_t i = 0; i < job->num_shards; i++) {
    struct sml_job_shard *shard = &job->shards[i];
    shard->is_asked = shard->session.member.state == SML_MEMBER_RUNNING;
    shard->has_reported = false;
    if (shard->is_asked) sml_member_ask(&shard->session.member);
  }
  sml_control_wake(&job->context->control); /* sessions that this pass has served already */
}

uint64_t sml_job_ask_before_locked(struct sml_job *job, uint64_t began_ns, uint64_t due_ns, uint64_t now_ns) {
  if (due_ns <= began_ns || due_ns == SML_NEVER) return due_ns;
  const uint64_t before_ns = sml_min_u64(SML_ASK_NS, (due_ns - began_ns) / 2);
  if (now_ns < due_ns - before_ns) return due_ns - before_ns;
  /* Not for each of many operations: an answer may be that old. */
  if (job->asked_ns + before_ns <= now_ns) sml_job_ask_locked(job, now_ns);
  return due_ns;
}

bool sml_job_has_reports_locked(const struct sml_job *job) {
  bool has_all = true;
  for (uint32_t i = 0; i < job->num_shards; i++) has_all &= !job->shards[i].is_asked || job->shards[i].has_reported;
  return has_all;
}
