/* SPDX-License-Identifier: Apache-2.0
 * What an aggregator's status tells: room for another job, how wide its link is, and why a job does not start. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/doctor/doctor.h"

#define FEW_SLOTS 32u /* what a job gets at least, a lane */

/* -1: there is none, or one that no aggregator of ours can mean. */
static long number_of(const json_t *object, const char *name) {
  const json_t *value = json_object_get(object, name);
  const json_int_t number = json_is_integer(value) ? json_integer_value(value) : -1;
  return number >= 0 && number < INT32_MAX ? (long)number : -1;
}

static const char *text_of(const json_t *object, const char *name) {
  const char *text = json_string_value(json_object_get(object, name));
  return text ? text : "";
}

const json_t *sml_doctor_find_job(const json_t *status, const char *name) {
  size_t i;
  const json_t *job;
  json_array_foreach(json_object_get(status, "jobs"), i, job) {
    if (strcmp(text_of(job, "name"), name) == 0) return job;
  }
  return NULL;
}

/* --- room --- */

static void find_room(struct sml_doctor *d, struct sml_doctor_target *t, const char *what, const char *option,
                      long num_used, long limit, long num_needed) {
  char advice[256];
  const bool is_full = num_used + num_needed > limit;
  if (is_full) t->is_full = true;
  if (!is_full && num_used * 10 < limit * 9) return;
  snprintf(advice, sizeof advice, "wait for a job to end, or restart switchmld with %s of more than %ld", option,
           limit);
  sml_doctor_find(d, SML_DOCTOR_ROOM, "room", is_full ? SML_FINDING_FAILED : SML_FINDING_WARNING,
                  json_pack("{s:s, s:I, s:I}", "what", what, "used", (json_int_t)num_used, "limit", (json_int_t)limit),
                  advice, "%ld of %ld %s are in use%s", num_used, limit, what,
                  is_full ? ": the next job is refused" : "");
}

static long count_running(const json_t *status) {
  size_t i;
  const json_t *job;
  long num_running = 0;
  json_array_foreach(json_object_get(status, "jobs"), i, job) num_running +=
      strcmp(text_of(job, "state"), "running") == 0;
  return num_running;
}

void sml_doctor_check_room(struct sml_doctor *d, struct sml_doctor_target *t) {
  const json_t *limits = json_object_get(t->status, "limits"), *lanes = json_object_get(t->status, "lanes"), *lane;
  const long max_jobs = number_of(limits, "jobs"), max_connections = number_of(limits, "connections");
  const long max_slots = number_of(limits, "slots"), num_connections = number_of(t->status, "connections");
  const int worst = d->worst;
  long num_slots = 0;
  size_t i;
  if (max_slots < 0) {
    sml_doctor_find(d, SML_DOCTOR_ROOM, "room", SML_FINDING_SKIPPED, NULL, "",
                    "the aggregator does not show this host what is in use");
    return;
  }
  json_array_foreach(lanes, i, lane) if (number_of(lane, "slots_used") > num_slots) num_slots =
      number_of(lane, "slots_used");
  /* A tenant sees its own jobs only, and no connections; then the join of a job will tell. */
  const long num_jobs = num_connections >= 0 ? count_running(t->status) : 0;
  find_room(d, t, "slots of a lane", "--slots", num_slots, max_slots, FEW_SLOTS);
  if (num_connections >= 0) {
    find_room(d, t, "jobs", "--max-jobs", num_jobs, max_jobs, 1);
    find_room(d, t, "connections", "--max-connections", num_connections, max_connections, 2);
  }
  if (d->worst != worst || t->is_full) return;
  sml_doctor_find(d, SML_DOCTOR_ROOM, "room", SML_FINDING_OK,
                  json_pack("{s:I, s:I}", "slots_used", (json_int_t)num_slots, "slots", (json_int_t)max_slots), "",
                  num_connections >= 0 ? "%ld of %ld slots a lane, %ld of %ld jobs, %ld of %ld connections in use"
                                       : "%ld of %ld slots a lane in use",
                  num_slots, max_slots, num_jobs, max_jobs, num_connections, max_connections);
}

/* --- the link --- */

double sml_doctor_slowdown(uint32_t num_workers, uint32_t num_aggregators, double worker_mbps, double aggregator_mbps) {
  const double n = num_workers, k = num_aggregators < 1 ? 1 : num_aggregators;
  const double at_worker = 1 / worker_mbps, at_aggregator = n / k / aggregator_mbps;
  const double aggregated = at_worker > at_aggregator ? at_worker : at_aggregator;
  return aggregated / (2 * (n - 1) / n / worker_mbps);
}

