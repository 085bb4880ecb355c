/* SPDX-License-Identifier: Apache-2.0
 * Leases, departures, aborts, strangers; at last everything at random. */
#include "ctl/test_registry_world.h"

/* --- leases and departures --- */

static void test_heartbeats_every_quarter_lease(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 2);
  uint64_t start_ns = w.now_ns;
  for (uint32_t beat = 1; beat <= 20; beat++) {
    tick();
    EXPECT("c1<HEARTBEAT; c0<HEARTBEAT; ");
    assert_int_equal(w.now_ns - start_ns, beat * LEASE_NS / 4);
    heartbeat(0);
    heartbeat(1);
    EXPECT("");
  }
}

static void test_silence_is_loss(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 3);
  uint64_t start_ns = w.now_ns;
  while (w.now_ns < start_ns + LEASE_NS) {
    heartbeat(0);
    heartbeat(2);
    tick();
  }
  if (strstr(w.line, "HEARTBEAT")) tick();
  EXPECT("c1<ABORT -11; depart j0 r1; c2<GONE r1; c0<GONE r1; c1 close; ");
  assert_int_equal(w.now_ns, start_ns + LEASE_NS);
  expect_detail(0, "rank 1 (10.0.0.1) was lost: silent for longer than its lease of 2000 ms");
  assert_int_equal(w.last[0].u.rank_gone.status, SML_ERR_RANK_LOST);
}

/* The daemon was stopped for ten leases, or the machine was, with the ranks on it. */
static void test_own_absence_is_not_silence(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 2);
  const uint64_t due_ns = sml_registry_next_deadline(w.r);
  w.now_ns += 10 * LEASE_NS;
  sml_registry_forgive(w.r, w.now_ns - due_ns, w.now_ns);
  tick();
  EXPECT("c1<HEARTBEAT; c0<HEARTBEAT; ");
  const uint64_t again_ns = w.now_ns;
  do { /* rank 1's silence counts on from where it was */
    heartbeat(0);
    tick();
  } while (strstr(w.line, "HEARTBEAT"));
  EXPECT("c1<ABORT -11; depart j0 r1; c0<GONE r1; c1 close; ");
  assert_true(w.now_ns <= again_ns + LEASE_NS);
}

static void test_departure_sentences(void **state) {
  (void)state;
  static const struct {
    enum sml_close_cause cause;
    const char *detail;
  } rows[] = {
      {SML_CLOSED_FIN, "rank 1 (10.0.0.1) was lost: connection closed without goodbye"},
      {SML_CLOSED_RESET, "rank 1 (10.0.0.1) was lost: connection reset without goodbye"},
      {SML_CLOSED_SLOW, "rank 1 (10.0.0.1) was lost: it does not read its control connection"},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    begin();
    start_world("x", 0, 2);
    closed(1, rows[i].cause);
    EXPECT("depart j0 r1; c0<GONE r1; ");
    expect_detail(0, rows[i].detail);
  }
}

static void test_goodbyes_end_the_job(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 2);
  goodbye(1);
  EXPECT("depart j0 r1; c0<GONE r1; c1 close; ");
  expect_detail(0, "rank 1 (10.0.0.1) left the job");
  goodbye(0);
  EXPECT("end j0; c0 close; ");
  expect_all_free();
  start_world("x", 0, 2); /* name, number, slots are free; the epoch is new */
  EXPECT("start j0 e101; c1<START e101; c0<START e101; ");
}

static void test_blocked_aborts_and_names_the_rank(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 4);
  closed(2, SML_CLOSED_FIN);
  goodbye(3);
  sml_registry_on_blocked(w.r, 0, epoch_of(99), 2); /* an event of another epoch */
  take_effects();
  EXPECT("");
  sml_registry_on_blocked(w.r, 7, epoch_of(100), 2); /* of no job */
  take_effects();
  EXPECT("");
  sml_registry_on_blocked(w.r, 0, epoch_of(100), 2);
  take_effects();
  EXPECT("c1<ABORT -11; c1 close; c0<ABORT -11; c0 close; end j0; ");
  expect_detail(0, "rank 2 (10.0.0.2) was lost: connection closed without goodbye");
  assert_int_equal(w.last[0].u.abort.num_ranks, 1);
  assert_int_equal(w.last[0].u.abort.ranks[0], 2);
  sml_registry_on_blocked(w.r, 0, epoch_of(100), 3); /* the other lane's report comes late */
  take_effects();
  EXPECT("");
  expect_all_free();
}

