/* SPDX-License-Identifier: Apache-2.0
 * A library to preload into MPI programs whose MPI has no components to add (MPICH and its relatives; any MPI with the
 * profiling interface): reductions, all-gathers, broadcasts and barriers that block, where they can be taken; all
 * else as it was. Built once for each MPI's binary interface. Another profiling library cannot be used with it. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "calls.h"

#define EXPORT __attribute__((visibility("default")))

struct communicator {
  struct sml_mpi_group *group; /* NULL: not ours */
  MPI_Comm comm;               /* the program's: a copy would run its attributes' callbacks */
  char name[MPI_MAX_OBJECT_NAME];
  struct communicator *next;
};

#define UNLIKELY_TAG 32767 /* to oneself: the largest tag that any MPI has */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of the list and the keyval */
static struct communicator *communicators;
static int keyval = MPI_KEYVAL_INVALID;

/* ---- what the group borrows ---- */

static int gather(void *user, const void *in, void *out, size_t bytes) {
  struct communicator *c = user;
  if (bytes > INT32_MAX) return 1;
  return PMPI_Allgather(in, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, c->comm) == MPI_SUCCESS ? 0 : 1;
}

/* Looking for a message makes MPI look at all, as long as there is none: so for one that nobody sends. (Attributes are
 * asked for nothing here: there need not be an MPI_COMM_WORLD.) */
static int let_mpi_go_on(void *user) {
  struct communicator *c = user;
  int is_there, rank;
  const int error = PMPI_Comm_rank(c->comm, &rank);
  if (error != MPI_SUCCESS) return error;
  return PMPI_Iprobe(rank, UNLIKELY_TAG, c->comm, &is_there, MPI_STATUS_IGNORE);
}

/* ---- communicators ---- */

static void end(struct communicator *c) {
  sml_mpi_group_destroy(c->group);
  free(c);
}

static int forget(MPI_Comm comm, int key, void *value, void *extra) {
  struct communicator *c = value;
  (void)comm;
  (void)key;
  (void)extra;
  pthread_mutex_lock(&mutex);
  for (struct communicator **at = &communicators; *at != NULL; at = &(*at)->next) {
    if (*at != c) continue;
    *at = c->next;
    break;
  }
  pthread_mutex_unlock(&mutex);
  end(c);
  return MPI_SUCCESS;
}

static pthread_once_t settings_once = PTHREAD_ONCE_INIT;
static struct sml_mpi_settings settings;

/* Whether MPI goes by TCP is not to be seen from here, so the rule for few doubles is for whoever asks. */
static void read_settings(void) {
  const char *short_hosts = getenv("SWITCHML_MPI_SHORT_HOSTS");
  settings = sml_mpi_settings_of_environment();
  if (short_hosts == NULL || short_hosts[0] == 0) settings.short_hosts = 0;
}

/* NULL: no memory, or an error of MPI's. */
static struct communicator *communicator_of(MPI_Comm comm) {
  struct communicator *c = NULL;
  int is_there = 0, is_inter = 0, rank, size;
  pthread_mutex_lock(&mutex);
  if (keyval == MPI_KEYVAL_INVALID &&
      PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget, &keyval, NULL) != MPI_SUCCESS)
    keyval = MPI_KEYVAL_INVALID;
  pthread_mutex_unlock(&mutex);
  if (keyval == MPI_KEYVAL_INVALID || PMPI_Comm_get_attr(comm, keyval, &c, &is_there) != MPI_SUCCESS) return NULL;
  if (is_there) return c;
  if (PMPI_Comm_test_inter(comm, &is_inter) != MPI_SUCCESS || PMPI_Comm_size(comm, &size) != MPI_SUCCESS ||
      PMPI_Comm_rank(comm, &rank) != MPI_SUCCESS)
    return NULL;
  c = calloc(1, sizeof *c);
  if (c == NULL) return NULL;
  c->comm = comm;
  if (!is_inter && size > 1) {
    int length;
    pthread_once(&settings_once, read_settings);
    if (PMPI_Comm_get_name(comm, c->name, &length) != MPI_SUCCESS || c->name[0] == 0)
      snprintf(c->name, sizeof c->name, "a communicator of %d", size);
    c->group = sml_mpi_group_create(c->name, (uint32_t)rank, (uint32_t)size, &settings, gather, let_mpi_go_on, c);
    if (c->group == NULL) {
      free(c);
      return NULL;
    }
  }
  if (PMPI_Comm_set_attr(comm, keyval, c) != MPI_SUCCESS) {
    end(c);
    return NULL;
  }
  pthread_mutex_lock(&mutex);
  c->next = communicators;
  communicators = c;
  pthread_mutex_unlock(&mutex);
  return c;
}

