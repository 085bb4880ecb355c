/* SPDX-License-Identifier: Apache-2.0
 * What the Open MPI component and the PMPI library share: the job of one communicator, which calls it takes, and how
 * ranks agree on that. It knows nothing of MPI: whoever uses it lends it an all-gather and a way to let MPI go on.
 *
 * Ranks must decide alike, or some wait in the job and some in MPI. So a decision uses only what is equal by MPI's own
 * rules (reduction, type, count, the order of a communicator's collective calls) and settings that the ranks told each
 * other. Rank 0's settings count. They tell them, and join, in a *blocking* collective call: there any rank may wait
 * for all others. A call that does not block looks, and waits for nobody; until the ranks have met, its sums are MPI's.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "switchml/switchml.h"

struct sml_mpi_settings {
  uint64_t min_count;      /* elements; shorter sums stay with MPI, but for those of short_hosts */
  uint64_t short_hosts;    /* sums of few doubles are taken if the ranks run on at least so many hosts; 0: none */
  uint64_t timeout_s;      /* of an operation: how long a rank may be late */
  uint64_t join_timeout_s; /* of a join: how long an aggregator is waited for */
  uint64_t max_jobs;       /* of this process: further communicators stay with MPI */
  double lease_s;          /* a rank that is silent for so long is lost */
  uint32_t types;          /* bit t: sml_type t is taken */
  bool is_required;        /* a sum that should be taken and cannot be is an error, not MPI's */
  bool is_verbose;         /* tells how each communicator's job starts and ends */
};
/* Up to so many doubles are few: then one exchange with an aggregator takes less time than MPI's over TCP, from
 * SML_MPI_SHORT_HOSTS hosts on (bench/short_sums; README.md has the figures). */
#define SML_MPI_SHORT_COUNT 8u
#define SML_MPI_SHORT_HOSTS 5u
/* Defaults, overridden by SWITCHML_MPI_MIN_COUNT, _SHORT_HOSTS, _TIMEOUT, _JOIN_TIMEOUT, _MAX_JOBS, _TYPES
 * ("float32,int64", "none"), _VERBOSE, SWITCHML_LEASE, SWITCHML_REQUIRE and SWITCHML_DISABLE. Says on stderr what it
 * could not read, and keeps the default. */
struct sml_mpi_settings sml_mpi_settings_of_environment(void);
/* For settings that came another way (prefix: "coll_switchml_"): says which seconds there can't be, and puts the usual
 * ones there. */
void sml_mpi_settings_check(struct sml_mpi_settings *s, const struct sml_mpi_settings *usual, const char *prefix);
#define SML_MPI_TYPE_NAMES "float32, int32, int64, float16, float64 and none"
#define SML_MPI_TYPES_BYTES 64u
/* The bits of a list of types, with commas; false if a name in it is none. And the list of the bits, written into
 * SML_MPI_TYPES_BYTES. */
bool sml_mpi_types_of(const char *list, uint32_t *types_out);
void sml_mpi_types_list(uint32_t types, char *list_out);

struct sml_mpi_group;

/* Sends nothing. name: the communicator's name, rank, size: this rank in it; for messages, which read the name
 * when they are written. allgather: blocking, collective over the communicator, apart from the user's messages.
 * progress: lets MPI's outstanding messages go on. NULL: no memory. */
struct sml_mpi_group *sml_mpi_group_create(const char *name, uint32_t rank, uint32_t size,
                                           const struct sml_mpi_settings *settings, sml_allgather_fn allgather,
                                           int (*progress)(void *user), void *user);
/* Not collective; ends what is outstanding. */
void sml_mpi_group_destroy(struct sml_mpi_group *g);

enum sml_mpi_way {
  SML_MPI_TAKEN,  /* through SwitchML */
  SML_MPI_PASSED, /* MPI shall do it; so on every rank */
  SML_MPI_FAILED  /* an error, on every rank; stderr says why */
};
/* Within a blocking collective call of the communicator, of any kind, before what it does: tells settings and joins the
 * job if a sum so far, or this one, wants that. Most often returns at once. */
void sml_mpi_group_meet(struct sml_mpi_group *g);
/* Which way this sum goes. In MPI's order. Only a call that blocks may say so; what does not never waits here. */
enum sml_mpi_way sml_mpi_group_way(struct sml_mpi_group *g, sml_type type, size_t count, bool is_blocking);

enum sml_mpi_start {
  SML_MPI_STARTED,
  SML_MPI_NO_ROOM, /* as many are outstanding as may be; once one has ended, try again, in the same order */
  SML_MPI_BAD      /* an error; stderr says why */
};
/* What was TAKEN: submits it. Never blocks. */
enum sml_mpi_start sml_mpi_group_start(struct sml_mpi_group *g, const void *in, void *out, size_t count, sml_type type,
                                       sml_operation **op_out);
/* Whether it has ended; then *is_good_out says how, and it is released. Never blocks. */
bool sml_mpi_group_test(struct sml_mpi_group *g, sml_operation *op, bool *is_good_out);
/* What was TAKEN by a call that blocks: starts it once there is room, and waits for it. It lets MPI go on meanwhile: a
 * rank that is late may wait for a message of this one. False: an error; stderr says why. */
bool sml_mpi_group_sum(struct sml_mpi_group *g, const void *in, void *out, size_t count, sml_type type);
