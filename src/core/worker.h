/* SPDX-License-Identifier: Apache-2.0
 * The worker's state machine for one lane of one job (NSDI'21 algorithm 4, with granted chunks). Pure.
 * It decides which chunk goes on which slot and when to ask again; the engine moves the elements.
 *
 * A slot is IDLE (its granted chunk is not submitted yet), WAITING (a data chunk whose group's
 * exponents are not back), READY (to be sent) or OUTSTANDING. Lost packets: RTT estimates as in RFC 6298,
 * a chunk is suspected lost when one sent clearly later has completed (as RACK, RFC 8985); a suspected
 * slot is asked about with a small PROBE, and the data is sent again only if the aggregator says that it
 * is this rank's contribution that is missing. Invariant I6 needs no order: phases are compared. */
#ifndef SML_CORE_WORKER_H
#define SML_CORE_WORKER_H

#include "core/drop.h"
#include "core/stream.h"
#include "core/wire.h"

struct sml_worker_options {
  uint16_t job;
  uint32_t epoch;
  uint16_t rank; /* in the data plane: of the contributor, below num_contributors */
  uint32_t world_size;
  uint32_t num_contributors; /* ranks of one host may contribute as one; 0: world_size, each for itself */
  uint32_t num_lanes, lane;
  uint32_t num_slots;
  uint16_t slot_base;
  uint32_t chunk_bytes;
  uint32_t first_phase, first_chunk;
  bool is_checked;         /* int32 chunks carry a check word: the engine's to make and to check */
  uint32_t packet_lanes;   /* switch format: each UPDATE and RESULT has so many; 0: ordinary format */
  uint32_t num_operations; /* capacity of the operation ring; power of two */
  uint32_t order_slots;    /* from so many slots on the order of what comes shows losses; 0: SML_ORDER_SLOTS */
  uint64_t rtt_ns;         /* of the path, as far as the join knows; 0: not known */
  uint64_t seed;           /* jitter */
  bool is_one_way;         /* its operations are those of a one-way window: num_slots >= SML_LEAST_ONE_WAY_SLOTS, no
                            * check words, a fixed window */
  bool has_fixed_window;   /* as many chunks as slots may be under way, whatever is lost or marked */
};

struct sml_worker;
size_t sml_worker_memsize(const struct sml_worker_options *options);
struct sml_worker *sml_worker_init(void *mem, const struct sml_worker_options *options); /* aligned 64 */

/* Room for another operation? One that ended out of order keeps its place until those before it ended. */
bool sml_worker_can_submit(const struct sml_worker *w);
/* Appends an operation to the lane's stream. ready: num_groups bytes of the caller's, all zero, kept
 * until the operation ended. cookie comes back in sml_send and sml_accept. Returns false when the
 * lane's range is empty (nothing to do: the operation has ended here). */
bool sml_worker_submit(struct sml_worker *w, const struct sml_operation_plan *plan, uint8_t *ready,
                       void *cookie, uint64_t now_ns);

/* What to send next. */
enum sml_send_kind { SML_SEND_NONE, SML_SEND_UPDATE, SML_SEND_PROBE };
struct sml_send {
  enum sml_send_kind kind;
  void *cookie;
  struct sml_chunk chunk;
  struct sml_header header; /* complete; payload_bytes with the check word */
};
/* Takes the next packet to send, which then counts as sent at now_ns. */
void sml_worker_next_send(struct sml_worker *w, uint64_t now_ns, struct sml_send *send_out);
/* Payload bytes of what next_send would give now (a burst has equal frames); 0 for a probe,
 * UINT32_MAX for nothing. */
uint32_t sml_worker_peek_send(struct sml_worker *w);
/* Chunks that wait to be sent for the first time. */
uint32_t sml_worker_num_ready(const struct sml_worker *w);
/* From now on at most so many of them may be sent, whatever the window; UINT32_MAX: any number, as at the start. No
 * limit to a worker whose window is fixed, which does not heed other traffic. */
void sml_worker_set_room(struct sml_worker *w, uint32_t num_chunks);
/* From now on at most so many chunks may be outstanding: as many as results find room in this host's receive buffer,
 * should all come while it does not look. At the start as many as slots. */
