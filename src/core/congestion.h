/* SPDX-License-Identifier: Apache-2.0
 * How many chunks a worker may have under way: the window of CUBIC (RFC 9438). With it a lane takes about the share of
 * a link that a TCP flow beside it takes. Pure. docs/adr/0012-window-that-reacts.md has the reasons.
 *
 * - A loss that was shown, or a mark (ECN, RFC 3168), takes 3 tenths of the window, once a round trip: packets that
 *   were sent before the last reduction say nothing new. A packet's *order* is its number as sent: 1, 2, ...
 * - A full queue loses packets, so a loss with a short queue says less. It takes no more of the window than what is
 *   beyond a queue of one and a half round trips (at most 250 us), or of a fourth of the longest queue that the path
 *   was seen to hold. Marks count in full: only a queue makes them.
 * - A flow that ignores marks keeps the queue that makes them, whatever we do. So where each of 16 round trips has some
 *   although the window is the smallest, and all the job's flows together have no more than one segmented send under
 *   way, it is such a flow's. For 512 round trips marks then leave what one segmented send carries, as losses do. Both
 *   in a data centre only.
 * - A loss with a short queue is random. Those of the next second will be, too: of the round trips with a loss the
 *   first 32 are forgiven, and the window doubles up to where losses had taken it from. In a data centre (round trips
 *   below 500 us) losses leave what one segmented send carries.
 * - The window grows only while it holds chunks back (RFC 7661). It doubles each round trip up to the threshold. Beyond
 *   that it grows as CUBIC does, at least as fast as a Reno flow of the same share.
 * - At the start, and after an idle time, it is so small that one burst of its size harms nobody.
 * - More slots than usual (1,024) are there for a long path. The smallest round trip shows best whether this path is
 *   long: the few of the join are longer on a busy machine. So the window takes what that trip holds at 10 Gbit/s, and
 *   at least 1.25 MiB. More would only lengthen queues, and with them every repair.
 *
 * - On a long path chunks are paced. Results that come one soon after the other, a *train*, show how fast the path's
 *   narrowest link sends, however few they are. Two trains in a row have to, since what waited at a busy host comes as
 *   one. New chunks and repeats leave an eighth faster, in turns of 1 ms, where
 *   a window that grows would send them in bursts, of which a short queue loses a part. And the window grows faster,
 *   up to what the path holds at that rate. An idle time takes no more of it than what is above that.
 *   Where the join or a sample took less than 5 ms, busy processors may be the reason, and trains come as they read
 *   them. There chunks are paced only once a queue has overflowed.
 *
 * The window never exceeds the slots. While nothing is lost or marked, it soon is as large as it may be. */
#pragma once

#include "base/base.h"
#include "core/rto.h"

#define SML_CONGESTION_MIN_CHUNKS 4u
#define SML_CONGESTION_MIN_SLOTS 16u /* with fewer slots the window is small anyway, and fixed */

#define SML_CONGESTION_USUAL_BYTES (5u << 18)
#define SML_CONGESTION_USUAL_SLOTS 1024u /* more are there for a long path */

