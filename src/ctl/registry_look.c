/* SPDX-License-Identifier: Apache-2.0
 * What the registry tells people: who is in a job, who is late and since when. Nothing here decides anything.
 */
#include <stdarg.h>
#include <stdio.h>

#include "ctl/registry_internal.h"

static bool is_silent(const struct sml_job_entry *job, const struct sml_conn *c, uint64_t now_ns) {
  return now_ns >= c->heard_at_ns + sml_ctl_late_ns(job->lease_ns);
}

/* Heartbeats of two ranks that are equally far can come one after the other, and one can be overdue. */
static bool is_behind(const struct sml_job_entry *job, const struct sml_conn *c, uint64_t now_ns) {
  return c->behind_since_ns != 0 && now_ns - c->behind_since_ns >= 2 * sml_ctl_heartbeat_ns(job->lease_ns);
}

bool sml_registry_is_late(const struct sml_job_entry *job, const struct sml_conn *c, uint64_t now_ns) {
  return job->state == SML_JOB_STARTED && (is_behind(job, c, now_ns) || is_silent(job, c, now_ns));
}

bool sml_registry_listen(struct sml_registry *r, struct sml_conn *c, uint64_t now_ns) {
  const struct sml_registry_options *o = &r->options;
  if (!o->count_packets || r->jobs[c->job].state != SML_JOB_STARTED) return false;
  const uint64_t num_packets = o->count_packets(o->count_packets_user, c->job, c->rank);
  if (num_packets == c->num_packets) return false;
  c->num_packets = num_packets;
  c->heard_at_ns = now_ns;
  return true;
}

void sml_registry_note_called(struct sml_registry *r, struct sml_conn *c, uint64_t submitted, uint64_t now_ns) {
  struct sml_job_entry *job = &r->jobs[c->job];
  if (submitted <= c->submitted) return;
  if (c->is_noted_late) {
    sml_registry_note(r, SML_NOTE_RANK_CALLED, job, c->rank,
                      sml_registry_text(r, "rank %u (%s) called after %.1f s", c->rank, c->host,
                                        (double)(now_ns - c->behind_since_ns) / 1e9));
  }
  c->submitted = submitted;
  c->behind_since_ns = 0;
  c->is_noted_late = false;
  job->submitted = sml_max_u64(job->submitted, submitted);
}

/* One note a look about ranks that have fallen silent or are heard again: it names the lowest and counts the others. */
static void watch_silence(struct sml_registry *r, struct sml_job_entry *job, uint64_t now_ns) {
  const struct sml_conn *first_silent = NULL, *first_back = NULL;
  uint64_t back_since_ns = 0;
  uint32_t num_silent = 0, num_back = 0;
  for (uint32_t i = job->first_member; i != SML_NO_CONN; i = r->conns[i].next) {
    struct sml_conn *c = &r->conns[i];
    sml_registry_listen(r, c, now_ns);
    if (is_silent(job, c, now_ns) && c->silent_since_ns == 0) {
      c->silent_since_ns = c->heard_at_ns;
      if (num_silent++ == 0 || c->rank < first_silent->rank) first_silent = c;
    } else if (!is_silent(job, c, now_ns) && c->silent_since_ns != 0) {
      if (num_back++ == 0 || c->rank < first_back->rank) {
        first_back = c;
        back_since_ns = c->silent_since_ns;
      }
      c->silent_since_ns = 0;
    }
  }
  char others[32] = "";
  if (num_silent > 1) snprintf(others, sizeof others, " (and %u more)", num_silent - 1);
  if (first_silent)
    sml_registry_note(
        r, SML_NOTE_RANK_LATE, job, first_silent->rank,
        sml_registry_text(r,
                          "rank %u (%s)%s has been silent for %.1f s: it is stopped or cut off, and "
                          "is lost after %.4g s (its lease)",
                          first_silent->rank, first_silent->host, others,
                          (double)(now_ns - first_silent->heard_at_ns) / 1e9, (double)job->lease_ns / 1e9));
  others[0] = 0;
  if (num_back > 1) snprintf(others, sizeof others, " (and %u more)", num_back - 1);
  if (first_back)
    sml_registry_note(r, SML_NOTE_RANK_CALLED, job, first_back->rank,
                      sml_registry_text(r, "rank %u (%s)%s is heard again after %.1f s", first_back->rank,
                                        first_back->host, others, (double)(now_ns - back_since_ns) / 1e9));
}

