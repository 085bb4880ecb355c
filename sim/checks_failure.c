/* SPDX-License-Identifier: Apache-2.0
 * Failures: each has a cause, names whom it may name, reaches all ranks, in time. */
#include "sim/verdict.h"
#include "sim/world.h"

#define AFTERMATH_NS (5 * SML_NS_PER_S) /* what a trouble that is over may still cause */
#define MARGIN_NS (300 * SML_NS_PER_MS)
#define MIN_SILENCE_NS (2 * SML_NS_PER_S) /* of an aggregator, before it counts as lost */

#define BIT(name) (1u << SIM_KIND_##name)
#define GONE (BIT(KILL) | BIT(HOST) | BIT(PAUSE) | BIT(CUT) | BIT(MISDEED))
#define DAEMON (BIT(DAEMON_KILL) | BIT(DAEMON_STOP) | BIT(DAEMON_PAUSE))

/* ---- causes ---- */

/* Kinds of what happened to the job, or one rank of it, or to all, and may be felt in [from, to]. */
static uint32_t troubles_of(const struct sim_job *job, uint32_t rank, uint64_t from_ns, uint64_t to_ns) {
  const struct sim_world *w = job->world;
  uint32_t kinds = 0;
  for (uint32_t i = 0; i < w->num_troubles; i++) {
    const struct sim_trouble *t = &w->troubles[i];
    const bool is_of_job = t->job == SIM_ALL_JOBS || t->job == job->idx;
    const bool is_of_rank = rank == SIM_ALL_RANKS || t->rank == SIM_ALL_RANKS || t->rank == rank;
    if (!is_of_job || !is_of_rank || t->from_ns > to_ns) continue;
    if (t->to_ns != SML_NEVER && t->to_ns + AFTERMATH_NS < from_ns) continue;
    kinds |= 1u << t->kind;
  }
  return kinds;
}

static uint64_t round_begin(const struct sim_job *job, uint32_t round) {
  uint64_t begin_ns = SML_NEVER;
  for (uint32_t rank = 0; rank < job->spec->world_size; rank++) {
    const struct sim_attempt *a = &job->ranks[rank].attempts[round];
    if (a->has_entered) begin_ns = sml_min_u64(begin_ns, a->entered_ns);
  }
  return begin_ns;
}

static bool has_failed(const struct sim_attempt *a) {
  return a->failed_status != SML_OK || a->was_killed;
}

/* Ranks that failed do not begin the next round together; and where all rounds have one name, one that failed
 * early meets others that are a round behind. */
static bool follows_failure(const struct sim_job *job, uint32_t round) {
  const bool is_one_name = !job->spec->has_fresh_names && !job->spec->has_allgather;
  for (uint32_t rank = 0; rank < job->spec->world_size; rank++) {
    const struct sim_rank *r = &job->ranks[rank];
    if (round > 0 && (has_failed(&r->attempts[round - 1]) || !r->attempts[round - 1].has_left)) return true;
    if (is_one_name && r->round > round && has_failed(&r->attempts[round])) return true;
  }
  return false;
}

/* Kinds that explain a status. */
static uint32_t causes_of(const struct sim_rank *r, sml_status status) {
  const bool has_joined = r->attempts[r->round].has_created;
  switch (status) {
    case SML_ERR_RANK_LOST: return GONE | DAEMON;
    case SML_ERR_AGGREGATOR_LOST: return DAEMON | BIT(CUT) | BIT(PAUSE);
    case SML_ERR_MISMATCH: return BIT(MISDEED);
    case SML_ERR_ABORTED: return BIT(MISDEED);
    case SML_ERR_TIMEOUT: return GONE | DAEMON;
    case SML_ERR_REFUSED: /* of a job that joins again, while another rank has left and was started anew */
      return has_joined && r->job->spec->retry_ns == 0 ? 0 : GONE | DAEMON;
    case SML_ERR_UNREACHABLE:
    case SML_ERR_MTU: return has_joined ? 0 : GONE | DAEMON;
    default: return 0;
  }
}

