/* SPDX-License-Identifier: Apache-2.0
 * Programs translated to C as ordinary switches: where hosts are is learned, forgotten and followed, and a frame that
 * has gone round over two links to one switch does not go round again. v1model.p4 does so by itself, tna.p4 tells
 * switchmld of hosts that it does not know. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "switch_bed.h"

#define SECOND_US UINT64_C(1000000)
#define BROADCAST UINT64_C(0xffffffffffff)
#define START_US (UINT64_C(1) << 40)

static struct bed bed;
static struct bed_out out;

static int open_bed(void **state) {
  (void)state;
  bed_open(&bed, BED_V1MODEL, 1);
  bed.machine->set_time(START_US);
  return 0;
}

static int close_bed(void **state) {
  (void)state;
  bed_close(&bed);
  return 0;
}

/* Any datagram, not of ours. */
static void send_frame(uint32_t port, uint64_t from, uint64_t to) {
  static const uint8_t bytes[100];
  uint8_t frame[BED_MAX_FRAME_BYTES];
  struct sml_place place = bed_place(9);
  place.mac = from;
  bed_take(&bed, port, frame, bed_wrap(frame, &place, to, 0x0a0000fe, 9, bytes, sizeof bytes), &out);
}

static uint64_t mac_of(uint32_t host) {
  return bed_place(host).mac;
}

static void expect_flood(void) {
  assert_int_equal(out.num, BED_NUM_PORTS - 1);
}

static void expect_port(uint32_t port) {
  assert_int_equal(out.num, 1);
  assert_int_equal(out.frames[0].port, port);
}

/* The aggregator has an entry from the start; whoever asks to join is known by that. */
static void answers_go_to_who_asked(void **state) {
  (void)state;
  send_frame(2, mac_of(5), BED_AGGREGATOR_MAC);
  expect_port(BED_CPU_PORT);
  send_frame(BED_CPU_PORT, BED_AGGREGATOR_MAC, mac_of(5));
  expect_port(2);
  send_frame(BED_CPU_PORT, BED_AGGREGATOR_MAC, mac_of(6)); /* who never spoke */
  expect_flood();
  send_frame(3, mac_of(6), mac_of(5)); /* no more than the aggregator's are others' frames flooded */
  expect_port(2);
}

static void hosts_are_forgotten(void **state) {
  (void)state;
  send_frame(2, mac_of(5), BROADCAST);
  expect_flood();
  bed.machine->set_time(START_US + 299 * SECOND_US);
  send_frame(3, mac_of(6), mac_of(5));
  expect_port(2);
  bed.machine->set_time(START_US + 301 * SECOND_US);
  send_frame(3, mac_of(6), mac_of(5));
  expect_flood();
}

static void hosts_are_followed(void **state) {
  (void)state;
  send_frame(2, mac_of(5), BROADCAST);
  bed.machine->set_time(START_US + 2 * SECOND_US);
  send_frame(4, mac_of(5), BROADCAST);
  expect_flood();
  send_frame(3, mac_of(6), mac_of(5));
  expect_port(4);
}

static void what_went_round_is_dropped(void **state) {
  (void)state;
  send_frame(2, mac_of(5), BROADCAST);
  expect_flood();
  for (uint32_t i = 0; i < 10; i++) {
    send_frame(7, mac_of(5), BROADCAST); /* another switch, with two links to this one, gives it back */
    assert_int_equal(out.num, 0);
  }
  assert_int_equal(bed_count(&bed, SML_DROP_WRONG_SOURCE), 10);
  send_frame(3, mac_of(6), mac_of(5)); /* and the host has not moved */
  expect_port(2);
}

/* Hosts of running jobs, and the aggregator's, are where the control plane says. */
static void a_member_is_not_moved_by_who_says_its_name(void **state) {
  (void)state;
  struct sml_dataplane_job job = {.number = 3, .epoch = 7, .num_contributors = 2, .num_slots = 4, .slot_base = 64};
  for (uint32_t c = 0; c < 2; c++) job.places[c] = bed_place(c);
  bed_start_job(&bed, &job);
  bed.machine->set_time(START_US + 100 * SECOND_US);
  send_frame(8, mac_of(0), BROADCAST);
  send_frame(8, BED_AGGREGATOR_MAC, BROADCAST);
  send_frame(3, mac_of(6), mac_of(0));
  expect_port(0);
  send_frame(3, mac_of(6), BED_AGGREGATOR_MAC);
  expect_port(BED_CPU_PORT);
}

/* ---- tna.p4, and what switchmld's own code makes of what it tells ---- */

#define SECOND_NS SML_NS_PER_S
#define ROUNDS 50u

