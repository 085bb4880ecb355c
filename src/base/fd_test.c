/* SPDX-License-Identifier: Apache-2.0
 * Each test runs in a child: what it does to descriptors, limits and signals is its own. */
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Its exit code is the line of the check that failed; a signal that ends it is a failure, too. */
#define CHECK(claim)                                             \
  do {                                                           \
    if (!(claim)) _exit(__LINE__ % 255 + (__LINE__ % 255 == 0)); \
  } while (0)

static void in_child(void (*body)(void)) {
  int status;
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    body();
    _exit(0);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  if (status == 0) return;
  fail_msg("the check of line %d (modulo 255) failed, or signal %d", WEXITSTATUS(status), WTERMSIG(status));
}

static void close_standard(void) {
  for (int fd = 0; fd <= 2; fd++) close(fd);
}

static void raise_all(void) {
  close_standard();
  for (int i = 0; i < 3; i++) {
    const int fd = sml_fd_raise(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    CHECK(fd > 2 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
  }
  for (int fd = 0; fd <= 2; fd++) CHECK(fcntl(fd, F_GETFD) < 0); /* as they were */
  errno = 0;
  CHECK(sml_fd_raise(open("/not/there", O_RDONLY | O_CLOEXEC)) == -1 && errno == ENOENT);
  const struct rlimit none = {3, 3};
  CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
  for (int fd = 3; fd < 16; fd++) close(fd);
  CHECK(sml_fd_raise(open("/dev/null", O_RDONLY | O_CLOEXEC)) == -1 && errno != 0 && fcntl(0, F_GETFD) < 0);
}

static void fill(void) {
  char byte;
  close_standard();
  sml_fd_fill_standard();
  for (int fd = 0; fd <= 2; fd++) CHECK(fcntl(fd, F_GETFD) >= 0);
  CHECK(read(0, &byte, 1) < 0 && write(1, "x", 1) < 0 && write(2, "x", 1) < 0);
}

/* A file of the program's own that gets number 2 gets nothing of ours. */
static void keep_out_of_others(void) {
  int pair[2], again[2];
  char byte;
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  dup2(pair[0], 2);
  sml_fd_take_stderr();
  CHECK(sml_fd_has_stderr() && sml_fd_write_stderr("x", 1) == 0 && recv(pair[1], &byte, 1, MSG_DONTWAIT) == 1);
  close(2);
  CHECK(!sml_fd_has_stderr() && sml_fd_write_stderr("x", 1) == EBADF);
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, again) == 0 && again[0] == 2);
  CHECK(!sml_fd_has_stderr() && sml_fd_write_stderr("x", 1) == EBADF);
  CHECK(recv(again[1], &byte, 1, MSG_DONTWAIT) < 0);
  dup2(pair[0], 2);
  CHECK(sml_fd_has_stderr());
  close(2);
  sml_fd_take_stderr(); /* as in a program that is started with it closed */
  CHECK(!sml_fd_has_stderr() && dup2(again[1], 2) == 2 && !sml_fd_has_stderr());
}

static void limit_files(rlim_t num_bytes) {
  const struct rlimit limit = {num_bytes, RLIM_INFINITY};
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

static void write_too_much(void) {
  int ends[2];
  sigset_t pending;
  char path[] = "/tmp/sml-fd-test-XXXXXX";
  const int fd = mkstemp(path);
  CHECK(fd >= 0 && unlink(path) == 0 && pipe(ends) == 0);
  close(ends[0]);
  limit_files(4);
  CHECK(sml_fd_write_quietly(fd, "12345678", 8) == 4 && sml_fd_write_quietly(fd, "5678", 4) < 0 && errno == EFBIG);
  CHECK(sml_fd_write_quietly(ends[1], "x", 1) < 0 && errno == EPIPE);
  CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 0 && sigismember(&pending, SIGPIPE) == 0);
  sigset_t mask;
  CHECK(pthread_sigmask(SIG_SETMASK, NULL, &mask) == 0 && sigismember(&mask, SIGPIPE) == 0);
  /* One of the program's that waits already goes on waiting. */
  sigemptyset(&mask);
  sigaddset(&mask, SIGPIPE);
  sigprocmask(SIG_BLOCK, &mask, NULL);
  raise(SIGPIPE);
  CHECK(sml_fd_write_quietly(ends[1], "x", 1) < 0 && errno == EPIPE);
  CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1);
}

static void do_nothing(int number) {
  (void)number;
}

static void allocate(void) {
  struct stat s;
  const size_t num_bytes = ((size_t)9 << 20) + 4096;
  const int fd = memfd_create("test", MFD_CLOEXEC), none = memfd_create("test", MFD_CLOEXEC);
  const struct sigaction action = {.sa_handler = do_nothing};
  const struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
  sigaction(SIGPROF, &action, NULL);
  setitimer(ITIMER_PROF, &often, NULL);
  CHECK(fd >= 0 && none >= 0 && sml_fd_allocate_quietly(fd, num_bytes) == 0);
  setitimer(ITIMER_PROF, &never, NULL);
  CHECK(fstat(fd, &s) == 0 && (size_t)s.st_size == num_bytes && (size_t)s.st_blocks * 512 >= num_bytes);
  limit_files((rlim_t)num_bytes - 1);
  CHECK(sml_fd_allocate_quietly(none, num_bytes) == EFBIG);
}

#define IN_CHILD(name, body)       \
  static void name(void **state) { \
    (void)state;                   \
    in_child(body);                \
  }
IN_CHILD(descriptors_go_above_2, raise_all)
IN_CHILD(a_program_fills_what_is_closed, fill)
IN_CHILD(number_2_of_others_is_left_alone, keep_out_of_others)
IN_CHILD(limits_and_closed_pipes_are_errors, write_too_much)
IN_CHILD(memory_is_there_or_is_an_error, allocate)

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(descriptors_go_above_2),           cmocka_unit_test(a_program_fills_what_is_closed),
      cmocka_unit_test(number_2_of_others_is_left_alone), cmocka_unit_test(limits_and_closed_pipes_are_errors),
      cmocka_unit_test(memory_is_there_or_is_an_error),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
