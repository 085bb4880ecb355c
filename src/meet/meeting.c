/* SPDX-License-Identifier: Apache-2.0 */
#include "meet/meeting.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/fork.h"
#include "meet/interfaces.h"
#include "meet/job_settings.h"
#include "meet/rendezvous_message.h"

#define MAX_STRANGERS 256u             /* connections that are no ranks yet */
#define STRANGER_NS (2 * SML_NS_PER_S) /* that they have to become one, however they use it */
#define NEWS_NS (1 * SML_NS_PER_S)
#define GONE_MS 10000 /* a rank whose host says nothing for so long is none any more */
#define RETRY_MS 50

enum stage { SAYS_HELLO, SAYS_RECORD, IS_HERE, TAKES_ALL, HAS_ALL };

struct guest {
  int fd;
  enum stage stage;
  uint64_t since_ns;
  uint32_t rank;
  struct sml_addr addr;
  struct sml_key key;
  uint8_t *in; /* [m->in_bytes] */
  size_t in_bytes, wanted_bytes, sent_bytes;
};

struct sml_meeting {
  struct sml_meeting_options options;
  int listen_fd, name_fd; /* name_fd: says to other processes that this job's rank 0 is here */
  struct sml_fork_watch watch;
  uint32_t round, num_bytes; /* num_bytes: of a record */
  bool has_met;              /* all ranks were here: nobody may be missing from now on */
  struct guest *guests;
  struct pollfd *polls; /* the listener's is behind the guests' */
  uint8_t *marks;       /* [world_size]; list_missing()'s */
  uint32_t num_guests, max_guests;
  uint64_t news_ns;       /* when ranks hear next who is waited for */
  uint64_t not_accept_ns; /* no descriptors until then */
  char stranger[160];     /* who was turned away last, and why; "": nobody */
  char lost[160];         /* a rank that was lost after the first round */
};

/* ---- who is here ---- */

static const struct guest *find_here(const struct sml_meeting *m, uint32_t rank) {
  for (uint32_t i = 0; i < m->num_guests; i++)
    if (m->guests[i].stage >= IS_HERE && m->guests[i].rank == rank) return &m->guests[i];
  return NULL;
}

static uint32_t count(const struct sml_meeting *m, enum stage stage) {
  uint32_t num = 0;
  for (uint32_t i = 0; i < m->num_guests; i++) num += m->guests[i].stage == stage;
  return num;
}

static bool has_lost_rank(const struct sml_meeting *m) {
  return m->has_met && m->num_guests < m->options.world_size - 1;
}

/* Who is waited for, or was lost. Returns how many there are; the first of them go to ranks_out. */
static uint32_t list_missing(struct sml_meeting *m, uint32_t ranks_out[SML_MAX_NEWS]) {
  const enum stage least = has_lost_rank(m) ? SAYS_HELLO : IS_HERE;
  uint32_t num = 0;
  memset(m->marks, 0, m->options.world_size);
  for (uint32_t i = 0; i < m->num_guests; i++)
    if (m->guests[i].stage >= least) m->marks[m->guests[i].rank] = 1;
  for (uint32_t rank = 1; rank < m->options.world_size; rank++) {
    if (m->marks[rank] != 0) continue;
    if (num < SML_MAX_NEWS) ranks_out[num] = rank;
    num++;
  }
  return num;
}

static void drop(struct sml_meeting *m, struct guest *g) {
  free(g->in);
  sml_fork_lock();
  close(g->fd);
  *g = m->guests[--m->num_guests];
  sml_fork_unlock();
}

__attribute__((format(printf, 3, 4))) static void note(struct sml_meeting *m, const struct guest *g, const char *format,
                                                       ...) {
  char address[64];
  va_list arguments;
  char *text = m->has_met ? m->lost : m->stranger;
  sml_addr_format(&g->addr, address, sizeof address);
  const int used = snprintf(text, sizeof m->stranger, "%s ", address);
  va_start(arguments, format);
  vsnprintf(text + used, sizeof m->stranger - (size_t)used, format, arguments);
  va_end(arguments);
}

/* ---- the place ---- */

