/* SPDX-License-Identifier: Apache-2.0
 * An all-gather for programs that have none: SWITCHML_RENDEZVOUS=host:port, where rank 0 listens while a job is
 * created (meeting.h) and the others connect, again and again until they are taken. They meet within the job's join
 * timeout; a later round has as long from there, and 10 s at least. */
#pragma once

#include "base/fork.h"
#include "meet/job_settings.h"
#include "meet/meeting.h"
#include "process/status.h"

struct sml_rendezvous {
  struct sml_fork_watch watch;             /* first */
  const char *address;                     /* NULL: none is configured */
  const struct sml_job_settings *settings; /* rank, world size, name and key */
  uint64_t deadline_ns;
  uint32_t round;
  struct sml_meeting *meeting; /* rank 0's */
  int fd;                      /* the others': to rank 0; -1: not met yet */
  struct sml_key key;          /* of the connection */
  char why[160];               /* the last try came to nothing */
  char news[160];              /* what rank 0 said of whom it waits for; "": it has never taken this rank */
};

/* Reads the environment; opens nothing, and is to be closed. Only ranks of one job, by its name, meet. settings: stays
 * until the end. */
void sml_rendezvous_init(struct sml_rendezvous *rendezvous, const struct sml_job_settings *settings);
/* An sml_allgather_fn; user: the rendezvous, opened by the first call. What it returns is an sml_status. */
int sml_rendezvous_gather(void *rendezvous, const void *in, void *out, size_t num_bytes);
void sml_rendezvous_close(struct sml_rendezvous *rendezvous);
