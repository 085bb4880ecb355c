/* SPDX-License-Identifier: Apache-2.0
 * When the worker asks (PROTOCOL.md rule R41, docs/heuristics.md) because nothing shows what became of a chunk: a
 * timeout is over, nothing comes at all, or the window is full. What the order of packets shows is in worker_gaps.c. */
#include "core/worker_internal.h"

#define QUIET_PROBES 32u
#define LEAST_QUESTIONS 8u /* in a silence, whatever there was before: a lane lives by them */
#define MOST_PAID_LEVEL 4u  /* a slot's own patience does not grow beyond this while losses pay for questions */
#define CLOCK_PATIENCE 1u /* how often a timeout is doubled before the clock asks where order shows what is lost */

/* Questions are paid out of what has completed, and a loss that was shown pays for more: so however many slots wait,
 * for however long, those that were not needed are a small share of all packets. */
static uint32_t num_affordable(uint32_t budget) {
  return budget / SML_QUESTION_COSTS;
}

static uint32_t charge(uint32_t *budget, uint32_t num) {
  num = sml_min_u32(num, num_affordable(*budget));
  *budget -= num * SML_QUESTION_COSTS;
  return num;
}

/* How long a silence means that nothing is under way any more: twice what answers take. Before the first answer round
 * trips have to tell, and while all slots are out, results gather at somebody for a part of one. Where much is lost,
 * most round trips have waited for somebody's repairs, so they say little. */
static bool is_full(const struct sml_worker *w) {
  const uint32_t n = sml_min_u32(sml_congestion_window(&w->congestion), sml_worker_most_outstanding(w));
  return w->view.num_outstanding >= n - n / 4;
}

static uint64_t quiet_time(const struct sml_worker *w) {
  if (w->rto.answer_ns != 0)
    return sml_min_u64(sml_max_u64(2 * w->rto.answer_ns, SML_RTO_FLOOR_NS), w->rto.rto_ns);
  if (w->rto.srtt_ns == 0) return w->rto.rto_ns / 4;
  uint64_t quiet_ns = sml_max_u64(2 * w->rto.min_ns, SML_RTO_FLOOR_NS);
  if (is_full(w)) quiet_ns += w->rto.srtt_ns / 2;
  return sml_min_u64(quiet_ns, w->rto.rto_ns);
}

/* Since when the lane is silent: since the last result; or, when nothing new was sent for longer than a round trip, so
 * that no later chunk can show what is lost, since then, whatever still trickles in: that takes a budget. */
static uint64_t quiet_since(const struct sml_worker *w) {
  if (num_affordable(w->silence_budget) == 0) return w->progress_ns;
  return sml_min_u64(w->progress_ns, w->last_update_ns + sml_worker_round_trip(w));
}

/* When the head of a level's list is to be asked about. Lists are in the order of sent_ns and the rule
 * is monotone in it, so the head is always first. */
static uint64_t deadline_of(const struct sml_worker *w, uint32_t level) {
  const uint32_t head = w->levels[level].head;
  if (head == NONE) return SML_NEVER;
  const uint64_t sent_ns = w->slots[head].sent_ns;
  if (sml_worker_is_paper(w)) return sent_ns + w->options.paper_timeout_ns;
#ifdef SML_BENCH_WITHOUT_TIMERS /* never in a product: `bench/run --scenario checks` measures what they cost */
  return sent_ns + 3600 * SML_NS_PER_S; /* that something is outstanding the engine sees by this */
#endif
  const bool is_late = sml_worker_is_overtaken(w, sent_ns), has_crowd = sml_worker_has_crowd(w);
  if (is_late && level == 0 && !has_crowd) return sent_ns;
  /* Order shows what is lost, and who lost it, and silence is seen by itself. The clock would ask about what others
   * repair, and the answer be a result that is on its way already: so it is patient, and has a budget. */
  if (has_crowd && num_affordable(w->clock_budget) == 0) return SML_NEVER;
  /* While the lane makes progress there is no reason to ask ever more rarely. */
  const uint32_t steps = (is_late ? sml_min_u32(level, 1) : level) + (has_crowd ? CLOCK_PATIENCE : 0);
  return sent_ns + sml_rto_backoff(&w->rto, sml_min_u32(steps, SML_RTO_LEVELS - 1)) + w->jitter_ns;
}

/* The same in a silent lane: some at a time, and more rarely as long as no result comes. */
static uint64_t quiet_deadline_of(const struct sml_worker *w, uint32_t level) {
  const uint32_t head = w->levels[level].head;
  if (head == NONE || !sml_worker_has_crowd(w)) return SML_NEVER;
  const uint64_t since_ns = sml_max_u64(w->slots[head].sent_ns, quiet_since(w));
  const uint32_t steps = num_affordable(w->silence_budget) > 0 ? sml_min_u32(level, MOST_PAID_LEVEL) : level;
  const uint64_t deadline_ns = since_ns + sml_min_u64(quiet_time(w) << steps, SML_RTO_CEILING_NS);
  return sml_max_u64(deadline_ns, w->quiet_until_ns);
}

/* When the window is full and nothing shows that what is under way has arrived: other ranks may have to send first,
 * or it was lost. Either way an answer about the update that was sent last says that none is under way any more, and
 * the window moves on by its whole length. */
