/* SPDX-License-Identifier: Apache-2.0
 * mpi_short BLOCKS CALLS CALL...: times a call of MPI, which a preloaded library may take, and PMPI's, which is MPI's
 * own, in turns, block by block: both see the same machine. A block is so many calls one after another, as a solver
 * makes them. CALL: `8` is MPI_Allreduce's sum of so many doubles; `max:8` their maximum; `barrier`; `allgather:2` so
 * many doubles of each rank; `reduce_scatter:2` the maxima of so many for each rank; `bcast:8` and `reduce:8`, whose
 * root is the next rank each time. Rank 0 prints a line a call: the medians of the slowest rank's time of a call, in
 * microseconds, and the 10th percentiles. A wrong result ends it with status 1. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_COUNT 128
#define MAX_RANKS 64

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double in[MAX_COUNT * MAX_RANKS], out[MAX_COUNT * MAX_RANKS];
static int rank, size, num_wrong;

#define PICK(name, ...) (is_own ? PMPI_##name(__VA_ARGS__) : MPI_##name(__VA_ARGS__))

/* The element that out[0] must be, or that of the root is. */
static double call(const char *what, int count, int root, int is_own) {
  const MPI_Comm all = MPI_COMM_WORLD;
  switch (what[0] == 'r' && strchr(what, '_') ? 's' : what[0]) {
    case 'm': PICK(Allreduce, in, out, count, MPI_DOUBLE, MPI_MAX, all); return size;
    case 'b':
      if (what[1] == 'a') PICK(Barrier, all);
      else PICK(Bcast, rank == root ? in : out, count, MPI_DOUBLE, root, all);
      return what[1] == 'a' || rank == root ? out[0] : root + 1;
    case 'a': PICK(Allgather, in, count, MPI_DOUBLE, out, count, MPI_DOUBLE, all); return 1;
    case 's': PICK(Reduce_scatter_block, in, out, count, MPI_DOUBLE, MPI_MAX, all); return size * (rank * count + 1);
    case 'r': PICK(Reduce, in, out, count, MPI_DOUBLE, MPI_MAX, root, all); return rank == root ? size : out[0];
    default: PICK(Allreduce, in, out, count, MPI_DOUBLE, MPI_SUM, all); return size * (size + 1) / 2;
  }
}

static double time_block(const char *what, int count, int num_calls, int is_own) {
  double slowest_s;
  PMPI_Barrier(MPI_COMM_WORLD);
  const double start_s = MPI_Wtime();
  for (int k = 0; k < num_calls; k++) num_wrong += call(what, count, k % size, is_own) != out[0];
  const double time_s = MPI_Wtime() - start_s;
  PMPI_Allreduce(&time_s, &slowest_s, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest_s / num_calls * 1e6;
}

int main(int argc, char **argv) {
  FILE *autogroup = fopen("/proc/self/autogroup", "w"); /* mpirun's daemon may have left our session */
  if (autogroup) {
    fputs("-20", autogroup);
    fclose(autogroup);
  }
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc < 4) return 2;
  const int num_blocks = atoi(argv[1]), num_calls = atoi(argv[2]);
  double *times[2] = {calloc((size_t)num_blocks, sizeof(double)), calloc((size_t)num_blocks, sizeof(double))};
  if (times[0] == NULL || times[1] == NULL) return 2;
  for (int a = 3; a < argc; a++) {
    const char *colon = strchr(argv[a], ':');
    const int count = strcmp(argv[a], "barrier") == 0 ? 1 : atoi(colon != NULL ? colon + 1 : argv[a]);
    if (count < 1 || count > MAX_COUNT || size > MAX_RANKS) return 2;
    for (int i = 0; i < count * size; i++) in[i] = (rank + 1) * (double)(i + 1);
    for (int b = -1; b < num_blocks; b++) {
      const double taken = time_block(argv[a], count, num_calls, 0);
      const double own = time_block(argv[a], count, num_calls, 1);
      if (b >= 0) times[0][b] = taken, times[1][b] = own;
    }
    for (int w = 0; w < 2; w++) qsort(times[w], (size_t)num_blocks, sizeof(double), compare);
    const int middle = num_blocks / 2, tenth = num_blocks / 10;
    if (rank == 0)
      printf("call %s: taken %.1f own %.1f tenth %.1f %.1f\n", argv[a], times[0][middle], times[1][middle],
             times[0][tenth], times[1][tenth]);
    fflush(stdout);
  }
  int all_wrong;
  PMPI_Allreduce(&num_wrong, &all_wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  return all_wrong != 0;
}