static int failed(MPI_Comm comm) {
  PMPI_Comm_call_errhandler(comm, MPI_ERR_OTHER);
  return MPI_ERR_OTHER;
}

/* Whether this call ends here, and how; otherwise MPI shall do it. */
static bool is_ended(struct sml_mpi_plan plan, int *error_out) {
  if (plan.is_suspect || !plan.call.is_known || plan.call.count == 0) return false;
  struct communicator *c = communicator_of(plan.comm);
  if (c == NULL) sml_mpi_say("out of memory, or an error of MPI's: a call fails");
  if (c != NULL && c->group == NULL) return false;
  const enum sml_mpi_way way = c == NULL ? SML_MPI_FAILED : sml_mpi_group_way(c->group, &plan.call, true);
  if (way == SML_MPI_PASSED) return false;
  bool is_good =
      way == SML_MPI_TAKEN && sml_mpi_plan_prepare(&plan, c->group) && sml_mpi_group_do(c->group, &plan.call);
  is_good = sml_mpi_plan_end(&plan, is_good);
  *error_out = is_good ? MPI_SUCCESS : failed(plan.comm);
  return true;
}

/* ---- what replaces MPI's ---- */

#define CALL(name, parameters, arguments, plan)                    \
  EXPORT int MPI_##name parameters {                               \
    int error;                                                     \
    return is_ended(plan, &error) ? error : PMPI_##name arguments; \
  }
#define NUMBERS(numbers, is_of_large) ((struct sml_mpi_numbers){.at = (numbers), .is_large = (is_of_large)})
#define NONE NUMBERS(NULL, false)

/* Count, Place: the types of a count and of a place in an array; `large` is the end of the names that have them. */
#define CALLS(large, is_large, Count, Place)                                                                           \
  CALL(Allreduce##large, (const void *in, void *out, Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),        \
       (in, out, count, type, op, comm), sml_mpi_plan_reduce(in, out, count, type, op, SML_MPI_NO_ROOT, comm))         \
  CALL(Reduce##large, (const void *in, void *out, Count count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm), \
       (in, out, count, type, op, root, comm), sml_mpi_plan_reduce(in, out, count, type, op, root, comm))              \
  CALL(Reduce_scatter##large,                                                                                          \
       (const void *in, void *out, const Count *counts, MPI_Datatype type, MPI_Op op, MPI_Comm comm),                  \
       (in, out, counts, type, op, comm),                                                                              \
       sml_mpi_plan_reduce_scatter(in, out, 0, NUMBERS(counts, is_large), type, op, comm))                             \
  CALL(Reduce_scatter_block##large,                                                                                    \
       (const void *in, void *out, Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),                          \
       (in, out, count, type, op, comm), sml_mpi_plan_reduce_scatter(in, out, count, NONE, type, op, comm))            \
  CALL(Allgather##large,                                                                                               \
       (const void *in, Count in_count, MPI_Datatype in_type, void *out, Count count, MPI_Datatype type,               \
        MPI_Comm comm),                                                                                                \
       (in, in_count, in_type, out, count, type, comm),                                                                \
       sml_mpi_plan_allgather(in, in_count, in_type, out, count, NONE, NONE, type, comm))                              \
  CALL(Allgatherv##large,                                                                                              \
       (const void *in, Count in_count, MPI_Datatype in_type, void *out, const Count *counts, const Place *places,     \
        MPI_Datatype type, MPI_Comm comm),                                                                             \
       (in, in_count, in_type, out, counts, places, type, comm),                                                       \
       sml_mpi_plan_allgather(in, in_count, in_type, out, 0, NUMBERS(counts, is_large), NUMBERS(places, is_large),     \
                              type, comm))                                                                             \
  CALL(Bcast##large, (void *data, Count count, MPI_Datatype type, int root, MPI_Comm comm),                            \
       (data, count, type, root, comm), sml_mpi_plan_bcast(data, count, type, root, comm))

CALLS(, false, int, int)
CALL(Barrier, (MPI_Comm comm), (comm), sml_mpi_plan_barrier(comm))
#if MPI_VERSION >= 4 /* for large counts; mpi4py 4 makes no other calls */
CALLS(_c, true, MPI_Count, MPI_Aint)
#endif

/* Communicators that nobody frees, MPI_COMM_WORLD for one, end before MPI does. */
EXPORT int MPI_Finalize(void) {
  pthread_mutex_lock(&mutex);
  struct communicator *last = communicators;
  communicators = NULL;
  pthread_mutex_unlock(&mutex);
  while (last != NULL) {
    struct communicator *next = last->next;
    sml_mpi_group_destroy(last->group);
    last->group = NULL; /* the rest goes with the attribute, if MPI frees it */
    last->next = NULL;
    last = next;
  }
  return PMPI_Finalize();
}
