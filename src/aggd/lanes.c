/* SPDX-License-Identifier: Apache-2.0 */
#include "aggd/lanes.h"

#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "aggd/dataplane.h"
#include "aggd/switch_look.h"
#include "ctl/contributors.h"
#include "engine/fanout.h"

_Static_assert(SML_CTL_MAX_WORLD_SIZE == SML_MAX_WORLD_SIZE, "ctl and core agree on the largest world");
_Static_assert(SML_CTL_HEADER_BYTES == SML_HEADER_BYTES, "ctl and core agree on the header");
_Static_assert(SML_CTL_KEYED_BYTES == SML_KEYED_BYTES, "ctl and core agree on the extension");
_Static_assert(SML_CTL_FIRST_PHASE == SML_FIRST_PHASE, "ctl and core agree on the first phase");
_Static_assert(SML_CTL_SWITCH_MAX_CONTRIBUTORS == SML_SWITCH_MAX_CONTRIBUTORS, "ctl and core agree on switches");
_Static_assert(SML_AGGD_MAX_JOBS == SML_MAX_JOBS, "aggd and engine agree on the number of jobs");
_Static_assert(SML_AGGD_MAX_LANES == SML_MAX_LANES, "aggd and ctl agree on the number of lanes");

#define NUM_EVENT_KINDS 5u

#define WATCH_NS (100 * SML_NS_PER_MS)
/* A switch is asked for figures so often at most; what has not been asked for so long after that has to wait for the
 * next time, and what was told so long ago says nothing. */
#define LOOK_NS (1 * SML_NS_PER_S)
#define SIGNS_NS (250 * SML_NS_PER_MS) /* a switch's cells are read for signs of life */
#define LOOK_LONGEST_NS (100 * SML_NS_PER_MS)
#define LOOK_OLDEST_NS (5 * SML_NS_PER_S)

enum verb { VERB_OPEN, VERB_EXPECT, VERB_FORGET, VERB_START, VERB_START_ELSEWHERE, VERB_DEPART, VERB_CLOSE, VERB_LOOK };

/* One a lane: the control thread waits for it before it posts the next. */
struct lane_command {
  struct sml_engine_command base;
  enum verb verb;
  uint16_t job;
  uint32_t epoch, rank, world_size;
  uint64_t nonce;
  const struct sml_seal *seal;       /* OPEN, START; the caller's, who waits */
  const uint16_t *contributors;      /* START; likewise */
  const uint64_t *ranks;             /* DEPART; likewise: a bitmap */
  struct sml_addr group;             /* OPEN: num_bytes 0: the job has none */
  struct sml_fanout *fanout;         /* START, may be NULL; the old one, out */
  struct sml_aggregator *aggregator; /* START, CLOSE: the old one, out */
  void *memory;                      /* START: of the new one */
  struct sml_aggregator_options options;
  const struct sml_lane_look *looks; /* LOOK at jobs, or (num_looks 0) */
  uint32_t num_looks, lane;
  struct sml_netio_stats *stats; /* LOOK at the port; the caller's, like looks */
  const struct sml_netio *io;
  struct sml_place *places; /* START_ELSEWHERE, out */
  bool is_done_well;
  sem_t done;
};

struct lane {
  struct sml_netio *io;
  struct sml_aggregator_engine *engine;
  struct sml_recorder *recorder; /* of what is of no job */
  struct sml_recorder_set job_recorders;
  struct sml_engine_thread thread;
  bool is_running;
  struct lane_command command;
  uint64_t open_jobs[SML_BITMAP_WORDS(SML_MAX_JOBS)];
};

/* What is kept for a job at a switch. */
struct outside {
  uint32_t epoch, num_departed; /* num_departed: contributors, until one is reported to block */
  uint32_t departed[SML_SWITCH_MAX_CONTRIBUTORS]; /* 1 + the rank that went, by contributor; 0: none */
  uint16_t *contributors; /* [world_size] of each rank; NULL: the job is not started */
  bool is_lost;           /* its switch has gone, and nobody was told yet */
  uint32_t num_slots, num_contributors;
  uint32_t *words;             /* [2 * num_slots] of its cells; behind them those of the last look for signs of life */
  uint64_t signs_ns;           /* of that */
  uint32_t num_signs[SML_SWITCH_MAX_CONTRIBUTORS]; /* contributions seen in cells that had not them before */
  uint64_t asked_ns, words_ns; /* for them, and when they came; 0: never */
};

