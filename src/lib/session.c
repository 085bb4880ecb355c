/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/session.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "core/wire.h"
#include "ctl/contributors.h"
#include "meet/job_settings.h"
#include "process/fork.h"

#define RETRY_NS (100 * SML_NS_PER_MS)
#define ATTEMPT_NS (3 * SML_NS_PER_S)
#define ATTEMPT_OF_SEVERAL_NS (1 * SML_NS_PER_S)
/* The aggregator gives up at the deadline too, and knows who is missing: let its answer come first. */
#define ANSWER_GRACE_NS (1 * SML_NS_PER_S)
#define LEAVE_NS (1 * SML_NS_PER_S)

void sml_session_init(struct sml_session *s, const struct sml_session_options *options) {
  memset(s, 0, sizeof *s);
  s->options = *options;
  s->state = SML_SESSION_WAITING;
  s->fd = -1;
}

bool sml_session_is_closed(const struct sml_session *s) {
  return s->state == SML_SESSION_CLOSED;
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
  const bool wants_write = s->state == SML_SESSION_CONNECTING || s->tx_bytes > 0;
  /* A connection at its end is always readable; it would keep the control thread spinning. */
  const uint32_t events = (s->has_eof ? 0 : EPOLLIN) | (wants_write ? EPOLLOUT : 0);
  if (events == s->watched_events) return;
  struct epoll_event event = {.events = events};
  const int verb = s->watched_events == 0 ? EPOLL_CTL_ADD : events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
  epoll_ctl(s->options.control->epoll_fd, verb, s->fd, &event);
  s->watched_events = events;
}

static void flush(struct sml_session *s) {
  if (s->fd < 0 || s->state == SML_SESSION_CONNECTING) return;
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
  if (s->fd < 0 || s->state == SML_SESSION_CONNECTING) return;
  s->tx_bytes += sml_channel_encode(&s->channel, message, s->tx + s->tx_bytes, sizeof s->tx - s->tx_bytes);
  flush(s);
}

/* ---- ends ---- */

__attribute__((format(printf, 3, 4))) static void end(struct sml_session *s, sml_status status,
                                                      const char *format, ...) {
  struct sml_ctl_abort failure = {.status = status};
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(failure.detail, sizeof failure.detail, format, arguments);
  va_end(arguments);
  close_descriptor(s);
  s->state = SML_SESSION_OVER;
  s->options.events->ended(s->options.user, &failure);
}

/* An attempt failed before anything was promised: again, until the join's deadline. */
__attribute__((format(printf, 3, 4))) static void retry(struct sml_session *s, uint64_t now_ns,
                                                        const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(s->attempt_failure, sizeof s->attempt_failure, format, arguments);
  va_end(arguments);
  close_descriptor(s);
  s->state = SML_SESSION_WAITING;
  s->attempt_ns = now_ns + RETRY_NS;
}

void sml_session_leave(struct sml_session *s, uint64_t now_ns) {
  if (s->state >= SML_SESSION_LEAVING) return;
  if (s->fd >= 0 && s->state >= SML_SESSION_JOINING && !s->has_eof) {
    sml_session_send(s, &(struct sml_ctl_message){.kind = SML_CTL_GOODBYE});
    shutdown(s->fd, SHUT_WR); /* behind what the kernel has taken */
    s->leave_deadline_ns = now_ns + LEAVE_NS;
    s->state = SML_SESSION_LEAVING;
  } else {
    close_descriptor(s);
    s->state = SML_SESSION_CLOSING;
  }
  sml_prober_cancel(&s->prober);
}

void sml_session_give_up(struct sml_session *s) {
  if (s->state >= SML_SESSION_OVER) return;
  if (s->state < SML_SESSION_PROBING) close_descriptor(s);
  s->state = SML_SESSION_OVER;
}

/* ---- joining again ---- */

