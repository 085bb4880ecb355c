/* SPDX-License-Identifier: Apache-2.0
 * Who hears of ranks that have departed. The first loss is told at once. Those that follow within a pause are told
 * together when it is over, and the pause grows with the ranks that are told: one thread serves all jobs, and half of
 * a large job that goes at once, or one rank after the other, must not have it for itself. */
#include <stdio.h>

#include "ctl/registry_internal.h"

#define LEAST_PAUSE_NS (10 * SML_NS_PER_MS)
#define PAUSE_A_MEMBER_NS (50 * SML_NS_PER_US) /* several times what a message costs */

uint64_t sml_registry_tell_deadline(const struct sml_job_entry *job) {
  return job->num_untold > 0 ? job->tell_at_ns : SML_NEVER;
}

static void send_to_all(struct sml_registry *r, const struct sml_job_entry *job, const struct sml_ctl_message *m) {
  for (uint32_t c = job->first_member; c != SML_NO_CONN; c = r->conns[c].next) sml_registry_send(r, c, m);
}

/* The rank that the text is about comes first. A message has room for a part of the largest world. */
static void send_gone(struct sml_registry *r, const struct sml_job_entry *job, uint32_t first) {
  struct sml_ctl_message *m = NULL;
  char more[48] = "";
  const uint32_t num_more = job->num_untold - 1;
  if (num_more > 0) snprintf(more, sizeof more, ", and %u more %s gone", num_more, num_more == 1 ? "is" : "are");
  for (uint32_t i = 0; i < job->world_size; i++) {
    const uint32_t rank = i == 0 ? first : i <= first ? i - 1 : i;
    if (!sml_bit_test(job->untold, rank)) continue;
    if (!m || m->u.rank_gone.num_ranks == SML_CTL_MAX_GONE) {
      if (m) send_to_all(r, job, m);
      m = sml_registry_compose(r, SML_CTL_RANK_GONE);
      m->u.rank_gone.status = SML_ERR_RANK_LOST;
      snprintf(m->u.rank_gone.detail, SML_DETAIL_BYTES, "%.420s%s", job->untold_text, more);
    }
    m->u.rank_gone.ranks[m->u.rank_gone.num_ranks++] = (uint16_t)rank;
  }
  send_to_all(r, job, m);
}

void sml_registry_tell_gone(struct sml_registry *r, struct sml_job_entry *job, uint64_t now_ns) {
  SML_ASSERT(job->num_untold > 0);
  memcpy(r->told, job->untold, sizeof r->told);
  struct sml_effect *effect = sml_registry_emit(r, SML_EFFECT_DEPART);
  effect->job = (uint16_t)(job - r->jobs);
  effect->world_size = job->world_size;
  effect->ranks = r->told;
  send_gone(r, job, job->first_untold);
  memset(job->untold, 0, sizeof job->untold);
  job->num_untold = 0;
  job->tell_at_ns = now_ns + sml_max_u64(LEAST_PAUSE_NS, job->num_members * PAUSE_A_MEMBER_NS);
}

void sml_registry_note_gone(struct sml_registry *r, struct sml_job_entry *job, uint32_t rank, const char *text) {
  if (job->num_untold == 0) {
    job->first_untold = rank;
    memcpy(job->untold_text, text, sizeof job->untold_text);
  }
  sml_bit_set(job->untold, rank);
  job->num_untold++;
  if (r->latest_ns >= job->tell_at_ns) sml_registry_tell_gone(r, job, r->latest_ns);
}
