/* SPDX-License-Identifier: Apache-2.0
 * A whole aggregator engine over the in-process back end: frames that are almost right, from members and strangers,
 * while jobs open, start, change their epoch, lose ranks and close. Job 0 has a mask; job 1 has a key and check words.
 * A member's payload is a function of its header, that of all others is not: so whatever RESULT comes out must be
 * the sum of what the members say. */
#include "engine/aggregator_engine.h"

#include "fuzz/fuzz.h"

#define NUM_RANKS 3u
#define NUM_PORTS (NUM_RANKS + 1) /* the last one is a stranger's */
#define NUM_JOBS 2u
#define NUM_SLOTS 2u
#define CHUNK_BYTES 16u
#define MAX_FRAME_BYTES (SML_HEADER_BYTES + SML_KEYED_BYTES + CHUNK_BYTES + SML_CHECK_BYTES)
#define QUEUE_FRAMES 256u
#define MAX_STEPS 600u
#define MAX_GRANTS 64u /* by phase; those of an epoch are checked as long as they fit */

struct job {
  bool is_open, is_started;
  uint32_t epoch;
  struct sml_aggregator_options options;
  uint32_t next_phase[NUM_SLOTS]; /* what an honest rank sends next */
  bool is_departed[NUM_RANKS];
  struct {
    uint32_t epoch, chunk;
  } grants[NUM_SLOTS][MAX_GRANTS];
};

struct world {
  struct sml_mem_hub *hub;
  struct sml_netio *aggregator_io, *ports[NUM_PORTS];
  struct sml_addr aggregator_addr;
  struct sml_aggregator_engine *engine;
  struct job jobs[NUM_JOBS];
  uint32_t next_epoch;
  uint64_t now_ns;
  uint32_t num_passes;
};

/* ---- what is right ---- */

static struct sml_seal seal_of(uint32_t epoch, bool is_keyed) {
  const struct sml_key key = {epoch, UINT64_C(0x5eed)};
  return sml_seal_of(is_keyed ? &key : NULL, (const uint64_t[2]){sml_mix64(epoch), 0});
}

static uint64_t nonce_of(uint32_t job, uint32_t rank) {
  return UINT64_C(0x1122334455660000) + job * 16 + rank;
}

static uint32_t lane_of(const struct sml_header *h, uint32_t rank, uint32_t k) {
  return (uint32_t)sml_mix64((uint64_t)h->tag << 32 ^ (uint64_t)h->slot << 40 ^ h->phase ^ rank << 20 ^ k << 24);
}

static uint8_t code_of(const struct sml_header *h, uint32_t rank, uint32_t k) {
  return (uint8_t)lane_of(h, rank, k);
}

static void write_payload(uint8_t *payload, const struct sml_header *h, uint32_t rank) {
  for (uint32_t k = 0; k < h->payload_bytes; k++) payload[k] = code_of(h, rank, k);
  if (h->wire == SML_LANES_UINT8) return;
  for (uint32_t k = 0; k < h->payload_bytes / 4u; k++) sml_store_be32(payload + 4 * k, lane_of(h, rank, k));
}

static void check_sum(const struct sml_header *h, const uint8_t *payload) {
  for (uint32_t k = 0; h->wire == SML_LANES_UINT8 && k < h->payload_bytes; k++) {
    uint8_t max = 0;
    for (uint32_t rank = 0; rank < NUM_RANKS; rank++)
      if (code_of(h, rank, k) > max) max = code_of(h, rank, k);
    CHECK(payload[k] == max, "code %u of phase %u is not the maximum of all ranks", k, h->phase);
  }
  const uint32_t width = h->wire == SML_LANES_UINT64 ? 2 : 1;
  for (uint32_t k = 0; h->wire != SML_LANES_UINT8 && k < h->payload_bytes / 4u; k += width) {
    uint64_t all = h->reducer == SML_REDUCE_PRODUCT;
    for (uint32_t rank = 0; rank < NUM_RANKS; rank++) {
      const uint32_t lane = lane_of(h, rank, k);
      const uint64_t number = width == 1 ? lane : (uint64_t)lane << 32 | lane_of(h, rank, k + 1);
      if (h->reducer == SML_REDUCE_SUM) all += number;
      else if (h->reducer == SML_REDUCE_PRODUCT) all *= number;
      else if (h->reducer == SML_REDUCE_OR) all |= number;
      else all = all > number ? all : number;
    }
    const uint64_t got = width == 1 ? sml_load_be32(payload + 4 * k) : sml_load_be64(payload + 4 * k);
    CHECK(got == (width == 1 ? (uint32_t)all : all), "lane %u of phase %u is not that of all ranks", k, h->phase);
  }
}

