/* SPDX-License-Identifier: Apache-2.0
 * Readers that stand still are pipes that nobody reads. Each test runs in a child, which has a writer of its own. */
#include "base/writer.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fd.h"
#include "base/test_skip.h"

#define FAR_NS (60 * SML_NS_PER_S)

static int ends[2]; /* of the pipe that is standard error in the child */

/* Its exit code is the line of the check that failed. */
#define CHECK(claim)                                             \
  do {                                                           \
    if (!(claim)) _exit(__LINE__ % 255 + (__LINE__ % 255 == 0)); \
  } while (0)

static uint64_t clock_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * SML_NS_PER_S + (uint64_t)t.tv_nsec;
}

/* body in a child whose standard error is a pipe; the child's exit() follows. What came out is the result. */
static char read_bytes[1 << 20];
static int run_in_child(void (*body)(void), bool is_read) {
  int status;
  assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(120);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    if (is_read) close(ends[0]);
    sml_fd_take_stderr();
    body();
    exit(0);
  }
  close(ends[1]);
  size_t num_bytes = 0;
  for (ssize_t n = 1; is_read && n > 0; num_bytes += (size_t)n)
    n = read(ends[0], read_bytes + num_bytes, sizeof read_bytes - 1 - num_bytes);
  read_bytes[num_bytes] = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  close(ends[0]);
  return status;
}

static void check_ended_well(int status) {
  if (status == 0) return;
  fail_msg("the check of line %d (modulo 255) failed, or signal %d", WEXITSTATUS(status), WTERMSIG(status));
}

/* --- order, exit --- */

static void say_three(void) {
  for (int i = 0; i < 3; i++) sml_writer_say("line %d\n", i);
}

static void what_was_said_is_written_at_exit(void **state) {
  (void)state;
  check_ended_well(run_in_child(say_three, true));
  assert_string_equal(read_bytes, "line 0\nline 1\nline 2\n");
}

/* --- several threads --- */

#define NUM_THREADS 4
#define NUM_LINES 500

static void *say_many(void *argument) {
  for (int i = 0; i < NUM_LINES; i++) sml_writer_say("%d %d\n", (int)(intptr_t)argument, i);
  return NULL;
}

static void say_from_threads(void) {
  pthread_t threads[NUM_THREADS];
  for (int t = 0; t < NUM_THREADS; t++) CHECK(pthread_create(&threads[t], NULL, say_many, (void *)(intptr_t)t) == 0);
  for (int t = 0; t < NUM_THREADS; t++) pthread_join(threads[t], NULL);
  CHECK(sml_writer_num_left_out() == 0 && sml_writer_flush(FAR_NS));
}

static void lines_of_a_thread_keep_their_order(void **state) {
  (void)state;
  int next[NUM_THREADS] = {0}, thread, number, used;
  check_ended_well(run_in_child(say_from_threads, true));
  const char *at = read_bytes;
  for (; *at; at += used) {
    assert_int_equal(sscanf(at, "%d %d\n%n", &thread, &number, &used), 2);
    assert_in_range(thread, 0, NUM_THREADS - 1);
    assert_int_equal(number, next[thread]++);
  }
  for (int t = 0; t < NUM_THREADS; t++) assert_int_equal(next[t], NUM_LINES);
}

/* --- a reader that stands still --- */

static uint64_t num_said_left_out;
static void write_text(const char *text, size_t num_bytes) {
  (void)sml_fd_write_stderr(text, num_bytes);
}
static void say_left_out(uint64_t num_messages) {
  char text[64];
  num_said_left_out += num_messages;
  write_text(text, (size_t)snprintf(text, sizeof text, "left out %llu\n", (unsigned long long)num_messages));
}
static const struct sml_outlet outlet = {.write = write_text, .write_left_out = say_left_out};

static bool put_number(int number) {
  char text[128];
  return sml_writer_put(&outlet, text, (size_t)snprintf(text, sizeof text, "%0100d\n", number));
}

/* Until nothing more goes in; the pipe is full then, and the ring. */
static int fill_all(int first) {
  int number = first;
  for (int num_refused = 0; num_refused < 10; number++) num_refused += !put_number(number);
  return number;
}

static int read_number(FILE *in, uint64_t *num_left_out) {
  char text[256];
  unsigned long long count;
  CHECK(fgets(text, sizeof text, in) != NULL);
  if (sscanf(text, "left out %llu", &count) != 1) return atoi(text);
  *num_left_out += count;
  return -1;
}

