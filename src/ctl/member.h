/* SPDX-License-Identifier: Apache-2.0
 * A rank's half of the control protocol (docs/PROTOCOL.md sections 8 and 9), at one aggregator: it connects, joins,
 * probes, starts, says and listens for signs of life, asks, leaves, and joins a successor. The twin of the daemon's
 * registry (ctl/registry.h). A job of several aggregators has a member for each.
 *
 * Pure: events go in by on_*(), each with the time; effects come out by next_effect(), and the owner carries out all of
 * them before the next event. It may leave or join again in between. The owner has the socket, the channel's bytes and
 * the probes. */
#pragma once

#include "ctl/message.h"

#define SML_MEMBER_ADDRESS_BYTES 96u
#define SML_MEMBER_MAX_EFFECTS 8u /* of one event */
#define SML_MEMBER_NO_RANK UINT32_MAX

struct sml_member_options {
  struct sml_ctl_join join;                  /* the nonce is the member's to choose */
  char aggregator[SML_MEMBER_ADDRESS_BYTES]; /* for sentences */
  uint32_t num_addresses;     /* at which the aggregator may be: they are tried in turn until one answers; at least 1 */
  bool is_keyed;              /* the key of join.key_name is the owner's */
  uint64_t deadline_ns;       /* of the join */
  uint64_t busy_heartbeat_ns; /* between heartbeats that have news; 0: as all others */
  uint64_t (*random)(void *user);
  /* Another rank of the same job that its owner serves: they would share data ports, and one result for both cannot be
   * told apart from two of the same. SML_MEMBER_NO_RANK: there is none. */
  uint32_t (*find_twin)(void *user, const struct sml_ctl_welcome *welcome);
  void *user;
};

enum sml_member_state {
  SML_MEMBER_CLEARING, /* to join again: the connection is closed, the probe may still go on */
  SML_MEMBER_WAITING,  /* for the next attempt to connect */
  SML_MEMBER_CONNECTING,
  SML_MEMBER_JOINING, /* JOIN sent, WELCOME awaited (and before it, if it is keyed, CHALLENGE) */
  SML_MEMBER_PROBING,
  SML_MEMBER_PROBED, /* START awaited */
  SML_MEMBER_RUNNING,
  SML_MEMBER_OVER,    /* ENDED; the connection may be there to say goodbye */
  SML_MEMBER_LEAVING, /* GOODBYE sent, the aggregator's close awaited */
  SML_MEMBER_CLOSING, /* the connection is closed, the probe may still go on */
  SML_MEMBER_CLOSED,
};

enum sml_member_effect_kind {
  SML_MEMBER_CONNECT,      /* to the address of that number: on_connected() or on_attempt_failed() */
  SML_MEMBER_SEND,         /* what sml_member_compose() gives for `sent` */
  SML_MEMBER_SET_KEY,      /* of the channel, from here on, with the nonces of `join` and `challenge` */
  SML_MEMBER_FINISH,       /* no more is sent: the other end is to see that, behind what was sent */
  SML_MEMBER_CLOSE,        /* the connection, if it is there */
  SML_MEMBER_PROBE,        /* as `welcome` and sml_member_probe_bytes() say: on_probed() */
  SML_MEMBER_CANCEL_PROBE, /* if one goes on: on_probed() all the same */
  SML_MEMBER_LEAVE_GROUPS, /* results come by unicast, or not at all */
  /* What happened, for the job. `message` is what came. */
  SML_MEMBER_STARTED, /* at first and with each new epoch */
  SML_MEMBER_ENDED,   /* `failure`. Joined no more, unless it is told to join again */
  SML_MEMBER_RANK_GONE,
  SML_MEMBER_HEARTBEAT,
  SML_MEMBER_REPORTED, /* after sml_member_ask() */
  SML_MEMBER_SILENT,   /* the running job's aggregator is late: nothing has been heard of it since since_ns */
  SML_MEMBER_HEARD,    /* it is again */
};
struct sml_member_effect {
  enum sml_member_effect_kind kind;
  uint32_t address;
  enum sml_ctl_kind sent;
  const struct sml_ctl_message *message; /* the event's */
  uint64_t since_ns;
};

/* What the owner sees of the job and of the connection as a timer ticks. */
struct sml_member_progress {
  uint64_t operations_submitted, operations_completed, called; /* as a heartbeat says them */
  uint64_t num_packets; /* datagrams that have come from the aggregator: one that sends is alive */
  bool is_stuck;        /* what was sent waits at this end: more of the same does not help */
};

struct sml_member_resume {
  uint64_t resume_operation, oldest_operation;
  bool has_no_result;   /* of any operation, in whatever order */
  uint32_t chunk_bytes; /* that the job must get again */
  uint32_t num_slots;   /* likewise */
  uint64_t deadline_ns;
};

