/* SPDX-License-Identifier: Apache-2.0 */
#include "aggd/switch_look.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define VALID UINT32_C(0x80000000)
#define TURN UINT32_C(0x40000000)

static void slots_that_wait_are_counted(void **state) {
  (void)state;
  const uint32_t words[] = {0,         VALID,            /* never used, preset */
                            VALID | 7, VALID | TURN | 7, /* complete, both */
                            VALID | 7, VALID | 5,        /* waits for 1 */
                            TURN,      VALID | TURN | 4, /* waits for 0 and 1 */
                            VALID | 3, VALID | 8};       /* waits for 2; a bit that is nobody's */
  struct sml_job_look look = {.num_lanes = 1};
  uint32_t missing[3] = {0};
  sml_switch_look(words, 5, 3, &look, missing);
  assert_int_equal(look.slots_waiting, 3);
  assert_int_equal(look.least_contributions, 1);
  assert_int_equal(look.most_contributions, 2);
  assert_int_equal(look.waiting_slot, 3);
  assert_int_equal(missing[0], 1);
  assert_int_equal(missing[1], 2);
  assert_int_equal(missing[2], 1);
}

static void the_most_contributors(void **state) {
  (void)state;
  const uint32_t words[] = {VALID | TURN | 0x3fffffff, VALID | TURN | 0x1fffffff};
  struct sml_job_look look = {.num_lanes = 1};
  uint32_t missing[SML_SWITCH_MAX_CONTRIBUTORS] = {0};
  sml_switch_look(words, 1, SML_SWITCH_MAX_CONTRIBUTORS, &look, missing);
  assert_int_equal(look.slots_waiting, 1);
  assert_int_equal(look.least_contributions, 29);
  assert_int_equal(missing[29], 1);
  assert_int_equal(missing[28], 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(slots_that_wait_are_counted),
                                     cmocka_unit_test(the_most_contributors)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
