/* SPDX-License-Identifier: Apache-2.0
 * Numbers 0, 1 and 2 are standard input, output and error, also where they are closed. A descriptor of ours that got
 * such a number would be written to by whoever prints a message, and a file of the user's that got number 2 would get
 * our log. So what is opened here goes above 2, and standard error is number 2 only while it is the file that it was
 * when this code was loaded. */
#pragma once

#include <sys/types.h>

#include "base/base.h"

/* What fd becomes if it is 0, 1 or 2; -1 and errno if there is no number left: fd is closed then. */
int sml_fd_move_up(int fd);

/* Around each call that makes a descriptor (tools/tidy.py insists on it): -1 stays -1, with its errno. */
static inline int sml_fd_raise(int fd) {
  return fd < 0 || fd > 2 ? fd : sml_fd_move_up(fd);
}

/* For programs, first in main(): opens /dev/null as each standard descriptor that is closed, the wrong way round, so
 * that reading and writing there still fail. What libraries open then has other numbers, too. */
void sml_fd_fill_standard(void);

/* Whether number 2 is the standard error that this process was started with, or this library was loaded with. */
bool sml_fd_has_stderr(void);
/* From now on the file that is number 2. For whoever puts another one there and says so: tests. */
void sml_fd_take_stderr(void);
/* The whole text, unless standard error has gone. Waits for whoever reads it. 0, or an errno. */
int sml_fd_write_stderr(const char *text, size_t num_bytes);

/* rename(2), over nothing or a regular file: a device, a pipe or a socket stays what it is. 0, or an errno: EEXIST for
 * those. */
int sml_fd_replace_file(const char *from, const char *path);

/* write(2) and fallocate(2) on any thread of a program that knows nothing of us: a closed pipe and a limit of file
 * sizes (RLIMIT_FSIZE) are errors, EPIPE and EFBIG, and raise no signal. */
ssize_t sml_fd_write_quietly(int fd, const void *data, size_t num_bytes);
/* Makes the file num_bytes long, with memory or disk behind all of it: what lacks is an error here, and no SIGBUS
 * later. For a new file. 0, or an errno. */
int sml_fd_allocate_quietly(int fd, size_t num_bytes);
