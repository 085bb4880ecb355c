/* SPDX-License-Identifier: Apache-2.0
 * Packets into a live table of slots, beside a model that keeps the whole history of every slot and follows
 * docs/PROTOCOL.md rules R14 to R30 word by word. Input: a byte of options, then operations of some bytes each. */
#include "core/aggregator.h"

#include "fuzz/fuzz.h"

#define MAX_RANKS 70u
#define MAX_SLOTS 4u
#define MAX_PHASES 64u
#define CHUNK_BYTES 64u
#define MAX_LANES (CHUNK_BYTES / 4 + 1)
#define MAX_STEPS 4096u

/* One phase of one slot, from its first contribution on; kept for ever. */
struct record {
  bool seen[MAX_RANKS];
  uint32_t num_seen, first_rank, tag, payload_bytes, wire, reducer;
  uint32_t sum[MAX_LANES]; /* of contributions, each once */
  uint32_t grant;
};

struct model {
  struct sml_aggregator *aggregator;
  struct sml_aggregator_options options;
  struct record history[MAX_SLOTS][MAX_PHASES]; /* by phase - first_phase */
  uint32_t num_phases[MAX_SLOTS];
  uint32_t num_granted;
  bool departed[MAX_RANKS];
};

static bool is_complete(const struct model *m, const struct record *r) {
  return r->num_seen == m->options.world_size;
}

/* What a rank contributes: any function of who and where will do. */
static uint32_t lane_of(const struct sml_header *h, uint32_t k) {
  return (uint32_t)sml_mix64((uint64_t)h->rank << 40 ^ (uint64_t)h->slot << 32 ^ h->phase ^ (uint64_t)k << 56);
}

/* A narrow update has 28 bytes for 32 of lanes. */
static uint32_t lanes_bytes_of(const struct sml_header *h) {
  return (h->flags & SML_FLAG_NARROW) != 0 ? h->payload_bytes * 8u / 7u : h->payload_bytes;
}

static void add_payload(uint32_t *lanes, const struct sml_header *h) {
  for (uint32_t k = 0; k < sml_div_ceil(lanes_bytes_of(h), 4); k++) lanes[k] += lane_of(h, k);
}

/* A departed rank that the record waits for, or UINT32_MAX. */
static uint32_t blocker(const struct model *m, const struct record *r) {
  for (uint32_t rank = 0; rank < m->options.world_size; rank++)
    if (m->departed[rank] && !r->seen[rank]) return rank;
  return UINT32_MAX;
}

/* SML_NUM_DROPS: the payload is one that a chunk may have. */
static enum sml_drop judge_payload(const struct model *m, const struct sml_header *h) {
  if (h->type == SML_PACKET_PROBE) return h->payload_bytes == 0 ? SML_NUM_DROPS : SML_DROP_BAD_LENGTH;
  const bool is_lanes = h->wire == SML_LANES_INT32, has_word = (h->flags & SML_FLAG_CHECKED) != 0;
  if (has_word != (is_lanes && m->options.is_checked)) return SML_DROP_BAD_TYPE;
  if (h->flags & SML_FLAG_NARROW) {
    if (!m->options.is_narrow) return SML_DROP_BAD_TYPE;
    const bool is_some_rows = h->payload_bytes == 28 || h->payload_bytes == 56; /* of a chunk of 64 bytes */
    return is_some_rows ? SML_NUM_DROPS : SML_DROP_BAD_LENGTH;
  }
  const uint32_t min_bytes = h->wire == SML_LANES_UINT8 ? 1 : h->wire == SML_LANES_UINT64 ? 8 : 4;
  const uint32_t elem_bytes = h->payload_bytes - (has_word ? sml_min_u32(4, h->payload_bytes) : 0);
  if (elem_bytes < min_bytes || elem_bytes > CHUNK_BYTES || elem_bytes % min_bytes != 0) return SML_DROP_BAD_LENGTH;
  return SML_NUM_DROPS;
}

static struct sml_decision expect_drop(enum sml_drop drop) {
  return (struct sml_decision){.verdict = SML_VERDICT_DROP, .drop = drop, .blocked_rank = UINT32_MAX};
}

