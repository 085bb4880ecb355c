/* SPDX-License-Identifier: Apache-2.0
 * A library to preload into MPI programs whose MPI has no components to add (MPICH and its relatives; any MPI with the
 * profiling interface): MPI_Allreduce of what can be taken, all else as it was. Built once for each MPI's binary
 * interface. Another profiling library cannot be used together with it. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "group.h"
#include "types.h"

#define EXPORT __attribute__((visibility("default")))

struct communicator {
  struct sml_mpi_group *group; /* NULL: not ours */
  MPI_Comm comm;               /* the program's: a copy would run its attributes' callbacks */
  char name[MPI_MAX_OBJECT_NAME];
  struct communicator *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of the list and the keyval */
static struct communicator *communicators;
static int keyval = MPI_KEYVAL_INVALID;

/* ---- what the group borrows ---- */

static int gather(void *user, const void *in, void *out, size_t bytes) {
  struct communicator *c = user;
  if (bytes > INT32_MAX) return 1;
  return PMPI_Allgather(in, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, c->comm) == MPI_SUCCESS ? 0 : 1;
}

/* Looking for a message, and leaving it where it is, makes MPI look at all. */
static int let_mpi_go_on(void *user) {
  struct communicator *c = user;
  int is_there;
  return PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, c->comm, &is_there, MPI_STATUS_IGNORE);
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
    struct sml_mpi_settings settings = sml_mpi_settings_of_environment();
    const char *short_hosts = getenv("SWITCHML_MPI_SHORT_HOSTS");
    /* Whether MPI goes by TCP is not to be seen from here, so the rule for few doubles is for whoever asks. */
    if (short_hosts == NULL || short_hosts[0] == 0) settings.short_hosts = 0;
    int length;
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

/* Whether MPI would find fault with these buffers, or may: then it shall, with its own words. */
static bool are_suspect(const void *in, const void *out) {
  return in == NULL || out == NULL || in == out || out == MPI_IN_PLACE;
}

/* Whether this sum ends here, and how; otherwise MPI shall do it. */
static bool is_ended(const void *in, void *out, long long count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
                     int *error_out) {
  sml_type type;
  if (op != MPI_SUM || count <= 0 || comm == MPI_COMM_NULL || are_suspect(in, out) || !sml_mpi_type_of(datatype, &type))
    return false;
  struct communicator *c = communicator_of(comm);
  if (c != NULL && c->group == NULL) return false;
  const enum sml_mpi_way way = c == NULL ? SML_MPI_FAILED : sml_mpi_group_way(c->group, type, (size_t)count, true);
  if (way == SML_MPI_PASSED) return false;
  const void *input = in == MPI_IN_PLACE ? out : in;
  const bool is_good = way == SML_MPI_TAKEN && sml_mpi_group_sum(c->group, input, out, (size_t)count, type);
  *error_out = is_good ? MPI_SUCCESS : failed(comm);
  return true;
}

/* ---- what replaces MPI's ---- */

EXPORT int MPI_Allreduce(const void *in, void *out, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm) {
  int error;
  return is_ended(in, out, count, datatype, op, comm, &error) ? error
                                                              : PMPI_Allreduce(in, out, count, datatype, op, comm);
}

#if MPI_VERSION >= 4 /* for large counts; mpi4py 4 calls it for all */
EXPORT int MPI_Allreduce_c(const void *in, void *out, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
                           MPI_Comm comm) {
  int error;
  return is_ended(in, out, count, datatype, op, comm, &error) ? error
                                                              : PMPI_Allreduce_c(in, out, count, datatype, op, comm);
}
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
