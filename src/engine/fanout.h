/* SPDX-License-Identifier: Apache-2.0
 * To whom an aggregator sends completed results when a job uses a multicast group: one frame to the group, and one to
 * each contributor that says (by its PROBEs) that it does not hear the group any more. */
#ifndef SML_ENGINE_FANOUT_H
#define SML_ENGINE_FANOUT_H

#include "netio/netio.h"

struct sml_fanout {
  uint32_t num_contributors, num_targets;
  bool is_over;             /* more than half are deaf: results go to each by itself */
  struct sml_addr *targets; /* [1 + num_contributors]: the group, then who is deaf; num_targets of them */
  uint64_t *deaf;           /* bitmap of those */
};

/* Any thread; NULL: out of memory. */
struct sml_fanout *sml_fanout_create(const struct sml_addr *group, uint32_t num_contributors);
void sml_fanout_destroy(struct sml_fanout *fanout); /* NULL: nothing */
/* The contributor, at its address, is a target of its own from now on. False: it was. */
bool sml_fanout_add_deaf(struct sml_fanout *fanout, uint32_t contributor, const struct sml_addr *addr);

#endif
