/* SPDX-License-Identifier: Apache-2.0 */
#include "method/combine.h"

#include <stdlib.h>

#include "ctl/contributors.h"

#define SMALL_LANES (UINT64_C(16) << 10)

struct piece {
  struct sml_engine_operation engine; /* first: engines hand back its address */
  struct combine *combine;
  const struct sml_engine_operation *whole;
  uint32_t slot;
};

_Static_assert(SML_DRIVER_MOST == SML_SHM_RELAY_DEPTH, "each has a piece under way");

struct combine {
  struct sml_driver driver; /* first */
  struct sml_shm_relay *relay;
  uint64_t piece_bytes;                     /* of a tensor, at most (sml_shm_relay_piece_bytes()) */
  struct piece pieces[SML_SHM_RELAY_DEPTH]; /* the lead's */
};

static struct combine *combine_of(struct sml_driver *d) {
  return (struct combine *)d;
}

static struct sml_shm_relay *relay_of(const struct sml_driver *d) {
  return ((const struct combine *)(const void *)d)->relay;
}

/* ---- what a piece is ---- */

static uint64_t find_piece_bytes(const struct sml_ctl_start *start, uint32_t world_size) {
  const uint32_t count = sml_contributors_count(start, world_size);
  uint32_t num_ranks[SML_CTL_MAX_WORLD_SIZE] = {0}, most = 1;
  SML_ASSERT(start->num_ranks <= SML_CTL_MAX_WORLD_SIZE && count <= SML_CTL_MAX_WORLD_SIZE);
  for (uint32_t rank = 0; rank < start->num_ranks; rank++)
    most = sml_max_u32(most, ++num_ranks[sml_contributor_of(start, rank)]);
  return sml_shm_relay_piece_bytes(most);
}

/* Whole blocks. */
static uint64_t piece_elems(const struct sml_driver *d, const struct sml_operation_plan *plan) {
  const uint64_t block_bytes = SML_BLOCK_ELEMS * sml_engine_format(plan)->elem_bytes;
  return ((const struct combine *)(const void *)d)->piece_bytes / block_bytes * SML_BLOCK_ELEMS;
}

uint64_t sml_combine_piece_elems(const struct sml_method *r, const struct sml_operation_plan *plan) {
  return piece_elems((const struct sml_driver *)r, plan);
}

/* The piece that begins at first_elem, as an operation. */
static struct sml_operation_plan make_piece_plan(const struct sml_operation_plan *plan, uint64_t first_elem,
                                                 uint64_t num_elems) {
  struct sml_operation_plan piece = *plan;
  if (num_elems == plan->num_elems) return piece;
  piece.num_elems = num_elems;
  piece.key = sml_mix64(sml_mix64(plan->key + plan->num_elems) + first_elem); /* for tags alone */
  return piece;
}

/* Adds the chunks of that many such operations. */
static void count_chunks(const struct sml_job_lanes *lanes, const struct sml_operation_plan *plan, uint64_t times,
                         uint64_t num_chunks[SML_MAX_JOB_LANES]) {
  for (uint32_t l = 0; l < lanes->num_lanes; l++) {
    struct sml_range range;
    sml_job_lanes_range(lanes, plan, l, &range);
    num_chunks[l] += times * range.num_chunks;
  }
}

static enum sml_method_room take_room(struct sml_method *r, const struct sml_operation_plan *plan) {
  const struct sml_driver *d = (const struct sml_driver *)r;
  const uint64_t full_elems = sml_min_u64(piece_elems(d, plan), plan->num_elems);
  const uint64_t num_full = plan->num_elems / full_elems, rest = plan->num_elems % full_elems;
  const struct sml_operation_plan full = make_piece_plan(plan, 0, full_elems);
  const struct sml_operation_plan tail = make_piece_plan(plan, num_full * full_elems, rest);
  uint64_t num_chunks[SML_MAX_JOB_LANES] = {0};
  count_chunks(d->lanes, &full, num_full, num_chunks);
  if (rest > 0) count_chunks(d->lanes, &tail, 1, num_chunks);
  return sml_job_lanes_take_room(d->lanes, plan, num_chunks);
}

/* ---- pieces under way ---- */

static void end_piece(const struct piece *piece, sml_status status) {
  struct combine *c = piece->combine;
  struct sml_driver *d = &c->driver;
  d->num_in_flight--;
  if (status != SML_OK && d->failed_status == SML_OK) {
    char text[96];
    d->method.owner_ops->describe(piece->whole, text, sizeof text);
    sml_method_fail_owner(&d->method, status, NULL, 0, "%s failed on rank %u: %s", text, d->lanes->rank,
                          sml_status_string(status));
  }
  if (d->failed_status != SML_OK) sml_driver_fail(&d->method, d->failed_status);
  else sml_shm_relay_done(c->relay, piece->slot);
}

