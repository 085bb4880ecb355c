/* SPDX-License-Identifier: Apache-2.0 */
#include "core/drop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void each_reason_has_a_name_of_its_own(void **state) {
  (void)state;
  for (uint32_t i = 0; i < SML_NUM_DROPS; i++) {
    const char *name = sml_drop_name((enum sml_drop)i);
    assert_non_null(name);
    assert_in_range(strlen(name), 3, 24);
    for (const char *c = name; *c != '\0'; c++) assert_true((*c >= 'A' && *c <= 'Z') || *c == '_');
    for (uint32_t k = 0; k < i; k++) assert_string_not_equal(name, sml_drop_name((enum sml_drop)k));
  }
  assert_string_equal(sml_drop_name(SML_DROP_TRUNCATED), "TRUNCATED");
  assert_string_equal(sml_drop_name(SML_DROP_STALE_PHASE), "STALE_PHASE");
  assert_string_equal(sml_drop_name(SML_DROP_NOT_OUTSTANDING), "NOT_OUTSTANDING");
}

static void each_wire_error_is_a_reason(void **state) {
  (void)state;
  assert_int_equal(sml_drop_of_wire(SML_WIRE_TRUNCATED), SML_DROP_TRUNCATED);
  assert_int_equal(sml_drop_of_wire(SML_WIRE_OVERLONG), SML_DROP_OVERLONG);
  assert_int_equal(sml_drop_of_wire(SML_WIRE_BAD_VERSION), SML_DROP_BAD_VERSION);
  assert_int_equal(sml_drop_of_wire(SML_WIRE_BAD_TYPE), SML_DROP_BAD_TYPE);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_reason_has_a_name_of_its_own),
      cmocka_unit_test(each_wire_error_is_a_reason),
  };
  return cmocka_run_group_tests_name("drop", tests, NULL, NULL);
}
