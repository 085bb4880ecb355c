/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/trace.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/thread.h"
#include "ctl/contributors.h"
#include "lib/job.h"
#include "lib/uncancelled.h"
#include "trace/dump.h"

#define MAX_SHARDS_TOLD 8u
/* A process writes so many unasked: jobs that fail over and over must not fill a disk. */
#define MAX_DUMPS 32u
#define AWAIT_DUMP_NS (1 * SML_NS_PER_S) /* a disk that takes longer: the error comes without where the trace is */

static _Atomic uint32_t num_dumps, next_number;

void sml_job_record_locked(const struct sml_job *job, struct sml_record record, uint64_t now_ns) {
  record.time_ns = now_ns;
  record.job = atomic_load_explicit(&job->trace_numbers[0], memory_order_relaxed);
  sml_recorder_put(job->recorder, record);
}

void sml_job_log(const struct sml_job *job, enum sml_lib_log_level level, const char *format, ...) {
  if (level > job->context->settings.log_level) return;
  char text[1024];
  const int used = snprintf(text, sizeof text, "job '%s': ", job->state.name);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + used, sizeof text - (size_t)used, format, arguments);
  va_end(arguments);
  sml_lib_log_line(level, job->state.rank, text);
}

/* ---- what it says at its start ---- */

#define INFO(job, ...) sml_job_log(job, SML_LIB_LOG_INFO, __VA_ARGS__)

static void log_places(const struct sml_job *job) {
  const struct sml_ctl_join *join = &job->shards[0].session.member.options.join;
  const bool is_embedded = job->state.shards[0].process_rank != SML_MEMBER_OF_DAEMON;
  INFO(job, "rank %u of %u, %u %s; lease %.3g s, an operation has %.4g s, a lost aggregator is %s", job->state.rank,
       job->state.world_size, job->state.num_shards,
       is_embedded                 ? "of the hosts aggregate, as no aggregator is configured"
       : job->state.num_shards > 1 ? "aggregators share it"
                                   : "aggregator",
       sml_seconds(join->lease_ns), sml_seconds(job->operation_timeout_ns),
       job->state.retry.retry_ns != 0 ? "waited for (retry)" : "an error (no retry)");
  for (uint32_t s = 0; s < sml_min_u32(job->state.num_shards, MAX_SHARDS_TOLD); s++) {
    const struct sml_session *session = &job->shards[s].session;
    const struct sml_ctl_start *start = &job->state.shards[s].start;
    INFO(job, "aggregator %u is %s: %u lanes, round trip %.3g us from here, %.3g us from the furthest rank", s,
         session->member.options.aggregator, start->num_lanes, (double)session->prober.rtt_ns / 1e3,
         (double)start->rtt_ns / 1e3);
  }
}

sml_slots_reason sml_job_find_slots_reason(const struct sml_job *job) {
  const struct sml_ctl_start *start = &job->state.start;
  const bool has_asked = start->slots_why == SML_SLOTS_REASON_ASKED;
  return has_asked && start->num_slots < job->num_slots_asked ? SML_SLOTS_REASON_FEWER
                                                              : (sml_slots_reason)start->slots_why;
}

static const char *why_slots(const struct sml_job *job, char *text, size_t text_bytes) {
  const uint32_t share = job->shards[0].session.member.options.join.num_slots;
  switch (sml_job_find_slots_reason(job)) {
    case SML_SLOTS_REASON_ASKED: return "as num_slots or SWITCHML_SLOTS asks";
    case SML_SLOTS_REASON_FEWER:
      if (job->state.start.num_slots < share)
        snprintf(text, text_bytes,
                 "fewer than the %u that num_slots or SWITCHML_SLOTS asks for, as chunks are long: "
                 "at most 16 MiB a lane are on the way",
                 job->num_slots_asked);
      else
        snprintf(text, text_bytes, "%u aggregators share the %u that num_slots or SWITCHML_SLOTS asks for",
                 job->state.num_shards, job->num_slots_asked);
      return text;
    case SML_SLOTS_REASON_USUAL: return "the usual number";
    case SML_SLOTS_REASON_PATH: return "more than usual, as the round trip is long";
    case SML_SLOTS_REASON_LOOPBACK: return "fewer than usual, as all is on one host";
    case SML_SLOTS_REASON_POOL: return "fewer than usual, as the aggregator had no more to spare";
    case SML_SLOTS_REASON_QUOTA: return "fewer than usual, as the tenant's quota has no more";
    case SML_SLOTS_REASON_NONE: break;
  }
  return "for an unknown reason";
}

