/* SPDX-License-Identifier: Apache-2.0
 * What a worker's engine and its lanes hold. worker_engine.c makes the passes, lane.c keeps the lanes, payload.h turns
 * elements into payload and back, hello.c sends HELLOs and takes their echoes. */
#pragma once

#include "engine/futile.h"
#include "engine/send_queue.h"
#include "engine/io_figures.h"
#include "engine/records.h"
#include "engine/worker_engine.h"

#define RX_FRAMES 1024u

/* The engine's thread publishes these for all others: relaxed, one writer, figures only. */
#define SML_PUBLISHED_COUNTER(name) _Atomic uint64_t name;
#define SML_PUBLISHED_STATE(type, name) _Atomic type name;
struct published {
  SML_WORKER_COUNTERS(SML_PUBLISHED_COUNTER)
  SML_ENGINE_STATS(SML_PUBLISHED_COUNTER)
  SML_WORKER_STATES(SML_PUBLISHED_STATE)
  _Atomic uint64_t num_drops[SML_NUM_DROPS], error_reply_ns;
  _Atomic uint32_t num_missing;
  _Atomic uint16_t missing[16];
  _Atomic bool has_error_reply;
};

struct sml_lane {
  struct sml_lane_options options;
  struct sml_worker_engine *engine; /* NULL until attached */
  struct sml_worker *worker;
  int32_t failed_status; /* SML_OK while it works; engine's thread */
  uint32_t own_check, all_checks; /* what this contributor adds to check words, h(index), and all of them, H(number) */
  SML_ENGINE_STATS(SML_COUNTER)
  bool has_error_reply;
  uint64_t error_reply_ns;
  uint64_t greet_at_ns;
  uint64_t num_reductions; /* of its window, that other lanes had their part of */
  struct sml_futile futile;
  uint32_t num_unheard; /* repeats since the last first copy of a result, each of a chunk sent after the one before */
  uint64_t unheard_ns;  /* when the latest of them came */
  struct sml_worker_view before; /* counts of the worker's earlier epochs */
  /* Operations on their way from the submitter, pushed at tail and popped at head. tail: release by push,
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
  uint32_t num_waiting;       /* lanes that had work at the end of the last pass */
  struct sml_lane *last_lane; /* packets come in runs of one lane */
  struct sml_hello *hellos;
  struct sml_io_figures io_figures;
  bool has_results; /* this pass brought some */
  bool awaits_frames; /* something was outstanding after the last pass */
  uint64_t sent_bytes; /* in this pass */
  struct sml_send_queue send_queue;
  uint64_t shared_bytes; /* its limit while sums and copies go one way at once; 0: they do not */
  uint64_t now_ns;  /* of this pass */
  struct sml_recorder *recorder;
  struct sml_rx_frame frames[RX_FRAMES];
  uint8_t wide[UINT16_MAX + 1]; /* lanes of an update that becomes narrow */
};

/* ---- lane.c ---- */

/* How much of a socket's buffer a chunk of the lane takes. The system adds about half a frame's size for what is around
 * the frame. */
static inline uint32_t sml_lane_held_bytes(const struct sml_lane *lane) {
  const uint32_t frame_bytes = lane->options.worker.chunk_bytes + sml_head_bytes(lane->options.seal.is_keyed);
  return frame_bytes + frame_bytes / 2;
}

static inline bool sml_lane_has_pushed(const struct sml_lane *lane) { /* a hint; relaxed: _take orders */
  return atomic_load_explicit(&lane->head, memory_order_relaxed) !=
         atomic_load_explicit(&lane->tail, memory_order_relaxed);
}

/* The oldest operation that was pushed and not taken yet, or NULL. */
struct sml_engine_operation *sml_lane_take(struct sml_lane *lane);
/* The engine's last touch of the operation and its buffers. */
void sml_lane_end_part(const struct sml_lane *lane, struct sml_engine_operation *operation, int32_t status);
/* Writes what sml_lane_snapshot() reads from now on. */
void sml_lane_publish(struct sml_lane *lane, const struct sml_worker_view *v);

/* Records an event of the lane, or of one of its operations. */
static inline void sml_lane_record(const struct sml_lane *lane, enum sml_trace_event event, uint64_t value) {
  if (lane->engine != NULL)
    sml_record_value(lane->engine->recorder, event, lane->engine->now_ns, lane->options.worker.job, value);
}

/* ---- hello.c ---- */

void sml_hello_take(struct sml_worker_engine *e, const struct sml_header *h, const struct sml_rx_frame *f,
                    uint64_t now_ns);
/* Sends the HELLOs whose time has come, and ends those whose time is over. Returns when to call it again. */
uint64_t sml_hello_pump(struct sml_worker_engine *e, uint64_t now_ns);
/* Sends the HELLO of a running job, if it is due. Returns when the next one is. */
uint64_t sml_hello_greet(struct sml_worker_engine *e, struct sml_lane *lane, uint64_t now_ns);
