/* SPDX-License-Identifier: Apache-2.0
 * Finds out who lost an update, by what came after it. A rank sends its updates in the order in which its slots were
 * granted their chunks, except for repeats and data that waits for exponents. So when a rank has contributed to several
 * chunks granted later, its update for this one is lost (or the result that granted it; then it cannot answer). The
 * aggregator asks that rank alone. It needs no timer, and no packets to others.
 *
 * It asks a rank again when
 * - the rank contributes to chunks that were granted after the question was sent: those overtook the answer; or
 * - twice the time has passed that the rank's answers take: with many slots the first case comes late.
 *
 * A rank's contributions pay for the questions to it. So questions end if a rank is late, or has no processor.
 * Questions are hints: they decide nothing, and every rank's own timers work without them. */
#include "core/aggregator_internal.h"
#include "core/rto.h"

#define FIRST_THRESHOLD 3u /* chunks: as in TCP */
#define REORDER_NS (100 * SML_NS_PER_US) /* and at least this long: paths that reorder by less cost nothing */
#define FIRST_ANSWER_NS (5 * SML_NS_PER_MS) /* until it is known how long answers take */
#define LEAST_ANSWER_NS (500 * SML_NS_PER_US)
#define MAX_PATIENCE 8u
#define MAX_THRESHOLD 128u
#define CALM_CHUNKS 1024u   /* needless repeats make the threshold larger; after so many chunks it is halved */
#define MAX_LEFT_OUT 256u   /* chunks in a row, on a long path */
#define MOST_TRIPS 8u /* of that path, that an answer is thought to take because questions came too early */
#define NONE UINT32_MAX

static bool is_long_path(const struct sml_aggregator *a) {
  return a->options.rtt_ns >= SML_RTO_LONG_PATH_NS;
}

/* Positions in the stream of chunks are compared modulo 2^32: those in use at one time are close to each other. */
static bool is_beyond(uint32_t position, uint32_t other, uint32_t distance) {
  return (int32_t)(position - other) > (int32_t)distance;
}

void sml_aggregator_solicit_init(struct sml_aggregator *a) {
  const uint32_t n = a->options.num_slots;
  a->threshold = FIRST_THRESHOLD;
  a->first_troubled = a->last_troubled = NONE;
  a->sum_threshold = FIRST_THRESHOLD;
  for (uint32_t s = 0; s < n; s++) {
    a->live[s] = (struct live){.chunk = a->options.first_chunk + s, .next = NONE};
    a->holders[a->live[s].chunk & (a->num_holders - 1)] = (uint16_t)s;
  }
  for (uint32_t r = 0; r < a->options.world_size; r++)
    a->progress[r] = (struct progress){
        .latest = a->options.first_chunk - 1, .next = a->options.first_chunk, .run = a->options.first_chunk,
        .left_next = a->options.first_chunk, .left_end = a->options.first_chunk,
        .answer_ns = sml_max_u64(FIRST_ANSWER_NS, a->options.rtt_ns), .budget = SML_MOST_UNASKED};
}

/* What ranks were asked for has come. After more than one question nobody knows which one it answers, but the answer
 * took at least as long as since the last one. */
static void note_answers(struct sml_aggregator *a, const struct live *l, uint32_t word, uint64_t ranks) {
  if (l->num_asked == 0) return;
  for (; ranks != 0; ranks &= ranks - 1) {
    struct progress *p = &a->progress[word * 64 + (uint32_t)__builtin_ctzll(ranks)];
    const uint64_t passed_ns = a->now_ns - l->asked_ns;
    /* Sooner than the path allows: it answers an earlier question, and the last one came too early. */
    const bool was_hasty = l->num_asked > 1 && is_long_path(a) && passed_ns < a->options.rtt_ns;
    if (was_hasty) p->answer_ns = sml_min_u64(p->answer_ns + p->answer_ns / 8, MOST_TRIPS * a->options.rtt_ns);
    if (l->num_asked > 1 && passed_ns <= p->answer_ns) continue;
    p->answer_ns = p->answer_ns - p->answer_ns / 4 + passed_ns / 4;
    p->answer_ns = sml_max_u64(p->answer_ns, LEAST_ANSWER_NS);
  }
}