static long aggregator_mbps(const struct sml_doctor_target *t) {
  size_t i;
  const json_t *link;
  json_array_foreach(json_object_get(t->status, "links"), i, link) {
    if (strcmp(text_of(link, "address"), t->numeric) == 0) return number_of(link, "mbps");
  }
  return -1;
}

void sml_doctor_check_link(struct sml_doctor *d, const struct sml_doctor_target *t) {
  const long theirs = aggregator_mbps(t), ours = t->link.mbps > 0 ? (long)t->link.mbps : -1;
  const uint32_t n = d->options.world_size, k = d->num_aggregators;
  char advice[400] = "";
  if (t->link.is_loopback) {
    sml_doctor_find(d, SML_DOCTOR_LINK, "link", SML_FINDING_SKIPPED, NULL, "", "the aggregator is on this host");
    return;
  }
  if (ours <= 0 || theirs <= 0) {
    sml_doctor_find(d, SML_DOCTOR_LINK, "link", SML_FINDING_SKIPPED, NULL,
                    "compare by hand: n workers of rate B need n x B at the aggregator, or are slower than a ring with "
                    "fewer than B n^2 / (2(n-1)) there (docs/install.md, Sizing)",
                    "how fast %s is is not known: virtual devices do not say",
                    ours <= 0 ? "the link of this host" : "the aggregator's link");
    return;
  }
  if (n < 2) {
    sml_doctor_find(d, SML_DOCTOR_LINK, "link", SML_FINDING_SKIPPED,
                    json_pack("{s:I, s:I}", "mbps", (json_int_t)ours, "aggregator_mbps", (json_int_t)theirs),
                    "say how many workers (hosts) there are: --world-size N, or WORLD_SIZE",
                    "%ld Mbit/s here, %ld Mbit/s at the aggregator", ours, theirs);
    return;
  }
  const double slowdown = sml_doctor_slowdown(n, k, (double)ours, (double)theirs);
  const bool is_slow = slowdown > 1.0001;
  const double needed = (double)n * (double)ours / k;
  if (is_slow)
    snprintf(advice, sizeof advice,
             "give the aggregator's host %.0f Mbit/s, use more aggregators (SWITCHML_AGGREGATOR=a:1,b:1,...), or none: "
             "unset SWITCHML_AGGREGATOR, and the ranks share the work",
             needed);
  sml_doctor_find(
      d, SML_DOCTOR_LINK, "link", is_slow ? SML_FINDING_WARNING : SML_FINDING_OK,
      json_pack("{s:I, s:I, s:i, s:f}", "mbps", (json_int_t)ours, "aggregator_mbps", (json_int_t)theirs, "world_size",
                (int)n, "time_over_ring", slowdown),
      advice, "%u workers of %ld Mbit/s at %u aggregator%s of %ld Mbit/s: an all-reduce takes %.2f times a ring's time",
      n, ours, k, k == 1 ? "" : "s", theirs, slowdown);
}

/* --- a job that does not start, or is slow --- */

/* "2, 5 and 7 more" of the ranks that are not there. */
static uint32_t list_missing(const json_t *job, char *text, size_t room) {
  const long all = number_of(job, "world_size"), world_size = all < SML_CTL_MAX_WORLD_SIZE ? all : 0;
  const json_t *ranks = json_object_get(job, "ranks"), *rank;
  uint32_t num_missing = 0, next = 0;
  size_t i, used = 0;
  text[0] = 0;
  for (long r = 0; r < world_size; r++) {
    bool is_there = false;
    json_array_foreach(ranks, i, rank) is_there = is_there || number_of(rank, "rank") == r;
    if (is_there) continue;
    if (num_missing++ < 8 && used < room)
      used += (size_t)snprintf(text + used, room - used, "%s%ld", next++ ? ", " : "", r);
  }
  if (num_missing > 8 && used < room) snprintf(text + used, room - used, " and %u more", num_missing - 8);
  return num_missing;
}

static bool find_refused(struct sml_doctor *d, const json_t *job) {
  const json_t *refused = json_object_get(job, "refused"), *one;
  size_t i;
  json_array_foreach(refused, i, one) sml_doctor_find(
      d, SML_DOCTOR_SETTINGS, "job", SML_FINDING_FAILED, json_pack("{s:I}", "rank", (json_int_t)number_of(one, "rank")),
      "set the same on all ranks, and start the one that was refused again", "rank %ld (%s) was refused %.1f s ago: %s",
      number_of(one, "rank"), text_of(one, "host"), json_number_value(json_object_get(one, "ago_s")),
      text_of(one, "text"));
  return json_array_size(refused) > 0;
}

