/* SPDX-License-Identifier: Apache-2.0
 * A context that is destroyed as soon as it was made: its control thread may be anywhere in its first pass. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "switchml/switchml.h"

/* A wake that came between the look at "stop" and the end of the last pass must not be lost: then destroy would wait
 * for ever. */
static void a_context_ends_however_soon(void **state) {
  (void)state;
  for (uint32_t i = 0; i < (SML_IS_SLOW_BUILD ? 300 : 3000); i++) {
    sml_context *context;
    assert_int_equal(sml_context_create(NULL, &context), SML_OK);
    sml_context_destroy(context);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_context_ends_however_soon)};
  return cmocka_run_group_tests_name("context_edge", tests, NULL, NULL);
}
