/* SPDX-License-Identifier: Apache-2.0
 * What an aggregator does with one datagram, made of the pure core and the scalar kernels alone: the vectors' verdicts
 * and packets out come from here. What comes before the core (docs/PROTOCOL.md rules R3 to R13: job, epoch, key, rank,
 * source) stands here a second time, in the order in which it is written there. */
#pragma once

#include "cli/conform/conform.h"

#define REFERENCE_CHUNK_BYTES 1024u /* larger than anything that repeats in a payload */

struct reference;
/* Jobs as the vector has them, all ranks registered. Keyed if it needs a key. */
struct reference *reference_create(const struct sml_conform_vector *vector);
void reference_destroy(struct reference *reference);
const struct sml_conform_binding *reference_binding(const struct reference *reference, uint32_t job);
/* Takes step->packet, as it came from its socket, and says what follows: verdict, reason, report, out. */
void reference_take(struct reference *reference, struct sml_conform_step *step);
void reference_leave(struct reference *reference, struct sml_conform_step *step);