static uint32_t overhead_bytes(const struct sml_session *s) {
  const bool is_checked = (s->options.join.features & SML_FEATURE_CHECK) != 0;
  return sml_head_bytes(s->options.is_keyed) + (is_checked ? SML_CHECK_BYTES : 0);
}

void sml_session_join_anew(struct sml_session *s, uint64_t now_ns) {
  s->attempt_failure[0] = 0;
  s->attempt_ns = now_ns + RETRY_NS;
  close_descriptor(s);
  sml_prober_cancel(&s->prober);
  s->state = SML_SESSION_CLEARING;
}

void sml_session_rejoin(struct sml_session *s, const struct sml_session_resume *resume, uint64_t now_ns) {
  struct sml_ctl_join *join = &s->options.join;
  join->features &= ~SML_FEATURE_NO_RESULT;
  if (resume->has_no_result) join->features |= SML_FEATURE_NO_RESULT;
  join->resume_operation = resume->resume_operation;
  join->oldest_operation = resume->oldest_operation;
  join->resume_chunk_bytes = resume->chunk_bytes;
  join->num_slots = resume->num_slots;
  s->only_datagram_bytes = resume->chunk_bytes + overhead_bytes(s);
  s->options.deadline_ns = resume->deadline_ns;
  sml_session_join_anew(s, now_ns);
}

/* ---- connecting ---- */

static void send_join(struct sml_session *s, uint64_t now_ns) {
  struct sml_ctl_join *join = &s->options.join;
  join->join_timeout_ns = s->options.deadline_ns > now_ns ? s->options.deadline_ns - now_ns : 1;
  for (size_t i = 0; s->options.is_keyed && i < SML_ARRAY_LEN(join->nonce); i++)
    join->nonce[i] = sml_random_bits();
  s->state = SML_SESSION_JOINING;
  sml_session_send(s, &(struct sml_ctl_message){.kind = SML_CTL_JOIN, .u.join = *join});
}

static void choose_address(struct sml_session *s) {
  struct sml_session_options *o = &s->options;
  if (o->num_addrs == 0) return;
  char text[64];
  o->aggregator = o->addrs[s->num_attempts % o->num_addrs];
  sml_addr_format(&o->aggregator, text, sizeof text);
  snprintf(o->aggregator_text, sizeof o->aggregator_text, "%s (in rank %u)", text, o->host_rank);
}

static void begin_attempt(struct sml_session *s, uint64_t now_ns) {
  choose_address(s);
  s->num_attempts++;
  const struct sockaddr *addr = (const struct sockaddr *)(const void *)s->options.aggregator.bytes;
  sml_fork_lock();
  s->fd = sml_fd_raise(socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sml_fork_unlock();
  if (s->fd < 0) {
    retry(s, now_ns, "opening a socket failed: %s", strerror(errno));
    return;
  }
  const int one = 1;
  setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  sml_tcp_outlast(s->fd, s->options.join.lease_ns);
  s->has_eof = s->was_challenged = s->was_welcomed = s->wants_report = false;
  s->num_asked = 0;
  s->rx_bytes = s->tx_bytes = 0;
  sml_channel_init(&s->channel, false);
  s->state = SML_SESSION_CONNECTING;
  s->attempt_ns = now_ns + (s->options.num_addrs > 1 ? ATTEMPT_OF_SEVERAL_NS : ATTEMPT_NS);
  if (connect(s->fd, addr, s->options.aggregator.num_bytes) != 0 && errno != EINPROGRESS)
    retry(s, now_ns, "%s", strerror(errno));
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
  if (poll(&p, 1, 0) <= 0) {
    if (now_ns >= s->attempt_ns) retry(s, now_ns, "no answer to the connection request");
    return;
  }
  int error = 0;
  socklen_t error_bytes = sizeof error;
  getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes);
  if (error != 0) {
    retry(s, now_ns, "%s", strerror(error));
  } else if (is_self_connected(s)) {
    retry(s, now_ns, "%s", strerror(ECONNREFUSED));
  } else {
    send_join(s, now_ns);
  }
}

