/* SPDX-License-Identifier: Apache-2.0
 * BMv2's simple_switch with the program p4/v1model.p4, filled by its Thrift runtime. docs/p4.md: tables and set-up. */
#ifndef SML_DATAPLANE_BMV2_H
#define SML_DATAPLANE_BMV2_H

#include "aggd/dataplane.h"

struct sml_bmv2_options {
  struct sml_addr runtime; /* of the switch's Thrift server */
  uint32_t packet_lanes;   /* of the program */
  uint32_t pool_slots;     /* at most those of the program */
  uint16_t cpu_port;       /* of the switch: where this daemon is */
};
struct sml_bmv2;
/* NULL: out of memory. Nothing is asked of the switch yet. */
struct sml_bmv2 *sml_bmv2_create(const struct sml_bmv2_options *options);
void sml_bmv2_destroy(struct sml_bmv2 *b);
struct sml_dataplane *sml_bmv2_dataplane(struct sml_bmv2 *b); /* lives as long */

#endif
