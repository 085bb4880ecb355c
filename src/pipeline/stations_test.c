/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/stations.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define MAC UINT64_C(0x020000000005)
#define START (1000 * SML_NS_PER_S)

static struct sml_stations stations;

static int forget_all(void **state) {
  (void)state;
  memset(&stations, 0, sizeof stations);
  return 0;
}

static void hosts_are_learned_and_forgotten(void **state) {
  (void)state;
  assert_int_equal(sml_stations_find(&stations, MAC, START), SML_NO_STATION);
  assert_true(sml_stations_hear(&stations, MAC, 3, START));
  assert_int_equal(sml_stations_find(&stations, MAC, START), 3);
  assert_int_equal(sml_stations_find(&stations, MAC + 1, START), SML_NO_STATION);
  assert_int_equal(sml_stations_find(&stations, MAC, START + 300 * SML_NS_PER_S), 3);
  assert_int_equal(sml_stations_find(&stations, MAC, START + 301 * SML_NS_PER_S), SML_NO_STATION);
}

static void groups_are_nobody(void **state) {
  (void)state;
  assert_true(sml_stations_hear(&stations, UINT64_C(0xffffffffffff), 3, START));
  assert_true(sml_stations_hear(&stations, 0, 3, START));
  assert_int_equal(sml_stations_find(&stations, UINT64_C(0xffffffffffff), START), SML_NO_STATION);
  assert_int_equal(sml_stations_find(&stations, 0, START), SML_NO_STATION);
}

/* A host that another switch gives back by its second link is where it was; one that was silent has moved. */
static void what_goes_round_moves_nobody(void **state) {
  (void)state;
  assert_true(sml_stations_hear(&stations, MAC, 3, START));
  for (uint64_t i = 0; i < 10; i++) assert_false(sml_stations_hear(&stations, MAC, 4, START + i * SML_NS_PER_MS));
  assert_int_equal(sml_stations_find(&stations, MAC, START), 3);
  assert_true(sml_stations_hear(&stations, MAC, 4, START + SML_NS_PER_S));
  assert_int_equal(sml_stations_find(&stations, MAC, START + SML_NS_PER_S), 4);
  assert_false(sml_stations_hear(&stations, MAC, 3, START + SML_NS_PER_S));
}

/* Two links to one switch, whose host is known by device 3: what came by 3 is not sent back by 4 for a while. */
static void two_links_are_known_for_a_while(void **state) {
  (void)state;
  assert_false(sml_stations_goes_round(&stations, 3, 4, START));
  sml_stations_note_round(&stations, 4, 3, START);
  assert_true(sml_stations_goes_round(&stations, 3, 4, START + SML_NS_PER_S / 2 - 1));
  assert_false(sml_stations_goes_round(&stations, 3, 4, START + SML_NS_PER_S / 2));
  assert_false(sml_stations_goes_round(&stations, 4, 3, START));
  assert_false(sml_stations_goes_round(&stations, 5, 4, START)); /* others' frames go by both */
}

/* More hosts than places: those that are known stay known, and the others are flooded to. */
static void too_many_take_nobodys_place(void **state) {
  (void)state;
  uint32_t num_known = 0;
  for (uint64_t i = 1; i <= 3 * SML_NUM_STATIONS; i++) assert_true(sml_stations_hear(&stations, i << 4, 5, START));
  for (uint64_t i = 1; i <= 3 * SML_NUM_STATIONS; i++) num_known += sml_stations_find(&stations, i << 4, START) == 5;
  assert_true(num_known > SML_NUM_STATIONS / 2 && num_known <= SML_NUM_STATIONS);
  assert_int_equal(sml_stations_find(&stations, 1 << 4, START), 5);
  assert_true(sml_stations_hear(&stations, MAC, 6, START + 301 * SML_NS_PER_S));
  assert_int_equal(sml_stations_find(&stations, MAC, START + 301 * SML_NS_PER_S), 6);
}

static void addresses_of_a_frame(void **state) {
  (void)state;
  const uint8_t frame[14] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 8, 0};
  assert_int_equal(sml_stations_target(frame), 0x010203040506);
  assert_int_equal(sml_stations_source(frame), 0x0708090a0b0c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(hosts_are_learned_and_forgotten, forget_all),
      cmocka_unit_test_setup(groups_are_nobody, forget_all),
      cmocka_unit_test_setup(what_goes_round_moves_nobody, forget_all),
      cmocka_unit_test_setup(two_links_are_known_for_a_while, forget_all),
      cmocka_unit_test_setup(too_many_take_nobodys_place, forget_all),
      cmocka_unit_test(addresses_of_a_frame),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
