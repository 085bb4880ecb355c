/* SPDX-License-Identifier: Apache-2.0
 * The writer: a thread that writes this process's messages, so that whoever has something to say waits for nobody who
 * reads: a pager that stands still, a terminal after Ctrl-S, a collector or a file server that hangs. Messages wait in
 * a ring. One that finds no room is left out and counted, and the count is said in its place once there is room again.
 *
 * The thread starts with the first message. exit() waits for what is in the ring, but for EXIT_NS (writer.c) at most.
 * The child of a fork starts with an empty ring: what was in it is the parent's to write. */
#pragma once

#include "base/base.h"

#define SML_WRITER_MAX_BYTES 5120u /* of a message */

/* What becomes of messages. Called on the writer's thread, without locks and with all signals blocked: may block. */
struct sml_outlet {
  void (*write)(const char *message, size_t num_bytes);
  void (*write_left_out)(uint64_t num_messages); /* says that so many were left out; may be NULL */
};

/* For whoever has a lock that fork() takes and under which something is written: before its own handlers of fork. */
void sml_writer_register(void);
/* Any thread; never waits for a reader. The message, of at most SML_WRITER_MAX_BYTES, is copied; messages are written
 * in the order of the calls. False: it was left out, and is counted. */
bool sml_writer_put(const struct sml_outlet *outlet, const char *message, size_t num_bytes);
/* Formats a line, which ends itself, for standard error. */
__attribute__((format(printf, 1, 2))) void sml_writer_say(const char *format, ...);
/* Waits until what was put before is written, for timeout_ns at most. Whether it is. */
bool sml_writer_flush(uint64_t timeout_ns);
/* The same, and ends the thread then; the next message starts one. */
bool sml_writer_end(uint64_t timeout_ns);
/* How many lines this process has left out since it began. */
uint64_t sml_writer_num_left_out(void);