static void log_shape(const struct sml_job *job) {
  const struct sml_ctl_start *start = &job->state.start;
  const struct sml_member *member = &job->shards[0].session.member;
  char why[160];
  INFO(job,
       "%u lanes of %u slots (%s), chunks of %u bytes (the smallest datagram that came back to every rank; here it had "
       "%u of at most %u), so at most %.4g KiB on the way",
       job->lanes.num_lanes, start->num_slots, why_slots(job, why, sizeof why), start->chunk_bytes,
       member->probed.datagram_bytes, member->options.join.max_datagram_bytes,
       (double)job->lanes.num_lanes * start->num_slots * start->chunk_bytes / 1024);
}

static void log_memory(const struct sml_job *job) {
  const struct sml_ctl_start *start = &job->state.start;
  const struct sml_ctl_join *join = &job->shards[0].session.member.options.join;
  char text[96];
  if (start->is_one_host) {
    INFO(job, "all ranks are on this host: they add up in shared memory, nothing goes over the network");
  } else if (start->num_ranks != 0) {
    const uint32_t contributor = sml_contributor_of(start, job->state.rank);
    sml_contributor_describe(start, contributor, text, sizeof text);
    INFO(job, "ranks of one host add up in shared memory: %u senders, of which %s are one, and rank %u sends",
         sml_contributors_count(start, job->state.world_size), text, sml_contributor_lead(start, contributor));
  } else {
    INFO(job, "no shared memory: %s",
         (join->host[0] | join->host[1]) == 0
             ? "it is turned off here, or faults are made, or this process may not share any"
         : job->state.retry.retry_ns != 0 ? "retry is on"
                                          : "no two ranks on one host, or another rank has turned it off");
  }
}

static void log_multicast(const struct sml_job *job) {
  for (uint32_t s = 0; s < job->state.num_shards; s++) {
    const struct sml_session *session = &job->shards[s].session;
    if (session->prober.group_error != 0)
      INFO(job, "the multicast group of %s could not be joined: %s", session->member.options.aggregator,
           strerror(session->prober.group_error));
    else if (job->state.shards[s].start.is_multicast)
      INFO(job, "results of %s come by multicast", session->member.options.aggregator);
    else if (s == 0)
      INFO(job, "results come by unicast: %s",
           session->options.no_multicast ? "multicast is turned off here"
           : session->prober.hears_group ? "another rank does not hear the group"
           : session->member.welcome.group[0] != 0 || session->member.welcome.group[1] != 0
               ? "this rank does not hear the aggregator's multicast group"
               : "the aggregator offers no multicast");
  }
}

static void log_ways(const struct sml_job *job) {
  INFO(job, "reduce-scatters, all-gathers, broadcasts and reduces %s",
       sml_job_lanes_go_one_way(&job->lanes) ? "go one way, if they are long" : "travel as all-reduces");
}

void sml_job_log_start(const struct sml_job *job) {
  const struct sml_member_options *member = &job->shards[0].session.member.options;
  const struct sml_settings *settings = &job->context->settings;
  const bool has_offload = sml_worker_engine_has_offload(job->engines->units[0].engine);
  if (settings->log_level < SML_LIB_LOG_INFO) return;
  log_places(job);
  log_shape(job);
  log_memory(job);
  log_multicast(job);
  log_ways(job);
  INFO(job, "%s%s%s; check word %s; segmentation offload %s; congestion control %s",
       member->is_keyed ? "packets are authenticated with key '" : "no key: packets are not authenticated",
       member->join.key_name, member->is_keyed ? "'" : "",
       (member->join.features & SML_FEATURE_CHECK) != 0 ? "on" : "off",
       has_offload            ? "on"
       : settings->no_offload ? "off (asked for)"
                              : "off (the system has none)",
       settings->no_congestion_control ? "off (SWITCHML_CONGESTION, no_congestion_control)" : "on");
}

/* ---- dumps ---- */

static bool add_engines(struct sml_trace_dump *dump, const struct sml_context *context) {
  bool is_added = true;
  for (size_t f = 0; f < SML_ARRAY_LEN(context->engines); f++) {
    for (uint32_t l = 0; l < SML_MAX_ENGINES && is_added; l++) {
      const struct sml_recorder *recorder = context->engines[f].recorders[l];
      if (recorder != NULL) is_added = sml_trace_add_source(dump, recorder, l, "%slane %u", f == 1 ? "IPv6 " : "", l);
    }
  }
  return is_added;
}

static bool add_jobs(struct sml_trace_dump *dump, const struct sml_context *context) {
  bool is_added = true;
  for (const struct sml_job *job = context->jobs; job != NULL && is_added; job = job->next) {
    is_added = sml_trace_add_source(dump, job->recorder, SML_TRACE_NONE, "job %s", job->state.name);
    for (uint32_t s = 0; s < SML_MAX_SHARDS && is_added; s++) {
      const uint16_t number = atomic_load_explicit(&job->trace_numbers[s], memory_order_relaxed);
      struct sml_trace_job entry = {.number = number, .rank = job->state.rank};
      snprintf(entry.name, sizeof entry.name, "%s", job->state.name);
      if (number != UINT16_MAX) is_added = sml_trace_add_job(dump, &entry);
    }
  }
  return is_added;
}

