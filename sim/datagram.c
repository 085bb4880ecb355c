/* SPDX-License-Identifier: Apache-2.0
 * The packet back end that engines get here instead of UDP sockets. Frames are never copied: a burst is
 * filled in the buffer in which it travels and is received. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>

#include "sim/network.h"

#define MAX_FRAME_BYTES 65507u
#define BURST_FRAMES 64u
#define CALL_NS 300u
#define DEFAULT_QUEUE_BYTES 212992u
#define FRAME_OVERHEAD_BYTES 256u /* what the kernel charges a queued datagram with besides its bytes */

static struct sim_socket *socket_of(struct sml_netio *io) {
  return (struct sim_socket *)(void *)io;
}

/* ---- receiving ---- */

/* What has arrived goes from the link into the queue, if that has room. */
static void admit(struct sim_socket *s) {
  while (s->flight_head != NULL && s->flight_head->at_ns <= sim.now_ns) {
    struct sim_packet *p = s->flight_head;
    s->flight_head = p->next;
    p->next = NULL;
    const uint64_t charge = p->num_bytes + FRAME_OVERHEAD_BYTES;
    if (s->queue_bytes + charge > s->max_queue_bytes) {
      sim_packet_lose(p, SIM_LOST_IN_SOCKET_QUEUE);
      continue;
    }
    s->queue_bytes += charge;
    if (s->ready_head != NULL) s->ready_tail->next = p;
    else s->ready_head = p;
    s->ready_tail = p;
  }
}

void sim_socket_arrive(struct sim_socket *s, struct sim_packet *p) {
  admit(s);
  if (s->flight_head != NULL) {
    p->at_ns = sml_max_u64(p->at_ns, s->flight_tail->at_ns);
    s->flight_tail->next = p;
  } else {
    s->flight_head = p;
  }
  s->flight_tail = p;
  if (s->waiter != NULL && !s->is_gathering) sim_wake_at(s->waiter, p->at_ns);
}

static void release_list(struct sim_packet **list) {
  while (*list != NULL) {
    struct sim_packet *p = *list;
    *list = p->next;
    sim_packet_release(p);
  }
}

static void deliver(struct sim_socket *s, struct sim_packet *p) {
  sim.counts[SIM_DATAGRAMS_DELIVERED]++;
  uint64_t check = 0; /* of our frames: the last bytes of the header, the CRC among them */
  if (p->num_bytes >= 32) memcpy(&check, p->data + 24, sizeof check);
  sim_note(EVENT_DELIVERED, check ^ p->num_bytes);
  SIM_TRACE("receives %u bytes from port %u%s", p->num_bytes, p->from_port, p->is_altered ? ", altered" : "");
  if (sim.monitor.on_delivered == NULL) return;
  const struct sim_datagram d = {.from_ipv4 = p->from_ipv4,
                                 .to_ipv4 = s->host->ipv4,
                                 .from_port = p->from_port,
                                 .to_port = s->port,
                                 .data = p->data,
                                 .num_bytes = p->num_bytes,
                                 .is_forged = p->is_forged,
                                 .is_altered = p->is_altered};
  sim.hook_depth++;
  sim.monitor.on_delivered(sim.monitor.user, &d);
  sim.hook_depth--;
}

static size_t rx_burst(struct sml_netio *io, struct sml_rx_frame *frames, size_t max) {
  struct sim_socket *s = socket_of(io);
  release_list(&s->lent);
  if (sim.fiber->debt_ns > 20 * SML_NS_PER_US) sim_pay();
  admit(s);
  size_t num_frames = 0;
  struct sim_packet **lent_end = &s->lent;
  while (s->ready_head != NULL && num_frames < max) {
    struct sim_packet *p = s->ready_head;
    s->ready_head = p->next;
    p->next = NULL;
    *lent_end = p;
    lent_end = &p->next;
    s->queue_bytes -= p->num_bytes + FRAME_OVERHEAD_BYTES;
    frames[num_frames++] = (struct sml_rx_frame){.data = p->data, .num_bytes = p->num_bytes, .from = &p->from};
    io->stats.rx_bytes += p->num_bytes;
    deliver(s, p);
  }
  s->may_have_more = num_frames == max;
  io->stats.rx_frames += num_frames;
  io->stats.system_calls++;
  sim.fiber->debt_ns += num_frames * sim.options.frame_ns;
  return num_frames;
}

/* ---- sending ---- */

