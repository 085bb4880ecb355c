/* SPDX-License-Identifier: Apache-2.0
 * The worker's state. worker.c sends and receives. worker_stream.c gives slots their chunks, worker_one_way.c frees
 * those of one-way windows, worker_questions.c decides when to ask, worker_queue.h has the queues and lists of slots.
 * test_worker_invariants.c checks that the state is sound. */
#pragma once

#include "core/congestion.h"
#include "core/rto.h"
#include "core/worker.h"

#define NONE UINT32_MAX

enum slot_state {
  IDLE,        /* the granted chunk is not submitted yet */
  WAITING,     /* a data chunk whose group's exponents are not back */
  READY,       /* its UPDATE is to be sent for the first time */
  OUTSTANDING, /* sent; the result is awaited */
  /* In a one-way window. There a chunk to which only others contribute is OUTSTANDING, too. */
  CLOSED, /* a fence; something before it is not here or not sent yet */
  SENT,   /* a chunk whose result is only for others; the slot waits for the fence */
  HELD,   /* its result is here; the slot waits for the fence */
  KEPT,   /* the last complete fence, until a later one is complete */
};

struct slot {
  uint32_t phase; /* grows by one a chunk; compared in full, never by parity */
  uint32_t tag;
  uint64_t chunk; /* position in the lane's stream; the wire has it mod 2^32 */
  uint32_t operation; /* index in the ring; not for IDLE */
  uint8_t wire, reducer;  /* of its updates and results, from `what` and the operation, as are the next two */
  uint16_t payload_bytes; /* of the result, and of an update that is not narrow; includes the check word */
  struct sml_chunk what;
  enum slot_state state;
  uint8_t level;       /* how often the aggregator was asked about it */
  uint8_t probe_copies; /* how many more copies of the next probe to send */
  uint8_t num_charged;  /* questions about it that were paid for; at most SML_MOST_QUESTIONS */
  uint8_t flags;        /* of its updates: CHECKED or NARROW, or neither */
  uint8_t num_unanswered; /* questions since its last update; 1: asked at sent_ns; 2: two or more */
  bool wants_update;   /* to be sent again; if false, an entry in the update queue is stale */
  bool wants_probe;    /* likewise for the probe queue */
  bool is_in_updates, is_in_probes; /* has an entry in the queue */
  bool was_resent;     /* the UPDATE went out more than once: no RTT sample (Karn) */
  bool was_refused;    /* a result of this phase came with a wrong sum */
  bool was_pending;    /* the aggregator said that others are missing: no RTT sample either */
  uint32_t prev, next; /* in the list of its level, in the order of sent_ns; next also in the waiting list */
  uint64_t first_sent_ns, sent_ns;
  uint64_t asked_ns;   /* when the last question about it left the host */
  uint64_t noticed_ns; /* one way: when later results had come first, 0: not yet; and how many had come by then */
  uint32_t noticed_at;
  bool was_overtaken;        /* one way: it was asked about because of that */
  uint8_t fence_byte;        /* one way: what this rank's fence says */
  bool has_copy;             /* one way: the repeat that was just sent goes once more */
  uint64_t told_ns;          /* when a PENDING was about it; 0: none was */
  uint64_t order, update_ns; /* of its last UPDATE: its number among those of the lane, and when it left */
};

