/* SPDX-License-Identifier: Apache-2.0
 * All ranks of the job are on one host and add up in memory that they share (shm/shm_group.h). The job's lanes stay
 * idle. */
#pragma once

#include "method/driver.h"

/* As sml_driver_open(). */
struct sml_method *sml_memory_open(const struct sml_driver_options *options);
