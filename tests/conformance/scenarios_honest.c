/* SPDX-License-Identifier: Apache-2.0
 * What well-behaved ranks send, and what networks do with it. */
#include "scenario.h"

#define AGAIN SML_FLAG_RETRANSMISSION

static void make_plain_sums(struct scenario *s) {
  static const uint32_t ordinary[] = {2, 3, 4, 8, 9, 64}, switches[] = {2, 3, 4, 8, 9, 30};
  const uint32_t *sizes = s->is_switch ? switches : ordinary;
  const size_t num_sizes = s->is_switch ? SML_ARRAY_LEN(switches) : SML_ARRAY_LEN(ordinary);
  for (size_t i = 0; i < num_sizes; i++) {
    char name[64];
    snprintf(name, sizeof name, "sum_of_%u", sizes[i]);
    begin(s, "sums", name, "All ranks' updates of one slot: the sum, modulo 2^32, and the first grant, to all",
          (struct shape){.num_ranks = sizes[i]});
    put_all(s, 0, 0, 0);
    if (sizes[i] <= 8) put_all(s, 1, 0, 1);
    end(s);
  }
}

static struct sml_conform_packet with_values(struct sml_conform_packet p, uint32_t num_values,
                                             const uint32_t *values) {
  p.num_values = num_values;
  memcpy(p.values, values, num_values * sizeof *values);
  return p;
}

static void make_numbers(struct scenario *s) {
  static const uint32_t extremes[2][5] = {{0x7fffffff, 0x80000000, 0xffffffff, 0, 0x40000000},
                                          {1, 0x80000000, 1, 0, 0x40000000}};
  begin(s, "sums", "sums_wrap", "Lanes wrap modulo 2^32, and do not saturate", (struct shape){.num_ranks = 2});
  for (uint32_t rank = 0; rank < 2; rank++) put(s, with_values(update(s, rank, 0, 0), 5, extremes[rank]));
  end(s);

  begin(s, "sums", "every_lane_is_its_own", "37 different elements: a lane that is another's shows",
        (struct shape){.num_ranks = 2});
  for (uint32_t rank = 0; rank < 2; rank++) {
    struct sml_conform_packet p = update(s, rank, 1, 0);
    p.num_values = 37;
    for (uint32_t i = 0; i < 37; i++) p.values[i] = (i + 1) * (rank == 0 ? 1000 : 1);
    put(s, p);
  }
  end(s);

  begin(s, "sums", "update_chunk_is_information", "An UPDATE's chunk field decides nothing",
        (struct shape){.num_ranks = 2});
  put(s, with(update(s, 0, 0, 0), SML_FIELD_CHUNK, 77));
  put(s, with(update(s, 1, 0, 0), SML_FIELD_CHUNK, 4711));
  end(s);
  if (s->is_switch) return;

  begin(s, "sums", "short_chunks", "The last chunk of a tensor is short, down to one element",
        (struct shape){.num_ranks = 2});
  for (uint32_t phase = 0; phase < 3; phase++)
    for (uint32_t rank = 0; rank < 2; rank++)
      put(s, with(update(s, rank, 0, phase), SML_FIELD_BYTES, phase == 0 ? 4 : phase == 1 ? 28 : 8));
  end(s);
}

static void make_exponents(struct scenario *s) {
  begin(s, "exponents", "exponents_are_maxima",
        "Exponent codes: the largest of all ranks, and a grant as for any chunk", (struct shape){.num_ranks = 3});
  for (uint32_t phase = 0; phase < 2; phase++)
    for (uint32_t rank = 3; rank-- > 0;) put(s, codes(s, rank, 2, phase));
  put(s, flagged(codes(s, 1, 2, 1), AGAIN));
  end(s);

  static const uint32_t extremes[3][4] = {{0, 255, 0, 27}, {0, 0, 128, 254}, {0, 1, 127, 26}};
  begin(s, "exponents", "exponents_at_their_limits", "0 and 255 are codes like others; 128 is more than 127",
        (struct shape){.num_ranks = 3});
  for (uint32_t rank = 0; rank < 3; rank++) put(s, with_values(codes(s, rank, 0, 0), 4, extremes[rank]));
  end(s);

  begin(s, "exponents", "exponents_then_sums_in_one_cell", "A cell that held maxima starts over with a sum",
        (struct shape){.num_ranks = 2});
  for (uint32_t phase = 0; phase < 3; phase++)
    for (uint32_t rank = 0; rank < 2; rank++)
      put(s, phase == 0 ? codes(s, rank, 0, phase) : update(s, rank, 0, phase));
  end(s);
  if (s->is_switch) return;
  begin(s, "exponents", "exponents_of_any_length", "One code is a chunk; bytes are not rounded to words",
        (struct shape){.num_ranks = 2});
  for (uint32_t phase = 0; phase < 2; phase++)
    for (uint32_t rank = 0; rank < 2; rank++)
      put(s, with(codes(s, rank, 0, phase), SML_FIELD_BYTES, phase == 0 ? 1 : 7));
  end(s);
}

