/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/worker_engine.h"

#include <stdlib.h>

#include "engine/futile.h"
#include "engine/host_queue.h"
#include "engine/io_figures.h"
#include "engine/records.h"
#include "engine/switch_format.h"
#include "engine/tags.h"
#include "quant/check.h"
#include "quant/narrow.h"
#include "switchml/switchml.h"

#define RX_FRAMES 1024u
#define HELLO_BYTES 16u /* the nonce, and when it was sent, by the clock of who sent it */
#define HELLO_ECHOES 4u /* then the round trip is known well enough: one may have waited for a processor */
/* How long results may gather: a share of the round trip, so that the lane's other slots keep the link busy
 * meanwhile; not below what is worth a sleep, and not for longer than a repair may wait. */
#define GATHER_SHARE 3u
#define LIMITED_GATHER_SHARE 4u /* with fewer under way than there are slots: it costs as much of what others share */
#define GATHER_MIN_NS (100 * SML_NS_PER_US)
#define GATHER_MAX_NS (4 * SML_NS_PER_MS)

/* So many passes in a row that brought results only because they were asked for: the group is not heard. Results would
 * not do: one pass may bring many repeats while what was sent to the group waits in the other socket. */
#define UNHEARD_PASSES 16u

/* Published by the engine's thread for any other: relaxed, single writer, figures only. */
struct published {
  _Atomic uint64_t chunks_completed, retransmissions, probes, timeouts, dropped_packets, num_drops[SML_NUM_DROPS];
  _Atomic uint64_t tx_packets, tx_bytes, rx_packets, rx_bytes, srtt_ns, rto_ns, waiting_since_ns, error_reply_ns;
  _Atomic uint64_t lost_results, num_reductions, num_marks, busiest_slot_chunks;
  _Atomic uint32_t window_chunks, is_waiting, waiting_slot, num_missing, has_error_reply;
  _Atomic uint16_t missing[16];
};

struct sml_lane {
  struct sml_lane_options options;
  struct sml_worker_engine *engine; /* NULL until attached */
  struct sml_worker *worker;
  int32_t failed_status; /* SML_OK while it works; engine's thread */
  uint32_t own_check, all_checks; /* what contributors add to check words: h(own index), H(how many) */
  uint64_t dropped_packets;
  uint64_t tx_packets, tx_bytes, rx_packets, rx_bytes;
  bool has_error_reply;
  uint64_t error_reply_ns;
  struct sml_futile futile;
  uint32_t num_unheard, unheard_pass; /* passes with repeats since the last result by the group; the latest one */
  struct sml_worker_view before; /* counts of the worker's earlier epochs */
  /* Operations on their way from the submitter: pushed [tail], popped [head]. tail: release by push,
   * acquire by pop; head: release by pop, acquire by push. */
  struct sml_engine_operation **ring;
  _Atomic uint32_t head, tail;
  struct published published;
};

struct sml_worker_engine {
  struct sml_worker_engine_options options;
  struct sml_mailbox mailbox;
  struct sml_lane **lanes;
  uint32_t num_lanes, max_lanes;
  struct sml_lane *last_lane; /* packets come in runs of one lane */
  struct sml_hello *hellos;
  struct sml_io_figures io_figures;
  bool has_results; /* this pass brought some */
  bool awaits_frames; /* something was outstanding after the last pass */
  uint64_t sent_bytes; /* in this pass */
  struct sml_host_queue host_queue;
  uint32_t num_passes;
  uint64_t now_ns;  /* of this pass */
  struct sml_recorder *recorder;
  struct sml_rx_frame frames[RX_FRAMES];
  const struct sml_rx_frame *frames_end; /* of this pass */
  struct sml_tags tags;
  uint8_t wide[UINT16_MAX + 1]; /* lanes of an update that becomes narrow */
};

struct sml_worker_engine *sml_worker_engine_create(const struct sml_worker_engine_options *options) {
  struct sml_worker_engine *e = calloc(1, sizeof *e);
  if (e == NULL) return NULL;
  e->options = *options;
  e->recorder = options->recorder != NULL ? options->recorder : &sml_recorder_none;
  atomic_init(&e->io_figures.has_offload, options->io->has_segmentation_offload);
  e->tags.is_per_source = true; /* aggregators number their jobs alike */
  sml_mailbox_init(&e->mailbox);
  return e;
}

void sml_worker_engine_destroy(struct sml_worker_engine *e) {
  SML_ASSERT(e->num_lanes == 0);
  sml_mailbox_destroy(&e->mailbox);
  free(e->lanes);
  free(e);
}

struct sml_mailbox *sml_worker_engine_mailbox(struct sml_worker_engine *e) {
  return &e->mailbox;
}

const struct sml_io_figures *sml_worker_engine_io_figures(const struct sml_worker_engine *e) {
  return &e->io_figures;
}

/* ---- lanes ---- */

static void init_worker(struct sml_lane *lane, void *mem) {
  struct sml_worker_options *o = &lane->options.worker;
  o->num_operations = lane->options.num_operations;
  if (o->num_contributors == 0) o->num_contributors = o->world_size;
  lane->own_check = sml_check_rank(o->rank);
  lane->all_checks = sml_check_ranks(o->num_contributors);
  lane->worker = sml_worker_init(mem, o);
}

