/* SPDX-License-Identifier: Apache-2.0
 * A job's control connection to its aggregator, seen from the worker: connect (with retries, since an
 * aggregator may start a little later), join, probe, start, heartbeats, questions, leave. Everything here runs on
 * the context's control thread; nothing blocks. */
#ifndef SML_LIB_SESSION_H
#define SML_LIB_SESSION_H

#include "ctl/channel.h"
#include "lib/control.h"
#include "lib/prober.h"
#include "meet/shards.h"

/* Called on the control thread. A failure has the form of the message that tells others about it. */
struct sml_session_events {
  void (*started)(void *user, const struct sml_ctl_start *start); /* at first and with each new epoch */
  /* Joined no more: the last event but `closed`, unless sml_session_rejoin() is called, which is allowed in
   * here. */
  void (*ended)(void *user, const struct sml_ctl_abort *failure);
  void (*rank_gone)(void *user, const struct sml_ctl_rank_gone *gone);
  void (*fill_heartbeat)(void *user, struct sml_ctl_heartbeat *heartbeat);
  void (*heartbeat)(void *user, const struct sml_ctl_heartbeat *heartbeat); /* the aggregator's */
  void (*reported)(void *user, const struct sml_ctl_report *report);        /* after sml_session_ask() */
  /* The running job's aggregator is late: nothing has been heard of it since then; it is heard again. */
  void (*silent)(void *user, uint64_t since_ns);
  void (*heard)(void *user, uint64_t since_ns);
  /* Datagrams that have come from the aggregator so far: one that sends is alive, whatever has become of the control
   * connection. */
  uint64_t (*count_packets)(void *user);
  /* Before each pass: may send and leave. Returns when to come again at the latest. */
  uint64_t (*tick)(void *user, uint64_t now_ns);
  void (*closed)(void *user); /* after sml_session_leave(); the last call */
};

struct sml_session_options {
  struct sml_control *control;
  struct sml_engines *engines;
  struct sml_addr aggregator;
  char aggregator_text[96]; /* for sentences */
  /* Of an aggregator in a rank's process: where it may be, tried in turn until one answers; `aggregator` and its text
   * follow. num_addrs 0: the aggregator is a daemon, where `aggregator` says. */
  struct sml_addr addrs[SML_MAX_PLACES];
  uint32_t num_addrs, host_rank;
  struct sml_ctl_join join; /* the nonce is the session's to choose */
  bool no_multicast; /* results come by unicast only */
  bool is_keyed;
  struct sml_key key;         /* of join.key_name */
  uint64_t deadline_ns;       /* of the join */
  uint64_t busy_heartbeat_ns; /* between heartbeats that have news; 0: as all others */
  const struct sml_session_events *events;
  void *user;
};

enum sml_session_state {
  SML_SESSION_CLEARING, /* to join again: no descriptor; an engine may still hold the prober's memory */
  SML_SESSION_WAITING,  /* for the next attempt to connect; no descriptor */
  SML_SESSION_CONNECTING,
  SML_SESSION_JOINING, /* JOIN sent, WELCOME awaited (and before it, if it is keyed, CHALLENGE) */
  SML_SESSION_PROBING,
  SML_SESSION_PROBED, /* START awaited */
  SML_SESSION_RUNNING,
  SML_SESSION_OVER,    /* `ended` was called; the connection may be there to say goodbye */
  SML_SESSION_LEAVING, /* GOODBYE sent, the aggregator's close awaited */
  SML_SESSION_CLOSING, /* no descriptor; an engine may still hold the prober's memory */
  SML_SESSION_CLOSED,
};

struct sml_session {
  struct sml_session *next; /* the control thread's list */
  struct sml_session_options options;
  enum sml_session_state state;
  int fd; /* opened and closed under sml_fork_lock() */
  uint32_t watched_events;
  uint64_t attempt_ns; /* WAITING: when to connect; CONNECTING: when to give this attempt up */
  uint32_t num_attempts;
  uint64_t leave_deadline_ns;
  uint64_t last_heard_ns, next_heartbeat_ns;
  uint64_t silent_since_ns;  /* `silent` was said; 0: it was not, or `heard` was */
  uint64_t num_packets;      /* that had come when it was looked last */
  uint64_t told_operation;   /* operations_completed of the last heartbeat */
  bool wants_report;         /* the next pass asks */
  uint32_t num_asked;        /* of this connection: without an answer yet */
  uint64_t due_ns;           /* when the next pass is expected at the latest */
  char attempt_failure[160]; /* why the last attempt failed */
  struct sml_ctl_welcome welcome;
  struct sml_prober prober;
  uint32_t datagram_bytes;                    /* that came back */
  bool has_eof, was_challenged, was_welcomed; /* of this connection */
  struct sml_channel channel;
  uint32_t only_datagram_bytes; /* rejoining: this size or nothing; else 0 */
  size_t rx_bytes, tx_bytes;
  uint8_t rx[SML_CHANNEL_MAX_FRAME_BYTES];
  uint8_t tx[4096];
};

void sml_session_init(struct sml_session *session, const struct sml_session_options *options);
/* Does all that can be done now; returns when to come again at the latest. */
uint64_t sml_session_service(struct sml_session *session, uint64_t now_ns);
/* Queues a message, if there is a connection. One that does not fit means that the aggregator has not
 * read for long; it will be found silent. */
void sml_session_send(struct sml_session *session, const struct sml_ctl_message *message);
void sml_session_leave(struct sml_session *session, uint64_t now_ns);
/* The aggregator was lost: joins its successor, or itself, under the same name, as a rank that completed
 * what is before resume_operation and has the inputs from oldest_operation on. As after _init: `started`, or
 * `ended`, which may call this again. */
struct sml_session_resume {
  uint64_t resume_operation, oldest_operation;
  bool has_no_result;   /* of any operation, in whatever order */
  uint32_t chunk_bytes; /* that the job must get again */
  uint32_t num_slots;   /* likewise */
  uint64_t deadline_ns;
};
void sml_session_rejoin(struct sml_session *session, const struct sml_session_resume *resume,
                        uint64_t now_ns);
/* The same before the job has started: joins once more as a rank that has nothing, until the deadline that it had. */
void sml_session_join_anew(struct sml_session *session, uint64_t now_ns);
/* Tries no longer to join: what was not welcomed yet is cut, else the connection stays to say goodbye. */
void sml_session_give_up(struct sml_session *session);
/* The next pass sends a heartbeat. */
void sml_session_hasten_heartbeat(struct sml_session *session);
/* The next pass asks the aggregator whom it waits for, if the job is started; wake the control thread. */
void sml_session_ask(struct sml_session *session);
/* The seal of an epoch's packets, as WELCOME or START have epoch and secret. */
void sml_session_seal(const struct sml_session *session, uint32_t epoch, const uint64_t secret[2],
                      struct sml_seal *seal_out);
bool sml_session_is_closed(const struct sml_session *session);

#endif
