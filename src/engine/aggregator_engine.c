/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "engine/aggregator_engine_internal.h"
#include "engine/fanout.h"
#include "engine/records.h"
#include "engine/switch_format.h"
#include "quant/narrow.h"

#define NONCE_BYTES 8u
/* Answers to packets of unknown jobs, so that a flood of them is not reflected. */
#define ERRORS_PER_S 1000u

struct sml_aggregator_engine *sml_aggregator_engine_create(
    const struct sml_aggregator_engine_options *options) {
  struct sml_aggregator_engine *e = calloc(1, sizeof *e);
  if (e == NULL) return NULL;
  e->options = *options;
  e->recorder = options->recorder != NULL ? options->recorder : &sml_recorder_none;
  sml_mailbox_init(&e->mailbox);
  return e;
}

struct sml_aggregator_engine_sizes sml_aggregator_engine_sizes(void) {
  return (struct sml_aggregator_engine_sizes){.engine_bytes = sizeof(struct sml_aggregator_engine),
                                              .job_bytes = sizeof(struct job),
                                              .rank_bytes = SML_MEMBERS_SLACK * SML_MEMBER_BYTES};
}

void sml_aggregator_engine_destroy(struct sml_aggregator_engine *e) {
  for (uint32_t j = 0; j < SML_MAX_JOBS; j++) SML_ASSERT(e->jobs[j] == NULL);
  sml_mailbox_destroy(&e->mailbox);
  free(e);
}

struct sml_mailbox *sml_aggregator_engine_mailbox(struct sml_aggregator_engine *e) {
  return &e->mailbox;
}

const char *sml_aggregator_engine_find_violation(const struct sml_aggregator_engine *e) {
  const char *problem = NULL;
  for (uint32_t j = 0; j < SML_MAX_JOBS && problem == NULL; j++)
    if (e->jobs[j] != NULL && e->jobs[j]->aggregator != NULL)
      problem = sml_aggregator_find_violation(e->jobs[j]->aggregator);
  return problem;
}

void sml_aggregator_engine_drops(const struct sml_aggregator_engine *e, uint64_t *num_drops) {
  for (uint32_t d = 0; d < SML_NUM_DROPS; d++)
    num_drops[d] = atomic_load_explicit(&e->num_drops[d], memory_order_relaxed);
}

/* ---- the flight recorder ---- */

static struct sml_recorder *recorder_of(const struct sml_aggregator_engine *e, uint16_t job) {
  if (job >= SML_MAX_JOBS || e->jobs[job] == NULL) return e->recorder;
  return sml_recorder_set_pick(e->options.job_recorders, job, e->recorder);
}

static void record(struct sml_aggregator_engine *e, enum sml_trace_event event, uint16_t job, struct sml_record r) {
  sml_record_event(recorder_of(e, job), event, e->now_ns, job, r);
}

static uint32_t slot_base_of(const struct job *job) {
  return job->aggregator != NULL ? sml_aggregator_options_of(job->aggregator)->slot_base : 0;
}

/* ---- jobs ---- */

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
  for (uint32_t c = 0; c < job->members.num_contributors; c++) {
    const struct sml_member *m = &job->members.all[job->members.leads[c]];
    if (!m->is_registered) return false;
    places[c] = (struct sml_place){.addr = m->addr, .mac = m->mac, .port = m->port};
  }
  return true;
}

struct sml_aggregator *sml_aggregator_engine_close_job(struct sml_aggregator_engine *e, uint16_t number) {
  struct job *job = e->jobs[number];
  SML_ASSERT(job != NULL);
  struct sml_aggregator *aggregator = job->aggregator;
  SML_ASSERT(!job->is_busy);
  sml_members_free(&job->members);
  sml_fanout_destroy(job->fanout);
  sml_key_wipe(&job->seal, sizeof job->seal);
  sml_key_wipe(&e->tags.key, sizeof e->tags.key);
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

static void report(struct sml_aggregator_engine *e, enum sml_aggregator_event_kind kind, uint16_t number,
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
                                               [SML_EVENT_DEAF] = SML_TRACE_GROUP_LOST};
  SML_ASSERT(kind < SML_ARRAY_LEN(names));
  record(e, names[kind], number,
         (struct sml_record){.slot = (uint16_t)slot, .rank = (uint16_t)rank_a, .value = rank_b});
  e->options.on_event(e->options.user, &event);
}

