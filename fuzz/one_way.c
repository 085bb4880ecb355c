/* SPDX-License-Identifier: Apache-2.0
 * A one-way window of a few workers and their aggregator (docs/PROTOCOL.md rules R192 to R208); the input is the
 * programs and the network. Whatever is lost, repeated or overtaken, each rank takes each chunk that is for it once,
 * with one contribution of each contributor, nobody is accused, and all operations end once the network is good.
 * After a lie (a header with another field) all of this is over, but nothing breaks. */
#include "core/aggregator.h"
#include "core/worker.h"

#include "fuzz/fuzz.h"

#define MAX_RANKS 4u
#define NUM_SLOTS 8u
#define CHUNK_BYTES 16u
#define CHUNK_ELEMS (CHUNK_BYTES / 4)
#define MAX_OPERATIONS 6u
#define MAX_PACKETS 64u
#define MAX_CELLS (2 * SML_ALL_WINDOWS * NUM_SLOTS)
#define MAX_STEPS 2000u
#define MAX_READY 64u
#define MAX_DRAIN 20000u

/* What a packet carries: of which chunk, and whose contributions. */
struct content {
  uint64_t id;
  uint32_t ranks;
};
struct packet {
  struct sml_header header;
  bool is_up;
  uint32_t rank; /* from or to whom */
  uint8_t missing;
  struct content content;
};
struct part_of_rank {
  uint32_t operation, num_taken;
  bool has_ended;
  uint8_t ready[MAX_READY];
};
struct world {
  uint32_t num_ranks, num_operations, num_packets;
  uint64_t now_ns;
  bool has_lied;
  struct sml_aggregator *aggregator;
  struct sml_worker *workers[MAX_RANKS];
  void *memory[MAX_RANKS + 1];
  struct content cells[MAX_CELLS];
  struct sml_operation_plan plans[MAX_OPERATIONS];
  uint64_t parts[MAX_OPERATIONS][MAX_RANKS + 1];
  struct part_of_rank of_ranks[MAX_RANKS][MAX_OPERATIONS];
  uint32_t num_submitted[MAX_RANKS];
  struct packet packets[MAX_PACKETS];
};

/* ---- what is right ---- */

static uint64_t id_of(uint32_t operation, const struct sml_chunk *c) {
  const uint64_t kind = c->is_fence ? 0 : c->is_exponent ? 1 : 2;
  return (uint64_t)operation << 32 | kind << 28 | c->first_elem << 4 | (c->is_fence ? 0 : c->num_elems % 16);
}

static uint32_t contributors_of(const struct world *w, uint8_t reducer, uint32_t owner) {
  const uint32_t all = (1u << w->num_ranks) - 1;
  if (reducer == SML_REDUCE_TO_OWNER) return all & ~(1u << owner);
  return reducer == SML_REDUCE_COPY ? 1u << owner : all;
}

/* How many chunks of data the rank takes. */
static uint32_t count_own(const struct world *w, uint32_t operation, uint32_t rank) {
  uint32_t num = 0;
  for (uint32_t owner = 0; owner < w->num_ranks; owner++) {
    const bool is_for_it = (w->plans[operation].way == SML_REDUCE_TO_OWNER) == (owner == rank);
    const uint64_t length = w->parts[operation][owner + 1] - w->parts[operation][owner];
    if (is_for_it)
      num += (uint32_t)sml_div_ceil(length, w->plans[operation].way == SML_REDUCE_COPY ? CHUNK_BYTES : CHUNK_ELEMS);
  }
  return num;
}

static void end_operation(struct world *w, uint32_t rank, struct part_of_rank *part) {
  CHECK(!part->has_ended, "operation %u ends twice", part->operation);
  part->has_ended = true;
  if (!w->has_lied)
    CHECK(part->num_taken == count_own(w, part->operation, rank), "operation %u: rank %u took %u", part->operation,
          rank, part->num_taken);
}

/* ---- the network ---- */

