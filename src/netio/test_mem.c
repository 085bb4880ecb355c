/* SPDX-License-Identifier: Apache-2.0
 * An in-process back end: ports of one hub, each with a bounded ring of frames. The same encoded bytes
 * as on a wire are copied from the sender's burst into a cell of the receiver's ring. Frames lent by
 * rx_burst keep their cells until the next rx_burst, as buffers of a card would. */
#include "netio/addr.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* Port 0 is never given; the last ones are the numbers of groups. */
#define MAX_PORTS (65536u - SML_MEM_GROUPS)
#define MAX_MEMBERS 256u
#define BURST_BYTES 65536u
#define BURST_FRAMES 64u

struct cell {
  struct sml_addr from;
  uint32_t num_bytes;
};

struct port {
  struct sml_netio io;
  struct sml_mem_hub *hub;
  struct sml_addr addr;
  uint8_t *tx_buffer;

  pthread_mutex_t lock; /* guards all below; taken by senders under the hub's read lock */
  pthread_cond_t event;
  struct cell *cells; /* ring of num_cells */
  uint8_t *bytes;     /* num_cells * max_frame_bytes */
  uint32_t num_cells;
  uint32_t head;       /* the first lent cell */
  uint32_t num_lent;   /* invariant: num_lent <= num_filled <= num_cells */
  uint32_t num_filled; /* lent and waiting */
  uint64_t num_truncated;
  bool is_woken;
};

struct sml_mem_hub {
  pthread_rwlock_t lock; /* read: send to a port. write: open or close one */
  uint32_t last_port;    /* numbers go round, so that a closed port's number is not taken at once */
  uint32_t num_open;
  struct port *ports[MAX_PORTS];
  uint32_t num_members;
  struct {
    struct port *port;
    uint16_t group; /* the port of its address */
  } members[MAX_MEMBERS];
};

struct sml_mem_hub *sml_mem_hub_create(void) {
  struct sml_mem_hub *hub = calloc(1, sizeof *hub);
  if (hub == NULL) return NULL;
  if (pthread_rwlock_init(&hub->lock, NULL) != 0) {
    free(hub);
    return NULL;
  }
  return hub;
}

void sml_mem_hub_destroy(struct sml_mem_hub *hub) {
  SML_ASSERT(hub->num_open == 0);
  (void)pthread_rwlock_destroy(&hub->lock);
  free(hub);
}

static struct port *port_of(struct sml_netio *io) {
  return (struct port *)(void *)io;
}

static void free_port(struct port *p) {
  free(p->cells);
  free(p->bytes);
  free(p->tx_buffer);
  free(p);
}

static void mem_close(struct sml_netio *io) {
  struct port *p = port_of(io);
  struct sml_mem_hub *hub = p->hub;
  (void)pthread_rwlock_wrlock(&hub->lock);
  hub->ports[sml_addr_port(&p->addr)] = NULL;
  hub->num_open--;
  for (uint32_t i = hub->num_members; i-- > 0;)
    if (hub->members[i].port == p) hub->members[i] = hub->members[--hub->num_members];
  (void)pthread_rwlock_unlock(&hub->lock);
  (void)pthread_cond_destroy(&p->event);
  (void)pthread_mutex_destroy(&p->lock);
  free_port(p);
}

static void mem_local_addr(struct sml_netio *io, struct sml_addr *addr_out) {
  *addr_out = port_of(io)->addr;
}