static struct sml_decision expect_contribution(struct model *m, const struct sml_header *h, struct record *r) {
  struct sml_decision d = {.verdict = r->num_seen == 0 ? SML_VERDICT_FIRST : SML_VERDICT_ADD};
  if (r->num_seen == 0) {
    r->first_rank = h->rank;
    r->tag = h->tag;
    r->payload_bytes = lanes_bytes_of(h);
    r->wire = h->wire;
    r->reducer = h->reducer;
  }
  r->seen[h->rank] = true;
  r->num_seen++;
  add_payload(r->sum, h);
  if (is_complete(m, r)) {
    d.verdict = SML_VERDICT_COMPLETE;
    r->grant = m->options.first_chunk + m->options.num_slots + m->num_granted++;
  }
  d.blocked_rank = blocker(m, r);
  return d;
}

/* The verdict, from the whole history; changes it for a contribution. */
static struct sml_decision predict(struct model *m, const struct sml_header *h) {
  const uint32_t slot = (uint32_t)h->slot - m->options.slot_base;
  if (slot >= m->options.num_slots) return expect_drop(SML_DROP_BAD_SLOT);
  const enum sml_drop drop = judge_payload(m, h);
  if (drop != SML_NUM_DROPS) return expect_drop(drop);
  struct sml_decision d = {.cell = 2 * slot + h->phase % 2, .blocked_rank = UINT32_MAX};
  const int64_t index = (int64_t)h->phase - (int64_t)m->options.first_phase, num_phases = m->num_phases[slot];
  if (index < 0 || index < num_phases - 2) return expect_drop(SML_DROP_STALE_PHASE);
  struct record *r = index < MAX_PHASES ? &m->history[slot][index] : NULL;
  if (index >= num_phases) {
    const bool is_next = index == num_phases && (index == 0 || is_complete(m, &m->history[slot][index - 1]));
    if (!is_next) {
      d.verdict = SML_VERDICT_JUMP;
      d.drop = SML_DROP_FUTURE_PHASE;
    } else if (h->type == SML_PACKET_PROBE) {
      d.verdict = SML_VERDICT_PENDING;
    } else {
      m->num_phases[slot]++;
      d.verdict = expect_contribution(m, h, r).verdict;
      d.blocked_rank = blocker(m, r);
    }
    return d;
  }
  const bool is_same = h->type == SML_PACKET_PROBE ||
                       (lanes_bytes_of(h) == r->payload_bytes && h->wire == r->wire && h->reducer == r->reducer);
  if (h->tag != r->tag || !is_same) {
    d.verdict = SML_VERDICT_MISMATCH;
    d.drop = SML_DROP_TAG_MISMATCH;
    d.first_rank = r->first_rank;
  } else if (is_complete(m, r)) {
    d.verdict = SML_VERDICT_REPEAT;
  } else if (h->type == SML_PACKET_PROBE || (r->seen[h->rank] && (h->flags & SML_FLAG_RETRANSMISSION))) {
    d.verdict = SML_VERDICT_PENDING;
  } else if (r->seen[h->rank]) {
    return expect_drop(SML_DROP_DUPLICATE);
  } else {
    const struct sml_decision e = expect_contribution(m, h, r);
    d.verdict = e.verdict;
    d.blocked_rank = e.blocked_rank;
  }
  return d;
}

static void check_result(const struct model *m, uint32_t cell, uint32_t phase) {
  const struct record *r = &m->history[cell / 2][phase - m->options.first_phase];
  struct sml_header h;
  CHECK(sml_aggregator_has_result(m->aggregator, cell, phase), "phase %u", phase);
  sml_aggregator_result(m->aggregator, cell, &h);
  CHECK(h.version == SML_WIRE_VERSION && h.type == SML_PACKET_RESULT && h.rank == 0, " ");
  CHECK(h.phase == phase && h.tag == r->tag && h.payload_bytes == r->payload_bytes, "phase %u", phase);
  CHECK(h.wire == r->wire && h.slot == m->options.slot_base + cell / 2, "phase %u", phase);
  CHECK(h.flags == (m->options.is_checked && r->wire == SML_LANES_INT32 ? SML_FLAG_CHECKED : 0), "%x", h.flags);
  CHECK(h.chunk == r->grant, "I9: chunk %u was granted, now %u", r->grant, h.chunk);
  CHECK(memcmp(sml_aggregator_values(m->aggregator, cell), r->sum, r->payload_bytes) == 0, "not the sum of all");
}

