/* SPDX-License-Identifier: Apache-2.0
 * The window on paths that are made up: a link of some rate and delay, whose queue is what the window leaves on it. */
#include "core/congestion.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define US SML_NS_PER_US
#define MS SML_NS_PER_MS
#define CHUNK_BYTES 1440u
#define NUM_SLOTS 512u
#define INITIAL 64u /* of 1,440 bytes: one segmented send */

struct path {
  struct sml_congestion c;
  struct sml_rto rto;
  uint64_t now_ns, order;
  uint64_t ns_per_chunk; /* of the link, which results show; 0: they come evenly over the round trip */
};

static void make_path(struct path *p, uint32_t num_slots) {
  *p = (struct path){.now_ns = SML_NS_PER_S};
  sml_rto_init(&p->rto, 0);
  sml_congestion_init(&p->c, num_slots, CHUNK_BYTES, 2, 0, false);
}

static uint32_t window(const struct path *p) {
  return sml_congestion_window(&p->c);
}

/* Sends num chunks at once; they complete evenly over the round trip, or as a train at its end. Others were ready, or
 * not. */
static void round_trip(struct path *p, uint32_t num, uint64_t rtt_ns, bool is_limited) {
  const uint64_t first = p->order + 1, sent_ns = p->now_ns;
  p->order += num;
  if (is_limited) sml_congestion_note_limited(&p->c);
  for (uint32_t i = 0; i < num; i++) {
    p->now_ns = sent_ns + rtt_ns * (i + 1) / num;
    if (p->ns_per_chunk > 0) p->now_ns = sent_ns + rtt_ns - (num - 1 - i) * p->ns_per_chunk;
    sml_rto_sample(&p->rto, rtt_ns);
    sml_congestion_on_completed(&p->c, &p->rto, first + i, p->order, p->now_ns);
  }
}

/* A link that carries a chunk in ns_per_chunk, with nothing else on it: a window above what it holds queues. */
static uint64_t rtt_of(uint32_t num, uint64_t least_ns, uint64_t ns_per_chunk) {
  return sml_max_u64(least_ns, num * ns_per_chunk);
}

static void lose_one(struct path *p) {
  sml_congestion_on_loss(&p->c, &p->rto, p->order, p->order, p->now_ns);
}

static void mark_one(struct path *p) {
  sml_congestion_on_mark(&p->c, p->order, p->order, p->now_ns);
}

static void doubles_up_to_all_slots(void **state) {
  (void)state;
  struct path p;
  make_path(&p, NUM_SLOTS);
  for (uint32_t expected = INITIAL; expected < NUM_SLOTS; expected *= 2) {
    assert_int_equal(window(&p), expected);
    round_trip(&p, window(&p), 200 * US, true);
  }
  for (int i = 0; i < 10; i++) round_trip(&p, NUM_SLOTS, 200 * US, true);
  assert_int_equal(window(&p), NUM_SLOTS);
  assert_int_equal(p.c.num_reductions, 0);
  make_path(&p, 32);
  assert_int_equal(window(&p), 32);
}

/* Many slots that a busy join asked for: the path tells how many it can use. */
static void many_slots_wait_for_a_long_path(void **state) {
  (void)state;
  static const struct { uint64_t rtt_ns; uint32_t num_chunks; } paths[] = {
      {100 * US, 910}, {2 * MS, 1736}, {5 * MS, 4096}, {50 * MS, 4096}};
  for (size_t i = 0; i < SML_ARRAY_LEN(paths); i++) {
    struct path p;
    make_path(&p, 4096);
    round_trip(&p, window(&p), 60 * MS, true); /* somebody was late */
    for (uint32_t k = 0; k < 12; k++) round_trip(&p, window(&p), paths[i].rtt_ns, true);
    assert_int_equal(window(&p), paths[i].num_chunks);
    make_path(&p, SML_CONGESTION_USUAL_SLOTS);
    for (uint32_t k = 0; k < 12; k++) round_trip(&p, window(&p), paths[i].rtt_ns, true);
    assert_int_equal(window(&p), SML_CONGESTION_USUAL_SLOTS);
  }
}

