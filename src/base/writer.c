/* SPDX-License-Identifier: Apache-2.0
 * Messages lie in the ring one behind the other, each behind its head. `begin` and `end` count bytes from the start and
 * never wrap. Whoever puts writes behind `end`, the thread reads from `begin` and moves it when a message is written:
 * so no lock is held while anything is written, and what is being written is not overwritten. */
#include "base/writer.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/fd.h"
#include "base/thread.h"

#define RING_BYTES ((size_t)128 << 10)
#define EXIT_NS (500 * SML_NS_PER_MS)

struct head {
  const struct sml_outlet *outlet;
  uint64_t num_left_out; /* 0: a message of num_bytes follows; else that many messages were left out here */
  size_t num_bytes;
};

static struct {
  pthread_mutex_t lock;
  pthread_cond_t put, written;
  size_t begin, end;
  uint64_t num_pending;                    /* left out behind `end` */
  const struct sml_outlet *pending_outlet; /* of the last of them */
  pthread_t thread;
  bool has_thread, should_stop;
  char ring[RING_BYTES];
} writer = {.lock = PTHREAD_MUTEX_INITIALIZER, .put = PTHREAD_COND_INITIALIZER, .written = PTHREAD_COND_INITIALIZER};
static _Atomic uint64_t num_left_out;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- the ring ---- */

static void copy_in(const void *data, size_t num_bytes) {
  const size_t at = writer.end % RING_BYTES, first = sml_min_u64(num_bytes, RING_BYTES - at);
  memcpy(writer.ring + at, data, first);
  memcpy(writer.ring, (const char *)data + first, num_bytes - first);
  writer.end += num_bytes;
}

static void copy_out(size_t from, void *data, size_t num_bytes) {
  const size_t at = from % RING_BYTES, first = sml_min_u64(num_bytes, RING_BYTES - at);
  memcpy(data, writer.ring + at, first);
  memcpy((char *)data + first, writer.ring, num_bytes - first);
}

static void put_head_locked(const struct sml_outlet *outlet, uint64_t left_out, size_t num_bytes) {
  const struct head head = {.outlet = outlet, .num_left_out = left_out, .num_bytes = num_bytes};
  copy_in(&head, sizeof head);
}

static bool put_locked(const struct sml_outlet *outlet, const char *message, size_t num_bytes) {
  const size_t wanted = sizeof(struct head) * (writer.num_pending > 0 ? 2 : 1) + num_bytes;
  if (wanted > RING_BYTES - (writer.end - writer.begin)) {
    writer.num_pending++;
    writer.pending_outlet = outlet;
    atomic_fetch_add_explicit(&num_left_out, 1, memory_order_relaxed); /* a figure; it orders nothing */
    return false;
  }
  if (writer.num_pending > 0) put_head_locked(writer.pending_outlet, writer.num_pending, 0);
  writer.num_pending = 0;
  put_head_locked(outlet, 0, num_bytes);
  copy_in(message, num_bytes);
  return true;
}

/* ---- the thread ---- */

/* The oldest entry, or a count that has none yet. False: nothing is there. */
static bool take_locked(struct head *head, char *message) {
  if (writer.begin == writer.end) {
    if (writer.num_pending == 0) return false;
    put_head_locked(writer.pending_outlet, writer.num_pending, 0);
    writer.num_pending = 0;
  }
  copy_out(writer.begin, head, sizeof *head);
  copy_out(writer.begin + sizeof *head, message, head->num_bytes);
  return true;
}

static void *run(void *argument) {
  (void)argument;
  struct head head;
  char message[SML_WRITER_MAX_BYTES];
  pthread_mutex_lock(&writer.lock);
  for (;;) {
    while (!writer.should_stop && writer.begin == writer.end && writer.num_pending == 0)
      pthread_cond_wait(&writer.put, &writer.lock);
    if (!take_locked(&head, message)) break;
    pthread_mutex_unlock(&writer.lock);
    if (head.num_left_out == 0) head.outlet->write(message, head.num_bytes);
    else if (head.outlet->write_left_out != NULL) head.outlet->write_left_out(head.num_left_out);
    pthread_mutex_lock(&writer.lock);
    writer.begin += sizeof head + head.num_bytes;
    pthread_cond_broadcast(&writer.written);
  }
  writer.has_thread = false; /* what is put from here on starts another one */
  pthread_mutex_unlock(&writer.lock);
  return NULL;
}

