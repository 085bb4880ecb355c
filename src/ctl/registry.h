/* SPDX-License-Identifier: Apache-2.0
 * Membership of a daemon's jobs (docs/PROTOCOL.md "Control connection", "Failures"). Pure: it gets
 * what happened and a time, and gives back a queue of effects that its owner carries out. No socket, no
 * clock, no allocation after init: everything outside can fill is a table sized by the options.
 *
 * A connection is a number below max_connections that the owner chooses and may use again once it was
 * closed from either side: by sml_registry_on_closed() or by SML_EFFECT_CLOSE. After each on_*() the
 * owner takes all effects, in order, before the next call.
 *
 * A connection: UNJOINED -> (JOIN with a key: CHALLENGED -> AUTH) -> member of a job. Whether a MAC was right
 * is the owner's channel's business; the registry only sees AUTH if it was.
 *
 * A job: FREE -> JOINING (first JOIN) -> STARTED (all in and probed) -> FREE (aborted, or the last member
 * is gone). Its number, name and slots are free again in the same call. */
#pragma once

#include "base/siphash.h"
#include "ctl/message.h"

#define SML_REGISTRY_MAX_JOBS 1024u
#define SML_REGISTRY_MAX_RANKS_FACTOR 2u /* started jobs have so many ranks a connection at most, gone ones included */
#define SML_PEER_BYTES 64u               /* "192.0.2.1:48879" with the terminating 0 */
#define SML_MIN_CHUNK_BYTES 256u
#define SML_MIN_LEASE_NS (20 * SML_NS_PER_MS)
#define SML_MAX_LEASE_NS (3600 * SML_NS_PER_S)

/* What a tenant may have at a time, counted over its started jobs, and jobs and workers once more over those that wait
 * for their ranks; 0: no limit. A tenant is the name of a key; a daemon
 * without keys has one. */
#define SML_ONLY_TENANT "default"
struct sml_quota {
  uint32_t max_jobs, max_workers;
  uint32_t max_slots; /* a lane */
};
struct sml_tenant_use {
  uint32_t num_jobs, num_workers, num_slots; /* likewise */
};

struct sml_registry_options {
  uint32_t max_connections;
  uint32_t max_unjoined_per_host; /* connections of one address that have not joined yet */
  uint32_t max_jobs;              /* started at a time; <= SML_REGISTRY_MAX_JOBS */
  uint32_t num_lanes;
  uint16_t data_ports[SML_MAX_LANES];
  uint32_t pool_slots;               /* a lane */
  uint32_t max_window_mib;           /* of a job, a lane; 0: SML_TUNING_MOST_MIB */
  bool is_embedded;                  /* in a rank's process: larger windows, see tuning.h */
  uint32_t max_datagram_bytes;       /* what the daemon's sockets take */
  uint32_t packet_lanes;             /* all jobs are in switch format, with so many lanes a packet; 0: none is */
  uint64_t join_grace_ns;            /* a connection that has not joined by then is closed */
  uint64_t max_lease_ns;             /* that a JOIN may ask for; 0: SML_MAX_LEASE_NS */
  uint64_t max_join_ns;              /* that a job waits for its ranks, whatever they ask for; 0: a week */
  uint32_t first_phase, first_chunk; /* of a job's first epoch; 2 and 0 but in tests */
  /* Multicast groups, of jobs 0 .. num_groups - 1: as in WELCOME, job 0's; the others follow in the second word. */
  uint64_t first_group[2];
  uint32_t num_groups;
  uint16_t group_port;
  uint64_t (*random)(void *user); /* unpredictable: epochs, secrets, nonces and salts */
  void *random_user;
  /* NULL: the daemon has no keys and refuses joins that name one; else it refuses all others. False: there
   * is no such key. */
  bool (*find_key)(void *user, const char *name, struct sml_key *key_out);
  void *find_key_user;
  /* NULL, or false: the tenant has no quota. Asked when a job is opened, and when it is about to start. */
  bool (*find_quota)(void *user, const char *tenant, struct sml_quota *quota_out);
  void *find_quota_user;
  /* How many datagrams of a started job's rank have been added to sums: one that contributes is alive, whatever has
   * become of its control connection. NULL, or always 0: nobody knows. */
  uint64_t (*count_packets)(void *user, uint16_t job, uint32_t rank);
  void *count_packets_user;
  /* Limits; 0: none. A source is an IPv4 address or an IPv6 /64. */
  uint32_t max_connections_per_host; /* joined ones of one source */
  uint32_t new_connections_per_s;    /* of one source, on average; as many as in 4 s may come at once */
  uint32_t max_messages_per_s;       /* of one connection, on average; as many may come at once */
  uint64_t late_note_ns;             /* a rank that is late for so long is worth a note */
};

