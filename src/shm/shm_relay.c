/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/shm_relay.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"

#define LINE_BYTES 128u
#define DEPTH SML_SHM_RELAY_DEPTH
/* About what a group of exponents is for: a piece begins with a round of exponents, which must not show. */
#define PIECE_BYTES (UINT64_C(2) << 20)
#define MAX_AREAS_BYTES (UINT64_C(64) << 20) /* of the largest host */
#define YIELD_NS (60 * SML_NS_PER_US)
#define SLEEP_NS (20 * SML_NS_PER_MS) /* at most: between looks at who is gone */

/* ---- in the segment ---- */

/* Pieces are counted over all operations, from 0; piece p uses slot p % DEPTH. Each count is stored with release by its
 * rank after it has touched the piece, and loaded with acquire by whoever touches the piece next: num_in by the lead
 * that submits it, num_done by ranks that copy the sum out, num_out by whoever uses the slot again. */
struct relay_header {
  _Alignas(LINE_BYTES) _Atomic uint64_t num_done; /* pieces whose sums are there; the lead's */
  _Atomic uint32_t mismatch;       /* 0, or two indices: a << 16 | b, a < b; the lead's; release and acquire likewise */
  _Atomic uint64_t mismatch_piece; /* stored before it: the first of the operations that differ */
  _Alignas(LINE_BYTES) _Atomic uint32_t num_events; /* anything of all this changed; waited on */
  _Atomic uint32_t num_sleepers;
};

struct relay_rank {
  _Alignas(LINE_BYTES) _Atomic uint64_t num_in; /* pieces it has copied in */
  _Atomic uint64_t num_out;                     /* and out */
  struct sml_shm_plan plans[DEPTH]; /* of operations, by the slots of their first pieces; stored before num_in */
};

/* ---- this process's ---- */

struct operation {
  struct sml_shm_operation what;
  size_t elem_bytes;
  uint64_t first, end; /* its pieces */
};

struct sml_shm_relay {
  struct sml_shm_relay_options options;
  uint32_t num_ranks, index;
  struct sml_shm_segment segment; /* one rank: none */
  void *memory;                   /* the segment's, or own */
  struct relay_header *header;
  struct relay_rank *ranks, *own;
  uint8_t *areas; /* [DEPTH][num_ranks]; index 0: the sum, i: the input of rank i */
  size_t area_bytes;
  /* Begun and not ended, a ring. Pieces go in by the one at in_index, and come out by the oldest. */
  struct operation operations[DEPTH];
  uint64_t oldest, in_index, num_begun;
  uint64_t end;     /* of all pieces */
  uint64_t next_in; /* of the lead: the next to submit */
  /* What this process goes by of its own; the segment has copies, which others might spoil. Release and acquire as
   * there. */
  _Atomic uint64_t done, out; /* `done`: the lead's */
  bool is_done[DEPTH];        /* the lead's: submitted, and done before an earlier one */
  const void **inputs;        /* [DEPTH][num_ranks] */
  /* release: _abort, _set_gone, _interrupt; acquire: whoever waits for a piece */
  _Atomic bool is_aborted, has_gone, is_interrupted;
  _Atomic uint8_t *is_gone;
};

/* ---- life ---- */

static size_t head_bytes(uint32_t num_ranks) {
  return sml_align_up(sizeof(struct relay_header) + num_ranks * sizeof(struct relay_rank), 4096);
}

static size_t area_bytes(uint64_t piece_bytes) {
  return sml_align_up((size_t)piece_bytes, 4096) + 5 * LINE_BYTES; /* not all in one set of a cache */
}

static size_t relay_bytes(uint32_t num_ranks, uint64_t piece_bytes) {
  const size_t num_areas = num_ranks > 1 ? (size_t)DEPTH * num_ranks : 0;
  return sml_align_up(head_bytes(num_ranks) + num_areas * area_bytes(piece_bytes), 4096);
}

uint64_t sml_shm_relay_piece_bytes(uint32_t num_ranks_of_largest_host) {
  return sml_min_u64(PIECE_BYTES, MAX_AREAS_BYTES / DEPTH / num_ranks_of_largest_host);
}

uint64_t sml_shm_relay_most_bytes(uint32_t world_size) {
  uint64_t most = 0;
  for (uint32_t n = 2; n < world_size; n++) /* one rank at least is on another host */
    most = sml_max_u64(most, relay_bytes(n, sml_shm_relay_piece_bytes(n)));
  return most;
}

