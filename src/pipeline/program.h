/* SPDX-License-Identifier: Apache-2.0
 * A program of p4c-dpdk in DPDK's pipeline: packets in by one ring a port, by which the program knows the port, out by
 * one ring a port. One thread does all. */
#pragma once

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
  uint32_t num_in;    /* ports that a packet may come by; a power of two, as a pipeline wants it */
  uint32_t num_ports; /* that it may leave by */
  struct rte_swx_pipeline *pipeline;
  struct rte_swx_ctl_pipeline *control;
  struct rte_ring *in[SML_PROGRAM_MAX_PORTS], *out[SML_PROGRAM_MAX_PORTS];
  uint32_t num_inside; /* packets that were put in and not run yet */
  uint64_t num_lost;   /* packets that the program never gave back */
  char error[SML_PROGRAM_ERROR_BYTES];
};

/* Makes C of a .spec, to be compiled to what sml_program_open() loads. False: a sentence on stderr. */
bool sml_program_make_code(const char *spec_path, const char *code_path);

/* After rte_eal_init(). library: made of sml_program_make_code()'s code; kept by reference. All functions: false, and
 * error says why. */
bool sml_program_open(struct sml_program *p, const char *library, uint32_t num_in, uint32_t num_out);
void sml_program_close(struct sml_program *p);
/* Empty tables, registers and counters at their beginnings. After false it cannot be used. */
bool sml_program_reset(struct sml_program *p);

/* Packets that came by a port, which are the program's then; at most SML_PROGRAM_BATCH until they are run. */
void sml_program_put(struct sml_program *p, uint32_t port, struct rte_mbuf **packets, uint32_t num_packets);
/* Runs it over what was put in; take() gets what comes out. */
void sml_program_run(struct sml_program *p, void (*take)(void *user, uint32_t port, struct rte_mbuf *packet),
                     void *user);

/* An entry in the words of DPDK's table files, without the table's name; it counts from the next commit on. One that
 * is there already is replaced; one that is not there may be removed. */
bool sml_program_add_entry(struct sml_program *p, const char *table, const char *words);
bool sml_program_remove_entry(struct sml_program *p, const char *table, const char *words);
bool sml_program_commit(struct sml_program *p);
void sml_program_abort(struct sml_program *p); /* forgets what is not committed */

/* Registers, and counters, which are registers too. */
bool sml_program_write(struct sml_program *p, const char *name, uint32_t index, uint64_t value);
bool sml_program_read(struct sml_program *p, const char *name, uint32_t index, uint64_t *value_out);
