/* SPDX-License-Identifier: Apache-2.0 */
#include "core/aggregator_internal.h"

struct layout {
  size_t cells, seen, departed, live, progress, suspects, due, holders, positions, sums, values, total_bytes;
  uint32_t num_holders;
};

static uint32_t count_contributors(const struct sml_aggregator_options *o) {
  return o->num_contributors != 0 ? o->num_contributors : o->world_size;
}

static struct layout place(const struct sml_aggregator_options *o) {
  const size_t num_cells = 2 * (size_t)o->num_slots * (o->is_one_way ? SML_ALL_WINDOWS : 1);
  const size_t words = SML_BITMAP_WORDS(count_contributors(o));
  struct layout l;
  l.cells = sml_align_up(sizeof(struct sml_aggregator), 64);
  l.seen = sml_align_up(l.cells + num_cells * sizeof(struct cell), 64);
  l.departed = l.seen + num_cells * words * sizeof(uint64_t);
  /* The table remembers which slot a chunk went to until so many more are granted. */
  l.num_holders = 4 * o->num_slots;
  l.suspects = l.departed + words * sizeof(uint64_t);
  l.due = l.suspects + num_cells * words * sizeof(uint64_t);
  l.live = l.due + words * sizeof(uint64_t);
  l.progress = l.live + o->num_slots * sizeof(struct live);
  l.holders = l.progress + o->world_size * sizeof(struct progress);
  l.positions = sml_align_up(l.holders + l.num_holders * sizeof(uint16_t), 64);
  const size_t num_positions = o->is_one_way ? 2 * (size_t)count_contributors(o) : 0;
  l.sums = l.positions + num_positions * sizeof(uint64_t);
  l.values = sml_align_up(l.sums + num_positions / 2 * sizeof(struct sum_progress), 64);
  l.total_bytes = l.values + num_cells * sml_align_up(sml_aggregator_value_bytes(o), 64);
  return l;
}

uint32_t sml_aggregator_value_bytes(const struct sml_aggregator_options *o) {
  return o->chunk_bytes + (o->is_checked ? SML_CHECK_BYTES : 0);
}

size_t sml_aggregator_memsize(const struct sml_aggregator_options *options) {
  return place(options).total_bytes;
}

struct sml_aggregator *sml_aggregator_init(void *mem, const struct sml_aggregator_options *o) {
  SML_ASSERT(o->world_size >= 2 && o->world_size <= SML_MAX_WORLD_SIZE && o->num_contributors <= o->world_size);
  SML_ASSERT(sml_is_pow2(o->num_slots) && o->num_slots <= 32768 && o->slot_base % o->num_slots == 0);
  SML_ASSERT(!o->is_one_way || (!o->is_switch_format && !o->is_checked));
  SML_ASSERT(o->first_phase >= SML_FIRST_PHASE && o->first_phase % 2 == 0 && o->chunk_bytes % 4 == 0);
  const struct layout l = place(o);
  uint8_t *bytes = mem;
  struct sml_aggregator *a = mem;
  memset(mem, 0, l.values);
  a->options = *o;
  a->options.num_contributors = count_contributors(o);
  if (o->order_slots == 0) a->options.order_slots = SML_ORDER_SLOTS;
  if (o->is_switch_format) a->options.order_slots = UINT32_MAX;
  a->cursor = o->first_chunk + o->num_slots;
  a->seen_words = SML_BITMAP_WORDS(a->options.num_contributors);
  a->value_stride_bytes = sml_align_up(sml_aggregator_value_bytes(o), 64);
  a->cells = (struct cell *)(void *)(bytes + l.cells);
  a->seen = (uint64_t *)(void *)(bytes + l.seen);
  a->departed = (uint64_t *)(void *)(bytes + l.departed);
  a->values = bytes + l.values;
  a->suspects = (uint64_t *)(void *)(bytes + l.suspects);
  a->due = (uint64_t *)(void *)(bytes + l.due);
  a->live = (struct live *)(void *)(bytes + l.live);
  a->progress = (struct progress *)(void *)(bytes + l.progress);
  a->holders = (uint16_t *)(void *)(bytes + l.holders);
  a->positions = (uint64_t *)(void *)(bytes + l.positions);
  a->sums = (struct sum_progress *)(void *)(bytes + l.sums);
  a->num_holders = l.num_holders;
  for (uint32_t cell = 0; cell < 2 * sml_aggregator_all_slots(a); cell++)
    a->cells[cell].needed = (uint16_t)sml_aggregator_needed(a, SML_REDUCE_SUM);
  sml_aggregator_solicit_init(a);
  return a;
}

