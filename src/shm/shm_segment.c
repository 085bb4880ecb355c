/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/shm_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/fork.h"
#include "base/siphash.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define GREETING_MAGIC UINT64_C(0x73776d6c686f7374)
#define STEP_MS 5       /* between looks at the deadline and should_stop() */
#define GREETING_MS 500 /* how long one that has connected may take to say who it is */

/* What one that has connected sends; the answer is one byte and the descriptor. */
struct greeting {
  uint64_t magic, secret[2];
  uint64_t num_bytes;
  uint32_t num_ranks, index;
};

/* What is open while ranks meet, by one thread. A child of fork() closes it: it is no rank. */
enum { MEMORY, LISTENER, PEER, NUM_DESCRIPTORS };
struct descriptors {
  struct sml_fork_watch watch;
  int fds[NUM_DESCRIPTORS];
};

static void close_in_child(struct sml_fork_watch *watch) {
  const struct descriptors *d = (const struct descriptors *)watch;
  for (uint32_t i = 0; i < NUM_DESCRIPTORS; i++)
    if (d->fds[i] >= 0) close(d->fds[i]);
}

static void watch_descriptors(struct descriptors *d) {
  *d = (struct descriptors){.watch.in_child = close_in_child, .fds = {-1, -1, -1}};
  sml_fork_watch(&d->watch);
}

/* After sml_fork_lock(). False: it is none. */
static bool keep(struct descriptors *d, uint32_t which, int fd) {
  d->fds[which] = fd;
  sml_fork_unlock();
  return d->fds[which] >= 0;
}

static void let_go(struct descriptors *d, uint32_t which) {
  sml_fork_lock();
  if (d->fds[which] >= 0) close(d->fds[which]);
  d->fds[which] = -1;
  sml_fork_unlock();
}

static void let_all_go(struct descriptors *d) {
  for (uint32_t i = 0; i < NUM_DESCRIPTORS; i++) let_go(d, i);
  sml_fork_unwatch(&d->watch);
}

static enum sml_shm_met fail(char *error, const char *what) {
  snprintf(error, SML_SHM_ERROR_BYTES, "%s failed: %s", what, strerror(errno));
  return SML_SHM_FAILED;
}

static enum sml_shm_met fail_to_allocate(char *text, size_t num_bytes, int error) {
  const bool is_limit = error == EFBIG;
  snprintf(text, SML_SHM_ERROR_BYTES, "allocating %zu bytes of shared memory failed: %s%s", num_bytes,
           is_limit ? "the limit of file sizes (ulimit -f) is lower" : strerror(error),
           is_limit ? "" : "; SWITCHML_SHARED_MEMORY=0 does without");
  return SML_SHM_FAILED;
}

/* The name tells nothing of the secret, as names can be read by everybody. */
static socklen_t make_name(const struct sml_shm_meeting *m, struct sockaddr_un *name) {
  const struct sml_key key = {.k0 = m->secret[0], .k1 = m->secret[1]};
  const struct sml_key derived = sml_key_derive(&key, "switchml host socket", NULL, 0);
  memset(name, 0, sizeof *name);
  name->sun_family = AF_UNIX;
  const int used = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "switchml-%016llx%016llx",
                            (unsigned long long)derived.k0, (unsigned long long)derived.k1);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)used);
}

static bool is_own_user(int fd) {
  struct ucred credentials;
  socklen_t num_bytes = sizeof credentials;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &num_bytes) == 0 && credentials.uid == geteuid();
}

/* The caller's signals come here too, and must not make one side believe what the other does not. */
static bool await(int fd, short events, uint64_t timeout_ms) {
  const uint64_t deadline_ns = sml_clock_ns() + timeout_ms * SML_NS_PER_MS;
  for (;;) {
    struct pollfd p = {.fd = fd, .events = events};
    const uint64_t now_ns = sml_clock_ns();
    const uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    const int num_ready = poll(&p, 1, (int)sml_div_ceil(left_ns, SML_NS_PER_MS));
    if (num_ready >= 0 || errno != EINTR) return num_ready > 0;
  }
}

static enum sml_shm_met look_around(const struct sml_shm_meeting *m) {
  if (m->should_stop != NULL && m->should_stop(m->user)) return SML_SHM_STOPPED;
  return sml_clock_ns() >= m->deadline_ns ? SML_SHM_TOO_LATE : SML_SHM_MET;
}

