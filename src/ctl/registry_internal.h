/* SPDX-License-Identifier: Apache-2.0
 * The registry's tables, shared by registry.c (inputs, connections, time), registry_auth.c (who may
 * join at all), registry_job.c (the life of a job), registry_start.c (what it gets) and test_registry_check.c
 * (what must hold). */
#pragma once

#include "ctl/registry.h"
#include "ctl/slot_pool.h"
#include "ctl/source.h"
#include "ctl/tuning.h"
#include "switchml/switchml.h"

#define SML_NO_CONN UINT32_MAX
#define SML_WAITING_CELLS 1024u
#define SML_MAX_CALL_MESSAGES 8u /* different messages and texts that one input can cause */

/* CHALLENGED: its JOIN waits in the table for AUTH, within the grace of UNJOINED. */
/* VIEWER: has proved a key, to be shown the status of its jobs; within that grace, too. */
enum sml_conn_state { SML_CONN_FREE, SML_CONN_UNJOINED, SML_CONN_CHALLENGED, SML_CONN_VIEWER, SML_CONN_MEMBER };

struct sml_conn {
  enum sml_conn_state state;
  char peer[SML_PEER_BYTES];
  char host[SML_PEER_BYTES]; /* peer without the port */
  uint64_t source;           /* of the host: whose limits count */
  uint64_t heard_at_ns;      /* opened; MEMBER: or the last message, or when new packets were found */
  uint64_t paced_ns;         /* of its messages */
  struct sml_ctl_join join;  /* that it said first; of a viewer only the key's name */
  bool wants_status;         /* CHALLENGED for that */
  struct sml_key tenant;     /* CHALLENGED, keyed MEMBER */
  /* of a member */
  uint16_t job;
  bool has_probed, wants_epoch;
  bool is_lead;         /* started: it sends, for itself or for its contributor's other ranks too */
  uint16_t contributor; /* started */
  uint32_t rank;
  uint32_t next, prev; /* members of the job */
  uint32_t num_lanes, max_datagram_bytes, probed_bytes, hearing;
  uint64_t rtt_ns;                                                   /* 0: not known */
  uint64_t resume_operation, oldest_operation, submitted, completed; /* the latter two as in its heartbeats */
  uint64_t behind_since_ns; /* others have submitted more, seen at a heartbeat; 0: not so */
  bool is_noted_late;
  uint64_t num_packets;     /* that it had sent on the data path when they were last counted */
  uint64_t silent_since_ns; /* it was noted to be silent since then; 0: it was not, or is heard again */
  uint32_t resume_chunk_bytes;
  bool has_no_result, can_go_one_way; /* of its JOIN, like the next */
  uint32_t slots_asked;
  uint64_t share_host[2]; /* of its JOIN, like the next */
  bool is_combining;
};

enum sml_job_state { SML_JOB_FREE, SML_JOB_JOINING, SML_JOB_STARTED };

#define SML_MAX_DEPARTURES 16u
struct sml_departure {
  uint32_t rank;
  bool is_lost;
  uint64_t at_ns;
  char host[SML_PEER_BYTES];
  char text[SML_DETAIL_BYTES];
};