static void one_round_trip_reduces_once(void **state) {
  (void)state;
  struct path p;
  make_path(&p, NUM_SLOTS);
  p.order = 100;
  sml_congestion_on_loss(&p.c, &p.rto, 50, 100, p.now_ns);
  assert_int_equal(window(&p), INITIAL * 7 / 10);
  const uint32_t reduced = window(&p);
  sml_congestion_on_loss(&p.c, &p.rto, 51, 100, p.now_ns);
  sml_congestion_on_mark(&p.c, 100, 100, p.now_ns);
  assert_int_equal(window(&p), reduced);
  sml_congestion_on_mark(&p.c, 101, 140, p.now_ns); /* sent after it */
  assert_in_range(window(&p), reduced * 7 / 10, reduced * 7 / 10 + 1);
  assert_int_equal(p.c.num_reductions, 2);
  for (int i = 0; i < 100; i++) sml_congestion_on_mark(&p.c, 200 + (uint64_t)i, 200 + (uint64_t)i, p.now_ns);
  assert_int_equal(window(&p), SML_CONGESTION_MIN_CHUNKS);
}

/* RFC 9438: the old window is there again after K = (0.3 W / 0.4)^(1/3) s, having been slow around it. */
static void grows_as_cubic_on_a_long_path(void **state) {
  (void)state;
  struct path p;
  make_path(&p, 4096);
  while (window(&p) < 4000) round_trip(&p, window(&p), 100 * MS, true);
  const uint32_t before = window(&p);
  mark_one(&p);
  assert_in_range(window(&p), before * 69 / 100, before * 70 / 100);
  const uint64_t begin_ns = p.now_ns;
  uint64_t half_ns = 0;
  while (window(&p) < before - before / 100) {
    round_trip(&p, window(&p), 100 * MS, true);
    if (half_ns == 0 && window(&p) >= before * 85 / 100) half_ns = p.now_ns - begin_ns;
    assert_true(p.now_ns - begin_ns < 60 * SML_NS_PER_S);
  }
  const double k_s = 14.5; /* cbrt(0.3 * 4096 / 0.4) */
  const double took_s = (double)(p.now_ns - begin_ns) / 1e9;
  assert_true(took_s > 0.6 * k_s && took_s < 1.1 * k_s); /* 1 % below the old window it is at 0.68 K */
  assert_true((double)half_ns / 1e9 < 0.3 * k_s);
}

/* On a short one it is as fast as a Reno flow that takes as much: 0.53 chunks a round trip. */
static void grows_as_reno_on_a_short_path(void **state) {
  (void)state;
  struct path p;
  make_path(&p, NUM_SLOTS);
  for (int i = 0; i < 4; i++) round_trip(&p, window(&p), 2 * MS, true);
  mark_one(&p);
  const uint32_t low = window(&p);
  for (int i = 0; i < 100; i++) round_trip(&p, window(&p), 2 * MS, true);
  assert_in_range(window(&p), low + 47, low + 58);
}

static void grows_only_while_it_limits(void **state) {
  (void)state;
  struct path p;
  make_path(&p, NUM_SLOTS);
  for (int i = 0; i < 100; i++) round_trip(&p, 20, 200 * US, false);
  assert_int_equal(window(&p), INITIAL);
  mark_one(&p);
  const uint32_t low = window(&p);
  for (int i = 0; i < 3000; i++) round_trip(&p, 4, 10 * MS, false); /* 30 s, which do not count either */
  assert_int_equal(window(&p), low);
  round_trip(&p, low, 10 * MS, true);
  assert_in_range(window(&p), low, low + 2);
}

