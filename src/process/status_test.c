/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "process/status.h"

static void every_status_has_a_text_of_its_own(void **state) {
  (void)state;
  for (int a = SML_ERR_KEY; a <= SML_IN_PROGRESS; a++) {
    assert_string_not_equal(sml_status_string((sml_status)a), "unknown status");
    for (int b = a + 1; b <= SML_IN_PROGRESS; b++)
      assert_string_not_equal(sml_status_string((sml_status)a), sml_status_string((sml_status)b));
  }
  assert_string_equal(sml_status_string((sml_status)(SML_ERR_KEY - 1)), "unknown status");
  assert_string_equal(sml_status_string((sml_status)2), "unknown status");
}

static void version_is_the_headers(void **state) {
  (void)state;
  char text[32];
  snprintf(text, sizeof text, "%d.%d.%d", SML_VERSION_MAJOR, SML_VERSION_MINOR, SML_VERSION_PATCH);
  assert_string_equal(sml_version(), text);
}

static void detail_may_contain_itself_and_is_cut(void **state) {
  (void)state;
  assert_int_equal(sml_fail(SML_ERR_BUSY, "first"), SML_ERR_BUSY);
  sml_fail(SML_ERR_BUSY, "rank 1: %s", sml_error_detail());
  assert_string_equal(sml_error_detail(), "rank 1: first");
  sml_fail(SML_ERR_BUSY, "%0800d", 1);
  assert_int_equal(strlen(sml_error_detail()), SML_ERROR_DETAIL_BYTES - 1);
}

/* Names of files, what strangers at the rendezvous say: a reader of logs must not take it for a line of ours. */
static void detail_is_one_line_of_plain_text(void **state) {
  (void)state;
  sml_fail(SML_ERR_TIMEOUT, "rank 1 has come already, from %s", "a\r\nb\x1b[2J \xc2\x9b \xff");
  assert_string_equal(sml_error_detail(), "rank 1 has come already, from a  b [2J ?? ?");
}

static void older_and_newer_structs_are_read(void **state) {
  (void)state;
  sml_operation_options to;
  struct {
    size_t struct_bytes;
    uint64_t key;
  } older = {sizeof older, 7};
  assert_int_equal(sml_options_copy(&to, sizeof to, &older, "x"), SML_OK);
  assert_int_equal(to.key, 7);
  assert_int_equal(to.timeout_ns, 0);
  assert_int_equal(to.struct_bytes, sizeof to);
  struct {
    sml_operation_options known;
    uint64_t later;
  } newer = {.known = {.struct_bytes = sizeof newer, .key = 8}};
  assert_int_equal(sml_options_copy(&to, sizeof to, &newer, "x"), SML_OK);
  assert_int_equal(to.key, 8);
  newer.later = 1;
  assert_int_equal(sml_options_copy(&to, sizeof to, &newer, "x"), SML_ERR_UNSUPPORTED);
  newer.later = 0;
  newer.known.reserved = 1; /* where a later option may be */
  assert_int_equal(sml_options_copy(&to, sizeof to, &newer, "x"), SML_ERR_UNSUPPORTED);
  const size_t wrong[] = {0, 7, 4097, SIZE_MAX};
  for (size_t i = 0; i < SML_ARRAY_LEN(wrong); i++) {
    newer.known.struct_bytes = wrong[i];
    assert_int_equal(sml_options_copy(&to, sizeof to, &newer, "x"), SML_ERR_INVALID_ARGUMENT);
  }
}

static void results_are_written_as_far_as_known(void **state) {
  (void)state;
  const sml_error from = {.struct_bytes = sizeof from, .status = SML_ERR_BUSY, .num_ranks = 3};
  struct {
    size_t struct_bytes;
    sml_status status;
    uint32_t untouched;
  } older = {offsetof(sml_error, num_ranks), SML_OK, 99};
  assert_int_equal(sml_result_copy(&older, &from, sizeof from, "x"), SML_OK);
  assert_int_equal(older.status, SML_ERR_BUSY);
  assert_int_equal(older.untouched, 99);
  struct {
    sml_error known;
    uint64_t later;
  } newer = {.known = {.struct_bytes = sizeof newer}, .later = 5};
  assert_int_equal(sml_result_copy(&newer, &from, sizeof from, "x"), SML_OK);
  assert_int_equal(newer.known.num_ranks, 3);
  assert_int_equal(newer.later, 0);
  assert_int_equal(newer.known.struct_bytes, sizeof newer);
  sml_error cut = {.struct_bytes = offsetof(sml_error, detail) + 8}; /* an older header's text was shorter */
  sml_error long_one = from;
  memset(long_one.detail, 'x', sizeof long_one.detail - 1);
  assert_int_equal(sml_error_copy(&cut, &long_one), SML_OK);
  assert_string_equal(cut.detail, "xxxxxxx");
  newer.known.struct_bytes = 0;
  assert_int_equal(sml_result_copy(&newer, &from, sizeof from, "x"), SML_ERR_INVALID_ARGUMENT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_status_has_a_text_of_its_own),   cmocka_unit_test(version_is_the_headers),
      cmocka_unit_test(detail_may_contain_itself_and_is_cut), cmocka_unit_test(detail_is_one_line_of_plain_text),
      cmocka_unit_test(older_and_newer_structs_are_read),     cmocka_unit_test(results_are_written_as_far_as_known),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
