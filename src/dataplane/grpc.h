/* SPDX-License-Identifier: Apache-2.0
 * Calls by gRPC over an unprotected TCP connection, with one message to the server, a deadline, and whatever messages
 * come back. HTTP/2 is libnghttp2's. */
#pragma once

#include "dataplane/protobuf.h"
#include "netio/netio.h"

#define SML_GRPC_ERROR_BYTES 256u
#define SML_GRPC_MAX_ANSWER_BYTES (4u << 20) /* as gRPC itself by default */

struct nghttp2_session;

struct sml_grpc {
  int fd; /* -1: not connected */
  struct sml_addr addr;
  struct nghttp2_session *session;
  uint64_t deadline_ns;
  const struct sml_pb *request; /* of the call that is under way */
  size_t sent_bytes;            /* of it, with the 5 bytes before it */
  int32_t stream;
  bool is_ended;
  uint32_t http_status, status; /* status: gRPC's; UINT32_MAX: none came */
  struct sml_pb frames;         /* as they came, each with 5 bytes before it */
  char message[160];
  char path[96];
  char error[SML_GRPC_ERROR_BYTES]; /* of the last call; "": none */
  bool was_lost;                    /* a call found the connection closed; its owner sets it to false */
};

void sml_grpc_init(struct sml_grpc *g, const struct sml_addr *addr);
void sml_grpc_close(struct sml_grpc *g);

/* Connects if need be. path: "/package.Service/Method". All messages of the answer go to answer_out, one behind the
 * other: which is one message that has the fields of all. False: g->error says why; then the connection is closed,
 * unless the server refused. */
bool sml_grpc_call(struct sml_grpc *g, const char *path, const struct sml_pb *request, uint64_t deadline_ns,
                   struct sml_pb *answer_out);
