/* SPDX-License-Identifier: Apache-2.0
 * A switch in this process: a program of p4/ as translate.py made C of it, with the tables that switchmld's own code
 * (src/dataplane/jobs.c) fills, through a driver that has no wire. One a test program. */
#pragma once

#include "dataplane/jobs.h"
#include "machine.h"

#define BED_MAX_LANES 64u
#define BED_NUM_PORTS 12u
#define BED_CPU_PORT 11u
#define BED_POOL_SLOTS 2048u
#define BED_AGGREGATOR_IP 0x0a000064u
#define BED_AGGREGATOR_PORT 5000u
#define BED_AGGREGATOR_MAC UINT64_C(0x020000000064)
#define BED_MAX_FRAME_BYTES 1600u
#define BED_VOUCHER 0x5a5b5c5du

enum bed_kind { BED_V1MODEL, BED_PNA, BED_TNA, BED_TNA64, BED_NUM_KINDS };
extern const char *const bed_names[BED_NUM_KINDS];

struct bed {
  enum bed_kind kind;
  const struct p4_machine *machine;
  uint32_t lanes;
  uint32_t first_port; /* the machine's number of what is port 0 here */
  struct sml_switch_jobs jobs;
  uint32_t num_copies[SML_MAX_JOBS + SML_SWITCH_FIRST_JOB_GROUP];
  uint32_t rids[64][SML_SWITCH_MAX_CONTRIBUTORS], ports[64][SML_SWITCH_MAX_CONTRIBUTORS];
  struct sml_place places[64][SML_SWITCH_MAX_CONTRIBUTORS]; /* of PNA's host */
};

/* What came out of a port, and is addressed as the switch's host would. */
struct bed_out {
  struct p4_out frames[P4_MAX_OUT];
  uint32_t num;
};

/* Takes a program from a library that has one: of a seeded bug. Returns its kind; -1: there is none. */
int bed_replace(const char *library);
void bed_open(struct bed *bed, enum bed_kind kind, uint64_t seed);
void bed_close(struct bed *bed);
void bed_start_job(struct bed *bed, const struct sml_dataplane_job *job);
void bed_take(struct bed *bed, uint32_t port, const uint8_t *frame, uint32_t num_bytes, struct bed_out *out);
/* If it is what a program says of a host that it does not know: switchmld hears it then. why: routes.h. */
bool bed_hear(struct bed *bed, const struct p4_out *out, uint64_t now_ns, char *why, size_t why_bytes);
/* Packets that are to pass a second time: the oldest is 0. out: NULL, it is lost instead. */
uint32_t bed_num_waiting(const struct bed *bed);
void bed_again(struct bed *bed, uint32_t which, struct bed_out *out);
bool bed_is_tofino(const struct bed *bed);
uint64_t bed_count(const struct bed *bed, uint32_t verdict);

/* Host h of a test: 10.0.0.(1 + h), a MAC, and UDP port 6000 + h; at port h unless it has moved. */
struct sml_place bed_place(uint32_t host);

/* Ethernet, IPv4 and UDP around a datagram. Returns the frame's bytes. */
uint32_t bed_wrap(uint8_t *frame, const struct sml_place *from, uint64_t mac_to, uint32_t ip_to, uint16_t port_to,
                  const uint8_t *datagram, uint32_t num_bytes);
uint16_t bed_ip_checksum(const uint8_t *head);
