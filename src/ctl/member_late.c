/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/member_late.h"

#include <stdarg.h>
#include <stdio.h>

#include "ctl/contributors.h"

#define WARN_NS (10 * SML_NS_PER_S)
/* A failure that names nobody helps nobody: who knows of no rank waits that long for the aggregators' reports, and who
 * waits for its lead longer than that. */
#define REPORT_GRACE_NS (1000 * SML_NS_PER_MS)
#define LEAD_GRACE_NS (1500 * SML_NS_PER_MS)
/* An abort comes on the control connection at about the same time as the data port's ERROR: it knows why. */
#define ERROR_REPLY_GRACE_NS (2 * SML_NS_PER_S)
#define JOIN_NS (10 * SML_NS_PER_S) /* what failed before is no reason for a join to fail */
#define MANY_BYTES 360u             /* of a detail: no further aggregator's report begins behind it */

__attribute__((format(printf, 2, 3))) static void add(struct sml_ctl_abort *failure, const char *format, ...) {
  const size_t used = strlen(failure->detail);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(failure->detail + used, sizeof failure->detail - used, format, arguments);
  va_end(arguments);
}

static double seconds(uint64_t ns) {
  return (double)ns / 1e9;
}

/* ---- asking ---- */

void sml_member_late_ask(struct sml_member_job *j, uint64_t now_ns) {
  j->asked_ns = now_ns;
  for (uint32_t s = 0; s < j->num_shards; s++) {
    struct sml_member_shard *shard = &j->shards[s];
    shard->is_asked = shard->member->state == SML_MEMBER_RUNNING;
    shard->has_reported = false;
    if (shard->is_asked) sml_member_ask(shard->member);
  }
}

bool sml_member_late_has_reports(const struct sml_member_job *j) {
  bool has_all = true;
  for (uint32_t s = 0; s < j->num_shards; s++) has_all &= !j->shards[s].is_asked || j->shards[s].has_reported;
  return has_all;
}

/* Asks when it is time to, for something that is due then and began at began_ns; says when to come again. */
static void ask_before(struct sml_member_job *j, uint64_t began_ns, uint64_t due_ns, uint64_t now_ns,
                       struct sml_member_late *late) {
  const uint64_t before_ns =
      due_ns <= began_ns || due_ns == SML_NEVER ? 0 : sml_min_u64(SML_MEMBER_ASK_NS, (due_ns - began_ns) / 2);
  const bool is_time = before_ns != 0 && now_ns >= due_ns - before_ns;
  late->look_ns = sml_min_u64(late->look_ns, is_time ? due_ns : due_ns - before_ns);
  /* Not for each of many operations: an answer may be that old. */
  if (!is_time || j->asked_ns + before_ns > now_ns) return;
  sml_member_late_ask(j, now_ns);
  late->has_asked = true;
}

/* ---- deadlines ---- */

static bool has_begun(const struct sml_member_job *j, const struct sml_member_sight *sight) {
  return sight->has_slot && (j->phase != SML_MEMBER_IS_RUNNING || sight->wait.kind != SML_WAIT_NONE_BEGUN);
}

/* Whether this rank itself can say for whom it waits, whatever aggregators say. */
static bool knows_ranks(const struct sml_member_job *j, const struct sml_member_sight *sight) {
  const bool is_here = sight->wait.kind == SML_WAIT_RANKS || sight->wait.kind == SML_WAIT_LEAD;
  return j->phase == SML_MEMBER_IS_RUNNING && is_here;
}

/* Whether an operation that is due waits a little longer, for what aggregators say. */
static bool waits_for_reports(struct sml_member_job *j, const struct sml_member_sight *sight,
                              const struct sml_member_operation *op, uint64_t now_ns, struct sml_member_late *late) {
  const uint64_t until_ns = late->deadline_ns + REPORT_GRACE_NS;
  if (now_ns >= until_ns || j->phase == SML_MEMBER_IS_REJOINING || knows_ranks(j, sight)) return false;
  if (j->asked_ns < op->submitted_ns) {
    sml_member_late_ask(j, now_ns);
    late->has_asked = true;
  }
  if (sml_member_late_has_reports(j)) return false;
  late->look_ns = sml_min_u64(late->look_ns, until_ns);
  return true;
}

