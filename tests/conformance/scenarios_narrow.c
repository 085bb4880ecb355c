/* SPDX-License-Identifier: Apache-2.0
 * Updates of 28 bits a lane (docs/PROTOCOL.md rules R66 to R69). Their values are the payload's words as they
 * travel, so that who plays them need not pack any. */
#include "quant/narrow.h"
#include "scenario.h"

#define AGAIN SML_FLAG_RETRANSMISSION
#define MAX_COLUMNS (SML_CONFORM_MAX_VALUES / SML_NARROW_ROWS)
#define LARGEST INT32_C(0x07ffffff)
#define SMALLEST (-LARGEST - 1)

static struct sml_conform_packet filled(const struct scenario *s, uint32_t rank, int64_t slot, int64_t phase,
                                        uint32_t num_words) {
  struct sml_conform_packet p = with(update(s, rank, slot, phase), SML_FIELD_BYTES, 4 * num_words);
  SML_ASSERT(num_words <= SML_CONFORM_MAX_VALUES);
  p.num_values = num_words;
  for (uint32_t i = 0; i < num_words; i++)
    p.values[i] = (uint32_t)sml_mix64(((uint64_t)p.fields[SML_FIELD_TAG].number << 20) + rank * 64 + i + 7);
  return p;
}

struct sml_conform_packet narrow_update(const struct scenario *s, uint32_t rank, int64_t slot, int64_t phase,
                                        uint32_t num_columns) {
  return flagged(filled(s, rank, slot, phase, 7 * num_columns), SML_FLAG_NARROW);
}

struct sml_conform_packet wide_update(const struct scenario *s, uint32_t rank, int64_t slot, int64_t phase,
                                      uint32_t num_columns) {
  return filled(s, rank, slot, phase, 8 * num_columns);
}

/* The same packet with lanes that are known. */
static struct sml_conform_packet with_lanes(struct sml_conform_packet p, uint32_t num_columns,
                                            const int32_t *lanes) {
  uint8_t wide[4 * SML_CONFORM_MAX_VALUES];
  for (uint32_t i = 0; i < 8 * num_columns; i++) sml_store_be32(wide + 4 * i, (uint32_t)lanes[i]);
  sml_narrow_lanes(wide, wide, 8 * num_columns);
  for (uint32_t i = 0; i < 7 * num_columns; i++) p.values[i] = sml_load_be32(wide + 4 * i);
  return p;
}

static struct sml_conform_packet full(struct sml_conform_packet p, int64_t more, uint32_t word) {
  p.num_values = 1;
  p.values[0] = word;
  return with_symbol(p, SML_FIELD_BYTES, SML_SYMBOL_NARROW, more);
}

static void begin_narrow(struct scenario *s, const char *name, const char *about, uint32_t num_ranks) {
  begin(s, "narrow", name, about, (struct shape){.num_ranks = num_ranks, .is_narrow = true});
}

/* ---- sums ---- */

static void make_narrow_sums(struct scenario *s) {
  begin_narrow(s, "narrow_sums", "1 to 5 columns of eight lanes: each lane with its own 28 bits and its sign",
               5);
  for (uint32_t phase = 0; phase < MAX_COLUMNS; phase++)
    for (uint32_t rank = 0; rank < 5; rank++)
      put(s, narrow_update(s, (rank + phase) % 5, 0, phase, phase + 1));
  end(s);

  begin_narrow(s, "narrow_lanes_in_place",
               "Lane i of one rank is i, of the other 1000 i less than 0: rows, then columns", 2);
  for (uint32_t rank = 0; rank < 2; rank++) {
    int32_t lanes[8 * MAX_COLUMNS];
    for (int32_t i = 0; i < (int32_t)SML_ARRAY_LEN(lanes); i++) lanes[i] = rank == 0 ? i : -1000 * i;
    put(s, with_lanes(narrow_update(s, rank, 1, 0, MAX_COLUMNS), MAX_COLUMNS, lanes));
  }
  end(s);

  begin_narrow(s, "narrow_of_a_full_chunk", "The largest: 28 bytes for 32 of the chunk; all lanes are alike",
               3);
  static const uint32_t words[3][3] = {{0x11111111, 0x88888888, 0xffffffff},
                                       {0x77777777, 0, 0x99999999},
                                       {0x88888888, 0x88888888, 0x88888888}};
  for (uint32_t phase = 0; phase < 3; phase++)
    for (uint32_t rank = 0; rank < 3; rank++)
      put(s, full(narrow_update(s, rank, 0, phase, 1), 0, words[phase][rank]));
  end(s);

  begin_narrow(s, "narrow_lanes_at_their_limits",
               "-2^27 and 2^27 - 1 in each row, the last one too, among others", 5);
  for (uint32_t rank = 0; rank < 5; rank++) {
    int32_t lanes[16];
    for (uint32_t i = 0; i < 16; i++)
      lanes[i] = (i + rank) % 3 == 0 ? SMALLEST : (i + rank) % 3 == 1 ? LARGEST : -1;
    put(s, with_lanes(narrow_update(s, rank, 0, 0, 2), 2, lanes));
  }
  end(s);

  begin_narrow(s, "narrow_sums_do_not_saturate",
               "16 times -2^27 is -2^31; with one more the sum wraps, as any other", 17);
  for (uint32_t rank = 0; rank < 17; rank++) {
    int32_t lanes[8];
    for (uint32_t i = 0; i < 8; i++) lanes[i] = i % 2 == 0 ? SMALLEST : LARGEST;
    put(s, with_lanes(narrow_update(s, rank, 0, 0, 1), 1, lanes));
  }
  end(s);
}

