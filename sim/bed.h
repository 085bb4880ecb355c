/* SPDX-License-Identifier: Apache-2.0
 * A star of shaped links in virtual time for the engines alone (no processes, no control connection): what `loss`
 * measures on. Node 0 is the aggregator, node r + 1 is rank r; each rank has a link up and one down with a rate, a
 * delay and a queue that drops at its tail and marks above a depth. The aggregator's own link may limit all results. */
#pragma once

#include "netio/netio.h"

#define BED_MAX_NODES 65u
#define BED_FRAME_HEADER_BYTES 42u /* Ethernet, IPv4, UDP: what a shaper counts beside the datagram */

/* Which packets are lost at the far end of a link: their bytes did cross it. */
enum bed_loss {
  BED_LOSS_UNIFORM,      /* each by itself */
  BED_LOSS_BURST,        /* runs of 64 */
  BED_LOSS_ONE_RECEIVER, /* each by itself, of the results to rank 0 only */
  BED_LOSS_SEGMENTED,    /* whole bursts, as one send carries them to one receiver */
  BED_NUM_LOSSES
};

struct bed_options {
  uint32_t num_ranks;
  double rate_bps, port_bps;        /* of each rank's links; of the aggregator's link out (0: any) */
  uint64_t delay_ns;                /* one way, of a link */
  uint64_t queue_bytes, mark_bytes; /* limit; depth from which packets are marked (0: never) */
  enum bed_loss loss_kind;
  double loss;                            /* share of packets */
  uint32_t max_frame_bytes, ring_packets; /* of those: what a link holds, a power of two */
  uint64_t seed;
  /* Processors that all engines share, so that they wait for each other; 0: each has one. A pass takes one for a fixed
   * time, and some for each frame (sim/bed.c). */
  uint32_t num_cpus;
  uint64_t frame_ns; /* the latter */
  /* A rank that lacks processor time: it runs for the first run_ns of each period_ns only (0: always), and then a pass
   * takes it as long as with shared processors. ALL_NODES: all do, and the aggregator, but at different times. */
  uint32_t starved_rank;
  uint64_t starved_run_ns, starved_period_ns;
  /* What a rank's socket holds, with the system's part of each datagram; what comes beyond is lost. 0: any number. */
  uint64_t socket_bytes;
  bool tells_queue;    /* ranks know what waits before their links, as Linux tells */
  bool keeps_segments; /* what one send carries to one receiver arrives together, as segmentation offload has it */
};
#define BED_MAX_CPUS 64u
#define BED_ALL_NODES UINT32_MAX

struct bed_packet {
  uint64_t at_ns; /* when it arrives */
  uint32_t num_bytes;
  uint16_t from;
  bool is_marked;
  bool has_no_room; /* it came to a full socket */
};

/* Packets on their way, oldest first: a ring of cells. The first num_lent are in the hands of the receiver. */
struct bed_link {
  double ns_per_byte;
  uint64_t free_ns; /* when the last byte that was given to it is through */
  struct bed_packet *packets;
  uint8_t *bytes;
  uint32_t ring_mask, head, count, num_lent, burst_left;
  uint32_t num_arrived;  /* of count: came to the socket, or to a full one */
  uint64_t socket_bytes; /* that these take there, less those that were lent */
  bool is_lossy;
  struct sml_prng prng;
  uint64_t num_packets, num_bytes, num_lost, num_overflowed, num_marked, num_without_room;
};

struct bed_node {
  struct sml_netio io; /* first */
  struct bed *bed;
  uint32_t number;
  struct sml_addr addr;
  uint8_t *tx_buffer;
  /* every frame that a node sends, and that it gets, with what the observer needs to know */
  void *engine;
  uint64_t (*run_once)(void *engine, uint64_t now_ns);
  uint64_t last_run_ns, deadline_ns;
  uint64_t busy_until_ns; /* of a starved rank */
};

struct bed {
  struct bed_options options;
  uint64_t now_ns;
  uint64_t port_free_ns; /* when all that the aggregator sent has left its own link */
  uint64_t cpu_free_ns[BED_MAX_CPUS];
  struct bed_node nodes[BED_MAX_NODES];
  struct bed_link up[BED_MAX_NODES], down[BED_MAX_NODES]; /* of rank r */
  /* Sees each frame as it is handed to its receiver. */
  void (*on_received)(void *user, uint32_t to, const uint8_t *data, uint32_t num_bytes);
  void *user;
};

void bed_init(struct bed *bed, const struct bed_options *options);
void bed_free(struct bed *bed);
/* Puts a packet on a link. data NULL: not ours, only in the way. Returns when it arrives; SML_NEVER: it does not. */
uint64_t bed_link_send(struct bed *bed, struct bed_link *link, uint16_t from, const uint8_t *data, uint32_t num_bytes,
                       bool *is_marked_out);
/* Bytes that wait on a link. */
uint64_t bed_link_backlog(const struct bed *bed, const struct bed_link *link);
/* Moves the clock to the next thing to do, but not beyond until_ns, and runs one engine. False: nothing is left to
 * do before until_ns, where the clock is now. */
bool bed_step(struct bed *bed, uint64_t until_ns);
