/* SPDX-License-Identifier: Apache-2.0
 * What an aggregator's engine holds. aggregator_engine.c runs its passes, aggregator_jobs.c keeps its jobs,
 * aggregator_answers.c answers and asks single workers, aggregator_engine_look.c copies what the status shows. */
#pragma once

#include "engine/aggregator_engine.h"
#include "engine/bulk.h"
#include "engine/forged.h"
#include "engine/futile.h"
#include "engine/members.h"
#include "engine/records.h"

#define RX_FRAMES 1024u

struct job {
  uint32_t epoch;
  struct sml_members members;
  bool is_reported; /* one report of MISMATCH or JUMP is enough: the control plane ends the job */
  bool is_blocked_reported;
  bool is_busy; /* this pass had packets for it */
  struct sml_bulk bulk;
  struct sml_futile futile;
  struct sml_seal seal;
  struct sml_aggregator *aggregator; /* NULL until started */
  uint64_t num_results;      /* complete sums; each goes to all */
  uint64_t result_bytes;     /* of each of them once, or of its last update */
  uint64_t seen_results;     /* num_results at the end of the last pass with packets */
  uint64_t num_drops[SML_NUM_DROPS];
  uint64_t progress_ns;   /* the last pass that completed a slot; 0: none did */
  uint64_t opened_ns;     /* the last pass in which slots began to wait while none did before */
  bool was_open;
  uint64_t waits_since_ns; /* since when slot 0 waits for ranks that have not contributed */
  struct sml_waits waits;  /* of slot 0 */
  struct sml_addr group;  /* which HELLOs may ask for; num_bytes 0: none is offered */
  struct sml_fanout *fanout; /* NULL: results go to each peer by itself */
};

/* A frame to be sent at the end of the pass: a completed cell to all ranks, or a stored result to one. */
struct outgoing {
  uint16_t job;
  uint16_t rank;
  uint32_t cell, phase;
  uint8_t wire, reducer; /* of the packet that it answers */
  uint16_t owner;        /* of a sum that only its owner gets, or of a copy; else 0 */
};

struct sml_aggregator_engine {
  struct sml_aggregator_engine_options options;
  struct sml_mailbox mailbox;
  struct job *jobs[SML_MAX_JOBS];
  struct sml_rx_frame frames[RX_FRAMES];
  struct outgoing results[RX_FRAMES], repeats[RX_FRAMES], owned[RX_FRAMES];
  uint32_t num_results, num_repeats;
  struct sml_header marks[RX_FRAMES]; /* the latest update of each contributor in this pass that came marked */
  uint32_t num_marks;
  struct sml_header questions[RX_FRAMES]; /* of one job, to be asked at once */
  uint32_t num_questions;
  uint16_t busy[SML_MAX_JOBS]; /* jobs for which this pass brought packets */
  uint32_t num_busy;
  struct sml_forged forged;
  uint64_t error_tokens_ns; /* token bucket as time: one ERROR costs 1/ERRORS_PER_S s */
  uint64_t missing[SML_BITMAP_WORDS(SML_MAX_WORLD_SIZE)];
  _Atomic uint64_t num_drops[SML_NUM_DROPS]; /* one writer; relaxed: counters only */
  uint64_t now_ns;                           /* of this pass */
  struct sml_recorder *recorder;
  uint8_t wide[UINT16_MAX + 1]; /* lanes of a narrow update */
};

static inline struct sml_recorder *recorder_of(const struct sml_aggregator_engine *e, uint16_t job) {
  if (job >= SML_MAX_JOBS || e->jobs[job] == NULL) return e->recorder;
  return sml_recorder_set_pick(e->options.job_recorders, job, e->recorder);
}

static inline void record(struct sml_aggregator_engine *e, enum sml_trace_event event, uint16_t job,
                          struct sml_record r) {
  sml_record_event(recorder_of(e, job), event, e->now_ns, job, r);
}

static inline uint32_t slot_base_of(const struct job *job) {
  return job->aggregator != NULL ? sml_aggregator_options_of(job->aggregator)->slot_base : 0;
}

/* ---- aggregator_jobs.c ---- */

/* Tells the engine's owner of something that ends the job, or that it must know. */
void sml_engine_report(struct sml_aggregator_engine *e, enum sml_aggregator_event_kind kind, uint16_t number,
                       uint32_t rank_a, uint32_t rank_b, uint32_t slot);

/* ---- aggregator_answers.c ---- */

void sml_engine_send(struct sml_aggregator_engine *e, const struct sml_header *h, const void *payload,
                     const struct sml_seal *seal, const struct sml_addr *to);
void sml_answer_error(struct sml_aggregator_engine *e, const uint8_t *frame, const struct sml_header *h,
                      const struct sml_addr *to, uint64_t now_ns);
/* So many of `num` frames may a contributor get that are no new results. The rest are counted as WRONG_SOURCE. */
uint32_t sml_answer_afford(struct sml_aggregator_engine *e, uint16_t number, uint32_t contributor, uint32_t num,
                           uint32_t frame_bytes);
/* h: num headers, for one contributor. */
void sml_answer_pending(struct sml_aggregator_engine *e, const struct sml_header *h, uint32_t num, uint16_t flags);
/* Just after that, of a one-way window's fence, or chunk that only some contribute to: the others whom it waits for are
 * told, too. */
void sml_answer_missing(struct sml_aggregator_engine *e, const struct sml_header *h);
void sml_answer_note_mark(struct sml_aggregator_engine *e, const struct sml_header *h);
void sml_answer_marks(struct sml_aggregator_engine *e);
void sml_answer_solicit(struct sml_aggregator_engine *e, uint64_t now_ns);
