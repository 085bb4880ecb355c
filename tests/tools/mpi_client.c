/* SPDX-License-Identifier: Apache-2.0
 * An MPI program that knows nothing of SwitchML: sums of many kinds, each checked, some while others are outstanding,
 * some while a message is. Prints "done" on rank 0. Argument: what else it does. */
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, size;

static void check(int is_right, const char *what, long detail) {
  if (is_right) return;
  fprintf(stderr, "rank %d: wrong: %s %ld\n", rank, what, detail);
  MPI_Abort(MPI_COMM_WORLD, 9);
}

static float float_of(int r, int i) {
  return (float)((i * 7 + r * 13) % 2001 - 1000);
}

static void sum_floats(MPI_Comm comm, int count, int in_place) {
  int me, n;
  MPI_Comm_rank(comm, &me);
  MPI_Comm_size(comm, &n);
  float *in = malloc(sizeof(float) * (size_t)(count + 1)), *out = malloc(sizeof(float) * (size_t)(count + 1));
  for (int i = 0; i < count; i++) (in_place ? out : in)[i] = float_of(me, i);
  out[count] = 77;
  MPI_Allreduce(in_place ? MPI_IN_PLACE : in, out, count, MPI_FLOAT, MPI_SUM, comm);
  for (int i = 0; i < count; i++) {
    float expected = 0;
    for (int r = 0; r < n; r++) expected += float_of(r, i);
    check(out[i] >= expected && out[i] <= expected, "float sum", i);
  }
  check(out[count] >= 77 && out[count] <= 77, "overrun", count);
  free(in);
  free(out);
}

