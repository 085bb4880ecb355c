/* SPDX-License-Identifier: Apache-2.0
 * Which of MPI's types the library can sum, in C and in Fortran. Compiled against the MPI of whoever includes it. */
#ifndef SML_MPI_TYPES_H
#define SML_MPI_TYPES_H

#include <mpi.h>
#include <stdbool.h>

#include "switchml/switchml.h"

static inline bool sml_mpi_type_of(MPI_Datatype type, sml_type *type_out) {
  const MPI_Datatype floats[] = {MPI_FLOAT, MPI_REAL, MPI_REAL4};
  /* Sums wrap modulo 2^32, so signs do not matter. */
  const MPI_Datatype ints[] = {MPI_INT, MPI_INT32_T, MPI_UNSIGNED, MPI_UINT32_T, MPI_INTEGER, MPI_INTEGER4};
  bool is_float = false, is_int = false;
  for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++) is_float |= type == floats[i];
  for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) is_int |= type == ints[i];
  *type_out = is_float ? SML_FLOAT32 : SML_INT32;
  int bytes = 0; /* a Fortran compiler may have been told that REAL and INTEGER are of 8 */
  return (is_float || is_int) && PMPI_Type_size(type, &bytes) == MPI_SUCCESS && bytes == 4;
}

#endif
