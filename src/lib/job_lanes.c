/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/job_lanes.h"

#include <stdlib.h>

#include "ctl/contributors.h"
#include "ctl/member_start.h"
#include "ctl/tuning.h"
#include "lib/job_pieces.h"
#include "meet/job_settings.h"

/* SWITCHML_PAPER_TIMEOUT_US: for benchmarks that compare with NSDI'21's way of repeating (worker.h). */
static uint64_t paper_timeout_ns(void) {
  const char *text = getenv("SWITCHML_PAPER_TIMEOUT_US");
  return text == NULL ? 0 : sml_min_u64(strtoull(text, NULL, 10), 1000000) * SML_NS_PER_US;
}

/* That a lane holds: powers of two. */
static uint32_t num_operations(const struct sml_job *job, const struct sml_ctl_start *start) {
  return sml_max_u32(job->context->settings.num_operations, sml_job_cuts(start) ? SML_HOST_RELAY_DEPTH : 1);
}

static struct sml_worker_options make_worker_options(const struct sml_job *job, uint32_t lane) {
  const struct sml_job_lane *l = &job->lanes[lane];
  const struct sml_job_shard *shard = &job->shards[l->shard];
  const struct sml_ctl_start *start = &shard->start;
  return (struct sml_worker_options){.job = shard->session.member.welcome.job,
                                     .epoch = start->epoch,
                                     .rank = (uint16_t)sml_contributor_of(start, job->rank),
                                     .world_size = job->world_size,
                                     .num_contributors = sml_contributors_count(start, job->world_size),
                                     .num_lanes = job->num_lanes,
                                     .lane = lane,
                                     .num_slots = start->num_slots,
                                     .slot_base = start->slot_base[l->engine],
                                     .chunk_bytes = job->start.chunk_bytes,
                                     .first_phase = start->first_phase,
                                     .first_chunk = start->first_chunk,
                                     .is_checked = (start->features & SML_FEATURE_CHECK) != 0,
                                     .packet_lanes = sml_ctl_packet_lanes(start),
                                     .num_operations = num_operations(job, start),
                                     .seed = sml_random_bits(),
                                     .has_fixed_window = job->context->settings.no_congestion_control,
                                     .paper_timeout_ns = paper_timeout_ns()};
}

/* On the engine's thread. */
static void fail_for_wrong_sum(void *user, uint32_t slot) {
  const struct sml_job_lane *lane = user;
  struct sml_job *job = lane->job;
  pthread_mutex_lock(&job->lock);
  struct sml_ctl_abort failure =
      sml_job_failure(SML_ERR_INTEGRITY,
                      "rank %u got a sum from the aggregator at %s whose check word is wrong, twice: operation "
                      "%llu, lane %u slot %u; "
                      "do not trust that aggregator",
                      job->rank, job->shards[lane->shard].session.member.options.aggregator,
                      (unsigned long long)sml_job_first_unfinished_locked(job), (uint32_t)(lane - job->lanes), slot);
  sml_job_fail_locked(job, &failure, true);
  pthread_mutex_unlock(&job->lock);
}

/* ---- on the engine's thread, while the control thread waits ---- */

struct lane_call {
  struct sml_lane *lane;
  const struct sml_worker_options *worker;
  const struct sml_seal *seal;
  bool is_done;
};

static void attach_lane(struct sml_worker_engine *engine, void *argument) {
  struct lane_call *call = argument;
  call->is_done = sml_lane_attach(engine, call->lane);
}

static void detach_lane(struct sml_worker_engine *engine, void *argument) {
  struct lane_call *call = argument;
  sml_lane_detach(engine, call->lane);
}

static void restart_lane(struct sml_worker_engine *engine, void *argument) {
  (void)engine;
  struct lane_call *call = argument;
  sml_lane_restart(call->lane, call->worker, call->seal);
}

/* ---- life ---- */