void sml_aggregator_note_grant(struct sml_aggregator *a, uint32_t slot, uint32_t chunk) {
  struct live *l = &a->live[slot];
  l->chunk = chunk;
  a->holders[chunk & (a->num_holders - 1)] = (uint16_t)slot;
  if ((chunk & (CALM_CHUNKS - 1)) == 0) a->threshold = sml_max_u32(FIRST_THRESHOLD, a->threshold / 2);
  if (!l->is_troubled) {
    l->num_asked = 0; /* it was about the chunk before: all answers came before its sum */
    return;
  }
  uint64_t *suspects = sml_aggregator_suspects(a, slot);
  for (uint32_t w = 0; w < a->seen_words; w++) note_answers(a, l, w, suspects[a->seen_words + w]);
  l->suspected_ns = l->num_asked = 0;
  /* The next pass takes the slot out of the list. */
  memset(suspects, 0, 2 * a->seen_words * sizeof(uint64_t));
}

static void append_troubled(struct sml_aggregator *a, uint32_t slot) {
  SML_ASSERT(!a->live[slot].is_troubled);
  a->live[slot].next = NONE;
  if (a->last_troubled == NONE) a->first_troubled = slot;
  else a->live[a->last_troubled].next = slot;
  a->last_troubled = slot;
  a->live[slot].is_troubled = true;
  a->num_troubled++;
}

static uint32_t take_troubled(struct sml_aggregator *a) {
  const uint32_t slot = a->first_troubled;
  SML_ASSERT(slot != NONE && a->num_troubled > 0);
  a->first_troubled = a->live[slot].next;
  if (a->first_troubled == NONE) a->last_troubled = NONE;
  a->live[slot].is_troubled = false;
  a->num_troubled--;
  return slot;
}

static void suspect(struct sml_aggregator *a, uint32_t slot, uint32_t rank) {
  uint64_t *suspects = sml_aggregator_suspects(a, slot);
  if (sml_bit_test(suspects + a->seen_words, rank)) return; /* it was asked, or asks itself */
  sml_bit_set(suspects, rank);
  if (a->live[slot].is_troubled) return;
  a->live[slot].suspected_ns = 0;
  append_troubled(a, slot);
}

/* The cell of the chunk that a slot holds now, if somebody has contributed to it; else NONE. */
static uint32_t live_cell(const struct sml_aggregator *a, uint32_t slot) {
  const struct cell *even = &a->cells[2 * slot], *odd = even + 1;
  const uint32_t cell = 2 * slot + (odd->phase > even->phase);
  const bool is_live = a->cells[cell].phase != 0 && !sml_aggregator_is_complete(&a->cells[cell]);
  return is_live ? cell : NONE;
}

static bool is_empty(const struct sml_aggregator *a, uint32_t slot) {
  const uint64_t *bits = sml_aggregator_suspects(a, slot);
  for (uint32_t w = 0; w < 2 * a->seen_words; w++)
    if (bits[w] != 0) return false;
  return true;
}

static bool has_contributed(const struct sml_aggregator *a, uint32_t slot, uint32_t rank) {
  const uint32_t cell = live_cell(a, slot);
  return cell != NONE && sml_bit_test(sml_aggregator_seen(a, cell), rank);
}

/* Suspects the rank of having lost what it has not contributed to, from *next to last. */
static void look_up_to(struct sml_aggregator *a, uint32_t rank, uint32_t *next, uint32_t last) {
  if (is_beyond(last, *next, a->num_holders)) *next = last - a->num_holders; /* the table forgot them */
  for (; !is_beyond(*next, last, 0); ++*next) {
    const uint32_t s = a->holders[*next & (a->num_holders - 1)];
    if (a->live[s].chunk == *next && !has_contributed(a, s, rank)) suspect(a, s, rank);
  }
}

