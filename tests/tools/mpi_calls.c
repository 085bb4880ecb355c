/* SPDX-License-Identifier: Apache-2.0
 * mpi_calls PART...: collective calls of an MPI program that knows nothing of SwitchML. Each rank makes a digest of all
 * that it gets, bit by bit; rank 0 prints one line with them. With and without SwitchML they must be the same.
 * Then "done". A rank that waits for too long is ended by an alarm. */
#include <mpi.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RANKS = 16, MAX_BYTES = 1 << 21, GUARD = 64, PATIENCE_S = 90 };

static int rank, size; /* in the communicator that is tried */
static int own_rank;   /* in MPI_COMM_WORLD */
static uint64_t digest = 0xcbf29ce484222325, random_state;
static uint8_t in[MAX_BYTES + GUARD], out[MAX_BYTES + GUARD];

static void check(int is_right, const char *what, long detail) {
  if (is_right) return;
  fprintf(stderr, "rank %d: wrong: %s %ld\n", own_rank, what, detail);
  MPI_Abort(MPI_COMM_WORLD, 9);
}

static uint64_t mix(uint64_t x) {
  for (int round = 0; round < 3; round++) x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
  return x ^ x >> 32;
}

/* The same on all ranks of a communicator, if they ask equally often. */
static unsigned next_random(unsigned below) {
  return (unsigned)(mix(++random_state) % below);
}

/* Eight bytes at a time, as there are many. Each step has an inverse: no word that differs is lost. */
static void note(const void *data, size_t num_bytes) {
  for (size_t i = 0; i < num_bytes; i += 8) {
    uint64_t word = 0;
    if (num_bytes - i >= 8) memcpy(&word, (const uint8_t *)data + i, 8);
    else memcpy(&word, (const uint8_t *)data + i, num_bytes - i);
    digest = (digest ^ word) * 0x100000001b3;
    digest ^= digest >> 32;
  }
}

static void fill(void *data, size_t num_bytes, uint64_t seed) {
  uint8_t *at = data;
  for (size_t i = 0; i < num_bytes; i += 8) {
    const uint64_t random = mix(seed + i);
    memcpy(at + i, &random, num_bytes - i < 8 ? num_bytes - i : 8);
  }
}

static uint64_t seed_of(int number) {
  return ((uint64_t)number << 40) + ((uint64_t)(own_rank + 1) << 32);
}

/* ---- every type and operation ---- */

struct kind {
  MPI_Datatype type;
  int bytes;
  char class; /* 'i'nteger, 'u'nsigned, 'f'loat, 'b'its, 't'ruth */
};

/* Integers have all bits, and some are 0; but sums of bytes are saturated by some versions of Open MPI. Floats are
 * whole: their sums are exact in any order. */
static void fill_elements(void *data, int count, const struct kind *k, MPI_Op op, int number) {
  uint64_t state = mix(seed_of(number));
  fill(data, (size_t)count * (size_t)k->bytes, seed_of(number));
  for (int i = 0; i < count; i++) {
    uint8_t *at = (uint8_t *)data + (size_t)i * (size_t)k->bytes;
    state = state * 6364136223846793005 + 1442695040888963407;
    const uint32_t random = (uint32_t)(state >> 32);
    const int whole = (int)(random % 4001) - 2000;
    if (k->class == 't') *at = random % 3 != 0;
    else if (k->class == 'f' && k->bytes == 4) memcpy(at, &(float){(float)whole}, 4);
    else if (k->class == 'f') memcpy(at, &(double){whole}, 8);
    else if (k->bytes == 1 && op == MPI_SUM) *at = random % 16;
    else if (random % 5 == 0) memset(at, 0, (size_t)k->bytes);
    else if (random % 5 == 1) memset(at, 0, 1); /* not 0, but for its lowest or highest byte */
  }
}

static MPI_Op op_of(const struct kind *k, unsigned number) {
  const MPI_Op all[] = {MPI_SUM, MPI_MIN, MPI_MAX, MPI_PROD, MPI_BAND, MPI_BOR, MPI_LAND, MPI_LOR};
#ifndef OPEN_MPI /* MPICH 4.0 compares these as numbers with signs */
  if (k->class == 'u' && (number % 8 == 1 || number % 8 == 2)) return MPI_BOR;
#endif
  if (k->class == 'f') return all[number % 3];
  if (k->class == 'b') return all[4 + number % 2];
  return k->class == 't' ? all[6 + number % 2] : all[number % 8];
}