struct sml_lanes {
  uint32_t num_lanes, max_datagram_bytes;
  const struct sml_dataplane *dataplane; /* NULL: engines sum */
  struct outside outside[SML_MAX_JOBS];
  uint64_t watch_at_ns; /* 0: there is nothing to watch for */
  uint64_t look_ns, look_until_ns; /* when the switch was asked for figures, and until when it may be asked for more */
  uint64_t counts[SML_NUM_AT_SWITCH], counts_ns; /* what it has told, and when all of that */
  char failure[512];
  struct sml_multicast multicast;
  int event_fd;
  struct lane lanes[SML_MAX_LANES];
  /* One cell a job and kind instead of a queue: it can't fill, and one report of a kind is enough to end
   * a job. A newer epoch takes the cell of an older one. */
  pthread_mutex_t events_lock;
  uint64_t pending[SML_BITMAP_WORDS(SML_MAX_JOBS * NUM_EVENT_KINDS)];
  struct sml_aggregator_event events[SML_MAX_JOBS * NUM_EVENT_KINDS];
};

/* --- events --- */

static void take_event(void *user, const struct sml_aggregator_event *event) {
  struct sml_lanes *lanes = user;
  uint32_t cell = event->job * NUM_EVENT_KINDS + (uint32_t)event->kind;
  SML_ASSERT(event->job < SML_MAX_JOBS && (uint32_t)event->kind < NUM_EVENT_KINDS);
  pthread_mutex_lock(&lanes->events_lock);
  if (!sml_bit_test(lanes->pending, cell) || lanes->events[cell].epoch != event->epoch) {
    sml_bit_set(lanes->pending, cell);
    lanes->events[cell] = *event;
  }
  pthread_mutex_unlock(&lanes->events_lock);
  uint64_t one = 1;
  while (write(lanes->event_fd, &one, sizeof one) < 0 && errno == EINTR) continue; /* full: it wakes all the same */
}

bool sml_lanes_next_event(struct sml_lanes *lanes, struct sml_aggregator_event *event_out) {
  bool is_found = false;
  pthread_mutex_lock(&lanes->events_lock);
  for (uint32_t i = 0; i < SML_ARRAY_LEN(lanes->pending) && !is_found; i++) {
    if (lanes->pending[i] == 0) continue;
    uint32_t cell = i * 64 + (uint32_t)__builtin_ctzll(lanes->pending[i]);
    *event_out = lanes->events[cell];
    sml_bit_clear(lanes->pending, cell);
    is_found = true;
  }
  pthread_mutex_unlock(&lanes->events_lock);
  return is_found;
}

/* --- commands --- */

static void run_command(struct sml_engine_command *base, void *engine, uint64_t now_ns) {
  (void)now_ns;
  struct lane_command *c = (struct lane_command *)base; /* its first member */
  switch (c->verb) {
    case VERB_OPEN:
      c->is_done_well = sml_aggregator_engine_open_job(engine, c->job, c->epoch, c->world_size, c->seal);
      if (c->is_done_well) sml_aggregator_engine_offer_group(engine, c->job, &c->group);
      break;
    case VERB_EXPECT:
      c->is_done_well = sml_aggregator_engine_expect_hello(engine, c->job, c->rank, c->nonce);
      break;
    case VERB_FORGET:
      sml_aggregator_engine_forget_rank(engine, c->job, c->rank);
      break;
    case VERB_START:
      /* Here, so that its pages are of this thread's node. */
      c->aggregator = sml_aggregator_init(c->memory, &c->options);
      c->aggregator = sml_aggregator_engine_start_job(engine, c->job, c->epoch, c->aggregator, c->contributors,
                                                      c->seal);
      c->fanout = sml_aggregator_engine_use_group(engine, c->job, c->fanout);
      break;
    case VERB_START_ELSEWHERE:
      c->is_done_well = sml_aggregator_engine_start_elsewhere(engine, c->job, c->epoch, c->contributors, c->places);
      break;
    case VERB_DEPART:
      sml_aggregator_engine_depart_all(engine, c->job, c->ranks);
      break;
    case VERB_CLOSE:
      c->aggregator = sml_aggregator_engine_close_job(engine, c->job);
      break;
    case VERB_LOOK:
      for (uint32_t i = 0; i < c->num_looks; i++) {
        c->looks[i].look->lane = c->lane;
        sml_aggregator_engine_look(engine, c->looks[i].job, c->looks[i].look);
      }
      if (c->num_looks == 0) *c->stats = c->io->stats;
      break;
  }
  sem_post(&c->done);
}

