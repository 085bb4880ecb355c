/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

static void expect(const char *given, const char *plain) {
  char text[64];
  snprintf(text, sizeof text, "%s", given);
  assert_int_equal(sml_text_is_plain(given, strlen(given)), strcmp(given, plain) == 0);
  sml_text_make_plain(text);
  assert_string_equal(text, plain);
  assert_true(sml_text_is_plain(text, strlen(text)));
}

static void test_texts_of_people_stay(void **state) {
  (void)state;
  expect("", "");
  expect("rank 3: MTU 1500?", "rank 3: MTU 1500?");
  expect("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \xd7\xa9", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \xd7\xa9");
  expect("\xc2\xa0\xef\xbf\xbf\xf4\x8f\xbf\xbf", "\xc2\xa0\xef\xbf\xbf\xf4\x8f\xbf\xbf");
}

static void test_controls_go(void **state) {
  (void)state;
  expect("a\nb\x1b[31mc\x7f\t", "a b [31mc  ");
  expect(
      "\xc2\x9b"
      "31m",
      "??31m"); /* C1: CSI in one character */
  expect("\xc2\x80\xc2\x9f\xc2\x85", "??????");
  expect(
      "a\xe2\x80\xae"
      "b\xe2\x81\xa6\xe2\x80\x8f\xd8\x9c",
      "a???b????????"); /* right to left, isolates, marks */
  expect(
      "a\xe2\x80\xa8"
      "b",
      "a???b"); /* a line that ends */
}

static void test_what_is_no_utf_8_goes(void **state) {
  (void)state;
  expect("\xff\xfe", "??");
  expect("caf\xe9", "caf?");          /* Latin-1 */
  expect("cut \xe2\x82", "cut ??");   /* in the middle of a character */
  expect("\xc0\xaf\xc1\xbf", "????"); /* longer than need be */
  expect("\xe0\x80\xaf\xf0\x80\x80\xaf", "???????");
  expect("\xed\xa0\x80", "???");                /* half of a pair */
  expect("\xf4\x90\x80\x80\xf8\x88", "??????"); /* beyond the last character */
  expect("\xe2\x28\xa1", "?(?");
}

static void test_distance(void **state) {
  (void)state;
  assert_int_equal(sml_text_distance("bench", "bench"), 0);
  assert_int_equal(sml_text_distance("benhc", "bench"), 2);
  assert_int_equal(sml_text_distance("stats", "status"), 1);
  assert_int_equal(sml_text_distance("", "top"), 3);
}

static void test_loopback(void **state) {
  (void)state;
  static const char *const own[] = {"127.0.0.1", "127.9.9.9:48879", "[::1]", "[::1]:80", "[::ffff:127.0.0.1]:5"};
  static const char *const others[] = {"", "128.0.0.1", "[::]:80", "[::2]", "1127.0.0.1", "[::ffff:10.0.0.1]:5"};
  for (size_t i = 0; i < SML_ARRAY_LEN(own); i++) assert_true(sml_text_is_loopback(own[i]));
  for (size_t i = 0; i < SML_ARRAY_LEN(others); i++) assert_false(sml_text_is_loopback(others[i]));
}

static void test_lists(void **state) {
  (void)state;
  assert_true(sml_text_lists("eth0", "eth0"));
  assert_true(sml_text_lists("a,bc,d", "bc") && sml_text_lists("a,bc,d", "a") && sml_text_lists("a,bc,d", "d"));
  assert_false(sml_text_lists("a,bc,d", "b") || sml_text_lists("a,bc,d", "bcd") || sml_text_lists("a,bc,d", "c"));
  assert_false(sml_text_lists(NULL, "a") || sml_text_lists("", "a"));
}

static void test_ages(void **state) {
  (void)state;
  static const struct {
    double seconds;
    const char *text;
  } ages[] = {{-1, "-"},      {0, "0.0 s"},      {9.9, "9.9 s"}, {10, "10 s"},   {119, "119 s"},
              {120, "2 min"}, {7199, "120 min"}, {7200, "2 h"},  {172800, "2 d"}};
  for (size_t i = 0; i < SML_ARRAY_LEN(ages); i++) {
    char text[32];
    assert_string_equal(sml_text_age(text, sizeof text, ages[i].seconds), ages[i].text);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_texts_of_people_stay),
      cmocka_unit_test(test_controls_go),
      cmocka_unit_test(test_what_is_no_utf_8_goes),
      cmocka_unit_test(test_distance),
      cmocka_unit_test(test_loopback),
      cmocka_unit_test(test_lists),
      cmocka_unit_test(test_ages),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
