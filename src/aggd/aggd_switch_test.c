/* SPDX-License-Identifier: Apache-2.0
 * The aggregator service beside a switch: jobs that the switch sums, over real sockets on loopback. */
#include "aggd/test_rank_world.h"

#include <stdatomic.h>

#include "aggd/dataplane.h"
#include "aggd/snapshot.h"

static atomic_bool is_switch_dead, is_switch_silent;
static atomic_uint num_closed, num_counter_reads;
static uint32_t num_contributors = 2;

static bool open_switch(void *user, const struct sml_addr *addr, uint32_t voucher, char *error, size_t error_bytes) {
  (void)user, (void)addr, (void)error, (void)error_bytes;
  played_switch.is_there = true;
  played_switch.voucher = voucher;
  return true;
}

static bool start_at_switch(void *user, const struct sml_dataplane_job *is, char *error, size_t error_bytes) {
  (void)user, (void)error, (void)error_bytes;
  return is->num_contributors == num_contributors;
}

static void depart(void *user, uint16_t job, uint32_t contributor) {
  (void)user, (void)job, (void)contributor;
}

static uint32_t find_blocked(void *user, uint16_t job, uint32_t contributors, uint32_t *contributor) {
  (void)user, (void)job, (void)contributors, (void)contributor;
  return UINT32_MAX;
}

static void close_at_switch(void *user, uint16_t job) {
  (void)user, (void)job;
  num_closed++;
}

static bool read_counters(void *user, uint64_t *counts) {
  (void)user;
  num_counter_reads++;
  if (is_switch_silent) return false;
  for (uint32_t i = 0; i < SML_NUM_AT_SWITCH; i++) counts[i] = i;
  return true;
}

/* Both ranks have contributed to slot 2, rank 1 to slot 5. */
static bool read_words(void *user, uint16_t job, uint32_t *words) {
  (void)user, (void)job;
  if (is_switch_silent) return false;
  words[4] = 0x80000003;
  words[11] = 0xc0000002;
  return true;
}

static bool is_lost(void *user, char *why, size_t why_bytes) {
  (void)user;
  snprintf(why, why_bytes, "the switch is gone");
  return atomic_exchange(&is_switch_dead, false);
}

static struct sml_dataplane fake; /* of the test that runs */

/* Options with that switch, for which a test may set more functions. */
static struct sml_aggd_options at_switch(void) {
  struct sml_aggd_options options = loopback();
  fake = (struct sml_dataplane){.open = open_switch,
                                .start_job = start_at_switch,
                                .depart = depart,
                                .find_blocked = find_blocked,
                                .close_job = close_at_switch,
                                .read_counters = read_counters,
                                .read_words = read_words};
  options.num_lanes = 1;
  options.packet_lanes = 32;
  options.dataplane = &fake;
  return options;
}

static void join_switch(struct rank *r, const char *name, uint32_t rank) {
  struct sml_ctl_message m = join_message(name, rank, 2);
  m.u.join.features = SML_FEATURE_SWITCH;
  m.u.join.num_lanes = 1;
  *r = (struct rank){.rank = rank, .tcp = connect_tcp(), .udp = -1};
  say(r, &m);
  hear(r, SML_CTL_WELCOME);
  r->welcome = r->last.u.welcome;
}

/* What a snapshot of that time or later says: one serves for a while, on a slow machine for long. */
static uint32_t num_ended_at(uint64_t at_ns) {
  for (;; usleep(10000)) {
    struct sml_snapshot *s = sml_aggd_snapshot(aggd);
    assert_non_null(s);
    const uint32_t num_ended = s->num_ended;
    const bool is_later = s->taken_ns >= at_ns;
    sml_snapshot_release(s);
    if (is_later) return num_ended;
    assert_true(sml_clock_ns() < at_ns + 30 * SML_NS_PER_S);
  }
}

/* All of its jobs end, with the reason; others can be started, at another switch for all we know: what has gone before
 * the first of them ends nothing. */
