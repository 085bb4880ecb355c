/* SPDX-License-Identifier: Apache-2.0
 * What the flight recorder knows (docs/adr/0018): each event once, with the names of its fields. Recorders,
 * dumps and the command `switchml trace` are made of this list; a dump carries it, so a newer tool reads an
 * older one. An event's number is its place here: add at the end, change none.
 *
 * X(NAME, "name", level, "slot", "rank", "phase", "chunk", "value", kind of value); "" is a field not used. */
#pragma once

/* NOTABLE: what happens rarely, and operations; recorded always. ALL: each packet, with SWITCHML_TRACE=all. */
enum sml_trace_level { SML_TRACE_OFF, SML_TRACE_NOTABLE, SML_TRACE_ALL };

/* What a value is. REASON: enum sml_drop. STATUS: of switchml.h, negative. */
enum sml_trace_kind { SML_TRACE_NUMBER, SML_TRACE_NS, SML_TRACE_REASON, SML_TRACE_STATUS };

/* clang-format off */
#define SML_TRACE_EVENT_LIST(X)                                                                                     \
  /* a worker's lane */                                                                                             \
  X(UPDATE_SENT, "update_sent", ALL, "slot", "", "phase", "chunk", "", NUMBER)                                      \
  X(RESULT_RECEIVED, "result_received", ALL, "slot", "", "phase", "granted", "waited", NS)                          \
  X(UPDATE_REPEATED, "update_repeated", NOTABLE, "slot", "", "phase", "chunk", "", NUMBER)                          \
  X(PROBE_SENT, "probe_sent", NOTABLE, "slot", "", "phase", "chunk", "", NUMBER)                                    \
  X(GRANT_PROBE_SENT, "grant_probe_sent", NOTABLE, "", "", "", "granted", "", NUMBER)                               \
  X(PENDING_RECEIVED, "pending_received", NOTABLE, "slot", "missing", "phase", "num_missing", "waited", NS)         \
  X(SLOT_RECOVERED, "slot_recovered", NOTABLE, "slot", "", "phase", "granted", "waited", NS)                        \
  X(ERROR_RECEIVED, "error_received", NOTABLE, "slot", "", "phase", "chunk", "", NUMBER)                            \
  X(OPERATION_STARTED, "operation_started", NOTABLE, "", "", "", "", "operation", NUMBER)                           \
  X(OPERATION_ENDED, "operation_ended", NOTABLE, "", "", "", "", "operation", NUMBER)                               \
  X(OPERATION_FAILED, "operation_failed", NOTABLE, "", "", "", "", "operation", NUMBER)                             \
  X(LANE_FAILED, "lane_failed", NOTABLE, "", "", "", "", "status", STATUS)                                          \
  X(LANE_CLOSED, "lane_closed", NOTABLE, "", "", "", "", "", NUMBER)                                                \
  X(HELLO_SENT, "hello_sent", NOTABLE, "", "rank", "", "", "datagram_bytes", NUMBER)                                \
  X(HELLO_ANSWERED, "hello_answered", NOTABLE, "", "rank", "", "", "datagram_bytes", NUMBER)                        \
  X(HELLO_EXPIRED, "hello_expired", NOTABLE, "", "rank", "", "", "datagram_bytes", NUMBER)                          \
  /* both ends of a lane; "rank" is who a packet says it is from */                                                 \
  X(PACKET_DROPPED, "packet_dropped", NOTABLE, "slot", "rank", "phase", "chunk", "reason", REASON)                  \
  X(EPOCH_STARTED, "epoch_started", NOTABLE, "", "", "first_phase", "first_chunk", "epoch", NUMBER)                 \
  /* an aggregator's lane */                                                                                        \
  X(UPDATE_RECEIVED, "update_received", ALL, "slot", "rank", "phase", "chunk", "", NUMBER)                          \
  X(SLOT_COMPLETED, "slot_completed", ALL, "slot", "last_rank", "phase", "", "", NUMBER)                            \
  X(RESULT_REPEATED, "result_repeated", NOTABLE, "slot", "rank", "phase", "", "", NUMBER)                           \
  X(PENDING_SENT, "pending_sent", NOTABLE, "slot", "rank", "phase", "num_missing", "missing", NUMBER)               \
  X(UPDATE_SOLICITED, "update_solicited", NOTABLE, "slot", "rank", "phase", "latest_chunk", "", NUMBER)             \
  X(ERROR_SENT, "error_sent", NOTABLE, "slot", "rank", "phase", "chunk", "epoch", NUMBER)                           \
  X(HELLO_RECEIVED, "hello_received", NOTABLE, "", "rank", "", "", "datagram_bytes", NUMBER)                        \
  X(JOB_OPENED, "job_opened", NOTABLE, "", "", "", "ranks", "epoch", NUMBER)                                        \
  X(JOB_CLOSED, "job_closed", NOTABLE, "", "", "", "", "", NUMBER)                                                  \
  X(RANK_DEPARTED, "rank_departed", NOTABLE, "", "rank", "", "", "", NUMBER)                                        \
  X(OPERATION_BLOCKED, "operation_blocked", NOTABLE, "slot", "missing", "", "", "asked_by", NUMBER)                 \
  X(OPERATIONS_DIFFERED, "operations_differed", NOTABLE, "slot", "rank", "", "", "other_rank", NUMBER)              \
  X(PHASE_JUMPED, "phase_jumped", NOTABLE, "slot", "rank", "", "", "", NUMBER)                                      \
  X(GROUP_LOST, "group_lost", NOTABLE, "slot", "rank", "", "", "", NUMBER)                                          \
  X(HOST_MOVED, "host_moved", NOTABLE, "port", "rank", "", "", "", NUMBER)                                          \
  /* a job at its rank */                                                                                           \
  X(JOB_JOINED, "job_joined", NOTABLE, "slots", "rank", "chunk_bytes", "ranks", "epoch", NUMBER)                    \
  X(OPERATION_SUBMITTED, "operation_submitted", NOTABLE, "", "", "", "elements", "operation", NUMBER)               \
  X(OPERATION_DELAYED, "operation_delayed", NOTABLE, "", "", "", "", "operation", NUMBER)                           \
  X(EPOCH_ENDED, "epoch_ended", NOTABLE, "", "", "", "", "epoch", NUMBER)                                           \
  X(AGGREGATOR_LOST, "aggregator_lost", NOTABLE, "", "", "", "", "", NUMBER)                                        \
  X(JOB_FAILED, "job_failed", NOTABLE, "", "missing", "", "num_ranks", "status", STATUS)                            \
  /* the daemon's control thread; a worker's job has rank_lost too. Names are those of its log */                   \
  X(RANK_JOINED, "rank_joined", NOTABLE, "", "rank", "", "", "epoch", NUMBER)                                       \
  X(JOB_STARTED, "job_started", NOTABLE, "", "", "", "ranks", "epoch", NUMBER)                                      \
  X(RANK_LEFT, "rank_left", NOTABLE, "", "rank", "", "", "epoch", NUMBER)                                           \
  X(RANK_LOST, "rank_lost", NOTABLE, "", "rank", "", "", "epoch", NUMBER)                                           \
  X(JOIN_REFUSED, "join_refused", NOTABLE, "", "rank", "", "", "epoch", NUMBER)                                     \
  X(JOB_REFUSED, "job_refused", NOTABLE, "", "", "", "ranks", "epoch", NUMBER)                                      \
  X(HOST_LIMITED, "host_limited", NOTABLE, "", "", "", "", "", NUMBER)                                              \
  X(RANK_DELAYED, "rank_delayed", NOTABLE, "", "rank", "", "", "epoch", NUMBER)                                     \
  X(RANK_CALLED, "rank_called", NOTABLE, "", "rank", "", "", "epoch", NUMBER)                                       \
  X(EPOCH_RENEWED, "epoch_renewed", NOTABLE, "", "", "", "ranks", "epoch", NUMBER)                                  \
  X(STATUS_REFUSED, "status_refused", NOTABLE, "", "", "", "", "", NUMBER)                                          \
  X(MULTICAST_REFUSED, "multicast_refused", NOTABLE, "", "", "", "ranks", "epoch", NUMBER)                          \
  X(JOB_ABORTED, "job_aborted", NOTABLE, "", "", "", "ranks", "epoch", NUMBER)                                      \
  X(JOB_ENDED, "job_ended", NOTABLE, "", "", "", "ranks", "epoch", NUMBER)
/* clang-format on */

enum sml_trace_event {
#define SML_TRACE_EVENT_ENUM(name, ...) SML_TRACE_##name,
  SML_TRACE_EVENT_LIST(SML_TRACE_EVENT_ENUM)
#undef SML_TRACE_EVENT_ENUM
      SML_TRACE_NUM_EVENTS
};

/* The list as data. Empty names: fields not used. */
struct sml_trace_event_info {
  const char *name;
  enum sml_trace_level level;
  const char *slot, *rank, *phase, *chunk, *value;
  enum sml_trace_kind kind;
};
extern const struct sml_trace_event_info sml_trace_events[SML_TRACE_NUM_EVENTS];
