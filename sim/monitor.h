/* SPDX-License-Identifier: Apache-2.0
 * Looks at every datagram on the wire, as sent and as delivered, and knows what may stand there from
 * docs/PROTOCOL.md alone: its invariants I1, I5, I8, I9, that a result is the sum of what all ranks sent, once each,
 * and that epochs do not repeat. It changes nothing. */
#pragma once

#include "sim/kernel.h"

#define SIM_WIRE_JOBS 5u

struct sim_wire;

/* What the world knows of a job. */
struct sim_wire_job {
  uint32_t world_size, num_slots;
  bool has_one_way; /* one-way windows, behind the first num_slots slots */
  bool may_differ;  /* ranks may run different programs: then results must fail to come */
};
struct sim_wire_options {
  uint32_t daemon_ipv4;
  uint32_t first_phase, first_chunk; /* where a job's first epoch may begin besides 2 and 0 */
  uint32_t num_jobs;
  struct sim_wire_job jobs[SIM_WIRE_JOBS];
};
struct sim_wire *sim_wire_create(const struct sim_wire_options *options);
void sim_wire_destroy(struct sim_wire *wire);
void sim_wire_on_sent(struct sim_wire *wire, const struct sim_datagram *datagram);
void sim_wire_on_delivered(struct sim_wire *wire, const struct sim_datagram *datagram);
/* The daemon was started (again). */
void sim_wire_on_daemon(struct sim_wire *wire);

/* Workers have addresses that say who they are. */
static inline uint32_t sim_worker_ipv4(uint32_t job, uint32_t rank) {
  return 0x0a010000u | job << 8 | rank;
}
static inline bool sim_ipv4_is_worker(uint32_t ipv4) {
  return ipv4 >> 16 == 0x0a01u;
}

struct sim_wire_counts {
  uint64_t updates, retransmissions, probes, results, repeats, pending, errors, hellos, lanes, renewals, sums_checked,
      one_way;
};
const struct sim_wire_counts *sim_wire_counts(const struct sim_wire *wire);

/* CRC-32C written for the simulator: bit by bit from the polynomial. */
uint32_t sim_crc32c(const uint8_t *bytes, size_t num_bytes);
/* The CRC of a frame, whose own field counts as zero. */
uint32_t sim_frame_crc(const uint8_t *frame, size_t num_bytes);
