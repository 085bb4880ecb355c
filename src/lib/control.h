/* SPDX-License-Identifier: Apache-2.0
 * The control thread of a context: serves the control connections of all its jobs. It may block and
 * allocate; the engines never wait for it. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "process/status.h"

struct sml_session;

struct sml_control {
  int epoll_fd, event_fd;
  pthread_t thread;
  _Atomic bool should_stop;
  _Atomic uint64_t sleep_until_ns; /* SML_NEVER while it works: then a wake is never lost */
  struct sml_session *sessions;    /* changed under sml_fork_lock(); removed by the control thread only */
};

sml_status sml_control_start(struct sml_control *control);
void sml_control_stop(struct sml_control *control);              /* no session may be left */
void sml_control_close_descriptors(struct sml_control *control); /* in the child of a fork */

/* Any thread. */
void sml_control_wake(struct sml_control *control);
/* Wakes it only if it would sleep beyond the deadline. */
void sml_control_wake_by(struct sml_control *control, uint64_t deadline_ns);
/* The session is the control thread's from here until its `closed` event. */
void sml_control_serve(struct sml_control *control, struct sml_session *session);
