/* SPDX-License-Identifier: Apache-2.0
 * One live worker; the input is what the program and the network do to it. Beside it a model of what it owes:
 * every packet is of an operation that has not ended, every chunk is accepted once, repeats are equal, exponents
 * come first, somebody always asks again. As long as nobody lies about grants, all operations end. */
#include "core/worker.h"

#include "fuzz/fuzz.h"

#define MAX_SLOTS 8u
#define MAX_OPERATIONS 12u
#define MAX_CHUNKS 256u /* of an operation in the lane */
#define CHUNK_BYTES 16u
#define MAX_STEPS 3000u

struct operation {
  struct sml_operation_plan plan;
  struct sml_range range;
  uint64_t first_chunk, tag_base;
  uint8_t *ready;
  bool accepted[MAX_CHUNKS]; /* by position */
  uint64_t num_accepted;
  bool has_ended;
};

/* What the model knows of a slot: from what was sent and accepted alone. */
struct slot {
  uint32_t phase;
  uint64_t chunk;                                          /* in the lane's stream */
  bool is_outstanding, was_refused, has_result, was_probe; /* was_probe: what was sent last */
  uint32_t num_updates;                                    /* sent in this phase */
  struct sml_header update;                                /* as it was first sent */
  struct sml_chunk what;
  struct operation *operation;
  struct sml_header result, last_result; /* the aggregator's, with its grant; of the phase before */
};

struct model {
  struct sml_worker *worker;
  struct sml_worker_options options;
  struct operation operations[MAX_OPERATIONS];
  uint32_t num_operations;
  struct slot slots[MAX_SLOTS];
  uint64_t end_chunk, next_grant, num_accepted;
  bool has_lied; /* about a grant: then only what memory safety needs is promised */
  uint64_t now_ns;
};

/* ---- what the worker sends ---- */

static void check_first_update(struct model *m, struct slot *slot, const struct sml_send *send) {
  struct operation *op = send->cookie;
  struct sml_chunk expected;
  CHECK(!op->has_ended, "an operation that has ended is sent");
  slot->operation = op;
  slot->what = send->chunk;
  slot->update = send->header;
  slot->is_outstanding = true;
  const bool is_float = op->range.num_groups > 0;
  const uint64_t last_elem = op->range.first_elem + op->range.num_elems;
  const uint32_t elem_bytes = send->chunk.is_exponent ? 1 : 4;
  CHECK(send->chunk.payload_bytes == send->chunk.num_elems * elem_bytes && send->chunk.num_elems > 0, " ");
  CHECK(send->chunk.payload_bytes <= CHUNK_BYTES, "%u bytes", send->chunk.payload_bytes);
  if (!send->chunk.is_exponent)
    CHECK(send->chunk.first_elem >= op->range.first_elem && send->chunk.first_elem + send->chunk.num_elems <= last_elem,
          "outside the tensor's range");
  CHECK(send->chunk.is_exponent ? is_float : true, "exponents of integers");
  if (is_float && !send->chunk.is_exponent)
    CHECK(op->ready[send->chunk.group] == 1, "data of group %u ahead of its exponents", send->chunk.group);
  if (m->has_lied) return;
  const uint64_t position = slot->chunk - op->first_chunk;
  CHECK(slot->chunk >= op->first_chunk && position < op->range.num_chunks, "another operation's chunk");
  sml_range_chunk(&op->range, position, &expected);
  CHECK(expected.first_elem == send->chunk.first_elem && expected.num_elems == send->chunk.num_elems, "position");
  CHECK(expected.is_exponent == send->chunk.is_exponent, "position");
  CHECK(send->header.chunk == (uint32_t)slot->chunk, "chunk %u", send->header.chunk);
  CHECK(send->header.tag == sml_tag(op->tag_base, position), "tag");
  CHECK(!op->accepted[position], "a chunk whose sum is back is sent");
}

static void check_header(const struct model *m, const struct sml_header *h) {
  const struct sml_worker_options *o = &m->options;
  CHECK(h->version == SML_WIRE_VERSION && h->job == o->job && h->epoch == o->epoch && h->rank == o->rank, " ");
  CHECK((uint32_t)h->slot - o->slot_base < o->num_slots, "slot %u", h->slot);
  CHECK((h->flags & ~(SML_FLAG_RETRANSMISSION | SML_FLAG_CHECKED)) == 0, "flags %x", h->flags);
}

