/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "engine/aggregator_engine_internal.h"
#include "engine/fanout.h"
#include "engine/records.h"
#include "engine/switch_format.h"
#include "quant/narrow.h"

#define NONCE_BYTES 8u

_Static_assert(SML_COMBINE_MAX_32 == (SML_LANES_UINT32 << 4 | SML_REDUCE_MAX), "");
_Static_assert(SML_COMBINE_MAX_64 == (SML_LANES_UINT64 << 4 | SML_REDUCE_MAX), "");
_Static_assert(SML_COMBINE_PRODUCT_32 == (SML_LANES_UINT32 << 4 | SML_REDUCE_PRODUCT), "");
_Static_assert(SML_COMBINE_PRODUCT_64 == (SML_LANES_UINT64 << 4 | SML_REDUCE_PRODUCT), "");
_Static_assert(SML_COMBINE_OR == (SML_LANES_UINT32 << 4 | SML_REDUCE_OR), "");

struct sml_aggregator_engine *sml_aggregator_engine_create(const struct sml_aggregator_engine_options *options) {
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

void sml_aggregator_engine_drops(const struct sml_aggregator_engine *e, uint64_t *num_drops) {
  for (uint32_t d = 0; d < SML_NUM_DROPS; d++)
    num_drops[d] = atomic_load_explicit(&e->num_drops[d], memory_order_relaxed);
}

/* ---- sending ---- */

static void fill_result(struct sml_aggregator_engine *e, uint8_t *frame, const struct outgoing *out, uint16_t flags) {
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
  else sml_wire_seal(frame, &h, &job->seal);
}

static uint32_t result_frame_bytes(const struct job *job, uint32_t cell) {
  struct sml_header h;
  sml_aggregator_result(job->aggregator, cell, &h);
  return sml_head_bytes(job->seal.is_keyed) + h.payload_bytes;
}

static uint32_t frame_bytes_of(struct sml_aggregator_engine *e, const struct outgoing *out) {
  return result_frame_bytes(e->jobs[out->job], out->cell);
}

/* Between a verdict and the end of its pass the cell may start over: a late packet of phase p asked for the
 * result, and the next packet opened p + 2. Then everybody has the result, and there is nothing to send. */
static uint32_t drop_overwritten(const struct sml_aggregator_engine *e, struct outgoing *queue, uint32_t num_queued) {
  uint32_t num_kept = 0;
  for (uint32_t i = 0; i < num_queued; i++) {
    const struct outgoing *out = &queue[i];
    const struct sml_aggregator *aggregator = e->jobs[out->job]->aggregator;
    if (sml_aggregator_has_result(aggregator, out->cell, out->phase)) queue[num_kept++] = *out;
  }
  return num_kept;
}

static bool goes_to_group(const struct job *job) {
  return job->fanout != NULL && !job->fanout->is_over;
}

/* A burst goes to whom its first frame does: the one that asked, an owner, or all; a copy to all but its owner. */
static void commit(struct sml_aggregator_engine *e, struct sml_tx_burst *burst, uint32_t num_frames,
                   uint32_t last_bytes, const struct outgoing *first, bool is_repeat) {
  const struct job *job = e->jobs[first->job];
  const struct sml_members *m = &job->members;
  const struct sml_addr *to = m->peers;
  uint32_t num = m->num_contributors;
  if (is_repeat || first->reducer == SML_REDUCE_TO_OWNER) {
    to += is_repeat ? first->rank : first->owner;
    num = 1;
  } else if (goes_to_group(job)) {
    to = job->fanout->targets;
    num = job->fanout->num_targets;
  }
  e->options.io->ops->tx_commit(e->options.io, burst, num_frames, last_bytes, to, num);
}

static bool has_same_receivers(const struct outgoing *a, const struct outgoing *b, bool is_repeat) {
  if (a->job != b->job) return false;
  if (is_repeat) return a->rank == b->rank;
  const bool is_to_owner = a->reducer == SML_REDUCE_TO_OWNER;
  return is_to_owner == (b->reducer == SML_REDUCE_TO_OWNER) && (!is_to_owner || a->owner == b->owner);
}

/* Sends a queue of frames in bursts. A burst goes on while receivers and size stay the same; its last frame may be
 * shorter. */
static void flush(struct sml_aggregator_engine *e, const struct outgoing *queue, uint32_t num_queued, bool is_repeat) {
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
      if (!has_same_receivers(next, first, is_repeat)) break;
      const uint32_t next_bytes = frame_bytes_of(e, next);
      if (next_bytes > frame_bytes) break;
      last_bytes = next_bytes;
      fill_result(e, burst.data + (size_t)num_frames * frame_bytes, next, flags);
      if (next->reducer == SML_REDUCE_COPY && !is_repeat && !goes_to_group(job))
        burst.not_for[num_frames] = (uint16_t)(next->owner + 1);
      num_frames++;
      i++;
    }
    burst.goes_apart = is_repeat && sml_is_futile(&job->futile.num_data, num_frames);
    commit(e, &burst, num_frames, last_bytes, first, is_repeat);
  }
}

