/* SPDX-License-Identifier: Apache-2.0
 * What no honest rank sends: nothing of it may change a sum, and what shows a wrong member is reported. */
#include "scenario.h"

#define AGAIN SML_FLAG_RETRANSMISSION
#define LAST_PHASE (INT64_C(1) << 32) /* less first_phase: one too many */

/* ---- phases ---- */

/* Vectors of one packet that shows a wrong member: the report ends the job, and the vector. */
static void put_jump(struct scenario *s, const char *name, const char *about, uint32_t num_before, int64_t phase,
                     bool is_probe) {
  begin(s, "phases", name, about, (struct shape){.num_ranks = 2});
  for (uint32_t p = 0; p < num_before; p++) put_all(s, 0, 0, p);
  put(s, is_probe ? probe(s, 1, 0, phase) : update(s, 1, 0, phase));
  if (s->is_switch && num_before > 0) put(s, probe(s, 0, 0, num_before - 1)); /* as if nothing had been */
  for (uint32_t p = num_before; s->is_switch && p < num_before + 2; p++) put_all(s, 0, 0, p);
  end(s);
}

static void make_jumps(struct scenario *s) {
  static const char reported[] = "A phase that no honest member can be in is reported, and ends the job",
                    dropped[] = "A phase beyond the cell's next one is dropped: a switch does not report it";
  const char *about = s->is_switch ? dropped : reported;
  if (!s->is_switch) put_jump(s, "jump_by_two", about, 1, 2, false);
  put_jump(s, "jump_by_three", about, 1, 3, false);
  if (s->is_switch) put_jump(s, "jump_by_four", about, 1, 4, false);
  put_jump(s, "jump_from_an_unused_slot", about, 0, s->is_switch ? 3 : 1, false);
  if (s->is_switch) put_jump(s, "jump_in_an_unused_cell", about, 0, 2, false);
  put_jump(s, "jump_over_half_of_all", "Phases are compared as unsigned numbers, in full: 2^31 further is later", 1,
           INT64_C(1) << 31, false);
  put_jump(s, "jump_by_probe",
           s->is_switch ? "A PROBE of a phase beyond the cell's next one is dropped, too" : about, 1, 3, true);
  begin(s, "phases", "jump_to_the_last", about, (struct shape){.num_ranks = 2});
  put_all(s, 0, 0, 0);
  put(s, with_symbol(update(s, 1, 0, 1), SML_FIELD_PHASE, SML_SYMBOL_MAX, 0));
  if (s->is_switch) put_all(s, 0, 0, 1);
  end(s);

  begin(s, "phases", "jump_over_an_open_phase",
        s->is_switch ? "A switch looks at the phase's own cell only: the phase between them may be open" : about,
        (struct shape){.num_ranks = 2});
  put_all(s, 0, 0, 0);
  put(s, update(s, 0, 0, 1));
  put(s, update(s, 0, 0, 2));
  if (s->is_switch) put(s, update(s, 1, 0, 2));
  end(s);
}

static void make_limits(struct scenario *s) {
  const int64_t room = LAST_PHASE - 0xfffffffc;
  begin(s, "phases", "phases_up_to_the_last",
        "Phases grow to 2^32 - 1; they never wrap: what is smaller then is stale",
        (struct shape){.num_ranks = 2, .first_phase = 0xfffffffc});
  for (int64_t phase = 0; phase < room; phase++) put_all(s, (uint32_t)phase % 2, 0, phase);
  put(s, probe(s, 0, 0, room - 1));
  put(s, probe(s, 1, 0, room - 2));
  put(s, update(s, 0, 0, room));     /* 0 */
  put(s, update(s, 0, 0, room + 2)); /* first_phase of other jobs */
  put(s, update(s, 0, 0, room + 3));
  put(s, update(s, 0, 0, -1));
  end(s);

  begin(s, "phases", "phases_across_the_sign", "Nothing special is at 2^31: phases are unsigned",
        (struct shape){.num_ranks = 2, .first_phase = 0x7ffffffe});
  for (int64_t phase = 0; phase < 4; phase++) put_all(s, (uint32_t)phase % 2, 1, phase);
  put(s, update(s, 0, 1, 0));
  put(s, update(s, 1, 1, 1));
  put(s, probe(s, 1, 1, 3));
  end(s);
}

