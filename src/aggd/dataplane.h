/* SPDX-License-Identifier: Apache-2.0
 * A switch that sums instead of the lanes' engines (docs/PROTOCOL.md "Switch format"). HELLOs still come to the
 * engines, and so do the packets that no entry of the switch fits. */
#pragma once

#include "engine/aggregator_engine.h"

#define SML_SWITCH_TURN_SHIFT 30u /* A cell's word: valid, bit 1 of its phase; below, who has contributed. */

/* A started job as the switch must know it. */
struct sml_dataplane_job {
  uint16_t number;
  uint32_t epoch;
  uint32_t num_contributors; /* <= SML_SWITCH_MAX_CONTRIBUTORS */
  uint32_t num_slots, slot_base, first_chunk;
  bool is_checked;
  struct sml_place places[SML_SWITCH_MAX_CONTRIBUTORS]; /* of those that send */
};

/* What a switch counts its packets as. Below: the reasons of core/drop.h. */
enum sml_at_switch {
  SML_AT_SWITCH_FIRST = 32, /* updates: the first of a cell */
  SML_AT_SWITCH_ADDED,
  SML_AT_SWITCH_COMPLETED,
  SML_AT_SWITCH_REPEATED, /* answered by the stored result */
  SML_AT_SWITCH_PENDING,  /* answered by who is missing */
  SML_AT_SWITCH_REPORTED, /* two ranks do not agree */
  SML_AT_SWITCH_HELLO,
  SML_AT_SWITCH_PUNTED,    /* for this daemon */
  SML_AT_SWITCH_FORWARDED, /* nothing of ours */
  SML_NUM_AT_SWITCH
};
_Static_assert(SML_NUM_DROPS <= 32, "reasons for drops have numbers of their own");

/* Functions are called on the control thread, one at a time; each ends within seconds, whatever the switch does. */
struct sml_dataplane {
  void *user;
  /* Before any job: the data address of lane 0, and the voucher, which the switch writes into what it has looked at on
   * the way to this daemon, and tells nobody else. False: error_out has a sentence. */
  bool (*open)(void *user, const struct sml_addr *data_addr, uint32_t voucher, char *error_out, size_t error_bytes);
  /* Also for a new epoch of a job that it has. False: error_out has a sentence, and the job is to be closed. */
  bool (*start_job)(void *user, const struct sml_dataplane_job *job, char *error_out, size_t error_bytes);
  /* The contributors are at these places now, [num_contributors]; the others' packets are not touched by that. False:
   * as above. */
  bool (*follow)(void *user, uint16_t job, const struct sml_place *places, char *error_out, size_t error_bytes);
  void (*depart)(void *user, uint16_t job, uint32_t contributor); /* its packets count no more */
  /* A slot (relative) of the job that waits for one of the contributors (bits), and for which, or UINT32_MAX. */
  uint32_t (*find_blocked)(void *user, uint16_t job, uint32_t contributors, uint32_t *contributor_out);
  void (*close_job)(void *user, uint16_t job); /* if it has it */
  /* How many packets the switch has counted as what, [SML_NUM_AT_SWITCH], in a moment. False: not all came in time, and
   * the rest is as it was. */
  bool (*read_counters)(void *user, uint64_t *counts);
  /* The words of the job's cells, [2 * num_slots], in a moment. False: it has none, or they did not come in time. */
  bool (*read_words)(void *user, uint16_t job, uint32_t *words_out);
  /* Has the switch gone since it was last asked? Then why_out has a sentence. At once. NULL: nobody can tell. */
  bool (*is_lost)(void *user, char *why_out, size_t why_bytes);
  /* The switch tells that a host, which it does not know there, was heard at that port. why_out: "", or a sentence for
   * people. NULL: it never tells. */
  void (*hear)(void *user, uint64_t mac, uint16_t port, char *why_out, size_t why_bytes);
};
