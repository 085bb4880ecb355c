/* SPDX-License-Identifier: Apache-2.0 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "netio/netio.h"

#define KERNEL_NS (15 * 60 * SML_NS_PER_S)

void sml_tcp_outlast(int fd, uint64_t lease_ns) {
  const unsigned patience_ms = lease_ns == 0 ? 0 : (unsigned)((lease_ns + KERNEL_NS) / SML_NS_PER_MS);
  const int is_member = lease_ns != 0;
  /* Where a kernel knows neither, all is as it was without. */
  (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience_ms, sizeof patience_ms);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &is_member, sizeof is_member);
}