static enum sml_shm_met meet(struct sml_shm_relay *r, uint32_t *missing_out, char *error_out) {
  const size_t num_bytes = relay_bytes(r->num_ranks, r->options.piece_bytes);
  if (r->num_ranks == 1) {
    r->memory = aligned_alloc(4096, num_bytes);
    if (r->memory == NULL) return SML_SHM_FAILED;
    memset(r->memory, 0, num_bytes);
    return SML_SHM_MET;
  }
  const enum sml_shm_met met = (r->index == 0 ? sml_shm_segment_offer : sml_shm_segment_obtain)(
      &r->segment, num_bytes, &r->options.meeting, missing_out, error_out);
  r->memory = r->segment.memory;
  return met;
}

struct sml_shm_relay *sml_shm_relay_open(const struct sml_shm_relay_options *o, enum sml_shm_met *met_out,
                                         uint32_t *missing_out, char error_out[SML_SHM_ERROR_BYTES]) {
  const uint32_t num_ranks = o->meeting.num_ranks;
  SML_ASSERT(num_ranks >= 1 && num_ranks <= UINT16_MAX && o->meeting.index < num_ranks && o->piece_bytes > 0);
  struct sml_shm_relay *r = calloc(1, sizeof *r);
  *met_out = SML_SHM_FAILED;
  *missing_out = 0;
  snprintf(error_out, SML_SHM_ERROR_BYTES, "no memory for a group of %u ranks", num_ranks);
  if (r == NULL) return NULL;
  r->options = *o;
  r->num_ranks = num_ranks;
  r->index = o->meeting.index;
  r->area_bytes = area_bytes(o->piece_bytes);
  r->is_gone = calloc(num_ranks, sizeof *r->is_gone);
  r->inputs = calloc((size_t)DEPTH * num_ranks, sizeof *r->inputs);
  if (r->is_gone != NULL && r->inputs != NULL) *met_out = meet(r, missing_out, error_out);
  if (*met_out != SML_SHM_MET) {
    sml_shm_relay_close(r);
    return NULL;
  }
  r->header = r->memory;
  r->ranks = (struct relay_rank *)(void *)((uint8_t *)r->memory + sizeof(struct relay_header));
  r->own = &r->ranks[r->index];
  r->areas = (uint8_t *)r->memory + head_bytes(num_ranks);
  return r;
}

void sml_shm_relay_close(struct sml_shm_relay *r) {
  if (r == NULL) return;
  if (r->num_ranks == 1) free(r->memory);
  else sml_shm_segment_close(&r->segment);
  free(r->is_gone);
  free(r->inputs);
  free(r);
}

/* ---- pieces ---- */

static uint64_t num_done(const struct sml_shm_relay *r) {
  return atomic_load_explicit(r->index == 0 ? &r->done : &r->header->num_done, memory_order_acquire);
}

static uint64_t num_in(const struct sml_shm_relay *r, uint32_t rank) {
  return atomic_load_explicit(&r->ranks[rank].num_in, memory_order_acquire);
}

static uint64_t num_out(const struct sml_shm_relay *r, uint32_t rank) {
  return atomic_load_explicit(rank == r->index ? &r->out : &r->ranks[rank].num_out, memory_order_acquire);
}

static uint8_t *area(const struct sml_shm_relay *r, uint64_t piece, uint32_t index) {
  return r->areas + ((piece % DEPTH) * r->num_ranks + index) * r->area_bytes;
}

static size_t piece_offset(const struct operation *op, uint64_t piece) {
  return (size_t)((piece - op->first) * op->what.piece_elems) * op->elem_bytes;
}

static uint64_t elems_of(const struct operation *op, uint64_t piece) {
  return sml_min_u64(op->what.piece_elems, op->what.plan.num_elems - (piece - op->first) * op->what.piece_elems);
}

static struct operation *operation_at(struct sml_shm_relay *r, uint64_t index) {
  return &r->operations[index % DEPTH];
}

/* Sequentially consistent with a sleeper, who counts itself and then looks at num_events. */
static void tell(struct sml_shm_relay *r) {
  atomic_fetch_add(&r->header->num_events, 1);
  if (atomic_load(&r->header->num_sleepers) > 0) sml_shm_wake(&r->header->num_events);
}

static bool is_same(const struct sml_shm_plan *a, const struct sml_shm_plan *b) {
  return memcmp(a, b, sizeof *a) == 0;
}

