/* SPDX-License-Identifier: Apache-2.0
 * What the registry tells people: who may see what, who is late since when, what an ASK is answered. */
#include "ctl/test_registry_world.h"

static struct sml_ctl_message status_message(const char *key_name, uint32_t offset_bytes) {
  struct sml_ctl_message m = {.kind = SML_CTL_STATUS, .u.status = {.nonce = {7, 8}, .offset_bytes = offset_bytes}};
  snprintf(m.u.status.key_name, sizeof m.u.status.key_name, "%s", key_name);
  return m;
}

static void ask_status(uint32_t conn, const char *key_name, uint32_t offset_bytes) {
  const struct sml_ctl_message m = status_message(key_name, offset_bytes);
  said_once(conn, &m);
}

/* --- who may see the status --- */

static void test_status_without_keys(void **state) {
  (void)state;
  begin();
  opened(0);
  ask_status(0, "", 0);
  EXPECT("c0 show '' from 0; ");
  ask_status(0, "", 8192);
  EXPECT("c0 show '' from 8192; ");
  ask_status(0, "a", 0); /* it has a key to prove, the aggregator none to compare it with */
  EXPECT("c0<REFUSE -19; c0 close; ");
  opened(1);
  ask_status(1, "", 0);
  tick(); /* whoever is shown the status stays no longer than whoever does not join */
  EXPECT("c1 close; ");
  assert_int_equal(w.now_ns, 1005 * S);
}

static void test_status_with_keys(void **state) {
  (void)state;
  begin();
  opened(0);
  ask_status(0, "", 0);
  EXPECT("c0<REFUSE -19; c0 close; ");
  assert_non_null(strstr(w.notes, "10.0.0.0"));
  static const char *const local[] = {"127.0.0.1:5", "127.9.0.1:5", "[::1]:5", "[::ffff:127.0.0.1]:5"};
  for (size_t i = 0; i < SML_ARRAY_LEN(local); i++) {
    opened_from(1, local[i]);
    ask_status(1, "", 0);
    EXPECT("c1 show '' from 0; ");
    goodbye(1);
  }
  static const char *const remote[] = {"128.0.0.1:5", "[::2]:5", "[fe80::1]:5", "[::ffff:10.0.0.1]:5", "12.7.0.1:5"};
  for (size_t i = 0; i < SML_ARRAY_LEN(remote); i++) {
    opened_from(2, remote[i]);
    ask_status(2, "", 0);
    EXPECT("c2<REFUSE -19; c2 close; ");
  }
}

static void test_status_of_a_tenant(void **state) {
  (void)state;
  begin();
  opened(0);
  ask_status(0, "a", 0);
  EXPECT("c0<CHALLENGE; c0 key; ");
  w.last[0].kind = SML_CTL_CHALLENGE;
  said_once(0, &(struct sml_ctl_message){.kind = SML_CTL_AUTH});
  EXPECT("");
  ask_status(0, "b", 5); /* what it calls itself now does not matter: it has proved "a" */
  EXPECT("c0 show 'a' from 5; ");
  said_once(0, &(struct sml_ctl_message){.kind = SML_CTL_AUTH});
  EXPECT("c0<REFUSE -17; c0 close; ");
  /* A viewer is no member. */
  opened(1);
  ask_status(1, "a", 0);
  said_once(1, &(struct sml_ctl_message){.kind = SML_CTL_AUTH});
  said_once(1, &(struct sml_ctl_message){.kind = SML_CTL_HEARTBEAT});
  EXPECT("c1<REFUSE -17; c1 close; ");
  /* With a wrong key nobody gets that far. */
  w.worker_key = (struct sml_key){9, 9};
  opened(2);
  ask_status(2, "a", 0);
  said_once(2, &(struct sml_ctl_message){.kind = SML_CTL_AUTH});
  EXPECT("c2<REFUSE -19; c2 close; ");
}

static void test_members_ask_nothing_but_reports(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 2);
  said(0, &(struct sml_ctl_message){.kind = SML_CTL_ASK});
  EXPECT("c0 report j0 e100; ");
  const struct sml_ctl_message m = status_message("", 0);
  said(1, &m);
  assert_non_null(strstr(w.line, "c1<ABORT -17; "));
  opened(5);
  join(5, "y", 0, 2);
  said(5, &(struct sml_ctl_message){.kind = SML_CTL_ASK}); /* the job has no slots yet */
  assert_non_null(strstr(w.line, "c5<REFUSE -17; "));
}

/* --- lateness --- */

static void beats(uint32_t conn, uint64_t submitted) {
  said(conn, &(struct sml_ctl_message){.kind = SML_CTL_HEARTBEAT, .u.heartbeat.operations_submitted = submitted});
}

static struct sml_registry_look look(void) {
  struct sml_registry_look l;
  assert_true(sml_registry_look(w.r, 0, w.now_ns, &l));
  return l;
}

