/* SPDX-License-Identifier: Apache-2.0 */
#include "aggd/lanes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "aggd/lanes_internal.h"
#include "ctl/contributors.h"

_Static_assert(SML_CTL_MAX_WORLD_SIZE == SML_MAX_WORLD_SIZE, "ctl and core agree on the largest world");
_Static_assert(SML_CTL_HEADER_BYTES == SML_HEADER_BYTES, "ctl and core agree on the header");
_Static_assert(SML_CTL_KEYED_BYTES == SML_KEYED_BYTES, "ctl and core agree on the extension");
_Static_assert(SML_CTL_FIRST_PHASE == SML_FIRST_PHASE, "ctl and core agree on the first phase");
_Static_assert(SML_CTL_SWITCH_MAX_CONTRIBUTORS == SML_SWITCH_MAX_CONTRIBUTORS, "ctl and core agree on switches");
_Static_assert(SML_AGGD_MAX_JOBS == SML_MAX_JOBS, "aggd and engine agree on the number of jobs");
_Static_assert(SML_AGGD_MAX_LANES == SML_MAX_LANES, "aggd and ctl agree on the number of lanes");

/* --- events --- */

void sml_lanes_take_event(void *user, const struct sml_aggregator_event *event) {
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
      if (c->is_done_well) sml_aggregator_engine_know_host(engine, c->job, c->rank, c->host);
      break;
    case VERB_FORGET: sml_aggregator_engine_forget_rank(engine, c->job, c->rank); break;
    case VERB_START:
      /* Here, so that its pages are of this thread's node. */
      c->aggregator = sml_aggregator_init(c->memory, &c->options);
      c->aggregator =
          sml_aggregator_engine_start_job(engine, c->job, c->epoch, c->aggregator, c->contributors, c->seal);
      c->fanout = sml_aggregator_engine_use_group(engine, c->job, c->fanout);
      break;
    case VERB_START_ELSEWHERE:
      c->is_done_well = sml_aggregator_engine_start_elsewhere(engine, c->job, c->epoch, c->contributors, c->places);
      break;
    case VERB_FOLLOW: sml_aggregator_engine_places(engine, c->job, c->places); break;
    case VERB_DEPART: sml_aggregator_engine_depart(engine, c->job, c->ranks); break;
    case VERB_CLOSE: c->aggregator = sml_aggregator_engine_close_job(engine, c->job); break;
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

void sml_lane_post(struct lane *lane) {
  lane->command.base.run = run_command;
  lane->command.is_done_well = true;
  sml_mailbox_post(sml_aggregator_engine_mailbox(lane->engine), &lane->command.base, lane->io);
}

void sml_lane_await(struct lane *lane) {
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
    lane->command.host = command->host;
    lane->command.seal = command->seal;
    lane->command.aggregator = NULL;
    lane->command.group.num_bytes = 0;
    if (command->verb == VERB_OPEN) (void)sml_multicast_group(&lanes->multicast, command->job, l, &lane->command.group);
    is_posted[l] = true;
    sml_lane_post(lane);
  }
  for (uint32_t l = 0; l < lanes->num_lanes; l++)
    if (is_posted[l]) sml_lane_await(&lanes->lanes[l]);
}

bool sml_lanes_open_job(struct sml_lanes *lanes, uint16_t job, uint32_t epoch, uint32_t world_size,
                        const struct sml_seal *seal) {
  struct lane_command command = {.verb = VERB_OPEN, .job = job, .epoch = epoch, .world_size = world_size, .seal = seal};
  bool is_open = true;
  command_all(lanes, &command);
  for (uint32_t l = 0; l < lanes->num_lanes; l++) {
    struct lane *lane = &lanes->lanes[l];
    if (lane->command.is_done_well) sml_bit_set(lane->open_jobs, job);
    is_open = is_open && lane->command.is_done_well;
  }
  return is_open;
}

bool sml_lanes_expect_hello(struct sml_lanes *lanes, uint16_t job, uint32_t rank, uint64_t nonce, uint64_t host) {
  struct lane_command command = {.verb = VERB_EXPECT, .job = job, .rank = rank, .nonce = nonce, .host = host};
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

void sml_lanes_depart(struct sml_lanes *lanes, uint16_t job, const uint64_t *ranks, uint32_t world_size) {
  struct lane_command command = {.verb = VERB_DEPART, .job = job, .ranks = ranks};
  command_all(lanes, &command);
  for (uint32_t rank = 0; lanes->dataplane && rank < world_size; rank++)
    if (sml_bit_test(ranks, rank)) sml_outside_depart(lanes, job, rank);
}

void sml_lanes_close_job(struct sml_lanes *lanes, uint16_t job) {
  struct lane_command command = {.verb = VERB_CLOSE, .job = job};
  if (lanes->dataplane) sml_outside_close(lanes, job);
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
    sml_lane_post(lane);
    sml_lane_await(lane);
  }
}