/* Lanes in which a wrong width or sign shows: the lower half alone, or the upper one, decides. */
static void make_reductions(struct scenario *s) {
  static const struct {
    const char *name, *about;
    uint8_t wire, reducer;
  } all[] = {{"maxima_of_32_bits", "Lanes without a sign: the largest of all ranks", 2, 1},
             {"maxima_of_64_bits", "Two lanes are a number, the upper one first", 3, 1},
             {"products_of_32_bits", "Modulo 2^32", 2, 4},
             {"products_of_64_bits", "Two lanes are a number, modulo 2^64", 3, 4},
             {"bits_of_any", "What is set at any rank", 2, 5}};
  static const uint32_t values[3][6] = {{0x80000000, 1, 7, 0xffffffff, 0, 3},
                                        {0x7fffffff, 0xffffffff, 7, 0x80000000, 0xffffffff, 5},
                                        {0x80000000, 2, 6, 0xffffffff, 1, 0x80000001}};
  for (size_t i = 0; i < (s->is_switch ? 1 : SML_ARRAY_LEN(all)); i++) {
    begin(s, "reductions", all[i].name, all[i].about, (struct shape){.num_ranks = 3, .is_checked = i % 2 == 0});
    for (uint32_t rank = 0; rank < 3; rank++) {
      struct sml_conform_packet p = with_values(codes(s, rank, 0, 0), 6, values[rank]);
      if (!s->is_switch) p = with(p, SML_FIELD_BYTES, 24);
      put(s, with(with(p, SML_FIELD_WIRE, all[i].wire), SML_FIELD_REDUCER, all[i].reducer));
    }
    put(s, probe(s, 1, 0, 0));
    end(s);
  }
  if (s->is_switch) return;
  begin(s, "reductions", "numbers_of_64_bits_are_whole", "Three lanes are no numbers of 64 bits",
        (struct shape){.num_ranks = 2});
  put(s, with(with(with(update(s, 0, 0, 0), SML_FIELD_BYTES, 12), SML_FIELD_WIRE, 3), SML_FIELD_REDUCER, 1));
  put_all(s, 0, 0, 0);
  end(s);
}

static void make_grants(struct scenario *s) {
  begin(s, "grants", "grants_follow_completion", "Grants are drawn in the order of completion, whatever the slot",
        (struct shape){.num_ranks = 2});
  for (uint32_t phase = 0; phase < 3; phase++)
    for (uint32_t i = 0; i < 8; i++)
      put(s, i < 4 ? update(s, 0, i, phase) : update(s, 1, (i * 3 + phase) % 4, phase));
  end(s);

  begin(s, "grants", "windows_go_round", "All slots in another order each phase, ranks in turn last",
        (struct shape){.num_ranks = 2});
  for (uint32_t phase = 0; phase < 4; phase++)
    for (uint32_t i = 0; i < 4; i++) put_all(s, (i + phase) % 2, (i * 3 + phase) % 4, phase);
  end(s);

  begin(s, "grants", "grants_are_repeated",
        "A repeated result has the grant of the first, after others were drawn too",
        (struct shape){.num_ranks = 2});
  put_all(s, 0, 0, 0);
  put_all(s, 0, 1, 0);
  put_all(s, 0, 2, 0);
  put(s, probe(s, 1, 0, 0));
  put(s, flagged(update(s, 0, 1, 0), AGAIN));
  put_all(s, 1, 0, 1);
  put(s, probe(s, 1, 0, 0));
  put(s, probe(s, 0, 0, 1));
  end(s);

  begin(s, "grants", "asked_by_grant",
        s->is_switch ? "PROBE with BY_GRANT is dropped: a switch does not look for grants"
                     : "PROBE with BY_GRANT: the result that came with the grant, whatever slot, phase and tag say",
        (struct shape){.num_ranks = 2});
  put_all(s, 0, 0, 0);
  put_all(s, 0, 1, 0);
  put_all(s, 0, 0, 1);
  for (int64_t grant = 0; grant < 4; grant++) {
    struct sml_conform_packet p = flagged(probe(s, 1, 3, 9), SML_FLAG_BY_GRANT);
    put(s, with_symbol(p, SML_FIELD_CHUNK, SML_SYMBOL_SLOTS, grant));
  }
  put(s, update(s, 0, 0, 2)); /* the cell of the first grant starts over */
  put(s, with_symbol(flagged(probe(s, 1, 0, 0), SML_FLAG_BY_GRANT), SML_FIELD_CHUNK, SML_SYMBOL_SLOTS, 0));
  put(s, with(flagged(probe(s, 1, 0, 0), SML_FLAG_BY_GRANT), SML_FIELD_CHUNK, 0)); /* never granted */
  end(s);
}

