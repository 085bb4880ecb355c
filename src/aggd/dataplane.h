/* SPDX-License-Identifier: Apache-2.0
 * A switch that sums in place of the lanes' engines (docs/PROTOCOL.md "Switch format"). HELLOs still come to the
 * engines, and so do the packets that no entry of the switch fits. */
#ifndef SML_AGGD_DATAPLANE_H
#define SML_AGGD_DATAPLANE_H

#include "engine/aggregator_engine.h"

/* A started job as the switch must know it. */
struct sml_dataplane_job {
  uint16_t number;
  uint32_t epoch;
  uint32_t num_contributors; /* <= SML_SWITCH_MAX_CONTRIBUTORS */
  uint32_t num_slots, slot_base, first_chunk;
  bool is_checked;
  struct sml_place places[SML_SWITCH_MAX_CONTRIBUTORS]; /* of those that send */
};

/* Functions are called on the control thread, one at a time; each ends within seconds, whatever the switch does. */
struct sml_dataplane {
  void *user;
  /* Before any job: the data address of lane 0. False: error_out has a sentence. */
  bool (*open)(void *user, const struct sml_addr *data_addr, char *error_out, size_t error_bytes);
  /* Also for a new epoch of a job that it has. False: error_out has a sentence, and the job is to be closed. */
  bool (*start_job)(void *user, const struct sml_dataplane_job *job, char *error_out, size_t error_bytes);
  void (*depart)(void *user, uint16_t job, uint32_t contributor); /* its packets count no more */
  /* A slot (relative) of the job that waits for the contributor, or UINT32_MAX. */
  uint32_t (*find_blocked)(void *user, uint16_t job, uint32_t contributor);
  void (*close_job)(void *user, uint16_t job); /* if it has it */
  /* What the switch dropped since it was opened, by reason [SML_NUM_DROPS]. One that does not answer adds nothing. */
  void (*add_drops)(void *user, uint64_t *num_drops);
};

#endif