static void test_lost_switch_ends_jobs(void **state) {
  (void)state;
  struct sml_aggd_options options = at_switch();
  fake.is_lost = is_lost;
  num_closed = 0;
  begin_with(options);
  is_switch_dead = true;
  for (uint32_t round = 0; round < 2; round++) {
    for (uint32_t i = 0; i < 4; i++) join_switch(&ranks[i], i < 2 ? "x" : "y", i % 2);
    for (uint32_t i = 0; i < 4; i++) hello(&ranks[i]);
    for (uint32_t i = 0; i < 4; i++) hear(&ranks[i], SML_CTL_START);
    assert_int_equal(num_ended_at(sml_clock_ns() + 150 * SML_NS_PER_MS), 2 * round); /* it is looked at every 100 ms */
    is_switch_dead = true;
    for (uint32_t i = 0; i < 4; i++) {
      hear(&ranks[i], SML_CTL_ABORT);
      assert_int_equal(ranks[i].last.u.abort.status, SML_ERR_AGGREGATOR_LOST);
      assert_string_equal(ranks[i].last.u.abort.detail, "the switch is gone");
      hang_up(&ranks[i]);
    }
  }
  end();
  assert_int_equal(num_closed, 4);
}

static uint32_t find_if_both(void *user, uint16_t job, uint32_t contributors, uint32_t *contributor) {
  (void)user, (void)job;
  *contributor = 3;
  return contributors == 0xc ? 5 : UINT32_MAX;
}

/* The switch is asked once for all of them: one that does not answer takes its time, and leases go on meanwhile. */
static void test_all_who_have_gone_are_looked_for_at_once(void **state) {
  (void)state;
  struct sml_aggd_options options = at_switch();
  fake.find_blocked = find_if_both;
  num_contributors = 4;
  begin_with(options);
  for (uint32_t i = 0; i < 4; i++) {
    struct sml_ctl_message m = join_message("x", i, 4);
    m.u.join.features = SML_FEATURE_SWITCH;
    m.u.join.num_lanes = 1;
    ranks[i] = (struct rank){.rank = i, .tcp = connect_tcp(), .udp = -1};
    say(&ranks[i], &m);
    hear(&ranks[i], SML_CTL_WELCOME);
    ranks[i].welcome = ranks[i].last.u.welcome;
  }
  for (uint32_t i = 0; i < 4; i++) hello(&ranks[i]);
  for (uint32_t i = 0; i < 4; i++) hear(&ranks[i], SML_CTL_START);
  for (uint32_t i = 2; i < 4; i++) hang_up(&ranks[i]);
  for (uint32_t i = 0; i < 2; i++) {
    int kind;
    while ((kind = hear_any(&ranks[i])) == SML_CTL_RANK_GONE || kind == SML_CTL_HEARTBEAT) continue;
    assert_int_equal(kind, SML_CTL_ABORT);
    assert_int_equal(ranks[i].last.u.abort.status, SML_ERR_RANK_LOST);
    assert_int_equal(ranks[i].last.u.abort.num_ranks, 1);
    assert_int_equal(ranks[i].last.u.abort.ranks[0], 3);
    hang_up(&ranks[i]);
  }
  end();
  num_contributors = 2;
}

/* Rank 0 contributes to one slot after the other. */
static atomic_bool is_rank_0_stopped;
static bool read_moving_words(void *user, uint16_t job, uint32_t *words) {
  static uint32_t num_looks;
  (void)user, (void)job;
  if (!is_rank_0_stopped) num_looks++;
  words[0] = 0x80000001u | (num_looks & 1) << 30;
  words[2] = 0x80000002u; /* rank 1 does not */
  return true;
}

/* Heartbeats may wait behind data; the cells of the switch show who is alive. */
static void test_data_at_a_switch_is_a_sign_of_life(void **state) {
  (void)state;
  struct sml_aggd_options options = at_switch();
  fake.read_words = read_moving_words;
  is_rank_0_stopped = false;
  begin_with(options);
  for (uint32_t i = 0; i < 2; i++) {
    struct sml_ctl_message m = join_message("x", i, 2);
    m.u.join.features = SML_FEATURE_SWITCH;
    m.u.join.num_lanes = 1;
    m.u.join.lease_ns = 1500 * SML_NS_PER_MS;
    ranks[i] = (struct rank){.rank = i, .tcp = connect_tcp(), .udp = -1};
    say(&ranks[i], &m);
    hear(&ranks[i], SML_CTL_WELCOME);
    ranks[i].welcome = ranks[i].last.u.welcome;
  }
  for (uint32_t i = 0; i < 2; i++) hello(&ranks[i]);
  for (uint32_t i = 0; i < 2; i++) hear(&ranks[i], SML_CTL_START);
  hear(&ranks[0], SML_CTL_RANK_GONE); /* both are silent since, but rank 0's updates are counted */
  assert_int_equal(ranks[0].last.u.rank_gone.ranks[0], 1);
  is_rank_0_stopped = true;
  await_note("rank_lost(x)");
  for (uint32_t i = 0; i < 2; i++) hang_up(&ranks[i]);
  end();
}

/* ---- a rank whose host moves to another port of the switch ---- */

