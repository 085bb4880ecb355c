/* SPDX-License-Identifier: Apache-2.0
 * mpi_short BLOCKS CALLS COUNT...: times MPI_Allreduce of so many doubles, which a preloaded library may take, and
 * PMPI_Allreduce, which is MPI's own, in turns, block by block: both see the same machine. A block is so many calls
 * one after another, as a solver makes them. Rank 0 prints a line a count: the medians of the slowest rank's time of a
 * call, in microseconds, and the 10th percentiles. A wrong sum ends it with status 1. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_COUNT 128

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double in[MAX_COUNT], out[MAX_COUNT];
static int size, num_wrong;

static double time_block(int (*reduce)(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm), int count,
                         int num_calls) {
  double slowest_s;
  PMPI_Barrier(MPI_COMM_WORLD);
  const double start_s = MPI_Wtime();
  for (int k = 0; k < num_calls; k++) reduce(in, out, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  const double time_s = MPI_Wtime() - start_s;
  for (int i = 0; i < count; i++) num_wrong += out[i] != (double)(size * (size + 1) / 2) * (i + 1);
  PMPI_Allreduce(&time_s, &slowest_s, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest_s / num_calls * 1e6;
}

int main(int argc, char **argv) {
  FILE *autogroup = fopen("/proc/self/autogroup", "w"); /* mpirun's daemon may have left our session */
  if (autogroup) {
    fputs("-20", autogroup);
    fclose(autogroup);
  }
  int rank;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc < 4) return 2;
  const int num_blocks = atoi(argv[1]), num_calls = atoi(argv[2]);
  double *times[2] = {calloc((size_t)num_blocks, sizeof(double)), calloc((size_t)num_blocks, sizeof(double))};
  if (times[0] == NULL || times[1] == NULL) return 2;
  for (int a = 3; a < argc; a++) {
    const int count = atoi(argv[a]);
    if (count < 1 || count > MAX_COUNT) return 2;
    for (int i = 0; i < count; i++) in[i] = (rank + 1) * (double)(i + 1);
    for (int b = -1; b < num_blocks; b++) {
      const double taken = time_block(MPI_Allreduce, count, num_calls);
      const double own = time_block(PMPI_Allreduce, count, num_calls);
      if (b >= 0) times[0][b] = taken, times[1][b] = own;
    }
    for (int w = 0; w < 2; w++) qsort(times[w], (size_t)num_blocks, sizeof(double), compare);
    const int middle = num_blocks / 2, tenth = num_blocks / 10;
    if (rank == 0)
      printf("count %d: taken %.1f own %.1f tenth %.1f %.1f\n", count, times[0][middle], times[1][middle],
             times[0][tenth], times[1][tenth]);
    fflush(stdout);
  }
  int all_wrong;
  PMPI_Allreduce(&num_wrong, &all_wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  return all_wrong != 0;
}