void make_phases(struct scenario *s) {
  make_jumps(s);
  make_limits(s);
  begin(s, "phases", "stale_phases",
        "An older phase than the cell's is dropped, whoever sends it, and whatever asks",
        (struct shape){.num_ranks = 2});
  for (uint32_t phase = 0; phase < 4; phase++) put_all(s, 0, 0, phase);
  for (int64_t phase = -2; phase < 2; phase++) {
    put(s, update(s, 0, 0, phase));
    put(s, flagged(update(s, 1, 0, phase), AGAIN));
    put(s, probe(s, 0, 0, phase));
  }
  put(s, with(update(s, 0, 0, 0), SML_FIELD_TAG, 1)); /* stale before it is another's */
  put_all(s, 0, 0, 4);
  end(s);
  begin(s, "phases", "phases_before_the_first",
        "Zero-filled state is older than anything: phases 0 and 1 are stale in a fresh slot, too",
        (struct shape){.num_ranks = 2});
  put(s, update(s, 0, 0, -2));
  put(s, update(s, 0, 0, -1));
  put(s, update(s, 1, 0, -2));
  put(s, update(s, 1, 0, -1));
  put(s, probe(s, 0, 1, -2));
  put(s, probe(s, 1, 0, -1));
  put_all(s, 0, 0, 0);
  end(s);
}

/* ---- what does not belong together ---- */

static void put_mismatch(struct scenario *s, const char *name, const char *about, uint32_t num_ranks,
                         uint32_t num_before, struct sml_conform_packet wrong) {
  begin(s, "mismatches", name, about, (struct shape){.num_ranks = num_ranks});
  for (uint32_t rank = 0; rank < num_before; rank++) put(s, update(s, rank, 0, 0));
  put(s, wrong);
  end(s);
}

void make_mismatches(struct scenario *s) {
  s->vector.jobs[0].num_ranks = 3; /* for the packets that are made before begin() */
  s->vector.jobs[0].is_checked = false;
  const struct sml_conform_packet right = update(s, 2, 0, 0), asked = probe(s, 2, 0, 0);
  put_mismatch(s, "tags_differ", "Another tag: another operation. Both ranks are named, and the job ends", 3, 2,
               with(right, SML_FIELD_TAG, 0x12345678));
  put_mismatch(s, "tags_differ_by_one_bit", "All 32 bits of the tag count", 3, 1,
               with(right, SML_FIELD_TAG, right.fields[SML_FIELD_TAG].number ^ INT64_C(0x80000000)));
  put_mismatch(s, "tags_differ_after_completion", "A complete cell knows its tag, too", 2, 2,
               via(with(update(s, 1, 0, 0), SML_FIELD_TAG, 5), 1));
  put_mismatch(s, "probes_tag_differs", "A PROBE has a tag as well", 3, 1, with(asked, SML_FIELD_TAG, 5));
  if (s->is_switch) return;
  put_mismatch(s, "lengths_differ", "Two chunks of different length in one slot", 3, 2,
               with(right, SML_FIELD_BYTES, 28));
  put_mismatch(s, "lengths_differ_from_a_shorter", "The longer one is no better", 3, 0,
               with(right, SML_FIELD_BYTES, 28));
  struct sml_conform_packet code = codes(s, 2, 0, 0);
  put_mismatch(s, "wire_types_differ", "Exponents where lanes are: same tag, same length", 3, 1,
               with(code, SML_FIELD_TAG, right.fields[SML_FIELD_TAG].number));
}

/* ---- strangers ---- */