static void post(struct lane *lane) {
  lane->command.base.run = run_command;
  lane->command.is_done_well = true;
  sml_mailbox_post(sml_aggregator_engine_mailbox(lane->engine), &lane->command.base, lane->io);
}

static void await(struct lane *lane) {
  while (sem_wait(&lane->command.done) != 0) SML_ASSERT(errno == EINTR);
}

/* Posts a copy of `command` to all lanes that have the job open (OPEN: to all), then waits for all. */
static void command_all(struct sml_lanes *lanes, const struct lane_command *command) {
  bool is_posted[SML_MAX_LANES] = {false};
  for (uint32_t l = 0; l < lanes->num_lanes; l++) {
    struct lane *lane = &lanes->lanes[l];
    if (command->verb != VERB_OPEN && !sml_bit_test(lane->open_jobs, command->job)) continue;
    lane->command.verb = command->verb;
    lane->command.job = command->job;
    lane->command.epoch = command->epoch;
    lane->command.rank = command->rank;
    lane->command.ranks = command->ranks;
    lane->command.world_size = command->world_size;
    lane->command.nonce = command->nonce;
    lane->command.seal = command->seal;
    lane->command.aggregator = NULL;
    lane->command.group.num_bytes = 0;
    if (command->verb == VERB_OPEN) (void)sml_multicast_group(&lanes->multicast, command->job, l, &lane->command.group);
    is_posted[l] = true;
    post(lane);
  }
  for (uint32_t l = 0; l < lanes->num_lanes; l++) {
    if (is_posted[l]) await(&lanes->lanes[l]);
  }
}

bool sml_lanes_open_job(struct sml_lanes *lanes, uint16_t job, uint32_t epoch, uint32_t world_size,
                        const struct sml_seal *seal) {
  struct lane_command command = {
      .verb = VERB_OPEN, .job = job, .epoch = epoch, .world_size = world_size, .seal = seal};
  bool is_open = true;
  command_all(lanes, &command);
  for (uint32_t l = 0; l < lanes->num_lanes; l++) {
    struct lane *lane = &lanes->lanes[l];
    if (lane->command.is_done_well) sml_bit_set(lane->open_jobs, job);
    is_open = is_open && lane->command.is_done_well;
  }
  return is_open;
}

bool sml_lanes_expect_hello(struct sml_lanes *lanes, uint16_t job, uint32_t rank, uint64_t nonce) {
  struct lane_command command = {.verb = VERB_EXPECT, .job = job, .rank = rank, .nonce = nonce};
  bool is_expected = true;
  command_all(lanes, &command);
  for (uint32_t l = 0; l < lanes->num_lanes; l++) {
    const struct lane *lane = &lanes->lanes[l];
    is_expected = is_expected && (!sml_bit_test(lane->open_jobs, job) || lane->command.is_done_well);
  }
  return is_expected;
}

void sml_lanes_forget_rank(struct sml_lanes *lanes, uint16_t job, uint32_t rank) {
  struct lane_command command = {.verb = VERB_FORGET, .job = job, .rank = rank};
  command_all(lanes, &command);
}