/* ---- what comes out ---- */

static void check_result(struct job *job, uint32_t number, const struct sml_header *h, const uint8_t *payload) {
  const uint32_t slot = (uint32_t)h->slot - job->options.slot_base;
  CHECK(job->is_started && slot < NUM_SLOTS, "job %u slot %u", number, h->slot);
  CHECK(h->rank == 0, "rank %u", h->rank);
  const bool has_word = job->options.is_checked && h->wire == SML_LANES_INT32;
  CHECK(((h->flags & SML_FLAG_CHECKED) != 0) == has_word, "flags %x", h->flags);
  check_sum(h, payload);
  const uint32_t index = h->phase - job->options.first_phase;
  if (h->phase >= job->next_phase[slot]) job->next_phase[slot] = h->phase + 1;
  if (index >= MAX_GRANTS) return;
  if (job->grants[slot][index].epoch == h->epoch)
    CHECK(job->grants[slot][index].chunk == h->chunk, "I9: slot %u phase %u", slot, h->phase);
  job->grants[slot][index].epoch = h->epoch;
  job->grants[slot][index].chunk = h->chunk;
}

static void check_answer(struct world *w, const struct sml_rx_frame *frame) {
  struct sml_header h;
  CHECK(sml_addr_equal(frame->from, &w->aggregator_addr), "from another port");
  CHECK(sml_wire_open(frame->data, frame->num_bytes, &h) == SML_WIRE_OK, "a bad frame came out");
  if (h.type == SML_PACKET_ERROR) {
    CHECK(h.payload_bytes == 0 && (h.flags & SML_FLAG_KEYED) == 0, "ERROR");
    return;
  }
  CHECK(h.job < NUM_JOBS, "job %u", h.job);
  struct job *job = &w->jobs[h.job];
  const struct sml_seal seal = seal_of(job->epoch, h.job == 1);
  CHECK(job->is_open && h.epoch == job->epoch, "job %u epoch %u", h.job, h.epoch);
  CHECK(sml_wire_is_authentic(frame->data, &h, &seal), "job %u", h.job);
  const uint8_t *payload = frame->data + sml_head_bytes_of(&h);
  if (h.type == SML_PACKET_RESULT) check_result(job, h.job, &h, payload);
  else if (h.type == SML_PACKET_PENDING)
    CHECK(h.payload_bytes == 1 && payload[0] != 0 && payload[0] < 1u << NUM_RANKS && h.rank < NUM_RANKS, "PENDING");
  else CHECK(h.type == SML_PACKET_HELLO && sml_load_be64(payload) == nonce_of(h.job, h.rank), "type %u", h.type);
}

static void pass(struct world *w) {
  struct sml_rx_frame frames[QUEUE_FRAMES];
  (void)sml_aggregator_engine_run_once(w->engine, w->now_ns);
  if (fuzz_is_due(w->num_passes++)) CHECK_SOUND(sml_aggregator_engine_find_violation(w->engine));
  for (uint32_t p = 0; p < NUM_PORTS; p++) {
    const size_t num_frames = w->ports[p]->ops->rx_burst(w->ports[p], frames, QUEUE_FRAMES);
    for (size_t i = 0; i < num_frames; i++) check_answer(w, &frames[i]);
  }
}

/* ---- what goes in ---- */

static void send_frame(struct world *w, uint32_t port, const uint8_t *frame, uint32_t num_bytes) {
  struct sml_netio *io = w->ports[port];
  struct sml_tx_burst burst;
  if (num_bytes == 0) return;
  io->ops->tx_reserve(io, num_bytes, &burst);
  memcpy(burst.data, frame, num_bytes);
  io->ops->tx_commit(io, &burst, 1, num_bytes, &w->aggregator_addr, 1);
  io->ops->tx_flush(io);
}

