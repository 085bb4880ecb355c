/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/session.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/fork.h"
#include "core/wire.h"

_Static_assert(SML_CTL_CHECK_BYTES == SML_CHECK_BYTES, "");

static uint64_t draw(void *user) {
  (void)user;
  return sml_random_bits();
}

static uint32_t find_twin(void *user, const struct sml_ctl_welcome *welcome) {
  const struct sml_session *s = user;
  sml_fork_lock();
  const struct sml_session *other = s->options.control->sessions;
  sml_fork_unlock();
  for (; other; other = other->next) {
    const struct sml_member *m = &other->member;
    if (m->state < SML_MEMBER_PROBING || m->state > SML_MEMBER_RUNNING) continue;
    if (m->welcome.job == welcome->job && m->welcome.epoch == welcome->epoch &&
        sml_addr_equal(&other->aggregator, &s->aggregator))
      return m->options.join.rank;
  }
  return SML_MEMBER_NO_RANK;
}

void sml_session_init(struct sml_session *s, const struct sml_session_options *options) {
  memset(s, 0, sizeof *s);
  s->options = *options;
  s->aggregator = options->addrs[0];
  s->fd = -1;
  struct sml_member_options member = options->member;
  member.random = draw;
  member.find_twin = find_twin;
  member.user = s;
  sml_member_init(&s->member, &member);
}

bool sml_session_is_closed(const struct sml_session *s) {
  return s->member.state == SML_MEMBER_CLOSED;
}

/* ---- the descriptor ---- */

static void close_descriptor(struct sml_session *s) {
  if (s->fd < 0) return;
  /* By hand: it would stay in the set as long as a forked child has the descriptor. */
  if (s->watched_events != 0) epoll_ctl(s->options.control->epoll_fd, EPOLL_CTL_DEL, s->fd, NULL);
  s->watched_events = 0;
  sml_fork_lock();
  close(s->fd);
  s->fd = -1;
  sml_fork_unlock();
  s->rx_bytes = s->tx_bytes = 0;
}

static void watch(struct sml_session *s) {
  if (s->fd < 0) return;
  const bool wants_write = s->member.state == SML_MEMBER_CONNECTING || s->tx_bytes > 0;
  /* A connection at its end is always readable; it would keep the control thread spinning. */
  const uint32_t events = (s->member.has_eof ? 0 : EPOLLIN) | (wants_write ? EPOLLOUT : 0);
  if (events == s->watched_events) return;
  struct epoll_event event = {.events = events};
  const int verb = s->watched_events == 0 ? EPOLL_CTL_ADD : events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
  epoll_ctl(s->options.control->epoll_fd, verb, s->fd, &event);
  s->watched_events = events;
}