/* What the seed has from the beginning may keep a rank from joining. */
static bool is_by_network(const struct sim_rank *r, sml_status status) {
  const struct sim_scenario *s = r->job->world->scenario;
  /* Also of a job that joins again after it lost its aggregator. */
  if (status == SML_ERR_REFUSED) return sim_has(s, SIM_KIND_CAPACITY);
  if (r->attempts[r->round].has_created) return false;
  if (status == SML_ERR_TIMEOUT && sim_has(s, SIM_KIND_CAPACITY)) return true;
  const bool is_path = status == SML_ERR_UNREACHABLE || status == SML_ERR_MTU;
  return is_path && sim_has(s, SIM_KIND_BURST);
}

static void check_cause(const struct sim_rank *r, sml_status status, const sml_error *error) {
  const struct sim_job *job = r->job;
  const struct sim_attempt *a = &r->attempts[r->round];
  if (is_by_network(r, status) || follows_failure(job, r->round)) return;
  if (status == SML_ERR_SYSTEM && a->has_missed_meeting) return;
  const uint32_t kinds = troubles_of(job, SIM_ALL_RANKS, round_begin(job, r->round), sim_now_ns());
  const bool is_late = status == SML_ERR_TIMEOUT && a->has_created;
  /* With retry, who lacks the aggregator has its deadline too. */
  if (is_late && !sim_has(job->world->scenario, SIM_KIND_HASTE) && (kinds & causes_of(r, status)) == 0)
    sim_fail("failure", "%s rank %u: an operation missed its deadline of %llu s (%s)", job->spec->name, r->rank,
             (unsigned long long)(job->spec->operation_timeout_ns / SML_NS_PER_S), error->detail);
  if (!is_late && (kinds & causes_of(r, status)) == 0)
    sim_fail("failure", "%s rank %u round %u got %s without a cause (%s)", job->spec->name, r->rank, r->round,
             sml_status_string(status), error->detail);
}

/* ---- names ---- */

static void check_names(const struct sim_rank *r, sml_status status, const sml_error *error) {
  const struct sim_job *job = r->job;
  if (!r->attempts[r->round].has_created || follows_failure(job, r->round)) return;
  /* A refusal names nobody, and that is how a rejoin fails. */
  if (status == SML_ERR_RANK_LOST && error->num_ranks == 0 && job->spec->retry_ns == 0)
    sim_fail("failure", "%s rank %u is told of a lost rank, but not which (%s)", job->spec->name, r->rank,
             error->detail);
  for (uint32_t i = 0; i < error->num_ranks; i++) {
    const uint32_t rank = error->ranks[i];
    if (rank >= job->spec->world_size) {
      sim_fail("failure", "%s rank %u is told of rank %u, which does not exist", job->spec->name, r->rank, rank);
      return;
    }
    const uint32_t kinds = troubles_of(job, rank, round_begin(job, r->round), sim_now_ns());
    if (status == SML_ERR_RANK_LOST && (kinds & (GONE | DAEMON)) == 0)
      sim_fail("failure", "%s rank %u is told that rank %u was lost, which was not (%s)", job->spec->name, r->rank,
               rank, error->detail);
  }
}

void sim_check_failed(struct sim_rank *r, sml_status status, const sml_error *error) {
  struct sim_attempt *a = sim_attempt_of(r);
  if (a->failed_status == SML_OK) {
    a->failed_status = status;
    a->failed_ns = sim_now_ns();
    a->error = *error;
    check_cause(r, status, error);
    check_names(r, status, error);
  } else if (status != a->failed_status) {
    sim_fail("failure", "%s rank %u got %s and then %s", r->job->spec->name, r->rank,
             sml_status_string(a->failed_status), sml_status_string(status));
  }
}

/* ---- how far and how fast ---- */

void sim_check_deadline(const struct sim_rank *r, const struct sim_op_record *record) {
  const struct sim_job_spec *spec = r->job->spec;
  const uint64_t deadline_ns = record->submitted_ns + spec->operation_timeout_ns + spec->retry_ns;
  const uint64_t due_ns = sml_max_u64(deadline_ns, record->awaited_ns) + SML_NS_PER_S + MARGIN_NS +
                          4 * r->job->world->scenario->options.late_ns;
  if (record->ended_ns <= due_ns || (troubles_of(r->job, r->rank, deadline_ns, record->ended_ns) & BIT(PAUSE))) return;
  sim_fail("liveness", "%s rank %u: an operation with a deadline of %.1f s took %.1f s", spec->name, r->rank,
           (double)spec->operation_timeout_ns / 1e9, (double)(record->ended_ns - record->submitted_ns) / 1e9);
}

