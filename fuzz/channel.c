/* SPDX-License-Identifier: Apache-2.0
 * Both ends of a control connection and somebody between them, who changes, drops, repeats, moves and returns
 * frames. The model: an end accepts, in order and at most once, exactly what the other end sent. */
#include "ctl/channel.h"

#include "fuzz/fuzz.h"

#define MAX_FRAMES 64u
#define LEASE_OFFSET 44u /* the last byte of the lease in shake_hands()'s JOIN */

/* One direction: what was sent, and how much of it the receiver has accepted. */
struct direction {
  struct sml_channel *from, *to;
  struct sml_ctl_message messages[MAX_FRAMES];
  uint8_t frames[MAX_FRAMES][SML_CHANNEL_MAX_FRAME_BYTES];
  size_t frame_bytes[MAX_FRAMES];
  uint32_t num_sent, num_accepted;
  bool is_dead; /* the receiver gave up */
};

static struct sml_ctl_message draw_message(struct fuzz_input *in) {
  struct sml_ctl_message m;
  memset(&m, 0, sizeof m);
  m.kind = SML_CTL_HEARTBEAT;
  switch (fuzz_below(in, 4)) {
    case 0: m.u.heartbeat.operations_completed = fuzz_u8(in); break;
    case 1:
      m.kind = SML_CTL_EPOCH;
      m.u.epoch.epoch = fuzz_u8(in);
      break;
    case 2: m.kind = SML_CTL_GOODBYE; break;
    default:
      m.kind = SML_CTL_RANK_GONE;
      m.u.rank_gone.num_ranks = 1;
      m.u.rank_gone.ranks[0] = fuzz_u8(in);
      m.u.rank_gone.status = -5;
      memset(m.u.rank_gone.detail, 'x', fuzz_u8(in));
  }
  return m;
}

static void send_message(struct direction *d, const struct sml_ctl_message *m) {
  if (d->num_sent == MAX_FRAMES) return;
  const uint32_t i = d->num_sent;
  d->messages[i] = *m;
  d->frame_bytes[i] = sml_channel_encode(d->from, m, d->frames[i], sizeof d->frames[i]);
  CHECK(d->frame_bytes[i] > 0, "kind %d", (int)m->kind);
  d->num_sent++;
}

/* Bytes arrive; is_next: they are the untouched frame that is due. */
static void deliver(struct direction *d, const uint8_t *bytes, size_t num_bytes, bool is_next) {
  struct sml_ctl_message m;
  size_t consumed = 1;
  if (d->is_dead) return;
  uint8_t *copy = fuzz_copy(bytes, num_bytes);
  const enum sml_ctl_decode verdict = sml_channel_decode(d->to, copy, num_bytes, &m, &consumed);
  free(copy);
  if (is_next) {
    CHECK(verdict == SML_CTL_DECODED && consumed == num_bytes, "verdict %d", (int)verdict);
    CHECK(memcmp(&m, &d->messages[d->num_accepted], sizeof m) == 0, "kind %d", (int)m.kind);
    d->num_accepted++;
    return;
  }
  CHECK(verdict != SML_CTL_DECODED && consumed == 0, "a frame that was not due was accepted");
  d->is_dead = verdict != SML_CTL_NEED_MORE;
}

static void attack(struct direction *d, const struct direction *back, struct fuzz_input *in, bool do_agree) {
  uint8_t frame[SML_CHANNEL_MAX_FRAME_BYTES];
  const uint8_t kind = fuzz_u8(in) % 6;
  const struct direction *source = kind == 4 ? back : d;
  if (source->num_sent == 0) return;
  uint32_t i = fuzz_u8(in) % source->num_sent;
  if (kind < 2 && d->num_accepted < d->num_sent) i = d->num_accepted;
  size_t num_bytes = source->frame_bytes[i];
  memcpy(frame, source->frames[i], num_bytes);
  bool is_changed = source != d;
  if (kind == 1) { /* a bit of the frame that is due */
    const uint32_t bit = fuzz_u16(in) % ((uint32_t)num_bytes * 8);
    frame[bit / 8] = (uint8_t)(frame[bit / 8] ^ 1u << bit % 8);
    is_changed = true;
  } else if (kind == 2) { /* a part of one */
    num_bytes = fuzz_u16(in) % num_bytes;
    is_changed = true;
  } else if (kind == 3) { /* without a tag */
    num_bytes = sml_ctl_encode(&source->messages[i], frame, sizeof frame);
    is_changed = true;
  } else if (kind == 5) { /* anything */
    struct sml_prng prng = {fuzz_u32(in)};
    for (size_t k = 0; k + SML_CHANNEL_MAC_BYTES < num_bytes; k++) frame[k] = fuzz_u8(in);
    /* Drawn: a fuzzer sees what is compared, and would find out the right tag. */
    sml_store_be64(frame + num_bytes - SML_CHANNEL_MAC_BYTES, sml_prng_next(&prng));
    is_changed = true;
  }
  deliver(d, frame, num_bytes, do_agree && !is_changed && i == d->num_accepted && d->num_accepted < d->num_sent);
}

