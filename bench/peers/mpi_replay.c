/* SPDX-License-Identifier: Apache-2.0
 * mpi_replay PLAN WARMUP ITERS: replays a plan of `switchml bench training --plan` with MPI_Allreduce, one call after
 * another, as Horovod's one thread makes them. Each rank prints a JSON object. Status 1: an element was wrong. */
#include <mpi.h>

#include "replay.h"

int main(int argc, char **argv) {
  FILE *autogroup = fopen("/proc/self/autogroup", "w"); /* mpirun's daemon may have left our session */
  if (autogroup) {
    fputs("-20", autogroup);
    fclose(autogroup);
  }
  int rank, size, provided;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc != 4 || provided < MPI_THREAD_FUNNELED) return 2;
  static struct replay r;
  const unsigned num_timed = (unsigned)atoi(argv[3]);
  replay_init(&r, argv[1], rank, size, (unsigned)atoi(argv[2]) + num_timed);
  if (r.num_steps != 0) return 2; /* sharded training is Gloo's alone */
  pthread_t compute;
  MPI_Barrier(MPI_COMM_WORLD);
  const double start_cpu_s = replay_cpu_s();
  if (pthread_create(&compute, NULL, replay_compute, &r) != 0) return 2;
  for (int64_t number; (number = replay_take(&r)) >= 0; replay_finish(&r, number)) {
    const struct replay_send *send = &r.sends[number % r.num_sends];
    MPI_Allreduce(replay_input(&r, number), r.out + send->first_elem, (int)send->num_elems, MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  }
  pthread_join(compute, NULL);
  const double cpu_s = replay_cpu_s() - start_cpu_s;
  const long num_wrong = replay_count_wrong(&r);
  for (int each = 0; each < size; each++) { /* one after the other, so that lines stay whole */
    if (each == rank) replay_print(&r, num_timed, cpu_s, num_wrong);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  MPI_Finalize();
  return num_wrong != 0;
}
