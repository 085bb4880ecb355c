/* SPDX-License-Identifier: Apache-2.0
 * A Tofino with the program p4/tna.p4, filled by BFRuntime over gRPC (docs/p4.md: the calls). Never run on a switch:
 * what is tested is which calls are made, against a stand-in for the server. */
#ifndef SML_DATAPLANE_TOFINO_H
#define SML_DATAPLANE_TOFINO_H

#include "aggd/dataplane.h"

#define SML_TOFINO_PORT 50052u /* of the SDE's gRPC server */

struct sml_tofino_options {
  struct sml_addr runtime; /* of the switch's gRPC server */
  const char *program;     /* under which name it was loaded; must live as long */
  uint32_t packet_lanes;   /* of the program */
  uint32_t pool_slots;     /* at most those of the program */
  uint16_t cpu_port;       /* of the switch: where this daemon is */
};
struct sml_tofino;
/* NULL: out of memory, or built without libnghttp2 (sml_tofino_is_built). Nothing is asked of the switch yet. */
struct sml_tofino *sml_tofino_create(const struct sml_tofino_options *options);
void sml_tofino_destroy(struct sml_tofino *t);
struct sml_dataplane *sml_tofino_dataplane(struct sml_tofino *t); /* lives as long */
bool sml_tofino_is_built(void);

#endif