/* The engine that ended it last; afterwards nobody reads the rank's input for it. */
static void on_ended(struct sml_engine_operation *engine) {
  const struct piece *piece = (const struct piece *)engine;
  pthread_mutex_t *lock = piece->combine->driver.method.lock;
  pthread_mutex_lock(lock);
  end_piece(piece, (sml_status)atomic_load_explicit(&engine->status, memory_order_relaxed));
  pthread_mutex_unlock(lock);
}

/* So small that it is over sooner than a thread wakes up: whoever drives the lead runs the engine, too. */
static bool is_small(const struct sml_driver *d, const struct sml_operation_plan *plan) {
  return sml_job_lanes_run_small(d->lanes) && sml_plan_lanes(plan) <= SMALL_LANES;
}

/* The relay's. */
static bool submit(void *user, const struct sml_shm_piece *p) {
  struct combine *c = user;
  struct sml_driver *d = &c->driver;
  const struct sml_method *r = &d->method;
  bool runs_itself = false;
  pthread_mutex_lock(r->lock);
  const bool is_running = r->owner_ops->is_running(r->owner);
  if (is_running) {
    struct sml_engine_operation *engine = &c->pieces[p->slot].engine;
    const struct sml_engine_operation *whole = c->pieces[p->slot].whole = p->cookie;
    engine->in = p->inputs[0];
    engine->num_inputs = p->num_inputs;
    engine->inputs = p->inputs;
    engine->out = p->out;
    engine->plan = make_piece_plan(&whole->plan, p->first_elem, p->num_elems);
    d->num_in_flight++;
    runs_itself = is_small(d, &engine->plan);
    sml_job_lanes_push(d->lanes, engine);
  }
  pthread_mutex_unlock(r->lock);
  if (runs_itself && sml_engine_thread_try_run(&d->lanes->engines->units[0].thread)) return true;
  if (is_running) sml_job_lanes_wake(d->lanes);
  return is_running;
}

/* ---- steps ---- */

/* Memory for what engines need. */
static bool prepare(struct sml_driver *d) {
  combine_of(d)->piece_bytes = find_piece_bytes(d->start, d->lanes->world_size);
  /* Elements of 2 bytes, all of them one lane's; a code and a ready byte each. */
  const uint64_t most_blocks = combine_of(d)->piece_bytes / 2 / SML_BLOCK_ELEMS;
  for (uint32_t i = 0; i < SML_SHM_RELAY_DEPTH && d->index == 0; i++) {
    struct piece *piece = &combine_of(d)->pieces[i];
    *piece = (struct piece){.engine.on_ended = on_ended, .combine = combine_of(d), .slot = i};
    for (uint32_t l = 0; l < d->lanes->num_lanes; l++) {
      piece->engine.codes[l] = malloc(2 * most_blocks);
      if (piece->engine.codes[l] == NULL) return false;
    }
  }
  return true;
}

static bool meet(struct sml_driver *d, const struct sml_shm_meeting *meeting, enum sml_shm_met *met_out,
                 uint32_t *missing_out, char error_out[SML_SHM_ERROR_BYTES]) {
  const struct sml_shm_relay_options options = {
      .meeting = *meeting, .piece_bytes = combine_of(d)->piece_bytes, .submit = submit, .user = d};
  combine_of(d)->relay = sml_shm_relay_open(&options, met_out, missing_out, error_out);
  return relay_of(d) != NULL;
}

static void close_relay(struct sml_driver *d) {
  sml_shm_relay_close(relay_of(d));
  for (uint32_t i = 0; i < SML_SHM_RELAY_DEPTH; i++)
    for (uint32_t l = 0; l < SML_MAX_JOB_LANES; l++) free(combine_of(d)->pieces[i].engine.codes[l]);
}

static void begin(struct sml_driver *d, const struct sml_shm_operation *operation) {
  sml_shm_relay_begin(relay_of(d), operation);
}

static bool has_no_piece(const struct sml_driver *d) {
  return atomic_load_explicit(&d->num_in_flight, memory_order_relaxed) == 0; /* advance() looks for itself */
}

static bool has_other_work(const void *driver) {
  const struct sml_driver *d = driver;
  return has_no_piece(d) || sml_shm_relay_can_advance(relay_of(d)) ||
         atomic_load_explicit(&d->has_more, memory_order_relaxed);
}