const struct sml_aggregator_options *sml_aggregator_options_of(const struct sml_aggregator *a) {
  return &a->options;
}

void *sml_aggregator_values(struct sml_aggregator *a, uint32_t cell) {
  return a->values + cell * a->value_stride_bytes;
}

/* The contributors of a chunk: word w of their bitmap. */
static uint64_t contributors(const struct sml_aggregator *a, uint8_t reducer, uint32_t owner, uint32_t w) {
  const uint32_t n = a->options.num_contributors;
  const uint64_t members = n - w * 64 >= 64 ? UINT64_MAX : (UINT64_C(1) << (n - w * 64)) - 1;
  const uint64_t own = owner / 64 == w ? UINT64_C(1) << owner % 64 : 0;
  if (reducer == SML_REDUCE_TO_OWNER) return members & ~own;
  return reducer == SML_REDUCE_COPY ? own : members;
}

static bool is_one_way(const struct sml_aggregator *a, uint32_t cell) {
  return cell / 2 >= a->options.num_slots;
}

/* What the slot's window is for: copies have the first one. */
static uint8_t way_of(const struct sml_aggregator *a, uint32_t slot) {
  return slot < sml_window_base(SML_REDUCE_TO_OWNER, a->options.num_slots) ? SML_REDUCE_COPY : SML_REDUCE_TO_OWNER;
}

/* Behind which position of its window a rank is. */
static uint64_t *position_of(const struct sml_aggregator *a, uint32_t slot, uint32_t rank) {
  return a->positions + (way_of(a, slot) == SML_REDUCE_COPY ? 0 : a->options.num_contributors) + rank;
}

static uint64_t find_position(const struct sml_aggregator *a, uint32_t slot, uint32_t phase) {
  const uint8_t way = way_of(a, slot);
  const uint32_t num_slots = a->options.num_slots;
  return (uint64_t)(phase - a->options.first_phase) * sml_window_slots(way, num_slots) + slot -
         sml_window_base(way, num_slots);
}

bool sml_aggregator_is_one_way(const struct sml_aggregator *a, const struct sml_header *h) {
  return (uint32_t)h->slot - a->options.slot_base >= a->options.num_slots;
}

uint32_t sml_aggregator_latest_position(const struct sml_aggregator *a, const struct sml_header *h) {
  return (uint32_t)(*position_of(a, (uint32_t)h->slot - a->options.slot_base, h->rank) - 1);
}

/* A departed rank for which a chunk waits that has the contributions `seen`; or UINT32_MAX. */
static uint32_t find_departed(const struct sml_aggregator *a, uint8_t reducer, uint32_t owner, const uint64_t *seen) {
  for (uint32_t w = 0; a->num_departed > 0 && w < a->seen_words; w++) {
    const uint64_t missing = a->departed[w] & contributors(a, reducer, owner, w) & ~(seen != NULL ? seen[w] : 0);
    if (missing != 0) return w * 64 + (uint32_t)__builtin_ctzll(missing);
  }
  return UINT32_MAX;
}

static uint32_t blocked_by(const struct sml_aggregator *a, uint32_t cell) {
  if (a->num_departed == 0) return UINT32_MAX;
  const struct cell *c = &a->cells[cell];
  return find_departed(a, c->reducer, is_one_way(a, cell) ? c->grant : 0, sml_aggregator_seen(a, cell));
}

/* PROTOCOL.md rule R26. The cell is older than `phase`: can an honest member be there? Only if the member has the
 * result of phase - 1. Then the other version must still store that result (I1, I2). */
static bool is_next_phase(const struct sml_aggregator *a, uint32_t cell, uint32_t phase) {
  const struct cell *c = &a->cells[cell], *other = &a->cells[cell ^ 1];
  const uint32_t first = a->options.first_phase;
  /* One way the slot's versions are places by themselves, and a fence has told that what stands here is over. If that
   * was a fence of which nothing came, the place is empty, or older. */
  if (is_one_way(a, cell)) return phase >= first && sml_aggregator_is_complete(c) == (c->phase != 0);
  if (phase == first) return c->phase == 0;
  if (other->phase != phase - 1 || !sml_aggregator_is_complete(other)) return false;
  return c->phase == 0 ? phase == first + 1 : c->phase == phase - 2 && sml_aggregator_is_complete(c);
}