static void test_blocked_by_one_who_left(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 2);
  goodbye(0);
  sml_registry_on_blocked(w.r, 0, epoch_of(100), 0);
  take_effects();
  EXPECT("c1<ABORT -11; c1 close; end j0; ");
  expect_detail(1, "rank 0 (10.0.0.0) left the job");
}

static void test_blocked_by_the_20th_departure(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 30);
  for (uint32_t c = 0; c < 20; c++) closed(c, SML_CLOSED_FIN);
  sml_registry_on_blocked(w.r, 0, epoch_of(100), 19);
  take_effects();
  expect_detail(25, "rank 19 has left or was lost");
}

static void test_mismatch_names_both(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 3);
  sml_registry_on_mismatch(w.r, 0, epoch_of(100), 2, 0);
  take_effects();
  EXPECT("c2<ABORT -13; c2 close; c1<ABORT -13; c1 close; c0<ABORT -13; c0 close; end j0; ");
  expect_detail(1,
                "ranks 0 and 2 called different operations: every rank must call the same operations in the same "
                "order, with the same sizes, types, reductions and keys");
  assert_int_equal(w.last[1].u.abort.num_ranks, 2);
  assert_int_equal(w.last[1].u.abort.ranks[1], 2);
  expect_all_free();
}

static void called(uint32_t conn, uint64_t number, uint64_t hash) {
  said(conn, &(struct sml_ctl_message){
                 .kind = SML_CTL_HEARTBEAT,
                 .u.heartbeat = {.operations_submitted = number + 1, .operations_completed = number, .called = hash}});
}

/* Rule R223: only two hashes of the same operation differ. */
static void test_heartbeats_show_different_operations(void **state) {
  (void)state;
  static const struct {
    uint32_t conn;
    uint64_t number, hash;
  } alike[] = {{0, 0, 70}, {1, 0, 70}, {2, 0, 0}, {1, 1, 71}, {0, 0, 69}, {2, 2, 0}, {0, 2, 72}, {2, 2, 72}};
  begin();
  start_world("x", 0, 3);
  for (size_t i = 0; i < SML_ARRAY_LEN(alike); i++) {
    called(alike[i].conn, alike[i].number, alike[i].hash);
    EXPECT("");
  }
  called(1, 2, 73);
  EXPECT("c2<ABORT -13; c2 close; c1<ABORT -13; c1 close; c0<ABORT -13; c0 close; end j0; ");
  expect_detail(2,
                "ranks 0 and 1 called different operations: every rank must call the same operations in the same "
                "order, with the same sizes, types, reductions and keys");
  expect_all_free();
}

static void test_heartbeats_before_the_start_compare_nothing(void **state) {
  (void)state;
  begin();
  opened(0);
  opened(1);
  join(0, "x", 0, 2);
  join(1, "x", 1, 2);
  called(0, 0, 70);
  called(1, 0, 71);
  EXPECT("");
}

static void test_jump_is_a_protocol_error(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 2);
  sml_registry_on_jump(w.r, 0, epoch_of(100), 1);
  take_effects();
  EXPECT("c1<ABORT -17; c1 close; c0<ABORT -17; c0 close; end j0; ");
  assert_int_equal(w.last[0].u.abort.ranks[0], 1);
}

static void test_engine_without_memory(void **state) {
  (void)state;
  begin();
  opened(0);
  join(0, "x", 0, 2);
  sml_registry_on_job_failed(w.r, 0, epoch_of(100), NULL);
  take_effects();
  EXPECT("c0<REFUSE -3; c0 close; end j0; ");
  start_world("x", 0, 2);
  sml_registry_on_job_failed(w.r, 0, epoch_of(101), NULL);
  take_effects();
  EXPECT("c1<ABORT -3; c1 close; c0<ABORT -3; c0 close; end j0; ");
  sml_registry_on_job_failed(w.r, 0, epoch_of(101), NULL);
  take_effects();
  EXPECT("");
}