struct sml_lane *sml_lane_create(const struct sml_lane_options *options) {
  SML_ASSERT(sml_is_pow2(options->num_operations));
  struct sml_lane *lane = calloc(1, sizeof *lane);
  if (lane == NULL) return NULL;
  lane->options = *options;
  lane->options.worker.num_operations = options->num_operations;
  if (lane->options.source.num_bytes == 0) lane->options.source = options->aggregator;
  lane->ring = calloc(options->num_operations, sizeof(struct sml_engine_operation *));
  void *mem = aligned_alloc(64, sml_align_up(sml_worker_memsize(&lane->options.worker), 64));
  if (lane->ring == NULL || mem == NULL) {
    free(lane->ring);
    free(mem);
    free(lane);
    return NULL;
  }
  init_worker(lane, mem);
  return lane;
}

void sml_lane_destroy(struct sml_lane *lane) {
  sml_key_wipe(&lane->options.seal, sizeof lane->options.seal);
  free(lane->worker);
  free(lane->ring);
  free(lane);
}

void sml_lane_push(struct sml_lane *lane, struct sml_engine_operation *operation) {
  const uint32_t tail = atomic_load_explicit(&lane->tail, memory_order_relaxed);
  SML_ASSERT(tail - atomic_load_explicit(&lane->head, memory_order_acquire) < lane->options.num_operations);
  lane->ring[tail & (lane->options.num_operations - 1)] = operation;
  atomic_store_explicit(&lane->tail, tail + 1, memory_order_release);
}

static bool has_pushed(const struct sml_lane *lane) { /* a hint; relaxed: _pop orders */
  return atomic_load_explicit(&lane->head, memory_order_relaxed) !=
         atomic_load_explicit(&lane->tail, memory_order_relaxed);
}

static struct sml_engine_operation *pop(struct sml_lane *lane) {
  const uint32_t head = atomic_load_explicit(&lane->head, memory_order_relaxed);
  if (head == atomic_load_explicit(&lane->tail, memory_order_acquire)) return NULL;
  struct sml_engine_operation *operation = lane->ring[head & (lane->options.num_operations - 1)];
  atomic_store_explicit(&lane->head, head + 1, memory_order_release);
  return operation;
}

/* About the lane, or one of its operations. */
static void record(const struct sml_lane *lane, enum sml_trace_event event, uint64_t value) {
  if (lane->engine != NULL)
    sml_record_value(lane->engine->recorder, event, lane->engine->now_ns, lane->options.worker.job, value);
}

static void record_epoch(const struct sml_lane *lane) {
  const struct sml_worker_options *o = &lane->options.worker;
  sml_recorder_put(lane->engine->recorder, (struct sml_record){.time_ns = lane->engine->now_ns,
                                                               .event = SML_TRACE_EPOCH_STARTED,
                                                               .job = o->job,
                                                               .phase = o->first_phase,
                                                               .chunk = o->first_chunk,
                                                               .value = o->epoch});
}

/* The engine's last touch of the operation and its buffers. */
static void end_part(const struct sml_lane *lane, struct sml_engine_operation *operation, int32_t status) {
  record(lane, status == SML_OK ? SML_TRACE_OPERATION_ENDED : SML_TRACE_OPERATION_FAILED, operation->plan.number);
  if (status != SML_OK) {
    int32_t expected = SML_OK;
    atomic_compare_exchange_strong_explicit(&operation->status, &expected, status, memory_order_relaxed,
                                            memory_order_relaxed);
  }
  /* acq_rel: the engine that ends it sees the others' writes, and passes them on with its release. */
  if (atomic_fetch_sub_explicit(&operation->lanes_left, 1, memory_order_acq_rel) == 1)
    operation->on_ended(operation);
}

void sml_lane_fail(struct sml_lane *lane, int32_t status) {
  SML_ASSERT(status != SML_OK);
  if (lane->failed_status == SML_OK) {
    lane->failed_status = status;
    record(lane, SML_TRACE_LANE_FAILED, (uint64_t)(int64_t)status);
  }
  struct sml_engine_operation *operation;
  while ((operation = sml_worker_take_unfinished(lane->worker)) != NULL)
    end_part(lane, operation, lane->failed_status);
  while ((operation = pop(lane)) != NULL) end_part(lane, operation, lane->failed_status);
}

void sml_lane_restart(struct sml_lane *lane, const struct sml_worker_options *worker, const struct sml_seal *seal) {
  SML_ASSERT(sml_worker_take_unfinished(lane->worker) == NULL);
  SML_ASSERT(worker->num_slots == lane->options.worker.num_slots);
  struct sml_worker_view v;
  sml_worker_view(lane->worker, &v);
  lane->before.chunks_completed += v.chunks_completed;
  lane->before.retransmissions += v.retransmissions;
  lane->before.probes += v.probes;
  lane->before.timeouts += v.timeouts;
  lane->before.lost_results += v.lost_results;
  lane->before.num_reductions += v.num_reductions;
  lane->before.num_marks += v.num_marks;
  lane->options.worker = *worker;
  lane->options.seal = *seal;
  lane->has_error_reply = false; /* a late packet of the old epoch may have caused it */
  init_worker(lane, lane->worker);
  record_epoch(lane);
}

const char *sml_lane_find_violation(const struct sml_lane *lane) {
  return lane->failed_status != SML_OK ? NULL : sml_worker_find_violation(lane->worker);
}

