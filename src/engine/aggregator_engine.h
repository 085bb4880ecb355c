/* SPDX-License-Identifier: Apache-2.0
 * The aggregator's engine: one thread's poll loop over one netio, holding lane l of every job. It
 * joins core (verdicts), quant (sums) and netio (frames). Functions taking an engine run on its
 * thread (through a command) or in a single-threaded test. */
#ifndef SML_ENGINE_AGGREGATOR_ENGINE_H
#define SML_ENGINE_AGGREGATOR_ENGINE_H

#include "core/aggregator.h"
#include "engine/engine.h"
#include "quant/quant.h"
#include "trace/recorder_set.h"

struct sml_aggregator_engine;
struct sml_fanout;

enum sml_aggregator_event_kind {
  SML_EVENT_MISMATCH, /* ranks a and b, or those they contribute for, put different operations into one slot */
  SML_EVENT_BLOCKED,  /* an operation waits for departed rank a (seen when rank b contributed, or at depart) */
  SML_EVENT_JUMP,     /* rank a sent a phase that no honest member can send */
  SML_EVENT_FORGED,   /* packets came with a wrong MAC: num_packets since the last of these, the latest from source */
  SML_EVENT_DEAF,     /* rank a does not hear the job's group: results go to it by unicast from now on */
  SML_EVENT_MOVED,    /* rank a of a job that a switch sums is at another port of it now (slot), or has another MAC */
  SML_EVENT_HEARD,    /* a switch does not know a host at port slot of it; its MAC is rank_a (upper bits), rank_b; job
                         is any, but the same for the same MAC */
};
struct sml_aggregator_event {
  enum sml_aggregator_event_kind kind;
  uint16_t job;
  uint32_t epoch;
  uint32_t rank_a, rank_b; /* ranks, not contributors: those that lead, or the one that departed */
  uint32_t slot; /* relative to the job's window; MOVED, HEARD: the port */
  uint64_t num_packets;   /* FORGED */
  struct sml_addr source; /* FORGED; it may be forged itself */
};

struct sml_aggregator_engine_options {
  struct sml_netio *io; /* owned by the caller */
  const struct sml_quant_kernels *kernels;
  uint32_t lane;
  bool is_switch_format; /* of all its jobs: docs/PROTOCOL.md "Switch format" */
  bool is_beside_switch; /* a switch sums; HELLOs come through it, and what it cannot do itself */
  uint32_t voucher;      /* in the crc32c of what the switch wrote: nobody else knows it */
  struct sml_recorder *recorder; /* the caller's; NULL: nothing is recorded */
  struct sml_recorder_set *job_recorders; /* the caller's: events of jobs go there; NULL: to the former */
  /* Called on the engine's thread; must not block. */
  void (*on_event)(void *user, const struct sml_aggregator_event *event);
  void *user;
};
struct sml_aggregator_engine *sml_aggregator_engine_create(const struct sml_aggregator_engine_options *options);
void sml_aggregator_engine_destroy(struct sml_aggregator_engine *engine); /* jobs must be closed */
uint64_t sml_aggregator_engine_run_once(void *engine, uint64_t now_ns);
struct sml_mailbox *sml_aggregator_engine_mailbox(struct sml_aggregator_engine *engine);

/* A job's life in an engine: open (HELLOs are answered), start (updates are summed), maybe start again
 * with a new epoch, close. `aggregator` memory is the caller's, given back by close or by a second start
 * (returned: free it). job numbers are the caller's choice, < SML_MAX_JOBS, one use at a time. seal: the
 * epoch's, copied. contributors: of each rank, copied, numbered by
 * their lowest ranks, which send for them; NULL: each rank for itself. HELLOs are ranks' and come before. */
#define SML_MAX_JOBS 1024u
bool sml_aggregator_engine_open_job(struct sml_aggregator_engine *engine, uint16_t job, uint32_t epoch,
                                    uint32_t world_size, const struct sml_seal *seal); /* false: no memory */
/* Memory grows with ranks that have come. False: there is none. */
bool sml_aggregator_engine_expect_hello(struct sml_aggregator_engine *engine, uint16_t job, uint32_t rank,
                                        uint64_t nonce);
/* It has gone before the start. */
void sml_aggregator_engine_forget_rank(struct sml_aggregator_engine *engine, uint16_t job, uint32_t rank);
struct sml_aggregator *sml_aggregator_engine_start_job(struct sml_aggregator_engine *engine, uint16_t job,
                                                       uint32_t epoch, struct sml_aggregator *aggregator,
                                                       const uint16_t *contributors,
                                                       const struct sml_seal *seal);
/* The start of a job that a switch sums: the places of its contributors' lowest ranks, as their HELLOs came by
 * ([num_contributors], out). False: one has sent none. */
struct sml_place {
  struct sml_addr addr;
  uint64_t mac;  /* 48 bits */
  uint16_t port; /* of the switch */
};
bool sml_aggregator_engine_start_elsewhere(struct sml_aggregator_engine *engine, uint16_t job, uint32_t epoch,
                                           const uint16_t *contributors, struct sml_place *places_out);
