/* SPDX-License-Identifier: Apache-2.0
 * Threads and what they wait for. The state of a mutex, cond or sem lies in the object itself, as it does in
 * the real library; all zero bytes are an unlocked mutex. */
#include "sim/internal.h"

#include <errno.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#define YIELD_NS (10 * SML_NS_PER_US)

struct mutex {
  struct sim_fiber *owner;
  struct sim_queue waiters;
};
struct cond {
  struct sim_queue waiters;
  clockid_t clock;
};
struct semaphore {
  struct sim_queue waiters;
  uint32_t value;
};
_Static_assert(sizeof(struct mutex) <= sizeof(pthread_mutex_t), "a mutex has room");
_Static_assert(sizeof(struct cond) <= sizeof(pthread_cond_t), "a cond has room");
_Static_assert(sizeof(struct semaphore) <= sizeof(sem_t), "a sem has room");
_Static_assert(sizeof(pthread_t) == sizeof(struct sim_fiber *), "a thread's handle is its fiber");

/* ---- threads ---- */

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *argument) {
  if (!sim_is_inside()) return __real_pthread_create(thread, attr, start, argument);
  const int error = sim_call_error(SIM_CALL_THREAD);
  if (error != 0) return error;
  *thread = (pthread_t)sim_fiber_create(sim.fiber->process, "thread", start, argument);
  sim_maybe_switch();
  return 0;
}

int __real_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result) {
  if (!sim_is_inside()) return __real_pthread_join(thread, result);
  struct sim_fiber *f = (struct sim_fiber *)thread;
  while (!f->is_done) (void)sim_block(&f->joiners, SML_NEVER);
  if (result != NULL) *result = f->result;
  sim_fiber_destroy(f);
  return 0;
}

int __real_pthread_setname_np(pthread_t thread, const char *name);
int __wrap_pthread_setname_np(pthread_t thread, const char *name);
int __wrap_pthread_setname_np(pthread_t thread, const char *name) {
  if (!sim_is_inside()) return __real_pthread_setname_np(thread, name);
  struct sim_fiber *f = (struct sim_fiber *)thread;
  (void)snprintf(f->name, sizeof f->name, "%s", name);
  return 0;
}

int __real_pthread_sigmask(int how, const sigset_t *set, sigset_t *before);
int __wrap_pthread_sigmask(int how, const sigset_t *set, sigset_t *before);
int __wrap_pthread_sigmask(int how, const sigset_t *set, sigset_t *before) {
  return sim_is_inside() ? 0 : __real_pthread_sigmask(how, set, before); /* there are no signals */
}

/* Who yields looks for something in a loop: time must pass, and large steps make fewer events. */
int __real_sched_yield(void);
int __wrap_sched_yield(void);
int __wrap_sched_yield(void) {
  if (!sim_is_inside()) return __real_sched_yield();
  sim_step(YIELD_NS);
  return 0;
}

/* Only the number of processors is asked for; a seed is the same run on all machines. */
long __real_sysconf(int name);
long __wrap_sysconf(int name);
long __wrap_sysconf(int name) {
  if (!sim_is_inside()) return __real_sysconf(name);
  /* libFuzzer has a thread of its own, whose sanitizer asks for other things while a simulated one is running. */
  if (name != _SC_NPROCESSORS_ONLN) return __real_sysconf(name);
  return 2;
}

/* ---- mutexes ---- */

static void lock(struct mutex *m) {
  SML_ASSERT(m->owner != sim.fiber);
  while (m->owner != NULL) (void)sim_block(&m->waiters, SML_NEVER);
  m->owner = sim.fiber;
}

static void unlock(struct mutex *m) {
  SML_ASSERT(m->owner == sim.fiber);
  m->owner = NULL;
  sim_wake_drawn(&m->waiters); /* it competes with whoever comes by until its turn */
}

int __real_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attr);
int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attr);
int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attr) {
  if (!sim_is_inside()) return __real_pthread_mutex_init(mutex, attr);
  memset(mutex, 0, sizeof *mutex);
  return 0;
}

int __real_pthread_mutex_destroy(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex) {
  if (!sim_is_inside()) return __real_pthread_mutex_destroy(mutex);
  const struct mutex *m = (struct mutex *)mutex;
  SML_ASSERT(m->owner == NULL && m->waiters.head == NULL);
  memset(mutex, 0xff, sizeof *mutex); /* a use from here on is seen */
  return 0;
}

int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex) {
  if (!sim_is_inside()) return __real_pthread_mutex_lock(mutex);
  sim_maybe_switch();
  lock((struct mutex *)mutex);
  return 0;
}

int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex) {
  if (!sim_is_inside()) return __real_pthread_mutex_unlock(mutex);
  unlock((struct mutex *)mutex);
  sim_maybe_switch();
  return 0;
}

/* ---- conds ---- */

