/* SPDX-License-Identifier: Apache-2.0
 * What a worker does in a one-way window (PROTOCOL.md rules R192 to R209, R219, R224): what comes stays in its slot,
 * and slots come free by fences. */
#include "core/worker_queue.h"

#define LOST_RESULTS 4u /* halve the number of later results that show a loss */

/* ---- a window that adapts ----
 *
 * Behind the last complete fence a rank sends what the stream moves on by in the time that a fence needs, and in that
 * for which chunks may stand in queues. A fence carries a byte, of which all ranks get the greatest (PROTOCOL.md rule
 * R224): so all of them know when one lost much of a stretch, or got marks, and take three tenths of the window, as
 * CUBIC does. */

#define MARKED 255u
#define LOSSY_SHARE 8u /* of a stretch */
/* A place waits twice in the host's own queue (send_queue.h): with its chunk, and with the fence that frees it. */
#define QUEUE_NS (6 * SML_NS_PER_MS)
#define LEAST_STRETCHES 4u
#define KEPT_PERCENT 70u

static uint32_t stretch_of(const struct sml_worker *w) {
  return sml_stretch(w->lane_slots, w->options.num_lanes);
}

void sml_fence_window_init(struct sml_worker *w) {
  w->window = (struct fence_window){.most = w->options.num_slots};
  w->window.allowed = sml_worker_adapts(w) ? 2 * stretch_of(w) : w->options.num_slots;
}

uint8_t sml_fence_window_byte(struct sml_worker *w) {
  struct fence_window *f = &w->window;
  const bool is_lossy = f->num_lost * LOSSY_SHARE > stretch_of(w);
  const uint32_t byte = f->is_marked ? MARKED : is_lossy ? sml_min_u32(f->num_lost, MARKED - 1) : 0;
  f->num_lost = 0;
  f->is_marked = false;
  return (uint8_t)byte;
}

void sml_fence_window_begin(struct sml_worker *w) {
  w->window.round_begin = w->passed;
  w->window.round_ns = w->now_ns;
}

/* Slow rounds, in which somebody was late, say less than the fastest of the last ones. */
static void end_round(struct sml_worker *w) {
  struct fence_window *f = &w->window;
  SML_ASSERT(w->passed >= f->round_begin && f->allowed > 0);
  const uint64_t time_ns = sml_max_u64(w->now_ns - f->round_ns, 1);
  memmove(f->rates + 1, f->rates, sizeof f->rates - sizeof f->rates[0]);
  f->rates[0] = (w->passed - f->round_begin) * SML_NS_PER_S / time_ns;
  uint64_t rate = 0;
  for (uint32_t i = 0; i < SML_ARRAY_LEN(f->rates); i++) rate = sml_max_u64(rate, f->rates[i]);
  const uint64_t held = rate * (f->least_trip_ns + QUEUE_NS) / SML_NS_PER_S;
  f->most = sml_min_u32(f->most + stretch_of(w), w->options.num_slots);
  const uint32_t most = sml_min_u32(f->most, 2 * f->allowed);
  f->allowed = sml_max_u32((uint32_t)sml_min_u64(held, most), LEAST_STRETCHES * stretch_of(w));
  sml_fence_window_begin(w);
}

void sml_fence_window_take(struct sml_worker *w, uint8_t byte, uint64_t trip_ns) {
  struct fence_window *f = &w->window;
  f->longest_ns -= f->longest_ns / (sml_worker_adapts(w) ? 8 : 2);
  if (!sml_worker_adapts(w)) return;
  SML_ASSERT(w->passed > w->released);
  if (trip_ns != 0 && (f->least_trip_ns == 0 || trip_ns < f->least_trip_ns)) f->least_trip_ns = trip_ns;
  const bool is_full = byte == MARKED || (byte != 0 && f->was_lossy);
  f->was_lossy = byte != 0;
  if (is_full && w->passed >= f->reduced_at) {
    f->reduced_at = w->passed + f->allowed;
    f->most = f->allowed = sml_max_u32(f->allowed * KEPT_PERCENT / 100, stretch_of(w));
    w->view.window_reductions++;
  }
  if (w->passed >= f->round_begin + f->allowed && w->now_ns - f->round_ns >= w->rto.srtt_ns) end_round(w);
}

/* A later fence is complete, so nobody has to hear of this one any more. */
static void forget_fence(struct sml_worker *w, uint32_t s) {
  struct slot *slot = &w->slots[s];
  SML_ASSERT(slot->what.is_fence && slot->state == OUTSTANDING);
  if (slot->wants_probe) slot->wants_probe = false;
  else list_remove(w, s);
  slot->level = 0;
  w->view.num_outstanding--;
}

