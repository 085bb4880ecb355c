/* SPDX-License-Identifier: Apache-2.0
 * A process's table of descriptors; epoll sets and event counters; read, write, close, poll. */
#include "sim/internal.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define FIRST_FD 3 /* 0, 1 and 2 are not simulated */
#define MAX_FILES 65536u
#define CALL_NS 300u
#define POLL_NS (200 * SML_NS_PER_US)

struct epoll_set;
struct sim_epoll_item {
  struct sim_epoll_item *next_of_file, *next_of_set;
  struct epoll_set *set;
  struct sim_file *file;
  struct epoll_event event;
};
struct epoll_set {
  struct sim_file file; /* first */
  struct sim_epoll_item *items;
  uint32_t num_items;
};
struct event_counter {
  struct sim_file file; /* first */
  uint64_t value;
};

/* ---- the table ---- */

int sim_file_install(struct sim_file *file) {
  struct sim_process *p = sim.fiber->process;
  uint32_t fd = FIRST_FD;
  while (fd < p->max_files && p->files[fd] != NULL) fd++;
  if (fd >= MAX_FILES) {
    file->ops->close(file);
    errno = EMFILE;
    return -1;
  }
  if (fd >= p->max_files) {
    const uint32_t max = sml_max_u32(16, 2 * p->max_files);
    p->files = sim_grow(p->files, p->max_files * sizeof *p->files, max * sizeof *p->files);
    p->max_files = max;
  }
  p->files[fd] = file;
  file->process = p;
  p->usage.num_descriptors++;
  return (int)fd;
}

struct sim_file *sim_file_of(int fd) {
  const struct sim_process *p = sim.fiber->process;
  return fd >= 0 && (uint32_t)fd < p->max_files ? p->files[fd] : NULL;
}

int64_t sim_result(int64_t result) {
  if (result >= 0) return result;
  errno = (int)-result;
  return -1;
}

static void remove_item(struct sim_epoll_item *item) {
  struct sim_epoll_item **link = &item->file->items;
  while (*link != item) link = &(*link)->next_of_file;
  *link = item->next_of_file;
  link = &item->set->items;
  while (*link != item) link = &(*link)->next_of_set;
  *link = item->next_of_set;
  item->set->num_items--;
  __real_free(item);
}

static void close_file(struct sim_process *p, uint32_t fd) {
  struct sim_file *file = p->files[fd];
  p->files[fd] = NULL;
  p->usage.num_descriptors--;
  while (file->items != NULL) remove_item(file->items);
  file->ops->close(file);
}

void sim_files_close_all(struct sim_process *p) {
  for (uint32_t fd = 0; fd < p->max_files; fd++)
    if (p->files[fd] != NULL) close_file(p, fd);
}

void sim_file_changed(struct sim_file *file) {
  sim_wake_all(&file->waiters);
  for (struct sim_epoll_item *item = file->items; item != NULL; item = item->next_of_file) {
    const uint32_t events = file->ops->events(file);
    if ((events & (item->event.events | EPOLLERR | EPOLLHUP)) != 0) sim_wake_all(&item->set->file.waiters);
  }
}

/* ---- event counters ---- */

static uint32_t event_events(struct sim_file *file) {
  const struct event_counter *e = (struct event_counter *)file;
  return (e->value > 0 ? EPOLLIN : 0u) | EPOLLOUT;
}

static int64_t event_read(struct sim_file *file, void *data, size_t num_bytes) {
  struct event_counter *e = (struct event_counter *)file;
  if (num_bytes < sizeof e->value) return -EINVAL;
  if (e->value == 0) return -EAGAIN;
  memcpy(data, &e->value, sizeof e->value);
  e->value = 0;
  return sizeof e->value;
}

static int64_t event_write(struct sim_file *file, const void *data, size_t num_bytes) {
  struct event_counter *e = (struct event_counter *)file;
  uint64_t value;
  if (num_bytes < sizeof value) return -EINVAL;
  memcpy(&value, data, sizeof value);
  e->value += value; /* it can't come near its limit here */
  sim_file_changed(file);
  return sizeof value;
}

static void plain_close(struct sim_file *file) {
  __real_free(file);
}

static const struct sim_file_ops event_ops = {
    .name = "event", .events = event_events, .read = event_read, .write = event_write, .close = plain_close};