static const struct kind *kind_of(unsigned number) {
  static struct kind kinds[16];
  const struct kind all[] = {{MPI_INT, 4, 'i'},         {MPI_UNSIGNED, 4, 'u'},      {MPI_LONG, sizeof(long), 'i'},
                             {MPI_UINT64_T, 8, 'u'},    {MPI_INT8_T, 1, 'i'},        {MPI_UINT8_T, 1, 'u'},
                             {MPI_SIGNED_CHAR, 1, 'i'}, {MPI_UNSIGNED_CHAR, 1, 'u'}, {MPI_FLOAT, 4, 'f'},
                             {MPI_DOUBLE, 8, 'f'},      {MPI_BYTE, 1, 'b'},          {MPI_C_BOOL, 1, 't'}};
  memcpy(kinds, all, sizeof all);
  return &kinds[number % (sizeof all / sizeof all[0])];
}

static void finish(MPI_Request *request, bool is_begun) {
  if (is_begun) MPI_Wait(request, MPI_STATUS_IGNORE);
}

static void reduce_all(MPI_Comm comm, int count, const struct kind *k, MPI_Op op, int number) {
  MPI_Request request;
  const size_t bytes = (size_t)count * (size_t)k->bytes;
  const int way = number % 4; /* blocking or not, in place or not */
  memset(out, 0xa5, bytes + GUARD);
  fill_elements(way < 2 ? in : out, count, k, op, number);
  const void *from = way < 2 ? in : MPI_IN_PLACE;
  if (way % 2 == 0) MPI_Allreduce(from, out, count, k->type, op, comm);
  else MPI_Iallreduce(from, out, count, k->type, op, comm, &request);
  finish(&request, way % 2 == 1);
  note(out, bytes + GUARD);
}

static void reduce_to_root(MPI_Comm comm, int count, const struct kind *k, MPI_Op op, int number) {
  MPI_Request request;
  const size_t bytes = (size_t)count * (size_t)k->bytes;
  const int root = number % size, way = number / 3 % 4;
  memset(out, 0xa5, bytes + GUARD);
  fill_elements(in, count, k, op, number);
#ifdef OPEN_MPI
  const bool is_in_place = way >= 2 && rank == root;
#else
  const bool is_in_place = way >= 2 && rank == root && bytes <= 2048; /* with more MPICH 4.0 reads at MPI_IN_PLACE */
#endif
  if (is_in_place) memcpy(out, in, bytes);
  const void *from = is_in_place ? MPI_IN_PLACE : in;
  void *to = rank == root ? out : NULL;
  if (way % 2 == 0) MPI_Reduce(from, to, count, k->type, op, root, comm);
  else MPI_Ireduce(from, to, count, k->type, op, root, comm, &request);
  finish(&request, way % 2 == 1);
  note(out, bytes + GUARD);
}

static void reduce_scatter(MPI_Comm comm, int most, const struct kind *k, MPI_Op op, int number) {
  MPI_Request request;
  int counts[MAX_RANKS], total = 0;
  const int way = number % 8; /* with parts of one size, too */
  for (int r = 0; r < size; r++) {
    counts[r] = way >= 4 ? most : (int)next_random((unsigned)most + 1) * (next_random(4) != 0);
    total += counts[r];
  }
  const size_t bytes = (size_t)counts[rank] * (size_t)k->bytes;
  memset(out, 0xa5, (size_t)total * (size_t)k->bytes + GUARD);
  fill_elements(way % 4 < 2 ? in : out, total, k, op, number);
  const void *from = way % 4 < 2 ? in : MPI_IN_PLACE;
  if (way < 4 && way % 2 == 0) MPI_Reduce_scatter(from, out, counts, k->type, op, comm);
  else if (way < 4) MPI_Ireduce_scatter(from, out, counts, k->type, op, comm, &request);
  else if (way % 2 == 0) MPI_Reduce_scatter_block(from, out, most, k->type, op, comm);
  else MPI_Ireduce_scatter_block(from, out, most, k->type, op, comm, &request);
  finish(&request, way % 2 == 1);
  note(out, bytes + (way % 4 < 2 ? GUARD : 0));
}

