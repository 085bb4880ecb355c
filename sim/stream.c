/* SPDX-License-Identifier: Apache-2.0
 * Connections as TCP gives them: bytes in order or an error, whatever the network does. A connection is two
 * ends and two pipes; a pipe holds what one end has sent and the other has not read, and the segments that
 * are on their way. Names and descriptors of sockets are in socket.c. */
#include "sim/stream.h"

#include <errno.h>
#include <sys/epoll.h>

#define MAX_PIPE_BYTES 65536u
#define STALL_NS (200 * SML_NS_PER_MS)
#define MAX_STALL_NS (30 * SML_NS_PER_S)
#define GIVE_UP_NS (900 * SML_NS_PER_S)
#define SYN_NS (1 * SML_NS_PER_S)
#define SYN_GIVE_UP_NS (127 * SML_NS_PER_S)

enum segment_kind { SEGMENT_ACCEPT, SEGMENT_DATA, SEGMENT_FIN, SEGMENT_RESET };
struct segment {
  enum segment_kind kind;
  uint64_t end, at_ns; /* position in the stream behind it; when it arrives, if not held up by one before */
};

/* From ends[i] to ends[1 - i] of its connection. consumed <= arrived <= sent. */
struct pipe {
  struct sim_timer timer; /* first: the head segment's arrival */
  struct sim_connection *connection;
  uint8_t *bytes; /* ring of max_bytes, a power of two */
  uint32_t max_bytes;
  uint64_t sent, arrived, consumed;
  struct segment *segments; /* ring, a power of two */
  uint32_t max_segments, head, num_segments;
  uint64_t stalled_since_ns, stall_ns; /* 0: not stalled */
};

struct sim_connection {
  struct sim_timer timer; /* first: the connection request's arrival */
  struct sim_connection *prev, *next;
  uint64_t request_since_ns, request_wait_ns;
  struct sim_endpoint *ends[2]; /* the connecting one first; NULL: closed, or not there yet */
  struct sim_host *hosts[2];
  struct sim_name names[2];
  bool has_vanished[2]; /* the host died with it */
  struct pipe pipes[2];
};
static struct sim_connection *connections;

/* ---- pipes ---- */

static uint32_t direction_of(const struct pipe *p) {
  return p == &p->connection->pipes[0] ? 0 : 1;
}

static void push_segment(struct pipe *p, enum segment_kind kind) {
  struct sim_connection *c = p->connection;
  const uint32_t d = direction_of(p);
  if (c->has_vanished[d]) return;
  if (p->num_segments == p->max_segments) {
    const uint32_t max = sml_max_u32(16, 2 * p->max_segments);
    struct segment *larger = sim_take(max * sizeof *larger);
    for (uint32_t i = 0; i < p->num_segments; i++) larger[i] = p->segments[(p->head + i) & (p->max_segments - 1)];
    __real_free(p->segments);
    p->segments = larger;
    p->max_segments = max;
    p->head = 0;
  }
  const uint64_t at_ns = sim_local_ns() + sim_path_delay(c->hosts[d], c->hosts[1 - d]);
  p->segments[(p->head + p->num_segments++) & (p->max_segments - 1)] =
      (struct segment){.kind = kind, .end = p->sent, .at_ns = at_ns};
  if (p->num_segments == 1) sim_timer_set(&p->timer, at_ns);
}

static void purge(struct pipe *p) {
  p->num_segments = 0;
  sim_timer_clear(&p->timer);
}

static void free_connection(struct sim_connection *c) {
  if (c->prev != NULL) c->prev->next = c->next;
  else connections = c->next;
  if (c->next != NULL) c->next->prev = c->prev;
  sim_timer_clear(&c->timer);
  for (uint32_t d = 0; d < 2; d++) {
    purge(&c->pipes[d]);
    __real_free(c->pipes[d].bytes);
    __real_free(c->pipes[d].segments);
    if (c->ends[d] != NULL) c->ends[d]->connection = NULL;
  }
  __real_free(c);
}