static void tx_reserve(struct sml_netio *io, uint32_t frame_bytes, struct sml_tx_burst *burst_out) {
  struct sim_socket *s = socket_of(io);
  *burst_out = (struct sml_tx_burst){.frame_bytes = frame_bytes};
  if (frame_bytes == 0 || frame_bytes > io->max_frame_bytes) return;
  s->tx_used_bytes = (uint32_t)sml_align_up(s->tx_used_bytes, 64);
  uint32_t room = s->tx_buffer == NULL || s->tx_used_bytes > SIM_BUFFER_BYTES ? 0 : SIM_BUFFER_BYTES - s->tx_used_bytes;
  if (room < frame_bytes || room < SIM_BUFFER_BYTES / 4) {
    if (s->tx_buffer != NULL) sim_buffer_release(s->tx_buffer);
    s->tx_buffer = sim_buffer_take(SIM_BUFFER_BYTES);
    s->tx_used_bytes = 0;
    room = SIM_BUFFER_BYTES;
  }
  burst_out->data = s->tx_buffer->bytes + s->tx_used_bytes;
  burst_out->max_frames = sml_min_u32(BURST_FRAMES, room / frame_bytes);
}

static void send_to(struct sim_socket *s, const struct sml_tx_burst *burst, uint32_t num_frames, uint32_t last_bytes,
                    const struct sml_addr *peers, size_t peer_idx) {
  const struct sml_addr *peer = &peers[peer_idx];
  struct sockaddr_in v4;
  memcpy(&v4, peer->bytes, sizeof v4);
  SML_ASSERT(peer->num_bytes == sizeof v4 && v4.sin_family == AF_INET);
  const uint32_t ipv4 = ntohl(v4.sin_addr.s_addr);
  const uint16_t port = ntohs(v4.sin_port);
  for (uint32_t i = 0; i < num_frames; i++) {
    const uint32_t num_bytes = i + 1 == num_frames ? last_bytes : burst->frame_bytes;
    if (!sml_tx_is_for(burst, i, peer_idx)) continue;
    sim.fiber->debt_ns += sim.options.frame_ns;
    if (!sim_network_send(s, s->tx_buffer, burst->data + (size_t)i * burst->frame_bytes, num_bytes, ipv4, port)) {
      s->io.stats.tx_lost_frames++;
      continue;
    }
    s->io.stats.tx_frames++;
    s->io.stats.tx_bytes += num_bytes;
  }
}

static void tx_commit(struct sml_netio *io, struct sml_tx_burst *burst, uint32_t num_frames, uint32_t last_bytes,
                      const struct sml_addr *peers, size_t num_peers) {
  struct sim_socket *s = socket_of(io);
  if (num_frames == 0) return;
  SML_ASSERT(num_frames <= burst->max_frames && last_bytes > 0 && last_bytes <= burst->frame_bytes);
  s->tx_used_bytes += num_frames * burst->frame_bytes;
  io->stats.system_calls++;
  for (size_t i = 0; i < num_peers; i++) send_to(s, burst, num_frames, last_bytes, peers, i);
}

static void tx_flush(struct sml_netio *io) {
  (void)io; /* committing sends */
}

static uint64_t tx_waiting(struct sml_netio *io) {
  const struct sim_link_state *up = &socket_of(io)->host->up;
  io->stats.system_calls++;
  if (up->options.bits_per_s == 0 || up->busy_until_ns <= sim.now_ns) return 0;
  return (uint64_t)((double)(up->busy_until_ns - sim.now_ns) * (double)up->options.bits_per_s / 8e9);
}

/* ---- waiting ---- */

static uint64_t deadline_after(uint64_t timeout_ns) {
  if (timeout_ns > SML_NEVER / 4) return SML_NEVER;
  const struct sim_process *p = sim.fiber->process;
  return sim_time_of(p, sim_clock_of(p, sim_local_ns()) + timeout_ns);
}

static void wait(struct sml_netio *io, uint64_t timeout_ns) {
  struct sim_socket *s = socket_of(io);
  const bool is_gathering = io->gather_ns > 0;
  io->stats.system_calls++;
  const uint64_t deadline_ns = deadline_after(is_gathering ? sml_min_u64(timeout_ns, io->gather_ns) : timeout_ns);
  sim_step(CALL_NS); /* what has not come by now is waited for; also a loop of empty waits takes time */
  admit(s);
  while (timeout_ns > 0 && !s->may_have_more && !s->is_woken && sim.now_ns < deadline_ns &&
         (is_gathering || s->ready_head == NULL)) {
    s->waiter = sim.fiber;
    s->is_gathering = is_gathering;
    uint64_t turn_ns = deadline_ns;
    if (!is_gathering && s->flight_head != NULL) turn_ns = sml_min_u64(turn_ns, s->flight_head->at_ns);
    (void)sim_block(NULL, turn_ns);
    s->waiter = NULL;
    admit(s);
  }
  s->is_woken = false;
}

static void wake(struct sml_netio *io) {
  struct sim_socket *s = socket_of(io);
  s->is_woken = true;
  if (s->waiter != NULL) sim_wake(s->waiter);
}

