/* SPDX-License-Identifier: Apache-2.0
 * One table of families for each kind of thing: the service, lanes, jobs, ranks. Names of jobs and keys have
 * letters, digits and . _ : / - only, so labels need no escapes. */
#include "switchd/metrics.h"

#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "switchd/status_json.h"

struct writer {
  FILE *stream;
  const struct sml_snapshot *s;
  uint8_t *is_shadowed; /* [num_jobs]: an earlier job has the same name and key, as while one ends and the
                           next joins */
};

static double age_s(const struct sml_snapshot *s, uint64_t then_ns) {
  return then_ns != 0 && s->taken_ns > then_ns ? (double)(s->taken_ns - then_ns) / 1e9 : 0;
}

static void begin(const struct writer *w, const char *name, const char *type, const char *help) {
  fprintf(w->stream, "# HELP switchml_%s %s\n# TYPE switchml_%s %s\n", name, help, name, type);
}

static void put_one(const struct writer *w, const char *name, const char *type, const char *help, double value) {
  begin(w, name, type, help);
  fprintf(w->stream, "switchml_%s %.15g\n", name, value);
}

/* A kind of thing has a list F(name, type, help, value) of its families; the value is an expression of what is at hand
 * where the list is used AS_VALUE. */
struct family {
  const char *name, *type, *help;
};
#define AS_FAMILY(name, type, help, value) {name, type, help},
#define AS_VALUE(name, type, help, value) (double)(value),

static void put_families(const struct writer *w, const struct family *families, size_t num_families,
                         void (*put_values)(const struct writer *w, const struct family *family, size_t f)) {
  for (size_t f = 0; f < num_families; f++) {
    begin(w, families[f].name, families[f].type, families[f].help);
    put_values(w, &families[f], f);
  }
}

/* --- the service --- */

static void put_service(const struct writer *w) {
  const struct sml_snapshot *s = w->s;
  begin(w, "build_info", "gauge", "1, of this version.");
  fprintf(w->stream, "switchml_build_info{version=\"" SML_VERSION_TEXT "\"} 1\n");
  put_one(w, "uptime_seconds", "gauge", "Since the daemon started.", age_s(s, s->started_ns));
  begin(w, "connections", "gauge", "Control connections, of members of jobs and of others.");
  fprintf(w->stream, "switchml_connections{state=\"joined\"} %u\nswitchml_connections{state=\"waiting\"} %u\n",
          s->counts.connections - s->counts.unjoined, s->counts.unjoined);
  put_one(w, "log_lines_left_out_total", "counter", "Lines of the log that were too many, or that nobody read.",
          (double)sml_log_num_left_out());
  put_one(w, "connections_limit", "gauge", "Most control connections.", s->max_connections);
  begin(w, "jobs", "gauge", "Jobs that are joined, and jobs that run.");
  fprintf(w->stream, "switchml_jobs{state=\"joining\"} %u\nswitchml_jobs{state=\"running\"} %u\n",
          s->counts.jobs_joining, s->counts.jobs_started);
  put_one(w, "jobs_limit", "gauge", "Most jobs that run at a time.", s->max_jobs);
  put_one(w, "slots", "gauge", "Slots of each lane.", s->pool_slots);
  begin(w, "events_total", "counter", "What happened to jobs and ranks.");
  for (uint32_t i = 0; i < SML_NUM_HAPPENINGS; i++)
    fprintf(w->stream, "switchml_events_total{event=\"%s\"} %llu\n", sml_happening_names[i],
            (unsigned long long)s->num_happened[i]);
}

/* --- the process, by the names that client libraries of Prometheus use --- */

static void put_process_figure(const struct writer *w, const char *name, const char *type, const char *help,
                               double value) {
  fprintf(w->stream, "# HELP process_%s %s\n# TYPE process_%s %s\nprocess_%s %.15g\n", name, help, name, type, name,
          value);
}