void make_strangers(struct scenario *s) {
  begin(s, "strangers", "foreign_jobs_and_epochs",
        "Another job, or another epoch of this one: dropped; ERROR may be the answer",
        (struct shape){.num_ranks = 2});
  put(s, update(s, 0, 0, 0));
  put(s, with_symbol(update(s, 1, 0, 0), SML_FIELD_JOB, SML_SYMBOL_UNKNOWN, 0));
  put(s, with(update(s, 1, 0, 0), SML_FIELD_EPOCH, -1));
  put(s, with(flagged(update(s, 1, 0, 0), AGAIN), SML_FIELD_EPOCH, 1));
  put(s, with(probe(s, 1, 0, 0), SML_FIELD_EPOCH, -1));
  put(s, with(probe(s, 1, 0, 0), SML_FIELD_EPOCH, INT64_C(1) << 31));
  put(s, update(s, 1, 0, 0));
  end(s);

  begin(s, "strangers", "foreign_ranks", "Ranks that the job does not have, and a rank that is another's",
        (struct shape){.num_ranks = 3});
  put(s, update(s, 0, 0, 0));
  put(s, with_symbol(via(update(s, 1, 0, 0), 1), SML_FIELD_RANK, SML_SYMBOL_RANKS, 0));
  put(s, with(via(update(s, 1, 0, 0), 1), SML_FIELD_RANK, 65535));
  put(s, with(via(update(s, 1, 0, 0), 1), SML_FIELD_RANK, 32));
  put(s, via(update(s, 2, 0, 0), 1));
  put(s, via(probe(s, 0, 0, 0), 1));
  put(s, update(s, 1, 0, 0));
  put(s, update(s, 2, 0, 0));
  put(s, via(probe(s, 2, 0, 0), 1));
  end(s);

  begin(s, "strangers", "foreign_addresses",
        "A rank's packets from an address that it did not register: nobody gets an answer",
        (struct shape){.num_ranks = 2});
  put(s, via(update(s, 0, 0, 0), SML_CONFORM_STRANGER));
  put(s, via(probe(s, 0, 0, 0), SML_CONFORM_STRANGER));
  put(s, update(s, 1, 0, 0));
  put(s, via(update(s, 0, 0, 0), SML_CONFORM_STRANGER));
  put(s, update(s, 0, 0, 0));
  put(s, via(probe(s, 1, 0, 0), SML_CONFORM_STRANGER));
  end(s);

  begin(s, "jobs", "ranks_of_another_job", "A member of one job is a stranger in the other",
        (struct shape){.num_ranks = 2, .num_ranks_1 = 2});
  put(s, update(s, 0, 0, 0));
  put(s, of_job(update(s, 0, 0, 0), 1));
  put(s, with(of_job(update(s, 1, 0, 0), 1), SML_FIELD_EPOCH, 1));
  put(s, of_job(update(s, 1, 0, 0), 1));
  put(s, of_job(probe(s, 0, 0, 0), 1));
  put(s, probe(s, 0, 0, 0));
  end(s);

  begin(s, "slots", "slots_outside_the_window", "A job's window is its own: the slots beside it are not reached",
        (struct shape){.num_ranks = 2});
  put(s, with_symbol(update(s, 0, 0, 0), SML_FIELD_SLOT, SML_SYMBOL_SLOTS, 0));
  put(s, with_symbol(update(s, 1, 0, 0), SML_FIELD_SLOT, SML_SYMBOL_SLOTS, 0));
  put(s, with(update(s, 0, 0, 0), SML_FIELD_SLOT, -1));
  put(s, with_symbol(probe(s, 0, 0, 0), SML_FIELD_SLOT, SML_SYMBOL_SLOTS, 7));
  put(s, with(update(s, 0, 0, 0), SML_FIELD_SLOT, 32768));
  put(s, with_symbol(update(s, 0, 0, 0), SML_FIELD_SLOT, SML_SYMBOL_SLOTS, -1));
  put(s, with_symbol(update(s, 1, 0, 0), SML_FIELD_SLOT, SML_SYMBOL_SLOTS, -1));
  end(s);
}

/* ---- garbage ---- */

/* Between two halves of a sum, which comes out right. */
static void begin_garbage(struct scenario *s, const char *name, const char *about, struct shape shape) {
  begin(s, "garbage", name, about, shape);
  put(s, update(s, 0, 0, 0));
}

static void end_garbage(struct scenario *s) {
  put(s, update(s, 1, 0, 0));
  end(s);
}