/* How long news of a failure may take to reach a rank that nothing else happens to. With retry, one that was cut
 * off looks for the others first. */
static uint64_t news_bound_ns(const struct sim_job *job) {
  return sml_max_u64(job->spec->lease_ns, MIN_SILENCE_NS) + SML_NS_PER_S + MARGIN_NS +
         4 * job->world->scenario->options.late_ns + job->spec->retry_ns;
}

/* How long a bad network may hide that a slot waits for somebody: another one's update is lost as well. */
static uint64_t repair_ns(const struct sim_scenario *s) {
  const uint32_t bad = BIT(LOSS) | BIT(DUPLICATE) | BIT(REORDER) | BIT(CORRUPT) | BIT(TRUNCATE) | BIT(QUEUE);
  if (sim_has(s, SIM_KIND_BURST)) return 15 * SML_NS_PER_S;
  return (s->kinds & bad) != 0 ? 3 * SML_NS_PER_S : 0;
}

/* When the last rank called an operation. Until then others wait for it, and need not learn of a rank that has
 * given all it had to give. */
static uint64_t called_ns(const struct sim_job *job, uint32_t round, uint32_t op) {
  uint64_t last_ns = 0;
  for (uint32_t rank = 0; rank < job->spec->world_size; rank++)
    for (uint32_t i = 0; i <= op; i++)
      last_ns = sml_max_u64(last_ns, job->ranks[rank].attempts[round].ops[i].submitted_ns);
  return last_ns;
}

static void check_news(const struct sim_job *job, uint32_t round, const struct sim_rank *failed,
                       const struct sim_rank *other) {
  const uint64_t bound_ns = news_bound_ns(job) + repair_ns(job->world->scenario);
  const uint64_t failed_ns = failed->attempts[round].failed_ns;
  const struct sim_round_spec *spec = &job->spec->rounds[round];
  const struct sim_attempt *b = &other->attempts[round];
  if (b->was_killed || other->has_exited_early) return;
  for (uint32_t op = 0; op < spec->num_ops; op++) {
    const struct sim_op_record *record = &b->ops[op];
    if (record->state != SIM_OP_ENDED || record->count == 0) continue;
    const uint64_t due_ns =
        sml_max_u64(failed_ns, sml_max_u64(called_ns(job, round, op), record->awaited_ns)) + bound_ns;
    if (troubles_of(job, other->rank, failed_ns, record->ended_ns) & ~BIT(LATE)) continue;
    if (record->ended_ns > due_ns)
      sim_fail("failure", "%s rank %u failed at %.3f s, but operation %u of rank %u went on until %.3f s",
               job->spec->name, failed->rank, (double)failed_ns / 1e9, op, other->rank, (double)record->ended_ns / 1e9);
    if (record->status == SML_OK && record->submitted_ns > failed_ns + bound_ns)
      sim_fail("failure", "%s rank %u failed at %.3f s, but operation %u that rank %u called at %.3f s succeeded",
               job->spec->name, failed->rank, (double)failed_ns / 1e9, op, other->rank,
               (double)record->submitted_ns / 1e9);
  }
}

/* A rank that died: whoever waits for it knows within its lease and a second, by name. */
static void check_death(const struct sim_job *job, uint32_t round, const struct sim_trouble *t,
                        const struct sim_rank *other) {
  const struct sim_round_spec *spec = &job->spec->rounds[round];
  const struct sim_attempt *b = &other->attempts[round];
  uint64_t since_ns = t->from_ns;
  for (uint32_t op = 0; op < spec->num_ops; op++) {
    const struct sim_op_record *record = &b->ops[op];
    if (record->state != SIM_OP_ENDED) continue;
    if (record->status == SML_OK) {
      since_ns = sml_max_u64(since_ns, record->ended_ns);
      continue;
    }
    since_ns = sml_max_u64(since_ns, sml_max_u64(called_ns(job, round, op), record->awaited_ns));
    const uint64_t due_ns = since_ns + job->spec->lease_ns + SML_NS_PER_S + MARGIN_NS +
                            repair_ns(job->world->scenario) + 4 * job->world->scenario->options.late_ns;
    const uint32_t others = troubles_of(job, SIM_ALL_RANKS, round_begin(job, round), record->ended_ns);
    if ((others & ~(1u << t->kind | BIT(LATE))) != 0 || sim_has(job->world->scenario, SIM_KIND_HASTE)) return;
    if (record->ended_ns > due_ns)
      sim_fail("failure", "%s rank %u died at %.3f s, rank %u learned it at %.3f s only", job->spec->name, t->rank,
               (double)t->from_ns / 1e9, other->rank, (double)record->ended_ns / 1e9);
    return;
  }
}

