/* SPDX-License-Identifier: Apache-2.0
 * Finds, before a job starts, the largest datagram that comes back from the aggregator on every lane: HELLOs padded to
 * candidate sizes, from large to small, the small ones several at a time. The HELLO also registers the lane's address.
 * Then, if the aggregator offers a multicast group, whether datagrams of that size come by it. */
#pragma once

#include "ctl/message.h"
#include "method/engines.h"

#define SML_PROBER_CANDIDATES 6u
#define SML_PROBER_FINER 10u

struct sml_prober;
struct sml_prober_lane {
  struct sml_hello hello; /* lent to the engine while verdict is PROBE_ASKING, as those of finer sizes */
  struct sml_hello finer[SML_PROBER_FINER];
  uint32_t num_asked; /* without an end yet, of these and hello; the engine's thread has it, and the next */
  const struct sml_hello *largest; /* that came back */
  struct sml_prober *prober;
  uint32_t candidate;    /* index of the size asked for */
  struct sml_addr group; /* joined by the lane's engine; num_bytes 0: none */
  _Atomic int verdict;   /* release by the engine's thread, acquire by sml_prober_poll */
};

enum sml_prober_phase { SML_PROBER_SIZES, SML_PROBER_GROUP, SML_PROBER_OVER };

struct sml_prober {
  enum sml_prober_phase phase;
  struct sml_addr group; /* lane 0's; num_bytes 0: there is none to try */
  uint32_t datagram_bytes;
  bool is_cancelled;
  bool hears_group; /* OVER: all lanes do, and their engines are in it */
  int group_error;  /* an errno: why it could not be joined */
  struct sml_engines *engines;
  void (*wake)(void *user); /* called on an engine's thread when a verdict is there */
  void *user;
  uint32_t num_lanes;
  uint64_t rtt_ns; /* once DONE: the smallest that was seen on any lane; 0: none was */
  uint32_t candidates_bytes[SML_PROBER_CANDIDATES], num_candidates;
  struct sml_prober_lane lanes[SML_MAX_LANES];
};

struct sml_prober_options {
  uint32_t rank;
  const struct sml_addr *aggregator; /* of the control connection; the lanes' ports come from the welcome */
  uint32_t max_datagram_bytes;
  bool is_only_size;           /* max_datagram_bytes or nothing */
  const struct sml_seal *seal; /* of the welcome's epoch */
  bool no_multicast;           /* do not try the welcome's group */
};
/* engines, wake and user are set by the caller before. */
void sml_prober_start(struct sml_prober *prober, const struct sml_ctl_welcome *welcome,
                      const struct sml_prober_options *options, uint64_t now_ns);
enum sml_prober_state { SML_PROBER_BUSY, SML_PROBER_DONE };
/* Moves lanes on to their next candidate. heard_ns: when the aggregator last said something on the control connection.
 * DONE: *datagram_bytes_out came back on all lanes (0: nothing
 * did on some lane), and no engine holds memory of the prober any more. */
enum sml_prober_state sml_prober_poll(struct sml_prober *prober, uint64_t heard_ns, uint64_t now_ns,
                                      uint32_t *datagram_bytes_out);
/* Gives up: no lane begins another candidate. Poll until DONE. */
void sml_prober_cancel(struct sml_prober *prober);
/* What rests of it once it is DONE: whether the lanes hear the group, for PROBED. */
enum sml_ctl_hearing sml_prober_hearing(const struct sml_prober *prober);
/* DONE: the engines leave the groups that they are in. */
void sml_prober_leave_groups(struct sml_prober *prober);