int __real_eventfd(unsigned value, int flags);
int __wrap_eventfd(unsigned value, int flags);
int __wrap_eventfd(unsigned value, int flags) {
  if (!sim_is_inside()) return __real_eventfd(value, flags);
  const int error = sim_call_error(SIM_CALL_EVENTFD);
  if (error != 0) return (int)sim_result(-error);
  struct event_counter *e = sim_take(sizeof *e);
  e->file.ops = &event_ops;
  e->file.is_nonblocking = (flags & EFD_NONBLOCK) != 0;
  e->value = value;
  return sim_file_install(&e->file);
}

/* ---- epoll ---- */

static uint32_t set_events(struct sim_file *file) {
  (void)file;
  return 0; /* sets in sets are not used */
}

static int64_t set_read(struct sim_file *file, void *data, size_t num_bytes) {
  (void)file, (void)data, (void)num_bytes;
  return -EINVAL;
}

static int64_t set_write(struct sim_file *file, const void *data, size_t num_bytes) {
  (void)file, (void)data, (void)num_bytes;
  return -EINVAL;
}

static void set_close(struct sim_file *file) {
  struct epoll_set *set = (struct epoll_set *)file;
  while (set->items != NULL) remove_item(set->items);
  __real_free(set);
}

static const struct sim_file_ops set_ops = {
    .name = "epoll", .events = set_events, .read = set_read, .write = set_write, .close = set_close};

int __real_epoll_create1(int flags);
int __wrap_epoll_create1(int flags);
int __wrap_epoll_create1(int flags) {
  if (!sim_is_inside()) return __real_epoll_create1(flags);
  const int error = sim_call_error(SIM_CALL_EPOLL_CREATE);
  if (error != 0) return (int)sim_result(-error);
  struct epoll_set *set = sim_take(sizeof *set);
  set->file.ops = &set_ops;
  return sim_file_install(&set->file);
}

static struct sim_epoll_item *find_item(const struct epoll_set *set, const struct sim_file *file) {
  struct sim_epoll_item *item = file->items;
  while (item != NULL && item->set != set) item = item->next_of_file;
  return item;
}

static int64_t control(int set_fd, int verb, int fd, const struct epoll_event *event) {
  const int error = sim_call_error(SIM_CALL_EPOLL_CTL);
  if (error != 0) return -error;
  struct sim_file *set_file = sim_file_of(set_fd), *file = sim_file_of(fd);
  if (set_file == NULL || file == NULL) return -EBADF;
  if (set_file->ops != &set_ops || file == set_file) return -EINVAL;
  struct epoll_set *set = (struct epoll_set *)set_file;
  struct sim_epoll_item *item = find_item(set, file);
  if (verb == EPOLL_CTL_ADD ? item != NULL : item == NULL) return verb == EPOLL_CTL_ADD ? -EEXIST : -ENOENT;
  if (verb == EPOLL_CTL_DEL) {
    remove_item(item);
    return 0;
  }
  SML_ASSERT((event->events & ~(uint32_t)(EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLERR | EPOLLHUP)) == 0);
  if (item == NULL) {
    item = sim_take(sizeof *item);
    *item = (struct sim_epoll_item){.set = set, .file = file, .next_of_file = file->items, .next_of_set = set->items};
    file->items = set->items = item;
    set->num_items++;
  }
  item->event = *event;
  sim_file_changed(file);
  return 0;
}

int __real_epoll_ctl(int set_fd, int verb, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int set_fd, int verb, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int set_fd, int verb, int fd, struct epoll_event *event) {
  if (!sim_is_inside()) return __real_epoll_ctl(set_fd, verb, fd, event);
  return (int)sim_result(control(set_fd, verb, fd, event));
}

/* Begins anywhere in the set: readers must not rely on an order. */
static int collect(const struct epoll_set *set, struct epoll_event *events, int max) {
  if (set->num_items == 0) return 0;
  struct sim_epoll_item *item = set->items;
  for (uint64_t n = sml_prng_below(&sim.schedule, set->num_items); n > 0; n--) item = item->next_of_set;
  int num_events = 0;
  for (uint32_t i = 0; i < set->num_items && num_events < max; i++) {
    const uint32_t ready = item->file->ops->events(item->file) & (item->event.events | EPOLLERR | EPOLLHUP);
    if (ready != 0) events[num_events++] = (struct epoll_event){.events = ready, .data = item->event.data};
    item = item->next_of_set != NULL ? item->next_of_set : set->items;
  }
  return num_events;
}

/* When a time-out of the process's clock is over; negative: none. */
static uint64_t deadline_after_ms(int timeout_ms) {
  if (timeout_ms < 0) return SML_NEVER;
  const struct sim_process *p = sim.fiber->process;
  return sim_time_of(p, sim_clock_of(p, sim_local_ns()) + (uint64_t)timeout_ms * SML_NS_PER_MS);
}

