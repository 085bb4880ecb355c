/* SPDX-License-Identifier: Apache-2.0
 * SipHash-2-4 (Aumasson and Bernstein, INDOCRYPT 2012): a 64-bit MAC that only a holder of the 128-bit key
 * can make. Pure. Messages are authenticated with it and keys are derived with it; it hides nothing. */
#pragma once

#include "base/base.h"

/* k0 is the little-endian value of the key's first eight bytes, k1 of the others. */
struct sml_key {
  uint64_t k0, k1;
};

/* A message in pieces: any division of the same bytes gives the same MAC. */
struct sml_siphash {
  uint64_t v0, v1, v2, v3;
  uint64_t rest; /* bytes that are no whole word yet, the first one lowest */
  uint64_t num_bytes;
};
void sml_siphash_init(struct sml_siphash *hash, const struct sml_key *key);
void sml_siphash_update(struct sml_siphash *hash, const void *data, size_t num_bytes);
uint64_t sml_siphash_final(struct sml_siphash *hash); /* ends it */

uint64_t sml_siphash(const struct sml_key *key, const void *data, size_t num_bytes);

/* A key of its own for one purpose: two MACs over (a counter byte, label, 0, data). Who has the derived key
 * learns nothing of the one it came from. */
struct sml_key sml_key_derive(const struct sml_key *key, const char *label, const void *data, size_t num_bytes);

/* Overwrites keys that are not needed any more, or what has some, also where the compiler sees nobody read it. */
void sml_key_wipe(void *memory, size_t num_bytes);