static void check_missing(const struct model *m, uint32_t slot, uint32_t phase) {
  uint64_t words[SML_BITMAP_WORDS(MAX_RANKS)];
  const uint32_t index = phase - m->options.first_phase;
  const bool is_live = index < m->num_phases[slot];
  uint32_t num_expected = 0;
  const uint32_t num_missing = sml_aggregator_missing(m->aggregator, slot, phase, words);
  for (uint32_t rank = 0; rank < SML_ARRAY_LEN(words) * 64 && rank / 64 < SML_BITMAP_WORDS(m->options.world_size);
       rank++) {
    const bool is_member = rank < m->options.world_size;
    const bool is_missing = is_member && !(is_live && m->history[slot][index].seen[rank]);
    num_expected += is_missing;
    CHECK(sml_bit_test(words, rank) == is_missing, "I3: rank %u in phase %u", rank, phase);
  }
  CHECK(num_missing == num_expected, "I4: %u, not %u", num_missing, num_expected);
}

static void deliver(struct model *m, const struct sml_header *h) {
  const struct sml_decision expected = predict(m, h), d = sml_aggregator_decide(m->aggregator, h);
  CHECK(d.verdict == expected.verdict, "%d, not %d: rank %u slot %u phase %u", (int)d.verdict, (int)expected.verdict,
        h->rank, h->slot, h->phase);
  CHECK(d.blocked_rank == expected.blocked_rank, "%u, not %u", d.blocked_rank, expected.blocked_rank);
  const bool is_reported = d.verdict == SML_VERDICT_MISMATCH || d.verdict == SML_VERDICT_JUMP;
  if (d.verdict == SML_VERDICT_DROP || is_reported)
    CHECK(d.drop == expected.drop, "%s, not %s", sml_drop_name(d.drop), sml_drop_name(expected.drop));
  if (d.verdict == SML_VERDICT_DROP) return;
  CHECK(d.cell == expected.cell, "%u, not %u", d.cell, expected.cell);
  if (d.verdict == SML_VERDICT_MISMATCH) CHECK(d.first_rank == expected.first_rank, "%u", d.first_rank);
  if (is_reported) return;
  const bool is_first = d.verdict == SML_VERDICT_FIRST;
  if (is_first || d.verdict == SML_VERDICT_ADD || d.verdict == SML_VERDICT_COMPLETE) { /* as the engine does */
    uint32_t *lanes = sml_aggregator_values(m->aggregator, d.cell);
    if (is_first) memset(lanes, 0, sml_aggregator_value_bytes(&m->options));
    add_payload(lanes, h);
  }
  if (d.verdict == SML_VERDICT_COMPLETE || d.verdict == SML_VERDICT_REPEAT) check_result(m, d.cell, h->phase);
  else check_missing(m, d.cell / 2, h->phase);
}

/* A slot's packet: by default that of an honest rank in the newest phase; any field may be another. */
static struct sml_header draw_packet(const struct model *m, struct fuzz_input *in) {
  const uint32_t slot = fuzz_below(in, m->options.num_slots), rank = fuzz_below(in, m->options.world_size);
  const uint8_t kind = fuzz_u8(in);
  const uint32_t n = m->num_phases[slot];
  const bool is_open = n > 0 && !is_complete(m, &m->history[slot][n - 1]);
  const uint32_t phase = m->options.first_phase + n - (is_open ? 1 : 0);
  const bool is_codes = (slot + phase) % 3 == 0;
  const bool is_checked = m->options.is_checked && !is_codes;
  struct sml_header h = {.version = SML_WIRE_VERSION,
                         .type = SML_PACKET_UPDATE,
                         .rank = (uint16_t)rank,
                         .payload_bytes = (uint16_t)(CHUNK_BYTES + (is_checked ? SML_CHECK_BYTES : 0)),
                         .wire = is_codes ? SML_LANES_UINT8 : SML_LANES_INT32,
                         .reducer = is_codes ? SML_REDUCE_MAX : SML_REDUCE_SUM,
                         .slot = (uint16_t)(m->options.slot_base + slot),
                         .phase = phase,
                         .tag = slot * 7 + phase,
                         .flags = is_checked ? SML_FLAG_CHECKED : 0};
  if (kind & 1) h.flags ^= SML_FLAG_RETRANSMISSION;
  if (kind & 2) h.type = SML_PACKET_PROBE, h.payload_bytes = 0, h.flags &= SML_FLAG_RETRANSMISSION;
  if (kind & 4) h.phase += fuzz_below(in, 8) - 4, h.tag = slot * 7 + h.phase;
  if (kind & 8) h.phase = fuzz_near(in, h.phase);
  if (kind & 16) h.tag = fuzz_near(in, h.tag + 1);
  if (kind & 32) h.payload_bytes = (uint16_t)fuzz_near(in, h.payload_bytes - 4u);
  if (kind & 64) h.slot = (uint16_t)fuzz_near(in, h.slot + m->options.num_slots);
  if (kind & 128) {
    const uint8_t other = fuzz_u8(in);
    static const uint8_t pairs[] = {0x21, 0x31, 0x24, 0x34, 0x25};
    const uint8_t pair = pairs[(other >> 4) % SML_ARRAY_LEN(pairs)];
    if (other & 1) h.wire = h.reducer = h.wire ^ 1;
    else if (other >> 4 != 0) h.wire = pair >> 4, h.reducer = pair & 15;
    if (other & 2) h.flags ^= SML_FLAG_CHECKED;
    const bool can_be_narrow = h.type == SML_PACKET_UPDATE && h.wire == SML_LANES_INT32; /* what the wire lets in */
    if ((other & 4) && can_be_narrow && (h.flags & SML_FLAG_CHECKED) == 0) {
      h.flags |= SML_FLAG_NARROW;
      if ((kind & 32) == 0) h.payload_bytes = other & 8 ? 28 : 56;
    }
  }
  return h;
}

