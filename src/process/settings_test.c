/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "process/settings.h"

static const char *const names[] = {"SWITCHML_THREADS",      "SWITCHML_NO_OFFLOAD", "SWITCHML_KERNELS",
                                    "SWITCHML_FAULTS",       "SWITCHML_DEBUG",      "SWITCHML_POLL",
                                    "SWITCHML_CPUS",         "SWITCHML_CONGESTION", "SWITCHML_TRACE",
                                    "SWITCHML_TRACE_EVENTS", "SWITCHML_TRACE_DIR",  "SWITCHML_PCAP"};

static int clear_environment(void **state) {
  (void)state;
  for (size_t i = 0; i < SML_ARRAY_LEN(names); i++) unsetenv(names[i]);
  return 0;
}

static void defaults(void **state) {
  (void)state;
  struct sml_settings s;
  for (size_t i = 0; i < SML_ARRAY_LEN(names); i++) setenv(names[i], "", 1); /* empty is unset */
  assert_int_equal(sml_settings_read(NULL, &s), SML_OK);
  assert_int_equal(s.num_threads, 1);
  assert_int_equal(s.num_operations, 1024);
  assert_false(s.no_offload);
  assert_false(s.no_congestion_control);
  assert_int_equal(sml_cpus_of_thread(&s.cpus, 0), SML_MAX_CPUS);
  assert_false(s.has_faults);
  assert_int_equal(s.poll, SML_POLL_AUTO);
  assert_non_null(s.kernels);
  assert_int_equal(s.log_level, SML_LIB_LOG_WARN);
}

static void options_and_environment(void **state) {
  (void)state;
  struct sml_settings s;
  setenv("SWITCHML_THREADS", "3", 1);
  setenv("SWITCHML_NO_OFFLOAD", "1", 1);
  setenv("SWITCHML_KERNELS", "scalar", 1);
  setenv("SWITCHML_FAULTS", "loss=0.5,seed=7", 1);
  setenv("SWITCHML_DEBUG", "TRACE", 1);
  setenv("SWITCHML_POLL", "block", 1);
  setenv("SWITCHML_CONGESTION", "0", 1);
  setenv("SWITCHML_CPUS", "1,7-8", 1);
  assert_int_equal(sml_settings_read(NULL, &s), SML_OK);
  assert_int_equal(s.num_threads, 3);
  assert_true(s.no_offload);
  assert_true(s.no_congestion_control);
  assert_int_equal(sml_cpus_of_thread(&s.cpus, 2), 8);
  assert_string_equal(s.kernels->name, "scalar");
  assert_int_equal(s.poll, SML_POLL_BLOCK);
  assert_true(s.has_faults);
  assert_int_equal(s.log_level, SML_LIB_LOG_TRACE);
  sml_context_options o = SML_CONTEXT_OPTIONS_INIT;
  o.num_threads = 2; /* the program knows better than the environment */
  o.num_operations = 5;
  o.poll = SML_POLL_BUSY;
  o.cpus = "3";
  assert_int_equal(sml_settings_read(&o, &s), SML_OK);
  assert_int_equal(s.num_threads, 2);
  assert_int_equal(s.num_operations, 8);
  assert_int_equal(s.poll, SML_POLL_BUSY);
  assert_int_equal(sml_cpus_of_thread(&s.cpus, 2), 3);
}

static void bad_values_are_errors_that_name_the_variable(void **state) {
  (void)state;
  static const struct {
    const char *name, *value;
  } bad[] = {
      {"SWITCHML_THREADS", "0"},      {"SWITCHML_THREADS", "17"},     {"SWITCHML_THREADS", "-1"},
      {"SWITCHML_THREADS", "2x"},     {"SWITCHML_THREADS", " 2"},     {"SWITCHML_THREADS", "99999999999999999999999"},
      {"SWITCHML_NO_OFFLOAD", "on"},  {"SWITCHML_CONGESTION", "off"}, {"SWITCHML_KERNELS", "sse"},
      {"SWITCHML_KERNELS", "AVX2"},   {"SWITCHML_FAULTS", "loss=2"},  {"SWITCHML_CPUS", "0-"},
      {"SWITCHML_CPUS", "all"},       {"SWITCHML_FAULTS", "noise"},   {"SWITCHML_POLL", "Auto"},
      {"SWITCHML_POLL", "1"},         {"SWITCHML_TRACE", "on"},       {"SWITCHML_TRACE_EVENTS", "16777217"},
      {"SWITCHML_TRACE_EVENTS", "-"},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(bad); i++) {
    struct sml_settings s;
    clear_environment(NULL);
    setenv(bad[i].name, bad[i].value, 1);
    assert_int_equal(sml_settings_read(NULL, &s), SML_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(sml_error_detail(), bad[i].name));
  }
}

static void bad_options_are_errors(void **state) {
  (void)state;
  struct sml_settings s;
  sml_context_options o = {.struct_bytes = 0};
  assert_int_equal(sml_settings_read(&o, &s), SML_ERR_INVALID_ARGUMENT);
  o = (sml_context_options)SML_CONTEXT_OPTIONS_INIT;
  o.num_threads = 17;
  assert_int_equal(sml_settings_read(&o, &s), SML_ERR_INVALID_ARGUMENT);
  o = (sml_context_options)SML_CONTEXT_OPTIONS_INIT;
  o.num_operations = 65537;
  assert_int_equal(sml_settings_read(&o, &s), SML_ERR_INVALID_ARGUMENT);
  o = (sml_context_options)SML_CONTEXT_OPTIONS_INIT;
  o.poll = 3;
  assert_int_equal(sml_settings_read(&o, &s), SML_ERR_INVALID_ARGUMENT);
  o = (sml_context_options)SML_CONTEXT_OPTIONS_INIT;
  o.no_offload = 2;
  assert_int_equal(sml_settings_read(&o, &s), SML_ERR_INVALID_ARGUMENT);
  o = (sml_context_options)SML_CONTEXT_OPTIONS_INIT;
  o.no_congestion_control = UINT32_MAX;
  assert_int_equal(sml_settings_read(&o, &s), SML_ERR_INVALID_ARGUMENT);
  o = (sml_context_options)SML_CONTEXT_OPTIONS_INIT;
  o.cpus = "1024";
  assert_int_equal(sml_settings_read(&o, &s), SML_ERR_INVALID_ARGUMENT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(defaults, clear_environment),
      cmocka_unit_test_setup(options_and_environment, clear_environment),
      cmocka_unit_test(bad_values_are_errors_that_name_the_variable),
      cmocka_unit_test_setup(bad_options_are_errors, clear_environment),
  };
  return cmocka_run_group_tests(tests, NULL, clear_environment);
}
