/* SPDX-License-Identifier: Apache-2.0 */
#include "core/wire.h"

#define CRC_OFFSET 28u /* in KEYED frames the MAC's */
#define KNOWN_FLAGS \
  (SML_FLAG_RETRANSMISSION | SML_FLAG_KEYED | SML_FLAG_CHECKED | SML_FLAG_BY_GRANT | SML_FLAG_UNASKED | \
   SML_FLAG_MARKED | SML_FLAG_DEAF | SML_FLAG_NARROW)

static uint32_t frame_crc(const uint8_t *frame, size_t payload_bytes) {
  uint8_t header[SML_HEADER_BYTES] = {0}; /* all of it at once: a call costs as much as many bytes */
  memcpy(header, frame, CRC_OFFSET);
  return sml_crc32c(sml_crc32c(0, header, sizeof header), frame + SML_HEADER_BYTES, payload_bytes);
}

/* The header and the digests of the payload: so little that SipHash, which is slow, hardly counts. */
static uint64_t frame_mac(const uint8_t *frame, size_t payload_bytes, const struct sml_seal *seal) {
  uint8_t message[SML_HEADER_BYTES + (UINT16_MAX / SML_NH_RUN_BYTES + 1) * SML_NH_DIGEST_BYTES];
  memcpy(message, frame, CRC_OFFSET);
  memset(message + CRC_OFFSET, 0, SML_HEADER_BYTES - CRC_OFFSET);
  sml_nh(&seal->digest_key, frame + sml_head_bytes(true), payload_bytes, message + SML_HEADER_BYTES);
  return sml_siphash(&seal->key, message, SML_HEADER_BYTES + sml_nh_num_runs(payload_bytes) * SML_NH_DIGEST_BYTES);
}

static inline void write_header(uint8_t *frame, const struct sml_header *h, bool is_keyed) {
  const uint32_t flags = (h->flags & ~(uint32_t)SML_FLAG_KEYED) | (is_keyed ? SML_FLAG_KEYED : 0u);
  frame[0] = (uint8_t)(SML_WIRE_VERSION << 4 | (h->type & 15));
  frame[1] = (uint8_t)((h->wire & 15) << 4 | (h->reducer & 15));
  sml_store_be16(frame + 2, h->job);
  sml_store_be32(frame + 4, h->epoch);
  sml_store_be16(frame + 8, h->rank);
  sml_store_be16(frame + 10, h->payload_bytes);
  sml_store_be16(frame + 12, h->slot);
  sml_store_be16(frame + 14, (uint16_t)flags);
  sml_store_be32(frame + 16, h->phase);
  sml_store_be32(frame + 20, h->tag);
  sml_store_be32(frame + 24, h->chunk);
}

static inline bool is_keyed(const struct sml_seal *seal) {
  return seal != NULL && seal->is_keyed;
}

static inline uint32_t mask_of(const struct sml_seal *seal) {
  return seal != NULL ? seal->mask : 0;
}

void sml_seal_set(struct sml_seal *seal, const struct sml_key *key, const uint64_t secret[2]) {
  *seal = (struct sml_seal){.is_keyed = key != NULL, .mask = key != NULL ? 0 : (uint32_t)(secret[0] >> 32)};
  if (key == NULL) return;
  seal->key = *key;
  sml_nh_key_derive(&seal->digest_key, key);
}

void sml_wire_seal(uint8_t *frame, const struct sml_header *h, const struct sml_seal *seal) {
  write_header(frame, h, is_keyed(seal));
  if (is_keyed(seal)) sml_store_be64(frame + CRC_OFFSET, frame_mac(frame, h->payload_bytes, seal));
  else sml_store_be32(frame + CRC_OFFSET, frame_crc(frame, h->payload_bytes) ^ mask_of(seal));
}

/* For each wire type: a bit for each reducer that it may have. */
static const uint8_t REDUCERS[16] = {
    [SML_LANES_INT32] = 1u << SML_REDUCE_SUM | 1u << SML_REDUCE_TO_OWNER,
    [SML_LANES_UINT8] = 1u << SML_REDUCE_MAX | 1u << SML_REDUCE_COPY,
    [SML_LANES_UINT32] = 1u << SML_REDUCE_MAX | 1u << SML_REDUCE_PRODUCT | 1u << SML_REDUCE_OR,
    [SML_LANES_UINT64] = 1u << SML_REDUCE_MAX | 1u << SML_REDUCE_PRODUCT,
};