static uint64_t full_deadline_of(const struct sml_worker *w) {
  if (w->congestion.is_fixed || !sml_worker_is_window_full(w) || sml_worker_num_ready(w) == 0) return SML_NEVER;
  if (w->slots[w->last_sent].wants_probe) return SML_NEVER; /* it is asked about already */
  const uint64_t since_ns = sml_max_u64(w->arrived_ns, sml_max_u64(w->last_update_ns, w->full_asked_ns));
  return since_ns + sml_min_u64(quiet_time(w) << w->full_level, SML_RTO_CEILING_NS);
}

uint64_t sml_worker_next_deadline(const struct sml_worker *w) {
  uint64_t deadline = full_deadline_of(w);
  for (uint32_t k = 0; k < SML_RTO_LEVELS; k++)
    deadline = sml_min_u64(deadline, sml_min_u64(deadline_of(w, k), quiet_deadline_of(w, k)));
  return deadline;
}

/* More slots than usual are there for a long path, which always brings something. */
static uint32_t usual_chunks(const struct sml_worker *w) {
  return sml_min_u32(sml_max_u32(SML_CONGESTION_USUAL_BYTES / w->options.chunk_bytes, SML_LEAST_CHUNKS),
                     w->options.num_slots);
}

/* So many copies as they are asked about in vain: they may have to outlast a burst of loss. Few slots only. */
static void ask_about(struct sml_worker *w, uint32_t s, uint32_t level) {
  struct slot *slot = &w->slots[s];
  const uint32_t num_outstanding = sml_max_u32(w->view.num_outstanding, 1), few = QUIET_PROBES / 2;
  const uint32_t num = sml_max_u32(sml_min_u32(1u << level, few / num_outstanding), 1);
  const uint32_t num_paid = charge(&w->silence_budget, num);
  slot->level = (uint8_t)sml_min_u32(level + 1, SML_RTO_LEVELS - 1);
  slot->probe_copies = (uint8_t)(sml_max_u32(num_paid, 1) - 1);
  slot->num_charged = (uint8_t)sml_min_u32(slot->num_charged + num_paid, SML_MOST_QUESTIONS);
  sml_worker_want_probe(w, s);
}

static void ask_in_silence(struct sml_worker *w, uint64_t now_ns) {
  uint32_t num_asked = 0;
  const uint32_t most = sml_max_u32(sml_min_u32(QUIET_PROBES, num_affordable(w->silence_budget)), LEAST_QUESTIONS);
  for (uint32_t k = 0; k < SML_RTO_LEVELS; k++) {
    while (num_asked < most && quiet_deadline_of(w, k) <= now_ns) {
      const uint32_t s = w->levels[k].head;
      sml_worker_list_remove(w, s);
      ask_about(w, s, k);
      num_asked++;
    }
  }
  if (num_asked == 0) return;
  if (w->quiet_level > 0) w->stalled_chunks = sml_max_u32(w->stalled_chunks / 2, usual_chunks(w));
  w->quiet_until_ns = now_ns + sml_min_u64(quiet_time(w) << w->quiet_level, SML_RTO_CEILING_NS);
  w->quiet_level = sml_min_u32(w->quiet_level + 1, SML_RTO_LEVELS - 1);
  w->view.timeouts++;
}

static void ask_for_last_sent(struct sml_worker *w, uint64_t now_ns) {
  if (full_deadline_of(w) > now_ns) return;
  w->full_asked_ns = now_ns;
  w->full_level = sml_min_u32(w->full_level + 1, SML_RTO_LEVELS - 1);
  sml_worker_list_remove(w, w->last_sent);
  sml_worker_want_probe(w, w->last_sent);
}

static void repeat_as_paper(struct sml_worker *w, uint64_t now_ns) {
  while (deadline_of(w, 0) <= now_ns) {
    const uint32_t s = w->levels[0].head;
    sml_worker_list_remove(w, s);
    sml_worker_list_append(w, s, 0, now_ns);
    sml_worker_want_update(w, s);
    w->view.timeouts++;
  }
}

void sml_worker_on_timer(struct sml_worker *w, uint64_t now_ns) {
#ifdef SML_BENCH_WITHOUT_TIMERS /* as above */
  return;
#endif
  if (sml_worker_is_paper(w)) {
    repeat_as_paper(w, now_ns);
    return;
  }
  sml_worker_find_due_gaps(w, now_ns);
  ask_in_silence(w, now_ns);
  ask_for_last_sent(w, now_ns);
  bool has_fired = false;
  for (uint32_t k = 0; k < SML_RTO_LEVELS; k++) {
    while (deadline_of(w, k) <= now_ns) {
      const uint32_t s = w->levels[k].head;
      struct slot *slot = &w->slots[s];
      sml_worker_list_remove(w, s);
      if (sml_worker_has_crowd(w)) (void)charge(&w->clock_budget, 1);
      if (!sml_worker_is_overtaken(w, slot->sent_ns)) {
        w->view.timeouts++;
        slot->level = (uint8_t)sml_min_u32(k + 1, SML_RTO_LEVELS - 1);
      }
      sml_worker_want_probe(w, s);
      has_fired = true;
    }
  }
  if (has_fired) w->jitter_ns = sml_prng_below(&w->prng, w->rto.rto_ns / 8 + 1);
}
