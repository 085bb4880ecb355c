/* SPDX-License-Identifier: Apache-2.0
 * How ranks join, start, stay in touch, lose their aggregator and leave: their members and the daemon's registry, face
 * to face. */
#include "ctl/test_member_world.h"

static void start_ranks_with(uint32_t world_size, uint64_t lease_ns) {
  begin_world(world_size);
  for (uint32_t i = 0; i < world_size; i++) ranks[i].m.options.join.lease_ns = lease_ns;
  settle();
  expect_lines("started e100; ");
  forget_lines();
}

static void start_ranks(uint32_t world_size) {
  start_ranks_with(world_size, LEASE_NS);
}

static void test_ranks_join_start_and_leave(void **state) {
  (void)state;
  start_ranks(3);
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(ranks[i].m.state, SML_MEMBER_RUNNING);
    assert_int_equal(ranks[i].start.chunk_bytes + OVERHEAD_BYTES, 8960);
    ranks[i].progress.operations_completed = ranks[i].progress.operations_submitted = 5 + i;
  }
  wait_for(10 * S); /* heartbeats both ways: nobody is late */
  expect_lines("");
  assert_int_equal(w.heartbeat.operations_completed, 5);
  sml_member_leave(&ranks[1].m, w.now_ns);
  settle();
  assert_int_equal(ranks[1].m.state, SML_MEMBER_CLOSED);
  expect_line(0, "gone r1; ");
  expect_line(2, "gone r1; ");
  for (uint32_t i = 0; i < 3; i++) sml_member_leave(&ranks[i].m, w.now_ns);
  settle();
  for (uint32_t i = 0; i < 3; i++) assert_int_equal(ranks[i].m.state, SML_MEMBER_CLOSED);
  expect_all_free();
}

static void test_the_smallest_path_decides(void **state) {
  (void)state;
  begin_world(2);
  ranks[1].datagram_bytes = 1472;
  settle();
  expect_lines("started e100; ");
  for (uint32_t i = 0; i < 2; i++) assert_true(ranks[i].start.chunk_bytes + OVERHEAD_BYTES <= 1472);
}

/* An aggregator may start a little later than its ranks. */
static void test_attempts_until_somebody_listens(void **state) {
  (void)state;
  begin_world(2);
  is_down = true;
  wait_for(5 * S);
  expect_lines("");
  assert_in_range(ranks[0].num_connects, 30, 51); /* one each 100 ms */
  is_down = false;
  wait_for(S);
  expect_lines("started e100; ");
}

static void test_nobody_listens(void **state) {
  (void)state;
  begin_world(1);
  is_down = true;
  wait_for(61 * S);
  expect_line(0, "ended -6; ");
  expect_failure(0, SML_ERR_UNREACHABLE,
                 "no aggregator at 10.0.0.9:4242: Connection refused; is switchmld running there?");
}

static void test_no_answer_to_the_request(void **state) {
  (void)state;
  begin_world(1);
  ranks[0].is_cut_off = true;
  wait_for(10 * S);
  assert_in_range(ranks[0].num_connects, 3, 4); /* 3 s each */
  wait_for(51 * S);
  expect_failure(0, SML_ERR_UNREACHABLE, "no answer to the connection request");
}

static void test_somebody_listens_and_says_nothing(void **state) {
  (void)state;
  begin_world(1);
  is_deaf = true;
  wait_for(61 * S);
  expect_failure(0, SML_ERR_UNREACHABLE, "accepted the connection but did not answer");
}

/* The daemon knows who is missing; a rank whose daemon does not even say that ends a moment later by itself. */
static void test_a_rank_is_missing(void **state) {
  (void)state;
  for (uint32_t goes_silent = 0; goes_silent < 2; goes_silent++) {
    begin_world(3);
    ranks[1].is_stopped = true;
    settle();
    is_deaf = goes_silent;
    wait_for(62 * S);
    expect_line(0, "ended -10; ");
    expect_failure(0, SML_ERR_TIMEOUT, goes_silent ? "not all 3 ranks of job 'x' joined in time" : "rank 1");
  }
}