static void idle_lanes_begin_small(void **state) {
  (void)state;
  struct path p;
  make_path(&p, NUM_SLOTS);
  for (int i = 0; i < 4; i++) round_trip(&p, window(&p), 200 * US, true);
  mark_one(&p);
  const uint32_t before = window(&p);
  sml_congestion_on_idle(&p.c);
  assert_int_equal(window(&p), INITIAL);
  sml_congestion_on_idle(&p.c);
  for (int i = 0; i < 3; i++) round_trip(&p, window(&p), 200 * US, true);
  assert_in_range(window(&p), before, before + 8); /* fast up to where it was, and no faster than before there */
}

/* Losses on a link that is nobody else's must not slow it down: what they leave keeps it full. */
static void loss_without_a_queue_leaves_what_the_path_holds(void **state) {
  (void)state;
  static const struct {
    uint64_t least_ns, ns_per_chunk;
  } links[] = {{100 * US, 12 * US}, {100 * US, 1200}, {1 * MS, 12 * US}, {20 * MS, 100 * US}};
  for (size_t k = 0; k < SML_ARRAY_LEN(links); k++) {
    struct path p;
    make_path(&p, NUM_SLOTS);
    const uint64_t least_ns = links[k].least_ns, ns_per_chunk = links[k].ns_per_chunk;
    const uint32_t held = (uint32_t)(least_ns / ns_per_chunk);
    uint32_t smallest = NUM_SLOTS;
    for (int i = 0; i < 20; i++) round_trip(&p, window(&p), rtt_of(window(&p), least_ns, ns_per_chunk), true);
    for (int i = 0; i < 5000; i++) {
      lose_one(&p);
      assert_true(window(&p) >= held);
      smallest = sml_min_u32(smallest, window(&p));
      round_trip(&p, window(&p), rtt_of(window(&p), least_ns, ns_per_chunk), true);
    }
    if (held < NUM_SLOTS / 4) assert_true(smallest < NUM_SLOTS / 2); /* it does give in */
    for (int i = 0; i < 10; i++) {
      round_trip(&p, 1, least_ns, false);
      mark_one(&p);
    }
    assert_in_range(window(&p), SML_CONGESTION_MIN_CHUNKS, 24); /* nothing but a queue makes marks */
  }
}

/* The join and a sample say that it is long. */
static void make_far_path(struct path *p, uint64_t path_ns) {
  make_path(p, 8192);
  p->c.path_ns = path_ns;
  round_trip(p, 1, path_ns, false);
}

static void far_trip(struct path *p, uint64_t ns_per_chunk) {
  p->ns_per_chunk = ns_per_chunk;
  round_trip(p, window(p), rtt_of(window(p), 100 * MS, ns_per_chunk), true);
}

/* A long path: its few losses are random, more than a sixteenth or a mark are not, and what is under way is an eighth
 * more than it holds. */
static void a_long_path_has_a_rate(void **state) {
  (void)state;
  struct path p;
  make_far_path(&p, 100 * MS);
  const uint64_t ns_per_chunk = 100 * US; /* it holds 1,000 */
  for (int i = 0; i < 40; i++) {
    const uint32_t num_lost = window(&p) / 50;
    far_trip(&p, ns_per_chunk);
    for (uint32_t k = 0; k < num_lost; k++) lose_one(&p);
    if (i == 2) assert_true(window(&p) > 1000); /* the first train shows the rate */
  }
  assert_int_equal(p.c.num_reductions, 0);
  assert_in_range(window(&p), 1100, 1150);
  const uint32_t before = window(&p);
  for (uint32_t k = 0; k < before / 10; k++) lose_one(&p);
  far_trip(&p, ns_per_chunk);
  assert_int_equal(p.c.num_reductions, 1);
  assert_in_range(window(&p), 990, 1010); /* what it holds */
  /* More of the same window show, whose repairs take round trips: they are no new congestion. */
  for (uint32_t k = 0; k < before; k++) sml_congestion_on_loss(&p.c, &p.rto, p.c.reduced_order, p.order, p.now_ns);
  round_trip(&p, 20, 100 * MS, false);
  assert_int_equal(p.c.num_reductions, 1);
  const uint32_t reduced = window(&p);
  mark_one(&p);
  assert_in_range(window(&p), reduced * 69 / 100, reduced * 70 / 100);
  /* The path becomes four times as wide. */
  for (int i = 0; i < 100; i++) far_trip(&p, ns_per_chunk / 4);
  assert_in_range(window(&p), 3000, 4 * 1150);
}