static void free_if_over(struct sim_connection *c) {
  const bool is_used = c->ends[0] != NULL || c->ends[1] != NULL || c->timer.heap_idx != 0 ||
                       c->pipes[0].num_segments > 0 || c->pipes[1].num_segments > 0;
  if (!is_used) free_connection(c);
}

static void notify(struct sim_endpoint *e) {
  if (e != NULL && e->has_file) sim_file_changed(&e->file);
}

/* The connection is gone for this end. */
static void break_end(struct sim_endpoint *e, int error) {
  if (e == NULL || e->is_broken) return;
  e->is_broken = true;
  e->state = SIM_CONNECTED;
  e->error = error;
  sim_file_changed(&e->file);
}

static void receive_segment(struct sim_connection *c, uint32_t to, const struct segment *s) {
  struct sim_endpoint *e = c->ends[to];
  struct pipe *p = &c->pipes[1 - to];
  sim_note(EVENT_STREAM, (uint64_t)s->kind << 48 ^ s->end);
  if (s->kind == SEGMENT_RESET) {
    sim.counts[SIM_STREAM_RESETS]++;
    purge(&c->pipes[to]);
    if (e != NULL) break_end(e, e->state == SIM_CONNECTING ? ECONNREFUSED : ECONNRESET);
  } else if (e == NULL) {
    if (s->kind != SEGMENT_FIN) push_segment(&c->pipes[to], SEGMENT_RESET); /* nobody is there for it */
  } else if (s->kind == SEGMENT_ACCEPT) {
    e->state = SIM_CONNECTED;
    notify(e);
  } else {
    if (s->kind == SEGMENT_DATA) p->arrived = s->end;
    else e->has_eof = true;
    notify(e);
  }
}

static void stall(struct pipe *p) {
  struct sim_connection *c = p->connection;
  const uint32_t d = direction_of(p);
  sim.counts[SIM_STREAM_STALLS]++;
  if (p->stalled_since_ns == 0) {
    p->stalled_since_ns = sim.now_ns;
    p->stall_ns = STALL_NS;
  }
  if (sim.now_ns - p->stalled_since_ns > GIVE_UP_NS) {
    purge(p);
    break_end(c->ends[d], ETIMEDOUT);
    free_if_over(c);
    return;
  }
  sim_timer_set(&p->timer, sim.now_ns + p->stall_ns);
  p->stall_ns = sml_min_u64(2 * p->stall_ns, MAX_STALL_NS);
}

static void pipe_arrive(struct sim_timer *timer) {
  struct pipe *p = (struct pipe *)timer;
  struct sim_connection *c = p->connection;
  const uint32_t d = direction_of(p);
  if (!sim_path_is_open(c->hosts[d], c->hosts[1 - d])) {
    stall(p);
    return;
  }
  p->stalled_since_ns = 0;
  const struct segment s = p->segments[p->head];
  p->head = (p->head + 1) & (p->max_segments - 1);
  p->num_segments--;
  if (p->num_segments > 0) sim_timer_set(&p->timer, sml_max_u64(p->segments[p->head].at_ns, sim.now_ns));
  receive_segment(c, 1 - d, &s);
  free_if_over(c);
}

/* ---- opening ---- */

static void take_request(struct sim_connection *c, struct sim_endpoint *listener) {
  struct sim_endpoint *e = sim_endpoint_create(c->hosts[1]);
  e->state = SIM_CONNECTED;
  e->local = c->names[1];
  e->remote = c->names[0];
  e->connection = c;
  e->side = 1;
  c->ends[1] = e;
  push_segment(&c->pipes[1], SEGMENT_ACCEPT);
  struct sim_endpoint **link = &listener->accept_queue;
  while (*link != NULL) link = &(*link)->next;
  *link = e;
  listener->num_queued++;
  notify(listener);
}