static int compare_owned(const void *a, const void *b) {
  const struct outgoing *x = a, *y = b;
  if (x->job != y->job) return x->job < y->job ? -1 : 1;
  if (x->reducer != y->reducer) return x->reducer < y->reducer ? -1 : 1;
  if (x->owner != y->owner) return x->owner < y->owner ? -1 : 1;
  if (x->phase != y->phase) return x->phase < y->phase ? -1 : 1;
  return x->cell < y->cell ? -1 : 1;
}

/* The chunks of a row have different receivers. So that bursts are long, sums of one owner leave together, in the order
 * of the stream, behind what all get; then copies, which those of one owner do not interrupt more than once. */
static void gather_owned(struct sml_aggregator_engine *e) {
  uint32_t num_kept = 0, num_owned = 0;
  for (uint32_t i = 0; i < e->num_results; i++) {
    const struct outgoing *out = &e->results[i];
    if (sml_has_owner(out->reducer)) e->owned[num_owned++] = *out;
    else e->results[num_kept++] = *out;
  }
  if (num_owned == 0) return;
  qsort(e->owned, num_owned, sizeof e->owned[0], compare_owned);
  memcpy(e->results + num_kept, e->owned, num_owned * sizeof e->owned[0]);
}

static void flush_all(struct sml_aggregator_engine *e) {
  e->num_results = drop_overwritten(e, e->results, e->num_results);
  e->num_repeats = drop_overwritten(e, e->repeats, e->num_repeats);
  gather_owned(e);
  flush(e, e->results, e->num_results, false);
  flush(e, e->repeats, e->num_repeats, true);
  e->num_results = e->num_repeats = 0;
}

/* ---- receiving ---- */

static void count_up(_Atomic uint64_t *counter) {
  atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1, memory_order_relaxed);
}

/* h: NULL if nothing of the packet can be believed. */
static void count_drop(struct sml_aggregator_engine *e, enum sml_drop drop, const struct sml_header *h) {
  count_up(&e->num_drops[drop]);
  struct job *job = h != NULL && h->job < SML_MAX_JOBS ? e->jobs[h->job] : NULL;
  if (job != NULL) job->num_drops[drop]++; /* whatever its epoch: otherwise this would tell who guesses the epoch */
  sml_record_drop(recorder_of(e, h != NULL ? h->job : UINT16_MAX), e->now_ns, h, job ? slot_base_of(job) : 0, drop);
}

