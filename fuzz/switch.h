/* SPDX-License-Identifier: Apache-2.0
 * What the targets of drivers of switches share: switchmld's calls, whatever the switch says. */
#pragma once

#include "aggd/dataplane.h"
#include "fuzz/peer.h"

#define SWITCH_SLOTS 8u /* of the pool */
#define SWITCH_LANES 32u

static inline void check_reason(bool is_done, const char *error, size_t error_bytes) {
  CHECK(is_done || (error[0] != 0 && strnlen(error, error_bytes) < error_bytes), "no reason given");
}

/* A daemon's life with two jobs. */
static inline void drive_switch(struct sml_dataplane *p) {
  const struct sml_addr ours = fuzz_addr(0x0a070001, 48879);
  char error[256] = "";
  uint64_t counts[SML_NUM_AT_SWITCH] = {0};
  uint32_t *words = calloc(2 * SWITCH_SLOTS / 2, sizeof *words); /* exactly as many as a job has */
  CHECK(words != NULL, "no memory");
  struct sml_dataplane_job job = {.epoch = 7, .num_contributors = 3, .num_slots = SWITCH_SLOTS / 2, .is_checked = true};
  for (uint32_t c = 0; c < job.num_contributors; c++)
    job.places[c] = (struct sml_place){fuzz_addr(0x0a070064 + c, 40000), 0x020000000010 + c, (uint16_t)(1 + c)};
  check_reason(p->open(p->user, &ours, 0x5a5b5c5d, error, sizeof error), error, sizeof error);
  for (uint16_t number = 0; number < 2; number++) {
    job.number = number;
    job.slot_base = number * job.num_slots;
    error[0] = 0;
    const bool is_started = p->start_job(p->user, &job, error, sizeof error);
    check_reason(is_started, error, sizeof error);
    (void)p->read_words(p->user, number, words);
    uint32_t contributor;
    const uint32_t slot = p->find_blocked(p->user, number, 6, &contributor);
    CHECK(slot == UINT32_MAX || slot < job.num_slots, "slot %u", slot);
    CHECK(slot == UINT32_MAX || contributor == 1 || contributor == 2, "contributor %u", contributor);
    (void)p->read_counters(p->user, counts);
    p->depart(p->user, number, 2);
  }
  error[0] = 0;
  check_reason(!p->is_lost(p->user, error, sizeof error), error, sizeof error);
  p->close_job(p->user, 0);
  p->close_job(p->user, 1);
  free(words);
}
