/* SPDX-License-Identifier: Apache-2.0
 * A program of p4c-dpdk in DPDK's pipeline: packets in by one ring, out by one ring a port. One thread does all. */
#ifndef SML_PIPELINE_PROGRAM_H
#define SML_PIPELINE_PROGRAM_H

#include <rte_mbuf.h>
#include <rte_ring.h>

#include "base/base.h"

#define SML_PROGRAM_BATCH 256u /* packets that may be inside */
#define SML_PROGRAM_MAX_PORTS 64u
#define SML_PROGRAM_ERROR_BYTES 200u

struct rte_swx_pipeline;
struct rte_swx_ctl_pipeline;

struct sml_program {
  const char *library;
  uint32_t num_ports; /* that a packet may leave by */
  struct rte_swx_pipeline *pipeline;
  struct rte_swx_ctl_pipeline *control;
  struct rte_ring *in, *out[SML_PROGRAM_MAX_PORTS];
  uint64_t num_lost; /* packets that the program never gave back */
  char error[SML_PROGRAM_ERROR_BYTES];
};

/* Makes C of a .spec, to be compiled to what sml_program_open() loads. False: a sentence on stderr. */
bool sml_program_make_code(const char *spec_path, const char *code_path);

/* After rte_eal_init(). library: made of sml_program_make_code()'s code; kept by reference. All functions: false, and
 * error says why. */
bool sml_program_open(struct sml_program *p, const char *library, uint32_t num_ports);
void sml_program_close(struct sml_program *p);
/* Empty tables, registers and counters at their beginnings. After false it cannot be used. */
bool sml_program_reset(struct sml_program *p);

/* Packets through the program, at most SML_PROGRAM_BATCH, which are its own then; take() gets what comes out. */
void sml_program_run(struct sml_program *p, struct rte_mbuf **packets, uint32_t num_packets,
                     void (*take)(void *user, uint32_t port, struct rte_mbuf *packet), void *user);

/* An entry in the words of DPDK's table files, without the table's name; it counts from the next commit on. One that
 * is there already is replaced; one that is not there may be removed. */
bool sml_program_add_entry(struct sml_program *p, const char *table, const char *words);
bool sml_program_remove_entry(struct sml_program *p, const char *table, const char *words);
bool sml_program_commit(struct sml_program *p);
void sml_program_abort(struct sml_program *p); /* forgets what is not committed */

/* Registers, and counters, which are registers too. */
bool sml_program_write(struct sml_program *p, const char *name, uint32_t index, uint64_t value);
bool sml_program_read(struct sml_program *p, const char *name, uint32_t index, uint64_t *value_out);

#endif