static void make_headers(struct scenario *s) {
  static const uint8_t pairs[][2] = {{0, 1}, {1, 0}, {2, 0}, {3, 0}, {0, 4}, {1, 4}, {1, 5}, {3, 5}, {15, 15}, {0, 8}};
  static const uint8_t no_switch_has[][2] = {{1, 1}, {3, 1}, {2, 4}, {3, 4}, {2, 5}};
  begin_garbage(s, "versions", "Other wire versions", (struct shape){.num_ranks = 2});
  for (int64_t version = 0; version < 16; version += version == 0 ? 2 : version == 2 ? 13 : 1)
    put(s, with(update(s, 1, 0, 0), SML_FIELD_VERSION, version));
  end_garbage(s);

  begin_garbage(s, "types", "Types that nobody has, those of switches, and answers sent upwards",
                (struct shape){.num_ranks = 2});
  static const uint8_t types[] = {0, 6, 8, 14, 15, SML_PACKET_RESULT, SML_PACKET_PENDING, SML_PACKET_ERROR};
  for (size_t i = 0; i < sizeof types; i++) put(s, with(update(s, 1, 0, 0), SML_FIELD_TYPE, types[i]));
  end_garbage(s);

  begin_garbage(s, "wire_types_and_reducers", "Pairs that version 1 does not have", (struct shape){.num_ranks = 2});
  for (size_t i = 0; i < SML_ARRAY_LEN(pairs); i++)
    put(s, with(with(update(s, 1, 0, 0), SML_FIELD_WIRE, pairs[i][0]), SML_FIELD_REDUCER, pairs[i][1]));
  for (size_t i = 0; s->is_switch && i < SML_ARRAY_LEN(no_switch_has); i++)
    put(s, with(with(update(s, 1, 0, 0), SML_FIELD_WIRE, no_switch_has[i][0]), SML_FIELD_REDUCER, no_switch_has[i][1]));
  end_garbage(s);

  begin_garbage(s, "flags", "Unknown flags, and flags of other types", (struct shape){.num_ranks = 2});
  for (uint32_t bit = 3; bit < 16; bit += bit == 7 ? 8 : 1) put(s, flagged(update(s, 1, 0, 0), 1u << bit));
  if (!s->is_switch) put(s, flagged(update(s, 1, 0, 0), SML_FLAG_CHECKED)); /* a switch need not look */
  put(s, flagged(probe(s, 1, 0, 0), SML_FLAG_CHECKED));
  put(s, flagged(probe(s, 1, 0, 0), SML_FLAG_UNASKED));
  put(s, flagged(codes(s, 1, 1, 0), SML_FLAG_CHECKED));
  end_garbage(s);
}

static void make_lengths(struct scenario *s) {
  begin_garbage(s, "truncated", "Shorter than the header, or than it says", (struct shape){.num_ranks = 2});
  struct sml_conform_packet p = update(s, 1, 0, 0), header = probe(s, 1, 0, 0);
  p.cut_bytes = 4;
  put(s, p);
  p.cut_bytes = 1;
  put(s, p);
  header.cut_bytes = 1;
  put(s, header);
  header.cut_bytes = 31;
  put(s, header);
  put(s, with(update(s, 1, 0, 0), SML_FIELD_PAYLOAD_BYTES, 65535));
  put(s, with_symbol(update(s, 1, 0, 0), SML_FIELD_PAYLOAD_BYTES, SML_SYMBOL_FULL, 4));
  end_garbage(s);

  begin_garbage(s, "overlong", "Longer than the header says", (struct shape){.num_ranks = 2});
  struct sml_conform_packet q = update(s, 1, 0, 0), longer = probe(s, 1, 0, 0);
  q.extra_bytes = longer.extra_bytes = 4;
  put(s, q);
  put(s, longer);
  put(s, with(update(s, 1, 0, 0), SML_FIELD_PAYLOAD_BYTES, 0));
  end_garbage(s);

  begin_garbage(s, "lengths", "Payloads that no chunk has", (struct shape){.num_ranks = 2});
  put(s, with(update(s, 1, 0, 0), SML_FIELD_BYTES, 0));
  put(s, with_symbol(update(s, 1, 0, 0), SML_FIELD_BYTES, SML_SYMBOL_FULL, 4));
  put(s, with_symbol(update(s, 1, 0, 0), SML_FIELD_BYTES, SML_SYMBOL_FULL, 1));
  put(s, with_symbol(update(s, 1, 0, 0), SML_FIELD_BYTES, SML_SYMBOL_FULL, -1));
  if (s->is_switch) put(s, with_symbol(update(s, 1, 0, 0), SML_FIELD_BYTES, SML_SYMBOL_FULL, -4));
  put(s, with(probe(s, 1, 0, 0), SML_FIELD_BYTES, 4));
  put(s, with_symbol(codes(s, 1, 1, 0), SML_FIELD_BYTES, SML_SYMBOL_FULL, 4));
  end_garbage(s);
}