static void test_abort_by_a_member(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 3);
  struct sml_ctl_message m = {.kind = SML_CTL_ABORT};
  m.u.abort.status = SML_ERR_ABORTED;
  strcpy(m.u.abort.detail, "loss is NaN");
  said(1, &m);
  EXPECT("c2<ABORT -14; c2 close; c1 close; c0<ABORT -14; c0 close; end j0; ");
  expect_detail(0, "rank 1 (10.0.0.1) aborted the job: loss is NaN");
  assert_int_equal(w.last[0].u.abort.ranks[0], 1);

  start_world("x", 0, 3); /* ranks named by the sender pass, those that can't be don't; a long reason is cut */
  m.u.abort.status = SML_ERR_TIMEOUT;
  m.u.abort.num_ranks = 2;
  m.u.abort.ranks[0] = 2;
  m.u.abort.ranks[1] = 3;
  memset(m.u.abort.detail, 'y', SML_DETAIL_BYTES - 1);
  said(1, &m);
  assert_int_equal(w.last[0].u.abort.num_ranks, 1);
  assert_int_equal(w.last[0].u.abort.ranks[0], 2);
  assert_true(strlen(w.last[0].u.abort.detail) > 200);
  expect_all_free();
}

/* Heard RANK_GONE, had an operation outstanding, gives up: the others are told of the cause. */
static void test_abort_for_a_lost_rank_repeats_the_cause(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 3);
  closed(2, SML_CLOSED_FIN);
  struct sml_ctl_message m = {.kind = SML_CTL_ABORT};
  m.u.abort = (struct sml_ctl_abort){.status = SML_ERR_RANK_LOST, .num_ranks = 1, .ranks = {2}, .detail = "so I heard"};
  said(0, &m);
  EXPECT("c1<ABORT -11; c1 close; c0 close; end j0; ");
  expect_detail(1, "rank 2 (10.0.0.2) was lost: connection closed without goodbye");
  assert_int_equal(w.last[1].u.abort.ranks[0], 2);
}

static void test_abort_while_joining_refuses_the_others(void **state) {
  (void)state;
  begin();
  for (uint32_t c = 0; c < 2; c++) {
    opened(c);
    join(c, "x", c, 3);
  }
  struct sml_ctl_message m = {.kind = SML_CTL_ABORT};
  m.u.abort.status = SML_ERR_MTU;
  said(0, &m);
  EXPECT("c1<REFUSE -9; c1 close; c0 close; end j0; ");
  expect_detail(1, "rank 0 (10.0.0.0) aborted the job: no reason given");
}

/* --- strangers and rule breakers --- */

static void test_unjoined_connections_are_closed(void **state) {
  (void)state;
  begin();
  opened(0);
  w.now_ns += 3 * S;
  opened(1);
  tick();
  EXPECT("c0 close; ");
  assert_int_equal(w.now_ns, 1005 * S);
  tick();
  EXPECT("c1 close; ");
  assert_int_equal(w.now_ns, 1008 * S);
  assert_true(sml_registry_next_deadline(w.r) == SML_NEVER);
}

static void test_unjoined_cap_per_host(void **state) {
  (void)state;
  begin();
  for (uint32_t c = 0; c < 8; c++) {
    opened_from(c, "10.0.0.9:5");
    EXPECT("");
  }
  opened_from(8, "10.0.0.9:77");
  EXPECT("c0 close; "); /* the oldest: ranks join at once */
  opened_from(0, "10.0.0.90:77");
  EXPECT("");
  opened_from(9, "[fe80::1]:77");
  EXPECT("");
  join(1, "x", 0, 2); /* a member no longer counts */
  opened_from(10, "10.0.0.9:78");
  EXPECT("");
}

