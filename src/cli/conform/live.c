/* SPDX-License-Identifier: Apache-2.0
 * A stage at a live aggregator: all ranks of a vector's jobs are this process, each with a control connection and a
 * UDP socket of its own, on lane 0. That nothing comes is known by an echo: HELLOs that were sent later come back.
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/conform/conform.h"
#include "cli/conform/live.h"
#include "cli/ask/status_client.h"
#include "switchml/switchml.h"

#define LEASE_NS (30 * SML_NS_PER_S)
#define ASK_AGAIN_NS (50 * SML_NS_PER_MS)
#define PACE_NS (12 * SML_NS_PER_MS) /* a control port takes 100 connections a second from another host */
#define MIN_CHUNK_BYTES 256u
#define MAX_INBOX 4096u

struct member {
  struct sml_exchange *x; /* NULL: has left, or is not there yet */
  int fd;
  uint64_t nonce;
  uint64_t echoed; /* number of the latest fence that came back */
  bool has_ended;  /* what ended its job was heard: */
  int32_t end_status;
  uint32_t end_ranks[2], num_end_ranks;
};

struct letter {
  uint32_t job, socket, num_bytes;
  uint8_t *frame;
};

struct live {
  struct sml_conform_stage base;
  struct sml_conform_live_options options;
  const struct sml_conform_vector *vector;
  struct sml_conform_binding bindings[SML_CONFORM_MAX_JOBS];
  char names[SML_CONFORM_MAX_JOBS][SML_JOB_NAME_BYTES];
  uint64_t salts[SML_CONFORM_MAX_JOBS][2];
  struct member members[SML_CONFORM_MAX_JOBS][SML_CONFORM_MAX_RANKS];
  struct sml_addr to; /* the lane's data port */
  int stranger;
  struct letter inbox[MAX_INBOX];
  uint32_t num_letters, first_letter;
  uint64_t fence; /* the number of the last */
  char sentence[400];
};

