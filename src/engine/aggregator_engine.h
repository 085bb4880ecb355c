/* SPDX-License-Identifier: Apache-2.0
 * The aggregator's engine: one thread's poll loop over one netio, with lane l of every job. It
 * joins core (verdicts), quant (sums) and netio (frames). Functions that take an engine run on its
 * thread (through a command) or in a single-threaded test. */
#pragma once

#include "core/aggregator.h"
#include "engine/engine.h"
#include "quant/quant.h"
#include "trace/recorder_set.h"

struct sml_aggregator_engine;
struct sml_fanout;

enum sml_aggregator_event_kind {
  SML_EVENT_MISMATCH, /* ranks a and b, or ranks for which they contribute, put different operations into one slot */
  SML_EVENT_BLOCKED,  /* an operation waits for departed rank a (seen when rank b contributed, or at depart) */
  SML_EVENT_JUMP,     /* rank a sent a phase that no honest member can send */
  SML_EVENT_FORGED,   /* packets came with a wrong MAC: num_packets since the last such event, the latest from source */
  SML_EVENT_DEAF,     /* rank a does not hear the job's group: it gets results by unicast from now on */
  SML_EVENT_MOVED,    /* a switch sums the job: rank a is at another of its ports now (slot), or has another MAC */
  SML_EVENT_HEARD,    /* a switch does not know a host at its port `slot`, whose MAC is rank_a (upper bits) and rank_b;
                         job is any number, but always the same for one MAC */
};
struct sml_aggregator_event {
  enum sml_aggregator_event_kind kind;
  uint16_t job;
  uint32_t epoch;
  uint32_t rank_a, rank_b; /* ranks, not contributors: the leads, or the rank that departed */
  uint32_t slot; /* relative to the job's window; MOVED, HEARD: the port */
  uint64_t num_packets;   /* FORGED */
  struct sml_addr source; /* FORGED; it may be forged itself */
};

struct sml_aggregator_engine_options {
  struct sml_netio *io; /* owned by the caller */
  const struct sml_quant_kernels *kernels;
  uint32_t lane;
  bool is_switch_format; /* of all its jobs: docs/PROTOCOL.md "Switch format" */
  bool is_beside_switch; /* a switch sums; it passes on HELLOs, and what it cannot do itself */
  uint32_t voucher;      /* in the crc32c of what the switch wrote: nobody else knows it */
  struct sml_recorder *recorder; /* the caller's; NULL: nothing is recorded */
  struct sml_recorder_set *job_recorders; /* the caller's, for events of jobs; NULL: they go to `recorder` */
  /* Called on the engine's thread; must not block. */
  void (*on_event)(void *user, const struct sml_aggregator_event *event);
  void *user;
};
struct sml_aggregator_engine *sml_aggregator_engine_create(const struct sml_aggregator_engine_options *options);
void sml_aggregator_engine_destroy(struct sml_aggregator_engine *engine); /* jobs must be closed */
uint64_t sml_aggregator_engine_run_once(void *engine, uint64_t now_ns);
struct sml_mailbox *sml_aggregator_engine_mailbox(struct sml_aggregator_engine *engine);

/* A job's life in an engine: open (it answers HELLOs), start (it sums updates), perhaps start again with a new epoch,
 * close. The memory of `aggregator` is the caller's; close, or a second start, returns it to be freed. The caller
 * chooses job numbers, < SML_MAX_JOBS, for one job at a time. seal: the epoch's, copied. contributors: the contributor
 * of each rank, copied. Contributors are numbered in the order of their lowest ranks, which send for them; NULL: each
 * rank contributes by itself. HELLOs are of ranks, and come before the start. */
#define SML_MAX_JOBS 1024u
bool sml_aggregator_engine_open_job(struct sml_aggregator_engine *engine, uint16_t job, uint32_t epoch,
                                    uint32_t world_size, const struct sml_seal *seal); /* false: no memory */
/* Memory grows with the ranks that have come. False: no memory. */
bool sml_aggregator_engine_expect_hello(struct sml_aggregator_engine *engine, uint16_t job, uint32_t rank,
                                        uint64_t nonce);
/* The rank that is expected is at this host (sml_addr_host), as somebody has seen. 0, the default: anywhere. If its
 * HELLO comes from elsewhere, its address may be forged: there it is repeated and told little more than it has sent. */
void sml_aggregator_engine_know_host(struct sml_aggregator_engine *engine, uint16_t job, uint32_t rank, uint64_t host);
/* The rank has gone before the start. */
void sml_aggregator_engine_forget_rank(struct sml_aggregator_engine *engine, uint16_t job, uint32_t rank);
struct sml_aggregator *sml_aggregator_engine_start_job(struct sml_aggregator_engine *engine, uint16_t job,
                                                       uint32_t epoch, struct sml_aggregator *aggregator,
                                                       const uint16_t *contributors,
                                                       const struct sml_seal *seal);
/* Starts a job that a switch sums. places_out [num_contributors]: where the HELLOs of the contributors' lowest ranks
 * came from. False: one has sent none. */
