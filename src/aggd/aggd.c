/* SPDX-License-Identifier: Apache-2.0
 * The control thread: TCP connections in, the registry's effects out. What a message means is the
 * registry's business (ctl/registry.h); here is only what the operating system has to do with it. */
#include "aggd/aggd.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "aggd/answers.h"
#include "aggd/lanes.h"
#include "aggd/trace.h"
#include "ctl/channel.h"
#include "ctl/registry.h"
#include "switchml/switchml.h"

#define OUT_BYTES 12288u /* unsent messages of a connection: START of the largest world and a dozen others */
#define LINGER_NS (1 * SML_NS_PER_S) /* for the peer to read its last message and close */
#define STOP_NS (300 * SML_NS_PER_MS)
#define ACCEPT_PAUSE_NS (100 * SML_NS_PER_MS) /* after the system had no descriptor left */
#define ACCEPTS_PER_PASS 64u                  /* so that a flood of them does not starve members */
#define MAX_UNJOINED_PER_HOST 64u
#define TAG_LISTEN UINT32_MAX
#define TAG_EVENT (UINT32_MAX - 1)

enum conn_state {
  CONN_FREE,
  CONN_OPEN,
  CONN_LINGERING, /* the registry has forgotten it; what it still says is thrown away */
};

struct conn {
  int fd;
  enum conn_state state;
  bool is_broken; /* OPEN: to be reported closed once the effects are done */
  enum sml_close_cause cause;
  bool wants_out; /* EPOLLOUT is armed */
  bool has_spoken; /* something was said to the peer */
  uint64_t linger_until_ns;
  uint32_t shown; /* the ticket of the status that it is shown */
  size_t in_bytes, out_bytes;
  struct conn_buffers *buffers;
};

/* Apart from the connections, which each pass looks through. */
struct conn_buffers {
  struct sml_channel channel;
  uint8_t in[SML_CHANNEL_MAX_FRAME_BYTES];
  uint8_t out[OUT_BYTES];
};

struct sml_aggd {
  struct sml_aggd_options options;
  struct sml_lanes *lanes;
  struct sml_registry *registry;
  struct conn *conns;
  struct conn_buffers *buffers; /* pages of connections never used stay untouched */
  struct epoll_event *epoll_events;
  struct sml_tenants tenants;
  struct sml_key random_key;
  uint64_t num_draws;
  struct sml_aggd_trace trace;
  int listen_fd, epoll_fd, event_fd;
  struct sml_addr addr;
  uint64_t accept_paused_until_ns; /* 0: not paused */
  uint64_t now_ns, watch_at_ns;
  struct sml_answers answers;
  pthread_t thread;
  bool is_running;
  _Atomic bool should_stop;
  _Atomic uint64_t lowest_completed;
};

/* --- sockets --- */

static void free_conn(struct conn *c) {
  const int fd = c->fd;
  c->fd = -1; /* first: in the child of a fork the number may be another's already */
  c->state = CONN_FREE;
  close(fd); /* leaves the epoll set by itself */
}

static void break_conn(struct conn *c, enum sml_close_cause cause) {
  if (c->is_broken) return;
  c->is_broken = true;
  c->cause = cause;
}

static void arm(struct sml_aggd *a, uint32_t i, bool wants_out) {
  struct conn *c = &a->conns[i];
  if (c->wants_out == wants_out) return;
  c->wants_out = wants_out;
  struct epoll_event event = {.events = EPOLLIN | (wants_out ? EPOLLOUT : 0u), .data.u32 = i};
  if (epoll_ctl(a->epoll_fd, EPOLL_CTL_MOD, c->fd, &event) != 0) break_conn(c, SML_CLOSED_RESET);
}

static void flush_conn(struct sml_aggd *a, uint32_t i) {
  struct conn *c = &a->conns[i];
  while (c->out_bytes > 0) {
    ssize_t n = send(c->fd, c->buffers->out, c->out_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n < 0) {
      c->out_bytes = 0;
      break_conn(c, SML_CLOSED_RESET);
      break;
    }
    c->out_bytes -= (size_t)n;
    memmove(c->buffers->out, c->buffers->out + n, c->out_bytes);
  }
  arm(a, i, c->out_bytes > 0);
  /* Everything is said: the peer gets an end of file behind it. An immediate close would turn into a
   * reset when unread input is left, and could overtake the last message. */
  if (c->state == CONN_LINGERING && c->out_bytes == 0) shutdown(c->fd, SHUT_WR);
}

