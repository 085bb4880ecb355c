/* SPDX-License-Identifier: Apache-2.0
 * Sending: bursts lie in one buffer behind each other until the flush, when one sendmmsg hands many of them
 * to many peers, each whole, for the kernel to cut (UDP_SEGMENT); without that, frame by frame. What the
 * system does not take is lost and counted, and never holds up the caller for longer than one short poll a
 * burst. */
#include "netio/udp_internal.h"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <time.h>

#define FULL_QUEUE_POLL_MS 1

bool sml_udp_tx_init(struct sml_udp *u) {
  u->tx.buffer = aligned_alloc(64, SML_UDP_TX_BUFFER_BYTES);
  return u->tx.buffer != NULL;
}

static void set_segment_bytes(struct sml_udp_control *control, uint16_t segment_bytes) {
  const struct cmsghdr header = {
      .cmsg_len = CMSG_LEN(sizeof segment_bytes), .cmsg_level = IPPROTO_UDP, .cmsg_type = UDP_SEGMENT};
  memcpy(control->bytes, &header, sizeof header);
  memcpy(control->bytes + CMSG_LEN(0), &segment_bytes, sizeof segment_bytes);
}

static size_t num_messages_of(const struct sml_udp_burst *b) {
  return b->is_segmented ? b->num_peers : b->num_peers * b->num_frames;
}

/* From the next message on. */
static void make_plain(struct sml_udp_burst *b) {
  b->next *= b->num_frames;
  b->is_segmented = false;
}

static size_t peer_of_message(const struct sml_udp_burst *b, size_t message) {
  return b->is_segmented ? message : message / b->num_frames;
}

/* Frames [first, end), if there are any, are one more piece. */
static uint32_t add_piece(const struct sml_udp_burst *b, uint32_t first, uint32_t end, struct iovec *pieces,
                          uint32_t num_pieces) {
  if (first >= end) return num_pieces;
  const size_t last_bytes = end == b->num_frames ? b->last_bytes : b->frame_bytes;
  pieces[num_pieces] = (struct iovec){.iov_base = b->data + (size_t)first * b->frame_bytes,
                                      .iov_len = (size_t)(end - 1 - first) * b->frame_bytes + last_bytes};
  return num_pieces + 1;
}

/* The frames of a message: how many pieces they are in, at most SML_UDP_PIECES. */
static uint32_t find_pieces(const struct sml_udp_burst *b, size_t message, struct iovec *pieces,
                            uint32_t *num_frames_out) {
  const size_t not_for = 1 + peer_of_message(b, message);
  const uint32_t first = b->is_segmented ? 0 : (uint32_t)(message % b->num_frames);
  const uint32_t end = b->is_segmented ? b->num_frames : first + 1;
  uint32_t gap = first, behind;
  while (gap < end && b->not_for[gap] != not_for) gap++;
  behind = gap;
  while (behind < end && b->not_for[behind] == not_for) behind++;
  *num_frames_out = end - first - (behind - gap);
  return add_piece(b, behind, end, pieces, add_piece(b, first, gap, pieces, 0));
}

static uint32_t num_frames_of(const struct sml_udp_burst *b, size_t message) {
  struct iovec pieces[SML_UDP_PIECES];
  uint32_t num_frames;
  (void)find_pieces(b, message, pieces, &num_frames);
  return num_frames;
}

/* False: it has no frames. */
static bool fill_message(struct sml_udp_tx *tx, uint32_t at, struct sml_udp_burst *b, size_t message) {
  const struct sml_addr *peer = &b->peers[peer_of_message(b, message)];
  struct iovec *pieces = &tx->iov[at * SML_UDP_PIECES];
  struct sml_udp_origin *origin = &tx->origins[at];
  *origin = (struct sml_udp_origin){.burst = b, .message = message};
  const uint32_t num_pieces = find_pieces(b, message, pieces, &origin->num_frames);
  for (uint32_t i = 0; i < num_pieces; i++) origin->num_bytes += (uint32_t)pieces[i].iov_len;
  if (num_pieces == 0) return false;
  tx->messages[at].msg_hdr = (struct msghdr){.msg_name = (void *)(uintptr_t)peer->bytes,
                                             .msg_namelen = peer->num_bytes,
                                             .msg_iov = pieces,
                                             .msg_iovlen = num_pieces};
  if (!b->is_segmented) return true;
  tx->messages[at].msg_hdr.msg_control = b->control.bytes;
  tx->messages[at].msg_hdr.msg_controllen = CMSG_SPACE(sizeof(uint16_t));
  return true;
}

