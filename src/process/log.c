/* SPDX-License-Identifier: Apache-2.0 */
#include "process/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/fork.h"
#include "base/writer.h"

#define LINE_BYTES 1280u
#define FLUSH_NS (100 * SML_NS_PER_MS)

static const char *const level_names[] = {[SML_LIB_LOG_WARN] = "WARN",
                                          [SML_LIB_LOG_VERSION] = "VERSION",
                                          [SML_LIB_LOG_INFO] = "INFO",
                                          [SML_LIB_LOG_TRACE] = "TRACE"};

/* Only the writer's thread uses it. */
static int file_fd = -1; /* lines go there; -1: standard error */
/* Under sml_fork_lock(): the file that was asked for last; "": none. */
static char wanted_path[512];
static _Atomic bool has_lines; /* or had */

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

static size_t make_line(char line[LINE_BYTES], enum sml_lib_log_level level, uint32_t rank, const char *text) {
  char host[65], rank_text[12] = "-";
  get_host(host, sizeof host);
  if (rank != SML_LIB_LOG_NO_RANK) snprintf(rank_text, sizeof rank_text, "%u", rank);
  int length = snprintf(line, LINE_BYTES - 1, "%s:%ld:%ld [%s] SWITCHML %s %s", host, (long)getpid(), (long)gettid(),
                        rank_text, level_names[level], text);
  if (length > (int)LINE_BYTES - 2) length = (int)LINE_BYTES - 2;
  for (int i = 0; i < length; i++)
    if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f) line[i] = ' '; /* texts of others may be in it */
  line[length++] = '\n';
  return (size_t)length;
}

/* ---- on the writer's thread ---- */

/* 0, or an errno. */
static int write_file(const char *data, size_t num_bytes) {
  for (size_t done = 0; done < num_bytes;) {
    const ssize_t n = write(file_fd, data + done, num_bytes - done);
    if (n < 0 && errno != EINTR) return errno;
    if (n > 0) done += (size_t)n;
  }
  return 0;
}

static void close_file(void) {
  if (file_fd >= 0) close(file_fd);
  file_fd = -1;
}

__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...) {
  char text[256], line[LINE_BYTES];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  (void)sml_fd_write_stderr(line, make_line(line, SML_LIB_LOG_WARN, SML_LIB_LOG_NO_RANK, text));
}

static void write_line(const char *line, size_t num_bytes) {
  const int error = file_fd >= 0 ? write_file(line, num_bytes) : 0;
  if (error != 0) {
    close_file();
    complain("SWITCHML_DEBUG_FILE could not be written (%s): lines go to standard error", strerror(error));
  }
  if (file_fd < 0) (void)sml_fd_write_stderr(line, num_bytes); /* nowhere left to say that it failed */
}

static void write_left_out(uint64_t num_lines) {
  char text[128], line[LINE_BYTES];
  snprintf(text, sizeof text, "%llu lines left out: nobody read what was written before",
           (unsigned long long)num_lines);
  write_line(line, make_line(line, SML_LIB_LOG_WARN, SML_LIB_LOG_NO_RANK, text));
}

/* In a folder in which all may write, such as /tmp, somebody else may have made a link of that name, to a file of ours.
 * As the kernel has it with fs.protected_symlinks, which may be off. */
static bool may_follow(const char *path) {
  char folder[PATH_MAX];
  const char *slash = strrchr(path, '/');
  struct stat of_folder, of_link;
  if (slash == NULL) snprintf(folder, sizeof folder, ".");
  else snprintf(folder, sizeof folder, "%.*s", (int)(slash - path) + 1, path);
  if (stat(folder, &of_folder) != 0 || lstat(path, &of_link) != 0) return false;
  const mode_t is_shared = S_ISVTX | S_IWOTH;
  return (of_folder.st_mode & is_shared) != is_shared || of_link.st_uid == of_folder.st_uid ||
         of_link.st_uid == geteuid();
}

static int open_to_append(const char *path) {
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK;
  const int fd = sml_fd_raise(open(path, flags | O_NOFOLLOW, 0644));
  if (fd >= 0 || errno != ELOOP) return fd;
  if (may_follow(path)) return sml_fd_raise(open(path, flags, 0644));
  errno = ELOOP;
  return -1;
}

/* A pipe without a reader is an error: it may never get one. */
static void open_file(const char *path, size_t num_bytes) {
  (void)num_bytes;
  close_file();
  if (path[0] == 0) return;
  file_fd = open_to_append(path);
  const int error = errno;
  if (file_fd >= 0) fcntl(file_fd, F_SETFL, fcntl(file_fd, F_GETFL) & ~O_NONBLOCK);
  else
    complain("SWITCHML_DEBUG_FILE is '%.120s', which cannot be opened (%s): lines go to standard error", path,
             error == ELOOP ? "a link of another user, or too many links" : strerror(error));
}

static const struct sml_outlet line_outlet = {.write = write_line, .write_left_out = write_left_out};
static const struct sml_outlet path_outlet = {.write = open_file, .write_left_out = write_left_out};

void sml_lib_log_line(enum sml_lib_log_level level, uint32_t rank, const char *text) {
  char line[LINE_BYTES];
  atomic_store(&has_lines, true);
  (void)sml_writer_put(&line_outlet, line, make_line(line, level, rank, text));
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

/* Whether it is another file than the last time. */
static bool change_path(const char *path) {
  sml_fork_lock();
  const bool is_other = strcmp(path, wanted_path) != 0;
  snprintf(wanted_path, sizeof wanted_path, "%s", path);
  sml_fork_unlock();
  return is_other;
}

void sml_lib_log_open(const char *pattern) {
  char path[sizeof wanted_path] = "", complaint[256];
  const bool fits = pattern == NULL || expand(pattern, path, sizeof path);
  if (!fits) path[0] = 0;
  /* The writer opens it, in its turn: a file server that hangs must not keep a context, or a fork, waiting. */
  if (change_path(path) && !sml_writer_put(&path_outlet, path, strlen(path) + 1)) (void)change_path("");
  if (fits) return;
  snprintf(complaint, sizeof complaint,
           "SWITCHML_DEBUG_FILE is '%.120s', which cannot be opened (%s): lines go to "
           "standard error",
           pattern, strerror(ENAMETOOLONG));
  sml_lib_log_line(SML_LIB_LOG_WARN, SML_LIB_LOG_NO_RANK, complaint);
}

void sml_lib_log_rest(void) {
  if (atomic_load(&has_lines)) (void)sml_writer_end(FLUSH_NS);
}

/* ---- the environment ---- */

void sml_lib_log_environment(void) {
  char text[LINE_BYTES] = "environment:";
  size_t used = strlen(text);
  for (char **entry = environ; *entry != NULL && used < sizeof text; entry++)
    if (strncmp(*entry, "SWITCHML_", 9) == 0) used += (size_t)snprintf(text + used, sizeof text - used, " %s", *entry);
  sml_lib_log_line(SML_LIB_LOG_INFO, SML_LIB_LOG_NO_RANK, text);
}
