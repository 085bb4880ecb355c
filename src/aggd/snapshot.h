/* SPDX-License-Identifier: Apache-2.0
 * What the service does at one moment, as plain structs: for whoever shows it (docs/operating.md). Taken by
 * the control thread without stopping an engine: each is asked for one job at a time. Its size is bounded by
 * the connections and jobs that the service may have. Shared by reference, never changed. */
#pragma once

#include "aggd/dataplane.h"
#include "ctl/registry.h"

#define SML_MAX_ENDED 16u

struct sml_rank_snapshot {
  struct sml_member_look member;
  struct sml_rank_look look; /* zero but for ranks that lead */
};
struct sml_job_snapshot {
  uint16_t number;
  struct sml_registry_look is;
  struct sml_job_look does;       /* of all lanes; its ranks are not set */
  uint32_t first_rank, num_ranks; /* in the snapshot's ranks: those that are there, and the first to depart */
};
struct sml_port_snapshot { /* one lane */
  uint16_t port;
  uint32_t slots_used;
  uint64_t num_drops[SML_NUM_DROPS];
  struct sml_netio_stats io;
};
struct sml_switch_snapshot { /* that sums instead of the lanes' engines */
  bool is_there;
  uint64_t read_ns; /* when it last told all of its counters; 0: never */
  uint64_t counts[SML_NUM_AT_SWITCH];
};
struct sml_tenant_snapshot {
  char name[SML_KEY_NAME_BYTES];
  struct sml_quota quota; /* 0: no limit */
  struct sml_tenant_use use;
};
/* A job that is no more, the latest first. */
struct sml_ended_snapshot {
  uint64_t at_ns;
  bool is_failure;
  uint32_t world_size;
  char name[SML_JOB_NAME_BYTES], key_name[SML_KEY_NAME_BYTES], text[SML_DETAIL_BYTES];
};
/* How often something happened since the start. */
enum sml_happening {
  SML_HAPPENED_RANK_JOINED,
  SML_HAPPENED_RANK_LEFT,
  SML_HAPPENED_RANK_LOST,
  SML_HAPPENED_RANK_LATE,
  SML_HAPPENED_JOB_STARTED,
  SML_HAPPENED_JOB_ENDED,
  SML_HAPPENED_JOB_ABORTED,
  SML_HAPPENED_JOB_REFUSED,
  SML_HAPPENED_JOIN_REFUSED,
  SML_NUM_HAPPENINGS
};

struct sml_snapshot {
  _Atomic uint32_t num_holders;
  uint64_t taken_ns, started_ns; /* sml_clock_ns() */
  double started_s;              /* since 1970, by the clock of then */
  char address[SML_PEER_BYTES];  /* of the control port */
  bool is_keyed;
  uint32_t max_jobs, max_connections, pool_slots;
  struct sml_registry_counts counts;
  uint64_t num_happened[SML_NUM_HAPPENINGS];
  uint32_t num_lanes, num_jobs, num_ranks, num_ended, num_tenants;
  struct sml_port_snapshot lanes[SML_MAX_LANES];
  struct sml_switch_snapshot at_switch;
  struct sml_ended_snapshot ended[SML_MAX_ENDED];
  struct sml_job_snapshot *jobs;
  struct sml_rank_snapshot *ranks;
  struct sml_tenant_snapshot *tenants;
};
void sml_snapshot_release(struct sml_snapshot *snapshot); /* NULL: nothing */

/* What has happened, counted and remembered by the control thread. */
struct sml_history {
  uint64_t num_happened[SML_NUM_HAPPENINGS];
  uint32_t num_ended; /* ever; the ring holds the last ones */
  struct sml_ended_snapshot ended[SML_MAX_ENDED];
};
/* An effect NOTE of the registry. */
void sml_history_note(struct sml_history *history, const struct sml_effect *note, uint64_t now_ns);

struct sml_lanes;
/* The control thread's. NULL: out of memory. What is not of registry and lanes is set by the caller. */
struct sml_snapshot *sml_snapshot_take(const struct sml_registry *registry, struct sml_lanes *lanes,
                                       const struct sml_history *history, uint64_t now_ns);
/* The answer to a member's ASK. */
struct sml_ctl_report;
bool sml_snapshot_report(const struct sml_registry *registry, struct sml_lanes *lanes, uint16_t job, uint64_t now_ns,
                         struct sml_ctl_report *report_out);
