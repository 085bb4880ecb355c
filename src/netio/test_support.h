/* SPDX-License-Identifier: Apache-2.0
 * What the tests of the back ends share: frames with a recognizable content, sent and checked. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "netio/netio.h"

static inline uint64_t test_now_ns(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * SML_NS_PER_S + (uint64_t)t.tv_nsec;
}

/* Frame `number`: the number in the first four bytes (if there is room), then bytes that follow from it. */
static inline uint8_t test_byte(uint32_t number, uint32_t at) {
  return (uint8_t)((sml_mix64(number + 1u) >> (at % 8 * 8)) + at / 8);
}

static inline void test_fill(uint8_t *data, uint32_t num_bytes, uint32_t number) {
  for (uint32_t i = 0; i < num_bytes; i++) data[i] = test_byte(number, i);
  if (num_bytes >= 4) sml_store_be32(data, number);
}

static inline uint32_t test_number(const struct sml_rx_frame *frame) {
  assert_true(frame->num_bytes >= 4);
  return sml_load_be32(frame->data);
}

static inline bool test_is_intact(const struct sml_rx_frame *frame, uint32_t number) {
  for (uint32_t i = frame->num_bytes >= 4 ? 4 : 0; i < frame->num_bytes; i++)
    if (frame->data[i] != test_byte(number, i)) return false;
  return frame->num_bytes < 4 || sml_load_be32(frame->data) == number;
}

/* One burst of frames first .. first + num_frames - 1. */
static inline void test_send(struct sml_netio *io, uint32_t first, uint32_t frame_bytes, uint32_t num_frames,
                             uint32_t last_bytes, const struct sml_addr *peers, size_t num_peers) {
  struct sml_tx_burst burst;
  io->ops->tx_reserve(io, frame_bytes, &burst);
  assert_true(num_frames <= burst.max_frames);
  for (uint32_t i = 0; i < num_frames; i++) {
    const uint32_t num_bytes = i + 1 == num_frames ? last_bytes : frame_bytes;
    test_fill(burst.data + (size_t)i * frame_bytes, num_bytes, first + i);
  }
  io->ops->tx_commit(io, &burst, num_frames, last_bytes, peers, num_peers);
  io->ops->tx_flush(io);
}

/* Like rx_burst, but waits up to 2 s for the first frame. */
static inline size_t test_receive(struct sml_netio *io, struct sml_rx_frame *frames, size_t max) {
  const uint64_t end_ns = test_now_ns() + 2 * SML_NS_PER_S;
  for (;;) {
    const size_t num = io->ops->rx_burst(io, frames, max);
    if (num > 0 || test_now_ns() > end_ns) return num;
    io->ops->wait(io, 10 * SML_NS_PER_MS);
  }
}

static inline struct sml_addr test_addr_of(struct sml_netio *io) {
  struct sml_addr addr;
  io->ops->local_addr(io, &addr);
  return addr;
}