/* All of them, with counts up to so many. */
static void reductions(MPI_Comm comm, int most) {
  for (int number = 0; number < 96; number++) {
    const struct kind *k = kind_of((unsigned)number + next_random(12));
    const MPI_Op op = op_of(k, next_random(8));
    const int count = number % 16 == 7 ? 0 : 1 + (int)next_random((unsigned)most / (unsigned)k->bytes);
    reduce_all(comm, count, k, op, number);
    reduce_to_root(comm, count, k, op, number);
    reduce_scatter(comm, 1 + count / size, k, op, number);
  }
}

/* ---- copies ---- */

/* Ints with a gap behind each. */
static MPI_Datatype make_gapped(int count) {
  MPI_Datatype type;
  MPI_Type_vector(count, 1, 2, MPI_INT, &type);
  MPI_Type_commit(&type);
  return type;
}

/* The root and every other rank have the data in other shapes. */
static void broadcast(MPI_Comm comm, int count, int number) {
  MPI_Request request;
  const int root = number % size, way = number % 4;
  const bool is_gapped = (rank + number) % 3 == 0 && count > 0;
  const size_t bytes = 4 * (size_t)count;
  memset(out, 0xa5, 2 * bytes + GUARD);
  if (rank == root) fill(out, 2 * bytes, seed_of(number));
  MPI_Datatype type = is_gapped ? make_gapped(count) : MPI_INT;
  const int num = is_gapped ? 1 : count;
  if (way % 2 == 0) MPI_Bcast(out, num, type, root, comm);
  else MPI_Ibcast(out, num, type, root, comm, &request);
  if (is_gapped) MPI_Type_free(&type); /* also while the call is under way */
  finish(&request, way % 2 == 1);
  if (is_gapped) note(out, 2 * bytes + GUARD);
  else note(out, bytes);
}

static void gather_to_all(MPI_Comm comm, int count, int number) {
  MPI_Request request;
  const int way = number % 4;
  const bool is_gapped = number % 3 == 0 && count > 0, is_packed = (rank + number) % 2 == 0;
  const size_t bytes = 4 * (size_t)count, room = (is_gapped ? 2 * bytes : bytes) * (size_t)size;
  MPI_Datatype type = is_gapped ? make_gapped(count) : MPI_INT;
  if (is_gapped) { /* so that parts do not overlap */
    MPI_Datatype wide;
    MPI_Type_create_resized(type, 0, (MPI_Aint)(2 * bytes), &wide);
    MPI_Type_commit(&wide);
    MPI_Type_free(&type);
    type = wide;
  }
  const int num = is_gapped ? 1 : count;
  memset(out, 0xa5, room + GUARD);
  fill(in, bytes, seed_of(number));
  if (way >= 2) fill(out + room / (size_t)size * (size_t)rank, is_gapped ? 2 * bytes : bytes, seed_of(number));
  const void *from = way >= 2 ? MPI_IN_PLACE : in;
  /* In the same signature. */
  const MPI_Datatype from_type = is_packed ? MPI_INT : MPI_INT32_T;
  if (way % 2 == 0) MPI_Allgather(from, count, from_type, out, num, type, comm);
  else MPI_Iallgather(from, count, from_type, out, num, type, comm, &request);
  if (is_gapped) MPI_Type_free(&type);
  finish(&request, way % 2 == 1);
  note(out, room + GUARD);
}

/* Uneven parts, in the opposite order, with gaps between them or without; some are empty. */
static void gather_parts(MPI_Comm comm, int most, int number) {
  MPI_Request request;
  int counts[MAX_RANKS], places[MAX_RANKS], place = 0;
  const int way = number % 4, gap = number % 3;
  for (int r = 0; r < size; r++) counts[r] = (int)next_random((unsigned)most + 1) * (next_random(4) != 0);
  for (int k = 0; k < size; k++) {
    const int r = number % 2 == 0 ? size - 1 - k : k;
    places[r] = place;
    place += counts[r] + gap;
  }
  const size_t bytes = 8 * (size_t)counts[rank];
  memset(out, 0xa5, 8 * (size_t)place + GUARD);
  fill(in, bytes, seed_of(number));
  if (way >= 2) memcpy(out + 8 * (size_t)places[rank], in, bytes);
  const void *from = way >= 2 ? MPI_IN_PLACE : in;
  if (way % 2 == 0) MPI_Allgatherv(from, counts[rank], MPI_DOUBLE, out, counts, places, MPI_DOUBLE, comm);
  else MPI_Iallgatherv(from, counts[rank], MPI_DOUBLE, out, counts, places, MPI_DOUBLE, comm, &request);
  finish(&request, way % 2 == 1);
  note(out, 8 * (size_t)place + GUARD);
}