static bool open_socket(int *fd_out, int family) {
  sml_fork_lock();
  *fd_out = sml_fd_raise(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sml_fork_unlock();
  return *fd_out >= 0;
}

static void close_socket(int *fd) {
  const int error = errno;
  sml_fork_lock();
  if (*fd >= 0) close(*fd);
  *fd = -1;
  sml_fork_unlock();
  errno = error;
}

/* The child of a fork must not keep the place, nor ranks from seeing this one go. */
static void close_in_child(struct sml_fork_watch *watch) {
  struct sml_meeting *m = (struct sml_meeting *)(void *)((uint8_t *)watch - offsetof(struct sml_meeting, watch));
  if (m->listen_fd >= 0) close(m->listen_fd);
  if (m->name_fd >= 0) close(m->name_fd);
  for (uint32_t i = 0; i < m->num_guests; i++) close(m->guests[i].fd);
}

/* Groups of ranks meet at one port side by side (SO_REUSEPORT); whoever comes to the wrong one comes again. Two
 * meetings of the same job would part its ranks: so each has a name in the kernel, which only one can have. */
static bool take_name(struct sml_meeting *m) {
  struct sockaddr_un addr = {.sun_family = AF_UNIX};
  const int num_bytes = snprintf(addr.sun_path + 1, sizeof addr.sun_path - 1, "switchml-rendezvous-%u-%016llx",
                                 sml_addr_port(&m->options.addr), (unsigned long long)m->options.job_hash);
  const socklen_t addr_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)num_bytes);
  if (open_socket(&m->name_fd, AF_UNIX) &&
      bind(m->name_fd, (const struct sockaddr *)(const void *)&addr, addr_bytes) == 0)
    return true;
  close_socket(&m->name_fd);
  return false;
}

