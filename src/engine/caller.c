/* SPDX-License-Identifier: Apache-2.0
 * Callers run an engine themselves. A small operation is over sooner than a thread wakes up. So the caller that
 * submits it makes a pass, and the caller that waits for it makes the rest, while the engine's own thread is parked.
 * The rules:
 *
 * - `runner` says who runs the engine. A thread replaces NONE by itself, with a compare-and-exchange, and later puts
 *   NONE back.
 * - Work that a caller cannot do (mail, large operations, waits of others) sets is_wanted. The thread takes its turn as
 *   soon as no caller runs the engine, and keeps it until nothing is outstanding.
 * - What callers leave outstanding, because nobody waits for it, goes on two TICKs later at the latest: the parked
 *   thread looks once a TICK whether callers still come, and takes its turn if none did. If nothing is left to do, it
 *   parks without a time-out (is_deep). Then it costs nothing until a caller leaves something again.
 *
 * Atomics without an order are sequentially consistent. They have to be: each side sets its own flag and then reads the
 * other's (is_wanted and runner; is_deep and num_calls), and at least one of them must see the other's. */
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"
#include "engine/engine.h"

#define TICK_NS (1 * SML_NS_PER_MS)
/* This is longer than a round trip through a host's stack and scheduler, and shorter than anybody notices. */
#define AUTO_SPIN_NS (50 * SML_NS_PER_US)
/* A pass this short a time ago found what there was to find. */
#define RECENT_NS (2 * SML_NS_PER_US)
/* A yield that takes longer has let another thread run on this core. */
#define SHARED_YIELD_NS 1500u
/* The scheduler picks a core for a thread that wakes up, and hardly ever moves one that only yields: all workers and
 * the aggregator could stay on one core. So a caller that shares its core blocks on the socket this often. */
#define SETTLE_NS (1 * SML_NS_PER_MS)
/* Calls in a row share a pass: the first one sends at once, and who calls again or comes to wait does it for those
 * behind it. So they must come soon; two rows of calls that ended with a wait make it true, one that did not takes it
 * back. A pass comes at least this often while there are calls. */
#define ROW_NS (50 * SML_NS_PER_US)
#define SHARED_PASS_NS (20 * SML_NS_PER_US)
#define ENOUGH_ROWS 2u

bool sml_poll_parse(const char *text, enum sml_poll *poll_out) {
  static const char *const names[] = {
      [SML_POLL_AUTO] = "auto", [SML_POLL_BUSY] = "busy", [SML_POLL_BLOCK] = "block"};
  for (size_t i = 0; i < SML_ARRAY_LEN(names); i++) {
    if (strcmp(text, names[i]) != 0) continue;
    *poll_out = (enum sml_poll)i;
    return true;
  }
  return false;
}

uint64_t sml_poll_spin_ns(enum sml_poll poll) {
  if (poll == SML_POLL_BUSY) return SML_NEVER;
  /* On a single core the sender of the frame needs that core. */
  return poll == SML_POLL_BLOCK || sysconf(_SC_NPROCESSORS_ONLN) < 2 ? 0 : AUTO_SPIN_NS;
}

static bool try_take(struct sml_engine_thread *t, uint32_t runner) {
  uint32_t none = SML_RUNNER_NONE;
  return atomic_load_explicit(&t->runner, memory_order_relaxed) == SML_RUNNER_NONE &&
         atomic_compare_exchange_strong(&t->runner, &none, runner);
}

static void signal_thread(struct sml_engine_thread *t) {
  pthread_mutex_lock(&t->lock);
  atomic_store(&t->is_deep, false);
  pthread_cond_signal(&t->changed);
  pthread_mutex_unlock(&t->lock);
}

void sml_engine_thread_want(struct sml_engine_thread *t) {
  atomic_store(&t->is_wanted, true);
  if (atomic_load(&t->runner) != SML_RUNNER_THREAD) signal_thread(t);
}

void sml_engine_thread_wake(struct sml_engine_thread *t) {
  if (!t->is_shared) {
    t->io->ops->wake(t->io);
    return;
  }
  sml_engine_thread_want(t);
  /* If nobody runs it, the next one that does sees what this wake is for. */
  if (atomic_load(&t->runner) != SML_RUNNER_NONE) t->io->ops->wake(t->io);
}

/* ---- the thread ---- */

/* Call it with the lock held. False: the tick is over. */
static bool sleep_parked(struct sml_engine_thread *t) {
  if (atomic_load(&t->is_deep)) return pthread_cond_wait(&t->changed, &t->lock) == 0;
  const struct timespec until = sml_timespec(sml_clock_ns() + TICK_NS);
  return pthread_cond_timedwait(&t->changed, &t->lock, &until) == 0;
}

/* Notes the calls up to now. Returns whether there were any since the last time. */
static bool note_calls(struct sml_engine_thread *t) {
  const uint32_t num_calls = atomic_load(&t->num_calls);
  const bool has_called = num_calls != t->seen_calls;
  t->seen_calls = num_calls;
  return has_called;
}

static void sleep_deep(struct sml_engine_thread *t) {
  atomic_store(&t->is_deep, true);
  if (note_calls(t)) atomic_store(&t->is_deep, false); /* that caller may not have seen the flag */
}

