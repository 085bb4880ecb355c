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

static uint64_t frame_mac(const uint8_t *frame, size_t payload_bytes, const struct sml_key *key) {
  struct sml_siphash hash;
  uint8_t header[SML_HEADER_BYTES] = {0};
  memcpy(header, frame, CRC_OFFSET);
  sml_siphash_init(&hash, key);
  sml_siphash_update(&hash, header, sizeof header);
  sml_siphash_update(&hash, frame + sml_head_bytes(true), payload_bytes);
  return sml_siphash_final(&hash);
}

void sml_wire_macs(const uint8_t *const *frames, uint32_t num_frames, uint32_t frame_bytes, const struct sml_key *key,
                   uint64_t *macs_out) {
  struct sml_siphash hashes[SML_SIPHASH_MANY];
  uint8_t headers[SML_SIPHASH_MANY][SML_HEADER_BYTES];
  const uint8_t *parts[SML_SIPHASH_MANY] = {NULL};
  SML_ASSERT(num_frames <= SML_SIPHASH_MANY && frame_bytes >= sml_head_bytes(true));
  for (uint32_t i = 0; i < num_frames; i++) {
    memcpy(headers[i], frames[i], CRC_OFFSET);
    memset(headers[i] + CRC_OFFSET, 0, sizeof headers[i] - CRC_OFFSET);
    parts[i] = headers[i];
    sml_siphash_init(&hashes[i], key);
  }
  sml_siphash_update_many(hashes, parts, num_frames, SML_HEADER_BYTES);
  for (uint32_t i = 0; i < num_frames; i++) parts[i] = frames[i] + sml_head_bytes(true);
  sml_siphash_update_many(hashes, parts, num_frames, frame_bytes - sml_head_bytes(true));
  for (uint32_t i = 0; i < num_frames; i++) macs_out[i] = sml_siphash_final(&hashes[i]);
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

void sml_wire_seal(uint8_t *frame, const struct sml_header *h, const struct sml_seal *seal) {
  write_header(frame, h, is_keyed(seal));
  if (is_keyed(seal)) sml_store_be64(frame + CRC_OFFSET, frame_mac(frame, h->payload_bytes, &seal->key));
  else sml_store_be32(frame + CRC_OFFSET, frame_crc(frame, h->payload_bytes) ^ mask_of(seal));
}

void sml_wire_seal_first(uint8_t *frame, const struct sml_header *h, const struct sml_seal *seal) {
  if (is_keyed(seal)) write_header(frame, h, true);
  else sml_wire_seal(frame, h, seal);
}

void sml_wire_seal_burst(uint8_t *frames, uint32_t num_frames, uint32_t frame_bytes, uint32_t last_bytes,
                         const struct sml_seal *seal) {
  if (!is_keyed(seal)) return;
  for (uint32_t next = 0; next < num_frames;) {
    const uint8_t *group[SML_SIPHASH_MANY] = {NULL};
    uint64_t macs[SML_SIPHASH_MANY];
    const uint32_t num_bytes = next + 1 == num_frames ? last_bytes : frame_bytes, first = next;
    for (; next < num_frames && next - first < SML_SIPHASH_MANY; next++) {
      if (next > first && next + 1 == num_frames && last_bytes != num_bytes) break;
      group[next - first] = frames + (size_t)next * frame_bytes;
    }
    sml_wire_macs(group, next - first, num_bytes, &seal->key, macs);
    for (uint32_t i = first; i < next; i++)
      sml_store_be64(frames + (size_t)i * frame_bytes + CRC_OFFSET, macs[i - first]);
  }
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

bool sml_wire_has_mac(const uint8_t *frame, uint64_t mac) {
  return sml_load_be64(frame + CRC_OFFSET) == mac;
}

uint32_t sml_wire_mask(const uint8_t *frame, const struct sml_header *h) {
  return frame_crc(frame, h->payload_bytes) ^ sml_load_be32(frame + CRC_OFFSET);
}

bool sml_wire_is_authentic(const uint8_t *frame, const struct sml_header *h, const struct sml_seal *seal) {
  if (((h->flags & SML_FLAG_KEYED) != 0) != is_keyed(seal)) return false;
  if (is_keyed(seal)) return sml_wire_has_mac(frame, frame_mac(frame, h->payload_bytes, &seal->key));
  return sml_wire_mask(frame, h) == mask_of(seal);
}
