/* SPDX-License-Identifier: Apache-2.0
 * The world of differential_test.c: jobs, and the packets that their members, honest, broken or hostile, and strangers
 * send next. */
#pragma once

#include <stdlib.h>

#include "base/base.h"
#include "core/aggregator.h"
#include "quant/quant.h"
#include "switch_bed.h"

#define NUM_JOBS 2u
#define NUM_SLOTS 4u
#define BYSTANDER 8u /* the host behind a port where no member is */
#define MAX_DATAGRAM_BYTES (SML_HEADER_BYTES + 4 * BED_MAX_LANES)
#define TAG_OF_WIRE 0x70000u /* as real tags, these differ where wires do: by more bits than two members spoil */
#define NUM_RETURNED 41u /* tna.p4's count of second passes */

struct job {
  struct sml_dataplane_job is;
  uint32_t first_host; /* of its rank 0; the others follow */
  uint32_t lanes, payload_bytes;
  uint32_t num_sums[2 * NUM_SLOTS]; /* that a cell has begun, in all epochs */
  struct sml_aggregator *core;
  uint32_t phases[SML_SWITCH_MAX_CONTRIBUTORS][NUM_SLOTS]; /* that the rank is in */
};

/* A frame to each of some members, or to the aggregator. */
struct due {
  uint32_t num;
  struct p4_out frames[SML_SWITCH_MAX_CONTRIBUTORS];
  bool is_free; /* nothing is promised of it */
  bool ends_job;
};

/* One packet: who sends what by which port, and whether the switch has to take it for its member's. */
struct question {
  struct job *job;
  struct sml_header h;
  uint32_t host, port; /* whose addresses it bears; where it came in */
  uint8_t datagram[MAX_DATAGRAM_BYTES + 8];
  uint32_t num_bytes;
};

/* A result whose second pass is to come: what it will be if its cell is still that sum's. */
struct half {
  struct question q;
  struct due due;
  uint32_t epoch, cell, sum;
};

struct world {
  struct bed bed;
  struct sml_prng prng;
  struct job jobs[NUM_JOBS];
  uint32_t num_packets, num_epochs;
  uint64_t counts[64]; /* what the switch should have counted, where the core's reasons are its own, too */
  uint32_t num_halves, num_late, num_lost; /* second passes to come; that came too late; that never came */
  struct half halves[P4_MAX_WAITING];
};

static uint32_t below(struct world *w, uint32_t bound) {
  return (uint32_t)sml_prng_below(&w->prng, bound);
}

/* ---- jobs ---- */

static void start_job(struct world *w, struct job *job) {
  job->is.epoch = 0x51000000u + ++w->num_epochs;
  const struct sml_aggregator_options options = {.world_size = job->is.num_contributors,
                                                 .num_slots = NUM_SLOTS,
                                                 .slot_base = (uint16_t)job->is.slot_base,
                                                 .chunk_bytes = job->payload_bytes - (job->is.is_checked ? 4 : 0),
                                                 .is_checked = job->is.is_checked,
                                                 .first_phase = SML_FIRST_PHASE,
                                                 .first_chunk = job->is.first_chunk,
                                                 .is_switch_format = true};
  free(job->core);
  void *memory = aligned_alloc(64, sml_align_up(sml_aggregator_memsize(&options), 64));
  SML_ASSERT(memory != NULL);
  job->core = sml_aggregator_init(memory, &options);
  for (uint32_t rank = 0; rank < job->is.num_contributors; rank++)
    for (uint32_t slot = 0; slot < NUM_SLOTS; slot++) job->phases[rank][slot] = SML_FIRST_PHASE;
  bed_start_job(&w->bed, &job->is);
}

static void open_world(struct world *w, enum bed_kind kind, uint64_t seed) {
  memset(w, 0, sizeof *w);
  w->prng.state = seed;
  bed_open(&w->bed, kind, seed);
  for (uint32_t j = 0; j < NUM_JOBS; j++) {
    struct job *job = &w->jobs[j];
    job->first_host = j == 0 ? 0 : 3;
    job->lanes = w->bed.lanes;
    job->payload_bytes = 4 * job->lanes;
    job->is = (struct sml_dataplane_job){.number = (uint16_t)(3 + j),
                                         .num_contributors = j == 0 ? 3 : 2,
                                         .num_slots = NUM_SLOTS,
                                         .slot_base = 64 + NUM_SLOTS * j,
                                         .first_chunk = 1000 * j,
                                         .is_checked = j == 1};
    for (uint32_t rank = 0; rank < job->is.num_contributors; rank++)
      job->is.places[rank] = bed_place(job->first_host + rank);
    start_job(w, job);
  }
}

static void close_world(struct world *w) {
  for (uint32_t j = 0; j < NUM_JOBS; j++) free(w->jobs[j].core);
  bed_close(&w->bed);
}

/* ---- questions ---- */

static void fill_lanes(struct world *w, struct question *q, bool is_max) {
  for (uint32_t i = 0; i < q->job->lanes; i++) {
    const uint32_t value = (uint32_t)sml_prng_next(&w->prng);
    sml_store_be32(q->datagram + SML_HEADER_BYTES + 4 * i, is_max ? value >> (24 * below(w, 2)) : value);
  }
}

