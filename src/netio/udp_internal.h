/* SPDX-License-Identifier: Apache-2.0
 * The udp back end's own: one structure in three parts, udp.c (open, wait, close), udp_rx.c, udp_tx.c. */
#pragma once

#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "netio/netio.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

#define SML_UDP_ECN_CAPABLE 2 /* ECT(0), and both bits set: Congestion Experienced (RFC 3168) */
#define SML_UDP_ECN_MARKED 3

#define SML_UDP_MAX_PAYLOAD_BYTES 65507u            /* 65535 - IPv4 header - UDP header */
#define SML_UDP_MAX_SEGMENTS SML_NETIO_BURST_FRAMES /* the kernel's limit for one UDP_SEGMENT send */
#define SML_UDP_BATCH_MESSAGES 64u                  /* messages of one recvmmsg or sendmmsg */
#define SML_UDP_RX_BUFFER_BYTES 65536u              /* no datagram, coalesced or not, is longer */
/* Buffers begin an odd number of cache lines apart: plain datagrams fill only their beginnings, which
 * at a distance of 64 KiB would all compete for the same sets of the caches. */
#define SML_UDP_RX_STRIDE_BYTES (SML_UDP_RX_BUFFER_BYTES + 65u * 64u)
#define SML_UDP_TX_BUFFER_BYTES (8u * 65536u)
#define SML_UDP_TX_BURSTS 64u

/* What one recvmmsg should bring at most, if messages stay as long as they were: more than a part of a core's own
 * cache would be read from afar when it is summed. At least SML_UDP_MIN_BATCH messages. */
#define SML_UDP_RX_BATCH_BYTES (256u * 1024u)
#define SML_UDP_MIN_BATCH 4u

/* Sent: the segment size. Received: that of a coalesced message, and the byte with the ECN bits. */
struct sml_udp_control {
  _Alignas(struct cmsghdr) uint8_t bytes[2 * CMSG_SPACE(sizeof(int))];
};

struct sml_udp_rx {
  uint8_t *buffers;   /* SML_UDP_BATCH_MESSAGES * SML_UDP_RX_STRIDE_BYTES; pages come with their first use */
  uint32_t num_used;  /* messages whose lengths the last recvmmsg overwrote */
  uint32_t batch;     /* messages to ask for */
  uint32_t turn;      /* which socket is read first: none waits behind others that always have something */
  bool may_have_more; /* the last recvmmsgs brought as many as they were asked for */
  /* What the last recvmmsg brought and rx_burst has not delivered yet begins at `next`, next_bytes
   * into it. Invariant: next <= num_messages. */
  uint32_t num_messages, next, next_bytes;
  struct mmsghdr messages[SML_UDP_BATCH_MESSAGES];
  struct iovec iov[SML_UDP_BATCH_MESSAGES];
  struct sml_addr from[SML_UDP_BATCH_MESSAGES];
  struct sml_udp_control control[SML_UDP_BATCH_MESSAGES];
};

/* A committed burst. A message is the whole of it to one peer if segmented, else one frame to one peer, peer by peer.
 * A frame that is not for a peer is left out of its message; a message without frames is none. */
struct sml_udp_burst {
  uint8_t *data;
  uint32_t frame_bytes, num_frames, last_bytes;
  const struct sml_addr *peers;
  size_t num_peers;
  size_t next; /* the first message not yet taken or given up */
  bool is_segmented;
  bool has_polled;
  uint16_t not_for[SML_NETIO_BURST_FRAMES]; /* as in sml_tx_burst */
  struct sml_udp_control control;           /* UDP_SEGMENT, for all its messages */
};

/* Where a message of a sendmmsg comes from. */
struct sml_udp_origin {
  struct sml_udp_burst *burst;
  size_t message; /* its number there */
  uint32_t num_frames, num_bytes;
};
#define SML_UDP_PIECES 2u /* of a burst in one message: before and behind what is not for its peer */

struct sml_udp_tx {
  uint8_t *buffer; /* SML_UDP_TX_BUFFER_BYTES, filled burst behind burst */
  uint32_t used_bytes, num_bursts;
  struct sml_udp_burst bursts[SML_UDP_TX_BURSTS];
  struct mmsghdr messages[SML_UDP_BATCH_MESSAGES];
  struct iovec iov[SML_UDP_BATCH_MESSAGES * SML_UDP_PIECES];
  struct sml_udp_origin origins[SML_UDP_BATCH_MESSAGES];
};

/* A socket of its own for each group: bound to the group's address, it gets nothing else. */
struct sml_udp_group {
  int fd;
  struct sml_addr addr;
};

struct sml_udp {
  struct sml_netio io;
  int socket_fd, event_fd;
  uint32_t num_groups, rx_buffer_bytes;
  struct sml_udp_group groups[SML_NETIO_MAX_GROUPS];
  struct sml_addr local_addr; /* with the real port */
  bool is_coalescing;         /* UDP_GRO is on: messages may hold many frames */
  bool is_segmenting;         /* bursts go out by UDP_SEGMENT; ends if the kernel refuses it at run time */
  struct sml_udp_rx rx;
  struct sml_udp_tx tx;
  _Alignas(64) _Atomic bool is_wake_pending; /* true: event_fd is or will be written */
};

static inline struct sml_udp *sml_udp_of(struct sml_netio *io) {
  return (struct sml_udp *)(void *)io;
}

/* Both: false when out of memory. */
bool sml_udp_rx_init(struct sml_udp *u);
bool sml_udp_tx_init(struct sml_udp *u);

static inline bool sml_udp_has_leftover(const struct sml_udp *u) {
  return u->rx.next < u->rx.num_messages;
}

/* Whether its datagrams say that they may be marked; what it receives shows whether it was. */
void sml_udp_set_ecn(int fd, uint16_t family, bool is_sending);
size_t sml_udp_rx_burst(struct sml_netio *io, struct sml_rx_frame *frames, size_t max);
void sml_udp_tx_reserve(struct sml_netio *io, uint32_t frame_bytes, struct sml_tx_burst *burst_out);
void sml_udp_tx_commit(struct sml_netio *io, struct sml_tx_burst *burst, uint32_t num_frames, uint32_t last_bytes,
                       const struct sml_addr *peers, size_t num_peers);
void sml_udp_tx_flush(struct sml_netio *io);
uint64_t sml_udp_tx_waiting(struct sml_netio *io);

/* udp_group.c */
void sml_udp_set_multicast(int fd, uint16_t family, const struct sml_udp_options *options);
int sml_udp_join_group(struct sml_netio *io, const struct sml_addr *group, const struct sml_addr *via);
void sml_udp_leave_group(struct sml_netio *io, const struct sml_addr *group);
/* udp.c: asks for buffers of a socket, as the options of its open said. */
void sml_udp_set_rx_buffer(int fd, uint32_t num_bytes);
