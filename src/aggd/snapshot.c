/* SPDX-License-Identifier: Apache-2.0 */
#include "aggd/snapshot.h"

#include <stdio.h>
#include <stdlib.h>

#include "aggd/lanes.h"

#define MAX_BATCH 64u
#define BATCH_RANKS 16384u
#define UNSENT_NS (10 * SML_NS_PER_S) /* what the system did not take so long ago is no news */

static struct sml_snapshot *make(uint32_t num_jobs, uint32_t num_ranks) {
  struct sml_snapshot *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->jobs = calloc(num_jobs + 1u, sizeof *s->jobs);
  s->ranks = calloc(num_ranks + 1u, sizeof *s->ranks);
  atomic_store(&s->num_holders, 1);
  if (s->jobs && s->ranks) return s;
  sml_snapshot_release(s);
  return NULL;
}

void sml_snapshot_release(struct sml_snapshot *s) {
  if (!s || atomic_fetch_sub(&s->num_holders, 1) > 1) return;
  free(s->jobs);
  free(s->ranks);
  free(s->tenants);
  free(s);
}

/* --- one job --- */

static struct sml_job_look begin_look(const struct sml_registry_look *is, struct sml_rank_look *ranks) {
  memset(ranks, 0, is->world_size * sizeof *ranks);
  return (struct sml_job_look){
      .world_size = is->world_size, .num_lanes = sml_max_u32(is->num_lanes, 1), .ranks = ranks};
}

/* What the registry knows of it. */
static void take_job(struct sml_snapshot *s, const struct sml_registry *registry, uint16_t number, uint32_t max_ranks) {
  struct sml_job_snapshot *job = &s->jobs[s->num_jobs];
  if (!sml_registry_look(registry, number, s->taken_ns, &job->is)) return;
  struct sml_member_look members[64];
  struct sml_member_look *all = members;
  const uint32_t room = sml_min_u32(job->is.num_present + job->is.num_departed, max_ranks - s->num_ranks);
  if (room > SML_ARRAY_LEN(members) && !(all = malloc(room * sizeof *all))) return;
  job->number = number;
  job->first_rank = s->num_ranks;
  job->num_ranks = sml_registry_look_at_members(registry, number, s->taken_ns, all, room);
  for (uint32_t i = 0; i < job->num_ranks; i++) s->ranks[s->num_ranks++].member = all[i];
  for (uint32_t lane = 0; job->is.is_started && lane < job->is.num_lanes; lane++)
    s->lanes[lane].slots_used += job->is.all_slots;
  s->num_jobs++;
  if (all != members) free(all);
}

/* A command costs a lane's engine a wake-up. A job that runs is looked at by itself, so that no engine is kept for
 * long; of those that wait many are looked at together: they have no slots, and strangers can have many. */
static uint32_t count_batch(const struct sml_snapshot *s, uint32_t first, uint32_t room) {
  uint32_t num = 1, num_ranks = s->jobs[first].is.world_size;
  if (s->jobs[first].is.is_started) return 1;
  for (; first + num < s->num_jobs && num < MAX_BATCH; num++) {
    num_ranks += s->jobs[first + num].is.world_size;
    if (s->jobs[first + num].is.is_started || num_ranks > room) break;
  }
  return num;
}

/* What lanes, or a switch, know of jobs; scratch: [room] ranks. */
static void look_at_jobs(struct sml_snapshot *s, struct sml_lanes *lanes, uint32_t first, uint32_t num,
                         struct sml_rank_look *scratch) {
  struct sml_lane_look looks[MAX_BATCH];
  for (uint32_t i = 0; i < num; i++) {
    struct sml_job_snapshot *job = &s->jobs[first + i];
    job->does = begin_look(&job->is, scratch);
    scratch += job->is.world_size;
    looks[i] = (struct sml_lane_look){job->number, &job->does};
  }
  sml_lanes_look(lanes, looks, num);
  for (uint32_t i = 0; i < num; i++) {
    struct sml_job_snapshot *job = &s->jobs[first + i];
    struct sml_rank_snapshot *ranks = &s->ranks[job->first_rank];
    sml_lanes_look_at_switch(lanes, job->number, s->taken_ns, &job->does);
    for (uint32_t k = 0; k < job->num_ranks; k++) ranks[k].look = job->does.ranks[ranks[k].member.rank];
    job->does.ranks = NULL;
  }
}

/* --- all --- */