struct sml_place {
  struct sml_addr addr;
  uint64_t mac;  /* 48 bits */
  uint16_t port; /* of the switch */
};
bool sml_aggregator_engine_start_elsewhere(struct sml_aggregator_engine *engine, uint16_t job, uint32_t epoch,
                                           const uint16_t *contributors, struct sml_place *places_out);
/* The places of such a job, as its latest HELLOs show. */
void sml_aggregator_engine_places(const struct sml_aggregator_engine *engine, uint16_t job,
                                  struct sml_place *places_out);
/* The multicast group of an open job's lane: HELLOs that ask for it are echoed to it. */
void sml_aggregator_engine_offer_group(struct sml_aggregator_engine *engine, uint16_t job,
                                       const struct sml_addr *group);
/* Results of a started job go to this fanout (engine/fanout.h). It belongs to the engine until the next call returns
 * it, or it is destroyed with the job. NULL: to each contributor by itself. */
struct sml_fanout *sml_aggregator_engine_use_group(struct sml_aggregator_engine *engine, uint16_t job,
                                                   struct sml_fanout *fanout);
/* The ranks of the bitmap will not contribute any more. Their packets are dropped, and operations that need them raise
 * BLOCKED. */
void sml_aggregator_engine_depart(struct sml_aggregator_engine *engine, uint16_t job, const uint64_t *ranks);
struct sml_aggregator *sml_aggregator_engine_close_job(struct sml_aggregator_engine *engine, uint16_t job);

/* What a job has done and holds, for the status. Counts of several lanes add up: the engine adds its own to what is
 * there. Traffic is of leads, since the job was opened. */
struct sml_traffic {
  uint64_t num_packets, num_bytes; /* UPDATEs and PROBEs that belonged to the job: datagram payloads */
  uint64_t num_retransmissions;    /* those of them with the flag RETRANSMISSION */
  uint64_t num_repeats;            /* results that were sent again to this rank */
  uint64_t num_hellos;             /* of any rank, not only leads; so is the next */
  uint32_t hello_bytes;            /* the size of the largest one: such a datagram came through */
};
struct sml_rank_look {
  struct sml_traffic traffic;
  uint32_t slots_missing;  /* slots that wait for this rank, or for those that it leads */
  uint32_t sums_missing;   /* those of them that are an all-reduce's */
  uint32_t oldest_missing; /* one-way windows whose oldest waiting slot is one of them: it waits for nobody in these */
};
/* How long chunks waited in their slot, from the first contribution to the last. num[i] counts those that waited longer
 * than bound i - 1, and at most bound i; the last one has no bound. */
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
#define SML_CELL_MOST_WAITING 8u /* 1 .. this: waiting; the share of contributions that have come, in eighths */
#define SML_CELL_COMPLETE 9u     /* holds a result */
struct sml_job_look {
  uint32_t world_size, num_lanes; /* set by the caller, who sets all else to 0 */
  /* Set by the caller: a switch sums. Then traffic, results and the map are unknown, and slots unless it answers. */
  bool is_at_switch, has_slots;
  uint32_t lane;                  /* set by the caller before each lane: its number */
  struct sml_rank_look *ranks;    /* [world_size] */
  uint64_t num_results;           /* slots completed */
  uint64_t num_drops[SML_NUM_DROPS];
  uint64_t progress_ns; /* when a slot was last completed; 0: never */
  uint64_t opened_ns;   /* when slots last began to wait in a lane where none did; 0: never */
  struct sml_waits waits; /* a sample: slot 0 of each lane */
  uint32_t slots_waiting, least_contributions, most_contributions; /* contributions: in slots that wait */
  uint32_t waiting_lane, waiting_slot, waiting_phase; /* the first slot with the least contributions */
  uint32_t num_cells;
  uint8_t cells[SML_LOOK_CELLS]; /* a map of the slots. A cell that stands for several shows the emptiest that waits */
};
void sml_aggregator_engine_look(struct sml_aggregator_engine *engine, uint16_t job, struct sml_job_look *look);
/* How many packets of the rank were added to a sum; repeats are not among them. The job is open. It is asked on the
 * thread that opens and closes jobs, without a command. */
uint64_t sml_aggregator_engine_contributions(const struct sml_aggregator_engine *engine, uint16_t job, uint32_t rank);

/* The most memory that an engine has for itself, for each open job, and for each rank that has come. */
struct sml_aggregator_engine_sizes {
  size_t engine_bytes, job_bytes, rank_bytes;
};
struct sml_aggregator_engine_sizes sml_aggregator_engine_sizes(void);

/* NULL, or which invariant of some job's state is broken. For tests. */
const char *sml_aggregator_engine_find_violation(const struct sml_aggregator_engine *engine);
/* Sums of the engine's counters; num_drops[SML_NUM_DROPS] by reason. */
void sml_aggregator_engine_drops(const struct sml_aggregator_engine *engine, uint64_t *num_drops);