static void free_slot(struct sml_worker *w, uint32_t s) {
  struct slot *slot = &w->slots[s];
  slot->phase += 2; /* the other version is another slot here */
  slot->chunk += w->options.num_slots;
  slot->state = IDLE;
  w->view.busiest_slot_chunks = sml_max_u64(w->view.busiest_slot_chunks, slot->phase - w->options.first_phase);
}

/* Frees the slots up to the next fence, but not that of the last complete one: others may have to ask about it. Returns
 * the cookie of an operation that ends with it, or NULL. */
static void *release_stretch(struct sml_worker *w) {
  const uint64_t first = w->kept != NONE ? w->released - 1 : w->released;
  bool is_fence = false, is_operation_done = false;
  void *cookie = NULL;
  if (w->kept != NONE) free_slot(w, w->kept);
  w->kept = NONE;
  while (!is_fence) {
    const uint32_t s = sml_worker_slot_at(w, w->released++);
    struct slot *slot = &w->slots[s];
    if (slot->state == OUTSTANDING) forget_fence(w, s);
    else SML_ASSERT(slot->state == SENT || slot->state == HELD);
    cookie = w->ring[slot->operation].cookie;
    is_fence = slot->what.is_fence;
    slot->wants_update = false;
    is_operation_done = sml_worker_finish_chunk(w, slot->operation);
    if (w->released < w->passed) {
      free_slot(w, s);
    } else {
      slot->state = KEPT;
      w->kept = s;
    }
  }
  for (uint64_t chunk = first; chunk < w->released; chunk++) {
    const uint32_t s = sml_worker_slot_at(w, chunk);
    if (s != w->kept) sml_worker_activate(w, s);
  }
  sml_worker_note_heard(w);
  return is_operation_done ? cookie : NULL;
}

void *sml_worker_next_ended(struct sml_worker *w) {
  void *cookie = NULL;
  while (cookie == NULL && w->released < w->passed) cookie = release_stretch(w);
  return cookie;
}

/* What later results have shown: that this one was lost, or that it was only late. It is late if it comes sooner than
 * an answer can. But somebody else may have asked for it before. So losses make the threshold smaller again. */
static void learn(struct sml_worker *w, const struct slot *slot, bool is_repeat) {
  if (!is_repeat && (!slot->was_overtaken || slot->was_pending)) return;
  if (!is_repeat && w->now_ns - slot->sent_ns < w->rto.min_ns) sml_worker_note_late(w);
  else if (++w->num_lost % LOST_RESULTS == 0) w->gap_threshold = sml_max_u32(SML_FIRST_THRESHOLD, w->gap_threshold / 2);
}

/* PROTOCOL.md rule R219. The first fence behind p is complete, or a later one. A liar cannot free what this rank still
 * has to send or to get. */
bool sml_worker_take_proof(struct sml_worker *w, const struct sml_header *h, uint64_t now_ns) {
  const uint32_t s = sml_worker_slot_of(w, h);
  if (!is_one_way(w) || s == NONE || h->phase != w->slots[s].phase + 2) return false;
  if (h->type != SML_PACKET_RESULT && h->type != SML_PACKET_PENDING) return false;
  for (uint64_t chunk = sml_max_u64(w->released, w->slots[s].chunk + 1); chunk < w->heard; chunk++) {
    const struct slot *slot = &w->slots[sml_worker_slot_at(w, chunk)];
    if (!slot->what.is_fence) continue;
    if (slot->state != OUTSTANDING && slot->state != HELD) return false;
    SML_ASSERT(chunk >= w->released);
    w->passed = sml_max_u64(w->passed, chunk + 1);
    w->now_ns = now_ns;
    return true;
  }
  return false;
}

void *sml_worker_hold(struct sml_worker *w, uint32_t s, bool is_repeat) {
  struct slot *slot = &w->slots[s];
  slot->state = HELD;
  if (slot->what.is_fence) {
    w->passed = sml_max_u64(w->passed, slot->chunk + 1);
    return sml_worker_next_ended(w);
  }
  struct one_way_class *class = &w->classes[sml_worker_class_of(w, slot)];
  class->next = sml_max_u64(class->next, slot->chunk + 1);
  class->num_results++;
  w->latest = sml_max_u64(w->latest, slot->chunk + 1);
  w->has_news = true;
  learn(w, slot, is_repeat);
  if (slot->what.is_exponent) sml_worker_release_group(w, slot->operation, slot->what.group);
  sml_worker_note_heard(w);
  return NULL;
}