/* ---- messages ---- */

static void wake_control(void *user) {
  sml_control_wake(user);
}

/* Another rank of the same job on the same context. They would share data ports, and one result for both
 * cannot be told apart from two of the same. */
static const struct sml_session *find_twin(const struct sml_session *s,
                                           const struct sml_ctl_welcome *welcome) {
  sml_fork_lock();
  const struct sml_session *other = s->options.control->sessions;
  sml_fork_unlock();
  for (; other; other = other->next) {
    if (other->state < SML_SESSION_PROBING || other->state > SML_SESSION_RUNNING) continue;
    if (other->welcome.job == welcome->job && other->welcome.epoch == welcome->epoch &&
        sml_addr_equal(&other->options.aggregator, &s->options.aggregator))
      return other;
  }
  return NULL;
}

void sml_session_seal(const struct sml_session *s, uint32_t epoch, const uint64_t secret[2],
                      struct sml_seal *seal_out) {
  sml_seal_set(seal_out, NULL, secret);
  if (!s->options.is_keyed) return;
  seal_out->is_keyed = true;
  seal_out->key = sml_ctl_data_key(&s->options.key, s->options.join.job_name, s->welcome.job, epoch, s->welcome.salt);
}

static void take_challenge(struct sml_session *s, const struct sml_ctl_challenge *challenge) {
  s->was_challenged = true;
  sml_channel_set_key(&s->channel, &s->options.key, s->options.join.nonce, challenge->nonce);
  sml_session_send(s, &(struct sml_ctl_message){.kind = SML_CTL_AUTH});
}

static void probe(struct sml_session *s, uint64_t now_ns) {
  struct sml_seal seal;
  sml_session_seal(s, s->welcome.epoch, s->welcome.secret, &seal);
  const uint32_t only_bytes = s->only_datagram_bytes;
  const struct sml_prober_options options = {
      .rank = s->options.join.rank,
      .aggregator = &s->options.aggregator,
      .max_datagram_bytes = only_bytes != 0 ? only_bytes : s->options.join.max_datagram_bytes,
      .is_only_size = only_bytes != 0,
      .seal = &seal,
      .no_multicast = s->options.no_multicast};
  s->prober.engines = s->options.engines;
  s->prober.wake = wake_control;
  s->prober.user = s->options.control;
  sml_prober_start(&s->prober, &s->welcome, &options, now_ns);
  sml_key_wipe(&seal, sizeof seal);
}

static void take_welcome(struct sml_session *s, const struct sml_ctl_welcome *welcome, uint64_t now_ns) {
  if (s->options.is_keyed && !s->was_challenged) {
    end(s, SML_ERR_KEY,
        "the aggregator at %s did not ask for a proof of key '%s': it has no keys, or is not the one that is "
        "meant",
        s->options.aggregator_text, s->options.join.key_name);
    return;
  }
  const struct sml_session *twin = find_twin(s, welcome);
  if (twin != NULL) {
    end(s, SML_ERR_INVALID_ARGUMENT,
        "ranks %u and %u of job '%s' are on one context: give each rank a context of its own",
        twin->options.join.rank, s->options.join.rank, s->options.join.job_name);
    return;
  }
  if (welcome->num_lanes > s->options.join.num_lanes) {
    end(s, SML_ERR_PROTOCOL, "the aggregator at %s gave %u lanes where %u were offered",
        s->options.aggregator_text, welcome->num_lanes, s->options.join.num_lanes);
    return;
  }
  s->welcome = *welcome;
  s->was_welcomed = true;
  s->last_heard_ns = s->next_heartbeat_ns = now_ns;
  s->state = SML_SESSION_PROBING;
  probe(s, now_ns);
}

static bool is_lead(const struct sml_session *s, const struct sml_ctl_start *start) {
  const uint32_t rank = s->options.join.rank;
  return sml_contributor_lead(start, sml_contributor_of(start, rank)) == rank;
}