static uint32_t count_open_fds(void) {
  uint32_t num = 0;
  DIR *folder = opendir("/proc/self/fd");
  for (const struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) num += entry->d_name[0] != '.';
  if (!folder) return 0;
  closedir(folder);
  return num - 1; /* the folder's own */
}

static void put_process(const struct writer *w) {
  struct rusage usage;
  struct rlimit fds;
  uint64_t all_pages = 0, resident_pages = 0;
  getrusage(RUSAGE_SELF, &usage);
  getrlimit(RLIMIT_NOFILE, &fds);
  FILE *statm = fopen("/proc/self/statm", "re");
  if (statm && fscanf(statm, "%" SCNu64 " %" SCNu64, &all_pages, &resident_pages) != 2) all_pages = resident_pages = 0;
  if (statm) fclose(statm);
  const double page_bytes = (double)sysconf(_SC_PAGESIZE);
  put_process_figure(w, "cpu_seconds_total", "counter", "Processor time, user and system.",
                     (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                         (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
  put_process_figure(w, "resident_memory_bytes", "gauge", "Memory that is in use.",
                     (double)resident_pages * page_bytes);
  put_process_figure(w, "virtual_memory_bytes", "gauge", "Memory that has addresses.", (double)all_pages * page_bytes);
  put_process_figure(w, "open_fds", "gauge", "Open file descriptors.", count_open_fds());
  put_process_figure(w, "max_fds", "gauge", "Most of them.", (double)fds.rlim_cur);
  put_process_figure(w, "start_time_seconds", "gauge", "When it started, in seconds since 1970.", w->s->started_s);
}

/* --- lanes --- */

#define LANE_FAMILIES(F)                                                                                  \
  F("slots_used", "gauge", "Slots that jobs have.", lane->slots_used)                                     \
  F("received_packets_total", "counter", "Datagrams received.", lane->io.rx_frames)                       \
  F("received_bytes_total", "counter", "UDP payload received.", lane->io.rx_bytes)                        \
  F("sent_packets_total", "counter", "Datagrams sent.", lane->io.tx_frames)                               \
  F("sent_bytes_total", "counter", "UDP payload sent.", lane->io.tx_bytes)                                \
  F("send_failures_total", "counter", "Datagrams that the system did not take.", lane->io.tx_lost_frames) \
  F("system_calls_total", "counter", "System calls of the data path, waits included.", lane->io.system_calls)

static const struct family lane_families[] = {LANE_FAMILIES(AS_FAMILY)};

static void put_lane_values(const struct writer *w, const struct family *family, size_t f) {
  for (uint32_t l = 0; l < w->s->num_lanes; l++) {
    const struct sml_port_snapshot *lane = &w->s->lanes[l];
    const double values[] = {LANE_FAMILIES(AS_VALUE)};
    fprintf(w->stream, "switchml_%s{lane=\"%u\"} %.15g\n", family->name, l, values[f]);
  }
}

static void put_lanes(const struct writer *w) {
  put_families(w, lane_families, SML_ARRAY_LEN(lane_families), put_lane_values);
  begin(w, "dropped_packets_total", "counter", "Datagrams received and not acted upon.");
  for (uint32_t l = 0; l < w->s->num_lanes; l++)
    for (uint32_t d = 0; d < SML_NUM_DROPS; d++)
      fprintf(w->stream, "switchml_dropped_packets_total{lane=\"%u\",reason=\"%s\"} %llu\n", l,
              sml_drop_name((enum sml_drop)d), (unsigned long long)w->s->lanes[l].num_drops[d]);
}

/* --- a switch --- */

static const struct {
  const char *name;
  enum sml_at_switch verdict;
} switch_counts[] = {
    {"first", SML_AT_SWITCH_FIRST},       {"added", SML_AT_SWITCH_ADDED},     {"completed", SML_AT_SWITCH_COMPLETED},
    {"repeated", SML_AT_SWITCH_REPEATED}, {"pending", SML_AT_SWITCH_PENDING}, {"reported", SML_AT_SWITCH_REPORTED},
    {"hello", SML_AT_SWITCH_HELLO},       {"punted", SML_AT_SWITCH_PUNTED},   {"forwarded", SML_AT_SWITCH_FORWARDED}};

/* Those that it dropped are among the lane's. */
static void put_switch(const struct writer *w) {
  const struct sml_switch_snapshot *is = &w->s->at_switch;
  if (!is->is_there || is->read_ns == 0) return;
  put_one(w, "switch_told_age_seconds", "gauge", "Since the switch that sums told its counters.",
          age_s(w->s, is->read_ns));
  begin(w, "switch_packets_total", "counter", "Packets at the switch that sums, by what became of them.");
  for (size_t i = 0; i < SML_ARRAY_LEN(switch_counts); i++)
    fprintf(w->stream, "switchml_switch_packets_total{verdict=\"%s\"} %llu\n", switch_counts[i].name,
            (unsigned long long)is->counts[switch_counts[i].verdict]);
}

/* --- jobs --- */

#define JOB_FAMILIES(F)                                                                                                \
  F("job_world_size", "gauge", "Ranks that the job has when all are in.", job->is.world_size)                          \
  F("job_ranks_present", "gauge", "Ranks with a control connection.", job->is.num_present)                             \
  F("job_ranks_late", "gauge", "Ranks that have not called what others have, or are silent.", job->is.num_late)        \
  F("job_ranks_departed", "gauge", "Ranks that left or were lost.", job->is.num_departed)                              \
  F("job_operations_called_total", "counter", "Operations that the rank that is ahead has called.", job->is.submitted) \
  F("job_operations_completed_total", "counter", "Operations that every rank has completed.", job->is.completed)       \
  F("job_slots", "gauge", "Slots of each of its lanes.", job->is.num_slots)                                            \
  F("job_slots_waiting", "gauge", "Slots whose sum is not complete.", told(job, job->does.slots_waiting))              \
  F("job_sums_total", "counter", "Slots completed.", ours(job, job->does.num_results))                                 \
  F("job_last_sum_age_seconds", "gauge", "Since a slot was completed.",                                                \
    ours(job, 0) + age_s(s, job->does.progress_ns))                                                                    \
  F("job_received_packets_total", "counter", "Updates and probes of its ranks.", ours(job, traffic.num_packets))       \
  F("job_received_bytes_total", "counter", "UDP payload of those.", ours(job, traffic.num_bytes))                      \
  F("job_retransmissions_total", "counter", "Updates and probes that said they were sent again.",                      \
    ours(job, traffic.num_retransmissions))                                                                            \
  F("job_repeated_results_total", "counter", "Results sent again to a rank.", ours(job, traffic.num_repeats))

static const struct family job_families[] = {JOB_FAMILIES(AS_FAMILY)};

static void put_labels(const struct writer *w, const char *name, const struct sml_job_snapshot *job) {
  fprintf(w->stream, "switchml_%s{job_name=\"%s\",key=\"%s\"", name, job->is.name, job->is.key_name);
}

/* What only this daemon's own lanes know, or also a switch that answers: else there is no such series. */
static double ours(const struct sml_job_snapshot *job, uint64_t value) {
  return job->does.is_at_switch ? NAN : (double)value;
}

static double told(const struct sml_job_snapshot *job, uint64_t value) {
  return job->does.is_at_switch && !job->does.has_slots ? NAN : (double)value;
}

static void put_job_values(const struct writer *w, const struct family *family, size_t f) {
  const struct sml_snapshot *s = w->s;
  for (uint32_t j = 0; j < s->num_jobs; j++) {
    const struct sml_job_snapshot *job = &s->jobs[j];
    if (w->is_shadowed[j]) continue;
    const struct sml_traffic traffic = sml_job_traffic(s, job);
    const double values[] = {JOB_FAMILIES(AS_VALUE)};
    if (isnan(values[f])) continue;
    put_labels(w, family->name, job);
    fprintf(w->stream, "} %.15g\n", values[f]);
  }
}

static void put_waits_of(const struct writer *w, const struct sml_job_snapshot *job) {
  const struct sml_waits *waits = &job->does.waits;
  uint64_t num = 0;
  for (uint32_t i = 0; i < SML_NUM_WAITS; i++) {
    num += waits->num[i];
    put_labels(w, "job_chunk_wait_seconds_bucket", job);
    if (i < SML_NUM_WAITS - 1) fprintf(w->stream, ",le=\"%.9g\"", (double)SML_WAIT_BOUND_NS(i) / 1e9);
    else fprintf(w->stream, ",le=\"+Inf\"");
    fprintf(w->stream, "} %" PRIu64 "\n", num);
  }
  put_labels(w, "job_chunk_wait_seconds_sum", job);
  fprintf(w->stream, "} %.9f\n", (double)waits->total_ns / 1e9);
  put_labels(w, "job_chunk_wait_seconds_count", job);
  fprintf(w->stream, "} %" PRIu64 "\n", num);
}

static void put_jobs(const struct writer *w) {
  put_families(w, job_families, SML_ARRAY_LEN(job_families), put_job_values);
  begin(w, "job_chunk_wait_seconds", "histogram",
        "Between a chunk's first contribution and its last, in slot 0 of each lane: a sample of all slots.");
  for (uint32_t j = 0; j < w->s->num_jobs; j++)
    if (!w->is_shadowed[j] && !w->s->jobs[j].does.is_at_switch) put_waits_of(w, &w->s->jobs[j]);
  begin(w, "job_dropped_packets_total", "counter",
        "Datagrams for the job that were not acted upon; reasons that occurred.");
  for (uint32_t j = 0; j < w->s->num_jobs; j++) {
    for (uint32_t d = 0; d < SML_NUM_DROPS; d++) {
      const uint64_t num_drops = w->s->jobs[j].does.num_drops[d];
      if (w->is_shadowed[j] || num_drops == 0) continue;
      put_labels(w, "job_dropped_packets_total", &w->s->jobs[j]);
      fprintf(w->stream, ",reason=\"%s\"} %llu\n", sml_drop_name((enum sml_drop)d), (unsigned long long)num_drops);
    }
  }
}

/* --- tenants --- */

static const struct {
  const char *name, *help;
  size_t offset;
} tenant_families[] = {
    {"tenant_jobs", "Jobs of the tenant that run.", offsetof(struct sml_tenant_snapshot, use.num_jobs)},
    {"tenant_workers", "Their ranks.", offsetof(struct sml_tenant_snapshot, use.num_workers)},
    {"tenant_slots", "Their slots of each lane.", offsetof(struct sml_tenant_snapshot, use.num_slots)},
    {"tenant_jobs_limit", "Most jobs that it may run; 0: no limit.",
     offsetof(struct sml_tenant_snapshot, quota.max_jobs)},
    {"tenant_workers_limit", "Most ranks; 0: no limit.", offsetof(struct sml_tenant_snapshot, quota.max_workers)},
    {"tenant_slots_limit", "Most slots; 0: no limit.", offsetof(struct sml_tenant_snapshot, quota.max_slots)},
};

static void put_tenants(const struct writer *w) {
  for (size_t i = 0; i < SML_ARRAY_LEN(tenant_families); i++) {
    begin(w, tenant_families[i].name, "gauge", tenant_families[i].help);
    for (uint32_t t = 0; t < w->s->num_tenants; t++) {
      const struct sml_tenant_snapshot *tenant = &w->s->tenants[t];
      uint32_t value;
      memcpy(&value, (const uint8_t *)tenant + tenant_families[i].offset, sizeof value);
      fprintf(w->stream, "switchml_%s{tenant=\"%s\"} %u\n", tenant_families[i].name, tenant->name, value);
    }
  }
}

/* --- ranks --- */

#define RANK_FAMILIES(F)                                                                                            \
  F("rank_late_seconds", "gauge", "How long others have waited for the rank, or it was silent; 0: it is not late.", \
    rank->member.is_late ? age_s(s, rank->member.since_ns) : 0)                                                     \
  F("rank_operations_called_total", "counter", "Operations that the rank has called.", rank->member.submitted)      \
  F("rank_received_packets_total", "counter", "Its updates and probes, or those of the ranks that it leads.",       \
    ours(job, rank->look.traffic.num_packets))                                                                      \
  F("rank_received_bytes_total", "counter", "UDP payload of those.", ours(job, rank->look.traffic.num_bytes))       \
  F("rank_retransmissions_total", "counter", "Of them, those that said they were sent again.",                      \
    ours(job, rank->look.traffic.num_retransmissions))                                                              \
  F("rank_slots_missing", "gauge", "Slots that wait for it.", told(job, rank->look.slots_missing))

static const struct family rank_families[] = {RANK_FAMILIES(AS_FAMILY)};

static void put_rank_values(const struct writer *w, const struct family *family, size_t f) {
  const struct sml_snapshot *s = w->s;
  uint32_t num_put = 0;
  for (uint32_t j = 0; j < s->num_jobs; j++) {
    const struct sml_job_snapshot *job = &s->jobs[j];
    for (uint32_t i = 0; !w->is_shadowed[j] && i < job->num_ranks; i++) {
      const struct sml_rank_snapshot *rank = &s->ranks[job->first_rank + i];
      if (rank->member.is_gone || num_put++ >= SML_MAX_RANK_SERIES) continue;
      const double values[] = {RANK_FAMILIES(AS_VALUE)};
      if (isnan(values[f])) continue;
      put_labels(w, family->name, job);
      fprintf(w->stream, ",rank=\"%u\"} %.15g\n", rank->member.rank, values[f]);
    }
  }
}

static void put_ranks(const struct writer *w) {
  uint32_t num_ranks = 0;
  for (uint32_t i = 0; i < w->s->num_ranks; i++) num_ranks += !w->s->ranks[i].member.is_gone;
  put_families(w, rank_families, SML_ARRAY_LEN(rank_families), put_rank_values);
  put_one(w, "ranks_left_out", "gauge", "Ranks beyond those that have figures of their own here.",
          num_ranks > SML_MAX_RANK_SERIES ? num_ranks - SML_MAX_RANK_SERIES : 0);
}

/* --- all --- */

static void find_shadowed(struct writer *w) {
  for (uint32_t j = 1; j < w->s->num_jobs; j++) {
    const struct sml_registry_look *is = &w->s->jobs[j].is;
    for (uint32_t i = 0; i < j && !w->is_shadowed[j]; i++) {
      const struct sml_registry_look *other = &w->s->jobs[i].is;
      w->is_shadowed[j] = strcmp(is->name, other->name) == 0 && strcmp(is->key_name, other->key_name) == 0;
    }
  }
}

char *sml_metrics_text(const struct sml_snapshot *s) {
  char *text = NULL;
  size_t num_bytes;
  struct writer w = {.s = s, .stream = open_memstream(&text, &num_bytes), .is_shadowed = calloc(s->num_jobs + 1u, 1)};
  const bool is_ready = w.stream && w.is_shadowed;
  if (is_ready) {
    find_shadowed(&w);
    put_service(&w);
    put_process(&w);
    put_lanes(&w);
    put_switch(&w);
    put_tenants(&w);
    put_jobs(&w);
    put_ranks(&w);
  }
  const bool is_written = is_ready && !ferror(w.stream);
  const bool is_closed = w.stream && fclose(w.stream) == 0;
  free(w.is_shadowed);
  if (is_written && is_closed) return text;
  free(text);
  return NULL;
}