/* The aggregator may be at several addresses; at one of them is another service. */
static void test_addresses_are_tried_in_turn(void **state) {
  (void)state;
  begin_world(1);
  struct sml_member_options o = member_options(0, 1);
  o.num_addresses = 3;
  sml_member_init(&ranks[0].m, &o);
  for (uint32_t i = 0; i < 7; i++) {
    sml_member_on_attempt_due(&ranks[0].m, w.now_ns);
    const struct sml_member_effect *e = sml_member_next_effect(&ranks[0].m);
    assert_int_equal(e->kind, SML_MEMBER_CONNECT);
    assert_int_equal(e->address, i % 3);
    if (i % 3 == 1) {
      sml_member_on_connected(&ranks[0].m, w.now_ns);
      sml_member_on_garbage(&ranks[0].m, SML_CTL_BAD_MAGIC, w.now_ns);
    } else {
      sml_member_on_attempt_failed(&ranks[0].m, "Connection refused", w.now_ns);
    }
    while (sml_member_next_effect(&ranks[0].m)) continue;
    assert_int_equal(ranks[0].m.state, SML_MEMBER_WAITING);
    w.now_ns = sml_member_next_deadline(&ranks[0].m);
  }
}

static void test_what_makes_no_sense_is_said(void **state) {
  (void)state;
  static const struct {
    enum sml_ctl_decode verdict;
    sml_status status;
    const char *sentence;
  } rows[] = {{SML_CTL_BAD_MAGIC, SML_ERR_PROTOCOL, "is not a switchmld"},
              {SML_CTL_MALFORMED, SML_ERR_PROTOCOL, "is not a switchmld"},
              {SML_CTL_BAD_VERSION, SML_ERR_VERSION, "speaks another version"},
              {SML_CTL_BAD_MAC, SML_ERR_KEY, "compare the key files"}};
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    begin_world(2);
    is_deaf = true;
    settle();
    assert_int_equal(ranks[0].m.state, SML_MEMBER_JOINING);
    sml_member_on_garbage(&ranks[0].m, rows[i].verdict, w.now_ns);
    carry_out(&ranks[0]);
    expect_failure(0, rows[i].status, rows[i].sentence);
    assert_int_equal(ranks[0].conn, MAX_CONNS);
  }
  start_ranks(2);
  sml_member_on_garbage(&ranks[1].m, SML_CTL_BAD_MAC, w.now_ns);
  carry_out(&ranks[1]);
  expect_failure(1, SML_ERR_KEY, "somebody else writes into the connection");
}

static void test_messages_out_of_place(void **state) {
  (void)state;
  static const enum sml_ctl_kind kinds[] = {SML_CTL_WELCOME, SML_CTL_CHALLENGE, SML_CTL_REPORT, SML_CTL_JOIN};
  for (size_t i = 0; i < SML_ARRAY_LEN(kinds); i++) {
    start_ranks(2);
    struct sml_ctl_message m;
    memset(&m, 0, sizeof m);
    m.kind = kinds[i];
    sml_member_on_message(&ranks[0].m, &m, w.now_ns);
    carry_out(&ranks[0]);
    expect_line(0, "ended -17; ");
    expect_failure(0, SML_ERR_PROTOCOL, "out of place");
  }
}

static void test_key_of_the_aggregator(void **state) {
  (void)state;
  if (!is_keyed) { /* a rank that has a key is not content with an aggregator that asks for none */
    begin_world(2);
    struct sml_member_options o = member_options(0, 2);
    o.is_keyed = true;
    sml_member_init(&ranks[0].m, &o);
    settle();
    expect_failure(0, SML_ERR_KEY, "did not ask for a proof of key");
    return;
  }
  begin_world(2);
  w.worker_key = key_b;
  settle();
  expect_line(0, "ended -19; ");
}

static uint32_t rank_3(void *user, const struct sml_ctl_welcome *welcome) {
  (void)user, (void)welcome;
  return 3;
}

