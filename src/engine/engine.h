/* SPDX-License-Identifier: Apache-2.0
 * What the two engines share: a mailbox of commands for the thread that owns the engine, and that
 * thread. An engine is driven by run_once(engine, now_ns) -> the time until which it may sleep; the
 * thread (or a test, with its own clock) calls it. Commands are rare and may take a lock; the data
 * path looks only at one atomic flag a pass. */
#ifndef SML_ENGINE_ENGINE_H
#define SML_ENGINE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "netio/netio.h"

/* A command is memory of the sender, lent until run() returns on the engine's thread. run() may free
 * or recycle it and signals the sender itself if somebody waits. */
struct sml_engine_command {
  struct sml_engine_command *next; /* the mailbox's */
  void (*run)(struct sml_engine_command *command, void *engine, uint64_t now_ns);
};

struct sml_mailbox {
  pthread_mutex_t lock;
  struct sml_engine_command *head, **tail;
  _Atomic bool has_mail; /* release by post, acquire by drain */
};
void sml_mailbox_init(struct sml_mailbox *box);
void sml_mailbox_destroy(struct sml_mailbox *box);
/* Any thread. Also wakes io when the engine may be asleep. */
void sml_mailbox_post(struct sml_mailbox *box, struct sml_engine_command *command, struct sml_netio *io);
void sml_mailbox_drain(struct sml_mailbox *box, void *engine, uint64_t now_ns);

/* CLOCK_MONOTONIC. */
uint64_t sml_clock_ns(void);

/* Runs an engine on a thread of its own until stopped; signals blocked, default floating point mode. */
struct sml_engine_thread {
  pthread_t thread;
  _Atomic bool should_stop;
  struct sml_netio *io;
  void *engine;
  uint64_t (*run_once)(void *engine, uint64_t now_ns); /* returns the next deadline, or SML_NEVER; 0: again */
};
int sml_engine_thread_start(struct sml_engine_thread *thread, const char *name); /* 0 or an errno */
void sml_engine_thread_stop(struct sml_engine_thread *thread);                   /* joins */

#endif