static size_t mem_rx_burst(struct sml_netio *io, struct sml_rx_frame *frames, size_t max) {
  struct port *p = port_of(io);
  uint64_t num_bytes = 0;
  (void)pthread_mutex_lock(&p->lock);
  p->head = (p->head + p->num_lent) % p->num_cells;
  p->num_filled -= p->num_lent;
  p->num_lent = (uint32_t)sml_min_u64(p->num_filled, max);
  for (uint32_t i = 0; i < p->num_lent; i++) {
    const uint32_t at = (p->head + i) % p->num_cells;
    frames[i] = (struct sml_rx_frame){.data = p->bytes + (size_t)at * io->max_frame_bytes,
                                      .num_bytes = p->cells[at].num_bytes,
                                      .from = &p->cells[at].from};
    num_bytes += p->cells[at].num_bytes;
  }
  io->stats.rx_truncated_frames = p->num_truncated;
  const uint32_t num_frames = p->num_lent;
  (void)pthread_mutex_unlock(&p->lock);
  io->stats.rx_frames += num_frames;
  io->stats.rx_bytes += num_bytes;
  return num_frames;
}

static void mem_tx_reserve(struct sml_netio *io, uint32_t frame_bytes, struct sml_tx_burst *burst_out) {
  struct port *p = port_of(io);
  const bool fits = frame_bytes > 0 && frame_bytes <= io->max_frame_bytes;
  uint32_t max_frames = 0;
  if (fits) max_frames = sml_max_u32(1, sml_min_u32(BURST_FRAMES, BURST_BYTES / frame_bytes));
  *burst_out = (struct sml_tx_burst){.data = p->tx_buffer, .frame_bytes = frame_bytes, .max_frames = max_frames};
}

/* Called with the receiver's lock held. False: no room. */
static bool put_frame(struct port *to, const struct sml_addr *from, const uint8_t *data, uint32_t num_bytes) {
  if (num_bytes > to->io.max_frame_bytes) {
    to->num_truncated++;
    return true;
  }
  if (to->num_filled == to->num_cells) return false;
  const uint32_t at = (to->head + to->num_filled) % to->num_cells;
  to->cells[at] = (struct cell){.from = *from, .num_bytes = num_bytes};
  memcpy(to->bytes + (size_t)at * to->io.max_frame_bytes, data, num_bytes);
  to->num_filled++;
  return true;
}

/* With the hub's read lock. How many of the frames the port had room for. */
static uint32_t put_frames(const struct port *p, struct port *to, size_t peer, const struct sml_tx_burst *burst,
                           uint32_t num_frames, uint32_t last_bytes, uint64_t *num_bytes_out) {
  uint32_t num_taken = 0;
  (void)pthread_mutex_lock(&to->lock);
  for (uint32_t i = 0; i < num_frames; i++) {
    const uint32_t num_bytes = i + 1 == num_frames ? last_bytes : burst->frame_bytes;
    if (!sml_tx_is_for(burst, i, peer)) continue;
    if (!put_frame(to, &p->addr, burst->data + (size_t)i * burst->frame_bytes, num_bytes)) continue;
    num_taken++;
    *num_bytes_out += num_bytes;
  }
  if (num_taken > 0) (void)pthread_cond_signal(&to->event);
  (void)pthread_mutex_unlock(&to->lock);
  return num_taken;
}

/* Sent once, whoever has room for it. */
#define NOBODY (SIZE_MAX - 1)
static uint32_t put_to_group(const struct port *p, uint16_t group, const struct sml_tx_burst *burst,
                             uint32_t num_frames, uint32_t last_bytes) {
  uint64_t ignored = 0;
  for (uint32_t i = 0; i < p->hub->num_members; i++)
    if (p->hub->members[i].group == group)
      (void)put_frames(p, p->hub->members[i].port, NOBODY, burst, num_frames, last_bytes, &ignored);
  return num_frames;
}

/* How many of the frames the peer had room for. */
static uint32_t send_to(struct port *p, const struct sml_addr *peers, size_t peer_idx, const struct sml_tx_burst *burst,
                        uint32_t num_frames, uint32_t last_bytes) {
  const struct sml_addr *peer = &peers[peer_idx];
  const uint16_t number = sml_addr_port(peer);
  uint32_t num_taken = 0;
  if (sml_addr_family(peer) != SML_ADDR_FAMILY_MEM) return 0;
  (void)pthread_rwlock_rdlock(&p->hub->lock);
  if (number >= MAX_PORTS) {
    num_taken = put_to_group(p, number, burst, num_frames, last_bytes);
    p->io.stats.tx_bytes += (uint64_t)(num_frames - 1) * burst->frame_bytes + last_bytes;
  } else if (p->hub->ports[number] != NULL) {
    num_taken = put_frames(p, p->hub->ports[number], peer_idx, burst, num_frames, last_bytes, &p->io.stats.tx_bytes);
  }
  (void)pthread_rwlock_unlock(&p->hub->lock);
  return num_taken;
}

