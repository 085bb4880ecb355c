/* SPDX-License-Identifier: Apache-2.0
 * Keys, as a user meets them: the settings that name them, and who may join whom. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/test_world.h"

static char folder[] = "/tmp/sml-identity-test-XXXXXX";
static char good_path[64], other_path[64], open_path[64], bad_path[64];
static const char good_text[] =
    "# keys\nred 000102030405060708090a0b0c0d0e0f\nblue ffffffffffffffff0000000000000001\n";
static struct sml_key_entry keys[2];

static void write_file(char *path, const char *name, const char *text, mode_t mode) {
  snprintf(path, sizeof good_path, "%s/%s", folder, name);
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
  assert_int_equal(fchmod(fd, mode), 0);
  close(fd);
}

static int make_files(void **state) {
  (void)state;
  static const char *const names[] = {"CHECK", "RETRY", "KEY_FILE", "KEY_NAME"};
  char variable[32], error[128];
  for (size_t i = 0; i < SML_ARRAY_LEN(names); i++) {
    snprintf(variable, sizeof variable, "SWITCHML_%s", names[i]);
    unsetenv(variable);
  }
  if (mkdtemp(folder) == NULL) return 1;
  write_file(good_path, "good", good_text, 0600);
  write_file(other_path, "other", "red ff0102030405060708090a0b0c0d0e0f\n", 0600);
  write_file(open_path, "open", good_text, 0640);
  write_file(bad_path, "bad", "red 0001\n", 0600);
  size_t num_keys;
  return !sml_key_file_parse(good_text, sizeof good_text - 1, keys, 2, &num_keys, error, sizeof error);
}

static int remove_files(void **state) {
  (void)state;
  const char *const paths[] = {good_path, other_path, open_path, bad_path};
  for (size_t i = 0; i < SML_ARRAY_LEN(paths); i++) unlink(paths[i]);
  return rmdir(folder);
}

/* ---- settings ---- */

static void assert_refused(const sml_job_options *o, sml_status expected, const char *needle) {
  sml_context *context;
  sml_job *job;
  assert_int_equal(sml_context_create(NULL, &context), SML_OK);
  const sml_status status = sml_job_create(context, o, &job);
  if (status != expected || strstr(sml_error_detail(), needle) == NULL)
    fail_msg("%d '%s' lacks '%s'", status, sml_error_detail(), needle);
  sml_context_destroy(context);
}

static sml_job_options make_options(void) {
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  o.aggregator = "127.0.0.1:9";
  o.world_size = 2;
  o.join_timeout_ns = 100 * SML_NS_PER_MS;
  return o;
}

static void bad_settings_are_errors(void **state) {
  (void)state;
  sml_job_options o = make_options();
  o.check = 3;
  assert_refused(&o, SML_ERR_INVALID_ARGUMENT, "check is 3");
  o = make_options();
  o.retry_ns = UINT64_MAX;
  assert_refused(&o, SML_ERR_INVALID_ARGUMENT, "7 days");
  o = make_options();
  o.key_file = "/nonexistent/keys";
  assert_refused(&o, SML_ERR_INVALID_ARGUMENT, "/nonexistent/keys");
  o.key_file = folder;
  assert_refused(&o, SML_ERR_INVALID_ARGUMENT, "regular file");
  o.key_file = open_path;
  assert_refused(&o, SML_ERR_INVALID_ARGUMENT, "chmod 600");
  o.key_file = bad_path;
  assert_refused(&o, SML_ERR_INVALID_ARGUMENT, "line 1");
  o.key_file = good_path;
  o.key_name = "green";
  assert_refused(&o, SML_ERR_KEY, "no key 'green'");
  o.key_file = NULL;
  assert_refused(&o, SML_ERR_INVALID_ARGUMENT, "no key file");
  o = make_options();
  o.key_file = good_path;
  o.check = 1;
  o.max_datagram_bytes = 36 + 256 + 3;
  assert_refused(&o, SML_ERR_INVALID_ARGUMENT, "from 296");
  o.max_datagram_bytes++;
  assert_refused(&o, SML_ERR_UNREACHABLE, "no aggregator"); /* so far all is well */
}

