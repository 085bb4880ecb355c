/* SPDX-License-Identifier: Apache-2.0
 * When a worker asks the aggregator what became of a chunk (PROTOCOL.md rule R41, docs/heuristics.md). It has these
 * reasons. Order and silence count only with 16 slots or more (sml_worker_uses_order).
 *
 *   reason    when                                                           about
 *   order     a result is missing, the third grant after it has come (up to   its grant
 *             the 128th, if the path reorders) and 100 us have passed
 *   silence   no result came, or nothing new went out, for twice as long as   each slot, 8 to 32 at once
 *             answers take
 *   end       on a long path nothing is left to send, and a round trip and a    the slot
 *             quarter have passed since the last update, or the shortest one
 *             since the last result
 *   window    the window is full, and for as long no update is known to have  the update that was sent last
 *             arrived
 *   timer     the slot's timeout is over; twice that where order counts       the slot
 *   fence     others wait for this rank at a fence (one way)                  what it lacks before that
 *   overflow  on a long path many slots are behind what has arrived, and     the slot
 *             a chunk that was sent more than two round trips later is done
 *   sum       the check word of a result is wrong                             the slot
 *
 * A one-way window has no timer, and silence asks about the first slots of the stream that wait.
 *
 * How often: order asks again when a chunk that was sent after the question has completed, or a later question is
 * answered. Silence, window and timer wait twice as long after each question in a row. Silence and (where order counts)
 * the timer also have budgets: 256 completed chunks pay for one question, and for silence a loss that was shown pays
 * for two. The worker asks about a wrong sum once; the second time the lane fails.
 *
 * The answer is the result, or a PENDING that says who is missing. The aggregator asks, too: if it lacks this rank's
 * update although later ones came, it sends a PENDING by itself (aggregator_solicit.c). */
#include "core/worker_queue.h"

/* A silence in a one-way window: so many of the smallest round trips, at least such a share of the usual one, which is
 * long where processors are late, and at least this. */
#define ONE_WAY_QUIET_SHARE 8u
#define ONE_WAY_QUIET_TRIPS 4u
#define ONE_WAY_QUIET_NS (300 * SML_NS_PER_US)
#define ONE_WAY_QUESTIONS 2u /* then, until an answer shows that something was lost; of several lanes LEAST_QUESTIONS */
#define QUIET_PROBES 32u
#define LEAST_QUESTIONS 8u /* in a silence, whatever the budget: otherwise a lane could stand still */
#define UNHEARD_NS (10 * SML_NS_PER_MS) /* at least: busy processors make chunks late, and many at once */
#define MOST_PAID_LEVEL 4u  /* a slot's patience does not grow beyond this while losses pay for questions */
#define CLOCK_PATIENCE 1u /* where order shows losses: how often a timeout is doubled before the clock asks */

#define MANY_SHARE 4u /* of the slots, behind what has arrived: a queue has overflowed, until so few are left */
#define FEW_SHARE 64u

/* ---- order ----
 *
 * Grants show which results were lost on the way to this worker. The aggregator draws grants in order and sends results
 * in that order, so a result that is missing while several later ones are here was lost. The answer is one round trip
 * away, and no question is in vain. */

void sml_worker_gaps_init(struct sml_worker *w) {
  w->next_grant = (uint64_t)w->options.first_chunk + w->options.num_slots;
  w->gap_threshold = SML_FIRST_THRESHOLD;
}

static void remove_gap(struct sml_worker *w, uint32_t i) {
  SML_ASSERT(i < w->num_gaps);
  w->num_due_gaps -= w->gaps[i].is_due;
  w->num_gaps--;
  memmove(&w->gaps[i], &w->gaps[i + 1], (w->num_gaps - i) * sizeof w->gaps[0]);
}