static void mem_tx_commit(struct sml_netio *io, struct sml_tx_burst *burst, uint32_t num_frames, uint32_t last_bytes,
                          const struct sml_addr *peers, size_t num_peers) {
  if (num_frames == 0) return;
  SML_ASSERT(num_frames <= burst->max_frames && last_bytes > 0 && last_bytes <= burst->frame_bytes);
  for (size_t i = 0; i < num_peers; i++) {
    const uint32_t num_taken = send_to(port_of(io), peers, i, burst, num_frames, last_bytes);
    io->stats.tx_frames += num_taken;
    for (uint32_t k = 0; k < num_frames; k++) io->stats.tx_lost_frames += sml_tx_is_for(burst, k, i);
    io->stats.tx_lost_frames -= num_taken;
  }
}

/* Committing sends. */
static void mem_tx_flush(struct sml_netio *io) {
  (void)io;
}

static struct timespec deadline_after(uint64_t timeout_ns) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  /* A year is as good as more and cannot overflow the addition. */
  const uint64_t ns = (uint64_t)t.tv_nsec + sml_min_u64(timeout_ns, 365u * 86400u * SML_NS_PER_S);
  t.tv_sec += (time_t)(ns / SML_NS_PER_S);
  t.tv_nsec = (long)(ns % SML_NS_PER_S);
  return t;
}

static void mem_wait(struct sml_netio *io, uint64_t timeout_ns) {
  struct port *p = port_of(io);
  struct timespec deadline = {0};
  if (timeout_ns != SML_NEVER) deadline = deadline_after(timeout_ns);
  int rc = 0;
  (void)pthread_mutex_lock(&p->lock);
  while (rc == 0 && !p->is_woken && p->num_filled == p->num_lent)
    if (timeout_ns == SML_NEVER) rc = pthread_cond_wait(&p->event, &p->lock);
    else rc = pthread_cond_timedwait(&p->event, &p->lock, &deadline);
  p->is_woken = false;
  (void)pthread_mutex_unlock(&p->lock);
}

static void mem_wake(struct sml_netio *io) {
  struct port *p = port_of(io);
  (void)pthread_mutex_lock(&p->lock);
  p->is_woken = true;
  (void)pthread_cond_signal(&p->event);
  (void)pthread_mutex_unlock(&p->lock);
}

void sml_mem_group(uint32_t number, struct sml_addr *addr_out) {
  const uint16_t family = SML_ADDR_FAMILY_MEM;
  SML_ASSERT(number < SML_MEM_GROUPS);
  *addr_out = (struct sml_addr){.num_bytes = SML_ADDR_MEM_BYTES};
  memcpy(addr_out->bytes, &family, sizeof family);
  sml_addr_set_port(addr_out, (uint16_t)(MAX_PORTS + number));
}

static int mem_join_group(struct sml_netio *io, const struct sml_addr *group, const struct sml_addr *via) {
  struct port *p = port_of(io);
  const uint16_t number = sml_addr_port(group);
  uint32_t num_joined = 0;
  (void)via;
  if (sml_addr_family(group) != SML_ADDR_FAMILY_MEM || number < MAX_PORTS) return -EINVAL;
  (void)pthread_rwlock_wrlock(&p->hub->lock);
  for (uint32_t i = 0; i < p->hub->num_members; i++) num_joined += p->hub->members[i].port == p;
  const bool has_room = num_joined < SML_NETIO_MAX_GROUPS && p->hub->num_members < MAX_MEMBERS;
  if (has_room) {
    p->hub->members[p->hub->num_members].port = p;
    p->hub->members[p->hub->num_members++].group = number;
  }
  (void)pthread_rwlock_unlock(&p->hub->lock);
  return has_room ? 0 : -ENOBUFS;
}

