/* SPDX-License-Identifier: Apache-2.0
 * What an aggregator's engine holds. aggregator_engine.c keeps its jobs and runs its passes, aggregator_engine_look.c
 * shows it to people. */
#ifndef SML_ENGINE_AGGREGATOR_ENGINE_INTERNAL_H
#define SML_ENGINE_AGGREGATOR_ENGINE_INTERNAL_H

#include "engine/aggregator_engine.h"
#include "engine/bulk.h"
#include "engine/forged.h"
#include "engine/futile.h"
#include "engine/members.h"
#include "engine/tags.h"

#define RX_FRAMES 1024u

struct job {
  uint32_t epoch;
  struct sml_members members;
  bool is_reported; /* one MISMATCH or JUMP is enough: the control plane ends the job */
  bool is_blocked_reported;
  bool is_busy; /* packets of this pass were for it */
  struct sml_bulk bulk;
  struct sml_futile futile;
  struct sml_seal seal;
  struct sml_aggregator *aggregator; /* NULL until started */
  uint64_t num_results;      /* complete sums; each goes to all */
  uint64_t seen_results;     /* of them, by the end of the last pass with packets */
  uint64_t num_drops[SML_NUM_DROPS];
  uint64_t progress_ns;   /* the last pass that completed a slot; 0: none did */
  uint64_t opened_ns;     /* the last pass in which slots began to wait where none did before */
  bool was_open;
  struct sml_addr group;  /* that HELLOs may ask for; num_bytes 0: none is offered */
  struct sml_fanout *fanout; /* NULL: results go to each peer by itself */
};

/* A frame to be sent at the end of the pass: a completed cell to all ranks, or a stored one to one. */
struct outgoing {
  uint16_t job;
  uint16_t rank;
  uint32_t cell, phase;
  uint8_t wire, reducer; /* of the packet that it answers */
};

struct sml_aggregator_engine {
  struct sml_aggregator_engine_options options;
  struct sml_mailbox mailbox;
  struct job *jobs[SML_MAX_JOBS];
  struct sml_rx_frame frames[RX_FRAMES];
  const struct sml_rx_frame *frames_end; /* of this pass */
  struct sml_tags tags;
  struct outgoing results[RX_FRAMES], repeats[RX_FRAMES];
  uint32_t num_results, num_repeats;
  struct sml_header marks[RX_FRAMES]; /* the latest update of each contributor in this pass that came marked */
  uint32_t num_marks;
  struct sml_header questions[RX_FRAMES]; /* of one job, to be asked at once */
  uint32_t num_questions;
  uint16_t busy[SML_MAX_JOBS]; /* jobs that this pass brought packets of */
  uint32_t num_busy;
  struct sml_forged forged;
  uint64_t error_tokens_ns; /* token bucket as time: one ERROR costs 1/ERRORS_PER_S s */
  uint64_t missing[SML_BITMAP_WORDS(SML_MAX_WORLD_SIZE)];
  _Atomic uint64_t num_drops[SML_NUM_DROPS]; /* one writer; relaxed: counters only */
  uint64_t now_ns;                           /* of this pass */
  struct sml_recorder *recorder;
  uint8_t wide[UINT16_MAX + 1]; /* lanes of a narrow update */
};

#endif
