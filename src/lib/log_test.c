/* SPDX-License-Identifier: Apache-2.0
 * SWITCHML_DEBUG and SWITCHML_DEBUG_FILE, with a job of two ranks that writes what it decided. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/test_skip.h"
#include "base/writer.h"
#include "lib/test_world.h"
#include "process/log.h"

static char captured[1 << 16];

static void read_back(int file) {
  const ssize_t num_bytes = pread(file, captured, sizeof captured - 1, 0);
  assert_true(num_bytes >= 0);
  captured[num_bytes] = 0;
}

/* Runs body with standard error in a file and reads it back. */
static void capture(void (*body)(void)) {
  char path[] = "/tmp/sml-lib-log-XXXXXX";
  const int file = mkstemp(path), saved = dup(STDERR_FILENO);
  assert_true(file >= 0 && saved >= 0);
  unlink(path);
  dup2(file, STDERR_FILENO);
  sml_fd_take_stderr();
  body();
  assert_true(sml_writer_flush(60 * SML_NS_PER_S));
  dup2(saved, STDERR_FILENO);
  sml_fd_take_stderr();
  close(saved);
  read_back(file);
  close(file);
}

static uint32_t count(const char *needle) {
  uint32_t n = 0;
  for (const char *at = captured; (at = strstr(at, needle)) != NULL; at++) n++;
  return n;
}

static void check_says(const char *needle) {
  if (strstr(captured, needle) == NULL) fail_msg("'%s' is not in:\n%s", needle, captured);
}

static void run_job(void) {
  struct world w;
  world_init(&w, 2);
  w.job_options.no_shared_memory = 1;
  w.job_options.name = "talk";
  world_start(&w);
  static int32_t data[2];
  sml_operation *ops[2];
  for (uint32_t i = 0; i < 2; i++)
    assert_int_equal(sml_allreduce(w.ranks[i].job, &data[i], &data[i], 1, SML_INT32, SML_SUM, NULL, &ops[i]), SML_OK);
  for (uint32_t i = 0; i < 2; i++) {
    assert_int_equal(sml_operation_wait(ops[i], 20 * SML_NS_PER_S), SML_OK);
    sml_operation_release(ops[i]);
  }
  world_stop(&w);
}

static void each_level_adds_lines(void **state) {
  (void)state;
  static const struct {
    const char *value;
    uint32_t num_versions, has_info, has_trace;
  } rows[] = {{"", 0, 0, 0},     {"WARN", 0, 0, 0}, {"version", 2, 0, 0},
              {"Info", 2, 1, 0}, {"TRACE", 2, 1, 1}};
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    setenv("SWITCHML_DEBUG", rows[i].value, 1);
    capture(run_job);
    assert_int_equal(count(" [-] SWITCHML VERSION libswitchml " SML_VERSION_TEXT "\n"), rows[i].num_versions);
    assert_int_equal(count("SWITCHML INFO ") > 0, rows[i].has_info);
    assert_int_equal(count(" SWITCHML TRACE job 'talk': operation 0 (int32 SUM, 1 elements): success\n"),
                     2 * rows[i].has_trace);
    if (rows[i].num_versions == 0) assert_string_equal(captured, "");
  }
}

static void info_says_what_was_decided_and_why(void **state) {
  (void)state;
  char prefix[128], host[65];
  setenv("SWITCHML_DEBUG", "INFO", 1);
  setenv("SWITCHML_SLOTS", "64", 1);
  capture(run_job);
  unsetenv("SWITCHML_SLOTS");
  gethostname(host, sizeof host);
  host[strcspn(host, ".")] = 0;
  snprintf(prefix, sizeof prefix, "%s:%ld:", host, (long)getpid());
  uint32_t num_lines = 0;
  for (const char *line = captured; *line; line = strchr(line, '\n') + 1, num_lines++)
    if (strncmp(line, prefix, strlen(prefix)) != 0) fail_msg("%s", line);
  assert_in_range(num_lines, 10, 40);
  check_says("[-] SWITCHML INFO environment: ");
  check_says(" SWITCHML_SLOTS=64");
  check_says("[-] SWITCHML INFO 1 engine thread");
  check_says("[0] SWITCHML INFO job 'talk': rank 0 of 2, 1 aggregator; lease 60 s, an operation has 30 s");
  check_says("[1] SWITCHML INFO job 'talk': aggregator 0 is 127.0.0.1:");
  check_says("1 lanes of 64 slots (as num_slots or SWITCHML_SLOTS asks), chunks of ");
  check_says("no shared memory: it is turned off here");
  check_says("results come by unicast: the aggregator offers no multicast");
  check_says("reduce-scatters, all-gathers, broadcasts and reduces travel as all-reduces");
  check_says("no key: packets are not authenticated");
}