static void mem_leave_group(struct sml_netio *io, const struct sml_addr *group) {
  struct port *p = port_of(io);
  struct sml_mem_hub *hub = p->hub;
  (void)pthread_rwlock_wrlock(&hub->lock);
  for (uint32_t i = 0; i < hub->num_members; i++) {
    if (hub->members[i].port != p || hub->members[i].group != sml_addr_port(group)) continue;
    hub->members[i] = hub->members[--hub->num_members];
    break;
  }
  (void)pthread_rwlock_unlock(&hub->lock);
}

static const struct sml_netio_ops mem_ops = {.name = "mem",
                                             .close = mem_close,
                                             .local_addr = mem_local_addr,
                                             .rx_burst = mem_rx_burst,
                                             .tx_reserve = mem_tx_reserve,
                                             .tx_commit = mem_tx_commit,
                                             .tx_flush = mem_tx_flush,
                                             .wait = mem_wait,
                                             .wake = mem_wake,
                                             .join_group = mem_join_group,
                                             .leave_group = mem_leave_group};

static bool init_locks(struct port *p) {
  pthread_condattr_t attr;
  if (pthread_mutex_init(&p->lock, NULL) != 0) return false;
  bool is_ok = pthread_condattr_init(&attr) == 0;
  if (is_ok) {
    is_ok = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 && pthread_cond_init(&p->event, &attr) == 0;
    (void)pthread_condattr_destroy(&attr);
  }
  if (!is_ok) (void)pthread_mutex_destroy(&p->lock);
  return is_ok;
}

/* Gives the port a free number and lets others see it. False: all numbers are taken. */
static bool publish_port(struct sml_mem_hub *hub, struct port *p) {
  const uint16_t family = SML_ADDR_FAMILY_MEM;
  bool is_done = false;
  (void)pthread_rwlock_wrlock(&hub->lock);
  for (uint32_t i = 0; i < MAX_PORTS && !is_done; i++) {
    hub->last_port = (hub->last_port + 1) % MAX_PORTS;
    if (hub->last_port == 0 || hub->ports[hub->last_port] != NULL) continue;
    p->addr.num_bytes = SML_ADDR_MEM_BYTES;
    memcpy(p->addr.bytes, &family, sizeof family);
    sml_addr_set_port(&p->addr, (uint16_t)hub->last_port);
    hub->ports[hub->last_port] = p;
    hub->num_open++;
    is_done = true;
  }
  (void)pthread_rwlock_unlock(&hub->lock);
  return is_done;
}

struct sml_netio *sml_mem_open(struct sml_mem_hub *hub, uint32_t queue_frames, uint32_t max_frame_bytes) {
  SML_ASSERT(queue_frames > 0 && max_frame_bytes > 0);
  struct port *p = calloc(1, sizeof *p);
  if (p == NULL) return NULL;
  p->hub = hub;
  p->io = (struct sml_netio){.ops = &mem_ops, .max_frame_bytes = max_frame_bytes, .has_segmentation_offload = true};
  p->num_cells = queue_frames;
  p->cells = calloc(queue_frames, sizeof *p->cells);
  p->bytes = calloc(queue_frames, max_frame_bytes); /* large: pages come with their first use */
  p->tx_buffer = malloc(sml_max_u32(BURST_BYTES, max_frame_bytes));
  if (p->cells == NULL || p->bytes == NULL || p->tx_buffer == NULL || !init_locks(p)) {
    free_port(p);
    return NULL;
  }
  if (!publish_port(hub, p)) {
    (void)pthread_cond_destroy(&p->event);
    (void)pthread_mutex_destroy(&p->lock);
    free_port(p);
    return NULL;
  }
  return &p->io;
}