bool sml_lane_attach(struct sml_worker_engine *e, struct sml_lane *lane) {
  if (e->num_lanes == e->max_lanes) {
    const uint32_t max_lanes = sml_max_u32(8, 2 * e->max_lanes);
    struct sml_lane **lanes = realloc(e->lanes, max_lanes * sizeof(struct sml_lane *));
    if (lanes == NULL) return false;
    e->lanes = lanes;
    e->max_lanes = max_lanes;
  }
  e->lanes[e->num_lanes++] = lane;
  lane->engine = e;
  record_epoch(lane);
  return true;
}

void sml_lane_detach(struct sml_worker_engine *e, struct sml_lane *lane) {
  sml_lane_fail(lane, SML_ERR_ABORTED);
  for (uint32_t i = 0; i < e->num_lanes; i++) {
    if (e->lanes[i] != lane) continue;
    e->lanes[i] = e->lanes[--e->num_lanes];
    break;
  }
  e->last_lane = NULL;
  sml_key_wipe(&e->tags.key, sizeof e->tags.key);
  record(lane, SML_TRACE_LANE_CLOSED, 0);
}

static void publish(struct sml_lane *lane, const struct sml_worker_view *v) {
  struct published *p = &lane->published;
#define PUBLISH(field, value) atomic_store_explicit(&p->field, value, memory_order_relaxed)
  PUBLISH(chunks_completed, lane->before.chunks_completed + v->chunks_completed);
  PUBLISH(retransmissions, lane->before.retransmissions + v->retransmissions);
  PUBLISH(probes, lane->before.probes + v->probes);
  PUBLISH(timeouts, lane->before.timeouts + v->timeouts);
  PUBLISH(lost_results, lane->before.lost_results + v->lost_results);
  PUBLISH(num_reductions, lane->before.num_reductions + v->num_reductions);
  PUBLISH(num_marks, lane->before.num_marks + v->num_marks);
  PUBLISH(window_chunks, v->window_chunks);
  PUBLISH(dropped_packets, lane->dropped_packets);
  PUBLISH(tx_packets, lane->tx_packets);
  PUBLISH(tx_bytes, lane->tx_bytes);
  PUBLISH(rx_packets, lane->rx_packets);
  PUBLISH(rx_bytes, lane->rx_bytes);
  PUBLISH(srtt_ns, v->srtt_ns);
  PUBLISH(rto_ns, v->rto_ns);
  PUBLISH(busiest_slot_chunks, v->busiest_slot_chunks);
  PUBLISH(is_waiting, v->is_waiting);
  PUBLISH(waiting_slot, v->waiting_slot);
  PUBLISH(waiting_since_ns, v->waiting_since_ns);
  PUBLISH(has_error_reply, lane->has_error_reply);
  PUBLISH(error_reply_ns, lane->error_reply_ns);
  for (uint32_t i = 0; i < v->num_missing; i++) PUBLISH(missing[i], v->missing[i]);
  PUBLISH(num_missing, v->num_missing);
#undef PUBLISH
}

void sml_lane_snapshot(const struct sml_lane *lane, struct sml_lane_snapshot *s) {
  const struct published *p = &lane->published;
#define READ(field) s->field = atomic_load_explicit(&p->field, memory_order_relaxed)
  READ(chunks_completed);
  READ(retransmissions);
  READ(probes);
  READ(timeouts);
  READ(lost_results);
  READ(num_reductions);
  READ(num_marks);
  READ(window_chunks);
  READ(dropped_packets);
  for (uint32_t d = 0; d < SML_NUM_DROPS; d++) READ(num_drops[d]);
  READ(tx_packets);
  READ(tx_bytes);
  READ(rx_packets);
  READ(rx_bytes);
  READ(srtt_ns);
  READ(rto_ns);
  READ(busiest_slot_chunks);
  READ(is_waiting);
  READ(waiting_slot);
  READ(waiting_since_ns);
  READ(has_error_reply);
  READ(error_reply_ns);
  READ(num_missing);
  for (uint32_t i = 0; i < s->num_missing; i++) READ(missing[i]);
#undef READ
}

/* ---- tensor <-> payload: where core, quant and frames meet ---- */

static const void *elem_at(const struct sml_format *f, const void *tensor, uint64_t elem) {
  return (const uint8_t *)tensor + elem * f->elem_bytes;
}

static uint32_t num_inputs_of(const struct sml_engine_operation *op) {
  return op->num_inputs > 1 ? op->num_inputs : 1;
}

static const void *input_of(const struct sml_engine_operation *op, uint32_t i) {
  return op->num_inputs > 1 ? op->inputs[i] : op->in;
}

static uint8_t block_code_of(const struct sml_quant_kernels *k, const struct sml_engine_operation *op,
                             const struct sml_format *f, uint64_t elem, size_t num_elems) {
  uint8_t code = f->block_code(k, elem_at(f, input_of(op, 0), elem), num_elems);
  for (uint32_t i = 1; i < num_inputs_of(op); i++) {
    const uint8_t other = f->block_code(k, elem_at(f, input_of(op, i), elem), num_elems);
    if (other > code) code = other;
  }
  return code;
}

