/* SPDX-License-Identifier: Apache-2.0 */
#include "switchd/status_json.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/log.h"
#include "base/text.h"

#define SLOW_NS (100 * SML_NS_PER_MS) /* without a sum, where slots wait */
#define SLOW_LEAST_SUMS 1000u         /* before their traffic says something */

const char *const sml_happening_names[SML_NUM_HAPPENINGS] = {
    [SML_HAPPENED_RANK_JOINED] = "rank_joined",   [SML_HAPPENED_RANK_LEFT] = "rank_left",
    [SML_HAPPENED_RANK_LOST] = "rank_lost",       [SML_HAPPENED_RANK_LATE] = "rank_late",
    [SML_HAPPENED_JOB_STARTED] = "job_started",   [SML_HAPPENED_JOB_ENDED] = "job_ended",
    [SML_HAPPENED_JOB_ABORTED] = "job_aborted",   [SML_HAPPENED_JOB_REFUSED] = "job_refused",
    [SML_HAPPENED_JOIN_REFUSED] = "join_refused",
};

static void put(json_t *object, const char *name, uint64_t value) {
  json_object_set_new(object, name, json_integer((json_int_t)value));
}

/* null: nobody knows. */
static void put_known(json_t *object, const char *name, bool is_known, uint64_t value) {
  json_object_set_new(object, name, is_known ? json_integer((json_int_t)value) : json_null());
}

/* Whole characters only, whatever was cut and by whom: JSON has no others, and the text would be missing. */
static void put_text(json_t *object, const char *name, const char *text) {
  char plain[SML_DETAIL_BYTES + 64];
  snprintf(plain, sizeof plain, "%s", text);
  sml_text_make_plain(plain);
  json_object_set_new(object, name, json_string(plain));
}

/* Seconds from `then` to the snapshot; null: never. */
static void put_age(json_t *object, const char *name, const struct sml_snapshot *s, uint64_t then_ns) {
  const double age_s = s->taken_ns > then_ns ? (double)(s->taken_ns - then_ns) / 1e9 : 0;
  json_object_set_new(object, name, then_ns == 0 ? json_null() : json_real(age_s));
}

static void put_drops(json_t *object, const uint64_t *num_drops) {
  json_t *drops = json_object();
  for (uint32_t d = 0; d < SML_NUM_DROPS; d++)
    if (num_drops[d] != 0) put(drops, sml_drop_name((enum sml_drop)d), num_drops[d]);
  json_object_set_new(object, "drops", drops);
}

/* --- jobs --- */

static const char *rank_state(const struct sml_job_snapshot *job, const struct sml_member_look *member) {
  if (member->is_gone) return member->is_lost ? "lost" : "left";
  if (member->is_late) return "late";
  return member->has_probed || job->is.is_started ? "joined" : "probing";
}

/* Slots wait, and nothing is summed: for whom most of them do, and since when. */
static bool find_waited_for(const struct sml_snapshot *s, const struct sml_job_snapshot *job, char *why,
                            size_t why_bytes) {
  /* What nobody had called yet, nobody waited for. */
  const uint64_t begin_ns = sml_max_u64(job->is.since_ns, job->does.opened_ns);
  const uint64_t since_ns = sml_max_u64(job->does.progress_ns, begin_ns);
  if (job->does.slots_waiting == 0 || s->taken_ns < since_ns + SLOW_NS) return false;
  const struct sml_rank_snapshot *slowest = NULL;
  for (uint32_t i = 0; i < job->num_ranks; i++) {
    const struct sml_rank_snapshot *rank = &s->ranks[job->first_rank + i];
    if (slowest == NULL || rank->look.slots_missing > slowest->look.slots_missing) slowest = rank;
  }
  if (slowest == NULL || slowest->look.slots_missing == 0) return false;
  snprintf(why, why_bytes, "nothing was summed for %.1f s: %u of %u slots that wait lack rank %u (%s)",
           (double)(s->taken_ns - since_ns) / 1e9, slowest->look.slots_missing, job->does.slots_waiting,
           slowest->member.rank, slowest->member.host);
  return true;
}