/* NULL: no memory. */
static struct sml_lane *open_lane(struct sml_job *job, const struct sml_ctl_start *start, uint32_t l) {
  const struct sml_job_lane *place = &job->lanes[l];
  const struct sml_job_shard *shard = &job->shards[place->shard];
  const struct sml_session *session = &shard->session;
  const bool is_hosted = shard->host_rank != SML_NO_HOST_RANK;
  struct sml_lane_options options = {.worker = make_worker_options(job, l),
                                     .aggregator = session->aggregator,
                                     .source = session->prober.lanes[place->engine].hello.from,
                                     .is_multicast = shard->start.is_multicast != 0,
                                     .lane = l,
                                     .num_operations = num_operations(job, start),
                                     .num_windows = is_hosted ? SML_TUNING_HOSTED_WINDOWS : 1,
                                     .on_integrity = fail_for_wrong_sum,
                                     .user = &job->lanes[l]};
  sml_session_seal(session, shard->start.epoch, shard->start.secret, &options.seal);
  sml_addr_set_port(&options.aggregator, session->member.welcome.data_ports[place->engine]);
  struct lane_call call = {.lane = sml_lane_create(&options)};
  sml_key_wipe(&options.seal, sizeof options.seal);
  if (call.lane == NULL) return NULL;
  sml_engines_call(job->engines, place->engine, attach_lane, &call);
  if (call.is_done) return call.lane;
  sml_lane_destroy(call.lane);
  return NULL;
}

/* Neighbours are at different shards, so that an operation of few chunks is shared among many. */
static void place_lanes(struct sml_job *job) {
  uint32_t num_lanes = 0, num_engines = 0;
  for (uint32_t e = 0; e < SML_MAX_LANES; e++)
    for (uint32_t s = 0; s < job->num_shards; s++) {
      if (e >= job->shards[s].start.num_lanes) continue;
      SML_ASSERT(num_lanes < SML_MAX_JOB_LANES);
      job->lanes[num_lanes++] = (struct sml_job_lane){
          .shard = s, .engine = e, .num_slots = job->shards[s].start.num_slots, .job = job};
      num_engines = e + 1;
    }
  job->num_lanes = num_lanes;
  job->num_engines = num_engines;
}

bool sml_job_lanes_open(struct sml_job *job, const struct sml_ctl_start *start) {
  struct sml_lane *lanes[SML_MAX_JOB_LANES] = {NULL};
  bool is_complete = true;
  pthread_mutex_lock(&job->lock);
  place_lanes(job);
  pthread_mutex_unlock(&job->lock);
  const uint32_t num_lanes = sml_member_is_lead(start, job->rank) ? job->num_lanes : 0;
  for (uint32_t l = 0; l < num_lanes && is_complete; l++) {
    lanes[l] = open_lane(job, start, l);
    is_complete = lanes[l] != NULL;
  }
  pthread_mutex_lock(&job->lock);
  for (uint32_t l = 0; l < num_lanes; l++) job->lanes[l].lane = lanes[l];
  pthread_mutex_unlock(&job->lock);
  if (!is_complete) sml_job_lanes_close(job);
  return is_complete;
}

void sml_job_lanes_restart(struct sml_job *job) {
  for (uint32_t l = 0; l < job->num_lanes; l++) {
    const struct sml_job_lane *place = &job->lanes[l];
    const struct sml_job_shard *shard = &job->shards[place->shard];
    struct sml_seal seal;
    sml_session_seal(&shard->session, shard->start.epoch, shard->start.secret, &seal);
    const struct sml_worker_options worker = make_worker_options(job, l);
    if (place->lane == NULL) continue;
    struct lane_call call = {.lane = place->lane, .worker = &worker, .seal = &seal};
    sml_engines_call(job->engines, place->engine, restart_lane, &call);
    sml_key_wipe(&seal, sizeof seal);
  }
}

static void add_lane(const struct sml_lane *lane, sml_stats *stats) {
  struct sml_lane_snapshot s;
  sml_lane_snapshot(lane, &s);
  stats->tx_packets += s.tx_packets;
  stats->tx_bytes += s.tx_bytes;
  stats->rx_packets += s.rx_packets;
  stats->rx_bytes += s.rx_bytes;
  stats->chunks_completed += s.chunks_completed;
  stats->retransmissions += s.retransmissions;
  stats->probes += s.probes;
  stats->dropped_packets += s.dropped_packets;
  stats->check_failures += s.num_drops[SML_DROP_BAD_CHECK];
  stats->key_failures += s.num_drops[SML_DROP_BAD_KEY];
  stats->window_chunks += s.window_chunks;
  stats->window_reductions += s.num_reductions;
  stats->ecn_marks += s.num_marks;
  stats->needless_repeats += s.num_drops[SML_DROP_NEEDLESS];
  stats->lost_results += s.lost_results;
  stats->busiest_slot_chunks =
      sml_max_u32(stats->busiest_slot_chunks, (uint32_t)sml_min_u64(s.busiest_slot_chunks, UINT32_MAX));
}