static void send_message(struct sml_aggd *a, uint32_t i, const struct sml_ctl_message *message) {
  struct conn *c = &a->conns[i];
  if (c->state != CONN_OPEN || c->is_broken) return;
  size_t num_bytes = sml_channel_encode(&c->buffers->channel, message, c->buffers->out + c->out_bytes,
                                        OUT_BYTES - c->out_bytes);
  if (num_bytes == 0) {
    break_conn(c, SML_CLOSED_SLOW);
    return;
  }
  c->out_bytes += num_bytes;
  c->has_spoken = true;
  flush_conn(a, i);
}

/* A stranger to whom nothing was said has nothing to read: a flood of them must not hold the table. */
static void linger(struct sml_aggd *a, uint32_t i) {
  struct conn *c = &a->conns[i];
  if (c->state != CONN_OPEN) return;
  c->state = CONN_LINGERING;
  c->linger_until_ns = a->now_ns + LINGER_NS;
  if (c->is_broken || !c->has_spoken) {
    free_conn(c);
  } else {
    flush_conn(a, i);
    if (c->is_broken) free_conn(c);
  }
}

/* --- effects --- */

static const struct {
  const char *name;
  bool is_warning;
} note_names[] = {
    [SML_NOTE_RANK_JOINED] = {"rank_joined", false},  [SML_NOTE_JOB_STARTED] = {"job_started", false},
    [SML_NOTE_RANK_LEFT] = {"rank_left", false},      [SML_NOTE_RANK_LOST] = {"rank_lost", true},
    [SML_NOTE_JOIN_REFUSED] = {"join_refused", true}, [SML_NOTE_JOB_REFUSED] = {"job_refused", true},
    [SML_NOTE_HOST_LIMITED] = {"host_limited", true}, [SML_NOTE_STATUS_REFUSED] = {"status_refused", true},
    [SML_NOTE_RANK_LATE] = {"rank_late", true},       [SML_NOTE_RANK_CALLED] = {"rank_called", true},
    [SML_NOTE_EPOCH_RENEWED] = {"epoch_renewed", false}, [SML_NOTE_NO_MULTICAST] = {"no_multicast", true},
    [SML_NOTE_JOB_ABORTED] = {"job_aborted", true},   [SML_NOTE_JOB_ENDED] = {"job_ended", false},
};

static void pass_note(struct sml_aggd *a, const struct sml_effect *e) {
  sml_aggd_trace_note(&a->trace, e, a->now_ns);
  sml_history_note(&a->answers.history, e, a->now_ns);
  if (!a->options.on_note) return;
  struct sml_aggd_note note = {.name = note_names[e->note].name,
                               .is_warning = note_names[e->note].is_warning,
                               .job_name = e->job_name,
                               .key_name = e->key_name ? e->key_name : "",
                               .job = e->job,
                               .epoch = e->epoch,
                               .world_size = e->world_size,
                               .rank = e->rank,
                               .text = e->text};
  a->options.on_note(a->options.user, &note);
}

static void show(struct sml_aggd *a, const struct sml_effect *e) {
  struct conn *c = &a->conns[e->conn];
  struct sml_ctl_message m;
  if (c->state != CONN_OPEN || c->is_broken) return;
  sml_answers_show(&a->answers, e, &c->shown, a->now_ns, &m);
  send_message(a, e->conn, &m);
}

static void report(struct sml_aggd *a, const struct sml_effect *e) {
  const struct sml_ctl_message *m = sml_answers_report(&a->answers, e, a->now_ns);
  if (m) send_message(a, e->conn, m);
}

/* False: an engine lacks memory for the effect's job. */
static bool carry_out(struct sml_aggd *a, const struct sml_effect *e) {
  switch (e->kind) {
    case SML_EFFECT_SEND:
      send_message(a, e->conn, e->message);
      break;
    case SML_EFFECT_CLOSE:
      linger(a, e->conn);
      break;
    case SML_EFFECT_SET_KEY:
      sml_channel_set_key(&a->conns[e->conn].buffers->channel, e->key, e->worker_nonce, e->daemon_nonce);
      break;
    case SML_EFFECT_OPEN_JOB:
      return sml_lanes_open_job(a->lanes, e->job, e->epoch, e->world_size, e->key);
    case SML_EFFECT_EXPECT_HELLO:
      sml_lanes_expect_hello(a->lanes, e->job, e->rank, e->nonce);
      break;
    case SML_EFFECT_START_JOB:
      return sml_lanes_start_job(a->lanes, e->job, e->world_size, &e->message->u.start, e->key);
    case SML_EFFECT_DEPART:
      sml_lanes_depart(a->lanes, e->job, e->rank);
      break;
    case SML_EFFECT_CLOSE_JOB:
      sml_lanes_close_job(a->lanes, e->job);
      break;
    case SML_EFFECT_NOTE:
      pass_note(a, e);
      break;
    case SML_EFFECT_SHOW:
      show(a, e);
      break;
    case SML_EFFECT_REPORT:
      report(a, e);
      break;
  }
  return true;
}

