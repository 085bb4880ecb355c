/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/exact_operation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/exact.h"

#define KEY_START UINT64_C(0x6578616374310001)                   /* any constant; part of the protocol */
#define NUM_PLACES 4u                                            /* pieces under way */
#define MAX_SPARE_LANES (NUM_PLACES * 4 * SML_EXACT_PIECE_ELEMS) /* 4 MiB that a job keeps */
#define MOST_MADE 4u                                             /* lanes of an element, on the stack */

enum stage_kind { CODES, LANES, NUM_KINDS };

struct stage {
  struct sml_operation operation; /* first */
  struct place *place;
  enum stage_kind kind;
};

/* What is under way of a block. */
struct progress {
  uint32_t first_lane;          /* of the piece */
  _Atomic uint32_t num_missing; /* lanes that were not got; 0: the block is rounded */
};

/* A place's memory, which the job's next operation uses again: pages are in it. */
struct room {
  int32_t *codes, *lanes;
  struct sml_exact_layout *layouts; /* of the blocks, once the codes are summed, like the next */
  struct progress *progress;
  size_t num_codes, num_lanes, num_layouts, num_progress;
};

/* One piece, and the next but three after it. */
struct place {
  struct stage stages[NUM_KINDS];
  struct sml_exact_operation *whole;
  uint64_t piece;
  bool is_ready[NUM_KINDS]; /* prepared, and not inserted */
  struct room room;
};

struct sml_exact_operation {
  struct sml_operation *caller;
  struct sml_job *job;
  struct sml_exact exact;
  const uint8_t *in;
  uint8_t *out;
  uint64_t num_elems, num_pieces, first_number;
  struct sml_member_reservation numbers;  /* of stages that are not inserted */
  uint64_t num_ended;                     /* stages */
  uint64_t deadline_ns, last_deadline_ns; /* as a rejoin has moved them */
  _Atomic uint64_t num_stored;            /* pieces whose sum is the caller's */
  bool average, has_failed, is_over;
  bool is_made; /* lanes are made as they travel */
  struct place places[NUM_PLACES];
};

static const struct sml_operation_kind stage_operation_kind;

static struct stage *stage_of(struct sml_operation *op) {
  return (struct stage *)(void *)op;
}

/* ---- pieces and blocks ---- */

static uint64_t piece_elems(const struct sml_exact_operation *x, uint64_t piece) {
  return sml_min_u64(SML_EXACT_PIECE_ELEMS, x->num_elems - piece * SML_EXACT_PIECE_ELEMS);
}

static uint64_t num_blocks(const struct sml_exact_operation *x, uint64_t piece) {
  return sml_div_ceil(piece_elems(x, piece), SML_BLOCK_ELEMS);
}

/* The block-th block of a place's piece: its codes, layout, first byte in the tensor and number of elements. */
struct block {
  int32_t *codes;
  struct sml_exact_layout *layout;
  struct progress *progress;
  size_t first_byte, num_elems;
};

static struct block find_block(const struct place *place, uint64_t block) {
  const struct sml_exact_operation *x = place->whole;
  const uint64_t first_elem = block * SML_BLOCK_ELEMS, elems = piece_elems(x, place->piece);
  return (struct block){.codes = place->room.codes + block * x->exact.code_lanes,
                        .layout = &place->room.layouts[block],
                        .progress = &place->room.progress[block],
                        .first_byte = (place->piece * SML_EXACT_PIECE_ELEMS + first_elem) * x->exact.elem_bytes,
                        .num_elems = sml_min_u64(SML_BLOCK_ELEMS, elems - first_elem)};
}

static uint32_t lanes_of(const struct block *block) {
  return block->layout->num_lanes * (uint32_t)block->num_elems;
}

static uint64_t lay_out(const struct place *place) {
  const struct sml_exact_operation *x = place->whole;
  uint64_t num_lanes = 0;
  for (uint64_t b = 0; b < num_blocks(x, place->piece); b++) {
    const struct block block = find_block(place, b);
    sml_exact_lay_out(&x->exact, block.layout, block.codes);
    block.progress->first_lane = (uint32_t)num_lanes;
    atomic_store_explicit(&block.progress->num_missing, lanes_of(&block), memory_order_relaxed);
    num_lanes += lanes_of(&block);
  }
  return num_lanes;
}

