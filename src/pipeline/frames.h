/* SPDX-License-Identifier: Apache-2.0
 * What the switch around DPDK's pipeline does to Ethernet frames, because a pipeline cannot: it has one copy of a
 * packet, no egress, and no port by which a packet came. Pure: bytes in, bytes out. docs/p4.md, "DPDK". */
#pragma once

#include "base/base.h"

#define SML_NO_JOB UINT32_MAX

/* One receiver of a job's results: the port it is at, and the addresses that its copies get. */
struct sml_replica {
  uint32_t port;
  uint64_t mac;
  uint32_t ip;
  uint16_t udp_port;
};

/* Whose HELLOs are marked with where they came from, and with the voucher: those to this address. */
struct sml_greeting {
  uint32_t ip, voucher;
  uint16_t udp_port;
};

/* Whether the frame is as long as its IPv4 header says, at least (one without IPv4: as an Ethernet header). The
 * pipeline's parser does not look, and would take what an earlier packet left behind for the rest. */
bool sml_frame_is_whole(const uint8_t *frame, uint32_t num_bytes);

/* The job of a SwitchML packet (IPv4 without options, UDP), or SML_NO_JOB. */
uint32_t sml_frame_job(const uint8_t *frame, uint32_t num_bytes);

/* Makes a SwitchML packet one to this receiver: MAC, IPv4 address and checksum, UDP port; without UDP checksum. */
void sml_frame_readdress(uint8_t *frame, const struct sml_replica *to);

/* Writes the port into slot, the source MAC into phase and tag, and the voucher for a CRC, if it is a HELLO to the
 * greeting's address. */
void sml_frame_mark_hello(uint8_t *frame, uint32_t num_bytes, const struct sml_greeting *greeting, uint16_t port);

/* For a whole frame. Such go to all: whoever uses a rank's MAC does not get the answers that the rank waits for. */
bool sml_frame_is_arp(const uint8_t *frame);