static void put(struct world *w, const struct packet *p) {
  if (w->num_packets < MAX_PACKETS) w->packets[w->num_packets++] = *p;
}

static void answer(struct world *w, const struct sml_header *h, uint32_t rank, uint32_t cell, uint16_t flags) {
  struct packet p = {.rank = rank, .content = w->cells[cell]};
  (void)h;
  sml_aggregator_result(w->aggregator, cell, &p.header);
  p.header.flags |= flags;
  put(w, &p);
}

static uint8_t tell_pending(struct world *w, const struct sml_header *h, uint32_t rank, uint16_t flags) {
  uint64_t missing[1] = {0};
  sml_aggregator_missing_for(w->aggregator, h, missing);
  struct packet p = {.header = *h, .rank = rank, .missing = (uint8_t)missing[0]};
  p.header.type = SML_PACKET_PENDING;
  p.header.flags = flags;
  p.header.payload_bytes = 1;
  if (flags & SML_FLAG_UNASKED) {
    p.header.rank = (uint16_t)rank;
    p.header.chunk = sml_aggregator_latest_position(w->aggregator, &p.header);
  }
  put(w, &p);
  return p.missing;
}

/* Those that are missing are told, too. */
static void answer_pending(struct world *w, const struct sml_header *h, uint32_t rank) {
  const uint8_t missing = tell_pending(w, h, rank, 0);
  if (h->type != SML_PACKET_PROBE || (!sml_has_owner(h->reducer) && h->chunk != SML_FENCE)) return;
  for (uint32_t r = 0; r < w->num_ranks; r++)
    if (r != rank && missing >> r & 1) (void)tell_pending(w, h, r, SML_FLAG_UNASKED);
}

static void go_up(struct world *w, const struct packet *p) {
  const struct sml_header *h = &p->header;
  const struct sml_decision d = sml_aggregator_decide(w->aggregator, h);
  CHECK(w->has_lied || (d.verdict != SML_VERDICT_MISMATCH && d.verdict != SML_VERDICT_JUMP), "rank %u is accused of %d",
        p->rank, (int)d.verdict);
  if (d.verdict == SML_VERDICT_FIRST || (d.verdict == SML_VERDICT_COMPLETE && d.is_first))
    w->cells[d.cell] = p->content;
  else if (d.verdict == SML_VERDICT_ADD || d.verdict == SML_VERDICT_COMPLETE)
    w->cells[d.cell].ranks |= p->content.ranks;
  if (d.verdict == SML_VERDICT_COMPLETE) {
    for (uint32_t r = 0; r < w->num_ranks; r++)
      if (!sml_has_owner(h->reducer) || !sml_contributes(h->reducer, h->chunk, r)) answer(w, h, r, d.cell, 0);
  } else if (d.verdict == SML_VERDICT_REPEAT) {
    answer(w, h, p->rank, d.cell, SML_FLAG_RETRANSMISSION);
  } else if (d.verdict == SML_VERDICT_PENDING) {
    answer_pending(w, h, p->rank);
  }
}

static void go_down(struct world *w, const struct packet *p) {
  struct sml_worker *worker = w->workers[p->rank];
  if (sml_worker_take_proof(worker, &p->header, w->now_ns))
    for (void *ended; (ended = sml_worker_next_ended(worker)) != NULL;) end_operation(w, p->rank, ended);
  const struct sml_accept a = sml_worker_on_packet(worker, &p->header, &p->missing, w->now_ns);
  if (a.kind != SML_ACCEPT_RESULT) return;
  struct part_of_rank *part = a.cookie;
  if (!a.chunk.is_exponent) part->num_taken++;
  if (!w->has_lied) {
    CHECK(p->content.id == id_of(part->operation, &a.chunk), "another chunk: %llx", (unsigned long long)p->content.id);
    CHECK(p->content.ranks == contributors_of(w, p->header.reducer, a.chunk.owner), "contributions %x",
          p->content.ranks);
  }
  for (void *ended = a.ended; ended != NULL; ended = sml_worker_next_ended(worker)) end_operation(w, p->rank, ended);
}

