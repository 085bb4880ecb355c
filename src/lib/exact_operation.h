/* SPDX-License-Identifier: Apache-2.0
 * An operation in exact mode (docs/PROTOCOL.md section 6, "Exact mode"). It is done by others, which are int32 SUM as
 * any: the tensor is cut into pieces, and each has two *stages*: the codes of its blocks, and then the lanes that the
 * codes' sums ask for (quant/exact.h). All of them have numbers in the job's order from the start, but how long the
 * lanes are is known only when the codes are back; so a stage is inserted when it is ready, in the order of numbers,
 * and what is called behind waits until all are inserted (struct sml_member_reservation). Inputs and outputs of stages
 * are the library's own: retry, batches, hosts that combine, shared memory and switches see nothing new.
 *
 *     C(0) C(1) L(0) C(2) L(1) ... C(last) L(last-1) L(last)
 *
 * Guarded by the job's lock, but for a piece whose stage is under way, or not begun: that is its thread's alone. */
#pragma once

#include "lib/operation.h"

/* Elements of a piece: whole blocks. Lanes of a few of them fill a long path, and codes come back meanwhile. */
#define SML_EXACT_PIECE_ELEMS (UINT64_C(64) << 10)

/* Submits an operation that was prepared; on failure it is as if it had not been called. */
sml_status sml_exact_operation_submit(struct sml_operation *operation);

/* The memory that a job keeps for its next one (sml_job_spare_exact); NULL is none. */
void sml_exact_operation_free(struct sml_exact_operation *spare);