static uint64_t now_ns;
static char sentence[512];

static void open_tofino(enum bed_kind kind) {
  bed_open(&bed, kind, 1);
  now_ns = 1000 * SECOND_NS;
  sentence[0] = 0;
}

/* What the switch tells is heard: of one frame, one host. */
static bool is_told(void) {
  char why[512];
  if (out.num != 1 || !bed_hear(&bed, &out.frames[0], now_ns, why, sizeof why)) return false;
  if (why[0] != 0) memcpy(sentence, why, sizeof sentence);
  return true;
}

static void introduce(uint32_t port, uint64_t mac) {
  send_frame(port, mac, BROADCAST);
  assert_true(is_told());
}

static void a_host_is_told_of_first(void **state) {
  (void)state;
  for (enum bed_kind kind = BED_TNA; kind < BED_NUM_KINDS; kind++) {
    open_tofino(kind);
    send_frame(2, mac_of(5), BED_AGGREGATOR_MAC);
    expect_port(BED_CPU_PORT);
    const uint8_t *bytes = out.frames[0].bytes;
    assert_int_equal(sml_load_be32(bytes + 30), BED_AGGREGATOR_IP);
    assert_int_equal(sml_load_be16(bytes + 36), BED_AGGREGATOR_PORT);
    assert_int_equal(sml_load_be16(bytes + 16), 60); /* what was in the frame is behind the datagram's end */
    assert_int_equal(bed_ip_checksum(bytes + 14), 0);
    assert_true(is_told());
    send_frame(2, mac_of(5), BED_AGGREGATOR_MAC);
    expect_port(BED_CPU_PORT);
    assert_false(is_told()); /* but the frame itself */
    send_frame(BED_CPU_PORT, BED_AGGREGATOR_MAC, mac_of(5)); /* nobody else hears the answer */
    expect_port(2);
    introduce(3, mac_of(6));
    send_frame(3, mac_of(6), BROADCAST);
    expect_flood();
    send_frame(3, mac_of(6), mac_of(5));
    expect_port(2);
    bed_close(&bed);
  }
}

static void a_host_moves_after_silence(void **state) {
  (void)state;
  open_tofino(BED_TNA);
  introduce(2, mac_of(5));
  introduce(3, mac_of(6));
  now_ns += 10 * SECOND_NS;
  introduce(4, mac_of(5));
  now_ns += SECOND_NS / 2;
  introduce(4, mac_of(5));
  send_frame(3, mac_of(6), mac_of(5));
  expect_port(2);
  now_ns += SECOND_NS / 2;
  introduce(4, mac_of(5));
  send_frame(3, mac_of(6), mac_of(5));
  expect_port(4);
  send_frame(4, mac_of(5), BROADCAST);
  expect_flood();
  assert_string_equal(sentence, "");
  bed_close(&bed);
}

static void hosts_that_are_silent_are_forgotten(void **state) {
  (void)state;
  open_tofino(BED_TNA);
  introduce(2, mac_of(5));
  introduce(3, mac_of(6));
  now_ns += 301 * SECOND_NS;
  introduce(4, mac_of(7)); /* time is looked at when something is told */
  introduce(3, mac_of(6)); /* it has to speak again */
  send_frame(3, mac_of(6), mac_of(5));
  expect_port(2);
  now_ns += 300 * SECOND_NS;
  introduce(4, mac_of(8));
  send_frame(3, mac_of(6), mac_of(5));
  assert_true(is_told());
  send_frame(3, mac_of(6), mac_of(5));
  expect_flood();
  bed_close(&bed);
}

static uint32_t other_end(uint32_t port) {
  return port == 7 ? 8 : port == 8 ? 7 : UINT32_MAX;
}

/* Ports 7 and 8 lead to one other switch, which gives each frame back by the other one. A frame comes in by that port,
 * and also by port 8 if it is a host's behind them. How many frames came in until nothing went round any more. */
static uint32_t go_round(uint32_t port, uint64_t from) {
  uint32_t waiting[4 * ROUNDS * BED_NUM_PORTS], num = 0, at = 0;
  waiting[num++] = port;
  if (port == 7) waiting[num++] = 8;
  while (at < num && at < ROUNDS) {
    send_frame(waiting[at++], from, BROADCAST);
    if (is_told()) continue;
    for (uint32_t i = 0; i < out.num; i++)
      if (other_end(out.frames[i].port) != UINT32_MAX) waiting[num++] = other_end(out.frames[i].port);
  }
  return at < num ? UINT32_MAX : at;
}