bool sml_engine_thread_take_turn(struct sml_engine_thread *t) {
  bool has_turn = false;
  pthread_mutex_lock(&t->lock);
  if (!note_calls(t)) sleep_deep(t);
  while (!atomic_load_explicit(&t->should_stop, memory_order_acquire)) { /* pairs with sml_engine_thread_stop */
    if (atomic_load(&t->is_wanted) && (has_turn = try_take(t, SML_RUNNER_THREAD))) break;
    if (sleep_parked(t) || note_calls(t)) continue;
    if ((has_turn = try_take(t, SML_RUNNER_THREAD))) break;
    sleep_deep(t); /* a caller has run it for long, and wakes this thread if it leaves something */
  }
  atomic_store(&t->is_deep, false);
  pthread_mutex_unlock(&t->lock);
  return has_turn;
}

void sml_engine_thread_end_turn(struct sml_engine_thread *t) {
  t->is_awaiting = false;
  atomic_store(&t->runner, SML_RUNNER_NONE);
}

/* ---- callers ---- */

static void end_call(struct sml_engine_thread *t, bool leaves_work) {
  t->is_awaiting = leaves_work;
  (void)atomic_fetch_add(&t->num_calls, 1);
  atomic_store(&t->runner, SML_RUNNER_NONE);
  if (atomic_load(&t->is_wanted) || (leaves_work && atomic_load(&t->is_deep))) signal_thread(t);
}

static void run_pass(struct sml_engine_thread *t, uint64_t now_ns) {
  const uint64_t deadline_ns = t->run_once(t->engine, now_ns);
  t->passed_ns = sml_clock_ns();
  if (t->row_ns != 0) t->row_ns = t->passed_ns;
  end_call(t, deadline_ns != SML_NEVER);
}

/* Somebody comes for what was called. */
static void end_row(struct sml_engine_thread *t, uint64_t now_ns) {
  if (t->row_ns == 0) return;
  t->num_rows = now_ns - t->row_ns < ROW_NS ? sml_min_u32(t->num_rows + 1, ENOUGH_ROWS) : 0;
  t->row_ns = 0;
}

bool sml_engine_thread_try_run(struct sml_engine_thread *t) {
  if (!try_take(t, SML_RUNNER_CALLER)) return false;
  const uint64_t now_ns = sml_clock_ns();
  end_row(t, now_ns);
  run_pass(t, now_ns);
  return true;
}

bool sml_engine_thread_try_call(struct sml_engine_thread *t) {
  if (!try_take(t, SML_RUNNER_CALLER)) return false;
  const uint64_t now_ns = sml_clock_ns();
  if (t->row_ns != 0 && now_ns - t->row_ns >= ROW_NS) t->num_rows = 0;
  const bool is_row = t->is_awaiting;
  const bool is_shared = is_row && t->num_rows >= ENOUGH_ROWS && now_ns - t->passed_ns < SHARED_PASS_NS;
  t->row_ns = is_row ? now_ns : 0;
  if (is_shared) end_call(t, true);
  else run_pass(t, now_ns);
  return true;
}

/* Gives way for a moment, and returns the time. */
static uint64_t yield(struct sml_engine_thread *t, uint64_t now_ns) {
  (void)sched_yield();
  const uint64_t after_ns = sml_clock_ns();
  t->is_sharing = t->is_sharing || after_ns - now_ns > SHARED_YIELD_NS;
  return after_ns;
}

/* Should the caller block on the socket instead of yielding? */
static bool should_settle(struct sml_engine_thread *t, uint64_t now_ns) {
  if (!t->is_sharing || now_ns - t->settled_ns < SETTLE_NS) return false;
  t->is_sharing = false;
  t->settled_ns = now_ns;
  return true;
}

void sml_engine_thread_drive(struct sml_engine_thread *t, bool (*has_ended)(const void *argument),
                             const void *argument, uint64_t deadline_ns) {
  if (!try_take(t, SML_RUNNER_CALLER)) return;
  uint64_t now_ns = sml_clock_ns(), spin_from_ns = now_ns, seen_frames = t->io->stats.rx_frames;
  uint64_t next_ns;
  const bool has_row = t->row_ns != 0; /* it may have left something to send */
  end_row(t, now_ns);
  if (t->spin_ns > 0 && !has_row && now_ns - t->passed_ns < RECENT_NS) now_ns = yield(t, now_ns);
  for (;;) {
    next_ns = t->run_once(t->engine, now_ns);
    if (has_ended(argument) || now_ns >= deadline_ns || next_ns == SML_NEVER) break;
    if (t->io->stats.rx_frames != seen_frames) spin_from_ns = now_ns;
    seen_frames = t->io->stats.rx_frames;
    now_ns = sml_clock_ns();
    if (next_ns <= now_ns) continue; /* 0 included */
    if (now_ns - spin_from_ns < t->spin_ns && t->io->gather_ns == 0 && !should_settle(t, now_ns)) {
      now_ns = yield(t, now_ns);
      continue;
    }
    t->io->ops->wait(t->io, sml_min_u64(next_ns, deadline_ns) - sml_min_u64(now_ns, deadline_ns));
    now_ns = sml_clock_ns();
  }
  end_call(t, next_ns != SML_NEVER);
}
