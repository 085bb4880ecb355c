/* SPDX-License-Identifier: Apache-2.0
 * What an aggregator's engine tells single workers: ERROR, PENDING, that an update came marked, and its own
 * questions. */
#include <stdlib.h>

#include "engine/aggregator_engine_internal.h"
#include "engine/switch_format.h"

/* The most answers to packets of unknown jobs, so that a flood of those is not reflected. */
#define ERRORS_PER_S 1000u
/* If more are missing at a fence they are not told: what holds so many up shows itself to each of them. */
#define MOST_AT_FENCE 16u

void sml_engine_send(struct sml_aggregator_engine *e, const struct sml_header *h, const void *payload,
                     const struct sml_seal *seal, const struct sml_addr *to) {
  struct sml_netio *io = e->options.io;
  struct sml_tx_burst burst;
  const uint32_t head_bytes = sml_head_bytes(seal->is_keyed), frame_bytes = head_bytes + h->payload_bytes;
  io->ops->tx_reserve(io, frame_bytes, &burst);
  if (h->payload_bytes > 0) memcpy(burst.data + head_bytes, payload, h->payload_bytes);
  sml_wire_seal(burst.data, h, seal);
  io->ops->tx_commit(io, &burst, 1, frame_bytes, to, 1);
}

/* Tells a worker of an earlier daemon, or of a job that ended, that nobody will answer. An ERROR is never larger than
 * the packet that asks, and never answers an ERROR. There is no key for such a job. But the ERROR has the mask of the
 * packet that it answers, which only that packet's sender knows. */
void sml_answer_error(struct sml_aggregator_engine *e, const uint8_t *frame, const struct sml_header *h,
                      const struct sml_addr *to, uint64_t now_ns) {
  if (h->type != SML_PACKET_UPDATE && h->type != SML_PACKET_PROBE) return;
  const uint64_t cost_ns = SML_NS_PER_S / ERRORS_PER_S;
  const uint64_t oldest_ns = now_ns > SML_NS_PER_S / 10 ? now_ns - SML_NS_PER_S / 10 : 0;
  e->error_tokens_ns = sml_max_u64(e->error_tokens_ns, oldest_ns);
  if (e->error_tokens_ns + cost_ns > now_ns) return;
  e->error_tokens_ns += cost_ns;
  const bool has_mask = (h->flags & SML_FLAG_KEYED) == 0 && !e->options.is_switch_format;
  const struct sml_seal seal = {.mask = has_mask ? sml_wire_mask(frame, h) : 0};
  struct sml_header answer = *h;
  answer.type = SML_PACKET_ERROR;
  answer.payload_bytes = 0;
  answer.flags = 0;
  sml_engine_send(e, &answer, NULL, &seal, to);
  sml_record_packet(e->recorder, SML_TRACE_ERROR_SENT, now_ns, h, 0, h->epoch);
}

static void record_pending(struct sml_aggregator_engine *e, const struct sml_header *h, uint16_t flags,
                           uint32_t num_bytes) {
  const uint32_t slot_base = slot_base_of(e->jobs[h->job]);
  struct sml_header about = *h;
  uint32_t first;
  if (flags & SML_FLAG_UNASKED) {
    sml_record_packet(recorder_of(e, h->job), SML_TRACE_UPDATE_SOLICITED, e->now_ns, h, slot_base, 0);
    return;
  }
  about.chunk = sml_record_count_bits((const uint8_t *)e->missing, num_bytes, &first);
  sml_record_packet(recorder_of(e, h->job), SML_TRACE_PENDING_SENT, e->now_ns, &about, slot_base, first);
}

static uint32_t bitmap_bytes_of(const struct sml_aggregator_engine *e, const struct job *job) {
  if (e->options.is_switch_format) return SML_SWITCH_BITMAP_BYTES;
  return (uint32_t)sml_div_ceil(job->members.num_contributors, 8);
}

/* h: slot, phase, tag, rank and the other fields that the answer repeats. frame: room for head and bitmap of missing
 * contributors. */
