/* SPDX-License-Identifier: Apache-2.0
 * Workers that repeat as NSDI'21 does: slots are static (the next chunk is num_slots further, whatever is granted), and
 * data is sent again after a fixed time, unasked. For all ranks of a job, or none. */
#pragma once

#include <stdint.h>

/* 0: as the library does. At first what SWITCHML_PAPER_TIMEOUT_US says; set before workers are made. */
extern uint64_t sml_paper_timeout_ns;