static void fill_lanes(const struct sml_quant_kernels *k, const struct sml_engine_operation *op,
                       const struct sml_chunk *c, uint8_t code, uint32_t world_size, uint8_t *payload) {
  const struct sml_format *f = sml_engine_format(&op->plan);
  f->put(k, payload, elem_at(f, input_of(op, 0), c->first_elem), c->num_elems, code, world_size);
  for (uint32_t i = 1; i < num_inputs_of(op); i++)
    f->add(k, payload, elem_at(f, input_of(op, i), c->first_elem), c->num_elems, code, world_size);
}

/* One exponent code for each data chunk of the group. They are kept where the result's will be: none of those
 * may be below. */
static void fill_exponents(const struct sml_quant_kernels *k, const struct sml_lane *lane,
                           const struct sml_engine_operation *op, const struct sml_chunk *c, uint8_t *payload) {
  const struct sml_worker_options *o = &lane->options.worker;
  struct sml_range range;
  sml_range_make(&range, &op->plan, o->lane, o->num_lanes, o->chunk_bytes, o->num_slots);
  const struct sml_format *f = sml_engine_format(&op->plan);
  const uint64_t end_elem = range.first_elem + range.num_elems;
  const uint32_t block_elems = range.block_chunks * range.chunk_elems;
  uint8_t *codes = op->codes[lane->options.lane] + c->block;
  for (uint32_t i = 0; i < c->num_elems; i++) {
    const uint64_t elem = c->first_elem + (uint64_t)i * block_elems;
    codes[i] = block_code_of(k, op, f, elem, (size_t)sml_min_u64(block_elems, end_elem - elem));
  }
  if (range.code_bytes == 1) memcpy(payload, codes, c->num_elems);
  else sml_switch_put_codes(payload, codes, c->num_elems);
}

/* Where the check word of a data chunk stands. */
static uint32_t check_offset(const struct sml_lane *lane, const struct sml_chunk *c) {
  return lane->options.worker.packet_lanes != 0 ? lane->options.worker.chunk_bytes : c->payload_bytes;
}

static uint8_t code_of(const struct sml_lane *lane, const struct sml_engine_operation *op, const struct sml_chunk *c) {
  return op->plan.has_exponents ? op->codes[lane->options.lane][c->block] : 0;
}

/* The check word of a data chunk's lanes, as this contributor or all of them make it. */
static uint32_t check_of(const struct sml_worker_engine *e, const struct sml_lane *lane,
                         const struct sml_engine_operation *op, const struct sml_chunk *c, uint32_t tag,
                         const uint8_t *lanes, bool is_sum) {
  const struct sml_worker_options *o = &lane->options.worker;
  const struct sml_check check = sml_check_make(o->epoch, tag, code_of(lane, op, c));
  return sml_check_word(e->options.kernels, &check, lanes, c->payload_bytes / 4, is_sum ? o->num_contributors : 1,
                        is_sum ? lane->all_checks : lane->own_check);
}

/* Is this the sum of one contribution of each contributor? Of exponents: is no code below this one's own? */
static bool is_right_sum(const struct sml_worker_engine *e, const struct sml_lane *lane,
                         const struct sml_accept *a, uint32_t tag, const uint8_t *payload) {
  const struct sml_engine_operation *op = a->cookie;
  const struct sml_chunk *c = &a->chunk;
  if (!lane->options.worker.is_checked) return true;
  if (!c->is_exponent)
    return sml_load_be32(payload + check_offset(lane, c)) == check_of(e, lane, op, c, tag, payload, true);
  const uint8_t *own = op->codes[lane->options.lane] + c->block;
  const bool is_wide = lane->options.worker.packet_lanes != 0;
  for (uint32_t i = 0; i < c->num_elems; i++)
    if ((is_wide ? sml_load_be32(payload + 4 * (size_t)i) : payload[i]) < own[i]) return false;
  return true;
}

static void seal(const struct sml_lane *lane, const struct sml_header *h, uint8_t *frame) {
  if (lane->options.worker.packet_lanes != 0) sml_wire_seal_for_switch(frame, h);
  else sml_wire_seal_first(frame, h, &lane->options.seal);
}

static void fill_update(struct sml_worker_engine *e, const struct sml_lane *lane, const struct sml_send *send,
                        uint8_t *frame) {
  const struct sml_quant_kernels *k = e->options.kernels;
  const struct sml_engine_operation *op = send->cookie;
  const struct sml_chunk *c = &send->chunk;
  uint8_t *payload = frame + sml_head_bytes(lane->options.seal.is_keyed);
  const bool is_narrow = (send->header.flags & SML_FLAG_NARROW) != 0;
  uint8_t *lanes = is_narrow ? e->wide : payload;
  if (c->is_exponent) fill_exponents(k, lane, op, c, payload);
  else fill_lanes(k, op, c, code_of(lane, op, c), lane->options.worker.world_size, lanes);
  if (is_narrow) sml_narrow_lanes(payload, lanes, c->payload_bytes / 4);
  if (lane->options.worker.packet_lanes != 0)
    memset(payload + c->payload_bytes, 0, send->header.payload_bytes - c->payload_bytes);
  if (send->header.flags & SML_FLAG_CHECKED)
    sml_store_be32(payload + check_offset(lane, c), check_of(e, lane, op, c, send->header.tag, payload, false));
  seal(lane, &send->header, frame);
}