static void flush(struct sml_session *s) {
  if (s->fd < 0 || s->member.state == SML_MEMBER_CONNECTING) return;
  size_t sent_bytes = 0;
  while (sent_bytes < s->tx_bytes) {
    const ssize_t n = send(s->fd, s->tx + sent_bytes, s->tx_bytes - sent_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break; /* full, or broken: then reading says so */
    sent_bytes += (size_t)n;
  }
  s->tx_bytes -= sent_bytes;
  memmove(s->tx, s->tx + sent_bytes, s->tx_bytes);
}

void sml_session_send(struct sml_session *s, const struct sml_ctl_message *message) {
  if (s->fd < 0 || s->member.state == SML_MEMBER_CONNECTING) return;
  s->tx_bytes += sml_channel_encode(&s->channel, message, s->tx + s->tx_bytes, sizeof s->tx - s->tx_bytes);
  flush(s);
}

/* ---- connecting ---- */

static void choose_address(struct sml_session *s, uint32_t address) {
  const struct sml_session_options *o = &s->options;
  char text[64], name[SML_MEMBER_ADDRESS_BYTES];
  s->aggregator = o->addrs[address];
  if (o->process_rank == SML_NO_PROCESS_RANK) return;
  sml_addr_format(&s->aggregator, text, sizeof text);
  snprintf(name, sizeof name, "%s (in rank %u)", text, o->process_rank);
  sml_member_name_aggregator(&s->member, name);
}

static void begin_attempt(struct sml_session *s, uint32_t address, uint64_t now_ns) {
  choose_address(s, address);
  const struct sockaddr *addr = (const struct sockaddr *)(const void *)s->aggregator.bytes;
  char why[160];
  sml_fork_lock();
  s->fd = sml_fd_raise(socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sml_fork_unlock();
  if (s->fd < 0) {
    const int error = errno;
    snprintf(why, sizeof why, "opening a socket failed: %s%s", strerror(error),
             error == EMFILE ? "; raise the limit of open files (ulimit -n)" : "");
    sml_member_on_no_socket(&s->member, why, now_ns);
    return;
  }
  const int one = 1;
  setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  sml_tcp_outlast(s->fd, s->member.options.join.lease_ns);
  s->rx_bytes = s->tx_bytes = 0;
  sml_channel_init(&s->channel, false);
  if (connect(s->fd, addr, s->aggregator.num_bytes) != 0 && errno != EINPROGRESS)
    sml_member_on_attempt_failed(&s->member, strerror(errno), now_ns);
}

/* A loopback connect to a port without a listener may, by chance, get that port as its own and meet
 * itself. */
static bool is_self_connected(const struct sml_session *s) {
  struct sockaddr_storage local, remote;
  socklen_t local_bytes = sizeof local, remote_bytes = sizeof remote;
  memset(&local, 0, sizeof local);
  memset(&remote, 0, sizeof remote);
  if (getsockname(s->fd, (struct sockaddr *)&local, &local_bytes) != 0) return false;
  if (getpeername(s->fd, (struct sockaddr *)&remote, &remote_bytes) != 0) return false;
  return local_bytes == remote_bytes && memcmp(&local, &remote, local_bytes) == 0;
}

static void finish_attempt(struct sml_session *s, uint64_t now_ns) {
  struct pollfd p = {.fd = s->fd, .events = POLLOUT};
  if (poll(&p, 1, 0) <= 0) return;
  int error = 0;
  socklen_t error_bytes = sizeof error;
  getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes);
  if (error == 0 && is_self_connected(s)) error = ECONNREFUSED;
  if (error != 0) sml_member_on_attempt_failed(&s->member, strerror(error), now_ns);
  else sml_member_on_connected(&s->member, now_ns);
}

/* ---- probing ---- */

static void wake_control(void *user) {
  sml_control_wake(user);
}

void sml_session_seal(const struct sml_session *s, uint32_t epoch, const uint64_t secret[2],
                      struct sml_seal *seal_out) {
  const struct sml_member *m = &s->member;
  struct sml_key key =
      sml_ctl_data_key(&s->options.key, m->options.join.job_name, m->welcome.job, epoch, m->welcome.salt);
  sml_seal_set(seal_out, m->options.is_keyed ? &key : NULL, secret);
  sml_key_wipe(&key, sizeof key);
}

static void probe(struct sml_session *s, uint64_t now_ns) {
  const struct sml_member *m = &s->member;
  struct sml_seal seal;
  sml_session_seal(s, m->welcome.epoch, m->welcome.secret, &seal);
  const struct sml_prober_options options = {.rank = m->options.join.rank,
                                             .aggregator = &s->aggregator,
                                             .max_datagram_bytes = sml_member_probe_bytes(m),
                                             .is_only_size = m->only_datagram_bytes != 0,
                                             .seal = &seal,
                                             .no_multicast = s->options.no_multicast};
  s->prober.engines = s->options.engines;
  s->prober.wake = wake_control;
  s->prober.user = s->options.control;
  sml_prober_start(&s->prober, &m->welcome, &options, now_ns);
  sml_key_wipe(&seal, sizeof seal);
}

static void poll_prober(struct sml_session *s, uint64_t now_ns) {
  struct sml_ctl_probed probed = {.datagram_bytes = 0};
  const uint64_t heard_ns = s->member.last_heard_ns;
  if (sml_prober_poll(&s->prober, heard_ns, now_ns, &probed.datagram_bytes) != SML_PROBER_DONE) return;
  probed.rtt_ns = s->prober.rtt_ns;
  probed.hearing = (uint32_t)sml_prober_hearing(&s->prober);
  sml_member_on_probed(&s->member, &probed);
}

/* ---- effects ---- */

static void say(struct sml_session *s, enum sml_ctl_kind kind) {
  struct sml_ctl_message message;
  sml_member_compose(&s->member, kind, &message);
  sml_session_send(s, &message);
}

static void carry_out(struct sml_session *s, uint64_t now_ns) {
  const struct sml_member_effect *e;
  while ((e = sml_member_next_effect(&s->member)) != NULL)
    if (e->kind == SML_MEMBER_CONNECT) begin_attempt(s, e->address, now_ns);
    else if (e->kind == SML_MEMBER_SEND) say(s, e->sent);
    else if (e->kind == SML_MEMBER_SET_KEY)
      sml_channel_set_key(&s->channel, &s->options.key, s->member.options.join.nonce, s->member.challenge.nonce);
    else if (e->kind == SML_MEMBER_FINISH) shutdown(s->fd, SHUT_WR);
    else if (e->kind == SML_MEMBER_CLOSE) close_descriptor(s);
    else if (e->kind == SML_MEMBER_PROBE) probe(s, now_ns);
    else if (e->kind == SML_MEMBER_CANCEL_PROBE) sml_prober_cancel(&s->prober);
    else if (e->kind == SML_MEMBER_LEAVE_GROUPS) sml_prober_leave_groups(&s->prober);
    else s->options.events->told(s->options.user, e);
}

/* ---- messages ---- */

static void take_messages(struct sml_session *s, uint64_t now_ns) {
  size_t used_bytes = 0;
  while (s->fd >= 0) {
    struct sml_ctl_message m;
    size_t consumed_bytes;
    const enum sml_ctl_decode verdict =
        sml_channel_decode(&s->channel, s->rx + used_bytes, s->rx_bytes - used_bytes, &m, &consumed_bytes);
    if (verdict == SML_CTL_NEED_MORE) break;
    if (verdict == SML_CTL_DECODED) {
      used_bytes += consumed_bytes;
      sml_member_on_message(&s->member, &m, now_ns);
    } else {
      used_bytes = s->rx_bytes;
      sml_member_on_garbage(&s->member, verdict, now_ns);
    }
    carry_out(s, now_ns);
  }
  if (s->fd < 0) return;
  s->rx_bytes -= used_bytes;
  memmove(s->rx, s->rx + used_bytes, s->rx_bytes);
}

static void receive(struct sml_session *s, uint64_t now_ns) {
  while (s->fd >= 0 && !s->member.has_eof) {
    const ssize_t n = recv(s->fd, s->rx + s->rx_bytes, sizeof s->rx - s->rx_bytes, MSG_DONTWAIT);
    if (n > 0) {
      sml_member_on_bytes(&s->member, now_ns);
      s->rx_bytes += (size_t)n;
      take_messages(s, now_ns); /* consumes at least one message of a full buffer, or ends */
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    sml_member_on_closed(&s->member, n == 0 ? "end of stream" : strerror(errno), now_ns);
    carry_out(s, now_ns);
  }
}

/* ---- a pass ---- */

uint64_t sml_session_service(struct sml_session *s, uint64_t now_ns) {
  struct sml_member *m = &s->member;
  /* What the timeout was rounded up by is no stop of this process. */
  const uint64_t stopped_ns = s->due_ns != 0 && now_ns > s->due_ns ? now_ns - s->due_ns : 0;
  if (stopped_ns > 2 * SML_NS_PER_MS) sml_member_forgive(m, stopped_ns, now_ns);
  const uint64_t tick_ns = s->options.events->tick(s->options.user, now_ns);
  sml_member_on_attempt_due(m, now_ns);
  carry_out(s, now_ns);
  if (m->state == SML_MEMBER_CONNECTING) finish_attempt(s, now_ns);
  carry_out(s, now_ns);
  flush(s);
  if (m->state >= SML_MEMBER_JOINING) receive(s, now_ns);
  struct sml_member_progress progress = {.is_stuck = s->tx_bytes > 0};
  s->options.events->fill_progress(s->options.user, &progress);
  sml_member_on_timer(m, &progress, now_ns);
  carry_out(s, now_ns);
  poll_prober(s, now_ns);
  carry_out(s, now_ns);
  watch(s);
  s->due_ns = sml_min_u64(tick_ns, sml_member_next_deadline(m));
  return s->due_ns;
}
