/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <strings.h>
#include <unistd.h>

#include "lib/fork.h"

#define LINE_BYTES 1280u

static const char *const level_names[] = {
    [SML_LIB_LOG_WARN] = "WARN", [SML_LIB_LOG_VERSION] = "VERSION",
    [SML_LIB_LOG_INFO] = "INFO", [SML_LIB_LOG_TRACE] = "TRACE"};

/* A descriptor is never closed, as another thread may be about to write to it: the next file takes its number over. */
static struct {
  _Atomic int fd; /* lines go there; -1: standard error */
  int file_fd;    /* the rest under sml_fork_lock(): of the file that is, or was, open; -1: none yet */
  char path[512]; /* that was tried last */
} sink = {.fd = -1, .file_fd = -1};

bool sml_lib_log_parse_level(const char *text, enum sml_lib_log_level *level_out) {
  for (size_t i = 0; i < SML_ARRAY_LEN(level_names); i++) {
    if (strcasecmp(text, level_names[i]) != 0) continue;
    *level_out = (enum sml_lib_log_level)i;
    return true;
  }
  return false;
}

static void get_host(char *host, size_t host_bytes) {
  if (gethostname(host, host_bytes) != 0) snprintf(host, host_bytes, "localhost");
  host[host_bytes - 1] = 0;
  host[strcspn(host, ".")] = 0;
}

/* ---- lines ---- */

void sml_lib_log_line(enum sml_lib_log_level level, uint32_t rank, const char *text) {
  char host[65], rank_text[12] = "-", line[LINE_BYTES];
  get_host(host, sizeof host);
  if (rank != SML_LIB_LOG_NO_RANK) snprintf(rank_text, sizeof rank_text, "%u", rank);
  int length = snprintf(line, sizeof line - 1, "%s:%ld:%ld [%s] SWITCHML %s %s", host, (long)getpid(), (long)gettid(),
                        rank_text, level_names[level], text);
  if (length > (int)sizeof line - 2) length = (int)sizeof line - 2;
  for (int i = 0; i < length; i++)
    if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f) line[i] = ' '; /* texts of others may be in it */
  line[length++] = '\n';
  const int fd = atomic_load(&sink.fd);
  const ssize_t written = fd >= 0 ? write(fd, line, (size_t)length) : -1;
  if (written == length) return;
  const int error = written < 0 ? errno : ENOSPC;
  if (fd >= 0 && atomic_exchange(&sink.fd, -1) >= 0) { /* said by one thread */
    char complaint[256];
    snprintf(complaint, sizeof complaint, "SWITCHML_DEBUG_FILE could not be written (%s): lines go to standard error",
             strerror(error));
    sml_lib_log_line(SML_LIB_LOG_WARN, rank, complaint);
  }
  if (write(STDERR_FILENO, line, (size_t)length) < 0) return; /* nowhere left to say so */
}

/* ---- the file ---- */

/* False: too long. */
static bool expand(const char *pattern, char *path, size_t path_bytes) {
  char host[65];
  size_t used = 0;
  get_host(host, sizeof host);
  for (; *pattern && used < path_bytes; pattern++) {
    const size_t room = path_bytes - used;
    const char what = pattern[0] == '%' ? pattern[1] : 0;
    if (what == 'h') used += (size_t)snprintf(path + used, room, "%s", host);
    else if (what == 'p') used += (size_t)snprintf(path + used, room, "%ld", (long)getpid());
    else used += (size_t)snprintf(path + used, room, "%c", pattern[0]);
    pattern += what == 'h' || what == 'p' || what == '%';
  }
  return used < path_bytes;
}

/* 0, or an errno. A pipe without a reader must not keep anybody waiting. */
static int open_file(const char *path, int *fd_out) {
  *fd_out = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
  if (*fd_out < 0) return errno;
  const int flags = fcntl(*fd_out, F_GETFL);
  fcntl(*fd_out, F_SETFL, flags & ~O_NONBLOCK);
  return 0;
}

/* Under the fork lock. */
static int change_file(const char *path) {
  int fd;
  snprintf(sink.path, sizeof sink.path, "%s", path);
  const int error = open_file(path, &fd);
  if (error != 0) {
    atomic_store(&sink.fd, -1);
    return error;
  }
  if (sink.file_fd < 0) {
    sink.file_fd = fd;
  } else {
    dup3(fd, sink.file_fd, O_CLOEXEC);
    close(fd);
  }
  atomic_store(&sink.fd, sink.file_fd);
  return 0;
}

void sml_lib_log_open(const char *pattern) {
  char path[sizeof sink.path] = "", complaint[256];
  int error = 0;
  const bool fits = pattern == NULL || expand(pattern, path, sizeof path);
  sml_fork_lock();
  if (!fits) error = ENAMETOOLONG;
  else if (strcmp(path, sink.path) != 0 && path[0] != 0) error = change_file(path);
  else if (path[0] == 0) sink.path[0] = 0;
  if (!fits || path[0] == 0) atomic_store(&sink.fd, -1);
  sml_fork_unlock();
  if (error == 0) return;
  snprintf(complaint, sizeof complaint, "SWITCHML_DEBUG_FILE is '%.120s', which cannot be opened (%s): lines go to "
           "standard error", pattern, strerror(error));
  sml_lib_log_line(SML_LIB_LOG_WARN, SML_LIB_LOG_NO_RANK, complaint);
}

/* ---- the environment ---- */

void sml_lib_log_environment(void) {
  char text[LINE_BYTES] = "environment:";
  size_t used = strlen(text);
  for (char **entry = environ; *entry != NULL && used < sizeof text; entry++)
    if (strncmp(*entry, "SWITCHML_", 9) == 0)
      used += (size_t)snprintf(text + used, sizeof text - used, " %s", *entry);
  sml_lib_log_line(SML_LIB_LOG_INFO, SML_LIB_LOG_NO_RANK, text);
}
