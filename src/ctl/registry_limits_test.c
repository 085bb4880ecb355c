/* SPDX-License-Identifier: Apache-2.0
 * What one source, and one connection, may ask of the daemon. */
#include "ctl/registry_world.h"

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
  assert_true(sml_registry_on_crowded(w.r));
  take_effects();
  EXPECT("c1 close; ");
  assert_true(sml_registry_on_crowded(w.r));
  take_effects();
  EXPECT("c2 close; ");
  assert_false(sml_registry_on_crowded(w.r)); /* never a member */
  take_effects();
  EXPECT("");
}

static void test_full_job_table(void **state) {
  (void)state;
  begin();
  free(w.r);
  struct sml_registry_options options = w.options;
  options.max_connections = SML_REGISTRY_MAX_JOBS + 1;
  void *mem = calloc(1, sml_registry_memsize(&options));
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
    while ((e = sml_registry_next_effect(w.r))) {
      if (e->kind == SML_EFFECT_SEND) kind = (int)e->message->kind;
    }
    assert_int_equal(kind, c < SML_REGISTRY_MAX_JOBS ? SML_CTL_WELCOME : SML_CTL_REFUSE);
  }
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
  expect_detail(3, "host 10.0.0.1 has 3 connections to the aggregator, its limit: wait for a job to end, or raise it "
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
      {"test_full_job_table", test_full_job_table, unkeyed_world, NULL, NULL},
      BOTH(test_limit_is_noted_once_a_second),
      BOTH(test_joined_connections_of_a_host),
      BOTH(test_messages_of_a_connection),
  };
  return cmocka_run_group_tests(tests, NULL, end_world);
}
