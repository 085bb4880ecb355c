/* SPDX-License-Identifier: Apache-2.0
 * What the two engines share: a mailbox of commands for the thread that owns the engine, and that thread. The thread
 * (or a test with its own clock) calls run_once(engine, now_ns), which returns until when it may sleep. Commands are
 * rare and may take a lock; the data path reads one atomic flag a pass. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "base/base.h"
#include "base/clock.h"
#include "netio/netio.h"

/* A command is the sender's memory, which the mailbox borrows until run() returns on the engine's thread. run() may
 * free or reuse it, and signals the sender by itself if somebody waits. */
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
/* Any thread. It also wakes io: the engine may be asleep. */
void sml_mailbox_post(struct sml_mailbox *box, struct sml_engine_command *command, struct sml_netio *io);
void sml_mailbox_drain(struct sml_mailbox *box, void *engine, uint64_t now_ns);

/* How long a thread looks for frames before it sleeps. AUTO: some tens of microseconds after the last ones, and not at
 * all where only one core is; other threads go first. BUSY: always. BLOCK: never. */
enum sml_poll { SML_POLL_AUTO, SML_POLL_BUSY, SML_POLL_BLOCK };
bool sml_poll_parse(const char *text, enum sml_poll *poll_out); /* "auto", "busy", "block" */
uint64_t sml_poll_spin_ns(enum sml_poll poll);                  /* 0: sleep at once; SML_NEVER: never sleep */

/* Who runs an engine: at most one thread at a time. */
enum sml_engine_runner { SML_RUNNER_NONE, SML_RUNNER_THREAD, SML_RUNNER_CALLER };

/* Runs an engine on a thread of its own until it is stopped, with signals blocked and the default floating point mode.
 * Callers that wait for a shared engine run it, too (sml_engine_thread_drive). While it has nothing to do, or a caller
 * runs it, the thread is parked. It looks about once a TICK after calls whether what they left goes on (caller.c has
 * the rules). */
struct sml_engine_thread {
  pthread_t thread;
  _Atomic bool should_stop;
  struct sml_netio *io;
  void *engine;
  bool is_pinned; /* to one CPU: memory that the thread touches first is on its node */
  uint32_t cpu;   /* below SML_MAX_CPUS */
  uint64_t (*run_once)(void *engine, uint64_t now_ns); /* returns the next deadline, or SML_NEVER; 0: again */
  uint64_t spin_ns; /* sml_poll_spin_ns() */
  bool is_shared;   /* only if SML_NEVER from run_once means that no frame is awaited */
  /* Only for a shared engine: */
  _Atomic uint32_t runner;    /* taken with acquire, given with release: all state of the engine follows it */
  _Atomic bool is_wanted;     /* somebody has work that callers may not do */
  _Atomic bool is_deep;       /* parked without a time-out */
  _Atomic uint32_t num_calls; /* passes and drives of callers */
  uint32_t seen_calls;        /* num_calls when the thread last looked */
  uint64_t passed_ns, settled_ns; /* of the caller that runs it: its last pass in _try_run; when it last blocked */
  bool is_sharing;                /* likewise: since then its core has run another thread */
  bool is_awaiting;               /* likewise: when it gave the engine back */
  uint64_t row_ns;                /* likewise: the last call that came meanwhile, until somebody comes for it; or 0 */
  uint32_t num_rows;              /* likewise: of such calls that ended soon, in a row */
  pthread_mutex_t lock;       /* only for the sleep of the parked thread */
  pthread_cond_t changed;
};
int sml_engine_thread_start(struct sml_engine_thread *thread, const char *name); /* 0 or an errno */
void sml_engine_thread_stop(struct sml_engine_thread *thread);                   /* joins */
/* Any thread: there is mail, or something was pushed. */
void sml_engine_thread_wake(struct sml_engine_thread *thread);
/* Any thread, before it sleeps for work that callers do: the engine's thread goes on with it when no caller does. */
void sml_engine_thread_want(struct sml_engine_thread *thread);

/* For callers of a shared engine: makes one pass. False: somebody else runs it now. */
bool sml_engine_thread_try_run(struct sml_engine_thread *thread);
/* The same for what was just pushed. Several calls in a row may share a pass; the first one never waits for it. */
bool sml_engine_thread_try_call(struct sml_engine_thread *thread);
/* Makes passes until has_ended(argument), or the deadline has passed, or nothing is outstanding; none if somebody else
 * runs the engine. It spins for spin_ns, then sleeps for frames. */
void sml_engine_thread_drive(struct sml_engine_thread *thread, bool (*has_ended)(const void *argument),
                             const void *argument, uint64_t deadline_ns);
/* For the thread of a shared engine: waits for its turn (false: it should stop), and gives the turn back. */
bool sml_engine_thread_take_turn(struct sml_engine_thread *thread);
void sml_engine_thread_end_turn(struct sml_engine_thread *thread);
