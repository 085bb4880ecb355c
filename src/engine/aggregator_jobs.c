/* SPDX-License-Identifier: Apache-2.0
 * The jobs of an aggregator's engine. Commands open, start, change and close them. */
#include <stdlib.h>

#include "engine/aggregator_engine_internal.h"
#include "engine/fanout.h"

static void set_seal(struct job *job, const struct sml_seal *seal) {
  if (seal != NULL) job->seal = *seal;
  else memset(&job->seal, 0, sizeof job->seal);
}

bool sml_aggregator_engine_open_job(struct sml_aggregator_engine *e, uint16_t number, uint32_t epoch,
                                    uint32_t world_size, const struct sml_seal *seal) {
  SML_ASSERT(number < SML_MAX_JOBS && e->jobs[number] == NULL && world_size <= SML_MAX_WORLD_SIZE);
  struct job *job = calloc(1, sizeof *job);
  if (job == NULL) return false;
  *job = (struct job){.epoch = epoch, .members = {.world_size = world_size}};
  set_seal(job, seal);
  e->jobs[number] = job;
  record(e, SML_TRACE_JOB_OPENED, number, (struct sml_record){.chunk = world_size, .value = epoch});
  return true;
}

bool sml_aggregator_engine_expect_hello(struct sml_aggregator_engine *e, uint16_t number, uint32_t rank,
                                        uint64_t nonce) {
  struct job *job = e->jobs[number];
  SML_ASSERT(job != NULL);
  return sml_members_expect(&job->members, rank, nonce);
}

void sml_aggregator_engine_know_host(struct sml_aggregator_engine *e, uint16_t number, uint32_t rank, uint64_t host) {
  SML_ASSERT(e->jobs[number] != NULL);
  sml_members_find(&e->jobs[number]->members, rank)->host = host;
}

void sml_aggregator_engine_forget_rank(struct sml_aggregator_engine *e, uint16_t number, uint32_t rank) {
  struct job *job = e->jobs[number];
  SML_ASSERT(job != NULL && rank < job->members.world_size);
  sml_members_forget(&job->members, rank);
}

struct sml_aggregator *sml_aggregator_engine_start_job(struct sml_aggregator_engine *e, uint16_t number,
                                                       uint32_t epoch, struct sml_aggregator *aggregator,
                                                       const uint16_t *contributors,
                                                       const struct sml_seal *seal) {
  struct job *job = e->jobs[number];
  const struct sml_aggregator_options *o = sml_aggregator_options_of(aggregator);
  SML_ASSERT(job != NULL && o->world_size == job->members.world_size);
  sml_members_seat(&job->members, contributors);
  SML_ASSERT(o->num_contributors == job->members.num_contributors);
  SML_ASSERT(o->is_switch_format == e->options.is_switch_format);
  set_seal(job, seal);
  SML_ASSERT(sml_head_bytes(job->seal.is_keyed) + sml_aggregator_value_bytes(o) <= e->options.io->max_frame_bytes);
  struct sml_aggregator *old = job->aggregator;
  job->epoch = epoch;
  job->aggregator = aggregator;
  sml_recorder_set_use(e->options.job_recorders, number);
  job->is_reported = job->is_blocked_reported = false;
  record(e, SML_TRACE_EPOCH_STARTED, number,
         (struct sml_record){.phase = o->first_phase, .chunk = o->first_chunk, .value = epoch});
  job->bulk = (struct sml_bulk){.num_open = 0};
  for (uint32_t r = 0; r < job->members.world_size; r++)
    if (job->members.all[r].is_departed) sml_aggregator_note_departed(aggregator, job->members.all[r].contributor);
  return old;
}

bool sml_aggregator_engine_start_elsewhere(struct sml_aggregator_engine *e, uint16_t number, uint32_t epoch,
                                           const uint16_t *contributors, struct sml_place *places) {
  struct job *job = e->jobs[number];
  SML_ASSERT(job != NULL && job->aggregator == NULL);
  sml_members_seat(&job->members, contributors);
  job->epoch = epoch;
  job->is_reported = job->is_blocked_reported = false;
  for (uint32_t c = 0; c < job->members.num_contributors; c++)
    if (!job->members.all[job->members.leads[c]].is_registered) return false;
  sml_aggregator_engine_places(e, number, places);
  return true;
}