static sml_status dump_context(struct sml_context *context, const char *path, const char *reason) {
  struct sml_trace_dump dump = {.program = "libswitchml", .reason = reason};
  char error[SML_ERROR_DETAIL_BYTES];
  sml_fork_lock(); /* engines come */
  bool is_whole = add_engines(&dump, context);
  sml_fork_unlock();
  pthread_mutex_lock(&context->lock); /* jobs come and go */
  is_whole = is_whole && add_jobs(&dump, context);
  pthread_mutex_unlock(&context->lock);
  sml_status status = SML_OK;
  if (!is_whole) status = sml_fail(SML_ERR_NO_MEMORY, "no memory for a copy of the trace");
  else if (sml_trace_write(&dump, path, error, sizeof error) != 0) status = sml_fail(SML_ERR_SYSTEM, "%s", error);
  sml_trace_clear(&dump);
  return status;
}

/* FOLDER/switchml-JOB-rankR-PID-N.trace: no two dumps have one name, and none leaves the folder. */
static bool find_path(const struct sml_job *job, char *path, size_t path_bytes) {
  char name[SML_JOB_NAME_BYTES], prefix[SML_TRACE_PATH_BYTES];
  snprintf(name, sizeof name, "%s", job->state.name);
  for (char *c = name; *c != 0; c++)
    if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || *c == '-')) *c = '_';
  const int num_bytes = snprintf(prefix, sizeof prefix, "%s/switchml-%s-rank%u", job->context->settings.trace_folder,
                                 name, job->state.rank);
  return (size_t)num_bytes < sizeof prefix && sml_trace_find_path(prefix, &next_number, path, path_bytes);
}

void sml_job_want_dump_locked(struct sml_job *job) {
  const struct sml_settings *s = &job->context->settings;
  job->told_detail_bytes = strlen(job->state.error.detail);
  if (s->trace_folder[0] == 0 || s->trace_level == SML_TRACE_OFF || job->engines == NULL) return;
  job->is_dump_due = atomic_fetch_add_explicit(&num_dumps, 1, memory_order_relaxed) < MAX_DUMPS;
}

void sml_job_await_dump_locked(struct sml_job *job) {
  const struct timespec deadline = sml_timespec(sml_clock_ns() + AWAIT_DUMP_NS);
  int error = 0;
  while (job->is_dump_due && error == 0) error = pthread_cond_timedwait(&job->changed, &job->lock, &deadline);
}

/* What is said is there. */
static void say_where(struct sml_job *job, const char *path) {
  char note[SML_TRACE_PATH_BYTES + 16];
  const int note_bytes = snprintf(note, sizeof note, " (trace: %s)", path);
  pthread_mutex_lock(&job->lock);
  if (job->told_detail_bytes + (size_t)note_bytes < sizeof job->state.error.detail)
    memcpy(job->state.error.detail + job->told_detail_bytes, note, (size_t)note_bytes + 1);
  pthread_mutex_unlock(&job->lock);
}

void sml_job_dump_if_wanted(struct sml_job *job) {
  char path[SML_TRACE_PATH_BYTES], reason[128];
  pthread_mutex_lock(&job->lock);
  const bool is_due = job->is_dump_due;
  const sml_status status = job->state.error.status;
  pthread_mutex_unlock(&job->lock);
  if (!is_due) return;
  snprintf(reason, sizeof reason, "job %s failed: %s", job->state.name, sml_status_string(status));
  if (!find_path(job, path, sizeof path)) {
    sml_job_log(job, SML_LIB_LOG_WARN, "no trace: the path of SWITCHML_TRACE_DIR is too long");
  } else if (dump_context(job->context, path, reason) == SML_OK) {
    say_where(job, path);
    sml_job_log(job, SML_LIB_LOG_INFO, "trace in %s", path);
  } else {
    sml_job_log(job, SML_LIB_LOG_WARN, "no trace: %s", sml_error_detail());
  }
  pthread_mutex_lock(&job->lock);
  job->is_dump_due = false;
  pthread_cond_broadcast(&job->changed);
  pthread_mutex_unlock(&job->lock);
}

sml_status sml_context_dump_trace(sml_context *context, const char *path) {
  SML_UNCANCELLED;
  if (context == NULL || path == NULL || path[0] == 0)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "context or path is NULL or empty");
  if (sml_context_is_forked(context)) return sml_context_fail_forked();
  if (context->settings.trace_level == SML_TRACE_OFF)
    return sml_fail(SML_ERR_UNSUPPORTED, "nothing is recorded: SWITCHML_TRACE is off");
  return dump_context(context, path, "sml_context_dump_trace()");
}