static void test_messages_out_of_place(void **state) {
  (void)state;
  for (int kind = SML_CTL_WELCOME; kind <= SML_CTL_LAST_KIND; kind++) {
    struct sml_ctl_message m = {.kind = (enum sml_ctl_kind)kind};
    begin();
    opened(0);
    said(0, &m);                /* before JOIN */
    if (kind == SML_CTL_STATUS) /* registry_look_test.c */
      EXPECT(is_keyed ? "c0<REFUSE -19; c0 close; " : "c0 show '' from 0; ");
    else if (kind == SML_CTL_GOODBYE) EXPECT("c0 close; ");
    else if (kind == SML_CTL_EVICT) /* registry_evict_test.c */
      EXPECT(is_keyed ? "c0<REFUSE -19; c0 close; " : "c0<REFUSE -7; c0 close; ");
    else EXPECT("c0<REFUSE -17; c0 close; ");
  }
  static const enum sml_ctl_kind wrong[] = {SML_CTL_JOIN,  SML_CTL_WELCOME,   SML_CTL_PROBED,
                                            SML_CTL_START, SML_CTL_RANK_GONE, SML_CTL_REFUSE,
                                            SML_CTL_EPOCH, SML_CTL_CHALLENGE, SML_CTL_AUTH};
  for (size_t i = 0; i < SML_ARRAY_LEN(wrong); i++) { /* in a started job; EPOCH 0 is not its epoch */
    struct sml_ctl_message m = {.kind = wrong[i]};
    begin();
    start_world("x", 0, 2);
    said(0, &m);
    EXPECT("c0<ABORT -17; depart j0 r0; c1<GONE r0; c0 close; ");
  }
  begin();
  opened(0);
  join(0, "x", 0, 2);
  want_epoch(0, 100);
  EXPECT("c0<REFUSE -17; end j0; c0 close; ");
  begin();
  opened(0);
  join(0, "x", 0, 2);
  probed(0, 8960);
  probed(0, 8960);
  EXPECT("c0<REFUSE -17; end j0; c0 close; ");
  begin();
  start_world("x", 0, 2);
  want_epoch(0, 100);
  want_epoch(0, 100);
  assert_non_null(strstr(w.line, "c0<ABORT -17; "));
}

static void test_garbage_and_other_versions(void **state) {
  (void)state;
  begin();
  opened(0);
  garbage(0, SML_CTL_BAD_MAGIC);
  EXPECT("c0 close; ");
  opened(0);
  garbage(0, SML_CTL_MALFORMED);
  EXPECT("c0 close; ");
  opened(0);
  garbage(0, SML_CTL_BAD_VERSION);
  EXPECT("c0<REFUSE -8; c0 close; ");
  start_world("x", 0, 2);
  garbage(1, SML_CTL_BAD_MAGIC);
  EXPECT("c1<ABORT -17; depart j0 r1; c0<GONE r1; c1 close; ");
}

static void test_closed_connections_are_silent(void **state) {
  (void)state;
  begin();
  join(5, "x", 0, 2); /* never opened: a message that was under way when it was closed */
  EXPECT("");
  garbage(5, SML_CTL_BAD_MAGIC);
  EXPECT("");
  sml_registry_on_closed(w.r, 5, SML_CLOSED_FIN);
  take_effects();
  EXPECT("");
}

static void test_stop_tells_everybody(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 2);
  opened(2);
  join(2, "y", 0, 2);
  opened(3);
  start_world("z", 4, 2);
  sml_registry_on_stop(w.r);
  take_effects();
  EXPECT(
      "c1<ABORT -12; c1 close; c0<ABORT -12; c0 close; end j0; c2<REFUSE -12; c2 close; end j1; "
      "c5<ABORT -12; c5 close; c4<ABORT -12; c4 close; end j2; c3 close; ");
  expect_detail(0, "the aggregator is shutting down");
  expect_all_free();
}

static void test_as_many_jobs_as_connections(void **state) {
  (void)state;
  begin();
  for (uint32_t c = 0; c < MAX_CONNS; c++) {
    char name[16];
    snprintf(name, sizeof name, "n%u", c);
    opened(c);
    join(c, name, 0, 2);
    assert_non_null(strstr(w.line, "WELCOME"));
  }
  sml_registry_on_stop(w.r);
  take_effects();
  expect_all_free();
}

/* --- everything at random: the model in take_effects() checks each effect --- */

/* Events of the engines, which end jobs: drawn rarely, or none would live to start. */
static void random_engine_event(struct sml_prng *prng) {
  uint16_t number = (uint16_t)sml_prng_below(prng, 6);
  uint32_t epoch = w.jobs[number].epoch;
  switch (sml_prng_below(prng, 4)) {
    case 0: sml_registry_on_blocked(w.r, number, epoch, 0); break;
    case 1: sml_registry_on_mismatch(w.r, number, epoch, 0, 1); break;
    case 2: sml_registry_on_jump(w.r, number, epoch, 1); break;
    default: sml_registry_on_job_failed(w.r, number, epoch, NULL);
  }
  take_effects();
}