/* The table is that of this job, and lets nobody contribute for a rank that has not asked for it, nor add up in memory
 * that this rank has not offered. */
static bool has_agreed_contributors(const struct sml_ctl_join *join, const struct sml_ctl_start *start) {
  if (start->is_one_host && (join->host[0] | join->host[1]) == 0) return false;
  if (start->num_ranks == 0) return true;
  if (start->num_ranks != join->world_size) return false;
  return join->is_combining || sml_contributor_ranks(start, start->contributors[join->rank], NULL, 0) == 1;
}

/* Who does not send has no path that would be too small, and hears no results. */
static bool has_agreed_path(const struct sml_session *s, const struct sml_ctl_start *start) {
  if (!is_lead(s, start)) return true;
  if (start->is_multicast && !s->prober.hears_group) return false;
  return start->chunk_bytes + overhead_bytes(s) <= s->datagram_bytes;
}

/* Switch format is the aggregator's choice, where the job can be in it. */
static bool has_agreed_features(const struct sml_session *s, const struct sml_ctl_start *start) {
  const struct sml_ctl_join *join = &s->options.join;
  if ((start->features ^ join->features) & ~SML_FEATURES_OF_RANKS) return false;
  if ((start->features & SML_FEATURE_SWITCH) == 0) return true;
  return (join->features & (SML_FEATURE_SWITCH | SML_FEATURE_RETRY)) == SML_FEATURE_SWITCH && !s->options.is_keyed &&
         join->num_shards <= 1 && !start->is_multicast &&
         sml_contributors_count(start, join->world_size) <= SML_CTL_SWITCH_MAX_CONTRIBUTORS;
}

static void take_start(struct sml_session *s, const struct sml_ctl_start *start) {
  const uint32_t num_asked = s->options.join.num_slots;
  if (!has_agreed_contributors(&s->options.join, start) || !has_agreed_path(s, start) ||
      start->num_lanes > s->welcome.num_lanes || (num_asked != 0 && start->num_slots > num_asked) ||
      !has_agreed_features(s, start)) {
    end(s, SML_ERR_PROTOCOL,
        "the aggregator at %s started the job with %u lanes, %u slots, chunks of %u bytes and features %x, "
        "which are not what was agreed",
        s->options.aggregator_text, start->num_lanes, start->num_slots, start->chunk_bytes, start->features);
    return;
  }
  if (!start->is_multicast || !is_lead(s, start)) sml_prober_leave_groups(&s->prober);
  s->state = SML_SESSION_RUNNING;
  s->options.events->started(s->options.user, start);
}

static void take_abort(struct sml_session *s, const struct sml_ctl_abort *abort) {
  s->state = SML_SESSION_OVER; /* the connection stays, to say goodbye */
  s->options.events->ended(s->options.user, abort);
}

static void take_message(struct sml_session *s, const struct sml_ctl_message *m, uint64_t now_ns) {
  const enum sml_session_state state = s->state;
  if (state >= SML_SESSION_OVER) return;
  if (m->kind == SML_CTL_REFUSE) {
    end(s, (sml_status)m->u.refuse.status, "%s", m->u.refuse.detail);
  } else if (m->kind == SML_CTL_CHALLENGE && state == SML_SESSION_JOINING && s->options.is_keyed &&
             !s->was_challenged) {
    take_challenge(s, &m->u.challenge);
  } else if (m->kind == SML_CTL_WELCOME && state == SML_SESSION_JOINING) {
    take_welcome(s, &m->u.welcome, now_ns);
  } else if (m->kind == SML_CTL_START && (state == SML_SESSION_PROBED || state == SML_SESSION_RUNNING)) {
    take_start(s, &m->u.start);
  } else if (m->kind == SML_CTL_ABORT && state > SML_SESSION_JOINING) {
    take_abort(s, &m->u.abort);
  } else if (m->kind == SML_CTL_RANK_GONE && state > SML_SESSION_JOINING) {
    s->options.events->rank_gone(s->options.user, &m->u.rank_gone);
  } else if (m->kind == SML_CTL_REPORT && s->num_asked > 0) {
    s->num_asked--;
    s->options.events->reported(s->options.user, &m->u.report);
  } else if (m->kind == SML_CTL_HEARTBEAT) {
    if (state == SML_SESSION_RUNNING) s->options.events->heartbeat(s->options.user, &m->u.heartbeat);
  } else {
    end(s, SML_ERR_PROTOCOL, "the aggregator at %s sent a control message (%d) out of place",
        s->options.aggregator_text, (int)m->kind);
  }
}