/* Returns whether there was something to send. */
static bool take_send(struct model *m, struct slot **slot_out) {
  struct sml_send send;
  const uint32_t peeked = sml_worker_peek_send(m->worker);
  sml_worker_next_send(m->worker, m->now_ns, &send);
  CHECK((send.kind == SML_SEND_NONE) == (peeked == UINT32_MAX), "peeked %u", peeked);
  if (send.kind == SML_SEND_NONE) return false;
  const struct sml_header *h = &send.header;
  check_header(m, h);
  struct slot *slot = &m->slots[(uint32_t)h->slot - m->options.slot_base];
  *slot_out = slot;
  CHECK(h->payload_bytes == peeked, "%u, peeked %u", h->payload_bytes, peeked);
  CHECK(h->phase == slot->phase, "phase %u, not %u", h->phase, slot->phase);
  slot->was_probe = send.kind == SML_SEND_PROBE;
  slot->num_updates = slot->is_outstanding ? slot->num_updates + !slot->was_probe : 1;
  if (slot->was_probe) {
    CHECK(slot->is_outstanding && h->type == SML_PACKET_PROBE && h->payload_bytes == 0, "PROBE");
    CHECK(h->tag == slot->update.tag, "tag");
    return true;
  }
  CHECK(h->type == SML_PACKET_UPDATE, "type %u", h->type);
  const bool has_word = m->options.is_checked && !send.chunk.is_exponent;
  CHECK(h->payload_bytes == send.chunk.payload_bytes + (has_word ? SML_CHECK_BYTES : 0), "%u", h->payload_bytes);
  CHECK(((h->flags & SML_FLAG_CHECKED) != 0) == has_word, "flags %x", h->flags);
  if (!slot->is_outstanding) {
    CHECK((h->flags & SML_FLAG_RETRANSMISSION) == 0, "a first update as a repeat");
    check_first_update(m, slot, &send);
    return true;
  }
  struct sml_header again = *h;
  CHECK(again.flags & SML_FLAG_RETRANSMISSION, "an update twice, the second not as a repeat");
  again.flags &= (uint16_t)~SML_FLAG_RETRANSMISSION;
  CHECK(memcmp(&again, &slot->update, sizeof again) == 0, "I5: a repeat differs");
  CHECK(send.cookie == slot->operation && memcmp(&send.chunk, &slot->what, sizeof send.chunk) == 0, "I5");
  return true;
}

/* ---- what the worker gets ---- */

static struct sml_header honest_result(struct model *m, struct slot *slot) {
  if (!slot->has_result) {
    slot->has_result = true;
    slot->result = slot->update;
    slot->result.type = SML_PACKET_RESULT;
    slot->result.rank = 0;
    slot->result.chunk = (uint32_t)m->next_grant++;
  }
  return slot->result;
}

/* SML_NUM_DROPS: it is acted upon. */
static enum sml_drop predict(const struct model *m, const struct sml_header *h) {
  const uint32_t s = (uint32_t)h->slot - m->options.slot_base;
  if (h->type != SML_PACKET_RESULT && h->type != SML_PACKET_PENDING) return SML_DROP_BAD_TYPE;
  if (s >= m->options.num_slots) return SML_DROP_BAD_SLOT;
  const struct slot *slot = &m->slots[s];
  if (h->phase < slot->phase) {
    const bool is_repeat = h->type == SML_PACKET_RESULT && (h->flags & SML_FLAG_RETRANSMISSION) != 0;
    return is_repeat ? SML_DROP_NEEDLESS : SML_DROP_STALE_PHASE;
  }
  if (h->phase > slot->phase) { /* a question about the next phase tells of a result that is still missing */
    const bool is_ahead = h->type == SML_PACKET_PENDING && slot->is_outstanding && h->phase == slot->phase + 1;
    return is_ahead ? SML_DROP_NOT_OUTSTANDING : SML_DROP_FUTURE_PHASE;
  }
  if (!slot->is_outstanding) return SML_DROP_NOT_OUTSTANDING;
  if (h->tag != slot->update.tag) return SML_DROP_TAG_MISMATCH;
  if (h->type == SML_PACKET_PENDING)
    return h->payload_bytes == (m->options.world_size + 7) / 8 ? SML_NUM_DROPS : SML_DROP_BAD_LENGTH;
  if ((h->wire == SML_LANES_UINT8) != slot->what.is_exponent) return SML_DROP_BAD_TYPE;
  if ((h->flags ^ slot->update.flags) & SML_FLAG_CHECKED) return SML_DROP_BAD_TYPE;
  return h->payload_bytes == slot->update.payload_bytes ? SML_NUM_DROPS : SML_DROP_BAD_LENGTH;
}