/* The places of a job that was started so, as the latest HELLOs came by. */
void sml_aggregator_engine_places(const struct sml_aggregator_engine *engine, uint16_t job,
                                  struct sml_place *places_out);
/* The multicast group of an open job's lane: HELLOs that ask for it are echoed there. */
void sml_aggregator_engine_offer_group(struct sml_aggregator_engine *engine, uint16_t job,
                                       const struct sml_addr *group);
/* Results of a started job go that way (engine/fanout.h; the engine's until it is given back: by the next call, or
 * destroyed with the job). NULL: to each by itself. */
struct sml_fanout *sml_aggregator_engine_use_group(struct sml_aggregator_engine *engine, uint16_t job,
                                                   struct sml_fanout *fanout);
/* The ranks of the bitmap will not contribute any more; their packets are refused. Operations that need them raise
 * BLOCKED. */
void sml_aggregator_engine_depart(struct sml_aggregator_engine *engine, uint16_t job, const uint64_t *ranks);
struct sml_aggregator *sml_aggregator_engine_close_job(struct sml_aggregator_engine *engine, uint16_t job);

/* What a job has done and holds, for people who ask. Figures of several lanes add up: the engine adds its own to what
 * is there. Traffic is of ranks that lead, since the job was opened. */
struct sml_traffic {
  uint64_t num_packets, num_bytes; /* UPDATEs and PROBEs that were the job's: datagram payloads */
  uint64_t num_retransmissions;    /* of them, those that said they were */
  uint64_t num_repeats;            /* results sent again to this one */
  uint64_t num_hellos;             /* of any rank, like the next */
  uint32_t hello_bytes;            /* the largest of them: a datagram of that size came from there */
};
struct sml_rank_look {
  struct sml_traffic traffic;
  uint32_t slots_missing; /* that wait for it, or for those that it leads */
};
/* For how long chunks waited in their slot, from the first contribution to the last. num[i]: for more than bound i - 1,
 * and at most bound i; the last one is without a bound. */
#define SML_NUM_WAITS 21u
#define SML_WAIT_BOUND_NS(i) (UINT64_C(16000) << (i))
struct sml_waits {
  uint64_t num[SML_NUM_WAITS], total_ns;
};
static inline void sml_waits_note(struct sml_waits *waits, uint64_t wait_ns) {
  const uint64_t above = (wait_ns - (wait_ns > 0)) / SML_WAIT_BOUND_NS(0);
  const uint32_t i = above == 0 ? 0 : 64u - (uint32_t)__builtin_clzll(above);
  waits->num[sml_min_u32(i, SML_NUM_WAITS - 1)]++;
  waits->total_ns += wait_ns;
}
#define SML_LOOK_CELLS 256u
#define SML_CELL_UNUSED 0u
#define SML_CELL_MOST_WAITING 8u /* 1 .. this: waiting; the share of the contributions that are there, in eighths */
#define SML_CELL_COMPLETE 9u     /* holds a result */
struct sml_job_look {
  uint32_t world_size, num_lanes; /* the caller's; it sets all else to 0 */
  /* The caller's: a switch sums. Then nothing is known of traffic, results and the map; of slots, if it answers. */
  bool is_at_switch, has_slots;
  uint32_t lane;                  /* the caller's, before each lane: its number */
  struct sml_rank_look *ranks;    /* [world_size] */
  uint64_t num_results;           /* slots completed */
  uint64_t num_drops[SML_NUM_DROPS];
  uint64_t progress_ns; /* when a slot was completed last; 0: never */
  uint64_t opened_ns;   /* when slots last began to wait in a lane where none did; 0: never */
  struct sml_waits waits; /* of slot 0 of each lane: a sample */
  uint32_t slots_waiting, least_contributions, most_contributions; /* the latter of those that wait */
  uint32_t waiting_lane, waiting_slot, waiting_phase; /* of those with the least contributions the first */
  uint32_t num_cells;
  uint8_t cells[SML_LOOK_CELLS]; /* a map of the slots; where there are more, a cell shows the emptiest waiting one */
};
void sml_aggregator_engine_look(struct sml_aggregator_engine *engine, uint16_t job, struct sml_job_look *look);
/* Packets of the rank that were added to a sum, of an open job: what somebody sends again is not among them. On the
 * thread that opens and closes jobs, without a command. */
uint64_t sml_aggregator_engine_contributions(const struct sml_aggregator_engine *engine, uint16_t job, uint32_t rank);

/* What an engine has by itself, for each job that is open, and for each of its ranks that has come, at most. */
struct sml_aggregator_engine_sizes {
  size_t engine_bytes, job_bytes, rank_bytes;
};
struct sml_aggregator_engine_sizes sml_aggregator_engine_sizes(void);

/* NULL, or which invariant of some job's state is broken. For tests. */
const char *sml_aggregator_engine_find_violation(const struct sml_aggregator_engine *engine);
/* Sums of the engine's counters; num_drops[SML_NUM_DROPS] by reason. */
void sml_aggregator_engine_drops(const struct sml_aggregator_engine *engine, uint64_t *num_drops);

#endif