/* So many packets come for what is summed that most are repeats and questions. */
static bool has_much_traffic(const struct sml_snapshot *s, const struct sml_job_snapshot *job, char *why,
                             size_t why_bytes) {
  uint64_t num_packets = 0;
  const uint64_t num_sums = job->does.num_results;
  for (uint32_t i = 0; i < job->num_ranks; i++) num_packets += s->ranks[job->first_rank + i].look.traffic.num_packets;
  if (num_sums < SLOW_LEAST_SUMS || 2 * num_packets < 3 * num_sums * job->is.num_contributors) return false;
  snprintf(why, why_bytes,
           "%.1f packets came for each sum, where %u are needed (%llu repeats were needless): ranks lack processor "
           "time, or packets are lost",
           (double)num_packets / (double)num_sums, job->is.num_contributors,
           (unsigned long long)job->does.num_drops[SML_DROP_NEEDLESS]);
  return true;
}

/* "joining" (not started), "lost", "late", "slow" or "healthy". why: a sentence where it is slow, else "". */
static const char *job_health(const struct sml_snapshot *s, const struct sml_job_snapshot *job, char *why,
                              size_t why_bytes) {
  why[0] = 0;
  if (!job->is.is_started) return "joining";
  for (uint32_t i = 0; i < job->num_ranks; i++)
    if (s->ranks[job->first_rank + i].member.is_lost) return "lost";
  if (job->is.num_late > 0) return "late";
  if (job->does.is_at_switch) return "healthy"; /* nobody knows what it counts for this job */
  return find_waited_for(s, job, why, why_bytes) || has_much_traffic(s, job, why, why_bytes) ? "slow" : "healthy";
}

/* What is wrong with a rank that is late or lost, since when, and what its job's slots hold. */
static void put_trouble(json_t *object, const struct sml_snapshot *s, const struct sml_job_snapshot *job,
                        const struct sml_member_look *m) {
  char text[SML_DETAIL_BYTES], since[32];
  sml_text_age(since, sizeof since, s->taken_ns > m->since_ns ? (double)(s->taken_ns - m->since_ns) / 1e9 : 0);
  size_t used = (size_t)snprintf(text, sizeof text, "rank %u (%s) ", m->rank, m->host);
  used += (size_t)snprintf(text + used, sizeof text - used, m->is_lost ? "was lost %s ago" : "is late for %s: ", since);
  if (!m->is_lost)
    used += (size_t)snprintf(text + used, sizeof text - used, "%sit has called %llu operations, others %llu",
                             m->is_silent ? "it is silent (stopped, or cut off); " : "",
                             (unsigned long long)m->submitted, (unsigned long long)job->is.submitted);
  if (!m->is_lost && job->does.slots_waiting > 0)
    snprintf(text + used, sizeof text - used, "; %u slots wait with %u to %u of %u contributions",
             job->does.slots_waiting, job->does.least_contributions, job->does.most_contributions,
             job->is.num_contributors);
  put_text(object, "text", text);
}

struct sml_traffic sml_job_traffic(const struct sml_snapshot *s, const struct sml_job_snapshot *job) {
  struct sml_traffic all = {0};
  for (uint32_t i = 0; i < job->num_ranks; i++) {
    const struct sml_traffic *t = &s->ranks[job->first_rank + i].look.traffic;
    all.num_packets += t->num_packets;
    all.num_bytes += t->num_bytes;
    all.num_retransmissions += t->num_retransmissions;
    all.num_repeats += t->num_repeats;
  }
  return all;
}

/* What a rank sent, or all of a job's. */
static void put_traffic(json_t *object, const struct sml_traffic *t, bool is_ours) {
  put_known(object, "packets", is_ours, t->num_packets);
  put_known(object, "bytes", is_ours, t->num_bytes);
  put_known(object, "retransmissions", is_ours, t->num_retransmissions);
  put_known(object, "repeats", is_ours, t->num_repeats);
}

