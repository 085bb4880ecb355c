/* SPDX-License-Identifier: Apache-2.0
 * A rank's half of a job, over all its aggregators (docs/PROTOCOL.md sections 8 and 9): what START, epochs, lost ranks
 * and lost aggregators mean for the job and its operations. At each aggregator the rank has a member (ctl/member.h),
 * whose news come in here.
 *
 * Pure: an event goes in, and a step comes out, which is what the owner does next. A step that ends the job comes with
 * *failure. The job has not failed until the owner gives that to sml_member_job_fail(), to which it may add what it
 * knows. */
#pragma once

#include "ctl/member_retry.h"
#include "switchml/switchml.h"

#define SML_MEMBER_OF_DAEMON UINT32_MAX /* an aggregator that is in no rank's process */

enum sml_member_step {
  SML_MEMBER_STEP_NONE,
  SML_MEMBER_STEP_FAIL,      /* the job, on all ranks: the aggregators are told */
  SML_MEMBER_STEP_END,       /* the job, of which the aggregator knows that it has failed */
  SML_MEMBER_STEP_OPEN,      /* lanes, as `start` says: on_opened() */
  SML_MEMBER_STEP_RESTART,   /* open lanes, for a new epoch: on_opened() */
  SML_MEMBER_STEP_GO_ON,     /* with operations that wait */
  SML_MEMBER_STEP_REPLAY,    /* the same, after those that were inserted for inputs that other ranks may need */
  SML_MEMBER_STEP_RENEW,     /* EPOCH goes to each aggregator */
  SML_MEMBER_STEP_JOIN_ANEW, /* the member that was lost */
  SML_MEMBER_STEP_REJOIN,    /* lanes are closed, if it was not rejoining; then sml_member_job_resume() */
};

/* An operation, as the job orders it. Within the owner's. */
struct sml_member_operation {
  struct sml_member_operation *prev, *next;
  uint64_t number;
  uint64_t submitted_ns, deadline_ns;
  uint64_t last_deadline_ns; /* deadline_ns moves while the job rejoins, but not beyond this */
  bool is_begun;             /* the method holds it */
  bool is_replay;            /* it has completed here, and is done again for other ranks */
  bool was_warned;
};

/* Numbers that are taken for operations that are inserted later: from `number` on, before `end`. Within the owner's. */
struct sml_member_reservation {
  struct sml_member_reservation *next;
  uint64_t number, end;
};

/* One of the aggregators that a job shares its lanes among. */
struct sml_member_shard {
  struct sml_member *member;
  uint32_t process_rank;       /* the rank whose process it is in; SML_MEMBER_OF_DAEMON: none */
  struct sml_ctl_start start;  /* the last one */
  bool is_started;             /* the next epoch's START is in; others' are not */
  bool is_asked, has_reported; /* whom it waits for; what it said */
  struct sml_ctl_report report;
  uint64_t silent_since_ns; /* it is late; 0: it is not */
};

struct sml_member_job {
  /* constant */
  char name[SML_JOB_NAME_BYTES];
  uint32_t rank, world_size;
  uint32_t num_shards; /* 0: world size 1 */
  struct sml_member_shard *shards;

  enum sml_member_phase phase;
  sml_error error; /* of the first failure; constant once it HAS_FAILED */
  bool has_gone_rank;
  struct sml_ctl_rank_gone gone; /* the first of them */
  struct sml_ctl_start start;    /* all shards' together. The shape stays when the epoch changes */
  struct sml_member_retry retry;
  uint64_t asked_ns; /* when the aggregators were asked last whom they wait for */

  struct sml_member_operation *oldest, *newest; /* that have not ended, by their numbers */
  struct sml_member_operation *first_waiting;   /* of them, that the method does not hold: the tail of that list */
  uint32_t num_begun;                           /* of them, that the method holds */
  uint64_t next_number;
  struct sml_member_reservation *reserved; /* that have numbers left, in order: all behind the first of them wait */
};

/* ---- operations ---- */

