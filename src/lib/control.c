/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/control.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/fork.h"
#include "base/thread.h"
#include "engine/engine.h"
#include "lib/session.h"

static void drain_wakes(struct sml_control *c) {
  uint64_t count;
  while (read(c->event_fd, &count, sizeof count) > 0) continue;
}

static void remove_session(struct sml_control *c, struct sml_session *session) {
  sml_fork_lock();
  struct sml_session **link = &c->sessions;
  while (*link != session) link = &(*link)->next;
  *link = session->next;
  sml_fork_unlock();
}

static uint64_t serve_sessions(struct sml_control *c) {
  sml_fork_lock();
  struct sml_session *session = c->sessions;
  sml_fork_unlock();
  uint64_t deadline_ns = SML_NEVER;
  while (session) {
    struct sml_session *next = session->next; /* new ones go to the head, so this link stays */
    deadline_ns = sml_min_u64(deadline_ns, sml_session_service(session, sml_clock_ns()));
    if (sml_session_is_closed(session)) {
      remove_session(c, session);
      session->options.events->closed(session->options.user); /* may free it */
    }
    session = next;
  }
  return deadline_ns;
}

static void sleep_until(struct sml_control *c, uint64_t deadline_ns) {
  struct epoll_event events[16];
  int timeout_ms = -1;
  if (deadline_ns != SML_NEVER) {
    const uint64_t now_ns = sml_clock_ns();
    const uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    timeout_ms = (int)sml_min_u64(sml_div_ceil(left_ns, SML_NS_PER_MS), 60 * 1000);
  }
  /* Which descriptor is ready does not matter: every session is served after each wake. */
  epoll_wait(c->epoll_fd, events, (int)SML_ARRAY_LEN(events), timeout_ms);
}

static void *run_thread(void *argument) {
  struct sml_control *c = argument;
  for (;;) {
    atomic_store(&c->sleep_until_ns, SML_NEVER);
    drain_wakes(c);
    if (atomic_load(&c->should_stop)) return NULL; /* behind the drain: else it could take that wake along */
    const uint64_t deadline_ns = serve_sessions(c);
    /* A submitter that saw SML_NEVER has written to event_fd; one that comes now sees the deadline. */
    atomic_store(&c->sleep_until_ns, deadline_ns);
    sleep_until(c, deadline_ns);
  }
}

static sml_status open_descriptors(struct sml_control *c) {
  struct epoll_event event = {.events = EPOLLIN};
  c->epoll_fd = sml_fd_raise(epoll_create1(EPOLL_CLOEXEC));
  c->event_fd = sml_fd_raise(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (c->epoll_fd >= 0 && c->event_fd >= 0 && epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, c->event_fd, &event) == 0)
    return SML_OK;
  const int error = errno;
  sml_control_close_descriptors(c);
  return sml_fail(SML_ERR_SYSTEM, "opening the control thread's descriptors failed: %s", strerror(error));
}

sml_status sml_control_start(struct sml_control *c) {
  atomic_store(&c->should_stop, false);
  atomic_store(&c->sleep_until_ns, SML_NEVER);
  sml_fork_lock();
  const sml_status status = open_descriptors(c);
  sml_fork_unlock();
  if (status != SML_OK) return status;
  const int error = sml_thread_start(&c->thread, "sml-control", run_thread, c);
  if (error == 0) return SML_OK;
  sml_fork_lock();
  sml_control_close_descriptors(c);
  sml_fork_unlock();
  return sml_fail(SML_ERR_SYSTEM, "starting the control thread failed: %s", strerror(error));
}

void sml_control_stop(struct sml_control *c) {
  SML_ASSERT(c->sessions == NULL);
  atomic_store(&c->should_stop, true);
  sml_control_wake(c);
  pthread_join(c->thread, NULL);
  sml_fork_lock();
  sml_control_close_descriptors(c);
  sml_fork_unlock();
}

void sml_control_close_descriptors(struct sml_control *c) {
  if (c->epoll_fd >= 0) close(c->epoll_fd);
  if (c->event_fd >= 0) close(c->event_fd);
  for (struct sml_session *s = c->sessions; s; s = s->next)
    if (s->fd >= 0) close(s->fd);
  c->epoll_fd = c->event_fd = -1;
}

void sml_control_wake(struct sml_control *c) {
  const uint64_t one = 1;
  while (write(c->event_fd, &one, sizeof one) < 0 && errno == EINTR) continue;
}

void sml_control_wake_by(struct sml_control *c, uint64_t deadline_ns) {
  if (deadline_ns < atomic_load(&c->sleep_until_ns)) sml_control_wake(c);
}

void sml_control_serve(struct sml_control *c, struct sml_session *session) {
  sml_fork_lock();
  session->next = c->sessions;
  c->sessions = session;
  sml_fork_unlock();
  sml_control_wake(c);
}
