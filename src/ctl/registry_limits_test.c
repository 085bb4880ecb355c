/* SPDX-License-Identifier: Apache-2.0
 * What one source, and one connection, may ask of the daemon. */
#include "ctl/test_registry_world.h"

/* Opens and closes; how many of num_tries were let in. */
static uint32_t count_let_in(const char *peer, uint32_t num_tries) {
  uint32_t num_let_in = 0;
  for (uint32_t i = 0; i < num_tries; i++) {
    opened_from(0, peer);
    if (!w.is_open[0]) continue;
    num_let_in++;
    closed(0, SML_CLOSED_FIN);
  }
  return num_let_in;
}

static void begin_limited(void) {
  struct sml_registry_options options = defaults();
  options.new_connections_per_s = 5;
  options.max_messages_per_s = 100;
  options.max_connections_per_host = 3;
  begin_with(options);
}

static void test_new_connections(void **state) {
  (void)state;
  begin_limited();
  assert_int_equal(count_let_in("10.0.0.1:1", 100), 20);
  assert_int_equal(count_let_in("10.0.0.2:1", 100), 20);
  assert_int_equal(count_let_in("[2001:db8::1]:1", 100), 20);
  assert_int_equal(count_let_in("[2001:db8::2]:1", 100), 0);
  assert_int_equal(count_let_in("127.0.0.1:1", 1000), 320);
  w.now_ns += S;
  assert_int_equal(count_let_in("10.0.0.1:2", 100), 5);
  struct sml_registry_counts counts;
  sml_registry_counts(w.r, &counts);
  assert_int_equal(counts.connections, 0);
  begin(); /* without the option there is no limit */
  assert_int_equal(count_let_in("10.0.0.1:1", 1000), 1000);
}

/* A network of one party is one host: addresses are not what it lacks. */
static void test_unjoined_of_an_ipv6_network(void **state) {
  (void)state;
  begin();
  for (uint32_t c = 0; c < 9; c++) {
    char peer[SML_PEER_BYTES];
    snprintf(peer, sizeof peer, "[2001:db8::%x]:1", c + 1);
    opened_from(c, peer);
    assert_string_equal(w.line, c < 8 ? "" : "c0 close; ");
  }
  opened_from(0, "[2001:db8:0:1::1]:1");
  EXPECT("");
}

static void test_who_waits_longest_makes_room(void **state) {
  (void)state;
  begin();
  for (uint32_t c = 0; c < 3; c++) {
    opened_from(c, "10.0.0.1:1");
    w.now_ns += S / 10;
  }
  join(0, "x", 0, 2);
  assert_true(sml_registry_on_full(w.r, w.now_ns));
  take_effects();
  EXPECT("c1 close; ");
  assert_true(sml_registry_on_full(w.r, w.now_ns));
  take_effects();
  EXPECT("c2 close; ");
  assert_false(sml_registry_on_full(w.r, w.now_ns)); /* never a member */
  take_effects();
  EXPECT("");
}

/* All places are taken by jobs that wait: they go one by one, first the busiest source's, none that may fill up. */
static void test_jobs_that_wait_make_room(void **state) {
  (void)state;
  begin();
  start_world("runs", 0, 2);
  opened_from(2, "10.0.0.9:1");
  join(2, "honest", 0, 2);
  w.now_ns += S;
  for (uint32_t c = 3; c < 8; c++) {
    char name[8];
    snprintf(name, sizeof name, "s%u", c);
    opened_from(c, "10.6.6.6:1");
    join(c, name, 0, 30);
    w.now_ns += S / 10;
  }
  w.now_ns += 4550 * MS;
  for (uint32_t i = 0; i < 3; i++) heartbeat(i);
  assert_true(sml_registry_on_full(w.r, w.now_ns)); /* s3 is the first to have had 5 s */
  take_effects();
  EXPECT("c3<REFUSE -7; c3 close; end j2; ");
  expect_detail(3,
                "the aggregator has no place left, and job 's3' has waited longest for 29 of its 30 ranks: start it "
                "again when they are there, or raise --max-connections at the aggregator");
  w.now_ns += S;
  opened_from(3, "10.6.6.6:1");
  join(3, "s4", 1, 30); /* has got a rank just now */
  assert_true(sml_registry_on_full(w.r, w.now_ns));
  take_effects();
  EXPECT("c5<REFUSE -7; c5 close; end j4; ");
  for (uint32_t i = 0; i < 2; i++) {
    assert_true(sml_registry_on_full(w.r, w.now_ns));
    take_effects();
  }
  assert_true(w.is_open[2] && w.is_open[3] && w.is_open[4] && !w.is_open[6] && !w.is_open[7]);
  assert_true(sml_registry_on_full(w.r, w.now_ns));
  take_effects();
  EXPECT("c2<REFUSE -7; c2 close; end j1; ");
  assert_false(sml_registry_on_full(w.r, w.now_ns)); /* what runs stays */
  take_effects();
  assert_true(w.is_open[0] && w.is_open[1]);
}

