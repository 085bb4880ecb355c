/* SPDX-License-Identifier: Apache-2.0
 * What network.c (hosts, links, faults), packet.c (memory) and datagram.c (the packet back end) share. */
#pragma once

#include "netio/netio.h"
#include "sim/internal.h"

/* Bytes of frames; packets point into it. It goes back to its pool with its last reference. */
struct sim_buffer {
  struct sim_buffer *next; /* in its pool */
  uint32_t num_refs, size_class;
  _Alignas(64) uint8_t bytes[];
};
#define SIM_BUFFER_BYTES 65536u                         /* of the largest class */
struct sim_buffer *sim_buffer_take(uint32_t num_bytes); /* one reference */
void sim_buffer_release(struct sim_buffer *buffer);

struct sim_packet {
  struct sim_timer timer; /* first: of one that is delayed by itself */
  struct sim_packet *next;
  struct sim_buffer *buffer;
  uint8_t *data;
  uint64_t at_ns; /* midway: when it is through the up link; then: when it arrives at the socket */
  uint32_t num_bytes, to_ipv4;
  uint16_t to_port, from_port;
  uint32_t from_ipv4;
  bool is_forged, is_altered, has_faults;
  struct sim_host *to;
  struct sml_addr from;
};
struct sim_packet *sim_packet_take(void); /* zeroed but for its buffer fields */
void sim_packet_release(struct sim_packet *packet);

struct sim_socket {                /* a simulated sml_netio */
  struct sml_netio io;             /* first */
  struct sim_socket *prev, *next;  /* of the process */
  struct sim_socket *next_at_host; /* in its bucket */
  struct sim_process *process;
  struct sim_host *host;
  struct sim_fiber *waiter; /* in wait() */
  bool is_gathering, is_woken, may_have_more;
  uint32_t ipv4;
  uint16_t port;
  struct sml_addr addr;
  /* Three parts of one way, in order: on the down link; in the receive queue; lent to the program. */
  struct sim_packet *flight_head, *flight_tail, *ready_head, *ready_tail, *lent;
  uint64_t queue_bytes, max_queue_bytes;
  struct sim_buffer *tx_buffer;
  uint32_t tx_used_bytes;
};

struct sml_addr sim_addr_of(uint32_t ipv4, uint16_t port);
/* One copy of a frame to one peer. The buffer is referred to once more. False: it is too long to be sent. */
bool sim_network_send(struct sim_socket *from, struct sim_buffer *buffer, uint8_t *data, uint32_t num_bytes,
                      uint32_t to_ipv4, uint16_t to_port);
/* At its host, at packet->at_ns. Takes the packet. */
void sim_socket_arrive(struct sim_socket *socket, struct sim_packet *packet);
void sim_packet_lose(struct sim_packet *packet, enum sim_count why);
