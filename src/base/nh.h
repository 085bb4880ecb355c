/* SPDX-License-Identifier: Apache-2.0
 * NH (Black, Halevi, Krawczyk, Krovetz and Rogaway, "UMAC: Fast and Secure Message Authentication", CRYPTO 1999), two
 * passes of 64 bits: two messages of one length that were chosen without the key have the same digest with
 * probability 2^-64. Pure. A digest is no MAC: it must stay secret, and a pseudorandom function makes a MAC of it
 * (core/wire.c). */
#pragma once

#include "base/siphash.h"

#define SML_NH_RUN_BYTES 1024u
#define SML_NH_DIGEST_BYTES 16u

static inline size_t sml_nh_num_runs(size_t num_bytes) {
  return (num_bytes + SML_NH_RUN_BYTES - 1) / SML_NH_RUN_BYTES;
}

/* A pair of words of the message is added to a pair of these, in the second pass to the next pair. */
struct sml_nh_key {
  uint32_t words[SML_NH_RUN_BYTES / 4 + 2];
};
void sml_nh_key_derive(struct sml_nh_key *out, const struct sml_key *key);

/* The digests of sml_nh_num_runs(num_bytes) runs of the message, of SML_NH_RUN_BYTES each and of what is left. */
void sml_nh(const struct sml_nh_key *key, const void *message, size_t num_bytes, uint8_t *digests_out);
