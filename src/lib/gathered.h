/* SPDX-License-Identifier: Apache-2.0
 * Small sums of floats in one round (docs/PROTOCOL.md rules R225 to R227): ranks gather all inputs, by one sum of int32
 * lanes in which each of them has a place of its own and zeros elsewhere. Then each adds them up by itself, to the bits
 * that the lanes of the floats would have given. */
#pragma once

#include "engine/worker_engine.h"
#include "quant/exact.h"

/* All inputs have so many bytes, at most. In exact mode more is saved: an operation for codes before that for limbs. */
#define SML_GATHERED_BYTES (4u << 10)
#define SML_GATHERED_EXACT_BYTES (32u << 10)
#define SML_GATHERED_CHUNKS 12u /* that all ranks send, at most */
/* On a long path more: what a link of 1 Gbit/s carries in 0.8 round trips, and in 0.8 ms. */
#define SML_GATHERED_PATH_BYTES 100000u
#define SML_GATHERED_MAX_RANKS 64u

/* One sum. */
struct sml_gathered {
  const struct sml_format *format;
  const struct sml_quant_kernels *kernels;
  void *out;
  size_t count, part_bytes;
  struct sml_exact exact; /* if it is exact */
  bool is_exact;
  uint32_t num_ranks;
  uint8_t type, reduction;
  _Alignas(64) uint8_t lanes[SML_GATHERED_EXACT_BYTES];
};

/* Equal on all ranks. */
struct sml_gathered_job {
  const struct sml_format_options *formats;
  uint32_t num_ranks;
  uint64_t rtt_ns; /* START's; with retry 0 */
};
/* Whether a sum of that job goes so. */
bool sml_gathered_takes(const struct sml_gathered_job *job, const struct sml_operation_plan *plan, bool is_exact);

struct sml_gathered_call {
  uint32_t rank, num_ranks;
  const struct sml_quant_kernels *kernels;
  const void *in;
  void *out;     /* gets the sum */
  bool is_exact; /* and its plan has no blocks */
};
/* Copies the input, and changes the plan to that of `lanes`, which are input and output. */
void sml_gathered_begin(struct sml_gathered *g, const struct sml_gathered_call *call, struct sml_operation_plan *plan);

/* The sum, to `out`. */
void sml_gathered_store(struct sml_gathered *g);