static void copy_history(struct sml_snapshot *s, const struct sml_history *history) {
  memcpy(s->num_happened, history->num_happened, sizeof s->num_happened);
  s->num_ended = sml_min_u32(history->num_ended, SML_MAX_ENDED);
  for (uint32_t i = 0; i < s->num_ended; i++)
    s->ended[i] = history->ended[(history->num_ended - 1 - i) % SML_MAX_ENDED];
}

struct sml_snapshot *sml_snapshot_take(const struct sml_registry *registry, struct sml_lanes *lanes,
                                       const struct sml_history *history, uint64_t now_ns) {
  struct sml_registry_look is;
  uint32_t num_jobs = 0, num_ranks = 0, largest_world = 1;
  for (uint32_t j = 0; j < SML_REGISTRY_MAX_JOBS; j++) {
    if (!sml_registry_look(registry, (uint16_t)j, now_ns, &is)) continue;
    num_jobs++;
    num_ranks += is.num_present + is.num_departed;
    largest_world = sml_max_u32(largest_world, is.world_size);
  }
  struct sml_snapshot *s = make(num_jobs, num_ranks);
  const uint32_t room = sml_max_u32(largest_world, BATCH_RANKS);
  struct sml_rank_look *scratch = calloc(room, sizeof *scratch);
  if (!s || !scratch) {
    sml_snapshot_release(s);
    free(scratch);
    return NULL;
  }
  s->taken_ns = now_ns;
  sml_registry_counts(registry, &s->counts);
  copy_history(s, history);
  s->num_lanes = sml_lanes_count(lanes);
  const uint64_t *counts = sml_lanes_count_at_switch(lanes, now_ns, &s->at_switch.read_ns);
  s->at_switch.is_there = counts != NULL;
  if (counts) memcpy(s->at_switch.counts, counts, sizeof s->at_switch.counts);
  for (uint32_t l = 0; l < s->num_lanes; l++)
    sml_lanes_look_at_port(lanes, l, &s->lanes[l].port, &s->lanes[l].io, s->lanes[l].num_drops);
  for (uint32_t j = 0; s->num_jobs < num_jobs && j < SML_REGISTRY_MAX_JOBS; j++)
    take_job(s, registry, (uint16_t)j, num_ranks);
  for (uint32_t j = 0, num; j < s->num_jobs; j += num) {
    num = count_batch(s, j, room);
    look_at_jobs(s, lanes, j, num, scratch);
  }
  free(scratch);
  return s;
}

/* Whether the address is that of a member of the job: others' are none of its business. */
static bool is_of_job(const struct sml_registry *registry, uint16_t job, uint64_t now_ns, const char *host,
                      uint32_t world_size, uint32_t *rank_out) {
  struct sml_member_look *members = calloc(world_size, sizeof *members);
  const uint32_t num = members ? sml_registry_look_at_members(registry, job, now_ns, members, world_size) : 0;
  bool is_member = false;
  for (uint32_t i = 0; i < num && !is_member; i++) {
    is_member = strcmp(members[i].host, host) == 0;
    *rank_out = members[i].rank;
  }
  free(members);
  return is_member;
}

/* "it did not send 12 packets, the last one to rank 3 (10.0.0.3): Operation not permitted; ", if that is news. It
 * stands in front, because details are cut at their ends. */
static void add_unsent(const struct sml_registry *registry, struct sml_lanes *lanes, uint16_t job, uint32_t world_size,
                       uint64_t now_ns, struct sml_ctl_report *report) {
  for (uint32_t l = 0; l < sml_lanes_count(lanes); l++) {
    struct sml_netio_stats io;
    uint64_t num_drops[SML_NUM_DROPS];
    char host[SML_PEER_BYTES];
    uint16_t port;
    uint32_t rank;
    sml_lanes_look_at_port(lanes, l, &port, &io, num_drops);
    if (io.tx_error == 0 || io.tx_error_ns + UNSENT_NS < now_ns) continue;
    sml_addr_format(&io.tx_error_to, host, sizeof host);
    *strrchr(host, ':') = 0;
    if (!is_of_job(registry, job, now_ns, host, world_size, &rank)) continue;
    char rest[sizeof report->detail];
    memcpy(rest, report->detail, sizeof rest);
    const int used = snprintf(report->detail, sizeof report->detail,
                              "it did not send %llu packets, the last one to rank %u (%s): %s; ",
                              (unsigned long long)io.tx_lost_frames, rank, host, strerror(io.tx_error));
    snprintf(report->detail + used, sizeof report->detail - (size_t)used, "%s", rest);
    return;
  }
}