/* All are noted before the slots are looked through, once. */
void sml_aggregator_engine_depart_all(struct sml_aggregator_engine *e, uint16_t number, const uint64_t *ranks) {
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
  report(e, SML_EVENT_BLOCKED, number, rank, rank, slot);
}

void sml_aggregator_engine_depart(struct sml_aggregator_engine *e, uint16_t number, uint32_t rank) {
  uint64_t ranks[SML_BITMAP_WORDS(SML_MAX_WORLD_SIZE)] = {0};
  sml_bit_set(ranks, rank);
  sml_aggregator_engine_depart_all(e, number, ranks);
}

/* ---- sending ---- */

static void fill_result(struct sml_aggregator_engine *e, uint8_t *frame, const struct outgoing *out,
                        uint16_t flags) {
  struct job *job = e->jobs[out->job];
  struct sml_header h;
  sml_aggregator_result_for(job->aggregator, out->cell, out->wire, out->reducer, &h);
  h.job = out->job;
  h.epoch = job->epoch;
  h.flags |= flags;
  const void *values = sml_aggregator_values(job->aggregator, out->cell);
  uint8_t *payload = frame + sml_head_bytes(job->seal.is_keyed);
  if (h.wire == SML_LANES_UINT8) memcpy(payload, values, h.payload_bytes);
  else e->options.kernels->pack_int32(payload, values, h.payload_bytes / 4u);
  if (e->options.is_switch_format) sml_wire_seal_for_switch(frame, &h);
  else sml_wire_seal_first(frame, &h, &job->seal);
}

static uint32_t frame_bytes_of(struct sml_aggregator_engine *e, const struct outgoing *out) {
  const struct job *job = e->jobs[out->job];
  struct sml_header h;
  sml_aggregator_result(job->aggregator, out->cell, &h);
  return sml_head_bytes(job->seal.is_keyed) + h.payload_bytes;
}

/* Between a verdict and the end of its pass the cell may start over: a late packet of phase p asked for the
 * result, the next packet opened p + 2. Then everybody has the result, and there is nothing to send. */
static uint32_t drop_overwritten(const struct sml_aggregator_engine *e, struct outgoing *queue,
                                 uint32_t num_queued) {
  uint32_t num_kept = 0;
  for (uint32_t i = 0; i < num_queued; i++) {
    const struct outgoing *out = &queue[i];
    const struct sml_aggregator *aggregator = e->jobs[out->job]->aggregator;
    if (sml_aggregator_has_result(aggregator, out->cell, out->phase)) queue[num_kept++] = *out;
  }
  return num_kept;
}

/* Sends a queue of frames in bursts as long as receivers and size stay the same; the last frame of a
 * burst may be shorter. */
static void flush(struct sml_aggregator_engine *e, const struct outgoing *queue, uint32_t num_queued,
                  bool is_repeat) {
  struct sml_netio *io = e->options.io;
  const uint16_t flags = is_repeat ? SML_FLAG_RETRANSMISSION : 0;
  for (uint32_t i = 0; i < num_queued;) {
    const struct outgoing *first = &queue[i];
    struct job *job = e->jobs[first->job];
    const uint32_t frame_bytes = frame_bytes_of(e, first);
    uint32_t last_bytes = frame_bytes, num_frames = 0;
    struct sml_tx_burst burst;
    io->ops->tx_reserve(io, frame_bytes, &burst);
    while (i < num_queued && num_frames < burst.max_frames && last_bytes == frame_bytes) {
      const struct outgoing *next = &queue[i];
      if (next->job != first->job || (is_repeat && next->rank != first->rank)) break;
      const uint32_t next_bytes = frame_bytes_of(e, next);
      if (next_bytes > frame_bytes) break;
      last_bytes = next_bytes;
      fill_result(e, burst.data + (size_t)num_frames * frame_bytes, next, flags);
      num_frames++;
      i++;
    }
    sml_wire_seal_burst(burst.data, num_frames, frame_bytes, last_bytes, &job->seal);
    const struct sml_fanout *fanout = job->fanout;
    burst.goes_apart = is_repeat && sml_is_futile(&job->futile.num_data, num_frames);
    if (is_repeat) io->ops->tx_commit(io, &burst, num_frames, last_bytes, &job->members.peers[first->rank], 1);
    else if (fanout == NULL || fanout->is_over)
      io->ops->tx_commit(io, &burst, num_frames, last_bytes, job->members.peers, job->members.num_contributors);
    else io->ops->tx_commit(io, &burst, num_frames, last_bytes, fanout->targets, fanout->num_targets);
  }
}