/* On a long path a rank that leaves out so many chunks waits for their exponents. It has no answer before it sends the
 * first of them. If it has lost the exponents, its own clock asks. */
static void leave_out(struct sml_aggregator *a, uint32_t rank, uint32_t chunk) {
  struct progress *p = &a->progress[rank];
  look_up_to(a, rank, &p->left_next, p->left_end - 1); /* those that it left out before */
  look_up_to(a, rank, &p->next, p->latest);
  p->left_next = p->next;
  p->left_end = p->next = chunk;
}

/* A contribution is not the next one in order, or comes while earlier chunks are still to be checked. Each chunk is
 * checked once a rank, when enough others have overtaken it. */
void sml_aggregator_look_for_gap(struct sml_aggregator *a, uint32_t rank, uint32_t chunk) {
  struct progress *p = &a->progress[rank];
  if (a->options.num_slots < a->options.order_slots) return;
  const bool is_late = !is_beyond(chunk, p->latest, 0);
  if (is_late && is_beyond(p->left_end, chunk, 0) && is_beyond(chunk, p->left_next, a->threshold))
    look_up_to(a, rank, &p->left_next, chunk - a->threshold - 1);
  if (is_late) return;
  if (is_long_path(a) && is_beyond(chunk, p->latest, MAX_LEFT_OUT)) leave_out(a, rank, chunk);
  if (chunk != p->latest + 1) p->run = chunk;
  p->latest = chunk;
  if (is_beyond(chunk, p->next, a->threshold)) look_up_to(a, rank, &p->next, chunk - a->threshold - 1);
  if (!is_beyond(p->run, p->next, 0)) p->next = p->latest + 1;
}

static void note_asked(const struct sml_aggregator *a, struct live *l) {
  l->asked_at = a->cursor;
  l->asked_ns = a->now_ns;
}

/* Has the rank had time to answer? Questions become rarer and rarer: it may have nothing to send yet. */
static bool is_answer_late(const struct sml_aggregator *a, const struct live *l, uint32_t rank) {
  const struct progress *p = &a->progress[rank];
  if (!is_beyond(p->latest, l->chunk, a->threshold)) return false; /* it may not have come to this chunk */
  const uint32_t patience = sml_min_u32(l->num_asked + 1, MAX_PATIENCE);
  if (is_long_path(a)) return a->now_ns - l->asked_ns >= p->answer_ns / 4 * (4 + patience);
  return a->now_ns - l->asked_ns >= 2 * p->answer_ns * patience;
}

/* A rank lacks the result that granted the slot's chunk, and asks for it. Until it has that, it can send nothing. */
void sml_aggregator_note_asking(struct sml_aggregator *a, uint32_t slot, uint32_t chunk, uint32_t rank) {
  uint64_t *suspects = sml_aggregator_suspects(a, slot), *asked = suspects + a->seen_words;
  if (a->options.num_slots < a->options.order_slots) return;
  if (a->live[slot].chunk != chunk || has_contributed(a, slot, rank)) return;
  sml_bit_clear(suspects, rank);
  sml_bit_set(asked, rank);
  note_asked(a, &a->live[slot]);
  if (!a->live[slot].is_troubled) append_troubled(a, slot);
}

/* A repeat of what was there already: more packets overtake one than was thought. */
void sml_aggregator_note_needless(struct sml_aggregator *a) {
  const uint32_t most = sml_min_u32(a->options.num_slots / 2, MAX_THRESHOLD);
  a->threshold = sml_max_u32(FIRST_THRESHOLD, sml_min_u32(2 * a->threshold, most));
}

/* Those of these ranks that can pay for a question. They pay. */
static uint64_t pay(struct sml_aggregator *a, uint32_t word, uint64_t ranks) {
  for (uint64_t left = ranks; left != 0; left &= left - 1) {
    const uint32_t bit = (uint32_t)__builtin_ctzll(left);
    struct progress *p = &a->progress[word * 64 + bit];
    if (p->budget < SML_UNASKED_COSTS) ranks &= ~(UINT64_C(1) << bit);
    else p->budget -= SML_UNASKED_COSTS;
  }
  return ranks;
}

