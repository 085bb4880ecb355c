/* SPDX-License-Identifier: Apache-2.0
 * Control messages. Input: a byte of how, then a message. How: bit 0 the header is made right, and its kind is
 * the byte's upper half; 0: the last. */
#include "ctl/message.h"

#include "fuzz/fuzz.h"

#define MAX_MESSAGE_BYTES (SML_CTL_FRAME_BYTES + SML_CTL_MAX_BODY)

/* A prefix is never a message, and what made it bad stays. */
static void check_prefixes(const uint8_t *bytes, size_t num_bytes, enum sml_ctl_decode verdict) {
  struct sml_ctl_message message;
  bool was_bad = false;
  for (size_t length = 0; length < num_bytes; length += 1 + length / 32) {
    size_t consumed = 1;
    uint8_t *copy = fuzz_copy(bytes, length);
    const enum sml_ctl_decode early = sml_ctl_decode(copy, length, &message, &consumed);
    CHECK(early != SML_CTL_DECODED && consumed == 0, "%zu of %zu bytes", length, num_bytes);
    CHECK(!was_bad || early != SML_CTL_NEED_MORE, "%zu of %zu bytes", length, num_bytes);
    CHECK(early == SML_CTL_NEED_MORE || verdict != SML_CTL_DECODED, "%zu of %zu bytes", length, num_bytes);
    was_bad = early != SML_CTL_NEED_MORE;
    free(copy);
  }
}

static void check_decoded(const uint8_t *bytes, size_t consumed, const struct sml_ctl_message *message) {
  uint8_t again[MAX_MESSAGE_BYTES];
  struct sml_ctl_message twice;
  size_t consumed_again;
  CHECK(sml_ctl_encode(message, again, sizeof again) == consumed, "kind %d", (int)message->kind);
  CHECK(memcmp(again, bytes, consumed) == 0, "kind %d", (int)message->kind);
  CHECK(sml_ctl_decode(again, consumed, &twice, &consumed_again) == SML_CTL_DECODED, " ");
  CHECK(memcmp(&twice, message, sizeof twice) == 0, "kind %d", (int)message->kind);
  for (size_t room = 0; room < consumed; room += 1 + room / 8)
    CHECK(sml_ctl_encode(message, again, room) == 0, "room for %zu of %zu", room, consumed);
  check_prefixes(bytes, consumed, SML_CTL_DECODED);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  struct sml_ctl_message message;
  size_t consumed = 1;
  if (num_bytes < 1 || num_bytes > MAX_MESSAGE_BYTES) return 0;
  const uint8_t how = data[0];
  num_bytes--;
  uint8_t *bytes = fuzz_copy(data + 1, num_bytes);
  if ((how & 1) && num_bytes >= SML_CTL_FRAME_BYTES) {
    sml_store_be32(bytes, SML_CTL_MAGIC);
    sml_store_be16(bytes + 4, SML_CTL_VERSION);
    sml_store_be16(bytes + 6, how >> 4 != 0 ? how >> 4 : SML_CTL_LAST_KIND);
    sml_store_be32(bytes + 8, (uint32_t)(num_bytes - SML_CTL_FRAME_BYTES));
  }
  const enum sml_ctl_decode verdict = sml_ctl_decode(bytes, num_bytes, &message, &consumed);
  CHECK(verdict != SML_CTL_BAD_MAC, "only a channel knows tags");
  if (verdict == SML_CTL_DECODED) {
    CHECK(consumed <= num_bytes, "%zu of %zu", consumed, num_bytes);
    check_decoded(bytes, consumed, &message);
  } else {
    CHECK(consumed == 0, "%zu", consumed);
    check_prefixes(bytes, num_bytes, verdict);
  }
  free(bytes);
  return 0;
}