static void flush_all(struct sml_aggregator_engine *e) {
  e->num_results = drop_overwritten(e, e->results, e->num_results);
  e->num_repeats = drop_overwritten(e, e->repeats, e->num_repeats);
  flush(e, e->results, e->num_results, false);
  flush(e, e->repeats, e->num_repeats, true);
  e->num_results = e->num_repeats = 0;
}

static void send_one(struct sml_aggregator_engine *e, const struct sml_header *h, const void *payload,
                     const struct sml_seal *seal, const struct sml_addr *to) {
  struct sml_netio *io = e->options.io;
  struct sml_tx_burst burst;
  const uint32_t head_bytes = sml_head_bytes(seal->is_keyed), frame_bytes = head_bytes + h->payload_bytes;
  io->ops->tx_reserve(io, frame_bytes, &burst);
  if (h->payload_bytes > 0) memcpy(burst.data + head_bytes, payload, h->payload_bytes);
  sml_wire_seal(burst.data, h, seal);
  io->ops->tx_commit(io, &burst, 1, frame_bytes, to, 1);
}

/* ---- receiving ---- */

static void count_up(_Atomic uint64_t *counter) {
  atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1, memory_order_relaxed);
}

/* h: NULL if nothing of the packet can be believed. */
static void count_drop(struct sml_aggregator_engine *e, enum sml_drop drop, const struct sml_header *h) {
  count_up(&e->num_drops[drop]);
  struct job *job = h != NULL && h->job < SML_MAX_JOBS ? e->jobs[h->job] : NULL;
  if (job != NULL) job->num_drops[drop]++; /* as it says; of any epoch, or this would tell who guesses it */
  sml_record_drop(recorder_of(e, h != NULL ? h->job : UINT16_MAX), e->now_ns, h, job ? slot_base_of(job) : 0, drop);
}

/* Tells a worker of an earlier daemon, or of a job that ended, that nobody will answer. Never larger
 * than the packet that asks, and never an answer to an ERROR. There is no key of such a job; but the answer has the
 * mask of what it answers, which nobody knows but the sender of that. */
