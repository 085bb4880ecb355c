/* SPDX-License-Identifier: Apache-2.0 */
#include "intercept.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct site sites[MAX_SITES];
static size_t num_sites;
static uintptr_t failing_caller;
static uint32_t failing_call;
static bool is_counting, has_failed;
static atomic_long num_blocks;

/* libc's own locks, called by their real names: those of the product are not wrapped. */
static struct site *find_site(const char *function, uintptr_t caller) {
  for (size_t i = 0; i < num_sites; i++)
    if (sites[i].caller == caller) return &sites[i];
  if (num_sites == MAX_SITES) abort();
  sites[num_sites] = (struct site){.function = function, .caller = caller};
  return &sites[num_sites++];
}

/* Counts the call; true: it is the one that fails. */
static bool fails(const char *function, void *return_address) {
  bool is_failing = false;
  pthread_mutex_lock(&lock);
  if (is_counting) {
    struct site *site = find_site(function, (uintptr_t)return_address);
    site->num_calls++;
    is_failing = site->caller == failing_caller && site->num_calls == failing_call;
    site->num_calls_failed += is_failing;
    has_failed = has_failed || is_failing;
  }
  pthread_mutex_unlock(&lock);
  return is_failing;
}

void intercept_begin(uintptr_t caller, uint32_t nth_call) {
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < num_sites; i++) sites[i].num_calls = 0;
  failing_caller = caller;
  failing_call = nth_call;
  is_counting = true;
  has_failed = false;
  pthread_mutex_unlock(&lock);
}

bool intercept_end(void) {
  pthread_mutex_lock(&lock);
  is_counting = false;
  const bool result = has_failed;
  pthread_mutex_unlock(&lock);
  return result;
}

size_t intercept_num_sites(void) {
  return num_sites;
}
const struct site *intercept_site(size_t i) {
  return &sites[i];
}
long intercept_num_blocks(void) {
  return atomic_load(&num_blocks);
}

/* ---- functions ---- */

#define FAILS(name) fails(name, __builtin_return_address(0))

/* A function that fails with a value and an errno. */
#define WRAP(type, name, parameters, arguments, failure, error) \
  type __real_##name parameters;                                \
  type __wrap_##name parameters;                                \
  type __wrap_##name parameters {                               \
    if (FAILS(#name)) {                                         \
      errno = error;                                            \
      return failure;                                           \
    }                                                           \
    return __real_##name arguments;                             \
  }

/* A function that returns its error. */
#define WRAP_RETURNING(name, parameters, arguments, error) \
  int __real_##name parameters;                            \
  int __wrap_##name parameters;                            \
  int __wrap_##name parameters {                           \
    return FAILS(#name) ? (error) : __real_##name arguments; \
  }

static void *count_block(void *block) {
  if (block != NULL) atomic_fetch_add(&num_blocks, 1);
  return block;
}

#define WRAP_ALLOCATION(name, parameters, arguments)         \
  void *__real_##name parameters;                            \
  void *__wrap_##name parameters;                            \
  void *__wrap_##name parameters {                           \
    if (FAILS(#name)) {                                      \
      errno = ENOMEM;                                        \
      return NULL;                                           \
    }                                                        \
    return count_block(__real_##name arguments);             \
  }

WRAP_ALLOCATION(malloc, (size_t bytes), (bytes))
WRAP_ALLOCATION(calloc, (size_t count, size_t bytes), (count, bytes))
WRAP_ALLOCATION(aligned_alloc, (size_t align, size_t bytes), (align, bytes))

void *__real_realloc(void *block, size_t bytes);
void *__wrap_realloc(void *block, size_t bytes);
void *__wrap_realloc(void *block, size_t bytes) {
  if (FAILS("realloc")) {
    errno = ENOMEM;
    return NULL;
  }
  void *moved = __real_realloc(block, bytes);
  return block == NULL ? count_block(moved) : moved;
}

void __real_free(void *block);
void __wrap_free(void *block);
void __wrap_free(void *block) {
  if (block != NULL) atomic_fetch_sub(&num_blocks, 1);
  __real_free(block);
}

/* It closes all the same, as Linux does. */
int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd) {
  const bool is_failing = FAILS("close");
  const int result = __real_close(fd);
  if (!is_failing) return result;
  errno = EIO;
  return -1;
}

WRAP_RETURNING(pthread_create,
               (pthread_t * thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument),
               (thread, attributes, run, argument), EAGAIN)
int intercept_start_thread(pthread_t *thread, void *(*run)(void *), void *argument) {
  return __real_pthread_create(thread, NULL, run, argument);
}

WRAP_RETURNING(pthread_atfork, (void (*prepare)(void), void (*parent)(void), void (*child)(void)),
               (prepare, parent, child), ENOMEM)
