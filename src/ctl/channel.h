/* SPDX-License-Identifier: Apache-2.0
 * One end of a control connection: frames of ctl/message.h, and once a key is set, behind each a MAC that
 * proves who sent it, in which direction and as which message of the connection. Pure: no I/O.
 *
 * Handshake: JOIN (with a key's name and a nonce) and CHALLENGE (with a nonce) are plain. Then both ends
 * set the key; AUTH is the first frame with a MAC. The frames that were plain are part of what the connection's
 * keys are derived from: whoever changed one on its way has two ends that do not understand each other.
 *
 * A frame with a MAC has SML_CTL_HAS_MAC in its kind and 8 bytes behind its body: SipHash-2-4, under the
 * direction's key, of the number of frames with MACs before it in that direction (64 bits) and the frame. So
 * a frame that was changed, dropped, repeated, moved or sent back is not accepted, and none after it.
 *
 * REFUSE is the exception: an end that has not accepted a frame with a MAC yet sends and takes it plain,
 * since it must be able to say that the keys differ. Who can forge one could as well cut the connection. */
#pragma once

#include "base/siphash.h"
#include "ctl/message.h"

#define SML_CHANNEL_MAC_BYTES 8u
#define SML_CHANNEL_PLAIN_BYTES 768u /* the longest JOIN and CHALLENGE fit: else nothing would cover them */
#define SML_CHANNEL_MAX_FRAME_BYTES (SML_CTL_FRAME_BYTES + SML_CTL_MAX_BODY + SML_CHANNEL_MAC_BYTES)

struct sml_channel {
  bool is_daemon, is_keyed, has_accepted; /* accepted: a frame with a MAC */
  uint16_t peer_version;                  /* 0: ours; else a REFUSE goes out in this one */
  struct sml_key tx_key, rx_key;
  uint64_t num_sent, num_accepted; /* frames with MACs */
  uint32_t plain_bytes;
  uint8_t plain[SML_CHANNEL_PLAIN_BYTES]; /* the frames before the key was set */
};

/* For a new connection. */
void sml_channel_init(struct sml_channel *ch, bool is_daemon);
/* From here on every frame both ways has a MAC. Once a connection, after the CHALLENGE was encoded (daemon)
 * or decoded (worker). The nonces are those of JOIN and CHALLENGE. */
void sml_channel_set_key(struct sml_channel *ch, const struct sml_key *key, const uint64_t worker_nonce[2],
                         const uint64_t daemon_nonce[2]);
/* As sml_ctl_encode(). What was encoded must be sent, in order. */
size_t sml_channel_encode(struct sml_channel *ch, const struct sml_ctl_message *message, uint8_t *out,
                          size_t room_bytes);
/* As sml_ctl_decode(), and SML_CTL_BAD_MAC. After any verdict but NEED_MORE and DECODED the connection is of
 * no use any more. */
enum sml_ctl_decode sml_channel_decode(struct sml_channel *ch, const uint8_t *in, size_t num_bytes,
                                       struct sml_ctl_message *message_out, size_t *consumed_out);

/* The key of an epoch's datagrams, known to the daemon and to the job's ranks. */
struct sml_key sml_ctl_data_key(const struct sml_key *tenant, const char *job_name, uint16_t job, uint32_t epoch,
                                const uint64_t salt[2]);