/* As many messages as one call takes, of as many bursts as that needs. */
static uint32_t fill_messages(struct sml_udp *u, struct sml_udp_burst *bursts, uint32_t num_bursts) {
  uint32_t num = 0;
  for (struct sml_udp_burst *b = bursts; b < bursts + num_bursts; b++) {
    if (b->is_segmented && !u->is_segmenting) make_plain(b);
    for (size_t m = b->next; m < num_messages_of(b); m++) {
      if (num == SML_UDP_BATCH_MESSAGES) return num;
      num += fill_message(&u->tx, num, b, m);
    }
  }
  return num;
}

/* One sendmmsg, of messages of these bursts. 0, or the errno of the first message. */
static int send_some(struct sml_udp *u, struct sml_udp_burst *bursts, uint32_t num_bursts) {
  const uint32_t num = fill_messages(u, bursts, num_bursts);
  u->io.stats.system_calls++;
  const int num_taken = sendmmsg(u->socket_fd, u->tx.messages, num, MSG_DONTWAIT);
  if (num_taken <= 0) return num_taken < 0 ? errno : EAGAIN;
  for (int i = 0; i < num_taken; i++) {
    const struct sml_udp_origin *origin = &u->tx.origins[i];
    u->io.stats.tx_bytes += origin->num_bytes;
    u->io.stats.tx_frames += origin->num_frames;
    origin->burst->next = origin->message + 1;
  }
  return 0;
}

static void lose_messages(struct sml_udp *u, struct sml_udp_burst *b, size_t num, int error) {
  struct sml_netio_stats *stats = &u->io.stats;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  stats->tx_error = error;
  stats->tx_error_to = b->peers[peer_of_message(b, b->next)];
  stats->tx_error_ns = (uint64_t)now.tv_sec * SML_NS_PER_S + (uint64_t)now.tv_nsec;
  for (; num > 0; num--) stats->tx_lost_frames += num_frames_of(b, b->next++);
}

/* The socket's send buffer is full. Waiting once a burst, shortly, is worth it: a burst is much work to
 * repeat. After that all the rest of it is lost, since the buffer is one for all peers. */
static void handle_full_queue(struct sml_udp *u, struct sml_udp_burst *b, int error) {
  if (b->has_polled) {
    lose_messages(u, b, num_messages_of(b) - b->next, error);
    return;
  }
  b->has_polled = true;
  struct pollfd fd = {.fd = u->socket_fd, .events = POLLOUT};
  u->io.stats.system_calls++;
  (void)poll(&fd, 1, FULL_QUEUE_POLL_MS);
}

/* Sends plain messages, or segmented ones until one is refused as such (false: the burst's next one). */
static bool transmit(struct sml_udp *u, struct sml_udp_burst *bursts, uint32_t num_bursts, uint32_t *num_done) {
  while (*num_done < num_bursts) {
    struct sml_udp_burst *b = &bursts[*num_done];
    while (b->next < num_messages_of(b) && num_frames_of(b, b->next) == 0) b->next++;
    if (b->next == num_messages_of(b)) {
      (*num_done)++;
      continue;
    }
    const int error = send_some(u, b, num_bursts - *num_done);
    if (error == 0) continue;
    if (error == EAGAIN || error == ENOBUFS) handle_full_queue(u, b, error);
    else if (b->is_segmented && (error == EIO || error == EINVAL)) return false;
    else lose_messages(u, b, 1, error); /* this peer or this size only (EMSGSIZE, ENETUNREACH, EPERM, ...) */
  }
  return true;
}

