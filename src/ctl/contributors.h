/* SPDX-License-Identifier: Apache-2.0
 * Contributors: who sends in the data plane. A rank by itself, or the ranks of one host, which sum among themselves
 * and let the lowest of them send for all (docs/PROTOCOL.md rules R116 to R122). They are numbered 0, 1 .. in the
 * order of their lowest ranks, and that number stands where data packets, seen bitmaps and PENDING have a rank. Pure.
 *
 * START has the table; these read it. world_size and ranks are those of the job the START is for. */
#pragma once

#include "ctl/message.h"

uint32_t sml_contributors_count(const struct sml_ctl_start *start, uint32_t world_size);
/* The contributor that the rank is, or is part of. */
uint32_t sml_contributor_of(const struct sml_ctl_start *start, uint32_t rank);
/* The lowest rank of a contributor: the one that sends. contributor is below the count. */
uint32_t sml_contributor_lead(const struct sml_ctl_start *start, uint32_t contributor);
/* Its ranks in ascending order, at most max_ranks of them; returns how many it has. */
uint32_t sml_contributor_ranks(const struct sml_ctl_start *start, uint32_t contributor, uint16_t *ranks_out,
                               uint32_t max_ranks);
/* "rank 2", or "ranks 4-7 on the host of rank 4", into text; returns its length, below room_bytes. */
size_t sml_contributor_describe(const struct sml_ctl_start *start, uint32_t contributor, char *text, size_t room_bytes);
/* The ranks of all contributors in a list, for an error: of each all if there is room for all of all, else the one
 * that leads. Contributors that do not exist are left out. Returns how many; at most SML_CTL_MAX_RANKS. */
uint32_t sml_contributors_name(const struct sml_ctl_start *start, uint32_t world_size, const uint16_t *contributors,
                               uint32_t num_contributors, uint16_t ranks_out[SML_CTL_MAX_RANKS]);