/* Checks the flags of a header, if it has one that not all packets may have. */
static bool has_known_flags(const struct sml_header *h) {
  const bool is_data = h->wire == SML_LANES_INT32 && h->reducer == SML_REDUCE_SUM;
  /* Only sums of lanes have a check word. */
  const bool is_summed = is_data && (h->type == SML_PACKET_UPDATE || h->type == SML_PACKET_RESULT);
  if ((h->flags & SML_FLAG_CHECKED) && !is_summed) return false;
  if ((h->flags & SML_FLAG_NARROW) && (!is_data || h->type != SML_PACKET_UPDATE || (h->flags & SML_FLAG_CHECKED)))
    return false;
  if ((h->flags & (SML_FLAG_BY_GRANT | SML_FLAG_DEAF)) && h->type != SML_PACKET_PROBE) return false;
  if ((h->flags & (SML_FLAG_UNASKED | SML_FLAG_MARKED)) && h->type != SML_PACKET_PENDING) return false;
  return (h->flags & ~KNOWN_FLAGS) == 0;
}

static bool is_known(const struct sml_header *h) {
  if ((h->flags & ~(SML_FLAG_RETRANSMISSION | SML_FLAG_KEYED)) != 0 && !has_known_flags(h)) return false;
  return h->type >= SML_PACKET_UPDATE && h->type <= SML_PACKET_PROBE && (REDUCERS[h->wire] >> h->reducer & 1) != 0;
}

enum sml_wire_error sml_wire_open(const uint8_t *frame, size_t num_bytes, struct sml_header *h) {
  if (num_bytes < SML_HEADER_BYTES) return SML_WIRE_TRUNCATED;
  h->version = frame[0] >> 4;
  if (h->version != SML_WIRE_VERSION) return SML_WIRE_BAD_VERSION;
  h->type = frame[0] & 15;
  h->wire = frame[1] >> 4;
  h->reducer = frame[1] & 15;
  h->job = sml_load_be16(frame + 2);
  h->epoch = sml_load_be32(frame + 4);
  h->rank = sml_load_be16(frame + 8);
  h->payload_bytes = sml_load_be16(frame + 10);
  h->slot = sml_load_be16(frame + 12);
  h->flags = sml_load_be16(frame + 14);
  h->phase = sml_load_be32(frame + 16);
  h->tag = sml_load_be32(frame + 20);
  h->chunk = sml_load_be32(frame + 24);
  const size_t frame_bytes = sml_head_bytes_of(h) + (size_t)h->payload_bytes;
  if (num_bytes < frame_bytes) return SML_WIRE_TRUNCATED;
  if (num_bytes > frame_bytes) return SML_WIRE_OVERLONG;
  return is_known(h) ? SML_WIRE_OK : SML_WIRE_BAD_TYPE;
}

void sml_wire_seal_for_switch(uint8_t *frame, const struct sml_header *h) {
  write_header(frame, h, false);
  sml_store_be32(frame + CRC_OFFSET, 0);
}

bool sml_wire_is_without_crc(const struct sml_header *h) {
  return is_known(h) && h->type != SML_PACKET_HELLO && h->type != SML_PACKET_ERROR && (h->flags & SML_FLAG_NARROW) == 0;
}

bool sml_wire_has_voucher(const uint8_t *frame, uint32_t voucher) {
  return sml_load_be32(frame + CRC_OFFSET) == voucher;
}

uint32_t sml_wire_mask(const uint8_t *frame, const struct sml_header *h) {
  return frame_crc(frame, h->payload_bytes) ^ sml_load_be32(frame + CRC_OFFSET);
}

bool sml_wire_is_authentic(const uint8_t *frame, const struct sml_header *h, const struct sml_seal *seal) {
  if (((h->flags & SML_FLAG_KEYED) != 0) != is_keyed(seal)) return false;
  if (is_keyed(seal)) return sml_load_be64(frame + CRC_OFFSET) == frame_mac(frame, h->payload_bytes, seal);
  return sml_wire_mask(frame, h) == mask_of(seal);
}