static json_t *make_rank(const struct sml_snapshot *s, const struct sml_job_snapshot *job,
                         const struct sml_rank_snapshot *rank) {
  const struct sml_member_look *m = &rank->member;
  json_t *object = json_object();
  put(object, "rank", m->rank);
  put_text(object, "host", m->host);
  put_text(object, "state", rank_state(job, m));
  put_age(object, "since_s", s, m->since_ns);
  if (m->is_late || m->is_lost) put_trouble(object, s, job, m);
  if (m->is_gone) return object;
  json_object_set_new(object, "silent", json_boolean(m->is_silent));
  put_age(object, "heard_s", s, m->heard_ns);
  put(object, "operations_called", m->submitted);
  put(object, "operations_completed", m->completed);
  put(object, "lanes", m->num_lanes);
  put(object, "datagram_bytes", m->max_datagram_bytes);
  put(object, "path_bytes", m->probed_bytes);
  put(object, "hellos", rank->look.traffic.num_hellos);
  put(object, "hello_bytes", rank->look.traffic.hello_bytes);
  if (!job->is.is_started) return object;
  put(object, "contributor", m->contributor);
  json_object_set_new(object, "leads", json_boolean(m->is_lead));
  if (!m->is_lead) return object;
  const bool is_ours = !job->does.is_at_switch;
  put_known(object, "slots_missing", is_ours || job->does.has_slots, rank->look.slots_missing);
  put_traffic(object, &rank->look.traffic, is_ours);
  return object;
}

static int compare_ranks(const void *a, const void *b) {
  const struct sml_rank_snapshot *const *one = a, *const *other = b;
  return (*one)->member.rank < (*other)->member.rank ? -1 : (*one)->member.rank > (*other)->member.rank;
}

static json_t *make_ranks(const struct sml_snapshot *s, const struct sml_job_snapshot *job) {
  json_t *array = json_array();
  const struct sml_rank_snapshot **order = calloc(job->num_ranks + 1u, sizeof *order);
  for (uint32_t i = 0; order && i < job->num_ranks; i++) order[i] = &s->ranks[job->first_rank + i];
  if (order) qsort(order, job->num_ranks, sizeof *order, compare_ranks);
  for (uint32_t i = 0; order && i < job->num_ranks; i++) json_array_append_new(array, make_rank(s, job, order[i]));
  free(order);
  return array;
}

static json_t *make_refusals(const struct sml_snapshot *s, const struct sml_job_snapshot *job) {
  json_t *array = json_array();
  for (uint32_t i = 0; i < sml_min_u32(job->is.num_refusals, SML_MAX_REFUSALS); i++) {
    const struct sml_refusal *refusal = &job->is.refusals[i];
    json_t *object = json_object();
    put(object, "rank", refusal->rank);
    put_text(object, "host", refusal->host);
    put_age(object, "ago_s", s, refusal->at_ns);
    put_text(object, "text", refusal->text);
    json_array_append_new(array, object);
  }
  return array;
}

static void put_slots(json_t *object, const struct sml_snapshot *s, const struct sml_job_snapshot *job) {
  char map[SML_LOOK_CELLS + 1];
  put(object, "lanes", job->is.num_lanes);
  put(object, "chunk_bytes", job->is.chunk_bytes);
  put(object, "contributors", job->is.num_contributors);
  json_object_set_new(object, "shared_memory", json_boolean(job->is.is_one_host));
  json_object_set_new(object, "check", json_boolean(job->is.features & SML_FEATURE_CHECK));
  json_object_set_new(object, "retry", json_boolean(job->is.features & SML_FEATURE_RETRY));
  const bool is_known = !job->does.is_at_switch || job->does.has_slots;
  put_known(object, "slots_waiting", is_known, job->does.slots_waiting);
  put_known(object, "least_contributions", is_known, job->does.least_contributions);
  put_known(object, "most_contributions", is_known, job->does.most_contributions);
  put_age(object, "sum_s", s, job->does.progress_ns);
  for (uint32_t i = 0; i < job->does.num_cells; i++) {
    const uint8_t cell = job->does.cells[i];
    map[i] = cell == SML_CELL_UNUSED ? '.' : cell == SML_CELL_COMPLETE ? '#' : (char)('0' + cell);
  }
  map[job->does.num_cells] = 0;
  json_object_set_new(object, "map", job->does.is_at_switch ? json_null() : json_string(map));
}

static json_t *make_aggregators(const char *addresses) {
  json_t *array = json_array();
  for (size_t num_bytes; *addresses != 0; addresses += num_bytes + (addresses[num_bytes] == ' ')) {
    num_bytes = strcspn(addresses, " ");
    json_array_append_new(array, json_stringn(addresses, num_bytes));
  }
  return array;
}

