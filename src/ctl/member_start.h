/* SPDX-License-Identifier: Apache-2.0
 * What a rank makes of its aggregators' STARTs (docs/PROTOCOL.md section 8). Pure. */
#pragma once

#include "ctl/message.h"

/* What a rank has offered and was given until its job starts. */
struct sml_member_offer {
  const struct sml_ctl_join *join;
  uint32_t num_lanes;                      /* WELCOME's */
  uint32_t datagram_bytes, overhead_bytes; /* that the probed path takes; that chunks have around them */
  bool hears_group, is_keyed;
};
/* START is about the job that was joined: a START of another one, or of an aggregator that means no good, is not
 * followed. */
bool sml_member_has_agreed(const struct sml_member_offer *offer, const struct sml_ctl_start *start);

/* The rank sends, for itself or for others of its host. */
bool sml_member_is_lead(const struct sml_ctl_start *start, uint32_t rank);
/* A new epoch's START has the shape of the one before: what decides how operations are cut. */
bool sml_member_is_same_shape(const struct sml_ctl_start *a, const struct sml_ctl_start *b);

/* All shards of a job have started: puts their starts together. Epoch, slots and slot bases are those of the first one.
 * NULL, or why they can't be put together. */
const char *sml_member_combine_starts(const struct sml_ctl_start *const starts[], uint32_t num_shards,
                                      struct sml_ctl_start *start_out);