bool sml_snapshot_report(const struct sml_registry *registry, struct sml_lanes *lanes, uint16_t job, uint64_t now_ns,
                         struct sml_ctl_report *report) {
  struct sml_registry_look is;
  struct sml_job_look does;
  uint64_t told_ns;
  if (!sml_registry_look(registry, job, now_ns, &is)) return false;
  struct sml_rank_look *scratch = calloc(is.world_size, sizeof *scratch);
  if (!scratch) return false;
  does = begin_look(&is, scratch);
  sml_lanes_look(lanes, &(struct sml_lane_look){job, &does}, 1);
  (void)sml_lanes_count_at_switch(lanes, now_ns, &told_ns); /* a look at a switch begins so */
  sml_lanes_look_at_switch(lanes, job, now_ns, &does);
  struct sml_waiting_slots slots = {.num_waiting = does.slots_waiting,
                                    .num_contributors = is.num_contributors,
                                    .least_contributions = does.least_contributions,
                                    .most_contributions = does.most_contributions,
                                    .lane = does.waiting_lane,
                                    .slot = does.waiting_slot,
                                    .phase = does.waiting_phase,
                                    .is_at_switch = does.is_at_switch,
                                    .is_unknown = does.is_at_switch && !does.has_slots,
                                    .progress_ns = sml_min_u64(does.progress_ns, now_ns)};
  /* Whom sums wait for may wait in a one-way window itself: who is missing in both does not. */
  bool has_both = false;
  for (uint32_t rank = 0; rank < is.world_size; rank++)
    has_both = has_both || (scratch[rank].sums_missing > 0 && scratch[rank].oldest_missing > 0);
  for (uint32_t rank = 0; rank < is.world_size; rank++) {
    const bool in_sums = scratch[rank].sums_missing > 0, in_oldest = scratch[rank].oldest_missing > 0;
    if (has_both ? !(in_sums && in_oldest) : !(in_sums || in_oldest)) continue;
    if (slots.num_missing < SML_ARRAY_LEN(slots.missing)) slots.missing[slots.num_missing] = (uint16_t)rank;
    slots.num_missing++;
  }
  free(scratch);
  if (!sml_registry_report(registry, job, &slots, now_ns, report)) return false;
  add_unsent(registry, lanes, job, is.world_size, now_ns, report);
  return true;
}

/* --- history --- */

static enum sml_happening happening_of(enum sml_note note) {
  switch (note) {
    case SML_NOTE_RANK_JOINED: return SML_HAPPENED_RANK_JOINED;
    case SML_NOTE_RANK_LEFT: return SML_HAPPENED_RANK_LEFT;
    case SML_NOTE_RANK_LOST: return SML_HAPPENED_RANK_LOST;
    case SML_NOTE_RANK_LATE: return SML_HAPPENED_RANK_LATE;
    case SML_NOTE_JOB_STARTED: return SML_HAPPENED_JOB_STARTED;
    case SML_NOTE_JOB_ENDED: return SML_HAPPENED_JOB_ENDED;
    case SML_NOTE_JOB_ABORTED: return SML_HAPPENED_JOB_ABORTED;
    case SML_NOTE_JOB_REFUSED: return SML_HAPPENED_JOB_REFUSED;
    case SML_NOTE_JOIN_REFUSED: return SML_HAPPENED_JOIN_REFUSED;
    case SML_NOTE_RANK_CALLED:
    case SML_NOTE_EPOCH_RENEWED:
    case SML_NOTE_STATUS_REFUSED:
    case SML_NOTE_EVICT_REFUSED:
    case SML_NOTE_HOST_LIMITED:
    case SML_NOTE_NO_MULTICAST: break;
  }
  return SML_NUM_HAPPENINGS;
}

void sml_history_note(struct sml_history *history, const struct sml_effect *note, uint64_t now_ns) {
  const enum sml_happening what = happening_of(note->note);
  if (what == SML_NUM_HAPPENINGS) return;
  history->num_happened[what]++;
  const bool is_end =
      what == SML_HAPPENED_JOB_ENDED || what == SML_HAPPENED_JOB_ABORTED || what == SML_HAPPENED_JOB_REFUSED;
  if (!is_end) return;
  struct sml_ended_snapshot *ended = &history->ended[history->num_ended++ % SML_MAX_ENDED];
  *ended = (struct sml_ended_snapshot){
      .at_ns = now_ns, .is_failure = what != SML_HAPPENED_JOB_ENDED, .world_size = note->world_size};
  snprintf(ended->name, sizeof ended->name, "%s", note->job_name);
  snprintf(ended->key_name, sizeof ended->key_name, "%s", note->key_name);
  snprintf(ended->text, sizeof ended->text, "%s", note->text);
}
