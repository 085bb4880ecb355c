/* SPDX-License-Identifier: Apache-2.0
 * A scenario as it runs: the daemon, the ranks' processes and their network, what has happened so far. World
 * memory is the simulator's own, so that a process that is killed in the middle leaves nothing unusable, and a
 * process's heap is only what the product took. */
#pragma once

#include <pthread.h>

#include "aggd/aggd.h"
#include "sim/monitor.h"
#include "sim/reference.h"
#include "sim/scenario.h"
#include "switchml/switchml.h"

#define SIM_DAEMON_IPV4 0x0a000001u
#define SIM_AGGREGATOR "10.0.0.1:48879"
#define SIM_MAX_TROUBLES 160u
#define SIM_ALL_RANKS UINT32_MAX
#define SIM_ALL_JOBS UINT32_MAX
#define SIM_MEETING_BYTES 512u
#define SIM_WORLD_JOBS (SIM_MAX_JOBS + 1u) /* the last one audits the slots at the end */

enum sim_op_state { SIM_OP_NONE, SIM_OP_SUBMITTED, SIM_OP_ENDED };
struct sim_op_record {
  enum sim_op_state state;
  bool is_deviant; /* not what the other ranks do */
  int32_t status;
  uint64_t count, submitted_ns, awaited_ns, ended_ns; /* awaited: when its rank began to wait for it */
};

/* A rank's part in a round. */
struct sim_attempt {
  bool has_entered, has_created, has_left, was_killed, has_missed_meeting;
  uint64_t entered_ns, created_ns, left_ns;
  sml_status failed_status; /* of the job at this rank; SML_OK: none */
  uint64_t failed_ns;
  sml_error error;
  uint32_t chunk_bytes, num_lanes, num_slots;
  struct sim_op_record ops[SIM_MAX_OPS];
};

struct sim_world;
struct sim_job;

struct sim_buffer {
  uint8_t *in, *out; /* as given to the library */
  uint8_t *in_area, *out_area;
  uint64_t failed_hash; /* of the output when a failure was reported */
  bool is_failed;
  uint32_t op;
  sml_operation *handle; /* NULL: free */
};

struct sim_rank {
  struct sim_job *job;
  uint32_t rank;
  struct sim_host *host;
  struct sim_process *process;
  bool is_running, is_paused, is_host_dead, has_exited_early;
  uint32_t round; /* it is in, or will be when it comes back */
  const char *doing;
  struct sim_timer start;
  struct sim_attempt attempts[SIM_MAX_ROUNDS];
  /* the process's own, begun anew by each incarnation */
  sml_context *context;
  sml_job *handle;
  struct sml_prng prng;
  pthread_mutex_t lock;
  pthread_cond_t turned;
  uint32_t turn; /* the operation to be submitted next */
  bool is_stopped;
  uint32_t num_submitters;
  struct sim_buffer buffers[SIM_MAX_SUBMITTERS][SIM_MAX_DEPTH];
};

/* What an all-gather goes through: a place where ranks meet, twice a round. */
struct sim_meeting {
  uint64_t present; /* ranks */
  uint8_t records[SIM_MAX_WORLD_SIZE][SIM_MEETING_BYTES];
};

struct sim_answer {
  bool is_made;
  uint32_t round, op;
  uint32_t *bits;
};

struct sim_job {
  struct sim_world *world;
  const struct sim_job_spec *spec;
  uint32_t idx;
  struct sim_rank *ranks;
  struct sim_meeting meetings[SIM_MAX_ROUNDS][2];
  uint32_t num_answers;
  struct sim_answer answers[SIM_MAX_SUBMITTERS * SIM_MAX_DEPTH + 1];
  uint8_t *memory;
  size_t area_bytes;
};

/* Something that may be the cause of an error, as it happened. */
struct sim_trouble {
  enum sim_kind kind;
  uint32_t job, rank;      /* or SIM_ALL_JOBS, SIM_ALL_RANKS */
  uint64_t from_ns, to_ns; /* SML_NEVER: still on */
};

struct sim_incident_run {
  struct sim_timer begin, end;
  struct sim_world *world;
  const struct sim_incident *incident;
  struct sim_trouble *trouble;
  bool has_begun, is_on;
};