static struct sml_decision verdict(enum sml_verdict v, uint32_t cell) {
  return (struct sml_decision){.verdict = v, .cell = cell, .blocked_rank = UINT32_MAX};
}

static struct sml_decision drop(enum sml_drop reason) {
  return (struct sml_decision){.verdict = SML_VERDICT_DROP, .drop = reason, .blocked_rank = UINT32_MAX};
}

static bool is_fence(const struct cell *c) {
  return c->grant == SML_FENCE && c->reducer == SML_REDUCE_MAX;
}

/* A fence is complete. It says all that earlier ones of its window would say, so these are, too. */
static uint32_t complete_fences(struct sml_aggregator *a, uint32_t cell) {
  uint32_t num_passed = 0;
  const uint8_t way = way_of(a, cell / 2);
  const uint32_t first = 2 * sml_window_base(way, a->options.num_slots);
  const uint64_t position = find_position(a, cell / 2, a->cells[cell].phase);
  uint64_t *passed = &a->passed[way == SML_REDUCE_TO_OWNER];
  *passed = sml_max_u64(*passed, position + 1);
  for (uint32_t i = first; i < first + sml_window_positions(way, a->options.num_slots); i++) {
    struct cell *c = &a->cells[i];
    if (!is_fence(c) || sml_aggregator_is_complete(c) || find_position(a, i / 2, c->phase) > position) continue;
    c->needed = (uint16_t)c->count;
    num_passed++;
  }
  return num_passed;
}

static void note_position(struct sml_aggregator *a, const struct sml_header *h, uint32_t slot) {
  uint64_t *behind = position_of(a, slot, h->rank);
  const bool is_repeat = (h->flags & SML_FLAG_RETRANSMISSION) != 0;
  sml_aggregator_earn(&a->progress[h->rank], is_repeat);
  if (is_repeat) {
    sml_aggregator_note_repeat(a);
    return;
  }
  const uint64_t position = find_position(a, slot, h->phase);
  const bool is_exponent = h->reducer == SML_REDUCE_MAX && h->chunk != SML_FENCE; /* these leave before other chunks */
  if (!is_exponent) *behind = sml_max_u64(*behind, position + 1);
  if (h->reducer == SML_REDUCE_TO_OWNER) sml_aggregator_note_sum(a, h->rank, position);
  if (h->reducer == SML_REDUCE_MAX && !is_exponent && way_of(a, slot) == SML_REDUCE_TO_OWNER)
    sml_aggregator_note_fence(a, h->rank, position);
}

static struct sml_decision contribute(struct sml_aggregator *a, const struct sml_header *h, uint32_t cell,
                                      bool is_first) {
  struct cell *c = &a->cells[cell];
  const bool has_grant = !is_one_way(a, cell);
  sml_bit_set(sml_aggregator_seen(a, cell), h->rank);
  c->count++;
  const bool is_repeat = (h->flags & SML_FLAG_RETRANSMISSION) != 0;
  if (has_grant) sml_aggregator_note_update(a, h->rank, cell / 2, is_repeat);
  else note_position(a, h, cell / 2);
  struct sml_decision d = verdict(is_first ? SML_VERDICT_FIRST : SML_VERDICT_ADD, cell);
  if (sml_aggregator_is_complete(c)) {
    if (has_grant) {
      c->grant = a->cursor++; /* I9: once, and stored with the result */
      sml_aggregator_note_grant(a, cell / 2, c->grant);
    } else if (is_fence(c)) d.num_passed = complete_fences(a, cell);
    d.verdict = SML_VERDICT_COMPLETE;
    d.is_first = is_first;
  }
  if (d.verdict != SML_VERDICT_COMPLETE) d.blocked_rank = blocked_by(a, cell);
  return d;
}

/* It is about a fence of which little came before a later one was complete. */
static bool is_passed_fence(const struct sml_aggregator *a, const struct sml_header *h, uint32_t slot) {
  if (h->reducer != SML_REDUCE_MAX || h->chunk != SML_FENCE) return false;
  return find_position(a, slot, h->phase) < a->passed[way_of(a, slot) == SML_REDUCE_TO_OWNER];
}