static void bad_environment_is_an_error(void **state) {
  (void)state;
  static const char *const bad[][3] = {
      {"SWITCHML_CHECK", "2", "set 1 or 0"},   {"SWITCHML_CHECK", "yes", "set 1 or 0"},
      {"SWITCHML_RETRY", "x", "set seconds"},  {"SWITCHML_RETRY", "-1", "set seconds"},
      {"SWITCHML_RETRY", "5s", "set seconds"}, {"SWITCHML_RETRY", "1e9", "set seconds"},
      {"SWITCHML_RETRY", " 5", "set seconds"}, {"SWITCHML_KEY_FILE", "/nope", "/nope"},
      {"SWITCHML_SLOTS", "3", "power of two"}, {"SWITCHML_SLOTS", "-4", "set a number"},
      {"SWITCHML_SLOTS", "65536", "set a number"}, {"SWITCHML_SLOTS", "0x40", "set a number"},
      {"SWITCHML_MAX_DATAGRAM", "65508", "set a number"}, {"SWITCHML_MAX_DATAGRAM", "100", "max_datagram_bytes"},
      {"SWITCHML_FLOAT_BITS", "8", "set 16, 32 or 0"}, {"SWITCHML_FLOAT_BITS", "1632", "set 16, 32 or 0"},
      {"SWITCHML_FLOAT64_BITS", "32", "set 64, 96 or 0"}};
  const sml_job_options o = make_options();
  for (size_t i = 0; i < SML_ARRAY_LEN(bad); i++) {
    setenv(bad[i][0], bad[i][1], 1);
    assert_refused(&o, SML_ERR_INVALID_ARGUMENT, bad[i][2]);
    unsetenv(bad[i][0]);
  }
  setenv("SWITCHML_KEY_FILE", good_path, 1);
  setenv("SWITCHML_KEY_NAME", "green", 1);
  assert_refused(&o, SML_ERR_KEY, "no key 'green'");
  unsetenv("SWITCHML_KEY_FILE");
  assert_refused(&o, SML_ERR_UNREACHABLE, "no aggregator"); /* a name alone is for those who have a file */
  unsetenv("SWITCHML_KEY_NAME");
  static const char *const good[][2] = {{"SWITCHML_CHECK", "0"},
                                        {"SWITCHML_CHECK", "1"},
                                        {"SWITCHML_RETRY", "0"},
                                        {"SWITCHML_RETRY", ".5"},
                                        {"SWITCHML_RETRY", ""},
                                        {"SWITCHML_SLOTS", "64"},
                                        {"SWITCHML_MAX_DATAGRAM", "1472"},
                                        {"SWITCHML_FLOAT_BITS", "16"},
                                        {"SWITCHML_FLOAT_BITS", "0"},
                                        {"SWITCHML_FLOAT64_BITS", "96"}};
  for (size_t i = 0; i < SML_ARRAY_LEN(good); i++) {
    setenv(good[i][0], good[i][1], 1);
    assert_refused(&o, SML_ERR_UNREACHABLE, "no aggregator");
    unsetenv(good[i][0]);
  }
}

/* ---- who may join whom ---- */

static struct {
  const char *key_file[2], *key_name[2];
  sml_status expected;
  const char *needle;
} joins;