/* Readable by the owner; written by the machine alone. */
struct sml_member {
  struct sml_member_options options;
  enum sml_member_state state;
  bool has_connection;
  bool has_eof, was_challenged, was_welcomed; /* of this connection */
  uint64_t attempt_ns;                        /* WAITING: when to connect; CONNECTING: when to give this attempt up */
  uint32_t num_attempts;
  char attempt_failure[160]; /* why the last attempt failed */
  bool has_no_socket;        /* at that attempt: it says nothing about the aggregator */
  uint64_t leave_deadline_ns, last_heard_ns, next_heartbeat_ns;
  uint64_t stopped_ns, woke_ns; /* the last stop that may have cost the lease */
  uint64_t silent_since_ns;     /* SILENT was said; 0: it was not, or HEARD was */
  uint64_t num_packets;         /* that had come when it was looked last */
  uint64_t told_operation;      /* operations_completed of the last heartbeat */
  bool wants_report;            /* the next timer asks */
  uint32_t num_asked;           /* of this connection: without an answer yet */
  uint32_t only_datagram_bytes; /* to join again: this size or nothing; else 0 */
  struct sml_ctl_challenge challenge;
  struct sml_ctl_welcome welcome;
  struct sml_ctl_probed probed;
  struct sml_ctl_heartbeat heartbeat; /* the next one */
  struct sml_ctl_abort failure;
  uint32_t first_effect, num_effects;
  struct sml_member_effect effects[SML_MEMBER_MAX_EFFECTS];
};

void sml_member_init(struct sml_member *m, const struct sml_member_options *options);
/* The next effect, or NULL. Valid until the next event. */
const struct sml_member_effect *sml_member_next_effect(struct sml_member *m);
void sml_member_compose(const struct sml_member *m, enum sml_ctl_kind kind, struct sml_ctl_message *message_out);
/* The most bytes of a datagram, or the only number to try if only_datagram_bytes is set. */
uint32_t sml_member_probe_bytes(const struct sml_member *m);

/* For sentences: where the attempt goes that is being made. */
void sml_member_name_aggregator(struct sml_member *m, const char *text);
void sml_member_on_connected(struct sml_member *m, uint64_t now_ns);
void sml_member_on_attempt_failed(struct sml_member *m, const char *why, uint64_t now_ns);
/* This process got no socket for the attempt. */
void sml_member_on_no_socket(struct sml_member *m, const char *why, uint64_t now_ns);
/* Bytes came, whether or not they are a message yet. */
void sml_member_on_bytes(struct sml_member *m, uint64_t now_ns);
void sml_member_on_message(struct sml_member *m, const struct sml_ctl_message *message, uint64_t now_ns);
void sml_member_on_garbage(struct sml_member *m, enum sml_ctl_decode verdict, uint64_t now_ns);
void sml_member_on_closed(struct sml_member *m, const char *why, uint64_t now_ns);
/* No probe goes on (any more). */
void sml_member_on_probed(struct sml_member *m, const struct sml_ctl_probed *probed);

/* An attempt to connect is made, if one is due. Before what has come is fed, on_timer() behind it: else a rank that was
 * stopped for a while takes its own silence for the aggregator's. */
void sml_member_on_attempt_due(struct sml_member *m, uint64_t now_ns);
void sml_member_on_timer(struct sml_member *m, const struct sml_member_progress *progress, uint64_t now_ns);
/* Silence counts only while somebody listens: time by which a pass came too late was one in which this process, or the
 * whole machine, did not run, and then the aggregator may not have run either. */
void sml_member_forgive(struct sml_member *m, uint64_t late_ns, uint64_t now_ns);
/* To what is said of a rank that is gone: that this process was stopped just before, if it was for so long that the
 * others may have lost it. Their aggregator, if it was in this process, knows only that they have gone. */
void sml_member_add_stop(const struct sml_member *m, uint64_t now_ns, char detail[SML_DETAIL_BYTES]);
/* When on_attempt_due() and on_timer() want to be called at the latest. */
uint64_t sml_member_next_deadline(const struct sml_member *m);

void sml_member_leave(struct sml_member *m, uint64_t now_ns);
/* The aggregator was lost: joins its successor, or itself, under the same name, as a rank that completed what is before
 * resume_operation and has the inputs from oldest_operation on. */
void sml_member_rejoin(struct sml_member *m, const struct sml_member_resume *resume, uint64_t now_ns);
/* The same before the job has started: joins once more as a rank that has nothing, until the deadline that it had. */
void sml_member_join_anew(struct sml_member *m, uint64_t now_ns);
/* Tries no longer to join: what was not welcomed yet is cut, else the connection stays to say goodbye. */
void sml_member_give_up(struct sml_member *m);
/* The next timer sends a heartbeat. */
void sml_member_hasten_heartbeat(struct sml_member *m);
/* The next timer asks the aggregator whom it waits for, if the job is started. */
void sml_member_ask(struct sml_member *m);
