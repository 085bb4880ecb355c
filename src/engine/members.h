/* SPDX-License-Identifier: Apache-2.0
 * The ranks of a job at its aggregator's engine. Memory is for those that have come, not for as many as a JOIN says
 * there will be: while the job fills up they stand in a list that grows, sorted by rank; once all are in, the list is
 * the table in which each rank has the place of its number. Then contributors are told apart (`seat`). */
#ifndef SML_ENGINE_MEMBERS_H
#define SML_ENGINE_MEMBERS_H

#include "engine/aggregator_engine.h"

struct sml_member {
  struct sml_addr addr; /* where its HELLO came from; the only source its packets are taken from */
  uint64_t nonce;
  uint16_t rank;
  uint16_t contributor; /* that it is, or belongs to; seated */
  bool has_nonce, is_registered, is_departed;
  struct sml_traffic traffic;
  _Atomic uint64_t num_contributions; /* one writer; relaxed: the control thread only looks whether it grows */
  uint64_t mac; /* beside a switch: as it wrote them into the HELLO */
  uint16_t port;
  uint16_t mark; /* of a lead: 1 + index in the engine's marks; 0: none in this pass */
};

struct sml_members {
  struct sml_member *all; /* [num], room for `room` */
  uint16_t *leads;        /* [num_contributors]: the lowest rank of each, which sends for all of them */
  struct sml_addr *peers; /* [num_contributors]: the leads' addresses again, as a burst wants them */
  uint32_t world_size, num, room;
  uint32_t num_contributors; /* 0: not seated */
};

/* There is room for so many times the ranks that have come, at most (and for 4). */
#define SML_MEMBERS_SLACK 4u
#define SML_MEMBER_BYTES (sizeof(struct sml_member) + sizeof(uint16_t) + sizeof(struct sml_addr))

/* The rank has come, or comes again with another nonce. False: no memory. */
bool sml_members_expect(struct sml_members *members, uint32_t rank, uint64_t nonce);
/* It has gone before the start, and its place with it. */
void sml_members_forget(struct sml_members *members, uint32_t rank);
/* Below the world size; who has not come has no nonce and no address. */
struct sml_member *sml_members_find(const struct sml_members *members, uint32_t rank);
/* All are in: who contributes with whom; contributors: of each rank, NULL: each for itself. */
void sml_members_seat(struct sml_members *members, const uint16_t *contributors);
/* It has gone after the start; which contributor it is, or belongs to. */
uint16_t sml_members_depart(struct sml_members *members, uint32_t rank);
/* The departed rank for whose sake nobody waits for the contributor any more. */
uint32_t sml_members_find_departed(const struct sml_members *members, uint32_t contributor);
void sml_members_free(struct sml_members *members);

#endif