/* ---- lanes as they travel ---- */

static bool is_made(const struct sml_exact_operation *x, const struct sml_exact_layout *layout) {
  return x->is_made && layout->num_lanes <= MOST_MADE;
}

static void put_block(const struct sml_exact_operation *x, const struct block *block, int32_t *lanes) {
  sml_exact_put(&x->exact, block->layout, lanes, x->in + block->first_byte, block->num_elems);
}

static void round_block(const struct sml_exact_operation *x, const struct block *block, const int32_t *lanes) {
  sml_exact_round(&x->exact, block->layout, x->out + block->first_byte, lanes, block->num_elems, x->average);
}

/* The block that has this lane. */
static uint64_t block_of_lane(const struct place *place, uint64_t lane) {
  uint64_t first = 0;
  for (uint64_t num = num_blocks(place->whole, place->piece); num > 1; num -= num / 2)
    first += place->room.progress[first + num / 2].first_lane <= lane ? num / 2 : 0;
  return first;
}

static const struct place *place_of(const struct sml_engine_operation *engine) {
  return ((const struct stage *)(const void *)engine)->place;
}

static void put_lanes(const struct sml_engine_operation *engine, uint8_t *payload, uint64_t first, uint32_t num) {
  const struct place *place = place_of(engine);
  const struct sml_exact_operation *x = place->whole;
  int32_t made[MOST_MADE * SML_BLOCK_ELEMS];
  for (uint64_t b = block_of_lane(place, first); num > 0; b++) {
    const struct block block = find_block(place, b);
    const int32_t *lanes = place->room.lanes + block.progress->first_lane;
    const uint32_t from = (uint32_t)first - block.progress->first_lane;
    const uint32_t count = sml_min_u32(num, lanes_of(&block) - from);
    if (count == 0) continue;
    if (is_made(x, block.layout)) {
      put_block(x, &block, made);
      lanes = made;
    }
    x->exact.kernels->pack_int32(payload, lanes + from, count);
    payload += 4 * (size_t)count;
    first += count;
    num -= count;
  }
}

/* A block is rounded when it is complete, while caches have its lanes: in place nobody reads its input any more. */
static void get_lanes(const struct sml_engine_operation *engine, const uint8_t *payload, uint64_t first, uint32_t num) {
  const struct place *place = place_of(engine);
  const struct sml_exact_operation *x = place->whole;
  int32_t got[MOST_MADE * SML_BLOCK_ELEMS];
  for (uint64_t b = block_of_lane(place, first); num > 0; b++) {
    const struct block block = find_block(place, b);
    const uint32_t all = lanes_of(&block), from = (uint32_t)first - block.progress->first_lane;
    const uint32_t count = sml_min_u32(num, all - from);
    if (count == 0) continue;
    int32_t *lanes = count == all && all <= SML_ARRAY_LEN(got) ? got : place->room.lanes + block.progress->first_lane;
    x->exact.kernels->unpack_int32(lanes + from, payload, count);
    _Atomic uint32_t *missing = &block.progress->num_missing;
    if (count == all) atomic_store_explicit(missing, 0, memory_order_relaxed);
    /* pairs with itself, on engines that got other lanes */
    if (count == all || atomic_fetch_sub_explicit(missing, count, memory_order_acq_rel) == count)
      round_block(x, &block, lanes);
    payload += 4 * (size_t)count;
    first += count;
    num -= count;
  }
}

static const struct sml_engine_lanes made_lanes = {.put = put_lanes, .get = get_lanes};

/* ---- memory ---- */

/* `array` with room for `count`, perhaps without what was there; NULL and 0 where there is no memory. */
static void *make_room(void *array, size_t *count_inout, size_t count, size_t elem_bytes) {
  if (count <= *count_inout) return array;
  free(array);
  array = malloc(count * elem_bytes);
  *count_inout = array != NULL ? count : 0;
  return array;
}

