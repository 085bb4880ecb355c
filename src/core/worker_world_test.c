/* SPDX-License-Identifier: Apache-2.0
 * Whole worlds (test_worker_world.h) in which packets are lost, repeated and late, at every position and at random; and
 * what repair costs. */
#include "core/test_worker_world.h"

/* ---- every position ---- */

typedef void (*sweep_fn)(struct world_options o, const uint32_t *num_chunks, bool is_mixed,
                         uint64_t num_sent);

/* Worlds of two or three ranks whose operations are shorter than, as long as and just above the window. */
static void sweep(sweep_fn run_all, uint32_t max_slots) {
  for (uint32_t n = 2; n <= 3; n++)
    for (uint32_t num_slots = 1; num_slots <= max_slots; num_slots *= 2) {
      const uint32_t lengths[] = {1,           num_slots - 1, num_slots,
                                  num_slots + 1, 2 * num_slots, 2 * num_slots + 1};
      for (size_t i = 0; i < SML_ARRAY_LEN(lengths); i++) {
        if (lengths[i] == 0) continue;
        struct world_options o = QUIET;
        o.world_size = n;
        o.num_slots = num_slots;
        for (o.num_operations = 1; o.num_operations <= 2; o.num_operations++) {
          const uint32_t num_chunks[2] = {lengths[i], lengths[(i + 3) % SML_ARRAY_LEN(lengths)] | 1};
          run_all(o, num_chunks, true, run_once(&o, num_chunks, true));
          run_all(o, num_chunks, false, run_once(&o, num_chunks, false));
        }
      }
    }
}

static void lose_each(struct world_options o, const uint32_t *num_chunks, bool is_mixed, uint64_t num_sent) {
  for (o.lost[0] = 0; o.lost[0] < num_sent; o.lost[0]++) run_once(&o, num_chunks, is_mixed);
}

static void any_single_loss_is_repaired(void **state) {
  (void)state;
  sweep(lose_each, 4);
}

static void lose_each_pair(struct world_options o, const uint32_t *num_chunks, bool is_mixed,
                           uint64_t num_sent) {
  num_sent = sml_min_u64(num_sent, SML_IS_SLOW_BUILD ? 12 : 40);
  for (o.lost[0] = 0; o.lost[0] < num_sent; o.lost[0]++)
    for (o.lost[1] = o.lost[0] + 1; o.lost[1] < num_sent + 8; o.lost[1]++) run_once(&o, num_chunks, is_mixed);
}

static void any_two_losses_are_repaired(void **state) {
  (void)state;
  sweep(lose_each_pair, 2);
}

static void repeat_each(struct world_options o, const uint32_t *num_chunks, bool is_mixed,
                        uint64_t num_sent) {
  static const uint64_t delays_ns[] = {0, HOP_NS / 2, 3 * HOP_NS, 150 * SML_NS_PER_US, 25 * SML_NS_PER_MS};
  for (size_t i = 0; i < SML_ARRAY_LEN(delays_ns); i++) {
    o.repeat_delay_ns = delays_ns[i];
    for (o.repeated = 0; o.repeated < num_sent; o.repeated++) {
      o.is_delayed_only = false;
      run_once(&o, num_chunks, is_mixed);
      o.is_delayed_only = true;
      run_once(&o, num_chunks, is_mixed);
    }
  }
}

static void any_late_copy_is_harmless(void **state) {
  (void)state;
  sweep(repeat_each, 2);
}

/* A full queue drops a segmented send at once. */
static void bursts_of_loss_are_repaired(void **state) {
  (void)state;
  static const uint32_t num_chunks[] = {50, 40};
  struct world_options o = QUIET;
  o.world_size = 3;
  o.num_slots = 16;
  o.num_operations = 2;
  const uint64_t num_sent = run_once(&o, num_chunks, true);
  for (o.burst = 2; o.burst <= 64; o.burst *= 2)
    for (o.lost[0] = 0; o.lost[0] < num_sent; o.lost[0] += 3) run_once(&o, num_chunks, true);
}

/* ---- anything at all ---- */

static uint32_t draw_operations(struct sml_prng *prng, uint32_t *num_chunks, uint32_t max_chunks) {
  const uint32_t num_operations = 1 + (uint32_t)sml_prng_below(prng, MAX_OPERATIONS);
  for (uint32_t i = 0; i < num_operations; i++)
    num_chunks[i] = 1 + (uint32_t)sml_prng_below(prng, 1 + sml_prng_below(prng, max_chunks));
  return num_operations;
}

