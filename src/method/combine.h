/* SPDX-License-Identifier: Apache-2.0
 * The ranks of each host contribute as one (START has a table). The lead of each host submits the pieces that its ranks
 * bring together in shared memory (shm/shm_relay.h); only leads have lanes. A rank that is alone leads itself.
 *
 * Operations are cut into pieces, on all ranks equally, and each piece is an operation of its own for the engines
 * (PROTOCOL.md rules R123 to R125). */
#pragma once

#include "shm/shm_relay.h"
#include "method/driver.h"

/* As sml_driver_open(). */
struct sml_method *sml_combine_open(const struct sml_driver_options *options);

/* Elements of the operation's full pieces. */
uint64_t sml_combine_piece_elems(const struct sml_method *combine, const struct sml_operation_plan *plan);
