/* SPDX-License-Identifier: Apache-2.0
 * The receivers of completed results in a job with a multicast group: the group, and each contributor whose PROBEs say
 * that it does not hear the group. */
#pragma once

#include "netio/netio.h"

struct sml_fanout {
  uint32_t num_contributors, num_targets;
  bool is_over;             /* more than half are deaf: each contributor gets results by unicast */
  struct sml_addr *targets; /* [1 + num_contributors]: the group, then the deaf ones; num_targets are in use */
  uint64_t *deaf;           /* bitmap of the deaf ones */
};

/* Any thread; NULL: out of memory. */
struct sml_fanout *sml_fanout_create(const struct sml_addr *group, uint32_t num_contributors);
void sml_fanout_destroy(struct sml_fanout *fanout); /* NULL: nothing */
/* From now on the contributor is a target of its own, at its address. False: it was one already. */
bool sml_fanout_add_deaf(struct sml_fanout *fanout, uint32_t contributor, const struct sml_addr *addr);
