/* SPDX-License-Identifier: Apache-2.0
 * Loss, duplication, reordering, corruption and marking of received frames over any back end. What happens to a
 * frame is a pure function of the seed and of how many frames were received before it, whatever the
 * bursts they came in. Per frame: lost (nothing else then), corrupted, held back, duplicated; a frame
 * held back and duplicated arrives now and later. */
#include <stdlib.h>

#include "netio/wrap.h"

#define MAX_REORDER_FRAMES 1024u
#define DEFAULT_REORDER_FRAMES 16u
#define INNER_FRAMES 1024u
#define SPARE_CELLS 64u /* for copies lent to the caller, beside the frames held back */
#define MAX_FLIPPED_BITS 8u
#define QUIET_BURSTS 2u /* empty ones in a row after which nothing is held back any longer */

enum cell_state { CELL_FREE, CELL_HELD, CELL_LENT };

/* A copy of a frame. LENT: the caller may look at it until the next rx_burst. */
struct cell {
  enum cell_state state;
  uint64_t due; /* HELD: given out before the first frame with a larger index */
  struct sml_addr from;
  uint32_t num_bytes;
  bool is_marked;
  uint8_t *bytes; /* of the largest copy so far: few cells are used, most of them for small frames */
  uint32_t room_bytes;
};

struct faults {
  struct sml_wrap wrap; /* first */
  struct sml_fault_options options;
  uint64_t num_received; /* frames taken from inner: the index of the next */
  uint32_t num_to_lose;  /* of a burst that began */
  struct sml_rx_frame inner_frames[INNER_FRAMES];
  size_t num_inner, next_inner; /* inner's last burst, and how far it is used */
  struct sml_rx_frame duplicate;
  bool has_duplicate; /* the second copy found no room in the caller's array */
  uint32_t num_quiet; /* empty bursts of inner in a row */
  uint32_t num_held, num_lent;
  uint64_t first_due; /* no frame held back is due before it */
  uint32_t num_cells;
  struct cell *cells;
};

static struct faults *faults_of(struct sml_netio *io) {
  return (struct faults *)(void *)io;
}

static void faults_close(struct sml_netio *io) {
  struct faults *f = faults_of(io);
  f->wrap.inner->ops->close(f->wrap.inner);
  for (uint32_t i = 0; i < f->num_cells; i++) free(f->cells[i].bytes);
  free(f->cells);
  free(f);
}

static void faults_wait(struct sml_netio *io, uint64_t timeout_ns) {
  struct faults *f = faults_of(io);
  if (f->next_inner < f->num_inner || f->has_duplicate) return;
  /* Frames held back come out by themselves only in rx_burst. */
  if (f->num_held > 0) timeout_ns = sml_min_u64(timeout_ns, SML_NS_PER_MS);
  sml_wrap_wait(io, timeout_ns);
}

static struct cell *find_free_cell(struct faults *f) {
  for (uint32_t i = 0; i < f->num_cells; i++)
    if (f->cells[i].state == CELL_FREE) return &f->cells[i];
  return NULL;
}

/* The frame held back that is due first, NULL if none is due before `index`. */
static struct cell *find_due_cell(struct faults *f, uint64_t index) {
  struct cell *found = NULL;
  if (f->num_held == 0 || f->first_due >= index) return NULL;
  for (uint32_t i = 0; i < f->num_cells; i++) {
    struct cell *c = &f->cells[i];
    if (c->state == CELL_HELD && (found == NULL || c->due < found->due)) found = c;
  }
  f->first_due = found->due;
  return found->due < index ? found : NULL;
}

static struct sml_rx_frame lend_cell(struct faults *f, struct cell *cell) {
  if (cell->state == CELL_HELD) f->num_held--;
  if (cell->state != CELL_LENT) f->num_lent++;
  cell->state = CELL_LENT;
  return (struct sml_rx_frame){
      .data = cell->bytes, .num_bytes = cell->num_bytes, .from = &cell->from, .is_marked = cell->is_marked};
}

static bool make_room(struct cell *cell, uint32_t num_bytes) {
  if (cell->room_bytes >= num_bytes) return true;
  free(cell->bytes);
  cell->bytes = malloc(num_bytes);
  cell->room_bytes = cell->bytes != NULL ? num_bytes : 0;
  return cell->bytes != NULL;
}

static struct sml_rx_frame copy_frame(struct faults *f, struct cell *cell, const struct sml_rx_frame *frame) {
  cell->from = *frame->from;
  cell->num_bytes = frame->num_bytes;
  cell->is_marked = frame->is_marked;
  if (frame->num_bytes > 0) memcpy(cell->bytes, frame->data, frame->num_bytes);
  return lend_cell(f, cell);
}

static void flip_bits(struct sml_prng *prng, uint8_t *data, uint32_t num_bytes) {
  uint64_t flipped[MAX_FLIPPED_BITS];
  const uint64_t wanted = 1 + sml_prng_below(prng, MAX_FLIPPED_BITS);
  for (uint64_t i = 0; i < wanted; i++) {
    flipped[i] = sml_prng_below(prng, (uint64_t)num_bytes * 8);
    bool is_again = false; /* the same bit twice would be no corruption */
    for (uint64_t k = 0; k < i; k++) is_again |= flipped[k] == flipped[i];
    if (!is_again) data[flipped[i] / 8] ^= (uint8_t)(1u << (flipped[i] % 8));
  }
}