static void depart_outside(struct sml_lanes *lanes, uint16_t job, uint32_t rank) {
  struct outside *o = &lanes->outside[job];
  if (o->contributors == NULL || o->departed[o->contributors[rank]] != 0) return;
  const uint16_t contributor = o->contributors[rank];
  lanes->dataplane->depart(lanes->dataplane->user, job, contributor);
  o->departed[contributor] = rank + 1;
  o->num_departed++;
  lanes->watch_at_ns = 1; /* at once */
}

static void close_outside(struct sml_lanes *lanes, uint16_t job) {
  struct outside *o = &lanes->outside[job];
  if (o->contributors == NULL) return;
  lanes->dataplane->close_job(lanes->dataplane->user, job);
  free(o->contributors);
  free(o->words);
  *o = (struct outside){.num_departed = 0};
}

static bool report_blocked(struct sml_lanes *lanes, uint16_t job) {
  struct outside *o = &lanes->outside[job];
  for (uint32_t c = 0; c < SML_SWITCH_MAX_CONTRIBUTORS; c++) {
    if (o->departed[c] == 0) continue;
    const uint32_t slot = lanes->dataplane->find_blocked(lanes->dataplane->user, job, c), rank = o->departed[c] - 1;
    if (slot == UINT32_MAX) continue;
    const struct sml_aggregator_event event = {
        .kind = SML_EVENT_BLOCKED, .job = job, .epoch = o->epoch, .rank_a = rank, .rank_b = rank, .slot = slot};
    take_event(lanes, &event);
    return true;
  }
  return false;
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

void sml_lanes_depart(struct sml_lanes *lanes, uint16_t job, const uint64_t *ranks, uint32_t world_size) {
  struct lane_command command = {.verb = VERB_DEPART, .job = job, .ranks = ranks};
  command_all(lanes, &command);
  for (uint32_t rank = 0; lanes->dataplane && rank < world_size; rank++)
    if (sml_bit_test(ranks, rank)) depart_outside(lanes, job, rank);
}

void sml_lanes_close_job(struct sml_lanes *lanes, uint16_t job) {
  struct lane_command command = {.verb = VERB_CLOSE, .job = job};
  if (lanes->dataplane) close_outside(lanes, job);
  command_all(lanes, &command);
  for (uint32_t l = 0; l < lanes->num_lanes; l++) {
    struct lane *lane = &lanes->lanes[l];
    if (!sml_bit_test(lane->open_jobs, job)) continue;
    sml_bit_clear(lane->open_jobs, job);
    free(lane->command.aggregator);
  }
}

/* One lane after the other: they add to the same looks. */
void sml_lanes_look(struct sml_lanes *lanes, const struct sml_lane_look *looks, uint32_t num_looks) {
  for (uint32_t l = 0; l < lanes->num_lanes; l++) {
    struct lane *lane = &lanes->lanes[l];
    lane->command.verb = VERB_LOOK;
    lane->command.looks = looks;
    lane->command.num_looks = num_looks;
    lane->command.lane = l;
    post(lane);
    await(lane);
  }
}

/* A heartbeat waits behind data in a switch's queues, and here data is not seen: its cells show who contributes. */
static uint64_t count_signs(struct sml_lanes *lanes, uint16_t job, uint32_t rank) {
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

uint64_t sml_lanes_packets(struct sml_lanes *lanes, uint16_t job, uint32_t rank) {
  uint64_t num_packets = 0;
  if (lanes->dataplane) return count_signs(lanes, job, rank);
  for (uint32_t l = 0; l < lanes->num_lanes; l++) {
    if (!sml_bit_test(lanes->lanes[l].open_jobs, job)) continue;
    num_packets += sml_aggregator_engine_contributions(lanes->lanes[l].engine, job, rank);
  }
  return num_packets;
}

/* ---- what a switch tells ---- */

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
    look->ranks[r].slots_missing = missing[o->contributors[r]];
    missing[o->contributors[r]] = 0;
  }
}

uint32_t sml_lanes_count(const struct sml_lanes *lanes) {
  return lanes->num_lanes;
}

