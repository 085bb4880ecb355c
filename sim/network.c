/* SPDX-License-Identifier: Apache-2.0
 * Hosts on a star of links, and all that can befall a datagram. A datagram is timed by its up link when it is
 * sent, by its down link when it comes to it, and waits there for its socket: one event in its life, and
 * none of its own unless it is delayed by itself. */
#include "sim/network.h"

#include <errno.h>
#include <netinet/in.h>

#define BURST_PACKETS 64u
#define BURST_NS (100 * SML_NS_PER_MS) /* a link on which little is left to send is not down for seconds */
#define OVERHEAD_BYTES 28u             /* IPv4 and UDP headers */
#define LOCAL_DELAY_NS (5 * SML_NS_PER_US)
#define HOLD_NS (1 * SML_NS_PER_S)
#define TABLE_SLOTS 1024u /* a power of two, well above SIM_MAX_HOSTS */

static uint16_t host_table[TABLE_SLOTS]; /* index + 1 by address */

static const char *const count_names[SIM_NUM_COUNTS] = {
    [SIM_DATAGRAMS_SENT] = "datagrams_sent",
    [SIM_DATAGRAMS_DELIVERED] = "datagrams_delivered",
    [SIM_LOST] = "lost",
    [SIM_LOST_IN_BURST] = "lost_in_burst",
    [SIM_DUPLICATED] = "duplicated",
    [SIM_REORDERED] = "reordered",
    [SIM_CORRUPTED] = "corrupted",
    [SIM_TRUNCATED] = "truncated",
    [SIM_LOST_BY_CUT] = "lost_by_cut",
    [SIM_LOST_IN_LINK_QUEUE] = "lost_in_link_queue",
    [SIM_LOST_IN_SOCKET_QUEUE] = "lost_in_socket_queue",
    [SIM_LOST_NO_SOCKET] = "lost_no_socket",
    [SIM_LOST_TOO_LONG] = "lost_too_long",
    [SIM_STREAM_STALLS] = "stream_stalls",
    [SIM_STREAM_RESETS] = "stream_resets",
    [SIM_CONNECTS_REFUSED] = "connects_refused",
    [SIM_SHORT_READS] = "short_reads",
    [SIM_SHORT_WRITES] = "short_writes",
    [SIM_KILLS] = "kills",
    [SIM_PAUSES] = "pauses",
    [SIM_SPURIOUS_WAKES] = "spurious_wakes",
    [SIM_LATE_WAKES] = "late_wakes",
    [SIM_CALLS_FAILED] = "calls_failed",
};

const char *sim_count_name(enum sim_count what) {
  return count_names[what];
}

uint64_t sim_count(enum sim_count what) {
  return sim.counts[what];
}

/* ---- hosts ---- */

static uint32_t slot_of(uint32_t ipv4) {
  uint32_t slot = (ipv4 * 2654435761u) >> 22;
  while (host_table[slot] != 0 && sim.hosts[host_table[slot] - 1u]->ipv4 != ipv4) slot = (slot + 1) % TABLE_SLOTS;
  return slot;
}

struct sim_host *sim_host_of(uint32_t ipv4, struct sim_host *self) {
  if (ipv4 >> 24 == 127) return self;
  const uint32_t entry = host_table[slot_of(ipv4)];
  return entry == 0 ? NULL : sim.hosts[entry - 1];
}

static void midway(struct sim_timer *timer);

struct sim_host *sim_host_add(const struct sim_host_options *o) {
  SML_ASSERT(sim.num_hosts < SIM_MAX_HOSTS && host_table[slot_of(o->ipv4)] == 0);
  struct sim_host *h = sim_take(sizeof *h);
  h->timer.fire = midway;
  (void)snprintf(h->name, sizeof h->name, "%s", o->name);
  h->ipv4 = o->ipv4;
  h->idx = sim.num_hosts;
  h->up.options = o->up;
  h->down.options = o->down;
  h->mtu_bytes = o->mtu_bytes != 0 ? o->mtu_bytes : 1500;
  h->told_mtu_bytes = o->told_mtu_bytes != 0 ? o->told_mtu_bytes : h->mtu_bytes;
  h->max_rx_buffer_bytes = o->max_rx_buffer_bytes != 0 ? o->max_rx_buffer_bytes : UINT32_MAX;
  h->last_port = (uint16_t)(40000 + sml_prng_below(&sim.system, 20000));
  sim.hosts[sim.num_hosts++] = h;
  host_table[slot_of(o->ipv4)] = (uint16_t)sim.num_hosts;
  return h;
}