static struct sml_member_look member(uint32_t rank) {
  struct sml_member_look members[8];
  const uint32_t num_members = sml_registry_look_at_members(w.r, 0, w.now_ns, members, SML_ARRAY_LEN(members));
  for (uint32_t i = 0; i < num_members; i++)
    if (members[i].rank == rank) return members[i];
  fail_msg("rank %u is not among the members", rank);
  return members[0];
}

/* Time goes on, with all ranks of a world of three sending heartbeats with these figures. */
static void go_on(uint64_t seconds_in_tenths, const uint64_t submitted[3]) {
  const uint64_t end_ns = w.now_ns + seconds_in_tenths * (S / 10);
  while (w.now_ns < end_ns) {
    for (uint32_t c = 0; c < 3; c++) beats(c, submitted[c]);
    w.now_ns += S / 10;
    while (sml_registry_next_deadline(w.r) <= w.now_ns) {
      sml_registry_on_timer(w.r, w.now_ns);
      take_effects();
      if (strstr(w.notes, "has not called")) return;
    }
  }
}

static struct sml_registry_options impatient(void) {
  struct sml_registry_options options = defaults();
  options.late_note_ns = 10 * S;
  return options;
}

static void test_late_since_when(void **state) {
  (void)state;
  begin_with(impatient());
  start_world("x", 0, 3);
  go_on(50, (const uint64_t[]){4, 4, 4});
  assert_int_equal(look().num_late, 0);
  assert_int_equal(look().submitted, 4);
  const uint64_t began_ns = w.now_ns;
  go_on(30, (const uint64_t[]){5, 5, 4});
  assert_int_equal(look().num_late, 1);
  const struct sml_member_look late = member(2);
  assert_true(late.is_late && !late.is_gone);
  assert_in_range(late.since_ns, began_ns, began_ns + LEASE_NS / 2);
  assert_int_equal(late.submitted, 4);
  assert_false(member(0).is_late);
  assert_int_equal(member(0).since_ns, 0);
  go_on(10, (const uint64_t[]){5, 5, 5});
  assert_int_equal(look().num_late, 0);
  assert_false(member(2).is_late);
}

/* Ranks whose heartbeats come at different times of a pipeline are not late. */
static void test_staggered_heartbeats_are_not_late(void **state) {
  (void)state;
  begin_with(impatient());
  start_world("x", 0, 3);
  for (uint64_t step = 1; step < 300; step++) {
    beats((uint32_t)(step % 3), step);
    w.now_ns += LEASE_NS / 12;
    while (sml_registry_next_deadline(w.r) <= w.now_ns) {
      sml_registry_on_timer(w.r, w.now_ns);
      take_effects();
    }
    assert_int_equal(look().num_late, 0);
  }
}

static void test_long_lateness_is_noted_once(void **state) {
  (void)state;
  begin_with(impatient());
  start_world("x", 0, 3);
  const uint64_t began_ns = w.now_ns;
  go_on(300, (const uint64_t[]){7, 4, 5});
  char expected[200];
  snprintf(expected, sizeof expected, "%d:x:rank 1 (10.0.0.1) has not called its operation 4 for ",
           (int)SML_NOTE_RANK_LATE);
  if (!strstr(w.notes, expected) || !strstr(w.notes, "nor have 1 more")) fail_msg("%s", w.notes);
  assert_in_range(w.now_ns - began_ns, 10 * S, 12 * S);
  w.notes[0] = 0;
  const uint64_t noted_ns = w.now_ns;
  go_on(100, (const uint64_t[]){7, 4, 5});
  assert_int_equal(w.now_ns, noted_ns + 10 * S); /* go_on() ends early at a note */
  beats(1, 7);
  if (!strstr(w.notes, ":x:rank 1 (10.0.0.1) called after 2")) fail_msg("%s", w.notes);
}

static void test_departed_ranks_are_remembered(void **state) {
  (void)state;
  begin();
  start_world("x", 0, 3);
  go_on(5, (const uint64_t[]){1, 1, 1});
  const uint64_t lost_ns = w.now_ns;
  closed(1, SML_CLOSED_RESET);
  goodbye(2);
  const struct sml_member_look lost = member(1), left = member(2);
  assert_true(lost.is_gone && lost.is_lost && left.is_gone && !left.is_lost);
  assert_string_equal(lost.host, "10.0.0.1");
  assert_in_range(lost.since_ns, lost_ns - S, lost_ns);
  assert_int_equal(look().num_present, 1);
  assert_int_equal(look().num_departed, 2);
  struct sml_member_look one[1];
  assert_int_equal(sml_registry_look_at_members(w.r, 0, w.now_ns, one, 1), 1); /* as many as there is room for */
}