static void deliver(struct world *w, uint32_t k, bool is_kept) {
  const struct packet p = w->packets[k];
  if (!is_kept) memmove(&w->packets[k], &w->packets[k + 1], (--w->num_packets - k) * sizeof p);
  if (p.is_up) go_up(w, &p);
  else go_down(w, &p);
}

/* ---- the ranks ---- */

static void submit(struct world *w, uint32_t rank) {
  const uint32_t i = w->num_submitted[rank];
  if (i == w->num_operations || !sml_worker_can_submit(w->workers[rank])) return;
  struct part_of_rank *part = &w->of_ranks[rank][i];
  w->num_submitted[rank]++;
  if (!sml_worker_submit(w->workers[rank], &w->plans[i], part->ready, part, w->now_ns)) end_operation(w, rank, part);
}

static bool send_one(struct world *w, uint32_t rank) {
  struct sml_send send;
  sml_worker_next_send(w->workers[rank], w->now_ns, &send);
  if (send.kind == SML_SEND_NONE) return false;
  struct packet p = {.header = send.header, .is_up = true, .rank = rank};
  if (send.kind == SML_SEND_UPDATE)
    p.content = (struct content){id_of(((const struct part_of_rank *)send.cookie)->operation, &send.chunk), 1u << rank};
  put(w, &p);
  return true;
}

static void pass_time(struct world *w, uint64_t step_ns) {
  w->now_ns += step_ns;
  for (uint32_t r = 0; r < w->num_ranks; r++)
    if (sml_worker_next_deadline(w->workers[r]) <= w->now_ns) sml_worker_on_timer(w->workers[r], w->now_ns);
}

/* Another field in a packet that is on its way. */
static void lie(struct world *w, struct packet *p, struct fuzz_input *in) {
  struct sml_header *h = &p->header;
  const uint8_t what = fuzz_u8(in), value = fuzz_u8(in);
  w->has_lied = true;
  if (what & 1) h->slot = (uint16_t)fuzz_near(in, h->slot);
  if (what & 2) h->phase = fuzz_near(in, h->phase);
  if (what & 4) h->tag = fuzz_near(in, h->tag);
  if (what & 8) h->chunk = fuzz_near(in, h->chunk);
  if (what & 16) h->wire = value % 4, h->reducer = value / 4 % 6;
  if (what & 32) h->payload_bytes = value % (CHUNK_BYTES + 4);
  if (what & 64) h->flags ^= value & (SML_FLAG_RETRANSMISSION | SML_FLAG_UNASKED);
  if (what & 128) p->missing = value;
  if (h->type == SML_PACKET_PENDING) h->payload_bytes = 1;
}

/* ---- life ---- */

static void *room(struct world *w, uint32_t i, size_t num_bytes) {
  w->memory[i] = aligned_alloc(64, sml_align_up(num_bytes, 64));
  CHECK(w->memory[i] != NULL, "no memory");
  memset(w->memory[i], 0xa5, num_bytes);
  return w->memory[i];
}

