/* SPDX-License-Identifier: Apache-2.0
 * For tests: an aggregator and n ranks in this process, each with a context of its own and a thread to
 * run a test's body on. Ranks note what went wrong; the test's thread asserts on it afterwards. */
#pragma once

#include <pthread.h>
#include <stdio.h>

#include "aggd/aggd.h"
#include "lib/job.h"

#define MAX_RANKS 8u
#define MAX_AGGDS 64u

struct world;
struct rank {
  struct world *world;
  uint32_t rank;
  sml_context *context;
  sml_job *job;
  sml_status status; /* of the join */
  char failure[512]; /* first failed check; "" while all is well */
  pthread_t thread;
  void (*body)(struct rank *rank);
};

/* A lease for worlds that nobody leaves: a busy machine shall not lose a rank. */
#define PATIENT_LEASE_NS (20 * SML_NS_PER_S)

struct world {
  uint32_t num_ranks;
  struct sml_aggd_options aggd_options; /* set before world_start(), zero for defaults */
  sml_context_options context_options;
  sml_job_options job_options;
  const char *host;  /* where the aggregator listens; NULL: 127.0.0.1:0 */
  const char *hosts; /* a digit for each rank, its host, as if they were several; NULL: all on this one */
  uint32_t unwilling; /* bit r: rank r does not share memory */
  uint32_t world_size; /* 0: num_ranks; more, if others than these threads join */
  uint32_t num_aggds; /* that share the job; set before world_start(), 0 is 1 */
  bool is_embedded;     /* no aggregator is configured: ranks embed it; set before world_join(), which then gathers */
  struct sml_aggd *aggd, *other_aggds[MAX_AGGDS - 1];
  char address[80]; /* a list, if there are several */
  char many_addresses[24 * MAX_AGGDS]; /* the list, where it is longer */
  _Atomic uint32_t num_waiting; /* ranks that have noted it */
  pthread_barrier_t gathering;
  const void *gathered[MAX_RANKS];
  struct rank ranks[MAX_RANKS];
};

/* In a body: notes the failure, with an optional printf text, and leaves the body. */
#define CHECK(r, ...) CHECK_WITH(r, __VA_ARGS__, " ")
#define CHECK_WITH(r, claim, ...)                     \
  do {                                                \
    if (!(claim)) {                                   \
      note_failure(r, __LINE__, #claim, __VA_ARGS__); \
      return;                                         \
    }                                                 \
  } while (0)
void note_failure(struct rank *r, int line, const char *claim, const char *format, ...);

void world_init(struct world *w, uint32_t num_ranks);
void world_start_aggd(struct world *w);
/* An all-gather of the world's ranks; user: the rank. */
int world_gather(void *user, const void *in, void *out, size_t num_bytes);
/* Joins all ranks and asserts that it worked. */
void world_join(struct world *w);
void world_start(struct world *w); /* both */
/* Runs the body on every rank at once, and asserts that no check failed. */
void world_run(struct world *w, void (*body)(struct rank *rank));
/* Destroys jobs and contexts of all ranks at once; then the aggregator. */
void world_stop(struct world *w);

/* This rank has called an operation and is about to wait; until all others are, and a while longer. */
void note_waiting(struct rank *r);
void await_waiting(struct rank *r);

sml_stats stats_of(const struct rank *r);
bool is_named(const sml_error *error, uint32_t rank);
/* The job has failed, or does within 10 s, with this status; says who was named. No call is taken any more. */
void check_failed(struct rank *r, sml_status expected, sml_error *error_out);

/* One all-reduce, submitted, waited for (at most 30 s) and released. */
sml_status allreduce(struct rank *r, const void *in, void *out, size_t count, sml_type type,
                     sml_reduction reduction);
/* Values whose sums are exact: rank and element decide. */
float float_value(uint32_t rank, size_t i);
int32_t int_value(uint32_t rank, size_t i);
