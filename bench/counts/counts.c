/* SPDX-License-Identifier: Apache-2.0
 * counts BACKEND RANKS CHUNKS TYPE KERNELS [notable|all]: one all-reduce over the engines in one thread, with a clock
 * of its own, so that it does the same each time. BACKEND is mem or udp. Prints what was sent and asked of the system;
 * callgrind counts the instructions (gate.py). With the flight recorder's level it records. Exit status 77: this
 * machine has no such kernels. */
#include <gnu/libc-version.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/test_world.h"

#define CHUNK_BYTES 1440u
#define NUM_SLOTS 256u
#define MAX_RANKS 16u

struct back_end {
  bool is_udp;
  struct sml_mem_hub *hub;
};

static struct sml_netio *open_io(void *user, uint32_t queue_frames, uint32_t max_frame_bytes) {
  const struct back_end *b = user;
  if (!b->is_udp) return sml_mem_open(b->hub, queue_frames, max_frame_bytes);
  struct sml_addr any_port;
  struct sml_netio *io = NULL;
  char error[256] = "no such address";
  if (!sml_addr_parse("127.0.0.1:0", 0, &any_port, error, sizeof error) ||
      sml_udp_open(&(struct sml_udp_options){.bind_addr = &any_port, .rx_buffer_bytes = 8u << 20}, &io, error,
                   sizeof error) != 0)
    fprintf(stderr, "counts: %s\n", error);
  return io;
}

/* Counters of all ranks' ports, or of the aggregator's. */
static struct sml_netio_stats sum_stats(const struct world *w, bool is_aggregator) {
  struct sml_netio_stats sum = {0};
  for (uint32_t r = 0; r < (is_aggregator ? 1 : w->options.world_size); r++) {
    const struct sml_netio_stats *s =
        is_aggregator ? &w->aggregator_ports[0].io->stats : &w->worker_ports[r][0].io->stats;
    sum.tx_bytes += s->tx_bytes;
    sum.tx_frames += s->tx_frames;
    sum.tx_lost_frames += s->tx_lost_frames;
    sum.system_calls += s->system_calls;
  }
  return sum;
}

static bool run(struct world *w, uint64_t num_elems, uint8_t type) {
  struct world_call *call = world_call_create(
      w, &(struct world_call_options){.num_elems = num_elems, .type = type, .reduction = SML_SUM, .seed = 7});
  world_call_submit_all(call);
  const bool is_ended = world_call_run(call, 10 * SML_NS_PER_S);
  const char *problem = is_ended ? world_call_check(call) : "it did not end";
  if (problem) fprintf(stderr, "counts: %s\n", problem);
  world_call_free(call);
  return problem == NULL;
}

int main(int argc, char **argv) {
  const bool is_recorded = argc == 7;
  const uint32_t num_ranks = argc == 6 || is_recorded ? (uint32_t)atoi(argv[2]) : 0;
  const uint64_t num_chunks = argc == 6 || is_recorded ? (uint64_t)atol(argv[3]) : 0;
  if (num_ranks < 2 || num_ranks > MAX_RANKS || num_chunks < 1) return 2;
  struct back_end b = {.is_udp = strcmp(argv[1], "udp") == 0, .hub = sml_mem_hub_create()};
  const bool is_float = strcmp(argv[4], "float32") == 0;
  struct world_options options = {.world_size = num_ranks,
                                  .num_lanes = 1,
                                  .num_slots = NUM_SLOTS,
                                  .chunk_bytes = CHUNK_BYTES,
                                  .num_operations = 4,
                                  .is_unchecked = true,
                                  .is_unkeyed = true,
                                  .seed = 1,
                                  .kernels = sml_quant_select(argv[5]),
                                  .open_io = open_io,
                                  .user = &b};
  if (is_recorded)
    options.recorder = sml_recorder_create(
        &(struct sml_recorder_options){.level = strcmp(argv[6], "all") == 0 ? SML_TRACE_ALL : SML_TRACE_NOTABLE,
                                       .num_events = SML_TRACE_DEFAULT_EVENTS});
  if (!b.hub || !options.kernels) return 77;
  struct world *w = world_create_started(&options);
  const bool is_ok = run(w, num_chunks * (CHUNK_BYTES / 4), is_float ? SML_FLOAT32 : SML_INT32);
  const struct sml_netio_stats ranks = sum_stats(w, false), aggregator = sum_stats(w, true);
  printf(
      "{\"chunks\": %llu, \"payload_bytes\": %llu, \"wire_bytes\": %llu, \"updates\": %llu, \"lost\": %llu, "
      "\"rank_calls\": %llu, \"aggregator_calls\": %llu, \"retransmissions\": %llu, "
      "\"made_by\": \"%s %s, glibc %s\"}\n",
      (unsigned long long)num_chunks, (unsigned long long)(num_chunks * CHUNK_BYTES * num_ranks),
      (unsigned long long)ranks.tx_bytes, (unsigned long long)ranks.tx_frames,
      (unsigned long long)(ranks.tx_lost_frames + aggregator.tx_lost_frames), (unsigned long long)ranks.system_calls,
      (unsigned long long)aggregator.system_calls, (unsigned long long)world_retransmissions(w, 0),
#ifdef __clang__
      "clang",
#else
      "gcc",
#endif
      __VERSION__, gnu_get_libc_version());
  world_destroy(w);
  sml_mem_hub_destroy(b.hub);
  if (is_recorded) sml_recorder_destroy(options.recorder);
  return is_ok ? 0 : 1;
}