static int64_t await_events(int fd, struct epoll_event *events, int max, int timeout_ms) {
  const int error = sim_call_error(SIM_CALL_EPOLL_WAIT);
  if (error != 0) return -error;
  sim_step(CALL_NS); /* a loop over something that is always ready takes time too */
  struct epoll_set *set = (struct epoll_set *)sim_file_of(fd);
  if (set == NULL) return -EBADF;
  if (set->file.ops != &set_ops || max <= 0) return -EINVAL;
  const uint64_t deadline_ns = deadline_after_ms(timeout_ms);
  int num_events;
  while ((num_events = collect(set, events, max)) == 0 && sim_local_ns() < deadline_ns)
    (void)sim_block(&set->file.waiters, deadline_ns);
  return num_events;
}

int __real_epoll_wait(int fd, struct epoll_event *events, int max, int timeout_ms);
int __wrap_epoll_wait(int fd, struct epoll_event *events, int max, int timeout_ms);
int __wrap_epoll_wait(int fd, struct epoll_event *events, int max, int timeout_ms) {
  if (!sim_is_inside()) return __real_epoll_wait(fd, events, max, timeout_ms);
  return (int)sim_result(await_events(fd, events, max, timeout_ms));
}

/* ---- poll: looks again and again ---- */

_Static_assert(POLLIN == EPOLLIN && POLLOUT == EPOLLOUT && POLLERR == EPOLLERR && POLLHUP == EPOLLHUP,
               "one set of bits");

static int look(struct pollfd *fds, nfds_t num_fds) {
  int num_ready = 0;
  for (nfds_t i = 0; i < num_fds; i++) {
    fds[i].revents = 0;
    if (fds[i].fd < 0) continue;
    struct sim_file *file = sim_file_of(fds[i].fd);
    const uint32_t wanted = (uint32_t)(uint16_t)fds[i].events | POLLERR | POLLHUP;
    fds[i].revents = file == NULL ? POLLNVAL : (short)(file->ops->events(file) & wanted);
    num_ready += fds[i].revents != 0;
  }
  return num_ready;
}

int __real_poll(struct pollfd *fds, nfds_t num_fds, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t num_fds, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t num_fds, int timeout_ms) {
  if (!sim_is_inside()) return __real_poll(fds, num_fds, timeout_ms);
  const int error = sim_call_error(SIM_CALL_POLL);
  if (error != 0) return (int)sim_result(-error);
  const uint64_t deadline_ns = deadline_after_ms(timeout_ms);
  sim_step(CALL_NS);
  int num_ready;
  while ((num_ready = look(fds, num_fds)) == 0 && sim_local_ns() < deadline_ns)
    sim_sleep_ns(sml_min_u64(POLL_NS, deadline_ns - sim_local_ns()));
  return num_ready;
}

/* ---- any descriptor ---- */

ssize_t __real_read(int fd, void *data, size_t num_bytes);
ssize_t __wrap_read(int fd, void *data, size_t num_bytes);
ssize_t __wrap_read(int fd, void *data, size_t num_bytes) {
  if (!sim_is_inside()) return __real_read(fd, data, num_bytes);
  int64_t result = -sim_call_error(SIM_CALL_READ);
  struct sim_file *file = sim_file_of(fd);
  if (result == 0) result = file == NULL ? -EBADF : file->ops->read(file, data, num_bytes);
  return (ssize_t)sim_result(result);
}

ssize_t __real_write(int fd, const void *data, size_t num_bytes);
ssize_t __wrap_write(int fd, const void *data, size_t num_bytes);
ssize_t __wrap_write(int fd, const void *data, size_t num_bytes) {
  if (!sim_is_inside()) return __real_write(fd, data, num_bytes);
  int64_t result = -sim_call_error(SIM_CALL_WRITE);
  struct sim_file *file = sim_file_of(fd);
  if (result == 0) result = file == NULL ? -EBADF : file->ops->write(file, data, num_bytes);
  if (result >= 0) sim_maybe_switch();
  return (ssize_t)sim_result(result);
}

int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd) {
  if (!sim_is_inside()) return __real_close(fd);
  SML_ASSERT(sim_file_of(fd) != NULL); /* closing what is not open hits another thread's descriptor */
  SML_ASSERT(sim_file_of(fd)->waiters.head == NULL);
  close_file(sim.fiber->process, (uint32_t)fd);
  return 0;
}