static void put_lanes(struct scenario *s, uint32_t rank, int64_t slot, const uint32_t *lanes, uint32_t num_lanes) {
  struct sml_conform_packet p = update(s, rank, slot, 0);
  p.num_values = num_lanes;
  memcpy(p.values, lanes, num_lanes * sizeof *lanes);
  put(s, p);
}

/* Stages of an operation in exact mode are int32 SUMs (PROTOCOL.md rules R200 to R205). Blocks of float32 in which
 * rank 0 has 1.0 and rank 1 has 2^-20: bits 149 and 129 of the range, in cells 18 and 16, so one limb from bit 128
 * on has both. */
static void make_exact_stages(struct scenario *s) {
  static const uint32_t codes_of[2][3] = {{0, 1u << 4, 0}, {0, 1, 0}}, limbs[2] = {1u << 21, 1u << 1};
  begin(s, "sums", "exact_mode_stages", "Codes of blocks of 1.0 and of 2^-20, then their one limb: 1 + 2^-20",
        (struct shape){.num_ranks = 2});
  for (uint32_t rank = 0; rank < 2; rank++) put_lanes(s, rank, 0, codes_of[rank], 3);
  for (uint32_t rank = 0; rank < 2; rank++) put_lanes(s, rank, 1, &limbs[rank], 1);
  end(s);
}

void make_sums(struct scenario *s) {
  make_plain_sums(s);
  make_exact_stages(s);
  make_numbers(s);
  make_exponents(s);
  make_reductions(s);
  make_grants(s);

  begin(s, "sums", "checked_sums", "The check word is the payload's last lane, stored and added like the others",
        (struct shape){.num_ranks = 3, .is_checked = true});
  put_all(s, 0, 0, 0);
  put(s, probe(s, 1, 0, 0));
  for (uint32_t rank = 0; rank < 3; rank++) put(s, codes(s, rank, 0, 1));
  struct sml_conform_packet about_codes = probe(s, 2, 0, 1);
  if (s->is_switch) about_codes = with(with(about_codes, SML_FIELD_WIRE, SML_LANES_UINT32), SML_FIELD_REDUCER, 1);
  put(s, about_codes);
  if (s->is_switch) put(s, probe(s, 1, 0, 1)); /* no honest one: the answer has the wire of the question */
  if (!s->is_switch)
    for (uint32_t rank = 0; rank < 3; rank++) put(s, with(update(s, rank, 0, 2), SML_FIELD_BYTES, 8));
  end(s);

  begin(s, "jobs", "two_jobs", "Two jobs beside each other: own cells, own grants, the same slots and phases",
        (struct shape){.num_ranks = 2, .num_ranks_1 = 3});
  for (uint32_t phase = 0; phase < 2; phase++)
    for (uint32_t rank = 0; rank < 3; rank++) {
      put(s, of_job(update(s, rank, 0, phase), 1));
      if (rank < 2) put(s, update(s, rank, 0, phase));
    }
  put(s, of_job(probe(s, 2, 0, 1), 1));
  put(s, probe(s, 1, 0, 1));
  put(s, of_job(update(s, 2, 1, 0), 1));
  put(s, probe(s, 0, 1, 0));
  end(s);
}

