/* SPDX-License-Identifier: Apache-2.0
 * What the Open MPI component and the PMPI library share: the job of one communicator, which calls it takes, and how
 * ranks agree on that. It knows nothing of MPI: whoever uses it lends it an all-gather and a way to let MPI go on.
 *
 * Ranks must decide alike, or some wait in the job and some in MPI. So a decision uses only what is equal by MPI's own
 * rules (reduction, type and count, or bytes; the order of a communicator's collective calls) and settings that the
 * ranks told each other. Rank 0's settings count. They tell them, and join, in a *blocking* collective call: there any
 * rank may wait for all others. A call that does not block looks, and waits for nobody; until the ranks have met, it is
 * MPI's.
 */
#pragma once

#include <stddef.h>

#include "settings.h"

struct sml_mpi_group;

/* Sends nothing. name: the communicator's name, rank, size: this rank in it; for messages, which read the name
 * when they are written. allgather: blocking, collective over the communicator, apart from the user's messages.
 * progress: lets MPI's outstanding messages go on. NULL: no memory. */
struct sml_mpi_group *sml_mpi_group_create(const char *name, uint32_t rank, uint32_t size,
                                           const struct sml_mpi_settings *settings, sml_allgather_fn allgather,
                                           int (*progress)(void *user), void *user);
/* Not collective; ends what is outstanding. */
void sml_mpi_group_destroy(struct sml_mpi_group *g);

/* One collective call, as sml_allreduce() and so on have it. What decides is equal on all ranks: kind to count. */
struct sml_mpi_call {
  enum sml_mpi_kind kind;
  bool is_known; /* there are such a type and reduction */
  sml_type type;
  sml_reduction reduction;
  uint32_t root;
  size_t count; /* elements, or of copies bytes; with the parts of all ranks */
  /* For whoever starts it. */
  const size_t *parts; /* of each rank, in the same unit; NULL: equal */
  const void *in;
  void *out;
};

enum sml_mpi_way {
  SML_MPI_TAKEN,  /* through SwitchML */
  SML_MPI_PASSED, /* MPI shall do it; so on every rank */
  SML_MPI_FAILED  /* an error, on every rank; stderr says why */
};
/* Within a blocking collective call of the communicator that is none of these, before what it does: tells settings and
 * joins the job if a call so far wants that. Most often returns at once. */
void sml_mpi_group_meet(struct sml_mpi_group *g);
/* Which way this call goes. In MPI's order. Only a call that blocks may say so; what does not never waits here. FAILED
 * if g is NULL: there was no memory for it. */
enum sml_mpi_way sml_mpi_group_way(struct sml_mpi_group *g, const struct sml_mpi_call *call, bool is_blocking);

/* For what was TAKEN and this rank cannot start: says why, and ends the job, so that no other rank waits for it. */
void sml_mpi_group_give_up(struct sml_mpi_group *g, const struct sml_mpi_call *call, const char *detail);

enum sml_mpi_start {
  SML_MPI_STARTED,
  SML_MPI_NO_ROOM, /* as many are outstanding as may be; once one has ended, try again, in the same order */
  SML_MPI_BAD      /* an error, in the end on every rank; stderr says why */
};
/* What was TAKEN: submits it. Never blocks. */
enum sml_mpi_start sml_mpi_group_start(struct sml_mpi_group *g, const struct sml_mpi_call *call,
                                       sml_operation **op_out);
/* Whether it has ended; then *is_good_out says how, and it is released. Never blocks. */
bool sml_mpi_group_test(struct sml_mpi_group *g, const struct sml_mpi_call *call, sml_operation *op, bool *is_good_out);
/* What was TAKEN by a call that blocks: starts it once there is room, and waits for it. It lets MPI go on meanwhile: a
 * rank that is late may wait for a message of this one. False: an error; stderr says why. */
bool sml_mpi_group_do(struct sml_mpi_group *g, const struct sml_mpi_call *call);