/* With bursts, the chance that one begins is such that the share of lost frames stays options.loss. */
static bool draw_loss(struct faults *f, struct sml_prng *prng) {
  const struct sml_fault_options *o = &f->options;
  const uint32_t burst_frames = sml_max_u32(o->loss_burst_frames, 1);
  const bool is_plain = burst_frames == 1 || o->loss == 0;
  const double chance = is_plain ? o->loss : o->loss / (o->loss + burst_frames * (1 - o->loss));
  const bool begins = sml_prng_chance(prng, chance); /* drawn always: later draws stay the same */
  if (f->num_to_lose == 0 && begins) f->num_to_lose = burst_frames;
  if (f->num_to_lose == 0) return false;
  f->num_to_lose--;
  return true;
}

/* Decides about one frame and gives what arrives now: 0, 1 or 2 copies, put into `out` one by one (a
 * second that finds no room waits in f->duplicate). Needs a free cell. */
static size_t pass_frame(struct faults *f, struct cell *cell, struct sml_rx_frame frame, struct sml_rx_frame *out,
                         size_t room) {
  const struct sml_fault_options *o = &f->options;
  const uint64_t index = f->num_received++;
  struct sml_prng prng = {.state = sml_mix64(o->seed) ^ sml_mix64(index + 1)};
  bool is_lost = draw_loss(f, &prng);
  if (o->drop != NULL) is_lost = o->drop(o->drop_user, frame.data, frame.num_bytes);
  bool is_held = sml_prng_chance(&prng, o->reorder);
  const bool is_duplicate = sml_prng_chance(&prng, o->duplicate);
  const bool is_corrupt = sml_prng_chance(&prng, o->corrupt) && frame.num_bytes > 0;
  const uint64_t due = index + 1 + sml_prng_below(&prng, o->reorder_frames);
  frame.is_marked |= sml_prng_chance(&prng, o->mark);
  if (is_lost) return 0;
  const bool has_copy = (is_held || is_corrupt) && make_room(cell, frame.num_bytes);
  if (has_copy) {
    frame = copy_frame(f, cell, &frame);
    if (is_corrupt) flip_bits(&prng, cell->bytes, frame.num_bytes);
  }
  is_held = is_held && has_copy;
  if (is_held) {
    cell->state = CELL_HELD;
    f->num_lent--;
    cell->due = due;
    f->first_due = f->num_held == 0 ? due : sml_min_u64(f->first_due, due);
    f->num_held++;
  }
  size_t num_now = 0;
  if (!is_held || is_duplicate) out[num_now++] = frame;
  if (is_held || !is_duplicate) return num_now;
  if (num_now < room) {
    out[num_now++] = frame;
  } else {
    f->duplicate = frame;
    f->has_duplicate = true;
  }
  return num_now;
}

/* Only after all of inner's last burst was used: this releases it. */
static void refill(struct faults *f) {
  f->num_inner = f->wrap.inner->ops->rx_burst(f->wrap.inner, f->inner_frames, INNER_FRAMES);
  f->next_inner = 0;
  f->num_quiet = f->num_inner == 0 ? f->num_quiet + 1 : 0;
  sml_wrap_share(&f->wrap.io);
}

static size_t faults_rx_burst(struct sml_netio *io, struct sml_rx_frame *frames, size_t max) {
  struct faults *f = faults_of(io);
  size_t num_frames = 0;
  if (max == 0) return 0;
  /* A duplicate left over still points into its cell or into inner's burst: neither is released. */
  if (f->has_duplicate) {
    frames[num_frames++] = f->duplicate;
    f->has_duplicate = false;
  } else {
    for (uint32_t i = 0; f->num_lent > 0; i++) {
      if (f->cells[i].state != CELL_LENT) continue;
      f->cells[i].state = CELL_FREE;
      f->num_lent--;
    }
    if (f->next_inner == f->num_inner) refill(f);
  }
  const bool is_quiet = f->num_quiet >= QUIET_BURSTS;
  while (num_frames < max) {
    struct cell *due = find_due_cell(f, is_quiet ? UINT64_MAX : f->num_received);
    if (due != NULL) {
      frames[num_frames++] = lend_cell(f, due);
      continue;
    }
    struct cell *cell = f->next_inner < f->num_inner ? find_free_cell(f) : NULL;
    if (cell == NULL) break;
    num_frames += pass_frame(f, cell, f->inner_frames[f->next_inner++], frames + num_frames, max - num_frames);
  }
  return num_frames;
}

static const struct sml_netio_ops faults_ops = {SML_WRAP_OPS,
                                                .name = "faults",
                                                .close = faults_close,
                                                .close_descriptors = sml_wrap_close_descriptors,
                                                .rx_burst = faults_rx_burst,
                                                .tx_commit = sml_wrap_tx_commit,
                                                .tx_flush = sml_wrap_tx_flush,
                                                .wait = faults_wait};

struct sml_netio *sml_faults_wrap(struct sml_netio *inner, const struct sml_fault_options *options) {
  struct faults *f = calloc(1, sizeof *f);
  if (f == NULL) return NULL;
  f->options = *options;
  if (f->options.reorder_frames == 0) f->options.reorder_frames = DEFAULT_REORDER_FRAMES;
  f->options.reorder_frames = sml_min_u32(f->options.reorder_frames, MAX_REORDER_FRAMES);
  f->num_cells = f->options.reorder_frames + SPARE_CELLS;
  f->cells = calloc(f->num_cells, sizeof *f->cells);
  if (f->cells == NULL) {
    free(f);
    return NULL;
  }
  sml_wrap_init(&f->wrap, &faults_ops, inner);
  return &f->wrap.io;
}

bool sml_faults_any(const struct sml_fault_options *options) {
  return options->loss > 0 || options->duplicate > 0 || options->reorder > 0 || options->corrupt > 0 ||
         options->mark > 0 || options->drop != NULL;
}