static void close_gap(struct sml_worker *w, uint64_t grant, bool is_repeat) {
  for (uint32_t i = 0; i < w->num_gaps; i++) {
    if (w->gaps[i].grant != grant) continue;
    /* It was late, not lost: more packets overtake one than was thought. */
    if (!is_repeat && w->gaps[i].asked_ns != 0) sml_worker_note_late(w);
    if (is_repeat && !w->gaps[i].is_again) w->answered_ns = sml_max_u64(w->answered_ns, w->gaps[i].asked_ns);
    remove_gap(w, i);
    return;
  }
}

void sml_worker_note_grant(struct sml_worker *w, uint64_t grant, bool is_repeat, uint64_t now_ns) {
  const uint32_t n = w->options.num_slots;
  if (!sml_worker_uses_order(w)) return;
  if (grant < w->next_grant) {
    close_gap(w, grant, is_repeat);
    return;
  }
  /* Honest grants that are missing belong to slots of this worker that wait for them. */
  if (grant - w->next_grant <= n - w->num_gaps) {
    for (uint64_t g = w->next_grant; g < grant; g++)
      w->gaps[w->num_gaps++] =
          (struct gap){.grant = g, .noticed_ns = now_ns, .order = w->last_order - w->view.num_outstanding};
  }
  w->next_grant = grant + 1;
}

/* Whether the question about a gap, or its answer, was lost: a chunk that was sent after it has completed, or a later
 * question is answered. They are answered in their order. */
static bool was_asked_in_vain(const struct sml_worker *w, const struct gap *gap) {
  const uint64_t reorder_ns = sml_max_u64(w->rto.min_ns / 4, SML_REORDER_NS);
  return gap->asked_ns + w->rto.srtt_ns / 2 < w->latest_acked_ns || gap->asked_ns + reorder_ns < w->answered_ns;
}

/* A gap is due when enough grants have overtaken it, and again when it was asked about in vain. */
static void find_due_gaps(struct sml_worker *w, uint64_t now_ns) {
  for (uint32_t i = 0; i < w->num_gaps; i++) {
    struct gap *gap = &w->gaps[i];
    if (gap->is_due) continue;
    const bool is_overtaken =
        w->next_grant - gap->grant > w->gap_threshold && now_ns - gap->noticed_ns >= SML_REORDER_NS;
    gap->is_due = gap->asked_ns == 0 ? is_overtaken : was_asked_in_vain(w, gap);
    w->num_due_gaps += gap->is_due;
  }
}

uint64_t sml_worker_take_due_gap(struct sml_worker *w, uint64_t now_ns) {
  uint32_t i = 0;
  SML_ASSERT(w->num_due_gaps > 0);
  while (!w->gaps[i].is_due) i++;
  w->gaps[i].is_due = false;
  w->gaps[i].is_again = w->gaps[i].asked_ns != 0;
  w->gaps[i].asked_ns = now_ns;
  w->num_due_gaps--;
  sml_congestion_on_loss(&w->congestion, &w->rto, w->gaps[i].order, w->last_order, now_ns);
  return w->gaps[i].grant;
}

/* ---- order in one-way windows ----
 *
 * What each owner sent comes in its order, and sums complete in the order of the stream. */

/* When a slot is asked about again at the latest. The answers come in the order of the questions. So a question, or its
 * answer, was lost when that to a later question is here. If the aggregator waits for the owner's repeat, that takes as
 * long as an answer once more. */
static uint64_t answer_due(const struct sml_worker *w, const struct slot *slot) {
  return sml_max_u64(slot->sent_ns + SML_REORDER_NS, slot->told_ns + w->rto.answer_ns);
}

/* Without such an answer it waits for twice as long as answers take, and from the last answer on, whichever it was: a
 * queue that grows holds up all of them. And it asks about one slot at a time, whose answer tells of the others. */
