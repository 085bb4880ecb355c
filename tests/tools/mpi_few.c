/* SPDX-License-Identifier: Apache-2.0
 * mpi_few: sums of 1 to 8 doubles, twice by MPI_Allreduce and once by MPI_Iallreduce, then of 9, 128 and 2000. In each
 * a large number and its negative hide the rest, and rank 0 says how many of the 24 short ones were exact. */
#include <mpi.h>
#include <stdio.h>

#define FEW 8
#define LONG 2000

static int rank, size;
static double in[LONG], out[LONG];

/* Rank 0 has 2^60 and the last one -2^60; each of the others a tenth, which is lost where a 2^60 comes first. */
static void fill(int count) {
  for (int i = 0; i < count; i++) in[i] = rank == 0 ? 0x1p60 : rank == size - 1 ? -0x1p60 + 256.0 * i : 0.1 * (i + 1);
}

/* What is left of the large numbers, and a tenth of each rank in the middle. */
static int is_exact(int count) {
  for (int i = 0; i < count; i++) {
    const long double tenth = (long double)(0.1 * (i + 1));
    long double sum = 256.0L * i;
    for (int r = 1; r < size - 1; r++) sum += tenth;
    if (out[i] != (double)sum) return 0;
  }
  return 1;
}

int main(int argc, char **argv) {
  int num_exact = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int count = 1; count <= FEW; count++) {
    MPI_Request request;
    for (int way = 0; way < 3; way++) {
      fill(count);
      if (way < 2) {
        MPI_Allreduce(in, out, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
      } else {
        MPI_Iallreduce(in, out, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
      }
      num_exact += is_exact(count);
    }
  }
  const int long_counts[] = {9, 128, LONG};
  for (int i = 0; i < 3; i++) {
    fill(long_counts[i]);
    MPI_Allreduce(in, out, long_counts[i], MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  }
  if (rank == 0) printf("%d of 24 are exact\ndone\n", num_exact);
  MPI_Finalize();
  return 0;
}
