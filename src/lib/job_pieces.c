/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/job_pieces.h"

#include <stdlib.h>

#include "lib/job_host.h"
#include "lib/operation.h"

#define SMALL_LANES (UINT64_C(16) << 10)

/* ---- what a piece is ---- */

uint16_t sml_job_block_chunks(const struct sml_ctl_start *start) {
  const uint32_t packet_lanes = sml_ctl_packet_lanes(start);
  return packet_lanes == 0 ? 0 : (uint16_t)sml_switch_block_chunks(packet_lanes);
}

uint64_t sml_job_piece_bytes(const struct sml_ctl_start *start, uint32_t world_size) {
  const uint32_t count = sml_contributors_count(start, world_size);
  uint32_t num_ranks[SML_CTL_MAX_WORLD_SIZE] = {0}, most = 1;
  SML_ASSERT(start->num_ranks <= SML_CTL_MAX_WORLD_SIZE && count <= SML_CTL_MAX_WORLD_SIZE);
  for (uint32_t rank = 0; rank < start->num_ranks; rank++)
    most = sml_max_u32(most, ++num_ranks[sml_contributor_of(start, rank)]);
  return sml_host_relay_piece_bytes(most);
}

uint64_t sml_job_piece_elems(const struct sml_job *job, const struct sml_operation_plan *plan) {
  if (job->host == NULL || job->host->piece_bytes == 0) return UINT64_MAX;
  const struct sml_format *f = sml_engine_format(plan);
  const uint32_t num_chunks = job->host->block_chunks, chunk_bytes = job->start.chunk_bytes;
  const uint64_t block_elems = (uint64_t)num_chunks * (chunk_bytes / f->unit_bytes);
  const uint64_t block_bytes = sml_max_u64((uint64_t)num_chunks * chunk_bytes, block_elems * f->elem_bytes);
  return sml_max_u64(1, job->host->piece_bytes / block_bytes) * block_elems;
}

struct sml_operation_plan sml_job_piece_plan(const struct sml_operation_plan *plan, uint64_t first_elem,
                                             uint64_t num_elems) {
  struct sml_operation_plan piece = *plan;
  if (num_elems == plan->num_elems) return piece;
  piece.num_elems = num_elems;
  piece.key = sml_mix64(sml_mix64(plan->key + plan->num_elems) + first_elem); /* for tags alone */
  return piece;
}

void sml_job_lane_range(const struct sml_job *job, const struct sml_operation_plan *plan, uint32_t lane,
                        struct sml_range *range_out) {
  sml_range_make(range_out, plan, lane, job->num_lanes, job->start.chunk_bytes, job->lanes[lane].num_slots);
}

static uint64_t count_of(const struct sml_job *job, const struct sml_operation_plan *plan, uint32_t lane) {
  struct sml_range range;
  sml_job_lane_range(job, plan, lane, &range);
  return range.num_chunks;
}

uint64_t sml_job_count_chunks(const struct sml_job *job, const struct sml_operation_plan *plan, uint32_t lane) {
  const uint64_t most = sml_job_piece_elems(job, plan);
  if (plan->num_elems <= most) return count_of(job, plan, lane);
  const uint64_t num_full = plan->num_elems / most, rest = plan->num_elems % most;
  const struct sml_operation_plan full = sml_job_piece_plan(plan, 0, most);
  const struct sml_operation_plan tail = sml_job_piece_plan(plan, num_full * most, rest);
  return num_full * count_of(job, &full, lane) + (rest > 0 ? count_of(job, &tail, lane) : 0);
}

/* ---- under way ---- */

/* The engine that ended it last; afterwards nobody reads the rank's input for it. */
static void on_ended(struct sml_engine_operation *engine) {
  struct sml_job_piece *piece = (struct sml_job_piece *)engine;
  struct sml_job *job = piece->job;
  pthread_mutex_lock(&job->lock);
  sml_job_host_piece_ended_locked(job, piece->slot,
                                  (sml_status)atomic_load_explicit(&engine->status, memory_order_relaxed));
  pthread_mutex_unlock(&job->lock);
}

bool sml_job_pieces_run_small(const struct sml_job *job, const struct sml_operation_plan *plan) {
  return job->num_engines == 1 && sml_plan_lanes(plan) <= SMALL_LANES;
}

bool sml_job_pieces_submit(void *user, const struct sml_host_piece *p) {
  struct sml_job *job = user;
  const uint32_t num_lanes = sml_job_num_lanes(job);
  pthread_mutex_lock(&job->lock);
  const bool is_running = job->state == SML_JOB_RUNNING;
  bool runs_itself = false;
  if (is_running) {
    struct sml_job_pieces *pieces = &job->host->pieces;
    struct sml_engine_operation *engine = &pieces->pieces[p->slot].engine;
    engine->in = p->inputs[0];
    engine->num_inputs = p->num_inputs;
    engine->inputs = p->inputs;
    engine->out = p->out;
    engine->plan = sml_job_piece_plan(&job->host->current->engine.plan, p->first_elem, p->num_elems);
    atomic_store_explicit(&engine->status, SML_OK, memory_order_relaxed); /* published by the push */
    atomic_store_explicit(&engine->lanes_left, num_lanes, memory_order_relaxed);
    pieces->num_in_flight++;
    runs_itself = sml_job_pieces_run_small(job, &engine->plan);
    for (uint32_t l = 0; l < num_lanes; l++) sml_lane_push(job->lanes[l].lane, engine);
  }
  pthread_mutex_unlock(&job->lock);
  if (runs_itself && sml_engines_try_run(job->engines, 0)) return true;
  for (uint32_t e = 0; e < job->num_engines && is_running; e++) sml_engines_wake(job->engines, e);
  return is_running;
}

bool sml_job_pieces_init(struct sml_job_pieces *pieces, struct sml_job *job, uint64_t piece_elems) {
  const struct sml_operation_plan plan = {
      .num_elems = piece_elems, .has_exponents = true, .block_chunks = sml_job_block_chunks(&job->start)};
  for (uint32_t i = 0; i < SML_HOST_RELAY_DEPTH; i++) {
    struct sml_job_piece *piece = &pieces->pieces[i];
    *piece = (struct sml_job_piece){.engine.on_ended = on_ended, .job = job, .slot = i};
    for (uint32_t l = 0; l < sml_job_num_lanes(job); l++) {
      struct sml_range range;
      sml_job_lane_range(job, &plan, l, &range);
      if (range.num_groups == 0) continue;
      piece->engine.codes[l] = malloc(sml_stream_codes_bytes(&range));
      if (piece->engine.codes[l] == NULL) return false;
    }
  }
  return true;
}

void sml_job_pieces_free(struct sml_job_pieces *pieces) {
  for (uint32_t i = 0; i < SML_HOST_RELAY_DEPTH; i++)
    for (uint32_t l = 0; l < SML_MAX_JOB_LANES; l++) free(pieces->pieces[i].engine.codes[l]);
}
