/* SPDX-License-Identifier: Apache-2.0
 * v1model.p4, translated to C, as an ordinary switch: it learns where hosts are, forgets them, follows them, and a
 * frame that has gone round over two links to one switch does not go round again. */
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(answers_go_to_who_asked, open_bed, close_bed),
      cmocka_unit_test_setup_teardown(hosts_are_forgotten, open_bed, close_bed),
      cmocka_unit_test_setup_teardown(hosts_are_followed, open_bed, close_bed),
      cmocka_unit_test_setup_teardown(what_went_round_is_dropped, open_bed, close_bed),
      cmocka_unit_test_setup_teardown(a_member_is_not_moved_by_who_says_its_name, open_bed, close_bed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
