/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "quant/exact.h"
#include "shm/shm_group.h"

#define LINE_BYTES 128u /* two cache lines: they are fetched in pairs */
/* The piece of one rank's inputs: enough that a step costs more than its synchronization, little enough that two areas
 * of eight ranks stay in a cache. */
#define PIECE_BYTES (512u << 10)
#define MAX_AREAS_BYTES (UINT64_C(64) << 20)
#define DIRECT_BYTES (16u << 10)      /* of one rank */
#define DIRECT_ALL_BYTES (128u << 10) /* of all ranks: each reads them all */

/* ---- in the segment ---- */

/* A rank's step: it writes its part, then num_steps and num_arrivals (release). Whoever arrives last has acquired all
 * by num_arrivals, and writes num_open, which the others read (acquire) before they read anybody's part. */
struct host_header {
  _Alignas(LINE_BYTES) _Atomic uint64_t num_arrivals; /* of all ranks at all steps */
  _Alignas(LINE_BYTES) _Atomic uint32_t num_open;     /* steps that all have arrived at; waited on */
  _Atomic uint32_t num_sleepers;
};

struct host_rank {
  _Alignas(LINE_BYTES) _Atomic uint64_t num_steps; /* it has arrived at */
  struct sml_shm_plan plans[2];                    /* by the parity of the operation's first step */
};

/* ---- this process's ---- */

struct sml_shm_group {
  const struct sml_quant_kernels *kernels;
  uint32_t num_ranks, index;
  struct sml_shm_segment segment;
  struct host_header *header;
  struct host_rank *ranks;
  uint8_t *areas; /* in[2][num_ranks], then out[2]; area_bytes each */
  size_t area_bytes;
  uint32_t num_spins, max_spins; /* looks before the first yield */

  _Atomic uint64_t step;              /* to arrive at, or arrived at and not open yet */
  struct sml_shm_operation operation; /* num_elems 0: none */
  const struct sml_format *format;    /* its */
  uint64_t num_bytes;                 /* its tensor's */
  size_t block_bytes;                 /* of its tensor */
  bool is_direct, is_exact;
  struct sml_exact exact; /* if it is */
  uint64_t stage;         /* steps of it that are open */
  uint64_t num_blocks, num_pieces, first_step;
  _Atomic uint64_t blocks_done;
  uint32_t mismatch[2];

  _Atomic bool is_aborted, has_gone; /* release: _abort, _set_gone; acquire: whoever waits for a step */
  _Atomic uint8_t *is_gone;
  const void **inputs; /* num_ranks pointers */
};

static inline uint8_t *sml_shm_in_area(const struct sml_shm_group *g, uint64_t step, uint32_t rank) {
  return g->areas + ((step % 2) * g->num_ranks + rank) * g->area_bytes;
}
static inline uint8_t *sml_shm_out_area(const struct sml_shm_group *g, uint64_t step) {
  return g->areas + (2 * (uint64_t)g->num_ranks + step % 2) * g->area_bytes;
}

/* How much of a tensor a piece is at most; a block at least. */
size_t sml_shm_piece_bytes(uint32_t num_ranks);

/* The steps (shm_group.c). */
void sml_shm_arrive(struct sml_shm_group *group);
bool sml_shm_is_open(const struct sml_shm_group *group); /* the step arrived at */