/* Tells the sender who is missing. */
static struct sml_decision answer_pending(const struct sml_aggregator *a, const struct sml_header *h, uint32_t cell) {
  struct sml_decision d = verdict(SML_VERDICT_PENDING, cell);
  const bool is_live = a->cells[cell].phase == h->phase;
  if (is_one_way(a, cell))
    d.blocked_rank = find_departed(a, h->reducer, h->chunk, is_live ? sml_aggregator_seen(a, cell) : NULL);
  return d;
}

static struct sml_decision start_phase(struct sml_aggregator *a, const struct sml_header *h, uint32_t cell) {
  struct cell *c = &a->cells[cell];
  *c = (struct cell){.phase = h->phase,
                     .tag = h->tag,
                     .grant = is_one_way(a, cell) ? h->chunk : 0,
                     .first_rank = h->rank,
                     .payload_bytes = (uint16_t)sml_lanes_bytes_of(h),
                     .wire = h->wire,
                     .reducer = h->reducer,
                     .needed = (uint16_t)sml_aggregator_needed(a, h->reducer)};
  memset(sml_aggregator_seen(a, cell), 0, a->seen_words * sizeof(uint64_t));
  return contribute(a, h, cell, true);
}

/* PROTOCOL.md rule R173. A switch looks at one cell only, not at the slot's other one. */
static bool is_next_at_switch(const struct sml_aggregator *a, uint32_t cell, uint32_t phase) {
  const uint32_t at = a->cells[cell].phase;
  return at == 0 ? phase == a->options.first_phase + cell % 2 : phase - at == 2;
}

static struct sml_decision decide_newer(struct sml_aggregator *a, const struct sml_header *h, uint32_t cell) {
  if (a->options.is_switch_format && !is_next_at_switch(a, cell, h->phase)) return drop(SML_DROP_STALE_PHASE);
  if (!a->options.is_switch_format && !is_next_phase(a, cell, h->phase)) {
    struct sml_decision d = verdict(SML_VERDICT_JUMP, cell);
    d.drop = SML_DROP_FUTURE_PHASE;
    return d;
  }
  if (h->type == SML_PACKET_PROBE) return answer_pending(a, h, cell);
  return start_phase(a, h, cell);
}

static bool is_same_chunk(const struct cell *c, const struct sml_header *h, bool goes_one_way) {
  if (c->tag != h->tag) return false;
  if (goes_one_way && c->grant != h->chunk) return false;
  return h->type == SML_PACKET_PROBE ||
         (c->payload_bytes == sml_lanes_bytes_of(h) && c->wire == h->wire && c->reducer == h->reducer);
}

/* A one-way window has sums for owners or copies, and maxima of all ranks (exponents and fences). */
static bool fits_window(const struct sml_aggregator *a, const struct sml_header *h, uint32_t slot) {
  const bool has_owner = sml_has_owner(h->reducer);
  if (slot < a->options.num_slots) return !has_owner;
  if (!has_owner)
    return h->reducer == SML_REDUCE_MAX && (h->flags & SML_FLAG_BY_GRANT) == 0 &&
           (h->chunk == 0 || h->chunk == SML_FENCE);
  if (h->reducer != way_of(a, slot) || h->chunk >= a->options.num_contributors) return false;
  return h->type == SML_PACKET_PROBE || sml_contributes(h->reducer, h->chunk, h->rank);
}

/* Sums and maxima of all ranks skip these checks, so they do not pay for them (bench/counts). */
__attribute__((noinline)) static enum sml_drop check_slot(const struct sml_aggregator *a, const struct sml_header *h,
                                                          uint32_t slot) {
  if (slot >= sml_aggregator_all_slots(a)) return SML_DROP_BAD_SLOT;
  return fits_window(a, h, slot) ? SML_NUM_DROPS : SML_DROP_BAD_TYPE;
}