static void sum(struct sml_aggregator_engine *e, struct job *job, const struct sml_header *h, const uint8_t *payload,
                uint32_t cell, bool is_first) {
  void *values = sml_aggregator_values(job->aggregator, cell);
  const struct sml_quant_kernels *k = e->options.kernels;
  const uint32_t num_lanes = sml_lanes_bytes_of(h) / 4;
  if (h->flags & SML_FLAG_NARROW) {
    sml_widen_lanes(e->wide, payload, num_lanes);
    payload = e->wide;
  }
  if (h->wire == SML_LANES_UINT8)
    if (is_first) memcpy(values, payload, h->payload_bytes);
    else k->max_uint8(values, payload, h->payload_bytes);
  else if (is_first) k->set_int32(values, payload, num_lanes);
  else if (h->wire == SML_LANES_INT32) k->add_int32(values, payload, num_lanes);
  else k->combine(values, payload, num_lanes, (enum sml_combine)(h->wire << 4 | h->reducer));
}

static void report_once(struct sml_aggregator_engine *e, const struct sml_header *h, const struct sml_decision *d) {
  struct job *job = e->jobs[h->job];
  count_drop(e, d->drop, h);
  if (job->is_reported) return;
  job->is_reported = true;
  const bool is_mismatch = d->verdict == SML_VERDICT_MISMATCH;
  sml_engine_report(e, is_mismatch ? SML_EVENT_MISMATCH : SML_EVENT_JUMP, h->job, job->members.leads[h->rank],
                    job->members.leads[is_mismatch ? d->first_rank : h->rank], d->cell / 2);
}

static void record_update(struct sml_aggregator_engine *e, const struct sml_header *h, const struct sml_decision *d) {
  const uint32_t slot_base = slot_base_of(e->jobs[h->job]);
  if (h->type == SML_PACKET_UPDATE)
    sml_record_packet(recorder_of(e, h->job), SML_TRACE_UPDATE_RECEIVED, e->now_ns, h, slot_base, 0);
  if (d->verdict == SML_VERDICT_COMPLETE)
    sml_record_packet(recorder_of(e, h->job), SML_TRACE_SLOT_COMPLETED, e->now_ns, h, slot_base, 0);
}

static struct outgoing answer_of(const struct job *job, const struct sml_header *h, const struct sml_decision *d) {
  return (struct outgoing){.job = h->job,
                           .rank = h->rank,
                           .cell = d->cell,
                           .phase = sml_aggregator_phase(job->aggregator, d->cell),
                           .wire = h->wire,
                           .reducer = h->reducer,
                           .owner = sml_has_owner(h->reducer) ? (uint16_t)h->chunk : 0};
}

/* Only slot 0 measures how long chunks wait, so the others pay nothing. */
static bool is_measured(const struct sml_decision *d) {
  return d->cell < 2;
}

static void note_first(const struct sml_aggregator_engine *e, struct job *job, const struct sml_decision *d) {
  sml_bulk_note_open(&job->bulk);
  if (is_measured(d)) job->waits_since_ns = e->now_ns;
}

static void note_complete(const struct sml_aggregator_engine *e, struct job *job, const struct sml_header *h,
                          const struct sml_decision *d) {
  job->num_results++;
  job->result_bytes += sml_head_bytes(job->seal.is_keyed) + h->payload_bytes;
  job->futile = (struct sml_futile){0};
  sml_bulk_note_result(&job->bulk, !d->is_first);
  job->bulk.num_open -= d->num_passed;
  if (is_measured(d)) sml_waits_note(&job->waits, d->is_first ? 0 : e->now_ns - job->waits_since_ns);
}

static void report_blocked(struct sml_aggregator_engine *e, const struct sml_header *h, const struct sml_decision *d) {
  struct job *job = e->jobs[h->job];
  if (d->blocked_rank == UINT32_MAX || job->is_blocked_reported) return;
  job->is_blocked_reported = true;
  sml_engine_report(e, SML_EVENT_BLOCKED, h->job, sml_members_find_departed(&job->members, d->blocked_rank),
                    job->members.leads[h->rank], d->cell / 2);
}

