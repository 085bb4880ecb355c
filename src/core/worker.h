/* SPDX-License-Identifier: Apache-2.0
 * The worker's state machine for one lane of one job (NSDI'21 algorithm 4, with granted chunks). Pure.
 * It decides which chunk goes on which slot and when to ask again; the engine moves the elements.
 *
 * A slot is IDLE (its granted chunk is not submitted yet), WAITING (a data chunk whose group's
 * exponents are not back), READY (to be sent) or OUTSTANDING.
 *
 * The RTT is estimated as in RFC 6298. A chunk is suspected lost when one sent clearly later has completed (as in
 * RACK, RFC 8985). The worker asks about a suspected slot with a small PROBE, and sends the data again only if the
 * aggregator says that this rank's contribution is missing. Invariant I6 needs no order: phases are compared. */
#pragma once

#include "core/drop.h"
#include "core/stream.h"
#include "core/wire.h"

struct sml_worker_options {
  uint16_t job;
  uint32_t epoch;
  uint16_t rank; /* the contributor's number in the data plane, below num_contributors */
  uint32_t world_size;
  uint32_t num_contributors; /* ranks of one host may contribute as one; 0: world_size, each for itself */
  uint32_t num_lanes, lane;
  uint32_t num_slots;
  uint16_t slot_base;
  uint32_t chunk_bytes;
  uint32_t first_phase, first_chunk;
  bool is_checked;         /* int32 chunks carry a check word, which the engine makes and checks */
  uint32_t packet_lanes;   /* switch format: lanes of each UPDATE and RESULT; 0: ordinary format */
  uint32_t num_operations; /* capacity of the operation ring; power of two */
  uint32_t order_slots;    /* with this many slots or more, order shows losses; 0: SML_ORDER_SLOTS */
  uint64_t rtt_ns;         /* the path's round trip, as the join measured it; 0: not known */
  uint64_t seed;           /* of the jitter */
  /* SML_REDUCE_TO_OWNER or SML_REDUCE_COPY: for operations that go this one way. slot_base is then that of this window,
   * num_slots is the lane's (at least SML_LEAST_ONE_WAY_SLOTS), and there are no check words. SML_REDUCE_SUM: else. */
  uint8_t way;
  bool has_fixed_window; /* the window is all slots, whatever is lost or marked */
};

struct sml_congestion;
struct sml_worker;
size_t sml_worker_memsize(const struct sml_worker_options *options);
struct sml_worker *sml_worker_init(void *mem, const struct sml_worker_options *options); /* aligned 64 */

/* Is there room for another operation? One that ended out of order keeps its place until those before it have ended. */
bool sml_worker_can_submit(const struct sml_worker *w);
/* Appends an operation to the lane's stream. ready: num_groups zero bytes, which the caller keeps until the operation
 * has ended. cookie comes back in sml_send and sml_accept. Returns false when the lane's range is empty: then the
 * operation has ended here. */
bool sml_worker_submit(struct sml_worker *w, const struct sml_operation_plan *plan, uint8_t *ready,
                       void *cookie, uint64_t now_ns);

/* What to send next. */
enum sml_send_kind { SML_SEND_NONE, SML_SEND_UPDATE, SML_SEND_PROBE };
struct sml_send {
  enum sml_send_kind kind;
  void *cookie;
  struct sml_chunk chunk;
  const struct sml_range *range; /* that the chunk is of; of an operation that goes one way */
  struct sml_header header;      /* complete; payload_bytes includes the check word */
  uint8_t fence_byte;            /* a fence's payload */
};
/* Takes the next packet to send, which then counts as sent at now_ns. */
void sml_worker_next_send(struct sml_worker *w, uint64_t now_ns, struct sml_send *send_out);
/* Payload bytes of what next_send would give now (all frames of a burst are equally long); 0 for a probe,
 * UINT32_MAX for nothing. */
uint32_t sml_worker_peek_send(struct sml_worker *w);
/* Copies that go one way: there is a fence between the last update and the next one. What one send carries arrives
 * together, and a fence waits for all owners. */
bool sml_worker_is_at_fence(struct sml_worker *w);
/* Chunks that wait to be sent for the first time. */
uint32_t sml_worker_num_ready(const struct sml_worker *w);
/* From now on at most so many of these may be sent, whatever the window allows. UINT32_MAX, as at the start: any
 * number. A worker with a fixed window ignores this, as it ignores other traffic. */
void sml_worker_set_room(struct sml_worker *w, uint32_t num_chunks);
/* What a one-way window sends now will leave the host then: so long other packets wait before it. */
void sml_worker_set_leaving(struct sml_worker *w, uint64_t leaving_ns);
/* From now on at most so many chunks may be outstanding: as many results as this host's receive buffer holds, should
 * all of them come while nobody reads it. At the start: as many as there are slots. */
void sml_worker_set_buffer(struct sml_worker *w, uint32_t num_chunks);
struct sml_congestion *sml_worker_congestion(struct sml_worker *w); /* of lanes that share a link (congestion.h) */
/* Bytes of chunks that are under way, headers included. */
uint64_t sml_worker_under_way_bytes(const struct sml_worker *w);