uint64_t sml_lanes_packets(struct sml_lanes *lanes, uint16_t job, uint32_t rank) {
  uint64_t num_packets = 0;
  if (lanes->dataplane) return sml_outside_count_signs(lanes, job, rank);
  for (uint32_t l = 0; l < lanes->num_lanes; l++) {
    if (!sml_bit_test(lanes->lanes[l].open_jobs, job)) continue;
    num_packets += sml_aggregator_engine_contributions(lanes->lanes[l].engine, job, rank);
  }
  return num_packets;
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
  sml_lane_post(lane);
  sml_lane_await(lane);
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

bool sml_lanes_start_job(struct sml_lanes *lanes, uint16_t job, uint32_t world_size, const struct sml_ctl_start *start,
                         const struct sml_seal *seal) {
  if (lanes->dataplane) return sml_outside_start(lanes, job, world_size, start);
  void *memory[SML_MAX_LANES] = {NULL};
  struct sml_fanout *fanouts[SML_MAX_LANES] = {NULL};
  bool has_memory = true;
  SML_ASSERT(start->num_lanes <= lanes->num_lanes);
  for (uint32_t l = 0; l < start->num_lanes; l++) {
    struct sml_aggregator_options *options = &lanes->lanes[l].command.options;
    *options = (struct sml_aggregator_options){.world_size = world_size,
                                               .num_contributors = sml_contributors_count(start, world_size),
                                               .num_slots = start->num_slots,
                                               .is_one_way = (start->features & SML_FEATURE_ONE_WAY) != 0,
                                               .slot_base = start->slot_base[l],
                                               .chunk_bytes = start->chunk_bytes,
                                               .is_checked = (start->features & SML_FEATURE_CHECK) != 0,
                                               .is_switch_format = (start->features & SML_FEATURE_SWITCH) != 0,
                                               .is_narrow = (start->features & SML_FEATURE_NARROW) != 0,
                                               .first_phase = start->first_phase,
                                               .first_chunk = start->first_chunk,
                                               .rtt_ns = start->rtt_ns};
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
    sml_lane_post(lane);
  }
  for (uint32_t l = 0; l < start->num_lanes; l++) {
    sml_lane_await(&lanes->lanes[l]);
    free(lanes->lanes[l].command.aggregator); /* of the epoch before */
    sml_fanout_destroy(lanes->lanes[l].command.fanout);
  }
  return true;
}

/* --- life --- */

static int open_lane(struct sml_lanes *lanes, uint32_t l, const struct sml_aggd_options *options, char *error_out,
                     size_t error_bytes) {
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
  lane->recorder = sml_recorder_create(&(struct sml_recorder_options){options->trace_level, options->trace_events});
  if (!lane->recorder) return -ENOMEM;
  const struct sml_recorder_options of_job = {options->trace_level, options->trace_events / SML_AGGD_TRACE_SHARE};
  if (!sml_recorder_set_open(&lane->job_recorders, &of_job, SML_MAX_JOBS, options->max_jobs)) return -ENOMEM;
  struct sml_aggregator_engine_options engine = {.io = lane->io,
                                                 .kernels = sml_quant_select(NULL),
                                                 .lane = l,
                                                 .is_switch_format = options->packet_lanes != 0,
                                                 .is_beside_switch = options->dataplane != NULL,
                                                 .voucher = lanes->voucher,
                                                 .recorder = lane->recorder,
                                                 .job_recorders = &lane->job_recorders,
                                                 .on_event = sml_lanes_take_event,
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
  if (error != 0 && lane->thread.is_pinned)
    snprintf(error_out, error_bytes, "cannot start a thread on processor %u, one of --cpus or SWITCHML_CPUS: %s",
             lane->thread.cpu, strerror(error));
  else if (error != 0) snprintf(error_out, error_bytes, "cannot start a thread: %s", strerror(error));
  return -error;
}

static bool open_switch(const struct sml_lanes *lanes, char *error_out, size_t error_bytes) {
  struct sml_addr addr;
  lanes->lanes[0].io->ops->local_addr(lanes->lanes[0].io, &addr);
  return lanes->dataplane->open(lanes->dataplane->user, &addr, lanes->voucher, error_out, error_bytes);
}

int sml_lanes_open(const struct sml_aggd_options *options, int event_fd, struct sml_lanes **lanes_out, char *error_out,
                   size_t error_bytes) {
  snprintf(error_out, error_bytes, "out of memory");
  /* Unless something else is said below. */
  snprintf(error_out, error_bytes, "out of memory for %u threads", options->num_lanes);
  struct sml_lanes *lanes = calloc(1, sizeof *lanes);
  if (!lanes) return -ENOMEM;
  lanes->event_fd = event_fd;
  lanes->multicast = options->multicast;
  lanes->dataplane = options->dataplane;
  lanes->voucher = (uint32_t)sml_random_bits();
  lanes->max_datagram_bytes = options->max_datagram_bytes > 0 ? options->max_datagram_bytes : UINT16_MAX;
  pthread_mutex_init(&lanes->events_lock, NULL);
  for (uint32_t l = 0; l < options->num_lanes; l++) {
    sem_init(&lanes->lanes[l].command.done, 0, 0);
    lanes->num_lanes++;
    int error = open_lane(lanes, l, options, error_out, error_bytes);
    if (error) {
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
  for (uint32_t l = 0; l < lanes->num_lanes; l++) lanes->lanes[l].io->ops->close_descriptors(lanes->lanes[l].io);
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
