/* SPDX-License-Identifier: Apache-2.0
 * A back end around another one: what it does not change goes through. */
#pragma once

#include "netio/netio.h"

struct sml_wrap {
  struct sml_netio io; /* first */
  struct sml_netio *inner;
};

static inline void sml_wrap_share(struct sml_netio *io) {
  const struct sml_wrap *w = (const struct sml_wrap *)(const void *)io;
  io->stats = w->inner->stats;
  io->has_segmentation_offload = w->inner->has_segmentation_offload;
  io->rx_buffer_bytes = w->inner->rx_buffer_bytes;
}

static inline struct sml_netio *sml_wrap_inner(struct sml_netio *io) {
  return ((struct sml_wrap *)(void *)io)->inner;
}

static inline void sml_wrap_init(struct sml_wrap *w, const struct sml_netio_ops *ops, struct sml_netio *inner) {
  *w = (struct sml_wrap){.io = {.ops = ops, .max_frame_bytes = inner->max_frame_bytes}, .inner = inner};
  sml_wrap_share(&w->io);
}

static inline void sml_wrap_local_addr(struct sml_netio *io, struct sml_addr *addr_out) {
  sml_wrap_inner(io)->ops->local_addr(sml_wrap_inner(io), addr_out);
}

static inline void sml_wrap_tx_reserve(struct sml_netio *io, uint32_t frame_bytes, struct sml_tx_burst *burst_out) {
  sml_wrap_inner(io)->ops->tx_reserve(sml_wrap_inner(io), frame_bytes, burst_out);
  sml_wrap_share(io);
}

static inline void sml_wrap_tx_commit(struct sml_netio *io, struct sml_tx_burst *burst, uint32_t num_frames,
                                      uint32_t last_bytes, const struct sml_addr *peers, size_t num_peers) {
  sml_wrap_inner(io)->ops->tx_commit(sml_wrap_inner(io), burst, num_frames, last_bytes, peers, num_peers);
  sml_wrap_share(io);
}

static inline void sml_wrap_tx_flush(struct sml_netio *io) {
  sml_wrap_inner(io)->ops->tx_flush(sml_wrap_inner(io));
  sml_wrap_share(io);
}

static inline void sml_wrap_wait(struct sml_netio *io, uint64_t timeout_ns) {
  sml_wrap_inner(io)->gather_ns = io->gather_ns;
  sml_wrap_inner(io)->ops->wait(sml_wrap_inner(io), timeout_ns);
  sml_wrap_share(io);
}

static inline void sml_wrap_wake(struct sml_netio *io) {
  sml_wrap_inner(io)->ops->wake(sml_wrap_inner(io));
}

static inline int sml_wrap_join_group(struct sml_netio *io, const struct sml_addr *group, const struct sml_addr *via) {
  return sml_wrap_inner(io)->ops->join_group(sml_wrap_inner(io), group, via);
}

static inline void sml_wrap_leave_group(struct sml_netio *io, const struct sml_addr *group) {
  sml_wrap_inner(io)->ops->leave_group(sml_wrap_inner(io), group);
}

static inline uint64_t sml_wrap_tx_waiting(struct sml_netio *io) {
  struct sml_netio *inner = sml_wrap_inner(io);
  const uint64_t num_bytes = inner->ops->tx_waiting == NULL ? 0 : inner->ops->tx_waiting(inner);
  sml_wrap_share(io);
  return num_bytes;
}

static inline void sml_wrap_hold(struct sml_netio *io, uint64_t num_bytes) {
  struct sml_netio *inner = sml_wrap_inner(io);
  if (inner->ops->hold != NULL) inner->ops->hold(inner, num_bytes);
  sml_wrap_share(io);
}

static inline void sml_wrap_close_descriptors(struct sml_netio *io) {
  struct sml_netio *inner = sml_wrap_inner(io);
  if (inner->ops->close_descriptors != NULL) inner->ops->close_descriptors(inner);
}

/* What is all the inner one's. The rest of a table stands beside it. */
#define SML_WRAP_OPS                                                                                         \
  .local_addr = sml_wrap_local_addr, .tx_reserve = sml_wrap_tx_reserve, .wake = sml_wrap_wake,               \
  .join_group = sml_wrap_join_group, .leave_group = sml_wrap_leave_group, .tx_waiting = sml_wrap_tx_waiting, \
  .hold = sml_wrap_hold