static void store_result(struct sml_worker_engine *e, struct sml_lane *lane, const struct sml_accept *a,
                         const uint8_t *payload) {
  const struct sml_quant_kernels *k = e->options.kernels;
  struct sml_engine_operation *op = a->cookie;
  const struct sml_chunk *c = &a->chunk;
  if (c->is_exponent) {
    uint8_t *codes = op->codes[lane->options.lane] + c->block;
    if (lane->options.worker.packet_lanes == 0) memcpy(codes, payload, c->num_elems);
    else sml_switch_take_codes(codes, payload, c->num_elems);
    return;
  }
  if (op->out == NULL) return; /* others need this rank's contribution; it has the sum already */
  const struct sml_format *f = sml_engine_format(&op->plan);
  f->get(k, (uint8_t *)op->out + c->first_elem * f->elem_bytes, payload, c->num_elems, code_of(lane, op, c),
         lane->options.worker.world_size, op->plan.reduction == SML_AVG);
}

/* ---- the passes ---- */

static void admit(struct sml_lane *lane, uint64_t now_ns) {
  while (sml_worker_can_submit(lane->worker)) {
    struct sml_engine_operation *op = pop(lane);
    if (op == NULL) return;
    if (lane->failed_status != SML_OK) {
      end_part(lane, op, lane->failed_status);
      continue;
    }
    const struct sml_worker_options *o = &lane->options.worker;
    struct sml_range range;
    sml_range_make(&range, &op->plan, o->lane, o->num_lanes, o->chunk_bytes, o->num_slots);
    uint8_t *ready = NULL;
    if (range.num_groups > 0) {
      ready = op->codes[lane->options.lane] + range.num_data_chunks;
      memset(ready, 0, range.num_groups);
    }
    record(lane, SML_TRACE_OPERATION_STARTED, op->plan.number);
    if (!sml_worker_submit(lane->worker, &op->plan, ready, op, now_ns)) end_part(lane, op, SML_OK);
  }
}

static void transmit(struct sml_worker_engine *e, struct sml_lane *lane, uint64_t now_ns) {
  struct sml_netio *io = e->options.io;
  const uint32_t head_bytes = sml_head_bytes(lane->options.seal.is_keyed);
  const bool takes_all = sml_recorder_takes_all(e->recorder);
  uint32_t payload_bytes;
  while ((payload_bytes = sml_worker_peek_send(lane->worker)) != UINT32_MAX) {
    const uint32_t frame_bytes = head_bytes + payload_bytes;
    uint32_t last_bytes = frame_bytes, num_frames = 0;
    struct sml_tx_burst burst;
    bool has_repeats = false;
    io->ops->tx_reserve(io, frame_bytes, &burst);
    while (num_frames < burst.max_frames && last_bytes == frame_bytes) {
      const uint32_t next_bytes = sml_worker_peek_send(lane->worker);
      if (next_bytes > payload_bytes) break; /* UINT32_MAX included */
      uint8_t *frame = burst.data + (size_t)num_frames * frame_bytes;
      struct sml_send send;
      sml_worker_next_send(lane->worker, now_ns, &send);
      if (send.kind == SML_SEND_PROBE && lane->num_unheard >= UNHEARD_PASSES) send.header.flags |= SML_FLAG_DEAF;
      if (send.kind == SML_SEND_PROBE) seal(lane, &send.header, frame);
      else fill_update(e, lane, &send, frame);
      const bool is_repeat = send.kind == SML_SEND_PROBE || (send.header.flags & SML_FLAG_RETRANSMISSION) != 0;
      if (is_repeat) has_repeats = true;
      if (is_repeat || takes_all)
        sml_record_send(e->recorder, now_ns, &send, lane->options.worker.slot_base);
      last_bytes = head_bytes + next_bytes;
      num_frames++;
      lane->tx_bytes += last_bytes;
      e->sent_bytes += last_bytes;
    }
    sml_wire_seal_burst(burst.data, num_frames, frame_bytes, last_bytes, &lane->options.seal);
    lane->tx_packets += num_frames;
    uint32_t *num_bursts = payload_bytes == 0 ? &lane->futile.num_questions : &lane->futile.num_data;
    burst.goes_apart = has_repeats && sml_is_futile(num_bursts, num_frames);
    io->ops->tx_commit(io, &burst, num_frames, last_bytes, &lane->options.aggregator, 1);
  }
}

/* How many new chunks may go to this host's queue now (host_queue.h). */
static uint32_t find_room(struct sml_worker_engine *e, const struct sml_lane *lane) {
  struct sml_netio *io = e->options.io;
  struct sml_host_queue *q = &e->host_queue;
  if (io->ops->tx_waiting == NULL || sml_worker_has_fixed_window(lane->worker)) return UINT32_MAX;
  const uint32_t frame_bytes = lane->options.worker.chunk_bytes + sml_head_bytes(lane->options.seal.is_keyed);
  const uint32_t num_windows = sml_max_u32(lane->options.num_windows, 1);
  const uint32_t num_ready = sml_worker_num_ready(lane->worker);
  const uint32_t least = sml_worker_under_way_bytes(lane->worker) == 0 ? SML_HOST_QUEUE_FEW_CHUNKS : 0;
  if (sml_max_u32(least, sml_host_queue_room(q, e->sent_bytes, frame_bytes, num_windows)) < num_ready)
    q->most_bytes = io->ops->tx_waiting(io);
  return sml_max_u32(least, sml_host_queue_room(q, e->sent_bytes, frame_bytes, num_windows));
}

