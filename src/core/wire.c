/* SPDX-License-Identifier: Apache-2.0 */
#include "core/wire.h"

#define CRC_OFFSET 28u
#define MAC_OFFSET 32u
#define RESERVED_OFFSET 40u
#define KNOWN_FLAGS \
  (SML_FLAG_RETRANSMISSION | SML_FLAG_KEYED | SML_FLAG_CHECKED | SML_FLAG_BY_GRANT | SML_FLAG_UNASKED | \
   SML_FLAG_MARKED | SML_FLAG_DEAF)

/* rest_bytes: of the extension and the payload. */
static uint32_t frame_crc(const uint8_t *frame, size_t rest_bytes) {
#ifdef SML_BENCH_WITHOUT_CRC /* never in a product: `bench/run --scenario checks` measures what it costs */
  return 0;
#endif
  uint8_t header[SML_HEADER_BYTES] = {0}; /* in one piece: each call costs as much as many bytes */
  memcpy(header, frame, CRC_OFFSET);
  return sml_crc32c(sml_crc32c(0, header, sizeof header), frame + SML_HEADER_BYTES, rest_bytes);
}

static uint64_t frame_mac(const uint8_t *frame, size_t payload_bytes, const struct sml_key *key) {
  uint8_t header[SML_HEADER_BYTES] = {0};
  memcpy(header, frame, CRC_OFFSET);
  struct sml_siphash hash;
  sml_siphash_init(&hash, key);
  sml_siphash_update(&hash, header, sizeof header);
  sml_siphash_update(&hash, frame + RESERVED_OFFSET, 8 + payload_bytes);
  return sml_siphash_final(&hash);
}

void sml_wire_seal(uint8_t *frame, const struct sml_header *h, const struct sml_key *key) {
  const uint32_t flags = (h->flags & ~(uint32_t)SML_FLAG_KEYED) | (key != NULL ? SML_FLAG_KEYED : 0u);
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
  if (key != NULL) {
    memset(frame + RESERVED_OFFSET, 0, 8);
    sml_store_be64(frame + MAC_OFFSET, frame_mac(frame, h->payload_bytes, key));
  }
  const size_t rest_bytes = sml_head_bytes(key != NULL) - SML_HEADER_BYTES + (size_t)h->payload_bytes;
  const uint32_t crc = frame_crc(frame, rest_bytes);
  sml_store_be32(frame + CRC_OFFSET, crc);
}

static bool is_known(const struct sml_header *h) {
  const bool is_data = h->wire == SML_LANES_INT32 && h->reducer == SML_REDUCE_SUM;
  const bool is_exponents = h->wire == SML_LANES_UINT8 && h->reducer == SML_REDUCE_MAX;
  /* Only sums of lanes have a check word. */
  const bool is_summed = is_data && (h->type == SML_PACKET_UPDATE || h->type == SML_PACKET_RESULT);
  if ((h->flags & SML_FLAG_CHECKED) && !is_summed) return false;
  if ((h->flags & (SML_FLAG_BY_GRANT | SML_FLAG_DEAF)) && h->type != SML_PACKET_PROBE) return false;
  if ((h->flags & (SML_FLAG_UNASKED | SML_FLAG_MARKED)) && h->type != SML_PACKET_PENDING) return false;
  return h->type >= SML_PACKET_UPDATE && h->type <= SML_PACKET_PROBE && (is_data || is_exponents) &&
         (h->flags & ~KNOWN_FLAGS) == 0;
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
  if (frame_crc(frame, frame_bytes - SML_HEADER_BYTES) != sml_load_be32(frame + CRC_OFFSET))
    return SML_WIRE_BAD_CRC;
  return is_known(h) ? SML_WIRE_OK : SML_WIRE_BAD_TYPE;
}

bool sml_wire_is_authentic(const uint8_t *frame, const struct sml_header *h, const struct sml_key *key) {
  const bool is_keyed = (h->flags & SML_FLAG_KEYED) != 0;
  if (key == NULL || !is_keyed) return key == NULL && !is_keyed;
  const uint64_t reserved = sml_load_be64(frame + RESERVED_OFFSET);
  const uint64_t mac = sml_load_be64(frame + MAC_OFFSET);
  return ((frame_mac(frame, h->payload_bytes, key) ^ mac) | reserved) == 0;
}
