/* SPDX-License-Identifier: Apache-2.0
 * engine_test FILE: plays the vectors of a file on the aggregator's engine, each with several sets of numbers that
 * an aggregator may choose: where its slots, phases, chunks and epochs begin, how long chunks are, keyed or not. */
#include <stdlib.h>

#include "cli/conform/conform.h"
#include "engine/aggregator_engine.h"

#define QUEUE_FRAMES 256u
#define NUM_VARIANTS 3u

static const struct variant {
  const char *name;
  uint16_t job;
  uint32_t epoch, first_chunk, chunk_bytes, more_slots, base_windows;
  bool is_keyed;
} variants[NUM_VARIANTS] = {{"plain", 0, 1, 0, 256, 1, 0, false},
                            {"keyed", 700, 0xffffffff, UINT32_MAX - 5, 1440, 4, 3, true},
                            {"jumbo", 1022, 0x7fffffff, 0x80000000, 8192, 2, 1, false}};

struct stage {
  struct sml_conform_stage base;
  const struct sml_conform_vector *vector;
  const struct variant *variant;
  struct sml_conform_binding bindings[SML_CONFORM_MAX_JOBS];
  struct sml_mem_hub *hub;
  struct sml_netio *io, *ranks[SML_CONFORM_MAX_JOBS][SML_CONFORM_MAX_RANKS], *stranger;
  struct sml_addr addr;
  struct sml_aggregator_engine *engine;
  uint64_t now_ns;
  uint64_t num_drops[SML_NUM_DROPS];
  bool is_other_epoch; /* the last packet was of another one of a job without a key */
  struct sml_aggregator_event events[4];
  uint32_t num_events;
  const char *problem;
};

static void *must(void *memory) {
  SML_ASSERT(memory != NULL);
  return memory;
}

static void on_event(void *user, const struct sml_aggregator_event *event) {
  struct stage *t = user;
  if (event->kind == SML_EVENT_FORGED) return; /* for the log: no aggregator has to tell that */
  if (t->num_events < SML_ARRAY_LEN(t->events)) t->events[t->num_events++] = *event;
}

static void send_to_engine(struct stage *t, struct sml_netio *from, const uint8_t *frame, uint32_t num_bytes) {
  struct sml_tx_burst burst;
  if (num_bytes == 0) return; /* mem has no empty frames */
  from->ops->tx_reserve(from, num_bytes, &burst);
  memcpy(burst.data, frame, num_bytes);
  from->ops->tx_commit(from, &burst, 1, num_bytes, &t->addr, 1);
  from->ops->tx_flush(from);
}

static bool run_engine(struct stage *t) {
  t->now_ns += SML_NS_PER_MS;
  (void)sml_aggregator_engine_run_once(t->engine, t->now_ns);
  /* In switch format it is the members alone that keep phases beside each other, and here they do not. */
  t->problem = t->vector->is_switch ? NULL : sml_aggregator_engine_find_violation(t->engine);
  return t->problem == NULL;
}

static void bind_job(struct stage *t, uint32_t j) {
  const struct sml_conform_job *as = &t->vector->jobs[j];
  const struct variant *v = t->variant;
  struct sml_conform_binding *b = &t->bindings[j];
  const uint32_t num_slots = as->num_slots * v->more_slots;
  *b = (struct sml_conform_binding){
      .job = (uint16_t)(v->job + j),
      .epoch = v->epoch - 10 * j,
      .first_phase = as->first_phase != 0 ? as->first_phase : SML_FIRST_PHASE + 2 * v->base_windows,
      .first_chunk = v->first_chunk,
      .world_size = as->num_ranks,
      .num_slots = num_slots,
      .chunk_bytes = v->chunk_bytes,
      .slot_base = (uint16_t)(num_slots * (v->base_windows + j) * (as->has_one_way ? SML_ALL_WINDOWS : 1)),
      .is_checked = as->is_checked,
      .is_switch = t->vector->is_switch};
  const bool is_keyed = (t->vector->needs & SML_NEED_KEY) != 0 ||
                        (v->is_keyed && !(t->vector->needs & SML_NEED_NO_KEY) && !t->vector->is_switch);
  const uint64_t secret[2] = {t->vector->is_switch ? 0 : sml_mix64(v->epoch + j)};
  b->seal = sml_seal_of(is_keyed ? &(struct sml_key){v->epoch, j + 1} : NULL, secret);
  for (uint32_t rank = 0; rank < as->num_ranks; rank++) b->nonces[rank] = sml_mix64(v->epoch + 99 * rank + j);
}

static struct sml_netio *open_port(struct stage *t) {
  return must(sml_mem_open(t->hub, QUEUE_FRAMES, SML_CONFORM_MAX_FRAME_BYTES + 64));
}

