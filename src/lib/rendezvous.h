/* SPDX-License-Identifier: Apache-2.0
 * An all-gather for programs that have none: SWITCHML_RENDEZVOUS=host:port, where rank 0 listens while a job is
 * created and the others connect. Every wait ends at the job's join timeout. */
#ifndef SML_LIB_RENDEZVOUS_H
#define SML_LIB_RENDEZVOUS_H

#include "lib/status.h"

struct sml_rendezvous {
  const char *address; /* NULL: none is configured */
  uint32_t rank, world_size;
  uint64_t job_hash, deadline_ns;
  bool is_open;
  int *fds; /* rank 0: of each rank, -1 its own; others: one, to rank 0 */
  uint32_t num_fds;
};

/* Reads the environment; opens nothing. job_name: only ranks of one job meet. */
void sml_rendezvous_init(struct sml_rendezvous *rendezvous, const char *job_name, uint32_t rank, uint32_t world_size,
                         uint64_t deadline_ns);
/* An sml_allgather_fn; user: the rendezvous, opened by the first call. When it fails sml_error_detail() says why. */
int sml_rendezvous_gather(void *rendezvous, const void *in, void *out, size_t num_bytes);
void sml_rendezvous_close(struct sml_rendezvous *rendezvous);

#endif
