/* SPDX-License-Identifier: Apache-2.0
 * Tests only: a stand-in (test_stand_in.h) for the server of a Tofino's driver, a gRPC server that keeps entries and
 * registers, records calls, and errs when told to. It knows the names and widths of test_schema.h and no others, and
 * what of the vendor's server was read in its sources; it is not that server, and there was no switch. Functions here
 * are server_*. */
#pragma once

#include "dataplane/test_stand_in.h"

#define SERVER_LANES 32u
#define SERVER_MAX_LIVE 256u

enum fault { NO_FAULT, CLOSES, REFUSES, NO_HTTP2, NO_GRPC, CUTS, COMPRESSES, RESETS, TOO_LONG, SILENT, DIES, LENGTHY };

/* For stand_in_start. Questions for the numbers of names are not counted, and are answered without fault. */
void server_serve(int fd);
/* As nothing had been asked yet. has_more_lanes: than SERVER_LANES. */
void server_reset(bool has_more_lanes);
uint32_t server_count_live(const char *table); /* entries; table: or a beginning of its name */
