/* SPDX-License-Identifier: Apache-2.0
 * The processors on which engine threads run. Thread l of a process gets the l-th of the list. So lane l of all
 * processes of a host shares one, and finds what its peers sent in the same caches. */
#pragma once

#include "base/base.h"

#define SML_MAX_CPUS 1024u /* of the system's plain cpu_set_t */

struct sml_cpus {
  uint64_t words[SML_MAX_CPUS / 64]; /* none: threads run anywhere */
};

/* Reads a list such as "0-3,8" (SWITCHML_CPUS). False: it is none, and *cpus_out is as it was. */
bool sml_cpus_parse(const char *text, struct sml_cpus *cpus_out);
/* The processor of thread `index`: the list in the order of its numbers, again and again; SML_MAX_CPUS: any. */
uint32_t sml_cpus_of_thread(const struct sml_cpus *cpus, uint32_t index);
