/* SPDX-License-Identifier: Apache-2.0
 * A job whose messages nobody reads: operations end, deadlines and destroy work, fork and exit do not wait. The library
 * is in a child whose standard error, or SWITCHML_DEBUG_FILE, is a pipe that is full. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "base/writer.h"
#include "lib/test_world.h"

#define NUM_CALLS 3000u /* each is a line: more than pipe and ring have room for */
#define FAR_NS (60 * SML_NS_PER_S)

#define REQUIRE(claim) \
  do {                 \
    if (!(claim)) _exit(__LINE__); \
  } while (0)

static int ends[2];

static void call_often(struct rank *r) {
  int32_t x = 0;
  for (uint32_t i = 0; i < NUM_CALLS; i++) {
    x = 1;
    CHECK(r, allreduce(r, &x, &x, 1, SML_INT32, SML_SUM) == SML_OK && x == 2, "%s", sml_error_detail());
  }
}

static void expect_timeout(struct rank *r) {
  static int32_t x = 1;
  sml_operation *op;
  sml_operation_options o = SML_OPERATION_OPTIONS_INIT;
  o.timeout_ns = 200 * SML_NS_PER_MS;
  if (r->rank == 1) return;
  CHECK(r, sml_allreduce(r->job, &x, &x, 1, SML_INT32, SML_SUM, &o, &op) == SML_OK);
  CHECK(r, sml_operation_wait(op, FAR_NS) == SML_ERR_TIMEOUT);
  sml_operation_release(op);
}

static void run_job(void) {
  struct world w;
  world_init(&w, 2);
  w.job_options.lease_ns = PATIENT_LEASE_NS;
  w.job_options.no_shared_memory = 1;
  world_start(&w);
  world_run(&w, call_often);
  REQUIRE(sml_writer_num_left_out() > 0);
  world_run(&w, expect_timeout);
  world_stop(&w);
}

/* What was left out is said in its place, once there is a reader. */
static void check_count(int fd) {
  char line[2048];
  unsigned long long num_said = 0, num;
  FILE *in = fdopen(fd, "r");
  while (num_said < sml_writer_num_left_out()) {
    REQUIRE(fgets(line, sizeof line, in) != NULL);
    const char *at = strstr(line, " SWITCHML WARN ");
    if (at != NULL && strstr(at, " lines left out: nobody read ") != NULL && sscanf(at + 15, "%llu", &num) == 1)
      num_said += num;
  }
  REQUIRE(num_said == sml_writer_num_left_out());
  fclose(in);
}

static void with_standard_error_stalled(void) {
  run_job();
  const pid_t pid = fork();
  if (pid == 0) _exit(sml_writer_flush(FAR_NS) ? 0 : 1); /* nothing of that is its own to write */
  int status;
  REQUIRE(waitpid(pid, &status, 0) == pid && status == 0);
  check_count(ends[0]);
}

/* The same with a named pipe as SWITCHML_DEBUG_FILE, whose reader has stopped. */
static void with_debug_file_stalled(void) {
  char path[64];
  snprintf(path, sizeof path, "/tmp/sml-stalled-%ld", (long)getpid());
  REQUIRE(mkfifo(path, 0600) == 0);
  const int reader = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  setenv("SWITCHML_DEBUG_FILE", path, 1);
  run_job();
  unlink(path);
  REQUIRE(reader >= 0 && fcntl(reader, F_SETFL, 0) == 0);
  check_count(reader);
}

static void in_child(void (*body)(void)) {
  int status;
  assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(200);
    dup2(ends[1], STDERR_FILENO);
    sml_fd_take_stderr();
    setenv("SWITCHML_DEBUG", "TRACE", 1);
    body();
    exit(0);
  }
  close(ends[0]);
  close(ends[1]);
  assert_int_equal(waitpid(child, &status, 0), child);
  if (status != 0) fail_msg("line %d failed, or signal %d", WEXITSTATUS(status), WTERMSIG(status));
}

static void nobody_reads_standard_error(void **state) {
  (void)state;
  in_child(with_standard_error_stalled);
}

static void nobody_reads_the_debug_file(void **state) {
  (void)state;
  in_child(with_debug_file_stalled);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(nobody_reads_standard_error),
      cmocka_unit_test(nobody_reads_the_debug_file),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