static void send_error(struct sml_aggregator_engine *e, const uint8_t *frame, const struct sml_header *h,
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
  send_one(e, &answer, NULL, &seal, to);
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

/* h: slot, phase, tag, rank and what else the answer repeats. frame: head and bitmap of missing contributors. */
static void fill_pending(struct sml_aggregator_engine *e, const struct sml_header *h, uint16_t flags, uint8_t *frame) {
  const struct job *job = e->jobs[h->job];
  const uint32_t slot = (uint32_t)h->slot - slot_base_of(job);
  sml_aggregator_missing(job->aggregator, slot, h->phase, e->missing);
  struct sml_header answer = *h;
  answer.type = SML_PACKET_PENDING;
  answer.flags = flags;
  answer.payload_bytes = (uint16_t)bitmap_bytes_of(e, job);
  record_pending(e, h, flags, answer.payload_bytes);
  /* The words' bytes are the wire's bitmap: bit r % 8 of byte r / 8 (little-endian host). */
  memcpy(frame + sml_head_bytes(job->seal.is_keyed), e->missing, answer.payload_bytes);
  if (e->options.is_switch_format) sml_wire_seal_for_switch(frame, &answer);
  else sml_wire_seal(frame, &answer, &job->seal);
}

/* To one contributor, each as long as the others: then the kernel takes them as one. */
static void send_pendings(struct sml_aggregator_engine *e, const struct sml_header *h, uint32_t num, uint16_t flags) {
  struct sml_netio *io = e->options.io;
  struct job *job = e->jobs[h->job];
  const uint32_t frame_bytes = sml_head_bytes(job->seal.is_keyed) + bitmap_bytes_of(e, job);
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

/* A contributor's update came through a long queue: it is told, at most once a pass. */
static void note_mark(struct sml_aggregator_engine *e, const struct sml_header *h) {
  struct job *job = e->jobs[h->job];
  struct sml_member *m = &job->members.all[job->members.leads[h->rank]];
  if (m->mark == 0) m->mark = (uint16_t)++e->num_marks;
  e->marks[m->mark - 1] = *h;
}

static void tell_marks(struct sml_aggregator_engine *e) {
  for (uint32_t i = 0; i < e->num_marks; i++) {
    struct sml_header h = e->marks[i];
    const struct job *job = e->jobs[h.job];
    job->members.all[job->members.leads[h.rank]].mark = 0;
    h.type = SML_PACKET_PENDING;
    h.flags = SML_FLAG_MARKED;
    h.payload_bytes = 0;
    send_one(e, &h, NULL, &job->seal, &job->members.peers[h.rank]);
  }
  e->num_marks = 0;
}

static int compare_ranks(const void *a, const void *b) {
  const struct sml_header *x = a, *y = b;
  return x->rank != y->rank ? (x->rank < y->rank ? -1 : 1) : (int)x->slot - (int)y->slot;
}

static void ask(struct sml_aggregator_engine *e) {
  qsort(e->questions, e->num_questions, sizeof e->questions[0], compare_ranks);
  for (uint32_t i = 0, end; i < e->num_questions; i = end) {
    for (end = i + 1; end < e->num_questions && e->questions[end].rank == e->questions[i].rank;) end++;
    send_pendings(e, &e->questions[i], end - i, SML_FLAG_UNASKED);
  }
  e->num_questions = 0;
}

/* Asks ranks whose updates are overdue, behind the results of the pass: what they send for those comes later. */
static void solicit(struct sml_aggregator_engine *e, uint64_t now_ns) {
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
        if (e->num_questions == SML_ARRAY_LEN(e->questions)) ask(e);
        e->questions[e->num_questions++] = h;
      }
    }
    ask(e);
  }
  e->num_busy = 0;
}

static void sum(struct sml_aggregator_engine *e, struct job *job, const struct sml_header *h,
                const uint8_t *payload, uint32_t cell, bool is_first) {
  void *values = sml_aggregator_values(job->aggregator, cell);
  const struct sml_quant_kernels *k = e->options.kernels;
  const uint32_t num_lanes = sml_lanes_bytes_of(h) / 4;
  if (h->flags & SML_FLAG_NARROW) {
    sml_widen_lanes(e->wide, payload, num_lanes);
    payload = e->wide;
  }
  if (h->wire == SML_LANES_UINT8) {
    if (is_first) memcpy(values, payload, h->payload_bytes);
    else k->max_uint8(values, payload, h->payload_bytes);
  } else if (h->wire == SML_LANES_WIDE_UINT8 && !is_first) {
    sml_switch_max_codes(values, payload, h->payload_bytes / 4u);
  } else if (is_first) {
    k->set_int32(values, payload, num_lanes);
  } else {
    k->add_int32(values, payload, num_lanes);
  }
}

static void report_once(struct sml_aggregator_engine *e, const struct sml_header *h,
                        const struct sml_decision *d) {
  struct job *job = e->jobs[h->job];
  count_drop(e, d->drop, h);
  if (job->is_reported) return;
  job->is_reported = true;
  const bool is_mismatch = d->verdict == SML_VERDICT_MISMATCH;
  report(e, is_mismatch ? SML_EVENT_MISMATCH : SML_EVENT_JUMP, h->job, job->members.leads[h->rank],
         job->members.leads[is_mismatch ? d->first_rank : h->rank], d->cell / 2);
}