enum sml_accept_kind {
  SML_ACCEPT_DROP,      /* count `drop` */
  SML_ACCEPT_RESULT,    /* write the payload: chunk of cookie */
  SML_ACCEPT_PENDING,   /* noted; nothing to do */
};
struct sml_accept {
  enum sml_accept_kind kind;
  enum sml_drop drop;
  void *cookie;
  struct sml_chunk chunk;
  void *ended;    /* cookie of an operation whose part is complete in this lane once the payload is written, or NULL */
  bool was_asked; /* the slot was asked about, or its update repeated */
};
/* What sml_worker_on_packet will make of a packet. This changes nothing: the engine verifies a RESULT in between. */
struct sml_accept sml_worker_peek_packet(const struct sml_worker *w, const struct sml_header *header);
/* For a packet that is to be accepted: when the update that it is about was sent first. */
uint64_t sml_worker_first_sent_ns(const struct sml_worker *w, const struct sml_header *header);
/* A RESULT that was to be accepted has a wrong sum: the slot stays outstanding, and the worker asks about it at once.
 * Returns true if this slot and phase had a wrong sum before: then the aggregator's own sum is wrong. */
bool sml_worker_refuse_result(struct sml_worker *w, const struct sml_header *header);
/* Accepts a RESULT or PENDING that passed the checks of job, epoch and source. At a RESULT the slot moves to its
 * next phase and granted chunk at once; the engine must write the payload before the next call.
 * PENDING's payload is the bitmap of missing contributors: c is bit c % 8 of byte c / 8. */
struct sml_accept sml_worker_on_packet(struct sml_worker *w, const struct sml_header *header,
                                       const uint8_t *payload, uint64_t now_ns);

/* In a one-way window a fence may end more operations than the one that on_packet names. Returns the
 * cookie of the next one, or NULL. Call it after each operation that has ended. */
void *sml_worker_next_ended(struct sml_worker *w);

/* In a one-way window a RESULT or PENDING may say that a fence is complete whose own result is not here. Call it before
 * peek. If it returns true, call next_ended until that returns NULL. */
bool sml_worker_take_proof(struct sml_worker *w, const struct sml_header *header, uint64_t now_ns);

/* Peek said that the packet repeats a result that is here (SML_DROP_NEEDLESS): a question was in vain. */
void sml_worker_note_needless(struct sml_worker *w);

/* The packet came marked (ECN), or it says that an update did. Call it after the checks of job, epoch and source, and
 * before on_packet. */
void sml_worker_note_mark(struct sml_worker *w, const struct sml_header *header, uint64_t now_ns);

uint64_t sml_worker_next_deadline(const struct sml_worker *w);
void sml_worker_on_timer(struct sml_worker *w, uint64_t now_ns);

/* The job has failed: drops the oldest operation that has not ended, and returns its cookie; NULL: there is none. */
void *sml_worker_take_unfinished(struct sml_worker *w);

/* How many more chunks may be submitted in this epoch before a phase could overflow. It depends only on what was
 * submitted, so it is equal on all ranks. */
uint64_t sml_worker_chunks_left(const struct sml_worker *w);

/* What a worker counts. Those of SML_WORKER_STATS have the names that they have in sml_stats. A new counter is one line
 * here, and one in sml_stats if people are to see it (tools/python_api.py then tells Python): lanes publish, and jobs
 * add up, what stands in these lists. */
#define SML_WORKER_STATS(X)                                                                                           \
  X(chunks_completed)                                                                                                 \
  X(retransmissions)                                                                                                  \
  X(probes)                                                                                                           \
  X(lost_results)      /* results that came only as repeats: the first one was lost on its way */                     \
  X(window_reductions) /* of the congestion window */                                                                 \
  X(ecn_marks)         /* packets that were marked, or that told of a marked one */
#define SML_WORKER_COUNTERS(X) SML_WORKER_STATS(X) X(timeouts)
/* A worker's state now. */
#define SML_WORKER_STATES(X)                                                                                          \
  X(uint64_t, srtt_ns)                                                                                                \
  X(uint64_t, rto_ns)                                                                                                 \
  X(uint32_t, window_chunks)       /* how many may be under way, at most the slots */                                 \
  X(uint64_t, busiest_slot_chunks) /* results of the slot that had most: shows how grants go round one that waits */  \
  X(bool, is_waiting)              /* something is outstanding */                                                     \
  X(bool, is_at_fence)             /* waiting_slot has a fence: the missing may themselves wait for others */         \
  X(uint32_t, waiting_slot)        /* the slot whose missing ranks are known, else the one that waits longest */      \
  X(uint64_t, waiting_since_ns)
#define SML_COUNTER(name) uint64_t name;
#define SML_STATE(type, name) type name;

struct sml_worker_view {
  SML_WORKER_COUNTERS(SML_COUNTER)
  SML_WORKER_STATES(SML_STATE)
  uint32_t num_outstanding; /* slots whose update was sent and whose result is not back */
  bool is_paced;            /* by the rate that results show: they are wanted in short bursts */
  bool is_out_of_room;      /* since sml_worker_set_room() only that limit held a chunk back */
  uint32_t num_missing;     /* contributors for which waiting_slot waits, as the aggregator last said; 0: unknown */
  uint16_t missing[16];
};
void sml_worker_view(const struct sml_worker *w, struct sml_worker_view *view_out);

/* NULL, or which invariant is broken. Tests ask after every step; it takes time proportional to the slots. Do not ask
 * a worker whose operations were taken. No packet can break an invariant, except that those that begin with "I9"
 * (grants) hold only while the aggregator is honest. */
const char *sml_worker_find_violation(const struct sml_worker *w);