static struct greeting make_greeting(const struct sml_shm_meeting *m, size_t num_bytes) {
  return (struct greeting){.magic = GREETING_MAGIC,
                           .secret = {m->secret[0], m->secret[1]},
                           .num_bytes = num_bytes,
                           .num_ranks = m->num_ranks,
                           .index = m->index};
}

static enum sml_shm_met map(struct sml_shm_segment *s, int fd, size_t num_bytes, char *error) {
  void *memory = mmap(NULL, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return fail(error, "mmap of a shared segment");
  /* A forked child is no rank: it must not write here. */
  if (madvise(memory, num_bytes, MADV_DONTFORK) != 0) {
    munmap(memory, num_bytes);
    return fail(error, "madvise of a shared segment");
  }
  s->memory = memory;
  s->num_bytes = num_bytes;
  return SML_SHM_MET;
}

void sml_shm_segment_close(struct sml_shm_segment *s) {
  if (s->memory != NULL) munmap(s->memory, s->num_bytes);
  s->memory = NULL;
}

/* ---- index 0 ---- */

static bool send_descriptor(int to, int fd) {
  char byte = 1;
  struct iovec data = {.iov_base = &byte, .iov_len = 1};
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof fd)];
  } control;
  memset(&control, 0, sizeof control);
  struct msghdr message = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
  struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(c), &fd, sizeof fd);
  return sendmsg(to, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

/* One that connected: gives it the descriptor and notes it, if it is one of us. */
static void serve_one(int peer, int memory_fd, const struct greeting *mine, uint64_t *served) {
  struct greeting g;
  if (!is_own_user(peer)) return;
  if (!await(peer, POLLIN, GREETING_MS)) return;
  if (recv(peer, &g, sizeof g, MSG_DONTWAIT) != (ssize_t)sizeof g) return;
  if (g.magic != mine->magic || memcmp(g.secret, mine->secret, sizeof g.secret) != 0) return;
  if (g.num_bytes != mine->num_bytes || g.num_ranks != mine->num_ranks) return;
  if (g.index == 0 || g.index >= mine->num_ranks) return;
  char byte;
  if (!send_descriptor(peer, memory_fd)) return;
  /* It says that it has mapped it: else it comes again. */
  if (await(peer, POLLIN, GREETING_MS) && recv(peer, &byte, 1, MSG_DONTWAIT) == 1) sml_bit_set(served, g.index);
}

static enum sml_shm_met serve_all(struct descriptors *d, const struct sml_shm_meeting *m, size_t num_bytes,
                                  uint64_t *served, uint32_t *missing_out) {
  const struct greeting mine = make_greeting(m, num_bytes);
  for (;;) {
    uint32_t missing = 1;
    while (missing < m->num_ranks && sml_bit_test(served, missing)) missing++;
    if (missing == m->num_ranks) return SML_SHM_MET;
    *missing_out = missing;
    const enum sml_shm_met state = look_around(m);
    if (state != SML_SHM_MET) return state;
    if (!await(d->fds[LISTENER], POLLIN, STEP_MS)) continue;
    sml_fork_lock();
    if (keep(d, PEER, sml_fd_raise(accept4(d->fds[LISTENER], NULL, NULL, SOCK_CLOEXEC))))
      serve_one(d->fds[PEER], d->fds[MEMORY], &mine, served);
    let_go(d, PEER);
  }
}

static enum sml_shm_met listen_and_serve(struct descriptors *d, const struct sml_shm_meeting *m, size_t num_bytes,
                                         uint32_t *missing_out, char *error) {
  struct sockaddr_un name;
  const socklen_t name_bytes = make_name(m, &name);
  uint64_t *served = calloc(SML_BITMAP_WORDS(m->num_ranks), sizeof *served);
  if (served == NULL) return fail(error, "allocating memory");
  enum sml_shm_met met;
  sml_fork_lock();
  if (!keep(d, LISTENER, sml_fd_raise(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))))
    met = fail(error, "opening a local socket");
  else if (bind(d->fds[LISTENER], (struct sockaddr *)(void *)&name, name_bytes) != 0 ||
           listen(d->fds[LISTENER], (int)m->num_ranks) != 0)
    met = fail(error, "listening on a local socket");
  else met = serve_all(d, m, num_bytes, served, missing_out);
  free(served);
  return met;
}