static bool fail(struct live *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fail(struct live *t, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(t->sentence, sizeof t->sentence, format, args);
  va_end(args);
  return false;
}

static struct member *next_member(struct live *t, uint32_t *job, uint32_t *rank) {
  for (; *job < t->vector->num_jobs; ++*job, *rank = 0)
    if (*rank < t->vector->jobs[*job].num_ranks) return &t->members[*job][(*rank)++];
  return NULL;
}

/* ---- joining ---- */

static bool open_socket(struct live *t, int *fd) {
  const struct sockaddr *addr = (const struct sockaddr *)(const void *)t->to.bytes;
  *fd = socket(addr->sa_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  return (*fd >= 0 && connect(*fd, addr, t->to.num_bytes) == 0) || fail(t, "no UDP socket: %s", strerror(errno));
}

static bool say_join(struct live *t, uint32_t job, uint32_t rank) {
  const struct sml_conform_job *as = &t->vector->jobs[job];
  struct sml_exchange *x = t->members[job][rank].x;
  struct sml_ctl_message m = {.kind = SML_CTL_JOIN};
  struct sml_ctl_join *join = &m.u.join;
  const char *key_name = t->options.source->key_name;
  memcpy(join->job_name, t->names[job], sizeof join->job_name);
  memcpy(join->key_name, key_name, sizeof join->key_name);
  join->rank = rank;
  join->world_size = as->num_ranks;
  join->num_lanes = 1;
  join->num_slots = as->num_slots;
  join->max_datagram_bytes = UINT16_MAX;
  join->lease_ns = join->join_timeout_ns = LEASE_NS;
  join->features = (as->is_checked ? SML_FEATURE_CHECK : 0) | (as->is_narrow ? SML_FEATURE_NARROW : 0) |
                   (as->has_one_way ? SML_FEATURE_ONE_WAY : 0) | t->options.features;
  if (key_name[0] && getrandom(join->nonce, sizeof join->nonce, 0) != (ssize_t)sizeof join->nonce)
    return sml_exchange_fail(x, SML_TROUBLE_SYSTEM, "cannot draw random numbers");
  if (!sml_exchange_say(x, &m) || !sml_exchange_hear(x, key_name)) return false;
  if (key_name[0] &&
      !(sml_exchange_prove(x, &t->options.source->key, key_name, join->nonce) && sml_exchange_hear(x, key_name)))
    return false;
  return x->message.kind == SML_CTL_WELCOME ||
         sml_exchange_fail(x, SML_TROUBLE_STRANGER, "%s answered a join with something else", x->text);
}

static uint32_t datagram_bytes(const struct live *t, uint32_t job) {
  return sml_head_bytes(t->options.source->key_name[0] != 0) + t->options.chunk_bytes +
         (t->vector->jobs[job].is_checked ? SML_CHECK_BYTES : 0);
}

static void say_hello(struct live *t, uint32_t job, uint32_t rank, uint32_t num_bytes) {
  uint8_t frame[SML_CONFORM_MAX_FRAME_BYTES] = {0};
  const struct sml_conform_binding *b = &t->bindings[job];
  const uint32_t head_bytes = sml_head_bytes(b->seal.is_keyed);
  const struct sml_header h = {.type = SML_PACKET_HELLO,
                               .job = b->job,
                               .epoch = b->epoch,
                               .rank = (uint16_t)rank,
                               .payload_bytes = (uint16_t)(num_bytes - head_bytes)};
  sml_store_be64(frame + head_bytes, t->members[job][rank].nonce);
  sml_store_be64(frame + head_bytes + 8, t->fence);
  sml_wire_seal(frame, &h, &b->seal);
  (void)send(t->members[job][rank].fd, frame, num_bytes, 0); /* what is lost is sent again */
}

/* The number of a fence's HELLO; 0: it is none. */
static uint64_t fence_of(const struct live *t, uint32_t job, uint32_t rank, const uint8_t *frame, uint32_t num_bytes) {
  const uint32_t head_bytes = sml_head_bytes(t->bindings[job].seal.is_keyed);
  if (num_bytes < head_bytes + 16 || (frame[0] & 15) != SML_PACKET_HELLO) return 0;
  if (sml_load_be16(frame + 2) != t->bindings[job].job || sml_load_be16(frame + 8) != rank) return 0;
  if (sml_load_be64(frame + head_bytes) != t->members[job][rank].nonce) return 0;
  return sml_load_be64(frame + head_bytes + 8);
}

/* Takes what has come to a socket: echoes of fences are noted, all else is kept for receive(). */
static void take_frames(struct live *t, uint32_t job, uint32_t socket, int fd) {
  uint8_t frame[SML_CONFORM_MAX_FRAME_BYTES];
  for (;;) {
    const ssize_t n = recv(fd, frame, sizeof frame, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;
    const uint64_t fence = socket == SML_CONFORM_STRANGER ? 0 : fence_of(t, job, socket, frame, (uint32_t)n);
    if (fence != 0) {
      t->members[job][socket].echoed = sml_max_u64(t->members[job][socket].echoed, fence);
    } else if (t->num_letters < MAX_INBOX) {
      struct letter *l = &t->inbox[t->num_letters];
      *l = (struct letter){.job = job, .socket = socket, .num_bytes = (uint32_t)n, .frame = malloc((size_t)n + 1)};
      if (l->frame) memcpy(l->frame, frame, (size_t)n);
      if (l->frame) t->num_letters++;
    }
  }
}

static void take_all(struct live *t) {
  uint32_t job = 0, rank = 0;
  for (struct member *m; (m = next_member(t, &job, &rank)) != NULL;)
    if (m->fd >= 0) take_frames(t, job, rank - 1, m->fd);
  take_frames(t, 0, SML_CONFORM_STRANGER, t->stranger);
}

/* ---- the end of a job ---- */

static void note_end(struct member *m, const struct sml_ctl_message *message) {
  if (message->kind != SML_CTL_ABORT || m->has_ended) return;
  m->has_ended = true;
  m->end_status = message->u.abort.status;
  m->num_end_ranks = message->u.abort.num_ranks;
  for (uint32_t i = 0; i < 2 && i < message->u.abort.num_ranks; i++) m->end_ranks[i] = message->u.abort.ranks[i];
}

static bool is_readable(int fd, int timeout_ms) {
  struct pollfd p = {.fd = fd, .events = POLLIN};
  return poll(&p, 1, timeout_ms) > 0;
}

/* Whether a member has heard the end of its job; waits for that so long. */
static bool hear_end(struct live *t, struct member *m, uint64_t patience_ns) {
  const uint64_t deadline_ns = sml_clock_ns() + patience_ns;
  while (m->x && !m->has_ended) {
    const uint64_t now_ns = sml_clock_ns();
    const int timeout_ms = now_ns < deadline_ns ? (int)((deadline_ns - now_ns) / SML_NS_PER_MS) + 1 : 0;
    if (m->x->in_bytes == 0 && !is_readable(m->x->fd, timeout_ms)) break;
    m->x->deadline_ns = deadline_ns + t->options.patience_ns;
    if (!sml_exchange_hear(m->x, t->options.source->key_name)) break;
    note_end(m, &m->x->message);
  }
  return m->has_ended;
}

static bool has_ended(struct live *t) {
  uint32_t job = 0, rank = 0;
  bool is_over = false;
  for (struct member *m; (m = next_member(t, &job, &rank)) != NULL;) is_over = hear_end(t, m, 0) || is_over;
  return is_over;
}

/* ---- fences ---- */

/* Members whose echo is still out: of all, or of the first that is there. `asks`: they say HELLO (again). */
static nfds_t list_waiting(struct live *t, bool only_first, bool asks, struct pollfd *fds) {
  uint32_t job = 0, rank = 0;
  nfds_t num_fds = 0;
  for (struct member *m; (m = next_member(t, &job, &rank)) != NULL;) {
    if (!m->x || m->fd < 0) continue;
    if (m->echoed != t->fence) {
      if (asks) say_hello(t, job, rank - 1, sml_head_bytes(t->bindings[job].seal.is_keyed) + 16);
      fds[num_fds++] = (struct pollfd){.fd = m->fd, .events = POLLIN};
    }
    if (only_first) break;
  }
  return num_fds;
}

static bool pass_fence(struct live *t, bool only_first) {
  const uint64_t deadline_ns = sml_clock_ns() + t->options.patience_ns;
  uint64_t ask_ns = 0;
  t->fence++;
  for (;;) {
    struct pollfd fds[SML_CONFORM_MAX_JOBS * SML_CONFORM_MAX_RANKS];
    const uint64_t now_ns = sml_clock_ns();
    const bool asks = now_ns >= ask_ns;
    if (asks) ask_ns = now_ns + ASK_AGAIN_NS;
    const nfds_t num_fds = list_waiting(t, only_first, asks, fds);
    if (num_fds == 0) return true;
    if (poll(fds, num_fds, (int)(ASK_AGAIN_NS / SML_NS_PER_MS)) == 0 && has_ended(t)) return true;
    take_all(t);
    if (now_ns >= deadline_ns)
      return fail(t, "HELLOs do not come back any more: the aggregator is gone, or the network loses all packets");
  }
}

/* An aggregator may send results at the end of a pass over what has come, after echoes; so a second HELLO goes only
 * when the first one has come back. */
static bool settle(struct sml_conform_stage *base, bool ends_job) {
  struct live *t = (struct live *)base;
  uint32_t job = 0, rank = 0;
  if (!ends_job) return pass_fence(t, true) && pass_fence(t, false);
  struct member *m = next_member(t, &job, &rank);
  (void)hear_end(t, m, t->options.patience_ns);
  take_all(t);
  return true;
}

/* ---- open and close ---- */

static void enter_epoch(struct live *t, uint32_t job, uint32_t epoch, const uint64_t secret[2]) {
  struct sml_conform_binding *b = &t->bindings[job];
  const struct sml_status_source *source = t->options.source;
  const struct sml_key key = sml_ctl_data_key(&source->key, t->names[job], b->job, epoch, t->salts[job]);
  b->epoch = epoch;
  b->seal = sml_seal_of(source->key_name[0] ? &key : NULL, secret);
}

static void bind_job(struct live *t, uint32_t job, const struct sml_ctl_welcome *welcome) {
  struct sml_conform_binding *b = &t->bindings[job];
  b->job = welcome->job;
  b->world_size = t->vector->jobs[job].num_ranks;
  b->is_checked = t->vector->jobs[job].is_checked;
  memcpy(t->salts[job], welcome->salt, sizeof t->salts[job]);
  enter_epoch(t, job, welcome->epoch, welcome->secret);
  t->to = t->options.source->addr;
  sml_addr_set_port(&t->to, welcome->data_ports[0]);
}

static bool register_member(struct live *t, uint32_t job, uint32_t rank) {
  struct member *m = &t->members[job][rank];
  const uint64_t deadline_ns = sml_clock_ns() + t->options.patience_ns;
  t->fence++;
  while (m->echoed != t->fence) {
    if (sml_clock_ns() >= deadline_ns)
      return fail(t, "no HELLO of %u bytes came back from the data port", datagram_bytes(t, job));
    say_hello(t, job, rank, datagram_bytes(t, job));
    (void)is_readable(m->fd, (int)(ASK_AGAIN_NS / SML_NS_PER_MS));
    take_frames(t, job, rank, m->fd);
  }
  struct sml_ctl_message probed = {.kind = SML_CTL_PROBED, .u.probed = {.datagram_bytes = datagram_bytes(t, job)}};
  return sml_exchange_say(m->x, &probed) || fail(t, "%s", m->x->error);
}

static bool join(struct live *t, uint32_t job, uint32_t rank) {
  struct member *m = &t->members[job][rank];
  const struct sml_status_source *source = t->options.source;
  m->x = calloc(1, sizeof *m->x);
  if (!m->x) return fail(t, "out of memory");
  if (!t->options.is_loopback) usleep(PACE_NS / SML_NS_PER_US);
  if (!sml_exchange_open(m->x, source->text, &source->addr, sml_clock_ns() + t->options.patience_ns) ||
      !say_join(t, job, rank))
    return fail(t, "%s", m->x->error);
  bind_job(t, job, &m->x->message.u.welcome);
  m->nonce = t->bindings[job].nonces[rank] = m->x->message.u.welcome.nonce;
  return open_socket(t, &m->fd) && register_member(t, job, rank);
}

static bool hear_start(struct live *t, uint32_t job, uint32_t rank) {
  struct sml_exchange *x = t->members[job][rank].x;
  struct sml_conform_binding *b = &t->bindings[job];
  const struct sml_ctl_start *start = &x->message.u.start;
  x->deadline_ns = sml_clock_ns() + t->options.patience_ns;
  do
    if (!sml_exchange_hear(x, t->options.source->key_name)) return fail(t, "%s", x->error);
  while (x->message.kind == SML_CTL_HEARTBEAT);
  if (x->message.kind != SML_CTL_START) return fail(t, "%s answered with something else than START", x->text);
  if (rank == 0) enter_epoch(t, job, start->epoch, start->secret);
  b->first_phase = start->first_phase;
  b->first_chunk = start->first_chunk;
  b->num_slots = start->num_slots;
  b->slot_base = start->slot_base[0];
  b->chunk_bytes = start->chunk_bytes;
  b->is_switch = (start->features & SML_FEATURE_SWITCH) != 0;
  const bool is_narrow = (start->features & SML_FEATURE_NARROW) != 0;
  if (t->vector->jobs[job].has_one_way && (start->features & SML_FEATURE_ONE_WAY) == 0)
    return fail(t, "the aggregator gives the job no one-way windows");
  if (start->is_multicast || start->num_ranks != 0 || is_narrow != t->vector->jobs[job].is_narrow)
    return fail(t, "the job is not as it was asked for");
  return true;
}

static bool open_stage(struct sml_conform_stage *base, const struct sml_conform_vector *vector,
                       struct sml_conform_binding *bindings_out) {
  struct live *t = (struct live *)base;
  uint64_t number = 0;
  t->vector = vector;
  t->sentence[0] = 0;
  memset(t->bindings, 0, sizeof t->bindings);
  memset(t->members, 0, sizeof t->members);
  for (uint32_t i = 0; i < SML_CONFORM_MAX_JOBS * SML_CONFORM_MAX_RANKS; i++)
    t->members[i / SML_CONFORM_MAX_RANKS][i % SML_CONFORM_MAX_RANKS].fd = -1;
  if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) return fail(t, "cannot draw random numbers");
  for (uint32_t job = 0; job < vector->num_jobs; job++) {
    snprintf(t->names[job], sizeof t->names[job], "conform.%d.%llx.%u", (int)getpid(), (unsigned long long)number, job);
    for (uint32_t rank = 0; rank < vector->jobs[job].num_ranks; rank++)
      if (!join(t, job, rank)) return false;
    for (uint32_t rank = 0; rank < vector->jobs[job].num_ranks; rank++)
      if (!hear_start(t, job, rank)) return false;
  }
  memcpy(bindings_out, t->bindings, sizeof t->bindings);
  return open_socket(t, &t->stranger);
}

/* Leaves, and waits until the aggregator has closed the connection: what the job had is free then. */
static void leave_job(struct member *m) {
  char bytes[4096];
  if (!m->x) return;
  if (m->x->fd >= 0 && sml_exchange_say(m->x, &(struct sml_ctl_message){.kind = SML_CTL_GOODBYE}))
    while (is_readable(m->x->fd, 1000) && recv(m->x->fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0) continue;
  sml_exchange_close(m->x);
  free(m->x);
  m->x = NULL;
}

static void close_stage(struct sml_conform_stage *base) {
  struct live *t = (struct live *)base;
  uint32_t job = 0, rank = 0;
  for (struct member *m; (m = next_member(t, &job, &rank)) != NULL;) {
    leave_job(m);
    if (m->fd >= 0) close(m->fd);
    m->fd = -1;
  }
  if (t->stranger >= 0) close(t->stranger);
  t->stranger = -1;
  for (uint32_t i = t->first_letter; i < t->num_letters; i++) free(t->inbox[i].frame);
  t->num_letters = t->first_letter = 0;
}

/* ---- playing ---- */

static bool send_frame(struct sml_conform_stage *base, uint32_t job, uint32_t socket, const uint8_t *frame,
                       uint32_t num_bytes) {
  struct live *t = (struct live *)base;
  const int fd = socket == SML_CONFORM_STRANGER ? t->stranger : t->members[job][socket].fd;
  if (send(fd, frame, num_bytes, 0) == (ssize_t)num_bytes) return true;
  return errno == ECONNREFUSED || fail(t, "cannot send %u bytes: %s", num_bytes, strerror(errno));
}

static uint32_t receive(struct sml_conform_stage *base, uint32_t job, uint32_t socket, uint8_t *frame) {
  struct live *t = (struct live *)base;
  for (uint32_t i = t->first_letter; i < t->num_letters; i++) {
    struct letter *l = &t->inbox[i];
    if (!l->frame || l->job != job || l->socket != socket) continue;
    const uint32_t num_bytes = l->num_bytes;
    memcpy(frame, l->frame, num_bytes);
    free(l->frame);
    l->frame = NULL;
    while (t->first_letter < t->num_letters && !t->inbox[t->first_letter].frame) t->first_letter++;
    if (t->first_letter == t->num_letters) t->first_letter = t->num_letters = 0;
    return num_bytes;
  }
  return 0;
}

/* The others are told, so it has been taken then. */
static bool leave(struct sml_conform_stage *base, uint32_t job, uint32_t rank) {
  struct live *t = (struct live *)base;
  struct member *other = t->members[job];
  leave_job(&t->members[job][rank]);
  for (uint32_t i = 0; i < t->vector->jobs[job].num_ranks && !other->x; i++) other = &t->members[job][i];
  if (!other->x) return fail(t, "rank %u leaves, and nobody is there to be told", rank);
  other->x->deadline_ns = sml_clock_ns() + t->options.patience_ns;
  do
    if (!sml_exchange_hear(other->x, t->options.source->key_name)) return fail(t, "%s", other->x->error);
  while (other->x->message.kind != SML_CTL_RANK_GONE && other->x->message.kind != SML_CTL_ABORT);
  note_end(other, &other->x->message);
  return true;
}

static bool reported(struct sml_conform_stage *base, uint32_t job, bool is_expected, const char **what,
                     uint32_t ranks[2], uint32_t *num_ranks) {
  struct live *t = (struct live *)base;
  *what = "";
  for (uint32_t rank = 0; rank < t->vector->jobs[job].num_ranks; rank++) {
    struct member *m = &t->members[job][rank];
    if (!hear_end(t, m, is_expected ? t->options.patience_ns : 0)) {
      if (m->x && is_expected) *what = ""; /* everybody is to be told */
      if (m->x && is_expected) return true;
      continue;
    }
    *what = m->end_status == SML_ERR_MISMATCH ? "MISMATCH" : m->end_status == SML_ERR_PROTOCOL ? "JUMP" : "another end";
    *num_ranks = m->num_end_ranks;
    memcpy(ranks, m->end_ranks, sizeof m->end_ranks);
  }
  return true;
}

static const char *sentence(struct sml_conform_stage *base) {
  return ((struct live *)base)->sentence;
}

static const struct sml_conform_stage_ops ops = {open_stage, close_stage, send_frame, settle,  receive,
                                                 leave,      reported,    NULL,       sentence};

struct sml_conform_stage *sml_conform_live_create(const struct sml_conform_live_options *options) {
  struct live *t = calloc(1, sizeof *t);
  if (!t) return NULL;
  t->base.ops = &ops;
  t->options = *options;
  if (t->options.chunk_bytes == 0) t->options.chunk_bytes = MIN_CHUNK_BYTES;
  t->stranger = -1;
  return &t->base;
}

void sml_conform_live_destroy(struct sml_conform_stage *stage) {
  free(stage);
}

bool sml_conform_live_look(struct sml_conform_stage *stage, bool *is_switch_out, char *error, size_t error_bytes) {
  static const struct sml_conform_vector empty = {.jobs = {{.num_ranks = 2, .num_slots = 4}}, .num_jobs = 1};
  struct sml_conform_binding bindings[SML_CONFORM_MAX_JOBS];
  const bool is_ok = stage->ops->open(stage, &empty, bindings);
  if (!is_ok) snprintf(error, error_bytes, "%s", sentence(stage));
  *is_switch_out = is_ok && bindings[0].is_switch;
  stage->ops->close(stage);
  return is_ok;
}