static uint64_t answer_late(const struct sml_worker *w, const struct slot *slot) {
  const uint64_t answer_ns = w->rto.answer_ns > 0 ? sml_max_u64(2 * w->rto.answer_ns, SML_RTO_FLOOR_NS) : w->rto.rto_ns;
  const uint64_t since_ns = sml_max_u64(sml_max_u64(slot->sent_ns, slot->asked_ns), slot->told_ns);
  return sml_max_u64(since_ns, w->late_ns) + sml_min_u64(answer_ns, w->rto.rto_ns);
}

/* When to ask about a slot whose result was overtaken; SML_NEVER: when more has come. */
static uint64_t due_time(const struct sml_worker *w, struct slot *slot, const struct one_way_class *class,
                         uint64_t now_ns) {
  if (slot->was_overtaken) {
    const uint64_t due_ns = answer_due(w, slot);
    return due_ns < w->answered_ns ? now_ns : sml_max_u64(due_ns, answer_late(w, slot));
  }
  if (slot->noticed_ns == 0) {
    slot->noticed_ns = now_ns;
    slot->noticed_at = class->num_results;
  }
  const uint32_t threshold =
      slot->what.is_exponent ? 1 : w->gap_threshold; /* after few of them all would stand still */
  const bool is_overtaken = class->num_results - slot->noticed_at + 1 >= threshold;
  return is_overtaken ? slot->noticed_ns + SML_REORDER_NS : SML_NEVER;
}

static void look_for_gaps(struct sml_worker *w, uint64_t now_ns) {
  if ((!w->has_news && now_ns < w->look_ns) || !sml_worker_uses_order(w)) return;
  w->has_news = false;
  w->look_ns = SML_NEVER;
  uint64_t end = 0;
  for (uint32_t c = 0; c < w->options.num_contributors; c++) end = sml_max_u64(end, w->classes[c].next);
  for (uint64_t chunk = w->heard; chunk < end; chunk++) {
    const uint32_t s = sml_worker_slot_at(w, chunk);
    struct slot *slot = &w->slots[s];
    if (slot->state != OUTSTANDING || slot->what.is_fence || slot->wants_probe) continue;
    const struct one_way_class *class = &w->classes[sml_worker_class_of(w, slot)];
    if (class->next <= chunk) continue;
    const uint64_t due_ns = due_time(w, slot, class, now_ns);
    if (due_ns > now_ns) {
      w->look_ns = sml_min_u64(w->look_ns, due_ns);
      continue;
    }
    if (slot->was_overtaken && answer_due(w, slot) >= w->answered_ns) w->late_ns = now_ns;
    slot->was_overtaken = true;
    if (sml_worker_is_at_end(w)) slot->probe_copies = 1; /* as for a repeat: the link has nothing else to do */
    list_remove(w, s);
    want_probe(w, s);
  }
}

/* ---- silence, window and timer: when ---- */

/* Completed chunks pay for questions, and a loss that was shown pays for more. So needless questions are a small share
 * of all packets, however many slots wait, and however long. */
static uint32_t num_affordable(uint32_t budget) {
  return budget / SML_QUESTION_COSTS;
}

static uint32_t charge(uint32_t *budget, uint32_t num) {
  num = sml_min_u32(num, num_affordable(*budget));
  *budget -= num * SML_QUESTION_COSTS;
  return num;
}

static bool is_full(const struct sml_worker *w) {
  const uint32_t n = sml_min_u32(sml_congestion_window(&w->congestion), sml_worker_most_outstanding(w));
  return w->view.num_outstanding >= n - n / 4;
}

/* How long a silence must last to mean that nothing is under way any more: twice what answers take. Before the first
 * answer round trips must tell, and while the window is full, results gather somewhere for a part of one. Where much is
 * lost, most round trips include somebody's repairs, so they say little. In a one-way window answers come out of full
 * queues, and where one is full it is not silent. */
