/* SPDX-License-Identifier: Apache-2.0
 * Late is not lost: who is silent is named after 2 s and lost after its lease, and datagrams are signs of life. */
#include "ctl/test_registry_world.h"

#define LONG_LEASE_NS (60 * S)

static uint64_t num_packets[3]; /* of each rank, on the data path */
static char noted[8192];        /* since the last expect_note() */

static uint64_t count_packets(void *user, uint16_t job, uint32_t rank) {
  (void)user;
  assert_true(w.jobs[job].is_open && rank < w.jobs[job].world_size);
  return num_packets[rank];
}

static void start_three(uint64_t lease_ns) {
  struct sml_registry_options options = defaults();
  options.count_packets = count_packets;
  options.late_note_ns = 10 * S;
  memset(num_packets, 0, sizeof num_packets);
  noted[0] = 0;
  begin_with(options);
  for (uint32_t rank = 0; rank < 3; rank++) {
    struct sml_ctl_message m = join_message("x", rank, 3);
    m.u.join.lease_ns = lease_ns;
    opened(rank);
    said(rank, &m);
  }
  for (uint32_t rank = 0; rank < 3; rank++) probed(rank, 8960);
  assert_non_null(strstr(w.line, "start j"));
}

static void pass_deadline(void) {
  sml_registry_on_timer(w.r, w.now_ns);
  take_effects();
  if (strstr(w.notes, "silent") || strstr(w.notes, "heard again")) add(noted, sizeof noted, "%s", w.notes);
}

/* Until then, with heartbeats of ranks 0 and 2 each tenth of a second; true: some rank was lost meanwhile. */
static bool go_on_without_rank_1(uint64_t end_ns) {
  while (w.now_ns < end_ns) {
    heartbeat(0);
    heartbeat(2);
    w.now_ns += S / 10;
    while (sml_registry_next_deadline(w.r) <= w.now_ns) {
      pass_deadline();
      if (strstr(w.line, "GONE")) return true;
    }
  }
  return false;
}

static struct sml_member_look look_at(uint32_t rank) {
  struct sml_member_look members[3];
  const uint32_t num_members = sml_registry_look_at_members(w.r, 0, w.now_ns, members, SML_ARRAY_LEN(members));
  uint32_t i = 0;
  while (i < num_members && members[i].rank != rank) i++;
  assert_true(i < num_members);
  return members[i];
}

static void expect_note(const char *text) {
  if (!strstr(noted, text)) fail_msg("'%s' is not in '%s'", text, noted);
  noted[0] = 0;
}

static void test_silent_is_late_after_two_seconds_and_lost_after_the_lease(void **state) {
  (void)state;
  start_three(LONG_LEASE_NS);
  const uint64_t began_ns = w.now_ns;
  struct sml_ctl_report report;
  const struct sml_waiting_slots none = {.num_contributors = 3};
  assert_false(go_on_without_rank_1(began_ns + 19 * S / 10));
  assert_false(look_at(1).is_late);
  assert_string_equal(noted, "");
  assert_false(go_on_without_rank_1(began_ns + 27 * S / 10));
  const struct sml_member_look late = look_at(1);
  assert_true(late.is_late && late.is_silent && !late.is_gone);
  assert_int_equal(late.since_ns, began_ns);
  assert_false(look_at(0).is_late);
  expect_note(":x:rank 1 (10.0.0.1) has been silent for 2.0 s: it is stopped or cut off, and is lost after 60 s");
  assert_true(sml_registry_report(w.r, 0, &none, w.now_ns, &report));
  assert_true(report.num_ranks == 1 && report.ranks[0] == 1);
  if (!strstr(report.detail, "rank 1 (10.0.0.1) has been silent for 2.7 s, ")) fail_msg("%s", report.detail);
  assert_false(go_on_without_rank_1(began_ns + LONG_LEASE_NS - S / 5));
  assert_string_equal(noted, ""); /* once */
  assert_true(go_on_without_rank_1(began_ns + LONG_LEASE_NS + S / 5));
  expect_detail(0, "rank 1 (10.0.0.1) was lost: silent for longer than its lease of 60000 ms");
}

