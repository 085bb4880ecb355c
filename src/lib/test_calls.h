/* SPDX-License-Identifier: Apache-2.0
 * For tests: sequences of calls that must do the same whatever carries them, and a rank that is a process. */
#pragma once

#include "lib/test_world.h"

/* Operations of all sizes, types (float64_bits must be set) and alignments, in place or not, three in flight. */
struct mixed_calls {
  uint32_t num;
  size_t max_elems;
  size_t (*count)(uint64_t bits, uint32_t i); /* of call i; bits: random, the same on all ranks */
};
/* Writes a hash of all sums: equal on ranks, and over anything that carries them. */
void sum_mixed(struct rank *r, const struct mixed_calls *calls, uint64_t *hash_out);

/* Body: 20 operations that end although nobody waits for them; some are released before. */
void let_helpers_work(struct rank *r);
/* Rank `differing` calls something else, in the second of two operations that are outstanding; `other` is
 * named too; not everybody is, but for the other ranks of a host that contributes as one. */
void call_differently(struct rank *r, uint32_t differing, uint32_t other);
/* One rank aborts while the others wait. */
void abort_while_others_wait(struct rank *r, uint32_t aborting);

#define LARGE_ELEMS 1000000u
/* Large operations until one fails. Returns its status, with the job's error. */
sml_status sum_for_ever(sml_job *job, float *data, sml_error *error_out);
/* The last rank is a process: in the midst of large operations the signal reaches it, and all others must name it.
 * w: initialized, with one rank less than join; there must be no threads yet. Ends with the world stopped. */
void lose_a_child(struct world *w, int signal_number);