static void copies(MPI_Comm comm, int most_bytes) {
  for (int number = 0; number < 72; number++) {
    const int count = number % 16 == 7 ? 0 : 1 + (int)next_random((unsigned)most_bytes / 4);
    broadcast(comm, count, number);
    gather_to_all(comm, (count + size - 1) / size, number);
    gather_parts(comm, 1 + count / size, number);
  }
}

/* Parts that lie in the whole, in their own place or all in front: one buffer for both is rank 0's alone, or
 * everybody's. Open MPI takes that, MPICH does not. */
static void aliased(MPI_Comm comm) {
  int all[2 * MAX_RANKS], counts[MAX_RANKS], places[MAX_RANKS];
  for (int number = 0; number < 48; number++) {
    const int at = number % 2 == 0 ? 2 * rank : 0, way = number / 2 % 4;
    for (int k = 0; k < 2 * size; k++) all[k] = k + rank;
    for (int r = 0; r < size; r++) {
      counts[r] = 2 - (way == 3 ? r % 2 : 0);
      places[r] = 2 * r;
    }
    if (way == 0) MPI_Reduce_scatter_block(all, all + at, 2, MPI_INT, MPI_SUM, comm);
    if (way == 1) MPI_Reduce_scatter(all, all + at, counts, MPI_INT, MPI_SUM, comm);
    if (way < 2) check(all[at] == 2 * rank * size + size * (size - 1) / 2, "sum in the input", number);
    if (way < 2) continue;
    all[at] = 100 + rank;
    if (way == 2) MPI_Allgather(all + at, 2, MPI_INT, all, 2, MPI_INT, comm);
    else MPI_Allgatherv(all + at, counts[rank], MPI_INT, all, counts, places, MPI_INT, comm);
    for (int r = 0; r < size; r++) check(all[2 * r] == 100 + r, "part in the output", number);
  }
}

/* ---- barriers ---- */

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Nobody leaves before all have come: all ranks are on one host, whose clock they share. */
static void barriers(MPI_Comm comm) {
  for (int number = 0; number < 40; number++) {
    int64_t times[2], all[MAX_RANKS][2], last = 0;
    MPI_Request request;
    if ((int)next_random((unsigned)size) == rank) usleep(500 + 1000 * (number % 3));
    times[0] = now_ns();
    if (number % 2 == 0) MPI_Barrier(comm);
    else MPI_Ibarrier(comm, &request);
    finish(&request, number % 2 == 1);
    times[1] = now_ns();
    MPI_Gather(times, 2, MPI_INT64_T, all, 2, MPI_INT64_T, 0, comm);
    for (int r = 0; r < size && rank == 0; r++) last = all[r][0] > last ? all[r][0] : last;
    for (int r = 0; r < size && rank == 0; r++) check(all[r][1] >= last, "left a barrier too early", number);
  }
}

/* ---- many at once ---- */

enum { NUM_AT_ONCE = 300, FEW = 12 }; /* more than there are handles */

static void begin(MPI_Comm comm, int number, int64_t *from, int64_t *to, MPI_Request *request) {
  static const int counts[MAX_RANKS] = {2, 0, 1, 3, 1, 0, 2, 1, 1, 0, 1, 0, 0, 0, 0, 0};
  static const int places[MAX_RANKS] = {0, 2, 2, 3, 6, 7, 7, 9, 10, 11, 11, 12, 12, 12, 12, 12};
  const int root = number % size;
  fill(from, FEW * sizeof *from, seed_of(number));
  memset(to, 0x5a, FEW * sizeof *to);
  if (number % 7 == 4 && rank == root) memcpy(to, from, FEW * sizeof *to);
  switch (number % 7) {
    case 0: MPI_Iallreduce(from, to, FEW, MPI_INT64_T, MPI_SUM, comm, request); break;
    case 1: MPI_Ireduce(from, to, FEW, MPI_INT64_T, MPI_BOR, root, comm, request); break;
    case 2: MPI_Ireduce_scatter(from, to, counts, MPI_INT64_T, MPI_MAX, comm, request); break;
    case 3: MPI_Iallgatherv(from, counts[rank], MPI_INT64_T, to, counts, places, MPI_INT64_T, comm, request); break;
    case 4: MPI_Ibcast(to, FEW, MPI_INT64_T, root, comm, request); break;
    case 5: MPI_Ibarrier(comm, request); break;
    default: MPI_Igather(from, 1, MPI_INT64_T, to, 1, MPI_INT64_T, root, comm, request); /* MPI's */
  }
}