static struct sml_place moved_to[2];
static atomic_uint num_moves;

static bool follow(void *user, uint16_t job, const struct sml_place *places, char *error, size_t error_bytes) {
  (void)user, (void)job;
  memcpy(moved_to, places, sizeof moved_to);
  num_moves++;
  snprintf(error, error_bytes, "port 9 is of another pipe");
  return places[1].port != 9;
}

/* As a switch passes it on: with the port that it came by, and the sender's MAC. */
static void greet_by(struct rank *r, uint64_t nonce, uint16_t port) {
  uint8_t frame[9000] = {0};
  struct sml_header h = header_of(r, SML_PACKET_HELLO, 16);
  h.epoch = r->start.epoch;
  h.slot = port;
  h.phase = 0x02000000;
  h.tag = r->rank;
  sml_store_be64(frame + SML_HEADER_BYTES, nonce);
  assert_false(exchange(r, 0, &h, frame, false));
}

/* Each HELLO with the rank's nonce says where it is; one with another nonce, as by whoever uses its address, says
 * nothing. In a running job none is answered: the answer would go to where the rank was. */
static void test_a_moved_rank_is_followed(void **state) {
  (void)state;
  struct sml_aggd_options options = at_switch();
  fake.follow = follow;
  num_moves = 0;
  begin_with(options);
  for (uint32_t i = 0; i < 2; i++) join_switch(&ranks[i], "x", i);
  for (uint32_t i = 0; i < 2; i++) hello(&ranks[i]);
  for (uint32_t i = 0; i < 2; i++) {
    hear(&ranks[i], SML_CTL_START);
    ranks[i].start = ranks[i].last.u.start;
  }
  greet_by(&ranks[1], ranks[1].welcome.nonce ^ 1, 5);
  greet_by(&ranks[1], ranks[1].welcome.nonce, 6);
  await_note("host_moved(x)");
  assert_int_equal(num_moves, 1);
  assert_int_equal(moved_to[1].port, 6);
  assert_int_equal(moved_to[1].mac, 0x020000000001);
  assert_int_equal(moved_to[0].port, 0);
  greet_by(&ranks[1], ranks[1].welcome.nonce, 6); /* it is there already */
  greet_by(&ranks[1], ranks[1].welcome.nonce, 9); /* where it cannot be followed */
  for (uint32_t i = 0; i < 2; i++) {
    hear(&ranks[i], SML_CTL_ABORT);
    assert_string_equal(ranks[i].last.u.abort.detail, "port 9 is of another pipe");
    assert_int_equal(recv(ranks[i].udp, (uint8_t[64]){0}, 64, MSG_DONTWAIT), -1);
    hang_up(&ranks[i]);
  }
  assert_int_equal(num_moves, 2);
  end();
}

static void report_by(struct rank *r, uint32_t first, uint32_t payload_bytes) {
  uint8_t frame[9000] = {0};
  struct sml_header h = header_of(r, (enum sml_packet_type)SML_PACKET_SWITCH_REPORT, payload_bytes);
  h.epoch = r->start.epoch;
  h.chunk = first;
  assert_false(exchange(r, 0, &h, frame, false));
}

static uint32_t num_heard;
static uint64_t heard_mac;

static void hear_host(void *user, uint64_t mac, uint16_t port, char *why, size_t why_bytes) {
  (void)user;
  num_heard++;
  heard_mac = mac;
  snprintf(why, why_bytes, "port %u is shut", port);
}

static void tell_of_host(struct rank *r, uint64_t mac, uint16_t port, uint16_t payload_bytes) {
  uint8_t frame[9000] = {0};
  struct sml_header h = header_of(r, (enum sml_packet_type)SML_PACKET_SWITCH_HEARD, payload_bytes);
  h.job = 0;
  h.epoch = 0;
  h.slot = port;
  h.phase = (uint32_t)(mac >> 16);
  h.tag = (uint32_t)(mac & 0xffff);
  assert_false(exchange(r, 0, &h, frame, false));
}

/* Whoever has a rank's addresses and epoch can write a report or HELLO, and a switch passes on what it does not look
 * into. Only the voucher is the switch's own. */
