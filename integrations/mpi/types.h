/* SPDX-License-Identifier: Apache-2.0
 * Which of MPI's types the library can sum, in C and in Fortran. Compiled against the MPI of whoever includes it. */
#pragma once

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#if defined(OPEN_MPI) && defined(__has_include)
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h> /* there: MPIX_C_FLOAT16, if Open MPI was built with it */
#endif
#endif

#include "switchml/switchml.h"

static inline bool sml_mpi_is_among(MPI_Datatype type, const MPI_Datatype *types, size_t num_types) {
  for (size_t i = 0; i < num_types; i++)
    if (type == types[i]) return true;
  return false;
}

/* The kind by name, the width as MPI has it: `long` is the system's, and a Fortran compiler may have been told that
 * REAL and INTEGER have 8 bytes. Long double is none of ours, whatever its width. */
static inline bool sml_mpi_type_of(MPI_Datatype type, sml_type *type_out) {
  const MPI_Datatype floats[] = {
      MPI_FLOAT,      MPI_REAL, MPI_REAL4, MPI_DOUBLE, MPI_DOUBLE_PRECISION, MPI_REAL8,
#ifdef MPIX_C_FLOAT16
      MPIX_C_FLOAT16,
#endif
  };
  /* Sums wrap, so signs do not matter. */
  const MPI_Datatype ints[] = {MPI_INT,      MPI_INT32_T,       MPI_UNSIGNED,          MPI_UINT32_T, MPI_INTEGER,
                               MPI_INTEGER4, MPI_LONG,          MPI_LONG_LONG,         MPI_INT64_T,  MPI_INTEGER8,
                               MPI_UINT64_T, MPI_UNSIGNED_LONG, MPI_UNSIGNED_LONG_LONG};
  const bool is_float = sml_mpi_is_among(type, floats, sizeof floats / sizeof floats[0]);
  int bytes = 0;
  if (!is_float && !sml_mpi_is_among(type, ints, sizeof ints / sizeof ints[0])) return false;
  if (PMPI_Type_size(type, &bytes) != MPI_SUCCESS) return false;
  switch (bytes) {
    case 2: *type_out = SML_FLOAT16; return is_float;
    case 4: *type_out = is_float ? SML_FLOAT32 : SML_INT32; return true;
    case 8: *type_out = is_float ? SML_FLOAT64 : SML_INT64; return true;
    default: return false;
  }
}