static void record_update(struct sml_aggregator_engine *e, const struct sml_header *h, const struct sml_decision *d) {
  const uint32_t slot_base = slot_base_of(e->jobs[h->job]);
  if (h->type == SML_PACKET_UPDATE)
    sml_record_packet(recorder_of(e, h->job), SML_TRACE_UPDATE_RECEIVED, e->now_ns, h, slot_base, 0);
  if (d->verdict == SML_VERDICT_COMPLETE)
    sml_record_packet(recorder_of(e, h->job), SML_TRACE_SLOT_COMPLETED, e->now_ns, h, slot_base, 0);
}

static void execute(struct sml_aggregator_engine *e, const struct sml_header *h, const uint8_t *payload,
                    const struct sml_decision *d) {
  struct job *job = e->jobs[h->job];
  const struct outgoing out = {.job = h->job,
                               .rank = h->rank,
                               .cell = d->cell,
                               .phase = sml_aggregator_phase(job->aggregator, d->cell),
                               .wire = h->wire,
                               .reducer = h->reducer};
  if (sml_recorder_takes_all(e->recorder)) record_update(e, h, d);
  switch (d->verdict) {
    case SML_VERDICT_DROP:
      count_drop(e, d->drop, h);
      break;
    case SML_VERDICT_FIRST:
    case SML_VERDICT_ADD:
      sum(e, job, h, payload, d->cell, d->verdict == SML_VERDICT_FIRST);
      if (d->verdict == SML_VERDICT_FIRST) sml_bulk_note_open(&job->bulk);
      if (d->blocked_rank != UINT32_MAX && !job->is_blocked_reported) {
        job->is_blocked_reported = true;
        report(e, SML_EVENT_BLOCKED, h->job, sml_members_find_departed(&job->members, d->blocked_rank),
               job->members.leads[h->rank], d->cell / 2);
      }
      break;
    case SML_VERDICT_COMPLETE:
      sum(e, job, h, payload, d->cell, d->is_first);
      job->num_results++;
      job->futile = (struct sml_futile){0};
      sml_bulk_note_result(&job->bulk, !d->is_first);
      e->results[e->num_results++] = out;
      break;
    case SML_VERDICT_REPEAT:
      if (h->type == SML_PACKET_UPDATE) count_drop(e, SML_DROP_NEEDLESS, h);
      job->members.all[job->members.leads[h->rank]].traffic.num_repeats++;
      e->repeats[e->num_repeats++] = out;
      record(e, SML_TRACE_RESULT_REPEATED, h->job,
             (struct sml_record){.slot = (uint16_t)(d->cell / 2), .rank = h->rank, .phase = out.phase});
      if ((h->flags & SML_FLAG_DEAF) != 0 && job->fanout != NULL &&
          sml_fanout_add_deaf(job->fanout, h->rank, &job->members.peers[h->rank]))
        report(e, SML_EVENT_DEAF, h->job, job->members.leads[h->rank], job->members.leads[h->rank], d->cell / 2);
      break;
    case SML_VERDICT_PENDING:
      if (h->type == SML_PACKET_UPDATE) count_drop(e, SML_DROP_NEEDLESS, h);
      send_pendings(e, h, 1, 0);
      break;
    case SML_VERDICT_MISMATCH:
    case SML_VERDICT_JUMP:
      report_once(e, h, d);
      break;
  }
}

/* A HELLO registers where a rank's packets come from, and comes back in the same size: the path carries
 * such packets both ways. Or by the job's group, if it asks for that. */