void sml_registry_watch_lateness(struct sml_registry *r, struct sml_job_entry *job, uint64_t now_ns) {
  const struct sml_conn *first = NULL;
  if (job->state == SML_JOB_STARTED) watch_silence(r, job, now_ns);
  uint32_t num_new = 0;
  for (uint32_t i = job->first_member; i != SML_NO_CONN; i = r->conns[i].next) {
    struct sml_conn *c = &r->conns[i];
    if (c->submitted >= job->submitted) continue;
    if (c->behind_since_ns == 0) c->behind_since_ns = now_ns;
    const bool is_new = !c->is_noted_late && c->silent_since_ns == 0 && is_behind(job, c, now_ns) &&
                        now_ns - c->behind_since_ns >= r->options.late_note_ns;
    if (!is_new) continue;
    c->is_noted_late = true;
    num_new++;
    if (!first || c->rank < first->rank) first = c;
  }
  if (!first) return;
  char others[32] = "";
  if (num_new > 1) snprintf(others, sizeof others, ", nor have %u more", num_new - 1);
  sml_registry_note(
      r, SML_NOTE_RANK_LATE, job, first->rank,
      sml_registry_text(r, "rank %u (%s) has not called its operation %llu for %.1f s%s", first->rank, first->host,
                        (unsigned long long)first->submitted, (double)(now_ns - first->behind_since_ns) / 1e9, others));
}

bool sml_registry_look(const struct sml_registry *r, uint16_t job, uint64_t now_ns, struct sml_registry_look *look) {
  const struct sml_job_entry *entry = &r->jobs[job];
  if (job >= r->jobs_end || entry->state == SML_JOB_FREE) return false;
  *look = (struct sml_registry_look){.is_started = entry->state == SML_JOB_STARTED,
                                     .epoch = entry->epoch,
                                     .world_size = entry->world_size,
                                     .features = entry->features,
                                     .shard = entry->shard,
                                     .num_shards = entry->num_shards,
                                     .num_present = entry->num_members,
                                     .num_departed = entry->num_departed,
                                     .lease_ns = entry->lease_ns,
                                     .since_ns = entry->since_ns,
                                     .submitted = entry->submitted};
  memcpy(look->name, entry->name, sizeof look->name);
  memcpy(look->key_name, entry->key_name, sizeof look->key_name);
  memcpy(look->aggregators, entry->aggregators, sizeof look->aggregators);
  uint64_t completed = UINT64_MAX;
  for (uint32_t i = entry->first_member; i != SML_NO_CONN; i = r->conns[i].next) {
    look->num_late += sml_registry_is_late(entry, &r->conns[i], now_ns);
    completed = sml_min_u64(completed, r->conns[i].completed);
  }
  look->completed = completed != UINT64_MAX ? completed : 0;
  look->num_refusals = entry->num_refusals;
  for (uint32_t i = 0; i < sml_min_u32(entry->num_refusals, SML_MAX_REFUSALS); i++)
    look->refusals[i] = entry->refusals[(entry->num_refusals - 1 - i) % SML_MAX_REFUSALS];
  look->num_slots = entry->num_slots;
  if (!look->is_started) return true;
  look->is_one_host = sml_registry_is_one_host(r, entry);
  look->num_lanes = entry->num_lanes;
  look->all_slots = sml_registry_all_slots(entry);
  look->chunk_bytes = entry->chunk_bytes;
  look->num_contributors = entry->num_contributors;
  return true;
}

uint32_t sml_registry_look_at_members(const struct sml_registry *r, uint16_t job, uint64_t now_ns,
                                      struct sml_member_look *members, uint32_t room) {
  const struct sml_job_entry *entry = &r->jobs[job];
  uint32_t num_members = 0;
  for (uint32_t i = entry->first_member; i != SML_NO_CONN && num_members < room; i = r->conns[i].next) {
    const struct sml_conn *c = &r->conns[i];
    struct sml_member_look *m = &members[num_members++];
    *m = (struct sml_member_look){.rank = c->rank,
                                  .has_probed = c->has_probed,
                                  .is_lead = c->is_lead,
                                  .is_late = sml_registry_is_late(entry, c, now_ns),
                                  .heard_ns = c->heard_at_ns,
                                  .submitted = c->submitted,
                                  .completed = c->completed,
                                  .contributor = c->contributor,
                                  .num_lanes = c->num_lanes,
                                  .max_datagram_bytes = c->max_datagram_bytes,
                                  .probed_bytes = c->probed_bytes};
    m->is_silent = m->is_late && is_silent(entry, c, now_ns);
    if (m->is_late) m->since_ns = m->is_silent ? c->heard_at_ns : c->behind_since_ns;
    memcpy(m->host, c->host, sizeof m->host);
  }
  for (uint32_t i = 0; i < sml_min_u32(entry->num_departed, SML_MAX_DEPARTURES) && num_members < room; i++) {
    const struct sml_departure *d = &entry->departures[i];
    struct sml_member_look *m = &members[num_members++];
    *m = (struct sml_member_look){.rank = d->rank, .is_gone = true, .is_lost = d->is_lost, .since_ns = d->at_ns};
    memcpy(m->host, d->host, sizeof m->host);
  }
  return num_members;
}

/* --- the answer to ASK --- */

#define MAX_NAMED 8u /* ranks in one list of a sentence */

struct sentence {
  char *text;
  size_t used_bytes, room_bytes;
};