void make_garbage(struct scenario *s) {
  make_headers(s);
  make_lengths(s);
  begin_garbage(s, "checksums",
                s->is_switch ? "A switch does not look at the checksum field"
                             : "A wrong checksum, and nothing of it is believed; keyed packets have none",
                (struct shape){.num_ranks = 2, .needs = SML_NEED_NO_KEY});
  struct sml_conform_packet p = update(s, 1, 0, 0), q = probe(s, 1, 0, 0);
  p.is_crc_wrong = q.is_crc_wrong = true;
  put(s, q);
  put(s, p);
  end_garbage(s);
  if (s->is_switch) return;

  begin(s, "garbage", "check_words_where_due",
        "CHECKED is set exactly on the lanes of a checked job, and a check word is no element",
        (struct shape){.num_ranks = 2, .is_checked = true});
  put(s, update(s, 0, 0, 0));
  struct sml_conform_packet bare = with(update(s, 1, 0, 0), SML_FIELD_FLAGS, 0);
  put(s, bare);
  put(s, with_symbol(bare, SML_FIELD_BYTES, SML_SYMBOL_FULL, -4));
  put(s, with(update(s, 1, 0, 0), SML_FIELD_BYTES, 4));
  put(s, with_symbol(update(s, 1, 0, 0), SML_FIELD_BYTES, SML_SYMBOL_FULL, 4));
  put(s, with_symbol(codes(s, 1, 1, 0), SML_FIELD_BYTES, SML_SYMBOL_FULL, 0));
  put(s, update(s, 1, 0, 0));
  end(s);
}

/* ---- keys ---- */

void make_keys(struct scenario *s) {
  struct sml_conform_packet p;
  if (!s->is_switch) {
    begin(s, "keys", "keyed_sum", "Every packet of a keyed job is KEYED, both ways",
          (struct shape){.num_ranks = 2, .is_checked = true, .needs = SML_NEED_KEY});
    put_all(s, 0, 0, 0);
    put(s, update(s, 0, 0, 1));
    put(s, probe(s, 1, 0, 1));
    put(s, probe(s, 0, 0, 0));
    put(s, with(update(s, 1, 0, 1), SML_FIELD_EPOCH, -1));
    put(s, codes(s, 0, 1, 0));
    put(s, codes(s, 1, 1, 0));
    end(s);

    begin_garbage(s, "macs", "Another mac, none, or another key's; and a checksum in its place does not help",
                  (struct shape){.num_ranks = 2, .needs = SML_NEED_KEY});
    for (uint32_t kind = 0; kind < 3; kind++) {
      p = kind % 2 == 0 ? update(s, 1, 0, 0) : probe(s, 1, 0, 0);
      p.is_mac_wrong = kind == 0;
      p.is_key_other = kind == 1;
      p.is_key_missing = kind == 2;
      put(s, p);
    }
    p = update(s, 1, 0, 0);
    p.is_key_missing = true;
    put(s, with(p, SML_FIELD_RANK, 9)); /* the key comes before the rank */
    end_garbage(s);
  }
  begin_garbage(s, "keyed_without_a_key", "A KEYED packet in a job without key",
                (struct shape){.num_ranks = 2, .needs = SML_NEED_NO_KEY});
  p = update(s, 1, 0, 0);
  p.is_key_other = true;
  put(s, p);
  p = probe(s, 1, 0, 0);
  p.is_key_other = true;
  put(s, p);
  end_garbage(s);
}

/* ---- membership ---- */

static struct sml_conform_packet hello(uint32_t rank, int64_t nonce, int64_t num_bytes) {
  struct sml_conform_packet p = {.socket = rank, .has_nonce = true, .nonce = nonce};
  p = with(p, SML_FIELD_TYPE, SML_PACKET_HELLO);
  return with(p, SML_FIELD_BYTES, num_bytes);
}

void make_membership(struct scenario *s) {
  begin(s, "membership", "hellos",
        "A HELLO with the rank's nonce comes back in its size; others do not, and change no address",
        (struct shape){.num_ranks = 2, .needs = SML_NEED_MEMBERSHIP});
  put(s, hello(0, 0, 16));
  put(s, hello(1, 0, 200));
  put(s, hello(1, 1, 16));
  put(s, hello(1, 0, 4));
  put(s, via(hello(1, 0, 16), SML_CONFORM_STRANGER));
  put(s, via(hello(1, 0, 16), 0));
  put(s, with_symbol(hello(1, 0, 16), SML_FIELD_RANK, SML_SYMBOL_RANKS, 0));
  put(s, with(hello(1, 0, 16), SML_FIELD_EPOCH, -1));
  put_all(s, 0, 0, 0);
  end(s);
  if (s->is_switch) return;

  begin(s, "membership", "departed_ranks", "Who left is not heard any more; others still get what is complete",
        (struct shape){.num_ranks = 3, .needs = SML_NEED_MEMBERSHIP});
  put_all(s, 0, 0, 0);
  leave(s, 2);
  put(s, update(s, 2, 1, 0));
  put(s, probe(s, 2, 0, 0));
  put(s, probe(s, 0, 0, 0));
  end(s);
}