uint64_t sml_worker_quiet_time(const struct sml_worker *w) {
  if (sml_worker_adapts(w)) { /* results of one lane come with those of all others: what is usual tells */
    const uint64_t usual_ns = sml_min_u64(2 * w->window.longest_ns, 4 * w->rto.min_ns);
    const uint64_t trips_ns = sml_max_u64(2 * w->rto.answer_ns, w->rto.srtt_ns);
    const uint64_t least_ns = trips_ns != 0 ? sml_max_u64(trips_ns, SML_RTO_FLOOR_NS) : w->rto.rto_ns / 4;
    return sml_min_u64(sml_max_u64(least_ns, usual_ns), w->rto.rto_ns);
  }
  if (is_one_way(w)) {
    const uint64_t share_ns = sml_max_u64(w->rto.srtt_ns / ONE_WAY_QUIET_SHARE, ONE_WAY_QUIET_NS);
    const uint64_t usual_ns = sml_min_u64(2 * w->window.longest_ns, w->rto.srtt_ns / 2);
    const uint64_t least_ns = sml_max_u64(share_ns, usual_ns);
    if (w->rto.min_ns > 0) return sml_max_u64(ONE_WAY_QUIET_TRIPS * w->rto.min_ns, least_ns);
    return w->rto.path_ns > 0 ? sml_max_u64(ONE_WAY_QUIET_TRIPS * w->rto.path_ns, SML_RTO_FLOOR_NS) : w->rto.rto_ns / 4;
  }
  if (w->rto.answer_ns == 0 && w->rto.srtt_ns == 0)
    return sml_max_u64(w->rto.rto_ns / 4, w->rto.path_ns + w->rto.path_ns / 2);
  const uint64_t trips_ns = w->rto.answer_ns != 0 ? w->rto.answer_ns : w->rto.min_ns;
  uint64_t quiet_ns = sml_max_u64(2 * trips_ns, SML_RTO_FLOOR_NS);
  if (w->rto.answer_ns == 0 && is_full(w)) quiet_ns += w->rto.srtt_ns / 2;
  quiet_ns = sml_max_u64(quiet_ns, sml_min_u64(w->patience_ns, w->rto.srtt_ns));
  return sml_min_u64(quiet_ns, w->rto.rto_ns);
}

/* Results may come in trains, out of a queue that all ranks share. Between them it is quiet, and each answer to a
 * question makes the queue longer. If an answer comes behind its result, that was under way, and the silence was none:
 * the next one has to last twice as long, until losses are shown. */
void sml_worker_note_needless(struct sml_worker *w) {
  if (!w->is_silence_open || is_one_way(w)) return;
  w->is_silence_open = false;
  w->patience_ns = sml_min_u64(2 * sml_worker_quiet_time(w), w->rto.ceiling_ns);
}

/* Since when the lane is silent: since the last result. If there is a budget, it is also silent from a round trip after
 * the last new update on, whatever still trickles in: no later chunk can show what is lost then. One way, it is not
 * silent before all that it sent has left the host: a question would wait behind that. */
static uint64_t quiet_since(const struct sml_worker *w) {
  if (is_one_way(w)) return sml_worker_adapts(w) ? w->progress_ns : sml_max_u64(w->progress_ns, w->leaving_ns);
  if (num_affordable(w->silence_budget) == 0) return w->progress_ns;
  return sml_min_u64(w->progress_ns, w->last_update_ns + sml_worker_round_trip(w));
}

/* A long path's queue that overflows takes the same chunks of all ranks, thousands at once, so the aggregator has
 * nobody's update to ask about. Then many slots are behind what has arrived, and those are lost that were sent so long
 * before a chunk that has completed that a repair by the aggregator would have come. */
static bool is_unheard(const struct sml_worker *w, uint32_t level, uint64_t sent_ns) {
  const uint64_t window_ns = sml_max_u64(sml_rto_repair_window(&w->rto), UNHEARD_NS);
  return level == 0 && w->has_overflowed && sent_ns + window_ns < w->latest_acked_ns;
}

