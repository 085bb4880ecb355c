/* SPDX-License-Identifier: Apache-2.0
 * DPDK's software pipeline with the program p4/pna.p4, in a switchml-pipeline on this machine, filled by its control
 * socket. docs/p4.md: tables and set-up; src/pipeline/control.h: what the socket takes. */
#ifndef SML_DATAPLANE_DPDK_H
#define SML_DATAPLANE_DPDK_H

#include "aggd/dataplane.h"

struct sml_dpdk_options {
  const char *control;   /* path of the socket; kept by reference */
  uint32_t packet_lanes; /* of the program */
  uint32_t pool_slots;   /* at most those of the program */
  uint16_t cpu_port;     /* of the pipeline: where this daemon is */
};
struct sml_dpdk;
/* NULL: out of memory. Nothing is asked of the pipeline yet. */
struct sml_dpdk *sml_dpdk_create(const struct sml_dpdk_options *options);
void sml_dpdk_destroy(struct sml_dpdk *d);
struct sml_dataplane *sml_dpdk_dataplane(struct sml_dpdk *d); /* lives as long */

#endif