/* ---- beside others ---- */

static void make_narrow_meetings(struct scenario *s) {
  begin_narrow(s, "narrow_and_ordinary_updates_meet",
               "In one slot, in any order: an ordinary one has any 32 bits a lane", 3);
  for (uint32_t phase = 0; phase < 4; phase++)
    for (uint32_t rank = 0; rank < 3; rank++)
      put(s, (phase >> rank & 1) == (rank == 2) ? narrow_update(s, rank, 0, phase, 2)
                                                : wide_update(s, rank, 0, phase, 2));
  end(s);

  begin_narrow(s, "narrow_in_cells_of_others",
               "A cell holds maxima, ordinary and narrow updates, one after the other", 2);
  for (uint32_t phase = 0; phase < 6; phase++)
    for (uint32_t rank = 0; rank < 2; rank++)
      put(s, phase / 2 % 2 == 0 ? narrow_update(s, rank, 0, phase, 3)
             : phase % 2 == 0   ? codes(s, rank, 0, phase)
                                : wide_update(s, rank, 0, phase, 4));
  end(s);
}

static void make_narrow_losses(struct scenario *s) {
  begin_narrow(s, "narrow_updates_lost",
               "PENDING, a repeat, and the stored result: in full, whoever asks and how", 3);
  put(s, narrow_update(s, 0, 0, 0, 1));
  put(s, narrow_update(s, 2, 0, 0, 1));
  put(s, probe(s, 1, 0, 0));
  put(s, flagged(narrow_update(s, 2, 0, 0, 1), AGAIN));
  put(s, flagged(narrow_update(s, 1, 0, 0, 1), AGAIN));
  put(s, probe(s, 1, 0, 0));
  put(s, flagged(narrow_update(s, 0, 0, 0, 1), AGAIN));
  put(s, flagged(wide_update(s, 2, 0, 0, 1), AGAIN));
  end(s);

  begin_narrow(s, "narrow_duplicates", "A contribution counts once, narrow or not, and whatever its copy is",
               3);
  put(s, narrow_update(s, 0, 0, 0, 1));
  put(s, narrow_update(s, 0, 0, 0, 1));
  put(s, wide_update(s, 0, 0, 0, 1));
  put(s, flagged(narrow_update(s, 0, 0, 0, 1), AGAIN));
  put(s, wide_update(s, 1, 0, 0, 1));
  put(s, narrow_update(s, 1, 0, 0, 1));
  put(s, narrow_update(s, 2, 0, 0, 1));
  put(s, narrow_update(s, 2, 0, 0, 1));
  end(s);

  begin_narrow(s, "narrow_phases", "Late copies are stale; of the phase before they bring its result", 2);
  for (uint32_t phase = 0; phase < 3; phase++)
    for (uint32_t rank = 0; rank < 2; rank++) put(s, narrow_update(s, rank, 0, phase, 1));
  put(s, narrow_update(s, 0, 0, 0, 1));
  put(s, narrow_update(s, 0, 0, 1, 1));
  put(s, narrow_update(s, 1, 0, 3, 1));
  put(s, flagged(narrow_update(s, 0, 0, 1, 1), AGAIN));
  put(s, narrow_update(s, 0, 0, 2, 1));
  put(s, narrow_update(s, 0, 0, 3, 1));
  end(s);

  begin_narrow(s, "narrow_jump", "A phase that no honest member can be in is reported", 2);
  for (uint32_t rank = 0; rank < 2; rank++) put(s, narrow_update(s, rank, 0, 0, 1));
  put(s, narrow_update(s, 0, 0, 2, 1));
  end(s);
}

/* ---- what does not belong together ---- */

static void put_pair(struct scenario *s, const char *name, const char *about, struct sml_conform_packet first,
                     struct sml_conform_packet second) {
  begin_narrow(s, name, about, 3);
  put(s, first);
  put(s, second);
  end(s);
}

