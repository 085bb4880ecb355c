/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/job_log.h"

#include <stdarg.h>
#include <stdio.h>

#include "ctl/contributors.h"

#define MAX_SHARDS_TOLD 8u

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

#define INFO(job, ...) sml_job_log(job, SML_LIB_LOG_INFO, __VA_ARGS__)

static double seconds(uint64_t ns) {
  return (double)ns / 1e9;
}

static void log_places(const struct sml_job *job) {
  const struct sml_ctl_join *join = &job->shards[0].session.member.options.join;
  const bool is_embedded = job->state.shards[0].process_rank != SML_MEMBER_OF_DAEMON;
  INFO(job, "rank %u of %u, %u %s; lease %.3g s, an operation has %.4g s, a lost aggregator is %s", job->state.rank,
       job->state.world_size, job->state.num_shards,
       is_embedded             ? "of the hosts aggregate, as no aggregator is configured"
       : job->state.num_shards > 1 ? "aggregators share it"
                             : "aggregator",
       seconds(join->lease_ns), seconds(job->operation_timeout_ns),
       job->state.retry.retry_ns != 0 ? "waited for (retry)" : "an error (no retry)");
  for (uint32_t s = 0; s < sml_min_u32(job->state.num_shards, MAX_SHARDS_TOLD); s++) {
    const struct sml_session *session = &job->shards[s].session;
    const struct sml_ctl_start *start = &job->state.shards[s].start;
    INFO(job, "aggregator %u is %s: %u lanes, round trip %.3g us from here, %.3g us from the furthest rank", s,
         session->member.options.aggregator, start->num_lanes, (double)session->prober.rtt_ns / 1e3,
         (double)start->rtt_ns / 1e3);
  }
}

sml_slots_reason sml_job_why_slots(const struct sml_job *job) {
  const struct sml_ctl_start *start = &job->state.start;
  const bool has_asked = start->slots_why == SML_SLOTS_REASON_ASKED;
  return has_asked && start->num_slots < job->num_slots_asked ? SML_SLOTS_REASON_FEWER
                                                              : (sml_slots_reason)start->slots_why;
}

static const char *why_slots(const struct sml_job *job, char *text, size_t text_bytes) {
  const uint32_t share = job->shards[0].session.member.options.join.num_slots;
  switch (sml_job_why_slots(job)) {
    case SML_SLOTS_REASON_ASKED:
      return "as num_slots or SWITCHML_SLOTS asks";
    case SML_SLOTS_REASON_FEWER:
      if (job->state.start.num_slots < share)
        snprintf(text, text_bytes,
                 "fewer than the %u that num_slots or SWITCHML_SLOTS asks for, as chunks are long: "
                 "at most 16 MiB a lane are on the way", job->num_slots_asked);
      else
        snprintf(text, text_bytes, "%u aggregators share the %u that num_slots or SWITCHML_SLOTS asks for",
                 job->state.num_shards, job->num_slots_asked);
      return text;
    case SML_SLOTS_REASON_USUAL:
      return "the usual number";
    case SML_SLOTS_REASON_PATH:
      return "more than usual, as the round trip is long";
    case SML_SLOTS_REASON_LOOPBACK:
      return "fewer than usual, as all is on one host";
    case SML_SLOTS_REASON_POOL:
      return "fewer than usual, as the aggregator had no more to spare";
    case SML_SLOTS_REASON_QUOTA:
      return "fewer than usual, as the tenant's quota has no more";
    case SML_SLOTS_REASON_NONE:
      break;
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
         : job->state.retry.retry_ns != 0                 ? "retry is on"
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
           session->options.no_multicast      ? "multicast is turned off here"
           : session->prober.hears_group      ? "another rank does not hear the group"
           : session->member.welcome.group[0] != 0 || session->member.welcome.group[1] != 0
               ? "this rank does not hear the aggregator's multicast group"
               : "the aggregator offers no multicast");
  }
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
  INFO(job, "%s%s%s; check word %s; segmentation offload %s; congestion control %s",
       member->is_keyed ? "packets are authenticated with key '" : "no key: packets are not authenticated",
       member->join.key_name, member->is_keyed ? "'" : "",
       (member->join.features & SML_FEATURE_CHECK) != 0 ? "on" : "off",
       has_offload ? "on" : settings->no_offload ? "off (asked for)" : "off (the system has none)",
       settings->no_congestion_control ? "off (SWITCHML_CONGESTION, no_congestion_control)" : "on");
}