/* An UPDATE has at least one element, and a check word behind its elements exactly if the job has check words. */
static enum sml_drop check_payload(const struct sml_aggregator *a, const struct sml_header *h) {
  /* These bits of the payload's length must be 0: a payload is whole lanes. */
  static const uint8_t rests[] = {[SML_LANES_INT32] = 3, [SML_LANES_UINT8] = 0, [SML_LANES_UINT32] = 3,
                                  [SML_LANES_UINT64] = 7};
  const bool is_of_switch = h->wire == SML_LANES_INT32 || (h->wire == SML_LANES_UINT32 && h->reducer == SML_REDUCE_MAX);
  if (a->options.is_switch_format && !is_of_switch) return SML_DROP_BAD_TYPE;
  if (h->type != SML_PACKET_UPDATE) return h->payload_bytes == 0 ? SML_NUM_DROPS : SML_DROP_BAD_LENGTH;
  const bool is_lanes = h->wire == SML_LANES_INT32, is_checked = (h->flags & SML_FLAG_CHECKED) != 0;
  if (is_checked != (is_lanes && a->options.is_checked)) return SML_DROP_BAD_TYPE;
  if ((h->flags & SML_FLAG_NARROW) && (!a->options.is_narrow || a->options.is_switch_format)) return SML_DROP_BAD_TYPE;
  const uint32_t check_bytes = is_checked ? SML_CHECK_BYTES : 0;
  if (a->options.is_switch_format)
    return h->payload_bytes == sml_aggregator_value_bytes(&a->options) ? SML_NUM_DROPS : SML_DROP_BAD_LENGTH;
  if (h->payload_bytes <= check_bytes || sml_lanes_bytes_of(h) > a->options.chunk_bytes + check_bytes ||
      (h->payload_bytes & rests[h->wire]) != 0)
    return SML_DROP_BAD_LENGTH;
  const bool is_narrow = (h->flags & SML_FLAG_NARROW) != 0;
  return is_narrow && h->payload_bytes % SML_NARROW_UNIT_BYTES != 0 ? SML_DROP_BAD_LENGTH : SML_NUM_DROPS;
}

/* PROTOCOL.md rule R28. The worker asks about the result that carried a grant: it does not know the slot. */
static struct sml_decision decide_by_grant(struct sml_aggregator *a, const struct sml_header *h) {
  const uint32_t cell = sml_aggregator_find_grant(a, h->chunk);
  if (cell == UINT32_MAX) return drop(SML_DROP_STALE_PHASE);
  sml_aggregator_note_asking(a, cell / 2, h->chunk, h->rank);
  return verdict(SML_VERDICT_REPEAT, cell);
}

/* PROTOCOL.md rules R15 to R24, in their order. */
struct sml_decision sml_aggregator_decide(struct sml_aggregator *a, const struct sml_header *h) {
  SML_ASSERT(h->rank < a->options.num_contributors);
  const uint32_t slot = (uint32_t)h->slot - a->options.slot_base;
  const bool is_usual = slot < a->options.num_slots && h->reducer <= SML_REDUCE_MAX;
  enum sml_drop reason = is_usual ? SML_NUM_DROPS : check_slot(a, h, slot);
  if (reason == SML_NUM_DROPS) reason = check_payload(a, h);
  if (reason != SML_NUM_DROPS) return drop(reason);
  if (h->flags & SML_FLAG_BY_GRANT)
    return a->options.is_switch_format ? drop(SML_DROP_STALE_PHASE) : decide_by_grant(a, h);
  const uint32_t cell = slot * 2 + (h->phase & 1);
  const struct cell *c = &a->cells[cell];
  if (h->phase < a->options.first_phase || h->phase < c->phase) return drop(SML_DROP_STALE_PHASE);
  if (h->phase > c->phase && is_one_way(a, cell) && is_passed_fence(a, h, slot)) return drop(SML_DROP_STALE_PHASE);
  if (h->phase > c->phase) return decide_newer(a, h, cell);
  if (!is_same_chunk(c, h, is_one_way(a, cell))) {
    struct sml_decision d = verdict(SML_VERDICT_MISMATCH, cell);
    d.drop = SML_DROP_TAG_MISMATCH;
    d.first_rank = c->first_rank;
    return d;
  }
  if (sml_aggregator_is_complete(c)) {
    if (h->type == SML_PACKET_UPDATE && sml_has_owner(c->reducer)) return drop(SML_DROP_NEEDLESS); /* no receiver */
    return verdict(SML_VERDICT_REPEAT, cell);
  }
  if (h->type == SML_PACKET_PROBE) return answer_pending(a, h, cell);
  if (!sml_bit_test(sml_aggregator_seen(a, cell), h->rank)) return contribute(a, h, cell, false);
  if ((h->flags & SML_FLAG_RETRANSMISSION) == 0) return drop(SML_DROP_DUPLICATE);
  if (!is_one_way(a, cell)) sml_aggregator_note_needless(a);
  return verdict(SML_VERDICT_PENDING, cell);
}

uint32_t sml_aggregator_phase(const struct sml_aggregator *a, uint32_t cell) {
  return a->cells[cell].phase;
}

