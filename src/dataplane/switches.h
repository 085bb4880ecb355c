/* SPDX-License-Identifier: Apache-2.0
 * The switches that can sum instead of this daemon's lanes (docs/p4.md: tables and set-up).
 *   bmv2    a simple_switch with p4/v1model.p4, filled by its Thrift runtime
 *   dpdk    a switchml-pipeline on this machine with p4/pna.p4, filled by its socket (src/pipeline/control.h)
 *   tofino  a Tofino with p4/tna.p4, filled by BFRuntime over gRPC. Never run on a switch: what is tested is which
 *           calls are made, against a stand-in for the server */
#pragma once

#include "aggd/dataplane.h"

#define SML_BMV2_PORT 9090u
#define SML_TOFINO_PORT 50052u /* of the SDE's gRPC server */

struct sml_switch_options {
  struct sml_addr runtime; /* of the switch's server: bmv2, tofino */
  const char *control;     /* path of the socket: dpdk. Kept by reference */
  const char *program;     /* under which name it was loaded: tofino. Likewise */
  uint32_t packet_lanes;   /* of the program */
  uint32_t pool_slots;     /* at most those of the program */
  uint16_t cpu_port;       /* of the switch: where this daemon is */
};

/* NULL: out of memory. Nothing is asked of the switch yet. */
struct sml_dataplane *sml_bmv2_create(const struct sml_switch_options *options);
struct sml_dataplane *sml_dpdk_create(const struct sml_switch_options *options);
struct sml_dataplane *sml_tofino_create(const struct sml_switch_options *options);
void sml_switch_destroy(struct sml_dataplane *plane); /* NULL: nothing */

bool sml_tofino_is_built(void); /* else it cannot be created: there was no libnghttp2 */
