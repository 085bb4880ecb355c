/* SPDX-License-Identifier: Apache-2.0
 * Children of fork(), as data loaders are: handles are dead there, nothing hangs, no descriptor of ours
 * is left open, and a context of their own works. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <fcntl.h>
#include <malloc.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "switchml/switchml.h"

/* With no memory of its own: ASan's allocator may be locked for ever in the child of a process with threads. */
static uint32_t count_descriptors(void) {
  uint32_t count = 0;
  for (int fd = 0; fd < 1024; fd++) count += fcntl(fd, F_GETFD) != -1;
  return count;
}

/* 0 with a sanitizer's allocator. */
static size_t count_allocated_bytes(void) {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

/* Runs in a child; the status' exit code names the check that failed, SIGALRM a hang. */
static int status_of_child(int (*check)(void)) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(20);
    _exit(check());
  }
  int status = 0;
  return waitpid(pid, &status, 0) == pid ? status : -1;
}

static sml_context *context;
static sml_job *job;
static sml_operation *operation;
static uint32_t descriptors_before;

static sml_status join_nobody(sml_context *c) {
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  sml_job *unused;
  o.aggregator = "127.0.0.1:9";
  o.world_size = 2;
  o.join_timeout_ns = 50 * SML_NS_PER_MS;
  return sml_job_create(c, &o, &unused);
}

static int set_up(void **state) {
  (void)state;
  descriptors_before = count_descriptors();
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  o.world_size = 1;
  static float x = 1;
  if (sml_context_create(NULL, &context) != SML_OK) return 1;
  if (sml_job_create(context, &o, &job) != SML_OK) return 1;
  if (join_nobody(context) != SML_ERR_UNREACHABLE) return 1; /* starts the engines */
  return sml_allreduce(job, &x, &x, 1, SML_FLOAT32, SML_SUM, NULL, &operation) != SML_OK;
}

static int tear_down(void **state) {
  (void)state;
  sml_operation_release(operation);
  sml_job_destroy(job);
  sml_context_destroy(context);
  return count_descriptors() != descriptors_before;
}

static int use_dead_handles(void) {
  float x = 1;
  sml_operation *op;
  sml_job *other;
  sml_stats stats = SML_STATS_INIT;
  sml_error error = SML_ERROR_INIT;
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  o.world_size = 1;
  if (count_descriptors() != descriptors_before) return 1;
  if (sml_allreduce(job, &x, &x, 1, SML_FLOAT32, SML_SUM, NULL, &op) != SML_ERR_FORKED || op != NULL)
    return 2;
  if (sml_operation_test(operation) != SML_ERR_FORKED) return 3;
  if (sml_operation_wait(operation, SML_NS_PER_S) != SML_ERR_FORKED) return 4;
  if (sml_operation_error(operation, &error) != SML_ERR_FORKED) return 5;
  if (sml_job_create(context, &o, &other) != SML_ERR_FORKED) return 6;
  if (sml_job_abort(job, "why") != SML_ERR_FORKED) return 7;
  if (sml_job_error(job, &error) != SML_ERR_FORKED) return 8;
  if (sml_job_stats(job, &stats) != SML_ERR_FORKED) return 9;
  if (sml_supported(job, SML_FLOAT32, SML_SUM, 1) != 0) return 10;
  if (strstr(sml_error_detail(), "parent") == NULL) return 11;
  sml_operation_release(operation);
  sml_job_destroy(job);
  sml_context_destroy(context);
  return 0;
}

static void handles_are_dead_in_a_child(void **state) {
  (void)state;
  assert_int_equal(status_of_child(use_dead_handles), 0);
  assert_int_equal(sml_operation_test(operation), SML_OK); /* and alive in the parent */
}

static size_t allocated_bytes;

/* An allocator's locks may have been held by a thread that the child does not have. */
static int look_at_memory(void) {
  return count_allocated_bytes() == allocated_bytes ? 0 : 1;
}

static void a_child_frees_nothing_of_its_parent(void **state) {
  (void)state;
  allocated_bytes = count_allocated_bytes();
  assert_int_equal(status_of_child(look_at_memory), 0);
}

