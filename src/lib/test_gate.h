/* SPDX-License-Identifier: Apache-2.0
 * For tests: stands between ranks and their aggregator's control port and lets so many messages of each rank through,
 * in the order in which they come from both sides. So an aggregator can be lost at any step of a join. */
#pragma once

#include <pthread.h>

#include "ctl/channel.h"
#include "lib/test_world.h"

#define GATE_CONNS 16u
#define GATE_ALL UINT32_MAX

struct gate_way {
  uint32_t num_bytes;
  uint8_t bytes[2 * SML_CHANNEL_MAX_FRAME_BYTES];
};

struct gate_conn {
  int fds[2];    /* the rank's, the aggregator's; -1: free */
  uint32_t rank; /* GATE_ALL: its JOIN has not come */
  uint32_t num_passed;
  struct gate_way ways[2]; /* from there */
};

struct gate {
  struct sml_addr upstream;
  char address[80]; /* that ranks are told */
  int listen_fd;
  pthread_t thread;
  pthread_mutex_t lock; /* all below */
  bool should_stop, is_shut, is_frozen;
  uint32_t limits[MAX_RANKS]; /* messages but heartbeats */
  struct gate_conn conns[GATE_CONNS];
};

/* Lets everything through. */
void gate_start(struct gate *g, const char *upstream);
void gate_stop(struct gate *g);
void gate_limit(struct gate *g, uint32_t rank, uint32_t num_messages);
/* Until these ranks have got to their limits, and their next message, if there is one to come, is held. False: not
 * within 20 s. */
bool gate_await(struct gate *g, uint32_t num_ranks);
/* Ends all connections, and new ones at once. */
void gate_shut(struct gate *g);
/* Nothing goes through, heartbeats neither, and nobody notices but by that. */
void gate_freeze(struct gate *g, bool is_frozen);
/* No limits any more. */
void gate_open(struct gate *g);
/* It is shut: from now on it leads to that one. */
void gate_turn(struct gate *g, const char *upstream);
