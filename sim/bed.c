/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/bed.h"

#include <stdio.h>
#include <stdlib.h>

#define BURST_PACKETS 64u
#define TX_BYTES 65507u
#define PASS_NS (5 * SML_NS_PER_US) /* between two passes of an engine: a wake-up and some work */
/* With processors that are shared: what passes cost on the machine of the network bed. */
#define CPU_PASS_NS (15 * SML_NS_PER_US)
/* What Linux counts for a datagram in a socket: its buffer, a power of two with headers and bookkeeping, and an skb. */
#define SKB_BYTES 256u
#define SKB_HEAD_BYTES 362u

static void *must(void *memory) {
  if (memory != NULL) return memory;
  fputs("bed: out of memory\n", stderr);
  abort();
}

/* ---- links ---- */

static void init_link(struct bed_link *link, const struct bed_options *o, uint32_t number, bool is_lossy) {
  *link = (struct bed_link){.ring_mask = o->ring_packets - 1, .ns_per_byte = 8e9 / o->rate_bps, .is_lossy = is_lossy};
  link->packets = must(calloc(o->ring_packets, sizeof *link->packets));
  link->bytes = must(malloc((size_t)o->ring_packets * o->max_frame_bytes)); /* pages come with their first use */
  link->prng.state = sml_mix64(o->seed) ^ sml_mix64(number + 1);
}

uint64_t bed_link_backlog(const struct bed *bed, const struct bed_link *link) {
  return link->free_ns <= bed->now_ns ? 0 : (uint64_t)((double)(link->free_ns - bed->now_ns) / link->ns_per_byte);
}

static bool is_lost(struct bed *bed, struct bed_link *link) {
  const struct bed_options *o = &bed->options;
  if (!link->is_lossy || o->loss <= 0 || o->loss_kind == BED_LOSS_SEGMENTED) return false;
  if (link->burst_left > 0) {
    link->burst_left--;
    return true;
  }
  if (o->loss_kind != BED_LOSS_BURST) return sml_prng_chance(&link->prng, o->loss);
  /* A burst begins after a packet that is not in one: so many of those that the share comes out. */
  if (!sml_prng_chance(&link->prng, o->loss / (BURST_PACKETS * (1 - o->loss) + o->loss))) return false;
  link->burst_left = BURST_PACKETS - 1;
  return true;
}

/* When the last byte comes to the link: from the aggregator behind all that it sent before, to whomever. */
static uint64_t leave_port(struct bed *bed, uint16_t from, uint32_t wire_bytes) {
  if (from != 0 || bed->options.port_bps <= 0) return bed->now_ns;
  const double ns = wire_bytes * 8e9 / bed->options.port_bps;
  return bed->port_free_ns = sml_max_u64(bed->port_free_ns, bed->now_ns) + (uint64_t)ns;
}

uint64_t bed_link_send(struct bed *bed, struct bed_link *link, uint16_t from, const uint8_t *data, uint32_t num_bytes,
                       bool *is_marked_out) {
  const struct bed_options *o = &bed->options;
  const uint32_t wire_bytes = num_bytes + (data != NULL ? BED_FRAME_HEADER_BYTES : 0);
  const uint64_t backlog = bed_link_backlog(bed, link);
  const bool is_marked = o->mark_bytes > 0 && backlog > o->mark_bytes;
  if (is_marked_out != NULL) *is_marked_out = is_marked;
  if (backlog + wire_bytes > o->queue_bytes || (data != NULL && link->count == o->ring_packets)) {
    link->num_overflowed++;
    return SML_NEVER;
  }
  const uint64_t begin_ns = sml_max_u64(link->free_ns, leave_port(bed, from, wire_bytes));
  link->free_ns = begin_ns + (uint64_t)((double)wire_bytes * link->ns_per_byte);
  const uint64_t at_ns = link->free_ns + o->delay_ns;
  if (data == NULL) return at_ns;
  link->num_packets++;
  link->num_bytes += wire_bytes;
  link->num_marked += is_marked;
  if (is_lost(bed, link)) {
    link->num_lost++;
    return SML_NEVER;
  }
  SML_ASSERT(num_bytes <= o->max_frame_bytes);
  const uint32_t place = (link->head + link->count++) & link->ring_mask;
  link->packets[place] =
      (struct bed_packet){.at_ns = at_ns, .num_bytes = num_bytes, .from = from, .is_marked = is_marked};
  memcpy(link->bytes + (size_t)place * o->max_frame_bytes, data, num_bytes);
  return at_ns;
}

