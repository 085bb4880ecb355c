/* SPDX-License-Identifier: Apache-2.0
 * Tests only: a stand-in for the server of a Tofino's driver, a gRPC server in a thread that keeps entries and
 * registers, records calls, and errs when told to. It knows the names and widths of test_schema.h and no others, and
 * what of the vendor's server was read in its sources; it is not that server, and there was no switch. Functions here
 * are server_*. */
#ifndef SML_DATAPLANE_TEST_SERVER_H
#define SML_DATAPLANE_TEST_SERVER_H

#include "dataplane/grpc.h"
#include "engine/engine.h"

#include <pthread.h>

#define SERVER_LANES 32u
#define SERVER_SLOTS 128u
#define SERVER_MAX_LIVE 256u

enum fault { NO_FAULT, CLOSES, REFUSES, NO_HTTP2, NO_GRPC, CUTS, COMPRESSES, RESETS, TOO_LONG, SILENT, DIES };

struct server {
  int listen_fd;
  pthread_t thread;
  pthread_mutex_t lock; /* of what follows */
  struct sml_addr addr;
  int client_fd;
  bool has_more_lanes; /* than SERVER_LANES */
  char log[32768];
  size_t log_bytes;
  char live[SERVER_MAX_LIVE][256]; /* "table keys" */
  uint32_t num_calls, faulty_call; /* from 1; of names' numbers nothing is counted */
  enum fault fault;
  uint32_t words[2 * SERVER_SLOTS];
};

void server_start(struct server *s); /* on 127.0.0.1, at s->addr */
void server_stop(struct server *s);
void server_plan_fault(struct server *s, enum fault fault, uint32_t call); /* 1: the next one */
/* The calls since it was last asked for, in room for all of them. */
void server_take_log(struct server *s, char log_out[sizeof ((struct server *)0)->log]);
uint32_t server_count_calls(struct server *s);
uint32_t server_count_live(struct server *s, const char *table); /* table: or a beginning of its name */
struct sml_addr server_addr(uint32_t ip, uint16_t port);

#endif