static void end_for_garbage(struct sml_session *s, enum sml_ctl_decode verdict) {
  const char *who = s->options.aggregator_text;
  if (verdict == SML_CTL_BAD_VERSION)
    end(s, SML_ERR_VERSION,
        "the aggregator at %s speaks another version of the control protocol than "
        "libswitchml %s: update one of them",
        who, SML_VERSION_TEXT);
  else if (verdict == SML_CTL_BAD_TAG && s->state == SML_SESSION_JOINING)
    end(s, SML_ERR_KEY, "the aggregator at %s has another key '%s' than this rank: compare the key files",
        who, s->options.join.key_name);
  else if (verdict == SML_CTL_BAD_TAG)
    end(s, SML_ERR_KEY,
        "a control message that seems to come from the aggregator at %s is not authentic: "
        "somebody else writes into the connection",
        who);
  else
    end(s, SML_ERR_PROTOCOL,
        "what answers at %s is not a switchmld (its answer makes no sense): check the address", who);
}

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
      take_message(s, &m, now_ns);
      continue;
    }
    if (s->state == SML_SESSION_JOINING && s->options.num_addrs > 1) {
      retry(s, now_ns, "what answers there is another service"); /* whose host has an address like that one's */
      return;
    }
    if (s->state < SML_SESSION_OVER) end_for_garbage(s, verdict);
    s->rx_bytes = 0;
    return;
  }
  if (s->fd < 0) return;
  s->rx_bytes -= used_bytes;
  memmove(s->rx, s->rx + used_bytes, s->rx_bytes);
}

static void take_eof(struct sml_session *s, const char *reason, uint64_t now_ns) {
  s->has_eof = true;
  if (s->state <= SML_SESSION_JOINING) {
    retry(s, now_ns, "it closed the connection without an answer (%s)", reason);
  } else if (s->state < SML_SESSION_OVER) {
    end(s, SML_ERR_AGGREGATOR_LOST,
        "the aggregator at %s closed the control connection (%s)%s: it has ended or was "
        "restarted",
        s->options.aggregator_text, reason, s->state < SML_SESSION_RUNNING ? " before the job had started" : "");
  } else {
    close_descriptor(s);
  }
}