/* All of its ranks are there: it is about to start, however long they try their paths. */
static void test_complete_jobs_keep_their_room(void **state) {
  (void)state;
  begin();
  for (uint32_t rank = 0; rank < 2; rank++) {
    opened_from(rank, "10.6.6.6:1");
    join(rank, "complete", rank, 2);
  }
  for (uint32_t s = 0; s < 6; s++) {
    w.now_ns += S;
    for (uint32_t rank = 0; rank < 2; rank++) heartbeat(rank);
  }
  assert_false(sml_registry_on_full(w.r, w.now_ns));
  take_effects();
  assert_true(w.is_open[0] && w.is_open[1]);
}

/* Ranks of jobs that run do not count as waiting: whoever has many of them, and one job that waits, does not squat. */
static void test_who_works_does_not_wait(void **state) {
  (void)state;
  begin();
  for (uint32_t rank = 0; rank < 4; rank++) {
    opened_from(rank, "10.0.0.9:1");
    join(rank, "runs", rank, 4);
  }
  for (uint32_t rank = 0; rank < 4; rank++) probed(rank, 8960);
  opened_from(4, "10.0.0.9:1");
  join(4, "waits", 0, 2);
  for (uint32_t c = 5; c < 7; c++) {
    opened_from(c, "10.6.6.6:1");
    join(c, c == 5 ? "s5" : "s6", 0, 30);
  }
  for (uint32_t s = 0; s < 6; s++) {
    w.now_ns += S;
    for (uint32_t c = 0; c < 7; c++) heartbeat(c);
  }
  assert_true(sml_registry_on_full(w.r, w.now_ns));
  take_effects();
  EXPECT("c5<REFUSE -7; c5 close; end j2; ");
}

/* A rank that stays keeps a job of many for which engines have places. */
static void test_ranks_that_have_gone_count(void **state) {
  (void)state;
  struct sml_registry_options options = defaults();
  options.max_jobs = 8;
  begin_with(options);
  for (uint32_t j = 0; j < 4; j++) {
    char name[8];
    snprintf(name, sizeof name, "n%u", j);
    start_world(name, j, 20);
    for (uint32_t c = j + 1; c < j + 20; c++) goodbye(c);
  }
  for (uint32_t c = 10; c < 12; c++) {
    opened(c);
    join(c, "more", c - 10, 2);
  }
  for (uint32_t c = 10; c < 12; c++) probed(c, 8960);
  expect_detail(10,
                "the aggregator's jobs would have 82 ranks, gone ones included, and its limit is 80: end jobs "
                "whose ranks have gone, or raise --max-connections there");
  goodbye(0);
  start_world("more", 10, 2);
}

static void test_longest_lease_and_wait(void **state) {
  (void)state;
  struct sml_registry_options options = defaults();
  options.max_lease_ns = 10 * S;
  options.max_join_ns = 30 * S;
  begin_with(options);
  opened(0);
  struct sml_ctl_message m = join_message("x", 0, 2);
  m.u.join.lease_ns = 10 * S + 1;
  said(0, &m);
  expect_detail(0,
                "a lease of 10.0 s is longer than the aggregator's limit of 10.0 s: ask for a shorter one, or raise "
                "--max-lease there");
  opened(0);
  m.u.join.lease_ns = 10 * S;
  m.u.join.join_timeout_ns = 7 * 24 * 3600 * S;
  said(0, &m);
  assert_true(w.is_open[0]);
  opened(1);
  m = join_message("y", 0, 2);
  m.u.join.lease_ns = 10 * S;
  m.u.join.join_timeout_ns = 29 * S;
  said(1, &m);
  const uint64_t end_ns = w.now_ns + 30 * S;
  while (w.is_open[0] || w.is_open[1]) {
    for (uint32_t c = 0; c < 2; c++)
      if (w.is_open[c]) heartbeat(c);
    tick();
    assert_true(w.now_ns <= end_ns);
  }
  assert_int_equal(w.now_ns, end_ns);
  expect_detail(1, "rank 1 of 2 has not joined");
  expect_detail(0,
                "rank 1 of 2 has not joined within 30 s, the aggregator's limit: start all at once, or raise "
                "--max-join-time");
  expect_all_free();
}

