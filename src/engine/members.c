/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/members.h"

#include <stdlib.h>

#define FIRST_ROOM 4u

/* The place of the rank, or else of the first higher one. */
static uint32_t place_of(const struct sml_members *m, uint32_t rank) {
  if (m->num == m->world_size) return rank;
  uint32_t low = 0, high = m->num;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (m->all[middle].rank < rank) low = middle + 1;
    else high = middle;
  }
  return low;
}

static bool is_at(const struct sml_members *m, uint32_t place, uint32_t rank) {
  return place < m->num && m->all[place].rank == rank;
}

/* A table that cannot be made smaller stays as it is. */
static bool resize(struct sml_members *m, uint32_t room) {
  struct sml_member *all = realloc(m->all, room * sizeof *all);
  if (all != NULL) m->all = all;
  uint16_t *leads = realloc(m->leads, room * sizeof *leads);
  if (leads != NULL) m->leads = leads;
  struct sml_addr *peers = realloc(m->peers, room * sizeof *peers);
  if (peers != NULL) m->peers = peers;
  if (all == NULL || leads == NULL || peers == NULL) return false;
  m->room = room;
  return true;
}

bool sml_members_expect(struct sml_members *m, uint32_t rank, uint64_t nonce) {
  SML_ASSERT(rank < m->world_size);
  const uint32_t place = place_of(m, rank);
  if (!is_at(m, place, rank)) {
    const uint32_t room = sml_min_u32(sml_max_u32(2 * m->room, FIRST_ROOM), m->world_size);
    if (m->num == m->room && !resize(m, room)) return false;
    memmove(&m->all[place + 1], &m->all[place], (m->num - place) * sizeof *m->all);
    m->num++;
    m->all[place].contributor = (uint16_t)rank;
  }
  m->all[place] = (struct sml_member){
      .rank = (uint16_t)rank, .nonce = nonce, .has_nonce = true, .contributor = m->all[place].contributor};
  return true;
}

void sml_members_forget(struct sml_members *m, uint32_t rank) {
  const uint32_t place = place_of(m, rank);
  SML_ASSERT(m->num_contributors == 0);
  if (!is_at(m, place, rank)) return;
  m->num--;
  memmove(&m->all[place], &m->all[place + 1], (m->num - place) * sizeof *m->all);
  if (m->room > FIRST_ROOM && m->num <= m->room / 4) (void)resize(m, m->room / 2);
}

struct sml_member *sml_members_find(const struct sml_members *m, uint32_t rank) {
  static struct sml_member nobody; /* never written: it has no nonce and no address */
  const uint32_t place = place_of(m, rank);
  return is_at(m, place, rank) ? &m->all[place] : &nobody;
}

void sml_members_seat(struct sml_members *m, const uint16_t *contributors) {
  /* The registry starts a job when all ranks are in. Tests may start without some, which then never come. */
  for (uint32_t r = 0; r < m->world_size && m->num < m->world_size; r++) {
    if (is_at(m, place_of(m, r), r)) continue;
    SML_ASSERT(sml_members_expect(m, r, 0));
    sml_members_find(m, r)->has_nonce = false;
  }
  m->num_contributors = 0;
  for (uint32_t r = 0; r < m->world_size; r++) {
    struct sml_member *member = &m->all[r];
    member->contributor = contributors != NULL ? contributors[r] : (uint16_t)r;
    SML_ASSERT(member->contributor <= m->num_contributors);
    if (member->contributor < m->num_contributors) continue;
    m->leads[m->num_contributors++] = (uint16_t)r;
  }
  for (uint32_t c = 0; c < m->num_contributors; c++) sml_members_place(m, c, &m->all[m->leads[c]].addr);
}

void sml_members_place(struct sml_members *m, uint32_t contributor, const struct sml_addr *addr) {
  m->peers[contributor] = *addr;
}

uint16_t sml_members_depart(struct sml_members *m, uint32_t rank) {
  const uint32_t place = place_of(m, rank);
  SML_ASSERT(is_at(m, place, rank));
  m->all[place].is_departed = true;
  return m->all[place].contributor;
}

uint32_t sml_members_find_departed(const struct sml_members *m, uint32_t contributor) {
  uint32_t r = m->leads[contributor];
  while (r < m->world_size && (m->all[r].contributor != contributor || !m->all[r].is_departed)) r++;
  return r < m->world_size ? r : m->leads[contributor];
}

void sml_members_free(struct sml_members *m) {
  free(m->all);
  free(m->leads);
  free(m->peers);
  *m = (struct sml_members){.num = 0};
}
