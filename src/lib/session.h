/* SPDX-License-Identifier: Apache-2.0
 * A job's control connection to its aggregator: carries out what the member of it decides (ctl/member.h). It has the
 * socket, the channel and the prober. Everything here runs on the context's control thread; nothing blocks. */
#pragma once

#include "ctl/channel.h"
#include "ctl/member.h"
#include "lib/control.h"
#include "meet/shards.h"
#include "method/prober.h"

/* Called on the control thread. A failure has the form of the message that tells others about it. */
struct sml_session_events {
  /* SML_MEMBER_STARTED and all kinds behind it. ENDED is the last one, unless sml_member_rejoin() or _join_anew() is
   * called in here. */
  void (*told)(void *user, const struct sml_member_effect *effect);
  void (*fill_progress)(void *user, struct sml_member_progress *progress); /* but is_stuck */
  /* Before each pass: may send and leave. Returns when to come again at the latest. */
  uint64_t (*tick)(void *user, uint64_t now_ns);
  void (*closed)(void *user); /* after sml_member_leave(); the last call */
};

struct sml_session_options {
  struct sml_member_options member; /* random, find_twin and user are the session's */
  struct sml_control *control;
  struct sml_engines *engines;
  /* Where the aggregator may be, as many as the member has addresses. If it is in a rank's process, the address that is
   * tried is its name. */
  struct sml_addr addrs[SML_MAX_PLACES];
  uint32_t process_rank; /* SML_NO_PROCESS_RANK: the aggregator is a daemon */
  bool no_multicast;  /* results come by unicast only */
  struct sml_key key; /* of join.key_name, if the member is keyed */
  const struct sml_session_events *events;
  void *user;
};

struct sml_session {
  struct sml_session *next; /* the control thread's list */
  struct sml_session_options options;
  struct sml_member member;
  struct sml_addr aggregator; /* that is connected, or was tried last */
  int fd; /* opened and closed under sml_fork_lock() */
  uint32_t watched_events;
  uint64_t due_ns; /* when the next pass is expected at the latest */
  struct sml_prober prober;
  struct sml_channel channel;
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
/* The seal of an epoch's packets, as WELCOME or START have epoch and secret. */
void sml_session_seal(const struct sml_session *session, uint32_t epoch, const uint64_t secret[2],
                      struct sml_seal *seal_out);
bool sml_session_is_closed(const struct sml_session *session);