void sml_shm_relay_begin(struct sml_shm_relay *r, const struct sml_shm_operation *operation) {
  SML_ASSERT(operation->plan.num_elems > 0 && r->num_begun - r->oldest < DEPTH);
  const uint64_t num_pieces = sml_div_ceil(operation->plan.num_elems, operation->piece_elems);
  struct operation *op = operation_at(r, r->num_begun++);
  *op = (struct operation){.what = *operation,
                           .elem_bytes = sml_format_elem_bytes(operation->plan.type),
                           .first = r->end,
                           .end = r->end + num_pieces};
  SML_ASSERT(operation->piece_elems * op->elem_bytes <= r->area_bytes);
  r->end = op->end;
  if (r->index != 0) return;
  atomic_store_explicit(&r->own->num_in, r->end, memory_order_release); /* its input is where it is */
}

/* ---- the lead ---- */

/* All have copied it in, and out what had its slot. */
static bool is_ready(const struct sml_shm_relay *r, uint64_t piece) {
  for (uint32_t i = 0; i < r->num_ranks; i++)
    if (num_in(r, i) <= piece || num_out(r, i) + DEPTH <= piece) return false;
  return true;
}

static bool has_mismatch(const struct sml_shm_relay *r) {
  return atomic_load_explicit(&r->header->mismatch, memory_order_acquire) != 0;
}

/* The operation's first piece is ready. */
static bool find_mismatch(struct sml_shm_relay *r, const struct operation *op) {
  for (uint32_t i = 1; i < r->num_ranks; i++) {
    if (is_same(&r->ranks[i].plans[op->first % DEPTH], &op->what.plan)) continue;
    atomic_store_explicit(&r->header->mismatch_piece, op->first, memory_order_relaxed);
    atomic_store_explicit(&r->header->mismatch, i, memory_order_release); /* and 0 */
    tell(r);
    return true;
  }
  return false;
}

static bool submit(struct sml_shm_relay *r, const struct operation *op, uint64_t piece) {
  const size_t offset = piece_offset(op, piece);
  const void **inputs = r->inputs + (piece % DEPTH) * r->num_ranks;
  inputs[0] = (const uint8_t *)op->what.in + offset;
  for (uint32_t i = 1; i < r->num_ranks; i++) inputs[i] = area(r, piece, i);
  const struct sml_shm_piece p = {
      .slot = (uint32_t)(piece % DEPTH),
      .cookie = op->what.cookie,
      .first_elem = (piece - op->first) * op->what.piece_elems,
      .num_elems = elems_of(op, piece),
      .num_inputs = r->num_ranks,
      .inputs = inputs,
      .out = r->num_ranks > 1 ? (void *)area(r, piece, 0) : (uint8_t *)op->what.out + offset};
  return r->options.submit(r->options.user, &p);
}

void sml_shm_relay_done(struct sml_shm_relay *r, uint32_t slot) {
  uint64_t done = num_done(r);
  r->is_done[slot] = true;
  while (r->is_done[done % DEPTH]) {
    r->is_done[done % DEPTH] = false;
    done++;
  }
  atomic_store_explicit(&r->done, done, memory_order_release);
  atomic_store_explicit(&r->header->num_done, done, memory_order_release);
  tell(r);
}

/* ---- progress ---- */

static bool can_go_in(const struct sml_shm_relay *r) {
  if (r->next_in == r->end) return false;
  return r->index == 0 ? !has_mismatch(r) && is_ready(r, r->next_in) : r->next_in < num_done(r) + DEPTH;
}

static bool can_go_out(const struct sml_shm_relay *r) {
  return num_out(r, r->index) < sml_min_u64(num_done(r), r->end);
}

/* Operations before those that differ end first. */
static bool meets_mismatch(const struct sml_shm_relay *r) {
  return has_mismatch(r) &&
         num_out(r, r->index) >= atomic_load_explicit(&r->header->mismatch_piece, memory_order_relaxed);
}

bool sml_shm_relay_can_advance(const struct sml_shm_relay *r) {
  return can_go_out(r) || can_go_in(r) || meets_mismatch(r);
}

static void copy_in(struct sml_shm_relay *r, const struct operation *op, uint64_t piece) {
  if (piece == op->first) r->own->plans[piece % DEPTH] = op->what.plan;
  memcpy(area(r, piece, r->index), (const uint8_t *)op->what.in + piece_offset(op, piece),
         (size_t)elems_of(op, piece) * op->elem_bytes);
  atomic_store_explicit(&r->own->num_in, piece + 1, memory_order_release);
  tell(r);
}

/* False: not now. */
static bool go_in(struct sml_shm_relay *r) {
  const struct operation *op = operation_at(r, r->in_index);
  if (r->index != 0) copy_in(r, op, r->next_in);
  else if (r->next_in == op->first && find_mismatch(r, op)) return true;
  else if (!submit(r, op, r->next_in)) return false;
  if (++r->next_in == op->end) r->in_index++;
  return true;
}

