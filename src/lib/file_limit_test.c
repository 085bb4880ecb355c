/* SPDX-License-Identifier: Apache-2.0
 * Under a limit of file sizes, as batch systems set it, jobs go over the network instead of sharing memory. Nothing
 * that is written raises SIGXFSZ, which ends a program. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "base/writer.h"
#include "lib/test_world.h"

static char captured[1 << 16];
static uint32_t num_local_ranks;

static void set_limit(rlim_t num_bytes) {
  struct rlimit limit;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
  limit.rlim_cur = num_bytes == RLIM_INFINITY ? limit.rlim_max : num_bytes;
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void sum(struct rank *r) {
  static int32_t data[MAX_RANKS][100000];
  int32_t *x = data[r->rank];
  for (int32_t i = 0; i < 100000; i++) x[i] = i;
  CHECK(r, allreduce(r, x, x, 100000, SML_INT32, SML_SUM) == SML_OK, "%s", sml_error_detail());
  for (int32_t i = 0; i < 100000; i++) CHECK(r, x[i] == i * (int32_t)r->world->num_ranks);
  if (r->rank == 0) num_local_ranks = stats_of(r).num_local_ranks;
}

/* A job of three ranks; what it says is captured. */
static void run_job(const char *hosts) {
  char path[] = "/tmp/sml-file-limit-XXXXXX";
  const int file = mkstemp(path), saved = dup(STDERR_FILENO);
  assert_true(file >= 0 && saved >= 0 && unlink(path) == 0);
  dup2(file, STDERR_FILENO);
  sml_fd_take_stderr();
  struct world w;
  world_init(&w, 3);
  w.job_options.lease_ns = PATIENT_LEASE_NS;
  w.job_options.name = "limited";
  w.hosts = hosts;
  world_start(&w);
  world_run(&w, sum);
  world_stop(&w);
  assert_true(sml_writer_flush(60 * SML_NS_PER_S));
  dup2(saved, STDERR_FILENO);
  sml_fd_take_stderr();
  close(saved);
  const ssize_t num_bytes = pread(file, captured, sizeof captured - 1, 0);
  assert_true(num_bytes >= 0);
  captured[num_bytes] = 0;
  close(file);
}

static void says(const char *text) {
  if (strstr(captured, text) == NULL) fail_msg("'%s' is not in:\n%s", text, captured);
}

static void one_host_goes_over_the_network(void **state) {
  (void)state;
  set_limit(1 << 20);
  run_job(NULL);
  set_limit(RLIM_INFINITY);
  assert_int_equal(num_local_ranks, 0);
  says("WARN job 'limited': no memory is shared: the limit of file sizes (ulimit -f, RLIMIT_FSIZE) is 1048576 bytes, ");
}

static void several_hosts_need_more(void **state) {
  (void)state;
  set_limit(10 << 20);
  run_job("112");
  assert_int_equal(num_local_ranks, 0);
  says("WARN job 'limited': no memory is shared if there are several hosts: the limit of file sizes ");
  run_job(NULL); /* these do not */
  assert_int_equal(num_local_ranks, 3);
  set_limit(64 << 20);
  run_job("112");
  set_limit(RLIM_INFINITY);
  assert_int_equal(num_local_ranks, 2);
  assert_string_equal(captured, "");
}

/* A trace that the program asks for, on its own thread. */
static void a_trace_that_is_too_long_is_an_error(void **state) {
  (void)state;
  char folder[] = "/tmp/sml-file-limit-XXXXXX", path[64];
  struct world w;
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/trace", folder);
  world_init(&w, 2);
  world_start(&w);
  set_limit(100);
  const sml_status status = sml_context_dump_trace(w.ranks[0].context, path);
  set_limit(RLIM_INFINITY);
  assert_int_equal(status, SML_ERR_SYSTEM);
  assert_non_null(strstr(sml_error_detail(), "File too large"));
  world_stop(&w);
  assert_int_equal(rmdir(folder), 0); /* nothing is left */
}

static int set_up(void **state) {
  (void)state;
  return setenv("SWITCHML_SHARED_MEMORY", "1", 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_host_goes_over_the_network),
      cmocka_unit_test(several_hosts_need_more),
      cmocka_unit_test(a_trace_that_is_too_long_is_an_error),
  };
  return cmocka_run_group_tests(tests, set_up, NULL);
}
