/* SPDX-License-Identifier: Apache-2.0
 * Retry (docs/adr/0007-retry.md), as far as a rank decides it: whether a job whose aggregator was lost goes on, from
 * which operation, and by how much its deadlines move. Pure. The owner has the job's state and tells it with each
 * question. */
#pragma once

#include "ctl/member.h"

struct sml_member_retry {
  uint64_t retry_ns;            /* constant. 0: a lost aggregator is the end */
  uint64_t confirmed_operation; /* all ranks have completed those before: nobody asks for their inputs */
  uint64_t lost_ns;             /* rejoining, or joining anew: when the aggregator was lost; else 0 before the start */
  uint64_t first_refused_ns;    /* rejoining: since when this rank is refused; SML_NEVER: it was not */
  uint64_t silent_since_ns;     /* the aggregator is late, and deadlines stand still from then on; 0: it is heard */
  uint64_t num_rejoins;
};

enum sml_member_phase {
  SML_MEMBER_IS_JOINING, /* not known to the caller yet */
  SML_MEMBER_IS_RUNNING,
  SML_MEMBER_IS_DRAINING,  /* the epoch has no room for the next operation: it waits until all begun ones ended */
  SML_MEMBER_IS_RENEWING,  /* EPOCH sent; nothing is outstanding; START awaited */
  SML_MEMBER_IS_REJOINING, /* the aggregator was lost: lanes are closed or being closed, its successor is joined */
  SML_MEMBER_HAS_FAILED,   /* for good */
};
/* What the job is in as its aggregator is lost, or does not let it in again. */
struct sml_member_situation {
  enum sml_member_phase phase;
  bool has_gone_rank;        /* a rank that is gone does not join again */
  bool was_welcomed;         /* on the connection that ended */
  uint64_t join_deadline_ns; /* of the first join */
};
enum sml_member_after_loss {
  SML_MEMBER_ENDS,       /* the job fails: *failure says now that it was rejoining */
  SML_MEMBER_JOINS_ANEW, /* before its start: nothing was promised, nothing summed */
  SML_MEMBER_REJOINS,    /* from now on, if it was not: its lanes are closed, and what they held waits again */
};
/* is_first_out: this loss begins it. patience_ns_out: how long from now on it is tried. */
enum sml_member_after_loss sml_member_retry_on_lost(struct sml_member_retry *r,
                                                    const struct sml_member_situation *situation,
                                                    struct sml_ctl_abort *failure, uint64_t now_ns, bool *is_first_out,
                                                    uint64_t *patience_ns_out);
/* What a rejoining rank asks for. */
struct sml_member_resume sml_member_retry_resume(const struct sml_member_retry *r, const struct sml_ctl_start *before,
                                                 uint64_t first_unfinished, bool has_no_result);

/* What is wrong with the START of a successor; NULL: nothing. The shape decides how operations are cut, so it must be
 * as before in all of them. */
const char *sml_member_retry_find_fault(const struct sml_member_retry *r, const struct sml_ctl_start *before,
                                        const struct sml_ctl_start *start, uint64_t first_unfinished);
/* The successor's START is followed. Returns since when deadlines stood still. */
uint64_t sml_member_retry_on_started(struct sml_member_retry *r, const struct sml_ctl_start *start);

/* The aggregator says what all have completed, of which this rank has all before first_unfinished. */
void sml_member_retry_on_confirmed(struct sml_member_retry *r, uint64_t completed, uint64_t first_unfinished);
/* The aggregator is late; it is heard again. Heard returns since when deadlines stood still; 0: they did not. */
void sml_member_retry_on_silent(struct sml_member_retry *r, uint64_t since_ns);
uint64_t sml_member_retry_on_heard(struct sml_member_retry *r);
/* A deadline after it stood still from stood_ns on, or since the operation was submitted; never beyond what the
 * operation has in all, last_deadline_ns. */
uint64_t sml_member_retry_deadline(uint64_t submitted_ns, uint64_t deadline_ns, uint64_t last_deadline_ns,
                                   uint64_t stood_ns, uint64_t now_ns);

/* ---- inputs that are kept ---- */

/* The copy of an input. Within the owner's. */
struct sml_member_input {
  struct sml_member_input *next; /* by their numbers */
  uint64_t number;               /* of its operation; of a batch: of the first one in it */
  const void *reader;            /* of the copy: an operation that has not ended here, or is done again; NULL: none */
};
struct sml_member_inputs {
  struct sml_member_input *oldest, *newest;
};
void sml_member_inputs_insert(struct sml_member_inputs *inputs, struct sml_member_input *input);
/* Takes the oldest one off the list, if all ranks are known to have the result and nobody reads it; else NULL. */
struct sml_member_input *sml_member_inputs_pop(struct sml_member_inputs *inputs, const struct sml_member_retry *r);
/* After a rejoin: the first one behind `input` (NULL: of all) that other ranks may need and nobody reads; or NULL. */
struct sml_member_input *sml_member_inputs_next_replay(const struct sml_member_inputs *inputs,
                                                       const struct sml_member_input *input);