static void seal_and_send(struct world *w, uint32_t port, const struct sml_header *h, uint8_t *payload,
                          struct fuzz_input *trouble) {
  uint8_t frame[2 * MAX_FRAME_BYTES] = {0};
  const uint8_t kind = trouble == NULL ? 0 : fuzz_u8(trouble);
  const struct job *job = &w->jobs[h->job % NUM_JOBS];
  /* An epoch to come may have come when the frame is looked at. */
  const bool is_member =
      port < NUM_RANKS && port == h->rank && !job->is_departed[port] && h->epoch >= job->epoch && (kind & 15) == 0;
  for (uint32_t k = 0; h->type != SML_PACKET_HELLO && !is_member && k < h->payload_bytes; k++) payload[k] ^= 0x5a;
  const bool is_keyed = (h->job == 1) != ((kind & 2) != 0);
  const struct sml_seal seal = seal_of(h->epoch + (kind & 1), is_keyed); /* 1: that of another epoch */
  memcpy(frame + sml_head_bytes(is_keyed), payload, h->payload_bytes);
  sml_wire_seal(frame, h, &seal);
  uint32_t num_bytes = sml_head_bytes(is_keyed) + h->payload_bytes;
  if (kind & 4) frame[fuzz_u8(trouble) % num_bytes] ^= (uint8_t)(1 + fuzz_u8(trouble) % 255);
  if (kind & 8) num_bytes = (num_bytes + 1 + fuzz_u8(trouble) % (MAX_FRAME_BYTES - 1)) % MAX_FRAME_BYTES; /* another */
  send_frame(w, port, frame, sml_min_u32(num_bytes, MAX_FRAME_BYTES));
}

static void send_hello(struct world *w, struct fuzz_input *in) {
  uint8_t payload[CHUNK_BYTES] = {0};
  const uint32_t number = fuzz_below(in, NUM_JOBS), port = fuzz_below(in, NUM_PORTS);
  const uint8_t kind = fuzz_u8(in);
  const uint32_t rank = kind & 1 ? fuzz_u8(in) % 4 : port % NUM_RANKS;
  const bool knows_nonce = rank == port && (kind & 4) == 0;
  struct sml_header h = {.type = SML_PACKET_HELLO,
                         .job = (uint16_t)number,
                         .epoch = w->jobs[number].epoch,
                         .rank = (uint16_t)rank,
                         .payload_bytes = kind & 2 ? fuzz_u8(in) % 17 : CHUNK_BYTES};
  sml_store_be64(payload, nonce_of(number, rank) + (knows_nonce ? 0 : 1));
  seal_and_send(w, port, &h, payload, kind & 8 ? in : NULL);
}

/* An honest rank's update of a slot; any field may be another. */
static struct sml_header draw_update(const struct world *w, uint32_t rank, uint8_t kind, struct fuzz_input *in) {
  const uint32_t number = kind & 1, slot = kind >> 1 & 1;
  const struct job *job = &w->jobs[number];
  const uint32_t phase = job->next_phase[slot] - (kind & 4 ? 1 + fuzz_below(in, 2) : 0);
  const bool is_codes = (phase + slot) % 4 == 0, has_word = number == 1 && !is_codes;
  struct sml_header h = {.type = SML_PACKET_UPDATE,
                         .job = (uint16_t)number,
                         .epoch = job->epoch,
                         .rank = (uint16_t)rank,
                         .slot = (uint16_t)(job->options.slot_base + slot),
                         .phase = phase,
                         .tag = phase * 5 + slot,
                         .payload_bytes = CHUNK_BYTES,
                         .wire = is_codes,
                         .reducer = is_codes,
                         .flags = has_word ? SML_FLAG_CHECKED : 0};
  if (has_word) h.payload_bytes += SML_CHECK_BYTES;
  if (kind & 8) h.flags |= SML_FLAG_RETRANSMISSION;
  if (kind & 16) h.type = SML_PACKET_PROBE, h.payload_bytes = 0, h.flags &= SML_FLAG_RETRANSMISSION;
  if ((kind & 32) == 0) return h;
  switch (fuzz_below(in, 10)) {
    case 0: h.type = fuzz_u8(in) & 15; break;
    case 1:
      h.reducer = fuzz_u8(in) & 7;
      h.wire = h.reducer == SML_REDUCE_SUM ? 0 : h.reducer == SML_REDUCE_OR ? 2 : fuzz_u8(in) & 3;
      break;
    case 2: h.job = (uint16_t)fuzz_near(in, h.job ^ 1u); break;
    case 3: h.epoch = fuzz_near(in, h.epoch + 1); break;
    case 4: h.rank = (uint16_t)fuzz_near(in, h.rank + 1u); break;
    case 5: h.payload_bytes = (uint16_t)(fuzz_u8(in) % (MAX_FRAME_BYTES - SML_HEADER_BYTES)); break;
    case 6: h.slot = (uint16_t)fuzz_near(in, h.slot + NUM_SLOTS); break;
    case 7: h.flags ^= fuzz_u8(in); break;
    case 8: h.phase = fuzz_near(in, h.phase + 1); break;
    default: h.tag = fuzz_near(in, h.tag + 1);
  }
  return h;
}

