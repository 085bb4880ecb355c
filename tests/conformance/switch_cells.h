/* SPDX-License-Identifier: Apache-2.0
 * The cells of a job that a switch sums (docs/PROTOCOL.md, switch format): one register, one access. */
#ifndef SML_TESTS_CONFORMANCE_SWITCH_CELLS_H
#define SML_TESTS_CONFORMANCE_SWITCH_CELLS_H

#include "cli/conform.h"

struct switch_decision {
  const char *verdict, *reason;
  struct sml_header result;
  const uint8_t *values; /* of the result, as they are sent */
  uint64_t missing;
  uint32_t first_rank;
};

struct switch_cells;
struct switch_cells *switch_cells_create(const struct sml_conform_binding *binding);
void switch_cells_destroy(struct switch_cells *cells);
struct switch_decision switch_cells_decide(struct switch_cells *cells, const struct sml_header *h,
                                           const uint8_t *payload);
/* As sml_wire_open(), but for the checksum of what switches send, and with 32-bit codes in place of bytes. */
enum sml_wire_error switch_open(const uint8_t *frame, uint32_t num_bytes, struct sml_header *header_out);

#endif
