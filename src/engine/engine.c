/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "base/thread.h"
#include "engine/spin.h"

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

/* A thread inherits its creator's floating point mode, and frameworks set flush-to-zero. */
static void set_default_float_mode(void) {
#if defined(__SSE__)
  _mm_setcsr(0x1f80); /* exceptions masked, round to nearest even, no FTZ, no DAZ */
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, xzr");
#endif
}

/* After a pass: should the thread look for frames again at once? A shared engine's own thread does only bulk work. */
static bool should_spin(const struct sml_engine_thread *t, struct sml_spin *spin, uint64_t now_ns) {
  if (t->spin_ns == SML_NEVER) return true;
  return !t->is_shared && t->spin_ns > 0 && sml_spin_after_pass(spin, t->io->stats.rx_frames, t->spin_ns, now_ns);
}

static void *run_thread(void *argument) {
  struct sml_engine_thread *t = argument;
  struct sml_spin spin = {0};
  bool has_turn = !t->is_shared;
  set_default_float_mode();
  (void)prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0); /* by default a wait takes 50 us longer than asked for */
  while (!atomic_load_explicit(&t->should_stop, memory_order_acquire)) { /* pairs with _stop */
    if (!has_turn && !(has_turn = sml_engine_thread_take_turn(t))) break;
    if (t->is_shared) (void)atomic_exchange(&t->is_wanted, false); /* before the pass that serves it */
    uint64_t now_ns = sml_clock_ns();
    const uint64_t deadline_ns = t->run_once(t->engine, now_ns);
    if (deadline_ns == 0) continue;
    if (t->is_shared && deadline_ns == SML_NEVER) {
      sml_engine_thread_end_turn(t);
      has_turn = false;
      continue;
    }
    if (should_spin(t, &spin, now_ns)) {
      (void)sched_yield();
      continue;
    }
    if (deadline_ns == SML_NEVER) {
      t->io->ops->wait(t->io, SML_NEVER);
      continue;
    }
    now_ns = sml_clock_ns();
    if (now_ns < deadline_ns) t->io->ops->wait(t->io, deadline_ns - now_ns);
  }
  if (has_turn && t->is_shared) sml_engine_thread_end_turn(t);
  return NULL;
}

static int create_thread(struct sml_engine_thread *thread) {
  if (!thread->is_pinned) return pthread_create(&thread->thread, NULL, run_thread, thread);
  pthread_attr_t attributes;
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(thread->cpu, &cpus);
  int error = pthread_attr_init(&attributes);
  if (error != 0) return error;
  error = pthread_attr_setaffinity_np(&attributes, sizeof cpus, &cpus);
  if (error == 0) error = pthread_create(&thread->thread, &attributes, run_thread, thread);
  pthread_attr_destroy(&attributes);
  return error;
}

int sml_engine_thread_start(struct sml_engine_thread *thread, const char *name) {
  atomic_store(&thread->should_stop, false);
  atomic_store(&thread->runner, thread->is_shared ? SML_RUNNER_NONE : SML_RUNNER_THREAD); /* for good: no caller may */
  atomic_store(&thread->is_wanted, false);
  atomic_store(&thread->is_deep, false);
  atomic_store(&thread->num_calls, 0);
  thread->seen_calls = 0;
  pthread_mutex_init(&thread->lock, NULL);
  sml_thread_init_cond(&thread->changed);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* the new thread inherits it: no handler runs there */
  const int error = create_thread(thread);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error == 0) {
    pthread_setname_np(thread->thread, name);
    return 0;
  }
  pthread_cond_destroy(&thread->changed);
  pthread_mutex_destroy(&thread->lock);
  return error;
}

void sml_engine_thread_stop(struct sml_engine_thread *thread) {
  atomic_store_explicit(&thread->should_stop, true, memory_order_release); /* pairs with the thread's acquire */
  sml_engine_thread_wake(thread);
  pthread_join(thread->thread, NULL);
  pthread_cond_destroy(&thread->changed);
  pthread_mutex_destroy(&thread->lock);
}
