/* SPDX-License-Identifier: Apache-2.0 */
#include "aggd/shown.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static struct sml_shown shown;
static struct sml_ctl_status_part part;

static char *text_of(size_t num_bytes, char fill) {
  char *text = malloc(num_bytes + 1);
  assert_non_null(text);
  memset(text, fill, num_bytes);
  text[num_bytes] = 0;
  return text;
}

static int begin(void **state) {
  (void)state;
  sml_shown_destroy(&shown);
  memset(&shown, 0, sizeof shown);
  return 0;
}

static void test_parts_are_the_text(void **state) {
  (void)state;
  const uint32_t total_bytes = 2 * SML_STATUS_PART_BYTES + 5;
  const uint32_t ticket = sml_shown_put(&shown, "", text_of(total_bytes, 'x'), 1);
  uint32_t offset_bytes = 0;
  while (offset_bytes < total_bytes) {
    assert_true(sml_shown_part(&shown, ticket, offset_bytes, &part));
    assert_int_equal(part.total_bytes, total_bytes);
    assert_int_equal(part.offset_bytes, offset_bytes);
    assert_true(part.num_bytes > 0 && part.text[0] == 'x' && part.text[part.num_bytes - 1] == 'x');
    offset_bytes += part.num_bytes;
  }
  assert_int_equal(part.num_bytes, 5);
  assert_true(sml_shown_part(&shown, ticket, total_bytes, &part));
  assert_int_equal(part.num_bytes, 0);
  assert_false(sml_shown_part(&shown, ticket, total_bytes + 1, &part));
  assert_false(sml_shown_part(&shown, ticket + 1, 0, &part));
  assert_false(sml_shown_part(&shown, SML_SHOWN_NONE, 0, &part));
}

static void test_fresh_texts_are_shared_by_view(void **state) {
  (void)state;
  const uint32_t all = sml_shown_put(&shown, "", text_of(3, 'a'), 1000);
  const uint32_t tenant = sml_shown_put(&shown, "team", text_of(3, 'b'), 1000);
  assert_int_not_equal(all, tenant);
  assert_int_equal(sml_shown_find(&shown, "", 1000), all);
  assert_int_equal(sml_shown_find(&shown, "team", 999 + SML_SHOWN_FRESH_NS), tenant);
  assert_int_equal(sml_shown_find(&shown, "team", 1000 + SML_SHOWN_FRESH_NS), SML_SHOWN_NONE);
  assert_int_equal(sml_shown_find(&shown, "tea", 1000), SML_SHOWN_NONE);
  assert_true(sml_shown_part(&shown, tenant, 0, &part)); /* old, but it can be read to its end */
}

/* Who keeps a text and does not read it is in nobody's way. */
static void test_old_texts_make_room(void **state) {
  (void)state;
  uint32_t tickets[SML_NUM_SHOWN + 1];
  for (uint32_t i = 0; i < SML_NUM_SHOWN; i++) {
    char name[16];
    snprintf(name, sizeof name, "k%u", i);
    assert_true(sml_shown_has_room(&shown, 1000 + i));
    tickets[i] = sml_shown_put(&shown, name, text_of(2, 'x'), 1000 + i);
  }
  assert_false(sml_shown_has_room(&shown, 1000 + SML_NUM_SHOWN));
  const uint64_t later_ns = 1000 + SML_SHOWN_FRESH_NS;
  assert_true(sml_shown_has_room(&shown, later_ns));
  tickets[SML_NUM_SHOWN] = sml_shown_put(&shown, "new", text_of(2, 'y'), later_ns);
  assert_false(sml_shown_part(&shown, tickets[0], 0, &part)); /* the oldest */
  for (uint32_t i = 1; i <= SML_NUM_SHOWN; i++) assert_true(sml_shown_part(&shown, tickets[i], 0, &part));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_parts_are_the_text, begin),
      cmocka_unit_test_setup(test_fresh_texts_are_shared_by_view, begin),
      cmocka_unit_test_setup_teardown(test_old_texts_make_room, begin, begin),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