static void note_overflow(struct sml_worker *w) {
  if (is_one_way(w)) return; /* there others' losses show in what this rank gets */
  const uint64_t num_under_way = sml_worker_num_under_way(w);
  const uint64_t num_behind = w->view.num_outstanding - sml_min_u64(num_under_way, w->view.num_outstanding);
  if (num_behind <= w->options.num_slots / FEW_SHARE) w->has_overflowed = false;
  else if (num_behind > w->options.num_slots / MANY_SHARE) w->has_overflowed = sml_worker_is_far(w);
}

/* When the timer asks about the head of a level's list. Lists are in the order of sent_ns, and the deadline grows with
 * it, so the head is always first. */
static uint64_t deadline_of(const struct sml_worker *w, uint32_t level) {
  const uint32_t head = w->levels[level].head;
  if (head == NONE || (is_one_way(w) && sml_worker_uses_order(w))) return SML_NEVER;
  const uint64_t sent_ns = w->slots[head].sent_ns;
  const bool is_late = sml_worker_is_overtaken(w, sent_ns), uses_order = sml_worker_uses_order(w);
  if (is_unheard(w, level, sent_ns) || (is_late && level == 0 && !uses_order)) return sent_ns;
  /* Order shows what is lost and who lost it, and silence has its own deadline. The clock would ask about what others
   * are repairing, and get results that are on their way anyway. So it is patient, and has a budget. */
  if (uses_order && num_affordable(w->clock_budget) == 0) return SML_NEVER;
  /* While the lane makes progress, there is no reason to ask more and more rarely. */
  const uint32_t steps = (is_late ? sml_min_u32(level, 1) : level) + (uses_order ? CLOCK_PATIENCE : 0);
  return sent_ns + sml_rto_backoff(&w->rto, sml_min_u32(steps, SML_RTO_LEVELS - 1)) + w->jitter_ns;
}

/* The end of what was submitted, on a long path: nothing new follows that could show a loss, and each question by a
 * timeout costs several round trips. There a slot has a clock of its own, while losses pay. */
static bool is_at_end(const struct sml_worker *w) {
  return sml_worker_is_far(w) && !is_one_way(w) && w->rto.srtt_ns > 0 && sml_worker_num_ready(w) == 0 &&
         w->waiting.head == NONE && num_affordable(w->silence_budget) > 0;
}

/* What was sent last has its result by now, or is lost (RFC 8985 calls this a tail loss probe): a usual round trip has
 * passed, or the shortest one since the last result. For a usual one may have been spent in this rank's own queue,
 * which is empty now. Results come as far apart as the updates left, and a narrow link elsewhere parts them more. */
static uint64_t end_deadline_of(const struct sml_worker *w, uint32_t level) {
  const struct sml_rto *rto = &w->rto;
  const uint64_t sent_ns = w->slots[w->levels[level].head].sent_ns;
  const uint64_t least_ns = rto->path_ns > 0 ? sml_min_u64(rto->path_ns, rto->min_ns) : rto->min_ns;
  const uint64_t first_ns = level == 1 ? sml_min_u64(2 * least_ns, rto->srtt_ns) : rto->srtt_ns;
  const uint64_t answer_ns = rto->answer_ns > 0 ? rto->answer_ns : first_ns;
  if (level > 0) return sent_ns + ((answer_ns + answer_ns / 4) << sml_min_u32(level - 1, MOST_PAID_LEVEL));
  const uint64_t usual_ns = sml_min_u64(answer_ns, rto->srtt_ns);
  const uint64_t last_ns = sml_max_u64(sent_ns, w->last_update_ns);
  const uint64_t behind_ns = w->last_update_ns - sml_min_u64(w->latest_acked_ns, w->last_update_ns);
  const uint64_t quiet_ns = least_ns + sml_max_u64(least_ns / 4, SML_RTO_FLOOR_NS);
  return sml_min_u64(last_ns + usual_ns + usual_ns / 4, sml_max_u64(last_ns, w->progress_ns + behind_ns) + quiet_ns);
}

