/* SPDX-License-Identifier: Apache-2.0
 * How much of what a worker sent may wait in its own host's queue. TCP keeps that short by itself (its "small queues":
 * a few segmented sends, or what leaves in a millisecond), so beside a worker that filled the queue with all its slots
 * a TCP flow got less, with nothing lost or marked that a window could react to. Pure; docs/adr/0012 has the figures.
 *
 * Asking the system costs a call, so it is asked only when more than the limit might wait: `most_bytes` is what it said
 * last and all that was sent since. */
#ifndef SML_ENGINE_SEND_QUEUE_H
#define SML_ENGINE_SEND_QUEUE_H

#include "base/base.h"

/* Four segmented sends, what TCP has after a while: never fewer. And what leaves the host in this time at the present
 * rate: alone on a link this bridges the time until the engine's thread runs again. */
#define SML_SEND_QUEUE_BYTES (256u << 10)
#define SML_SEND_QUEUE_NS (3 * SML_NS_PER_MS)
/* After so long at most it is looked at again while it holds chunks back. */
#define SML_SEND_QUEUE_LOOK_NS SML_NS_PER_MS
/* As many may always be sent when none is under way: whatever the system says, a lane goes on. */
#define SML_SEND_QUEUE_FEW_CHUNKS 64u

struct sml_send_queue {
  uint64_t most_bytes;
  uint64_t limit_bytes, next_limit_bytes; /* of this pass; of the next one, as far as its lanes are counted */
};

/* A lane has so many bytes under way, and each for a round trip (0: not known). To be called once a pass for each.
 * num_windows: 1, or as many as jobs have whose hosts aggregate as well, and take turns at processors with that. */
static inline void sml_send_queue_count(struct sml_send_queue *q, uint64_t under_way_bytes, uint64_t srtt_ns,
                                        uint32_t num_windows) {
  if (srtt_ns > 0) q->next_limit_bytes += num_windows * under_way_bytes * SML_SEND_QUEUE_NS / srtt_ns;
}

/* Ends a pass, in which so many bytes were sent. */
static inline void sml_send_queue_end_pass(struct sml_send_queue *q, uint64_t sent_bytes) {
  q->most_bytes += sent_bytes;
  q->limit_bytes = q->next_limit_bytes;
  q->next_limit_bytes = 0;
}

/* How many frames may be sent by a lane whose job has so many windows; already_bytes: sent in this pass. */
static inline uint32_t sml_send_queue_room(const struct sml_send_queue *q, uint64_t already_bytes,
                                           uint32_t frame_bytes, uint32_t num_windows) {
  const uint64_t limit_bytes = sml_max_u64(q->limit_bytes, (uint64_t)num_windows * SML_SEND_QUEUE_BYTES);
  const uint64_t most_bytes = q->most_bytes + already_bytes;
  if (most_bytes >= limit_bytes) return 0;
  return (uint32_t)sml_min_u64((limit_bytes - most_bytes) / frame_bytes, UINT32_MAX - 1);
}

#endif
