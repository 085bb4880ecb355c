/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz/peer.h"

#include <poll.h>
#include <sys/socket.h>

#define MAX_BYTES (1u << 18)

static struct {
  void (*heard)(const uint8_t *bytes, size_t num_bytes);
  size_t part_bytes, at, end;
  uint8_t bytes[MAX_BYTES];
} peer;

int __wrap_connect(int fd, const struct sockaddr *addr, socklen_t addr_bytes);
ssize_t __wrap_send(int fd, const void *bytes, size_t num_bytes, int flags);
ssize_t __wrap_recv(int fd, void *bytes, size_t room_bytes, int flags);
int __wrap_poll(struct pollfd *polls, nfds_t num_polls, int timeout_ms);

void fuzz_peer_begin(void (*heard)(const uint8_t *bytes, size_t num_bytes), size_t part_bytes) {
  peer.heard = heard;
  peer.part_bytes = part_bytes == 0 ? MAX_BYTES : part_bytes;
  peer.at = peer.end = 0;
}

void fuzz_peer_say(const void *bytes, size_t num_bytes) {
  if (num_bytes == 0 || num_bytes > MAX_BYTES - peer.end) return;
  memcpy(peer.bytes + peer.end, bytes, num_bytes);
  peer.end += num_bytes;
}

void fuzz_peer_say_some(struct fuzz_input *in) {
  const size_t wanted_bytes = fuzz_u8(in), more_bytes = wanted_bytes == 255 ? fuzz_u16(in) : 0;
  const size_t num_bytes = sml_min_u64(wanted_bytes + more_bytes, (uint64_t)(in->end - in->at));
  fuzz_peer_say(in->at, num_bytes);
  in->at += num_bytes;
}

int __wrap_connect(int fd, const struct sockaddr *addr, socklen_t addr_bytes) {
  (void)fd, (void)addr, (void)addr_bytes;
  return 0;
}

ssize_t __wrap_send(int fd, const void *bytes, size_t num_bytes, int flags) {
  (void)fd, (void)flags;
  if (peer.heard != NULL) peer.heard(bytes, num_bytes);
  return (ssize_t)num_bytes;
}

ssize_t __wrap_recv(int fd, void *bytes, size_t room_bytes, int flags) {
  (void)fd, (void)flags;
  const size_t num_bytes = sml_min_u64(sml_min_u64(room_bytes, peer.part_bytes), peer.end - peer.at);
  if (num_bytes > 0) memcpy(bytes, peer.bytes + peer.at, num_bytes);
  peer.at += num_bytes;
  return (ssize_t)num_bytes;
}

/* Whatever is asked for is there: bytes, room, or the end. */
int __wrap_poll(struct pollfd *polls, nfds_t num_polls, int timeout_ms) {
  (void)timeout_ms;
  const bool has_closed = peer.at == peer.end;
  int num_ready = 0;
  for (nfds_t i = 0; i < num_polls; i++) {
    polls[i].revents = (short)(polls[i].events & (POLLIN | POLLOUT | (has_closed ? POLLRDHUP : 0)));
    num_ready += polls[i].revents != 0;
  }
  return num_ready;
}