/* The next packet of a link that has not been handed out, or NULL. */
static const struct bed_packet *next_packet(const struct bed_link *link) {
  return link->num_lent == link->count ? NULL : &link->packets[(link->head + link->num_lent) & link->ring_mask];
}

/* ---- the packet back end ---- */

static struct bed_node *node_of(struct sml_netio *io) {
  return (struct bed_node *)(void *)io;
}

static void take_back(struct bed_link *link) {
  link->head = (link->head + link->num_lent) & link->ring_mask;
  link->count -= link->num_lent;
  link->num_arrived -= sml_min_u32(link->num_arrived, link->num_lent);
  link->num_lent = 0;
}

static uint32_t room_of(const struct bed_packet *packet) {
  return SKB_BYTES + (1u << sml_ceil_log2(packet->num_bytes + SKB_HEAD_BYTES));
}

/* What came since the last time, while nobody took anything out of the socket: the first ones have room. */
static void fill_socket(const struct bed *bed, struct bed_link *link) {
  for (; link->num_arrived < link->count; link->num_arrived++) {
    struct bed_packet *packet = &link->packets[(link->head + link->num_arrived) & link->ring_mask];
    if (packet->at_ns > bed->now_ns) return;
    packet->has_no_room = link->socket_bytes + room_of(packet) > bed->options.socket_bytes;
    if (packet->has_no_room) link->num_without_room++;
    else link->socket_bytes += room_of(packet);
  }
}

/* The link to a node whose next packet arrives first, or NULL. */
static struct bed_link *first_link(struct bed *bed, uint32_t number) {
  if (number > 0) return next_packet(&bed->down[number - 1]) != NULL ? &bed->down[number - 1] : NULL;
  struct bed_link *first = NULL;
  for (uint32_t r = 0; r < bed->options.num_ranks; r++) {
    const struct bed_packet *packet = next_packet(&bed->up[r]);
    if (packet != NULL && (first == NULL || packet->at_ns < next_packet(first)->at_ns)) first = &bed->up[r];
  }
  return first;
}

static size_t rx_burst(struct sml_netio *io, struct sml_rx_frame *frames, size_t max) {
  struct bed_node *node = node_of(io);
  struct bed *bed = node->bed;
  if (node->number > 0) take_back(&bed->down[node->number - 1]);
  else
    for (uint32_t r = 0; r < bed->options.num_ranks; r++) take_back(&bed->up[r]);
  size_t num_frames = 0;
  struct bed_link *link;
  const bool has_limit = node->number > 0 && bed->options.socket_bytes > 0;
  if (has_limit) fill_socket(bed, &bed->down[node->number - 1]);
  while (num_frames < max && (link = first_link(bed, node->number)) != NULL) {
    const struct bed_packet *packet = next_packet(link);
    if (packet->at_ns > bed->now_ns) break;
    if (packet->has_no_room) {
      link->num_lent++;
      continue;
    }
    if (has_limit) link->socket_bytes -= room_of(packet);
    const uint32_t place = (link->head + link->num_lent++) & link->ring_mask;
    const uint8_t *data = link->bytes + (size_t)place * bed->options.max_frame_bytes;
    frames[num_frames++] = (struct sml_rx_frame){.data = data,
                                                 .num_bytes = packet->num_bytes,
                                                 .from = &bed->nodes[packet->from].addr,
                                                 .is_marked = packet->is_marked};
    if (bed->on_received != NULL) bed->on_received(bed->user, node->number, data, packet->num_bytes);
  }
  io->stats.rx_frames += num_frames;
  return num_frames;
}

