/* SPDX-License-Identifier: Apache-2.0
 * The control thread: TCP connections in, the registry's effects out. What a message means is the
 * registry's business (ctl/registry.h); here is only what the operating system has to do with it. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "aggd/aggd_internal.h"
#include "base/fd.h"
#include "base/text.h"
#include "switchml/switchml.h"

#define LINGER_NS (1 * SML_NS_PER_S) /* for the peer to read its last message and close */
#define STOP_NS (300 * SML_NS_PER_MS)
#define ACCEPT_PAUSE_NS (100 * SML_NS_PER_MS) /* after the system had no descriptor left */
#define ACCEPTS_PER_PASS 64u                  /* so that a flood of them does not starve members */

/* --- sockets --- */

static void free_conn(struct conn *c) {
  const int fd = c->fd;
  c->fd = -1; /* first: in the child of a fork the number may be another's already */
  c->state = CONN_FREE;
  sml_key_wipe(&c->buffers->channel, sizeof c->buffers->channel);
  sml_tcp_outlast(fd, 0); /* what the peer does not take any more is soon given up */
  close(fd);              /* leaves the epoll set by itself */
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
  /* A rank that is stopped for long reads nothing: it needs no second heartbeat, and no full buffer ends it. */
  if (message->kind == SML_CTL_HEARTBEAT && c->out_bytes > 0) return;
  size_t num_bytes =
      sml_channel_encode(&c->buffers->channel, message, c->buffers->out + c->out_bytes, OUT_BYTES - c->out_bytes);
  if (num_bytes == 0) {
    break_conn(c, SML_CLOSED_SLOW);
    return;
  }
  c->out_bytes += num_bytes;
  c->has_spoken = true;
  if (message->kind == SML_CTL_WELCOME) sml_tcp_outlast(c->fd, SML_MAX_LEASE_NS); /* a member's */
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
    [SML_NOTE_RANK_JOINED] = {"rank_joined", false},     [SML_NOTE_JOB_STARTED] = {"job_started", false},
    [SML_NOTE_RANK_LEFT] = {"rank_left", false},         [SML_NOTE_RANK_LOST] = {"rank_lost", true},
    [SML_NOTE_JOIN_REFUSED] = {"join_refused", true},    [SML_NOTE_JOB_REFUSED] = {"job_refused", true},
    [SML_NOTE_HOST_LIMITED] = {"host_limited", true},    [SML_NOTE_STATUS_REFUSED] = {"status_refused", true},
    [SML_NOTE_RANK_LATE] = {"rank_late", true},          [SML_NOTE_RANK_CALLED] = {"rank_called", true},
    [SML_NOTE_EPOCH_RENEWED] = {"epoch_renewed", false}, [SML_NOTE_NO_MULTICAST] = {"no_multicast", true},
    [SML_NOTE_EVICT_REFUSED] = {"evict_refused", true},  [SML_NOTE_JOB_ABORTED] = {"job_aborted", true},
    [SML_NOTE_JOB_ENDED] = {"job_ended", false},
};