static void test_who_is_heard_again_is_not_late(void **state) {
  (void)state;
  start_three(LONG_LEASE_NS);
  const uint64_t began_ns = w.now_ns;
  assert_false(go_on_without_rank_1(began_ns + 30 * S));
  assert_true(look_at(1).is_late);
  noted[0] = 0;
  heartbeat(1);
  assert_false(look_at(1).is_late);
  assert_false(go_on_without_rank_1(w.now_ns + S));
  expect_note(":x:rank 1 (10.0.0.1) is heard again after 30.");
  assert_false(go_on_without_rank_1(began_ns + 30 * S + LONG_LEASE_NS - S / 5)); /* the lease began anew */
  assert_true(go_on_without_rank_1(began_ns + 30 * S + LONG_LEASE_NS + S / 5));
}

/* Heartbeats tell who is late, so they do not wait for a quarter of a long lease. */
static void test_heartbeats_do_not_wait_for_a_long_lease(void **state) {
  (void)state;
  start_three(LONG_LEASE_NS);
  const uint64_t began_ns = w.now_ns;
  for (uint32_t beat = 1; beat <= 8; beat++) {
    tick();
    EXPECT("c2<HEARTBEAT; c1<HEARTBEAT; c0<HEARTBEAT; ");
    assert_int_equal(w.now_ns - began_ns, beat * S / 2);
  }
}

/* Its heartbeats wait behind what TCP repeats; its updates come. */
static void test_datagrams_are_signs_of_life(void **state) {
  (void)state;
  static const uint64_t leases_ns[] = {S / 2, LEASE_NS, LONG_LEASE_NS};
  for (size_t i = 0; i < SML_ARRAY_LEN(leases_ns); i++) {
    start_three(leases_ns[i]);
    const uint64_t began_ns = w.now_ns;
    while (w.now_ns < began_ns + 3 * leases_ns[i]) {
      num_packets[1]++;
      assert_false(go_on_without_rank_1(w.now_ns + S / 10));
      assert_false(look_at(1).is_late);
    }
    const uint64_t stopped_ns = w.now_ns; /* noticed at the next look, a heartbeat later at most */
    assert_true(go_on_without_rank_1(stopped_ns + leases_ns[i] + 6 * S / 10));
    assert_true(w.now_ns >= stopped_ns + leases_ns[i] - S / 10);
  }
}

/* What came before the last look is no sign of life. */
static void test_old_datagrams_are_none(void **state) {
  (void)state;
  start_three(LEASE_NS);
  num_packets[1] = 1000000;
  assert_false(go_on_without_rank_1(w.now_ns + S));
  const uint64_t seen_ns = look_at(1).heard_ns;
  assert_true(go_on_without_rank_1(w.now_ns + 2 * LEASE_NS));
  assert_in_range(w.now_ns, seen_ns + LEASE_NS, seen_ns + LEASE_NS + S / 10);
}

/* All are cut off at once: one line, not one a rank. */
static void test_silence_of_many_is_one_note(void **state) {
  (void)state;
  start_three(LONG_LEASE_NS);
  for (uint32_t i = 0; i < 40; i++) { /* 20 s in which nobody says anything */
    w.now_ns = sml_registry_next_deadline(w.r);
    pass_deadline();
  }
  expect_note(":x:rank 0 (10.0.0.0) (and 2 more) has been silent for 2.0 s");
  for (uint32_t c = 0; c < 3; c++) heartbeat(c);
  w.now_ns = sml_registry_next_deadline(w.r);
  pass_deadline();
  expect_note(":x:rank 0 (10.0.0.0) (and 2 more) is heard again after 20.");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      BOTH(test_silent_is_late_after_two_seconds_and_lost_after_the_lease),
      BOTH(test_who_is_heard_again_is_not_late),
      BOTH(test_heartbeats_do_not_wait_for_a_long_lease),
      BOTH(test_datagrams_are_signs_of_life),
      BOTH(test_old_datagrams_are_none),
      BOTH(test_silence_of_many_is_one_note),
  };
  return cmocka_run_group_tests(tests, NULL, end_world);
}
