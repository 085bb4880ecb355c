/* SPDX-License-Identifier: Apache-2.0
 * The ranks of one job on one host, which add up through shared memory (docs/ARCHITECTURE.md "One host").
 *
 * Ranks walk through a common sequence of *steps*. In a step each rank writes what is its to write and reads
 * what the step before made complete; then it arrives, and may take the next step once all have arrived.
 * Nothing else is synchronized: of every area there are two, used by steps of even and odd number, so that
 * what a step reads is not written again before the next but one, when all have left it.
 *
 * An operation of up to SML_SHM_DIRECT_BYTES takes one step: everybody writes its input and adds up all of
 * them by itself. A longer one is cut into pieces of equal size and is a pipeline: in one step a rank writes
 * its part of piece k, adds up its share of the blocks of piece k - 1 and copies piece k - 2 out.
 * Results are, block by block, those of the network (quant/quant.h reduce_floats), so a tensor's bits do not
 * depend on where the ranks run. A rank's own share is read from its input and need not be copied in.
 *
 * A group is used by one thread at a time, but for what says "any thread". */
#pragma once

#include <stdatomic.h>

#include "shm/shm_segment.h"
#include "quant/images.h"

struct sml_shm_group;

struct sml_shm_group_options {
  struct sml_shm_meeting meeting;
  const struct sml_quant_kernels *kernels;
};

/* NULL: *met_out and error_out say why, with *missing_out as in shm_segment.h. Blocks until the segment is
 * shared, at most until the meeting's deadline. */
struct sml_shm_group *sml_shm_group_open(const struct sml_shm_group_options *options, enum sml_shm_met *met_out,
                                         uint32_t *missing_out, char error_out[SML_SHM_ERROR_BYTES]);
void sml_shm_group_close(struct sml_shm_group *group);
/* What a group of that many ranks shares: fixed, whatever is summed. */
size_t sml_shm_segment_bytes(uint32_t num_ranks);

/* What must be equal on all ranks; compared at the first step. */
struct sml_shm_plan {
  uint64_t number, num_elems, key; /* num_elems > 0 */
  uint8_t type, reduction;         /* enum sml_format_reduction */
  struct sml_format_shape shape;
  uint8_t unused[2]; /* 0: plans are compared as bytes */
};

struct sml_shm_operation {
  struct sml_shm_plan plan;
  const void *in;
  void *out;            /* may be `in` */
  uint64_t piece_elems; /* of a relay: elements of a full piece, at most what fits its areas */
  void *cookie;         /* of a relay: for its submit */
};

enum sml_shm_verdict {
  SML_SHM_ENDED,    /* the result is in `out` */
  SML_SHM_WAITING,  /* for other ranks: sml_shm_group_await() */
  SML_SHM_MISMATCH, /* two ranks called different operations: sml_shm_group_mismatch() */
};

/* Begins an operation; none may be under way. */
void sml_shm_group_begin(struct sml_shm_group *group, const struct sml_shm_operation *operation);
/* Does what can be done now. After ENDED and MISMATCH the buffers are not touched again; after MISMATCH, or
 * if an operation is given up, the group is good for nothing but close. */
enum sml_shm_verdict sml_shm_group_advance(struct sml_shm_group *group);
/* The first two, in their order, that differ. */
void sml_shm_group_mismatch(const struct sml_shm_group *group, uint32_t *a_out, uint32_t *b_out);

enum sml_shm_wait {
  SML_SHM_READY, /* advance again */
  SML_SHM_DEADLINE,
  SML_SHM_ABORTED, /* sml_shm_group_abort() */
  SML_SHM_LOST,    /* a rank that is gone has not arrived, and never will: sml_shm_group_find_absent() */
};
/* Waits for the other ranks: looks for a short while, lets others run for another, then sleeps. */
enum sml_shm_wait sml_shm_group_await(struct sml_shm_group *group, uint64_t deadline_ns);

/* Any thread: whoever waits, or begins to, returns at once. */
void sml_shm_group_abort(struct sml_shm_group *group);
/* Any thread: that rank takes no further step. */
void sml_shm_group_set_gone(struct sml_shm_group *group, uint32_t index);
/* Any thread: the ranks that the group waits for, at most room of them, and how many there are. Those that
 * are gone alone, if only_gone. */
uint32_t sml_shm_group_find_absent(const struct sml_shm_group *group, bool only_gone, uint32_t *out, uint32_t room);
/* Any thread: blocks whose sums this rank has received. */
uint64_t sml_shm_group_num_blocks(const struct sml_shm_group *group);