static uint32_t num_aggds = 1;
static sml_slots_reason why_slots;

static void run_job_of_many_slots(void) {
  struct world w;
  world_init(&w, 2);
  w.job_options.no_shared_memory = 1;
  w.num_aggds = num_aggds;
  world_start(&w);
  why_slots = (sml_slots_reason)stats_of(&w.ranks[0]).slots_why;
  world_stop(&w);
}

/* What was asked for and is not given is not said to be given. */
static void fewer_slots_than_asked_for_are_said(void **state) {
  (void)state;
  setenv("SWITCHML_DEBUG", "INFO", 1);
  setenv("SWITCHML_SLOTS", "4096", 1);
  num_aggds = 1;
  capture(run_job_of_many_slots);
  check_says("1 lanes of 1024 slots (fewer than the 4096 that num_slots or SWITCHML_SLOTS asks for, as chunks are "
             "long: at most 16 MiB a lane are on the way), chunks of ");
  assert_int_equal(why_slots, SML_SLOTS_REASON_FEWER);
  setenv("SWITCHML_SLOTS", "64", 1);
  num_aggds = 2;
  capture(run_job_of_many_slots);
  unsetenv("SWITCHML_SLOTS");
  check_says("2 lanes of 32 slots (2 aggregators share the 64 that num_slots or SWITCHML_SLOTS asks for), chunks of ");
  assert_int_equal(why_slots, SML_SLOTS_REASON_FEWER);
}

static void a_level_that_is_none_is_said(void **state) {
  (void)state;
  setenv("SWITCHML_DEBUG", "LOUD", 1);
  capture(run_job);
  check_says("SWITCHML WARN SWITCHML_DEBUG is 'LOUD': set VERSION, WARN, INFO or TRACE; only warnings are shown");
  assert_int_equal(count("\n"), 2); /* once a context */
}

/* ---- the file ---- */

static char folder[] = "/tmp/sml-lib-log-XXXXXX";

static void open_named(const char *name, char *path, size_t path_bytes) {
  snprintf(path, path_bytes, "%s/%s", folder, name);
  sml_lib_log_open(path);
}

static void write_two_files(void) {
  char path[128];
  open_named("%h.%p.%%.log", path, sizeof path);
  open_named("%h.%p.%%.log", path, sizeof path); /* as each context does */
  sml_lib_log_line(SML_LIB_LOG_WARN, 7, "one\ntwo\x1b");
  open_named("other", path, sizeof path);
  sml_lib_log_line(SML_LIB_LOG_INFO, SML_LIB_LOG_NO_RANK, "three");
  sml_lib_log_open(NULL);
  sml_lib_log_line(SML_LIB_LOG_WARN, 8, "four");
}

static void read_file(const char *path) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) fail_msg("%s is not there", path);
  read_back(file);
  close(file);
  unlink(path);
}

static void lines_go_to_the_file(void **state) {
  (void)state;
  char path[256], host[65];
  capture(write_two_files);
  check_says(" [8] SWITCHML WARN four\n");
  assert_int_equal(count("\n"), 1);
  gethostname(host, sizeof host);
  host[strcspn(host, ".")] = 0;
  snprintf(path, sizeof path, "%s/%s.%ld.%%.log", folder, host, (long)getpid());
  read_file(path);
  check_says(" [7] SWITCHML WARN one two \n");
  assert_int_equal(count("\n"), 1);
  snprintf(path, sizeof path, "%s/other", folder);
  read_file(path);
  check_says(" [-] SWITCHML INFO three\n");
  assert_int_equal(count("\n"), 1);
}

static void write_to_no_file(void) {
  char path[128], too_long[1024];
  open_named("not/there", path, sizeof path);
  open_named("not/there", path, sizeof path);
  sml_lib_log_line(SML_LIB_LOG_WARN, 1, "after an error");
  memset(too_long, 'x', sizeof too_long - 1);
  too_long[sizeof too_long - 1] = 0;
  sml_lib_log_open(too_long);
  sml_lib_log_open(NULL);
}

static void a_file_that_cannot_be_opened_is_said_once(void **state) {
  (void)state;
  capture(write_to_no_file);
  assert_int_equal(count("not/there', which cannot be opened (No such file or directory): lines go to standard e"), 1);
  check_says("[1] SWITCHML WARN after an error\n");
  check_says("which cannot be opened (File name too long)");
  assert_int_equal(count("\n"), 3);
}