/* As many as may be sent in a time, by passes that look when they should, and in the first one of them. */
static uint32_t num_sent(struct path *p, uint64_t time_ns, uint32_t *first_out) {
  const uint64_t end_ns = p->now_ns + time_ns;
  uint32_t num = 0;
  *first_out = 0;
  while (p->now_ns < end_ns) {
    sml_congestion_take_turn(&p->c, p->now_ns);
    for (; !sml_congestion_is_early(&p->c) && num < 100000; num++) sml_congestion_on_sent(&p->c);
    if (*first_out == 0) *first_out = num;
    p->now_ns = num < 100000 ? p->c.next_turn_ns : end_ns;
  }
  return num;
}

/* On a long path chunks leave an eighth faster than the fastest train came, and never more than a millisecond's at
 * once. A short path is not paced, nor is one whose rate is not known. */
static void a_long_path_has_a_pace(void **state) {
  (void)state;
  struct path p;
  uint32_t first;
  make_path(&p, 8192);
  p.c.path_ns = 100 * MS;
  assert_int_equal(num_sent(&p, MS, &first), 100000);
  round_trip(&p, 1, 100 * MS, false);
  for (int i = 0; i < 10; i++) far_trip(&p, 100 * US);
  assert_in_range(num_sent(&p, 100 * MS, &first), 1100, 1150);
  assert_true(first <= 12 + SML_CONGESTION_MIN_CHUNKS);
  p.now_ns += 5 * SML_NS_PER_S; /* it has earned nothing meanwhile */
  (void)num_sent(&p, MS, &first);
  assert_true(first <= 12 + SML_CONGESTION_MIN_CHUNKS);
  /* Slower trains do not count for 16 round trips at least, and for 32 at most. */
  for (int i = 0; i < 15; i++) far_trip(&p, 200 * US);
  assert_true(num_sent(&p, 100 * MS, &first) >= 1100);
  for (int i = 0; i < 32; i++) far_trip(&p, 200 * US);
  assert_in_range(num_sent(&p, 100 * MS, &first), 550, 575);
  /* Faster ones count at once, and more than an eighth faster is tried. */
  for (int i = 0; i < 2; i++) far_trip(&p, 150 * US);
  assert_in_range(num_sent(&p, 100 * MS, &first), 2 * 660, 2 * 680);
  p.c.path_ns = 0;
  round_trip(&p, 1, 100 * MS, false);
  assert_int_equal(num_sent(&p, MS, &first), 100000);
}

/* What a rank reads late, in several passes, makes one train that is too fast. */
static void a_train_alone_is_no_rate(void **state) {
  (void)state;
  struct path p;
  uint32_t first;
  make_far_path(&p, 100 * MS);
  for (int i = 0; i < 10; i++) far_trip(&p, 100 * US);
  const uint32_t before = window(&p), num_late = 300;
  for (int k = 0; k < 60; k++) {
    const uint64_t order = p.order + 1, rtt_ns = rtt_of(before, 100 * MS, 100 * US);
    const uint64_t first_ns = p.now_ns + rtt_ns - (before - 1) * 100 * US;
    p.order += before;
    sml_congestion_note_limited(&p.c);
    for (uint32_t i = 0; i < before; i++) {
      const uint64_t came_ns = first_ns + i * 100 * US;
      const uint64_t read_ns = first_ns + num_late * 100 * US + i / 100 * 500 * US; /* 100 in each pass */
      p.now_ns = sml_max_u64(came_ns, read_ns);
      sml_rto_sample(&p.rto, rtt_ns + p.now_ns - came_ns);
      sml_congestion_on_completed(&p.c, &p.rto, order + i, p.order, p.now_ns);
    }
  }
  assert_in_range(num_sent(&p, 100 * MS, &first), 1100, 1150);
  assert_in_range(window(&p), before, before + 10);
}