static void begin(struct world *w, struct fuzz_input *in) {
  const uint8_t kind = fuzz_u8(in), way = kind & 4 ? SML_REDUCE_COPY : SML_REDUCE_TO_OWNER;
  w->num_ranks = 2u + (kind & 3) % 3;
  w->num_operations = 1 + (kind >> 3) % MAX_OPERATIONS;
  w->now_ns = SML_NS_PER_S;
  for (uint32_t i = 0; i < w->num_operations; i++) {
    struct sml_operation_plan *plan = &w->plans[i];
    uint64_t *parts = w->parts[i];
    for (uint32_t r = 0; r < w->num_ranks; r++) parts[r + 1] = parts[r] + fuzz_below(in, 40);
    if (parts[w->num_ranks] == 0) parts[w->num_ranks] = 1;
    *plan = (struct sml_operation_plan){.number = i,
                                        .num_elems = parts[w->num_ranks],
                                        .type = 1,
                                        .way = way,
                                        .num_parts = w->num_ranks,
                                        .parts = parts,
                                        .block_elems = kind & 128 && way == SML_REDUCE_TO_OWNER ? CHUNK_ELEMS : 0};
  }
  const struct sml_aggregator_options a = {.world_size = w->num_ranks,
                                           .num_slots = NUM_SLOTS,
                                           .is_one_way = true,
                                           .slot_base = 4 * NUM_SLOTS,
                                           .chunk_bytes = CHUNK_BYTES,
                                           .first_phase = SML_FIRST_PHASE};
  w->aggregator = sml_aggregator_init(room(w, MAX_RANKS, sml_aggregator_memsize(&a)), &a);
  for (uint32_t r = 0; r < w->num_ranks; r++) {
    const struct sml_worker_options o = {.rank = (uint16_t)r,
                                         .world_size = w->num_ranks,
                                         .num_lanes = 1,
                                         .num_slots = NUM_SLOTS,
                                         .slot_base = (uint16_t)(4 * NUM_SLOTS + sml_window_base(way, NUM_SLOTS)),
                                         .chunk_bytes = CHUNK_BYTES,
                                         .first_phase = SML_FIRST_PHASE,
                                         .num_operations = 8,
                                         .seed = r,
                                         .way = way};
    w->workers[r] = sml_worker_init(room(w, r, sml_worker_memsize(&o)), &o);
    for (uint32_t i = 0; i < w->num_operations; i++) w->of_ranks[r][i].operation = i;
  }
}

static bool has_ended(const struct world *w) {
  for (uint32_t r = 0; r < w->num_ranks; r++)
    for (uint32_t i = 0; i < w->num_operations; i++)
      if (!w->of_ranks[r][i].has_ended) return false;
  return true;
}

/* From here on everything arrives, in order and at once. */
static void drain(struct world *w) {
  for (uint32_t i = 0; i < MAX_DRAIN && !has_ended(w); i++) {
    bool has_sent = false;
    for (uint32_t r = 0; r < w->num_ranks; r++) {
      submit(w, r);
      has_sent = send_one(w, r) || has_sent;
    }
    while (w->num_packets > 0) deliver(w, 0, false);
    if (!has_sent) pass_time(w, 10 * SML_NS_PER_MS);
  }
  CHECK(has_ended(w), "an operation does not end");
}

static void step(struct world *w, struct fuzz_input *in) {
  const uint8_t op = fuzz_u8(in);
  const uint32_t rank = fuzz_u8(in) % w->num_ranks;
  if (op < 20) submit(w, rank);
  else if (op < 60) (void)send_one(w, rank);
  else if (op < 70)
    while (send_one(w, rank)) {
    }
  else if (op < 90) pass_time(w, (uint64_t)rank << 10 << op % 16);
  else if (w->num_packets == 0) return;
  const uint32_t k = w->num_packets == 0 ? 0 : fuzz_u8(in) % w->num_packets;
  if (op < 90) return;
  if (op < 190) deliver(w, k, false);
  else if (op < 215) deliver(w, k, true);
  else if (op < 252)
    memmove(&w->packets[k], &w->packets[k + 1], (--w->num_packets - k) * sizeof *w->packets); /* lost */
  else lie(w, &w->packets[k], in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  struct fuzz_input in = {data, data + num_bytes};
  struct world *w = calloc(1, sizeof *w);
  CHECK(w != NULL, "no memory");
  begin(w, &in);
  for (uint32_t i = 0; i < MAX_STEPS && !fuzz_is_empty(&in); i++) {
    step(w, &in);
    if (!fuzz_is_due(i)) continue;
    CHECK_SOUND(sml_aggregator_find_violation(w->aggregator));
    for (uint32_t r = 0; r < w->num_ranks; r++) CHECK_SOUND(sml_worker_find_violation(w->workers[r]));
  }
  if (!w->has_lied) drain(w);
  for (uint32_t i = 0; i <= MAX_RANKS; i++) free(w->memory[i]);
  free(w);
  return 0;
}
