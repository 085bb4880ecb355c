/* SPDX-License-Identifier: Apache-2.0
 * What findings come to: which one decides, how much slower a narrow link is, which name was meant. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "cli/doctor/doctor.h"

static void test_the_worst_finding_decides(void **state) {
  (void)state;
  for (int class = SML_DOCTOR_NAME; class <= SML_DOCTOR_HOST; class ++) {
    const int failed = sml_doctor_status_of((enum sml_doctor_class) class, SML_FINDING_FAILED);
    const int warned = sml_doctor_status_of((enum sml_doctor_class) class, SML_FINDING_WARNING);
    assert_int_equal(sml_doctor_status_of((enum sml_doctor_class) class, SML_FINDING_OK), 0);
    assert_int_equal(sml_doctor_status_of((enum sml_doctor_class) class, SML_FINDING_SKIPPED), 0);
    assert_true(failed > SML_DOCTOR_USAGE && warned > failed && warned < 125); /* shells have their own from there on */
    assert_int_equal(sml_doctor_worse(failed, 0), failed);
    assert_int_equal(sml_doctor_worse(0, warned), warned);
    for (int other = SML_DOCTOR_NAME; other <= SML_DOCTOR_HOST; other++) {
      const int other_warned = sml_doctor_status_of((enum sml_doctor_class)other, SML_FINDING_WARNING);
      assert_int_equal(sml_doctor_worse(failed, other_warned), failed);
      assert_int_equal(sml_doctor_worse(other_warned, failed), failed);
      assert_int_equal(sml_doctor_worse(warned, other_warned), warned < other_warned ? warned : other_warned);
    }
  }
}

#define EXPECT_NEAR(value, expected) assert_true((value) > (expected)*0.9999 && (value) < (expected)*1.0001)

/* Against a ring, which takes 2(n-1)/n S/B. */
static void test_a_narrow_link_is_slow(void **state) {
  (void)state;
  EXPECT_NEAR(sml_doctor_slowdown(8, 1, 1000, 8000), 8.0 / 14);  /* as wide as all workers: S/B */
  EXPECT_NEAR(sml_doctor_slowdown(8, 1, 1000, 80000), 8.0 / 14); /* wider does not help */
  EXPECT_NEAR(sml_doctor_slowdown(8, 1, 1000, 1000), 8 * 8.0 / 14);
  EXPECT_NEAR(sml_doctor_slowdown(8, 4, 1000, 1000), 2 * 8.0 / 14);
  EXPECT_NEAR(sml_doctor_slowdown(2, 1, 1000, 2000), 1);
  EXPECT_NEAR(sml_doctor_slowdown(2, 0, 1000, 1000), 2);
}

static void test_the_name_that_was_meant(void **state) {
  (void)state;
  bool is_known;
  assert_string_equal(sml_doctor_nearest_variable("SWITCHML_AGREGATOR", &is_known), "SWITCHML_AGGREGATOR");
  assert_false(is_known);
  assert_string_equal(sml_doctor_nearest_variable("SWITCHML_KEYFILE", &is_known), "SWITCHML_KEY_FILE");
  assert_string_equal(sml_doctor_nearest_variable("SWITCHML_TRACE_DRI", &is_known), "SWITCHML_TRACE_DIR");
  assert_string_equal(sml_doctor_nearest_variable("SWITCHML_TRACE", &is_known), "SWITCHML_TRACE");
  assert_true(is_known);
  assert_null(sml_doctor_nearest_variable("SWITCHML_SOMETHING_ELSE", &is_known));
  assert_false(is_known);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_worst_finding_decides),
      cmocka_unit_test(test_a_narrow_link_is_slow),
      cmocka_unit_test(test_the_name_that_was_meant),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
