/* SPDX-License-Identifier: Apache-2.0 */
#include "base/siphash.h"

static inline uint64_t rotate(uint64_t x, uint32_t by) {
  return x << by | x >> (64 - by);
}

static inline void mix(struct sml_siphash *h) {
  h->v0 += h->v1;
  h->v2 += h->v3;
  h->v1 = rotate(h->v1, 13) ^ h->v0;
  h->v3 = rotate(h->v3, 16) ^ h->v2;
  h->v0 = rotate(h->v0, 32);
  h->v2 += h->v1;
  h->v0 += h->v3;
  h->v1 = rotate(h->v1, 17) ^ h->v2;
  h->v3 = rotate(h->v3, 21) ^ h->v0;
  h->v2 = rotate(h->v2, 32);
}

static inline void take_word(struct sml_siphash *h, uint64_t word) {
  h->v3 ^= word;
  mix(h);
  mix(h);
  h->v0 ^= word;
}

static inline uint64_t load_word(const uint8_t *p) {
  uint64_t word;
  memcpy(&word, p, sizeof word);
  return sml_le64(word);
}

void sml_siphash_init(struct sml_siphash *h, const struct sml_key *key) {
  *h = (struct sml_siphash){.v0 = key->k0 ^ UINT64_C(0x736f6d6570736575),
                            .v1 = key->k1 ^ UINT64_C(0x646f72616e646f6d),
                            .v2 = key->k0 ^ UINT64_C(0x6c7967656e657261),
                            .v3 = key->k1 ^ UINT64_C(0x7465646279746573)};
}

static void take_byte(struct sml_siphash *h, uint8_t byte) {
  h->rest |= (uint64_t)byte << (8 * (h->num_bytes & 7));
  if ((++h->num_bytes & 7) != 0) return;
  take_word(h, h->rest);
  h->rest = 0;
}

void sml_siphash_update(struct sml_siphash *hash, const void *data, size_t num_bytes) {
  struct sml_siphash h = *hash; /* in registers */
  if (num_bytes == 0) return;   /* then data may be NULL, which no number may be added to */
  const uint8_t *p = data, *end = p + num_bytes;
  while (p < end && (h.num_bytes & 7) != 0) take_byte(&h, *p++);
  for (; end - p >= 8; p += 8, h.num_bytes += 8) take_word(&h, load_word(p));
  while (p < end) take_byte(&h, *p++);
  *hash = h;
}

uint64_t sml_siphash_final(struct sml_siphash *h) {
  take_word(h, h->rest | h->num_bytes << 56);
  h->v2 ^= 0xff;
  for (uint32_t i = 0; i < 4; i++) mix(h);
  return h->v0 ^ h->v1 ^ h->v2 ^ h->v3;
}

uint64_t sml_siphash(const struct sml_key *key, const void *data, size_t num_bytes) {
  struct sml_siphash h;
  sml_siphash_init(&h, key);
  sml_siphash_update(&h, data, num_bytes);
  return sml_siphash_final(&h);
}

static uint64_t derive_half(const struct sml_key *key, uint8_t counter, const char *label, const void *data,
                            size_t num_bytes) {
  struct sml_siphash h;
  sml_siphash_init(&h, key);
  sml_siphash_update(&h, &counter, 1);
  sml_siphash_update(&h, label, strlen(label) + 1);
  sml_siphash_update(&h, data, num_bytes);
  return sml_siphash_final(&h);
}

struct sml_key sml_key_derive(const struct sml_key *key, const char *label, const void *data, size_t num_bytes) {
  return (struct sml_key){.k0 = derive_half(key, 0, label, data, num_bytes),
                          .k1 = derive_half(key, 1, label, data, num_bytes)};
}

void sml_key_wipe(void *memory, size_t num_bytes) {
  explicit_bzero(memory, num_bytes);
}