/* A one-way window: when silence asks about what is missing first. Its slots wait from when they were freed, most of
 * them for chunks that nobody has sent yet. So it asks about few, and if one was lost, at once about more. */
static uint64_t stretch_deadline(const struct sml_worker *w) {
  if (w->view.num_outstanding == 0) return SML_NEVER;
  if (w->window.has_found) return w->progress_ns;
  const uint64_t since_ns = sml_max_u64(sml_max_u64(quiet_since(w), w->view.waiting_since_ns), w->window.asked_ns);
  const uint32_t steps = sml_min_u32(w->quiet_level, MOST_PAID_LEVEL);
  return since_ns + sml_min_u64(sml_worker_quiet_time(w) << steps, w->rto.ceiling_ns);
}

/* When silence asks about it: about some slots at a time, and more and more rarely as long as no result comes. */
static uint64_t quiet_deadline_of(const struct sml_worker *w, uint32_t level) {
  const uint32_t head = w->levels[level].head;
  if (head == NONE || !sml_worker_uses_order(w)) return SML_NEVER;
  if (is_one_way(w)) return SML_NEVER;
  if (is_at_end(w)) return sml_max_u64(end_deadline_of(w, level), w->quiet_until_ns);
  const uint64_t since_ns = sml_max_u64(w->slots[head].sent_ns, quiet_since(w));
  const uint32_t steps = num_affordable(w->silence_budget) > 0 ? sml_min_u32(level, MOST_PAID_LEVEL) : level;
  const uint64_t deadline_ns = since_ns + sml_min_u64(sml_worker_quiet_time(w) << steps, w->rto.ceiling_ns);
  return sml_max_u64(deadline_ns, w->quiet_until_ns);
}

/* The window is full, and nothing shows that what is under way has arrived: other ranks may have to send first, or it
 * was lost. Either way an answer about the last update says that nothing is under way any more, and the window moves on
 * by its whole length. */
static uint64_t full_deadline_of(const struct sml_worker *w) {
  if (w->congestion.is_fixed || !sml_worker_is_window_full(w) || sml_worker_num_ready(w) == 0) return SML_NEVER;
  if (w->slots[w->last_sent].wants_probe) return SML_NEVER; /* it is asked about already */
  const uint64_t since_ns = sml_max_u64(w->arrived_ns, sml_max_u64(w->last_update_ns, w->full_asked_ns));
  return since_ns + sml_min_u64(sml_worker_quiet_time(w) << w->full_level, w->rto.ceiling_ns);
}

/* The pace holds back something that may leave otherwise. */
static uint64_t turn_of(const struct sml_worker *w) {
  const bool has_new = sml_worker_num_ready(w) > 0 && !sml_worker_is_window_full(w);
  const bool is_early = sml_congestion_is_early(&w->congestion) && (w->updates.count > 0 || has_new);
  return is_early ? w->congestion.next_turn_ns : SML_NEVER;
}

uint64_t sml_worker_next_deadline(const struct sml_worker *w) {
  uint64_t deadline = sml_min_u64(sml_min_u64(full_deadline_of(w), w->look_ns), turn_of(w));
  if (is_one_way(w)) deadline = sml_min_u64(deadline, stretch_deadline(w));
  for (uint32_t k = 0; k < SML_RTO_LEVELS; k++)
    deadline = sml_min_u64(deadline, sml_min_u64(deadline_of(w, k), quiet_deadline_of(w, k)));
  return deadline;
}

/* ---- asking ---- */

/* Slots beyond the usual number are for long paths, where something always comes. */
static uint32_t usual_chunks(const struct sml_worker *w) {
  return sml_min_u32(sml_max_u32(SML_CONGESTION_USUAL_BYTES / w->options.chunk_bytes, SML_LEAST_CHUNKS),
                     w->options.num_slots);
}

