/* SPDX-License-Identifier: Apache-2.0
 * MPI's collective calls as SwitchML has them: types and operations by their names in C and in Fortran, parts, data of
 * any layout. Compiled against the MPI of whoever links it. */
#pragma once

#include <mpi.h>

#include "group.h"

/* Numbers of each rank: int, or MPI_Count and MPI_Aint of the calls for large counts. */
struct sml_mpi_numbers {
  const void *at; /* NULL: there are none */
  bool is_large;
};

/* A call of MPI's, and what it takes to do it by SwitchML. */
struct sml_mpi_plan {
  struct sml_mpi_call call; /* its memory only once it is prepared */
  bool is_suspect;          /* MPI may object to the arguments: then it shall, with its own words */
  MPI_Comm comm;
  int rank, size;
  /* As MPI was told. */
  const void *in;
  void *out;
  long long in_count, each; /* of this rank's input for an all-gather; of all else */
  MPI_Datatype in_type, type;
  struct sml_mpi_numbers counts, places; /* of the parts; where they begin, in elements */
  /* Once it is prepared. */
  char *packed; /* NULL: bytes lie one behind the other, in the order of the type, those of the result apart */
  size_t *parts;
};

struct sml_mpi_plan sml_mpi_plan_barrier(MPI_Comm comm);
struct sml_mpi_plan sml_mpi_plan_bcast(void *data, long long count, MPI_Datatype type, int root, MPI_Comm comm);
/* root: NO_ROOT is an all-reduce. */
#define SML_MPI_NO_ROOT (-1)
struct sml_mpi_plan sml_mpi_plan_reduce(const void *in, void *out, long long count, MPI_Datatype type, MPI_Op op,
                                        int root, MPI_Comm comm);
/* each: of every rank, where there are no counts. So below. */
struct sml_mpi_plan sml_mpi_plan_reduce_scatter(const void *in, void *out, long long each,
                                                struct sml_mpi_numbers counts, MPI_Datatype type, MPI_Op op,
                                                MPI_Comm comm);
struct sml_mpi_plan sml_mpi_plan_allgather(const void *in, long long in_count, MPI_Datatype in_type, void *out,
                                           long long each, struct sml_mpi_numbers counts, struct sml_mpi_numbers places,
                                           MPI_Datatype type, MPI_Comm comm);

/* For a call that is TAKEN. False: no memory, or an error of MPI's, for which the group gives up; plan_end() is still
 * due. */
bool sml_mpi_plan_prepare(struct sml_mpi_plan *p, struct sml_mpi_group *g);
/* When the operation has ended: puts the result where MPI wants it, and frees. False: an error. */
bool sml_mpi_plan_end(struct sml_mpi_plan *p, bool is_good);
