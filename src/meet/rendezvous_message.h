/* SPDX-License-Identifier: Apache-2.0
 * What is said at a rendezvous, as docs/PROTOCOL.md has it (rules R133 to R140). Pure. Big-endian.
 *
 *   rank r to rank 0   HELLO    who it is, and a nonce
 *   rank 0 to rank r   ANSWER   "go on" or why not; a nonce, and a MAC
 *   rank r to rank 0   RECORD   its part of the all-gather, with a MAC: now it has come
 *   rank 0 to rank r   WAITING  once a second: whom it waits for still; or OCCUPIED: that rank has come already
 *   rank 0 to rank r   ALL      the records of all ranks
 *
 * RECORD and ALL are repeated for each later round. MACs are made with a key that both derive from the job's key, HELLO
 * and ANSWER: only who has the job's key can make them. Where the job has none they show that the other end is no
 * stranger to this protocol, and no more. */
#pragma once

#include "base/siphash.h"

#define SML_HELLO_BYTES 40u
#define SML_ANSWER_BYTES 40u
#define SML_FRAME_HEAD_BYTES 16u
#define SML_FRAME_MAC_BYTES 8u
#define SML_MAX_NEWS 16u /* numbers of ranks in a WAITING */

struct sml_rendezvous_hello {
  bool is_keyed;
  uint32_t world_size, rank;
  uint64_t job_hash;
  uint64_t nonce[2];
};
void sml_rendezvous_hello_write(uint8_t out[SML_HELLO_BYTES], const struct sml_rendezvous_hello *hello);
/* False: it is none, or of another version. */
bool sml_rendezvous_hello_read(const uint8_t in[SML_HELLO_BYTES], struct sml_rendezvous_hello *hello_out);

enum sml_answer_kind {
  SML_ANSWER_GO_ON = 1,
  SML_ANSWER_OTHER_JOB = 2,
  SML_ANSWER_OTHER_SIZE = 3, /* the job is right */
  SML_ANSWER_OTHER_KEY = 4,  /* one of both has none */
  SML_ANSWER_NO_HELLO = 5,
};

struct sml_rendezvous_answer {
  enum sml_answer_kind kind;
  uint32_t world_size; /* rank 0's */
  uint64_t nonce[2];
};
/* But for the MAC. */
void sml_rendezvous_answer_write(uint8_t out[SML_ANSWER_BYTES], const struct sml_rendezvous_answer *answer);
/* False: it is none, or of another version. */
bool sml_rendezvous_answer_read(const uint8_t in[SML_ANSWER_BYTES], struct sml_rendezvous_answer *answer_out);

/* The key of the connection; job_key of a job that has none: zeros. */
struct sml_key sml_rendezvous_key(const struct sml_key *job_key, const uint8_t hello[SML_HELLO_BYTES],
                                  const uint8_t answer[SML_ANSWER_BYTES]);
void sml_rendezvous_answer_seal(uint8_t answer[SML_ANSWER_BYTES], const struct sml_key *key);
bool sml_rendezvous_answer_is_sealed(const uint8_t answer[SML_ANSWER_BYTES], const struct sml_key *key);

enum sml_frame_kind { SML_FRAME_RECORD = 1, SML_FRAME_ALL = 2, SML_FRAME_WAITING = 3, SML_FRAME_OCCUPIED = 4 };

struct sml_frame_head {
  enum sml_frame_kind kind;
  uint32_t round, num_bytes; /* num_bytes: of what follows before the MAC */
};
void sml_frame_head_write(uint8_t out[SML_FRAME_HEAD_BYTES], const struct sml_frame_head *head);
bool sml_frame_head_read(const uint8_t in[SML_FRAME_HEAD_BYTES], struct sml_frame_head *head_out);
void sml_frame_mac(uint8_t out[SML_FRAME_MAC_BYTES], const struct sml_key *key,
                   const uint8_t head[SML_FRAME_HEAD_BYTES], const void *body, size_t num_bytes);
bool sml_frame_has_mac(const uint8_t mac[SML_FRAME_MAC_BYTES], const struct sml_key *key,
                       const uint8_t head[SML_FRAME_HEAD_BYTES], const void *body, size_t num_bytes);

/* "rank 2", "ranks 1, 2 and 300 more": num ranks, of which the first SML_MAX_NEWS are in ranks. */
void sml_rendezvous_name_ranks(uint32_t num, const uint32_t *ranks, char *text, size_t text_bytes);