static void fill_pending(struct sml_aggregator_engine *e, const struct sml_header *h, uint16_t flags, uint8_t *frame) {
  const struct job *job = e->jobs[h->job];
  sml_aggregator_missing_for(job->aggregator, h, e->missing);
  /* The bytes of little-endian words are the wire's bitmap: bit r % 8 of byte r / 8. */
  for (uint32_t w = 0; w < SML_BITMAP_WORDS(job->members.num_contributors); w++)
    e->missing[w] = sml_le64(e->missing[w]);
  struct sml_header answer = *h;
  answer.type = SML_PACKET_PENDING;
  answer.flags = flags;
  if ((flags & SML_FLAG_UNASKED) != 0 && sml_aggregator_is_one_way(job->aggregator, h))
    answer.chunk = sml_aggregator_latest_position(job->aggregator, h);
  answer.payload_bytes = (uint16_t)bitmap_bytes_of(e, job);
  record_pending(e, h, flags, answer.payload_bytes);
  memcpy(frame + sml_head_bytes(job->seal.is_keyed), e->missing, answer.payload_bytes);
  if (e->options.is_switch_format) sml_wire_seal_for_switch(frame, &answer);
  else sml_wire_seal(frame, &answer, &job->seal);
}

/* A greeting from another host than the rank's may have a forged source. Then whoever is there must not be flooded for
 * small questions: like a QUIC server, at most three times what came from there is answered, and what results have
 * brought anyway. An honest rank with two addresses gets along with that. */
#define ANSWER_FACTOR 3u

static uint64_t unproved_room(const struct job *job, const struct sml_member *m) {
  const uint64_t most = ANSWER_FACTOR * (m->traffic.num_bytes + m->traffic.hello_bytes) + job->result_bytes;
  return most - sml_min_u64(most, m->answered_bytes);
}

uint32_t sml_answer_afford(struct sml_aggregator_engine *e, uint16_t number, uint32_t contributor, uint32_t num,
                           uint32_t frame_bytes) {
  struct job *job = e->jobs[number];
  struct sml_member *m = &job->members.all[job->members.leads[contributor]];
  if (!m->is_unproved) return num;
  const uint32_t num_paid = (uint32_t)sml_min_u64(num, unproved_room(job, m) / frame_bytes);
  m->answered_bytes += (uint64_t)num_paid * frame_bytes;
  job->num_drops[SML_DROP_WRONG_SOURCE] += num - num_paid;
  const uint64_t num_before = atomic_load_explicit(&e->num_drops[SML_DROP_WRONG_SOURCE], memory_order_relaxed);
  atomic_store_explicit(&e->num_drops[SML_DROP_WRONG_SOURCE], num_before + num - num_paid, memory_order_relaxed);
  return num_paid;
}

/* All frames go to one contributor and are equally long, so the kernel takes them as one. */
void sml_answer_pending(struct sml_aggregator_engine *e, const struct sml_header *h, uint32_t num, uint16_t flags) {
  struct sml_netio *io = e->options.io;
  struct job *job = e->jobs[h->job];
  const uint32_t frame_bytes = sml_head_bytes(job->seal.is_keyed) + bitmap_bytes_of(e, job);
  num = sml_answer_afford(e, h->job, h->rank, num, frame_bytes);
  while (num > 0) {
    struct sml_tx_burst burst;
    io->ops->tx_reserve(io, frame_bytes, &burst);
    const uint32_t num_frames = sml_min_u32(num, burst.max_frames);
    burst.goes_apart = sml_is_futile(&job->futile.num_questions, num_frames);
    for (uint32_t i = 0; i < num_frames; i++) fill_pending(e, &h[i], flags, burst.data + (size_t)i * frame_bytes);
    io->ops->tx_commit(io, &burst, num_frames, frame_bytes, &job->members.peers[h->rank], 1);
    h += num_frames;
    num -= num_frames;
  }
}

void sml_answer_missing(struct sml_aggregator_engine *e, const struct sml_header *h) {
  const struct job *job = e->jobs[h->job];
  if (!sml_aggregator_is_one_way(job->aggregator, h) || (!sml_has_owner(h->reducer) && h->chunk != SML_FENCE)) return;
  struct sml_header unasked = *h;
  uint64_t missing[SML_BITMAP_WORDS(SML_MAX_WORLD_SIZE)];
  const uint32_t num_missing = sml_aggregator_missing_for(job->aggregator, h, missing);
  if (!sml_has_owner(h->reducer) && num_missing > MOST_AT_FENCE) return;
  for (uint32_t c = 0; c < job->members.num_contributors; c++) {
    if (!sml_bit_test(missing, c) || c == h->rank) continue;
    unasked.rank = (uint16_t)c;
    sml_answer_pending(e, &unasked, 1, SML_FLAG_UNASKED);
  }
}