WRAP_RETURNING(getaddrinfo,
               (const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out),
               (host, service, hints, out), EAI_MEMORY)

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  if (FAILS("open")) {
    errno = EMFILE;
    return -1;
  }
  return __real_open64(path, flags, mode);
}
WRAP(int, unlink, (const char *path), (path), -1, EBUSY)
WRAP(int, rename, (const char *from, const char *to), (from, to), -1, EIO)
WRAP(int, gethostname, (char *name, size_t bytes), (name, bytes), -1, ENAMETOOLONG)
WRAP(int, getifaddrs, (struct ifaddrs **out), (out), -1, EMFILE)
WRAP(unsigned, if_nametoindex, (const char *name), (name), 0, ENODEV)
WRAP(int, stat64, (const char *path, struct stat64 *out), (path, out), -1, EACCES)
WRAP(int, memfd_create, (const char *name, unsigned flags), (name, flags), -1, EMFILE)
WRAP(int, ftruncate64, (int fd, off64_t bytes), (fd, bytes), -1, ENOSPC)
WRAP(int, fallocate64, (int fd, int mode, off64_t from, off64_t bytes), (fd, mode, from, bytes), -1, ENOSPC)
WRAP(int, fcntl64, (int fd, int command, long value), (fd, command, value), -1, EPERM)
WRAP(void *, mmap64, (void *where, size_t bytes, int protection, int flags, int fd, off64_t offset),
     (where, bytes, protection, flags, fd, offset), MAP_FAILED, ENOMEM)
WRAP(int, madvise, (void *where, size_t bytes, int advice), (where, bytes, advice), -1, EINVAL)
WRAP(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags), -1, EPIPE)
WRAP(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags), -1, ECONNRESET)
WRAP(int, fstat64, (int fd, struct stat64 *out), (fd, out), -1, EIO)
WRAP(int, socket, (int domain, int type, int protocol), (domain, type, protocol), -1, EMFILE)
WRAP(int, bind, (int fd, const struct sockaddr *addr, socklen_t bytes), (fd, addr, bytes), -1, EADDRINUSE)
WRAP(int, listen, (int fd, int backlog), (fd, backlog), -1, EADDRINUSE)
WRAP(int, accept4, (int fd, struct sockaddr *addr, socklen_t *bytes, int flags), (fd, addr, bytes, flags), -1,
     EMFILE)
WRAP(int, connect, (int fd, const struct sockaddr *addr, socklen_t bytes), (fd, addr, bytes), -1, ENETUNREACH)
WRAP(int, shutdown, (int fd, int how), (fd, how), -1, ENOTCONN)
WRAP(int, getsockname, (int fd, struct sockaddr *addr, socklen_t *bytes), (fd, addr, bytes), -1, ENOBUFS)
WRAP(int, getpeername, (int fd, struct sockaddr *addr, socklen_t *bytes), (fd, addr, bytes), -1, ENOTCONN)
WRAP(int, getsockopt, (int fd, int level, int name, void *value, socklen_t *bytes),
     (fd, level, name, value, bytes), -1, ENOPROTOOPT)
WRAP(int, setsockopt, (int fd, int level, int name, const void *value, socklen_t bytes),
     (fd, level, name, value, bytes), -1, ENOPROTOOPT)
WRAP(ssize_t, send, (int fd, const void *data, size_t bytes, int flags), (fd, data, bytes, flags), -1, ECONNRESET)
WRAP(ssize_t, recv, (int fd, void *data, size_t bytes, int flags), (fd, data, bytes, flags), -1, ECONNRESET)
WRAP(int, sendmmsg, (int fd, struct mmsghdr *messages, unsigned count, int flags), (fd, messages, count, flags),
     -1, ENOBUFS)
WRAP(int, recvmmsg, (int fd, struct mmsghdr *messages, unsigned count, int flags, struct timespec *timeout),
     (fd, messages, count, flags, timeout), -1, ECONNREFUSED)
WRAP(int, poll, (struct pollfd * fds, nfds_t count, int timeout_ms), (fds, count, timeout_ms), -1, EINTR)
WRAP(int, ppoll, (struct pollfd * fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask),
     (fds, count, timeout, mask), -1, EINTR)
WRAP(int, epoll_create1, (int flags), (flags), -1, EMFILE)
WRAP(int, epoll_ctl, (int epoll_fd, int verb, int fd, struct epoll_event *event), (epoll_fd, verb, fd, event), -1,
     ENOMEM)
WRAP(int, epoll_wait, (int epoll_fd, struct epoll_event *events, int max, int timeout_ms),
     (epoll_fd, events, max, timeout_ms), -1, EINTR)
WRAP(int, eventfd, (unsigned count, int flags), (count, flags), -1, EMFILE)
WRAP(ssize_t, read, (int fd, void *data, size_t bytes), (fd, data, bytes), -1, EINTR)
WRAP(ssize_t, write, (int fd, const void *data, size_t bytes), (fd, data, bytes), -1, EINTR)
WRAP(ssize_t, getrandom, (void *data, size_t bytes, unsigned flags), (data, bytes, flags), -1, ENOSYS)
WRAP(int, sem_wait, (sem_t * semaphore), (semaphore), -1, EINTR)