/* After an idle time a long path gets what it holds: the pace makes no burst of it. */
static void an_idle_long_path_keeps_its_window(void **state) {
  (void)state;
  struct path p;
  uint32_t first;
  make_far_path(&p, 100 * MS);
  for (int i = 0; i < 40; i++) far_trip(&p, 100 * US);
  const uint32_t before = window(&p);
  assert_in_range(before, 1100, 1150);
  p.now_ns += 5 * SML_NS_PER_S;
  sml_congestion_on_idle(&p.c);
  assert_int_equal(window(&p), before);
  (void)num_sent(&p, MS, &first);
  assert_true(first <= 12 + SML_CONGESTION_MIN_CHUNKS);
  p.c.window = 5000ull << 20; /* more than it holds, as before its rate was known */
  sml_congestion_on_idle(&p.c);
  assert_in_range(window(&p), 1100, 1150);
  assert_true(p.c.threshold >= 5000ull << 20);
}

/* A path that holds less than a burst which harms nobody gets that burst. */
static void a_long_path_that_is_narrow_has_a_burst(void **state) {
  (void)state;
  struct path p;
  make_far_path(&p, 10 * MS);
  p.ns_per_chunk = 500 * US; /* it holds 20 */
  for (int i = 0; i < 40; i++) round_trip(&p, window(&p), rtt_of(window(&p), 10 * MS, p.ns_per_chunk), true);
  assert_in_range(window(&p), INITIAL, INITIAL + 1);
  sml_congestion_on_idle(&p.c);
  assert_in_range(window(&p), INITIAL, INITIAL + 1);
}

/* On a busy machine the join and all samples take milliseconds, and trains come as processors read them. */
static void a_shorter_path_has_a_pace_once_a_queue_overflowed(void **state) {
  (void)state;
  struct path p;
  uint32_t first;
  make_far_path(&p, 2 * MS);
  p.ns_per_chunk = 10 * US; /* it holds 200 */
  for (int i = 0; i < 40; i++) round_trip(&p, window(&p), 2 * MS + window(&p) * p.ns_per_chunk, true);
  assert_int_equal(num_sent(&p, MS, &first), 100000);
  const uint32_t before = window(&p);
  assert_true(before > 350);
  for (uint32_t k = 0; k < before / 10; k++) lose_one(&p);
  for (int i = 0; i < 2; i++) round_trip(&p, window(&p), 2 * MS + window(&p) * p.ns_per_chunk, true);
  assert_in_range(num_sent(&p, 10 * MS, &first), 1100, 1150);
  assert_true(first <= 15 + SML_CONGESTION_MIN_CHUNKS);
}

/* A few chunks at a time, which nothing holds back, say nothing of how fast a path is. */
static void a_path_that_is_hardly_used_has_no_pace(void **state) {
  (void)state;
  struct path p;
  uint32_t first;
  make_path(&p, 8192);
  p.c.path_ns = 100 * MS;
  p.ns_per_chunk = MS;
  for (int i = 0; i < 40; i++) round_trip(&p, 20, 100 * MS, false);
  assert_int_equal(num_sent(&p, MS, &first), 100000);
}

/* A queue of 2 ms that drops: as deep as it has been when nothing was lost, so losses count in full. */
static void loss_with_a_full_queue_counts(void **state) {
  (void)state;
  struct path p;
  make_path(&p, NUM_SLOTS);
  round_trip(&p, 1, 100 * US, false);
  round_trip(&p, INITIAL, rtt_of(INITIAL, 100 * US, 12 * US), true);
  for (int i = 0; i < 50; i++) {
    round_trip(&p, window(&p), rtt_of(window(&p), 100 * US, 12 * US), true);
    const uint32_t before = window(&p);
    lose_one(&p);
    assert_in_range(window(&p), before * 69 / 100, before * 70 / 100);
    while (window(&p) < 160) round_trip(&p, window(&p), rtt_of(window(&p), 100 * US, 12 * US), true);
  }
}