void sml_worker_set_buffer(struct sml_worker *w, uint32_t num_chunks);
bool sml_worker_has_fixed_window(const struct sml_worker *w);
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
  bool is_operation_done; /* this lane's part is complete once the payload is written */
  bool was_asked;         /* the slot was asked about, or its update repeated */
};
/* What sml_worker_on_packet will make of a packet, without doing it: the engine verifies a RESULT first. */
struct sml_accept sml_worker_peek_packet(const struct sml_worker *w, const struct sml_header *header);
/* When the update was first sent that a packet is about which is to be accepted. */
uint64_t sml_worker_first_sent_ns(const struct sml_worker *w, const struct sml_header *header);
/* A RESULT that was to be accepted has a wrong sum: the slot stays outstanding and is asked about again at once.
 * Returns whether it is not the first one of this slot and phase: then the aggregator's own sum is wrong. */
bool sml_worker_refuse_result(struct sml_worker *w, const struct sml_header *header);
/* For a RESULT or PENDING that passed job, epoch and source checks. For RESULT the slot moves to its
 * next phase and granted chunk at once; the engine must write the payload before the next call.
 * PENDING's payload is the bitmap of missing contributors: c is bit c % 8 of byte c / 8. */
struct sml_accept sml_worker_on_packet(struct sml_worker *w, const struct sml_header *header,
                                       const uint8_t *payload, uint64_t now_ns);

/* In a one-way window a fence that is late may end more operations than the one that on_packet names: the cookie of the
 * next one, or NULL. After each that has ended. */
void *sml_worker_next_ended(struct sml_worker *w);

/* The packet came marked (ECN), or it is the aggregator's word that an update did; after job, epoch and source checks,
 * before on_packet. */
void sml_worker_note_mark(struct sml_worker *w, const struct sml_header *header, uint64_t now_ns);

uint64_t sml_worker_next_deadline(const struct sml_worker *w);
void sml_worker_on_timer(struct sml_worker *w, uint64_t now_ns);

/* Cookie of each operation that has not ended, oldest first; drops them (job failed). */
void *sml_worker_take_unfinished(struct sml_worker *w);

/* How far the stream may still go in this epoch before a phase could reach its end: chunks that may
 * still be submitted. A pure function of what was submitted, so equal on all ranks. */
uint64_t sml_worker_chunks_left(const struct sml_worker *w);

/* What a worker counts; the lines of SML_WORKER_STATS under the names that sml_stats has for them. A new counter is one
 * line here, and one in sml_stats if people are to see it (tools/python_api.py then tells Python): lanes publish, and
 * jobs add up, what stands in these lists. */
#define SML_WORKER_STATS(X)                                                                                           \
  X(chunks_completed)                                                                                                 \
  X(retransmissions)                                                                                                  \
  X(probes)                                                                                                           \
  X(lost_results)      /* that came only as repeats: the first one was lost on its way */                             \
  X(window_reductions) /* of the congestion window */                                                                 \
  X(ecn_marks)         /* packets that were marked or told of one that was */
#define SML_WORKER_COUNTERS(X) SML_WORKER_STATS(X) X(timeouts)
/* How it stands now. */
#define SML_WORKER_STATES(X)                                                                                          \
  X(uint64_t, srtt_ns)                                                                                                \
  X(uint64_t, rto_ns)                                                                                                 \
  X(uint32_t, window_chunks)       /* that may be under way, at most the slots */                                     \
  X(uint64_t, busiest_slot_chunks) /* results of the slot that had most: how grants go round one that waits */        \
  X(bool, is_waiting)              /* something is outstanding */                                                     \
  X(uint32_t, waiting_slot)        /* whose missing ranks are known, else the one waiting longest */                  \
  X(uint64_t, waiting_since_ns)
#define SML_COUNTER(name) uint64_t name;
#define SML_STATE(type, name) type name;

struct sml_worker_view {
  SML_WORKER_COUNTERS(SML_COUNTER)
  SML_WORKER_STATES(SML_STATE)
  uint32_t num_outstanding; /* slots whose update was sent and whose result is not back */
  bool is_out_of_room;      /* since sml_worker_set_room(): that alone held a chunk back */
  uint32_t num_missing;     /* contributors that the aggregator last said waiting_slot waits for; 0: unknown */
  uint16_t missing[16];
};
void sml_worker_view(const struct sml_worker *w, struct sml_worker_view *view_out);

/* NULL, or which invariant is broken: what tests ask after every step, in time proportional to the slots.
 * Not for a worker whose operations were taken. Whatever arrives cannot break one, but those that begin with
 * "I9" (grants) hold only as long as the aggregator is honest. */
const char *sml_worker_find_violation(const struct sml_worker *w);

#endif
