/* SPDX-License-Identifier: Apache-2.0
 * Programs that run with descriptors 0, 1 and 2 closed: none of ours takes such a number, and what the library has to
 * say goes into no other file. The test is the child, that a fork makes; its exit code is the line that failed. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/writer.h"
#include "lib/test_world.h"

#define REQUIRE(claim) \
  do {                 \
    if (!(claim)) _exit(__LINE__); \
  } while (0)
#define FAR_NS (60 * SML_NS_PER_S)

static bool is_open(int fd) {
  return fcntl(fd, F_GETFD) >= 0;
}

static void sum(struct rank *r) {
  static int32_t data[MAX_RANKS][5000];
  int32_t *x = data[r->rank];
  for (int32_t i = 0; i < 5000; i++) x[i] = i;
  CHECK(r, allreduce(r, x, x, 5000, SML_INT32, SML_SUM) == SML_OK);
  for (int32_t i = 0; i < 5000; i++) CHECK(r, x[i] == 2 * i);
  CHECK(r, !is_open(0) && !is_open(1));
}

static void run_job(bool has_shared_memory) {
  struct world w;
  world_init(&w, 2);
  w.job_options.no_shared_memory = !has_shared_memory;
  world_start(&w);
  world_run(&w, sum);
  for (uint32_t i = 0; i < 2; i++) REQUIRE(w.ranks[i].failure[0] == 0);
  world_stop(&w);
}

/* The aggregator, two ranks, a rendezvous and a trace: everything that opens anything. */
static void with_all_closed(void) {
  for (int fd = 0; fd <= 2; fd++) close(fd);
  run_job(false);
  run_job(true);
  for (int fd = 0; fd <= 2; fd++) REQUIRE(!is_open(fd));
}

/* Number 2 is a socket of the program's: it must not get a line of the log. */
static void with_a_socket_of_its_own(void) {
  int pair[2];
  char byte;
  close(2);
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && pair[0] == 2);
  for (int fd = 0; fd <= 1; fd++) close(fd);
  run_job(false);
  REQUIRE(sml_writer_flush(FAR_NS));
  REQUIRE(recv(pair[1], &byte, 1, MSG_DONTWAIT) < 0);
}

static void in_child(void (*body)(void)) {
  int status;
  const pid_t child = fork();
  if (child == 0) {
    alarm(120);
    setenv("SWITCHML_DEBUG", "TRACE", 1);
    setenv("SWITCHML_SHARED_MEMORY", "1", 1);
    body();
    _exit(0);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  if (status != 0) fail_msg("line %d failed, or signal %d", WEXITSTATUS(status), WTERMSIG(status));
}

static void ours_go_above_2(void **state) {
  (void)state;
  in_child(with_all_closed);
}

static void number_2_of_the_program_gets_nothing(void **state) {
  (void)state;
  in_child(with_a_socket_of_its_own);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ours_go_above_2),
      cmocka_unit_test(number_2_of_the_program_gets_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