/* One loss with a short queue shows that losses are random: 32 round trips with some leave the window, for a second.
 * What a mark takes stays taken. */
static void after_a_random_loss_the_next_are_forgiven(void **state) {
  (void)state;
  struct path p;
  make_path(&p, NUM_SLOTS);
  for (int i = 0; i < 10; i++) round_trip(&p, window(&p), rtt_of(window(&p), 100 * US, 12 * US), true);
  for (int i = 0; i < 3; i++) {
    lose_one(&p);
    round_trip(&p, window(&p), rtt_of(window(&p), 100 * US, 12 * US), true);
  }
  const uint32_t low = window(&p);
  assert_true(low >= INITIAL && low < NUM_SLOTS / 2);
  round_trip(&p, 20, 100 * US, false);
  lose_one(&p); /* with no queue at all */
  for (int i = 0; i < 3; i++) round_trip(&p, window(&p), rtt_of(window(&p), 100 * US, 12 * US), true);
  assert_int_equal(window(&p), NUM_SLOTS);
  for (int i = 0; i < 32; i++) {
    lose_one(&p);
    round_trip(&p, NUM_SLOTS, rtt_of(NUM_SLOTS, 100 * US, 12 * US), true);
    assert_int_equal(window(&p), NUM_SLOTS);
  }
  lose_one(&p);
  assert_true(window(&p) < NUM_SLOTS);
  round_trip(&p, 20, 100 * US, false);
  lose_one(&p);
  for (int i = 0; i < 3; i++) round_trip(&p, window(&p), rtt_of(window(&p), 100 * US, 12 * US), true);
  assert_int_equal(window(&p), NUM_SLOTS);
  p.now_ns += 2 * SML_NS_PER_S; /* that is not known for ever */
  round_trip(&p, NUM_SLOTS, rtt_of(NUM_SLOTS, 100 * US, 12 * US), true);
  lose_one(&p);
  assert_true(window(&p) < NUM_SLOTS);
  mark_one(&p);
  round_trip(&p, 20, 100 * US, false);
  mark_one(&p);
  const uint32_t marked = window(&p);
  round_trip(&p, 20, 100 * US, false);
  lose_one(&p);
  for (int i = 0; i < 3; i++) round_trip(&p, window(&p), 100 * US, true);
  assert_in_range(window(&p), marked, marked + 8);
}

static void marked_trips(struct path *p, uint32_t num, uint64_t rtt_ns) {
  for (uint32_t i = 0; i < num; i++, mark_one(p)) round_trip(p, window(p), rtt_ns, true);
}

/* Someone who ignores marks fills a queue. That shows once nothing can be given in, and has to be shown anew. */
static void marks_that_go_on_are_others(void **state) {
  (void)state;
  struct path p;
  make_path(&p, NUM_SLOTS);
  marked_trips(&p, 20, 2 * MS);
  assert_int_equal(window(&p), SML_CONGESTION_MIN_CHUNKS);
  round_trip(&p, window(&p), 2 * MS, true); /* one without */
  marked_trips(&p, 16, 2 * MS);
  assert_int_equal(window(&p), SML_CONGESTION_MIN_CHUNKS);
  marked_trips(&p, 16, 2 * MS);
  assert_int_equal(window(&p), INITIAL);
  sml_congestion_share(&p.c, 8u << 20); /* another lane does not know it yet */
  assert_int_equal(window(&p), INITIAL);
  uint32_t num_trips = 0;
  for (; window(&p) > SML_CONGESTION_MIN_CHUNKS; num_trips++) {
    marked_trips(&p, 1, 2 * MS);
    assert_true(window(&p) <= INITIAL + 1 && num_trips < 1000);
  }
  assert_in_range(num_trips, 500, 520);
}

