/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/macs.h"

#define JOB_OFFSET 2u /* the header's job, and behind it the epoch (core/wire.c) */
#define JOB_BYTES 6u

static bool is_of_run(const struct sml_macs *t, const struct sml_rx_frame *first, const struct sml_rx_frame *frame) {
  if (frame->num_bytes != first->num_bytes) return false;
  if (t->is_per_source && frame->from != first->from && !sml_addr_equal(frame->from, first->from)) return false;
  return memcmp(frame->data + JOB_OFFSET, first->data + JOB_OFFSET, JOB_BYTES) == 0;
}

static void make_run(struct sml_macs *t, const struct sml_rx_frame *first, const struct sml_rx_frame *end,
                     const struct sml_key *key) {
  const uint8_t *frames[SML_SIPHASH_MANY] = {NULL};
  t->first = first;
  t->key = *key;
  t->num_frames = 0;
  for (const struct sml_rx_frame *f = first; f < end && t->num_frames < SML_SIPHASH_MANY && is_of_run(t, first, f); f++)
    frames[t->num_frames++] = f->data;
  sml_wire_macs(frames, t->num_frames, first->num_bytes, key, t->macs);
}

bool sml_macs_check_keyed(struct sml_macs *t, const struct sml_rx_frame *frame, const struct sml_rx_frame *end,
                          const struct sml_key *key) {
  const bool is_known = t->num_frames > 0 && frame >= t->first && frame < t->first + t->num_frames &&
                        t->key.k0 == key->k0 && t->key.k1 == key->k1;
  if (!is_known) make_run(t, frame, end, key);
  return sml_wire_has_mac(frame->data, t->macs[frame - t->first]);
}
