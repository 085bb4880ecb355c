/* SPDX-License-Identifier: Apache-2.0 */
#include "meet/rendezvous_message.h"

#include <stdio.h>

#define MAGIC 0x534d4c52u /* "SMLR" */
#define VERSION 2u
#define ANSWER_MAC 32u

static const char label[] = "switchml rendezvous";

static bool has_head(const uint8_t *in) {
  return sml_load_be32(in) == MAGIC && sml_load_be16(in + 4) == VERSION;
}

static void write_head(uint8_t *out, uint16_t what) {
  sml_store_be32(out, MAGIC);
  sml_store_be16(out + 4, VERSION);
  sml_store_be16(out + 6, what);
}

/* ---- the handshake ---- */

void sml_rendezvous_hello_write(uint8_t out[SML_HELLO_BYTES], const struct sml_rendezvous_hello *hello) {
  write_head(out, hello->is_keyed);
  sml_store_be32(out + 8, hello->world_size);
  sml_store_be32(out + 12, hello->rank);
  sml_store_be64(out + 16, hello->job_hash);
  for (uint32_t i = 0; i < 2; i++) sml_store_be64(out + 24 + 8 * i, hello->nonce[i]);
}

bool sml_rendezvous_hello_read(const uint8_t in[SML_HELLO_BYTES], struct sml_rendezvous_hello *hello) {
  const uint16_t flags = sml_load_be16(in + 6);
  *hello = (struct sml_rendezvous_hello){.is_keyed = (flags & 1) != 0,
                                         .world_size = sml_load_be32(in + 8),
                                         .rank = sml_load_be32(in + 12),
                                         .job_hash = sml_load_be64(in + 16),
                                         .nonce = {sml_load_be64(in + 24), sml_load_be64(in + 32)}};
  return has_head(in) && flags <= 1;
}

void sml_rendezvous_answer_write(uint8_t out[SML_ANSWER_BYTES], const struct sml_rendezvous_answer *answer) {
  memset(out, 0, SML_ANSWER_BYTES);
  write_head(out, (uint16_t)answer->kind);
  sml_store_be32(out + 8, answer->world_size);
  for (uint32_t i = 0; i < 2; i++) sml_store_be64(out + 16 + 8 * i, answer->nonce[i]);
}

bool sml_rendezvous_answer_read(const uint8_t in[SML_ANSWER_BYTES], struct sml_rendezvous_answer *answer) {
  *answer = (struct sml_rendezvous_answer){.kind = sml_load_be16(in + 6),
                                           .world_size = sml_load_be32(in + 8),
                                           .nonce = {sml_load_be64(in + 16), sml_load_be64(in + 24)}};
  return has_head(in) && answer->kind >= SML_ANSWER_GO_ON && answer->kind <= SML_ANSWER_NO_HELLO;
}

struct sml_key sml_rendezvous_key(const struct sml_key *job_key, const uint8_t hello[SML_HELLO_BYTES],
                                  const uint8_t answer[SML_ANSWER_BYTES]) {
  uint8_t both[SML_HELLO_BYTES + ANSWER_MAC];
  memcpy(both, hello, SML_HELLO_BYTES);
  memcpy(both + SML_HELLO_BYTES, answer, ANSWER_MAC);
  return sml_key_derive(job_key, label, both, sizeof both);
}

void sml_rendezvous_answer_seal(uint8_t answer[SML_ANSWER_BYTES], const struct sml_key *key) {
  sml_store_be64(answer + ANSWER_MAC, sml_siphash(key, answer, ANSWER_MAC));
}

bool sml_rendezvous_answer_is_sealed(const uint8_t answer[SML_ANSWER_BYTES], const struct sml_key *key) {
  return sml_load_be64(answer + ANSWER_MAC) == sml_siphash(key, answer, ANSWER_MAC);
}

/* ---- frames ---- */

void sml_frame_head_write(uint8_t out[SML_FRAME_HEAD_BYTES], const struct sml_frame_head *head) {
  write_head(out, (uint16_t)head->kind);
  sml_store_be32(out + 8, head->round);
  sml_store_be32(out + 12, head->num_bytes);
}

bool sml_frame_head_read(const uint8_t in[SML_FRAME_HEAD_BYTES], struct sml_frame_head *head) {
  *head = (struct sml_frame_head){
      .kind = sml_load_be16(in + 6), .round = sml_load_be32(in + 8), .num_bytes = sml_load_be32(in + 12)};
  return has_head(in) && head->kind >= SML_FRAME_RECORD && head->kind <= SML_FRAME_OCCUPIED;
}

static uint64_t mac_of(const struct sml_key *key, const uint8_t *head, const void *body, size_t num_bytes) {
  struct sml_siphash hash;
  sml_siphash_init(&hash, key);
  sml_siphash_update(&hash, head, SML_FRAME_HEAD_BYTES);
  sml_siphash_update(&hash, body, num_bytes);
  return sml_siphash_final(&hash);
}

void sml_frame_mac(uint8_t out[SML_FRAME_MAC_BYTES], const struct sml_key *key,
                   const uint8_t head[SML_FRAME_HEAD_BYTES], const void *body, size_t num_bytes) {
  sml_store_be64(out, mac_of(key, head, body, num_bytes));
}

bool sml_frame_has_mac(const uint8_t mac[SML_FRAME_MAC_BYTES], const struct sml_key *key,
                       const uint8_t head[SML_FRAME_HEAD_BYTES], const void *body, size_t num_bytes) {
  return sml_load_be64(mac) == mac_of(key, head, body, num_bytes);
}

/* ---- sentences ---- */

void sml_rendezvous_name_ranks(uint32_t num, const uint32_t *ranks, char *text, size_t text_bytes) {
  const uint32_t num_named = sml_min_u32(num, SML_MAX_NEWS);
  size_t used = (size_t)snprintf(text, text_bytes, "%s", num == 1 ? "rank" : "ranks");
  for (uint32_t i = 0; i < num_named && used < text_bytes; i++)
    used += (size_t)snprintf(text + used, text_bytes - used, "%s %u",
                             i == 0         ? ""
                             : i + 1 == num ? " and"
                                            : ",",
                             ranks[i]);
  if (num > num_named && used < text_bytes) snprintf(text + used, text_bytes - used, " and %u more", num - num_named);
}
