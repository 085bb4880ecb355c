/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/member_retry.h"

#include <stdio.h>

#include "switchml/switchml.h"

/* A refused JOIN may be about ourselves: an aggregator that was stopped, or cut off, hears of our return
 * before it hears of the end of the connection before. What is refused later is the job, for good. */
#define REFUSED_NS (2 * SML_NS_PER_S)

static double seconds(uint64_t time_ns) {
  return (double)time_ns / (double)SML_NS_PER_S;
}

/* ---- losing the aggregator ---- */

/* An ABORT that names ranks is a rank's, which has failed for good: perhaps it could not follow a successor. */
static bool is_loss(const struct sml_ctl_abort *failure) {
  return failure->status == SML_ERR_AGGREGATOR_LOST && failure->num_ranks == 0;
}

/* An aggregator that goes as soon as it came, or whose data ports are not reached yet. All ranks are told the
 * same, so all come again. */
static bool is_passing(const struct sml_ctl_abort *failure) {
  return is_loss(failure) || failure->status == SML_ERR_UNREACHABLE || failure->status == SML_ERR_MTU;
}

/* Whether a successor may still come, or let this rank in. */
static bool is_worth_another_try(struct sml_member_retry *r, const struct sml_member_situation *s,
                                 const struct sml_ctl_abort *failure, uint64_t now_ns) {
  if (failure->status != SML_ERR_REFUSED || s->was_welcomed) {
    r->first_refused_ns = SML_NEVER; /* it was let in, or nobody was there to refuse it */
    return is_passing(failure);
  }
  r->first_refused_ns = sml_min_u64(r->first_refused_ns, now_ns);
  return now_ns - r->first_refused_ns < REFUSED_NS;
}

/* Lost while it was joined. The first join of all is tried again by the member where nobody answers, and fails where
 * somebody refuses; after a loss it is a join like those of started jobs. */
static bool may_join_anew(struct sml_member_retry *r, const struct sml_member_situation *s,
                          const struct sml_ctl_abort *failure, uint64_t now_ns) {
  if (s->phase != SML_MEMBER_IS_JOINING || r->retry_ns == 0 || now_ns >= s->join_deadline_ns) return false;
  if (r->lost_ns == 0) return is_loss(failure);
  return is_worth_another_try(r, s, failure, now_ns);
}

static bool may_rejoin(struct sml_member_retry *r, const struct sml_member_situation *s,
                       const struct sml_ctl_abort *failure, uint64_t now_ns) {
  if (s->phase == SML_MEMBER_IS_RUNNING || s->phase == SML_MEMBER_IS_DRAINING || s->phase == SML_MEMBER_IS_RENEWING)
    return r->retry_ns != 0 && is_loss(failure) && !s->has_gone_rank;
  if (s->phase != SML_MEMBER_IS_REJOINING || now_ns - r->lost_ns >= r->retry_ns) return false;
  return is_worth_another_try(r, s, failure, now_ns);
}

static void explain(const struct sml_member_retry *r, bool is_joining, struct sml_ctl_abort *failure) {
  char why[sizeof failure->detail];
  memcpy(why, failure->detail, sizeof why);
  if (!is_joining && is_passing(failure)) {
    failure->status = SML_ERR_AGGREGATOR_LOST;
    snprintf(failure->detail, sizeof failure->detail,
             "the aggregator was lost and could not be joined again for %.4g s (retry_ns): %.160s",
             seconds(r->retry_ns), why);
  } else {
    snprintf(failure->detail, sizeof failure->detail, "after the aggregator was lost%s: %.220s",
             is_joining ? " while this rank joined" : "", why);
  }
}

enum sml_member_after_loss sml_member_retry_on_lost(struct sml_member_retry *r, const struct sml_member_situation *s,
                                                    struct sml_ctl_abort *failure, uint64_t now_ns, bool *is_first,
                                                    uint64_t *patience_ns) {
  const bool is_joining = s->phase == SML_MEMBER_IS_JOINING;
  const bool was_lost = is_joining ? r->lost_ns != 0 : s->phase == SML_MEMBER_IS_REJOINING;
  const bool goes_on = is_joining ? may_join_anew(r, s, failure, now_ns) : may_rejoin(r, s, failure, now_ns);
  *is_first = goes_on && !was_lost;
  *patience_ns = 0;
  if (!goes_on) {
    if (was_lost) explain(r, is_joining, failure);
    return SML_MEMBER_ENDS;
  }
  if (*is_first) {
    r->lost_ns = now_ns;
    r->first_refused_ns = SML_NEVER;
  }
  *patience_ns = is_joining ? s->join_deadline_ns - now_ns : r->lost_ns + r->retry_ns - now_ns;
  return is_joining ? SML_MEMBER_JOINS_ANEW : SML_MEMBER_REJOINS;
}