/* What may come while the thread has no processor must find room, in a socket that the lanes share. The system counts
 * half as much again, about, for what is around a frame. */
static uint32_t find_buffer(const struct sml_worker_engine *e, const struct sml_lane *lane) {
  const uint64_t num_bytes = e->options.io->rx_buffer_bytes / e->num_lanes;
  const uint32_t frame_bytes = lane->options.worker.chunk_bytes + sml_head_bytes(lane->options.seal.is_keyed);
  return num_bytes == 0 ? UINT32_MAX : (uint32_t)sml_min_u64(num_bytes / (frame_bytes + frame_bytes / 2), UINT32_MAX);
}

/* h: NULL if nothing of the packet can be believed. */
static void count_drop(struct sml_lane *lane, enum sml_drop drop, const struct sml_header *h) {
  _Atomic uint64_t *count = &lane->published.num_drops[drop];
  atomic_store_explicit(count, atomic_load_explicit(count, memory_order_relaxed) + 1, memory_order_relaxed);
  lane->dropped_packets++;
  const struct sml_worker_engine *e = lane->engine;
  sml_record_drop(e->recorder, e->now_ns, h, lane->options.worker.slot_base, drop);
}

/* Job numbers are an aggregator's: two aggregators may use the same one, and one gives it again after a
 * job's end, perhaps while the lane of that job is still here. */
static bool is_of_lane(const struct sml_lane *lane, const struct sml_header *h, const struct sml_addr *from) {
  return lane->options.worker.job == h->job && sml_addr_equal(&lane->options.source, from);
}

static struct sml_lane *find_lane(struct sml_worker_engine *e, const struct sml_header *h,
                                  const struct sml_addr *from) {
  struct sml_lane *stale = e->last_lane;
  if (stale != NULL && is_of_lane(stale, h, from) && stale->options.worker.epoch == h->epoch) return stale;
  stale = NULL;
  for (uint32_t i = 0; i < e->num_lanes; i++) {
    if (!is_of_lane(e->lanes[i], h, from)) continue;
    if (e->lanes[i]->options.worker.epoch == h->epoch) return e->last_lane = e->lanes[i];
    stale = e->lanes[i];
  }
  return stale; /* its counters show the drop */
}

static void record_hello(struct sml_worker_engine *e, enum sml_trace_event event, const struct sml_hello *hello) {
  sml_recorder_put(e->recorder, (struct sml_record){.time_ns = e->now_ns,
                                                    .event = (uint16_t)event,
                                                    .job = hello->job,
                                                    .rank = hello->rank,
                                                    .value = hello->datagram_bytes});
}

static void take_hello(struct sml_worker_engine *e, const struct sml_header *h, const struct sml_rx_frame *f,
                       uint64_t now_ns) {
  if (h->payload_bytes < HELLO_BYTES) return;
  for (struct sml_hello **link = &e->hellos; *link != NULL; link = &(*link)->next) {
    struct sml_hello *hello = *link;
    if (hello->job != h->job || hello->epoch != h->epoch || hello->rank != h->rank) continue;
    if (f->num_bytes != hello->datagram_bytes) continue;
    if (!sml_wire_is_authentic(f->data, h, &hello->seal)) continue;
    const uint8_t *payload = f->data + sml_head_bytes_of(h);
    if (sml_load_be64(payload) != hello->nonce) continue;
    if (sml_hello_is_to_group(payload, h->payload_bytes) != hello->is_to_group) continue;
    /* Its results will come as this echo does, and must have the lane's source. */
    if (hello->is_to_group && !sml_addr_equal(&hello->from, f->from)) continue;
    const uint64_t rtt_ns = sml_max_u64(now_ns - sml_min_u64(sml_load_be64(payload + 8), now_ns), 1);
    hello->rtt_ns = hello->num_echoes == 0 ? rtt_ns : sml_min_u64(hello->rtt_ns, rtt_ns);
    hello->from = *f->from; /* the nonce vouches for it */
    hello->next_send_ns = now_ns;
    if (++hello->num_echoes < HELLO_ECHOES && !hello->is_to_group) return;
    *link = hello->next;
    record_hello(e, SML_TRACE_HELLO_ANSWERED, hello);
    hello->done(hello, true);
    return;
  }
}

/* The sum is wrong for the second time: so it is at the aggregator, and asking again would not help. */
static void fail_integrity(struct sml_lane *lane, uint32_t slot) {
  /* The owner first: it hears which slot it was before operations end for it. */
  if (lane->options.on_integrity != NULL) lane->options.on_integrity(lane->options.user, slot);
  sml_lane_fail(lane, SML_ERR_INTEGRITY);
}

static void note_hearing(const struct sml_worker_engine *e, struct sml_lane *lane, const struct sml_header *h) {
  if ((h->flags & SML_FLAG_RETRANSMISSION) == 0) {
    lane->num_unheard = 0;
  } else if (lane->num_unheard == 0 || lane->unheard_pass != e->num_passes) {
    lane->num_unheard++;
    lane->unheard_pass = e->num_passes;
  }
}