struct sml_job_entry {
  enum sml_job_state state;
  char name[SML_JOB_NAME_BYTES];
  char key_name[SML_KEY_NAME_BYTES]; /* "": unkeyed */
  struct sml_key tenant, data_key;   /* keyed: data_key is the epoch's */
  uint64_t salt[2], secret[2];       /* secret: the epoch's, unkeyed; like the epoch random */
  uint32_t epoch, world_size, features, shard, num_shards;
  char aggregators[SML_DETAIL_BYTES]; /* as its first rank has them */
  uint32_t num_slots;                 /* asked for, 0: none was named; started: a lane has them */
  sml_slots_reason slots_why;         /* started, like the next */
  uint64_t rtt_ns;                    /* of the furthest rank */
  uint64_t lease_ns, deadline_ns, heartbeat_at_ns;
  uint64_t early_at_ns;               /* when to look whether more is confirmed; SML_NEVER: at the next heartbeat */
  uint64_t since_ns;                  /* JOINING: opened; STARTED: started */
  uint64_t joined_at_ns;              /* the last rank */
  uint64_t source;                    /* of the first rank */
  bool is_capped;                     /* deadline_ns is the aggregator's, not a rank's */
  uint64_t submitted;                 /* the most of all ranks */
  uint64_t called;                    /* the hash of the last operation that a heartbeat named; 0: none has */
  uint64_t called_number;             /* of that operation */
  uint32_t called_rank;               /* whose heartbeat */
  uint16_t called_contributor;        /* of that rank */
  uint64_t looked_at_ns;              /* last heartbeats, or a look without */
  uint32_t first_member, num_members; /* connections; linked by next and prev */
  uint32_t num_probed, num_wanting;   /* of them: have probed, want an epoch */
  /* once started */
  uint32_t num_lanes, chunk_bytes, num_departed, num_contributors;
  bool is_multicast;
  bool is_one_way;                     /* there are one-way windows */
  uint64_t first_operation, confirmed; /* operations below `confirmed` are completed at every rank */
  uint16_t slot_base[SML_MAX_LANES];
  uint64_t present[SML_BITMAP_WORDS(SML_CTL_MAX_WORLD_SIZE)]; /* ranks with a connection */
  /* Ranks that have departed and nobody was told of yet, and when that is due (registry_gone.c). */
  uint64_t untold[SML_BITMAP_WORDS(SML_CTL_MAX_WORLD_SIZE)];
  uint32_t num_untold, first_untold;
  uint64_t tell_at_ns;
  char untold_text[SML_DETAIL_BYTES]; /* of the first of them */
  uint32_t num_refusals;
  struct sml_refusal refusals[SML_MAX_REFUSALS];       /* a ring */
  struct sml_departure departures[SML_MAX_DEPARTURES]; /* the first ones: why they went */
};

/* That a lane has for the job, started. */
static inline uint32_t sml_registry_num_windows(const struct sml_job_entry *job) {
  return job->is_one_way ? SML_CTL_ALL_WINDOWS : 1;
}
static inline uint32_t sml_registry_all_slots(const struct sml_job_entry *job) {
  return job->num_slots * sml_registry_num_windows(job);
}

struct sml_registry {
  struct sml_registry_options options;
  struct sml_conn *conns;
  struct sml_job_entry *jobs;
  uint32_t conns_end, jobs_end; /* none is used from here on: they bound the scans */
  uint64_t latest_ns;           /* of all inputs so far: for what only people look at */
  struct sml_slot_pool pools[SML_MAX_LANES];
  struct sml_source_table sources;
  uint64_t limit_noted_ns;
  struct sml_effect *effects;
  uint32_t num_effects, max_effects, effects_taken;
  struct sml_ctl_message messages[SML_MAX_CALL_MESSAGES];
  char texts[SML_MAX_CALL_MESSAGES][SML_DETAIL_BYTES];
  uint32_t num_messages, num_texts;
  uint32_t waiting[SML_WAITING_CELLS]; /* connections of jobs that wait, by a hash of their source */
  uint64_t told[SML_BITMAP_WORDS(SML_CTL_MAX_WORLD_SIZE)]; /* of this call's DEPART */
};

/* registry.c */
/* What is an input begins with it. */
void sml_registry_begin_input(struct sml_registry *r);
struct sml_job_entry *sml_registry_find_started(struct sml_registry *r, uint16_t job, uint32_t epoch);
struct sml_effect *sml_registry_emit(struct sml_registry *r, enum sml_effect_kind kind);
struct sml_ctl_message *sml_registry_compose(struct sml_registry *r, enum sml_ctl_kind kind);
/* The last message a connection gets: ABORT of a started job, else REFUSE (which names no ranks). */
struct sml_ctl_message *sml_registry_farewell(struct sml_registry *r, bool is_started, sml_status status,
                                              const uint16_t *ranks, uint32_t num_ranks, const char *text);