static void take_hello(struct sml_aggregator_engine *e, const struct sml_header *hello, const uint8_t *payload,
                       const struct sml_addr *from) {
  struct sml_header own = *hello;
  const struct sml_header *h = &own;
  own.slot = 0; /* beside a switch it is its port; phase and tag are the sender's MAC */
  own.phase = own.tag = 0;
  struct job *job = e->jobs[h->job];
  struct sml_member *m = sml_members_find(&job->members, h->rank);
  if (h->payload_bytes < NONCE_BYTES || !m->has_nonce || sml_load_be64(payload) != m->nonce) {
    count_drop(e, SML_DROP_BAD_NONCE, h);
    return;
  }
  if (m->is_registered && !sml_addr_equal(&m->addr, from)) { /* overheard and sent again by another */
    count_drop(e, SML_DROP_WRONG_SOURCE, h);
    return;
  }
  const bool is_to_group = sml_hello_is_to_group(payload, h->payload_bytes);
  if (is_to_group && job->group.num_bytes == 0) {
    count_drop(e, SML_DROP_BAD_TYPE, h);
    return;
  }
  record(e, SML_TRACE_HELLO_RECEIVED, h->job,
         (struct sml_record){.rank = h->rank, .value = sml_head_bytes_of(h) + h->payload_bytes});
  m->addr = *from;
  m->is_registered = true;
  m->port = hello->slot;
  m->mac = (uint64_t)hello->phase << 16 | (hello->tag & 0xffff);
  m->traffic.num_hellos++;
  m->traffic.hello_bytes = sml_max_u32(m->traffic.hello_bytes, sml_head_bytes_of(h) + h->payload_bytes);
  const bool is_seated = job->members.num_contributors > 0;
  if (is_seated && job->members.leads[m->contributor] == h->rank) job->members.peers[m->contributor] = *from;
  send_one(e, h, payload, &job->seal, is_to_group ? &job->group : from);
}

/* HELLOs are ranks', all else is contributors', once these are known. NULL: there is no such one. */
static struct sml_member *find_sender(const struct job *job, const struct sml_header *h) {
  const struct sml_members *m = &job->members;
  if (h->type == SML_PACKET_HELLO || m->num_contributors == 0)
    return h->rank < m->world_size ? sml_members_find(m, h->rank) : NULL;
  return h->rank < m->num_contributors ? &m->all[m->leads[h->rank]] : NULL;
}

/* From a switch, or written into by it on the way. A report has no payload: with one, a switch that knows packets by
 * their length may have passed on what a host sent. */
static bool is_through_switch(const struct sml_aggregator_engine *e, const struct sml_header *h) {
  if (!e->options.is_beside_switch || h->flags != 0) return false;
  return h->type == SML_PACKET_HELLO || (h->type == SML_PACKET_SWITCH_REPORT && h->payload_bytes == 0);
}

/* For what a frame counts that is not of the job's epoch. Without a key that is 64 bits to be guessed, half of them the
 * epoch's: no counter and no answer may tell one half right from both wrong, or they are guessed one by one. */
static enum sml_drop reason_of_forgery(const struct sml_aggregator_engine *e, const struct job *job,
                                       const struct sml_header *h) {
  const bool has_secret = !job->seal.is_keyed && !e->options.is_switch_format;
  if (job->epoch != h->epoch && !has_secret) return SML_DROP_WRONG_EPOCH;
  return job->seal.is_keyed || (h->flags & SML_FLAG_KEYED) != 0 ? SML_DROP_BAD_KEY : SML_DROP_BAD_CRC;
}

static bool is_of_epoch(struct sml_aggregator_engine *e, const struct job *job, const struct sml_rx_frame *frame,
                        const struct sml_header *h) {
  if (job->epoch != h->epoch) return false;
  const bool is_bare = e->options.is_switch_format && (h->flags & SML_FLAG_KEYED) == 0 &&
                       (sml_wire_is_without_crc(h) || is_through_switch(e, h));
  return is_bare || sml_tags_check(&e->tags, frame, e->frames_end, h, &job->seal);
}

/* A contributor's packet came to a slot of another operation, the switch says. */
static void take_switch_report(struct sml_aggregator_engine *e, const struct sml_header *h) {
  struct job *job = e->jobs[h->job];
  count_drop(e, SML_DROP_TAG_MISMATCH, h);
  if (job->is_reported || h->chunk >= job->members.num_contributors) return;
  job->is_reported = true;
  report(e, SML_EVENT_MISMATCH, h->job, job->members.leads[h->rank], job->members.leads[h->chunk], h->slot);
}

