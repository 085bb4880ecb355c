/* SPDX-License-Identifier: Apache-2.0
 * Rank 0's side of a rendezvous: all connections are handled side by side, in a table of fixed size. A connection
 * becomes a rank when its first record has come, with a MAC. Until then it has 2 s, and makes room for newer ones. */
#pragma once

#include "base/siphash.h"
#include "netio/netio.h"
#include "switchml/switchml.h"

struct sml_meeting_options {
  struct sml_addr addr; /* its port is listened at, on all addresses */
  const char *address;  /* as it was configured, for sentences */
  bool is_keyed;
  struct sml_key key; /* zeros: the job has none */
  uint32_t world_size;
  uint64_t job_hash, deadline_ns;
};

struct sml_meeting;

/* Waits, until the deadline, for the port and for an earlier meeting of this job. */
sml_status sml_meeting_open(const struct sml_meeting_options *options, struct sml_meeting **meeting_out);
/* A round of the all-gather, until deadline_ns; the first one waits for the ranks to come. SML_ERR_TIMEOUT and
 * SML_ERR_RANK_LOST have a detail that names ranks. */
sml_status sml_meeting_gather(struct sml_meeting *meeting, const void *mine, uint8_t *all, uint32_t num_bytes,
                              uint64_t deadline_ns);
void sml_meeting_close(struct sml_meeting *meeting); /* NULL: nothing */