static void make_narrow_mismatches(struct scenario *s) {
  s->vector.jobs[0].num_ranks = 3; /* for the packets that are made before begin() */
  s->vector.jobs[0].is_checked = false;
  const struct sml_conform_packet narrow = narrow_update(s, 0, 0, 0, 1);
  struct sml_conform_packet seven = wide_update(s, 1, 0, 0, 1), first_seven = wide_update(s, 0, 0, 0, 1);
  struct sml_conform_packet code = codes(s, 1, 0, 0);
  seven = with(seven, SML_FIELD_BYTES, 28);
  first_seven = with(first_seven, SML_FIELD_BYTES, 28);
  code = with(with(code, SML_FIELD_BYTES, 32), SML_FIELD_TAG, narrow.fields[SML_FIELD_TAG].number);
  put_pair(s, "narrow_lengths_differ", "As many bytes, but seven lanes where the narrow one has eight",
           narrow, seven);
  put_pair(s, "narrow_lengths_differ_from_the_first", "Seven lanes first, then eight in as many bytes",
           first_seven, narrow_update(s, 1, 0, 0, 1));
  put_pair(s, "narrow_columns_differ", "One column and two", narrow, narrow_update(s, 1, 0, 0, 2));
  put_pair(s, "narrow_tags_differ", "Another tag: another operation", narrow,
           with(narrow_update(s, 1, 0, 0, 1), SML_FIELD_TAG, 5));
  put_pair(s, "narrow_wire_types_differ", "Exponents as long as the lanes are", narrow, code);
}

/* ---- what is dropped ---- */

static void make_narrow_garbage(struct scenario *s) {
  begin(s, "narrow", "narrow_where_none_is_agreed", "In a job without the feature it is no packet",
        (struct shape){.num_ranks = 2});
  put(s, wide_update(s, 0, 0, 0, 1));
  put(s, narrow_update(s, 1, 0, 0, 1));
  put(s, full(narrow_update(s, 1, 0, 0, 1), 0, 0));
  put(s, flagged(narrow_update(s, 1, 1, 0, 1), AGAIN));
  put(s, probe(s, 0, 0, 0));
  put(s, wide_update(s, 1, 0, 0, 1));
  end(s);

  begin_narrow(s, "narrow_lengths", "Payloads that no rows have, and more lanes than a chunk", 2);
  put(s, narrow_update(s, 0, 0, 0, 1));
  static const uint8_t lengths[] = {0, 1, 4, 24, 27, 29, 32, 42, 60};
  for (uint32_t i = 0; i < sizeof lengths; i++)
    put(s, with(narrow_update(s, 1, 0, 0, 1), SML_FIELD_BYTES, lengths[i]));
  for (int64_t more = -4; more <= 28; more += more == 4 ? 24 : 4)
    if (more != 0) put(s, full(narrow_update(s, 1, 0, 0, 1), more, 0));
  put(s, with_symbol(narrow_update(s, 1, 0, 0, 1), SML_FIELD_BYTES, SML_SYMBOL_FULL, 0));
  put(s, narrow_update(s, 1, 0, 0, 1));
  end(s);

  begin_narrow(s, "narrow_truncated", "Shorter or longer than the header says", 2);
  put(s, narrow_update(s, 0, 0, 0, 2));
  struct sml_conform_packet p = narrow_update(s, 1, 0, 0, 2), q = p;
  p.cut_bytes = 28;
  put(s, p);
  p.cut_bytes = 1;
  put(s, p);
  q.extra_bytes = 8;
  put(s, q);
  put(s, with(narrow_update(s, 1, 0, 0, 2), SML_FIELD_PAYLOAD_BYTES, 64));
  put(s, with(narrow_update(s, 1, 0, 0, 2), SML_FIELD_PAYLOAD_BYTES, 28));
  put(s, narrow_update(s, 1, 0, 0, 2));
  end(s);

  begin_narrow(s, "narrow_of_other_types", "NARROW is a flag of sums of lanes alone, and of UPDATEs", 2);
  put(s, narrow_update(s, 0, 0, 0, 1));
  put(s, flagged(probe(s, 1, 0, 0), SML_FLAG_NARROW));
  put(s, flagged(with(codes(s, 1, 1, 0), SML_FIELD_BYTES, 28), SML_FLAG_NARROW));
  put(s, flagged(narrow_update(s, 1, 0, 0, 1), SML_FLAG_CHECKED));
  put(s, with(narrow_update(s, 1, 0, 0, 1), SML_FIELD_TYPE, SML_PACKET_RESULT));
  put(s, narrow_update(s, 1, 0, 0, 1));
  end(s);

  begin(s, "narrow", "narrow_is_not_checked",
        "In a job that has both features, only CHECKED updates of lanes are due",
        (struct shape){.num_ranks = 2, .is_checked = true, .is_narrow = true});
  put(s, update(s, 0, 0, 0));
  put(s, with(narrow_update(s, 1, 0, 0, 1), SML_FIELD_FLAGS, SML_FLAG_NARROW));
  put(s, narrow_update(s, 1, 0, 0, 1));
  put(s, update(s, 1, 0, 0));
  end(s);
}

void make_narrow(struct scenario *s) {
  make_narrow_sums(s);
  make_narrow_meetings(s);
  make_narrow_losses(s);
  make_narrow_mismatches(s);
  make_narrow_garbage(s);
}