struct operation {
  struct sml_range range;
  uint64_t first_chunk, chunks_left;
  struct sml_row row; /* one way: where its next chunk is */
  uint64_t chunks_unassigned; /* not given to a slot yet: a chunk granted twice can't outlive its operation */
  uint64_t tag_base;
  uint8_t *ready; /* [num_groups] exponents of the group are back */
  void *cookie;
  uint8_t wire, reducer; /* of its data chunks */
  bool is_narrow;        /* its updates are narrow where they can be */
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

/* What comes to a rank in the order in which one rank sends, or all do. */
struct one_way_class {
  uint64_t next; /* behind the last position of which the result is here */
  uint32_t num_results;
};

/* How far beyond the last complete fence a rank sends in a one-way window that adapts. Positions; times in ns. Others
 * may fill their windows; but see sml_fence_window_allows(). */
struct fence_window {
  uint32_t allowed;       /* positions beyond `released` */
  uint32_t most;          /* that `allowed` may be, as losses and marks have it */
  uint32_t num_lost;      /* of this rank's updates and results since its last fence */
  bool is_marked;         /* since then */
  bool was_lossy;         /* the last complete fence said so */
  uint64_t reduced_at;    /* losses before this position was passed say nothing new */
  uint64_t round_begin, round_ns, rates[8]; /* positions passed in a second: in the last rounds */
  uint64_t least_trip_ns; /* the shortest of this rank's fences; 0: not known */
  uint64_t result_ns;     /* of the last result that was no repeat */
  uint64_t longest_ns;    /* the longest time without such a result while one was awaited; each fence takes an eighth */
  uint64_t asked_ns;      /* when it asked in a silence last */
  bool has_found;         /* the answer to that was a result, so more may be lost */
};

/* A grant that did not arrive although later ones did: the result that carried it is lost, or late. */
struct gap {
  uint64_t grant;
  uint64_t noticed_ns, asked_ns; /* 0: not yet */
  uint64_t order;    /* roughly that of the update whose result is missing */
  bool is_due;       /* to be asked about now */
  bool is_again;     /* asked about more than once: nobody knows which question is answered */
};

struct sml_worker {
  struct sml_worker_options options; /* num_slots: positions of a one-way window */
  uint32_t lane_slots;               /* num_slots as its owner gave it */
  struct slot *slots;
  struct operation *ring;
  uint64_t ring_head, ring_tail; /* operations [head, tail), index mod num_operations */
  uint64_t end_chunk;            /* stream position behind the last submitted operation */
  uint64_t last_grant;           /* greatest position seen: reference for widening wire chunks */
  uint32_t *idle; /* [num_slots] the IDLE slot of a chunk, by chunk mod num_slots: honest grants never meet */
  struct list waiting; /* WAITING slots, in the order in which they began to wait */
  /* READY slots, sent as the window allows, the first chunk of the stream first. `fresh` has those that became ready in
   * the order of the stream, `early` those that belong before one of them. */
  struct queue fresh;
  uint32_t *early, num_early;
  uint64_t last_fresh; /* chunk of the last slot in `fresh`, while there is one */
  struct queue updates;  /* to be sent again */
  struct queue probes;
  uint64_t *orders; /* [num_orders] the order of a chunk's first UPDATE, by chunk mod num_orders: recent chunks only */
  uint32_t num_orders;
  uint64_t last_order;
  uint32_t last_sent; /* the slot of the last UPDATE */
  uint64_t arrived_order; /* the greatest order of an update that is known to have reached the aggregator */
  uint64_t arrived_ns;    /* when this worker learned that */
  uint64_t full_asked_ns; /* when the worker last asked because the window was full */
  uint32_t full_level;    /* how often in a row */
  struct gap *gaps; /* [num_slots], in the order of their grants */
  uint32_t num_gaps, num_due_gaps;
  uint32_t gap_threshold; /* how many grants must have overtaken one that counts as lost */
  uint32_t num_lost;      /* one way: results that came only as repeats */
  uint64_t next_grant;    /* behind the greatest that arrived */
  uint64_t progress_ns;    /* when the last result came, or a chunk was sent for the first time */
  uint64_t last_update_ns; /* when a chunk was last sent for the first time */
  uint32_t clock_budget, silence_budget; /* of questions after timeouts, and in a silence */
  uint64_t quiet_until_ns; /* in a silence: when the worker may ask again */
  bool has_overflowed;     /* a long path's queue, and its losses are not made good yet */
  uint32_t quiet_level;    /* how often in a row it has asked */
  uint64_t patience_ns;    /* it lasts so long at least, as shorter ones were none; each loss that is shown halves it */
  bool is_silence_open;    /* it asked in a silence, and no answer has shown yet that it was none */
  struct list levels[SML_RTO_LEVELS];
  struct sml_rto rto;
  struct sml_congestion congestion;
  uint64_t leaving_ns;  /* one way: when what is sent now leaves the host, and all that was sent has left; or earlier */
  uint32_t room_chunks; /* how many more may be sent for the first time before the send queue is full */
  /* How many chunks may be outstanding: as this host can receive while nobody reads, and as were summed recently. */
  uint32_t buffer_chunks, stalled_chunks;
  uint64_t first_unsent; /* behind the last data chunk of the stream that was sent */
  uint32_t packet_bytes; /* payload of each UPDATE and RESULT in switch format; 0: ordinary format */
  uint8_t code_wire;     /* enum sml_wire_type of exponents */
  /* One-way window: a complete fence stands behind the chunks before `released`. This rank has sent or received all
   * that it has to among the chunks before `heard`. */
  uint64_t released, heard;
  uint64_t passed; /* behind the last fence that is complete */
  uint64_t latest; /* behind the latest result of data that is here */
  uint32_t kept;   /* the KEPT slot, or NONE */
  /* [num_contributors] what owners sent, by owner; sums for this rank, and exponents: the first */
  struct one_way_class *classes;
  struct fence_window window;
  bool has_news;            /* something came since the worker looked for gaps last */
  uint64_t answered_ns;     /* when the latest question was sent that is answered */
  uint64_t late_ns;         /* when the last answer came, or a slot was asked about again for want of one */
  uint64_t look_ns;         /* when it will look again, whatever comes */
  uint64_t now_ns;          /* of the call in which slots get their chunks */
  uint64_t latest_acked_ns; /* send time of the latest-sent chunk that has completed */
  uint64_t jitter_ns;       /* added to timeouts, redrawn when one fires, so that ranks spread out */
  struct sml_prng prng;
  struct sml_worker_view view;
};

/* Budgets of questions are counted in completed chunks: what a question costs; what a loss that was shown earns (there
 * may be others); how far chunks may fill a budget, and how far losses may. */
#define SML_QUESTION_COSTS 256u
#define SML_LOSS_EARNS (2 * SML_QUESTION_COSTS)
#define SML_MOST_QUESTIONS 32u
#define SML_MOST_BUDGET (SML_MOST_QUESTIONS * SML_QUESTION_COSTS)
#define SML_MOST_BY_LOSSES (8 * SML_MOST_BUDGET)

/* A result counts as lost when so many later ones, or more, are here, and for this time at least: paths that reorder by
 * less cost nothing. */
#define SML_FIRST_THRESHOLD 3u
#define SML_MOST_THRESHOLD 128u
#define SML_REORDER_NS (100 * SML_NS_PER_US)

#define SML_LEAST_CHUNKS 32u /* so many may be outstanding, whatever else limits them */

static inline bool is_one_way(const struct sml_worker *w) {
  return w->options.way != SML_REDUCE_SUM;
}

/* Its window adapts: several lanes share each link. One that has the link to itself takes its whole window, which is
 * what a data centre's path and queues hold. */
static inline bool sml_worker_adapts(const struct sml_worker *w) {
  return is_one_way(w) && w->options.num_lanes > 1;
}

/* The slot that a packet is about, or NONE. Each version of a slot of a one-way window is one here. */
static inline uint32_t sml_worker_slot_of(const struct sml_worker *w, const struct sml_header *h) {
  const uint32_t s = (uint32_t)h->slot - w->options.slot_base, n = w->options.num_slots;
  if (!is_one_way(w)) return s < n ? s : NONE;
  return s < n / 2 ? s + ((h->phase ^ w->options.first_phase) & 1) * (n / 2) : NONE;
}

/* The number of a slot in its window. */
static inline uint32_t sml_worker_place_of(const struct sml_worker *w, uint32_t s) {
  return is_one_way(w) ? s & (w->options.num_slots / 2 - 1) : s;
}

/* The slot of a one-way window's chunk. */
static inline uint32_t sml_worker_slot_at(const struct sml_worker *w, uint64_t chunk) {
  return (uint32_t)(chunk - w->options.first_chunk) & (w->options.num_slots - 1);
}

static inline bool sml_worker_is_far(const struct sml_worker *w) {
  return sml_congestion_is_far(&w->congestion);
}

/* One way: all that was submitted has a slot, and has left. */
static inline bool sml_worker_is_at_end(const struct sml_worker *w) {
  return w->end_chunk - w->released <= w->options.num_slots && w->fresh.count + w->num_early == 0;
}

/* Results of one class come in their order. */
static inline uint32_t sml_worker_class_of(const struct sml_worker *w, const struct slot *slot) {
  return w->options.way == SML_REDUCE_COPY ? slot->what.owner : 0;
}

/* A result was late, not lost: more packets overtake one than was thought. */
static inline void sml_worker_note_late(struct sml_worker *w) {
  const uint32_t most = sml_min_u32(w->options.num_slots / 2, SML_MOST_THRESHOLD);
  w->gap_threshold = sml_max_u32(SML_FIRST_THRESHOLD, sml_min_u32(2 * w->gap_threshold, most));
}

/* How many chunks may be outstanding. */
static inline uint32_t sml_worker_most_outstanding(const struct sml_worker *w) {
  return sml_min_u32(w->buffer_chunks, w->stalled_chunks);
}

/* Are there enough slots for the order of results to show what was lost? */
static inline bool sml_worker_uses_order(const struct sml_worker *w) {
  return w->options.num_slots >= w->options.order_slots;
}

/* Has a chunk completed that was sent clearly later than at sent_ns? If order shows losses, the answer makes the clock
 * patient, so it must be known before a timeout ends. Otherwise it makes the worker ask, so a repair that the
 * aggregator has begun must have time. */
static inline bool sml_worker_is_overtaken(const struct sml_worker *w, uint64_t sent_ns) {
  const struct sml_rto *rto = &w->rto;
  const uint64_t window_ns = sml_worker_uses_order(w) ? sml_rto_reorder_window(rto) : sml_rto_repair_window(rto);
  return sent_ns + window_ns < w->latest_acked_ns;
}

/* Updates, or their results, that are still on their way. An update that was sent before an answered one is answered,
 * lost, or waits at the aggregator for others (FACK counts so: Mathis and Mahdavi 1996). So a window is never full of
 * chunks that wait for ranks whose windows are full of other chunks. */
static inline uint64_t sml_worker_num_under_way(const struct sml_worker *w) {
  return w->last_order - w->arrived_order;
}

/* Few round trips take longer. */
static inline uint64_t sml_worker_round_trip(const struct sml_worker *w) {
  return w->rto.srtt_ns + w->rto.srtt_ns / 4;
}

static inline bool sml_worker_is_window_full(const struct sml_worker *w) {
  return sml_worker_num_under_way(w) >= sml_congestion_window(&w->congestion);
}

/* ---- worker_stream.c ---- */

static inline struct operation *operation_at(const struct sml_worker *w, uint64_t index) {
  return &w->ring[index & (w->options.num_operations - 1)];
}

/* A chunk is done with. Returns whether the operation has ended in this lane. */
static inline bool sml_worker_finish_chunk(struct sml_worker *w, uint32_t index) {
  struct operation *op = &w->ring[index];
  w->view.chunks_completed++;
  if (--op->chunks_left > 0) return false;
  op->is_done = true;
  while (w->ring_head != w->ring_tail && operation_at(w, w->ring_head)->is_done) w->ring_head++;
  return true;
}

static inline bool sml_worker_contributes(const struct sml_worker *w, const struct slot *slot) {
  if (!is_one_way(w)) return true;
  const uint8_t way = w->ring[slot->operation].range.way;
  return slot->what.is_exponent || sml_contributes(way, slot->what.owner, w->options.rank);
}

/* Gives a slot its chunk, if that is submitted, and queues it when it waits for no exponents. */
void sml_worker_activate(struct sml_worker *w, uint32_t s);
/* The exponents of the group are back: slots that waited for them become ready. */
void sml_worker_release_group(struct sml_worker *w, uint32_t operation, uint32_t group);
/* Takes the first slot from w->early. */
void sml_worker_take_early(struct sml_worker *w);
/* Moves `heard` on, and makes the fences ready that it passes. */
void sml_worker_note_heard(struct sml_worker *w);

/* ---- worker_one_way.c ---- */

void sml_fence_window_init(struct sml_worker *w);
/* A fence is to be sent for the first time: what it says, and how much was lost since the last one begins anew. */
uint8_t sml_fence_window_byte(struct sml_worker *w);
/* An operation begins, where there was none. */
void sml_fence_window_begin(struct sml_worker *w);
/* A fence's result is here, with the greatest byte. trip_ns: since this rank sent its own, 0: not known. */
void sml_fence_window_take(struct sml_worker *w, uint8_t word, uint64_t trip_ns);
/* A result is here; not a repeat. */
static inline void sml_fence_window_note_result(struct sml_worker *w, const struct slot *slot, uint64_t now_ns) {
  struct fence_window *f = &w->window;
  f->longest_ns = sml_max_u64(f->longest_ns, now_ns - sml_max_u64(f->result_ns, slot->first_sent_ns));
  f->result_ns = now_ns;
}
/* Copies of several owners meet in the links down. A rank that sends its own not far ahead of what it has of others
 * keeps these links busy, and their queues short: each repair waits there, and each sum of a reduce-scatter. While a
 * result is repaired, all go on up to the window's end. Where one part has most chunks, others' results say little. */
static inline bool sml_fence_window_paces(const struct sml_worker *w, const struct sml_range *range) {
  return w->options.way == SML_REDUCE_COPY && 2 * range->num_rows <= range->num_data_chunks;
}

/* May the slot's chunk be sent now? The fewer ranks there are, the longer a copy waits in the link up, too. */
static inline bool sml_fence_window_allows(const struct sml_worker *w, const struct slot *slot) {
  if (sml_worker_adapts(w)) return slot->chunk < w->released + w->window.allowed;
  if (!sml_fence_window_paces(w, &w->ring[slot->operation].range)) return true;
  const uint64_t n = w->options.num_contributors, num_slots = w->lane_slots;
  const uint64_t ahead = 5 * num_slots / 16 + 2 * num_slots / (n * n);
  return slot->chunk < sml_max_u64(w->released + 3 * num_slots / 2, w->latest + ahead);
}

/* A result is here, which stays in its slot until the fence. Returns the cookie of an operation that has ended, or
 * NULL. */
void *sml_worker_hold(struct sml_worker *w, uint32_t s, bool is_repeat);

/* ---- worker_questions.c ---- */

/* How long a silence lasts that means that nothing is under way any more. */
uint64_t sml_worker_quiet_time(const struct sml_worker *w);
/* Others wait for this rank at a fence: asks about what it lacks before that. */
void sml_worker_ask_before(struct sml_worker *w, uint32_t fence, uint64_t now_ns);
void sml_worker_gaps_init(struct sml_worker *w);
/* A result came with this grant. */
void sml_worker_note_grant(struct sml_worker *w, uint64_t grant, bool is_repeat, uint64_t now_ns);
/* Takes the grant of the first gap that is due. */
uint64_t sml_worker_take_due_gap(struct sml_worker *w, uint64_t now_ns);