static void say_hello(struct stage *t, uint32_t j, uint32_t rank) {
  uint8_t frame[SML_CONFORM_MAX_FRAME_BYTES];
  const struct sml_conform_packet hello = {.socket = rank,
                                           .given = 1u << SML_FIELD_TYPE,
                                           .fields = {[SML_FIELD_TYPE] = {.number = SML_PACKET_HELLO}},
                                           .has_nonce = true};
  send_to_engine(t, t->ranks[j][rank], frame, sml_conform_pack(&hello, &t->bindings[j], frame));
}

static void start_job(struct stage *t, uint32_t j) {
  const struct sml_conform_binding *b = &t->bindings[j];
  const struct sml_aggregator_options options = {.world_size = b->world_size,
                                                 .num_slots = b->num_slots,
                                                 .is_one_way = t->vector->jobs[j].has_one_way,
                                                 .slot_base = b->slot_base,
                                                 .chunk_bytes = b->chunk_bytes,
                                                 .is_checked = b->is_checked,
                                                 .is_narrow = t->vector->jobs[j].is_narrow,
                                                 .first_phase = b->first_phase,
                                                 .first_chunk = b->first_chunk,
                                                 .is_switch_format = t->vector->is_switch};
  const size_t num_bytes = sml_align_up(sml_aggregator_memsize(&options), 64);
  struct sml_aggregator *a = sml_aggregator_init(must(aligned_alloc(64, num_bytes)), &options);
  struct sml_rx_frame frame;
  (void)sml_aggregator_engine_start_job(t->engine, b->job, b->epoch, a, NULL, &b->seal);
  for (uint32_t rank = 0; rank < b->world_size; rank++)
    SML_ASSERT(t->ranks[j][rank]->ops->rx_burst(t->ranks[j][rank], &frame, 1) == 1); /* the HELLO's echo */
}

static bool open_stage(struct sml_conform_stage *base, const struct sml_conform_vector *vector,
                       struct sml_conform_binding *bindings_out) {
  struct stage *t = (struct stage *)base;
  const struct sml_aggregator_engine_options options = {.io = NULL,
                                                        .kernels = sml_quant_select(NULL),
                                                        .on_event = on_event,
                                                        .user = t,
                                                        .is_switch_format = vector->is_switch};
  struct sml_aggregator_engine_options with_io = options;
  t->vector = vector;
  t->num_events = 0;
  t->problem = NULL;
  memset(t->num_drops, 0, sizeof t->num_drops);
  t->hub = must(sml_mem_hub_create());
  with_io.io = t->io = open_port(t);
  t->io->ops->local_addr(t->io, &t->addr);
  t->stranger = open_port(t);
  t->engine = must(sml_aggregator_engine_create(&with_io));
  for (uint32_t j = 0; j < vector->num_jobs; j++) {
    bind_job(t, j);
    const struct sml_conform_binding *b = &t->bindings[j];
    SML_ASSERT(
        sml_aggregator_engine_open_job(t->engine, b->job, b->epoch, b->world_size, &b->seal));
    for (uint32_t rank = 0; rank < b->world_size; rank++) {
      sml_aggregator_engine_expect_hello(t->engine, b->job, rank, b->nonces[rank]);
      t->ranks[j][rank] = open_port(t);
      say_hello(t, j, rank);
    }
    if (!run_engine(t)) return false;
    start_job(t, j);
  }
  memcpy(bindings_out, t->bindings, sizeof t->bindings);
  return true;
}

static void close_stage(struct sml_conform_stage *base) {
  struct stage *t = (struct stage *)base;
  for (uint32_t j = 0; j < t->vector->num_jobs; j++) {
    free(sml_aggregator_engine_close_job(t->engine, t->bindings[j].job));
    for (uint32_t rank = 0; rank < t->vector->jobs[j].num_ranks; rank++)
      t->ranks[j][rank]->ops->close(t->ranks[j][rank]);
  }
  sml_aggregator_engine_destroy(t->engine);
  t->stranger->ops->close(t->stranger);
  t->io->ops->close(t->io);
  sml_mem_hub_destroy(t->hub);
}

static struct sml_netio *port_of(struct stage *t, uint32_t job, uint32_t socket) {
  return socket == SML_CONFORM_STRANGER ? t->stranger : t->ranks[job][socket];
}

static bool send_frame(struct sml_conform_stage *base, uint32_t job, uint32_t socket, const uint8_t *frame,
                       uint32_t num_bytes) {
  struct stage *t = (struct stage *)base;
  struct sml_header h;
  t->is_other_epoch = false;
  for (uint32_t j = 0; j < t->vector->num_jobs && sml_wire_open(frame, num_bytes, &h) == SML_WIRE_OK; j++) {
    const struct sml_conform_binding *b = &t->bindings[j];
    if (b->job == h.job && !b->seal.is_keyed && !b->is_switch) t->is_other_epoch = b->epoch != h.epoch;
  }
  send_to_engine(t, port_of(t, job, socket), frame, num_bytes);
  return true;
}

