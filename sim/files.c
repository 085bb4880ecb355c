/* SPDX-License-Identifier: Apache-2.0
 * Files that a process may read: those that the world put on its host. */
#include "sim/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/stat.h>

struct sim_stored_file {
  struct sim_stored_file *next;
  char path[128];
  uint32_t mode;
  size_t num_bytes;
  uint8_t bytes[];
};
struct opened_file {
  struct sim_file file; /* first */
  struct stat stat;
  size_t position;
  uint8_t bytes[]; /* as they were when it was opened */
};

static struct sim_stored_file **link_of(struct sim_host *host, const char *path) {
  struct sim_stored_file **link = &host->files;
  while (*link != NULL && strcmp((*link)->path, path) != 0) link = &(*link)->next;
  return link;
}

void sim_host_remove_file(struct sim_host *host, const char *path) {
  struct sim_stored_file **link = link_of(host, path), *f = *link;
  if (f == NULL) return;
  *link = f->next;
  __real_free(f);
}

void sim_host_put_file(struct sim_host *host, const char *path, uint32_t mode, const void *data, size_t num_bytes) {
  sim_host_remove_file(host, path);
  struct sim_stored_file *f = sim_take(sizeof *f + num_bytes);
  SML_ASSERT(strlen(path) < sizeof f->path);
  memcpy(f->path, path, strlen(path));
  f->mode = mode;
  f->num_bytes = num_bytes;
  if (num_bytes > 0) memcpy(f->bytes, data, num_bytes);
  *link_of(host, path) = f;
}

void sim_host_free_files(struct sim_host *host) {
  while (host->files != NULL) sim_host_remove_file(host, host->files->path);
}

static uint32_t file_events(struct sim_file *file) {
  (void)file;
  return EPOLLIN | EPOLLOUT;
}

static int64_t file_read(struct sim_file *file, void *data, size_t num_bytes) {
  struct opened_file *f = (struct opened_file *)file;
  const size_t num_read = sml_min_u64(num_bytes, (size_t)f->stat.st_size - f->position);
  if (num_read > 0) memcpy(data, f->bytes + f->position, num_read);
  f->position += num_read;
  return (int64_t)num_read;
}

static int64_t file_write(struct sim_file *file, const void *data, size_t num_bytes) {
  (void)file, (void)data, (void)num_bytes;
  return -EBADF;
}

static void file_close(struct sim_file *file) {
  __real_free(file);
}

static const struct sim_file_ops file_ops = {
    .name = "file", .events = file_events, .read = file_read, .write = file_write, .close = file_close};

static int open_file(const char *path, int flags) {
  const int error = sim_call_error(SIM_CALL_OPEN);
  if (error != 0) return (int)sim_result(-error);
  const struct sim_stored_file *stored = *link_of(sim.fiber->process->host, path);
  if (stored == NULL) return (int)sim_result(-ENOENT);
  if ((flags & O_ACCMODE) != O_RDONLY) return (int)sim_result(-EACCES);
  struct opened_file *f = sim_take(sizeof *f + stored->num_bytes);
  f->file.ops = &file_ops;
  f->stat.st_mode = stored->mode;
  f->stat.st_size = (off_t)stored->num_bytes;
  memcpy(f->bytes, stored->bytes, stored->num_bytes);
  return sim_file_install(&f->file);
}

static int stat_file(int fd, struct stat *stat) {
  const int error = sim_call_error(SIM_CALL_FSTAT);
  if (error != 0) return (int)sim_result(-error);
  const struct opened_file *f = (struct opened_file *)sim_file_of(fd);
  if (f == NULL) return (int)sim_result(-EBADF);
  memset(stat, 0, sizeof *stat);
  stat->st_mode = S_IFIFO;
  if (f->file.ops == &file_ops) *stat = f->stat;
  return 0;
}

static int mode_of(int flags, va_list arguments) {
  return (flags & O_CREAT) != 0 ? va_arg(arguments, int) : 0;
}

/* The names that the C library's headers give to these calls, depending on the size of off_t. */
#define DEFINE_OPEN(name)                                          \
  int __real_##name(const char *path, int flags, ...);             \
  int __wrap_##name(const char *path, int flags, ...);             \
  int __wrap_##name(const char *path, int flags, ...) {            \
    va_list arguments;                                             \
    va_start(arguments, flags);                                    \
    const int mode = mode_of(flags, arguments);                    \
    va_end(arguments);                                             \
    if (!sim_is_inside()) return __real_##name(path, flags, mode); \
    return open_file(path, flags);                                 \
  }
#define DEFINE_FSTAT(name)                                                  \
  int __real_##name(int fd, struct stat *stat);                             \
  int __wrap_##name(int fd, struct stat *stat);                             \
  int __wrap_##name(int fd, struct stat *stat) {                            \
    return sim_is_inside() ? stat_file(fd, stat) : __real_##name(fd, stat); \
  }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)
DEFINE_FSTAT(fstat)
DEFINE_FSTAT(fstat64)
