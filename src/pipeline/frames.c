/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/frames.h"

#define ETHERNET_BYTES 14u
#define IPV4_BYTES 20u
#define HEAD_BYTES 32u
#define PACKET_BYTES (ETHERNET_BYTES + IPV4_BYTES + 8 + HEAD_BYTES)
#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_ARP 0x0806
#define IPV4_PLAIN 0x45
#define PROTOCOL_UDP 17
#define VERSION_HELLO 0x15
/* Offsets in the frame. */
#define AT_TYPE 12u
#define AT_IPV4 14u
#define AT_TOTAL_BYTES 16u
#define AT_OFFSET 20u
#define AT_PROTOCOL 23u
#define AT_IP_CHECKSUM 24u
#define AT_IP 30u
#define AT_UDP_PORT 36u
#define AT_UDP_CHECKSUM 40u
#define AT_HEAD 42u
#define AT_JOB (AT_HEAD + 2)
#define AT_SLOT (AT_HEAD + 12)
#define AT_PHASE (AT_HEAD + 16)
#define AT_TAG (AT_HEAD + 20)
#define AT_CRC (AT_HEAD + 28)

bool sml_frame_is_whole(const uint8_t *frame, uint32_t num_bytes) {
  if (num_bytes < ETHERNET_BYTES) return false;
  if (sml_load_be16(frame + AT_TYPE) != ETHERTYPE_IPV4) return true;
  return num_bytes >= ETHERNET_BYTES + IPV4_BYTES &&
         sml_load_be16(frame + AT_TOTAL_BYTES) <= num_bytes - ETHERNET_BYTES;
}

bool sml_frame_is_arp(const uint8_t *frame) {
  return sml_load_be16(frame + AT_TYPE) == ETHERTYPE_ARP;
}

static bool is_packet(const uint8_t *frame, uint32_t num_bytes) {
  return num_bytes >= PACKET_BYTES && sml_load_be16(frame + AT_TYPE) == ETHERTYPE_IPV4 &&
         frame[AT_IPV4] == IPV4_PLAIN && (sml_load_be16(frame + AT_OFFSET) & 0x3fff) == 0 &&
         frame[AT_PROTOCOL] == PROTOCOL_UDP;
}

uint32_t sml_frame_job(const uint8_t *frame, uint32_t num_bytes) {
  return is_packet(frame, num_bytes) ? sml_load_be16(frame + AT_JOB) : SML_NO_JOB;
}

static void put_mac(uint8_t *to, uint64_t mac) {
  sml_store_be16(to, (uint16_t)(mac >> 32));
  sml_store_be32(to + 2, (uint32_t)mac);
}

static void put_checksum(uint8_t *frame) {
  uint32_t sum = 0;
  sml_store_be16(frame + AT_IP_CHECKSUM, 0);
  for (uint32_t at = AT_IPV4; at < AT_IPV4 + IPV4_BYTES; at += 2) sum += sml_load_be16(frame + at);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  sml_store_be16(frame + AT_IP_CHECKSUM, (uint16_t)~sum);
}

void sml_frame_readdress(uint8_t *frame, const struct sml_replica *to) {
  put_mac(frame, to->mac);
  sml_store_be32(frame + AT_IP, to->ip);
  put_checksum(frame);
  sml_store_be16(frame + AT_UDP_PORT, to->udp_port);
  sml_store_be16(frame + AT_UDP_CHECKSUM, 0);
}

void sml_frame_mark_hello(uint8_t *frame, uint32_t num_bytes, const struct sml_greeting *greeting, uint16_t port) {
  if (!is_packet(frame, num_bytes) || frame[AT_HEAD] != VERSION_HELLO) return;
  if (sml_load_be32(frame + AT_IP) != greeting->ip || sml_load_be16(frame + AT_UDP_PORT) != greeting->udp_port) return;
  sml_store_be16(frame + AT_SLOT, port);
  memcpy(frame + AT_PHASE, frame + 6, 4);
  sml_store_be32(frame + AT_TAG, sml_load_be16(frame + 10));
  sml_store_be32(frame + AT_CRC, greeting->voucher);
  sml_store_be16(frame + AT_UDP_CHECKSUM, 0);
}
