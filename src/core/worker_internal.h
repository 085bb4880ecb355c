/* SPDX-License-Identifier: Apache-2.0
 * The worker's state, for worker.c, which changes it, and worker_invariants.c, which looks whether it is sound. */
#ifndef SML_CORE_WORKER_INTERNAL_H
#define SML_CORE_WORKER_INTERNAL_H

#include "core/rto.h"
#include "core/worker.h"

#define NONE UINT32_MAX

enum slot_state {
  IDLE,        /* the granted chunk is not submitted yet */
  WAITING,     /* a data chunk whose group's exponents are not back */
  READY,       /* its UPDATE is to be sent for the first time */
  OUTSTANDING, /* sent; the result is awaited */
};

struct slot {
  uint32_t phase; /* grows by one a chunk; compared in full, never by parity */
  uint32_t tag;
  uint64_t chunk; /* position in the lane's stream; the wire has it mod 2^32 */
  uint32_t operation; /* index in the ring; not for IDLE */
  struct sml_chunk what;
  enum slot_state state;
  uint8_t level;       /* how often the aggregator was asked about it */
  bool wants_update;   /* in the update queue, or stale there if false */
  bool wants_probe;    /* likewise for the probe queue */
  bool is_in_updates, is_in_probes; /* physically in the queue */
  bool was_resent;     /* the UPDATE went out more than once: no RTT sample (Karn) */
  bool was_refused;    /* a result of this phase came with a wrong sum */
  bool was_pending;    /* the aggregator said that others are missing: no RTT sample either */
  uint32_t prev, next; /* in the list of its level, in the order of sent_ns; next also in the waiting list */
  uint64_t first_sent_ns, sent_ns;
};

struct operation {
  struct sml_range range;
  uint64_t first_chunk, chunks_left;
  uint64_t chunks_unassigned; /* not given to a slot yet: a chunk granted twice can't outlive its operation */
  uint64_t tag_base;
  uint8_t *ready; /* [num_groups] exponents of the group are back */
  void *cookie;
  bool is_done;
};

/* FIFO of slot numbers; a slot is in it at most once, so num_slots places suffice. */
struct queue {
  uint32_t *slots;
  uint32_t head, count;
};

struct list {
  uint32_t head, tail;
};

struct sml_worker {
  struct sml_worker_options options;
  struct slot *slots;
  struct operation *ring;
  uint64_t ring_head, ring_tail; /* operations [head, tail), index mod num_operations */
  uint64_t end_chunk;            /* stream position behind the last submitted operation */
  uint64_t last_grant;           /* greatest position seen: reference for widening wire chunks */
  uint32_t *idle; /* [num_slots] the IDLE slot of a chunk, by chunk mod num_slots: honest grants never meet */
  struct list waiting; /* WAITING slots in the order they began to */
  struct queue updates, probes;
  struct list levels[SML_RTO_LEVELS];
  struct sml_rto rto;
  uint64_t latest_acked_ns; /* send time of the latest-sent chunk that has completed */
  uint64_t jitter_ns;       /* added to timeouts, redrawn when one fires, so that ranks spread out */
  struct sml_prng prng;
  struct sml_worker_view view;
};

#endif
