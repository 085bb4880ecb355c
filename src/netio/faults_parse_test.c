/* SPDX-License-Identifier: Apache-2.0
 * The text of fault options: what is taken, and what is refused with which words. */
#include "netio/test_support.h"

static void test_good_texts(void **state) {
  (void)state;
  struct sml_fault_options o;
  char error[160] = "";
  assert_true(sml_faults_parse("loss=0.01,duplicate=1,reorder=.05,corrupt=0,seed=7", &o, error, sizeof error));
  assert_true(o.loss == 0.01 && o.duplicate == 1 && o.reorder == 0.05 && o.corrupt == 0 && o.seed == 7);
  assert_true(sml_faults_any(&o));
  assert_true(sml_faults_parse("corrupt=1e-4", &o, error, sizeof error));
  assert_true(o.corrupt == 1e-4 && o.loss == 0);
  assert_true(sml_faults_parse("seed=18446744073709551615,reorder_frames=1024", &o, error, sizeof error));
  assert_true(o.seed == UINT64_MAX && o.reorder_frames == 1024);
  assert_false(sml_faults_any(&o));
  assert_true(sml_faults_parse("loss=0.01,burst=64", &o, error, sizeof error) && o.loss_burst_frames == 64);
  assert_true(sml_faults_parse("loss=1E-99", &o, error, sizeof error));
  assert_true(sml_faults_any(&o));
  assert_true(sml_faults_parse("", &o, error, sizeof error) && !sml_faults_any(&o));
  assert_true(sml_faults_parse(NULL, &o, error, sizeof error) && !sml_faults_any(&o));
  assert_string_equal(error, "");
}

static void test_bad_texts(void **state) {
  (void)state;
  static const struct {
    const char *text, *says;
  } rows[] = {
      {"los=0.1", "'los=0.1' is no fault"},
      {"loss", "is no fault"},
      {"=", "is no fault"},
      {",", "is no fault"},
      {"loss=0.1,", "is no fault"},
      {"loss=0.1,,seed=1", "is no fault"},
      {" loss=0.1", "is no fault"},
      {"loss=", "loss must be a probability"},
      {"loss=.", "must be a probability"},
      {"loss=1.1", "must be a probability"},
      {"loss=2", "must be a probability"},
      {"loss=-0.1", "must be a probability"},
      {"loss=nan", "must be a probability"},
      {"loss=inf", "must be a probability"},
      {"loss=0x1", "must be a probability"},
      {"loss=0.1x", "must be a probability"},
      {"loss=1%", "must be a probability"},
      {"loss=1e1", "must be a probability"},
      {"loss=1e-", "must be a probability"},
      {"loss=1e-100", "must be a probability"},
      {"loss=0,1", "'1' is no fault"},
      {"loss=0.000000000000000000000000001", "must be a probability"},
      {"reorder=x", "reorder must be a probability"},
      {"seed=", "seed must be a whole number"},
      {"seed=-1", "whole number"},
      {"seed=1.5", "whole number"},
      {"seed=18446744073709551616", "whole number"},
      {"seed=99999999999999999999999", "whole number"},
      {"burst=0", "1 to 1024"},
      {"reorder_frames=0", "1 to 1024"},
      {"reorder_frames=1025", "1 to 1024"},
  };
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    struct sml_fault_options o;
    char error[160] = "";
    if (sml_faults_parse(rows[i].text, &o, error, sizeof error)) fail_msg("%s was taken", rows[i].text);
    if (strstr(error, rows[i].says) == NULL) fail_msg("%s: said %s", rows[i].text, error);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_good_texts), cmocka_unit_test(test_bad_texts)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
