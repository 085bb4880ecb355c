/* SPDX-License-Identifier: Apache-2.0
 * Instead of the resolver (linked with --wrap=getaddrinfo): numeric addresses only, so that no fuzzer asks a
 * name server. */
#include <netdb.h>
#include <stddef.h>

int __real_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **results);
int __wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **results);

int __wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **results) {
  struct addrinfo numeric = *hints;
  numeric.ai_flags |= AI_NUMERICHOST;
  return __real_getaddrinfo(node, service, &numeric, results);
}