/* Many flows, or a slow path, on which the smallest windows stand above the mark as well. */
static void marks_may_be_the_jobs_own(void **state) {
  (void)state;
  struct path p;
  make_path(&p, NUM_SLOTS);
  sml_congestion_init(&p.c, NUM_SLOTS, CHUNK_BYTES, 17, 0, false);
  marked_trips(&p, 200, 100 * US);
  assert_int_equal(window(&p), SML_CONGESTION_MIN_CHUNKS);
  make_far_path(&p, 20 * MS);
  marked_trips(&p, 200, 20 * MS);
  assert_int_equal(window(&p), SML_CONGESTION_MIN_CHUNKS);
}

/* A queue that stays full: others fill it, and all of them are to give in. */
static void losses_in_a_row_with_a_full_queue_count(void **state) {
  (void)state;
  struct path p;
  make_path(&p, NUM_SLOTS);
  round_trip(&p, 1, 100 * US, false);
  for (int i = 0; i < 10; i++) round_trip(&p, window(&p), 100 * US + sml_min_u32(window(&p), 160) * 12 * US, true);
  for (int i = 0; i < 20; i++) {
    lose_one(&p);
    round_trip(&p, window(&p), 100 * US + 160 * 12 * US, true);
  }
  assert_in_range(window(&p), INITIAL, NUM_SLOTS * 3 / 10);
}

/* A rank that is late makes all chunks late. That is no queue, and does not make the next loss look early. */
static void a_late_rank_is_no_queue(void **state) {
  (void)state;
  struct path p;
  make_path(&p, NUM_SLOTS);
  for (int i = 0; i < 8; i++) round_trip(&p, INITIAL, rtt_of(INITIAL, 100 * US, 6 * US), false);
  const uint64_t deepest_ns = p.c.deepest_ns;
  p.order += INITIAL;
  p.now_ns += 100 * MS;
  for (uint32_t i = 0; i < INITIAL; i++) { /* all at once */
    sml_rto_sample(&p.rto, 100 * MS);
    sml_congestion_on_completed(&p.c, &p.rto, p.order - INITIAL + 1 + i, p.order, p.now_ns);
  }
  assert_int_equal(p.c.deepest_ns, deepest_ns);
}

/* The part of another lane's reduction: as if it were this one's own. A long path is full then. */
static void a_shared_window_is_taken(void **state) {
  (void)state;
  struct path p;
  make_path(&p, NUM_SLOTS);
  for (int i = 0; i < 5; i++) round_trip(&p, window(&p), 200 * US, true);
  assert_int_equal(window(&p), NUM_SLOTS);
  sml_congestion_share(&p.c, 100u << 20);
  assert_int_equal(window(&p), 100);
  assert_int_equal(p.c.num_reductions, 0);
  round_trip(&p, 100, 200 * US, true); /* it does not double at once, but returns to where it was */
  assert_in_range(window(&p), 100, 110);
  for (int i = 0; i < 30000; i++) round_trip(&p, window(&p), 200 * US, true);
  assert_int_equal(window(&p), NUM_SLOTS);
  sml_congestion_share(&p.c, 2ull * NUM_SLOTS << 20);
  assert_int_equal(window(&p), NUM_SLOTS);
  assert_false(p.c.is_full);
  p.c.path_ns = p.c.min_rtt_ns = 100 * MS;
  sml_congestion_share(&p.c, 100u << 20);
  assert_int_equal(window(&p), 100);
  assert_true(p.c.is_full);
  sml_congestion_init(&p.c, NUM_SLOTS, CHUNK_BYTES, 2, 0, true);
  sml_congestion_share(&p.c, 100u << 20);
  assert_int_equal(window(&p), NUM_SLOTS);
}