static void request_arrives(struct sim_timer *timer) {
  struct sim_connection *c = (struct sim_connection *)timer;
  sim_note(EVENT_STREAM, c->names[1].port);
  if (c->ends[0] == NULL || c->has_vanished[0]) { /* closed before it was open */
    free_if_over(c);
    return;
  }
  struct sim_endpoint *listener = NULL;
  const bool is_open = sim_path_is_open(c->hosts[0], c->hosts[1]);
  if (is_open) listener = sim_listener_of(c->hosts[1], &c->names[1]);
  if (is_open && listener == NULL) {
    sim.counts[SIM_CONNECTS_REFUSED]++;
    push_segment(&c->pipes[1], SEGMENT_RESET);
  } else if (is_open && listener->num_queued < listener->backlog) {
    take_request(c, listener);
  } else if (sim.now_ns - c->request_since_ns > SYN_GIVE_UP_NS) {
    break_end(c->ends[0], ETIMEDOUT);
  } else {
    sim_timer_set(&c->timer, sim.now_ns + c->request_wait_ns);
    c->request_wait_ns *= 2;
  }
}

void sim_stream_connect(struct sim_endpoint *e, struct sim_host *to) {
  struct sim_connection *c = sim_take(sizeof *c);
  c->timer.fire = request_arrives;
  c->hosts[0] = e->host;
  c->hosts[1] = to;
  c->names[0] = e->local;
  c->names[1] = e->remote;
  for (uint32_t d = 0; d < 2; d++) {
    c->pipes[d].timer.fire = pipe_arrive;
    c->pipes[d].connection = c;
  }
  c->ends[0] = e;
  c->next = connections;
  if (connections != NULL) connections->prev = c;
  connections = c;
  e->connection = c;
  e->side = 0;
  e->state = SIM_CONNECTING;
  c->request_since_ns = sim_local_ns();
  c->request_wait_ns = SYN_NS;
  sim_timer_set(&c->timer, sim_local_ns() + sim_path_delay(e->host, to));
}

/* ---- the bytes ---- */

static uint64_t unread_bytes(const struct sim_endpoint *e) {
  if (e->connection == NULL) return 0;
  const struct pipe *p = &e->connection->pipes[1 - e->side];
  return p->arrived - p->consumed;
}

static uint64_t room_bytes(const struct sim_endpoint *e) {
  const struct pipe *p = &e->connection->pipes[e->side];
  return MAX_PIPE_BYTES - (p->sent - p->consumed);
}

uint32_t sim_stream_events(const struct sim_endpoint *e) {
  if (e->state == SIM_LISTENING) return e->num_queued > 0 ? EPOLLIN : 0;
  if (e->state == SIM_CONNECTING) return 0;
  if (e->state != SIM_CONNECTED) return EPOLLOUT | EPOLLHUP;
  uint32_t events = 0;
  if (e->is_broken) events |= EPOLLIN | EPOLLOUT | EPOLLHUP | EPOLLRDHUP | (e->error != 0 ? EPOLLERR : 0u);
  else if (e->is_shut || room_bytes(e) >= MAX_PIPE_BYTES / 3) events |= EPOLLOUT;
  if (unread_bytes(e) > 0) events |= EPOLLIN;
  if (e->has_eof) events |= EPOLLIN | EPOLLRDHUP;
  if (e->has_eof && e->is_shut) events |= EPOLLHUP;
  return events;
}

static int take_error(struct sim_endpoint *e) {
  const int error = e->error;
  e->error = 0;
  return error;
}

static void make_room(struct pipe *p, uint64_t num_bytes) {
  if (p->sent - p->consumed + num_bytes <= p->max_bytes) return;
  uint32_t max = sml_max_u32(1024, p->max_bytes);
  while (p->sent - p->consumed + num_bytes > max) max *= 2;
  uint8_t *larger = sim_take(max);
  for (uint64_t i = p->consumed; i < p->sent; i++) larger[i & (max - 1)] = p->bytes[i & (p->max_bytes - 1)];
  __real_free(p->bytes);
  p->bytes = larger;
  p->max_bytes = max;
}

