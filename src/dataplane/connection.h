/* SPDX-License-Identifier: Apache-2.0
 * A connection to a switch's control: a stream socket that never blocks. Every step looks at the deadline first, also
 * where there are bytes to be read or room for more: a switch that sends byte by byte, or without end, or that reads
 * slowly, takes no more time than a silent one. */
#pragma once

#include <sys/socket.h>

#include "base/base.h"

/* These return 0 or -errno; -ETIMEDOUT: the deadline is over. */

/* *fd_out: -1 if it failed. */
int sml_connection_open(const struct sockaddr *addr, socklen_t addr_bytes, uint64_t deadline_ns, int *fd_out);
int sml_connection_send(int fd, const void *bytes, size_t num_bytes, uint64_t deadline_ns);
/* What is there, at least a byte; *num_bytes_out 0: the peer has closed. */
int sml_connection_receive(int fd, void *bytes, size_t room_bytes, uint64_t deadline_ns, size_t *num_bytes_out);

/* Whether the peer has closed it, whatever it has sent before. */
bool sml_connection_is_closed(int fd);