static void test_only_what_the_switch_vouches_for_counts(void **state) {
  (void)state;
  struct sml_aggd_options options = at_switch();
  fake.follow = follow;
  fake.hear = hear_host;
  num_moves = num_heard = 0;
  begin_with(options);
  for (uint32_t i = 0; i < 2; i++) join_switch(&ranks[i], "x", i);
  for (uint32_t i = 0; i < 2; i++) hello(&ranks[i]);
  for (uint32_t i = 0; i < 2; i++) {
    hear(&ranks[i], SML_CTL_START);
    ranks[i].start = ranks[i].last.u.start;
  }
  for (uint32_t bit = 0; bit < 33; bit++) { /* another one, and none at all: the CRC is right */
    const uint32_t voucher = played_switch.voucher;
    played_switch.voucher ^= (uint32_t)(UINT64_C(1) << bit);
    played_switch.is_there = bit < 32;
    report_by(&ranks[1], 0, 0);
    greet_by(&ranks[1], ranks[1].welcome.nonce, 7);
    tell_of_host(&ranks[1], 0x020000000001, 7, 0);
    played_switch.voucher = voucher;
    played_switch.is_there = true;
  }
  report_by(&ranks[1], 0, 4); /* which no switch sends */
  tell_of_host(&ranks[1], 0x020000000002, 7, 4);
  tell_of_host(&ranks[1], 0x0200deadbeef, 5, 0);
  await_note("port_shut()");
  greet_by(&ranks[1], ranks[1].welcome.nonce, 6);
  await_note("host_moved(x)");
  assert_int_equal(num_moves, 1);
  assert_int_equal(num_heard, 1);
  assert_int_equal(heard_mac, 0x0200deadbeef);
  assert_int_equal(moved_to[1].port, 6);
  report_by(&ranks[1], 0, 0);
  for (uint32_t i = 0; i < 2; i++) {
    hear(&ranks[i], SML_CTL_ABORT);
    assert_int_equal(ranks[i].last.u.abort.status, SML_ERR_MISMATCH);
    hang_up(&ranks[i]);
  }
  assert_int_equal(num_moves, 1);
  end();
}

/* What it counts and what its cells hold is told, to ranks, too, and asked for once a second; of one that does not
 * answer nothing but what it told before. */
static void test_figures_of_a_switch(void **state) {
  (void)state;
  struct sml_aggd_options options = at_switch();
  for (uint32_t round = 0; round < 2; round++) {
    is_switch_silent = round == 1;
    num_counter_reads = 0;
    begin_with(options);
    for (uint32_t i = 0; i < 2; i++) join_switch(&ranks[i], "x", i);
    for (uint32_t i = 0; i < 2; i++) hello(&ranks[i]);
    for (uint32_t i = 0; i < 2; i++) hear(&ranks[i], SML_CTL_START);
    for (uint32_t look = 0; look < 2; look++) {
      struct sml_snapshot *s = sml_aggd_snapshot(aggd);
      assert_non_null(s);
      assert_true(s->at_switch.is_there && s->jobs[0].does.is_at_switch);
      assert_int_equal(s->at_switch.read_ns != 0, round == 0);
      assert_int_equal(s->at_switch.counts[SML_AT_SWITCH_COMPLETED], round == 0 ? SML_AT_SWITCH_COMPLETED : 0);
      assert_int_equal(s->lanes[0].num_drops[SML_DROP_BAD_SLOT], round == 0 ? SML_DROP_BAD_SLOT : 0);
      assert_int_equal(s->jobs[0].does.has_slots, round == 0);
      assert_int_equal(s->jobs[0].does.slots_waiting, round == 0);
      for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(s->ranks[i].look.slots_missing, round == 0 && s->ranks[i].member.rank == 0);
      sml_snapshot_release(s);
      usleep(150000); /* until a snapshot is old */
    }
    assert_int_equal(num_counter_reads, 1);
    say(&ranks[1], &(struct sml_ctl_message){.kind = SML_CTL_ASK});
    hear(&ranks[1], SML_CTL_REPORT);
    const struct sml_ctl_report *report = &ranks[1].last.u.report;
    assert_int_equal(report->num_ranks, round == 0);
    assert_string_equal(report->detail, round == 0 ? "every rank has called what the others have, 1 slot waits for "
                                                     "rank 0 with 1 of 2 contributions (lane 0 slot 5)"
                                                   : "every rank has called what the others have, the switch does not "
                                                     "tell which slots wait");
    for (uint32_t i = 0; i < 2; i++) hang_up(&ranks[i]);
    end();
  }
  is_switch_silent = false;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_lost_switch_ends_jobs),    cmocka_unit_test(test_data_at_a_switch_is_a_sign_of_life),
      cmocka_unit_test(test_a_moved_rank_is_followed), cmocka_unit_test(test_only_what_the_switch_vouches_for_counts),
      cmocka_unit_test(test_figures_of_a_switch),      cmocka_unit_test(test_all_who_have_gone_are_looked_for_at_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