/* Nobody waits; each line is there, or is counted in the place where it is missing. */
static void stall_and_go_on(void) {
  int expected = 0;
  uint64_t num_left_out = 0;
  const int num = fill_all(0);
  CHECK(sml_writer_num_left_out() >= 10);
  CHECK(!sml_writer_flush(10 * SML_NS_PER_MS));
  FILE *in = fdopen(ends[0], "r");
  while (expected < num) {
    const uint64_t before = num_left_out;
    const int number = read_number(in, &num_left_out);
    CHECK(number == -1 || number == expected);
    expected += number == -1 ? (int)(num_left_out - before) : 1;
  }
  CHECK(expected == num && num_left_out == sml_writer_num_left_out() && sml_writer_flush(FAR_NS));
  CHECK(put_number(num) && read_number(in, &num_left_out) == num);
}

/* More is put as soon as there is room: before it comes how many are missing, long before the ring is empty. */
static void go_on_at_once(void) {
  int expected = 0, number = fill_all(0);
  uint64_t num_left_out = 0;
  bool is_put = false;
  FILE *in = fdopen(ends[0], "r");
  while (expected < number || !is_put) {
    const uint64_t before = num_left_out;
    const int is = read_number(in, &num_left_out);
    CHECK(is == -1 || is == expected);
    expected += is == -1 ? (int)(num_left_out - before) : 1;
    if (!is_put) is_put = put_number(number++);
  }
  CHECK(num_left_out == sml_writer_num_left_out());
}

static void what_is_missing_is_said_in_its_place(void **state) {
  (void)state;
  check_ended_well(run_in_child(go_on_at_once, false));
}

static void a_stalled_reader_stops_nobody(void **state) {
  (void)state;
  check_ended_well(run_in_child(stall_and_go_on, false));
}

static void stall_and_exit(void) {
  fill_all(0);
}

static void a_stalled_reader_does_not_keep_a_process(void **state) {
  (void)state;
  const uint64_t begin_ns = clock_ns();
  check_ended_well(run_in_child(stall_and_exit, false));
  assert_true(clock_ns() - begin_ns >= 400 * SML_NS_PER_MS); /* it did wait; the end is the alarm's matter */
}

/* --- a fork --- */

static void fork_while_stalled(void) {
  int other[2], status;
  char byte;
  fill_all(0);
  CHECK(pipe2(other, O_CLOEXEC) == 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    dup2(other[1], STDERR_FILENO);
    sml_fd_take_stderr();
    sml_writer_say("child\n");
    CHECK(sml_writer_flush(FAR_NS)); /* of what the parent had to say, nothing is here */
#if defined(SML_SANITIZE_ADDRESS)
    _exit(0); /* its search for leaks does not see what the threads hold that only the parent has */
#else
    exit(0);
#endif
  }
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  for (const char *c = "child\n"; *c; c++) CHECK(read(other[0], &byte, 1) == 1 && byte == *c);
  close(other[1]);
  CHECK(read(other[0], &byte, 1) == 0);
}

static void a_child_begins_anew(void **state) {
  (void)state;
#if defined(SML_SANITIZE_THREAD)
  SKIP_TEST("TSan lets no child of a process with threads start a thread");
#endif
  check_ended_well(run_in_child(fork_while_stalled, false));
}

/* --- signals --- */

static _Atomic pid_t thread_of_handler;
static void note_thread(int number) {
  (void)number;
  thread_of_handler = gettid();
}

/* A closed pipe raises nothing, and a handler of the program's does not run on the writer's thread. */
static void close_the_reader(void) {
  const struct sigaction action = {.sa_handler = note_thread};
  sigset_t usr1;
  sigaction(SIGPIPE, &action, NULL);
  sigaction(SIGUSR1, &action, NULL);
  sml_writer_say("before\n");
  CHECK(sml_writer_flush(FAR_NS));
  close(ends[0]);
  sml_writer_say("after\n");
  CHECK(sml_writer_flush(FAR_NS) && thread_of_handler == 0);
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &usr1, NULL);
  kill(getpid(), SIGUSR1); /* any other thread that does not block it would take it */
  usleep(20000);
  CHECK(thread_of_handler == 0);
  pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
  CHECK(thread_of_handler == getpid());
}

static void signals_are_the_programs(void **state) {
  (void)state;
  check_ended_well(run_in_child(close_the_reader, false));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_was_said_is_written_at_exit),
      cmocka_unit_test(lines_of_a_thread_keep_their_order),
      cmocka_unit_test(a_stalled_reader_stops_nobody),
      cmocka_unit_test(what_is_missing_is_said_in_its_place),
      cmocka_unit_test(a_stalled_reader_does_not_keep_a_process),
      cmocka_unit_test(a_child_begins_anew),
      cmocka_unit_test(signals_are_the_programs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