void sml_member_job_insert(struct sml_member_job *j, struct sml_member_operation *operation);
void sml_member_job_remove(struct sml_member_job *j, struct sml_member_operation *operation);
/* Takes the next numbers; the next of them that is left, for an operation. If the job fails, what is left lapses. */
void sml_member_job_reserve(struct sml_member_job *j, struct sml_member_reservation *r, uint64_t num_numbers);
uint64_t sml_member_job_take_reserved(struct sml_member_job *j, struct sml_member_reservation *r);
/* The next one for a method that takes max_begun at a time; NULL: none. Begun: the method has it. */
struct sml_member_operation *sml_member_job_next(const struct sml_member_job *j, uint32_t max_begun);
void sml_member_job_begin(struct sml_member_job *j, struct sml_member_operation *operation);
/* The method is done with it. False: its lanes were closed, and it waits again. Else it is removed. */
bool sml_member_job_end(struct sml_member_job *j, struct sml_member_operation *operation, bool is_ok);
/* The first operation that has not completed here, without a gap before it. */
uint64_t sml_member_job_first_unfinished(const struct sml_member_job *j);

/* ---- failing ---- */

/* Makes a failure; ranks are added by the caller. */
__attribute__((format(printf, 2, 3))) struct sml_ctl_abort sml_member_failure(sml_status status, const char *format,
                                                                              ...);
/* The first one wins: false if there was another. `operation` is the number of the one that failed. */
bool sml_member_job_fail(struct sml_member_job *j, const struct sml_ctl_abort *failure, uint64_t operation);

/* ---- events ---- */

enum sml_member_step sml_member_job_on_started(struct sml_member_job *j, uint32_t shard,
                                               const struct sml_ctl_start *start, struct sml_ctl_abort *failure);
/* After OPEN and RESTART. */
enum sml_member_step sml_member_job_on_opened(struct sml_member_job *j, bool is_open, uint64_t now_ns,
                                              struct sml_ctl_abort *failure);
/* is_host: an aggregator was in its process. */
enum sml_member_step sml_member_job_on_gone(struct sml_member_job *j, const struct sml_ctl_rank_gone *gone,
                                            bool is_host, struct sml_ctl_abort *failure);
/* That rank, or, if it is not the first one that is gone, just this one: an operation can't end for want of it. */
struct sml_ctl_abort sml_member_job_lost_failure(const struct sml_member_job *j, uint32_t rank);
/* A member's join or connection has ended with *failure, which is explained further. True: it is the loss of a rank, in
 * whose process the aggregator was. */
bool sml_member_job_is_host_lost(const struct sml_member_job *j, uint32_t shard, const struct sml_ctl_abort *failure,
                                 struct sml_ctl_rank_gone *gone_out);
/* Else. is_first_out: this loss begins it. patience_ns_out: how long from now on it is tried to join again. */
enum sml_member_step sml_member_job_on_lost(struct sml_member_job *j, struct sml_ctl_abort *failure, uint64_t now_ns,
                                            bool *is_first_out, uint64_t *patience_ns_out);
/* REJOIN: no operation is begun, and the owner has removed replays. All wait again. has_no_result: of any operation. */
void sml_member_job_resume(struct sml_member_job *j, bool has_no_result, uint64_t now_ns);
/* An operation is called. */
enum sml_member_step sml_member_job_on_call(const struct sml_member_job *j, struct sml_ctl_abort *failure);
/* The epoch has no room for the next operation; is_new: nor has one that has just begun. */
enum sml_member_step sml_member_job_on_full(struct sml_member_job *j, bool is_new, struct sml_ctl_abort *failure);
/* A moment has passed: RENEW is due once nothing is begun in a full epoch. */
enum sml_member_step sml_member_job_on_pass(struct sml_member_job *j, struct sml_ctl_abort *failure);
void sml_member_job_on_confirmed(struct sml_member_job *j, uint64_t completed);
/* The aggregator is late; it is heard again. In a job with retry deadlines stand still in between. */
void sml_member_job_on_silent(struct sml_member_job *j, uint32_t shard, uint64_t since_ns);
void sml_member_job_on_heard(struct sml_member_job *j, uint32_t shard, uint64_t now_ns);
void sml_member_job_on_reported(struct sml_member_job *j, uint32_t shard, const struct sml_ctl_report *report);
