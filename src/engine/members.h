/* SPDX-License-Identifier: Apache-2.0
 * The ranks of a job at its aggregator's engine. Memory is for ranks that have come, not for as many as a JOIN names.
 * While the job fills up, they are in a list that grows, sorted by rank. Once all are in, the list is a table: each
 * rank is at the place of its number. Then each gets its contributor (`seat`). */
#pragma once

#include "engine/aggregator_engine.h"

struct sml_member {
  struct sml_addr addr; /* where its HELLO came from; its packets from elsewhere are dropped */
  uint64_t nonce;
  uint16_t rank;
  uint16_t contributor; /* once seated: the one that it is, or belongs to */
  bool has_nonce, is_registered, is_departed;
  bool is_unproved;        /* addr is not at `host`, where the rank is known to be */
  uint64_t host;           /* 0: not known */
  uint64_t answered_bytes; /* is_unproved: of repeats and PENDINGs that it got */
  struct sml_traffic traffic;
  _Atomic uint64_t num_contributions; /* one writer; relaxed: the control thread only looks whether it grows */
  uint64_t mac;                       /* beside a switch: mac and port, as the switch wrote them into the HELLO */
  uint16_t port;
  uint16_t mark; /* of a lead: 1 + index in the engine's marks; 0: none in this pass */
};

struct sml_members {
  struct sml_member *all; /* [num], room for `room` */
  uint16_t *leads;        /* [num_contributors]: the lowest rank of each, which sends for all of them */
  struct sml_addr *peers; /* [num_contributors]: the leads' addresses, as a burst wants them */
  uint32_t world_size, num, room;
  uint32_t num_contributors; /* 0: not seated */
};

/* The list has room for at most so many times the ranks that have come (and for 4). */
#define SML_MEMBERS_SLACK 4u
#define SML_MEMBER_BYTES (sizeof(struct sml_member) + sizeof(uint16_t) + sizeof(struct sml_addr))

/* The rank has come, or has come again with another nonce. False: no memory. */
bool sml_members_expect(struct sml_members *members, uint32_t rank, uint64_t nonce);
/* The rank has gone before the start: removes it from the list. */
void sml_members_forget(struct sml_members *members, uint32_t rank);
/* rank: below the world size. One that has not come has no nonce and no address. */
struct sml_member *sml_members_find(const struct sml_members *members, uint32_t rank);
/* All are in: says who contributes with whom. contributors: that of each rank; NULL: each contributes by itself. */
void sml_members_seat(struct sml_members *members, const uint16_t *contributors);
/* The rank has gone after the start. Returns the contributor that it is, or belongs to. */
uint16_t sml_members_depart(struct sml_members *members, uint32_t rank);
/* The contributor's packets come from there, once they are seated. */
void sml_members_place(struct sml_members *members, uint32_t contributor, const struct sml_addr *addr);
/* The departed rank because of which the contributor is gone. */
uint32_t sml_members_find_departed(const struct sml_members *members, uint32_t contributor);
void sml_members_free(struct sml_members *members);
