/* SPDX-License-Identifier: Apache-2.0
 * The data header. Input: a byte of how, then a frame. How: bit 0 the length field is made right, bit 1 the
 * checksum, bit 2 the tag under KEY. */
#include "core/wire.h"

#include "core/drop.h"
#include "fuzz/fuzz.h"

#define MAX_FRAME_BYTES 1024u

static const struct sml_key KEYS[2] = {{UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)},
                                       {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0909)}};
static struct sml_seal KEYED, OTHER_KEY; /* with these */

enum { FIX_LENGTH = 1, FIX_CRC = 2, FIX_TAG = 4 };

static void repair(uint8_t *frame, size_t num_bytes, uint8_t how) {
  static const uint8_t zero[4];
  if (num_bytes < SML_HEADER_BYTES) return;
  const bool is_keyed = num_bytes >= sml_head_bytes(true) && (how & FIX_TAG) != 0;
  if (is_keyed) frame[15] |= SML_FLAG_KEYED;
  const uint32_t head_bytes = sml_head_bytes((frame[15] & SML_FLAG_KEYED) != 0);
  if ((how & FIX_LENGTH) && num_bytes >= head_bytes) sml_store_be16(frame + 10, (uint16_t)(num_bytes - head_bytes));
  if (is_keyed) {
    uint8_t signed_bytes[SML_HEADER_BYTES + SML_NH_DIGEST_BYTES] = {0}; /* a payload of one run */
    const size_t payload_bytes = num_bytes - head_bytes;
    memcpy(signed_bytes, frame, 28);
    sml_nh(&KEYED.digest_key, frame + head_bytes, payload_bytes, signed_bytes + SML_HEADER_BYTES);
    const size_t signed_now = payload_bytes > 0 ? sizeof signed_bytes : SML_HEADER_BYTES;
    sml_store_be64(frame + 28, sml_siphash(&KEYS[0], signed_bytes, signed_now));
  }
  if ((how & FIX_CRC) == 0 || (frame[15] & SML_FLAG_KEYED)) return;
  uint32_t crc = sml_crc32c(0, frame, 28);
  crc = sml_crc32c(crc, zero, sizeof zero);
  sml_store_be32(frame + 28, sml_crc32c(crc, frame + SML_HEADER_BYTES, num_bytes - SML_HEADER_BYTES));
}

static bool is_in_version_1(const struct sml_header *h) {
  const bool is_lanes = h->wire == 0 && h->reducer == 0;
  const uint32_t pair = (uint32_t)h->wire << 4 | h->reducer;
  const bool is_other = pair == 0x11 || pair == 0x21 || pair == 0x31 || pair == 0x24 || pair == 0x34 || pair == 0x25 ||
                        pair == 0x02 || pair == 0x13;
  uint32_t flags = SML_FLAG_RETRANSMISSION | SML_FLAG_KEYED;
  if (is_lanes && (h->type == 1 || h->type == 2)) flags |= SML_FLAG_CHECKED;
  if (is_lanes && h->type == 1 && (h->flags & SML_FLAG_CHECKED) == 0) flags |= SML_FLAG_NARROW;
  if (h->type == 3) flags |= SML_FLAG_UNASKED | SML_FLAG_MARKED;
  if (h->type == 7) flags |= SML_FLAG_BY_GRANT | SML_FLAG_DEAF;
  return h->version == 1 && h->type >= 1 && h->type <= 7 && (is_lanes || is_other) && (h->flags & ~flags) == 0;
}

/* One bit of a good frame changed on its way: CRC-32C finds each of them, and the tag what has none. */
static void check_bit_flip(uint8_t *frame, size_t num_bytes, uint32_t bit, const struct sml_seal *seal) {
  struct sml_header h;
  bit %= (uint32_t)num_bytes * 8;
  frame[bit / 8] = (uint8_t)(frame[bit / 8] ^ 1u << bit % 8);
  if (sml_wire_open(frame, num_bytes, &h) == SML_WIRE_OK) CHECK(!sml_wire_is_authentic(frame, &h, seal), "bit %u", bit);
  frame[bit / 8] = (uint8_t)(frame[bit / 8] ^ 1u << bit % 8);
}

/* Who changes a tagged frame and, where that leaves none, makes it a checksum. */
static void check_forgery(uint8_t *frame, size_t num_bytes, uint32_t bit) {
  struct sml_header h;
  bit %= (uint32_t)num_bytes * 8;
  frame[bit / 8] = (uint8_t)(frame[bit / 8] ^ 1u << bit % 8);
  repair(frame, num_bytes, FIX_CRC);
  if (sml_wire_open(frame, num_bytes, &h) == SML_WIRE_OK)
    CHECK(!sml_wire_is_authentic(frame, &h, &KEYED), "bit %u", bit);
}

static void check_good(uint8_t *frame, size_t num_bytes, const struct sml_header *h, uint32_t bit) {
  uint8_t again[MAX_FRAME_BYTES];
  const bool is_keyed = (h->flags & SML_FLAG_KEYED) != 0;
  CHECK(is_in_version_1(h), "type %u wire %u reducer %u flags %x", h->type, h->wire, h->reducer, h->flags);
  CHECK(sml_head_bytes_of(h) + (size_t)h->payload_bytes == num_bytes, "%u of %zu", h->payload_bytes, num_bytes);
  /* Whatever stands there is the right CRC under some mask. */
  const struct sml_seal mask = {.mask = is_keyed ? 0 : sml_wire_mask(frame, h)}, *seal = is_keyed ? &KEYED : &mask;
  const bool is_authentic = sml_wire_is_authentic(frame, h, seal);
  CHECK(is_keyed || is_authentic, " ");
  memcpy(again, frame, num_bytes);
  if (!is_authentic) return;
  memset(again, 0x55, sml_head_bytes_of(h));
  sml_wire_seal(again, h, seal);
  CHECK(memcmp(again, frame, num_bytes) == 0, "what is sealed is not what was opened");
  const struct sml_seal other = {.mask = mask.mask ^ (1u << bit % 32)};
  CHECK(!sml_wire_is_authentic(frame, h, &other) && !sml_wire_is_authentic(frame, h, &OTHER_KEY), " ");
  CHECK(!sml_wire_is_authentic(frame, h, is_keyed ? &mask : &KEYED), " ");
  check_bit_flip(frame, num_bytes, bit, seal);
  if (is_keyed) check_forgery(frame, num_bytes, bit);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  struct sml_header h;
  if (num_bytes < 1 || num_bytes > MAX_FRAME_BYTES) return 0;
  if (!KEYED.is_keyed) KEYED = sml_seal_of_key(&KEYS[0]), OTHER_KEY = sml_seal_of_key(&KEYS[1]);
  const uint8_t how = data[0];
  num_bytes--;
  uint8_t *frame = fuzz_copy(data + 1, num_bytes);
  repair(frame, num_bytes, how);
  const enum sml_wire_error error = sml_wire_open(frame, num_bytes, &h);
  if (error == SML_WIRE_OK) check_good(frame, num_bytes, &h, sml_crc32c(0, data, num_bytes));
  else CHECK(sml_drop_of_wire(error) < SML_NUM_DROPS, "%d", (int)error);
  free(frame);
  return 0;
}