static void execute(struct sml_aggregator_engine *e, const struct sml_header *h, const uint8_t *payload,
                    const struct sml_decision *d) {
  struct job *job = e->jobs[h->job];
  if (sml_recorder_takes_all(e->recorder)) record_update(e, h, d);
  switch (d->verdict) {
    case SML_VERDICT_DROP: count_drop(e, d->drop, h); break;
    case SML_VERDICT_FIRST:
    case SML_VERDICT_ADD:
      sum(e, job, h, payload, d->cell, d->verdict == SML_VERDICT_FIRST);
      if (d->verdict == SML_VERDICT_FIRST) note_first(e, job, d);
      report_blocked(e, h, d);
      break;
    case SML_VERDICT_COMPLETE:
      sum(e, job, h, payload, d->cell, d->is_first);
      note_complete(e, job, h, d);
      e->results[e->num_results++] = answer_of(job, h, d);
      break;
    case SML_VERDICT_REPEAT:
      if (h->type == SML_PACKET_UPDATE) count_drop(e, SML_DROP_NEEDLESS, h);
      if (sml_answer_afford(e, h->job, h->rank, 1, result_frame_bytes(job, d->cell)) == 0) break;
      job->members.all[job->members.leads[h->rank]].traffic.num_repeats++;
      e->repeats[e->num_repeats++] = answer_of(job, h, d);
      record(e, SML_TRACE_RESULT_REPEATED, h->job,
             (struct sml_record){.slot = (uint16_t)(d->cell / 2),
                                 .rank = h->rank,
                                 .phase = sml_aggregator_phase(job->aggregator, d->cell)});
      if ((h->flags & SML_FLAG_DEAF) != 0 && job->fanout != NULL &&
          sml_fanout_add_deaf(job->fanout, h->rank, &job->members.peers[h->rank]))
        sml_engine_report(e, SML_EVENT_DEAF, h->job, job->members.leads[h->rank], job->members.leads[h->rank],
                          d->cell / 2);
      break;
    case SML_VERDICT_PENDING:
      if (h->type == SML_PACKET_UPDATE) count_drop(e, SML_DROP_NEEDLESS, h);
      sml_answer_pending(e, h, 1, 0);
      if (h->type == SML_PACKET_PROBE) sml_answer_missing(e, h);
      report_blocked(e, h, d);
      break;
    case SML_VERDICT_MISMATCH:
    case SML_VERDICT_JUMP: report_once(e, h, d); break;
  }
}

/* Notes where a HELLO with the right nonce came in at the switch. Nobody else knows it, so only the rank moves. */
static void note_place(struct sml_aggregator_engine *e, const struct sml_header *hello, struct sml_member *m) {
  const struct job *job = e->jobs[hello->job];
  const uint64_t mac = (uint64_t)hello->phase << 16 | (hello->tag & 0xffff);
  const bool is_moved = m->port != hello->slot || m->mac != mac;
  m->port = hello->slot;
  m->mac = mac;
  if (is_moved && e->options.is_beside_switch && job->members.num_contributors > 0 &&
      job->members.leads[m->contributor] == hello->rank)
    sml_engine_report(e, SML_EVENT_MOVED, hello->job, hello->rank, hello->rank, m->port);
}

/* A HELLO registers where a rank's packets come from. It goes back in the same size, which shows that the path carries
 * such packets both ways; or it goes to the job's group, if it asks for that. In switch format ranks go on sending
 * HELLOs after the start. Beside a switch nobody answers those: the switch might still send the answer, with the nonce,
 * to where the rank was before. */