struct sml_member_resume sml_member_retry_resume(const struct sml_member_retry *r, const struct sml_ctl_start *before,
                                                 uint64_t first_unfinished, bool has_no_result) {
  return (struct sml_member_resume){.resume_operation = first_unfinished,
                                    .oldest_operation = r->confirmed_operation,
                                    .has_no_result = has_no_result,
                                    .chunk_bytes = before->chunk_bytes,
                                    .num_slots = before->num_slots,
                                    .deadline_ns = r->lost_ns + r->retry_ns};
}

/* ---- going on ---- */

const char *sml_member_retry_find_fault(const struct sml_member_retry *r, const struct sml_ctl_start *before,
                                        const struct sml_ctl_start *start, uint64_t first_unfinished) {
  if (start->num_lanes != before->num_lanes || start->num_slots != before->num_slots ||
      start->chunk_bytes != before->chunk_bytes)
    return "it gives another number of lanes, slots or bytes a chunk than the one before: start it with the "
           "same options";
  if (start->first_operation > first_unfinished || start->first_operation < r->confirmed_operation)
    return "it begins with an operation that this rank cannot begin with";
  return NULL;
}

uint64_t sml_member_retry_on_started(struct sml_member_retry *r, const struct sml_ctl_start *start) {
  const uint64_t stood_ns = r->silent_since_ns != 0 ? r->silent_since_ns : r->lost_ns;
  r->confirmed_operation = sml_max_u64(r->confirmed_operation, start->first_operation);
  r->silent_since_ns = 0;
  r->num_rejoins++;
  return stood_ns;
}

void sml_member_retry_on_confirmed(struct sml_member_retry *r, uint64_t completed, uint64_t first_unfinished) {
  r->confirmed_operation = sml_max_u64(r->confirmed_operation, sml_min_u64(completed, first_unfinished));
}

/* ---- deadlines ---- */

void sml_member_retry_on_silent(struct sml_member_retry *r, uint64_t since_ns) {
  if (r->retry_ns != 0 && r->silent_since_ns == 0) r->silent_since_ns = since_ns;
}

uint64_t sml_member_retry_on_heard(struct sml_member_retry *r) {
  const uint64_t since_ns = r->silent_since_ns;
  r->silent_since_ns = 0;
  return since_ns;
}

uint64_t sml_member_retry_deadline(uint64_t submitted_ns, uint64_t deadline_ns, uint64_t last_deadline_ns,
                                   uint64_t stood_ns, uint64_t now_ns) {
  const uint64_t since_ns = sml_min_u64(now_ns, sml_max_u64(submitted_ns, stood_ns));
  return deadline_ns + sml_min_u64(now_ns - since_ns, last_deadline_ns - deadline_ns);
}

/* ---- inputs that are kept ---- */

void sml_member_inputs_insert(struct sml_member_inputs *inputs, struct sml_member_input *input) {
  struct sml_member_input *before = inputs->newest;
  if (before != NULL && before->number > input->number) {
    before = inputs->oldest->number < input->number ? inputs->oldest : NULL;
    while (before != NULL && before->next->number < input->number) before = before->next;
  }
  struct sml_member_input **at = before != NULL ? &before->next : &inputs->oldest;
  input->next = *at;
  *at = input;
  if (input->next == NULL) inputs->newest = input;
}

struct sml_member_input *sml_member_inputs_pop(struct sml_member_inputs *inputs, const struct sml_member_retry *r) {
  struct sml_member_input *input = inputs->oldest;
  if (input == NULL || input->number >= r->confirmed_operation || input->reader != NULL) return NULL;
  inputs->oldest = input->next;
  if (inputs->oldest == NULL) inputs->newest = NULL;
  return input;
}

struct sml_member_input *sml_member_inputs_next_replay(const struct sml_member_inputs *inputs,
                                                       const struct sml_member_input *input) {
  struct sml_member_input *next = input == NULL ? inputs->oldest : input->next;
  while (next != NULL && next->reader != NULL) next = next->next;
  return next;
}