static void random_step(struct sml_prng *prng) {
  uint32_t conn = (uint32_t)sml_prng_below(prng, MAX_CONNS), dice = (uint32_t)sml_prng_below(prng, 1000);
  w.now_ns += sml_prng_below(prng, 5 * MS);
  if (sml_registry_next_deadline(w.r) <= w.now_ns) {
    sml_registry_on_timer(w.r, w.now_ns);
    take_effects();
  } else if (!w.is_open[conn]) {
    opened(conn);
  } else if (dice < 5) {
    closed(conn, (enum sml_close_cause)(dice % 3));
  } else if (dice < 10) {
    goodbye(conn);
  } else if (dice < 14) {
    random_engine_event(prng);
  } else if (dice < 18) {
    garbage(conn, (enum sml_ctl_decode)(SML_CTL_BAD_MAGIC + dice % 4));
  } else if (dice < 22) {
    struct sml_ctl_message m = {.kind = (enum sml_ctl_kind)(1 + sml_prng_below(prng, SML_CTL_LAST_KIND))};
    if (m.kind == SML_CTL_ABORT) m.u.abort.status = SML_ERR_ABORTED;
    if (m.kind != SML_CTL_JOIN) said(conn, &m);
  } else if (dice < 100 && w.last[conn].kind == SML_CTL_START) {
    want_epoch(conn, w.last[conn].u.start.epoch);
    if (w.is_open[conn] && w.last[conn].kind == SML_CTL_START) w.last[conn].kind = SML_CTL_HEARTBEAT;
  } else if (w.last[conn].kind == SML_CTL_WELCOME) {
    probed(conn, 1400 + (uint32_t)sml_prng_below(prng, 100));
    if (w.last[conn].kind == SML_CTL_WELCOME) w.last[conn].kind = SML_CTL_HEARTBEAT;
  } else if (w.last[conn].kind == 0) {
    char name[8];
    snprintf(name, sizeof name, "job%u", (uint32_t)sml_prng_below(prng, 4));
    join(conn, name, (uint32_t)sml_prng_below(prng, 3), sml_prng_chance(prng, 0.01) ? 5 : 3);
  } else {
    heartbeat(conn);
  }
}

static void test_random_life(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= (SML_IS_SLOW_BUILD ? 6 : 20); seed++) {
    struct sml_prng prng = {.state = seed};
    struct sml_registry_options options = defaults();
    options.max_unjoined_per_host = MAX_CONNS;
    options.max_jobs = 2;
    begin_with(options);
    uint32_t num_starts = 0, num_epochs = 0;
    for (uint32_t step = 0; step < 30000; step++) {
      random_step(&prng);
      num_starts += strstr(w.line, "start j") != NULL && strstr(w.notes, "lanes=");
      num_epochs += strstr(w.line, "start j") != NULL && !strstr(w.notes, "lanes=");
    }
    assert_true(num_starts > 20 && num_epochs > 5);
    sml_registry_on_stop(w.r);
    take_effects();
    expect_all_free();
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BOTH(test_heartbeats_every_quarter_lease),
      BOTH(test_silence_is_loss),
      BOTH(test_own_absence_is_not_silence),
      BOTH(test_departure_sentences),
      BOTH(test_goodbyes_end_the_job),
      BOTH(test_blocked_aborts_and_names_the_rank),
      BOTH(test_blocked_by_one_who_left),
      BOTH(test_blocked_by_the_20th_departure),
      BOTH(test_mismatch_names_both),
      BOTH(test_heartbeats_show_different_operations),
      BOTH(test_heartbeats_before_the_start_compare_nothing),
      BOTH(test_jump_is_a_protocol_error),
      BOTH(test_engine_without_memory),
      BOTH(test_abort_by_a_member),
      BOTH(test_abort_for_a_lost_rank_repeats_the_cause),
      BOTH(test_abort_while_joining_refuses_the_others),
      BOTH(test_unjoined_connections_are_closed),
      BOTH(test_unjoined_cap_per_host),
      BOTH(test_messages_out_of_place),
      BOTH(test_garbage_and_other_versions),
      BOTH(test_closed_connections_are_silent),
      BOTH(test_stop_tells_everybody),
      BOTH(test_as_many_jobs_as_connections),
      BOTH(test_random_life),
  };
  return cmocka_run_group_tests(tests, NULL, end_world);
}
