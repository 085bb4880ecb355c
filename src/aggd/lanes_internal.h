/* SPDX-License-Identifier: Apache-2.0
 * What lanes hold: lanes.c opens them and commands their engines, lanes_switch.c has what a switch does instead of
 * them. */
#pragma once

#include <semaphore.h>

#include "aggd/dataplane.h"
#include "aggd/lanes.h"
#include "engine/fanout.h"

#define NUM_EVENT_KINDS 7u

enum verb {
  VERB_OPEN,
  VERB_EXPECT,
  VERB_FORGET,
  VERB_START,
  VERB_START_ELSEWHERE,
  VERB_FOLLOW,
  VERB_DEPART,
  VERB_CLOSE,
  VERB_LOOK
};

/* One a lane: the control thread waits for it before it posts the next. */
struct lane_command {
  struct sml_engine_command base;
  enum verb verb;
  uint16_t job;
  uint32_t epoch, rank, world_size;
  uint64_t nonce, host;
  const struct sml_seal *seal;       /* OPEN, START; the caller's, who waits */
  const uint16_t *contributors;      /* START; likewise */
  const uint64_t *ranks;             /* DEPART; likewise: a bitmap */
  struct sml_addr group;             /* OPEN: num_bytes 0: the job has none */
  struct sml_fanout *fanout;         /* START, may be NULL; the old one, out */
  struct sml_aggregator *aggregator; /* START, CLOSE: the old one, out */
  void *memory;                      /* START: of the new one */
  struct sml_aggregator_options options;
  const struct sml_lane_look *looks; /* LOOK at jobs, or (num_looks 0) */
  uint32_t num_looks, lane;
  struct sml_netio_stats *stats; /* LOOK at the port; the caller's, like looks */
  const struct sml_netio *io;
  struct sml_place *places; /* START_ELSEWHERE, FOLLOW: out */
  bool is_done_well;
  sem_t done;
};

struct lane {
  struct sml_netio *io;
  struct sml_aggregator_engine *engine;
  struct sml_recorder *recorder; /* of what is of no job */
  struct sml_recorder_set job_recorders;
  struct sml_engine_thread thread;
  bool is_running;
  struct lane_command command;
  uint64_t open_jobs[SML_BITMAP_WORDS(SML_MAX_JOBS)];
};

/* What is kept for a job at a switch. */
struct outside {
  uint32_t epoch, num_departed;                   /* num_departed: contributors, until one is reported to block */
  uint32_t departed[SML_SWITCH_MAX_CONTRIBUTORS]; /* 1 + the rank that went, by contributor; 0: none */
  uint16_t *contributors;                         /* [world_size] of each rank; NULL: the job is not started */
  bool is_lost;                                   /* its switch has gone, and nobody was told yet */
  uint32_t num_slots, num_contributors;
  uint32_t *words;   /* [2 * num_slots] of its cells; behind them those read last for signs of life */
  uint64_t signs_ns; /* of that */
  uint32_t num_signs[SML_SWITCH_MAX_CONTRIBUTORS]; /* contributions seen in cells that had not them before */
  uint64_t asked_ns, words_ns;                     /* for them, and when they came; 0: never */
};

struct sml_lanes {
  uint32_t num_lanes, max_datagram_bytes;
  const struct sml_dataplane *dataplane; /* NULL: engines sum */
  uint32_t voucher;                      /* aggd/dataplane.h */
  struct outside outside[SML_MAX_JOBS];
  uint64_t watch_at_ns;            /* 0: there is nothing to watch for */
  uint64_t look_ns, look_until_ns; /* when the switch was asked for figures, and until when it may be asked for more */
  uint64_t counts[SML_NUM_AT_SWITCH], counts_ns; /* what it has told, and when all of that */
  char failure[512];
  struct sml_multicast multicast;
  int event_fd;
  struct lane lanes[SML_MAX_LANES];
  /* One cell a job and kind instead of a queue: it can't fill, and one report of a kind is enough to end
   * a job. A newer epoch takes the cell of an older one. */
  pthread_mutex_t events_lock;
  uint64_t pending[SML_BITMAP_WORDS(SML_MAX_JOBS * NUM_EVENT_KINDS)];
  struct sml_aggregator_event events[SML_MAX_JOBS * NUM_EVENT_KINDS];
};

/* ---- lanes.c ---- */

/* An event of an engine or a switch; any thread. */
void sml_lanes_take_event(void *user, const struct sml_aggregator_event *event);
/* Hands lane->command to the engine's thread, and waits until it is done. */
void sml_lane_post(struct lane *lane);
void sml_lane_await(struct lane *lane);

/* ---- lanes_switch.c ---- */

/* The switch sums: its tables are filled when this returns. False: sml_lanes_failure() has a sentence. */
bool sml_outside_start(struct sml_lanes *lanes, uint16_t job, uint32_t world_size, const struct sml_ctl_start *start);
void sml_outside_depart(struct sml_lanes *lanes, uint16_t job, uint32_t rank);
void sml_outside_close(struct sml_lanes *lanes, uint16_t job);
/* Contributions of the rank that looks at the switch's cells have shown. */
uint64_t sml_outside_count_signs(struct sml_lanes *lanes, uint16_t job, uint32_t rank);