static void pass_note(struct sml_aggd *a, const struct sml_effect *e) {
  sml_aggd_trace_note(&a->trace, e, a->now_ns);
  sml_history_note(&a->answers.history, e, a->now_ns);
  if (!a->options.on_note) return;
  struct sml_aggd_note note = {.name = note_names[e->note].name,
                               .is_warning = note_names[e->note].is_warning,
                               .job_name = e->job_name,
                               .key_name = e->key_name,
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
  struct sml_ctl_message m;
  if (sml_answers_report(&a->answers, e, a->now_ns, &m)) send_message(a, e->conn, &m);
}

/* False: an engine lacks memory for the effect's job. */
/* That of the HELLOs, or one of data. */
static bool begin_epoch(struct sml_aggd *a, const struct sml_effect *e) {
  struct sml_seal seal;
  sml_seal_set(&seal, e->key, e->secret);
  const bool has_begun = e->kind == SML_EFFECT_OPEN_JOB
                             ? sml_lanes_open_job(a->lanes, e->job, e->epoch, e->world_size, &seal)
                             : sml_lanes_start_job(a->lanes, e->job, e->world_size, &e->message->u.start, &seal);
  sml_key_wipe(&seal, sizeof seal);
  return has_begun;
}

/* Whoever answers on a connection is at its address. */
static bool expect_hello(struct sml_aggd *a, const struct sml_effect *e) {
  struct sockaddr_storage peer = {0};
  socklen_t peer_bytes = sizeof peer;
  struct sml_addr addr = {.num_bytes = 0};
  if (getpeername(a->conns[e->conn].fd, (struct sockaddr *)&peer, &peer_bytes) == 0) {
    addr.num_bytes = (uint8_t)sml_min_u64(peer_bytes, sizeof addr.bytes);
    memcpy(addr.bytes, &peer, addr.num_bytes);
  }
  return sml_lanes_expect_hello(a->lanes, e->job, e->rank, e->nonce, sml_addr_host(&addr));
}

static bool carry_out(struct sml_aggd *a, const struct sml_effect *e) {
  switch (e->kind) {
    case SML_EFFECT_SEND: send_message(a, e->conn, e->message); break;
    case SML_EFFECT_CLOSE: linger(a, e->conn); break;
    case SML_EFFECT_SET_KEY:
      sml_channel_set_key(&a->conns[e->conn].buffers->channel, e->key, e->worker_nonce, e->daemon_nonce);
      break;
    case SML_EFFECT_OPEN_JOB: return begin_epoch(a, e);
    case SML_EFFECT_EXPECT_HELLO: return expect_hello(a, e);
    case SML_EFFECT_FORGET_RANK: sml_lanes_forget_rank(a->lanes, e->job, e->rank); break;
    case SML_EFFECT_START_JOB: return begin_epoch(a, e);
    case SML_EFFECT_DEPART: sml_lanes_depart(a->lanes, e->job, e->ranks, e->world_size); break;
    case SML_EFFECT_CLOSE_JOB: sml_lanes_close_job(a->lanes, e->job); break;
    case SML_EFFECT_NOTE: pass_note(a, e); break;
    case SML_EFFECT_SHOW: show(a, e); break;
    case SML_EFFECT_REPORT: report(a, e); break;
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

static void refuse_at_the_door(int fd, const char *text) {
  struct sml_ctl_message m = {.kind = SML_CTL_REFUSE, .u.refuse.status = SML_ERR_REFUSED};
  uint8_t frame[SML_CTL_FRAME_BYTES + sizeof m];
  snprintf(m.u.refuse.detail, sizeof m.u.refuse.detail, "%s", text);
  size_t num_bytes = sml_ctl_encode(&m, frame, sizeof frame);
  if (send(fd, frame, num_bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return; /* it sees the close */
}

/* The log has one of them a second. */
static void note_turned_away(struct sml_aggd *a, struct turned_away *t, const char *name, const struct sml_addr *from,
                             const char *why) {
  char peer[SML_PEER_BYTES], text[256];
  t->num++;
  if (t->noted_ns != 0 && a->now_ns - t->noted_ns < SML_NS_PER_S) return;
  sml_addr_format(from, peer, sizeof peer);
  snprintf(text, sizeof text, "%s %s; %llu such connections", peer, why, (unsigned long long)t->num);
  const struct sml_aggd_note note = {.name = name, .is_warning = true, .job_name = "", .key_name = "", .text = text};
  if (a->options.on_note) a->options.on_note(a->options.user, &note);
  *t = (struct turned_away){.noted_ns = a->now_ns};
}

/* It hears its own address, which is all that a stranger is told. */
static void keep_out(struct sml_aggd *a, int fd, const struct sml_addr *from) {
  char peer[SML_PEER_BYTES], text[256];
  sml_addr_format(from, peer, sizeof peer);
  snprintf(text, sizeof text, "the aggregator takes no connection from %s: ask its operator for --allow", peer);
  refuse_at_the_door(fd, text);
  note_turned_away(a, &a->kept_out, "host_not_allowed", from, "is in no network of --allow");
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

/* Ends a connection that is only told good-bye, or the one that has been here longest and has not joined, or a job that
 * has waited for long. Ranks join as soon as they are connected, so strangers can't keep them out by being many. */
static bool make_room(struct sml_aggd *a) {
  const uint32_t num = a->options.max_connections;
  uint32_t leaving = num;
  for (uint32_t i = 0; i < num; i++) {
    const struct conn *c = &a->conns[i];
    bool is_first = leaving == num || c->linger_until_ns < a->conns[leaving].linger_until_ns;
    if (c->state == CONN_LINGERING && is_first) leaving = i;
  }
  if (leaving < num) {
    free_conn(&a->conns[leaving]);
    return true;
  }
  if (!sml_registry_on_full(a->registry, a->now_ns)) return false;
  drain_effects(a);
  for (uint32_t i = 0; i < num; i++)
    if (a->conns[i].state == CONN_LINGERING) free_conn(&a->conns[i]);
  return true;
}

/* A number for a new connection, or max_connections. */
static uint32_t find_room(struct sml_aggd *a) {
  const uint32_t i = find_free(a);
  return i < a->options.max_connections || !make_room(a) ? i : find_free(a);
}

/* Nobody was accepted. True: the next one may be. */
static bool recover(struct sml_aggd *a, int error) {
  /* The system has fewer descriptors for us than --max-connections. It says so even if nobody waits. In a rank's
   * process they are the program's, which may give some back. */
  struct pollfd listener = {.fd = a->listen_fd, .events = POLLIN};
  if (error == EMFILE && poll(&listener, 1, 0) == 0) return false;
  if (error == EMFILE && !a->options.is_embedded && make_room(a)) return true;
  if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) watch_listener(a, false);
  return error == ECONNABORTED || error == EINTR;
}

/* As the other ranks know it. */
static void name_peer(const struct sml_aggd *a, const struct sml_addr *addr, char peer[SML_PEER_BYTES]) {
  sml_addr_format(addr, peer, SML_PEER_BYTES);
  if (a->options.seen_at.num_bytes == 0 || !sml_text_is_loopback(peer)) return;
  struct sml_addr shown = a->options.seen_at;
  sml_addr_set_port(&shown, sml_addr_port(addr));
  sml_addr_format(&shown, peer, SML_PEER_BYTES);
}

static bool accept_one(struct sml_aggd *a) {
  struct sockaddr_storage from = {0};
  socklen_t from_bytes = sizeof from;
  int fd = sml_fd_raise(accept4(a->listen_fd, (struct sockaddr *)&from, &from_bytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd < 0) return recover(a, errno);
  struct sml_addr addr = {.num_bytes = (uint8_t)sml_min_u64(from_bytes, sizeof addr.bytes)};
  memcpy(addr.bytes, &from, addr.num_bytes);
  if (!sml_tenants_let_in(&a->tenants, &addr)) {
    keep_out(a, fd, &addr);
    close(fd);
    return true;
  }
  char peer[SML_PEER_BYTES];
  name_peer(a, &addr, peer);
  const bool is_admitted = sml_registry_admits(a->registry, peer, a->now_ns);
  drain_effects(a);
  if (!is_admitted) {
    close(fd);
    return true;
  }
  uint32_t i = find_room(a);
  int one = 1;
  struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
  if (i == a->options.max_connections || epoll_ctl(a->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
    refuse_at_the_door(fd,
                       "the aggregator has no room for another connection: wait for a job to end, or raise "
                       "--max-connections there");
    note_turned_away(a, &a->without_room, "connections_full", &addr, "found no room (--max-connections)");
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
    enum sml_ctl_decode verdict = sml_channel_decode(&c->buffers->channel, c->buffers->in + taken_bytes,
                                                     c->in_bytes - taken_bytes, &message, &consumed_bytes);
    if (verdict == SML_CTL_NEED_MORE) break;
    if (verdict == SML_CTL_DECODED) sml_registry_on_message(a->registry, i, &message, a->now_ns);
    else sml_registry_on_garbage(a->registry, i, verdict);
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
  if (is_open) break_conn(c, n == 0 ? SML_CLOSED_FIN : SML_CLOSED_RESET);
  else free_conn(c);
}

static void serve_conn(struct sml_aggd *a, uint32_t i, uint32_t events) {
  struct conn *c = &a->conns[i];
  if (c->state != CONN_FREE && (events & EPOLLOUT)) flush_conn(a, i);
  if (c->state == CONN_LINGERING && c->is_broken) free_conn(c);
  if (c->state != CONN_FREE && !c->is_broken) read_conn(a, i);
}

/* For people, about a running job; nothing if it has ended meanwhile. */
static void note_job(struct sml_aggd *a, const struct sml_aggregator_event *e, const char *name, bool is_warning,
                     const char *text) {
  struct sml_registry_look is;
  if (!a->options.on_note || !sml_registry_look(a->registry, e->job, a->now_ns, &is) || is.epoch != e->epoch) return;
  const struct sml_aggd_note note = {.name = name,
                                     .is_warning = is_warning,
                                     .job_name = is.name,
                                     .key_name = is.key_name,
                                     .job = e->job,
                                     .epoch = e->epoch,
                                     .world_size = is.world_size,
                                     .text = text};
  a->options.on_note(a->options.user, &note);
}

static void note_forged(struct sml_aggd *a, const struct sml_aggregator_event *e) {
  char source[SML_PEER_BYTES], text[256];
  sml_addr_format(&e->source, source, sizeof source);
  snprintf(text, sizeof text, "%llu datagrams came with a wrong MAC, the last from %s: somebody without its key sends",
           (unsigned long long)e->num_packets, source);
  note_job(a, e, "bad_key", true, text);
}

static void follow(struct sml_aggd *a, const struct sml_aggregator_event *e) {
  char text[128];
  if (!sml_lanes_follow(a->lanes, e->job, e->epoch)) {
    sml_registry_on_job_failed(a->registry, e->job, e->epoch, sml_lanes_failure(a->lanes));
    return;
  }
  snprintf(text, sizeof text, "rank %u's host is at port %u of the switch now", e->rank_a, e->slot);
  note_job(a, e, "host_moved", false, text);
}

/* A host in whose frames two ports of the switch take turns is worth a sentence. */
static void hear_host(struct sml_aggd *a, const struct sml_aggregator_event *e) {
  char why[512];
  if (!sml_lanes_hear(a->lanes, (uint64_t)e->rank_a << 16 | (e->rank_b & 0xffff), (uint16_t)e->slot, why, sizeof why))
    return;
  const struct sml_aggd_note note = {
      .name = "port_shut", .is_warning = true, .job_name = "", .key_name = "", .text = why};
  if (a->options.on_note) a->options.on_note(a->options.user, &note);
}

static void take_engine_events(struct sml_aggd *a) {
  uint64_t count;
  struct sml_aggregator_event e;
  if (read(a->event_fd, &count, sizeof count) < 0) return;
  sml_answers_serve(&a->answers, a->now_ns);
  while (sml_lanes_next_event(a->lanes, &e)) {
    switch (e.kind) {
      case SML_EVENT_MISMATCH: sml_registry_on_mismatch(a->registry, e.job, e.epoch, e.rank_a, e.rank_b); break;
      case SML_EVENT_BLOCKED: sml_registry_on_blocked(a->registry, e.job, e.epoch, e.rank_a); break;
      case SML_EVENT_JUMP: sml_registry_on_jump(a->registry, e.job, e.epoch, e.rank_a); break;
      case SML_EVENT_FORGED: note_forged(a, &e); break;
      case SML_EVENT_DEAF: sml_registry_on_deaf(a->registry, e.job, e.epoch, e.rank_a); break;
      case SML_EVENT_MOVED: follow(a, &e); break;
      case SML_EVENT_HEARD: hear_host(a, &e); break;
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
  for (uint32_t i = 0; i < a->options.max_connections; i++)
    if (a->conns[i].state == CONN_LINGERING) deadline_ns = sml_min_u64(deadline_ns, a->conns[i].linger_until_ns);
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
  /* A stop of this daemon is no silence of its ranks. What the timeout was rounded up by is no stop. */
  const uint64_t due_ns = deadline_ns < SML_NEVER ? deadline_ns + 2 * SML_NS_PER_MS : SML_NEVER;
  if (a->now_ns > due_ns) sml_registry_forgive(a->registry, a->now_ns - due_ns, a->now_ns);
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
  while (expire_lingering(a) && a->now_ns < deadline_ns) take_input(a, sml_min_u64(deadline_ns, next_deadline(a)));
  for (uint32_t i = 0; i < a->options.max_connections; i++)
    if (a->conns[i].state != CONN_FREE) free_conn(&a->conns[i]);
}

static void end_withdrawn(struct sml_aggd *a) {
  /* Pairs with sml_aggd_end_withdrawn. */
  if (!atomic_exchange_explicit(&a->should_end_withdrawn, false, memory_order_acquire)) return;
  while (sml_registry_on_withdrawn(a->registry)) drain_effects(a);
  report_broken(a);
}

void *sml_aggd_run(void *argument) {
  struct sml_aggd *a = argument;
  while (!atomic_load_explicit(&a->should_stop, memory_order_acquire)) { /* pairs with sml_aggd_stop */
    take_input(a, next_deadline(a));
    run_timers(a);
    end_withdrawn(a);
    if (!a->options.is_embedded) continue;
    atomic_store_explicit(&a->lowest_completed, sml_registry_lowest_completed(a->registry), memory_order_relaxed);
  }
  say_goodbye(a);
  return NULL;
}
