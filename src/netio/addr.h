/* SPDX-License-Identifier: Apache-2.0
 * What the back ends and addr.c share about the bytes of a struct sml_addr. A sockaddr_in, a
 * sockaddr_in6 and a mem address all begin with a native 16-bit family and a big-endian port. */
#pragma once

#include "netio/netio.h"

#define SML_ADDR_FAMILY_MEM 0xffffu
#define SML_ADDR_MEM_BYTES 4u

static inline uint16_t sml_addr_family(const struct sml_addr *addr) {
  uint16_t family = 0;
  if (addr->num_bytes >= SML_ADDR_MEM_BYTES) memcpy(&family, addr->bytes, sizeof family);
  return family;
}

/* sml_addr_parse, or (!looks_up) sml_addr_check, but a link-local address needs no scope. */
bool sml_addr_read(const char *text, uint16_t default_port, bool looks_up, struct sml_addr *addr_out, char *error_out,
                   size_t error_bytes);
/* This host's address that packets to the peer leave from, as the kernel chooses for a socket that is connected there
 * and sends nothing. False: not known, and *local_out is as it was. */
bool sml_addr_find_local(const struct sml_addr *peer, struct sml_addr *local_out);