/* While there is no aggregator, in a job with retry, deadlines stand still: they are moved afterwards. */
static uint64_t deadline_of(const struct sml_member_job *j, const struct sml_member_sight *sight,
                            const struct sml_member_operation *op) {
  if (sight->wait.kind == SML_WAIT_LEAD) /* it is late itself, and knows for whom */
    return op->deadline_ns + sml_min_u64(LEAD_GRACE_NS, SML_NEVER - 1 - op->deadline_ns);
  return j->phase == SML_MEMBER_IS_REJOINING || j->retry.silent_since_ns != 0 ? op->last_deadline_ns : op->deadline_ns;
}

struct sml_member_late sml_member_late_check(struct sml_member_job *j, const struct sml_member_sight *sight,
                                             const struct sml_member_operation *noted, uint64_t now_ns) {
  struct sml_member_late late = {.operation = noted, .look_ns = SML_NEVER};
  if (j->phase == SML_MEMBER_HAS_FAILED) return late;
  if (noted != NULL) late.deadline_ns = late.look_ns = noted->deadline_ns;
  if (noted != NULL && noted->deadline_ns <= now_ns) {
    late.kind = SML_MEMBER_LATE_IN_BATCH;
    return late;
  }
  for (const struct sml_member_operation *op = j->oldest; op; op = op->next) {
    late.operation = op;
    late.deadline_ns = deadline_of(j, sight, op);
    if (late.deadline_ns <= now_ns && waits_for_reports(j, sight, op, now_ns, &late)) continue;
    if (late.deadline_ns <= now_ns) {
      late.kind = SML_MEMBER_LATE_TIMES_OUT;
      return late;
    }
    ask_before(j, op->submitted_ns, late.deadline_ns, now_ns, &late);
  }
  late.operation = j->oldest;
  if (j->oldest == NULL || j->oldest->was_warned) return late;
  const uint64_t warn_ns = j->oldest->submitted_ns + WARN_NS;
  if (now_ns < warn_ns) {
    ask_before(j, j->oldest->submitted_ns, warn_ns, now_ns, &late);
    return late;
  }
  j->oldest->was_warned = true;
  late.kind = SML_MEMBER_LATE_WARNS;
  return late;
}

bool sml_member_late_is_unknown(const struct sml_member_job *j, const struct sml_member_sight *sight, uint64_t now_ns,
                                struct sml_ctl_abort *failure) {
  if (j->oldest == NULL || !sight->has_slot || !sight->has_error_reply) return false;
  if (now_ns < sight->error_reply_ns + ERROR_REPLY_GRACE_NS) return false;
  *failure =
      sml_member_failure(SML_ERR_AGGREGATOR_LOST, "the aggregator no longer knows job '%s': it was restarted", j->name);
  return true;
}

/* ---- as this rank sees it ---- */

/* "waiting for ranks 1, 3", or "waiting for ranks 4-7 on the host of rank 4"; ranks too. */
static void add_missing(const struct sml_member_job *j, const struct sml_member_sight *sight,
                        struct sml_ctl_abort *failure) {
  const uint32_t count = sml_contributors_count(&j->start, j->world_size);
  const bool is_plain = j->start.num_ranks == 0;
  add(failure, "waiting for%s", !is_plain ? "" : sight->num_missing > 1 ? " ranks" : " rank");
  for (uint32_t i = 0; i < sight->num_missing; i++) {
    char text[96] = "";
    if (sight->missing[i] < count && is_plain) snprintf(text, sizeof text, "%u", sight->missing[i]);
    else if (sight->missing[i] < count) sml_contributor_describe(&j->start, sight->missing[i], text, sizeof text);
    add(failure, "%s %s", i > 0 ? "," : "", text);
  }
  if (!sml_member_late_has_reports(j)) return; /* whichever aggregator said so may be gone itself */
  failure->num_ranks =
      sml_contributors_name(&j->start, j->world_size, sight->missing, sight->num_missing, failure->ranks);
}