static struct sml_exact_operation *take_memory(struct sml_job *job) {
  pthread_mutex_lock(sml_job_lock(job));
  struct sml_exact_operation *x = *sml_job_spare_exact(job);
  *sml_job_spare_exact(job) = NULL;
  pthread_mutex_unlock(sml_job_lock(job));
  return x != NULL ? x : calloc(1, sizeof *x);
}

void sml_exact_operation_free(struct sml_exact_operation *x) {
  if (x == NULL) return;
  for (uint32_t i = 0; i < NUM_PLACES; i++) {
    free(x->places[i].room.codes);
    free(x->places[i].room.layouts);
    free(x->places[i].room.progress);
    free(x->places[i].room.lanes);
  }
  free(x);
}

/* For the job's next one, if it has none yet, and where it is no more than common tensors need. */
static void keep_memory_locked(struct sml_exact_operation *x) {
  struct sml_exact_operation **spare = sml_job_spare_exact(x->job);
  struct room rooms[NUM_PLACES];
  size_t num_lanes = 0;
  for (uint32_t i = 0; i < NUM_PLACES; i++) {
    rooms[i] = x->places[i].room;
    num_lanes += rooms[i].num_lanes;
  }
  if (*spare != NULL || num_lanes > MAX_SPARE_LANES) {
    sml_exact_operation_free(x);
    return;
  }
  memset(x, 0, sizeof *x);
  for (uint32_t i = 0; i < NUM_PLACES; i++) x->places[i].room = rooms[i];
  *spare = x;
}

/* ---- stages ---- */

static uint64_t number_of(const struct place *place, enum stage_kind kind) {
  const uint64_t last = place->whole->num_pieces - 1, piece = place->piece;
  if (kind == CODES) return place->whole->first_number + (piece > 0 ? 2 * piece - 1 : 0);
  return place->whole->first_number + 2 * piece + (piece < last ? 2 : 1);
}

/* What it is a stage of is in the key, for tags: how the ranks' callers called it. */
static sml_status prepare(struct stage *stage, int32_t *lanes, uint64_t num_lanes) {
  const struct sml_exact_operation *x = stage->place->whole;
  const struct sml_operation_plan *whole = &x->caller->engine.plan;
  const uint64_t fields[] = {whole->key, whole->num_elems, (uint64_t)whole->type << 8 | whole->reduction,
                             stage->place->piece << 1 | stage->kind};
  struct sml_operation_plan plan = {.num_elems = num_lanes, .key = KEY_START, .type = SML_INT32, .reduction = SML_SUM};
  for (size_t i = 0; i < SML_ARRAY_LEN(fields); i++)
    plan.key = sml_mix64(plan.key ^ fields[i]) + UINT64_C(0x9e3779b97f4a7c15);
  struct sml_operation *op = &stage->operation;
  op->context = x->caller->context;
  op->kind = &stage_operation_kind;
  sml_operation_prepare(op, x->job, lanes, lanes, &plan, 0);
  op->is_small = false;
  op->is_released = true; /* nobody has its handle */
  op->members = x->caller;
  return sml_operation_fit(op);
}

static sml_status prepare_codes(struct place *place) {
  const struct sml_exact_operation *x = place->whole;
  const uint64_t num = num_blocks(x, place->piece);
  for (uint64_t b = 0; b < num; b++) {
    const struct block block = find_block(place, b);
    sml_exact_code(&x->exact, block.codes, x->in + block.first_byte, block.num_elems);
  }
  return prepare(&place->stages[CODES], place->room.codes, num * x->exact.code_lanes);
}