static void check_round(const struct sim_job *job, uint32_t round) {
  const uint32_t n = job->spec->world_size;
  for (uint32_t a = 0; a < n; a++) {
    const struct sim_attempt *attempt = &job->ranks[a].attempts[round];
    for (uint32_t b = 0; b < n; b++) {
      if (a == b || !attempt->has_created) continue;
      if (attempt->failed_status != SML_OK) check_news(job, round, &job->ranks[a], &job->ranks[b]);
    }
  }
  for (uint32_t i = 0; i < job->world->num_troubles; i++) {
    const struct sim_trouble *t = &job->world->troubles[i];
    if (t->job != job->idx || (t->kind != SIM_KIND_KILL && t->kind != SIM_KIND_HOST)) continue;
    if (!job->ranks[t->rank].attempts[round].was_killed || follows_failure(job, round)) continue;
    for (uint32_t b = 0; b < n; b++)
      if (b != t->rank && !job->ranks[b].attempts[round].was_killed) check_death(job, round, t, &job->ranks[b]);
  }
}

void sim_check_jobs(struct sim_world *w) {
  for (uint32_t j = 0; j < w->num_jobs; j++)
    for (uint32_t round = 0; round < w->jobs[j].spec->num_rounds; round++) check_round(&w->jobs[j], round);
}

void sim_check_hang(struct sim_world *w) {
  for (uint32_t j = 0; j < w->num_jobs; j++) {
    for (uint32_t r = 0; r < w->jobs[j].spec->world_size; r++) {
      const struct sim_rank *rank = &w->jobs[j].ranks[r];
      if (rank->is_running)
        sim_fail("liveness", "%s rank %u hangs in round %u long after all faults: it %s", w->jobs[j].spec->name, r,
                 rank->round, rank->doing);
    }
  }
}

/* ---- storms ---- */

void sim_check_storm(struct sim_world *w) {
  const struct sim_scenario *s = w->scenario;
  const uint32_t harmless = BIT(MTU) | BIT(SLOW) | BIT(CLOCK) | BIT(LATE) | BIT(CAPACITY) | BIT(EPOCH) | BIT(MISDEED) |
                            BIT(HASTE) | BIT(FORGE);
  const uint32_t losing = BIT(LOSS) | BIT(BURST) | BIT(QUEUE) | BIT(CORRUPT) | BIT(TRUNCATE);
  if ((s->kinds & ~(harmless | losing)) != 0) return;
  uint64_t num_lost = sim_count(SIM_LOST) + sim_count(SIM_LOST_IN_BURST) + sim_count(SIM_CORRUPTED) +
                      sim_count(SIM_TRUNCATED) + sim_count(SIM_LOST_IN_LINK_QUEUE) +
                      sim_count(SIM_LOST_IN_SOCKET_QUEUE);
  uint64_t room = 0;
  for (uint32_t j = 0; j < w->num_jobs; j++)
    room += (uint64_t)w->jobs[j].spec->world_size * w->jobs[j].spec->num_slots * s->daemon_lanes;
  /* A rank that wakes late may read a question that is older than its update, and cannot know it. */
  const uint64_t limit = num_lost == 0 ? sim_count(SIM_LATE_WAKES) : num_lost + num_lost / 2 + room;
  const uint64_t num_again = sim_wire_counts(w->wire)->retransmissions;
  if (num_again > limit)
    sim_fail("liveness", "%llu updates were sent again, though only %llu datagrams were lost",
             (unsigned long long)num_again, (unsigned long long)num_lost);
}