static void few_slots_and_fixed_windows_stay(void **state) {
  (void)state;
  static const uint32_t slots[] = {1, 2, 8, SML_CONGESTION_MIN_SLOTS - 1, NUM_SLOTS};
  for (size_t i = 0; i < SML_ARRAY_LEN(slots); i++) {
    struct path p;
    make_path(&p, slots[i]);
    if (slots[i] == NUM_SLOTS) sml_congestion_init(&p.c, NUM_SLOTS, CHUNK_BYTES, 2, 0, true);
    assert_int_equal(window(&p), slots[i]);
    for (int k = 0; k < 10; k++) {
      round_trip(&p, slots[i], MS, true);
      lose_one(&p);
      mark_one(&p);
    }
    sml_congestion_on_idle(&p.c);
    assert_int_equal(window(&p), slots[i]);
    assert_int_equal(p.c.num_reductions, 0);
  }
}

/* Whatever happens, at whatever times: within bounds. */
static void random_events_stay_in_bounds(void **state) {
  (void)state;
  struct sml_prng prng = {.state = 12};
  for (uint32_t run = 0; run < 40; run++) {
    struct path p;
    const uint32_t num_slots = 16u << (run % 12);
    make_path(&p, num_slots);
    for (int i = 0; i < 5000; i++) {
      const uint64_t order = sml_prng_below(&prng, p.order + 2);
      p.now_ns += sml_prng_next(&prng) >> (20 + sml_prng_below(&prng, 44));
      p.order += sml_prng_below(&prng, 4);
      switch (sml_prng_below(&prng, 8)) {
        case 0: sml_congestion_on_loss(&p.c, &p.rto, order, p.order, p.now_ns); break;
        case 1: sml_congestion_on_mark(&p.c, order, p.order, p.now_ns); break;
        case 2: sml_congestion_on_idle(&p.c); break;
        case 3: sml_congestion_note_limited(&p.c); break;
        case 4: sml_rto_sample(&p.rto, sml_prng_next(&prng) >> sml_prng_below(&prng, 64)); break;
        default: sml_congestion_on_completed(&p.c, &p.rto, order, p.order, p.now_ns);
      }
      assert_in_range(window(&p), SML_CONGESTION_MIN_CHUNKS, num_slots);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(doubles_up_to_all_slots),
      cmocka_unit_test(many_slots_wait_for_a_long_path),
      cmocka_unit_test(one_round_trip_reduces_once),
      cmocka_unit_test(grows_as_cubic_on_a_long_path),
      cmocka_unit_test(grows_as_reno_on_a_short_path),
      cmocka_unit_test(grows_only_while_it_limits),
      cmocka_unit_test(idle_lanes_begin_small),
      cmocka_unit_test(loss_without_a_queue_leaves_what_the_path_holds),
      cmocka_unit_test(a_long_path_has_a_rate),
      cmocka_unit_test(a_long_path_has_a_pace),
      cmocka_unit_test(a_train_alone_is_no_rate),
      cmocka_unit_test(an_idle_long_path_keeps_its_window),
      cmocka_unit_test(a_long_path_that_is_narrow_has_a_burst),
      cmocka_unit_test(a_shorter_path_has_a_pace_once_a_queue_overflowed),
      cmocka_unit_test(a_path_that_is_hardly_used_has_no_pace),
      cmocka_unit_test(loss_with_a_full_queue_counts),
      cmocka_unit_test(after_a_random_loss_the_next_are_forgiven),
      cmocka_unit_test(marks_that_go_on_are_others),
      cmocka_unit_test(marks_may_be_the_jobs_own),
      cmocka_unit_test(losses_in_a_row_with_a_full_queue_count),
      cmocka_unit_test(a_late_rank_is_no_queue),
      cmocka_unit_test(a_shared_window_is_taken),
      cmocka_unit_test(few_slots_and_fixed_windows_stay),
      cmocka_unit_test(random_events_stay_in_bounds),
  };
  return cmocka_run_group_tests_name("congestion", tests, NULL, NULL);
}