static void draw_submit_times(struct world *x, uint64_t max_gap_ns) {
  for (uint32_t rank = 0; rank < x->options.world_size; rank++)
    for (uint32_t i = 0; i < x->options.num_operations; i++) {
      const uint64_t gap_ns = sml_prng_below(&x->prng, 1 + sml_prng_below(&x->prng, max_gap_ns));
      works[rank][i].submit_ns = (i == 0 ? 0 : works[rank][i - 1].submit_ns) + gap_ns;
    }
}

static void random_worlds_complete(void **state) {
  (void)state;
  uint64_t num_drops[SML_NUM_DROPS] = {0};
  for (uint64_t seed = 1; seed <= (SML_IS_SLOW_BUILD ? 60 : 120); seed++) {
    struct sml_prng prng = {.state = seed};
    uint32_t num_chunks[MAX_OPERATIONS];
    struct world_options o = QUIET;
    o.seed = seed;
    o.world_size = 2 + (uint32_t)sml_prng_below(&prng, 8);
    o.num_slots = 1u << sml_prng_below(&prng, 6);
    o.ring = 1u << sml_prng_below(&prng, 5);
    o.chunk_bytes = 8u << sml_prng_below(&prng, 3);
    o.num_operations = draw_operations(&prng, num_chunks, 4 * o.num_slots + 20);
    o.loss = 0.3 * (double)sml_prng_below(&prng, 4) / 3;
    o.duplicate = 0.5 * (double)sml_prng_below(&prng, 3) / 2;
    o.delay = 0.2 * (double)sml_prng_below(&prng, 3) / 2;
    o.max_delay_ns = SML_NS_PER_MS << sml_prng_below(&prng, 8);
    o.hop_jitter_ns = HOP_NS * sml_prng_below(&prng, 5);
    o.forge = seed % 2 == 0 ? 0.2 : 0;
    o.faults_end_ns = seed % 3 == 0 ? 50 * SML_NS_PER_MS : SML_NEVER;
    o.first_chunk = seed % 4 == 0 ? UINT32_MAX - (uint32_t)sml_prng_below(&prng, 300) : 0;
    struct world *x = make_world(&o, num_chunks, seed % 5 != 0);
    draw_submit_times(x, 2 * SML_NS_PER_MS);
    run_world(x, 200 * SML_NS_PER_S);
    for (size_t i = 0; i < SML_NUM_DROPS; i++) num_drops[i] += x->num_drops[i];
    free_world(x);
  }
  /* The worlds were as bad as they were meant to be. */
  static const enum sml_drop expected[] = {SML_DROP_STALE_PHASE,  SML_DROP_DUPLICATE, SML_DROP_FUTURE_PHASE,
                                           SML_DROP_TAG_MISMATCH, SML_DROP_BAD_SLOT,  SML_DROP_BAD_TYPE,
                                           SML_DROP_BAD_LENGTH};
  for (size_t i = 0; i < SML_ARRAY_LEN(expected); i++) assert_true(num_drops[expected[i]] > 100);
}

/* ---- time and effort ---- */

struct effort {
  uint64_t chunks, retransmissions, probes, end_ns, num_sent, max_srtt_ns;
};

static struct effort measure(const struct world_options *o, const uint32_t *num_chunks, uint64_t late_ns) {
  struct world *x = make_world(o, num_chunks, true);
  for (uint32_t i = 0; i < o->num_operations; i++) works[0][i].submit_ns = late_ns;
  run_world(x, 1000 * SML_NS_PER_S);
  struct effort e = {.end_ns = x->now_ns, .num_sent = x->num_sent};
  for (uint32_t rank = 0; rank < o->world_size; rank++) {
    struct sml_worker_view view;
    sml_worker_view(x->workers[rank], &view);
    e.chunks += view.chunks_completed;
    e.retransmissions += view.retransmissions;
    e.probes += view.probes;
    e.max_srtt_ns = sml_max_u64(e.max_srtt_ns, view.srtt_ns);
  }
  free_world(x);
  return e;
}

static const uint32_t LONG_OPERATIONS[MAX_OPERATIONS] = {400, 500, 1,   600, 300, 20, 550, 7,
                                                         600, 600, 500, 600, 400, 500, 1, 600,
                                                         300, 20,  550, 64,  600, 600, 500, 600};