/* In two communicators, which odd ranks call in the opposite order; messages and a call that blocks go on beside. */
static void at_once(MPI_Comm a, MPI_Comm b) {
  static int64_t from[2][NUM_AT_ONCE][FEW], to[2][NUM_AT_ONCE][FEW];
  static MPI_Request requests[2 * NUM_AT_ONCE];
  const MPI_Comm comms[2] = {a, b};
  int word = rank, index;
  for (int half = 0; half < 2; half++) {
    const int c = rank % 2 == 0 ? half : 1 - half;
    for (int k = 0; k < NUM_AT_ONCE; k++) begin(comms[c], k, from[c][k], to[c][k], &requests[c * NUM_AT_ONCE + k]);
  }
  MPI_Sendrecv_replace(&word, 1, MPI_INT, (rank + 1) % size, 3, (rank + size - 1) % size, 3, a, MPI_STATUS_IGNORE);
  check(word == (rank + size - 1) % size, "message beside calls", word);
  for (int k = 0; k < NUM_AT_ONCE / 2; k++) MPI_Waitany(2 * NUM_AT_ONCE, requests, &index, MPI_STATUS_IGNORE);
  MPI_Allreduce(MPI_IN_PLACE, &word, 1, MPI_INT, MPI_SUM, b); /* behind all of b */
  check(word == size * (size - 1) / 2, "sum behind calls", word);
  MPI_Waitall(2 * NUM_AT_ONCE, requests, MPI_STATUSES_IGNORE);
  note(to, sizeof to);
}

/* Until the ranks have met, which calls of other kinds than MPI_Allreduce want after a while. */
static void meet(MPI_Comm comm) {
  for (int k = 0; k < 20; k++) MPI_Bcast(&(int){k}, 1, MPI_INT, k % size, comm);
}

/* ---- sums of floats ---- */

enum { NUM_FLOATS = 64 };

/* 24 bits of 2^-10 to 2^20, of both signs: a long double has their exact sum. */
static float float_of(int r, int i) {
  const uint64_t random = mix(((uint64_t)r << 32) + (uint64_t)i);
  const float x = (float)(random >> 40) / 0x1p24f * (float)(1 << random % 31) / 1024;
  return random >> 32 & 1 ? -x : x;
}

static int is_exact(float x, int i) {
  long double sum = 0;
  for (int r = 0; r < size; r++) sum += (long double)float_of(r, i);
  return x == (float)sum;
}

