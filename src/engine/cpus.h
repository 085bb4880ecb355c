/* SPDX-License-Identifier: Apache-2.0
 * Which processors engine threads run on. Thread l of a process gets the l-th of the list, so that lane l of all
 * processes of a host shares one: what a lane sends is then received out of the same caches. */
#ifndef SML_ENGINE_CPUS_H
#define SML_ENGINE_CPUS_H

#include "base/base.h"

#define SML_MAX_CPUS 1024u /* of the system's plain cpu_set_t */

struct sml_cpus {
  uint64_t words[SML_MAX_CPUS / 64]; /* none: threads run anywhere */
};

/* "0-3,8" (SWITCHML_CPUS). False: no such list; *cpus_out is then as it was. */
bool sml_cpus_parse(const char *text, struct sml_cpus *cpus_out);
/* The processor of thread `index`, in the order of their numbers and round again; SML_MAX_CPUS: any. */
uint32_t sml_cpus_of_thread(const struct sml_cpus *cpus, uint32_t index);

#endif