static json_t *make_job(const struct sml_snapshot *s, const struct sml_job_snapshot *job) {
  char why[SML_DETAIL_BYTES];
  json_t *object = json_object();
  put_text(object, "name", job->is.name);
  put_text(object, "key", job->is.key_name);
  put(object, "number", job->number);
  put(object, "shard", job->is.shard);
  put(object, "shards", sml_max_u32(job->is.num_shards, 1));
  json_object_set_new(object, "aggregators", make_aggregators(job->is.aggregators));
  put_text(object, "state", job->is.is_started ? "running" : "joining");
  put_text(object, "health", job_health(s, job, why, sizeof why));
  put_text(object, "why", why);
  put(object, "world_size", job->is.world_size);
  put(object, "present", job->is.num_present);
  put(object, "late", job->is.num_late);
  put(object, "departed", job->is.num_departed);
  put_age(object, "since_s", s, job->is.since_ns);
  json_object_set_new(object, "lease_s", json_real((double)job->is.lease_ns / 1e9));
  put(object, "operations_called", job->is.submitted);
  put(object, "operations_completed", job->is.completed);
  put(object, "slots", job->is.num_slots);
  json_object_set_new(object, "refused", make_refusals(s, job));
  if (job->is.is_started) {
    put_slots(object, s, job);
    const struct sml_traffic traffic = sml_job_traffic(s, job);
    const bool is_ours = !job->does.is_at_switch;
    put_traffic(object, &traffic, is_ours);
    put_known(object, "sums", is_ours, job->does.num_results);
    put_drops(object, job->does.num_drops);
  }
  json_object_set_new(object, "ranks", make_ranks(s, job));
  return object;
}

/* --- all --- */

/* null: the system took all that was to be sent. */
static json_t *make_send_error(const struct sml_snapshot *s, const struct sml_netio_stats *io) {
  char to[64];
  if (io->tx_error == 0) return json_null();
  json_t *object = json_object();
  sml_addr_format(&io->tx_error_to, to, sizeof to);
  json_object_set_new(object, "text", json_string(strerror(io->tx_error)));
  json_object_set_new(object, "to", json_string(to));
  put_age(object, "ago_s", s, io->tx_error_ns);
  return object;
}

static json_t *make_lane(const struct sml_snapshot *s, const struct sml_port_snapshot *lane, bool is_for_tenant) {
  json_t *object = json_object();
  put(object, "slots_used", lane->slots_used);
  if (is_for_tenant) return object;
  put(object, "port", lane->port);
  put(object, "rx_packets", lane->io.rx_frames);
  put(object, "rx_bytes", lane->io.rx_bytes);
  put(object, "tx_packets", lane->io.tx_frames);
  put(object, "tx_bytes", lane->io.tx_bytes);
  put(object, "tx_lost_packets", lane->io.tx_lost_frames);
  json_object_set_new(object, "tx_error", make_send_error(s, &lane->io));
  put(object, "system_calls", lane->io.system_calls);
  put_drops(object, lane->num_drops);
  return object;
}

/* null: this daemon's own lanes sum. */
static json_t *make_switch(const struct sml_snapshot *s) {
  const uint64_t *counts = s->at_switch.counts;
  if (!s->at_switch.is_there) return json_null();
  json_t *object = json_object();
  put_age(object, "told_s", s, s->at_switch.read_ns);
  put(object, "updates", counts[SML_AT_SWITCH_FIRST] + counts[SML_AT_SWITCH_ADDED] + counts[SML_AT_SWITCH_COMPLETED]);
  put(object, "sums", counts[SML_AT_SWITCH_COMPLETED]);
  put(object, "repeats", counts[SML_AT_SWITCH_REPEATED]);
  put(object, "pending", counts[SML_AT_SWITCH_PENDING]);
  put(object, "reports", counts[SML_AT_SWITCH_REPORTED]);
  put(object, "hellos", counts[SML_AT_SWITCH_HELLO]);
  put(object, "punted", counts[SML_AT_SWITCH_PUNTED]);
  put(object, "forwarded", counts[SML_AT_SWITCH_FORWARDED]);
  put_drops(object, counts);
  return object;
}

static json_t *make_ended(const struct sml_snapshot *s, const struct sml_ended_snapshot *ended) {
  json_t *object = json_object();
  put_text(object, "name", ended->name);
  put_text(object, "key", ended->key_name);
  put_age(object, "ago_s", s, ended->at_ns);
  json_object_set_new(object, "failed", json_boolean(ended->is_failure));
  put(object, "world_size", ended->world_size);
  put_text(object, "text", ended->text);
  return object;
}

