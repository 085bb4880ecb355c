/* SPDX-License-Identifier: Apache-2.0
 * What MPI allows a program at a communicator's first sums, and what it promises of requests, statuses, attributes and
 * arguments. Two ranks or more. argv[1] says which part; rank 0 prints "done" at its end. A rank that waits for too
 * long is ended by an alarm. */
#include <dirent.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 5000, MAX_SUMS = 20000, MAX_COMMS = 100, PATIENCE_S = 90, PAUSE_S = 3 };

static int rank, size, waker = -1;

static void check(int is_right, const char *what, long detail) {
  if (is_right) return;
  fprintf(stderr, "rank %d: wrong: %s %ld\n", rank, what, detail);
  MPI_Abort(MPI_COMM_WORLD, 9);
}

static int sum_of_ranks(void) {
  return size * (size - 1) / 2;
}

static void fill(int *x, int count) {
  for (int i = 0; i < count; i++) x[i] = i + rank;
}

static void check_sum(const int *x, int count, const char *what) {
  for (int i = 0; i < count; i++) check(x[i] == i * size + sum_of_ranks(), what, i);
}

/* Rank 1 calls when it has a message that rank 0 sends behind its own call. */
static void call_send_wait(MPI_Comm comm, int count) {
  static int x[COUNT];
  int word = 1;
  MPI_Request request;
  fill(x, count);
  if (rank == 1) MPI_Recv(&word, 1, MPI_INT, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  MPI_Iallreduce(MPI_IN_PLACE, x, count, MPI_INT, MPI_SUM, comm, &request);
  if (rank == 0) MPI_Send(&word, 1, MPI_INT, 1, 7, MPI_COMM_WORLD);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  check_sum(x, count, "sum before a message");
}

/* Rank 1 and all odd ones call for b first. Sums go on behind one that is waited for. */
static void opposite_order(MPI_Comm a, MPI_Comm b, int count) {
  static int x[2][COUNT];
  MPI_Comm comms[2] = {a, b};
  MPI_Request requests[2];
  fill(x[0], count);
  fill(x[1], count);
  for (int k = 0; k < 2; k++) {
    const int which = rank % 2 == 1 ? 1 - k : k;
    MPI_Iallreduce(MPI_IN_PLACE, x[which], count, MPI_INT, MPI_SUM, comms[which], &requests[k]);
  }
  MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
  MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
  check_sum(x[0], count, "sum of the first");
  check_sum(x[1], count, "sum of the second");
}

/* The first use of new communicators; then again, where the ranks have met in a call that blocks. */
static void first_use(void) {
  MPI_Comm a, b, c;
  MPI_Comm_dup(MPI_COMM_WORLD, &a);
  MPI_Comm_dup(MPI_COMM_WORLD, &b);
  MPI_Comm_dup(MPI_COMM_WORLD, &c);
  for (int round = 0; round < 3; round++) {
    const int count = round == 0 ? 1 : COUNT;
    call_send_wait(c, count);
    opposite_order(a, b, count);
    if (round == 0) continue;
    MPI_Barrier(a);
    MPI_Bcast(&(int){0}, 1, MPI_INT, 0, b);
    MPI_Allreduce(MPI_IN_PLACE, &(int){0}, 1, MPI_INT, MPI_MAX, c);
  }
  MPI_Comm_free(&a);
  MPI_Comm_free(&b);
  MPI_Comm_free(&c);
}

/* 20,000 at once, all called before another rank calls its first; then as many as fit of one communicator, and a sum
 * that blocks of another, in opposite order. */
static void many(void) {
  enum { FEW = 3 };
  static int x[MAX_SUMS][FEW], y[FEW];
  static MPI_Request requests[MAX_SUMS];
  MPI_Comm copy;
  int word = 1;
  MPI_Comm_dup(MPI_COMM_WORLD, &copy);
  fill(y, FEW);
  MPI_Allreduce(MPI_IN_PLACE, y, FEW, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  fill(y, FEW);
  MPI_Allreduce(MPI_IN_PLACE, y, FEW, MPI_INT, MPI_SUM, copy);
  for (int round = 0; round < 2; round++) {
    const int num = round == 0 ? MAX_SUMS : 4000; /* more than there are handles */
    fill(y, FEW);
    if (round == 0 && rank == 1) MPI_Recv(&word, 1, MPI_INT, 0, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (round == 1 && rank == 1) MPI_Allreduce(MPI_IN_PLACE, y, FEW, MPI_INT, MPI_SUM, copy);
    for (int k = 0; k < num; k++) {
      fill(x[k], FEW);
      MPI_Iallreduce(MPI_IN_PLACE, x[k], FEW, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &requests[k]);
    }
    if (round == 0 && rank == 0) MPI_Send(&word, 1, MPI_INT, 1, 8, MPI_COMM_WORLD);
    if (round == 1 && rank != 1) MPI_Allreduce(MPI_IN_PLACE, y, FEW, MPI_INT, MPI_SUM, copy);
    MPI_Allreduce(MPI_IN_PLACE, &word, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD); /* behind all of them */
    check(word == size, "sum behind many", word);
    word = 1;
    MPI_Waitall(num, requests, MPI_STATUSES_IGNORE);
    for (int k = 0; k < num; k++) check_sum(x[k], FEW, "one of many");
    if (round == 1) check_sum(y, FEW, "sum beside many");
  }
  MPI_Comm_free(&copy);
}

/* That of a sum is empty. */
static void statuses(void) {
  static int x[COUNT];
  MPI_Status status;
  MPI_Request request;
  int is_cancelled, count;
  fill(x, COUNT);
  MPI_Allreduce(MPI_IN_PLACE, x, COUNT, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  for (int k = 0; k < 100; k++) {
    memset(&status, 0x5a, sizeof status);
    MPI_Iallreduce(MPI_IN_PLACE, x, COUNT, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &is_cancelled);
    MPI_Get_count(&status, MPI_BYTE, &count);
    check(!is_cancelled, "a sum that was cancelled", k);
    check(count == 0, "bytes in a status", count);
  }
}

static int num_copies;

static int copy_attribute(MPI_Comm comm, int key, void *extra, void *in, void *out, int *flag) {
  (void)comm;
  (void)key;
  (void)extra;
  *(void **)out = in;
  *flag = 1;
  num_copies++;
  return MPI_SUCCESS;
}

static void attributes(void) {
  static int x[COUNT];
  int key;
  MPI_Comm_create_keyval(copy_attribute, MPI_COMM_NULL_DELETE_FN, &key, NULL);
  MPI_Comm_set_attr(MPI_COMM_WORLD, key, &key);
  fill(x, COUNT);
  MPI_Allreduce(MPI_IN_PLACE, x, COUNT, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  check_sum(x, COUNT, "sum beside an attribute");
  check(num_copies == 0, "copies of an attribute", num_copies);
  MPI_Comm_delete_attr(MPI_COMM_WORLD, key);
  MPI_Comm_free_keyval(&key);
}

/* Each must be an error, and none may be more. */
static void arguments(void) {
  static int x[COUNT];
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Allreduce(MPI_IN_PLACE, x, COUNT, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  check(MPI_Allreduce(x, MPI_IN_PLACE, COUNT, MPI_INT, MPI_SUM, MPI_COMM_WORLD) != MPI_SUCCESS, "output in place", 0);
#ifndef OPEN_MPI /* looks at neither */
  check(MPI_Allreduce(x, x, COUNT, MPI_INT, MPI_SUM, MPI_COMM_WORLD) != MPI_SUCCESS, "same buffer", 0);
  check(MPI_Allreduce(x, NULL, COUNT, MPI_INT, MPI_SUM, MPI_COMM_WORLD) != MPI_SUCCESS, "no buffer", 0);
#endif
}

#if MPI_VERSION >= 4
/* The calls of MPI-4 for counts of more than 31 bits, beside the old one. */
static void large_counts(void) {
  static int x[COUNT];
  fill(x, COUNT);
  MPI_Allreduce_c(MPI_IN_PLACE, x, COUNT, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  check_sum(x, COUNT, "sum of a large count");
  fill(x, COUNT);
  MPI_Allreduce(MPI_IN_PLACE, x, COUNT, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  check_sum(x, COUNT, "sum behind one of a large count");
}
#endif

static int count_entries(const char *path) {
  DIR *folder = opendir(path);
  int num = 0;
  while (folder != NULL && readdir(folder) != NULL) num++;
  if (folder != NULL) closedir(folder);
  return num - 2;
}

/* More than the library has jobs for; then new ones, when the first are gone. */
static void communicators(void) {
  static int x[COUNT];
  static MPI_Comm comms[MAX_COMMS];
  for (int round = 0; round < 2; round++) {
    for (int k = 0; k < MAX_COMMS; k++) {
      MPI_Comm_dup(MPI_COMM_WORLD, &comms[k]);
      fill(x, COUNT);
      MPI_Allreduce(MPI_IN_PLACE, x, COUNT, MPI_INT, MPI_SUM, comms[k]);
      check_sum(x, COUNT, "sum of a communicator");
    }
    if (rank == 0)
      printf("%d descriptors, %d threads\n", count_entries("/proc/self/fd"), count_entries("/proc/self/task"));
    for (int k = 0; k < MAX_COMMS; k++) MPI_Comm_free(&comms[k]);
  }
}

/* Before anything of MPI: a process that lets this one go on. */
static void make_waker(void) {
  int ends[2];
  char word;
  const pid_t parent = getpid();
  if (pipe(ends) != 0) exit(1);
  if (fork() == 0) {
    close(ends[1]);
    if (read(ends[0], &word, 1) == 1) {
      sleep(PAUSE_S);
      kill(parent, SIGCONT);
    }
    _exit(0);
  }
  close(ends[0]);
  waker = ends[1];
}

/* Rank 1 stops for longer than it takes to be called late. */
static void paused(void) {
  static int x[COUNT];
  for (int round = 0; round < 3; round++) {
    if (round == 1 && rank == 1) {
      if (write(waker, "x", 1) != 1) exit(1);
      raise(SIGSTOP);
    }
    fill(x, COUNT);
    MPI_Allreduce(MPI_IN_PLACE, x, COUNT, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    check_sum(x, COUNT, "sum beside a pause");
  }
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*run)(void);
  } parts[] = {{"first", first_use}, {"many", many},           {"statuses", statuses},
               {"attributes", attributes}, {"arguments", arguments}, {"communicators", communicators},
#if MPI_VERSION >= 4
               {"large counts", large_counts},
#endif
               {"paused", paused}};
  if (argc > 1 && strcmp(argv[1], "paused") == 0) make_waker();
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  alarm(PATIENCE_S);
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
    if (argc > 1 && strcmp(argv[1], parts[i].name) == 0) parts[i].run();
  if (rank == 0) printf("done\n");
  MPI_Finalize();
  return 0;
}