struct sim_daemon {
  struct sim_host *host;
  struct sim_process *process;
  struct sml_aggd *aggd;
  bool should_stop;
};

struct sim_world {
  const struct sim_scenario *scenario;
  struct sim_wire *wire;
  struct sim_daemon daemon;
  uint32_t num_jobs; /* with the auditor once it runs */
  struct sim_job_spec auditor;
  struct sim_job jobs[SIM_WORLD_JOBS];
  uint32_t num_running, num_coming; /* processes of ranks; restarts that are due */
  bool are_faults_over;
  uint64_t faults_over_ns;
  struct sim_timer faults_begin, faults_end;
  struct sim_incident_run incidents[SIM_MAX_INCIDENTS];
  uint32_t num_troubles;
  struct sim_trouble troubles[SIM_MAX_TROUBLES];
  struct sim_intruder *intruder;
  uint32_t *scratch; /* of the reference */
  uint64_t num_ops_ok, num_ops_failed, num_joins_ok, num_joins_failed, num_refusals;
};

/* world.c */
struct sim_result {
  uint64_t digest, virtual_ns, datagrams, num_events;
  uint64_t counts[SIM_NUM_COUNTS];
  struct sim_wire_counts wire;
  uint64_t num_ops_ok, num_ops_failed, num_joins_ok, num_joins_failed;
  uint64_t kinds[SIM_NUM_KINDS]; /* troubles that happened, by kind */
};
void sim_world_run(const struct sim_scenario *scenario, void (*trace)(void *user, const char *line),
                   struct sim_result *result_out);
void sim_world_start_rank(struct sim_rank *rank);
/* Its process is no more. */
void sim_world_rank_ended(struct sim_rank *rank);
struct sim_trouble *sim_world_add_trouble(struct sim_world *world, enum sim_kind kind, uint32_t job, uint32_t rank);
void sim_world_start_daemon(struct sim_world *world);

/* incidents.c */
void sim_incidents_init(struct sim_world *world);
void sim_incidents_on_submit(struct sim_rank *rank, uint32_t op);
void sim_incidents_end_all(struct sim_world *world);
void sim_world_set_links(struct sim_world *world, bool with_faults);

/* worker_process.c and daemon_process.c: their main functions */
int sim_worker_main(void *rank);
int sim_daemon_main(void *world);

/* checks.c: by the rank's process, when it happened */
void sim_check_created(struct sim_rank *rank);
void sim_check_failed(struct sim_rank *rank, sml_status status, const sml_error *error);
void sim_check_ended(struct sim_rank *rank, const struct sim_buffer *buffer);
void sim_check_deadline(const struct sim_rank *rank, const struct sim_op_record *record);
void sim_check_left(struct sim_rank *rank); /* buffers of failed operations are as they were */
/* At the end of the run. */
void sim_check_hang(struct sim_world *world);
void sim_check_jobs(struct sim_world *world);
void sim_check_storm(struct sim_world *world);

/* What the operation at this place of the program is at this rank. */
const struct sim_op_spec *sim_world_op(const struct sim_rank *rank, uint32_t op, struct sim_op_spec *altered_out,
                                       bool *is_deviant_out);
struct sim_tensor sim_job_tensor(const struct sim_job *job, uint32_t round, uint32_t op,
                                 const struct sim_op_spec *spec);

/* daemon_process.c: the registry of the running daemon. */
struct sml_registry_counts;
bool sim_daemon_counts(struct sml_registry_counts *counts_out);

/* intruder.c: datagrams that nobody sent, or not now. */
struct sim_intruder *sim_intruder_create(struct sim_world *world);
void sim_intruder_destroy(struct sim_intruder *intruder);
void sim_intruder_on_sent(struct sim_intruder *intruder, const struct sim_datagram *datagram);
uint64_t sim_intruder_count(const struct sim_intruder *intruder, enum sim_kind kind);

static inline struct sim_attempt *sim_attempt_of(struct sim_rank *rank) {
  return &rank->attempts[rank->round];
}
static inline const struct sim_round_spec *sim_round_of(const struct sim_rank *rank) {
  return &rank->job->spec->rounds[rank->round];
}
