/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/worker_engine.h"

#include <stdlib.h>

#include "core/congestion.h"
#include "engine/payload.h"
#include "engine/worker_engine_internal.h"
#include "switchml/switchml.h"

/* How long results may gather: a share of the round trip, during which the lane's other slots keep the link busy. A
 * time below the least is not worth a sleep, and a repair must not wait longer than the most. */
#define GATHER_SHARE 3u
#define LIMITED_GATHER_SHARE 4u /* if the window is less than the slots: gathering costs a share of a shared link */
#define GATHER_MIN_NS (100 * SML_NS_PER_US)
#define GATHER_MAX_NS (4 * SML_NS_PER_MS)
#define PACED_GATHER_MAX_NS SML_NS_PER_MS /* on a long path, whose rate shows in how results arrive */

/* The group is not heard if results come only as repeats so many times in a row, each of a chunk that was sent after
 * the last such repeat. To count results, or passes, would not do: if a queue drops a whole window at once, all of it
 * comes as repeats. */
#define UNHEARD_REPEATS 8u

/* How many frames a lane of a one-way window sends in a pass, where ranks aggregate for each other. */
#define TURN_FRAMES 8u

struct sml_worker_engine *sml_worker_engine_create(const struct sml_worker_engine_options *options) {
  struct sml_worker_engine *e = calloc(1, sizeof *e);
  if (e == NULL) return NULL;
  e->options = *options;
  e->recorder = options->recorder != NULL ? options->recorder : &sml_recorder_none;
  atomic_init(&e->io_figures.has_offload, options->io->has_segmentation_offload);
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

/* ---- the passes ---- */

static void admit(struct sml_lane *lane, uint64_t now_ns) {
  while (sml_worker_can_submit(lane->worker)) {
    struct sml_engine_operation *op = sml_lane_take(lane);
    if (op == NULL) return;
    if (lane->failed_status != SML_OK) {
      sml_lane_end_part(lane, op, lane->failed_status);
      continue;
    }
    const struct sml_worker_options *o = &lane->options.worker;
    struct sml_range range;
    sml_range_make(&range, &op->plan, o->lane, o->num_lanes, o->chunk_bytes, o->num_slots);
    uint8_t *ready = NULL;
    if (range.num_groups > 0) {
      ready = op->codes[lane->options.lane] + range.num_blocks;
      memset(ready, 0, range.num_groups);
    }
    sml_lane_record(lane, SML_TRACE_OPERATION_STARTED, op->plan.number);
    if (!sml_worker_submit(lane->worker, &op->plan, ready, op, now_ns)) sml_lane_end_part(lane, op, SML_OK);
  }
}

/* Sends what the lane may send: one way, of a job whose hosts aggregate, a few frames in each pass. So all its lanes
 * move on together, and no aggregator gets all ranks' frames at once. Returns whether there is more. */
static bool transmit(struct sml_worker_engine *e, struct sml_lane *lane, uint64_t now_ns) {
  struct sml_netio *io = e->options.io;
  const uint32_t head_bytes = sml_head_bytes(lane->options.seal.is_keyed);
  const bool takes_all = sml_recorder_takes_all(e->recorder);
  const bool is_of_copies = lane->options.worker.way == SML_REDUCE_COPY;
  const bool takes_turns = lane->options.num_windows > 1 && lane->options.worker.way != SML_REDUCE_SUM;
  uint32_t payload_bytes, most_frames = takes_turns ? TURN_FRAMES : UINT32_MAX;
  while ((payload_bytes = sml_worker_peek_send(lane->worker)) != UINT32_MAX) {
    if (most_frames == 0) return true;
    const uint32_t frame_bytes = head_bytes + payload_bytes;
    uint32_t last_bytes = frame_bytes, num_frames = 0;
    struct sml_tx_burst burst;
    bool has_repeats = false;
    io->ops->tx_reserve(io, frame_bytes, &burst);
    const uint32_t max_frames = sml_min_u32(burst.max_frames, most_frames);
    while (num_frames < max_frames && last_bytes == frame_bytes) {
      const uint32_t next_bytes = sml_worker_peek_send(lane->worker);
      if (next_bytes > payload_bytes) break; /* UINT32_MAX included */
      if (is_of_copies && num_frames > 0 && sml_worker_is_at_fence(lane->worker)) break;
      uint8_t *frame = burst.data + (size_t)num_frames * frame_bytes;
      struct sml_send send;
      sml_worker_next_send(lane->worker, now_ns, &send);
      if (send.kind == SML_SEND_PROBE && lane->num_unheard >= UNHEARD_REPEATS) send.header.flags |= SML_FLAG_DEAF;
      if (send.kind == SML_SEND_PROBE) sml_payload_seal(lane, &send.header, frame);
      else sml_payload_fill(e, lane, &send, frame);
      const bool is_repeat = send.kind == SML_SEND_PROBE || (send.header.flags & SML_FLAG_RETRANSMISSION) != 0;
      if (is_repeat) has_repeats = true;
      if (is_repeat || takes_all) sml_record_send(e->recorder, now_ns, &send, lane->options.worker.slot_base);
      last_bytes = head_bytes + next_bytes;
      num_frames++;
      lane->tx_bytes += last_bytes;
      e->sent_bytes += last_bytes;
    }
    lane->tx_packets += num_frames;
    most_frames -= num_frames;
    uint32_t *num_bursts = payload_bytes == 0 ? &lane->futile.num_questions : &lane->futile.num_data;
    burst.goes_apart = has_repeats && sml_is_futile(num_bursts, num_frames);
    io->ops->tx_commit(io, &burst, num_frames, last_bytes, &lane->options.aggregator, 1);
  }
  return false;
}

static uint32_t full_frame_bytes(const struct sml_lane *lane) {
  return lane->options.worker.chunk_bytes + sml_head_bytes(lane->options.seal.is_keyed);
}

/* What a one-way window holds. */
static uint64_t window_bytes(const struct sml_lane *lane) {
  const struct sml_worker_options *o = &lane->options.worker;
  return (uint64_t)sml_window_positions(o->way, o->num_slots) * full_frame_bytes(lane);
}

/* Engines write the shortest at the same time: one that is lost comes again in the next pass. */
static void share_path(const struct sml_lane *lane) {
  _Atomic uint64_t *shared = lane->options.shortest_ns;
  struct sml_congestion *c = sml_worker_congestion(lane->worker);
  if (shared == NULL) return;
  c->path_ns = atomic_load_explicit(shared, memory_order_relaxed);
  /* A copy comes back before the furthest rank has sent anything. */
  if (lane->options.worker.way == SML_REDUCE_COPY || c->min_rtt_ns >= c->path_ns) return;
  c->path_ns = c->min_rtt_ns;
  atomic_store_explicit(shared, c->path_ns, memory_order_relaxed);
}

/* An idle lane has no part in the window. */
static bool has_part(const struct sml_lane *lane, const struct sml_lane *reduced) {
  struct sml_worker_view view;
  sml_worker_view(lane->worker, &view);
  return view.is_waiting && lane->options.shortest_ns == reduced->options.shortest_ns &&
         lane->options.worker.way == SML_REDUCE_SUM;
}

/* The window that was reduced may be the only one. */
static void share_window(struct sml_worker_engine *e, const struct sml_lane *reduced) {
  uint64_t sum = 0, num_windows = 0;
  for (uint32_t i = 0; i < e->num_lanes; i++)
    if (has_part(e->lanes[i], reduced)) {
      sum += sml_worker_congestion(e->lanes[i]->worker)->window;
      num_windows++;
    }
  for (uint32_t i = 0; i < e->num_lanes && num_windows > 1; i++)
    if (has_part(e->lanes[i], reduced))
      sml_congestion_share(sml_worker_congestion(e->lanes[i]->worker), sum / num_windows);
}

/* How many new chunks may enter the send queue now (send_queue.h). */
static uint32_t find_room(struct sml_worker_engine *e, const struct sml_lane *lane, uint64_t now_ns) {
  struct sml_netio *io = e->options.io;
  struct sml_send_queue *q = &e->send_queue;
  if (io->ops->tx_waiting == NULL || lane->options.worker.has_fixed_window) return UINT32_MAX;
  const uint32_t frame_bytes = full_frame_bytes(lane);
  const bool goes_one_way = lane->options.worker.way != SML_REDUCE_SUM; /* its fences must not wait behind all lanes' */
  const uint32_t num_windows = goes_one_way ? 1 : sml_max_u32(lane->options.num_windows, 1);
  const uint32_t num_ready = sml_worker_num_ready(lane->worker);
  if (sml_has_owner(lane->options.worker.way)) {
    sml_send_queue_go_one_way(q);
    if (e->shared_bytes > 0) {
      if (num_ready > 0) sml_send_queue_ask(q, io->ops->tx_waiting(io), now_ns);
      const uint64_t limit_bytes = lane->options.worker.way == SML_REDUCE_COPY ? 2 * e->shared_bytes : e->shared_bytes;
      /* A frame at least, though the others' windows be small. */
      return sml_send_queue_room_below(q, e->sent_bytes, frame_bytes, sml_max_u64(limit_bytes, frame_bytes));
    }
  }
  const uint32_t least = sml_worker_under_way_bytes(lane->worker) == 0 ? SML_SEND_QUEUE_FEW_CHUNKS : 0;
  if (sml_max_u32(least, sml_send_queue_room(q, e->sent_bytes, frame_bytes, num_windows)) < num_ready)
    sml_send_queue_ask(q, io->ops->tx_waiting(io), now_ns);
  return sml_max_u32(least, sml_send_queue_room(q, e->sent_bytes, frame_bytes, num_windows));
}

/* A one-way window's lane learns when what is sent now will leave the host. */
static void tell_leaving(const struct sml_worker_engine *e, const struct sml_lane *lane, uint64_t now_ns) {
  if (!sml_has_owner(lane->options.worker.way)) return;
  const uint64_t wait_ns = sml_send_queue_wait_ns(&e->send_queue, e->sent_bytes, now_ns);
  if (wait_ns > 0) sml_worker_set_leaving(lane->worker, now_ns + wait_ns);
}

/* The lanes share a socket, whose buffer must hold what comes while the thread has no processor: the share of a lane
 * that has work. */
static uint32_t find_buffer(const struct sml_worker_engine *e, const struct sml_lane *lane) {
  const uint64_t num_bytes = e->options.io->rx_buffer_bytes / sml_max_u32(e->num_waiting, 1);
  return num_bytes == 0 ? UINT32_MAX : (uint32_t)sml_min_u64(num_bytes / sml_lane_held_bytes(lane), UINT32_MAX);
}

/* h: NULL if nothing of the packet can be believed. */
static void count_drop(struct sml_lane *lane, enum sml_drop drop, const struct sml_header *h) {
  _Atomic uint64_t *count = &lane->published.num_drops[drop];
  atomic_store_explicit(count, atomic_load_explicit(count, memory_order_relaxed) + 1, memory_order_relaxed);
  lane->dropped_packets++;
  const struct sml_worker_engine *e = lane->engine;
  sml_record_drop(e->recorder, e->now_ns, h, lane->options.worker.slot_base, drop);
}

/* Each aggregator numbers its jobs. So two may use the same number, and one reuses it after a job's end, perhaps while
 * the lane of that job is still here. */
static bool is_of_lane(const struct sml_lane *lane, const struct sml_header *h, const struct sml_addr *from) {
  return lane->options.worker.job == h->job && sml_addr_equal(&lane->options.source, from);
}

/* A job may have several lanes at an aggregator, two of them for its one-way windows. */
static bool is_in_window(const struct sml_lane *lane, const struct sml_header *h) {
  const struct sml_worker_options *o = &lane->options.worker;
  return o->epoch == h->epoch && (uint32_t)h->slot - o->slot_base < sml_window_slots(o->way, o->num_slots);
}

static struct sml_lane *find_lane(struct sml_worker_engine *e, const struct sml_header *h,
                                  const struct sml_addr *from) {
  struct sml_lane *stale = e->last_lane;
  if (stale != NULL && is_of_lane(stale, h, from) && is_in_window(stale, h)) return stale;
  stale = NULL;
  for (uint32_t i = 0; i < e->num_lanes; i++) {
    if (!is_of_lane(e->lanes[i], h, from)) continue;
    if (is_in_window(e->lanes[i], h)) return e->last_lane = e->lanes[i];
    stale = e->lanes[i];
  }
  return stale; /* its counters will show the drop */
}

/* The sum is wrong for the second time. So it is wrong at the aggregator, and to ask again would not help. */
static void fail_integrity(struct sml_lane *lane, uint32_t slot) {
  /* The owner comes first: it hears which slot it was before operations end because of it. */
  if (lane->options.on_integrity != NULL) lane->options.on_integrity(lane->options.user, slot);
  sml_lane_fail(lane, SML_ERR_INTEGRITY);
}

static void note_hearing(struct sml_lane *lane, const struct sml_header *h, uint64_t now_ns) {
  if ((h->flags & SML_FLAG_RETRANSMISSION) == 0) {
    lane->num_unheard = 0;
  } else if (lane->num_unheard == 0 || sml_worker_first_sent_ns(lane->worker, h) >= lane->unheard_ns) {
    lane->num_unheard++;
    lane->unheard_ns = now_ns;
  }
}

static void end_operation(struct sml_lane *lane, struct sml_engine_operation *op) {
  /* A caller that waits for the operation and then reads the figures finds it in them. */
  struct sml_worker_view view;
  sml_worker_view(lane->worker, &view);
  sml_lane_publish(lane, &view);
  sml_lane_end_part(lane, op, SML_OK);
}

/* Ends an operation, and those that a fence ends with it. */
static void end_operations(struct sml_lane *lane, struct sml_engine_operation *op) {
  while (op != NULL) {
    end_operation(lane, op);
    op = lane->options.worker.way != SML_REDUCE_SUM ? sml_worker_next_ended(lane->worker) : NULL;
  }
}

static void take_answer(struct sml_worker_engine *e, struct sml_lane *lane, const struct sml_header *h,
                        const uint8_t *payload, bool is_marked, uint64_t now_ns) {
  if (is_marked || (h->flags & SML_FLAG_MARKED) != 0) sml_worker_note_mark(lane->worker, h, now_ns);
  if ((h->flags & SML_FLAG_MARKED) != 0) return;
  if (sml_worker_take_proof(lane->worker, h, now_ns)) end_operations(lane, sml_worker_next_ended(lane->worker));
  struct sml_accept a = sml_worker_peek_packet(lane->worker, h);
  if (a.kind == SML_ACCEPT_DROP) {
    if (h->type == SML_PACKET_RESULT && (h->flags & SML_FLAG_RETRANSMISSION) == 0) lane->num_unheard = 0; /* too late */
    if (a.drop == SML_DROP_NEEDLESS) sml_worker_note_needless(lane->worker);
    count_drop(lane, a.drop, h);
    return;
  }
  lane->has_error_reply = false; /* the aggregator knows the job after all: the ERROR was old, or forged */
  if (lane->options.is_multicast && a.kind == SML_ACCEPT_RESULT) note_hearing(lane, h, now_ns);
  if (a.kind == SML_ACCEPT_RESULT && !sml_payload_is_right(e, lane, &a, h->tag, payload)) {
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
  sml_payload_store(e, lane, &a, payload);
  e->has_results = true;
  lane->futile = (struct sml_futile){0};
  end_operations(lane, a.ended);
}

static void take_frame(struct sml_worker_engine *e, const struct sml_rx_frame *f, uint64_t now_ns) {
  struct sml_header h;
  const enum sml_wire_error error = sml_wire_open(f->data, f->num_bytes, &h);
  if (error != SML_WIRE_OK) {
    /* Nothing in it can be believed, not even its job. The last lane with traffic counts it, if there is one. */
    if (e->last_lane != NULL) count_drop(e->last_lane, sml_drop_of_wire(error), NULL);
    return;
  }
  if (h.type == SML_PACKET_HELLO) {
    sml_hello_take(e, &h, f, now_ns);
    return;
  }
  struct sml_lane *lane = find_lane(e, &h, f->from);
  if (lane == NULL) { /* it is of no job here, so it counts as above; anybody can send to a group */
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
  if (has_proof && !sml_wire_is_authentic(f->data, &h, &lane->options.seal)) {
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

/* How long the lane's results may gather (SML_NEVER: it awaits none). They may only if nearly all chunks that the
 * window allows are out: near the start or the end of its work, others wait for the lane. */
static uint64_t gather_time(const struct sml_lane *lane, const struct sml_worker_view *v, uint64_t look_ns) {
  const uint32_t num_slots = lane->options.worker.num_slots, most = sml_min_u32(v->window_chunks, num_slots);
  if (v->num_outstanding == 0 || lane->failed_status != SML_OK) return SML_NEVER;
  /* The send queue is long enough to keep the link busy. */
  if (v->is_out_of_room) return sml_min_u64(v->srtt_ns / GATHER_SHARE, look_ns);
  if (v->num_outstanding < most - most / 4) return 0;
  const uint64_t time_ns = v->srtt_ns / (most < num_slots ? LIMITED_GATHER_SHARE : GATHER_SHARE);
  return time_ns < GATHER_MIN_NS ? 0 : sml_min_u64(time_ns, v->is_paced ? PACED_GATHER_MAX_NS : GATHER_MAX_NS);
}

/* If an operation comes to an engine that awaits nothing, its first packets leave before the engine looks for frames:
 * no frame can be one that anybody waits for. The next pass looks. */
static bool should_send_first(const struct sml_worker_engine *e) {
  for (uint32_t i = 0; i < e->num_lanes && !e->awaits_frames; i++)
    if (sml_lane_has_pushed(e->lanes[i])) return true;
  return false;
}

/* Makes one pass. It runs the commands of other threads and takes the results that have come. Then it goes through the
 * lanes: new operations, timers, and what may be sent. */
uint64_t sml_worker_engine_run_once(void *engine, uint64_t now_ns) {
  struct sml_worker_engine *e = engine;
  struct sml_netio *io = e->options.io;
  e->now_ns = now_ns;
  sml_mailbox_drain(&e->mailbox, e, now_ns);
  e->has_results = false;
  e->sent_bytes = 0;
  const size_t num_frames = should_send_first(e) ? 0 : io->ops->rx_burst(io, e->frames, RX_FRAMES);
  for (size_t i = 0; i < num_frames; i++) take_frame(e, &e->frames[i], now_ns);
  uint64_t deadline = sml_hello_pump(e, now_ns), greeting_ns = SML_NEVER;
  /* After a pass without results somebody is late, so the engine waits for the first one. */
  uint32_t num_waiting = 0;
  uint64_t copies_bytes = 0, sums_bytes = 0; /* windows that have work */
  const uint64_t look_ns =
      e->shared_bytes > 0 ? sml_send_queue_look_ns(&e->send_queue, e->shared_bytes) : SML_SEND_QUEUE_LOOK_NS;
  uint64_t gather_ns = !e->has_results || e->hellos != NULL ? 0 : SML_NEVER;
  for (uint32_t i = 0; i < e->num_lanes; i++) {
    struct sml_lane *lane = e->lanes[i];
    admit(lane, now_ns);
    if (lane->failed_status == SML_OK) {
      share_path(lane);
      sml_worker_on_timer(lane->worker, now_ns);
      sml_worker_set_buffer(lane->worker, find_buffer(e, lane));
      sml_worker_set_room(lane->worker, find_room(e, lane, now_ns));
      tell_leaving(e, lane, now_ns);
      if (transmit(e, lane, now_ns)) deadline = 0;
      tell_leaving(e, lane, now_ns);
      deadline = sml_min_u64(deadline, sml_worker_next_deadline(lane->worker));
    }
    struct sml_worker_view view;
    sml_worker_view(lane->worker, &view);
    num_waiting += view.is_waiting;
    if (view.is_waiting && lane->options.worker.way == SML_REDUCE_COPY) copies_bytes += window_bytes(lane);
    if (view.is_waiting && lane->options.worker.way == SML_REDUCE_TO_OWNER) sums_bytes += window_bytes(lane);
    if (lane->options.worker.way == SML_REDUCE_SUM)
      sml_send_queue_count(&e->send_queue, sml_worker_under_way_bytes(lane->worker), view.srtt_ns,
                           sml_max_u32(lane->options.num_windows, 1));
    if (view.window_reductions != lane->num_reductions && lane->options.shortest_ns != NULL) share_window(e, lane);
    lane->num_reductions = view.window_reductions;
    if (view.is_out_of_room && lane->failed_status == SML_OK) deadline = sml_min_u64(deadline, now_ns + look_ns);
    gather_ns = sml_min_u64(gather_ns, gather_time(lane, &view, look_ns));
    greeting_ns = sml_min_u64(greeting_ns, sml_hello_greet(e, lane, now_ns));
    sml_lane_publish(lane, &view);
  }
  io->ops->tx_flush(io);
  sml_send_queue_end_pass(&e->send_queue, e->sent_bytes);
  e->num_waiting = num_waiting;
  e->shared_bytes = sml_min_u64(copies_bytes, sums_bytes) / SML_SEND_QUEUE_SHARE;
  io->gather_ns = gather_ns == SML_NEVER ? 0 : gather_ns;
  sml_io_figures_publish(&e->io_figures, io);
  e->awaits_frames = deadline != SML_NEVER;
  return num_frames == RX_FRAMES ? 0 : sml_min_u64(deadline, greeting_ns);
}