/* Each question in vain doubles the copies of the next, which may have to outlast a burst of loss. That is only for
 * few slots. Without a budget it does so only if nobody answered the last one, up to what silence asks of many
 * slots. */
static void ask_about(struct sml_worker *w, uint32_t s, uint32_t level) {
  struct slot *slot = &w->slots[s];
  SML_ASSERT(slot->state == OUTSTANDING && level < SML_RTO_LEVELS);
  const uint32_t num_outstanding = sml_max_u32(w->view.num_outstanding, 1), few = QUIET_PROBES / 2;
  const uint32_t num = sml_max_u32(sml_min_u32(1u << level, few / num_outstanding), 1);
  const uint32_t num_paid = charge(&w->silence_budget, num);
  const bool is_unanswered = level > 0 && slot->told_ns < slot->sent_ns;
  const uint32_t num_free = is_unanswered ? sml_min_u32(num, LEAST_QUESTIONS / num_outstanding) : 1;
  slot->level = (uint8_t)sml_min_u32(level + 1, SML_RTO_LEVELS - 1);
  slot->probe_copies = (uint8_t)(sml_max_u32(sml_max_u32(num_paid, num_free), 1) - 1);
  slot->num_charged = (uint8_t)sml_min_u32(slot->num_charged + num_paid, SML_MOST_QUESTIONS);
  want_probe(w, s);
}

void sml_worker_ask_before(struct sml_worker *w, uint32_t fence, uint64_t now_ns) {
  uint32_t num_asked = 0;
  if (sml_worker_adapts(w)) return;
  for (uint64_t chunk = w->heard; chunk < w->slots[fence].chunk && num_asked < QUIET_PROBES; chunk++) {
    const uint32_t s = sml_worker_slot_at(w, chunk);
    struct slot *slot = &w->slots[s];
    if (slot->state != OUTSTANDING || slot->what.is_fence || slot->wants_probe) continue;
    if (now_ns < sml_max_u64(slot->sent_ns, slot->asked_ns) + sml_worker_quiet_time(w)) continue;
    slot->was_overtaken = true;
    list_remove(w, s);
    want_probe(w, s);
    num_asked++;
  }
}

static void ask_in_silence(struct sml_worker *w, uint64_t now_ns) {
  uint32_t num_asked = 0;
  const uint32_t most = sml_max_u32(sml_min_u32(QUIET_PROBES, num_affordable(w->silence_budget)), LEAST_QUESTIONS);
  for (uint32_t k = 0; k < SML_RTO_LEVELS; k++) {
    while (num_asked < most && quiet_deadline_of(w, k) <= now_ns) {
      const uint32_t s = w->levels[k].head;
      list_remove(w, s);
      ask_about(w, s, k);
      num_asked++;
    }
  }
  if (num_asked == 0 || is_at_end(w)) return;
  if (w->quiet_level > 0) w->stalled_chunks = sml_max_u32(w->stalled_chunks / 2, usual_chunks(w));
  w->quiet_until_ns = now_ns + sml_min_u64(sml_worker_quiet_time(w) << w->quiet_level, w->rto.ceiling_ns);
  w->quiet_level = sml_min_u32(w->quiet_level + 1, SML_RTO_LEVELS - 1);
  w->is_silence_open = true;
  w->view.timeouts++;
}

/* Nobody answers about a fence of which nothing came before a later one was complete (R218). So the last one to which
 * this rank contributed is asked about, too: it says all that earlier ones would. */
static void ask_about_last_fence(struct sml_worker *w) {
  for (uint64_t chunk = w->heard; chunk > w->released; chunk--) {
    const uint32_t s = sml_worker_slot_at(w, chunk - 1);
    struct slot *slot = &w->slots[s];
    if (!slot->what.is_fence || slot->state != OUTSTANDING) continue;
    if (slot->wants_probe) return;
    list_remove(w, s);
    ask_about(w, s, slot->level);
    return;
  }
}