static void tx_reserve(struct sml_netio *io, uint32_t frame_bytes, struct sml_tx_burst *burst_out) {
  const uint32_t max_frames = frame_bytes == 0 ? 0 : sml_min_u32(64, TX_BYTES / frame_bytes);
  *burst_out =
      (struct sml_tx_burst){.data = node_of(io)->tx_buffer, .frame_bytes = frame_bytes, .max_frames = max_frames};
}

/* The last packets of a link arrive with the very last one. */
static void join_packets(const struct bed_link *link, uint32_t num) {
  for (uint32_t i = 0; i < num; i++) {
    struct bed_packet *packet = &link->packets[(link->head + link->count - num + i) & link->ring_mask];
    packet->at_ns = link->packets[(link->head + link->count - 1) & link->ring_mask].at_ns;
  }
}

static void tx_commit(struct sml_netio *io, struct sml_tx_burst *burst, uint32_t num_frames, uint32_t last_bytes,
                      const struct sml_addr *peers, size_t num_peers) {
  struct bed_node *node = node_of(io);
  struct bed *bed = node->bed;
  for (size_t p = 0; p < num_peers; p++) {
    struct bed_link *link = node->number > 0 ? &bed->up[node->number - 1] : &bed->down[peers[p].bytes[0] - 1];
    const bool is_dropped = link->is_lossy && bed->options.loss_kind == BED_LOSS_SEGMENTED && num_frames > 0 &&
                            sml_prng_chance(&link->prng, bed->options.loss);
    const uint32_t num_before = link->count;
    if (is_dropped) link->burst_left = num_frames;
    for (uint32_t i = 0; i < num_frames; i++) {
      const uint32_t num_bytes = i + 1 == num_frames ? last_bytes : burst->frame_bytes;
      if (!sml_tx_is_for(burst, i, p)) continue;
      io->stats.tx_frames++;
      if (is_dropped) {
        link->free_ns = sml_max_u64(link->free_ns, bed->now_ns) +
                        (uint64_t)((num_bytes + BED_FRAME_HEADER_BYTES) * link->ns_per_byte);
        link->num_packets++;
        link->num_lost++;
        continue;
      }
      (void)bed_link_send(bed, link, (uint16_t)node->number, burst->data + (size_t)i * burst->frame_bytes, num_bytes,
                          NULL);
    }
    link->burst_left = is_dropped ? 0 : link->burst_left;
    if (bed->options.keeps_segments) join_packets(link, link->count - num_before);
  }
}

static void do_nothing(struct sml_netio *io) {
  (void)io;
}
static void do_not_wait(struct sml_netio *io, uint64_t timeout_ns) {
  (void)io;
  (void)timeout_ns;
}
static void local_addr(struct sml_netio *io, struct sml_addr *addr_out) {
  *addr_out = node_of(io)->addr;
}

/* A host's own queue is the one before its link. */
static uint64_t tx_waiting(struct sml_netio *io) {
  const struct bed_node *node = node_of(io);
  if (node->number == 0 || !node->bed->options.tells_queue) return 0;
  return bed_link_backlog(node->bed, &node->bed->up[node->number - 1]);
}

static const struct sml_netio_ops ops = {.name = "bed",
                                         .close = do_nothing,
                                         .local_addr = local_addr,
                                         .rx_burst = rx_burst,
                                         .tx_reserve = tx_reserve,
                                         .tx_commit = tx_commit,
                                         .tx_flush = do_nothing,
                                         .tx_waiting = tx_waiting,
                                         .wait = do_not_wait,
                                         .wake = do_nothing};

void bed_init(struct bed *bed, const struct bed_options *o) {
  SML_ASSERT(o->num_ranks < BED_MAX_NODES && sml_is_pow2(o->ring_packets) && o->num_cpus <= BED_MAX_CPUS);
  *bed = (struct bed){.options = *o, .now_ns = SML_NS_PER_S};
  for (uint32_t n = 0; n <= o->num_ranks; n++) {
    struct bed_node *node = &bed->nodes[n];
    *node = (struct bed_node){
        .io = {.ops = &ops, .max_frame_bytes = o->max_frame_bytes, .rx_buffer_bytes = n > 0 ? o->socket_bytes : 0},
        .bed = bed,
        .number = n,
        .addr = {.bytes = {(uint8_t)n}, .num_bytes = 1}};
    node->tx_buffer = must(aligned_alloc(64, 65536));
  }
  const bool is_one = o->loss_kind == BED_LOSS_ONE_RECEIVER;
  for (uint32_t r = 0; r < o->num_ranks; r++) {
    init_link(&bed->up[r], o, 2 * r, !is_one);
    init_link(&bed->down[r], o, 2 * r + 1, !is_one || r == 0);
  }
}