int64_t sim_stream_send(struct sim_endpoint *e, const void *data, size_t num_bytes) {
  if (e->error != 0) return -take_error(e);
  if (e->state == SIM_CONNECTING) return -EAGAIN;
  if (e->state != SIM_CONNECTED) return -ENOTCONN;
  if (e->is_broken || e->is_shut) return -EPIPE;
  const uint64_t room = room_bytes(e);
  if (room == 0) return -EAGAIN;
  uint64_t num_sent = sml_min_u64(room, num_bytes);
  if (num_sent > 1 && sml_prng_chance(&sim.network, 1.0 / 32)) {
    num_sent = 1 + sml_prng_below(&sim.network, num_sent);
    sim.counts[SIM_SHORT_WRITES]++;
  }
  struct pipe *p = &e->connection->pipes[e->side];
  make_room(p, num_sent);
  const uint8_t *from = data;
  for (uint64_t i = 0; i < num_sent; i++) p->bytes[(p->sent + i) & (p->max_bytes - 1)] = from[i];
  p->sent += num_sent;
  if (num_sent > 0) push_segment(p, SEGMENT_DATA);
  return (int64_t)num_sent;
}

int64_t sim_stream_receive(struct sim_endpoint *e, void *data, size_t num_bytes) {
  if (e->state == SIM_CONNECTING) return -EAGAIN;
  if (e->state != SIM_CONNECTED) return -ENOTCONN;
  uint64_t num_read = sml_min_u64(unread_bytes(e), num_bytes);
  if (num_read == 0) {
    if (num_bytes == 0) return 0;
    if (e->error != 0) return -take_error(e);
    return e->is_broken || e->has_eof ? 0 : -EAGAIN;
  }
  if (num_read > 1 && sml_prng_chance(&sim.network, 1.0 / 32)) {
    num_read = 1 + sml_prng_below(&sim.network, num_read);
    sim.counts[SIM_SHORT_READS]++;
  }
  struct sim_connection *c = e->connection;
  struct pipe *p = &c->pipes[1 - e->side];
  uint8_t *to = data;
  for (uint64_t i = 0; i < num_read; i++) to[i] = p->bytes[(p->consumed + i) & (p->max_bytes - 1)];
  p->consumed += num_read;
  notify(c->ends[1 - e->side]); /* it has room again */
  return (int64_t)num_read;
}

/* ---- closing ---- */

void sim_stream_shut(struct sim_endpoint *e) {
  if (e->is_shut) return;
  e->is_shut = true;
  if (!e->is_broken) push_segment(&e->connection->pipes[e->side], SEGMENT_FIN);
}

/* The last call for an endpoint; the caller frees it. */
void sim_stream_close(struct sim_endpoint *e) {
  struct sim_connection *c = e->connection;
  if (c == NULL) return;
  if (!e->is_broken && e->state == SIM_CONNECTED) {
    if (unread_bytes(e) > 0 || !e->has_file) push_segment(&c->pipes[e->side], SEGMENT_RESET);
    else sim_stream_shut(e);
  }
  c->ends[e->side] = NULL;
  if (e->state == SIM_CONNECTING) sim_timer_clear(&c->timer);
  free_if_over(c);
}

void sim_streams_vanish(struct sim_host *host) {
  for (struct sim_connection *c = connections; c != NULL; c = c->next) {
    for (uint32_t d = 0; d < 2; d++) {
      if (c->hosts[d] != host) continue;
      purge(&c->pipes[d]);
      c->has_vanished[d] = true;
    }
  }
}

void sim_streams_free(void) {
  while (connections != NULL) free_connection(connections);
}
