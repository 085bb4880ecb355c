/* SPDX-License-Identifier: Apache-2.0
 * The ranks of one host in a job over several: one of them, the *lead* (index 0), contributes for all
 * (docs/ARCHITECTURE.md "Several ranks a host"). Operations are cut into pieces, equally on all ranks of the job. A
 * rank copies its part of a piece into shared memory; when all have, the lead submits the piece to the network; when
 * the sum is there, everybody copies it out. SML_SHM_RELAY_DEPTH pieces are under way at a time, of one operation or of
 * several, so that copying and the network overlap, and the segment's size is fixed. The lead's own input is read where
 * it is, and a rank that is alone on its host copies nothing: it has its buffers submitted.
 *
 * Used by one thread at a time, but for what says "any thread". */
#pragma once

#include "shm/shm_group.h"

#define SML_SHM_RELAY_DEPTH 4u

struct sml_shm_relay;

/* The sum of one piece over the network. Memory lives until sml_shm_relay_done(). */
struct sml_shm_piece {
  void *cookie;                   /* of its operation */
  uint32_t slot;                  /* below SML_SHM_RELAY_DEPTH; not used by another piece until it is done */
  uint64_t first_elem, num_elems; /* in the operation */
  uint32_t num_inputs;            /* 1: `inputs[0]` alone */
  const void *const *inputs;
  void *out;
};

struct sml_shm_relay_options {
  struct sml_shm_meeting meeting; /* not asked of one rank alone */
  uint64_t piece_bytes;           /* of a full piece at most; equal on all ranks */
  /* The lead's: by whoever advances. False: not now, the job has failed. */
  bool (*submit)(void *user, const struct sml_shm_piece *piece);
  void *user;
};

/* As sml_shm_group_open() does. */
struct sml_shm_relay *sml_shm_relay_open(const struct sml_shm_relay_options *options, enum sml_shm_met *met_out,
                                         uint32_t *missing_out, char error_out[SML_SHM_ERROR_BYTES]);
/* Nothing that was submitted is under way any more. */
void sml_shm_relay_close(struct sml_shm_relay *relay);
/* Bytes of a tensor: about 2 MiB, less where a host has so many ranks that its shared memory would be large. */
uint64_t sml_shm_relay_piece_bytes(uint32_t num_ranks_of_largest_host);
/* That ranks of one host share at most, in a job of this size over several hosts. */
uint64_t sml_shm_relay_most_bytes(uint32_t world_size);

/* As those of a group, with its verdicts, but SML_SHM_RELAY_DEPTH operations may be under way; they end in their order.
 * ENDED: the oldest one's result is in its `out`. MISMATCH: of the oldest one. */
void sml_shm_relay_begin(struct sml_shm_relay *relay, const struct sml_shm_operation *operation);
enum sml_shm_verdict sml_shm_relay_advance(struct sml_shm_relay *relay);
void sml_shm_relay_mismatch(const struct sml_shm_relay *relay, uint32_t *a_out, uint32_t *b_out);
enum sml_shm_wait sml_shm_relay_await(struct sml_shm_relay *relay, uint64_t deadline_ns);
/* Whether await would return READY. */
bool sml_shm_relay_can_advance(const struct sml_shm_relay *relay);
/* Any thread: whoever waits, or begins to, returns READY. */
void sml_shm_relay_interrupt(struct sml_shm_relay *relay);

/* The lead's, any thread, one at a time: the piece that was submitted with this slot has its sum in `out`. */
void sml_shm_relay_done(struct sml_shm_relay *relay, uint32_t slot);

/* Any thread, as a group's. A rank also waits for the lead, if nobody else is absent. */
void sml_shm_relay_abort(struct sml_shm_relay *relay);
void sml_shm_relay_set_gone(struct sml_shm_relay *relay, uint32_t index);
uint32_t sml_shm_relay_find_absent(const struct sml_shm_relay *relay, bool only_gone, uint32_t *out, uint32_t room);