bool sml_aggregator_has_result(const struct sml_aggregator *a, uint32_t cell, uint32_t phase) {
  return a->cells[cell].phase == phase && sml_aggregator_is_complete(&a->cells[cell]);
}

void sml_aggregator_result_for(const struct sml_aggregator *a, uint32_t cell, uint8_t wire, uint8_t reducer,
                               struct sml_header *h) {
  sml_aggregator_result(a, cell, h);
  if (!a->options.is_switch_format) return;
  h->wire = wire;
  h->reducer = reducer;
  h->flags = a->options.is_checked && wire == SML_LANES_INT32 ? SML_FLAG_CHECKED : 0;
}

void sml_aggregator_result(const struct sml_aggregator *a, uint32_t cell, struct sml_header *h) {
  const struct cell *c = &a->cells[cell];
  SML_ASSERT(sml_aggregator_is_complete(c));
  const bool is_checked = a->options.is_checked && c->wire == SML_LANES_INT32;
  *h = (struct sml_header){.version = SML_WIRE_VERSION,
                           .type = SML_PACKET_RESULT,
                           .wire = c->wire,
                           .reducer = c->reducer,
                           .payload_bytes = c->payload_bytes,
                           .slot = (uint16_t)(a->options.slot_base + cell / 2),
                           .flags = is_checked ? SML_FLAG_CHECKED : 0,
                           .phase = c->phase,
                           .tag = c->tag,
                           .chunk = c->grant};
}

static uint32_t find_missing(const struct sml_aggregator *a, uint32_t cell, uint32_t phase, uint8_t reducer,
                             uint32_t owner, uint64_t *words) {
  const uint64_t *seen = a->cells[cell].phase == phase ? sml_aggregator_seen(a, cell) : NULL;
  uint32_t num_missing = 0;
  for (uint32_t w = 0; w < a->seen_words; w++) {
    words[w] = contributors(a, reducer, owner, w) & ~(seen != NULL ? seen[w] : 0);
    num_missing += sml_popcount_u64(words[w]);
  }
  return num_missing;
}

uint32_t sml_aggregator_missing(const struct sml_aggregator *a, uint32_t slot, uint32_t phase,
                                uint64_t *words) {
  const uint32_t cell = slot * 2 + (phase & 1);
  const struct cell *c = &a->cells[cell];
  const bool is_live = c->phase == phase;
  return find_missing(a, cell, phase, is_live ? c->reducer : SML_REDUCE_SUM, is_one_way(a, cell) ? c->grant : 0, words);
}

uint32_t sml_aggregator_missing_for(const struct sml_aggregator *a, const struct sml_header *h, uint64_t *words) {
  const uint32_t slot = (uint32_t)h->slot - a->options.slot_base;
  return find_missing(a, slot * 2 + (h->phase & 1), h->phase, h->reducer, h->chunk, words);
}

void sml_aggregator_note_departed(struct sml_aggregator *a, uint32_t rank) {
  SML_ASSERT(rank < a->options.num_contributors);
  if (sml_bit_test(a->departed, rank)) return;
  sml_bit_set(a->departed, rank);
  a->num_departed++;
}

uint32_t sml_aggregator_find_blocked(const struct sml_aggregator *a, uint32_t *rank_out) {
  for (uint32_t cell = 0; cell < 2 * sml_aggregator_all_slots(a); cell++) {
    const struct cell *c = &a->cells[cell];
    if (c->count == 0 || sml_aggregator_is_complete(c)) continue;
    *rank_out = blocked_by(a, cell);
    if (*rank_out != UINT32_MAX) return cell / 2;
  }
  return UINT32_MAX;
}

struct sml_slot_look sml_aggregator_look(const struct sml_aggregator *a, uint32_t slot) {
  SML_ASSERT(slot < sml_aggregator_all_slots(a));
  const struct cell *even = &a->cells[2 * slot], *odd = even + 1;
  const struct cell *newer = odd->phase > even->phase ? odd : even, *older = newer == odd ? even : odd;
  /* One way both versions may wait. */
  if (is_one_way(a, 2 * slot) && older->phase != 0 && !sml_aggregator_is_complete(older)) newer = older;
  struct sml_slot_look look = {.state = SML_SLOT_UNUSED, .phase = newer->phase, .count = newer->count};
  if (newer->phase != 0) look.state = sml_aggregator_is_complete(newer) ? SML_SLOT_COMPLETE : SML_SLOT_WAITING;
  return look;
}