__attribute__((format(printf, 2, 3))) static void add(struct sentence *s, const char *format, ...) {
  if (s->used_bytes >= s->room_bytes) return;
  va_list args;
  va_start(args, format);
  s->used_bytes += (size_t)vsnprintf(s->text + s->used_bytes, s->room_bytes - s->used_bytes, format, args);
  va_end(args);
}

/* Since when others wait for a rank: it is silent, or behind them, however shortly: who asks has waited long enough.
 * 0: nobody does. */
static uint64_t absent_since(const struct sml_job_entry *job, const struct sml_conn *c, uint64_t now_ns) {
  return is_silent(job, c, now_ns) ? c->heard_at_ns : c->behind_since_ns;
}

/* Ranks that others wait for. The one that they have waited for longest is named with its host and time, the others by
 * number. */
static void add_absent(const struct sml_registry *r, const struct sml_job_entry *job, uint64_t now_ns,
                       struct sml_ctl_report *report, struct sentence *s) {
  const struct sml_conn *first = NULL;
  uint64_t first_since_ns = 0;
  uint32_t num_absent = 0, num_even = 0;
  for (uint32_t i = job->first_member; i != SML_NO_CONN; i = r->conns[i].next) {
    const struct sml_conn *c = &r->conns[i];
    const uint64_t since_ns = absent_since(job, c, now_ns);
    num_even += c->submitted == job->submitted;
    if (since_ns == 0) continue;
    num_absent++;
    if (report->num_ranks < SML_CTL_MAX_RANKS) report->ranks[report->num_ranks++] = (uint16_t)c->rank;
    if (first && since_ns >= first_since_ns) continue;
    first = c;
    first_since_ns = since_ns;
  }
  for (uint32_t i = 0; i < sml_min_u32(job->num_departed, SML_MAX_DEPARTURES); i++) {
    const struct sml_departure *d = &job->departures[i];
    if (report->num_ranks < SML_CTL_MAX_RANKS) report->ranks[report->num_ranks++] = (uint16_t)d->rank;
    add(s, "rank %u (%s) %s %.1f s ago, ", d->rank, d->host, d->is_lost ? "was lost" : "left",
        (double)(now_ns - d->at_ns) / 1e9);
  }
  if (!first) {
    if (num_even == job->world_size) add(s, "every rank has called what the others have, ");
    return;
  }
  const double since_s = (double)(now_ns - first_since_ns) / 1e9;
  const bool is_mute = is_silent(job, first, now_ns);
  add(s, is_mute ? "rank %u (%s) has been silent for %.1f s" : "rank %u (%s) has not called for %.1f s", first->rank,
      first->host, since_s);
  if (num_absent > 1) add(s, is_mute ? ", and %u more are late" : ", nor %u more", num_absent - 1);
  add(s, ", ");
}

/* Slots wait, for whom, and where one of them is. A rank that has called and is missing here has lost packets. */
static void add_slots(const struct sml_waiting_slots *slots, struct sentence *s) {
  const bool is_one = slots->num_waiting == 1;
  add(s, "%u slot%s wait%s", slots->num_waiting, is_one ? "" : "s", is_one ? "s" : "");
  for (uint32_t i = 0; i < sml_min_u32(slots->num_missing, MAX_NAMED); i++)
    add(s, "%s %u", i > 0 ? "," : slots->num_missing > 1 ? " for ranks" : " for rank", slots->missing[i]);
  if (slots->num_missing > MAX_NAMED) add(s, " and %u more", slots->num_missing - MAX_NAMED);
  add(s, " with %u", slots->least_contributions);
  if (slots->most_contributions != slots->least_contributions) add(s, " to %u", slots->most_contributions);
  add(s, " of %u contributions (%slane %u slot %u", slots->num_contributors, is_one ? "" : "one: ", slots->lane,
      slots->slot);
  if (!slots->is_at_switch) add(s, " phase %u", slots->phase);
  add(s, ")");
}

bool sml_registry_report(const struct sml_registry *r, uint16_t job, const struct sml_waiting_slots *slots,
                         uint64_t now_ns, struct sml_ctl_report *report) {
  const struct sml_job_entry *entry = &r->jobs[job];
  memset(report, 0, sizeof *report);
  if (job >= r->jobs_end || entry->state != SML_JOB_STARTED) return false;
  struct sentence s = {report->detail, 0, sizeof report->detail};
  add_absent(r, entry, now_ns, report, &s);
  if (slots->is_unknown) {
    add(&s, "the switch does not tell which slots wait");
  } else if (slots->num_waiting == 0) {
    add(&s, "no slot waits");
  } else {
    add_slots(slots, &s);
    if (report->num_ranks == 0) { /* all have called: then it is these ranks' packets that do not come */
      report->num_ranks = sml_min_u32(slots->num_missing, SML_CTL_MAX_RANKS);
      memcpy(report->ranks, slots->missing, report->num_ranks * sizeof report->ranks[0]);
    }
  }
  if (slots->progress_ns != 0) add(&s, ", the last sum was %.1f s ago", (double)(now_ns - slots->progress_ns) / 1e9);
  return true;
}
