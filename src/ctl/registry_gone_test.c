/* SPDX-License-Identifier: Apache-2.0
 * Who hears of ranks that go, and how much that costs: counted, in virtual time, up to the largest world. */
#include "ctl/test_registry_world.h"

static void test_the_first_loss_at_once_others_together(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 6);
  closed(4, SML_CLOSED_FIN);
  EXPECT("depart j0 r4; c5<GONE r4; c3<GONE r4; c2<GONE r4; c1<GONE r4; c0<GONE r4; ");
  expect_detail(0, "rank 4 (10.0.0.4) was lost: connection closed without goodbye");
  closed(3, SML_CLOSED_RESET);
  EXPECT("");
  goodbye(1);
  EXPECT("c1 close; ");
  closed(5, SML_CLOSED_FIN);
  EXPECT("");
  tick(); /* what has gone last stands no further than the text: who is it about comes first */
  EXPECT("depart j0 r1 r3 r5; c2<GONE r3 r1 r5; c0<GONE r3 r1 r5; ");
  expect_detail(2, "rank 3 (10.0.0.3) was lost: connection reset without goodbye, and 2 more are gone");
  w.now_ns += S;
  heartbeat(0);
  goodbye(2);
  EXPECT("depart j0 r2; c0<GONE r2; c2 close; ");
  goodbye(0);
  EXPECT("end j0; c0 close; ");
  expect_all_free();
}

static void test_a_job_that_ends_has_nothing_to_tell(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 4);
  closed(3, SML_CLOSED_FIN);
  closed(2, SML_CLOSED_FIN);
  want_epoch(0, 100);
  EXPECT("c1<ABORT -11; c1 close; c0<ABORT -11; c0 close; end j0; ");
  expect_all_free();
  assert_int_equal(sml_registry_next_deadline(w.r), SML_NEVER);
}

/* --- large worlds: an owner that only counts --- */

static struct {
  uint64_t num_sends, num_gone, num_effects, most_effects;
  uint32_t num_named, num_departs;
  bool is_started;
} counted;

static void count_effects_of(struct sml_registry *r, uint32_t witness) {
  const struct sml_effect *e;
  uint64_t num_effects = 0;
  for (; (e = sml_registry_next_effect(r)); num_effects++) {
    counted.is_started = counted.is_started || e->kind == SML_EFFECT_START_JOB;
    counted.num_departs += e->kind == SML_EFFECT_DEPART;
    if (e->kind != SML_EFFECT_SEND) continue;
    counted.num_sends++;
    const bool is_gone = e->message->kind == SML_CTL_RANK_GONE;
    counted.num_gone += is_gone;
    if (is_gone && e->conn == witness) counted.num_named += e->message->u.rank_gone.num_ranks;
  }
  counted.num_effects += num_effects;
  if (num_effects > counted.most_effects) counted.most_effects = num_effects;
}

static void run_timers(struct sml_registry *r, uint64_t now_ns, uint32_t witness) {
  while (sml_registry_next_deadline(r) <= now_ns) {
    sml_registry_on_timer(r, now_ns);
    count_effects_of(r, witness);
  }
}

static struct sml_registry *start_large(uint32_t world_size, uint64_t *now_ns) {
  struct sml_registry_options options = defaults();
  static struct sml_prng prng;
  prng.state = 7;
  options.max_connections = world_size;
  options.max_unjoined_per_host = world_size;
  options.random = draw;
  options.random_user = &prng;
  struct sml_registry *r = sml_registry_init(calloc(1, sml_registry_memsize(&options)), &options);
  memset(&counted, 0, sizeof counted);
  struct sml_ctl_message probed = {.kind = SML_CTL_PROBED, .u.probed.datagram_bytes = 8960};
  for (uint32_t rank = 0; rank < world_size; rank++) {
    struct sml_ctl_message m = join_message("x", rank, world_size);
    m.u.join.lease_ns = 100 * S;
    sml_registry_on_opened(r, rank, "10.0.0.1:1", *now_ns);
    count_effects_of(r, 0);
    sml_registry_on_message(r, rank, &m, *now_ns);
    count_effects_of(r, 0);
    sml_registry_on_message(r, rank, &probed, *now_ns);
    count_effects_of(r, 0);
  }
  assert_true(counted.is_started);
  memset(&counted, 0, sizeof counted);
  return r;
}

/* Half of the ranks go in one pass: as many messages as ranks remain, and not that squared. */
static void test_half_goes_at_once(void **state) {
  (void)state;
  static const uint32_t world_sizes[] = {300, 1000, SML_CTL_MAX_WORLD_SIZE};
  for (size_t i = 0; i < SML_ARRAY_LEN(world_sizes); i++) {
    const uint32_t n = world_sizes[i], witness = n - 1;
    uint64_t now_ns = 1000 * S;
    struct sml_registry *r = start_large(n, &now_ns);
    for (uint32_t rank = 0; rank < n / 2; rank++) {
      sml_registry_on_closed(r, rank, SML_CLOSED_RESET);
      count_effects_of(r, witness);
    }
    now_ns += S;
    run_timers(r, now_ns, witness);
    assert_int_equal(counted.num_named, n / 2);
    const uint64_t num_messages = 1 + sml_div_ceil(n / 2 - 1, SML_CTL_MAX_GONE);
    assert_in_range(counted.num_gone, num_messages * (n - n / 2), num_messages * n);
    assert_in_range(counted.num_departs, 1, 2); /* commands for the engines */
    assert_in_range(counted.num_effects, n, 6 * n);
    assert_null(sml_registry_find_violation(r));
    free(r);
  }
}

/* One after the other, a loss a millisecond: what the others are told stays a small share of the thread's time, a
 * send being some 10 us. */
static void test_half_goes_one_by_one(void **state) {
  (void)state;
  static const uint32_t world_sizes[] = {300, 1000, SML_CTL_MAX_WORLD_SIZE};
  for (size_t i = 0; i < SML_ARRAY_LEN(world_sizes); i++) {
    const uint32_t n = world_sizes[i], witness = n - 1;
    uint64_t now_ns = 1000 * S;
    struct sml_registry *r = start_large(n, &now_ns);
    for (uint32_t rank = 0; rank < n / 2; rank++) {
      now_ns += MS;
      run_timers(r, now_ns, witness);
      sml_registry_on_closed(r, rank, SML_CLOSED_RESET);
      count_effects_of(r, witness);
    }
    now_ns += S;
    run_timers(r, now_ns, witness);
    assert_int_equal(counted.num_named, n / 2);
    const uint64_t span_ms = n / 2;
    assert_in_range(counted.num_gone, n / 2, span_ms * MS / (40 * SML_NS_PER_US) + 2 * n);
    free(r);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BOTH(test_the_first_loss_at_once_others_together),
      BOTH(test_a_job_that_ends_has_nothing_to_tell),
      {"test_half_goes_at_once", test_half_goes_at_once, unkeyed_world, NULL, NULL},
      {"test_half_goes_one_by_one", test_half_goes_one_by_one, unkeyed_world, NULL, NULL},
  };
  return cmocka_run_group_tests(tests, NULL, end_world);
}