/* ---- opening and closing ---- */

struct sim_socket *sim_socket_at(const struct sim_host *host, uint16_t port) {
  struct sim_socket *s = host->sockets[port % SIM_PORT_BUCKETS];
  while (s != NULL && s->port != port) s = s->next_at_host;
  return s;
}

static void free_socket(struct sim_socket *s) {
  if (s->prev != NULL) s->prev->next = s->next;
  else s->process->sockets = s->next;
  if (s->next != NULL) s->next->prev = s->prev;
  s->process->usage.num_data_sockets--;
  struct sim_socket **link = &s->host->sockets[s->port % SIM_PORT_BUCKETS];
  while (*link != s) link = &(*link)->next_at_host;
  *link = s->next_at_host;
  release_list(&s->lent);
  release_list(&s->ready_head);
  release_list(&s->flight_head);
  if (s->tx_buffer != NULL) sim_buffer_release(s->tx_buffer);
  __real_free(s);
}

static void close_socket(struct sml_netio *io) {
  SML_ASSERT(socket_of(io)->waiter == NULL);
  free_socket(socket_of(io));
}

void sim_sockets_close_all(struct sim_process *p) {
  while (p->sockets != NULL) free_socket(p->sockets);
}

static void local_addr(struct sml_netio *io, struct sml_addr *addr_out) {
  const struct sim_socket *s = socket_of(io);
  *addr_out = sim_addr_of(s->ipv4, s->port);
}

static const struct sml_netio_ops ops = {.name = "simulated",
                                         .close = close_socket,
                                         .local_addr = local_addr,
                                         .rx_burst = rx_burst,
                                         .tx_reserve = tx_reserve,
                                         .tx_commit = tx_commit,
                                         .tx_flush = tx_flush,
                                         .tx_waiting = tx_waiting,
                                         .wait = wait,
                                         .wake = wake};

static uint16_t choose_port(struct sim_host *host, uint16_t wanted) {
  if (wanted != 0) return wanted;
  do {
    host->last_port = (uint16_t)sml_max_u32(32768, (host->last_port + 1u) & 0xffffu);
  } while (sim_socket_at(host, host->last_port) != NULL);
  return host->last_port;
}

static int fail(int error, char *error_out, size_t error_bytes) {
  (void)snprintf(error_out, error_bytes, "simulated UDP socket: %s", strerror(error));
  return -error;
}

int __wrap_sml_udp_open(const struct sml_udp_options *options, struct sml_netio **io_out, char *error_out,
                        size_t error_bytes);
int __wrap_sml_udp_open(const struct sml_udp_options *options, struct sml_netio **io_out, char *error_out,
                        size_t error_bytes) {
  SML_ASSERT(sim_is_inside());
  *io_out = NULL;
  const int error = sim_call_error(SIM_CALL_UDP_OPEN);
  if (error != 0) return fail(error, error_out, error_bytes);
  struct sockaddr_in v4;
  memcpy(&v4, options->bind_addr->bytes, sizeof v4);
  if (v4.sin_family != AF_INET) return fail(EAFNOSUPPORT, error_out, error_bytes);
  struct sim_process *p = sim.fiber->process;
  const uint32_t ipv4 = ntohl(v4.sin_addr.s_addr);
  if (ipv4 != INADDR_ANY && sim_host_of(ipv4, p->host) != p->host) return fail(EADDRNOTAVAIL, error_out, error_bytes);
  const uint16_t port = choose_port(p->host, ntohs(v4.sin_port));
  if (sim_socket_at(p->host, port) != NULL) return fail(EADDRINUSE, error_out, error_bytes);
  struct sim_socket *s = sim_take(sizeof *s);
  s->io = (struct sml_netio){
      .ops = &ops, .max_frame_bytes = MAX_FRAME_BYTES, .has_segmentation_offload = !options->no_offload};
  s->process = p;
  s->host = p->host;
  s->ipv4 = ipv4 != INADDR_ANY ? ipv4 : p->host->ipv4;
  s->port = port;
  s->addr = sim_addr_of(s->ipv4, port);
  const uint32_t asked = options->rx_buffer_bytes != 0 ? options->rx_buffer_bytes : DEFAULT_QUEUE_BYTES;
  s->max_queue_bytes = sml_min_u32(asked, p->host->max_rx_buffer_bytes);
  s->next = p->sockets;
  if (p->sockets != NULL) p->sockets->prev = s;
  p->sockets = s;
  p->usage.num_data_sockets++;
  s->next_at_host = p->host->sockets[port % SIM_PORT_BUCKETS];
  p->host->sockets[port % SIM_PORT_BUCKETS] = s;
  *io_out = &s->io;
  return 0;
}