struct sml_congestion {
  uint32_t max_chunks, initial_chunks, chunk_bytes;
  uint64_t path_ns;     /* the shortest round trip of all lanes behind the same link; 0: not known */
  uint32_t path_chunks; /* of max_chunks, what the path can use */
  bool is_fixed;
  uint64_t window, threshold; /* in chunks / 2^20, like all that follows except counts, orders and times */
  /* By CUBIC: the window before the last reduction, that of a Reno flow since then, and how long it has grown. */
  uint64_t peak, reno;
  uint64_t grown_ns, growing_since_ns;
  uint64_t reduced_order;
  bool is_limited, was_limited; /* the window held chunks back in this round; in the one before */
  /* A round ends when something that was sent in it completes. */
  uint64_t round_order, round_ns;
  uint64_t completed_ns, round_gap_ns; /* when the last chunk completed; the longest time without one in this round */
  uint64_t min_rtt_ns; /* ever */
  /* On a long path: what completed and what was lost in this round; the most chunks that the path held without a queue
   * in the last FAR_ROUNDS rounds and in those before; how many rounds were counted, and how many brought no more. */
  uint64_t round_chunks, round_losses;
  uint64_t most_held, most_held_before;
  uint32_t num_held_rounds, num_full_rounds;
  bool is_full; /* the path was full once: since then what it held limits the window */
  bool has_overflowed; /* so many were lost in some round that a queue was full */
  /* On a long path: since when chunks of this train have completed, and how many after that; chunks a second of the
   * train right before (0: there was none), and those of the fastest two in a row in this round, in the last FAR_ROUNDS
   * rounds, and in those before. */
  uint64_t train_ns, train_chunks, train_rate;
  uint64_t round_rate, rate, rate_before;
  bool is_paced, has_widened; /* that rate limits the lane; it has grown in the last round */
  uint64_t credit, turn_ns, next_turn_ns; /* what may be sent, in SML_CONGESTION_CHUNK, as of turn_ns */
  /* The longest time for which something had queued: in these 30 s and in the 30 s before. */
  uint64_t deepest_ns, deepest_before_ns, deepest_since_ns;
  uint64_t num_reductions;
  /* Random losses: how many more round trips are forgiven, and when one was seen. What was sent up to loss_order
   * belongs to the round trip of the last loss. */
  uint64_t num_to_forgive, random_ns, loss_order;
  /* Marks: there was one in this round; the smallest windows of all flows of the job are hardly anything; rounds in a
   * row that had one nevertheless; how many more rounds they count as made by others. */
  bool is_marked, has_little;
  uint32_t num_in_vain, num_others_marks;
  uint64_t best, best_ns; /* the largest window that a loss reduced within a second; when that was */
};

/* max_chunks: the slots. The window is never more, and never less if is_off or if they are very few. num_flows: of the
 * job, that may share a link. path_ns: what the join measured.
 *
 * An operation waits for its slowest lane, and of lanes behind one link those that yield get nothing if the others do
 * not. So they shall judge alike whether their path is long: their owner keeps path_ns at the shortest round trip that
 * any of them saw. And once one of them was reduced, all get the mean of their windows. */
void sml_congestion_init(struct sml_congestion *c, uint32_t max_chunks, uint32_t chunk_bytes, uint32_t num_flows,
                         uint64_t path_ns, bool is_off);

/* Is the path longer than a data centre's? The join measures it on processors that may be busy, so each sample of each
 * of those lanes must say so as well. */
bool sml_congestion_is_far(const struct sml_congestion *c);

#define SML_CONGESTION_CHUNK SML_NS_PER_S /* of credit: so a rate earns itself each nanosecond */

/* Call it once a pass, before chunks are sent. It says how many of them the pace allows until the next call. */
void sml_congestion_take_turn(struct sml_congestion *c, uint64_t now_ns);
/* The pace allows none until next_turn_ns. */
static inline bool sml_congestion_is_early(const struct sml_congestion *c) {
  return c->credit < SML_CONGESTION_CHUNK;
}
/* A chunk was sent, for the first time or again. */
static inline void sml_congestion_on_sent(struct sml_congestion *c) {
  SML_ASSERT(!sml_congestion_is_early(c));
  c->credit -= SML_CONGESTION_CHUNK;
}
/* In whole chunks. */
static inline uint32_t sml_congestion_window(const struct sml_congestion *c) {
  return (uint32_t)(c->window >> 20);
}
/* A chunk was ready, and the window held it back. */
static inline void sml_congestion_note_limited(struct sml_congestion *c) {
  c->is_limited = true;
}
/* A chunk completed that was sent as the order-th packet; last_order: the order of the last packet sent. */
void sml_congestion_on_completed(struct sml_congestion *c, const struct sml_rto *rto, uint64_t order,
                                 uint64_t last_order, uint64_t now_ns);
/* The order-th packet, or its result, was lost (on_loss) or marked (on_mark). */
void sml_congestion_on_loss(struct sml_congestion *c, const struct sml_rto *rto, uint64_t order, uint64_t last_order,
                            uint64_t now_ns);
void sml_congestion_on_mark(struct sml_congestion *c, uint64_t order, uint64_t last_order, uint64_t now_ns);
/* From now on the window is this, as that of all lanes behind the same link. */
void sml_congestion_share(struct sml_congestion *c, uint64_t window);
/* Nothing was under way for a timeout. */
void sml_congestion_on_idle(struct sml_congestion *c);