/* One lane, which means nothing, where none is used: that is an operation, too. */
static sml_status prepare_lanes(struct place *place) {
  const struct sml_exact_operation *x = place->whole;
  const uint64_t num_used = lay_out(place), num_lanes = sml_max_u64(num_used, 1);
  struct room *room = &place->room;
  /* The next piece may need a little more. */
  const size_t room_lanes = num_lanes > room->num_lanes ? num_lanes + num_lanes / 8 : num_lanes;
  room->lanes = make_room(room->lanes, &room->num_lanes, room_lanes, sizeof *room->lanes);
  if (room->lanes == NULL) return sml_fail(SML_ERR_NO_MEMORY, "no memory for %zu lanes", (size_t)num_lanes);
  *room->lanes = 0;
  for (uint64_t b = 0; b < num_blocks(x, place->piece); b++) {
    const struct block block = find_block(place, b);
    if (!is_made(x, block.layout)) put_block(x, &block, room->lanes + block.progress->first_lane);
  }
  place->stages[LANES].operation.engine.lanes = x->is_made && num_used > 0 ? &made_lanes : NULL;
  return prepare(&place->stages[LANES], room->lanes, num_lanes);
}

/* All blocks that were not rounded as they came; those without a lane are among them. */
static void store_sums(const struct place *place) {
  const struct sml_exact_operation *x = place->whole;
  for (uint64_t b = 0; b < num_blocks(x, place->piece); b++) {
    const struct block block = find_block(place, b);
    const bool is_missing = atomic_load_explicit(&block.progress->num_missing, memory_order_relaxed) > 0;
    if (is_missing || lanes_of(&block) == 0) round_block(x, &block, place->room.lanes + block.progress->first_lane);
  }
}

/* Without the lock: what the next stage of this place needs. */
static void go_on(struct sml_operation *op) {
  struct stage *stage = stage_of(op);
  struct place *place = stage->place;
  sml_status status = SML_OK;
  if (stage->kind == CODES) {
    status = prepare_lanes(place);
  } else {
    struct sml_exact_operation *x = place->whole;
    store_sums(place);
    /* pairs with itself, on the threads that stored other pieces */
    const uint64_t num_before = atomic_fetch_add_explicit(&x->num_stored, 1, memory_order_acq_rel);
    if (num_before + 1 == x->num_pieces && x->caller->kind->summed != NULL) x->caller->kind->summed(x->caller);
    place->piece += NUM_PLACES;
    if (place->piece < place->whole->num_pieces) status = prepare_codes(place);
  }
  if (status != SML_OK) sml_operation_fail_job(op, status);
}

/* ---- order ---- */

/* The stage with the next number, if it is ready; else NULL. */
static struct stage *find_next(struct sml_exact_operation *x) {
  for (uint32_t i = 0; i < NUM_PLACES; i++)
    for (uint32_t kind = 0; kind < NUM_KINDS; kind++) {
      struct place *place = &x->places[i];
      if (!place->is_ready[kind]) continue; /* its thread's alone */
      if (number_of(place, (enum stage_kind)kind) == x->numbers.number) return &place->stages[kind];
    }
  return NULL;
}

static void insert_ready_locked(struct sml_exact_operation *x) {
  struct stage *stage;
  while ((stage = find_next(x)) != NULL) {
    struct sml_operation *op = &stage->operation;
    op->order.deadline_ns = x->deadline_ns;
    op->order.last_deadline_ns = x->last_deadline_ns;
    if (!sml_operation_insert_reserved_locked(op, &x->numbers)) return; /* the job has failed */
    stage->place->is_ready[stage->kind] = false;
  }
}

/* What was prepared and not inserted may have a copy of its input. */
static void drop_copies_locked(struct sml_exact_operation *x) {
  for (uint32_t i = 0; i < NUM_PLACES; i++)
    for (uint32_t kind = 0; kind < NUM_KINDS; kind++)
      sml_operation_drop_copy_locked(x->job, &x->places[i].stages[kind].operation);
}

/* All stages have ended, or the job has failed and none is under way: nobody touches the caller's buffers. */
static void end_locked(struct sml_exact_operation *x) {
  drop_copies_locked(x);
  const bool is_detached = x->caller->is_released;
  x->is_over = true;
  sml_operation_publish_end_locked(x->job, x->caller, !x->has_failed && x->num_ended == 2 * x->num_pieces);
  if (is_detached) sml_operation_give_back(x->caller);
}

