/* SPDX-License-Identifier: Apache-2.0
 * All ranks of the job are on one host and add up in memory that they share (host/host_group.h). The job's lanes stay
 * idle. */
#ifndef SML_REDUCER_MEMORY_H
#define SML_REDUCER_MEMORY_H

#include "reducer/driver.h"

/* As sml_driver_open(). */
struct sml_reducer *sml_memory_open(const struct sml_driver_options *options);

#endif