static void test_full_job_table(void **state) {
  (void)state;
  begin();
  struct sml_registry_options options = w.options;
  options.max_connections = SML_REGISTRY_MAX_JOBS + 1;
  void *mem = take_zeros(sml_registry_memsize(&options));
  assert_non_null(mem);
  w.r = sml_registry_init(mem, &options);
  for (uint32_t c = 0; c <= SML_REGISTRY_MAX_JOBS; c++) {
    char name[16];
    snprintf(name, sizeof name, "n%u", c);
    struct sml_ctl_message m = join_message(name, 0, 2);
    const struct sml_effect *e;
    sml_registry_on_opened(w.r, c, "10.0.0.1:1", w.now_ns);
    while (sml_registry_next_effect(w.r)) continue;
    sml_registry_on_message(w.r, c, &m, w.now_ns);
    int kind = 0;
    while ((e = sml_registry_next_effect(w.r)))
      if (e->kind == SML_EFFECT_SEND) kind = (int)e->message->kind;
    assert_int_equal(kind, c < SML_REGISTRY_MAX_JOBS ? SML_CTL_WELCOME : SML_CTL_REFUSE);
  }
  expect_consistent();
  /* Later one of them makes room. What is noted of it has its own name, though another job has its place then. */
  struct sml_ctl_message m = join_message("late", 0, 2);
  const struct sml_effect *e;
  char notes[256] = "";
  w.now_ns += 5 * S;
  sml_registry_on_opened(w.r, SML_REGISTRY_MAX_JOBS, "10.0.0.1:1", w.now_ns);
  while (sml_registry_next_effect(w.r)) continue;
  sml_registry_on_message(w.r, SML_REGISTRY_MAX_JOBS, &m, w.now_ns);
  while ((e = sml_registry_next_effect(w.r)))
    if (e->kind == SML_EFFECT_NOTE) add(notes, sizeof notes, "%s %d; ", e->job_name, strstr(e->text, "n0") != NULL);
  assert_string_equal(notes, "n0 1; late 0; ");
  expect_consistent();
}

static void test_limit_is_noted_once_a_second(void **state) {
  (void)state;
  begin_limited();
  uint32_t num_notes = 0;
  for (uint32_t i = 0; i < 100; i++) {
    count_let_in("10.0.0.1:1", 1);
    num_notes += strstr(w.notes, "10.0.0.1 opens connections too fast, or joins with too few of them") != NULL;
  }
  assert_int_equal(num_notes, 1);
  w.now_ns += S;
  for (uint32_t i = 0; i < 100; i++) {
    count_let_in("10.0.0.1:1", 1);
    num_notes += w.notes[0] != 0;
  }
  assert_int_equal(num_notes, 2);
}

static void test_joined_connections_of_a_host(void **state) {
  (void)state;
  begin_limited();
  for (uint32_t c = 0; c < 4; c++) {
    opened_from(c, "10.0.0.1:9");
    join(c, "x", c, 5);
    if (c < 3) assert_non_null(strstr(w.line, "WELCOME"));
  }
  EXPECT("c3<REFUSE -7; c3 close; ");
  expect_detail(3,
                "host 10.0.0.1 has 3 connections to the aggregator, its limit: wait for a job to end, or raise it "
                "there");
  opened_from(3, "10.0.0.2:9");
  join(3, "x", 3, 5);
  assert_non_null(strstr(w.line, "WELCOME"));
  goodbye(0);
  opened_from(0, "10.0.0.1:9");
  join(0, "x", 0, 5);
  assert_non_null(strstr(w.line, "WELCOME"));
}

static void test_messages_of_a_connection(void **state) {
  (void)state;
  begin_limited();
  start_world("x", 0, 2);
  w.now_ns += S;
  for (uint32_t i = 0; i < 100; i++) {
    heartbeat(0);
    EXPECT("");
  }
  heartbeat(1);
  EXPECT("");
  heartbeat(0);
  EXPECT("c0<ABORT -17; depart j0 r0; c1<GONE r0; c0 close; ");
  expect_detail(1, "rank 0 (10.0.0.0) was lost: it sends more than 100 control messages a second");
  for (uint32_t i = 0; i < 1000; i++) { /* as many as it may, for long */
    w.now_ns += S / 100;
    if (sml_registry_next_deadline(w.r) <= w.now_ns) tick();
    heartbeat(1);
    assert_true(w.is_open[1]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BOTH(test_new_connections),
      BOTH(test_unjoined_of_an_ipv6_network),
      BOTH(test_who_waits_longest_makes_room),
      BOTH(test_jobs_that_wait_make_room),
      BOTH(test_complete_jobs_keep_their_room),
      BOTH(test_who_works_does_not_wait),
      BOTH(test_ranks_that_have_gone_count),
      BOTH(test_longest_lease_and_wait),
      {"test_full_job_table", test_full_job_table, unkeyed_world, NULL, NULL},
      BOTH(test_limit_is_noted_once_a_second),
      BOTH(test_joined_connections_of_a_host),
      BOTH(test_messages_of_a_connection),
  };
  return cmocka_run_group_tests(tests, NULL, end_world);
}