/* Whether the oldest operation has ended. */
static bool go_out(struct sml_shm_relay *r) {
  const struct operation *op = operation_at(r, r->oldest);
  const uint64_t piece = num_out(r, r->index);
  if (r->num_ranks > 1)
    memcpy((uint8_t *)op->what.out + piece_offset(op, piece), area(r, piece, 0),
           (size_t)elems_of(op, piece) * op->elem_bytes);
  atomic_store_explicit(&r->out, piece + 1, memory_order_release);
  atomic_store_explicit(&r->own->num_out, piece + 1, memory_order_release);
  tell(r);
  r->oldest += piece + 1 == op->end;
  return piece + 1 == op->end;
}

enum sml_shm_verdict sml_shm_relay_advance(struct sml_shm_relay *r) {
  SML_ASSERT(r->oldest < r->num_begun);
  while (!atomic_load_explicit(&r->is_aborted, memory_order_acquire)) {
    if (meets_mismatch(r)) return SML_SHM_MISMATCH;
    if (can_go_in(r)) { /* first: it is what others wait for */
      if (!go_in(r)) break;
    } else if (!can_go_out(r)) {
      break;
    } else if (go_out(r)) {
      return SML_SHM_ENDED;
    }
  }
  return SML_SHM_WAITING;
}

void sml_shm_relay_mismatch(const struct sml_shm_relay *r, uint32_t *a_out, uint32_t *b_out) {
  const uint32_t mismatch = atomic_load_explicit(&r->header->mismatch, memory_order_acquire);
  *a_out = sml_min_u32(mismatch >> 16, r->num_ranks - 1);
  *b_out = sml_min_u32(mismatch & 0xffff, r->num_ranks - 1);
}

enum sml_shm_wait sml_shm_relay_await(struct sml_shm_relay *r, uint64_t deadline_ns) {
  const uint64_t begin_ns = sml_clock_ns();
  for (;;) {
    const uint32_t num_events = atomic_load(&r->header->num_events);
    const uint64_t now_ns = sml_clock_ns();
    uint32_t unused;
    if (atomic_load_explicit(&r->is_aborted, memory_order_acquire)) return SML_SHM_ABORTED;
    if (sml_shm_relay_can_advance(r)) return SML_SHM_READY;
    if (atomic_exchange_explicit(&r->is_interrupted, false, memory_order_acquire)) return SML_SHM_READY;
    if (atomic_load_explicit(&r->has_gone, memory_order_acquire) && sml_shm_relay_find_absent(r, true, &unused, 1) > 0)
      return SML_SHM_LOST;
    if (now_ns >= deadline_ns) return SML_SHM_DEADLINE;
    if (now_ns - begin_ns < YIELD_NS) sched_yield();
    else
      sml_shm_sleep(&r->header->num_events, num_events, &r->header->num_sleepers,
                    sml_min_u64(deadline_ns - now_ns, SLEEP_NS));
  }
}

/* ---- any thread ---- */

void sml_shm_relay_abort(struct sml_shm_relay *r) {
  atomic_store_explicit(&r->is_aborted, true, memory_order_release);
  tell(r);
}

void sml_shm_relay_interrupt(struct sml_shm_relay *r) {
  atomic_store_explicit(&r->is_interrupted, true, memory_order_release);
  tell(r);
}

void sml_shm_relay_set_gone(struct sml_shm_relay *r, uint32_t index) {
  atomic_store_explicit(&r->is_gone[index], 1, memory_order_relaxed);
  atomic_store_explicit(&r->has_gone, true, memory_order_release);
  tell(r);
}

uint32_t sml_shm_relay_find_absent(const struct sml_shm_relay *r, bool only_gone, uint32_t *out, uint32_t room) {
  const uint64_t piece = num_out(r, r->index); /* the one that it has not got yet */
  uint32_t num_absent = 0;
  if (num_done(r) > piece) return 0;
  for (uint32_t i = 0; i < r->num_ranks; i++) {
    const bool is_gone = atomic_load_explicit(&r->is_gone[i], memory_order_relaxed) != 0;
    if (i == r->index || (only_gone && !is_gone)) continue;
    if (num_in(r, i) > piece && num_out(r, i) + DEPTH > piece && !(i == 0 && is_gone)) continue;
    if (num_absent < room) out[num_absent] = i;
    num_absent++;
  }
  if (num_absent > 0 || only_gone || r->index == 0) return num_absent;
  if (room > 0) out[0] = 0;
  return 1;
}