static void send_update(struct world *w, struct fuzz_input *in) {
  uint8_t payload[MAX_FRAME_BYTES] = {0};
  const uint32_t rank = fuzz_below(in, NUM_RANKS);
  const uint8_t kind = fuzz_u8(in);
  const struct sml_header h = draw_update(w, rank, kind, in);
  if (h.payload_bytes > sizeof payload) return;
  write_payload(payload, &h, h.rank);
  const uint32_t port = kind & 64 ? fuzz_below(in, NUM_PORTS) : rank;
  seal_and_send(w, port, &h, payload, kind & 128 ? in : NULL);
}

/* All ranks say the right thing about a slot. */
static void send_round(struct world *w, struct fuzz_input *in) {
  uint8_t payload[MAX_FRAME_BYTES];
  const uint8_t kind = fuzz_u8(in);
  for (uint32_t rank = 0; rank < NUM_RANKS; rank++) {
    const struct sml_header h = draw_update(w, rank, kind & 3, in);
    write_payload(payload, &h, rank);
    seal_and_send(w, rank, &h, payload, NULL);
  }
}

static void send_bytes(struct world *w, struct fuzz_input *in) {
  uint8_t frame[MAX_FRAME_BYTES];
  const uint32_t port = fuzz_below(in, NUM_PORTS), num_bytes = fuzz_below(in, MAX_FRAME_BYTES);
  for (uint32_t i = 0; i < num_bytes; i++) frame[i] = fuzz_u8(in);
  send_frame(w, port, frame, num_bytes);
}

/* ---- jobs ---- */

static void open_job(struct world *w, uint32_t number) {
  struct job *job = &w->jobs[number];
  memset(job, 0, sizeof *job);
  job->epoch = w->next_epoch++;
  const struct sml_seal seal = seal_of(job->epoch, number == 1);
  CHECK(sml_aggregator_engine_open_job(w->engine, (uint16_t)number, job->epoch, NUM_RANKS, &seal), "no memory");
  for (uint32_t rank = 0; rank < NUM_RANKS; rank++)
    sml_aggregator_engine_expect_hello(w->engine, (uint16_t)number, rank, nonce_of(number, rank));
  job->is_open = true;
  job->options.slot_base = (uint16_t)(number * NUM_SLOTS);
}

static void start_job(struct world *w, uint32_t number) {
  struct job *job = &w->jobs[number];
  if (job->is_started) job->epoch = w->next_epoch++;
  const struct sml_seal seal = seal_of(job->epoch, number == 1);
  job->options = (struct sml_aggregator_options){.world_size = NUM_RANKS,
                                                 .num_slots = NUM_SLOTS,
                                                 .slot_base = (uint16_t)(number * NUM_SLOTS),
                                                 .is_checked = number == 1,
                                                 .chunk_bytes = CHUNK_BYTES,
                                                 .first_phase = SML_FIRST_PHASE};
  const size_t memory_bytes = sml_align_up(sml_aggregator_memsize(&job->options), 64);
  void *memory = aligned_alloc(64, memory_bytes);
  CHECK(memory != NULL, "no memory");
  free(sml_aggregator_engine_start_job(w->engine, (uint16_t)number, job->epoch,
                                       sml_aggregator_init(memory, &job->options), NULL, &seal));
  job->is_started = true;
  for (uint32_t s = 0; s < NUM_SLOTS; s++) job->next_phase[s] = SML_FIRST_PHASE;
}

static void close_job(struct world *w, uint32_t number) {
  free(sml_aggregator_engine_close_job(w->engine, (uint16_t)number));
  w->jobs[number].is_open = w->jobs[number].is_started = false;
}