static bool settle(struct sml_conform_stage *base, bool ends_job) {
  (void)ends_job;
  return run_engine((struct stage *)base);
}

static uint32_t receive(struct sml_conform_stage *base, uint32_t job, uint32_t socket, uint8_t *frame) {
  struct stage *t = (struct stage *)base;
  struct sml_rx_frame rx;
  struct sml_netio *port = port_of(t, job, socket);
  if (port->ops->rx_burst(port, &rx, 1) == 0) return 0;
  memcpy(frame, rx.data, rx.num_bytes);
  return rx.num_bytes;
}

static bool leave(struct sml_conform_stage *base, uint32_t job, uint32_t rank) {
  struct stage *t = (struct stage *)base;
  uint64_t ranks[SML_BITMAP_WORDS(SML_MAX_WORLD_SIZE)] = {0};
  sml_bit_set(ranks, rank);
  sml_aggregator_engine_depart(t->engine, t->bindings[job].job, ranks);
  return true;
}

static bool reported(struct sml_conform_stage *base, uint32_t job, bool is_expected, const char **what,
                     uint32_t ranks[2], uint32_t *num_ranks) {
  struct stage *t = (struct stage *)base;
  (void)is_expected;
  *what = "";
  for (uint32_t i = 0; i < t->num_events; i++) {
    const struct sml_aggregator_event *event = &t->events[i];
    if (event->job != t->bindings[job].job) continue;
    *what = event->kind == SML_EVENT_MISMATCH ? "MISMATCH"
            : event->kind == SML_EVENT_JUMP   ? "JUMP"
                                              : "another event";
    *num_ranks = event->kind == SML_EVENT_MISMATCH ? 2 : 1;
    ranks[0] = event->rank_a;
    ranks[1] = event->rank_b;
  }
  return true;
}

/* Vectors say WRONG_EPOCH, which a job without a key may not tell from a wrong checksum. */
static const char *dropped(struct sml_conform_stage *base) {
  struct stage *t = (struct stage *)base;
  uint64_t now[SML_NUM_DROPS];
  const char *reason = "";
  sml_aggregator_engine_drops(t->engine, now);
  for (uint32_t d = 0; d < SML_NUM_DROPS; d++) {
    if (now[d] == t->num_drops[d]) continue;
    reason = *reason || now[d] != t->num_drops[d] + 1 ? "more than one" : sml_drop_name((enum sml_drop)d);
  }
  memcpy(t->num_drops, now, sizeof now);
  if (t->is_other_epoch && strcmp(reason, sml_drop_name(SML_DROP_BAD_CRC)) == 0)
    return sml_drop_name(SML_DROP_WRONG_EPOCH);
  return reason;
}

static const char *sentence(struct sml_conform_stage *base) {
  return ((struct stage *)base)->problem;
}

static const struct sml_conform_stage_ops ops = {open_stage, close_stage, send_frame, settle,  receive,
                                                 leave,      reported,    dropped,    sentence};

static char *read_file(const char *path, size_t *num_bytes) {
  FILE *file = fopen(path, "rb");
  char *text = must(malloc(4 << 20));
  SML_ASSERT(file != NULL);
  *num_bytes = fread(text, 1, 4 << 20, file);
  fclose(file);
  return text;
}

int main(int argc, char **argv) {
  struct sml_conform_suite suite = {0};
  char error[256];
  size_t num_bytes;
  SML_ASSERT(argc == 2);
  char *text = read_file(argv[1], &num_bytes);
  if (!sml_conform_read(&suite, text, num_bytes, error, sizeof error)) {
    printf("Bail out! %s: %s\n", argv[1], error);
    return 1;
  }
  free(text);
  printf("1..%u\n", suite.num_vectors * NUM_VARIANTS);
  uint32_t number = 0, num_failed = 0;
  for (uint32_t v = 0; v < NUM_VARIANTS; v++) {
    static struct stage t;
    t = (struct stage){.base.ops = &ops, .variant = &variants[v]};
    for (uint32_t i = 0; i < suite.num_vectors; i++) {
      struct sml_conform_outcome o;
      sml_conform_play(&t.base, &suite.vectors[i], &o);
      const bool is_ok = o.result == SML_CONFORM_PASSED;
      num_failed += !is_ok;
      printf("%sok %u - %s %s\n", is_ok ? "" : "not ", ++number, suite.vectors[i].name, variants[v].name);
      if (!is_ok) printf("# step %u\n# expected %s\n# seen     %s\n", o.step, o.expected, o.seen);
    }
  }
  sml_conform_free(&suite);
  return num_failed == 0 ? 0 : 1;
}