void sml_lanes_look_at_port(struct sml_lanes *lanes, uint32_t l, uint16_t *port_out, struct sml_netio_stats *stats_out,
                            uint64_t *num_drops) {
  struct lane *lane = &lanes->lanes[l];
  *port_out = sml_lanes_port(lanes, l);
  sml_aggregator_engine_drops(lane->engine, num_drops);
  for (uint32_t d = 0; lanes->dataplane && d < SML_NUM_DROPS; d++) num_drops[d] += lanes->counts[d];
  lane->command.verb = VERB_LOOK;
  lane->command.num_looks = 0;
  lane->command.stats = stats_out;
  lane->command.io = lane->io;
  post(lane);
  await(lane);
}

/* For a job whose ranks hear its groups. False: no memory. */
static bool make_fanout(const struct sml_lanes *lanes, uint16_t job, uint32_t l, const struct sml_ctl_start *start,
                        struct sml_fanout **fanout_out) {
  const struct sml_aggregator_options *options = &lanes->lanes[l].command.options;
  struct sml_addr group;
  *fanout_out = NULL;
  if (!start->is_multicast || !sml_multicast_group(&lanes->multicast, job, l, &group)) return true;
  *fanout_out = sml_fanout_create(&group, options->num_contributors);
  return *fanout_out != NULL;
}

/* The switch sums: its tables are filled when this returns. */
static bool start_outside(struct sml_lanes *lanes, uint16_t job, uint32_t world_size,
                          const struct sml_ctl_start *start) {
  struct lane *lane = &lanes->lanes[0];
  struct sml_dataplane_job is = {.number = job,
                                 .epoch = start->epoch,
                                 .num_contributors = sml_contributors_count(start, world_size),
                                 .num_slots = start->num_slots,
                                 .slot_base = start->slot_base[0],
                                 .first_chunk = start->first_chunk,
                                 .is_checked = (start->features & SML_FEATURE_CHECK) != 0};
  SML_ASSERT(is.num_contributors <= SML_SWITCH_MAX_CONTRIBUTORS && start->num_lanes == 1);
  close_outside(lanes, job); /* an earlier epoch */
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
  post(lane);
  await(lane);
  snprintf(lanes->failure, sizeof lanes->failure, "a rank's HELLO did not come through the switch");
  return lane->command.is_done_well && lanes->dataplane->start_job(lanes->dataplane->user, &is, lanes->failure,
                                                                   sizeof lanes->failure);
}

bool sml_lanes_start_job(struct sml_lanes *lanes, uint16_t job, uint32_t world_size,
                         const struct sml_ctl_start *start, const struct sml_seal *seal) {
  if (lanes->dataplane) return start_outside(lanes, job, world_size, start);
  void *memory[SML_MAX_LANES] = {NULL};
  struct sml_fanout *fanouts[SML_MAX_LANES] = {NULL};
  bool has_memory = true;
  SML_ASSERT(start->num_lanes <= lanes->num_lanes);
  for (uint32_t l = 0; l < start->num_lanes; l++) {
    struct sml_aggregator_options *options = &lanes->lanes[l].command.options;
    *options = (struct sml_aggregator_options){.world_size = world_size,
                                               .num_contributors = sml_contributors_count(start, world_size),
                                               .num_slots = start->num_slots,
                                               .slot_base = start->slot_base[l],
                                               .chunk_bytes = start->chunk_bytes,
                                               .is_checked = (start->features & SML_FEATURE_CHECK) != 0,
                                               .is_switch_format = (start->features & SML_FEATURE_SWITCH) != 0,
                                               .is_narrow = (start->features & SML_FEATURE_NARROW) != 0,
                                               .first_phase = start->first_phase,
                                               .first_chunk = start->first_chunk};
    memory[l] = aligned_alloc(64, sml_align_up(sml_aggregator_memsize(options), 64));
    has_memory = has_memory && memory[l] && sml_bit_test(lanes->lanes[l].open_jobs, job);
    has_memory = has_memory && make_fanout(lanes, job, l, start, &fanouts[l]);
  }
  for (uint32_t l = 0; !has_memory && l < start->num_lanes; l++) {
    free(memory[l]);
    sml_fanout_destroy(fanouts[l]);
  }
  if (!has_memory) return false;
  for (uint32_t l = 0; l < start->num_lanes; l++) {
    struct lane *lane = &lanes->lanes[l];
    lane->command.verb = VERB_START;
    lane->command.job = job;
    lane->command.epoch = start->epoch;
    lane->command.contributors = start->num_ranks != 0 ? start->contributors : NULL;
    lane->command.seal = seal;
    lane->command.memory = memory[l];
    lane->command.fanout = fanouts[l];
    post(lane);
  }
  for (uint32_t l = 0; l < start->num_lanes; l++) {
    await(&lanes->lanes[l]);
    free(lanes->lanes[l].command.aggregator); /* of the epoch before */
    sml_fanout_destroy(lanes->lanes[l].command.fanout);
  }
  return true;
}

