/* SPDX-License-Identifier: Apache-2.0
 * Jobs that a switch sums instead of the lanes' engines: what it is told of them, what it tells, and whether it is
 * still there. */
#include <stdio.h>
#include <stdlib.h>

#include "aggd/lanes_internal.h"
#include "aggd/switch_look.h"
#include "ctl/contributors.h"

#define WATCH_NS (100 * SML_NS_PER_MS)
/* A switch is asked for figures so often at most; what has not been asked for so long after that has to wait for the
 * next time, and what was told so long ago says nothing. */
#define LOOK_NS (1 * SML_NS_PER_S)
#define SIGNS_NS (250 * SML_NS_PER_MS) /* a switch's cells are read for signs of life */
#define LOOK_LONGEST_NS (100 * SML_NS_PER_MS)
#define LOOK_OLDEST_NS (5 * SML_NS_PER_S)

void sml_outside_depart(struct sml_lanes *lanes, uint16_t job, uint32_t rank) {
  struct outside *o = &lanes->outside[job];
  if (o->contributors == NULL || o->departed[o->contributors[rank]] != 0) return;
  const uint16_t contributor = o->contributors[rank];
  lanes->dataplane->depart(lanes->dataplane->user, job, contributor);
  o->departed[contributor] = rank + 1;
  o->num_departed++;
  lanes->watch_at_ns = 1; /* at once */
}

void sml_outside_close(struct sml_lanes *lanes, uint16_t job) {
  struct outside *o = &lanes->outside[job];
  if (o->contributors == NULL) return;
  lanes->dataplane->close_job(lanes->dataplane->user, job);
  free(o->contributors);
  free(o->words);
  *o = (struct outside){.num_departed = 0};
}

/* One question for all that have departed: a switch that does not answer costs its patience once. */
static bool report_blocked(struct sml_lanes *lanes, uint16_t job) {
  const struct outside *o = &lanes->outside[job];
  uint32_t departed = 0, contributor;
  for (uint32_t c = 0; c < SML_SWITCH_MAX_CONTRIBUTORS; c++) departed |= (uint32_t)(o->departed[c] != 0) << c;
  const uint32_t slot = lanes->dataplane->find_blocked(lanes->dataplane->user, job, departed, &contributor);
  if (slot == UINT32_MAX) return false;
  const uint32_t rank = o->departed[contributor] - 1;
  const struct sml_aggregator_event event = {
      .kind = SML_EVENT_BLOCKED, .job = job, .epoch = o->epoch, .rank_a = rank, .rank_b = rank, .slot = slot};
  sml_lanes_take_event(lanes, &event);
  return true;
}

static bool has_lost_switch(struct sml_lanes *lanes) {
  const struct sml_dataplane *d = lanes->dataplane;
  return d->is_lost != NULL && d->is_lost(d->user, lanes->failure, sizeof lanes->failure);
}

uint64_t sml_lanes_watch(struct sml_lanes *lanes, uint64_t now_ns) {
  if (lanes->watch_at_ns == 0) return SML_NEVER;
  if (now_ns < lanes->watch_at_ns) return lanes->watch_at_ns;
  const bool is_lost = has_lost_switch(lanes);
  lanes->watch_at_ns = 0;
  for (uint32_t job = 0; job < SML_MAX_JOBS; job++) {
    struct outside *o = &lanes->outside[job];
    if (o->contributors == NULL) continue;
    o->is_lost = o->is_lost || is_lost;
    if (o->num_departed > 0 && !o->is_lost && report_blocked(lanes, (uint16_t)job)) o->num_departed = 0;
    if (o->num_departed > 0 || lanes->dataplane->is_lost != NULL) lanes->watch_at_ns = now_ns + WATCH_NS;
  }
  return lanes->watch_at_ns == 0 ? SML_NEVER : lanes->watch_at_ns;
}

bool sml_lanes_next_lost(struct sml_lanes *lanes, uint16_t *job_out, uint32_t *epoch_out) {
  for (uint32_t job = 0; lanes->watch_at_ns != 0 && job < SML_MAX_JOBS; job++) {
    if (!lanes->outside[job].is_lost) continue;
    lanes->outside[job].is_lost = false;
    *job_out = (uint16_t)job;
    *epoch_out = lanes->outside[job].epoch;
    return true;
  }
  return false;
}

const char *sml_lanes_failure(const struct sml_lanes *lanes) {
  return lanes->failure;
}

bool sml_outside_start(struct sml_lanes *lanes, uint16_t job, uint32_t world_size, const struct sml_ctl_start *start) {
  struct lane *lane = &lanes->lanes[0];
  struct sml_dataplane_job is = {.number = job,
                                 .epoch = start->epoch,
                                 .num_contributors = sml_contributors_count(start, world_size),
                                 .num_slots = start->num_slots,
                                 .slot_base = start->slot_base[0],
                                 .first_chunk = start->first_chunk,
                                 .is_checked = (start->features & SML_FEATURE_CHECK) != 0};
  SML_ASSERT(is.num_contributors <= SML_SWITCH_MAX_CONTRIBUTORS && start->num_lanes == 1);
  sml_outside_close(lanes, job); /* an earlier epoch */
  if (lanes->watch_at_ns == 0) { /* there is no other job: what has gone before is not this one's */
    (void)has_lost_switch(lanes);
    lanes->watch_at_ns = 1; /* at once */
  }
  lanes->failure[0] = 0;
  uint16_t *contributors = calloc(world_size, sizeof *contributors);
  uint32_t *words = calloc(4 * (size_t)is.num_slots, sizeof *words);
  if (!contributors || !words) {
    free(contributors);
    free(words);
    return false;
  }
  for (uint32_t r = 0; r < world_size; r++) contributors[r] = (uint16_t)sml_contributor_of(start, r);
  lanes->outside[job] = (struct outside){.epoch = start->epoch,
                                         .contributors = contributors,
                                         .num_slots = is.num_slots,
                                         .num_contributors = is.num_contributors,
                                         .words = words};
  lane->command.verb = VERB_START_ELSEWHERE;
  lane->command.job = job;
  lane->command.epoch = start->epoch;
  lane->command.contributors = start->num_ranks != 0 ? start->contributors : NULL;
  lane->command.places = is.places;
  sml_lane_post(lane);
  sml_lane_await(lane);
  snprintf(lanes->failure, sizeof lanes->failure, "a rank's HELLO did not come through the switch");
  return lane->command.is_done_well &&
         lanes->dataplane->start_job(lanes->dataplane->user, &is, lanes->failure, sizeof lanes->failure);
}

