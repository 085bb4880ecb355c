/* SPDX-License-Identifier: Apache-2.0 */
#include "meet/rendezvous.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/fork.h"
#include "meet/rendezvous_message.h"
#include "process/settings.h"

#define MIN_RETRY_MS 20
#define MAX_RETRY_MS 320
#define ANSWER_NS (2 * SML_NS_PER_S) /* whoever listens there and says nothing is tried anew */
/* Rank 0 gives up at the deadline too, and says who is missing: it must not miss the ranks that are there. */
#define GRACE_NS (1 * SML_NS_PER_S)
/* Least for a round when all have met: the last one tells what each rank's join ended with, also if it was its time. */
#define ROUND_NS (10 * SML_NS_PER_S)

static void close_in_child(struct sml_fork_watch *watch) {
  struct sml_rendezvous *r = (struct sml_rendezvous *)watch;
  if (r->fd >= 0) close(r->fd);
}

void sml_rendezvous_init(struct sml_rendezvous *r, const struct sml_job_settings *settings) {
  const uint64_t deadline_ns = sml_deadline_after(sml_clock_ns(), settings->options.join_timeout_ns);
  *r = (struct sml_rendezvous){.settings = settings, .deadline_ns = deadline_ns, .fd = -1};
  r->address = sml_settings_environment("SWITCHML_RENDEZVOUS");
  r->watch.in_child = close_in_child;
  sml_fork_watch(&r->watch);
}

static uint64_t hash_name(const char *name) {
  uint64_t hash = 1;
  for (const char *c = name; *c != 0; c++) hash = sml_mix64(hash + (uint8_t)*c);
  return hash;
}

/* ---- sockets that wait until a deadline ---- */

static bool await(int fd, short events, uint64_t deadline_ns) {
  for (;;) {
    const uint64_t now_ns = sml_clock_ns();
    if (now_ns >= deadline_ns) {
      errno = ETIMEDOUT;
      return false;
    }
    struct pollfd p = {.fd = fd, .events = events};
    const uint64_t left_ms = sml_div_ceil(deadline_ns - now_ns, SML_NS_PER_MS);
    const int n = poll(&p, 1, (int)sml_min_u64(left_ms, 1000));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
  }
}

static bool send_all(int fd, const void *data, size_t num_bytes, uint64_t deadline_ns) {
  const uint8_t *at = data;
  while (num_bytes > 0) {
    if (!await(fd, POLLOUT, deadline_ns)) return false;
    const ssize_t n = send(fd, at, num_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n < 0) return false;
    at += n;
    num_bytes -= (size_t)n;
  }
  return true;
}

static bool receive_all(int fd, void *data, size_t num_bytes, uint64_t deadline_ns) {
  uint8_t *at = data;
  while (num_bytes > 0) {
    if (!await(fd, POLLIN, deadline_ns)) return false;
    const ssize_t n = recv(fd, at, num_bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n == 0) errno = ECONNRESET;
    if (n <= 0) return false;
    at += n;
    num_bytes -= (size_t)n;
  }
  return true;
}