static void take_hello(struct sml_aggregator_engine *e, const struct sml_header *hello, const uint8_t *payload,
                       const struct sml_addr *from) {
  struct sml_header own = *hello;
  const struct sml_header *h = &own;
  own.slot = 0; /* beside a switch this is the switch's port; phase and tag are the sender's MAC */
  own.phase = own.tag = 0;
  struct job *job = e->jobs[h->job];
  struct sml_member *m = sml_members_find(&job->members, h->rank);
  if (h->payload_bytes < NONCE_BYTES || !m->has_nonce || sml_load_be64(payload) != m->nonce) {
    count_drop(e, SML_DROP_BAD_NONCE, h);
    return;
  }
  if (m->is_registered && !sml_addr_equal(&m->addr, from)) { /* somebody overheard it and sent it again */
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
  m->is_unproved = m->host != 0 && sml_addr_host(from) != 0 && sml_addr_host(from) != m->host;
  note_place(e, hello, m);
  m->traffic.num_hellos++;
  m->traffic.hello_bytes = sml_max_u32(m->traffic.hello_bytes, sml_head_bytes_of(h) + h->payload_bytes);
  struct sml_members *members = &job->members;
  const bool is_seated = members->num_contributors > 0;
  if (is_seated && members->leads[m->contributor] == h->rank) sml_members_place(members, m->contributor, from);
  if (is_seated && e->options.is_beside_switch) return;
  sml_engine_send(e, h, payload, &job->seal, is_to_group ? &job->group : from);
}

/* HELLOs come from ranks, everything else from contributors once these are known. NULL: there is no such sender. */
static struct sml_member *find_sender(const struct job *job, const struct sml_header *h) {
  const struct sml_members *m = &job->members;
  if (h->type == SML_PACKET_HELLO || m->num_contributors == 0)
    return h->rank < m->world_size ? sml_members_find(m, h->rank) : NULL;
  return h->rank < m->num_contributors ? &m->all[m->leads[h->rank]] : NULL;
}

/* HELLO, REPORT and HEARD say what only a switch can know. The switch also passes on frames in which a host may have
 * written the same; the voucher tells them apart. */
static bool is_vouched(const struct sml_aggregator_engine *e, const uint8_t *frame, const struct sml_header *h) {
  return e->options.is_beside_switch && h->flags == 0 && sml_wire_has_voucher(frame, e->options.voucher) &&
         (h->type == SML_PACKET_HELLO || h->payload_bytes == 0);
}

/* Why a frame is dropped that does not belong to the job's epoch. Without a key there are 64 bits to guess, half of
 * them the epoch's number. No counter and no answer may show that one half was right: then the halves could be guessed
 * one by one. */
static enum sml_drop reason_of_forgery(const struct sml_aggregator_engine *e, const struct job *job,
                                       const struct sml_header *h) {
  const bool has_secret = !job->seal.is_keyed && !e->options.is_switch_format;
  if (job->epoch != h->epoch && !has_secret) return SML_DROP_WRONG_EPOCH;
  return job->seal.is_keyed || (h->flags & SML_FLAG_KEYED) != 0 ? SML_DROP_BAD_KEY : SML_DROP_BAD_CRC;
}

static bool is_of_epoch(struct sml_aggregator_engine *e, const struct job *job, const uint8_t *frame,
                        const struct sml_header *h) {
  if (job->epoch != h->epoch) return false;
  if (e->options.is_beside_switch && h->type == SML_PACKET_HELLO) return is_vouched(e, frame, h);
  const bool is_report = h->type == SML_PACKET_SWITCH_REPORT; /* take_frame() has checked its voucher */
  const bool is_bare =
      e->options.is_switch_format && (h->flags & SML_FLAG_KEYED) == 0 && (sml_wire_is_without_crc(h) || is_report);
  return is_bare || sml_wire_is_authentic(frame, h, &job->seal);
}

/* The switch says that a contributor's packet came to a slot of another operation. */
static void take_switch_report(struct sml_aggregator_engine *e, const struct sml_header *h) {
  struct job *job = e->jobs[h->job];
  count_drop(e, SML_DROP_TAG_MISMATCH, h);
  if (job->is_reported || h->chunk >= job->members.num_contributors) return;
  job->is_reported = true;
  sml_engine_report(e, SML_EVENT_MISMATCH, h->job, job->members.leads[h->rank], job->members.leads[h->chunk], h->slot);
}

static void take_switch_heard(struct sml_aggregator_engine *e, const struct sml_header *h) {
  const struct sml_aggregator_event event = {.kind = SML_EVENT_HEARD,
                                             .job = (uint16_t)((h->phase ^ h->tag) % SML_MAX_JOBS),
                                             .rank_a = h->phase,
                                             .rank_b = h->tag,
                                             .slot = h->slot};
  e->options.on_event(e->options.user, &event);
}

static void take_frame(struct sml_aggregator_engine *e, const struct sml_rx_frame *frame, uint64_t now_ns) {
  struct sml_header h;
  enum sml_wire_error error = sml_wire_open(frame->data, frame->num_bytes, &h);
  if (error == SML_WIRE_BAD_TYPE && h.type == SML_PACKET_SWITCH_HEARD && is_vouched(e, frame->data, &h)) {
    take_switch_heard(e, &h);
    return;
  }
  if (error == SML_WIRE_BAD_TYPE && h.type == SML_PACKET_SWITCH_REPORT && is_vouched(e, frame->data, &h))
    error = SML_WIRE_OK;
  if (error != SML_WIRE_OK) {
    count_drop(e, sml_drop_of_wire(error), NULL);
    return;
  }
  struct job *job = h.job < SML_MAX_JOBS ? e->jobs[h.job] : NULL;
  if (job == NULL) {
    count_drop(e, SML_DROP_UNKNOWN_JOB, &h);
    sml_answer_error(e, frame->data, &h, frame->from, now_ns);
    return;
  }
  const uint8_t *payload = frame->data + sml_head_bytes_of(&h);
  enum sml_drop drop = SML_NUM_DROPS;
  struct sml_member *member;
  if (!is_of_epoch(e, job, frame->data, &h)) drop = reason_of_forgery(e, job, &h);
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
    if (frame->is_marked && h.type == SML_PACKET_UPDATE && !e->options.is_switch_format) sml_answer_note_mark(e, &h);
  }
  if (drop != SML_NUM_DROPS) count_drop(e, drop, &h);
  if (drop == SML_DROP_BAD_KEY) sml_forged_note(&e->forged, &e->options, h.job, job->epoch, frame->from, now_ns);
}