void sml_aggregator_engine_places(const struct sml_aggregator_engine *e, uint16_t number, struct sml_place *places) {
  const struct job *job = e->jobs[number];
  SML_ASSERT(job != NULL);
  for (uint32_t c = 0; c < job->members.num_contributors; c++) {
    const struct sml_member *m = &job->members.all[job->members.leads[c]];
    places[c] = (struct sml_place){.addr = m->addr, .mac = m->mac, .port = m->port};
  }
}

struct sml_aggregator *sml_aggregator_engine_close_job(struct sml_aggregator_engine *e, uint16_t number) {
  struct job *job = e->jobs[number];
  SML_ASSERT(job != NULL);
  struct sml_aggregator *aggregator = job->aggregator;
  SML_ASSERT(!job->is_busy);
  sml_members_free(&job->members);
  sml_fanout_destroy(job->fanout);
  sml_key_wipe(&job->seal, sizeof job->seal);
  free(job);
  e->jobs[number] = NULL;
  record(e, SML_TRACE_JOB_CLOSED, number, (struct sml_record){.value = 0});
  return aggregator;
}

void sml_aggregator_engine_offer_group(struct sml_aggregator_engine *e, uint16_t number,
                                       const struct sml_addr *group) {
  SML_ASSERT(e->jobs[number] != NULL);
  e->jobs[number]->group = *group;
}

struct sml_fanout *sml_aggregator_engine_use_group(struct sml_aggregator_engine *e, uint16_t number,
                                                   struct sml_fanout *fanout) {
  struct job *job = e->jobs[number];
  struct sml_fanout *old = job->fanout;
  SML_ASSERT(fanout == NULL || fanout->num_contributors == job->members.num_contributors);
  job->fanout = fanout;
  return old;
}

void sml_engine_report(struct sml_aggregator_engine *e, enum sml_aggregator_event_kind kind, uint16_t number,
                       uint32_t rank_a, uint32_t rank_b, uint32_t slot) {
  const struct sml_aggregator_event event = {.kind = kind,
                                             .job = number,
                                             .epoch = e->jobs[number]->epoch,
                                             .rank_a = rank_a,
                                             .rank_b = rank_b,
                                             .slot = slot};
  static const enum sml_trace_event names[] = {[SML_EVENT_MISMATCH] = SML_TRACE_OPERATIONS_DIFFERED,
                                               [SML_EVENT_BLOCKED] = SML_TRACE_OPERATION_BLOCKED,
                                               [SML_EVENT_JUMP] = SML_TRACE_PHASE_JUMPED,
                                               [SML_EVENT_DEAF] = SML_TRACE_GROUP_LOST,
                                               [SML_EVENT_MOVED] = SML_TRACE_HOST_MOVED};
  SML_ASSERT(kind < SML_ARRAY_LEN(names));
  record(e, names[kind], number,
         (struct sml_record){.slot = (uint16_t)slot, .rank = (uint16_t)rank_a, .value = rank_b});
  e->options.on_event(e->options.user, &event);
}

/* It notes all ranks first, and then looks through the slots once. */
void sml_aggregator_engine_depart(struct sml_aggregator_engine *e, uint16_t number, const uint64_t *ranks) {
  struct job *job = e->jobs[number];
  SML_ASSERT(job != NULL);
  for (uint32_t w = 0; w < SML_BITMAP_WORDS(job->members.world_size); w++) {
    for (uint64_t left = ranks[w]; left != 0; left &= left - 1) {
      const uint32_t rank = w * 64 + (uint32_t)__builtin_ctzll(left);
      record(e, SML_TRACE_RANK_DEPARTED, number, (struct sml_record){.rank = (uint16_t)rank});
      const uint16_t contributor = sml_members_depart(&job->members, rank);
      if (job->aggregator != NULL) sml_aggregator_note_departed(job->aggregator, contributor);
    }
  }
  if (job->aggregator == NULL || job->is_blocked_reported) return;
  uint32_t contributor;
  const uint32_t slot = sml_aggregator_find_blocked(job->aggregator, &contributor);
  if (slot == UINT32_MAX) return;
  job->is_blocked_reported = true;
  const uint32_t rank = sml_members_find_departed(&job->members, contributor);
  sml_engine_report(e, SML_EVENT_BLOCKED, number, rank, rank, slot);
}
