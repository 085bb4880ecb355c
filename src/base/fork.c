/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fork.h"

#include <pthread.h>

#include "base/writer.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct sml_fork_watch *watches;

void sml_fork_lock(void) {
  pthread_mutex_lock(&lock);
}

void sml_fork_unlock(void) {
  pthread_mutex_unlock(&lock);
}

static void be_child(void) {
  for (struct sml_fork_watch *watch = watches; watch; watch = watch->next) watch->in_child(watch);
  /* What the child creates is its own; what it inherited is not looked at again. */
  watches = NULL;
  pthread_mutex_unlock(&lock);
}

static void register_handlers(void) {
  sml_writer_register(); /* fork() takes the lock that was registered last first, and so do threads */
  pthread_atfork(sml_fork_lock, sml_fork_unlock, be_child);
}

void sml_fork_watch(struct sml_fork_watch *watch) {
  pthread_once(&once, register_handlers);
  sml_fork_lock();
  watch->next = watches;
  watches = watch;
  sml_fork_unlock();
}

void sml_fork_unwatch(struct sml_fork_watch *watch) {
  sml_fork_lock();
  for (struct sml_fork_watch **link = &watches; *link; link = &(*link)->next) {
    if (*link != watch) continue;
    *link = watch->next;
    break;
  }
  sml_fork_unlock();
}
