/* SPDX-License-Identifier: Apache-2.0
 * The aggregators of a job (docs/adr/0019-shards.md). A job has one, or several that share its lanes: the job is
 * then one of all their lanes together, and which of them sums a chunk follows from the rule that deals chunks to
 * lanes. Each has its own control connection, epoch and slots; what it says of the job is put together in
 * ctl/member_start.h. */
#pragma once

#include "ctl/message.h"
#include "netio/netio.h"
#include "process/status.h"

#define SML_MAX_PLACES 6u /* addresses at which one aggregator may be reached */
#define SML_NO_PROCESS_RANK UINT32_MAX

/* Where an aggregator is. */
struct sml_shard_place {
  struct sml_addr addrs[SML_MAX_PLACES]; /* the likely ones first */
  uint32_t num_addrs;                    /* of a daemon's: 1 */
  uint32_t process_rank;                 /* the rank whose process it is in; SML_NO_PROCESS_RANK: a daemon's */
  char text[96];                         /* for sentences */
};
struct sml_shard_places {
  uint32_t num_shards;
  struct sml_shard_place shards[SML_MAX_SHARDS];
};

/* "host:port,[v6]:port ...": as SWITCHML_AGGREGATOR has it. Resolves names. */
sml_status sml_shards_parse(const char *text, struct sml_shard_places *places_out);

/* Slots to ask each of so many shards for, if one were asked for num_slots: the windows together are one link's. */
uint32_t sml_shards_num_slots(uint32_t num_slots, uint32_t num_shards);