void sml_registry_send(struct sml_registry *r, uint32_t conn, const struct sml_ctl_message *message);
/* The entry is nobody's any more, and has no key. */
void sml_registry_free_conn(struct sml_conn *c);
void sml_registry_forget(struct sml_registry *r, uint32_t conn); /* emits CLOSE, frees the entry */
/* A text of this call: valid until the next input. */
char *sml_registry_text(struct sml_registry *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sml_registry_note(struct sml_registry *r, enum sml_note note, const struct sml_job_entry *job, uint32_t rank,
                       const char *text);

/* registry_auth.c */
void sml_registry_challenge(struct sml_registry *r, uint32_t conn, const struct sml_ctl_join *join, uint64_t now_ns);
bool sml_registry_is_withdrawn(const struct sml_registry *r, const char *key_name, const struct sml_key *key);
void sml_registry_bad_mac(struct sml_registry *r, uint32_t conn); /* of a CHALLENGED connection */
void sml_registry_refuse(struct sml_registry *r, uint32_t conn, sml_status status, const char *text);
/* The log may say more than whoever is told `text`. */
void sml_registry_turn_away(struct sml_registry *r, uint32_t conn, enum sml_note note, sml_status status,
                            const char *text, const char *noted);
void sml_registry_show(struct sml_registry *r, uint32_t conn, const struct sml_ctl_status *status);
void sml_registry_take_auth(struct sml_registry *r, uint32_t conn, uint64_t now_ns);

/* registry_evict.c */
void sml_registry_evict(struct sml_registry *r, uint32_t conn, const struct sml_ctl_evict *evict);

/* registry_look.c */
bool sml_registry_is_late(const struct sml_job_entry *job, const struct sml_conn *c, uint64_t now_ns);
/* Have packets of a member come since they were last counted? Then it was heard. */
bool sml_registry_listen(struct sml_registry *r, struct sml_conn *c, uint64_t now_ns);
/* At a job's heartbeats: who is behind the others or silent, and a note about one who has been for long. */
void sml_registry_watch_lateness(struct sml_registry *r, struct sml_job_entry *job, uint64_t now_ns);
void sml_registry_note_called(struct sml_registry *r, struct sml_conn *c, uint64_t submitted, uint64_t now_ns);

/* registry_hosts.c */
/* All ranks are in, and named the same host, which is not 0. */
bool sml_registry_is_one_host(const struct sml_registry *r, const struct sml_job_entry *job);
/* All ranks are in: who contributes with whom. */
void sml_registry_group(struct sml_registry *r, struct sml_job_entry *job);
/* START's table, if it needs one. Ranks that have left since are in it as UINT16_MAX. */
void sml_registry_list_contributors(const struct sml_registry *r, const struct sml_job_entry *job,
                                    struct sml_ctl_start *start);
/* "rank 2" or "ranks 4-7 on the host of rank 4": whom a rank contributes with; and a list of them, ascending.
 * Returns how many they are, max_ranks of which were written. */
uint32_t sml_registry_describe(struct sml_registry *r, const struct sml_job_entry *job, uint32_t rank, char *text,
                               size_t room_bytes, uint16_t *ranks_out, uint32_t max_ranks);

/* registry_switch.c: jobs in switch format */
/* Why a rank cannot be in such a job; NULL: it can, or no job is. */
const char *sml_registry_find_switch_conflict(struct sml_registry *r, const struct sml_ctl_join *join);
/* All ranks are in, and grouped: chooses the chunk size. NULL, or why it cannot be, with the status. */
const char *sml_registry_choose_switch_chunk(struct sml_registry *r, struct sml_job_entry *job,
                                             const struct sml_conn *narrowest, uint32_t max_datagram_bytes,
                                             sml_status *status_out);

/* registry_multicast.c */
void sml_registry_offer_group(const struct sml_registry *r, uint16_t job, struct sml_ctl_welcome *welcome);
/* All ranks have probed: whether results go by multicast, with a note if that was offered and does not work. */
bool sml_registry_choose_multicast(struct sml_registry *r, const struct sml_job_entry *job);

/* registry_waiting.c */
/* Ends a job that waits for ranks so that others have its places; see sml_registry_on_full(). */
bool sml_registry_make_room(struct sml_registry *r, uint64_t now_ns);

/* registry_quota.c */
/* A rank would open a job: NULL, or why its tenant has enough that wait already. */
const char *sml_registry_find_waiting_limit(struct sml_registry *r, const struct sml_ctl_join *join);
/* All ranks are in and the slots are chosen: makes a window that nobody asked for as small as the tenant's quota wants.
 * NULL, or why the job cannot be had. */
const char *sml_registry_meet_quota(struct sml_registry *r, struct sml_job_entry *job);

/* registry_job.c */
/* What a datagram of the job has besides the elements of its chunk. */
uint32_t sml_registry_overhead_bytes(bool is_keyed, uint32_t features);
uint64_t sml_registry_confirmed(const struct sml_registry *r, const struct sml_job_entry *job);
void sml_registry_join(struct sml_registry *r, uint32_t conn, const struct sml_ctl_join *join, uint64_t now_ns);
void sml_registry_probed(struct sml_registry *r, uint32_t conn, const struct sml_ctl_probed *probed);
void sml_registry_want_epoch(struct sml_registry *r, uint32_t conn);
/* The member is gone: takes it out of its job and tells the others. The connection's entry is freed
 * without a CLOSE effect. */
void sml_registry_depart(struct sml_registry *r, uint32_t conn, bool is_lost, const char *why);
/* The job is over for all members: each gets `farewell` (REFUSE while joining, else ABORT) but for
 * `silent_conn`; all connections are closed, number, name and slots are free. */
void sml_registry_end_job(struct sml_registry *r, struct sml_job_entry *job, const struct sml_ctl_message *farewell,
                          uint32_t silent_conn);
void sml_registry_end_with(struct sml_registry *r, struct sml_job_entry *job, sml_status status, const uint16_t *ranks,
                           uint32_t num_ranks, const char *text, uint32_t silent_conn);
void sml_registry_join_timeout(struct sml_registry *r, struct sml_job_entry *job);
/* Engines first: when the ranks hear of it, the aggregator is ready. */
void sml_registry_send_start(struct sml_registry *r, struct sml_job_entry *job, uint32_t first_phase,
                             uint32_t first_chunk);
/* A rank that resumes with chunks of another size than this one does; SML_NO_CONN: none. */
uint32_t sml_registry_find_other_resume(const struct sml_registry *r, const struct sml_job_entry *job,
                                        uint32_t chunk_bytes);
/* Why the rank went, or a plain sentence when nobody remembers. */
const char *sml_registry_departure(struct sml_registry *r, const struct sml_job_entry *job, uint32_t rank);

/* registry_gone.c */
/* A rank of a started job has departed: engines and the other ranks are told, now or with those that follow. */
void sml_registry_note_gone(struct sml_registry *r, struct sml_job_entry *job, uint32_t rank, const char *text);
uint64_t sml_registry_tell_deadline(const struct sml_job_entry *job);
void sml_registry_tell_gone(struct sml_registry *r, struct sml_job_entry *job, uint64_t now_ns);

/* registry_start.c */
/* All ranks are in and have probed: the job starts, or is refused. */
void sml_registry_start(struct sml_registry *r, struct sml_job_entry *job);
/* Where START says that the lane's windows begin. All lanes of a job have one key, and a MAC covers no port: with a key
 * no two of them have a slot in common, so that a datagram fits no lane but its own. */
uint16_t sml_registry_slot_base(const struct sml_job_entry *job, uint32_t lane);
void sml_registry_give_windows(struct sml_registry *r, struct sml_job_entry *job, uint32_t num_lanes);