/* How long results may gather: the shortest time that a job of this pass allows. */
static uint64_t gather_time(struct sml_aggregator_engine *e, uint64_t now_ns) {
  uint64_t gather_ns = e->num_busy > 0 ? SML_NEVER : 0;
  for (uint32_t i = 0; i < e->num_busy; i++) {
    struct job *job = e->jobs[e->busy[i]];
    const uint32_t num_slots = sml_aggregator_options_of(job->aggregator)->num_slots;
    gather_ns = sml_min_u64(gather_ns, sml_bulk_end_pass(&job->bulk, num_slots, now_ns));
  }
  return gather_ns;
}

/* Makes one pass. It runs the commands of other threads, takes the frames that have come, sends results and repeats,
 * and then asks and tells single workers. */
uint64_t sml_aggregator_engine_run_once(void *engine, uint64_t now_ns) {
  struct sml_aggregator_engine *e = engine;
  struct sml_netio *io = e->options.io;
  e->now_ns = now_ns;
  sml_mailbox_drain(&e->mailbox, e, now_ns);
  const size_t num_frames = io->ops->rx_burst(io, e->frames, RX_FRAMES);
  for (size_t i = 0; i < num_frames; i++) take_frame(e, &e->frames[i], now_ns);
  flush_all(e);
  io->gather_ns = gather_time(e, now_ns);
  sml_answer_solicit(e, now_ns);
  sml_answer_marks(e);
  io->ops->tx_flush(io);
  return num_frames == RX_FRAMES ? 0 : SML_NEVER; /* the aggregator has no timers: workers ask */
}