static bool open_connection(struct sml_rendezvous *r, const struct sml_addr *addr, uint64_t deadline_ns) {
  const struct sockaddr *a = (const struct sockaddr *)(const void *)addr->bytes;
  int error = 0;
  socklen_t error_bytes = sizeof error;
  const int one = 1;
  sml_fork_lock();
  r->fd = sml_fd_raise(socket(a->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sml_fork_unlock();
  if (r->fd < 0) return false;
  setsockopt(r->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (connect(r->fd, a, addr->num_bytes) != 0 && errno != EINPROGRESS) return false;
  if (!await(r->fd, POLLOUT, deadline_ns)) return false;
  if (getsockopt(r->fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) == 0 && error == 0) return true;
  if (error != 0) errno = error;
  return false;
}

/* ---- the others' part ---- */

__attribute__((format(printf, 2, 3))) static bool put_off(struct sml_rendezvous *r, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(r->why, sizeof r->why, format, arguments);
  va_end(arguments);
  return false;
}

/* Why rank 0 does not go on; it may be a stranger that says so: the next try may meet rank 0. */
static bool take_refusal(struct sml_rendezvous *r, const struct sml_rendezvous_answer *answer) {
  const sml_job_options *o = &r->settings->options;
  switch (answer->kind) {
    case SML_ANSWER_OTHER_JOB: return put_off(r, "there is rank 0 of another job, none of '%s'", o->name);
    case SML_ANSWER_OTHER_SIZE:
      return put_off(r, "rank 0 has world_size %u, and this is rank %u of %u", answer->world_size, o->rank,
                     o->world_size);
    case SML_ANSWER_OTHER_KEY:
      return put_off(r, "rank 0 has %s key, and this rank has %s", r->settings->key_name[0] != 0 ? "no" : "a",
                     r->settings->key_name[0] != 0 ? "one" : "none");
    default: return put_off(r, "rank 0 runs another version of libswitchml");
  }
}

static bool say_hello(struct sml_rendezvous *r, uint64_t deadline_ns) {
  const struct sml_job_settings *s = r->settings;
  const struct sml_key none = {0, 0};
  const struct sml_rendezvous_hello hello = {.is_keyed = s->key_name[0] != 0,
                                             .world_size = s->options.world_size,
                                             .rank = s->options.rank,
                                             .job_hash = hash_name(s->options.name),
                                             .nonce = {sml_random_bits(), sml_random_bits()}};
  struct sml_rendezvous_answer answer;
  uint8_t said[SML_HELLO_BYTES], heard[SML_ANSWER_BYTES];
  sml_rendezvous_hello_write(said, &hello);
  if (!send_all(r->fd, said, sizeof said, deadline_ns) || !receive_all(r->fd, heard, sizeof heard, deadline_ns))
    return put_off(r, "whoever listens there does not answer: %s", strerror(errno));
  if (!sml_rendezvous_answer_read(heard, &answer)) return put_off(r, "what listens there is no rank 0");
  if (answer.kind != SML_ANSWER_GO_ON) return take_refusal(r, &answer);
  r->key = sml_rendezvous_key(hello.is_keyed ? &s->key : &none, said, heard);
  if (sml_rendezvous_answer_is_sealed(heard, &r->key)) return true;
  return hello.is_keyed ? put_off(r, "whoever listens there does not have the key '%s'", s->key_name)
                        : put_off(r, "what listens there is no rank 0");
}

static bool say_record(struct sml_rendezvous *r, const void *in, uint32_t num_bytes) {
  uint8_t head[SML_FRAME_HEAD_BYTES], mac[SML_FRAME_MAC_BYTES];
  sml_frame_head_write(head, &(struct sml_frame_head){SML_FRAME_RECORD, r->round, num_bytes});
  sml_frame_mac(mac, &r->key, head, in, num_bytes);
  if (send_all(r->fd, head, sizeof head, r->deadline_ns) && send_all(r->fd, in, num_bytes, r->deadline_ns) &&
      send_all(r->fd, mac, sizeof mac, r->deadline_ns))
    return true;
  return put_off(r, "rank 0 went: %s", strerror(errno));
}

static void take_news(struct sml_rendezvous *r, const uint8_t *body) {
  uint32_t ranks[SML_MAX_NEWS];
  char text[100];
  for (uint32_t i = 0; i < SML_MAX_NEWS; i++) ranks[i] = sml_load_be32(body + 4 + 4 * i);
  sml_rendezvous_name_ranks(sml_load_be32(body), ranks, text, sizeof text);
  snprintf(r->news, sizeof r->news, "rank 0 had taken this rank, and waited for %s; ", text);
}

/* Until the records of all ranks are there. */
static bool hear_all(struct sml_rendezvous *r, uint8_t *out, size_t num_bytes) {
  uint8_t head[SML_FRAME_HEAD_BYTES], mac[SML_FRAME_MAC_BYTES], small[4 * (1 + SML_MAX_NEWS)];
  const uint64_t deadline_ns = r->deadline_ns > SML_NEVER - GRACE_NS ? SML_NEVER : r->deadline_ns + GRACE_NS;
  for (;;) {
    struct sml_frame_head h;
    const bool has_head = receive_all(r->fd, head, sizeof head, deadline_ns);
    if (!has_head) return put_off(r, "rank 0 does not go on: %s", strerror(errno));
    const bool is_head = sml_frame_head_read(head, &h) && h.round == r->round;
    const bool is_all = is_head && h.kind == SML_FRAME_ALL && h.num_bytes == num_bytes;
    const bool is_small = is_head && h.kind != SML_FRAME_ALL && h.num_bytes <= sizeof small;
    if (!is_all && !is_small) return put_off(r, "rank 0 runs another version of libswitchml");
    uint8_t *body = is_all ? out : small;
    if (!receive_all(r->fd, body, h.num_bytes, deadline_ns) || !receive_all(r->fd, mac, sizeof mac, deadline_ns))
      return put_off(r, "rank 0 does not go on: %s", strerror(errno));
    if (!sml_frame_has_mac(mac, &r->key, head, body, h.num_bytes))
      return put_off(r, "somebody changes what rank 0 says");
    if (is_all) return true;
    if (h.kind == SML_FRAME_OCCUPIED)
      return put_off(r, "rank %u has come already, from %.*s", r->settings->options.rank, (int)h.num_bytes, small);
    if (h.kind == SML_FRAME_WAITING && h.num_bytes == sizeof small) take_news(r, small);
  }
}

static void hang_up(struct sml_rendezvous *r) {
  sml_fork_lock();
  if (r->fd >= 0) close(r->fd);
  r->fd = -1;
  sml_fork_unlock();
}

/* Longer from time to time, and not at the same moment as the other ranks. */
static void wait_before_retry(uint32_t num_tries) {
  const uint64_t most_ms = sml_min_u64((uint64_t)MIN_RETRY_MS << sml_min_u32(num_tries, 4), MAX_RETRY_MS);
  poll(NULL, 0, (int)(most_ms / 2 + sml_random_bits() % (most_ms / 2)));
}

/* The first round: until all have met, rank 0 may come late, and go and come back; strangers may stand in its place. */
static sml_status meet_rank_0(struct sml_rendezvous *r, const struct sml_addr *addr, const void *in, uint8_t *out,
                              uint32_t num_bytes) {
  const size_t all_bytes = (size_t)num_bytes * r->settings->options.world_size;
  for (uint32_t num_tries = 0;; num_tries++) {
    const uint64_t now_ns = sml_clock_ns(), attempt_ns = sml_min_u64(r->deadline_ns, now_ns + ANSWER_NS);
    if (num_tries > 0 && now_ns >= r->deadline_ns)
      return sml_fail(SML_ERR_TIMEOUT, "the ranks have not met at SWITCHML_RENDEZVOUS=%.80s: %s%s", r->address, r->news,
                      r->why);
    const bool is_connected = open_connection(r, addr, attempt_ns);
    if (!is_connected) put_off(r, "rank 0 is not found: %s", strerror(errno));
    if (is_connected && say_hello(r, attempt_ns) && say_record(r, in, num_bytes) && hear_all(r, out, all_bytes))
      return SML_OK;
    hang_up(r);
    wait_before_retry(num_tries);
  }
}

/* ---- gathering ---- */

static sml_status open_meeting(struct sml_rendezvous *r, const struct sml_addr *addr) {
  const struct sml_job_settings *s = r->settings;
  struct sml_meeting_options options = {.addr = *addr,
                                        .address = r->address,
                                        .world_size = s->options.world_size,
                                        .job_hash = hash_name(s->options.name),
                                        .deadline_ns = r->deadline_ns,
                                        .is_keyed = s->key_name[0] != 0};
  if (options.is_keyed) options.key = s->key;
  return sml_meeting_open(&options, &r->meeting);
}

static sml_status meet(struct sml_rendezvous *r, const void *in, uint8_t *out, uint32_t num_bytes) {
  struct sml_addr addr;
  char error[SML_ERROR_DETAIL_BYTES / 2];
  if (!sml_addr_parse(r->address, 0, &addr, error, sizeof error))
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "SWITCHML_RENDEZVOUS is '%.80s': %s", r->address, error);
  if (r->settings->options.rank != 0) return meet_rank_0(r, &addr, in, out, num_bytes);
  const sml_status status = open_meeting(r, &addr);
  return status != SML_OK ? status : sml_meeting_gather(r->meeting, in, out, num_bytes, r->deadline_ns);
}

int sml_rendezvous_gather(void *user, const void *in, void *out, size_t num_bytes) {
  struct sml_rendezvous *r = user;
  const size_t all_bytes = num_bytes * r->settings->options.world_size;
  sml_status status = SML_OK;
  if (r->round > 0) r->deadline_ns = sml_max_u64(r->deadline_ns, sml_clock_ns() + ROUND_NS);
  if (r->round == 0) status = meet(r, in, out, (uint32_t)num_bytes);
  else if (r->meeting != NULL) status = sml_meeting_gather(r->meeting, in, out, (uint32_t)num_bytes, r->deadline_ns);
  else if (!say_record(r, in, (uint32_t)num_bytes) || !hear_all(r, out, all_bytes))
    status = sml_fail(SML_ERR_RANK_LOST, "rank 0, met at SWITCHML_RENDEZVOUS=%.80s, does not answer any more: %s",
                      r->address, r->why);
  if (r->round++ == 0) /* from here each of them joins for as long */
    r->deadline_ns = sml_deadline_after(sml_clock_ns(), r->settings->options.join_timeout_ns);
  return status;
}

void sml_rendezvous_close(struct sml_rendezvous *r) {
  hang_up(r);
  sml_meeting_close(r->meeting);
  r->meeting = NULL;
  sml_fork_unwatch(&r->watch);
}