static void change_job(struct world *w, struct fuzz_input *in) {
  const uint8_t kind = fuzz_u8(in);
  const uint16_t number = kind & 1;
  const uint32_t rank = kind % NUM_RANKS;
  struct job *job = &w->jobs[number];
  if (!job->is_open) {
    open_job(w, number);
  } else if (kind < 160) {
    start_job(w, number);
  } else if (kind < 200) {
    sml_aggregator_engine_depart(w->engine, number, &(uint64_t){UINT64_C(1) << rank});
    job->is_departed[rank] = true;
  } else if (kind < 220) {
    close_job(w, number);
  } else {
    sml_aggregator_engine_expect_hello(w->engine, number, rank, nonce_of(number, rank));
    job->is_departed[rank] = false;
  }
}

static void take_event(void *user, const struct sml_aggregator_event *event) {
  const struct world *w = user;
  CHECK(event->job < NUM_JOBS && event->epoch == w->jobs[event->job].epoch, "an event of job %u", event->job);
  CHECK(event->rank_a < NUM_RANKS && event->rank_b < NUM_RANKS && event->slot < NUM_SLOTS, "an event's ranks");
}

static void begin(struct world *w, struct fuzz_input *in) {
  w->hub = sml_mem_hub_create();
  CHECK(w->hub != NULL, "no memory");
  w->aggregator_io = sml_mem_open(w->hub, QUEUE_FRAMES, MAX_FRAME_BYTES);
  for (uint32_t p = 0; p < NUM_PORTS; p++) w->ports[p] = sml_mem_open(w->hub, QUEUE_FRAMES, MAX_FRAME_BYTES);
  for (uint32_t p = 0; p < NUM_PORTS; p++) CHECK(w->ports[p] != NULL && w->aggregator_io != NULL, "no memory");
  w->aggregator_io->ops->local_addr(w->aggregator_io, &w->aggregator_addr);
  const struct sml_aggregator_engine_options options = {
      .io = w->aggregator_io, .kernels = &sml_quant_scalar, .on_event = take_event, .user = w};
  w->engine = sml_aggregator_engine_create(&options);
  CHECK(w->engine != NULL, "no memory");
  w->next_epoch = 70;
  w->now_ns = SML_NS_PER_S;
  if (fuzz_u8(in) & 1) return;
  for (uint32_t number = 0; number < NUM_JOBS; number++) { /* most programs begin with two jobs at work */
    open_job(w, number);
    for (uint32_t rank = 0; rank < NUM_RANKS; rank++) {
      uint8_t payload[8];
      struct sml_header h = {.type = SML_PACKET_HELLO,
                             .job = (uint16_t)number,
                             .epoch = w->jobs[number].epoch,
                             .rank = (uint16_t)rank,
                             .payload_bytes = 8};
      sml_store_be64(payload, nonce_of(number, rank));
      seal_and_send(w, rank, &h, payload, NULL);
    }
    pass(w);
    start_job(w, number);
  }
}

static void end(struct world *w) {
  for (uint32_t number = 0; number < NUM_JOBS; number++)
    if (w->jobs[number].is_open) close_job(w, number);
  sml_aggregator_engine_destroy(w->engine);
  for (uint32_t p = 0; p < NUM_PORTS; p++) w->ports[p]->ops->close(w->ports[p]);
  w->aggregator_io->ops->close(w->aggregator_io);
  sml_mem_hub_destroy(w->hub);
  free(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  struct fuzz_input in = {data, data + num_bytes};
  struct world *w = calloc(1, sizeof *w);
  CHECK(w != NULL, "no memory");
  begin(w, &in);
  for (uint32_t step = 0; step < MAX_STEPS && !fuzz_is_empty(&in); step++) {
    const uint8_t op = fuzz_u8(&in);
    if (op < 120) send_update(w, &in);
    else if (op < 170) send_round(w, &in);
    else if (op < 190) send_hello(w, &in);
    else if (op < 205) change_job(w, &in);
    else if (op < 215) send_bytes(w, &in);
    else if (op < 225) w->now_ns += (uint64_t)fuzz_u8(&in) << 16;
    /* Jobs change between passes only: what was sent before is still there. */
    if (op & 1) pass(w);
  }
  pass(w);
  CHECK_SOUND(sml_aggregator_engine_find_violation(w->engine));
  end(w);
  return 0;
}