static void end_stage(struct sml_job *job, struct sml_operation *op, bool is_ok) {
  (void)job;
  struct stage *stage = stage_of(op);
  struct place *place = stage->place;
  struct sml_exact_operation *x = place->whole;
  op->retained = NULL; /* listed */
  x->num_ended++;
  x->deadline_ns = op->order.deadline_ns;
  x->last_deadline_ns = op->order.last_deadline_ns;
  x->has_failed = x->has_failed || !is_ok;
  if (!x->has_failed) {
    place->is_ready[stage->kind == CODES ? LANES : CODES] = place->piece < x->num_pieces;
    insert_ready_locked(x);
  }
  if (x->num_ended == x->numbers.number - x->first_number) end_locked(x);
}

/* With the lock: stages are released from the start. */
static void give_back(struct sml_operation *op) {
  if (stage_of(op)->place->whole->is_over) keep_memory_locked(stage_of(op)->place->whole);
}

static void describe(const struct sml_operation *op, char *text, size_t text_bytes) {
  sml_operation_describe(op->members, text, text_bytes);
}

static const struct sml_operation_kind stage_operation_kind = {
    .describe = describe, .summed = go_on, .ended = end_stage, .give_back = give_back};

/* ---- submission ---- */

static sml_status make(struct sml_operation *op, struct sml_exact_operation **made) {
  const struct sml_operation_plan *plan = &op->engine.plan;
  struct sml_exact_operation *x = *made = take_memory(op->job);
  if (x == NULL) return sml_fail(SML_ERR_NO_MEMORY, "no memory for an exact operation");
  x->caller = op;
  x->job = op->job;
  x->in = op->engine.in;
  x->out = op->engine.out;
  x->num_elems = plan->num_elems;
  x->num_pieces = sml_div_ceil(plan->num_elems, SML_EXACT_PIECE_ELEMS);
  x->average = plan->reduction == SML_AVG;
  x->is_made = sml_job_makes_lanes(op->job);
  x->deadline_ns = op->order.deadline_ns;
  x->last_deadline_ns = op->order.last_deadline_ns;
  sml_exact_init(&x->exact, plan->type, sml_job_shape(op->job)->world_size, op->context->settings.kernels);
  for (uint32_t i = 0; i < NUM_PLACES && i < x->num_pieces; i++) {
    struct place *place = &x->places[i];
    place->whole = x;
    place->piece = i;
    place->is_ready[CODES] = true;
    for (uint32_t kind = 0; kind < NUM_KINDS; kind++) {
      place->stages[kind].place = place;
      place->stages[kind].kind = (enum stage_kind)kind;
      place->stages[kind].operation.job = op->job; /* one that cannot be prepared asks it, too, whether it has failed */
    }
    struct room *room = &place->room;
    const size_t blocks = num_blocks(x, i);
    room->codes = make_room(room->codes, &room->num_codes, blocks * x->exact.code_lanes, sizeof *room->codes);
    room->layouts = make_room(room->layouts, &room->num_layouts, blocks, sizeof *room->layouts);
    room->progress = make_room(room->progress, &room->num_progress, blocks, sizeof *room->progress);
    if (room->codes == NULL || room->layouts == NULL || room->progress == NULL)
      return sml_fail(SML_ERR_NO_MEMORY, "no memory for an exact operation's codes");
    const sml_status status = prepare_codes(place);
    if (status != SML_OK) return status;
  }
  return SML_OK;
}

sml_status sml_exact_operation_submit(struct sml_operation *op) {
  struct sml_job *job = op->job;
  struct sml_exact_operation *x;
  sml_status status = make(op, &x);
  pthread_mutex_lock(sml_job_lock(job));
  if (status == SML_OK) status = sml_job_refuse_locked(job);
  if (status == SML_OK) {
    sml_operation_reserve_locked(op, &x->numbers, 2 * x->num_pieces);
    x->first_number = x->numbers.number;
    insert_ready_locked(x);
    sml_operations_push_locked(job);
  } else if (x != NULL) {
    drop_copies_locked(x);
    keep_memory_locked(x);
  }
  pthread_mutex_unlock(sml_job_lock(job));
  return status;
}