static void test_no_job_is_nothing(void **state) {
  (void)state;
  begin();
  struct sml_registry_look l;
  assert_false(sml_registry_look(w.r, 0, w.now_ns, &l));
  opened(0);
  join(0, "x", 1, 2);
  assert_true(sml_registry_look(w.r, 0, w.now_ns, &l));
  assert_false(l.is_started);
  assert_int_equal(l.num_present, 1);
  assert_int_equal(l.since_ns, w.now_ns);
  assert_false(sml_registry_look(w.r, 1, w.now_ns, &l));
  struct sml_ctl_report report;
  const struct sml_waiting_slots slots = {0};
  assert_false(sml_registry_report(w.r, 0, &slots, w.now_ns, &report));
}

/* --- reports --- */

static void test_reports_say_who_and_since_when(void **state) {
  (void)state;
  struct sml_ctl_report report;
  begin_with(impatient());
  start_world("x", 0, 3);
  struct sml_waiting_slots slots = {.num_contributors = 3};
  assert_true(sml_registry_report(w.r, 0, &slots, w.now_ns, &report));
  assert_string_equal(report.detail, "every rank has called what the others have, no slot waits");
  assert_int_equal(report.num_ranks, 0);
  go_on(30, (const uint64_t[]){5, 4, 4});
  slots = (struct sml_waiting_slots){.num_waiting = 256,
                                     .num_contributors = 3,
                                     .least_contributions = 1,
                                     .most_contributions = 1,
                                     .slot = 9,
                                     .phase = 118,
                                     .num_missing = 2,
                                     .missing = {1, 2},
                                     .progress_ns = w.now_ns - 3 * S};
  assert_true(sml_registry_report(w.r, 0, &slots, w.now_ns, &report));
  if (strncmp(report.detail, "rank ", 5) != 0 || !strstr(report.detail, " has not called for 2.") ||
      !strstr(report.detail,
              " s, nor 1 more, 256 slots wait for ranks 1, 2 with 1 of 3 contributions (one: lane 0 slot 9 phase 118), "
              "the last sum was 3.0 s ago"))
    fail_msg("%s", report.detail);
  assert_int_equal(report.num_ranks, 2);
  assert_int_equal(report.ranks[0] + report.ranks[1], 3);
  goodbye(2);
  slots.most_contributions = 2;
  slots.num_waiting = 1;
  assert_true(sml_registry_report(w.r, 0, &slots, w.now_ns, &report));
  if (!strstr(report.detail, "rank 2 (10.0.0.2) left 0.") ||
      !strstr(report.detail, "1 slot waits for ranks 1, 2 with 1 to 2 of 3"))
    fail_msg("%s", report.detail);
}

/* Who may not join because its settings disagree: those who wait for it, or somebody for them, can ask. */
static void test_refused_ranks_are_remembered(void **state) {
  (void)state;
  begin();
  opened(0);
  join(0, "x", 0, 8);
  assert_int_equal(look().num_refusals, 0);
  assert_int_equal(look().num_slots, 256); /* as asked for */
  assert_int_equal(member(0).num_lanes, 2);
  assert_int_equal(member(0).max_datagram_bytes, 8960);
  assert_int_equal(member(0).probed_bytes, 0);
  probed(0, 1472);
  assert_int_equal(member(0).probed_bytes, 1472);
  for (uint32_t i = 1; i <= SML_MAX_REFUSALS + 1; i++) {
    w.now_ns += S / 100;
    opened(i);
    struct sml_ctl_message m = join_message("x", i, 8);
    m.u.join.num_slots = 64;
    said(i, &m);
    assert_non_null(strstr(w.line, "REFUSE -7; "));
  }
  const struct sml_registry_look l = look();
  assert_int_equal(l.num_refusals, SML_MAX_REFUSALS + 1);
  for (uint32_t i = 0; i < SML_MAX_REFUSALS; i++) {
    assert_int_equal(l.refusals[i].rank, SML_MAX_REFUSALS + 1 - i);
    assert_int_equal(l.refusals[i].at_ns, w.now_ns - i * (S / 100));
    assert_non_null(strstr(l.refusals[i].text, "asks for 64 slots, but rank 0 of job 'x' asked for 256"));
  }
  assert_string_equal(l.refusals[0].host, "10.0.0.5");
  opened(9);
  join(9, "y", 0, 8); /* another job's are its own */
  struct sml_registry_look other;
  assert_true(sml_registry_look(w.r, 1, w.now_ns, &other));
  assert_int_equal(other.num_refusals, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_status_without_keys, unkeyed_world),
      cmocka_unit_test_setup(test_status_with_keys, keyed_world),
      cmocka_unit_test_setup(test_status_of_a_tenant, keyed_world),
      BOTH(test_members_ask_nothing_but_reports),
      BOTH(test_late_since_when),
      BOTH(test_staggered_heartbeats_are_not_late),
      BOTH(test_long_lateness_is_noted_once),
      BOTH(test_departed_ranks_are_remembered),
      BOTH(test_no_job_is_nothing),
      BOTH(test_reports_say_who_and_since_when),
      BOTH(test_refused_ranks_are_remembered),
  };
  return cmocka_run_group_tests(tests, NULL, end_world);
}