/* An honest member's next packet for a slot, or a repeat of it, or a question about it. */
static void ask_honestly(struct world *w, struct question *q) {
  struct job *job = q->job;
  const uint32_t rank = below(w, job->is.num_contributors), slot = below(w, NUM_SLOTS);
  const uint32_t phase = job->phases[rank][slot];
  const bool is_max = (slot + phase) % 5 == 0, is_probe = below(w, 4) == 0;
  q->host = q->port = job->first_host + rank;
  q->h = (struct sml_header){.version = SML_WIRE_VERSION,
                             .type = is_probe ? SML_PACKET_PROBE : SML_PACKET_UPDATE,
                             .wire = is_max ? SML_LANES_UINT32 : SML_LANES_INT32,
                             .reducer = is_max ? SML_REDUCE_MAX : SML_REDUCE_SUM,
                             .job = job->is.number,
                             .epoch = job->is.epoch,
                             .rank = (uint16_t)rank,
                             .payload_bytes = is_probe ? 0 : (uint16_t)job->payload_bytes,
                             .slot = (uint16_t)(job->is.slot_base + slot),
                             .flags = below(w, 3) == 0 ? SML_FLAG_RETRANSMISSION : 0,
                             .phase = phase,
                             .tag = TAG_OF_WIRE * is_max + 0x1000 * slot + phase,
                             .chunk = (uint32_t)sml_prng_next(&w->prng)};
  if (job->is.is_checked && !is_max && !is_probe) q->h.flags |= SML_FLAG_CHECKED;
  if (is_probe && below(w, 4) == 0) q->h.flags |= SML_FLAG_DEAF;
  fill_lanes(w, q, is_max);
}

/* What a broken member, or one who means ill, makes of it. */
static void spoil(struct world *w, struct question *q) {
  struct sml_header *h = &q->h;
  static const uint16_t flags[] = {SML_FLAG_KEYED, SML_FLAG_CHECKED, SML_FLAG_BY_GRANT, SML_FLAG_NARROW, 0x8000, 0x20};
  static const int64_t phases[] = {-4, -3, -2, -1, 1, 2, 3, 4, 6, 8, 64};
  static const uint8_t types[] = {SML_PACKET_RESULT, SML_PACKET_PENDING, SML_PACKET_ERROR, 0, 6, 9, 14, 15};
  switch (below(w, 16)) {
    case 0: h->phase = below(w, 4); break;
    case 1: h->phase = (uint32_t)sml_prng_next(&w->prng); break;
    case 2: case 3: case 4: h->phase += (uint32_t)phases[below(w, SML_ARRAY_LEN(phases))]; break;
    case 5: h->flags ^= flags[below(w, SML_ARRAY_LEN(flags))]; break;
    case 6: h->type = types[below(w, SML_ARRAY_LEN(types))]; break;
    case 7: h->slot = (uint16_t)(below(w, 2) ? h->slot ^ NUM_SLOTS : below(w, 0x10000)); break;
    case 8: h->rank = (uint16_t)below(w, 40); break;
    case 9: h->job = (uint16_t)(below(w, 2) ? 7u - h->job : below(w, 0x10000)); break;
    case 10: h->epoch -= 1 + below(w, 2); break;
    case 11: h->payload_bytes = (uint16_t)(h->payload_bytes + 4 * (int)below(w, 3) - 4); break;
    case 12: h->version = (uint8_t)below(w, 16); break;
    case 13: /* another wire */
      h->wire = (uint8_t)below(w, 4);
      h->reducer = (uint8_t)below(w, 3);
      break;
    case 14:
      if (below(w, 2) == 0) q->host = below(w, BYSTANDER + 1);
      else q->port = below(w, BYSTANDER + 1);
      break;
    default: /* members that do not agree */
      if (below(w, 8) == 0) h->tag ^= 1u << below(w, 32);
      if (below(w, 4) != 0 || q->job->is.is_checked) break;
      h->wire ^= SML_LANES_UINT32;
      h->reducer ^= SML_REDUCE_MAX;
  }
}

static void write_question(struct world *w, struct question *q) {
  sml_wire_seal_for_switch(q->datagram, &q->h);
  const bool is_other = q->h.type != SML_PACKET_UPDATE && q->h.type != SML_PACKET_PROBE;
  const uint32_t due_bytes = q->h.type == SML_PACKET_UPDATE ? q->job->payload_bytes : 0;
  const uint32_t payload_bytes = is_other ? q->h.payload_bytes : due_bytes;
  q->num_bytes = SML_HEADER_BYTES + payload_bytes;
  if (below(w, 400) == 0) q->num_bytes -= below(w, 8);
}

static struct question make_question(struct world *w) {
  struct question q = {.job = &w->jobs[below(w, NUM_JOBS)]};
  ask_honestly(w, &q);
  const uint8_t wire = q.h.wire;
  if (below(w, 5) == 0) spoil(w, &q);
  if (bed_is_tofino(&w->bed) && q.h.wire != wire) q.h.tag ^= 0x5a000000u; /* it knows a mismatch by the tag alone */
  write_question(w, &q);
  return q;
}
