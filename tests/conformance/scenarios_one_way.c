/* SPDX-License-Identifier: Apache-2.0
 * One-way windows (docs/PROTOCOL.md rules R192 to R198): sums that only their owner gets, copies of what an owner has,
 * and the fences and exponents beside them. */
#include "scenario.h"

#define AGAIN SML_FLAG_RETRANSMISSION
#define LEAST_SLOTS 8u

static void begin_one_way(struct scenario *s, const char *name, const char *about, uint32_t num_ranks) {
  begin(s, "one_way", name, about,
        (struct shape){.num_ranks = num_ranks, .num_slots = LEAST_SLOTS, .has_one_way = true});
}

static struct sml_conform_packet of_window(struct sml_conform_packet p, enum sml_conform_symbol window) {
  p = with_symbol(p, SML_FIELD_SLOT, window, p.fields[SML_FIELD_SLOT].number);
  return with_symbol(p, SML_FIELD_CHUNK, SML_SYMBOL_OWNER, 0);
}

static struct sml_conform_packet owned(struct sml_conform_packet p, uint32_t reducer, uint32_t owner) {
  p = with(p, SML_FIELD_WIRE, reducer == SML_REDUCE_COPY ? SML_LANES_UINT8 : SML_LANES_INT32);
  p = of_window(with(p, SML_FIELD_REDUCER, reducer),
                reducer == SML_REDUCE_COPY ? SML_SYMBOL_COPIES : SML_SYMBOL_TO_OWNERS);
  return with_symbol(p, SML_FIELD_CHUNK, SML_SYMBOL_OWNER, owner);
}

static struct sml_conform_packet part(const struct scenario *s, uint32_t rank, uint32_t owner, int64_t slot,
                                      int64_t phase) {
  return owned(update(s, rank, slot, phase), SML_REDUCE_TO_OWNER, owner);
}

static struct sml_conform_packet copy(const struct scenario *s, uint32_t owner, int64_t slot, int64_t phase) {
  return owned(codes(s, owner, slot, phase), SML_REDUCE_COPY, owner);
}

static struct sml_conform_packet question(const struct scenario *s, uint32_t rank, uint32_t reducer, uint32_t owner,
                                          int64_t slot, int64_t phase) {
  return owned(probe(s, rank, slot, phase), reducer, owner);
}

static struct sml_conform_packet fence(const struct scenario *s, uint32_t rank, int64_t slot, int64_t phase) {
  struct sml_conform_packet p = with(codes(s, rank, slot, phase), SML_FIELD_BYTES, 1);
  p.num_values = 1;
  p.values[0] = 0;
  return with_symbol(of_window(p, SML_SYMBOL_TO_OWNERS), SML_FIELD_CHUNK, SML_SYMBOL_MAX, 0);
}

static struct sml_conform_packet about_fence(const struct scenario *s, uint32_t rank, int64_t slot, int64_t phase) {
  struct sml_conform_packet p = with(probe(s, rank, slot, phase), SML_FIELD_WIRE, SML_LANES_UINT8);
  p = of_window(with(p, SML_FIELD_REDUCER, SML_REDUCE_MAX), SML_SYMBOL_TO_OWNERS);
  return with_symbol(p, SML_FIELD_CHUNK, SML_SYMBOL_MAX, 0);
}

static void make_one_way_sums(struct scenario *s) {
  begin_one_way(s, "one_way_sums", "All but the owner contribute, in any order, and the owner alone hears", 3);
  for (uint32_t phase = 0; phase < 3; phase++)
    for (uint32_t owner = 0; owner < 3; owner++)
      for (uint32_t i = 1; i < 3; i++) put(s, part(s, (owner + (phase == 1 ? 3 - i : i)) % 3, owner, owner, phase));
  end(s);

  begin_one_way(s, "one_way_sums_of_two", "One contribution is the sum", 2);
  for (uint32_t owner = 0; owner < 2; owner++) put(s, part(s, 1 - owner, owner, owner, 0));
  end(s);

  begin_one_way(s, "one_way_copies", "The owner contributes, and all others hear; a byte needs no whole lane", 4);
  for (uint32_t phase = 0; phase < 3; phase++)
    for (uint32_t owner = 0; owner < 4; owner++)
      put(s, phase == 1 ? with(copy(s, owner, owner, 1), SML_FIELD_BYTES, 7 + owner) : copy(s, owner, owner, phase));
  end(s);

  begin_one_way(s, "one_way_fences_and_exponents", "Those of all ranks stand in the same windows", 3);
  for (uint32_t rank = 0; rank < 3; rank++) put(s, fence(s, rank, 0, 0));
  for (uint32_t rank = 0; rank < 3; rank++) put(s, of_window(codes(s, rank, 1, 0), SML_SYMBOL_TO_OWNERS));
  for (uint32_t rank = 0; rank < 3; rank++) put(s, fence(s, 2 - rank, 1, 1));
  end(s);

  begin_one_way(s, "one_way_beside_sums_of_all",
                "Slots of all windows at once; grants are those of the first alone", 3);
  put(s, part(s, 0, 2, 0, 0));
  put(s, update(s, 0, 0, 0));
  put(s, copy(s, 1, 1, 0));
  put(s, update(s, 1, 0, 0));
  put(s, part(s, 1, 2, 0, 0));
  put(s, update(s, 2, 0, 0));
  end(s);
}

