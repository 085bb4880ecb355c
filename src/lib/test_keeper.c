/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/test_keeper.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static volatile sig_atomic_t should_end;
static void on_term(int number) {
  should_end = number;
}

/* In the aggregator's process. */
__attribute__((noreturn)) static void run_aggregator(struct sml_aggd_options *options, int out) {
  struct sml_aggd *aggd;
  struct sml_addr addr;
  char text[80] = "", error[256];
  sigset_t none, term;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigemptyset(&none);
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  sigprocmask(SIG_BLOCK, &term, NULL);
  signal(SIGTERM, on_term);
  if (sml_aggd_start(options, &aggd, error, sizeof error) != 0) {
    fprintf(stderr, "# aggregator: %s\n", error);
    _exit(1);
  }
  sml_aggd_addr(aggd, &addr);
  sml_addr_format(&addr, text, sizeof text);
  if (write(out, text, sizeof text) != sizeof text) _exit(1);
  while (!should_end) sigsuspend(&none);
  sml_aggd_stop(aggd);
  _exit(0);
}

static pid_t start_aggregator(struct sml_aggd_options *options, int out) {
  const pid_t pid = fork();
  if (pid == 0) run_aggregator(options, out);
  return pid;
}

/* In the keeper's process: one command a byte, one answer each. */
__attribute__((noreturn)) static void keep(struct sml_aggd_options *options, int in, int out) {
  char text[80], command, error[256];
  int up[2];
  if (pipe(up) != 0) _exit(1);
  pid_t pid = start_aggregator(options, up[1]);
  if (read(up[0], text, sizeof text) != sizeof text || write(out, text, sizeof text) != sizeof text) _exit(1);
  if (!sml_addr_parse(text, 0, &options->listen, error, sizeof error)) _exit(1);
  while (read(in, &command, 1) == 1) {
    if (command == 0) {
      pid = start_aggregator(options, up[1]);
      if (read(up[0], text, sizeof text) != sizeof text) _exit(1);
    } else if (pid > 0) {
      kill(pid, command);
      if (command == SIGSTOP) waitpid(pid, NULL, WUNTRACED); /* it might answer once more before it stands still */
      if (command == SIGKILL || command == SIGTERM) {
        waitpid(pid, NULL, 0);
        pid = 0;
      }
    }
    if (write(out, &command, 1) != 1) _exit(1);
  }
  if (pid > 0) kill(pid, SIGKILL);
  _exit(0);
}

void keeper_start(struct keeper *k, const struct sml_aggd_options *options) {
  int down[2], up[2];
  char error[256];
  struct sml_aggd_options o = *options;
  assert_true(sml_addr_parse("127.0.0.1:0", 0, &o.listen, error, sizeof error));
  assert_int_equal(pipe(down), 0);
  assert_int_equal(pipe(up), 0);
  k->pid = fork();
  if (k->pid == 0) {
    alarm(280); /* not longer than its parent, whatever happens */
    close(down[1]);
    close(up[0]);
    keep(&o, down[0], up[1]);
  }
  close(down[0]);
  close(up[1]);
  k->to = down[1];
  k->from = up[0];
  assert_int_equal(read(k->from, k->address, sizeof k->address), sizeof k->address);
}

static void command(struct keeper *k, char number) {
  char answer;
  assert_int_equal(write(k->to, &number, 1), 1);
  assert_int_equal(read(k->from, &answer, 1), 1);
}

void keeper_signal(struct keeper *k, int number) {
  command(k, (char)number);
}

void keeper_start_again(struct keeper *k) {
  command(k, 0);
}

void keeper_stop(struct keeper *k) {
  close(k->to);
  waitpid(k->pid, NULL, 0);
  close(k->from);
}