void sim_hosts_free(void) {
  for (uint32_t i = 0; i < sim.num_hosts; i++) {
    sim_host_free_files(sim.hosts[i]);
    __real_free(sim.hosts[i]);
  }
  sim.num_hosts = 0;
  memset(host_table, 0, sizeof host_table);
}

const char *sim_host_name(const struct sim_host *host) {
  return host->name;
}

uint32_t sim_host_ipv4(const struct sim_host *host) {
  return host->ipv4;
}

void sim_host_set_links(struct sim_host *host, const struct sim_link *up, const struct sim_link *down) {
  host->up.options = *up;
  host->down.options = *down;
  if (up->faults.burst_loss == 0) host->up.burst_left = 0;
  if (down->faults.burst_loss == 0) host->down.burst_left = 0;
}

void sim_cut(struct sim_host *from, struct sim_host *to, bool is_cut) {
  if (is_cut) sml_bit_set(from->cut_to, to->idx);
  else sml_bit_clear(from->cut_to, to->idx);
  SIM_TRACE("from %s to %s: %s", from->name, to->name, is_cut ? "cut" : "healed");
}

void sim_host_set_dead(struct sim_host *host, bool is_dead) {
  if (host->is_dead == is_dead) return;
  host->is_dead = is_dead;
  SIM_TRACE("host %s is %s", host->name, is_dead ? "dead" : "up again");
  if (!is_dead) return;
  sim_streams_vanish(host);
  struct sim_process *own = NULL; /* the caller's, last: that does not return */
  for (struct sim_process *p = sim.processes; p != NULL; p = p->next) {
    if (p->host != host) continue;
    if (sim.fiber != NULL && sim.fiber->process == p) own = p;
    else sim_kill(p);
  }
  if (own != NULL) sim_kill(own);
}

bool sim_path_is_open(const struct sim_host *from, const struct sim_host *to) {
  return !from->is_dead && !to->is_dead && !sml_bit_test(from->cut_to, to->idx);
}

uint64_t sim_path_delay(const struct sim_host *from, const struct sim_host *to) {
  const uint64_t fixed_ns =
      from == to ? LOCAL_DELAY_NS : from->up.options.delay_ns + to->down.options.delay_ns + LOCAL_DELAY_NS;
  return fixed_ns + sml_prng_below(&sim.network, fixed_ns / 4 + 1);
}

void sim_set_monitor(const struct sim_monitor *monitor) {
  sim.monitor = monitor != NULL ? *monitor : (struct sim_monitor){.user = NULL};
}

/* ---- links ---- */

/* Puts the packet behind what the link has to carry already. False: its queue is full. */
static bool pass_link(struct sim_link_state *link, struct sim_packet *p, uint64_t now_ns) {
  const struct sim_link *o = &link->options;
  p->at_ns = now_ns + o->delay_ns;
  if (o->bits_per_s == 0) return true;
  const uint64_t begin_ns = sml_max_u64(now_ns, link->busy_until_ns);
  const double ns_per_byte = 8e9 / (double)o->bits_per_s;
  const double waiting_bytes = (double)(begin_ns - now_ns) / ns_per_byte;
  if (o->queue_bytes != 0 && waiting_bytes > (double)o->queue_bytes) return false;
  link->busy_until_ns = begin_ns + (uint64_t)((double)(p->num_bytes + OVERHEAD_BYTES) * ns_per_byte);
  p->at_ns = link->busy_until_ns + o->delay_ns;
  return true;
}

static bool is_hit(double probability) {
  return probability > 0 && sml_prng_chance(&sim.network, probability);
}

/* Its own bytes: others may share the buffer. */
static void make_own(struct sim_packet *p) {
  struct sim_buffer *own = sim_buffer_take(p->num_bytes);
  memcpy(own->bytes, p->data, p->num_bytes);
  sim_buffer_release(p->buffer);
  p->buffer = own;
  p->data = own->bytes;
}