static void receive(struct sml_session *s, uint64_t now_ns) {
  while (s->fd >= 0 && !s->has_eof) {
    const ssize_t n = recv(s->fd, s->rx + s->rx_bytes, sizeof s->rx - s->rx_bytes, MSG_DONTWAIT);
    if (n > 0) {
      s->last_heard_ns = now_ns;
      s->rx_bytes += (size_t)n;
      take_messages(s, now_ns); /* consumes at least one message of a full buffer, or ends */
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    take_eof(s, n == 0 ? "end of stream" : strerror(errno), now_ns);
  }
}

/* ---- time ---- */

/* However short the lease: an aggregator has more to do than one rank. */
static uint64_t lost_ns(const struct sml_session *s) {
  return sml_max_u64(s->options.join.lease_ns, SML_CTL_LATE_NS);
}

/* Datagrams of the aggregator's are signs of life as good as its messages. */
static void listen_to_data(struct sml_session *s, uint64_t now_ns) {
  if (s->state != SML_SESSION_RUNNING) return;
  const uint64_t num_packets = s->options.events->count_packets(s->options.user);
  if (num_packets == s->num_packets) return;
  s->num_packets = num_packets;
  s->last_heard_ns = now_ns;
}

static void watch_silence(struct sml_session *s, uint64_t now_ns) {
  const bool is_silent = s->state == SML_SESSION_RUNNING && now_ns >= s->last_heard_ns + SML_CTL_LATE_NS;
  if (is_silent && s->silent_since_ns == 0) {
    s->silent_since_ns = s->last_heard_ns;
    s->options.events->silent(s->options.user, s->silent_since_ns);
  } else if (!is_silent && s->silent_since_ns != 0) {
    const uint64_t since_ns = s->silent_since_ns;
    s->silent_since_ns = 0;
    if (s->state == SML_SESSION_RUNNING) s->options.events->heard(s->options.user, since_ns);
  }
}

static void beat(struct sml_session *s, uint64_t now_ns) {
  if (s->fd < 0 || s->state < SML_SESSION_PROBING || s->state > SML_SESSION_OVER) return;
  if (now_ns < s->next_heartbeat_ns) return;
  s->next_heartbeat_ns = now_ns + sml_ctl_heartbeat_ns(s->options.join.lease_ns);
  listen_to_data(s, now_ns);
  if (s->tx_bytes > 0) return; /* the connection is stuck: more of the same does not help */
  struct sml_ctl_message m = {.kind = SML_CTL_HEARTBEAT};
  s->options.events->fill_heartbeat(s->options.user, &m.u.heartbeat);
  const bool has_news = m.u.heartbeat.operations_completed != s->told_operation;
  s->told_operation = m.u.heartbeat.operations_completed;
  if (has_news && s->options.busy_heartbeat_ns != 0)
    s->next_heartbeat_ns = sml_min_u64(s->next_heartbeat_ns, now_ns + s->options.busy_heartbeat_ns);
  sml_session_send(s, &m);
}

void sml_session_hasten_heartbeat(struct sml_session *s) {
  s->next_heartbeat_ns = 0;
}

void sml_session_ask(struct sml_session *s) {
  s->wants_report = true;
}

/* Behind a heartbeat: the aggregator is to know what this rank has called. */
static void ask(struct sml_session *s, uint64_t now_ns) {
  if (!s->wants_report || s->state != SML_SESSION_RUNNING) return;
  s->wants_report = false;
  s->next_heartbeat_ns = 0;
  beat(s, now_ns);
  if (s->tx_bytes > 0) return; /* stuck, as in beat() */
  s->num_asked++;
  sml_session_send(s, &(struct sml_ctl_message){.kind = SML_CTL_ASK});
}

static void check_deadlines(struct sml_session *s, uint64_t now_ns) {
  const uint64_t deadline_ns = s->options.deadline_ns;
  if (s->state <= SML_SESSION_JOINING && now_ns >= deadline_ns) {
    if (s->state == SML_SESSION_JOINING) {
      end(s, SML_ERR_UNREACHABLE, "%s accepted the connection but did not answer: is it a switchmld?",
          s->options.aggregator_text);
    } else {
      end(s, SML_ERR_UNREACHABLE, "no aggregator at %s: %s; is switchmld running there?",
          s->options.aggregator_text,
          s->attempt_failure[0] ? s->attempt_failure : "no answer to the connection request");
    }
  } else if (s->state < SML_SESSION_RUNNING && now_ns >= deadline_ns + ANSWER_GRACE_NS) {
    end(s, SML_ERR_TIMEOUT,
        "not all %u ranks of job '%s' joined in time: start the missing ones, or raise "
        "join_timeout_ns",
        s->options.join.world_size, s->options.join.job_name);
  } else if (s->state == SML_SESSION_RUNNING && now_ns >= s->last_heard_ns + lost_ns(s)) {
    listen_to_data(s, now_ns);
    if (s->last_heard_ns == now_ns) return;
    end(s, SML_ERR_AGGREGATOR_LOST,
        "the aggregator at %s has been silent for %.1f s: it is stopped or cut off",
        s->options.aggregator_text, (double)(now_ns - s->last_heard_ns) / 1e9);
  }
}

static void poll_prober(struct sml_session *s, uint64_t now_ns) {
  uint32_t datagram_bytes;
  if (sml_prober_poll(&s->prober, now_ns, &datagram_bytes) != SML_PROBER_DONE) return;
  if (s->state == SML_SESSION_PROBING) {
    s->datagram_bytes = datagram_bytes;
    s->state = SML_SESSION_PROBED;
    const struct sml_ctl_probed probed = {.datagram_bytes = datagram_bytes,
                                          .rtt_ns = s->prober.rtt_ns,
                                          .hearing = (uint32_t)sml_prober_hearing(&s->prober)};
    sml_session_send(s, &(struct sml_ctl_message){.kind = SML_CTL_PROBED, .u.probed = probed});
  } else if (s->state == SML_SESSION_CLEARING) {
    sml_prober_leave_groups(&s->prober);
    s->state = SML_SESSION_WAITING;
  } else if (s->state == SML_SESSION_CLOSING) {
    sml_prober_leave_groups(&s->prober);
    s->state = SML_SESSION_CLOSED;
  }
}

static uint64_t next_deadline(const struct sml_session *s) {
  uint64_t deadline_ns = SML_NEVER;
  if (s->state == SML_SESSION_WAITING || s->state == SML_SESSION_CONNECTING) deadline_ns = s->attempt_ns;
  if (s->state <= SML_SESSION_JOINING) return sml_min_u64(deadline_ns, s->options.deadline_ns);
  if (s->state == SML_SESSION_LEAVING) return s->leave_deadline_ns;
  if (s->fd >= 0 && s->state <= SML_SESSION_OVER) deadline_ns = s->next_heartbeat_ns;
  if (s->state < SML_SESSION_RUNNING)
    return sml_min_u64(deadline_ns, s->options.deadline_ns + ANSWER_GRACE_NS);
  if (s->state == SML_SESSION_RUNNING) return sml_min_u64(deadline_ns, s->last_heard_ns + lost_ns(s));
  return deadline_ns; /* OVER and CLOSING wait for others, who wake */
}

/* Silence counts only while somebody listens: time by which a pass came too late was one in which this
 * process, or the whole machine, did not run, and then the aggregator may not have run either. */
static void forgive_own_absence(struct sml_session *s, uint64_t now_ns) {
  if (s->due_ns == 0 || now_ns <= s->due_ns) return;
  s->last_heard_ns = sml_min_u64(now_ns, s->last_heard_ns + (now_ns - s->due_ns));
}

uint64_t sml_session_service(struct sml_session *s, uint64_t now_ns) {
  forgive_own_absence(s, now_ns);
  const uint64_t tick_ns = s->options.events->tick(s->options.user, now_ns);
  if (s->state == SML_SESSION_WAITING && now_ns >= s->attempt_ns) begin_attempt(s, now_ns);
  if (s->state == SML_SESSION_CONNECTING) finish_attempt(s, now_ns);
  flush(s);
  if (s->state >= SML_SESSION_JOINING) receive(s, now_ns); /* before silence is judged */
  check_deadlines(s, now_ns);
  watch_silence(s, now_ns);
  poll_prober(s, now_ns);
  ask(s, now_ns);
  beat(s, now_ns);
  if (s->state == SML_SESSION_LEAVING && (s->fd < 0 || now_ns >= s->leave_deadline_ns)) {
    close_descriptor(s);
    s->state = SML_SESSION_CLOSING;
    poll_prober(s, now_ns);
  }
  watch(s);
  s->due_ns = sml_min_u64(tick_ns, next_deadline(s));
  return s->due_ns;
}