enum sml_effect_kind {
  SML_EFFECT_SEND,         /* message to conn */
  SML_EFFECT_SET_KEY,      /* on conn's channel, after what was sent: key, worker_nonce, daemon_nonce */
  SML_EFFECT_CLOSE,        /* conn, after what was sent; the registry has forgotten it */
  SML_EFFECT_OPEN_JOB,     /* on every lane's engine: job, epoch, world_size, key, secret */
  SML_EFFECT_EXPECT_HELLO, /* on every lane's engine: conn, job, epoch, rank, nonce */
  SML_EFFECT_FORGET_RANK,  /* on every lane's engine: job, rank; it has gone before the start */
  SML_EFFECT_START_JOB,    /* on the first message->u.start.num_lanes engines: key, secret; also for a new epoch */
  SML_EFFECT_DEPART,       /* on every lane's engine: job, world_size, ranks */
  SML_EFFECT_CLOSE_JOB,    /* on every lane's engine: job */
  SML_EFFECT_NOTE,         /* for the log */
  SML_EFFECT_SHOW,         /* conn wants the status from offset on: of all jobs, or (key_name not "") of a key's */
  SML_EFFECT_REPORT,       /* conn, a member of job, wants to know what is waited for: sml_registry_report() */
};
enum sml_note {
  SML_NOTE_RANK_JOINED,
  SML_NOTE_JOB_STARTED,
  SML_NOTE_RANK_LEFT,
  SML_NOTE_RANK_LOST,
  SML_NOTE_JOIN_REFUSED,
  SML_NOTE_JOB_REFUSED,
  SML_NOTE_JOB_ABORTED,
  SML_NOTE_JOB_ENDED,
  SML_NOTE_RANK_LATE,   /* a rank has not called an operation for a while that others have, or says nothing */
  SML_NOTE_RANK_CALLED, /* such a rank did at last, or is heard again */
  SML_NOTE_EPOCH_RENEWED,
  SML_NOTE_STATUS_REFUSED,
  SML_NOTE_HOST_LIMITED, /* a host opens connections faster than it may; at most once a second */
  SML_NOTE_EVICT_REFUSED,
  SML_NOTE_NO_MULTICAST, /* of a job that could have had it: who does not hear, at its start or later */
};
#define SML_NUM_NOTES (SML_NOTE_NO_MULTICAST + 1)
/* Pointers are valid until the next on_*(). */
struct sml_effect {
  enum sml_effect_kind kind;
  uint32_t conn;
  const struct sml_ctl_message *message;
  uint16_t job;
  uint32_t epoch, rank, world_size;
  const uint64_t *ranks; /* DEPART: a bitmap of them */
  uint64_t nonce;
  const struct sml_key *key; /* SET_KEY: the tenant's; OPEN_JOB, START_JOB: the epoch's data key, NULL: unkeyed */
  uint64_t secret[2];        /* OPEN_JOB, START_JOB: as in WELCOME and START */
  uint64_t worker_nonce[2], daemon_nonce[2];
  enum sml_note note;
  char job_name[SML_JOB_NAME_BYTES]; /* NOTE; JOIN_REFUSED: as the rank says, `job` is none */
  const char *text;                  /* NOTE: one sentence */
  uint32_t offset_bytes;             /* SHOW */
  char key_name[SML_KEY_NAME_BYTES]; /* SHOW; NOTE of a job. Another job may have the ended one's place already */
};

enum sml_close_cause { SML_CLOSED_FIN, SML_CLOSED_RESET, SML_CLOSED_SLOW };

struct sml_registry;
size_t sml_registry_memsize(const struct sml_registry_options *options);
/* mem: sml_registry_memsize() zero-filled bytes, aligned as malloc does. */
struct sml_registry *sml_registry_init(void *mem, const struct sml_registry_options *options);

/* peer: "host:port" of the other end. False: its source opens connections too fast. The new one is to be closed without
 * a word, before it takes anybody's place. */
bool sml_registry_admits(struct sml_registry *r, const char *peer, uint64_t now_ns);
void sml_registry_on_opened(struct sml_registry *r, uint32_t conn, const char *peer, uint64_t now_ns);
/* No number is free for a new connection: closes the one that has waited longest without joining. If all have joined,
 * the job ends that waits for ranks, has not got one for join_grace_ns, and whose source has the most connections of
 * such jobs; the oldest of these. False: there is none. */
bool sml_registry_on_full(struct sml_registry *r, uint64_t now_ns);
void sml_registry_on_closed(struct sml_registry *r, uint32_t conn, enum sml_close_cause cause);
void sml_registry_on_message(struct sml_registry *r, uint32_t conn, const struct sml_ctl_message *message,
                             uint64_t now_ns);
/* What came is no message: verdict as sml_ctl_decode() gave it. */
void sml_registry_on_garbage(struct sml_registry *r, uint32_t conn, enum sml_ctl_decode verdict);
/* From the engines. An event of another epoch than the job's is out of date and ignored. */
void sml_registry_on_mismatch(struct sml_registry *r, uint16_t job, uint32_t epoch, uint32_t rank_a, uint32_t rank_b);
void sml_registry_on_blocked(struct sml_registry *r, uint16_t job, uint32_t epoch, uint32_t rank);
void sml_registry_on_jump(struct sml_registry *r, uint16_t job, uint32_t epoch, uint32_t rank);
/* The rank does not hear its job's group any more, and gets its results by unicast. */
void sml_registry_on_deaf(struct sml_registry *r, uint16_t job, uint32_t epoch, uint32_t rank);
/* OPEN_JOB, EXPECT_HELLO or START_JOB could not be carried out: no memory, or (not NULL) as a switch says. */
void sml_registry_on_job_failed(struct sml_registry *r, uint16_t job, uint32_t epoch, const char *why);
/* Keys may have been withdrawn: ends a job whose key is not there any more, or another one under its name; or closes a
 * connection that was challenged for it. False: there is none; call again until then. */