static bool listen_there(struct sml_meeting *m) {
  const uint8_t any[16] = {0};
  const struct sockaddr *a = (const struct sockaddr *)(const void *)m->options.addr.bytes;
  const struct sml_addr bind_addr = sml_addr_of_ip(a->sa_family, any, sml_addr_port(&m->options.addr));
  const int one = 1;
  if (open_socket(&m->listen_fd, a->sa_family) &&
      setsockopt(m->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
      setsockopt(m->listen_fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) == 0 &&
      bind(m->listen_fd, (const struct sockaddr *)(const void *)bind_addr.bytes, bind_addr.num_bytes) == 0 &&
      listen(m->listen_fd, 1024) == 0)
    return true;
  close_socket(&m->listen_fd);
  return false;
}

static sml_status open_place(struct sml_meeting *m) {
  for (;;) {
    const bool has_name = m->name_fd >= 0 || take_name(m);
    if (has_name && listen_there(m)) return SML_OK;
    const int error = errno;
    if (error == EADDRINUSE && sml_clock_ns() < m->options.deadline_ns) {
      poll(NULL, 0, RETRY_MS);
      continue;
    }
    if (error == EADDRINUSE && !has_name)
      return sml_fail(SML_ERR_SYSTEM,
                      "another process waits as rank 0 of this job at SWITCHML_RENDEZVOUS=%.80s: groups of "
                      "ranks that meet at one address need names of their own, and an earlier run must have ended",
                      m->options.address);
    return sml_fail(SML_ERR_SYSTEM, "rank 0 cannot listen at the port of SWITCHML_RENDEZVOUS=%.80s: %s",
                    m->options.address, strerror(error));
  }
}

/* ---- what is said to guests ---- */

/* Few bytes: where there is no room for them, nobody reads. */
static bool say(struct guest *g, const void *bytes, size_t num_bytes) {
  return send(g->fd, bytes, num_bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)num_bytes;
}

static bool say_frame(struct sml_meeting *m, struct guest *g, enum sml_frame_kind kind, const uint8_t *body,
                      uint32_t num_bytes) {
  uint8_t frame[SML_FRAME_HEAD_BYTES + 4 * (1 + SML_MAX_NEWS) + SML_FRAME_MAC_BYTES];
  const struct sml_frame_head head = {kind, m->round, num_bytes};
  SML_ASSERT(num_bytes <= sizeof frame - SML_FRAME_HEAD_BYTES - SML_FRAME_MAC_BYTES);
  sml_frame_head_write(frame, &head);
  memcpy(frame + SML_FRAME_HEAD_BYTES, body, num_bytes);
  sml_frame_mac(frame + SML_FRAME_HEAD_BYTES + num_bytes, &g->key, frame, body, num_bytes);
  return say(g, frame, SML_FRAME_HEAD_BYTES + num_bytes + SML_FRAME_MAC_BYTES);
}

#define NEWS_BYTES (4 * (1 + SML_MAX_NEWS))
static void write_news(struct sml_meeting *m, uint8_t body[NEWS_BYTES]) {
  uint32_t ranks[SML_MAX_NEWS] = {0};
  sml_store_be32(body, list_missing(m, ranks));
  for (uint32_t i = 0; i < SML_MAX_NEWS; i++) sml_store_be32(body + 4 + 4 * i, ranks[i]);
}

static bool turn_away(struct guest *g, enum sml_answer_kind kind, uint32_t world_size) {
  uint8_t answer[SML_ANSWER_BYTES];
  sml_rendezvous_answer_write(answer, &(struct sml_rendezvous_answer){.kind = kind, .world_size = world_size});
  (void)say(g, answer, sizeof answer);
  return false;
}

/* ---- what guests say; false: they go ---- */

static bool take_hello(struct sml_meeting *m, struct guest *g) {
  const struct sml_meeting_options *o = &m->options;
  struct sml_rendezvous_hello hello;
  uint8_t bytes[SML_ANSWER_BYTES];
  if (!sml_rendezvous_hello_read(g->in, &hello)) {
    note(m, g, "said what is no hello of this version");
    return turn_away(g, SML_ANSWER_NO_HELLO, o->world_size);
  }
  if (hello.job_hash != o->job_hash) return turn_away(g, SML_ANSWER_OTHER_JOB, o->world_size);
  if (hello.world_size != o->world_size || hello.rank == 0 || hello.rank >= o->world_size) {
    note(m, g, "says that it is rank %u of %u", hello.rank, hello.world_size);
    return turn_away(g, SML_ANSWER_OTHER_SIZE, o->world_size);
  }
  if (hello.is_keyed != o->is_keyed) {
    note(m, g, "says that it is rank %u, and has %s key", hello.rank, o->is_keyed ? "no" : "a");
    return turn_away(g, SML_ANSWER_OTHER_KEY, o->world_size);
  }
  const struct sml_rendezvous_answer answer = {SML_ANSWER_GO_ON, o->world_size, {sml_random_bits(), sml_random_bits()}};
  sml_rendezvous_answer_write(bytes, &answer);
  g->key = sml_rendezvous_key(&o->key, g->in, bytes);
  sml_rendezvous_answer_seal(bytes, &g->key);
  g->rank = hello.rank;
  g->stage = SAYS_RECORD;
  g->in_bytes = 0;
  g->wanted_bytes = SML_FRAME_HEAD_BYTES + m->num_bytes + SML_FRAME_MAC_BYTES;
  return say(g, bytes, sizeof bytes);
}

static bool is_record(const struct sml_meeting *m, const struct guest *g) {
  const uint8_t *body = g->in + SML_FRAME_HEAD_BYTES;
  struct sml_frame_head head;
  return sml_frame_head_read(g->in, &head) && head.kind == SML_FRAME_RECORD && head.round == m->round &&
         head.num_bytes == m->num_bytes && sml_frame_has_mac(body + m->num_bytes, &g->key, g->in, body, m->num_bytes);
}

static bool take_record(struct sml_meeting *m, struct guest *g) {
  const struct guest *other = m->has_met ? NULL : find_here(m, g->rank);
  char address[64] = "";
  uint8_t news[NEWS_BYTES];
  if (!is_record(m, g)) {
    note(m, g, "says that it is rank %u, and %s", g->rank,
         m->options.is_keyed ? "does not prove to have the key" : "goes on as none");
    return false;
  }
  if (other != NULL) {
    note(m, g, "says that it is rank %u, which has come already", g->rank);
    sml_addr_format(&other->addr, address, sizeof address);
    (void)say_frame(m, g, SML_FRAME_OCCUPIED, (const uint8_t *)address, sizeof address);
    return false;
  }
  g->stage = IS_HERE;
  if (m->has_met) return true;
  write_news(m, news);
  return say_frame(m, g, SML_FRAME_WAITING, news, sizeof news);
}

/* A rank that is here says nothing before it has heard all: what it says then, or its end, is the end of it. */
static bool hear(struct sml_meeting *m, struct guest *g) {
  uint8_t unwanted;
  const bool is_wanted = g->stage <= SAYS_RECORD;
  const ssize_t n = is_wanted ? recv(g->fd, g->in + g->in_bytes, g->wanted_bytes - g->in_bytes, MSG_DONTWAIT)
                              : recv(g->fd, &unwanted, 1, MSG_DONTWAIT);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return true;
  if (n <= 0 || !is_wanted) {
    note(m, g,
         m->has_met               ? "(rank %u) has gone"
         : g->stage == SAYS_HELLO ? "went without a word"
                                  : "(rank %u?) went",
         g->rank);
    return false;
  }
  g->in_bytes += (size_t)n;
  if (g->in_bytes < g->wanted_bytes) return true;
  return g->stage == SAYS_HELLO ? take_hello(m, g) : take_record(m, g);
}

/* ---- coming and going ---- */

/* The connection that has been no rank for the longest time makes room. */
static void drop_oldest_stranger(struct sml_meeting *m) {
  struct guest *oldest = NULL;
  for (uint32_t i = 0; i < m->num_guests; i++) {
    struct guest *g = &m->guests[i];
    if (g->stage < IS_HERE && (oldest == NULL || g->since_ns < oldest->since_ns)) oldest = g;
  }
  if (oldest != NULL) drop(m, oldest);
}

static size_t room_bytes(uint32_t num_bytes) {
  return sml_max_u64(SML_HELLO_BYTES, SML_FRAME_HEAD_BYTES + num_bytes + SML_FRAME_MAC_BYTES);
}

/* False: none, with an errno. It is in the table at once, where the child of a fork finds it. */
static bool accept_guest(struct sml_meeting *m, uint64_t now_ns) {
  struct guest g = {.since_ns = now_ns, .wanted_bytes = SML_HELLO_BYTES};
  struct sockaddr *from = (struct sockaddr *)(void *)g.addr.bytes;
  socklen_t addr_bytes = sizeof g.addr.bytes;
  sml_fork_lock();
  g.fd = sml_fd_raise(accept4(m->listen_fd, from, &addr_bytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
  g.addr.num_bytes = (uint8_t)addr_bytes;
  if (g.fd >= 0) m->guests[m->num_guests++] = g;
  sml_fork_unlock();
  return g.fd >= 0;
}

static void take_guest(struct sml_meeting *m) {
  const int one = 1, gone_ms = GONE_MS;
  struct guest *g = &m->guests[m->num_guests - 1];
  g->in = malloc(room_bytes(m->num_bytes));
  if (g->in == NULL) {
    drop(m, g);
    return;
  }
  setsockopt(g->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(g->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &gone_ms, sizeof gone_ms);
  const uint32_t num_strangers = count(m, SAYS_HELLO) + count(m, SAYS_RECORD);
  if (m->num_guests > m->max_guests || num_strangers > MAX_STRANGERS) drop_oldest_stranger(m);
}

/* At most as many as there is room for strangers: ranks that are here are heard in between. */
static void accept_guests(struct sml_meeting *m, uint64_t now_ns) {
  for (uint32_t i = 0; i < MAX_STRANGERS; i++) {
    if (accept_guest(m, now_ns)) {
      take_guest(m);
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno != EAGAIN) {
      drop_oldest_stranger(m); /* of descriptors, or memory, there are none left */
      m->not_accept_ns = now_ns + RETRY_MS * SML_NS_PER_MS;
    }
    return;
  }
}

static void drop_slow_strangers(struct sml_meeting *m, uint64_t now_ns) {
  for (uint32_t i = m->num_guests; i-- > 0;) {
    struct guest *g = &m->guests[i];
    if (m->has_met || g->stage >= IS_HERE || now_ns - g->since_ns < STRANGER_NS) continue;
    note(m, g, "took too long to say who it is");
    drop(m, g);
  }
}

static void tell_news(struct sml_meeting *m, uint64_t now_ns) {
  if (m->has_met || now_ns < m->news_ns) return;
  uint8_t news[NEWS_BYTES];
  m->news_ns = now_ns + NEWS_NS;
  write_news(m, news);
  for (uint32_t i = m->num_guests; i-- > 0;) {
    struct guest *g = &m->guests[i];
    if (g->stage == IS_HERE && !say_frame(m, g, SML_FRAME_WAITING, news, sizeof news)) drop(m, g);
  }
}

/* ---- a pass ---- */

struct all {
  uint8_t head[SML_FRAME_HEAD_BYTES];
  uint8_t *bytes; /* [world_size * m->num_bytes] */
  size_t num_bytes;
};

/* False: the connection is gone. */
static bool send_all(struct guest *g, const struct all *all) {
  uint8_t mac[SML_FRAME_MAC_BYTES];
  const size_t end_bytes = sizeof all->head + all->num_bytes + sizeof mac;
  memcpy(mac, g->in, sizeof mac); /* see begin_all() */
  const struct {
    const uint8_t *bytes;
    size_t num_bytes;
  } parts[] = {{all->head, sizeof all->head}, {all->bytes, all->num_bytes}, {mac, sizeof mac}};
  for (size_t i = 0, begin = 0; i < SML_ARRAY_LEN(parts); begin += parts[i++].num_bytes) {
    const size_t end = begin + parts[i].num_bytes;
    while (g->sent_bytes < end) {
      const ssize_t n =
          send(g->fd, parts[i].bytes + (g->sent_bytes - begin), end - g->sent_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0) return errno == EINTR || errno == EAGAIN;
      g->sent_bytes += (size_t)n;
    }
  }
  if (g->sent_bytes == end_bytes) g->stage = HAS_ALL;
  return true;
}

/* Waits for whatever is next, and does it. False: the wait failed, or the deadline is over. */
static bool step(struct sml_meeting *m, const struct all *all) {
  const uint32_t num_guests = m->num_guests;
  const uint64_t now_ns = sml_clock_ns();
  if (now_ns >= m->options.deadline_ns) return errno = ETIMEDOUT, false;
  drop_slow_strangers(m, now_ns);
  tell_news(m, now_ns);
  if (m->num_guests != num_guests) return true;
  for (uint32_t i = 0; i < num_guests; i++)
    m->polls[i] = (struct pollfd){.fd = m->guests[i].stage == HAS_ALL ? -1 : m->guests[i].fd,
                                  .events = m->guests[i].stage == TAKES_ALL ? POLLOUT : POLLIN};
  const bool accepts = m->listen_fd >= 0 && now_ns >= m->not_accept_ns;
  m->polls[num_guests] = (struct pollfd){.fd = accepts ? m->listen_fd : -1, .events = POLLIN};
  const uint64_t left_ms = sml_div_ceil(m->options.deadline_ns - now_ns, SML_NS_PER_MS);
  const int n = poll(m->polls, num_guests + 1, (int)sml_min_u64(left_ms, RETRY_MS));
  if (n < 0 && errno != EINTR) return false;
  if (n <= 0) return true;
  for (uint32_t i = num_guests; i-- > 0;) { /* what is dropped gives its place to one that had its turn */
    struct guest *g = &m->guests[i];
    if (m->polls[i].revents == 0) continue;
    if (g->stage == TAKES_ALL ? !send_all(g, all) : !hear(m, g)) drop(m, g);
  }
  if (m->polls[num_guests].revents != 0) accept_guests(m, now_ns);
  return true;
}

/* ---- rounds ---- */

static sml_status fail(struct sml_meeting *m, int error) {
  const sml_status status = error == ETIMEDOUT    ? SML_ERR_TIMEOUT
                            : error == ECONNRESET ? SML_ERR_RANK_LOST
                                                  : SML_ERR_SYSTEM;
  uint32_t ranks[SML_MAX_NEWS];
  char text[16 * SML_MAX_NEWS];
  const uint32_t num = list_missing(m, ranks);
  const char *others = m->has_met ? m->lost : m->stranger;
  sml_rendezvous_name_ranks(num, ranks, text, sizeof text);
  return sml_fail(status, "%u of %u ranks %s SWITCHML_RENDEZVOUS=%.80s: %s %s missing: %s%s%s",
                  m->options.world_size - num, m->options.world_size, m->has_met ? "stayed at" : "came to",
                  m->options.address, text, num == 1 ? "is" : "are", strerror(error), others[0] == 0 ? "" : "; ",
                  others);
}

/* Room for this round's records; in the first one there is nobody yet. */
static sml_status begin_round(struct sml_meeting *m, uint32_t num_bytes) {
  m->num_bytes = num_bytes;
  for (uint32_t i = 0; i < m->num_guests; i++) {
    struct guest *g = &m->guests[i];
    uint8_t *in = realloc(g->in, room_bytes(num_bytes));
    if (in == NULL) return sml_fail(SML_ERR_NO_MEMORY, "no memory for the record of rank %u", g->rank);
    g->in = in;
    g->stage = SAYS_RECORD;
    g->in_bytes = 0;
    g->wanted_bytes = SML_FRAME_HEAD_BYTES + num_bytes + SML_FRAME_MAC_BYTES;
  }
  return SML_OK;
}

/* Nobody else is needed any more. */
static void close_place(struct sml_meeting *m) {
  close_socket(&m->listen_fd);
  close_socket(&m->name_fd);
  for (uint32_t i = m->num_guests; i-- > 0;)
    if (m->guests[i].stage < IS_HERE) drop(m, &m->guests[i]);
}

static void begin_all(struct sml_meeting *m, struct all *all) {
  const struct sml_frame_head head = {SML_FRAME_ALL, m->round, (uint32_t)all->num_bytes};
  sml_frame_head_write(all->head, &head);
  for (uint32_t i = 0; i < m->num_guests; i++)
    memcpy(all->bytes + (size_t)m->guests[i].rank * m->num_bytes, m->guests[i].in + SML_FRAME_HEAD_BYTES, m->num_bytes);
  for (uint32_t i = 0; i < m->num_guests; i++) {
    struct guest *g = &m->guests[i];
    sml_frame_mac(g->in, &g->key, all->head, all->bytes, all->num_bytes);
    g->stage = TAKES_ALL;
    g->sent_bytes = 0;
  }
}

static sml_status step_while_all_stay(struct sml_meeting *m, const struct all *all) {
  if (!step(m, all)) return fail(m, errno);
  return has_lost_rank(m) ? fail(m, ECONNRESET) : SML_OK;
}

/* Ranks that came may go, and come again, until all are here. */
sml_status sml_meeting_gather(struct sml_meeting *m, const void *mine, uint8_t *out, uint32_t num_bytes,
                              uint64_t deadline_ns) {
  const uint32_t num_others = m->options.world_size - 1;
  struct all all = {.bytes = out, .num_bytes = (size_t)num_bytes * m->options.world_size};
  m->options.deadline_ns = deadline_ns;
  sml_status status = begin_round(m, num_bytes);
  while (status == SML_OK && count(m, IS_HERE) < num_others) status = step_while_all_stay(m, &all);
  if (status != SML_OK) return status;
  m->has_met = true;
  close_place(m);
  memcpy(out, mine, num_bytes);
  begin_all(m, &all);
  while (status == SML_OK && count(m, HAS_ALL) < num_others) status = step_while_all_stay(m, &all);
  m->round += status == SML_OK;
  return status;
}

sml_status sml_meeting_open(const struct sml_meeting_options *options, struct sml_meeting **meeting_out) {
  struct sml_meeting *m = calloc(1, sizeof *m);
  const uint32_t max_guests = options->world_size - 1 + MAX_STRANGERS;
  struct guest *guests = calloc(max_guests + 1, sizeof *guests); /* one more until the oldest is dropped */
  struct pollfd *polls = calloc(max_guests + 1, sizeof *polls);
  uint8_t *marks = calloc(options->world_size, 1);
  if (m == NULL || guests == NULL || polls == NULL || marks == NULL) {
    free(m);
    free(guests);
    free(polls);
    free(marks);
    return sml_fail(SML_ERR_NO_MEMORY, "no memory for %u connections", max_guests);
  }
  *m = (struct sml_meeting){.options = *options,
                            .listen_fd = -1,
                            .name_fd = -1,
                            .guests = guests,
                            .polls = polls,
                            .marks = marks,
                            .max_guests = max_guests};
  m->watch.in_child = close_in_child;
  sml_fork_watch(&m->watch);
  const sml_status status = open_place(m);
  if (status == SML_OK) *meeting_out = m;
  else sml_meeting_close(m);
  return status;
}

void sml_meeting_close(struct sml_meeting *m) {
  if (m == NULL) return;
  close_place(m);
  while (m->num_guests > 0) drop(m, &m->guests[0]);
  sml_fork_unwatch(&m->watch);
  free(m->guests);
  free(m->polls);
  free(m->marks);
  free(m);
}