/* "waiting for ranks 1, 3 in shared memory", as above. */
static void add_absent(const struct sml_member_job *j, const struct sml_member_wait *wait,
                       struct sml_ctl_abort *failure) {
  if (wait->num_absent == 0) {
    add(failure, "waiting for rank %u, this one, in shared memory: all others have done their part", j->rank);
    failure->ranks[failure->num_ranks++] = (uint16_t)j->rank;
    return;
  }
  add(failure, "waiting for rank%s", wait->num_absent > 1 ? "s" : "");
  for (uint32_t i = 0; i < sml_min_u32(wait->num_absent, SML_CTL_MAX_RANKS); i++) {
    add(failure, "%s %u", i > 0 ? "," : "", wait->ranks[i]);
    failure->ranks[failure->num_ranks++] = (uint16_t)wait->ranks[i];
  }
  add(failure, " in shared memory");
}

static void add_own_view(const struct sml_member_job *j, const struct sml_member_sight *sight, uint64_t now_ns,
                         struct sml_ctl_abort *failure) {
  const bool is_running = j->phase == SML_MEMBER_IS_RUNNING;
  if (is_running && sight->wait.kind != SML_WAIT_NETWORK && sight->wait.kind != SML_WAIT_NONE_BEGUN) {
    add_absent(j, &sight->wait, failure);
  } else if (j->phase == SML_MEMBER_IS_REJOINING) {
    add(failure, "the aggregator was lost and is not back");
  } else if (j->phase == SML_MEMBER_IS_DRAINING || j->phase == SML_MEMBER_IS_RENEWING) {
    add(failure, "waiting for every rank to ask for a new epoch");
  } else if (!has_begun(j, sight)) {
    add(failure, "it was not begun");
  } else {
    if (sight->num_missing == 0) add(failure, "no answer from the aggregator");
    else add_missing(j, sight, failure);
    if (sight->is_fence) add(failure, " at a fence");
    add(failure, " on lane %u slot %u", sight->lane, sight->slot);
    if (now_ns > sight->since_ns) add(failure, " for %.3g s", seconds(now_ns - sight->since_ns));
  }
}

/* ---- as this host's system says ---- */

/* At the end of the detail, whose own end goes for it; between two characters. */
static void make_room(struct sml_ctl_abort *failure, size_t num_bytes) {
  size_t used = sml_min_u64(strlen(failure->detail), sizeof failure->detail - 1 - num_bytes);
  while (used > 0 && ((uint8_t)failure->detail[used] & 0xc0) == 0x80) used--;
  failure->detail[used] = 0;
}

void sml_member_late_add_unsent(const struct sml_member_job *j, const struct sml_member_sight *sight, uint64_t now_ns,
                                struct sml_ctl_abort *failure) {
  const uint64_t joining_ns = j->phase == SML_MEMBER_IS_JOINING ? now_ns - sml_min_u64(now_ns, JOIN_NS) : SML_NEVER;
  const uint64_t since_ns = j->oldest != NULL ? j->oldest->submitted_ns : joining_ns;
  if (sight->unsent_why[0] == 0 || sight->unsent_ns < since_ns) return;
  char text[SML_DETAIL_BYTES];
  snprintf(text, sizeof text, "; rank %u's host did not send %llu packets, the last one %.3g s ago: %s", j->rank,
           (unsigned long long)sight->num_unsent, seconds(now_ns - sml_min_u64(now_ns, sight->unsent_ns)),
           sight->unsent_why);
  make_room(failure, strlen(text));
  add(failure, "%s", text);
}

/* ---- as the aggregators say ---- */

static void add_report(const struct sml_member_shard *shard, uint64_t now_ns, struct sml_ctl_abort *failure) {
  if (shard->has_reported) add(failure, "%s", shard->report.detail);
  else if (shard->silent_since_ns == 0) add(failure, "no answer when it was asked");
  else add(failure, "it has been silent for %.3g s", seconds(now_ns - shard->silent_since_ns));
}

static bool names(const struct sml_ctl_abort *failure, uint16_t rank) {
  uint32_t k = 0;
  while (k < failure->num_ranks && failure->ranks[k] != rank) k++;
  return k < failure->num_ranks;
}

static void add_rank(struct sml_ctl_abort *failure, uint16_t rank) {
  if (!names(failure, rank) && failure->num_ranks < SML_CTL_MAX_RANKS) failure->ranks[failure->num_ranks++] = rank;
}

