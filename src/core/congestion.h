/* SPDX-License-Identifier: Apache-2.0
 * How many chunks a worker may have under way: the window of CUBIC (RFC 9438), so that a lane takes about the share of
 * a link that a TCP flow beside it takes. Pure. docs/adr/0012-window-that-reacts.md has the reasons.
 *
 * - A loss that was shown, or a mark (ECN, RFC 3168), takes 3 tenths of the window, once a round trip: packets that
 *   were sent before the last reduction say nothing new. Packets are told by their *order*, 1, 2, ... as sent.
 * - A loss says less where it comes with a short queue: a full one is what loses packets. So it takes no more of the
 *   window than what is beyond a queue of one and a half round trips (at most 250 us), or of a fourth of the longest
 *   that the path was seen to hold. Marks count in full: nothing but a queue makes them.
 * - Losses that come although the queue is short are random. So will be those of the next second: the first 32 round
 *   trips with one are forgiven, and the window doubles up to where losses had taken it from. And in a data centre
 *   (round trips below 500 us) losses leave what one segmented send carries.
 * - It grows while it is what holds chunks back, and not else (RFC 7661): doubled each round trip up to the threshold,
 *   then as CUBIC does, at least as fast as a Reno flow of the same share.
 * - At the start, and after an idle time, it is small enough for one burst of that size to harm nobody.
 *
 * - More slots than usual (1,024) are there for a long path. But whether this one is long the smallest round trip tells
 *   better than the few at the join, which a busy machine makes long. So of many slots it takes what that trip holds at
 *   10 Gbit/s, and 1.25 MiB at least: the others would only lengthen queues, and with them every repair.
 *
 * It never exceeds the slots, and as long as nothing is lost or marked it soon is all that it may be. */
#ifndef SML_CORE_CONGESTION_H
#define SML_CORE_CONGESTION_H

#include "base/base.h"
#include "core/rto.h"

#define SML_CONGESTION_MIN_CHUNKS 4u
#define SML_CONGESTION_MIN_SLOTS 16u /* fewer are a small window as they are */

#define SML_CONGESTION_USUAL_BYTES (5u << 18)
#define SML_CONGESTION_USUAL_SLOTS 1024u /* more are there for a long path */

struct sml_congestion {
  uint32_t max_chunks, initial_chunks, chunk_bytes;
  uint32_t path_chunks; /* of max_chunks, what the path can use */
  bool is_fixed;
  uint64_t window, threshold; /* in chunks / 2^20, like all that follows but counts, orders and times */
  /* CUBIC's: the window before the last reduction, that of a Reno flow since, and the time for which it has grown. */
  uint64_t peak, reno;
  uint64_t grown_ns, growing_since_ns;
  uint64_t reduced_order;
  bool is_limited, was_limited; /* chunks were held back in this round, in the one before */
  /* A round ends when something that was sent in it completes. */
  uint64_t round_order, round_ns;
  uint64_t completed_ns, round_gap_ns; /* when the last chunk did; the longest time without one in this round */
  uint64_t min_rtt_ns; /* ever */
  /* On a long path: what completed and what was lost in this round; the most chunks that the path held without a queue,
   * of these rounds and of those before; how many rounds brought no more. */
  uint64_t round_chunks, round_losses;
  uint64_t most_held, most_held_before;
  uint32_t num_held_rounds, num_full_rounds;
  bool is_full; /* since then what it held limits the window */
  /* The longest time for which what arrived had queued: of these 30 s and of the 30 s before. */
  uint64_t deepest_ns, deepest_before_ns, deepest_since_ns;
  uint64_t num_reductions;
  /* Losses for no reason: how many more are forgiven, when one was seen; the round of the last loss. */
  uint64_t num_to_forgive, random_ns, loss_order;
  uint64_t best, best_ns; /* the largest window that a loss reduced, in a second; when that was */
};

/* max_chunks: the slots; the window is never more, and if is_off, or they are very few, never less. */
void sml_congestion_init(struct sml_congestion *c, uint32_t max_chunks, uint32_t chunk_bytes, bool is_off);

/* In whole chunks. */
static inline uint32_t sml_congestion_window(const struct sml_congestion *c) {
  return (uint32_t)(c->window >> 20);
}
/* A chunk was ready, and the window held it back. */
static inline void sml_congestion_note_limited(struct sml_congestion *c) {
  c->is_limited = true;
}
/* A chunk completed, sent as the order-th packet; last_order: of what was sent by now. */
void sml_congestion_on_completed(struct sml_congestion *c, const struct sml_rto *rto, uint64_t order,
                                 uint64_t last_order, uint64_t now_ns);
/* The order-th packet, or what came for it, was lost; it was marked. */
void sml_congestion_on_loss(struct sml_congestion *c, const struct sml_rto *rto, uint64_t order, uint64_t last_order,
                            uint64_t now_ns);
void sml_congestion_on_mark(struct sml_congestion *c, uint64_t order, uint64_t last_order, uint64_t now_ns);
/* Nothing was under way for a timeout. */
void sml_congestion_on_idle(struct sml_congestion *c);

#endif