static void test_two_ranks_on_one_context(void **state) {
  (void)state;
  begin_world(2);
  ranks[1].m.options.find_twin = rank_3;
  settle();
  expect_failure(1, SML_ERR_INVALID_ARGUMENT, "ranks 3 and 1 of job 'x' are on one context");
}

/* Each START that is not about the job that was joined. */
static void change_start(struct sml_ctl_start *s, uint32_t how) {
  if (how == 0) s->num_lanes = 9;
  if (how == 1) s->num_slots *= 2;
  if (how == 2) s->chunk_bytes += 4;
  if (how == 3) s->features ^= SML_FEATURE_CHECK;
  if (how == 4) s->features |= SML_FEATURE_SWITCH; /* this rank has not offered it */
  if (how == 5) s->is_multicast = 1;               /* it hears no group */
  if (how == 6) s->is_one_host = 1;                /* it shares no memory */
  if (how == 7) s->num_ranks = 3;                  /* of another job */
  if (how == 8) s->num_ranks = 2;                  /* rank 0 contributes for rank 1, which has not asked for it */
}

static void test_a_start_of_something_else(void **state) {
  (void)state;
  for (uint32_t how = 0; how < 10; how++) {
    start_ranks(2);
    struct sml_ctl_message m;
    memset(&m, 0, sizeof m);
    m.kind = SML_CTL_START;
    m.u.start = ranks[1].start;
    change_start(&m.u.start, how);
    sml_member_on_message(&ranks[1].m, &m, w.now_ns);
    carry_out(&ranks[1]);
    if (how == 9) expect_line(1, "started e100; "); /* as it was */
    else expect_line(1, "ended -17; ");
    if (how < 9) expect_failure(1, SML_ERR_PROTOCOL, "which are not what was agreed");
  }
}

/* ---- silence ---- */

static void test_an_aggregator_that_says_nothing_is_late_then_lost(void **state) {
  (void)state;
  start_ranks_with(2, 10 * S);
  is_deaf = true;
  wait_for(3 * S);
  expect_lines("silent; ");
  wait_for(9 * S);
  expect_lines("silent; ended -12; ");
  expect_failure(0, SML_ERR_AGGREGATOR_LOST, "has been silent for 10.");
}

/* Its messages are held up, its datagrams come. */
static void test_results_are_a_sign_of_life(void **state) {
  (void)state;
  start_ranks(2);
  is_deaf = true;
  for (uint32_t i = 0; i < 100; i++) {
    ranks[0].progress.num_packets += i % 10 == 0;
    ranks[1].progress.num_packets += i > 90;
    wait_for(100 * MS);
    if (i == 40) expect_line(1, "ended -12; "); /* LEASE_NS is as short as it takes to be late */
  }
  expect_line(0, "");
}

static void test_an_aggregator_is_heard_again(void **state) {
  (void)state;
  start_ranks_with(2, 10 * S);
  is_deaf = true;
  wait_for(4 * S);
  is_deaf = false;
  expect_line(0, "silent; ");
  ranks[0].progress.num_packets++;
  wait_for(S);
  expect_line(0, "silent; heard; ");
}

/* It did not run itself, and listened to nobody. */
static void test_own_absence_is_nobodys_silence(void **state) {
  (void)state;
  start_ranks(2);
  ranks[0].is_stopped = ranks[1].is_stopped = true;
  w.now_ns += 100 * S;
  ranks[0].is_stopped = ranks[1].is_stopped = false;
  for (uint32_t i = 0; i < 2; i++) pass(&ranks[i]);
  expect_lines("");
}

static void test_a_stuck_connection_is_not_stuffed(void **state) {
  (void)state;
  start_ranks(2);
  wait_for(S);
  ranks[0].progress.is_stuck = true;
  sml_member_ask(&ranks[0].m);
  sml_member_on_timer(&ranks[0].m, &ranks[0].progress, w.now_ns);
  assert_null(sml_member_next_effect(&ranks[0].m));
  assert_int_equal(ranks[0].m.num_asked, 0);
}

