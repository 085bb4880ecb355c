/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static char captured[1 << 20];

/* Runs body with stderr in a file and reads it back. */
static void capture(void (*body)(void)) {
  char path[] = "/tmp/sml-log-test-XXXXXX";
  int file = mkstemp(path), saved = dup(STDERR_FILENO);
  assert_true(file >= 0 && saved >= 0);
  unlink(path);
  dup2(file, STDERR_FILENO);
  body();
  dup2(saved, STDERR_FILENO);
  close(saved);
  ssize_t n = pread(file, captured, sizeof captured - 1, 0);
  close(file);
  assert_true(n >= 0);
  captured[n] = 0;
}

static uint32_t count_lines(void) {
  uint32_t num_lines = 0;
  for (const char *c = captured; *c; c++) num_lines += *c == '\n';
  return num_lines;
}

static void log_each_level(void) {
  sml_log(SML_LOG_ERROR, "e %d", 1);
  sml_log(SML_LOG_WARNING, "w");
  sml_log(SML_LOG_INFO, "i");
  sml_log(SML_LOG_DEBUG, "d");
}

static void test_levels(void **state) {
  (void)state;
  enum sml_log_level level;
  assert_false(sml_log_parse_level("loud", &level));
  assert_false(sml_log_parse_level("", &level));
  assert_true(sml_log_parse_level("warning", &level));
  sml_log_set_level(level);
  capture(log_each_level);
  assert_int_equal(count_lines(), 2);
  assert_non_null(strstr(captured, "Z error e 1\n"));
  assert_non_null(strstr(captured, "Z warning w\n"));
  sml_log_set_level(SML_LOG_DEBUG);
  capture(log_each_level);
  assert_int_equal(count_lines(), 4);
}

static void log_long(void) {
  static char text[4096];
  memset(text, 'x', sizeof text - 1);
  sml_log(SML_LOG_ERROR, "%s", text);
}

static void test_long_line_is_cut(void **state) {
  (void)state;
  capture(log_long);
  assert_int_equal(count_lines(), 1);
  assert_int_equal(captured[strlen(captured) - 1], '\n');
  assert_true(strlen(captured) < 1100);
}

static void log_flood(void) {
  for (uint32_t i = 0; i < 5000; i++) sml_log(SML_LOG_INFO, "flood");
  sml_log(SML_LOG_ERROR, "still heard");
}

static void test_flood_is_limited(void **state) {
  (void)state;
  capture(log_flood);
  assert_true(count_lines() <= 403); /* a second may have begun in between */
  assert_non_null(strstr(captured, "error still heard\n"));
  sleep(1);
  capture(log_each_level);
  assert_non_null(strstr(captured, "log_lines_left_out count="));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_levels),
      cmocka_unit_test(test_long_line_is_cut),
      cmocka_unit_test(test_flood_is_limited),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
