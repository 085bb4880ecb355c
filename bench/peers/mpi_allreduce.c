/* SPDX-License-Identifier: Apache-2.0
 * mpi_allreduce TYPE BYTES:ITERS,...: times MPI_Allreduce as `switchml bench` times ours: a barrier, then one
 * all-reduce, the slowest rank's time; one more ahead of those of each size that is not timed. Rank 0 prints one
 * JSON object a size. A wrong element ends it with status 1. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static double cpu_seconds(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* Small whole numbers, so that sums are exact in both types. */
static int32_t value_of(long i, int factor) {
  return (int32_t)(i % 1000) * factor;
}

static void fill(void *memory, long count, int is_float, int factor) {
  for (long i = 0; i < count; i++)
    if (is_float) ((float *)memory)[i] = (float)value_of(i, factor);
    else ((int32_t *)memory)[i] = value_of(i, factor);
}

static long count_wrong(const void *memory, long count, int is_float, int factor) {
  long wrong = 0;
  for (long i = 0; i < count; i++)
    if (is_float) wrong += ((const float *)memory)[i] != (float)value_of(i, factor);
    else wrong += ((const int32_t *)memory)[i] != value_of(i, factor);
  return wrong;
}

static void print_times(long bytes, const double *times_s, int iters, double cpu_s, int rank) {
  if (rank != 0) return;
  printf("{\"bytes\": %ld, \"cpu_s\": %.9f, \"times_us\": [", bytes, cpu_s / iters);
  for (int k = 0; k < iters; k++) printf("%s%.2f", k ? ", " : "", times_s[k] * 1e6);
  printf("]}\n");
  fflush(stdout);
}

static long run(long bytes, int iters, int is_float, int rank, int size) {
  const long count = bytes / 4;
  const MPI_Datatype type = is_float ? MPI_FLOAT : MPI_INT32_T;
  void *in = malloc((size_t)bytes), *out = malloc((size_t)bytes);
  double *times_s = calloc((size_t)iters, sizeof *times_s), *slowest_s = calloc((size_t)iters, sizeof *slowest_s);
  double cpu_s = 0, all_cpu_s = 0;
  if (!in || !out || !times_s || !slowest_s) abort();
  memset(out, 0, (size_t)bytes);
  fill(in, count, is_float, rank + 1);
  for (int k = -1; k < iters; k++) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start_cpu_s = cpu_seconds(), start_s = MPI_Wtime();
    MPI_Allreduce(in, out, (int)count, type, MPI_SUM, MPI_COMM_WORLD);
    double time_s = MPI_Wtime() - start_s;
    if (k < 0) continue;
    times_s[k] = time_s;
    cpu_s += cpu_seconds() - start_cpu_s;
  }
  long wrong = count_wrong(out, count, is_float, size * (size + 1) / 2);
  MPI_Reduce(times_s, slowest_s, iters, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  MPI_Reduce(&cpu_s, &all_cpu_s, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  print_times(bytes, slowest_s, iters, all_cpu_s, rank);
  free(in);
  free(out);
  free(times_s);
  free(slowest_s);
  return wrong;
}

int main(int argc, char **argv) {
  FILE *autogroup = fopen("/proc/self/autogroup", "w"); /* mpirun's daemon may have left our session */
  if (autogroup) {
    fputs("-20", autogroup);
    fclose(autogroup);
  }
  MPI_Init(&argc, &argv);
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc != 3) return 2;
  long wrong = 0, all_wrong = 0;
  for (char *item = strtok(argv[2], ","); item; item = strtok(NULL, ",")) {
    long bytes = 0;
    int iters = 0;
    if (sscanf(item, "%ld:%d", &bytes, &iters) != 2 || bytes < 4 || iters < 1) return 2;
    wrong += run(bytes, iters, strcmp(argv[1], "float32") == 0, rank, size);
  }
  MPI_Allreduce(&wrong, &all_wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  if (all_wrong != 0 && rank == 0) fprintf(stderr, "%ld elements are wrong\n", all_wrong);
  return all_wrong != 0;
}