/* --- life --- */

static int open_lane(struct sml_lanes *lanes, uint32_t l, const struct sml_aggd_options *options,
                     char *error_out, size_t error_bytes) {
  struct lane *lane = &lanes->lanes[l];
  struct sml_addr bind_addr = options->listen;
  sml_addr_set_port(&bind_addr, options->first_data_port ? (uint16_t)(options->first_data_port + l) : 0);
  struct sml_udp_options udp = {.bind_addr = &bind_addr,
                                .rx_buffer_bytes = options->rx_buffer_bytes,
                                .no_offload = options->no_offload,
                                .polls_device = options->poll == SML_POLL_BUSY,
                                .multicast_interface = options->multicast.interface,
                                .multicast_ttl = options->multicast.first.num_bytes > 0 ? options->multicast.ttl : 0};
  int error = sml_udp_open(&udp, &lane->io, error_out, error_bytes);
  if (error) return error;
  if (sml_faults_any(&options->faults)) {
    struct sml_fault_options faults = options->faults;
    faults.seed += l;
    struct sml_netio *wrapped = sml_faults_wrap(lane->io, &faults);
    if (!wrapped) return -ENOMEM;
    lane->io = wrapped;
  }
  if (options->pcap_path) {
    const struct sml_pcap_options pcap = {
        .path = options->pcap_path, .lane = l, .warn = options->on_capture_ended, .user = options->user};
    error = sml_pcap_wrap(lane->io, &pcap, &lane->io, error_out, error_bytes);
    if (error) return error;
  }
  lane->recorder =
      sml_recorder_create(&(struct sml_recorder_options){options->trace_level, options->trace_events});
  if (!lane->recorder) return -ENOMEM;
  const struct sml_recorder_options of_job = {options->trace_level, options->trace_events / SML_AGGD_TRACE_SHARE};
  if (!sml_recorder_set_open(&lane->job_recorders, &of_job, SML_MAX_JOBS, options->max_jobs)) return -ENOMEM;
  struct sml_aggregator_engine_options engine = {.io = lane->io,
                                                 .kernels = sml_quant_select(NULL),
                                                 .lane = l,
                                                 .is_switch_format = options->packet_lanes != 0,
                                                 .is_beside_switch = options->dataplane != NULL,
                                                 .recorder = lane->recorder,
                                                 .job_recorders = &lane->job_recorders,
                                                 .on_event = take_event,
                                                 .user = lanes};
  lane->engine = sml_aggregator_engine_create(&engine);
  if (!lane->engine) return -ENOMEM;
  lane->thread.io = lane->io;
  lane->thread.engine = lane->engine;
  lane->thread.run_once = sml_aggregator_engine_run_once;
  lane->thread.spin_ns = sml_poll_spin_ns(options->poll);
  lane->thread.cpu = sml_cpus_of_thread(&options->cpus, l);
  lane->thread.is_pinned = lane->thread.cpu != SML_MAX_CPUS;
  char name[16];
  snprintf(name, sizeof name, "sml-agg-%u", l & 0xff);
  error = sml_engine_thread_start(&lane->thread, name);
  lane->is_running = error == 0;
  return -error;
}

static bool open_switch(const struct sml_lanes *lanes, char *error_out, size_t error_bytes) {
  struct sml_addr addr;
  lanes->lanes[0].io->ops->local_addr(lanes->lanes[0].io, &addr);
  return lanes->dataplane->open(lanes->dataplane->user, &addr, error_out, error_bytes);
}