static void end_operation(struct operation *op) {
  CHECK(!op->has_ended, "an operation ended twice");
  op->has_ended = true;
  free(op->ready); /* the caller may: nobody looks at it any more */
  op->ready = NULL;
}

static void note_accepted(struct model *m, struct slot *slot, const struct sml_header *h, const struct sml_accept *a) {
  struct operation *op = slot->operation;
  CHECK(a->cookie == op && memcmp(&a->chunk, &slot->what, sizeof a->chunk) == 0, "another chunk's result");
  CHECK(!op->has_ended, "a result of an operation that has ended");
  if (!m->has_lied) {
    const uint64_t position = slot->chunk - op->first_chunk;
    CHECK(!op->accepted[position], "position %llu twice", (unsigned long long)position);
    op->accepted[position] = true;
  }
  op->num_accepted++;
  m->num_accepted++;
  CHECK(op->num_accepted <= op->range.num_chunks, "more results than chunks");
  CHECK((a->ended != NULL) == (op->num_accepted == op->range.num_chunks), "done %d", a->ended != NULL);
  if (a->ended != NULL) end_operation(op);
  slot->last_result = *h;
  slot->is_outstanding = slot->has_result = slot->was_refused = false;
  slot->phase++;
  const int32_t step = (int32_t)(h->chunk - (uint32_t)slot->chunk);
  slot->chunk += (uint64_t)(int64_t)step;
}

/* A result that is acted upon, with another grant than the aggregator's. */
static bool is_lie(const struct model *m, const struct sml_header *h) {
  const struct slot *slot = &m->slots[(uint32_t)h->slot - m->options.slot_base];
  return h->type == SML_PACKET_RESULT && !(slot->has_result && h->chunk == slot->result.chunk);
}

static void deliver(struct model *m, const struct sml_header *h, const uint8_t *bitmap) {
  const enum sml_drop expected = predict(m, h);
  if (expected == SML_NUM_DROPS && is_lie(m, h)) m->has_lied = true;
  const struct sml_accept peeked = sml_worker_peek_packet(m->worker, h);
  const struct sml_accept a = sml_worker_on_packet(m->worker, h, bitmap, m->now_ns);
  CHECK(a.kind == peeked.kind && a.drop == peeked.drop && a.cookie == peeked.cookie, "peek says another thing");
  if (expected != SML_NUM_DROPS) {
    CHECK(a.kind == SML_ACCEPT_DROP && a.drop == expected, "kind %d, drop %s, not %s", (int)a.kind,
          sml_drop_name(a.drop), sml_drop_name(expected));
    return;
  }
  CHECK(a.kind == (h->type == SML_PACKET_RESULT ? SML_ACCEPT_RESULT : SML_ACCEPT_PENDING), "kind %d", (int)a.kind);
  if (a.kind == SML_ACCEPT_RESULT) note_accepted(m, &m->slots[(uint32_t)h->slot - m->options.slot_base], h, &a);
}

static void refuse(struct model *m, const struct sml_header *h) {
  if (predict(m, h) != SML_NUM_DROPS || h->type != SML_PACKET_RESULT) return;
  struct slot *slot = &m->slots[(uint32_t)h->slot - m->options.slot_base];
  CHECK(sml_worker_refuse_result(m->worker, h) == slot->was_refused, "not the first wrong sum");
  slot->was_refused = true;
}

static void receive(struct model *m, struct fuzz_input *in) {
  uint8_t bitmap[(64 + 7) / 8];
  struct slot *slot = &m->slots[fuzz_below(in, m->options.num_slots)];
  const uint8_t kind = fuzz_u8(in);
  const bool is_mine = slot->is_outstanding;
  struct sml_header h = is_mine && !(kind & 1) ? honest_result(m, slot) : slot->last_result;
  if (kind & 2) h.flags ^= SML_FLAG_RETRANSMISSION;
  if (kind & 4) {
    h = slot->update;
    h.type = SML_PACKET_PENDING;
    h.payload_bytes = (uint16_t)((m->options.world_size + 7) / 8);
    h.flags = 0;
  }
  if (kind & 8) { /* one field is another */
    const uint8_t field = fuzz_u8(in);
    if (field % 8 == 0) h.type = fuzz_u8(in) & 15;
    if (field % 8 == 1) h.slot = (uint16_t)fuzz_near(in, h.slot + 1u);
    if (field % 8 == 2) h.phase = fuzz_near(in, h.phase + 1);
    if (field % 8 == 3) h.tag = fuzz_near(in, h.tag + 1);
    if (field % 8 == 4) h.payload_bytes = (uint16_t)fuzz_near(in, h.payload_bytes - 4u);
    if (field % 8 == 5) h.wire ^= 1;
    if (field % 8 == 6) h.flags ^= SML_FLAG_CHECKED;
    if (field % 8 == 7) h.chunk = fuzz_near(in, h.chunk + 1);
  }
  for (size_t i = 0; i < sizeof bitmap; i++) bitmap[i] = kind & 16 ? fuzz_u8(in) : (uint8_t)(kind >> 5) * 36;
  uint8_t *payload = fuzz_copy(bitmap, sml_min_u64(sizeof bitmap, h.payload_bytes));
  if (kind >= 192 && is_mine && (kind & 32)) refuse(m, &h);
  else deliver(m, &h, payload);
  free(payload);
}