static void take_answer(struct sml_worker_engine *e, struct sml_lane *lane, const struct sml_header *h,
                        const uint8_t *payload, bool is_marked, uint64_t now_ns) {
  if (is_marked || (h->flags & SML_FLAG_MARKED) != 0) sml_worker_note_mark(lane->worker, h, now_ns);
  if ((h->flags & SML_FLAG_MARKED) != 0) return;
  struct sml_accept a = sml_worker_peek_packet(lane->worker, h);
  if (a.kind == SML_ACCEPT_DROP) {
    if (h->type == SML_PACKET_RESULT && (h->flags & SML_FLAG_RETRANSMISSION) == 0) lane->num_unheard = 0; /* too late */
    count_drop(lane, a.drop, h);
    return;
  }
  lane->has_error_reply = false; /* it knows the job after all: the ERROR was old, or not the aggregator's */
  if (lane->options.is_multicast && a.kind == SML_ACCEPT_RESULT) note_hearing(e, lane, h);
  if (a.kind == SML_ACCEPT_RESULT && !is_right_sum(e, lane, &a, h->tag, payload)) {
    count_drop(lane, SML_DROP_BAD_CHECK, h);
    if (sml_worker_refuse_result(lane->worker, h))
      fail_integrity(lane, (uint32_t)h->slot - lane->options.worker.slot_base);
    return;
  }
  if (a.was_asked || sml_recorder_takes_all(e->recorder))
    sml_record_accept(e->recorder, now_ns, h, &a, payload, lane->options.worker.slot_base,
                      now_ns - sml_worker_first_sent_ns(lane->worker, h));
  a = sml_worker_on_packet(lane->worker, h, payload, now_ns);
  if (a.kind != SML_ACCEPT_RESULT) return;
  store_result(e, lane, &a, payload);
  e->has_results = true;
  lane->futile = (struct sml_futile){0};
  if (!a.is_operation_done) return;
  /* Whoever waits for it and then looks at the figures finds it in them. */
  struct sml_worker_view view;
  sml_worker_view(lane->worker, &view);
  publish(lane, &view);
  end_part(lane, a.cookie, SML_OK);
}

static void take_frame(struct sml_worker_engine *e, const struct sml_rx_frame *f, uint64_t now_ns) {
  struct sml_header h;
  const enum sml_wire_error error = sml_wire_open(f->data, f->num_bytes, &h);
  if (error != SML_WIRE_OK) {
    /* Nothing in it can be believed, its job included: counted where the traffic is, if anywhere. */
    if (e->last_lane != NULL) count_drop(e->last_lane, sml_drop_of_wire(error), NULL);
    return;
  }
  if (h.type == SML_PACKET_HELLO) {
    take_hello(e, &h, f, now_ns);
    return;
  }
  struct sml_lane *lane = find_lane(e, &h, f->from);
  if (lane == NULL) { /* no job's of this engine, so it counts as above; anybody can send to a group */
    const bool is_known = e->last_lane != NULL && e->last_lane->options.worker.job == h.job;
    if (e->last_lane != NULL) count_drop(e->last_lane, is_known ? SML_DROP_WRONG_SOURCE : SML_DROP_UNKNOWN_JOB, &h);
    return;
  }
  lane->rx_packets++;
  lane->rx_bytes += f->num_bytes;
  if (h.epoch != lane->options.worker.epoch) {
    count_drop(lane, SML_DROP_WRONG_EPOCH, &h);
    return;
  }
  const bool is_keyed = (h.flags & SML_FLAG_KEYED) != 0;
  const bool has_proof = lane->options.worker.packet_lanes == 0 || is_keyed || !sml_wire_is_without_crc(&h);
  if (has_proof && !sml_tags_check(&e->tags, f, e->frames_end, &h, &lane->options.seal)) {
    count_drop(lane, is_keyed || lane->options.seal.is_keyed ? SML_DROP_BAD_KEY : SML_DROP_BAD_CRC, &h);
    return;
  }
  if (h.type == SML_PACKET_ERROR) {
    if (!lane->has_error_reply) {
      lane->error_reply_ns = now_ns;
      sml_record_packet(e->recorder, SML_TRACE_ERROR_RECEIVED, now_ns, &h, lane->options.worker.slot_base, 0);
    }
    lane->has_error_reply = true;
    return;
  }
  if (lane->failed_status != SML_OK) return; /* no thread touches the buffers any more */
  take_answer(e, lane, &h, f->data + sml_head_bytes_of(&h), f->is_marked, now_ns);
}

static void send_hello(struct sml_worker_engine *e, const struct sml_hello *hello, uint64_t now_ns) {
  struct sml_netio *io = e->options.io;
  struct sml_tx_burst burst;
  const uint32_t head_bytes = sml_head_bytes(hello->seal.is_keyed);
  const struct sml_header h = {.version = SML_WIRE_VERSION,
                               .type = SML_PACKET_HELLO,
                               .job = hello->job,
                               .epoch = hello->epoch,
                               .rank = hello->rank,
                               .payload_bytes = (uint16_t)(hello->datagram_bytes - head_bytes)};
  io->ops->tx_reserve(io, hello->datagram_bytes, &burst);
  memset(burst.data + head_bytes, 0, h.payload_bytes);
  sml_store_be64(burst.data + head_bytes, hello->nonce);
  sml_store_be64(burst.data + head_bytes + 8, now_ns);
  if (hello->is_to_group) burst.data[head_bytes + SML_HELLO_GROUP_OFFSET] = 1;
  sml_wire_seal(burst.data, &h, &hello->seal);
  io->ops->tx_commit(io, &burst, 1, hello->datagram_bytes, &hello->to, 1);
}

