/* SPDX-License-Identifier: Apache-2.0
 * How much of what a worker sent may wait in the send queue, the queue of its own host. TCP keeps its part short ("TCP
 * small queues": a few segmented sends, or what leaves in a millisecond). Beside a worker that filled the queue with
 * all its slots a TCP flow got less, and nothing was lost or marked to which a window could react. Pure;
 * docs/adr/0012-window-that-reacts.md has the figures.
 *
 * To ask the system costs a call, so the engine asks only when more than the limit might wait. `most_bytes` is what the
 * system said last, plus all that was sent since. */
#pragma once

#include "base/base.h"

/* The limit is what leaves the host in SML_SEND_QUEUE_NS at the present rate: on a link of its own that bridges the
 * time until the engine's thread runs again. It is never below four segmented sends, which TCP has after a while. */
#define SML_SEND_QUEUE_BYTES (256u << 10)
#define SML_SEND_QUEUE_NS (3 * SML_NS_PER_MS)
/* While the queue holds chunks back, the engine looks at it again after this time at the latest. */
#define SML_SEND_QUEUE_LOOK_NS SML_NS_PER_MS
#define SML_SEND_QUEUE_LEAST_LOOK_NS (100 * SML_NS_PER_US)
/* Nothing waits longer, as far as a worker is told: a link that is down for some time has no rate. */
#define SML_SEND_QUEUE_MOST_WAIT_NS (30 * SML_NS_PER_MS)
/* While copies and sums go one way at once, each place of the copies' window waits for this queue twice: as a copy, and
 * as a fence. So only such a part of that window may wait, or twice as much before a copy has to: sums have more to
 * send, and would leave it no room. */
#define SML_SEND_QUEUE_SHARE 16u
/* When none is under way, so many may always be sent: a lane goes on, whatever the system says. */
#define SML_SEND_QUEUE_FEW_CHUNKS 64u

struct sml_send_queue {
  uint64_t most_bytes;
  uint64_t limit_bytes, next_limit_bytes; /* of this pass; of the next one, for the lanes counted so far */
  /* What was sent in all earlier passes; what had left, and when; how much left in SML_SEND_QUEUE_NS since then. */
  uint64_t sent_bytes, left_bytes, left_ns, rate_bytes;
  uint64_t asked_ns;
  uint64_t link_bytes; /* as rate_bytes, but between looks that found something, and it falls slowly; 0: not known */
  bool was_busy;       /* something waited when left_bytes was measured */
};

/* Call it once a pass for each lane. It has so many bytes under way, each for a round trip (0: not known). num_windows:
 * 1, or more in a job whose hosts aggregate as well, so that workers and aggregators take turns at processors. */
static inline void sml_send_queue_count(struct sml_send_queue *q, uint64_t under_way_bytes, uint64_t srtt_ns,
                                        uint32_t num_windows) {
  if (srtt_ns > 0) q->next_limit_bytes += num_windows * under_way_bytes * SML_SEND_QUEUE_NS / srtt_ns;
}

/* The system says that so much waits. */
static inline void sml_send_queue_ask(struct sml_send_queue *q, uint64_t waiting_bytes, uint64_t now_ns) {
  q->most_bytes = waiting_bytes;
  q->asked_ns = now_ns;
  if (now_ns - q->left_ns < SML_SEND_QUEUE_LOOK_NS) return;
  const uint64_t left_bytes = q->sent_bytes - sml_min_u64(q->sent_bytes, waiting_bytes);
  q->rate_bytes = (left_bytes - sml_min_u64(left_bytes, q->left_bytes)) * SML_SEND_QUEUE_NS / (now_ns - q->left_ns);
  if (waiting_bytes > 0 && q->was_busy) q->link_bytes = sml_max_u64(q->rate_bytes, q->link_bytes - q->link_bytes / 8);
  q->was_busy = waiting_bytes > 0;
  q->left_bytes = left_bytes;
  q->left_ns = now_ns;
}

/* How long what is sent now will wait, as far as is known without asking; 0: not at all, or not known. already_bytes:
 * sent in this pass. */
static inline uint64_t sml_send_queue_wait_ns(const struct sml_send_queue *q, uint64_t already_bytes, uint64_t now_ns) {
  if (q->link_bytes == 0) return 0;
  const uint64_t wait_ns = (q->most_bytes + already_bytes) * SML_SEND_QUEUE_NS / q->link_bytes;
  return sml_min_u64(wait_ns - sml_min_u64(wait_ns, now_ns - q->asked_ns), SML_SEND_QUEUE_MOST_WAIT_NS);
}

/* The limit of lanes that do not know what is under way: those of one-way windows, where most updates have no answer of
 * their own. */
static inline void sml_send_queue_go_one_way(struct sml_send_queue *q) {
  q->limit_bytes = sml_max_u64(q->limit_bytes, q->rate_bytes);
}

/* Ends a pass that sent so many bytes. */
static inline void sml_send_queue_end_pass(struct sml_send_queue *q, uint64_t sent_bytes) {
  q->most_bytes += sent_bytes;
  q->sent_bytes += sent_bytes;
  q->limit_bytes = q->next_limit_bytes;
  q->next_limit_bytes = 0;
}

static inline uint32_t sml_send_queue_room_below(const struct sml_send_queue *q, uint64_t already_bytes,
                                                 uint32_t frame_bytes, uint64_t limit_bytes) {
  const uint64_t most_bytes = q->most_bytes + already_bytes;
  if (most_bytes >= limit_bytes) return 0;
  return (uint32_t)sml_min_u64((limit_bytes - most_bytes) / frame_bytes, UINT32_MAX - 1);
}

/* How many frames may be sent by a lane whose job has so many windows; already_bytes: sent in this pass. */
static inline uint32_t sml_send_queue_room(const struct sml_send_queue *q, uint64_t already_bytes,
                                           uint32_t frame_bytes, uint32_t num_windows) {
  const uint64_t limit_bytes = sml_max_u64(q->limit_bytes, (uint64_t)num_windows * SML_SEND_QUEUE_BYTES);
  return sml_send_queue_room_below(q, already_bytes, frame_bytes, limit_bytes);
}

/* When to look again if the queue holds chunks back: before half of such a limit has left. */
static inline uint64_t sml_send_queue_look_ns(const struct sml_send_queue *q, uint64_t limit_bytes) {
  if (q->rate_bytes == 0) return SML_SEND_QUEUE_LOOK_NS;
  const uint64_t half_ns = limit_bytes * SML_SEND_QUEUE_NS / (2 * q->rate_bytes);
  return sml_min_u64(sml_max_u64(half_ns, SML_SEND_QUEUE_LEAST_LOOK_NS), SML_SEND_QUEUE_LOOK_NS);
}