/* Carries out all effects of the last input. */
static void drain_effects(struct sml_aggd *a) {
  const struct sml_effect *e;
  bool has_failed = false;
  uint16_t job = 0;
  uint32_t epoch = 0;
  while ((e = sml_registry_next_effect(a->registry))) {
    if (carry_out(a, e)) continue;
    has_failed = true;
    job = e->job;
    epoch = e->epoch;
  }
  if (!has_failed) return;
  const char *failure = sml_lanes_failure(a->lanes);
  sml_registry_on_job_failed(a->registry, job, epoch, failure[0] ? failure : NULL);
  while ((e = sml_registry_next_effect(a->registry))) SML_ASSERT(carry_out(a, e)); /* it only ends the job */
}

/* Connections that broke while something was sent to them; telling the registry may break others. */
static void report_broken(struct sml_aggd *a) {
  bool is_any = true;
  while (is_any) {
    is_any = false;
    for (uint32_t i = 0; i < a->options.max_connections; i++) {
      struct conn *c = &a->conns[i];
      if (c->state != CONN_OPEN || !c->is_broken) continue;
      is_any = true;
      free_conn(c);
      sml_registry_on_closed(a->registry, i, c->cause);
      drain_effects(a);
    }
  }
}

/* --- input --- */

static void refuse_at_the_door(int fd) {
  struct sml_ctl_message m = {.kind = SML_CTL_REFUSE, .u.refuse.status = SML_ERR_REFUSED};
  uint8_t frame[SML_CTL_FRAME_BYTES + sizeof m];
  snprintf(m.u.refuse.detail, sizeof m.u.refuse.detail, "the aggregator has no room for another connection");
  size_t num_bytes = sml_ctl_encode(&m, frame, sizeof frame);
  if (send(fd, frame, num_bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return; /* it sees the close */
}

static void watch_listener(struct sml_aggd *a, bool is_watched) {
  struct epoll_event event = {.events = is_watched ? EPOLLIN : 0, .data.u32 = TAG_LISTEN};
  const bool is_done = epoll_ctl(a->epoll_fd, EPOLL_CTL_MOD, a->listen_fd, &event) == 0;
  a->accept_paused_until_ns = is_watched && is_done ? 0 : a->now_ns + ACCEPT_PAUSE_NS;
}

static uint32_t find_free(const struct sml_aggd *a) {
  uint32_t i = 0;
  while (i < a->options.max_connections && a->conns[i].state != CONN_FREE) i++;
  return i;
}

/* A number for a new connection, or max_connections. Ranks join as soon as they are connected: who has been here
 * longest without, or is only told good-bye, makes room. Strangers can't keep ranks out by being many. */
static uint32_t find_room(struct sml_aggd *a) {
  uint32_t i = find_free(a), leaving = a->options.max_connections;
  if (i < a->options.max_connections) return i;
  for (i = 0; i < a->options.max_connections; i++) {
    const struct conn *c = &a->conns[i];
    bool is_first = leaving == a->options.max_connections || c->linger_until_ns < a->conns[leaving].linger_until_ns;
    if (c->state == CONN_LINGERING && is_first) leaving = i;
  }
  if (leaving < a->options.max_connections) {
    free_conn(&a->conns[leaving]);
    return leaving;
  }
  if (!sml_registry_on_crowded(a->registry)) return a->options.max_connections;
  drain_effects(a);
  for (i = 0; i < a->options.max_connections; i++) {
    if (a->conns[i].state == CONN_LINGERING) free_conn(&a->conns[i]);
  }
  return find_free(a);
}

static bool accept_one(struct sml_aggd *a) {
  struct sockaddr_storage from = {0};
  socklen_t from_bytes = sizeof from;
  int fd = accept4(a->listen_fd, (struct sockaddr *)&from, &from_bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    int error = errno;
    if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) watch_listener(a, false);
    return error == ECONNABORTED || error == EINTR;
  }
  uint32_t i = find_room(a);
  int one = 1;
  struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
  if (i == a->options.max_connections || epoll_ctl(a->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
    refuse_at_the_door(fd);
    close(fd);
    return true;
  }
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  struct conn *c = &a->conns[i];
  c->fd = fd;
  c->state = CONN_OPEN;
  c->buffers = &a->buffers[i];
  c->is_broken = c->wants_out = c->has_spoken = false;
  c->shown = SML_SHOWN_NONE;
  c->in_bytes = c->out_bytes = 0;
  sml_channel_init(&c->buffers->channel, true);
  struct sml_addr addr = {.num_bytes = (uint8_t)sml_min_u64(from_bytes, sizeof addr.bytes)};
  memcpy(addr.bytes, &from, addr.num_bytes);
  char peer[SML_PEER_BYTES];
  sml_addr_format(&addr, peer, sizeof peer);
  sml_registry_on_opened(a->registry, i, peer, a->now_ns);
  drain_effects(a);
  return true;
}

/* Hands every whole message in the buffer to the registry; stops when it closes the connection. */
static void take_messages(struct sml_aggd *a, uint32_t i) {
  struct conn *c = &a->conns[i];
  size_t taken_bytes = 0;
  while (c->state == CONN_OPEN && !c->is_broken) {
    struct sml_ctl_message message;
    size_t consumed_bytes;
    enum sml_ctl_decode verdict =
        sml_channel_decode(&c->buffers->channel, c->buffers->in + taken_bytes, c->in_bytes - taken_bytes,
                           &message, &consumed_bytes);
    if (verdict == SML_CTL_NEED_MORE) break;
    if (verdict == SML_CTL_DECODED) {
      sml_registry_on_message(a->registry, i, &message, a->now_ns);
    } else {
      sml_registry_on_garbage(a->registry, i, verdict);
    }
    drain_effects(a);
    taken_bytes += consumed_bytes;
  }
  c->in_bytes -= taken_bytes;
  memmove(c->buffers->in, c->buffers->in + taken_bytes, c->in_bytes);
}

static void read_conn(struct sml_aggd *a, uint32_t i) {
  struct conn *c = &a->conns[i];
  bool is_open = c->state == CONN_OPEN;
  if (!is_open) c->in_bytes = 0;
  ssize_t n = recv(c->fd, c->buffers->in + c->in_bytes, sizeof c->buffers->in - c->in_bytes, MSG_DONTWAIT);
  if (n > 0) {
    c->in_bytes += (size_t)n;
    if (is_open) take_messages(a, i);
    return;
  }
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (is_open) {
    break_conn(c, n == 0 ? SML_CLOSED_FIN : SML_CLOSED_RESET);
  } else {
    free_conn(c);
  }
}

static void serve_conn(struct sml_aggd *a, uint32_t i, uint32_t events) {
  struct conn *c = &a->conns[i];
  if (c->state != CONN_FREE && (events & EPOLLOUT)) flush_conn(a, i);
  if (c->state == CONN_LINGERING && c->is_broken) free_conn(c);
  if (c->state != CONN_FREE && !c->is_broken) read_conn(a, i);
}

static void take_engine_events(struct sml_aggd *a) {
  uint64_t count;
  struct sml_aggregator_event e;
  if (read(a->event_fd, &count, sizeof count) < 0) return;
  sml_answers_serve(&a->answers, a->now_ns);
  while (sml_lanes_next_event(a->lanes, &e)) {
    switch (e.kind) {
      case SML_EVENT_MISMATCH:
        sml_registry_on_mismatch(a->registry, e.job, e.epoch, e.rank_a, e.rank_b);
        break;
      case SML_EVENT_BLOCKED:
        sml_registry_on_blocked(a->registry, e.job, e.epoch, e.rank_a);
        break;
      case SML_EVENT_JUMP:
        sml_registry_on_jump(a->registry, e.job, e.epoch, e.rank_a);
        break;
      case SML_EVENT_DEAF:
        sml_registry_on_deaf(a->registry, e.job, e.epoch, e.rank_a);
        break;
    }
    drain_effects(a);
  }
}

/* --- the loop --- */

static bool expire_lingering(struct sml_aggd *a) {
  bool is_any = false;
  for (uint32_t i = 0; i < a->options.max_connections; i++) {
    struct conn *c = &a->conns[i];
    if (c->state == CONN_LINGERING && c->linger_until_ns <= a->now_ns) free_conn(c);
    is_any = is_any || c->state == CONN_LINGERING;
  }
  return is_any;
}

static uint64_t next_deadline(const struct sml_aggd *a) {
  uint64_t deadline_ns = sml_registry_next_deadline(a->registry);
  if (a->accept_paused_until_ns) deadline_ns = sml_min_u64(deadline_ns, a->accept_paused_until_ns);
  deadline_ns = sml_min_u64(deadline_ns, a->watch_at_ns);
  for (uint32_t i = 0; i < a->options.max_connections; i++) {
    if (a->conns[i].state == CONN_LINGERING)
      deadline_ns = sml_min_u64(deadline_ns, a->conns[i].linger_until_ns);
  }
  return deadline_ns;
}

/* Sleeps until something happens, at most until the deadline, and takes all input that is there. */
static void take_input(struct sml_aggd *a, uint64_t deadline_ns) {
  int timeout_ms = -1;
  if (deadline_ns != SML_NEVER) {
    uint64_t now_ns = sml_clock_ns();
    uint64_t wait_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    timeout_ms = (int)sml_min_u64(sml_div_ceil(wait_ns, SML_NS_PER_MS), 3600 * 1000);
  }
  /* Room for every descriptor: a daemon that was stopped for a while sees all that its ranks said
   * meanwhile before it looks at their leases. */
  int num_events = epoll_wait(a->epoll_fd, a->epoll_events, (int)a->options.max_connections + 2, timeout_ms);
  a->now_ns = sml_clock_ns();
  if (a->now_ns > deadline_ns) sml_registry_forgive(a->registry, a->now_ns - deadline_ns, a->now_ns);
  for (int e = 0; e < num_events; e++) {
    uint32_t tag = a->epoll_events[e].data.u32;
    if (tag == TAG_EVENT) {
      take_engine_events(a);
    } else if (tag == TAG_LISTEN) {
      uint32_t num_accepts = 0;
      while (num_accepts < ACCEPTS_PER_PASS && accept_one(a)) num_accepts++;
    } else {
      serve_conn(a, tag, a->epoll_events[e].events);
    }
  }
  report_broken(a);
}

static void run_timers(struct sml_aggd *a) {
  while (sml_registry_next_deadline(a->registry) <= a->now_ns) {
    sml_registry_on_timer(a->registry, a->now_ns);
    drain_effects(a);
  }
  uint16_t job;
  uint32_t epoch;
  a->watch_at_ns = sml_lanes_watch(a->lanes, a->now_ns);
  while (sml_lanes_next_lost(a->lanes, &job, &epoch)) {
    sml_registry_on_job_failed(a->registry, job, epoch, sml_lanes_failure(a->lanes));
    drain_effects(a);
  }
  report_broken(a);
  expire_lingering(a);
  if (a->accept_paused_until_ns && a->accept_paused_until_ns <= a->now_ns) watch_listener(a, true);
}

static void say_goodbye(struct sml_aggd *a) {
  a->now_ns = sml_clock_ns();
  uint64_t deadline_ns = a->now_ns + STOP_NS;
  epoll_ctl(a->epoll_fd, EPOLL_CTL_DEL, a->listen_fd, NULL);
  a->accept_paused_until_ns = 0;
  sml_registry_on_stop(a->registry);
  drain_effects(a);
  while (expire_lingering(a) && a->now_ns < deadline_ns) {
    take_input(a, sml_min_u64(deadline_ns, next_deadline(a)));
  }
  for (uint32_t i = 0; i < a->options.max_connections; i++) {
    if (a->conns[i].state != CONN_FREE) free_conn(&a->conns[i]);
  }
}

static void *run_control(void *argument) {
  struct sml_aggd *a = argument;
  while (!atomic_load_explicit(&a->should_stop, memory_order_acquire)) { /* pairs with sml_aggd_stop */
    take_input(a, next_deadline(a));
    run_timers(a);
    if (!a->options.is_hosted) continue;
    atomic_store_explicit(&a->lowest_completed, sml_registry_lowest_completed(a->registry), memory_order_relaxed);
  }
  say_goodbye(a);
  return NULL;
}

/* --- life --- */

/* The system is asked once, while a failure can still be told: SipHash of a counter under that key. */
static uint64_t draw_random(void *user) {
  struct sml_aggd *a = user;
  a->num_draws++;
  return sml_siphash(&a->random_key, &a->num_draws, sizeof a->num_draws);
}

static int seed_random(struct sml_aggd *a, char *error_out, size_t error_bytes) {
  if (getrandom(&a->random_key, sizeof a->random_key, 0) == (ssize_t)sizeof a->random_key) return 0;
  int error = errno;
  snprintf(error_out, error_bytes, "cannot draw random numbers (getrandom): %s", strerror(error));
  return -error;
}

static void set_defaults(struct sml_aggd *a) {
  struct sml_aggd_options *o = &a->options;
  if (o->num_lanes == 0) o->num_lanes = 1;
  if (o->pool_slots == 0) o->pool_slots = 8192;
  if (o->max_jobs == 0) o->max_jobs = 256;
  if (o->max_connections == 0) o->max_connections = 1024;
  if (o->rx_buffer_bytes == 0) o->rx_buffer_bytes = 16u << 20;
  if (o->join_grace_ns == 0) o->join_grace_ns = 5 * SML_NS_PER_S;
  if (o->new_connections_per_s == 0) o->new_connections_per_s = 100;
  if (o->max_messages_per_s == 0) o->max_messages_per_s = 1000;
  if (o->trace_events == 0) o->trace_events = SML_TRACE_DEFAULT_EVENTS;
  if (o->late_note_ns == 0) o->late_note_ns = 10 * SML_NS_PER_S;
  if (o->boot_epoch == 0) o->boot_epoch = (uint32_t)draw_random(a);
  if (o->first_phase == 0) o->first_phase = SML_FIRST_PHASE;
  if (o->multicast.ttl == 0) o->multicast.ttl = 1;
}

static bool check_options(const struct sml_aggd_options *o, char *error_out, size_t error_bytes) {
  const char *bad = NULL;
  if (o->num_lanes > SML_MAX_LANES)
    bad = "at most 16 lanes";
  else if (o->pool_slots > SML_AGGD_MAX_SLOTS)
    bad = "at most 65536 slots a lane";
  else if (o->max_jobs > SML_AGGD_MAX_JOBS)
    bad = "at most 1024 jobs";
  else if (o->max_connections > (1u << 20))
    bad = "at most 1048576 connections";
  else if (o->first_data_port && o->first_data_port + o->num_lanes > 65536)
    bad = "data ports end at 65535";
  else if (o->first_phase % 2 != 0)
    bad = "the first phase is even";
  else if (o->packet_lanes != 0 && (!sml_is_pow2(o->packet_lanes) || o->packet_lanes < SML_MIN_PACKET_LANES ||
                                    o->packet_lanes > SML_MAX_PACKET_LANES))
    bad = "packets in switch format have 32, 64, 128 or 256 lanes";
  else if (o->dataplane && (o->packet_lanes == 0 || o->num_lanes != 1))
    bad = "a switch has one lane, and --switch-format";
  else if (o->packet_lanes != 0 && (o->num_keys > 0 || o->multicast.first.num_bytes > 0))
    bad = "in switch format there are neither keys nor multicast groups";
  else if (o->multicast.first.num_bytes > 0 && o->multicast.first.num_bytes != o->listen.num_bytes)
    bad = "multicast groups and the address to listen on are both IPv4 or both IPv6";
  if (bad) snprintf(error_out, error_bytes, "an aggregator has limits: %s", bad);
  return bad == NULL;
}

static int open_listener(struct sml_aggd *a, char *error_out, size_t error_bytes) {
  char text[SML_PEER_BYTES];
  const struct sml_addr *addr = &a->options.listen;
  const struct sockaddr *sockaddr = (const struct sockaddr *)(const void *)addr->bytes;
  sml_addr_format(addr, text, sizeof text);
  struct sockaddr_storage local = {0};
  socklen_t local_bytes = sizeof local;
  int one = 1;
  a->listen_fd = socket(sockaddr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  /* Connections of a daemon that just went are still fading out; they must not keep its successor off. */
  if (a->listen_fd < 0 || setsockopt(a->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
      bind(a->listen_fd, sockaddr, addr->num_bytes) != 0 || listen(a->listen_fd, 1024) != 0 ||
      getsockname(a->listen_fd, (struct sockaddr *)&local, &local_bytes) != 0) {
    int error = errno;
    const char *advice = error == EADDRINUSE ? "; stop the process that has this port, or choose another port"
                         : error == EADDRNOTAVAIL
                             ? "; choose an address of this host, or 0.0.0.0 for all of them"
                         : error == EACCES ? "; choose a port above 1023"
                                           : "";
    snprintf(error_out, error_bytes, "cannot listen on %s: %s%s", text, strerror(error), advice);
    return -error;
  }
  a->addr.num_bytes = (uint8_t)sml_min_u64(local_bytes, sizeof a->addr.bytes);
  memcpy(a->addr.bytes, &local, a->addr.num_bytes);
  return 0;
}

static int open_epoll(struct sml_aggd *a, char *error_out, size_t error_bytes) {
  a->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  a->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  struct epoll_event on_listen = {.events = EPOLLIN, .data.u32 = TAG_LISTEN};
  struct epoll_event on_event = {.events = EPOLLIN, .data.u32 = TAG_EVENT};
  if (a->epoll_fd >= 0 && a->event_fd >= 0 &&
      epoll_ctl(a->epoll_fd, EPOLL_CTL_ADD, a->listen_fd, &on_listen) == 0 &&
      epoll_ctl(a->epoll_fd, EPOLL_CTL_ADD, a->event_fd, &on_event) == 0) {
    return 0;
  }
  int error = errno;
  snprintf(error_out, error_bytes, "cannot set up epoll: %s", strerror(error));
  return -error;
}

static int open_registry(struct sml_aggd *a, char *error_out, size_t error_bytes) {
  const struct sml_aggd_options *o = &a->options;
  struct sml_registry_options options = {.max_connections = o->max_connections,
                                         .max_unjoined_per_host = MAX_UNJOINED_PER_HOST,
                                         .max_jobs = o->max_jobs,
                                         .num_lanes = o->num_lanes,
                                         .pool_slots = o->pool_slots,
                                         .packet_lanes = o->packet_lanes,
                                         .is_hosted = o->is_hosted,
                                         .max_datagram_bytes = sml_lanes_max_datagram_bytes(a->lanes),
                                         .join_grace_ns = o->join_grace_ns,
                                         .boot_epoch = o->boot_epoch,
                                         .first_phase = o->first_phase,
                                         .first_chunk = o->first_chunk,
                                         .random = draw_random,
                                         .random_user = a,
                                         .find_key = o->num_keys > 0 ? sml_tenants_find_key : NULL,
                                         .find_key_user = &a->tenants,
                                         .find_quota = sml_tenants_find_quota,
                                         .find_quota_user = &a->tenants,
                                         .max_connections_per_host = o->max_connections_per_host,
                                         .new_connections_per_s = o->new_connections_per_s,
                                         .max_messages_per_s = o->max_messages_per_s,
                                         .late_note_ns = o->late_note_ns};
  for (uint32_t l = 0; l < o->num_lanes; l++) options.data_ports[l] = sml_lanes_port(a->lanes, l);
  if (o->multicast.first.num_bytes > 0) {
    sml_multicast_to_words(&o->multicast.first, options.first_group);
    options.num_groups = o->multicast.num_groups;
    options.group_port = sml_addr_port(&o->multicast.first);
  }
  const struct sml_recorder_options trace = {o->trace_level, o->trace_events};
  const bool has_trace = sml_aggd_trace_open(&a->trace, &trace, o->max_jobs);
  void *mem = calloc(1, sml_registry_memsize(&options));
  a->conns = calloc(o->max_connections, sizeof *a->conns);
  a->buffers = calloc(o->max_connections, sizeof *a->buffers);
  a->epoll_events = calloc(o->max_connections + 2, sizeof *a->epoll_events);
  const bool has_tenants = sml_tenants_set(&a->tenants, o->keys, o->num_keys, o->tenants, o->num_tenants);
  a->options.keys = NULL; /* the caller's */
  a->options.tenants = NULL;
  if (mem) a->registry = sml_registry_init(mem, &options);
  a->answers.options = &a->options;
  a->answers.registry = a->registry;
  a->answers.lanes = a->lanes;
  a->answers.tenants = &a->tenants;
  a->answers.addr = a->addr;
  a->answers.event_fd = a->event_fd;
  if (mem && a->conns && a->buffers && a->epoll_events && has_tenants && has_trace) return 0;
  snprintf(error_out, error_bytes, "out of memory for %u connections", o->max_connections);
  return -ENOMEM;
}

static int start_thread(struct sml_aggd *a, char *error_out, size_t error_bytes) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* inherited: signals are the main thread's */
  int error = pthread_create(&a->thread, NULL, run_control, a);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  a->is_running = error == 0;
  if (error == 0)
    pthread_setname_np(a->thread, "sml-aggd");
  else
    snprintf(error_out, error_bytes, "cannot start a thread: %s", strerror(error));
  return -error;
}

static void destroy(struct sml_aggd *a) {
  if (a->lanes) sml_lanes_close(a->lanes);
  if (a->trace.max_jobs) sml_aggd_trace_close(&a->trace);
  if (a->listen_fd >= 0) close(a->listen_fd);
  if (a->epoll_fd >= 0) close(a->epoll_fd);
  if (a->event_fd >= 0) close(a->event_fd);
  sml_answers_destroy(&a->answers);
  free(a->registry);
  free(a->conns);
  free(a->buffers);
  free(a->epoll_events);
  sml_tenants_destroy(&a->tenants);
  free(a);
}

int sml_aggd_start(const struct sml_aggd_options *options, struct sml_aggd **aggd_out, char *error_out,
                   size_t error_bytes) {
  struct sml_aggd *a = calloc(1, sizeof *a);
  if (!a) {
    snprintf(error_out, error_bytes, "out of memory");
    return -ENOMEM;
  }
  a->options = *options;
  sml_answers_init(&a->answers);
  sml_tenants_init(&a->tenants);
  a->listen_fd = a->epoll_fd = a->event_fd = -1;
  a->watch_at_ns = SML_NEVER;
  int error = seed_random(a, error_out, error_bytes);
  if (!error) set_defaults(a);
  if (!error && !check_options(&a->options, error_out, error_bytes)) error = -EINVAL;
  if (!error) error = open_listener(a, error_out, error_bytes);
  if (!error) error = open_epoll(a, error_out, error_bytes);
  if (!error) error = sml_lanes_open(&a->options, a->event_fd, &a->lanes, error_out, error_bytes);
  if (!error) error = open_registry(a, error_out, error_bytes);
  if (!error) error = start_thread(a, error_out, error_bytes);
  if (error) {
    destroy(a);
    return error;
  }
  *aggd_out = a;
  return 0;
}

int sml_aggd_set_tenants(struct sml_aggd *a, const struct sml_key_entry *keys, uint32_t num_keys,
                         const struct sml_tenant *tenants, uint32_t num_tenants) {
  if ((num_keys > 0) != (a->options.num_keys > 0)) return -EINVAL;
  return sml_tenants_set(&a->tenants, keys, num_keys, tenants, num_tenants) ? 0 : -ENOMEM;
}

void sml_aggd_stop(struct sml_aggd *a) {
  uint64_t one = 1;
  atomic_store_explicit(&a->should_stop, true, memory_order_release); /* pairs with run_control */
  while (write(a->event_fd, &one, sizeof one) < 0 && errno == EINTR) continue; /* full: it wakes all the same */
  pthread_join(a->thread, NULL);
  destroy(a);
}

uint64_t sml_aggd_lowest_completed(const struct sml_aggd *a) {
  return atomic_load_explicit(&a->lowest_completed, memory_order_relaxed);
}

void sml_aggd_close_descriptors(struct sml_aggd *a) {
  for (uint32_t i = 0; i < a->options.max_connections; i++)
    if (a->conns[i].state != CONN_FREE && a->conns[i].fd >= 0) close(a->conns[i].fd);
  close(a->listen_fd);
  close(a->epoll_fd);
  close(a->event_fd);
  sml_lanes_close_descriptors(a->lanes);
}

void sml_aggd_addr(const struct sml_aggd *a, struct sml_addr *addr_out) {
  *addr_out = a->addr;
}

uint16_t sml_aggd_data_port(const struct sml_aggd *a, uint32_t lane) {
  return sml_lanes_port(a->lanes, lane);
}

bool sml_aggd_collect_trace(struct sml_aggd *a, struct sml_trace_dump *dump) {
  return sml_lanes_collect_trace(a->lanes, dump) && sml_aggd_trace_add(&a->trace, dump);
}

struct sml_snapshot *sml_aggd_snapshot(struct sml_aggd *a) {
  return sml_answers_ask(&a->answers);
}

void sml_aggd_describe_drops(const struct sml_aggd *a, char *text, size_t text_bytes) {
  uint64_t num_drops[SML_NUM_DROPS];
  size_t used_bytes = 0;
  sml_lanes_drops(a->lanes, num_drops);
  text[0] = 0;
  for (uint32_t d = 0; d < SML_NUM_DROPS; d++) {
    if (num_drops[d] == 0 || used_bytes >= text_bytes) continue;
    used_bytes +=
        (size_t)snprintf(text + used_bytes, text_bytes - used_bytes, "%s%s=%llu", used_bytes ? " " : "",
                         sml_drop_name((enum sml_drop)d), (unsigned long long)num_drops[d]);
  }
}
