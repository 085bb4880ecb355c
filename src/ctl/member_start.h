/* SPDX-License-Identifier: Apache-2.0
 * What a rank makes of its aggregators' STARTs (docs/PROTOCOL.md section 8). Pure. */
#ifndef SML_CTL_MEMBER_START_H
#define SML_CTL_MEMBER_START_H

#include "ctl/message.h"

/* All shards of a job have started: puts their starts together. Epoch, slots and slot bases are those of the first one.
 * NULL, or why they can't be put together. */
const char *sml_member_combine_starts(const struct sml_ctl_start *const starts[], uint32_t num_shards,
                                      struct sml_ctl_start *start_out);

#endif