/* ---- the program, and time ---- */

static void submit(struct model *m, struct fuzz_input *in) {
  const uint8_t kind = fuzz_u8(in);
  const uint32_t num_elems = 1 + (uint32_t)fuzz_u8(in) * (1 + (kind >> 4));
  if (m->num_operations == MAX_OPERATIONS || !sml_worker_can_submit(m->worker)) return;
  struct operation *op = &m->operations[m->num_operations];
  const struct sml_worker_options *o = &m->options;
  op->plan = (struct sml_operation_plan){.number = m->num_operations,
                                         .num_elems = num_elems,
                                         .type = !(kind & 1),
                                         .block_elems = kind & 1 ? CHUNK_BYTES / 4 : 0,
                                         .key = kind};
  sml_range_make(&op->range, &op->plan, o->lane, o->num_lanes, CHUNK_BYTES, o->num_slots);
  if (op->range.num_chunks > MAX_CHUNKS || op->range.num_chunks > sml_worker_chunks_left(m->worker)) return;
  op->first_chunk = m->end_chunk;
  op->tag_base = sml_tag_base(&op->plan, CHUNK_BYTES, o->num_lanes);
  op->ready = calloc(op->range.num_groups + 1, 1);
  CHECK(op->ready != NULL, "no memory");
  const uint64_t chunks_left = sml_worker_chunks_left(m->worker);
  const bool has_part = sml_worker_submit(m->worker, &op->plan, op->ready, op, m->now_ns);
  CHECK(has_part == (op->range.num_chunks > 0), "%llu chunks", (unsigned long long)op->range.num_chunks);
  CHECK(sml_worker_chunks_left(m->worker) == chunks_left - op->range.num_chunks, "chunks left");
  m->end_chunk += op->range.num_chunks;
  m->num_operations++;
  if (!has_part) end_operation(op);
}

static void pass_time(struct model *m, uint64_t step_ns) {
  const uint64_t deadline_ns = sml_worker_next_deadline(m->worker);
  if (step_ns == 0) step_ns = deadline_ns == SML_NEVER ? 1 : deadline_ns - sml_min_u64(deadline_ns, m->now_ns);
  m->now_ns += step_ns;
  /* Each call that is due takes a slot off the lists; the jitter drawn behind it may make another one due. */
  for (uint32_t i = 0; i == 0 || (i <= m->options.num_slots && sml_worker_next_deadline(m->worker) <= m->now_ns); i++)
    sml_worker_on_timer(m->worker, m->now_ns);
  CHECK(sml_worker_next_deadline(m->worker) > m->now_ns, "a timer that was due did not fire");
}

static void check_state(const struct model *m) {
  struct sml_worker_view view;
  uint32_t num_outstanding = 0;
  const char *problem = sml_worker_find_violation(m->worker);
  if (problem != NULL && m->has_lied && strncmp(problem, "I9", 2) == 0) problem = NULL;
  CHECK(problem == NULL, "%s", problem);
  for (uint32_t s = 0; s < m->options.num_slots; s++) num_outstanding += m->slots[s].is_outstanding;
  sml_worker_view(m->worker, &view);
  CHECK(view.num_outstanding == num_outstanding, "%u, not %u", view.num_outstanding, num_outstanding);
  CHECK(view.chunks_completed == m->num_accepted, "%llu", (unsigned long long)view.chunks_completed);
  CHECK(view.waiting_slot < m->options.num_slots && view.num_missing <= 16, "view");
  if (num_outstanding > 0 && sml_worker_next_deadline(m->worker) == SML_NEVER)
    CHECK(sml_worker_peek_send(m->worker) != UINT32_MAX, "nobody asks about what is outstanding");
}