void make_losses(struct scenario *s) {
  begin(s, "loss", "update_lost",
        "An update never came: PENDING names who is missing, and the repeat completes the sum",
        (struct shape){.num_ranks = 3});
  put(s, update(s, 0, 0, 0));
  put(s, update(s, 2, 0, 0));
  put(s, probe(s, 0, 0, 0));
  put(s, probe(s, 1, 0, 0));
  put(s, flagged(update(s, 1, 0, 0), AGAIN));
  end(s);

  begin(s, "loss", "result_lost",
        "A result never came: the stored one goes to who asks, again and again, to nobody else",
        (struct shape){.num_ranks = 3});
  put_all(s, 0, 0, 0);
  put(s, probe(s, 2, 0, 0));
  put(s, probe(s, 2, 0, 0));
  put(s, flagged(update(s, 0, 0, 0), AGAIN));
  end(s);

  begin(s, "loss", "result_lost_while_others_go_on",
        "Others are one phase ahead: the old result is there as long as one lacks it",
        (struct shape){.num_ranks = 3});
  put_all(s, 0, 0, 0);
  put(s, update(s, 0, 0, 1));
  put(s, update(s, 1, 0, 1));
  put(s, probe(s, 2, 0, 0));
  put(s, probe(s, 0, 0, 1));
  put(s, update(s, 2, 0, 1));
  put(s, probe(s, 1, 0, 0));
  end(s);

  begin(s, "loss", "nothing_came",
        "A PROBE for a slot that nobody has used: all ranks are missing, and nothing is begun",
        (struct shape){.num_ranks = 3});
  put(s, probe(s, 1, 1, 0));
  put(s, update(s, 1, 1, 0));
  put(s, probe(s, 1, 1, 0));
  end(s);

  begin(s, "loss", "nothing_came_of_a_later_phase", "The same for a cell that holds the result before the last",
        (struct shape){.num_ranks = 2});
  for (uint32_t phase = 0; phase < 2; phase++) put_all(s, 0, 0, phase);
  put(s, probe(s, 0, 0, 2));
  put(s, probe(s, 1, 0, 1));
  put_all(s, 1, 0, 2);
  end(s);
  const uint32_t most = s->is_switch ? 30 : 64;
  begin(s, "loss", "pending_of_many_ranks", "The bitmap: c is bit c % 8 of byte c / 8",
        (struct shape){.num_ranks = most});
  put(s, update(s, 9, 0, 0));
  put(s, update(s, most - 1, 0, 0));
  put(s, probe(s, 0, 0, 0));
  put(s, flagged(update(s, 9, 0, 0), AGAIN));
  put(s, update(s, 0, 0, 0));
  put(s, probe(s, most - 1, 0, 0));
  end(s);
}

static void make_duplicates(struct scenario *s) {
  begin(s, "duplicates", "duplicate_updates",
        "A contribution counts once; a copy is dropped, one marked RETRANSMISSION is answered",
        (struct shape){.num_ranks = 3});
  put(s, update(s, 0, 0, 0));
  put(s, update(s, 0, 0, 0));
  put(s, flagged(update(s, 0, 0, 0), AGAIN));
  put(s, update(s, 1, 0, 0));
  put(s, update(s, 1, 0, 0));
  put(s, update(s, 0, 0, 0));
  put(s, update(s, 2, 0, 0));
  end(s);

  begin(s, "duplicates", "duplicates_of_what_is_complete", "Once complete, any copy brings the stored result",
        (struct shape){.num_ranks = 2});
  put_all(s, 0, 0, 0);
  put(s, update(s, 0, 0, 0));
  put(s, flagged(update(s, 1, 0, 0), AGAIN));
  put(s, probe(s, 1, 0, 0));
  put(s, flagged(probe(s, 1, 0, 0), SML_FLAG_DEAF)); /* no multicast here: means nothing */
  end(s);

  begin(s, "duplicates", "duplicate_of_other_values", "It is not looked at: what came first is in the sum",
        (struct shape){.num_ranks = 2});
  put(s, update(s, 0, 0, 0));
  struct sml_conform_packet p = flagged(update(s, 0, 0, 0), AGAIN);
  p.values[0] ^= 1;
  put(s, p);
  put(s, update(s, 1, 0, 0));
  end(s);
}

void make_orders(struct scenario *s) {
  make_duplicates(s);
  begin(s, "reordering", "late_copies",
        "Copies that later packets overtook: the result while it is there, stale afterwards",
        (struct shape){.num_ranks = 2});
  put_all(s, 0, 0, 0);
  put(s, update(s, 0, 0, 1));
  put(s, update(s, 0, 0, 0));
  put(s, update(s, 1, 0, 1));
  put(s, update(s, 1, 0, 0));
  put(s, update(s, 0, 0, 2));
  put(s, update(s, 0, 0, 0));
  put(s, flagged(update(s, 1, 0, 0), AGAIN));
  put(s, probe(s, 1, 0, 0));
  put(s, update(s, 1, 0, 1));
  put(s, update(s, 1, 0, 2));
  end(s);

  begin(s, "reordering", "late_copy_of_the_same_version",
        "Phase p is no contribution to p + 2, though the version is the same", (struct shape){.num_ranks = 3});
  for (uint32_t phase = 0; phase < 2; phase++) put_all(s, phase, 0, phase);
  put(s, update(s, 1, 0, 2));
  put(s, update(s, 0, 0, 0));
  put(s, update(s, 0, 0, 2));
  put(s, update(s, 2, 0, 0));
  put(s, update(s, 2, 0, 2));
  end(s);

  begin(s, "reordering", "slots_in_any_order", "Slots do not wait for each other", (struct shape){.num_ranks = 3});
  put(s, update(s, 0, 3, 0));
  put(s, update(s, 1, 0, 0));
  put(s, update(s, 2, 3, 0));
  put(s, update(s, 0, 0, 0));
  put(s, update(s, 2, 0, 0));
  put(s, update(s, 0, 0, 1));
  put(s, update(s, 1, 3, 0));
  end(s);
}