/* What is missing first holds up all that follows. */
static void ask_in_stretch(struct sml_worker *w, uint64_t now_ns) {
  if (stretch_deadline(w) > now_ns) return;
  SML_ASSERT(w->window.allowed > 0 && w->window.allowed <= w->options.num_slots);
  const uint32_t first = sml_worker_adapts(w) ? LEAST_QUESTIONS : ONE_WAY_QUESTIONS;
  const uint32_t most = w->window.has_found ? QUIET_PROBES : first;
  const uint64_t quiet_ns = w->window.has_found ? sml_worker_quiet_time(w) : 0;
  uint32_t num_asked = 0;
  for (uint64_t chunk = w->released; chunk < w->end_chunk && num_asked < most; chunk++) {
    const uint32_t s = sml_worker_slot_at(w, chunk);
    struct slot *slot = &w->slots[s];
    if (sml_worker_adapts(w) && !sml_fence_window_allows(w, slot)) break;
    if (slot->state != OUTSTANDING || slot->wants_probe || now_ns < slot->sent_ns + quiet_ns) continue;
    list_remove(w, s);
    ask_about(w, s, slot->level);
    num_asked++;
  }
  if (w->quiet_level > 1) ask_about_last_fence(w);
  w->window.has_found = false;
  w->window.asked_ns = now_ns;
  w->quiet_level = sml_min_u32(w->quiet_level + 1, SML_RTO_LEVELS - 1);
  w->view.timeouts++;
}

static void ask_for_last_sent(struct sml_worker *w, uint64_t now_ns) {
  if (full_deadline_of(w) > now_ns) return;
  w->full_asked_ns = now_ns;
  w->full_level = sml_min_u32(w->full_level + 1, SML_RTO_LEVELS - 1);
  list_remove(w, w->last_sent);
  want_probe(w, w->last_sent);
}

void sml_worker_on_timer(struct sml_worker *w, uint64_t now_ns) {
  sml_congestion_take_turn(&w->congestion, now_ns);
  if (is_one_way(w)) look_for_gaps(w, now_ns);
  else find_due_gaps(w, now_ns);
  note_overflow(w);
  if (is_one_way(w)) ask_in_stretch(w, now_ns);
  else ask_in_silence(w, now_ns);
  ask_for_last_sent(w, now_ns);
  bool has_fired = false;
  for (uint32_t k = 0; k < SML_RTO_LEVELS; k++) {
    while (deadline_of(w, k) <= now_ns) {
      const uint32_t s = w->levels[k].head;
      struct slot *slot = &w->slots[s];
      list_remove(w, s);
      if (is_unheard(w, k, slot->sent_ns)) slot->num_unanswered = 2; /* the answer stands in a queue */
      else if (sml_worker_uses_order(w)) (void)charge(&w->clock_budget, 1);
      if (!sml_worker_is_overtaken(w, slot->sent_ns)) {
        w->view.timeouts++;
        slot->level = (uint8_t)sml_min_u32(k + 1, SML_RTO_LEVELS - 1);
      }
      want_probe(w, s);
      has_fired = true;
    }
  }
  if (has_fired) w->jitter_ns = sml_prng_below(&w->prng, w->rto.rto_ns / 8 + 1);
}

/* PROTOCOL.md rule R36. */
bool sml_worker_refuse_result(struct sml_worker *w, const struct sml_header *h) {
  SML_ASSERT(sml_worker_peek_packet(w, h).kind == SML_ACCEPT_RESULT);
  const uint32_t s = sml_worker_slot_of(w, h);
  struct slot *slot = &w->slots[s];
  if (slot->was_refused) return true;
  slot->was_refused = true;
  if (!slot->wants_probe) {
    list_remove(w, s);
    want_probe(w, s);
  }
  return false;
}