/* Writes the ranks to ask about a slot into a->due; they count as asked. Returns whether the slot stays troubled. */
static bool find_due(struct sml_aggregator *a, uint32_t slot, uint32_t cell, bool *is_any_due) {
  uint64_t *suspects = sml_aggregator_suspects(a, slot), *asked = suspects + a->seen_words;
  const uint64_t *seen = sml_aggregator_seen(a, cell);
  struct live *l = &a->live[slot];
  bool is_troubled = false;
  if (l->suspected_ns == 0) l->suspected_ns = a->now_ns;
  const bool is_time = a->now_ns - l->suspected_ns >= REORDER_NS;
  for (uint32_t w = 0; w < a->seen_words; w++) {
    const uint64_t missing = ~seen[w] & ~a->departed[w];
    a->due[w] = is_time ? suspects[w] & missing : 0;
    note_answers(a, l, w, asked[w] & seen[w]);
    asked[w] &= missing;
    for (uint64_t left = asked[w]; left != 0; left &= left - 1) {
      const uint32_t bit = (uint32_t)__builtin_ctzll(left);
      const uint32_t rank = w * 64 + bit;
      if (is_beyond(a->progress[rank].latest, l->asked_at, a->threshold) || is_answer_late(a, l, rank))
        a->due[w] |= UINT64_C(1) << bit;
    }
    a->due[w] = pay(a, w, a->due[w]);
    asked[w] |= a->due[w];
    suspects[w] &= missing & ~asked[w];
    *is_any_due = *is_any_due || a->due[w] != 0;
    is_troubled = is_troubled || (asked[w] | suspects[w]) != 0;
  }
  if (*is_any_due) {
    note_asked(a, l);
    l->num_asked++;
  }
  return is_troubled;
}

void sml_aggregator_begin_solicit(struct sml_aggregator *a, uint64_t now_ns) {
  a->now_ns = sml_max_u64(now_ns, 1);
  a->num_to_look_at = a->num_troubled;
  if (a->options.is_one_way) sml_aggregator_begin_lost(a);
}

bool sml_aggregator_next_solicit(struct sml_aggregator *a, struct sml_header *h, const uint64_t **ranks_out) {
  while (a->num_to_look_at > 0) {
    SML_ASSERT(a->num_to_look_at <= a->num_troubled);
    a->num_to_look_at--;
    const uint32_t slot = take_troubled(a), cell = live_cell(a, slot);
    bool is_any_due = false;
    /* If nobody has contributed yet, there is no tag to ask with. */
    const bool is_troubled = cell == NONE ? !is_empty(a, slot) : find_due(a, slot, cell, &is_any_due);
    if (is_troubled) append_troubled(a, slot);
    if (!is_any_due) continue;
    const struct cell *c = &a->cells[cell];
    *h = (struct sml_header){.type = SML_PACKET_PENDING,
                             .wire = c->wire,
                             .reducer = c->reducer,
                             .slot = (uint16_t)(a->options.slot_base + slot),
                             .phase = c->phase,
                             .tag = c->tag};
    *ranks_out = a->due;
    return true;
  }
  return false;
}

uint32_t sml_aggregator_latest_chunk(const struct sml_aggregator *a, uint32_t rank) {
  return a->progress[rank].latest;
}

/* ---- results that a worker lacks, by the grant that came with them ---- */

uint32_t sml_aggregator_find_grant(const struct sml_aggregator *a, uint32_t grant) {
  const uint32_t slot = a->holders[grant & (a->num_holders - 1)];
  for (uint32_t cell = 2 * slot; cell < 2 * slot + 2; cell++) {
    const struct cell *c = &a->cells[cell];
    if (c->phase != 0 && sml_aggregator_is_complete(c) && c->grant == grant) return cell;
  }
  return NONE;
}
