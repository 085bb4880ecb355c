/* SPDX-License-Identifier: Apache-2.0
 * Receiving: one recvmmsg fills many buffers, each with one datagram or, with UDP_GRO, with the
 * segments of one peer's burst, which are split into frames without a copy. */
#include "netio/udp_internal.h"

#include <stdlib.h>

bool sml_udp_rx_init(struct sml_udp *u) {
  struct sml_udp_rx *rx = &u->rx;
  rx->buffers = aligned_alloc(64, (size_t)SML_UDP_BATCH_MESSAGES * SML_UDP_RX_STRIDE_BYTES);
  if (rx->buffers == NULL) return false;
  for (uint32_t i = 0; i < SML_UDP_BATCH_MESSAGES; i++) {
    rx->iov[i] = (struct iovec){.iov_base = rx->buffers + (size_t)i * SML_UDP_RX_STRIDE_BYTES,
                                .iov_len = SML_UDP_RX_BUFFER_BYTES};
    rx->messages[i].msg_hdr = (struct msghdr){.msg_name = rx->from[i].bytes, .msg_iov = &rx->iov[i], .msg_iovlen = 1};
  }
  rx->num_used = rx->batch = SML_UDP_BATCH_MESSAGES;
  return true;
}

static void adapt_batch(struct sml_udp_rx *rx) {
  uint32_t num_bytes = 0;
  if (rx->num_messages == 0) return;
  for (uint32_t i = 0; i < rx->num_messages; i++) num_bytes += rx->messages[i].msg_len;
  const uint32_t mean_bytes = sml_max_u32(num_bytes / rx->num_messages, 1);
  rx->batch = sml_min_u32(sml_max_u32(SML_UDP_RX_BATCH_BYTES / mean_bytes, SML_UDP_MIN_BATCH), SML_UDP_BATCH_MESSAGES);
}

/* From the socket, and from those of groups, as many as there is room for. Any error leaves nothing to deliver and
 * ends nothing: the kernel reports a pending error (of an ICMP message, say) once, and the datagrams behind it are
 * there for the next call. */
static void receive_messages(struct sml_udp *u, size_t max) {
  struct sml_udp_rx *rx = &u->rx;
  for (uint32_t i = 0; i < rx->num_used; i++) {
    struct msghdr *m = &rx->messages[i].msg_hdr;
    m->msg_namelen = sizeof rx->from[i].bytes;
    m->msg_control = rx->control[i].bytes;
    m->msg_controllen = sizeof rx->control[i].bytes;
  }
  const uint32_t room = (uint32_t)sml_min_u64(rx->batch, max), num_sockets = 1 + u->num_groups;
  rx->num_messages = 0;
  for (uint32_t i = 0; i < num_sockets && rx->num_messages < room; i++) {
    const uint32_t s = num_sockets == 1 ? 0 : (rx->turn + i) % num_sockets;
    const int fd = s == 0 ? u->socket_fd : u->groups[s - 1].fd;
    u->io.stats.system_calls++;
    const int num_messages = recvmmsg(fd, rx->messages + rx->num_messages, room - rx->num_messages, MSG_DONTWAIT, NULL);
    if (num_messages > 0) rx->num_messages += (uint32_t)num_messages;
  }
  rx->turn++;
  rx->num_used = rx->num_messages;
  rx->may_have_more = rx->num_messages == room;
  adapt_batch(rx);
  rx->next = rx->next_bytes = 0;
}

/* What the kernel says of a message: bytes of one frame in it (the segment size of a coalesced one, else all of it),
 * and whether it is marked. Coalesced are only datagrams that are marked alike. */
static uint32_t segment_bytes_of(struct mmsghdr *message, bool *is_marked_out) {
  struct msghdr *m = &message->msg_hdr;
  uint32_t segment_bytes = message->msg_len;
  *is_marked_out = false;
  for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c != NULL; c = CMSG_NXTHDR(m, c)) {
    int value = 0;
    if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
      memcpy(&value, CMSG_DATA(c), sizeof value);
      if (value > 0) segment_bytes = (uint32_t)value;
    } else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
      *is_marked_out = (*CMSG_DATA(c) & SML_UDP_ECN_MARKED) == SML_UDP_ECN_MARKED; /* one byte */
    } else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS) {
      memcpy(&value, CMSG_DATA(c), sizeof value);
      *is_marked_out = (value & SML_UDP_ECN_MARKED) == SML_UDP_ECN_MARKED;
    }
  }
  return segment_bytes;
}

/* Splits the message at rx->next until it or the room ends; returns how many frames were made. */
static size_t split_message(struct sml_udp *u, struct sml_rx_frame *frames, size_t max) {
  struct sml_udp_rx *rx = &u->rx;
  struct mmsghdr *message = &rx->messages[rx->next];
  const uint8_t *data = rx->iov[rx->next].iov_base;
  const uint32_t num_bytes = message->msg_len;
  bool is_marked;
  const uint32_t segment_bytes = segment_bytes_of(message, &is_marked);
  struct sml_addr *from = &rx->from[rx->next];
  /* The kernel writes sockaddrs whole, with zero padding and no flow label: equal peers, equal bytes. */
  from->num_bytes = (uint8_t)message->msg_hdr.msg_namelen;
  uint32_t at = rx->next_bytes;
  size_t num_frames = 0;
  do {
    const uint32_t frame_bytes = sml_min_u32(segment_bytes, num_bytes - at);
    frames[num_frames++] =
        (struct sml_rx_frame){.data = data + at, .num_bytes = frame_bytes, .from = from, .is_marked = is_marked};
    at += frame_bytes;
  } while (at < num_bytes && num_frames < max);
  u->io.stats.rx_frames += num_frames;
  u->io.stats.rx_bytes += at - rx->next_bytes;
  rx->next_bytes = at;
  if (at == num_bytes) {
    rx->next++;
    rx->next_bytes = 0;
  }
  return num_frames;
}

size_t sml_udp_rx_burst(struct sml_netio *io, struct sml_rx_frame *frames, size_t max) {
  struct sml_udp *u = sml_udp_of(io);
  struct sml_udp_rx *rx = &u->rx;
  size_t num_frames = 0;
  if (max == 0) return 0;
  /* Not while frames of the last call are left: its buffers still hold them. */
  if (rx->next == rx->num_messages) receive_messages(u, max);
  while (rx->next < rx->num_messages && num_frames < max)
    num_frames += split_message(u, frames + num_frames, max - num_frames);
  return num_frames;
}
