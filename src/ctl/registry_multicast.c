/* SPDX-License-Identifier: Apache-2.0
 * Results by multicast: offered to each rank that joins, used when all that send have heard their probes, since who
 * does not hear would have to ask for each result. */
#include <stdio.h>

#include "ctl/registry_internal.h"

#define MAX_NAMED_RANKS 4u

static bool has_group(const struct sml_registry *r, uint32_t job) {
  return job < r->options.num_groups;
}

void sml_registry_offer_group(const struct sml_registry *r, uint16_t job, struct sml_ctl_welcome *welcome) {
  if (!has_group(r, job)) return;
  welcome->group[0] = r->options.first_group[0];
  welcome->group[1] = r->options.first_group[1] + job;
  welcome->group_port = r->options.group_port;
}

/* "rank 3 did not get its probes, rank 5 does not take part" of those that send and do not hear; their number. */
static uint32_t list_deaf(const struct sml_registry *r, const struct sml_job_entry *job, char *text,
                          size_t room_bytes) {
  uint64_t deaf[SML_BITMAP_WORDS(SML_CTL_MAX_WORLD_SIZE)] = {0}, absent[SML_ARRAY_LEN(deaf)] = {0};
  uint32_t num_deaf = 0;
  size_t used_bytes = 0;
  for (uint32_t i = job->first_member; i != SML_NO_CONN; i = r->conns[i].next) {
    const struct sml_conn *c = &r->conns[i];
    if (c->is_lead && c->hearing != SML_CTL_HEARS) sml_bit_set(c->hearing == SML_CTL_DEAF ? deaf : absent, c->rank);
  }
  text[0] = 0;
  for (uint32_t rank = 0; rank < job->world_size; rank++) {
    const bool is_deaf = sml_bit_test(deaf, rank);
    if (!is_deaf && !sml_bit_test(absent, rank)) continue;
    if (++num_deaf > MAX_NAMED_RANKS || used_bytes >= room_bytes) continue;
    used_bytes += (size_t)snprintf(text + used_bytes, room_bytes - used_bytes, "%srank %u %s", num_deaf > 1 ? ", " : "",
                                   rank, is_deaf ? "did not get its probes" : "does not take part");
  }
  return num_deaf;
}

bool sml_registry_choose_multicast(struct sml_registry *r, const struct sml_job_entry *job) {
  char text[SML_DETAIL_BYTES / 2];
  if (!has_group(r, (uint32_t)(job - r->jobs)) || sml_registry_is_one_host(r, job)) return false;
  const uint32_t num_deaf = list_deaf(r, job, text, sizeof text);
  if (num_deaf == 0) return true;
  sml_registry_note(r, SML_NOTE_NO_MULTICAST, job, 0,
                    sml_registry_text(r, "results go to each rank by unicast: %s%s", text,
                                      num_deaf > MAX_NAMED_RANKS ? " and others" : ""));
  return false;
}

void sml_registry_on_deaf(struct sml_registry *r, uint16_t job, uint32_t epoch, uint32_t rank) {
  sml_registry_begin_input(r);
  const struct sml_job_entry *entry = sml_registry_find_started(r, job, epoch);
  if (!entry) return;
  sml_registry_note(
      r, SML_NOTE_NO_MULTICAST, entry, rank,
      sml_registry_text(r, "rank %u does not get the results that go to the group: it gets them by unicast", rank));
}