bool sml_lanes_follow(struct sml_lanes *lanes, uint16_t job, uint32_t epoch) {
  struct lane *lane = &lanes->lanes[0];
  struct sml_place places[SML_SWITCH_MAX_CONTRIBUTORS];
  const struct outside *o = &lanes->outside[job];
  if (o->contributors == NULL || o->epoch != epoch) return true; /* it has ended */
  lane->command.verb = VERB_FOLLOW;
  lane->command.job = job;
  lane->command.places = places;
  sml_lane_post(lane);
  sml_lane_await(lane);
  return lanes->dataplane->follow(lanes->dataplane->user, job, places, lanes->failure, sizeof lanes->failure);
}

/* ---- what a switch tells ---- */

bool sml_lanes_hear(struct sml_lanes *lanes, uint64_t mac, uint16_t port, char *why_out, size_t why_bytes) {
  const struct sml_dataplane *d = lanes->dataplane;
  why_out[0] = 0;
  if (d != NULL && d->hear != NULL) d->hear(d->user, mac, port, why_out, why_bytes);
  return why_out[0] != 0;
}

/* A heartbeat waits behind data in a switch's queues, and here data is not seen: its cells show who contributes. */
uint64_t sml_outside_count_signs(struct sml_lanes *lanes, uint16_t job, uint32_t rank) {
  const struct sml_dataplane *d = lanes->dataplane;
  struct outside *o = &lanes->outside[job];
  const uint64_t now_ns = sml_clock_ns();
  if (o->contributors == NULL) return 0;
  const uint16_t contributor = o->contributors[rank];
  uint32_t *old = o->words + 2 * (size_t)o->num_slots;
  if (now_ns - o->signs_ns < SIGNS_NS) return o->num_signs[contributor];
  const bool is_told = d->read_words(d->user, job, o->words);
  o->signs_ns = sml_clock_ns(); /* of one that does not answer, too: it has had its time */
  if (!is_told) return o->num_signs[contributor];
  o->words_ns = o->asked_ns = now_ns;
  for (uint32_t cell = 0; cell < 2 * o->num_slots; cell++) {
    const uint32_t word = o->words[cell], is_other_phase = (word ^ old[cell]) >> SML_SWITCH_TURN_SHIFT;
    const uint32_t fresh = is_other_phase ? word : word & ~old[cell];
    for (uint32_t c = 0; c < o->num_contributors; c++) o->num_signs[c] += fresh >> c & 1;
    old[cell] = word;
  }
  return o->num_signs[contributor];
}

/* One that does not answer costs its patience once a time. */
static void end_look(struct sml_lanes *lanes, bool is_told) {
  if (!is_told) lanes->look_until_ns = 0;
}

const uint64_t *sml_lanes_count_at_switch(struct sml_lanes *lanes, uint64_t now_ns, uint64_t *read_ns_out) {
  const struct sml_dataplane *d = lanes->dataplane;
  if (d == NULL) return NULL;
  if (lanes->look_ns == 0 || now_ns - lanes->look_ns >= LOOK_NS) {
    lanes->look_ns = now_ns;
    lanes->look_until_ns = now_ns + LOOK_LONGEST_NS;
    const bool is_told = d->read_counters(d->user, lanes->counts);
    if (is_told) lanes->counts_ns = now_ns;
    end_look(lanes, is_told);
  }
  *read_ns_out = lanes->counts_ns;
  return lanes->counts;
}

void sml_lanes_look_at_switch(struct sml_lanes *lanes, uint16_t job, uint64_t now_ns, struct sml_job_look *look) {
  const struct sml_dataplane *d = lanes->dataplane;
  struct outside *o = &lanes->outside[job];
  uint32_t missing[SML_SWITCH_MAX_CONTRIBUTORS] = {0};
  look->is_at_switch = d != NULL;
  if (d == NULL || o->contributors == NULL) return;
  const bool is_old = o->asked_ns == 0 || now_ns - o->asked_ns >= LOOK_NS;
  if (is_old && sml_clock_ns() < lanes->look_until_ns) {
    o->asked_ns = now_ns;
    const bool is_told = d->read_words(d->user, job, o->words);
    if (is_told) o->words_ns = now_ns;
    end_look(lanes, is_told);
  }
  look->has_slots = o->words_ns != 0 && now_ns - o->words_ns < LOOK_OLDEST_NS;
  if (!look->has_slots) return;
  sml_switch_look(o->words, o->num_slots, o->num_contributors, look, missing);
  for (uint32_t r = 0; r < look->world_size; r++) { /* the lowest rank of each leads */
    look->ranks[r].slots_missing = look->ranks[r].sums_missing = missing[o->contributors[r]];
    missing[o->contributors[r]] = 0;
  }
}