static void deliver_result(struct model *m, struct slot *slot) {
  const struct sml_header h = honest_result(m, slot);
  deliver(m, &h, NULL);
}

/* The aggregator has not got this rank's update. */
static void answer_missing(struct model *m, struct slot *slot) {
  uint8_t bitmap[(64 + 7) / 8] = {0};
  struct sml_header h = slot->update;
  h.type = SML_PACKET_PENDING;
  h.payload_bytes = (uint16_t)((m->options.world_size + 7) / 8);
  bitmap[m->options.rank / 8] = (uint8_t)(1u << m->options.rank % 8);
  deliver(m, &h, bitmap);
}

/* From here on a good aggregator, and a network that loses the first update of every third phase: everything ends. */
static void drain(struct model *m) {
  struct slot *slot;
  for (uint32_t i = 0; i < 20000 && m->end_chunk - m->options.first_chunk != m->num_accepted; i++) {
    if (!take_send(m, &slot)) {
      pass_time(m, 0);
      continue;
    }
    const bool has_arrived = slot->has_result || slot->num_updates > 1 || slot->phase % 3 != 0;
    if (has_arrived) deliver_result(m, slot);
    else if (slot->was_probe) answer_missing(m, slot);
  }
  for (uint32_t i = 0; i < m->num_operations; i++) CHECK(m->operations[i].has_ended, "operation %u does not end", i);
  CHECK(sml_worker_take_unfinished(m->worker) == NULL, "all have ended");
}

static void take_unfinished(struct model *m) {
  for (void *cookie; (cookie = sml_worker_take_unfinished(m->worker)) != NULL;) end_operation(cookie);
  for (uint32_t i = 0; i < m->num_operations; i++) CHECK(m->operations[i].has_ended, "operation %u is lost", i);
}

static void begin(struct model *m, void **memory_out, struct fuzz_input *in) {
  const uint8_t kind = fuzz_u8(in), more = fuzz_u8(in);
  struct sml_worker_options *o = &m->options;
  *o = (struct sml_worker_options){.job = 3,
                                   .epoch = 9,
                                   .world_size = more & 1 ? 3 : 3 + (more >> 2) % 60,
                                   .num_lanes = kind & 1 ? 3 : 1,
                                   .num_slots = 1u << (kind >> 2 & 3),
                                   .chunk_bytes = CHUNK_BYTES,
                                   .is_checked = (kind & 16) != 0,
                                   .seed = more,
                                   .num_operations = 4};
  o->rank = (uint16_t)(more % o->world_size);
  o->lane = more % o->num_lanes;
  o->slot_base = (uint16_t)(kind & 2 ? 65536 - o->num_slots : 5 * o->num_slots);
  o->first_phase = kind & 32 ? UINT32_MAX - 201 : SML_FIRST_PHASE;
  o->first_chunk = kind & 64 ? UINT32_MAX - 5 : 0;
  m->end_chunk = o->first_chunk;
  m->next_grant = (uint64_t)o->first_chunk + o->num_slots;
  m->now_ns = SML_NS_PER_S;
  const size_t memory_bytes = sml_align_up(sml_worker_memsize(o), 64);
  *memory_out = aligned_alloc(64, memory_bytes);
  CHECK(*memory_out != NULL, "no memory");
  memset(*memory_out, 0xa5, memory_bytes);
  m->worker = sml_worker_init(*memory_out, o);
  for (uint32_t s = 0; s < o->num_slots; s++) {
    m->slots[s].phase = o->first_phase;
    m->slots[s].chunk = (uint64_t)o->first_chunk + s;
    m->slots[s].last_result.slot = m->slots[s].update.slot = (uint16_t)(o->slot_base + s);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  struct fuzz_input in = {data, data + num_bytes};
  struct model *m = calloc(1, sizeof *m);
  void *memory;
  CHECK(m != NULL, "no memory");
  begin(m, &memory, &in);
  for (uint32_t step = 0; step < MAX_STEPS && !fuzz_is_empty(&in); step++) {
    const uint8_t op = fuzz_u8(&in);
    struct slot *slot;
    if (op < 40) submit(m, &in);
    else if (op < 100) take_send(m, &slot);
    else if (op < 110)
      while (take_send(m, &slot)) {
      }
    else if (op < 130) pass_time(m, op & 1 ? 0 : (uint64_t)fuzz_u8(&in) << op % 16 << 6);
    else receive(m, &in);
    if (fuzz_is_due(step)) check_state(m);
  }
  check_state(m);
  if (m->has_lied) take_unfinished(m);
  else drain(m);
  free(memory);
  free(m);
  return 0;
}