static void sum_ints(int count) {
  unsigned *x = malloc(sizeof *x * (size_t)count);
  for (int i = 0; i < count; i++) x[i] = 0x90000000u + (unsigned)(i * (rank + 1));
  MPI_Allreduce(MPI_IN_PLACE, x, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  for (int i = 0; i < count; i++) {
    unsigned expected = 0x90000000u * (unsigned)size + (unsigned)i * (unsigned)(size * (size + 1) / 2);
    check(x[i] == expected, "int sum", i);
  }
  free(x);
}

/* What is not taken: other types, other operations, types of our own. But a long maximum is. */
static void other_calls(void) {
  double d[6000], most = rank;
  for (int i = 0; i < 6000; i++) d[i] = i + rank;
  MPI_Allreduce(MPI_IN_PLACE, d, 6000, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  check(d[5999] >= 5999.0 * size + size * (size - 1) / 2 && d[0] >= size * (size - 1) / 2, "double sum", 0);
  MPI_Allreduce(MPI_IN_PLACE, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  check(most >= size - 1, "maximum", (long)most);
  float f[5000];
  for (int i = 0; i < 5000; i++) f[i] = (float)rank;
  MPI_Allreduce(MPI_IN_PLACE, f, 5000, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
  check(f[4999] >= (float)(size - 1), "float maximum", 0);
  MPI_Allreduce(MPI_IN_PLACE, f, 0, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* ---- every type, with MPI's own sum beside it: MPI_Reduce is nobody else's ---- */

enum { NUM_OF_TYPE = 5003 };

static uint64_t random_bits(int r, int i) {
  uint64_t x = (uint64_t)(r + 1) << 32 | (uint64_t)i;
  for (int round = 0; round < 3; round++) x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
  return x ^ x >> 32;
}

/* out: what MPI_Allreduce makes of in; own: what MPI does. All ranks have rank 0's bits of out. */
static void sum_both_ways(void *in, void *out, void *own, MPI_Datatype type) {
  static char of_rank_0[16 * NUM_OF_TYPE];
  int bytes;
  MPI_Type_size(type, &bytes);
  MPI_Reduce(in, own, NUM_OF_TYPE, type, MPI_SUM, 0, MPI_COMM_WORLD);
  MPI_Bcast(own, NUM_OF_TYPE, type, 0, MPI_COMM_WORLD);
  MPI_Allreduce(in, out, NUM_OF_TYPE, type, MPI_SUM, MPI_COMM_WORLD);
  memcpy(of_rank_0, out, (size_t)bytes * NUM_OF_TYPE);
  MPI_Bcast(of_rank_0, bytes * NUM_OF_TYPE, MPI_BYTE, 0, MPI_COMM_WORLD);
  check(memcmp(of_rank_0, out, (size_t)bytes * NUM_OF_TYPE) == 0, "sum of another rank, bytes", bytes);
}

/* Exact, and wrapping; but sums of short are saturated by some versions of Open MPI. */
static void sum_whole_numbers(MPI_Datatype type, int bytes) {
  static uint64_t in[NUM_OF_TYPE], out[NUM_OF_TYPE], own[NUM_OF_TYPE];
  for (int i = 0; i < NUM_OF_TYPE; i++) in[i] = random_bits(rank, i) & (bytes == 2 ? 0x0fff0fff0fff0fff : UINT64_MAX);
  sum_both_ways(in, out, own, type);
  check(memcmp(out, own, (size_t)bytes * NUM_OF_TYPE) == 0, "sum of whole numbers, bytes", bytes);
}

/* From 2^-3 to 2^3, and one large: small ones keep their digits beside it, up to n N^3 M 2^-86. Each of MPI's own
 * sums is off by half a unit in the last place. */
static void sum_doubles(MPI_Datatype type) {
  static double in[NUM_OF_TYPE], out[NUM_OF_TYPE], own[NUM_OF_TYPE];
  double largest = 1 << 20, bound = size * largest / 0x1p86;
  for (int n = 1; n < size; n *= 2) bound *= 8;
  for (int i = 0; i < NUM_OF_TYPE; i++) {
    const uint64_t random = random_bits(rank, i);
    in[i] = (double)(int64_t)(random | 1) / 0x1p63 * (double)(1 << random % 4);
  }
  in[17] = largest;
  sum_both_ways(in, out, own, type);
  for (int i = 0; i < NUM_OF_TYPE; i++) {
    const double error = out[i] > own[i] ? out[i] - own[i] : own[i] - out[i], most = i == 17 ? largest : 8;
    check(error <= bound + size * size * most * 0x1p-53, "sum of doubles", i);
  }
}

#ifdef MPIX_C_FLOAT16
/* 16 bits lose nothing of whole numbers up to 32. MPICH 4.0 knows the type but ends in an assertion of its own when it
 * shall sum it. */
static void sum_halves(void) {
  static _Float16 in[NUM_OF_TYPE], out[NUM_OF_TYPE];
  for (int i = 0; i < NUM_OF_TYPE; i++) in[i] = (_Float16)((int)(random_bits(rank, i) % 65) - 32);
  MPI_Allreduce(in, out, NUM_OF_TYPE, MPIX_C_FLOAT16, MPI_SUM, MPI_COMM_WORLD);
  for (int i = 0; i < NUM_OF_TYPE; i++) {
    int expected = 0;
    for (int r = 0; r < size; r++) expected += (int)(random_bits(r, i) % 65) - 32;
    check((int)out[i] == expected, "sum of halves", i);
  }
}
#endif

static void all_types(void) {
  static long double in[NUM_OF_TYPE], out[NUM_OF_TYPE], own[NUM_OF_TYPE];
  const MPI_Datatype whole[] = {MPI_INT64_T, MPI_LONG, MPI_LONG_LONG, MPI_UINT64_T, MPI_UNSIGNED_LONG_LONG};
  for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++) sum_whole_numbers(whole[i], 8);
  sum_whole_numbers(MPI_UNSIGNED, 4);
  sum_whole_numbers(MPI_SHORT, 2); /* MPI's */
  sum_doubles(MPI_DOUBLE);
  for (int i = 0; i < NUM_OF_TYPE; i++) in[i] = i + rank;
  sum_both_ways(in, out, own, MPI_LONG_DOUBLE); /* likewise */
  check(out[9] >= own[9] && out[9] <= own[9], "sum of long doubles", 9);
#ifdef MPIX_C_FLOAT16
  sum_halves();
  if (rank == 0) printf("halves\n");
#endif
}

/* Temperatures, and a fill value in every 500th place: how many sums are those of MPI. */
static void fill_values(void) {
  enum { NUM = 20000 };
  static float in[NUM], out[NUM], own[NUM];
  int num_equal = 0;
  for (int i = 0; i < NUM; i++) in[i] = i % 500 == 0 ? 1e20f : (float)(280 + i % 30);
  MPI_Reduce(in, own, NUM, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
  MPI_Allreduce(in, out, NUM, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  for (int i = 0; i < NUM; i++) num_equal += out[i] >= own[i] && out[i] <= own[i];
  if (rank == 0) printf("%d of %d floats are MPI's\n", num_equal, NUM);
  sum_ints(NUM);
}

/* 40 at once, of both ways, ended in any order. */
static void many_at_once(void) {
  enum { NUM = 40, COUNT = 5000 };
  static float x[NUM][COUNT];
  MPI_Request requests[NUM];
  int index;
  for (int k = 0; k < NUM; k++) {
    for (int i = 0; i < COUNT; i++) x[k][i] = (float)(k + rank);
    MPI_Iallreduce(MPI_IN_PLACE, x[k], k % 4 == 3 ? 10 : COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &requests[k]);
  }
  int is_done;
  MPI_Test(&requests[7], &is_done, MPI_STATUS_IGNORE);
  for (int k = 0; k < NUM / 2; k++) MPI_Waitany(NUM, requests, &index, MPI_STATUS_IGNORE);
  MPI_Waitall(NUM, requests, MPI_STATUSES_IGNORE);
  for (int k = 0; k < NUM; k++) check(x[k][9] >= (float)(k * size + size * (size - 1) / 2), "one of many", k);
}

/* A rank's late call waits for a large message of one that is in its call already: MPI must go on meanwhile, also if
 * there is another message, which nobody takes yet. */
static void message_beside(void) {
  const int count = 1 << 20;
  int small = rank;
  if (rank == size - 1 && size > 2) MPI_Send(&small, 1, MPI_INT, 0, 6, MPI_COMM_WORLD);
  float *x = calloc((size_t)count, sizeof *x);
  MPI_Request request = MPI_REQUEST_NULL;
  if (rank == 0) MPI_Isend(x, count, MPI_FLOAT, 1, 5, MPI_COMM_WORLD, &request);
  if (rank == 1) {
    usleep(30 * 1000);
    MPI_Recv(x, count, MPI_FLOAT, 0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  sum_floats(MPI_COMM_WORLD, 5000, 0);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  if (rank == 0 && size > 2) MPI_Recv(&small, 1, MPI_INT, size - 1, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  free(x);
}

static void other_communicators(void) {
  MPI_Comm half, copy;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  MPI_Comm_dup(MPI_COMM_WORLD, &copy);
  for (int i = 0; i < 3; i++) {
    sum_floats(half, 9000, 1);
    sum_floats(copy, 9000, 0);
  }
  sum_floats(MPI_COMM_SELF, 9000, 0);
  MPI_Comm_free(&half);
  MPI_Comm_free(&copy);
}

static void add_pairs(void *in, void *inout, int *count, MPI_Datatype *type) {
  (void)type;
  for (int i = 0; i < 2 * *count; i++) ((float *)inout)[i] += ((float *)in)[i];
}

/* Operations and types of the program's own, and sums of others' ranks: MPI's, however long. */
static void own_operations(void) {
  enum { COUNT = 10000 };
  static float in[COUNT], out[COUNT];
  MPI_Op add;
  MPI_Datatype pair;
  MPI_Comm half, inter;
  for (int i = 0; i < COUNT; i++) in[i] = (float)(i % 100 + rank);
  MPI_Op_create(add_pairs, 1, &add);
  MPI_Type_contiguous(2, MPI_FLOAT, &pair);
  MPI_Type_commit(&pair);
  MPI_Allreduce(in, out, COUNT / 2, pair, add, MPI_COMM_WORLD);
  check(out[COUNT - 1] >= (float)(99 * size + size * (size - 1) / 2), "sum of pairs", 0);
  MPI_Type_free(&pair);
  MPI_Op_free(&add);
  if (size < 2) return;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 3, &inter);
  MPI_Allreduce(in, out, COUNT, MPI_FLOAT, MPI_SUM, inter);
  float expected = 0;
  for (int r = 1 - rank % 2; r < size; r += 2) expected += (float)r;
  check(out[100] >= expected && out[100] <= expected, "sum of the others", 0);
  MPI_Comm_free(&inter);
  MPI_Comm_free(&half);
}

/* A communicator that is freed while its sums are under way. Open MPI's own component (libnbc) crashes here. */
static void freed_early(void) {
  static float x[50000], y[50000];
  MPI_Comm copy;
  MPI_Request requests[2];
  MPI_Comm_dup(MPI_COMM_WORLD, &copy);
  sum_floats(copy, 5000, 0); /* the ranks meet */
  for (int i = 0; i < 50000; i++) x[i] = y[i] = (float)rank;
  if (rank == 1) usleep(20 * 1000);
  MPI_Iallreduce(MPI_IN_PLACE, x, 50000, MPI_FLOAT, MPI_SUM, copy, &requests[0]);
  MPI_Iallreduce(MPI_IN_PLACE, y, 50000, MPI_FLOAT, MPI_SUM, copy, &requests[1]);
  MPI_Comm_free(&copy);
  MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
  check(y[49999] >= (float)(size * (size - 1) / 2), "sum of a freed communicator", 1);
  MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
  check(x[0] >= (float)(size * (size - 1) / 2), "sum of a freed communicator", 0);
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (strcmp(what, "kill") == 0) { /* rank 1 is gone; the others get an error, and may go on without this sum */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    sum_floats(MPI_COMM_WORLD, 5000, 0);
    static float x[8000];
    if (rank == 1) raise(SIGSTOP);
    const int code = MPI_Allreduce(MPI_IN_PLACE, x, 8000, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    fprintf(stderr, "rank %d: %s\n", rank, code == MPI_SUCCESS ? "no error" : "told");
    fflush(stderr);
    sleep(2); /* the others are about to say so, too: an abort would end them before */
    MPI_Abort(MPI_COMM_WORLD, 5);
  }
  if (strcmp(what, "types") == 0 || strcmp(what, "fill") == 0) {
    if (what[0] == 't') all_types();
    else fill_values();
    if (rank == 0) printf("done\n");
    MPI_Finalize();
    return 0;
  }
  for (int count = 1; count < 300000; count = count * 5 + 1) {
    sum_floats(MPI_COMM_WORLD, count, 0);
    sum_floats(MPI_COMM_WORLD, count, 1);
    sum_ints(count);
  }
  other_calls();
  many_at_once();
  if (size > 1) message_beside();
  other_communicators();
  own_operations();
  if (strcmp(what, "freed") == 0) freed_early();
  if (rank == 0) printf("done\n");
  MPI_Finalize();
  return 0;
}
