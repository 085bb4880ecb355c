/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>

struct start {
  char name[16];
  void *(*run)(void *argument);
  void *argument;
};

/* It names itself: to name another thread glibc opens a file, which the child of a fork would keep. */
static void *run_named(void *argument) {
  const struct start start = *(struct start *)argument;
  free(argument);
  (void)prctl(PR_SET_NAME, start.name, 0, 0, 0);
  return start.run(start.argument);
}

int sml_thread_start(pthread_t *thread, const char *name, void *(*run)(void *argument), void *argument) {
  sigset_t all, before;
  struct start *start = malloc(sizeof *start);
  if (start == NULL) return ENOMEM;
  *start = (struct start){.run = run, .argument = argument};
  snprintf(start->name, sizeof start->name, "%s", name);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* the new thread inherits it */
  const int error = pthread_create(thread, NULL, run_named, start);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error != 0) free(start);
  return error;
}

void sml_thread_init_cond(pthread_cond_t *cond) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(cond, &attributes);
  pthread_condattr_destroy(&attributes);
}