/* Without one, for want of memory or threads, messages wait for the next that is put. */
static void ensure_thread_locked(void) {
  if (writer.has_thread) return;
  writer.should_stop = false;
  writer.has_thread = sml_thread_start(&writer.thread, "sml-writer", run, NULL) == 0;
}

/* ---- fork, exit ---- */

static void lock_for_fork(void) {
  pthread_mutex_lock(&writer.lock);
}

static void unlock_in_parent(void) {
  pthread_mutex_unlock(&writer.lock);
}

static void be_child(void) {
  writer.begin = writer.end = 0;
  writer.num_pending = 0;
  writer.has_thread = false;
  pthread_cond_init(&writer.put, NULL); /* the parent's thread waited there */
  pthread_cond_init(&writer.written, NULL);
  pthread_mutex_unlock(&writer.lock);
}

static struct timespec deadline_after(uint64_t timeout_ns) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const uint64_t ns = (uint64_t)now.tv_nsec + timeout_ns % SML_NS_PER_S;
  return (struct timespec){.tv_sec = now.tv_sec + (time_t)(timeout_ns / SML_NS_PER_S + ns / SML_NS_PER_S),
                           .tv_nsec = (long)(ns % SML_NS_PER_S)};
}

static bool is_written_locked(size_t end) {
  return writer.begin >= end && writer.num_pending == 0;
}

static bool flush_locked(uint64_t timeout_ns) {
  const size_t end = writer.end;
  const struct timespec deadline = deadline_after(timeout_ns);
  if (!is_written_locked(end)) ensure_thread_locked();
  for (int error = 0; !is_written_locked(end) && writer.has_thread && error == 0;)
    error = pthread_cond_clockwait(&writer.written, &writer.lock, CLOCK_MONOTONIC, &deadline);
  return is_written_locked(end);
}

bool sml_writer_end(uint64_t timeout_ns) {
  pthread_mutex_lock(&writer.lock);
  const bool is_written = flush_locked(timeout_ns);
  const bool ends = is_written && writer.has_thread && !writer.should_stop; /* else another thread joins it */
  const pthread_t thread = writer.thread;
  if (ends) writer.should_stop = true;
  pthread_cond_signal(&writer.put);
  pthread_mutex_unlock(&writer.lock);
  if (ends) pthread_join(thread, NULL);
  return is_written;
}

/* A reader that stands still does not keep the process. */
static void end_at_exit(void) {
  (void)sml_writer_end(EXIT_NS);
}

static void register_handlers(void) {
  (void)pthread_atfork(lock_for_fork, unlock_in_parent, be_child);
  (void)atexit(end_at_exit);
}

void sml_writer_register(void) {
  pthread_once(&once, register_handlers);
}

/* ---- messages ---- */

bool sml_writer_put(const struct sml_outlet *outlet, const char *message, size_t num_bytes) {
  SML_ASSERT(num_bytes <= SML_WRITER_MAX_BYTES);
  sml_writer_register();
  pthread_mutex_lock(&writer.lock);
  const bool is_put = put_locked(outlet, message, num_bytes);
  ensure_thread_locked();
  pthread_cond_signal(&writer.put);
  pthread_mutex_unlock(&writer.lock);
  return is_put;
}

static void write_plain(const char *message, size_t num_bytes) {
  (void)sml_fd_write_stderr(message, num_bytes); /* nowhere left to say that it failed */
}

void sml_writer_say(const char *format, ...) {
  static const struct sml_outlet outlet = {.write = write_plain};
  char text[SML_WRITER_MAX_BYTES];
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (length >= (int)sizeof text) text[sizeof text - 2] = '\n'; /* cut off */
  if (length > 0) (void)sml_writer_put(&outlet, text, sml_min_u64((uint64_t)length, sizeof text - 1));
}

bool sml_writer_flush(uint64_t timeout_ns) {
  pthread_mutex_lock(&writer.lock);
  const bool is_written = flush_locked(timeout_ns);
  pthread_mutex_unlock(&writer.lock);
  return is_written;
}

uint64_t sml_writer_num_left_out(void) {
  return atomic_load_explicit(&num_left_out, memory_order_relaxed);
}
