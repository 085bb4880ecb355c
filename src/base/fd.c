/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- numbers ---- */

int sml_fd_move_up(int fd) {
  const int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
  close(fd);
  errno = error;
  return moved;
}

void sml_fd_fill_standard(void) {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
}

/* ---- standard error ---- */

static struct {
  _Atomic bool is_open;
  _Atomic uint64_t device, inode, special;
} standard_error;

void sml_fd_take_stderr(void) {
  struct stat s;
  const bool is_open = fstat(STDERR_FILENO, &s) == 0;
  if (is_open) {
    atomic_store(&standard_error.device, s.st_dev);
    atomic_store(&standard_error.inode, s.st_ino);
    atomic_store(&standard_error.special, s.st_rdev);
  }
  atomic_store(&standard_error.is_open, is_open);
}

__attribute__((constructor)) static void take_at_start(void) {
  const int error = errno;
  sml_fd_take_stderr();
  errno = error;
}

bool sml_fd_has_stderr(void) {
  struct stat s;
  return atomic_load(&standard_error.is_open) && fstat(STDERR_FILENO, &s) == 0 &&
         s.st_dev == atomic_load(&standard_error.device) && s.st_ino == atomic_load(&standard_error.inode) &&
         s.st_rdev == atomic_load(&standard_error.special);
}

int sml_fd_write_stderr(const char *text, size_t num_bytes) {
  for (size_t done = 0; done < num_bytes;) {
    if (!sml_fd_has_stderr()) return EBADF;
    const ssize_t n = sml_fd_write_quietly(STDERR_FILENO, text + done, num_bytes - done);
    if (n > 0) {
      done += (size_t)n;
    } else if (n < 0 && errno == EAGAIN) { /* somebody who shares the description made it so: it is not ours to undo */
      struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
      (void)poll(&p, 1, 1000);
    } else if (n < 0 && errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

/* ---- files ---- */

int sml_fd_replace_file(const char *from, const char *path) {
  struct stat s;
  if (stat(path, &s) == 0 && !S_ISREG(s.st_mode)) return S_ISDIR(s.st_mode) ? EISDIR : EEXIST;
  return rename(from, path) == 0 ? 0 : errno;
}

/* ---- without signals ---- */

struct quiet {
  sigset_t raised, before; /* those that a write may raise; this thread's mask */
  bool was_pending[2];
};
static const int raised_signals[] = {SIGPIPE, SIGXFSZ};

static void begin_quiet(struct quiet *q) {
  sigset_t pending;
  sigemptyset(&q->raised);
  sigpending(&pending);
  for (size_t i = 0; i < SML_ARRAY_LEN(raised_signals); i++) {
    sigaddset(&q->raised, raised_signals[i]);
    q->was_pending[i] = sigismember(&pending, raised_signals[i]) == 1;
  }
  pthread_sigmask(SIG_BLOCK, &q->raised, &q->before);
}

/* The kernel raises them in the thread that writes: what has come since is ours, and is taken back. */
static void end_quiet(const struct quiet *q, bool has_failed) {
  const int error = errno;
  static const struct timespec at_once = {0};
  for (size_t i = 0; has_failed && i < SML_ARRAY_LEN(raised_signals); i++) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, raised_signals[i]);
    if (!q->was_pending[i]) (void)sigtimedwait(&one, NULL, &at_once);
  }
  pthread_sigmask(SIG_SETMASK, &q->before, NULL);
  errno = error;
}

ssize_t sml_fd_write_quietly(int fd, const void *data, size_t num_bytes) {
  struct quiet quiet;
  begin_quiet(&quiet);
  const ssize_t n = write(fd, data, num_bytes);
  end_quiet(&quiet, n < 0);
  return n;
}

/* A signal makes fallocate() give back what it has got: beside a timer of the program's the whole might never be
 * done, but a part will. */
#define PART_BYTES ((size_t)2 << 20)

static int allocate(int fd, size_t from, size_t num_bytes) {
  int result;
  do result = fallocate(fd, 0, (off_t)from, (off_t)num_bytes);
  while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

int sml_fd_allocate_quietly(int fd, size_t num_bytes) {
  struct quiet quiet;
  int error = 0;
  begin_quiet(&quiet);
  for (size_t done = 0; done < num_bytes && error == 0; done += PART_BYTES)
    error = allocate(fd, done, sml_min_u64(PART_BYTES, num_bytes - done));
  end_quiet(&quiet, error != 0);
  return error;
}
