/* SPDX-License-Identifier: Apache-2.0
 * A switch around DPDK's pipeline: its ports, which are DPDK's devices, and the copies of a packet for several of them.
 * A packet goes from a device through the program to one of these ports of the program:
 *   0 .. num_devices - 1   that device
 *   num_devices            results: a copy for each receiver of the packet's job, with the receiver's addresses
 *   num_devices + 1        flood: the device where its receiver was heard (stations.h), else every one but that it came
 *                          by; none, if it has gone round
 * One thread does all. */
#pragma once

#include <rte_mempool.h>

#include "pipeline/frames.h"
#include "pipeline/program.h"
#include "pipeline/stations.h"

#define SML_SOFT_SWITCH_MAX_DEVICES (SML_PROGRAM_MAX_PORTS - 2)
#define SML_SOFT_SWITCH_MAX_JOBS 1024u
#define SML_SOFT_SWITCH_MAX_REPLICAS 30u
#define SML_SOFT_SWITCH_FRAME_BYTES 10240u /* a jumbo frame, and what AF_PACKET writes before it */
#define SML_SOFT_SWITCH_BURST 32u

struct sml_device {
  uint16_t number; /* DPDK's */
  uint32_t num_waiting;
  struct rte_mbuf *waiting[SML_SOFT_SWITCH_BURST]; /* to be sent when the burst is full or the pass ends */
};

struct sml_soft_switch {
  struct sml_program program;
  struct rte_mempool *pool;
  uint32_t num_devices;
  struct sml_device devices[SML_SOFT_SWITCH_MAX_DEVICES];
  uint8_t device_of[256]; /* by DPDK's number */
  struct {
    uint32_t num_replicas;
    struct sml_replica replicas[SML_SOFT_SWITCH_MAX_REPLICAS];
  } jobs[SML_SOFT_SWITCH_MAX_JOBS];
  uint32_t cpu_device; /* UINT32_MAX: none yet */
  struct sml_greeting greeting;
  struct sml_stations stations;
  uint64_t now_ns;                                          /* of the pass */
  uint64_t num_received, num_sent, num_broken, num_refused; /* broken: shorter than it says; refused: by a device */
  uint64_t num_round;                                       /* floods that came back by another device */
};

/* After rte_eal_init(): device_names are DPDK's. A switch is large: not for the stack. False: a sentence on stderr. */
bool sml_soft_switch_open(struct sml_soft_switch *h, const char *library, const char *const *device_names,
                          uint32_t num_devices);
void sml_soft_switch_close(struct sml_soft_switch *h);
/* Takes what has come, and sends it on. Number of packets. */
uint32_t sml_soft_switch_pass(struct sml_soft_switch *h);
/* As it was opened: no entry, no receiver. False: h->program.error; it cannot go on. */
bool sml_soft_switch_reset(struct sml_soft_switch *h);