static void make_one_way_losses(struct scenario *s) {
  begin_one_way(s, "one_way_sum_lost", "The owner asks: contributors alone are missing; then it hears again", 3);
  put(s, part(s, 0, 1, 0, 0));
  put(s, question(s, 1, SML_REDUCE_TO_OWNER, 1, 0, 0));
  put(s, flagged(part(s, 0, 1, 0, 0), AGAIN));
  put(s, flagged(part(s, 2, 1, 0, 0), AGAIN));
  put(s, question(s, 1, SML_REDUCE_TO_OWNER, 1, 0, 0));
  end(s);

  begin_one_way(s, "one_way_sum_not_begun", "Asked about before anybody contributed", 3);
  put(s, question(s, 0, SML_REDUCE_TO_OWNER, 0, 0, 0));
  for (uint32_t rank = 1; rank < 3; rank++) put(s, part(s, rank, 0, 0, 0));
  end(s);

  begin_one_way(s, "one_way_copy_lost", "A receiver asks: the owner is missing; then it hears again", 3);
  put(s, question(s, 0, SML_REDUCE_COPY, 2, 0, 0));
  put(s, copy(s, 2, 0, 0));
  put(s, question(s, 1, SML_REDUCE_COPY, 2, 0, 0));
  end(s);

  begin_one_way(s, "one_way_contributors_hear_nothing", "A repeated update of what is complete is no question", 3);
  for (uint32_t rank = 0; rank < 2; rank++) put(s, part(s, rank, 2, 0, 0));
  put(s, flagged(part(s, 0, 2, 0, 0), AGAIN));
  put(s, part(s, 1, 2, 0, 0));
  put(s, copy(s, 1, 1, 0));
  put(s, flagged(copy(s, 1, 1, 0), AGAIN));
  put(s, question(s, 2, SML_REDUCE_TO_OWNER, 2, 0, 0));
  end(s);

  begin_one_way(s, "one_way_duplicates", "A contribution counts once; late copies are stale", 3);
  put(s, part(s, 0, 1, 0, 0));
  put(s, part(s, 0, 1, 0, 0));
  put(s, part(s, 2, 1, 0, 0));
  for (uint32_t phase = 1; phase < 3; phase++)
    for (uint32_t rank = 0; rank < 3; rank += 2) put(s, part(s, rank, 1, 0, phase));
  put(s, part(s, 0, 1, 0, 0));
  put(s, flagged(part(s, 2, 1, 0, 0), AGAIN));
  end(s);
}

static void make_one_way_places(struct scenario *s) {
  begin_one_way(s, "one_way_fence_lost", "A fence is a chunk of all: repeats and questions are answered to anybody", 3);
  put(s, fence(s, 0, 0, 0));
  put(s, flagged(fence(s, 0, 0, 0), AGAIN));
  put(s, fence(s, 1, 0, 0));
  put(s, about_fence(s, 1, 0, 0));
  put(s, fence(s, 2, 0, 0));
  put(s, flagged(fence(s, 1, 0, 0), AGAIN));
  end(s);

  begin_one_way(s, "one_way_fence_passed",
                "A later fence says all that earlier ones would: what comes for these is late", 3);
  put(s, fence(s, 0, 3, 0));
  for (uint32_t rank = 0; rank < 3; rank++) put(s, fence(s, rank, 7, 0));
  put(s, flagged(fence(s, 1, 3, 0), AGAIN));
  put(s, fence(s, 2, 5, 0));
  put(s, about_fence(s, 2, 5, 0));
  put(s, fence(s, 1, 11, 0));
  for (uint32_t rank = 0; rank < 3; rank++) put(s, fence(s, rank, 3, 3));
  end(s);

  begin_one_way(s, "one_way_versions", "Each version of a slot is a place by itself", 3);
  for (uint32_t i = 0; i < 4; i++)
    for (uint32_t rank = 0; rank < 2; rank++) put(s, part(s, rank, 2, 0, (i & 1) << 1 | i >> 1)); /* as a stream goes */
  put(s, part(s, 0, 2, 1, 7));
  put(s, part(s, 0, 2, 1, 9));
  end(s);
}