static void test_who_asks_is_answered(void **state) {
  (void)state;
  start_ranks(2);
  sml_member_ask(&ranks[1].m);
  settle();
  expect_line(1, "reported; ");
  assert_int_equal(ranks[1].m.num_asked, 0);
}

/* In a job that keeps inputs until all have told, news hurry. */
static void test_news_hurry(void **state) {
  (void)state;
  begin_world(2);
  for (uint32_t i = 0; i < 2; i++) ranks[i].m.options.busy_heartbeat_ns = 50 * MS;
  settle();
  wait_for(S);
  ranks[0].progress.operations_completed = 1;
  wait_for(S);
  const uint64_t next_ns = ranks[0].m.next_heartbeat_ns;
  sml_member_hasten_heartbeat(&ranks[0].m);
  ranks[0].progress.operations_completed = 2;
  settle();
  assert_true(ranks[0].m.next_heartbeat_ns == w.now_ns + 50 * MS);
  assert_true(next_ns > w.now_ns);
}

/* ---- losing the aggregator ---- */

static void test_a_closed_connection_is_a_lost_aggregator(void **state) {
  (void)state;
  start_ranks(2);
  lose_daemon();
  expect_lines("ended -12; ");
  expect_failure(0, SML_ERR_AGGREGATOR_LOST,
                 "closed the control connection (end of stream): it has ended or was restarted");
  begin_world(2);
  ranks[1].is_stopped = true;
  settle();
  lose_daemon();
  expect_line(0, "ended -12; ");
  expect_failure(0, SML_ERR_AGGREGATOR_LOST, "before the job had started");
}

static void rejoin(uint32_t rank, uint64_t resume, uint64_t oldest, bool has_no_result) {
  struct rank *k = &ranks[rank];
  sml_member_rejoin(&k->m,
                    &(struct sml_member_resume){.resume_operation = resume,
                                                .oldest_operation = oldest,
                                                .has_no_result = has_no_result,
                                                .chunk_bytes = k->start.chunk_bytes,
                                                .num_slots = k->start.num_slots,
                                                .deadline_ns = w.now_ns + 30 * S},
                    w.now_ns);
}

static void test_a_successor_goes_on_with_what_somebody_lacks(void **state) {
  (void)state;
  begin_world(3);
  for (uint32_t i = 0; i < 3; i++) ranks[i].m.options.join.features = SML_FEATURE_RETRY;
  settle();
  lose_daemon();
  for (uint32_t i = 0; i < 3; i++) rejoin(i, 7 + i, 5, false);
  forget_lines();
  wait_for(5 * S);
  expect_lines("");
  begin_successor();
  wait_for(S);
  expect_lines("started e200; ");
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(ranks[i].start.first_operation, 7);
    assert_int_equal(sml_member_probe_bytes(&ranks[i].m), 8960); /* this size or nothing */
  }
}

/* One of them has an input no more that another would need. */
static void test_a_successor_that_cannot_go_on(void **state) {
  (void)state;
  begin_world(2);
  for (uint32_t i = 0; i < 2; i++) ranks[i].m.options.join.features = SML_FEATURE_RETRY;
  settle();
  lose_daemon();
  rejoin(0, 7, 5, false);
  rejoin(1, 9, 8, false);
  begin_successor();
  wait_for(S);
  for (uint32_t i = 0; i < 2; i++) assert_int_equal(ranks[i].m.state, SML_MEMBER_OVER);
}

static void test_no_successor_comes(void **state) {
  (void)state;
  start_ranks(2);
  lose_daemon();
  rejoin(0, 0, 0, true);
  forget_lines();
  wait_for(29 * S);
  expect_line(0, "");
  wait_for(2 * S);
  expect_line(0, "ended -6; ");
}

/* Lost while it was joined. */
static void test_joining_anew(void **state) {
  (void)state;
  begin_world(2);
  ranks[1].is_stopped = true;
  settle();
  lose_daemon();
  sml_member_join_anew(&ranks[0].m, w.now_ns);
  forget_lines();
  begin_successor();
  ranks[1].is_stopped = false;
  wait_for(S);
  expect_lines("started e200; ");
}