int sml_lanes_open(const struct sml_aggd_options *options, int event_fd, struct sml_lanes **lanes_out,
                   char *error_out, size_t error_bytes) {
  snprintf(error_out, error_bytes, "out of memory");
  struct sml_lanes *lanes = calloc(1, sizeof *lanes);
  if (!lanes) return -ENOMEM;
  lanes->event_fd = event_fd;
  lanes->multicast = options->multicast;
  lanes->dataplane = options->dataplane;
  lanes->max_datagram_bytes = options->max_datagram_bytes > 0 ? options->max_datagram_bytes : UINT16_MAX;
  pthread_mutex_init(&lanes->events_lock, NULL);
  for (uint32_t l = 0; l < options->num_lanes; l++) {
    sem_init(&lanes->lanes[l].command.done, 0, 0);
    lanes->num_lanes++;
    int error = open_lane(lanes, l, options, error_out, error_bytes);
    if (error) {
      if (lanes->lanes[l].engine)
        snprintf(error_out, error_bytes, "cannot start a thread: %s", strerror(-error));
      sml_lanes_close(lanes);
      return error;
    }
    lanes->max_datagram_bytes = sml_min_u32(lanes->max_datagram_bytes, lanes->lanes[l].io->max_frame_bytes);
  }
  if (lanes->dataplane && !open_switch(lanes, error_out, error_bytes)) {
    sml_lanes_close(lanes);
    return -EIO;
  }
  *lanes_out = lanes;
  return 0;
}

void sml_lanes_close(struct sml_lanes *lanes) {
  for (uint32_t l = 0; l < lanes->num_lanes; l++) {
    struct lane *lane = &lanes->lanes[l];
    if (lane->is_running) sml_engine_thread_stop(&lane->thread);
    if (lane->engine) sml_aggregator_engine_destroy(lane->engine);
    if (lane->io) lane->io->ops->close(lane->io);
    sml_recorder_destroy(lane->recorder);
    sml_recorder_set_close(&lane->job_recorders);
    sem_destroy(&lane->command.done);
  }
  pthread_mutex_destroy(&lanes->events_lock);
  for (uint32_t job = 0; job < SML_MAX_JOBS; job++) free(lanes->outside[job].contributors);
  free(lanes);
}

void sml_lanes_close_descriptors(struct sml_lanes *lanes) {
  for (uint32_t l = 0; l < lanes->num_lanes; l++) lanes->lanes[l].io->ops->close(lanes->lanes[l].io);
}

uint16_t sml_lanes_port(const struct sml_lanes *lanes, uint32_t lane) {
  struct sml_addr addr;
  lanes->lanes[lane].io->ops->local_addr(lanes->lanes[lane].io, &addr);
  return sml_addr_port(&addr);
}

uint32_t sml_lanes_max_datagram_bytes(const struct sml_lanes *lanes) {
  return lanes->max_datagram_bytes;
}

void sml_lanes_drops(const struct sml_lanes *lanes, uint64_t *num_drops) {
  memset(num_drops, 0, SML_NUM_DROPS * sizeof *num_drops);
  for (uint32_t l = 0; l < lanes->num_lanes; l++) {
    uint64_t of_lane[SML_NUM_DROPS];
    sml_aggregator_engine_drops(lanes->lanes[l].engine, of_lane);
    for (uint32_t d = 0; d < SML_NUM_DROPS; d++) num_drops[d] += of_lane[d];
  }
}

bool sml_lanes_collect_trace(const struct sml_lanes *lanes, struct sml_trace_dump *dump) {
  bool is_added = true;
  for (uint32_t l = 0; l < lanes->num_lanes && is_added; l++) {
    char name[16];
    snprintf(name, sizeof name, "lane %u", l);
    is_added = sml_trace_add_source(dump, lanes->lanes[l].recorder, l, "%s", name) &&
               sml_recorder_set_add(&lanes->lanes[l].job_recorders, l, name, dump);
  }
  return is_added;
}
