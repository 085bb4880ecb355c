/* SPDX-License-Identifier: Apache-2.0
 * Somebody who listens: sends old datagrams once more, byte for byte, whenever; and near-valid ones, with all right but
 * the port they come from, or but the mask of the checksum. Neither may change anything. */
#include <stdlib.h>

#include "sim/world.h"

#define NUM_KEPT 64u
#define KEEP_SHARE 23u
#define MAX_KEPT_BYTES 2048u
#define TYPE_HELLO 5
#define FLAG_KEYED 2
#define KEYED_BYTES 4u
#define MAX_PAUSE_NS (12 * SML_NS_PER_MS)

struct kept {
  uint32_t from_ipv4, to_ipv4, num_bytes;
  uint16_t from_port, to_port;
  uint8_t data[MAX_KEPT_BYTES];
};

struct sim_intruder {
  struct sim_world *world;
  struct sim_timer timer;
  struct sml_prng prng;
  uint64_t num_seen, num_replays, num_forgeries;
  struct kept kept[NUM_KEPT];
};

static void replay(struct sim_intruder *n, const struct kept *k) {
  sim_inject(k->from_ipv4, k->from_port, k->to_ipv4, k->to_port, k->data, k->num_bytes);
  n->num_replays++;
}

/* One field is another, or the payload is; or it comes without the tag that it had. It comes from the rank's own
 * address, with another mask where there are no keys. Or with the right one, from elsewhere: who reads the path of a
 * job without keys would be believed at the right place, as would be a HELLO's nonce. */
static void forge(struct sim_intruder *n, const struct kept *k) {
  static const uint8_t fields[] = {0, 1, 2, 7, 9, 13, 15, 19, 23, 27, 40};
  uint8_t frame[MAX_KEPT_BYTES];
  uint32_t num_bytes = k->num_bytes;
  memcpy(frame, k->data, num_bytes);
  const bool is_keyed = (frame[15] & FLAG_KEYED) != 0;
  const bool knows_mask = !is_keyed && sml_prng_chance(&n->prng, 0.5);
  const uint32_t mask = sim_frame_crc(frame, num_bytes) ^ sml_load_be32(frame + 28);
  const uint32_t guess = knows_mask ? mask : mask + 1 + (uint32_t)sml_prng_below(&n->prng, UINT32_MAX);
  if (knows_mask && (frame[0] & 15) == TYPE_HELLO) return;
  const uint32_t at = fields[sml_prng_below(&n->prng, SML_ARRAY_LEN(fields))];
  if (at < num_bytes) frame[at] = (uint8_t)(frame[at] + 1 + sml_prng_below(&n->prng, 3));
  if (is_keyed && sml_prng_chance(&n->prng, 0.3)) {
    frame[15] &= (uint8_t)~FLAG_KEYED;
    num_bytes -= KEYED_BYTES;
    memmove(frame + 32, frame + 32 + KEYED_BYTES, num_bytes - 32);
  }
  const uint16_t from_port = knows_mask ? (uint16_t)(k->from_port ^ 1) : k->from_port;
  if ((frame[15] & FLAG_KEYED) == 0)
    sml_store_be32(frame + 28, sim_frame_crc(frame, num_bytes) ^ (is_keyed ? 0 : guess));
  sim_inject(k->from_ipv4, from_port, k->to_ipv4, k->to_port, frame, num_bytes);
  n->num_forgeries++;
}

static void fire(struct sim_timer *timer) {
  struct sim_intruder *n = (struct sim_intruder *)(void *)((uint8_t *)timer - offsetof(struct sim_intruder, timer));
  if (n->world->are_faults_over) return;
  const uint64_t count = sml_prng_below(&n->prng, 8);
  for (uint64_t i = 0; i < count; i++) {
    const struct kept *k = &n->kept[sml_prng_below(&n->prng, NUM_KEPT)];
    if (k->num_bytes == 0) continue;
    if (sim_has(n->world->scenario, SIM_KIND_REPLAY)) replay(n, k);
    if (sim_has(n->world->scenario, SIM_KIND_FORGE)) forge(n, k);
  }
  sim_timer_set(&n->timer, sim_now_ns() + sml_prng_below(&n->prng, MAX_PAUSE_NS) + 1);
}

struct sim_intruder *sim_intruder_create(struct sim_world *world) {
  struct sim_intruder *n = calloc(1, sizeof *n);
  SML_ASSERT(n != NULL);
  n->world = world;
  n->prng = (struct sml_prng){world->scenario->seed ^ 0x1274de2};
  n->timer.fire = fire;
  sim_timer_set(&n->timer, sim_now_ns() + SML_NS_PER_MS);
  return n;
}

void sim_intruder_destroy(struct sim_intruder *n) {
  free(n);
}

void sim_intruder_on_sent(struct sim_intruder *n, const struct sim_datagram *d) {
  if (d->is_forged || d->num_bytes > MAX_KEPT_BYTES || n->num_seen++ % KEEP_SHARE != 0) return;
  /* Some stay for long. */
  struct kept *k = &n->kept[sml_prng_below(&n->prng, 1 + sml_prng_below(&n->prng, NUM_KEPT))];
  k->from_ipv4 = d->from_ipv4;
  k->to_ipv4 = d->to_ipv4;
  k->from_port = d->from_port;
  k->to_port = d->to_port;
  k->num_bytes = d->num_bytes;
  memcpy(k->data, d->data, d->num_bytes);
}

uint64_t sim_intruder_count(const struct sim_intruder *n, enum sim_kind kind) {
  return kind == SIM_KIND_REPLAY ? n->num_replays : n->num_forgeries;
}