static void repair_is_cheap(void **state) {
  (void)state;
  struct world_options o = QUIET;
  o.world_size = 4;
  o.num_slots = 32;
  o.chunk_bytes = 64;
  o.num_operations = MAX_OPERATIONS;
  o.faults_end_ns = SML_NEVER;
  o.hop_jitter_ns = HOP_NS / 2;
  const struct effort quiet = measure(&o, LONG_OPERATIONS, 0);
  assert_int_equal(quiet.retransmissions, 0);
  assert_int_equal(quiet.probes, 0);
  assert_int_equal(quiet.num_sent, 2 * quiet.chunks);
  static const struct {
    double loss, times; /* at most so many times as long as without */
  } cases[] = {{0.01, 2}, {0.1, 15}, {0.2, 90}};
  for (size_t i = 0; i < SML_ARRAY_LEN(cases); i++) {
    o.loss = cases[i].loss;
    const struct effort e = measure(&o, LONG_OPERATIONS, 0);
    const double chunks = (double)e.chunks, times = (double)e.end_ns / (double)quiet.end_ns;
    print_message("# loss %.2f: %.2f x the time, %.4f retransmissions and %.4f probes a chunk\n", o.loss,
                  times, (double)e.retransmissions / chunks, (double)e.probes / chunks);
    /* Data goes again only if it was lost: p of the updates, and p of those again. */
    assert_true((double)e.retransmissions < chunks * o.loss * 1.4);
    assert_true((double)e.probes < chunks * o.loss * 12);
    /* Repairs are not taken for the length of the path, or each would make the next one slower. The filter
     * is one smoothed round trip wide, so with an open window some pass: 20 and more at 20 % of loss, by the seed. */
    assert_true(e.max_srtt_ns < 40 * 2 * HOP_NS);
    assert_true(times < cases[i].times);
  }
}

/* Nobody asks for data or floods while a rank has not called yet. */
static void a_late_rank_costs_little(void **state) {
  (void)state;
  static const uint32_t num_chunks[] = {200, 100};
  struct world_options o = QUIET;
  o.world_size = 3;
  o.num_slots = 64;
  o.chunk_bytes = 64;
  o.num_operations = 2;
  const struct effort e = measure(&o, num_chunks, 10 * SML_NS_PER_S);
  assert_int_equal(e.retransmissions, 0);
  /* Two ranks, 64 slots, every 200 ms at the end. */
  assert_true(e.probes < 2 * 64 * (10 * 5 + 8));
  assert_true(e.end_ns < 11 * SML_NS_PER_S);
}

/* After the faults, the end comes within a few timeouts. */
static void liveness_after_total_loss(void **state) {
  (void)state;
  static const uint32_t num_chunks[] = {30, 50, 1};
  for (uint64_t seed = 1; seed <= 20; seed++) {
    struct world_options o = QUIET;
    o.world_size = 3;
    o.num_slots = 8;
    o.num_operations = 3;
    o.seed = seed;
    o.faults_end_ns = 5 * SML_NS_PER_S;
    o.loss = seed % 2 == 0 ? 1 : 0.9;
    const struct effort e = measure(&o, num_chunks, 0);
    assert_true(e.end_ns < o.faults_end_ns + SML_NS_PER_S);
  }
}

static void numbers_wrap_or_end(void **state) {
  (void)state;
  static const uint32_t num_chunks[] = {20, 31, 5};
  for (uint32_t back = 0; back < 70; back++) {
    struct world_options o = QUIET;
    o.world_size = 2;
    o.num_slots = 4;
    o.num_operations = 3;
    o.first_chunk = UINT32_MAX - back;
    o.loss = 0.1;
    o.faults_end_ns = SML_NEVER;
    run_once(&o, num_chunks, true);
    o.first_chunk = 0;
    o.first_phase = UINT32_MAX - 201 + 2 * (back % 30); /* 72 chunks of stream fit even a single slot */
    run_once(&o, num_chunks, true);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(any_single_loss_is_repaired),
      cmocka_unit_test(any_two_losses_are_repaired),
      cmocka_unit_test(any_late_copy_is_harmless),
      cmocka_unit_test(bursts_of_loss_are_repaired),
      cmocka_unit_test(random_worlds_complete),
      cmocka_unit_test(repair_is_cheap),
      cmocka_unit_test(a_late_rank_costs_little),
      cmocka_unit_test(liveness_after_total_loss),
      cmocka_unit_test(numbers_wrap_or_end),
  };
  return cmocka_run_group_tests_name("worker_world", tests, NULL, NULL);
}