static void two_links_make_no_storm(void **state) {
  (void)state;
  open_tofino(BED_TNA);
  introduce(2, mac_of(5));
  for (uint32_t i = 0; i < 3; i++) assert_in_range(go_round(2, mac_of(5)), 1, 3);
  assert_non_null(strstr(sentence, "020000000006 is at port 2 of the switch and its frames come by port"));
  assert_non_null(strstr(sentence, "gets no floods for 5 minutes"));
  send_frame(2, mac_of(5), BROADCAST); /* one of the links is left */
  assert_int_equal(out.num, BED_NUM_PORTS - 2);
  introduce(3, mac_of(6));
  send_frame(3, mac_of(6), mac_of(5)); /* and the host has not moved */
  expect_port(2);
  bed_close(&bed);
}

/* The other switch gives us a frame of a host of its own by both links. */
static void nor_does_a_host_behind_them(void **state) {
  open_tofino((enum bed_kind)*(const uint32_t *)*state);
  if (bed.kind == BED_V1MODEL) bed.machine->set_time(START_US);
  for (uint32_t i = 0; i < 3; i++) {
    assert_in_range(go_round(7, mac_of(5)), 2, 8);
    bed.machine->set_time(START_US + i * 2 * SECOND_US);
  }
  if (bed.kind == BED_TNA) assert_non_null(strstr(sentence, "two links lead to one network"));
  bed_close(&bed);
}

/* A rank is where its HELLO came by, whoever uses its MAC; its port stays open, and so does the daemon's. */
static void a_member_of_a_tofino_stays(void **state) {
  (void)state;
  open_tofino(BED_TNA);
  struct sml_dataplane_job job = {.number = 3, .epoch = 7, .num_contributors = 2, .num_slots = 4, .slot_base = 64};
  for (uint32_t c = 0; c < 2; c++) job.places[c] = bed_place(c);
  introduce(2, mac_of(0)); /* it was elsewhere before */
  bed_start_job(&bed, &job);
  for (uint32_t i = 0; i < 3; i++) {
    introduce(8, mac_of(0));
    now_ns += 2 * SECOND_NS;
  }
  introduce(3, mac_of(6));
  send_frame(3, mac_of(6), mac_of(0));
  expect_port(0);
  introduce(0, mac_of(0)); /* it speaks itself: who uses its MAC is shut out */
  assert_int_not_equal(bed.jobs.shut_until_ns[8], 0);
  introduce(0, BED_AGGREGATOR_MAC);
  assert_non_null(strstr(sentence, "port 0 has ranks, so it stays open"));
  assert_int_equal(bed.jobs.shut_until_ns[0], 0);
  send_frame(3, mac_of(6), BED_AGGREGATOR_MAC);
  expect_port(BED_CPU_PORT);
  bed.jobs.dataplane.close_job(bed.jobs.dataplane.user, 3);
  send_frame(3, mac_of(6), mac_of(0)); /* it stays known */
  expect_port(0);
  bed_close(&bed);
}

static void nobody_takes_all_the_room(void **state) {
  (void)state;
  open_tofino(BED_TNA);
  for (uint32_t i = 0; i < 1000; i++) introduce(8, UINT64_C(0x020000100000) + i);
  send_frame(8, UINT64_C(0x020000100000) + 255, BROADCAST);
  expect_flood();
  introduce(8, UINT64_C(0x020000100000) + 256);
  introduce(2, mac_of(5));
  send_frame(2, mac_of(5), BROADCAST);
  expect_flood();
  bed_close(&bed);
}

static uint32_t kinds[] = {BED_TNA, BED_V1MODEL};

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(answers_go_to_who_asked, open_bed, close_bed),
      cmocka_unit_test_setup_teardown(hosts_are_forgotten, open_bed, close_bed),
      cmocka_unit_test_setup_teardown(hosts_are_followed, open_bed, close_bed),
      cmocka_unit_test_setup_teardown(what_went_round_is_dropped, open_bed, close_bed),
      cmocka_unit_test_setup_teardown(a_member_is_not_moved_by_who_says_its_name, open_bed, close_bed),
      cmocka_unit_test(a_host_is_told_of_first),
      cmocka_unit_test(a_host_moves_after_silence),
      cmocka_unit_test(hosts_that_are_silent_are_forgotten),
      cmocka_unit_test(two_links_make_no_storm),
      cmocka_unit_test_prestate(nor_does_a_host_behind_them, &kinds[0]),
      cmocka_unit_test_prestate(nor_does_a_host_behind_them, &kinds[1]),
      cmocka_unit_test(a_member_of_a_tofino_stays),
      cmocka_unit_test(nobody_takes_all_the_room),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