void sml_worker_engine_hello(struct sml_worker_engine *e, struct sml_hello *hello) {
  SML_ASSERT(hello->datagram_bytes >= sml_head_bytes(hello->seal.is_keyed) + HELLO_BYTES + hello->is_to_group);
  hello->next_send_ns = hello->rtt_ns = 0;
  hello->num_echoes = 0;
  hello->next = e->hellos;
  e->hellos = hello;
}

static uint64_t pump_hellos(struct sml_worker_engine *e, uint64_t now_ns) {
  uint64_t deadline = SML_NEVER;
  for (struct sml_hello **link = &e->hellos; *link != NULL;) {
    struct sml_hello *hello = *link;
    if (now_ns >= hello->deadline_ns) {
      *link = hello->next;
      record_hello(e, SML_TRACE_HELLO_EXPIRED, hello);
      hello->done(hello, hello->num_echoes > 0);
      continue;
    }
    if (now_ns >= hello->next_send_ns) {
      send_hello(e, hello, now_ns);
      record_hello(e, SML_TRACE_HELLO_SENT, hello);
      hello->next_send_ns = now_ns + hello->interval_ns;
    }
    deadline = sml_min_u64(deadline, sml_min_u64(hello->next_send_ns, hello->deadline_ns));
    link = &hello->next;
  }
  return deadline;
}

/* How long the lane can do without looking at its results (SML_NEVER: it awaits none). Nearly all chunks that may be
 * out must be: a lane near the start or the end of its work is waited for. */
static uint64_t gather_time(const struct sml_lane *lane, const struct sml_worker_view *v) {
  const uint32_t num_slots = lane->options.worker.num_slots, most = sml_min_u32(v->window_chunks, num_slots);
  if (v->num_outstanding == 0 || lane->failed_status != SML_OK) return SML_NEVER;
  /* This host's queue is long enough. */
  if (v->is_out_of_room) return sml_min_u64(v->srtt_ns / GATHER_SHARE, SML_HOST_QUEUE_LOOK_NS);
  if (v->num_outstanding < most - most / 4) return 0;
  const uint64_t time_ns = v->srtt_ns / (most < num_slots ? LIMITED_GATHER_SHARE : GATHER_SHARE);
  return time_ns < GATHER_MIN_NS ? 0 : sml_min_u64(time_ns, GATHER_MAX_NS);
}

/* An operation comes to an engine that awaits nothing: its first packets go ahead of looking for frames, since none
 * can be what anybody waits for. The pass after that looks. */
static bool should_send_first(const struct sml_worker_engine *e) {
  for (uint32_t i = 0; i < e->num_lanes && !e->awaits_frames; i++)
    if (has_pushed(e->lanes[i])) return true;
  return false;
}

uint64_t sml_worker_engine_run_once(void *engine, uint64_t now_ns) {
  struct sml_worker_engine *e = engine;
  struct sml_netio *io = e->options.io;
  e->now_ns = now_ns;
  sml_mailbox_drain(&e->mailbox, e, now_ns);
  e->has_results = false;
  e->sent_bytes = 0;
  e->num_passes++;
  const size_t num_frames = should_send_first(e) ? 0 : io->ops->rx_burst(io, e->frames, RX_FRAMES);
  e->frames_end = e->frames + num_frames;
  sml_tags_begin(&e->tags);
  for (size_t i = 0; i < num_frames; i++) take_frame(e, &e->frames[i], now_ns);
  uint64_t deadline = pump_hellos(e, now_ns);
  /* After a pass without results the first one is waited for: somebody is late. */
  uint64_t gather_ns = !e->has_results || e->hellos != NULL ? 0 : SML_NEVER;
  for (uint32_t i = 0; i < e->num_lanes; i++) {
    struct sml_lane *lane = e->lanes[i];
    admit(lane, now_ns);
    if (lane->failed_status == SML_OK) {
      sml_worker_on_timer(lane->worker, now_ns);
      sml_worker_set_buffer(lane->worker, find_buffer(e, lane));
      sml_worker_set_room(lane->worker, find_room(e, lane));
      transmit(e, lane, now_ns);
      deadline = sml_min_u64(deadline, sml_worker_next_deadline(lane->worker));
    }
    struct sml_worker_view view;
    sml_worker_view(lane->worker, &view);
    sml_host_queue_count(&e->host_queue, sml_worker_under_way_bytes(lane->worker), view.srtt_ns,
                         sml_max_u32(lane->options.num_windows, 1));
    if (view.is_out_of_room && lane->failed_status == SML_OK)
      deadline = sml_min_u64(deadline, now_ns + SML_HOST_QUEUE_LOOK_NS);
    gather_ns = sml_min_u64(gather_ns, gather_time(lane, &view));
    publish(lane, &view);
  }
  io->ops->tx_flush(io);
  sml_host_queue_end_pass(&e->host_queue, e->sent_bytes);
  io->gather_ns = gather_ns == SML_NEVER ? 0 : gather_ns;
  sml_io_figures_publish(&e->io_figures, io);
  e->awaits_frames = deadline != SML_NEVER;
  return num_frames == RX_FRAMES ? 0 : deadline;
}