void bed_free(struct bed *bed) {
  for (uint32_t n = 0; n <= bed->options.num_ranks; n++) free(bed->nodes[n].tx_buffer);
  for (uint32_t r = 0; r < bed->options.num_ranks; r++) {
    free(bed->up[r].packets);
    free(bed->up[r].bytes);
    free(bed->down[r].packets);
    free(bed->down[r].bytes);
  }
}

/* ---- time ---- */

/* When a node has a processor: a starved one for a part of the time only. */
static uint64_t next_turn(const struct bed *bed, const struct bed_node *node, uint64_t wake_ns) {
  const struct bed_options *o = &bed->options;
  const bool are_all = o->starved_rank == BED_ALL_NODES;
  if (o->starved_period_ns == 0 || (!are_all && node->number != o->starved_rank + 1)) return wake_ns;
  wake_ns = sml_max_u64(wake_ns, node->busy_until_ns);
  const uint64_t shift_ns = are_all ? o->starved_period_ns / (o->num_ranks + 1) * node->number : 0;
  const uint64_t passed_ns = (wake_ns + shift_ns) % o->starved_period_ns;
  return wake_ns >= SML_NEVER - o->starved_period_ns || passed_ns < o->starved_run_ns
             ? wake_ns
             : wake_ns - passed_ns + o->starved_period_ns;
}

/* When the engine looks again: at its deadline, or at the first frame, but not before what it gathers. */
static uint64_t wake_time(struct bed *bed, struct bed_node *node) {
  uint64_t wake_ns = node->deadline_ns;
  if (node->io.gather_ns > 0) {
    wake_ns = sml_min_u64(wake_ns, node->last_run_ns + node->io.gather_ns);
  } else {
    const struct bed_link *link = first_link(bed, node->number);
    if (link != NULL) wake_ns = sml_min_u64(wake_ns, next_packet(link)->at_ns);
  }
  return next_turn(bed, node, sml_max_u64(wake_ns, node->last_run_ns + PASS_NS));
}

static uint64_t *first_free_cpu(struct bed *bed) {
  uint64_t *first = &bed->cpu_free_ns[0];
  for (uint32_t c = 1; c < bed->options.num_cpus; c++)
    if (bed->cpu_free_ns[c] < *first) first = &bed->cpu_free_ns[c];
  return first;
}

static uint64_t num_frames_of(const struct bed_node *node) {
  return node->io.stats.rx_frames + node->io.stats.tx_frames;
}

bool bed_step(struct bed *bed, uint64_t until_ns) {
  struct bed_node *next = NULL;
  uint64_t next_ns = until_ns;
  for (uint32_t n = 0; n <= bed->options.num_ranks; n++) {
    struct bed_node *node = &bed->nodes[n];
    const uint64_t wake_ns = node->engine != NULL ? wake_time(bed, node) : SML_NEVER;
    if (wake_ns >= next_ns) continue;
    next = node;
    next_ns = wake_ns;
  }
  uint64_t *cpu = first_free_cpu(bed);
  if (next != NULL && *cpu > next_ns) { /* who was to wake first gets the first processor */
    if (*cpu >= until_ns) next = NULL;
    next_ns = sml_min_u64(*cpu, until_ns);
  }
  bed->now_ns = sml_max_u64(bed->now_ns, next_ns);
  if (next == NULL) return false;
  const uint64_t num_frames = num_frames_of(next);
  next->last_run_ns = bed->now_ns;
  next->deadline_ns = next->run_once(next->engine, bed->now_ns);
  next->busy_until_ns = bed->now_ns + CPU_PASS_NS + (num_frames_of(next) - num_frames) * bed->options.frame_ns;
  if (bed->options.num_cpus > 0) *cpu = next->busy_until_ns;
  return true;
}
