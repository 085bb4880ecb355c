/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine.h"

#include <signal.h>
#include <sys/prctl.h>
#include <time.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

void sml_mailbox_init(struct sml_mailbox *box) {
  pthread_mutex_init(&box->lock, NULL);
  box->head = NULL;
  box->tail = &box->head;
  atomic_init(&box->has_mail, false);
}

void sml_mailbox_destroy(struct sml_mailbox *box) {
  SML_ASSERT(box->head == NULL);
  pthread_mutex_destroy(&box->lock);
}

void sml_mailbox_post(struct sml_mailbox *box, struct sml_engine_command *command, struct sml_netio *io) {
  command->next = NULL;
  pthread_mutex_lock(&box->lock);
  *box->tail = command;
  box->tail = &command->next;
  atomic_store_explicit(&box->has_mail, true, memory_order_release); /* pairs with sml_mailbox_drain */
  pthread_mutex_unlock(&box->lock);
  if (io) io->ops->wake(io);
}

void sml_mailbox_drain(struct sml_mailbox *box, void *engine, uint64_t now_ns) {
  if (!atomic_load_explicit(&box->has_mail, memory_order_acquire)) return;
  pthread_mutex_lock(&box->lock);
  struct sml_engine_command *command = box->head;
  box->head = NULL;
  box->tail = &box->head;
  atomic_store_explicit(&box->has_mail, false, memory_order_relaxed); /* under the lock, as in post */
  pthread_mutex_unlock(&box->lock);
  while (command) {
    struct sml_engine_command *next = command->next; /* run() may free its command */
    command->run(command, engine, now_ns);
    command = next;
  }
}

uint64_t sml_clock_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * SML_NS_PER_S + (uint64_t)t.tv_nsec;
}

/* A thread inherits its creator's floating point mode, and frameworks set flush-to-zero. */
static void set_default_float_mode(void) {
#if defined(__SSE__)
  _mm_setcsr(0x1f80); /* exceptions masked, round to nearest even, no FTZ, no DAZ */
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, xzr");
#endif
}

static void *run_thread(void *argument) {
  struct sml_engine_thread *t = argument;
  set_default_float_mode();
  (void)prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0); /* by default a wait takes 50 us longer than asked for */
  while (!atomic_load_explicit(&t->should_stop, memory_order_acquire)) { /* pairs with _stop */
    const uint64_t deadline_ns = t->run_once(t->engine, sml_clock_ns());
    if (deadline_ns == 0) continue;
    if (deadline_ns == SML_NEVER) {
      t->io->ops->wait(t->io, SML_NEVER);
      continue;
    }
    const uint64_t now_ns = sml_clock_ns();
    if (now_ns < deadline_ns) t->io->ops->wait(t->io, deadline_ns - now_ns);
  }
  return NULL;
}

int sml_engine_thread_start(struct sml_engine_thread *thread, const char *name) {
  atomic_store(&thread->should_stop, false);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* the new thread inherits it: no handler runs there */
  const int error = pthread_create(&thread->thread, NULL, run_thread, thread);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error == 0) pthread_setname_np(thread->thread, name);
  return error;
}

void sml_engine_thread_stop(struct sml_engine_thread *thread) {
  atomic_store_explicit(&thread->should_stop, true, memory_order_release);
  thread->io->ops->wake(thread->io);
  pthread_join(thread->thread, NULL);
}