/* A contributor's update came through a long queue. It will be told, at most once a pass. */
void sml_answer_note_mark(struct sml_aggregator_engine *e, const struct sml_header *h) {
  struct job *job = e->jobs[h->job];
  struct sml_member *m = &job->members.all[job->members.leads[h->rank]];
  if (m->mark == 0) m->mark = (uint16_t)++e->num_marks;
  e->marks[m->mark - 1] = *h;
}

void sml_answer_marks(struct sml_aggregator_engine *e) {
  for (uint32_t i = 0; i < e->num_marks; i++) {
    struct sml_header h = e->marks[i];
    const struct job *job = e->jobs[h.job];
    job->members.all[job->members.leads[h.rank]].mark = 0;
    h.type = SML_PACKET_PENDING;
    h.flags = SML_FLAG_MARKED;
    h.payload_bytes = 0;
    sml_engine_send(e, &h, NULL, &job->seal, &job->members.peers[h.rank]);
  }
  e->num_marks = 0;
}

static int compare_ranks(const void *a, const void *b) {
  const struct sml_header *x = a, *y = b;
  return x->rank != y->rank ? (x->rank < y->rank ? -1 : 1) : (int)x->slot - (int)y->slot;
}

static void ask(struct sml_aggregator_engine *e, uint16_t flags) {
  qsort(e->questions, e->num_questions, sizeof e->questions[0], compare_ranks);
  for (uint32_t i = 0, end; i < e->num_questions; i = end) {
    for (end = i + 1; end < e->num_questions && e->questions[end].rank == e->questions[i].rank;) end++;
    sml_answer_pending(e, &e->questions[i], end - i, flags);
  }
  e->num_questions = 0;
}

/* Tells ranks that their updates of sums for owners are lost. */
static void tell_lost(struct sml_aggregator_engine *e, uint16_t number) {
  const struct job *job = e->jobs[number];
  struct sml_header h;
  if (!sml_aggregator_options_of(job->aggregator)->is_one_way) return;
  while (sml_aggregator_next_lost(job->aggregator, &h)) {
    h.job = number;
    h.epoch = job->epoch;
    if (e->num_questions == SML_ARRAY_LEN(e->questions)) ask(e, SML_FLAG_UNASKED);
    e->questions[e->num_questions++] = h;
  }
  ask(e, SML_FLAG_UNASKED);
}

/* Asks ranks whose updates are overdue. The questions leave behind the results of the pass, since what ranks send for
 * those comes later. */
void sml_answer_solicit(struct sml_aggregator_engine *e, uint64_t now_ns) {
  for (uint32_t i = 0; i < e->num_busy; i++) {
    struct job *job = e->jobs[e->busy[i]];
    struct sml_header h;
    const uint64_t *ranks;
    job->is_busy = false;
    if (job->num_results != job->seen_results) job->progress_ns = now_ns;
    job->seen_results = job->num_results;
    if (job->bulk.num_open > 0 && !job->was_open) job->opened_ns = now_ns;
    job->was_open = job->bulk.num_open > 0;
    sml_aggregator_begin_solicit(job->aggregator, now_ns);
    while (sml_aggregator_next_solicit(job->aggregator, &h, &ranks)) {
      h.job = e->busy[i];
      h.epoch = job->epoch;
      for (uint32_t r = 0; r < job->members.num_contributors; r++) {
        if (!sml_bit_test(ranks, r)) continue;
        h.rank = (uint16_t)r;
        h.chunk = sml_aggregator_latest_chunk(job->aggregator, r);
        if (e->num_questions == SML_ARRAY_LEN(e->questions)) ask(e, SML_FLAG_UNASKED);
        e->questions[e->num_questions++] = h;
      }
    }
    ask(e, SML_FLAG_UNASKED);
    tell_lost(e, e->busy[i]);
  }
  e->num_busy = 0;
}