int __real_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr);
int __wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr);
int __wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr) {
  if (!sim_is_inside()) return __real_pthread_cond_init(cond, attr);
  struct cond *c = (struct cond *)cond;
  memset(cond, 0, sizeof *cond);
  c->clock = CLOCK_REALTIME;
  if (attr != NULL) (void)pthread_condattr_getclock(attr, &c->clock);
  return 0;
}

int __real_pthread_cond_destroy(pthread_cond_t *cond);
int __wrap_pthread_cond_destroy(pthread_cond_t *cond);
int __wrap_pthread_cond_destroy(pthread_cond_t *cond) {
  if (!sim_is_inside()) return __real_pthread_cond_destroy(cond);
  SML_ASSERT(((struct cond *)cond)->waiters.head == NULL);
  memset(cond, 0xff, sizeof *cond);
  return 0;
}

static bool wait_for(struct cond *c, struct mutex *m, uint64_t deadline_ns) {
  bool was_woken;
  if (sml_prng_chance(&sim.schedule, sim.options.spurious_chance)) {
    sim.counts[SIM_SPURIOUS_WAKES]++;
    unlock(m);
    sim_step(1 + sml_prng_below(&sim.schedule, 100 * SML_NS_PER_US));
    was_woken = sim_local_ns() < deadline_ns;
  } else {
    unlock(m);
    was_woken = sim_block(&c->waiters, deadline_ns);
  }
  lock(m);
  return was_woken;
}

int __real_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex) {
  if (!sim_is_inside()) return __real_pthread_cond_wait(cond, mutex);
  (void)wait_for((struct cond *)cond, (struct mutex *)mutex, SML_NEVER);
  return 0;
}

int __real_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *deadline);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *deadline);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *deadline) {
  if (!sim_is_inside()) return __real_pthread_cond_timedwait(cond, mutex, deadline);
  struct cond *c = (struct cond *)cond;
  SML_ASSERT(c->clock == CLOCK_MONOTONIC);
  uint64_t clock_ns;
  if (__builtin_mul_overflow((uint64_t)deadline->tv_sec, SML_NS_PER_S, &clock_ns)) clock_ns = SML_NEVER / 2;
  clock_ns = sml_min_u64(clock_ns, SML_NEVER / 2) + (uint64_t)deadline->tv_nsec;
  const uint64_t deadline_ns = sim_time_of(sim.fiber->process, clock_ns);
  return wait_for(c, (struct mutex *)mutex, deadline_ns) ? 0 : ETIMEDOUT;
}

int __real_pthread_cond_signal(pthread_cond_t *cond);
int __wrap_pthread_cond_signal(pthread_cond_t *cond);
int __wrap_pthread_cond_signal(pthread_cond_t *cond) {
  if (!sim_is_inside()) return __real_pthread_cond_signal(cond);
  sim_wake_drawn(&((struct cond *)cond)->waiters);
  sim_maybe_switch();
  return 0;
}

int __real_pthread_cond_broadcast(pthread_cond_t *cond);
int __wrap_pthread_cond_broadcast(pthread_cond_t *cond);
int __wrap_pthread_cond_broadcast(pthread_cond_t *cond) {
  if (!sim_is_inside()) return __real_pthread_cond_broadcast(cond);
  sim_wake_all(&((struct cond *)cond)->waiters);
  sim_maybe_switch();
  return 0;
}

/* ---- semaphores ---- */

int __real_sem_init(sem_t *sem, int is_shared, unsigned value);
int __wrap_sem_init(sem_t *sem, int is_shared, unsigned value);
int __wrap_sem_init(sem_t *sem, int is_shared, unsigned value) {
  if (!sim_is_inside()) return __real_sem_init(sem, is_shared, value);
  memset(sem, 0, sizeof *sem);
  ((struct semaphore *)sem)->value = value;
  return 0;
}

int __real_sem_destroy(sem_t *sem);
int __wrap_sem_destroy(sem_t *sem);
int __wrap_sem_destroy(sem_t *sem) {
  if (!sim_is_inside()) return __real_sem_destroy(sem);
  SML_ASSERT(((struct semaphore *)sem)->waiters.head == NULL);
  memset(sem, 0xff, sizeof *sem);
  return 0;
}

int __real_sem_post(sem_t *sem);
int __wrap_sem_post(sem_t *sem);
int __wrap_sem_post(sem_t *sem) {
  if (!sim_is_inside()) return __real_sem_post(sem);
  struct semaphore *s = (struct semaphore *)sem;
  s->value++;
  sim_wake_drawn(&s->waiters);
  sim_maybe_switch(); /* the last touch was before: the waiter may be gone with it by now */
  return 0;
}

int __real_sem_wait(sem_t *sem);
int __wrap_sem_wait(sem_t *sem);
int __wrap_sem_wait(sem_t *sem) {
  if (!sim_is_inside()) return __real_sem_wait(sem);
  const int error = sim_call_error(SIM_CALL_SEM_WAIT);
  if (error != 0) {
    errno = error;
    return -1;
  }
  struct semaphore *s = (struct semaphore *)sem;
  while (s->value == 0) (void)sim_block(&s->waiters, SML_NEVER);
  s->value--;
  return 0;
}