static int use_own_context(void) {
  sml_context *own;
  const uint32_t before = count_descriptors();
  if (sml_context_create(NULL, &own) != SML_OK) return 1;
  if (join_nobody(own) != SML_ERR_UNREACHABLE) return 2;
  const pid_t pid = fork(); /* a grandchild, for which two contexts are foreign */
  if (pid == 0) {
    alarm(20);
    sml_context_destroy(own);
    _exit(count_descriptors() == before ? 0 : 1);
  }
  int status;
  if (waitpid(pid, &status, 0) != pid || status != 0) return 3;
  sml_context_destroy(own);
  return count_descriptors() == before ? 0 : 4;
}

static void a_child_has_contexts_of_its_own(void **state) {
  (void)state;
  assert_int_equal(status_of_child(use_own_context), 0);
}

static int do_nothing(void) {
  return count_descriptors() == descriptors_before ? 0 : 1;
}

static void *join_again_and_again(void *argument) {
  _Atomic bool *should_stop = argument;
  while (!*should_stop) join_nobody(context);
  return NULL;
}

/* With engines, which a join starts; it has no time for more. */
static void *create_again_and_again(void *argument) {
  _Atomic bool *should_stop = argument;
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  o.aggregator = "127.0.0.1:9";
  o.world_size = 2;
  o.join_timeout_ns = SML_NS_PER_MS;
  while (!*should_stop) {
    sml_context *own;
    sml_job *unused;
    if (sml_context_create(NULL, &own) != SML_OK) return argument;
    (void)sml_job_create(own, &o, &unused);
    sml_context_destroy(own);
  }
  return NULL;
}

static void *meet_as(void *rank) {
  sml_job_options o = SML_JOB_OPTIONS_INIT;
  sml_job *unused;
  o.rank = *(const uint32_t *)rank;
  o.world_size = 3;
  o.join_timeout_ns = 30 * SML_NS_PER_MS;
  (void)sml_job_create(context, &o, &unused);
  return NULL;
}

/* Two of three ranks, whose connection is open until the time is over. */
static void *meet_again_and_again(void *argument) {
  _Atomic bool *should_stop = argument;
  uint32_t ranks[] = {0, 1};
  while (!*should_stop) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, meet_as, &ranks[0]) != 0) return argument;
    (void)meet_as(&ranks[1]);
    pthread_join(thread, NULL);
  }
  return NULL;
}

static void fork_beside(void *(*run)(void *should_stop), uint32_t num_forks) {
  _Atomic bool should_stop = false;
  pthread_t thread;
  void *failed;
  pthread_create(&thread, NULL, run, &should_stop);
  int status = 0;
  for (uint32_t i = 0; i < num_forks && status == 0; i++) status = status_of_child(do_nothing);
  should_stop = true;
  pthread_join(thread, &failed);
  assert_null(failed);
  assert_int_equal(status, 0);
}

static void forks_meet_the_library_at_any_moment(void **state) {
  (void)state;
  fork_beside(join_again_and_again, 100);
  fork_beside(create_again_and_again, 150);
}

static void forks_meet_a_meeting(void **state) {
  (void)state;
  struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t num_bytes = sizeof addr;
  char text[32];
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(bind(fd, (const struct sockaddr *)&addr, num_bytes), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &num_bytes), 0);
  close(fd); /* it is free now */
  snprintf(text, sizeof text, "127.0.0.1:%u", ntohs(addr.sin_port));
  setenv("SWITCHML_RENDEZVOUS", text, 1);
  fork_beside(meet_again_and_again, 60);
  unsetenv("SWITCHML_RENDEZVOUS");
}

/* Engines start with the lock that fork() takes, and so they write this warning. */
static void forks_meet_a_line_of_the_log(void **state) {
  (void)state;
  setenv("SWITCHML_PCAP", "/no/such/folder/capture", 1);
  fork_beside(create_again_and_again, 60);
  unsetenv("SWITCHML_PCAP");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(handles_are_dead_in_a_child),
      cmocka_unit_test(a_child_frees_nothing_of_its_parent),
      cmocka_unit_test(a_child_has_contexts_of_its_own),
      cmocka_unit_test(forks_meet_the_library_at_any_moment),
      cmocka_unit_test(forks_meet_a_meeting),
      cmocka_unit_test(forks_meet_a_line_of_the_log),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