/* The next message of a segmented burst again, as plain datagrams. True: the kernel took full-sized ones. */
static bool transmit_plain(struct sml_udp *u, struct sml_udp_burst *whole) {
  struct sml_udp_burst plain = *whole;
  uint32_t num_done = 0;
  whole->next++;
  make_plain(&plain);
  plain.num_peers = plain.next / plain.num_frames + 1;
  const uint64_t num_before = u->io.stats.tx_frames;
  (void)transmit(u, &plain, 1, &num_done);
  whole->has_polled = plain.has_polled;
  /* More than one frame: the short last one alone may pass where the others are too long. */
  return u->io.stats.tx_frames - num_before > 1;
}

void sml_udp_tx_flush(struct sml_netio *io) {
  struct sml_udp *u = sml_udp_of(io);
  uint32_t num_done = 0;
  while (!transmit(u, u->tx.bursts, u->tx.num_bursts, &num_done)) {
    /* EIO or EINVAL: the way out cannot segment, or it is this peer's own fault (port 0, for one). Plain
     * datagrams tell: if they pass, segmentation is off for this socket from now on. */
    if (!transmit_plain(u, &u->tx.bursts[num_done])) continue;
    u->is_segmenting = false;
    io->has_segmentation_offload = false;
  }
  u->tx.num_bursts = u->tx.used_bytes = 0;
}

uint64_t sml_udp_tx_waiting(struct sml_netio *io) {
  struct sml_udp *u = sml_udp_of(io);
  int num_bytes = 0;
  io->stats.system_calls++;
  return ioctl(u->socket_fd, SIOCOUTQ, &num_bytes) != 0 || num_bytes < 0 ? 0 : (uint64_t)num_bytes;
}

void sml_udp_tx_reserve(struct sml_netio *io, uint32_t frame_bytes, struct sml_tx_burst *burst_out) {
  struct sml_udp_tx *tx = &sml_udp_of(io)->tx;
  uint32_t max_frames = 0;
  if (frame_bytes > 0 && frame_bytes <= SML_UDP_MAX_PAYLOAD_BYTES)
    max_frames = sml_min_u32(SML_UDP_MAX_SEGMENTS, SML_UDP_MAX_PAYLOAD_BYTES / frame_bytes);
  const uint32_t room_bytes = SML_UDP_TX_BUFFER_BYTES - tx->used_bytes;
  if (tx->num_bursts == SML_UDP_TX_BURSTS || (max_frames > 0 && room_bytes < max_frames * frame_bytes))
    sml_udp_tx_flush(io);
  *burst_out =
      (struct sml_tx_burst){.data = tx->buffer + tx->used_bytes, .frame_bytes = frame_bytes, .max_frames = max_frames};
}

void sml_udp_tx_commit(struct sml_netio *io, struct sml_tx_burst *burst, uint32_t num_frames, uint32_t last_bytes,
                       const struct sml_addr *peers, size_t num_peers) {
  struct sml_udp *u = sml_udp_of(io);
  if (num_frames == 0) return;
  SML_ASSERT(num_frames <= burst->max_frames && last_bytes > 0 && last_bytes <= burst->frame_bytes);
  SML_ASSERT(burst->data == u->tx.buffer + u->tx.used_bytes && u->tx.num_bursts < SML_UDP_TX_BURSTS);
  struct sml_udp_burst *b = &u->tx.bursts[u->tx.num_bursts++];
  *b = (struct sml_udp_burst){.data = burst->data,
                              .frame_bytes = burst->frame_bytes,
                              .num_frames = num_frames,
                              .last_bytes = last_bytes,
                              .peers = peers,
                              .num_peers = num_peers,
                              .is_segmented = num_frames > 1 && u->is_segmenting && !burst->goes_apart};
  memcpy(b->not_for, burst->not_for, num_frames * sizeof b->not_for[0]);
  if (b->is_segmented) set_segment_bytes(&b->control, (uint16_t)burst->frame_bytes);
  u->tx.used_bytes += (uint32_t)sml_align_up((num_frames - 1) * burst->frame_bytes + last_bytes, 64);
}