static void depart(struct model *m, uint32_t rank) {
  uint32_t blocking;
  sml_aggregator_note_departed(m->aggregator, rank);
  const uint32_t slot = sml_aggregator_find_blocked(m->aggregator, &blocking);
  m->departed[rank] = true;
  bool is_blocked = false;
  for (uint32_t s = 0; s < m->options.num_slots; s++) {
    const uint32_t n = m->num_phases[s];
    const struct record *r = n == 0 ? NULL : &m->history[s][n - 1];
    const bool is_waiting = r != NULL && !is_complete(m, r) && blocker(m, r) != UINT32_MAX;
    is_blocked = is_blocked || is_waiting;
    if (s == slot) CHECK(is_waiting && blocking == blocker(m, r), "slot %u does not wait for rank %u", s, blocking);
  }
  CHECK(is_blocked == (slot != UINT32_MAX), "rank %u", rank);
}

static void choose_options(struct sml_aggregator_options *o, struct fuzz_input *in) {
  const uint8_t kind = fuzz_u8(in);
  o->world_size = kind & 1 ? 2 + fuzz_below(in, MAX_RANKS - 1) : 2u + (kind >> 1 & 1);
  o->num_slots = 1u << (kind >> 2) % 3;
  o->slot_base = kind & 64 ? (uint16_t)(65536 - o->num_slots) : (uint16_t)(2 * o->num_slots);
  o->chunk_bytes = CHUNK_BYTES;
  o->is_checked = (kind & 16) != 0;
  o->is_narrow = (kind & 8) != 0;
  o->first_phase = kind & 32 ? UINT32_MAX - 5 : SML_FIRST_PHASE;
  o->first_chunk = kind & 128 ? UINT32_MAX - 5 : 0;
}

static bool has_room(const struct model *m) {
  for (uint32_t s = 0; s < m->options.num_slots; s++)
    if (m->num_phases[s] == MAX_PHASES || m->options.first_phase + m->num_phases[s] == UINT32_MAX) return false;
  return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  struct fuzz_input in = {data, data + num_bytes};
  struct model *m = calloc(1, sizeof *m);
  CHECK(m != NULL, "no memory");
  choose_options(&m->options, &in);
  const size_t memory_bytes = sml_align_up(sml_aggregator_memsize(&m->options), 64);
  void *memory = aligned_alloc(64, memory_bytes);
  CHECK(memory != NULL, "no memory");
  memset(memory, 0xa5, memory_bytes);
  m->aggregator = sml_aggregator_init(memory, &m->options);
  for (uint32_t step = 0; step < MAX_STEPS && !fuzz_is_empty(&in) && has_room(m); step++) {
    const uint8_t op = fuzz_u8(&in);
    const struct sml_header h = draw_packet(m, &in);
    if (op < 240) {
      deliver(m, &h);
    } else if (op < 250) { /* all ranks, some twice */
      struct sml_header all = h;
      for (uint32_t r = 0; r < m->options.world_size; r++) {
        all.rank = (uint16_t)r;
        deliver(m, &all);
        if (op & 1) deliver(m, &all);
      }
    } else {
      depart(m, h.rank);
    }
    if (fuzz_is_due(step)) CHECK_SOUND(sml_aggregator_find_violation(m->aggregator));
  }
  CHECK_SOUND(sml_aggregator_find_violation(m->aggregator));
  free(memory);
  free(m);
  return 0;
}