/* How many sums are the exact sum, rounded once. */
static void sum_floats(void) {
  static float x[NUM_FLOATS * MAX_RANKS], y[NUM_FLOATS * MAX_RANKS];
  const int each = NUM_FLOATS / size, all = each * size;
  int num_exact = 0, num = 0;
  meet(MPI_COMM_WORLD);
  for (int i = 0; i < NUM_FLOATS; i++) x[i] = float_of(rank, i);
  MPI_Allreduce(x, y, NUM_FLOATS, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  for (int i = 0; i < NUM_FLOATS; i++) num_exact += is_exact(y[i], i);
  MPI_Reduce(x, y, NUM_FLOATS, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
  for (int i = 0; i < NUM_FLOATS && rank == 0; i++) num_exact += is_exact(y[i], i);
  MPI_Reduce_scatter_block(x, y, each, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  for (int i = 0; i < each; i++) num_exact += is_exact(y[i], each * rank + i);
  MPI_Reduce(&num_exact, &num, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("%d of %d floats are exact\n", num, NUM_FLOATS * size + NUM_FLOATS + all);
}

/* ---- parts of the program ---- */

static void try_on(MPI_Comm comm, int most_bytes) {
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  random_state = 0;
  meet(comm);
  reductions(comm, most_bytes);
  copies(comm, most_bytes);
  barriers(comm);
}

static void try_communicators(void) {
  MPI_Comm half, copy, idle;
  MPI_Request request;
  MPI_Comm_dup(MPI_COMM_WORLD, &copy);
  MPI_Comm_split(MPI_COMM_WORLD, own_rank % 2, -own_rank, &half); /* in another order, too */
  try_on(half, 200);
  try_on(MPI_COMM_SELF, 200);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  meet(copy);
  MPI_Comm_idup(copy, &idle, &request); /* for which MPI combines numbers, when it comes to that */
  MPI_Bcast(&(int){0}, 1, MPI_INT, 0, copy);
  MPI_Allreduce(MPI_IN_PLACE, &(int){1}, 1, MPI_INT, MPI_MAX, copy);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  at_once(MPI_COMM_WORLD, copy);
  MPI_Comm_free(&idle);
  MPI_Comm_free(&half);
  MPI_Comm_free(&copy);
}

/* Rank 1 stops; the others get an error from whatever they call then. */
static void lose_a_rank(const char *what) {
  static int x[256], y[256], counts[MAX_RANKS];
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  meet(MPI_COMM_WORLD);
  for (int r = 0; r < size; r++) counts[r] = 1;
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 1) raise(SIGSTOP);
  int code = MPI_SUCCESS;
  if (strcmp(what, "barrier") == 0) code = MPI_Barrier(MPI_COMM_WORLD);
  if (strcmp(what, "bcast") == 0) code = MPI_Bcast(x, 256, MPI_INT, 0, MPI_COMM_WORLD);
  if (strcmp(what, "allgather") == 0) code = MPI_Allgather(x, 1, MPI_INT, y, 1, MPI_INT, MPI_COMM_WORLD);
  if (strcmp(what, "reduce") == 0) code = MPI_Reduce(x, y, 256, MPI_INT, MPI_MAX, 0, MPI_COMM_WORLD);
  if (strcmp(what, "reduce_scatter") == 0)
    code = MPI_Reduce_scatter(x, y, counts, MPI_INT, MPI_PROD, MPI_COMM_WORLD);
  fprintf(stderr, "rank %d: %s\n", rank, code == MPI_SUCCESS ? "no error" : "told");
  fflush(stderr);
  sleep(2); /* the others are about to say so, too: an abort would end them before */
  MPI_Abort(MPI_COMM_WORLD, 5);
}

/* Rank 1 has no memory for what it would send packed; the others get an error, too, and soon. */
static void lack_memory(void) {
  enum { COUNT = MAX_BYTES / 8 };
  struct rlimit limit;
  MPI_Datatype type = make_gapped(COUNT);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  meet(MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  getrlimit(RLIMIT_AS, &limit);
  if (rank == 1) setrlimit(RLIMIT_AS, &(struct rlimit){1, limit.rlim_max});
  const int code = MPI_Bcast(out, rank == 1 ? 1 : COUNT, rank == 1 ? type : MPI_INT, 1, MPI_COMM_WORLD);
  setrlimit(RLIMIT_AS, &limit);
  check(code != MPI_SUCCESS, "a broadcast without memory", code);
  MPI_Type_free(&type);
}

int main(int argc, char **argv) {
  uint64_t all[MAX_RANKS];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &own_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  rank = own_rank;
  alarm(PATIENCE_S);
  for (int a = 1; a < argc; a++) {
    if (strcmp(argv[a], "short") == 0) try_on(MPI_COMM_WORLD, 4000);
    else if (strcmp(argv[a], "long") == 0) try_on(MPI_COMM_WORLD, 300000);
    else if (strcmp(argv[a], "communicators") == 0) try_communicators();
    else if (strcmp(argv[a], "floats") == 0) sum_floats();
    else if (strcmp(argv[a], "aliased") == 0) aliased(MPI_COMM_WORLD);
    else if (strcmp(argv[a], "memory") == 0) lack_memory();
    else lose_a_rank(argv[a]);
  }
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Gather(&digest, 1, MPI_UINT64_T, all, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
  char line[16 + 17 * MAX_RANKS] = "digests"; /* written at once: what other ranks say may come between two writes */
  size_t at = strlen(line);
  for (int r = 0; r < size && own_rank == 0; r++)
    at += (size_t)snprintf(line + at, sizeof line - at, " %016llx", (unsigned long long)all[r]);
  if (own_rank == 0) printf("%s\ndone\n", line);
  MPI_Finalize();
  return 0;
}