/* Allocated, sealed and mapped. */
static enum sml_shm_met make_segment(struct descriptors *d, struct sml_shm_segment *s, size_t num_bytes, char *error) {
  sml_fork_lock();
  if (!keep(d, MEMORY, sml_fd_raise(memfd_create("switchml", MFD_CLOEXEC | MFD_ALLOW_SEALING))))
    return fail(error, "memfd_create");
  const int number = sml_fd_allocate_quietly(d->fds[MEMORY], num_bytes);
  if (number != 0) return fail_to_allocate(error, num_bytes, number);
  if (fcntl(d->fds[MEMORY], F_ADD_SEALS, SEALS) != 0) return fail(error, "sealing a shared segment");
  return map(s, d->fds[MEMORY], num_bytes, error);
}

enum sml_shm_met sml_shm_segment_offer(struct sml_shm_segment *s, size_t num_bytes, const struct sml_shm_meeting *m,
                                       uint32_t *missing_out, char error_out[SML_SHM_ERROR_BYTES]) {
  struct descriptors d;
  s->memory = NULL;
  *missing_out = 0;
  watch_descriptors(&d);
  enum sml_shm_met met = make_segment(&d, s, num_bytes, error_out);
  if (met == SML_SHM_MET) met = listen_and_serve(&d, m, num_bytes, missing_out, error_out);
  let_all_go(&d);
  if (met != SML_SHM_MET) sml_shm_segment_close(s);
  return met;
}

/* ---- the others ---- */

static bool receive_memory(struct descriptors *d) {
  char byte;
  struct iovec data = {.iov_base = &byte, .iov_len = 1};
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
  } control;
  struct msghdr message = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
  int fd = -1;
  sml_fork_lock();
  const struct cmsghdr *c =
      recvmsg(d->fds[PEER], &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) == 1 ? CMSG_FIRSTHDR(&message) : NULL;
  if (c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof fd))
    memcpy(&fd, CMSG_DATA(c), sizeof fd);
  return keep(d, MEMORY, sml_fd_raise(fd));
}

/* A segment that could still shrink would be a way to kill this process. */
static bool is_sound(int fd, size_t num_bytes) {
  struct stat s;
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &s) == 0 && (uint64_t)s.st_size == num_bytes;
}

/* TOO_LATE: not this time. */
static enum sml_shm_met ask_once(struct descriptors *d, struct sml_shm_segment *s, size_t num_bytes,
                                 const struct sml_shm_meeting *m, char *error) {
  const int fd = d->fds[PEER];
  struct sockaddr_un name;
  const socklen_t name_bytes = make_name(m, &name);
  const struct greeting g = make_greeting(m, num_bytes);
  if (connect(fd, (struct sockaddr *)(void *)&name, name_bytes) != 0 || !is_own_user(fd)) return SML_SHM_TOO_LATE;
  if (send(fd, &g, sizeof g, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof g) return SML_SHM_TOO_LATE;
  /* Those before this one may take their time; who serves it looks at the deadline, and so does the caller. */
  if (!await(fd, POLLIN, GREETING_MS)) return SML_SHM_TOO_LATE;
  if (!receive_memory(d)) return SML_SHM_TOO_LATE;
  enum sml_shm_met met = SML_SHM_TOO_LATE;
  if (is_sound(d->fds[MEMORY], num_bytes)) met = map(s, d->fds[MEMORY], num_bytes, error);
  const char byte = 1;
  if (met == SML_SHM_MET && send(fd, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) {
    sml_shm_segment_close(s);
    return SML_SHM_TOO_LATE;
  }
  return met;
}

enum sml_shm_met sml_shm_segment_obtain(struct sml_shm_segment *s, size_t num_bytes, const struct sml_shm_meeting *m,
                                        uint32_t *missing_out, char error_out[SML_SHM_ERROR_BYTES]) {
  s->memory = NULL;
  *missing_out = 0;
  for (;;) {
    const enum sml_shm_met state = look_around(m);
    if (state != SML_SHM_MET) return state;
    struct descriptors d;
    watch_descriptors(&d);
    sml_fork_lock();
    const int fd = sml_fd_raise(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const enum sml_shm_met met =
        keep(&d, PEER, fd) ? ask_once(&d, s, num_bytes, m, error_out) : fail(error_out, "opening a local socket");
    let_all_go(&d);
    if (met != SML_SHM_TOO_LATE) return met;
    poll(NULL, 0, 1);
  }
}

void sml_shm_sleep(_Atomic uint32_t *word, uint32_t value, _Atomic uint32_t *num_sleepers, uint64_t most_ns) {
  const struct timespec timeout = {.tv_nsec = (long)most_ns};
  atomic_fetch_add(num_sleepers, 1);
  if (atomic_load(word) == value) syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, NULL, 0);
  atomic_fetch_sub(num_sleepers, 1);
}

void sml_shm_wake(_Atomic uint32_t *word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