/* The lead of a small operation that is in the network runs the engine until a piece is back, or another one can go
 * out; one pass if the deadline is 0. A job that fails ends it. */
static void run(struct sml_driver *d, uint64_t deadline_ns) {
  struct sml_engines *engines = d->lanes->engines;
  if (has_no_piece(d) || !is_small(d, &sml_driver_oldest(d)->plan)) return;
  if (deadline_ns == 0) {
    (void)sml_engine_thread_try_run(&engines->units[0].thread);
    return;
  }
  sml_engine_thread_drive(&engines->units[0].thread, has_other_work, d, deadline_ns);
  if (!has_other_work(d)) sml_engine_thread_want(&engines->units[0].thread);
}

static enum sml_shm_verdict advance(struct sml_driver *d) {
  return sml_shm_relay_advance(relay_of(d));
}

static enum sml_shm_wait await(struct sml_driver *d, uint64_t deadline_ns) {
  return sml_shm_relay_await(relay_of(d), deadline_ns);
}

static void find_mismatch(const struct sml_driver *d, uint32_t *a_out, uint32_t *b_out) {
  sml_shm_relay_mismatch(relay_of(d), a_out, b_out);
}

static void abort_relay(struct sml_driver *d) {
  sml_shm_relay_abort(relay_of(d));
}

static void interrupt(struct sml_driver *d) {
  sml_shm_relay_interrupt(relay_of(d));
  if (has_no_piece(d) || !is_small(d, &sml_driver_oldest(d)->plan)) return;
  struct sml_netio *io = d->lanes->engines->units[0].thread.io; /* on which whoever drives may wait in run() */
  io->ops->wake(io);
}

static void set_gone(struct sml_driver *d, uint32_t index) {
  sml_shm_relay_set_gone(relay_of(d), index);
}

static uint32_t find_absent(const struct sml_driver *d, bool only_gone, uint32_t *out, uint32_t room) {
  return sml_shm_relay_find_absent(relay_of(d), only_gone, out, room);
}

static const struct sml_driver_steps steps = {.prepare = prepare,
                                              .meet = meet,
                                              .close = close_relay,
                                              .begin = begin,
                                              .run = run,
                                              .advance = advance,
                                              .await = await,
                                              .mismatch = find_mismatch,
                                              .abort = abort_relay,
                                              .interrupt = interrupt,
                                              .set_gone = set_gone,
                                              .find_absent = find_absent,
                                              .piece_elems = piece_elems};

/* ---- as a method ---- */

/* The lanes' engines end what they hold; the relay wakes whoever drives. */
static void fail(struct sml_method *r, sml_status status) {
  struct sml_driver *d = (struct sml_driver *)r;
  sml_job_lanes_fail(d->lanes, status);
  sml_driver_fail(r, status);
}

static void find_wait(const struct sml_method *r, struct sml_member_wait *out) {
  const struct sml_driver *d = (const struct sml_driver *)r;
  out->kind = SML_WAIT_NONE_BEGUN;
  if (!sml_driver_has_begun(d)) return;
  const uint32_t num_absent = sml_driver_find_absent(d, out);
  const bool is_lead_alone = num_absent == 1 && out->ranks[0] == d->ranks[0];
  out->kind = num_absent == 0 ? SML_WAIT_NETWORK : is_lead_alone ? SML_WAIT_LEAD : SML_WAIT_RANKS;
}

static void add_figures(const struct sml_method *r, sml_stats *stats) {
  const struct sml_driver *d = (const struct sml_driver *)r;
  sml_job_lanes_add_figures(d->lanes, stats);
  stats->num_local_ranks = d->num_ranks > 1 ? d->num_ranks : 0;
}

static const struct sml_method_ops combine_ops = {.max_begun = SML_DRIVER_MOST,
                                                  .take_room = take_room,
                                                  .begin = sml_driver_begin,
                                                  .drive = sml_driver_drive,
                                                  .fail = fail,
                                                  .set_gone = sml_driver_set_gone,
                                                  .resume = sml_driver_resume,
                                                  .wait = find_wait,
                                                  .add_figures = add_figures,
                                                  .close = sml_driver_close};

struct sml_method *sml_combine_open(const struct sml_driver_options *options) {
  struct combine *c = calloc(1, sizeof *c);
  if (c != NULL) c->driver = (struct sml_driver){.method.ops = &combine_ops, .steps = &steps};
  return sml_driver_open((struct sml_driver *)c, options);
}