/* A figure of which the smallest of all ranks counts: who has it, if not all are equal. */
static void find_least(struct sml_doctor *d, const json_t *job, const char *what, const char *noun,
                       const char *advice) {
  const json_t *rank, *least = NULL;
  long most = 0;
  size_t i;
  json_array_foreach(json_object_get(job, "ranks"), i, rank) {
    const long value = number_of(rank, what);
    if (value <= 0) continue;
    if (!least || value < number_of(least, what)) least = rank;
    if (value > most) most = value;
  }
  if (!least || number_of(least, what) >= most) return;
  sml_doctor_find(d, SML_DOCTOR_SETTINGS, "job", SML_FINDING_WARNING,
                  json_pack("{s:I, s:s}", "rank", (json_int_t)number_of(least, "rank"), "setting", what), advice,
                  "rank %ld (%s) has %ld %s, others up to %ld: all ranks of the job get the least",
                  number_of(least, "rank"), text_of(least, "host"), number_of(least, what), noun, most);
}

static bool find_late(struct sml_doctor *d, const json_t *job) {
  const json_t *rank;
  size_t i;
  bool has_any = false;
  json_array_foreach(json_object_get(job, "ranks"), i, rank) {
    const char *state = text_of(rank, "state");
    if (strcmp(state, "late") != 0 && strcmp(state, "lost") != 0) continue;
    has_any = true;
    sml_doctor_find(d, SML_DOCTOR_SETTINGS, "job", SML_FINDING_WARNING, NULL,
                    "look at that process: 'switchml status --job' says what the others wait for",
                    "rank %ld (%s) is %s for %.1f s%s", number_of(rank, "rank"), text_of(rank, "host"), state,
                    json_number_value(json_object_get(rank, "since_s")),
                    json_is_true(json_object_get(rank, "silent")) ? " (silent: stopped, or cut off)" : "");
  }
  return has_any;
}

static void find_absent_job(struct sml_doctor *d, const json_t *status, const char *name) {
  const json_t *ended;
  size_t i;
  json_array_foreach(json_object_get(status, "ended"), i, ended) {
    if (strcmp(text_of(ended, "name"), name) != 0) continue;
    const bool has_failed = json_is_true(json_object_get(ended, "failed"));
    sml_doctor_find(d, SML_DOCTOR_SETTINGS, "job", has_failed ? SML_FINDING_FAILED : SML_FINDING_OK, NULL,
                    has_failed ? "do what the sentence says, and start the job again" : "",
                    "job '%s' ended %.1f s ago%s%s", name, json_number_value(json_object_get(ended, "ago_s")),
                    has_failed ? ": " : "", has_failed ? text_of(ended, "text") : "");
    return;
  }
  sml_doctor_find(d, SML_DOCTOR_SETTINGS, "job", SML_FINDING_WARNING, NULL,
                  "no rank of it has come this far: check the ranks' SWITCHML_AGGREGATOR, key and job name",
                  "the aggregator knows no job '%s'", name);
}

void sml_doctor_check_job(struct sml_doctor *d, const struct sml_doctor_target *t) {
  const char *name = d->options.job;
  char missing[160];
  if (!name) return;
  json_t *status = sml_doctor_fetch_status(d, t);
  const json_t *job = sml_doctor_find_job(status, name);
  if (!status) {
    sml_doctor_find(d, SML_DOCTOR_SETTINGS, "job", SML_FINDING_SKIPPED, NULL,
                    "ask with the job's key (SWITCHML_KEY_FILE), or on the aggregator's host",
                    "the aggregator does not show this host its jobs");
  } else if (!job) {
    find_absent_job(d, status, name);
  } else {
    bool has_any = find_refused(d, job);
    const bool is_joining = strcmp(text_of(job, "state"), "joining") == 0;
    const uint32_t num_missing = is_joining ? list_missing(job, missing, sizeof missing) : 0;
    if (num_missing > 0)
      sml_doctor_find(d, SML_DOCTOR_SETTINGS, "job", SML_FINDING_WARNING,
                      json_pack("{s:i}", "missing", (int)num_missing), "start these ranks, or look at what they say",
                      "job '%s' waits for rank%s %s of %ld", name, num_missing == 1 ? "" : "s", missing,
                      number_of(job, "world_size"));
    has_any = find_late(d, job) || has_any || num_missing > 0;
    find_least(d, job, "lanes", "lanes", "set SWITCHML_THREADS alike on all ranks (and --lanes of switchmld)");
    find_least(d, job, "path_bytes", "bytes a datagram", "run switchml doctor on that host: its MTU is smaller");
    if (!has_any)
      sml_doctor_find(d, SML_DOCTOR_SETTINGS, "job", SML_FINDING_OK, NULL, "", "job '%s' of %ld ranks is %s", name,
                      number_of(job, "world_size"), text_of(job, "health"));
  }
  json_decref(status);
}
