/* SPDX-License-Identifier: Apache-2.0
 * Hosts whose queues are shorter than a segmented send, and drop each one whole: data gets through by what goes apart,
 * also where questions, which do get through, are as frequent as the data that is sent for them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/test_world.h"

#define CHUNK_BYTES 1440u
#define NUM_CHUNKS 200u
#define LIMIT_NS (40 * SML_NS_PER_S)

static struct {
  struct sml_mem_hub *hub;
  const struct sml_netio_ops *inner;
  struct sml_netio_ops ops;
  uint32_t queue_bytes, num_dropped, num_apart;
} host;

static void commit(struct sml_netio *io, struct sml_tx_burst *burst, uint32_t num_frames, uint32_t last_bytes,
                   const struct sml_addr *peers, size_t num_peers) {
  const bool is_dropped = num_frames > 1 && !burst->goes_apart && num_frames * burst->frame_bytes > host.queue_bytes;
  host.num_dropped += is_dropped;
  host.num_apart += num_frames > 1 && burst->goes_apart;
  if (!is_dropped) host.inner->tx_commit(io, burst, num_frames, last_bytes, peers, num_peers);
}

static struct sml_netio *open_io(void *user, uint32_t queue_frames, uint32_t max_frame_bytes) {
  (void)user;
  struct sml_netio *io = sml_mem_open(host.hub, queue_frames, max_frame_bytes);
  if (io == NULL) return NULL;
  host.inner = io->ops;
  host.ops = *io->ops;
  host.ops.tx_commit = commit;
  io->ops = &host.ops;
  return io;
}

static void run(uint32_t world_size, uint32_t num_slots, uint32_t queue_bytes, uint64_t seed) {
  host.hub = sml_mem_hub_create();
  host.num_dropped = host.num_apart = 0;
  host.queue_bytes = queue_bytes;
  const struct world_options options = {.world_size = world_size,
                                        .num_slots = num_slots,
                                        .chunk_bytes = CHUNK_BYTES,
                                        .is_unkeyed = true,
                                        .is_unchecked = true,
                                        .seed = seed,
                                        .stall = seed % 2 ? 0.3 : 0,
                                        .open_io = open_io};
  struct world *w = world_create_started(&options);
  const struct world_call_options what = {.num_elems = NUM_CHUNKS * CHUNK_BYTES / 4,
                                          .type = seed % 4 < 2 ? SML_INT32 : SML_FLOAT32, .seed = seed};
  struct world_call *call = world_call_create(w, &what);
  world_call_submit_all(call);
  const uint64_t until_ns = w->now_ns + LIMIT_NS;
  while (!world_call_has_ended(call)) assert_true(world_pass(w) && w->now_ns < until_ns);
  assert_null(world_call_check(call));
  assert_true(host.num_dropped > 0 && host.num_apart > 0 && host.num_apart < host.num_dropped);
  world_call_free(call);
  world_close_job(w, 0);
  world_destroy(w);
  sml_mem_hub_destroy(host.hub);
}

static void data_gets_through(void **state) {
  (void)state;
  static const uint32_t queues[] = {2000, 6000, 18000}; /* bytes */
  for (uint32_t world_size = 2; world_size <= 5; world_size += 3)
    for (uint32_t num_slots = 64; num_slots <= 256; num_slots *= 4)
      for (size_t i = 0; i < SML_ARRAY_LEN(queues); i++)
        for (uint64_t seed = 0; seed < 4; seed++) run(world_size, num_slots, queues[i], seed);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(data_gets_through)};
  return cmocka_run_group_tests_name("engine_futile", tests, NULL, NULL);
}
