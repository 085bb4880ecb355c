/* SPDX-License-Identifier: Apache-2.0
 * Instead of whoever is connected (linked with --wrap of connect, send, recv and poll): a peer in this process, which
 * hears all that is sent, and whose answers are there at once. When it has no more of them, it has closed. */
#pragma once

#include <arpa/inet.h>

#include "fuzz/fuzz.h"
#include "netio/netio.h"

/* heard: each send, in which it may answer; NULL: it only says what it says by itself. part_bytes: the most that one
 * recv gives, 0: all that there is. What the peer before this one said is forgotten. */
void fuzz_peer_begin(void (*heard)(const uint8_t *bytes, size_t num_bytes), size_t part_bytes);
/* What does not fit is left out. */
void fuzz_peer_say(const void *bytes, size_t num_bytes);
/* Some bytes of the input: as many as its next byte says, or two bytes of it where that is 255. */
void fuzz_peer_say_some(struct fuzz_input *in);

static inline struct sml_addr fuzz_addr(uint32_t ip, uint16_t port) {
  struct sml_addr addr = {.num_bytes = sizeof(struct sockaddr_in)};
  const struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(ip)};
  memcpy(addr.bytes, &in, sizeof in);
  return addr;
}
