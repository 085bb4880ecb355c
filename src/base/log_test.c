/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "base/writer.h"

static char captured[1 << 20];

/* Runs body with stderr in a file and reads it back. */
static void capture(void (*body)(void)) {
  char path[] = "/tmp/sml-log-test-XXXXXX";
  int file = mkstemp(path), saved = dup(STDERR_FILENO);
  assert_true(file >= 0 && saved >= 0);
  unlink(path);
  dup2(file, STDERR_FILENO);
  sml_fd_take_stderr();
  body();
  assert_true(sml_writer_flush(60 * SML_NS_PER_S));
  dup2(saved, STDERR_FILENO);
  sml_fd_take_stderr();
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
  sml_log_event(SML_LOG_ERROR, "e", NULL, 0, "");
  sml_log_event(SML_LOG_WARNING, "w", NULL, 0, "");
  sml_log_event(SML_LOG_INFO, "i", NULL, 0, "");
  sml_log_event(SML_LOG_DEBUG, "d", NULL, 0, "");
}

static void test_levels(void **state) {
  (void)state;
  sml_log_set_level(SML_LOG_WARNING);
  capture(log_each_level);
  assert_int_equal(count_lines(), 2);
  assert_non_null(strstr(captured, "Z error e\n"));
  assert_non_null(strstr(captured, "Z warning w\n"));
  sml_log_set_level(SML_LOG_DEBUG);
  capture(log_each_level);
  assert_int_equal(count_lines(), 4);
}

static void log_long(void) {
  static char text[4096];
  memset(text, 'x', sizeof text - 1);
  sml_log_event(SML_LOG_ERROR, text, NULL, 0, "");
}

static void test_long_line_is_cut(void **state) {
  (void)state;
  capture(log_long);
  assert_int_equal(count_lines(), 1);
  assert_int_equal(captured[strlen(captured) - 1], '\n');
  assert_true(strlen(captured) < 1100);
}

static void log_flood(void) {
  for (uint32_t i = 0; i < 5000; i++) sml_log_event(SML_LOG_INFO, "flood", NULL, 0, "");
  sml_log_event(SML_LOG_ERROR, "still heard", NULL, 0, "");
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

static void log_flood_of_one(void) {
  for (uint32_t i = 0; i < 5000; i++) sml_log_event_of("loud", SML_LOG_INFO, "flood", NULL, 0, "");
  for (uint32_t i = 0; i < 5000; i++) sml_log_event_of("", SML_LOG_DEBUG, "none", NULL, 0, "");
  sml_log_event_of("quiet", SML_LOG_INFO, "tenant heard", NULL, 0, "");
  sml_log_event_of("loud", SML_LOG_ERROR, "error heard", NULL, 0, "");
  sml_log_event(SML_LOG_INFO, "own heard", NULL, 0, "");
}

static void test_one_tenant_hides_no_other(void **state) {
  (void)state;
  sleep(1); /* the flood of before is over */
  sml_log_set_level(SML_LOG_INFO);
  capture(log_flood_of_one);
  sml_log_set_level(SML_LOG_DEBUG);
  assert_in_range(count_lines(), 63, 125); /* a second may have begun in between */
  assert_non_null(strstr(captured, "info tenant heard\n"));
  assert_non_null(strstr(captured, "error error heard\n"));
  assert_non_null(strstr(captured, "info own heard\n"));
}

static const struct sml_log_field fields[] = {{"job", "x", 0},          {"rank", NULL, 3},
                                              {"said", "two words", 0}, {"odd", "a\"b\\c\n\xff", 0},
                                              {"none", "", 0},          {"pair", "A=1", 0}};

static void log_events(void) {
  sml_log_event(SML_LOG_WARNING, "rank_lost", fields, SML_ARRAY_LEN(fields), "it \"went\"");
  sml_log_event(SML_LOG_WARNING, "bare", NULL, 0, "");
}

static void test_events_as_text(void **state) {
  (void)state;
  sleep(1); /* the flood is over */
  capture(log_events);
  assert_non_null(strstr(
      captured,
      "Z warning rank_lost job=x rank=3 said=\"two words\" odd=a'b\\c \xff none=\"\" pair=\"A=1\" \"it 'went'\"\n"));
  assert_non_null(strstr(captured, "Z warning bare\n"));
}

static void test_events_as_json(void **state) {
  (void)state;
  sml_log_set_format(SML_LOG_JSON);
  capture(log_events);
  assert_non_null(strstr(captured, "{\"time\":\"20"));
  assert_non_null(strstr(captured,
                         "Z\",\"level\":\"warning\",\"event\":\"rank_lost\",\"job\":\"x\",\"rank\":3,"
                         "\"said\":\"two words\",\"odd\":\"a\\u0022b\\u005cc\\u000a?\",\"none\":\"\",\"pair\":\"A=1\","
                         "\"text\":\"it \\u0022went\\u0022\"}\n"));
  assert_non_null(strstr(captured, "\"event\":\"bare\"}\n"));
}

static void log_long_events(void) {
  static char text[4096];
  memset(text, '"', sizeof text - 1);
  const struct sml_log_field field = {"job", "x", 0};
  sml_log_event(SML_LOG_ERROR, "rank_lost", &field, 1, text);
  sml_log_event(SML_LOG_ERROR, text, NULL, 0, "");
}

static void test_cut_json_is_json(void **state) {
  (void)state;
  capture(log_long_events);
  assert_int_equal(count_lines(), 2);
  const char *end = strchr(captured, '\n');
  assert_memory_equal(end - 2, "\"}\n", 3);
  assert_memory_equal(captured + strlen(captured) - 3, "\"}\n", 3);
  assert_true(end - captured < 1100);
  sml_log_set_format(SML_LOG_TEXT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_levels),           cmocka_unit_test(test_long_line_is_cut),
      cmocka_unit_test(test_flood_is_limited), cmocka_unit_test(test_one_tenant_hides_no_other),
      cmocka_unit_test(test_events_as_text),   cmocka_unit_test(test_events_as_json),
      cmocka_unit_test(test_cut_json_is_json),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