static void put_pair(struct scenario *s, const char *name, const char *about, struct sml_conform_packet first,
                     struct sml_conform_packet second) {
  begin_one_way(s, name, about, 4);
  put(s, first);
  put(s, second);
  end(s);
}

static void make_one_way_mismatches(struct scenario *s) {
  s->vector.jobs[0] = (struct sml_conform_job){.num_ranks = 4}; /* for the packets that are made before begin() */
  const struct sml_conform_packet first = part(s, 0, 2, 0, 0);
  put_pair(s, "one_way_owners_differ", "One tag, two owners", first, part(s, 1, 3, 0, 0));
  put_pair(s, "one_way_tags_differ", "Another tag: another operation", first,
           with(part(s, 1, 2, 0, 0), SML_FIELD_TAG, 5));
  put_pair(s, "one_way_lengths_differ", "A shorter chunk", first, with(part(s, 1, 2, 0, 0), SML_FIELD_BYTES, 40));
  put_pair(s, "one_way_fence_and_exponents", "One rank is at a fence, another one at exponents", fence(s, 0, 0, 0),
           with_symbol(fence(s, 1, 0, 0), SML_FIELD_CHUNK, SML_SYMBOL_OWNER, 0));
  put_pair(s, "one_way_question_of_another", "A question about another owner's chunk", first,
           question(s, 3, SML_REDUCE_TO_OWNER, 3, 0, 0));
}

static void make_one_way_garbage(struct scenario *s) {
  begin_one_way(s, "one_way_out_of_place", "Each pair in its own window", 3);
  put(s, with(part(s, 0, 1, 0, 0), SML_FIELD_SLOT, 0));
  put(s, with(copy(s, 0, 0, 0), SML_FIELD_SLOT, 0));
  put(s, of_window(update(s, 0, 0, 0), SML_SYMBOL_TO_OWNERS));
  put(s, of_window(update(s, 0, 0, 0), SML_SYMBOL_COPIES));
  put(s, of_window(flagged(probe(s, 0, 0, 0), SML_FLAG_BY_GRANT), SML_SYMBOL_TO_OWNERS));
  put(s, of_window(part(s, 0, 1, 0, 0), SML_SYMBOL_COPIES));
  put(s, of_window(copy(s, 0, 0, 0), SML_SYMBOL_TO_OWNERS));
  put(s, with_symbol(fence(s, 0, 0, 0), SML_FIELD_CHUNK, SML_SYMBOL_OWNER, 1));
  put(s, part(s, 0, 1, 0, 0));
  put(s, part(s, 2, 1, 0, 0));
  end(s);

  begin_one_way(s, "one_way_of_others", "Owners that are none, and ranks that do not contribute", 3);
  put(s, part(s, 0, 3, 0, 0));
  put(s, with_symbol(part(s, 0, 0, 0, 0), SML_FIELD_CHUNK, SML_SYMBOL_MAX, 0));
  put(s, part(s, 1, 1, 0, 0));
  put(s, via(with(copy(s, 1, 0, 0), SML_FIELD_RANK, 0), 0));
  put(s, flagged(part(s, 0, 1, 0, 0), SML_FLAG_CHECKED));
  put(s, with(part(s, 0, 1, 0, 0), SML_FIELD_BYTES, 6));
  put(s, part(s, 0, 1, 0, 0));
  put(s, part(s, 2, 1, 0, 0));
  end(s);
}

/* A job without these windows, in either format. */
static void make_one_way_where_none_is(struct scenario *s) {
  begin(s, "one_way", "one_way_where_none_is", "In a job without such windows these pairs are no packets",
        (struct shape){.num_ranks = 2});
  put(s, with(with(update(s, 0, 0, 0), SML_FIELD_REDUCER, SML_REDUCE_TO_OWNER), SML_FIELD_CHUNK, 1));
  put(s, with(with(with(update(s, 0, 0, 0), SML_FIELD_WIRE, SML_LANES_UINT8), SML_FIELD_REDUCER, SML_REDUCE_COPY),
              SML_FIELD_CHUNK, 0));
  put(s, with(with(probe(s, 0, 0, 0), SML_FIELD_REDUCER, SML_REDUCE_TO_OWNER), SML_FIELD_CHUNK, 1));
  put_all(s, 0, 0, 0);
  end(s);
}

void make_one_way(struct scenario *s) {
  make_one_way_where_none_is(s);
  if (s->is_switch) return;
  make_one_way_sums(s);
  make_one_way_losses(s);
  make_one_way_places(s);
  make_one_way_mismatches(s);
  make_one_way_garbage(s);
}