/* ---- leaving early ---- */

static void test_leaving_at_any_time(void **state) {
  (void)state;
  for (uint32_t when = 0; when < 5; when++) {
    begin_world(2);
    is_down = when == 0;
    is_deaf = when == 1;
    ranks[1].is_stopped = when == 2;
    settle();
    if (when == 3) lose_daemon();
    sml_member_leave(&ranks[0].m, w.now_ns);
    wait_for(2 * S); /* an aggregator that does not close is not waited for longer than 1 s */
    assert_int_equal(ranks[0].m.state, SML_MEMBER_CLOSED);
    assert_int_equal(ranks[0].conn, MAX_CONNS);
  }
}

static void test_giving_up_the_join(void **state) {
  (void)state;
  for (uint32_t is_welcome = 0; is_welcome < 2; is_welcome++) {
    begin_world(2);
    ranks[1].is_stopped = true;
    is_deaf = !is_welcome;
    settle();
    sml_member_give_up(&ranks[0].m);
    carry_out(&ranks[0]);
    assert_int_equal(ranks[0].m.state, SML_MEMBER_OVER);
    assert_int_equal(ranks[0].conn != MAX_CONNS, is_welcome); /* to say goodbye */
  }
}

/* A stop of half a lease, for as long as a lease; not the two milliseconds after it. */
static void test_who_was_stopped_says_so_of_a_loss(void **state) {
  (void)state;
  begin_world(1);
  struct sml_member *m = &ranks[0].m;
  const uint64_t lease_ns = m->options.join.lease_ns, woke_ns = 100 * SML_NS_PER_S;
  char detail[SML_DETAIL_BYTES] = "rank 1 was lost";
  sml_member_forgive(m, lease_ns / 2 - 1, woke_ns - 1);
  sml_member_add_stop(m, woke_ns, detail);
  assert_string_equal(detail, "rank 1 was lost");
  sml_member_forgive(m, lease_ns, woke_ns);
  sml_member_forgive(m, 2 * MS, woke_ns + 2 * MS);
  sml_member_add_stop(m, woke_ns + lease_ns, detail);
  assert_string_equal(detail, "rank 1 was lost");
  sml_member_add_stop(m, woke_ns + lease_ns - 1, detail);
  if (strstr(detail, "rank 1 was lost; this process itself was stopped for at least ") != detail)
    fail_msg("%s", detail);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BOTH(test_ranks_join_start_and_leave),
      BOTH(test_the_smallest_path_decides),
      BOTH(test_attempts_until_somebody_listens),
      cmocka_unit_test(test_nobody_listens),
      cmocka_unit_test(test_no_answer_to_the_request),
      BOTH(test_somebody_listens_and_says_nothing),
      BOTH(test_a_rank_is_missing),
      cmocka_unit_test(test_addresses_are_tried_in_turn),
      BOTH(test_what_makes_no_sense_is_said),
      BOTH(test_messages_out_of_place),
      BOTH(test_key_of_the_aggregator),
      cmocka_unit_test(test_two_ranks_on_one_context),
      BOTH(test_a_start_of_something_else),
      BOTH(test_an_aggregator_that_says_nothing_is_late_then_lost),
      BOTH(test_results_are_a_sign_of_life),
      BOTH(test_an_aggregator_is_heard_again),
      BOTH(test_own_absence_is_nobodys_silence),
      cmocka_unit_test(test_a_stuck_connection_is_not_stuffed),
      BOTH(test_who_asks_is_answered),
      cmocka_unit_test(test_news_hurry),
      BOTH(test_a_closed_connection_is_a_lost_aggregator),
      BOTH(test_a_successor_goes_on_with_what_somebody_lacks),
      BOTH(test_a_successor_that_cannot_go_on),
      BOTH(test_no_successor_comes),
      BOTH(test_joining_anew),
      BOTH(test_leaving_at_any_time),
      BOTH(test_giving_up_the_join),
      cmocka_unit_test(test_who_was_stopped_says_so_of_a_loss),
  };
  return cmocka_run_group_tests(tests, NULL, end_world);
}