static void join(struct rank *r) {
  sml_job_options o = r->world->job_options;
  o.aggregator = r->world->address;
  o.rank = r->rank;
  o.world_size = 2;
  o.check = 1;
  o.join_timeout_ns = 3 * SML_NS_PER_S;
  o.key_file = joins.key_file[r->rank];
  o.key_name = joins.key_name[r->rank];
  CHECK(r, sml_context_create(NULL, &r->context) == SML_OK);
  r->status = sml_job_create(r->context, &o, &r->job);
  CHECK(r, r->status == joins.expected, "%d %s", r->status, sml_error_detail());
  CHECK(r, r->status == SML_OK || strstr(sml_error_detail(), joins.needle) != NULL, "%s", sml_error_detail());
  if (r->status != SML_OK) return;
  float x[1000];
  for (uint32_t i = 0; i < 1000; i++) x[i] = (float)i;
  CHECK(r, allreduce(r, x, x, 1000, SML_FLOAT32, SML_SUM) == SML_OK && x[999] == 1998, "%s",
        sml_error_detail());
  CHECK(r, r->job->state.start.chunk_bytes == 8960 - 36 - 4, "%u", r->job->state.start.chunk_bytes);
}

static void join_with(uint32_t num_keys, const char *file, const char *name, sml_status expected,
                      const char *needle) {
  struct world w;
  world_init(&w, 2);
  w.aggd_options.keys = keys;
  w.aggd_options.num_keys = num_keys;
  joins.key_file[0] = joins.key_file[1] = file;
  joins.key_name[0] = joins.key_name[1] = name;
  joins.expected = expected;
  joins.needle = needle;
  world_start_aggd(&w);
  world_run(&w, join);
  world_stop(&w);
}

static void ranks_with_the_key_join(void **state) {
  (void)state;
  join_with(2, good_path, NULL, SML_OK, "");
  join_with(2, good_path, "blue", SML_OK, "");
}

static void all_others_are_refused(void **state) {
  (void)state;
  join_with(2, other_path, "red", SML_ERR_KEY, "key");
  join_with(2, "", NULL, SML_ERR_KEY, "key");
  join_with(1, good_path, "blue", SML_ERR_KEY, "blue");
  join_with(0, good_path, NULL, SML_ERR_KEY, "key");
}

static void jobs_of_different_keys_do_not_meet(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  w.aggd_options.keys = keys;
  w.aggd_options.num_keys = 2;
  joins.key_file[0] = joins.key_file[1] = good_path;
  joins.key_name[0] = "red";
  joins.key_name[1] = "blue";
  joins.expected = SML_ERR_TIMEOUT;
  joins.needle = "not joined";
  world_start_aggd(&w);
  world_run(&w, join);
  world_stop(&w);
}

static void sum_keyed(struct rank *r) {
  int32_t x = 1;
  CHECK(r, allreduce(r, &x, &x, 1, SML_INT32, SML_SUM) == SML_OK && x == 2, "%s", sml_error_detail());
  sml_stats stats = SML_STATS_INIT;
  CHECK(r, sml_job_stats(r->job, &stats) == SML_OK && stats.key_failures == 0);
  const struct sml_session *session = &r->job->shards[0].session;
  struct sml_seal a, b;
  sml_session_seal(session, r->job->state.start.epoch, r->job->state.start.secret, &a);
  sml_session_seal(session, r->job->state.start.epoch + 1, r->job->state.start.secret, &b);
  CHECK(r, a.is_keyed && b.is_keyed && a.key.k0 != b.key.k0 && a.key.k1 != b.key.k1);
}

static void packets_of_each_epoch_have_a_key_of_their_own(void **state) {
  (void)state;
  struct world w;
  world_init(&w, 2);
  w.aggd_options.keys = keys;
  w.aggd_options.num_keys = 2;
  w.job_options.key_file = good_path;
  world_start(&w);
  world_run(&w, sum_keyed);
  world_stop(&w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bad_settings_are_errors),
      cmocka_unit_test(bad_environment_is_an_error),
      cmocka_unit_test(ranks_with_the_key_join),
      cmocka_unit_test(all_others_are_refused),
      cmocka_unit_test(jobs_of_different_keys_do_not_meet),
      cmocka_unit_test(packets_of_each_epoch_have_a_key_of_their_own),
  };
  return cmocka_run_group_tests(tests, make_files, remove_files);
}
