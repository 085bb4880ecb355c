/* SPDX-License-Identifier: Apache-2.0
 * What stream.c (how connections behave) and socket.c (the calls) share. */
#pragma once

#include "sim/internal.h"

struct sim_name {
  uint32_t ipv4;
  uint16_t port;
};

enum sim_endpoint_state { SIM_UNNAMED, SIM_NAMED, SIM_LISTENING, SIM_CONNECTING, SIM_CONNECTED };
struct sim_endpoint {
  struct sim_file file; /* first */
  bool has_file;        /* false in an accept queue */
  bool is_datagram;     /* a socket that is only asked about its path */
  enum sim_endpoint_state state;
  struct sim_host *host;
  struct sim_name local, remote;
  int error;      /* to be told once */
  bool is_broken; /* reset, refused or timed out */
  bool has_eof, is_shut;
  struct sim_connection *connection;
  uint32_t side;
  uint32_t backlog, num_queued;
  struct sim_endpoint *accept_queue;
  struct sim_endpoint *next; /* in an accept queue, or of the host's listeners */
};

/* socket.c */
struct sim_endpoint *sim_endpoint_create(struct sim_host *host);
struct sim_endpoint *sim_listener_of(const struct sim_host *host, const struct sim_name *name);

/* stream.c; negative results are -errno. */
void sim_stream_connect(struct sim_endpoint *endpoint, struct sim_host *to);
uint32_t sim_stream_events(const struct sim_endpoint *endpoint);
int64_t sim_stream_send(struct sim_endpoint *endpoint, const void *data, size_t num_bytes);
int64_t sim_stream_receive(struct sim_endpoint *endpoint, void *data, size_t num_bytes);
void sim_stream_shut(struct sim_endpoint *endpoint);
void sim_stream_close(struct sim_endpoint *endpoint);
