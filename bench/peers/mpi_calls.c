/* SPDX-License-Identifier: Apache-2.0
 * mpi_calls CALL TYPE BYTES:ITERS,...: times a call of MPI's as `switchml bench` times ours: a barrier, then one
 * call, the slowest rank's time; one more ahead of those of each size that is not timed. Rank 0 prints one
 * JSON object a size. A wrong element ends it with status 1. CALL: all_reduce, reduce_scatter, all_gather, broadcast,
 * barrier, or both: a reduce-scatter and an all-gather at once. */
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

static long count_wrong(const void *memory, long first, long count, int is_float, int factor) {
  long wrong = 0;
  for (long i = first; i < first + count; i++)
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

/* All memory is as long as a whole tensor: parts lie in their places. */
struct call {
  const char *what;
  char *in, *out, *gathered;
  long part; /* elements; of copies and sums that are cut evenly */
  int count, rank, size, is_float;
};

static void call(const struct call *c) {
  const MPI_Datatype type = c->is_float ? MPI_FLOAT : MPI_INT32_T;
  const MPI_Comm comm = MPI_COMM_WORLD;
  int counts[1024];
  MPI_Request requests[2];
  char *own = c->out + 4 * c->part * c->rank;
  for (int i = 0; i < c->size && i < 1024; i++) counts[i] = (int)c->part;
  if (strcmp(c->what, "all_reduce") == 0) MPI_Allreduce(c->in, c->out, c->count, type, MPI_SUM, comm);
  else if (strcmp(c->what, "reduce_scatter") == 0) MPI_Reduce_scatter(c->in, own, counts, type, MPI_SUM, comm);
  else if (strcmp(c->what, "all_gather") == 0)
    MPI_Allgather(c->in + 4 * c->part * c->rank, counts[0], type, c->gathered, counts[0], type, comm);
  else if (strcmp(c->what, "broadcast") == 0) MPI_Bcast(c->rank == 0 ? c->in : c->out, c->count, type, 0, comm);
  else if (strcmp(c->what, "barrier") == 0) MPI_Barrier(comm);
  else if (strcmp(c->what, "both") == 0) {
    MPI_Ireduce_scatter(c->in, own, counts, type, MPI_SUM, comm, &requests[0]);
    MPI_Iallgather(c->in + 4 * c->part * c->rank, counts[0], type, c->gathered, counts[0], type, comm, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  } else MPI_Abort(comm, 2);
}

static long check(const struct call *c) {
  const int is_both = strcmp(c->what, "both") == 0, factor = c->size * (c->size + 1) / 2;
  long wrong = 0;
  if (strcmp(c->what, "all_reduce") == 0) wrong += count_wrong(c->out, 0, c->count, c->is_float, factor);
  if (strcmp(c->what, "broadcast") == 0)
    wrong += count_wrong(c->rank == 0 ? c->in : c->out, 0, c->count, c->is_float, 1);
  if (is_both || strcmp(c->what, "reduce_scatter") == 0)
    wrong += count_wrong(c->out, c->part * c->rank, c->part, c->is_float, factor);
  for (int i = 0; (is_both || strcmp(c->what, "all_gather") == 0) && i < c->size; i++)
    wrong += count_wrong(c->gathered, c->part * i, c->part, c->is_float, i + 1);
  return wrong;
}

static long run(const char *what, long bytes, int iters, int is_float, int rank, int size) {
  const long count = bytes / 4;
  void *in = malloc((size_t)bytes), *out = malloc((size_t)bytes), *gathered = calloc((size_t)bytes, 1);
  const struct call c = {what, in, out, gathered, count / size, (int)count, rank, size, is_float};
  double *times_s = calloc((size_t)iters, sizeof *times_s), *slowest_s = calloc((size_t)iters, sizeof *slowest_s);
  double cpu_s = 0, all_cpu_s = 0;
  if (!in || !out || !gathered || !times_s || !slowest_s || size > 1024) abort();
  memset(out, 0, (size_t)bytes);
  fill(in, count, is_float, rank + 1);
  for (int k = -1; k < iters; k++) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start_cpu_s = cpu_seconds(), start_s = MPI_Wtime();
    call(&c);
    double time_s = MPI_Wtime() - start_s;
    if (k < 0) continue;
    times_s[k] = time_s;
    cpu_s += cpu_seconds() - start_cpu_s;
  }
  long wrong = check(&c);
  MPI_Reduce(times_s, slowest_s, iters, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  MPI_Reduce(&cpu_s, &all_cpu_s, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  print_times(bytes, slowest_s, iters, all_cpu_s, rank);
  free(in);
  free(out);
  free(gathered);
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
  if (argc != 4) return 2;
  long wrong = 0, all_wrong = 0;
  for (char *item = strtok(argv[3], ","); item; item = strtok(NULL, ",")) {
    long bytes = 0;
    int iters = 0;
    if (sscanf(item, "%ld:%d", &bytes, &iters) != 2 || bytes < 4 || iters < 1) return 2;
    wrong += run(argv[1], bytes, iters, strcmp(argv[2], "float32") == 0, rank, size);
  }
  MPI_Allreduce(&wrong, &all_wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  if (all_wrong != 0 && rank == 0) fprintf(stderr, "%ld elements are wrong\n", all_wrong);
  return all_wrong != 0;
}