static void alter(struct sim_link_state *link, struct sim_packet *p) {
  const struct sim_faults *f = &link->options.faults;
  if (is_hit(f->corrupt) && p->num_bytes > 0) {
    make_own(p);
    for (uint64_t n = 1 + sml_prng_below(&sim.network, 8); n > 0; n--) {
      const uint64_t bit = sml_prng_below(&sim.network, (uint64_t)p->num_bytes * 8);
      p->data[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    p->is_altered = true;
    sim.counts[SIM_CORRUPTED]++;
  }
  if (is_hit(f->truncate) && p->num_bytes > 0) {
    p->num_bytes = (uint32_t)sml_prng_below(&sim.network, p->num_bytes);
    p->is_altered = true;
    sim.counts[SIM_TRUNCATED]++;
  }
}

static bool is_lost(struct sim_link_state *link, enum sim_count *why_out) {
  const struct sim_faults *f = &link->options.faults;
  *why_out = SIM_LOST_IN_BURST;
  if (link->burst_left > 0 && sim.now_ns < link->burst_end_ns) {
    link->burst_left--;
    return true;
  }
  if (is_hit(f->burst_loss)) {
    link->burst_left = BURST_PACKETS - 1;
    link->burst_end_ns = sim.now_ns + BURST_NS;
    return true;
  }
  *why_out = SIM_LOST;
  return is_hit(f->loss);
}

void sim_packet_lose(struct sim_packet *p, enum sim_count why) {
  sim.counts[why]++;
  sim_note(EVENT_LOST, why);
  SIM_TRACE("datagram of %u bytes to port %u is gone: %s", p->num_bytes, p->to_port, count_names[why]);
  sim_packet_release(p);
}

/* ---- from the up link to the down link ---- */

static void arrive_at_port(struct sim_host *to, struct sim_packet *p) {
  struct sim_socket *socket = sim_socket_at(to, p->to_port);
  if (socket == NULL) sim_packet_lose(p, SIM_LOST_NO_SOCKET);
  else sim_socket_arrive(socket, p);
}

/* The packet is at its receiver's link. */
static void enter_down_link(struct sim_packet *p) {
  struct sim_host *to = p->to;
  enum sim_count why;
  p->at_ns = sim.now_ns;
  sim_note(EVENT_MIDWAY, p->to_port);
  struct sim_host *from = sim_host_of(p->from_ipv4, to);
  if (to->is_dead || (from != NULL && sml_bit_test(from->cut_to, to->idx))) {
    sim_packet_lose(p, SIM_LOST_BY_CUT);
    return;
  }
  if (p->has_faults) {
    if (is_lost(&to->down, &why)) {
      sim_packet_lose(p, why);
      return;
    }
    alter(&to->down, p);
  }
  if (p->num_bytes + OVERHEAD_BYTES > to->mtu_bytes) sim_packet_lose(p, SIM_LOST_TOO_LONG);
  else if (!pass_link(&to->down, p, sim.now_ns)) sim_packet_lose(p, SIM_LOST_IN_LINK_QUEUE);
  else arrive_at_port(to, p);
}

static void midway(struct sim_timer *timer) {
  struct sim_host *h = (struct sim_host *)timer;
  while (h->flight_head != NULL && h->flight_head->at_ns <= sim.now_ns) {
    struct sim_packet *p = h->flight_head;
    h->flight_head = p->next;
    p->next = NULL;
    enter_down_link(p);
  }
  if (h->flight_head != NULL) sim_timer_set(&h->timer, h->flight_head->at_ns);
}

static void delayed(struct sim_timer *timer) {
  enter_down_link((struct sim_packet *)timer);
}

static void travel(struct sim_host *from, struct sim_packet *p, uint64_t extra_ns) {
  if (extra_ns > 0 || from == NULL) {
    p->timer = (struct sim_timer){.fire = delayed};
    sim_timer_set(&p->timer, p->at_ns + extra_ns);
    return;
  }
  if (from->flight_head != NULL) {
    p->at_ns = sml_max_u64(p->at_ns, from->flight_tail->at_ns); /* a shorter delay was set meanwhile */
    from->flight_tail->next = p;
  } else {
    from->flight_head = p;
    sim_timer_set(&from->timer, p->at_ns);
  }
  from->flight_tail = p;
}

/* ---- sending ---- */

static enum sim_fate ask_monitor(const struct sim_packet *p) {
  if (sim.monitor.on_sent == NULL) return SIM_FATE_DRAWN;
  const struct sim_datagram d = {.from_ipv4 = p->from_ipv4,
                                 .to_ipv4 = p->to_ipv4,
                                 .from_port = p->from_port,
                                 .to_port = p->to_port,
                                 .data = p->data,
                                 .num_bytes = p->num_bytes,
                                 .is_forged = p->is_forged};
  sim.hook_depth++;
  const enum sim_fate fate = sim.monitor.on_sent(sim.monitor.user, &d);
  sim.hook_depth--;
  return fate;
}

static struct sim_packet *copy_packet(const struct sim_packet *p) {
  struct sim_packet *copy = sim_packet_take();
  *copy = *p;
  copy->timer = (struct sim_timer){.fire = delayed};
  copy->next = NULL;
  copy->buffer->num_refs++;
  return copy;
}

/* A packet through the up link of its host, whatever befalls it. */
static void enter_up_link(struct sim_host *from, struct sim_packet *p, enum sim_fate fate) {
  enum sim_count why = SIM_LOST;
  uint64_t extra_ns = fate == SIM_FATE_HOLD ? HOLD_NS : 0;
  const struct sim_faults *f = &from->up.options.faults;
  p->has_faults = fate == SIM_FATE_DRAWN;
  if (fate == SIM_FATE_LOSE || (p->has_faults && is_lost(&from->up, &why))) {
    sim_packet_lose(p, why);
    return;
  }
  if (!pass_link(&from->up, p, sim_local_ns())) {
    sim_packet_lose(p, SIM_LOST_IN_LINK_QUEUE);
    return;
  }
  if (p->has_faults ? is_hit(f->duplicate) : fate == SIM_FATE_DUPLICATE) {
    sim.counts[SIM_DUPLICATED]++;
    travel(from, copy_packet(p), p->has_faults ? sml_prng_below(&sim.network, f->reorder_ns + 1) : 0);
  }
  if (p->has_faults) {
    alter(&from->up, p);
    if (is_hit(f->reorder)) {
      extra_ns = sml_prng_below(&sim.network, f->reorder_ns + 1);
      sim.counts[SIM_REORDERED]++;
    }
  }
  travel(from, p, extra_ns);
}

struct sml_addr sim_addr_of(uint32_t ipv4, uint16_t port) {
  const struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(ipv4)};
  struct sml_addr addr = {.num_bytes = sizeof v4};
  memcpy(addr.bytes, &v4, sizeof v4);
  return addr;
}

bool sim_network_send(struct sim_socket *from, struct sim_buffer *buffer, uint8_t *data, uint32_t num_bytes,
                      uint32_t to_ipv4, uint16_t to_port) {
  struct sim_host *host = from->host;
  if (num_bytes + OVERHEAD_BYTES > host->mtu_bytes) {
    sim.counts[SIM_LOST_TOO_LONG]++;
    return false;
  }
  struct sim_packet *p = sim_packet_take();
  buffer->num_refs++;
  p->buffer = buffer;
  p->data = data;
  p->num_bytes = num_bytes;
  const bool is_loopback = to_ipv4 >> 24 == 127;
  p->from_ipv4 = is_loopback ? to_ipv4 : from->ipv4;
  p->from_port = from->port;
  p->from = is_loopback ? sim_addr_of(to_ipv4, from->port) : from->addr;
  p->to_ipv4 = to_ipv4;
  p->to_port = to_port;
  p->to = sim_host_of(to_ipv4, host);
  sim.counts[SIM_DATAGRAMS_SENT]++;
  const enum sim_fate fate = ask_monitor(p);
  SIM_TRACE("sends %u bytes to %s port %u", num_bytes, p->to != NULL ? p->to->name : "nobody", to_port);
  if (p->to == NULL) {
    sim_packet_lose(p, SIM_LOST_NO_SOCKET);
  } else if (p->to == host) {
    p->at_ns = sim_local_ns() + LOCAL_DELAY_NS;
    arrive_at_port(host, p);
  } else {
    enter_up_link(host, p, fate);
  }
  return true;
}

void sim_inject(uint32_t from_ipv4, uint16_t from_port, uint32_t to_ipv4, uint16_t to_port, const void *data,
                uint32_t num_bytes) {
  struct sim_host *to = sim_host_of(to_ipv4, NULL);
  SML_ASSERT(to != NULL && num_bytes <= SIM_BUFFER_BYTES);
  struct sim_packet *p = sim_packet_take();
  p->buffer = sim_buffer_take(num_bytes);
  p->data = p->buffer->bytes;
  if (num_bytes > 0) memcpy(p->data, data, num_bytes);
  p->num_bytes = num_bytes;
  p->from_ipv4 = from_ipv4;
  p->from_port = from_port;
  p->from = sim_addr_of(from_ipv4, from_port);
  p->to_ipv4 = to_ipv4;
  p->to_port = to_port;
  p->to = to;
  p->is_forged = true;
  p->at_ns = sim_local_ns();
  travel(NULL, p, 0);
}