/* What leads to the aggregator, for whoever asks whether it is wide enough. A device that does not say how fast it
 * is (a virtual one): null. */
static json_t *make_links(void) {
  json_t *array = json_array();
  struct sml_link links[SML_MAX_LINKS];
  const uint32_t num_links = sml_links_list(links, SML_MAX_LINKS);
  for (uint32_t i = 0; i < num_links; i++) {
    json_t *object = json_object();
    put_text(object, "address", links[i].address);
    put(object, "mtu", links[i].mtu);
    json_object_set_new(object, "mbps", links[i].mbps ? json_integer(links[i].mbps) : json_null());
    json_array_append_new(array, object);
  }
  return array;
}

/* A limit of 0 is none: null. */
static void put_use(json_t *object, const char *name, uint32_t num_used, const char *limit_name, uint32_t limit) {
  put(object, name, num_used);
  json_object_set_new(object, limit_name, limit > 0 ? json_integer(limit) : json_null());
}

static json_t *make_tenant(const struct sml_tenant_snapshot *tenant) {
  json_t *object = json_object();
  put_text(object, "name", tenant->name);
  put_use(object, "jobs", tenant->use.num_jobs, "max_jobs", tenant->quota.max_jobs);
  put_use(object, "workers", tenant->use.num_workers, "max_workers", tenant->quota.max_workers);
  put_use(object, "slots", tenant->use.num_slots, "max_slots", tenant->quota.max_slots);
  return object;
}

static void put_service(json_t *root, const struct sml_snapshot *s, bool is_for_tenant) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  put(root, "schema", 1);
  put_text(root, "version", SML_VERSION_TEXT);
  put(root, "control_version", SML_CTL_VERSION);
  put(root, "wire_version", SML_WIRE_VERSION);
  json_object_set_new(root, "time", json_real((double)now.tv_sec + (double)now.tv_nsec / 1e9));
  put_age(root, "uptime_s", s, s->started_ns);
  json_object_set_new(root, "keyed", json_boolean(s->is_keyed));
  json_object_set_new(root, "limits",
                      json_pack("{s:I, s:I, s:I}", "jobs", (json_int_t)s->max_jobs, "connections",
                                (json_int_t)s->max_connections, "slots", (json_int_t)s->pool_slots));
  json_t *lanes = json_array();
  for (uint32_t l = 0; l < s->num_lanes; l++) json_array_append_new(lanes, make_lane(s, &s->lanes[l], is_for_tenant));
  json_object_set_new(root, "lanes", lanes);
  if (!is_for_tenant) json_object_set_new(root, "switch", make_switch(s));
  json_object_set_new(root, "links", make_links());
  if (is_for_tenant) return;
  put_text(root, "address", s->address);
  put(root, "connections", s->counts.connections);
  put(root, "connections_waiting", s->counts.unjoined);
  put(root, "log_lines_left_out", sml_log_num_left_out());
  json_t *events = json_object();
  for (uint32_t i = 0; i < SML_NUM_HAPPENINGS; i++) put(events, sml_happening_names[i], s->num_happened[i]);
  json_object_set_new(root, "events", events);
}

char *sml_status_json(const struct sml_snapshot *s, const char *key_name) {
  const bool is_for_tenant = key_name[0] != 0;
  json_t *root = json_object(), *jobs = json_array(), *ended = json_array(), *tenants = json_array();
  put_service(root, s, is_for_tenant);
  for (uint32_t j = 0; j < s->num_jobs; j++)
    if (!is_for_tenant || strcmp(s->jobs[j].is.key_name, key_name) == 0)
      json_array_append_new(jobs, make_job(s, &s->jobs[j]));
  for (uint32_t i = 0; i < s->num_ended; i++)
    if (!is_for_tenant || strcmp(s->ended[i].key_name, key_name) == 0)
      json_array_append_new(ended, make_ended(s, &s->ended[i]));
  for (uint32_t i = 0; i < s->num_tenants; i++)
    if (!is_for_tenant || strcmp(s->tenants[i].name, key_name) == 0)
      json_array_append_new(tenants, make_tenant(&s->tenants[i]));
  json_object_set_new(root, "tenants", tenants);
  json_object_set_new(root, "jobs", jobs);
  json_object_set_new(root, "ended", ended);
  char *text = root ? json_dumps(root, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15)) : NULL;
  json_decref(root);
  return text;
}