bool sml_registry_on_withdrawn(struct sml_registry *r);
/* Ends everything: the daemon goes. */
void sml_registry_on_stop(struct sml_registry *r);

/* When on_timer wants to be called; SML_NEVER: only after another input. */
uint64_t sml_registry_next_deadline(const struct sml_registry *r);
/* Handles one due thing at most, so that the effects of a call are bounded: call again while a deadline
 * is due. Feed all that has arrived before it, else a daemon that was stopped for a while takes its own
 * silence for the ranks'. */
void sml_registry_on_timer(struct sml_registry *r, uint64_t now_ns);
/* Silence counts only while somebody listens: a timer that comes late_ns after next_deadline means that
 * this process, or the whole machine with the ranks on it, did not run. Call before on_timer. */
void sml_registry_forgive(struct sml_registry *r, uint64_t late_ns, uint64_t now_ns);

/* The next effect, or NULL. Valid until the next on_*(). */
const struct sml_effect *sml_registry_next_effect(struct sml_registry *r);

/* The first operation that some member of a started job has not said to have completed; UINT64_MAX: no members. */
uint64_t sml_registry_lowest_completed(const struct sml_registry *r);

/* For people who ask (registry_look.c). A job without a name is none. */
struct sml_member_look {
  uint32_t rank;
  char host[SML_PEER_BYTES];
  bool is_gone, is_lost; /* gone: left, or lost */
  bool has_probed, is_lead, is_late;
  bool is_silent;                /* late, because nothing is heard of it */
  uint64_t since_ns;             /* late, gone: since then */
  uint64_t heard_ns;             /* present: its last message */
  uint64_t submitted, completed; /* operations, as of its last heartbeat */
  uint32_t contributor;
  uint32_t num_lanes, max_datagram_bytes, probed_bytes; /* present: offered, asked for, came back (0: not known) */
};
/* A rank that wanted to join and might not: its settings and the job's disagree. */
#define SML_MAX_REFUSALS 4u
struct sml_refusal {
  uint32_t rank;
  uint64_t at_ns;
  char host[SML_PEER_BYTES], text[SML_DETAIL_BYTES];
};
struct sml_registry_look {
  char name[SML_JOB_NAME_BYTES], key_name[SML_KEY_NAME_BYTES];
  bool is_started, is_one_host;
  char aggregators[SML_DETAIL_BYTES]; /* of its JOINs */
  uint32_t epoch, world_size, features, shard, num_shards, num_present, num_departed, num_late;
  uint64_t lease_ns, since_ns;                                  /* since: joined by its first rank, or started */
  uint64_t submitted, completed;                                /* by the rank that is ahead, by all */
  uint32_t num_lanes, num_slots, chunk_bytes, num_contributors; /* started; joining: only slots, those asked for */
  uint32_t all_slots;                                           /* started: with those of one-way windows */
  uint32_t num_refusals;                                        /* ever; the last ones are kept */
  struct sml_refusal refusals[SML_MAX_REFUSALS];                /* the latest first */
};
bool sml_registry_look(const struct sml_registry *r, uint16_t job, uint64_t now_ns, struct sml_registry_look *look_out);
/* Its members that are there, and those departed that are remembered, in no order; at most `room` of them. */
uint32_t sml_registry_look_at_members(const struct sml_registry *r, uint16_t job, uint64_t now_ns,
                                      struct sml_member_look *members_out, uint32_t room);
/* What the answer to an ASK says: of the job as it is, and of its slots. False: the job is not started. */
struct sml_waiting_slots {
  uint32_t num_waiting, num_contributors, least_contributions, most_contributions;
  uint32_t lane, slot, phase;    /* one of those with the least; at a switch it has no phase */
  bool is_at_switch, is_unknown; /* unknown: the switch does not tell, and all else is 0 */
  uint32_t num_missing;          /* ranks whose contributions, or those that they send for others, slots wait for */
  uint16_t missing[SML_CTL_MAX_RANKS]; /* the first of them */
  uint64_t progress_ns;                /* the last time that a slot was completed; 0: never */
};
bool sml_registry_report(const struct sml_registry *r, uint16_t job, const struct sml_waiting_slots *slots,
                         uint64_t now_ns, struct sml_ctl_report *report_out);

struct sml_registry_counts {
  uint32_t connections, unjoined, jobs_joining, jobs_started, slots_used; /* slots of lane 0 */
};
void sml_registry_counts(const struct sml_registry *r, struct sml_registry_counts *counts_out);

/* NULL, or which relation between connections, jobs and slot windows does not hold: for tests, simulation
 * and fuzzers. */
const char *sml_registry_find_violation(const struct sml_registry *r);