static char link_path[128], target_path[128];

static void write_to_a_link(void) {
  sml_lib_log_open(link_path);
  sml_lib_log_line(SML_LIB_LOG_WARN, 1, "by the link");
  sml_lib_log_open(NULL);
}

/* In a folder in which all may write, such as /tmp, somebody else can make a link of a name that can be guessed. */
static void a_link_of_another_user_is_not_followed(void **state) {
  (void)state;
  if (geteuid() != 0) SKIP_TEST("only root can make the link of another user");
  snprintf(link_path, sizeof link_path, "%s/link", folder);
  snprintf(target_path, sizeof target_path, "%s/target", folder);
  assert_int_equal(chmod(folder, 01777), 0);
  for (uint32_t is_own = 0; is_own < 2; is_own++) {
    assert_int_equal(symlink(target_path, link_path), 0);
    assert_int_equal(lchown(link_path, is_own ? 0 : 12345, 0), 0);
    capture(write_to_a_link);
    assert_int_equal(access(target_path, F_OK) == 0, is_own);
    assert_int_equal(count("SWITCHML_DEBUG_FILE is '"), !is_own);
    assert_int_equal(count("): lines go to standard error\n"), !is_own);
    assert_int_equal(count("[1] SWITCHML WARN by the link\n"), !is_own);
    unlink(link_path);
  }
  read_file(target_path);
  check_says("[1] SWITCHML WARN by the link\n");
}

static void write_to_a_full_disk(void) {
  sml_lib_log_open("/dev/full");
  sml_lib_log_line(SML_LIB_LOG_WARN, 1, "first");
  sml_lib_log_line(SML_LIB_LOG_WARN, 1, "second");
  sml_lib_log_open("/dev/full");
  sml_lib_log_line(SML_LIB_LOG_WARN, 1, "third");
  sml_lib_log_open(NULL);
}

static void a_full_disk_loses_no_line(void **state) {
  (void)state;
  capture(write_to_a_full_disk);
  assert_int_equal(count("SWITCHML_DEBUG_FILE could not be written (No space left on device): lines go to stand"), 1);
  check_says("[1] SWITCHML WARN first\n");
  check_says("[1] SWITCHML WARN second\n");
  check_says("[1] SWITCHML WARN third\n");
  assert_int_equal(count("\n"), 4);
}

static void log_long(void) {
  static char text[4096];
  memset(text, 'x', sizeof text - 1);
  sml_lib_log_line(SML_LIB_LOG_WARN, 1, text);
}

static void long_lines_are_cut(void **state) {
  (void)state;
  capture(log_long);
  assert_int_equal(count("\n"), 1);
  assert_in_range(strlen(captured), 1000, 1300);
}

/* A pipe that nobody reads would make an open() wait. */
static void a_pipe_without_a_reader_is_no_trap(void **state) {
  (void)state;
  char path[128];
  snprintf(path, sizeof path, "%s/pipe", folder);
  assert_int_equal(mkfifo(path, 0600), 0);
  sml_lib_log_open(path);
  sml_lib_log_open(NULL);
  assert_true(sml_writer_flush(60 * SML_NS_PER_S)); /* it is the writer that opens */
  unlink(path);
}

static int make_folder(void **state) {
  (void)state;
  return mkdtemp(folder) == NULL;
}
static int remove_folder(void **state) {
  (void)state;
  return rmdir(folder);
}
static int clear_environment(void **state) {
  (void)state;
  unsetenv("SWITCHML_DEBUG");
  unsetenv("SWITCHML_DEBUG_FILE");
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(each_level_adds_lines, clear_environment),
      cmocka_unit_test_teardown(info_says_what_was_decided_and_why, clear_environment),
      cmocka_unit_test_teardown(fewer_slots_than_asked_for_are_said, clear_environment),
      cmocka_unit_test_teardown(a_level_that_is_none_is_said, clear_environment),
      cmocka_unit_test(lines_go_to_the_file),
      cmocka_unit_test(a_file_that_cannot_be_opened_is_said_once),
      cmocka_unit_test(a_link_of_another_user_is_not_followed),
      cmocka_unit_test(a_full_disk_loses_no_line),
      cmocka_unit_test(long_lines_are_cut),
      cmocka_unit_test(a_pipe_without_a_reader_is_no_trap),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