/* Plain JOIN and CHALLENGE; then both ends set the key. */
static bool shake_hands(struct direction *up, struct direction *down, struct fuzz_input *in) {
  struct sml_key worker_key = {1, 2}, daemon_key = {1, 2};
  const uint8_t trouble = fuzz_u8(in);
  struct sml_ctl_message join = {.kind = SML_CTL_JOIN}, challenge = {.kind = SML_CTL_CHALLENGE}, seen;
  memset(&join.u, 0, sizeof join.u);
  memset(&challenge.u, 0, sizeof challenge.u);
  join.u.join = (struct sml_ctl_join){.job_name = "job",
                                      .world_size = 2,
                                      .num_lanes = 1,
                                      .num_slots = 1,
                                      .max_datagram_bytes = 1500,
                                      .lease_ns = 1000,
                                      .join_timeout_ns = 1,
                                      .key_name = "key",
                                      .nonce = {fuzz_u8(in), 7}};
  challenge.u.challenge.nonce[0] = fuzz_u8(in);
  uint8_t frame[SML_CHANNEL_MAX_FRAME_BYTES];
  size_t consumed, num_bytes = sml_channel_encode(up->from, &join, frame, sizeof frame);
  CHECK(num_bytes > 0, "JOIN");
  const uint64_t *worker_nonce = join.u.join.nonce, *daemon_nonce = challenge.u.challenge.nonce;
  if (trouble == 1) frame[LEASE_OFFSET] ^= 1; /* another lease than was asked for */
  CHECK(sml_channel_decode(up->to, frame, num_bytes, &seen, &consumed) == SML_CTL_DECODED, "JOIN");
  const uint64_t worker_nonce_seen[2] = {seen.u.join.nonce[0], seen.u.join.nonce[1]};
  num_bytes = sml_channel_encode(down->from, &challenge, frame, sizeof frame);
  if (trouble == 2) frame[num_bytes - 1] ^= 1;
  CHECK(sml_channel_decode(down->to, frame, num_bytes, &seen, &consumed) == SML_CTL_DECODED, "CHALLENGE");
  if (trouble == 3) worker_key.k1++;
  sml_channel_set_key(down->from, &daemon_key, worker_nonce_seen, daemon_nonce);
  sml_channel_set_key(up->from, &worker_key, worker_nonce, seen.u.challenge.nonce);
  return trouble < 1 || trouble > 3;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  struct fuzz_input in = {data, data + num_bytes};
  struct sml_channel worker, daemon;
  static struct direction up, down;
  memset(&up, 0, sizeof up);
  memset(&down, 0, sizeof down);
  sml_channel_init(&worker, false);
  sml_channel_init(&daemon, true);
  up.from = down.to = &worker;
  up.to = down.from = &daemon;
  const bool do_agree = shake_hands(&up, &down, &in);
  while (!fuzz_is_empty(&in)) {
    const uint8_t op = fuzz_u8(&in);
    struct direction *d = op & 1 ? &up : &down, *back = op & 1 ? &down : &up;
    const struct sml_ctl_message m = draw_message(&in);
    if (op & 2) send_message(d, &m);
    else if (op & 4) attack(d, back, &in, do_agree);
    if ((op & 8) && d->num_accepted < d->num_sent)
      deliver(d, d->frames[d->num_accepted], d->frame_bytes[d->num_accepted], do_agree);
  }
  return 0;
}
