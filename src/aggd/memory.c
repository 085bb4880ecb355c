/* SPDX-License-Identifier: Apache-2.0
 * The most memory that the service needs. Each part is the size of a table times what the operator lets it have; what
 * strangers, ranks and those who ask for the status send is in none of them. Not counted: wrappers for captures and
 * faults, HTTP's library, and what the kernel keeps for sockets (--listen's buffers are asked for, not ours). */
#include "aggd/aggd_internal.h"
#include "aggd/snapshot.h"

#define PROCESS_BYTES (24u << 20) /* the program and its libraries, and the allocator's places for each thread */
#define THREAD_BYTES (256u << 10) /* of its stack that is touched */
#define JOB_TEXT_BYTES 8192u      /* of a job in the status: a map of its slots, refused ranks */
#define RANK_TEXT_BYTES 1024u
#define NUM_TEXTS (SML_NUM_SHOWN + 2u) /* one being made, one of HTTP */
#define NUM_SNAPSHOTS 3u               /* the latest, the one that was asked for, and one that is read */

static size_t memsize_of(uint32_t world_size, uint32_t num_slots, uint32_t chunk_bytes) {
  const struct sml_aggregator_options options = {
      .world_size = world_size, .num_slots = num_slots, .chunk_bytes = chunk_bytes & ~3u, .is_checked = true};
  return sml_aggregator_memsize(&options);
}

/* Ranks of started jobs, gone ones included, and of jobs that wait. */
static uint64_t most_ranks(const struct sml_aggd_options *o) {
  return (uint64_t)(SML_REGISTRY_MAX_RANKS_FACTOR + 1) * o->max_connections;
}

static uint64_t count_slots(const struct sml_aggd *a) {
  const uint32_t world_size = sml_min_u32(sml_max_u32(a->options.max_connections, 2), SML_CTL_MAX_WORLD_SIZE);
  const uint32_t chunk_bytes = sml_lanes_max_datagram_bytes(a->lanes);
  const uint64_t slot_bytes = memsize_of(world_size, 2, chunk_bytes) - memsize_of(world_size, 1, chunk_bytes);
  return a->options.num_lanes * (uint64_t)a->options.pool_slots * slot_bytes;
}

static uint64_t count_connections(const struct sml_aggd *a) {
  const struct sml_aggd_options *o = &a->options;
  const struct sml_aggregator_engine_sizes sizes = sml_aggregator_engine_sizes();
  const uint64_t conn_bytes = sizeof *a->conns + sizeof *a->buffers + sizeof *a->epoll_events;
  const uint64_t rank_bytes = sizes.rank_bytes + (memsize_of(SML_CTL_MAX_WORLD_SIZE, 1, 256) / SML_CTL_MAX_WORLD_SIZE) +
                              2 * sizeof(struct sml_addr); /* beside the member's: of its fan-out */
  const uint64_t job_bytes = sizes.job_bytes + memsize_of(2, 1, 256) + 4 * sizes.rank_bytes;
  const uint64_t lane_bytes = SML_REGISTRY_MAX_JOBS * job_bytes + most_ranks(o) * rank_bytes;
  return o->max_connections * conn_bytes + sml_registry_memsize(&a->registry_options) + o->num_lanes * lane_bytes;
}

static uint64_t count_status(const struct sml_aggd_options *o) {
  const uint64_t num_ranks = most_ranks(o);
  const uint64_t job_bytes = sizeof(struct sml_job_snapshot) + sizeof(struct sml_tenant_snapshot);
  const uint64_t rank_bytes = sizeof(struct sml_rank_snapshot) + sizeof(struct sml_rank_look);
  const uint64_t snapshot_bytes =
      sizeof(struct sml_snapshot) + SML_REGISTRY_MAX_JOBS * job_bytes + num_ranks * rank_bytes;
  return SML_REGISTRY_MAX_JOBS * sizeof(struct sml_job_report) +
         NUM_TEXTS * (SML_REGISTRY_MAX_JOBS * (uint64_t)JOB_TEXT_BYTES + num_ranks * RANK_TEXT_BYTES) +
         NUM_SNAPSHOTS * snapshot_bytes;
}

void sml_aggd_memory(const struct sml_aggd *a, struct sml_aggd_memory *m) {
  const struct sml_aggd_options *o = &a->options;
  const uint64_t lane_bytes = sml_aggregator_engine_sizes().engine_bytes + sml_udp_memsize() + THREAD_BYTES +
                              (uint64_t)o->trace_events * SML_RECORD_BYTES +
                              (uint64_t)o->max_jobs * (o->trace_events / SML_AGGD_TRACE_SHARE) * SML_RECORD_BYTES;
  *m = (struct sml_aggd_memory){
      .slots_bytes = count_slots(a), .connections_bytes = count_connections(a), .status_bytes = count_status(o)};
  m->total_bytes =
      PROCESS_BYTES + (o->num_lanes + 1u) * lane_bytes + m->slots_bytes + m->connections_bytes + m->status_bytes;
  m->total_bytes += m->total_bytes / 8; /* what an allocator loses between its pieces */
}