static void take_frame(struct sml_aggregator_engine *e, const struct sml_rx_frame *frame, uint64_t now_ns) {
  struct sml_header h;
  enum sml_wire_error error = sml_wire_open(frame->data, frame->num_bytes, &h);
  if (error == SML_WIRE_BAD_TYPE && h.type == SML_PACKET_SWITCH_REPORT && is_through_switch(e, &h)) error = SML_WIRE_OK;
  if (error != SML_WIRE_OK) {
    count_drop(e, sml_drop_of_wire(error), NULL);
    return;
  }
  struct job *job = h.job < SML_MAX_JOBS ? e->jobs[h.job] : NULL;
  if (job == NULL) {
    count_drop(e, SML_DROP_UNKNOWN_JOB, &h);
    send_error(e, frame->data, &h, frame->from, now_ns);
    return;
  }
  const uint8_t *payload = frame->data + sml_head_bytes_of(&h);
  enum sml_drop drop = SML_NUM_DROPS;
  struct sml_member *member;
  if (!is_of_epoch(e, job, frame, &h)) drop = reason_of_forgery(e, job, &h);
  else if ((member = find_sender(job, &h)) == NULL) drop = SML_DROP_BAD_RANK;
  else if (member->is_departed) drop = SML_DROP_DEPARTED_RANK;
  else if (h.type == SML_PACKET_HELLO) take_hello(e, &h, payload, frame->from);
  else if (h.type != SML_PACKET_UPDATE && h.type != SML_PACKET_PROBE && h.type != SML_PACKET_SWITCH_REPORT)
    drop = SML_DROP_BAD_TYPE;
  else if (!member->is_registered || !sml_addr_equal(&member->addr, frame->from)) drop = SML_DROP_WRONG_SOURCE;
  else if (h.type == SML_PACKET_SWITCH_REPORT) take_switch_report(e, &h);
  else if (job->aggregator == NULL) drop = SML_DROP_NOT_STARTED;
  else {
    if (!job->is_busy) e->busy[e->num_busy++] = h.job;
    job->is_busy = true;
    member->traffic.num_packets++;
    member->traffic.num_bytes += frame->num_bytes;
    if (h.flags & SML_FLAG_RETRANSMISSION) member->traffic.num_retransmissions++;
    const struct sml_decision d = sml_aggregator_decide(job->aggregator, &h);
    execute(e, &h, payload, &d);
    if (d.verdict >= SML_VERDICT_FIRST && d.verdict <= SML_VERDICT_COMPLETE) count_up(&member->num_contributions);
    if (frame->is_marked && h.type == SML_PACKET_UPDATE && !e->options.is_switch_format) note_mark(e, &h);
  }
  if (drop != SML_NUM_DROPS) count_drop(e, drop, &h);
  if (drop == SML_DROP_BAD_KEY) sml_forged_note(&e->forged, &e->options, h.job, job->epoch, frame->from, now_ns);
}

/* As long as each job of the pass can do without. */
static uint64_t gather_time(struct sml_aggregator_engine *e, uint64_t now_ns) {
  uint64_t gather_ns = e->num_busy > 0 ? SML_NEVER : 0;
  for (uint32_t i = 0; i < e->num_busy; i++) {
    struct job *job = e->jobs[e->busy[i]];
    const uint32_t num_slots = sml_aggregator_options_of(job->aggregator)->num_slots;
    gather_ns = sml_min_u64(gather_ns, sml_bulk_end_pass(&job->bulk, num_slots, now_ns));
  }
  return gather_ns;
}

uint64_t sml_aggregator_engine_run_once(void *engine, uint64_t now_ns) {
  struct sml_aggregator_engine *e = engine;
  struct sml_netio *io = e->options.io;
  e->now_ns = now_ns;
  sml_mailbox_drain(&e->mailbox, e, now_ns);
  const size_t num_frames = io->ops->rx_burst(io, e->frames, RX_FRAMES);
  e->frames_end = e->frames + num_frames;
  sml_tags_begin(&e->tags);
  for (size_t i = 0; i < num_frames; i++) take_frame(e, &e->frames[i], now_ns);
  flush_all(e);
  io->gather_ns = gather_time(e, now_ns);
  solicit(e, now_ns);
  tell_marks(e);
  io->ops->tx_flush(io);
  return num_frames == RX_FRAMES ? 0 : SML_NEVER; /* the aggregator has no timers: workers ask */
}