/* An aggregator that does not answer keeps ranks waiting for each other: if it is in a rank, that is the one. */
static void add_reported_ranks(const struct sml_member_job *j, struct sml_ctl_abort *failure) {
  for (uint32_t s = 0; s < j->num_shards; s++) {
    const struct sml_member_shard *shard = &j->shards[s];
    const bool is_silent = shard->is_asked && !shard->has_reported;
    if (is_silent && shard->process_rank != SML_MEMBER_OF_DAEMON) add_rank(failure, (uint16_t)shard->process_rank);
  }
  if (failure->num_ranks > 0) return;
  for (uint32_t s = 0; s < j->num_shards; s++)
    for (uint32_t r = 0; r < j->shards[s].report.num_ranks && j->shards[s].has_reported; r++)
      add_rank(failure, j->shards[s].report.ranks[r]);
}

/* Or the rank that sends for this one. */
static bool names_sender(const struct sml_member_job *j, const struct sml_ctl_abort *failure, uint16_t rank) {
  const uint32_t contributor = sml_contributor_of(&j->start, rank);
  for (uint32_t i = 0; i < failure->num_ranks; i++) {
    const uint32_t named = failure->ranks[i];
    if (named < j->world_size && sml_contributor_of(&j->start, named) == contributor) return true;
  }
  return false;
}

/* Neither source is right by itself. What this rank's lanes heard may be old, and some who are missing at a fence wait
 * for others. REPORTs also name ranks that have not called yet, since they wait for another. So the error names the
 * ranks that both name; if there are none, those of the REPORTs. */
static void choose_ranks(const struct sml_member_job *j, struct sml_ctl_abort *failure) {
  struct sml_ctl_abort said = {.num_ranks = 0};
  uint32_t num_both = 0;
  add_reported_ranks(j, &said);
  for (uint32_t i = 0; i < failure->num_ranks; i++)
    if (names_sender(j, &said, failure->ranks[i])) failure->ranks[num_both++] = failure->ranks[i];
  if (num_both > 0) failure->num_ranks = num_both;
  if (num_both > 0 || said.num_ranks == 0) return;
  failure->num_ranks = said.num_ranks;
  memcpy(failure->ranks, said.ranks, sizeof said.ranks);
}

static void add_reports(const struct sml_member_job *j, uint64_t now_ns, struct sml_ctl_abort *failure) {
  uint32_t num_left_out = 0;
  for (uint32_t s = 0; s < j->num_shards; s++) {
    const struct sml_member_shard *shard = &j->shards[s];
    if (!shard->is_asked) continue;
    num_left_out += strlen(failure->detail) >= MANY_BYTES;
    if (strlen(failure->detail) >= MANY_BYTES) continue;
    /* The address of one in a rank is loopback's for that host's ranks, and no name for the others. */
    if (shard->process_rank != SML_MEMBER_OF_DAEMON)
      add(failure, "; the aggregator (in rank %u): ", shard->process_rank);
    else if (j->num_shards == 1) add(failure, "; the aggregator: ");
    else add(failure, "; the aggregator at %s: ", shard->member->options.aggregator);
    add_report(shard, now_ns, failure);
  }
  if (num_left_out > 0) add(failure, "; and %u more aggregators", num_left_out);
}

void sml_member_late_explain(const struct sml_member_job *j, const struct sml_member_sight *sight, uint64_t now_ns,
                             struct sml_ctl_abort *failure) {
  add_own_view(j, sight, now_ns, failure);
  sml_member_late_add_unsent(j, sight, now_ns, failure);
  if (!knows_ranks(j, sight)) choose_ranks(j, failure);
  add_reports(j, now_ns, failure);
}

struct sml_ctl_abort sml_member_late_failure(const struct sml_member_job *j, const struct sml_member_late *late,
                                             const char *what, uint64_t submitted_ns,
                                             const struct sml_member_sight *sight, uint64_t now_ns) {
  struct sml_ctl_abort failure = sml_member_failure(SML_ERR_TIMEOUT, "%s timed out on rank %u after %.4g s: ", what,
                                                    j->rank, seconds(late->deadline_ns - submitted_ns));
  sml_member_late_explain(j, sight, sml_max_u64(now_ns, late->deadline_ns), &failure);
  return failure;
}
