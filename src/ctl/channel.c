/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/channel.h"

static const char up_label[] = "switchml control up";
static const char down_label[] = "switchml control down";
static const char data_label[] = "switchml data";

void sml_channel_init(struct sml_channel *ch, bool is_daemon) {
  memset(ch, 0, sizeof *ch);
  ch->is_daemon = is_daemon;
}

/* What is beyond the room is no handshake of ours; both ends see it the same way. */
static void remember_plain(struct sml_channel *ch, const uint8_t *frame, size_t num_bytes) {
  if (ch->is_keyed || num_bytes > SML_CHANNEL_PLAIN_BYTES - ch->plain_bytes) return;
  memcpy(ch->plain + ch->plain_bytes, frame, num_bytes);
  ch->plain_bytes += (uint32_t)num_bytes;
}

void sml_channel_set_key(struct sml_channel *ch, const struct sml_key *key, const uint64_t worker_nonce[2],
                         const uint64_t daemon_nonce[2]) {
  SML_ASSERT(!ch->is_keyed);
  uint8_t context[32 + SML_CHANNEL_PLAIN_BYTES];
  for (uint32_t i = 0; i < 2; i++) {
    sml_store_be64(context + 8 * i, worker_nonce[i]);
    sml_store_be64(context + 16 + 8 * i, daemon_nonce[i]);
  }
  memcpy(context + 32, ch->plain, ch->plain_bytes);
  struct sml_key up = sml_key_derive(key, up_label, context, 32 + ch->plain_bytes);
  struct sml_key down = sml_key_derive(key, down_label, context, 32 + ch->plain_bytes);
  ch->tx_key = ch->is_daemon ? down : up;
  ch->rx_key = ch->is_daemon ? up : down;
  ch->is_keyed = true;
  sml_key_wipe(&up, sizeof up);
  sml_key_wipe(&down, sizeof down);
}

static uint64_t mac_of(const struct sml_key *key, uint64_t number, const uint8_t *frame, size_t num_bytes) {
  struct sml_siphash hash;
  uint8_t prefix[8];
  sml_store_be64(prefix, number);
  sml_siphash_init(&hash, key);
  sml_siphash_update(&hash, prefix, sizeof prefix);
  sml_siphash_update(&hash, frame, num_bytes);
  return sml_siphash_final(&hash);
}

size_t sml_channel_encode(struct sml_channel *ch, const struct sml_ctl_message *message, uint8_t *out,
                          size_t room_bytes) {
  bool is_refuse = message->kind == SML_CTL_REFUSE;
  bool has_mac = ch->is_keyed && !(is_refuse && !ch->has_accepted);
  size_t mac_bytes = has_mac ? SML_CHANNEL_MAC_BYTES : 0;
  if (room_bytes < mac_bytes) return 0;
  size_t num_bytes = sml_ctl_encode(message, out, room_bytes - mac_bytes);
  if (num_bytes == 0) return 0;
  if (is_refuse && ch->peer_version) sml_store_be16(out + 4, ch->peer_version);
  if (!has_mac) {
    remember_plain(ch, out, num_bytes);
    return num_bytes;
  }
  sml_store_be16(out + 6, (uint16_t)((uint32_t)message->kind | SML_CTL_HAS_MAC));
  sml_store_be64(out + num_bytes, mac_of(&ch->tx_key, ch->num_sent++, out, num_bytes));
  return num_bytes + mac_bytes;
}

/* Whether this end takes a frame of the kind with, or without, a MAC. */
static bool is_tag_expected(const struct sml_channel *ch, const struct sml_ctl_frame *frame) {
  if (frame->kind & SML_CTL_HAS_MAC) return ch->is_keyed;
  return !ch->is_keyed || (frame->kind == SML_CTL_REFUSE && !ch->has_accepted);
}

enum sml_ctl_decode sml_channel_decode(struct sml_channel *ch, const uint8_t *in, size_t num_bytes,
                                       struct sml_ctl_message *message_out, size_t *consumed_out) {
  struct sml_ctl_frame frame;
  *consumed_out = 0;
  enum sml_ctl_decode verdict = sml_ctl_decode_header(in, num_bytes, &frame);
  if (verdict == SML_CTL_BAD_VERSION) ch->peer_version = sml_load_be16(in + 4);
  if (verdict != SML_CTL_DECODED) return verdict;
  if (!is_tag_expected(ch, &frame)) return SML_CTL_BAD_MAC;

  bool has_mac = (frame.kind & SML_CTL_HAS_MAC) != 0;
  size_t frame_bytes = SML_CTL_FRAME_BYTES + frame.body_bytes;
  size_t all_bytes = frame_bytes + (has_mac ? SML_CHANNEL_MAC_BYTES : 0);
  if (num_bytes < all_bytes) return SML_CTL_NEED_MORE;
  /* No byte of the body is looked at before its MAC is right. */
  if (has_mac && sml_load_be64(in + frame_bytes) != mac_of(&ch->rx_key, ch->num_accepted, in, frame_bytes))
    return SML_CTL_BAD_MAC;
  if (!sml_ctl_decode_body(frame.kind & (uint16_t)~SML_CTL_HAS_MAC, in + SML_CTL_FRAME_BYTES, frame.body_bytes,
                           message_out))
    return SML_CTL_MALFORMED;
  if (has_mac) {
    ch->num_accepted++;
    ch->has_accepted = true;
  } else {
    remember_plain(ch, in, frame_bytes);
  }
  *consumed_out = all_bytes;
  return SML_CTL_DECODED;
}

struct sml_key sml_ctl_data_key(const struct sml_key *tenant, const char *job_name, uint16_t job, uint32_t epoch,
                                const uint64_t salt[2]) {
  uint8_t context[22 + SML_JOB_NAME_BYTES]; /* fixed lengths first: no two jobs have the same bytes */
  size_t name_bytes = strnlen(job_name, SML_JOB_NAME_BYTES);
  sml_store_be64(context, salt[0]);
  sml_store_be64(context + 8, salt[1]);
  sml_store_be16(context + 16, job);
  sml_store_be32(context + 18, epoch);
  memcpy(context + 22, job_name, name_bytes);
  return sml_key_derive(tenant, data_label, context, 22 + name_bytes);
}