void sml_job_lanes_close(struct sml_job *job) {
  for (uint32_t l = 0; l < job->num_lanes; l++) {
    pthread_mutex_lock(&job->lock);
    struct lane_call call = {.lane = job->lanes[l].lane};
    job->lanes[l].is_closing = true;
    pthread_mutex_unlock(&job->lock);
    if (call.lane == NULL) continue;
    sml_engines_call(job->engines, job->lanes[l].engine, detach_lane, &call);
    pthread_mutex_lock(&job->lock);
    add_lane(call.lane, &job->closed_lanes);
    job->lanes[l].lane = NULL;
    pthread_mutex_unlock(&job->lock);
    sml_lane_destroy(call.lane);
  }
}

static void fail_lane(struct sml_engine_command *command, void *engine, uint64_t now_ns) {
  (void)engine;
  (void)now_ns;
  struct sml_job_lane *lane =
      (struct sml_job_lane *)(void *)((uint8_t *)command - offsetof(struct sml_job_lane, fail));
  sml_lane_fail(lane->failing, lane->job->error.status); /* constant since the command was posted */
}

void sml_job_lanes_fail_locked(struct sml_job *job) {
  for (uint32_t l = 0; l < job->num_lanes; l++) {
    struct sml_job_lane *lane = &job->lanes[l];
    if (lane->lane == NULL || lane->is_closing) continue;
    lane->failing = lane->lane;
    lane->fail.run = fail_lane;
    sml_engines_post(job->engines, lane->engine, &lane->fail);
  }
}

/* ---- figures ---- */

void sml_job_lanes_add_stats_locked(const struct sml_job *job, sml_stats *stats) {
  const sml_stats *closed = &job->closed_lanes;
  stats->tx_packets += closed->tx_packets;
  stats->tx_bytes += closed->tx_bytes;
  stats->rx_packets += closed->rx_packets;
  stats->rx_bytes += closed->rx_bytes;
  stats->chunks_completed += closed->chunks_completed;
  stats->retransmissions += closed->retransmissions;
  stats->probes += closed->probes;
  stats->dropped_packets += closed->dropped_packets;
  stats->check_failures += closed->check_failures;
  stats->key_failures += closed->key_failures;
  stats->window_reductions += closed->window_reductions;
  stats->ecn_marks += closed->ecn_marks;
  stats->needless_repeats += closed->needless_repeats;
  stats->lost_results += closed->lost_results;
  stats->busiest_slot_chunks = closed->busiest_slot_chunks;
  for (uint32_t l = 0; l < job->num_lanes; l++)
    if (job->lanes[l].lane != NULL) add_lane(job->lanes[l].lane, stats);
  if (job->lanes[0].lane == NULL) return;
  struct sml_lane_snapshot s;
  sml_lane_snapshot(job->lanes[0].lane, &s);
  stats->srtt_ns = s.srtt_ns;
  stats->rto_ns = s.rto_ns;
}

uint64_t sml_job_lanes_count_packets_locked(const struct sml_job *job, uint32_t shard) {
  uint64_t num_packets = 0;
  for (uint32_t l = 0; l < job->num_lanes; l++) {
    struct sml_lane_snapshot s;
    if (job->lanes[l].lane == NULL || job->lanes[l].shard != shard) continue;
    sml_lane_snapshot(job->lanes[l].lane, &s);
    num_packets += s.rx_packets - sml_min_u64(s.dropped_packets, s.rx_packets);
  }
  return num_packets;
}

bool sml_job_lanes_find_waiting_locked(const struct sml_job *job, uint32_t *lane_out,
                                       struct sml_lane_snapshot *out) {
  bool is_found = false;
  for (uint32_t l = 0; l < job->num_lanes; l++) {
    struct sml_lane_snapshot s;
    if (job->lanes[l].lane == NULL) continue;
    sml_lane_snapshot(job->lanes[l].lane, &s);
    if (!s.is_waiting) continue;
    if (is_found && s.waiting_since_ns >= out->waiting_since_ns) continue;
    *out = s;
    *lane_out = l;
    is_found = true;
  }
  return is_found;
}
