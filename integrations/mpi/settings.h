/* SPDX-License-Identifier: Apache-2.0
 * Which calls of an MPI program SwitchML shall take, and how long they may take. README.md explains each setting. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "switchml/switchml.h"

enum sml_mpi_kind {
  SML_MPI_ALLREDUCE,
  SML_MPI_REDUCE,
  SML_MPI_REDUCE_SCATTER,
  SML_MPI_ALLGATHER,
  SML_MPI_BCAST,
  SML_MPI_BARRIER,
  SML_MPI_NUM_KINDS
};
extern const char *const sml_mpi_kind_names[SML_MPI_NUM_KINDS]; /* "reduce_scatter" ... */

struct sml_mpi_settings {
  uint64_t min_count;                     /* elements; shorter all-reduces stay with MPI, but for short ones */
  uint64_t short_hosts;                   /* short calls are taken if the ranks run on so many hosts; 0: none */
  uint64_t most_bytes[SML_MPI_NUM_KINDS]; /* that SwitchML sends for a short call; 0: none is short */
  uint64_t one_way_bytes;                 /* calls of so many bytes are taken where is_one_way */
  uint64_t timeout_s;                     /* of an operation: how long a rank may be late */
  uint64_t join_timeout_s;                /* of a join: how long an aggregator is waited for */
  uint64_t max_jobs;                      /* of this process: further communicators stay with MPI */
  double lease_s;                         /* a rank that is silent for so long is lost */
  uint32_t types;                         /* bit t: sums of sml_type t are taken; 0: nothing is */
  bool is_one_way;                        /* SWITCHML_ONE_WAY */
  bool is_exact;    /* sums of floats are; not with SWITCHML_EXACT=0, _FLOAT_BITS or _FLOAT64_BITS */
  bool is_required; /* a call that should be taken and cannot be is an error, not MPI's */
  bool is_disabled; /* and types is 0 */
  bool is_verbose;  /* tells how each communicator's job starts and ends */
};
/* From so many hosts on one exchange with an aggregator takes less time than MPI's over TCP (figures: README.md), as
 * long as SwitchML sends at most so many bytes: those of 8 doubles. By default 0 for broadcasts and reductions to a
 * root: MPI's go one way, so ranks run ahead of each other, where SwitchML's wait for the last one. And 0 for barriers,
 * of which MPI's was as fast. */
#define SML_MPI_SHORT_HOSTS 5u
#define SML_MPI_SHORT_BYTES 4096u
/* Defaults, overridden by SWITCHML_MPI_MIN_COUNT, _SHORT_HOSTS, _ALLREDUCE_BYTES and those of the other kinds,
 * _ONE_WAY_BYTES, _TIMEOUT, _JOIN_TIMEOUT, _MAX_JOBS, _TYPES ("float32,int64", "none"), _VERBOSE, SWITCHML_LEASE,
 * SWITCHML_REQUIRE and SWITCHML_DISABLE. Says on stderr what it could not read, and keeps the default. */
struct sml_mpi_settings sml_mpi_settings_of_environment(void);
/* So of a variable's or a parameter's text; NULL and "" are the default, too, which the last argument has before. */
void sml_mpi_read_number(const char *name, const char *text, uint64_t min, uint64_t max, uint64_t *value);
void sml_mpi_read_lease(const char *name, const char *text, double *seconds);
void sml_mpi_read_types(const char *name, const char *text, uint32_t *types);
#define SML_MPI_MOST_TIMEOUT_S 1000000000u
#define SML_MPI_TYPE_NAMES "float32, int32, int64, float16, float64, int8, or none alone"
#define SML_MPI_TYPES_BYTES 64u
/* The list of the types' bits, with commas, written into SML_MPI_TYPES_BYTES. */
void sml_mpi_types_list(uint32_t types, char *list_out);

/* A line on stderr, by one system call: those of several ranks don't mix. fprintf() writes 128 bytes at a time to a
 * stream without a buffer, since glibc 2.37. */
void sml_mpi_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
